"""Options: what a field of a dataclass says about itself to the command line, to signatures and to the reference."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import ProtocolError
from .preprocessing import MOST_CHANNELS


@dataclass(frozen=True, kw_only=True)
class Option:
    """What --help and a signature say about a field. annotation: its type as text. default: MISSING where required.
    heading: a key of `cli.options.SECTIONS`. type: `Path` for a file that is read, `output` for one that is written,
    the allowed values, or a type of click. read: from the command line's text to the value. group: the class of this
    option's entries. settings: more of click's.
    """

    name: str
    annotation: str
    default: Any
    help: str = ""
    heading: str = ""
    flag: str = ""
    type: Any = None
    read: Callable[[Any, str], Any] | None = None
    group: type | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keyword(self) -> str:
        """The type of the keyword in Python; a mapping may be None there."""
        return f"{self.annotation} | None" if self.group else self.annotation


def option(heading: str, help: str, default: Any = None, **more: Any) -> Any:
    """Return the field of an option. more: of `Option`; a class below keeps what it does not say again."""
    return field(default=default, metadata={"heading": heading, "help": help, **more})


def option_group(group: type) -> Any:
    return field(default_factory=dict, metadata={"group": group})


def options_of(kind: type) -> list[Option]:
    """Return a class's options as listed: its own before the field that `own_before` names, or last where `last`."""
    every, base = fields(kind), next((each for each in reversed(kind.__mro__) if "own_before" in vars(each)), kind)
    common = len(fields(base))
    place = next((k for k, each in enumerate(every) if each.name == getattr(kind, "own_before", "")), common)
    specific = [each for each in every[common:] if not each.metadata.get("last")]
    last = [each for each in every[common:] if each.metadata.get("last")]
    listed = [*every[:place], *specific, *every[place:common], *last]
    lacks = getattr(kind, "lacks", ())
    return [_option(kind, each) for each in listed if each.name not in lacks]


def _option(kind: type, declared: Field[Any]) -> Option:
    above = (vars(each).get("__dataclass_fields__", {}).get(declared.name) for each in reversed(kind.__mro__))
    metadata = {key: value for each in above if each for key, value in each.metadata.items() if key != "last"}
    flag = metadata.pop("flag", "--" + ("no_" * (declared.default is True) + declared.name).replace("_", "-"))
    return Option(name=declared.name, annotation=str(declared.type), default=declared.default, flag=flag, **metadata)


def check_paths(options: Any, kind: type | None = None) -> None:
    """Raise ProtocolError where an option that names a file is another object, or a text that no file can be called.

    options: an object of an options class; with `kind`, a mapping of that class's options.
    """
    for each in options_of(kind or type(options)):
        value = options.get(each.name) if kind else getattr(options, each.name)
        if each.group and isinstance(value, Mapping):
            check_paths(value, each.group)
        if value is None or "Path" not in each.annotation:
            continue
        several = "Sequence" in each.annotation and not isinstance(value, str | Path) and isinstance(value, Iterable)
        for place in value if several else [value]:
            if not isinstance(place, str | os.PathLike):
                if several or hasattr(place, "keys"):  # a table in memory, or of what its own reader knows
                    continue
                raise ProtocolError(f"{each.name} is {type(place).__name__}; expected a path")
            text, name = str(place), each.flag.lstrip("-").replace("-", "_")
            if not _is_place(text):
                problem = f"a text of {len(text)} characters, {text[:40]!r}"
                raise ProtocolError(f"{name} is {problem}; expected the path of a file")


def _is_place(text: str) -> bool:
    """Whether a file may be called so, on this system."""
    try:
        Path(text).stat()
    except (OSError, ValueError) as fault:
        return isinstance(fault, OSError) and fault.errno != errno.ENAMETOOLONG and "\n" not in text
    return True


def read_place(text: str | None, name: str) -> str:
    """Return a place that may be left out; then an empty text."""
    return text or ""


def read_several(values: Any, name: str) -> Any:
    """Return the values of an option that may be repeated; None for none."""
    return values or None


def read_channels(text: str | None, name: str) -> tuple[float, ...] | None:
    """Return one number, or one for each of up to 16 channels."""
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        values = ()
    if not 0 < len(values) <= MOST_CHANNELS:
        expected = "one number for all channels, or one for each, at most 16"
        raise ProtocolError(f"--{name.replace('_', '-')} {text!r}: expected {expected}")
    return values


def read_range(text: str | None, name: str) -> tuple[float, float] | None:
    """Return the ends of a range."""
    ends = read_channels(text, name)
    if ends is None:
        return None
    if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
        raise ProtocolError(f"--{name.replace('_', '-')} {text!r}: expected two rising numbers, such as 0,10000")
    return ends[0], ends[1]


def read_places(text: str | None, name: str) -> tuple[int, ...] | None:
    """Return three channels, from 1, or one."""
    if text is None:
        return None
    parts = text.replace(",", " ").split()
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        expected = "one channel or three, counted from 1, such as 3,2,1"
        raise ProtocolError(f"--{name.replace('_', '-')} {text!r}: expected {expected}")
    return tuple(map(int, parts if len(parts) == 3 else parts * 3))


def read_output(text: str | None, name: str) -> int | str | None:
    """Return a place, or a name."""
    return int(text) if text is not None and text.isdecimal() else text


def read_numbers(text: str | None, name: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ProtocolError(f"--{name} {text[:60]!r}: expected a number for each channel, such as '0.1 2.5'") from None


def read_sides(text: str | None, name: str) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    sound = all(side.isascii() and side.strip().isdecimal() and int(side) > 0 for side in sides)
    if len(sides) not in (1, 2) or not sound:
        raise ProtocolError(f"--{name} {text!r}: expected pixels, such as 512 or 512x1024 (height x width)")
    return int(sides[0]), int(sides[-1])


def read_labels(text: object, name: str = "ignore") -> tuple[int, ...]:
    parts = text if isinstance(text, (list, tuple)) else str(text).split(",")
    labels = [str(part).strip() for part in parts if str(part).strip()]
    if not all(label.removeprefix("-").isdecimal() and label.isascii() for label in labels):
        raise ProtocolError(f"--{name} {text!r}: expected labels such as 255, or 0,255")
    return tuple(map(int, labels))


def text_of_value(value: Any, read: Callable[[Any, str], Any] | None = None) -> str:
    """Return a value as the command line has it. read: what reads it there."""
    if not isinstance(value, list | tuple):
        return str(value)
    return _SEPARATORS.get(read, ",").join(map(str, value))


_SEPARATORS: dict[Any, str] = {read_sides: "x", read_channels: " ", read_numbers: " ", read_range: ","}
