"""Zero-shot classifiers: an image tower, and a head that is text.

A class is a few sentences: every template with its name in place of `{}`. The text tower makes a row of each; rows are
brought to length 1, averaged over the templates, and brought to length 1 again (Radford et al., 2021). The logits are

    scale · cos(image, class) + bias

with scale and bias as the model has them. So whatever works on a classifier works here; another class list or another
template is another model. Rows of text are computed once: they are kept, by a digest of all that they are made of, in
the folder that ROBUSTKIT_CACHE names, else in robustkit of the user's cache.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional

from ..common.environment import import_extra
from ..common.files import first_line, reason_of, text_of, write_whole
from ..data.class_names import CIFAR10, descriptions, printable, synsets
from ..errors import CheckpointError, ModelError, RobustkitError, unknown
from .identity import Classifier
from .input_config import InputOptions

ZERO_SHOT = "zero-shot"  # the task that metadata of a file with two towers names
SIMPLE = ("a photo of a {}.",)
_APART = {"n02012849": "crane bird", "n03126707": "construction crane", "n03710721": "tank suit"}
"""Classes of ImageNet whose first lemma is another one's, too."""
WRITTEN, CANONICAL = "written", "canonical"
FORMS = (WRITTEN, CANONICAL)
"""How sentences reach a tokenizer: as they stand, or in lower case and without punctuation."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LOG = logging.getLogger(__name__)
_MOST = 25_000  # classes of a file, and templates
_LONGEST = 500  # characters of a sentence
_BATCH = 64  # sentences that go through a text tower at once
Words = str | tuple[str, ...]  # a file or the name of a list, or the words themselves
Encode = Callable[[Sequence[str]], Tensor]  # sentences to rows (N, D)


@dataclass(frozen=True)
class Prompts:
    """What a text head is made of. classes: names in the order of the outputs. templates: each with one `{}` or more.
    of_classes, of_templates: what the user called them. form: of the sentences, one of `FORMS`."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    of_classes: str
    of_templates: str
    form: str = WRITTEN

    @classmethod
    def of(cls, classes: Words | None, prompts: Words | None, usual: Sequence[str] = ()) -> Prompts:
        """Read a class list and templates, or take given ones. usual: the classes that a checkpoint names. Raises
        ModelError."""
        if classes is None and not usual:
            why = "a zero-shot model takes its classes from text"
            raise ModelError(
                f"{why}; give --classes FILE (a name per line), --classes imagenet-openai, imagenet or cifar10"
            )
        for name, value in (("classes", classes), ("prompts", prompts)):
            if isinstance(value, tuple):
                _check_words(name, value)
        words = classes or "of the checkpoint", prompts or "simple"
        template_words, template_source = ("given" if isinstance(word, tuple) else word for word in words)
        names = tuple(usual) if classes is None else read_classes(classes)
        return cls(names, read_templates("simple" if prompts is None else prompts), template_words, template_source)

    @property
    def digest(self) -> str:
        form = [] if self.form == WRITTEN else [self.form]
        return hashlib.sha256(json.dumps([self.classes, self.templates, *form]).encode()).hexdigest()

    @property
    def note(self) -> str:
        """What the head is, in a line."""
        count = len(self.templates)
        how = f"template {self.templates[0]!r}" if count == 1 else f"{count} templates ({self.of_templates})"
        averaged = ", averaged for each class; attacks take the loss of the averaged logits" if count > 1 else ""
        plain = ", in lower case without punctuation" if self.form == CANONICAL else ""
        return f"zero-shot: {len(self.classes)} classes ({self.of_classes}), {how}{plain}{averaged}"

    def rows(self, encode: Encode) -> Tensor:
        """Return the rows of the classes (K, D), of length 1, from a text tower."""
        every = [template.replace("{}", name) for name in self.classes for template in self.templates]
        every = list(map(canonical_text, every)) if self.form == CANONICAL else every
        with torch.no_grad():
            parts = [encode(every[at : at + _BATCH]).float() for at in range(0, len(every), _BATCH)]
        rows = functional.normalize(torch.cat(parts), dim=-1)
        return functional.normalize(rows.view(len(self.classes), len(self.templates), -1).mean(dim=1), dim=-1)


