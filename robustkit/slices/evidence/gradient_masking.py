"""Whether a robust accuracy can be trusted: signs that the model's gradients mislead the attacks that follow them.

The signs are those of Athalye et al. (2018, arXiv:1802.00420) and Carlini et al. (2019, arXiv:1902.06705), and that a
model answers differently when it is attacked. `examining.examine` asks the model and returns plain figures, kept with
the records; `checks_of` judges them later, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...common.differences import sign_test
from ...common.finding import Finding
from ...display.format import percent
from ...evaluations.attacks.ranking import Sign

RANDOM = 1e-4  # difference of two passes relative to the logits: order of summation gives 1e-6, noise 1e-2 or more
OUTSIDE = 1e-5  # how far probabilities may leave [0, 1]: float32 rounding
SLOPE = 0.25  # median error of the predicted change: ordinary networks measured 0.002, rounding layers 0.7 and more
ASIDE = 0.2  # median error of slopes in random directions: ordinary networks measured 0.06, gradients cut 0.4
OFF = 0.25  # share of the samples whose slopes in random directions may be wrong by half: measured 0.1 at most
LESS = 0.5  # of what PGD did before the attack, that it must still do after it: what stays as it is does the same
RISE = 1e-4  # least rise of the loss relative to its size: float32 rounding gives 1e-6, an attack 1e-2 or more
FALLBACK = 0.05  # how far the last loss may lie below the best, as a share of the rise: steps of one length swing
STANDING = 0.1  # accuracy at the widest radius: every image can become the same grey, which is of one class
ALIKE = 0.01  # difference of two answers: batch sizes give 1e-6 in float32, and 1e-2 where a model rounds inside
NOISE = 4.0  # times the difference of a model's answers asked twice alike, which a random one may differ by anyhow
JUMP = 0.02  # change of the answer by a twentieth of a grey level: ordinary networks measured 0.0005
TEAR = 0.05  # change left when a path is halved to a thousandth of its parts: ordinary networks measured 0.001
BENT = 0.25  # least share of the predicted change over a tenth of eps: ordinary networks measured 0.5 and more
LOST, HIDDEN = 0.25, 0.15  # most broken samples that saving may mend, and most that only saving breaks: measured 0
FAMILIAR = 4.0  # times the rise of the margin at the images that moved ones may show: ordinary networks measured 2
FADES = 0.3  # least margin of rotated or cropped images (a mirrored one may be of no class): measured 0.6
FORGOTTEN = 0.25  # share whose rotated and cropped image are of one other class: ordinary networks measured 0.07
_MOVED = ("rotated", "cropped", "flipped")
_ENOUGH = 8  # right samples, for the last two
LITTLE = 0.01  # of the margin: where PGD does less than that everywhere, no image is known better than others
HIDES = 0.05  # chance of as many samples more, by gradients led around attention than by restarts, if both do alike
BLACK_BOX = 0.002  # share of the samples that Square may break after gradient attacks: as in AutoAttack's own check
AFTERWARDS = "afterwards"  # the check that compares what PGD does after the attack with what it did before
_STAGES = "black box beats white box"
AROUND = ("stand_plain", "stand_surrogates", "only_surrogates", "only_restarts")  # figures of `hidden_by_attention`


_Verdict = tuple[str, bool]
"""The figure in words, and whether it is bad."""


def checks_of(
    figures: Mapping[str, Any], stages: Mapping[str, int] | None = None, n: int | None = None, *, averaged: bool = False
) -> list[Sign]:
    """Return each check, always all of them and in the same order; missing figures are "not measured".

    figures: of `examine`. stages: samples standing after each stage of AutoAttack. n: samples; None: as the first stage
    says. averaged: the attack averaged passes (EOT), as random outputs ask for.
    """
    samples = n if n is not None else next(iter((stages or {}).values()), None)
    earlier: dict[str, Any] = {"rise_moved": figures.get("rise_shifted"), "kept": [], "sure": [], "forgotten": 0}
    earlier["controls"] = figures.get("rise_blurred"), figures.get("rise_shifted")
    available = {**earlier, **figures, "averaged": averaged, "stages": stages, "n": samples}
    available["aside_before"] = figures.get("aside") or 0.0
    failed, quick = figures.get("failed"), isinstance(figures.get("quick"), Mapping)
    first, rests = _extent(figures) if quick and not failed else ([], "")
    if failed:
        first = [Sign("evidence", failed, Finding.of("evidence/failed", why=failed))]
    every = _judged(figures, available, rests)
    return [*first, *(each for each in every if each.name == _STAGES or not quick or failed or figures.get("samples"))]


def _judged(figures: Mapping[str, Any], available: Mapping[str, Any], rests: str) -> Iterator[Sign]:
    for name, needed, judge in _CHECKS:
        if why := (figures.get("unmeasured") or {}).get(name):  # a probe failed
            yield _unmeasured(name, f"not measured: {why}", f"could not be measured: {why}")
            continue
        if why := (figures.get("unasked") or {}).get(name):  # it does not apply
            yield Sign(name, f"not measured: {why}")
            continue
        values = [available.get(each) for each in needed]
        missing = any(value is None or (isinstance(value, list) and None in value) for value in values)
        if missing and (why := _why_missing(needed, available)):
            figure = f"not measured: {why}"
            yield _unmeasured(name, figure, f"{figure}; run {_WITHOUT}")
            continue
        figure, bad = (None if missing else judge(*values)) or ("not measured", False)
        after = "" if name == _STAGES or not rests else f" ({rests})"
        code = f"masking/{name.replace(' ', '-')}"
        yield Sign(name, figure, Finding.of(code, figure=figure, rests=after) if bad else None)


def _unmeasured(name: str, figure: str, why: str) -> Sign:
    return Sign(name, figure, Finding.of("masking/unmeasured", check=name, why=why))


_WITHOUT = "Square or SPSA with more queries, or an adaptive attack (BPDA, transfer)"
_NAMED = 4  # checks that were left out


def _extent(figures: Mapping[str, Any]) -> tuple[list[Sign], str]:
    """Return on how many samples quick evidence rests and what it left out, and the former in words."""
    samples, left_out = figures.get("samples", 0), figures["quick"].get("left_out") or ()
    if not samples:
        what = "no evidence, since a quarter of the attacks' passes is too few for it"
        return [Sign("evidence", what, Finding.of("evidence/thin", what=what))], ""
    some = f"{samples} sample{'' if samples == 1 else 's'}"
    rests = f"evidence on {some}"
    without = ", ".join(left_out) if len(left_out) <= _NAMED else f"{len(left_out)} of its checks"
    what = f"the checks for gradient masking used only {some} and skipped {without}" if left_out else rests
    return [Sign("evidence", what, Finding.of("evidence/thin", what=what) if left_out else None)], rests


def _why_missing(names: tuple[str, ...], available: Mapping[str, Any]) -> str:
    """Return why a figure that a check needs could not be measured; empty where another says so or none applies."""
    if {"stages", AROUND[0], "full_batch"} & {*names} or available.get("failed") or available.get("has_gradient") == 0:
        return ""
    for name in names:
        value = available.get(name)
        if value is None and name not in available:
            return f"there is no {name}"
        if value is None and available.get("right") == 0:
            return f"none of {available.get('samples')} samples is classified correctly"
        if value is None and name.startswith("slope") and available.get("slope_samples") == 0:
            return "the outputs are too coarse or too noisy at every sample"
        if value is None or (isinstance(value, list) and None in value):
            return f"{name} is not finite"
    return ""


def _random_outputs(difference: float, changed: int, samples: int, averaged: bool) -> _Verdict:
    figure = f"two passes differ by {difference:.2g} times the outputs' size, {changed} of {samples} predictions change"
    if averaged:
        return f"{figure}; this attack averages passes", False
    return figure, difference > RANDOM or changed > 0


def _probabilities(low: float, high: float, error: float) -> _Verdict:
    bad = low >= -OUTSIDE and high <= 1 + OUTSIDE  # whatever they sum to: one sigmoid a class is as flat
    return f"outputs from {low:.3g} to {high:.3g}, sums off 1 by up to {error:.2g}", bad


def _path(has: int) -> _Verdict:
    return f"outputs {'have a' if has else 'have no'} gradient path to the input", not has


def _zero(margin: int, samples: int) -> _Verdict:
    figure = f"the margin's gradient is exactly zero for {margin} of {samples} samples"
    return figure, margin > 0


def _underflow(margin: int, ce: int, samples: int) -> _Verdict:
    figure = f"cross-entropy's gradient is exactly zero for {ce} of {samples} samples, the margin's for {margin}"
    return figure, ce > margin


def _broken(margin: int, ce: int, samples: int) -> _Verdict:
    figure = f"gradients are NaN or infinite for {max(margin, ce)} of {samples} samples"
    return figure, max(margin, ce) > 0


def _slope(slope: float, error: float, samples: int) -> _Verdict:
    figure = f"outputs change {slope:.3g} times as much as predicted (median error {error:.2g}, {samples} samples)"
    return figure, error > SLOPE


def _aside(error: float, off: int, at: str, samples: int) -> _Verdict:
    figure = f"in random directions, slopes differ from gradients by {error:.2g} of their size (median {at}"
    figure += f"; by more than half for {off} of {samples} samples)"
    bad = error > ASIDE or off > max(1.0, OFF * samples)
    return figure, bad


def _precision(half: str) -> _Verdict:
    figure = f"computes in half precision ({half}): slopes are of the same operations in float32" if half else "float32"
    return figure, False


def _afterwards(before: float, after: float, error: float, error_before: float, difference: float) -> _Verdict:
    figure = f"five steps of PGD raise the margin by {after:.3g} after the attack, by {before:.3g} before it"
    turned = error > ASIDE >= error_before
    bad = (after < LESS * before or before < LESS * after or turned) and difference <= RANDOM
    if turned:
        figure += f"; slopes in random directions are now off by {error:.2g}, before by {error_before:.2g}"
    return figure, bad


def _loss(steps: list[int], loss: list[float]) -> _Verdict:
    figure = "mean margin " + ", ".join(f"{value:.4g} at step {step}" for step, value in zip(steps, loss, strict=True))
    rise, further = loss[-1] - loss[0], loss[-1] - loss[1 if len(loss) > 2 else 0]  # it begins away from the image
    bad = min(rise, further) <= RISE * max(map(abs, loss)) or loss[-1] < max(loss) - FALLBACK * rise
    return figure, bad


def _accuracy(radii: list[float], accuracy: list[float], norm: str, right: int) -> _Verdict:
    sizes = [f"{255 * eps:.3g}/255" if norm == "linf" else f"{eps:.3g}" for eps in radii]
    pairs = zip(sizes, accuracy, strict=True)
    figure = f"still correct at {norm} radius " + ", ".join(f"{size}: {percent(share, 0)}" for size, share in pairs)
    bad = accuracy[-1] * right > max(1.0, STANDING * right)  # one sample may be chance
    return figure, bad


def _bent(share: float, loss: list[float]) -> _Verdict:
    figure = f"over a tenth of eps, outputs change {share:.3g} times as much as predicted"
    bad = share < BENT and loss[-1] < 0  # where PGD wins, a large eps may just be far to go
    return figure, bad


def _finite(share: float) -> _Verdict:
    figure = f"{100 * share:.3g} % of the answers near the images hold NaN or infinity"
    return figure, share > 0


def _beyond_noise(figure: str, most: float) -> Callable[[float, float], _Verdict]:
    """Judge how far answers are apart, at most `most`, next to how far they are when asked twice alike."""

    def judge(apart: float, noise: float) -> _Verdict:
        return figure.format(apart, noise), apart > max(most, NOISE * noise)

    return judge


def _alike(how: str) -> Callable[[float, float], _Verdict]:
    figure = f"answers {how} differ by {{:.2g}} of their size, asked twice alike by {{:.2g}}"
    return _beyond_noise(figure, ALIKE)


_CONTINUITY = "a twentieth of a grey level changes the answer by {:.2g} of its size, noise by {:.2g}"
_TEARS = "on the way to other images the answer jumps by {:.2g} of its size, noise by {:.2g}"


def _saving(samples: int, same: int, lost: int, hidden: int) -> _Verdict:
    figure = f"{same} of {samples} verdicts survive saving in 8 bits, {lost} are correct again"
    figure += f", {hidden} are wrong only when saved" if hidden else ""
    bad = lost > max(1, LOST * samples) or hidden > max(1, HIDDEN * samples)  # one may be chance
    return figure, bad


def _known_images(
    rise: float,
    moved: float,
    loss: list[float],
    right: int,
    kept: list[float],
    sure: list[float],
    forgotten: int,
    controls: tuple[float | None, float | None],
) -> _Verdict:
    figure = f"five steps of PGD raise the margin by {rise:.3g}, at the same images moved by {moved:.3g}"
    least, (blurred, shifted) = FAMILIAR * max(rise, LITTLE * abs(loss[0])), controls
    bad = moved > least
    if bad and shifted is not None:  # networks of fine detail see less of what is blurred
        figure += f", shifted by {shifted:.3g}"
        figure += "" if blurred is None else f", blurred by {blurred:.3g}"
        bad = shifted > least or (blurred is not None and moved > FAMILIAR * max(blurred, 0.0))
    if kept:
        words = ", ".join(f"{percent(share, 0)} {name}" for name, share in zip(_MOVED, kept, strict=True))
        margins = ", ".join(f"{each:.3g}" for each in sure)
        figure += f"; of the correct samples {words} stay correct, with margins of {margins} after {0 - loss[0]:.3g}"
        figure += f"; {forgotten} are of one other class, rotated or cropped" if forgotten else ""
        bad |= right >= _ENOUGH and (forgotten > max(2, FORGOTTEN * right) or min(sure[:2]) < FADES * -loss[0])
    return figure, bad


def _full_batch(apart: float, size: int) -> _Verdict:
    return (
        f"gradients in a batch of {size} differ by {apart:.2g} of their size from those in a few",
        apart > ASIDE,
    )


def _attention(plain: int, around: int, more: int, fewer: int, right: int) -> _Verdict:
    figure = (
        f"{plain} of {right} correct samples stay correct under PGD, {around} under gradients that bypass attention"
    )
    figure += f"; {more} fell only to these, {fewer} only to restarts" if more + fewer else ""
    figure += "" if sign_test(plain, 0) < HIDES or not plain else ": too few remain to decide"
    return figure, sign_test(more, fewer) < HIDES


def _black_box(stages: Mapping[str, int], n: int) -> _Verdict | None:
    names = list(stages)
    if "square" not in names or not any(name.startswith(("apgd", "fab")) for name in names[: names.index("square")]):
        return None
    before = stages[names[names.index("square") - 1]]
    broken = before - stages["square"]
    figure = f"Square broke {broken} of {before} samples that gradient attacks left correct, of {n} in total"
    return figure, broken > max(1, BLACK_BOX * n)  # one sample may be chance


_CHECKS: tuple[tuple[str, tuple[str, ...], Callable[..., _Verdict | None]], ...] = (
    ("random outputs", ("random_difference", "random_predictions", "samples", "averaged"), _random_outputs),
    ("probabilities", ("low", "high", "sum_error"), _probabilities),
    ("gradient path", ("has_gradient",), _path),
    ("zero gradients", ("zero_margin", "samples"), _zero),
    ("cross-entropy underflow", ("zero_margin", "zero_ce", "samples"), _underflow),
    ("gradients not finite", ("bad_margin", "bad_ce", "samples"), _broken),
    ("slope", ("slope", "slope_error", "slope_samples"), _slope),
    ("slope afar", ("slope_far", "loss"), _bent),
    ("slope aside", ("aside", "aside_off", "aside_at", "aside_samples"), _aside),
    ("precision", ("half",), _precision),
    ("loss by steps", ("loss_steps", "loss"), _loss),
    ("accuracy by radius", ("radii", "accuracy", "norm", "right"), _accuracy),
    ("finite answers", ("infinite",), _finite),
    ("graph", ("graph", "noise"), _alike("with and without a graph")),
    ("batches", ("batch", "noise"), _alike("in other batches")),
    ("full batch", ("full_batch", "full_batch_size"), _full_batch),
    ("called again", ("again", "noise"), _alike("at the end")),
    ("caller", ("thread", "noise"), _alike("from another thread")),
    ("under attack", ("attacked", "noise"), _alike("to a short attack and outside of it")),
    ("continuity", ("jump", "noise"), _beyond_noise(_CONTINUITY, JUMP)),
    ("path", ("path", "noise"), _beyond_noise(_TEARS, TEAR)),
    ("survives saving", ("saved_samples", "saved_same", "saved_lost", "hidden"), _saving),
    ("known images", ("rise", "rise_moved", "loss", "right", "kept", "sure", "forgotten", "controls"), _known_images),
    (AFTERWARDS, ("rise_before", "rise_after", "aside_after", "aside_before", "random_difference"), _afterwards),
    ("attention", (*AROUND, "right"), _attention),
    (_STAGES, ("stages", "n"), _black_box),
)
