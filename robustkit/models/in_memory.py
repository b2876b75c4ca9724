"""A network of the calling program as a classifier: nothing is loaded, and it is given back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import nn

from ..attention.apply import attention_kind
from ..common.names import IN_MEMORY
from ..errors import ModelError
from .checkpoint import digest_of_tensors
from .identity import Classifier, ModelIdentity, display_name
from .input_config import InputOptions, resolve_preprocessing
from .outputs import with_logits

NOTE = "the network was in memory: this run cannot be reproduced from files alone"


def classifier_of(
    network: nn.Module, name: str, options: InputOptions, size: tuple[int, int] | None = None
) -> Classifier:
    """Return a network as a classifier. options: mean and std, unless its own config has them. size: of images that are
    shown as they are.

    Raises ModelError where nothing says how images are normalised, or it returns no logits.
    """
    if isinstance(network, Classifier):
        network.identity = replace(network.identity, name=display_name(name))
        return network
    built_size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if size is not None and options.img_size is None and built_size in (None, size):
        options = replace(options, img_size=size, crop_pct=options.crop_pct or 1.0)
    identity = described(network, name, options)
    zeros = torch.zeros(1, identity.preprocessing.channels, *identity.preprocessing.input_size)
    try:
        network, classes, outputs, notes = with_logits(network, zeros, options.output, options.num_classes)
    except ModelError as fault:
        kind = next((each.dtype for each in network.parameters() if each.is_floating_point()), torch.float32)
        hint = f"; its weights are {kind}, images are float32: give network.float()" * (kind != torch.float32)
        raise ModelError(f"{name}: {fault}{hint}") from fault
    if options.num_classes not in (None, classes):
        raise ModelError(f"{name} gives {classes} classes, not {options.num_classes}; check num_classes")
    takes = identity.preprocessing.input_size
    if size is not None and takes != size:
        notes += (f"images of {size[0]} x {size[1]} are resized and cropped to {takes[0]} x {takes[1]}",)
    return Classifier(network, replace(identity, num_classes=classes, outputs=outputs, notes=(*identity.notes, *notes)))


def described(network: nn.Module, name: str, options: InputOptions) -> ModelIdentity:
    """Return what a network is, without the number of its classes, and put it on the CPU."""
    if options.arch or options.attention:
        raise ModelError(f"{name}: arch and attention apply to files only; a network in memory is used as it is")
    config = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None) or {}
    if not config and (options.mean is None or options.std is None):
        how = "give mean= and std=, or pixels=True if it normalises its own input"
        raise ModelError(f"{name}: the normalisation of its images is unknown; {how}")
    network.cpu()
    preprocessing, sources, notes = resolve_preprocessing(network, options, {}, name, config_of="published")
    return ModelIdentity(
        name=display_name(name),
        spec=f"{IN_MEMORY}{name}",
        path=None,
        sha256=digest_of_tensors(network.state_dict()) if network.state_dict() else None,
        arch=str(config.get("architecture") or f"{type(network).__module__}.{type(network).__qualname__}"),
        attention=attention_kind(network),
        attention_source="n/a",
        num_classes=0,
        preprocessing=preprocessing,
        preprocessing_source=sources,
        weights="in memory",
        notes=(NOTE, *notes),
    )


def _device_of(network: nn.Module) -> torch.device:
    """Return where the first tensor of a network lies. Raises ModelError where it has no values, on `meta`."""
    device = next(chain(network.parameters(), network.buffers()), torch.zeros(())).device
    if device.type == "meta":
        raise ModelError(f"{type(network).__name__} is on the device meta, without weights; load them first")
    return device


@contextmanager
def as_it_was(networks: list[nn.Module]) -> Iterator[None]:
    """Give networks back in the mode, on the device and with the gradients that they came with."""
    parts = [(part, part.training) for network in networks for part in network.modules()]
    tensors = [(tensor, tensor.requires_grad) for network in networks for tensor in network.parameters()]
    places = [(network, _device_of(network)) for network in networks]
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
