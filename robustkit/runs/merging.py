"""Make one run of two descriptions or of the folders of its parts, and say where they disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from ..errors import DamagedRecord, RunError
from .folder import METADATA, RunFolder, folder_name
from .kept_images import ADVERSARIALS, PICTURES, strange_images
from .manifest import CheckpointEntry, CorruptedEntry, Manifest, PluginEntry, digest_of_pages
from .metadata import columns_of, metadata_of_run
from .untrusted import OF_CHECKPOINT, digest_of_run

_MAP = "cam("  # how the text of a map that is scored begins
_KEPT = {True: "scored", False: "left out"}


def disagreements(other: Manifest, here: Manifest, conditions: Iterable[str] | None = None) -> list[str]:
    """Return in words what decides records and differs between two manifests; what only one of them has is no
    difference. conditions: those that must use the same part of both cards; by default those of `other`."""
    differences = [*plugin_differences(other, here)]
    pairs = _pairs(other, here, other.conditions if conditions is None else conditions)
    differences += (list_differences(name, *values) for name, *values in pairs if values[0] != values[1])
    differences = differences or [*_other_answers(other, here)]
    if not differences and digest_of_run(other) != digest_of_run(here):
        differences.append("its run.json names different samples, shards or card parameters")
    return differences


def join_manifests(other: Manifest, here: Manifest) -> Manifest:
    """Return the manifest of all that two ask for, which agree. What decides no record is `here`'s, except for the
    start and the kept pictures."""
    latest = {entry.name: entry for entry in here.checkpoints}
    methods = {name: entry.method for name, entry in latest.items() if entry.method is not UNSET}
    entries = [replace(entry, method=methods.get(entry.name, entry.method)) for entry in other.checkpoints]
    return replace(
        here,
        started=other.started,
        arguments={**here.arguments, **({"keep_adversarials": True} if other.keeps_adversarials else {})},
        conditions=_union(other.conditions, here.conditions),
        claims={**other.claims, **here.claims},
        checkpoints=(*entries, *(each for name, each in latest.items() if name not in other.names)),
        data=replace(here.data, notes=_union(here.data.notes, other.data.notes)),
        corrupted=_corrupted(other.corrupted, here.corrupted),
        bad_images=other.bad_images,
        keep_misclassified=(here if _has_maps(here) else other).keep_misclassified,
        pictures=other.pictures,
        evidence=_union(other.evidence, here.evidence),
        plugins=_plugins(other.used_plugins, here.used_plugins) or UNSET,
        sequential=True if other.is_sequential or here.is_sequential else UNSET,
        unsuited=_unsuited(other, here) or UNSET,
        parity=other.parity if here.parity is UNSET else here.parity,
    )


def _has_maps(manifest: Manifest) -> bool:
    return any(text.startswith(_MAP) for text in manifest.conditions)


def _unsuited(other: Manifest, here: Manifest) -> dict[str, tuple[str, ...]]:
    both = [{} if each.unsuited is UNSET else each.unsuited for each in (other, here)]
    return {name: _union(*(each.get(name, ()) for each in both)) for name in {**both[0], **both[1]}}


def plugin_differences(other: Manifest, here: Manifest) -> Iterator[str]:
    ours = {(entry.group, entry.name): entry for entry in here.used_plugins}
    theirs = {(entry.group, entry.name): entry for entry in other.used_plugins}
    asked = {*here.conditions, *here.names}
    for key, entry in theirs.items():
        if key not in ours and (covered := asked & {*entry.conditions, *entry.checkpoints}):
            yield f"{min(covered)} is of plug-in {entry.words} there and of robustkit itself here"
    for key, entry in ours.items():
        before = theirs.get(key)
        if before is not None and before.identity != entry.identity:
            yield f"plug-in {before.words} there is {entry.words} here"
        if before is None and (unmarked := [text for text in entry.conditions if text in other.conditions]):
            yield f"{unmarked[0]} is of robustkit itself there and of plug-in {entry.words} here"


def _pairs(other: Manifest, here: Manifest, conditions: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of what decides records with its value in both."""
    if other_card := card_difference(other, here, conditions):
        yield other_card
    before = other.deciding.to_plain()
    after = ((name, value) for name, value in here.deciding.to_plain().items() if name != "protocol")
    yield from ((name, before.get(name), value) for name, value in after)
    yield "shard size", other.shard_size, here.shard_size
    if all(map(_has_maps, (other, here))):
        use = "use of maps of wrong predictions (--keep-misclassified), which changes every score of maps,"
        yield use, _KEPT[other.keep_misclassified], _KEPT[here.keep_misclassified]
    yield "--shuffle", other.arguments.get("shuffle") is True, here.arguments.get("shuffle") is True
    if UNSET not in (other.parity, here.parity):
        yield "the first checkpoint of --parity", other.parity, here.parity
    earlier = {entry.name: entry for entry in other.checkpoints}
    for new in here.checkpoints:
        one, latest = earlier.get(new.name, new).to_plain(), new.to_plain()
        keys = (key for key in OF_CHECKPOINT if key != "code_sha256" or not _answered(new, earlier.get(new.name, new)))
        yield from ((f"{key} of {new.name}", one.get(key), latest.get(key)) for key in keys)
    taken, takes = other.corrupted.digests, here.corrupted.digests
    for condition, digest in takes.items():
        if not condition.startswith(_MAP):
            yield f"what {condition} takes", taken.get(condition, digest), digest
    truths = _truths(other.conditions, taken), _truths(here.conditions, takes)
    if all(truths):
        yield "the digest of boxes or masks", *truths


