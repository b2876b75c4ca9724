"""What becomes of an image before a model sees it, and who says so."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from robustkit.common.preprocessing import Preprocessing, describe_preprocessing
from robustkit.data.images import to_pixels
from robustkit.errors import ModelError
from robustkit.models.input_config import InputOptions, resolve_preprocessing

NOTHING = dict.fromkeys(
    ("arch", "attention", "num_classes", "mean", "std", "interpolation", "crop_pct", "crop_mode", "img_size")
)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "input_size": (3, 224, 224), "crop_pct": 0.9}


class Net(nn.Module):
    def __init__(self, config: dict[str, Any] | None) -> None:
        super().__init__()
        self.default_cfg = config


@pytest.mark.parametrize(
    ("size", "config", "options", "metadata", "crop", "said"),
    [
        (32, IMAGENET, {}, {}, 1.0, "default"),  # its crop is of larger images
        (64, IMAGENET, {}, {}, 1.0, "default"),
        (65, IMAGENET, {}, {}, 0.9, "architecture"),
        (224, None, {}, {}, 0.875, "default"),
        (32, None, {}, {}, 1.0, "default"),
        (32, {**IMAGENET, "input_size": (3, 32, 32)}, {}, {}, 0.9, "architecture"),  # its own, for such images
        (32, {"crop_pct": 0.8}, {}, {}, 0.8, "architecture"),
        (32, IMAGENET, {"crop_pct": 0.7}, {}, 0.7, "option"),
        (32, IMAGENET, {}, {"crop_pct": 0.6}, 0.6, "metadata"),
    ],
)
def test_small_images_are_not_cropped_unless_somebody_says_so(
    size: int, config: Any, options: dict[str, Any], metadata: dict[str, Any], crop: float, said: str
) -> None:
    wanted = InputOptions(**{**NOTHING, "img_size": size, **options})
    preprocessing, sources, _ = resolve_preprocessing(Net(config), wanted, metadata, "net.pth")
    assert (preprocessing.crop_pct, sources["crop_pct"]) == (crop, said)
    assert (preprocessing.input_size, sources["input_size"]) == ((size, size), "option")


def test_each_value_has_who_said_it_and_what_nobody_said_is_noted() -> None:
    wanted = InputOptions(**{**NOTHING, "img_size": 48, "mean": (0.1, 0.1, 0.1)})
    preprocessing, sources, notes = resolve_preprocessing(Net(None), wanted, {"interpolation": "bilinear"}, "net.pth")
    assert sources == {
        "input_size": "option",
        "mean": "option",
        "std": "default",
        "interpolation": "metadata",
        "crop_pct": "default",
        "crop_mode": "default",
    }
    assert [note for note in notes if "NORMALISATION" in note] == [
        "NO NORMALISATION: std cannot be inferred from the checkpoint; using mean and std 0.1 and 1; give --std"
    ]
    text = describe_preprocessing(vars(preprocessing), sources, "net.py:build")
    assert text == (
        "48x48 pixels, mean 0.1 (by the user); bilinear (by the checkpoint); "
        "crop 1, center, std 1 (assumed, our default)"
    )
    filled, sources, _ = resolve_preprocessing(
        Net({"input_size": (3, 32, 32)}), InputOptions(**NOTHING), {}, "net.pth", config_of="code"
    )
    assert filled.mean == IMAGENET["mean"] and sources["mean"] == "default"  # timm's usual one
    assert "32x32 pixels (by the configuration of its code)" in describe_preprocessing(
        vars(filled), sources, "net.py:build"
    )


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest", "lanczos"])
def test_an_image_of_the_right_size_is_shown_as_it_is(interpolation: str) -> None:
    levels = torch.randint(256, (32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = to_pixels(
        Image.fromarray(levels.numpy()), Preprocessing((32, 32), crop_pct=1.0, interpolation=interpolation)
    )
    assert torch.equal(seen, levels.permute(2, 0, 1))


def test_a_run_says_who_said_what_and_finds_what_nobody_said(tmp_path: Path) -> None:
    from small_audit import audit, furnish

    from robustkit.report.run import Run

    place = furnish(tmp_path)
    factory = (place / "net.py").read_text()
    (place / "net.py").write_text(factory.replace("    net.default_cfg", "    cfg"))
    lines: list[str] = []
    options: dict[str, Any] = {"model": {"img_size": 8}, "attacks": "fgsm", "browse": 2, "say": lines.append}
    bare = audit(place, tmp_path / "bare", **options)
    assert (
        "net: input: 8x8 pixels (by the user); bicubic, crop 1, center, mean 0, std 1 (assumed, our default)" in lines
    )
    words = "normalisation (mean 0, std 1) was assumed: not confirmed on 30 images"
    for findings in bare.results()["flags"]:
        (assumed,) = (each["text"] for each in findings if each["code"] == "setup/normalisation-assumed")
        assert assumed.startswith(words)
    page = (tmp_path / "bare" / "report.html").read_text()
    assert "normalisation (mean 0, std 1) was assumed" in page and "mean 0, std 1 (assumed, our default)" in page
    assert Run.existing(tmp_path / "bare").manifest.checkpoints[0].origin["mean"] == "default"
    reported = audit(
        place, tmp_path / "told", **options | {"model": {"img_size": 8, "mean": (0,) * 3, "std": (1,) * 3}}
    )
    assert not any("assumed" in str(flags) for flags in reported.results()["flags"])


@pytest.mark.parametrize(
    "stated",
    [
        *(["a", "b"], ["1", "2"], "12", 5, [1], [0, 1, 2], [-math.inf, 0], [0, math.inf], [1, 1], [2, 1]),
        *([0, True], {"a": 1, "b": 2}, [0, 10**400], [0, math.nan], [0, 1, "2"], []),
    ],
    ids=lambda stated: repr(stated)[:30],
)
def test_a_range_that_a_checkpoint_states_is_two_rising_numbers(stated: Any) -> None:
    options = InputOptions(**{**NOTHING, "img_size": 32})
    with pytest.raises(ModelError, match=r"^net.pth: value_range is .{1,80}; expected two rising numbers, such as"):
        resolve_preprocessing(Net(None), options, {"value_range": stated}, "net.pth")
    assert resolve_preprocessing(Net(None), options, {"value_range": [-1, 0.5]}, "net.pth")[0].value_range == (-1, 0.5)
