"""Read torch files without running anything that is in them, and name what was refused.

`torch.load(weights_only=True)` does the reading; `argparse.Namespace` is the one type allowed beyond its own. When it
refuses, the pickle is walked opcode by opcode (which runs nothing) to name the objects that it wanted to call.
"""

from __future__ import annotations

import argparse
import io
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError

REMEDY = "if you trust its origin, load it yourself and save only the tensors: torch.save(model.state_dict(), FILE)"
_PLAIN = re.compile(  # the objects that the weights of every torch file refer to
    r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.(\w+Storage|Size|device|[a-z]+\d+\w*)"
    r"|torch\.storage\.\w+|argparse\.Namespace|_codecs\.encode|(builtins|__builtin__)\.set"
)
_LARGEST_PICKLE = 64 << 20
_OPCODES = 1 << 20  # opcodes of a pickle that are walked; more would not help to name what it calls
_RUNS = ("posix.", "nt.", "os.", "subprocess.", "sys.", "shutil.", "socket.", "importlib.", "runpy.", "pty.")


def load_pickle(path: Path) -> Any:
    """Load what a .pth, .pt, .bin, .ckpt or .tar file of torch holds: tensors in plain containers.

    Raises CheckpointError when the file holds any other kind of object (named), is a TorchScript archive, or is
    damaged.
    """
    _refuse_bomb(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # warnings about old storage types; the user could do nothing about them
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors here; each becomes one line
        raise CheckpointError(_reason(path, error)) from error


def _refuse_bomb(path: Path) -> None:
    """Refuse a zip that inflates to more than the memory holds; torch writes zips without compression."""
    members = _members(path)
    size, claimed = path.stat().st_size, sum(member.file_size for member in members)
    program = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    if claimed > 4 * size + (1 << 30) or program > _LARGEST_PICKLE:
        raise CheckpointError(
            f"{path}: a zip of {size >> 10} kB that inflates to {claimed >> 20} MB, {program >> 20} MB of it "
            f"instructions; refused, for it would fill the memory; {REMEDY}"
        )


def _members(path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file; an empty list if it is not one or is damaged (torch then reports the error)."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except Exception:  # zipfile raises many kinds of errors for a damaged directory
        return []


def _reason(path: Path, error: Exception) -> str:
    if names := [member.filename for member in _members(path)]:
        if any(name.endswith("constants.pkl") for name in names):
            return f"{path}: a TorchScript archive, which is a program and not only weights; save its state_dict"
        if not any(name.endswith("data.pkl") for name in names):
            return f"{path}: a zip archive without torch weights in it; give a file that torch.save wrote"
    refused = foreign_globals(path)
    if refused:
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        return (
            f"{path}: refused, it is a pickle that would call {', '.join(refused[:3])}{more} when loaded "
            f"(only tensors, plain containers and argparse.Namespace are read); {REMEDY}"
        )
    if isinstance(error, pickle.UnpicklingError) and "Unsupported" in str(error):
        return f"{path}: refused, it is a pickle with instructions that weights do not need; {REMEDY}"
    return f"{path}: damaged or cut short ({_first_line(error)}); expected a file written by torch.save; fetch it again"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:120].rstrip(" .:") if lines else type(error).__name__


def foreign_globals(path: Path) -> list[str]:
    """Return the names of the objects, other than parts of tensors, that a file's pickles refer to, the most dangerous
    first.

    Runs nothing.
    """
    names: dict[str, None] = {}
    for stream in _pickles(path):
        for name in _globals(stream):
            names[name] = None
    foreign = [name for name in names if not _PLAIN.fullmatch(name)]
    return sorted(foreign, key=lambda name: not name.startswith((*_RUNS, "builtins.", "__builtin__.")))


def _pickles(path: Path) -> list[io.BytesIO]:
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".pkl")]
                return [io.BytesIO(archive.open(name).read(_LARGEST_PICKLE)) for name in names[:8]]
        except Exception:  # zipfile and zlib raise many kinds of errors for a damaged member
            return []
    with path.open("rb") as file:
        return [io.BytesIO(file.read(64 << 20))]  # several pickles one after another, then raw storage


def _globals(stream: io.BytesIO) -> list[str]:
    names: list[str] = []
    end, left = len(stream.getbuffer()), _OPCODES
    while stream.tell() < end and left > 0:
        strings: list[str] = []  # every string pushed so far: STACK_GLOBAL takes the last two
        memo: dict[int, str] = {}
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                left -= 1
                if left <= 0:
                    break
                if opcode.name in ("GLOBAL", "INST"):
                    names.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                    names.append(".".join(strings[-2:]))
                elif opcode.name == "MEMOIZE":
                    memo[len(memo)] = strings[-1] if strings else ""
                elif opcode.name in ("BINPUT", "LONG_BINPUT", "PUT"):
                    memo[int(argument or 0)] = strings[-1] if strings else ""
                elif opcode.name in ("BINGET", "LONG_BINGET", "GET"):
                    strings.append(memo.get(int(argument or 0), ""))
                elif isinstance(argument, str) and "UNICODE" in opcode.name:
                    strings.append(argument)
        except Exception:  # not a pickle from here on: raw storage, or the end of a cut file
            break
    return names
