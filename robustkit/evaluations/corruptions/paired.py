"""Compare two checkpoints by means over corruptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..recorded import Compared, PerSample, Recorded, common_ids
from .sets import CORRUPTIONS, sets_at
from .shares import by_definition, conditions_of, shares_of


def compared(common: Sequence[str], of: Compared) -> Iterator[tuple[str, str]]:
    """Yield condition and metric of the means over sets, and over severities, that `common` allows.

    Single severities are left out: they follow these means so closely that they would only weaken the correction for
    multiple rows.
    """
    for example, members in by_definition(common):
        means = dict.fromkeys(sets_at(members, example.definition, example.of_frost), of.sets)
        means |= {replace(example, name=name).mean.text: of.groups for name in CORRUPTIONS if of.groups}
        for mean, metrics in means.items():
            if set(conditions_of(mean)) <= set(common):
                yield from ((mean, metric) for metric in metrics)


def not_compared(common: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Return a line on the severities that are in no mean."""
    averaged = {text for condition in dict.fromkeys(shown) for text in shares_of(condition)}
    single = [text for text in common if text not in averaged]
    return [f"single severities that make no mean are left out: {', '.join(single)}"] if single else []


def mean_errors(side: Recorded, condition: str) -> PerSample:
    """Return the mean error of each sample that could be read under all conditions of a mean."""
    shares = shares_of(condition)
    ids = common_ids([side.samples(text, ["correct"]).ids for text in shares])
    errors = np.zeros(len(ids))
    for text, part in shares.items():
        errors += part * (1 - side.samples(text, ["correct"]).of("correct", ids))
    return ids, errors
