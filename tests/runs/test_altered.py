"""Runs that someone copied, cut or mended: each command refuses them, computes anew, or says what is missing.

A table: what was done to a whole run, and what `check`, `compare`, `report` and the audit make of it. `refused` is one
line and status 2, or 3 where nothing is left; `told` a flag that the whole run has not, of `check` a gate that fails;
`recomputed` the bytes of the whole run after a line on what was done; `same` the output for the whole run, where what
was altered has no part in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_audit
from click.testing import CliRunner, Result
from PIL import Image

from robustkit.cli.app import cli
from robustkit.common.files import write_whole
from robustkit.errors import GateFailed, RobustkitError
from robustkit.report.sample_browser import Browser
from robustkit.results.run import Run

FGSM, AUTO = "fgsm(eps=8/255)", "autoattack(eps=8/255,version=standard,steps=2,targets=1,queries=5)"
OPTIONS: dict[str, Any] = {"attacks": f"fgsm,{AUTO}"}
OPTIONS |= {"browse": 12, "batch_size": 8}
COMMANDS = ("check", "compare", "report", "audit")
Alter = Callable[[Run, dict[str, Run]], None]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_audit.furnish(tmp_path_factory.mktemp("place"))


def audited(place: Path, out: Path, **options: Any) -> Run:
    return small_audit.audit(place, out, **OPTIONS | options)


@pytest.fixture(scope="module", autouse=True)
def few_and_plain(one_thread: None) -> Any:
    """Of the page only what reads the kept pictures: the rest is drawn from what the summary has read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda run, rows: list(Browser(run).samples()))
        yield


