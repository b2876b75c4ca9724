"""Pictures, tables and archives that mean harm, read in a child: one line each, little memory and time, nothing run."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hostile_images
import hostile_tables
import numpy as np
import pytest
import small_audit
import torch
from bounded import at_most
from click.testing import CliRunner
from PIL import Image
from places import SUPPORT
from safetensors.torch import save_file

from robustkit.cli.app import cli
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.data.images import encode_png, read_image, to_pixels
from robustkit.data.scenes import open_scenes
from robustkit.errors import BadImageError, CheckpointError, ModelError, RobustkitError
from robustkit.evaluations.maps.truth import open_truth
from robustkit.gate.policy import read_policy
from robustkit.models.checkpoint import read
from robustkit.models.claims import Allowance
from robustkit.models.classifier import load
from robustkit.models.segmenter import load_segmenter
from robustkit.protocol.card import load_card
from robustkit.results.published import read_published

pytestmark = pytest.mark.usefixtures("one_thread")
MEMORY, SECONDS = 3 << 29, 10  # 1.5 GB, with torch and all libraries; of processor time
LONG = frozenset(
    (
        *("csv, 120 MB of empty lines", "csv, four million rows", "boxes of 400 000 images", "ids, ten million"),
        *("json, five million lists", "zip, a million members"),
    )
)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """An environment where Ghostscript is a program that tells of its start, and the file in which it does."""
    told, stub = tmp_path / "started", tmp_path / "bin" / "gs"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\necho started >> {told}\n")
    stub.chmod(0o755)
    yield os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}"}, told


def check(module: Any, table: str, names: list[str], place: Path, environment: dict[str, str]) -> None:
    """Every case says in one line what is expected, within the bounds."""
    folder = place / table
    folder.mkdir()
    words = [sys.executable, str(SUPPORT / "hostile_child.py"), module.__name__, table, str(folder), *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1500, env=environment, cwd=SUPPORT)
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(found) == names, done.stderr[-2000:]
    cases = getattr(module, table)
    wrong = [
        (name, row)
        for name, row in found.items()
        if not re.search(cases[name][1], row["said"])
        or "\n" in row["said"]
        or row["peak"] > MEMORY
        or row["seconds"] > SECONDS
    ]
    assert not wrong
    made = {path.name for path in folder.rglob("*")} & {"evil", "passwd", "made by a pickle"}
    assert not made


@pytest.mark.timeout(900)
def test_hostile_pictures(tmp_path: Path, trap: tuple[dict[str, str], Path]) -> None:
    check(hostile_images, "IMAGES", list(hostile_images.IMAGES), tmp_path, trap[0])
    assert not trap[1].exists()


@pytest.mark.timeout(900)
def test_hostile_tables_and_archives(tmp_path: Path, trap: tuple[dict[str, str], Path]) -> None:
    names = [name for name in hostile_tables.TABLES if name not in LONG]
    check(hostile_tables, "TABLES", names, tmp_path, trap[0])
    assert not trap[1].exists()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_largest_pictures_and_tables(tmp_path: Path, trap: tuple[dict[str, str], Path]) -> None:
    check(hostile_images, "LARGE", list(hostile_images.LARGE), tmp_path, trap[0])
    check(hostile_tables, "TABLES", sorted(LONG), tmp_path, trap[0])


def test_no_program_is_started_for_a_picture_of_any_name(
    place: Path, tmp_path: Path, trap: tuple[dict[str, str], Path]
) -> None:
    """Through the commands: a data set, a picture of one's own, a kept gallery."""
    data, mine = tmp_path / "set", tmp_path / "mine.jpg"
    for letter in "abc":
        (data / letter).mkdir(parents=True)
        (data / letter / "1.png").write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8)))
    for path in (data / "a" / "photo.jpg", mine):
        path.write_bytes(hostile_images.EPS)
    (data / "b" / "loop.png").symlink_to("loop.png")
    (data / "loop").symlink_to("loop")
    small_audit.audit(place, tmp_path / "run", attacks="none", data_dir=data)
    for words in (
        small_audit.command(place, tmp_path / "run", "--attacks", "none", "--data-dir", str(data)),
        [sys.executable, "-m", "robustkit", "corrupt", str(mine)],
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=trap[0], cwd=tmp_path)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 2 and last.startswith("error: ") and hostile_images.REFUSED in last, done.stderr
        assert "Traceback" not in done.stderr
    assert not trap[1].exists()


