"""What a checkpoint claims of its network is bounded by what it holds."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from bounded import SECONDS, at_most
from safetensors.torch import save_file

from robustkit.errors import CheckpointError, ModelError
from robustkit.models.checkpoint import read
from robustkit.models.claims import Allowance
from robustkit.models.classifier import load
from robustkit.models.segmenter import load_segmenter

pytestmark = pytest.mark.usefixtures("one_thread")
VIT = "vit_tiny_patch16_224"
SMALL = {"embed_dim": 48, "depth": 1, "num_heads": 3, "patch_size": 8, "img_size": 16}


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    import timm

    torch.manual_seed(0)
    return dict(timm.create_model(VIT, num_classes=4, **SMALL).state_dict())


def saved(path: Path, tensors: dict[str, torch.Tensor], **metadata: Any) -> Path:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    save_file(tensors, path, texts)
    return path


TOO_MUCH = "many times larger than the .* numbers it holds; refused, since it would exhaust the memory"
NETWORKS: list[tuple[dict[str, Any], str]] = [
    (
        {"arch_kwargs": SMALL | {"depth": 10**9}},
        r"arch_kwargs has depth = 1000000000; expected a text, or numbers up to",
    ),
    ({"arch_kwargs": SMALL | {"depth": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"embed_dim": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"img_size": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"mlp_ratio": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"reg_tokens": -5}}, "cannot be built with"),
    ({"arch_kwargs": SMALL | {"depth": [10**9] * 3}}, "arch_kwargs has depth"),
    ({"arch_kwargs": SMALL | {"depth": [1] * 65}}, "arch_kwargs has depth"),
    ({"arch_kwargs": SMALL | {"depth": [[1] * 65]}}, "arch_kwargs has depth"),
    ({"arch_kwargs": SMALL | {"depth": [[[1]]]}}, "arch_kwargs has depth"),
    ({"arch_kwargs": SMALL | {"embed_dim": 10**400}}, "arch_kwargs has embed_dim"),
    ({"arch_kwargs": SMALL | {"block_fn": "os.system"}}, "arch_kwargs holds block_fn; expected only the shape"),
    ({"arch_kwargs": SMALL | {"features_only": True}}, "arch_kwargs holds features_only; expected only the shape"),
    ({"arch_kwargs": SMALL | {"norm_layer": {"a": 1}}}, "arch_kwargs has norm_layer = {'a': 1}; expected a text"),
    ({"arch_kwargs": SMALL, "num_classes": 10**9}, "num_classes is 1000000000; expected a whole number of at most"),
    ({"arch_kwargs": SMALL, "num_classes": 10**6}, f"{TOO_MUCH}|does not fit"),
    ({"arch_kwargs": SMALL, "num_classes": -1}, "num_classes is -1; expected a whole number"),
    ({"arch": "eva_giant_patch14_224", "arch_kwargs": {}}, TOO_MUCH),
    (
        {"arch_kwargs": {"depth": 1}, "input_size": [10**9, 10**9]},
        "image size is .*; expected one or two .* up to 2048",
    ),
    ({"arch_kwargs": SMALL, "num_classes": 4, "crop_pct": 1e-9}, r"crop_pct is 1e-09; expected a number in \[0.1, 1\]"),
    ({"arch_kwargs": SMALL, "num_classes": 4, "std": [10**400, 1, 1]}, "expected three finite numbers above 0"),
    ({"arch_kwargs": SMALL, "num_classes": 4, "mean": [0.5] * 100_000}, "expected three finite numbers in"),
]


@pytest.mark.parametrize(("metadata", "message"), NETWORKS)
def test_a_file_cannot_ask_for_more_than_it_holds(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path / "a.safetensors", tensors, **({"arch": VIT} | metadata))
    began = time.process_time()
    with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message) as caught:
        load(path)
    assert len(str(caught.value)) < 1000 and time.process_time() - began < SECONDS
    assert load(saved(path, tensors, arch=VIT, arch_kwargs=SMALL, num_classes=4)).identity.num_classes == 4


def test_nor_can_a_config_beside_it(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    saved(tmp_path / "model.safetensors", tensors)
    for content, message in (
        ({"model_args": SMALL | {"depth": 10**9}}, "arch_kwargs has depth"),
        ({"model_args": SMALL, "num_classes": 10**9}, "num_classes is 1000000000"),
        ({"model_args": SMALL, "num_classes": 4, "pretrained_cfg": {"std": [1e-300] * 3}}, "finite numbers above 0"),
        ({"model_args": SMALL, "num_classes": 4, "pretrained_cfg": {"crop_pct": 1e-9}}, "crop_pct is 1e-09"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architecture": VIT, **content}))
        with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message):
            load(f"local-dir:{tmp_path}")


def of_shapes(path: Path, tensors: dict[str, torch.Tensor], claimed: dict[str, list[int]]) -> Path:
    """A safetensors file, some tensors of which have no numbers, so that their shapes may claim anything."""
    entries: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        shape = claimed.get(name, list(tensor.shape))
        size = 0 if 0 in shape else 4 * tensor.numel()
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += tensor.numpy().tobytes()[:size]
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_nor_can_shapes_without_numbers_and_names_of_blocks(tmp_path: Path) -> None:
    import timm

    tensors = dict(timm.create_model(VIT, num_classes=4, depth=1, img_size=32).state_dict())
    path = tmp_path / "a.safetensors"
    for claimed in ({"head.weight": [10**9, 0]}, {"pos_embed": [1, 10**10 + 1, 0]}):
        with at_most(600 << 20), pytest.raises(CheckpointError, match=TOO_MUCH):
            load(of_shapes(path, tensors, claimed))
    for number, message in (
        ("9999", r"a block 9999 in \d+ tensors"),
        ("9" * 5000, "names that a plain ViT or DeiT does not have"),
    ):
        with at_most(600 << 20), pytest.raises(CheckpointError, match=message):
            load(saved(path, tensors | {f"blocks.{number}.norm1.weight": torch.zeros(192)}))
    assert load(saved(path, tensors)).identity.num_classes == 4


def test_segmenters_are_bounded_likewise(tmp_path: Path) -> None:
    from robustkit.models.dense import build_segmenter

    torch.manual_seed(0)
    shape = {key: value for key, value in SMALL.items() if key != "img_size"}
    network = build_segmenter(VIT, 3, window=32, arch_kwargs=shape, decoder_kwargs={"depth": 1, "heads": 2})
    own = dict(network.state_dict())
    said: dict[str, Any] = {"arch": VIT, "task": "segmentation", "input_size": [32, 32], "arch_kwargs": shape}
    said["decoder_kwargs"] = {"heads": 2}
    for metadata, message in (
        ({"arch_kwargs": shape | {"depth": 10**9}}, "arch_kwargs has depth"),
        ({"arch_kwargs": shape | {"depth": 60_000}}, TOO_MUCH),
        ({"decoder_kwargs": {"heads": 10**9}}, "decoder_kwargs has heads = 1000000000"),
        ({"input_size": [10**6, 10**6]}, "image size is .* up to 2048"),
        ({"short_side": 10**9}, "short side is 1000000000; expected 2048 at most; give --short-side"),
        ({"stride": [1, 1]}, r"stride is \[1, 1\] for windows of 32x32; expected an eighth of these at least"),
    ):
        path = saved(tmp_path / "a.safetensors", own, **(said | metadata))
        with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message):
            load_segmenter(path)
    assert load_segmenter(saved(path, own, **said)).identity.num_classes == 3


@pytest.mark.slow
def test_the_allowance_leaves_honest_networks_alone() -> None:
    """Same numbers as without it, for each family; and several times the file's own are allowed."""
    import timm

    for arch in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18", "convnext_atto"):
        torch.manual_seed(3)
        plain = timm.create_model(arch).state_dict()
        torch.manual_seed(3)
        with Allowance(plain, Path("x")):
            allowed = timm.create_model(arch).state_dict()
        assert all(torch.equal(plain[name], allowed[name]) for name in plain)
    with pytest.raises(CheckpointError, match="x: its metadata describe a network"), Allowance({}, Path("x")):
        torch.empty(1 << 40)
    line = torch.zeros(6000)
    with pytest.raises(CheckpointError, match="x: its metadata describe a network"), Allowance({}, Path("x")):
        for _ in range(3):
            line[:, None] + line  # made from others, 36 million numbers at a time
    with Allowance({}, Path("x")):
        for _ in range(40_000):
            line.add_(1).view(60, 100).T.reshape(100, 60)[:1].fill_(0)


def test_weights_without_numbers_are_one_line(tmp_path: Path) -> None:
    torch.save({"head.weight": torch.empty(3, 4, device="meta"), "w": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(
        CheckpointError, match=r"a\.pth: 1 tensors on the meta device \(head\.weight\), without numbers"
    ):
        read(tmp_path / "a.pth")
