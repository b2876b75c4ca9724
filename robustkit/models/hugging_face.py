"""Checkpoints of the transformers library as classifiers and segmenters: a folder of config.json, weights, processor.

The library builds the network and reads names of older releases; files are read by us (`checkpoint`), since nothing of
theirs may be executed or fetched, and nothing larger than the weights may be built. Each processor of the library has a
resize of its own, and what it means by `size` differs from class to class. So what we read of it is believed only where
both make the same pixels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms.functional import pil_to_tensor

from ..attention.apply import attention_layers
from ..attention.interface import NOTED
from ..attention.layers import SCALES
from ..common.determinism import seeded
from ..common.environment import import_extra
from ..common.plugins import digest_of_files
from ..common.preprocessing import ASSUMED, Preprocessing
from ..data.class_names import printable
from ..data.images import to_pixels, to_unit_range
from ..errors import CheckpointError, ModelError, unknown
from .checkpoint import Checkpoint, read
from .claims import Allowance
from .dense import Dense, Segmenter, WindowOptions, asked_windows, count_classes
from .identity import Classifier, ModelIdentity, as_features, attention_notes, give_attention, identity_of
from .input_config import InputOptions, resolve_preprocessing
from .specs import INDEX, WEIGHT_FILES, ModelFile, shards_of, text_files
from .transformers_config import Folder, processor_normalisation, quiet, read_folder, resizing
from .zero_shot import (
    CANONICAL,
    FORMS,
    ZeroShot,
    canonical_text,
    kept_rows,
    prompts_of,
    refuse_text,
    scale_and_bias,
    with_prompts,
)

_PLACED = re.compile(rf"(.*)\.({'|'.join(SCALES)}|[qk]_norm\.(?:weight|bias))")  # a layer, and what a formula adds


def is_sharded(folder: Path) -> bool:
    """Whether an index names the files of its weights; a whole file next to it comes first, as in transformers."""
    return (folder / INDEX).is_file() and not (folder / WEIGHT_FILES[0]).is_file()


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder's weights, in the order of their names; CheckpointError where there are none."""
    if is_sharded(folder):
        return shards_of(folder / INDEX)
    file = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if file is None:
        expected = " or ".join((*WEIGHT_FILES, INDEX))
        raise CheckpointError(f"{folder}: no weights next to config.json; expected {expected}")
    return [file]


def read_weights(folder: Path) -> Checkpoint:
    return read(folder / INDEX if is_sharded(folder) else files_of(folder)[0], prefixes=False)


def give_added(model: nn.Module, added: Mapping[str, Tensor], formula: str, file: Path) -> None:
    """Copy what a formula learned into the layers, in order: the library translates only its own names."""
    places: dict[str, dict[str, Tensor]] = {}
    for name, tensor in added.items():
        if match := _PLACED.fullmatch(name):
            places.setdefault(match[1], {})[match[2]] = tensor
    layers = [layer for _, layer in attention_layers(model)] if places else []
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
    return ", ".join(f"{name} {list(tensors[name].shape)}" for name in sorted(tensors if names is None else names))


_ZERO_SHOT = "zero-shot image classification"
_HEADS = {  # The library's class of models by what they do, and the command that evaluates them
    "image classification": ("AutoModelForImageClassification", "audit"),
    "semantic segmentation": ("AutoModelForSemanticSegmentation", "segment"),
    "causal language modelling": ("AutoModelForCausalLM", "text"),
    _ZERO_SHOT: ("AutoModelForZeroShotImageClassification", "audit"),
}
_BACKBONE = "features"  # What a model without a head does; the library has one of every kind


@dataclass(frozen=True)
class Loaded:
    """A network with its weights, what it was built from, its formula and the source of that, and notes for users."""

    model: nn.Module
    checkpoint: Checkpoint
    folder: Folder
    attention: tuple[str, str]
    notes: tuple[str, ...]

    def identity(self, name: str, spec: str, classes: int, **more: Any) -> ModelIdentity:
        names, digest = self.folder.class_names, self.folder.digest
        metadata = {"model_type": self.folder.config["model_type"], "config_sha256": digest}
        return identity_of(
            *(self.checkpoint, name, spec, type(self.model).__name__, self.attention),
            num_classes=classes,
            code_sha256=digest,
            class_names=tuple(map(printable, names)) if names is not None and len(names) == classes else None,
            metadata={**metadata, "transformers": import_transformers(spec).__version__},
            **more,
        )


