"""A network under each attention formula that its tensors allow, and paired figures of candidates on labelled images.

A checkpoint loads under a wrong formula without an error and gives plausible, wrong numbers. Its clean NLL on labelled
images distinguishes the formulas.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from scipy.special import stdtrit
from torch import Tensor, nn

from ..errors import ModelError
from .apply import get_attention, set_attention
from .formulas import find_formula
from .registry import EVERY_FORMULA

FEWEST = 10  # images below which no verdict is given


@dataclass(frozen=True)
class Fit:
    """One candidate, such as a formula, on the images."""

    name: str
    top1: float  # a fraction
    nll: float  # the mean in nats
    difference: float  # from the best one's NLL, image by image, with a 95 % interval of the mean
    ci_low: float
    ci_high: float
    n: int  # images


class Formulas:
    """A model under every formula that its tensors allow, its own first; all share the tensors. ModelError without."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.current = model, get_attention(model)
        shared: dict[int, object] = {id(t): t for t in (*nn.Module.parameters(model), *nn.Module.buffers(model))}
        self._other = copy.deepcopy(model, shared).eval()  # other modules, the same tensors; the model keeps its scales
        names, self.left_out = _candidates(model, self.current)
        self.names = [name for name in names if name == self.current or self._takes(name)]

    def _takes(self, name: str) -> bool:
        try:
            set_attention(self._other, name)
        except ModelError:  # such as elliptical for Swin
            return False
        return True

    def network(self, name: str) -> nn.Module:
        """Return the model under a formula, valid until the next call."""
        return self.model if name == self.current else set_attention(self._other, name)


def _candidates(model: nn.Module, current: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the formulas without parameters, the model's own, and with norms those of norms; and those left out."""
    normed = any(name.endswith(".k_norm.weight") for name, _ in nn.Module.named_parameters(model))
    names, every = [], dict(EVERY_FORMULA.usable())
    for name, formula in ({current: find_formula(current)} | every).items():
        needs = bool(formula.initial(1, 1)) or formula.network is not None or bool(formula.norms and not normed)
        if name == current or not (needs or formula.cap is not None):  # a cap above all logits changes nothing
            names.append(name)
    taken = (*names, current.partition("(")[0])
    left = (name for name, formula in every.items() if name not in taken and formula.cap is None)
    return names, tuple(left)


def fit_figures(losses: Tensor, best: Tensor) -> tuple[float, float, float, float, float, int]:
    """Return top-1, the mean NLL, its difference from that of the best, with an interval, and n, from (n, 2) tables."""
    interval = paired_interval(losses[:, 0] - best[: len(losses), 0])
    return float(losses[:, 1].mean()), float(losses[:, 0].mean()), *interval, len(losses)


def paired_interval(differences: Tensor, level: float = 0.05) -> tuple[float, float, float]:
    """Return the mean of (n,) differences and its interval by Student's t, of 1 - `level`; infinite for one image."""
    n, mean = len(differences), float(differences.double().mean())
    if n < 2:
        return mean, -math.inf, math.inf
    reach = float(stdtrit(n - 1, 1 - level / 2)) * float(differences.double().std()) / math.sqrt(n)
    return mean, mean - reach, mean + reach
