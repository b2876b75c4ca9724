"""Turn what the check of the set-up found into flags. It needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BETTER, _UNKNOWN = "another-fits-better", "cannot-tell"


def setup_flags(evidence: Mapping[str, Any] | None) -> list[str]:
    """Return a flag for each part of the set-up in use that another candidate beats beyond chance.

    evidence: what `check_setup` wrote; it may come from someone else, so what has another shape says nothing.
    """
    return [_flag(part) for part in _parts(evidence) if part.get("verdict") == _BETTER]


def setup_notes(evidence: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each part in which another candidate is ahead of the one in use, but not beyond chance; a
    single one, on labels and weights, where no candidate is better than guessing.

    evidence: as of `setup_flags`.
    """
    parts = [*_parts(evidence)]
    if parts and all(map(_is_guessing, parts)):
        return [
            "set-up: cannot tell, under none that was tried is the loss lower than that of guessing (NLL {nll:.2f}, "
            "guessing {guessing:.2f}, {n} images); check the weights, and that the classes are in the order of the "
            "model's outputs: robustkit inspect CHECKPOINT --data-dir DIR".format(**parts[0])
        ]
    open_parts = (part for part in parts if part.get("verdict") == _UNKNOWN and part.get("same") is False)
    return [
        "{part}: cannot tell {in_use} (in use) from {best}, which is ahead: NLL lower by {difference:.3f} "
        "[{ci_low:.3f}, {ci_high:.3f}], {n} images, which chance may explain in the best of several; more images may "
        "tell".format(**part)
        for part in open_parts
        if part["best"] != part["in_use"] and not _is_guessing(part)
    ]


def _is_guessing(part: Mapping[str, Any]) -> bool:
    """Whether the best candidate's loss is no lower than that of a model that knows nothing."""
    nll, guessing = part.get("nll"), part.get("guessing")
    return isinstance(nll, int | float) and isinstance(guessing, int | float) and not nll < guessing


def _parts(evidence: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the parts that have the shape that we write."""
    texts, numbers = ("part", "in_use", "best", "remedy"), ("difference", "ci_low", "ci_high", "n")
    parts = (evidence or {}).get("setup")
    for part in parts if isinstance(parts, list) else ():
        if (
            isinstance(part, dict)
            and all(isinstance(part.get(name), str) for name in texts)
            and all(isinstance(part.get(name), int | float) for name in numbers)
        ):
            yield part


def _flag(part: Mapping[str, Any]) -> str:
    measured = "{difference:.3f}, 95 % interval {ci_low:.3f} to {ci_high:.3f}, {n} images".format(**part)
    return (
        f"{part['part']} in use does not fit the model: {part['best']} fits better than {part['in_use']} (NLL lower by "
        f"{measured}); {part['remedy']}{_alike(part)} (robustkit inspect CHECKPOINT --data-dir DIR looks at all of the "
        "set-up)"
    )


def _alike(part: Mapping[str, Any]) -> str:
    """Return the other candidates that may be meant as well, each with its remedy."""
    listed = part.get("alike")
    pairs = [pair for pair in listed if isinstance(pair, list)] if isinstance(listed, list) else []
    named = [
        f"{pair[0]} ({pair[1]})" for pair in pairs if len(pair) == 2 and all(isinstance(text, str) for text in pair)
    ]
    return f"; not distinguishable from it: {', '.join(named)}" if named else ""
