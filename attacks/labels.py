"""Which classes count as right: one for each sample, or a set of several.

Labels are (B,) integers, a class for each sample, or (B, L) integers, a set for each: its classes in any order, and -1
in the remaining places. Attacks fill these places with a class of the set (`settled`), and treat a set as one class
whose logit is its largest, or whose probability is the sum. A set of one class is that class, to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_labels(labels: Tensor, batch: int) -> int:
    """Return the largest label (-1 for none); raise unless `labels` are integers as above for `batch` samples."""
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGERS:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels are {kind}; expected a tensor of integer class indices")
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
    return high


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
    """Whether all logits (B, K) of each sample are numbers, neither NaN nor infinite: (B,)."""
    return logits.detach().abs().amax(dim=1) < math.inf


def missed(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each prediction is wrong, not one of the labels or not an answer at all: (B,).

    Logits that are not all finite rank no classes: argmax over them is whatever comes first, a softmax is NaN. A model
    that gives them has not answered, and an attacker who makes it fail in this way has won. Otherwise a model that
    answers infinity for its own class on anything but an 8-bit picture would stand under every attack.
    """
    return ~(holds(labels, logits.detach().argmax(dim=1)) & answered(logits))
