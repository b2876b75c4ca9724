"""Segmenters against a slow replica, windows by hand, and files from anywhere: public, our own, others' networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_oracles import slow_scores
from safetensors.torch import save_file
from segmenter_oracles import SlowSegmenter, ade20k_pipeline, randomised
from segmenters import IMAGENET, SMALL, VIT, noise, normalised, pixels, small
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention import FORMULAS, capture, get_attention, set_attention
from robustkit.errors import CheckpointError, ModelError
from robustkit.models.dense import PUBLIC_EPS, SegmenterNetwork, Windows, build_segmenter
from robustkit.models.segmenter import load_segmenter

DISTILLED = "deit_tiny_distilled_patch16_224"
pytestmark = pytest.mark.usefixtures("one_thread")

# --- the network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "window", "options"),
    [
        (VIT, 32, {}),
        (VIT, 32, {"decoder": "linear"}),
        (VIT, (16, 40), {"norm_eps": PUBLIC_EPS}),
        (DISTILLED, (40, 16), {"norm_eps": PUBLIC_EPS}),
        (DISTILLED, 24, {"decoder": "linear"}),
        (VIT, (24, 32), {"attention": "quest"}),
        (VIT, 32, {"attention": "quest", "decoder": "linear"}),
        (VIT, (24, 32), {"attention": "elliptical-quest"}),
    ],
)
def test_network_equals_the_replica(arch: str, window: int | tuple[int, int], options: dict[str, Any]) -> None:
    network = small(arch, window=window, **options)
    images = noise(2, 3, *network.window)
    slow = SlowSegmenter(
        network.state_dict(), (4, 2), (options.get("norm_eps", 1e-6), 1e-5), options.get("attention", "standard")
    )
    expected = torch.stack([slow.window(image) for image in images])
    assert network(images).shape == (2, 5, *network.window)
    torch.testing.assert_close(network.double()(images.double()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_each_half_has_the_formula(half: str) -> None:
    images = noise(1, 3, 32, 32)
    network = small()
    standard, quest = network(images), small(attention="quest")(images)
    set_attention(getattr(network, half), "quest")  # one half alone is neither
    assert (network(images) - standard).abs().max() > 1e-2
    assert (network(images) - quest).abs().max() > 1e-2


@pytest.mark.parametrize("name", sorted({*FORMULAS} - {"standard"}))
def test_the_decoder_takes_every_formula(name: str) -> None:
    """Its scores are the formula's, of the tokens and classes that its layers are given."""
    network = small().double()
    set_attention(network.decoder, name)
    drawn = dict(network.decoder.blocks[1].attn.named_parameters())
    for key, value in drawn.items():
        if "qkv" not in key and "proj" not in key:
            value.copy_(noise(*value.shape))
    tokens: list[Tensor] = []
    for block in network.decoder.blocks:
        block.attn.qkv.register_forward_hook(lambda _, inputs, output: tokens.extend((inputs[0], output)))
    with capture(network.decoder) as captured:
        network(noise(2, 3, 32, 32).double())
    first, (q, k, v) = tokens[1], tokens[3].unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    before = first.unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)[2]
    if name == "qana":
        rows = torch.nn.functional.linear(tokens[2], drawn["query_network.weight"], drawn["query_network.bias"])
        drawn["network"] = rows.unflatten(-1, (2, -1)).transpose(1, 2)
    expected = slow_scores(name, q, k, v, before, drawn)
    assert expected.shape == (2, 2, 16 + 5, 16 + 5)
    torch.testing.assert_close(captured.scores[1], expected)


def test_heads_of_the_decoder_are_of_width_64_unless_said() -> None:
    wide = build_segmenter(VIT, 3, window=16, arch_kwargs={"depth": 1, "patch_size": 8})
    assert [block.attn.num_heads for block in wide.decoder.blocks] == [3, 3]
    assert small(decoder_kwargs={}).decoder.blocks[0].attn.num_heads == 1
    assert (wide.num_classes, wide.window, wide.grid) == (3, (16, 16), (2, 2))


