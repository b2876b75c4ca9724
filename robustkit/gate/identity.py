"""Compare what a rule expects of card, data and checkpoint with what run.json says."""

from __future__ import annotations

from ..common.preprocessing import said_by
from ..runs.inputs import shown_as
from ..runs.manifest import CheckpointEntry, Manifest
from .statements import Identity


def compared(statement: Identity, manifest: Manifest, checkpoint: CheckpointEntry | None) -> tuple[bool, str]:
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
    }[subject]
    is_digest = subject.endswith(("digest", "sha256"))
    same = found == expected or (is_digest and str(found).lower() == expected.lower())
    return same, f'{subject} is "{found}"'


def _preprocessing(checkpoint: CheckpointEntry, expected: str) -> tuple[bool, str]:
    """Compare part by part; the reason names each that differs, who said it, and what was expected."""
    found, wanted = shown_as(checkpoint), [" ".join(part.split()) for part in expected.split(",")]
    if [*found.values()] == wanted:
        return True, f'preprocessing is "{", ".join(wanted)}"'
    differing, missing = list[str](), "nothing"
    every = [*found.items(), *[("", missing)] * (len(wanted) - len(found))]
    for (field, here), there in zip(every, [*wanted, *[missing] * (len(found) - len(wanted))], strict=True):
        if here != there:
            who = said_by(checkpoint.said.get(field, ""), checkpoint.arch)
            differing.append(f"{here}{who and f' ({who})'}, expected {there}")
    return False, f"preprocessing is {'; '.join(differing)}"
