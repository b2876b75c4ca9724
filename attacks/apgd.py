"""Auto-PGD, which sets its own step size, and AutoAttack, an ensemble of which each stage attacks what still stands.

`StandardEvaluation` is the interface of AutoAttack's own code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn

from .attack import Attack, StagedResult, Tally, Tell
from .minimal import FAB
from .model_access import LOSSES, Oracle, dlr_targeted, input_gradient, is_missed, margin_targeted
from .queries import Square
from .queue import AttackState, Places, QueuedAttack, Restarts, pick, upload
from .threat import Ball, Rng, above_0, at_least, one_of, per_sample

APGD_LOSSES = ("ce", "dlr", "margin", "pma", "bce", "dlr-targeted", "margin-targeted")
MOMENTUM = 0.75  # weight of the gradient step against that of the last move


@dataclass(frozen=True)
class _Climb(Restarts):
    """Runs of APGD; `best`, `best_gradient` and `best_loss` are of the highest point."""

    ball: Ball
    labels: Tensor
    targets: Tensor
    points: Tensor
    previous: Tensor
    size: Tensor
    loss: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    checked_loss: Tensor  # `best_loss` at the last checkpoint
    rises: Tensor  # updates since that checkpoint that raised the loss
    halved: Tensor  # whether it halved the step size
    fell: Tensor  # whether there was a wrong point (only looked at without early_stop)
    ends: Tensor | None  # the last wrong point


@dataclass(frozen=True)
class APGD(QueuedAttack):
    """Auto-PGD (Croce and Hein 2020, arXiv:2003.01690, algorithm 1), untargeted or towards the likeliest classes.

    Steps of 2 eps with momentum; at checkpoints a run that rose too rarely halves its step and goes back to its best
    point. Each update costs a forward and a backward, the last point a forward, the clean image a forward once.

    Returns the first wrong point of a sample, otherwise the point of the highest loss over all runs.

    Args:
        steps: updates of each run.
        rho: share of updates that must raise the loss between two checkpoints.
        restarts: runs from different random starts (for each target).
        loss: "ce", "dlr", "margin", "pma" (the margin of probabilities), "bce"; "dlr-targeted" and "margin-targeted"
            make runs towards `targets` classes each.
        targets: how many classes, those with the largest logits on the clean image, in that order, labels left out; at
            most as many as there are.
        order: "logits", or "malt" (`AttackState.nearest_targets`): of the 9 likeliest classes those first which the
            smallest change reaches, if the model is taken as linear (Melamed et al. 2024, arXiv:2407.02240).
        eot: passes averaged into each loss, prediction and gradient, for models with random outputs.
        early_stop: a sample leaves as soon as it is broken. Otherwise a run goes all its steps, and the last wrong
            point is returned, as in the published code; runs of one sample then follow each other.

    Example:
        >>> adversarials = APGD(eps=8 / 255, steps=10, loss="dlr")(model, images, labels)
        >>> bool((adversarials - images).abs().max() <= 8 / 255 + 1e-6)
        True
    """

    steps: int = 100
    rho: float = 0.75
    restarts: int = 1
    loss: str = "ce"
    targets: int = 9
    order: str = "logits"
    eot: int = 1
    early_stop: bool = True

    def __post_init__(self) -> None:
        one_of(APGD_LOSSES, self, "loss")
        one_of(("logits", "malt"), self, "order")
        at_least(1, self, "steps", "restarts", "targets", "eot")
        above_0(self, "rho", share=True)

    @property
    def stage(self) -> str:
        return "apgd-t" if self._aims else f"apgd-{self.loss}"

    @property
    def _aims(self) -> int:
        return self.targets if self.loss.endswith("targeted") else 0

    @property
    def _alone(self) -> int | None:
        return checkpoint_steps(self.steps)[0] if self.early_stop else None

    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        clean = front.clean[rows]
        ball = self.threat.ball(clean)
        points = clean.clone()
        for run, which in places.of_each_run():
            index = upload(which, rows.device)
            points[index] = ball.take(index).random_start(front.rng.take(rows[index]), f"{self.stage}/start/{run}")
        targets = rows  # ignored
        if self._aims:
            aims = front.targets(self._aims)
            if self.order == "malt":
                aims = front.nearest_targets(self._aims, self.threat.norm)
            targets = aims[rows, runs // self.restarts]
        lowest = torch.full_like(rows, -torch.inf, dtype=clean.dtype)
        no = torch.zeros_like(rows, dtype=torch.bool)
        return _Climb(
            rows=rows,
            run=runs,
            step=torch.zeros_like(rows),
            places=places,
            ball=ball,
            labels=front.labels[rows],
            targets=targets,
            points=points,
            previous=points.clone(),
            size=torch.full_like(lowest, 2 * self.threat.eps),
            loss=lowest,
            best=points.clone(),
            best_gradient=torch.zeros_like(points),
            best_loss=lowest.clone(),
            checked_loss=lowest.clone(),
            rises=torch.zeros_like(rows),
            halved=~no,  # so that the first checkpoint only counts rises
            fell=no,
            ends=None if self.early_stop else points.clone(),
        )

    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        s = cast("_Climb", state)
        over = [step == self.steps for step in s.places.steps]
        logits, losses, gradient_of = self._ask(front, s, last=all(over))
        wrong = front.wrong(s.rows, s.points, is_missed(logits, s.labels))
        if s.ends is not None:  # reported at the end of the run
            s = replace(s, ends=torch.where(per_sample(wrong, s.points), s.points, s.ends), fell=s.fell | wrong)
            wrong = (s.step == self.steps) & s.fell
        falls = wrong.tolist()
        done = [ends and not fell for ends, fell in zip(over, falls, strict=True)]
        higher, ends = losses > s.best_loss, s.points if s.ends is None else s.ends
        if any(done):
            highest = torch.where(per_sample(higher, s.points), s.points, s.best)
            ends = torch.where(per_sample((s.step == self.steps) & ~wrong, ends), highest, ends)
        front.report(s, ends, torch.where(higher, losses, s.best_loss), falls, done)
        s, stay = s.leave([ends or fell for ends, fell in zip(over, falls, strict=True)])
        if not len(s):
            return s
        front.tally.count(s.rows, backwards=self.eot, steps=1)
        return self._climb(s, pick(losses, stay), gradient_of(stay))

    def _ask(self, front: AttackState, s: _Climb, last: bool) -> tuple[Tensor, Tensor, Callable[..., Tensor]]:
        """Return logits (n, K), losses (n,), and a function from an index to gradients, not in the `last` pass."""
        front.tally.count(s.rows, forwards=self.eot)
        answers, gradients = [], []
        for _ in range(self.eot):
            points = s.points.detach().requires_grad_(not last)
            logits = (front.oracle.predict if last else front.oracle)(points, s.rows)
            answers.append(logits.detach() / self.eot)
            if self.eot > 1 and not last:
                gradients.append(input_gradient(self._losses(logits, s), points) / self.eot)
        if self.eot > 1:
            total = sum(answers[1:], answers[0])
            losses = self._losses(total, s).to(s.points.dtype)
            return total, losses, lambda stay: pick(sum(gradients[1:], gradients[0]), stay)
        losses, read = self._losses(logits, s), lambda stay: pick(input_gradient(pick(losses, stay), points), stay)
        return logits.detach(), losses.detach().to(s.points.dtype), read

    def _losses(self, logits: Tensor, s: _Climb) -> Tensor:
        if self.loss.endswith("targeted"):
            return (dlr_targeted if self.loss.startswith("dlr") else margin_targeted)(logits, s.labels, s.targets)
        return LOSSES[self.loss](logits, s.labels)

    def _climb(self, s: _Climb, losses: Tensor, gradient: Tensor) -> _Climb:
        """Return the runs after the checkpoint, where they are at one, and their next step."""
        begins = s.step == 0
        higher = losses > s.best_loss
        wide = per_sample(higher, s.points)
        best, best_gradient = torch.where(wide, s.points, s.best), torch.where(wide, gradient, s.best_gradient)
        best_loss = torch.where(higher, losses, s.best_loss)
        rises = s.rises + (~begins & (losses > s.loss))
        length = _lengths(self.steps, s.step.device)[s.step]
        check = length > 0
        stuck = ~s.halved & (s.checked_loss >= best_loss)
        halve = check & ((rises <= length * self.rho) | stuck)
        points, size = s.points, torch.where(halve, s.size / 2, s.size)
        if not set(checkpoint_steps(self.steps)).isdisjoint(s.places.steps):
            back = per_sample(halve, points)
            points, gradient = torch.where(back, best, points), torch.where(back, best_gradient, gradient)
        keep = per_sample(begins.to(points.dtype).mul_(1 - MOMENTUM).add_(MOMENTUM), points)
        ahead = self.threat.steepest(gradient.clone()).mul_(per_sample(size, points)).add_(points)
        ahead = s.ball.project_(ahead).sub_(points).mul_(keep).add_(points)
        ahead.addcmul_(points - s.previous, 1 - keep)
        s = replace(s, step=s.step + 1, places=s.places.later(), size=size, loss=losses)
        s = replace(s, points=s.ball.project_(ahead), previous=points)
        s = replace(s, best=best, best_gradient=best_gradient, best_loss=best_loss)
        checked, halved = torch.where(check, best_loss, s.checked_loss), torch.where(check, halve, s.halved)
        return replace(s, checked_loss=checked, rises=torch.where(check, 0, rises), halved=halved)


@functools.cache
def _lengths(steps: int, device: torch.device) -> Tensor:
    """Return (steps + 1,): for each number of updates the updates since the last checkpoint if it is one, else 0."""
    table, before = [0] * (steps + 1), 0
    for at in checkpoint_steps(steps):
        table[at], before = at - before, at
    return upload(table, device)


def checkpoint_steps(steps: int) -> list[int]:
    """Return the updates before each checkpoint (eq. 2): windows of 22 % of the steps, each 3 % less, at least 6."""
    length, shorter, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    checkpoints = [length]
    while checkpoints[-1] < steps:
        length = max(length - shorter, least)
        checkpoints.append(checkpoints[-1] + length)
    return [at for at in checkpoints if at <= steps]


Version = Literal["standard", "plus", "rand", "attention", "fast"]
FAST_TARGETS = 3


class StagedTally(Tally):
    """Counts by stage as well; `enter` begins the next stage."""

    def __init__(self, batch: int, device: torch.device, tell: Tell | None) -> None:
        super().__init__(batch, device, tell)
        self.stages: list[str] = []
        self.passes: list[tuple[Tensor, Tensor]] = []
        self.since: list[float] = []
        self.broken_by = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.enter("clean")

    def enter(self, stage: str) -> None:
        """Begin a stage: what is counted from here on belongs to it."""
        self._close()
        self.stages.append(stage)
        self.since.append(time.perf_counter())
        self.passes.append((self.forwards.clone(), self.backwards.clone()))

    def _close(self) -> None:  # samples broken since the last call belong to the stage that ends
        self.broken_by.masked_fill_((self.broken_at >= 0) & (self.broken_by < 0), len(self.stages) - 1)

    def result(self, adversarials: Tensor) -> StagedResult:
        self._close()
        edges = [*self.passes, (self.forwards, self.backwards)]
        times = [*self.since, time.perf_counter()]
        forwards, backwards = (torch.stack([edge[which] for edge in edges]).diff(dim=0) for which in (0, 1))
        return StagedResult(
            **vars(super().result(adversarials)),
            stages=tuple(self.stages),
            broken_by=self.broken_by,
            stage_forwards=forwards,
            stage_backwards=backwards,
            seconds=tuple(after - before for before, after in pairwise(times)),
        )


@dataclass(frozen=True)
class AutoAttack(Attack):
    """AutoAttack (Croce and Hein 2020, arXiv:2003.01690): robust accuracy as the pointwise worst case of its stages.

    With fewer than four classes (two) the loss of targeted APGD (APGD on DLR) is the difference of two logits, because
    the DLR loss needs a fourth (third) one; the same holds for a sample with so many valid labels that fewer compete.
    `run` returns a `StagedResult`. Samples that stand come back as they were.

    `AutoAttack(model, norm="Linf", eps=8/255).run_standard_evaluation(images, labels, bs=250)`, the line of the
    published code, works as well (`StandardEvaluation`).

    Args:
        version: "standard" is APGD on cross-entropy, targeted APGD on the DLR loss, targeted FAB, Square. "plus" gives
            APGD and untargeted FAB five restarts and adds APGD on DLR. "rand", for models with random outputs, is APGD
            on cross-entropy and DLR, each gradient and prediction averaged over 20 passes. "attention", for a model
            with `surrogates` (by name, functions with the model's answers and other gradients), is standard, and after
            it APGD on cross-entropy by the gradients of each surrogate: a sample falls to the best of them for it.
            "fast" is APGD on the margin of probabilities, targeted APGD on 3 classes in MALT's order, targeted FAB,
            Square; the command line runs the last two on a random tenth of what stands, and estimates the rest.
        steps: updates of APGD and FAB.
        targets: classes that targeted APGD and FAB aim at; fewer where the model has fewer classes.
        queries: the most of Square.
        early_stop: samples leave at the first wrong prediction. Otherwise APGD and FAB run to their ends on what they
            were given, as the published code does, and FAB asks twice per step. Samples always leave Square at the
            first wrong prediction.
        only: the stages that run, joined by +, such as "apgd-ce" or "fab-t+square"; all of them where it is empty. What
            a stage draws does not depend on the others, so two halves in turn are the whole.

    Example:
        >>> result = AutoAttack(eps=8 / 255, steps=5, queries=10).run(model, images, labels)
        >>> robust_accuracy = float((result.broken_by < 0).float().mean())
        >>> robust_accuracy <= float((model(images).argmax(dim=1) == labels).float().mean())
        True
    """

    version: Version = "standard"
    steps: int = 100
    targets: int = 9
    queries: int = 5000
    early_stop: bool = True
    only: str = ""
    queues: ClassVar[bool] = True
    _tally = StagedTally

    def __post_init__(self) -> None:
        one_of(get_args(Version), self, "version")
        at_least(1, self, "steps", "targets", "queries")
        if self.only and self.version == "rand":
            raise ValueError("only requires a deterministic model; leave it out of version rand")
        stages = self.stage_names
        if self.only and (unknown_stages := [name for name in self.only.split("+") if name not in stages]):
            raise ValueError(f"only names {unknown_stages[0]!r}; expected some of {'+'.join(stages)}")

    @classmethod
    def _of_model(cls, model: object, *args: Any, **keywords: Any) -> StandardEvaluation:
        return StandardEvaluation(cls, model, *args, **keywords)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of all stages of the version, in their order, whichever of them run."""
        every = tuple(attack.stage for attack in self._all(10))
        return (*every, "attention") if self.version == "attention" else every

    def stages(self, classes: int) -> tuple[QueuedAttack, ...]:
        """Return the attacks that run, in their order, for a model with that many classes."""
        every = self._all(classes)
        named = [name for name in self.stage_names if name != "attention"]
        chosen = self.only.split("+") if self.only else named
        return tuple(attack for name, attack in zip(named, every, strict=True) if name in chosen)

    def _all(self, classes: int) -> tuple[QueuedAttack, ...]:
        """Return all attacks of the version in their order."""
        targets, plus, rand = min(self.targets, classes - 1), self.version == "plus", self.version == "rand"
        fast = self.version == "fast"
        both: dict[str, Any] = {"threat": self.threat, "steps": self.steps, "early_stop": self.early_stop}

        def apgd(loss: str) -> APGD:
            restarts, eot = 5 if plus and loss in ("ce", "dlr") else 1, 20 if rand else 1
            if classes < (4 if loss == "dlr-targeted" else 3):
                loss = loss.replace("dlr", "margin")
            few, order = (min(targets, FAST_TARGETS), "malt") if fast else (targets, "logits")
            return APGD(**both, restarts=restarts, loss=loss, targets=few, order=order, eot=eot)

        def fab(count: int) -> FAB:
            return FAB(**both, targets=count, restarts=1 if count else 5, relinearise=not self.early_stop)

        # The original shrinks Square's squares as if it had 10000 queries.
        square = Square(self.threat, self.queries, rescale_schedule=False)
        if rand:
            return apgd("ce"), apgd("dlr")
        if plus:
            return apgd("ce"), apgd("dlr"), fab(0), square, apgd("dlr-targeted"), fab(targets)
        return apgd("pma" if fast else "ce"), apgd("dlr-targeted"), fab(targets), square

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, StagedTally)
        if clean.ndim != 4 and self.version != "rand":
            raise ValueError(f"AutoAttack attacks images (B, C, H, W); these have shape {tuple(clean.shape)}")
        front = AttackState(oracle, clean, labels, rng, tally)
        classes = front.logits.shape[1]
        few = 3 if self.version == "rand" else 4
        if classes < few:
            tally.note(f"{classes} classes: DLR needs more classes, so the difference of logits is used as loss")
        elif min(front.contenders) < few:
            tally.note(f"samples for which fewer than {few} classes compete: the difference of logits in place of DLR")
        for attack in self.stages(classes):
            if self.version != "rand":
                front.note_targets(self.targets)
            tally.enter(attack.stage)
            if any(front.standing):
                tally.tell(attack.stage, sum(front.standing), 0.0)
            attack.drain(front)
        if self.version == "attention" and "attention" in (self.only or "attention").split("+"):
            self._by_surrogates(front, oracle, tally)
        standing = upload([row for row, stands in enumerate(front.standing) if stands], clean.device)
        front.ends[standing] = clean[standing]
        return front.ends

    def _by_surrogates(self, front: AttackState, oracle: Oracle, tally: StagedTally) -> None:
        """Attack what stands by the gradients of each of the model's surrogates, as the stage `attention`."""
        if not (surrogates := oracle.surrogates()):
            raise ValueError(
                "version is 'attention', and the model has no surrogates; expected one with a supported attention, "
                "or another version, such as 'standard'"
            )
        tally.enter("attention")
        for surrogate in surrogates:
            front.oracle = surrogate
            APGD(self.threat, self.steps, early_stop=self.early_stop).make_runs(front)


