"""Turn what the check of the set-up found into flags. It needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BETTER = "another-fits-better"


def setup_flags(evidence: Mapping[str, Any] | None) -> list[str]:
    """Return a flag for each part of the set-up in use that another candidate beats beyond chance.

    evidence: what `check_setup` wrote; it may come from someone else, so what has another shape says nothing.
    """
    parts = (evidence or {}).get("setup")
    return [_flag(part) for part in parts if _is_better(part)] if isinstance(parts, list) else []


def _is_better(part: Any) -> bool:
    texts, numbers = ("part", "in_use", "best", "remedy"), ("difference", "ci_low", "ci_high", "n")
    return (
        isinstance(part, dict)
        and part.get("verdict") == _BETTER
        and all(isinstance(part.get(name), str) for name in texts)
        and all(isinstance(part.get(name), int | float) for name in numbers)
    )


def _flag(part: Mapping[str, Any]) -> str:
    measured = "{difference:.3f}, 95 % interval {ci_low:.3f} to {ci_high:.3f}, {n} images".format(**part)
    return (
        f"{part['part']} in use does not fit the model: {part['best']} fits better than {part['in_use']} (NLL lower by "
        f"{measured}); {part['remedy']} (robustkit inspect CHECKPOINT --data-dir DIR looks at all of the set-up)"
    )
