"""A random CLIP in two libraries' layouts, and what these libraries answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from robustkit.data.images import to_pixels

CLASSES, SIDE = ("cat", "dog", "old car"), 32
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "photo", "of", "this", "is", "cat", "dog", "car", "old", "."]
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]


def draw(model: Any) -> Any:
    """Give a model weights whose answers differ from image to image."""
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.2)
    model.logit_scale.data.fill_(2.0)
    if getattr(model, "logit_bias", None) is not None:
        model.logit_bias.data.fill_(-3.0)
    return model.eval()


def write(kind: str, folder: Path) -> None:
    folder.mkdir()
    if kind == "open_clip":
        import open_clip

        vision = {"image_size": SIDE, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
        text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
        model = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
        made = draw(open_clip.CLIP(**model))
        save_file({k: v.contiguous() for k, v in made.state_dict().items()}, folder / "open_clip_model.safetensors")
        said = {"model_cfg": model, "preprocess_cfg": {"mean": MEAN, "std": STD}}
        (folder / "open_clip_config.json").write_text(json.dumps(said))
        return
    import transformers as t
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    text = {**small, "vocab_size": len(WORDS), "max_position_embeddings": 64, **ends}
    vision = {**small, "image_size": SIDE, "patch_size": 8}
    draw(t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    t.CLIPImageProcessor(**sizes, image_mean=MEAN, image_std=STD).save_pretrained(folder)
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"special_tokens": [("<s>", 1), ("</s>", 2)]}
    plain.post_processor = processors.TemplateProcessing(single="<s> $A </s>", **special)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    t.PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=64, **names).save_pretrained(folder)


@cache
def _theirs(kind: str, folder: Path) -> Any:
    if kind == "open_clip":
        import open_clip

        place = f"local-dir:{folder}"
        model, _, transform = open_clip.create_model_and_transforms(place)
        return model.eval(), transform, open_clip.get_tokenizer(place)
    from transformers import pipeline

    return pipeline("zero-shot-image-classification", model=str(folder))


def reference(
    kind: str, folder: Path, image: Image.Image, names: Sequence[str], prompts: Sequence[str] | None = None
) -> Tensor:
    """Return the logits (K,) of the library itself, under one template."""
    template = (prompts or ("a photo of a {}.",))[0]
    with torch.no_grad():
        if kind == "open_clip":
            model, transform, tokenizer = _theirs(kind, folder)
            rows = functional.normalize(model.encode_text(tokenizer([template.format(name) for name in names])), dim=-1)
            found = functional.normalize(model.encode_image(transform(image)[None]), dim=-1)
            return (model.logit_scale.exp() * found @ rows.T)[0]  # type: ignore[no-any-return]
        theirs = _theirs(kind, folder)
        shown = theirs.preprocess(image, list(names), hypothesis_template=template)
        inputs = {name: value for name, value in shown.items() if isinstance(value, Tensor)}
        return theirs.model(**shown["text_inputs"][0], **inputs).logits_per_image[0]  # type: ignore[no-any-return]


def pictures(squares: bool) -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(20):
        sides = (32, 32) if squares else generator.integers(33, 80, 2).tolist()
        yield Image.fromarray(generator.integers(0, 256, (*sides, 3), dtype=np.uint8))


def answers(classifier: Any, image: Image.Image) -> Tensor:
    pixels = to_pixels(image, classifier.identity.preprocessing)
    with torch.no_grad():
        return classifier(pixels[None] / 255)[0]