def test_drop_path_grows_from_block_to_block_and_dropout_is_everywhere() -> None:
    kwargs = {"heads": 2, "depth": 3, "drop_path": 0.4, "dropout": 0.3}
    blocks = small(decoder_kwargs=kwargs).decoder.blocks
    assert [getattr(block.drop_path1, "drop_prob", 0.0) for block in blocks] == pytest.approx([0, 0.2, 0.4])
    rates = {m.p for block in blocks for m in block.modules() if isinstance(m, nn.Dropout)}
    assert rates == {0.3}
    assert len(small(decoder_kwargs={"heads": 2, "depth": 1, "drop_path": 0.4}).decoder.blocks) == 1
    assert blocks[0].attn.attn_drop.p == blocks[0].attn.proj_drop.p == blocks[0].mlp.drop2.p == 0.3


def test_fresh_weights_have_the_published_spread() -> None:
    torch.manual_seed(0)
    decoder: Any = build_segmenter(VIT, 150, window=16, arch_kwargs={"depth": 1}).decoder
    for tensor, spread in ((decoder.cls_emb, 0.02), (decoder.proj_dec.weight, 0.02), (decoder.proj_patch, 192**-0.5)):
        assert tensor.std().item() == pytest.approx(spread, rel=0.05)
    assert decoder.blocks[1].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert decoder.proj_classes.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert decoder.blocks[0].attn.qkv.bias.abs().max() == 0


@pytest.mark.parametrize(
    ("arch", "options", "words"),
    [
        (VIT, {"decoder": "lineer"}, "unknown decoder 'lineer'; did you mean 'linear'.*"),
        ("resnet10t", {}, "resnet10t cannot be a Segmenter's encoder: expected a ViT of timm, such as vit_tiny_.*"),
        ("swin_tiny_patch4_window7_224", {}, "swin_.* cannot be a Segmenter's encoder: expected a ViT of timm.*"),
        ("vit_tinny_patch16_224", {}, "unknown architecture 'vit_tinny_patch16_224'; did you mean vit_tiny.*"),
        (VIT, {"window": (32, 36)}, "window 32x36 for patches of 8x8: expected multiples of these; check --window"),
        (VIT, {"decoder_kwargs": {"heads": 5}}, r"decoder mask_transformer cannot be built with {'heads': 5} \(.*\)"),
        (VIT, {"decoder_kwargs": {"layers": 2}}, r"decoder mask_transformer .*{'layers': 2} \(.*'layers'\)"),
    ],
)
def test_networks_that_cannot_be_built(arch: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=f"^{words}$"):
        small(arch, **options)


# --- files in the public layout --------------------------------------------------------------------------------------


def public(
    path: Path, arch: str = VIT, *, window: int = 32, **changed: Tensor | None
) -> tuple[Path, dict[str, Tensor]]:
    """A file as the public code saves it, 7 classes, encoder of width 192 and patches of 16, with its classifier."""
    network = build_segmenter(
        arch,
        7,
        window=window,
        decoder="linear" if "linear" in path.name else "mask_transformer",
        arch_kwargs={"depth": 1},
    )
    heads = {f"encoder.{head}.{part}": torch.zeros(1) for head in ("head", "head_dist") for part in ("weight", "bias")}
    tensors = network.state_dict() | {k: v for k, v in heads.items() if arch == DISTILLED or "dist" not in k}
    tensors = randomised(tensors) | {name: tensor for name, tensor in changed.items() if tensor is not None}
    tensors = {name: tensor for name, tensor in tensors.items() if changed.get(name, tensor) is not None}
    schedule = {"base_lrs": [0.001], "last_epoch": 3}
    torch.save({"model": tensors, "n_cls": 7, "epoch": 63, "optimizer": {}, "lr_scheduler": schedule}, path)
    return path, tensors


