"""Where the bytes of a data set come from: a folder, a zip, CIFAR's batch files, or the package's own generator.

A source only lists and reads; `layouts` makes labels from the listed names. Every source can be pickled and used
from many threads or processes, and holds nothing that grows with what was read.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.files import bytes_of, check_plain, reason_of
from ..common.finding import Finding
from ..errors import BadImageError, DataError
from .images import encode_png
from .shapes import Changed, Shape, cached_render

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
_ALSO = (".jfif", ".jpe", ".jif", ".pjpeg", ".pjp", ".dib", ".pbm", ".pnm", ".pfm", ".apng", ".avif")
_UNREAD = (".heic", ".heif", ".hif", ".jp2", ".j2k", ".jxl", ".tga", ".psd", ".svg", ".exr", ".hdr", ".dcm", ".ico")
_RAW = (".dng", ".nef", ".cr2", ".cr3", ".arw", ".raf", ".orf", ".rw2")
_HEAD = 32  # bytes that tell an image
_MAGIC = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM.{12}[\x0c\x28\x38\x40\x6c\x7c]\0|II[*+]\0|MM\0[*+]|RIFF....WEBP|"
    rb"P[1-6Ff]\s+[#\d]|....ftyp(avif|avis)",
    re.DOTALL,
)
_FOREIGN = re.compile(rb"....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)|\0\0\0\x0c(jP  |JXL )|\xff\x0a|8BPS", re.DOTALL)
_OF_SYSTEMS = (
    *("__macosx", "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "lost+found", "recycler"),
    *("$recycle.bin", "system volume information", "network trash folder", "temporary items", "__pycache__"),
    *("found.000", "@tmp", "@sharebin"),
)
"""Folders that systems, servers and archives put among a user's own, without case; so do those with a dot in front."""
MAX_FILE_BYTES = 1 << 28  # one image file; more is a mistake or an attack
_HEADER = 30  # bytes before a member, without its name
_LONGEST = 4096  # characters of a member's name
_INFLATED = 1 << 26  # a member of at most so many bytes may be compressed by any factor
Mask = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Listing:
    """What a place holds: relative POSIX paths of its images, sorted, and of its folders; and lines for the user."""

    images: tuple[str, ...]
    folders: tuple[str, ...]
    notes: tuple[str, ...] = ()


class DataSource:
    """Reads the file of a sample. Ground truth beyond the label is None unless a source knows it."""

    def read(self, sample_id: str) -> bytes:
        """Return the whole image file. Raises BadImageError, with the id, when it cannot be read."""
        raise NotImplementedError

    def array(self, sample_id: str) -> Any:
        """Return the values of an image as an array (H, W, C), where it is no file; else None."""
        return None

    def mask(self, sample_id: str) -> Mask | None:
        """Return (H, W) uint8, 1 on the labelled object, in the pixels of the image file."""
        return None

    def objects(self, sample_id: str) -> tuple[Mask, Mask] | None:
        """Return masks of the two objects of an image that shows two, in the order of the sample's labels."""
        return None

    def changed(self, sample_id: str, change: str) -> Changed | None:
        """Return the sample with one thing changed (robustkit.data.shape_sets)."""
        return None

    def box(self, sample_id: str) -> Box | None:
        """Return (x0, y0, x1, y1) of the labelled object in pixels of the image file; x1 and y1 are exclusive."""
        return None