def build_transformers(source: ModelFile, spec: str, options: InputOptions, task: str) -> Loaded:
    transformers = import_transformers(spec)
    folder = read_folder(source.path)
    checkpoint = read_weights(folder.path)
    auto = getattr(transformers, "AutoModel" if task == _BACKBONE else _HEADS[task][0])
    model_type = str(folder.config["model_type"])
    if model_type not in transformers.CONFIG_MAPPING:
        model_types = list(transformers.CONFIG_MAPPING.keys())
        raise ModelError(f"{folder.path}: {unknown('model_type', model_type, model_types)}"[:400])
    with quiet(f"{folder.path / 'config.json'}"):
        config = transformers.CONFIG_MAPPING[model_type].from_dict(folder.config)
    if type(config) not in auto._model_mapping:
        heads = (head for other, head in _HEADS.items() if other != task)
        able = (command for head, command in heads if type(config) in getattr(transformers, head)._model_mapping)
        remedy = next((f"use robustkit {command}" for command in able), "expected a model with such a head")
        lacks = f"transformers {transformers.__version__} has no {task} of model_type {model_type!r}"
        raise ModelError(f"{folder.path}: {lacks}; {remedy}")
    added = {name: tensor for name, tensor in checkpoint.tensors.items() if _PLACED.fullmatch(name)}
    plain = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in added}
    kinds = auto._model_mapping[type(config)]
    fused = all(getattr(k, "_supports_sdpa", False) for k in (kinds if isinstance(kinds, list | tuple) else (kinds,)))
    config._attn_implementation = "sdpa" if fused else "eager"
    with quiet(f"{folder.path}"), seeded(torch.device("cpu"), 0):
        with Allowance(checkpoint.tensors, folder.path), torch.device("meta"):
            kind = type(auto.from_config(config, trust_remote_code=False))
        pooled = any("pooler." in name for name in plain) or "add_pooling_layer" not in signature(kind).parameters
        arguments = {} if pooled or task != _BACKBONE else {"add_pooling_layer": False}
        arguments |= dict.fromkeys(("output_loading_info", "ignore_mismatched_sizes"), True)
        model, report = kind.from_pretrained(None, config=config, state_dict=plain, dtype=torch.float32, **arguments)
    faults = [
        f"{len(keys)} {what} ({', '.join(sorted(map(_key, keys))[:3])}{', …' if len(keys) > 3 else ''})"
        for what in ("missing", "unexpected", "mismatched")
        if (keys := list(report.get(f"{what}_keys", ())))
    ]
    if faults:
        what = f"does not fit {kind.__name__} as config.json describes it: {'; '.join(faults)}"
        raise CheckpointError(f"{checkpoint.path}: {what}; expected the weights that belong to it")
    metadata = {"attention": folder.config.get(NOTED)}
    looking = model.vision_model if task == _ZERO_SHOT and hasattr(model, "vision_model") else model
    attention = give_attention(looking, options.attention, metadata, added, spec)
    notes = attention_notes(*attention, options.attention, metadata)
    give_added(looking, added, attention[0], checkpoint.path)
    model.eval()
    return Loaded(model, checkpoint, folder, attention, checkpoint.notes + notes)


def _key(entry: Any) -> str:
    if isinstance(entry, str):
        return printable(entry)
    name, shape, expected = entry
    return f"{printable(str(name))} {list(shape)} for {list(expected)}"


def import_transformers(spec: str) -> Any:
    return import_extra("transformers", "hf", spec)


_SHAPES = ((1.7, 2.3), (2.5, 1.4), (0.6, 0.8), (1.3, 1.3))
"""Heights and widths of the images that are tried, in those of the input; each also gets some odd pixels."""
_LEVELS = 3.5  # between two resizes of the library itself there are up to 2, and rounded twice one more


