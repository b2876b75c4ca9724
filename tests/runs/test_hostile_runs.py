"""Run folders of someone else: one line, nothing written elsewhere, memory and time bounded, and clocks that jump."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import page_runs
import processes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_audit
from bounded import at_most
from click.testing import CliRunner
from msgspec.structs import replace
from sealing import seal

from robustkit.cli.app import cli
from robustkit.errors import DamagedRecord, RobustkitError, RunError
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.runs import untrusted
from robustkit.runs.untrusted import PAGES, SAMPLES, provenance_metadata, provenance_of
from robustkit.tasks import EVERY_TASK

pytestmark = pytest.mark.usefixtures("one_thread")

# --- run folders of other people -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return page_runs.make_run(tmp_path_factory.mktemp("hostile") / "run", shown=False)


@pytest.fixture
def run(whole: Run) -> Any:
    """Of other people: a test may change its run.json."""
    before = whole.manifest_path.read_bytes()
    yield whole
    whole.manifest_path.write_bytes(before)


COMMANDS = ("report", "compare", "check", "card")


def commands(run: Run, place: Path, which: tuple[str, ...] = COMMANDS) -> dict[str, str]:
    """What the user sees of each command that fails. Raises what is not an error of ours."""
    policy, said = place / "policy.toml", {}
    policy.write_text("[[rule]]\nrequire = 'top1 under clean >= 0.1'\n[[rule]]\nrequire = 'no findings'\n")
    more = {"check": ["--policy", str(policy)], "card": ["--checkpoint", "one", "--out", str(place / "card")]}
    for name in which:
        words = [name, str(run.path), *more.get(name, [])]
        fault = CliRunner().invoke(cli, words, standalone_mode=False).exception
        if fault is not None:
            if not isinstance(fault, RobustkitError):
                raise fault
            said[name] = str(fault)
    return said


def put(manifest: dict[str, Any], place: str, value: Any) -> None:
    *path, last = place.split("/")
    for part in path:
        manifest = manifest[int(part)] if isinstance(manifest, list) else manifest[part]
    if isinstance(manifest, list):
        manifest[int(last)] = value
    else:
        manifest[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("checkpoints", {}, "checkpoints is {}; expected a list of tables, one at least"),
        ("checkpoints", [], "checkpoints is []; expected a list of tables, one at least"),
        ("checkpoints/0/name", 5, "checkpoints[0].name is 5; expected a text"),
        ("checkpoints/0/name", "two", "checkpoints is 'two'; expected names that differ"),
        ("checkpoints/0/name", "\ud800", "checkpoints[0].name is '\\ud800'; expected a text"),
        ("checkpoints/0/preprocessing/std", ["x"], "checkpoints[0].preprocessing.std is ['x']; expected a list of num"),
        ("checkpoints/0/preprocessing/std", [1e999], "preprocessing.std is [inf]; expected a list of numbers"),
        ("conditions", "clean", "conditions is 'clean'; expected a list of texts"),
        ("conditions/1", ["a"], "conditions is ['clean', ['a'], "),
        ("claims", {"clean": {"norm": "linf", "eps": "x"}}, "claims['clean'].eps is 'x'; expected a number"),
        ("claims", {"clean": 3}, "claims['clean'] is 3; expected a table of norm and eps"),
        ("protocol/tag", None, "protocol.tag is None; expected a text"),
        ("protocol/parameters", {"x": 3}, "protocol.parameters is {'x': 3}; expected a table of tables"),
        ("data/n", -1, "data.n is -1; expected a whole number from 0 on"),
        ("data/n", 2**70, "data.n is 1180591620717411303424; expected a whole number from 0 on"),
        ("data/n", True, "data.n is True; expected a whole number from 0 on"),
        ("data/class_names", [None], "data.class_names is [None]; expected a list of texts"),
        ("bad_images", [{"sample_id": 3}], "bad_images[0].sample_id is 3; expected a text"),
        ("deciding", [], "deciding is []; expected a table"),
        ("versions", "x" * 500, f"versions is '{'x' * 79}…; expected a table"),
    ],
)
def test_a_hostile_run_json_is_one_line(run: Run, tmp_path: Path, place: str, value: Any, message: str) -> None:
    manifest = run.manifest.to_plain()
    put(manifest, place, value)
    run.manifest_path.write_text(json.dumps(manifest))
    for said in (found := commands(run, tmp_path)).values():
        assert said.startswith(f"{run.manifest_path}: {message}") or message in said
        assert "\n" not in said and said.endswith("restore it, or make the run again")
    assert list(found) == list(COMMANDS)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\x00", "[]", '"\xff'])
def test_a_run_json_that_is_none(run: Run, tmp_path: Path, text: str) -> None:
    run.manifest_path.write_text(text, "latin-1")
    said = commands(run, tmp_path)
    assert list(said) == list(COMMANDS)
    assert all("restore it or use another --out" in line for line in said.values())


def test_a_name_that_occurs_twice_is_refused(run: Run, tmp_path: Path) -> None:
    """Readers of JSON disagree about which of the two counts."""
    text = run.manifest_path.read_text("utf-8")
    run.manifest_path.write_text(text.replace('"seed":', '"seed": 5, "seed":', 1))
    message = f"{run.manifest_path}: cannot be read ('seed' is named more than once in one object, expected once)"
    assert {line.partition(";")[0] for line in commands(run, tmp_path).values()} == {message}
    run.manifest_path.write_text(text)
    run.write_summary([])
    summary = run.path / "summary.json"
    summary.write_text(summary.read_text("utf-8").replace('"results":', '"results": [], "results":', 1))
    with pytest.raises(RunError, match=r"summary.json: cannot be read \('results' is named more than once"):
        run.summary()


def test_files_that_never_end_or_are_too_large_are_not_read(run: Run, tmp_path: Path) -> None:
    run.manifest_path.write_bytes(b"")
    os.truncate(run.manifest_path, 65 << 20)
    assert "run.json: cannot be read (65 MB, more than the allowed 64 MB)" in commands(run, tmp_path)["report"]
    run.manifest_path.unlink()
    os.mkfifo(run.manifest_path)
    assert "is not a run folder (no run.json)" in commands(run, tmp_path)["report"]
    run.manifest_path.unlink()


NAMES = (
    "../../../outside",
    "/outside",
    "..",
    ".",
    "a/../../b",
    "x" * 4000,
    "\x1b[2J\x1b[31mred",
    "a\nb",
    "C:\\x",
    "\u202e",
)


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", [*NAMES[:5], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[5:])])
def test_no_name_in_run_json_leads_out_of_the_folder(run: Run, tmp_path: Path, name: str) -> None:
    home = tmp_path / "a" / "b" / "c"
    made = page_runs.make_run(home / "run", (name, "two"), ids=("a.png", name[:200]), shown=False)
    before, above = files_of(tmp_path), set(Path("/").iterdir())
    made.write_manifest(replace(made.manifest, conditions=(*made.manifest.conditions, name)))
    seal(made)
    out = CliRunner().invoke(cli, ["report", str(made.path)], standalone_mode=False)
    assert out.exception is None and "\x1b" not in out.output
    card = CliRunner().invoke(cli, ["card", str(made.path), "--checkpoint", name], standalone_mode=False)
    assert card.exception is None
    fresh = files_of(tmp_path) - before
    assert {path.partition("run/")[2].partition("/")[0] for path in fresh} == {
        *("card", "report.html", "summary.csv", "summary.json")
    }
    assert set(Path("/").iterdir()) == above


LINKS = (
    *("run.json", "summary.json", "summary.csv", "report.html", "records", "timings", "evidence", "pictures", "cams"),
    *("records/net", "timings/net", "evidence/net", "pictures/net", "records/net/clean", "timings/net/clean"),
    *("records/net/clean/00001.parquet", "timings/net/clean/00001.json", "records/net/clean/.00001.parquet.x.tmp"),
    *("cams/gallery.png", "scenes", "timings/other/clean", "pictures/net/clean/00000.parquet", "metadata.parquet"),
)


@pytest.fixture(scope="module")
def linked(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda *_: None)
        return small_audit.audit(place, tmp_path_factory.mktemp("linked") / "run", attacks="fgsm").path


@pytest.mark.parametrize("name", LINKS)
def test_no_command_follows_a_link_inside_a_run(place: Path, linked: Path, tmp_path: Path, name: str) -> None:
    """What lies in the place of the link is moved out, and the link leads to it."""
    home = tmp_path / "home" / "run"
    shutil.copytree(linked, home)
    outside = tmp_path / "outside"
    path, there = home / name, outside / path_name(name)
    outside.mkdir()
    if path.exists():
        shutil.move(path, there)
    else:
        there.mkdir() if "." not in path.name else there.write_text("mine")
        path.parent.mkdir(parents=True, exist_ok=True)
    if there.is_dir():  # what a sweep takes for its own
        for leftover in (".00000.json.x.tmp", ".00000.parquet.x.tmp"):
            (there / leftover).write_text("mine")
    path.symlink_to(there)
    run, before = Run(home), contents(outside)
    line = f"{path} is a link to {there}; expected a file or folder of the run's own: "
    found = commands(run, tmp_path, ("report", "compare", "check"))
    assert len(found) == 3 and all(said.startswith(line) for said in found.values()), found
    with pytest.raises(RunError) as caught:
        small_audit.audit(place, home, attacks="fgsm")
    assert str(caught.value).startswith(line) and contents(outside) == before
    with pytest.raises(RunError, match="is a link to"):
        run.sweep()
    assert contents(outside) == before and path.is_symlink()


def path_name(name: str) -> str:
    return name.replace("/", "_").lstrip(".")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_run_may_lie_behind_a_link(place: Path, linked: Path, tmp_path: Path) -> None:
    shutil.copytree(linked, tmp_path / "real")
    (tmp_path / "shortcut").symlink_to(tmp_path / "real")
    policy = tmp_path / "p.toml"
    policy.write_text("[[rule]]\nrequire = 'top1 under clean <= 0.99'\n")
    words = ["check", str(tmp_path / "shortcut"), "--policy", str(policy)]
    assert CliRunner().invoke(cli, words, standalone_mode=False).exception is None
    (tmp_path / "real" / "mine").symlink_to("/")  # what is none of ours is left alone
    assert small_audit.audit(place, tmp_path / "shortcut", attacks="fgsm").results().shape[0]


def test_a_link_made_while_it_runs_is_not_written_through(linked: Path, tmp_path: Path) -> None:
    shutil.copytree(linked, tmp_path / "run")
    run, outside = Run(tmp_path / "run"), tmp_path / "outside"
    shutil.move(run.path / "records" / "net", outside)
    (run.path / "records" / "net").symlink_to(outside)
    before = contents(outside)
    for act in (
        lambda: run.write_shard(run.shard_path("net", "clean", 0), columns()),
        lambda: run.table("net", "clean"),
        lambda: list(run.units()),
        lambda: run.damaged("net", ["clean"]),
    ):
        with pytest.raises(RunError, match="records/net is a link to"):
            act()
    assert contents(outside) == before


def test_a_card_is_not_written_through_a_link(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (run.path / "card").symlink_to(outside)
    said = CliRunner().invoke(cli, ["card", str(run.path), "--checkpoint", "one"], standalone_mode=False).exception
    assert str(said) == f"{run.path}/card is a link to {outside}; choose that folder, or another, with --out"
    assert files_of(outside) == {"mine"} and (outside / "mine").read_text() == "mine"
    (run.path / "card").unlink()


def with_records(path: Path, data: bytes | pa.Table) -> Run:
    """A run of which one record of `clean` is these bytes, or this table, without a checksum next to it."""
    made = page_runs.make_run(path, shown=False)
    record = made.shard_path("one", "clean", 0)
    record.write_bytes(data if isinstance(data, bytes) else signed(made, data))
    (made.path / "timings" / record.relative_to(made.path / "records").with_suffix(".json")).unlink()
    return made


def signed(run: Run, table: pa.Table) -> bytes:
    """As a Parquet file that says about itself what the first record of `clean` does."""
    manifest, buffer = run.manifest, io.BytesIO()
    of = provenance_metadata(provenance_of(manifest, manifest.checkpoints[0], "clean"), 0)
    with pq.ParquetWriter(buffer, table.schema.with_metadata(of), compression="zstd") as writer:
        writer.write_table(table)
        pages = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
        writer.add_key_value_metadata({PAGES: pages, SAMPLES: manifest.data.shards[0].encode()})
    return buffer.getvalue()


def repeated(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def columns(**other: Any) -> pa.Table:
    plain = {"sample_id": ["a.png", "b.png"], "label": [0, 1], "correct": [True, False], "error": [None, "x"]}
    return pa.table(plain | other)


MANY = untrusted.VALUES + 1
RECORDS: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "rows": (lambda: pa.table({"sample_id": repeated("a", 5_000_000)}), "5000000 rows, too many for one record"),
    "text": (
        lambda: pa.table({"sample_id": repeated("x" * 100_000, 10_000), "error": pa.nulls(10_000, pa.string())}),
        "953 MB of text in column 'sample_id'",
    ),
    "list": (
        lambda: columns(predicted=pa.ListArray.from_arrays([0, 0, MANY], pa.array(np.zeros(MANY, np.int8)))),
        "more than 33554432 numbers in a column",
    ),
    "heads": (
        lambda: columns(key_norms=pa.ListArray.from_arrays([0, 0, MANY], pa.array(np.zeros(MANY, np.float16)))),
        "more than 33554432 numbers in a column",
    ),
    "no ids": (lambda: columns().drop_columns(["sample_id"]), "no column sample_id"),
    "null ids": (lambda: columns(sample_id=["a.png", None]), "a row without sample_id"),
    "label": (lambda: columns(label=["0", "1"]), "column 'label' of string"),
    "ids": (lambda: columns(sample_id=[1, 2]), "column 'sample_id' of int64"),
    "nested": (lambda: columns(nll=[[0.1], [0.2]]), "column 'nll' of list"),
    "date": (lambda: columns(abpc=pa.array([1, 2], pa.date32())), "column 'abpc' of date32"),
    "error": (lambda: columns(error=[b"a", b"b"]), "column 'error' of binary"),
    "plain": (lambda: columns(**{"sizes[]": [1, 2]}), "column 'sizes[]' of int64"),
    "texts": (lambda: columns(**{"sizes[]": [["1"], ["2"]]}), "column 'sizes[]' of list"),
    "many": (
        lambda: columns(**{"sizes[]": pa.ListArray.from_arrays([0, 0, MANY], pa.array(np.zeros(MANY, np.int8)))}),
        "more than 33554432 numbers in a column",
    ),
}


def test_columns_whose_names_end_in_brackets_hold_lists_of_numbers() -> None:
    buffer, table = io.BytesIO(), columns(**{"sizes[]": [[1, 2], []], "shares[]": [[], [0.5]]})
    pq.write_table(table, buffer)
    assert untrusted.read_rows(Path("record.parquet"), buffer.getvalue()).equals(table)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) if kind in ("rows", "heads", "many") else kind for kind in RECORDS],
)
def test_records_of_wrong_columns_or_sizes_are_one_line(tmp_path: Path, kind: str) -> None:
    make, message = RECORDS[kind]
    run = with_records(tmp_path / "run", make())
    record = run.shard_path("one", "clean", 0)
    expected = r"00000\.parquet: a record cannot be read \(.*\); delete it and run again"
    with at_most(100 << 20), pytest.raises(RunError, match=expected) as caught:
        refresh(run)
    assert message in str(caught.value) and str(caught.value).startswith(str(record))
    if kind not in ("text", "null ids"):  # as is seen without reading the rows
        assert [path for path, _ in run.damaged("one", ["clean"])] == [record]


def test_text_of_all_row_groups_counts_and_so_do_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, here = io.BytesIO(), Path("record.parquet")
    table = pa.table({"sample_id": list("abcd"), "error": [letter * 100_000 for letter in "abcd"]})
    pq.write_table(table, buffer, row_group_size=1)
    assert len(untrusted.read_rows(here, buffer.getvalue(), most=400_000)) == 4
    with pytest.raises(DamagedRecord, match="MB of text in column 'error'"):
        untrusted.read_rows(here, buffer.getvalue(), most=399_999)
    monkeypatch.setattr(untrusted, "WHOLE", 1000)
    with pytest.raises(DamagedRecord, match="0 MB, too many for one record"):
        untrusted.read_rows(here, buffer.getvalue())


@pytest.mark.parametrize("link", ["/dev/null", "pipe"])
def test_a_record_that_never_ends(tmp_path: Path, link: str) -> None:
    run = with_records(tmp_path / "run", b"")
    record = run.shard_path("one", "clean", 0)
    record.unlink()
    if link == "pipe":
        os.mkfifo(record)
    else:
        record.symlink_to(link)
    with pytest.raises(
        RunError, match=r"00000\.parquet(: cannot be read \(not a plain file\)| is a link to /dev/null)"
    ):
        refresh(run)


def test_whatever_a_run_folder_holds_a_command_says_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that no version knows; and the last net, what no rule foresees."""
    run = page_runs.make_run(tmp_path / "run", shown=False)
    manifest = run.manifest
    run.write_manifest(replace(manifest, protocol=replace(manifest.protocol, task="divination")))
    seal(run)
    known = ", ".join(sorted(EVERY_TASK))
    assert commands(run, tmp_path)["report"] == f"unknown task 'divination'; known: {known}"
    run.write_manifest(manifest)
    seal(run)
    monkeypatch.setattr("robustkit.report.refresh.survey", lambda *_, **__: {}["divination"])
    assert commands(run, tmp_path)["report"] == (
        f"{run.path}: cannot be used (KeyError: 'divination'); it holds something that no audit writes, or this is a "
        "defect of RobustKit, which --debug shows; make the run again"
    )


