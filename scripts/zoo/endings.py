"""How trainings ended, for the model card: a row for each formula, over all of its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..pages.writing import markdown
from .logs import Log
from .trainings import spread


def _trained(attention: str, logs: Sequence[Log]) -> tuple[str, ...]:
    """Return a row of all seeds of a formula."""
    whole = [log.epochs[-1] for log in logs if not log.diverged]
    cells = [attention, str(len(logs)), spread([100 * log.accuracy for log in logs], 2)]
    cells.append(spread([row["loss"] for row in whole], 3))
    cells.append(spread([100 * row.get("train_accuracy_ema", math.nan) for row in whole], 1))
    cells.append(spread([log.largest_logit() for log in logs], 0))
    for key in ("query_norm", "key_norm", "entropy"):
        ends = (spread([end(row["probe"][key]) for row in whole], 1) for end in (min, max))
        cells.append(" to ".join(ends))
    return tuple(cells)


def endings(by_formula: dict[str, list[Log]]) -> str:
    """Return how the trainings of a family ended, in a sentence and a table."""
    gone = [f"{name}, seed {log.seed}" for name, logs in by_formula.items() for log in logs if log.diverged]
    fate = f"{'; '.join(gone)} diverged" if gone else "none diverged"
    count = sum(map(len, by_formula.values()))
    heading = (
        "attention",
        "seeds",
        "top-1 %",
        "training loss",
        "train %",
        "largest logit",
        "query norm",
        "key norm",
        "entropy, nats",
    )
    rows = [heading, *(_trained(name, logs) for name, logs in by_formula.items())]
    return f"{count} training{'s' if count > 1 else ''}, {fate}.\n\n{markdown(rows)}"
