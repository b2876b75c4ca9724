"""Take the head off a classifier: what is left returns features (B, D) in place of logits.

Of a network of timm it is the classifier that timm itself takes off. Of any other it is the linear layer whose output
is the network's; where no linear layer is last, the network has no head, and its own output is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .identity import Classifier


def without_head(network: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the classifier off a network of timm, in place; return a file's tensors without those of it."""
    there = set(network.state_dict())
    _reset(network)
    gone = there - set(network.state_dict())
    return {name: tensor for name, tensor in tensors.items() if name not in gone}


def as_features(classifier: Classifier) -> Classifier:
    """Return a classifier without its head, whose identity says what is taken.

    Raises:
        ModelError: it gives no row of at least two numbers for an image.
    """
    network, identity = classifier.network, classifier.identity
    taken = "its output before the classifier"
    if hasattr(network, "reset_classifier"):
        _reset(network)
    else:
        name = _last_linear(classifier)
        taken = "the network's own output, which no linear layer makes"
        if name:
            network.set_submodule(name, nn.Identity())
            taken = f"what {name} takes"
    with torch.no_grad():
        found = classifier(_grey(classifier))
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 1 or found.shape[1] < 2:
        given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ModelError(
            f"{identity.name}: no features: {given} for one image; expected (1, D), D at least 2, from a network "
            "without its head; give --arch FILE.py:FUNCTION with one that returns them"
        )
    note = f"features: {taken}, {found.shape[1]} numbers"
    classifier.identity = replace(identity, num_classes=0, class_names=None, notes=(*identity.notes, note))
    return classifier


def _reset(network: Any) -> None:
    network.reset_classifier(0)


def _grey(classifier: Classifier) -> Tensor:
    return torch.full((1, 3, *classifier.identity.preprocessing.input_size), 0.5)


def _last_linear(classifier: Classifier) -> str:
    """Return the name of the linear layer whose output is the network's; empty where there is none."""
    made: dict[str, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: made.update({name: output}))
        for name, part in classifier.network.named_modules()
        if isinstance(part, nn.Linear) and name
    ]
    try:
        with torch.no_grad():
            found = classifier(_grey(classifier))
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name, output in made.items() if output is found), "")
