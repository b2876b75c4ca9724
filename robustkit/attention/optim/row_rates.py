"""Learning rates of single rows: a wrapper around any torch optimiser.

A torch optimiser has one rate per parameter, while a fused qkv weight holds the queries and keys of all heads. So the
optimiser steps at its own rates, and then the change of each head's rows is scaled. Where a step is a multiple of the
rate this *is* the step at the scaled rate, up to rounding: SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, RMSprop,
Adadelta and Muon, with momentum and weight decay of both kinds, plain, foreach or fused. It is not for LBFGS, Rprop,
ASGD and Adafactor, whose steps depend on the rate in other ways; they take a scaled step all the same. An optimiser
whose direction depends on a whole matrix, such as Muon, sees the fused matrix. Weights must be whole: no FSDP, no
DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import ModelError
from .projections import Rows, spread


class WrappedOptimizer(Optimizer):
    """An optimiser around another one, whose groups, state and defaults it shares.

    Schedulers, GradScaler (which calls `step` here, or leaves it out) and step hooks treat it as that one.
    Raises ModelError where the optimiser inside holds none of the weights of `rows`.
    """

    optimizer: Optimizer
    rows: list[Rows]

    def __init__(self, optimizer: Optimizer, rows: Sequence[Rows]) -> None:
        # Optimizer.__init__ would build groups of its own; __setstate__ makes the rest that a subclass needs.
        self.__setstate__({"optimizer": optimizer, "rows": list(rows)})
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(part.weight) in held for part in rows):
            raise ModelError(
                f"{type(self).__name__}: {type(optimizer).__name__} holds none of the model's query and key weights; "
                "give it the parameters of this model"
            )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of the optimiser; return the loss, where there is a closure."""
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's own state."""
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
                view.copy_(start.to(wide).lerp(view.to(wide), spread(factor.to(wide), view)))
        return loss
