"""Search for the attention formula and the set-up that given weights fit: those under which labels are predicted best.

A checkpoint loads under a wrong formula without an error and gives plausible, wrong numbers. Its clean NLL on labelled
images distinguishes the formulas; the comparison is paired, image by image, so a few hundred images are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...attention.apply import get_attention
from ...attention.fingerprint import FEWEST, Fit, Formulas, fit_figures
from ...common.preprocessing import Preprocessing
from ...data.class_names import class_names
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...data.scenes import LabelledScenes, read_whole
from ...display.progress import Bars
from ...errors import BadImageError, ModelError, NothingEvaluated
from ...evaluations.setup_findings import other_order
from ...models.identity import Classifier
from ...models.setup_check import (
    ALIKE,
    AS_GIVEN,
    BETTER,
    FITS,
    Bench,
    PartFit,
    SearchWatch,
    Setup,
    alternatives,
    fit_part,
    form_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.progress import TaskID

MOST = 512  # Images that are looked at, class-balanced: enough to tell what matters, and few enough to be held
PARTS = ("normalisation", "crop", "interpolation", "channels", "labels", "text")
_OPTIONS = ("(scale=mean)", "(average=median)", "(scale=mean,average=median)")
VARIANTS = {name: tuple(name + options for options in _OPTIONS) for name in ("elliptical", "elliptical-quest")}
"""What released code has of a formula with the same tensors and other logits. quest's eps is seen by zero rows alone,
and qk-rms without a scale is qk-l2, or on keys quest, except for the eps."""


def unranked_reason(model: Classifier) -> str:
    """Return why no attention formulas can be ranked; empty where they can."""
    try:
        get_attention(model.network)
    except ModelError as error:
        return str(error)
    return ""


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (n, 2) float64: NLL, and 1 where right; for labels of pixels means over those that are not negative."""
    nll = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none", ignore_index=-1).double()
    right = (logits.argmax(dim=1) == labels).double()
    if labels.ndim == 1:
        return torch.stack((nll, right), dim=1).cpu()
    pixels = (labels >= 0).flatten(1).sum(dim=1)
    means = torch.stack([part.flatten(1).sum(dim=1) / pixels for part in (nll, right)], dim=1)
    return means.cpu()


def label_numberings(names: Sequence[str], outputs: int) -> dict[str, list[int]]:
    """Return numberings by name, from labels of the data (classes `names`) to outputs of the model."""
    count = min(len(names), outputs)
    steps = {AS_GIVEN: 0, "label + 1": 1, "label - 1": -1}
    numberings = {name: [(label + step) % outputs for label in range(count)] for name, step in steps.items()}
    readable, plain = class_names(tuple(names[:count]), count), list(names[:count])
    alphabetical = _places([name.casefold() for name in readable])
    ranked = {"names in alphabetical order": alphabetical, "names, capitals first": _places(plain)}
    if all(name.isascii() and name.isdecimal() and len(name) < 10 for name in plain):
        ranked["names in the order of their numbers"] = _places([int(name) for name in plain])
    for name, places in ranked.items():
        if places not in numberings.values():
            numberings[name] = places
    return numberings


def _places(keys: Sequence[str] | Sequence[int]) -> list[int]:
    places = [0] * len(keys)
    for place, label in enumerate(sorted(range(len(keys)), key=lambda label: keys[label])):
        places[label] = place
    return places


def fit_setup(
    bench: Bench, setup: Setup, numbered: Mapping[str, Sequence[int]], guessing: float, most: int | None = None
) -> list[PartFit]:
    """Return what fits, part by part in the order of `PARTS`; once one has a better candidate, all again under it."""
    now, fits = setup, dict[str, PartFit]()
    parts = [part for part in PARTS if part != "text" or setup.text]
    tried = sum(len(alternatives(part, setup, numbered)) for part in parts)
    for _ in range(2):
        before = now
        bench.watch.plan(tried * min(most or bench.count, bench.count))
        for part in parts:
            used = now.with_part(part, setup)
            fits[part] = fit = fit_part(bench, part, used, numbered, guessing, most=most)
            now = fit.best.setup if fit.verdict == BETTER else used
        if before == setup == now:
            break
    return [fits[part] for part in parts]


