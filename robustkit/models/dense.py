"""Networks that predict a class for each pixel, as segmenters of pixels in [0, 1]; the Segmenter (Strudel et al. 2021).

Tensor names are those of the public checkpoints, `encoder.*` and `decoder.*`, whose encoder names are timm's. Windows
slide where a network takes images of one size: it sees those of any size, and its overlapping logits are averaged.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
from timm.models import is_model_in_modules
from timm.models.vision_transformer import (
    Block,  # type: ignore[attr-defined, unused-ignore]
    VisionTransformer,  # type: ignore[attr-defined, unused-ignore]
)
from torch import Tensor, nn
from torch.nn import functional

from ..common.preprocessing import LARGEST_SIDE
from ..errors import ModelError, unknown
from .architecture import create, error_text, zeros_through
from .identity import Classifier
from .input_config import height_and_width
from .outputs import logarithms_of_rows

RESIZES = {"ade20k": (512, 2048)}
"""The test pipeline of a data set in the public code: the short side, and the most of the long side."""


@dataclass(frozen=True)
class Windows:
    """How images are shown to a network, in windows of `size` (height, width), each `stride` (rows, columns) from the
    last. short_side: images are resized (bilinearly) to it first; None for their own size. Either way they are
    enlarged, never shrunk, to a window, as the public `inference` does (Strudel et al. 2021). batch: most windows in
    one pass. resize: one of RESIZES, as the public data pipeline resizes before that, except for its rounding to 8
    bits.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    short_side: int | None = None
    batch: int = 16
    resize: str | None = None

    def __post_init__(self) -> None:
        if not all(0 < step <= side for step, side in zip(self.stride, self.size, strict=True)):
            why = f"stride {self.stride[0]}x{self.stride[1]} for windows of {self.size[0]}x{self.size[1]}"
            raise ModelError(f"{why}: expected 1 or more, at most the window, so that no pixel is left out")
        for what, number in (("short side", self.short_side), ("windows a pass", self.batch)):
            if number is not None and number < 1:
                raise ModelError(f"{what} {number}: expected 1 or more")
        if self.resize not in (None, *RESIZES):
            raise ModelError(unknown("resize", str(self.resize), RESIZES))
        if self.resize is not None and self.short_side is not None:
            both = f"resize {self.resize} and a short side of {self.short_side}: both set the image size"
            raise ModelError(f"{both}; give one of --resize and --short-side")

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the sizes that an image takes in turn, from its own to that at which windows are cut."""
        taken = [(height, width)]
        if self.resize is not None:
            short, most = RESIZES[self.resize]
            scale = min(most / max(height, width), short / min(height, width))
            taken.append((max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))))
        return [*taken, self._covering(*taken[-1])]

    def _covering(self, height: int, width: int) -> tuple[int, int]:
        sides, target = (height, width), list(self.size)
        if self.short_side is not None:
            shorter = int(width < height)
            target[shorter] = max(target[shorter], self.short_side)
        elif height >= target[0] and width >= target[1]:
            return sides
        first = 0 if target[0] * width >= target[1] * height else 1  # the side that has to grow most
        other = 1 - first
        target[other] = max(target[other], int(sides[other] / sides[first] * target[first]))
        return target[0], target[1]

    def edges(self, height: int, width: int) -> tuple[list[int], list[int]]:
        axes = zip((height, width), self.stride, self.size, strict=True)
        rows, columns = ([*range(0, side - window, step), side - window] for side, step, window in axes)
        return rows, columns

    def __call__(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Return logits (B, K, H, W) of normalised images. network: windows to logits, maybe on a coarser grid."""
        pixels = images
        for frame in self.sizes(*images.shape[-2:]):
            if pixels.shape[-2:] != frame:
                pixels = functional.interpolate(pixels, frame, mode="bilinear")
        (tops, lefts), (high, wide) = self.edges(*frame), self.size
        cut = torch.cat([pixels[..., top : top + high, left : left + wide] for top in tops for left in lefts])
        parts = [network(part) for part in torch.split(cut, self.batch)]
        return self.join(parts[0] if len(parts) == 1 else torch.cat(parts), *images.shape[-2:])

    def join(self, parts: Tensor, height: int, width: int, summed: bool = False) -> Tensor:
        """Return values (B, K, height, width) of images from those of their windows, row by row, maybe on a coarser
        grid; where windows overlap, their mean, or sum. parts: (windows * B, K, h, w)."""
        frame = self.sizes(height, width)[-1]
        tops, lefts = self.edges(*frame)
        seen = parts.reshape(len(tops), len(lefts), -1, *parts.shape[1:])
        if seen.shape[-2:] == self.size:
            logits = _averaged([_averaged(row.unbind(), lefts, dim=3) for row in seen], tops, dim=2)
        else:
            logits = _enlarged(seen, (tops, lefts), self.size, frame)
        if summed:
            down, across = (_covered(*each, logits) for each in zip((tops, lefts), self.size, frame, strict=True))
            logits = logits * (down[:, None] * across)
        return logits if frame == (height, width) else functional.interpolate(logits, (height, width), mode="bilinear")