@pytest.mark.parametrize("arch", [VIT, DISTILLED])
@pytest.mark.parametrize("name", ["mask.pth", "linear.pth"])
def test_public_file_gives_the_public_inference(tmp_path: Path, arch: str, name: str) -> None:
    path, tensors = public(tmp_path / name, arch)
    model = load_segmenter(path, stride=16).double()
    image = pixels(3, 43, 57).double()
    mean, std = ((0.5,) * 3, (0.5,) * 3) if arch == VIT else IMAGENET
    slow = SlowSegmenter(tensors, (3, 3))
    for rows, columns in ((43, 57), (57, 40), (20, 25), (43, 20)):  # the first two larger than a window: not shrunk
        part = image[:, :rows, :columns]
        expected = slow.whole(normalised(part, mean, std), 32, 16)
        torch.testing.assert_close(model(part[None])[0], expected, rtol=1e-7, atol=1e-7)
    assert model.windows == {"size": [32, 32], "stride": [16, 16], "short_side": None}
    identity = model.identity
    assert (identity.arch, identity.num_classes, identity.weights, identity.name) == (arch, 7, "model", path.stem)
    assert (identity.attention, identity.attention_source) == ("standard", "default")
    assert (identity.preprocessing.mean, identity.preprocessing.input_size) == (mean, (32, 32))
    assert identity.preprocessing.crop_mode == "none"
    notes = "\n".join(identity.notes)
    assert f"{4 if arch == DISTILLED else 2} tensors of the encoder's classifier ignored" in notes
    assert f"encoder inferred from the tensors: {arch}, 1 blocks, patch 16, 32 pixels" in notes
    assert "images keep their size and are enlarged to a window where they are smaller, as in the public inf" in notes
    assert "pipeline for ADE20K resizes them to a short side of 512 before that: --resize ade20k" in notes
    assert "1 classes" not in notes
    assert "weights taken from 'model'" in notes
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_windows_of_public_files_overlap_by_32(tmp_path: Path) -> None:
    path, tensors = public(tmp_path / "linear.pth", window=80)
    model = load_segmenter(path).double()
    assert model.windows == {"size": [80, 80], "stride": [48, 48], "short_side": None}
    assert "windows of 80x80 overlap by 32 pixels; --stride overrides it" in model.identity.notes
    image = pixels(3, 80, 140).double()
    expected = SlowSegmenter(tensors, (3, 3)).whole(normalised(image, (0.5,) * 3, (0.5,) * 3), 80, 48)
    torch.testing.assert_close(model(image[None])[0], expected, rtol=1e-7, atol=1e-7)
    own = load_segmenter(path, stride=(80, 40), short_side=96, num_classes=7, mean=(0.1, 0.2, 0.3))
    assert own.windows == {"size": [80, 80], "stride": [80, 40], "short_side": 96}
    assert own.identity.preprocessing.mean == (0.1, 0.2, 0.3)
    assert not any("--stride" in note or "--resize" in note for note in own.identity.notes)


@pytest.mark.parametrize("size", [(43, 57), (600, 40)])
def test_ade20k_is_resized_as_in_the_public_data_pipeline(tmp_path: Path, size: tuple[int, int]) -> None:
    path, tensors = public(tmp_path / "linear.pth", window=160)
    model = load_segmenter(path, stride=160, resize="ade20k").double()
    image = pixels(3, *size).double()
    piped = ade20k_pipeline(image)
    expected = SlowSegmenter(tensors, (3, 3)).whole(normalised(piped, (0.5,) * 3, (0.5,) * 3), 160, 160, to=size)
    torch.testing.assert_close(model(image[None])[0], expected, rtol=1e-6, atol=1e-6)
    assert model.windows == {"size": [160, 160], "stride": [160, 160], "short_side": None, "resize": "ade20k"}
    assert not any("--resize" in note for note in model.identity.notes)


