"""The report in Chromium: accessible, quiet, within its width, used by keyboard; each check is seen to fail."""

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from browsing import axe, chromium, complaints, opened
from page_runs import FOG, HOSTILE, PGD, make_run

from robustkit.common.intervals import wilson
from robustkit.display.text import no_formula
from robustkit.report.refresh import refresh
from robustkit.slices.gallery.sheet import Gallery, GalleryRow, Panel, write_html

pytestmark = pytest.mark.usefixtures("whole_figures")

ATTACK = "PGD, 1/255, 20 steps"  # as a page calls it

USED = """
const used = async () => {
  const samples = [...document.querySelectorAll(".sample")], form = document.querySelector(".controls");
  if (!form) return;
  const texts = (all) => [...all].map((one) => one.textContent);
  const set = (values) => {
    for (const name of ["words", "shown", "checkpoint", "condition", "kind"])
      form.elements[name].value = values[name] || "";
    form.dispatchEvent(new Event("input"));
    return samples.map((one) => Number(!one.hidden)).join("");
  };
  found.filtered = [
    set({words: "TWO"}), set({shown: "10"}), set({shown: "10", condition: "0"}), set({shown: "0"}),
    set({shown: "0", checkpoint: "0"}), set({kind: form.elements.kind.options[1].value}), set({}),
  ];
  set({shown: "10", checkpoint: "1", condition: "0"});
  found.tiles = texts(samples[0].querySelectorAll(".tiles figcaption b"));
  found.answers = texts(samples[0].querySelectorAll(".tiles .answer"));
  set({shown: "10", checkpoint: "0", condition: "3"});
  const tiles = [...samples[0].querySelectorAll(".tiles figure")];
  found.fog = tiles.map((one) => [one.querySelector("b").textContent, one.querySelector("img").alt.split(" under ")[1],
    ...texts(one.querySelectorAll(".answer"))]).filter((one) => one[0].startsWith("fog"));
  set({words: "two"});
  found.count = document.querySelector("#count").textContent;

  const saved = [];
  URL.createObjectURL = (blob) => (saved.push(blob), "#");
  HTMLAnchorElement.prototype.click = function () { saved[saved.length - 1].called = this.download; };
  const grid = document.querySelector("section[aria-labelledby=results] .grid"), table = grid.querySelector("table");
  const press = (table, column) => table.tHead.rows[0].cells[column].querySelector(".sort").click();
  const column = (table, place) => texts([...table.tBodies[0].rows].map((row) => row.cells[place]));
  grid.querySelector(".save").click();
  found.csv = [saved[0].called, await saved[0].text()];
  found.sorted = [1, 2].map(() => (press(table, 2), [table.tHead.rows[0].cells[2].ariaSort, column(table, 0)]));
  const odd = document.querySelector("#odd");
  found.odd = [1, 2].map(() => (press(odd, 1), column(odd, 1)));

  const figure = document.querySelector("figure[data-name]");
  for (const button of figure.querySelectorAll(".save")) button.click();
  for (let wait = 0; saved.length < 3 && wait < 100; wait += 1) await new Promise((done) => setTimeout(done, 50));
  found.drawings = await Promise.all(saved.slice(1).map(async (blob) => [blob.called, blob.type, blob.size,
    blob.type.startsWith("image/svg") ? await blob.text() : ""]));

  set({});
  const zoom = samples[0].querySelector(".zoom"), dialog = document.querySelector(".enlarged");
  zoom.click();
  const at = () => dialog.querySelector(".place").textContent.split(" ")[0];
  found.enlarged = [dialog.open, at(), dialog.querySelector("img").src === zoom.querySelector("img").src];
  for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "Tab"]) {
    dialog.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    found.enlarged.push(at());
  }
  dialog.close();
  await new Promise((done) => setTimeout(done, 50));
  found.enlarged.push(dialog.open, document.activeElement.closest(".sample") === samples[0]);

  const term = [...document.querySelectorAll("a.term")].find((one) => one.textContent === "ECE");
  term.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true}));
  found.hint = document.querySelector(".hint:popover-open").textContent.slice(0, 30);
};
"""
ODD = """<div class="grid" data-name="odd" data-title="odd"><div class="bar"></div><table id="odd">
<thead><tr><th scope="col">name</th><th scope="col" class="num">figure</th></tr></thead>
<tbody>%s</tbody></table></div>"""
FIGURES = ("9.5 [9, 10]", "1,234", "–", "10 [-5, 20]", "&lt; 0.001", "2/255", "−3", "+0.5 [+0.1, +0.9] better")
ODD %= "".join(
    f'<tr><th scope="row">{place}</th><td class="num">{text}</td></tr>' for place, text in enumerate(FIGURES)
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    chromium()
    axe()
    run = make_run(tmp_path_factory.mktemp("report") / "run", HOSTILE[:2], HOSTILE[:3], HOSTILE)
    refresh(run)
    return (run.path / "report.html").read_text("utf-8").replace("</main>", f"{ODD}</main>", 1)


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(1280, False, id="1280-light"),
        pytest.param(390, True, id="390-dark"),
        pytest.param(1280, True, id="1280-dark", marks=pytest.mark.slow),
        pytest.param(390, False, id="390-light", marks=pytest.mark.slow),
    ],
)
def test_a_page_of_hostile_names_is_accessible_and_fetches_nothing(
    page: str, tmp_path: Path, width: int, dark: bool
) -> None:
    found = opened(page, tmp_path, width, dark, USED)
    assert complaints(found) == [] and found["checked"] > 10
    assert (found["width"], found["dark"]) == (width, dark)
    # "two" is the last sample alone. All but the third class fall to fog, the first sample to the attack; the second
    # checkpoint is wrong on the second sample, clean, the first on none.
    assert found["filtered"][:5] == ["00000001", "11011011", "10000000", "01000000", "00000000"]
    assert found["filtered"][5] in ("10010010", "01001001", "00100100") and found["filtered"][6] == "11111111"
    assert found["tiles"] == ["clean", ATTACK, "what was changed", "AG-CAM"]
    assert found["count"] == "1 of 8 samples"
    assert [text[:2] for text in found["answers"]] == ["✓ ", "✗ ", "am", "AB"]
    # Only severity 2 has a picture: its prediction stands under it, next to that of the one that was asked for.
    ((heading, pictured, *said),) = found["fog"]
    assert heading == "fog, picture: severity 2" and pictured == FOG[1]
    assert [re.sub(r":.*%", "", text) for text in said] == ["2 ✓ right", "3 ✗ wrong (no picture is kept)"]


