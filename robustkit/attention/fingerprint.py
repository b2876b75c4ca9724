"""Find the attention formula that given weights fit: the one under which the model predicts the labels best.

A checkpoint loads under a wrong formula without an error and gives plausible, wrong numbers. Its clean NLL on labelled
images distinguishes the formulas; the comparison is paired, image by image, so a few hundred images are enough.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor, nn

from ..errors import ModelError
from .apply import get_attention, set_attention
from .formulas import find_formula
from .registry import EVERY_FORMULA

FEWEST = 10  # images below which no verdict is given
_OPTIONS = ("(scale=mean)", "(average=median)", "(scale=mean,average=median)")
VARIANTS = {name: tuple(name + options for options in _OPTIONS) for name in ("elliptical", "elliptical-quest")}
"""What released code has of a formula with the same tensors and other logits. quest's eps is seen by zero rows alone,
and qk-rms without a scale is qk-l2, or on keys quest, except for the eps."""


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

    @property
    def in_words(self) -> str:
        interval = f"95 % interval {self.ci_low:+.3f} to {self.ci_high:+.3f}"
        return f"{self.name} (NLL {self.difference:+.3f}, {interval})"


@dataclass(frozen=True)
class Fingerprint:
    """All formulas that the weights allow, best first."""

    rows: tuple[Fit, ...]
    best: str
    declared: str
    verdict: str  # fits or another-fits-better, where the second is significantly worse, or inconclusive
    text: str  # the verdict in words
    n: int
    left_out: tuple[str, ...]  # formulas that need parameters which the model does not have
    source: str = "declared"  # or `assumed`, where nothing says which formula it is


def _family(name: str) -> str:
    return name.partition("(")[0]


def variants_of(families: Iterable[str], tried: Collection[str]) -> list[str]:
    """Return the variants of the families of these formulas that have not been tried."""
    kin = dict.fromkeys(map(_family, families))
    return [name for family in kin for name in VARIANTS.get(family, ()) if name not in tried]


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
    taken = (*names, _family(current))
    left = (name for name, formula in every.items() if name not in taken and formula.cap is None)
    return names, tuple(left)


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (n, 2) float64: NLL, and 1 where right; for labels of pixels means over those that are not negative."""
    nll = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none", ignore_index=-1).double()
    right = (logits.argmax(dim=1) == labels).double()
    if labels.ndim == 1:
        return torch.stack((nll, right), dim=1).cpu()
    pixels = (labels >= 0).flatten(1).sum(dim=1)
    means = torch.stack([part.flatten(1).sum(dim=1) / pixels for part in (nll, right)], dim=1)
    return means.cpu()


def judge_formulas(
    fits: dict[str, Tensor], declared: str, left_out: tuple[str, ...], guessing: float, source: str = "declared"
) -> Fingerprint:
    """Rank the formulas by (n, 2) tables of NLL and 1 where right; above the NLL of `guessing` none is believed. Those
    that were dropped earlier have shorter tables, and are compared with the best on the images that they have.

    Variants of the best one that are not significantly worse fit as well as it does: the verdict is on the others.
    """
    n, verdict = max(map(len, fits.values())), "inconclusive"
    best = min((name for name in fits if len(fits[name]) == n), key=lambda name: float(fits[name][:, 0].mean()))
    compared = [Fit(name, *fit_figures(table, fits[best])) for name, table in fits.items()]
    rows = tuple(sorted(compared, key=lambda row: (row.name != best, row.n < n, row.difference)))
    kin = [row for row in rows[1:] if _family(row.name) == _family(best)]
    alike = [row for row in kin if not row.ci_low > 0]
    right = declared in (best, *(row.name for row in alike))
    rival = next((row for row in rows[1:] if (row not in kin if right else row.name == declared)), None)
    parts = [f"{n} images"]
    if rows[0].nll >= guessing:
        parts.append(
            f"the model is no better than chance under any formula (NLL {rows[0].nll:.2f}, chance {guessing:.2f}); "
            "check the labels, --mean and --std"
        )
    elif rival is None or n < FEWEST or not rival.ci_low > 0:
        ahead = "" if rival is None or n < 2 else f", though {best} is ahead of {rival.in_words}"
        parts.append(
            f"inconclusive: the images do not show which attention the weights were trained with{ahead}; "
            "give more images"
        )
    elif right:
        verdict = "fits"
        place = "the next of another family" if kin else "the next"
        parts.append(f"{declared} attention fits best, as {source}; {place} is {rival.in_words}")
    else:
        verdict = "another-fits-better"
        parts.append(
            f"WARNING: {best} attention fits these weights better than {rival.in_words}, which is {source}; "
            f"check --attention: the wrong formula gives wrong results without an error"
        )
    if alike and verdict != "inconclusive":
        others = [row.name for row in (rows[0], *alike) if row.name != (declared if right else best)]
        parts.append(f"its options are not confirmed; as good on these images: {', '.join(others)}")
    if left_out:
        parts.append(f"not ranked, since their parameters are missing: {', '.join(left_out)}")
    if not any(name.startswith("softcap") for name in fits):
        parts.append("softcap is not ranked: below its cap, its logits equal those of standard")
    return Fingerprint(rows, best, declared, verdict, ". ".join(parts), n, left_out, source)


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
