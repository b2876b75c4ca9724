"""Can a robust accuracy be trusted? Signs that the model's gradients mislead the attacks that follow them.

The signs are those of Athalye et al. (2018, arXiv:1802.00420) and Carlini et al. (2019, arXiv:1902.06705). `examine`
asks the model and gives plain figures, to be kept with the records; `findings` judges them later, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from attacks import Rng, ThreatModel
    from attacks.frozen import Model, Oracle

RANDOM = 1e-4  # difference of two passes relative to the logits: order of summation gives 1e-6, noise 1e-2 or more
OUTSIDE = 1e-5  # how far probabilities may leave [0, 1]: float32 rounding
SLOPE = 0.25  # median error of the predicted change: ordinary networks measured 0.002, rounding layers 0.7 and more
RISE = 1e-4  # least rise of the loss relative to its size: float32 rounding gives 1e-6, an attack 1e-2 or more
FALLBACK = 0.05  # how far the last loss may lie below the best, as a share of the rise: steps of one length swing
STANDING = 0.1  # accuracy at the widest radius: every image can become the same grey, which is of one class
BLACK_BOX = 0.002  # share of the samples that Square may break after gradient attacks: as in AutoAttack's own check

_STEPS = (1e-3, 1e-2)  # of eps: within one level of a rounding layer for nearly all 8-bit pixels, even with 64 levels
_READABLE = 256  # times the noise of the logits: rounding then costs the slope a few per cent at most
_LOSS_STEPS, _SWEEP_STEPS, _SWEEP_RADII = (0, 1, 5, 20), 10, 6
_EXTREMES = ("random_difference", "low", "high", "sum_error")
_COUNTS = ("right", "random_predictions", "zero_margin", "zero_ce", "bad_margin", "bad_ce", "slope_samples")
_MEDIANS, _MEANS = ("slope", "slope_error"), ("loss", "accuracy")


@dataclass(frozen=True)
class Finding:
    """One check of the dossier."""

    check: str
    figure: str  # what was measured, in words, or "not measured"
    flag: str = ""  # one sentence, "" where all is well
    instead: str = ""  # what to run in place of the attack, "" where all is well


def examine(
    model: Model, images: Tensor, labels: Tensor, threat: ThreatModel, *, rng: Rng, batch_size: int
) -> dict[str, Any]:
    """Figures of JSON types about the model's gradients at some images; about 32 of them say enough.

    model: (B, ...) images to (B, K) logits, in float32: a coarser dtype rounds as a defence would, and looks like one.
    images: (B, ...) inside the bounds of `threat`, B > 0. labels: (B,) int64. threat: the attack's norm and eps > 0.
    rng: handed to the attacks; these start at the images, so none of it is drawn. batch_size: most images in a pass.

    random_difference: largest difference of three passes relative to a row's length; random_predictions: samples
        whose prediction changes. low, high, sum_error: range of the outputs, and distance of their sums from 1.
    has_gradient: 1 where outputs lead back to the images; where not, the figures below are None.
    zero_margin, zero_ce, bad_margin, bad_ce: samples whose whole gradient is zero, or some of it not finite. Of the
        margin, not DLR, which is rightly flat where a wrong prediction ranks the label third.
    slope, slope_error: measured over predicted change of the margin along the gradient, and its distance from 1,
        medians of `slope_samples`. loss: mean margin after `loss_steps` steps of PGD. accuracy: share that short PGD
        leaves standing at `radii`. All of these of the `right` among the `samples`; None where there are none.
    forwards, backwards: passes, mean over the samples.

    Raises ValueError for no images, eps 0, batch_size 0, fewer than two classes, and as attacks do for odd arguments.
    """
    import torch

    from attacks.attack import check_images, check_labels
    from attacks.frozen import Oracle, frozen

    check_images(images, threat)
    top_label = check_labels(labels, len(images))
    if not (len(images) and threat.eps > 0 and batch_size > 0):
        raise ValueError(f"{len(images)} images, eps {threat.eps:g}, batch_size {batch_size}: expected more than 0")
    # TF32 rounds to 2048 levels: a small step would find the model flat, as behind a rounding layer.
    with frozen(model), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        images, labels = images.detach().clone(), labels.to(images.device, torch.int64, copy=True)
        examiner = _Examiner(Oracle(model, images.dtype, top_label), threat, images)
        batches = torch.split(torch.arange(len(images), device=images.device), batch_size)
        parts = [examiner.part(images[rows], labels[rows], rng.take(rows)) for rows in batches]
    # A batch without right samples lacks columns that another may have.
    names = dict.fromkeys(name for part in parts for name in part)
    columns = {name: torch.cat([part[name] for part in parts if name in part]).detach().cpu() for name in names}
    figures = {name: _reduce(name, columns.get(name)) for name in (*_EXTREMES, *_COUNTS, *_MEDIANS, *_MEANS)}
    figures |= {"norm": threat.norm, "eps": threat.eps, "samples": len(images), "has_gradient": int("zero_ce" in names)}
    figures |= {"loss_steps": list(_LOSS_STEPS), "radii": [0.0, *examiner.radii]}
    figures |= {"forwards": examiner.forwards / len(images), "backwards": examiner.backwards / len(images)}
    return {name: _plain(value) for name, value in figures.items()}


def _reduce(name: str, column: Tensor | None) -> Any:
    if column is None or name in _COUNTS:
        return None if column is None else int(column.sum())
    if name in _MEANS:
        return column.double().mean(dim=0).tolist()
    return float(column.median() if name in _MEDIANS else column.min() if name == "low" else column.max())


def _plain(value: Any) -> Any:
    """Six significant digits; None for what JSON cannot hold."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return (float(f"{value:.6g}") if isinstance(value, float) else value) if finite else None


