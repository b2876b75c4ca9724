"""What results say about the evidence on an attack, which the slice `evidence` takes and judges. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...common.finding import Finding
from ...common.plugins import built_in


@dataclass(frozen=True)
class Sign:
    name: str
    figure: str
    """What was measured, in words, or `not measured`."""
    finding: Finding | None = None


def missing_evidence(figures: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> Sign | None:
    """Return what is wrong where an attack has no evidence, or only what was taken before it; None where it has.

    arguments: of run.json.
    """
    if figures is not None and "awaited" not in figures:
        return None
    if arguments.get("evidence") == "none":
        return Sign("evidence", "not taken", Finding.of("evidence/declined"))
    return Sign("evidence", "not there", Finding.of("evidence/missing"))


def checks_of(figures: Mapping[str, Any], stages: Mapping[str, int], n: int, averaged: bool) -> list[Sign]:
    """Return the checks of figures that were taken, as `gradient_masking.checks_of`, by the slice that judges them."""
    if (entry := built_in("functions").get("checks_of_evidence")) is None:
        why = "this installation is without the slice that judges it"
        return [Sign("evidence", why, Finding.of("evidence/failed", why=why))]
    judge: Callable[..., list[Sign]] = entry.load()
    return judge(figures, stages, n=n, averaged=averaged)


def raised_by(checks: Iterable[Sign]) -> list[Finding]:
    """Return the findings; one where several checks were not measured for the same reason."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for check in checks:
        if (finding := check.finding) is not None:
            unmeasured = finding.code == "masking/unmeasured"
            alike.setdefault(("", check.figure) if unmeasured else (check.name, check.figure), []).append(finding)
    names = [[finding.text.partition(":")[0] for finding in some[:-1]] for some in alike.values()]
    return [
        replace(some[-1], text=", ".join([*before, some[-1].text]))
        for before, some in zip(names, alike.values(), strict=True)
    ]
