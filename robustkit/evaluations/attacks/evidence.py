"""Evidence that an attack's result can be trusted: figures from the model on a few samples, as a file of the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from attacks import Attack

from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...errors import BadImageError
from ...models.device import out_of_memory
from ...protocol.card import Card
from ...protocol.condition import Condition
from ...runs.folder import RunFolder
from ...runs.progress import Progress
from ..family import attacked_inputs
from ..subject import Batch, EvaluatedModel
from .evaluate import build_attack
from .examining import examine, examine_again, in_a_line
from .gradient_masking import AFTERWARDS

SAMPLES = 32  # the number of samples that the figures are measured on, spread evenly over the data set
_STRENGTH = ("fgsm", "spsa", "square", "fab", "pgd", "apgd", "autoattack")
_CLOSELY = 8  # samples in a pass of what is taken again
_BATCH = 16  # with a graph in float32, next to an attack that may be in bfloat16


def needs_evidence(run: RunFolder, checkpoint: str, condition: Condition, card: Card) -> bool:
    """Whether figures are still to be taken for an attack whose result claims something, before it or after."""
    taken = run.evidence(checkpoint, condition.text) if wants_evidence(condition, card) else {}
    return taken is None or "failed" in taken or AFTERWARDS in (taken.get("unmeasured") or {})


def wants_evidence(condition: Condition, card: Card) -> bool:
    """Whether evidence can speak of an attack's result: of our engine, with eps above 0, inside its own ball."""
    attack = build_attack(condition, card)
    if not isinstance(attack, Attack) or condition.engine != "robustkit":
        return False
    return attack.threat.eps > 0 and attack.radius and not attack.minimal and not attack.threat.cut_images


def bearing_evidence(conditions: Sequence[Condition], card: Card) -> list[Condition]:
    """Return the attacks with evidence: each AutoAttack, else the strongest per norm, eps and corruption.

    The figures are the model's, the same for all attacks of one radius; an AutoAttack of that radius already has them.
    """
    wanted = [condition for condition in conditions if wants_evidence(condition, card)]
    best: dict[tuple[str, float | None, Condition | None], Condition] = {}
    # A plug-in's attack is the weakest; of equally strong ones the first counts.
    strength = {name: place for place, name in enumerate(_STRENGTH)}
    for condition in sorted(wanted, key=lambda each: strength.get(each.name, -1), reverse=True):
        best.setdefault((condition.norm, condition.eps, condition.under), condition)
    return [attack for attack in wanted if attack.name == "autoattack" or attack in best.values()]


def gather_evidence(
    run: RunFolder,
    subject: EvaluatedModel,
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
    name, size = subject.classifier.identity.name, min(subject.settings.batch_size, _BATCH)
    progress.start(name, f"evidence on {condition.text}", len(samples))
    rng, figures = subject.rng(samples, condition), None
    while figures is None:
        try:
            exact, labels = subject.exact, subject.labels(samples)  # low precision rounds as a defence would
            inputs = attacked_inputs(subject, Batch(torch.stack(images), samples), condition)
            brief, around = condition.name != "autoattack", exact.surrogates
            asked = partial(examine, exact, inputs, labels, attack.threat, rng=rng, batch_size=size, brief=brief)
            figures = subject.steadily(condition.text, rng, partial(asked, attack=attack, surrogates=around))
            figures["unmeasured"][AFTERWARDS] = figures["unasked"].pop(AFTERWARDS)  # a flag until it has ended
        except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
            if not out_of_memory(fault) or size == 1:
                # The attack itself will report what is wrong; if it does not, the lack of figures is a flag.
                figures = {"failed": in_a_line(fault)}
        size = max(1, size // 2)
    run.write_evidence(name, condition.text, {"sample_ids": [sample.id for sample in samples], **figures})
    progress.advance(len(samples))


def confirm_evidence(
    run: RunFolder, subject: EvaluatedModel, dataset: Dataset, preprocessing: Preprocessing, condition: Condition
) -> None:
    """Add to the evidence on an attack the figures of `examining.examine_again`, which are taken when it has ended."""
    name = subject.classifier.identity.name
    figures = run.evidence(name, condition.text)
    if figures is None or AFTERWARDS not in (figures.get("unmeasured") or {}):
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
        none_right = {"unasked": {**figures["unasked"], AFTERWARDS: "no prediction is right"}}
        figures |= subject.steadily(condition.text, rng, again) or none_right
    except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
        figures["unmeasured"][AFTERWARDS] = in_a_line(fault)
    run.write_evidence(name, condition.text, figures)


def _read(dataset: Dataset, preprocessing: Preprocessing) -> tuple[list[Tensor], list[Sample]]:
    samples, images = [], []
    every, count = dataset.samples, min(SAMPLES, len(dataset.samples))
    for place in range(count):
        sample = every[place * len(every) // count]
        with suppress(BadImageError):
            images.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
            samples.append(sample)
    return images, samples
