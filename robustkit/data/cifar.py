"""CIFAR-10's Python batch files into pixels, labels and class names, without running their pickles."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.files import bytes_of
from ..errors import DataError
from .images import encode_png
from .sources import DataSource

_BATCH, _OPCODES = (
    1 << 27,
    1 << 19,
)  # most bytes and instructions of a batch file, which has 31 MB and some ten thousand


@dataclass(frozen=True)
class CifarSource(DataSource):
    """CIFAR-10's python batch files; a sample's id is '<split>/<position>', its file is a PNG made on the fly."""

    batches: tuple[str, ...]

    def read(self, sample_id: str) -> bytes:
        """Encode the sample's pixels as PNG."""
        pixels, _ = read_cifar(self.batches)
        return encode_png(pixels[int(sample_id.rpartition("/")[2])])


@lru_cache(maxsize=2)
def read_cifar(batches: tuple[str, ...]) -> tuple[npt.NDArray[np.uint8], tuple[int, ...]]:
    """Return the pixels (N, 32, 32, 3) uint8 and labels of CIFAR-10 batch files, in file order; their pickles do not
    run.
    """
    pixels, labels = [], []
    for path in batches:
        content = read_plain_pickle(Path(path))
        try:
            data, batch_labels = content["data"], [int(label) for label in content["labels"]]
            if data.raw is None or len(data.raw) != len(batch_labels) * 3072:
                raise ValueError("data and labels differ in length")
            if not all(0 <= label < 10 for label in batch_labels):
                raise ValueError("a label is outside 0 … 9")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: not a CIFAR-10 batch file ({error})") from None
        pixels.append(np.frombuffer(data.raw, np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels += batch_labels
    return np.concatenate(pixels), tuple(labels)


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of plain values and NumPy arrays, where an array becomes its raw bytes (`.raw`).

    No code of the file runs: every class that it names is either one of three NumPy names, replaced by an inert
    stand-in, or refused by name.
    """
    try:
        data = bytes_of(path, _BATCH)
        if sum(1 for _ in islice(pickletools.genops(data), _OPCODES)) == _OPCODES:
            raise DataError(f"{path}: a pickle of {_OPCODES} instructions or more, as no CIFAR-10 batch file is")
        content = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"{path}: not a readable pickle ({type(error).__name__})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a CIFAR-10 dictionary, found {type(content).__name__}")
    return {_text(key): value for key, value in content.items()}


class _Inert:
    """Stands for a NumPy array or dtype in a pickle; keeps an array's raw bytes."""

    raw: bytes | None = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if isinstance(state[-1], bytes):
            self.raw = state[-1]


class _PlainUnpickler(pickle._Unpickler):  # the Python one: a lying memo index cannot make it allocate gigabytes
    encoded = 0

    def latin1(self, text: str, _: str = "latin1") -> bytes:
        self.encoded += len(text)
        if self.encoded > _BATCH:
            raise DataError("the pickle holds more than a CIFAR-10 batch")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.latin1
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Inert
        raise DataError(f"the pickle asks for {module}.{name}; only plain CIFAR-10 batches are read")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def cifar_names(meta: Path) -> tuple[str, ...] | None:
    """Return the class names of a `batches.meta` file, or None without one."""
    if not meta.is_file():
        return None
    names: Iterable[object] = read_plain_pickle(meta).get("label_names", ())
    return tuple(_text(name) for name in names) or None
