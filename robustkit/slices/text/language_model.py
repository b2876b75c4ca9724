"""Causal language models: from a spec to a model that takes tokens and says how likely each is to come next.

One safetensors file holds all of it: tensors, and as metadata `task` (text), `arch` (word-transformer), `arch_kwargs`
(the sizes), `attention`, and `vocabulary`, a JSON list of the words in the order of their numbers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from timm.layers import Mlp  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional

from ...attention.apply import get_attention, set_attention
from ...attention.formulas import find_formula
from ...attention.layers import SelfAttention
from ...common.preprocessing import Preprocessing
from ...errors import CheckpointError, DataError, ModelError
from ...models.checkpoint import Checkpoint, load_into, read
from ...models.claims import Allowance, check_arguments, formula_in
from ...models.hugging_face import build_transformers
from ...models.identity import Classifier, ModelIdentity, attention_notes, identity_of
from ...models.input_config import InputOptions
from ...models.specs import ModelFile, find
from ...models.transformers_config import quiet
from .documents import Words
from .tokenizers import FolderTokenizer, Tokenizer, WordTokenizer, check_size

TASK, ARCH = "text", "word-transformer"


@dataclass(frozen=True)
class ModelShape:
    """The shape of a WordModel. context: tokens at most. key: numbers per head, width / heads if None."""

    width: int
    depth: int
    heads: int
    context: int
    hidden: int
    key: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (type(value) is int and value > 0) and (name, value) != ("key", None):
                raise ModelError(f"{name} {value!r} of a word model: expected a whole number above 0")


class CausalBlock(nn.Module):
    """Attention to what came before, and an MLP, each behind a LayerNorm. (B, T, width) to the same."""

    def __init__(self, sizes: ModelShape, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width)
        self.attn: nn.Module = SelfAttention(sizes.width, sizes.heads, key=sizes.key)
        self.norm2 = nn.LayerNorm(sizes.width)
        self.mlp = Mlp(sizes.width, sizes.hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x), is_causal=True))
        return x + self.drop(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class WordModel(nn.Module):
    """Word numbers (B, T), int64, to logits (B, T, V); the embedding is the output layer, too. dropout: in training.
    Raises ModelError for a formula that cannot be causal, or sizes that do not fit.
    """

    def __init__(self, words: int, sizes: ModelShape, attention: str = "standard", dropout: float = 0.0) -> None:
        super().__init__()
        if find_formula(attention).elliptical:
            raise ModelError(
                f"{attention} attention compares the values of all tokens, which would leak future tokens to a "
                "language model; expected"
                " a formula that can be causal, such as quest"
            )
        self.sizes = sizes
        self.words = nn.Embedding(words, sizes.width)
        self.positions = nn.Parameter(torch.empty(sizes.context, sizes.width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(CausalBlock(sizes, dropout) for _ in range(sizes.depth)))
        self.norm = nn.LayerNorm(sizes.width)
        for table in (self.words.weight, self.positions):
            nn.init.trunc_normal_(table, std=0.02)
        set_attention(self, attention)

    def features(self, numbers: Tensor) -> Tensor:
        """Return what the output layer sees, (B, T, width). Raises ModelError for more tokens than the context."""
        tokens = numbers.shape[1]
        if tokens > self.sizes.context:
            raise ModelError(f"{tokens} tokens at once; expected at most the model's context of {self.sizes.context}")
        return self.norm(self.blocks(self.drop(self.words(numbers) + self.positions[:tokens])))  # type: ignore[no-any-return]

    def forward(self, numbers: Tensor) -> Tensor:
        return functional.linear(self.features(numbers), self.words.weight)


@dataclass(frozen=True)
class WordCheckpoint:
    """A WordModel as a file has it, in evaluation mode with frozen parameters, its vocabulary, and the file."""

    name: str
    network: WordModel
    words: Words
    checkpoint: Checkpoint


def word_metadata(network: WordModel, words: Words) -> dict[str, str]:
    sizes = {name: value for name, value in asdict(network.sizes).items() if value is not None}
    return {
        "task": TASK,
        "arch": ARCH,
        "arch_kwargs": json.dumps(sizes),
        "attention": get_attention(network),
        "vocabulary": json.dumps(words.words, ensure_ascii=False),
    }


def load_word_model(spec: str | Path, attention: str | None = None) -> WordCheckpoint:
    """Load a FILE or `zoo:NAME`, running nothing of it. attention: where the file names none; else what its name
    mentions, or standard. Raises CheckpointError for another or damaged file, ModelError for an impossible formula.
    """
    source = find(str(spec))
    checkpoint = read(source.path)
    metadata = checkpoint.metadata
    if (metadata.get("task"), metadata.get("arch")) != (TASK, ARCH):
        kind = metadata.get("arch") or "an unnamed architecture"
        raise CheckpointError(f"{checkpoint.path}: weights of {kind}; expected a model of words ({ARCH})")
    try:
        words = Words(metadata["vocabulary"]) if isinstance(metadata.get("vocabulary"), list) else None
    except DataError as fault:
        raise CheckpointError(f"{checkpoint.path}: {fault}") from None
    if words is None:
        raise CheckpointError(f"{checkpoint.path}: no vocabulary in its metadata; expected a JSON list of words")
    table = checkpoint.tensors.get("words.weight")
    if table is not None and len(table) != len(words):
        raise CheckpointError(
            f"{checkpoint.path}: a vocabulary of {len(words)} words, and weights for {len(table)}; expected as many; "
            "the two are of different models"
        )
    with Allowance(checkpoint.tensors, checkpoint.path):
        formula = metadata.get("attention") or attention or formula_in(checkpoint.path.name) or "standard"
        network = WordModel(len(words), _sizes(checkpoint), str(formula))
    load_into(network, checkpoint)
    return WordCheckpoint(source.name, network.eval().requires_grad_(False), words, checkpoint)


def _sizes(checkpoint: Checkpoint) -> ModelShape:
    kwargs: Any = checkpoint.metadata.get("arch_kwargs")
    names = [field.name for field in fields(ModelShape)]
    if not isinstance(kwargs, dict) or not {*names[:-1]} <= kwargs.keys() <= {*names}:
        raise CheckpointError(
            f"{checkpoint.path}: arch_kwargs is {repr(kwargs)[:80]}; expected {', '.join(names)}; write the file again"
        )
    check_arguments(kwargs, checkpoint.path, any_name=True)
    return ModelShape(**kwargs)


NOTHING = Preprocessing((1, 1), (0.0,), (1.0,), "none", 1.0, "none")  # the preprocessing of an input that is no image
_LONGEST = 1024  # the window of a model that names no context, or a longer one
_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


class OfWords(nn.Module):
    """A model of words: tokens (B, N) to the logits (B, keep, V) of what follows the last `keep` of them."""

    def __init__(self, model: WordModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, keep: int) -> Tensor:
        return functional.linear(self.model.features(tokens)[:, -keep:], self.model.words.weight)


class OfLibrary(nn.Module):
    """A causal language model of transformers; as `OfWords`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor, keep: int) -> Tensor:
        few = {"logits_to_keep": keep} if self._keeps else {}
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, **few).logits
        return logits[:, -keep:]