def made_up_images(size: tuple[int, int]) -> list[Image.Image]:
    """Return images of black, white and coloured blocks, as no photograph has them, around (height, width)."""
    draw = np.random.Generator(np.random.PCG64(0))
    images = []
    for place, (tall, wide) in enumerate(_SHAPES):
        height, width = int(size[0] * tall) + place + 1, int(size[1] * wide) + 2 * place + 3
        blocks = draw.choice(np.array([0, 60, 200, 255], np.uint8), (-(-height // 6), -(-width // 6), 3))
        images.append(Image.fromarray(blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]))
    return images


def check_pixels(
    processor: Any, show: Callable[[Image.Image], Tensor], size: tuple[int, int], values: Mapping[str, Any], where: Path
) -> None:
    """Raise CheckpointError unless `show` gives the processor's pixels (1, 3, H, W), for images around `size`."""
    scale = torch.tensor(values["std"])[:, None, None] * 255
    for image in made_up_images(size):
        with quiet(f"{where}: its processor"):
            theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])
        with torch.no_grad():
            ours = show(image)
        kind, of = type(processor).__name__, f"of a picture of {image.height}x{image.width} pixels"
        if theirs.shape != ours.shape:
            made, here = (f"{x.shape[-2]}x{x.shape[-1]}" for x in (theirs, ours))
            what = f"{kind} makes {made} pixels {of} where we would make {here}"
            raise CheckpointError(f"{where}: {what}; this resizing is not supported")
        if not (most := float(((theirs - ours) * scale).abs().max())) <= _LEVELS:
            why = f"{kind} makes other pixels {of} than we would, by up to {most:.0f} of 255 levels"
            raise CheckpointError(f"{where}: {why}; this resizing or normalisation is not supported")


class Logits(nn.Module):
    """The library's model from normalised images to logits alone, (B, K) or (B, K, h, w). size, mode: images are
    resized so first; None for as they come. low, high: black and white once normalised, which no resize leaves.
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
        self.model, self.size, self.mode = model, size, mode
        for name, level in (("low", 0.0), ("high", 1.0)):
            edge = (level - torch.tensor(mean, dtype=torch.float32)) / torch.tensor(std, dtype=torch.float32)
            self.register_buffer(name, edge.view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=self.resized(images)).logits  # type: ignore[no-any-return]

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


class PooledOutput(nn.Module):
    """A model of the library without a head, whose features (B, D) are what it pools, else its first token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images)
        pooled = getattr(output, "pooler_output", None)
        return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)  # type: ignore[no-any-return]


def segments(source: ModelFile) -> bool:
    named = read_folder(source.path).config.get("architectures")
    return isinstance(named, list) and any("Segmentation" in str(name) for name in named)


def load_classifier(source: ModelFile, spec: str, options: InputOptions) -> Classifier:
    if segments(source):
        raise CheckpointError(f"{spec} is a segmenter; evaluate it with robustkit segment, or load_segmenter")
    _only(options, spec)
    if is_zero_shot(source, spec):
        return _load_zero_shot(source, spec, options)
    refuse_text(options, spec)
    loaded = build_transformers(source, spec, options, "image classification")
    config: Any = loaded.model.config
    kind, classes = getattr(config, "problem_type", None), int(config.num_labels)
    if classes < 2 or kind in ("regression", "multi_label_classification"):
        raise CheckpointError(
            f"{source.path}: {classes} output{'s' * (classes != 1)}{f', problem_type {kind}' if kind else ''}; "
            "expected a classifier of two classes or more, of which one is right"
        )
    if options.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {options.num_classes}; check --num-classes")
    classifier = _with_processor(loaded, Logits(loaded.model), classes, source, spec, options)
    height, width = classifier.identity.preprocessing.input_size  # whether it takes what its processor makes
    with quiet(f"{spec}: an image of {height}x{width}"), torch.no_grad():
        logits = classifier(torch.full((1, 3, height, width), 0.5))
    if logits.shape != (1, classes):
        problem = f"{tuple(logits.shape)} for one image; expected (1, {classes}): check id2label of config.json"
        raise ModelError(f"{spec} returned {problem}")
    if not logits.isfinite().all():
        problem = "logits that are not finite for a grey image; check config.json and the weights"
        raise ModelError(f"{spec} returned {problem}")
    return classifier


