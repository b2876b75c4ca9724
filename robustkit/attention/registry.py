"""All attention formulas by name, and the scores that they give."""

from __future__ import annotations

import re

from torch import Tensor

from ..common.plugins import Registry, instance_of
from ..errors import ModelError, unknown
from .formulas import FAMILIES, PLAIN, Formula, Parameters, elliptical_metric, make, unit

__all__ = ["EVERY_FORMULA", "FORMULAS", "Formula", "elliptical_metric", "find_formula", "scores", "unit"]

FORMULAS: dict[str, Formula] = PLAIN | {name: make(name, "") for name in FAMILIES}
"""By name; those of `formula_options` with their usual options."""
EVERY_FORMULA: Registry[Formula] = Registry("formulas", FORMULAS, instance_of(Formula))
"""Those, and the ones of plug-ins."""
_FORM = re.compile(r"\s*([\w-]+)\s*\((.*)\)\s*", re.DOTALL)


def find_formula(name: str) -> Formula:
    """Return the formula of that name, with options in brackets: `quest`, `qana(hidden=8,gate=true)`.

    Raises ModelError with the nearest name where there is none, or with the option that is not understood.
    """
    form = _FORM.fullmatch(name)
    family = form[1] if form else name.strip()
    if family not in EVERY_FORMULA:
        raise ModelError(unknown("attention", family, EVERY_FORMULA))
    if form is None:
        return EVERY_FORMULA[family]
    if family not in FAMILIES:
        raise ModelError(f"attention {name!r}: {family} takes no options; expected {family} alone")
    return make(family, form[2])


def scores(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    previous_v: Tensor | None = None,
    *,
    parameters: Parameters | None = None,
) -> Tensor:
    """Return attention logits before softmax, (B, H, N, N).

    v, previous_v: the values of this block and of the one before, for the elliptical formulas; without previous_v
        the block counts as the first one.
    parameters: qk_scale (H,) for qknorm-hs; q_scale, k_scale (d,) for -ds, (H, d) for qknorm; q_norm.weight,
        q_norm.bias, k_norm.weight, k_norm.bias (d,) for -ln, where left out 1 and 0; temperature () for learned ones;
        for qana, network (B, H, N, `Network.rows`) and alpha () where it has a gate.
    """
    formula = find_formula(name)
    metric = None
    if formula.elliptical and previous_v is not None:
        if v is None:
            raise ModelError(f"{name} attention needs the values of this block (v) as well as previous_v")
        metric = elliptical_metric(v, previous_v)
    parameters = parameters or {}
    q, k = formula.reduce(q, k, metric=metric, parameters=parameters)
    logits = formula.bend((q * formula.constant(q.shape[-1])) @ k.transpose(-2, -1))
    if formula.network is None:
        return logits
    if "network" not in parameters:
        raise ModelError(f"{name} attention needs parameters['network'], the weights of each query's network")
    return logits + formula.network.logits(parameters["network"], k, parameters.get("alpha"))
