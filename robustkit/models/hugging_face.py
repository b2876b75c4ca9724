"""Checkpoints of the transformers library as classifiers and segmenters: a folder of config.json, weights, processor.

The library builds the network and reads names of older releases; files are read by us (`checkpoint`), since nothing of
theirs may be executed or fetched, and nothing larger than the weights may be built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.interface import NOTED
from ..common.preprocessing import Preprocessing
from ..common.steady import seeded
from ..data.mask_files import printable
from ..errors import CheckpointError, ModelError, unknown
from .checkpoint import Checkpoint
from .claims import Allowance
from .dense import Dense, Segmenter, count_classes
from .identity import Classifier, ModelIdentity, attention_notes, display_name, give_attention
from .input_config import InputOptions, resolve_preprocessing
from .specs import ModelFile
from .transformers_config import Folder, normalisation, quiet, read_folder, resizing
from .transformers_weights import give_added, is_added, read_weights
from .window_options import WindowOptions, resolve_windows, sides


class Logits(nn.Module):
    """A model of the library that takes normalised images and returns its logits alone, (B, K) or (B, K, h, w).

    size, mode: what images are resized to before, as its processor does, and how; size None for images as they
    come. Logits of a segmenter keep their own size.
    """

    def __init__(self, model: nn.Module, size: tuple[int, int] | None = None, mode: str = "bilinear") -> None:
        super().__init__()
        self.model = model
        self.size, self.mode = size, mode

    def forward(self, images: Tensor) -> Tensor:
        if self.size is not None and images.shape[-2:] != self.size:
            images = functional.interpolate(images, self.size, mode=self.mode, antialias=True)
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


@dataclass(frozen=True)
class _Loaded:
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


def segments(source: ModelFile) -> bool:
    """Whether the model that a folder asks for segments images."""
    named = read_folder(source.path).config.get("architectures")
    return isinstance(named, list) and any("Segmentation" in str(name) for name in named)


def load_classifier(source: ModelFile, spec: str, wanted: InputOptions) -> Classifier:
    """Load a classifier of the library; see `robustkit.load`."""
    _only(wanted, spec)
    loaded = _load(source, spec, wanted, "image classification")
    network = Logits(loaded.model)
    classes = int(loaded.model.config.num_labels)  # type: ignore[union-attr, arg-type]
    if wanted.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {wanted.num_classes}; check --num-classes")
    said = _said(loaded, wanted)
    trained = getattr(loaded.model.config, "image_size", None)
    if "input_size" not in said:
        sizes = [trained, trained] if isinstance(trained, int) else list(trained) if trained else [224, 224]
        said["input_size"] = sizes
    resolved = resolve_preprocessing(network, wanted, said, str(source.path))
    identity = loaded.identity(
        source.name,
        spec,
        classes,
        preprocessing=resolved.preprocessing,
        preprocessing_source=resolved.sources,
        notes=loaded.notes + resolved.notes,
    )
    classifier = Classifier(network, identity)
    _runs(classifier, resolved.preprocessing, spec)
    return classifier


def load_segmenter(source: ModelFile, spec: str, wanted: InputOptions, shown: WindowOptions) -> Segmenter:
    """Load a segmenter of the library; see `robustkit.models.segmenter.load_segmenter`."""
    _only(wanted, spec)
    loaded = _load(source, spec, wanted, "semantic segmentation")
    said = _said(loaded, wanted)
    size = said.pop("input_size", None)
    mode = str(said.get("interpolation", "bilinear"))
    if size and (said["crop_mode"] != "squash" or said["crop_pct"] != 1 or mode not in ("bilinear", "bicubic")):
        raise CheckpointError(
            f"{source.path}: its processor cuts images, or resizes them by {mode}, which is not expressed here for "
            "segmenters; expected height and width, bilinear or bicubic"
        )
    squashed = size if shown.window is None else None
    network = Logits(loaded.model, tuple(squashed) if squashed else None, mode)
    window = None if shown.window is None else sides(shown.window, "--window")
    windows, more = (None, ()) if window is None else resolve_windows(window, shown, {}, True, None)
    if window is None and (shown.stride or shown.short_side or shown.resize):
        raise ModelError("--stride, --short-side and --resize are of windows; give --window, too")
    dense = Dense(network, windows)
    probe = window or tuple(size or (128, 128))
    classes = count_classes(dense, probe)
    if wanted.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {wanted.num_classes}; check --num-classes")
    resolved = resolve_preprocessing(network, replace(wanted, img_size=probe), said, str(source.path))
    notes = loaded.notes + more + resolved.notes
    if squashed:
        notes += (f"images are resized to {squashed[0]}x{squashed[1]} inside the model, as its processor does",)
    identity = loaded.identity(
        source.name,
        spec,
        classes,
        preprocessing=replace(resolved.preprocessing, crop_mode="none", crop_pct=1.0, interpolation=mode),
        preprocessing_source={name: resolved.sources[name] for name in ("mean", "std")},
        notes=notes,
    )
    return Segmenter(dense, identity)


def _only(wanted: InputOptions, spec: str) -> None:
    if wanted.arch is not None:
        raise ModelError(
            f"--arch {wanted.arch} does not go with {spec}, whose config.json says what it is; leave it out"
        )
    if wanted.img_size is not None:
        raise ModelError(f"--img-size does not go with {spec}, whose processor says the size; leave it out")


def _said(loaded: _Loaded, wanted: InputOptions) -> dict[str, Any]:
    """Return what the processor says, by the names of our metadata."""
    folder = loaded.folder
    if folder.processor is None:
        if wanted.mean is None or wanted.std is None:
            raise CheckpointError(
                f"{folder.path}: no preprocessor_config.json, so nothing says how images are normalised; put it there, "
                "or give --mean and --std"
            )
        return {}
    said = _processor(folder)
    return {**normalisation(said, folder.path), **resizing(said, folder.path)}


def _processor(folder: Folder) -> dict[str, Any]:
    """Return a processor's values with the defaults of its class."""
    reader: Any = _library(str(folder.path)).AutoImageProcessor
    with quiet(f"{folder.path}: its processor"):
        made = reader.from_pretrained(str(folder.path), trust_remote_code=False, local_files_only=True)
        complete: dict[str, Any] = made.to_dict()
    return complete


