"""Formulas that take options, `qana(hidden=8,gate=true)`: the document's QK-Norm, QANA, capped logits.

A name gives only the options that differ from the usual ones, so equal formulas have equal names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ModelError, unknown
from .formula import Formula, Parameters
from .qana import ACTIVATIONS, Network, rotate

L2_EPS = 1e-12
"""Added to the squared norm of a row in qk-l2."""
LAYER_NORM_EPS = 1e-5
"""Added to the variance of a row in qk-layer-norm; timm's LayerNorms have another one."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Option:
    """One option of a formula. read: text to value; ValueError for an invalid one. expected: in words."""

    usual: Value
    read: Callable[[str], Value]
    expected: str


@dataclass(frozen=True)
class BareL2:
    """Rows over the root of (squared norm + eps), times a temperature: fixed, learned, or sqrt(d)."""

    temperature: float | None = None

    def __call__(self, q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
        return self.bar(q) * _temperature(q, p, self.temperature), self.bar(k)

    @staticmethod
    def bar(x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # the eps is nothing in half precision
        return (wide / (wide.square().sum(dim=-1, keepdim=True) + L2_EPS).sqrt()).to(x.dtype)


@dataclass(frozen=True)
class BareLayerNorm:
    """LayerNorm without affine parameters, times a temperature."""

    temperature: float | None = None

    def __call__(self, q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
        q, k = (functional.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS) for x in (q, k))
        return q * _temperature(q, p, self.temperature), k


def _temperature(q: Tensor, p: Parameters, fixed: float | None) -> Tensor | float:
    if "temperature" in p:
        return p["temperature"].to(q.dtype)
    return float(q.shape[-1] ** 0.5) if fixed is None else fixed


def _initial_temperature(heads: int, dim: int) -> dict[str, Tensor]:
    return {"temperature": torch.tensor(dim**0.5)}


def _rotated(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return rotate(q), rotate(k)


def _as_they_are(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return q, k


def _initial_gate(heads: int, dim: int) -> dict[str, Tensor]:
    return {"alpha": torch.zeros(())}


def _none(heads: int, dim: int) -> dict[str, Tensor]:
    return {}


def _normed(norm: type[BareL2 | BareLayerNorm], sign: str, source: str, text: str, given: Given) -> Formula:
    value = given["temperature"]
    fixed = value if isinstance(value, float) else None
    said = f"{fixed:g}" if fixed is not None else "T" if value == "learned" else "sqrt(d)"
    initial = _initial_temperature if value == "learned" else _none
    return Formula(text, f"{said} {sign}(Q) {sign}(K)ᵀ", source, False, norm(fixed), initial=initial)


def _qana(text: str, given: Given) -> Formula:
    hidden, activation, start = int(given["hidden"]), str(given["activation"]), str(given["start"])
    network = Network(hidden, activation, bool(given["gate"]), bool(given["rope"]), start)
    return Formula(
        text,
        "s̃ K̃ᵀ / sqrt(d) + V σ(Ũ K̃ᵀ + b) + c",
        "Vermillion 2025",
        True,
        _rotated if network.rope else _as_they_are,
        initial=_initial_gate if network.gate else _none,
        network=network,
    )


def _softcap(text: str, given: Given) -> Formula:
    cap = float(given["cap"])
    return Formula(
        text, f"{cap:g} tanh(Q Kᵀ / (sqrt(d) · {cap:g}))", "Bello 2016; Gemma 2", True, _as_they_are, cap=cap
    )


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _temperature_option(text: str) -> Value:
    return text if text in ("learned", "sqrt(d)") else _positive(text)


Given = Mapping[str, Value]
_SWITCH = Option(False, {"true": True, "false": False}.__getitem__, "true or false")
_TEMPERATURE = Option("sqrt(d)", _temperature_option, "a number above 0, learned or sqrt(d)")
_ACTIVATION = Option("gelu", lambda text: {name: name for name in ACTIVATIONS}[text], ", ".join(ACTIVATIONS))
FAMILIES: dict[str, tuple[dict[str, Option], Callable[[str, Given], Formula]]] = {
    "qk-l2": ({"temperature": _TEMPERATURE}, partial(_normed, BareL2, "l2", "QK-Norm; Henry 2020")),
    "qk-layer-norm": ({"temperature": _TEMPERATURE}, partial(_normed, BareLayerNorm, "LN", "QK-Norm")),
    "qana": (
        {
            "hidden": Option(4, _count, "a whole number, 1 or more"),
            "activation": _ACTIVATION,
            "gate": _SWITCH,
            "rope": _SWITCH,
            "start": Option("drawn", {"drawn": "drawn", "zero": "zero"}.__getitem__, "drawn or zero"),
        },
        _qana,
    ),
    "softcap": ({"cap": Option(50.0, _positive, "a number above 0")}, _softcap),
}


def make(family: str, arguments: str) -> Formula:
    """Return the formula of a family from the text between the brackets. ModelError for an unknown option."""
    options, build = FAMILIES[family]
    given: dict[str, Value] = {key: option.usual for key, option in options.items()}
    said: set[str] = set()
    for item in filter(None, map(str.strip, arguments.split(","))):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in options:
            raise ModelError(unknown(f"option of attention {family}", key, options))
        if key in said:
            raise ModelError(f"attention {family}: {key} is given twice; expected it once")
        said.add(key)
        try:
            given[key] = options[key].read(text)
        except (ValueError, KeyError):
            what = repr(text) if equals else "without a value"
            raise ModelError(f"attention {family}: {key} {what}; expected {options[key].expected}") from None
    odd = [f"{key}={shown(given[key])}" for key, option in options.items() if given[key] != option.usual]
    return build(f"{family}({','.join(odd)})" if odd else family, given)


def shown(value: Value) -> str:
    """Return a value as names have it."""
    if isinstance(value, bool):
        return str(value).lower()
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short
