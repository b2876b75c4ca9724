"""What one backward leaves at each block's attention: sums that grow while the gradient passes, and are not kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Add = Callable[[Tensor, Tensor | None], Tensor]
"""Called with the gradient (B, heads, N, N) of a block's attention and the sum so far, None at the last block: it
returns the next sum."""
Read = Callable[[Tensor, Tensor], Add]
"""Called in the forward with a block's attention before softmax and after it; what it keeps for the backward is in the
function that it returns."""


class Trail:
    """Where the graph begins, and the sum that grows while a backward passes the blocks, the last one first.

    cut: each block's attention begins a graph of its own.
    """

    def __init__(self, read: Read, cut: bool) -> None:
        self.read = read
        self.cut = cut
        self.first: Tensor | None = None
        self.total: Tensor | None = None
        self.blocks = 0
        self.met = 0

    def see(self, index: int, scores: Tensor, attention: Tensor) -> Tensor:
        """Put a hook at a block's attention; fit for `Transformer.showing`."""
        add = self.read(scores, attention)

        def meet(gradient: Tensor) -> None:
            self.total = add(gradient, self.total)
            self.met += 1

        if self.cut:
            if self.first is None:
                self.first = attention.new_zeros(()).requires_grad_()
            # What the blocks' own graphs share lets one backward pass all of them.
            attention = attention.detach() + self.first
        else:
            attention.requires_grad_()  # frozen weights and plain images: in the first block the graph begins here
            self.first = attention if self.first is None else self.first
        attention.register_hook(meet)  # type: ignore[no-untyped-call]
        self.blocks += 1
        return attention

    def sum(self, logit: Tensor, more: bool) -> Tensor:
        """Return the sum (B, N) that a backward from `logit` leaves; `more` backwards may follow."""
        self.total, self.met = None, 0
        if logit.requires_grad and self.first is not None:
            torch.autograd.grad(logit, self.first, retain_graph=more, allow_unused=True)
        total: Tensor | None = self.total
        if total is None or self.met != self.blocks:
            raise ValueError(
                f"the logit has a gradient for the attention of {self.met} of {self.blocks} blocks; expected all (is "
                "the model detached somewhere, or are its blocks not in a row?); use grad-cam or gradient"
            )
        return total

    def forget(self) -> None:
        """Let the graph go: its hooks know the trail, a circle that would keep it."""
        self.first = None
