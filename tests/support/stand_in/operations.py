"""What is known of torch's operations: which are views, which make the host wait, what CUDA refuses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

WAITS = {
    "_local_scalar_dense": "a number",
    "is_nonzero": "a truth value",
    "equal": "equal",
    "allclose": "allclose",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "bincount": "bincount",
    "repeat_interleave": "repeat_interleave",
    "linalg_inv_ex": "linalg",
    "_linalg_eigh": "linalg",
    "_linalg_svd": "linalg",
}
"""Operations whose result, or its shape, the host must know before it goes on."""

# By additions of floats that race with each other, or by algorithms of a library without a fixed order.
UNORDERED = {
    "index_add", "index_add_", "index_put_", "_index_put_impl_", "index_put", "scatter_add", "scatter_add_",
    "scatter_reduce", "embedding_dense_backward", "convolution_backward", "max_pool2d_with_indices_backward",
    "replication_pad2d_backward", "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "attention backward",
}  # fmt: skip

# Where torch has no other algorithm to offer.
NEVER_ORDERED = {
    "cumsum", "histc", "put_", "kthvalue", "grid_sampler_2d_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool2d_backward", "reflection_pad2d_backward", "upsample_linear1d_backward",
    "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
}  # fmt: skip

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
"""Products of matrices, which CUDA has for floating and complex numbers only."""

_FLOATS_ONLY = ("upsample_bi", "_upsample", "replication_pad", "reflection_pad", "avg_pool", "adaptive", "convolution")
_FREE = {"detach", "alias", "lift_fresh", "_unsafe_view", "empty", "empty_like", "new_empty", "empty_strided",
         "new_empty_strided"}  # fmt: skip
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
COPIES = {"copy_", "_to_copy"}
_TAKES_SCALARS = {"where", "masked_fill", "masked_fill_", "fill", "fill_", "clamp", "clamp_", "isclose"}


@cache
def is_view(func: OpOverload) -> bool:
    """Whether the result shares memory with an argument; such an operation costs no launch."""
    returns = func._schema.returns
    return any(given.alias_info is not None and not given.alias_info.is_write for given in returns)


@cache
def is_free(func: OpOverload) -> bool:
    """Whether nothing is launched."""
    return is_view(func) or func.overloadpacket.__name__ in _FREE


@cache
def is_composite(func: OpOverload) -> bool:
    """Whether the operation is made of others, which inference mode does not take apart before it comes here."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(func._can_decompose() and has(func.name(), "CompositeImplicitAutograd"))


@cache
def takes_scalars(func: OpOverload) -> bool:
    """Whether a tensor of no dimension may come from the host."""
    return torch.Tag.pointwise in func.tags or func.overloadpacket.__name__ in _TAKES_SCALARS


@cache
def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def floats_only(name: str) -> bool:
    return name.startswith(_FLOATS_ONLY)


def written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments that the operation writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(argument.name)