def canonical_text(sentence: str) -> str:
    """Return a sentence in lower case, without punctuation, words apart by one blank, as SigLIP's training had it
    (big_vision's `canonicalize_text`)."""
    plain = sentence.replace("_", " ").translate(_NO_PUNCTUATION)
    return " ".join(plain.lower().split())


def _check_words(name: str, words: tuple[str, ...]) -> None:
    """Raise ModelError for words that are none, or not what a file of them could hold."""
    faults = [word for word in words if not (isinstance(word, str) and word.strip() and len(word) <= _LONGEST)]
    faults += [word for word in words if name == "prompts" and isinstance(word, str) and "{}" not in word]
    if not words or faults or len(set(words)) < len(words):
        what = "texts, each once" + (", with {} for the class" if name == "prompts" else "")
        raise ModelError(f"{name}={list(words)[:3]!r}: expected {what}")


def read_classes(words: Words) -> tuple[str, ...]:
    """Return the class names of a file, of `imagenet` (the first WordNet lemma of each class), `imagenet-openai` (the
    names behind published zero-shot figures, which open_clip has) or `cifar10`."""
    if isinstance(words, tuple):
        return words
    if words == "cifar10":
        return CIFAR10
    if words == "imagenet":
        lemmas = zip(synsets(), descriptions(synsets()), strict=True)
        return tuple(_APART.get(wnid, name.split(",")[0]) for wnid, name in lemmas)
    if words == "imagenet-openai":
        open_clip = import_extra("open_clip", "clip", "--classes imagenet-openai", ", or give a file")
        return tuple(open_clip.IMAGENET_CLASSNAMES)
    names = _lines(words, "--classes", ("imagenet", "imagenet-openai", "cifar10"))
    if len(names) < 2:
        raise ModelError(f"--classes {words}: {len(names)} class; expected two or more, one per line")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ModelError(f"--classes {words}: {twice!r} is listed twice; expected each class once")
    return names


