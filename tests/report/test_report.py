"""The report's page, parsed: its parts, what it fetches, names that would inject, the samples that fit."""

import base64
import hashlib
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from manifests import write_plain
from page_runs import HOSTILE, PGD, Page, make_run, page_of
from PIL import Image
from sealing import seal

from robustkit.evaluations.maps.tables import gallery_uri
from robustkit.protocol.card import load_card
from robustkit.report import page as report_page
from robustkit.report import samples
from robustkit.report import samples as browser
from robustkit.report.page import SECTIONS
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.report.samples import Browser, SampleCell
from robustkit.results.survey import write_summary
from robustkit.tasks.labelled.subject import CLASSIFICATION

pytestmark = pytest.mark.usefixtures("whole_figures")

CALLED = "PGD, 1/255, 20 steps"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = make_run(tmp_path_factory.mktemp("page") / "run")
    refresh(made)
    return made


def test_the_parts_are_in_their_order_and_linked(run: Run) -> None:
    page = page_of(run)
    anchors = [a["href"].removeprefix("#") for a in page.all("a") if a["href"].startswith("#")]
    links = list(dict.fromkeys(name for name in anchors if not name.startswith(("term-", "flags-", "notes"))))
    order = [*SECTIONS, "glossary"]
    assert links == [name for name in order if name in links] and links[0] == "samples"
    assert {"results", "corruptions", "samples", "comparison", "reproduce"} <= set(links)
    assert [attrs["aria-labelledby"] for attrs in page.all("section")] == links
    assert [attrs["id"] for attrs in page.all("h2")] == links
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids)) and set(anchors) <= set(ids)
    text = (run.path / "report.html").read_text("utf-8")
    assert text.index("<nav") < text.index('class="scope"') < text.index('id="results"')
    assert all(image.get("alt") is not None for image in page.all("img"))
    for attrs in (attrs for _, attrs in page.tags if "scroll" in attrs.get("class", "").split()):
        assert attrs["role"] == "region" and attrs["tabindex"] == "0" and attrs["aria-label"]


def test_nothing_is_fetched_and_one_script_may_run(run: Run) -> None:
    text = (run.path / "report.html").read_text("utf-8")
    page = Page(text)
    policy = next(
        meta["content"] for meta in page.all("meta") if "content" in meta and "default-src" in meta["content"]
    )
    script = re.search("<script>(.*?)</script>", text, re.DOTALL)
    assert script and text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:; ") and f"script-src 'sha256-{digest}'" in policy
    assert {attrs["src"].partition(",")[0] for attrs in page.all("img")} == {"data:image/webp;base64"}
    for _, attrs in page.tags:
        assert not attrs.keys() & {"srcset", "action", "data", "poster", "background"}
        assert all(not name.startswith("on") for name in attrs)
        assert attrs.get("href", "#").startswith("#") and attrs.get("xlink:href", "#").startswith("#")
    assert not page.all("link") + page.all("iframe") + page.all("object")
    assert not re.search(r"url\((?!#)|@import", text)


def test_a_sample_is_shown_across_conditions(run: Run) -> None:
    views = list(Browser(run).samples())
    assert [(v.sample_id, v.label) for v in views] == [("a.png", "cat"), ("b.png", "dog"), ("c.png", "owl")]
    # Places are among PGD and the three severities: the first sample falls to PGD, all but the third class to fog.
    assert [v.changed for v in views] == [(0, 3), (3,), ()]
    # One sign per checkpoint: the second is wrong on the second sample; after: PGD, then fog at its three severities.
    assert [v.before for v in views] == ["11", "10", "11"]
    assert [v.after for v in views] == [("0110", "0110"), ("1110", "0000"), ("1111", "1111")]
    assert [v.clean for v in views] == ["clean: 2 of 2 right", "clean: 1 of 2 right", "clean: 2 of 2 right"]
    first = {line.heading: line for line in views[0].lines}
    assert list(first) == ["clean", "AG-CAM", CALLED, "fog, picture: severity 2"]  # as in the tables
    assert first["clean"].picture and first["clean"].cells[0].pictures == ()  # once, as all were shown the same
    attacked = first[CALLED].cells
    assert first[CALLED].picture is None and [len(cell.pictures) for cell in attacked] == [2, 2]
    assert attacked[0].line == "amplified 127× (max 1/255)"
    assert [(one.right, one.text, one.level) for one in attacked[1].answers] == [(False, "dog 75 %", "")]
    fog = first["fog, picture: severity 2"].cells[0].answers
    assert [(one.level, one.right) for one in fog] == [("1", True), ("2", True), ("3", False)]
    picture = first["fog, picture: severity 2"].picture
    assert picture is not None and picture.place == fog[1].place == 2  # the prediction of that severity is its own
    assert [len(cell.pictures) for cell in first["AG-CAM"].cells] == [1, 1]
    assert first["AG-CAM"].cells[0].line == "ABPC 0.25"
    assert [(line.role, line.places) for line in views[0].lines] == [
        ("shown", (-1,)),
        ("map", (-1,)),
        ("shown", (0,)),
        ("shown", (1, 2, 3)),
    ]
    assert [one.place for one in fog] == [1, 2, 3]
    shown = [attrs for attrs in page_of(run).all("div") if attrs.get("class") == "sample"]
    assert [(attrs["data-before"], attrs["data-after"]) for attrs in shown][1] == ("10", "1110 0000")
    assert "b.png dog dog owl" in shown[1]["data-words"] and shown[1]["data-label"] == "dog"
    text = page_of(run).text()
    assert "✗ wrong: dog 75 %" in text and "✓ right: cat 75 %" in text
    assert "3 of 3 kept samples are on this page" in text


