"""What is done to a whole run: tables of alterations, and what the commands make of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from manifests import write_plain

from robustkit.common.files import write_whole
from robustkit.report.run import Run

FGSM, AUTO = "fgsm(eps=8/255)", "autoattack(eps=8/255,version=standard,steps=2,targets=1,queries=5)"
Alter = Callable[[Run, dict[str, Run]], None]


def record(run: Run, condition: str = "clean", shard: int = 1) -> Path:
    return run.shard_path("net", condition, shard)


def timing_of(run: Run, path: Path) -> Path:
    return run.path / "timings" / path.relative_to(run.path / "records").with_suffix(".json")


def move(run: Run, path: Path, to: Path) -> None:
    """A record with what stands next to it."""
    copy(run, path, to)
    path.unlink()
    timing_of(run, path).unlink()


def copy(run: Run, path: Path, to: Path, source: Run | None = None) -> None:
    for one, other in ((path, to), (timing_of(source or run, path), timing_of(run, to))):
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one, other)


def put(run: Run, path: Path, data: bytes, reported: bool = True) -> None:
    """Bytes in the place of a record, with the SHA-256 of them next to it, or none."""
    import hashlib

    path.write_bytes(data)
    text = json.dumps({"sha256": hashlib.sha256(data).hexdigest()})
    timing_of(run, path).write_text(text) if reported else timing_of(run, path).unlink()


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def rewritten(change: Callable[[pa.Table], pa.Table], reported: bool = True, own: bool = False) -> Alter:
    """A record read, changed and written, by another program or by what the audit writes with."""

    def alter(run: Run, others: dict[str, Run]) -> None:
        path = record(run)
        table = change(read(path))
        if own:
            run.write_shard(path, table)
        else:
            put(run, path, parquet(table), reported)

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
        theirs = next(text for text in other.manifest.conditions if text.partition("(")[0] == condition)
        ours = next(text for text in run.manifest.conditions if text.partition("(")[0] == condition)
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
            write_plain(run, parts)
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
TOLD = "reported reported reported recomputed"
SAME = "same same same same"
ALL_REFUSED = "refused refused refused refused"
RECORDS: dict[str, tuple[Alter, str]] = {
    "a shard deleted": (removed("records/net/clean/00001.parquet"), TOLD),
    "the last shard deleted": (removed("records/net/clean/00003.parquet"), TOLD),
    "a shard of an attack deleted, and what stands next to it": (removed("*/net/fgsm*/00000.*"), TOLD),
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
        rewritten(column("correct", lambda old: [True] * len(old)), reported=False),
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
    "format": 3,
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
