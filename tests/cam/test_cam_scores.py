"""Scores of maps: by hand, against slow replicas, scikit-image, SciPy and timm, and on real images."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import cam_score_oracles as slow
import pytest
import torch
from attack_oracles import random_images, tiny_cnn
from cam_oracles import some_images, tiny_vit
from places import SHARED
from scipy.ndimage import gaussian_filter
from scipy.stats import spearmanr
from torch import Tensor, nn

from cam import AGCAM, InputGradient, Rollout
from cam.boxes import boxes_of, mask_of, read_csv, resize_crop_boxes
from cam.faithfulness import abpc, blurred, ends_of, insertion_deletion
from cam.localisation import (
    box_hits,
    energy_inside,
    iou_at,
    max_box_acc,
    pixel_counts,
    pointing_game,
    pxap,
    rank_correlation,
    score,
)
from cam.sensitivity import head_correlation, redrawn_head

NAMES = ("pixel_accuracy", "iou", "dice", "precision", "recall")
pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(count: int = 6, height: int = 20, width: int = 28, seed: int = 0) -> tuple[Tensor, Tensor]:
    return slow.smooth_maps(count, height, width, seed), slow.smooth_maps(count, height, width, seed + 1) > 0.6


# --- at a threshold --------------------------------------------------------------------------------------------------


def test_scores_by_hand() -> None:
    one = torch.tensor([[0.5, 0.4, 0.0, 0.0], [0.0, 0.9, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    truth = [(0, 0, 2, 1), (1, 0, 2, 2)]  # three pixels: (0, 0), (1, 0), (1, 1)
    mask = score(one, [truth])
    assert [getattr(mask, name).tolist() for name in NAMES] == [[10 / 12], [2 / 4], [4 / 6], [2 / 3], [2 / 3]]
    box = score(
        one, mask_of(truth, 3, 4), mode="box"
    )  # the two touch at a corner: a box of four pixels, and one of one
    assert [getattr(box, name).tolist() for name in NAMES] == [[10 / 12], [3 / 5], [6 / 8], [3 / 5], [1.0]]
    assert score(one.float(), [truth], threshold=0.95).precision.tolist() == [0.0]
    # 0.7 is less as a float32 than as a number: no rounding of the threshold to the dtype of the map.
    assert score(torch.full((1, 2, 2), 0.7), torch.ones(1, 2, 2).bool(), threshold=0.7).recall.tolist() == [0.0]


@pytest.mark.parametrize("mode", ["mask", "box"])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_scores_are_the_loops(mode: str, threshold: float) -> None:
    maps, truth = blobs()
    ours = score(maps, truth, threshold, mode)
    for i, (one, answer) in enumerate(zip(maps, truth, strict=True)):
        guess = one >= threshold
        if mode == "box":
            guess = slow.union(slow.component_boxes(guess, nested=False), *guess.shape)
        assert [getattr(ours, name)[i].item() for name in NAMES] == pytest.approx(slow.scores(guess, answer))


def test_nothing_predicted_and_nothing_true() -> None:
    maps, truth = torch.zeros(2, 4, 4), [[(0, 0, 2, 2)], []]
    for mode in ("mask", "box"):
        ours = score(maps, truth, mode=mode)
        assert [getattr(ours, name)[0].item() for name in NAMES] == [0.75, 0, 0, 0, 0]
        assert all(getattr(ours, name)[1].isnan() for name in NAMES)
    for values, expected in ((pointing_game(maps, truth), 0.25), (energy_inside(maps, truth), 0)):
        assert values[0] == expected and values[1].isnan()
    assert (
        score(torch.zeros(0, 4, 4), [], mode="box").iou.shape == (0,) == pointing_game(torch.zeros(0, 4, 4), []).shape
    )


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.8])
def test_boxes_are_those_of_scikit_images_components(share: float) -> None:
    masks = torch.rand(12, 17, 23, generator=torch.Generator().manual_seed(1)) < share
    for mask in masks:
        for nested in (False, True):
            boxes = boxes_of(mask, nested)
            assert sorted(map(tuple, boxes.tolist())) == slow.component_boxes(mask, nested)
            assert boxes.tolist() == sorted(boxes.tolist(), key=lambda box: (box[1], box[0]))
    ring = torch.ones(5, 7).bool()
    ring[1:4, 1:6] = False
    ring[2, 3] = True
    assert boxes_of(ring).tolist() == [[0, 0, 7, 5]] and boxes_of(ring, True).tolist() == [[0, 0, 7, 5], [3, 2, 4, 3]]
    assert boxes_of(torch.ones(5, 7).bool()).tolist() == [[0, 0, 7, 5]]
    assert boxes_of(torch.zeros(5, 7).bool()).shape == (0, 4)


def test_pointing_game_by_hand() -> None:
    one = torch.tensor([[0.2, 1.0, 1.0], [0.1, 0.0, 1.0]])
    assert pointing_game(one, [[(1, 0, 2, 1)]]).tolist() == [1]  # of three equal maxima the first
    assert pointing_game(one, [[(2, 0, 3, 2)]]).tolist() == [0]
    flat = torch.ones(2, 4, 5) * torch.tensor([1.0, 0.3])[:, None, None]
    assert pointing_game(flat, [[(0, 0, 5, 4)], [(0, 0, 2, 2)]]).tolist() == [1, 4 / 20]


def test_energy_by_hand() -> None:
    one = torch.tensor([[0.25, 1.0, 0.5], [0.25, 0.0, 0.5]])
    assert energy_inside(one, [[(1, 0, 3, 1), (2, 0, 3, 1)]]).tolist() == [0.6]


# --- over all thresholds ---------------------------------------------------------------------------------------------


def test_pxap_by_hand() -> None:
    # From the top: 1.0 inside, 0.6 outside, 0.5 inside and outside at one threshold.
    one, truth = torch.tensor([[1.0, 0.6], [0.5, 0.55]]), torch.tensor([[True, False], [True, False]])
    assert pxap(pixel_counts(one, truth, bins=10)[0]).item() == 1 * 0.5 + 2 / 4 * 0.5
    assert pxap(pixel_counts(one, truth, bins=20)[0]).item() == 1 * 0.5 + 2 / 4 * 0.5
    assert pxap(pixel_counts(one / 2, truth, bins=20)[0]).item() == 0.75  # nothing reaches the highest thresholds
    assert pixel_counts(one, truth, bins=4).tolist() == [[[0, 0, 2, 0, 0], [0, 0, 1, 0, 1]]]
    assert pxap(pixel_counts(truth.double(), truth)).tolist() == [1.0]
    assert pxap(pixel_counts(one, ~truth & truth)).isnan().all()


@pytest.mark.parametrize("bins", [100, 1000])
def test_every_threshold_reaches_itself(bins: int) -> None:
    grid = torch.arange(bins + 1, dtype=torch.float64) / bins  # 0.29 * 100 is below 29 in floating point
    counts = pixel_counts(grid[None], torch.ones(1, bins + 1).bool(), bins)
    assert counts.tolist() == [[[0] * (bins + 1), [1] * (bins + 1)]]


def test_pxap_is_the_loop_over_thresholds_in_any_batches() -> None:
    maps, truth = blobs()
    expected = slow.pxap(maps, truth, 50)
    counts = pixel_counts(maps, truth, 50)
    assert pxap(counts.sum(dim=0)).item() == pytest.approx(expected) and 0.1 < expected < 0.9
    parts = [pixel_counts(maps[part], truth[part], 50).sum(dim=0) for part in ([0, 3], [1], [2, 4, 5])]
    assert pxap(torch.stack(parts).sum(dim=0)).item() == pytest.approx(expected)
    draws = torch.tensor([[0, 0, 3], [5, 4, 1]])  # two resamples at once
    again = [slow.pxap(maps[rows], truth[rows], 50) for rows in draws]
    assert pxap(counts[draws].sum(dim=1)).tolist() == pytest.approx(again)


def test_max_box_acc_by_hand() -> None:
    one = torch.zeros(2, 10, 10)
    one[:, 0:4, 0:4] = 1.0  # IoU 16 / 25 with the truth; the union with the next row of blocks misses it
    one[:, 6:10, 6:10] = 0.6
    hits = box_hits(one, [[(0, 0, 5, 5)], [(0, 0, 10, 10)]], thresholds=(0.0, 0.5, 0.9))
    assert hits[0].tolist() == [[False, False, False], [True, True, False], [True, True, False]]
    assert hits[1].tolist() == [[True, True, True], [False] * 3, [False] * 3]  # at 0 the map is one full box
    assert max_box_acc(hits).item() == 0.5
    assert not box_hits(torch.full((4, 4), 0.7), [[(0, 0, 4, 4)]], thresholds=(0.7,)).any()  # as for scores
    # Each IoU has a threshold of its own.
    assert max_box_acc(torch.eye(3).bool()[None, :2]).item() == pytest.approx(2 / 3)
    assert max_box_acc(hits[:1]).item() == pytest.approx(2 / 3) and max_box_acc(hits[:0]).isnan()


def test_a_part_in_a_hole_is_found_and_the_hole_is_not() -> None:
    ring = torch.ones(9, 9)
    ring[1:8, 1:8] = 0
    assert not box_hits(ring, [[(1, 1, 8, 8)]], thresholds=(0.5,), ious=(0.8,)).any()
    ring[3:6, 3:6] = 1
    assert box_hits(ring, [[(3, 3, 6, 6)]], thresholds=(0.5,), ious=(1.0,)).all()


def test_max_box_acc_is_the_loop_over_thresholds() -> None:
    maps, truth = blobs(8)
    boxes = [slow.component_boxes(one, nested=False) for one in truth]
    thresholds = [step / 20 for step in range(20)]
    expected = slow.max_box_acc(maps, boxes, thresholds)
    assert max_box_acc(box_hits(maps, boxes, thresholds)).item() == pytest.approx(expected) and 0.1 < expected < 0.9
    parts = [box_hits(maps[part], boxes[part], thresholds) for part in (slice(5), slice(5, 8))]
    assert max_box_acc(torch.cat(parts)).item() == pytest.approx(expected)
    assert not box_hits(maps[:2], [[], []], thresholds).any()


# --- faithfulness ----------------------------------------------------------------------------------------------------


class Brightness(nn.Module):
    """The probability of class 1 is the image's mean; `rows` are the sizes of the batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.rows.append(len(images))
        mean = images.double().flatten(1).mean(dim=1)
        return torch.stack([(1 - mean).log(), mean.log()], dim=1)


