"""Networks with kernels of whole numbers: built by the user's function, or exported; what applies to them."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import robustkit
from robustkit.errors import ModelError
from robustkit.models.checkpoint import sha256
from robustkit.models.identity import has_gradients
from robustkit.pipeline.audit import audit

pytestmark = pytest.mark.usefixtures("one_thread")
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
FACTORY = """
import warnings
import timm
import torch
from torch.ao.quantization import quantize_dynamic

SHAPE = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3, "num_classes": 10}

def whole(state_dict):
    network = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    network.load_state_dict(state_dict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantize_dynamic(network, {torch.nn.Linear}, dtype=torch.qint8)

def headless(state_dict):
    network = whole(state_dict)
    network.head = torch.nn.Linear(96, 10)
    network.head.load_state_dict({name: state_dict["head." + name] for name in ("weight", "bias")})
    return network
"""


@pytest.fixture
def float_file(tmp_path: Path) -> Path:
    (tmp_path / "int8.py").write_text(FACTORY)
    state = robustkit.load("zoo:shapes-vit-standard").network.state_dict()
    torch.save({"model": state}, tmp_path / "vit.pth")
    return tmp_path / "vit.pth"


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = robustkit.load("zoo:shapes-vit-standard").network
        return torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("function", ["whole", "headless"])
def test_a_factory_that_quantises_gets_the_weights(float_file: Path, function: str) -> None:
    arch = f"{float_file.parent}/int8.py:{function}"
    found, before = robustkit.load(float_file, arch=arch, **HALF), robustkit.load("zoo:shapes-vit-standard")
    network = quantised()
    network.head = network.head if function == "whole" else before.network.head
    images = torch.rand(6, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(found(images), network((images - 0.5) / 0.5), rtol=0, atol=0)
        assert not torch.allclose(found(images), before(images), rtol=0, atol=1e-4)  # it is quantised
    assert f"{arch} put the weights in itself" in found.identity.notes
    assert found.identity.code_sha256 and found.identity.sha256 == sha256(float_file)
    assert has_gradients(before) and not has_gradients(found)  # of the other function the head alone has some


def test_the_attack_asks_for_answers_alone(float_file: Path, tmp_path: Path) -> None:
    asked = {"data_dir": "embedded:shapes", "limit": 1, "setup_check": False, "device": "cpu", "evidence": "none"}
    asked |= {"eps": "128/255", "model": {"arch": f"{float_file.parent}/int8.py:headless", **HALF}}
    run = audit([float_file], out=tmp_path / "run", cams="auto", **asked)
    assert [*run.manifest.conditions][:3] == ["clean", "square(eps=128/255,queries=5000)", "cam(rise)"]
    with pytest.raises(ModelError, match="needs gradients, which vit lacks; expected attacks that ask"):
        audit([float_file], out=tmp_path / "refused", attacks="pgd", **asked)


def test_a_quantised_network_in_memory_is_known_by_its_parts() -> None:
    network = quantised()
    first = robustkit.load(network, img_size=64, **HALF).identity
    assert first.sha256 == robustkit.load(quantised(), img_size=64, **HALF).identity.sha256
    network.blocks[0].mlp.fc1.set_weight_bias(network.blocks[1].mlp.fc1.weight(), network.blocks[0].mlp.fc1.bias())
    assert first.sha256 != robustkit.load(network, img_size=64, **HALF).identity.sha256


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dynamic", "QDQ", "QOperator"])
def test_what_onnxruntime_quantised_is_run_as_onnxruntime_runs_it(tmp_path: Path, kind: str) -> None:
    why = "onnxruntime is not installed (pip install .[onnx]), or its tools are too old for what torch writes"
    runtime = pytest.importorskip("onnxruntime", "1.30", reason=why)
    pytest.importorskip("robustkit.slices.graphs")
    tools = importlib.import_module("onnxruntime.quantization")
    before, images = robustkit.load("zoo:shapes-vit-standard"), torch.rand(6, 3, 64, 64)
    source, path, seen = tmp_path / "float.onnx", tmp_path / "int8.onnx", before.normalize(images).numpy()
    options = {"dynamo": True, "verbose": False, "external_data": False, "input_names": ["images"]}
    rows = ({0: torch.export.Dim("rows", max=1 << 20)},)
    torch.onnx.export(before.network, (torch.rand(3, 3, 64, 64),), source, dynamic_shapes=rows, **options)
    if kind == "dynamic":
        tools.quantize_dynamic(source, path)
    else:
        reader = SimpleNamespace(get_next=iter([{"images": seen}, None]).__next__, set_range=None)
        tools.quantize_static(source, path, reader, quant_format=tools.QuantFormat[kind])
    found = robustkit.load(f"onnx:{path}", **HALF)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    torch.testing.assert_close(found(images), torch.from_numpy(session.run(None, {"images": seen})[0]))
    assert found.identity.attention == "other" and not has_gradients(found)
