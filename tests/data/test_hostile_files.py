"""Pictures, tables and archives that mean harm, read in a child: one line each, little memory and time, nothing run."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hostile_images
import hostile_tables
import numpy as np
import pytest
import small_audit
from bounded import MEMORY, SECONDS
from click.testing import CliRunner
from PIL import Image
from places import SUPPORT

from robustkit.cli.app import cli
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.data.images import encode_png, read_image, to_pixels
from robustkit.data.scenes import open_scenes
from robustkit.errors import BadImageError, RobustkitError
from robustkit.evaluations.maps.truth import open_truth
from robustkit.gate.policy import read_policy
from robustkit.models.checkpoint import read
from robustkit.models.segmenter import load_segmenter
from robustkit.protocol.card import load_card
from robustkit.results.published import read_published

pytestmark = pytest.mark.usefixtures("one_thread")
LONG = frozenset(
    (
        *("csv, 120 MB of empty lines", "csv, four million rows", "boxes of 400 000 images", "ids, ten million"),
        *("json, five million lists", "zip, a million members"),
    )
)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """An environment where Ghostscript is a program that tells of its start, and the file in which it does."""
    reported, stub = tmp_path / "started", tmp_path / "bin" / "gs"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\necho started >> {reported}\n")
    stub.chmod(0o755)
    yield os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}"}, reported


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hostile_pictures(tmp_path: Path, trap: tuple[dict[str, str], Path]) -> None:
    check(hostile_images, "IMAGES", list(hostile_images.IMAGES), tmp_path, trap[0])
    assert not trap[1].exists()


@pytest.mark.slow
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
    place: Path, tmp_path: Path, trap: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the commands: a data set, and a picture of one's own."""
    monkeypatch.setenv("PATH", trap[0]["PATH"])
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
        small_audit.command(place, tmp_path / "run", "--attacks", "none", "--data-dir", str(data))[3:],
        ["corrupt", str(mine), "--out", str(tmp_path / "corrupted")],
    ):
        fault = CliRunner().invoke(cli, words).exception
        assert isinstance(fault, RobustkitError) and fault.exit_code == 2 and hostile_images.REFUSED in str(fault)
    assert not trap[1].exists()


def test_a_thin_picture_is_no_harm_to_any_resize() -> None:
    """The resized size is what is bounded, so that one of 1:200 is read for a small model and not for a large one."""
    image = Image.new("RGB", (10, 2000))
    assert to_pixels(image, Preprocessing()).shape == (3, 224, 224)
    for p in (Preprocessing(input_size=(700, 700)), Preprocessing(crop_pct=0.2), Preprocessing(input_size=(700, 500))):
        with pytest.raises(
            BadImageError, match=r"x: 10 x 2000 pixels: too narrow, since resized it would be \d+ x \d+, at"
        ):
            to_pixels(image, p, "x")
    assert to_pixels(image, Preprocessing(input_size=(700, 700), crop_mode="squash")).shape == (3, 700, 700)
    with pytest.raises(BadImageError, match="since resized it would be 0 x 256"):
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


# --- what is not a plain file -----------------------------------------------------------------------------------------


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


# --- formats ---------------------------------------------------------------------------------------------------------


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