REPORTING = """
import atexit
from pathlib import Path
atexit.register(lambda: print("peak", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]))
from robustkit.cli import main
main()
"""


def called(*words: str) -> tuple[int, str, int]:
    """Exit status, what stands on stderr, and the peak of memory in bytes of a command."""
    done = subprocess.run([sys.executable, "-c", REPORTING, *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, int(done.stdout.split()[-1]) << 10


def test_the_command_line_shows_no_traceback_and_no_escape_and_takes_little_memory(tmp_path: Path) -> None:
    run = with_records(tmp_path / "run", RECORDS["text"][0]())
    status, said, used = called("report", str(run.path))
    assert status == 2 and said.startswith("error: ") and len(said.splitlines()) == 1
    assert "953 MB of text in column 'sample_id'" in said and used < 1 << 30
    named = page_runs.make_run(tmp_path / "named", ("\x1b[31mred\n", "two"), shown=False)
    status, _, said = processes.called(["card", str(named.path)])
    assert status == 2 and said.startswith("error: ") and len(said.splitlines()) == 1
    assert "has 2 checkpoints; choose one" in said and "\x1b" not in said


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_audit.audit(place, tmp_path / "whole", attacks="fgsm")
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * next(calls))  # an hour back at every look
    back = small_audit.audit(place, tmp_path / "back", attacks="fgsm")
    monkeypatch.undo()
    assert small_audit.files(back.path) == small_audit.files(whole.path)
    for path in back.path.rglob("*"):
        os.utime(path, (0, 0))  # and files that seem older than what they were made from
    again = small_audit.audit(place, tmp_path / "back", attacks="fgsm")
    assert small_audit.files(again.path) == small_audit.files(whole.path)
