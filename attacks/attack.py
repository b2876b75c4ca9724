"""What all attacks share: how they are made and called; the model is held still, the result is inside the ball."""

from __future__ import annotations

import difflib
import inspect
import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .model_access import Model, Oracle, fill_label_sets, frozen
from .model_access import check_labels as check_labels  # exported from here, too
from .threat import Rng, ThreatModel, TorchRng, round_towards

Tell = Callable[[str, int, float], None]  # a stage's name, how many samples stand, the share of it that is done


@dataclass(frozen=True)
class AttackResult:
    """What an attack found for B samples, and what it spent. All but the images are (B,) int64 on their device.

    Example:
        >>> result = PGD(eps=8 / 255, steps=5).run(model, images, labels)
        >>> result.forwards.tolist(), result.backwards.tolist()
        ([5, 5], [5, 5])
    """

    adversarials: Tensor
    """(B, ...) points inside the ball and the bounds; dtype, device and memory format of the images."""
    steps: Tensor
    """(B,) updates made."""
    forwards: Tensor
    """(B,) passes of each sample through the model."""
    backwards: Tensor
    """(B,) backward passes of each sample whose gradient was used."""
    broken_at: Tensor
    """(B,) updates made before the attack first saw a wrong prediction, -1 if it never saw one.

    An attack scores only where it has logits anyway, so -1 says nothing about `adversarials`: classify them to know. A
    queued attack without early_stop counts all updates of the run whose point it returns.
    """
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    """How the attack deviated from its settings, such as fewer targets because there are fewer classes."""
    cycle_at: Tensor | None = field(default=None, kw_only=True)
    """(B,) of PGD: updates after which a sample was seen to go in a circle, the most of its restarts; or -1."""


@dataclass(frozen=True)
class StagedResult(AttackResult):
    """An `AttackResult` of an attack in stages, each of which works on what the ones before left standing.

    `broken_at` counts updates (for Square: queries) of the run that broke the sample, `steps` those of all stages.

    Example:
        >>> result = AutoAttack(eps=8 / 255, steps=5, queries=5).run(model, images, labels)
        >>> result.stages
        ('clean', 'apgd-ce', 'apgd-t', 'fab-t', 'square')
    """

    stages: tuple[str, ...]
    """Names of the S stages; the first is "clean", the images themselves."""
    broken_by: Tensor
    """(B,) position in `stages` of the one that broke the sample, -1 where it still stands."""
    stage_forwards: Tensor
    """(S, B) forward passes of the sample in each stage."""
    stage_backwards: Tensor
    """(S, B) backward passes of the sample in each stage."""
    seconds: tuple[float, ...]
    """Wall time of each stage."""


@dataclass(frozen=True)
class EnsembleResult(AttackResult):
    """An `AttackResult` of an attack that makes several runs at each sample, and takes the worst point of all.

    Example:
        >>> result = SEA(eps=8 / 255, steps=4).run(segmenter, images, masks)
        >>> result.runs, result.ends.shape
        (('segpgd', 'js', 'masked', 'balanced'), torch.Size([4, 2, 3, 8, 8]))
    """

    runs: tuple[str, ...]
    """Names of the R runs."""
    ends: Tensor
    """(R, B, ...) the worst point of each run; otherwise as `adversarials`."""


class Tally:
    """The counts of an `AttackResult` while they grow; `rows` are positions in the whole batch."""

    def __init__(self, batch: int, device: torch.device, tell: Tell | None = None) -> None:
        self.steps, self.forwards, self.backwards = torch.zeros(3, batch, dtype=torch.int64, device=device)
        self.broken_at = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.tell = tell or (lambda stage, standing, share: None)
        self.notes: list[str] = []
        self.cycle_at: Tensor | None = None

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
        return AttackResult(adversarials, *counts, notes=tuple(self.notes), cycle_at=self.cycle_at)


