"""Weights in several files, parts of some, and a name that the tensors do not fit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

import robustkit
from robustkit.errors import CheckpointError

HALF: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    options = {"num_classes": 5, "depth": 2, "img_size": 32, "patch_size": 8}
    return dict(timm.create_model("vit_tiny_patch16_224", **options).state_dict())


def shards(folder: Path, weights: dict[str, torch.Tensor], **moved: str) -> Path:
    """Write weights in two files with their index. moved: the file that the index names for a tensor."""
    folder.mkdir()
    files = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(weights)}
    for file in dict.fromkeys(files.values()):
        save_file({name: weights[name].contiguous() for name in weights if files[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files | moved}))
    return index


def test_shards_are_the_whole(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    index, images = shards(tmp_path / "vit", weights), torch.rand(2, 3, 32, 32)
    torch.save(weights, tmp_path / "whole.pth")
    whole = robustkit.load(tmp_path / "whole.pth", **HALF)
    for spec in (index, index.parent):
        loaded = robustkit.load(spec, **HALF)
        assert torch.equal(loaded(images), whole(images)) and loaded.identity.name == "vit"
    before = robustkit.load(index, **HALF).identity.sha256
    second = index.parent / "model-00002-of-00002.safetensors"
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(bytes(data))
    assert robustkit.load(index, **HALF).identity.sha256 != before


def test_parts_are_refused(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    index = shards(tmp_path / "vit", weights)
    first = index.parent / "model-00001-of-00002.safetensors"
    with pytest.raises(CheckpointError, match=r"part 1 of 2 of some weights; give their index, .*index\.json$"):
        robustkit.load(first, **HALF)
    (index.parent / "model-00002-of-00002.safetensors").rename(tmp_path / "gone.safetensors")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is not next to it; fetch all files"):
        robustkit.load(index, **HALF)
    index.unlink()
    with pytest.raises(CheckpointError, match=r"part 1 of 2 .*index\.json, which is missing here"):
        robustkit.load(first, **HALF)
    torch.save(weights, tmp_path / "pytorch_model-00002-of-00003.bin")
    with pytest.raises(CheckpointError, match="part 2 of 3 of some weights; load the whole model in its library"):
        robustkit.load(tmp_path / "pytorch_model-00002-of-00003.bin", **HALF)
    only = first.rename(tmp_path / "model-00001-of-00001.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, only)
    assert robustkit.load(only, **HALF).identity.num_classes == 5  # the only part is the whole


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/passwd", "model.bin", 3])
def test_an_index_names_files_next_to_it(place: Any, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    index = shards(tmp_path / "vit", weights, **{"head.bias": place})
    with pytest.raises(CheckpointError, match=r"expected \.safetensors files next to it"):
        robustkit.load(index, **HALF)


@pytest.mark.parametrize("said", ["[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {}}'])
def test_an_index_has_a_file_for_each_tensor(said: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(said)
    with pytest.raises(CheckpointError, match="has no weight_map; expected the file of each tensor"):
        robustkit.load(index, **HALF)


def test_a_distributed_checkpoint_is_named(tmp_path: Path) -> None:
    for name in (".metadata", "__0_0.distcp"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"a distributed checkpoint of torch; convert it .* dcp_to_torch"):
        robustkit.load(tmp_path)
    (tmp_path / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match="a folder; expected a file"):
        robustkit.load(tmp_path)


def test_parts_of_a_distributed_checkpoint_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "epoch 1"
    folder.mkdir()
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        (folder / name).write_bytes(b"x")
    remedy = f"epoch 1: a distributed checkpoint of torch; convert it to one file: .* '{folder}' weights.pth$"
    for spec in (folder / ".metadata", folder / "__1_0.distcp", tmp_path, f"local-dir:{folder}", f"hf:{folder}"):
        with pytest.raises(CheckpointError, match=remedy):
            robustkit.load(spec)
    (folder / ".metadata").unlink()
    with pytest.raises(
        CheckpointError, match=r"a part of a distributed checkpoint of torch, whose \.metadata is missing"
    ):
        robustkit.load(folder / "__0_0.distcp")


def test_indexes_and_parts_by_other_names(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    index = shards(tmp_path / "vit", weights)
    digest = robustkit.load(index, **HALF).identity.sha256
    for name in ("other.safetensors.index.json", "weights.index.json"):
        index = index.rename(index.parent / name)
        for spec in (index, index.parent):
            assert robustkit.load(spec, **HALF).identity.sha256 == digest
    other = index.parent / "b.index.json"
    other.write_bytes(index.read_bytes())
    with pytest.raises(
        CheckpointError, match=r"2 indexes of weights \(b\.index\.json, weights\.index\.json\); give the"
    ):
        robustkit.load(index.parent)
    other.unlink()
    index.write_text(json.dumps({"weight_map": {"head.bias": "pytorch_model-00001-of-00002.bin"}}))
    with pytest.raises(
        CheckpointError, match=r"expected \.safetensors files next to it; load the whole model in its lib"
    ):
        robustkit.load(index.parent)
    index.unlink()
    with pytest.raises(
        CheckpointError, match=r"model-00001-of-00002\.safetensors: part 1 of 2 .* which is missing here"
    ):
        robustkit.load(index.parent)


@pytest.mark.parametrize("name", ["resnet50", "vit_small_patch16_224", "vit_giant_patch14_224"])
def test_tensors_outweigh_the_name_in_arguments(name: str, tmp_path: Path) -> None:
    network = timm.create_model("vit_tiny_patch16_224", num_classes=7)
    torch.save({"model": network.state_dict(), "args": argparse.Namespace(model=name)}, tmp_path / "a.pth")
    identity = robustkit.load(tmp_path / "a.pth", **HALF).identity
    assert identity.arch == "vit_tiny_patch16_224" and identity.num_classes == 7
    assert f"the file names its architecture {name!r}, whose tensors have other shapes" in identity.notes
    torch.save({"model": network.state_dict(), "args": argparse.Namespace(model=identity.arch)}, tmp_path / "b.pth")
    fitting = robustkit.load(tmp_path / "b.pth", num_classes=7, **HALF)
    assert not any("other shapes" in note for note in fitting.identity.notes)


@pytest.mark.parametrize(
    ("arch", "sizes", "heads"),
    [
        ("vit_base_patch16_gap_224", {"depth": 1}, 16),  # the family has 12
        ("vit_base_patch16_rpn_224", {"depth": 2, "img_size": 32}, 12),  # norms come after its layers
        ("vit_tiny_patch16_224", {"patch_size": 8, "img_size": 64, "depth": 3}, 3),
        ("vit_tiny_patch16_224", {"depth": 13}, 3),
    ],
)
def test_a_name_of_other_sizes_keeps_what_shapes_do_not_show(
    arch: str, sizes: dict[str, int], heads: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = timm.create_model(arch, num_classes=7, **sizes).eval()
    torch.save({"model": network.state_dict(), "args": argparse.Namespace(model=arch)}, tmp_path / "a.pth")
    loaded, side = robustkit.load(tmp_path / "a.pth", **HALF), sizes.get("img_size", 224)
    images = torch.rand(2, 3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), network(2 * images - 1), rtol=0, atol=1e-5)
    assert loaded.identity.arch == arch and loaded.network.blocks[0].attn.num_heads == heads  # type: ignore[index, union-attr]
    assert any(f"its sizes from the tensors: depth {len(network.blocks)}, " in note for note in loaded.identity.notes)


@pytest.mark.parametrize(
    ("named", "real", "fault"),
    [
        ("resnet18", "resnet34", r"does not fit ResNet .*layer1.*give the right --arch"),
        ("resnet34", "resnet18", r"does not fit ResNet .*layer1.*give the right --arch"),
        (
            "convnext_atto",
            "resnet18",
            r"give --arch NAME .*names its architecture 'convnext_atto', whose tensors have oth",
        ),
    ],
)
def test_a_name_that_does_not_fit_other_networks_says_what_differs(
    named: str, real: str, fault: str, tmp_path: Path
) -> None:
    network = timm.create_model(real, num_classes=3)
    torch.save({"model": network.state_dict(), "args": argparse.Namespace(model=named)}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=fault):
        robustkit.load(tmp_path / "a.pth", **HALF)
