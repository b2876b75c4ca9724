"""A cheap check, before an audit, that the normalisation and channel order in use are not beaten by another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset, Sample
from ..errors import RobustkitError
from ..models.setup_check import BETTER, Bench, PartFit, Screen, fit_part, spread_first
from ..models.setups import AS_GIVEN, NORMALISATIONS, Setup
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..runs.progress import Progress
from .cost import Cost
from .subject import Batch, Subject

SAMPLES = 64
"""Images that the check takes at most, at even distances."""
FEWEST = 10
"""Readable images below which nothing can be told, and nothing is computed."""
PARTS = ("normalisation", "channels")
FIRST = 16
"""Images on which every candidate is tried."""
COST = Cost(len(NORMALISATIONS) + 1)
"""Of one of these images: each normalisation, and the other order of the channels."""
CHECK = "set-up check"
_SCREEN = Screen(FIRST, 0.0, behind_used=True)
_LEVEL = 0.01 / len(PARTS)
_BATCH = 16


def unsuited(dataset: Dataset) -> str:
    """Return why the set-up cannot be checked on these images; empty where it can."""
    if len(dataset.samples) < FEWEST:
        return f"{len(dataset.samples)} images, and fewer than {FEWEST} tell nothing"
    return "some images have no label" if any(sample.label < 0 for sample in dataset.samples) else ""


def check_setup(
    run: RunFolder,
    subject: Subject,
    dataset: Dataset,
    preprocessing: Preprocessing,
    decoded: Callable[[Sequence[Sample]], list[tuple[Sample, Tensor]]],
    progress: Progress,
) -> str:
    """Write which candidates of normalisation and channel order are better than the one in use, as evidence on clean.

    A candidate that is not ahead on 16 images is dropped, so where nothing is wrong this costs ten clean passes over
    16 images. decoded: reads the samples that can be read. Return why nothing was written: too few images could be
    read, or the network failed, which its records will say more about; empty where it was.
    """
    name, count = subject.classifier.identity.name, min(SAMPLES, len(dataset.samples))
    progress.start(name, CHECK, min(FIRST, count))
    even = [dataset.samples[place * len(dataset.samples) // count] for place in range(count)]
    read = decoded(spread_first(even, FIRST))
    failed = f"{len(read)} of {count} images could be read, and fewer than {FEWEST} tell nothing"
    if len(read) >= FEWEST:
        failed = _checked(run, subject, read, preprocessing)
    progress.advance(min(FIRST, count))
    return failed


def _checked(
    run: RunFolder, subject: Subject, read: Sequence[tuple[Sample, Tensor]], preprocessing: Preprocessing
) -> str:
    """Compare the candidates, and write what came out. Return why not; empty where it did."""
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
    except Exception as fault:  # a network may raise anything
        return f"the network failed ({type(fault).__name__})"
    parts = [_figures(fit, guessing) for fit in found]
    name, ids = subject.classifier.identity.name, [sample.id for sample in samples]
    run.write_evidence(name, CLEAN.text, {"sample_ids": ids, "setup": parts})
    return ""


def _figures(fit: PartFit, guessing: float) -> dict[str, Any]:
    best, used = fit.best, fit.used
    alike = [row for row in fit.rows if row.name in fit.open and row is not used]
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
        "alike": [[row.name, row.setup.option(fit.part)] for row in alike],
        "same": used.does_the_same,
        "nll": best.nll,
        "guessing": guessing,
        "losses": {row.name: [row.n, row.nll] for row in fit.rows},
    }
