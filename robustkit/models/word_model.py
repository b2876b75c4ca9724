"""A small causal language model of words: a Transformer whose attention has any formula that can be causal.

One safetensors file holds all of it: tensors, and as metadata `task` (text), `arch` (word-transformer), `arch_kwargs`
(the sizes), `attention`, and `vocabulary`, a JSON list of the words in the order of their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from timm.layers import Mlp  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional

from ..attention.apply import get_attention, set_attention
from ..attention.registry import find_formula
from ..attention.self_attention import SelfAttention
from ..common.files import write_whole
from ..data.words import Words
from ..errors import CheckpointError, DataError, ModelError
from .checkpoint import Checkpoint, load_into, read
from .claims import Allowance, check_arguments
from .specs import find
from .trainers import formula_in

TASK, ARCH = "text", "word-transformer"


@dataclass(frozen=True)
class Sizes:
    """The shape of a WordModel. context: tokens that it sees at most. key: numbers per head of queries and keys;
    width / heads where None. hidden: width of the MLPs. Raises ModelError for an impossible size.
    """

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


class Block(nn.Module):
    """Attention to what came before, and an MLP, each behind a LayerNorm. (B, T, width) to the same."""

    def __init__(self, sizes: Sizes, dropout: float) -> None:
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
    """Numbers of words (B, T), int64, to logits (B, T, V) of the word that follows each.

    The embedding of words serves as the output layer, too. dropout: in training, of what is embedded and of each
    branch. Raises ModelError for a formula that cannot be causal, or sizes that do not fit.
    """

    def __init__(self, words: int, sizes: Sizes, attention: str = "standard", dropout: float = 0.0) -> None:
        super().__init__()
        if find_formula(attention).elliptical:
            raise ModelError(
                f"{attention} attention compares the values of all tokens, and would tell a language model what "
                "follows; expected a formula that can be causal, such as quest"
            )
        self.sizes = sizes
        self.words = nn.Embedding(words, sizes.width)
        self.positions = nn.Parameter(torch.empty(sizes.context, sizes.width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(sizes, dropout) for _ in range(sizes.depth)))
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


def metadata_of(network: WordModel, words: Words) -> dict[str, str]:
    """Return what a file says about a model, for `load_word_model`."""
    sizes = {name: value for name, value in asdict(network.sizes).items() if value is not None}
    return {
        "task": TASK,
        "arch": ARCH,
        "arch_kwargs": json.dumps(sizes),
        "attention": get_attention(network),
        "vocabulary": json.dumps(words.words, ensure_ascii=False),
    }


def save_word_model(path: str | Path, network: WordModel, words: Words, facts: Mapping[str, str] | None = None) -> None:
    """Write one whole file. facts: more metadata, for people."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    write_whole(Path(path), save(tensors, {**(facts or {}), **metadata_of(network, words)}))


def load_word_model(spec: str | Path, attention: str | None = None) -> WordCheckpoint:
    """Load a FILE or `zoo:NAME`. Nothing in it runs, and what it claims is bounded by what it holds.

    attention: the formula, where the file names none; without it the one that the file's name mentions, else standard.

    Raises CheckpointError for a file of something else, one that is damaged, or a vocabulary that does not fit;
    ModelError for a formula that is unknown or cannot be causal.
    """
    source = find(str(spec))
    checkpoint = read(source.path)
    said = checkpoint.metadata
    if (said.get("task"), said.get("arch")) != (TASK, ARCH):
        kind = said.get("arch") or "an unnamed architecture"
        raise CheckpointError(f"{checkpoint.path}: weights of {kind}; expected a model of words ({ARCH})")
    try:
        words = Words(said["vocabulary"]) if isinstance(said.get("vocabulary"), list) else None
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
        formula = said.get("attention") or attention or formula_in(checkpoint.path.name) or "standard"
        network = WordModel(len(words), _sizes(checkpoint), str(formula))
    load_into(network, checkpoint)
    return WordCheckpoint(source.name, network.eval().requires_grad_(False), words, checkpoint)


def _sizes(checkpoint: Checkpoint) -> Sizes:
    said: Any = checkpoint.metadata.get("arch_kwargs")
    names = [field.name for field in fields(Sizes)]
    if not isinstance(said, dict) or not {*names[:-1]} <= said.keys() <= {*names}:
        raise CheckpointError(
            f"{checkpoint.path}: arch_kwargs is {repr(said)[:80]}; expected {', '.join(names)}; write the file again"
        )
    check_arguments(said, checkpoint.path, any_name=True)
    return Sizes(**said)
