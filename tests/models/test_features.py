"""Networks without their head: timm's, the user's own, the library's; headless files, and what has no features."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

import robustkit
from robustkit.errors import CheckpointError, ModelError

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ARGUMENTS: dict[str, Any] = {"img_size": 32, "patch_size": 8}
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 7), nn.GELU())
        self.last = last

    def forward(self, images):
        return self.last(self.body(images))

def headed():
    return Net(nn.Linear(7, 3))

def headless():
    return Net(nn.LayerNorm(7))

def scalar():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(3072), nn.AvgPool1d(3072))

def flat():
    return nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(0))
"""


def vit(arch: str = "vit_tiny_patch16_224", **more: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(arch, **ARGUMENTS, **more).eval()


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_headless_file_gives_what_is_before_the_head_of_the_whole_one(tmp_path: Path, pool: str) -> None:
    network = vit(global_pool=pool, num_classes=4)
    expected = network.forward_head(network.forward_features((IMAGES - 0.5) / 0.5), pre_logits=True).detach()
    save_file(network.state_dict(), tmp_path / "whole.safetensors")
    network.reset_classifier(0)
    save_file(network.state_dict(), tmp_path / "bare.safetensors")
    for name in ("whole", "bare"):
        model = robustkit.load(tmp_path / f"{name}.safetensors", features=True)
        torch.testing.assert_close(model(IMAGES), expected, rtol=0, atol=0)
        identity = model.identity
        assert identity.num_classes == 0 and "features: its output before the classifier, 192 numbers" in identity.notes
    with pytest.raises(CheckpointError, match=r"no classifier \(head.weight\); of features alone robustkit features"):
        robustkit.load(tmp_path / "bare.safetensors")


@pytest.mark.parametrize("arch", ["deit_tiny_distilled_patch16_224", "convnext_atto", "resnet18"])
def test_named_architectures_need_no_number_of_classes(tmp_path: Path, arch: str) -> None:
    more = ARGUMENTS if "deit" in arch else {}
    torch.manual_seed(0)
    network = timm.create_model(arch, num_classes=4, **more).eval()
    said = {"arch": arch, "arch_kwargs": json.dumps(more), "input_size": "[32, 32]"}
    save_file(network.state_dict(), tmp_path / "m.safetensors", metadata=said)
    found = robustkit.load(tmp_path / "m.safetensors", features=True)
    network.reset_classifier(0)
    torch.testing.assert_close(found.network(IMAGES), network(IMAGES).detach(), rtol=1e-5, atol=1e-6)


def test_of_the_users_own_network_the_last_linear_layer_is_taken_off(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    for name, note in (("headed", "what last takes, 7 numbers"), ("headless", "the network's own output")):
        torch.manual_seed(0)
        network = scope[name]()
        save_file(network.state_dict(), tmp_path / "m.safetensors")
        given: dict[str, Any] = {"arch": f"{tmp_path / 'net.py'}:{name}", "mean": [0.5] * 3, "std": [0.5] * 3}
        model = robustkit.load(tmp_path / "m.safetensors", **given, img_size=32, features=True)
        body = network.body((IMAGES - 0.5) / 0.5)
        torch.testing.assert_close(model(IMAGES), (body if name == "headed" else network.last(body)).detach())
        assert any(note in each for each in model.identity.notes)


@pytest.mark.parametrize("name", ["scalar", "flat"])
def test_a_network_without_features_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "net.py").write_text(NET)
    scope: dict[str, Any] = {}
    exec(NET, scope)
    torch.save(scope[name]().state_dict(), tmp_path / "m.pth")
    given: dict[str, Any] = {"arch": f"{tmp_path / 'net.py'}:{name}", "mean": [0.5] * 3, "std": [0.5] * 3}
    with pytest.raises(ModelError, match=r"m: no features: shape .* for one image; expected \(1, D\), D at least 2"):
        robustkit.load(tmp_path / "m.pth", **given, img_size=32, features=True)


LIBRARY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 64}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


@pytest.mark.parametrize("name", ["dinov2", "vit", "vit without a pooler", "classifier"])
def test_models_of_the_library_with_and_without_a_head(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"image_size": 32, "patch_size": 8}
    vits = transformers.ViTConfig(**LIBRARY, **size)
    made: dict[str, Any] = {
        "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**LIBRARY, **size)),
        "vit": lambda: transformers.ViTModel(vits),
        "vit without a pooler": lambda: transformers.ViTModel(vits, add_pooling_layer=False),
        "classifier": lambda: transformers.ViTForImageClassification(vits),
    }
    model = made[name]().eval()
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    given = model.vit if name == "classifier" else model
    with torch.no_grad():
        found = given(pixel_values=(IMAGES - 0.5) / 0.5)
    expected: Tensor = found.pooler_output if name in ("vit", "dinov2") else found.last_hidden_state[:, 0]
    loaded = robustkit.load(f"hf:{tmp_path / 'm'}", features=True)
    torch.testing.assert_close(loaded(IMAGES), expected, rtol=1e-4, atol=1e-5)
    assert loaded.identity.num_classes == 0
