"""The embedded set is the same everywhere, and its truth is exact."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.morphology import convex_hull_image

from robustkit.data import shapes
from robustkit.data.dataset import open_dataset
from robustkit.errors import DataError


def test_bytes_never_change() -> None:
    dataset = open_dataset("embedded:shapes")
    assert len(dataset) == 1000
    first = dataset.select(ids=[f"test/{index:05d}" for index in range(100)])
    assert first.digest() == "6353dad6b598f5f3f436c345897cd74961ca67e29ed27cfa3500823d7c2727f0"


def test_a_sample_depends_on_seed_split_and_index_only() -> None:
    alone = shapes.render("test", 777).pixels
    assert np.array_equal(alone, shapes.render("test", 777).pixels)
    others = [shapes.render("train", 777), shapes.render("test", 787), shapes.render("test", 777, seed=1)]
    assert all(other.label == 7 and not np.array_equal(other.pixels, alone) for other in others)


def test_masks_boxes_and_pixels_agree() -> None:
    dataset = open_dataset("embedded:shapes")
    for sample in dataset.samples[:200]:
        mask, box, image = dataset.mask(sample), dataset.box(sample), dataset.image(sample)
        assert mask is not None
        assert box is not None
        x0, y0, x1, y1 = box
        assert mask.shape == image.size == (64, 64)
        assert set(np.unique(mask)) == {0, 1}
        assert mask[y0:y1, x0:x1].sum() == mask.sum() >= 60
        assert all(edge.any() for edge in (mask[y0], mask[y1 - 1], mask[:, x0], mask[:, x1 - 1]))
        assert not (mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any())


def test_the_background_is_a_photograph_and_the_mask_is_where_it_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    black = np.zeros((400, 400, 3), np.uint8)
    for index in range(40):
        covered = shapes.render("test", index)
        with monkeypatch.context() as patch:
            patch.setattr(shapes, "colours_of", lambda draw, name, background: (np.full(3, 255.0), np.full(3, 255.0)))
            patch.setattr(shapes, "photograph", lambda name: black)
            drawn = shapes.render("test", index).pixels[..., 0]
        assert np.array_equal(drawn >= 128, covered.mask == 1)


def test_colour_is_a_shortcut_that_is_mostly_right() -> None:
    usual = 0
    for index in range(1000):
        draw = shapes.draws_of("test", index)
        name = shapes.CLASSES[shapes.class_of(index)]
        first, _ = shapes.colours_of(draw, name, np.zeros((64, 64, 3)))
        nearest = min(shapes.OWN, key=lambda own: float(np.abs(first - shapes.OWN[own]).sum()))
        usual += nearest == name
    assert 890 <= usual <= 930  # 18 of 20, and a few by chance


def test_outlines_are_those_of_their_names() -> None:
    convex = {"disc", "hexagon", "square", "triangle"}
    for index in range(100):
        mask = shapes.render("test", index).mask.astype(bool)
        solidity = mask.sum() / convex_hull_image(mask, offset_coordinates=False).sum()
        name = shapes.CLASSES[shapes.class_of(index)]
        assert (solidity > 0.995) == (name in convex), (index, name, solidity)
        ys, xs = np.nonzero(mask)
        middle = bool(mask[round(float(ys.mean())), round(float(xs.mean()))])
        assert middle != (name == "ring") or name == "crescent", (index, name)


def test_classes_are_balanced_and_bad_samples_refused() -> None:
    labels = [sample.label for sample in open_dataset("embedded:shapes-train").samples]
    assert np.bincount(labels).tolist() == [1000] * 10
    for split, index in (("val", 0), ("test", -1)):
        with pytest.raises(DataError, match=f"embedded shapes have no sample {split}/{index}; splits are train, test"):
            shapes.render(split, index)
