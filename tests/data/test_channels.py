"""Images of 1 to 16 channels and of 8, 16 bits or floats: values by hand, RGB where both can be, refusals."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import robustkit
from corruptions import CORRUPTIONS, PRESETS, corruption
from corruptions.base import Draws, TorchRng
from corruptions.constants import NEEDS_COLOUR
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.channels import channel_pixels, looked_at
from robustkit.data.dataset import open_dataset
from robustkit.data.images import read_image, to_pixels, to_unit_range
from robustkit.errors import BadImageError, DataError, ModelError, ProtocolError, RunError
from robustkit.runs.folder import RunFolder
from robustkit.slices.predictions.export import export_data

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE = 32
ATTACKS = "fgsm(eps=4/255),pgd(eps=4/255,steps=3,random_start=False)"
OPTIONS: dict[str, Any] = {"setup_check": False, "evidence": "none"}


def bytes_of(values: np.ndarray[Any, Any], kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "npy":
        np.save(stream, values)
    elif kind == "tiff":
        more = {"planarconfig": "contig"} if values.ndim == 3 else {}
        tifffile.imwrite(stream, values, photometric="minisblack", **more)
    else:
        Image.fromarray(values).save(stream, kind)
    return stream.getvalue()


def shown(channels: int, size: tuple[int, int] = (SIDE, SIDE), **more: Any) -> Preprocessing:
    return Preprocessing(size, (0.0,) * channels, (1.0,) * channels, crop_pct=1.0, **more)


def drawn(*shape: int, dtype: str = "uint8", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("kind", ["npy", "tiff"])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border", "center-floor"])
def test_three_channels_of_8_bits_are_what_rgb_is(kind: str, crop_mode: str) -> None:
    values = drawn(45, 60, 3)
    as_rgb = read_image(bytes_of(values, "PNG"), "it")
    for interpolation in ("bicubic", "bilinear", "nearest", "lanczos"):
        p = Preprocessing((33, 32), (0.5,) * 3, (0.5,) * 3, interpolation, 0.9, crop_mode)
        expected = to_unit_range(to_pixels(as_rgb, p, "it"))
        assert torch.equal(channel_pixels(bytes_of(values, kind), p, "it"), expected)


def test_filters_that_overshoot_stay_in_the_range() -> None:
    steps = np.zeros((60, 60, 2), "float32")
    steps[:, 23:37] = 1.0
    pixels = channel_pixels(bytes_of(steps, "npy"), shown(2, interpolation="lanczos", value_range=(0.0, 1.0)), "it")
    assert (pixels.min(), pixels.max()) == (0, 1) and ((pixels > 0) & (pixels < 1)).any()
    plain = np.array(Image.fromarray(steps[..., 0]).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    assert plain.min() < 0 and plain.max() > 1  # without the clamp


def test_values_are_scaled_by_their_range() -> None:
    """Of an image that is not resized: v / 255 stays in 8 bits, v / 65535, and (v - low) / (high - low)."""
    eight, sixteen = drawn(SIDE, SIDE, 4), drawn(SIDE, SIDE, 4, dtype="uint16")
    in_255ths = to_unit_range(torch.tensor(eight).permute(2, 0, 1))
    assert torch.equal(channel_pixels(bytes_of(eight, "npy"), shown(4), "it"), in_255ths)
    for kind in ("npy", "tiff"):
        pixels = channel_pixels(bytes_of(sixteen, kind), shown(4), "it")
        assert pixels.dtype == torch.float32
        assert np.allclose(pixels.permute(1, 2, 0).numpy(), sixteen / 65535, rtol=0, atol=1e-7)
        assert len(np.unique(pixels.numpy())) > 256  # not read as 8 bits
    floats = (np.random.default_rng(0).random((SIDE, SIDE, 2)) * 300 - 100).astype(np.float32)
    p = shown(2, value_range=(-100.0, 200.0))
    for kind in ("npy", "tiff"):
        pixels = channel_pixels(bytes_of(floats, kind), p, "it")
        assert np.allclose(pixels.permute(1, 2, 0).numpy(), (floats + 100) / 300, rtol=0, atol=1e-6)
    small = channel_pixels(bytes_of(eight[..., :1], "npy"), shown(1, value_range=(0.0, 510.0)), "it")
    assert np.allclose(small.numpy()[0], eight[..., 0] / 510, atol=1e-7)
    grey = drawn(SIDE, SIDE, dtype="uint16")
    png = channel_pixels(bytes_of(grey, "PNG"), shown(1), "it")
    assert np.allclose(png[0].numpy(), grey / 65535, rtol=0, atol=1e-7)


def test_grey_stored_as_rgb_is_one_channel_or_three() -> None:
    grey = drawn(SIDE, SIDE)
    data = bytes_of(np.stack([grey] * 3, axis=2), "PNG")
    one = channel_pixels(data, shown(1), "it")
    three = channel_pixels(data, shown(3, value_range=(0.0, 255.0)), "it")
    assert one.shape == (1, SIDE, SIDE) and torch.allclose(three, one.expand(3, -1, -1), atol=1e-7)


def test_where_an_array_has_its_channels() -> None:
    values = drawn(20, 24, 5)
    expected, size = to_unit_range(torch.tensor(values).permute(2, 0, 1)), (20, 24)
    for array in (values, values.transpose(2, 0, 1)):
        assert torch.equal(channel_pixels(bytes_of(array, "npy"), shown(5, size), "it"), expected)
    assert torch.equal(channel_pixels(bytes_of(values[..., 0], "npy"), shown(1, size), "it"), expected[:1])
    with pytest.raises(BadImageError, match="may have its channels first or last"):
        channel_pixels(bytes_of(drawn(16, 20, 16), "npy"), shown(16), "it")
    planar = io.BytesIO()
    tifffile.imwrite(planar, values.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate")
    assert torch.equal(channel_pixels(planar.getvalue(), shown(5, size), "it"), expected)


def tiff_of(values: np.ndarray[Any, Any], photometric: str, **more: Any) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, values, photometric=photometric, **more)
    return stream.getvalue()


def png_of_16_bits() -> bytes:
    return bytes(cv2.imencode(".png", drawn(SIDE, SIDE, 3, dtype="uint16"))[1])


def pages(values: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    tifffile.imwrite(stream, values, photometric="minisblack", metadata={"axes": "ZYX"})
    return stream.getvalue()


def with_alpha(kind: str) -> bytes:
    stream, values = io.BytesIO(), drawn(SIDE, SIDE, 4)
    if kind == "tiff":
        tifffile.imwrite(stream, values, photometric="rgb", extrasamples=["unassalpha"])
    else:
        Image.fromarray(values, "RGBA").save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "channels", "words"),
    [
        (
            bytes_of(drawn(SIDE, SIDE, 4).astype(np.float32), "tiff"),
            4,
            "values are float32, of no usual range; state the",
        ),
        (bytes_of(drawn(SIDE, SIDE, 2).astype(np.int16), "npy"), 2, "values are int16, of no usual range"),
        (with_alpha("PNG"), 4, "has an alpha channel, which is no band"),
        (with_alpha("tiff"), 4, "has an alpha channel, which is no band"),
        (bytes_of(drawn(SIDE, SIDE, 3), "PNG"), 1, "3 channels, and the network takes 1"),
        (bytes_of(drawn(SIDE, SIDE), "PNG"), 4, "1 channels, and the network takes 4"),
        (bytes_of(drawn(SIDE, SIDE, 5), "npy"), 4, "an array of shape (32, 32, 5), and the network takes 4 channels"),
        (bytes_of(drawn(2, SIDE, SIDE, 4), "npy"), 4, "an array of shape (2, 32, 32, 4); expected (H, W, C)"),
        (bytes_of(np.array([{"a": 1}]), "npy"), 4, "not an array of numbers"),
        (bytes_of(drawn(SIDE, SIDE, 4), "npy")[:-50], 4, "not an array of numbers"),
        (b"\x93NUMPY\x01\x00\xff\xff", 4, "not an array of numbers"),
        (bytes_of(drawn(0, SIDE, 4), "npy"), 4, "uint8 of shape (0, 32, 4)"),
        (bytes_of(drawn(SIDE, SIDE, 4), "tiff")[:200], 4, "not a TIFF that can be read"),
        (pages(drawn(4, SIDE, SIDE)), 4, "axes ZYX of shape (4, 32, 32); expected one picture"),
        (tiff_of(drawn(SIDE, SIDE), "miniswhite"), 1, "photometric interpretation 0"),
        (tiff_of(drawn(SIDE, SIDE, 4), "separated"), 4, "photometric interpretation 5"),
        (tiff_of(drawn(SIDE, SIDE).astype(np.complex64), "minisblack"), 1, "values of complex64"),
        (tiff_of(drawn(SIDE, SIDE), "minisblack", extratags=[(274, 3, 1, 6, True)]), 1, "stored turned, orientation 6"),
        (png_of_16_bits(), 3, "a PNG of colours of 16 bits, which is read as 8; save it as TIFF or .npy"),
        (b"II*\0" + b"\xff" * 40, 4, "not a TIFF that can be read"),
        (b"", 4, "the file is empty"),
    ],
)
def test_what_is_refused_is_one_line(data: bytes, channels: int, words: str) -> None:
    with pytest.raises(BadImageError) as fault:
        channel_pixels(data, shown(channels), "it")
    assert words in str(fault.value) and "\n" not in str(fault.value) and str(fault.value).startswith("it")


def test_values_outside_the_range_and_nan_are_refused() -> None:
    p = shown(1, value_range=(0.0, 10.0))
    for value, words in ((10.0, ""), (10.001, "leave the range 0 to 10"), (-0.001, "leave the range"), (np.nan, "nan")):
        values = np.full((SIDE, SIDE, 1), 5, np.float64)
        values[3, 4] = value
        if not words:
            assert float(channel_pixels(bytes_of(values, "npy"), p, "it").max()) == 1.0
            continue
        with pytest.raises(BadImageError, match=words):
            channel_pixels(bytes_of(values, "npy"), p, "it")


def test_a_header_that_claims_too_much_is_refused_before_anything_is_allocated() -> None:
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (100000, 100000, 4)})
    with pytest.raises(BadImageError, match=r"float64 of shape \(100000, 100000, 4\)"):
        channel_pixels(huge.getvalue(), shown(4), "it")


@pytest.mark.parametrize(
    ("show", "channels", "expected"),
    [
        *(((), 3, [0, 1, 2]), ((), 1, [0, 0, 0]), ((), 2, [0, 0, 0]), ((), 8, [0, 1, 2])),
        *(((3, 2, 1), 8, [2, 1, 0]), ((8, 8, 8), 8, [7, 7, 7]), ((3, 2, 1), 3, [2, 1, 0])),
    ],
)
def test_channels_that_pictures_show(show: tuple[int, ...], channels: int, expected: list[int]) -> None:
    values = torch.arange(channels)[:, None, None].expand(channels, 2, 2)
    assert looked_at(values, show)[:, 0, 0].tolist() == expected


def linear_of_grey(seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network of RGB, and one of grey whose first weights are the sums over colours."""
    torch.manual_seed(seed)
    colour = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 3))
    shares = torch.tensor([0.2, 0.3, 0.5]).view(1, 3, 1, 1)  # of one sign, so that an attack changes colours alike
    colour[0].weight.data = colour[0].weight.data.sum(dim=1, keepdim=True) * shares
    grey = copy.deepcopy(colour)
    grey[0] = nn.Conv2d(1, 4, 3, padding=1)
    grey[0].weight.data = colour[0].weight.data.sum(dim=1, keepdim=True)
    grey[0].bias.data = colour[0].bias.data.clone()
    return colour, grey


