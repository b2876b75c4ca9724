"""Checkpoints of the transformers library as classifiers and segmenters: a folder of config.json, weights, processor.

The library builds the network and reads names of older releases; files are read by us (`checkpoint`), since nothing of
theirs may be executed or fetched, and nothing larger than the weights may be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.functional import pil_to_tensor

from ..common.preprocessing import Preprocessing
from ..data.images import to_pixels, unit
from ..errors import CheckpointError, ModelError
from .dense import Dense, Segmenter, count_classes
from .identity import Classifier, as_features
from .input_config import InputOptions, resolve_preprocessing
from .specs import ModelFile
from .transformers_config import Folder, normalisation, quiet, read_folder, resizing
from .transformers_load import Loaded, build, check_pixels, library
from .windows import WindowOptions, resolve_windows, sides


class Logits(nn.Module):
    """A model of the library that takes normalised images and returns its logits alone, (B, K) or (B, K, h, w).

    size, mode: what images are resized to before, as its processor does, and how; size None for images as they
    come. Logits of a segmenter keep their own size. low, high: black and white once normalised, which no resize leaves.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        model: nn.Module,
        size: tuple[int, int] | None = None,
        mode: str = "bilinear",
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        self.model = model
        self.size, self.mode = size, mode
        for name, level in (("low", 0.0), ("high", 1.0)):
            edge = (level - torch.tensor(mean, dtype=torch.float32)) / torch.tensor(std, dtype=torch.float32)
            self.register_buffer(name, edge.view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=self.resized(images)).logits
        return logits

    def resized(self, images: Tensor) -> Tensor:
        """Return images (B, 3, H, W) at the size of the processor: columns first, as Pillow does."""
        if self.size is None or images.shape[-2:] == self.size:
            return images
        if self.mode == "bilinear":
            return functional.interpolate(images, self.size, mode=self.mode, antialias=True)
        for size in ((images.shape[-2], self.size[1]), self.size):  # a cubic overshoots
            images = functional.interpolate(images, size, mode=self.mode, antialias=True)
            images = images.clamp(self.low, self.high)
        return images


