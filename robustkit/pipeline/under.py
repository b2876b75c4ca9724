"""Say whose constants and textures the corruptions have whose images are attacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import ProtocolError
from ..evaluations.attacks.on_corrupted import on_corrupted
from ..evaluations.corruptions.condition import Corrupted, corrupted_of, corruption_condition
from ..evaluations.corruptions.plan import CorruptedInputs, Plan
from ..protocol.condition import Condition


def plan_attacked(attacked: Sequence[Condition], plan: Callable[[str], Plan], frost_dir: str | None) -> Plan:
    """Return attacks, those on corrupted images with the definition that the corruption alone has in this run.

    What the text of an attack says itself stays. plan: of corruptions, as `plan_corruptions`, from a list of them.
    frost_dir: of frost's photographs.

    Raises:
        ProtocolError, DataError: as `plan` does, or the corruption has no such definition.
    """
    conditions, digests, lines = list[Condition](), dict[str, str](), dict[str, None]()
    for condition in attacked:
        asked = None if condition.under is None else corrupted_of(condition.under)
        if asked is None:
            conditions.append(condition)
            continue
        texture = f",{asked.of_frost}" if asked.of_frost else ""
        planned = plan(f"{asked.name}(severity={asked.severity}{texture})")
        here = corruption_condition(_joined(asked, planned.conditions[0], frost_dir))
        conditions.append(attack := on_corrupted(condition, here))
        for digest in planned.inputs.digests.values():  # of frost
            digests[attack.text] = digest
        lines |= dict.fromkeys(planned.lines)
    return Plan(tuple(dict.fromkeys(conditions)), CorruptedInputs(digests), tuple(lines))


def _joined(asked: Corrupted, planned: Condition, frost_dir: str | None) -> Corrupted:
    """Return a corruption as it is planned, except for what was asked for and is not the usual."""
    usual, default = corrupted_of(planned), Corrupted(asked.name)
    assert usual is not None
    said = {key: getattr(asked, key) for key in ("preset", "variant")}
    joined = replace(usual, **{key: value for key, value in said.items() if value != getattr(default, key)})
    try:
        joined.make(frost_dir)
    except ValueError as fault:  # constants and a variant that do not go together
        raise ProtocolError(f"{joined.text}: {fault}") from None
    return joined
