"""Compare what run.json says about a run and its checkpoints with what a rule expects."""

from __future__ import annotations

from ..common.preprocessing import source_words
from ..results import pairing
from ..runs.description import shown_as
from ..runs.manifest import CheckpointEntry, Manifest
from .policy import Identity

_USUAL = "use of maps of wrong predictions left out"


def compare_identity(statement: Identity, manifest: Manifest, checkpoint: CheckpointEntry | None) -> tuple[bool, str]:
    """Return whether the run is of what is expected, and what was found. checkpoint: None where the run is meant."""
    subject, expected = statement.subject, statement.expected
    if subject == "preprocessing" and checkpoint is not None:
        return _preprocessing(checkpoint, expected)
    found = {
        "protocol": manifest.protocol.tag,
        "data digest": manifest.data.digest,
        "attention": checkpoint and checkpoint.attention,
        "arch": checkpoint and checkpoint.arch,
        "checkpoint sha256": checkpoint and checkpoint.sha256,
        "settings": settings_of(manifest),
        "heads": checkpoint and heads_of(checkpoint),
    }[subject]
    if subject in ("settings", "heads"):  # which may be long: only what differs is named
        parts, wanted = (str(text or "").split(", ") for text in (found, expected))
        odd = [part for part in parts if part not in wanted]
        gone = [part for part in wanted if part not in parts]
        said = f"{', '.join(odd) or 'none of these'}, expected {', '.join(gone) or 'nothing more'}"
        return not (odd or gone), f"{subject}: {said if odd or gone else found}"
    is_digest = subject.endswith(("digest", "sha256"))
    same = found == expected or (is_digest and str(found).lower() == expected.lower())
    return same, f'{subject} is "{found}"'


def settings_of(manifest: Manifest) -> str:
    """Return what a run decides for all its checkpoints besides card and data, without what only rounds otherwise."""
    values = pairing.run_setup(manifest).values
    kept = (
        f"{name} {value}" for name, value in values.items() if not (name == "protocol" or pairing.is_of_rounding(name))
    )
    return ", ".join(text for text in kept if text != _USUAL)


def heads_of(checkpoint: CheckpointEntry) -> str:
    """Return how the heads of features were made, and from what; empty where there are none."""
    return ", ".join(f"{key} {value}" for key, value in pairing.heads_setup(checkpoint).items())


def _preprocessing(checkpoint: CheckpointEntry, expected: str) -> tuple[bool, str]:
    """Compare part by part; the reason names each that differs, who said it, and what was expected."""
    found, wanted = shown_as(checkpoint), [" ".join(part.split()) for part in expected.split(",")]
    if [*found.values()] == wanted:
        return True, f'preprocessing is "{", ".join(wanted)}"'
    differing, missing = list[str](), "nothing"
    every = [*found.items(), *[("", missing)] * (len(wanted) - len(found))]
    for (part, here), there in zip(every, [*wanted, *[missing] * (len(found) - len(wanted))], strict=True):
        if here != there:
            who = source_words(checkpoint.origin.get(part, ""), checkpoint.arch)
            differing.append(f"{here}{who and f' ({who})'}, expected {there}")
    return False, f"preprocessing is {'; '.join(differing)}"
