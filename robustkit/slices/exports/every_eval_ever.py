"""Results in the schema of Every Eval Ever (https://github.com/evaleval/every_eval_ever): its words, and files read.

`robustkit export` writes such files, and `robustkit compare --reference` reads them, its own and those of others. A
file may be anyone's, so it is bounded and checked. A figure is only taken where its condition, metric, unit and
direction are certain; the others are named.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...common.files import json_of, reason_of
from ...errors import RobustkitError, RunError
from ...evaluations.condition import check_condition, is_attack, kind_of
from ...evaluations.metrics import Metric
from ...results.published import Origin, Published, bounded_text, joined, meaning_of
from ...runs.manifest import Flag, ManifestPart, Number, Table, Text, TextTable, fault_of
from ...tasks.registry import find_metric, metrics

SCHEMA = "0.3.0"
LIBRARY = "robustkit"
NAME = "robustkit_metric"
"""The key of a metric's details that holds its name in summary.json."""
LARGEST, LONGEST = 16 << 20, 500  # bytes of a file, characters of a name
_FLAGS = 20  # that a figure keeps
_UNITS = {"nll": "nats"}
_DISTANCES = ("linf_max", "l2_max", "median_distance")


def metric_id(metric: Metric) -> str:
    """Return the type that the Hub knows a metric by, which others use, too; else a name of robustkit's own."""
    return f"{LIBRARY}.{metric.name}" if metric.hub is None else metric.hub[0]


def metric_unit(metric: Metric, space: str) -> str:
    """Return the unit of a metric's values as records have them; empty where it has none. space: the card's."""
    if metric.name in _DISTANCES:
        return "standard deviations" if space == "sigma" else "pixels in [0, 1]"
    return "proportion" if metric.scale == 100 else _UNITS.get(metric.name, "")


class _Config(ManifestPart, frozen=True):
    lower_is_better: Flag
    metric_id: Text = ""
    metric_name: Text = ""
    metric_unit: Text = ""
    max_score: Any = None
    additional_details: TextTable = msgspec.field(default_factory=dict)


class _Score(ManifestPart, frozen=True):
    score: Number
    uncertainty: Table = msgspec.field(default_factory=dict)
    details: Table = msgspec.field(default_factory=dict)


class _Data(ManifestPart, frozen=True):
    dataset_name: Text


class _Result(ManifestPart, frozen=True):
    evaluation_name: Text
    source_data: Annotated[_Data, Meta(description="a table")]
    metric_config: Annotated[_Config, Meta(description="a table")]
    score_details: Annotated[_Score, Meta(description="a table")]


class _Named(ManifestPart, frozen=True):
    name: Text
    id: Text = ""
    additional_details: TextTable = msgspec.field(default_factory=dict)


class _Source(ManifestPart, frozen=True):
    source_organization_name: Text


class _File(ManifestPart, frozen=True):
    schema_version: Text
    evaluation_id: Text
    source_metadata: Annotated[_Source, Meta(description="a table")]
    model_info: Annotated[_Named, Meta(description="a table")]
    eval_library: Annotated[_Named, Meta(description="a table")]
    evaluation_results: Annotated[tuple[_Result, ...], Meta(description="a list of tables")]


def read_evaluated(path: Path, where: str) -> Published:
    """Return the figures of a file, of which robustkit has conditions and metrics. where: the file, for messages.
    Raises RunError where it is no such file, too large or of another version."""
    held = _checked(path, where)
    taken: dict[tuple[str, str], float] = {}
    origins: dict[str, dict[str, Origin]] = {}
    lost, spelled = list[str](), dict[Hashable, str]()
    is_ours = held.eval_library.name == LIBRARY
    space = held.eval_library.additional_details.get("space", "") if is_ours else ""
    by_name = {metric_id(metric): metric for metric in reversed(metrics().values())} | metrics()
    for result in held.evaluation_results:
        config, condition = result.metric_config, result.evaluation_name
        called = f"{condition} {config.additional_details.get(NAME) or config.metric_id or config.metric_name}"
        metric = _metric(config, is_ours, by_name)
        if metric is None or (value := _value(result, metric, space)) is None or not _is_condition(condition):
            lost.append(bounded_text(called))
            continue
        condition = spelled.setdefault(meaning_of(condition), condition)
        if taken.setdefault(key := (condition, metric.name), value) != value:
            lost += [bounded_text(called)] * (1 if taken[key] != taken[key] else 2)
            taken[key] = float("nan")  # unlike each value that may still come
        else:
            origins.setdefault(condition, {})[metric.name] = _origin(result, is_ours)
    figures: dict[str, dict[str, float]] = {}
    for (condition, name), value in taken.items():
        if value == value:
            figures.setdefault(condition, {})[name] = value
    details = held.model_info.additional_details if is_ours else {}
    card = held.eval_library.additional_details.get("protocol") if is_ours else ""
    attention = bounded_text(details.get("attention") or held.model_info.id or held.model_info.name)
    unmatched = _line(where, lost, len(held.evaluation_results))
    return Published(
        path.name,
        bounded_text(held.model_info.name),
        bounded_text(f"{held.source_metadata.source_organization_name}, {held.evaluation_id}"),
        bounded_text(", ".join(dict.fromkeys(result.source_data.dataset_name for result in held.evaluation_results))),
        bounded_text(card or "an unknown protocol"),
        {attention: figures},
        in_full=True,
        origins=origins,
        unmatched=(unmatched,) if unmatched else (),
    )


