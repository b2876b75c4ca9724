"""Images that occur more than once: digests, findings, and where there are none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import robustkit
from robustkit.evaluations.clean.evaluate import image_digests

SHAPES = [(3, 64, 64), (3, 65, 100), (1, 33, 31), (3, 32, 32), (3, 5, 7), (3, 224, 224)]


def means(pixels: np.ndarray) -> np.ndarray:
    """The means over boxes, one box at a time."""
    _, height, width = pixels.shape
    rows, columns = ([place * side // min(side, 32) for place in range(min(side, 32) + 1)] for side in (height, width))
    boxes = [
        [
            pixels[:, top:bottom, left:right].astype(int).sum(axis=(1, 2)) // ((bottom - top) * (right - left))
            for left, right in pairwise(columns)
        ]
        for top, bottom in pairwise(rows)
    ]
    return np.array(boxes, dtype=np.uint8).transpose(2, 0, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_digests_are_of_pixels_and_of_means_over_boxes(shape: tuple[int, int, int]) -> None:
    stream = np.random.default_rng(sum(shape))
    pixels = stream.integers(0, 256, shape, dtype=np.uint8)
    exact, near = image_digests(pixels)
    assert (exact, near) == image_digests(pixels.copy()) and -(2**63) <= exact < 2**63
    assert near == image_digests(means(pixels))[1]  # which boxes of one pixel leave as they are
    other = pixels.copy()
    other[0, 0, 0] ^= 1
    own, mean = image_digests(other)
    assert own != exact and (mean == near) == bool((means(other) == means(pixels)).all())


def test_digests_tell_shapes_apart() -> None:
    zeros = [image_digests(np.zeros(shape, np.uint8)) for shape in ((3, 8, 9), (3, 9, 8), (1, 8, 9))]
    assert len({*zeros}) == len({each for _, each in zeros}) == 3


def test_large_sums_do_not_overflow() -> None:
    pixels = np.full((1, 4000, 4000), 255, np.uint8)  # 255 times 16 million is more than 32 bits hold
    assert image_digests(pixels)[1] == image_digests(np.full((1, 32, 32), 255, np.uint8))[1]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    stream = np.random.default_rng(0)
    for place in range(12):
        folder = tmp_path / "images" / "ab"[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(stream.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{place:02}.png")
    return tmp_path / "images"


def found(images: Path, out: str) -> dict[str, str]:
    options = {"attacks": "none", "setup_check": False, "num_classes": 2, "allow_partial": True}
    with pytest.warns(robustkit.errors.RobustkitWarning):
        run = robustkit.audit("zoo:shapes-vit-quest", images, out=images.parent / out, **options)
    every = (finding for row in run.summary() for finding in row.findings)
    return {each.code: each.text for each in every if each.code.endswith("duplicates")}


def test_copies_are_counted_and_named(images: Path) -> None:
    assert found(images, "none") == {}
    first = Image.open(images / "a/00.png")
    first.save(images / "b/copy.bmp")
    first.save(images / "b/third.png")
    changed = np.array(Image.open(images / "a/02.png"))
    changed[0, 0, 0] ^= 1
    mean = means(changed.transpose(2, 0, 1)) == means(np.array(Image.open(images / "a/02.png")).transpose(2, 0, 1))
    assert mean.all()
    Image.fromarray(changed).save(images / "a/near.png")
    texts = found(images, "some")
    assert texts["data/duplicates"].startswith(
        "3 of 15 images have the pixels of another, such as a/00.png and b/copy.bmp"
    )
    assert texts["data/near-duplicates"].startswith(
        "2 of 15 images differ from another only in details, such as a/02.png and "
    )


def test_scenes_have_digests_too(tmp_path: Path) -> None:
    run = robustkit.segment(
        "zoo:shapes-segmenter-quest",
        "embedded:shapes",
        attacks="none",
        limit=3,
        setup_check=False,
        out=tmp_path / "run",
    )
    table = run.table("shapes-segmenter-quest", "clean")
    assert table["digest"].null_count == 0 and len(set(table["digest"].to_pylist())) == 3
