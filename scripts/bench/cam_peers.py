"""Outside implementations of explainers, called as their documentation has it: pytorch-grad-cam, captum, TorchRay
and legrad-torch. For Chefer's rollout there is no package: the authors' rule, with whole matrices.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cam.explainer import Rng
from cam.vit import Transformer
from robustkit.attention import capture

Peer = Callable[[Tensor, Tensor], Tensor]
"""From images (B, 3, H, W), as the network takes them, and classes (B,) to maps (B, H, W) in [0, 1]."""


class Normed(nn.Module):
    """A ViT whose features have length 1 before they meet the head, as CLIP's do: what legrad-torch explains."""

    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> Tensor:
        features = self.vit.forward_head(self.vit.forward_features(images), pre_logits=True)
        return functional.normalize(features, dim=-1) @ self.vit.head.weight.T


def scaled(maps: Tensor) -> Tensor:
    """Bring maps (B, H, W) to [0, 1], each by itself."""
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low)


def pytorch_grad_cam(kind: str, net: nn.Module, layer: nn.Module, corners: bool = True) -> Peer:
    """Return one of pytorch-grad-cam's on a layer; of a ViT on its patches. It needs parameters that take gradients.

    corners: whether masks of Score-CAM are enlarged with aligned corners, as it does and the authors do not.
    """
    package = importlib.import_module("pytorch_grad_cam")
    target = importlib.import_module("pytorch_grad_cam.utils.model_targets").ClassifierOutputTarget
    options = {}
    if Transformer.find(net) is not None:
        vit: Any = net

        def reshape(tokens: Tensor) -> Tensor:
            kept = tokens[:, vit.num_prefix_tokens :].reshape(len(tokens), *vit.patch_embed.grid_size, -1)
            return kept.permute(0, 3, 1, 2)

        options["reshape_transform"] = reshape
    tool = getattr(package, kind)(model=net, target_layers=[layer], **options)

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        net.requires_grad_(True)
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.ExitStack() as stack:  # its progress bars
                if not corners:
                    stack.enter_context(_replaced(nn, "UpsamplingBilinear2d", partial(nn.Upsample, mode="bilinear")))
                return torch.from_numpy(tool(images, [target(index) for index in classes.tolist()]))
        finally:
            net.requires_grad_(False)
            net.zero_grad(set_to_none=True)

    return explain


def captum_integrated_gradients(net: nn.Module, steps: int, batch_size: int = 64) -> Peer:
    """Return captum's integrated gradients from 0; by default it takes Gauss-Legendre steps, too."""
    tool = importlib.import_module("captum.attr").IntegratedGradients(net)

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        found = tool.attribute(images, target=classes, n_steps=steps, internal_batch_size=max(batch_size, len(images)))
        return scaled(found.sum(dim=1).abs().float())

    return explain


