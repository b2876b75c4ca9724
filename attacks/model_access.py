"""What attacks ask a model: which answers count as right, losses to maximise, and checked logits of a model held still.

Labels are (B,) integers, a class for each sample, or (B, L) integers, a set for each: its classes in any order, and -1
in the remaining places, which attacks fill with a class of the set (`fill_label_sets`). A set is treated as one class:
its probability is the sum, its logit the largest, so that an attack leads away from whichever valid class is ahead. A
set of one class is that class, to the bit. The other classes of a set are not part of the margin or of DLR's scale: two
valid classes on top would make DLR -1 wherever the sample stands, without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

OFF = 100.0  # how far below the lowest finite logit a class lies that the model switched off with -inf
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
        raise ValueError(
            f"the set of labels of image {int(empty.long().argmax())} is empty; expected at least one class"
        )
    # A set repeats one of its classes or ends with -1, so a single 1 among zeros stands in its first two places.
    if sets and low == 0 and high == 1 and bool((labels.sum(dim=1) == 1).all() and labels[:, 2:].any()):
        raise ValueError(_ONE_HOT.format(f"each of the {batch} rows has a single 1 and otherwise 0"))
    return high


def check_label_range(labels: Tensor, classes: int) -> None:
    """Raise ValueError for labels beyond the last class, and for one-hot or multi-hot rows, of 0 or -1, and 1."""
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


def fill_label_sets(labels: Tensor, device: torch.device) -> Tensor:
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


def contains_label(labels: Tensor, classes: Tensor) -> Tensor:
    """Whether each class (B,) is the label, or one of the set: (B,)."""
    return (as_sets(labels) == classes[:, None]).any(dim=1)


def label_mask(labels: Tensor, like: Tensor) -> Tensor:
    """Return (B, K), True at the classes that count as right; `like` are the logits."""
    return torch.zeros_like(like, dtype=torch.bool).scatter_(1, as_sets(labels), True)


def is_answer(logits: Tensor) -> Tensor:
    """Whether the logits (B, K) of each sample rank its classes: (B,). None is NaN or +inf, two or more are finite."""
    return are_finite(with_all_classes(logits.detach()))


def are_finite(logits: Tensor) -> Tensor:
    """`is_answer` for logits (B, K) `with_all_classes`, as an `Oracle` gives them."""
    return logits.detach().abs().amax(dim=1) < math.inf


def with_all_classes(logits: Tensor) -> Tensor:
    """Return the logits (B, K) with `OFF` below the lowest in place of -inf, where two or more are finite."""
    off = logits.detach() == -math.inf
    if logits.device.type == "cpu" and not off.any():  # a device would have to wait for that
        return logits
    off &= (~off).sum(dim=1, keepdim=True) >= 2
    lowest = logits.detach().masked_fill(off, math.inf).amin(dim=1, keepdim=True)
    return torch.where(off, lowest - OFF, logits)


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Return the `count` classes (B, count) of the largest logits (B, K), likeliest first, fewer where K is smaller.

    Of equal logits the first class is ahead, as argmax promises on every device, and topk does not.
    """
    return logits.sort(dim=1, descending=True, stable=True).indices[:, :count]


