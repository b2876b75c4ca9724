"""Methods of several trainings: crossed intervals, pairing by seed, tables, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from compared_runs import PGD, rows_of, run_of
from scipy.stats import t

import robustkit
from robustkit.cli.app import cli
from robustkit.common.intervals import Floats
from robustkit.errors import ProtocolError, RobustkitError
from robustkit.report.run import Run
from robustkit.results.methods import ComparedMethods, compare_methods, crossed, crossed_error
from robustkit.slices.paper.plan import trainings_needed
from scripts.studies.quest_tables.trainings import Trainings
from scripts.studies.quest_tables.trainings import crossed as crossed_of_study

N = 200
NAMES = ("standard-s0", "standard-s1", "standard-s2", "quest-s0", "quest-s1", "quest-s2")
BOTH = {"standard": "standard-s*", "quest": "quest-s*"}


def made(folder: Path, names: Sequence[str] = NAMES, gap: float = 0.3) -> Run:
    """Images of different difficulty, trainings of different skill; quest is better by a gap."""
    stream = np.random.default_rng(0)
    ease, records = stream.normal(0, 0.2, N), {}
    for name in names:
        skill = 0.5 + gap * name.startswith("quest") + stream.normal(0, 0.005)
        for text, loss in (("clean", 0.0), (PGD, 0.2)):
            rows = rows_of(1, N, confidence=0.7, linf=0.0, l2=0.0, prediction=0)
            for row, easy in zip(rows, ease, strict=True):
                row["correct"] = bool(stream.random() < skill - loss + easy)
                row["nll"] = float(1 - skill + loss - easy + stream.normal(0, 0.1))
            records[name, text] = rows
    run = run_of(folder, records, of_size)
    robustkit.report(run)
    return run


def of_size(manifest: dict[str, Any]) -> None:
    manifest["data"]["n"], manifest["shard_size"] = N, N // 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("methods") / "run")


def figures(run: Run, name: str, column: str, condition: str = "clean") -> Floats:
    table = run.table(name, condition).sort_by("sample_id")
    return table[column].to_numpy(zero_copy_only=False).astype(np.float64)


def columns(run: Run, method: str, column: str, condition: str = "clean") -> Floats:
    return np.stack([figures(run, name, column, condition) for name in NAMES if name.startswith(method)], axis=1)


def test_figures_and_differences_are_of_images_and_trainings(run: Run) -> None:
    found = compare_methods(run, methods=BOTH)
    keys = [row.key for row in found.rows]
    assert keys == [(text, metric) for text in ("clean", PGD) for metric in ("top1", "nll")]
    for row, (condition, metric) in zip(found.rows, keys, strict=True):
        column = {"top1": "correct", "nll": "nll"}[metric]
        before, after = (columns(run, method, column, condition) for method in ("standard", "quest"))
        theirs = crossed_of_study(before.T, after.T)  # the seeds are the same, so they are paired
        for name in ("value", "ci_low", "ci_high", "p_value", "first", "second"):
            assert getattr(row.difference, name) == pytest.approx(getattr(theirs, name), abs=1e-12)
        figure = found.methods[1].figure(row.key)
        own = crossed_of_study(np.zeros_like(after.T), after.T)
        assert figure is not None and figure.n == N and figure.value == pytest.approx(after.mean())
        assert (figure.low, figure.high) == pytest.approx((own.ci_low, min(own.ci_high, 1 if metric == "top1" else 9)))
    assert found.rows[0].verdict == "better" and found.sentence.startswith("quest is better than standard ")
    assert [row.p_value for row in found.rows] != [row.difference.p_value for row in found.rows]


def test_trainings_without_the_same_seeds_are_not_paired_by_seed(run: Run) -> None:
    some = {"standard": ["standard-s0", "standard-s1"], "quest": ["quest-s2", "quest-s1"]}
    (row, *_) = compare_methods(run, methods=some).rows
    before = np.stack([figures(run, name, "correct") for name in some["standard"]], axis=1)
    after = np.stack([figures(run, name, "correct") for name in some["quest"]], axis=1)
    assert row.difference.value == pytest.approx(after.mean() - before.mean())
    rests = [
        np.square(s - s.mean(axis=0) - s.mean(axis=1, keepdims=True) + s.mean()).sum() / (N - 1) / (2 * N)
        for s in (before, after)
    ]
    seeds = [max(s.mean(axis=0).var(ddof=1) / 2, rest) for s, rest in zip((before, after), rests, strict=True)]
    images = max(0, (after.mean(axis=1) - before.mean(axis=1)).var(ddof=1) / N - sum(rests))
    freedom = (sum(seeds) + images) ** 2 / (seeds[0] ** 2 + seeds[1] ** 2)
    reach = t.ppf(0.975, freedom) * math.sqrt(sum(seeds) + images)
    assert row.difference.ci_high == pytest.approx(row.difference.value + reach)
    turned = compare_methods(run, methods={"standard": "standard-s*", "quest": ["quest-s2", "quest-s0", "quest-s1"]})
    assert turned.rows[0].difference == compare_methods(run, methods=BOTH).rows[0].difference  # in the order of seeds


def test_figures_that_are_no_mean_over_images_have_the_spread_of_trainings(run: Run) -> None:
    method = compare_methods(run, methods=BOTH).methods[0]
    rows = [row for row in run.summary() if row.metric == "ece" and row.condition == "clean"][:3]
    figure = method.figure(("clean", "ece"))
    assert figure is not None and figure.value == pytest.approx(np.mean([row.value for row in rows]))
    of_images = np.mean([((row.high - row.low) / 2 / 1.959963984540054) ** 2 for row in rows])
    of_trainings = np.var([row.value for row in rows], ddof=1) / 3
    squared = of_images + of_trainings
    freedom = squared**2 / (of_trainings**2 / 2 + of_images**2 / (N - 1))
    assert figure.high - figure.value == pytest.approx(t.ppf(0.975, freedom) * math.sqrt(squared))
    assert method.figure(("clean", "top9")) is None


def test_one_training_of_each_is_compared_as_files_are_and_it_is_said(run: Run) -> None:
    found = compare_methods(run, methods={"standard": "standard-s0", "quest": "quest-s0"})
    assert found.sentence == "One training of each method: a difference may be one of seeds."
    rows = robustkit.compare(run, against="standard-s0", checkpoints=["quest-s0"]).to_frame()
    assert found.to_frame()["difference"].tolist() == rows["difference"].tolist()
    assert found.to_frame()["p"].tolist() == rows["p"].tolist()


def test_groups_of_images_count_as_well(run: Run) -> None:
    alone, grouped = (compare_methods(run, methods=BOTH, **more) for more in ({}, {"groups_from": r"^(\d\d)"}))
    assert grouped.rows[0].difference.groups == 20 and alone.rows[0].difference.groups == 0
    assert "n = 200 in 20 groups" in grouped.tables[0].title


def test_the_command_prints_a_sentence_and_tables(tmp_path: Path) -> None:
    run, out = made(tmp_path), tmp_path / "methods.json"
    words = [
        "compare",
        str(run.path),
        "--method",
        "standard=standard-s*",
        "--method",
        "quest=quest-s0,quest-s1,quest-s2",
    ]
    done = CliRunner().invoke(cli, [*words, "--json", str(out)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert text.startswith("quest is better than standard ") and "quest against standard: 3 trainings each" in text
    assert "paired by image and by seed; n = 200" in text and "means over trainings" in text.lower()
    plain = json.loads(out.read_text("utf-8"))
    assert [len(each) for each in plain["methods"].values()] == [3, 3] and len(plain["rows"]) == 4
    values = ", ".join(f"{100 * figures(run, name, 'correct').mean():.1f}" for name in NAMES[:3])
    assert values in text
    idle = CliRunner().invoke(cli, [*words, "--against", "quest-s0"])
    assert isinstance(idle.exception, ProtocolError) and str(idle.exception) == "--against with --method: leave one out"


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        ({"quest": "quest-s*"}, "one method, quest; expected two or more: give --method again"),
        ({"quest": "quest-s*", "standard": "std*"}, "--method standard: unknown checkpoint 'std*'"),
        ({"quest": "*-s0", "standard": "standard-s*"}, "standard-s0 is of quest and of standard; expected one method"),
        ({"quest": "quest-s*", "standard": "standard-s0"}, "standard has one training and quest 3: how much trainings"),
    ],
)
def test_methods_that_make_no_sense_are_refused_in_a_line(run: Run, methods: dict[str, str], line: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        compare_methods(run, methods=methods)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_given_twice_is_no_second_training(tmp_path: Path) -> None:
    def same(manifest: dict[str, Any]) -> None:
        manifest["checkpoints"][1]["sha256"] = manifest["checkpoints"][0]["sha256"]

    run = run_of(tmp_path, {(name, "clean"): rows_of(place) for place, name in enumerate(NAMES)}, same)
    with pytest.raises(RobustkitError, match="standard-s0 and standard-s1 of standard are the same file, which is no"):
        compare_methods(run, methods=BOTH)


@pytest.mark.parametrize("text", ["quest", "=a", "quest=", "quest=,"])
def test_words_of_another_form_are_refused(run: Run, text: str) -> None:
    done = CliRunner().invoke(cli, ["compare", str(run.path), "--method", text])
    assert str(done.exception) == f"--method {text}: expected NAME=CHECKPOINTS, such as quest=quest-s*"


def test_level_and_coverage_of_crossed_trainings() -> None:
    stream, wrong, outside, rounds = np.random.default_rng(2), 0, 0, 600
    for _ in range(rounds):
        image, seeds = stream.normal(0, 1, (60, 1)), stream.normal(0, 0.2, (2, 1, 4))
        before, after = image + seeds + stream.normal(0, 1, (2, 60, 4))
        wrong += crossed(before, after, None, paired=False).p_value < 0.05
        error, freedom = crossed_error([before])
        outside += abs(before.mean()) > t.ppf(0.975, freedom) * error
    assert wrong / rounds <= 0.065 and outside / rounds <= 0.065


FAMILIES = Path(__file__).parents[2] / "scripts" / "studies" / "quest_tables"


@pytest.mark.parametrize(("file", "most"), [("shapes.jsonl.gz", 35), ("cifar10.jsonl", 14)])
def test_trainings_of_the_zoo_have_the_figures_of_their_study(tmp_path: Path, file: str, most: int) -> None:
    opened = gzip.open if file.endswith(".gz") else open
    with opened(FAMILIES / file, "rt", encoding="utf-8") as lines:
        study = Trainings([json.loads(line) for line in lines])
    assert sum(study.counts().values()) == most
    several = [name for name, count in study.counts().items() if count > 1]
    n = len(next(iter(study.right("quest", "clean").values())))
    rows = {
        (f"{name}-seed{seed}", "clean"): [
            {**row, "correct": bool(right)} for row, right in zip(rows_of(0, n), bits, strict=True)
        ]
        for name in several
        for seed, bits in study.right(name, "clean").items()
    }

    def of_size(manifest: dict[str, Any]) -> None:
        manifest["data"]["n"], manifest["shard_size"] = n, -(-n // 2)

    run = run_of(tmp_path, rows, of_size)
    names = {name: f"{name}-seed?" for name in ("standard", *sorted(set(several) - {"standard"}))}
    found = compare_methods(run, methods=names)
    assert [method.name for method in found.methods] == list(names)
    for row in (row for row in found.rows if row.key == ("clean", "top1")):
        theirs = study.crossed(row.second.name, "standard", "clean")
        assert theirs is not None and row.difference.p_value == pytest.approx(theirs.p_value, abs=1e-6)
        assert row.difference.ci_low == pytest.approx(theirs.ci_low, abs=1e-6)
        level = np.mean(list(study.values(row.second.name, "clean", "top1").values()))
        assert row.difference.second == pytest.approx(level, abs=1e-6)


def test_the_result_is_shown_in_a_notebook(run: Run) -> None:
    found = compare_methods(run, methods=BOTH)
    assert isinstance(found, ComparedMethods) and "quest is better" in found._repr_html_()
    assert json.loads(found.to_json())["sentence"] == found.sentence


def test_a_table_for_a_paper_has_methods_as_rows(run: Run) -> None:
    methods = {"standard": "standard-s*", "quest": ["quest-s0", "quest-s[12]"]}
    made = robustkit.table(run, columns="clean,pgd", intervals=True, methods=methods)
    assert made.names == ("standard", "quest")
    found = compare_methods(run, methods=BOTH)
    for row, method in zip(made.cells, found.methods, strict=True):
        for cell, condition in zip(row, ("clean", PGD), strict=True):
            assert cell.figure == method.figure((condition, "top1"))
    assert [cell.mark for cell in made.cells[1]] == ["best", "best"]
    p_values = [row.difference.p_value for row in found.rows if row.key[1] == "top1"]
    assert [cell.p_value for cell in made.cells[0]] == pytest.approx([min(1, 2 * p) for p in p_values], abs=0.05)
    assert made.caption.endswith(
        "Means over 3 trainings; intervals and tests are for other images and other trainings."
    )
    words = ["table", str(run.path), "--columns", "clean", "--method", "a=standard-s*", "--method", "b=quest-s*"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "Means over 3 trainings" in done.output


def test_trainings_of_two_methods_are_planned_and_not_of_three(run: Run) -> None:
    planned = robustkit.plan(run, difference=20, methods=BOTH)
    before, after = (columns(run, method, "correct") for method in ("standard", "quest"))
    need = planned.needs[0]
    assert (need.key, need.n) == (("clean", "top1"), N)
    assert need.spread == pytest.approx((after - before).mean(axis=0).std(ddof=1))
    by_image = (after - before).mean(axis=1).var(ddof=1) / N
    assert need.needed[0] == trainings_needed(by_image, need.spread**2, N - 1.0, 0.2)
    assert "trainings of each that show 20.0 points" in planned.tables[0].title
    apart = {"a": ["quest-s0", "quest-s1"], "b": ["standard-s0", "standard-s2"]}  # not of the same seeds
    other = robustkit.plan(run, difference=20, methods=apart).needs[0]
    sides = [np.stack([figures(run, name, "correct") for name in names], axis=1) for names in apart.values()]
    assert other.spread == pytest.approx(math.sqrt(sum(side.mean(axis=0).var(ddof=1) for side in sides)))
    three = {"a": "quest-s[01]", "b": "standard-s[01]", "c": ["quest-s2", "standard-s2"]}
    with pytest.raises(ProtocolError, match="a has 2, b has 2, c has 2; expected two methods, each of two trainings"):
        robustkit.plan(run, difference=20, methods=three)
