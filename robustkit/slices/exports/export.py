"""Write a run's results in the forms that others read: Every Eval Ever, the Hub's, CSV, or a tracker.

All is made from records. The files are the same bytes for the same run, and hold no path of the machine that made it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ...common.figure import COLUMNS, Figure
from ...errors import NothingEvaluated, RunError, unknown
from ...evaluations.metrics import Metric, is_finite
from ...protocol.condition import CLEAN
from ...report.card import MADE_BY as CARD
from ...report.card import (
    caveats_of,
    checkpoint_entry,
    digest_named,
    facts,
    folder_of,
    hub_metrics,
    model_index,
    results_of,
    write_files,
    yaml_text,
)
from ...results.survey import summary_csv
from ...runs.folder import RunFolder, folder_name
from ...runs.manifest import CheckpointEntry, Manifest, digest_of
from ...tasks.registry import metric_of
from ...tasks.task import task_of
from . import FORMATS
from .every_eval_ever import LIBRARY, NAME, SCHEMA, metric_id, metric_unit
from .loggers import LOGGERS, log_run, parse_loggers

MADE_BY = "robustkit export"  # the mark of files, so that only files with it are ever overwritten
_UNITS = {"pixels": "pixels in [0, 1]", "normalised": "normalised units", "sigma": "standard deviations of a channel"}
_UNKNOWN = "unknown"  # whose a model is of which the run does not say it
_LONGEST, _LONGEST_OF_ID = 40, 96  # characters of a folder; ids are looked for as they are
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def export_run(
    run: RunFolder,
    format: str,
    *,
    out: Path | None = None,
    checkpoint: str | None = None,
    model_id: str | None = None,
    dataset_id: str | None = None,
    task_ids: Sequence[str] = (),
    to: str | None = None,
) -> list[Path]:
    """Write the results of a run in one of `FORMATS`; return the paths of files, none for a tracker.

    out: a folder; `export` in the run if left out. checkpoint: only this one. model_id: what the
    model of one checkpoint is called, as `ORG/NAME`, for `every-eval-ever`. dataset_id: of the benchmark on the Hub, as
    `ORG/NAME`, for `hf-eval-results`. task_ids: its tasks, as `CONDITION=ID`, or `ID` for clean samples; only these
    conditions are written then. to: the folder, URI or project of a tracker, as after the colon of `report --log`.

    Raises:
        RunError: an unknown format or checkpoint, an option that the format has no use for or lacks, or a file that
            exists and is not of robustkit. ProtocolError: a tracker that is not installed. NothingEvaluated: no figure.
    """
    if format not in FORMATS:
        raise RunError(unknown("format", format, FORMATS))
    if dataset_id is None and format == "hf-eval-results":
        raise RunError(f"{format} needs the benchmark's data set on the Hub; give --dataset-id ORG/NAME")
    idle = {
        "--out": out is not None and format in LOGGERS,
        "--to": to is not None and format not in LOGGERS,
        "--model-id": model_id is not None and format != "every-eval-ever",
        "--dataset-id": dataset_id is not None and format != "hf-eval-results",
        "--task-id": bool(task_ids) and format != "hf-eval-results",
    }
    if option := next((name for name, is_idle in idle.items() if is_idle), None):
        raise RunError(f"{option}: {format} has no use for it; leave it out")
    only = None if checkpoint is None else checkpoint_entry(run, checkpoint).name
    if format in LOGGERS:
        loggers = parse_loggers([format if to is None else f"{format}:{to}"])
        log_run(run, results_of(run, only), loggers)
        return []
    folder = folder_of(run, "export", out)
    if format == "csv":
        text = summary_csv(results_of(run, only))
        return write_files(folder, {"results.csv": text}, ",".join(COLUMNS))
    if format == "every-eval-ever":
        return write_files(folder, _every_eval_ever(run, checkpoint, model_id), MADE_BY)
    described = checkpoint_entry(run, checkpoint)
    document = facts(run, described, results_of(run, described.name))
    if format == "model-index":
        return write_files(folder, {"metadata.yml": model_index(document)}, CARD)
    text = _hub_results(run.manifest, _without_command(document), str(dataset_id), task_ids)
    return write_files(folder, {".eval_results/robustkit.yaml": text}, MADE_BY)


def _check_id(option: str, name: str) -> None:
    if not _ID.fullmatch(name):
        raise RunError(f"{option} is {name[:200]!r}; expected ORG/NAME, as on the Hub")


def _without_command(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of a checkpoint that say what the run lacks without the command that completes it, and its paths."""
    gap = document.get("unfinished")
    return {**document, **({} if gap is None else {"unfinished": gap.partition(";")[0]})}


