"""Data sets that mean harm: bombs, zips that lie, links, tables of labels, ids that name files."""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import page_runs
import pytest
import small_audit
from bounded import at_most
from manifests import write_plain
from PIL import Image
from sealing import seal

from robustkit.common.finding import Finding
from robustkit.data.dataset import open_dataset
from robustkit.data.images import encode_png, read_image
from robustkit.errors import BadImageError, DataError
from robustkit.report.refresh import refresh

pytestmark = pytest.mark.usefixtures("one_thread")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(side: int, extra: bytes = b"") -> bytes:
    size = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + size + extra + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def jpeg(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", side, side)
    return bytes(data)


BOMBS = {
    "png": (png(100_000), "100000 x 100000 pixels; at most 80 million are supported; shrink it"),
    "jpeg": (jpeg(65_535), "65535 x 65535 pixels; at most 80 million are supported; shrink it"),
    "text": (png(4, chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(50 << 20)))), "Decompressed data too large"),
    "profile": (png(4, chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(50 << 20)))), "Decompressed data too large"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_picture_that_claims_too_much_is_refused_before_it_is_decoded(kind: str) -> None:
    data, message = BOMBS[kind]
    with at_most(200 << 20), pytest.raises(BadImageError, match=message):
        read_image(data, "bomb")


def test_a_run_skips_and_counts_bombs(place: Path, tmp_path: Path) -> None:
    """One run of all that data can do: pictures and a zip's members that claim too much, and odd names and sizes."""
    archive = tmp_path / "bombs.zip"
    long = "long " * 40 + ".png"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for folder in "abc":
            made.writestr(f"{folder}/1.png", encode_png(np.full((1, 1, 3), 9, np.uint8)))
        made.writestr("a/ünïcödé 图像 🦉.png", encode_png(np.zeros((3, 3, 3), np.uint8)))
        made.writestr(f"b/{long}", encode_png(np.zeros((3, 3, 3), np.uint8)))
        made.writestr("c/bomb.png", png(100_000))
        made.writestr("c/bomb.jpg", jpeg(65_535))
        with made.open("c/zeros.bmp", "w") as member:
            for _ in range(100):
                member.write(bytes(1 << 20))
    assert archive.stat().st_size < 200_000
    out = tmp_path / ("lang " * 30) / "läuft 跑"
    with at_most(500 << 20):
        run = small_audit.audit(place, out, attacks="fgsm", data_dir=archive)
    reported = {row.sample_id: re.sub(r"\d+ bytes", "N bytes", row.error) for row in run.manifest.bad_images}
    assert reported == {
        "c/bomb.png": "c/bomb.png: 100000 x 100000 pixels; at most 80 million are supported; shrink it",
        "c/bomb.jpg": "c/bomb.jpg: 65535 x 65535 pixels; at most 80 million are supported; shrink it",
        "c/zeros.bmp": "c/zeros.bmp: N bytes in the zip inflate to 104857600, which is implausible for an image; not "
        "read",
    }
    assert run.table("net", "clean")["sample_id"].to_pylist()[:2] == ["a/1.png", "a/ünïcödé 图像 🦉.png"]
    results = run.results()
    assert set(results["n"]) == {5} and (out / "report.html").is_file()
    unread = Finding("data/unreadable", "3 of 8 images could not be read; excluded", "limit").to_plain()
    assert results["flags"].map(lambda findings: unread in findings).all()


def claimed(path: Path, size: int) -> None:
    """Let the only member of a zip claim a size, here and in its directory."""
    data = bytearray(path.read_bytes())
    data[22:26] = data[data.index(b"PK\x01\x02") + 24 :][:4] = struct.pack("<I", size)
    start = data.index(b"PK\x01\x02") + 24
    data[start : start + 4] = struct.pack("<I", size)
    path.write_bytes(data)