def is_zero_shot(source: ModelFile, spec: str) -> bool:
    """Whether a folder holds an image tower and a text tower. CheckpointError for one tower alone."""
    import_transformers(spec)
    from transformers.models.auto import modeling_auto

    config = read_folder(source.path).config
    named = config.get("architectures")
    architectures = modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if str(config["model_type"]).endswith(("_vision_model", "_text_model")):
        why = f"a {config['model_type']}, one tower alone"
        raise CheckpointError(f"{source.path}: {why}; expected the whole model, with its image tower and text tower")
    if isinstance(named, list) and named:
        return str(named[0]) in architectures.values()
    return config["model_type"] in architectures


class _ImageTower(nn.Module):
    """The image tower of a model with two, from normalised images to features (B, D). patch: the side of a patch of a
    tower that takes patches, as SigLIP 2's of any shape does; 0 for images."""

    def __init__(self, model: Any, patch: int = 0) -> None:
        super().__init__()
        self.vision_model, self.patch = model.vision_model, patch
        self.projection = getattr(model, "visual_projection", nn.Identity())

    def forward(self, images: Tensor) -> Tensor:
        if not self.patch:
            return self.projection(self.vision_model(pixel_values=images).pooler_output)  # type: ignore[no-any-return]
        rows, columns = (side // self.patch for side in images.shape[-2:])
        cut = images.reshape(len(images), 3, rows, self.patch, columns, self.patch)
        patches = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, N, p · p · 3), rows first
        mask = torch.ones(patches.shape[:2], dtype=torch.int32, device=images.device)
        grid = torch.tensor([[rows, columns]], device=images.device).expand(len(images), 2)
        output = self.vision_model(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=grid)
        return self.projection(output.pooler_output)  # type: ignore[no-any-return]


_TOKENIZERS = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")


def _encoder(loaded: Loaded) -> tuple[Callable[[Sequence[str]], Tensor], bool]:
    """Return the text tower with its tokenizer, as the library's zero-shot pipeline calls them, and whether the form of
    a sentence is open: SigLIP was trained on lower case without punctuation, which its newer tokenizers do not make."""
    path, model = loaded.folder.path, loaded.model
    text: Any = model.config.text_config  # type: ignore[union-attr]
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise CheckpointError(f"{path}: no tokenizer next to config.json; expected {', '.join(_TOKENIZERS[:3])} …")
    reader: Any = import_transformers(str(path)).AutoTokenizer
    with quiet(f"{path}: its tokenizer"):
        tokenizer = reader.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    what = f"the tokenizer has {len(tokenizer)} tokens and the text tower {text.vocab_size}"
    another = f"{path}: {what}; expected the tokenizer that the model was trained with"
    if not 0.9 * text.vocab_size <= len(tokenizer) <= 1.1 * text.vocab_size:
        raise CheckpointError(another)
    long = int(text.max_position_embeddings)
    fixed = "siglip" in str(loaded.folder.config["model_type"])
    example = "A Photo."
    is_open = fixed and tokenizer(example)["input_ids"] != tokenizer(canonical_text(example))["input_ids"]
    how = {"padding": "max_length", "max_length": min(64, long)} if fixed else {"padding": True, "max_length": long}

    def encode(sentences: Sequence[str]) -> Tensor:
        with quiet(f"{path}: its text tower"), torch.no_grad():
            tokens = tokenizer(list(sentences), return_tensors="pt", truncation=True, **how)
            if int(tokens["input_ids"].max()) >= text.vocab_size:
                raise CheckpointError(another)
            output = model.get_text_features(**tokens)  # type: ignore[operator]
        rows: Tensor = getattr(output, "pooler_output", output)
        return rows

    return encode, is_open


