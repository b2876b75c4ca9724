"""Build the network of a transformers checkpoint, load its weights, and compare its processor's pixels with ours.

Each processor of the library has a resize of its own, and what it means by `size` differs from class to class. So what
we read of it is believed only where both make the same pixels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..attention.apply import attention_layers
from ..attention.interface import NOTED
from ..attention.layers import SCALES
from ..common.determinism import seeded
from ..common.files import json_of, reason
from ..data.mask_files import printable
from ..errors import CheckpointError, ModelError, unknown
from .checkpoint import Checkpoint, read
from .claims import Allowance
from .identity import ModelIdentity, attention_notes, display_name, give_attention
from .input_config import InputOptions
from .specs import ModelFile
from .transformers_config import Folder, quiet, read_folder

INDEX, WEIGHTS = "model.safetensors.index.json", ("model.safetensors", "pytorch_model.bin")
_INDEX = 64 << 20  # bytes of an index
_PLACED = re.compile(rf"(.*)\.({'|'.join(SCALES)}|[qk]_norm\.(?:weight|bias))")  # a layer, and what a formula adds


def read_weights(folder: Path) -> Checkpoint:
    """Read the weights of a folder: one file, or those that an index names."""
    files = files_of(folder)
    return _shards(folder / INDEX, files) if is_sharded(folder) else read(files[0], prefixes=False)


def is_sharded(folder: Path) -> bool:
    """Whether an index names the files of its weights; a whole file next to it comes first, as in transformers."""
    return (folder / INDEX).is_file() and not (folder / WEIGHTS[0]).is_file()


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder's weights, in the order of their names; CheckpointError where there are none."""
    if is_sharded(folder):
        return [folder / name for name in sorted({str(name) for name in _places(folder / INDEX).values()})]
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder}: no weights next to config.json; expected {' or '.join((*WEIGHTS, INDEX))}")
    return [file]


def _places(index: Path) -> Mapping[str, str]:
    """Return the file of each tensor, as an index has it."""
    try:
        said = json_of(index, _INDEX)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not JSON ({reason(error)}); expected an index of weights") from error
    places = said.get("weight_map") if isinstance(said, Mapping) else None
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected the file of each tensor")
    for name in map(str, places.values()):
        if Path(name).name != name or len(name) > 200 or not name.isprintable() or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: names the file {name[:80]!r}; expected .safetensors files next to it")
    return places


def _shards(index: Path, files: Sequence[Path]) -> Checkpoint:
    places = _places(index)
    parts = [read(file, prefixes=False) for file in files]
    tensors: dict[str, Tensor] = {}
    for file, part in zip(files, parts, strict=True):
        tensors |= {key: value for key, value in part.tensors.items() if places.get(key) == file.name}
    if missing := [key for key in places if key not in tensors]:
        first = printable(str(missing[0]))[:80]
        raise CheckpointError(f"{index}: {len(missing)} tensors are not in the files that it names ({first}, …)")
    digest = digest_of_shards([(file.name, part.sha256) for file, part in zip(files, parts, strict=True)])
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Checkpoint(index, digest, tensors, {}, "bare", notes)


def digest_of_shards(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of weights in several files. digests: names of the files, each with its SHA-256 (hex)."""
    return hashlib.sha256("".join(f"{digest} {name}\n" for name, digest in digests).encode()).hexdigest()


def is_added(name: str) -> bool:
    """Whether a tensor is one that a formula adds to a layer."""
    return _PLACED.fullmatch(name) is not None


def give_added(model: nn.Module, added: Mapping[str, Tensor], formula: str, file: Path) -> None:
    """Copy what a formula learned into the layers, by their order: saved names of layers are those of older releases,
    and the library translates only its own.
    """
    if not added:
        return
    places: dict[str, dict[str, Tensor]] = {}
    for name, tensor in added.items():
        if match := _PLACED.fullmatch(name):
            places.setdefault(match[1], {})[match[2]] = tensor
    layers = [layer for _, layer in attention_layers(model)]
    rows = sorted(places, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    for row, layer in zip(rows, layers, strict=False):
        shapes = {name: value.shape for name, value in layer.state_dict().items() if _PLACED.fullmatch(f".{name}")}
        if len(rows) != len(layers) or shapes != {name: tensor.shape for name, tensor in places[row].items()}:
            raise CheckpointError(
                f"{file}: {len(rows)} layers with {_listed(places[row])}; {formula} attention has "
                f"{_listed(layer.state_dict(), shapes) or 'none'} in {len(layers)}; give --attention, or take another "
                "file"
            )
        layer.load_state_dict(places[row], strict=False)


def _listed(tensors: Mapping[str, Tensor], names: Iterable[str] | None = None) -> str:
    """Return names with shapes."""
    return ", ".join(f"{name} {list(tensors[name].shape)}" for name in sorted(tensors if names is None else names))


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


_SHAPES = ((1.7, 2.3), (2.5, 1.4), (0.6, 0.8), (1.3, 1.3))
"""Heights and widths of the images that are tried, in those of the input; each also gets some odd pixels."""
_LEVELS = 3.5  # between two resizes of the library itself there are up to 2, and rounded twice one more


def drawn(size: tuple[int, int]) -> list[Image.Image]:
    """Return images of black, white and coloured blocks, as no photograph has them, around (height, width)."""
    draw = np.random.Generator(np.random.PCG64(0))
    images = []
    for place, (tall, wide) in enumerate(_SHAPES):
        height, width = int(size[0] * tall) + place + 1, int(size[1] * wide) + 2 * place + 3
        blocks = draw.choice(np.array([0, 60, 200, 255], np.uint8), (-(-height // 6), -(-width // 6), 3))
        images.append(Image.fromarray(blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]))
    return images


def check_pixels(
    processor: Any, show: Callable[[Image.Image], Tensor], size: tuple[int, int], std: list[float], where: Path
) -> None:
    """Raise CheckpointError unless `show` gives the normalised pixels (1, 3, H, W) of the processor.

    size: (height, width) around which images are tried. std: by which pixels are divided, for the unit of the message.
    """
    scale = torch.tensor(std)[:, None, None] * 255
    for image in drawn(size):
        with quiet(f"{where}: its processor"):
            theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])
        with torch.no_grad():
            ours = show(image)
        kind, of = type(processor).__name__, f"of a picture of {image.height}x{image.width} pixels"
        if theirs.shape != ours.shape:
            shapes = (f"{x.shape[-2]}x{x.shape[-1]}" for x in (theirs, ours))
            raise CheckpointError(
                f"{where}: {kind} makes {{}} pixels {of} where we would make {{}}; how it resizes is not expressed "
                "here".format(*shapes)
            )
        if not (most := float(((theirs - ours) * scale).abs().max())) <= _LEVELS:
            raise CheckpointError(
                f"{where}: {kind} makes other pixels {of} than we would, by up to {most:.0f} of 255 levels; how it "
                "resizes or normalises is not expressed here"
            )