def test_a_zip_that_lies_about_its_sizes(tmp_path: Path) -> None:
    for size, message in (
        ((1 << 30) + 1, r"a/1\.png: claims 1073741825 bytes in the zip; not read"),
        (1 << 28, r"a/1\.png: \d+ bytes in the zip inflate to 268435456, which is implausible for an image; not read"),
        (10, r"a/1\.png: cannot be read from the zip: Bad CRC"),  # no more than that is inflated
    ):
        path = tmp_path / f"{size}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/1.png", bytes(64 << 20))
        claimed(path, size)
        dataset = open_dataset(path)
        with at_most(50 << 20), pytest.raises(BadImageError, match=message):
            dataset.read(dataset.samples[0])


def test_links_are_followed_by_reading_and_nothing_but_plain_files_is_read(tmp_path: Path) -> None:
    """A data set may be a tree of links, as ImageNet's subsets often are; a link only ever gives an image."""
    outside, inside = tmp_path / "secret.png", tmp_path / "set" / "a"
    inside.mkdir(parents=True)
    outside.write_bytes(encode_png(np.full((2, 2, 3), 7, np.uint8)))
    (tmp_path / "password").write_text("hunter2")
    for name, target in (("0", outside), ("1", tmp_path / "none"), ("2", "/dev/null"), ("4", tmp_path / "password")):
        (inside / f"{name}.png").symlink_to(target)
    os.mkfifo(inside / "3.png")
    dataset = open_dataset(tmp_path / "set")
    said = []
    for sample in dataset.samples:
        try:
            said.append(str(dataset.image(sample).getpixel((0, 0))))
        except BadImageError as fault:
            said.append(str(fault))
    assert said == [
        "(7, 7, 7)",
        "a/1.png: cannot be read: No such file or directory",
        "a/2.png: not a plain file; not read",
        "a/3.png: not a plain file; not read",
        "a/4.png: not an image of a supported format (starts with b'hunter2'); expected JPEG, PNG, WEBP, BMP, TIFF, "
        "GIF, PPM or AVIF",
    ]
    assert len(dataset.digest()) == 64


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a/1.png,1000000\nb/2.png,0\n", "label 1000000: expected the index of a class, of 6 digits at most"),
        (f"a/1.png,{'9' * 5000}\nb/2.png,0\n", "expected the index of a class, of 6 digits at most"),
        ("a/../../../etc/passwd,0\n", "points outside the data set"),
        (f"a/1.png,{'x' * 200_000}\n", "not a readable CSV of labels .field larger than field limit"),
    ],
)
def test_label_tables_that_mean_harm(tmp_path: Path, table: str, message: str) -> None:
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        (tmp_path / "set" / name).write_bytes(encode_png(np.zeros((1, 1, 3), np.uint8)))
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(tmp_path / "set", labels_csv=tmp_path / "t.csv")
    assert "\n" not in str(caught.value)


def test_ids_name_samples_and_no_files(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    for path in (tmp_path / "set" / "a" / "1.png", tmp_path / "secret.png"):
        path.write_bytes(encode_png(np.zeros((1, 1, 3), np.uint8)))
    dataset = open_dataset(tmp_path / "set")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png"):
        (tmp_path / "ids.txt").write_text(f"{name}\n")
        with pytest.raises(
            DataError,
            match=r"ids that do not identify exactly one sample of set: .*; an id looks "
            r"like 'a/1.png'",
        ):
            dataset.select(ids=tmp_path / "ids.txt")


@pytest.mark.usefixtures("whole_figures")
def test_ten_thousand_classes(tmp_path: Path) -> None:
    count = 10_000
    classes = [f"class {place:05d}" for place in range(count)]
    run = page_runs.make_run(
        tmp_path / "run", ("one",), tuple(classes), tuple(f"{i:05d}.png" for i in range(12)), shown=False
    )
    manifest = run.manifest.to_plain()
    manifest["data"]["classes"] = manifest["checkpoints"][0]["num_classes"] = count
    write_plain(run, manifest)
    seal(run)
    assert refresh(run) and (run.path / "report.html").stat().st_size < 5_000_000
    for name in classes[::10]:
        (tmp_path / "set" / name).mkdir(parents=True)
    path = tmp_path / "set" / classes[-10] / "ü.png"
    path.write_bytes(encode_png(np.zeros((1, 1, 3), np.uint8)))
    dataset = open_dataset(tmp_path / "set", num_classes=count, class_names=classes)
    assert [sample.label for sample in dataset.samples] == [count - 10]