def test_what_was_not_read_and_what_has_no_label(tmp_path: Path) -> None:
    run = make_run(tmp_path, checkpoints=("one",))
    path = run.shard_path("one", PGD, 0)
    rows = [{"sample_id": "a.png", "label": 0, "error": "a.png: not an image"}]
    rows += [{"sample_id": "b.png", "label": -1, "prediction": 9, "confidence": float("nan")}]
    run.write_shard(path, pa.Table.from_pylist(rows, schema=CLASSIFICATION))
    run.shard_path("one", PGD, 1).unlink()
    first, second, third = Browser(run).samples()
    cells = [{line.heading: line for line in view.lines}[CALLED].cells[0] for view in (first, second, third)]
    assert [(one.right, one.text) for one in cells[0].answers] == [(None, "not read")]
    assert [(one.right, one.text) for one in cells[1].answers] == [(None, "9")]  # no such class, no such confidence
    assert cells[2].answers == () and cells[2].line == "" and first.changed == (3,)
    assert first.clean == ""  # of one checkpoint the line of the clean image says it
    assert isinstance(cells[0], SampleCell) and cells[1].line == ""


def test_as_many_samples_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr(report_page, "sections_of", lambda run, results: [])  # drawing them takes its time
    views = list(Browser(run).samples())
    rows = write_summary(run)
    monkeypatch.setattr(browser, "PICTURES", 1)
    smaller = [view.weight for view in Browser(run).samples()]
    assert all(small < 0.8 * view.weight for small, view in zip(smaller, views, strict=True))  # lossy, so that more fit
    for limit, count in ((smaller[0] + smaller[1], 2), (smaller[0] + smaller[1] - 1, 1)):
        monkeypatch.setattr(browser, "PICTURES", limit)
        report_page.write_report(run, rows)
        assert f"{count} of 3 kept samples are on this page" in page_of(run).text()
    monkeypatch.setattr(browser, "PICTURES", 12_000_000)
    report_page.write_report(run, rows)
    size = len((run.path / "report.html").read_bytes())
    for limit, said in (
        (size - 8_000, "2 of 3 kept samples are"),
        (0, "None of the 3 kept samples is"),
    ):  # 8 kB: of one
        monkeypatch.setattr(report_page, "LARGEST", limit)
        report_page.write_report(run, rows)
        assert f"{said} on this page" in page_of(run).text()
    monkeypatch.setattr(samples, "_HELD", 1)  # the first is kept, whatever it takes
    assert [view.sample_id for view in Browser(run).samples()] == ["a.png"]


def test_a_run_without_pictures_has_no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "sections_of", lambda run, results: [])
    run = make_run(tmp_path, shown=False)
    refresh(run)
    page = page_of(run)
    assert "Sample browser" not in page.text() and not page.all("form")


def test_hostile_names_are_text(run: Run, tmp_path: Path) -> None:
    hostile = make_run(tmp_path / "<b>&", HOSTILE[:2], HOSTILE[:3], HOSTILE)
    manifest = hostile.manifest.to_plain()
    manifest["command"] = manifest["data"]["root"] = manifest["data"]["name"] = "".join(HOSTILE)
    manifest["bad_images"] = [{"sample_id": name, "error": name} for name in HOSTILE]
    manifest["protocol"]["caveats"] = list(HOSTILE)
    manifest["checkpoints"][0] |= {"spec": HOSTILE[2], "arch": HOSTILE[3], "notes": list(HOSTILE)}
    write_plain(hostile, manifest)
    seal(hostile)
    report_page.write_report(hostile, write_summary(hostile))
    page, plain = page_of(hostile), page_of(run)
    names = {tag for tag, _ in page.tags}
    assert names <= {tag for tag, _ in plain.tags} | {"ul", "li", "section", "h2", "details", "summary", "pre"}
    text = (hostile.path / "report.html").read_text("utf-8")
    assert ".verdicts {" in text and "addEventListener" in text  # what style and script hold, not where they are
    assert len(page.all("script")) == 1 == len(page.all("style")) and len(page.all("title")) == 1
    assert not any(attrs.get("src", "data:").startswith("x") or "onerror" in attrs for _, attrs in page.tags)
    found = page.text()
    for name in HOSTILE:
        assert " ".join(name.split()) in found
    words = [attrs["data-words"] for attrs in page.all("div") if attrs.get("class") == "sample"]
    assert [text.startswith(name.lower()) for text, name in zip(words, HOSTILE, strict=True)] == [True] * len(HOSTILE)
    script = (hostile.path / "report.html").read_text("utf-8").partition("<script>")[2].partition("</script>")[0]
    assert script == (run.path / "report.html").read_text("utf-8").partition("<script>")[2].partition("</script>")[0]


def test_the_card_is_there_with_all_its_parameters(run: Run) -> None:
    found = load_card("standard").parameters
    assert found["pgd"]["steps"] == 20 and found["threat"]["eps"] == "1/255" and found["threat"]["bounds"] == "[0, 1]"
    text = page_of(run).text()
    for key in ("steps = 20", "step_size = 0.15*eps", "queries = 5000", run.manifest.protocol.digest):
        assert key in text


def test_the_gallery_is_in_the_page(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "cams").mkdir()
    Image.fromarray(np.zeros((50, 3200, 3), np.uint8)).save(tmp_path / "cams" / "gallery.png")
    uri = gallery_uri(run)
    assert uri is not None
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as sheet:
        assert sheet.size == (1600, 25)
    report_page.write_report(run, write_summary(run))
    page = page_of(run)
    assert any(attrs.get("src") == uri for attrs in page.all("img"))
    assert [a["href"] for a in page.all("a") if not a["href"].startswith("#")] == ["cams/gallery.html"]