_MODELS = ("model", "estimator", "classifier", "predict")
_STEP, _COUNTS = ("step_size", "lr"), ("steps", "queries")
_THEIRS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("alpha", "abs_stepsize", "rel_stepsize", "stepsize", "eps_step", "eps_iter", "step"), _STEP),
    **dict.fromkeys(("learning_rate", "stepsize_adam"), ("lr", "step_size")),
    **dict.fromkeys(("epsilon", "epsilons", "eps_max", "radius"), ("eps",)),
    **dict.fromkeys(("iters", "nb_iter", "n_iter", "max_iter", "num_steps", "num_iter", "iterations"), _COUNTS),
    **dict.fromkeys(("n_queries", "max_queries", "num_queries", "nb_queries"), ("queries", "steps")),
    **dict.fromkeys(("n_restarts", "nb_restarts", "num_restarts", "num_random_init", "nb_random_init"), ("restarts",)),
    **dict.fromkeys(("random_init", "rand_init"), ("random_start",)),
    **dict.fromkeys(("eot_iter", "eot_iters"), ("eot",)),
    **dict.fromkeys(("nb_sample", "nb_samples", "num_samples", "samples"), ("directions",)),
    **dict.fromkeys(("n_targets", "n_target_classes", "n_classes"), ("targets",)),
    **dict.fromkeys(("loss_fn", "loss_type", "criterion"), ("loss",)),
    **dict.fromkeys(("ord", "p", "distance"), ("norm",)),
    **dict.fromkeys(("clip_min", "clip_max", "clip_values"), ("bounds",)),
    **dict.fromkeys(("resc_schedule",), ("rescale_schedule",)),
    **dict.fromkeys(("patch_size", "patch_shape"), ("size",)),
}
"""Parameters of torchattacks, foolbox, ART, CleverHans and AutoAttack's own code, and what they are called here."""
_LATER = {
    "seed": "random numbers come from torch's generator, or from rng= of the call",
    "batch_size": "pass it to run(model, images, labels, batch_size=...)",
    "max_batch_size": "pass it to run(model, images, labels, batch_size=...)",
    "verbose": "pass tell= to run(model, images, labels, tell=...) to receive progress",
    "device": "it computes on the device of the images",
    "targeted": "attacks are untargeted; for a targeted attack use APGD with loss='dlr-targeted'",
}


def refuse(name: str, key: str, parameters: Iterable[str]) -> TypeError:
    """Return the error for a parameter that an attack does not have, with what it is called here."""
    parameters = list(parameters)
    if key in _LATER:
        return TypeError(f"{name} has no {key}: {_LATER[key]}")
    name_here = next((here for here in _THEIRS.get(key, ()) if here in parameters), None)
    if name_here is not None:
        unit = {"rel_stepsize": ", in the unit of the images: rel_stepsize * eps", "clip_min": ", such as (0, 1)"}.get(
            key, ""
        )
        return TypeError(f"{name} has no {key}; it is called {name_here} here{unit}")
    close = difflib.get_close_matches(key, parameters, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return TypeError(f"{name} has no {key}; {guess}it takes {', '.join(parameters)}")


class AttackType(ABCMeta):
    """How attacks are made: of a `ThreatModel`, or of its eps, norm and bounds, of a patch size and where, too.

    What is left out is as in the class's usual threat model; the radius of an attack that looks for the smallest change
    is then infinite. Raises TypeError for both together, for a model, which is given when the attack is called, and for
    a parameter of another library, with its name here.
    """

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        parameters = cls._own_parameters()
        if not parameters or parameters[0].name != "threat":  # a plug-in's own way
            return super().__call__(*args, **keywords)
        name, accepted = cls.__name__, [parameter.name for parameter in parameters]
        if args and not hasattr(args[0], "ball"):
            if isinstance(args[0], int | float | str):
                raise TypeError(f"{name}({args[0]!r}): expected a ThreatModel, or keywords such as eps=8/255")
            return cls._of_model(*args, **keywords)
        if model := next((key for key in _MODELS if key in keywords and key not in accepted), None):
            return cls._of_model(keywords.pop(model), **keywords)
        names = [key for key in cls._of_threat() if key not in accepted]
        short = {key: keywords.pop(key) for key in names if key in keywords}
        if short and (args or "threat" in keywords):
            raise TypeError(
                f"{name} has threat and {', '.join(short)}; expected one of the two: threat already contains the other"
            )
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            for key in keywords:
                if key not in accepted:
                    raise refuse(name, key, [*names, *accepted])
        if args or "threat" in keywords or (not short and cls._usual() is MISSING):
            return super().__call__(*args, **keywords)
        return super().__call__(**keywords, threat=cls._threat(short))

    @property
    def __signature__(cls) -> inspect.Signature:
        parameters = cls._own_parameters()
        usual = cls._threat({}) if parameters and parameters[0].name == "threat" else None
        names = [key for key in cls._of_threat() if usual is not None and key not in [each.name for each in parameters]]
        more = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=getattr(usual, key)) for key in names]
        last = [each for each in parameters if each.kind is each.VAR_KEYWORD]
        return inspect.Signature([*(each for each in parameters if each not in last), *more, *last])

    def _own_parameters(cls) -> list[inspect.Parameter]:
        return list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]

    def _of_threat(cls) -> tuple[str, ...]:
        return ("eps", "norm", "bounds", *(("size", "where") if "patch" in getattr(cls, "norms", ()) else ()))

    def _usual(cls) -> Any:
        threat = next(each for each in fields(cls) if each.name == "threat")  # type: ignore[arg-type]
        if threat.default is MISSING and callable(threat.default_factory):
            return threat.default_factory()
        return threat.default

    def _threat(cls, short: dict[str, Any]) -> Any:
        usual, norms = cls._usual(), getattr(cls, "norms", ())
        defaults = {"norm": norms[0]} if norms and usual.norm not in norms else {}
        if getattr(cls, "minimal", False):
            defaults["eps"] = math.inf
        if short.get("bounds") is not None:
            short = {**short, "bounds": tuple(short["bounds"])}
        return replace(usual, **{**defaults, **short})

    def _of_model(cls, model: object, *args: Any, **keywords: Any) -> Any:
        name = cls.__name__
        raise TypeError(f"the model is passed when the attack is called: {name}(eps=8/255)(model, images, labels)")