def _load_zero_shot(source: ModelFile, spec: str, options: InputOptions, headless: bool = False) -> Classifier:
    """Load an image tower with a head of text (`zero_shot`). headless: without one."""
    prompts = prompts_of(options, spec, headless=headless)
    loaded = build_transformers(source, spec, options, _ZERO_SHOT)
    model: Any = loaded.model
    if not (hasattr(model, "vision_model") and hasattr(model, "get_text_features") and hasattr(model, "logit_scale")):
        what = f"{type(model).__name__} has no image tower apart from its text"
        raise ModelError(f"{source.path}: {what}; expected CLIP, SigLIP, SigLIP 2, or one made like them")
    words = digest_of_files(text_files(source.path), source.path)
    rows, forms, count = None, dict[str, Tensor](), 0
    if prompts is not None:
        version = import_transformers(spec).__version__
        encode, is_open = _encoder(loaded)
        prompts = replace(prompts, form=CANONICAL if is_open and options.text is None else prompts.form)

        def rows_of(form: str) -> Tensor:
            text = replace(prompts, form=form)
            made_of = (loaded.checkpoint.sha256, loaded.folder.digest, words, version, text.digest)
            return kept_rows(made_of, lambda: text.rows(encode))

        rows, count = rows_of(prompts.form), len(prompts.classes)
        forms = {form: rows_of(form) for form in FORMS if is_open and form != prompts.form}
    patch = int(model.config.vision_config.patch_size) if loaded.folder.config["model_type"] == "siglip2" else 0
    network = ZeroShot(_ImageTower(model, patch), rows, *scale_and_bias(model))
    network.forms = forms
    classifier = with_prompts(_with_processor(loaded, network, count, source, spec, options), prompts, words)
    if forms:
        who = "option" if options.text else "family"
        sources = {**classifier.identity.preprocessing_source, "text": who}
        classifier.identity = replace(classifier.identity, preprocessing_source=sources)
    if patch:
        identity = classifier.identity
        side = identity.preprocessing.input_size[0]
        note = f"images are squashed to {side} x {side}; the model's own processor keeps their aspect ratio"
        sources = {**identity.preprocessing_source, "crop_pct": ASSUMED}
        classifier.identity = replace(identity, notes=(*identity.notes, note), preprocessing_source=sources)
    return classifier


def load_features(source: ModelFile, spec: str, options: InputOptions) -> Classifier:
    """Load the features (B, D) of a model of the library: before its head, or what it pools, else its first token."""
    named = read_folder(source.path).config.get("architectures")
    if isinstance(named, list) and any("ImageClassification" in str(name) for name in named):
        return as_features(load_classifier(source, spec, options))
    _only(options, spec)
    if is_zero_shot(source, spec):
        return as_features(_load_zero_shot(source, spec, options, headless=True))
    loaded = build_transformers(source, spec, options, "features")
    return as_features(_with_processor(loaded, PooledOutput(loaded.model), 0, source, spec, options))


def _with_processor(
    loaded: Loaded, network: nn.Module, classes: int, source: ModelFile, spec: str, options: InputOptions
) -> Classifier:
    """Return a network of images as its processor makes them. CheckpointError where that cannot be expressed."""
    processor = _processor(loaded.folder, options, "pil")  # our images are resized by Pillow, too
    settings = {} if processor is None else _settings_of(processor, loaded.folder)
    if processor is not None and "input_size" not in settings:
        why = "its processor leaves images as large as they are (do_resize false), which is not supported"
        raise CheckpointError(f"{source.path}: {why} for classifiers; give it do_resize and a size")
    if processor is not None and hasattr(processor, "max_num_patches"):  # it makes patches, not images
        pass
    elif processor is not None:
        arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
        p = Preprocessing(**arguments)
        where = source.path
        check_pixels(processor, lambda image: _normalised(to_pixels(image, p), settings), p.input_size, settings, where)
    else:
        config = getattr(loaded.model.config, "vision_config", loaded.model.config)
        trained = getattr(config, "image_size", None)
        settings["input_size"] = [trained, trained] if isinstance(trained, int) else list(trained or (224, 224))
    preprocessing, sources, more = resolve_preprocessing(network, options, settings, str(source.path))
    notes = loaded.notes + more
    what: dict[str, Any] = {"preprocessing": preprocessing, "preprocessing_source": sources, "notes": notes}
    return Classifier(network, loaded.identity(source.name, spec, classes, **what))