def test_a_grey_network_is_a_network_of_rgb_on_grey_images(tmp_path: Path) -> None:
    """Logits, and changes in pixels: the same sign in each channel, of three and of one."""
    colour, grey = linear_of_grey()
    for kind in range(3):
        for number in range(4):
            (tmp_path / "data" / str(kind)).mkdir(parents=True, exist_ok=True)
            image = drawn(SIDE, SIDE, seed=10 * kind + number)
            Image.fromarray(image).save(tmp_path / "data" / str(kind) / f"{number}.png")
    rows = {}
    for name, network, mean in (("colour", colour, (0.5, 0.5, 0.5)), ("grey", grey, (0.5,))):
        options: dict[str, Any] = {
            "data_dir": tmp_path / "data",
            "attacks": "fgsm(eps=4/255),pgd(eps=4/255,steps=3,random_start=False)",
        }
        run = robustkit.audit(
            network, mean=mean, std=tuple(0.5 for _ in mean), img_size=SIDE, out=tmp_path / name, **options, **OPTIONS
        )
        entry = run.manifest.checkpoints[0]
        assert len(entry.preprocessing.mean) == len(mean)
        columns = ["prediction", "nll", "linf"]
        rows[name] = [run.table(entry.name, text, columns).to_pydict() for text in run.manifest.conditions]
        assert len(rows[name]) == 3
    for one, other in zip(rows["colour"], rows["grey"], strict=True):
        assert one["prediction"] == other["prediction"]
        assert np.allclose(one["nll"], other["nll"], rtol=1e-4, atol=1e-5) and np.allclose(one["linf"], other["linf"])


