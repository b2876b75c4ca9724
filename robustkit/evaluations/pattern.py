"""Parse a condition's text in a rule, and find the conditions of a run that fit it."""

from __future__ import annotations

import math
import re

from ..errors import ProtocolError
from ..protocol.card import number
from ..protocol.condition import ConditionPattern
from .kinds import vocabulary_of


def pattern_of(text: str) -> ConditionPattern:
    """Return the parts of a condition's text, whether it makes sense or not."""
    form = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not form:
        return ConditionPattern(text, text)
    items = [item.strip() for item in re.split(r",(?![^(]*\))", form[2] or "") if item.strip()]
    split = [item.partition("=") for item in items]
    pairs = tuple((key.strip(), value.strip()) for key, equals, value in split if equals)
    what = ",".join(key for key, equals, _ in split if not equals)
    name = form[1].lower()
    special = vocabulary_of(name).read(text.strip(), pattern_of)
    if special is not None:
        return special
    plain = f"{name}({','.join(['='.join(pair) for pair in ((what,), *pairs) if any(pair)])})"
    return ConditionPattern(plain if items else name, name, what, pairs)


def fits(pattern: ConditionPattern, condition: str) -> bool:
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
    return fits(pattern, condition) and fits(pattern_of(condition), pattern.text)


def check_condition(text: str) -> ConditionPattern:
    """Check a condition of a rule and its names, and return it.

    Raises:
        ProtocolError: no such condition, parameter or value.
    """
    pattern = pattern_of(text)
    vocabulary_of(pattern.name).check(pattern, text, check_condition)
    return pattern


def _equal(key: str, wanted: str, actual: str) -> bool:
    if key == "under":
        return fits(pattern_of(wanted), actual)
    if wanted == actual:
        return True
    try:
        return math.isclose(float(number(wanted)), float(number(actual)), rel_tol=1e-9)
    except (ProtocolError, OverflowError):
        return False
