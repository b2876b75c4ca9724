"""The weights of a network in files as people hold them: wrapped, prefixed, averaged, next to other tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from places import SHARED, SUPPORT
from safetensors.torch import save_file
from torch import Tensor, nn

from robustkit import load
from robustkit.errors import CheckpointError, RobustkitError
from robustkit.models.checkpoint import Checkpoint, load_into, read, select_network

pytestmark = pytest.mark.usefixtures("one_thread")

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
State = dict[str, Tensor]


class Small(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.last_linear = nn.Linear(4, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.last_linear(self.blocks(self.bn(self.conv(images)).mean((2, 3))))  # type: ignore[no-any-return]


RIGHT: State = {name: torch.randn(t.shape) if t.ndim else torch.tensor(5) for name, t in Small().state_dict().items()}
OTHER: State = {name: tensor + 1 for name, tensor in RIGHT.items()}
PARAMETERS = [name for name, _ in Small().named_parameters()]


def under(prefix: str, tensors: State = RIGHT) -> State:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def pixels(mean: str, std: str, shape: tuple[int, ...] = (1, 3, 1, 1), scale: float = 1) -> State:
    return {name: scale * torch.tensor(v).reshape(shape) for name, v in ((mean, MEAN), (std, STD))}


def some(*names: str) -> State:
    return dict.fromkeys(names, torch.ones(2, 2))


def midway(word: str) -> State:
    return {re.sub(r"^(blocks|bn)\.", rf"\1.{word}.", name): tensor for name, tensor in RIGHT.items()}


def shadow(tensors: State = RIGHT) -> State:
    return {name: tensors[name] for name in PARAMETERS}


LIGHTNING = {"epoch": 3, "pytorch-lightning_version": "2.1", "optimizer_states": [{"state": {0: some("exp_avg")}}]}
FITS: dict[str, tuple[Any, str, str]] = {
    # self-distillation
    "iBOT": (
        {
            "student": {**under("module.backbone.", OTHER), **some("module.head.mlp.0.weight", "module.head.center")},
            "teacher": {**under("backbone."), **some("head.mlp.0.weight")},
            "ibot_loss": some("center"),
            "epoch": 3,
        },
        "teacher",
        "the teacher is used, not the student; to evaluate 'student.module.backbone', save it alone",
    ),
    "DINOv2, FSDP": (
        {"model": {**under("student.backbone.", OTHER), **under("teacher.backbone."), **some("teacher.dino_head.w")}},
        "model",
        "prefix 'teacher.backbone.' taken off",
    ),
    "DINOv2, exported": (
        {"teacher": {**under("backbone."), **some("dino_head.w", "ibot_head.w")}},
        "teacher",
        "ignored",
    ),
    "mean teacher in Lightning": (
        {"state_dict": {**under("student_model.net.", OTHER), **under("teacher_model.net.")}, **LIGHTNING},
        "state_dict",
        "the teacher is used",
    ),
    "distilled from a larger network": (
        {"teacher": {name: torch.ones(9, 9) for name in RIGHT}, "student": RIGHT},
        "student",
        "ignored: teacher.conv.weight",
    ),
    # prefixes, of one part of a pipeline
    "backbone.": ({"model": under("backbone.")}, "model", "prefix 'backbone.'"),
    "net. and a head of a task": (
        {**under("net."), **some("projector.0.weight")},
        "bare",
        "ignored: projector.*.weight",
    ),
    "encoder. in Lightning": ({"state_dict": under("encoder."), **LIGHTNING}, "state_dict", "prefix 'encoder.'"),
    "detector's backbone": (
        {**under("module.backbone.body."), **some("module.rpn.w")},
        "bare",
        "'module.backbone.body.'",
    ),
    # Lightning, and training pipelines
    "criterion": (
        {"state_dict": {**under("model."), **some("criterion.weight")}},
        "state_dict",
        "ignored: state_dict.criterion.weight",
    ),
    "metrics": (
        {"state_dict": {**under("model."), **some("train_acc.confmat", "val.f1.tp")}},
        "state_dict",
        "val.f1.tp",
    ),
    "bare, with a loss": ({**RIGHT, **some("criterion.weight", "loss_fn.center", "mask_token")}, "bare", "mask_token"),
    "with an average": (
        {"state_dict": {**under("model."), **under("ema_model.module.", OTHER)}, **LIGHTNING},
        "state_dict",
        "EMA weights under 'state_dict.ema_model' ignored; --use-ema uses them",
    ),
    "nested mappings": (
        {"state": {"network": under("module."), "head": some("w")}},
        "state.network",
        "ignored: state.head.w",
    ),
    # wrappers inside names
    "_orig_mod in the middle": ({"model": under("module.", midway("_orig_mod"))}, "model", "prefix 'module.'"),
    "DataParallel of a part": ({"state_dict": midway("module")}, "state_dict", ""),
    "FSDP and checkpointing": (midway("_fsdp_wrapped_module._checkpoint_wrapped_module"), "bare", ""),
    # copies
    "one network under two names": (
        {"model": {**under("module.model."), **under("module.attacker.model.")}},
        "model",
        "prefix 'module.model.'",
    ),
    "one mapping under two names": ({"model": RIGHT, "state_dict": RIGHT, "net": dict(RIGHT)}, "model", "'model'"),
}


def saved(tmp_path: Path, content: Any, use_ema: bool = False) -> Checkpoint:
    torch.save(content, tmp_path / "a.pth")
    return read(tmp_path / "a.pth", use_ema=use_ema)


def is_right(found: Checkpoint, wanted: State = RIGHT) -> bool:
    network = Small()
    load_into(network, found)
    return all(torch.equal(tensor, wanted[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("case", FITS)
def test_the_part_that_is_the_network_is_found(tmp_path: Path, case: str) -> None:
    content, weights, words = FITS[case]
    found = select_network(saved(tmp_path, content), Small().state_dict())
    assert is_right(found)
    assert found.weights == weights
    assert words in "; ".join(found.notes)


@pytest.mark.parametrize(
    ("extra", "stem"),
    [
        (pixels("module.normalizer.new_mean", "module.normalizer.new_std", (3, 1, 1)), "module.model."),  # MadryLab
        (
            {
                **pixels("module.normalizer.new_mean", "module.normalizer.new_std", (3, 1, 1)),
                **pixels("module.attacker.normalize.new_mean", "module.attacker.normalize.new_std", (3, 1, 1)),
                **under("module.attacker.model."),
            },
            "module.model.",
        ),
        (pixels("normalize.mean", "normalize.std"), "model."),  # RobustBench
        (pixels("0.mean", "0.std", (3,)), "1."),
        (pixels("model.0._orig_mod.mean", "model.0._orig_mod.std"), "model.1."),
        (pixels("mu", "sigma"), ""),
        (pixels("pixel_mean", "pixel_std", (3, 1, 1), 255), "backbone."),
    ],
)
def test_a_normalisation_in_the_file_is_read_from_it(tmp_path: Path, extra: State, stem: str) -> None:
    found = select_network(saved(tmp_path, {"model": {**under(stem), **extra}}), Small().state_dict())
    assert is_right(found)
    assert {name: pytest.approx(found.metadata[name]) for name in ("mean", "std")} == {
        "mean": list(MEAN),
        "std": list(STD),
    }
    assert found.metadata_source == {"mean": "weights", "std": "weights"}
    assert "mean 0.4914, 0.4822, 0.4465 and std 0.2471, 0.2435, 0.2616 from the tensors" in "; ".join(found.notes)


def test_a_normalisation_is_not_applied_twice_nor_guessed(tmp_path: Path) -> None:
    inside = nn.Sequential(nn.Module(), Small())
    for name, values in (("mean", MEAN), ("std", STD)):
        inside[0].register_buffer(name, torch.tensor(values))
    found = select_network(saved(tmp_path, {**under("1."), **pixels("0.mean", "0.std", (3,))}), inside.state_dict())
    assert found.metadata == {}  # the network normalises by itself
    assert load_into(inside, found) == ()
    two = {**under("model."), **pixels("a.mean", "a.std"), **pixels("b.mean", "b.std", scale=0.5)}
    found = select_network(saved(tmp_path, two), Small().state_dict())
    assert found.metadata == {}
    assert "different normalisations (a.mean, b.mean), so none is used; give --mean and --std" in "; ".join(found.notes)
    arguments = {"args": {"mean": [0.5, 0.5, 0.5]}, "model": {**under("1."), **pixels("0.mean", "0.std")}}
    found = select_network(saved(tmp_path, arguments), Small().state_dict())
    assert found.metadata["mean"] == list(MEAN)
    assert "take precedence over the mean and std that the file names" in found.notes[-1]
    found = select_network(saved(tmp_path, under("1.")), Small().state_dict())  # a Normalize without tensors
    assert "what came before '1.' in the Sequential is not in the file; give --mean and --std" in found.notes[-1]


@pytest.mark.parametrize(
    ("content", "weights"),
    [
        ({"model": OTHER, "swa_model": {"n_averaged": torch.tensor(3), **under("module.")}}, "swa_model"),
        ({"model": OTHER, "averaged_model": RIGHT}, "averaged_model"),
        ({"model": OTHER, "ema": {"decay": 0.9, "shadow": RIGHT}}, "ema.shadow"),
        ({"model": OTHER, "ema": {"module": RIGHT, "updates": 7}}, "ema.module"),
        ({"net": OTHER, "net_avg": under("module._orig_mod.")}, "net_avg"),
        ({"state_dict": {**under("model.", OTHER), **under("model_ema.")}}, "state_dict"),
        ({"trainer": {"network": OTHER, "polyak_network": RIGHT}}, "trainer.polyak_network"),
    ],
)
def test_averaged_weights_are_named_and_taken_when_asked(tmp_path: Path, content: Any, weights: str) -> None:
    plain = select_network(saved(tmp_path, content), Small().state_dict())
    assert is_right(plain, OTHER)
    assert re.search(r"EMA weights under '.*' ignored; --use-ema uses them", "; ".join(plain.notes))
    averaged = select_network(saved(tmp_path, content, use_ema=True), Small().state_dict())
    assert is_right(averaged)
    assert averaged.weights == weights


def test_averages_of_parameters_alone(tmp_path: Path) -> None:
    content = {"model": OTHER, "ema": {"shadow": shadow()}}
    found = select_network(saved(tmp_path, content, use_ema=True), Small().state_dict())
    assert is_right(found, {**OTHER, **shadow()})
    assert "3 running statistics taken from the plain weights, since the average has none" in found.notes
    listed = {"model": RIGHT, "ema": {"shadow_params": list(shadow(OTHER).values())}}
    found = select_network(saved(tmp_path, listed), Small().state_dict())
    assert is_right(found)
    assert "averaged weights under 'ema.shadow_params' ignored: a list without names is not supported" in found.notes
    with pytest.raises(CheckpointError, match=r"has no EMA weights .*'ema.shadow_params' is a list without names"):
        select_network(saved(tmp_path, listed, use_ema=True), Small().state_dict())


@pytest.mark.parametrize(
    "content",
    [
        {"model": RIGHT, "best_model": OTHER},
        {"state_dict": {**under("encoder_q."), **under("encoder_k.", OTHER)}},
        {**under("online."), **under("target.", OTHER)},
        {"model": {**under("module.model."), **under("module.attacker.model.", OTHER)}},
    ],
)
def test_two_sets_that_fit_equally_are_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"2 sets of weights fit equally.*: '.*', '.*'; save only the intended "
        r"one",
    ):
        select_network(saved(tmp_path, content), Small().state_dict())


@pytest.mark.parametrize(
    "content",
    [
        some("base_model.model.blocks.0.lora_A.weight", "base_model.model.blocks.0.lora_B.weight"),
        {"state_dict": {**under("base_model.model."), **some("base_model.model.blocks.0.lora_A.default.weight")}},
        {**RIGHT, **some("blocks.0.lora_A", "blocks.0.lora_B")},  # loralib
        some("lora_unet_blocks_0.lora_down.weight", "lora_unet_blocks_0.lora_up.weight"),
        some("base_model.model.blocks.0.hada_w1_a", "base_model.model.blocks.0.ia3_l"),
    ],
)
def test_adapters_are_refused_by_name(tmp_path: Path, content: Any) -> None:
    with pytest.raises(CheckpointError, match=r"an adapter .*; merge it first: model.merge_and_unload"):
        select_network(saved(tmp_path, content), Small().state_dict())
    save_file({k: v.clone() for k, v in some("a.lora_A.weight").items()}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for spec in (f"hf:{tmp_path}", f"{tmp_path}/adapter_model.safetensors"):
        with pytest.raises(RobustkitError, match="merge it first"):
            load(spec)


def test_a_tensor_that_the_network_lacks_is_not_passed_by(tmp_path: Path) -> None:
    """A part of another network, such as a norm before the blocks, is no part of a pipeline."""
    for extra in ("norm_pre.weight", "pre_logits.fc.weight", "blocks.0.qk_scale"):
        with pytest.raises(CheckpointError, match="1 unexpected: " + re.sub(r"\.0\.", r"..\.", extra)):
            load_into(Small(), saved(tmp_path, {"model": {**RIGHT, **some(extra)}}))


@pytest.mark.parametrize("wrap", [under, lambda prefix: {"state_dict": {**under(prefix), **some("criterion.weight")}}])
def test_another_number_of_classes_names_its_option(tmp_path: Path, wrap: Callable[[str], Any]) -> None:
    for prefix in ("", "1.", "module.net."):
        with pytest.raises(CheckpointError, match=r"the file has 3 classes: --num-classes 3$"):
            load_into(Small(7), saved(tmp_path, wrap(prefix)))


def vit() -> nn.Module:
    kwargs = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_classes": 7}
    return timm.create_model("vit_tiny_patch16_224", **kwargs)  # type: ignore[arg-type]


def wrappings(state: State) -> Iterator[tuple[str, Any]]:
    yield "Sequential(Normalize, net)", {**under("1.", state), **pixels("0.mean", "0.std")}
    yield (
        "MadryLab",
        {
            "model": {
                **under("module.model.", state),
                **under("module.attacker.model.", state),
                **pixels("module.normalizer.new_mean", "module.normalizer.new_std"),
            },
            "epoch": 3,
        },
    )
    yield (
        "iBOT",
        {
            "student": under("module.backbone.", {name: tensor + 1 for name, tensor in state.items()}),
            "teacher": {**under("backbone.", state), **some("backbone.masked_embed", "head.last_layer.weight_v")},
        },
    )
    yield "Lightning", {"state_dict": {**under("net._orig_mod.", state), **some("criterion.weight")}, **LIGHTNING}
    yield "encoder", {"epoch": 3, "state": {"encoder": state}}


def test_a_vit_is_guessed_from_the_part_that_is_one(tmp_path: Path) -> None:
    network = vit().eval()
    state = network.state_dict()
    images = torch.rand(2, 3, 32, 32)
    for case, content in wrappings(state):
        torch.save(content, tmp_path / "a.pth")
        found = load(tmp_path / "a.pth")
        shown = found.identity.preprocessing
        with torch.no_grad():
            assert torch.equal(found(images), network(found.normalize(images))), case
        stated = case in ("Sequential(Normalize, net)", "MadryLab")
        assert (shown.mean == pytest.approx(MEAN)) == stated, case
        assert found.identity.metadata.get("std") == (list(STD) if stated else None), case
    two = {"model": {**under("a.", state), **under("b.", vit().state_dict())}}
    torch.save(two, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"2 sets of weights fit equally.*'model.a', 'model.b'"):
        load(tmp_path / "a.pth")
    small = timm.create_model("vit_small_patch16_224", img_size=32, depth=2, num_classes=7)
    torch.save({"student": state, "teacher": small.state_dict()}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"2 sets of weights fit equally.*'student', 'teacher'"):
        load(tmp_path / "a.pth")  # no average, but another network
    (tmp_path / "net.py").write_text(
        "import timm\nmake = lambda: timm.create_model('vit_small_patch16_224', img_size=32, depth=2, num_classes=7)\n"
    )
    assert load(tmp_path / "a.pth", arch=f"{tmp_path}/net.py:make").identity.weights == "teacher"


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real weights of ../shared")
@pytest.mark.parametrize(
    "which", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors", "cifar10/resnet20-12fca82f.th"]
)
def test_real_weights_in_every_wrapping_give_the_same_logits(tmp_path: Path, which: str) -> None:
    file = SHARED / "weights" / which
    options: dict[str, Any] = {"arch": f"{SUPPORT / 'cifar_resnets.py'}:resnet20"} if which.endswith(".th") else {}
    plain = load(file, **options)
    size = plain.identity.preprocessing.input_size
    normalised = torch.randn(2, 3, *size)
    with torch.no_grad():
        wanted = plain.network(normalised)
    for case, content in wrappings(read(file).tensors):
        torch.save(content, tmp_path / "a.pth")
        found = load(tmp_path / "a.pth", **options)
        with torch.no_grad():
            assert torch.equal(found.network(normalised), wanted), case
        stated = case in ("Sequential(Normalize, net)", "MadryLab")
        assert (found.identity.preprocessing.mean == pytest.approx(MEAN)) == stated, case