@pytest.mark.parametrize("channels", [1, 4, 16])
def test_a_file_says_how_many_channels_its_network_takes(channels: int, tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=4, in_chans=channels)
    save_file({name: each.contiguous() for name, each in network.state_dict().items()}, tmp_path / "net.safetensors")
    options: dict[str, Any] = {"arch": "resnet10t", "num_classes": 4, "img_size": SIDE, "mean": (0.1,)}
    model = robustkit.load(tmp_path / "net.safetensors", std=(0.2,), **options)
    assert model.identity.preprocessing.mean == (0.1,) * channels
    pixels = torch.rand(2, channels, SIDE, SIDE)
    assert torch.allclose(model(pixels), network.eval()((pixels - 0.1) / 0.2), atol=1e-5)
    with pytest.raises(
        ModelError,
        match=f"expected one for all or {channels} finite numbers" if channels > 1 else "expected one finite number",
    ):
        robustkit.load(tmp_path / "net.safetensors", std=(0.2,) * (channels + 1), **options)


def files(root: Path, channels: int, kind: str, dtype: str = "uint8") -> Path:
    for label in range(2):
        (root / f"c{label}").mkdir(parents=True)
        for number in range(3):
            values = drawn(SIDE, SIDE, channels, dtype=dtype, seed=3 * label + number)
            (root / f"c{label}" / f"{number}.{kind}").write_bytes(bytes_of(values, kind))
    return root


