"""What the site is made of: links that are right in the repository are right there, and docstrings become lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from places import ROOT

from scripts.pages import site


@pytest.mark.parametrize(
    ("source", "place", "link", "led"),
    [
        (
            "docs/how-to/extending.md",
            "how-to/extending.md",
            "[a](../../ARCHITECTURE.md#x)",
            "[a](../architecture.md#x)",
        ),
        ("docs/how-to/gate.md", "how-to/gate.md", "[n](../concepts/runs.md)", "[n](../concepts/runs.md)"),
        ("docs/how-to/index.md", "how-to/index.md", "[n](../notebooks/a.ipynb)", "[n](../notebooks/a.md)"),
        ("ARCHITECTURE.md", "architecture.md", "[e](docs/how-to/extending.md)", "[e](how-to/extending.md)"),
        ("ARCHITECTURE.md", "architecture.md", "[code](setup.py)", "code (`setup.py`)"),
        ("README.md", "index.md", "[x](nowhere.py)", "[x](nowhere.py)"),
        ("docs/index.md", "index.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
        ("docs/index.md", "index.md", "![p](pictures/report.webp)", "![p](pictures/report.webp)"),
    ],
)
def test_a_link_leads_to_the_same_place(source: str, place: str, link: str, led: str) -> None:
    assert site.led(link, source, place) == led


def test_the_list_for_assistants_leads_to_pages_of_the_site() -> None:
    pytest.importorskip("mkdocs")
    from mkdocs.config import load_config
    from mkdocs.structure.files import get_files

    urls = {file.src_uri: file.url for file in get_files(load_config(str(ROOT / "mkdocs.yml")))}
    listed = site.list_of_pages(urls)
    links = re.findall(r"\]\((.*?)\)", listed)
    assert {"get-started/", "how-to/", "concepts/standards/"} <= {*links} <= {*urls.values()}


def test_entries_of_a_docstring_become_a_list() -> None:
    pytest.importorskip("griffe")
    from scripts.pages.docstrings import shown

    text = "Sum.\n\na, b: numbers,\n    finite.\nc: one.\n\nAs in:\n\n    f(1)\n\nExample:\n    >>> f(1)\n    1"
    assert shown(text) == (
        "Sum.\n\n- `a`, `b`: numbers,\n    finite.\n- `c`: one.\n\n"
        "As in:\n\n```python\nf(1)\n```\n\nExamples:\n    >>> f(1)\n    1"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_tutorials_are_stored_with_outputs_and_other_notebooks_without(path: Path) -> None:
    text = path.read_text("utf-8")
    cells = json.loads(text)["cells"]
    assert len(cells) > 5
    executed = [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert bool(executed) == path.name.startswith("tutorial-")
    assert not re.search(r"/(tmp|home|root)/|\\u001b|<progress", text)
    assert not [output for cell in executed for output in cell["outputs"] if output.get("name") == "stderr"]


def test_a_folder_of_nav_is_its_pages() -> None:
    pages = site.pages_of("reference/commands/")
    assert pages[:2] == ["reference/commands/index.md", "reference/commands/audit.md"]
    assert {*pages} == {f"reference/commands/{path.name}" for path in (site.ROOT / "docs/reference/commands").glob("*")}
