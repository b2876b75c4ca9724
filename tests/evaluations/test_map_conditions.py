"""Maps as conditions: their texts, the controls that come along, and the truth that maps are compared with."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cam
from cam.boxes import mask_of
from cam.registry import CONTROLS, METHODS
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.errors import DataError, ProtocolError
from robustkit.evaluations.maps import MapSpec, map_condition, parse_cams, parse_explained, parts_of
from robustkit.evaluations.maps.truth import open_truth

pytestmark = pytest.mark.usefixtures("one_thread")

# conditions


@pytest.mark.parametrize(
    ("explained", "text"),
    [
        (MapSpec("agcam"), "cam(agcam)"),
        (MapSpec("rise", 0.3, options=(("masks", Fraction(200)),)), "cam(rise,masks=200,threshold=0.3)"),
        (
            MapSpec("smooth-grad", under="clean", options=(("samples", Fraction(4)), ("noise", Fraction(1, 5)))),
            "stability(smooth-grad,samples=4,noise=0.2,under=clean)",
        ),
        (MapSpec("grad-cam", 0.3, "label", "all"), "cam(grad-cam,threshold=0.3,target=label,faithfulness=all)"),
        (
            MapSpec("agcam", under="pgd(eps=1/255,steps=20)"),
            "stability(agcam,under=pgd(eps=1/255,steps=20))",
        ),
        (
            MapSpec("agcam", 0.3, under="corruption(fog,severity=3)"),
            "stability(agcam,threshold=0.3,under=corruption(fog,severity=3))",
        ),
    ],
)
def test_a_text_is_its_parts_and_back(explained: MapSpec, text: str) -> None:
    assert explained.text == text
    assert parse_explained(text) == explained
    assert parse_explained("pgd(eps=1/255)") is None
    if not explained.under:
        assert parts_of(text[:-1] + ",mode=box)") == (explained, "box")
    assert parts_of(text) == (explained, "")


def test_a_list_brings_the_controls_along_once() -> None:
    found = parse_cams("agcam, random, Grad-CAM(threshold=0.3)")
    assert [one.text for one in found] == [
        *("cam(agcam)", "cam(random)", "cam(grad-cam,threshold=0.3)", "cam(centre)", "cam(full)"),
        *(f"cam({name},threshold=0.3)" for name in CONTROLS),
    ]
    assert [one.faithfulness for one in parse_cams("agcam,rollout(faithfulness=none)", "all")][:2] == ["all", "none"]
    named = "cam(agcam),cam(rollout,threshold=0.3,faithfulness=none)"  # as records call them
    assert [one.text for one in parse_cams(named) if not one.is_control] == re.split(r",(?=cam)", named)
    assert list(cam.METHODS) == list(METHODS)
    options = parse_cams("rise(share=1/2, masks=200),rise(masks=1000)")
    assert [one.text for one in options] == ["cam(rise,masks=200)", "cam(rise)", *(f"cam({one})" for one in CONTROLS)]
    drawn = map_condition(options[0])
    assert (drawn.draws, options[0].called) == ("cam(rise)", "rise(masks=200)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agcm", "unknown map 'agcm'; did you mean 'agcam'?"),
        ("agcam(treshold=1)", "unknown parameter 'treshold'; did you mean 'threshold'?"),
        ("agcam(threshold=1.5)", "threshold 1.5; expected a number above 0, at most 1"),
        ("agcam(threshold=half)", "threshold 'half': expected a number"),
        ("agcam(target=predicted class)", "unknown target 'predicted class'; did you mean 'predicted'?"),
        ("agcam(masks=3)", "unknown parameter 'masks'; known: faithfulness, on, target, threshold"),
        ("rise(mask=3)", "unknown parameter 'mask'; did you mean 'masks'?"),
        ("rise(masks=0)", "rise(masks=0): masks 0; expected a whole number from 1 to 100000"),
        ("rise(cells=2.5)", "cells 2.5; expected a whole number from 2 to 64"),
        ("smooth-grad(noise=many)", "noise 'many': expected a number"),
        (",", "none is left; expected methods such as agcam,grad-cam"),
    ],
)
def test_maps_that_are_not_understood(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_cams(text)
    assert message in str(caught.value)


# the truth


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes with a picture of 80x40 and one of 30x60."""
    for name, size in (("a/one", (80, 40)), ("b/two", (30, 60))):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", size, (90, 120, 40)).save(path)
    return tmp_path


