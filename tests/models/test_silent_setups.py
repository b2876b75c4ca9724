"""Files as people hold them, which do not say how their model was trained: a right number, or a flag that says so."""

import argparse
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from figures import raised
from places import SHARED
from safetensors.torch import load_file, save_file
from torch import Tensor

import robustkit
from robustkit.report.run import Run

EMBEDDED = Path(robustkit.__file__).parent / "embedded"
NET = """import timm
def build(num_classes=10):
    return timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=3,
                             num_classes=num_classes)
"""
FORMULAS = ("standard", "quest", "elliptical", "elliptical-quest")
OTHER = {"standard": "quest", "quest": "standard", "elliptical": "elliptical_quest", "elliptical-quest": "elliptical"}


def under(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights.items()}


def deit(formula: str, classes: int = 10, size: int = 64) -> argparse.Namespace:
    """The arguments that DeiT's script and those built on it save."""
    model = f"deit_tiny_patch16_224_{formula.replace('-', '_')}"
    return argparse.Namespace(model=model, nb_classes=classes, input_size=size, eval_crop_ratio=1.0, data_set="IMNET")


Wrapping = Callable[[Mapping[str, Tensor], str], tuple[str, Any]]
"""From weights and their formula to a file name and its contents."""
WRAPPINGS: dict[str, Wrapping] = {
    "bare": lambda w, f: ("weights.pth", dict(w)),
    "ddp": lambda w, f: ("checkpoint.pth", {"model": under("module.", w), "epoch": 3}),
    "lightning": lambda w, f: ("last.ckpt", {"state_dict": under("model.", w), "hyper_parameters": {"lr": 0.1}}),
    "file name": lambda w, f: (f"vit_{f.replace('-', '_')}.pth", {"model": dict(w)}),
    "wrong file name": lambda w, f: (f"vit_{OTHER[f]}.pth", {"model": dict(w)}),
    "deit": lambda w, f: ("checkpoint.pth", {"model": dict(w), "args": deit(f)}),  # means ImageNet's mean, wrongly
    "timm": lambda w, f: (
        "model_best.pth.tar",
        {"state_dict": dict(w), "args": argparse.Namespace(model="vit", mean=[0.5] * 3, std=[0.5] * 3, crop_pct=1.0)},
    ),
    "argument": lambda w, f: ("run.pth", {"model": dict(w), "args": {"attention": f.upper(), "num_classes": 10}}),
    "beit": lambda w, f: (
        "checkpoint-best.pth",
        {"model": dict(w), "args": argparse.Namespace(imagenet_default_mean_and_std=False, input_size=64)},
    ),
    "safetensors": lambda w, f: ("model.safetensors", dict(w)),
}


@cache
def weights_of(formula: str) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in load_file(EMBEDDED / f"shapes-vit-{formula}.safetensors").items()}


def audit(checkpoint: str, out: Path, **options: Any) -> Run:
    given: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 160, "attacks": "none", "browse": 0}
    return robustkit.audit([checkpoint], out=out, device="cpu", say=lambda line: None, **given | options)


def records(run: Run) -> pd.DataFrame:
    paths = sorted((run.path / "records").rglob("*.parquet"))
    return pd.concat([pd.read_parquet(path) for path in paths]).set_index("sample_id").sort_index()


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pd.DataFrame]:
    place = tmp_path_factory.mktemp("right")
    return cache(lambda formula: records(audit(f"zoo:shapes-vit-{formula}", place / formula, setup_check=False)))


def check(run: Run, truth: pd.DataFrame, options: Mapping[str, str]) -> str:
    """Return `right`, `flagged` or `silent`. options: what would make the numbers right, by the part that is wrong."""
    found = records(run)
    findings = raised(run.results())
    same = np.allclose(found["nll"], truth["nll"], atol=1e-3)
    named = all(any(option in each.text for each in findings) for option in options.values())
    if same:
        contradicted = any("does not fit" in each.text for each in findings)
        return "contradicted" if contradicted else "right"
    return "flagged" if findings and named else f"silent: {findings}"


FOUND = {
    ("quest", "ddp"): "attention was assumed and does not fit: quest fits better than standard",
    ("standard", "wrong file name"): "attention (quest) was assumed: not confirmed on 160 images (standard is ahead)",
    ("quest", "deit"): "normalisation was assumed and does not fit: 0.5 / 0.5 fits better than ImageNet",
}
FAST = {("standard", "wrong file name"), ("elliptical-quest", "argument")}  # a flag, and the right number


