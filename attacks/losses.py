"""What an attack raises: losses for each sample, larger where the prediction is more wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
"""(B, K) logits and (B,) int64 labels to (B,) losses."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the label, in nats."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest other logit minus the label's (Carlini and Wagner 2017): above 0 where the prediction is wrong.

    Raises ValueError for fewer than two classes.
    """
    _need_classes(logits, 2, "margin")
    return _largest_other(logits, labels) - _of_label(logits, labels)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020, eq. 4): the margin over the gap from the first to the third.

    It does not change when the logits are shifted or scaled, so confident models do not flatten it. Raises ValueError
    for fewer than three classes.
    """
    _need_classes(logits, 3, "dlr")
    top = logits.topk(3, dim=1).values
    return (_largest_other(logits, labels) - _of_label(logits, labels)) / (top[:, 0] - top[:, 2] + 1e-12)


def dlr_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The targeted DLR (Croce and Hein 2020, eq. 6): target minus label, over the gap from the first logit to the mean
    of the third and fourth. Raises ValueError for fewer than four classes.
    """
    _need_classes(logits, 4, "targeted dlr")
    top = logits.topk(4, dim=1).values
    return margin_targeted(logits, labels, targets) / (top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]) + 1e-12)


def margin_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The target's logit minus the label's."""
    return _of_label(logits, targets) - _of_label(logits, labels)


LOSSES: Mapping[str, Loss] = MappingProxyType({"ce": cross_entropy, "margin": margin, "dlr": dlr})
"""The losses by the names that attacks take."""


def check_loss(name: str) -> None:
    """Raises ValueError unless `name` is one of `LOSSES`."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}; expected one of: {', '.join(LOSSES)}")


def _of_label(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.gather(1, labels[:, None]).squeeze(1)


def _largest_other(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.scatter(1, labels[:, None], float("-inf")).amax(dim=1)


def _need_classes(logits: Tensor, least: int, name: str) -> None:
    if logits.shape[1] < least:
        raise ValueError(f"the {name} loss needs at least {least} classes, the model has {logits.shape[1]}; use 'ce'")