def small_net(channels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 2))


def test_an_audit_of_four_channels_of_16_bits(tmp_path: Path) -> None:
    data = files(tmp_path / "data", 4, "npy", "uint16")
    options: dict[str, Any] = {"mean": (0.2, 0.4, 0.4, 0.5), "std": (0.5,) * 4, "img_size": SIDE, **OPTIONS}
    run = robustkit.audit(
        small_net(4),
        data_dir=data,
        attacks="fgsm(eps=8/255),square(queries=20)",
        corruptions="gaussian_noise(severity=3),contrast(severity=2)",
        cams="gradient",
        show_channels=(4, 3, 2),
        out=tmp_path / "run",
        **options,
    )
    name = run.manifest.checkpoints[0].name
    assert {"corruption(contrast,severity=2,preset=cifar)", "clean"} <= set(run.manifest.conditions)
    text = next(each for each in run.manifest.conditions if each.startswith("fgsm"))
    linf = run.table(name, text, ["linf"])["linf"].to_pylist()
    assert max(linf) == pytest.approx(8 / 255, abs=1e-6) and (tmp_path / "run" / "report.html").is_file()
    asked = {"cams": "gradient", "gallery": 2, "choose": "random", "faithfulness": "none"}
    for show, first in (((4, 3, 2), True), (None, False)):
        drawn_ones = robustkit.cam(small_net(4), data, show_channels=show, out=tmp_path / "maps", **asked, **options)
        for row in drawn_ones.rows:
            values = np.load(data / row.sample_id)[..., [3, 2, 1] if first else [0, 1, 2]]
            assert np.abs(row.image - values / 257).max() <= 0.5 + 1e-3
    coloured = "frost, saturate: defined on RGB, and images have 4 channels; leave them out: -frost, -saturate"
    with pytest.raises(ProtocolError, match=coloured):
        robustkit.audit(
            small_net(4),
            data_dir=data,
            corruptions="frost,saturate,fog",
            attacks="none",
            out=tmp_path / "no",
            **options,
        )
    with pytest.raises(ProtocolError, match="takes 4 channels; expected some of those"):
        robustkit.audit(
            small_net(4), data_dir=data, attacks="none", show_channels=(5, 4, 3), out=tmp_path / "no", **options
        )
    three = files(tmp_path / "three", 3, "npy")
    with pytest.raises(DataError, match=r"shape \(32, 32, 3\), and the network takes 4 channels"):
        robustkit.audit(small_net(4), data_dir=three, attacks="none", out=tmp_path / "no", **options)
    assert not (tmp_path / "no").exists()


