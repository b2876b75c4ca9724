"""Published figures next to our own: by hand, of one's own file, and what is not understood."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from compared_runs import (
    ENDED,
    FOG,
    NAMES,
    PGD,
    Change,
    change_of,
    records_of,
    rows_of,
    run_of,
)
from rich.console import Console

from robustkit.attention.formulas import find_formula
from robustkit.cli.terminal import compare_runs
from robustkit.common.figure import Figure
from robustkit.errors import RunError
from robustkit.results.comparison import compare_sides
from robustkit.results.pairing import checkpoint_pairs
from robustkit.results.published import read_published, reference_names
from robustkit.results.tables import Among, among_tables, found_among, sides_of, tables

PAPER = 'summary = "s"\nsource = "t"\ndata = "d"\nprotocol = "quest-paper"\n'
OWN = {"top1": 0.6, "nll": 0.8}


def card(tag: str) -> Change:
    return change_of("protocol", "tag", to=tag)


def test_published_figures_by_hand(tmp_path: Path) -> None:
    more = "pgd(eps=4/255,steps=20)"
    records = records_of("clean", PGD, more, ENDED)
    for name in NAMES:
        records[name, "cam(agcam)"] = [r | {"box_iou": 0.5} for r in rows_of(1)]
        records[name, "cam(agcam,threshold=0.3)"] = records[name, "cam(agcam)"]
    run = run_of(tmp_path / "a", records, card("quest-paper@1:d34db12c"))
    paper = read_published("quest")
    found = compare_sides(checkpoint_pairs([run]), paper)
    reported = {(row.condition, row.metric): row.published for row in found.rows if row.published is not None}
    assert reported == pytest.approx(
        {
            ("clean", "top1"): 0.7333 - 0.7250,
            ("clean", "nll"): 1.160 - 1.190,
            (PGD, "top1"): 0.4526 - 0.4365,
            (PGD, "nll"): 2.448 - 2.503,
            (ENDED, "top1"): 0.2729 - 0.2657,
            ("cam(agcam,mode=box)", "cam_iou"): 0.5354 - 0.3553,
        }
    )
    assert not any(pair.findings for pair in found.pairs)
    (table,) = tables(found)
    assert table.headings[-1] == "published, not paired" and table.rows[0][-1] == "+0.8"
    assert table.rows[1][-1] == "−0.030"
    assert table.rows[4][:2] == ("PGD, 4/255, 20 steps", "top-1 %") and table.rows[4][-1] == "–"
    assert f"{paper.summary}, on {paper.data} ({paper.source})" in table.note
    back = compare_sides(checkpoint_pairs([run], against="other"), paper)
    assert tables(back)[0].rows[0][-1] == "−0.8"
    other = run_of(tmp_path / "b", records)
    (pair,) = compare_sides(checkpoint_pairs([other]), paper).pairs
    assert list(map(str, pair.findings)) == ["published under quest-paper, here standard [compare/published]"]
    assert not any(pair.findings for pair in compare_sides(checkpoint_pairs([other]), None).pairs)
    alike = compare_sides(checkpoint_pairs([run, other]), paper)
    assert tables(alike)[0].rows[0][-1] == "72.5" and tables(alike)[1].rows[1][-1] == "1.160"
    assert alike.pairs[0].findings[-1].text == "published under quest-paper, here standard"


def test_a_checkpoint_has_its_place_among_published_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, for both directions; one checkpoint will do, and without a figure in common it is refused."""
    own = tmp_path / "own.toml"
    levels = {"standard": (0.2, 9.0), "quest": (0.9, 0.1), "qnorm": (0.5, 0.2)}
    texts = [f"[{name}]\nclean = {{ top1 = {top1}, nll = {nll} }}\n" for name, (top1, nll) in levels.items()]
    own.write_text(PAPER.replace("quest-paper", "standard") + "".join(texts))
    run = run_of(tmp_path / "a", {("plain", "clean"): rows_of(0)})
    every = {name: Figure(v, 40, v - 0.1, v + 0.1, checkpoint="plain") for name, v in OWN.items()}
    run.write_summary(each.of("clean", name) for name, each in every.items())
    (side,) = sides_of([run])
    top1, nll = found_among(side, read_published(str(own)))
    assert (top1.row.value, top1.places, nll.row.value, nll.places) == (0.6, (2, 2), 0.8, (3, 3))
    wide = [{"value": 0.6, "low": 0.1, "high": 0.7}, {"value": 0.15, "low": 0.05, "high": 0.3}]
    places = [Among(replace(each.row, **to), each.levels).places for each, to in zip((top1, nll), wide, strict=True)]
    assert places == [(2, 4), (1, 3)] and Among(replace(top1.row, value=math.nan), top1.levels).places is None
    assert top1.levels == {name: value for name, (value, _) in levels.items()}
    (table,) = among_tables([side], read_published(str(own)))
    assert table.headings == ("condition", "figure", "n", "here [95 %]", "standard", "quest", "qnorm", "place")
    assert table.rows[0][3:] == ("60.0 [50.0, 70.0]", "20.0", "90.0", "50.0", "2 of 4") and not table.flags
    own.write_text(
        own.read_text().replace("top1 = 0.5,", "top1 = [0.5, 0.06],").replace("top1 = 0.9,", "top1 = [0.9, 0.1],")
    )
    spread, _ = found_among(side, read_published(str(own)))
    assert spread.levels == top1.levels and spread.spreads == {"quest": 0.1, "qnorm": 0.06}
    assert spread.places == (1, 3)  # another training of quest may have 0.7, and one of qnorm 0.62
    (table,) = among_tables([side], read_published(str(own)))
    assert table.rows[0][4:] == ("20.0", "90.0 ± 10.0", "50.0 ± 6.0", "1 to 3 of 4") and "over trainings" in table.note
    assert read_published(str(own)).resolved().spread("qnorm", "clean", "nll") is None
    own.write_text("".join([PAPER.replace("quest-paper", "standard"), *texts]))
    json_file = tmp_path / "among.json"
    console = Console(width=200)
    compare_runs([run.path], reference=str(own), json_file=json_file, console=console)
    assert "plain (standard) on set, among" in capsys.readouterr().out
    said = json.loads(json_file.read_text())
    assert [each["places"] for each in said["among"]] == [[2, 2], [3, 3]] and said["pairs"] == []
    (flag,) = among_tables([side], read_published("quest"))[0].flags
    assert flag == "published under quest-paper, here standard [compare/published]"
    own.write_text(PAPER + '[standard]\n"corruption(fog)" = { mean_error = 0.5 }\n')
    with pytest.raises(RunError, match=r"has no figure that .* has; audit a condition of it, or give another"):
        compare_runs([run.path], reference=str(own), console=console)
    with pytest.raises(RunError, match="holds one checkpoint"):
        compare_runs([run.path], console=console)


