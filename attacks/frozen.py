"""Hold a model still while it is attacked, and ask it for checked logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .labels import check_places, missed, with_all_classes

Model = Callable[[Tensor], Tensor]
"""Any nn.Module or function from a batch (B, ...) to logits (B, K)."""


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Hold a model still: evaluation mode, no gradients for parameters, gradients for inputs even in `no_grad`.

    Every module's mode and every parameter's `requires_grad` are restored on leaving, also after an exception;
    `.grad` and hooks are not touched. A model that is a plain function has no state to hold, and is only called.
    """
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
    """A frozen model that answers with checked logits, and with gradients.

    dtype: what the model is fed; points of a wider type are cast, and gradients come back in the points' type.
    labels: those in use, on the host, to be compared with the number of classes once that is known; None: no labels.
    judge: the model that must agree before a wrong prediction counts; None: `model` is trusted.
    batch_size: most rows per pass of an attack that makes its own batches; None: all.
    least_classes: fewer leave an attack nothing to do.
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
        self._model = model
        self.dtype = dtype
        self._labels = labels
        self._judge = judge
        self.batch_size = batch_size
        self._least_classes = least_classes
        self._known = 0  # classes that the labels were compared with

    @property
    def judged(self) -> bool:
        """Whether another model must agree before a wrong prediction counts."""
        return self._judge is not None

    def __call__(self, points: Tensor) -> Tensor:
        """Return the logits (B, K), float32 or float64, of `points` (B, ...).

        A logit of -inf is a class that the model switched off. Where two or more of the others are finite, it becomes
        a number that no loss sees, `OFF` below the lowest of them, so that it has neither rank nor gradient.

        Raises ValueError for anything but one row of logits for each point, for a single class, for labels beyond the
        last class, and for rows of labels that are one-hot.
        """
        logits = self._model(points.to(self.dtype))
        if not (isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(points)):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"the model returned {got} for {len(points)} images; expected logits (images, classes)")
        if (classes := logits.shape[1]) < self._least_classes:
            raise ValueError(
                f"the model has {classes} class; an attack needs at least {self._least_classes} (for a single logit z: "
                "the two logits 0 and z)"
            )
        if self._labels is not None and self._known != classes:
            check_places(self._labels, classes)
            self._known = classes
        return with_all_classes(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    @property
    def surrogates(self) -> Mapping[str, Model]:
        """The model's own `surrogates`: functions with its answers and other gradients, by name; empty without."""
        found: Mapping[str, Model] = getattr(self._model, "surrogates", {})
        return found

    def by(self, surrogate: Model) -> Oracle:
        """Return the same with the gradients of a surrogate; the judge, or the model itself, must agree."""
        return Oracle(surrogate, self.dtype, self._labels, self._judge or self._model, self.batch_size)

    def drawn_to(self, points: Tensor, boxes: Tensor, of_class: bool) -> tuple[Tensor, Tensor]:
        """Return logits (B, K), and the model's `key_loss` (B,) at `points` for boxes (B, 3). ValueError without one.

        of_class: of the class token's query alone.
        """
        if (key_loss := getattr(self._model, "key_loss", None)) is None:
            raise ValueError(
                "loss is 'kq', and the model has no key_loss; expected one whose attention is understood, or loss 'ce'"
            )
        answers: list[Tensor] = []

        def ask(images: Tensor) -> Tensor:
            logits, drawn = key_loss(images, boxes, of_class)
            answers.append(drawn)
            return logits  # type: ignore[no-any-return]

        asked = Oracle(ask, self.dtype, self._labels)
        return asked(points), answers[0].to(torch.promote_types(answers[0].dtype, torch.float32))

    def predict(self, points: Tensor) -> Tensor:
        """Return the logits (B, K) without a graph."""
        with torch.inference_mode():
            logits = self(points)
        return logits.clone()  # an ordinary tensor again

    def confirm(self, points: Tensor, labels: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the rows that look `wrong` (B,) the judge finds wrong, too, and which (B,) it was asked."""
        if self._judge is None or not wrong.any():
            return wrong, torch.zeros_like(wrong)
        judge = Oracle(self._judge, self.dtype, self._labels)
        agreed = missed(judge.predict(points[wrong]), labels[wrong])
        return wrong.masked_scatter(wrong, agreed), wrong


def input_gradient(loss: Tensor, points: Tensor, more: bool = False) -> Tensor:
    """Return the gradient (B, ...) of the (B,) losses, each with respect to its own point; `more` gradients may follow.

    Raises ValueError where the loss has no path back to the points.
    """
    gradient = _gradient(loss.sum(), points, more) if loss.requires_grad else None
    if gradient is None:
        raise ValueError(
            "the model's output has no gradient with respect to its input (is it detached, or computed under no_grad "
            "or in NumPy?); use an attack without gradients, such as SPSA "
            "for a classifier"
        )
    # That of a sum is one number seen from many places, which cannot be written to.
    return gradient.clone(memory_format=torch.contiguous_format) if 0 in gradient.stride() else gradient


def _gradient(loss: Tensor, points: Tensor, more: bool) -> Tensor | None:
    """Return the gradient of a sum, None where it has no path back to the points."""
    if not (points.is_leaf and _is_reentrant(loss)):
        return torch.autograd.grad(loss, points, allow_unused=True, retain_graph=more)[0]
    before, points.grad = points.grad, None
    loss.backward(retain_graph=more)  # type: ignore[no-untyped-call]
    gradient, points.grad = points.grad, before
    return gradient


def _is_reentrant(loss: Tensor) -> bool:
    """Whether a loss comes through a reentrant `torch.utils.checkpoint`, which knows `backward` only, not `grad`."""
    seen, found = {loss.grad_fn}, [loss.grad_fn]
    for node in found:
        if node is None:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        found += (more := {each for each, _ in node.next_functions} - seen)
        seen |= more
    return False
