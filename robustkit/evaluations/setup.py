"""A cheap check, before an audit, that the normalisation and channel order in use are not beaten by another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset, Sample
from ..data.images import to_pixels
from ..errors import BadImageError, RobustkitError
from ..models.setup_check import BETTER, Bench, PartFit, Screen, fit_part, spread_first
from ..models.setups import AS_GIVEN, Setup
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from .subject import Batch, Subject

SAMPLES = 64
"""Images that the check takes at most, at even distances."""
FEWEST = 10
"""Readable images below which nothing can be told, and nothing is computed."""
PARTS = ("normalisation", "channels")
_SCREEN = Screen(16, 0.0, behind_used=True)
_LEVEL = 0.01 / len(PARTS)
_BATCH = 16


def check_setup(run: RunFolder, subject: Subject, dataset: Dataset, preprocessing: Preprocessing) -> None:
    """Write which candidates of normalisation and channel order are better than the one in use, as evidence on clean.

    A candidate that is not ahead on 16 images is dropped, so where nothing is wrong this costs nine clean passes over
    16 images. Nothing is written where the images are too few, or where the network fails: its records will say so.
    """
    read: list[tuple[Sample, Tensor]] = []
    count = min(SAMPLES, len(dataset.samples))
    even = [dataset.samples[place * len(dataset.samples) // count] for place in range(count)]
    for sample in spread_first(even, _SCREEN.samples):
        try:
            read.append((sample, to_pixels(dataset.image(sample), preprocessing, sample.id)))
        except BadImageError:
            continue
    if len(read) < FEWEST or any(sample.label < 0 for sample, _ in read):
        return
    samples = [sample for sample, _ in read]

    def score(logits: Tensor, places: Sequence[int], _: str) -> Tensor:
        some = [samples[place] for place in places]
        if subject.valid is not None:
            logits = logits[:, list(subject.valid)]
        columns = subject.score(logits, Batch(logits, some))
        return torch.tensor([columns["nll"], columns["correct"]], dtype=torch.float64).T

    network, device = subject.classifier.network, subject.settings.device
    size = min(_BATCH, subject.settings.batch_size)
    bench = Bench(network, lambda place, _: read[place][1], len(read), score, size, device, _SCREEN)
    guessing = math.log(len(subject.valid) if subject.valid is not None else subject.classifier.identity.num_classes)
    rng = subject.rng(samples, CLEAN)

    def fits() -> list[PartFit]:
        now, found = Setup(preprocessing), list[PartFit]()
        for part in PARTS:
            found.append(fit_part(bench, part, now, {AS_GIVEN: ()}, guessing, _LEVEL))
            now = found[-1].best.setup if found[-1].verdict == BETTER else now
        return found

    try:
        found = subject.steadily("set-up", rng, fits)
    except RobustkitError:
        raise
    except Exception:  # a network may raise anything
        return
    name = subject.classifier.identity.name
    parts = [_figures(fit) for fit in found]
    run.write_evidence(name, CLEAN.text, {"sample_ids": [sample.id for sample in samples], "setup": parts})


def _figures(fit: PartFit) -> dict[str, Any]:
    best, used = fit.best, fit.used
    return {
        "part": fit.part,
        "verdict": fit.verdict,
        "in_use": used.name,
        "best": best.name,
        "n": used.n,
        "difference": used.difference,
        "ci_low": used.ci_low,
        "ci_high": used.ci_high,
        "remedy": best.setup.option(fit.part),
        "losses": {row.name: [row.n, row.nll] for row in fit.rows},
    }
