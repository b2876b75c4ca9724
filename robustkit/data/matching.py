"""Match the names of files of one folder with those of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from ..errors import DataError
from .dataset import Dataset

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
