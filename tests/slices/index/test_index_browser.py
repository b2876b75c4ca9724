"""The index in Chromium: accessible, quiet, within its width; its filter and its choice of two runs."""

from pathlib import Path

import pytest
from browsing import axe, chromium, complaints, opened
from index_runs import furnished

from robustkit.report.pages import allow_breaks
from robustkit.slices.index.page import write_index

pytestmark = pytest.mark.usefixtures("whole_figures")

USED = """
const used = () => {
  const form = document.querySelector("#filter"), picked = document.querySelector("#picked");
  const rows = [...document.querySelectorAll(".runs tbody tr")];
  const path = (row) => row.querySelector(".choose").dataset.path;
  const shown = () => rows.filter((row) => !row.hidden).map(path).join(" ");
  const set = (name, value) => {
    form.reset();
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
    return shown();
  };
  found.filtered = [set("words", "VIT 01-04"), set("name", "vit"), set("state", "unfinished"), set("card", "")];
  found.count = document.querySelector("#count").textContent;
  const pick = (path) => {
    const box = document.querySelector(`.choose[data-path="${path}"]`);
    box.checked = !box.checked;
    box.dispatchEvent(new Event("change"));
    return picked.hidden ? "" : picked.textContent;
  };
  found.picked = [pick("vit/b"), pick("vit/a"), pick("half")];
  pick("half");
  pick("vit/b");
  found.link = picked.querySelector("a").getAttribute("href");
  found.boxes = [...document.querySelectorAll(".choose")].filter((box) => box.checked).length;
};
"""
CUT = """
const used = () => {
  const tables = [...document.querySelectorAll(".scroll:has(table)")];
  found.tables = tables.length;
  found.cut = tables.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel);
};
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chromium()
    axe()
    folder = furnished(tmp_path_factory.mktemp("index") / "runs")
    write_index(folder)
    return folder


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_index_is_accessible_and_used(folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    narrow = f'<p style="width: 1px">{allow_breaks("pgd(eps=1/255,steps=20)")}</p>'
    page = (folder / "index.html").read_text("utf-8").replace("</main>", f"{narrow}</main>")
    found = opened(page, tmp_path, width, dark, USED)
    assert complaints(found) == [] and found["checked"] > 10
    assert (found["width"], found["dark"]) == (width, dark)
    assert found["filtered"][:3] == ["vit/b", "vit/b vit/a", "half early forged"]
    assert found["count"] == "9 of 9 rows" and found["boxes"] == 2
    first, second, third = found["picked"]
    assert first.startswith("vit/b is chosen") and second == "vit/b against vit/a: their paired comparison"
    # Of three the last two count; they were not compared, so the command stands there.
    assert f"half against vit/a: not computed yet; robustkit compare {folder}/vit/a {folder}/half" in third
    assert found["link"].startswith(".robustkit-view/compare-")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_a_comparison_is_accessible_and_not_cut(folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    (page,) = (folder / ".robustkit-view").glob("compare-*.html")
    found = opened(page.read_text("utf-8"), tmp_path, width, dark, CUT)
    assert complaints(found) == [] and found["cut"] == [] and found["tables"] == 2


def test_a_history_is_not_cut_on_a_narrow_screen(folder: Path, tmp_path: Path) -> None:
    found = opened((folder / "index.html").read_text("utf-8"), tmp_path, 390, True, CUT)
    assert complaints(found) == [] and found["cut"] == [] and found["tables"] == 2
