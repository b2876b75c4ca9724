"""Open labelled images as a command asks for them; plan attacks on corrupted images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import UNSET

from ..common.finding import Finding
from ..common.preprocessing import Preprocessing
from ..data.channels import kind_of_values, one_grey
from ..data.dataset import Dataset, open_dataset
from ..data.in_memory import MemorySource
from ..errors import BadImageError, DataError, NothingEvaluated, PluginError, ProtocolError, unknown
from ..evaluations.attacks import EVERY_ATTACK, EVERY_DENSE_ATTACK, on_corrupted
from ..evaluations.condition import (
    EVERY_FAMILY,
    check_condition,
    is_attack,
    kind_named,
    kind_of,
    pattern_of,
    spelled_kind,
    vocabulary_of,
)
from ..evaluations.corruptions import Corrupted, Pictures, corrupted_of, corruption_condition
from ..evaluations.corruptions.plan import CorruptedInputs, InputPlan
from ..evaluations.corruptions.tree import CorruptedTree
from ..models.identity import ModelIdentity
from ..models.label_map import LEAVE_OUT
from ..protocol.condition import Condition, split_condition
from ..runs.manifest import CheckpointEntry


def options_asking(text: str) -> dict[str, str | bool]:
    """Return the options that ask for a condition, by field of a request; none for a family without one of its own."""
    kind = spelled_kind(*split_condition(text))
    if EVERY_FAMILY.plugin(kind) is not None:
        return {}
    if is_attack(kind) and kind not in (*EVERY_ATTACK, *EVERY_DENSE_ATTACK):
        names = {*EVERY_FAMILY, *EVERY_ATTACK, *EVERY_DENSE_ATTACK}
        remedy = "a plug-in's is installed, or given by --plugin FILE"
        raise ProtocolError(f"--evaluations {text}: " + unknown("condition", kind, names, remedy=remedy))
    check_condition(text)
    words = [*vocabulary_of(kind).command(pattern_of(text), pattern_of), "--"]
    asked = ((word, following) for word, following in pairwise(words) if word.startswith("--"))
    options: dict[str, str | bool] = {}
    for word, following in asked:
        options[word[2:].replace("-", "_")] = following.startswith("--") or following
    return options if "evaluations" not in options else {}


def evaluation_condition(text: str) -> Condition:
    """Return a condition of a family without options of its own. Raises PluginError for what is none."""
    name, inside = split_condition(text)
    kind = kind_named(name)
    made: object = vocabulary_of(kind).parse(text if name == kind else kind if inside is None else f"{kind}({inside})")
    if not isinstance(made, Condition) or (made.name, kind_of(made.text)) != (kind, kind):
        raise PluginError(f"--evaluations {text}: its plug-in makes {made!r} of it; expected a condition {kind}(...)")
    return made


def labelled_data(
    data_dir: str | Path | CorruptedTree,
    identity: ModelIdentity | CheckpointEntry,
    options: Mapping[str, Any],
    limit: int | None,
    ids: str | Path | None,
    seed: int,
    unlabelled: bool = False,
) -> Dataset:
    """Return samples for a model, labels in its order of classes, or none. Raises DataError, NothingEvaluated."""
    if not str(data_dir):
        raise DataError("--data-dir is empty; give a folder, a zip, or embedded:shapes")
    classes = {"num_classes": identity.num_classes, "class_names": identity.class_names}
    p = identity.preprocessing
    values = None if p.value_range in (None, UNSET) else (float(p.value_range[0]), float(p.value_range[1]))
    small = Preprocessing((16, 16), tuple(p.mean), tuple(p.std), value_range=values)
    if not small.is_rgb:
        classes["arrays"] = True
    if isinstance(identity.label_map, Mapping):
        leaves_out, border = identity.label_map["other_folders"] == LEAVE_OUT, identity.label_map["border"]
        if border and isinstance(data_dir, CorruptedTree):
            raise DataError(f"{data_dir.root}: a border of {border} pixels is cut off clean images, not off a tree")
        classes |= {"border": border, "named_only": leaves_out}
    if isinstance(data_dir, CorruptedTree):
        dataset = data_dir.dataset(**{**classes, **options})
    else:
        dataset = open_dataset(data_dir, **{**classes, **options})
    dataset = dataset.select(limit=limit, ids=None if ids is None else Path(ids), seed=seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{dataset.root}: no sample is left to evaluate; relax --limit or --ids")
    if not unlabelled and any(sample.label < 0 for sample in dataset.samples):
        raise DataError(f"{dataset.root}: its images have no labels; give class folders or --labels FILE.csv")
    note = check_channels(dataset, [small])
    return replace(dataset, notes=(*dataset.notes, *note))


def check_channels(dataset: Dataset, preprocessings: Iterable[Preprocessing]) -> tuple[str, ...]:
    """Return a note, which is a finding, where the range of 16 bits is assumed. Raise DataError where images have other
    channels or values than a model takes: where the first three fail, as one may be broken. Files are read as RGB for
    models of RGB, whatever they hold."""
    preprocessings = tuple(dict.fromkeys(preprocessings))
    for p in preprocessings:
        faults = list[str]()
        for sample in dataset.samples[:3] if not p.is_rgb or isinstance(dataset.source, MemorySource) else ():
            try:
                held = dataset.source.array(sample.id)
                if held is not None and (has := one_grey(held, p.channels).shape[2]) != p.channels:
                    raise DataError(f"image {sample.id} has {has} channels, and the model takes {p.channels}")
                dataset.pixels(sample, p)
                break
            except BadImageError as fault:
                faults.append(str(fault))
        else:
            if faults and not p.is_rgb:
                raise DataError(faults[0])
    wide = any(not p.is_rgb and p.value_range is None and _has_16_bits(dataset, p) for p in preprocessings)
    return (str(Finding.of("labels/range-assumed")),) if wide else ()


def _has_16_bits(dataset: Dataset, p: Preprocessing) -> bool:
    """Whether the first file that can be read has values of 16 bits."""
    for sample in dataset.samples[:3] if dataset.source.array(dataset.samples[0].id) is None else ():
        with suppress(BadImageError):
            return kind_of_values(dataset.read(sample), p.channels, sample.id) == "uint16"
    return False


def plan_attacked(attacked: Sequence[Condition], plan: Callable[[str], InputPlan], pictures: Pictures) -> InputPlan:
    """Return attacks, those on corrupted images with the definition that the corruption alone has in this run; what
    their own text says stays. plan: of a list of corruptions. Raises ProtocolError or DataError as `plan` does.
    """
    conditions, digests, lines = list[Condition](), dict[str, str](), dict[str, None]()
    for condition in attacked:
        asked = None if condition.under is None else corrupted_of(condition.under)
        if asked is None:
            conditions.append(condition)
            continue
        texture = f",{asked.textures}" if asked.textures else ""
        planned = plan(f"{asked.name}(severity={asked.severity}{texture})")
        here = corruption_condition(_joined(asked, planned.conditions[0], pictures))
        conditions.append(attack := on_corrupted(condition, here))
        for digest in planned.inputs.digests.values():  # of a texture
            digests[attack.text] = digest
        lines |= dict.fromkeys(planned.lines)
    return InputPlan(tuple(dict.fromkeys(conditions)), CorruptedInputs(digests), tuple(lines))


def _joined(asked: Corrupted, planned: Condition, pictures: Pictures) -> Corrupted:
    """Return a corruption as it is planned, except for what the request changes."""
    usual, default = corrupted_of(planned), Corrupted(asked.name)
    assert usual is not None
    options = {key: getattr(asked, key) for key in ("preset", "variant")}
    joined = replace(usual, **{key: value for key, value in options.items() if value != getattr(default, key)})
    try:
        joined.make(pictures)
    except ValueError as fault:  # constants and a variant that do not go together
        raise ProtocolError(f"{joined.text}: {fault}") from None
    return joined
