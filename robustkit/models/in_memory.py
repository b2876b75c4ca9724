"""A network of the calling program as a classifier: nothing is loaded, and it is given back as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.apply import attention_kind
from ..common.held import PREFIX
from ..errors import ModelError
from .architecture import classes_of, in_short, zeros_through
from .checkpoint import digest_of
from .identity import Classifier, ModelIdentity, display_name
from .input_config import InputOptions, resolve_preprocessing

NOTE = "the network was in memory: this run cannot be reproduced from files alone"


class LogitsOf(nn.Module):
    """A network that returns more than logits: a dict, a tuple, or an object with `logits`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return logits_in(self.network(images))


def logits_in(output: Any) -> Any:
    """Return the logits in what a network returned; the output itself where there are none."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits", output.get("out"))
    if found is None and isinstance(output, tuple | list):
        found = next((each for each in output if isinstance(each, Tensor) and each.ndim in (2, 4)), None)
    return output if found is None else found


def classifier_of(
    network: nn.Module, name: str, wanted: InputOptions, size: tuple[int, int] | None = None
) -> Classifier:
    """Return a network as a classifier. wanted: mean and std, unless its own config has them. size: of images that are
    shown as they are.

    Raises ModelError where nothing says how images are normalised, or it returns no logits.
    """
    if isinstance(network, Classifier):
        network.identity = replace(network.identity, name=display_name(name))
        return network
    own = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if size is not None and wanted.img_size is None and own in (None, size):
        wanted = replace(wanted, img_size=size, crop_pct=wanted.crop_pct or 1.0)
    shown, identity = described(network, name, wanted)
    classes = classes_of(shown.cpu(), identity.preprocessing.input_size)
    return Classifier(shown, replace(identity, num_classes=classes))


def described(network: nn.Module, name: str, wanted: InputOptions) -> tuple[nn.Module, ModelIdentity]:
    """Return a network, on the CPU, as one that returns a tensor, and what it is; without the number of its classes."""
    if wanted.arch or wanted.attention:
        raise ModelError(f"{name}: arch and attention apply to files only; a network in memory is used as it is")
    config = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None) or {}
    if not config and (wanted.mean is None or wanted.std is None):
        how = "give mean= and std=, or pixels=True if it normalises its own input"
        raise ModelError(f"{name}: the normalisation of its images is unknown; {how}")
    network.cpu()
    preprocessing, sources, notes = resolve_preprocessing(network, wanted, {}, name, config_of="published")
    height, width = preprocessing.input_size
    try:
        plain = isinstance(zeros_through(network, (height, width)), Tensor)
    except Exception as fault:  # the user's own code
        raise ModelError(f"{name} fails on an image of {height} x {width}: {in_short(fault)}") from fault
    identity = ModelIdentity(
        name=display_name(name),
        spec=f"{PREFIX}{name}",
        path=None,
        sha256=digest_of(network.state_dict()) if network.state_dict() else None,
        arch=str(config.get("architecture") or f"{type(network).__module__}.{type(network).__qualname__}"),
        attention=attention_kind(network),
        attention_source="n/a",
        num_classes=0,
        preprocessing=preprocessing,
        preprocessing_source=sources,
        weights="in memory",
        notes=(NOTE, *notes),
    )
    return network if plain else LogitsOf(network), identity


@contextmanager
def as_it_was(networks: list[nn.Module]) -> Iterator[None]:
    """Give networks back in the mode, on the device and with the gradients that they came with."""
    parts = [(part, part.training) for network in networks for part in network.modules()]
    tensors = [(tensor, tensor.requires_grad) for network in networks for tensor in network.parameters()]
    places = [(network, next(iter(network.state_dict().values()), torch.zeros(())).device) for network in networks]
    try:
        yield
    finally:
        for network, device in places:
            network.to(device)
        for part, training in parts:
            part.training = training
        for tensor, needed in tensors:
            tensor.requires_grad_(needed)


@dataclass(frozen=True)
class HeldNetwork:
    """A network by the name that `memory:NAME` has. size: of images that are shown to it as they are, if any."""

    network: nn.Module
    name: str
    size: tuple[int, int] | None = None
