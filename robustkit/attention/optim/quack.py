"""QuacK: the learning rate of a head's queries follows the norm of its keys, and the other way round.

    optimizer = QuacK(torch.optim.AdamW(model.parameters(), lr=1e-3), model, tau=1.0)

Logits change by about (ΔQ) Kᵀ + Q (ΔK)ᵀ in a step, so large keys amplify a step of the queries. With rates of
tau · lr · (norm at the start) / (norm now), each of the other's weight, the change of a head's logits is bounded
whatever the norms (Lemma 1). Source: "Controlling changes to attention logits", Algorithm 1 for multi-head attention,
fused weights too, and Algorithm 2 for latent attention. `row_rates` says what an optimiser must do for it.

A bias has the rate of its rows, and is not part of norms. Values, and all else, keep the optimiser's rates; so does the
`query_network` of qana, which the paper does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import CheckpointError, ModelError, ProtocolError, unknown
from .projections import Projections, check_norm, projections
from .row_rates import ScaledRows

Norms = Mapping[str, Tensor]


def mha_factors(norms: Norms) -> dict[str, Tensor]:
    """Compute equation 3 from the norms of a layer's `query` and `key` weights, (heads,) each."""
    return {"query": 1 / norms["key"], "key": 1 / norms["query"]}


def mla_factors(norms: Norms) -> dict[str, Tensor]:
    """Compute algorithm 2 (equations 22) from the norms of `uq`, `uk`, `qr`, (heads,) each, and of `dq`, `dkv`, `kr`,
    (1,).
    """
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
        if not (math.isfinite(tau) and tau > 0):
            raise ProtocolError(
                f"tau {tau:g}: expected a number above 0; it multiplies rates, 1 begins with the base rate"
            )
        self.tau, self.norm = tau, check_norm(norm)
        self.layers = projections(model)
        _check_algorithm(algorithm, self.layers)
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
        """Restore both; tau comes from the state, as an optimiser's rates do. CheckpointError for the state of
        something else."""
        saved = state_dict.get("quack")
        if saved is None:
            raise CheckpointError(
                "the state has no entry 'quack': it is of the bare optimiser; load it into that one, then wrap it"
            )
        if saved["norm"] != self.norm:
            raise CheckpointError(
                f"the state is of {saved['norm']} norms, not {self.norm}; give norm={saved['norm']!r}"
            )
        shapes = [
            {
                layer: {name: tuple(factor.shape) for name, factor in factors.items()}
                for layer, factors in initial.items()
            }
            for initial in (saved["initial"], self.initial)
        ]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"the state is of attention layers {', '.join(shapes[0])} with other heads or names than "
                f"{', '.join(shapes[1])}; load it with the model that it was saved with"
            )
        super().load_state_dict(state_dict)
        self.tau = saved["tau"]
        for layer, factors in self.initial.items():
            for name, factor in factors.items():
                factors[name] = saved["initial"][layer][name].to(factor)


def _check_algorithm(algorithm: str, layers: Sequence[Projections]) -> None:
    if algorithm not in (*ALGORITHMS, "auto"):
        raise ProtocolError(unknown("algorithm", algorithm, (*ALGORITHMS, "auto")))
    for layer in layers:
        if algorithm not in ("auto", layer.kind):
            raise ModelError(
                f"algorithm {algorithm!r} is for {_OF[algorithm]}, but {layer.name} is {_OF[layer.kind]} "
                f"({type(layer.layer).__name__}); give algorithm={layer.kind!r} or 'auto'"
            )


def _check_norms(layer: Projections, kind: str) -> None:
    for name, norms in layer.norms(kind).items():
        for head, norm in enumerate(norms.tolist()):
            if not (math.isfinite(norm) and norm > 0):
                raise ModelError(
                    f"{layer.name}: the {name} weight of head {head} has norm {norm:g}; expected one above 0, to which "
                    "rates are set in proportion; initialise or load the weights before QuacK"
                )