@pytest.mark.parametrize(("level", "reported"), [(0.0084, ("0.00830", "0.00840")), (0.2, ("0.008", "0.200"))])
def test_distances_far_below_one_can_be_told_apart(tmp_path: Path, level: float, reported: tuple[str, str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(PAPER + f"[quest]\nclean = {{ median_distance = {level} }}\n")
    run = run_of(tmp_path / "a", {("plain", "clean"): rows_of(0)})
    run.write_summary([Figure(0.0083, 40, checkpoint="plain").of("clean", "median_distance")])
    (table,) = among_tables(sides_of([run]), read_published(str(own)))
    assert table.rows[0][3:] == (*reported, "2 of 2")


def test_what_comes_with_the_package_is_understood_and_is_as_printed() -> None:
    """Every file is read, every condition means something, and spot values are those of the paper's tables."""
    read = {name: read_published(name).resolved() for name in reference_names()}
    assert {"quest", "quest-ablation", "zoo", "zoo-cifar10"} <= read.keys()
    paper, table_a1 = read["quest"], read["quest-ablation"]
    assert paper.figure("elliptical-quest", "spsa(eps=0.1)", "top1") is None
    assert paper.figures["elliptical-quest"][next(t for t in paper.figures["quest"] if t.startswith("spsa("))] == {
        "top1": 0.5915,
        "top5": 0.8744,
        "nll": 1.613,
    }
    assert paper.figures["quest"]["agcam"] == {"cam_pixel_accuracy": 0.7076, "cam_iou": 0.5354, "cam_dice": 0.6597}
    logs, by_median = read["elliptical"], "elliptical(average=median)"
    assert [logs.figure(*place, "top1") for place in (("elliptical", "clean"), ("elliptical", "fgsm(eps=1/255)"))] == [
        *(0.71484, 0.54436)
    ]
    assert logs.figure("elliptical(scale=mean,average=median)", "fgsm(eps=1/255)", "top1") == 0.5377
    assert [each.figure(by_median, PGD, "top1") for each in (logs, read["elliptical-attenuated"])] == [0.44862, 0.43652]
    assert logs.figure(by_median, ENDED, "top1") == 0.27452 and logs.figure("elliptical", ENDED, "top1") is None
    named = {name for each in read.values() for name in each.figures}
    assert {find_formula(name).name for name in named} == named  # as run.json has them
    assert table_a1.figures["qknorm-ds"] == {
        "clean": {"top1": 0.7187, "top5": 0.9096, "nll": 1.231},
        "in-c": {"mce_16": 0.574},
    }


def test_a_reference_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        PAPER
        + '[standard]\n"corruption(fog)" = { mean_error = 0.5 }\n[quest]\n"corruption(fog)" = { mean_error = 0.25 }\n'
    )
    run = run_of(tmp_path / "a", records_of("clean", *FOG), card("quest-paper@1:d34db12c"))
    (table,) = tables(compare_sides(checkpoint_pairs([run]), read_published(str(path))))
    assert [cells[-1] for cells in table.rows] == ["–", "–", "+25.0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("summary = 1", "summary is 1; expected a text"),
        (PAPER.replace("protocol", "protocl"), "protocol is None; expected a text"),
        (
            PAPER + "year = 2026",
            "unknown field 'year'; known: data, protocol, source, summary; correct it or leave it out",
        ),
        (PAPER + "[qest]\nclean = { top1 = 0.5 }", "unknown attention 'qest'; did you mean 'quest'?"),
        (PAPER + "[quest]\npdg = { top1 = 0.5 }", "[quest]: unknown condition 'pdg'; did you mean 'pgd'?"),
        (PAPER + "[quest]\nclean = { miuo = 0.5 }", "[quest] clean: unknown metric 'miuo'; did you mean 'miou'?"),
        (PAPER + '[quest]\n"corruption(fgo)" = {}', "[quest]: unknown corruption 'fgo'; did you mean 'fog'?"),
        (PAPER + "[quest]\nclean = 0.5", "[quest] clean: 0.5 is not a table; expected one such as { top1 = 0.73 }"),
        (PAPER + "[quest]\nclean = { top1 = nan }", "[quest] clean: top1 is nan; expected a finite number"),
        (PAPER + "[quest]\nclean = { top1 = true }", "top1 is True; expected a finite number"),
        (
            PAPER + "[quest]\nclean = { top1 = [0.5, -0.1] }",
            "top1 is [0.5, -0.1]; expected a finite number, or [mean, ",
        ),
        (PAPER + '[quest]\n"pgd(step=1)" = { top1 = 0.5 }', "unknown parameter of pgd 'step'; did you mean 'steps'?"),
        (PAPER.replace("quest-paper", "mine") + "[quest]\npgd = {}", "what pgd is under card 'mine' is not known"),
        ("a = ", "not valid TOML: Invalid value (at end of document)"),
    ],
)
def test_references_that_are_not_understood(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(RunError) as fault:
        read_published(str(path)).resolved()
    assert message in str(fault.value) and str(fault.value).startswith(str(path)) and "\n" not in str(fault.value)
    with pytest.raises(RunError, match=r"unknown reference 'qest'; did you mean 'quest'.* path of a TOML or JSON file"):
        read_published("qest")
