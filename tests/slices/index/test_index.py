"""The index of a folder's runs: what it lists, whom it believes, what it writes and serves, how little it reads."""

import dataclasses
import http.client
import json
import math
import os
import re
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from click.testing import CliRunner
from figures import EMPTY, noted
from gate_runs import PGD, make, right
from index_runs import audited, forged, furnished
from manifests import write_plain
from matplotlib.figure import Figure as Canvas
from msgspec.structs import replace
from page_runs import HOSTILE, Page, make_run
from PIL import Image

from robustkit.cli.app import cli, main
from robustkit.common import plugins
from robustkit.common.intervals import wilson
from robustkit.errors import RunError
from robustkit.report.refresh import refresh
from robustkit.results.comparison import compare_sides
from robustkit.results.pairing import checkpoint_pairs
from robustkit.results.survey import write_summary
from robustkit.runs.folder import RunFolder
from robustkit.slices.gallery.sheet import Gallery, write_html
from robustkit.slices.index import folder_of_runs
from robustkit.slices.index import page as index_page
from robustkit.slices.index import scan as index_runs
from robustkit.slices.index.page import Site, comparison_page, figure_name, index_text, server_of, write_index
from robustkit.slices.index.scan import CACHE_MARK, FOLDER, MARK, Indexed, find_runs, list_runs, read_run

pytestmark = pytest.mark.usefixtures("whole_figures")

GOOD = ["half", "early", "vit/b", "vit/a"]  # the newest first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnished(tmp_path_factory.mktemp("index") / "runs")


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    write_index(folder)
    return Page((folder / "index.html").read_text("utf-8"))


def test_every_run_is_listed_and_nothing_else_is_opened(folder: Path) -> None:
    found, listed = find_runs(folder), list_runs(folder)
    assert found.links == ["linked"] and not any("hidden" in name for name in found.runs)
    assert list(listed.runs)[:4] == GOOD and set(listed.runs) - set(GOOD) == {
        "forged",
        *(f"hostile/{i}" for i in range(4)),
    }
    why = listed.unreadable
    assert why.keys() == {"broken", "altered", "half-linked"}
    assert "cannot be read" in why["broken"] and "was modified after it was written" in why["altered"]
    assert "run.json is a link to " in why["half-linked"]
    assert listed.runs["forged"].problem.startswith("is not as an audit writes it (Expected `str`")
    assert (listed.runs["half"].missing, listed.runs["half"].units, listed.runs["half"].is_whole) == (1, 2, False)
    assert listed.runs["early"].problem.startswith("no results yet: robustkit report")


def test_figures_are_those_of_the_summary(folder: Path) -> None:
    (checkpoint,) = list_runs(folder).runs["vit/b"].checkpoints
    rows = {(row.condition, row.metric): row for row in RunFolder(folder / "vit" / "b").summary()}
    assert [(*f.figure.key, f.chief) for f in checkpoint.figures] == [
        ("clean", "top1", True),
        (PGD, "top1", True),
    ]
    for indexed in checkpoint.figures:
        assert indexed.figure == dataclasses.replace(rows[indexed.figure.key], findings=())


@pytest.mark.parametrize("count", [12, 13])
def test_flags_are_bounded_counted_and_named_with_their_conditions(tmp_path: Path, count: int) -> None:
    run = audited(tmp_path / "run", "vit", (9, 3), 1, of=10)
    rows = [dataclasses.replace(row, findings=noted("of both")) for row in run.summary()]
    place = next(place for place, row in enumerate(rows) if row.condition == "clean")
    rows[place] = rows[place].having(noted(*(f"doubt {place}" for place in range(count - 1))))
    run.write_summary(rows)
    (checkpoint,) = list_runs(tmp_path).runs["run"].checkpoints
    assert (len(checkpoint.flags), checkpoint.flagged) == (12, count)
    assert checkpoint.flags[:2] == ("of both [run/note] (2 conditions)", "doubt 0 [run/note] (clean)")


