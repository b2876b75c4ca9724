"""The verdicts on a set-up from all candidates on all images, by scipy: what halving must not change."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from robustkit.attention import get_attention, set_attention
from robustkit.data.dataset import Dataset
from robustkit.data.images import to_pixels
from robustkit.models.identity import Classifier
from robustkit.models.setup_check import BETTER, Setup, alternatives
from robustkit.slices.inspect.search import SetupSearch

Losses = Mapping[str, NDArray[np.float64]]


def interval(losses: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference."""
    values = losses - other
    if not values.any():
        return 0.0, 0.0
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), values.std(ddof=1) / math.sqrt(len(values)))
    return float(low), float(high)


def adjusted(losses: Losses, used: str) -> dict[str, float]:
    """Return Holm's p-values of no difference from the one in use."""
    raw = {name: 1.0 if not (each - losses[used]).any() else float(stats.ttest_rel(each, losses[used]).pvalue)
           for name, each in losses.items() if name != used}  # fmt: skip
    found, largest = dict[str, float](), 0.0
    for rank, name in enumerate(sorted(raw, key=raw.__getitem__)):
        largest = found[name] = max(largest, min(1.0, (len(raw) - rank) * raw[name]))
    return found


def verdict(losses: Losses, used: str, guessing: float, alike: float = 0.02) -> tuple[str, str]:
    """Return the verdict on a part, and the better candidate where there is one."""
    best = min(losses, key=lambda name: float(losses[name].mean()))
    ends = {name: interval(each, losses[best]) for name, each in losses.items()}
    same = {name for name, (low, high) in ends.items() if max(abs(low), abs(high)) <= alike}
    if losses[best].mean() < guessing - alike:
        if used not in same and adjusted(losses, used)[best] < 0.05:
            return "another-fits-better", best
        worse = {name for name, each in losses.items() if interval(each, losses[used])[0] > 0}
        if used in same and set(losses) == same | worse | {used}:
            return "fits", ""
    return "inconclusive", ""


def formula_verdict(losses: Losses, declared: str, guessing: float) -> tuple[str, str]:
    """Return the verdict on formulas without options, and the better one where there is one."""
    best = min(losses, key=lambda name: float(losses[name].mean()))
    rival = declared if best != declared else sorted(losses, key=lambda name: float(losses[name].mean()))[1]
    if losses[best].mean() >= guessing or interval(losses[rival], losses[best])[0] <= 0:
        return "inconclusive", ""
    return ("fits", "") if best == declared else ("another-fits-better", best)


def full(
    search: SetupSearch, data: Dataset, setups: Sequence[Setup], names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Return the loss of each candidate on each image, without a bench, in the data set's order."""
    found, pictures = {}, [data.image(sample) for sample in data.samples]
    for name, setup in zip(names, setups, strict=True):
        net, p = search.model.network, setup.preprocessing
        if setup.attention and setup.attention != get_attention(net):
            net = set_attention(copy.deepcopy(net), setup.attention)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (p.mean, p.std))
        inputs = torch.stack([(to_pixels(picture, p).float() / 255 - mean) / std for picture in pictures])
        with torch.no_grad():
            logits = torch.cat([net(part.flip(1) if setup.bgr else part) for part in inputs.split(16)])
        labels = torch.tensor([search.numbered[setup.labels][sample.label] for sample in data.samples])
        found[name] = nn.functional.cross_entropy(logits, labels, reduction="none").double().numpy()
    return found


def check_same_verdicts(model: Classifier, data: Dataset) -> float:
    """Compare a search with the full one, part by part, and return its forwards for an image."""
    search = SetupSearch(model, data, 16, 0)
    guessing = math.log(model.identity.num_classes)
    attention = ""
    if search.bench.formulas:
        ranking = search.rank()
        setups = [replace(search.setup, attention=row.name) for row in ranking.rows]
        losses = full(search, data, setups, [row.name for row in ranking.rows])
        assert (ranking.verdict, ranking.best if ranking.verdict == BETTER else "") == formula_verdict(
            losses, ranking.declared, guessing
        )
        attention = ranking.best if ranking.verdict == BETTER else ""
    for fit in search.fit(attention)[0]:
        candidates = alternatives(fit.part, fit.used.setup, search.numbered)
        losses = full(search, data, [*candidates.values()], [*candidates])
        found = fit.verdict, fit.best.name if fit.verdict == BETTER else ""
        assert found == verdict(losses, fit.in_use, guessing), fit.part
        if fit.verdict == BETTER:
            worse = {n for n, each in losses.items() if interval(each, losses[fit.best.name])[0] > 0}
            assert set(fit.open) == set(losses) - worse - {fit.best.name}
    return search.bench.forwards / len(data.samples)
