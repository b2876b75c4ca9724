"""Say in words how a checkpoint's images became pixels, and which command of a run may be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..common.plugins import built_in
from ..common.preprocessing import exact_numbers, texts_of
from .manifest import CheckpointEntry


def shown_as(entry: CheckpointEntry) -> dict[str, str]:
    """Return what decides the pixels, by its field: `224x224 pixels`, `bicubic`, `crop 0.9`, `mean 0.5`, … Of a
    segmenter its windows stand first and nothing is cropped; of a language model there is nothing else. Where
    predictions were computed elsewhere, that alone is known."""
    if entry.is_elsewhere:
        return {"weights": entry.weights}
    texts = texts_of(entry.preprocessing.to_plain(), exact_numbers)
    if not isinstance(entry.windows, dict | None):
        return texts
    if entry.windows and "tokens" in entry.windows:
        return {"windows": _of_tokens(entry.windows)}
    return {**_windows(entry.windows), **{name: texts[name] for name in ("mean", "std")}}


def _of_tokens(windows: dict[str, object]) -> str:
    size, stride = windows.get("tokens"), windows.get("stride")
    if windows.get("kind") == "strided":
        return f"windows of {size} tokens every {stride}; a token counts in the first window that holds it"
    counts = "the last place of each counts" if stride == 1 else f"the last {stride} places of each count"
    return f"windows of {size} tokens; {counts} and all of the first"


def _windows(windows: dict[str, object] | None) -> dict[str, str]:
    if not windows:
        return {"windows": "whole images at their own size"}
    size, stride = (_sides(windows.get(name)) for name in ("size", "stride"))
    resized = {key: f"{key.replace('_', ' ')} {windows[key]}" for key in ("short_side", "resize") if windows.get(key)}
    return {"windows": f"windows {size} every {stride}", **resized}


def _sides(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def making_commands() -> tuple[str, ...]:
    return ("audit", "attack", "segment", *built_in("tasks"), "cam", "demo")


def why_not_repeated(command: str) -> str:
    """Return why the command in run.json is not offered to be typed again; empty where it is one of robustkit's,
    printable, quoted so that a shell sees nothing but words, and names no code to run."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not command.isprintable() or shlex.join(words) != command:
        return "run.json records it in a form that no audit writes, and a shell may interpret it differently"
    if words[:1] != ["robustkit"] or words[1:2] == [] or words[1] not in making_commands():
        return "it was made by a program, not by the command line; rerun that program"
    if code := _code(words[2:]):
        return f"it would run custom code ({code}); review that code before you run the command"
    return ""


def _code(words: Sequence[str]) -> str:
    """Return the option of a command that runs code of its own; empty where there is none."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(words[place + 1 : place + 2])
        if name in ("--plugin", "--trust-config", "--custom-ops") or (name in ("--arch", "--ray") and ":" in value):
            return name
    return ""


def without_option(words: Sequence[str], name: str) -> list[str]:
    """Return the words of a command without an option and its value."""
    rest, left = list[str](), iter(words)
    for word in left:
        if word == name:
            next(left, None)
        elif not word.startswith(f"{name}="):
            rest.append(word)
    return rest