def is_missed(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each prediction (B,) of an `Oracle` is wrong, or no answer: an attack has won then, too."""
    return ~(contains_label(labels, logits.detach().argmax(dim=1)) & are_finite(logits))


Loss = Callable[[Tensor, Tensor], Tensor]  # (B, K) logits and (B,) or (B, L) int64 labels to (B,) losses


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of the label, or of any class of a set: -log of their summed share.

    Args:
        logits: (B, K) floating.
        labels: (B,) int64, or (B, L) sets.

    Returns:
        Losses (B,) in nats.

    Example:
        >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([4.])
    """
    if labels.ndim != 2:
        return nn.functional.cross_entropy(logits, labels, reduction="none")
    return -logits.log_softmax(dim=1).masked_fill(~label_mask(labels, logits), float("-inf")).logsumexp(dim=1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest other logit minus the label's, above 0 where it is wrong.

    For a set: the largest logit outside it minus the largest inside.

    Args:
        logits: (B, K) floating.
        labels: (B,) int64, or (B, L) sets.

    Returns:
        Losses (B,) in the unit of the logits.

    Raises:
        ValueError: fewer than two classes.

    Reference: Carlini and Wagner 2017, arXiv:1608.04644.

    Example:
        >>> margin(torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([1]))
        tensor([-2.])
    """
    _need_classes(logits, 2, "margin")
    return _largest_other(logits, labels) - _of_label(logits, labels)


def probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest other probability minus the label's, for a set minus the sum of them.

    Its gradient is the margin's, weighted by the two probabilities: what is nearly decided counts little.

    Args:
        logits: (B, K) floating.
        labels: (B,) int64, or (B, L) sets.

    Returns:
        Losses (B,) in [-1, 1]; -inf where a set has all classes.

    Raises:
        ValueError: fewer than two classes.

    Reference: arXiv:2411.15210, the loss of its PMA.

    Example:
        >>> probability_margin(torch.tensor([[1.0, 1.0]]).log(), torch.tensor([1]))
        tensor([0.])
    """
    _need_classes(logits, 2, "pma")
    shares = logits.softmax(dim=1)
    of_label = shares.gather(1, labels[:, None]) if labels.ndim == 1 else shares.where(label_mask(labels, logits), 0.0)
    return _largest_other(shares, labels) - of_label.sum(dim=1)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the difference of logits ratio: the margin over the gap of first and third.

    It does not change when the logits are shifted or scaled, so confident models do not flatten it. First and third
    are of the classes that compete: those outside a set, and the likeliest inside; if only two do, the plain margin is
    used.

    Args:
        logits: (B, K) floating.
        labels: (B,) int64, or (B, L) sets.

    Returns:
        Losses (B,), above 0 where the prediction is wrong.

    Raises:
        ValueError: fewer than three classes.

    Reference: Croce and Hein 2020, arXiv:2003.01690, equation 4.

    Example:
        >>> dlr(torch.tensor([[5.0, 3.0, 1.0]]), torch.tensor([0]))
        tensor([-0.5000])
    """
    _need_classes(logits, 3, "dlr")
    top = _competing(logits, labels).topk(3, dim=1).values
    return (_largest_other(logits, labels) - _of_label(logits, labels)) / _scale(top, top[:, 0] - top[:, 2])


def dlr_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the targeted DLR: target minus label, over the gap from the first logit to the mean of third and fourth.

    Args:
        logits: (B, K) floating.
        labels: (B,) int64, or (B, L) sets.
        targets: (B,) int64, outside the sets.

    Returns:
        Losses (B,), above 0 where the target is ahead of the label.

    Raises:
        ValueError: fewer than four classes.

    Reference: Croce and Hein 2020, arXiv:2003.01690, equation 6.

    Example:
        >>> dlr_targeted(torch.tensor([[5.0, 3.0, 2.0, 0.0]]), torch.tensor([0]), torch.tensor([1]))
        tensor([-0.5000])
    """
    _need_classes(logits, 4, "targeted dlr")
    top = _competing(logits, labels).topk(4, dim=1).values
    return margin_targeted(logits, labels, targets) / _scale(top, top[:, 0] - 0.5 * (top[:, 2] + top[:, 3]))


def margin_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the target's logit minus the label's, for a set minus the largest of it."""
    return _of_label(logits, targets) - _of_label(logits, labels)


def _pairwise(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum (B,) over the other classes of log(1 + exp(their logit - the label's, or its set's largest))."""
    gaps = logits - _of_label(logits, labels)[:, None]
    return nn.functional.softplus(gaps).masked_fill(label_mask(labels, logits), 0.0).sum(dim=1)


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {"ce": cross_entropy, "margin": margin, "dlr": dlr, "pma": probability_margin, "bce": _pairwise}
)
"""The losses by the names that attacks take; bce: a binary loss for each other class against the label, summed."""


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


Model = Callable[..., Tensor]  # any nn.Module or function from a batch (B, ...) to logits (B, K)


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Hold a model still: evaluation mode, gradients for inputs and not for parameters; restore it on leaving."""
    module = model if isinstance(model, nn.Module) else nn.Module()
    modes = [(part, part.training) for part in nn.Module.modules(module)]  # a network may have a list `modules`
    learning = [parameter for parameter in nn.Module.parameters(module) if parameter.requires_grad]
    try:
        if any(training for _, training in modes):
            module.eval()
        for parameter in learning:
            parameter.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        if modes[0][1]:
            module.train()  # may do more than set flags, as eval() may
        for part, training in modes:
            part.training = training


class Oracle:
    """A frozen model that answers with checked logits, and with gradients in the type of the points.

    dtype: what the model is fed. labels: on the host, compared with the number of classes once that is known. judge:
    the model that must agree before a wrong prediction counts. batch_size: most rows per pass of attacks with batches.
    """

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype,
        labels: Tensor | None = None,
        judge: Model | None = None,
        batch_size: int | None = None,
        least_classes: int = 2,
    ) -> None:
        self._model, self._judge, self.judged = model, judge, judge is not None
        self.dtype, self._labels, self.batch_size = dtype, labels, batch_size
        self._least_classes, self._compared_with = least_classes, 0  # how many the labels were compared with

    def __call__(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits (B, K) `with_all_classes`, float32 or float64. ValueError for other shapes and labels.
        rows: (B,) the sample of each point, which a model that `asks_rows` is given, too."""
        logits = self._model(points.to(self.dtype), *([rows] if getattr(self._model, "asks_rows", False) else []))
        if not (isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(points)):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"the model returned {got} for {len(points)} images; expected logits (images, classes)")
        if (classes := logits.shape[1]) < self._least_classes:
            raise ValueError(
                f"the model has {classes} class; an attack needs at least {self._least_classes} (for a single logit z: "
                "the two logits 0 and z)"
            )
        if self._labels is not None and self._compared_with != classes:
            check_label_range(self._labels, classes)
            self._compared_with = classes
        return with_all_classes(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    def judging(self) -> Oracle:
        """Return the judge alone. ValueError where there is none."""
        if self._judge is None:
            raise ValueError("no judge; expected a model that must agree")
        return Oracle(self._judge, self.dtype, self._labels, batch_size=self.batch_size)

    def surrogates(self) -> list[Oracle]:
        """Return the model's own `surrogates`, with other gradients; the judge, or the model itself, must agree."""
        models: Mapping[str, Model] = getattr(self._model, "surrogates", {})
        judge = self._judge or self._model
        return [Oracle(surrogate, self.dtype, self._labels, judge, self.batch_size) for surrogate in models.values()]

    def drawn_to(self, points: Tensor, boxes: Tensor, of_class: bool) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and the model's `key_loss` (B,) for boxes (B, 3); of_class: the class token's alone."""
        if (key_loss := getattr(self._model, "key_loss", None)) is None:
            raise ValueError(
                "loss is 'kq', and the model has no key_loss; expected one with a supported attention, or loss 'ce'"
            )
        answers: list[Tensor] = []

        def ask(images: Tensor) -> Tensor:
            logits, drawn = key_loss(images, boxes, of_class)
            answers.append(drawn)
            return logits  # type: ignore[no-any-return]

        asked = Oracle(ask, self.dtype, self._labels)
        return asked(points), answers[0].to(torch.promote_types(answers[0].dtype, torch.float32))

    def predict(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits (B, K) without a graph. rows: as above."""
        with torch.inference_mode():
            logits = self(points, rows)
        return logits.clone()  # an ordinary tensor again

    def confirm(self, points: Tensor, labels: Tensor, wrong: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which points that look `wrong` (B,) the judge finds wrong, too, and of which (B,) it was asked."""
        if self._judge is None or not wrong.any():
            return wrong, torch.zeros_like(wrong)
        judge = Oracle(self._judge, self.dtype, self._labels)
        agreed = is_missed(judge.predict(points[wrong], rows[wrong]), labels[wrong])
        return wrong.masked_scatter(wrong, agreed), wrong


class NoGradientError(ValueError):
    """A model's output has no gradient with respect to its input."""


def input_gradient(loss: Tensor, points: Tensor, more: bool = False) -> Tensor:
    """Return the gradients (B, ...) of the (B,) losses at their own points; `more` may follow. ValueError without."""
    gradient, total = None, loss.sum()
    if loss.requires_grad and points.is_leaf and _is_reentrant(total):
        before, points.grad = points.grad, None
        total.backward(retain_graph=more)  # type: ignore[no-untyped-call]
        gradient, points.grad = points.grad, before
    elif loss.requires_grad:
        gradient = torch.autograd.grad(total, points, allow_unused=True, retain_graph=more)[0]
    if gradient is None:
        raise NoGradientError(
            "the model's output has no gradient with respect to its input (is it detached, or computed under no_grad "
            "or in NumPy?); use an attack without gradients, such as SPSA for a classifier"
        )
    # That of a sum is one number seen from many places, which cannot be written to.
    return gradient.clone(memory_format=torch.contiguous_format) if 0 in gradient.stride() else gradient


def _is_reentrant(loss: Tensor) -> bool:
    """Whether a loss comes through a reentrant `torch.utils.checkpoint`, which knows `backward` only, not `grad`."""
    seen, nodes = {loss.grad_fn}, [loss.grad_fn]
    for node in nodes:
        if node is None:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        nodes += (more := {each for each, _ in node.next_functions} - seen)
        seen |= more
    return False