def test_abpc_in_closed_form() -> None:
    image = torch.zeros(1, 3, 4, 5)
    image[:, :, :2] = 0.5  # the upper half is what counts
    one = image[:, 0] + torch.arange(20.0).view(1, 4, 5) / 100
    model = Brightness()
    found = abpc(model, image, one, 1, fill=0.0, steps=11)
    morf = torch.tensor([[0.25, 0.2, 0.15, 0.1, 0.05, 0, 0, 0, 0, 0, 0]])
    lerf = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.2, 0.15, 0.1, 0.05, 0]])
    torch.testing.assert_close(found.morf, morf, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.lerf, lerf, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.abpc, torch.tensor([1.25 / 11]))
    torch.testing.assert_close(abpc(model, image, one, 0, fill=0.0).abpc, torch.tensor([-1.25 / 11]))
    assert sum(model.rows) == 2 * 20


def tied(count: int) -> Tensor:
    return (torch.rand(count, 8, 8, generator=torch.Generator().manual_seed(5)) * 6).floor() / 5


@pytest.mark.parametrize("steps", [2, 11, 12])
def test_abpc_is_the_loop_also_with_ties(steps: int) -> None:
    model, images, maps, targets = tiny_cnn().eval(), random_images(5), tied(5), torch.tensor([0, 3, 1, 4, 2])
    fill = (0.1, 0.5, 0.9)
    found = abpc(model, images, maps, targets, fill=fill, steps=steps, batch_size=7)
    back = torch.tensor(fill).view(3, 1, 1).expand(3, 8, 8)
    for i in range(5):
        args = (model, images[i], back, maps[i], int(targets[i]), steps)
        morf, lerf = (slow.removal_curve(*args, highest_first) for highest_first in (True, False))
        assert found.morf[i].tolist() == pytest.approx(morf, abs=1e-6)
        assert found.lerf[i].tolist() == pytest.approx(lerf, abs=1e-6)
        assert found.abpc[i].item() == pytest.approx((sum(lerf) - sum(morf)) / steps, abs=1e-6)


