"""Networks that predict a class for each pixel, as segmenters of pixels in [0, 1]; the Segmenter (Strudel et al. 2021).

Tensor names are those of the public checkpoints, `encoder.*` and `decoder.*`, whose encoder names are timm's.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from ..errors import ModelError, unknown
from .architecture import create
from .identity import Classifier
from .windows import Windows

_EXPECTED = "logits (batch, classes, height, width), or a dict that holds them as 'out'"


class Dense(nn.Module):
    """A network whose logits are given the size of its normalised images: (B, 3, H, W) to (B, K, H, W).

    windows: how the network sees images; None where it takes any size. Its output may be a dict with `out`, as
    torchvision's, and may be smaller than the image: it is enlarged bilinearly.
    """

    def __init__(self, network: nn.Module, windows: Windows | None) -> None:
        super().__init__()
        self.network = network
        self.windows = windows
        if windows is not None and isinstance(network, SegmenterNetwork):
            network.enlarge = False  # windows are enlarged and averaged in one

    def forward(self, images: Tensor) -> Tensor:
        if self.windows is not None:
            return self.windows(self._output, images)
        logits = self._output(images)
        size = images.shape[-2:]
        return logits if logits.shape[-2:] == size else functional.interpolate(logits, size, mode="bilinear")

    def _output(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        logits = logits["out"] if isinstance(logits, Mapping) else logits
        if not isinstance(logits, Tensor) or logits.ndim != 4:
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise ModelError(f"{type(self.network).__name__} returned {what}; expected {_EXPECTED}")
        return logits


class Segmenter(Classifier):
    """Pixels in [0, 1], (B, 3, H, W) of any size, to logits (B, K, H, W). Evaluation mode, frozen parameters."""

    network: Dense

    @property
    def windows(self) -> dict[str, Any] | None:
        """The settings of its windows that decide the logits, in JSON types; None if the network sees whole images."""
        windows = self.network.windows
        if windows is None:
            return None
        said = {"size": list(windows.size), "stride": list(windows.stride), "short_side": windows.short_side}
        return said if windows.resize is None else {**said, "resize": windows.resize}


def count_classes(dense: Dense, size: tuple[int, int]) -> int:
    """Return K, by one forward of zeros. ModelError where the network does not give (B, K, H, W)."""
    name = type(dense.network).__name__
    try:
        with torch.no_grad():
            logits = dense.eval()(torch.zeros(1, 3, *size))
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        said = (str(error).splitlines() or [""])[0][:160]
        raise ModelError(
            f"{name} fails on an image of {size[0]}x{size[1]} ({type(error).__name__}: {said}); expected {_EXPECTED}"
        ) from error
    return int(logits.shape[1])


DECODERS = ("mask_transformer", "linear")
PUBLIC_EPS = 1e-5
"""eps of the LayerNorms in the public code, in both halves; timm's ViTs have 1e-6."""
_VITS = ("vision_transformer", "vision_transformer_hybrid", "deit")  # modules of timm


class LinearDecoder(nn.Module):
    """A linear layer of each patch token. (B, N, D) to (B, N, K)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, patches: Tensor) -> Tensor:
        return self.head(patches)  # type: ignore[no-any-return]


class MaskTransformer(nn.Module):
    """Patch tokens and one token per class go through blocks; a mask is the cosine of a patch and a class, normalised
    over the classes. (B, N, D) to (B, N, K).

    dropout, drop_path: while training; the second block has all of drop_path and the first none, as published.
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
        heads = heads or max(1, width // 64)
        norm = partial(nn.LayerNorm, eps=PUBLIC_EPS)
        self.classes = classes
        self.proj_dec = nn.Linear(width, width)
        self.cls_emb = nn.Parameter(torch.empty(1, classes, width))
        self.blocks = nn.ModuleList(
            Block(
                width,
                heads,
                qkv_bias=True,
                proj_drop=dropout,
                attn_drop=dropout,
                drop_path=drop_path * index / max(1, depth - 1),
                norm_layer=norm,  # type: ignore[arg-type, unused-ignore]
            )
            for index in range(depth)
        )
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
        patches, classes = (
            functional.normalize(side @ projection, dim=-1)
            for side, projection in ((patches, self.proj_patch), (classes, self.proj_classes))
        )
        return self.mask_norm(patches @ classes.mT)  # type: ignore[no-any-return]


class SegmenterNetwork(nn.Module):
    """Normalised images (B, 3, H, W) of the size that the encoder was built for, to logits (B, K, H, W).

    encoder: a ViT of timm without a head. window: (H, W). enlarge: whether logits are enlarged to the size of the
    images, or stay one per patch.
    """

    enlarge = True

    def __init__(self, encoder: VisionTransformer, decoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.num_classes = classes
        embed: Any = encoder.patch_embed
        self.window: tuple[int, int] = tuple(embed.img_size)
        self.grid: tuple[int, int] = tuple(embed.grid_size)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder.forward_features(images)
        masks = self.decoder(tokens[:, self.encoder.num_prefix_tokens :])
        masks = masks.mT.unflatten(2, self.grid)
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
    """Build a Segmenter with random weights.

    arch: a ViT of timm. window: side or (height, width) of the images, multiples of the patch; the architecture's own
        if left out. decoder_kwargs: depth, heads, dropout, drop_path of a mask transformer.
    norm_eps: of the encoder's LayerNorms; None for the architecture's own.

    Raises:
        ModelError: an unknown decoder, an encoder that is not a ViT of timm, or values that do not fit.
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
        raise ModelError(
            f"{arch} cannot be a Segmenter's encoder: expected a ViT of timm, such as vit_tiny_patch16_224"
        )
    _check_patches(encoder)
    width = int(encoder.embed_dim)
    try:
        head = (
            LinearDecoder(width, classes)
            if decoder == "linear"
            else MaskTransformer(width, classes, **(decoder_kwargs or {}))
        )
    except (TypeError, ValueError, AssertionError) as fault:
        raise ModelError(f"decoder {decoder} cannot be built with {dict(decoder_kwargs or {})} ({fault})") from None
    return SegmenterNetwork(encoder, head, classes)


def _check_patches(encoder: VisionTransformer) -> None:
    """Raise ModelError where an image is not a multiple of the patches: timm leaves out its last pixels, which need a
    label here.
    """
    embed: Any = encoder.patch_embed
    patch = embed.feat_ratio(as_scalar=False)
    if any(side % step for side, step in zip(embed.img_size, patch, strict=True)):
        window = "x".join(map(str, embed.img_size))
        raise ModelError(
            f"window {window} for patches of {'x'.join(map(str, patch))}: expected multiples of these; check --window"
        )
