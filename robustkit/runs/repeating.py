"""The command of a run as one that a reader may type again: run.json may be someone else's, and say anything."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

COMMANDS = ("audit", "attack", "segment", "series", "text", "features", "cam", "demo")
"""The commands that make runs."""


@dataclass(frozen=True)
class Repeat:
    """The command that made a run. why_not: why it is not offered to be typed again; empty where it is."""

    command: str
    why_not: str


def repeat_of(command: str) -> Repeat:
    """Return the command in run.json, and why a reader should not simply type it again.

    It is offered if it is one of robustkit's, printable, quoted so that a shell sees nothing but words, and names no
    code to run.
    """
    return Repeat(command, _why_not(command))


def _why_not(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not command.isprintable() or shlex.join(words) != command:
        return "run.json has it in a form that no audit writes, and a shell may do something else with it"
    if words[:1] != ["robustkit"] or words[1:2] == [] or words[1] not in COMMANDS:
        return "it is not one of robustkit's own; start the program that made the run again"
    if code := _code(words[2:]):
        return f"it runs code that run.json names ({code}); read that first, and make sure whose it is"
    return ""


def _code(words: Sequence[str]) -> str:
    """Return the option of a command that runs code of its own; empty where there is none."""
    for place, word in enumerate(words):
        name, given, value = word.partition("=")
        value = value if given else "".join(words[place + 1 : place + 2])
        if name in ("--plugin", "--trust-config") or (name in ("--arch", "--ray") and ":" in value):
            return name
    return ""


def without_option(words: Sequence[str], name: str) -> list[str]:
    """Return the words of a command without an option and its value."""
    rest: list[str] = []
    skipped = False
    for word in words:
        if skipped or word.startswith(f"{name}="):
            skipped = False
        elif word == name:
            skipped = True
        else:
            rest.append(word)
    return rest