@dataclass(frozen=True)
class Attack(metaclass=AttackType):
    """An attack inside a threat model. Calling it returns the adversarial images; `run` also says what it took.

    It is made of its threat model, `PGD(ThreatModel("linf", 1 / 255), steps=20)`, or of the parts of one by name:
    `PGD(eps=1 / 255, norm="linf", steps=20)`, also `bounds`, and of a patch `size` and `where`.

    Logits of a sample with NaN or +inf are a wrong prediction, in every attack and for the judge. -inf is a class that
    the model switched off, where two or more others are finite.

    Args:
        threat: what may change: l-inf, 1/255, pixels in [0, 1] if left out.

    Raises:
        TypeError: a threat model together with parts of one, or a parameter of another library, with its name here.

    Example:
        >>> PGD(eps=1 / 255, steps=5) == PGD(ThreatModel("linf", 1 / 255), steps=5)
        True
        >>> PGD(eps=1 / 255, steps=5)(model, images, labels).shape
        torch.Size([2, 3, 8, 8])
    """

    threat: ThreatModel = field(default_factory=ThreatModel)
    queues: ClassVar[bool] = False
    norms: ClassVar[tuple[str, ...]] = ("linf", "l2")
    minimal: ClassVar[bool] = False
    """Whether the attack looks for the smallest change; eps may then be infinite."""
    radius: ClassVar[bool] = True
    """Whether eps bounds it, where it does not look for the smallest change; a patch is bounded by its size."""
    needs_gradients: ClassVar[bool] = True
    """Whether the model's output must have a gradient; otherwise its answers are all that the attack asks for."""
    least_classes: ClassVar[int] = 2
    """Fewer outputs of the model are refused; features may have any number."""
    _tally: ClassVar[Callable[..., Tally]] = Tally  # from the number of samples, the device and `tell`

    def __call__(self, model: Model, images: Tensor, labels: Tensor | None = None, *, rng: Rng | None = None) -> Tensor:
        """Return the adversarial images (B, ...) of `run`."""
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
        """Attack a batch, and say what it took. With eps 0 the images are returned without asking the model.

        Args:
            model: nn.Module or function, images (B, ...) to logits (B, K). It is put into evaluation mode and its
                parameters take no gradient meanwhile; afterwards everything is restored. One whose `asks_rows` is
                true is called with positions in the batch, too, (B,): what it is asked may depend on the sample.
            images: (B, ...) floating, inside the bounds of the threat model. float16 and bfloat16 images are attacked
                in float32 (a step is smaller than their spacing) and shown to the model in their own type.
            labels: (B,) integers, 0 to K - 1: the classes to lead away from. (B, L) integers: where several classes
                count as right, the set of each sample, padded with -1 (one-hot rows are refused); a sample is broken
                when its prediction is not in the set. None: the model's own predictions for the images.
            rng: where random numbers come from; None: torch's global generator.
            judge: the model that must agree before a wrong prediction counts, such as the same network in float32 where
                `model` computes in bfloat16. Each question to it costs another forward. Attacks that queue attack it,
                too, where it disagreed, if it has a gradient; Square, which compares losses, asks it alone. None:
                `model` is trusted.
            batch_size: most rows in one pass of SPSA, and of an attack that queues its samples (`queues` is True: APGD,
                FAB, Square, AutoAttack); None: all. The other attacks pass all images at once.
            tell: called now and then by attacks that queue, with the stage's name, the number of samples that still
                stand and the share of the stage that is done.

        Returns:
            The adversarial images (B, ...), and counts of what each sample took.

        Raises:
            TypeError: images or labels of another kind; the model is not asked.
            ValueError: images outside the bounds, labels or logits of another shape, or a norm that the attack does not
                know.
        """
        on_host = labels.detach().cpu() if isinstance(labels, Tensor) else labels  # so checks ask the device once
        self._check(images, on_host, batch_size)
        with frozen(model), frozen(judge or model):
            images = images.detach().clone()
            tally = self._tally(len(images), images.device, tell)
            if len(images) == 0 or self.threat.eps == 0:
                return tally.result(images)
            if labels is not None:
                labels = fill_label_sets(labels, images.device)
            clean = images.to(torch.promote_types(images.dtype, torch.float32))
            oracle = Oracle(model, images.dtype, on_host, judge, batch_size, self.least_classes)
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
