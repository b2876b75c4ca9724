"""Files in the wild: every form that is read, and one clear line for everything that is not."""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from robustkit.errors import CheckpointError
from robustkit.models.checkpoint import load_into, read

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.tensor([1.0, -1.0])}
OTHER = {name: tensor + 1 for name, tensor in WEIGHTS.items()}


pytestmark = pytest.mark.usefixtures("one_thread")


def prefixed(prefix: str, tensors: dict[str, Tensor] = WEIGHTS) -> dict[str, Tensor]:
    return collections.OrderedDict((prefix + name, tensor) for name, tensor in tensors.items())


def same(found: dict[str, Tensor], wanted: dict[str, Tensor] = WEIGHTS) -> bool:
    return list(found) == list(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)


class Network(nn.Module):
    def __init__(self, outputs: int = 2, inner: str = "layer") -> None:
        super().__init__()
        self.add_module(inner, nn.Linear(3, outputs))


# --- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("content", "part", "words"),
    [
        (WEIGHTS, "bare", ""),
        ({"state_dict": WEIGHTS, "epoch": 3}, "state_dict", "taken from 'state_dict'"),
        ({"model": prefixed("module.")}, "model", "prefix 'module.' taken off"),
        ({"net": prefixed("module._orig_mod.")}, "net", "prefix 'module._orig_mod.' taken off"),
        (prefixed("_orig_mod.model."), "bare", "prefix '_orig_mod.model.' taken off"),
        (
            {"n_averaged": torch.tensor(7), **prefixed("module.")},
            "bare",
            "'n_averaged' of torch's AveragedModel ignored",
        ),
        ({"my_weights": WEIGHTS, "optimizer": {"lr": 0.1}}, "my_weights", "taken from 'my_weights'"),
        ({"model_ema": WEIGHTS, "epoch": 3}, "model_ema", "taken from 'model_ema' (EMA)"),
        ({"model": WEIGHTS, "model_ema": OTHER}, "model", "EMA weights under 'model_ema' ignored; --use-ema uses"),
    ],
)
def test_wrapped_and_prefixed_files(tmp_path: Path, zipped: bool, content: Any, part: str, words: str) -> None:
    path = tmp_path / "weights.pth.tar"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    found = read(path)
    assert found.weights == part
    assert same(found.tensors)
    assert words in "; ".join(found.notes)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["state_dict_ema", "model_ema"])
def test_ema_only_when_asked(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pt"
    torch.save({"state_dict": WEIGHTS, name: prefixed("module.", OTHER)}, path)
    assert same(read(path).tensors)
    averaged = read(path, use_ema=True)
    assert same(averaged.tensors, OTHER)
    assert (averaged.weights, averaged.notes[0]) == (name, f"weights taken from '{name}' (EMA)")
    torch.save({"state_dict": WEIGHTS}, path)
    with pytest.raises(CheckpointError, match=r"has no EMA weights .* leave --use-ema out"):
        read(path, use_ema=True)
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"has no EMA weights .* leave --use-ema out"):
        read(tmp_path / "a.safetensors", use_ema=True)


def test_arguments_beside_the_weights_are_hints(tmp_path: Path) -> None:
    path = tmp_path / "deit.pth"
    arguments = argparse.Namespace(model="deit_tiny_patch16_224", nb_classes=10, input_size=32, mean=None, lr=0.1)
    torch.save({"model": WEIGHTS, "args": arguments}, path)
    assert read(path).metadata == {"arch": "deit_tiny_patch16_224", "num_classes": 10, "input_size": [32, 32]}
    timm_like = {"arch": "resnet18", "args": {"input_size": (3, 64, 48), "crop_pct": 0.9, "interpolation": ""}}
    torch.save({"state_dict": WEIGHTS, **timm_like}, path)
    assert read(path).metadata == {"arch": "resnet18", "input_size": [64, 48], "crop_pct": 0.9}


