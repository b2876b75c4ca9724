"""Texts into tokens: words of our own models, and the tokenizer.json of a transformers checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Any, Protocol

from ...common.files import json_of, reason_of, text_of
from ...errors import CheckpointError, ModelError
from . import tokenizer_process
from .documents import WORD, Words

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
MEMORY = 4 << 30  # bytes of address space for a tokenizer; the largest vocabularies take an eighth
_LARGEST, _SETTINGS = 1 << 26, 1 << 22  # bytes
_PATIENCE, _PACE = 60.0, 10_000.0  # seconds for any text, and letters in one more; a thousandth of the usual pace
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
        matches = list(WORD.finditer(text))
        return self.words.encode(each[0] for each in matches).tolist(), [each.end() for each in matches]


class FolderTokenizer:
    """A folder's tokenizer.json, read by `tokenizers`, which executes nothing of it, in a process of its own; texts
    begin with tokenizer_config.json's bos_token, if any. Raises CheckpointError for none, or one too greedy for a text.
    """

    def __init__(self, folder: Path) -> None:
        _library(folder)
        file = folder / FILE
        try:
            content = text_of(file, _LARGEST)
            self._process = _Process(content)
        except (OSError, ValueError, _NoAnswerError) as fault:
            raise CheckpointError(
                f"{file}: no tokenizer that can be read ({reason_of(fault)[:160]}); put it there with "
                "tokenizer.save_pretrained(FOLDER)"
            ) from None
        self.file, self.size = file, self._process.size
        begin, unknown = _named(folder / SETTINGS, "bos_token"), _named(folder / SETTINGS, "unk_token")
        self.begin: int | None = None if begin is None else self._process.ask(token=begin)["id"]
        self.unknown: int | None = None if unknown is None else self._process.ask(token=unknown)["id"]
        self.digest = hashlib.sha256(f"{begin}\n{content}".encode()).hexdigest()

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        try:
            answer = self._process.ask(text=text)
        except _NoAnswerError as fault:
            raise CheckpointError(
                f"{self.file}: it cannot encode a text of {len(text)} characters ({fault}); give the model's own "
                "tokenizer, without steps that make a text many times longer or patterns that repeat in themselves"
            ) from None
        return answer["ids"], answer["ends"]


class _NoAnswerError(Exception):
    """Why a tokenizer gives no tokens."""


class _Process:
    """A process that encodes texts by a tokenizer.json, started again where one text ended it."""

    def __init__(self, content: str) -> None:
        self._content, self._lock = content, Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self.size = int(self._start()["size"])

    def __reduce__(self) -> tuple[type[_Process], tuple[str]]:
        return _Process, (self._content,)

    def ask(self, **question: str) -> dict[str, Any]:
        """Return the answer to a text or a token. Raises _NoAnswerError."""
        with self._lock:
            if self._running is None:
                self._start()
            return self._answer(question, _PATIENCE + len(question.get("text", "")) / _PACE)

    def _start(self) -> dict[str, Any]:
        run = "import runpy, sys; sys.path[:] = sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"
        words = [sys.executable, "-I", "-c", run, tokenizer_process.__file__, *filter(None, sys.path)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
        self._running = process = subprocess.Popen(words, env={**os.environ, **quiet}, **pipes)
        weakref.finalize(self, _end, process)
        return self._answer({"tokenizer": self._content, "memory": MEMORY}, _PATIENCE)

    def _answer(self, question: object, seconds: float) -> dict[str, Any]:
        process: Any = self._running
        late = Event()

        def stop() -> None:
            late.set()
            process.kill()

        clock = Timer(seconds, stop)
        clock.daemon = True
        clock.start()
        try:
            tokenizer_process.send(process.stdin, question)
            answer: dict[str, Any] = tokenizer_process.receive(process.stdout)
        except BaseException as fault:  # also an interrupt, after which an answer would be that to another question
            self._running = None
            _end(process)
            if not isinstance(fault, EOFError | OSError):
                raise
            limit = f"more than {MEMORY >> 20} MiB of memory, or its library broke down"
            raise _NoAnswerError(f"no answer within {seconds:.0f} s" if late.is_set() else limit) from None
        finally:
            clock.cancel()
        if "fault" in answer:
            raise _NoAnswerError(answer["fault"])
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(OSError):
            pipe.close()


def _library(folder: Path) -> None:
    try:
        import tokenizers  # noqa: F401 - by the other process
    except ImportError as fault:
        raise ModelError(
            f"{folder}: its tokenizer needs the library tokenizers, which is not installed ({fault}); install it: pip "
            'install ".[text]" in a clone of this project'
        ) from fault


def _named(file: Path, key: str) -> str | None:
    """Return the text of a special token, as the settings of a tokenizer name it; None where they do not."""
    if not file.is_file():
        return None
    try:
        settings = json_of(file, _SETTINGS)
    except (OSError, ValueError) as fault:
        raise CheckpointError(f"{file}: not JSON ({reason_of(fault)}); expected the settings of a tokenizer") from None
    token = settings.get(key) if isinstance(settings, Mapping) else None
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def check_size(tokenizer: Tokenizer, rows: int, where: str) -> None:
    """Raise CheckpointError where a tokenizer has more tokens than an embedding has `rows`, or far fewer."""
    if not tokenizer.size <= rows <= _SPARE * tokenizer.size + _FEW:
        raise CheckpointError(
            f"{where}: its tokenizer has {tokenizer.size} tokens, and the model {rows}; expected the tokenizer that "
            "the model was trained with"
        )
