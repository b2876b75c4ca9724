"""Which classes count as right: one for each sample, or a set of several.

Labels are (B,) integers, a class for each sample, or (B, L) integers, a set for each: its classes in any order, and -1
in the remaining places. Attacks fill these places with a class of the set (`settled`), and treat a set as one class
whose logit is its largest, or whose probability is the sum. A set of one class is that class, to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OFF = 100.0
"""How far below the lowest finite logit a class lies that the model switched off with -inf."""
_ONE_HOT = (
    "labels look one-hot: {}; expected class indices, (B,) integers (labels.argmax(dim=1)), or sets of them, padded "
    "with -1"
)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_labels(labels: Tensor, batch: int) -> int:
    """Return the largest label (-1 for none); raise unless `labels` are integers as above for `batch` samples."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        rows = isinstance(labels, Tensor) and labels.ndim == 2
        remedy = " (for one-hot rows or probabilities: labels.argmax(dim=1))" if rows else ""
        raise TypeError(f"labels are {kind}; expected a tensor of integer class indices{remedy}")
    sets = labels.ndim == 2
    if labels.shape[:1] != (batch,) or labels.ndim != 1 + sets or 0 in labels.shape[1:]:
        shape = tuple(labels.shape)
        raise ValueError(f"labels have shape {shape} for {batch} images; expected ({batch},), or ({batch}, n) for sets")
    if batch == 0:
        return -1
    low, high = map(int, torch.stack(labels.aminmax()).tolist())
    if low < -sets:
        fill = ", and -1 where a set has fewer classes" * sets
        raise ValueError(f"labels go down to {low}; expected class indices, 0 or more{fill}")
    if sets and bool((empty := labels.amax(dim=1) < 0).any()):
        raise ValueError(f"the set of labels of image {int(empty.long().argmax())} is empty; expected a class or more")
    # A set repeats one of its classes or ends with -1, so a single 1 among zeros stands in its first two places.
    if sets and low == 0 and high == 1 and bool((labels.sum(dim=1) == 1).all() and labels[:, 2:].any()):
        raise ValueError(_ONE_HOT.format(f"each of the {batch} rows has a single 1 and otherwise 0"))
    return high


def check_places(labels: Tensor, classes: int) -> None:
    """Raise ValueError for labels beyond the last class, and for rows as long as there are classes that hold nothing
    but 0 and 1, or -1 and 1, in turn: sets have other members, so they are one-hot or multi-hot.
    """
    if not labels.numel():
        return
    low, high = map(int, torch.stack(labels.aminmax()).tolist())
    if high >= classes:
        raise ValueError(
            f"labels go up to {high}, the model has {classes} classes (0 to {classes - 1}); map the labels to the "
            "model's classes"
        )
    if labels.ndim == 2 and labels.shape[1] == classes and high == 1 and low < 1:
        ones, others = labels == 1, labels == low
        if bool((ones | others).all() and (ones.any(dim=1) & others.any(dim=1)).any()):
            raise ValueError(_ONE_HOT.format(f"rows of {classes}, as many as the model has classes, of {low} and 1"))


def settled(labels: Tensor, device: torch.device) -> Tensor:
    """Copy to int64 on the device, with a class of the set in place of -1; (B,) where all sets hold one class."""
    labels = labels.to(device, torch.int64, copy=True)
    if labels.ndim == 1:
        return labels
    some = labels.amax(dim=1)
    labels = torch.where(labels < 0, some[:, None], labels)
    return some if bool((labels == some[:, None]).all()) else labels


def as_sets(labels: Tensor) -> Tensor:
    """Return (B, L), also for (B,) labels, which are sets of one."""
    return labels if labels.ndim == 2 else labels[:, None]


def holds(labels: Tensor, classes: Tensor) -> Tensor:
    """Whether each class (B,) is the label, or one of the set: (B,)."""
    return (as_sets(labels) == classes[:, None]).any(dim=1)


def members(labels: Tensor, like: Tensor) -> Tensor:
    """Return (B, K), True at the classes that count as right; `like` are the logits."""
    return torch.zeros_like(like, dtype=torch.bool).scatter_(1, as_sets(labels), True)


def answered(logits: Tensor) -> Tensor:
    """Whether the logits (B, K) of each sample rank its classes: (B,). None is NaN or +inf; -inf is a class that is
    switched off, and two or more others are finite.
    """
    return with_all_classes(logits.detach()).abs().amax(dim=1) < math.inf


def with_all_classes(logits: Tensor) -> Tensor:
    """Return the logits (B, K) with `OFF` below the lowest finite one in place of -inf, where two or more are finite.

    Other rows stay as they are: a single finite logit among -inf is no ranking that an attack could change.
    """
    off = logits.detach() == -math.inf  # whether there is any is not asked: a device would have to wait
    off &= (~off).sum(dim=1, keepdim=True) >= 2
    lowest = logits.detach().masked_fill(off, math.inf).amin(dim=1, keepdim=True)
    return torch.where(off, lowest - OFF, logits)


def missed(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each prediction is wrong, not one of the labels or not an answer at all: (B,).

    Logits with NaN or +inf rank no classes: argmax over them is whatever comes first, a softmax is NaN. A model
    that gives them has not answered, and an attacker who makes it fail in this way has won. Otherwise a model that
    answers infinity for its own class on anything but an 8-bit picture would stand under every attack.
    """
    return ~(holds(labels, logits.detach().argmax(dim=1)) & answered(logits))
