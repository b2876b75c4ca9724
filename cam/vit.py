"""A vision transformer of timm or transformers from inside: attention, tokens as a grid, gradients by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .explainer import Explainer, chosen, each_target


class TransformersViT:
    """What explainers read of a ViT of the library, by timm's names; `whole` is a block's own module.

    Its own options do not say what the logits are read from, since classifiers of one body differ: `global_pool` is
    what `Transformer.settle` finds. attn_pool: attention of a learned probe over the tokens, such as SigLIP's.
    """

    def __init__(self, model: Any) -> None:
        if getattr(model.config, "mask_ratio", None) is not None:
            raise ValueError(
                f"{type(model).__name__} shuffles its patches, so its tokens have no place in the image; load the "
                "weights into transformers' ViTModel, or use gradient"
            )
        self.model = model
        patches, convolution = _patches(model.embeddings)
        stride = convolution.stride
        self.patch_embed = SimpleNamespace(
            register_forward_pre_hook=patches.register_forward_pre_hook,
            dynamic_feat_size=lambda size: [side // step for side, step in zip(size, stride, strict=True)],
        )
        self.cls_token: Tensor | None = _first(model.embeddings, "cls_token", "class_embedding")
        extra = (getattr(model.embeddings, name, None) for name in ("distillation_token", "register_tokens"))
        self.num_prefix_tokens = int(self.cls_token is not None) + sum(t.shape[1] for t in extra if t is not None)
        self.global_pool: str | None = None
        head = getattr(model, "head", None)
        self.attn_pool: Any = getattr(head, "attention", None) if hasattr(head, "probe") else None
        self.blocks = [
            SimpleNamespace(
                attn=_first(block, *_ATTENTION),
                norm1=_first(block, "layernorm_before", "norm1", "layer_norm1"),
                whole=block,
            )
            for block in _blocks(model)
        ]

    @contextmanager
    def unfused(self) -> Iterator[None]:
        """Let layers call softmax themselves: by the library's plain function, or one that `fused_attn` switches."""
        parts = [part for block in self.blocks for part in nn.Module.modules(block.attn)]
        configs: dict[int, Any] = {id(part.config): part.config for part in parts if hasattr(part, "config")}
        before = [(config, config._attn_implementation) for config in configs.values()]
        try:
            for part in parts:
                part.__dict__["fused_attn"] = False
            for config, used in before:
                config._attn_implementation = used if ":" in str(used) else "eager"
            yield
        finally:
            for config, used in before:
                config._attn_implementation = used
            for part in parts:
                part.__dict__.pop("fused_attn", None)


_ATTENTION = ("attention", "self_attn")  # a block's, by the names that the library has for it


def _first(owner: Any, *names: str) -> Any:
    """Return the first of these attributes that is there; None without."""
    return next((part for name in names if (part := getattr(owner, name, None)) is not None), None)


def _patches(embeddings: Any) -> tuple[Any, Any]:
    """Return the layer that is given the images, and the convolution in it; None where there is none."""
    layer = _first(embeddings, "patch_embeddings", "patch_embedding")
    convolution = getattr(layer, "projection", layer)
    return layer, convolution if isinstance(convolution, nn.Conv2d) else None


def _blocks(model: Any) -> Any:
    """Return a model's row of blocks; None where it has none, or several rows."""
    inner = _first(model, "encoder", "model") or model
    blocks = _first(inner, "layers", "layer")
    row = isinstance(blocks, nn.ModuleList) and all(_first(block, *_ATTENTION) is not None for block in blocks)
    return blocks if row else None


def _is_vit(module: nn.Module) -> bool:
    if _patches(getattr(module, "embeddings", None))[1] is None:
        return False
    blocks = _blocks(module)
    return bool(blocks) and all(any(map(_asks, nn.Module.modules(_first(block, *_ATTENTION)))) for block in blocks)