@pytest.mark.parametrize(
    ("formula", "wrapping"),
    [
        pytest.param(formula, name, marks=[] if (formula, name) in FAST else [pytest.mark.slow])
        for formula in FORMULAS
        for name in WRAPPINGS
    ],
)
def test_a_file_that_does_not_say_gives_the_right_number_or_a_flag(
    tmp_path: Path, right: Callable[[str], pd.DataFrame], formula: str, wrapping: str
) -> None:
    (tmp_path / "net.py").write_text(NET)
    name, content = WRAPPINGS[wrapping](weights_of(formula), formula)
    save = save_file if name.endswith(".safetensors") else torch.save
    save(content, tmp_path / name)
    run = audit(str(tmp_path / name), tmp_path / "run", model={"arch": f"{tmp_path}/net.py:build"})
    entry = run.manifest.checkpoints[0]
    options = {} if entry.attention == formula else {"attention": "--attention"}
    if entry.preprocessing.mean != (0.5, 0.5, 0.5):
        options["normalisation"] = "--mean"
    outcome = check(run, right(formula), options)
    assert outcome in ("right", "flagged"), outcome
    stated = {"argument": "metadata", "file name": "name", "wrong file name": "name", "deit": "name"}
    assert entry.attention_source == stated.get(wrapping, "default")
    if (formula, wrapping) in FOUND:
        assert any(each.text.startswith(FOUND[formula, wrapping]) for each in raised(run.results()))
    if wrapping in ("argument", "file name"):
        assert entry.attention == formula and outcome == "right"


VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
RESNET = SHARED / "weights" / "cifar10" / "resnet20-12fca82f.th"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
MAE = argparse.Namespace(model="vit_tiny_patch16", input_size=224, nb_classes=1000, global_pool=False)
OF_VIT: dict[str, tuple[str, Any, str]] = {  # file name, what stands next to the weights, the part that is wrong
    "bare": ("weights.pth", None, ""),
    "deit": ("checkpoint.pth", deit("standard", 1000, 224), "--mean"),
    "deit, quest": ("checkpoint.pth", deit("quest", 1000, 224), "--mean"),
    "mahala": ("checkpoint.pth", argparse.Namespace(model="deit_mahala_overlayers_tiny_patch16_224"), "--mean"),
    "mae": ("checkpoint.pth", MAE, "--mean"),
    "timm": ("best.pth", argparse.Namespace(model="vit_tiny_patch16_224", mean=None, crop_pct=0.9), ""),
    "named quest": ("vit-quest.pth", None, "--attention"),
}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not VIT.exists(), reason=f"no {VIT}")
@pytest.mark.parametrize("name", OF_VIT)
def test_the_real_vit_in_files_that_do_not_say(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    file, arguments, wrong = OF_VIT[name]
    content = {"model": under("module.", load_file(VIT))} | ({} if arguments is None else {"args": arguments})
    torch.save(content, tmp_path / file)
    data = {"data_dir": str(SHARED / "data" / "imagenet-val" / "val"), "limit": 96}
    stated = {"attention": "standard", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9}
    truth = records(audit(str(VIT), tmp_path / "right", model=stated, setup_check=False, **data))
    run = audit(str(tmp_path / file), tmp_path / "run", **data)
    assert check(run, truth, {"part": wrong} if wrong else {}) == ("flagged" if wrong else "right")


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not RESNET.exists(), reason=f"no {RESNET}")
@pytest.mark.parametrize(("kept", "options", "wrong"), [(False, {}, ""), (True, {}, ""), (False, IMAGENET, "")])
def test_the_real_resnet_in_files_that_do_not_say(
    tmp_path: Path, kept: bool, options: dict[str, Any], wrong: str
) -> None:
    """kept: whether the file holds the normalisation as tensors, as RobustBench's do."""
    weights = {
        name.removeprefix("module."): tensor
        for name, tensor in torch.load(RESNET, map_location="cpu")["state_dict"].items()
    }
    tensors = {f"normalize.{name}": torch.tensor(values).view(1, 3, 1, 1) for name, values in IMAGENET.items()}
    torch.save(under("model.", weights) | (tensors if kept else {}), tmp_path / "net.pt")
    arch = {"arch": f"{Path(__file__).parents[1]}/support/cifar_resnets.py:resnet20", "img_size": 32}
    data = {"data_dir": str(SHARED / "data" / "cifar10-test.zip"), "limit": 200}
    truth = records(audit(str(RESNET), tmp_path / "right", model=arch | IMAGENET, **data))
    assert truth["correct"].mean() > 0.88
    run = audit(str(tmp_path / "net.pt"), tmp_path / "run", model=arch | options, **data)
    assert check(run, truth, {"part": wrong} if wrong else {}) == ("flagged" if wrong else "right")


def test_a_network_that_timm_built_states_no_normalisation(tmp_path: Path) -> None:
    """timm's own configuration comes with any network that timm builds; the user's code has said nothing."""
    (tmp_path / "net.py").write_text(NET)
    torch.save(weights_of("standard"), tmp_path / "w.pth")
    entry = robustkit.load(tmp_path / "w.pth", arch=f"{tmp_path}/net.py:build").identity
    assert entry.preprocessing_source["mean"] == "architecture" and entry.preprocessing.mean == (0.5,) * 3
    (tmp_path / "own.py").write_text(
        f"{NET}def own(): net = build(); net.default_cfg = net.pretrained_cfg = CFG; return net\n"
        "CFG = {'mean': (0.5,) * 3, 'std': (0.5,) * 3}\n"
    )
    assert (
        robustkit.load(tmp_path / "w.pth", arch=f"{tmp_path}/own.py:own").identity.preprocessing_source["mean"]
        == "code"
    )