@dataclass(frozen=True)
class FolderSource(DataSource):
    root: str

    def read(self, sample_id: str) -> bytes:
        path = Path(self.root, sample_id)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe or a device would never end
                raise BadImageError(f"{sample_id}: not a plain file; not read")
            if status.st_size > MAX_FILE_BYTES:
                raise BadImageError(f"{sample_id}: larger than {MAX_FILE_BYTES >> 20} MB; not read")
            return path.read_bytes()
        except OSError as error:
            raise BadImageError(f"{sample_id}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class ZipSource(DataSource):
    """Members of the zip file `path` under `prefix` ('' or 'folder/'). Nothing is ever extracted to disk."""

    path: str
    prefix: str = ""

    def read(self, sample_id: str) -> bytes:
        archive, members = _open_zip(self.path, os.getpid())
        try:
            member = members[self.prefix + sample_id]
            if member.file_size > MAX_FILE_BYTES:
                raise BadImageError(f"{sample_id}: claims {member.file_size} bytes in the zip; not read")
            if member.file_size > max(_INFLATED, 100 * member.compress_size):
                sizes = f"{member.compress_size} bytes in the zip inflate to {member.file_size}"
                raise BadImageError(f"{sample_id}: {sizes}, which is implausible for an image; not read")
            with archive.open(member) as file:  # `archive.read` would inflate more than the member claims
                return file.read(member.file_size + 1)
        except BadImageError:
            raise
        except Exception as error:  # zipfile and zlib raise many kinds of errors for a damaged member
            raise BadImageError(f"{sample_id}: cannot be read from the zip: {reason_of(error)}") from None


@dataclass(frozen=True)
class ShapesSource(DataSource):
    """The embedded set (robustkit.data.shapes); a sample's id is '<split>/<index>'."""

    def read(self, sample_id: str) -> bytes:
        return encode_png(_shape(sample_id).pixels)

    def mask(self, sample_id: str) -> Mask | None:
        return _shape(sample_id).mask.copy()

    def box(self, sample_id: str) -> Box | None:
        return _shape(sample_id).box


def _shape(sample_id: str) -> Shape:
    split, _, index = sample_id.partition("/")
    return cached_render(split, int(index))


@dataclass
class _Contents:
    images: list[str] = field(default_factory=list)
    arrays: bool = False  # whether these are images, too
    unprintable: int = 0
    others: list[str] = field(default_factory=list)  # images by their content or suffix that are not read

    def take(self, name: str, head: Callable[[], bytes]) -> None:
        last = name.rpartition("/")[2].lower()
        suffix = PurePosixPath(last).suffix
        is_image = is_image_name(last) or (self.arrays and last.endswith(".npy"))
        if not is_image:
            first = head()
            is_image = not suffix and bool(_MAGIC.match(first))
            other = last.endswith((*_UNREAD, *_RAW)) or _FOREIGN.match(first) or (suffix and _MAGIC.match(first))
            self.others += [suffix or "none"] if other else []
        if is_image and name.isprintable():
            self.images.append(name)
        else:
            self.unprintable += is_image

    def notes(self) -> Iterator[str]:
        """Yield a line on each kind of image that is left out: an id must survive a text file and a table."""
        if self.unprintable:
            line = f"left out {self.unprintable} images whose names are not printable; rename them"
            yield str(Finding.of("data/unprintable-names", line=line))
        if self.others:
            kinds = ", ".join(f"{suffix[:12]!a} ({count})" for suffix, count in Counter(self.others).most_common(3))
            usual = ", ".join(SUFFIXES[:3])
            count = f"left out {len(self.others)} images of a kind or suffix other than {usual} …"
            yield f"{count}: {kinds}; convert or rename them"


def is_image_name(name: str) -> bool:
    return name.lower().endswith((*SUFFIXES, *_ALSO))


def list_folder(root: Path, arrays: bool = False) -> Listing:
    """List all images under `root`, through links but not their loops, without hidden files and those of systems."""
    contents, folders, unreadable = _Contents(arrays=arrays), list[str](), list[str]()
    todo = [("", str(root), frozenset[tuple[int, int]]())]
    while todo:
        prefix, path, parents = todo.pop()
        try:
            status = Path(path).stat()
            key = (status.st_dev, status.st_ino)
            with os.scandir(path) as listing:
                entries = list(listing)
        except OSError as error:
            unreadable.append(f"{prefix or '.'} ({error.strerror})")
            continue
        if key in parents:
            continue
        for entry in entries:
            name = prefix + entry.name
            if _ignored(entry.name):
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if is_folder:
                folders.append(name)
                todo.append((name + "/", entry.path, parents | {key}))
            else:
                contents.take(name, partial(_head_of, entry))
    notes = [*contents.notes()]
    if unreadable:
        notes.append(f"left out {len(unreadable)} folders that cannot be read: {', '.join(sorted(unreadable)[:3])}")
    return Listing(tuple(sorted(contents.images)), tuple(sorted(folders)), tuple(notes))


def _head_of(entry: os.DirEntry[str]) -> bytes:
    """Return the first bytes of a plain file; none of anything else: a pipe would never end."""
    try:
        if not entry.is_file():
            return b""
        with Path(entry.path).open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def list_zip(path: Path, arrays: bool = False) -> Listing:
    """List all images in a zip. Raises DataError if it is not a zip, is encrypted, or a member points outside."""
    archive, members = _open_zip(str(path), os.getpid())
    names = [name for name in members if not any(_ignored(part) for part in name.split("/"))]
    contents = _Contents(arrays=arrays)
    for name in names:
        contents.take(name, partial(_head_in, archive, members[name]))
    folders = {name.rpartition("/")[0] for name in names} - {""}
    if not contents.images and any(name.lower().endswith(".zip") for name in names):
        raise DataError(f"{path}: contains zip files, not images; unpack the outer zip first")
    return Listing(tuple(sorted(contents.images)), tuple(sorted(folders)), tuple(contents.notes()))


def _head_in(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(member) as file:
            return file.read(_HEAD)
    except Exception:  # zipfile and zlib raise many kinds of errors for a damaged member
        return b""


def _ignored(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _OF_SYSTEMS


@lru_cache(maxsize=4)
def _open_zip(path: str, process: int) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """Return the archive and its files by POSIX name; one handle per process, since a fork would share its position."""
    try:
        check_plain(Path(path))
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        why = f"not a readable zip file ({reason_of(error)})"
        raise DataError(f"{path}: {why}; expected a folder or a .zip") from None
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end:  # a few kilobytes would be inflated as often as there are names
            raise DataError(f"{path}: member {info.filename[:80]!r} overlaps another; the zip is refused")
        end = info.header_offset + _HEADER + info.compress_size
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.replace("\\", "/")
        if len(name) > _LONGEST:
            raise DataError(f"{path}: a member whose name has {len(name)} characters; expected {_LONGEST} at most")
        if name.startswith("/") or ".." in name.split("/") or re.match(r"[A-Za-z]:", name):
            raise DataError(f"{path}: member {info.filename!r} points outside the archive; the zip is refused")
        if info.is_dir() or stat.S_ISLNK(info.external_attr >> 16):
            continue
        if info.flag_bits & 1:
            raise DataError(f"{path}: member {info.filename!r} is encrypted; decrypt the zip first")
        if name in members:
            why = "occurs twice"
            raise DataError(f"{path}: member {info.filename!r} {why}; recreate the zip")
        members[name] = info
    return archive, members


# Most bytes and instructions of a batch file, which has 31 MB and some ten thousand:
_BATCH, _OPCODES = 1 << 27, 1 << 19


@dataclass(frozen=True)
class CifarSource(DataSource):
    """CIFAR-10's python batch files; a sample's id is '<split>/<position>', its file is a PNG made on the fly."""

    batches: tuple[str, ...]

    def read(self, sample_id: str) -> bytes:
        pixels, _ = read_cifar(self.batches)
        return encode_png(pixels[int(sample_id.rpartition("/")[2])])


@lru_cache(maxsize=2)
def read_cifar(batches: tuple[str, ...]) -> tuple[npt.NDArray[np.uint8], tuple[int, ...]]:
    """Return the pixels (N, 32, 32, 3) uint8 and labels of CIFAR-10 batch files; their pickles do not run."""
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
    """Read a pickled dict of plain values and arrays (`.raw` bytes); no code runs, other names are refused."""
    try:
        data = bytes_of(path, _BATCH)
        if sum(1 for _ in islice(pickletools.genops(data), _OPCODES)) == _OPCODES:
            raise DataError(f"{path}: a pickle of {_OPCODES} instructions or more, which no CIFAR-10 batch file has")
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
            raise DataError("the pickle contains more than a CIFAR-10 batch")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.latin1
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Inert
        raise DataError(f"the pickle imports {module}.{name}; only plain CIFAR-10 batches are read")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def cifar_names(meta: Path) -> tuple[str, ...] | None:
    if not meta.is_file():
        return None
    names: Iterable[object] = read_plain_pickle(meta).get("label_names", ())
    return tuple(_text(name) for name in names) or None
