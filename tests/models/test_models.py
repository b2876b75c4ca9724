"""From specs to classifiers: guessing, options against metadata, own factories, and what is refused."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.transforms import Normalize

import robustkit
from robustkit.attention import get_attention, set_attention
from robustkit.errors import CheckpointError, ModelError
from robustkit.models import specs
from robustkit.models.claims import guess, rename_layer_scale
from robustkit.models.classifier import load
from robustkit.models.identity import differing_parts, distinct_names

VIT = "vit_tiny_patch16_224"
SMALL = {"img_size": 32, "patch_size": 16, "depth": 1, "num_classes": 4}
TINY = {**SMALL, "embed_dim": 32, "num_heads": 2, "depth": 2}


pytestmark = pytest.mark.usefixtures("one_thread")


def network(name: str = "vit_tiny_patch16_224", **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **kwargs}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def saved(path: Path, model: nn.Module, **metadata: Any) -> Path:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    save_file(model.state_dict(), path, metadata=texts)
    return path


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))


# --- guessing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kwargs", "expected"),
    [
        ("vit_tiny_patch16_224", {}, "vit_tiny_patch16_224"),
        ("vit_small_patch32_384", {"num_classes": 10}, "vit_small_patch32_224"),
        ("vit_base_patch8_224", {"img_size": 32}, "vit_base_patch8_224"),
        ("vit_large_patch16_224", {}, "vit_large_patch16_224"),
        ("vit_huge_patch14_224", {"num_classes": 9}, "vit_huge_patch14_224"),
        ("vit_base_patch16_224", {"global_pool": "avg"}, "vit_base_patch16_224"),
        (
            "vit_base_patch16_224",
            {"class_token": False, "global_pool": "avg", "fc_norm": False},
            "vit_base_patch16_224",
        ),
        ("vit_base_patch16_224", {"qk_norm": True, "num_heads": 24}, "vit_base_patch16_224"),
        ("vit_base_patch16_224", {"qkv_bias": False, "mlp_ratio": 3}, "vit_base_patch16_224"),
        ("vit_small_patch14_reg4_dinov2", {"num_classes": 7}, "vit_small_patch16_224"),
        ("deit_small_distilled_patch16_224", {}, "deit_small_distilled_patch16_224"),
        ("deit3_base_patch16_224", {}, "deit3_base_patch16_224"),
        ("deit3_huge_patch14_224", {"depth": 2}, "deit3_huge_patch14_224"),
    ],
)
def test_guess_rebuilds_the_family(name: str, kwargs: dict[str, Any], expected: str) -> None:
    original = timm.create_model(name, **{"depth": 2, **kwargs})
    arch, found, notes = guess(original.state_dict())
    rebuilt = timm.create_model(arch, **found)
    assert arch == expected
    shapes = [{key: tuple(t.shape) for key, t in m.state_dict().items()} for m in (rebuilt, original)]
    assert shapes[0] == shapes[1]
    for attribute in ("num_prefix_tokens", "no_embed_class", "global_pool", "num_classes", "has_class_token"):
        assert getattr(rebuilt, attribute) == getattr(original, attribute), attribute
    assert rebuilt.blocks[0].attn.num_heads == original.blocks[0].attn.num_heads
    assert type(rebuilt) is type(original)
    source = "by the size of the query norm" if "qk_norm" in kwargs else "by the family's convention"
    assert source in notes[0]


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("resnet10t", {}, "not a ViT or DeiT of timm .tensor names begin conv1.0.weight"),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1), "embed_dim": 24}, "not a ViT or DeiT of timm"),
        ("vit_base_patch32_clip_224", {"depth": 1}, "a norm before the blocks, as in CLIP"),
        ("vit_tiny_patch16_224", {"embed_dim": 320, "num_heads": 5}, "width 320, which is not one of the family's"),
        ("vit_tiny_patch16_224", {"num_classes": 0}, "no classifier"),
        ("vit_tiny_patch16_224", {"in_chans": 17}, "patches of 17 channels"),
        ("vit_tiny_patch16_224", {"img_size": (32, 48)}, "7 position embeddings, which is not a square grid"),
        ("vit_tiny_patch16_224", {"pos_embed": "none"}, "no position embeddings"),
        (
            "vit_base_patch16_siglip_224",
            {"num_classes": 3, "depth": 1},
            r"names that a plain ViT or DeiT does not have \(attn_pool",
        ),
    ],
)
def test_others_are_not_guessed(name: str, kwargs: dict[str, Any], words: str) -> None:
    tensors = timm.create_model(name, **kwargs).state_dict()
    with pytest.raises(CheckpointError, match=words) as caught:
        guess(tensors)
    assert "the architecture cannot be inferred" in str(caught.value)
    assert "give --arch NAME" in str(caught.value)


def test_layer_scale_of_the_deit3_files_is_mapped(tmp_path: Path, pixels: Tensor) -> None:
    model = network("deit3_small_patch16_224", depth=2)
    old = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t
        for name, t in model.state_dict().items()
    }
    torch.save({"model": old}, tmp_path / "d.pth")
    classifier = load(tmp_path / "d.pth")
    assert "4 LayerScale tensors mapped" in "; ".join(classifier.identity.notes)
    assert classifier.identity.arch == "deit3_small_patch16_224"
    assert torch.equal(classifier.network(pixels), model(pixels))
    assert rename_layer_scale(model.state_dict())[1] == ()


def test_guess_uses_names_for_the_pixel_statistics(tmp_path: Path) -> None:
    vit = load(saved(tmp_path / "tiny.safetensors", network()))
    deit = load(saved(tmp_path / "deit_tiny.safetensors", network()))
    assert (vit.identity.arch, vit.identity.preprocessing.mean) == ("vit_tiny_patch16_224", (0.5, 0.5, 0.5))
    assert (deit.identity.arch, deit.identity.preprocessing.mean) == ("deit_tiny_patch16_224", (0.485, 0.456, 0.406))
    assert vit.identity.preprocessing.input_size == (32, 32)


# --- a classifier of pixels ------------------------------------------------------------------------------------------


def test_classifier_normalises_bit_for_bit_and_is_frozen(tmp_path: Path, pixels: Tensor) -> None:
    model = network()
    file = saved(tmp_path / "a b.safetensors", model)
    classifier = load(
        file, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop_pct=0.8, interpolation="bilinear"
    )
    expected = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))(pixels)
    assert torch.equal(classifier.normalize(pixels), expected)
    assert torch.equal(classifier(pixels), model(expected))
    assert not classifier.training
    assert not any(p.requires_grad for p in classifier.parameters())
    assert [name for name in classifier.state_dict() if not name.startswith("network.")] == []
    identity = classifier.identity
    assert (identity.name, identity.num_classes, identity.weights, identity.path) == ("a-b", 4, "bare", file)
    assert (identity.preprocessing.crop_pct, identity.preprocessing.interpolation) == (0.8, "bilinear")
    reported = json.loads(json.dumps(identity.to_dict()))
    assert (reported["path"], reported["sha256"]) == (str(file), identity.sha256)
    assert reported["preprocessing"]["input_size"] == [32, 32]


def test_metadata_builds_the_whole_model(tmp_path: Path, pixels: Tensor) -> None:
    model = set_attention(network(**TINY), "qknorm-hs")
    nn.init.uniform_(model.blocks[1].attn.qk_scale, 1, 9)
    metadata: dict[str, Any] = {
        "arch": "vit_tiny_patch16_224",
        "arch_kwargs": {key: value for key, value in TINY.items() if key != "num_classes"},
        "attention": "qknorm-hs",
        "num_classes": 4,
        "class_names": ["a", "b", "c", "d"],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "input_size": [32, 32],
        "crop_pct": 1.0,
        "crop_mode": "squash",
        "seed": "7",
    }
    classifier = load(saved(tmp_path / "m.safetensors", model, **metadata))
    identity = classifier.identity
    assert (identity.attention, identity.attention_source) == ("qknorm-hs", "metadata")
    assert identity.class_names == ("a", "b", "c", "d")
    assert (identity.preprocessing.crop_pct, identity.preprocessing.crop_mode) == (1.0, "squash")
    assert identity.metadata["seed"] == "7"
    assert torch.equal(classifier(pixels), model(Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))(pixels)))
    # without the metadata the scales in the file still tell the formula
    without = {key: value for key, value in metadata.items() if key != "attention"}
    shown = load(saved(tmp_path / "n.safetensors", model, **without)).identity
    assert (shown.attention, shown.attention_source) == ("qknorm-hs", "weights")
    with pytest.raises(CheckpointError, match=r"2 unexpected: blocks.\*.attn.qk_scale .* check --attention"):
        load(tmp_path / "m.safetensors", attention="quest")


def test_attention_comes_from_option_then_metadata_then_default(tmp_path: Path, pixels: Tensor) -> None:
    model = network()
    file = saved(tmp_path / "q.safetensors", model, attention="quest")
    by_file, by_user = load(file), load(file, attention="elliptical")
    assert (by_file.identity.attention, by_file.identity.attention_source) == ("quest", "metadata")
    assert torch.equal(by_file.network(pixels), set_attention(network(), "quest")(pixels))
    assert (by_user.identity.attention_source, get_attention(by_user)) == ("option", "elliptical")
    assert "attention elliptical from --attention; the file's metadata says quest" in by_user.identity.notes
    silent = load(saved(tmp_path / "s.safetensors", model)).identity
    assert (silent.attention, silent.attention_source) == ("standard", "default")
    assert any("the file does not record its attention formula; assuming standard" in note for note in silent.notes)
    with pytest.raises(ModelError, match=r"unknown attention 'qest'; did you mean 'quest'.*from the metadata of .*;"):
        load(saved(tmp_path / "w.safetensors", model, attention="qest"))
    with pytest.raises(CheckpointError, match=r"2 missing: blocks.\*.attn.q_scale, .* check --attention"):
        load(file, attention="qknorm")


def test_options_outweigh_metadata_and_say_so(tmp_path: Path) -> None:
    metadata = {"arch": "resnet18", "arch_kwargs": {"depth": 3}, "mean": [0, 0, 0], "std": [0.7] * 3}
    file = saved(tmp_path / "a.safetensors", network(depth=12), **metadata)
    identity = load(file, arch="vit_tiny_patch16_224", img_size=32, num_classes=4, mean=(0.3, 0.3, 0.3)).identity
    said = "architecture vit_tiny_patch16_224 from --arch; the file says resnet18, with depth, which are ignored"
    assert said in identity.notes
    assert (identity.preprocessing.mean, identity.preprocessing.std) == ((0.3, 0.3, 0.3), (0.7, 0.7, 0.7))


@pytest.mark.parametrize(
    ("claimed", "arch"), [(None, "vit_tiny_patch16_224"), ("vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k")]
)
def test_arguments_of_the_file_stay_with_the_architecture_that_is_given(
    tmp_path: Path, pixels: Tensor, claimed: str | None, arch: str
) -> None:
    """Heads show in no shape: without them the same tensors load as another network."""
    model = network(**TINY)
    said = {} if claimed is None else {"arch": claimed}
    shape = {key: value for key, value in TINY.items() if key != "num_classes"}
    file = saved(tmp_path / "a.safetensors", model, arch_kwargs=shape, **said)
    classifier = load(file, arch=arch, num_classes=4, mean=[0] * 3, std=[1] * 3)
    torch.testing.assert_close(classifier(pixels), model(pixels))


def test_a_guess_takes_the_size_that_the_file_states(tmp_path: Path) -> None:
    model = network(img_size=(64, 144), depth=12)
    images = torch.rand(2, 3, 64, 144)
    file = tmp_path / "vit_tiny_patch16_224.pth"
    torch.save({"model": model.state_dict(), "args": {"input_size": (3, 64, 144)}}, file)
    classifier = load(file, mean=[0] * 3, std=[1] * 3)
    assert classifier.identity.preprocessing.input_size == (64, 144)
    torch.testing.assert_close(classifier(images), model(images))
    torch.save({"model": model.state_dict(), "args": {"input_size": 224}}, file)
    other = load(file).identity
    assert other.preprocessing.input_size == (96, 96)
    said = "the file says images of 224 x 224, and has position embeddings of 96 x 96, which are taken; give --img-size"
    assert any(note.startswith(said) for note in other.notes)


@pytest.mark.parametrize("stated", [224.0, "224", [224.0, 224], [[224]]])
def test_a_size_that_makes_no_sense_says_nothing(tmp_path: Path, stated: object) -> None:
    torch.save({"model": network(**TINY).state_dict(), "args": {"input_size": stated}}, tmp_path / "a.pth")
    shape = {key: value for key, value in TINY.items() if key not in ("num_classes", "img_size")}
    (tmp_path / "net.py").write_text(f"import timm\ndef build(**k): return timm.create_model({VIT!r}, **{TINY})\n")
    found = load(tmp_path / "a.pth", arch=f"{tmp_path / 'net.py'}:build", img_size=32)
    assert found.identity.preprocessing.input_size == (32, 32) and shape


def test_norms_that_were_trained_are_not_passed_by(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.safetensors", network(qk_norm=True, depth=12))
    assert load(file).identity.attention == load(file, attention="qknorm-ln").identity.attention == "qknorm-ln"
    for formula in ("standard", "quest"):
        with pytest.raises(
            ModelError, match=rf"24 tensors q_norm and k_norm\), which {formula} attention .from the opt"
        ):
            load(file, attention=formula)


def test_features_are_not_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own layout of a model without a head, and its name."""
    shape = {key: value for key, value in TINY.items() if key != "num_classes"}
    config = {"architecture": VIT, "num_classes": 0, "model_args": shape, "pretrained_cfg": {"input_size": [3, 32, 32]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    saved(tmp_path / "model.safetensors", network(**{**TINY, "num_classes": 0}))
    for spec, options in ((f"local-dir:{tmp_path}", {}), (f"timm:{VIT}", {"pretrained": False, "num_classes": 0})):
        with pytest.raises(
            ModelError, match=r"has no classifier .num_classes 0.*evaluate them with robustkit features$"
        ):
            load(spec, **options)
    assert load(f"local-dir:{tmp_path}", features=True).identity.num_classes == 0


def test_positions_of_another_grid_with_as_many_patches_are_resampled(tmp_path: Path) -> None:
    model = network("vit_tiny_patch16_224", img_size=64, depth=12)
    options: dict[str, Any] = {"arch": "vit_tiny_patch16_224", "num_classes": 4, "img_size": (32, 128)}
    known = load(saved(tmp_path / "a.safetensors", model, input_size=[64, 64]), **options)
    assert "position embeddings resampled from 4 x 4 to 2 x 8 patches" in known.identity.notes
    assert not torch.equal(known.network.pos_embed, model.pos_embed)
    unknown = load(saved(tmp_path / "b.safetensors", model), **options)
    assert torch.equal(unknown.network.pos_embed, model.pos_embed)
    assert "position embeddings assumed to be for 2 x 8 patches; the file does not record it" in unknown.identity.notes


def test_image_size_and_classes_change_only_when_asked(tmp_path: Path) -> None:
    model = network("vit_tiny_patch16_224", img_size=64, depth=12)
    file = saved(tmp_path / "a.safetensors", model)
    with pytest.raises(
        CheckpointError, match=r"pos_embed \[1, 17, 192\] for \[1, 197, 192\].*; .*--num-classes 4; .*--img-size N"
    ):
        load(file, arch="vit_tiny_patch16_224")
    classifier = load(file, arch="vit_tiny_patch16_224", num_classes=4, img_size=96)
    assert "position embeddings resampled from 4 x 4 to 6 x 6 patches" in classifier.identity.notes
    assert classifier.identity.preprocessing.input_size == (96, 96)
    positions = classifier.network.pos_embed
    assert torch.equal(positions[:, 0], model.pos_embed[:, 0])
    grid = model.pos_embed[:, 1:].reshape(1, 4, 4, 192).permute(0, 3, 1, 2)
    bigger = (
        nn.functional.interpolate(grid, (6, 6), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(1, 36, 192)
    )
    torch.testing.assert_close(positions[:, 1:], bigger)
    same = load(file, arch="vit_tiny_patch16_224", num_classes=4, img_size=64)
    assert torch.equal(same.network.pos_embed, model.pos_embed)


def test_distilled_heads_are_averaged(tmp_path: Path, pixels: Tensor) -> None:
    model = network("deit_tiny_distilled_patch16_224")
    classifier = load(saved(tmp_path / "d.safetensors", model))
    assert "distilled" in classifier.identity.notes[0]
    tokens = model.forward_features(pixels)
    expected = (model.head(tokens[:, 0]) + model.head_dist(tokens[:, 1])) / 2
    assert torch.equal(classifier.network(pixels), expected)
    assert (model.head(tokens[:, 0]) - expected).abs().max() > 1e-3


def test_files_never_choose_code_or_other_files(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\ndef net(): pass\n")
    for arch in (f"{tmp_path}/evil.py:net", "os:getcwd", "hf-hub:timm/resnet18.a1_in1k", "nonsense"):
        identity = load(saved(tmp_path / "a.safetensors", network(), arch=arch)).identity
        assert identity.arch == "vit_tiny_patch16_224"
        assert any(f"names its architecture {arch!r}, which timm does not have" in note for note in identity.notes)
    for kwargs in ({"checkpoint_path": "/etc/passwd"}, {"pretrained_cfg": {"file": "x"}}):
        file = saved(tmp_path / "b.safetensors", network(), arch="vit_tiny_patch16_224", arch_kwargs=kwargs)
        with pytest.raises(ModelError, match=r"arch_kwargs holds .*; expected only the shape of the network"):
            load(file)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"mean": [1, 2]}, r"mean is \[1, 2\]; expected three finite numbers in \[0, 1\]; check --mean"),
        ({"std": [1, 0, 1]}, r"std is \[1, 0, 1\]; expected three finite numbers above 0"),
        ({"crop_pct": 7}, r"crop_pct is 7; expected a number in \[0.1, 1\]"),
        ({"interpolation": "bicubick"}, "unknown interpolation 'bicubick'; did you mean 'bicubic'"),
        ({"crop_mode": "centre"}, "unknown crop mode 'centre'; did you mean 'center'"),
        ({"num_classes": "[4]"}, r"num_classes is \[4\]; expected a whole number"),
        ({"arch_kwargs": [1]}, r"arch_kwargs is \[1\]; expected a JSON object"),
    ],
)
def test_bad_metadata_is_one_line(tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
    with pytest.raises((ModelError, CheckpointError), match=words):
        load(saved(tmp_path / "a.safetensors", network(), **metadata))


# --- timm, folders, the zoo ------------------------------------------------------------------------------------------


def test_timm_names_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    cnn = load("timm:resnet10t", pretrained=False, num_classes=3, img_size=64)
    assert (cnn.identity.attention, cnn.identity.attention_source, cnn.identity.num_classes) == ("none", "n/a", 3)
    assert cnn.identity.preprocessing.input_size == (64, 64)
    assert cnn(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    assert cnn.identity.weights == "random"
    again = load("timm:resnet10t", pretrained=False, num_classes=3, img_size=64)
    assert again.identity.sha256 == cnn.identity.sha256  # random weights, but the same ones
    create = timm.create_model
    monkeypatch.setattr("robustkit.models.architecture.held_weights", lambda arch: {})
    monkeypatch.setattr("timm.create_model", lambda name, pretrained, **options: create(name, **options))
    assert load("timm:resnet10t", num_classes=1000).identity.weights == "pretrained"
    with pytest.raises(ModelError, match="timm:resnet10t has 1000 classes, not 10: the head would"):
        load("timm:resnet10t", num_classes=10)
    monkeypatch.undo()
    with pytest.raises(ModelError, match=r"ResNet does not support attention formulas: .*; leave --attention out$"):
        load("timm:resnet10t", pretrained=False, attention="quest")
    with pytest.raises(ModelError, match="unknown architecture 'resnet10tt'; did you mean resnet10t"):
        load("timm:resnet10tt")
    with pytest.raises(ModelError, match="--arch vit_tiny_patch16_224 does not apply to timm:resnet10t"):
        load("timm:resnet10t", arch="vit_tiny_patch16_224")


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    monkeypatch.setattr("robustkit.models.specs.is_reachable", lambda address: True)
    monkeypatch.setattr("robustkit.models.architecture.is_reachable", lambda address: True)
    with pytest.raises(ModelError, match=r"hf-hub:timm/x could not be fetched \(no route to host\); check the name"):
        load("hf-hub:timm/x")
    monkeypatch.setattr("timm.create_model", no_network)
    with pytest.raises(
        ModelError, match=r"weights of 'resnet10t' could not be fetched \(no route to host\); .*--arch resnet10t"
    ):
        load("timm:resnet10t")


def test_timms_folder_layout(tmp_path: Path, pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(**TINY)
    folder = tmp_path / "my model"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"no config.json in it"):
        load(f"local-dir:{folder}")
    inner = {
        "mean": [0.1] * 3,
        "std": [0.2] * 3,
        "input_size": [3, 32, 32],
        "label_names": list("wxyz"),
        "crop_pct": 0.95,
    }
    shape = {key: value for key, value in TINY.items() if key != "num_classes"}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 4, "model_args": shape, "pretrained_cfg": inner}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"no weights next to config.json; expected model.safetensors or"):
        load(f"local-dir:{folder}")
    saved(folder / "model.safetensors", model, format="pt")
    classifier = load(f"local-dir:{folder}")
    assert (classifier.identity.name, classifier.identity.class_names) == ("my-model", ("w", "x", "y", "z"))
    assert classifier.identity.preprocessing.crop_pct == 0.95
    assert specs.find(f"local-dir:{folder}").metadata["input_size"] == [32, 32]
    assert torch.equal(classifier(pixels), model(Normalize([0.1] * 3, [0.2] * 3)(pixels)))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(folder))
    monkeypatch.setattr("robustkit.models.specs.is_reachable", lambda address: True)
    hub = load("hf-hub:me/tiny@main")
    assert (hub.identity.name, hub.identity.sha256) == ("tiny", classifier.identity.sha256)


