"""Open labelled images as a command asks for them, and say whose constants and textures corruptions have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.dataset import Dataset, open_dataset
from ..errors import DataError, NothingEvaluated, ProtocolError
from ..evaluations.attacks.on_corrupted import on_corrupted
from ..evaluations.corruptions.condition import Corrupted, corrupted_of, corruption_condition
from ..evaluations.corruptions.plan import CorruptedInputs, Plan
from ..evaluations.corruptions.tree import CorruptedTree
from ..models.identity import ModelIdentity
from ..protocol.condition import Condition


def labelled_data(
    data_dir: str | Path | CorruptedTree,
    identity: ModelIdentity,
    options: Mapping[str, Any],
    limit: int | None,
    ids: str | Path | None,
    seed: int,
    unlabelled: bool = False,
) -> Dataset:
    """Return the samples to evaluate a model on, with labels in its order of classes; unlabelled: or without any.

    Raises:
        DataError: the data set is unusable, has no labels, or its labels do not fit the model.
        NothingEvaluated: no sample is left.
    """
    if not str(data_dir):
        raise DataError("--data-dir is empty; give a folder, a zip, or embedded:shapes")
    classes = {"num_classes": identity.num_classes, "class_names": identity.class_names}
    if isinstance(data_dir, CorruptedTree):
        dataset = data_dir.dataset(**{**classes, **options})
    else:
        dataset = open_dataset(data_dir, **{**classes, **options})
    dataset = dataset.select(limit=limit, ids=None if ids is None else Path(ids), seed=seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{dataset.root}: no sample is left to evaluate; loosen --limit or --ids")
    if not unlabelled and any(sample.label < 0 for sample in dataset.samples):
        raise DataError(f"{dataset.root}: its images have no labels; give class folders or --labels FILE.csv")
    return dataset


def plan_attacked(attacked: Sequence[Condition], plan: Callable[[str], Plan], frost_dir: str | None) -> Plan:
    """Return attacks, those on corrupted images with the definition that the corruption alone has in this run.

    What the text of an attack says itself stays. plan: of corruptions, as `plan_corruptions`, from a list of them.
    frost_dir: of frost's photographs.

    Raises:
        ProtocolError, DataError: as `plan` does, or the corruption has no such definition.
    """
    conditions, digests, lines = list[Condition](), dict[str, str](), dict[str, None]()
    for condition in attacked:
        asked = None if condition.under is None else corrupted_of(condition.under)
        if asked is None:
            conditions.append(condition)
            continue
        texture = f",{asked.of_frost}" if asked.of_frost else ""
        planned = plan(f"{asked.name}(severity={asked.severity}{texture})")
        here = corruption_condition(_joined(asked, planned.conditions[0], frost_dir))
        conditions.append(attack := on_corrupted(condition, here))
        for digest in planned.inputs.digests.values():  # of frost
            digests[attack.text] = digest
        lines |= dict.fromkeys(planned.lines)
    return Plan(tuple(dict.fromkeys(conditions)), CorruptedInputs(digests), tuple(lines))


def _joined(asked: Corrupted, planned: Condition, frost_dir: str | None) -> Corrupted:
    """Return a corruption as it is planned, except for what was asked for and is not the usual."""
    usual, default = corrupted_of(planned), Corrupted(asked.name)
    assert usual is not None
    said = {key: getattr(asked, key) for key in ("preset", "variant")}
    joined = replace(usual, **{key: value for key, value in said.items() if value != getattr(default, key)})
    try:
        joined.make(frost_dir)
    except ValueError as fault:  # constants and a variant that do not go together
        raise ProtocolError(f"{joined.text}: {fault}") from None
    return joined
