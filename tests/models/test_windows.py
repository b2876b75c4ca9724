"""Sliding windows: where they lie, the public data pipeline's sizes, overlaps by hand, a loop over windows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from segmenter_oracles import SlowSegmenter
from segmenters import noise, small
from torch import Tensor
from torch.nn import functional

from robustkit.errors import ModelError
from robustkit.models.dense import Windows

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("size", "stride", "frame", "rows", "columns"),
    [
        ((256, 256), (224, 224), (360, 480), [0, 104], [0, 224]),
        ((256, 256), (224, 224), (480, 360), [0, 224], [0, 104]),
        ((256, 256), (224, 224), (256, 481), [0], [0, 224, 225]),  # the last window is flush with the edge
        ((256, 256), (224, 224), (256, 256), [0], [0]),
        ((64, 32), (64, 16), (128, 80), [0, 64], [0, 16, 32, 48]),
        ((2, 3), (1, 3), (4, 7), [0, 1, 2], [0, 3, 4]),
    ],
)
def test_corners_by_hand(
    size: tuple[int, int], stride: tuple[int, int], frame: tuple[int, int], rows: list[int], columns: list[int]
) -> None:
    assert Windows(size, stride).edges(*frame) == (rows, columns)


@pytest.mark.parametrize(
    ("short_side", "image", "frame"),
    [
        (None, (360, 480), (360, 480)),
        (None, (128, 96), (128, 96)),  # as large as the window
        (None, (64, 96), (128, 192)),  # rows x 2 so that they are a window's
        (None, (200, 48), (400, 96)),  # columns x 2
        (None, (100, 100), (128, 128)),
        (256, (360, 480), (256, 341)),  # 480 * 256 / 360 = 341.3
        (256, (480, 360), (341, 256)),
        (720, (360, 480), (720, 960)),
        (64, (360, 480), (128, 170)),  # less than a window's height: 480 * 128 / 360 = 170.7
        (64, (480, 360), (128, 96)),
        (224, (55, 110), (224, 448)),  # 55 * (224 / 55) is 223.99999999999997 in float64
        (256, (49, 98), (256, 512)),
    ],
)
def test_frames_by_hand(short_side: int | None, image: tuple[int, int], frame: tuple[int, int]) -> None:
    assert Windows((128, 96), (128, 96), short_side).sizes(*image)[-1] == frame


@pytest.mark.parametrize(
    ("image", "sizes"),
    [
        ((683, 512), [(683, 512)] * 3),
        ((600, 800), [(600, 800), (512, 683), (512, 683)]),  # 682.7, rounded to the nearest
        ((3000, 2001), [(3000, 2001), (768, 512), (768, 512)]),  # 767.6
        ((100, 500), [(100, 500), (410, 2048), (512, 2557)]),  # the long side binds: 409.6; then 2557.5 rounded down
    ],
)
def test_sizes_of_the_public_data_pipeline_by_hand(image: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    windows = Windows((512, 512), (480, 480), resize="ade20k")
    assert windows.sizes(*image) == sizes


@pytest.mark.parametrize("window", [32, 480, 512])
def test_frames_equal_the_public_inference_at_every_size(window: int) -> None:
    for height in range(window // 4, window + 9):
        for width in range(window // 3, 3 * window, 7):
            short, long = sorted((height, width))
            grown = max(int(long / short * window), window)
            public = (window, grown) if height < width else (grown, window)
            found = Windows((window, window), (window, window)).sizes(height, width)[-1]
            assert found == (public if short < window else (height, width)), (height, width)


def top_left(images: Tensor) -> Tensor:
    """The value of the window's top left pixel, everywhere."""
    return images[:, :1, :1, :1].expand(-1, 1, *images.shape[2:])


