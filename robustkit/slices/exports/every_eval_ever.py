"""Results in the schema of Every Eval Ever (https://github.com/evaleval/every_eval_ever): files written, and read.

`robustkit export` writes such files, and `robustkit compare --reference` reads them, its own and those of others. A
file may be anyone's, so it is bounded and checked. A figure is only taken where its condition, metric, unit and
direction are certain; the others are named.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Hashable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...common.figure import Figure
from ...common.files import json_of, reason_of
from ...errors import NothingEvaluated, RobustkitError, RunError
from ...evaluations.condition import check_condition, is_attack, kind_of
from ...evaluations.metrics import Metric, is_finite
from ...results.published import Origin, Published, bounded_text, joined, meaning_of
from ...runs.folder import RunFolder, folder_name
from ...runs.manifest import (
    CheckpointEntry,
    Flag,
    Manifest,
    ManifestPart,
    Number,
    Table,
    Text,
    TextTable,
    digest_of,
    fault_of,
)
from ...tasks import find_metric, metric_of, metrics
from .card import caveats_of, checkpoint_entry, digest_named, facts, results_of

SCHEMA = "0.3.0"
LIBRARY = "robustkit"
NAME = "robustkit_metric"
"""The key of a metric's details that holds its name in summary.json."""
LARGEST, LONGEST = 16 << 20, 500  # bytes of a file, characters of a name
_FLAGS = 20  # that a figure keeps
_UNITS = {"nll": "nats"}
_DISTANCES = ("linf_max", "l2_max", "median_distance")
MADE_BY = "robustkit export"  # the mark of files, so that only files with it are ever overwritten
_UNKNOWN = "unknown"  # whose a model is of which the run does not say it
_LONGEST, _LONGEST_OF_ID = 40, 96  # characters of a folder; ids are looked for as they are
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def metric_id(metric: Metric) -> str:
    """Return the type that the Hub knows a metric by, which others use, too; else a name of robustkit's own."""
    return f"{LIBRARY}.{metric.name}" if metric.hub is None else metric.hub[0]


def metric_unit(metric: Metric, space: str) -> str:
    """Return the unit of a metric's values as records have them; empty where it has none. space: the card's."""
    if metric.name in _DISTANCES:
        return "standard deviations" if space == "sigma" else "pixels in [0, 1]"
    return "proportion" if metric.scale == 100 else _UNITS.get(metric.name, "")


# Files written


def check_id(option: str, name: str) -> None:
    if not _ID.fullmatch(name):
        raise RunError(f"{option} is {name[:200]!r}; expected ORG/NAME, as on the Hub")