def test_safetensors_metadata_and_short_floats(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {
        "a": torch.tensor([0.5], dtype=torch.float16),
        "b": torch.tensor([2.0], dtype=torch.bfloat16),
        "n": torch.tensor(3),
    }
    save_file(
        tensors,
        path,
        metadata={"format": "pt", "arch": "x", "mean": "[0.5, 0.4, 0.3]", "num_classes": "10", "seed": "1"},
    )
    found = read(path)
    assert found.metadata == {"arch": "x", "mean": [0.5, 0.4, 0.3], "num_classes": 10, "seed": "1"}
    assert list(found.metadata) == ["arch", "mean", "num_classes", "seed"]  # of run.json, whose bytes are the same
    assert {name: (t.dtype, t.item()) for name, t in found.tensors.items()} == {
        "a": (torch.float32, 0.5),
        "b": (torch.float32, 2.0),
        "n": (torch.int64, 3),
    }
    assert found.notes == (
        "1 of 3 tensors are stored as bfloat16; computed in float32",
        "1 of 3 tensors are stored as float16; computed in float32",
    )
    save_file(tensors, path, metadata={"mean": "half"})
    with pytest.raises(CheckpointError, match="metadata 'mean' is 'half'; expected JSON"):
        read(path)


# --- nothing untrusted runs ------------------------------------------------------------------------------------------


class Bomb:
    """Would make a folder if it were unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("form", ["bare 0", "bare 2", "bare 4", "bare 5", "zip", "old", "args", "args old"])
def test_code_in_a_pickle_is_named_and_not_run(tmp_path: Path, form: str) -> None:
    path, target = tmp_path / "bomb.pt", tmp_path / "made"
    bomb = Bomb(target)
    if form.startswith("bare"):
        path.write_bytes(pickle.dumps({"weights": 1, "bomb": bomb}, protocol=int(form[-1])))
    else:
        content = argparse.Namespace(model="m", inner=[bomb]) if "args" in form else bomb
        torch.save({"state_dict": WEIGHTS, "args": content}, path, _use_new_zipfile_serialization="old" not in form)
    with pytest.raises(CheckpointError) as caught:
        read(path)
    message = str(caught.value)
    assert "refused, a pickle that would call " in message
    assert f"{os.mkdir.__module__}.mkdir" in message
    assert "torch.save(model.state_dict(), FILE)" in message
    assert "\n" not in message
    assert not target.exists()


def test_a_whole_pickled_module_is_named(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"would call torch.nn.modules.linear.Linear when loaded"):
        read(tmp_path / "m.pt")


# --- files that are not checkpoints ----------------------------------------------------------------------------------


def whole(path: Path, **options: Any) -> bytes:
    torch.save({"state_dict": {"w": torch.randn(500)}}, path, **options)
    return path.read_bytes()


def damaged(kind: str, path: Path) -> None:
    if kind == "zip cut":
        path.write_bytes(whole(path)[:1000])
    elif kind == "old cut":
        path.write_bytes(whole(path, _use_new_zipfile_serialization=False)[:1000])
    elif kind == "safetensors cut":
        save_file({"w": torch.randn(500)}, path)
        path.write_bytes(path.read_bytes()[:-9])
    elif kind == "safetensors header":
        path.write_bytes((1 << 60).to_bytes(8, "little") + b'{"w":{}}')
    elif kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "folder":
        path.mkdir()
    else:
        texts = {
            "text": b"just text",
            "empty": b"",
            "page": b"<!DOCTYPE html>",
            "lfs": b"version https://git-lfs.github.com",
            # A pickle whose last bytes say that a zip of 64 bits lies on two disks.
            "zip of two disks": b"\x80\x02}."
            + b"PK\x06\x07"
            + struct.pack("<LQL", 0, 0, 2)
            + b"PK\x05\x06"
            + bytes(18),
        }
        path.write_bytes(texts[kind])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("zip cut", "damaged or cut short .*; expected a file written by torch.save; fetch it again"),
        ("old cut", "damaged or cut short .*; expected a file written by torch.save; fetch it again"),
        ("zip of two disks", "damaged or cut short .*; expected a file written by torch.save; fetch it again"),
        ("safetensors cut", "not a whole safetensors file .*; fetch it again"),
        ("safetensors header", "not a whole safetensors file .*; fetch it again"),
        ("other zip", "a zip archive without torch weights in it"),
        ("folder", "a folder; expected a file .*local-dir:"),
        ("text", "not a checkpoint .it begins with b'just text'.; expected .safetensors, or a file by torch.save"),
        ("empty", "empty .0 bytes.; fetch it again"),
        ("page", "a web page or JSON text, not weights; fetch the file itself"),
        ("lfs", "a Git LFS pointer, not the weights; run `git lfs pull`"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "weights.bin"
    damaged(kind, path)
    with pytest.raises(CheckpointError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"epoch": 3, "lr": 0.1}, "no weights found in it .it holds epoch, lr.; expected weights at the top or under"),
        ([1, 2], "holds a list; expected a state_dict"),
        ({"a": torch.tensor([1e39]).double() * 1e3, "b": torch.ones(1)}, r"infinite values in 1 of 2 tensors \(a\)"),
        ({"a": torch.tensor([1e39], dtype=torch.float64), "b": torch.ones(1)}, r"NaN or infinite values in 1 of 2"),
        (
            {"a": torch.ones(2, dtype=torch.complex64)},
            r"sparse or complex weights \(a\); give the weights as floats",
        ),
        (
            {"a": torch.tensor([1.0, float("nan")]), "b": torch.ones(1)},
            r"NaN or infinite values in 1 of 2 tensors \(a\)",
        ),
        (
            {"blocks.0.w": torch.tensor(float("inf")), "blocks.1.w": torch.tensor(float("inf"))},
            r"2 of 2 tensors \(blocks.\*.w \(2\)\)",
        ),
        ({"a": torch.eye(3).to_sparse()}, r"sparse or complex weights \(a\); give the weights as floats"),
    ],
)
def test_unsound_weights_are_one_line(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path / "a.pth")


def test_a_missing_path_names_its_neighbours(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "quest-tiny.safetensors")
    with pytest.raises(CheckpointError, match=r"no such file; did you mean quest-tiny.safetensors"):
        read(tmp_path / "quest-tinny.safetensors")
    with pytest.raises(CheckpointError, match="no such file; check the path"):
        read(tmp_path / "nowhere" / "a.pth")


# --- loading ---------------------------------------------------------------------------------------------------------


def checkpoint(tmp_path: Path, tensors: dict[str, Tensor]) -> Any:
    torch.save(tensors, tmp_path / "a.pth")
    return read(tmp_path / "a.pth")


def test_strict_loading_fills_every_tensor(tmp_path: Path) -> None:
    network = Network()
    assert load_into(network, checkpoint(tmp_path, WEIGHTS)) == ()
    assert same(dict(network.state_dict()))
    inner = nn.Module()
    inner.model = Network()  # a network whose own names begin with a prefix that was taken off
    load_into(inner, checkpoint(tmp_path, prefixed("module.model.")))
    assert same(dict(inner.model.state_dict()))
    deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))  # the whole counts, and not a part of it elsewhere
    whole = {name: torch.full_like(tensor, 5) for name, tensor in deep.state_dict().items()}
    load_into(deep, checkpoint(tmp_path, prefixed("encoder.", whole) | {"teller.0.bias": torch.zeros(3)}))
    assert same(dict(deep.state_dict()), whole)
    batch_norm = nn.BatchNorm1d(2)
    old = {name: torch.full_like(t, 3) for name, t in batch_norm.state_dict().items() if "num_batches" not in name}
    load_into(batch_norm, checkpoint(tmp_path, old))
    assert batch_norm.running_var.tolist() == [3, 3]


def test_what_does_not_fit_is_grouped_and_counted(tmp_path: Path) -> None:
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    tensors = {name: tensor + 1 for name, tensor in network.state_dict().items() if not name.startswith("3.")}
    wrong = {**tensors, "0.weight": torch.ones(5, 3), "extra.1.gamma": torch.ones(1), "extra.2.gamma": torch.ones(1)}
    file = checkpoint(tmp_path, wrong)
    before = [p.clone() for p in network.parameters()]
    with pytest.raises(CheckpointError) as caught:
        load_into(network, file)
    assert (
        "does not fit Sequential (5 of 8 tensors fit; 2 missing: 3.weight, 3.bias; 2 unexpected: extra.*.gamma (2); "
        "1 of wrong shape: 0.weight [5, 3] for [3, 3]); give the right --arch, or --allow-partial" in str(caught.value)
    )
    assert all(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    (note,) = load_into(network, file, allow_partial=True)
    assert note.startswith("partially loaded, 5 of 8 tensors; 2 missing: 3.weight, 3.bias; 2 unexpected")
    assert torch.equal(network[1].weight, tensors["1.weight"])
    assert torch.equal(network[3].weight, before[6])
    with pytest.raises(CheckpointError, match="no tensor fits; check --arch"):
        load_into(Network(inner="other"), file, allow_partial=True)
    with pytest.raises(CheckpointError, match=r"does not fit Identity \(0 of 0 tensors fit"):
        load_into(nn.Identity(), file)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Network(5, inner="head"), "the file has 2 classes: --num-classes 2"),
        (nn.ParameterDict({"pos_embed": torch.ones(1, 5, 4), "x": torch.ones(1)}), "another image size: --img-size N"),
        (
            nn.ParameterDict({"attn": nn.ParameterDict({"q_scale": torch.ones(3)}), "x": torch.ones(1)}),
            "check --attention",
        ),
    ],
)
def test_known_causes_have_their_remedy(tmp_path: Path, model: nn.Module, words: str) -> None:
    tensors = (
        {"pos_embed": torch.ones(1, 17, 4), "x": torch.ones(1)}
        if "pos_embed" in model.state_dict()
        else {"x": torch.ones(1)}
    )
    if isinstance(model, Network):
        tensors = {"head.weight": torch.ones(2, 3), "head.bias": torch.ones(2)}
        model.register_parameter("x", nn.Parameter(torch.ones(1)))
        tensors["x"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=words):
        load_into(model, checkpoint(tmp_path, tensors))