def _answered(*entries: CheckpointEntry) -> bool:
    """Whether answers say if the user's own code computes the same; then an edit of a comment changes nothing."""
    return all(entry.has_own_code and entry.answers is not UNSET and entry.answers.values for entry in entries)


def _other_answers(other: Manifest, here: Manifest) -> Iterator[str]:
    earlier = {entry.name: entry for entry in other.checkpoints}
    for entry in here.checkpoints:
        before = earlier.get(entry.name, entry)
        if gap := before.answers_gap(entry):
            inside = "the weights are the same, so its code, an attribute, a hook or a library changed"
            why = inside if before.code_sha256 == entry.code_sha256 else "its code was edited"
            yield f"{entry.name} answers the same samples differently there and here, {gap}: {why}"


def changed_code(other: Manifest, here: Manifest) -> Iterator[str]:
    """Yield a line for each checkpoint whose own code was edited, though its answers stay the same."""
    earlier = {entry.name: entry for entry in other.checkpoints}
    for entry in here.checkpoints:
        if entry.code_sha256 != earlier.get(entry.name, entry).code_sha256:
            yield f"{entry.name}: its code was edited, but its answers to a few samples are the same"


def card_difference(other: Manifest, here: Manifest, conditions: Iterable[str]) -> tuple[str, str, str] | None:
    """Return in words which conditions use other parts of two cards, and what each run has; None where none does."""
    tags = other.deciding.protocol, here.deciding.protocol
    parts = {text: (other.card_digest(text, here), here.card_digest(text, other)) for text in conditions}
    differences = [text for text, (before, after) in parts.items() if before != after]
    if not differences:
        return None
    before, after = (f"{tag} (part {part[:8]})" for tag, part in zip(tags, parts[differences[0]], strict=True))
    return (
        f"protocol of {differences[0]}{f' and {len(differences) - 1} more' if len(differences) > 1 else ''}",
        before,
        after,
    )


def list_differences(name: str, other: Any, here: Any, where: str = "there") -> str:
    """Return in words what differs; for tables only the entries that do. where: how the other side is called."""
    if isinstance(other, dict) and isinstance(here, dict):
        keys = [key for key in {**other, **here} if other.get(key) != here.get(key)]
        other, here = ({key: side.get(key) for key in keys} for side in (other, here))
    if name == "data digest":
        why = "images, labels or their selection (--limit, --ids, --seed) differ"
        return f"{name} is {str(other)[:12]}… {where} and {str(here)[:12]}… here: {why}"
    return f"{name} is {other} {where} and {here} here"


def _truths(conditions: Iterable[str], digests: Mapping[str, str]) -> str:
    """Return the digest of the truth that maps were scored with: `none` without one, empty without maps."""
    return " and ".join(sorted({digests.get(text, "none") for text in conditions if text.startswith(_MAP)}))


def _corrupted(other: CorruptedEntry, here: CorruptedEntry) -> CorruptedEntry:
    left_out = {**other.left_out, **here.left_out}
    return CorruptedEntry(
        digests={**other.digests, **here.digests},
        released={**other.released, **here.released},
        left_out={condition: line for condition, line in left_out.items() if condition not in here.digests},
    )


