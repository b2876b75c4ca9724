"""Find out which set-up a classifier fits: the one under which it predicts the labels best, part by part.

A model that is shown pixels in another normalisation, crop or channel order than in its training gives plausible, wrong
numbers. Its loss on labelled images distinguishes them, paired image by image. One part is varied at a time; where
another candidate is significantly better it is taken for the parts that follow, and all are looked at once more.

Candidates are compared on 8 images, then on twice as many, and so on; what is settled is dropped (successive halving:
Jamieson and Talwalkar, AISTATS 2016). Only one side of a test can drop or name a candidate wrongly, so the last look,
at the two-sided level, has half of the error that is allowed. The looks before it share the other half in proportion
to their images (Bonferroni). A few images may all be easy, with differences that are small and alike: before the last
look a candidate is settled only if it is worse by more than what counts as the same, or well within that on 32 images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..attention.fingerprint import (
    FEWEST,
    Fit,
    Formulas,
    fit_figures,
    paired_interval,
)
from ..common.differences import holm, of_means
from ..common.preprocessing import IMAGENET, INCEPTION, Preprocessing, few_numbers
from ..data.images import unit_pixels
from .zero_shot import FORMS, WRITTEN, ZeroShot

AS_GIVEN = "as given"
_CIFAR = (0.4914, 0.4822, 0.4465)
Normalisations = dict[str, tuple[tuple[float, ...], tuple[float, ...]]]  # means and stds of [0, 1] by name
NORMALISATIONS: Normalisations = {  # the last are those of EfficientNet-Lite, `to 255` those of Caffe
    "ImageNet": IMAGENET,
    "0.5 / 0.5": INCEPTION,
    "none, 0 to 1": ((0.0,) * 3, (1.0,) * 3),
    "none, 0 to 255": ((0.0,) * 3, (1 / 255,) * 3),
    "ImageNet, 0 to 255": (IMAGENET[0], (1 / 255,) * 3),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": (_CIFAR, (0.2470, 0.2435, 0.2616)),
    "CIFAR-10, std 0.2": (_CIFAR, (0.2023, 0.1994, 0.2010)),
    "127 / 128 of 255": ((127 / 255,) * 3, (128 / 255,) * 3),
}


def normalisations(channels: int) -> Normalisations:
    """Return means and stds by name: of other channels than RGB those that are the same for each."""
    alike = {name: pair for name, pair in NORMALISATIONS.items() if all(len({*values}) == 1 for values in pair)}
    of_each = {name: (mean[:1] * channels, std[:1] * channels) for name, (mean, std) in alike.items()}
    return NORMALISATIONS if channels == 3 else of_each


CROPS = (0.875, 0.9, 0.95, 1.0)
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest")
_SAME = 5e-4  # means and stds that differ by less are the same, written with fewer digits
FIRST, SURE = 8, 32  # Images of the first look, and from which on two may count as equivalent
DOUBT = 0.05  # 1 minus the confidence with which each other candidate must be worse
HOPELESS = 64  # Images after which nothing more is looked at where no candidate is better than guessing
FITS, BETTER, UNKNOWN = "fits", "another-fits-better", "inconclusive"
ALIKE = 0.02  # Nats by which losses may differ and still count as the same: 2 % of a likelihood
Score = Callable[[Tensor, Sequence[int], str], Tensor]
"""From logits (B, K), the places of their samples and a numbering of labels to (B, 2): NLL, and 1 where right."""


@dataclass(frozen=True)
class Setup:
    """What a model computes (attention; text: the form of a zero-shot head's sentences) and is shown (bgr: channels
    reversed, normalised as such), and its labels."""

    preprocessing: Preprocessing
    bgr: bool = False
    labels: str = AS_GIVEN
    attention: str = ""
    text: str = ""

    def with_part(self, part: str, other: Setup) -> Setup:
        if part in ("attention", "channels", "labels", "text"):
            name = "bgr" if part == "channels" else part
            return replace(self, **{name: getattr(other, name)})
        names = {"normalisation": ("mean", "std"), "crop": ("crop_pct",)}.get(part, (part,))
        taken = {name: getattr(other.preprocessing, name) for name in names}
        return replace(self, preprocessing=replace(self.preprocessing, **taken))

    def name(self, part: str) -> str:
        p = self.preprocessing
        if part == "normalisation":
            matches = (name for name, values in normalisations(p.channels).items() if _is_same(p, values))
            return next(matches, f"mean {few_numbers(p.mean)}, std {few_numbers(p.std)}")
        names = {"crop": f"{p.crop_pct:g}", "interpolation": p.interpolation, "channels": "BGR" if self.bgr else "RGB"}
        return {**names, "labels": self.labels, "attention": self.attention, "text": self.text}[part]

    def option(self, part: str) -> str:
        p = self.preprocessing
        if part == "normalisation":
            few = [values if len(set(values)) > 1 else values[:1] for values in (p.mean, p.std)]
            return "give --mean '{}' --std '{}'".format(*(" ".join(f"{v:.6g}" for v in values) for values in few))
        return {
            "channels": "swap the channels in a --arch FILE.py:FUNCTION of your own",
            "labels": "number the labels so in a --labels FILE.csv",
            "attention": f"give --attention {self.attention}",
            "text": f"give --text {self.text}",
            "crop": f"give --crop-pct {p.crop_pct:g}",
            "interpolation": f"give --interpolation {p.interpolation}",
        }[part]


def _is_same(p: Preprocessing, values: tuple[Sequence[float], Sequence[float]]) -> bool:
    pairs = zip((*p.mean, *p.std), (*values[0], *values[1]), strict=True)
    return all(abs(a - b) < _SAME * max(1.0, b) and abs(a - b) < 0.1 * max(a, b, _SAME) for a, b in pairs)


def alternatives(
    part: str, setup: Setup, numbered: Mapping[str, Sequence[int]], formulas: Sequence[str] = ()
) -> dict[str, Setup]:
    """Return a setup, first, and those that differ from it in one part, by the names of that part."""
    p = setup.preprocessing
    others = {
        "attention": [replace(setup, attention=name) for name in formulas],
        "normalisation": [
            replace(setup, preprocessing=replace(p, mean=values[0], std=values[1]))
            for values in normalisations(p.channels).values()
            if not _is_same(p, values)
        ],
        "crop": [replace(setup, preprocessing=replace(p, crop_pct=share)) for share in CROPS],
        "interpolation": [replace(setup, preprocessing=replace(p, interpolation=name)) for name in INTERPOLATIONS],
        "channels": [replace(setup, bgr=not setup.bgr)] if p.channels == 3 else [],
        "labels": [replace(setup, labels=name) for name in numbered],
        "text": [replace(setup, text=form) for form in FORMS if setup.text],
    }
    return {setup.name(part): setup} | {other.name(part): other for other in others[part]}


@dataclass(frozen=True)
class SetupFit(Fit):
    """One candidate of a part. p_value: of no difference from the one in use, corrected for the number of candidates;
    nan for that one.
    """

    setup: Setup
    p_value: float

    @property
    def does_the_same(self) -> bool:
        """Whether it is as good as the best, except for what does not matter."""
        return max(abs(self.ci_low), abs(self.ci_high)) <= ALIKE


@dataclass(frozen=True)
class PartFit:
    """The candidates of a part, best first, and a verdict. FITS: the one in use is the best, or does the same, and the
    others are significantly worse. That is a claim about all others at once, so it needs no correction (an
    intersection-union test: Berger, Technometrics 1982). BETTER, that another is significantly better, is about one of
    many: Holm's correction holds it to the level. Else UNKNOWN.
    """

    part: str
    rows: tuple[SetupFit, ...]
    in_use: str
    verdict: str

    @property
    def best(self) -> SetupFit:
        return self.rows[0]

    @property
    def used(self) -> SetupFit:
        return next(row for row in self.rows if row.name == self.in_use)

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows[1:] if not row.ci_low > 0)


def form_of(network: nn.Module, metadata: Mapping[str, object]) -> str:
    """Return the form of the sentences of a zero-shot head that may have another; empty where it is no question.
    metadata: of the model."""
    return str(metadata.get("text", WRITTEN)) if isinstance(network, ZeroShot) and network.forms else ""


class SearchWatch:
    """Hears how far a search is: how many answers may be needed for a while, and are there or are needed no longer."""

    def plan(self, answers: int) -> None: ...
    def begin(self, part: str, done: int) -> None: ...
    def advance(self, answers: int) -> None: ...


class Bench:
    """A model and some labelled images, which it is shown under one set-up after another. read: from a place and a
    preprocessing to pixels (3, H, W) uint8. count, reach: how many places there are, and can be read of the first.
    formulas: the network under others. Losses are kept; logits too, where `numbered`, for other numberings.
    """

    def __init__(
        self,
        network: nn.Module,
        read: Callable[[int, Preprocessing], Tensor],
        count: int,
        score: Score,
        batch_size: int,
        device: torch.device,
        *,
        reach: Callable[[int], int] | None = None,
        formulas: Formulas | None = None,
        numbered: bool = True,
    ) -> None:
        self.network, self.read, self.count, self.score = network, read, count, score
        self.device, self.batch_size, self.watch = device, batch_size, SearchWatch()
        self.reach = reach or (lambda end: min(end, self.count))
        self.formulas, self.numbered, self.forwards = formulas, numbered, 0
        self._losses: dict[Setup, Tensor] = {}
        self._logits: dict[Setup, Tensor] = {}

    def losses(self, setups: Sequence[Setup], end: int) -> list[Tensor]:
        """Return (n, 2) of each set-up on the first n places, at most `end`: NLL, and 1 where right. A set-up that
        shows the same pixels as the first one has its answers."""
        starts = [self.scored(setup) for setup in setups]
        for start in range(min(starts, default=end), end, self.batch_size):
            places = range(start, self.reach(min(start + self.batch_size, end)))
            pixels = dict[Preprocessing, Tensor]()
            for setup, count in zip(setups, starts, strict=True):
                part = range(max(count, start), places.stop)
                if part:
                    self._add(setup, setups[0], part, pixels if len(part) == len(places) else {})
        return [self._losses.get(setup, torch.empty(0, 2))[:end] for setup in setups]

    def scored(self, setup: Setup) -> int:
        """Return of how many places the losses are kept."""
        return len(self._losses.get(setup, ()))

    def logits(self, setup: Setup, end: int) -> Tensor:
        self.losses([setup], end)
        return self._logits[replace(setup, labels=AS_GIVEN)][:end]

    def _add(self, setup: Setup, first: Setup, places: range, pixels: dict[Preprocessing, Tensor]) -> None:
        key, rows = replace(setup, labels=AS_GIVEN), slice(places.start, places.stop)
        answers = self._logits.get(key, torch.empty(0))
        if len(answers) >= places.stop:
            logits = answers[rows]
        elif self._shows_the_same(setup, first, places, pixels):
            self._keep(self._losses, setup, self._losses[first][rows])
            if self.numbered:
                self._keep(self._logits, key, self._logits[replace(first, labels=AS_GIVEN)][rows])
            return
        else:
            logits = self._answer(setup, self._shown(setup, places, pixels))
            if self.numbered:
                self._keep(self._logits, key, logits)
        self._keep(self._losses, setup, self.score(logits, places, setup.labels).nan_to_num(nan=1e6, posinf=1e6))

    def _keep(self, store: dict[Setup, Tensor], setup: Setup, rows: Tensor) -> None:
        store[setup] = torch.cat([store[setup], rows]) if setup in store else rows
        if store is self._losses:
            self.watch.advance(len(rows))

    def _shows_the_same(self, setup: Setup, first: Setup, places: range, pixels: dict[Preprocessing, Tensor]) -> bool:
        """Whether a set-up differs from the first one in how images are resized, and these images do not."""
        alike = setup.with_part("crop", first).with_part("interpolation", first) == first
        if setup == first or not alike:
            return False
        return torch.equal(self._shown(setup, places, pixels), self._shown(first, places, pixels))

    def _shown(self, setup: Setup, places: range, pixels: dict[Preprocessing, Tensor]) -> Tensor:
        p = setup.preprocessing
        bare = replace(p, mean=(), std=())
        if bare not in pixels:
            pixels[bare] = torch.stack([self.read(place, p) for place in places]).to(self.device)
        return pixels[bare]

    def _answer(self, setup: Setup, pixels: Tensor) -> Tensor:
        p = setup.preprocessing
        mean, std = (torch.tensor(values, device=self.device).view(1, -1, 1, 1) for values in (p.mean, p.std))
        inputs = (unit_pixels(pixels) - mean) / std
        network = self.formulas.network(setup.attention) if self.formulas and setup.attention else self.network
        network = network.reading(setup.text) if isinstance(network, ZeroShot) and setup.text else network
        self.forwards += len(pixels)
        with torch.inference_mode():
            return network(inputs.flip(1) if setup.bgr else inputs).float().cpu()  # type: ignore[no-any-return]


def looks(first: int, last: int) -> list[int]:
    """Return the numbers of images after which candidates are compared: each twice the one before, then all."""
    ends = [first]
    while ends[-1] < last:
        ends.append(2 * ends[-1])
    return [*ends[:-1], last]


def fit_part(
    bench: Bench,
    part: str,
    setup: Setup,
    numbered: Mapping[str, Sequence[int]],
    guessing: float,
    level: float = 0.05,
    *,
    first: int = FIRST,
    glance: int = 0,
    most: int | None = None,
    least: float = 0.0,
    alike: float = ALIKE,
    hasty: bool = False,
) -> PartFit:
    """Compare the candidates of one part of a set-up, on twice as many images at each look, until all are settled.

    A candidate is settled, and dropped, where it is significantly worse than the one in use or equivalent to it. Once
    another is significantly better, those that are worse than that one are dropped.

    guessing: the NLL of a model that knows nothing, above which no candidate is believed. most: images. least: nats
    below which none is better. first: images of the first look. alike: nats within which two are equivalent. hasty:
    whether one that is better ends it, though others may be as good. glance: images after which all are dropped that
    are behind the one in use; there is no other look before the last.
    """
    candidates = alternatives(part, setup, numbered, bench.formulas.names if bench.formulas else ())
    used, staying, held = next(iter(candidates)), list(candidates), dict[str, Tensor]()
    last = min(most or bench.count, bench.count)
    ends = ([glance] if glance < last else []) + [last] if glance else looks(first, last)
    bench.watch.begin(part, sum(min(bench.scored(each), last) for each in candidates.values()))
    for end in ends:
        share = 1.0 if glance or end == last else end / sum(ends[:-1])
        held |= zip(staying, bench.losses([candidates[name] for name in staying], end), strict=True)
        fit = _judged(part, held, candidates, used, guessing, level * share, DOUBT * share, least)
        if len(held[used]) < end or _is_hopeless(held[fit.best.name], guessing, DOUBT * share):
            break
        leader = fit.best.name if fit.verdict == BETTER and not glance else used
        if glance:
            settled = [name for name in staying if held[name][:, 0].mean() > held[used][:, 0].mean()]
        else:
            within = alike / 2 if leader == used and end >= SURE else 0.0
            settled = [n for n in staying if _is_settled(held[n], held[leader], DOUBT * share, ALIKE, within)]
        staying = [name for name in staying if name in (used, leader) or name not in settled]
        if (hasty and leader != used) or (set(staying) == {used, leader} and (glance or end >= FEWEST)):
            break
    bench.watch.advance(sum(max(0, last - bench.scored(each)) for each in candidates.values()))
    return fit


def _is_hopeless(best: Tensor, guessing: float, level: float) -> bool:
    """Whether the best candidate is no better than guessing: significantly, or on as many images as are tried."""
    mean, low, _ = paired_interval(best[:, 0] - (guessing - ALIKE), level)
    return low > 0 or (len(best) >= HOPELESS and mean > 0)


def _is_settled(losses: Tensor, used: Tensor, level: float, least: float = 0.0, within: float = ALIKE) -> bool:
    """Whether a candidate is worse than another one by more than `least`, or equivalent `within` so many nats."""
    _, low, high = paired_interval(losses[:, 0] - used[: len(losses), 0], level)
    return low > least or max(abs(low), abs(high)) <= within


def _judged(
    part: str,
    held: Mapping[str, Tensor],
    candidates: Mapping[str, Setup],
    used: str,
    guessing: float,
    level: float,
    doubt: float,
    least: float,
) -> PartFit:
    """Return the candidates with a verdict. doubt: 1 minus the confidence with which the others must be worse."""
    count = len(held[used])
    best = min((name for name in held if len(held[name]) == count), key=lambda name: float(held[name][:, 0].mean()))
    others = [name for name in held if name != used]
    corrected = holm([_p_value(held[name][:, 0] - held[used][: len(held[name]), 0]) for name in others])
    p_values = {used: math.nan, **dict(zip(others, corrected, strict=True))}
    rows = [
        SetupFit(name, *fit_figures(losses, held[best]), candidates[name], p_values[name])
        for name, losses in held.items()
    ]
    rows.sort(key=lambda row: (row.name != best, row.n < count, row.difference))
    verdict = UNKNOWN
    if count >= FEWEST and rows[0].nll < guessing - ALIKE:
        in_use = next(row for row in rows if row.name == used)
        if not in_use.does_the_same and in_use.difference > least and rows[0].p_value < level:
            verdict = BETTER
        elif in_use.does_the_same and all(
            row.does_the_same or _is_settled(held[row.name], held[used], doubt) for row in rows if row is not in_use
        ):
            verdict = FITS
    return PartFit(part, tuple(rows), used, verdict)


def _p_value(differences: Tensor) -> float:
    values = differences.double().numpy()
    return of_means(0 * values, values, binary=False).p_value
