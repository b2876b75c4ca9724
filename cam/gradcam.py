"""Class activation maps: features of a layer, weighted by their gradients or by the logits behind each as a mask."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .explainer import Explainer, Fill, Rng, at_least, chosen, fill_values, gradients, refuse, rows_of
from .vit import Transformer, last_stage


class OfFeatures(Explainer):
    """An explainer of the features that a layer gives on a grid.

    Args:
        model: any whose features lie on a grid.
        layer: the module, or its dotted name, whose output is the features: (B, C, h, w), or in a ViT (B, N, C) tokens
            of which the patches count. If it runs more than once, the last time counts. None: in a ViT of timm's kind
            the last block's norm1. Later outputs do not work: if the class token is pooled, nothing else reaches the
            logits. In a CNN the last module before pooling that gives a map of more than one position; it is looked up
            once for each image size, in the first call. Of a `SegmentTarget`, the layer with the most channels on the
            smallest grid, the last of such.
        target_layer: the same, as torch-cam calls it.
        target_layers: a list of one, as pytorch-grad-cam calls it.

    Raises:
        ValueError: a layer that the model does not have, or several; when called, if no layer gives such a map.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module | str | None = None,
        *,
        target_layer: nn.Module | str | None = None,
        target_layers: Iterable[nn.Module | str] | None = None,
        **others: object,
    ) -> None:
        refuse(type(self).__name__, others, ("model", "layer"))
        super().__init__(model)
        named = [each for each in (layer, target_layer, *(target_layers or ())) if each is not None]
        if len(named) > 1:
            raise ValueError(
                f"{type(self).__name__} was given {len(named)} layers; expected one (average maps of several)"
            )
        layer = named[0] if named else None
        self._transformer = Transformer.find(self.model)
        self._layer = None if layer is None else _find(self.model, layer)
        if layer is None and self._transformer is not None:
            self._layer = getattr(self._transformer.vit.blocks[-1], "norm1", None)
        self._by_size: dict[tuple[int, int], nn.Module] = {}

    def _contexts(self) -> Iterable[AbstractContextManager[None]]:
        return () if self._transformer is None else (self._transformer.sized(),)

    def check(self, images: Tensor) -> None:
        with self:
            self._spread(*self._seen(self._as_fed(images), graph=False)[1:], len(images))

    def _seen(self, images: Tensor, graph: bool = True) -> tuple[Tensor, Tensor, nn.Module]:
        """Return the logits (B, K), the features, at which the graph begins, if any, and their layer: one forward."""
        size = (images.shape[2], images.shape[3])
        layer = self._layer or self._by_size.get(size)
        if layer is None and self._region is not None:
            layer = self._by_size[size] = last_stage(self.model) or self._deepest(images)
        cut = _Cut(graph, once=self._region is not None)
        with ExitStack() as stack, torch.no_grad():
            for module in nn.Module.modules(self.model) if layer is None else [layer]:
                hook = cut.at_any(len(images)) if layer is None else cut.here
                stack.callback(module.register_forward_hook(hook).remove)
            logits = self._logits(images)
        if cut.layer is None or cut.features is None:
            raise ValueError(
                f"no module of {type(self.model).__name__} gives its last features as a map (B, C, h, w); "
                "use gradient, or in Python name a layer (layer=)"
            )
        if layer is None:
            self._by_size[size] = cut.layer
        return logits, cut.features, cut.layer

    def _deepest(self, images: Tensor) -> nn.Module:
        """Return the layer with the most channels on the smallest grid, the last of such; a pass shows the grids.

        After the last map of a network that gives each pixel its logits nothing comes but these.
        """
        layers: list[tuple[tuple[int, int], nn.Module]] = []

        def see(module: nn.Module, inputs: Any, output: Any) -> None:
            whole = isinstance(output, Tensor) and output.ndim == 4 and getattr(module, "groups", 1) == 1
            if whole and output[0, 0].numel() > 1:
                layers.append(((output.shape[2] * output.shape[3], -output.shape[1]), module))

        with ExitStack() as stack, torch.no_grad():
            for module in nn.Module.modules(self.model):
                stack.callback(module.register_forward_hook(see).remove)
            self._logits(images)
        if not layers:
            raise ValueError(f"no module of {type(self.model).__name__} gives a map (B, C, h, w); use gradient")
        least = min(size for size, _ in layers)
        return [module for size, module in layers if size == least][-1]

    def _spread(self, features: Tensor, layer: nn.Module, batch: int) -> Tensor:
        """Return features as (B, C, h, w) float32."""
        features = features.detach().float()
        if len(features) == batch and features.ndim == 4:
            return features.permute(0, 3, 1, 2) if self._channels_last(layer) else features
        if len(features) == batch and features.ndim == 3 and self._transformer is not None:
            return self._transformer.to_grid(features.transpose(1, 2))
        several = self._region is not None and len(features) > batch
        raise ValueError(
            f"layer {self._name(layer)!r} gives {tuple(features.shape)} for {batch} images; expected a map "
            f"(B, C, h, w), or a ViT's tokens (B, N, C); {'use gradient or rise' if several else 'name another one'}"
        )

    def _channels_last(self, layer: nn.Module) -> bool:
        """Whether the layer is part of a network, such as timm's Swin, that says its maps are (B, h, w, C)."""
        modules = nn.Module.modules
        nets = [m for m in modules(self.model) if hasattr(m, "num_classes") and getattr(m, "output_fmt", "") == "NHWC"]
        return not isinstance(layer, nn.Conv2d) and any(layer is part for net in nets for part in modules(net))

    def _name(self, layer: nn.Module) -> str:
        return next((name for name, module in nn.Module.named_modules(self.model) if module is layer), "")