def test_figures_that_no_rule_is_drafted_on_and_those_without_a_value_are_left_out(tmp_path: Path) -> None:
    run = audited(tmp_path / "run", "vit", (9, 3), 1, of=10)
    (row,) = (row.to_plain() for row in run.summary() if row.key == ("clean", "top1"))
    attacked, fog = {**row, "condition": PGD, "value": 0.25}, "corruption(fog)"
    under = "pgd(eps=1/255,steps=20,under=fog,severity=3)"
    for rows, kept in (
        ([row, attacked, {**row, "metric": "nll", "value": 0.5}], [("clean", "top1"), (PGD, "top1")]),
        ([{**row, "value": None}, attacked], [(PGD, "top1")]),
        ([{**row, "value": math.inf}, attacked], [(PGD, "top1")]),
        ([row, {**row, "metric": "of no task"}], [("clean", "top1")]),
        (
            [row, {**row, "condition": fog}, {**row, "condition": "corruption(fog,severity=3)"}],
            [("clean", "top1"), (fog, "top1")],
        ),
        ([row, {**row, "condition": "attention"}], [("clean", "top1")]),
        ([{**attacked, "metric": "parity"}, {**row, "condition": under, "metric": "parity"}], [(PGD, "parity")]),
    ):
        forged(run, rows)
        (checkpoint,) = list_runs(tmp_path).runs["run"].checkpoints
        assert [indexed.figure.key for indexed in checkpoint.figures] == kept


def test_columns_that_are_empty_for_most_are_left_out(tmp_path: Path) -> None:
    runs = [audited(tmp_path / name, name, (40, 9), day=1) for name in "abc"]

    def headings() -> list[str]:
        return (
            Page(index_page.index_page(tmp_path, list_runs(tmp_path), index_page.Pairs()))
            .text("th")
            .partition("flags")[0]
        )

    assert "gate" not in headings() and "attacks" in headings()
    policy = tmp_path / "release.toml"
    policy.write_text('[[rule]]\nrequire = "top1 under clean >= 0.5"\n')
    for count, run in enumerate(runs[:2], start=1):
        assert CliRunner().invoke(cli, ["check", str(run.path), "--policy", str(policy)]).exit_code == 0
        index_runs.write_cache(tmp_path, list_runs(tmp_path))
        assert ("gate" in headings()) == (2 * count >= 3)
    page = Page(index_page.index_page(tmp_path, list_runs(tmp_path), index_page.Pairs())).text("td")
    assert page.count("passedrelease.toml") == 2


def test_folders_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scandir(path / "none" if path.name == "b" else path))
    assert find_runs(tmp_path).closed == {"b": "No such file or directory"}
    assert find_runs(tmp_path / "none").closed == {".": "No such file or directory"}


def test_folders_are_searched_to_a_depth(tmp_path: Path) -> None:
    for depth in (32, 33):
        place = tmp_path.joinpath(*[f"d{depth}"] * depth)
        place.mkdir(parents=True)
        (place / "run.json").write_text("{}")
    assert find_runs(tmp_path).runs == ["/".join(["d32"] * 32)] and find_runs(place).runs == ["."]


def test_the_page_says_it_and_fetches_nothing(folder: Path, page: Page) -> None:
    text = (folder / "index.html").read_text("utf-8")
    assert 'data-served="1"' not in text
    rows = [attrs for attrs in page.all("tr") if "data-name" in attrs]
    assert [row["data-name"] for row in rows][:4] == ["other", "other", "vit", "vit"]
    assert [row["data-state"] for row in rows][:4] == ["plain unfinished", "plain unfinished", "plain", "plain"]
    said = page.text()
    for words in ("9 runs with 9 checkpoints", "3 unfinished or without results", "1 link not followed", "unfinished"):
        assert words in said
    assert page.said["title"] == ["RobustKit: runs in runs"]
    assert "80.0 [67.0, 88.8]" in said and "1 of 2 units of work are missing" in said
    assert text.count("<script") == 1 and not page.all("link") + page.all("iframe") + page.all("img")
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)
    style = "".join(page.said["style"])
    assert set(re.findall(r"var\((--[a-z]+)", style)) <= {*re.findall(r"(--[a-z]+):", style), "--heat"}
    links = [attrs["href"] for attrs in page.all("a")]
    assert {"vit/a/report.html", "vit/b/report.html"} <= set(links)
    for link in links:
        assert link.startswith("#") or (folder / link).is_file()
    assert {HOSTILE[0], HOSTILE[1]} <= {row["data-name"] for row in rows}


