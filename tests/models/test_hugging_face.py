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
from PIL import Image
from safetensors.torch import load_file, save_file

import cam
import robustkit
from robustkit.attention import capture, set_attention
from robustkit.data.images import to_pixels
from robustkit.errors import CheckpointError, ModelError
from robustkit.models.segmenter import is_segmenter, load_segmenter
from scripts.hf.convert_vit import write

transformers = pytest.importorskip("transformers", reason="transformers is an extra: pip install 'robustkit-audit[hf]'")
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
        seen[-1] += (cam.AGCAM(model)(pixels), cam.Rollout(model)(pixels), cam.GradCAM(model)(pixels))
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)  # their plain softmax is in float32
    assert not torch.equal(seen[0][3], seen[0][4])


def test_what_formulas_learn_is_saved_and_loaded(vit: Path, tmp_path: Path) -> None:
    model = transformers.ViTForImageClassification.from_pretrained(vit).eval()
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


PROCESSORS: dict[str, dict[str, Any]] = {
    "squashed": {"size": {"height": 32, "width": 32}, "resample": 3},
    "short side, then cut": {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 37},
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "resample": 3,
    },
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 0.875},
    "without normalisation": {"do_normalize": False},
}


@pytest.mark.parametrize("which", PROCESSORS)
def test_pixels_are_the_processors_own(vit: Path, which: str) -> None:
    changed(vit, "preprocessor_config.json", **PROCESSORS[which])
    draw = np.random.Generator(np.random.PCG64(0))
    noise = draw.integers(0, 256, (9, 11, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((66, 54), Image.Resampling.BICUBIC)
    theirs = transformers.AutoImageProcessor.from_pretrained(vit)(image, return_tensors="pt")["pixel_values"]
    model = robustkit.load(f"hf:{vit}")
    ours = model.normalize(to_pixels(image, model.identity.preprocessing)[None] / 255)
    steps = (ours - theirs).abs() / (1 / 255 / model.std)  # Pillow and torchvision round resized pixels otherwise
    assert steps.max() < 2.1 and steps.mean() < 0.3


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
        (config(auto_map={"AutoModel": "evil.Model"}), "names code of its own, and nothing .* is executed"),
        (processor(auto_map={"AutoImageProcessor": "evil.P"}), "names code of its own"),
        (config(model_type="vitt"), "unknown model_type 'vitt'.*vit"),
        (config(model_type="bert"), "has no image classification of model_type 'bert'"),
        (config(num_hidden_layers=10**9), "num_hidden_layers = 1000000000; expected at most"),
        (config(num_hidden_layers=10**6), "asks for many times the .* numbers that it holds"),
        (config(hidden_size=999_999), "asks for many times|refused by transformers"),
        (config(quantization_config={"quant_method": "bitsandbytes"}), "its weights are quantised"),
        (config(backbone="evil/model"), "built from another model"),
        (config(num_hidden_layers=3), "does not fit ViTForImageClassification .*missing"),
        (config(num_hidden_layers=1), "does not fit ViTForImageClassification .*unexpected"),
        (config(hidden_act="evil"), "refused by transformers"),
        (config(image_size=64), "does not fit|refused by transformers"),
        (processor(size={"height": 64, "width": 64}), "an image of 64x64: refused"),
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
        with pytest.raises(ModelError, match=f"--{option.replace('_', '-')}.* does not go with hf:"):
            robustkit.load(f"hf:{vit}", **{option: value})
    with pytest.raises(ModelError, match="gives 5 classes, not 7"):
        robustkit.load(f"hf:{vit}", num_classes=7)
    (vit / "preprocessor_config.json").unlink()
    alone = robustkit.load(f"hf:{vit}", mean=(0.5,) * 3, std=(0.5,) * 3).identity
    assert alone.preprocessing.input_size == (32, 32) and alone.preprocessing_source["mean"] == "option"
    with pytest.raises(ModelError, match="no semantic segmentation of model_type 'vit'; use robustkit audit"):
        load_segmenter(f"hf:{vit}", mean=(0.5,) * 3, std=(0.5,) * 3)


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
    for size, atol in (((64, 96), 1e-5), ((50, 70), 0.02)):  # the second is resized, by torchvision in whole levels
        pixels = np.repeat(np.repeat(draw.integers(0, 256, (5, 7, 3), np.uint8), 14, 0), 14, 1)[: size[0], : size[1]]
        pixels = np.array(Image.fromarray(pixels).resize(size[::-1]))
        with torch.no_grad():
            logits = own(**theirs(Image.fromarray(pixels), return_tensors="pt")).logits
            expected = torch.nn.functional.interpolate(logits, size, mode="bilinear")
            found = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255)
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    changed(segformer, "preprocessor_config.json", resample=3)
    assert load_segmenter(f"hf:{segformer}").network.network.mode == "bicubic"
    changed(segformer, "preprocessor_config.json", do_center_crop=True, crop_size={"height": 32, "width": 32})
    with pytest.raises(CheckpointError, match="not expressed here"):
        load_segmenter(f"hf:{segformer}")
    changed(segformer, "preprocessor_config.json", do_center_crop=False, crop_size=None, resample=2)
    windows = load_segmenter(f"hf:{segformer}", window=32, stride=16)
    assert windows.windows == {"size": [32, 32], "stride": [16, 16], "short_side": None}
    assert windows(torch.rand(1, 3, 40, 50)).shape == (1, 3, 40, 50)


def test_attention_of_a_segformer_is_of_fewer_keys_than_queries(segformer: Path) -> None:
    model = load_segmenter(f"hf:{segformer}", attention="elliptical-quest")
    pixels = torch.rand(1, 3, 64, 96)
    plain = load_segmenter(f"hf:{segformer}")
    assert not torch.allclose(model(pixels), plain(pixels))
    with capture(model.network) as captured:
        model(pixels)
    shapes = [tuple(part.shape[1:]) for part in captured.attention[::2]]
    assert shapes == [(1, 384, 6), (1, 96, 6), (2, 24, 6), (2, 6, 6)]
