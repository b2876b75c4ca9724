"""Plan which adversarial images are passed from one checkpoint to the others, and refuse what is not comparable."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ProtocolError
from ..evaluations.kinds import is_attack
from ..evaluations.transfer.condition import transfer_condition
from ..protocol.condition import Condition
from ..runs.binding import OF_CHECKPOINT
from ..runs.digests import digest_of
from ..runs.manifest import CheckpointEntry
from .request import ClassificationRequest

_PIXELS = ("input_size", "interpolation", "crop_pct", "crop_mode")
_IN_WORDS = {
    "input_size": "input size",
    "crop_pct": "crop share",
    "crop_mode": "crop mode",
    "std": "standard deviation",
}


def handed_on(request: ClassificationRequest, attacked: Sequence[Condition]) -> frozenset[str]:
    """Return the texts of the attacks whose adversarial images are passed on or kept.

    Raises:
        ProtocolError: there is none.
    """
    if not (request.transfer or request.keep_adversarials):
        return frozenset()
    texts = frozenset(condition.text for condition in attacked if condition.eps is not None)
    if not texts:
        option = "--transfer" if request.transfer else "--keep-adversarials"
        raise ProtocolError(f"{option}: none of the attacks has a fixed radius; expected one that has, such as pgd")
    return texts


def plan_transfer(
    request: ClassificationRequest, attacked: Sequence[Condition], entries: Sequence[CheckpointEntry]
) -> tuple[tuple[Condition, ...], dict[str, str]]:
    """Return a condition for each attack and each checkpoint that its images are found for; and what each takes, as a
    digest of that checkpoint.

    Raises:
        ProtocolError: there is nothing to pass on, nobody to pass it to, or the checkpoints take other pixels.
    """
    if not request.transfer:
        return (), {}
    if len(entries) < 2:
        raise ProtocolError(f"--transfer with {entries[0].name} alone: expected two checkpoints or more")
    ours = [attack for attack in attacked if is_attack(attack.name) and attack.engine == "robustkit"]
    ours = [attack for attack in ours if attack.eps is not None]
    if not ours:
        raise ProtocolError("--transfer: no attack of robustkit's own engine with a fixed radius; expected such as pgd")
    _check_pixels(request, entries)
    conditions, digests = list[Condition](), dict[str, str]()
    for attack in ours:
        for entry in entries:
            plain = entry.to_plain()
            conditions.append(passed := transfer_condition(attack, entry.name))
            digests[passed.text] = digest_of({key: plain.get(key) for key in OF_CHECKPOINT})
    return tuple(conditions), digests


def _check_pixels(request: ClassificationRequest, entries: Sequence[CheckpointEntry]) -> None:
    """Raise ProtocolError where two checkpoints see other pixels of the same image."""
    first, names = entries[0], _PIXELS if request.card.space == "pixels" else (*_PIXELS, "mean", "std")
    for other in entries[1:]:
        for name in names:
            there, here = (getattr(entry.preprocessing, name) for entry in (first, other))
            if there != here:
                what = _IN_WORDS.get(name, name)
                raise ProtocolError(
                    f"--transfer: {what} is {_shown(there)} for {first.name} and {_shown(here)} for {other.name}: what "
                    "misleads one is no input of the other; audit them apart"
                )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ("x" if all(isinstance(each, int) for each in value) else " ").join(map(str, value))
    return str(value)