class LanguageModel(Classifier):
    """A causal language model in evaluation mode; the network takes tokens (B, N) and how many of the last count."""

    def __init__(self, network: nn.Module, identity: ModelIdentity, tokenizer: Tokenizer, context: int) -> None:
        super().__init__(network, identity)
        self.tokenizer, self.context = tokenizer, context

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens, tokens.shape[1])  # type: ignore[no-any-return]


def load_language_model(spec: str | Path, *, attention: str | None = None) -> LanguageModel:
    """Load `hf:DIR` or `hf-hub:ORG/NAME` with its tokenizer, `zoo:NAME`, or the FILE of a model of words. attention: a
    formula; left out, from metadata, else the architecture's. Raises ModelError or CheckpointError, one line.
    """
    source = find(str(spec))
    if source.transformers:
        return _of_library(source, str(spec), attention)
    return _of_words(str(spec), attention)


def _of_words(spec: str, attention: str | None) -> LanguageModel:
    loaded = load_word_model(spec, attention)
    network, file = loaded.network, loaded.checkpoint
    formula = get_attention(network)
    if attention not in (None, formula):
        raise ModelError(
            f"--attention {attention} does not apply to {spec}, which was trained with {formula} attention; leave it "
            "out"
        )
    named = "name" if formula_in(file.path.name) else "default"
    source = "metadata" if "attention" in file.metadata else "option" if attention else named
    identity = identity_of(
        *(file, loaded.name, spec, str(file.metadata["arch"]), (formula, source)),
        num_classes=len(loaded.words),
        preprocessing=NOTHING,
        notes=file.notes + attention_notes(formula, source, attention, file.metadata),
        metadata={name: value for name, value in file.metadata.items() if name != "vocabulary"},
    )
    return LanguageModel(OfWords(network), identity, WordTokenizer(loaded.words), network.sizes.context)


def _of_library(source: ModelFile, spec: str, attention: str | None) -> LanguageModel:
    options = InputOptions(None, attention, None, None, None, None, None, None, None)
    loaded = build_transformers(source, spec, options, "causal language modelling")
    tokenizer = FolderTokenizer(source.path)
    config: Any = loaded.model.config
    check_size(tokenizer, int(config.vocab_size), str(source.path))
    context = next((length for name in _NAMES if isinstance(length := getattr(config, name, None), int)), _LONGEST)
    more = () if tokenizer.begin is None else ("documents begin with the tokenizer's bos_token",)
    identity = loaded.identity(
        source.name, spec, int(config.vocab_size), preprocessing=NOTHING, notes=loaded.notes + more
    )
    code = hashlib.sha256(f"{identity.code_sha256} {tokenizer.digest}".encode()).hexdigest()
    model = LanguageModel(
        OfLibrary(loaded.model), replace(identity, code_sha256=code), tokenizer, min(context, _LONGEST)
    )
    with quiet(f"{spec}: two tokens"), torch.no_grad():
        logits = model(torch.zeros((1, 2), dtype=torch.int64))
    if logits.shape != (1, 2, model.identity.num_classes) or not logits.isfinite().all():
        raise CheckpointError(
            f"{spec} returned {tuple(logits.shape)} for two tokens; expected finite logits of "
            f"(1, 2, {model.identity.num_classes}): check config.json and the weights"
        )
    return model