def test_a_thin_picture_is_no_harm_to_any_resize() -> None:
    """The resized size is what is bounded, so that one of 1:200 is read for a small model and not for a large one."""
    image = Image.new("RGB", (10, 2000))
    assert to_pixels(image, Preprocessing()).shape == (3, 224, 224)
    for p in (Preprocessing(input_size=(700, 700)), Preprocessing(crop_pct=0.2), Preprocessing(input_size=(700, 500))):
        with pytest.raises(
            BadImageError, match=r"x: 10 x 2000 pixels are too thin: resized they would be \d+ x \d+, at"
        ):
            to_pixels(image, p, "x")
    assert to_pixels(image, Preprocessing(input_size=(700, 700), crop_mode="squash")).shape == (3, 700, 700)
    with pytest.raises(BadImageError, match="resized they would be 0 x 256"):
        to_pixels(Image.new("RGB", (1, 2000)), Preprocessing(crop_mode="border"))


def test_the_size_of_a_resize_is_timms() -> None:
    from timm.data.transforms_factory import transforms_imagenet_eval

    from robustkit.data.images import _resized

    random = np.random.default_rng(0)
    for _ in range(200):
        width, height = (int(side) for side in random.integers(1, 90, 2))
        size = tuple(int(side) for side in random.integers(8, 40, 2))
        p = Preprocessing(
            input_size=(size[0], size[0]) if random.integers(2) else (size[0], size[1]),
            crop_pct=float(random.uniform(0.3, 1)),
            crop_mode=("center", "squash", "border")[random.integers(3)],
        )
        found = _resized(height, width, p)
        if min(found) < 1:
            continue
        options: dict[str, Any] = {"img_size": p.input_size, "crop_pct": p.crop_pct, "crop_mode": p.crop_mode}
        resize: Any = transforms_imagenet_eval(**options, normalize=False).transforms[0]
        made = resize(Image.new("RGB", (width, height)))
        assert max(abs(made.height - found[0]), abs(made.width - found[1])) <= 1, p


# --- what is no plain file -------------------------------------------------------------------------------------------


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A read that never ends becomes an error."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def opened_by(path: Path, root: Path) -> dict[str, Callable[[], Any]]:
    """Everything that reads a file, of this one."""
    words = {
        "config": ["list", "attacks", "--config", str(path)],
        "policy": ["check", str(root / "run"), "--policy", str(path)],
        "picture": ["corrupt", str(path)],
        "checkpoint": ["inspect", str(path)],
    }

    def command(name: str) -> Callable[[], Any]:
        def call() -> None:
            fault = CliRunner().invoke(cli, words[name], standalone_mode=False).exception
            if fault is not None:
                raise fault

        return call

    dataset = open_dataset(root / "images")
    return {
        **{f"{name} by its command": command(name) for name in words},
        "checkpoint": lambda: read(path),
        "segmenter": lambda: load_segmenter(path),
        "policy": lambda: read_policy(path),
        "card": lambda: load_card(str(path)),
        "reference": lambda: read_published(str(path)),
        "data": lambda: open_dataset(path),
        "labels": lambda: open_dataset(root / "images", labels_csv=path),
        "real labels": lambda: open_dataset(root / "val", real_labels=path),
        "ids": lambda: dataset.select(ids=path),
        "boxes": lambda: open_truth(dataset, boxes=path),
        "masks": lambda: open_truth(dataset, masks=path),
        "classes": lambda: open_scenes(root / "images", masks=root / "masks", classes=path),
    }