def without_command(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of a checkpoint that say what the run lacks without the command that completes it, and its paths."""
    gap = document.get("unfinished")
    return {**document, **({} if gap is None else {"unfinished": gap.partition(";")[0]})}


def start_of(manifest: Manifest) -> datetime.datetime:
    """Return when a run was begun. Raises RunError where run.json has no time there."""
    try:
        started = datetime.datetime.fromisoformat(manifest.started)
    except ValueError:
        expected = "expected a time such as 2026-01-01T00:00:00+00:00"
        raise RunError(f"run.json: started is {manifest.started[:80]!r}; {expected}") from None
    return started if started.tzinfo else started.replace(tzinfo=datetime.timezone.utc)


def every_eval_ever(run: RunFolder, checkpoint: str | None, model_id: str | None) -> dict[str, str]:
    """Return a file for each checkpoint that has results, by its path in a datastore of Every Eval Ever."""
    is_one = checkpoint is not None or model_id is not None
    entries = (checkpoint_entry(run, checkpoint),) if is_one else run.manifest.checkpoints
    if model_id is not None:
        check_id("--model-id", model_id)
    files = {}
    for described in entries:
        try:
            document = without_command(facts(run, described, results_of(run, described.name)))
            log = _log(run, described, document, model_id or _model_id(described))
        except NothingEvaluated:
            if len(entries) == 1:
                raise
            continue
        path = _place(document["data"]["name"], log["model_info"]["id"], log["evaluation_id"])
        files[path] = json.dumps(log, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if not files:
        raise NothingEvaluated(f"{run.path} has no results; run the audit again to make them")
    return files


def _place(data: str, model: str, evaluation: str) -> str:
    """Return `data/<data set>/<developer>/<model>/<UUID>.json`, in names that every file system takes."""
    number = uuid.UUID(bytes=hashlib.sha256(evaluation.encode("utf-8", "replace")).digest()[:16], version=4)
    longest = _LONGEST if model.startswith(f"{_UNKNOWN}/") else _LONGEST_OF_ID
    names = _folder(data), *(_folder(part, longest) for part in model.split("/", 1))
    return "/".join(["data", *names, f"{number}.json"])


def before_submission(paths: Sequence[Path]) -> str:
    """Return in a line what files of Every Eval Ever lack for its datastore; empty where they lack nothing."""
    count = sum(path.suffix == ".json" and path.parent.parent.name == _UNKNOWN for path in paths)
    why = f"Every Eval Ever refuses models of unknown organisations ({count} of {len(paths)} files)"
    return f"{why}; give --model-id ORG/NAME before you submit them" if count else ""


def _folder(text: str, longest: int = _LONGEST) -> str:
    name = folder_name(text, longest) or "unnamed"
    return f"_{name}" if name.lower() == "data" else name  # "data" is the store's own folder


def _log(run: RunFolder, described: CheckpointEntry, document: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the results of a checkpoint in schema 0.3.0. Whatever is the same for all figures stands once, where the
    schema has a place for it; each figure has what it must not be shown without. document: as from `facts`. model:
    its id."""
    manifest, started = run.manifest, start_of(run.manifest)
    held = [document["deciding"], document["checkpoint"], document["started"], run.path.resolve().name]
    stable = digest_of(held)[:16]  # the same after the run was extended, so that its files are replaced
    every = [Figure.from_plain(row) for row in document["results"]]
    rows = [row for row in every if _is_shown(row)]
    if not rows:
        raise NothingEvaluated(f"{run.path}: no figure of {described.name} is finite; run the audit again to make some")
    left_out = [f"{row.condition} {row.metric}" for row in every if not _is_shown(row)]
    about = {"made_by": f"{MADE_BY} {metadata.version('robustkit-audit')}"}
    about |= {"left_out": json.dumps(left_out, ensure_ascii=False)} if left_out else {}
    about |= {"unfinished": document["unfinished"]} if "unfinished" in document else {}
    return {
        "schema_version": SCHEMA,
        "source_metadata": {
            "source_name": "RobustKit",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
            "additional_details": about,
        },
        "evaluation_id": f"{document['data']['name']}/{model}/{int(started.timestamp())}-{stable}",
        "evaluation_timestamp": started.isoformat(),
        "retrieved_timestamp": str(int(started.timestamp())),
        "model_info": _model(described, document, model),
        "eval_library": _library(manifest, described),
        "evaluation_results": [_result(manifest, document, row) for row in rows],
    }


def _is_shown(row: Figure) -> bool:
    """Whether a row has a value, one that its metric can have."""
    low, high = metric_of(row.metric).ends
    return row.is_finite and low <= row.value <= high


def _model_id(described: CheckpointEntry) -> str:
    """Return `organisation/name`, the organisation `unknown` where the run does not say whose it is, or the model is
    not as it was published."""
    kind, _, name = described.spec.partition(":")
    if _is_changed(described):
        kind = ""
    if kind == "hf-hub" and _ID.fullmatch(name):
        return name
    owner = {"timm": "timm", "zoo": LIBRARY}.get(kind, _UNKNOWN)
    return f"{owner}/{described.name if owner == _UNKNOWN else name}"


def _is_changed(described: CheckpointEntry) -> bool:
    """Whether an option gave a model an attention or a preprocessing that its checkpoint does not name."""
    sources = {"attention": described.attention_source, **described.origin}
    values = {"attention": described.attention, **described.to_plain()["preprocessing"]}
    names = [name for name, source in sources.items() if source == "option"]
    return any(described.metadata.get(name) != values.get(name) for name in names)


def _model(described: CheckpointEntry, document: Mapping[str, Any], model: str) -> dict[str, Any]:
    is_open = described.spec.partition(":")[0] in ("timm", "zoo") and not _is_changed(described)
    digests = {name.removeprefix("checkpoint_"): digest for name, digest in digest_named(document).items()}
    details = {
        "deployment_type": "unknown" if described.is_elsewhere else "self_deployed",
        "model_availability": "open_weights" if is_open else "unknown",
        **digests,
        "code_sha256": described.code_sha256,
        "arch": re.sub(r"^.*[/\\](?=[^/\\]*\.py:)", "", described.arch),  # of a file of code, its name alone
        "attention": described.attention,
        "attention_source": described.attention_source,
        "num_classes": str(described.num_classes),
        "setup": document["setup"],
    }
    values = {name: text for name, text in details.items() if text}
    return {"name": described.name, "id": model, "additional_details": values}


def _library(manifest: Manifest, described: CheckpointEntry) -> dict[str, Any]:
    card, deciding = manifest.protocol, manifest.deciding
    computed = {"dtype": deciding.dtype, "compile": str(deciding.compile).lower(), "device": manifest.device}
    details = {
        "protocol": card.tag,
        "protocol_digest": card.digest,
        "protocol_summary": card.summary,
        "space": card.space,
        "labels": card.labels,
        "seed": str(deciding.seed),
        **({} if described.is_elsewhere else computed),
        "versions": json.dumps(dict(manifest.versions), ensure_ascii=False),
    }
    details |= {"caveats": json.dumps(card.caveats, ensure_ascii=False)} if card.caveats else {}
    plugins = [plugin.identity for plugin in manifest.used_plugins]
    details |= {"plugins": json.dumps(plugins, ensure_ascii=False)} if plugins else {}
    return {"name": LIBRARY, "version": manifest.robustkit, "additional_details": details}


def _result(manifest: Manifest, document: Mapping[str, Any], row: Figure) -> dict[str, Any]:
    metric, condition = metric_of(row.metric), row.condition
    data = {"samples": str(manifest.data.n), "classes": str(manifest.data.classes), "layout": manifest.data.layout}
    further = {"flags": caveats_of(document, row), "heads": document["checkpoint"].get("heads")}
    return {
        "evaluation_result_id": f"{condition}#{row.metric}",
        "evaluation_name": condition,
        "source_data": {
            "dataset_name": document["data"]["name"],
            "source_type": "other",
            "additional_details": {**data, "digest": manifest.data.digest},
        },
        "metric_config": _metric(metric, manifest.protocol.space),
        "score_details": {
            "score": row.value,
            "uncertainty": {**_interval(row), "num_samples": row.n},
            "details": {
                "protocol": row.protocol,
                "protocol_digest": manifest.protocol.digest,
                "data_digest": manifest.data.digest,
                **{name: str(digest) for name, digest in digest_named(document).items()},
                "seed": str(manifest.deciding.seed),
                **{name: json.dumps(part, ensure_ascii=False) for name, part in further.items() if part},
            },
        },
    }


def _metric(metric: Metric, space: str) -> dict[str, Any]:
    low, high = (end if is_finite(end) else "Infinity" if end > 0 else "-Infinity" for end in metric.ends)
    unit, (_, within, of) = metric_unit(metric, space), metric.name.partition("(")
    return {
        "metric_id": metric_id(metric),
        "metric_name": metric.hub[1] if metric.hub else metric.word or metric.name,
        "metric_kind": metric.hub[0] if metric.hub else metric.name.partition("(")[0],
        **({"metric_unit": unit} if unit else {}),
        **({"metric_parameters": {"of": of.removesuffix(")")}} if metric.parametric and within else {}),
        "lower_is_better": metric.better < 0,
        "score_type": "continuous",
        "min_score": low,
        "max_score": high,
        "additional_details": {NAME: metric.name, **({} if metric.better else {"direction": "neither is better"})},
    }


def _interval(row: Figure) -> dict[str, Any]:
    """Return the interval, if there is one, with its method."""
    if not row.has_interval:
        return {}
    ends = {"lower": row.low, "upper": row.high, "confidence_level": 0.95, "method": row.interval}
    return {"confidence_interval": ends}


# Files read


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
        figure_name = f"{condition} {config.additional_details.get(NAME) or config.metric_id or config.metric_name}"
        metric = _metric_in(config, is_ours, by_name)
        if metric is None or (value := _value(result, metric, space)) is None or not _is_condition(condition):
            lost.append(bounded_text(figure_name))
            continue
        condition = spelled.setdefault(meaning_of(condition), condition)
        if taken.setdefault(key := (condition, metric.name), value) != value:
            lost += [bounded_text(figure_name)] * (1 if taken[key] != taken[key] else 2)
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


def _metric_in(config: _Config, is_ours: bool, by_name: Mapping[str, Metric]) -> Metric | None:
    """Return the metric that a file means, if its direction is ours. by_name: also by `metric_id`."""
    if is_ours and (name := config.additional_details.get(NAME)):
        metric = find_metric(name)
    else:
        names_here = (config.metric_id.removeprefix(f"{LIBRARY}."), config.metric_name)
        metric = next((by_name[each] for each in names_here if each in by_name), None)
        if metric is None and config.metric_id.startswith(f"{LIBRARY}."):  # it may have a parameter
            metric = find_metric(names_here[0])
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
