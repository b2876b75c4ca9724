"""Checkpoints that mean harm: what the user sees, that nothing runs, that memory is bounded."""

from __future__ import annotations

import argparse
import collections
import functools
import io
import json
import os
import pickle
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robustkit.errors import CheckpointError
from robustkit.models.checkpoint import read

pytestmark = pytest.mark.usefixtures("one_thread")
WEIGHTS = {"w": torch.arange(3.0)}
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


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
    with pytest.raises(CheckpointError, match=rf"a\.pt: refused, a pickle that would call .*{named}.* when load"):
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
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (legacy_tar, r"not a checkpoint .it begins with b'sys_info"),
        (pickled(b"\x80\x02X\x04\x00\x00\x00evilQ."), "damaged or cut short"),  # a persistent id that is a text
        (pickled(b"\x80\x02(X\x07\x00\x00\x00storagecposix\nsystem\nK\x00tQ."), r"would call posix\.system"),
        (pickled(b"\x80\x02\x82\x01."), "instructions that weights do not need"),  # a code of copyreg's registry
        (pickled(b"\x80\x02cargparse\nNamespace\n(X\x01\x00\x00\x00atR."), "damaged or cut short .Namespace"),
        (pickled(b"\x80\x02ccollections\nOrderedDict\n(cbuiltins\nprint\ntR."), r"would call builtins\.print"),
        (pickled(b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f"), "refused, a pickle with instructions"),
        (zip_of(tensor_program("../../../etc/passwd"), FLOATS), "damaged or cut short .*failed locating file"),
        (zip_of(tensor_program(), FLOATS | {"../../evil": b"x"}), "damaged or cut short .*not in a subdirectory"),
        pytest.param(
            *(
                zip_of(tensor_program(count=2**40), FLOATS),
                "damaged or cut short .record size .12 bytes. does not match",
            ),
            marks=pytest.mark.skipif(TORCH < (2, 10), reason="torch reads beyond the record: SECURITY.md"),
        ),
        (zip_of(tensor_program(size=2**40), FLOATS), "damaged or cut short"),
        (zip_of(tensor_program(size=-5), FLOATS), "damaged or cut short"),
        (
            zip_of(tensor_program(size=2**40, stride=0), FLOATS),
            "0 MB of numbers claim to be 4194304 MB of weights; refused, since it would exhaust the memory",
        ),
        (
            zip_of(b"\x80\x02" + b"N0" * (1 << 26) + b"N.", {}, zipfile.ZIP_DEFLATED),
            "a zip of 127 kB that inflates to 128 MB, 128 MB of it instructions; refused, since it would exhaust the "
            "memory",
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
        (header(TWICE), "is named more than once in one object, expected once"),
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
