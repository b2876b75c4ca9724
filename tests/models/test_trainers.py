"""What training scripts leave next to the weights, and what names mention."""

import argparse
from typing import Any

import pytest

from robustkit.common.preprocessing import IMAGENET
from robustkit.models.claims import claims_of, formula_in

_IMAGENET = {"mean": list(IMAGENET[0]), "std": list(IMAGENET[1])}


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("deit_tiny_patch16_224_quest", "quest"),
        ("deit_mahala_overlayers_tiny_patch16_224", "elliptical"),
        ("vit-Elliptical-QUEST.pth", "elliptical-quest"),
        ("ViTQuest", "quest"),
        ("questions", None),
        ("quest_vs_standard", None),
        ("checkpoint.pth", None),
    ],
)
def test_a_formula_in_a_name(name: str, formula: str | None) -> None:
    assert formula_in(name) == formula


@pytest.mark.parametrize(
    ("arguments", "metadata", "sources"),
    [
        # DeiT: ImageNet's statistics, bicubic; its crop is an argument.
        ({"eval_crop_ratio": 1.0, "input_size": 224}, {**_IMAGENET, "crop_pct": 1.0}, {"mean": "trainer"}),
        ({"eval_crop_ratio": 0.875, "input_size": 32}, {**_IMAGENET, "crop_pct": 1.0}, {"crop_pct": "metadata"}),
        ({"nb_classes": 9, "input_size": 384}, {**_IMAGENET, "crop_pct": 1.0}, {"crop_pct": "trainer"}),
        ({"nb_classes": 9, "input_size": 224}, {"crop_pct": 0.875}, {"mean": "trainer", "num_classes": "metadata"}),
        ({"imagenet_default_mean_and_std": False}, {"mean": [0.5] * 3}, {"mean": "trainer"}),
        ({"val_resize_size": 232, "val_crop_size": 224}, {"crop_pct": 224 / 232, "interpolation": "bilinear"}, {}),
        ({"arch": "vit_small", "patch_size": 16, "out_dim": 65536}, {**_IMAGENET, "arch": "vit_small"}, {}),
        ({"arch": "mlp", "patch_size": 16}, {"arch": "mlp", "mean": None}, {}),
        # timm: nothing where it is None, what is stated where it is not.
        ({"nb_classes": 9, "input_size": 224, "mean": None}, {"mean": None, "crop_pct": None}, {}),
        ({"mean": (0.1, 0.2, 0.3), "std": 0.5}, {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3}, {"std": "metadata"}),
        ({"mean": "[127.5, 127.5, 127.5]", "std": "1 1 1"}, {"mean": [0.5] * 3, "std": [1 / 255] * 3}, {}),
        ({"mean": [0.1], "std": "half"}, {"mean": [0.1] * 3, "std": None}, {}),
        ({"attention": "QUEST"}, {"attention": "quest"}, {"attention": "metadata"}),
        ({"attention": "flash"}, {"attention": None}, {}),
        ({"use_quest": True, "elliptical": False}, {"attention": "quest"}, {"attention": "name"}),
        ({"no_quest": True, "distill_from_quest": True, "disable_elliptical": True}, {"attention": None}, {}),
    ],
)
@pytest.mark.parametrize("holder", [argparse.Namespace, dict])
def test_claims(holder: Any, arguments: dict[str, Any], metadata: dict[str, Any], sources: dict[str, str]) -> None:
    claims = claims_of({"model": {}, "args": holder(**arguments)})
    assert {name: claims.metadata.get(name) for name in metadata} == metadata
    assert {name: claims.sources.get(name) for name in sources} == sources
    assert claims.metadata.keys() == claims.sources.keys()
