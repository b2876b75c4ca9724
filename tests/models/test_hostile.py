"""Files that mean harm: what the user sees, that nothing runs or is written elsewhere, that memory is bounded."""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import page_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_audit
import torch
from bounded import at_most
from click.testing import CliRunner
from PIL import Image
from sealing import seal

from robustkit.cli.app import cli
from robustkit.data.dataset import open_dataset
from robustkit.data.images import encode_png, read_image
from robustkit.errors import BadImageError, CheckpointError, DataError, ProtocolError, RobustkitError, RunError
from robustkit.models.checkpoint import read
from robustkit.protocol.card import load_card
from robustkit.report.refresh import refresh
from robustkit.results.run import Run
from robustkit.runs.binding import PAGES, SAMPLES, packed, provenance_of

pytestmark = pytest.mark.usefixtures("one_thread")
WEIGHTS = {"w": torch.arange(3.0)}
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

# --- checkpoints -----------------------------------------------------------------------------------------------------


class Calls:
    """Would call something if it were unpickled."""

    def __init__(self, what: Callable[..., Any], *arguments: Any) -> None:
        self.what, self.arguments = what, arguments

    def __reduce__(self) -> Any:
        return self.what, self.arguments


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("place", "named"),
    [
        (lambda call: {"model": WEIGHTS, "optimizer": {"state": {0: {"step": call}}}}, "mkdir"),
        (lambda call: {"model": WEIGHTS, "args": {"a": [({"b": call},)]}}, "mkdir"),
        (lambda call: {"model": WEIGHTS, "args": argparse.Namespace(model=call)}, "mkdir"),
        (lambda call: {"model": WEIGHTS, "x": collections.OrderedDict([("a", call)])}, "mkdir"),
        (lambda call: {"model": {"w": torch.zeros(1), call: 1}}, "mkdir"),
        (lambda call: {"model": WEIGHTS, "f": Calls(functools.partial, os.mkdir, call.arguments[0])}, "mkdir"),
        (lambda call: {"model": WEIGHTS, "f": Calls(getattr, WEIGHTS, "keys")}, "builtin__.getattr"),
        (lambda call: {"model": WEIGHTS, "f": Calls(eval, f"__import__('os').mkdir({call.arguments[0]!r})")}, "eval"),
    ],
)
def test_code_hides_nowhere_in_a_torch_file(tmp_path: Path, zipped: bool, place: Any, named: str) -> None:
    target = tmp_path / "made"
    torch.save(place(Calls(os.mkdir, str(target))), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=rf"a\.pt: refused, it is a pickle that would call .*{named}.* when load"):
        read(tmp_path / "a.pt")
    assert not target.exists()