def test_history_and_comparison_of_one_name(folder: Path, page: Page) -> None:
    (history,) = [attrs for attrs in page.all("details") if attrs.get("class") == "history"]
    assert "open" in history and page.all("svg")
    alt = page.all("svg")[0]["aria-label"]
    assert alt.startswith("vit over 2 runs, the oldest first. top-1 %, clean: 90.0 [78.6, 95.7], 80.0 [67.0, 88.8]; ")
    (pair,) = [attrs for attrs in page.all("a") if "data-first" in attrs]
    assert (pair["data-first"], pair["data-second"]) == ("vit/a", "vit/b")
    shown = Page((folder / pair["href"]).read_text("utf-8"))
    comparison = compare_sides(checkpoint_pairs([RunFolder(folder / "vit" / name) for name in "ab"]))
    row = next(row for row in comparison.rows if (row.condition, row.metric) == (PGD, "top1"))
    assert (
        f"{100 * row.difference.value:+.1f} [{100 * row.difference.ci_low:+.1f}".replace("-", "−") in shown.text()
        and "worse" in shown.text()
    )
    assert row.difference.value == pytest.approx(-0.2) and not shown.all("script")


def test_a_history_marks_what_was_asked_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"name": "vit", "sha256": "00", "preprocessing": {"crop_pct": 0.9}, "windows": {"size": [8, 9]}}
    first = {"name": "vit", "sha256": "00"}
    asked: list[dict[str, Any]] = [
        {"checkpoints": [first]},
        {"checkpoints": [first], "batch_size": 7, "device": "cuda"},  # neither decides a record
        {"checkpoints": [other], "deciding": {"seed": 3}},
        {"checkpoints": [first], "corrupted": {"digests": {PGD: "other"}}, "conditions": ["clean", PGD, "new"]},
    ]
    for place, changes in enumerate(asked):
        started = f"2026-01-01T1{place}:30:00+00:00"
        audited(tmp_path / f"r{place}", "vit", (9 - place, 3), 1, of=10, started=started, **changes)
    drawn = list[list[int]]()
    monkeypatch.setattr(index_page, "dots", lambda axes, places, *rest, **more: drawn.append(list(places)))
    index = write_index(tmp_path, compared=0)
    (shown,) = index_page.histories(index.listed.runs)
    there = ("crop pct 0.9 instead of 0.875", "window size 8×9 instead of none", "seed differs: 0 and 3")
    back = ("crop pct 0.875 instead of 0.9", "window size none instead of 8×9", "seed differs: 3 and 0")
    assert shown.changes == ((), (), there, (*back, f"files that {PGD} reads differ"))
    assert index.pairs.changes == {("r2", "r3"): [*shown.changes[3]], ("r1", "r2"): [*there], ("r0", "r1"): []}
    assert drawn[:6] == 2 * [[0, 1], [2], [3]]  # of clean, then under attack: no line across a change
    assert shown.chart
    shown.chart.paint(canvas := Canvas())
    (axes,) = canvas.axes
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5, 2.5] and axes.get_xlim() == (-0.5, 3.5)  # type: ignore[index]
    assert axes.get_ylim() == (-3, pytest.approx(100 * wilson(9, 10)[1] + 3))
    assert shown.chart and f"from run 3 on, {', '.join(there)}" in shown.chart.alt
    assert re.findall(r">(2026-01-01|1\d:30)<", shown.chart.svg) == ["10:30", "2026-01-01", "11:30", "12:30", "13:30"]
    page = Page((tmp_path / "index.html").read_text("utf-8"))
    assert f"⚑ {'; '.join(there)}" in page.text("td") and page.text("td").count("as before") == 1


