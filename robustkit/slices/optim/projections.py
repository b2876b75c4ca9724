"""Where the queries and keys of each head are in the weights of a model, and learning rates of single rows.

It knows the attention of timm's ViTs (one fused `qkv`) and of CrossViT, `nn.MultiheadAttention` (fused or three
weights), `SelfAttention` and `LatentAttention`, each with any formula. Optimisers that treat these rows on their own
use it: `stabilisers`.

A torch optimiser has one rate per parameter, while a fused qkv weight holds the queries and keys of all heads. So the
optimiser steps at its own rates, and then the change of each head's rows is scaled. Where a step is a multiple of the
rate this *is* the step at the scaled rate, up to rounding: SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, RMSprop,
Adadelta and Muon, with momentum and weight decay of both kinds, plain, foreach or fused. It is not for LBFGS, Rprop,
ASGD and Adafactor, whose steps depend on the rate in other ways; they take a scaled step all the same. An optimiser
whose direction depends on a whole matrix, such as Muon, sees the fused matrix. Weights must be whole: no FSDP, no
DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timm.models.crossvit import CrossAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ...attention.layers import LatentAttention, SelfAttention
from ...errors import ModelError, ProtocolError, unknown


@dataclass(frozen=True, eq=False)
class HeadRows:
    """The rows of one projection: `heads` blocks of `size` rows, from row `start` of `weight` (rows, inputs) on."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    start: int
    heads: int
    size: int
    bias_start: int  # from which entry of the bias on they belong to the rows

    @property
    def views(self) -> list[Tensor]:
        """Views without gradient of the weight, (heads, size, inputs), and of a bias, (heads, size), if any."""
        places = [(self.weight, self.start)] + ([] if self.bias is None else [(self.bias, self.bias_start)])
        rows = (whole.detach()[start : start + self.heads * self.size] for whole, start in places)
        return [part.view(self.heads, self.size, *part.shape[1:]) for part in rows]

    def norms(self, kind: str) -> Tensor:
        """Return the norm of each head's weight without its bias, (heads,), in float32 or a wider type of its own."""
        return NORMS[kind](at_least_float32(self.views[0]))


