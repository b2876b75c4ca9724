"""ADE20K: recognised, its labels shifted, its splits, its names, and what looks like it and is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from label_files import (
    NUMBERS,
    ade,
    encoded,
    maps,
    refuse,
    tree,
)
from PIL import Image

from robustkit.data import scenes
from robustkit.data.scenes import open_scenes
from robustkit.errors import BadImageError


@pytest.mark.parametrize("given", ["", "ADEChallengeData2016", "ADEChallengeData2016/images"])
@pytest.mark.parametrize("layout", ["ade20k", None])
def test_ade20k_is_recognised_and_its_labels_shifted(tmp_path: Path, given: str, layout: str | None) -> None:
    root = ade(tmp_path / "ADEChallengeData2016", "training", "validation")
    scenes = open_scenes(tmp_path / given, layout=layout, num_classes=150)
    assert maps(scenes) == {"ADE_val_00000001.jpg": [[-1, 0, 1, 2], [2, -1, -1, 0]]}
    assert (scenes.layout, scenes.dataset.name, len(scenes.class_names)) == ("ade20k", "ade20k-validation", 150)
    assert scenes.unjudged == ()
    assert scenes.notes == (
        "layout ade20k: validation, 150 classes; label 0 is ignored, label 1 is class 0",
        f"masks of 1 of 1 images from {root / 'annotations' / 'validation'}",
    )


def test_ade20k_by_split(tmp_path: Path) -> None:
    root = ade(tmp_path / "ade", "training", "validation")
    last = {"ADE_tra_00000001.jpg": [[146, 147, 148, 149], [149, 146, 146, 147]]}
    scenes = open_scenes(root / "images" / "training")
    assert (maps(scenes), scenes.dataset.name) == (last, "ade20k-training")
    assert list(maps(open_scenes(root / "images" / "validation"))) == ["ADE_val_00000001.jpg"]
    assert maps(open_scenes(ade(tmp_path / "half", "training"))) == last
    for place in ("validation", "images/mine"):  # names that say nothing of the root
        assert maps(open_scenes(ade(tmp_path / place, "training"))) == last
    with pytest.raises(BadImageError) as refused:
        (root / "annotations" / "validation" / "ADE_val_00000001.png").write_bytes(
            encoded(Image.fromarray(NUMBERS + 149))
        )
        maps(open_scenes(root))
    assert str(refused.value) == (
        f"{root}/annotations/validation/ADE_val_00000001.png: label 151 on 1 pixels, 152 on 2 pixels; expected 1 … "
        f"150, ignored 0; correct the mask"
    )


def test_ade20k_misunderstood(tmp_path: Path) -> None:
    root = ade(tmp_path / "ade", "training", "validation")
    own = f"{root}: ade20k has its own masks; leave out --masks, --classes, --ignore and --reduce-zero-label"
    for options in (
        {"classes": root},
        {"ignore": (255, 3)},
        {"reduce_zero_label": True},
        {"masks": root / "annotations", "layout": "ade20k"},
    ):
        refuse(own, root, **options)
    refuse(
        f"{root}: 150 classes (wall, building, sky and 147 more), but the model has 151; give those of its outputs, in "
        f"their order",
        root,
        num_classes=151,
    )
    masks = root / "annotations" / "validation"
    for layout in (None, "folders"):  # masks that are given are no ADE20K's
        scenes = open_scenes(root / "images" / "validation", masks=masks, num_classes=4, layout=layout)
        assert maps(scenes) == {"ADE_val_00000001.jpg": NUMBERS.tolist()}
    (masks / "ADE_val_00000001.png").unlink()
    masks.rmdir()
    for other, name in (("1", "images/validation/a.png"), ("2", "annotations/validation/a.png")):
        half = tree(tmp_path / other, {name: None})
        refuse(
            f"{half}: no masks, and not ADE20K's images/validation and annotations/validation; give a folder of masks "
            f"(--masks)",
            half,
        )
    refuse(f"{masks}: no such folder; ADE20K keeps there the masks of {root / 'images' / 'validation'}", root)


def test_the_names_of_ade20k() -> None:
    """The digest is of the first nouns in objectInfo150.txt, and of the names that mmsegmentation gives."""
    assert len(set(scenes.CLASSES)) == 150
    places = {0: "wall", 12: "person", 44: "chest of drawers", 89: "television receiver", 130: "screen", 149: "flag"}
    assert {place: scenes.CLASSES[place] for place in places} == places
    digest = hashlib.sha256("\n".join(scenes.CLASSES).encode()).hexdigest()
    assert digest == "f9dbd8a75a0722c971d8c82db76dc205e06cb422d98153f4e5bbf90408ef5438"
