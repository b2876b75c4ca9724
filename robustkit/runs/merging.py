"""Bring run folders that hold parts of one run into one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

from ..errors import DamagedRecord, RunError
from .adversarials import strange_adversarials
from .digests import digest_of_pages
from .files import folder_name
from .folder import RunFolder
from .joining import disagreements, joined
from .manifest import Manifest
from .pictures import strange_pictures

_TIMINGS, _RECORDS, _EVIDENCE = "timings", "records", "evidence"
_FOLDERS = ("pictures", "adversarials", _TIMINGS, _RECORDS)  # in the order in which a unit's files are written


def gather(into: RunFolder, parts: Sequence[RunFolder]) -> None:
    """Write a run.json of all parts, and copy the files that `into` lacks. It may be one of the parts, or new.

    A file that several have is copied once: its rows are the same in all of them.

    Raises:
        DamagedRecord: a file is not what was written for its run.
        RunError: the parts are not of one run, or two of them have different rows under one name; nothing was copied.
    """
    folders = {part.path.resolve(): part for part in (into, *parts) if part.read_manifest()}
    manifest = _of_all(list(folders.values()))
    for part in folders.values():
        refuse_damaged(part)
    holders: dict[Path, RunFolder] = {}
    for part in folders.values():
        for inside in _files(part, manifest):
            holder = holders.setdefault(inside, part)
            if holder is not part and inside.parts[0] != _TIMINGS and not _alike(holder, part, inside):
                raise RunError(
                    f"{part.path / inside} is not what {holder.path / inside} is, though both are of one unit; other "
                    "devices and versions may round otherwise: delete the part that is not wanted"
                )
    into.write_manifest(manifest)
    for inside, holder in holders.items():
        if holder is not folders.get(into.path.resolve()):
            into.write(into.path / inside, holder.read_bytes(holder.path / inside), durable=inside.parts[0] != _TIMINGS)


def refuse_damaged(run: RunFolder) -> None:
    """Raise DamagedRecord for a file of a run that is not what was written for it."""
    for name in run.manifest.names:
        for text in run.manifest.conditions:
            for path, why in (
                *run.damaged(name, [text]),
                *run.strange_evidence(name, [text]),
                *strange_pictures(run, name, [text]),
                *strange_adversarials(run, name, [text]),
            ):
                raise DamagedRecord(f"{path}: {why}; delete it, and run again the command that made it")


def _of_all(parts: Sequence[RunFolder]) -> Manifest:
    """Return the manifest of all parts. Raises RunError where they are not of one run."""
    first = parts[0]
    for part in parts[1:]:
        odd = disagreements(first.manifest, part.manifest)
        if first.manifest.pictures != part.manifest.pictures:
            odd.append("the samples of which pictures are kept (--browse) are others")
        if odd:
            raise RunError(
                f"{part.path} is no part of the run in {first.path}: {'; '.join(odd)} ({first.path} is there, "
                f"{part.path} here); give parts of one command"
            )
    return reduce(joined, (part.manifest for part in parts))


def _files(run: RunFolder, manifest: Manifest) -> Iterator[Path]:
    """Yield the paths in a run folder of what its units consist of, each record after what belongs to it."""
    for name in map(folder_name, manifest.names):
        for text in map(folder_name, manifest.conditions):
            evidence = Path(_EVIDENCE, name, f"{text}.json")
            yield from [evidence] if (run.path / evidence).is_file() else []
            for folder in _FOLDERS:
                found = (run.path / folder / name / text).glob("[!.]*")
                yield from sorted(path.relative_to(run.path) for path in found)


def _alike(one: RunFolder, other: RunFolder, inside: Path) -> bool:
    """Whether two files, each of which is what was written, hold the same; in metadata, the device may differ."""
    first, second = one.read_bytes(one.path / inside), other.read_bytes(other.path / inside)
    of_rows = inside.suffix == ".parquet" and digest_of_pages(first) == digest_of_pages(second)
    return first == second or of_rows
