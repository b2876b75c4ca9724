"""What goes wrong around a run: full disks, altered records, two commands in one folder, a lack of memory."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import small_audit
import torch
from msgspec.structs import replace

from robustkit.common.files import locked
from robustkit.errors import ModelError, RunError
from robustkit.evaluations.family import AnyFamily
from robustkit.evaluations.subject import Batch, EvaluatedModel, Evaluation
from robustkit.pipeline.units import evaluate
from robustkit.protocol.condition import Condition
from robustkit.report.refresh import refresh
from robustkit.report.run import Run

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
HOLD = """
import sys, time
from pathlib import Path
from robustkit.common.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_commands_in_one_folder_and_a_dead_one_holds_nothing(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        said = rf"run is in use by process {other.pid} on .+; wait for it, or use another --out"
        with pytest.raises(RunError, match=said):
            small_audit.audit(place, out, attacks="none")
        assert not (out / "run.json").exists()
        other.send_signal(signal.SIGKILL)
    assert small_audit.audit(place, out, attacks="none").results()["n"].max() == 30
    with locked(out), pytest.raises(RunError, match="is in use by process"), locked(out):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(victim)
    with pytest.raises(RunError, match=r"cannot write .*run: .*; choose a folder with --out"), locked(tmp_path / "run"):
        pass
    assert victim.read_text() == "dear"


def test_what_cannot_be_read_now_is_not_taken_for_damaged(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> bytes:
        raise OSError(116, "Stale file handle")

    records = sorted(run.path.rglob("records/**/*.parquet"))
    monkeypatch.setattr("robustkit.runs.folder.bytes_of", stale)  # of records; run.json is read as text
    with pytest.raises(RunError, match=r"cannot be read .*Stale file handle"):
        small_audit.audit(place, run.path, attacks="fgsm")
    assert sorted(run.path.rglob("records/**/*.parquet")) == records


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_audit.audit(place, tmp_path_factory.mktemp("whole") / "run", attacks="fgsm").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Run:
    return Run(shutil.copytree(whole, tmp_path / "run"))


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut short":
        path.write_bytes(data[: len(data) // 2])
    elif how == "a bit":
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif how == "emptied":
        path.write_bytes(b"")
    else:  # made better by hand, as a whole Parquet file
        table = pq.ParquetFile(path).read()
        place = table.column_names.index("correct")
        pq.write_table(table.set_column(place, table.schema.field(place), [[True] * len(table)]), path)


@pytest.mark.parametrize("how", ["cut short", "a bit", "emptied", "improved"])
def test_a_record_that_is_not_what_was_written_is_refused_and_computed_again(place: Path, run: Run, how: str) -> None:
    before, summary = small_audit.files(run.path), (run.path / "summary.json").read_bytes()
    path = run.shard_path("net", "clean", 1)
    spoil(path, how)
    with pytest.raises(RunError, match=r"00001\.parquet: it was modified or damaged after it was written: its SHA-256"):
        refresh(run)
    assert (run.path / "summary.json").read_bytes() == summary
    lines: list[str] = []
    small_audit.audit(place, run.path, attacks="fgsm", say=lines.append)
    (line,) = [line for line in lines if "modified or damaged" in line]
    assert line.startswith(f"{path}: it was modified or damaged after it was written: its SHA-256 is not ")
    assert line.endswith("…; recomputed")
    assert small_audit.files(run.path) == before


@pytest.mark.parametrize("how", ["cut short", "a bit", "emptied", "improved"])
def test_without_its_checksum_a_record_proves_itself(run: Run, how: str) -> None:
    for path in (run.path / "timings").rglob("*.json"):
        path.unlink()
    assert refresh(run)
    conditions = run.manifest.conditions
    assert run.damaged("net", conditions) == []
    path = run.shard_path("net", "clean", 0)
    spoil(path, how)
    assert [one for one, _ in run.damaged("net", conditions)] == [path] and run.damaged("net", conditions[1:]) == []
    with pytest.raises(RunError, match=r"a record (cannot be read|that does not belong to this run)"):
        run.table("net", "clean")


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_was_written_before_is_whole(place: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the kernel refuses a write in the same way."""
    out = tmp_path / "run"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))

    words = small_audit.command(place, out, "--attacks", "pgd(steps=2)", "--browse", "0")
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limited, timeout=250)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: cannot write ") and "File too large; choose a folder with --out" in last
    assert all(pq.ParquetFile(path).read() for path in out.rglob("*.parquet"))
    assert not list(out.rglob("*.tmp"))
    again = subprocess.run(words, capture_output=True)
    assert again.returncode == 0 and (out / "report.html").is_file()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = small_audit.command(place, out, "--attacks", "pgd(steps=20000)", "--shard-size", "4")
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what a shell runs with & ignores it
    )
    while not list(out.rglob("*.parquet")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "interrupted; rerun the same command to resume"
    assert not list(out.rglob("*.tmp"))


class Small:
    """Lets a device have room for so many images."""

    def __init__(self, room: int) -> None:
        self.room, self.sizes = room, list[int]()

    def __call__(self, family: AnyFamily, subject: EvaluatedModel, batch: Batch, condition: Condition) -> Evaluation:
        self.sizes.append(len(batch))
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return evaluate(family, subject, batch, condition)


def test_a_lack_of_memory_halves_the_batch_and_changes_no_result(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_audit.audit(place, tmp_path / "whole", attacks="fgsm", batch_size=2)
    small, lines = Small(3), list[str]()
    monkeypatch.setattr("robustkit.pipeline.units.evaluate", small)
    halved = small_audit.audit(place, tmp_path / "halved", attacks="fgsm", batch_size=8, say=lines.append)
    assert small.sizes[:3] == [8, 4, 2] and max(small.sizes[2:]) == 2
    assert [line for line in lines if "memory" in line] == ["net: out of memory with batches of 8; continuing with 2"]
    assert halved.results().equals(whole.results())
    metadata = pq.read_schema(halved.shard_path("net", "clean", 0)).metadata
    assert metadata[b"batch_size"] == b"2" and json.loads(metadata[b"robustkit"])["batch_size"] == 8
    small.room = 0
    with pytest.raises(ModelError, match="net fails under clean on 1 images: OutOfMemoryError: CUDA out of memory"):
        small_audit.audit(place, tmp_path / "none", attacks="fgsm", batch_size=8)


def test_auto_measures_once_and_a_resumed_run_keeps_it(place: Path, tmp_path: Path) -> None:
    run = small_audit.audit(place, tmp_path / "run", attacks="none", batch_size="auto")
    size = run.manifest.batch_size
    assert size in {2**power for power in range(7)}
    run.write_manifest(replace(run.manifest, batch_size=5))
    again = small_audit.audit(place, tmp_path / "run", attacks="fgsm", batch_size="auto")
    assert again.manifest.batch_size == 5
    packed = pq.read_schema(again.shard_path("net", "fgsm(eps=8/255)", 0)).metadata[b"robustkit"]
    assert json.loads(packed)["batch_size"] == 5