class _Examiner:
    """A frozen model under examination; counts its passes, in samples. Its methods give columns of figures."""

    def __init__(self, oracle: Oracle, threat: ThreatModel, images: Tensor) -> None:
        self.oracle, self.threat = oracle, threat
        self.forwards = self.backwards = 0
        low, high = threat.bounds or (float(images.min()), float(images.max()))
        # Half the range of pixels; in l2, a quarter of it for each value.
        widest = (high - low) * (0.5 if threat.norm == "linf" else 0.25 * math.sqrt(images[0].numel()))
        growth = max(1.0, widest / threat.eps) ** (1 / (_SWEEP_RADII - 1))
        self.radii = [threat.eps * growth**power for power in range(_SWEEP_RADII if growth > 1 else 1)]

    def logits(self, points: Tensor) -> Tensor:
        self.forwards += len(points)
        return self.oracle(points)

    def part(self, images: Tensor, labels: Tensor, rng: Rng) -> dict[str, Tensor]:
        """One batch: a row for each sample, for each right one, or for each whose slope can be read."""
        import torch

        from attacks import cross_entropy, margin
        from attacks.frozen import input_gradient

        passes = torch.stack([self.logits(images) for _ in range(3)]).detach()
        logits, predictions = passes[0], passes.argmax(dim=2)
        numbers = passes.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        noise = (numbers[1:] - numbers[0]).norm(dim=2).amax(dim=0) / numbers[0].norm(dim=1).clamp_min(1e-30)
        right = (predictions[0] == labels) & logits.isfinite().all(dim=1)
        part = {"right": right, "random_difference": noise}
        part["random_predictions"] = (predictions[1:] != predictions[0]).any(dim=0)
        part |= {"low": logits.amin(dim=1), "high": logits.amax(dim=1), "sum_error": (logits.sum(dim=1) - 1).abs()}
        points = images.clone().requires_grad_()
        for name, loss in (("ce", cross_entropy), ("margin", margin)):
            losses = loss(self.logits(points), labels)
            self.backwards += len(points)
            try:
                gradient = input_gradient(losses, points)
            except ValueError:
                return part
            part[f"zero_{name}"] = (gradient == 0).flatten(1).all(dim=1)
            part[f"bad_{name}"] = ~gradient.isfinite().flatten(1).all(dim=1)
        rows = right.nonzero().flatten()
        if len(rows):
            images, labels, logits, rng = images[rows], labels[rows], logits[rows], rng.take(rows)
            part["slope"] = self._slopes(images, labels, gradient[rows], logits, noise[rows])
            part["slope_error"], part["slope_samples"] = (part["slope"] - 1).abs(), part["slope"] > -math.inf
            ends = [self._pgd(images, labels, rng, threat=self.threat, steps=steps)[0] for steps in _LOSS_STEPS[1:]]
            part["loss"] = torch.stack([margin(each, labels) for each in (logits, *ends)], dim=1)
            part["accuracy"] = self._sweep(images, labels, rng)
        return part

    def _slopes(self, images: Tensor, labels: Tensor, gradient: Tensor, logits: Tensor, noise: Tensor) -> Tensor:
        """(S,) measured over predicted change of the margin, of the samples where it can be read.

        From a step against the gradient to one along it, so that curvature cancels, and at the smallest step whose
        predicted change is well above the noise: there a rounding layer with a made-up gradient is flat or erratic,
        while over large steps such a gradient is right on average.
        """
        labels, rival = labels[:, None], logits.scatter(1, labels[:, None], -math.inf).argmax(dim=1, keepdim=True)
        least = _READABLE * noise.amax().clamp_min(2.0**-23) * logits.abs().amax(dim=1)  # float32's rounding
        low, high = self.threat.bounds or (-math.inf, math.inf)
        direction = self.threat.steepest(gradient.clone())
        slopes = noise * math.nan
        for step in _STEPS:
            ends = [(images + sign * step * self.threat.eps * direction).clamp(low, high) for sign in (1, -1)]
            up, down = ((out.gather(1, rival) - out.gather(1, labels)).flatten() for out in map(self.logits, ends))
            # What rounding made of the step, not what was asked for.
            predicted = (gradient.double() * (ends[0].double() - ends[1].double())).flatten(1).sum(dim=1)
            slopes = ((up - down) / predicted).to(slopes).where(slopes.isnan() & (predicted >= least), slopes)
        return slopes[slopes.isfinite()]

    def _pgd(self, images: Tensor, labels: Tensor, rng: Rng, **options: Any) -> tuple[Tensor, Tensor]:
        """Logits (B, K) at the end of PGD on the margin, and whether (B,) a prediction on the way was wrong."""
        from attacks import PGD

        # Not from random points: half the range away, they break a model with useless gradients, too.
        attack = PGD(random_start=False, loss="margin", **options)
        result = attack.run(self.logits, images, labels, rng=rng)
        self.backwards += int(result.backwards.sum())
        return self.logits(result.adversarials), result.broken_at >= 0

    def _sweep(self, images: Tensor, labels: Tensor, rng: Rng) -> Tensor:
        """(B, 1 + R) whether a sample stands at radius 0 and the others: what fell in a smaller ball fell in all."""
        standing = (labels >= 0)[:, None].repeat(1, 1 + len(self.radii))
        for column, eps in enumerate(self.radii, start=1):
            rows = standing[:, column].nonzero().flatten()
            if len(rows):
                options = {"threat": replace(self.threat, eps=eps), "steps": _SWEEP_STEPS, "step_size": eps / 4}
                ends, fell = self._pgd(images[rows], labels[rows], rng.take(rows), early_stop=True, **options)
                standing[rows[fell | (ends.argmax(dim=1) != labels[rows])], column:] = False
        return standing