@pytest.mark.parametrize("window", [48, (16, 64)])
def test_another_window_resamples_the_positions(tmp_path: Path, window: int | tuple[int, int]) -> None:
    """16 x 64 has as many patches of 16 as 32 x 32, in another arrangement."""
    path, tensors = public(tmp_path / "mask.pth", DISTILLED)
    model = load_segmenter(path, window=window, stride=16).double()
    rows, columns = (3, 3) if window == 48 else (1, 4)
    assert f"position embeddings resampled from 2 x 2 to {rows} x {columns} patches" in model.identity.notes
    positions = tensors["encoder.pos_embed"]
    grid = positions[:, 2:].reshape(1, 2, 2, 192).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)
    positions = torch.cat([positions[:, :2], grid.flatten(2).mT], dim=1)
    image = pixels(3, rows * 16, columns * 16).double()
    slow = SlowSegmenter(tensors | {"encoder.pos_embed": positions}, (3, 3))
    expected = slow.window(normalised(image, *IMAGENET))
    torch.testing.assert_close(model(image[None])[0], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("mask.pth", {"decoder.mask_norm.bias": None}, "1 missing: decoder.mask_norm.bias"),
        ("mask.pth", {"encoder.blocks.0.mlp.fc1.bias": None}, r"1 missing: encoder.blocks.\*.mlp.fc1.bias"),
        ("mask.pth", {"encoder.norm.bias": None}, "1 missing: encoder.norm.bias"),
        ("mask.pth", {"decoder.gate": torch.ones(2)}, "1 unexpected: decoder.gate"),
        ("linear.pth", {"decoder.blocks.0.norm1.bias": torch.ones(2)}, r"1 unexpected: decoder.blocks.\*.norm1.bias"),
        ("mask.pth", {"neck.weight": torch.ones(2)}, "1 unexpected: neck.weight"),
        ("mask.pth", {"decoder.mask_norm.weight": torch.ones(6)}, r"decoder.mask_norm.weight \[6\] for \[7\]"),
        (
            "mask.pth",
            {"encoder.patch_embed.proj.weight": None},
            "encoder: the architecture cannot be inferred: .*not a ViT",
        ),
        (
            "mask.pth",
            {"encoder.pos_embed": None},
            "encoder: the architecture .*: the tensors show no position embeddings",
        ),
        ("mask.pth", {"encoder.fpn.0": torch.ones(2)}, r"1 names that a plain ViT or DeiT does not have \(fpn.0\)"),
        (
            "mask.pth",
            {"decoder.cls_emb": None},
            r"decoder is not a mask transformer \(decoder.cls_emb\) or linear \(decoder.head.weight\); decoder "
            "tensors: decoder.proj_patch, decoder.proj_classes",
        ),
    ],
)
def test_a_tensor_too_many_or_too_few_is_named(
    tmp_path: Path, name: str, changed: dict[str, Tensor | None], words: str
) -> None:
    path, _ = public(tmp_path / name, **changed)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_segmenter(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_loaded_in_part_are_the_same_at_every_load(tmp_path: Path) -> None:
    path, _ = public(tmp_path / "mask.pth", **{"decoder.proj_patch": None})
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = load_segmenter(path, allow_partial=True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    second = load_segmenter(path, allow_partial=True)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.identity.weights == "model, in part"
    assert any("partially loaded" in note and "1 missing: decoder.proj_patch" in note for note in first.identity.notes)


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_code_in_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"encoder.patch_embed.proj.weight": torch.zeros(1)}, "args": Shell()}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointError, match=r"refused, a pickle that would call (builtins|__builtin__)\.print"):
        load_segmenter(tmp_path / "bad.pth")
    assert capsys.readouterr().out == ""


# --- our own files ---------------------------------------------------------------------------------------------------


def ours(path: Path, network: SegmenterNetwork, **metadata: Any) -> Path:
    """As scripts/zoo/train_segmenter.py saves it; None leaves an entry out."""
    said = {
        "task": "segmentation",
        "arch": VIT,
        "arch_kwargs": SMALL,
        "decoder": "mask_transformer",
        "decoder_kwargs": {"depth": 2, "heads": 2},
        "attention": "quest",
        "num_classes": network.num_classes,
        "class_names": [f"class {index}" for index in range(network.num_classes)],
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
        "input_size": list(network.window),
        "stride": [16, 24],
        **metadata,
    }
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in said.items() if v is not None}
    save_file(network.state_dict(), path, metadata=texts)
    return path


