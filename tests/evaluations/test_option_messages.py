"""A value of the wrong type is refused in one line, whichever option it is for: what was given, what is expected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks.evaluate import attacks_of, defaults_of, parse_condition
from robustkit.evaluations.condition import EVERY_FAMILY, check_condition, vocabulary_of
from robustkit.evaluations.corruptions import FROST
from robustkit.evaluations.maps import OPTIONS, SHARED, method_names, needs_gradients
from robustkit.protocol.card import load_card

CARD = load_card("standard")
CORRUPTION = ("severity", "preset", "variant", "source")


def every_option() -> Iterator[tuple[str, str, str]]:
    """Yield the form of a condition with a place for a value, the name of the option, and its usual value."""
    for attack in attacks_of(CARD):
        yield from ((f"{attack}({key}={{}})", key, str(usual)) for key, usual in defaults_of(attack, CARD).items())
    for method in method_names():
        yield from ((f"cam({method},{key}={{}})", key, "") for key in (*SHARED, *OPTIONS.get(method, {})))
    for corruption, more in (("fog", ()), (FROST, ("texture",))):
        yield from ((f"corruption({corruption},{key}={{}})", key, "") for key in (*CORRUPTION, *more))
    for kind in EVERY_FAMILY.entries:
        if kind not in attacks_of(CARD):
            first = f"{kind.removesuffix('-of')}(agcam,of=road," if kind.endswith("-of") else f"{kind}("
            keys = (key for key in vocabulary_of(kind).parameters if key not in ("map", "of"))  # names, looked up later
            yield from ((f"{first}{key}={{}})", key, "") for key in keys)


@pytest.mark.parametrize(("form", "key", "usual"), [pytest.param(*each, id=each[0]) for each in every_option()])
def test_a_value_of_the_wrong_type_is_one_line(form: str, key: str, usual: str) -> None:
    text = form.format("banana")
    with pytest.raises(ProtocolError) as fault:
        parse_condition(text, CARD) if usual else check_condition(text)
    said = str(fault.value)
    assert "banana" in said and key in said and ("expected " in said or "known: " in said) and "\n" not in said
    assert key in ("eps",) or "1/255" not in said.partition("expected")[2]  # which no other option looks like


def test_which_methods_need_gradients() -> None:
    assert all(map(needs_gradients, ("agcam", "grad-cam", "integrated-gradients")))
    assert not any(map(needs_gradients, ("rise", "score-cam", "rollout", "random", "of-a-plug-in")))