_Figures = Mapping[str, Any]
_Verdict = tuple[str, bool, str]  # the figure in words; whether it is bad; "what that means; what to run instead"
_SURROGATE = "try loss margin or dlr, Square or SPSA with more queries, or a surrogate model (BPDA, transfer)"


def findings(
    figures: _Figures, stages: Mapping[str, int] | None = None, n: int | None = None, *, averaged: bool = False
) -> list[Finding]:
    """One finding for each check, always all of them and in the same order.

    figures: what `examine` returned; a check whose figures are missing or None is "not measured".
    stages: samples still standing after each stage of AutoAttack, in order. n: samples; None: as the first stage says.
    averaged: the attack averaged passes (EOT), as random outputs ask for.
    """
    samples = n if n is not None else next(iter((stages or {}).values()), None)
    known = {**figures, "averaged": averaged, "stages": stages, "n": samples}
    found = []
    if failed := figures.get("failed"):
        found.append(Finding("evidence", failed, f"evidence could not be gathered: {failed}", "the same command again"))
    for check, names, judge in _CHECKS:
        values = [known.get(name) for name in names]
        missing = any(value is None or (isinstance(value, list) and None in value) for value in values)
        if missing and (why := _why_missing(names, known)):
            figure = f"not measured: {why}"
            found.append(Finding(check, figure, f"{check}: {figure}; run {_WITHOUT}", _WITHOUT))
            continue
        verdict = None if missing else judge(*values)
        figure, bad, advice = verdict or ("not measured", False, "")
        instead = advice.partition("; ")[2] if bad else ""
        found.append(Finding(check, figure, f"{check}: {figure}: {advice}" if bad else "", instead))
    return found


_WITHOUT = "Square or SPSA with more queries, or an adaptive attack (BPDA, transfer)"
NO_EVIDENCE = Finding("evidence", "not there", "evidence is missing: the same audit takes it", "the same command again")
"""Where an attack's result needs evidence, and there is none."""


def _why_missing(names: tuple[str, ...], known: _Figures) -> str:
    """Why a figure that a check needs could not be measured; empty where another finding says so, or none is due."""
    if "stages" in names or known.get("failed") or known.get("has_gradient") == 0:
        return ""
    for name in names:
        value = known.get(name)
        if isinstance(value, list) and None in value:
            return f"{name} is not finite"
        if value is None and name not in known:
            return f"there is no {name}"
        if value is None and known.get("right") == 0:
            return f"none of {known.get('samples')} samples is predicted right"
        if value is None and name.startswith("slope") and known.get("slope_samples") == 0:
            return "the outputs are too coarse or too noisy at every sample"
        if value is None:
            return f"{name} is not finite"
    return ""


