"""Losses that attacks maximise: one per sample, larger where the prediction is more wrong.

Labels are (B,) int64, or (B, L) where each sample has a set of classes that count as right (`labels.settled`). A set is
treated as one class: its probability is the sum, its logit the largest, so that an attack leads away from whichever
valid class is ahead. The other classes of a set are not part of the margin or of DLR's scale: two valid classes on top
would make DLR -1 wherever the sample stands, without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from .labels import as_sets, members

Loss = Callable[[Tensor, Tensor], Tensor]
"""(B, K) logits and (B,) or (B, L) int64 labels to (B,) losses."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of the label, for a set of any of its classes (-log of the summed
    probability), in nats.
    """
    if labels.ndim != 2:
        return nn.functional.cross_entropy(logits, labels, reduction="none")
    valid = members(labels, logits)
    return -logits.log_softmax(dim=1).masked_fill(~valid, float("-inf")).logsumexp(dim=1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest other logit minus the label's (Carlini and Wagner 2017): above 0 where the prediction is
    wrong.

    For a set: the largest logit outside it minus the largest inside.

    Raises ValueError for fewer than two classes.
    """
    _need_classes(logits, 2, "margin")
    return _largest_other(logits, labels) - _of_label(logits, labels)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the difference of logits ratio (Croce and Hein 2020, eq. 4): the margin over the gap from the first to the
    third.

    It does not change when the logits are shifted or scaled, so confident models do not flatten it. First and third
    are of the classes that compete: those outside a set, and the likeliest inside; if only two do, the plain margin is
    used. Raises ValueError for fewer than three classes.
    """
    _need_classes(logits, 3, "dlr")
    top = _competing(logits, labels).topk(3, dim=1).values
    return (_largest_other(logits, labels) - _of_label(logits, labels)) / _scale(top, top[:, 0] - top[:, 2])


def dlr_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the targeted DLR (Croce and Hein 2020, eq. 6): target minus label, over the gap from the first logit to
    the mean of the third and fourth; sets as in `dlr`. Raises ValueError for fewer than four classes.

    targets: (B,), classes outside the sets.
    """
    _need_classes(logits, 4, "targeted dlr")
    top = _competing(logits, labels).topk(4, dim=1).values
    return margin_targeted(logits, labels, targets) / _scale(top, top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]))


def margin_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the target's logit minus the label's, for a set minus the largest of it."""
    return _of_label(logits, targets) - _of_label(logits, labels)


LOSSES: Mapping[str, Loss] = MappingProxyType({"ce": cross_entropy, "margin": margin, "dlr": dlr})
"""The losses by the names that attacks take."""


def check_loss(name: str) -> None:
    """Raise ValueError unless `name` is one of `LOSSES`."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; expected one of: {', '.join(LOSSES)}")


def _of_label(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.ndim == 1:
        return logits.gather(1, labels[:, None]).squeeze(1)
    return logits.gather(1, labels).max(dim=1).values  # unlike amax's, its gradient has one entry


def _largest_other(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.scatter(1, as_sets(labels), float("-inf")).amax(dim=1)


def _competing(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits; of a set's classes only the largest remains, the others become -inf."""
    if labels.ndim == 1:
        return logits
    best, place = logits.gather(1, labels).max(dim=1, keepdim=True)
    return logits.scatter(1, labels, float("-inf")).scatter(1, labels.gather(1, place), best)


def _scale(top: Tensor, gap: Tensor) -> Tensor:
    """Return the divisor of DLR: `gap`, or 1 where fewer classes compete than the (B, n) `top` has places."""
    return torch.where(top[:, -1] == float("-inf"), 1.0, gap + 1e-12)


def _need_classes(logits: Tensor, least: int, name: str) -> None:
    if logits.shape[1] < least:
        raise ValueError(f"the {name} loss needs at least {least} classes, the model has {logits.shape[1]}; use 'ce'")
