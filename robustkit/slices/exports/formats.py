"""Write a run's results in the forms that others read: Every Eval Ever, the Hub's, CSV, or a tracker.

All is made from records. The files are the same bytes for the same run, and hold no path of the machine that made it.

TensorBoard, MLflow and Weights & Biases are imported only when they are asked for. There a figure is named
`<checkpoint>/<condition>/<metric>`, its bounds the same with `_ci_low` and `_ci_high`, its number of
samples with `_n`, as far as the library takes such names. What figures must not be shown without is the text `flags`.
Logging a run again replaces what was logged before.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...common.environment import OFFLINE
from ...common.figure import COLUMNS, Figure
from ...errors import NothingEvaluated, ProtocolError, RunError, unknown
from ...evaluations.presenting import unfinished_line
from ...protocol.condition import CLEAN
from ...results.survey import doubts_of, summary_csv
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ...tasks.task import task_of
from .card import MADE_BY as CARD
from .card import (
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
from .every_eval_ever import MADE_BY, check_id, every_eval_ever, start_of, without_command

FILES = ("every-eval-ever", "hf-eval-results", "model-index", "csv")
_LONGEST_NAME = 250  # characters of a name
_UNITS = {"pixels": "pixels in [0, 1]", "normalised": "normalised units", "sigma": "standard deviations of a channel"}


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
        "--to": to is not None and format in FILES,
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
        return write_files(folder, every_eval_ever(run, checkpoint, model_id), MADE_BY)
    described = checkpoint_entry(run, checkpoint)
    document = facts(run, described, results_of(run, described.name))
    if format == "model-index":
        return write_files(folder, {"metadata.yml": model_index(document)}, CARD)
    text = _hub_results(run.manifest, without_command(document), str(dataset_id), task_ids)
    return write_files(folder, {".eval_results/robustkit.yaml": text}, MADE_BY)


# The Hub's .eval_results


def _hub_results(manifest: Manifest, document: Mapping[str, Any], dataset: str, task_ids: Sequence[str]) -> str:
    """Return `.eval_results/*.yaml` as the Hub specifies it: for each condition the figure that its task leads with.
    The Hub holds one value for each task of a benchmark; others are in the other formats."""
    check_id("--dataset-id", dataset)
    headline = task_of(manifest).headline_metric
    leading = [each for each in hub_metrics(document) if headline.hub and each["type"] == headline.hub[0]]
    figures = {each["args"]["condition"]: each for each in leading}  # of SEA's the last, which is the worst case
    if not figures:
        raise NothingEvaluated(f"{document['checkpoint']['name']} has no {headline.word}, which the Hub's results hold")
    entries = [
        {
            "dataset": {"id": dataset, "task_id": task},
            "value": figures[condition]["value"],
            "date": start_of(manifest).isoformat(),
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


# Trackers


@dataclass
class Logger:
    """One logging library. Names come as (checkpoint, condition, metric), and are made legal here. where: what follows
    the name in `spec`. start: begin or continue an entry; folder: of the run. file: for libraries that take files.
    finish: called last, also after a failure."""

    spec: str
    where: str
    _run: Any = field(default=None, init=False)

    def start(self, name: str, folder: Path) -> None:
        raise NotImplementedError

    def scalars(self, values: Mapping[tuple[str, str, str], float]) -> None:
        raise NotImplementedError

    def params(self, values: Mapping[str, str]) -> None:
        raise NotImplementedError

    def flags(self, text: str) -> None:
        raise NotImplementedError

    def file(self, path: Path) -> None: ...

    def finish(self) -> None:
        raise NotImplementedError


def parse_loggers(specs: Sequence[str]) -> tuple[Logger, ...]:
    """Return the loggers of `tensorboard:DIR`, `mlflow:URI`, `wandb:PROJECT`, where the part after the colon may lack.
    Raises ProtocolError for an unknown name, or a library that is not installed."""
    loggers: dict[str, Logger] = {}
    for spec in specs:
        name, _, where = spec.strip().partition(":")
        if name not in LOGGERS:
            raise ProtocolError(unknown("logger", name, LOGGERS, remedy="such as tensorboard:DIR"))
        # A folder of that name, such as the one that wandb writes, is found too, but comes from nowhere.
        there = importlib.util.find_spec(name)
        if there is None or there.origin is None:
            raise ProtocolError(f"logging to {spec}: {name} is not installed; pip install {name}")
        loggers[spec] = LOGGERS[name](spec, where)
    return tuple(loggers.values())


def logging_to(specs: Sequence[str]) -> Callable[[RunFolder, Sequence[Figure]], None]:
    """Return what logs a run, after all of `specs` were checked as by `parse_loggers`."""
    return partial(log_run, wanted=parse_loggers(specs))


def log_run(run: RunFolder, results: Sequence[Figure], wanted: Sequence[Logger]) -> None:
    """Log a run's rows of results, what they depend on, their flags, and report.html. Raises RunError where a library
    refuses."""
    for logger in wanted:
        try:
            logger.start(entry_name(run), run.path)
            try:
                logger.params(parameters(run))
                logger.scalars(scalars(results))
                logger.flags(flags(run, results))
                if (report := run.path / "report.html").is_file():
                    logger.file(report)
            finally:
                logger.finish()
        except Exception as fault:  # a library may raise anything; the figures are safe in the run
            message = (str(fault).strip() or type(fault).__name__).splitlines()[0]
            remedy = "fix that, or do not log; nothing in the run is lost"
            raise RunError(f"logging to {logger.spec}: {message}; {remedy}") from fault


def entry_name(run: RunFolder) -> str:
    """Return a name that stays the same when this run is extended: its folder's name and a digest."""
    manifest = run.manifest
    whole = json.dumps([manifest.deciding.to_plain(), manifest.started], sort_keys=True)
    folder = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.resolve().name).strip("-.")[:60] or "run"
    return f"{folder}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def scalars(results: Sequence[Figure]) -> dict[tuple[str, str, str], float]:
    figures = {}
    for row in (row for row in results if row.is_finite):
        for value, suffix in ((row.value, ""), (row.low, "_ci_low"), (row.high, "_ci_high"), (row.n, "_n")):
            if math.isfinite(value):
                figures[row.checkpoint, row.condition, row.metric + suffix] = float(value)
    return figures


