"""What all attacks share: arguments are checked, the model is held still, the result is inside the ball."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from .familiar import AttackType
from .model_access import Model, Oracle, fill_label_sets, frozen
from .model_access import check_labels as check_labels  # exported from here, too
from .threat import Rng, ThreatModel, TorchRng, round_towards

Tell = Callable[[str, int, float], None]  # a stage's name, how many samples stand, the share of it that is done


@dataclass(frozen=True)
class AttackResult:
    """What an attack found for B samples, and what it spent. All but the images are (B,) int64 on their device.

    adversarials: (B, ...) points inside the ball and the bounds; dtype, device and memory format of the images.
    steps: updates made.
    forwards, backwards: passes of the sample through the model. A backward counts if its gradient was used.
    broken_at: updates made before the attack first saw a wrong prediction, -1 if it never saw one. An attack scores
        only where it has logits anyway, so -1 says nothing about `adversarials`: classify them to know. A queued attack
        without early_stop counts all updates of the run whose point it returns.
    notes: how the attack deviated from its settings, such as fewer targets because there are fewer classes.
    """

    adversarials: Tensor
    steps: Tensor
    forwards: Tensor
    backwards: Tensor
    broken_at: Tensor
    notes: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class StagedResult(AttackResult):
    """An `AttackResult` of an attack in stages, each of which works on what the ones before left standing.

    stages: their names; the first is "clean", the images themselves. S in all.
    broken_by: (B,) position in `stages` of the one that broke the sample, -1 where it still stands.
    stage_forwards, stage_backwards: (S, B) passes of the sample in each stage.
    seconds: wall time of each stage.

    `broken_at` counts updates (for Square: queries) of the run that broke the sample, `steps` those of all stages.
    """

    stages: tuple[str, ...]
    broken_by: Tensor
    stage_forwards: Tensor
    stage_backwards: Tensor
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class EnsembleResult(AttackResult):
    """An `AttackResult` of an attack that makes several runs at each sample, and takes the worst point of all.
    runs: their names, R in all. ends: (R, B, ...) the worst point of each run; otherwise as `adversarials`.
    """

    runs: tuple[str, ...]
    ends: Tensor


class Tally:
    """The counts of an `AttackResult` while they grow; `rows` are positions in the whole batch."""

    def __init__(self, batch: int, device: torch.device, tell: Tell | None = None) -> None:
        self.steps, self.forwards, self.backwards = torch.zeros(3, batch, dtype=torch.int64, device=device)
        self.broken_at = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.tell = tell or (lambda stage, standing, share: None)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Note once how the attack deviated from its settings."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, rows: Tensor, forwards: Tensor | int = 0, backwards: int = 0, steps: Tensor | int = 0) -> None:
        """Add to the counts of `rows`, in which a sample may occur several times."""
        ones = torch.ones_like(rows)
        for total, more in ((self.forwards, forwards), (self.backwards, backwards), (self.steps, steps)):
            if isinstance(more, Tensor) or more:
                total.index_add_(0, rows, ones * more)

    def saw(self, rows: Tensor, wrong: Tensor) -> None:
        """Note the rows whose prediction was `wrong` just now."""
        before = self.broken_at[rows]
        self.broken_at[rows] = torch.where(wrong & (before < 0), self.steps[rows], before)

    def result(self, adversarials: Tensor) -> AttackResult:
        counts = (self.steps, self.forwards, self.backwards, self.broken_at)
        return AttackResult(adversarials, *counts, notes=tuple(self.notes))


@dataclass(frozen=True)
class Attack(metaclass=AttackType):
    """An attack inside a threat model. Calling it returns the adversarial images; `run` also says what it took.

    It is made of its threat model, `PGD(ThreatModel("linf", 1 / 255), steps=20)`, or of the parts of one by name:
    `PGD(eps=1 / 255, norm="linf", steps=20)`, also `bounds`, and of a patch `size` and `where`. TypeError for both.

    model: nn.Module or function, images (B, ...) to logits (B, K). It is put into evaluation mode and its parameters
        take no gradient meanwhile; afterwards everything is restored.
    images: (B, ...) floating, inside the bounds of the threat model. float16 and bfloat16 images are attacked in
        float32 (a step is smaller than their spacing) and shown to the model in their own type.
    labels: (B,) integers, 0 to K - 1: the classes to lead away from. (B, L) integers: where several classes count as
        right, the set of each sample, padded with -1 (one-hot rows are refused); a sample is broken when its
        prediction is not in the set. None: the model's own predictions for the images.
    rng: where random numbers come from; None: torch's global generator.

    `run` also takes
    judge: the model that must agree before a wrong prediction counts, such as the same network in float32 where
        `model` computes in bfloat16. Each question to it costs another forward. None: `model` is trusted.
    batch_size: most rows in one pass of SPSA, and of an attack that queues its samples (`queues` is True: APGD, FAB,
        Square, AutoAttack); None: all. The other attacks pass all images at once.
    tell: called now and then by attacks that queue, with the stage's name, the number of samples that still stand
        and the share of the stage that is done.

    Raises TypeError or ValueError, before the model is asked, for images and labels of another kind, and for images
    outside the bounds. With eps 0 the images are returned without asking the model.

    Logits of a sample with NaN or +inf are a wrong prediction, in every attack and for the judge. -inf is a class that
    the model switched off, where two or more others are finite.
    """

    threat: ThreatModel = field(default_factory=ThreatModel)
    queues: ClassVar[bool] = False
    norms: ClassVar[tuple[str, ...]] = ("linf", "l2")
    minimal: ClassVar[bool] = False
    """Whether the attack looks for the smallest change; eps may then be infinite."""
    radius: ClassVar[bool] = True
    """Whether eps bounds it, where it does not look for the smallest change; a patch is bounded by its size."""
    least_classes: ClassVar[int] = 2
    """Fewer outputs of the model are refused; features may have any number."""
    _tally: ClassVar[Callable[..., Tally]] = Tally  # from the number of samples, the device and `tell`

    def __call__(self, model: Model, images: Tensor, labels: Tensor | None = None, *, rng: Rng | None = None) -> Tensor:
        return self.run(model, images, labels, rng=rng).adversarials

    def run(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        rng: Rng | None = None,
        judge: Model | None = None,
        batch_size: int | None = None,
        tell: Tell | None = None,
    ) -> AttackResult:
        given = labels.detach().cpu() if isinstance(labels, Tensor) else labels  # so checks ask the device once
        self._check(images, given, batch_size)
        with frozen(model), frozen(judge or model):
            images = images.detach().clone()
            tally = self._tally(len(images), images.device, tell)
            if len(images) == 0 or self.threat.eps == 0:
                return tally.result(images)
            if labels is not None:
                labels = fill_label_sets(labels, images.device)
            clean = images.to(torch.promote_types(images.dtype, torch.float32))
            oracle = Oracle(model, images.dtype, given, judge, batch_size, self.least_classes)
            points = self._points(oracle, clean, labels, rng or TorchRng(len(images), images.device), tally)
            return tally.result(round_towards(images, points))

    def _check(self, images: Tensor, labels: Tensor | None, batch_size: int | None) -> None:
        name = type(self).__name__
        if self.threat.norm not in self.norms:
            raise ValueError(f"norm is {self.threat.norm!r}; {name} knows {', '.join(self.norms)}")
        if math.isinf(self.threat.eps) and self.radius and not self.minimal:
            raise ValueError(f"eps is {self.threat.eps}; {name} needs a finite radius")
        check_images(images, self.threat)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more, or None for all at once")
        if labels is not None:
            check_labels(labels, len(images))

    @abstractmethod
    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        """Return the adversarial points for `clean` (B > 0, float32 or float64), which it must not change."""


def check_images(images: Tensor, threat: ThreatModel) -> None:
    """Raise unless `images` is a floating batch inside the bounds of `threat`."""
    if not (isinstance(images, Tensor) and images.is_floating_point()):
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"images are {kind}; expected a floating-point tensor (for uint8 pixels: images.float() / 255)")
    if images.ndim < 2:
        raise ValueError(f"images have shape {tuple(images.shape)}; expected a batch, such as (B, 3, H, W)")
    if images.numel() == 0:
        return
    low, high = torch.stack(images.detach().aminmax()).tolist()
    if low != low or high != high:
        raise ValueError("images contain NaN")
    if threat.bounds and not threat.cut_images and not (threat.bounds[0] <= low and high <= threat.bounds[1]):
        raise ValueError(
            f"images go from {low:.6g} to {high:.6g}, outside the bounds [{threat.bounds[0]:g}, {threat.bounds[1]:g}]; "
            f"attack pixels in [0, 1] and put the normalisation inside the model (or state other bounds)"
        )
