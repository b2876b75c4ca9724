"""Two sides of a row: what is asked of both, whether their work is equal, and how long each takes.

Work is equal where both send as many rows forwards and backwards through the network, up to two in a hundred, and
their results agree. That is looked at first, on whole calls, which also warm both up; then they take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robustkit.data.images import to_pixels, to_unit_range
from robustkit.models.classifier import load
from robustkit.models.identity import Classifier
from robustkit.pipeline.inputs import labelled_data

Work = Callable[[], Any]
Agree = Callable[[Any, Any], tuple[bool, str]]
"""From the results of both sides to whether they agree, and in words how far."""
SLACK = 0.02


@dataclass(frozen=True)
class Subject:
    """A classifier, images (B, 3, H, W) in [0, 1] with labels (B,), and the ids of the images.

    networks: all whose passes count, those included that a row makes of the classifier's own.
    """

    model: Classifier
    images: Tensor
    labels: Tensor
    ids: list[str]
    networks: list[nn.Module]

    @property
    def right(self) -> tuple[Tensor, Tensor]:
        """The images that the model classifies right, and their labels."""
        with torch.inference_mode():
            kept = self.model(self.images).argmax(dim=1) == self.labels
        return self.images[kept], self.labels[kept]


def subject(checkpoint: str, data_dir: str, limit: int, device: str | torch.device, **given: Any) -> Subject:
    """Load a checkpoint, whose parameters take no gradient, and `limit` images of a data set. given: as `load` has."""
    stated = {name: value for name, value in given.items() if value is not None}
    model = load(checkpoint, **stated).to(device).eval().requires_grad_(False)
    data = labelled_data(data_dir, model.identity, {}, limit, None, 0)
    pixels = torch.stack([to_pixels(data.image(sample), model.identity.preprocessing) for sample in data.samples])
    labels = torch.tensor([sample.label for sample in data.samples]).to(device)
    ids = [sample.id for sample in data.samples]
    return Subject(model, to_unit_range(pixels.to(device)), labels, ids, [model.network])


@dataclass(frozen=True)
class Sides:
    """Both sides of a row. Each call does the whole work, and returns its result.

    images: how many images a call of ours handles, and one of theirs. same_draws: results of both from the same random
    numbers, to be compared where the calls draw their own.
    """

    ours: Work
    theirs: Work
    agree: Agree
    images: tuple[int, int] = (1, 1)
    same_draws: Callable[[], tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class Shown:
    """What both sides of a row get: a model, images (B, 3, H, W) as it takes them, and a class (B,) for each."""

    model: Any
    images: Tensor
    classes: Tensor

    def sides(self, ours: Any, theirs: Any, agree: Agree, same_draws: Any = None) -> Sides:
        """Return both sides; each is called with images and classes."""
        count = len(self.images)
        work = partial(ours, self.images, self.classes), partial(theirs, self.images, self.classes)
        return Sides(*work, agree, (count, count), same_draws)


@dataclass(frozen=True)
class Row:
    """What is computed, by which peer, and what makes both sides once the peer is known to be there."""

    what: str
    peer: str
    make: Callable[[], Sides]


@dataclass(frozen=True)
class Result:
    """A row as measured: whether the work is equal, in words how, and seconds per image in each pair."""

    what: str
    peer: str
    equal: bool
    work: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        """What the table shows: milliseconds of both, and theirs over ours; nothing where no time was taken."""
        if not self.ours:
            return [self.what, self.peer, self.work, "", "", ""]
        times = [1000 * statistics.median(side) for side in (self.ours, self.theirs)]
        shown = [f"{time:.3g}" if time < 1000 else f"{time:.0f}" for time in times]
        ratios = [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        return [self.what, self.peer, f"{'yes' if self.equal else 'no'}: {self.work}", *shown, ratio]


def passes(networks: Iterable[nn.Module], work: Work) -> tuple[tuple[int, int], Any]:
    """Return the rows that `work` sends (forwards, backwards) through the networks, and its result."""
    counts = [0, 0]

    def backward(rows: int, _: Tensor) -> None:
        counts[1] += rows

    def forward(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts[0] += len(inputs[0])
        if output.requires_grad:
            output.register_hook(partial(backward, len(inputs[0])))

    handles = [network.register_forward_hook(forward) for network in networks]
    try:
        result = work()
    finally:
        for handle in handles:
            handle.remove()
    return (counts[0], counts[1]), result


def equal_work(sides: Sides, networks: Sequence[nn.Module]) -> tuple[bool, str]:
    """Return whether both sides do the same work, and in words what was counted and compared."""
    (mine, ours), (other, theirs) = passes(networks, sides.ours), passes(networks, sides.theirs)
    per_image = [
        [count / images for count in counts] for counts, images in zip((mine, other), sides.images, strict=True)
    ]
    same = all(abs(a - b) <= SLACK * max(a, b) for a, b in zip(*per_image, strict=True))
    agrees, found = sides.agree(*(sides.same_draws() if sides.same_draws else (ours, theirs)))
    said = [f"{forwards:.4g} + {backwards:.4g}" for forwards, backwards in per_image]
    words = f"{said[0]} passes each" if said[0] == said[1] else f"{said[0]} passes, theirs {said[1]}"
    return same and agrees, f"{words}; {found}" if any(mine + other) else found


def measure(row: Row, networks: Sequence[nn.Module], pairs: int, device: torch.device) -> Result:
    """Check the work of both sides, then time them in pairs, every other one with theirs first.

    On a CPU times are those that the process computes, so that other work on the machine does not count.
    """
    sides = row.make()
    equal, work = equal_work(sides, networks)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            began = clock()
            (sides.ours, sides.theirs)[side]()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[side].append((clock() - began) / sides.images[side])
    return Result(row.what, row.peer, equal, work, *times)


def same(what: str, tolerance: float) -> Agree:
    """Return what compares two tensors. what: the name of what they hold."""

    def agree(ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
        gap = float((torch.as_tensor(ours).double() - torch.as_tensor(theirs).to(ours.device).double()).abs().max())
        short = f"{gap if gap > tolerance else tolerance:.0e}".replace("e-0", "e-").replace("e+00", "")
        return gap <= tolerance, f"same {what} to {short}" if gap <= tolerance else f"{what} differ by {short}"

    return agree


def uncompared(why: str) -> Agree:
    """Return what compares nothing, for a reason."""
    return lambda ours, theirs: (True, why)