class TransformersPyramid(TransformersViT):
    """What explainers read of the library's SegFormer: in its stages, fine grids of tokens ask coarser ones."""

    def __init__(self, model: Any) -> None:
        self.model, self.num_prefix_tokens, self.cls_token = model, 0, None
        self.grid = (0, 0)  # of the tokens that the last block asks
        self.patch_embed = SimpleNamespace(
            register_forward_pre_hook=model.stages[0].patch_embeddings.register_forward_pre_hook,
            dynamic_feat_size=lambda size: self.grid,
        )
        blocks = (block for stage in model.stages for block in stage.blocks)
        self.blocks = [SimpleNamespace(attn=block.attention, whole=block) for block in blocks]

    @staticmethod
    def asked(layer: Any, call: tuple[Any, ...]) -> tuple[int, int]:
        """Return the grid of the tokens that a layer asks. call: what it is given, (tokens, rows, columns)."""
        rows, columns = call[1:3]
        return rows // layer.sequence_reduction_ratio, columns // layer.sequence_reduction_ratio


def _is_pyramid(module: nn.Module) -> bool:
    stages = getattr(module, "stages", None)
    blocks = [block for stage in stages for block in getattr(stage, "blocks", ())] if stages else []
    return bool(blocks) and all(hasattr(getattr(b, "attention", None), "sequence_reduction_ratio") for b in blocks)


