"""Plan a two-phase attack, choose the samples of the second phase, and attack them.

`autoattack(second=200)` becomes its first stages, and the rest on 200 of the samples that stand;
`autoattack(version=fast)` its stages with APGD, and the rest on a tenth of those that stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from ...common.determinism import SampleRng, draw_samples
from ...errors import ProtocolError, RunError
from ...evaluations.aggregate import readable_rows
from ...evaluations.attacks.evaluate import Options, build_attack, parse_condition
from ...evaluations.condition import Cost, kind_named
from ...evaluations.family import Evaluator, family_of
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.card import Card
from ...protocol.condition import Condition, split_condition
from ...runs.folder import RunFolder
from . import VOCABULARY, is_some, phases_of, two_phase_condition

_OWN = re.compile(r"\s*(first|second)\s*=([^,]*)")
_USUAL = {"first": "apgd-ce"}
_USUAL_OF_FAST = {"first": "apgd-pma+apgd-t", "second": "10%"}


def in_two_phases(item: str, card: Card, options: Options) -> Iterator[Condition]:
    """Yield the conditions of an attack that asks for a second phase; nothing for another. Raises ProtocolError."""
    name, arguments = split_condition(item)
    name = kind_named(name)
    parts = (arguments or "").split(",")
    stated = [(match[1], match[2].strip()) for part in parts if (match := _OWN.fullmatch(part))]
    parameters, what = dict(stated), f"condition {item!r}"
    others = [part for part in parts if part.strip() and not _OWN.fullmatch(part)]
    if name != "autoattack":
        if not parameters:
            return
        raise ProtocolError(f"{what}: first and second are of autoattack; leave them out of {name}")
    if len(parameters) < len(stated):
        raise ProtocolError(f"{what}: first or second is given twice; leave one of them out")

    def parsed(*more: str) -> Condition:
        return parse_condition(f"{name}({','.join([*others, *more])})", card, **options)

    whole = parsed()
    fast = dict(whole.parameters)["version"] == "fast"
    if not parameters and (not fast or dict(whole.parameters)["only"] or whole.on):
        return
    parameters = (_USUAL_OF_FAST if fast else _USUAL) | parameters
    m = parameters.get("second", "")
    if not is_some(m):
        expected = "how many samples, or a share of those that stand, such as second=200 or second=10%"
        raise ProtocolError(f"{what}: second is {m or 'missing'}; expected {expected}")
    if whole.engine != "robustkit":
        raise ProtocolError(f"{what}: engine {whole.engine} runs all stages at once; leave it out")
    if dict(whole.parameters).get("only"):
        raise ProtocolError(f"{what}: only leaves out stages that the second phase would run; leave it out")
    if whole.on:
        raise ProtocolError(f"{what}: on draws from all samples, second from those still correct; leave one out")
    every = getattr(build_attack(whole, card), "stage_names", ())
    first = parameters["first"]
    chosen = [stage for stage in every if stage in first.split("+")]
    rest = [stage for stage in every if stage not in chosen]
    if "+".join(chosen) != first or not (chosen and rest) or list(every[: len(chosen)]) != chosen:
        examples = "first=" + " or first=".join("+".join(every[:count]) for count in range(1, len(every)))
        raise ProtocolError(f"{what}: first is {first}; expected the stages that it begins with: {examples}")
    begin, end = (parsed(f"only={'+'.join(stages)}") for stages in (chosen, rest))
    yield begin
    yield two_phase_condition(begin, end, whole, first, f"{int(m[:-1])}%" if m.endswith("%") else str(int(m)))


class PhaseChoice(NamedTuple):
    """By sample id: those that the first phase broke, with the stage, and those drawn for the second."""

    fallen: dict[str, str]
    drawn: frozenset[str]


def choose(run: RunFolder, checkpoint: str, condition: Condition) -> PhaseChoice:
    """Return the choice for a checkpoint: m at random of those that stand, a smaller m part of a larger one.

    Raises RunError where records of the first phase are missing: who is drawn follows from all of them.
    """
    phases = phases_of(condition.text)
    assert phases is not None and condition.after is not None
    if missing := run.missing_units(checkpoint, condition.after.text):
        raise RunError(
            f"{run.path}: {missing} of {run.shard_count} shards of {checkpoint} under {condition.after.text} are "
            "missing, from which the second phase draws; compute them first"
        )
    read = readable_rows(run.table(checkpoint, condition.after.text, ("sample_id", "error", "correct", "broken_by")))
    fallen = read.filter(pa.compute.invert(read["correct"]))
    names = zip(fallen["sample_id"].to_pylist(), fallen["broken_by"].to_pylist(), strict=True)
    standing = read.filter(read["correct"])["sample_id"].to_pylist()
    m = phases.count_of(len(standing))
    return PhaseChoice(dict(names), draw_samples(standing, m, seed=run.manifest.seed, purpose="second phase"))


class TwoPhaseEvaluator(Evaluator):
    words, columns = VOCABULARY, {"drawn": pa.bool_()}

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        phases = phases_of(condition.text)
        assert condition.under is not None and phases is not None
        cost = family_of(condition.under.name).evaluator.cost(condition.under, card, classes)
        if phases.m.endswith("%"):
            cost *= phases.count_of(100) / 100  # of those that stand, which are all at most
        return replace(cost, at_most=True)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return what the phases said about those that fell and those drawn; the others have a null `correct`."""
        name, rest = subject.classifier.identity.name, condition.under
        assert subject.run is not None and rest is not None
        choice: PhaseChoice | None = subject.chosen.get(condition.text)
        if choice is None:
            choice = subject.chosen[condition.text] = choose(subject.run, name, condition)
        ids = [sample.id for sample in batch.samples]
        rows = [row for row, sample in enumerate(ids) if sample in choice.drawn]
        columns: dict[str, list[Any]] = {
            "sample_id": ids,
            "correct": [False if sample in choice.fallen else None for sample in ids],
            "broken_by": [choice.fallen.get(sample) for sample in ids],
            "drawn": [sample in choice.drawn for sample in ids],
        }
        if not rows:
            return Evaluation(columns)
        some = [batch.samples[row] for row in rows]
        truths = [batch.truths[row] for row in rows] if batch.truths else ()
        inputs = batch.inputs[torch.tensor(rows)]
        part = replace(batch, inputs=inputs, samples=some, truths=truths, keep=())
        rng, evaluator = subject.rng(some, rest), family_of(rest.name).evaluator
        done = subject.steadily(rest.text, rng, lambda: evaluator.evaluate(subject, part, rest, rng))
        for name, values in done.columns.items():
            column = columns.setdefault(name, [None] * len(ids))
            for row, value in zip(rows, values, strict=True):
                column[row] = value
        return replace(done, columns=columns, pictures={}, change=None)
