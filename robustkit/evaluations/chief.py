"""Choose the few figures that sum up a run: what a short policy guards, and what an index of runs shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .cells import Cells, is_finite
from .kinds import by_words


class Chief(NamedTuple):
    """A figure that sums up a run. why: in a few words."""

    condition: str
    metric: str
    why: str


def chief_figures(checkpoints: Iterable[Cells], metric: str) -> list[Chief]:
    """Return the same few figures for all checkpoints of a run, families in the order of the results.

    Where one of several conditions is taken, such as the strongest attack, it is the one for the mean over checkpoints.

    checkpoints: the results of each. metric: the task's headline.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for cells in checkpoints:
        for key, row in cells.items():
            if is_finite(row["value"]):
                values.setdefault(key, []).append(row["value"])
    means = {key: sum(some) / len(some) for key, some in values.items()}
    chosen, order = list[Chief](), list(dict.fromkeys(condition for condition, _ in means))
    for words, texts in sorted(by_words(order), key=lambda group: order.index(group[1][0])):
        of_family = set(texts)
        own = {key: value for key, value in means.items() if key[0] in of_family}
        chosen += [Chief(*figure) for figure in words.chief(own, metric)]
    return chosen
