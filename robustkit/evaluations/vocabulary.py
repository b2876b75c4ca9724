"""The words of a family of evaluations: what its conditions are called, in rules and in commands. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

from ..common.plugins import Registry
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
ATTACK_NAMES = ("fgsm", "pgd", "spsa", "apgd", "fab", "square", "autoattack", "segpgd")
"""The attacks of the package `attacks`, which loads torch."""
_ATTACKS = "attacks"


def _with_words(value: Any) -> Any:
    if not isinstance(getattr(value, "vocabulary", None), Vocabulary):
        raise TypeError(f"it brings {value!r}; expected an instance of robustkit.evaluations.family.Family")
    return value


EVERY_FAMILY: Registry[Any] = Registry("families", FOLDERS, _with_words, ATTACK_NAMES)
"""The folders of robustkit's families, and the families of plug-ins, by kind of condition."""


def kinds() -> list[str]:
    """Return every kind of condition but the names of attacks."""
    return list(EVERY_FAMILY)


def is_attack(kind: str) -> bool:
    """Whether a kind of condition is the name of an attack: whatever no other family has."""
    return kind not in EVERY_FAMILY


def module_of(kind: str, module: str) -> Any:
    """Return a module of the folder of a kind's family."""
    return import_module(f"{__package__}.{FOLDERS.get(kind, _ATTACKS)}.{module}")


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the words of the conditions of a kind, such as `cam`."""
    plugged = EVERY_FAMILY.plugin(kind)
    words: Vocabulary = EVERY_FAMILY.load(plugged).vocabulary if plugged else module_of(kind, "vocabulary").VOCABULARY
    return words


def kind_of(text: str) -> str:
    """Return the kind of a condition by its text: the first word."""
    return text.partition("(")[0]
