"""The pages of attacks, corruptions, explainers and formulas are those of the code, and say what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import DELETED

from scripts.pages import methods, site, writing


@pytest.mark.parametrize("folder", methods.FOLDERS)
@pytest.mark.skipif(bool(DELETED), reason="without some slices")
def test_the_pages_are_what_the_script_makes(folder: str) -> None:
    stored = {path.name: path.read_text("utf-8") for path in (methods.DOCS / folder).glob("*.md")}
    assert stored == methods.FOLDERS[folder](), "run python -m scripts.pages.methods"


def test_the_costs_of_the_page_that_helps_to_choose_are_those_of_the_attacks() -> None:
    text = (methods.DOCS.parent / "how-to" / "which-attack.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\|[^|]*\| \[(\w+)\]\([^)]*\) \| (.*?) \|$", text)
    assert len(rows) >= 8
    for name, cost in rows:
        assert f"passes: {cost}, as a run" in (methods.DOCS / "attacks" / f"{name}.md").read_text("utf-8"), name


def test_a_name_without_notes_and_notes_without_a_name_are_refused() -> None:
    methods.check_names("attacks", {"audit": {"pgd"}}, {"audit": {"pgd": {}}})
    with pytest.raises(ValueError, match=r"attacks\.toml: audit: fgsm, pgd"):
        methods.check_names("attacks", {"audit": {"pgd"}}, {"audit": {"fgsm": {}}})


def test_parts_of_a_docstring() -> None:
    class Documented:
        """One sentence of Croce et al. 2020, which
        goes on. Another one.

        Args:
            steps: updates,
                one after another.
            loss: "ce".

        Example:
            >>> 1 + 1
            2
        """

    assert methods.sentence(Documented) == "One sentence of Croce et al. 2020, which goes on."
    assert methods.arguments(Documented) == {"steps": "updates, one after another.", "loss": '"ce".'}
    assert methods.example(Documented) == ">>> 1 + 1\n2"


def test_formulas_are_marked_as_github_reads_them() -> None:
    assert methods.maths("$$a\n= b$$\n\nwith $c\n+ d$.") == "```math\na\n= b\n```\n\nwith $`c + d`$."


def test_the_site_shows_formulas_as_mathml() -> None:
    pytest.importorskip("latex2mathml")
    text = site.with_maths("so $`x \\sim y`$\n\n```math\nz_{ij}\n```\n\n```sh\necho $HOME\n```")
    html = site.on_page_content(text, page=None, config=None, files=None)  # type: ignore[arg-type]
    assert html.count("<math") == 2 and "&#x0223C;" in html and "echo $HOME" in html
    with pytest.raises(ValueError, match="no MathML"):
        site.with_maths("$`\\arg x`$")


def test_pages_of_a_folder_are_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, pages = tmp_path / "made", {"a.md": "A\n", "b.md": "B\n"}
    assert writing.write_pages(folder, pages, check=True) == 1 and not folder.exists()
    assert writing.write_pages(folder, pages) == 0 == writing.write_pages(folder, pages, check=True)
    assert writing.write_pages(folder, {"a.md": "C\n"}, check=True) == 1
    assert "made/a.md is out of date\nmade/b.md is out of date\n" in capsys.readouterr().err
    assert writing.write_pages(folder, {"a.md": "C\n"}) == 0
    assert [path.read_text() for path in folder.iterdir()] == ["C\n"]
