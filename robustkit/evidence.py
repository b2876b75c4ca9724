"""Evidence that an attack's result can be trusted: figures from the model on a few samples, as a file of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from .condition import Condition
from .data import Dataset, Sample
from .errors import BadImageError, ModelError
from .images import to_pixels
from .masking import examine
from .preprocessing import Preprocessing
from .protocol import Card
from .records import Run, write_whole
from .runner import Progress, Subject

SAMPLES = 32
"""How many samples the figures are taken on, spread evenly over the data set."""


def needs_evidence(condition: Condition, card: Card) -> bool:
    """Whether figures are taken for this condition: for our own AutoAttack, where its result claims something.

    It does not where eps is 0, nor where the card lets the attack leave its own ball.
    """
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
            images.append(to_pixels(dataset.image(sample), preprocessing))
            samples.append(sample)
        except BadImageError:
            continue
    if not samples:
        return
    name = subject.classifier.identity.name
    progress.start(name, f"evidence on {condition.text}", len(samples))
    try:
        figures = examine(
            subject.exact,  # low precision rounds as a defence would
            subject.inputs(torch.stack(images)),
            subject.labels(samples),
            attack.threat,
            rng=subject.rng(samples, condition),
            batch_size=subject.settings.batch_size,
        )
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as fault:
        raise ModelError(
            f"{name} fails while evidence on {condition.text} is gathered: {type(fault).__name__}: "
            f"{(str(fault).splitlines() or [''])[0]}; --debug shows where"
        ) from fault
    text = json.dumps({"sample_ids": [sample.id for sample in samples], **figures}, ensure_ascii=False, indent=1)
    write_whole(run.evidence_path(name, condition.text), (text + "\n").encode())
    progress.advance(len(samples))


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` samples at even distances."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]