def test_a_history_is_of_one_data_set_card_and_task(tmp_path: Path) -> None:
    audited(tmp_path / "a", "vit", (9, 3), 1, of=10)
    audited(tmp_path / "b", "vit", (8, 3), 2, of=10)
    other = {"name": "few", "root": "val", "layout": "folders", "n": 10, "classes": 3, "digest": "d2"}
    audited(tmp_path / "c", "vit", (7, 3), 3, of=10, data=other, deciding={"data digest": "d2"})
    audited(tmp_path / "d", "vit", (6, 3), 4, of=10, deciding={"protocol": "quest-paper@1:0"})
    audited(tmp_path / "e", "vit", (5, 3), 5, of=10, data=other, deciding={"data digest": "d2"})
    audited(tmp_path / "f", "deit", (4, 3), 6, of=10)
    write_summary(make(tmp_path / "g", {"resnet": {"clean": right(5, 10)}}))
    write_summary(make(tmp_path / "h", {"resnet": {"clean": right(5, 10), PGD: right(4, 10)}}))
    index = write_index(tmp_path, compared=0)
    shown = {tuple(path for path, *_ in each.runs): each for each in index_page.histories(index.listed.runs)}
    assert shown.keys() == index.pairs.changes.keys() == {("a", "b"), ("c", "e"), ("g", "h")}
    assert [key[0] for key in shown["g", "h"].keys] == ["clean", PGD]  # of the newest


def test_ticks_of_a_history_are_few_dates_and_comparisons_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 12):
        audited(tmp_path / f"r{day:02d}", "vit", (9, 3), day, of=10)
    (shown,) = index_page.histories(list_runs(tmp_path).runs)
    dates = [f"2026-01-{day:02d}" for day in (1, 4, 7, 10)]  # more than five would touch
    assert shown.chart and re.findall(r">(2026-01-\d\d)<", shown.chart.svg) == dates
    monkeypatch.setattr(index_page, "comparison_page", lambda *given: MARK)
    pairs = write_index(tmp_path).pairs
    assert (len(pairs.pages), pairs.waiting) == (8, [("r02", "r03"), ("r01", "r02")])


@pytest.mark.parametrize(
    ("started", "ticks"),
    [
        (["2026-01-01T10:30:00", "2026-01-02T10:30:00"], ["2026-01-01", "2026-01-02"]),
        (["2026-01-01T10:30:00", "2026-01-01T10:31:00"], ["10:30\n2026-01-01", "10:31\n"]),
        (["2026-01-01T10:30:00+00:00", "2026-01-01T10:30:01+00:00"], ["10:30:00\n2026-01-01", "10:30:01\n"]),
    ],
)
def test_ticks_are_as_exact_as_they_must_be(started: list[str], ticks: list[str]) -> None:
    assert index_page._times(started) == ticks


@pytest.mark.parametrize(
    ("metric", "ends", "name", "text"),
    [
        ("top1", (0.25, 0.75), "top-1 %, clean", "50.0 [25.0, 75.0]"),
        ("top1", (None, 0.75), "top-1 %, clean", "50.0"),
        ("nll", (0.25, 0.75), "NLL, clean", "0.500 [0.250, 0.750]"),
        ("parity", (None, None), "parity, clean", "50.0"),  # which has no label
        ("of no task", (0.25, 0.75), "of no task, clean", "0.500 [0.250, 0.750]"),
    ],
)
def test_figures_are_written_as_their_metric_is(metric: str, ends: Any, name: str, text: str) -> None:
    row = (
        EMPTY
        | {"condition": "clean", "metric": metric, "value": 0.5, "n": 10}
        | dict(zip(("ci_low", "ci_high"), ends, strict=True))
    )
    indexed = Indexed(row | {"flags": ()}, "clean", True, "clean")
    assert (figure_name(indexed), index_text(indexed.figure)) == (name, text)


def test_a_chart_has_figures_without_an_interval(tmp_path: Path) -> None:
    for name in "ab":
        run = make(tmp_path / name, {"vit": {"clean": right(5, 8)}})
        write_summary(run)
        run.write_summary([dataclasses.replace(row, low=math.nan, high=math.nan) for row in run.summary()])
    write_index(tmp_path)
    assert "top-1 %, clean: 62.5, 62.5" in (tmp_path / "index.html").read_text("utf-8")


