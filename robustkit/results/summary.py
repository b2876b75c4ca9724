"""Records into results: value, n, 95 % interval, protocol and flags, for every checkpoint and condition of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.intervals import Floats, bootstrap, calibration_error, calibration_interval, wilson
from ..data.layouts import SUBSET
from ..display.neutral import no_controls, no_formula
from ..evaluations.attacks.gradient_masking import NO_EVIDENCE, Finding, findings
from ..evaluations.attacks.order import Right, is_compared, order_flag
from ..evaluations.attention.metrics import HeadSums, Sampled, attention_rows, is_wanted_of_attention, under_of
from ..evaluations.corruptions.condition import parse_corrupted
from ..evaluations.corruptions.metrics import Outcome, conditions_of, corruption_rows, doubts, why_no_mce
from ..evaluations.maps.condition import parse_explained
from ..evaluations.maps.metrics import Figures, Pooled, Row, is_wanted_of_maps, map_figures, map_rows, stability_rows
from ..runs.folder import SUMMARY_COLUMNS, Run
from ..tasks.segmentation.metrics import COLUMNS, Counts, scene_mean_rows, scene_rows

if TYPE_CHECKING:
    import pyarrow as pa

EXCEEDS = 1e-6
"""How far a perturbation may lie outside its eps before the result is flagged: float32 rounding, in pixel units."""
_READ = {"sample_id", "correct", "top5", "nll", "confidence", "linf", "l2"}


@dataclass(frozen=True)
class Survey:
    """What one reading of all records gives.

    rows: of summary.json, in the order of the run's checkpoints and conditions. unread: why a sample could not be read,
    by its id.
    """

    rows: list[dict[str, Any]]
    unread: dict[str, str]

    @property
    def bad_images(self) -> list[dict[str, str]]:
        """Samples that could not be read under some condition: id and reason."""
        return [{"sample_id": name, "error": self.unread[name]} for name in sorted(self.unread)]


def summarise(run: Run) -> list[dict[str, Any]]:
    """The rows of summary.json, in the order of the run's checkpoints and conditions."""
    return survey(run).rows


def survey(run: Run) -> Survey:
    """Reads each record once, and holds of one checkpoint at a time what several conditions are needed for."""
    manifest = run.manifest
    scenes = manifest["protocol"].get("task") == "segmentation"
    found: Parts = ([], [], [])
    unread: dict[str, str] = {}
    for checkpoint, units in groupby(run.units(), key=lambda unit: unit[0]):
        conditions = [condition for _, condition in units]
        parts = (_of_scenes if scenes else _of_images)(run, manifest, checkpoint, conditions, unread)
        for rows, more in zip(found, parts, strict=True):
            rows += more
    return Survey([row for rows in found for row in rows], unread)


Parts = tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]
"""Rows of single conditions, of means over corruptions, and of maps."""


def _of_images(
    run: Run, manifest: dict[str, Any], checkpoint: str, conditions: Sequence[str], unread: dict[str, str]
) -> Parts:
    rows: list[dict[str, Any]] = []
    outcomes: dict[str, Outcome] = {}
    figures: list[Figures] = []
    undisturbed: Sampled | None = None
    rights: dict[str, Right] = {}
    for condition in conditions:
        if (under := under_of(condition)) is not None:
            sums = HeadSums(run.shard_path(checkpoint, condition, 0).parent)
            parts = run.shards(checkpoint, condition, is_wanted_of_attention)
            table, _ = _joined(map(sums.taken, parts), unread)
            sampled = Sampled.of(_readable(table))
            flags = _flags(table, _readable(table), manifest, checkpoint, condition)
            watched = attention_rows(condition, sampled, undisturbed, sums.heads(), flags)
            rows += [_row(checkpoint, manifest, row) for row in watched]
            undisturbed = sampled if under == "clean" else undisturbed
            continue
        explained, pooled = parse_explained(condition), Pooled()
        shards = partial(run.shards, checkpoint, condition, _is_wanted if explained is None else is_wanted_of_maps)
        table, notes = _joined(map(pooled.taken, shards()), unread)
        read = _readable(table)
        flags = [*_flags(table, read, manifest, checkpoint, condition), *notes]
        flags += [finding.flag for finding in _dossier(run, manifest, checkpoint, condition, read) if finding.flag]
        if explained is not None:
            keep = bool(manifest.get("keep_misclassified"))
            if explained.under:
                rows += [_row(checkpoint, manifest, row) for row in stability_rows(table, explained, keep, flags)]
            else:
                figures.append(map_figures(shards, table, pooled, explained, keep, flags))
            continue
        early = bool(manifest.get("claims", {}).get(condition, {}).get("early_stop"))
        found = _classification(read, early)
        if found and is_compared(condition):
            rights[condition] = Right.of(read)
        rows += [_row(checkpoint, manifest, (condition, *figure, flags)) for figure in found]
        if found and (condition == "clean" or parse_corrupted(condition)):
            outcomes[condition] = Outcome.of(read, flags, like=next(iter(outcomes.values()), None))
    odd = {condition: order_flag(manifest, condition, rights) for condition in rights}
    rows = [row | {"flags": [*row["flags"], flag]} if (flag := odd.get(row["condition"])) else row for row in rows]
    means = list(_corruption_means(manifest, checkpoint, outcomes))
    return rows, means, [_row(checkpoint, manifest, row) for row in map_rows(figures)]


