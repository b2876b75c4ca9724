"""Find the family of a condition by the first word of its text, and what a rule names. Loads no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from attacks.registry import ATTACKS, DENSE_ATTACKS

from ..common.plugins import Registry, built_in
from ..errors import ProtocolError
from ..protocol.card import parse_number
from ..protocol.condition import ConditionPattern, split_list
from .interface import Named, Place, Vocabulary
from .metrics import Metric, metric_named

FOLDERS = {
    "clean": "clean",
    "corruption": "corruptions",
    **dict.fromkeys(("in-c", "in-c-extra", "segformer-16", "fan-19"), "corruptions"),
    **dict.fromkeys(("noise", "blur", "weather", "digital"), "corruptions"),
    "cam": "maps",
    "stability": "maps",
    "attention": "attention",
    "ledger": "attention.logit_decomposition",
    **dict.fromkeys(("fmn", "ddn"), "attacks.distances"),
    "patch": "attacks.patches",
    "transfer": "attacks.transfer",
    "two-phase": "attacks.two_phase",
    "region-noise": "maps.regions",
    "two-object": "maps.two_objects",
    "counterfactual": "maps.counterfactuals",
}
"""The folder of the family of each kind of condition, including means in results; without those of slices."""
OWN_KINDS = (*FOLDERS, *built_in("families"), "")
"""The kinds of robustkit's families, those of slices among them; the last stands for all attacks."""
ATTACK_NAMES = tuple(name for name in dict.fromkeys((*ATTACKS, *DENSE_ATTACKS)) if name not in FOLDERS)
"""Each is a kind of condition of the folder `attacks`."""
_ATTACKS = "attacks"


def _with_words(value: Any) -> Any:
    if isinstance(value, type) or not isinstance(getattr(value, "words", None), Vocabulary):
        raise TypeError(f"it brings {value!r}; expected an instance of robustkit.evaluations.family.Family")
    if value.name in (*FOLDERS.values(), _ATTACKS, *(entry.load().name for entry in built_in("families").values())):
        raise TypeError(f"its family is called {value.name!r}, as one of robustkit's own; rename it")
    return value


EVERY_FAMILY: Registry[Any] = Registry(
    "families", {**FOLDERS, **built_in("families")}, _with_words, ATTACK_NAMES, same_name=False
)
"""The folders of robustkit's families, and families of slices and plug-ins, by kind of condition; without attacks."""


def is_attack(kind: str) -> bool:
    """Whether a kind of condition is the name of an attack: one that no other family has."""
    return kind not in EVERY_FAMILY


def plugin_family(kind: str) -> Any:
    """Return the family of a kind of condition that is a slice's or a plug-in's; None where it has a folder here."""
    return EVERY_FAMILY[kind] if kind not in FOLDERS and kind in EVERY_FAMILY else None


def module_of(kind: str, name: str) -> Any:
    """Return a module from the folder of the family of a kind."""
    return import_module(f"{__package__}.{FOLDERS.get(kind, _ATTACKS)}.{name}")


def kind_of(text: str) -> str:
    """Return the first word of a condition's text."""
    return text.partition("(")[0]


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the vocabulary of a kind of condition, such as `cam`."""
    family = plugin_family(kind)
    words: Vocabulary = module_of(kind, "condition").VOCABULARY if family is None else family.words
    return words


def vocabularies() -> list[Vocabulary]:
    """Return the vocabulary of robustkit's families and of those of plug-ins that were loaded, once each."""
    return list(dict.fromkeys((*map(vocabulary_of, OWN_KINDS), *(family.words for family in EVERY_FAMILY.loaded))))


def words_of(text: str) -> Vocabulary:
    return vocabulary_of(kind_of(text))


def name_of(text: str, place: Place, manifest: Named) -> str:
    """Return what people call a condition of a run in a place, in a sentence as `under fog`."""
    words = words_of(text)
    return (words.in_sentence if place == "sentence" else "{}").format(words.label(text, place, manifest))


def shows(text: str) -> bool:
    """Whether a condition shows images, on which others can be evaluated; one that only measures does not."""
    words = words_of(text)
    return (words.in_results or words.in_means) and kind_of(text) not in words.results_only


def metric_in(words: Vocabulary, name: str) -> Metric | None:
    """Return the metric of this name that a family has; None where it has none."""
    return metric_named((*words.metrics, *words.derived_metrics), name)


def shares_of(text: str) -> dict[str, float]:
    """Return the conditions whose records a result is a mean over, and the share of each."""
    kind = kind_of(text)
    own = FOLDERS.get(kind) in ("corruptions", "maps")  # their results may be over the records of other conditions
    shares: dict[str, float] = module_of(kind, "condition").shares_of(text) if own else {text: 1.0}
    return shares


def group_of(text: str) -> str:
    """Return the text of the group that is counted and shown together, such as all severities of a corruption."""
    levels = words_of(text).levels
    return re.sub(levels, "", text) if levels else text


def is_over_groups(text: str) -> bool:
    """Whether a result is a mean over several groups of conditions, such as corruptions."""
    return len(set(map(group_of, shares_of(text)))) > 1


def by_words(texts: Iterable[str]) -> list[tuple[Vocabulary, list[str]]]:
    """Return conditions by family, in the order of families; only families that have any."""
    groups: dict[Vocabulary, list[str]] = {words: [] for words in vocabularies()}
    for text in texts:
        groups.setdefault(words_of(text), []).append(text)
    return [(words, some) for words, some in groups.items() if some]


def pattern_of(text: str) -> ConditionPattern:
    """Return the parts of a condition's text, whether it makes sense or not."""
    form = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not form:
        return ConditionPattern(text, text)
    items = split_list(form[2] or "")
    split = [item.partition("=") for item in items]
    pairs = tuple((key.strip(), value.strip()) for key, equals, value in split if equals)
    what = ",".join(key for key, equals, _ in split if not equals)
    name = form[1].lower()
    special = vocabulary_of(name).read(text.strip(), pattern_of)
    if special is not None:
        return special
    plain = f"{name}({','.join(['='.join(pair) for pair in ((what,), *pairs) if any(pair)])})"
    return ConditionPattern(plain if items else name, name, what, pairs)


def matches(pattern: ConditionPattern, condition: str) -> bool:
    """Whether the pattern means a run's condition."""
    other = pattern_of(condition)
    if (pattern.name, pattern.what) != (other.name, other.what):
        return False
    vocabulary, given = vocabulary_of(pattern.name), pattern.given
    theirs = {**vocabulary.defaults, **other.given}
    if any(key in theirs and key not in given for key in vocabulary.telling):
        return False  # without a severity, it means the mean over all
    return all(key in theirs and _equal(key, value, theirs[key]) for key, value in pattern.parameters)


def is_exactly(pattern: ConditionPattern, condition: str) -> bool:
    """Whether a run's condition is this one, with nothing more."""
    return matches(pattern, condition) and matches(pattern_of(condition), pattern.text)


def check_condition(text: str) -> ConditionPattern:
    """Check a condition of a rule and return it. Raises ProtocolError where it, a parameter or value is unknown."""
    pattern = pattern_of(text)
    vocabulary_of(pattern.name).check(pattern, text, check_condition)
    return pattern


def _equal(key: str, wanted: str, actual: str) -> bool:
    if key == "under":
        return matches(pattern_of(wanted), actual)
    if wanted == actual:
        return True
    try:
        return math.isclose(float(parse_number(wanted)), float(parse_number(actual)), rel_tol=1e-9)
    except (ProtocolError, OverflowError):
        return False
