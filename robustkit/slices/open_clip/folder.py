"""Zero-shot checkpoints in open_clip's layout: a folder of open_clip_config.json, weights, and a tokenizer if any.

open_clip builds the towers and splits text into tokens; files are read by us, and nothing is fetched. Its own ViT keeps
attention inside torch's layer. So the same weights are put into timm's ViT, where formulas and maps work, if both give
the same features of a drawn image; else open_clip's own tower stays, and a note says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn

from ...common.determinism import seeded
from ...common.environment import import_extra
from ...common.files import first_line, json_of, reason_of
from ...common.plugins import digest_of_files
from ...errors import CheckpointError, ModelError
from ...models.checkpoint import load_into, read
from ...models.claims import Allowance
from ...models.identity import Classifier, as_features, attention_notes, give_attention, identity_of
from ...models.input_config import InputOptions, resolve_preprocessing
from ...models.specs import OPEN_CLIP, ModelFile, text_files
from ...models.zero_shot import ZeroShot, kept_rows, prompts_of, scale_and_bias, with_prompts

_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_MOST = 1 << 20  # bytes of a config
_MODES = {"shortest": "center", "squash": "squash"}  # of resizing, as ours are called
_TOKENIZER_OPTIONS = {"clean", "context_length", "strip_sep_token"}
_ALIKE = 1e-4  # of the largest feature


@dataclass(frozen=True)
class _Folder:
    """path: of the folder. model, preprocess: its model_cfg and preprocess_cfg."""

    path: Path
    model: Mapping[str, Any]
    preprocess: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> _Folder:
        file = path / OPEN_CLIP
        try:
            config = json_of(file, _MOST)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: not JSON ({reason_of(error)}); expected open_clip's config") from error
        model, preprocess = (
            config.get(name) if isinstance(config, Mapping) else None for name in ("model_cfg", "preprocess_cfg")
        )
        if not isinstance(model, Mapping) or not isinstance(preprocess, Mapping):
            raise CheckpointError(f"{file}: expected the objects model_cfg and preprocess_cfg")
        folder = cls(path, model, preprocess)
        text, vision = (folder.model.get(name) for name in ("text_cfg", "vision_cfg"))
        if not isinstance(text, Mapping) or not isinstance(vision, Mapping):
            raise CheckpointError(f"{file}: model_cfg has no text_cfg or vision_cfg; expected both towers")
        if text.get("hf_model_name"):
            what = f"its text tower is {str(text['hf_model_name'])[:80]!r} of the Hub, which nothing here fetches"
            raise CheckpointError(f"{file}: {what}; convert the checkpoint to transformers, and give hf:DIR")
        options = text.get("tokenizer_kwargs") or {}
        if not isinstance(options, Mapping) or (strange := sorted(set(options) - _TOKENIZER_OPTIONS)):
            names = ", ".join(strange) if isinstance(options, Mapping) else str(options)
            what = f"tokenizer_kwargs has {names[:80]}, which may name code or files"
            raise CheckpointError(f"{file}: {what}; expected only {', '.join(sorted(_TOKENIZER_OPTIONS))}")
        if (named := vision.get("timm_model_name")) is not None and not (
            isinstance(named, str) and timm.is_model(named)
        ):
            raise CheckpointError(f"{file}: timm_model_name is {str(named)[:80]!r}; expected a network of timm")
        if vision.get("timm_model_pretrained"):
            raise CheckpointError(f"{file}: timm_model_pretrained would fetch other weights; expected false")
        if text.get("hf_tokenizer_name") and not (path / "tokenizer.json").is_file():
            what = f"its tokenizer is {str(text['hf_tokenizer_name'])[:80]!r} of the Hub"
            raise CheckpointError(f"{file}: {what}, which nothing here fetches; put tokenizer.json next to it")
        mode = folder.preprocess.get("resize_mode", "shortest")
        if not isinstance(mode, str) or mode not in _MODES:
            raise CheckpointError(f"{file}: resize_mode {mode!r} is not supported; expected {' or '.join(_MODES)}")
        return folder

    def preprocessing(self, usual: Mapping[str, Any], sides: tuple[int, int]) -> dict[str, Any]:
        """Return how images become pixels. usual: open_clip's mean and std where the config has none. sides: of the
        images that the tower takes, which decide in open_clip, too."""
        settings = {**usual, **{key: value for key, value in self.preprocess.items() if value is not None}}
        mode = settings.get("resize_mode", "shortest")
        interpolation = settings.get("interpolation", "bicubic")
        values = {"mean": settings["mean"], "std": settings["std"], "input_size": list(sides), "crop_pct": 1.0}
        return {**values, "interpolation": interpolation, "crop_mode": _MODES[mode]}


def load_open_clip(source: ModelFile, spec: str, options: InputOptions, features: bool) -> Classifier:
    """Load an image tower with a head of text. features: without one. Raises CheckpointError or ModelError."""
    open_clip = import_extra("open_clip", "clip", spec)
    folder = _Folder.read(source.path)
    prompts = prompts_of(options, spec, headless=features)
    file = next((source.path / name for name in _WEIGHTS if (source.path / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{source.path}: no weights; expected {' or '.join(_WEIGHTS)}")
    checkpoint = read(file, prefixes=False)
    place = f"local-dir:{source.path}"
    with _guarded(source.path), seeded(torch.device("cpu"), 0), Allowance(checkpoint.tensors, file):
        arguments = {"load_weights": False, "pretrained_text": False, "force_image_size": options.img_size}
        model = open_clip.create_model(place, **arguments)
        tensors, notes = _resampled(open_clip, model, checkpoint.tensors)
        sides = _sides(model, folder)
    load_into(model, replace(checkpoint, tensors=dict(tensors)))
    model.eval()
    tower, more = _image_tower(model, folder, tensors, sides)
    notes += more
    attention = give_attention(tower, options.attention, {}, {}, spec)
    words = digest_of_files(text_files(source.path), source.path)
    rows, count = None, 0
    if prompts is not None:
        made_of = (checkpoint.sha256, words, open_clip.__version__, prompts.digest)
        with _guarded(source.path):
            rows = kept_rows(made_of, lambda: prompts.rows(_encoder(open_clip, model, place)))
        count = len(prompts.classes)
    network = ZeroShot(tower, rows, *scale_and_bias(model))
    usual = {"mean": list(open_clip.OPENAI_DATASET_MEAN), "std": list(open_clip.OPENAI_DATASET_STD)}
    config = folder.preprocessing(usual, sides)
    defaulted = {name: "family" for name in usual if folder.preprocess.get(name) is None}  # open_clip's defaults
    if options.img_size is None and folder.model["vision_cfg"].get("image_size") is None:
        defaulted["input_size"] = "family"
    preprocessing, sources, more = resolve_preprocessing(network, options, config, str(source.path), origins=defaulted)
    identity = identity_of(
        *(checkpoint, source.name, spec, type(model).__name__, attention),
        num_classes=count,
        preprocessing=preprocessing,
        preprocessing_source=sources,
        code_sha256=words,
        notes=checkpoint.notes + notes + attention_notes(*attention, options.attention, {}) + more,
        metadata={"open_clip": open_clip.__version__},
    )
    made = with_prompts(Classifier(network, identity), prompts)
    return as_features(made) if features else made


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Let open_clip log nothing, and turn what it raises into one line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except (CheckpointError, ModelError):
        raise
    except Exception as error:  # what a config says may break the library anywhere
        raise CheckpointError(f"{path}: refused by open_clip ({first_line(error)}); check its config") from error
    finally:
        logging.disable(before)


def _encoder(open_clip: Any, model: Any, place: str) -> Callable[[Sequence[str]], Tensor]:
    tokenizer = open_clip.get_tokenizer(place)
    embedding = model.token_embedding if hasattr(model, "token_embedding") else model.text.token_embedding

    def encode(sentences: Sequence[str]) -> Tensor:
        tokens = tokenizer(list(sentences))
        if int(tokens.max()) >= embedding.num_embeddings:
            what = f"its tokenizer makes token {int(tokens.max())} and the text tower has {embedding.num_embeddings}"
            raise CheckpointError(f"{place}: {what}; expected the tokenizer that the model was trained with")
        return model.encode_text(tokens)  # type: ignore[no-any-return]

    return encode


def _resampled(
    open_clip: Any, model: Any, tensors: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
    """Return tensors whose position embeddings fit the model's grid, as open_clip resamples them, and notes."""
    made = dict(tensors)
    open_clip.model.resize_pos_embed(made, model)
    name = "visual.positional_embedding"
    if name not in made or made[name] is tensors[name]:
        return tensors, ()
    return made, (f"position embeddings resampled from {len(tensors[name])} to {len(made[name])} tokens",)


