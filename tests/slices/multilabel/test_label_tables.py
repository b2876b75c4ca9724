"""Tables of several labels an image: columns and lists, the order of outputs, what is refused, a line each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from robustkit.errors import DataError
from robustkit.slices.multilabel.labels import LabelReader

IMAGES = ["in/a.png", "in/b.png", "c.png"]
NAMES = ("cat", "traffic light", "dog")


def read(place: Path, text: str, **options: Any) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    (place / "t.csv").write_text(text)
    arguments = {"outputs": 3, "names": NAMES} | options
    return LabelReader(**arguments).read(place / "t.csv", IMAGES, "images", "top/")


def test_columns_go_to_the_outputs_of_their_names(tmp_path: Path) -> None:
    table = "file,Dog,cat,traffic_light\na.png,1,0,0.0\ntop/in/b.png,0,1,1\n\nc,0,0,0\n"
    truths = {"in/a.png": (0, 0, 1), "in/b.png": (1, 1, 0), "c.png": (0, 0, 0)}
    assert read(tmp_path, table) == (NAMES, truths)
    assert read(tmp_path, table.replace(",", ";")) == (NAMES, truths)


def test_columns_are_the_outputs_where_the_user_says_so(tmp_path: Path) -> None:
    table = "x,y,z,path\n1,0,0,a.png\n"
    expected = ("x", "y", "z"), {"in/a.png": (1, 0, 0)}
    assert read(tmp_path, table, in_columns=True) == expected  # whatever other names the outputs have
    assert read(tmp_path, table, in_columns=True, names=None) == expected
    assert read(tmp_path, table, in_columns=True, names=("x", "y", "z")) == expected
    assert read(tmp_path, table, in_columns=True, names=("X", "other", "Z")) == expected  # none is moved


def test_lists_name_what_an_image_has(tmp_path: Path) -> None:
    table = "image\tLabels\na.png\tdog; cat\nb.png\tTraffic Light\nc.png\t\n"
    truths = {"in/a.png": (1, 0, 1), "in/b.png": (0, 1, 0), "c.png": (0, 0, 0)}
    assert read(tmp_path, table, empty=True) == (NAMES, truths)
    with pytest.raises(DataError, match=r"t.csv line 4: no label; give one, or --empty if such an image has none"):
        read(tmp_path, table)


@pytest.mark.parametrize("cell", ["", "-1", "-1.0", "NaN"])
def test_unknown_labels_are_asked_for(cell: str, tmp_path: Path) -> None:
    table = f"file,cat,dog,traffic light\na.png,1,{cell},0\n"
    assert read(tmp_path, table, unknown=True)[1] == {"in/a.png": (1, 0, -1)}
    with pytest.raises(DataError, match=rf"line 2: label 'dog' is '{cell}', which may mean no or unknown; give 0 or 1"):
        read(tmp_path, table)
    with pytest.raises(DataError, match="line 2: none of its labels is known; remove the line"):
        read(tmp_path, f"file,cat,dog,traffic light\na.png,{cell},{cell},{cell}\n", unknown=True)


REFUSED = [
    ("", {}, "columns none; expected file, and a column of 0 and 1 for each label, or a column labels"),
    ("file\na.png\n", {}, "columns file; expected file, and a column"),
    ("cat,dog,traffic light\n1,0,0\n", {}, "columns cat, dog, traffic light; expected file, and"),
    ("file,cat,dog\n", {}, "no column for the labels traffic light; expected one for each output"),
    ("file,cat,dog,traffic light\n", {}, "no labels; expected a row for each image below the header"),
    ("file,cat,dog,traffic light,bird\n", {}, "shows bird, but the model's classes are cat, traffic light, dog"),
    ("file,cat,dog,traffic light,split\n", {}, "shows split, but the model's classes are"),
    ("file,cat,dog,dog\n", {}, "column 'dog' occurs twice; remove one"),
    ("file,cat,dog,Dogs,traffic light\n", {}, "columns dog, Dogs mean one label; remove all but one"),
    ("file,cat,dog,traffic light\na.png,1,0,2\n", {}, "t.csv line 2: label 'traffic light' is '2'; expected 0 or 1"),
    ("file,cat,dog,traffic light\na.png,1,0,yes\n", {}, "line 2: label 'traffic light' is 'yes'; expected 0 or 1"),
    ("file,cat,dog,traffic light\na.png,1,0\n", {}, "line 2: 3 cells; expected 4, as in the header"),
    ("file,cat,dog,traffic light\na.png,1,0,0\nin/a.png,1,0,0\n", {}, "line 3: 'in/a.png' is named twice"),
    ("file,cat,dog,traffic light\nd.png,1,0,0\n", {}, "line 2: 'd.png' names no image under images"),
    ("file,cat,dog,traffic light\n../a.png,1,0,0\n", {}, "'../a.png' points outside the data set"),
    ("file,labels\na.png,dog;dogs\n", {}, "line 2: 'dog;dogs' names a label twice"),
    ("file,labels\na.png,dog;bird\n", {}, "line 2 shows bird, but the model's classes are"),
    ("file,labels,cat\na.png,dog,1\n", {}, "shows labels, but the model's classes are"),
    ("file,labels\na.png,dog\n", {"in_columns": True}, "a column of lists has no order; leave out --order columns"),
    (
        "file,labels\na.png,dog\n",
        {"names": None},
        "so no label has one; give --names FILE with the labels in the order",
    ),
    ("file,x,y,z\na.png,1,0,0\n", {"names": None}, "or --order columns if the columns are in that order"),
    ("file,x,y\na.png,1,0\n", {"in_columns": True}, "2 labels (x, y), and the model has 3 outputs; expected as many"),
    ("file,cat,dog\na.png,1,0\n", {"names": NAMES[:2]}, "2 labels (cat, traffic light), and the model has 3 outputs"),
    (
        "file,dog,cat,traffic light\na.png,1,0,0\n",
        {"in_columns": True},
        "column 'dog' would be output 0, which the model calls its output 2; leave out --order columns",
    ),
    ("file,x,CATS,y\na.png,1,0,0\n", {"in_columns": True}, "column 'CATS' would be output 1, which the model calls"),
]


@pytest.mark.parametrize(("table", "options", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_what_could_be_read_in_two_ways_is_one_line(
    table: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        read(tmp_path, table, **options)
    assert "\n" not in str(refused.value) and "t.csv" in str(refused.value)
