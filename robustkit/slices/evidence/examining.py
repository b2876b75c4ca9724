"""Measure a model's gradients and answers on a few images, as figures that `gradient_masking` judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attacks import LOSSES, Attack, AutoAttack, Rng, ThreatModel, margin
from attacks.attack import check_images, check_labels
from attacks.model_access import Model, frozen, input_gradient
from attacks.threat import per_sample

from ...common.determinism import float32, lacks_order
from ...models.device import out_of_memory
from . import probes
from .gradient_masking import AFTERWARDS, FAMILIAR, RANDOM
from .probes import Asker, Columns

_STEPS = (1e-3, 1e-2)  # of eps: within one level of a rounding layer for nearly all 8-bit pixels, even with 64 levels
_FAR = 0.1  # of eps: over many periods of a ripple, and still almost straight for other models
_ROUNDING = 2.0**-23  # of float32
_READABLE = 256  # times the noise of the logits: rounding then costs the slope a few per cent at most
_LOSS_STEPS, _BRIEF_STEPS, _KNOWN_STEPS = (0, 1, 5, 20), (0, 1, 5), 5
_SWEEP_STEPS, _SWEEP_RADII = 10, 6
_MOVABLE = 8  # pixels
_EXPLAIN_SLOPE = ("zero_margin", "bad_margin")
_NEARLY = 0.95  # of the way from an image to the saved one
_SUDDEN = 0.25  # of the margin's rise on that way, in its last twentieth: ordinary networks measured 0.05
_ASKED = ("graph", "batches", "called again", "caller")
_OF_ENDS = ("under attack", "path", "survives saving", "known images", "full batch")
CLOSELY = 8  # right samples on which costly probes are made
_PLACES = {"clean": "at the images", "inside": "inside the ball", "edge": "at its edge"}
_PLACES |= {"attack": "where the attack went"}
_ASIDE, _LOSSES = "aside ", ("ce", "margin")
_AGREES = 0.5  # relative error of a slope in a random direction, beyond which it says nothing
LEFT_OUT = "left out, as it would take more than a quarter of the attacks' passes"


@dataclass(frozen=True)
class Probe:
    """A part of `examine`. checks: that rest on it. each, close, once: forward and backward passes of every sample, of
    each of the first few, where it is costly, and of all together; at least what ordinary networks take.
    """

    checks: tuple[str, ...]
    each: tuple[int, int] = (0, 0)
    close: tuple[int, int] = (0, 0)
    once: tuple[int, int] = (0, 0)

    def passes(self, samples: int) -> tuple[int, int]:
        few = min(samples, CLOSELY)
        if any(self.once) and self.once[0] <= few:  # then nothing is asked
            return 0, 0
        counts = zip(self.each, self.close, self.once, strict=True)
        forwards, backwards = (a * samples + b * few + c for a, b, c in counts)
        return forwards, backwards


_ALWAYS = Probe((), (5, 2))  # the answers three times, and two gradients
_FULL_BATCH = Probe(("full batch",), (0, 0), (1, 1))
PROBES = (  # by their worth: what comes later is left out first
    Probe(("loss by steps", "slope afar"), (8, 6)),
    Probe(("slope", "slope afar"), (4, 0)),
    Probe(("slope aside",), (29, 4)),
    Probe(("continuity",), (6, 0)),
    Probe(_ASKED, (14, 0)),
    Probe(("survives saving",), (2, 0)),
    Probe((AFTERWARDS,), (0, 0), (7, 5)),
    Probe(("known images",), (10, 5)),
    Probe(("under attack",), (0, 0), (24, 2)),
    Probe(("path",), (0, 0), (39, 0)),
    _FULL_BATCH,
)
_SWEEP = Probe(("accuracy by radius",), (60, 50))  # of AutoAttack alone, with more steps of PGD


def probes_of(attack: str, batch: int, surrogates: int = 0) -> tuple[Probe, ...]:
    """Return the probes for an attack of that name, by their worth. batch: images in a batch of the attack."""
    runs = 1 + surrogates if surrogates else 0
    around = Probe(("attention",), (11 * runs, 10 * runs))  # the model's own gradients and the surrogates'
    probes = (replace(each, once=(batch, batch)) if each is _FULL_BATCH else each for each in PROBES)
    return (_ALWAYS, *probes, *([_SWEEP] if attack == "autoattack" else []), around)


def examine(
    model: Model,
    images: Tensor,
    labels: Tensor,
    threat: ThreatModel,
    *,
    rng: Rng,
    batch_size: int,
    attack: Attack | None = None,
    surrogates: Mapping[str, Model] | None = None,
    brief: bool = False,
    left_out: Collection[str] = (),
    attack_batch: int = 0,
) -> dict[str, Any]:
    """Measure a model's gradients and answers at some images, as figures of JSON types; about 32 images say enough.

    model: (B, ...) images to (B, K) logits in float32, since a coarser dtype rounds as a defence would. images: (B,
    ...) inside the bounds of `threat`, B > 0. labels: (B,) int64. threat: the attack's norm and eps > 0. rng: for the
    attacks and single points. batch_size: most images in a pass. attack: shortened and watched, if any. brief: without
    the sweep of radii and long PGD, which cost most. surrogates: the same model with other gradients, by name.
    left_out: checks of `PROBES` that are not made. attack_batch: images in a batch of the attack.

    random_difference: largest of three passes relative to a row's length; random_predictions: samples that change.
    low, high, sum_error: range of the outputs, and distance of their sums from 1.
    has_gradient: 1 if outputs lead back to the images; otherwise the figures about gradients are None.
    zero_margin, zero_ce, bad_margin, bad_ce: samples whose whole gradient is zero, or some of it not finite. Of the
        margin, not DLR, which is rightly flat where a wrong prediction ranks the label third.
    slope, slope_error: measured over predicted change of the margin along the gradient, and its distance from 1,
        medians of `slope_samples`; slope_far: the same over a tenth of eps. loss: mean margin after `loss_steps` steps
        of PGD. accuracy: share that short PGD leaves standing at `radii`. All of these of the `right` among the
        `samples`; None where there are none.
    half: the half precision in which the model computes, whose slopes are taken of the same operations in float32; "".
    aside: of slopes in random directions, the largest median relative error over `aside_at`: right images, inside the
        ball, at its edge, and where `attack` went, of its own loss and others; aside_off: the largest share of samples
        where the error is above a half; aside_samples: of that place.
    fell: of each sample 1 if it was right and fell to the PGD that took these figures, 0 if it stands, -1 if it was
        wrong. rise_after: as `rise`, of the few samples of which `examine_before` took it before the attack.
    noise, graph, batch, thread, again, attacked: largest relative difference of two answers: asked twice, with a graph,
        in other batches, from another thread, at the end, and by `attack`. infinite: share of answers not finite.
    jump: median change by a twentieth of a grey level. path: median jump beyond the end of PGD and to another image.
    saved_same, saved_lost: of `saved_samples` ends of PGD, those as right or wrong once saved in 8 bits, and those
        right only once saved; hidden: those right before and nearly where they are saved, but wrong once saved, by a
        leap of the margin. rise, rise_moved: median rise of the margin by five steps of PGD, at the images and at moved
        ones; forgotten, kept, sure, rise_blurred, rise_shifted: of `probes.when_moved`.
    full_batch: median relative difference of gradients in a batch of `full_batch_size`, as large as the attack's.
    stand_plain, stand_surrogates: right samples that stand under PGD, and then with the gradients of the surrogates;
        only_surrogates, only_restarts: those that fall to surrogates, or to restarts, alone.
    unasked, unmeasured: why a check does not apply, or failed, by name. forwards, backwards: mean passes of a sample.

    Raises ValueError for no images, eps 0, batch_size 0, fewer than two classes, and as attacks do for odd arguments.
    """
    check_images(images, threat)
    check_labels(labels, len(images))
    if not (len(images) and threat.eps > 0 and batch_size > 0):
        raise ValueError(f"{len(images)} images, eps {threat.eps:g}, batch_size {batch_size}: expected more than 0")
    # TF32 rounds to 2048 levels: a small step would find the model flat, as behind a rounding layer.
    with frozen(model), float32():
        images, labels = images.detach().clone(), labels.to(images.device, torch.int64, copy=True)
        asker = Asker(model, images.dtype, labels, threat, batch_size)
        asker.look(images[:1])
        examiner = _Examiner(asker, images, brief, surrogates or {}, attack, left_out, attack_batch)
        batches = torch.split(torch.arange(len(images), device=images.device), batch_size)
        parts = [examiner.part(images[rows], labels[rows], rng.take(rows)) for rows in batches]
        # A batch without right samples lacks columns that another may have.
        names = dict.fromkeys(name for part in parts for name in part)
        columns = {name: torch.cat([part[name] for part in parts if name in part]).detach() for name in names}
        ends = columns.pop("ends", images)
        explained = examiner.noise > RANDOM or any(columns[name].any() for name in _EXPLAIN_SLOPE if name in columns)
        if not explained and not len(columns.get("slope", [0])):
            examiner.unmeasured["slope"] = "the outputs are too coarse to follow at every sample"
        rise = float(columns["rise"].median()) if len(columns.get("rise", ())) else 0.0
        columns |= examiner.probe(images, labels, ends, columns["right"], rng, "zero_ce" in names, rise)
    figures = probes.reduce_columns(columns) | _worst_aside(columns)
    if figures["aside"] is None and len(columns.get("slope", ())):
        examiner.unasked["slope aside"] = "rounding or noise drowns slopes in random directions"
    examiner.unasked |= dict.fromkeys(left_out, LEFT_OUT)
    figures |= {"half": str(asker.half or "").removeprefix("torch."), "fell": columns["fell"].tolist()}
    if len(early := columns.get("rise", columns["right"][:0])[: int(columns["right"][:CLOSELY].sum())]):
        figures |= {"rise_after": float(early.median()), "aside_after": figures["aside"] or 0.0}
    figures |= {"norm": threat.norm, "eps": threat.eps, "samples": len(images), "has_gradient": int("zero_ce" in names)}
    figures |= {"loss_steps": list(examiner.loss_steps), "radii": [0.0, *examiner.radii]}
    figures |= {"full_batch_size": examiner.attack_batch, "infinite": asker.infinite / asker.forwards}
    figures |= {"unasked": examiner.unasked, "unmeasured": examiner.unmeasured}
    figures |= {"forwards": asker.forwards / len(images), "backwards": asker.backwards / len(images)}
    return probes.round_figures(figures)


def in_a_line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"


def examine_before(
    model: Model, images: Tensor, labels: Tensor, threat: ThreatModel, *, rng: Rng, batch_size: int
) -> dict[str, Any]:
    """Take, before an attack, the one figure that `examine` takes again after it: a model may change meanwhile.

    rise_before: median rise of the margin by five steps of PGD, of the right ones among the first few images; None
    where there are none. passes_before: of the model, forward and backward.
    """
    with frozen(model), float32():
        images, labels = images[:CLOSELY].detach().clone(), labels[:CLOSELY].to(images.device, torch.int64)
        asker = Asker(model, images.dtype, labels, threat, batch_size)
        logits = asker.plain(images)
        rows = (logits.argmax(dim=1) == labels).nonzero().flatten()
        rise = logits.new_zeros(0)
        for part in torch.split(rows, batch_size) if len(rows) else ():
            after = asker.pgd(images[part], labels[part], rng.take(part), threat=threat, steps=_KNOWN_STEPS)[1]
            rise = torch.cat([rise, margin(after, labels[part]) - margin(logits[part], labels[part])])
    figures = {"rise_before": float(rise.median()) if len(rise) else None}
    return probes.round_figures(figures | {"passes_before": asker.forwards + asker.backwards})


def _worst_aside(columns: Columns) -> dict[str, Any]:
    named = {name: column[column.isfinite()] for name, column in columns.items() if name.startswith(_ASIDE)}
    every = [(int((each > _AGREES).sum()), float(each.median()), name) for name, each in named.items() if len(each)]
    if not every:
        return {"aside": None, "aside_off": None, "aside_at": "", "aside_samples": 0}
    off, middle, name = max(every, key=lambda each: each[:2])
    place, loss = name.removeprefix(_ASIDE).split(" ")
    at = _PLACES[place] + (f", loss {loss}" if loss != "own" else "")
    return {"aside": middle, "aside_off": off, "aside_at": at, "aside_samples": len(named[name])}


class _Examiner:
    """The probes. Its methods return columns of figures, and note what could not be measured."""

    def __init__(
        self,
        asker: Asker,
        images: Tensor,
        brief: bool,
        surrogates: Mapping[str, Model],
        attack: Attack | None = None,
        left_out: Collection[str] = (),
        attack_batch: int = 0,
    ) -> None:
        self.asker, self.threat, self.brief, self.surrogates = asker, asker.threat, brief, surrogates
        self.attack, self.noise, self.left_out, self.attack_batch = attack, 0.0, left_out, attack_batch
        # The losses whose slopes are looked at: those that attacks use, and the attack's own.
        more = isinstance(attack, AutoAttack) or "dlr" in str(getattr(attack, "loss", ""))
        self.losses: tuple[str, ...] = (*_LOSSES, "dlr") if more else _LOSSES
        self.unasked = {"accuracy by radius": "only for AutoAttack"} if brief else {}
        self.unasked[AFTERWARDS] = "no attack has ended"
        if not surrogates:
            self.unasked["attention"] = "the model has no supported attention"
        self.unmeasured: dict[str, str] = {}
        self.loss_steps: tuple[int, ...] = _BRIEF_STEPS if brief else _LOSS_STEPS
        self.loss_steps = () if "loss by steps" in left_out else self.loss_steps
        threat = asker.threat
        low, high = threat.bounds or (float(images.min()), float(images.max()))
        # Half the range of pixels; in l2, a quarter of it for each value.
        widest = (high - low) * (0.5 if threat.norm == "linf" else 0.25 * math.sqrt(images[0].numel()))
        growth = max(1.0, widest / threat.eps) ** (1 / (_SWEEP_RADII - 1))
        self.radii = [threat.eps * growth**power for power in range(_SWEEP_RADII if growth > 1 else 1)]

    def part(self, images: Tensor, labels: Tensor, rng: Rng) -> Columns:
        """Examine one batch: a row for each sample, for each right one, or for each whose slope can be read."""
        passes = torch.stack([self.asker.logits(images) for _ in range(3)]).detach()
        logits, predictions = passes[0], passes.argmax(dim=2)
        numbers = passes.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        noise = (numbers[1:] - numbers[0]).norm(dim=2).amax(dim=0) / numbers[0].norm(dim=1).clamp_min(1e-30)
        right = (predictions[0] == labels) & logits.isfinite().all(dim=1)
        part = {"right": right, "random_difference": noise, "ends": images.clone()}
        self.noise = max(self.noise, float(noise.amax()))
        part["random_predictions"] = (predictions[1:] != predictions[0]).any(dim=0)
        part |= {"low": logits.amin(dim=1), "high": logits.amax(dim=1), "sum_error": (logits.sum(dim=1) - 1).abs()}
        part["fell"] = torch.full_like(labels, -1)
        with self.asker.widened():
            gradients = {}
            for name in _LOSSES:
                try:
                    gradients[name] = self._gradient(images, labels, name)[1]
                except ValueError:
                    return part
                part[f"zero_{name}"] = (gradients[name] == 0).flatten(1).all(dim=1)
                part[f"bad_{name}"] = ~gradients[name].isfinite().flatten(1).all(dim=1)
        rows = right.nonzero().flatten()
        if len(rows):
            images, labels, logits, rng = images[rows], labels[rows], logits[rows], rng.take(rows)
            gradients = {name: gradient[rows] for name, gradient in gradients.items()}
            if "slope" not in self.left_out:
                with self.asker.widened():
                    steep = self._slopes(images, labels, gradients["margin"], logits, noise[rows])
                    part["slope"], part["slope_far"] = steep
                part["slope_error"], part["slope_samples"] = (part["slope"] - 1).abs(), part["slope"] > -math.inf
            if self.loss_steps:
                steps = self.loss_steps[1:]
                ends = [self.asker.pgd(images, labels, rng, threat=self.threat, steps=n)[:2] for n in steps]
                margins = [margin(each, labels) for each in (logits, *(end for _, end in ends))]
                part["loss"] = torch.stack(margins, dim=1)
                part["rise"] = margins[self.loss_steps.index(_KNOWN_STEPS)] - margins[0]
                part["ends"][rows], part["fell"][rows] = ends[-1][0], (margins[-1] > 0).long()
            if "slope aside" not in self.left_out:
                few = torch.arange(min(CLOSELY, len(rows)), device=rows.device)
                clean = {name: gradient[few] for name, gradient in gradients.items()}
                part |= self.aside(images[few], labels[few], part["ends"][rows][few], rng.take(few), clean)
            if not (self.brief or "accuracy by radius" in self.left_out):
                part["accuracy"] = self._sweep(images, labels, rng)
        return part

    def _gradient(self, points: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K) and a loss's gradient (B, ...). ValueError where it does not lead back."""
        points = points.clone().requires_grad_()
        logits = self.asker.logits(points)
        self.asker.backwards += len(points)
        return logits.detach(), input_gradient(LOSSES[name](logits, labels), points)

    def aside(
        self, images: Tensor, labels: Tensor, ends: Tensor, rng: Rng, clean: Mapping[str, Tensor] | None = None
    ) -> Columns:
        """Compare slopes in random directions with the gradients of the losses: at the images, whose gradients may be
        known, at random points of the ball, which no 8-bit picture has, and at its edge, where more steps of PGD lead.
        """
        columns: Columns = {}
        inside = self.threat.random_start(images, rng, "evidence/inside")
        change, eps = ends - images, self.threat.eps
        if self.threat.norm == "linf":  # what went half of eps or more goes all of it
            change = torch.where(change.abs() >= 0.5 * eps, eps * change.sign(), change)
        else:
            change = change * per_sample(eps / change.flatten(1).norm(dim=1).clamp_min(1e-12), images)
        edge = self.asker.cut(images + change)
        with self.asker.widened():
            for place, points in (("clean", images), ("inside", inside), ("edge", edge)):
                gradients = dict(clean or {}) if place == "clean" else {}
                if place == "clean":
                    if not gradients:
                        continue
                    logits = self.asker.plain(points)
                for name in self.losses if place != "clean" else gradients:
                    if name not in gradients:
                        logits, gradients[name] = self._gradient(points, labels, name)
                with torch.enable_grad():
                    seen = logits.clone().requires_grad_()
                    losses = {name: LOSSES[name](seen, labels).sum() for name in gradients}
                    pairs = [(torch.autograd.grad(loss, seen)[0], gradients[name]) for name, loss in losses.items()]
                errors = probes.slope_error(self.asker, points, logits, pairs, rng, self.noise)
                columns |= {f"{_ASIDE}{place} {name}": each for name, each in zip(gradients, errors, strict=True)}
        return columns

    def probe(
        self, images: Tensor, labels: Tensor, ends: Tensor, right: Tensor, rng: Rng, has_gradient: bool, rise: float
    ) -> Columns:
        """Probe all samples at once, and the `right` ones on the way to another image, saved in 8 bits, and moved.

        rise: of the margin by PGD at the images.
        """
        if not {"continuity", *_ASKED, *_OF_ENDS}.difference(self.left_out):
            return {}
        asker, attack = self.asker, self.attack
        # Where PGD does not move, a random point in place of the image.
        still = per_sample((ends == images).flatten(1).all(dim=1), images)
        moved = torch.where(still, self.threat.random_start(images, rng, "evidence/moved"), ends)
        points = torch.stack([images, moved], dim=1).flatten(0, 1)
        first = asker.plain(points)
        clean, after = first[::2], first[1::2]
        rounding = 0.0 if asker.half is None else float(torch.finfo(asker.half).eps)
        columns = {"noise": probes.answer_difference(asker.plain(points), first).clamp_min(rounding)}

        def from_elsewhere() -> Tensor:
            with asker.elsewhere() as ask:
                return probes.answer_difference(ask(points), first)

        checks: list[tuple[str, Callable[[], Columns]]] = [
            ("graph", lambda: {"graph": probes.with_a_graph(asker, points, first)}),
            ("batches", lambda: {"batch": probes.in_other_batches(asker, points, first)}),
            ("caller", lambda: {"thread": from_elsewhere()}),
            ("continuity", lambda: {"jump": probes.answer_jumps(asker, images, clean, rng)}),
        ]
        rows = right.nonzero().flatten()
        if not (len(rows) and has_gradient):
            why = "outputs have no gradient path to the input" if len(rows) else "no prediction is right"
            self.unasked |= dict.fromkeys(_OF_ENDS, why)
        else:
            few, others = rows[:CLOSELY], _others(images, labels)[rows[:CLOSELY]]
            if attack is None:
                self.unasked["under attack"] = "no attack was given"
            else:
                watched = partial(probes.under_attack, asker, attack, images[few], labels[few], rng.take(few))
                names = ("attacked", f"{_ASIDE}attack own")
                checks.append(("under attack", lambda: dict(zip(names, watched(self.noise), strict=True))))
            checks += [
                ("path", lambda: {"path": probes.largest_jump(asker, images[few], moved[few], others)}),
                ("survives saving", lambda: self._saved(*(x[rows] for x in (images, moved, labels, clean, after)))),
                ("known images", lambda: self._moved(images[rows], labels[rows], rng.take(rows), rise)),
                ("full batch", lambda: self._full_batch(images, labels, few, rng)),
            ]
            if self.surrogates:
                around = partial(probes.hidden_by_attention, asker, self.surrogates)
                checks.append(("attention", lambda: around(images[rows], labels[rows], rng.take(rows))))
        checks.append(("called again", lambda: {"again": probes.answer_difference(asker.plain(points), first)}))
        for check, probe in ((check, probe) for check, probe in checks if check not in self.left_out):
            try:
                columns |= probe()
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as fault:
                if out_of_memory(fault) or lacks_order(fault):
                    raise  # smaller batches may fit, and what has no order is asked without
                self.unmeasured[check] = in_a_line(fault)
        return columns

    def _saved(self, images: Tensor, points: Tensor, labels: Tensor, clean: Tensor, logits: Tensor) -> Columns:
        """Whether the points, once saved, are as right or wrong as before. clean, logits: (B, K) of images, points."""
        if why := probes.why_not_saved(self.threat, images[0].numel()):
            self.unasked["survives saving"] = why
            return {}
        rounded = probes.round_to_8_bits(points, images, self.threat)
        # Rounding may lead further from the image than PGD went; a point this near to the saved one did not.
        near = images + _NEARLY * (rounded - images)
        answers = (logits, self.asker.plain(rounded), self.asker.plain(near))
        right, still, nearly = (x.argmax(dim=1) == labels for x in answers)
        # Changing evenly, the margin may well cross 0 in the last twentieth. NaN counts as sudden.
        start, end, close = (margin(x, labels) for x in (clean, *answers[1:]))
        evenly = end - close <= _SUDDEN * (end - start)
        figures = {"saved_samples": still | True, "saved_same": right == still, "saved_lost": ~right & still}
        return figures | {"hidden": right & nearly & ~still & ~evenly}

    def _moved(self, images: Tensor, labels: Tensor, rng: Rng, rise: float) -> Columns:
        if images.ndim != 4 or min(images.shape[-2:]) < _MOVABLE:
            self.unasked["known images"] = f"inputs {tuple(images.shape[1:])} cannot be moved"
            return {}
        return probes.when_moved(self.asker, images, labels, rng, _KNOWN_STEPS, FAMILIAR * rise)

    def _full_batch(self, images: Tensor, labels: Tensor, rows: Tensor, rng: Rng) -> Columns:
        """Compare with gradients in a batch of the attack's size, or of half of it, and so on, where memory ends."""
        why, size = "the attack's batches hold no more images", self.attack_batch
        loss = str(getattr(self.attack, "loss", ""))
        losses = ("ce", "dlr") if "dlr" in self.losses else (loss if loss in LOSSES else "ce",)
        if self.noise > RANDOM:
            why, size = "outputs are random", 0
        while size > len(rows):
            self.attack_batch = size
            try:
                return {"full_batch": probes.in_full_batch(self.asker, images, labels, rows, rng, size, losses)}
            except (RuntimeError, MemoryError) as fault:
                if not out_of_memory(fault):
                    raise
                why, size = f"a batch of {size} does not fit in float32", size // 2
        self.unasked["full batch"] = why
        return {}

    def _slopes(
        self, images: Tensor, labels: Tensor, gradient: Tensor, logits: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return measured over predicted change of the margin, (S,) near and (S,) far, for the samples where it can be
        read.

        From a step against the gradient to one along it, so that curvature cancels, and at the smallest step whose
        predicted change is well above the noise: there a rounding layer with a made-up gradient is flat or erratic,
        while over large steps such a gradient is right on average.
        """
        labels, rival = labels[:, None], logits.scatter(1, labels[:, None], -math.inf).argmax(dim=1, keepdim=True)
        two = torch.cat([logits.gather(1, labels), logits.gather(1, rival)], dim=1)
        size = torch.maximum(noise.amax() * logits.abs().amax(dim=1), _ROUNDING * two.abs().amax(dim=1))
        least = _READABLE * size
        direction = self.threat.steepest(gradient.clone())
        ratios: list[Tensor] = []
        for step in (*_STEPS, _FAR):
            if step == _STEPS[1] and not ratios[0].isnan().any():
                ratios.append(ratios[0])
                continue
            ends = [self.asker.cut(images + sign * step * self.threat.eps * direction) for sign in (1, -1)]
            up, down = ((x.gather(1, rival) - x.gather(1, labels)).flatten() for x in map(self.asker.logits, ends))
            # What rounding made of the step, not the requested one.
            predicted = (gradient.double() * (ends[0].double() - ends[1].double())).flatten(1).sum(dim=1)
            ratios.append(((up - down) / predicted).to(noise).masked_fill(~(predicted >= least), math.nan))
        near = torch.where(ratios[0].isnan(), ratios[1], ratios[0])
        near = torch.where(near.isnan(), ratios[2], near)
        return near[near.isfinite()], ratios[2][ratios[2].isfinite()]

    def _sweep(self, images: Tensor, labels: Tensor, rng: Rng) -> Tensor:
        """Return (B, 1 + R) whether a sample stands at radius 0 and the others: what fell stays fallen further out."""
        standing = (labels >= 0)[:, None].repeat(1, 1 + len(self.radii))
        for column, eps in enumerate(self.radii, start=1):
            rows = standing[:, column].nonzero().flatten()
            if len(rows):
                options = {"threat": replace(self.threat, eps=eps), "steps": _SWEEP_STEPS, "step_size": eps / 4}
                _, logits, fell = self.asker.pgd(images[rows], labels[rows], rng.take(rows), early_stop=True, **options)
                standing[rows[fell | (logits.argmax(dim=1) != labels[rows])], column:] = False
        return standing


def _others(images: Tensor, labels: Tensor) -> Tensor:
    """Return, for each image (B, ...), the next one of another class; the image itself where there is none."""
    places = torch.arange(len(labels), device=labels.device)
    away = (places[None] - places[:, None] - 1) % len(labels) + len(labels) * (labels[None] == labels[:, None])
    return images[torch.where(away.amin(dim=1) < len(labels), away.argmin(dim=1), places)]
