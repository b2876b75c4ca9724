"""A check, before an audit, of what nobody stated about a checkpoint: does another set-up fit the labels better?

Every part of a set-up is looked at on 16 images, which is enough to see a wrong one. The candidates of a part that was
only assumed are halved on more and more, until the data confirms it, contradicts it, or ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..attention.fingerprint import Formulas
from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset, Sample
from ..errors import BadImageError, ModelError, RobustkitError
from ..models.setup_check import (
    AS_GIVEN,
    BETTER,
    NORMALISATIONS,
    Bench,
    PartFit,
    Setup,
    alternatives,
    fit_part,
    form_of,
)
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..runs.progress import Progress
from .condition import Cost
from .setup_findings import DECISIVE, FEWEST
from .subject import Batch, EvaluatedModel, SampleSource

STATED, MOST, SCENES = 64, 1024, 32
"""Images that are looked at, class by class in turn, at most: for a part that is stated and for a crop, for attention
and normalisation that are assumed, and of a segmenter."""
FIRST = 16  # images on which every candidate is tried; those of a stated part, and of a crop, that are behind end there
FORMULAS = 5  # formulas of attention, about, that the tensors of a standard ViT allow besides its own
COST = Cost(len(NORMALISATIONS) + 1 + FORMULAS)
"""Of one of these images: each normalisation, the other order of the channels, each formula."""
CHECK = "set-up check"
_LEVEL = 0.01 / 3  # of attention, normalisation and channels
_MATTERS = 0.05  # nats by which another crop must be better to be named
_BATCH = 16


def unsuited_reason(dataset: Dataset, scenes: bool) -> str:
    """Return why these images cannot check a set-up; empty where they can. scenes: they are labelled by masks."""
    if len(dataset.samples) < FEWEST:
        return f"{len(dataset.samples)} images; at least {FEWEST} are needed"
    return "some images have no label" if not scenes and any(s.label < 0 for s in dataset.samples) else ""


class _Images:
    """The readable images of a run in the order in which they are looked at, read when they are needed."""

    def __init__(
        self,
        supply: SampleSource,
        preprocessing: Preprocessing,
        most: int,
        decoded: Callable[[Sequence[Sample]], list[tuple[Sample, Tensor]]],
        seed: int,
    ) -> None:
        self._left = supply.dataset.in_turns(seed).samples[:most]
        self.count, self.supply, self.preprocessing, self._decoded = len(self._left), supply, preprocessing, decoded
        self.samples: list[Sample] = []
        self.truths: list[Any] = []
        self._pixels: list[Tensor] = []

    def reach(self, end: int) -> int:
        """Read more images until there are `end`, or none are left; return how many there are, at most `end`."""
        while len(self.samples) < end and self._left:
            missing = end - len(self.samples)
            some, self._left = self._left[:missing], self._left[missing:]
            for sample, pixels in self._decoded(some):
                try:
                    truth = self.supply.locate(sample, pixels)
                except BadImageError:
                    continue
                self.samples.append(sample)
                self.truths.append(truth)
                self._pixels.append(pixels)
        return min(end, len(self.samples))

    def read(self, place: int, preprocessing: Preprocessing) -> Tensor:
        usual = self.preprocessing
        if (preprocessing.crop_pct, preprocessing.interpolation) == (usual.crop_pct, usual.interpolation):
            return self._pixels[place]
        sample = self.samples[place]
        return self.supply.dataset.pixels(sample, preprocessing)

    def batch(self, logits: Tensor, places: Sequence[int]) -> Batch:
        return Batch(logits, [self.samples[place] for place in places], [self.truths[place] for place in places])


def check_setup(
    run: RunFolder,
    subject: EvaluatedModel,
    supply: SampleSource,
    preprocessing: Preprocessing,
    decoded: Callable[[Sequence[Sample]], list[tuple[Sample, Tensor]]],
    progress: Progress,
) -> str:
    """Write which candidates of each part of the set-up are better than the one in use, as evidence on clean.

    decoded: reads the samples that can be read. Return why nothing was written: too few images could be read, or the
    network failed, as its records will say; empty where it was.
    """
    name = subject.classifier.identity.name
    scenes = "correct" not in subject.schema.names
    assumed = run.manifest.checkpoint(name).assumed
    most = SCENES if scenes else MOST if set(assumed) & set(DECISIVE) else STATED
    images = _Images(supply, preprocessing, most, decoded, run.manifest.seed)
    first = min(FIRST, images.count)
    progress.start(name, CHECK, first)
    readable = images.reach(FIRST)
    readable = images.reach(images.count) if readable < FIRST else readable
    failed = f"{readable} of {images.count} images could be read; at least {FEWEST} are needed"
    failed = _checked(run, subject, images, assumed, scenes) if readable >= FEWEST else failed
    progress.advance(first)
    return failed


def _checked(run: RunFolder, subject: EvaluatedModel, images: _Images, assumed: Sequence[str], scenes: bool) -> str:
    """Compare the candidates, and write what came out. Return why not; empty where it did."""
    classes = len(subject.valid) if subject.valid is not None else subject.classifier.identity.num_classes
    guessing, name = math.log(classes), subject.classifier.identity.name

    def score(logits: Tensor, places: Sequence[int], _: str) -> Tensor:
        if subject.valid is not None:
            logits = logits[:, list(subject.valid)]
        return _losses(subject.score(logits.to(subject.settings.device), images.batch(logits, places)))

    network, device = subject.classifier.network, subject.settings.device
    forms = _formulas(network)
    size, reach = 1 if scenes else min(_BATCH, subject.settings.batch_size), images.reach
    bench = Bench(network, images.read, images.count, score, size, device, reach=reach, formulas=forms, numbered=False)
    text = form_of(network, subject.classifier.identity.metadata)
    start = Setup(images.preprocessing, attention=forms.current if forms else "", text=text)
    rng = subject.rng(images.samples, CLEAN)
    try:
        fits = subject.steadily("set-up", rng, lambda: _fits(bench, start, assumed, scenes, guessing))
    except RobustkitError:
        raise
    except Exception as fault:  # a network may raise anything
        return f"the network failed ({type(fault).__name__})"
    ids, parts = [sample.id for sample in images.samples], [_figures(fit, guessing) for fit in fits]
    run.write_evidence(name, CLEAN.text, {"sample_ids": ids, "setup": parts, "forwards": bench.forwards})
    return ""


def _fits(bench: Bench, start: Setup, assumed: Sequence[str], scenes: bool, guessing: float) -> list[PartFit]:
    """Return what fits, part by part; a better candidate is taken for the other parts, and all are looked at again."""
    parts = [*(["attention"] if bench.formulas else []), "normalisation", "channels", *(["text"] if start.text else [])]
    parts += ["crop"] if "crop" in assumed and not scenes else []
    now, fits = start, dict[str, PartFit]()
    for _ in range(2):
        before = now
        for part in parts:
            options: dict[str, Any] = {"most": STATED, "glance": FIRST // 2 if scenes else FIRST}
            if part in assumed:
                options = {"hasty": True, "first": FIRST} if part in DECISIVE else options | {"least": _MATTERS}
            used = now.with_part(part, start)
            fits[part] = fit = fit_part(bench, part, used, {AS_GIVEN: ()}, guessing, _LEVEL, **options)
            now = fit.best.setup if fit.verdict == BETTER else used
        if before == start == now:
            break
    return [fits[part] for part in parts]


def _formulas(network: torch.nn.Module) -> Formulas | None:
    """Return the network under every formula that it takes; None for one whose attention takes none."""
    try:
        formulas = Formulas(network)
    except ModelError:
        return None
    return formulas if len(formulas.names) > 1 else None


def _losses(columns: dict[str, list[Any]]) -> Tensor:
    """Return (n, 2): the NLL of each sample, and the share of it that is right: all or nothing, except for pixels."""
    nll = [0.0 if value is None else value for value in columns["nll"]]
    right = columns.get("correct")
    if right is None:
        pairs = zip(columns["intersections"], columns["pixels"], strict=True)
        right = [sum(hits) / pixels if pixels else 0.0 for hits, pixels in pairs]
    return torch.tensor([nll, right], dtype=torch.float64).T


def _figures(fit: PartFit, guessing: float) -> dict[str, Any]:
    used, candidates = fit.used, alternatives(fit.part, fit.used.setup, {})
    as_good = [row for row in fit.rows if row is fit.best or row.does_the_same]
    names = list(candidates)
    best = min(as_good, key=lambda row: names.index(row.name) if row.name in names[1:] else len(names))
    best = fit.best if used in as_good else best  # the best known among those that do the same
    alike = [row for row in (fit.best, *fit.rows) if row.name in (fit.best.name, *fit.open)]
    alike = [row for row in dict.fromkeys(alike) if row is not used and row is not best]
    return {
        "part": fit.part,
        "verdict": fit.verdict,
        "in_use": used.name,
        "best": best.name,
        "n": used.n,
        **{name: getattr(used, name) for name in ("difference", "ci_low", "ci_high")},
        "remedy": best.setup.option(fit.part),
        "alike": [[row.name, row.setup.option(fit.part)] for row in alike],
        "same": used.does_the_same,
        "nll": best.nll,
        "guessing": guessing,
        "losses": {row.name: [row.n, row.nll] for row in fit.rows},
    }