def transformers_segmenter(source: ModelFile, spec: str, options: InputOptions, tiling: WindowOptions) -> Segmenter:
    _only(options, spec)
    loaded = build_transformers(source, spec, options, "semantic segmentation")
    processor = _processor(loaded.folder, options, "torchvision")  # theirs by torch
    settings = {} if processor is None else _settings_of(processor, loaded.folder)
    size = settings.pop("input_size", None)
    mode = str(settings.get("interpolation", "bilinear"))
    if size and (settings["crop_mode"] != "squash" or settings["crop_pct"] != 1 or mode not in ("bilinear", "bicubic")):
        why = f"its processor cuts images, or resizes them by {mode}, which is not supported for segmenters"
        raise CheckpointError(f"{source.path}: {why}; expected height and width, bilinear or bicubic")
    squashed = tuple(size) if size and tiling.window is None else None
    stated = options.mean or settings["mean"], options.std or settings["std"]
    mean, std = (tuple(each) * 3 if len(each) == 1 else each for each in stated)
    network = Logits(loaded.model, squashed, mode, mean, std)
    if processor is not None and tiling.window is None:

        def show(image: Image.Image) -> Tensor:
            return network.resized(_normalised(pil_to_tensor(image), settings))

        check_pixels(processor, show, squashed or (128, 128), settings, source.path)
    windows, notes = asked_windows(tiling)
    dense, probe = Dense(network, windows), windows.size if windows else tuple(size or (128, 128))
    classes = count_classes(dense, probe)
    if classes < 2:
        raise CheckpointError(f"{source.path}: {classes} output; expected a segmenter of two classes or more")
    if options.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {options.num_classes}; check --num-classes")
    sized = replace(options, img_size=probe)
    preprocessing, sources, more = resolve_preprocessing(network, sized, settings, str(source.path))
    notes = loaded.notes + notes + more
    if squashed:
        notes += (f"images are resized to {squashed[0]}x{squashed[1]} inside the model, as its processor does",)
    if getattr(processor, "do_reduce_labels", False):
        notes += ("its processor counts labels of masks from 1 (do_reduce_labels): class 0 is label 1, 0 is no class",)
    preprocessing = replace(preprocessing, crop_mode="none", crop_pct=1.0, interpolation=mode)
    sources = {name: sources[name] for name in ("mean", "std")}
    what: dict[str, Any] = {"preprocessing": preprocessing, "preprocessing_source": sources, "notes": notes}
    return Segmenter(dense, loaded.identity(source.name, spec, classes, **what))


def _normalised(levels: Tensor, settings: Mapping[str, Any]) -> Tensor:
    mean, std = (torch.tensor(settings[name])[:, None, None] for name in ("mean", "std"))
    return ((to_unit_range(levels) - mean) / std)[None]


def _only(options: InputOptions, spec: str) -> None:
    if options.arch is not None:
        what = "whose config.json defines it"
        raise ModelError(f"--arch {options.arch} does not apply to {spec}, {what}; leave it out")
    if options.img_size is not None:
        raise ModelError(f"--img-size does not apply to {spec}, whose processor sets the size; leave it out")


def _processor(folder: Folder, options: InputOptions, backend: str) -> Any:
    """Return a folder's processor; None where it has none, and the user says how images are normalised."""
    if folder.processor is None:
        if options.mean is None or options.std is None:
            why = "no preprocessor_config.json, so the normalisation is unknown"
            raise CheckpointError(f"{folder.path}: {why}; put it there, or give --mean and --std")
        return None
    reader: Any = import_transformers(str(folder.path)).AutoImageProcessor
    with quiet(f"{folder.path}: its processor"):
        return reader.from_pretrained(str(folder.path), trust_remote_code=False, local_files_only=True, backend=backend)


def _settings_of(processor: Any, folder: Folder) -> dict[str, Any]:
    config = processor.to_dict()
    return {**processor_normalisation(config, folder.path), **resizing(config, type(processor).__name__, folder.path)}
