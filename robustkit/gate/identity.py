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
    actual = {
        "protocol": manifest.protocol.tag,
        "data digest": manifest.data.digest,
        "attention": checkpoint and checkpoint.attention,
        "arch": checkpoint and checkpoint.arch,
        "checkpoint sha256": checkpoint and checkpoint.sha256,
        "settings": settings_of(manifest),
        "heads": checkpoint and heads_text(checkpoint),
        "label map": checkpoint and pairing.checkpoint_setup(checkpoint)["label map"],
    }[subject]
    if subject in ("settings", "heads"):  # which may be long: only what differs is named
        parts, allowed = (str(text or "").split(", ") for text in (actual, expected))
        unexpected = [part for part in parts if part not in allowed]
        gone = [part for part in allowed if part not in parts]
        difference = f"{', '.join(unexpected) or 'none of these'}, expected {', '.join(gone) or 'nothing more'}"
        return not (unexpected or gone), f"{subject}: {difference if unexpected or gone else actual}"
    is_digest = subject.endswith(("digest", "sha256"))
    same = actual == expected or (is_digest and str(actual).lower() == expected.lower())
    return same, f'{subject} is "{actual}"'


def settings_of(manifest: Manifest) -> str:
    """Return what a run decides for all its checkpoints besides card and data, without what only rounds otherwise."""
    texts = (f"{name} {value}" for name, value in pairing.run_setup(manifest).values.items())
    return ", ".join(text for text in texts if text != _USUAL)


def heads_text(checkpoint: CheckpointEntry) -> str:
    """Return how the heads of features were made, and from what; empty where there are none."""
    return ", ".join(f"{key} {value}" for key, value in pairing.heads_setup(checkpoint).items())


def _preprocessing(checkpoint: CheckpointEntry, expected: str) -> tuple[bool, str]:
    """Compare part by part; the reason names each that differs, who said it, and what was expected."""
    parts, texts = shown_as(checkpoint), [" ".join(part.split()) for part in expected.split(",")]
    if [*parts.values()] == texts:
        return True, f'preprocessing is "{", ".join(texts)}"'
    differing, missing = list[str](), "nothing"
    every = [*parts.items(), *[("", missing)] * (len(texts) - len(parts))]
    for (part, here), text in zip(every, [*texts, *[missing] * (len(parts) - len(texts))], strict=True):
        if here != text:
            who = source_words(checkpoint.origin.get(part, ""), checkpoint.arch)
            differing.append(f"{here}{who and f' ({who})'}, expected {text}")
    return False, f"preprocessing is {'; '.join(differing)}"