def _asks(layer: nn.Module) -> bool:
    """Whether a layer looks up its attention function, by which it can be watched; Data2Vec's has its own."""
    code = getattr(type(layer).forward, "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


_CLASS_BLOCKS = "blocks_token_only"  # where CaiT has its class token, which is not among the tokens of `blocks`
# Of a block's number, its attention before softmax and after it, (B, heads, N, N): what replaces the latter, or None.
See = Callable[[int, Tensor, Tensor], Tensor | None]
_SOFTMAXES = (torch.softmax, Tensor.softmax, functional.softmax)
_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
OTHER_METHODS = "use grad-cam or gradient"


def last_stage(model: nn.Module) -> nn.Module | None:
    """Return the last stage of a pyramid in `model`, which gives its features as a map; None without one."""
    pyramids: list[Any] = [part for part in nn.Module.modules(model) if _is_pyramid(part)]
    return pyramids[0].stages[-1] if pyramids else None


class Transformer:
    """What explainers read of a ViT, of timm or a `TransformersViT`: attention layers and the grid of patch tokens.

    Layers call softmax themselves once `fused_attn` is off, or transformers' plain function is chosen. What softmax is
    given and returns while a layer runs is then its attention, whatever the formula.
    """

    def __init__(self, vit: Any) -> None:
        self.vit, self._size, self._cut = vit, (0, 0), False
        self.prefix: int = 0 if hasattr(vit, _CLASS_BLOCKS) else vit.num_prefix_tokens
        self.pool = pool if hasattr(pool := getattr(vit, "attn_pool", None), "latent") or _is_probe(pool) else None
        self._see: See | None = None
        self._uncut: set[str] = set()
        self._mode: _SoftmaxMode | None = None
        self.grids: dict[int, tuple[int, int]] = {}  # of the tokens that each layer of a pyramid asks
        self.region: Tensor | None = None  # (H, W) of the pixels that are explained, which are read from all patches

    @classmethod
    def find(cls, model: nn.Module) -> Transformer | None:
        """Find the transformer in `model`, None where there is none. ValueError for several: none can speak for all."""
        parts = ("patch_embed", "blocks", "num_prefix_tokens")
        modules = [module for module in nn.Module.modules(model) if all(hasattr(module, part) for part in parts)]
        modules = [m for m in modules if hasattr(m.patch_embed, "dynamic_feat_size") and "_orig_mod" not in m._modules]
        transformers = [*modules, *(TransformersViT(module) for module in nn.Module.modules(model) if _is_vit(module))]
        if len(transformers) > 1:
            raise ValueError(
                f"{type(model).__name__} contains {len(transformers)} vision transformers; explain each separately"
            )
        return cls(transformers[0]) if transformers else None

    @classmethod
    def needed(cls, model: nn.Module, method: str, row: bool = False, pyramid: bool = False) -> Transformer:
        """Find the transformer, of which a known `row` of attention is read where the method needs one. ValueError.

        pyramid: whether the grids of its tokens may differ.
        """
        transformer = cls.find(model)
        pyramids = [] if transformer else [part for part in nn.Module.modules(model) if _is_pyramid(part)]
        if len(pyramids) == 1:
            if not pyramid:
                raise ValueError(
                    f"{method} multiplies the attention of all blocks, and those of {type(pyramids[0]).__name__} have "
                    "tokens of different grids; use agcam, grad-cam or gradient"
                )
            return cls(TransformersPyramid(pyramids[0]))
        if transformer is None:
            raise ValueError(
                f"{method} needs a vision transformer of timm's kind, with patch_embed and blocks, or of transformers; "
                f"{type(getattr(model, 'network', model)).__name__} is none; {OTHER_METHODS}"
            )
        if hasattr(transformer.vit, _CLASS_BLOCKS):
            raise ValueError(
                f"{method} follows attention through one row of blocks, and the class token of "
                f"{type(transformer.vit).__name__} asks the patches in blocks of its own; {OTHER_METHODS}"
            )
        if row and not transformer.unsettled and transformer.rows is None and transformer.pool is None:
            raise transformer.unread(method)
        return transformer

    def unread(self, method: str) -> ValueError:
        """Return the error where logits are read from what has no row of attention."""
        pooled = getattr(self.vit, "global_pool", None)
        return ValueError(
            f"{method} needs what the logits are read from to be a class token, a mean of tokens or an attention pool, "
            f"and this {type(self.vit).__name__} has none of them (global_pool={pooled!r}); {OTHER_METHODS}"
        )

    def read_row(self, like: Tensor) -> Tensor:
        """Return the tokens that the head reads as a row (B, N) of sum 1, where it reads tokens."""
        row = torch.zeros_like(like)
        if self.region is None:
            row[:, self.rows] = 1
        elif len(like) > 1:
            raise ValueError(
                f"the map begins at the tokens of a region, and the network sees {len(like)} windows of the image; use "
                "agcam, grad-cam or gradient"
            )
        else:
            grid = self.vit.patch_embed.dynamic_feat_size(self._size)
            row[:, self.prefix :] = functional.interpolate(self.region[None, None].to(row), grid, mode="area").flatten(
                1
            )
        return row / row.sum(dim=1, keepdim=True)

    @property
    def unsettled(self) -> bool:
        """Whether it is not known yet what the logits are read from."""
        return self.region is None and getattr(self.vit, "global_pool", "token") is None

    @property
    def reads_pool(self) -> bool:
        """Whether the logits are read from an attention pool, as far as the model's own options say."""
        return self.region is None and self.pool is not None and getattr(self.vit, "global_pool", "map") == "map"

    @property
    def rows(self) -> slice | None:
        """Which tokens the head reads, as far as the model's own options say: the class token where the pool has it or
        there is no pool, else the tokens of the mean; None for another pool, such as a maximum, without a class token.
        """
        if self.region is not None:
            return slice(self.prefix, None)
        pooled = getattr(self.vit, "global_pool", "token")
        begin = 0 if getattr(self.vit, "pool_include_prefix", False) else self.prefix
        has_class = getattr(self.vit, "cls_token", None) is not None
        if pooled == "avg" and not (has_class and begin == 0):
            return slice(begin, None)
        return slice(0, 1) if has_class and pooled not in ("max", "avgmax") else None

    @property
    def what_is_read(self) -> str:
        if self.region is not None:
            return "the patches"
        return "the class token" if self.rows == slice(0, 1) else "the pool"

    @property
    def layers(self) -> list[Any]:  # a block without an `attn` stands for itself
        return [getattr(block, "attn", block) for block in self.vit.blocks]

    @property
    def parts(self) -> list[Any]:
        """The layers that are watched: those of the blocks, and after them the attention pool, where there is one."""
        return self.layers if self.pool is None else [*self.layers, self.pool]

    def settle(self, answer: Callable[[Tensor], Tensor], images: Tensor) -> None:
        """Find what the logits (1, K) of one image are read from, where the model does not say; `answer`: its forward.

        They are read from what has a gradient, where nothing passes back from a pool to the tokens.
        """
        leaves: dict[str, Tensor] = {}

        def begin(name: str) -> Callable[..., Any]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
                whole = isinstance(output, Tensor)
                leaves[name] = (output if whole else output[0]).detach().requires_grad_()
                return leaves[name] if whole else (leaves[name], *output[1:])

            return hook

        with ExitStack() as stack:
            stack.callback(self.whole_blocks[-1].register_forward_hook(begin("tokens")).remove)
            if self.pool is not None:
                stack.callback(self.pool.register_forward_hook(begin("pool")).remove)
            with torch.enable_grad():
                logit = answer(images).amax()
                tensors = list(leaves.values()) if logit.requires_grad else []
                slopes = torch.autograd.grad(logit, tensors, allow_unused=True) if tensors else ()
        sizes = {name: size for name, size in zip(leaves, slopes, strict=False) if size is not None}
        if "pool" in sizes and bool(sizes["pool"].any()):
            self.vit.global_pool = "map"
            return
        of_tokens = sizes["tokens"].float().abs().sum(dim=(0, 2)) if "tokens" in sizes else torch.zeros(1)
        has_class = self.vit.cls_token is not None
        if has_class and is_read(of_tokens[0], of_tokens.sum()):
            self.vit.global_pool = "token"
        else:  # without a mean over all patches there is no row, and so an error
            self.vit.global_pool = "avg" if bool((of_tokens[self.prefix :] > 0).all()) else "max"

    @property
    def whole_blocks(self) -> list[nn.Module]:
        return [getattr(block, "whole", block) for block in self.vit.blocks]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Unfuse the layers and put hooks in place."""
        switched = [layer for layer in self.parts if getattr(layer, "fused_attn", False)]
        with ExitStack() as stack:
            stack.enter_context(self.sized())
            if isinstance(self.vit, TransformersViT):
                stack.enter_context(self.vit.unfused())
            for index, layer in enumerate(self.parts):
                stack.callback(layer.register_forward_pre_hook(self._begin(index), with_kwargs=True).remove)
                if isinstance(layer, nn.MultiheadAttention):
                    stack.callback(layer.register_forward_hook(_in_the_open, with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(self._end).remove)
            try:
                for layer in switched:
                    layer.fused_attn = False
                yield
            finally:
                for layer in switched:
                    layer.fused_attn = True

    @contextmanager
    def sized(self) -> Iterator[None]:
        """Note the size of the images at the patch embedding; a wrapper may have resized them."""
        with self.vit.patch_embed.register_forward_pre_hook(self._note_size):  # removed at the end
            yield

    @contextmanager
    def showing(self, see: See, cut: bool = False) -> Iterator[None]:
        """Show `see` the attention of every block inside; ValueError if a layer did not show it exactly once.

        cut: no gradient passes from a layer to its input. Where the block stands for its layer, whose input goes on to
        the MLP too, none passes to the values; queries and keys are for `see` to cut, at the attention.
        """
        seen: Counter[int] = Counter()

        def count(index: int, scores: Tensor, attention: Tensor) -> Tensor | None:
            seen[index] += 1
            return see(index, scores, attention)

        self._see, self._cut, self._uncut = count, cut, set()
        try:
            yield
        finally:
            self._see = None
            self._end()  # after an exception in a layer
        for index, layer in enumerate(self.parts if self.reads_pool else self.layers):
            if seen[index] != 1:
                raise ValueError(
                    f"the attention of block {index} ({type(layer).__name__}) called softmax {seen[index]} times over "
                    f"a square of tokens; expected once, as timm's Attention does; {OTHER_METHODS}"
                    if index < len(self.layers)
                    else f"the attention pool ({type(layer).__name__}) called softmax {seen[index]} times; expected "
                    f"once, as timm's AttentionPoolLatent does; {OTHER_METHODS}"
                )
        for kind in self._uncut:
            raise ValueError(
                f"a {kind} multiplies no attention of tokens by tokens with values, where their gradient is cut; "
                "expected attn @ v, as in timm's ParallelScalingBlock; use agcam-full, grad-cam or gradient"
            )

    def to_grid(self, tokens: Tensor) -> Tensor:
        """Return (..., N) values of tokens as (..., rows, columns) of patches; prefix tokens are dropped."""
        rows, columns = self.vit.patch_embed.dynamic_feat_size(self._size)
        if tokens.shape[-1] != self.prefix + rows * columns:
            raise ValueError(
                f"{type(self.vit).__name__} has {tokens.shape[-1]} tokens; expected {self.prefix} and a grid of "
                f"{rows}x{columns} patches; use gradient"
            )
        return tokens[..., self.prefix :].reshape(*tokens.shape[:-1], rows, columns)

    def on_last_grid(self, index: int, tokens: Tensor) -> Tensor:
        """Return values (B, N) of the tokens that a layer asks, on the grid of the last layer's, where they differ."""
        if not self.grids or self.grids[index] == self.vit.grid:
            return tokens
        maps = tokens.reshape(len(tokens), 1, *self.grids[index])
        return functional.interpolate(maps, self.vit.grid, mode="bilinear").flatten(1)

    def of_pool(self, attention: Tensor) -> Tensor:
        """Return a pool's rows (B, H, L, M) that its head reads as (B, H, L, N): prefix tokens it leaves out have 0."""
        if getattr(self.pool, "pool", "") == "token":
            attention = attention[:, :, :1]
        rows, columns = self.vit.patch_embed.dynamic_feat_size(self._size)
        return functional.pad(attention, (self.prefix, 0)) if attention.shape[-1] == rows * columns else attention

    def _note_size(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._size = (inputs[0].shape[2], inputs[0].shape[3])

    def _begin(self, index: int) -> Callable[..., Any]:
        def begin(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            see = self._see
            pooling = index == len(self.layers)
            if isinstance(self.vit, TransformersPyramid):
                self.grids[index] = self.vit.grid = self.vit.asked(module, inputs)
            if see is None or (pooling and not self.reads_pool):
                return None
            alone = any(module is block for block in self.vit.blocks)
            self._mode = _SoftmaxMode(
                partial(see, index), cut_values=self._cut and alone, of_square=not pooling and not self.grids
            )
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            return (inputs, named) if alone or not self._cut else detach_arguments(inputs, named)

        return begin

    def _end(self, *call: object) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            if mode.square:
                self._uncut.update(type(module).__name__ for module in call[:1])
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def detach_arguments(inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments without their graph; one tensor stays one, as layers ask whether keys are queries."""
    cut = {id(part): part.detach() for part in (*inputs, *named.values()) if isinstance(part, Tensor)}
    return tuple(cut.get(id(part), part) for part in inputs), {k: cut.get(id(v), v) for k, v in named.items()}


def _is_probe(pool: Any) -> bool:
    return isinstance(pool, nn.MultiheadAttention) and bool(pool.batch_first) and pool.in_proj_bias is not None


def _in_the_open(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    """Do again what torch's layer has done, with a softmax that can be seen. For a pool: no mask, no dropout."""
    parts = zip(inputs, layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    projected: Iterable[Tensor] = (functional.linear(x, *own) for x, *own in parts)
    q, k, v = (x.reshape(*x.shape[:2], layer.num_heads, -1).transpose(1, 2) for x in projected)
    attention = torch.softmax(q * layer.head_dim**-0.5 @ k.transpose(-2, -1), dim=-1)
    return layer.out_proj((attention @ v).transpose(1, 2).flatten(2)), output[1]


class _SoftmaxMode(TorchFunctionMode):
    """Shows softmax over keys (B, heads, N, N) before and after; cut_values: what it multiplies takes no gradient.
    of_square: whether as many tokens ask as are asked; not so in a pool.
    """

    def __init__(
        self, see: Callable[[Tensor, Tensor], Tensor | None], cut_values: bool = False, of_square: bool = True
    ) -> None:
        super().__init__()
        self.see, self.cut_values, self.of_square = see, cut_values, of_square
        self.square: tuple[int, ...] = ()  # (N, N) from softmax until the values are mixed

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.square and func in _PRODUCTS and len(args) == 2 and tuple(args[0].shape[-2:]) == self.square:
            args, self.square = (args[0], args[1].detach()), ()
        result = func(*args, **kwargs)
        if func in _SOFTMAXES:
            scores = args[0] if args else kwargs["input"]
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            square = scores.shape[-1] == scores.shape[-2] or not self.of_square
            if scores.ndim == 4 and dim in (-1, 3) and square:
                self.square = tuple(scores.shape[-2:]) if self.cut_values else ()
                instead = self.see(scores, result)
                return result if instead is None else instead
        return result


_HARDLY = 0.01  # of the gradient: a token that has less of it is not what the logits are read from


def is_read(of_token: Tensor | float, of_all: Tensor | float) -> bool:
    """Whether the logits are read from a token, by its share of the gradient of all attention; if unknown, yes."""
    return not bool(of_token < _HARDLY * of_all)  # numbers that are not finite show nothing either


class AttentionExplainer(Explainer):
    """An explainer that watches the attention of a transformer while it is entered. Its __init__ names the network."""

    _transformer: Transformer

    def _contexts(self) -> Iterable[AbstractContextManager[None]]:
        return (self._transformer.watched(),)

    def _look_at(self, region: Tensor | None) -> None:
        super()._look_at(region)
        self._transformer.region = region

    def _settled(self, images: Tensor) -> None:
        """Find, before the first map, what the logits are read from, by a pass of one image where the model does not
        say. ValueError where that has no row.
        """
        if self._transformer.unsettled:
            self._transformer.settle(self._logits, images[:1])
        if not self._transformer.reads_pool and self._transformer.rows is None:
            raise self._transformer.unread(self.name)

    def _traced(self, images: Tensor, targets: Tensor | None, read: Read, cut: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the classes (B, T), and the sums (B, T, N) that backwards leave on the trail."""
        trail = Trail(read, cut)
        try:
            with self._transformer.showing(trail.see, cut):
                logits = self._logits(images)
            classes = chosen(logits, targets)
            sums = [trail.sum(total, more) for total, more in each_target(logits, classes)]
        finally:
            trail.forget()
        return logits, classes, torch.stack(sums, dim=1)


Add = Callable[[Tensor, Tensor | None], Tensor]  # gradient of a block's attention and the sum so far to the next sum
# In the forward: block, attention before softmax and after it to what backward does; None: not part of the sum.
Read = Callable[[int, Tensor, Tensor], Add | None]


class Trail:
    """Where the graph begins (cut: at each block), and the sum that grows while a backward passes the blocks."""

    def __init__(self, read: Read, cut: bool) -> None:
        self.read, self.cut = read, cut
        self.first: Tensor | None = None
        self.total: Tensor | None = None
        self.blocks = self.met = 0

    def see(self, index: int, scores: Tensor, attention: Tensor) -> Tensor | None:
        """Put a hook at a block's attention; fit for `Transformer.showing`."""
        add = self.read(index, scores, attention)
        if add is None:
            return None

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