def test_a_constant_map_has_no_faithfulness_and_batches_do_not_matter() -> None:
    model, images = Brightness(), random_images(4).double()
    flat = abpc(model, images, torch.ones(4, 8, 8), 1, fill=0.9, batch_size=80)
    assert flat.abpc.tolist() == [0.0] * 4 and (flat.morf[:, 0] != flat.morf[:, 1]).all()
    assert flat.abpc.dtype == torch.float32 and not flat.abpc.is_inference() and not flat.morf.is_inference()
    maps = tied(4)
    for whole, part in zip(
        vars(abpc(model, images, maps, 1, fill=0.9)).values(),
        vars(abpc(model, images[[2, 0]], maps[[2, 0]], 1, fill=0.9, batch_size=3)).values(),
        strict=True,
    ):
        torch.testing.assert_close(part, whole[[2, 0]])
    assert abpc(model, images[:0], maps[:0], torch.zeros(0).long(), fill=0.9).lerf.shape == (0, 11)


def test_insertion_and_deletion_are_the_loops() -> None:
    model, images, maps = tiny_cnn().eval(), random_images(4), tied(4)
    seen = Brightness()
    insertion_deletion(seen, images, maps, 1, fill=0.5, steps=9)
    assert sum(seen.rows) == 4 * (2 * 9 - 4) + 4 + 4 + 1  # both curves between their ends: the images, canvas, nothing
    for canvas in (None, random_images(8)[4:]):
        found = insertion_deletion(model, images, maps, 2, fill=0.5, canvas=canvas, steps=9, batch_size=10)
        start = blurred(images) if canvas is None else canvas
        for i in range(4):
            gone = slow.removal_curve(model, images[i], torch.full((3, 8, 8), 0.5), maps[i], 2, 9, True)
            back = slow.removal_curve(model, start[i], images[i], maps[i], 2, 9, True)
            assert found.deletion_curve[i].tolist() == pytest.approx(gone, abs=1e-6)
            assert found.insertion_curve[i].tolist() == pytest.approx(back, abs=1e-6)
            assert found.deletion[i].item() == pytest.approx(slow.trapezoid(gone), abs=1e-6)
            assert found.insertion[i].item() == pytest.approx(slow.trapezoid(back), abs=1e-6)


