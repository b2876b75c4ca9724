"""Class activation maps: features of a layer, weighed by their gradients."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from .explainer import chosen, each_target
from .features import OfFeatures
from .rng import Rng


class _Weighed(OfFeatures):
    """One forward, a graph from the layer on only, and a backward for each target."""

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, seen = self._seen(images)
        features = self._spread(seen.leaf, seen.layer, len(images))
        classes = chosen(logits, wanted)
        maps = []
        for total, more in each_target(logits, classes):
            gradient = None
            if total.requires_grad:
                (gradient,) = torch.autograd.grad(total, seen.leaf, retain_graph=more, allow_unused=True)
            if gradient is None:
                raise ValueError(f"the logits do not depend on layer {self._name(seen.layer)!r}; name another one")
            maps.append(self._weighed(features, self._spread(gradient, seen.layer, len(images))).sum(dim=1).relu())
        return logits, classes, torch.stack(maps, dim=1)

    @abstractmethod
    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        """Return the features (B, C, h, w) times their weights, given the gradient (B, C, h, w)."""


class GradCAM(_Weighed):
    """Grad-CAM (Selvaraju et al., ICCV 2017): relu(sum over channels of weight * feature), weights the mean gradients.

    One forward, a graph from the layer on only, and a backward for each target. model, layer and errors: `OfFeatures`.
    """

    name = "grad-cam"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=(2, 3), keepdim=True) * features


class GradCAMPlusPlus(_Weighed):
    """Grad-CAM++ (Chattopadhay et al., WACV 2018): Grad-CAM with weights of positive gradients, place by place.

    With g the gradient of the class's logit and A the features, a channel's weight is the sum over places of alpha *
    relu(g), alpha = g^2 / (2 g^2 + sum(A) g^3) (equations 19 and 7, for the exponential of the logit), 0 where g is 0
    or the denominator is. Passes, model, layer and errors: as for `GradCAM`.
    """

    name = "grad-cam-pp"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        square = gradient**2
        below = 2 * square + features.sum(dim=(2, 3), keepdim=True) * square * gradient
        alpha = torch.where(below == 0, 0.0, square / below)
        return (alpha * gradient.relu()).sum(dim=(2, 3), keepdim=True) * features


class LayerCAM(_Weighed):
    """LayerCAM (Jiang et al., TIP 2021): relu(sum over channels of relu(gradient) * feature), place by place.

    It keeps places apart, so that it can be taken at earlier layers, too. Passes, model, layer and errors: as for
    `GradCAM`.
    """

    name = "layer-cam"

    def _weighed(self, features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.relu() * features
