"""Evidence that an attack's result can be trusted: figures from the model on a few samples, as a file of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attacks import Attack

from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...errors import BadImageError
from ...evaluations.attacks.evaluate import attack_cost, build_attack
from ...evaluations.attacks.ranking import raised_by
from ...evaluations.condition import Cost
from ...evaluations.family import attacked_inputs
from ...evaluations.subject import Batch, EvaluatedModel
from ...models.device import out_of_memory
from ...protocol.card import Card
from ...protocol.condition import Condition
from ...runs.folder import RunFolder
from ...runs.progress import Progress
from .examining import CLOSELY, LEFT_OUT, Probe, examine, examine_before, in_a_line, probes_of
from .gradient_masking import AFTERWARDS, checks_of

SAMPLES = 32  # the most samples that the figures are measured on, spread evenly over the data set
FEWEST = 3  # samples, where not all checks fit; two, if so the first of them do, which find most
_CORE, _FIRST = 4, 2  # of the probes; without the second, the others say little
_SHARE = 0.25  # of the attacks' passes
_BATCH = 16  # with a graph in float32, next to an attack that may be in bfloat16


@dataclass(frozen=True)
class Extent:
    """How far evidence goes. samples: how many are looked at. left_out: checks that are not made. most: samples, and
    passes: of the model, that it may take; None: as many as all checks do. batch: images in a batch of the attack.
    """

    samples: int
    left_out: tuple[str, ...] = ()
    most: int = SAMPLES
    passes: int | None = None
    batch: int = 0

    def cost(self, condition: Condition) -> Cost:
        """Return what it costs, at least, as the passes of each sample."""
        every, left_out = probes_of(condition.name, self.batch), {*self.left_out}
        probes = (each for each in every if not each.checks or {*each.checks} - left_out)
        forwards, backwards = map(sum, zip(*(probe.passes(self.samples) for probe in probes), strict=True))
        return Cost(forwards, backwards) * (1 / max(1, self.samples))

    def of(self, condition: Condition, surrogates: int, batch: int) -> Extent:
        """Return it for a model with so many surrogates for its attention, and for batches that hold so many images."""
        whole = replace(self, batch=batch)
        return whole if self.passes is None else _within(self.passes, condition, self.most, batch, surrogates)

    @property
    def stated(self) -> dict[str, Any]:
        """What the file of the figures says about it; nothing where it is all."""
        whole = self.passes is None or (self.samples == self.most and not self.left_out)
        return {} if whole else {"quick": {"passes": self.passes, "left_out": [*self.left_out]}}


def _within(passes: int, condition: Condition, most: int, batch: int, surrogates: int = 0) -> Extent:
    """Return the most samples with all checks, or else a few with as many checks as fit, by their worth."""
    every = probes_of(condition.name, batch, surrogates)

    def fits(some: Sequence[Probe], samples: int) -> bool:
        return sum(sum(probe.passes(samples)) for probe in some) <= passes

    few = min(most, FEWEST)
    for samples in range(most, few - 1, -1):
        if fits(every, samples):
            return Extent(samples, (), most, passes, batch)
    pairs = [(_CORE, n) for n in range(few, 1, -1)] + [(1, n) for n in range(few, 0, -1)]
    samples = next((n for first, n in pairs if fits(every[:first], n)), 0)
    begun = next((n for n in (_FIRST, 1) if samples and fits(every[:n], samples)), 0)
    made = [*every[:begun]]
    for probe in every[_FIRST:] if begun == _FIRST else ():
        made += [probe] if fits([*made, probe], samples) else []
    left_out = dict.fromkeys(check for probe in every if probe not in made for check in probe.checks)
    return Extent(samples, tuple(left_out), most, passes, batch)


def extents(
    bearing: Mapping[Condition, Sequence[Condition]], card: Card, classes: int, samples: int, batch: int, how: str
) -> dict[Condition, Extent]:
    """Return how far the evidence on each attack goes; with `quick`, to a quarter of the passes of the attacks that it
    is about, on `samples` samples. bearing: of `bearing_evidence`. batch: images in a batch. how: quick or full.
    """
    most, batch = min(SAMPLES, samples), min(batch, samples)
    if how == "full":
        return {each: Extent(most, (), most, batch=batch) for each in bearing}
    limits = dict[Condition, Extent]()
    for bearer, about in bearing.items():
        costs = [(attack, attack_cost(attack, card, classes) + Cost()) for attack in about]
        passes = sum(
            min(attack.on or samples, samples) * cost.expected / cost.most * (cost.forwards + cost.backwards)
            for attack, cost in costs
        )
        limits[bearer] = _within(int(_SHARE * passes), bearer, most, batch)
    return limits


def needs_evidence(run: RunFolder, checkpoint: str, condition: Condition, extent: Extent) -> bool:
    """Whether figures are still to be taken for an attack whose result claims something, or of more than are there."""
    taken = run.evidence(checkpoint, condition.text)
    if taken is None or "failed" in taken or "awaited" in taken or AFTERWARDS in (taken.get("unmeasured") or {}):
        return True
    return "quick" in taken and (taken["quick"]["passes"] or 0) < (extent.passes or math.inf)


def take(
    run: RunFolder,
    subject: EvaluatedModel,
    dataset: Dataset,
    preprocessing: Preprocessing,
    condition: Condition,
    extent: Extent,
    progress: Progress,
    say: Callable[[str], None],
    before: bool,
) -> None:
    """Measure whether an attack's result can be trusted, and report what speaks against it. before: only what is
    measured before the attack, since the model may change meanwhile.
    """
    if before:
        look_before(run, subject, dataset, preprocessing, condition, extent)
        return
    gather_evidence(run, subject, dataset, preprocessing, condition, extent, progress)
    name, text = subject.classifier.identity.name, condition.text
    for flag in map(str, raised_by(checks_of(run.evidence(name, text) or {}))):
        say(f"⚑ {name}, {text}: {flag}")


_FAULTS = (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError)


def look_before(
    run: RunFolder,
    subject: EvaluatedModel,
    dataset: Dataset,
    preprocessing: Preprocessing,
    condition: Condition,
    extent: Extent,
) -> None:
    """Write, before an attack, the figures of `examining.examine_before`, which `gather_evidence` adds to its own."""
    batch = min(run.manifest.batch_size, condition.on or len(dataset.samples), len(dataset.samples))
    extent = extent.of(condition, len(subject.exact.surrogates), batch)
    images, samples = _read(dataset, preprocessing, extent.samples, CLOSELY)
    if not samples or AFTERWARDS in extent.left_out:
        return
    name, ids = subject.classifier.identity.name, [sample.id for sample in samples]
    evidence = run.evidence(name, condition.text) or {}
    if "awaited" in evidence and evidence["sample_ids"] == ids:
        return
    inputs, labels = attacked_inputs(subject, Batch(torch.stack(images), samples), condition), subject.labels(samples)
    rng, threat = subject.rng(samples, condition), _attack(condition, subject.card).threat
    size = min(subject.settings.batch_size, CLOSELY)
    asked = partial(examine_before, subject.exact, inputs, labels, threat, rng=rng, batch_size=size)
    try:
        figures = subject.steadily(condition.text, rng, asked)
    except _FAULTS as fault:  # the attack will report what is wrong; if it does not, this lack is a flag
        figures = {"failed": in_a_line(fault)}
    if run.evidence(name, condition.text) in (None, evidence):  # else another process has gone further
        run.write_evidence(name, condition.text, {"sample_ids": ids, "awaited": True, **figures})


def gather_evidence(
    run: RunFolder,
    subject: EvaluatedModel,
    dataset: Dataset,
    preprocessing: Preprocessing,
    condition: Condition,
    extent: Extent,
    progress: Progress,
) -> None:
    """Write the figures of `examining.examine` for one checkpoint after an attack, unless no image can be read."""
    attack, name, text = _attack(condition, subject.card), subject.classifier.identity.name, condition.text
    batch = min(run.manifest.batch_size, condition.on or len(dataset.samples), len(dataset.samples))
    extent = extent.of(condition, len(subject.exact.surrogates), batch)
    images, samples = _read(dataset, preprocessing, extent.samples)
    if not samples:
        if not extent.samples:
            run.write_evidence(name, text, {"sample_ids": [], "samples": 0, **extent.stated})
        return
    size, before = min(subject.settings.batch_size, _BATCH), run.evidence(name, text) or {}
    progress.start(name, f"evidence on {text}", len(samples))
    rng, figures = subject.rng(samples, condition), None
    while figures is None:
        try:
            exact, labels = subject.exact, subject.labels(samples)  # low precision rounds as a defence would
            inputs = attacked_inputs(subject, Batch(torch.stack(images), samples), condition)
            brief, around = condition.name != "autoattack", exact.surrogates
            asked = partial(examine, exact, inputs, labels, attack.threat, rng=rng, batch_size=size, brief=brief)
            asked = partial(
                asked,
                attack=attack,
                surrogates=around,
                left_out=extent.left_out,
                attack_batch=min(extent.batch, subject.settings.batch_size),
            )
            figures = _compared(before, subject.steadily(text, rng, asked))
        except _FAULTS as fault:
            if not out_of_memory(fault) or size == 1:
                # The attack itself will report what is wrong; if it does not, the lack of figures is a flag.
                figures = {"failed": in_a_line(fault)}
        size = max(1, size // 2)
    run.write_evidence(name, text, {"sample_ids": [sample.id for sample in samples], **figures, **extent.stated})
    progress.advance(len(samples))


def _compared(before: Mapping[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """Add what was measured before the attack to the figures of after it, or why it cannot be compared with them."""
    if figures["unasked"].get(AFTERWARDS) == LEFT_OUT:
        return figures
    del figures["unasked"][AFTERWARDS]
    if figures["has_gradient"] == 0:
        figures["unasked"][AFTERWARDS] = "outputs have no gradient path to the input"
    elif why := "it was not looked at before" if "awaited" not in before else before.get("failed"):
        figures["unmeasured"][AFTERWARDS] = why
    elif before.get("rise_before") is None or "rise_after" not in figures:
        figures["unasked"][AFTERWARDS] = "no prediction is right"
    return figures | {key: before[key] for key in ("rise_before", "passes_before") if key in before}


def _attack(condition: Condition, card: Card) -> Attack:
    attack = build_attack(condition, card)
    assert isinstance(attack, Attack)
    return attack


def _read(
    dataset: Dataset, preprocessing: Preprocessing, count: int, first: int | None = None
) -> tuple[list[Tensor], list[Sample]]:
    """Return `count` samples, spread evenly, with their images; the first few of them, without those that no one can
    read."""
    samples, images = [], []
    every = dataset.samples
    for place in range(count)[:first]:
        sample = every[place * len(every) // count]
        with suppress(BadImageError):
            images.append(dataset.pixels(sample, preprocessing))
            samples.append(sample)
    return images, samples
