"""Segmenters against a slow replica, windows by hand, and files from anywhere: public, our own, others' networks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_oracles import slow_scores
from safetensors.torch import save_file
from segmenter_oracles import SlowSegmenter, ade20k_pipeline, randomised
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention.apply import FORMULAS, capture, get_attention, set_attention
from robustkit.errors import CheckpointError, ModelError
from robustkit.models.segmenter import Segmenter, load_segmenter
from robustkit.models.segmenter_network import PUBLIC_EPS, SegmenterNetwork, build_segmenter
from robustkit.models.windows import Windows

VIT = "vit_tiny_patch16_224"
DISTILLED = "deit_tiny_distilled_patch16_224"
SMALL = {"embed_dim": 32, "num_heads": 4, "depth": 2, "patch_size": 8}
NO_WINDOWS = "--stride, --short-side and --resize are of windows; give --window, too"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

pytestmark = pytest.mark.usefixtures("one_thread")


def small(
    arch: str = VIT,
    *,
    classes: int = 5,
    window: int | tuple[int, int] = 32,
    attention: str = "standard",
    **options: Any,
) -> SegmenterNetwork:
    """Width 32, four heads in the encoder and two in the decoder, two blocks each, patches of 8; random weights."""
    decoder_kwargs = {} if options.get("decoder") == "linear" else {"heads": 2}
    network = build_segmenter(
        arch, classes, window=window, arch_kwargs=SMALL, **{"decoder_kwargs": decoder_kwargs, **options}
    )
    network.load_state_dict(randomised(network.state_dict()))
    return set_attention(network, attention).eval().requires_grad_(False)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pixels(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2))


def normalised(image: Tensor, mean: Any, std: Any) -> Tensor:
    shift, scale = (torch.tensor(values).to(image.dtype)[:, None, None] for values in (mean, std))
    return (image - shift) / scale


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


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "stride", "frame", "rows", "columns"),
    [
        ((256, 256), (224, 224), (360, 480), [0, 104], [0, 224]),
        ((256, 256), (224, 224), (480, 360), [0, 224], [0, 104]),
        ((256, 256), (224, 224), (256, 481), [0], [0, 224, 225]),  # the last window is flush with the edge
        ((256, 256), (224, 224), (256, 256), [0], [0]),
        ((64, 32), (64, 16), (128, 80), [0, 64], [0, 16, 32, 48]),
        ((2, 3), (1, 3), (4, 7), [0, 1, 2], [0, 3, 4]),
    ],
)
def test_corners_by_hand(
    size: tuple[int, int], stride: tuple[int, int], frame: tuple[int, int], rows: list[int], columns: list[int]
) -> None:
    assert Windows(size, stride).corners(*frame) == [(top, left) for top in rows for left in columns]


@pytest.mark.parametrize(
    ("short_side", "image", "frame"),
    [
        (None, (360, 480), (360, 480)),
        (None, (128, 96), (128, 96)),  # as large as the window
        (None, (64, 96), (128, 192)),  # rows x 2 so that they are a window's
        (None, (200, 48), (400, 96)),  # columns x 2
        (None, (100, 100), (128, 128)),
        (256, (360, 480), (256, 341)),  # 480 * 256 / 360 = 341.3
        (256, (480, 360), (341, 256)),
        (720, (360, 480), (720, 960)),
        (64, (360, 480), (128, 170)),  # less than a window's height: 480 * 128 / 360 = 170.7
        (64, (480, 360), (128, 96)),
        (224, (55, 110), (224, 448)),  # 55 * (224 / 55) is 223.99999999999997 in float64
        (256, (49, 98), (256, 512)),
    ],
)
def test_frames_by_hand(short_side: int | None, image: tuple[int, int], frame: tuple[int, int]) -> None:
    assert Windows((128, 96), (128, 96), short_side).frame(*image) == frame


@pytest.mark.parametrize(
    ("image", "sizes"),
    [
        ((683, 512), [(683, 512)] * 3),
        ((600, 800), [(600, 800), (512, 683), (512, 683)]),  # 682.7, rounded to the nearest
        ((3000, 2001), [(3000, 2001), (768, 512), (768, 512)]),  # 767.6
        ((100, 500), [(100, 500), (410, 2048), (512, 2557)]),  # the long side binds: 409.6; then 2557.5 rounded down
    ],
)
def test_sizes_of_the_public_data_pipeline_by_hand(image: tuple[int, int], sizes: list[tuple[int, int]]) -> None:
    windows = Windows((512, 512), (480, 480), resize="ade20k")
    assert windows.sizes(*image) == sizes
    assert windows.frame(*image) == sizes[-1]


@pytest.mark.parametrize("window", [32, 480, 512])
def test_frames_equal_the_public_inference_at_every_size(window: int) -> None:
    for height in range(window // 4, window + 9):
        for width in range(window // 3, 3 * window, 7):
            short, long = sorted((height, width))
            grown = max(int(long / short * window), window)
            public = (window, grown) if height < width else (grown, window)
            found = Windows((window, window), (window, window)).frame(height, width)
            assert found == (public if short < window else (height, width)), (height, width)


def top_left(images: Tensor) -> Tensor:
    """The value of the window's top left pixel, everywhere."""
    return images[:, :1, :1, :1].expand(-1, 1, *images.shape[2:])