class Pooled(nn.Module):
    """A model of the library without a head, whose features (B, D) are what it pools, else its first token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        found = self.model(pixel_values=images)
        pooled = getattr(found, "pooler_output", None)
        features: Tensor = found.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)
        return features


def segments(source: ModelFile) -> bool:
    """Whether the model that a folder asks for segments images."""
    named = read_folder(source.path).config.get("architectures")
    return isinstance(named, list) and any("Segmentation" in str(name) for name in named)


def load_classifier(source: ModelFile, spec: str, wanted: InputOptions) -> Classifier:
    """Load a classifier of the library; see `robustkit.load`."""
    if segments(source):
        raise CheckpointError(f"{spec} is a segmenter; evaluate it with robustkit segment, or load_segmenter")
    _only(wanted, spec)
    loaded = build(source, spec, wanted, "image classification")
    network = Logits(loaded.model)
    classes = _classes(loaded, source)
    if wanted.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {wanted.num_classes}; check --num-classes")
    classifier = _with_processor(loaded, network, classes, source, spec, wanted)
    _runs(classifier, classifier.identity.preprocessing, spec)
    return classifier


def load_features(source: ModelFile, spec: str, wanted: InputOptions) -> Classifier:
    """Load the features of a model of the library, (B, D): before the head of a classifier, or of one without a head
    what it pools, else its first token.
    """
    named = read_folder(source.path).config.get("architectures")
    if isinstance(named, list) and any("ImageClassification" in str(name) for name in named):
        return as_features(load_classifier(source, spec, wanted))
    _only(wanted, spec)
    loaded = build(source, spec, wanted, "features")
    return as_features(_with_processor(loaded, Pooled(loaded.model), 0, source, spec, wanted))


def _with_processor(
    loaded: Loaded, network: nn.Module, classes: int, source: ModelFile, spec: str, wanted: InputOptions
) -> Classifier:
    """Return a network of images as its processor makes them. CheckpointError where that cannot be expressed."""
    processor = _processor(loaded.folder, wanted, "pil")  # our images are resized by Pillow, too
    said = {} if processor is None else _said(processor, loaded.folder)
    if processor is not None and "input_size" not in said:
        raise CheckpointError(
            f"{source.path}: its processor leaves images as large as they are (do_resize false), which is not "
            "expressed here for classifiers; give it do_resize and a size"
        )
    if processor is not None:
        shown: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
        own = Preprocessing(**shown)
        check_pixels(
            processor,
            lambda image: _normalised(unit(to_pixels(image, own)), said),
            own.input_size,
            said["std"],
            source.path,
        )
    else:
        trained = getattr(loaded.model.config, "image_size", None)
        said["input_size"] = [trained, trained] if isinstance(trained, int) else list(trained or (224, 224))
    resolved = resolve_preprocessing(network, wanted, said, str(source.path))
    identity = loaded.identity(
        source.name,
        spec,
        classes,
        preprocessing=resolved.preprocessing,
        preprocessing_source=resolved.sources,
        notes=loaded.notes + resolved.notes,
    )
    return Classifier(network, identity)


def load_segmenter(source: ModelFile, spec: str, wanted: InputOptions, shown: WindowOptions) -> Segmenter:
    """Load a segmenter of the library; see `robustkit.models.segmenter.load_segmenter`."""
    _only(wanted, spec)
    loaded = build(source, spec, wanted, "semantic segmentation")
    processor = _processor(loaded.folder, wanted, "torchvision")  # theirs by torch
    said = {} if processor is None else _said(processor, loaded.folder)
    size = said.pop("input_size", None)
    mode = str(said.get("interpolation", "bilinear"))
    if size and (said["crop_mode"] != "squash" or said["crop_pct"] != 1 or mode not in ("bilinear", "bicubic")):
        raise CheckpointError(
            f"{source.path}: its processor cuts images, or resizes them by {mode}, which is not expressed here for "
            "segmenters; expected height and width, bilinear or bicubic"
        )
    squashed = tuple(size) if size and shown.window is None else None
    mean, std = wanted.mean or said["mean"], wanted.std or said["std"]
    network = Logits(loaded.model, squashed, mode, mean, std)
    if processor is not None and shown.window is None:
        check_pixels(
            processor,
            lambda image: network.resized(_normalised(unit(pil_to_tensor(image)), said)),
            squashed or (128, 128),
            said["std"],
            source.path,
        )
    window = None if shown.window is None else sides(shown.window, "--window")
    windows, more = (None, ()) if window is None else resolve_windows(window, shown, {}, True, None)
    if window is None and (shown.stride or shown.short_side or shown.resize):
        raise ModelError("--stride, --short-side and --resize are of windows; give --window, too")
    dense = Dense(network, windows)
    probe = window or tuple(size or (128, 128))
    classes = count_classes(dense, probe)
    if classes < 2:
        raise CheckpointError(f"{source.path}: {classes} output; expected a segmenter of two classes or more")
    if wanted.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {wanted.num_classes}; check --num-classes")
    resolved = resolve_preprocessing(network, replace(wanted, img_size=probe), said, str(source.path))
    notes = loaded.notes + more + resolved.notes
    if squashed:
        notes += (f"images are resized to {squashed[0]}x{squashed[1]} inside the model, as its processor does",)
    if getattr(processor, "do_reduce_labels", False):
        notes += ("its processor counts labels of masks from 1 (do_reduce_labels): class 0 is label 1, 0 is no class",)
    identity = loaded.identity(
        source.name,
        spec,
        classes,
        preprocessing=replace(resolved.preprocessing, crop_mode="none", crop_pct=1.0, interpolation=mode),
        preprocessing_source={name: resolved.sources[name] for name in ("mean", "std")},
        notes=notes,
    )
    return Segmenter(dense, identity)


def _normalised(pixels: Tensor, said: Mapping[str, Any]) -> Tensor:
    """Return (1, 3, H, W) of pixels (3, H, W) in [0, 1]."""
    mean, std = (torch.tensor(said[name])[:, None, None] for name in ("mean", "std"))
    return ((pixels - mean) / std)[None]


def _classes(loaded: Loaded, source: ModelFile) -> int:
    """Return how many classes a classifier tells apart. CheckpointError where that is not what it does."""
    config: Any = loaded.model.config
    kind, classes = getattr(config, "problem_type", None), int(config.num_labels)
    if classes < 2 or kind in ("regression", "multi_label_classification"):
        raise CheckpointError(
            f"{source.path}: {classes} output{'s' * (classes != 1)}{f', problem_type {kind}' if kind else ''}; "
            "expected a classifier of two classes or more, of which one is right"
        )
    return classes


def _only(wanted: InputOptions, spec: str) -> None:
    if wanted.arch is not None:
        raise ModelError(
            f"--arch {wanted.arch} does not go with {spec}, whose config.json says what it is; leave it out"
        )
    if wanted.img_size is not None:
        raise ModelError(f"--img-size does not go with {spec}, whose processor says the size; leave it out")


def _processor(folder: Folder, wanted: InputOptions, backend: str) -> Any:
    """Return the processor of a folder; None where it has none, and the user says how images are normalised."""
    if folder.processor is None:
        if wanted.mean is None or wanted.std is None:
            raise CheckpointError(
                f"{folder.path}: no preprocessor_config.json, so nothing says how images are normalised; put it there, "
                "or give --mean and --std"
            )
        return None
    reader: Any = library(str(folder.path)).AutoImageProcessor
    with quiet(f"{folder.path}: its processor"):
        return reader.from_pretrained(str(folder.path), trust_remote_code=False, local_files_only=True, backend=backend)


def _said(processor: Any, folder: Folder) -> dict[str, Any]:
    """Return what a processor says, with the defaults of its class, by the names of our metadata."""
    said = processor.to_dict()
    return {**normalisation(said, folder.path), **resizing(said, type(processor).__name__, folder.path)}


def _runs(classifier: Classifier, preprocessing: Preprocessing, spec: str) -> None:
    """Raise ModelError where the network does not take the images that its processor makes."""
    height, width = preprocessing.input_size
    with quiet(f"{spec}: an image of {height}x{width}"), torch.no_grad():
        logits = classifier(torch.full((1, 3, height, width), 0.5))
    if logits.shape != (1, classifier.identity.num_classes):
        raise ModelError(
            f"{spec} returned {tuple(logits.shape)} for one image; expected (1, {classifier.identity.num_classes}): "
            "check id2label of config.json"
        )
    if not logits.isfinite().all():
        raise ModelError(
            f"{spec} returned logits that are not finite for a grey image; check config.json and the weights"
        )
