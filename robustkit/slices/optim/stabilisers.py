"""Ways to keep attention logits from running away in training: QuacK and its baselines.

    optimizer = QuacK(torch.optim.AdamW(model.parameters(), lr=1e-3), model, tau=1.0)

Logits change by about (ΔQ) Kᵀ + Q (ΔK)ᵀ in a step, so large keys amplify a step of the queries. With rates of
tau · lr · (norm at the start) / (norm now), each of the other's weight, the change of a head's logits is bounded
whatever the norms (Lemma 1). Source: "Controlling changes to attention logits", Algorithm 1 for multi-head attention,
fused weights too, and Algorithm 2 for latent attention. `projections.ScaledRows` says what an optimiser must do for it.

A bias has the rate of its rows, and is not part of norms. Values, and all else, keep the optimiser's rates; so does the
`query_network` of qana, which the paper does not know.

Fixed smaller rates for queries and keys, and QK clip, are wrappers around an optimiser; σReparam is a parametrisation
of weights. Logit soft-capping changes what a model computes, so it is an attention formula, `softcap(cap=50)`.
`stabiliser` reads a name such as `quack(tau=0.5)`, for training scripts.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ...attention.formulas import value_text
from ...attention.layers import LatentAttention, SelfAttention
from ...errors import CheckpointError, ModelError, ProtocolError, unknown
from .projections import (
    Projections,
    ScaledRows,
    WrappedOptimizer,
    at_least_float32,
    check_norm,
    over_heads,
    projections,
)

Norms = Mapping[str, Tensor]


def mha_factors(norms: Norms) -> dict[str, Tensor]:
    """Compute equation 3 from the norms of a layer's `query` and `key` weights, (heads,) each."""
    return {"query": 1 / norms["key"], "key": 1 / norms["query"]}


def mla_factors(norms: Norms) -> dict[str, Tensor]:
    """Compute algorithm 2 (equations 22) from norms: of `uq`, `uk`, `qr`, (heads,), and of `dq`, `dkv`, `kr`, (1,)."""
    uq, uk, qr, dq, dkv, kr = (norms[name] for name in ("uq", "uk", "qr", "dq", "dkv", "kr"))
    content, position = (uq * uk).amax(0, keepdim=True), qr.amax(0, keepdim=True)  # bounded for all heads
    return {
        "uq": 1 / (dq * uk * dkv),
        "uk": 1 / (uq * dq * dkv),
        "qr": (1 / (dq * kr)).expand_as(qr),
        "dq": torch.minimum(1 / (content * dkv), 1 / (position * kr)),
        "dkv": 1 / (content * dq),
        "kr": 1 / (position * dq),
    }


ALGORITHMS: Mapping[str, Callable[[Norms], dict[str, Tensor]]] = {"mha": mha_factors, "mla": mla_factors}
_OURS = (LatentAttention, SelfAttention)
_OF = {"mha": "multi-head attention", "mla": "latent attention"}