def makes_no_difference(fit: PartFit) -> bool:
    return all(row.ci_low == row.ci_high == 0 for row in fit.rows)


def verdict_text(fit: PartFit) -> str:
    """Return the verdict on a part of a set-up in words."""
    best, used, others = fit.best, fit.used, [row for row in fit.rows if row.name != fit.in_use]
    if makes_no_difference(fit):
        return f"{fit.part}: makes no difference on these images"
    if fit.verdict == BETTER:
        alike = [name for name in fit.open if name != used.name]
        return (
            f"WARNING: {fit.part}: {best.name} fits better than {_in_words(used)}, which is in use; "
            f"{best.setup.option(fit.part)}" + (f" (not significantly worse: {', '.join(alike)})" if alike else "")
        )
    if fit.verdict == FITS:
        same = [row.name for row in others if row.does_the_same]
        behind = next((row for row in others if not row.does_the_same), None)
        return (
            f"{fit.part}: {used.name} fits best and is in use"
            + (f"; {', '.join(same)} would be equivalent, within {ALIKE} of NLL" if same else "")
            + (f"; the next is {_in_words(behind)}" if behind is not None else "")
        )
    if best.n < FEWEST or used.name == best.name:
        open_ones = [name for name in fit.open if name != used.name] or ["others"]
        return f"{fit.part}: inconclusive, {used.name} (in use) cannot be distinguished from {', '.join(open_ones)}"
    return f"{fit.part}: inconclusive, though {best.name} is ahead of {_in_words(used)}, which is in use"


def _in_words(row: Fit) -> str:
    interval = f"95 % interval {row.ci_low:+.3f} to {row.ci_high:+.3f}"
    return f"{row.name} (NLL {row.difference:+.3f}, {interval})"


@dataclass(frozen=True)
class Fingerprint:
    """All formulas that the weights allow, best first."""

    rows: tuple[Fit, ...]
    best: str
    declared: str
    verdict: str  # fits or another-fits-better, where the second is significantly worse, or inconclusive
    text: str  # the verdict in words
    n: int
    left_out: tuple[str, ...]  # formulas that need parameters which the model does not have
    source: str = "declared"  # or `assumed`, where nothing says which formula it is


def _family(name: str) -> str:
    return name.partition("(")[0]


def variants_of(families: Iterable[str], tried: Collection[str]) -> list[str]:
    """Return the variants of the families of these formulas that have not been tried."""
    kin = dict.fromkeys(map(_family, families))
    return [name for family in kin for name in VARIANTS.get(family, ()) if name not in tried]


def rank_formulas(bench: Bench, setup: Setup, guessing: float, source: str = "declared") -> Fingerprint:
    """Rank the formulas of attention by clean NLL. The variants of a family are ranked where it leads, or is the
    model's own. source: who said which formula it has now: `declared` or `assumed`. NothingEvaluated without images."""
    formulas = bench.formulas
    assert formulas is not None
    if not bench.reach(1):
        raise NothingEvaluated("no image to test the attention formulas on; give --data-dir with labelled images")
    bench.watch.plan(len(formulas.names) * bench.count)
    fit = fit_part(bench, "attention", setup, {}, guessing, alike=0.0)
    if more := variants_of((fit.best.name, formulas.current), formulas.names):
        formulas.names += more
        bench.watch.plan(len(formulas.names) * bench.count)
        fit = fit_part(bench, "attention", setup, {}, guessing, alike=0.0)
    tables = {row.name: bench.losses([row.setup], row.n)[0] for row in fit.rows}
    return judge_formulas(tables, formulas.current, formulas.left_out, guessing, source)


