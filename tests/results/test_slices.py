"""Slices: planted weak ones are found and nothing else, chance finds few, and tables are those counted by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from compared_runs import run_of as made_by_rows
from gate_runs import PGD, make
from scipy.stats import fisher_exact
from sliced import column, columns, outcomes, run_of, slow_search, table

import robustkit
from robustkit.cli.app import cli
from robustkit.common.differences import hypergeometric_tail, of_groups
from robustkit.common.intervals import Z, simultaneous_z, wilson
from robustkit.errors import ProtocolError, RunError
from robustkit.evaluations.aggregate import Results
from robustkit.report.page import write_report
from robustkit.report.refresh import keep_metadata
from robustkit.results import slices
from robustkit.results.slices import MISSING, Searched, SliceSearch, WeakSlices
from robustkit.results.summary_text import summary_sentences
from robustkit.results.survey import survey
from robustkit.results.tables import by_tables, search_note, weak_tables

CELLS = columns(4000, 1, camera=4, daylight=3, lens=3)  # 10 values and 33 pairs
PLANTED = [
    {"lens": "lens0"},
    {"camera": "camera1", "daylight": "daylight2"},
    {"camera": "camera2", "daylight": "daylight0"},
]
NAMES = {", ".join(f"{name} = {value}" for name, value in slice.items()) for slice in PLANTED}


def test_planted_weak_slices_are_found_and_nothing_else(tmp_path: Path) -> None:
    right = outcomes(CELLS, PLANTED, 2)
    run = run_of(tmp_path, CELLS, {"clean": right})
    (found,) = Results(run, []).gathered(WeakSlices).searches
    assert (len(found.search.names), {weak.slice.name for weak in found.weak}) == (43, NAMES)
    slow = slow_search(CELLS, right)
    assert len(slow) == 43
    for weak in found.weak:
        pairs = zip(weak.slice.columns, weak.slice.values, strict=True)
        inside = np.all([np.array(CELLS[name]) == value for name, value in pairs], axis=0)
        own, rest = np.array(right)[inside], np.array(right)[~inside]
        assert (weak.slice.figure.n, weak.slice.figure.value) == (len(own), own.mean())
        assert math.isclose(weak.rest.value, rest.mean()) and math.isclose(weak.difference, own.mean() - rest.mean())
        assert (weak.low, weak.high) == of_groups(own.sum(), len(own), rest.sum(), len(rest))
        assert weak.low < weak.difference < weak.high < 0
        assert math.isclose(weak.p_value, slow[weak.slice.name], rel_tol=1e-6)
    assert found.shuffled[1] == 200 and found.shuffled[0] <= 10


def test_a_value_that_its_pairs_explain_is_left_out() -> None:
    """By themselves both values of a weak pair are significant, and without it they are like the others; one that is
    weak without it, too, stays."""
    cells = columns(4000, 5, camera=3, light=3)
    search = SliceSearch.among([column(name, texts) for name, texts in cells.items()], 4000)
    pair = {"camera": "camera1", "light": "light2"}
    right = outcomes(cells, [pair], 2)
    assert {name for name, p in slow_search(cells, right).items() if p < 0.05} == {
        *("camera = camera1", "light = light2", "camera = camera1, light = light2")
    }
    found = Searched("vit", "clean", search, ~np.array(right)).weak
    assert [weak.slice.name for weak in found] == ["camera = camera1, light = light2"]
    both = outcomes(cells, [{"light": "light2"}], 2) & np.array(outcomes(cells, [pair], 3, 1.0))
    found = Searched("vit", "clean", search, ~both).weak
    assert {weak.slice.name for weak in found} == {"light = light2", "camera = camera1, light = light2"}


@pytest.mark.parametrize("rest", [19, 20])
def test_a_value_of_which_a_pair_leaves_few_samples_is_explained(rest: int) -> None:
    """Nothing is said about fewer than 20 samples. Pairs of other values explain nothing."""
    parts = [  # kind, light, samples, how many are wrong
        *(("a", "night", 60, 60), ("a", "day", rest, 12), ("b", "night", 60, 0)),
        *(("b", "day", 400, 0), ("b", "dusk", 60, 60), ("c", "dusk", 60, 0)),
    ]
    kinds, lights = ([part[place] for part in parts for _ in range(part[2])] for place in (0, 1))
    wrong = np.concatenate([np.arange(count) < bad for *_, count, bad in parts])
    search = SliceSearch.among([column("kind", kinds), column("light", lights)], len(wrong))
    found = {weak.slice.name for weak in Searched("vit", "clean", search, wrong).weak}
    assert found >= {"kind = a, light = night", "kind = b, light = dusk"}
    assert ("kind = a" in found) == (rest == 20)


def test_a_value_without_weak_pairs_needs_no_more_than_holms_correction() -> None:
    """The second of three p-values is doubled: 0.0335. Three times it would not be significant."""
    wrong = np.concatenate([np.arange(size) < bad for size, bad in ((40, 30), (40, 11), (200, 0))])
    search = SliceSearch.among([column("kind", ["a"] * 40 + ["b"] * 40 + ["c"] * 200)], 280)
    found = Searched("vit", "clean", search, wrong).weak
    assert [(weak.slice.values, round(weak.p_value, 4)) for weak in found] == [(("a",), 0.0), (("b",), 0.0335)]


def test_a_pair_that_is_one_of_its_values_is_no_slice_of_its_own() -> None:
    """Each site lies in one country; of two sites of a country each pair is the site."""
    country = columns(400, 3, country=2)["country"]
    sites = columns(400, 4, site=2)["site"]
    cells = {"country": country, "site": [f"{one}{other[-1]}" for one, other in zip(country, sites, strict=True)]}
    search = SliceSearch.among([column(name, texts) for name, texts in cells.items()], 400)
    right = outcomes(cells, [], 5)
    assert {slices.name_of_slice(*names) for names in search.names} == {*slow_search(cells, right)}
    assert len(search.names) == 2 + 4


@pytest.mark.parametrize("weak", [[], PLANTED[:1]], ids=["nothing is weak", "a value is weak"])
def test_chance_finds_a_slice_in_one_of_twenty_runs_at_most(weak: list[dict[str, str]]) -> None:
    """Where one value is weak, its pairs with others are not: they must be worse than the rest of it."""
    search = SliceSearch.among([column(name, texts) for name, texts in CELLS.items()], 4000)
    false = 0
    for seed in range(200):
        found = Searched("vit", "clean", search, ~np.array(outcomes(CELLS, weak, seed)))
        false += bool({each.slice.name for each in found.weak} - {"lens = lens0"})
        assert bool(weak) <= ("lens = lens0" in {each.slice.name for each in found.weak})
    assert false <= 10


@pytest.mark.parametrize("count", [120, 200, 280])
def test_the_control_shuffles_what_was_found(count: int) -> None:
    """Against a slow one, also where more samples are wrong than right."""
    search = SliceSearch.among([column(name, texts[:400]) for name, texts in CELLS.items()], 400)
    wrong = np.arange(400) < count
    found = Searched("vit", "clean", search, wrong)
    generator, slow = np.random.Generator(np.random.PCG64(0)), 0
    for _ in range(200):
        shuffled = np.zeros(400, bool)
        few = generator.permutation(400)[: min(count, 400 - count)]  # of wrong and right ones
        shuffled[few] = True
        shuffled ^= count > 200
        slow += bool(Searched("vit", "clean", search, shuffled).weak)
    assert found.shuffled == (slow, 200)


@pytest.mark.parametrize(("n", "marked", "drawn"), [(40, 11, 7), (40, 30, 25), (9, 0, 3), (9, 9, 3), (5000, 900, 200)])
def test_the_test_is_fishers(n: int, marked: int, drawn: int) -> None:
    tail = hypergeometric_tail(n, marked, drawn)
    assert len(tail) == drawn + 2 and tail[0] == 1 and tail[-1] == 0
    for k in range(max(0, drawn + marked - n), min(drawn, marked) + 1, max(1, drawn // 9)):
        counted = [[k, drawn - k], [marked - k, n - drawn - marked + k]]
        assert math.isclose(tail[k], fisher_exact(counted, alternative="greater")[1], rel_tol=1e-7)


def test_intervals_are_those_of_the_papers() -> None:
    assert [round(end, 4) for end in of_groups(56, 70, 48, 80)] == [0.0524, 0.3339]  # Newcombe 1998, table II
    assert simultaneous_z(1) == Z and math.isclose(simultaneous_z(5), 2.5758293035489004)  # 99 % each
    z = simultaneous_z(5)
    centre, reach = 0.8 + z * z / 20, z * math.sqrt(0.8 * 0.2 / 10 + z * z / 400)
    assert wilson(8, 10, z) == pytest.approx(((centre - reach) / (1 + z * z / 10), (centre + reach) / (1 + z * z / 10)))


def test_columns_of_numbers_and_texts() -> None:
    numbers = column("size", [*map(str, range(100, 0, -1)), ""])
    assert numbers.values == ("1 to 25", "26 to 50", "51 to 75", "76 to 100", MISSING)
    assert [numbers.codes[place] for place in (0, 24, 25, 99, 100)] == [3, 3, 2, 0, 4]
    assert column("hour", ["10", "9.00", "9.0", "", "NA"]).values == ("9.00", "10", MISSING)
    for count, last in ((12, "11"), (13, "10 to 12")):  # so many numbers stay as they are
        assert column("n", [str(n) for n in range(count)]).values[-1] == last
    assert column("region", ["NA", ""]).values == (MISSING, "NA")
    for codes in (["007", "07", "7"], [f"7656119800000000{n}" for n in range(1, 4)], ["NA", "b", "c"], ["1", "1e999"]):
        assert column("code", codes).values == tuple(sorted(codes))  # floats would merge them
    assert column("flat", ["7"] * 90 + [str(n) for n in range(20)]).values[:2] == ("0 to 7", "8 to 19")
    fine = column("near", [str(1 + k / 1e6) for k in range(16)])
    assert fine.values[0] == "1 to 1.000003" and len({*fine.values}) == 4
    mixed = column("code", ["b", "10", "", "a", "10"])
    assert (mixed.values, mixed.codes.tolist()) == ((MISSING, "10", "a", "b"), [3, 1, 0, 2, 1])
    few, many = (column("name", [f"x{n}" for n in range(count)]) for count in (200, 201))
    assert few.searched and not many.searched and SliceSearch.among([many], 201).unsearched == ("name",)


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [column(name, texts) for name, texts in CELLS.items()]
    monkeypatch.setattr(slices, "MOST", 19)  # ten values, and the nine pairs of one pair of columns
    search = SliceSearch.among(every, 4000)
    assert (len(search.names), search.left_out) == (19, 2)
    assert {names for names, _ in search.names} == {("camera",), ("daylight",), ("lens",), ("daylight", "lens")}
    monkeypatch.setattr(slices, "MOST", 9)  # no more values of the last column, and so none of its pairs
    search = SliceSearch.among(every, 4000)
    assert (len(search.names), search.left_out) == (7, 4)
    assert SliceSearch.among([column("half", ["a"] * 19 + ["b"] * 20)], 39).names == ((("half",), ("b",)),)


def test_tables_by_columns_are_those_counted_by_hand(tmp_path: Path) -> None:
    cells = {"camera": ["a"] * 4 + ["b"] * 4, "night": ["yes", "no"] * 4}
    run = run_of(tmp_path, cells, {"clean": [1, 0, 1, 0, 1, 1, 0, 1], PGD: [0] * 8})
    ((one,), (both,)) = by_tables(run, ["camera", "camera,night"])
    assert one.headings == ("condition", "camera", "n", "top-1 % [95 %]", "top-5 %", "NLL")
    low, high = (f"{100 * end:.1f}" for end in wilson(2, 4))
    assert one.rows[0] == ("clean", "a", "4", f"50.0 [{low}, {high}]", "100.0", "0.500") and len(one.rows) == 4
    assert [(*row[1:4], row[4][:5].strip(" [")) for row in both.rows[:4]] == [
        *(("a", "no", "2", "0.0"), ("a", "yes", "2", "100.0")),
        *(("b", "no", "2", "100.0"), ("b", "yes", "2", "50.0")),
    ]
    frame = run.slices(by="camera,night", condition="clean")
    assert frame["slice"].tolist()[:2] == ["camera = a, night = no", "camera = a, night = yes"]
    assert frame["value"].tolist() == [0, 1, 1, 0.5] and (frame["ci_low"][3], frame["ci_high"][3]) == wilson(1, 2)
    assert run.slices(by=["camera"], metric="nll", condition="pgd")["value"].tolist() == [0.5, 0.5]
    assert run.slices().empty
    for by, condition, said in (
        (
            "colour",
            "",
            "no column 'colour'; there are camera, night, class, difficulty; robustkit report RUN --metadata",
        ),
        ("camera", "fgsm", "has no fgsm; it has clean, pgd"),
    ):
        with pytest.raises(RunError, match=said):
            run.slices(by=by, condition=condition)
    with pytest.raises(RunError, match="unknown figure of slices 'ece'"):
        run.slices(by="camera", metric="ece")
    with pytest.raises(ProtocolError, match="camera,camera"):
        run.slices(by="camera,camera")


def test_difficulty_is_the_probability_of_the_label_on_the_clean_image(tmp_path: Path) -> None:
    """Also under an attack: of the clean record, which need not have the same samples."""
    losses = [k / 10 for k in range(20)]
    run = make(tmp_path / "run", {"vit": {"clean": [1] * 20, PGD: [1] * 5 + [0] * 15}}, {"clean": losses})
    ends = [f"{math.exp(-loss):.4g}" for loss in losses]
    found = run.slices(by="difficulty", condition="pgd")
    assert found["slice"].tolist()[-1] == f"difficulty = {ends[4]} to {ends[0]}"
    assert found["value"].tolist() == [0, 0, 0, 1] and found["n"].tolist() == [5] * 4
    passed = "transfer(pgd(eps=1/255,steps=20),from=other)"
    without = make(tmp_path / "none", {"vit": {PGD: [1] * 20, passed: [1] * 20}})
    with pytest.raises(RunError, match="there are class; "):
        without.slices(by="difficulty")
    with pytest.raises(RunError, match="has no top1 of all samples; use one that shows images"):
        without.slices(by="class", condition=passed)


def test_a_loss_has_no_slices_where_samples_left_at_their_first_wrong_answer(tmp_path: Path) -> None:
    for early in (True, False):
        claims = {PGD: {"norm": "linf", "eps": 1 / 255, "early_stop": early}}
        run = make(tmp_path / str(early), {"vit": {"clean": [1, 0] * 10, PGD: [0] * 20}}, claims=claims)
        assert run.slices(by="class", metric="nll", condition="clean")["value"].tolist() == [0.5]
        assert run.slices(by="class", condition="pgd")["value"].tolist() == [0]
        if not early:
            assert run.slices(by="class", metric="nll", condition="pgd")["value"].tolist() == [0.5]
            continue
        with pytest.raises(RunError, match=r"samples leave pgd\(.*\) at their first wrong prediction, so nll has no"):
            run.slices(by="class", metric="nll", condition="pgd")


def test_a_loss_that_some_samples_lack_is_one_of_the_slices_that_have_it(tmp_path: Path) -> None:
    losses = [math.nan if place % 2 else 0.25 for place in range(20)]
    run = run_of(tmp_path, {"camera": ["a", "b"] * 10}, {"clean": [1] * 20})
    lossy = make(tmp_path / "lossy", {"vit": {"clean": [1] * 20}}, {"clean": losses})
    keep_metadata(lossy, tmp_path / "table.csv")
    assert lossy.slices(by="camera", metric="nll")["value"].tolist()[0] == 0.25
    none = make(tmp_path / "none", {"vit": {"clean": [1] * 20}}, {"clean": [math.nan] * 20})
    with pytest.raises(
        RunError, match="samples under clean have no nll; it needs labels and probabilities, or use top1"
    ):
        none.slices(by="class", metric="nll")
    with pytest.raises(RunError, match="no column 'difficulty'; there are class; "):
        none.slices(by="difficulty")
    assert run.slices(by="camera", metric="nll")["value"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("columns", "made"), [(64, 50), (16, 64), (4, 200)])
def test_shuffles_are_as_many_as_the_work_allows(columns: int, made: int) -> None:
    n = 1 << 16
    none = (np.full(n, -1, np.int32),) * columns
    search = SliceSearch(n, ((("camera",), ("a",)),), np.array([n // 2]), np.array([[-1, -1]]), none)
    assert Searched("vit", "clean", search, np.arange(n) < 9).shuffled == (0, made)


def test_two_classes_of_one_name_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    names = ["crane", "dog", "crane", "cat"]
    rows = {
        ("plain", "clean"): [
            {"sample_id": f"{place}", "label": place % 5, "correct": place % 5 == 2, "nll": 0.5, "error": None}
            for place in range(20)
        ]
    }
    run = made_by_rows(tmp_path / "run", rows, lambda manifest: manifest["data"].update(class_names=names))
    frame = run.slices(by="class", condition="clean")
    called = [text.removeprefix("class = ") for text in frame["slice"]]
    assert called == ["crane (0)", "dog", "crane (2)", "cat", "4"] and frame["value"].tolist() == [0, 0, 1, 0, 0]


def test_a_sample_without_a_clean_loss_has_no_difficulty(tmp_path: Path) -> None:
    losses = [math.nan, *(k / 10 for k in range(19))]
    run = make(tmp_path / "run", {"vit": {"clean": [1] * 20}}, {"clean": losses})
    found = run.slices(by="difficulty", condition="clean")
    assert found["slice"].tolist()[-1] == f"difficulty = {MISSING}" and found["n"].tolist()[-1] == 1


def test_what_has_no_labels_has_no_classes_and_no_slices_of_the_headline(tmp_path: Path) -> None:
    rows = [
        {"sample_id": f"{n:02}", "label": 0 if n else -1, "correct": None, "nll": 0.5, "error": None} for n in range(20)
    ]
    run = made_by_rows(tmp_path / "run", {("plain", "clean"): rows})
    with pytest.raises(RunError, match="no column 'class'; there are difficulty; "):
        run.slices(by="class", metric="nll")
    with pytest.raises(RunError, match="samples under clean have no top1; it needs labels"):
        run.slices(by="difficulty")
    assert not Results(run, []).gathered(WeakSlices).searches
    lost = [{**row, "error": "damaged", "nll": None} for row in rows]
    unread = made_by_rows(tmp_path / "unread", {("plain", "clean"): rows, ("plain", PGD): lost})
    with pytest.raises(RunError, match="no sample could be read under pgd"):
        unread.slices(by="difficulty", condition="pgd")
    scenes = make(tmp_path / "scenes", {"vit": {"clean": [1]}}, protocol={"task": "segmentation"})
    with pytest.raises(RunError, match="samples of segmentation are not right or wrong, so they have no slices"):
        scenes.slices(by="class")


def test_each_condition_is_searched_among_its_own_samples_by_texts_numbers_and_classes(tmp_path: Path) -> None:
    cells = {"camera": ["a", "b"] * 30, "hour": ["9", "10", "10", "9"] * 15}
    run = run_of(tmp_path, cells, {"clean": [1] * 60, PGD: [1] * 40})
    clean, attacked = (each.search for each in Results(run, []).gathered(WeakSlices).searches)
    assert (clean.n, clean.sizes.tolist(), attacked.n, attacked.sizes.tolist()) == (60, [30] * 4, 40, [20] * 4)
    assert [*clean.single] == ["camera", "hour", "class"] and not clean.unsearched


def test_what_is_found_is_said_in_report_page_and_python(tmp_path: Path) -> None:
    run = run_of(tmp_path, CELLS, {"clean": outcomes(CELLS, PLANTED, 2), PGD: outcomes(CELLS, [], 3, 0.5)})
    results = survey(run)
    sentence = summary_sentences(results)[-1]
    assert sentence.startswith("Weakest slice on clean images: lens = lens0 (accuracy 58.7 %, all others 79.4 %, ")
    assert sentence.endswith("p < 0.001, n = 1292). 2 more weak slices in the report.")
    (weak,) = weak_tables(results)
    assert weak.rows[0][:2] == ("lens = lens0", "clean") and len(weak.rows) == 3
    assert weak.rows[0][-1] == "< 0.001" and weak.rows[0][5].startswith("−")
    note = search_note(results)
    assert "43 slices by camera, daylight, lens" in note and "of 200 shuffles" in note
    write_report(run, results, ["lens"])
    page = (run.path / "report.html").read_text("utf-8")
    assert "Slices that do significantly worse" in page and "Slices by lens" in page and "camera = camera1" in page
    frame = run.slices()
    assert {*frame["slice"]} == NAMES and (frame["p_holm"] < 0.05).all() and (frame["difference"] < -0.1).all()


@pytest.mark.parametrize("planted", [10, 11])
def test_a_table_has_the_ten_weakest_of_a_condition_and_says_so_where_there_are_more(
    tmp_path: Path, planted: int
) -> None:
    cells = columns(6000, 3, hour=40)
    weak = [{"hour": f"hour{place}"} for place in range(planted)]
    results = survey(run_of(tmp_path, cells, {"clean": outcomes(cells, weak, 2)}))
    (searched,) = results.gathered(WeakSlices).searches
    assert len(searched.weak) == planted
    (shown,) = weak_tables(results)
    assert [row[0] for row in shown.rows] == [each.slice.name for each in searched.weak[:10]]
    assert ("At most 10 of a condition are shown." in shown.note) == (planted > 10)


def test_single_corruptions_are_searched_where_they_are_few(tmp_path: Path) -> None:
    """All conditions of which one is asked for are searched; idle columns are named."""
    cells = {**CELLS, "serial": [f"0{n}" for n in range(4000)], "flat": ["x"] * 4000}
    noise = [f"corruption({name},severity=3)" for name in ("fog", "snow", "frost")]
    every = {"clean": outcomes(CELLS, [], 2), **{text: outcomes(CELLS, PLANTED, 3) for text in noise}}
    few = run_of(tmp_path / "few", cells, every)
    assert {*few.slices()["condition"]} == {*noise} and "single corruptions were not searched" not in search_note(
        survey(few)
    )
    note = search_note(survey(few))
    assert "serial has more than 200 distinct values" in note and "flat has no slice to test" in note
    more = {f"corruption(fog,severity={level})": outcomes(CELLS, PLANTED, 3) for level in range(1, 6)}
    many = run_of(
        tmp_path / "many", CELLS, every | more | {f"corruption(snow,severity={k})": every["clean"] for k in (1, 2)}
    )
    assert {each.condition for each in survey(many, for_page=True).gathered(WeakSlices).searches} == {"clean"}
    assert not len(many.slices()) and "The 10 single corruptions were not searched." in search_note(survey(many))
    assert {*many.slices(condition="corruption(fog,severity=3)")["slice"]} == NAMES


HOSTILE = {
    "<img src=x>": ["<script>alert(1)</script>", "\x1b[31mred", "=1+1", "a"] * 30,
    "plain": ["b", "c"] * 60,
}


def test_hostile_texts_are_shown_escaped(tmp_path: Path) -> None:
    right = [cell == "b" or place > 60 for place, cell in enumerate(HOSTILE["plain"])]
    run = make(tmp_path / "run", {"vit": {"clean": right}})
    sheet = table(tmp_path / "table.csv", HOSTILE)
    words = ["report", str(run.path), "--metadata", str(sheet), "--by", "<img src=x>,plain", "--details"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0 and "\x1b" not in done.output and "<script>alert(1)</script>" in done.output
    page = (run.path / "report.html").read_text("utf-8")
    assert "<script>alert" not in page and "<img src=x" not in page and "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/" in page.replace("<wbr>", "") and "'=1+1" in page.replace("&#39;", "'")


def test_a_plain_report_keeps_the_metadata_and_python_makes_it(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {"vit": {"clean": [1, 0] * 10}})
    sheet = table(tmp_path / "table.csv", {"camera": ["a", "b"] * 10})
    assert robustkit.report(run.path, metadata=sheet, by="camera").slices(by="camera")["value"].tolist() == [1, 0]
    assert "Slices by camera" in (run.path / "report.html").read_text("utf-8")
    assert robustkit.report(run.path).slices(by="camera")["n"].tolist() == [10, 10]
    assert "Slices by camera" not in (run.path / "report.html").read_text("utf-8")