def _origin(result: _Result, is_ours: bool) -> Origin:
    """Return what a file says about where a figure comes from. is_ours: else digests and flags mean something else."""
    score, data = result.score_details, result.source_data
    n, text = score.uncertainty.get("num_samples"), score.details.get("flags") if is_ours else None
    try:
        flags = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        flags = []
    texts = [bounded_text(flag) for flag in flags if isinstance(flag, str)] if isinstance(flags, list) else []
    digest = score.details.get("data_digest") if is_ours else None
    return Origin(
        bounded_text(data.dataset_name),
        bounded_text(digest) if isinstance(digest, str) else "",
        n if type(n) is int else 0,
        tuple(texts[:_FLAGS]),
    )


def _checked(path: Path, where: str) -> _File:
    try:
        data = json_of(path, LARGEST)
    except (OSError, ValueError) as fault:
        why = f"cannot be read ({reason_of(fault)})"
        raise RunError(f"{where}: {why}; expected a JSON file of Every Eval Ever") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, str) or version.rpartition(".")[0] != SCHEMA.rpartition(".")[0]:
        what = f"schema_version is {json.dumps(version)[:80]}" if isinstance(data, dict) else "not a JSON object"
        raise RunError(f"{where}: {what}; expected a file of Every Eval Ever, schema {SCHEMA}")
    try:
        return msgspec.convert(data, _File)
    except msgspec.ValidationError:
        raise RunError(f"{where}: {fault_of(data, _File)}, as in schema {SCHEMA} of Every Eval Ever") from None


def _is_condition(name: str) -> bool:
    """Whether a name means one condition, whatever the card."""
    if len(name) > LONGEST or (is_attack(kind_of(name)) and "(" not in name):
        return False
    try:
        check_condition(name)
    except RobustkitError:
        return False
    return True


def _metric(config: _Config, is_ours: bool, by_name: Mapping[str, Metric]) -> Metric | None:
    """Return the metric that a file means, if its direction is ours. by_name: also by `metric_id`."""
    if is_ours and (name := config.additional_details.get(NAME)):
        metric = find_metric(name)
    else:
        asked = (config.metric_id.removeprefix(f"{LIBRARY}."), config.metric_name)
        metric = next((by_name[each] for each in asked if each in by_name), None)
        if metric is None and config.metric_id.startswith(f"{LIBRARY}."):  # it may have a parameter
            metric = find_metric(asked[0])
    if metric is None or len(metric.name) > LONGEST:
        return None
    return metric if not metric.better or config.lower_is_better == (metric.better < 0) else None


def _value(result: _Result, metric: Metric, space: str) -> float | None:
    """Return a score in the unit of records; None where its unit is unclear, or it is no value of that metric."""
    config, unit, most = result.metric_config, metric_unit(metric, space), _whole(result.metric_config)
    usual = {1: unit, 100: "percent"}.get(most) if unit == "proportion" else unit
    stated = config.metric_unit or (None if metric.name in _DISTANCES else usual)
    if most is not None and (most <= 1 if stated == "percent" else stated == "proportion" and most > max(metric.ends)):
        return None  # a largest value that the unit contradicts
    if stated == unit:
        value = float(result.score_details.score)
    elif unit == "proportion" and stated == "percent":
        value = result.score_details.score / 100
    else:
        return None
    low, high = metric.ends
    return value if low <= value <= high else None


def _whole(config: _Config) -> Any:
    return config.max_score if isinstance(config.max_score, int | float) else None


def _line(where: str, lost: Sequence[str], of: int) -> str:
    if not of:
        return f"{where}: it has no figures"
    why = "the condition, the metric, its unit or its direction is unclear or none of robustkit's, or values differ"
    line = f"{where}: {len(lost)} of {of} figures are left out, since {why}"
    return f"{line}: {joined(lost)}" if lost else ""
