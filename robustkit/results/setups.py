"""Say what decides a checkpoint's figures besides its weights, its data and the conditions, and where that differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from ..runs.digests import digest_of
from ..runs.manifest import CheckpointEntry, Manifest

_OF_CARD = ("task", "space", "labels", "parameters")
_ROUNDED = ("compile", "version of")
"""The beginnings of the names of what changes figures by rounding only, unless something is defective."""


class RunSetup(msgspec.Struct, frozen=True):
    """What a run decides for all its checkpoints.

    values: card, seed, precision, engine, versions and sources of plug-ins, as texts by name. files: of each condition
    the digest of the files that it reads; empty where it reads none.
    """

    values: dict[str, str]
    files: dict[str, str]


def run_setup(manifest: Manifest) -> RunSetup:
    """Return what a run decides for all its checkpoints."""
    deciding, digests = manifest.deciding, manifest.corrupted.digests
    values = {name: str(getattr(deciding, name)) for name in ("protocol", "seed", "dtype", "compile")}
    values["engine"] = str(manifest.arguments.get("engine") or "robustkit")
    card = {key: value for key, value in manifest.protocol.to_plain().items() if key in _OF_CARD}
    values["parameters of the card"] = digest_of(card)[:12]
    if manifest.data.unjudged is not UNSET:
        values["labels that do not count"] = " ".join(map(str, manifest.data.unjudged)) or "none"
    values |= {f"version of {name}": text for name, text in manifest.made_with.items()}
    values["use of maps of wrong predictions"] = "scored" if manifest.keep_misclassified else "left out"
    values |= {f"source of plug-in {plugin.name}": f"{plugin.source[:12]}…" for plugin in manifest.used_plugins}
    return RunSetup(values, {text: digests.get(text, "")[:16] for text in manifest.conditions})


def checkpoint_setup(entry: CheckpointEntry) -> dict[str, str]:
    """Return how a checkpoint was built and is shown images, as texts by name: formula, architecture, preprocessing."""
    plain = entry.to_plain()
    windows = plain.get("windows") or {}
    values = {
        **{key: plain[key] for key in ("attention", "arch")},
        **plain["preprocessing"],
        **{f"window {key}": value for key, value in windows.items()},
        **{f"heads' {key}": value for key, value in heads_setup(entry).items()},
        **{key: plain[key] for key in ("num_classes", "weights")},
        "code": (entry.code_sha256 or "none")[:12],
    }
    return {key.replace("_", " "): _text(key, value) for key, value in values.items()}


def heads_setup(entry: CheckpointEntry) -> dict[str, str]:
    """Return how the heads of features were made, and from which images, as texts by name; empty without heads."""
    heads = {} if entry.heads is UNSET else entry.heads
    return {key.replace("_", " "): _text(key, value) for key, value in heads.items()}


def _text(key: str, value: Any) -> str:
    return ("×" if "size" in key else " ").join(map(str, value)) if isinstance(value, list) else str(value)


def checkpoint_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return `crop pct 1.0 instead of 0.875` for each part of a `checkpoint_setup` that is another one."""
    texts = {name: (before.get(name, "none"), after.get(name, "none")) for name in {**after, **before}}
    return [f"{name} {here} instead of {there}" for name, (there, here) in texts.items() if there != here]


def is_of_rounding(line: str) -> bool:
    """Whether a line of `run_changes` is about what changes figures by rounding only."""
    return line.startswith(_ROUNDED)


def run_changes(before: RunSetup, after: RunSetup, conditions: Collection[str] | None = None) -> list[str]:
    """Return `seed differs: 0 and 3` for each value that both runs have in two ways, and a line on files that differ.

    conditions: those whose files count; by default all that both have.
    """
    both = [(name, text, after.values[name]) for name, text in before.values.items() if name in after.values]
    if before.values["protocol"] != after.values["protocol"]:
        both = [each for each in both if each[0] != "parameters of the card"]
    lines = [f"{name} differs: {there} and {here}" for name, there, here in both if there != here]
    texts = [text for text in before.files if text in after.files] if conditions is None else conditions
    odd = [text for text in texts if before.files.get(text, "") != after.files.get(text, "")]
    more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
    return [*lines, *(f"files that {text}{more} reads differ" for text in odd[:1])]
