"""What exported classifiers share, whatever computes them: batches that a graph bounds, options, identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import ModelError
from ...models.identity import Classifier, ModelIdentity, display_name
from ...models.input_config import InputOptions, resolve_preprocessing
from ...models.outputs import with_logits
from ...models.specs import ModelFile
from ...models.zero_shot import refuse_text

_SETTINGS = ("mean", "std", "input_size", "interpolation", "crop_pct", "crop_mode", "class_names", "num_classes")


class ExportedNetwork(nn.Module, ABC):
    """Images (B, 3, H, W), normalised, to logits (B, K), by a graph that may bound the number of images.

    fixed_size: (height, width) that the graph takes, None for any. rows: the fewest and the most images of one pass,
    None for any number above; a pass that has fewer is filled with zeros. graph_channels: of its images.
    """

    graph_channels = 3

    def __init__(self, fixed_size: tuple[int, int] | None, rows: tuple[int, int | None]) -> None:
        super().__init__()
        self.fixed_size, self.rows = fixed_size, rows

    @abstractmethod
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits of one pass."""

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, images: Tensor) -> Tensor:
        parts = torch.split(images, self.rows[1] or max(1, len(images)))
        return torch.cat([self._pass(part) for part in parts])

    def _pass(self, images: Tensor) -> Tensor:
        lacking = max(0, self.rows[0] - len(images))
        filled = functional.pad(images, (0, 0) * 3 + (0, lacking)) if lacking else images
        return self.logits(filled.contiguous())[: len(images)]


def refuse_options(spec: str, options: InputOptions, features: bool) -> None:
    """Raise ModelError for options that build a network or its head: an exported one is run as it is. features: whether
    it is to be without its head."""
    refuse_text(options, spec)
    if features:
        raise ModelError(f"{spec}: an exported graph has no head to take off; expected the weights themselves")
    for option in ("arch", "attention", "num_classes"):
        if (value := getattr(options, option)) is not None:
            what = f"--{option.replace('_', '-')} {value} does not apply to {spec}"
            raise ModelError(f"{what}: an exported graph is run as it is; leave it out")


def exported_classifier(
    network: ExportedNetwork,
    source: ModelFile,
    spec: str,
    options: InputOptions,
    metadata: Mapping[str, Any],
    *,
    arch: str,
    sha256: str,
    attends: bool,
    notes: tuple[str, ...] = (),
    code_sha256: str | None = None,
) -> Classifier:
    """Return the classifier of a graph. metadata: what its file says. attends: whether it has attention, whose formula
    nobody knows. ModelError for images of a size that the graph does not take.
    """
    settings = {name: value for name, value in metadata.items() if name in _SETTINGS}
    preprocessing, sources, more = resolve_preprocessing(network, options, settings, str(source.path))
    if network.fixed_size not in (None, preprocessing.input_size):
        size_text, fixed = (_by(size) for size in (preprocessing.input_size, network.fixed_size))
        raise ModelError(f"{spec}: images of {size_text}, but its graph takes {fixed} only; leave --img-size out")
    whole, classes, outputs, of_outputs = with_logits(
        network, torch.zeros(1, preprocessing.channels, *preprocessing.input_size)
    )
    names = settings.get("class_names")
    identity = ModelIdentity(
        name=display_name(source.name),
        spec=spec,
        path=source.path,
        sha256=sha256,
        arch=arch,
        attention="other" if attends else "none",
        attention_source="n/a",
        num_classes=classes,
        preprocessing=preprocessing,
        preprocessing_source=sources,
        weights="exported",
        code_sha256=code_sha256,
        class_names=tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None,
        notes=(*notes, *more, *of_outputs),
        metadata=settings,
        outputs=outputs,
    )
    return Classifier(whole, identity)


def _by(size: tuple[int, int] | None) -> str:
    return " x ".join(map(str, size or ()))