def test_tables_are_sorted_and_saved_and_pictures_enlarged(page: str, tmp_path: Path) -> None:
    found = opened(page, tmp_path, 1280, False, USED)
    assert [one[0] for one in found["sorted"]] == ["descending", "ascending"]
    assert [one[1] for one in found["sorted"]] == [["clean", ATTACK], [ATTACK, "clean"]]
    rising = ["−3", "< 0.001", "2/255", "+0.5 [+0.1, +0.9] better", "9.5 [9, 10]", "10 [-5, 20]", "1,234"]
    assert found["odd"] == [[*rising[::-1], "–"], [*rising, "–"]]  # what is not a figure stays last
    name, text = found["csv"]
    assert name == "clean-and-attacked-top-1-95.csv" and text.startswith("condition,")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    names = [" ".join(no_formula(name).split()) for name in HOSTILE[:2]]
    assert rows[0] == ["condition", *(f"{name}{part}" for name in names for part in ("", " low", " high"))]
    low, high = wilson(7, 8)
    assert rows[1] == [
        "clean",
        "100.0",
        f"{100 * wilson(8, 8)[0]:.1f}",
        "100.0",
        "87.5",
        f"{100 * low:.1f}",
        f"{100 * high:.1f}",
    ]
    assert [row[0] for row in rows] == ["condition", "clean", ATTACK] and "\r\n" in text
    (svg, kind, _, drawn), (png, picture, size, _) = found["drawings"]
    assert (
        svg.endswith(".svg")
        and png == svg.replace(".svg", ".png")
        and (kind, picture) == ("image/svg+xml", "image/png")
    )
    assert ElementTree.fromstring(drawn).attrib["style"].startswith("color: #1a1c20") and size > 5000
    assert found["enlarged"] == [True, "1", True, "2", "3", "2", "2", False, True]
    assert found["hint"].startswith("ECE Expected calibration error")