def test_overlapping_logits_are_averaged() -> None:
    images = torch.zeros(2, 3, 6, 5)
    images[0, 0, 0, 0], images[0, 0, 0, 2], images[0, 0, 3, 0], images[0, 0, 3, 2] = 1, 3, 5, 8
    images[1, 0, 0, 2] = 6
    found = Windows((3, 3), (3, 2))(top_left, images)
    upper, lower = [1, 1, 2, 3, 3], [5, 5, 6.5, 8, 8]
    assert found[0, 0].tolist() == [upper] * 3 + [lower] * 3
    assert found[1, 0].tolist() == [[0, 0, 3, 6, 6]] * 3 + [[0] * 5] * 3
    images = images[:, :, :4]
    images[0, 0, 1, 0], images[0, 0, 1, 2] = 10, 20
    found = Windows((3, 3), (1, 2))(top_left, images)  # rows 1 and 2 are under four windows in the middle column
    assert found[0, 0].tolist() == [upper, *[[5.5, 5.5, 8.5, 11.5, 11.5]] * 2, [10, 10, 15, 20, 20]]


def test_images_are_resized_bilinearly_and_logits_back() -> None:
    images = noise(2, 3, 6, 9)
    shown = functional.interpolate(images, (12, 18), mode="bilinear")
    expected = functional.interpolate(shown, (6, 9), mode="bilinear")
    seen: list[tuple[int, ...]] = []

    def network(part: Tensor) -> Tensor:
        seen.append(tuple(part.shape))
        return part

    torch.testing.assert_close(Windows((12, 12), (6, 6))(network, images), expected)
    torch.testing.assert_close(Windows((8, 8), (8, 8), short_side=12)(network, images), expected)
    assert set(seen) == {(4, 3, 12, 12), (12, 3, 8, 8)}
    same = Windows((4, 4), (3, 3))(network, images)
    torch.testing.assert_close(same, images)


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("shape", [(40, 56), (32, 32), (20, 30)])
def test_batches_equal_one_window_at_a_time(batch: int, shape: tuple[int, int]) -> None:
    network = small(attention="elliptical-quest").double()
    windows = Windows((32, 32), (24, 16), batch=batch)
    images = noise(3, 3, *shape).double()
    calls: list[int] = []

    def counted(part: Tensor) -> Tensor:
        calls.append(len(part))
        return network(part)

    found = windows(counted, images)
    assert sum(calls) == 3 * len(windows.corners(*windows.frame(*shape)))
    assert max(calls) <= batch
    assert len(calls) == math.ceil(sum(calls) / batch)
    slow = SlowSegmenter(network.state_dict(), (4, 2), (1e-6, 1e-5), "elliptical-quest")
    if shape == (40, 56):
        for image, logits in zip(images, found, strict=True):
            total, count = torch.zeros(5, 40, 56, dtype=torch.float64), torch.zeros(40, 56)
            for top, left in ((0, 0), (0, 16), (0, 24), (8, 0), (8, 16), (8, 24)):
                total[:, top : top + 32, left : left + 32] += slow.window(image[:, top : top + 32, left : left + 32])
                count[top : top + 32, left : left + 32] += 1
            assert count.min() > 0
            torch.testing.assert_close(logits, total / count, rtol=1e-9, atol=1e-9)
    alone = torch.cat([Windows((32, 32), (24, 16), batch=1)(network, image[None]) for image in images])
    torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-9)


