"""Encode texts by a tokenizer.json, in a process of its own, with bounded memory.

What a file's normaliser and patterns make of a text has no bound, and a fault of the library may end the process. So
this file is run as a program, and needs nothing but the library. Both ways travel frames: eight bytes of length, JSON.
The first frame is the tokenizer.json and the memory that it may take, then each is a text. The answer to a text are its
tokens and where each ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, BinaryIO


def send(pipe: BinaryIO, content: Any) -> None:
    data = json.dumps(content).encode()
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def receive(pipe: BinaryIO) -> Any:
    """Return what a frame holds. EOFError where the other side is gone."""
    length = int.from_bytes(pipe.read(8), "little")
    data = pipe.read(length)
    if not data or len(data) < length:
        raise EOFError
    return json.loads(data)


def _bound(memory: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits, macOS refuses this one
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def main() -> None:
    import tokenizers

    answers, questions = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # whatever else prints must not get between frames
    tokenizer: Any = None
    while True:
        try:
            asked = receive(questions)
        except EOFError:
            return
        try:
            if tokenizer is None:
                _bound(asked["memory"])
                tokenizer = tokenizers.Tokenizer.from_str(asked["tokenizer"])
                tokenizer.no_truncation()
                tokenizer.no_padding()
                answer: Any = {"size": tokenizer.get_vocab_size()}
            elif "token" in asked:
                answer = {"id": tokenizer.token_to_id(asked["token"])}
            else:
                encoding = tokenizer.encode(asked["text"], add_special_tokens=False)
                answer = {"ids": encoding.ids, "ends": [end for _, end in encoding.offsets]}
        except BaseException as fault:  # a panic of the library is no Exception
            lines = str(fault).splitlines() or [""]
            answer = {"fault": f"{type(fault).__name__}: {lines[0][:120]}".removeprefix("Exception: ")}
        send(answers, answer)


if __name__ == "__main__":
    main()