def test_curves_of_all_maps_share_their_ends() -> None:
    images, maps, model = random_images(4), tied(4), Brightness()
    kept = {"fill": 0.9, "ends": ends_of(model, images, fill=0.9, canvas=blurred(images))}
    for measure, inner in ((abpc, 2 * 9), (insertion_deletion, 2 * 27)):
        alone = measure(model, images, maps, 1, fill=0.9)
        model.rows.clear()
        shared = measure(model, images, maps, 1, **kept)
        assert sum(model.rows) == 4 * inner
        for found, expected in zip(vars(shared).values(), vars(alone).values(), strict=True):
            assert torch.equal(found, expected)
    found = abpc(model, images, maps, 1, **kept)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-6)
    close(found.morf[:, 0], images.flatten(1).mean(dim=1))  # by the model's definition
    close(found.morf[:, -1], torch.full((4,), 0.9))
    assert torch.equal(found.lerf[:, [0, -1]], found.morf[:, [0, -1]])
    with pytest.raises(ValueError, match=r"^ends without a canvas; expected those that insertion begins with"):
        insertion_deletion(model, images, maps, 1, fill=0.9, ends=ends_of(model, images, fill=0.9))


def test_blur_is_scipys() -> None:
    images = random_images(2).double()
    expected = gaussian_filter(images.numpy(), (0, 0, 5, 5), truncate=1, mode="nearest")
    torch.testing.assert_close(blurred(images), torch.from_numpy(expected))


# --- similarity ------------------------------------------------------------------------------------------------------


def test_rank_correlation_is_scipys_with_ties() -> None:
    a = torch.cat([slow.smooth_maps(3, 8, 8), tied(3)])
    b = torch.cat([tied(3), 0.5 * a[3:] + 0.5 * tied(6)[3:]])
    expected = [spearmanr(x.flatten().numpy(), y.flatten().numpy()).statistic for x, y in zip(a, b, strict=True)]
    assert rank_correlation(a, b).tolist() == pytest.approx(expected, abs=1e-12) and max(expected) > 0.5
    assert rank_correlation(a, 1 - a).tolist() == pytest.approx([-1] * 6)
    assert rank_correlation(a[0], torch.ones(8, 8)).isnan().all()