def at_least_float32(tensor: Tensor) -> Tensor:
    """Widen half precision, in which squares of small weights vanish."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def over_heads(factor: Tensor, over: Tensor) -> Tensor:
    """Reshape (heads,) so that it multiplies (heads, ...)."""
    return factor.reshape(-1, *[1] * (over.ndim - 1))


def _spectral(weight: Tensor) -> Tensor:
    """Return the largest singular value, from the Gram matrix of the shorter side; nan if a weight is not finite."""
    gram = weight @ weight.mT if weight.shape[-2] <= weight.shape[-1] else weight.mT @ weight
    finite = gram.isfinite().all(-1).all(-1)
    largest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], gram, 0.0))[:, -1]
    return torch.where(finite, largest.clamp(min=0).sqrt(), torch.nan)


NORMS: Mapping[str, Callable[[Tensor], Tensor]] = {  # (heads, size, inputs) to (heads,)
    "frobenius": partial(torch.linalg.vector_norm, dim=(-2, -1)),
    "spectral": _spectral,
}


def check_norm(name: str) -> str:
    """Return the name; raise ProtocolError with the known names for any other."""
    if name not in NORMS:
        raise ProtocolError(unknown("norm of weights", name, NORMS))
    return name


@dataclass(frozen=True, eq=False)
class Projections:
    """One attention layer."""

    name: str
    layer: nn.Module
    kind: str  # mha: rows `query`, `key`; mla: `uq`, `uk`, `qr` by head, and `dq`, `dkv`, `kr`, one block each
    rows: Mapping[str, HeadRows]

    def norms(self, kind: str) -> dict[str, Tensor]:
        return {name: rows.norms(kind) for name, rows in self.rows.items()}


def projections(model: nn.Module) -> list[Projections]:
    """Return every attention layer of `model`, in order. ModelError for none, another class, or shared weights."""
    layers, foreign = [], set()
    for path, module in nn.Module.named_modules(model):
        name = path.replace("_orig_mod.", "").removeprefix("module.")  # of torch.compile and DistributedDataParallel
        reader = next((reader for kind, reader in READERS.items() if isinstance(module, kind)), None)
        if reader is not None:
            for part, child in module.named_modules():
                if parametrize.is_parametrized(child):
                    where = f"{name}.{part}".rstrip(".")
                    raise ModelError(
                        f"{where}: a parametrization computes its weight from others, so that its rows have no rate of "
                        "their own; use one stabiliser or the other"
                    )
            kind = "mla" if isinstance(module, LatentAttention) else "mha"
            layers.append(Projections(name, module, kind, reader(module)))
        elif _foreign(module):
            foreign.add(type(module).__name__)
    if foreign or not layers:
        why = f"attention of class {', '.join(sorted(foreign))}" if foreign else "no attention layer"
        raise ModelError(
            f"{type(model).__name__} has {why}; expected that of timm's ViTs or CrossViT, nn.MultiheadAttention, "
            "SelfAttention or LatentAttention; use the optimiser without the wrapper"
        )
    holders: dict[int, str] = {}
    for layer in layers:
        for weight in {id(rows.weight): rows.weight for rows in layer.rows.values()}.values():
            if (other := holders.setdefault(id(weight), layer.name)) != layer.name:
                raise ModelError(
                    f"{other} and {layer.name} share a query or key weight, which cannot have a rate for each; "
                    "use the optimiser without the wrapper"
                )
    return layers


def _foreign(module: nn.Module) -> bool:
    """Whether it is attention between tokens of an unknown class that does not hold a layer of a known one."""
    name = type(module).__name__
    looks = ("Attention" in name or "Attn" in name) and not name.startswith("AttentionPool")
    return looks and not any(isinstance(part, tuple(READERS)) for part in nn.Module.modules(module))


def _of_timm(layer: Any) -> dict[str, HeadRows]:
    heads, size = layer.num_heads, layer.head_dim
    starts = {"query": 0, "key": heads * size}
    return {name: HeadRows(layer.qkv.weight, layer.qkv.bias, at, heads, size, at) for name, at in starts.items()}


def _of_torch(layer: Any) -> dict[str, HeadRows]:
    heads, width, bias = layer.num_heads, layer.embed_dim, layer.in_proj_bias  # the bias is one for all three
    if layer.in_proj_weight is not None:
        weights, starts = (layer.in_proj_weight,) * 2, (0, width)
    else:
        weights, starts = (layer.q_proj_weight, layer.k_proj_weight), (0, 0)
    query, key = (HeadRows(weights[part], bias, starts[part], heads, width // heads, part * width) for part in (0, 1))
    return {"query": query, "key": key}


def _of_linear(linear: Any, heads: int) -> HeadRows:
    return HeadRows(linear.weight, linear.bias, 0, heads, linear.out_features // heads, 0)


def _of_separate(layer: Any) -> dict[str, HeadRows]:
    return {"query": _of_linear(layer.wq, layer.num_heads), "key": _of_linear(layer.wk, layer.num_heads)}


def _of_latent(layer: LatentAttention) -> dict[str, HeadRows]:
    heads = dict.fromkeys(("uq", "uk", "qr"), layer.num_heads) | dict.fromkeys(("dq", "dkv", "kr"), 1)
    return {which: _of_linear(getattr(layer, which), count) for which, count in heads.items()}


READERS: Mapping[type[nn.Module], Callable[[Any], dict[str, HeadRows]]] = {
    Attention: _of_timm,
    CrossAttention: _of_separate,
    SelfAttention: _of_separate,
    nn.MultiheadAttention: _of_torch,
    LatentAttention: _of_latent,
}


class WrappedOptimizer(Optimizer):
    """An optimiser around another one, whose groups, state and defaults it shares, also for schedulers and GradScaler.
    Raises ModelError where the optimiser inside holds none of the weights of `rows`.
    """

    optimizer: Optimizer
    rows: list[HeadRows]

    def __init__(self, optimizer: Optimizer, rows: Sequence[HeadRows]) -> None:
        # Optimizer.__init__ would build groups of its own; __setstate__ makes the rest that a subclass needs.
        self.__setstate__({"optimizer": optimizer, "rows": list(rows)})
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(part.weight) in held for part in rows):
            raise ModelError(
                f"{type(self).__name__}: {type(optimizer).__name__} holds none of the model's query and key weights; "
                "give it the parameters of this model"
            )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but what a scheduler patched in: its `step` is bound to the original."""
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


class ScaledRows(WrappedOptimizer):
    """An optimiser whose step is scaled on some rows. Memory: a second copy of these rows during the step."""

    def multipliers(self) -> Sequence[Tensor]:
        """Return one factor (heads,) for each of the rows, from the weights as they are before the step."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of the optimiser, scaled; return the loss, where there is a closure."""
        factors = self.multipliers()
        before = [[view.clone() for view in part.views] for part in self.rows]
        loss = self.optimizer.step(closure)
        for part, factor, old in zip(self.rows, factors, before, strict=True):
            for view, start in zip(part.views, old, strict=True):
                wide = torch.promote_types(view.dtype, factor.dtype)
                # lerp leaves the optimiser's own bits where the factor is 1
                view.copy_(start.to(wide).lerp(view.to(wide), over_heads(factor.to(wide), view)))
        return loss
