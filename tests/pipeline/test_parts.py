"""Parts of a run that do not know of each other: each unit in one of them, and together the bytes of one process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import small_audit
import torch
from gate_runs import make, right
from manifests import write_plain
from msgspec import UNSET
from processes import CONDITIONS, called, everything

import robustkit
from robustkit.common.files import in_turn, locked
from robustkit.errors import DamagedRecord, ProtocolError, RunError
from robustkit.evaluations.parts import RunPart, unit_part
from robustkit.report.run import Run
from robustkit.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = 7
SPARE = "fgsm(eps=8/255)"


def test_each_unit_is_of_one_part_and_parts_are_even() -> None:
    conditions = ["clean", "fgsm(eps=1/255)", "pgd(eps=1/255,steps=2)", "corruption(fog,severity=3)"]
    for shards, parts in ((1, 3), (8, 7), (28, 7), (100, 7), (5, 64)):
        of = {(text, n): unit_part("a", text, n, shards, parts) for text in conditions for n in range(shards)}
        assert {*of.values()} <= {*range(1, parts + 1)}
        for text in conditions:
            counts = Counter(of[text, shard] for shard in range(shards))
            assert max(counts.values()) - min(counts[part] for part in range(1, parts + 1)) <= 1
        together = all(len({of[text, shard] for text in conditions}) == 1 for shard in range(shards))
        assert together == (shards >= 4 * parts)  # decoded once
    held = [RunPart(number, 3).holds("a", "clean", 5, 9) for number in (1, 2, 3)]
    assert sorted(held) == [False, False, True]


def test_a_unit_is_where_the_images_are_that_it_takes() -> None:
    for shard in range(5):
        attack = unit_part("a", SPARE, shard, 5, 7)
        assert unit_part("a", f"attention({SPARE})", shard, 5, 7) == attack
        assert unit_part("a", f"ledger({SPARE})", shard, 5, 7) == attack
        assert unit_part("b", f"transfer({SPARE},from=a)", shard, 5, 7) == attack
    fixed = [unit_part(name, SPARE, 0, shards, 7) for name in ("a", "b") for shards in (5, 100)]
    assert fixed == [7, 1, 2, 2]  # whatever the process, the machine, the version of Python
    owners = [number for number in range(1, 8) if RunPart(number, 7).measures("a", SPARE, 5)]
    assert len(owners) == 1 and any(RunPart(owners[0], 7).holds("a", SPARE, shard, 5) for shard in range(5))


@pytest.mark.parametrize("text", ["0/7", "8/7", "7", "3/", "a/b", "-1/4", "1/0", "³/4"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match=rf"--part {re.escape(text)}: expected (1/7 to 7/7|one part of several)"):
        RunPart.of(text)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `small_audit.furnish` makes it, with a second checkpoint."""
    place = small_audit.furnish(tmp_path_factory.mktemp("two"))
    weights = torch.load(place / "net.pth")
    torch.save({name: value.flip(0) for name, value in weights.items()}, place / "other.pth")
    return place


def audited(place: Path, out: Path, **options: Any) -> Run:
    settings: dict[str, Any] = {"attacks": "fgsm,pgd(steps=2)", "eps": "8/255", "shard_size": 4, "transfer": True}
    model = {"arch": f"{place / 'net.py'}:build", "num_classes": 3}
    checkpoints = [place / "net.pth", place / "other.pth"]
    settings |= {"data_dir": place / "images", "device": "cpu", "model": model, "browse": 5} | options
    return robustkit.audit(checkpoints, out=out, **settings)