def read_templates(words: Words) -> tuple[str, ...]:
    """Return the templates of a file, or of `simple` or `clip-80` (of open_clip). Raises ModelError."""
    if isinstance(words, tuple) or "{}" in words:
        return words if isinstance(words, tuple) else (words,)
    if words == "simple":
        return SIMPLE
    if words == "clip-80":
        open_clip = import_extra("open_clip", "clip", "--prompts clip-80", ", or give a file")
        return tuple(template("{}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES)
    templates = _lines(words, "--prompts", ("simple", "clip-80"))
    if without := [template for template in templates if "{}" not in template]:
        raise ModelError(f"--prompts {words}: {without[0]!r} has no {{}}; expected one in each template, for the class")
    return templates


def _lines(name: str, option: str, names: Sequence[str]) -> tuple[str, ...]:
    path = Path(name)
    if not path.is_file():
        remedy = f"expected a file with one per line, {' or '.join(names)}"
        raise ModelError(f"{option} {name}: {unknown('file', name, names, remedy=remedy)}")
    try:
        text = text_of(path, _MOST * _LONGEST)
    except (OSError, ValueError) as error:
        raise ModelError(f"{option} {name}: cannot be read ({reason_of(error)}); expected text in UTF-8") from error
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not 0 < len(lines) <= _MOST or any(len(line) > _LONGEST or printable(line) != line for line in lines):
        what = f"1 to {_MOST} lines of at most {_LONGEST} printable characters"
        raise ModelError(f"{option} {name}: {len(lines)} lines; expected {what}")
    return lines


def kept_rows(made_of: Sequence[str | None], make: Callable[[], Tensor]) -> Tensor:
    """Return rows from the user's cache, or make them and keep them there, where it can be written. made_of: digests of
    all that they depend on."""
    digest = hashlib.sha256(json.dumps(["rows of text, 1", *made_of]).encode()).hexdigest()
    path = cache_folder() / f"{digest}.safetensors"
    with suppress(Exception):  # absent or broken: they are made again
        return from_bytes(path.read_bytes())["rows"]
    rows = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_bytes({"rows": rows.contiguous()}))
    except (OSError, RobustkitError) as fault:  # they are made again next time
        _LOG.info("rows of text are not kept in %s: %s", path.parent, reason_of(fault))
    return rows


def cache_folder() -> Path:
    folder, shared = os.environ.get("ROBUSTKIT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(folder) if folder else Path(shared or Path.home() / ".cache") / "robustkit"


class ZeroShot(nn.Module):
    """Images (B, 3, H, W), normalised, to logits (B, K).

    tower: images to features (B, D). rows: of the classes (K, D), of length 1; without them, the features are returned,
    of length 1. forms: rows of sentences in other forms, by these, which a set-up check tries.
    """

    rows: Tensor | None
    forms: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(self, tower: nn.Module, rows: Tensor | None, scale: float, bias: float = 0.0) -> None:
        super().__init__()
        self.tower, self.scale, self.bias = tower, scale, bias
        self.register_buffer("rows", rows)

    def reset_classifier(self, num_classes: int) -> None:
        """Take the text off, as timm's networks take their head off."""
        self.rows = None

    def reading(self, form: str) -> ZeroShot:
        """Return the same model with rows of sentences in another form; itself for its own."""
        if form not in self.forms:
            return self
        other = copy.copy(self)
        assert self.rows is not None
        other._buffers = {**self._buffers, "rows": self.forms[form].to(self.rows.device)}
        return other

    def embed(self, images: Tensor) -> Tensor:
        """Return the images' features (B, D), of length 1."""
        return functional.normalize(self.tower(images), dim=-1)

    def forward(self, images: Tensor) -> Tensor:
        features, rows = self.embed(images), self.rows
        if rows is None:
            return features
        logits: Tensor = self.scale * features @ rows.to(features.dtype).T + self.bias
        return logits


def scale_and_bias(model: Any) -> tuple[float, float]:
    """Return what a model multiplies cosines by, and adds to them; it learned the scale as a logarithm."""
    bias = getattr(model, "logit_bias", None)
    return float(model.logit_scale.detach().exp()), 0.0 if bias is None else float(bias.detach())


def with_prompts(classifier: Classifier, prompts: Prompts | None, tokenizer: str = "") -> Classifier:
    """Add the text of the head to a classifier's identity: with another text, or another tokenizer (its digest), it is
    another model. Without prompts it has no head. Raises ModelError where it cannot be asked."""
    identity = classifier.identity
    try:
        with torch.no_grad():
            logits = classifier(torch.full((1, 3, *identity.preprocessing.input_size), 0.5))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        size = " x ".join(map(str, identity.preprocessing.input_size))
        why = f"fails on an image of {size} pixels ({first_line(error)}); check its config"
        raise ModelError(f"{identity.spec} {why}") from error
    if not logits.isfinite().all():
        raise ModelError(f"{identity.spec} gives numbers that are not finite for a grey image; check the weights")
    if prompts is None:
        return classifier
    details = {"classes": prompts.of_classes, "prompts": prompts.of_templates, "text_sha256": prompts.digest}
    details |= {"text": prompts.form} if prompts.form != WRITTEN else {}
    classifier.identity = replace(
        identity,
        code_sha256=hashlib.sha256(f"{identity.code_sha256} {tokenizer} {prompts.digest}".encode()).hexdigest(),
        class_names=prompts.classes,
        notes=(*identity.notes, prompts.note),
        metadata={**identity.metadata, **details},
    )
    return classifier


def prompts_of(
    options: InputOptions, spec: str, usual: Sequence[str] = (), headless: bool = False, form: str = WRITTEN
) -> Prompts | None:
    """Return the text of a head, None for a model without. usual: the classes that a checkpoint names. form: of
    sentences, where the user states none. Raises ModelError, also for options of other networks."""
    if options.arch is not None:
        raise ModelError(f"--arch {options.arch} does not apply to {spec}, whose files define it; leave it out")
    if headless:
        refuse_text(options, spec)
        return None
    if options.text not in (None, *FORMS):
        raise ModelError(f"--text {options.text}: expected {' or '.join(FORMS)}")
    prompts = replace(Prompts.of(options.classes, options.prompts, usual), form=options.text or form)
    if options.num_classes not in (None, len(prompts.classes)):
        raise ModelError(f"--num-classes {options.num_classes}, but {len(prompts.classes)} classes are given as text")
    return prompts


def refuse_text(options: InputOptions, spec: str) -> None:
    """Raise ModelError where text is given for a head that is not made of it."""
    for option in ("classes", "prompts", "text"):
        if (value := getattr(options, option)) is not None:
            why = "whose head is not made of text (CLIP and SigLIP have such heads)"
            raise ModelError(f"--{option} {value} does not apply to {spec}, {why}; leave it out")


_WORD = re.compile(r"[a-z0-9]+")
PAD, UNKNOWN = "<pad>", "<unknown>"


class WordTower(nn.Module):
    """Sentences to rows (N, D), by a transformer over words: the text tower of the shipped zero-shot checkpoint.

    words: the vocabulary; others are `<unknown>`. length: words of a sentence that are read.
    """

    def __init__(self, words: Sequence[str], *, width: int, depth: int, heads: int, length: int, features: int) -> None:
        super().__init__()
        self.places = {word: place for place, word in enumerate((PAD, UNKNOWN, *words))}
        self.length = length
        self.words = nn.Embedding(len(self.places), width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = partial(nn.TransformerEncoderLayer, width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.ModuleList(layer(norm_first=True, activation="gelu") for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, features, bias=False)

    def tokens(self, sentences: Sequence[str]) -> Tensor:
        """Return the places of words (N, L). Raises ModelError for a sentence of which no word is known."""
        rows = []
        for sentence in sentences:
            words = _WORD.findall(sentence.lower())[: self.length]
            if not any(word in self.places for word in words):
                raise ModelError(f"{sentence[:80]!r}: none of its words is among the {len(self.places) - 2} known ones")
            row = [self.places.get(word, self.places[UNKNOWN]) for word in words]
            rows.append(row + [0] * (self.length - len(row)))
        return torch.tensor(rows, device=self.positions.device)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != 0
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x, src_key_padding_mask=~mask)
        mean = (self.norm(x) * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return self.head(mean)  # type: ignore[no-any-return]

    def encode(self, sentences: Sequence[str]) -> Tensor:
        return self(self.tokens(sentences))  # type: ignore[no-any-return]


def word_tower(config: Any, tensors: dict[str, Tensor], where: str) -> WordTower:
    """Return the text tower that a file's metadata describes, with its weights. Raises CheckpointError."""
    sizes = ("width", "depth", "heads", "length", "features")
    words = config.get("words") if isinstance(config, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) and _WORD.fullmatch(word) for word in words):
        raise CheckpointError(f"{where}: metadata text_tower has no words; expected a list of lower-case words")
    if not all(isinstance(config.get(size), int) and 0 < config[size] <= 4096 for size in sizes):
        raise CheckpointError(f"{where}: metadata text_tower lacks {', '.join(sizes)}; expected 1 to 4096 for each")
    if config["width"] % config["heads"] or config["depth"] > 48 or len(words) > _MOST:
        raise CheckpointError(f"{where}: metadata text_tower: {config['heads']} heads of {config['width']} channels")
    tower = WordTower(words, **{size: config[size] for size in sizes})
    try:
        tower.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise CheckpointError(
            f"{where}: its text tower does not fit its metadata ({reason_of(error)[:200]})"
        ) from error
    return tower.eval()
