"""The page of each study: what was found at its head, links that lead somewhere, and records that it agrees with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from places import ROOT

from scripts.pages.writing import write_page
from scripts.studies.quest_tables import figures, variants
from scripts.studies.quest_tables import page as quest
from scripts.studies.quest_tables.differences import compared
from scripts.studies.quest_tables.evaluate import read_lines
from scripts.studies.quest_tables.trainings import Trainings
from scripts.studies.toy_retrieval import train as toy
from scripts.zoo import card
from scripts.zoo.logs import finished, read_logs

STUDIES = ROOT / "scripts" / "studies"
PAGES = sorted(STUDIES.glob("*/README.md"))
FOUND = re.compile(r"# [^\n]+\n\n<!-- found\b[^\n]*-->\n(.+?)\n<!-- /found -->\n\n(.*)", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#([^)\s]*))?\)")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
MOST = 5
RECORDS = {
    "cifar10": STUDIES / "quest_tables" / "cifar10.jsonl",
    "shapes": STUDIES / "quest_tables" / "shapes.jsonl.gz",
}


def linked(page: Path) -> list[tuple[Path, str]]:
    links = LINK.findall(page.read_text("utf-8"))
    return [(page.parent / path, anchor) for path, anchor in links if not re.match("[a-z]+:", path)]


def numbers_in(text: str) -> set[str]:
    """Numbers without their sign: prose has `by 0.81 points` for a difference of -0.81."""
    return {number.lstrip("+-") for number in NUMBER.findall(text)}


def test_each_study_has_a_page_and_is_listed_with_a_sentence() -> None:
    folders = {path.parent.name for path in STUDIES.glob("*/__init__.py")}
    assert folders == {page.parent.name for page in PAGES}
    index = (ROOT / "docs" / "results" / "index.md").read_text("utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(\.\./\.\./scripts/studies/(\w+)/README\.md\): [^\n]+\.$", index, re.MULTILINE)
    assert sorted(listed) == sorted(folders)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_begins_with_what_was_found_in_its_own_numbers(page: Path) -> None:
    match = FOUND.match(page.read_text("utf-8"))
    assert match, "expected a title, and below it lines between <!-- found --> and <!-- /found -->"
    found, rest = match.groups()
    assert len(found.splitlines()) <= MOST and max(map(len, found.splitlines())) <= 120
    said = rest + "".join(path.read_text("utf-8") for path, _ in linked(page) if path.suffix == ".md")
    assert not (odd := numbers_in(found) - numbers_in(said)), f"no table or sentence of the page has {sorted(odd)}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "scripts/zoo/trainings/README.md"], ids=lambda page: page.parent.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for path, anchor in linked(page):
        assert path.exists(), path
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, anchor


def test_findings_stay_when_a_page_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    write_page(page, "# Title\n\nOld.\n")
    assert page.read_text("utf-8") == "# Title\n\nOld.\n"
    page.write_text("# Title\n\n<!-- found: by hand -->\nIt holds.\n<!-- /found -->\n\nOld.\n", "utf-8")
    write_page(page, "# Other\n\nNew.\n\nMore.\n")
    kept = "# Other\n\n<!-- found: by hand -->\nIt holds.\n<!-- /found -->\n\nNew.\n\nMore.\n"
    assert page.read_text("utf-8") == kept


def main_of(study: str) -> Callable[[list[str]], int]:
    """What makes the page of a study of a slice, which may have been deleted."""
    return lambda arguments: int(pytest.importorskip(f"scripts.studies.{study}.page").main(arguments))


@pytest.mark.parametrize(
    ("main", "arguments", "page"),
    [
        (main_of("qana"), [], "scripts/studies/qana/README.md"),
        pytest.param(main_of("quack"), [], "scripts/studies/quack/README.md", marks=pytest.mark.slow),
        (main_of("language"), [], "scripts/studies/language/README.md"),
        (main_of("series"), [], "scripts/studies/series/README.md"),
        pytest.param(quest.main, [], "scripts/studies/quest_tables/README.md", marks=pytest.mark.slow),
        pytest.param(
            toy.main,
            ["--from-results", "--out", "scripts/studies/toy_retrieval"],
            "scripts/studies/toy_retrieval/README.md",
            marks=pytest.mark.slow,
        ),
        (card.main, ["--trainings"], "scripts/zoo/trainings/README.md"),
    ],
    ids=lambda value: value.split("/")[-2] if isinstance(value, str) else "",
)
def test_a_page_is_what_its_command_makes_of_the_records(
    main: Callable[[list[str]], int],
    arguments: list[str],
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder in {Path(page).parent, Path("scripts/zoo/trainings")}:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    written = tmp_path / page
    findings = FOUND.match(written.read_text("utf-8"))
    rest = f"\n\n<!-- found -->\n{findings[1]}\n<!-- /found -->\n\nlost\n" if findings else "\n\nlost\n"
    written.write_text(f"# Title{rest}", "utf-8")
    assert main(arguments) == 0
    made, kept = written.read_text("utf-8"), (ROOT / page).read_text("utf-8")
    assert re.sub(r"<!-- found\b.*-->", "", made) == re.sub(r"<!-- found\b.*-->", "", kept)


@pytest.mark.parametrize("family", sorted(RECORDS))
def test_the_shipped_reference_is_of_the_records_that_are_kept(family: str) -> None:
    kept = Trainings(tuple(read_lines(RECORDS[family])))
    shipped = resources.files("robustkit") / "results" / "references" / figures.file_of(family)
    assert shipped.read_text("utf-8") == figures.reference(family, kept)


def test_the_page_is_of_the_logs_that_are_kept() -> None:
    """Its tables of parts, rates and architectures, and their summary."""
    kept = finished(read_logs(ROOT / "scripts" / "zoo" / "trainings"))
    page = (STUDIES / "quest_tables" / "README.md").read_text("utf-8")
    assert "\n\n".join(variants.variants(kept)) in page and variants.in_short(kept) in page


def test_what_is_written_by_hand_on_attention_is_what_the_records_say() -> None:
    """The sentences on quest and Elliptical, each next to what must hold for it."""
    page = " ".join((ROOT / "docs" / "concepts" / "attention.md").read_text("utf-8").split())
    found = {}
    for family in ("shapes", "cifar10"):
        for each in compared(Trainings(tuple(read_lines(RECORDS[family])))):
            verdict = (1 if each.is_better else -1) if each.is_beyond_chance else 0
            found.setdefault((family, each.formula, each.against), {})[each.figure.name] = verdict
    quest = found["shapes", "quest", "standard"]
    assert (
        "quest does not differ measurably from standard in accuracy. It is less robust under corruptions and PGD"
        in page
    )
    assert "and by the smallest distance, and its AG-CAM maps localise better, as published" in page
    assert quest["clean top-1"] == quest["clean NLL"] == 0
    assert quest["IN-C mean error"] == quest["PGD-20 top-1"] == quest["median distance"] == -1
    assert quest["IoU"] == quest["DICE"] == 1
    assert "In three trainings on CIFAR-10, quest has a lower loss on clean images, as published, and no other" in page
    assert [name for name, verdict in found["cifar10", "quest", "standard"].items() if verdict] == ["clean NLL"]
    assert found["cifar10", "quest", "standard"]["clean NLL"] == 1
    assert "In our trainings, elliptical does not differ significantly from standard." in page
    assert not any([*found["shapes", "elliptical", "standard"].values()])
    assert not any([*found["cifar10", "elliptical", "standard"].values()])
    assert "On synthetic shapes, elliptical-quest is less robust under PGD than both;" in page
    assert {found["shapes", "elliptical-quest", name]["PGD-20 top-1"] for name in ("standard", "elliptical")} == {-1}
    assert "on CIFAR-10 it has a lower loss on clean images than both, and no other significant difference" in page
    for name in ("standard", "elliptical"):
        verdicts = found["cifar10", "elliptical-quest", name]
        assert verdicts["clean NLL"] == 1 and sum(map(abs, verdicts.values())) == 1