def test_images_in_memory_have_as_many_channels_as_their_tensors(tmp_path: Path) -> None:
    """The records are those of the files with the same values."""
    data = files(tmp_path / "data", 5, "npy")
    paths = sorted(data.rglob("*.npy"))
    images = torch.stack([torch.from_numpy(np.load(path)).permute(2, 0, 1) for path in paths])
    labels = torch.tensor([int(path.parent.name[1]) for path in paths])
    options: dict[str, Any] = {"mean": (0.5,) * 5, "std": (0.5,) * 5, "img_size": SIDE, "attacks": "fgsm", **OPTIONS}
    of_files = robustkit.audit(small_net(5), data_dir=data, out=tmp_path / "files", **options)
    held = robustkit.audit(small_net(5), data_dir=(images, labels), out=tmp_path / "held", **options)
    floats = robustkit.audit(small_net(5), data_dir=(images / 255, labels), out=tmp_path / "floats", **options)
    losses = []
    for run in (of_files, held, floats):
        losses.append([row.value for row in run.summary() if row.metric == "nll"])
    assert losses[0] == losses[1] and np.allclose(losses[0], losses[2], atol=1e-6) and len(losses[0]) == 2
    with pytest.raises(DataError, match="has 5 channels, and the model takes 3"):
        robustkit.audit(small_net(3), data_dir=(images, labels), pixels=True, out=tmp_path / "no", attacks="none")


