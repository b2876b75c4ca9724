"""What MkDocs is told before it builds the site: pages of the repository's root, and the notebooks, executed unless
they are stored with outputs, as tutorials are.

mkdocs build --strict
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"CONTRIBUTING.md": "contributing.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
LISTED = "llms.txt"  # which is no page, so that MkDocs leaves its links as they are
SECONDS = 120
"""How long a cell of a notebook may take."""
DEMO = ROOT / "robustkit-demo" / "report.html"
"""Written by `robustkit demo`; a site that is built next to it shows it."""
LIVE = "demo/report.html"

_LISTED = re.compile(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)")
_FORMULAS: list[str] = []  # as MathML
_PLACE = re.compile("\ue000(\\d+)\ue001")
_MATHS = re.compile(r"(?ms)^```math\n(.*?)\n```$|\$`([^`\n]+)`\$")
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]*)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where nav has the folder, the demo's report at its end, the version into footers."""
    config.nav = _unfolded(config.nav) + [{"A live report": LIVE}] * DEMO.exists()
    config.copyright = f"RobustKit {version('robustkit-audit')}"
    return config


def _unfolded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_unfolded(each) for each in nav]
    if isinstance(nav, dict):
        return {title: _unfolded(each) for title, each in nav.items()}
    return pages_of(nav) if isinstance(nav, str) and nav.endswith("/") else nav


def pages_of(folder: str) -> list[str]:
    """Return the pages of a folder of docs/: its index, then the others in the order in which the index names them."""
    index = (ROOT / "docs" / folder / "index.md").read_text("utf-8")
    return [f"{folder}{name}" for name in dict.fromkeys(("index.md", *_LISTED.findall(index)))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/ as they are shown."""
    from mkdocs.structure.files import File

    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    if DEMO.exists():
        files.append(File.generated(config, LIVE, content=DEMO.read_text(encoding="utf-8")))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = executed(path)
        if (raw := files.get_file_from_path(f"notebooks/{path.name}")) is not None:
            files.remove(raw)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{path.stem}/{name}", content=data))
    if (listed := files.get_file_from_path(LISTED)) is not None:
        files.remove(listed)
        files.append(File.generated(config, LISTED, content=list_of_pages({file.src_uri: file.url for file in files})))
    return files


def list_of_pages(urls: Mapping[str, str]) -> str:
    """Return llms.txt with links to pages of the site. urls: of the files in docs/, by their names."""
    return _LINK.sub(lambda link: f"{link[1]}({urls[link[2]]})", (ROOT / "docs" / LISTED).read_text("utf-8"))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that are right in the repository to the same place on the site."""
    place = page.file.src_uri
    source = next((name for name, shown in PAGES.items() if shown == place), f"docs/{place}")
    return with_maths(led(markdown, source, place))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put formulas in their places: Markdown takes `math` for a block, and would read what is in it."""
    return _PLACE.sub(lambda match: _FORMULAS[int(match[1])], html)


def with_maths(markdown: str) -> str:
    """Return the text with a place for each formula, in LaTeX between $` and `$ or in blocks of `math`."""
    from latex2mathml.converter import convert

    def place(match: re.Match[str]) -> str:
        block = match[1] is not None
        text = convert(match[1] or match[2], display="block" if block else "inline")
        if "\\" in text:
            raise ValueError(f"{match[0]}: a command that has no MathML")
        _FORMULAS.append(text.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"))  # a relation
        mark = f"\ue000{len(_FORMULAS) - 1}\ue001"
        return f'<div class="maths" style="overflow-x: auto">{mark}</div>' if block else mark

    return _MATHS.sub(place, markdown)


def led(markdown: str, source: str, place: str) -> str:
    """Return the text of the page `source` of the repository with the links of the page `place` of the site."""
    return _LINK.sub(lambda link: _led(link, source, place), markdown)


def _led(link: re.Match[str], source: str, place: str) -> str:
    text, path, anchor = link[1], link[2], link[3] or ""
    if not path or re.match(r"[a-z]+:", path):
        return link[0]
    target = os.path.relpath(ROOT / Path(source).parent / path, ROOT)
    if target in PAGES:
        shown = PAGES[target]
    elif target.startswith("docs/"):
        shown = target.removeprefix("docs/").replace(".ipynb", ".md")
    elif (ROOT / target).exists():
        return f"{text[1:-1]} (`{target}`)" if f"`{target}`" != text[1:-1] else f"`{target}`"  # code is not on the site
    else:
        return link[0]  # MkDocs says that it leads nowhere
    return f"{text}({os.path.relpath(shown, Path(place).parent)}{anchor})"


@cache
def executed(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown with what its cells print, and its pictures by name. It is executed, and a cell's
    error is raised, unless it is stored with outputs.
    """
    import tempfile

    import nbformat
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook: Any = nbformat.read(path, as_version=4)
    if not any(cell.get("outputs") for cell in notebook.cells):
        with tempfile.TemporaryDirectory() as folder:
            # tqdm, which others import, asks for a widget that a page cannot show.
            os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
            NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    pictures: dict[str, bytes] = resources["outputs"]
    for name in pictures:
        text = text.replace(f"]({name})", f"]({path.stem}/{name})")
    return text, pictures
