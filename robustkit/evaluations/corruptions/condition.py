"""A corruption as a condition: `corruption(fog,severity=3)` into parts and back, and into the corruption itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import ProtocolError, unknown
from ...protocol.condition import Condition
from .sets import FROST, TEXTURES, corruption_names

if TYPE_CHECKING:
    import corruptions

PRESETS, VARIANTS, SOURCES = ("imagenet", "cifar"), ("hendrycks", "bethgelab"), ("memory", "released")
_FORM = re.compile(r"corruption\(\s*([\w-]+)\s*((?:,[^,()]+)*)\)")


@dataclass(frozen=True)
class Corrupted:
    """The corruption that the images undergo, by which definition, and whether here or in released files.

    severity: 1 to 5; 0 means the mean over all five, which only results have.
    preset, variant: see `corruptions.Corruption`.
    source: `memory`, after resize and crop, or `released`, files of a tree such as ImageNet-C's.
    texture: of frost alone: the benchmark's `photographs`, or `own`, which stands in for them.
    """

    name: str
    severity: int = 0
    preset: str = "imagenet"
    variant: str = "hendrycks"
    source: str = "memory"
    texture: str = "photographs"

    @property
    def text(self) -> str:
        """The canonical text, which names what is not the benchmark's default."""
        severity = f",severity={self.severity}" if self.severity else ""
        texture = f",{self.of_frost}" if self.of_frost and self.name == FROST else ""
        return f"corruption({self.name}{severity}{self._definition}{texture})"

    @property
    def of_frost(self) -> str:
        """What a text says about frost, and about means that hold it: `texture=own`; empty for the photographs."""
        return "" if self.texture == "photographs" else f"texture={self.texture}"

    @property
    def label(self) -> str:
        """The corruption in a table of its definition: `fog`, or `frost(texture=own)`."""
        return f"{self.name}({self.of_frost})" if self.of_frost and self.name == FROST else self.name

    @property
    def _definition(self) -> str:
        default = Corrupted(self.name)
        odd = (key for key in ("preset", "variant", "source") if getattr(self, key) != getattr(default, key))
        return "".join(f",{key}={getattr(self, key)}" for key in odd)

    @property
    def definition(self) -> str:
        """What distinguishes two tables of corruptions: `(preset=cifar)`; empty for the default. Without the texture,
        which is of one corruption alone.
        """
        return f"({self._definition[1:]})" if self._definition else ""

    @property
    def mean(self) -> Corrupted:
        """The same over all severities."""
        return replace(self, severity=0)

    @property
    def released(self) -> bool:
        return self.source == "released"

    def make(self, frost_dir: str | None = None) -> corruptions.Corruption:
        """Return the corruption to be computed here."""
        from .registry import make

        return make(self.name, self.preset, self.variant, frost_dir, self.texture)


def parse_corrupted(text: str) -> Corrupted | None:
    """Return the parts of a condition's text; None if it is not a corruption.

    Raises:
        ProtocolError: it is a corruption with an unknown or invalid part.
    """
    if not text.startswith("corruption("):
        return None
    form = _FORM.fullmatch(text)
    if not form:
        raise ProtocolError(f"condition {text!r}: expected such as corruption(fog,severity=3)")
    if form[1] not in corruption_names():
        raise ProtocolError(unknown("corruption", form[1], corruption_names()))
    given: dict[str, str] = {}
    for item in filter(None, form[2].split(",")):
        key, _, value = (word.strip() for word in item.partition("="))
        given[key] = value
    severity = given.pop("severity", "0")
    choices = {"preset": PRESETS, "variant": VARIANTS, "source": SOURCES}
    if form[1] == FROST and given.get("source") != "released":
        choices["texture"] = TEXTURES
    for key, value in given.items():
        if key == "constants":
            raise ProtocolError(f"{text}: --constants {value} is written preset={value} in a condition")
        if key not in choices:
            raise ProtocolError(f"{text}: " + unknown("parameter of corruption", key, ("severity", *choices)))
        if value not in choices[key]:
            raise ProtocolError(f"{text}: " + unknown(key, value, choices[key]))
    if severity not in ("0", "1", "2", "3", "4", "5"):
        raise ProtocolError(f"{text}: severity {severity!r}; expected a whole number from 1 to 5")
    return Corrupted(form[1], int(severity), **given)


def corruption_condition(corrupted: Corrupted) -> Condition:
    """Return the condition of a corruption."""
    return Condition(
        "corruption",
        corrupted.text,
        payload=corrupted,
        group=corrupted.mean.text,
        level=corrupted.severity,
        released=corrupted.released,
    )


def corrupted_of(condition: Condition) -> Corrupted | None:
    """Return which corruption a condition is; None for other conditions."""
    return condition.payload if isinstance(condition.payload, Corrupted) else None