def _covered(starts: Sequence[int], length: int, side: int, like: Tensor) -> Tensor:
    """Return how many windows of a length, which begin at `starts`, hold each of `side` pixels."""
    places = torch.arange(side, device=like.device)
    return sum(((places >= start) & (places < start + length)).to(like) for start in starts)  # type: ignore[return-value]


def _averaged(parts: Sequence[Tensor], starts: Sequence[int], dim: int) -> Tensor:
    """Join parts of equal length that begin at `starts` along a dimension; where they overlap, their mean."""
    if len(parts) == 1:
        return parts[0]
    length = parts[0].shape[dim]
    breaks = sorted({*starts, *(start + length for start in starts)})
    pieces = []
    for low, high in itertools.pairwise(breaks):
        over = [(part, start) for part, start in zip(parts, starts, strict=True) if start <= low < start + length]
        overlaps = [part.narrow(dim, low - start, high - low) for part, start in over]
        exact = torch.promote_types(parts[0].dtype, torch.float32)
        pieces.append(overlaps[0].to(exact) if len(overlaps) == 1 else torch.stack(overlaps).to(exact).mean(dim=0))
    return torch.cat(pieces, dim)


def _enlarged(
    seen: Tensor, edges: tuple[Sequence[int], Sequence[int]], window: tuple[int, int], frame: tuple[int, int]
) -> Tensor:
    """Return the windows (rows, columns, B, K, h, w) enlarged and averaged: (B, K, *frame), in two matrix products."""
    with torch.autocast(seen.device.type, enabled=False):
        seen = seen.to(torch.promote_types(seen.dtype, torch.float32))
        axes = zip(seen.shape[-2:], edges, window, frame, strict=True)
        down, across = (_placed(*axis, seen) for axis in axes)
        wide = seen.permute(2, 3, 0, 4, 1, 5).flatten(4, 5).flatten(2, 3) @ across
        return down.mT @ wide


def _placed(side: int, starts: Sequence[int], length: int, whole: int, like: Tensor) -> Tensor:
    """Return (windows * side, whole): the share of each of a window's `side` values in each place of the whole."""
    places = torch.eye(side, dtype=like.dtype, device=like.device)[None]
    weights = functional.interpolate(places, length, mode="linear")[0]
    placed, count = weights.new_zeros(len(starts), side, whole), weights.new_zeros(whole)
    for part, start in zip(placed, starts, strict=True):
        part[:, start : start + length] = weights
        count[start : start + length] += 1
    return (placed / count).flatten(0, 1)


_OVERLAPS = 8  # most windows along a side that a pixel may lie in, if the file gives the stride
_OVERLAP = 32  # pixels that two windows share in the public code, if nothing gives the stride


@dataclass(frozen=True)
class WindowOptions:
    """What the user says about windows; None where the file or the architecture decides."""

    window: int | tuple[int, int] | None = None
    stride: int | tuple[int, int] | None = None
    short_side: int | None = None
    resize: str | None = None


def sides(value: object, option: str) -> tuple[int, int]:
    try:
        return height_and_width(value, option)
    except ModelError:
        raise ModelError(f"{option} is {value!r}; expected one or two positive whole numbers of pixels") from None


def asked_windows(options: WindowOptions) -> tuple[Windows | None, tuple[str, ...]]:
    if options.window is not None:
        return resolve_windows(sides(options.window, "--window"), options, {}, True, None)
    if options.stride or options.short_side or options.resize:
        raise ModelError("--stride, --short-side and --resize are of windows; give --window, too")
    return None, ()


