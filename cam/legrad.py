"""LeGrad: how sensitive what each block forms is to its attention."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .attention_maps import AttentionExplainer
from .explainer import chosen, each_target
from .rng import Rng
from .trail import Add, Trail
from .watch import Transformer, detached


class LeGrad(AttentionExplainer):
    """LeGrad (Bousselham et al., ICCV 2025): the positive gradient of attention, for what each block makes of a class.

    Each block's output, averaged over all tokens, goes through the model's own norm and head: its score of the class.
    The map is the sum over blocks of relu(d score / d attention of that block), averaged over heads and queries, at
    the patches (arXiv:2404.03214).

    model: a ViT of timm's kind or of transformers, of any attention formula that ends in a softmax, with a class token
        or without.
    layers: how many blocks count, from the last one back; 0: all. The authors' package takes 2 unless told.

    One forward and a backward for each target: the scores of all blocks go through the head as further rows of one
    batch, and no gradient passes from a block to the one before.
    """

    name = "legrad"

    def __init__(self, model: nn.Module, layers: int = 0) -> None:
        super().__init__(model)
        self._transformer = Transformer.needed(self.model, "LeGrad")
        depth = len(self._transformer.whole_blocks)
        if not 0 <= layers <= depth:
            raise ValueError(f"layers is {layers}; the model has {depth} blocks: expected 1 … {depth}, or 0 for all")
        self.layers = layers or depth

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        blocks, trail = self._transformer.whole_blocks, Trail(_read, cut=True)
        first = len(blocks) - self.layers
        formed: list[Tensor] = []

        def see(index: int, scores: Tensor, attention: Tensor) -> Tensor | None:
            return trail.see(index, scores, attention) if index >= first else None

        def alone(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return detached(inputs, named)

        def form(module: nn.Module, inputs: Any, output: Any) -> Any:
            tokens = output if isinstance(output, Tensor) else output[0]
            formed.append(tokens.mean(dim=1, keepdim=True).expand_as(tokens))
            if module is not blocks[-1]:
                return None
            rows = torch.cat([tokens.detach(), *formed])
            return rows if isinstance(output, Tensor) else (rows, *output[1:])

        try:
            with ExitStack() as stack:
                for block in blocks[first:]:
                    stack.callback(block.register_forward_pre_hook(alone, with_kwargs=True).remove)
                    stack.callback(block.register_forward_hook(form).remove)
                stack.enter_context(self._transformer.showing(see))
                every = self._logits(images, copies=1 + self.layers)
            logits = every[: len(images)]
            classes = chosen(logits, wanted)
            scores = every[len(images) :], classes.repeat(self.layers, 1)
            sums = [trail.sum(total, more) for total, more in each_target(*scores)]
        finally:
            trail.forget()
        return logits, classes, self._transformer.to_grid(torch.stack(sums, dim=1))


def _read(scores: Tensor, attention: Tensor) -> Add:
    def add(gradient: Tensor, total: Tensor | None) -> Tensor:
        term = gradient.float().relu().mean(dim=(1, 2))
        return term if total is None else total + term

    return add
