"""Networks of someone else that segment: what of their answers is taken, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from segmenters import IMAGENET, NO_WINDOWS, normalised, pixels
from torch import Tensor, nn
from torch.nn import functional

from robustkit.errors import CheckpointError, ModelError
from robustkit.models.dense import Segmenter
from robustkit.models.segmenter import load_segmenter

pytestmark = pytest.mark.usefixtures("one_thread")


FACTORY = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, form):
        super().__init__()
        self.net = nn.Conv2d(3, num_classes, 4, 4)
        self.form = form
        self.default_cfg = {"mean": (.1, .2, .3), "std": (.5, .5, .4), "input_size": (3, 32, 32)}
    def forward(self, x):
        return self.form(self.net(x))

def plain(num_classes=6): return Net(num_classes, lambda x: x)
def mapped(): return Net(6, lambda x: {"out": x, "aux": 0 * x})
def unnamed(): return Net(6, lambda x: {"logits": x})
def pooled(): return Net(6, lambda x: x.mean((2, 3)))
def flat(): return Net(6, lambda x: x[:, 0])
def listed(): return Net(6, lambda x: [x, x[..., ::2, ::2]])
def bare():
    net = plain()
    del net.default_cfg
    return net
def with_aux():
    net = plain()
    net.aux_classifier = nn.Linear(2, 2)
    return net
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Segmenter]:
    (tmp_path / "nets.py").write_text(FACTORY)
    torch.manual_seed(0)
    tensors = {f"net.{name}": tensor for name, tensor in nn.Conv2d(3, 6, 4, 4).state_dict().items()}
    torch.save(tensors, tmp_path / "net.pth")
    torch.save(tensors | {"aux_classifier.weight": torch.ones(2, 2)}, tmp_path / "aux.pth")
    return lambda name, file="net.pth", **options: load_segmenter(
        tmp_path / file, arch=f"{tmp_path}/nets.py:{name}", **options
    )


def by_hand(folder: Path, image: Tensor, mean: Any = (0.1, 0.2, 0.3), std: Any = (0.5, 0.5, 0.4)) -> Tensor:
    tensors = torch.load(folder / "net.pth")
    logits = functional.conv2d(normalised(image, mean, std), tensors["net.weight"], tensors["net.bias"], stride=4)
    return functional.interpolate(logits, image.shape[2:], mode="bilinear")


@pytest.mark.parametrize("name", ["plain", "mapped", "unnamed"])
def test_small_logits_are_enlarged(own: Callable[..., Segmenter], tmp_path: Path, name: str) -> None:
    image = pixels(2, 3, 44, 37)
    model = own(name)
    torch.testing.assert_close(model(image), by_hand(tmp_path, image))
    identity = model.identity
    assert (identity.num_classes, identity.attention, identity.arch) == (6, "none", f"{tmp_path}/nets.py:{name}")
    assert (identity.code_sha256 is not None, model.windows) == (True, None)
    other = own(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    torch.testing.assert_close(other(image), by_hand(tmp_path, image, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


def test_any_network_can_be_shown_windows(own: Callable[..., Segmenter], tmp_path: Path) -> None:
    model = own("plain", window=(16, 24), stride=8, short_side=20)
    assert model.windows == {"size": [16, 24], "stride": [8, 8], "short_side": 20}
    image = pixels(1, 3, 40, 60)
    shown = functional.interpolate(image, (20, 30), mode="bilinear")
    total, count = torch.zeros(1, 6, 20, 30), torch.zeros(20, 30)
    for top in (0, 4):
        for left in (0, 6):
            total[..., top : top + 16, left : left + 24] += by_hand(
                tmp_path, shown[..., top : top + 16, left : left + 24]
            )
            count[top : top + 16, left : left + 24] += 1
    expected = functional.interpolate(total / count, (40, 60), mode="bilinear")
    torch.testing.assert_close(model(image), expected)
    wide = own("bare", window=80)
    assert wide.windows == {"size": [80, 80], "stride": [48, 48], "short_side": None}
    assert "windows of 80x80 overlap by 32 pixels; --stride overrides it" in wide.identity.notes
    assert any(note.startswith("NO NORMALISATION: mean and std cannot be inferred") for note in wide.identity.notes)
    torch.testing.assert_close(own("bare")(image), by_hand(tmp_path, image, (0, 0, 0), (1, 1, 1)))


def test_auxiliary_tensors_are_left_out_where_the_network_has_none(own: Callable[..., Segmenter]) -> None:
    notes = own("plain", "aux.pth").identity.notes
    assert "1 tensors of the auxiliary classifier ignored" in notes
    with pytest.raises(CheckpointError, match=r"1 missing: aux_classifier.bias"):  # kept where it has one
        own("with_aux", "aux.pth")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "pooled",
            {},
            r"Net returned shape \(1, 6\); expected logits of shape \(batch, classes, height, width\)",
        ),
        ("pooled", {"window": 64}, r"Net returned shape \(1, 6\); expected logits.*"),
        ("flat", {}, r"Net returned shape \(1, 32, 32\); expected logits.*"),
        ("listed", {}, r"Net returns several outputs .*: 0 \(1, 6, 32, 32\), 1 \(1, 6, 16, 16\); name them: .*"),
        ("plain", {"window": 2}, r"Net fails on images of 2 x 2 \(RuntimeError: .*\); expected logits.*"),
        ("mapped", {"num_classes": 5}, ".*nets.py:mapped gives 6 classes, not 5; check --num-classes"),
        ("plain", {"num_classes": 5}, r".*2 of wrong shape: net.weight \[6, 3, 4, 4\] for \[5, 3, 4, 4\].*"),
        ("plain", {"stride": 16}, NO_WINDOWS),
        ("plain", {"short_side": 16}, NO_WINDOWS),
        ("plain", {"resize": "ade20k"}, NO_WINDOWS),
        ("plain", {"window": 16, "stride": 17}, "stride 17x17 for windows of 16x16: expected 1 or more.*"),
        ("plain", {"attention": "quest"}, "Net does not support attention formulas.*"),
    ],
)
def test_networks_that_do_not_fit(
    own: Callable[..., Segmenter], name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ModelError, CheckpointError), match=f"^{words}$"):
        own(name, **options)


def test_torchvision_network_equals_itself(tmp_path: Path) -> None:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    torch.manual_seed(3)
    network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    torch.save(network.state_dict() | {"aux_classifier.0.weight": torch.ones(2)}, tmp_path / "v.pth")
    arch = "torchvision.models.segmentation:lraspp_mobilenet_v3_large"
    model = load_segmenter(tmp_path / "v.pth", arch=arch, num_classes=4, mean=IMAGENET[0], std=IMAGENET[1])
    image = pixels(1, 3, 75, 96)
    expected = network(normalised(image, *IMAGENET))["out"]
    assert expected.shape == (1, 4, 75, 96)
    torch.testing.assert_close(model(image), expected, rtol=1e-5, atol=1e-5)
    assert "1 tensors of the auxiliary classifier ignored" in model.identity.notes
    shown = load_segmenter(tmp_path / "v.pth", arch=arch, num_classes=4, window=64, mean=IMAGENET[0], std=IMAGENET[1])
    torch.testing.assert_close(shown(image[..., 11:, 32:]), network(normalised(image[..., 11:, 32:], *IMAGENET))["out"])
    assert (shown(image) - model(image)).abs().max() > 1e-4
