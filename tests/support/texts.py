"""Small language models and documents for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from robustkit.slices.text.documents import Words
from robustkit.slices.text.language_model import ModelShape, WordModel, word_metadata
from robustkit.slices.text.subject import by_word

WORDS = ["the", "a", "cat", "dog", "sees", "hears", "big", "small", "AAA", ","]
PAGE = """
 = The cat =

 the big cat sees the dog , a small dog hears the cat
 = = Its life = =
 the unseen cat hears a dog

 = The dog =

 a small dog sees a bird , the big dog hears the small cat
"""


def save_word_model(path: Path, network: WordModel, words: Words, **facts: str) -> None:
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    save_file(tensors, path, {**facts, **word_metadata(network, words)})


def word_model(path: Path, attention: str = "standard", seed: int = 0, context: int = 16) -> Path:
    """Write a model of words with random weights large enough for its answers to differ from word to word."""
    torch.manual_seed(seed)
    words = Words(["<unk>", *WORDS])
    model = WordModel(len(words), ModelShape(16, 2, 2, context, 16), attention)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.3)
    save_word_model(path, model, words)
    return path


def library_model(folder: Path, kind: str = "gpt2", *, begins: bool = True, grown: int = 0) -> Path:
    """Write a folder with a random GPT-2 or Llama and a byte-level tokenizer of few merges. grown: further rows of the
    embedding.
    """
    import tokenizers
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([PAGE], trainer)
    special: dict[str, Any] = {"bos_token": "<s>"} if begins else {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    size = tokenizer.get_vocab_size() + grown
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    else:
        config = transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.2)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def probability(model: Any, history: Sequence[int], token: int) -> float:
    """Return log p(token | history), asked alone."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(history)]))[0, -1]
    return float(logits.double().log_softmax(-1)[token])


def slow_nll(
    model: Any, original: str, shown: str, window: int, stride: int, kind: str = "strided"
) -> tuple[int, float]:
    """Return tokens and NLL of a document by the definition, token by token, each with a pass of its own.

    The history of the j-th token of word i are the shown words before word i, and the first tokens of word i itself.
    Of it as many tokens are seen as the window that first holds the place leaves; where a changed word has several
    tokens, only with a window that holds all.
    """
    before: list[int] = [] if model.tokenizer.begin is None else [model.tokenizer.begin]
    total = len(before) + len(model.tokenizer.encode(shown)[0])
    tokens, nll = 0, 0.0
    for wanted, seen in zip(by_word(model.tokenizer, original), by_word(model.tokenizer, shown), strict=True):
        for place, token in enumerate(wanted):
            history = [*before, *wanted[:place]]
            if history:
                nll -= probability(model, history[window_start(len(history), window, stride, total, kind) :], token)
                tokens += 1
        before += seen
    return tokens, nll


def window_start(place: int, window: int, stride: int, total: int, kind: str) -> int:
    """Return where the window begins that predicts the token at a place of a text of `total` tokens."""
    if kind == "strided":  # the first that holds it
        return stride * max(0, -(-(place - window + 1) // stride))
    if place <= window:
        return 0
    stop = min(total - 1, window + stride * -(-(place - window) // stride))
    return stop - window