def resolve_windows(
    size: tuple[int, int], options: WindowOptions, metadata: Mapping[str, Any], ours: bool, stride: object
) -> tuple[Windows, tuple[str, ...]]:
    """Return the windows, and notes. stride: what the file says, for windows of this size."""
    notes, spacing = tuple[str, ...](), stride if options.stride is None else options.stride
    if spacing is None:
        rows, columns = (side - _OVERLAP if side > 2 * _OVERLAP else side for side in size)
        spacing = (rows, columns)
        if rows < size[0]:
            notes += (f"windows of {size[0]}x{size[1]} overlap by {_OVERLAP} pixels; --stride overrides it",)
    short = options.short_side
    if short is None and options.resize is None:
        short = metadata.get("short_side")
    if short is None and options.resize is None and not ours:
        notes += (
            "images keep their size and are enlarged to a window where they are smaller, as in the public inference; "
            "its data pipeline for ADE20K resizes them to a short side of 512 before that: --resize ade20k",
        )
    if short is not None and not (isinstance(short, int) and short > 0):
        raise ModelError(f"--short-side is {short!r}; expected a positive whole number of pixels")
    if options.short_side is None and short is not None and short > LARGEST_SIDE:
        raise ModelError(f"the file's short side is {short}; expected {LARGEST_SIDE} at most; give --short-side")
    steps = sides(spacing, "--stride")
    if options.stride is None and any(_OVERLAPS * step < side for step, side in zip(steps, size, strict=True)):
        what = f"the file's stride is {spacing!r} for windows of {size[0]}x{size[1]}"
        raise ModelError(f"{what}; expected an eighth of these at least; give --stride")
    return Windows(size, steps, short, resize=options.resize), notes


_EXPECTED = "logits (batch, classes, height, width)"