def test_zoo_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "shapes-quest.safetensors", network(), attention="quest")
    entry = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (tmp_path / "checkpoints.json").write_text(json.dumps({"shapes-quest": entry}))
    monkeypatch.setattr(specs, "_zoo", lambda: tmp_path)
    assert load("zoo:shapes-quest").identity.name == "shapes-quest"
    with pytest.raises(ModelError, match="unknown zoo model 'shapes-qest'; did you mean 'shapes-quest'"):
        load("zoo:shapes-qest")


# --- the user's own factories ----------------------------------------------------------------------------------------

FACTORY = """
import torch
from torch import nn
from widths import width

def fixed(): return nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.Flatten(), nn.Linear(width * 64, 6))
def loose(): return nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 6))
def sized(num_classes=6): return nn.Sequential(*fixed()[:2], nn.Linear(width * 64, num_classes))
def config():
    model = fixed()
    model.default_cfg = {"mean": (.1, .2, .3), "std": (1, 1, 1), "input_size": (3, 32, 32), "crop_pct": 1.0}
    return model
def raises(): raise RuntimeError("no such thing")
def number(): return 3
def maps(): return nn.Conv2d(3, width, 4, 4)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "widths.py").write_text("width = 2\n")
    (tmp_path / "nets.py").write_text(FACTORY)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 2, 4, 4)
    for name, head in (("fixed", 2 * 64), ("loose", 2)):
        state = {f"0.{k}": v for k, v in convolution.state_dict().items()}
        linear = nn.Linear(head, 6)
        state |= {f"{2 if name == 'fixed' else 3}.{k}": v for k, v in linear.state_dict().items()}
        torch.save({"state_dict": state}, tmp_path / f"{name}.pth")
    torch.save(convolution.state_dict(), tmp_path / "maps.pth")
    return tmp_path


def test_own_factory_from_a_file(own: Path, pixels: Tensor) -> None:
    arch = f"{own}/nets.py:fixed"
    classifier = load(own / "fixed.pth", arch=arch, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    weights = torch.load(own / "fixed.pth")["state_dict"]
    normal = Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))(pixels)
    inner = nn.functional.conv2d(normal, weights["0.weight"], weights["0.bias"], stride=4).flatten(1)
    torch.testing.assert_close(classifier(pixels), inner @ weights["2.weight"].T + weights["2.bias"])
    identity = classifier.identity
    assert (identity.arch, identity.attention, identity.num_classes) == (arch, "none", 6)
    assert identity.preprocessing.input_size == (32, 32)
    assert "image size 32 x 32 found by trial; --img-size overrides it" in identity.notes
    bare = load(own / "fixed.pth", arch=arch).identity
    assert (bare.preprocessing.mean, bare.preprocessing.std) == ((0, 0, 0), (1, 1, 1))
    assert any(note.startswith("NO NORMALISATION: mean and std cannot be inferred") for note in bare.notes)
    known = load(own / "fixed.pth", arch=f"{own}/nets.py:config").identity
    assert (known.preprocessing.mean, known.preprocessing.crop_pct) == ((0.1, 0.2, 0.3), 1.0)
    assert known.notes == ("weights taken from 'state_dict'",)
    loose = load(own / "loose.pth", arch=f"{own}/nets.py:loose", img_size=40)
    assert loose.identity.preprocessing.input_size == (40, 40)


def test_files_of_two_folders_have_their_own_helpers(
    tmp_path: Path, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as for a user, whose Python keeps bytecode
    code = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn
from layers_of_mine import SCALE
@dataclass
class Sizes:
    classes: int = 4
class Net(nn.Module):
    def forward(self, x):
        return SCALE * x.mean((2, 3)).repeat(1, 2)[:, :4]
    mean: int
def build(**given):
    from layers_of_mine import SCALE as again
    assert again == SCALE and set(given) <= {"num_classes"}
    net = Net()
    net.w = nn.Parameter(pixels_of())
    return net
def pixels_of():
    import torch
    return torch.zeros(Sizes().classes)
"""
    digests = []
    for scale, name in ((1, "a"), (2, "b"), (3, "a")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "layers_of_mine.py").write_text(f"SCALE = {scale}\n")
        (tmp_path / name / "net.py").write_text(code)
        torch.save({"w": torch.zeros(4)}, tmp_path / "w.pth")
        arch = f"{tmp_path / name}/net.py:build"
        classifier = load(tmp_path / "w.pth", arch=arch, num_classes=4, img_size=32)
        torch.testing.assert_close(classifier(pixels)[:, :3], scale * pixels.mean((2, 3)))
        digests.append(classifier.identity.code_sha256)
    assert len(set(digests)) == 3 and "layers_of_mine" not in sys.modules
    (tmp_path / "a" / "net.py").write_text(code.replace("from layers_of_mine import SCALE\n", "SCALE = 3\n", 1))
    load(tmp_path / "w.pth", arch=f"{tmp_path / 'a'}/net.py:build", num_classes=4, img_size=32)


