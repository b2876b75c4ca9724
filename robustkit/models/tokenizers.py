"""Texts into tokens: words of our own models, and the tokenizer.json of a transformers checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..common.files import json_of, reason, text_of
from ..data.documents import WORD
from ..data.words import Words
from ..errors import CheckpointError, ModelError

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_LARGEST, _SETTINGS = 1 << 26, 1 << 22  # bytes
_SPARE, _FEW = 1.05, 8  # rows of an embedding may be rounded up, as many are to a multiple of 64 or 128


class Tokenizer(Protocol):
    """size: of the vocabulary. begin: the token that a text begins with; unknown: the one that stands for what the
    vocabulary lacks; None where there is none. digest: of it all, hex: two models with the same one can be compared
    token by token.
    """

    size: int
    begin: int | None
    unknown: int | None
    digest: str

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of a text, and the place in it where each ends, in characters."""


class WordTokenizer:
    """A token for each word that stands between blanks; a text begins with its first word."""

    begin: int | None = None
    unknown: int | None = 0

    def __init__(self, words: Words) -> None:
        self.words, self.size, self.digest = words, len(words), words.digest

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        found = list(WORD.finditer(text))
        return self.words.encode(each[0] for each in found).tolist(), [each.end() for each in found]


class FolderTokenizer:
    """The tokenizer.json of a folder, read by the library `tokenizers`, which executes nothing of it.

    A text begins with the token that tokenizer_config.json calls bos_token, if it names one.
    """

    def __init__(self, folder: Path) -> None:
        tokenizers, file = _library(folder), folder / FILE
        try:
            content = text_of(file, _LARGEST)
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as fault:  # the library raises a bare Exception
            why = reason(fault).splitlines()[0][:120]
            raise CheckpointError(
                f"{file}: no tokenizer that can be read ({why}); put it there with tokenizer.save_pretrained(FOLDER)"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = int(self._tokenizer.get_vocab_size())
        begin, unknown = _named(folder / SETTINGS, "bos_token"), _named(folder / SETTINGS, "unk_token")
        self.begin: int | None = None if begin is None else self._tokenizer.token_to_id(begin)
        self.unknown: int | None = None if unknown is None else self._tokenizer.token_to_id(unknown)
        self.digest = hashlib.sha256(f"{begin}\n{content}".encode()).hexdigest()

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, [end for _, end in found.offsets]


def _library(folder: Path) -> Any:
    try:
        import tokenizers
    except ImportError as fault:
        raise ModelError(
            f"{folder}: its tokenizer needs the library tokenizers, which is not installed ({fault}); install it: pip "
            'install ".[text]" in a clone of this project'
        ) from fault
    return tokenizers


def _named(file: Path, key: str) -> str | None:
    """Return the text of a special token, as the settings of a tokenizer name it; None where they do not."""
    if not file.is_file():
        return None
    try:
        said = json_of(file, _SETTINGS)
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"{file}: not JSON ({reason(fault)}); expected the settings of a tokenizer") from None
    token = said.get(key) if isinstance(said, Mapping) else None
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def check_size(tokenizer: Tokenizer, rows: int, where: str) -> None:
    """Raise CheckpointError where a tokenizer is of another vocabulary than the model: it has more tokens than the
    `rows` of its embedding, or far fewer.
    """
    if not tokenizer.size <= rows <= _SPARE * tokenizer.size + _FEW:
        raise CheckpointError(
            f"{where}: its tokenizer has {tokenizer.size} tokens, and the model {rows}; expected the tokenizer that "
            "the model was trained with"
        )
