"""Evidence that an attack's result can be trusted: figures from the model on a few samples, as a file of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attacks import Attack

from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...errors import BadImageError
from ...models.batch_size import out_of_memory
from ...protocol.card import Card
from ...protocol.condition import Condition
from ...runs.folder import RunFolder
from ...runs.progress import Progress
from ..inputs import attacked_inputs
from ..subject import Batch, Subject
from .evaluate import build_attack
from .examining import examine, examine_again
from .gradient_masking import AFTERWARDS

SAMPLES = 32
"""The number of samples that the figures are measured on, spread evenly over the data set."""
_STRENGTH = ("fgsm", "spsa", "square", "fab", "pgd", "apgd", "autoattack")
_NONE_RIGHT = {AFTERWARDS: "no prediction is right"}
_CLOSELY = 8  # samples in a pass of what is taken again
_BATCH = 16  # with a graph in float32, next to an attack that may be in bfloat16


def needs_evidence(run: RunFolder, checkpoint: str, condition: Condition, card: Card) -> bool:
    """Whether figures are still to be taken for an attack whose result claims something."""
    taken = run.evidence(checkpoint, condition.text) if wants_evidence(condition, card) else {}
    return taken is None or "failed" in taken or _waits(taken)


def _waits(taken: Mapping[str, Any]) -> bool:
    """Whether figures were taken before an attack, and not yet after it."""
    return AFTERWARDS in (taken.get("unmeasured") or {})


def wants_evidence(condition: Condition, card: Card) -> bool:
    """Whether an attack's result claims something that evidence can speak of: those of our own engine.

    It does not if eps is 0, nor if the card lets the attack leave its own ball.
    """
    attack = build_attack(condition, card)
    if not isinstance(attack, Attack) or condition.engine != "robustkit":
        return False
    return attack.threat.eps > 0 and attack.radius and not attack.minimal and not attack.threat.cut_images


def bearing_evidence(conditions: Sequence[Condition], card: Card) -> list[Condition]:
    """Return the attacks on which evidence is taken: each AutoAttack, and otherwise the strongest attack per norm and
    eps, on clean images and on those of each corruption.

    The figures are the model's, the same for all attacks of one radius; an AutoAttack of that radius already has them.
    """
    wanted = [condition for condition in conditions if wants_evidence(condition, card)]
    best: dict[tuple[str, float | None, Condition | None], Condition] = {}
    for condition in wanted:
        key = condition.norm, condition.eps, condition.under
        if key not in best or _strength(condition) > _strength(best[key]):
            best[key] = condition
    return [attack for attack in wanted if attack.name == "autoattack" or attack in best.values()]


def _strength(condition: Condition) -> int:
    """Return the place of an attack among robustkit's own, the weakest first; -1 of a plug-in's."""
    return _STRENGTH.index(condition.name) if condition.name in _STRENGTH else -1


def gather_evidence(
    run: RunFolder,
    subject: Subject,
    dataset: Dataset,
    preprocessing: Preprocessing,
    condition: Condition,
    progress: Progress,
) -> None:
    """Write the figures of `examining.examine` for one checkpoint under one attack, unless no image can be read."""
    attack = build_attack(condition, subject.card)
    assert isinstance(attack, Attack)
    images, samples = _read(dataset, preprocessing)
    if not samples:
        return
    name = subject.classifier.identity.name
    size = min(subject.settings.batch_size, _BATCH)
    progress.start(name, f"evidence on {condition.text}", len(samples))
    rng = subject.rng(samples, condition)
    figures = None
    while figures is None:
        try:
            examined = partial(
                examine,
                subject.exact,  # low precision rounds as a defence would
                attacked_inputs(subject, Batch(torch.stack(images), samples), condition),
                subject.labels(samples),
                attack.threat,
                rng=rng,
                batch_size=size,
                attack=attack,
                surrogates=subject.exact.surrogates,
                brief=condition.name != "autoattack",
            )
            figures = subject.steadily(condition.text, rng, examined)
            figures["unmeasured"][AFTERWARDS] = figures["unasked"].pop(AFTERWARDS)  # a flag until it has ended
        except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
            if not out_of_memory(fault) or size == 1:
                # The attack itself will report what is wrong; if it does not, the lack of figures is a flag.
                figures = {"failed": f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"}
        size = max(1, size // 2)
    run.write_evidence(name, condition.text, {"sample_ids": [sample.id for sample in samples], **figures})
    progress.advance(len(samples))


def confirm_evidence(
    run: RunFolder, subject: Subject, dataset: Dataset, preprocessing: Preprocessing, condition: Condition
) -> None:
    """Add to the evidence on an attack the figures of `examining.examine_again`, which are taken when it has ended."""
    name = subject.classifier.identity.name
    figures = run.evidence(name, condition.text)
    if figures is None or not _waits(figures):
        return
    attack = build_attack(condition, subject.card)
    assert isinstance(attack, Attack)
    images, samples = _read(dataset, preprocessing)
    inputs = attacked_inputs(subject, Batch(torch.stack(images), samples), condition)
    rng, labels = subject.rng(samples, condition), subject.labels(samples)
    size = min(subject.settings.batch_size, _CLOSELY)
    again = partial(examine_again, subject.exact, inputs, labels, attack.threat, rng=rng, batch_size=size)
    del figures["unmeasured"][AFTERWARDS]
    try:
        figures |= subject.steadily(condition.text, rng, again) or {"unasked": {**figures["unasked"], **_NONE_RIGHT}}
    except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
        figures["unmeasured"][AFTERWARDS] = f"{type(fault).__name__}: {(str(fault).splitlines() or [''])[0]}"
    run.write_evidence(name, condition.text, figures)


def _read(dataset: Dataset, preprocessing: Preprocessing) -> tuple[list[Tensor], list[Sample]]:
    """Return the images and samples that the figures are measured on, of those that can be read."""
    samples, images = [], []
    for sample in spread(dataset.samples, SAMPLES):
        try:
            images.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
            samples.append(sample)
        except BadImageError:
            continue
    return images, samples


def spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return at most `count` samples at even distances."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]
