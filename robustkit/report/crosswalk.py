"""Say for which clauses of standards the figures of a run are evidence; none of them says that a system complies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from ..common.files import parse_toml
from ..errors import RunError
from ..evaluations.condition import is_attack, kind_of
from ..evaluations.maps.condition import is_control
from ..evaluations.metrics import is_finite
from ..tasks.registry import find_metric

HEADINGS = ("Figure", "What it is evidence for", "Clause")


@cache
def parts() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of crosswalk.toml: figure, kinds of conditions, metrics, evidence, clauses."""
    text = (resources.files(__package__) / "crosswalk.toml").read_text("utf-8")
    return tuple(parse_toml(text, "crosswalk.toml", RunError)["row"])


def crosswalk(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield a figure, what it is evidence for, and the clauses, as far as the rows of a checkpoint have such figures.

    Of several conditions the figure is the worst one's; controls of maps do not count. A part without figures is left
    out.
    """
    for part in parts():
        found = []
        for name in part["metrics"]:
            metric = find_metric(name)
            assert metric is not None
            some = [row for row in rows if row["metric"] == name and _fits(part["kinds"], row["condition"])]
            if some := [row for row in some if is_finite(row["value"])]:
                worst = min(some, key=lambda row: metric.better * row["value"])
                among = f", the lowest of {len(some)} conditions" if len(some) > 1 and metric.better > 0 else ""
                among = f", the highest of {len(some)} conditions" if len(some) > 1 and metric.better < 0 else among
                doubt = ", flagged" if worst["flags"] else ""
                under = f"{worst['condition']}, n = {worst['n']}{among}{doubt}"
                found.append(f"{metric.label or name} {metric.cell(worst)} ({under})")
        if found:
            yield f"{part['figure']}: {'; '.join(found)}", part["evidence"], "; ".join(part["clauses"])


def _fits(kinds: Sequence[str], condition: str) -> bool:
    kind = kind_of(condition)
    return (kind in kinds and not is_control(condition)) or ("attacks" in kinds and is_attack(kind))