@pytest.fixture(scope="module")
def runs(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A whole run, and others of which one thing is different."""
    root = tmp_path_factory.mktemp("runs")
    made = {"whole": audited(place, root / "whole"), "weights": audited(retrained(root), root / "weights")}
    for name, options in {
        "seed": {"seed": 1},
        "dtype": {"dtype": "bfloat16"},
        "limit": {"limit": 24},
        "shards": {"shard_size": 15},
        "eps": {"eps": "4/255"},
        "card": {"protocol": "quest-paper"},
        "data": {"data_dir": other_images(place, root)},
    }.items():
        made[name] = audited(place, root / name, **{"attacks": "fgsm", **options})
    return made


def retrained(root: Path) -> Path:
    """A factory and weights of the same names, and other values."""
    place = root / "retrained"
    place.mkdir()
    small_audit.furnish(place)
    import torch

    torch.save({k: v * 1.5 for k, v in torch.load(place / "net.pth").items()}, place / "net.pth")
    return place


def other_images(place: Path, root: Path) -> Path:
    """Images of the same names, one with a pixel changed."""
    shutil.copytree(place / "images", root / "images")
    path = min((root / "images").rglob("*.png"))
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    return root / "images"


# what is done to a run


def record(run: Run, condition: str = "clean", shard: int = 1) -> Path:
    return run.shard_path("net", condition, shard)


def beside(run: Run, path: Path) -> Path:
    return run.path / "timings" / path.relative_to(run.path / "records").with_suffix(".json")


def move(run: Run, path: Path, to: Path) -> None:
    """A record with what stands beside it."""
    copy(run, path, to)
    path.unlink()
    beside(run, path).unlink()


def copy(run: Run, path: Path, to: Path, source: Run | None = None) -> None:
    for one, other in ((path, to), (beside(source or run, path), beside(run, to))):
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one, other)


def put(run: Run, path: Path, data: bytes, told: bool = True) -> None:
    """Bytes in the place of a record, with the SHA-256 of them beside it, or none."""
    import hashlib

    path.write_bytes(data)
    text = json.dumps({"sha256": hashlib.sha256(data).hexdigest()})
    beside(run, path).write_text(text) if told else beside(run, path).unlink()


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def rewritten(change: Callable[[pa.Table], pa.Table], told: bool = True, own: bool = False) -> Alter:
    """A record read, changed and written, by another program or by what the audit writes with."""

    def alter(run: Run, others: dict[str, Run]) -> None:
        path = record(run)
        table = change(read(path))
        if own:
            run.write_shard(path, table)
        else:
            put(run, path, parquet(table), told)

    return alter


def column(name: str, values: Any, kind: Any = None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        made = values(table[name].to_pylist()) if callable(values) else values
        return table.set_column(place, name, pa.array(made, kind or table.schema.field(name).type))

    return change


def bytes_of(change: Callable[[bytes], bytes]) -> Alter:
    def alter(run: Run, others: dict[str, Run]) -> None:
        path = record(run)
        path.write_bytes(change(path.read_bytes()))

    return alter


def records_from(name: str, condition: str = "clean") -> Alter:
    """All records of a condition replaced by those of another run."""

    def alter(run: Run, others: dict[str, Run]) -> None:
        other = others[name]
        theirs = next(text for text in other.manifest["conditions"] if text.partition("(")[0] == condition)
        ours = next(text for text in run.manifest["conditions"] if text.partition("(")[0] == condition)
        for path in other.record_paths("net", theirs):
            copy(run, path, run.shard_path("net", ours, int(path.stem)), other)

    return alter


def removed(*parts: str) -> Alter:
    def alter(run: Run, others: dict[str, Run]) -> None:
        for part in parts:
            for path in run.path.glob(part):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return alter


def rename_conditions(run: Run, others: dict[str, Run]) -> None:
    for kind in ("records", "timings"):
        clean, fgsm = (run.path / kind / "net" / name for name in ("clean", "fgsm(eps=8_255)"))
        clean.rename(run.path / "aside")
        fgsm.rename(clean)
        (run.path / "aside").rename(fgsm)


def swap(run: Run, others: dict[str, Run]) -> None:
    first, second, aside = record(run, shard=0), record(run), record(run, shard=99)
    move(run, first, aside)
    move(run, second, first)
    move(run, aside, second)


def thrice(run: Run, others: dict[str, Run]) -> None:
    for shard in (1, 2):
        copy(run, record(run, shard=0), record(run, shard=shard))


def over_attack(run: Run, others: dict[str, Run]) -> None:
    for path in run.record_paths("net", "clean"):
        copy(run, path, record(run, AUTO, int(path.stem)))


def half_a_rename(run: Run, others: dict[str, Run]) -> None:
    path = record(run)
    path.rename(path.parent / ".00001.parquet.abcdef.tmp")


def of_json(change: Callable[[dict[str, Any]], object], name: str = "run.json", digest: bool = False) -> Alter:
    """A JSON file edited; digest: as RobustKit writes run.json."""

    def alter(run: Run, others: dict[str, Run]) -> None:
        (path,) = run.path.glob(name)
        parts = json.loads(path.read_text("utf-8"))
        change(parts)
        if digest:
            run.write_manifest(parts)
        else:
            path.write_text(json.dumps(parts), "utf-8")

    return alter


def file_from(other: str, name: str, to: str = "") -> Alter:
    def alter(run: Run, others: dict[str, Run]) -> None:
        (source,) = others[other].path.glob(name)
        place = run.path / (to or source.relative_to(others[other].path))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)

    return alter


def text_in(name: str, text: str) -> Alter:
    return lambda run, others: write_whole(run.path / name, text.encode())


def evidence_is(text: str) -> Alter:
    def alter(run: Run, others: dict[str, Run]) -> None:
        (path,) = run.path.glob(EVIDENCE)
        path.write_text(text)

    return alter


def first(parts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = parts["checkpoints"][0]
    return found


EVIDENCE = "evidence/net/*.json"
PICTURES = "pictures/net/clean/00000.parquet"
REFUSED = "refused refused refused recomputed"
TOLD = "told told told recomputed"
SAME = "same same same same"
ALL_REFUSED = "refused refused refused refused"
RECORDS: dict[str, tuple[Alter, str]] = {
    "a shard deleted": (removed("records/net/clean/00001.parquet"), TOLD),
    "the last shard deleted": (removed("records/net/clean/00003.parquet"), TOLD),
    "a shard of an attack deleted, and what stands beside": (removed("*/net/fgsm*/00000.*"), TOLD),
    "a condition deleted": (removed("records/net/fgsm*"), TOLD),
    "clean deleted": (removed("*/net/clean"), TOLD),
    "all records deleted": (removed("records"), "refused refused refused recomputed"),
    "half a rename": (half_a_rename, TOLD),
    "cut short": (bytes_of(lambda data: data[: len(data) // 2]), REFUSED),
    "emptied": (bytes_of(lambda data: b""), REFUSED),
    "a bit flipped": (bytes_of(lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:]), REFUSED),
    "a text": (bytes_of(lambda data: b"clean: 100 %"), REFUSED),
    "one shard twice": (lambda run, _: copy(run, record(run, shard=0), record(run)), REFUSED),
    "one shard three times": (thrice, REFUSED),
    "shards swapped": (swap, REFUSED),
    "a shard under another number": (lambda run, _: move(run, record(run, shard=3), record(run, shard=4)), REFUSED),
    "a shard too many": (lambda run, _: copy(run, record(run), record(run, shard=4)), REFUSED),
    "a copy under another name": (
        lambda run, _: copy(run, record(run), record(run).with_name("00001 (1).parquet")),
        REFUSED,
    ),
    "conditions swapped": (rename_conditions, REFUSED),
    "clean copied over an attack": (over_attack, REFUSED),
    "a unit in the folder of another condition": (lambda run, _: copy(run, record(run, FGSM), record(run)), REFUSED),
    "another checkpoint's": (records_from("weights"), REFUSED),
    "another checkpoint's, of an attack": (records_from("weights", "autoattack"), REFUSED),
    "of another seed": (records_from("seed", "fgsm"), REFUSED),
    "of another card": (records_from("card"), REFUSED),
    "of another dtype": (records_from("dtype"), REFUSED),
    "of other data": (records_from("data"), REFUSED),
    "of other samples": (records_from("limit"), REFUSED),
    "of other shards": (records_from("shards"), REFUSED),
    "of another eps": (records_from("eps", "fgsm"), REFUSED),
    "made better by hand": (rewritten(column("correct", lambda old: [True] * len(old))), REFUSED),
    "made better, without a checksum": (
        rewritten(column("correct", lambda old: [True] * len(old)), told=False),
        REFUSED,
    ),
    "rows permuted": (rewritten(lambda table: table.take(list(range(len(table)))[::-1])), REFUSED),
    "rows permuted, by our writer": (
        rewritten(lambda table: table.take([*range(len(table))][::-1]), own=True),
        REFUSED,
    ),
    "fewer rows, by our writer": (rewritten(lambda table: table.slice(1), own=True), REFUSED),
    "ids twice, by our writer": (rewritten(lambda table: table.take([0, *range(len(table) - 1)]), own=True), REFUSED),
    "other ids, by our writer": (
        rewritten(column("sample_id", lambda old: [f"-{name}" for name in old]), own=True),
        REFUSED,
    ),
    "labels negative": (rewritten(column("label", lambda old: [-1] * len(old))), REFUSED),
    "losses NaN": (rewritten(column("nll", lambda old: [float("nan")] * len(old))), REFUSED),
    "a column missing": (rewritten(lambda table: table.drop_columns(["error"])), REFUSED),
    "a column missing, by our writer": (rewritten(lambda table: table.drop_columns(["error"]), own=True), REFUSED),
    "a column of another type": (rewritten(column("nll", lambda old: [*map(str, old)], pa.string())), REFUSED),
    "a column of another type, by our writer": (
        rewritten(column("label", lambda old: [*map(str, old)], pa.string()), own=True),
        REFUSED,
    ),
    "a table of something else": (rewritten(lambda table: pa.table({"sample_id": ["a"]})), REFUSED),
    "without metadata": (rewritten(lambda table: table.replace_schema_metadata(None)), REFUSED),
    "without metadata, by our writer": (
        rewritten(lambda table: table.replace_schema_metadata(None), own=True),
        REFUSED,
    ),
    "a folder": (lambda run, _: (record(run).unlink(), record(run).mkdir()), ALL_REFUSED),
    "checksum deleted": (removed("timings/net/clean/00001.json"), SAME),
    "all timings deleted": (removed("timings"), SAME),
    "checksum edited": (of_json(lambda parts: parts.update(sha256="0" * 64), "timings/net/clean/00001.json"), REFUSED),
    "seconds edited": (of_json(lambda parts: parts.update(seconds=1e9), "timings/net/clean/00001.json"), SAME),
    "extra files": (text_in("records/net/clean/notes.txt", "mine"), SAME),
}
OTHERS: dict[str, tuple[Alter, str]] = {
    "run.json deleted": (removed("run.json"), ALL_REFUSED),
    "run.json cut short": (
        lambda run, _: run.manifest_path.write_text(run.manifest_path.read_text()[:99]),
        ALL_REFUSED,
    ),
    "run.json of an earlier version": (of_json(lambda parts: parts.pop("digest")), ALL_REFUSED),
    "run.json of another seed": (file_from("seed", "run.json"), ALL_REFUSED),
    "run.json of other samples": (file_from("limit", "run.json"), ALL_REFUSED),
    "run.json of another checkpoint": (file_from("weights", "run.json"), ALL_REFUSED),
    "conditions cut": (of_json(lambda parts: parts.update(conditions=["clean"])), ALL_REFUSED),
    "n, with its digest": (of_json(lambda parts: parts["data"].update(n=29), digest=True), ALL_REFUSED),
    "samples, with its digest": (of_json(lambda parts: parts["data"]["shards"].reverse(), digest=True), ALL_REFUSED),
    "without samples, with its digest": (of_json(lambda parts: parts["data"].pop("shards"), digest=True), ALL_REFUSED),
    "checkpoint, with its digest": (of_json(lambda parts: first(parts).update(sha256="0"), digest=True), ALL_REFUSED),
    "attention, with its digest": (
        of_json(lambda parts: first(parts).update(attention="quest"), digest=True),
        ALL_REFUSED,
    ),
    "card, with its digest": (of_json(lambda parts: parts["protocol"].update(space="x"), digest=True), ALL_REFUSED),
    "name, with its digest": (
        of_json(lambda parts: first(parts).update(name="x"), digest=True),
        "refused refused refused same",
    ),
    "evidence deleted": (removed("evidence"), TOLD),
    "evidence with a gap": (of_json(lambda parts: parts.update(loss=[0, None, 1, 2]), EVIDENCE), REFUSED),
    "evidence made better": (of_json(lambda parts: parts.update(zero_margin=0, zero_ce=0, slope=1), EVIDENCE), REFUSED),
    "evidence of another checkpoint": (file_from("weights", EVIDENCE), REFUSED),
    "evidence cut short": (evidence_is('{"loss": '), REFUSED),
    "evidence of another kind": (evidence_is("[1]"), REFUSED),
    "pictures of another checkpoint": (file_from("weights", PICTURES), "same same refused recomputed"),
    "pictures of another condition": (
        file_from("whole", PICTURES, PICTURES.replace("clean", "fgsm(eps=8_255)")),
        "same same refused recomputed",
    ),
    "pictures cut short": (text_in(PICTURES, "PAR1"), "same same refused recomputed"),
    "pictures deleted": (removed("pictures"), SAME),
    "summary.json edited": (
        of_json(lambda parts: [row.update(flags=[]) for row in parts["results"]], "summary.json"),
        SAME,
    ),
    "summary.json of another run": (file_from("weights", "summary.json"), SAME),
    "summary.json deleted": (removed("summary.*"), SAME),
    "report.html edited": (text_in("report.html", "all is well"), SAME),
}
FIELDS: dict[str, Any] = {
    "robustkit": "9",
    "command": "true",
    "started": "1970",
    "arguments": {},
    "seed": 7,
    "protocol": {"tag": "standard@1:0"},
    "conditions": ["clean"],
    "claims": {},
    "checkpoints": [{"name": "net"}],
    "data": {"n": 30},
    "corrupted": {},
    "keep_misclassified": True,
    "shard_size": 30,
    "batch_size": 9,
    "device": "abacus",
    "versions": {},
    "deciding": {"seed": 7},
    "bad_images": [{"sample_id": "a", "error": "b"}],
    "pictures": [],
    "evidence": [],
    "digest": "0" * 64,
}
"""Of run.json each field, and another value that is as well formed."""


# what becomes of it


def policy(folder: Path, whole: Run) -> Path:
    """Rules that the whole run passes; its own flags are excepted."""
    flags = sorted({flag for row in whole.summary() for flag in row["flags"]})
    excepted = f" except {', '.join(repr(flag) for flag in flags)}" if flags else ""
    rules = [f"no flags{excepted}", "drop against baseline <= 1", "rise in nll against baseline <= 99"]
    rules += [f"top1 under {text} >= 0" for text in ("clean", FGSM, AUTO)]
    path = folder / "policy.toml"
    path.write_text("undecided = 'pass'\n" + "".join(f"[[rule]]\nrequire = {json.dumps(rule)}\n" for rule in rules))
    return path


def invoke(*words: Any) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)), standalone_mode=False)


def outcome(command: str, run: Run, place: Path, whole: Run, folder: Path, baseline: Run | None = None) -> str:
    """One word on what a command makes of a run."""
    lines: list[str] = []
    if command == "audit":
        before = evidence(run)
        try:
            audited(place, run.path, say=lines.append)
        except RobustkitError as fault:
            return one_line(fault)
        assert small_audit.files(run.path).items() >= needed(whole).items()
        assert evidence(run) == evidence(whole)
        names = ("computed anew", "taken anew", "removed, the report", "were there already")
        told = [line for line in lines if any(name in line for name in names)]
        alike = told == ["12 units of work were there already and were not computed again"]
        return "same" if alike and before == evidence(whole) else "recomputed"
    out = folder / "out.json"
    words = {
        "check": ("check", run.path, "--policy", policy(folder, whole), "--baseline", (baseline or whole).path),
        "compare": ("compare", (baseline or whole).path, run.path),
        "report": ("report", run.path),
    }[command]
    words = words if command == "report" else (*words, "--json", out)
    made = invoke(*words)
    if isinstance(made.exception, GateFailed):
        return "told"
    if made.exception is not None:
        assert isinstance(made.exception, RobustkitError), made.exc_info
        return one_line(made.exception)
    if command == "report":
        return (
            "told"
            if "incomplete" in made.output or "no records" in made.output or "evidence is missing" in made.output
            else "same"
        )
    if command == "compare":
        pairs = json.loads(out.read_text())["pairs"]
        flagged = [line for pair in pairs for line in (*pair["flags"], *pair["left_out"])]
        return (
            "told"
            if any("incomplete" in line or "no records" in line or "missing" in line for line in flagged)
            else "same"
        )
    return "same"


def one_line(fault: RobustkitError) -> str:
    text = str(fault)
    assert "\n" not in text and "cannot be used (" not in text and fault.exit_code in (2, 3), text
    return "refused"


def needed(run: Run) -> dict[str, bytes]:
    """What the audit makes again: all but kept pictures."""
    return {name: data for name, data in small_audit.files(run.path).items() if not name.startswith("pictures")}


def evidence(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path.glob(EVIDENCE)}


def altered(whole: Run, to: Path, alter: Alter, runs: dict[str, Run]) -> Run:
    shutil.copytree(whole.path, to)
    run = Run(to)
    alter(run, runs)
    return run


@pytest.mark.parametrize("case", [*RECORDS, *OTHERS])
def test_no_altered_run_passes_for_whole(place: Path, runs: dict[str, Run], tmp_path: Path, case: str) -> None:
    alter, expected = (RECORDS | OTHERS)[case]
    whole, found = runs["whole"], []
    for command in COMMANDS:
        run = altered(whole, tmp_path / command, alter, runs)
        found.append(outcome(command, run, place, whole, tmp_path))
    assert " ".join(found) == expected


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_run_json_can_be_edited_or_left_out(
    place: Path, runs: dict[str, Run], tmp_path: Path, field: str
) -> None:
    for way, change in {
        "edited": lambda parts: parts.update({field: FIELDS[field]}),
        "gone": lambda parts: parts.pop(field),
    }.items():
        run = altered(runs["whole"], tmp_path / way, of_json(change), runs)
        found = [outcome(command, run, place, runs["whole"], tmp_path) for command in COMMANDS]
        assert found == ["refused"] * 4, way
    assert set(FIELDS) == set(json.loads(runs["whole"].manifest_path.read_text()))


@pytest.mark.parametrize("case", [case for case, (_, words) in RECORDS.items() if words != SAME])
def test_nor_does_an_altered_baseline(place: Path, runs: dict[str, Run], tmp_path: Path, case: str) -> None:
    alter, expected = RECORDS[case]
    whole = runs["whole"]
    run = altered(whole, tmp_path / "baseline", alter, runs)
    found = [outcome(command, whole, place, whole, tmp_path, baseline=run) for command in COMMANDS[:2]]
    assert found == expected.split()[:2]


def test_a_candidate_cut_down_to_clean_is_undecided(place: Path, runs: dict[str, Run], tmp_path: Path) -> None:
    cut = audited(place, tmp_path / "cut", attacks="none")
    path = tmp_path / "p.toml"
    path.write_text('undecided = "pass"\n[[rule]]\nrequire = "drop against baseline <= 1"\n')
    made = invoke("check", cut.path, "--policy", path, "--baseline", runs["whole"].path)
    assert isinstance(made.exception, GateFailed)
    assert f"conditions of the baseline that were not evaluated here: 2, the first: {AUTO}" in made.output
    made = invoke("check", runs["whole"].path, "--policy", path, "--baseline", cut.path)
    assert made.exception is None


def test_a_line_names_the_file_and_the_reason(place: Path, runs: dict[str, Run], tmp_path: Path) -> None:
    lines: list[str] = []
    run = altered(runs["whole"], tmp_path / "run", over_attack, runs)
    said = str(invoke("report", run.path).exception)
    path = record(run, AUTO, 0)
    assert said == (
        f"{path}: a record that is not of this run: its condition is clean and not {AUTO}; the same command of the "
        "audit computes it anew"
    )
    audited(place, run.path, say=lines.append)
    assert f"{path}: its condition is clean and not {AUTO}; computed anew" in lines
    run = altered(runs["whole"], tmp_path / "other", records_from("weights"), runs)
    assert "its checkpoint sha256 is " in str(invoke("report", run.path).exception)


def test_what_a_record_says_of_itself(runs: dict[str, Run]) -> None:
    run = runs["whole"]
    known = pq.read_metadata(record(run, FGSM)).metadata
    of, manifest = json.loads(known[b"robustkit"]), run.manifest
    assert (of["condition"], of["shard"], of["seed"]) == (FGSM, 1, 0)
    assert of["protocol"] == manifest["protocol"]["tag"] and of["data digest"] == manifest["data"]["digest"]
    assert of["checkpoint"]["sha256"] == manifest["checkpoints"][0]["sha256"]
    ids = read(record(run, FGSM))["sample_id"].to_pylist()
    assert ids == sorted(ids) and known[b"samples"].decode() == manifest["data"]["shards"][1]