def flags(run: RunFolder, results: Sequence[Figure]) -> str:
    """Return in lines what each checkpoint's results lack and the flags that raise a doubt about them."""
    lines = []
    for name in dict.fromkeys(row.checkpoint for row in results):
        gap = unfinished_line(run, name).partition(";")[0]  # without the command, which holds paths
        lines += [f"{name}: {gap}"] if gap else []
        for flag, (first, *others) in doubts_of(row for row in results if row.checkpoint == name).items():
            lines.append(f"{name}: {first}{f' and {len(others)} more' if others else ''}: {flag}")
    return "\n".join(lines) or "none"


def parameters(run: RunFolder) -> dict[str, str]:
    """Return what decides the figures of a run; none of it changes when the run is extended."""
    manifest = run.manifest
    entries = {key.replace(" ", "_"): str(value) for key, value in manifest.deciding.to_plain().items()}
    entries |= {"data": manifest.data.name, "samples": str(manifest.data.n)}
    return entries | {f"sha256/{checkpoint.name}": str(checkpoint.sha256) for checkpoint in manifest.checkpoints}


def legal_names(names: Sequence[tuple[str, ...]], allowed: str) -> list[str]:
    """Join parts by slashes, other characters than `allowed` replaced; a digest keeps names short and distinct."""
    legal: dict[str, tuple[str, ...]] = {}
    for parts in names:
        short = "/".join(re.sub(f"[^{allowed}]+", "_", part, flags=re.ASCII).strip("_. ") or "_" for part in parts)
        if len(short) > _LONGEST_NAME or short in legal:
            digest = hashlib.sha256("/".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
            short = f"{short[: _LONGEST_NAME - 9]}_{digest}"
        legal[short] = parts
    return list(legal)


class TensorBoard(Logger):
    """Scalars at step 0, and texts of parameters and flags, in DIR/<entry>; without DIR in `tensorboard` in the run."""

    _before: list[Path]

    def start(self, name: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = (Path(self.where) if self.where else folder / "tensorboard") / name
        self._before = list(place.glob("events.out.tfevents.*.robustkit"))
        self._run = SummaryWriter(str(place), filename_suffix=".robustkit")

    def scalars(self, values: Mapping[tuple[str, str, str], float]) -> None:
        for name, value in zip(legal_names(list(values), r"\w.,()=+ -"), values.values(), strict=True):
            self._run.add_scalar(name, value, 0)

    def params(self, values: Mapping[str, str]) -> None:
        self._run.add_text("parameters", "\n".join(f"    {name}: {value}" for name, value in values.items()), 0)

    def flags(self, text: str) -> None:
        self._run.add_text("flags", "\n".join(f"    {line}" for line in text.splitlines()), 0)

    def finish(self) -> None:
        self._run.close()
        for path in self._before:  # otherwise every figure would be there twice
            path.unlink(missing_ok=True)


class MLflow(Logger):
    """A run of the experiment `robustkit` at URI; without it at MLFLOW_TRACKING_URI, else in `mlflow` in the run."""

    _client: Any

    def start(self, name: str, folder: Path) -> None:
        uri, local = self.where or os.environ.get("MLFLOW_TRACKING_URI", ""), (folder / "mlflow").resolve()
        scheme, is_remote, _ = uri.lower().partition("://")
        if os.environ.get(OFFLINE) and (is_remote or "databricks" in scheme) and scheme not in ("sqlite", "file"):
            raise RunError(f"{uri} is a server, and --offline asks none")
        if not uri:
            local.mkdir(exist_ok=True)
        self._client = importlib.import_module("mlflow.tracking").MlflowClient(
            tracking_uri=uri or f"sqlite:///{local / 'mlflow.db'}"
        )
        experiment = self._client.get_experiment_by_name("robustkit")
        if experiment is None:
            artifacts = None if uri else (local / "artifacts").as_uri()
            number = self._client.create_experiment("robustkit", artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        runs = self._client.search_runs([number], f"tags.robustkit_entry = '{name}'", max_results=1)
        self._run = runs[0] if runs else self._client.create_run(number, run_name=name, tags={"robustkit_entry": name})

    def scalars(self, values: Mapping[tuple[str, str, str], float]) -> None:
        metric, now, new = importlib.import_module("mlflow.entities").Metric, int(1000 * time.time()), []
        for name, value in zip(legal_names(list(values), r"\w. -"), values.values(), strict=True):
            if self._run.data.metrics.get(name) != value:
                new.append(metric(name, value, now, 0))
        for place in range(0, len(new), 1000):  # as many as its servers take at once
            self._client.log_batch(self._run.info.run_id, metrics=new[place : place + 1000])

    def params(self, values: Mapping[str, str]) -> None:
        names = legal_names([tuple(name.split("/")) for name in values], r"\w. -")
        for name, value in zip(names, values.values(), strict=True):
            if name not in self._run.data.params:  # MLflow does not let parameters be changed
                self._client.log_param(self._run.info.run_id, name, value[:500])

    def flags(self, text: str) -> None:
        self._client.log_text(self._run.info.run_id, text, "flags.txt")

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._run.info.run_id, str(path))

    def finish(self) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run.info.run_id)


class WeightsAndBiases(Logger):
    """The summary of a run of PROJECT, `robustkit` if left out; its local files are in `wandb` in the run."""

    def start(self, name: str, folder: Path) -> None:
        wandb = importlib.import_module("wandb")
        quiet = wandb.Settings(console="off", disable_git=True, disable_code=True, disable_job_creation=True)
        named = {"project": self.where or "robustkit", "id": name, "name": name}
        self._run = wandb.init(**named, resume="allow", dir=str(folder), settings=quiet)

    def scalars(self, values: Mapping[tuple[str, str, str], float]) -> None:
        # Not its history, which would grow every time.
        self._run.summary.update(dict(zip(legal_names(list(values), r"\w"), values.values(), strict=True)))

    def params(self, values: Mapping[str, str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def flags(self, text: str) -> None:
        self._run.summary.update({"flags": text})

    def file(self, path: Path) -> None:
        artifact = importlib.import_module("wandb").Artifact(f"{self._run.id}-report", type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        self._run.finish()


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
FORMATS = (*FILES, *LOGGERS)