def torch_zip(path: Path, program: bytes, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("a/data.pkl", program)
        for name, data in {"a/version": b"3\n", "a/byteorder": b"little", **members}.items():
            archive.writestr(name, data)
    return path


def tensor_program(key: str = "0", count: int = 3, size: int = 3, stride: int = 1) -> bytes:
    """The pickle of {'w': a tensor of `size` floats with a stride, in the storage `key` of `count` floats}."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def whole(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + whole(count) + b"tQ"
    shape = whole(0) + whole(size) + b"\x85" + whole(stride) + b"\x85"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + shape + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}" + text("w") + call + b"s."


def pickled(text: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(text)
        return path

    return write


def zip_of(*arguments: Any, **options: Any) -> Callable[[Path], Path]:
    return lambda path: torch_zip(path, *arguments, **options)


def legacy_tar(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps(Calls(os.mkdir, str(path.parent / "made")))
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


FLOATS = {"a/data/0": bytes(12)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (legacy_tar, r"not a checkpoint .it begins with b'sys_info"),
        (pickled(b"\x80\x02X\x04\x00\x00\x00evilQ."), "damaged or cut short"),  # a persistent id that is a text
        (pickled(b"\x80\x02(X\x07\x00\x00\x00storagecposix\nsystem\nK\x00tQ."), r"would call posix\.system"),
        (pickled(b"\x80\x02\x82\x01."), "instructions that weights do not need"),  # a code of copyreg's registry
        (pickled(b"\x80\x02cargparse\nNamespace\n(X\x01\x00\x00\x00atR."), "damaged or cut short .Namespace"),
        (pickled(b"\x80\x02ccollections\nOrderedDict\n(cbuiltins\nprint\ntR."), r"would call builtins\.print"),
        (pickled(b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f"), "refused, it is a pickle with instructions"),
        (zip_of(tensor_program("../../../etc/passwd"), FLOATS), "damaged or cut short .*failed locating file"),
        (zip_of(tensor_program(), FLOATS | {"../../evil": b"x"}), "damaged or cut short .*not in a subdirectory"),
        (zip_of(tensor_program(count=2**40), FLOATS), "damaged or cut short .record size .12 bytes. does not match"),
        (zip_of(tensor_program(size=2**40), FLOATS), "damaged or cut short"),
        (zip_of(tensor_program(size=-5), FLOATS), "damaged or cut short"),
        (
            zip_of(tensor_program(size=2**40, stride=0), FLOATS),
            "0 MB of numbers claim to be 4194304 MB of weights; refused, for it would fill the memory",
        ),
        (
            zip_of(b"\x80\x02" + b"N0" * (1 << 26) + b"N.", {}, zipfile.ZIP_DEFLATED),
            "a zip of 127 kB that inflates to 128 MB, 128 MB of it instructions; refused, for it would fill the memory",
        ),
    ],
)
def test_what_torch_files_can_lie_about(tmp_path: Path, make: Any, message: str) -> None:
    path, start = make(tmp_path / "a.pt"), time.monotonic()
    with pytest.raises(CheckpointError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{path}: ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]
    assert time.monotonic() - start < 30


def test_an_honest_zip_is_read(tmp_path: Path) -> None:
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert read(torch_zip(tmp_path / "a.pt", tensor_program(), FLOATS, how)).tensors["w"].tolist() == [0, 0, 0]


def header(entries: Any, length: int | None = None, data: int = 8) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def tensor(**other: Any) -> dict[str, Any]:
    return {"a": TENSOR | other}


def meta(**texts: str) -> dict[str, Any]:
    return {"__metadata__": texts, "a": TENSOR}


TWICE = b'{"a":%s,"a":%s}' % (json.dumps(TENSOR).encode(), json.dumps(TENSOR | {"shape": [1, 2]}).encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(tensor(), data=4), "not a whole safetensors file .*not fully covered"),
        (header(tensor(), data=16), "not a whole safetensors file .*not fully covered"),
        (header(tensor(), length=10_000), "invalid header length"),
        (header(tensor(), length=2**63), "header too large"),
        (header({"a": TENSOR, "b": TENSOR}), "invalid offset"),
        (header(tensor(data_offsets=[8, 0])), "invalid offset"),
        (header(tensor(data_offsets=[2**63, 2**63 + 8])), "invalid offset"),
        (header(tensor(dtype="F33")), "unknown variant `F33`"),
        (header(tensor(shape=[2**32] * 3)), "overflow"),
        (header(tensor(shape=[2**63, 0], data_offsets=[0, 0]), data=0), "not a whole safetensors file .reshape"),
        (header(tensor(shape=[-2])), "invalid value"),
        (header(TWICE), "a name stands twice in the header"),
        (header(b'{"a":' + b" " * (101 << 20) + b"1}"), "header too large"),
        (header(b'{"a":' + b"[" * 100_000), "recursion limit"),
        (header(tensor(dtype="F4", shape=[16])), "weights that torch cannot turn into float32 .float4_e2m1fn_x2"),
        (header({"a": TENSOR, "__metadata__": {"num_classes": 5}}), "expected a string"),
        (header(meta(mean="[NaN, 1, Infinity]")), "metadata 'mean' is '.NaN, 1, Infinity.'; expected JSON"),
        (header(meta(num_classes="9" * 5000)), "metadata 'num_classes' is '9{80}'; expected JSON"),
        (header(meta(class_names="[" * 100_000)), "metadata 'class_names' is .*; expected JSON"),
    ],
)
def test_safetensors_with_lying_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    path.write_bytes(header(meta(num_classes="7")))
    assert read(path).metadata == {"num_classes": 7}


# --- data sets -------------------------------------------------------------------------------------------------------


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
    "png": (png(100_000), "100000 x 100000 pixels; at most 80 million are read; shrink it"),
    "jpeg": (jpeg(65_535), "65535 x 65535 pixels; at most 80 million are read; shrink it"),
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
    told = {row["sample_id"]: re.sub(r"\d+ bytes", "N bytes", row["error"]) for row in run.manifest["bad_images"]}
    assert told == {
        "c/bomb.png": "c/bomb.png: 100000 x 100000 pixels; at most 80 million are read; shrink it",
        "c/bomb.jpg": "c/bomb.jpg: 65535 x 65535 pixels; at most 80 million are read; shrink it",
        "c/zeros.bmp": "c/zeros.bmp: N bytes in the zip inflate to 104857600, as no image does; not read",
    }
    assert run.table("net", "clean")["sample_id"].to_pylist()[:2] == ["a/1.png", "a/ünïcödé 图像 🦉.png"]
    results = run.results()
    assert set(results["n"]) == {5} and (out / "report.html").is_file()
    assert results["flags"].map(lambda flags: "3 of 8 images could not be read; left out" in flags).all()


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
        (1 << 28, r"a/1\.png: \d+ bytes in the zip inflate to 268435456, as no image does; not read"),
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
        "a/4.png: not an image of a format that is read (starts with b'hunter2'); expected JPEG, PNG, WEBP, BMP, TIFF, "
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
        with pytest.raises(DataError, match=r"ids that name no single sample of set: .*; an id looks like 'a/1.png'"):
            dataset.select(ids=tmp_path / "ids.txt")


def test_ten_thousand_classes(tmp_path: Path) -> None:
    count = 10_000
    classes = [f"class {place:05d}" for place in range(count)]
    run = page_runs.make_run(
        tmp_path / "run", ("one",), tuple(classes), tuple(f"{i:05d}.png" for i in range(12)), shown=False
    )
    manifest = run.manifest
    manifest["data"]["classes"] = manifest["checkpoints"][0]["num_classes"] = count
    run.write_manifest(manifest)
    seal(run)
    assert refresh(run) and (run.path / "report.html").stat().st_size < 5_000_000
    for name in classes[::10]:
        (tmp_path / "set" / name).mkdir(parents=True)
    path = tmp_path / "set" / classes[-10] / "ü.png"
    path.write_bytes(encode_png(np.zeros((1, 1, 3), np.uint8)))
    dataset = open_dataset(tmp_path / "set", num_classes=count, class_names=classes)
    assert [sample.label for sample in dataset.samples] == [count - 10]


# --- cards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("summary = 1979-05-27", "holds a value that no card can have .Object of type date"),
        ("summary = [[07:32:00]]", "holds a value that no card can have .Object of type time"),
        ("source = inf", "holds a value that no card can have .Out of range float"),
        ("source = [[nan]]", "holds a value that no card can have .Out of range float"),
        (f"source = {'9' * 5000}", "not valid TOML: Exceeds the limit"),
        (f"source = {'[' * 5000}", "tables nested too deeply"),
        ("caveats = 5", "caveats is 5; expected a list of texts"),
        ("version = true", "version True; expected a whole number"),
        ("threat.eps = true", "eps 'True': expected a number such as 1/255"),
        ("threat.bounds = [true, false]", r"bounds \[True, False\]; expected two numbers"),
        ("attacks.pgd.bounds = 5", "bounds 5; expected two numbers"),
        ("preprocessing = {input_size = [8, 8], crop_pct = 'x'}", "crop_pct 'x'; expected a number"),
    ],
)
def test_cards_of_odd_types(tmp_path: Path, line: str, message: str) -> None:
    rest = {"name": "name = 'x'", "version": "version = 1", "threat": "threat.norm = 'linf'"}
    rest["attacks"] = "attacks.pgd.steps = 2"
    lines = [text for key, text in rest.items() if key != line.split(" ")[0]]
    path = tmp_path / "card.toml"
    path.write_text("\n".join([line, *lines]))
    with pytest.raises(ProtocolError, match=message) as caught:
        load_card(str(path))
    assert "\n" not in str(caught.value)
    path.write_text("\n".join(rest.values()))
    assert load_card(str(path)).name == "x"


# --- run folders of other people -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return page_runs.make_run(tmp_path_factory.mktemp("hostile") / "run", shown=False)


@pytest.fixture
def run(whole: Run) -> Any:
    """Of other people: a test may change its run.json."""
    before = whole.manifest_path.read_bytes()
    yield whole
    whole.manifest_path.write_bytes(before)


COMMANDS = ("report", "compare", "check", "card")


def commands(run: Run, place: Path, which: tuple[str, ...] = COMMANDS) -> dict[str, str]:
    """What the user sees of each command that fails. Raises what is no error of ours."""
    policy, said = place / "policy.toml", {}
    policy.write_text("[[rule]]\nrequire = 'top1 under clean >= 0.1'\n[[rule]]\nrequire = 'no flags'\n")
    more = {"check": ["--policy", str(policy)], "card": ["--checkpoint", "one", "--out", str(place / "card")]}
    for name in which:
        words = [name, str(run.path), *more.get(name, [])]
        fault = CliRunner().invoke(cli, words, standalone_mode=False).exception
        if fault is not None:
            if not isinstance(fault, RobustkitError):
                raise fault
            said[name] = str(fault)
    return said


def put(manifest: dict[str, Any], place: str, value: Any) -> None:
    *path, last = place.split("/")
    for part in path:
        manifest = manifest[int(part)] if isinstance(manifest, list) else manifest[part]
    if isinstance(manifest, list):
        manifest[int(last)] = value
    else:
        manifest[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("checkpoints", {}, "checkpoints is {}; expected a list of tables, one at least"),
        ("checkpoints", [], "checkpoints is []; expected a list of tables, one at least"),
        ("checkpoints/0/name", 5, "checkpoints[0].name is 5; expected a text"),
        ("checkpoints/0/name", "two", "checkpoints is 'two'; expected names that differ"),
        ("checkpoints/0/name", "\ud800", "checkpoints[0].name is '\\ud800'; expected a text"),
        ("checkpoints/0/preprocessing/std", ["x"], "checkpoints[0].preprocessing.std is ['x']; expected a list of num"),
        ("checkpoints/0/preprocessing/std", [1e999], "preprocessing.std is [inf]; expected a list of numbers"),
        ("conditions", "clean", "conditions is 'clean'; expected a list of texts"),
        ("conditions/1", ["a"], "conditions is ['clean', ['a'], "),
        ("claims", {"clean": {"norm": "linf", "eps": "x"}}, "claims['clean'].eps is 'x'; expected a number"),
        ("claims", {"clean": 3}, "claims['clean'] is 3; expected a table of norm and eps"),
        ("protocol/tag", None, "protocol.tag is None; expected a text"),
        ("protocol/parameters", {"x": 3}, "protocol.parameters is {'x': 3}; expected a table of tables"),
        ("data/n", -1, "data.n is -1; expected a whole number from 0 on"),
        ("data/n", 2**70, "data.n is 1180591620717411303424; expected a whole number from 0 on"),
        ("data/n", True, "data.n is True; expected a whole number from 0 on"),
        ("data/class_names", [None], "data.class_names is [None]; expected a list of texts"),
        ("bad_images", [{"sample_id": 3}], "bad_images[0].sample_id is 3; expected a text"),
        ("deciding", [], "deciding is []; expected a table"),
        ("versions", "x" * 500, f"versions is '{'x' * 79}…; expected a table"),
    ],
)
def test_a_hostile_run_json_is_one_line(run: Run, tmp_path: Path, place: str, value: Any, message: str) -> None:
    manifest = run.manifest
    put(manifest, place, value)
    run.manifest_path.write_text(json.dumps(manifest))
    for said in (found := commands(run, tmp_path)).values():
        assert said.startswith(f"{run.manifest_path}: {message}") or message in said
        assert "\n" not in said and said.endswith("restore it, or make the run anew")
    assert list(found) == list(COMMANDS)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\x00", "[]", '"\xff'])
def test_a_run_json_that_is_none(run: Run, tmp_path: Path, text: str) -> None:
    run.manifest_path.write_text(text, "latin-1")
    said = commands(run, tmp_path)
    assert list(said) == list(COMMANDS)
    assert all("restore it or use another --out" in line for line in said.values())


def test_files_that_never_end_or_are_too_large_are_not_read(run: Run, tmp_path: Path) -> None:
    run.manifest_path.write_bytes(b"")
    os.truncate(run.manifest_path, 65 << 20)
    assert (
        "run.json: cannot be read (65 MB, more than the 64 MB that one can have)" in commands(run, tmp_path)["report"]
    )
    run.manifest_path.unlink()
    os.mkfifo(run.manifest_path)
    assert "is not a run folder (no run.json)" in commands(run, tmp_path)["report"]
    run.manifest_path.unlink()


NAMES = (
    "../../../outside",
    "/outside",
    "..",
    ".",
    "a/../../b",
    "x" * 4000,
    "\x1b[2J\x1b[31mred",
    "a\nb",
    "C:\\x",
    "\u202e",
)


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_no_name_in_run_json_leads_out_of_the_folder(run: Run, tmp_path: Path, name: str) -> None:
    home = tmp_path / "a" / "b" / "c"
    made = page_runs.make_run(home / "run", (name, "two"), ids=("a.png", name[:200]), shown=False)
    before, above = files_of(tmp_path), set(Path("/").iterdir())
    manifest = made.manifest
    manifest["conditions"] = [*manifest["conditions"], name]
    made.write_manifest(manifest)
    seal(made)
    out = CliRunner().invoke(cli, ["report", str(made.path)], standalone_mode=False)
    assert out.exception is None and "\x1b" not in out.output
    card = CliRunner().invoke(cli, ["card", str(made.path), "--checkpoint", name], standalone_mode=False)
    assert card.exception is None
    fresh = files_of(tmp_path) - before
    assert {path.partition("run/")[2].partition("/")[0] for path in fresh} == {
        *("card", "report.html", "summary.csv", "summary.json")
    }
    assert set(Path("/").iterdir()) == above


LINKS = (
    *("run.json", "summary.json", "summary.csv", "report.html", "records", "timings", "evidence", "pictures", "cams"),
    *("records/net", "timings/net", "evidence/net", "pictures/net", "records/net/clean", "timings/net/clean"),
    *("records/net/clean/00001.parquet", "timings/net/clean/00001.json", "records/net/clean/.00001.parquet.x.tmp"),
    *("cams/gallery.png", "scenes", "timings/other/clean", "pictures/net/clean/00000.parquet"),
)


@pytest.fixture(scope="module")
def linked(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda run, rows: None)
        return small_audit.audit(place, tmp_path_factory.mktemp("linked") / "run", attacks="fgsm").path


@pytest.mark.parametrize("name", LINKS)
def test_no_command_follows_a_link_inside_a_run(place: Path, linked: Path, tmp_path: Path, name: str) -> None:
    """What lies in the place of the link is moved out, and the link leads to it."""
    home = tmp_path / "home" / "run"
    shutil.copytree(linked, home)
    outside = tmp_path / "outside"
    path, there = home / name, outside / path_name(name)
    outside.mkdir()
    if path.exists():
        shutil.move(path, there)
    else:
        there.mkdir() if "." not in path.name else there.write_text("mine")
        path.parent.mkdir(parents=True, exist_ok=True)
    if there.is_dir():  # what a sweep takes for its own
        for leftover in (".00000.json.x.tmp", ".00000.parquet.x.tmp"):
            (there / leftover).write_text("mine")
    path.symlink_to(there)
    run, before = Run(home), contents(outside)
    line = f"{path} is a link to {there}; expected a file or folder of the run's own: "
    found = commands(run, tmp_path, ("report", "compare", "check"))
    assert len(found) == 3 and all(said.startswith(line) for said in found.values()), found
    with pytest.raises(RunError) as caught:
        small_audit.audit(place, home, attacks="fgsm")
    assert str(caught.value).startswith(line) and contents(outside) == before
    with pytest.raises(RunError, match="is a link to"):
        run.sweep()
    assert contents(outside) == before and path.is_symlink()


def path_name(name: str) -> str:
    return name.replace("/", "_").lstrip(".")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_run_may_lie_behind_a_link(place: Path, linked: Path, tmp_path: Path) -> None:
    shutil.copytree(linked, tmp_path / "real")
    (tmp_path / "shortcut").symlink_to(tmp_path / "real")
    policy = tmp_path / "p.toml"
    policy.write_text("[[rule]]\nrequire = 'top1 under clean >= 0'\n")
    words = ["check", str(tmp_path / "shortcut"), "--policy", str(policy)]
    assert CliRunner().invoke(cli, words, standalone_mode=False).exception is None
    (tmp_path / "real" / "mine").symlink_to("/")  # what is none of ours is left alone
    assert small_audit.audit(place, tmp_path / "shortcut", attacks="fgsm").results().shape[0]


def test_a_link_made_while_it_runs_is_not_written_through(linked: Path, tmp_path: Path) -> None:
    shutil.copytree(linked, tmp_path / "run")
    run, outside = Run(tmp_path / "run"), tmp_path / "outside"
    shutil.move(run.path / "records" / "net", outside)
    (run.path / "records" / "net").symlink_to(outside)
    before = contents(outside)
    for act in (
        lambda: run.write_shard(run.shard_path("net", "clean", 0), columns()),
        lambda: run.table("net", "clean"),
        lambda: list(run.units()),
        lambda: run.damaged("net", ["clean"]),
    ):
        with pytest.raises(RunError, match="records/net is a link to"):
            act()
    assert contents(outside) == before


def test_a_card_is_not_written_through_a_link(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (run.path / "card").symlink_to(outside)
    said = CliRunner().invoke(cli, ["card", str(run.path), "--checkpoint", "one"], standalone_mode=False).exception
    assert str(said) == f"{run.path}/card is a link to {outside}; choose that folder, or another, with --out"
    assert files_of(outside) == {"mine"} and (outside / "mine").read_text() == "mine"
    (run.path / "card").unlink()


def with_records(path: Path, data: bytes | pa.Table) -> Run:
    """A run of which one record of `clean` is these bytes, or this table, without a checksum beside it."""
    made = page_runs.make_run(path, shown=False)
    record = made.shard_path("one", "clean", 0)
    record.write_bytes(data if isinstance(data, bytes) else signed(made, data))
    (made.path / "timings" / record.relative_to(made.path / "records").with_suffix(".json")).unlink()
    return made


def signed(run: Run, table: pa.Table) -> bytes:
    """As a Parquet file that says of itself what the first record of `clean` does."""
    manifest, buffer = run.manifest, io.BytesIO()
    of = packed(provenance_of(manifest, manifest["checkpoints"][0], "clean"), 0)
    with pq.ParquetWriter(buffer, table.schema.with_metadata(of), compression="zstd") as writer:
        writer.write_table(table)
        pages = hashlib.sha256(buffer.getvalue()).hexdigest().encode()
        writer.add_key_value_metadata({PAGES: pages, SAMPLES: manifest["data"]["shards"][0].encode()})
    return buffer.getvalue()


def repeated(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def columns(**other: Any) -> pa.Table:
    plain = {"sample_id": ["a.png", "b.png"], "label": [0, 1], "correct": [True, False], "error": [None, "x"]}
    return pa.table(plain | other)


RECORDS: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "rows": (lambda: pa.table({"sample_id": repeated("a", 5_000_000)}), "5000000 rows, more than one can have"),
    "text": (
        lambda: pa.table({"sample_id": repeated("x" * 100_000, 10_000), "error": pa.nulls(10_000, pa.string())}),
        "953 MB of text in column 'sample_id'",
    ),
    "list": (
        lambda: columns(predicted=pa.ListArray.from_arrays([0, 0, 1 << 26], pa.array(np.zeros(1 << 26, np.int8)))),
        "more than 33554432 numbers in a column",
    ),
    "heads": (
        lambda: columns(key_norms=pa.ListArray.from_arrays([0, 0, 1 << 26], pa.array(np.zeros(1 << 26, np.float16)))),
        "more than 33554432 numbers in a column",
    ),
    "no ids": (lambda: columns().drop_columns(["sample_id"]), "no column sample_id"),
    "null ids": (lambda: columns(sample_id=["a.png", None]), "a row without sample_id"),
    "label": (lambda: columns(label=["0", "1"]), "column 'label' of string"),
    "ids": (lambda: columns(sample_id=[1, 2]), "column 'sample_id' of int64"),
    "nested": (lambda: columns(nll=[[0.1], [0.2]]), "column 'nll' of list"),
    "date": (lambda: columns(abpc=pa.array([1, 2], pa.date32())), "column 'abpc' of date32"),
    "error": (lambda: columns(error=[b"a", b"b"]), "column 'error' of binary"),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_of_wrong_columns_or_sizes_are_one_line(tmp_path: Path, kind: str) -> None:
    make, message = RECORDS[kind]
    run = with_records(tmp_path / "run", make())
    record = run.shard_path("one", "clean", 0)
    expected = r"00000\.parquet: a record cannot be read \(.*\); delete it and run again"
    with at_most(100 << 20), pytest.raises(RunError, match=expected) as caught:
        refresh(run)
    assert message in str(caught.value) and str(caught.value).startswith(str(record))
    if kind not in ("text", "null ids"):  # as is seen without reading the rows
        assert [path for path, _ in run.damaged("one", ["clean"])] == [record]


@pytest.mark.parametrize("link", ["/dev/null", "pipe"])
def test_a_record_that_never_ends(tmp_path: Path, link: str) -> None:
    run = with_records(tmp_path / "run", b"")
    record = run.shard_path("one", "clean", 0)
    record.unlink()
    if link == "pipe":
        os.mkfifo(record)
    else:
        record.symlink_to(link)
    with pytest.raises(
        RunError, match=r"00000\.parquet(: cannot be read \(not a plain file\)| is a link to /dev/null)"
    ):
        refresh(run)


def test_whatever_a_run_folder_holds_a_command_says_one_line(tmp_path: Path) -> None:
    """What no rule foresees: the last net. Here checkpoints that lack what every audit writes."""
    run = page_runs.make_run(tmp_path / "run", shown=False)
    manifest = run.manifest
    for known in manifest["checkpoints"]:
        del known["attention"]
    run.write_manifest(manifest)
    seal(run)
    said = commands(run, tmp_path)
    assert said["report"] == (
        f"{run.path}: cannot be used (KeyError: 'attention'); it holds something that no audit writes, or this is a "
        "defect of RobustKit, which --debug shows; make the run anew"
    )


REPORTING = """
import atexit
from pathlib import Path
atexit.register(lambda: print("peak", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]))
from robustkit.cli import main
main()
"""


def called(*words: str) -> tuple[int, str, int]:
    """Exit status, what stands on stderr, and the peak of memory in bytes of a command."""
    done = subprocess.run([sys.executable, "-c", REPORTING, *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, int(done.stdout.split()[-1]) << 10


def test_the_command_line_shows_no_traceback_and_no_escape_and_takes_little_memory(tmp_path: Path) -> None:
    run = with_records(tmp_path / "run", RECORDS["text"][0]())
    status, said, used = called("report", str(run.path))
    assert status == 2 and said.startswith("error: ") and len(said.splitlines()) == 1
    assert "953 MB of text in column 'sample_id'" in said and used < 1 << 30
    named = page_runs.make_run(tmp_path / "named", ("\x1b[31mred\n", "two"), shown=False)
    status, said, _ = called("card", str(named.path))
    assert status == 2 and said.startswith("error: ") and len(said.splitlines()) == 1
    assert "has 2 checkpoints; choose one" in said and "\x1b" not in said


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small_audit.audit(place, tmp_path / "whole", attacks="fgsm")
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * next(calls))  # an hour back at every look
    back = small_audit.audit(place, tmp_path / "back", attacks="fgsm")
    monkeypatch.undo()
    assert small_audit.files(back.path) == small_audit.files(whole.path)
    for path in back.path.rglob("*"):
        os.utime(path, (0, 0))  # and files that seem older than what they were made from
    again = small_audit.audit(place, tmp_path / "back", attacks="fgsm")
    assert small_audit.files(again.path) == small_audit.files(whole.path)
