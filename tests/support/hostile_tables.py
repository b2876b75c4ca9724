"""Tables, lists and archives that mean harm, each made in a folder by a function that returns what opens it."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.images import encode_png
from robustkit.data.scenes import open_scenes
from robustkit.evaluations.maps.truth import open_truth
from robustkit.gate.policy import read_policy
from robustkit.models.classifier import load
from robustkit.protocol.card import load_card
from robustkit.results.published import read_published

Opened = Callable[[], Any]
Case = tuple[Callable[[Path], Opened], str]
Data = bytes | str | Callable[[], bytes | str]
PIXEL = encode_png(np.zeros((1, 1, 3), np.uint8))
NAMES = ("a/1.png", "a/2.png", "b/3.png")
GIGABYTE = 1 << 30


def images(folder: Path) -> Path:
    """Three images of two classes, and a link that points at itself."""
    root = folder / "set"
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(PIXEL)
    (root / "loop").symlink_to("loop")
    (root / "a" / "loop.png").symlink_to("loop.png")
    return root


def written(path: Path, data: Data, sparse: int = 0) -> Path:
    data = data() if callable(data) else data
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    if sparse:
        os.truncate(path, sparse)
    return path


# --- tables and lists ------------------------------------------------------------------------------------------------


def labels(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        root, table = images(folder), written(folder / "t.csv", data, sparse)
        return lambda: open_dataset(root, labels_csv=table, num_classes=10).samples

    return make


def boxes(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        dataset = open_dataset(images(folder))
        table = written(folder / "t.csv", data, sparse)
        return lambda: open_truth(dataset, boxes=table).boxes

    return make


def xml(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        dataset = open_dataset(images(folder))
        (folder / "xml").mkdir()
        written(folder / "xml" / "1.xml", data, sparse)
        return lambda: open_truth(dataset, boxes=folder / "xml").boxes

    return make


def ids(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        dataset, table = open_dataset(images(folder)), written(folder / "ids.txt", data, sparse)
        return lambda: dataset.select(ids=table).samples

    return make


def classes(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        root, masks, table = images(folder), folder / "masks", written(folder / "c.txt", data, sparse)
        masks.mkdir()
        (masks / "1.png").write_bytes(PIXEL)
        return lambda: open_scenes(root, masks=masks, classes=table, layout="folders")

    return make


def real(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        root, table = folder / "set", written(folder / "real.json", data, sparse)
        root.mkdir()
        (root / "ILSVRC2012_val_00000001.png").write_bytes(PIXEL)
        return lambda: open_dataset(root, real_labels=table).samples

    return make


def config_json(data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        written(folder / "config.json", data, sparse)
        return lambda: load(f"local-dir:{folder}")

    return make


def toml(read: Callable[[Any], Any], data: Data, sparse: int = 0) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        path = written(folder / "a.toml", data, sparse)
        return lambda: read(path)

    return make


# --- archives --------------------------------------------------------------------------------------------------------


def archive(
    *members: tuple[str, Any], how: int = zipfile.ZIP_DEFLATED, change: Any = bytes
) -> Callable[[Path], Opened]:
    """A zip of these members. change: of its bytes, when all are written."""

    def make(folder: Path) -> Opened:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", how) as made:
            for name, data in members:
                info = zipfile.ZipInfo("placeholder")
                info.filename, info.compress_type = name, how
                made.writestr(info, data() if callable(data) else data)
        return opening(written(folder / "a.zip", change(buffer.getvalue())))

    return make


def opening(path: Path) -> Opened:
    """Open a zip as a data set, and read every image of it."""

    def call() -> str:
        dataset: Dataset = open_dataset(path, layout="unlabelled")
        for sample in dataset.samples:
            dataset.image(sample)
        return f"{len(dataset)} images"

    return call


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


def at_directory(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    """Change the entry of the first member, here and in its own header, `offset` bytes into the latter."""

    def change(data: bytes) -> bytes:
        start = data.index(b"PK\x01\x02")
        changed = bytearray(data)
        changed[offset : offset + len(value)] = value
        changed[start + offset + 2 : start + offset + 2 + len(value)] = value
        return bytes(changed)

    return change


def at_end(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        start = data.rindex(b"PK\x05\x06") + offset
        return data[:start] + value + data[start + len(value) :]

    return change


def directory(entries: Sequence[tuple[bytes, int]], body: bytes, sizes: tuple[int, int], how: int, crc: int) -> bytes:
    """A zip whose directory names (name, offset) of members of these sizes, compressed and not."""
    rows = [
        struct.pack(
            "<4sHHHHHHLLLHHHHHLL", b"PK\x01\x02", 20, 20, 0, how, 0, 33, crc, *sizes, len(name), 0, 0, 0, 0, 0, at
        )
        + name
        for name, at in entries
    ]
    listing = b"".join(rows)
    count, start = len(rows), len(body)
    big = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(listing), start)
    where = struct.pack("<4sLQL", b"PK\x06\x07", 0, start + len(listing), 1)
    few = min(count, 65_535)
    end = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, few, few, len(listing), start, 0)
    return body + listing + big + where + end


def shared_body(count: int) -> Callable[[Path], Opened]:
    """Many members that are the same bytes, as in a zip bomb of overlapping files."""

    def make(folder: Path) -> Opened:
        packed = zlib.compress(bytes(60 << 20), 9)[2:-4]
        crc = zlib.crc32(bytes(60 << 20))
        head = struct.pack("<4sHHHHHLLLHH", b"PK\x03\x04", 20, 0, 8, 0, 33, crc, len(packed), 60 << 20, 5, 0) + b"0.png"
        entries = [(b"0.png", 0)] + [(b"%d.png" % place, 0) for place in range(1, count)]
        return opening(written(folder / "a.zip", directory(entries, head + packed, (len(packed), 60 << 20), 8, crc)))

    return make


def million(count: int) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        names = [b"%07d.txt" % place for place in range(count)]
        body = b"".join(b"PK\x03\x04" + bytes(22) + struct.pack("<HH", len(name), 0) + name for name in names)
        entries = [(name, place * len(body) // count) for place, name in enumerate(names)]
        return opening(written(folder / "a.zip", directory(entries, body, (0, 0), 0, 0)))

    return make


def linked(folder: Path) -> Opened:
    with zipfile.ZipFile(folder / "a.zip", "w") as made:
        info = zipfile.ZipInfo("a.png")
        info.external_attr = 0o120777 << 16
        made.writestr(info, "/etc/passwd")
    return opening(folder / "a.zip")


def cifar(data: Data) -> Callable[[Path], Opened]:
    def make(folder: Path) -> Opened:
        written(folder / "test_batch", data)
        return lambda: open_dataset(folder)

    return make


class Calls:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made by a pickle",)


ENCODED = b"\x80\x02]q\x00(X" + struct.pack("<L", 1 << 20) + b"x" * (1 << 20) + b"q\x01c_codecs\nencode\nq\x02"
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
OBJECT = "<object><name>n</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>{}</xmax><ymax>1</ymax></bndbox></object>"
HEAD = "image,synset,xmin,ymin,xmax,ymax\n"
DEEP = 100_000
OUTSIDE = "points outside the data set; give paths relative to"
NO_IMAGE = "names no image under"
NOT_CSV = "not a readable CSV of labels"
CUT = r"more than the allowed \d+ MB"
NO_ZIP = "not a readable zip file"
FROM_ZIP = "cannot be read from the zip"
LEADS_OUT = "points outside the archive; the zip is refused"

TABLES: dict[str, Case] = {
    "csv, a million columns": (labels(lambda: "a/1.png" + ",0" * 1_000_000), "a line of more than"),
    "csv, 400 000 columns": (labels(lambda: "a," * 400_000 + "b\n"), "columns a, a, a, a, a and 399996 more"),
    "csv, a field of a gigabyte": (labels(lambda: "a/1.png,", GIGABYTE), CUT),
    "csv, a field of 100 MB": (labels(lambda: "a/1.png," + "x" * (100 << 20)), "a line of more than"),
    "csv, 120 MB of empty lines": (labels(lambda: "\n" * (120 << 20)), "more than 16777216 lines"),
    "csv, four million rows": (labels(lambda: "".join(f"{n},0\n" for n in range(4_000_000))), NO_IMAGE),
    "csv, NUL": (labels(lambda: "a/1.png\0,0\n"), f"{NOT_CSV}|{NO_IMAGE}"),
    "csv, UTF-16": (labels(lambda: "a/1.png,0\n".encode("utf-16")), NOT_CSV),
    "csv, latin-1": (labels(lambda: "ü/1.png,0\n".encode("latin-1")), NOT_CSV),
    "csv, a quote never closed": (labels(lambda: 'a/1.png,"0\n' + "x\n" * 300_000), f"{NOT_CSV} .field larger"),
    "csv, negative label": (labels(lambda: "a/1.png,-1\na/2.png,0\n"), "label '-1' is negative"),
    "csv, label 1e999": (labels(lambda: "a/1.png,1e999\n"), "expected a whole number such as 3"),
    "csv, label of 5000 digits": (labels(lambda: f"a/1.png,{'9' * 5000}\n"), "of 6 digits at most"),
    "csv, parent folders": (labels(lambda: "../../etc/passwd,0\n"), OUTSIDE),
    "csv, absolute": (labels(lambda: "/etc/passwd,0\n"), OUTSIDE),
    "csv, a drive": (labels(lambda: "C:\\windows,0\n"), OUTSIDE),
    "csv, control characters": (labels(lambda: "\x1b[2J\x07,0\n"), NO_IMAGE),
    "csv, a mark of byte order": (labels(lambda: "\ufeffa/1.png,0\na/2.png,1\nb/3.png,1\n"), "fine: "),
    "boxes, 1e999": (boxes(lambda: f"{HEAD}a/1.png,n,0,0,1e999,1\n"), "xmax is 1e999; expected a number"),
    "boxes, a million columns": (boxes(lambda: HEAD.strip() + ",x" * 600_000 + "\n"), "more than"),
    "boxes, 10 000 columns": (
        boxes(lambda: HEAD.strip() + ",x" * 10_000 + "\n" + "a\n" * 500_000),
        "more than 1000 columns",
    ),
    "boxes, a gigabyte": (boxes(lambda: HEAD, GIGABYTE), CUT),
    "boxes, a million": (boxes(lambda: HEAD + "a/1.png,n,0,0,2,2\n" * 1_000_000), "more than 600000 lines"),
    "boxes of 400 000 images": (
        boxes(lambda: HEAD + "".join(f"x{n},n,0,0,2,2\n" for n in range(400_000))),
        "of none of the",
    ),
    "boxes, a quote never closed": (
        boxes(lambda: f'{HEAD}a/1.png,"n\n' + "x\n" * 300_000),
        "field larger than field limit",
    ),
    "boxes, NUL": (boxes(lambda: f"{HEAD}a/1.png,n\0,0,0,2,2\n"), "line contains NUL|fine: |extends beyond"),
    "xml, a billion laughs": (
        xml(lambda: f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><annotation>&l9;</annotation>'),
        "a DOCTYPE; expected none, remove it",
    ),
    "xml, a file by an entity": (
        xml(lambda: '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'),
        "a DOCTYPE",
    ),
    "xml, nested deeply": (xml(lambda: "<a>" * DEEP + "</a>" * DEEP), "elements nested more than 32 deep"),
    "xml, a gigabyte": (xml(lambda: "<a>", GIGABYTE), CUT),
    "xml, a number of 5000 digits": (
        xml(lambda: f"<annotation>{OBJECT.format('9' * 5000)}</annotation>"),
        "expected a number",
    ),
    "xml, never closed": (xml(lambda: "<annotation><object>"), "not XML"),
    "ids, a gigabyte": (ids(lambda: "a/1.png\n", GIGABYTE), CUT),
    "ids, ten million": (
        ids(lambda: "".join(f"{n}\n" for n in range(10_000_000))),
        "more than 1012 ids, but set has 4 samples",
    ),
    "ids, control characters": (ids(lambda: "\x1b[2J\n"), "ids that do not identify exactly one sample"),
    "ids, UTF-16": (ids(lambda: "a/1.png\n".encode("utf-16")), "not a readable list of ids"),
    "classes, a gigabyte": (classes(lambda: "sky\n", GIGABYTE), CUT),
    "classes, 100 000": (
        classes(lambda: "".join(f"{n}\n" for n in range(100_000))),
        "100000 classes; expected 1 … 32767",
    ),
    "json, nested deeply": (real(lambda: "[" * DEEP), "nested too deeply"),
    "json, a whole number of 5000 digits": (real(lambda: f"[[{'9' * 5000}]]"), "Exceeds the limit"),
    "json, 1e999": (real(lambda: "[[1e999]]"), "expected a JSON list of lists of labels"),
    "json, five million lists": (real(lambda: "[" + "[]," * 5_000_000 + "[]]"), "no labelled image"),
    "json, a gigabyte": (real(lambda: "[", GIGABYTE), CUT),
    "config.json, nested deeply": (config_json(lambda: '{"a":' * DEEP), "nested too deeply"),
    "config.json, a gigabyte": (config_json(lambda: "{", GIGABYTE), CUT),
    "config.json, a list": (
        config_json(lambda: "[1]"),
        "names no architecture of timm and no model_type of transformers",
    ),
    "toml, nested deeply": (toml(read_policy, lambda: "a = " + "[" * DEEP), "nested too deeply"),
    "toml, a key of 400 000 parts": (
        toml(read_policy, lambda: "a." * 400_000 + "a = 1"),
        "a line with more than 1000 dots",
    ),
    "toml, a table of 400 000 parts": (
        toml(lambda path: load_card(str(path)), lambda: "[" + "a." * 400_000 + "a]"),
        "1000 dots",
    ),
    "toml, a gigabyte": (toml(lambda path: read_published(str(path)), lambda: "a = 1\n", GIGABYTE), CUT),
    "toml, a policy of a gigabyte": (toml(read_policy, lambda: "", GIGABYTE), CUT),
    "zip, parent folders": (archive(("../../a.png", PIXEL)), LEADS_OUT),
    "zip, absolute": (archive(("/etc/a.png", PIXEL)), LEADS_OUT),
    "zip, a drive": (archive(("C:/a.png", PIXEL)), LEADS_OUT),
    "zip, parents by backslashes": (archive(("..\\a.png", PIXEL)), LEADS_OUT),
    "zip, a link": (linked, "no images in it"),
    "zip, a member twice": (
        archive(("a.png", PIXEL), ("a.png", PIXEL)),
        "'a.png' occurs twice",
    ),
    "zip, a member twice by a backslash": (archive(("b/a.png", PIXEL), ("b\\a.png", PIXEL)), "occurs twice"),
    "zip, members that overlap": (shared_body(2000), "overlaps another; the zip is refused"),
    "zip, a million members": (million(1_000_000), "no images in it"),
    "zip, wrong CRC": (archive(("a.png", PIXEL), change=at_directory(14, b"evil")), FROM_ZIP),
    "zip, encrypted": (
        archive(("a.png", PIXEL), change=at_directory(6, b"\x01\0")),
        "is encrypted; decrypt the zip first",
    ),
    "zip, unknown method": (archive(("a.png", PIXEL), change=at_directory(8, b"\x63\0")), f"{FROM_ZIP}.*not supported"),
    "zip, LZMA with 4 GB of memory": (
        archive(
            ("a.png", bytes(1 << 20)), how=zipfile.ZIP_LZMA, change=replaced(b"\x5d\0\0\x80\0", b"\x5d\xff\xff\xff\xff")
        ),
        f"{FROM_ZIP}|not an image",
    ),
    "zip, bz2 of 50 MB": (
        archive(("a.png", lambda: bytes(50 << 20)), how=zipfile.ZIP_BZIP2),
        "not an image of a supported format",
    ),
    "zip, 100 MB of zeros": (
        archive(("a.png", lambda: bytes(100 << 20))),
        "inflate to 104857600, which is implausible",
    ),
    "zip, a size too large": (
        archive(("a.png", PIXEL), change=at_directory(22, b"\xff\xff\xff\x7f")),
        "not read|claims",
    ),
    "zip, a size too small": (archive(("a.png", PIXEL), change=at_directory(22, b"\x01\0\0\0")), FROM_ZIP),
    "zip in a zip": (archive(("a.zip", PIXEL)), "contains zip files, not images"),
    "zip, 65535 members that are not there": (
        archive(("a.png", PIXEL), change=at_end(8, b"\xff\xff\xff\xff")),
        "fine: 1 images",
    ),
    "zip, a directory at 4 GB": (
        archive(("a.png", PIXEL), change=at_end(16, b"\xff\xff\xff\x7f")),
        f"{NO_ZIP}|{FROM_ZIP}|overlaps|overlaps",
    ),
    "zip, a directory of 4 GB": (archive(("a.png", PIXEL), change=at_end(12, b"\xff\xff\xff\x7f")), NO_ZIP),
    "zip, a name of 60 kB": (archive(("x" * 60_000 + ".png", b"text")), "a member whose name has 60004 characters"),
    "zip, control characters": (archive(("\x1b[2J.png", PIXEL), ("b.png", PIXEL)), "fine: 1 images"),
    "zip, cut short": (archive(("a.png", PIXEL), change=lambda data: data[:60]), NO_ZIP),
    "cifar, a call": (cifar(pickle.dumps({"data": Calls()})), "the pickle imports posix.mkdir"),
    "cifar, a million marks": (
        cifar(lambda: b"\x80\x02" + b"(" * 5_000_000),
        "a pickle of 524288 instructions or more",
    ),
    "cifar, a text encoded a thousand times": (
        cifar(lambda: ENCODED + b"h\x02h\x01\x85R" * 1000 + b"e."),
        "more than a CIFAR-10",
    ),
    "cifar, a memo of 2^31": (cifar(lambda: b"\x80\x02Nr\xff\xff\xff\x7f."), "expected a CIFAR-10 dictionary"),
    "local-dir, a text of 10 MB": (
        config_json(lambda: json.dumps({"architecture": "x" * 10_000_000})),
        "no tensors in it",
    ),
}
