"""Several processes on one run: each piece of work to one of them, and the bytes of a single process."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import small_audit
from processes import CONDITIONS, called, everything, torchrun
from torch.distributed import HashStore

from robustkit.errors import RunError
from robustkit.pipeline.processes import LedError, Ranks, is_follower, is_own, line_prefix
from robustkit.report.run import Run


def together(count: int, silence: float = 30.0) -> list[Ranks]:
    store = HashStore()
    return [Ranks(rank, count, store, silence) for rank in range(count)]


def in_threads(ranks: list[Ranks], work: object) -> list[object]:
    found: list[object] = [None] * len(ranks)

    def run(rank: Ranks) -> None:
        try:
            found[rank.rank] = work(rank)  # type: ignore[operator]
        except RunError as fault:
            found[rank.rank] = fault

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_each_item_goes_to_one_process_as_it_becomes_free() -> None:
    def work(rank: Ranks) -> list[int]:
        mine = []
        for item in rank.draw("items", range(40)):
            mine.append(item)
            time.sleep(0.02 if rank.rank == 1 else 0.001)
        return mine

    first, slow, third = in_threads(together(3), work)
    assert sorted([*first, *slow, *third]) == list(range(40))  # type: ignore[misc]
    assert len(slow) < len(first) and len(slow) < len(third)  # type: ignore[arg-type]
    assert list(Ranks().draw("items", "abc")) == ["a", "b", "c"]


def test_the_first_makes_and_all_have_it_or_know_why_not() -> None:
    made: list[int] = []

    def work(rank: Ranks) -> object:
        return rank.share("plan", lambda: made.append(rank.rank) or [[1, ["a"]]])

    assert in_threads(together(3), work) == [[[1, ["a"]]]] * 3 and made == [0]

    def fails(rank: Ranks) -> object:
        def make() -> None:
            raise RunError("the folder is full")

        return rank.share("plan", make)

    first, second = in_threads(together(2), fails)
    assert str(first) == "the folder is full"
    assert isinstance(second, LedError) and "RunError: the folder is full" in str(second)
    late = Ranks(1, 2, HashStore(), silence=0.05)
    with pytest.raises(RunError, match=r"the first process made no plan in 0\.6 s; see its output"):
        late.share("plan", list)


@pytest.mark.slow
def test_a_hung_process_is_noticed_and_a_slow_one_is_waited_for() -> None:
    leader, slow = together(2, silence=1.5)

    def work() -> None:
        for _ in range(4):
            time.sleep(1.05)
            slow.beat()
        slow.finish()

    thread = threading.Thread(target=work)
    thread.start()
    leader.finish()
    thread.join()
    leader, other = together(2, silence=0.5)
    other.beat()
    with pytest.raises(RunError, match=r"process 1 of 2 has not responded for 0\.5 s and is considered hung; its"):
        leader.finish()


def test_processes_meet_and_a_hung_one_is_noticed() -> None:
    came: list[int] = []

    def work(rank: Ranks) -> int:
        time.sleep(0.3 * rank.rank)
        came.append(rank.rank)
        rank.meet("half way")
        return len(came)

    assert in_threads(together(3), work) == [3, 3, 3]  # nobody went on before the last came
    Ranks().meet("alone")
    first, _ = in_threads(together(2, silence=0.2), lambda rank: rank.meet("never") if rank.leads else None)
    assert isinstance(first, RunError) and "process 1 of 2 has not responded" in str(first)


def test_what_the_first_process_has_told_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_own(RunError("x")) and line_prefix() == "" and not is_own(LedError("x"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert is_own(RunError("x")) and line_prefix() == "[process 1] " and not is_own(LedError("x"))


def test_records_that_another_process_wrote_elsewhere_are_missed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process says that it is done, and drew a piece whose record this folder never gets."""
    store = HashStore()
    store.set("done 1", "")
    store.add("drawn units of net", 1)
    monkeypatch.setattr(Ranks, "of_environment", classmethod(lambda cls: Ranks(0, 2, store, 30.0)))
    with pytest.raises(RunError, match="1 units of work have no record here, though all processes are done; make sure"):
        small_audit.audit(place, tmp_path / "run", attacks="none")


def test_without_torchrun_world_size_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        RunError, match=r"WORLD_SIZE is 2, but the other processes cannot be reached .*start with torchrun"
    ):
        Ranks.of_environment()
    for given in ("soon", "nan", "inf", "0", "-3"):
        monkeypatch.setenv("ROBUSTKIT_RANK_TIMEOUT", given)
        with pytest.raises(RunError, match=f"_TIMEOUT '{given}': expected seconds, above 0, such as 1800"):
            Ranks.of_environment()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(RunError, match="WORLD_SIZE is 'two'; expected a whole number"):
        Ranks.of_environment()
    assert not is_follower()
    monkeypatch.setenv("WORLD_SIZE", "")
    assert Ranks.of_environment().size == 1


@pytest.fixture(scope="module")
def alone(place: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The run of a single process, this one."""
    out = tmp_path_factory.mktemp("alone") / "run"
    status, _, errors = called(small_audit.command(place, out, "--shard-size", "4", *CONDITIONS)[3:])
    assert status == 0, errors
    return out


@pytest.fixture(autouse=True)
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_two_processes_make_the_bytes_of_one_and_print_each_line_once(place: Path, tmp_path: Path, alone: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run(torchrun(place, out), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert everything(out) == everything(alone)
    assert done.stdout.count("report: ") == 1 and done.stderr.count("layout") <= 1  # the leader alone speaks
    reported = re.findall(r"^\[(\d+)/(\d+)\] net (.*): \d+ samples", done.stderr, re.MULTILINE)
    assert [line[0] for line in reported] == [str(n) for n in range(1, len(reported) + 1)] and reported
    assert len(reported) == int(reported[0][1]) == len({line[2] for line in reported})
    assert done.stderr.count("to do:") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_is_started_again_and_the_run_is_whole(
    place: Path, tmp_path: Path, alone: Path
) -> None:
    out = tmp_path / "run"
    words = torchrun(place, out)
    words[words.index("--standalone")] = "--max-restarts=3"
    words[4:4] = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(list(out.rglob("records/**/*.parquet"))) < 3:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(int(_children(process.pid)[1]), signal.SIGKILL)
        assert process.wait(timeout=280) == 0
    assert everything(out) == everything(alone)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_kills_of_a_random_process_lose_nothing(place: Path, tmp_path: Path, alone: Path) -> None:
    out, choice, killed = tmp_path / "run", random.Random(0), 0
    while killed < 10:
        process = subprocess.Popen(torchrun(place, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began, wait = len(list(out.rglob("records/**/*.parquet"))), choice.randint(0, 2)
        while process.poll() is None and len(list(out.rglob("records/**/*.parquet"))) < began + wait:
            time.sleep(0.02)
        workers = [int(pid) for pid in _children(process.pid)]
        if process.poll() is None and workers:
            os.kill(choice.choice(workers), signal.SIGKILL)
        ended = process.wait(timeout=120) == 0  # in spite of the kill, where the worker had just ended by itself
        killed += bool(workers) and not ended
        assert not ended or everything_there(out)
        if ended:  # more to do for the kills that are left
            for path in choice.sample(sorted(out.rglob("records/**/*.parquet")), 12):
                path.unlink()
    subprocess.run(torchrun(place, out), check=True, capture_output=True, timeout=280)
    assert everything(out) == everything(alone)


def everything_there(out: Path) -> bool:
    return (out / "run.json").is_file() and len(list(Run(out).units())) == 4


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:  # it has just ended
        return []