def judge_formulas(
    fits: dict[str, Tensor], declared: str, left_out: tuple[str, ...], guessing: float, source: str = "declared"
) -> Fingerprint:
    """Rank the formulas by (n, 2) tables of NLL and 1 where right; above the NLL of `guessing` none is believed. Those
    that were dropped earlier have shorter tables, and are compared with the best on the images that they have.

    Variants of the best one that are not significantly worse fit as well as it does: the verdict is on the others.
    """
    n, verdict = max(map(len, fits.values())), "inconclusive"
    best = min((name for name in fits if len(fits[name]) == n), key=lambda name: float(fits[name][:, 0].mean()))
    compared = [Fit(name, *fit_figures(table, fits[best])) for name, table in fits.items()]
    rows = tuple(sorted(compared, key=lambda row: (row.name != best, row.n < n, row.difference)))
    kin = [row for row in rows[1:] if _family(row.name) == _family(best)]
    alike = [row for row in kin if not row.ci_low > 0]
    right = declared in (best, *(row.name for row in alike))
    rival = next((row for row in rows[1:] if (row not in kin if right else row.name == declared)), None)
    parts = [f"{n} images"]
    if rows[0].nll >= guessing:
        parts.append(
            f"the model is no better than chance under any formula (NLL {rows[0].nll:.2f}, chance {guessing:.2f}); "
            "check the labels, --mean and --std"
        )
    elif rival is None or n < FEWEST or not rival.ci_low > 0:
        ahead = "" if rival is None or n < 2 else f", though {best} is ahead of {_in_words(rival)}"
        parts.append(
            f"inconclusive: the images do not show which attention the weights were trained with{ahead}; "
            "give more images"
        )
    elif right:
        verdict = "fits"
        place = "the next of another family" if kin else "the next"
        parts.append(f"{declared} attention fits best, as {source}; {place} is {_in_words(rival)}")
    else:
        verdict = "another-fits-better"
        parts.append(
            f"WARNING: {best} attention fits these weights better than {_in_words(rival)}, which is {source}; "
            f"check --attention: the wrong formula gives wrong results without an error"
        )
    if alike and verdict != "inconclusive":
        others = [row.name for row in (rows[0], *alike) if row.name != (declared if right else best)]
        parts.append(f"its options are not confirmed; as good on these images: {', '.join(others)}")
    if left_out:
        parts.append(f"not ranked, since their parameters are missing: {', '.join(left_out)}")
    if not any(name.startswith("softcap") for name in fits):
        parts.append("softcap is not ranked: below its cap, its logits equal those of standard")
    return Fingerprint(rows, best, declared, verdict, ". ".join(parts), n, left_out, source)


class _Images:
    """The readable images of a data set, class by class in turn, each read when it is first asked about. look: returns
    pixels (3, H, W) under a preprocessing, and the truth. held: how many are kept, besides those of the last batch."""

    def __init__(
        self,
        dataset: Dataset,
        preprocessing: Preprocessing,
        seed: int,
        look: Callable[[Sample, Preprocessing], tuple[Tensor, Tensor]],
        held: int,
        batch_size: int,
    ) -> None:
        self.bare, self.bad, self.samples = _bare(preprocessing), list[str](), list[Sample]()
        self.count, self._left = len(dataset.samples), iter(dataset.in_turns(seed).samples)
        self._look, self._kept = look, dict[int, tuple[Tensor, Tensor]]()
        self._held, self._batch = held, batch_size

    def reach(self, end: int) -> int:
        """Read more images until there are `end`, or none are left; return how many there are, at most `end`."""
        while len(self.samples) < end and (sample := next(self._left, None)) is not None:
            try:
                pixels, truth = self._look(sample, self.bare)
            except BadImageError as fault:
                self.bad.append(str(fault))
                continue
            if not (truth >= 0).any():  # no pixel counts
                continue
            self._kept[len(self.samples)] = pixels, truth
            self.samples.append(sample)
            if (old := len(self.samples) - self._batch - 1) >= self._held:
                self._kept.pop(old, None)
        return min(end, len(self.samples))

    def read(self, place: int, preprocessing: Preprocessing) -> Tensor:
        is_same = _bare(preprocessing) == self.bare
        return self._own(place)[0] if is_same else self._look(self.samples[place], preprocessing)[0]

    def truths(self, places: Sequence[int]) -> Tensor:
        return torch.stack([self._own(place)[1] for place in places])

    def _own(self, place: int) -> tuple[Tensor, Tensor]:
        return self._kept.get(place) or self._look(self.samples[place], self.bare)


