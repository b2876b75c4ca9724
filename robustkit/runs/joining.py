"""Two descriptions of one run: where they disagree, so that their records must not be mixed, and both as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from .binding import OF_CHECKPOINT, digest_of_run
from .manifest import CorruptedEntry, Manifest, PluginEntry

_MAP = "cam("  # how the text of a map that is scored begins


def disagreements(there: Manifest, here: Manifest) -> list[str]:
    """Return in words what decides records and differs between two manifests; nothing where these may share a folder.

    A checkpoint, condition or plug-in that only one of them has is no difference.
    """
    odd = [*plugin_differences(there, here)]
    odd += (differing(name, *values) for name, *values in _pairs(there, here) if values[0] != values[1])
    if not odd and digest_of_run(there) != digest_of_run(here):
        odd.append("run.json there names other samples, shards or parameters of the card")
    return odd


def joined(there: Manifest, here: Manifest) -> Manifest:
    """Return the manifest of all that two ask for, which agree; what decides no record is `here`'s, except for the
    start of the run and the samples of which pictures are kept.
    """
    names = {entry.name for entry in there.checkpoints}
    return replace(
        here,
        started=there.started,
        arguments={**here.arguments, **({"keep_adversarials": True} if there.keeps_adversarials else {})},
        conditions=_union(there.conditions, here.conditions),
        claims={**there.claims, **here.claims},
        checkpoints=(*there.checkpoints, *(entry for entry in here.checkpoints if entry.name not in names)),
        data=replace(here.data, notes=_union(here.data.notes, there.data.notes)),
        corrupted=_corrupted(there.corrupted, here.corrupted),
        bad_images=there.bad_images,
        pictures=there.pictures,
        evidence=_union(there.evidence, here.evidence),
        plugins=_plugins(there.used_plugins, here.used_plugins) or UNSET,
        sequential=True if there.is_sequential or here.is_sequential else UNSET,
    )


def plugin_differences(there: Manifest, here: Manifest) -> Iterator[str]:
    """Yield how the plug-ins that decide records differ."""
    ours = {(entry.group, entry.name): entry for entry in here.used_plugins}
    theirs = {(entry.group, entry.name): entry for entry in there.used_plugins}
    asked = {*here.conditions, *here.names}
    for key, entry in theirs.items():
        if key not in ours and (covered := asked & {*entry.conditions, *entry.checkpoints}):
            yield f"{min(covered)} is of plug-in {entry.words} there and of robustkit itself here"
    for key, entry in ours.items():
        before = theirs.get(key)
        if before is not None and before.identity != entry.identity:
            yield f"plug-in {before.words} there is {entry.words} here"
        unmarked = [text for text in entry.conditions if text in there.conditions and before is None]
        if unmarked:
            yield f"{unmarked[0]} is of robustkit itself there and of plug-in {entry.words} here"


def _pairs(there: Manifest, here: Manifest) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of what decides records with its value in both."""
    before = there.deciding.to_plain()
    yield from ((name, before.get(name), value) for name, value in here.deciding.to_plain().items())
    yield "shard size", there.shard_size, here.shard_size
    yield "--shuffle", there.arguments.get("shuffle") is True, here.arguments.get("shuffle") is True
    earlier = {entry.name: entry for entry in there.checkpoints}
    for new in here.checkpoints:
        one, other = earlier.get(new.name, new).to_plain(), new.to_plain()
        yield from ((f"{key} of {new.name}", one.get(key), other.get(key)) for key in OF_CHECKPOINT)
    taken, takes = there.corrupted.digests, here.corrupted.digests
    for condition, digest in takes.items():
        if not condition.startswith(_MAP):
            yield f"what {condition} takes", taken.get(condition, digest), digest
    truths = _truths(there.conditions, taken), _truths(here.conditions, takes)
    if all(truths):
        yield "the digest of boxes or masks", *truths


def differing(name: str, there: Any, here: Any, where: str = "there") -> str:
    """Return in words what differs; for tables only the entries that do. where: how the other side is called."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        there, here = ({key: side.get(key) for key in keys} for side in (there, here))
    if name == "data digest":
        why = "images, labels or the choice of them (--limit, --ids, --seed) are others"
        return f"{name} is {str(there)[:12]}… {where} and {str(here)[:12]}… here: {why}"
    return f"{name} is {there} {where} and {here} here"


def _truths(conditions: Iterable[str], digests: Mapping[str, str]) -> str:
    """Return the digest of the truth that maps were scored with: `none` without one, empty without maps."""
    return " and ".join(sorted({digests.get(text, "none") for text in conditions if text.startswith(_MAP)}))


def _corrupted(there: CorruptedEntry, here: CorruptedEntry) -> CorruptedEntry:
    left_out = {**there.left_out, **here.left_out}
    return CorruptedEntry(
        digests={**there.digests, **here.digests},
        released={**there.released, **here.released},
        left_out={condition: line for condition, line in left_out.items() if condition not in here.digests},
    )


def _plugins(there: Iterable[PluginEntry], here: Iterable[PluginEntry]) -> tuple[PluginEntry, ...]:
    """Return the plug-ins of both, which agree on the code of each."""
    entries: dict[tuple[str, str], PluginEntry] = {}
    for entry in (*there, *here):
        before = entries.get((entry.group, entry.name), entry)
        entries[entry.group, entry.name] = replace(
            entry,
            conditions=_union(before.conditions, entry.conditions),
            checkpoints=_union(before.checkpoints, entry.checkpoints),
        )
    return tuple(entries.values())


def _union(there: Iterable[str], here: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*there, *here)))