def _of_scenes(
    run: Run, manifest: dict[str, Any], checkpoint: str, conditions: Sequence[str], unread: dict[str, str]
) -> Parts:
    every, expected = manifest["data"]["class_names"], manifest["data"]["n"]
    judged = [place for place in range(len(every)) if place not in manifest["data"]["unjudged"]]
    names = [every[place] for place in judged]
    rows: list[dict[str, Any]] = []
    found: dict[str, Counts] = {}
    for condition in conditions:
        table, _ = _joined(run.shards(checkpoint, condition, COLUMNS), unread)
        flags = _flags(table, _readable(table), manifest, checkpoint, condition)
        counts = Counts.of(table, flags).of_classes(judged)
        rows += [_row(checkpoint, manifest, row) for row in scene_rows(condition, counts, names)]
        if condition == "clean" or parse_corrupted(condition):
            found[condition] = counts
    return rows, [_row(checkpoint, manifest, row) for row in scene_mean_rows(found, expected, names)], []


def _is_wanted(column: str) -> bool:
    """Whether results of a condition other than a map need a column."""
    return column in _READ or _is_of_stages(column)


def _is_of_stages(column: str) -> bool:
    return column in ("error", "broken_by") or column.startswith(("forwards ", "backwards "))


def _joined(shards: Iterable[pa.Table], unread: dict[str, str]) -> tuple[pa.Table, list[str]]:
    """The table of a condition, and what its attack did otherwise than asked, each once."""
    import pyarrow as pa

    tables, notes = [], dict[str, None]()
    for shard in shards:
        packed = (shard.schema.metadata or {}).get(b"notes", b"[]")
        notes |= dict.fromkeys(map(str, json.loads(packed)))
        if shard["error"].null_count < len(shard):
            lost = shard.filter(shard["error"].is_valid())
            unread |= zip(lost["sample_id"].to_pylist(), lost["error"].to_pylist(), strict=True)
        tables.append(shard.replace_schema_metadata())
    return pa.concat_tables(tables, promote_options="default"), list(notes)


def _readable(table: pa.Table) -> pa.Table:
    """The rows of samples that could be read."""
    return table if table["error"].null_count == len(table) else table.filter(table["error"].is_null())


def _row(checkpoint: str, manifest: dict[str, Any], found: Row) -> dict[str, Any]:
    condition, metric, value, n, low, high, flags = found
    figures = (checkpoint, condition, metric, value, n, low, high, manifest["protocol"]["tag"], flags)
    return dict(zip(SUMMARY_COLUMNS, figures, strict=True))


def _corruption_means(
    manifest: dict[str, Any], checkpoint: str, outcomes: dict[str, Outcome]
) -> Iterator[dict[str, Any]]:
    described = next(known for known in manifest["checkpoints"] if known["name"] == checkpoint)
    size, trees = described["preprocessing"]["input_size"], manifest.get("corrupted", {}).get("released", {})
    rows = corruption_rows(outcomes, manifest["data"]["n"], why_no_mce(manifest))
    for condition, metric, value, n, low, high, flags in rows:
        released = [trees[text] for text in conditions_of(condition) if text in trees]
        flags = [*flags, *doubts(condition, size, released)]
        yield _row(checkpoint, manifest, (condition, metric, value, n, low, high, flags))