SWITCHED = """
const used = async () => {
  const form = document.querySelector(".switches");
  const seen = () => document.querySelectorAll("table").length + " " + [...document.querySelectorAll(".zoom")].filter(
    (one) => one.checkVisibility()).length;
  found.seen = [form.hidden, seen()];
  for (const value of ["m1", "u1", "c0"]) {
    form.querySelector(`[value=${value}]`).click();
    found.seen.push(seen());
  }
  [...document.querySelectorAll(".zoom")].find((one) => one.checkVisibility()).click();
  const dialog = document.querySelector(".enlarged");
  found.seen.push(dialog.open, dialog.querySelector(".place").textContent);
  dialog.close();
};
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_gallery_is_accessible_and_hides_what_is_not_asked_for(tmp_path: Path, width: int, dark: bool) -> None:
    image, heat = np.zeros((8, 8, 3), np.uint8), np.eye(8, dtype=np.float32)
    tiles = tuple(Panel(f"agcam, {name}", image, heat, ("cat 90 %",)) for name in HOSTILE[:2])
    rows = tuple(
        GalleryRow(sample, "cat", image, tiles, None, checkpoint, under, ("predicts cat 90 %",))
        for sample in ("a.png", HOSTILE[2])
        for checkpoint in HOSTILE[:2]
        for under in ("", PGD)
    )
    write_html(Gallery("maps", rows), tmp_path / "gallery.html")
    found = opened((tmp_path / "gallery.html").read_text("utf-8"), tmp_path, width, dark, SWITCHED)
    assert complaints(found) == [] and found["dark"] == dark
    # Of two samples, two checkpoints and two conditions with an image and two maps each: one map, one condition, and
    # one checkpoint are hidden. What is left can be enlarged.
    assert found["seen"] == [False, "2 24", "2 16", "2 8", "2 4", True, "1 of 4"]


def test_each_check_can_fail(page: str, tmp_path: Path) -> None:
    extra = '<p style="color: #888; background: #999">faint</p><img src="http://127.0.0.1:9/x.png">'
    extra += '<div style="width: 3000px">wide</div><script>alert(1)</script><p style="width: 1px">eps=1/<wbr>255</p>'
    spoilt = page.replace("</main>", f"{extra}</main>").replace("form.hidden = false;", "form.hidden = false; ")
    found = opened(spoilt, tmp_path, 1280, dark=False)
    assert any(text.startswith("color-contrast") for text in found["violations"])
    assert any(text.startswith("image-alt") for text in found["violations"])
    assert any("127.0.0.1" in text for text in found["refused"]) and found["page"] > 3000
    assert found["broken"] == ["1/255"] and complaints(found)[0] == f"{found['page']} wide in 1280"
    assert sum(text.startswith("inline script-src") for text in found["refused"]) == 2  # ours, changed by a space, too
    free = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", spoilt)
    free = free.replace(
        "<script>alert(1)", "<script>console.error('said'); Promise.reject('late'); throw Error('loud')"
    )
    free = free.replace("<title>", '<meta name="script-src "><title>', 1)
    found = opened(free, tmp_path, 1280, False, "const used = async () => { throw Error('unusable'); };")
    assert any("127.0.0.1" in text for text in found["fetched"])
    for fault in ("said", "late", "loud", "unusable"):
        assert any(fault in text for text in found["faults"]), fault
