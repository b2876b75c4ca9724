"""The words of a family of evaluations: what its conditions are called, in rules and in commands. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import ClassVar

from ..protocol.pattern import ConditionPattern


class Vocabulary:
    """The words of one family.

    defaults: what the text of a condition leaves out. telling: parameters without which another condition is meant.
    in_results: whether its conditions stand in the task's table of results. in_means: whether they are part of means
    over corruptions.
    """

    defaults: ClassVar[Mapping[str, str]] = {}
    telling: ClassVar[tuple[str, ...]] = ()
    in_results: ClassVar[bool] = False
    in_means: ClassVar[bool] = False

    def label(self, text: str) -> str:
        """Return a condition's text in a few words, for a column or an axis."""
        return text

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        """Return the parts of a text that is not of the usual form; None where it is. read: of another condition."""
        return None

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError where there is no such condition, parameter or value. other: checks another condition."""

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        """Yield the words of a command that evaluate a condition. other: reads another condition."""
        raise NotImplementedError


FOLDERS = {
    "clean": "clean",
    "corruption": "corruptions",
    **dict.fromkeys(("in-c", "in-c-extra", "segformer-16", "fan-19"), "corruptions"),
    **dict.fromkeys(("noise", "blur", "weather", "digital"), "corruptions"),
    "cam": "maps",
    "stability": "maps",
    "attention": "attention",
}
"""The folder of the family of each kind of condition, of means in results, too: a kind is the first word of a text."""
_ATTACKS = "attacks"


def folder_of(kind: str) -> str:
    """Return the folder of the family of a kind of condition; a kind that is not in `FOLDERS` is an attack."""
    return FOLDERS.get(kind, _ATTACKS)


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the words of the conditions of a kind, such as `cam`."""
    found: Vocabulary = import_module(f"{__package__}.{folder_of(kind)}.vocabulary").VOCABULARY
    return found


def kind_of(text: str) -> str:
    """Return the kind of a condition by its text: the first word."""
    return text.partition("(")[0]
