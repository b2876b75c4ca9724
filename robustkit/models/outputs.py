"""What a network returns: which part of it are the logits, and whether these are logits or already probabilities.

A network is asked about an image of zeros, and where its answer lies between 0 and 1, about drawn ones too. They
are the same at each load, so a run that goes on decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.preprocessing import LOGITS, PROBABILITIES, UNIT
from ..errors import ModelError
from .architecture import asked, error_text

LEAST = 2.0**-149
"""The smallest number above 0 that float32 has; a probability of 0 counts as this."""
SUM = 1e-3  # by how much probabilities may miss one
_BELOW = 1e-6  # how far below 0 rounding may bring them
_DEEPEST = 3  # containers inside of each other that are looked into
_SHOWN = 8  # tensors that a message lists

Place = tuple[Any, ...]
"""Where a tensor lies in what a network returns: keys, indices and names of attributes, from outside to inside."""


class LogitsOf(nn.Module):
    """A network whose logits are a part of what it returns, or the logarithms of the probabilities there."""

    def __init__(self, network: nn.Module, place: Place = (), of_probabilities: bool = False) -> None:
        super().__init__()
        self.network, self.place, self.of_probabilities = network, place, of_probabilities

    def forward(self, images: Tensor) -> Any:
        part = self.network(images)
        for step in self.place:
            inside = isinstance(part, Mapping) or (isinstance(part, tuple | list) and isinstance(step, int))
            part = part[step] if inside else getattr(part, step)
        return logarithms_of_rows(part, type(self.network).__name__) if self.of_probabilities else part


class TwoOf(nn.Module):
    """Two classes, (B, 2, ...), of a network with one output, (B, 1, ...), so that the second is predicted where its
    sigmoid is above 0.5: the logits 0 and its own or, where the output is the sigmoid, the two probabilities.
    """

    def __init__(self, network: nn.Module, of_sigmoid: bool) -> None:
        super().__init__()
        self.network, self.of_sigmoid = network, of_sigmoid

    def forward(self, images: Tensor) -> Tensor:
        value: Tensor = self.network(images)
        return torch.cat([1 - value if self.of_sigmoid else torch.zeros_like(value), value], dim=1)


def with_logits(
    network: nn.Module, example: Tensor, choice: str | int | None = None, classes: int | None = None
) -> tuple[nn.Module, int, str, tuple[str, ...]]:
    """Return a network that returns two logits or more, (B, K), K, what its own outputs are, and notes.

    example: an input of zeros (1, ...). choice: the name or the place of the output. classes: K where it is stated.
    Raises ModelError where the network fails, and where it does not say which of its outputs are the logits.
    """
    network, first, notes = with_one_output(network, example, choice, classes)
    kind, count = kind_of_outputs(network, first, example), int(first.shape[1])
    network, kind, more = with_two_classes(network, kind) if count == 1 else (network, kind, notes_on_outputs(kind))
    if kind == PROBABILITIES:
        network = network if isinstance(network, LogitsOf) else LogitsOf(network)
        network.of_probabilities = True
    return network, max(2, count), kind, (*notes, *more)


def with_two_classes(network: nn.Module, kind: str) -> tuple[nn.Module, str, tuple[str, ...]]:
    """Return `TwoOf` a network with one output of some kind, what that returns, and notes."""
    named = "its sigmoid" if kind == UNIT else "a logit"
    note = f"one output, {named}: two classes, the second where the sigmoid is above 0.5"
    return TwoOf(network, kind == UNIT), PROBABILITIES if kind == UNIT else LOGITS, (note,)


def notes_on_outputs(kind: str) -> tuple[str, ...]:
    """Return a note on outputs that are no logits."""
    words = {
        PROBABILITIES: "outputs are probabilities: each row sums to 1; their logarithms are the logits",
        UNIT: "outputs lie between 0 and 1 on drawn images, as after a sigmoid",
    }
    return (words[kind],) if kind in words else ()


def with_one_output(
    network: nn.Module, example: Tensor, choice: str | int | None = None, classes: int | None = None, ndim: int = 2
) -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    """Return a network that returns one tensor of `ndim` dimensions, its answer to the example, and notes on what was
    taken. Raises ModelError."""
    name = type(network).__name__
    expected = "logits of shape (batch, classes" + ", height, width)" * (ndim == 4) + ")" * (ndim == 2)
    try:
        output = asked(network, example)
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        inputs, remedy = f"an input of shape {tuple(example.shape)}", "check --arch and --mean"
        if example.ndim == 4:
            inputs = f"images of {example.shape[2]} x {example.shape[3]}"
            remedy = "check --img-size" if ndim == 2 else f"expected {expected}"
        raise ModelError(f"{name} fails on {inputs} ({error_text(error)}); {remedy}") from error
    if isinstance(output, Tensor):
        if choice is not None:
            raise ModelError(f"{name} returns a single tensor, and output {choice} was asked for; leave --logits out")
        if output.ndim != ndim or len(output) != len(example):
            raise ModelError(f"{name} returned shape {tuple(output.shape)}; expected {expected}")
        return network, output, ()
    parts = {".".join(map(str, place)): (place, tensor) for place, tensor in _tensors(output)}
    if not parts:
        raise ModelError(f"{name} returned {type(output).__name__} without a tensor; expected {expected}")
    shapes = {key: tuple(tensor.shape) for key, (_, tensor) in parts.items()}
    key = chosen_output(name, shapes, choice, classes, ndim)
    note = f"of what the network returns, {key} {shapes[key]} is taken as its logits"
    return LogitsOf(network, parts[key][0]), parts[key][1], (note,) if len(parts) > 1 else ()


def chosen_output(
    who: str,
    shapes: Mapping[str, tuple[int | None, ...]],
    choice: str | int | None = None,
    classes: int | None = None,
    ndim: int = 2,
) -> str:
    """Return the name of the output that are the logits: the one that is chosen, by its name or place; the one called
    `logits`, or `out` for pixels; else the only one that can be, or that has so many classes. Raises ModelError.

    shapes: of the outputs by name; None for a side that is not known.
    """
    listed = ", ".join(f"{name[:40]} {shape}".replace("None", "?") for name, shape in [*shapes.items()][:_SHOWN])
    listed += f" and {len(shapes) - _SHOWN} more" * (len(shapes) > _SHOWN)
    fits = [name for name, shape in shapes.items() if len(shape) == ndim and shape[0] in (None, 1)]
    if choice is not None:
        by_place = dict(enumerate(shapes))
        name = str(choice) if str(choice) in shapes else by_place.get(int(choice)) if str(choice).isdigit() else None
        if name is None or name not in fits:
            what = "is none of its outputs" if name is None else f"has not {ndim} dimensions, the first of images"
            raise ModelError(f"{who}: output {choice} {what}; it returns {listed}")
        return name
    usual = [name for name in ("logits", "out")[: 1 + (ndim == 4)] if name in fits]
    of_classes = [name for name in fits if classes is not None and shapes[name][1] == classes]
    for certain in (usual[:1], fits, of_classes):
        if len(certain) == 1:
            return certain[0]
    if not fits:
        raise ModelError(f"{who} returns {listed}; expected logits, of {ndim} dimensions, the first of images")
    several, first = f"{who} returns several outputs that may be its logits: {listed}", fits[0][:40]
    python = first if first.isdigit() else repr(first)
    raise ModelError(f"{several}; name them: --logits {first}, or output={python} in Python, or another")


def _tensors(output: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """Yield the tensors in what a network returned, each with its place; a named tuple's by their names."""
    if isinstance(output, Tensor):
        yield place, output
        return
    steps: list[Any] = []
    if isinstance(output, Mapping):
        steps = [*output.items()]
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        steps = [(name, getattr(output, name)) for name in output._fields]
    elif isinstance(output, tuple | list):
        steps = [*enumerate(output)]
    elif not isinstance(output, str | int | float | bytes | None):
        named = vars(output) if hasattr(output, "__dict__") else {}
        steps = [*{**named, **({"logits": output.logits} if hasattr(output, "logits") else {})}.items()]
    for step, part in steps if len(place) < _DEEPEST else ():
        yield from _tensors(part, (*place, step))


