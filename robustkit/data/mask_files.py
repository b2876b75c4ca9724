"""Folders of masks: which mask belongs to which image, and what its values mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from ..common.files import TEXT, reason, text_of
from ..errors import DataError
from .class_names import few
from .dataset import Dataset
from .sources import FolderSource, ZipSource, list_folder

_PLAIN = re.compile(r"((?!\.{1,2}/)[^/]+/)*")


def match_names(dataset: Dataset, place: Path, names: Mapping[str, str], what: str) -> dict[str, str]:
    """Return, by sample id, the key in `names` that means the sample, where there is one. names: what to show, by path
    without suffix.
    """
    samples = _grouped([sample.id for sample in dataset.samples], bare_path)
    matches = {key: key for key in names if key in samples}
    folders = {_tail(path, 2).rpartition("/")[0] for path in samples}
    if folders & set(dataset.class_names):
        folders |= set(dataset.class_names)  # also of classes that --limit left out
    alike = {parts: [_grouped(paths, partial(_tail, parts=parts)) for paths in (samples, names)] for parts in (1, 2)}
    for key in names:
        tail = _tail(key, 2)
        if (
            tail.rpartition("/")[0] not in folders
        ):  # a file in a folder of the data set cannot mean an image of another folder
            tail = _tail(key, 1)
        meant, rivals = (groups.get(tail, []) for groups in alike[1 + tail.count("/")])
        if key in samples or all(path in matches for path in meant):
            continue
        path = _only([name for path_of in meant for name in samples[path_of]], names[key], place)
        if len(rivals) > 1:
            first, second = (names[rival] for rival in rivals[:2])
            raise DataError(
                f"{place}: {first} and {second} may both be meant for {path}; keep one, or name it {bare_path(path)}"
            )
        matches[bare_path(path)] = key
    if not matches:
        raise DataError(
            f"{place}: {what} of none of the {len(dataset)} images; expected names such as {next(iter(samples))}"
        )
    return {_only(samples[path], names[key], place): key for path, key in sorted(matches.items())}


def _only(meant: Sequence[str], shown: str, place: Path) -> str:
    if len(meant) > 1:
        first, second = meant[:2]
        same = bare_path(first) == bare_path(second)
        remedy = "rename one of them" if same else f"name it with the folder of its image, such as {bare_path(first)}"
        raise DataError(f"{place}: {shown} may be meant for {first} and for {second}; {remedy}")
    return meant[0]


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def bare_path(name: str) -> str:
    """Return a path without its suffix, as `PurePosixPath` has it, which takes ten times as long."""
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if last and not last.startswith(".") and not (stem and not suffix) and _PLAIN.fullmatch(folder + slash):
        return folder + slash + (stem or last)
    path = PurePosixPath(name)
    return str(path.parent / path.stem)


def _tail(path: str, parts: int) -> str:
    return "/".join(path.split("/")[-parts:])


_MOST = 32767  # classes that int16 can number


def find_masks(dataset: Dataset, folder: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the mask of every sample that has one, by its id, and lines for the user.

    A mask belongs to the image of its path except for the suffix, or of its stem where that is unique, as in `truth`.
    Raises DataError for a folder without masks, without a mask of any image, and for an ambiguous name.
    """
    listing = list_folder(folder)
    if not listing.images:
        notes = "".join(f"{note}; " for note in listing.notes)
        raise DataError(f"{folder}: no masks in it; {notes}expected PNG files with the names of the images")
    names: dict[str, str] = {}
    for name in listing.images:
        if names.setdefault(bare_path(name), name) != name:
            raise DataError(f"{folder}: {name} and {names[bare_path(name)]} are masks of the same image; keep one")
    stems = {PurePosixPath(sample.id).stem for sample in dataset.samples}
    if stems.isdisjoint(PurePosixPath(name).stem for name in listing.images):
        mask, image = listing.images[0], dataset.samples[0].id
        raise DataError(
            f"{folder}: no mask has the name of an image; a mask is called {mask}, an image {image}; expected the same "
            f"names except for the suffix"
        )
    matched = match_names(dataset, folder, names, "masks")
    for sample, key in matched.items():
        if key != bare_path(sample) and "/" in key and "/" in sample:
            raise DataError(
                f"{folder}: {names[key]} has the name of {sample} but lies in another folder; expected the same "
                f"folders on both sides, or none"
            )
    masks = {sample: folder / names[key] for sample, key in matched.items()}
    note = f"masks of {len(masks)} of {len(dataset)} images from {folder}"
    if len(masks) < len(dataset):
        note += f"; {len(dataset) - len(masks)} without a mask cannot be evaluated"
    return masks, (note, *(f"masks: {note}" for note in listing.notes))


def part(folder: Path, dataset: Dataset) -> Path:
    """Return the folder of masks, or its subfolder named as the images' own folder is: annotations/test for
    images/test.
    """
    source = dataset.source
    parts: tuple[str, ...] = ()
    if isinstance(source, FolderSource):
        parts = Path(source.root).resolve().parts[1:]
    elif isinstance(source, ZipSource):
        parts = PurePosixPath(source.prefix).parts
    tails = ["/".join(parts[-depth:]) for depth in range(1, len(parts) + 1)]
    ours = {sample.id.partition("/")[0] for sample in dataset.samples if "/" in sample.id}
    return next((folder / tail for tail in tails if (folder / tail).is_dir() and tail not in ours), folder)


def printable(name: str) -> str:
    """Return the name without characters that steer a terminal or turn the direction of text."""
    return "".join(character for character in name if character.isprintable())


def read_names(place: Path, path: Path | None, num_classes: int | None) -> tuple[str, ...]:
    """Return the classes in the order of their labels, from the file, or numbers where there is none.

    path: a text file, one name per line; blank lines and lines that start with # are skipped. place: the images, for
    errors. Raises DataError for no class, too many, a name that comes twice, and a file that cannot be read.
    """
    if path is None:
        if num_classes is None:
            raise DataError(
                f"{place}: the number of classes is not known; give their names (--classes) or --num-classes"
            )
        names = [str(label) for label in range(num_classes)]
    else:
        try:
            lines = [line.strip() for line in text_of(path, TEXT).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: not a readable list of classes ({reason(error)}); give a text file with one name per line"
            ) from None
        names = [printable(line) for line in lines if line and not line.startswith("#")]
    if not 0 < len(names) <= _MOST:
        raise DataError(
            f"{path or place}: {len(names)} classes; expected 1 … {_MOST}, one name per line in label order"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: named more than once: {few(twice)}; expected a different name for each label")
    return tuple(names)