class Dense(nn.Module):
    """Normalised images (B, 3, H, W) to logits of their size. windows: None where the network takes any size. Its
    output may be smaller than the image: it is enlarged bilinearly. of_probabilities: of these, logarithms are taken,
    after all that.
    """

    def __init__(self, network: nn.Module, windows: Windows | None) -> None:
        super().__init__()
        self.network, self.windows, self.of_probabilities = network, windows, False
        if windows is not None and isinstance(network, SegmenterNetwork):
            network.enlarge = False  # windows are enlarged and averaged in one

    def forward(self, images: Tensor) -> Tensor:
        if self.windows is not None:
            logits = self.windows(self._output, images)
        else:
            logits, size = self._output(images), images.shape[-2:]
            logits = logits if logits.shape[-2:] == size else functional.interpolate(logits, size, mode="bilinear")
        return logarithms_of_rows(logits, type(self.network).__name__) if self.of_probabilities else logits

    def join_windows(self, parts: Tensor, height: int, width: int) -> Tensor:
        """Return what windows of images add up to: (B, T, height, width) from (windows * B, T, h, w)."""
        if self.windows is None:
            raise ValueError(f"{type(self.network).__name__} sees no windows of {len(parts)} parts")
        return self.windows.join(parts, height, width, summed=True)

    def _output(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        if not isinstance(logits, Tensor) or logits.ndim != 4:
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise ModelError(f"{type(self.network).__name__} returned {what}; expected {_EXPECTED}")
        return logits


class Segmenter(Classifier):
    """Pixels in [0, 1], (B, 3, H, W) of any size, to logits (B, K, H, W). Evaluation mode, frozen parameters.

    Example:
        >>> segmenter = robustkit.load_segmenter("zoo:shapes-segmenter-quest")
        >>> isinstance(segmenter, robustkit.Segmenter), segmenter.windows
        (True, {'size': [64, 64], 'stride': [64, 64], 'short_side': None})
    """

    network: Dense

    @property
    def windows(self) -> dict[str, Any] | None:
        """The settings of its windows that decide the logits, in JSON types; None if the network sees whole images."""
        windows = self.network.windows
        if windows is None:
            return None
        settings = {"size": list(windows.size), "stride": list(windows.stride), "short_side": windows.short_side}
        return settings if windows.resize is None else {**settings, "resize": windows.resize}


def count_classes(dense: Dense, size: tuple[int, int]) -> int:
    """Return K, by one forward of zeros. ModelError where the network does not give (B, K, H, W)."""
    name = type(dense.network).__name__
    try:
        logits = zeros_through(dense, size)
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        extent = f"{size[0]}x{size[1]}"
        raise ModelError(f"{name} fails on an image of {extent} ({error_text(error)}); expected {_EXPECTED}") from error
    return int(logits.shape[1])


DECODERS = ("mask_transformer", "linear")
PUBLIC_EPS = 1e-5  # eps of the LayerNorms in the public code, in both halves; timm's ViTs have 1e-6
_VITS = ("vision_transformer", "vision_transformer_hybrid", "deit")  # modules of timm


class MaskTransformer(nn.Module):
    """Patch and class tokens go through blocks; masks are cosines of both, normalised over classes: (B, N, K). Of
    drop_path the second block has all, the first none, as published.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        depth: int = 2,
        heads: int | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        heads, norm, self.classes = heads or max(1, width // 64), partial(nn.LayerNorm, eps=PUBLIC_EPS), classes
        self.proj_dec = nn.Linear(width, width)
        self.cls_emb = nn.Parameter(torch.empty(1, classes, width))
        options: dict[str, Any] = {"qkv_bias": True, "proj_drop": dropout, "attn_drop": dropout, "norm_layer": norm}
        rates = [drop_path * index / max(1, depth - 1) for index in range(depth)]
        self.blocks = nn.ModuleList(Block(width, heads, drop_path=rate, **options) for rate in rates)
        self.decoder_norm = norm(width)
        self.proj_patch = nn.Parameter(torch.empty(width, width))
        self.proj_classes = nn.Parameter(torch.empty(width, width))
        self.mask_norm = norm(classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.cls_emb, std=0.02)
        for projection in (self.proj_patch, self.proj_classes):
            nn.init.normal_(projection, std=width**-0.5)

    def forward(self, patches: Tensor) -> Tensor:
        tokens = torch.cat([self.proj_dec(patches), self.cls_emb.expand(len(patches), -1, -1)], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = self.decoder_norm(tokens)
        patches, classes = tokens[:, : -self.classes], tokens[:, -self.classes :]
        patches, classes = functional.normalize(patches @ self.proj_patch, dim=-1), classes @ self.proj_classes
        return self.mask_norm(patches @ functional.normalize(classes, dim=-1).mT)  # type: ignore[no-any-return]


class SegmenterNetwork(nn.Module):
    """Normalised images (B, 3, H, W) of the encoder's size to logits (B, K, H, W), or per patch without `enlarge`."""

    enlarge = True

    def __init__(self, encoder: VisionTransformer, decoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.decoder, self.num_classes = encoder, decoder, classes
        embed: Any = encoder.patch_embed
        self.window: tuple[int, int] = tuple(embed.img_size)
        self.grid: tuple[int, int] = tuple(embed.grid_size)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder.forward_features(images)
        masks = self.decoder(tokens[:, self.encoder.num_prefix_tokens :]).mT.unflatten(2, self.grid)
        return functional.interpolate(masks, self.window, mode="bilinear") if self.enlarge else masks


def build_segmenter(
    arch: str,
    classes: int,
    *,
    window: int | tuple[int, int] | None = None,
    decoder: str = "mask_transformer",
    arch_kwargs: Mapping[str, Any] | None = None,
    decoder_kwargs: Mapping[str, Any] | None = None,
    norm_eps: float | None = None,
) -> SegmenterNetwork:
    """Build a Segmenter with random weights. window: side or (height, width), multiples of the patch. decoder_kwargs:
    depth, heads, dropout, drop_path of a mask transformer. norm_eps: of the encoder's LayerNorms; None for the
    architecture's own. Raises ModelError for an unknown decoder, an encoder that is not a ViT of timm, and values that
    do not fit.
    """
    if decoder not in DECODERS:
        raise ModelError(unknown("decoder", decoder, DECODERS))
    kwargs = {**(arch_kwargs or {}), "num_classes": 0}
    if norm_eps is not None:
        kwargs["norm_layer"] = partial(nn.LayerNorm, eps=norm_eps)
    encoder = None
    if is_model_in_modules(arch, _VITS) or not timm.is_model(arch):  # the second to say which names are near
        encoder = create(arch, kwargs=kwargs, img_size=window)
    if not isinstance(encoder, VisionTransformer):
        usual = "a ViT of timm, such as vit_tiny_patch16_224"
        raise ModelError(f"{arch} cannot be a Segmenter's encoder: expected {usual}")
    embed: Any = encoder.patch_embed
    patch = embed.feat_ratio(as_scalar=False)
    if any(side % step for side, step in zip(embed.img_size, patch, strict=True)):  # timm leaves out the last pixels
        size, steps = ("x".join(map(str, sides)) for sides in (embed.img_size, patch))
        raise ModelError(f"window {size} for patches of {steps}: expected multiples of these; check --window")
    width = int(encoder.embed_dim)
    try:
        if decoder == "linear":
            return SegmenterNetwork(encoder, nn.Sequential(OrderedDict(head=nn.Linear(width, classes))), classes)
        return SegmenterNetwork(encoder, MaskTransformer(width, classes, **(decoder_kwargs or {})), classes)
    except (TypeError, ValueError, AssertionError) as fault:
        raise ModelError(f"decoder {decoder} cannot be built with {dict(decoder_kwargs or {})} ({fault})") from None