def test_overlapping_logits_are_averaged() -> None:
    images = torch.zeros(2, 3, 6, 5)
    images[0, 0, 0, 0], images[0, 0, 0, 2], images[0, 0, 3, 0], images[0, 0, 3, 2] = 1, 3, 5, 8
    images[1, 0, 0, 2] = 6
    found = Windows((3, 3), (3, 2))(top_left, images)
    upper, lower = [1, 1, 2, 3, 3], [5, 5, 6.5, 8, 8]
    assert found[0, 0].tolist() == [upper] * 3 + [lower] * 3
    assert found[1, 0].tolist() == [[0, 0, 3, 6, 6]] * 3 + [[0] * 5] * 3
    images = images[:, :, :4]
    images[0, 0, 1, 0], images[0, 0, 1, 2] = 10, 20
    found = Windows((3, 3), (1, 2))(top_left, images)  # rows 1 and 2 are under four windows in the middle column
    assert found[0, 0].tolist() == [upper, *[[5.5, 5.5, 8.5, 11.5, 11.5]] * 2, [10, 10, 15, 20, 20]]


def test_images_are_resized_bilinearly_and_logits_back() -> None:
    images = noise(2, 3, 6, 9)
    shown = functional.interpolate(images, (12, 18), mode="bilinear")
    expected = functional.interpolate(shown, (6, 9), mode="bilinear")
    seen: list[tuple[int, ...]] = []

    def network(part: Tensor) -> Tensor:
        seen.append(tuple(part.shape))
        return part

    torch.testing.assert_close(Windows((12, 12), (6, 6))(network, images), expected)
    torch.testing.assert_close(Windows((8, 8), (8, 8), short_side=12)(network, images), expected)
    assert set(seen) == {(4, 3, 12, 12), (12, 3, 8, 8)}
    same = Windows((4, 4), (3, 3))(network, images)
    torch.testing.assert_close(same, images)


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("shape", [(40, 56), (32, 32), (20, 30)])
def test_batches_equal_one_window_at_a_time(batch: int, shape: tuple[int, int]) -> None:
    network = small(attention="elliptical-quest").double()
    windows = Windows((32, 32), (24, 16), batch=batch)
    images = noise(3, 3, *shape).double()
    calls: list[int] = []

    def counted(part: Tensor) -> Tensor:
        calls.append(len(part))
        return network(part)

    found = windows(counted, images)
    assert sum(calls) == 3 * math.prod(map(len, windows.edges(*windows.sizes(*shape)[-1])))
    assert max(calls) <= batch
    assert len(calls) == math.ceil(sum(calls) / batch)
    slow = SlowSegmenter(network.state_dict(), (4, 2), (1e-6, 1e-5), "elliptical-quest")
    if shape == (40, 56):
        for image, logits in zip(images, found, strict=True):
            total, count = torch.zeros(5, 40, 56, dtype=torch.float64), torch.zeros(40, 56)
            for top, left in ((0, 0), (0, 16), (0, 24), (8, 0), (8, 16), (8, 24)):
                total[:, top : top + 32, left : left + 32] += slow.window(image[:, top : top + 32, left : left + 32])
                count[top : top + 32, left : left + 32] += 1
            assert count.min() > 0
            torch.testing.assert_close(logits, total / count, rtol=1e-9, atol=1e-9)
    alone = torch.cat([Windows((32, 32), (24, 16), batch=1)(network, image[None]) for image in images])
    torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-9)


def test_gradients_reach_every_pixel() -> None:
    images = noise(2, 3, 10, 11).requires_grad_()
    Windows((4, 5), (3, 2), batch=7)(lambda part: 2 * part, images).sum().backward()
    assert images.grad is not None
    torch.testing.assert_close(images.grad, torch.full_like(images, 2))  # however many windows saw the pixel
    images.grad = None
    Windows((4, 5), (3, 2), short_side=12)(lambda part: part.square(), images).sum().backward()
    assert (images.grad.abs() > 0).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stride": (32, 40)}, "stride 32x40 for windows of 32x32: expected 1 or more, at most the window, so that.*"),
        ({"stride": (0, 32)}, "stride 0x32 for windows of 32x32: expected 1 or more.*"),
        ({"short_side": 0}, "short side 0: expected 1 or more"),
        ({"batch": 0}, "windows a pass 0: expected 1 or more"),
        ({"resize": "ade"}, "unknown resize 'ade'; did you mean 'ade20k'.*"),
        ({"resize": "ade20k", "short_side": 8}, "resize ade20k and a short side of 8: both set .*; give one of .*"),
    ],
)
def test_windows_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=f"^{words}$"):
        Windows(**{"size": (32, 32), "stride": (32, 32), **options})
