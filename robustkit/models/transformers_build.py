"""Build the network that a transformers checkpoint describes, and give it all of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import nn

from ..attention.interface import NOTED
from ..common.steady import seeded
from ..data.mask_files import printable
from ..errors import CheckpointError, ModelError, unknown
from .checkpoint import Checkpoint
from .claims import Allowance
from .identity import ModelIdentity, attention_notes, display_name, give_attention
from .input_config import InputOptions
from .specs import ModelFile
from .transformers_config import Folder, quiet, read_folder
from .transformers_weights import give_added, is_added, read_weights

_HEADS = {
    "image classification": ("AutoModelForImageClassification", "audit"),
    "semantic segmentation": ("AutoModelForSemanticSegmentation", "segment"),
    "causal language modelling": ("AutoModelForCausalLM", "text"),
}
"""The library's class of models by what they do, and the command that evaluates them."""
_BACKBONE = "features"
"""What a model without a head does; the library has one of every kind."""


@dataclass(frozen=True)
class Loaded:
    """A network with its weights, what it was built from, its formula and who said so, and notes for the user."""

    model: nn.Module
    checkpoint: Checkpoint
    folder: Folder
    attention: tuple[str, str]
    notes: tuple[str, ...]

    @property
    def metadata(self) -> dict[str, Any]:
        import transformers

        said = {"model_type": self.folder.config["model_type"], "config_sha256": self.folder.digest}
        return {**said, "transformers": transformers.__version__}

    def identity(self, name: str, spec: str, classes: int, **more: Any) -> ModelIdentity:
        """Return what the model is. more: preprocessing, who said it, notes."""
        names = self.folder.class_names
        return ModelIdentity(
            name=display_name(name),
            spec=spec,
            path=self.checkpoint.path,
            sha256=self.checkpoint.sha256,
            arch=type(self.model).__name__,
            attention=self.attention[0],
            attention_source=self.attention[1],
            num_classes=classes,
            weights=self.checkpoint.weights,
            code_sha256=self.folder.digest,
            class_names=tuple(map(printable, names)) if names is not None and len(names) == classes else None,
            metadata=self.metadata,
            **more,
        )


def build(source: ModelFile, spec: str, wanted: InputOptions, task: str) -> Loaded:
    """Build the model that config.json asks for, and give it all weights and its formula."""
    transformers = library(spec)
    folder = read_folder(source.path)
    checkpoint = read_weights(folder.path)
    auto = getattr(transformers, "AutoModel" if task == _BACKBONE else _HEADS[task][0])
    config = _config(transformers, folder)
    if type(config) not in auto._model_mapping:
        raise ModelError(
            f"{folder.path}: transformers {transformers.__version__} has no {task} of model_type "
            f"{folder.config['model_type']!r}; {_other(transformers, config, task)}"
        )
    added = {name: tensor for name, tensor in checkpoint.tensors.items() if is_added(name)}
    plain = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in added}
    config._attn_implementation = "sdpa" if _fused(transformers, auto, config) else "eager"
    with quiet(f"{folder.path}"), seeded(torch.device("cpu"), 0):
        with Allowance(checkpoint.tensors, folder.path), torch.device("meta"):
            kind = type(auto.from_config(config, trust_remote_code=False))
        pooled = any("pooler." in name for name in plain) or "add_pooling_layer" not in signature(kind).parameters
        model, report = kind.from_pretrained(
            None,
            config=config,
            state_dict=plain,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **({} if pooled or task != _BACKBONE else {"add_pooling_layer": False}),
        )
    faults = [
        f"{len(keys)} {what} ({', '.join(sorted(map(_key, keys))[:3])}{', …' if len(keys) > 3 else ''})"
        for what in ("missing", "unexpected", "mismatched")
        if (keys := list(report.get(f"{what}_keys", ())))
    ]
    if faults:
        raise CheckpointError(
            f"{checkpoint.path}: does not fit {kind.__name__} as config.json describes it: {'; '.join(faults)}; "
            "expected the weights that belong to it"
        )
    metadata = {"attention": folder.config.get(NOTED)}
    attention = give_attention(model, wanted.attention, metadata, added, spec)
    notes = attention_notes(*attention, wanted.attention, metadata)
    give_added(model, added, attention[0], checkpoint.path)
    model.eval()
    return Loaded(model, checkpoint, folder, attention, checkpoint.notes + notes)


def _key(entry: Any) -> str:
    """Return a tensor's name, and what a mismatched one has and should have."""
    if isinstance(entry, str):
        return printable(entry)
    name, found, wanted = entry
    return f"{printable(str(name))} {list(found)} for {list(wanted)}"


def library(spec: str) -> Any:
    """Return the library. ModelError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{spec} is a checkpoint of transformers, which is not installed ({error}); install it: pip install "
            '".[hf]" in a clone of this project'
        ) from error
    return transformers


def _config(transformers: Any, folder: Folder) -> Any:
    kind = str(folder.config["model_type"])
    if kind not in transformers.CONFIG_MAPPING:
        known = list(transformers.CONFIG_MAPPING.keys())
        raise ModelError(f"{folder.path}: {unknown('model_type', kind, known)}"[:400])
    with quiet(f"{folder.path / 'config.json'}"):
        return transformers.CONFIG_MAPPING[kind].from_dict(folder.config)


def _other(transformers: Any, config: Any, task: str) -> str:
    for name, command in (head for other, head in _HEADS.items() if other != task):
        if type(config) in getattr(transformers, name)._model_mapping:
            return f"use robustkit {command}"
    return "expected a model with such a head"


def _fused(transformers: Any, auto: Any, config: Any) -> bool:
    kinds = auto._model_mapping[type(config)]
    kinds = kinds if isinstance(kinds, list | tuple) else (kinds,)
    return all(getattr(kind, "_supports_sdpa", False) for kind in kinds)