SQUASHED = Preprocessing((20, 20), crop_pct=1.0, crop_mode="squash")
CENTRED = Preprocessing((20, 20), crop_pct=1.0, crop_mode="center")


def test_boxes_follow_the_image_squashed_and_cropped(pictures: Path) -> None:
    table = pictures / "boxes.csv"
    table.write_text("image,synset,xmin,ymin,xmax,ymax\none.png,a,8,10,40,20\none.png,a,70,0,80,40\n")
    dataset = open_dataset(pictures / "images")
    truth = open_truth(dataset, boxes=table)
    one, two = dataset.samples
    squashed, centred = (truth.locate(one, how) for how in (SQUASHED, CENTRED))
    assert squashed is not None and centred is not None
    assert squashed.boxes.tolist() == [[2, 5, 10, 10], [17, 0, 20, 20]]  # x by 1/4, y by 1/2, outwards
    assert torch.equal(squashed.mask, mask_of(squashed.boxes, 20, 20))
    assert (centred.boxes.tolist(), centred.vanished) == ([[0, 5, 10, 10]], 1)  # by 1/2, less 10 on the left
    assert truth.locate(two, SQUASHED) is None
    assert truth.notes == (f"boxes of 1 of 2 images from {table}",)


def test_masks_follow_the_image_and_have_boxes(pictures: Path) -> None:
    (pictures / "masks").mkdir()
    grey = np.zeros((60, 30), np.uint8)
    grey[30:45, 0:15] = 200
    Image.fromarray(grey).save(pictures / "masks" / "two.png")
    dataset = open_dataset(pictures / "images")
    truth = open_truth(dataset, masks=pictures / "masks")
    found = truth.locate(dataset.samples[1], SQUASHED)
    assert found is not None
    assert found.boxes.tolist() == [[0, 10, 10, 15]]
    assert torch.equal(found.mask, mask_of(found.boxes, 20, 20))
    embedded = open_dataset("embedded:shapes")
    own = open_truth(embedded).locate(embedded.samples[3], Preprocessing((64, 64), crop_pct=1.0))
    assert own is not None
    assert torch.equal(own.mask, torch.from_numpy(embedded.mask(embedded.samples[3])).bool())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no column image, synset, xmin, ymin, xmax, ymax"),
        ("image,synset,xmin,ymin,xmax,ymax\n", "no boxes; expected a row for each box below the header"),
        ("image,synset,xmin,ymin,xmax,ymax\none.png,a,0,0,81,40\n", "extends beyond the image of 80x40"),
        ("image,synset,xmin,ymin,xmax,ymax\nother.png,a,0,0,8,4\n", "boxes of none of the 2 images"),
    ],
)
def test_tables_of_boxes_that_cannot_be_used(pictures: Path, content: str, message: str) -> None:
    table = pictures / "boxes.csv"
    table.write_text(content)
    dataset = open_dataset(pictures / "images")
    with pytest.raises(DataError) as caught:
        open_truth(dataset, boxes=table)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_truth_that_cannot_be_used(pictures: Path) -> None:
    dataset = open_dataset(pictures / "images")
    with pytest.raises(DataError, match="expected one of the two"):
        open_truth(dataset, boxes="a.csv", masks="b")
    with pytest.raises(DataError, match=r"gone.csv: cannot be read \(No such file or directory\)"):
        open_truth(dataset, boxes=pictures / "gone.csv")
    with pytest.raises(DataError, match="no such folder; expected mask images"):
        open_truth(dataset, masks=pictures / "gone")
    (pictures / "xml").mkdir()
    (pictures / "xml" / "one.xml").write_text("<annotation><size/></annotation>")
    with pytest.raises(DataError, match="no object; expected <object> with <name> and <bndbox>"):
        open_truth(dataset, boxes=pictures / "xml")
