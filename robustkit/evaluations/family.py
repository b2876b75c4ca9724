"""A family of evaluations: all that is known of one kind of condition, behind one seam.

`FAMILIES` names the family of each kind of condition; what is not there is an attack. A family is loaded when a
condition of its kind is met, and what computes of it only when something is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from ..common.randomness import SampleRng
    from ..protocol.card import Card
    from ..protocol.condition import Condition
    from .subject import Batch, Evaluation, Shown, Subject


class Family:
    """One kind of evaluation. A family of conditions that change images says what they show; another one evaluates.

    name: for people. columns: that its records have beside the task's.
    """

    name: ClassVar[str]

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        """The columns that its records have beside the task's."""
        return {}

    def label(self, text: str) -> str:
        """Return a condition's text in a few words, for a column or an axis."""
        return text

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        """Whether it makes batches by itself, from a whole shard."""
        return False

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        """Return what the condition makes the network see."""
        raise NotImplementedError(f"{self.name} shows no images of its own")

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return the columns of a batch: by default, how the model does on what the condition shows."""
        from .evaluator import score_shown

        return score_shown(subject, batch, condition, self.show(subject, batch, condition, rng))


FAMILIES = {
    "clean": "clean",
    "corruption": "corruptions.family",
    "cam": "maps.family",
    "stability": "maps.family",
    "attention": "attention.family",
}
_ATTACKS = "attacks.family"


def kind_of(text: str) -> str:
    """Return the kind of a condition by its text: the first word."""
    return text.partition("(")[0]


def family_of(kind: str) -> Family:
    """Return the family of the conditions of a kind, such as `cam`; attacks are the family of all other kinds."""
    family: Family = import_module(f"{__package__}.{FAMILIES.get(kind, _ATTACKS)}").FAMILY
    return family