def kind_of_outputs(network: nn.Module, first: Tensor, example: Tensor) -> str:
    """Return what a network returns, by its answers to zeros and to drawn inputs: no network gives rows that sum to 1,
    or stay between 0 and 1, for all of them by chance. Outputs that are the same for all are logits.

    first: the answer (1, K, ...) to an example (1, ...) of zeros. Raises ModelError where the network fails.
    """
    rows, answer = torch.empty(0), first
    for image, usual in ((None, True), *_drawn(example)):
        try:
            answer = first if image is None else asked(network, image)
        except Exception as error:  # the user's own code
            if not usual:  # it may refuse what no image is
                continue
            problem = f"{type(network).__name__} fails on drawn inputs ({error_text(error)})"
            raise ModelError(f"{problem}; expected a network that takes any numbers from 0 to 1") from error
        tolerance = _tolerance(answer)
        values = answer.float().movedim(1, -1).flatten(0, -2)
        values = values[values.isfinite().all(dim=1)]
        if bool(((values < -_BELOW) | (values > 1 + tolerance)).any()):
            return LOGITS
        rows = torch.cat([rows.to(values).reshape(-1, values.shape[1]), values])
    one = rows.shape[1] == 1
    if len(rows) and not one and bool(((rows.sum(dim=1) - 1).abs() <= tolerance).all()):
        return PROBABILITIES
    return UNIT if one or bool((rows != rows[:1]).any()) else LOGITS


def _drawn(example: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """Yield inputs of an example's shape that are always the same, and whether an image may be like them: numbers from
    0 to 1, fine ones and in patches, and wide noise, of which most outputs are large."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        yield torch.rand(example.shape, generator=generator), True
        patches = torch.rand((*example.shape[:2], *(2 for _ in example.shape[2:])), generator=generator)
        yield functional.interpolate(patches, example.shape[2:], mode="nearest"), True
        yield 8 * torch.randn(example.shape, generator=generator), False


# Probabilities


def logarithms(p: Tensor) -> Tensor:
    """Return log p in float32, of a p below 2^-149 that of this. Gradients are finite, and 0 where p is subnormal."""
    p, least = p.float(), torch.finfo(torch.float32).tiny
    return torch.where(p < least, p.detach().clamp_min(LEAST).log(), p.clamp_min(least).log())


def logarithms_of_rows(rows: Tensor, name: str) -> Tensor:
    """Return the logarithms of probabilities (B, K, ...). Raises ModelError where they are none; passes with
    gradients are not checked."""
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        p = rows.float()
        if bool((((p.sum(dim=1) - 1).abs() > _tolerance(rows)) | (p < -_BELOW).any(dim=1)).any()):
            low, high = (float(end) for end in p.sum(dim=1).aminmax())
            what = f"numbers from {float(p.min()):.4g} on, whose sums over the classes go from {low:.4g} to {high:.4g}"
            raise ModelError(f"{name} returned probabilities for drawn images, and now {what}; have it return logits")
    return logarithms(rows)


def _tolerance(rows: Tensor) -> float:
    return max(SUM, torch.finfo(rows.dtype).eps if rows.is_floating_point() else 0.0)