def test_gradients_reach_every_pixel() -> None:
    images = noise(2, 3, 10, 11).requires_grad_()
    Windows((4, 5), (3, 2), batch=7)(lambda part: 2 * part, images).sum().backward()
    assert images.grad is not None
    torch.testing.assert_close(images.grad, torch.full_like(images, 2))  # however many windows saw the pixel
    images.grad = None
    Windows((4, 5), (3, 2), short_side=12)(lambda part: part.square(), images).sum().backward()
    assert (images.grad.abs() > 0).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stride": (32, 40)}, "stride 32x40 for windows of 32x32: expected 1 or more, at most the window, so that.*"),
        ({"stride": (0, 32)}, "stride 0x32 for windows of 32x32: expected 1 or more.*"),
        ({"short_side": 0}, "short side 0: expected 1 or more"),
        ({"batch": 0}, "windows a pass 0: expected 1 or more"),
        ({"resize": "ade"}, "unknown resize 'ade'; did you mean 'ade20k'.*"),
        ({"resize": "ade20k", "short_side": 8}, "resize ade20k and a short side of 8: both say .*; give one of .*"),
    ],
)
def test_windows_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=f"^{words}$"):
        Windows(**{"size": (32, 32), "stride": (32, 32), **options})


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
    assert f"{4 if arch == DISTILLED else 2} tensors of the encoder's classifier left out" in notes
    assert f"encoder guessed from the tensors: {arch}, 1 blocks, patch 16, 32 pixels" in notes
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
    assert "windows of 80x80 overlap by 32 pixels; --stride says otherwise" in model.identity.notes
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
            "encoder: the architecture cannot be guessed: .*no ViT",
        ),
        (
            "mask.pth",
            {"encoder.pos_embed": None},
            "encoder: the architecture .*: the tensors show no position embeddings",
        ),
        ("mask.pth", {"encoder.fpn.0": torch.ones(2)}, r"1 names that no plain ViT or DeiT has \(fpn.0\)"),
        (
            "mask.pth",
            {"decoder.cls_emb": None},
            r"decoder is neither a mask transformer \(decoder.cls_emb\) nor linear \(decoder.head.weight\); decoder "
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
    assert any("loaded in part" in note and "1 missing: decoder.proj_patch" in note for note in first.identity.notes)


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_code_in_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"encoder.patch_embed.proj.weight": torch.zeros(1)}, "args": Shell()}, tmp_path / "bad.pth")
    with pytest.raises(CheckpointError, match=r"refused, it is a pickle that would call (builtins|__builtin__)\.print"):
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
    with pytest.raises(ModelError, match=r"^timm:resnet18: timm has classifiers only; give the file of a segmenter$"):
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
        match=r"other.pth: no Segmenter \(its tensors begin a.weight, b.weight\); expected encoder.\* and decoder.\*, "
        "or give --arch FILE.py:FUNCTION; a classifier is for robustkit audit$",
    ):
        load_segmenter(tmp_path / "other.pth")
    with pytest.raises(ModelError, match=r"^--arch resnet18: .*other.pth is no Segmenter; expected your own FILE.py:F"):
        load_segmenter(tmp_path / "other.pth", arch="resnet18")


# --- networks of others ----------------------------------------------------------------------------------------------

FACTORY = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, form):
        super().__init__()
        self.net = nn.Conv2d(3, num_classes, 4, 4)
        self.form = form
        self.default_cfg = {"mean": (.1, .2, .3), "std": (.5, .5, .4), "input_size": (3, 32, 32)}
    def forward(self, x):
        return self.form(self.net(x))

def plain(num_classes=6): return Net(num_classes, lambda x: x)
def mapped(): return Net(6, lambda x: {"out": x, "aux": 0 * x})
def unnamed(): return Net(6, lambda x: {"logits": x})
def pooled(): return Net(6, lambda x: x.mean((2, 3)))
def flat(): return Net(6, lambda x: x[:, 0])
def listed(): return Net(6, lambda x: [x])
def bare():
    net = plain()
    del net.default_cfg
    return net
def with_aux():
    net = plain()
    net.aux_classifier = nn.Linear(2, 2)
    return net
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Segmenter]:
    (tmp_path / "nets.py").write_text(FACTORY)
    torch.manual_seed(0)
    tensors = {f"net.{name}": tensor for name, tensor in nn.Conv2d(3, 6, 4, 4).state_dict().items()}
    torch.save(tensors, tmp_path / "net.pth")
    torch.save(tensors | {"aux_classifier.weight": torch.ones(2, 2)}, tmp_path / "aux.pth")
    return lambda name, file="net.pth", **options: load_segmenter(
        tmp_path / file, arch=f"{tmp_path}/nets.py:{name}", **options
    )


def by_hand(folder: Path, image: Tensor, mean: Any = (0.1, 0.2, 0.3), std: Any = (0.5, 0.5, 0.4)) -> Tensor:
    tensors = torch.load(folder / "net.pth")
    logits = functional.conv2d(normalised(image, mean, std), tensors["net.weight"], tensors["net.bias"], stride=4)
    return functional.interpolate(logits, image.shape[2:], mode="bilinear")