def _random_outputs(difference: float, changed: int, samples: int, averaged: bool) -> _Verdict:
    figure = f"two passes differ by {difference:.2g} times the outputs' size, {changed} of {samples} predictions change"
    if averaged:
        return f"{figure}; this attack averages passes", False, ""
    advice = "gradients of a random model mislead; run autoattack(version=rand), which averages 20 passes (EOT)"
    return figure, difference > RANDOM or changed > 0, advice


def _probabilities(low: float, high: float, error: float) -> _Verdict:
    bad = low >= -OUTSIDE and high <= 1 + OUTSIDE  # whatever they sum to: one sigmoid a class is as flat
    advice = "gradients of probabilities vanish; attack the logits: remove the softmax from the model"
    return f"outputs from {low:.3g} to {high:.3g}, sums off 1 by up to {error:.2g}", bad, advice


def _path(has: int) -> _Verdict:
    advice = f"attacks have no gradient to follow (is it detached?); {_SURROGATE}"
    return f"outputs {'lead' if has else 'do not lead'} back to the input", not has, advice


def _zero(margin: int, samples: int) -> _Verdict:
    figure = f"the margin's gradient is exactly zero for {margin} of {samples} samples"
    return figure, margin > 0, f"gradient attacks stand still there; {_SURROGATE}"


def _underflow(margin: int, ce: int, samples: int) -> _Verdict:
    figure = f"cross-entropy's gradient is exactly zero for {ce} of {samples} samples, the margin's for {margin}"
    advice = (
        "logits so large leave attacks on cross-entropy standing still; run loss margin or dlr, or scale the logits"
    )
    return figure, ce > margin, advice


def _broken(margin: int, ce: int, samples: int) -> _Verdict:
    figure = f"gradients are NaN or infinite for {max(margin, ce)} of {samples} samples"
    return figure, max(margin, ce) > 0, f"attacks have no direction there; mend the operation, or {_SURROGATE}"


def _slope(slope: float, error: float, samples: int) -> _Verdict:
    figure = f"outputs change {slope:.3g} times as much as predicted (median error {error:.2g}, {samples} samples)"
    advice = "gradients do not describe the outputs; put a smooth surrogate in the layer's place (BPDA), or run Square"
    return figure, error > SLOPE, f"{advice} or SPSA with more queries"


def _loss(steps: list[int], loss: list[float]) -> _Verdict:
    figure = "mean margin " + ", ".join(f"{value:.4g} at step {step}" for step, value in zip(steps, loss, strict=True))
    rise = loss[-1] - loss[0]
    bad = rise <= RISE * max(map(abs, loss)) or loss[-1] < max(loss) - FALLBACK * rise
    return figure, bad, f"more steps of PGD do not raise the loss; {_SURROGATE}"


def _accuracy(radii: list[float], accuracy: list[float], norm: str, right: int) -> _Verdict:
    sizes = [f"{255 * eps:.3g}/255" if norm == "linf" else f"{eps:.3g}" for eps in radii]
    pairs = zip(sizes, accuracy, strict=True)
    figure = f"standing at {norm} radius " + ", ".join(f"{size}: {100 * share:.0f} %" for size, share in pairs)
    bad = accuracy[-1] * right > max(1.0, STANDING * right)  # one sample may be chance
    return figure, bad, f"accuracy does not fall where any model must fail; {_SURROGATE}"


def _black_box(stages: Mapping[str, int], n: int) -> _Verdict | None:
    names = list(stages)
    if "square" not in names or not any(name.startswith(("apgd", "fab")) for name in names[: names.index("square")]):
        return None
    before = stages[names[names.index("square") - 1]]
    broken = before - stages["square"]
    figure = f"Square broke {broken} of {before} samples that gradient attacks left standing, of {n} in all"
    advice = "gradients mislead; run Square with more queries and restarts, and an adaptive attack (BPDA, transfer)"
    return figure, broken > max(1, BLACK_BOX * n), advice  # one sample may be chance


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[..., _Verdict | None]], ...] = (
    ("random outputs", ("random_difference", "random_predictions", "samples", "averaged"), _random_outputs),
    ("probabilities", ("low", "high", "sum_error"), _probabilities),
    ("gradient path", ("has_gradient",), _path),
    ("zero gradients", ("zero_margin", "samples"), _zero),
    ("cross-entropy underflow", ("zero_margin", "zero_ce", "samples"), _underflow),
    ("gradients not finite", ("bad_margin", "bad_ce", "samples"), _broken),
    ("slope", ("slope", "slope_error", "slope_samples"), _slope),
    ("loss by steps", ("loss_steps", "loss"), _loss),
    ("accuracy by radius", ("radii", "accuracy", "norm", "right"), _accuracy),
    ("black box beats white box", ("stages", "n"), _black_box),
)
