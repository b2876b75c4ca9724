"""Every block of shell and Python on the site is run where its files are, or says why it is not."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from page_blocks import (
    RUN,
    Block,
    blocks_of,
    call,
    commands,
    furnish,
    less,
    plain_environment,
    run_page,
    shown_by,
    unprinted,
)
from places import ROOT

MADE = {*(ROOT / "docs" / "reference" / "commands").glob("*.md")}  # examples of the help, parsed by test_docs.py
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - MADE)
WITH_BLOCKS = [page for page in PAGES if any(block.kind in RUN for block in blocks_of(page))]
FIRST = ("python.md",)  # the other pages are slow: .ci/run runs them if they or what they show change
SMALL = {"audit-a-resnet.md": "64"}  # the side of the images, which the file of weights does not say
WITH_FIGURES = "get-started.md"  # its reports are drawn; in those of other pages figures are left empty

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    furnish(place)
    return place


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page.name in FIRST else [pytest.mark.slow]) for page in WITH_BLOCKS],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run(
    page: Path, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plain_environment(monkeypatch)
    if page.name in SMALL:
        monkeypatch.setenv("ROBUSTKIT_IMG_SIZE", SMALL[page.name])
    place = tmp_path / "place"
    shutil.copytree(desk, place)
    if page.name == WITH_FIGURES:
        request.getfixturevalue("whole_figures")
    found = [block for block in blocks_of(page) if block.kind in RUN]
    assert run_page(page, place, monkeypatch) == sum(not block.reason and block.said != "test" for block in found)


SHOWING = [page for page in PAGES if any(shown_by(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_is_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)
    outputs: dict[str, str] = {}
    for printing, text in shown_by(page):
        said = str(printing)
        if said not in outputs:
            screen = io.StringIO()
            assert [call(words, monkeypatch, screen) for words in printing] == [0] * len(printing), screen.getvalue()
            outputs[said] = screen.getvalue()
        assert not (odd := unprinted(text, outputs[said], exactly=True)), (odd, outputs[said])


def test_lines_that_are_not_printed() -> None:
    output = (
        "  condition    top-1 % [95 %]   NLL\n────\n  clean   95.0 [91.0, 97.3]   0.332\n1 of 2 flags raise doubt\n"
    )
    old, shown = (
        " condition   n   top-1 % [95 %]   top-5 %     NLL   ECE %   largest",
        "clean  100.0 [9.0, 100.0]  0.1\n\n",
    )
    assert unprinted(f"{old}\n{shown}", output) == ["condition n top-1 % [95 %] top-5 % NLL ECE % largest"]
    assert unprinted("clean 95.5 [91.0, 97.3] 0.335", output, exactly=True) == []
    for changed in ("clean 85.5 [91.0, 97.3] 0.332", "clear 95.0 [91.0, 97.3] 0.332", "95.0 [91.0, 97.3] 0.332"):
        assert unprinted(changed, output, exactly=True) == [changed]


def test_what_is_said_above_a_block() -> None:
    assert Block("sh", "", "not run: it needs a GPU").reason == "it needs a GPU"
    assert Block("sh", "", "status 1").status == 1 and Block("sh", "", "").status == 0
    assert Block("toml", "", "file: a.toml").file == "a.toml" and Block("python", "# net.py\n", "").file == "net.py"
    assert Block("sh", "", "test").reason == ""


def test_amounts_are_cut_and_nothing_else() -> None:
    (words,) = commands("robustkit audit x --limit 500 \\\n  --seed 500 # --limit 3\n")
    assert less(words) == ["robustkit", "audit", "x", "--limit", "2", "--seed", "500"]


def test_a_command_that_fails_fails_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("```sh\nrobustkit report nowhere\n```\n")
    with pytest.raises(AssertionError, match="robustkit report nowhere: status 2, not 0"):
        run_page(tmp_path / "page.md", tmp_path, monkeypatch)