@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/zero"])
def test_what_is_no_plain_file_is_refused_before_it_is_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "masks").mkdir()
    for name in ("images/a/1.png", "images/b/2.png", "masks/1.png", "val/ILSVRC2012_val_00000001.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(hostile_tables.PIXEL)
    path = tmp_path / "x.toml"  # cards and references are known by this suffix
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        path.symlink_to(kind)
    for name, call in opened_by(path, tmp_path).items():
        with within(60), pytest.raises(RobustkitError) as caught:
            call()
        assert "\n" not in str(caught.value), name
        named = ("card", "reference", "masks", "policy by its command")
        assert "not a plain file" in str(caught.value) or name in named, (name, caught.value)


# --- what a file claims of its network -------------------------------------------------------------------------------

VIT = "vit_tiny_patch16_224"
SMALL = {"embed_dim": 48, "depth": 1, "num_heads": 3, "patch_size": 8, "img_size": 16}


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    import timm

    torch.manual_seed(0)
    return dict(timm.create_model(VIT, num_classes=4, **SMALL).state_dict())


def saved(path: Path, tensors: dict[str, torch.Tensor], **metadata: Any) -> Path:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    save_file(tensors, path, texts)
    return path


TOO_MUCH = "asks for many times the .* numbers that it holds; refused, for it would fill the memory"
NETWORKS: list[tuple[dict[str, Any], str]] = [
    (
        {"arch_kwargs": SMALL | {"depth": 10**9}},
        r"arch_kwargs has depth = 1000000000; expected a text, or numbers up to",
    ),
    ({"arch_kwargs": SMALL | {"depth": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"embed_dim": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"img_size": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"mlp_ratio": 60_000}}, TOO_MUCH),
    ({"arch_kwargs": SMALL | {"reg_tokens": -5}}, "cannot be built with"),
    ({"arch_kwargs": SMALL | {"depth": [10**9] * 3}}, "arch_kwargs has depth"),
    ({"arch_kwargs": SMALL | {"embed_dim": 10**400}}, "arch_kwargs has embed_dim"),
    ({"arch_kwargs": SMALL | {"block_fn": "os.system"}}, "arch_kwargs holds block_fn; expected only the shape"),
    ({"arch_kwargs": SMALL | {"features_only": True}}, "arch_kwargs holds features_only; expected only the shape"),
    ({"arch_kwargs": SMALL | {"norm_layer": {"a": 1}}}, "arch_kwargs has norm_layer = {'a': 1}; expected a text"),
    ({"arch_kwargs": SMALL, "num_classes": 10**9}, "num_classes is 1000000000; expected a whole number of at most"),
    ({"arch_kwargs": SMALL, "num_classes": 10**6}, f"{TOO_MUCH}|does not fit"),
    ({"arch_kwargs": SMALL, "num_classes": -1}, "num_classes is -1; expected a whole number"),
    ({"arch": "eva_giant_patch14_224", "arch_kwargs": {}}, TOO_MUCH),
    (
        {"arch_kwargs": {"depth": 1}, "input_size": [10**9, 10**9]},
        "image size is .*; expected one or two .* up to 2048",
    ),
    ({"arch_kwargs": SMALL, "num_classes": 4, "crop_pct": 1e-9}, r"crop_pct is 1e-09; expected a number in \[0.1, 1\]"),
    ({"arch_kwargs": SMALL, "num_classes": 4, "std": [10**400, 1, 1]}, "expected three finite numbers above 0"),
    ({"arch_kwargs": SMALL, "num_classes": 4, "mean": [0.5] * 100_000}, "expected three finite numbers in"),
]


@pytest.mark.parametrize(("metadata", "message"), NETWORKS)
def test_a_file_cannot_ask_for_more_than_it_holds(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path / "a.safetensors", tensors, **({"arch": VIT} | metadata))
    began = time.process_time()
    with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message) as caught:
        load(path)
    assert len(str(caught.value)) < 1000 and time.process_time() - began < SECONDS
    assert load(saved(path, tensors, arch=VIT, arch_kwargs=SMALL, num_classes=4)).identity.num_classes == 4