@pytest.fixture(scope="module")
def alone(two: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return audited(two, tmp_path_factory.mktemp("alone") / "run").path


@pytest.fixture(scope="module")
def shared(two: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The folder of all parts, in another order, one of them interrupted and repeated, two computed twice."""
    out = tmp_path_factory.mktemp("shared") / "run"
    write, left = RunFolder.write_shard, [3]

    def stop(*given: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(*given)

    for number in (5, 2, 7):
        audited(two, out, part=f"{number}/{PARTS}")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "write_shard", stop)
        audited(two, out, part=f"4/{PARTS}")
    for number in (4, 1, 6, 3):
        audited(two, out, part=f"{number}/{PARTS}")
    for number in (2, 6):
        run = Run(out)
        texts = run.manifest.conditions
        for name in run.manifest.names:
            for text in texts:
                for shard in range(run.shard_count):
                    if RunPart(number, PARTS).holds(name, text, shard, run.shard_count):
                        run.shard_path(name, text, shard).unlink()
        audited(two, out, part=f"{number}/{PARTS}")
    return out


def test_parts_in_any_order_killed_and_repeated_make_the_bytes_of_one(
    shared: Path, alone: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(shared, tmp_path / "run")
    assert not (out / "summary.json").exists() and Run(out).manifest.parts == PARTS
    with locked(out, together=True), pytest.raises(RunError, match="is in use by process"):
        robustkit.merge(out)  # a part is still at work
    run = robustkit.merge(out)
    assert everything(out) == everything(alone) and (out / "report.html").is_file()
    assert run.manifest.parts is UNSET and not (out / "adversarials").exists()
    assert len({path.parent for path in out.rglob("evidence/*/*.json")}) == 2
    assert everything(robustkit.merge(out).path) == everything(alone)  # again: nothing changes


def test_the_same_command_without_part_completes_it(two: Path, shared: Path, alone: Path, tmp_path: Path) -> None:
    out = shutil.copytree(shared, tmp_path / "run")
    Run(out).shard_path("net", SPARE, 3).unlink()
    audited(two, out)
    assert everything(out) == everything(alone)


def test_a_missing_part_is_named_with_its_units_and_its_command(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = small_audit.command(place, out, "--attacks", "fgsm", "--eps", "8/255", "--shard-size", "8")[3:]
    for number in (3, 1):
        status, printed, errors = called([*words, "--part", f"{number}/3", "--quiet"])
        assert status == 0, errors
        assert printed == f"part {number}/3 is done; when all are: robustkit merge {out}\n"
    status, _, errors = called(["merge", str(out)])
    lost = [(t, n) for t in ("clean", SPARE) for n in range(4) if unit_part("net", t, n, 4, 3) == 2]
    assert status == 2 and lost
    assert f"{len(lost)} of 8 units are missing: part 2/3 lacks {len(lost)} (net under {lost[0][0]}, shard" in errors
    assert errors.rstrip().endswith("rerun the program that made the run) --part 2/3") or "--part 2/3" in errors
    assert not (out / "summary.json").exists()
    status, _, errors = called([*words, "--part", "2/3"])
    status, printed, errors = called(["merge", str(out)])
    assert status == 0 and "report: " in printed, errors


def test_a_run_that_claims_endless_units_is_refused_at_once(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {"vit": {"clean": right(1, 2)}})
    plain = run.manifest.to_plain()
    shutil.rmtree(run.path / "records")
    write_plain(run, plain | {"shard_size": 1, "data": plain["data"] | {"n": 1 << 52}})
    with pytest.raises(RunError, match=r"run\.json does not say which samples each shard has"):
        robustkit.merge(run.path)


def in_folders(two: Path, place: Path, count: int, **options: Any) -> list[Path]:
    return [
        audited(two, place / f"part-{number}", part=f"{number}/{count}", **options).path
        for number in range(1, count + 1)
    ]


@pytest.mark.slow
def test_parts_in_folders_of_their_own_are_merged_or_refused_with_what_differs(
    two: Path, alone: Path, tmp_path: Path
) -> None:
    parts = in_folders(two, tmp_path, 3)
    doubled = audited(two, tmp_path / "again", part="2/3").path
    out = tmp_path / "merged"
    robustkit.merge([*parts[::-1], doubled], out)
    assert everything(out) == everything(alone)
    record = next(doubled.rglob("records/**/*.parquet"))
    inside = record.relative_to(doubled)
    record.write_bytes(record.read_bytes()[::-1])
    with pytest.raises(DamagedRecord, match=rf"{re.escape(str(record))}: .*delete it, and rerun"):
        robustkit.merge([*parts, doubled], tmp_path / "damaged")
    other = audited(two, tmp_path / "other", part="2/3", seed=1).path
    with pytest.raises(
        RunError, match=r"other is not part of the run in .*part-1: seed is 0 there and 1 here.*give parts"
    ):
        robustkit.merge([*parts, other], tmp_path / "mixed")
    shutil.rmtree(doubled)
    shutil.copytree(parts[1], doubled)
    run = Run(doubled)
    unit = next(run.units())
    table, path = next(run.shards(*unit)), run.record_paths(*unit)[0]
    column = table.schema.names.index("nll")
    field = table.schema.field(column)
    run.write_shard(path, table.set_column(column, field, pa.array([9.0] * len(table), field.type)))
    inside = path.relative_to(doubled)
    with pytest.raises(
        RunError, match=rf"again/{re.escape(str(inside))} differs from .*part-2/{re.escape(str(inside))}"
    ):
        robustkit.merge([*parts, doubled], tmp_path / "differing")
    assert not (tmp_path / "differing" / "records").exists()
    with pytest.raises(RunError, match="units are missing: part 1/3 lacks"):
        robustkit.merge(parts[1:], tmp_path / "lacking")


def test_parts_of_a_segmenter_make_the_summary_of_one(tmp_path: Path) -> None:
    def segmented(name: str, part: str | None = None) -> Path:
        options: dict[str, Any] = {"attacks": "none", "corruptions": "gaussian_noise(severity=3)", "limit": 4}
        options |= {"shard_size": 1, "device": "cpu", "examples": 0, "part": part, "data_dir": "embedded:shapes"}
        return robustkit.segment("zoo:shapes-segmenter-quest", out=tmp_path / name, **options).path

    for part in ("2/2", "1/2"):
        segmented("parts", part)
    robustkit.merge(tmp_path / "parts")
    assert everything(tmp_path / "parts") == everything(segmented("alone"))


def test_parts_hold_a_folder_together_and_take_turns(tmp_path: Path) -> None:
    alone = pytest.raises(RunError, match="is in use by process")
    with locked(tmp_path, together=True), locked(tmp_path, together=True), alone, locked(tmp_path):
        pass
    with locked(tmp_path), pytest.raises(RunError, match="is in use by process"), locked(tmp_path, together=True):
        pass
    inside, most = [0], [0]

    def enter() -> None:
        with in_turn(tmp_path):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_parts_that_are_processes_at_the_same_time(place: Path, tmp_path: Path) -> None:
    """Three processes in one folder at once, one of them killed and started again."""
    words = small_audit.command(place, tmp_path / "run", "--shard-size", "4", *CONDITIONS)
    status, _, errors = called([*small_audit.command(place, tmp_path / "alone", "--shard-size", "4", *CONDITIONS)[3:]])
    assert status == 0, errors
    started = [subprocess.Popen([*words, "--part", f"{number}/3"], stdout=subprocess.DEVNULL) for number in (1, 2, 3)]
    while not any((tmp_path / "run").rglob("records/**/*.parquet")):
        time.sleep(0.02)
    os.kill(started[1].pid, signal.SIGKILL)
    again = subprocess.Popen([*words, "--part", "2/3"], stdout=subprocess.DEVNULL)
    assert [process.wait(timeout=600) for process in (*started, again)] == [0, -signal.SIGKILL, 0, 0]
    robustkit.merge(tmp_path / "run")
    assert everything(tmp_path / "run") == everything(tmp_path / "alone")