def test_iou_of_two_maps_by_hand() -> None:
    a, b = torch.tensor([[[0.5, 0.9], [0.1, 0.0]]] * 2), torch.tensor([[[0.2, 0.7], [0.6, 0.0]], [[0.0] * 2] * 2])
    assert iou_at(a, b).tolist() == [1 / 3, 0]
    assert iou_at(a, b, 0.95).isnan().all()


# --- refusals --------------------------------------------------------------------------------------------------------


MAPS = torch.zeros(2, 8, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score(MAPS, MAPS.bool(), mode="boxes"), "mode 'boxes': expected mask or box"),
        (lambda: score(MAPS + 2, MAPS.bool()), "maps lie in [2, 2]; expected [0, 1], min-max normalise them"),
        (
            lambda: score(MAPS * torch.nan, MAPS.bool()),
            "maps lie in [nan, nan]; expected [0, 1], min-max normalise them",
        ),
        (lambda: score(MAPS[None], MAPS.bool()), "maps have the shape (1, 2, 8, 8); expected (B, H, W) or (H, W)"),
        (lambda: score(MAPS.int(), MAPS.bool()), "maps are torch.int32; expected a floating torch tensor (B, H, W)"),
        (
            lambda: score(MAPS, MAPS),
            "truth is a tensor of torch.float32; expected a bool mask, or a list with the boxes",
        ),
        (lambda: score(MAPS, [[(0, 0, 1, 1)]]), "truth has the shape (1, 8, 8), the maps (2, 8, 8); expected the same"),
        (lambda: box_hits(MAPS, [[]]), "boxes of 1 images for 2 maps; expected a list with the boxes of each map"),
        (lambda: mask_of([(0, 0, 1, 1.5)], 4, 4), "box corner 1.5 is not on a pixel boundary; use resize_crop_boxes"),
        (
            lambda: mask_of([(3, 0, 3, 2)], 4, 4),
            "box (3, 0, 3, 2); expected finite x0 < x1 and y0 < y1, x1 and y1 excl",
        ),
        (lambda: mask_of([(0, 0, math.inf, 2)], 4, 4), "box (0, 0, inf, 2); expected finite x0 < x1 and y0 < y1"),
        (lambda: mask_of([(0, 0, 3)], 4, 4), "boxes have the shape (1, 3); expected (n, 4): x0, y0, x1, y1 of each"),
        (lambda: resize_crop_boxes([], (9, 9), (8, 8), "border"), "crop_mode 'border': expected squash, center or"),
        (
            lambda: resize_crop_boxes([], (9, 9), (8, 8), "center", 1.1),
            "crop_pct is 1.1; expected a number above 0, at",
        ),
        (lambda: pixel_counts(MAPS - 0.5, MAPS.bool()), "maps lie in [-0.5, -0.5]; expected [0, 1], min-max norm"),
        (lambda: iou_at(MAPS, MAPS[:1]), "maps of (2, 8, 8) and (1, 8, 8); expected the same shape"),
    ],
)
def test_rejects(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Flatten()}, "the model is in training mode; call model.eval() first"),
        ({"steps": 1}, "steps is 1; expected 2 or more"),
        ({"batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"maps": MAPS + 2}, "maps lie in [2, 2]; expected [0, 1], min-max normalise them"),
        ({"maps": MAPS[:1]}, "images have the shape (2, 3, 8, 8), maps (1, 8, 8); expected (B, 3, H, W), (B, H, W)"),
        ({"target": torch.zeros(3).long()}, "target is torch.int64 of the shape (3,); expected a class, or 2 of them"),
        ({"target": torch.zeros(2)}, "target is torch.float32 of the shape (2,); expected a class, or 2 of them"),
        ({"target": -1}, "target -1; expected a class, 0 or more"),
        ({"target": 5}, "target 5; the model has 5 classes, from 0 on"),
        ({"fill": (0.1, 0.2)}, "fill has 2 values; expected one, or one for each of 3 channels"),
        (
            {"canvas": torch.zeros(1, 3, 8, 8)},
            "canvas has the shape (1, 3, 8, 8), the images (2, 3, 8, 8); expected the",
        ),
    ],
)
def test_faithfulness_rejects(changes: dict[str, Any], message: str) -> None:
    arguments = {"model": tiny_cnn().eval(), "images": random_images(2), "maps": MAPS, "target": 0, "fill": 0.5}
    with pytest.raises(ValueError) as refused:
        insertion_deletion(**{**arguments, **changes})
    assert str(refused.value).startswith(message)


