"""Plan attacks in two phases: `autoattack(second=200)` becomes its first stages, and the rest on 200 that stand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import ProtocolError
from ..evaluations.attacks.build import build_attack
from ..evaluations.attacks.condition import Options, parse_condition
from ..evaluations.two_phase.condition import two_phase_condition
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..protocol.parameters import split_condition

_OWN = re.compile(r"\s*(first|second)\s*=([^,]*)")
_USUAL = "apgd-ce"


def in_two_phases(item: str, card: Card, options: Options) -> Iterator[Condition]:
    """Yield the conditions of an attack that asks for a second phase; nothing for another.

    Raises:
        ProtocolError: the attack has no stages, or none of them are left for one of the phases.
    """
    name, arguments = split_condition(item)
    parts = (arguments or "").split(",")
    stated = [(match[1], match[2].strip()) for part in parts if (match := _OWN.fullmatch(part))]
    own = dict(stated)
    if not own:
        return
    others = [part for part in parts if part.strip() and not _OWN.fullmatch(part)]
    if name != "autoattack":
        raise ProtocolError(f"condition {item!r}: first and second are of autoattack; leave them out of {name}")
    if len(own) < len(stated):
        raise ProtocolError(f"condition {item!r}: first or second is given twice; leave one of them out")
    m = own.get("second", "")
    if not m.isdecimal() or not int(m):
        raise ProtocolError(
            f"condition {item!r}: second is {m or 'missing'}; expected how many samples, such as second=200"
        )

    def parsed(*more: str) -> Condition:
        return parse_condition(f"{name}({','.join([*others, *more])})", card, **options)

    whole = parsed()
    if whole.engine != "robustkit":
        raise ProtocolError(f"condition {item!r}: engine {whole.engine} runs all stages at once; leave it out")
    if dict(whole.parameters).get("only"):
        raise ProtocolError(f"condition {item!r}: only leaves out stages, which the second phase runs; leave it out")
    if whole.on:
        raise ProtocolError(
            f"condition {item!r}: on draws from all samples, second from those that stand; leave one out"
        )
    every = getattr(build_attack(whole, card), "stage_names", ())
    first = own.get("first", _USUAL)
    chosen = [stage for stage in every if stage in first.split("+")]
    rest = [stage for stage in every if stage not in chosen]
    if "+".join(chosen) != first or not (chosen and rest) or list(every[: len(chosen)]) != chosen:
        examples = "first=" + " or first=".join("+".join(every[:count]) for count in range(1, len(every)))
        raise ProtocolError(
            f"condition {item!r}: first is {first}; expected the stages that it begins with: {examples}"
        )
    begin, end = (parsed(f"only={'+'.join(stages)}") for stages in (chosen, rest))
    yield begin
    yield two_phase_condition(begin, end, whole, first, int(m))