class QuacK(ScaledRows):
    """Any torch optimiser with the rates of queries and keys coupled, head by head.

    tau: their rates at the start, over those of the optimiser's groups; above 0.
    norm: 'frobenius' or 'spectral'; the paper finds little difference.
    algorithm: 'mha', 'mla', or 'auto' for that of each layer's own kind.

    Norms are taken before every step. Those at the start are of the weights as they are here, and are saved and
    restored with the optimiser's state. If a norm falls to 0 later, the rates that follow it stay at tau.

    Raises ProtocolError for a parameter out of range, ModelError for a model without attention, attention of another
    kind than the algorithm's, a weight of norm 0, or an optimiser of other parameters.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        tau: float = 1.0,
        norm: str = "frobenius",
        algorithm: str = "auto",
    ) -> None:
        if not 0 < tau < math.inf:
            raise ProtocolError(
                f"tau {tau:g}: expected a number above 0; it multiplies rates; 1 begins at the base rate"
            )
        self.tau, self.norm = tau, check_norm(norm)
        self.layers = projections(model)
        if algorithm not in (*ALGORITHMS, "auto"):
            raise ProtocolError(unknown("algorithm", algorithm, (*ALGORITHMS, "auto")))
        for layer in self.layers:
            if algorithm not in ("auto", layer.kind):
                raise ModelError(
                    f"algorithm {algorithm!r} is for {_OF[algorithm]}, but {layer.name} is {_OF[layer.kind]} "
                    f"({type(layer.layer).__name__}); give algorithm={layer.kind!r} or 'auto'"
                )
        for layer in self.layers:
            _check_norms(layer, norm)
        self.initial = {layer.name: self._factors(layer) for layer in self.layers}
        super().__init__(optimizer, [rows for layer in self.layers for rows in layer.rows.values()])

    def _factors(self, layer: Projections) -> dict[str, Tensor]:
        device = next(nn.Module.parameters(layer.layer)).device.type
        with torch.autocast(device, enabled=False):  # the step may run under autocast
            return ALGORITHMS[layer.kind](layer.norms(self.norm))

    def rates(self) -> dict[str, dict[str, Tensor]]:
        """Return the factors of the optimiser's rates in the next step: (heads,) by layer and projection."""
        rates: dict[str, dict[str, Tensor]] = {}
        for layer in self.layers:
            initial = self.initial[layer.name]
            ratios = {name: factor / initial[name] for name, factor in self._factors(layer).items()}
            rates[layer.name] = {
                name: torch.where(ratio.isfinite(), self.tau * ratio, self.tau) for name, ratio in ratios.items()
            }
        return rates

    def multipliers(self) -> Sequence[Tensor]:
        rates = self.rates()
        return [rates[layer.name][name] for layer in self.layers for name in layer.rows]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's own state, with tau, the norm's name and the first factors under `quack`."""
        return {**super().state_dict(), "quack": {"tau": self.tau, "norm": self.norm, "initial": self.initial}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both; tau comes from the state, as rates do. CheckpointError for the state of something else."""
        saved = state_dict.get("quack")
        if saved is None:
            raise CheckpointError(
                "the state has no entry 'quack': it belongs to the bare optimiser; load it there, then wrap that "
                "optimiser"
            )
        if saved["norm"] != self.norm:
            raise CheckpointError(f"the state is of norm {saved['norm']}, not {self.norm}; give norm={saved['norm']!r}")

        def shapes(initial: Mapping[str, Norms]) -> dict[str, dict[str, torch.Size]]:
            return {layer: {name: norm.shape for name, norm in norms.items()} for layer, norms in initial.items()}

        if shapes(saved["initial"]) != shapes(self.initial):
            raise CheckpointError(
                f"the state is of attention layers {', '.join(saved['initial'])} with other heads or names than "
                f"{', '.join(self.initial)}; load it with the model that it was saved with"
            )
        super().load_state_dict(state_dict)
        self.tau = saved["tau"]
        for layer, factors in self.initial.items():
            for name, factor in factors.items():
                factors[name] = saved["initial"][layer][name].to(factor)


def _check_norms(layer: Projections, kind: str) -> None:
    for name, norms in layer.norms(kind).items():
        for head, norm in enumerate(norms.tolist()):
            if not (math.isfinite(norm) and norm > 0):
                raise ModelError(
                    f"{layer.name}: the {name} weight of head {head} has norm {norm:g}; expected one above 0, to which "
                    "rates are set in proportion; initialise or load the weights before QuacK"
                )


def check_positive(what: str, value: float) -> float:
    """Return the value; raise ProtocolError unless it is a finite number above 0."""
    if not 0 < value < math.inf:
        raise ProtocolError(f"{what} {value:g}: expected a number above 0")
    return value


class FixedRates(ScaledRows):
    """Queries and keys at `factor` times the rates of all else: the ablation of the QuacK paper (Figures 1 and 2)."""

    def __init__(self, optimizer: Optimizer, model: nn.Module, *, factor: float) -> None:
        check_positive("factor", factor)
        super().__init__(optimizer, [rows for layer in projections(model) for rows in layer.rows.values()])
        self.factors = [rows.weight.new_full((rows.heads,), factor, dtype=torch.float32) for rows in self.rows]

    def multipliers(self) -> Sequence[Tensor]:
        return self.factors