def write_summary(run: Run, rows: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Write summary.json and summary.csv from the records; returns the rows as `Run.summary` reads them.

    rows: of `survey`, where the records have been read already.
    """
    import csv
    import io

    rows = summarise(run) if rows is None else rows
    finite = [{name: _json_value(value) for name, value in row.items()} for row in rows]
    run.write_summary(finite)
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, SUMMARY_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row | {"flags": "; ".join(row["flags"])}) for row in finite)
    run.write(run.path / "summary.csv", sheet.getvalue().encode("utf-8", "replace"))
    return finite


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {name: no_controls(no_formula(value)) if isinstance(value, str) else value for name, value in row.items()}


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _classification(read: pa.Table, early: bool) -> list[tuple[str, float, int, float, float]]:
    """Metric, value, n and interval. `early`: samples left at their first wrong prediction, so that only top-1 means
    something.
    """
    n = len(read)
    if n == 0:
        return []
    correct = _column(read, "correct")
    rows = []
    for name, column in (("top1", correct), ("top5", _column(read, "top5"))):
        hits = int(column.sum())
        rows.append((name, hits / n, n, *wilson(hits, n)))
    rows = rows[:1] if early else [*rows, *_losses(read, correct)]
    for norm in ("linf", "l2"):
        largest = float(_column(read, norm).max())
        if largest > 0:
            rows.append((f"{norm}_max", largest, n, math.nan, math.nan))
    for stage in _stages(read):
        rows.append((f"top1_after_{stage.name}", stage.standing / n, n, *wilson(stage.standing, n)))
    return rows


def _losses(read: pa.Table, correct: Floats) -> list[tuple[str, float, int, float, float]]:
    """NLL and calibration error."""
    n, confidence, nll = len(read), _column(read, "confidence"), _column(read, "nll")
    finite = np.isfinite(confidence)
    sure, right = confidence[finite], correct[finite]
    loss = float(nll.mean())

    def resampled(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 times an infinite loss is no number
            return counts @ nll / n

    return [
        ("nll", loss, n, *bootstrap(resampled, n, [loss])[0]),
        ("ece", calibration_error(sure, right), n, *calibration_interval(sure, right)),
    ]


@dataclass(frozen=True)
class Stage:
    """A stage of an attack: samples that stand after it, and the passes that it made in all."""

    name: str
    standing: int
    forwards: int
    backwards: int
    seconds: float | None = None


def stages(run: Run, checkpoint: str, condition: str) -> list[Stage]:
    """The stages of an attack, with the seconds of each where they are known; none for an attack in one piece."""
    found = _stages(_readable(run.table(checkpoint, condition, _is_of_stages)))
    seconds = run.stage_seconds(checkpoint, condition) if found else {}
    return [replace(stage, seconds=seconds.get(stage.name)) for stage in found]


def _stages(read: pa.Table) -> list[Stage]:
    names = [name.removeprefix("forwards ") for name in read.column_names if name.startswith("forwards ")]
    often = Counter(read["broken_by"].to_pylist() if names else ())
    standing, found = len(read), []
    for name in names:
        standing -= often[name]
        passes = (int(np.nansum(_column(read, f"{what} {name}"))) for what in ("forwards", "backwards"))
        found.append(Stage(name, standing, *passes))
    return found


def dossier(run: Run, checkpoint: str, condition: str) -> list[Finding]:
    """What speaks for and against the result of an attack; empty where no evidence was asked for."""
    manifest = run.manifest
    if condition not in manifest.get("evidence", []):
        return []
    read = _readable(run.table(checkpoint, condition, _is_of_stages))
    return _dossier(run, manifest, checkpoint, condition, read)


def _dossier(run: Run, manifest: dict[str, Any], checkpoint: str, condition: str, read: pa.Table) -> list[Finding]:
    if condition not in manifest.get("evidence", []):
        return []
    figures = run.evidence(checkpoint, condition)
    if figures is None:
        return [NO_EVIDENCE]
    standing = {stage.name: stage.standing for stage in _stages(read)}
    return findings(figures, standing, n=len(read), averaged="version=rand" in condition)


def _flags(table: pa.Table, read: pa.Table, manifest: dict[str, Any], checkpoint: str, condition: str) -> list[str]:
    flags = []
    expected = manifest["data"]["n"]
    if len(table) != expected:
        flags.append(f"incomplete: {len(table)} of {expected} samples; the same command goes on")
    described = next(known for known in manifest["checkpoints"] if known["name"] == checkpoint)
    if str(described.get("weights", "")).endswith("in part"):
        flags.append("weights were loaded in part; the rest is random")
    flags += (note for note in manifest["data"].get("notes", []) if note.startswith(SUBSET))
    claim = manifest.get("claims", {}).get(condition)
    if claim and len(read):
        largest = float(_column(read, claim["norm"]).max())
        measured = f"largest {claim['norm']} perturbation {pixels(largest, claim['norm'])} in pixels"
        if manifest["protocol"]["space"] != "pixels":
            flags.append(f"eps {claim['eps']:.4g} is in normalised units: {measured}")
        # In normalised units a step of eps is eps * std in pixels, at most that of the widest channel.
        allowed = claim["eps"] * (
            1 if manifest["protocol"]["space"] == "pixels" else max(described["preprocessing"]["std"])
        )
        if largest > allowed + EXCEEDS:
            flags.append(f"exceeds eps: {measured}, claimed {pixels(allowed, claim['norm'])}")
    if len(read) and "correct" in read.column_names and read["correct"].null_count == 0:  # else there is no loss
        broken = int((~np.isfinite(_column(read, "nll"))).sum())
        if broken:
            flags.append(f"{broken} of {len(read)} samples have logits that are not finite; counted as wrong")
    unread = len(table) - len(read)
    if unread:
        flags.append(f"{unread} of {len(table)} images could not be read; left out")
    return flags


def pixels(value: float, norm: str) -> str:
    """A perturbation's size as people say it: `1/255` for linf, `0.5` for l2."""
    return f"{value * 255:.4g}/255" if norm == "linf" else f"{value:.4g}"


def _column(table: pa.Table, name: str) -> Floats:
    values: Floats = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values