# --- real images -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real data and weights of ../shared")
def test_controls_score_what_plain_loops_measured() -> None:
    """The first 200 images by name, resized to 224x224 (bilinear), of which ViT-Tiny gets 145 right."""
    import numpy as np
    import timm
    from PIL import Image
    from safetensors.torch import load_file

    net = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False).eval()
    net.load_state_dict(load_file(SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"))
    data = SHARED / "data" / "imagenet-val"
    place = {line.split()[0]: i for i, line in enumerate((data / "synsets.txt").read_text().splitlines())}
    annotations = read_csv(data / "boxes.csv")
    right, boxes, labels = [], [], []
    for path in sorted((data / "val").glob("*/*.JPEG"), key=lambda path: path.name)[:200]:
        with Image.open(path) as image:
            size, small = image.size, image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        pixels, label = torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255, place[path.parent.name]
        with torch.inference_mode():
            if net(pixels[None] * 2 - 1).argmax().item() == label:
                moved, vanished = resize_crop_boxes(annotations[path.stem].boxes, size, (224, 224))
                assert not vanished
                right.append(pixels), boxes.append(moved), labels.append(label)
    assert len(right) == 145

    offsets = torch.arange(224) - 111.5
    centre = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 64**2)).expand(145, 224, 224)
    for maps, mode, figures in (
        (centre, "mask", (0.652, 0.435, 0.590)),
        (centre, "box", (0.666, 0.477, 0.627)),
        (torch.ones(145, 224, 224), "mask", (0.520, 0.520, 0.631)),
    ):
        ours = score(maps, boxes, mode=mode)
        means = [getattr(ours, name).mean().item() for name in NAMES[:3]]
        assert means == pytest.approx(figures, abs=0.0006)
    assert pointing_game(centre, boxes).mean().item() == pytest.approx(0.883, abs=0.005)

    class Pixels(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return net(images * 2 - 1)

    found = abpc(Pixels().eval(), torch.stack(right[:60]), centre[:60], torch.tensor(labels[:60]), fill=0.5)
    assert found.abpc.mean().item() == pytest.approx(0.216, abs=0.005)


# --- a redrawn head --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_a_redrawn_head_is_of_the_same_scale_the_same_each_time_and_given_back(arch: str) -> None:
    model = tiny_vit(arch=arch)
    model.head.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    for seed in (0, 0, 1):
        with pytest.raises(KeyError), redrawn_head(model, seed):
            seen.append({name: value.clone() for name, value in model.state_dict().items()})
            raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    changed = {name for name in before if not torch.equal(seen[0][name], before[name])}
    heads = ("head", "head_dist") if "distilled" in arch else ("head",)
    assert changed == {f"{head}.{name}" for head in heads for name in ("weight", "bias")}
    for name in changed:
        assert torch.equal(seen[0][name], seen[1][name])
        assert name.endswith("bias") or not torch.equal(seen[0][name], seen[2][name])
        spread = 0.0 if name.endswith("bias") else before[name].std().item()
        assert seen[0][name].std().item() == pytest.approx(spread, rel=0.15)


def test_a_map_of_the_class_changes_with_the_head_and_a_map_of_the_image_does_not() -> None:
    model, images = tiny_vit(), some_images(3)
    for method, low, high in ((AGCAM, -0.9, 0.9), (InputGradient, -0.9, 0.9), (Rollout, 1.0, 1.0)):
        explain = method(model)
        found = explain.explain(images)
        values = head_correlation(explain, images, found.maps, found.target, heads=3)
        each = []
        for seed in range(3):
            with redrawn_head(model, seed):
                each.append(rank_correlation(found.maps, explain(images, found.target)))
        assert torch.allclose(values, sum(each) / 3, rtol=0, atol=1e-12)
        assert ((values >= low - 1e-9) & (values <= high + 1e-9)).all()
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.Linear(2, 3, bias=False), nn.ReLU())
    with redrawn_head(net):
        assert net[2].weight.std() > 0
    message = "ReLU has no layer with weights; expected a classifier with a linear head"
    with pytest.raises(ValueError, match=message), redrawn_head(nn.ReLU()):
        pass