def test_charts_are_bounded_in_number_and_in_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = ["clean", *(f"pgd(eps={place}/255,steps=20)" for place in range(1, 5))]
    for name in "ab":
        write_summary(make(tmp_path / name, {"vit": {text: right(5, 10) for text in conditions}}))
    runs = list_runs(tmp_path).runs
    (shown,) = index_page.histories(runs)
    assert len(shown.keys) == 5 and shown.chart and shown.chart.alt.count("50.0 [") == 2 * 4
    assert shown.chart.height == 205 + 16 * 4
    assert index_page._chart(dataclasses.replace(shown, keys=(("clean", "nll"), ("clean", "of no task")))) is None
    (checkpoint,) = runs["a"].checkpoints
    assert shown.cells(checkpoint) == ["50.0 [23.7, 76.3]"] * 5
    assert shown.cells(replace(checkpoint, figures=())) == ["–"] * 5
    many = {
        path: replace(run, checkpoints=tuple(replace(run.checkpoints[0], name=str(place)) for place in range(25)))
        for path, run in runs.items()
    }
    monkeypatch.setattr(index_page, "_chart", lambda history: shown.chart)
    assert [history.chart is not None for history in index_page.histories(many)] == 24 * [True] + [False]


def test_finished_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = furnished(tmp_path / "runs")
    write_index(place)
    read = list[str]()
    monkeypatch.setattr(
        index_runs, "read_run", lambda path: read.append(path.name) or (_ for _ in ()).throw(RunError("read"))
    )
    listed = list_runs(place)
    assert set(read) == {"half", "early", "forged", "broken", "altered"} and "vit/a" in listed.runs
    rows = RunFolder(place / "vit" / "a").summary()
    forged(RunFolder(place / "vit" / "a"), [rows[0].to_plain()])
    read.clear()
    assert "vit/a" in list_runs(place).unreadable and "a" in read
    cache = place / ".robustkit-view" / "cache.json"
    for spoilt in ("{", cache.read_text("utf-8").replace('"n":50', '"n":"<b>"'), "[" * 100_000):
        cache.write_text(spoilt, "utf-8")
        read.clear()
        list_runs(place)
        assert "b" in read  # an altered cache is not believed in part


def test_a_checkpoint_has_the_digest_of_its_weights_and_families_their_order(folder: Path) -> None:
    listed = list_runs(folder)
    run = listed.runs["vit/a"]
    (one,), (entry,) = run.checkpoints, RunFolder(folder / "vit" / "a").manifest.checkpoints
    assert one.sha256 == entry.sha256 and len(one.sha256) == 64
    order = ["maps", "corruptions", "clean", "attacks"]
    figures = tuple(replace(one.figures[0], family=name, chief=name != "maps") for name in order)
    only = dataclasses.replace(listed, runs={"vit/a": replace(run, checkpoints=(replace(one, figures=figures),))})
    headings = Page(index_page.index_page(folder, only, index_page.Pairs())).said["th"]
    assert [text for text in headings if text in order] == ["clean", "attacks", "corruptions"]


@pytest.mark.parametrize("name", ["index.html", ".robustkit-view/cache.json"])
def test_files_of_others_are_never_overwritten(tmp_path: Path, name: str) -> None:
    place = tmp_path / "runs"
    audited(place / "a", "vit", (9, 3), day=1)
    write_index(place)
    write_index(place)  # its own is
    theirs = place / name
    theirs.write_text("<!doctype html>\nmine", "utf-8")
    with pytest.raises(RunError, match=rf"{re.escape(str(theirs))} was not written by robustkit view"):
        write_index(place)
    assert theirs.read_text("utf-8") == "<!doctype html>\nmine"
    if name == "index.html":
        other = tmp_path / "other"
        audited(other / "a", "vit", (9, 3), day=1)
        (other / name).write_text("mine", "utf-8")
        with pytest.raises(RunError, match="was not written by robustkit view"):
            write_index(other)
        assert {path.name for path in other.iterdir()} == {"a", name}  # nothing was written first
    theirs.unlink()
    target = tmp_path / "target"
    target.write_text(f"{CACHE_MARK}\n{MARK}", "utf-8")
    theirs.symlink_to(target)
    with pytest.raises(RunError, match="is a link to"):
        write_index(place)
    assert target.read_text("utf-8") == f"{CACHE_MARK}\n{MARK}"
    with pytest.raises(RunError, match="there is no such folder"):
        write_index(tmp_path / "none")


