"""What a person waiting sees: a line for each finished condition, once, and what all will cost."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import called
from rich.console import Console
from small_audit import audit, command

from robustkit.display.format import clock_time
from robustkit.display.progress import ConsoleProgress
from robustkit.evaluations.condition import Cost
from robustkit.evaluations.corruptions import Corrupted, corruption_condition
from robustkit.pipeline.processes import Ranks
from robustkit.pipeline.progress import Estimate, Job, Reporter
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.report.run import Run

pytestmark = pytest.mark.usefixtures("pageless")
LINE = re.compile(
    r"\[(\d+)/(\d+)\] net (.*): (\d+(?: of \d+)?) samples"
    r"(?:, top-1 ([\d.]+) %)?(?:, [\d.]+ s)?; elapsed \d+:\d\d"
)
OPTIONS: dict[str, Any] = {"attacks": "fgsm,pgd(steps=2)", "cams": "grad-cam", "faithfulness": "none"}


def lines(messages: list[str]) -> list[tuple[str, ...]]:
    found = [LINE.match(message) for message in messages]
    return [line.groups() for line in found if line]


@pytest.fixture
def hears(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "robustkit")

    def taken() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return taken


def test_a_call_from_python_tells_the_logger_and_prints_nothing(
    place: Path, tmp_path: Path, hears: Callable[[], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    run = audit(place, tmp_path, **OPTIONS)
    said = hears()
    reported = lines(said)
    titles = [*run.manifest.conditions]
    assert [line[:4] for line in reported] == [(str(n), "7", title, "30") for n, title in enumerate(titles, 1)]
    top1 = {row.condition: f"{100 * row.value:.1f}" for row in run.summary() if row.metric == "top1"}
    assert [line[4] for line in reported] == [top1.get(title) for title in titles]
    assert said.count("to do: 1 checkpoint, 7 conditions, 30 samples: 28 units of work") == 1
    assert sum(" on cpu" in line for line in said) == 1 and said[-1].startswith("done in 0:")
    assert capfd.readouterr() == ("", "")


def test_a_resumed_run_says_what_was_there(place: Path, tmp_path: Path, hears: Callable[[], list[str]]) -> None:
    run = audit(place, tmp_path, **OPTIONS | {"cams": None})
    run.shard_path("net", "pgd(eps=8/255,steps=2)", 3).unlink()
    hears()
    audit(place, tmp_path, **OPTIONS)
    said = hears()
    assert "to do: 1 checkpoint, 7 conditions, 30 samples: 28 units of work, of which 11 are already done" in said
    reported = lines(said)
    assert [(line[0], line[2]) for line in reported][:2] == [
        ("3", "pgd(eps=8/255,steps=2)"),
        ("4", "cam(grad-cam,faithfulness=none)"),
    ]
    assert reported[0][3] == "6 of 30" and len(reported) == 5  # the samples of the shard that was computed again
    audit(place, tmp_path, **OPTIONS)
    said = hears()
    assert not lines(said) and any(line.endswith("of which 28 are already done") for line in said)
    assert not any("about" in line or "done in" in line for line in said)


def reporter_of(run: Run, jobs: list[Job], conditions: list[Condition], now: list[float]) -> Reporter:
    estimate, nobody = Estimate(jobs, clock=lambda: now[0]), ConsoleProgress(Console(quiet=True), quiet=True)
    own = {jobs[0].checkpoint: {condition.text: [0] for condition in conditions}}
    return Reporter(run, conditions, 10, own, estimate, Ranks(), nobody, clock=lambda: now[0])


def test_severities_of_a_corruption_are_one_line(tmp_path: Path, hears: Callable[[], list[str]]) -> None:
    run, conditions = Run(tmp_path), [corruption_condition(Corrupted("fog", severity)) for severity in (1, 3)]
    jobs = [Job("net", each.text, each.name, each.group, 10, Cost()) for each in conditions]
    reporter = reporter_of(run, jobs, conditions, [0.0])
    for condition in conditions:
        assert not hears()
        reporter.begin("net", condition, 10)
        reporter.advance(10)
        path = run.shard_path("net", condition.text, 0)
        path.parent.mkdir(parents=True)
        path.touch()  # no record, so that there is no figure: the line comes all the same
        reporter.written("net", condition)
    said = [line for line in hears() if line[0] == "["]
    assert said == ["[1/1] net corruption(fog) x2: 20 samples, 0.0 s; elapsed 0:00, writing summary and report"]


def test_a_log_has_the_lines_and_quiet_silences_them(place: Path, tmp_path: Path) -> None:
    words = "--attacks", "fgsm", "--eps", "8/255"
    status, out, log = called(command(place, tmp_path / "a", *words)[3:])
    assert status == 0 and [line[2] for line in lines(log.splitlines())] == ["clean", "fgsm(eps=8/255)"]
    assert "to do: 1 checkpoint, 2 conditions, 30 samples: 2 units of work" in log
    assert "[1/2]" not in out
    status, quiet_out, quiet_log = called(command(place, tmp_path / "b", *words, "--quiet")[3:])
    assert status == 0 and not any(word in quiet_log for word in ("[1/2]", "to do", "passes", "about", "done in"))
    assert quiet_out.replace(str(tmp_path / "b"), "") == out.replace(str(tmp_path / "a"), "")


def test_a_long_condition_gives_signs_and_names_steer_no_terminal(
    tmp_path: Path, hears: Callable[[], list[str]]
) -> None:
    now, job = [0.0], Job("net\x1b[31m", "clean", "clean", "", 100, Cost())
    reporter = reporter_of(Run(tmp_path), [job], [CLEAN], now)
    reporter.begin(job.checkpoint, CLEAN, 100)
    for _ in range(20):
        now[0] += 10
        reporter.advance(1)
    assert hears() == [
        "net\ufffd[31m clean: 7 samples so far; elapsed 1:10, about 15:30 left",
        "net\ufffd[31m clean: 14 samples so far; elapsed 2:20, about 14:20 left",
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_bars_keep_their_counts_whole_and_show_the_time_of_the_whole_run(tmp_path: Path, width: int) -> None:
    checkpoint, now = "a_checkpoint_whose_name_has_more_than_sixty_characters_in_its_file_name", [0.0]
    names = ("clean", "autoattack(eps=4/255,steps=10,targets=3)")
    conditions = [Condition(name.partition("(")[0], name) for name in names]
    jobs = [Job(checkpoint, name, name, "", 50_000, Cost()) for name in names]
    estimate = Estimate(jobs, clock=lambda: now[0])
    console = Console(file=io.StringIO(), width=width, height=10, force_terminal=True)
    shown = ConsoleProgress(console)
    own = {checkpoint: {name: [0] for name in names}}
    reported = Reporter(Run(tmp_path), conditions, 50_000, own, estimate, Ranks(), shown, clock=lambda: now[0])
    for condition, seconds in zip(conditions, (100.0, 1000.0), strict=True):
        reported.begin(checkpoint, condition, 50_000)
        now[0] += seconds
        reported.advance(12_345)
    reported.stage("square", 41_234, 0.4)
    now[0] += 1
    drawn = Console(file=io.StringIO(), width=width)
    drawn.print(shown.bars.get_renderable())
    assert isinstance(drawn.file, io.StringIO)
    first, second, overall = drawn.file.getvalue().splitlines()
    assert max(map(len, (first, second, overall))) <= width
    assert "… · clean  " in first and all(line.count("12345/50000 samples") == 1 for line in (first, second))
    assert "square: 41234 left, 40 %" in second
    left = re.escape(clock_time(estimate.left() or 0))
    assert re.fullmatch(rf"0 of 2 done; elapsed 18:21, about {left} left *", overall)


def test_more_bars_than_lines_show_those_that_were_begun_last() -> None:
    shown = ConsoleProgress(Console(file=io.StringIO(), width=90, height=4, force_terminal=True))
    shown.follow(lambda: "all of it")
    for condition in ("one", "two", "three", "four", "one"):
        shown.start("net", condition, 2_000)
        shown.advance(1_000)
    shown.found("net", "four", "top-1 87.5 %")  # what a line of a log says about it
    shown.found("net", "never begun", "top-1 1.0 %")
    drawn = Console(file=io.StringIO(), width=90)
    drawn.print(shown.bars.get_renderable())
    assert isinstance(drawn.file, io.StringIO)
    assert re.findall(r"· (\w+)(?: · (top-1 [\d.]+ %))? .* (\d+/\d+) samples|(all of it)", drawn.file.getvalue()) == [
        *[("one", "", "2000/4000", ""), ("four", "top-1 87.5 %", "1000/2000", "")],
        ("", "", "", "all of it"),
    ]
