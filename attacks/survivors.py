"""Work only on the samples that still stand: an attack's state, one row per sample, that shrinks as they fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Takeable(Protocol):
    """Something with one row per sample that is not a tensor, such as a `Ball`."""

    def take(self, index: Tensor) -> object: ...
    def join(self, more: Any) -> object: ...


S = TypeVar("S", bound="Survivors")


def upload(values: Sequence[int], device: torch.device) -> Tensor:
    """Return (n,) int64 on a device, without waiting for what the device is doing."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=device.type == "cuda")


def pick(values: Tensor, index: Tensor | None) -> Tensor:
    """Return `values[index]`, or all of them without a copy."""
    return values if index is None else values[index]


@dataclass(frozen=True)
class Survivors:
    """Rows of the samples under attack; subclass it with a field for each tensor (rows first) or `Takeable`.

    rows: (n,) int64, each sample's position in the whole batch.
    """

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self: S, index: Tensor) -> S:
        """Return the same state for the rows `index` (int64) only."""

        def pick(value: object) -> object:
            if isinstance(value, Tensor):
                return value[index]  # unlike index_select, this keeps channels_last
            return value.take(index) if isinstance(value, Takeable) else value

        return replace(self, **cast("dict[str, Tensor]", {f.name: pick(getattr(self, f.name)) for f in fields(self)}))

    def join(self: S, more: S) -> S:
        """Return these rows followed by those of `more`."""

        def both(name: str) -> object:
            first, second = getattr(self, name), getattr(more, name)
            if isinstance(first, Tensor):
                return torch.cat([first, second])
            return first.join(second) if isinstance(first, Takeable) else first

        return replace(self, **cast("dict[str, Tensor]", {f.name: both(f.name) for f in fields(self)}))