class QKClip(WrappedOptimizer):
    """After a step, shrink the queries and keys of heads whose logits were above `threshold` (Kimi K2, MuonClip).

    S is the largest logit of a head over all tokens of the batches since the last step (pairs that a mask hides
    count too). Where S > threshold, the rows of queries and keys are multiplied by sqrt(threshold / S), biases with
    them, so that S would have been the threshold. In latent attention these are `uq` and `uk`; `qr` takes
    the whole factor, because `kr` is shared by the heads.

    Logits are measured in forward passes that train, by one product of queries and keys without gradient. `remove()`
    ends that. Raises ModelError for attention whose logits do not grow with its weights.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, *, threshold: float = 100.0) -> None:
        self.threshold = check_positive("threshold", threshold)
        self.layers = projections(model)
        super().__init__(optimizer, [rows for layer in self.layers for rows in layer.rows.values()])
        self.largest: dict[str, Tensor] = {}
        self.handles = [self._watch(layer) for layer in self.layers]

    def _watch(self, layer: Projections) -> Any:
        module: Any = layer.layer
        formula = getattr(module, "formula", None)
        name = formula.name if formula is not None else "standard"
        norms = (module.q_norm, module.k_norm) if isinstance(module, Attention) else (None,)
        is_known = isinstance(module, _OURS) or all(isinstance(norm, nn.Identity) for norm in norms)
        if not is_known or name != "standard":
            raise ModelError(
                f"{layer.name}: QK clip needs the standard attention of timm's ViTs, SelfAttention or LatentAttention, "
                f"whose logits shrink with the weights; found {type(module).__name__}, {name}; use another stabiliser"
            )
        if isinstance(module, _OURS):
            takes = inspect.signature(module.queries_and_keys).parameters

            def asked(m: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if m is module:
                    bound = inspect.signature(m.forward).bind(*args, **kwargs).arguments
                    arguments = {name: value for name, value in bound.items() if name in takes}
                    self._see(layer, lambda: m.queries_and_keys(**arguments))

            return module.register_forward_pre_hook(asked, with_kwargs=True)

        def heads(output: Tensor) -> tuple[Tensor, Tensor]:
            q, k, _ = output.reshape(*output.shape[:2], 3, module.num_heads, -1).transpose(1, 3).unbind(2)
            return q, k

        def projected(m: nn.Module, _: Any, output: Tensor) -> None:
            if m is module.qkv:  # and not that of a copy, which has the hook, too
                self._see(layer, lambda: heads(output))

        return module.qkv.register_forward_hook(projected)

    @torch.no_grad()
    def _see(self, layer: Projections, heads: Callable[[], tuple[Tensor, Tensor]]) -> None:
        module: Any = layer.layer
        if not module.training:
            return
        q, k = heads()
        with torch.autocast(q.device.type, enabled=False):  # logits may be more than half precision holds
            largest = (at_least_float32(q) * module.scale @ at_least_float32(k).mT).amax((0, 2, 3))
        before = self.largest.get(layer.name)
        self.largest[layer.name] = largest if before is None else torch.maximum(before, largest)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of the optimiser, then clip; return the loss, where there is a closure."""
        loss = self.optimizer.step(closure)
        for layer in self.layers:
            largest = self.largest.pop(layer.name, None)
            if largest is None:
                continue
            ratio = torch.where(largest.isfinite() & (largest > self.threshold), self.threshold / largest, 1.0)
            shares = {"qr": ratio} if layer.kind == "mla" else {}
            shares |= dict.fromkeys(("uq", "uk") if layer.kind == "mla" else ("query", "key"), ratio.sqrt())
            for name, share in shares.items():
                for view in layer.rows[name].views:
                    view.mul_(over_heads(share, view))
        return loss

    def remove(self) -> None:
        """Stop watching the model."""
        for handle in self.handles:
            handle.remove()