def test_a_factory_of_any_arguments_is_given_the_number_of_classes(tmp_path: Path) -> None:
    import torchvision

    torch.save(torchvision.models.squeezenet1_1(num_classes=7).state_dict(), tmp_path / "a.pth")
    arch = "torchvision.models:squeezenet1_1"
    assert load(tmp_path / "a.pth", arch=arch, num_classes=7, img_size=64).identity.num_classes == 7


def test_own_factory_from_a_module(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own)
    (own / "mypackage").mkdir()
    (own / "mypackage" / "inner.py").write_text(FACTORY)
    assert load("fixed.pth", arch="mypackage.inner:sized", num_classes=6).identity.num_classes == 6


@pytest.mark.parametrize(
    ("weights", "arch", "options", "words"),
    [
        ("loose", "nets.py:loose", {}, "Sequential takes images of any size, .* give --img-size N"),
        ("fixed", "nets.py:fixed", {"img_size": 64}, "Sequential fails on images of 64 x 64 .*; check --img-size"),
        ("fixed", "nets.py:fixed", {"num_classes": 5}, "gives 6 classes, not 5; check --num-classes"),
        ("fixed", "nets.py:sized", {"num_classes": 5}, r"2.weight \[6, 128\] for \[5, 128\]"),
        ("fixed", "nets.py:fxed", {}, "no function 'fxed' in .*nets.py; it has fixed"),
        ("fixed", "nots.py:fixed", {}, "no file .*nots.py; expected FILE.py:FUNCTION"),
        (
            "fixed",
            "broken.py:fixed",
            {},
            "cannot be imported .ModuleNotFoundError: No module named 'nowhere_to_be_found'.",
        ),
        ("fixed", "nets.py:raises", {}, r"raises\(\) raised RuntimeError: no such thing"),
        ("fixed", "nets.py:number", {}, r"number\(\) returned a int; expected a torch nn.Module"),
        ("maps", "nets.py:maps", {"img_size": 32}, r"Conv2d returned shape \(1, 2, 8, 8\); expected logits of shape"),
        ("fixed", "nets.py:fixed", {"attention": "quest"}, "Sequential does not support .*; leave --attention out$"),
    ],
)
def test_own_factories_fail_in_one_line(
    own: Path, weights: str, arch: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ModelError, CheckpointError), match=words) as caught:
        load(own / f"{weights}.pth", arch=f"{own}/{arch}", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["quest-s0/c.pth", "quest-s1/c.pth", "standard-s0/c.pth"], ["quest-s0", "quest-s1", "standard-s0"]),
        (["/runs/quest/s0/best/c.pth", "/runs/quest/s1/best/c.pth"], ["s0", "s1"]),
        (["/runs/quest/s0/best/c.pth", "/runs/standard/s0/best/c.pth"], ["quest", "standard"]),
        (["a/s0/c.pth", "a/s1/c.pth", "b/s0/c.pth"], ["a-s0", "a-s1", "b-s0"]),
        (["old/a/c.pth", "a/c.pth"], []),  # one differs in nothing that it has
        (["x/old/c.pth", "x/c.pth"], ["x-old", "x"]),
        (["a/c.pth", "a/c.pth"], []),
        (["a/c.pth", "A/c.pth"], []),
        (["c.pth", "c.pth"], []),
    ],
)
def test_files_of_one_name_are_called_by_what_differs_in_their_paths(paths: list[str], names: list[str]) -> None:
    assert differing_parts(paths) == names
    assert differing_parts(paths[::-1]) == names[::-1]


def test_checkpoints_of_one_name_get_others(tmp_path: Path) -> None:
    source = Path(robustkit.__file__).parent / "embedded" / "shapes-vit-quest.safetensors"
    places = [tmp_path / folder / name for folder in ("s0", "s1") for name in ("c.safetensors", "d.safetensors")]
    for place in places:
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(source)
    specs = [*map(str, places[:3]), str(places[0]), "zoo:shapes-vit-quest"]
    models = distinct_names([robustkit.load(spec) for spec in specs])
    assert [model.identity.name for model in models] == ["c", "d", "c-2", "c-3", "shapes-vit-quest"]  # one given twice
    models = distinct_names([robustkit.load(str(place)) for place in places])
    assert [model.identity.name for model in models] == ["s0-c", "s0-d", "s1-c", "s1-d"]
