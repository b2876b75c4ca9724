"""Find out which set-up a classifier fits: the one under which it predicts the labels best, part by part.

A model that is shown pixels in another normalisation, crop or channel order than in its training gives plausible, wrong
numbers. Its loss on labelled images distinguishes them, paired image by image. One part is varied at a time; where
another candidate is significantly better it is taken for the parts that follow, and all are looked at once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..attention.fingerprint import FEWEST, Fit, Formulas, fit_figures, paired_interval
from ..common.differences import holm, of_means
from ..common.preprocessing import IMAGENET, INCEPTION, Preprocessing, few_numbers
from ..data.class_names import class_names
from ..data.images import to_unit_range

AS_GIVEN = "as given"
PARTS = ("attention", "normalisation", "crop", "interpolation", "channels", "labels")
_CIFAR = (0.4914, 0.4822, 0.4465)
NORMALISATIONS = {  # Means and stds of [0, 1] by name; the last are those of EfficientNet-Lite, `to 255` those of Caffe
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
CROPS = (0.875, 0.9, 0.95, 1.0)
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest")
_SAME = 5e-4  # means and stds that differ by less are the same, written with fewer digits
T = TypeVar("T")
HOPELESS = 64  # Images after which nothing more is looked at where no candidate is better than guessing
LAST = 0.8  # The share of the level that the last of several looks has: there most runs are decided
FITS, BETTER, UNKNOWN = "fits", "another-fits-better", "inconclusive"
ALIKE = 0.02  # Nats by which losses may differ and still count as the same: 2 % of a likelihood
Score = Callable[[Tensor, Sequence[int], str], Tensor]
"""From logits (B, K), the places of their samples and a numbering of labels to (B, 2): NLL, and 1 where right."""


@dataclass(frozen=True)
class Setup:
    """What a model computes (attention) and is shown (bgr: channels reversed, normalised as such), and its labels."""

    preprocessing: Preprocessing
    bgr: bool = False
    labels: str = AS_GIVEN
    attention: str = ""

    def with_part(self, part: str, other: Setup) -> Setup:
        if part in ("attention", "channels", "labels"):
            name = "bgr" if part == "channels" else part
            return replace(self, **{name: getattr(other, name)})
        names = {"normalisation": ("mean", "std"), "crop": ("crop_pct",)}.get(part, (part,))
        taken = {name: getattr(other.preprocessing, name) for name in names}
        return replace(self, preprocessing=replace(self.preprocessing, **taken))

    def name(self, part: str) -> str:
        p = self.preprocessing
        if part == "normalisation":
            known = (name for name, values in NORMALISATIONS.items() if _is_same(p, values))
            return next(known, f"mean {few_numbers(p.mean)}, std {few_numbers(p.std)}")
        names = {"crop": f"{p.crop_pct:g}", "interpolation": p.interpolation, "channels": "BGR" if self.bgr else "RGB"}
        return {**names, "labels": self.labels, "attention": self.attention}[part]

    def option(self, part: str) -> str:
        p = self.preprocessing
        if part == "normalisation":
            few = [values if len(set(values)) > 1 else values[:1] for values in (p.mean, p.std)]
            return "give --mean '{}' --std '{}'".format(*(" ".join(f"{v:.6g}" for v in values) for values in few))
        return {
            "channels": "swap the channels in a --arch FILE.py:FUNCTION of your own",
            "labels": "number the labels so in a --labels FILE.csv",
            "attention": f"give --attention {self.attention}",
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
            for values in NORMALISATIONS.values()
            if not _is_same(p, values)
        ],
        "crop": [replace(setup, preprocessing=replace(p, crop_pct=share)) for share in CROPS],
        "interpolation": [replace(setup, preprocessing=replace(p, interpolation=name)) for name in INTERPOLATIONS],
        "channels": [replace(setup, bgr=not setup.bgr)],
        "labels": [replace(setup, labels=name) for name in numbered],
    }
    return {setup.name(part): setup} | {other.name(part): other for other in others[part]}


def label_numberings(names: Sequence[str], outputs: int) -> dict[str, list[int]]:
    """Return numberings by name, from labels of the data (classes `names`) to outputs of the model."""
    count = min(len(names), outputs)
    steps = {AS_GIVEN: 0, "label + 1": 1, "label - 1": -1}
    found = {name: [(label + step) % outputs for label in range(count)] for name, step in steps.items()}
    readable, plain = class_names(tuple(names[:count]), count), list(names[:count])
    alphabetical = _places([name.casefold() for name in readable])
    ranked = {"names in alphabetical order": alphabetical, "names, capitals first": _places(plain)}
    if all(name.isascii() and name.isdecimal() and len(name) < 10 for name in plain):
        ranked["names in the order of their numbers"] = _places([int(name) for name in plain])
    for name, places in ranked.items():
        if places not in found.values():
            found[name] = places
    return found


def _places(keys: Sequence[str] | Sequence[int]) -> list[int]:
    places = [0] * len(keys)
    for place, label in enumerate(sorted(range(len(keys)), key=lambda label: keys[label])):
        places[label] = place
    return places


@dataclass(frozen=True)
class SetupFit(Fit):
    """One candidate of a part. p_value: of no difference from the one in use, corrected for the number of candidates;
    nan for that one.
    """

    setup: Setup
    n: int
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
    def text(self) -> str:
        best, used, others = self.best, self.used, [row for row in self.rows if row.name != self.in_use]
        if self.makes_no_difference:
            return f"{self.part}: makes no difference on these images"
        if self.verdict == BETTER:
            alike = [name for name in self.open if name != used.name]
            return (
                f"WARNING: {self.part}: {best.name} fits better than {used.in_words}, which is in use; "
                f"{best.setup.option(self.part)}" + (f" (not significantly worse: {', '.join(alike)})" if alike else "")
            )
        if self.verdict == FITS:
            same = [row.name for row in others if row.does_the_same]
            behind = next((row for row in others if not row.does_the_same), None)
            return (
                f"{self.part}: {used.name} fits best and is in use"
                + (f"; {', '.join(same)} would be equivalent, within {ALIKE} of NLL" if same else "")
                + (f"; the next is {behind.in_words}" if behind is not None else "")
            )
        if best.n < FEWEST or used.name == best.name:
            open_ones = [name for name in self.open if name != used.name] or ["others"]
            return (
                f"{self.part}: inconclusive, {used.name} (in use) cannot be distinguished from {', '.join(open_ones)}"
            )
        return f"{self.part}: inconclusive, though {best.name} is ahead of {used.in_words}, which is in use"

    @property
    def makes_no_difference(self) -> bool:
        return all(row.ci_low == row.ci_high == 0 for row in self.rows)

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.rows[1:] if not row.ci_low > 0)


@dataclass(frozen=True)
class Screen:
    """When a candidate is dropped: after `samples`, `errors` standard errors behind the best, or the one in use."""

    samples: int = 32
    errors: float = 4.0
    behind_used: bool = False


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
        screen: Screen = Screen(),
        *,
        reach: Callable[[int], int] | None = None,
        formulas: Formulas | None = None,
        numbered: bool = True,
    ) -> None:
        self.network, self.read, self.count, self.score = network, read, count, score
        self.device, self.screen, self.batch_size = device, screen, batch_size
        self.reach = reach or (lambda end: min(end, self.count))
        self.formulas, self.numbered, self.forwards = formulas, numbered, 0
        self._losses: dict[Setup, Tensor] = {}
        self._logits: dict[Setup, Tensor] = {}

    def losses(self, setups: Sequence[Setup], end: int) -> list[Tensor]:
        """Return (n, 2) of each set-up on the first n places, at most `end`: NLL, and 1 where right."""
        kept = [self._losses.get(setup) for setup in setups]
        starts = [0 if part is None else len(part) for part in kept]
        end = self.reach(end)
        for start in range(min(starts, default=0), end, self.batch_size):
            places, pixels = range(start, min(start + self.batch_size, end)), dict[Preprocessing, Tensor]()
            for setup, own in zip(setups, starts, strict=True):
                if own < places.stop:
                    part = range(max(own, start), places.stop)
                    self._add(setup, part, pixels if len(part) == len(places) else {})
        return [self._losses[setup][:end] for setup in setups]

    def logits(self, setup: Setup) -> Tensor:
        self.losses([setup], self.count)
        return self._logits[replace(setup, labels=AS_GIVEN)]

    def _add(self, setup: Setup, places: range, pixels: dict[Preprocessing, Tensor]) -> None:
        key, before = replace(setup, labels=AS_GIVEN), self._losses.get(setup)
        known = self._logits.get(key)
        if known is not None and len(known) >= places.stop:
            logits = known[places.start : places.stop]
        else:
            logits = self._answer(setup, places, pixels)
            if self.numbered:
                self._logits[key] = logits if known is None else torch.cat([known, logits])
        scored = self.score(logits, places, setup.labels)
        self._losses[setup] = scored if before is None else torch.cat([before, scored])

    def _answer(self, setup: Setup, places: range, pixels: dict[Preprocessing, Tensor]) -> Tensor:
        p = setup.preprocessing
        bare = replace(p, mean=(), std=())
        if bare not in pixels:
            pixels[bare] = torch.stack([self.read(place, p) for place in places]).to(self.device)
        mean, std = (torch.tensor(values, device=self.device).view(1, -1, 1, 1) for values in (p.mean, p.std))
        inputs = (to_unit_range(pixels[bare]) - mean) / std
        network = self.formulas.network(setup.attention) if self.formulas and setup.attention else self.network
        self.forwards += len(places)
        with torch.inference_mode():
            return network(inputs.flip(1) if setup.bgr else inputs).float().cpu()  # type: ignore[no-any-return]


def fit_part(
    bench: Bench,
    part: str,
    setup: Setup,
    numbered: Mapping[str, Sequence[int]],
    guessing: float,
    level: float = 0.05,
    *,
    screen: Screen | None = None,
    looks: Sequence[int] = (),
    most: int | None = None,
    least: float = 0.0,
) -> PartFit:
    """Compare the candidates of one part of a set-up. guessing: the NLL of a model that knows nothing, above which no
    candidate is believed. looks: numbers of images after which it ends where decided, or drops candidates; the level is
    shared among them, mostly for the last (Bonferroni). most: images. least: nats below which none is better.
    """
    candidates = alternatives(part, setup, numbered, bench.formulas.names if bench.formulas else ())
    screen, used, names = screen or bench.screen, next(iter(candidates)), list(candidates)
    last = bench.count if most is None else min(most, bench.count)
    ends = [*(end for end in looks if screen.samples < end < last), last]
    held = dict(zip(names, bench.losses([*candidates.values()], screen.samples), strict=True))
    ahead = used if screen.behind_used else min(names, key=lambda name: float(held[name][:, 0].mean()))
    staying = [name for name in names if name == used or not _behind(held[name], held[ahead]) > screen.errors]
    for end in ends:
        if len(staying) > 1:
            held |= zip(staying, bench.losses([candidates[name] for name in staying], end), strict=True)
        share = 1.0 if len(ends) == 1 else LAST if end == last else (1 - LAST) / (len(ends) - 1)
        fit = _judged(part, held, candidates, used, guessing, level * share, 0.05 * share, least)
        hopeless = fit.used.n >= HOPELESS and fit.best.nll >= guessing
        if fit.verdict != UNKNOWN or hopeless or len(held[used]) < end:
            break
        staying = [n for n in staying if n == used or not _is_settled(held[n], held[used], 0.05 * share)]
    return fit


def _is_settled(losses: Tensor, used: Tensor, level: float) -> bool:
    _, low, high = paired_interval(losses[:, 0] - used[: len(losses), 0], level)
    return low > 0 or max(abs(low), abs(high)) <= ALIKE


def _behind(losses: Tensor, best: Tensor) -> float:
    differences = losses[:, 0] - best[:, 0]
    if len(differences) < 2:
        return 0.0
    error = float(differences.std()) / math.sqrt(len(differences))
    return float(differences.mean()) / error if error > 0 else 0.0


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
    finite = {name: losses.nan_to_num(nan=1e6, posinf=1e6) for name, losses in held.items()}
    whole = [name for name in finite if len(finite[name]) == count]
    best = min(whole, key=lambda name: float(finite[name][:, 0].mean()))
    others = [name for name in finite if name != used]
    corrected = holm([_p_value(finite[name][:, 0] - finite[used][: len(finite[name]), 0]) for name in others])
    p_values = {used: math.nan, **dict(zip(others, corrected, strict=True))}
    rows = [
        SetupFit(name, *fit_figures(losses, finite[best]), candidates[name], len(losses), p_values[name])
        for name, losses in finite.items()
    ]
    rows.sort(key=lambda row: (row.name != best, row.n < count, row.difference))
    verdict = UNKNOWN
    if count >= FEWEST and rows[0].nll < guessing - ALIKE:
        in_use = next(row for row in rows if row.name == used)
        if not in_use.does_the_same and in_use.difference > least and rows[0].p_value < level:
            verdict = BETTER
        elif in_use.does_the_same and all(
            row.does_the_same or _is_settled(finite[row.name], finite[used], doubt) for row in rows if row is not in_use
        ):
            verdict = FITS
    return PartFit(part, tuple(rows), used, verdict)


def _p_value(differences: Tensor) -> float:
    values = differences.double().numpy()
    return of_means(0 * values, values, binary=False).p_value


def spread_first(items: Sequence[T], count: int) -> list[T]:
    """Return items in an order whose first `count` are at even distances: those of a data set are sorted by class."""
    step = max(1, len(items) // count)
    return [items[place] for start in range(step) for place in range(start, len(items), step)]


def fit_setup(bench: Bench, setup: Setup, numbered: Mapping[str, Sequence[int]], guessing: float) -> list[PartFit]:
    """Return what fits, part by part in the order of `PARTS`; once one has a better candidate, all again under it."""
    now, found = setup, dict[str, PartFit]()
    parts = PARTS if bench.formulas else PARTS[1:]
    for _ in range(2):
        before = now
        for part in parts:
            used = now.with_part(part, setup)
            found[part] = fit = fit_part(bench, part, used, numbered, guessing)
            now = fit.best.setup if fit.verdict == BETTER else used
        if before == setup == now:
            break
    return [found[part] for part in parts]