def test_nor_can_a_config_beside_it(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    saved(tmp_path / "model.safetensors", tensors)
    for content, message in (
        ({"model_args": SMALL | {"depth": 10**9}}, "arch_kwargs has depth"),
        ({"model_args": SMALL, "num_classes": 10**9}, "num_classes is 1000000000"),
        ({"model_args": SMALL, "num_classes": 4, "pretrained_cfg": {"std": [1e-300] * 3}}, "finite numbers above 0"),
        ({"model_args": SMALL, "num_classes": 4, "pretrained_cfg": {"crop_pct": 1e-9}}, "crop_pct is 1e-09"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architecture": VIT, **content}))
        with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message):
            load(f"local-dir:{tmp_path}")


def of_shapes(path: Path, tensors: dict[str, torch.Tensor], claimed: dict[str, list[int]]) -> Path:
    """A safetensors file, some tensors of which have no numbers, so that their shapes may claim anything."""
    entries: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        shape = claimed.get(name, list(tensor.shape))
        size = 0 if 0 in shape else 4 * tensor.numel()
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += tensor.numpy().tobytes()[:size]
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_nor_can_shapes_without_numbers_and_names_of_blocks(tmp_path: Path) -> None:
    import timm

    tensors = dict(timm.create_model(VIT, num_classes=4, depth=1, img_size=32).state_dict())
    path = tmp_path / "a.safetensors"
    for claimed in ({"head.weight": [10**9, 0]}, {"pos_embed": [1, 10**10 + 1, 0]}):
        with at_most(600 << 20), pytest.raises(CheckpointError, match=TOO_MUCH):
            load(of_shapes(path, tensors, claimed))
    for number, message in (
        ("9999", r"a block 9999 in \d+ tensors"),
        ("9" * 5000, "names that no plain ViT or DeiT has"),
    ):
        with at_most(600 << 20), pytest.raises(CheckpointError, match=message):
            load(saved(path, tensors | {f"blocks.{number}.norm1.weight": torch.zeros(192)}))
    assert load(saved(path, tensors)).identity.num_classes == 4


def test_segmenters_are_bounded_likewise(tmp_path: Path) -> None:
    from robustkit.models.segmenter_network import build_segmenter

    torch.manual_seed(0)
    shape = {key: value for key, value in SMALL.items() if key != "img_size"}
    network = build_segmenter(VIT, 3, window=32, arch_kwargs=shape, decoder_kwargs={"depth": 1, "heads": 2})
    own = dict(network.state_dict())
    said: dict[str, Any] = {"arch": VIT, "task": "segmentation", "input_size": [32, 32], "arch_kwargs": shape}
    said["decoder_kwargs"] = {"heads": 2}
    for metadata, message in (
        ({"arch_kwargs": shape | {"depth": 10**9}}, "arch_kwargs has depth"),
        ({"arch_kwargs": shape | {"depth": 60_000}}, TOO_MUCH),
        ({"decoder_kwargs": {"heads": 10**9}}, "decoder_kwargs has heads = 1000000000"),
        ({"input_size": [10**6, 10**6]}, "image size is .* up to 2048"),
        ({"short_side": 10**9}, "short side is 1000000000; expected 2048 at most; give --short-side"),
        ({"stride": [1, 1]}, r"stride is \[1, 1\] for windows of 32x32; expected an eighth of these at least"),
    ):
        path = saved(tmp_path / "a.safetensors", own, **(said | metadata))
        with at_most(600 << 20), pytest.raises((CheckpointError, ModelError), match=message):
            load_segmenter(path)
    assert load_segmenter(saved(path, own, **said)).identity.num_classes == 3


def test_the_allowance_leaves_honest_networks_alone() -> None:
    """Same numbers as without it, for each family; and several times the file's own are allowed."""
    import timm

    for arch in ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18", "convnext_atto"):
        torch.manual_seed(3)
        plain = timm.create_model(arch).state_dict()
        torch.manual_seed(3)
        with Allowance(plain, Path("x")):
            allowed = timm.create_model(arch).state_dict()
        assert all(torch.equal(plain[name], allowed[name]) for name in plain)
    with pytest.raises(CheckpointError, match="x: what it says of its network"), Allowance({}, Path("x")):
        torch.empty(1 << 40)


def test_weights_without_numbers_are_one_line(tmp_path: Path) -> None:
    torch.save({"head.weight": torch.empty(3, 4, device="meta"), "w": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(
        CheckpointError, match=r"a\.pth: 1 tensors on the meta device \(head\.weight\), without numbers"
    ):
        read(tmp_path / "a.pth")


# --- --config of someone else ----------------------------------------------------------------------------------------


def said_of(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    monkeypatch.chdir(place)
    fault = CliRunner().invoke(cli, words, standalone_mode=False, env=environment).exception
    return "" if fault is None else str(fault)


def test_a_config_runs_no_code_and_writes_nowhere_else_unless_it_is_trusted(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n{small_audit.FACTORY}")
    words = ["inspect", str(place / "net.pth"), "--config", "c.toml"]
    config = tmp_path / "c.toml"
    config.write_text("arch = 'evil.py:build'\n")
    expected = (
        "--config c.toml names code to run (arch = 'evil.py:build'); give --arch yourself, or --trust-config where you "
        "know who wrote the file"
    )
    assert said_of(words, tmp_path, monkeypatch) == expected
    config.write_text("[inspect]\narch = 'evil:build'\n")
    assert "names code to run (arch = 'evil:build')" in said_of(words, tmp_path, monkeypatch)
    config.write_text("arch = 'evil.py:build'\ntrust_config = true\n")
    assert "unknown option 'trust_config'" in said_of(words, tmp_path, monkeypatch)
    assert not (tmp_path / "ran").exists()
    config.write_text("arch = 'evil.py:build'\n")
    for trusted in (["--trust-config", *words[2:]], [*words[2:], "--trust-config"]):
        assert said_of([*words[:2], *trusted], tmp_path, monkeypatch) == "" and (tmp_path / "ran").exists()
        (tmp_path / "ran").rmdir()
    own = f"{place / 'net.py'}:build"  # what the person says outweighs the file, which then names no code
    assert said_of([*words, "--arch", own], tmp_path, monkeypatch) == ""
    assert said_of(words, tmp_path, monkeypatch, ROBUSTKIT_ARCH=own) == ""
    config.write_text("arch = 'resnet18'\n")
    assert "does not fit" in said_of(words, tmp_path, monkeypatch)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        (
            "out = '/etc/x'",
            ["audit", "x", "--data-dir", "y"],
            "writes outside the folder where you are (out = '/etc/x')",
        ),
        ("out = '../x'", ["demo"], "writes outside the folder where you are (out = '../x'); give --out yourself"),
        ("out = 'link/x'", ["demo"], "writes outside the folder where you are (out = 'link/x')"),
        ("policy = '../x.toml'", ["check", "run"], "is not a run folder"),
        ("policy = '../x.toml'", ["check", "run", "--init"], "writes outside the folder where you are (policy = '../x"),
        (
            "junit = '/x.xml'",
            ["check", "run"],
            "writes outside the folder where you are (junit = '/x.xml'); give --junit",
        ),
        ("json-file = '~/x'", ["check", "run"], "is not a run folder"),
        ("write = '/x'", ["corrupt"], "writes outside the folder where you are (write = '/x'); give --write yourself"),
        ("log = ['mlflow:http://x']", ["report", "run"], "unknown option 'log'"),
        ("logs = ['mlflow:http://x']", ["report", "run"], "sends results away (logs = 'mlflow:http://x'); give --log"),
    ],
)
def test_a_config_chooses_no_place_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str], message: str
) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "c.toml").write_text(line + "\n")
    assert message in said_of([*words, "--config", "c.toml"], tmp_path, monkeypatch)


# --- streams and memory ----------------------------------------------------------------------------------------------

KIT = f"{sys.executable} -m robustkit"


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    words = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


def test_a_reader_that_leaves_and_streams_that_are_closed() -> None:
    for line in ("list models | true", "list models | head -1", "--help | true"):
        status, out, error = shell(f"{KIT} {line}")
        assert (status, error) == (141, "") or (status == 0 and "head" in line and len(out.splitlines()) == 1), line
    assert shell(f"{KIT} list attacks >&-") == (0, "", "")
    assert shell(f"{KIT} list nothing 2>&-") == (2, "", "")
    assert shell(f"{KIT} list nothing >&-")[2].startswith("error: unknown kind 'nothing'")
    if Path("/dev/full").exists():
        status, _, error = shell(f"{KIT} list attacks > /dev/full")
        assert status == 2 and error == "error: OSError: [Errno 28] No space left on device; see --debug\n"


def test_letters_that_the_terminal_lacks() -> None:
    status, out, error = shell(f"{KIT} list datasets", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (status, error) == (0, "") and out.isascii() and "\\u2026" in out  # an ellipsis
    status, _, error = shell(f"{KIT} list 'ü…'", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert status == 2 and error.startswith("error: unknown kind '") and len(error.splitlines()) == 1


def test_too_little_memory_to_begin_with_is_one_line() -> None:
    status, out, error = shell(f"ulimit -v 600000; {KIT} inspect zoo:shapes-vit-quest")
    assert (status, out) == (2, "") and len(error.splitlines()) == 1
    assert error.startswith("error: too little memory (") and "raise the limit (ulimit -v)" in error
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # here it was not lowered


def test_every_format_is_read_as_pillow_reads_it() -> None:
    """Every format that is read, each mode that it has: Pillow's own pixels."""
    random = np.random.default_rng(0)
    noise = Image.fromarray(random.integers(0, 256, (40, 30, 3), np.uint8))
    for kind, modes in {
        **dict.fromkeys(("PNG", "TIFF", "WEBP"), ("RGB", "RGBA")),
        **dict.fromkeys(("JPEG", "BMP", "PPM", "MPO"), ("RGB", "L")),
        "GIF": ("P", "L"),
        "AVIF": ("RGB",),
    }.items():
        for mode in modes:
            data = hostile_images.saved(noise.convert(mode), kind)
            with Image.open(io.BytesIO(data)) as plain:
                assert read_image(data, "x").tobytes() == plain.convert("RGB").tobytes(), (kind, mode)
