"""Tables of scenes: by hand, and on a terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from manifests import whole
from rich.console import Console
from scene_records import counts, record, share

from robustkit.common.figure import Figure
from robustkit.display.console import print_tables
from robustkit.display.format import Cell
from robustkit.display.table import Table
from robustkit.evaluations.corruptions import SETS, shares_of
from robustkit.tasks.segmentation import TASK
from robustkit.tasks.segmentation.counts import Counts
from robustkit.tasks.segmentation.results import (
    LONGEST,
    card_parts,
    scene_mean_rows,
    scene_rows,
    scene_tables,
    terminal_scenes,
)
from robustkit.tasks.task import ConditionTable

pytestmark = pytest.mark.usefixtures("one_thread")
MANIFEST = whole(
    {
        "checkpoints": [{"name": "seg", "attention": "quest"}, {"name": "conv", "attention": "none"}],
        "claims": {
            "pgd(eps=4/255,steps=3)": {"norm": "linf", "eps": 4 / 255},
            "pgd(eps=1,steps=3,norm=l2)": {"norm": "l2", "eps": 1.0},
        },
        "protocol": {"tag": "segmentation@1:00", "summary": "pixels"},
    }
)


def summary(found: dict[str, Counts], n: int, names: str, checkpoint: str = "seg") -> list[Figure]:
    rows = [row for text, one in found.items() for row in scene_rows(text, one, names)]
    rows += scene_mean_rows(found, n, names)
    return [replace(row, checkpoint=checkpoint) for row in rows]


def test_tables_by_hand() -> None:
    pgd = "pgd(eps=4/255,steps=3)"
    own = {"clean": share(0.8, 10), pgd: replace(share(0.2, 10, flags=("half",)), largest={"linf": 4 / 255, "l2": 1.0})}
    own |= {f"corruption({c},severity={s})": share(0.1 * s, 10) for c in SETS["noise"] for s in (1, 2, 3, 4, 5)}
    own |= {f"corruption(fog,severity={s})": share(0.5, 10) for s in (1, 2, 3)} | {
        "corruption(snow,severity=5)": share(0, 10)
    }
    second = {"clean": share(0.5), "pgd(eps=1,steps=3,norm=l2)": replace(share(0.5), largest={"linf": 0.1, "l2": 0.75})}
    results = summary(own, 10, "0") + summary(second, 1, "0", "conv")
    assert results[0].key == ("clean", "miou")
    results[0] = replace(results[0], low=0.71, high=0.89)
    severities, sets, classes, other = scene_tables(results)
    plain = ConditionTable.of(TASK, results, MANIFEST).text_table()
    assert plain.title == "protocol segmentation@1:00: pixels" and len(plain.rows) == 4
    cell = "80.0 [80.0, 80.0]"
    assert plain.rows[0] == ("seg", "quest", "clean", "10", "80.0 [71.0, 89.0]", cell, cell, "0.200", "0")
    assert plain.rows[1][2:5] == ("PGD, 4/255, 3 steps", "10", "20.0 [20.0, 20.0]") and plain.rows[1][7:] == (
        "0.800",
        "4/255",
    )
    assert plain.rows[2] == ("conv", "no", "clean", "1", "50.0", "50.0", "50.0", "0.500", "0")
    assert plain.rows[3][2:4] == ("PGD, l2 1, 3 steps", "1") and plain.rows[3][8] == "0.75"
    noise = ("10.0", "20.0", "30.0", "40.0", "50.0", "30.0", "37.5")
    assert severities.headings == ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
    assert severities.rows[:3] == tuple((name, *noise) for name in SETS["noise"])
    assert severities.rows[3] == ("mean of noise", *noise)
    assert severities.rows[4:] == (
        ("snow", "–", "–", "–", "–", "0.0", "0.0 (5)", "0.0 (5)"),
        ("fog", "50.0", "50.0", "50.0", "–", "–", "50.0 (1–3)", "62.5 (1–3)"),
    )
    assert [severities.shade(0, column) for column in range(1, 8)] == pytest.approx(
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.7, 0.625]
    )
    assert [severities.shade(4, column) for column in range(6)] == [None] * 5 + [1]
    assert sets.rows == (("noise", "10", "30.0 [30.0, 30.0]", "37.5 [37.5, 37.5]", "30.0", "30.0", "0.700"),)
    assert classes.headings == ("class", "images", "clean", pgd, "noise")
    *_, named, _ = scene_tables(results, MANIFEST)
    assert named.headings == ("class", "images", "clean", "PGD, 4/255, 3 steps", "noise")
    assert classes.note == "--classes FILE names the classes."
    by_name = [replace(each, metric=each.metric.replace("iou(0)", "iou(sky)")) for each in results]
    assert [*scene_tables(by_name)][-2].rows[0][0] == "sky" and [*scene_tables(by_name)][-2].note == ""
    assert classes.rows == (("0", "10", "80.0", "20.0", "30.0"),)
    assert [classes.shade(0, column) for column in (2, 3, 4)] == pytest.approx([0.2, 0.8, 0.7])
    assert classes.shade(0, 1) is None
    assert other.title.startswith("conv: IoU") and other.rows == (("0", "1", "50.0", "50.0"),)
    (part,) = card_parts("seg", ConditionTable.of(TASK, results, MANIFEST), [severities, classes])
    whole, by_severity, by_class = (table.title for table in part.tables)
    assert (
        whole == "" and by_severity.startswith("mIoU in % by corruption") and by_class.startswith("IoU in % by class")
    )
    losses = [row for row in results if row.metric == "nll"]
    assert scene_tables(losses) == [] and not ConditionTable.of(TASK, losses, MANIFEST).figures


def test_tables_of_a_definition() -> None:
    here, gone = ([3, 2, 0], [3, 2, 0], [5, 2, 0]), ([3, 0, 0], [3, 0, 0], [5, 0, 0])
    texts = [*shares_of("noise(source=released)"), "corruption(fog,severity=2,source=released)", "clean"]
    own = {text: counts(record("a", here), flags=("half",)) for text in texts}
    own[texts[0]] = counts(record("a", gone))
    own["clean"] = counts(record("a", here, nll=math.inf))
    results = summary(own, 1, "rst")
    severities, sets, classes = scene_tables(results)
    plain = ConditionTable.of(TASK, results, MANIFEST).text_table()
    assert severities.title == "seg: mIoU in % by corruption and severity, released files (source=released)"
    # One of 15 conditions sees the road only: 3/5; the others 3/5 and 2/2, which are 5 of 7 pixels.
    assert plain.rows[0][4:8] == ("80.0", "71.4", "80.0", "nan")
    assert sets.rows[0] == ("noise(source=released)", "1", "78.7", "98.3", "70.7", "78.7", "0.500")
    assert classes.headings[2:] == ("clean", "noise(source=released)") and classes.rows[1][2:] == ("100.0", "–")


def test_corruptions_of_plug_ins_stand_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustkit.evaluations.corruptions.declared", lambda group: [SimpleNamespace(name="dots")])
    texts = [f"corruption({name},severity=1)" for name in ("dots", "fog")]
    table = scene_tables(summary({text: share(0.5) for text in texts} | {"clean": share(0.8)}, 1, "0"))[0]
    assert [row[0] for row in table.rows] == ["fog", "dots"]


def test_a_terminal_shows_the_tables_but_not_the_longest() -> None:
    own = {f"corruption({c},severity={s})": share(0.1 * s) for c in SETS["noise"] for s in (1, 2, 3, 4, 5)}
    tables = scene_tables(summary(own | {"clean": share(0.8)}, 1, "0"))
    long = Table("many", ("class", "images", "clean"), (("[red]wall", Cell("1"), Cell("2")),) * (LONGEST + 1))
    console = Console(width=150, record=True, file=io.StringIO())
    print_tables(console, terminal_scenes([*tables, long, replace(long, rows=long.rows[1:])]))
    text = console.export_text()
    assert "seg: mIoU in % by corruption and severity" in text and "37.5" in text and "80.0" in text
    assert f"{LONGEST + 1} classes; see the report" in text and "[red]wall" in text
    assert text.count("1      2\n") == LONGEST