def _load(source: ModelFile, spec: str, wanted: InputOptions, task: str) -> _Loaded:
    """Build the model that config.json asks for, and give it all weights and its formula."""
    transformers = _library(spec)
    folder = read_folder(source.path)
    checkpoint = read_weights(folder.path)
    auto = transformers.AutoModelForImageClassification
    if task == "semantic segmentation":
        auto = transformers.AutoModelForSemanticSegmentation
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
        model, report = kind.from_pretrained(
            None,
            config=config,
            state_dict=plain,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    faults = [
        f"{len(names)} {what} ({', '.join(sorted(map(str, names))[:3])}{', …' if len(names) > 3 else ''})"
        for what in ("missing", "unexpected", "mismatched")
        if (names := list(report.get(f"{what}_keys", ())))
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
    return _Loaded(model, checkpoint, folder, attention, checkpoint.notes + notes)


def _library(spec: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{spec} is a checkpoint of transformers, which is not installed ({error}); install it: pip install "
            "'robustkit-audit[hf]' from a clone of this project"
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
    other = "AutoModelForSemanticSegmentation" if task == "image classification" else "AutoModelForImageClassification"
    if type(config) in getattr(transformers, other)._model_mapping:
        return f"use robustkit {'segment' if task == 'image classification' else 'audit'}"
    return "expected a model with such a head"


def _fused(transformers: Any, auto: Any, config: Any) -> bool:
    kinds = auto._model_mapping[type(config)]
    kinds = kinds if isinstance(kinds, list | tuple) else (kinds,)
    return all(getattr(kind, "_supports_sdpa", False) for kind in kinds)


def _runs(classifier: Classifier, preprocessing: Preprocessing, spec: str) -> None:
    """Raise ModelError where the network does not take the images that its processor makes."""
    height, width = preprocessing.input_size
    with quiet(f"{spec}: an image of {height}x{width}"), torch.no_grad():
        logits = classifier(torch.zeros(1, 3, height, width))
    if logits.shape != (1, classifier.identity.num_classes):
        raise ModelError(
            f"{spec} returned {tuple(logits.shape)} for one image; expected (1, {classifier.identity.num_classes}): "
            "check id2label of config.json"
        )