class _Cut:
    """Keeps a layer's output as the leaf to take gradients for, and begins the graph at it if `graph` says so."""

    def __init__(self, graph: bool, once: bool = False) -> None:
        self.graph, self.once = graph, once
        self.layer: nn.Module | None = None
        self.features: Tensor | None = None

    def here(self, module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if self.once and self.layer is not None:
            raise ValueError(
                f"the {type(module).__name__} runs several times for one image, which may have more windows than go at "
                "once; name another layer, or use gradient or rise"
            )
        if not isinstance(output, Tensor):
            raise ValueError(f"a {type(module).__name__} gives {type(output).__name__}; name a layer with one tensor")
        torch.set_grad_enabled(self.graph)  # until the `no_grad` around the forward ends
        self.layer, self.features = module, output.detach().requires_grad_(self.graph)
        return self.features.clone()  # later layers may write into it

    def at_any(self, batch: int) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        """Register a hook for all modules that cuts at each map, so that the last cut stays."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            if not (isinstance(output, Tensor) and len(output) == batch):
                return None
            if output.ndim == 3:
                self.layer = self.features = None  # tokens: the maps before were no last features
            if output.ndim != 4 or output.shape[2] * output.shape[3] == 1 or "Pool" in type(module).__name__:
                return None
            return self.here(module, inputs, output)

        return hook


def _find(model: nn.Module, layer: nn.Module | str) -> nn.Module:
    names: dict[str, nn.Module] = {name: module for name, module in nn.Module.named_modules(model) if name}
    if isinstance(layer, str):
        if layer not in names:
            near = difflib.get_close_matches(layer, names, n=3, cutoff=0.4)
            guess = f"did you mean {', '.join(near)}?" if near else "see model.named_modules()"
            raise ValueError(f"{type(model).__name__} has no layer {layer!r}; {guess}")
        return names[layer]
    if not any(layer is module for module in names.values()):
        raise ValueError(f"the {type(layer).__name__} given as layer is not part of {type(model).__name__}; name one")
    return layer


class _Weighed(OfFeatures):
    """One forward, a graph from the layer on only, and a backward for each target."""

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, leaf, layer = self._seen(images)
        rows = len(leaf) if self._region is not None else len(images)  # perhaps windows of one image
        features = self._spread(leaf, layer, rows)
        classes = chosen(logits, targets)
        lost = f"the logits do not depend on layer {self._name(layer)!r}; name another one"
        spread = (self._spread(g, layer, rows) for g in gradients(logits, classes, leaf, lost))
        return logits, classes, torch.stack([self._weighed(features, g).sum(dim=1).relu() for g in spread], dim=1)

    @abstractmethod
    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        """Return the features (B, C, h, w) times their weights, given the gradient (B, C, h, w)."""


class GradCAM(_Weighed):
    """Grad-CAM (Selvaraju et al., ICCV 2017): relu(sum over channels of weight * feature), weights the mean gradients.

    One forward, a graph from the layer on only, and a backward for each target. Arguments and errors: `OfFeatures`.

    Example:
        >>> GradCAM(cnn)(images).shape, GradCAM(cnn, layer="2")(images).shape
        (torch.Size([2, 64, 64]), torch.Size([2, 64, 64]))
    """

    name = "grad-cam"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=(2, 3), keepdim=True) * features


class GradCAMPlusPlus(_Weighed):
    """Grad-CAM++ (Chattopadhay et al., WACV 2018): Grad-CAM with weights of positive gradients, place by place.

    With g the gradient of the class's logit and A the features, a channel's weight is the sum over places of alpha *
    relu(g), alpha = g^2 / (2 g^2 + sum(A) g^3) (equations 19 and 7, for the exponential of the logit), 0 where g is 0
    or the denominator is. Passes, arguments and errors: as for `GradCAM`.

    Example:
        >>> GradCAMPlusPlus(cnn)(images).shape
        torch.Size([2, 64, 64])
    """

    name = "grad-cam-pp"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        square = gradient**2
        below = 2 * square + features.sum(dim=(2, 3), keepdim=True) * square * gradient
        alpha = torch.where(below == 0, 0.0, square / below)
        return (alpha * gradient.relu()).sum(dim=(2, 3), keepdim=True) * features


class LayerCAM(_Weighed):
    """LayerCAM (Jiang et al., TIP 2021): relu(sum over channels of relu(gradient) * feature), place by place.

    It keeps places apart, so that it can be taken at earlier layers, too. Passes, arguments and errors: as for
    `GradCAM`.

    Example:
        >>> LayerCAM(cnn, layer="0")(images).shape
        torch.Size([2, 64, 64])
    """

    name = "layer-cam"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.relu() * features


class ScoreCAM(OfFeatures):
    """Score-CAM (Wang et al., CVPR workshops 2020): features weighed by the class's logit behind each as a mask.

    Each channel, enlarged to the image and brought to [0, 1], is a mask of the image; a softmax over channels of the
    class's logits gives the weights, and the map is relu(sum over channels of weight * feature). A channel that is the
    same everywhere hides the whole image; all such share one forward.

    A forward, and one for each channel of each image; further targets cost nothing. No backward.

    Args:
        model: as of `OfFeatures`, whose other arguments and errors it has, too.
        layer: as of `OfFeatures`.
        fill: what hidden places become, a number or one for each channel, in the unit of the images.
        batch_size: rows of a pass; None: 16 on a CPU, else 64.

    Example:
        >>> ScoreCAM(cnn)(images).shape
        torch.Size([2, 64, 64])
    """

    name = "score-cam"

    def __init__(
        self,
        model: nn.Module,
        layer: nn.Module | str | None = None,
        fill: Fill = 0.0,
        batch_size: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__(model, layer, **others)
        at_least(1, batch_size=batch_size)
        self.fill, self.batch_size = fill, batch_size

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            logits, leaf, layer = self._seen(images, graph=False)
            features = self._spread(leaf, layer, len(images))
            classes = chosen(logits, targets)
            tell = features.amax(dim=(2, 3)) > features.amin(dim=(2, 3))
            back = fill_values(self.fill, images)
            scores = features.new_zeros(*features.shape[:2], classes.shape[1])
            if not bool(tell.all()):
                plain = self._logits(back.expand_as(images[:1])).float()
                scores[:] = plain.expand(len(images), -1).gather(1, classes)[:, None]
            for rows in torch.split(tell.nonzero(), rows_of(self.batch_size, images)):
                image, channel = rows.unbind(1)
                masks = functional.interpolate(features[image, channel][:, None], images.shape[2:], mode="bilinear")
                low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
                masks = masks.sub_(low).div_(high - low).to(images.dtype)
                answers = self._logits(torch.lerp(back, images[image], masks)).float()
                scores[image, channel] = answers.gather(1, classes[image])
            scores = scores if self._region is None else scores / self._region.sum()  # as of one pixel, not of all
            maps = torch.einsum("bct,bchw->bthw", scores.softmax(dim=1), features).relu()
        return logits, classes, maps