def captum_smooth_grad(net: nn.Module, samples: int, noise: float, draw: Rng | None = None) -> Peer:
    """Return captum's NoiseTunnel over its Saliency.

    draw: give it our noise; without, it draws its own.
    """
    attr = importlib.import_module("captum.attr")
    tunnel = importlib.import_module("captum.attr._core.noise_tunnel").torch
    tool = attr.NoiseTunnel(attr.Saliency(net))

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        with contextlib.ExitStack() as stack:
            if draw is not None:
                stack.enter_context(_replaced(tunnel, "normal", lambda mean, sigma: ours(images)))
            turns = None if draw is not None else max(1, 64 // len(images))
            found = tool.attribute(
                images,
                target=classes,
                nt_samples=samples,
                nt_samples_batch_size=turns,
                nt_type="smoothgrad",
                stdevs=noise,
                abs=False,
            )
        return scaled(found.abs().sum(dim=1).float())

    def ours(images: Tensor) -> Tensor:
        assert draw is not None
        sigma = noise * (images.amax(dim=(1, 2, 3)) - images.amin(dim=(1, 2, 3))).view(-1, 1, 1, 1)
        draws = [sigma * draw.normal(images.shape[1:], f"cam/smooth-grad/{i}").to(images) for i in range(samples)]
        return torch.stack(draws, dim=1).flatten(0, 1)  # it repeats each image in a row

    return explain


def torchray_rise(net: nn.Module, masks: Callable[[int], Tensor] | int, batch_size: int = 64) -> Peer:
    """Return TorchRay's RISE of probabilities. masks: how many of its own, or those (M, 1, H, W) of image number i."""
    rise = importlib.import_module("torchray.attribution.rise").rise
    model = _Odds(net)

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        if isinstance(masks, int):
            found = rise(model, images, num_masks=masks, batch_size=batch_size)
            return scaled(found[torch.arange(len(images)), classes])
        maps = []
        for i, (image, one) in enumerate(zip(images, classes.tolist(), strict=True)):
            own = masks(i)
            maps.append(rise(model, image[None], num_masks=len(own), filter_masks=own, batch_size=batch_size)[:, one])
        return scaled(torch.cat(maps))

    return explain


class _Odds(nn.Module):
    """What a sigmoid makes the probabilities of, since TorchRay applies one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return torch.logit(self.net(images).softmax(dim=1))


def chefer_by_matrices(net: Any) -> Peer:
    """Return the authors' rule (Chefer et al., ICCV 2021, equations 5 and 6), one image after the other."""

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        maps = []
        for image, one in zip(images, classes.tolist(), strict=True):
            with capture(net) as captured:
                logit = net(image[None])[0, one]
            gradients = torch.autograd.grad(logit, captured.attention)
            relevance = torch.eye(gradients[0].shape[-1], device=image.device, dtype=image.dtype)
            for attention, gradient in zip(captured.attention, gradients, strict=True):
                relevance = relevance + (attention.detach() * gradient)[0].clamp(min=0).mean(dim=0) @ relevance
            grid = net.patch_embed.dynamic_feat_size(images.shape[2:])
            maps.append(relevance[0, net.num_prefix_tokens :].reshape(1, *grid))
        return _enlarged(torch.cat(maps), images)

    return explain


def legrad_torch(net: Normed, layers: int) -> Peer:
    """Return the LeGrad of its authors' package, on the same weights as an open_clip model; image after image."""
    legrad = importlib.import_module("legrad")
    with contextlib.redirect_stdout(io.StringIO()):
        tool = legrad.LeWrapper(as_open_clip(net.vit), layer_index=len(net.vit.blocks) - layers)

    def explain(images: Tensor, classes: Tensor) -> Tensor:
        maps = []
        for image, one in zip(images, classes.tolist(), strict=True):
            embedding = net.vit.head.weight[one : one + 1].detach()
            found = tool.compute_legrad_clip(text_embedding=embedding, image=image[None])
            maps.append(found[0, 0].detach()[None])
        return scaled(torch.cat(maps).float())

    return explain


def as_open_clip(vit: Any) -> nn.Module:
    """Return a plain ViT of timm's (one size, class token) as open_clip's, in a model that has it as `visual`.

    The bias of the patch embedding goes into the positions of the patches: their sum is all that comes of both. Layers
    take tokens first, as they did when legrad-torch was written.
    """
    transformer = importlib.import_module("open_clip.transformer")
    model = nn.Module()
    width, heads = vit.embed_dim, vit.blocks[0].attn.num_heads
    visual = transformer.VisionTransformer(
        image_size=vit.patch_embed.img_size,
        patch_size=vit.patch_embed.patch_size[0],
        width=width,
        layers=len(vit.blocks),
        heads=heads,
        mlp_ratio=vit.blocks[0].mlp.fc1.out_features / width,
        output_dim=width,
        no_ln_pre=True,
        norm_layer=lambda size: nn.LayerNorm(size, eps=vit.norm.eps),
    )
    with torch.no_grad():
        for ours, theirs in _paired(vit, visual):
            theirs.copy_(ours)
    visual.to(vit.norm.weight)
    for block in visual.transformer.resblocks:
        block.attn.batch_first = False
    model.visual = visual
    model.encode_image = visual  # type: ignore[assignment]
    return model.eval()


def _paired(vit: Any, visual: Any) -> Iterator[tuple[Tensor, Tensor]]:
    yield vit.patch_embed.proj.weight, visual.conv1.weight
    yield vit.cls_token[0, 0], visual.class_embedding
    positions = vit.pos_embed[0].clone()
    positions[1:] += vit.patch_embed.proj.bias
    yield positions, visual.positional_embedding
    yield torch.eye(vit.embed_dim), visual.proj
    for ours, theirs in ((vit.norm, visual.ln_post), *_norms(vit, visual)):
        yield from ((ours.weight, theirs.weight), (ours.bias, theirs.bias))
    for ours, theirs in zip(vit.blocks, visual.transformer.resblocks, strict=True):
        yield ours.attn.qkv.weight, theirs.attn.in_proj_weight
        yield ours.attn.qkv.bias, theirs.attn.in_proj_bias
        for one, other in (
            (ours.attn.proj, theirs.attn.out_proj),
            (ours.mlp.fc1, theirs.mlp.c_fc),
            (ours.mlp.fc2, theirs.mlp.c_proj),
        ):
            yield from ((one.weight, other.weight), (one.bias, other.bias))


def _norms(vit: Any, visual: Any) -> Iterator[tuple[Any, Any]]:
    for ours, theirs in zip(vit.blocks, visual.transformer.resblocks, strict=True):
        yield from ((ours.norm1, theirs.ln_1), (ours.norm2, theirs.ln_2))


def _enlarged(grids: Tensor, images: Tensor) -> Tensor:
    size = (images.shape[2], images.shape[3])
    return scaled(functional.interpolate(grids[:, None].float(), size, mode="bilinear")[:, 0])


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, kept)


GRAD_CAM: Mapping[str, str] = {
    "grad-cam": "GradCAM",
    "grad-cam-pp": "GradCAMPlusPlus",
    "layer-cam": "LayerCAM",
    "score-cam": "ScoreCAM",
}
"""Methods of pytorch-grad-cam, by ours."""