class StandardEvaluation:
    """The interface of AutoAttack's published code: what `AutoAttack(model, norm="Linf", eps=8/255)` makes.

    Args:
        attack: the class `AutoAttack`.
        model: as there.
        norm: "Linf" or "L2".
        eps: radius, in the unit of the images.
        seed: of each evaluation; None: torch's generator goes on.
        verbose: print accuracies as they are found.
        attacks_to_run: some of what "plus" has, for the version "custom".
        version: as of `AutoAttack`, or "custom".
        is_tf_model: refused.
        device: where images go; None: where the model is.
        log_path: a file that gets the same lines.

    Raises:
        TypeError: is_tf_model or state_path.
        ValueError: an unknown version or attack.

    Reference: Croce and Hein 2020, arXiv:2003.01690, and its code.

    Example:
        >>> adversary = AutoAttack(model, norm="Linf", eps=8 / 255, version="standard", verbose=False)
        >>> adversary.attack = AutoAttack(eps=8 / 255, steps=5, queries=10)  # fewer than the usual 100 and 5000
        >>> adversary.run_standard_evaluation(images, labels, bs=2).shape
        torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self,
        attack: type[Any],
        model: Any,
        norm: str = "Linf",
        eps: float = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: str | torch.device | None = None,
        log_path: str | Path | None = None,
    ) -> None:
        if is_tf_model:
            raise TypeError("is_tf_model: expected a model of PyTorch")
        if bool(attacks_to_run) != (version == "custom"):
            raise ValueError(f"attacks_to_run is {list(attacks_to_run)}, version {version!r}; expected both or neither")
        self.attack = attack(eps=eps, norm=norm, version="plus" if version == "custom" else version)
        self.model, self.norm, self.epsilon, self.version = model, norm, eps, version
        self.attacks_to_run = list(attacks_to_run or self.attack.stage_names)
        self.seed, self.verbose, self.log_path, self.device = seed, verbose, log_path, device

    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False, state_path: object = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the adversarial images (B, C, H, W), where the attack found none the images themselves; and with
        return_labels what the model predicts for them (B,). x_orig: (B, C, H, W) in [0, 1]. y_orig: (B,).
        """
        if state_path is not None:
            raise TypeError(
                "state_path: this evaluation cannot be resumed; robustkit audit resumes a run that was stopped"
            )
        self._say(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        return self._evaluated(self.attacks_to_run, x_orig, y_orig, bs, return_labels)

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Return by attack what `run_standard_evaluation` does with this one alone, of all images."""
        return {name: self._evaluated([name], x_orig, y_orig, bs, return_labels) for name in self.attacks_to_run}

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the share of the images that the model predicts right."""
        return float((self._predicted(x_orig, bs) == y_orig).float().mean())

    def _evaluated(
        self, names: list[str], images: Tensor, labels: Tensor, batch_size: int, return_labels: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        only = "" if names == list(self.attack.stage_names) else "+".join(names)
        attack, place, start = replace(self.attack, only=only), self._place(images), time.perf_counter()
        with torch.random.fork_rng(enabled=self.seed is not None):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            result = attack.run(self.model, images.to(place), labels.to(place), batch_size=batch_size)
        total = max(1, len(images))
        for number, stage in enumerate(result.stages):
            standing = total - int(((result.broken_by >= 0) & (result.broken_by <= number)).sum())
            spent = f" (total time {sum(result.seconds[: number + 1]):.1f} s)"
            when = f"robust accuracy after {stage.upper()}" if number else "initial accuracy"
            self._say(f"{when}: {standing / total:.2%}{spent if number else ''}")
        self._say(f"robust accuracy: {standing / total:.2%} ({time.perf_counter() - start:.1f} s)")
        adversarials: Tensor = result.adversarials.to(images.device)
        return (adversarials, self._predicted(adversarials, batch_size)) if return_labels else adversarials

    def _place(self, images: Tensor) -> torch.device:
        if self.device is not None:
            return torch.device(self.device)
        parts = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next(parts, images).device

    def _predicted(self, images: Tensor, batch_size: int) -> Tensor:
        place = self._place(images)
        with torch.no_grad():
            answers = [self.model(part.to(place)).argmax(dim=1) for part in torch.split(images, batch_size)]
        return torch.cat(answers).to(images.device)

    def _say(self, line: str) -> None:
        if self.verbose:
            print(line)
        if self.log_path is not None:
            with Path(self.log_path).open("a", encoding="utf-8") as log:
                log.write(line + "\n")