def _pixels(
    dataset: Dataset, held: Callable[[Sample], Image], sample: Sample, preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    rgb = preprocessing.is_rgb
    pixels = to_pixels(held(sample), preprocessing, sample.id) if rgb else dataset.pixels(sample, preprocessing)
    return pixels, torch.tensor(sample.label)


def _scene(scenes: LabelledScenes, sample: Sample, _: Preprocessing) -> tuple[Tensor, Tensor]:
    """Return a whole image and its labels (H, W)."""
    pixels = read_whole(scenes.dataset, sample)
    return pixels, torch.from_numpy(scenes.labels(sample, (pixels.shape[1], pixels.shape[2]))).long()


def _bare(preprocessing: Preprocessing) -> Preprocessing:
    return replace(preprocessing, mean=(0.0,) * preprocessing.channels, std=(1.0,) * preprocessing.channels)


class _Shown(SearchWatch):
    """A bar of the answers that there are, of those that may be needed."""

    def __init__(self, bars: Bars, name: str) -> None:
        self.bars, self.name = bars, name
        self.task: TaskID | None = None
        bars.overall = bars.time_left

    def plan(self, answers: int) -> None:
        self.task = self.bars.begin([self.name], answers, self.task)

    def begin(self, part: str, done: int) -> None:
        if self.task is not None:
            self.bars.update(self.task, stage=part)
        self.advance(done)

    def advance(self, answers: int) -> None:
        if self.task is not None:
            self.bars.advance(self.task, answers)


class SetupSearch:
    """A model, on its device, and labelled images, on which formulas and set-ups are compared: what it answers to an
    image under one of them is kept for the others."""

    def __init__(self, model: Classifier, data: Dataset | LabelledScenes, batch_size: int, seed: int) -> None:
        self.model, preprocessing, classes = model, model.identity.preprocessing, model.identity.num_classes
        formulas = None if unranked_reason(model) else Formulas(model.network)
        self.guessing, self.setup = (
            math.log(classes),
            Setup(
                preprocessing,
                attention=formulas.current if formulas else "",
                text=form_of(model.network, model.identity.metadata),
            ),
        )
        if isinstance(data, LabelledScenes):
            look, most, batch_size, dataset, numbered = partial(_scene, data), 0, 1, data.dataset, {}
        else:
            picture = lru_cache(batch_size)(data.image)
            look, most, dataset = partial(_pixels, data, picture), MOST, data
            numbered = label_numberings(data.class_names, classes)
        self.images, self.numbered = _Images(dataset, preprocessing, seed, look, most, batch_size), numbered
        self.bench = Bench(
            model.network,
            self.images.read,
            self.images.count,
            self._score,
            batch_size,
            model.mean.device,
            reach=self.images.reach,
            formulas=formulas,
            numbered=bool(numbered),
        )

    def _score(self, logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        labels = self.images.truths(places)
        return losses_of(logits, torch.tensor(self.numbered[order])[labels] if self.numbered else labels)

    def show(self, bars: Bars | None) -> None:
        """Show in bars, if there are any, how far a search is."""
        self.bench.watch = SearchWatch() if bars is None else _Shown(bars, self.model.identity.name)

    def rank(self) -> Fingerprint:
        """Rank the formulas of attention, on all images if they do not decide it earlier."""
        source = "assumed" if self.model.identity.attention_source == "default" else "declared"
        return rank_formulas(self.bench, self.setup, self.guessing, source)

    def fit(self, attention: str = "") -> tuple[list[PartFit], list[str]]:
        """Return what fits, part by part, and lines on it. attention: the formula, if it is not the model's own."""
        if not self.bench.reach(1):
            return [], ["set-up: inconclusive, no image could be read"]
        start = replace(self.setup, attention=attention) if attention else self.setup
        fits = fit_setup(self.bench, start, self.numbered, self.guessing, MOST)
        final = fits[-1].used.setup  # under what the other parts have found
        end = self.bench.reach(min(MOST, self.bench.count))
        nll = float(self.bench.losses([final], end)[0][:, 0].mean())
        lines = [verdict_text(fit) for fit in fits]
        if min([nll, *(fit.best.nll for fit in fits if fit.best.name != fit.in_use)]) >= self.guessing:
            lines = [
                f"set-up: inconclusive, no candidate is better than chance (NLL {nll:.2f}, chance "
                f"{self.guessing:.2f}); check the labels and the weights"
            ]
        if fits[-1].verdict != BETTER:
            predictions = self.bench.logits(final, end).argmax(dim=1)
            labels = self.images.truths(range(end))
            lines += map(str, other_order(labels.numpy(), predictions.numpy()))
        return fits, lines