@pytest.mark.parametrize("name", ["plain", "mapped"])
def test_small_logits_are_enlarged(own: Callable[..., Segmenter], tmp_path: Path, name: str) -> None:
    image = pixels(2, 3, 44, 37)
    model = own(name)
    torch.testing.assert_close(model(image), by_hand(tmp_path, image))
    identity = model.identity
    assert (identity.num_classes, identity.attention, identity.arch) == (6, "none", f"{tmp_path}/nets.py:{name}")
    assert (identity.code_sha256 is not None, model.windows) == (True, None)
    other = own(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    torch.testing.assert_close(other(image), by_hand(tmp_path, image, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))


def test_any_network_can_be_shown_windows(own: Callable[..., Segmenter], tmp_path: Path) -> None:
    model = own("plain", window=(16, 24), stride=8, short_side=20)
    assert model.windows == {"size": [16, 24], "stride": [8, 8], "short_side": 20}
    image = pixels(1, 3, 40, 60)
    shown = functional.interpolate(image, (20, 30), mode="bilinear")
    total, count = torch.zeros(1, 6, 20, 30), torch.zeros(20, 30)
    for top in (0, 4):
        for left in (0, 6):
            total[..., top : top + 16, left : left + 24] += by_hand(
                tmp_path, shown[..., top : top + 16, left : left + 24]
            )
            count[top : top + 16, left : left + 24] += 1
    expected = functional.interpolate(total / count, (40, 60), mode="bilinear")
    torch.testing.assert_close(model(image), expected)
    wide = own("bare", window=80)
    assert wide.windows == {"size": [80, 80], "stride": [48, 48], "short_side": None}
    assert "windows of 80x80 overlap by 32 pixels; --stride says otherwise" in wide.identity.notes
    assert any(note.startswith("NO NORMALISATION: nothing gives mean and std") for note in wide.identity.notes)
    torch.testing.assert_close(own("bare")(image), by_hand(tmp_path, image, (0, 0, 0), (1, 1, 1)))


def test_auxiliary_tensors_are_left_out_where_the_network_has_none(own: Callable[..., Segmenter]) -> None:
    notes = own("plain", "aux.pth").identity.notes
    assert "1 tensors of the auxiliary classifier left out" in notes
    with pytest.raises(CheckpointError, match=r"1 missing: aux_classifier.bias"):  # kept where it has one
        own("with_aux", "aux.pth")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "pooled",
            {},
            r"Net returned shape \(1, 6\); expected logits \(batch, classes, height, width\), or a dict that.*",
        ),
        ("pooled", {"window": 64}, r"Net returned shape \(1, 6\); expected logits.*"),
        ("flat", {}, r"Net returned shape \(1, 32, 32\); expected logits.*"),
        ("listed", {}, "Net returned a list; expected logits.*"),
        ("unnamed", {}, r"Net fails on an image of 128x128 \(KeyError: 'out'\); expected .* that holds them as 'out'"),
        ("plain", {"window": 2}, r"Net fails on an image of 2x2 \(RuntimeError: .*\); expected logits.*"),
        ("mapped", {"num_classes": 5}, ".*nets.py:mapped gives 6 classes, not 5; check --num-classes"),
        ("plain", {"num_classes": 5}, r".*2 of wrong shape: net.weight \[6, 3, 4, 4\] for \[5, 3, 4, 4\].*"),
        ("plain", {"stride": 16}, NO_WINDOWS),
        ("plain", {"short_side": 16}, NO_WINDOWS),
        ("plain", {"resize": "ade20k"}, NO_WINDOWS),
        ("plain", {"window": 16, "stride": 17}, "stride 17x17 for windows of 16x16: expected 1 or more.*"),
        ("plain", {"attention": "quest"}, "Net takes no attention formula.*"),
    ],
)
def test_networks_that_do_not_fit(
    own: Callable[..., Segmenter], name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ModelError, CheckpointError), match=f"^{words}$"):
        own(name, **options)


def test_torchvision_network_equals_itself(tmp_path: Path) -> None:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    torch.manual_seed(3)
    network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    torch.save(network.state_dict() | {"aux_classifier.0.weight": torch.ones(2)}, tmp_path / "v.pth")
    arch = "torchvision.models.segmentation:lraspp_mobilenet_v3_large"
    model = load_segmenter(tmp_path / "v.pth", arch=arch, num_classes=4, mean=IMAGENET[0], std=IMAGENET[1])
    image = pixels(1, 3, 75, 96)
    expected = network(normalised(image, *IMAGENET))["out"]
    assert expected.shape == (1, 4, 75, 96)
    torch.testing.assert_close(model(image), expected, rtol=1e-5, atol=1e-5)
    assert "1 tensors of the auxiliary classifier left out" in model.identity.notes
    shown = load_segmenter(tmp_path / "v.pth", arch=arch, num_classes=4, window=64, mean=IMAGENET[0], std=IMAGENET[1])
    torch.testing.assert_close(shown(image[..., 11:, 32:]), network(normalised(image[..., 11:, 32:], *IMAGENET))["out"])
    assert (shown(image) - model(image)).abs().max() > 1e-4
