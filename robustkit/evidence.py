"""Evidence that an attack's result can be trusted: figures from the model on a few samples, as a file of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from .batching import out_of_memory
from .condition import Condition
from .data import Dataset, Sample
from .errors import BadImageError
from .images import to_pixels
from .masking import examine
from .preprocessing import Preprocessing
from .protocol import Card
from .records import Run, write_whole
from .runner import Progress
from .subject import Subject

SAMPLES = 32
"""How many samples the figures are taken on, spread evenly over the data set."""
_BATCH = 16  # with a graph in float32, beside an attack that may be in bfloat16


def needs_evidence(run: Run, checkpoint: str, condition: Condition, card: Card) -> bool:
    """Whether figures are still to be taken: for our own AutoAttack, where its result claims something.

    It does not where eps is 0, nor where the card lets the attack leave its own ball.
    """
    if "failed" not in (run.evidence(checkpoint, condition.text) or {"failed": ""}):
        return False
    attack = condition.attack(card)
    own = condition.name == "autoattack" and condition.engine == "robustkit"
    return own and attack is not None and attack.threat.eps > 0 and not attack.threat.cut_images


def gather_evidence(
    run: Run,
    subject: Subject,
    dataset: Dataset,
    preprocessing: Preprocessing,
    condition: Condition,
    progress: Progress,
) -> None:
    """Write the figures of `masking.examine` for one checkpoint under one attack, unless no image can be read."""
    attack = condition.attack(subject.card)
    assert attack is not None
    samples, images = [], []
    for sample in spread(dataset.samples, SAMPLES):
        try:
            images.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
            samples.append(sample)
        except BadImageError:
            continue
    if not samples:
        return
    name = subject.classifier.identity.name
    size = min(subject.settings.batch_size, _BATCH)
    progress.start(name, f"evidence on {condition.text}", len(samples))
    rng = subject.rng(samples, condition)
    figures = None
    while figures is None:
        try:
            with subject.steady(rng):
                figures = examine(
                    subject.exact,  # low precision rounds as a defence would
                    subject.inputs(torch.stack(images)),
                    subject.labels(samples),
                    attack.threat,
                    rng=rng,
                    batch_size=size,
                )
        except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
            if not out_of_memory(fault) or size == 1:
                # The attack itself will say what is wrong; if it does not, the lack of figures is a flag.
                figures = {"failed": f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"}
        size = max(1, size // 2)
    text = json.dumps({"sample_ids": [sample.id for sample in samples], **figures}, ensure_ascii=False, indent=1)
    write_whole(run.evidence_path(name, condition.text), (text + "\n").encode())
    progress.advance(len(samples))


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` samples at even distances."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]
