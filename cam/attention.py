"""Explainers that read the attention of all blocks: AG-CAM, rollout, Chefer et al., LeGrad."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .explainer import Rng, chosen, each_target
from .vit import OTHER_METHODS, Add, AttentionExplainer, Trail, Transformer, detach_arguments, is_read

_AGCAM_UNREAD = (
    "AG-CAM follows the gradient to {0} without passing through attention, and {0}'s attention has hardly any "
    "gradient, that of others has: the logits are not read from it; use agcam-full, grad-cam or gradient"
)


class AGCAM(AttentionExplainer):
    """AG-CAM (Leem and Seo, AAAI 2024): where attention is high and raises the logit, over all blocks and heads.

    With S (heads, N) the class token's row of the attention before softmax, and G the gradient of the class's logit
    for the same row after softmax, the map is the sum over blocks and heads of relu(G) * sigmoid(S), at the patches.

    As in the published code, no gradient passes from an attention layer to its input: it reaches the blocks before
    through skip connections and MLPs alone. In a block that is attention and MLP in one, such as timm's
    ParallelScalingBlock, queries, keys and values take no gradient. `AGCAMFull` is the sum without this cut.

    Where the head has no class token's row to read, the paper has no map, and what the head does read takes its place.
    Of a mean over tokens (global_pool='avg') that is the rows of all pooled tokens alike: relu(G) * sigmoid(S) is
    averaged over them. Of an attention pool (timm's AttentionPoolLatent in SigLIP and PE, the probe of transformers'
    SigLIP) S and G are the pool's one row, from its latent to the patches; rows of the blocks add nothing.

    Of a `SegmentTarget`, S and G are the rows of all patches. SegFormer's finer grids ask coarser ones: there rows are
    summed, and brought to the last block's grid.

    One forward and a backward for each target, down to the first block's attention and no further; of a model of
    transformers one image more, the first time, to find what its logits are read from. With its graph a call holds one
    row of each attention, or the rows of all pooled tokens; gradients are summed as they come, and not kept.

    Args:
        model: a ViT of timm's kind (ViT, DeiT, DeiT-3, EVA, DINOv3, BEiT) or of transformers, in any wrapper. The
            attention formula may be any that ends in a softmax.

    Raises:
        ValueError: another model; when called, one whose logits are not read from what its options say (a Segmenter's
            masks), or hardly: nothing but attention leads from it to them. Where they are read from other tokens, too
            (a distilled DeiT, DINOv2's class token and the mean of the patches), the map tells of the class token's
            part alone.

    Example:
        >>> AGCAM(model)(images, target=torch.tensor([3, 8])).shape
        torch.Size([2, 64, 64])
    """

    name = "agcam"
    _cut: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.needed(self.model, "AG-CAM", row=True, pyramid=True)

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        self._settled(images)
        reading = _ReadRows(self._transformer)
        logits, classes, sums = self._traced(images, targets, reading.of, self._cut)
        if self._cut and not is_read(reading.of_rows, reading.of_all):
            raise ValueError(_AGCAM_UNREAD.format(self._transformer.what_is_read))
        return logits, classes, self._transformer.to_grid(sums)


class AGCAMFull(AGCAM):
    """AG-CAM's sum with the gradient sent through the attention of all later blocks too, which the published code cuts.

    Otherwise it is `AGCAM`; so the logits may be read from any token, where there is a class token.

    Example:
        >>> torch.equal(AGCAMFull(model)(images), AGCAM(model)(images))
        False
    """

    name = "agcam-full"
    _cut = False


class _ReadRows:
    """The sum's terms, and how much gradient the rows that the head reads have, and all rows."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer, self.pool = transformer, transformer.reads_pool
        self.of_rows: Tensor | float = 0.0
        self.of_all: Tensor | float = 0.0

    def of(self, index: int, scores: Tensor, attention: Tensor) -> Add | None:
        if self.pool and index < len(self.transformer.layers):
            return None
        weights = self._chosen(scores.detach()).float().sigmoid()  # a copy: the rest of the scores can go

        def add(gradient: Tensor, total: Tensor | None) -> Tensor:
            rows = self._chosen(gradient).float()
            term = (rows.relu() * weights).sum(dim=1).mean(dim=1)
            if self.transformer.grids:  # each pixel's tokens count alike, of however many a layer has
                term = self.transformer.on_last_grid(index, term * rows.shape[2])
            self.of_rows = self.of_rows + rows.abs().sum()
            self.of_all = self.of_all + gradient.float().abs().sum()
            return term if total is None else total + term

        return add

    def _chosen(self, x: Tensor) -> Tensor:
        return self.transformer.of_pool(x) if self.pool else x[:, :, self.transformer.rows]


class Rollout(AttentionExplainer):
    """Attention rollout (Abnar and Zuidema, ACL 2020): how much of each patch flows into the class token.

    The product over the blocks of (A + I) / 2, where A is the attention averaged over heads; the class token's row at
    the patches. Of a model that averages its patches it is the mean of their rows, of one with an attention pool (see
    `AGCAM`) the pool's row, from the latent, times the product. It does not depend on the class: every target of an
    image has the same map. One forward, no backward.

    Args:
        model: a ViT of timm's kind or of transformers.

    Raises:
        ValueError: another model, and one whose head reads neither a class token nor such a pool.

    Example:
        >>> explain = Rollout(model)
        >>> torch.equal(explain(images, target=3), explain(images, target=8))
        True
    """

    name = "rollout"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.needed(self.model, "rollout", row=True)

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        self._settled(images)
        averages: list[Tensor] = []
        depth = len(self._transformer.layers)

        def see(index: int, scores: Tensor, attention: Tensor) -> None:
            attention = attention if index < depth else self._transformer.of_pool(attention)
            averages.append(attention.float().mean(dim=1))

        with torch.no_grad(), self._transformer.showing(see):
            logits = self._logits(images)
            classes = chosen(logits, targets)
            pool = averages.pop().mean(dim=1) if self._transformer.reads_pool else None
            begin = self._transformer.read_row(averages[0][:, 0]) if pool is None else pool
            grid = self._transformer.to_grid(roll(averages, begin))
        return logits, classes, grid[:, None].expand(-1, classes.shape[1], -1, -1)


def roll(averages: Sequence[Tensor], row: Tensor) -> Tensor:
    """Return (B, N): a row (B, N) times the product, last block first, of (A + I) / 2, rows of A (B, N, N) sum to 1."""
    row = row[:, None]
    for average in reversed(averages):  # a row times matrices costs a factor N less than the whole product
        average = average / average.sum(dim=-1, keepdim=True)  # low precision leaves sums a little off
        row = (row @ average + row) / 2
    return row[:, 0]


class Chefer(AttentionExplainer):
    """Generic attention explainability (Chefer, Gur and Wolf, ICCV 2021): rollout of attention times its gradient.

    With A a block's attention and G the gradient of the class's logit for it, each block adds mean over heads of
    relu(G * A) times what is known of the blocks before: R = R + mean(relu(G * A)) R, from the identity on (equations 5
    and 6 for a pure ViT). The map is R's row of the class token, at the patches. Of a model that averages its patches
    it is the mean of their rows, of one with an attention pool (see `AGCAM`) the row of its latent, which begins with
    none of the patches. No layer-wise relevance propagation takes part.

    One forward and a backward for each target, and one image more as for `AGCAM`. A row times matrices, last block
    first, in the order in which a backward meets them; so no product of matrices is made, and no gradient is kept.

    Args:
        model: a ViT of timm's kind or of transformers, of any attention formula that ends in a softmax.

    Raises:
        ValueError: another model; when called, one whose logits are not read from the class token, or hardly. Where
            they are read from other tokens, too, the map tells of the class token's part alone.

    Example:
        >>> Chefer(model)(images).shape
        torch.Size([2, 64, 64])
    """

    name = "chefer"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.needed(self.model, "chefer", row=True)

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        self._settled(images)
        reading = _RowReading(self._transformer)
        logits, classes, rows = self._traced(images, targets, reading.of, cut=False)
        if reading.unread:
            raise ValueError(
                f"chefer follows the relevance from {self._transformer.what_is_read}, whose attention in the last "
                "block has hardly any gradient, and that of others has: the logits are not read from it; "
                f"{OTHER_METHODS}"
            )
        return logits, classes, self._transformer.to_grid(rows)


class _RowReading:
    """The row of R, and whether the last block's attention has its gradient elsewhere."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.unread = False

    def of(self, index: int, scores: Tensor, attention: Tensor) -> Add:
        attention = attention.detach()

        def add(gradient: Tensor, row: Tensor | None) -> Tensor:
            flow = (gradient * attention).float().relu().mean(dim=1)
            if index == len(self.transformer.layers):
                return self.transformer.of_pool(flow[:, None]).mean(dim=(1, 2))
            if row is None:
                row, size = self.transformer.read_row(flow[:, 0]), gradient.float().abs()
                self.unread = not is_read(size[:, :, self.transformer.rows].sum(), size.sum())
            return row + torch.einsum("bn,bnm->bm", row, flow)

        return add


class LeGrad(AttentionExplainer):
    """LeGrad (Bousselham et al., ICCV 2025): the positive gradient of attention, for what each block makes of a class.

    Each block's output, averaged over all tokens, goes through the model's own norm and head: its score of the class.
    Of a `SegmentTarget` it goes there as it is, in place of the last block's, in a forward of its own.
    The map is the sum over blocks of relu(d score / d attention of that block), averaged over heads and queries, at
    the patches.

    One forward and a backward for each target: the scores of all blocks go through the head as further rows of one
    batch, and no gradient passes from a block to the one before.

    Args:
        model: a ViT of timm's kind or of transformers, of any attention formula that ends in a softmax, with a class
            token or without.
        layers: how many blocks count, from the last one back; 0: all. The authors' package takes 2 by default.

    Raises:
        ValueError: another model, or more layers than it has blocks.

    Reference: arXiv:2404.03214.

    Example:
        >>> LeGrad(model, layers=2)(images).shape
        torch.Size([2, 64, 64])
    """

    name = "legrad"

    def __init__(self, model: nn.Module, layers: int = 0) -> None:
        super().__init__(model)
        self._transformer = Transformer.needed(self.model, "LeGrad")
        depth = len(self._transformer.whole_blocks)
        if not 0 <= layers <= depth:
            raise ValueError(f"layers is {layers}; the model has {depth} blocks: expected 1 … {depth}, or 0 for all")
        self.layers = layers or depth

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        if self._region is not None:
            return self._by_turns(images, targets)
        blocks = self._transformer.whole_blocks
        first, depth = len(blocks) - self.layers, len(blocks)
        trail = Trail(lambda index, *_: _sum_of_rises if first <= index < depth else None, cut=True)
        formed: list[Tensor] = []

        def cut(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return detach_arguments(inputs, named)

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
                    stack.callback(
                        block.register_forward_pre_hook(
                            lambda _, *call: detach_arguments(*call), with_kwargs=True
                        ).remove
                    )
                    stack.callback(block.register_forward_hook(form).remove)
                stack.enter_context(self._transformer.showing(trail.see))
                every = self._logits(images, copies=1 + self.layers)
            logits = every[: len(images)]
            classes = chosen(logits, targets)
            scores = every[len(images) :], classes.repeat(self.layers, 1)
            sums = [trail.sum(total, more) for total, more in each_target(*scores)]
        finally:
            trail.forget()
        return logits, classes, self._transformer.to_grid(torch.stack(sums, dim=1))

    def _by_turns(self, images: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `_raw` does, where a head for pixels may not take the rows of several blocks at once."""
        blocks, total = self._transformer.whole_blocks, None
        for turn in range(len(blocks) - self.layers, len(blocks)):
            trail, tokens = Trail(partial(_at, turn), cut=True), list[Any]()

            def form(module: nn.Module, inputs: Any, output: Any, turn: int = turn, tokens: list[Any] = tokens) -> Any:
                if module is blocks[turn]:
                    tokens.append(output)
                return tokens[0] if module is blocks[-1] else None

            try:
                with ExitStack() as stack:
                    begin = blocks[turn].register_forward_pre_hook(
                        lambda _, *call: detach_arguments(*call), with_kwargs=True
                    )
                    stack.callback(begin.remove)
                    for block in {id(each): each for each in (blocks[turn], blocks[-1])}.values():
                        stack.callback(block.register_forward_hook(form).remove)
                    stack.enter_context(self._transformer.showing(trail.see))
                    logits = self._logits(images)
                classes = chosen(logits, targets)
                sums = torch.stack([trail.sum(each, more) for each, more in each_target(logits, classes)], dim=1)
            finally:
                trail.forget()
            total = sums if total is None else total + sums
        assert total is not None
        return logits, classes, self._transformer.to_grid(total)


def _at(turn: int, index: int, *_: Tensor) -> Add | None:
    return _sum_of_rises if index == turn else None


def _sum_of_rises(gradient: Tensor, total: Tensor | None) -> Tensor:
    term = gradient.float().relu().mean(dim=(1, 2))
    return term if total is None else total + term