def _image_tower(
    model: Any, folder: _Folder, tensors: Mapping[str, Tensor], sides: tuple[int, int]
) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the image tower, of timm where that is the same, and notes. sides: of its images."""
    tower, config = model.visual, folder.model["vision_cfg"]
    if hasattr(tower, "trunk"):  # timm's already
        return tower, ()
    why = f"a {type(tower).__name__}"
    if "visual.class_embedding" in tensors and "visual.proj" in tensors:
        try:
            with seeded(torch.device("cpu"), 0), torch.no_grad():
                timm_tower = _as_timm(folder, config, tensors, sides)
                image = torch.rand(2, 3, *sides)
                theirs, ours = tower(image), timm_tower(image)
            apart = float((theirs - ours).abs().max() / theirs.abs().max())
            if apart <= _ALIKE:
                return timm_tower, ()
            why = f"in timm's ViT its features differ by {apart:.1g} of the largest"
        except Exception as error:  # options that timm's ViT does not have
            why = first_line(error)
    return tower, (f"open_clip's own image tower ({why}): its attention is not seen, so maps that read it are refused",)


def _sides(model: Any, folder: _Folder) -> tuple[int, int]:
    """Return the size of the images that the tower takes; where it has none, what the config says about pixels."""
    size = getattr(model.visual, "image_size", None) or folder.preprocess.get("size", 224)
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _as_timm(
    folder: _Folder, config: Mapping[str, Any], tensors: Mapping[str, Tensor], sides: tuple[int, int]
) -> nn.Module:
    width = config.get("width", 768)
    quick = "quickgelu_" if folder.model.get("quick_gelu") else ""
    tower: Any = timm.create_model(
        f"vit_base_patch16_clip_{quick}224",
        img_size=sides,
        patch_size=config.get("patch_size", 16),
        embed_dim=width,
        depth=config.get("layers", 12),
        num_heads=width // config.get("head_width", 64),
        mlp_ratio=config.get("mlp_ratio", 4.0),
        num_classes=folder.model["embed_dim"],
    )
    converted = checkpoint_filter_fn({name: tensor.float() for name, tensor in tensors.items()}, tower)
    tower.load_state_dict(converted, strict=True)
    return tower.eval()  # type: ignore[no-any-return]