@pytest.mark.parametrize("attention", ["standard", "quest", "elliptical-quest", "qknorm-hs"])
def test_own_file_says_all_that_is_needed(tmp_path: Path, attention: str) -> None:
    network = small(window=(24, 32), attention=attention)
    for name, parameter in network.named_parameters():
        if name.endswith("qk_scale"):
            nn.init.uniform_(parameter, 1, 9)
    model = load_segmenter(ours(tmp_path / "camvid.safetensors", network, attention=attention)).double()
    image, network = pixels(2, 3, 30, 50).double(), network.double()
    shown = normalised(image, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    expected = Windows((24, 32), (16, 24), batch=5)(network, shown)
    torch.testing.assert_close(model(image), expected, rtol=1e-5, atol=1e-5)
    assert model.windows == {"size": [24, 32], "stride": [16, 24], "short_side": None}
    assert get_attention(model.network.network.encoder) == get_attention(model.network.network.decoder) == attention
    identity = model.identity
    assert (identity.arch, identity.attention, identity.attention_source) == (VIT, attention, "metadata")
    assert identity.class_names == tuple(f"class {index}" for index in range(5))
    assert (identity.preprocessing.mean, identity.preprocessing.std) == ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    assert identity.notes == (f"encoder {VIT} from the file's metadata",)


def test_a_folder_says_what_the_file_does_not(tmp_path: Path) -> None:
    ours(tmp_path / "model.safetensors", small(), mean=None)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": VIT, "mean": [0.1] * 3, "std": [0.7] * 3}))
    identity = load_segmenter(f"local-dir:{tmp_path}").identity
    assert (identity.preprocessing.mean, identity.preprocessing.std) == ((0.1,) * 3, (0.2, 0.3, 0.4))


def test_options_outweigh_an_own_file(tmp_path: Path) -> None:
    network = small(window=(24, 32))
    path = ours(tmp_path / "a.safetensors", network, short_side=48)
    assert load_segmenter(path).windows == {"size": [24, 32], "stride": [16, 24], "short_side": 48}
    model = load_segmenter(path, attention="standard", stride=8, short_side=40, window=(24, 32))
    assert model.windows == {"size": [24, 32], "stride": [8, 8], "short_side": 40}
    assert "attention standard from --attention; the file's metadata says quest" in model.identity.notes
    image = pixels(1, 3, 24, 32)
    shown = normalised(image, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    expected = Windows((24, 32), (8, 8), 40)(network, shown)
    torch.testing.assert_close(model(image), expected, rtol=1e-5, atol=1e-5)
    # the file's stride is of its own windows, and its positions are of their grid: 3 x 4, not 4 x 3
    turned = load_segmenter(path, window=(32, 24))
    assert turned.windows == {"size": [32, 24], "stride": [32, 24], "short_side": 48}
    grid = network.encoder.pos_embed[:, 1:].reshape(1, 3, 4, 32).permute(0, 3, 1, 2)
    grid = functional.interpolate(grid, (4, 3), mode="bicubic", antialias=True).flatten(2).mT
    torch.testing.assert_close(turned.network.network.encoder.pos_embed[:, 1:], grid)


def test_qknorm_is_shown_by_the_tensors(tmp_path: Path) -> None:
    network = small(window=32, attention="qknorm-hs")
    path = ours(tmp_path / "a.safetensors", network, attention=None)
    identity = load_segmenter(path).identity
    assert (identity.attention, identity.attention_source) == ("qknorm-hs", "weights")


@pytest.mark.parametrize(
    ("metadata", "options", "words"),
    [
        ({"arch_kwargs": [1]}, {}, r"metadata arch_kwargs is \[1\]; expected a JSON object"),
        ({"arch_kwargs": {"checkpoint_path": "x"}}, {}, "arch_kwargs holds checkpoint_path; expected only the shape"),
        ({"decoder_kwargs": [["heads", 6]]}, {}, r"metadata decoder_kwargs is .*; expected a JSON object"),
        ({"decoder_kwargs": "heads=6"}, {}, "metadata 'decoder_kwargs' is 'heads=6'; expected JSON"),
        ({"decoder_kwargs": {"heads": 3}}, {}, r"cannot be built with {'heads': 3, 'depth': 2}"),
        ({"input_size": [32, 0]}, {}, r"image size is \[32, 0\]; expected one or two positive whole numbers"),
        (
            {"input_size": [32, 24]},
            {"window": 40},
            r"1 of wrong shape: encoder.pos_embed \[1, 17, 32\] for \[1, 26, 32\]",
        ),
        ({"stride": "wide"}, {}, r"metadata 'stride' is 'wide'; expected JSON"),
        ({"stride": 40}, {}, "stride 40x40 for windows of 32x32: expected 1 or more, at most the window"),
        ({"stride": [1, 2, 3]}, {}, r"--stride is \[1, 2, 3\]; expected one or two positive whole numbers of pixels"),
        ({"short_side": "[7]"}, {}, r"--short-side is \[7\]; expected a positive whole number of pixels"),
        ({"attention": "qest"}, {}, "unknown attention 'qest'; did you mean 'quest'.*from the metadata of"),
        ({}, {"window": 0}, "^--window is 0; expected one or two positive whole numbers of pixels$"),
        ({}, {"window": 20}, "^window 20x20 for patches of 8x8: expected multiples of these; check --window$"),
        ({}, {"stride": (8, 0)}, r"^--stride is \(8, 0\); expected one or two positive whole numbers of pixels$"),
        ({}, {"short_side": 0}, "^--short-side is 0; expected a positive whole number of pixels$"),
        ({}, {"num_classes": 4}, "a.safetensors gives 5 classes, not 4; check --num-classes$"),
        ({}, {"attention": "qest"}, "unknown attention 'qest'; did you mean 'quest'"),
    ],
)
def test_bad_metadata_and_options_are_one_line(
    tmp_path: Path, metadata: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    path = ours(tmp_path / "a.safetensors", small(), **metadata)
    with pytest.raises((ModelError, CheckpointError), match=words) as caught:
        load_segmenter(path, **options)
    assert "\n" not in str(caught.value)


def test_specs_and_encoders_that_are_none(tmp_path: Path) -> None:
    path, _ = public(tmp_path / "linear.pth")
    with pytest.raises(
        ModelError,
        match=r"^timm:resnet18: timm provides classifiers only; give the file of a "
        r"segmenter$",
    ):
        load_segmenter("timm:resnet18")
    with pytest.raises(
        ModelError, match="unknown attention 'qest'; did you mean 'quest'"
    ):  # said before files are read
        load_segmenter(tmp_path / "nowhere.pth", attention="qest")
    with pytest.raises(ModelError, match=r"^resnet10t cannot be a Segmenter's encoder: expected a ViT of timm"):
        load_segmenter(path, arch="resnet10t")
    with pytest.raises(CheckpointError, match=r"linear.pth: has no EMA weights"):
        load_segmenter(path, use_ema=True)
    assert load_segmenter(path, arch="deit_tiny_patch16_224").identity.preprocessing.mean == IMAGENET[0]
    torch.save({"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, tmp_path / "other.pth")
    with pytest.raises(
        CheckpointError,
        match=r"other.pth: not a Segmenter \(its tensors begin a.weight, b.weight\); expected encoder.\* and decoder."
        r"\*, or give --arch FILE.py:FUNCTION; a classifier is for robustkit audit$",
    ):
        load_segmenter(tmp_path / "other.pth")
    with pytest.raises(
        ModelError, match=r"^--arch resnet18: .*other.pth is not a Segmenter; expected your own FILE.py:F"
    ):
        load_segmenter(tmp_path / "other.pth", arch="resnet18")