# The Hub's .eval_results


def _hub_results(manifest: Manifest, document: Mapping[str, Any], dataset: str, task_ids: Sequence[str]) -> str:
    """Return `.eval_results/*.yaml` as the Hub specifies it: for each condition the figure that its task leads with.
    The Hub holds one value for each task of a benchmark; others are in the other formats."""
    _check_id("--dataset-id", dataset)
    headline = task_of(manifest).headline_metric
    leading = [each for each in hub_metrics(document) if headline.hub and each["type"] == headline.hub[0]]
    figures = {each["args"]["condition"]: each for each in leading}  # of SEA's the last, which is the worst case
    if not figures:
        raise NothingEvaluated(f"{document['checkpoint']['name']} has no {headline.word}, which the Hub's results hold")
    entries = [
        {
            "dataset": {"id": dataset, "task_id": task},
            "value": figures[condition]["value"],
            "date": _started(manifest).isoformat(),
            "notes": _notes(figures[condition], document),
        }
        for condition, task in _tasks(figures, task_ids).items()
    ]
    return f"# {MADE_BY}: goes into .eval_results of a model's repository on the Hub\n{yaml_text(entries)}"


def _tasks(conditions: Mapping[str, Any], task_ids: Sequence[str]) -> dict[str, str]:
    """Return the id of the benchmark's task for each condition that is written."""
    if not task_ids:
        tasks = {text: re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") for text in conditions}
    else:
        pairs = [text.rpartition("=") for text in task_ids]
        tasks = {condition or CLEAN.text: task for condition, _, task in pairs}
        if len(tasks) < len(pairs):
            raise RunError(f"--task-id is {', '.join(task_ids)}; expected one task for each condition")
    for condition, task in tasks.items():
        if condition not in conditions:
            raise RunError(f"--task-id: {unknown('condition', condition, conditions)}")
        if not task or [*tasks.values()].count(task) > 1:
            problem = f"{condition} has the task id {task!r}"
            raise RunError(f"{problem}; expected one for each condition, given as --task-id '{condition}=ID'")
    return tasks


def _notes(figure: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return how a figure was measured, its interval, and its flags."""
    args = figure["args"]
    bounds = f"95 % interval {args['ci_low']} to {args['ci_high']}" if {"ci_low", "ci_high"} <= args.keys() else ""
    notes = [
        figure["name"],
        bounds,
        f"eps in {_UNITS.get(args['space'], args['space'])}" if "space" in args else "",
        f"protocol digest {document['protocol']['digest']}",
        f"data {document['data']['name']}, digest {document['data']['digest']}",
        *(f"{name.replace('_', ' ')} {digest}" for name, digest in digest_named(document).items()),
        f"set-up: {document['setup']}",
        f"self-reported with RobustKit {document['robustkit']}",
        *(f"caveat: {caveat}" for caveat in args.get("caveats", ())),
        *(f"flag: {flag}" for flag in args.get("flags", ())),
    ]
    return "; ".join(filter(None, notes))


# Every Eval Ever


def _every_eval_ever(run: RunFolder, checkpoint: str | None, model_id: str | None) -> dict[str, str]:
    """Return a file for each checkpoint that has results, by its path in a datastore of Every Eval Ever."""
    is_one = checkpoint is not None or model_id is not None
    entries = (checkpoint_entry(run, checkpoint),) if is_one else run.manifest.checkpoints
    if model_id is not None:
        _check_id("--model-id", model_id)
    files = {}
    for described in entries:
        try:
            document = _without_command(facts(run, described, results_of(run, described.name)))
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
    manifest, started = run.manifest, _started(run.manifest)
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


def _started(manifest: Manifest) -> datetime.datetime:
    """Return when a run was begun. Raises RunError where run.json has no time there."""
    try:
        started = datetime.datetime.fromisoformat(manifest.started)
    except ValueError:
        expected = "expected a time such as 2026-01-01T00:00:00+00:00"
        raise RunError(f"run.json: started is {manifest.started[:80]!r}; {expected}") from None
    return started if started.tzinfo else started.replace(tzinfo=datetime.timezone.utc)


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