def test_grey_in_memory_is_what_it_is_in_files(tmp_path: Path) -> None:
    """As pictures of Pillow's, as arrays (H, W) and (H, W, 1), and as RGB of three equal channels."""
    data, greys = tmp_path / "data", [drawn(SIDE, SIDE, seed=k) for k in range(4)]
    for k, grey in enumerate(greys):
        (data / f"c{k % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey).save(data / f"c{k % 2}" / f"{k}.png")
    options: dict[str, Any] = {"mean": 0.5, "std": 0.5, "img_size": SIDE, "attacks": "none", **OPTIONS}
    rows = robustkit.audit(small_net(1), data_dir=data, out=tmp_path / "files", **options).summary()
    for name, change in {
        "pictures": Image.fromarray,
        "flat": lambda grey: grey,
        "last": lambda grey: grey[:, :, None],
        "rgb": lambda grey: np.stack([grey] * 3, axis=2),
    }.items():
        images = [(change(grey), k % 2) for k, grey in enumerate(greys)]
        run = robustkit.audit(small_net(1), data_dir=images, out=tmp_path / name, **options)
        assert [row.value for row in run.summary()] == [row.value for row in rows], name
    colours = [(drawn(SIDE, SIDE, 3, seed=k), k % 2) for k in range(4)]
    with pytest.raises(DataError, match="has 3 channels, and the model takes 1"):
        robustkit.audit(small_net(1), data_dir=colours, out=tmp_path / "no", **options)


def test_features_of_other_channels(tmp_path: Path) -> None:
    """A backbone of timm's with four channels, from .npy; three are refused for the training images, too."""
    data, three = files(tmp_path / "data", 4, "npy"), files(tmp_path / "three", 3, "npy")
    training = files(tmp_path / "training", 4, "npy")
    for path in training.rglob("*.npy"):
        np.save(path, 255 - np.load(path))  # no image is in both
    torch.manual_seed(0)
    net = timm.create_model("resnet10t", in_chans=4)
    options: dict[str, Any] = {
        "attacks": "none",
        "shots": "1",
        "neighbours": 1,
        "mean": (0.5,),
        "std": (0.5,),
        "img_size": SIDE,
    }
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    options |= {"arch": "resnet10t"}
    run = robustkit.features(
        tmp_path / "net.safetensors", data_dir=data, train=training, out=tmp_path / "run", **options
    )
    assert {row.n for row in run.summary() if row.condition == "clean"} == {6}
    for place in ({"data_dir": three, "train": training}, {"data_dir": data, "train": three}):
        with pytest.raises(DataError, match=r"shape \(32, 32, 3\), and the network takes 4 channels"):
            robustkit.features(tmp_path / "net.safetensors", out=tmp_path / "no", **place, **options)


def test_a_border_is_not_of_the_size_and_attributes_of_the_network_are_not_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for label in range(2):
        (data / f"c{label}").mkdir(parents=True)
        Image.fromarray(drawn(SIDE + 4, SIDE + 6, 3, seed=label)).save(data / f"c{label}" / "0.png")
    dataset = open_dataset(data, border=2)
    for value_range in (None, (0.0, 255.0)):
        preprocessing = shown(3, value_range=value_range)
        assert dataset.size(dataset.samples[0], preprocessing) == (SIDE, SIDE + 2)
    net = small_net(3)
    net.input_channels = 64  # type: ignore[assignment]
    options: dict[str, Any] = {"mean": 0.5, "std": 0.5, "img_size": SIDE, "attacks": "none", **OPTIONS}
    assert len(robustkit.audit(net, data_dir=data, out=tmp_path / "run", **options).summary()) > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_that_need_no_colour_do_the_same_to_each_channel(name: str) -> None:
    made = corruption(name, preset="imagenet" if name in PRESETS["imagenet"] else "cifar", texture="own")
    images = torch.from_numpy(drawn(2, 3, 32, 32))
    if name in NEEDS_COLOUR:
        with pytest.raises(ValueError, match=r"expected \(B, 3, H, W\), RGB"):
            made(images[:, :1], severity=3)
        return
    torch.manual_seed(0)
    draws = made.draw((3, 32, 32), 3, TorchRng(2))
    whole = made.apply(images.clone(), draws)
    for channel in range(3):
        of_one = {
            key: each[:, channel : channel + 1] if each.ndim == 4 and each.shape[1] == 3 else each
            for key, each in draws.numbers.items()
        }
        one = made.apply(images[:, channel : channel + 1].clone(), Draws(3, of_one))
        assert torch.equal(one, whole[:, channel : channel + 1])
    assert made(torch.cat([images, images], 1), severity=2).shape == (2, 6, 32, 32)


def test_transparency_that_rgb_drops_is_said(tmp_path: Path) -> None:
    for name, values in (("a", drawn(20, 20, 4)), ("b", drawn(20, 20, 3)), ("c", drawn(20, 20))):
        Image.fromarray(values).save(tmp_path / f"{name}.png")
    Image.fromarray(drawn(20, 20)).convert("LA").save(tmp_path / "d.png")
    dataset = open_dataset(tmp_path, layout="unlabelled")
    assert dataset.odd_note() == ()  # no file is read yet
    dataset.digest()
    assert dataset.odd_note() == ("2 of 4 images have an alpha channel, which is dropped, as timm does: a.png, d.png",)


def test_a_gallery_of_other_channels_is_of_a_data_set_alone(tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=2, in_chans=1)
    save_file({name: each.contiguous() for name, each in network.state_dict().items()}, tmp_path / "net.safetensors")
    data = files(tmp_path / "data", 1, "npy")
    options: dict[str, Any] = {"arch": "resnet10t", "num_classes": 2, "img_size": SIDE, "mean": (0.5,), "std": (0.5,)}
    checkpoint = str(tmp_path / "net.safetensors")
    gallery = robustkit.cam(checkpoint, data, gallery=1, limit=2, cams="gradient", out=tmp_path / "run", **options)
    assert len(gallery.rows) == 1
    Image.fromarray(drawn(20, 20)).save(tmp_path / "a.png")
    with pytest.raises(ProtocolError, match="net takes no RGB of 8 bits, as which pictures are read; give --data-dir"):
        robustkit.cam(checkpoint, str(tmp_path / "a.png"), cams="gradient", **options)


def mixed(root: Path) -> Path:
    """The same values, of 8 bits, 16 bits, and floats in memory's form."""
    for label in range(2):
        (root / f"c{label}").mkdir(parents=True)
        for number in range(3):
            values = drawn(SIDE, SIDE, 2, seed=3 * label + number)
            wide = values if number % 2 else values.astype(np.uint16) * 257
            (root / f"c{label}" / f"{number}.npy").write_bytes(bytes_of(wide, "npy"))
    return root


def test_files_of_several_types_are_scaled_each_whatever_the_batch(tmp_path: Path) -> None:
    """257 times the 8-bit values is 16 bits of the same picture: figures are those of 8 bits alone."""
    data, same = mixed(tmp_path / "mixed"), files(tmp_path / "same", 2, "npy")
    options: dict[str, Any] = {"mean": (0.5,) * 2, "std": (0.5,) * 2, "img_size": SIDE, "attacks": "fgsm", **OPTIONS}
    losses = []
    for name, place, batch_size in (("one", data, 1), ("six", data, 6), ("same", same, 6)):
        run = robustkit.audit(small_net(2), data_dir=place, batch_size=batch_size, out=tmp_path / name, **options)
        losses.append([row.value for row in run.summary() if row.metric == "nll"])
        codes = {finding.code for row in run.summary() for finding in row.findings}
        assert ("labels/range-assumed" in codes) == (place is data)
    assert np.allclose(losses[0], losses[1], atol=1e-5) and np.allclose(losses[0], losses[2], atol=1e-4)


def test_where_other_channels_are_not_taken_one_line_says_so(tmp_path: Path) -> None:
    data = files(tmp_path / "data", 1, "npy")
    options: dict[str, Any] = {"data_dir": data, "img_size": SIDE, **OPTIONS}
    run = robustkit.audit(small_net(1), mean=(0.5,), std=(0.5,), attacks="none", out=tmp_path / "run", **options)
    with pytest.raises(RunError, match="takes no RGB of 8 bits, which PNG holds"):
        export_data(RunFolder.existing(run.path), "clean", tmp_path / "png", None, None)
    for number in range(2):
        (tmp_path / "grey" / str(number)).mkdir(parents=True)
        Image.fromarray(drawn(SIDE, SIDE, seed=number)).save(tmp_path / "grey" / str(number) / "a.png")
    with pytest.raises(ProtocolError, match="grey and colour take other channels; audit them separately"):
        robustkit.audit(
            {"grey": small_net(1), "colour": small_net(3)},
            mean=(0.5,),
            std=(0.5,),
            attacks="fgsm",
            transfer=True,
            out=tmp_path / "no",
            **options | {"data_dir": tmp_path / "grey"},
        )
    with pytest.raises(ModelError, match=r"mean is .* expected three finite numbers"):
        robustkit.load(small_net(3), mean=(0.5,) * 2, std=(0.5,) * 2, img_size=SIDE)


@pytest.mark.parametrize("channels", [1, 4])
def test_exported_networks_say_how_many_channels_they_take(channels: int, tmp_path: Path) -> None:
    network = small_net(channels).eval()
    example = torch.rand(2, channels, SIDE, SIDE)
    program = torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "net.pt2")
    model = robustkit.load(f"pt2:{tmp_path / 'net.pt2'}", mean=(0.1,), std=(0.2,))
    assert model.identity.preprocessing.mean == (0.1,) * channels
    assert torch.allclose(model(example), network((example - 0.1) / 0.2), atol=1e-5)