def _plugins(other: Iterable[PluginEntry], here: Iterable[PluginEntry]) -> tuple[PluginEntry, ...]:
    """Return the plug-ins of both, which agree on the code of each."""
    entries: dict[tuple[str, str], PluginEntry] = {}
    for entry in (*other, *here):
        before = entries.get((entry.group, entry.name), entry)
        both = {name: _union(getattr(before, name), getattr(entry, name)) for name in ("conditions", "checkpoints")}
        entries[entry.group, entry.name] = replace(entry, **both)
    return tuple(entries.values())


def _union(other: Iterable[str], here: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*other, *here)))


_TIMINGS = "timings"
_OF_NO_UNIT = (_TIMINGS, METADATA)  # of which the first part's stay
_FOLDERS = (PICTURES, ADVERSARIALS, _TIMINGS, "records")  # in the order in which a unit's files are written


def gather_parts(into: RunFolder, parts: Sequence[RunFolder]) -> None:
    """Write a run.json of all parts, and copy, once, the files that `into`, one of the parts or new, lacks. Raises
    DamagedRecord where a file is not what was written for its run, RunError where the parts are not of one run, or two
    have different rows under one name; then nothing was copied."""
    folders = {part.path.resolve(): part for part in (into, *parts) if part.read_manifest()}
    manifest = _of_all(list(folders.values()))
    for part in folders.values():
        refuse_damaged(part)
    tables = {part.path: table for part in folders.values() if (table := metadata_of_run(part)) is not None}
    columns = {path: columns_of(table) for path, table in tables.items()}
    groups = {path: cells[name] for path, (cells, name) in columns.items() if name}
    if other := next((path for path, names in groups.items() if names != next(iter(groups.values()))), None):
        first = next(iter(groups))
        raise RunError(f"{other} groups samples otherwise than {first}; report both with the same --groups")
    holders: dict[Path, RunFolder] = {}
    for part in folders.values():
        for inside in _files(part, manifest):
            holder = holders.setdefault(inside, part)
            if holder is not part and inside.parts[0] not in _OF_NO_UNIT and not _alike(holder, part, inside):
                raise RunError(
                    f"{part.path / inside} differs from {holder.path / inside}, though both are the same unit; other "
                    "devices and versions may round differently: delete the unwanted part"
                )
    into.write_manifest(manifest)
    for inside, holder in holders.items():
        if holder is not folders.get(into.path.resolve()):
            into.write(into.path / inside, holder.read_bytes(holder.path / inside), durable=inside.parts[0] != _TIMINGS)


def refuse_damaged(run: RunFolder) -> None:
    """Raise DamagedRecord for a file of a run that is not what was written for it."""
    metadata_of_run(run)
    for name in run.manifest.names:
        for text in run.manifest.conditions:
            for path, why in (
                *run.damaged(name, [text]),
                *run.strange_evidence(name, [text]),
                *strange_images(run, PICTURES, name, [text]),
                *strange_images(run, ADVERSARIALS, name, [text]),
            ):
                raise DamagedRecord(f"{path}: {why}; delete it, and rerun the command that made it")


def _of_all(parts: Sequence[RunFolder]) -> Manifest:
    first = parts[0]
    conditions = dict.fromkeys(text for part in parts for text in part.manifest.conditions)
    for part in parts[1:]:
        differences = disagreements(first.manifest, part.manifest, conditions)
        if first.manifest.pictures != part.manifest.pictures:
            differences.append("the samples whose images are kept (--browse) differ")
        if differences:
            raise RunError(
                f"{part.path} is not part of the run in {first.path}: {'; '.join(differences)} ({first.path} is there, "
                f"{part.path} here); give parts of the same command"
            )
    return reduce(join_manifests, (part.manifest for part in parts))


def _files(run: RunFolder, manifest: Manifest) -> Iterator[Path]:
    """Yield the paths in a run folder of its metadata, and of what its units consist of, each record after what belongs
    to it."""
    yield from [Path(METADATA)] if (run.path / METADATA).is_file() else []
    for name in map(folder_name, manifest.names):
        for text in map(folder_name, manifest.conditions):
            evidence = Path("evidence", name, f"{text}.json")
            yield from [evidence] if (run.path / evidence).is_file() else []
            for folder in _FOLDERS:
                paths = (run.path / folder / name / text).glob("[!.]*")
                yield from sorted(path.relative_to(run.path) for path in paths)


def _alike(one: RunFolder, other: RunFolder, inside: Path) -> bool:
    """Whether two files, each of which is what was written, hold the same; in metadata, the device may differ."""
    first, second = (run.read_bytes(run.path / inside) for run in (one, other))
    return first == second or (inside.suffix == ".parquet" and digest_of_pages(first) == digest_of_pages(second))