class SigmaReparam(nn.Module):
    """W = γ / σ(W₀) · W₀ with a learned γ, at first σ(W₀), the largest singular value (Zhai 2023, eq. 3).

    σ comes from a singular vector that each pass in training moves on by one power iteration, and gradients run through
    it but not through the vector.
    """

    vector: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        _, values, vectors = torch.linalg.svd(at_least_float32(weight.detach()), full_matrices=False)
        self.gamma = nn.Parameter(values[0].to(weight.dtype), requires_grad=weight.requires_grad)
        self.register_buffer("vector", vectors[0].to(weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            left = functional.normalize(weight.mv(self.vector), dim=0)
            right = functional.normalize(weight.mT.mv(left), dim=0)
            if self.training:
                self.vector.copy_(right)
        return weight * (self.gamma / left.dot(weight.mv(right)))


def sigma_reparam(model: nn.Module) -> None:
    """Give every linear layer of `model` a SigmaReparam, in place; make the optimiser after it.

    ModelError for a weight of zeros, shared weights, nn.MultiheadAttention, or where there is no linear layer.
    """
    layers = [(name, module) for name, module in nn.Module.named_modules(model) if isinstance(module, nn.Linear)]
    if not layers:
        raise ModelError(f"{type(model).__name__} has no linear layer; σReparam needs weights of linear layers")
    for name, module in nn.Module.named_modules(model):
        if isinstance(module, nn.MultiheadAttention):
            raise ModelError(
                f"{name}: queries, keys and values of nn.MultiheadAttention are not linear layers, which σReparam "
                "does not cover; use another stabiliser"
            )
    if len({id(layer.weight) for _, layer in layers}) < len(layers):
        raise ModelError(f"{type(model).__name__}: linear layers share a weight; σReparam would separate them")
    for name, layer in layers:
        if not layer.weight.any():
            raise ModelError(f"{name}.weight is zero; σReparam divides by its norm, so initialise it first")
    for _, layer in layers:
        parametrize.register_parametrization(layer, "weight", SigmaReparam(layer.weight))


def remove_sigma_reparam(model: nn.Module) -> None:
    """Make the weights plain again, in place, at the values of the next pass; names and their order are as before."""
    for module in nn.Module.modules(model):
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
            module._parameters["bias"] = module._parameters.pop("bias")  # back behind the weight, as it was


@dataclass(frozen=True)
class Stabiliser:
    """One of DEFAULTS by name, with all of its parameters. Made by `stabiliser`."""

    name: str
    parameters: tuple[tuple[str, float | str], ...] = ()

    @property
    def text(self) -> str:
        """`quack(tau=0.5,norm=frobenius)`: its text, for people and as part of a run's identity."""
        inside = ",".join(f"{key}={value_text(value)}" for key, value in self.parameters)
        return f"{self.name}({inside})" if inside else self.name

    def prepare(self, model: nn.Module) -> None:
        """Change the model before the optimiser is made."""
        if self.name == "sigma-reparam":
            sigma_reparam(model)

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return the optimiser that takes the steps instead."""
        wrapper = WRAPPERS.get(self.name)
        return optimizer if wrapper is None else wrapper(optimizer, model, **dict(self.parameters))

    def finish(self, model: nn.Module) -> None:
        """Give the weights their usual names again."""
        remove_sigma_reparam(model)


NONE = Stabiliser("none")
WRAPPERS: Mapping[str, Callable[..., Optimizer]] = {"quack": QuacK, "qk-clip": QKClip, "fixed-rates": FixedRates}
DEFAULTS: Mapping[str, Mapping[str, float | str]] = {
    "none": {},
    "quack": {"tau": 1.0, "norm": "frobenius"},
    "qk-clip": {"threshold": 100.0},
    "sigma-reparam": {},
    "fixed-rates": {"factor": 0.1},
}


def stabiliser(text: str) -> Stabiliser:
    """Return the stabiliser of a text such as `quack(tau=0.5,norm=spectral)`. ProtocolError for a wrong one."""
    form = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", text)
    if form is None:
        raise ProtocolError(f"stabiliser {text!r}: expected a name or name(key=value,...), such as quack(tau=0.5)")
    name = form[1].lower()
    if name not in DEFAULTS:
        capped = "; capped logits are an attention: --attention 'softcap(cap=50)'" if "cap" in name else ""
        raise ProtocolError(unknown("stabiliser", name, DEFAULTS) + capped)
    options, seen = dict(DEFAULTS[name]), set[str]()
    for item in filter(None, map(str.strip, (form[2] or "").split(","))):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in options:
            raise ProtocolError(
                unknown(f"parameter of {name}", key, options) if options else f"{name} takes no parameters"
            )
        if key in seen:
            raise ProtocolError(f"{name}: {key} is given twice; expected it once")
        seen.add(key)
        try:
            options[key] = check_norm(value) if key == "norm" else check_positive(f"{name}: {key}", float(value))
        except ValueError:
            raise ProtocolError(f"{name}: {key} {value!r}: expected a number above 0") from None
    return Stabiliser(name, tuple(options.items()))
