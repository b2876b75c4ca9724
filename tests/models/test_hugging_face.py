"""Checkpoints of transformers: against the library itself and timm, and what is refused before anything is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.transforms.functional import pil_to_tensor

import cam
import robustkit
from robustkit.attention import capture, set_attention
from robustkit.cli.app import cli
from robustkit.data.images import to_pixels
from robustkit.errors import CheckpointError, ModelError
from robustkit.models.hugging_face import made_up_images
from robustkit.models.segmenter import is_segmenter, load_segmenter
from scripts.hf.convert_vit import write

transformers = pytest.importorskip("transformers", reason='transformers is an extra: pip install ".[hf]"')
pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": 5}
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
}
MODELS = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**SMALL)),
    "beit": lambda: transformers.BeitForImageClassification(
        transformers.BeitConfig(**SMALL, use_relative_position_bias=True)
    ),
    "dinov2": lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**SMALL)),
    "swin": lambda: transformers.SwinForImageClassification(
        transformers.SwinConfig(image_size=32, patch_size=2, embed_dim=12, depths=[2], num_heads=[3], window_size=4)
    ),
    "convnext": lambda: transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**STAGES)),
    "resnet": lambda: transformers.ResNetForImageClassification(
        transformers.ResNetConfig(**STAGES, embedding_size=8, layer_type="basic")
    ),
}


def saved(model: Any, folder: Path, processor: dict[str, Any] | None = None, **options: Any) -> Path:
    """A folder as `save_pretrained` and a processor write it."""
    model.eval().save_pretrained(folder, **options)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | (processor or {})))
    return folder


def changed(folder: Path, name: str = "config.json", **values: Any) -> None:
    content = json.loads((folder / name).read_text())
    for key, value in values.items():
        content.pop(key, None) if value is None else content.update({key: value})
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return saved(MODELS["vit"](), tmp_path / "vit")


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_librarys_own(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    folder = saved(MODELS[name](), tmp_path / name)
    own = transformers.AutoModelForImageClassification.from_pretrained(folder)
    model = robustkit.load(f"hf:{folder}")
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(PROCESSOR[f"image_{part}"])[:, None, None] for part in ("mean", "std"))
    expected = own.eval()(pixel_values=(pixels - mean) / std).logits
    torch.testing.assert_close(model(pixels), expected, rtol=0, atol=1e-6)
    assert transformers.utils.logging.get_verbosity() == transformers.logging.WARNING  # as it was found
    identity = model.identity
    assert (identity.name, identity.arch, identity.num_classes) == (name, type(own).__name__, expected.shape[1])
    assert identity.preprocessing_source["mean"] == "metadata" and identity.path == folder / "model.safetensors"
    assert robustkit.load(f"local-dir:{folder}").identity.sha256 == identity.sha256
    changed(folder, num_labels=None, layer_norm_eps=0.5)
    assert robustkit.load(f"hf:{folder}").identity.code_sha256 != identity.code_sha256


@pytest.mark.parametrize(
    "formula",
    [
        *("standard", "quest", "qnorm", "qknorm-hs", "qknorm-ds", "qknorm", "qknorm-ln", "qk-l2", "softcap"),
        *("elliptical", "elliptical-quest"),
    ],
)
def test_every_formula_is_that_of_timms_vit_of_the_same_tensors(tmp_path: Path, formula: str) -> None:
    torch.manual_seed(1)
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3, embed_dim=48, num_classes=5)
    set_attention(net, formula)
    for name, value in net.named_parameters():  # away from where training begins
        value.data += 0.2 * torch.rand_like(value) if "attn" in name else 0
    torch.save(net.state_dict(), tmp_path / "net.pth")
    factory = tmp_path / "net.py"
    factory.write_text(
        "import timm\n\ndef build():\n    return timm.create_model('vit_tiny_patch16_224', img_size=32, patch_size=8, "
        "depth=3, embed_dim=48, num_classes=5)\n"
    )
    timms = robustkit.load(tmp_path / "net.pth", arch=f"{factory}:build", attention=formula).double()
    theirs = robustkit.load(f"hf:{write(timms.float(), tmp_path / 'theirs')}").double()
    timms = timms.double()
    assert theirs.identity.attention == formula
    seen = []
    for model in (timms, theirs):
        pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        with capture(model.network) as captured:
            logits = model(pixels.requires_grad_())
        (gradient,) = torch.autograd.grad(logits[:, 1].sum(), pixels)
        seen.append((model(pixels), logits, gradient, *captured.scores, *captured.attention, *captured.key_norms))
        kinds = (cam.AGCAM, cam.LeGrad, cam.Chefer, cam.Rollout, cam.GradCAM, cam.GradCAMPlusPlus, cam.LayerCAM)
        seen[-1] += tuple(kind(model)(pixels) for kind in kinds)
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)  # their plain softmax is in float32
    assert not torch.equal(seen[0][3], seen[0][4])


def test_what_formulas_learn_is_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    deep = transformers.ViTConfig(**SMALL | {"num_hidden_layers": 11})  # layer 10 comes after layer 2
    model = transformers.ViTForImageClassification(deep).eval()
    set_attention(model, "qknorm")
    for layer in model.vit.layers:
        layer.attention.q_scale.data += torch.rand_like(layer.attention.q_scale)
    images = torch.rand(2, 3, 32, 32)
    expected = model(pixel_values=images).logits
    again = robustkit.load(f"hf:{saved(model, tmp_path / 'learned')}")
    torch.testing.assert_close(again.network(images), expected, rtol=0, atol=1e-6)
    assert (again.identity.attention, again.identity.attention_source) == ("qknorm", "metadata")
    changed(tmp_path / "learned", robustkit_attention=None)
    assert robustkit.load(f"hf:{tmp_path / 'learned'}").identity.attention_source == "weights"
    set_attention(model, "standard")
    assert not any("scale" in name for name in model.state_dict()) and model.config._attn_implementation == "sdpa"
    assert not hasattr(model.config, "robustkit_attention")


def test_shards_and_older_names_are_read(vit: Path, tmp_path: Path) -> None:
    pixels = torch.rand(1, 3, 32, 32)
    whole = robustkit.load(f"hf:{vit}")
    model = transformers.ViTForImageClassification.from_pretrained(vit)
    parts = robustkit.load(f"hf:{saved(model, tmp_path / 'parts', max_shard_size='40KB')}")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2 and parts.identity.path.name.endswith(
        ".index.json"
    )
    torch.testing.assert_close(parts(pixels), whole(pixels))
    assert parts.identity.sha256 != whole.identity.sha256
    torch.nn.init.ones_(model.classifier.weight)
    saved(model, tmp_path / "both", max_shard_size="40KB")
    saved(
        transformers.ViTForImageClassification.from_pretrained(vit), tmp_path / "both"
    )  # the library leaves the index
    both = robustkit.load(f"hf:{tmp_path / 'both'}")
    assert (
        tmp_path / "both" / "model.safetensors.index.json"
    ).exists() and both.identity.sha256 == whole.identity.sha256
    torch.testing.assert_close(both(pixels), whole(pixels))
    last = max((tmp_path / "parts").glob("*.safetensors"))
    every = {name: tensor for file in last.parent.glob("*.safetensors") for name, tensor in load_file(file).items()}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in every.items()}
    save_file(zeros | load_file(last), last, {"format": "pt"})  # the index says which file counts
    torch.testing.assert_close(robustkit.load(f"hf:{tmp_path / 'parts'}")(pixels), whole(pixels))
    old = {
        "vit.layers.": "vit.encoder.layer.",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
        **{
            f"attention.{part}_proj": f"attention.attention.{name}"
            for part, name in (("q", "query"), ("k", "key"), ("v", "value"))
        },
    }
    tensors = load_file(vit / "model.safetensors")
    for now, before in old.items():
        tensors = {name.replace(now, before): tensor for name, tensor in tensors.items()}
    save_file(tensors, vit / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(robustkit.load(f"hf:{vit}")(pixels), whole(pixels))


RESNET = (
    (r"resnet\.embedder\.embedder\.convolution", "conv1"),
    (r"resnet\.embedder\.embedder\.normalization", "bn1"),
    (r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\.shortcut\.convolution", r"layer\1+.\2.downsample.0"),
    (r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\.shortcut\.normalization", r"layer\1+.\2.downsample.1"),
    (r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d+)\.convolution", r"layer\1+.\2.conv\3+"),
    (r"resnet\.encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d+)\.normalization", r"layer\1+.\2.bn\3+"),
    (r"classifier\.1", "fc"),
)
CONVNEXT = (
    (r"convnext\.embeddings\.patch_embeddings", "stem.0"),
    (r"convnext\.embeddings\.layernorm", "stem.1"),
    (r"convnext\.encoder\.stages\.(\d+)\.downsampling_layer\.(\d)", r"stages.\1.downsample.\2"),
    (r"(convnext\.encoder\.)(stages\.\d+\.)layers\.(\d+)\.dwconv", r"\2blocks.\3.conv_dw"),
    (r"(convnext\.encoder\.)(stages\.\d+\.)layers\.(\d+)\.layernorm", r"\2blocks.\3.norm"),
    (r"(convnext\.encoder\.)(stages\.\d+\.)layers\.(\d+)\.pwconv(\d)", r"\2blocks.\3.mlp.fc\4"),
    (r"(convnext\.encoder\.)(stages\.\d+\.)layers\.(\d+)\.layer_scale_parameter", r"\2blocks.\3.gamma"),
    (r"convnext\.layernorm", "head.norm"),
    (r"classifier", "head.fc"),
)
CNNS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[tuple[str, str], ...]]] = {
    "resnet18": (
        lambda: transformers.ResNetForImageClassification(
            transformers.ResNetConfig(
                hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=7
            )
        ),
        lambda: timm.create_model("resnet18", num_classes=7),
        RESNET,
    ),
    "resnet26": (
        lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(depths=[2, 2, 2, 2], num_labels=7)),
        lambda: timm.create_model("resnet26", num_classes=7),
        RESNET,
    ),
    "convnext": (
        lambda: transformers.ConvNextForImageClassification(
            transformers.ConvNextConfig(**STAGES | {"num_labels": 7}, layer_scale_init_value=0.5)
        ),
        lambda: timm.create_model("convnext_tiny", num_classes=7, dims=(8, 16, 24, 32), depths=(1, 1, 1, 1)),
        CONVNEXT,
    ),
}


@pytest.mark.parametrize("name", CNNS)
def test_cnns_are_timms_own_through_a_mapping(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    theirs, timms, pairs = CNNS[name][0](), CNNS[name][1](), CNNS[name][2]
    for value in theirs.state_dict().values():
        if value.ndim == 1 and value.is_floating_point():
            value += 0.3 * torch.rand_like(value)
    folder = saved(theirs, tmp_path / name)
    tensors = {}
    for key, value in theirs.state_dict().items():
        for old, new in pairs:
            if match := re.fullmatch(rf"{old}(?P<rest>\.(?:weight|bias|running_.*|num_.*))?", key):
                counted = re.sub(r"(\d+)\+", lambda found: str(int(found[1]) + 1), match.expand(new))
                tensors[counted + (match["rest"] or "")] = value
                break
    timms.load_state_dict(tensors)
    model = robustkit.load(f"hf:{folder}")
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model.network(images), timms.eval()(images), rtol=1e-5, atol=1e-5)


def bit(short: int, crop: int = 32) -> dict[str, Any]:
    kind, size = "BitImageProcessor", {"shortest_edge": short}
    return {"image_processor_type": kind, "size": size, "do_center_crop": True, "crop_size": crop, "resample": 3}


PROCESSORS: dict[str, dict[str, Any]] = {
    **{f"squashed by {number}": {"resample": number} for number in range(6)},
    **{f"{short} cut to 32": bit(short) for short in (32, 35, 37, 38, 93)},  # 32 / (32 / 93) is less than 93 in floats
    "squashed, then cut": {"image_processor_type": "DeiTImageProcessor", "size": 38, "do_center_crop": True}
    | {"crop_size": 32},
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 0.875},
    "large convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}},
    "levit": bit(32) | {"image_processor_type": "LevitImageProcessor"},
    "poolformer": bit(36) | {"image_processor_type": "PoolFormerImageProcessor", "crop_pct": 0.9},
    "efficientnet": {"image_processor_type": "EfficientNetImageProcessor"},
    "efficientnet without the top": {"image_processor_type": "EfficientNetImageProcessor", "include_top": False},
    "without normalisation": {"do_normalize": False},
    "a leftover crop_pct": bit(40) | {"crop_pct": 0.9},
}


@pytest.mark.parametrize("which", PROCESSORS)
def test_pixels_are_the_processors_own(tmp_path: Path, which: str) -> None:
    net = saved(MODELS["convnext"](), tmp_path / "net", PROCESSORS[which])
    theirs = transformers.AutoImageProcessor.from_pretrained(net, backend="pil")
    model = robustkit.load(f"hf:{net}")
    for image in made_up_images((54, 47)):
        expected = theirs(image, return_tensors="pt")["pixel_values"]
        ours = model.normalize(to_pixels(image, model.identity.preprocessing)[None] / 255)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (bit(40) | {"image_processor_type": "TextNetImageProcessor"}, "TextNetImageProcessorPil makes other pixels"),
        (
            {"image_processor_type": "PerceiverImageProcessor", "crop_size": 28},
            "PerceiverImageProcessorPil makes 32x32 .* make 28x28",
        ),
        (bit(40) | {"image_processor_type": "ConvNextImageProcessor"}, "makes other pixels of a picture of .* levels"),
        ({"image_processor_type": "DPTImageProcessor", "ensure_multiple_of": 9}, "makes 36x36 pixels .* make 32x32"),
        ({"image_processor_type": "DPTImageProcessor", "keep_aspect_ratio": True}, "keep_aspect_ratio asks for a size"),
        (bit(40) | {"size": {"shortest_edge": 40, "longest_edge": 50}}, "longest_edge, which is not supported"),
        (bit(40) | {"do_resize": False}, "do_center_crop without do_resize"),
        ({"do_resize": False}, "leaves images as large as they are"),
        ({"do_resize": "false"}, "do_resize is 'false'; expected true or false"),
        ({"resample": [2]}, r"resample is \[2\]; expected one of 0 \(nearest\), .*, 5 \(hamming\)$"),
        ({"resample": 6}, "resample is 6; expected one of 0"),
        (
            bit(40) | {"do_center_crop": False},
            "do_center_crop is false, and size {'shortest_edge': 40}: not supported",
        ),
        (bit(40) | {"crop_size": None}, "do_center_crop is true without a crop_size"),
        ({"do_rescale": False}, "do_rescale is false; expected true, with rescale_factor 1/255"),
        (
            {"rescale_factor": "1/255"},
            "rescale_factor is the text '1/255'; expected 1/255 = 0.00392156862745098",
        ),
        ({"rescale_factor": True}, "rescale_factor is True; expected 1/255 = 0.0039"),
        (
            {"image_mean": [123.675, 116.28, 103.53]},
            r"image_mean is \(123.*in \[0, 1\], as rescale_.*: divide it by 255",
        ),
        ({"image_mean": [-0.1, 0.5, 0.5]}, r"image_mean is .*; expected three numbers in \[0, 1\]$"),
        ({"image_std": [58.4, 57.1, 57.4]}, r"image_std is .*; expected three numbers in \(0, 1\], as rescale_factor"),
        ({"image_std": [0.5, 0, 0.5]}, r"image_std is .*; expected three numbers in \(0, 1\]$"),
        ({"image_std": [0.5, -0.1, 0.5]}, r"image_std is .*; expected three numbers in \(0, 1\]$"),
        ({"image_std": 0}, r"image_std is .*; expected three numbers in \(0, 1\]$"),
        ({"size": {"height": 32, "width": True}}, "width of size is True; expected 1 to 2048"),
        ({"size": 2049}, "height of size is 2049; expected 1 to 2048"),
        (bit(40, 0), "is 0; expected 1 to 2048"),
        ({"image_mean": ["a", 0.5, 0.5]}, "image_mean is .*; expected three numbers"),
        ({"image_std": [0.5, 0.5, float("nan")]}, "image_std.2 is nan; expected a finite number"),
    ],
)
def test_processors_that_are_not_expressed_are_refused(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    net = saved(MODELS["convnext"](), tmp_path / "net", values)
    with pytest.raises(CheckpointError, match=said) as error:
        robustkit.load(f"hf:{net}")
    assert "\n" not in str(error.value)


def hostile(index: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": index}}))

    return change


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('made by a pickle', 'w')",)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": Code()}, folder / "pytorch_model.bin")


def other_processor(folder: Path) -> None:
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": {"auto_map": {"AutoProcessor": "e"}}}))


def longer_scales(folder: Path) -> None:
    scales = {f"vit.layers.{i}.attention.{name}_scale": torch.ones(7) for i in range(2) for name in "qk"}
    file = folder / "model.safetensors"
    save_file(load_file(file) | scales, file, {"format": "pt"})


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder, **values)


def processor(**values: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder, "preprocessor_config.json", **values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "no preprocessor_config.json, .*give --mean"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights next to config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "names no architecture of timm and no model_type"),
        (lambda folder: (folder / "config.json").write_text("{"), "not JSON"),
        (config(id2label={str(i): str(i) for i in range(7)}, label2id=None), "does not fit ViT.*mismatched"),
        (config(auto_map={"AutoModel": "evil.Model"}), "names custom code, and code .* is never executed"),
        (processor(auto_map={"AutoImageProcessor": "evil.P"}), "names custom code"),
        (config(model_type="vitt"), "unknown model_type 'vitt'.*vit"),
        (config(model_type="bert"), "has no image classification of model_type 'bert'"),
        (config(num_hidden_layers=10**9), "num_hidden_layers = 1000000000; expected at most"),
        (config(num_hidden_layers=10**6), "many times larger than the .* numbers it holds"),
        (config(hidden_size=999_999), "many times larger|refused by transformers"),
        (config(quantization_config={"quant_method": "bitsandbytes"}), "its weights are quantised"),
        (config(backbone="evil/model"), "built from another model"),
        (config(num_hidden_layers=3), "does not fit ViTForImageClassification .*missing"),
        (config(num_hidden_layers=1), "does not fit ViTForImageClassification .*unexpected"),
        (config(hidden_act="evil"), "refused by transformers"),
        (config(image_size=64), "does not fit|refused by transformers"),
        (processor(size={"height": 64, "width": 64}), "an image of 64x64: refused"),
        (config(layer_norm_eps=float("nan")), "layer_norm_eps is nan; expected a finite number"),
        (
            config(problem_type="multi_label_classification"),
            "5 outputs, problem_type multi_label.*of which one is right",
        ),
        (other_processor, "auto_map: it names custom code"),
        (longer_scales, r"2 layers with k_scale \[7\], q_scale \[7\]; qknorm-ds attention has k_scale \[16\], q_scale"),
        (processor(do_pad=True), "do_pad asks for padded images"),
        (processor(do_flip_channel_order=True), "channels in the order BGR"),
        (processor(rescale_factor=1.0), "rescale_factor is 1.0; expected 1/255"),
        (processor(image_processor_type="EvilProcessor"), "its processor: refused by transformers"),
        (hostile("../vit/model.safetensors"), "names the file '../vit/model.safetensors'"),
        (hostile("/etc/passwd"), "names the file '/etc/passwd'"),
        (hostile("model.bin"), "names the file 'model.bin'"),
        (pickled, "code|refused|not allowed|exec"),
    ],
)
def test_what_cannot_be_believed_is_one_line(
    vit: Path, change: Callable[[Path], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(vit.parent)
    change(vit)
    with pytest.raises((CheckpointError, ModelError), match=said) as fault:
        robustkit.load(f"hf:{vit}")
    assert "\n" not in str(fault.value) and not (vit.parent / "made by a pickle").exists()


def test_options_that_the_folder_answers_are_refused(vit: Path) -> None:
    for option, value in {"arch": "vit_tiny_patch16_224", "img_size": 64}.items():
        with pytest.raises(ModelError, match=f"--{option.replace('_', '-')}.* does not apply to hf:"):
            robustkit.load(f"hf:{vit}", **{option: value})
    with pytest.raises(ModelError, match="gives 5 classes, not 7"):
        robustkit.load(f"hf:{vit}", num_classes=7)
    (vit / "preprocessor_config.json").unlink()
    alone = robustkit.load(f"hf:{vit}", mean=(0.5,) * 3, std=(0.5,) * 3).identity
    assert alone.preprocessing.input_size == (32, 32) and alone.preprocessing_source["mean"] == "option"
    with pytest.raises(ModelError, match="no semantic segmentation of model_type 'vit'; use robustkit audit"):
        load_segmenter(f"hf:{vit}", mean=(0.5,) * 3, std=(0.5,) * 3)


def test_a_head_of_one_output_is_no_classifier(tmp_path: Path) -> None:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL | {"num_labels": 1}))
    folder = saved(model, tmp_path / "one")
    with pytest.raises(CheckpointError, match="1 output; expected a classifier of two classes or more"):
        robustkit.load(f"hf:{folder}")


def test_the_configs_digest_is_in_report_card_and_inspect(tmp_path: Path) -> None:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL | {"num_labels": 10}))
    folder, run = saved(model, tmp_path / "vit"), tmp_path / "run"
    digest = robustkit.load(f"hf:{folder}").identity.code_sha256
    audit = ["audit", f"hf:{folder}", "--data-dir", "embedded:shapes", "--limit", "2", "--attacks", "fgsm"]
    for command in ([*audit, "--out", str(run)], ["card", str(run)], ["inspect", f"hf:{folder}"]):
        shown = CliRunner().invoke(cli, command, catch_exceptions=False).output
    pages = (shown, (run / "report.html").read_text(), *(page.read_text() for page in (run / "card").rglob("*.md")))
    assert digest and len(pages) == 3 and all(digest in "".join(page.split()) for page in pages)


@pytest.fixture
def segformer(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    made = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        decoder_hidden_size=16,
        num_attention_heads=[1, 1, 2, 2],
        depths=[2, 2, 2, 2],
        id2label=dict(enumerate(("a", "b", "c"))),
        label2id={"a": 0, "b": 1, "c": 2},
    )
    model = transformers.SegformerForSemanticSegmentation(made)
    chosen = {"image_processor_type": "SegformerImageProcessor", "size": {"height": 64, "width": 96}}
    return saved(model, tmp_path / "segformer", chosen)


def test_a_segformer_gives_the_logits_of_the_librarys_own_pipeline(segformer: Path) -> None:
    assert is_segmenter(f"hf:{segformer}")
    model = load_segmenter(f"hf:{segformer}")
    assert model.identity.class_names == ("a", "b", "c")
    own = transformers.SegformerForSemanticSegmentation.from_pretrained(segformer).eval()
    theirs = transformers.AutoImageProcessor.from_pretrained(segformer)
    draw = np.random.Generator(np.random.PCG64(0))
    # The others are resized, by torchvision in whole levels.
    for size, atol in (((64, 96), 1e-5), ((50, 70), 0.02), ((150, 230), 0.02)):
        pixels = np.repeat(np.repeat(draw.integers(0, 256, (75, 115, 3), np.uint8), 2, 0), 2, 1)[: size[0], : size[1]]
        with torch.no_grad():
            logits = own(**theirs(Image.fromarray(pixels), return_tensors="pt")).logits
            expected = torch.nn.functional.interpolate(logits, size, mode="bilinear")
            found = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255)
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    changed(segformer, "preprocessor_config.json", resample=3)  # cubics overshoot at edges, and levels are cut
    cubic, theirs = load_segmenter(f"hf:{segformer}"), transformers.AutoImageProcessor.from_pretrained(segformer)
    for image in made_up_images((64, 96)):
        values = theirs(image, return_tensors="pt")["pixel_values"]
        found = cubic.network.network.resized(cubic.normalize(pil_to_tensor(image)[None] / 255))
        assert float(((found - values) * cubic.std * 255).abs().max()) < 1.1
    changed(segformer, "preprocessor_config.json", do_resize=False)
    assert load_segmenter(f"hf:{segformer}").network.network.size is None
    changed(segformer, "preprocessor_config.json", do_resize=True, size={"height": 6000, "width": 6000})
    with pytest.raises(CheckpointError, match="height of size is 6000; expected 1 to 2048"):
        load_segmenter(f"hf:{segformer}")
    changed(segformer, "preprocessor_config.json", size={"height": 64, "width": 96}, do_reduce_labels=True)
    assert any("class 0 is label 1" in note for note in load_segmenter(f"hf:{segformer}").identity.notes)
    changed(segformer, "preprocessor_config.json", do_center_crop=True, crop_size={"height": 32, "width": 32})
    with pytest.raises(CheckpointError, match="not supported"):
        load_segmenter(f"hf:{segformer}")
    changed(segformer, "preprocessor_config.json", do_center_crop=False, crop_size=None, resample=2)
    windows = load_segmenter(f"hf:{segformer}", window=32, stride=16)
    assert windows.windows == {"size": [32, 32], "stride": [16, 16], "short_side": None}
    assert windows(torch.rand(1, 3, 40, 50)).shape == (1, 3, 40, 50)
    resized = "inside the model, as its processor does"  # of whole images only: a window is as large as it is
    assert any(resized in note for note in load_segmenter(f"hf:{segformer}").identity.notes)
    assert not any(resized in note for note in windows.identity.notes)


def test_attention_of_a_segformer_is_of_fewer_keys_than_queries(segformer: Path) -> None:
    model = load_segmenter(f"hf:{segformer}", attention="elliptical-quest")
    pixels = torch.rand(1, 3, 64, 96)
    plain = load_segmenter(f"hf:{segformer}")
    assert not torch.allclose(model(pixels), plain(pixels))
    with capture(model.network) as captured:
        model(pixels)
    shapes = [tuple(part.shape[1:]) for part in captured.attention[::2]]
    assert shapes == [(1, 384, 6), (1, 96, 6), (2, 24, 6), (2, 6, 6)]
