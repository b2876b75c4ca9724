"""Which part of what a network returns are its logits, and whether they are logits: a network of the user's own may
return several tensors, or probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .architecture import in_short, zeros_through

_NAMED = ("logits", "out")  # transformers' name, and torchvision's for segmenters
LOGITS, PROBABILITIES, UNIT = "logits", "probabilities", "between 0 and 1"
"""What outputs are: `UNIT` where each lies between 0 and 1 and they do not sum to 1, as after a sigmoid."""
_NEAR = 1e-3  # of 1, for sums of probabilities, also of half precision


class LogitsOf(nn.Module):
    """A network that returns more than logits. key: which part they are: a place, a name, or an attribute."""

    def __init__(self, network: nn.Module, key: int | str) -> None:
        super().__init__()
        self.network, self.key = network, key

    def forward(self, images: Tensor) -> Any:
        return dict(parts_of(self.network(images))).get(self.key)


class LogOf(nn.Module):
    """The logarithm of a network's probabilities (B, K, ...), whose softmax they are; of 0 that of the least number."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        probabilities: Tensor = self.network(images).float()
        return probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()


class TwoOf(nn.Module):
    """Two logits, (B, 2, ...), of a network with one, (B, 1, ...): 0 for the first class, its own for the second. So
    the second is predicted where its sigmoid is above 0.5. probabilities: it returns the sigmoid.
    """

    def __init__(self, network: nn.Module, probabilities: bool) -> None:
        super().__init__()
        self.network, self.probabilities = network, probabilities

    def forward(self, images: Tensor) -> Tensor:
        value: Tensor = self.network(images)
        logit = value.float().logit(torch.finfo(torch.float32).eps) if self.probabilities else value
        return torch.cat([torch.zeros_like(logit), logit], dim=1)


def parts_of(output: Any) -> Iterator[tuple[int | str, Tensor]]:
    """Yield the tensors of an output, each with its place, key or attribute."""
    if isinstance(output, Mapping):
        pairs: Any = output.items()
    elif isinstance(output, list | tuple) and not hasattr(output, "_fields"):
        pairs = enumerate(output)
    else:
        names = getattr(output, "_fields", None) or [name for name in dir(output) if not name.startswith("_")]
        pairs = ((name, getattr(output, name, None)) for name in names)
    yield from ((key, value) for key, value in pairs if isinstance(value, Tensor))


def with_logits(network: nn.Module, size: tuple[int, int], output: int | str | None = None, axes: int = 2) -> nn.Module:
    """Return a network that returns logits alone. output: which part they are. axes: of logits, (B, K, ...).

    What is taken without `output`: the only tensor, a part called `logits` or `out`, or the only one of so many axes.
    Raises ModelError, which names the parts, where several may be meant, and whatever the network raises.
    """
    returned = zeros_through(network, size)
    if isinstance(returned, Tensor) and output in (None, 0):
        return network
    parts = dict(parts_of(returned)) if not isinstance(returned, Tensor) else {}
    if output is not None:
        if output not in parts:
            raise ModelError(f"output={output!r}: {_described(network, returned, parts)}; expected one of these")
        return LogitsOf(network, output)
    named: list[int | str] = [name for name in _NAMED if name in parts]
    alike = named[:1] or [key for key, part in parts.items() if part.ndim == axes]
    if len(alike) != 1:
        which = " or ".join(f"output={key!r}" for key in alike or parts)
        remedy = f"say which part the logits are: {which}" if which else "return the logits alone"
        raise ModelError(f"{_described(network, returned, parts)}; {remedy}")
    return LogitsOf(network, alike[0])


def _described(network: nn.Module, returned: Any, parts: Mapping[int | str, Tensor]) -> str:
    name, kind = type(network).__name__, type(returned).__name__
    if isinstance(returned, Tensor):
        return f"{name} returns one tensor, of shape {tuple(returned.shape)}"
    shapes = ", ".join(f"{key}: {tuple(part.shape)}" for key, part in parts.items())
    return f"{name} returns a {kind} of {shapes or 'no tensor'}"


def kind_of_outputs(network: nn.Module, size: tuple[int, int]) -> str:
    """Return what a network returns, by its answers to noise of three strengths: no network gives rows that sum to 1,
    or stay between 0 and 1, for all of them by chance."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 3, *size, generator=generator) * torch.tensor([0.5, 2.0, 8.0]).view(3, 1, 1, 1)
    with torch.no_grad():
        rows = [network(image[None]).float() for image in noise]
    if not all(bool(((row >= 0) & (row <= 1 + _NEAR)).all()) for row in rows):
        return LOGITS
    one = rows[0].shape[1] == 1
    sums_to_one = all(bool(((row.sum(dim=1) - 1).abs() <= _NEAR).all()) for row in rows)
    return PROBABILITIES if sums_to_one and not one else UNIT


def as_logits(network: nn.Module, size: tuple[int, int]) -> tuple[nn.Module, str, tuple[str, ...]]:
    """Return a network of two logits or more, whose softmax are its probabilities, what its own outputs are, and notes.
    Raises what it raises itself."""
    kind = kind_of_outputs(network, size)
    with torch.no_grad():
        one = network(torch.zeros(1, 3, *size)).shape[1] == 1
    if one:
        named = "its sigmoid" if kind == UNIT else "a logit"
        note = f"one output, {named}: two classes, the second where the sigmoid is above 0.5"
        return TwoOf(network, kind == UNIT), LOGITS, (note,)
    if kind == PROBABILITIES:
        return LogOf(network), kind, ("outputs are probabilities: each row sums to 1; their logarithms are the logits",)
    return network, kind, ()


def logits_of(
    network: nn.Module, size: tuple[int, int], output: int | str | None = None, axes: int = 2
) -> tuple[nn.Module, str, tuple[str, ...]]:
    """Return `as_logits` of the part of the output that `with_logits` takes. Raises ModelError, also for a network that
    fails."""
    try:
        network = with_logits(network, size, output, axes)
        returned = zeros_through(network, size)
        if not isinstance(returned, Tensor) or returned.ndim != axes or not returned.is_floating_point():
            return network, LOGITS, ()  # whoever counts the classes says what was expected
        return as_logits(network, size)
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        shown = f"{size[0]} x {size[1]}"
        what = f"{type(network).__name__} fails on images of {shown} ({in_short(error)})"
        remedy = "check --img-size" if axes == 2 else "expected logits (batch, classes, height, width)"
        raise ModelError(f"{what}; {remedy}") from error