def test_new_comparisons_are_bounded_and_old_ones_go(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    for day, hits in enumerate((9, 8, 7, 6), start=1):
        audited(place / f"r{day}", "vit", (hits, 3), day, of=10)
    index = write_index(place, compared=2)
    assert list(index.pairs.pages) == [("r3", "r4"), ("r2", "r3")] and index.pairs.waiting == [("r1", "r2")]
    kept = {path.name for path in (place / ".robustkit-view").glob("compare-*")}
    audited(place / "r5", "vit", (5, 3), 5, of=10)
    (place / "r4" / "report.html").write_text("new", "utf-8")
    index = write_index(place, compared=9)
    assert len(index.pairs.pages) == 4 and not index.pairs.waiting
    now = {path.name for path in (place / ".robustkit-view").glob("compare-*")}
    assert len(now) == 4 and len(kept & now) == 1  # r2 and r3 are as they were
    other = place / ".robustkit-view" / "compare-mine.html"
    other.write_text("mine", "utf-8")
    (RunFolder(place / "r1").shard_path("vit", "clean", 0)).write_bytes(b"PAR1 damaged")
    (place / "r1" / "report.html").write_text("new", "utf-8")
    index = write_index(place)
    assert other.read_text("utf-8") == "mine" and list(index.pairs.failed) == [("r1", "r2")]
    assert "was modified or damaged" in index.pairs.failed["r1", "r2"]


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    with server_of(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with serving(folder) as port:
        yield port


def test_its_threads_know_the_plug_ins_of_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Site, "index", lambda _: " ".join(plugin.name for plugin in plugins.declared("families")))
    with plugins.plugin_session():
        plugins._session.get().files[Path("mine.py")] = [plugins.Plugin("families", "turn", "mine.py")]
        with serving(folder) as port:
            assert got(port, "/")[2] == "turn"


def got(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Status, policy and body of a path, sent as it stands."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Security-Policy"], body


def test_the_server_shows_listed_files_only(port: int, folder: Path) -> None:
    (folder / "vit" / "note.txt").write_text("secret", "utf-8")
    cams = folder / "vit" / "a" / "cams"
    cams.mkdir()
    (cams / "note.html").write_text("secret", "utf-8")
    status, _, body = got(port, "/")
    assert status == 200 and 'data-served="1"' in body and "hostile/3" in body
    status, policy, body = got(port, "/vit/a/report.html")
    assert (status, body) == (200, "<!doctype html><title>report</title>")
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none'")  # it may be of someone else
    status, _, body = got(port, "/compare?first=vit/a&second=vit/b")
    assert status == 200 and body == comparison_page(folder, "vit/a", "vit/b")
    for path in (
        *("/vit/note.txt", "/vit/a/run.json", "/../outside/run.json", "/%2e%2e/outside/run.json", "//etc/passwd"),
        *("/linked/report.html", "/.robustkit-view/cache.json", "/.robustkit-view/../vit/note.txt"),
        *("/vit/../vit/note.txt", "/compare?first=vit/a&second=../outside", "/compare?first=vit/a&second=linked"),
        *("/vit/a/cams/note.html", "/vit/a/cams/gallery.html", "/vit/a/cams/", "/vit/cams/gallery.html", "/vit/a"),
        *("/compare?first=vit/a", "/compare", "/.hidden/a/report.html", "/half/report.html", "/%00", "/%ff"),
    ):
        assert got(port, path)[0] == 404, path
    own, foreign, link = (folder / FOLDER / f"compare-{place}.html" for place in range(3))
    own.parent.mkdir(exist_ok=True)
    own.write_text(f"{MARK}ours", "utf-8")
    foreign.write_text("<!doctype html>secret", "utf-8")
    link.symlink_to(own)
    for path, status in ((own, 200), (foreign, 404), (link, 404), (own.parent / "compare-none.html", 404)):
        assert got(port, f"/{path.relative_to(folder)}")[0] == status, path
    (folder / FOLDER / "other-0.html").write_text(f"{MARK}ours", "utf-8")
    assert got(port, f"/{FOLDER}/other-0.html")[0] == 404
    for path in (own, foreign, link, folder / FOLDER / "other-0.html"):
        path.unlink()
    assert got(port, "/", host="evil.example")[0] == 403
    report, gallery = folder / "vit" / "a" / "report.html", cams / "gallery.html"
    report.replace(folder / "kept")
    try:
        for link in (report, gallery):
            link.symlink_to(folder / "vit" / "note.txt")
            status, _, body = got(port, f"/{link.relative_to(folder)}")
            assert status == 409 and "is a link to" in body and "secret" not in body
        gallery.unlink()
        cams.rename(folder / "kept-cams")
        cams.symlink_to(folder / "kept-cams")
        (cams / "gallery.html").write_text("secret", "utf-8")
        status, _, body = got(port, "/vit/a/cams/gallery.html")
        assert status == 409 and "is a link to" in body and "secret" not in body
    finally:
        (folder / "kept").replace(report)
        cams.unlink()


def test_a_client_that_hangs_up_is_told_nobody(port: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Before it has asked, in the middle of it, and before it has the answer."""
    page = folder / "vit" / "a" / "report.html"
    kept = page.read_bytes()
    page.write_bytes(b"x" * (8 << 20))  # more than the sockets hold
    try:
        for words in (b"", b"GET /vit/a/re", b"GET /vit/a/report.html HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            for _ in range(3):
                client = socket.create_connection(("127.0.0.1", port), timeout=60)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                client.sendall(words)
                client.close()
        assert got(port, "/vit/a/report.html")[0] == 200  # after those
        time.sleep(0.3)
    finally:
        page.write_bytes(kept)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_every_link_on_a_served_page_leads_to_a_page(tmp_path: Path) -> None:
    for name in ("first", "second"):
        run = make_run(tmp_path / "runs" / name)
        (run.path / "cams").mkdir()
        Image.new("RGB", (8, 8)).save(run.path / "cams" / "gallery.png")
        write_html(Gallery("maps", ()), run.path / "cams" / "gallery.html")
        refresh(run)
    write_index(tmp_path / "runs")
    seen, waiting = set[str](), ["/"]
    with serving(tmp_path / "runs") as port:
        while waiting:
            here = waiting.pop()
            seen.add(here)
            status, _, body = got(port, here)
            assert status == 200, here
            there = {urljoin(here, attrs["href"]) for attrs in Page(body).all("a") if attrs["href"][:1] != "#"}
            waiting += there - seen
    galleries = {f"/{name}/cams/gallery.html" for name in ("first", "second")}
    assert galleries < seen and any("compare-" in path for path in seen)


def test_few_comparisons_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[str, str]]()
    monkeypatch.setattr(index_page, "comparison_page", lambda _, *pair: made.append(pair) or "page")
    site = Site(folder)
    pairs = [*permutations([*GOOD, "forged"], 2)][:17]
    for pair in (*pairs[:16], pairs[0], pairs[16], *pairs[:2]):
        assert site.comparison(*pair) == "page"
    assert made == [*pairs, pairs[1]]  # the second was asked for longest ago when the seventeenth came


def test_a_fault_is_told_in_a_line_and_without_words_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    for day in (1, 2):
        audited(tmp_path / f"r{day}", "vit", (9, 3), day, of=10)
    monkeypatch.setattr(index_page, "comparison_page", fail)
    assert write_index(tmp_path).pairs.failed == {("r1", "r2"): "ValueError"}
    with serving(tmp_path) as port:
        assert got(port, "/compare?first=r1&second=r2")[::2] == (409, "ValueError\n")
    audited(tmp_path / "r3", "vit", (9, 3), 3, of=10)
    monkeypatch.setattr(index_runs, "read_run", fail)
    assert list_runs(tmp_path).unreadable == {"r3": "ValueError"}
    with server_of(tmp_path, 0) as server:
        for fault, said in ((ValueError("x" * 301), f"error: ValueError: {'x' * 300}\n"), (TimeoutError(), "")):
            try:
                raise fault
            except Exception:
                server.handle_error(None, None)  # type: ignore[arg-type]
            assert capsys.readouterr().err == said


def test_a_finished_run_that_loses_records_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = audited(tmp_path / "runs" / "a", "vit", (9, 3), day=1)
    write_index(tmp_path / "runs")

    def states() -> list[bool]:
        return [one.is_whole for one in list_runs(tmp_path / "runs").runs.values()]

    assert states() == [True]
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail() if ".parquet" in path.name else read(path))
    record = run.shard_path("vit", PGD, 0)
    for there in (record, record.parent, run.path / "records"):
        there.rename(tmp_path / "gone")
        stray = there.with_name("00009.parquet")  # of a shard that the run does not have
        stray.touch()
        assert states() == [False], there
        stray.unlink()
        (tmp_path / "gone").rename(there)
        assert states() == [True]


def test_the_mark_of_its_own_files_stands_at_their_head(tmp_path: Path) -> None:
    for before, own in ((200 - len(MARK), True), (201 - len(MARK), False)):
        (tmp_path / "x").write_text("x" * before + MARK, "utf-8")
        assert index_runs.is_own_file(tmp_path / "x") is own


@pytest.mark.parametrize(("n", "fine"), [(-1, False), (0, True), ((1 << 53) - 1, True), (1 << 53, False)])
def test_numbers_of_a_summary_are_bounded(tmp_path: Path, n: int, fine: bool) -> None:
    run = audited(tmp_path / "run", "vit", (9, 3), 1, of=10)
    forged(run, [{**row.to_plain(), "n": n} for row in run.summary()])
    assert (list_runs(tmp_path).runs["run"].problem == "") is fine


def test_a_manifest_of_endless_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = audited(tmp_path / "runs" / "a", "vit", (9, 3), day=1)
    plain = json.loads(run.manifest_path.read_text("utf-8"))
    plain["conditions"] = [f"c{i}" for i in range(200_001)]
    write_plain(run, plain)
    endless = audited(tmp_path / "runs" / "b", "vit", (9, 3), day=1)
    plain = json.loads(endless.manifest_path.read_text("utf-8"))
    write_plain(endless, plain | {"shard_size": 1, "data": plain["data"] | {"n": 1 << 52}})
    listed = list_runs(tmp_path / "runs")
    assert listed.runs["b"].missing == 2 * (1 << 52) - 2
    assert "200001 folders of records, more than 200000" in listed.unreadable["a"]
    for most, readable in ((2, True), (1, False)):  # of a checkpoint under two conditions
        monkeypatch.setattr(index_runs, "_FOLDERS", most)
        assert ("b" in list_runs(tmp_path / "runs").runs) is readable


def test_the_command_says_what_it_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def status_of(*words: object) -> object:
        monkeypatch.setattr("sys.argv", ["robustkit", "view", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code

    assert status_of(folder) == 0
    said = capsys.readouterr().out
    assert f"index: {folder}/index.html (9 runs, 3 unfinished, 3 not readable)\n" in said
    assert "⚑ half-linked: run.json is a link to " in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert status_of(folder, "--serve", "--port", port) == 2
    assert f"--port {port}: Address already in use; choose another, or 0 for a free one" in capsys.readouterr().err
    assert status_of(folder / "none") == 2


def test_view_alone_takes_the_usual_folder_and_calls_conditions_as_the_page_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="no runs in runs, robustkit-runs or this folder"):
        folder_of_runs()
    (tmp_path / "robustkit-runs").mkdir()
    copied = tmp_path / "robustkit-runs" / "a"
    shutil.copytree(folder / "vit" / "a", copied)
    assert folder_of_runs() == Path("robustkit-runs")
    (tmp_path / "runs").mkdir()
    assert folder_of_runs() == Path("robustkit-runs")  # the first that has runs
    figures = [figure for one in read_run(copied).checkpoints for figure in one.figures]
    names = {indexed.figure.condition: figure_name(indexed) for indexed in figures}
    assert names["clean"] == "top-1 %, clean"
    assert all(text not in name for text, name in names.items() if "(" in text)
