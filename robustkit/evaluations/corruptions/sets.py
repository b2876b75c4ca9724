"""Named sets of corruptions with their severities, and a user's list of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...common.plugins import declared
from ...errors import ProtocolError, unknown

CATEGORIES: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""The benchmark's own: 15 test corruptions in four categories, and the four held out for validation."""

CORRUPTIONS = tuple(name for names in CATEGORIES.values() for name in names)
TEST = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 of ImageNet-C by name: a corruption that is added to a category enters no published set."""
_VALIDATION = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
FROST, TEXTURES = "frost", ("photographs", "own")
_ALL, _MILD = (1, 2, 3, 4, 5), (1, 2, 3)
_NOISE = ("gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise")
_SEGFORMER = (
    *("motion_blur", "defocus_blur", "glass_blur", "gaussian_blur", *_NOISE),
    *("brightness", "contrast", "saturate", "jpeg_compression", "snow", "spatter", "fog", "frost"),
)
SETS: dict[str, dict[str, tuple[int, ...]]] = {
    "in-c": dict.fromkeys(TEST, _ALL),
    "in-c-extra": dict.fromkeys(_VALIDATION, _ALL),
    "segformer-16": {name: _MILD if name in _NOISE else _ALL for name in _SEGFORMER},
    "fan-19": dict.fromkeys((*TEST, *_VALIDATION), _MILD),
    **{
        category: dict.fromkeys([name for name in names if name in TEST], _ALL)
        for category, names in CATEGORIES.items()
        if category != "extra"
    },
}
"""in-c: Hendrycks and Dietterich 2019. segformer-16: Xie et al. 2021. fan-19: Zhou et al. 2022."""


def categories() -> dict[str, tuple[str, ...]]:
    """Return the corruptions of each category; those of plug-ins are the last one, `plug-ins`."""
    brought = tuple(plugin.name for plugin in declared("corruptions"))
    return CATEGORIES | ({"plug-ins": brought} if brought else {})


def category_of(name: str) -> str:
    """Return the category of a corruption."""
    return next((category for category, names in CATEGORIES.items() if name in names), "plug-ins")


def corruption_names() -> tuple[str, ...]:
    """Return all corruptions: the benchmark's in its order, then those of plug-ins, which no set has."""
    return *CORRUPTIONS, *(plugin.name for plugin in declared("corruptions"))


def set_of(condition: str) -> tuple[str, tuple[int, ...], str] | None:
    """Split `in-c(severity=1+3,preset=cifar)` into the set, its severities (none: its own) and the rest,
    `(preset=cifar)`; None if it is not a set.
    """
    name, _, rest = condition.partition("(")
    if name not in SETS:
        return None
    items = [item for item in rest.removesuffix(")").split(",") if item]
    some = [int(word) for item in items if item.startswith("severity=") for word in item[9:].split("+")]
    kept = ",".join(item for item in items if not item.startswith("severity="))
    return name, tuple(some), f"({kept})" if kept else ""


def definition_of(rest: str) -> str:
    """Return the definition in the rest of a set's text, `(preset=cifar,texture=own)`: all but frost's texture."""
    kept = ",".join(item for item in rest[1:-1].split(",") if not item.startswith("texture="))
    return f"({kept})" if kept else ""


def sets_at(evaluated: Iterable[tuple[str, int]], definition: str, of_frost: str = "") -> list[str]:
    """Return the texts of the sets whose corruptions were all evaluated at all their severities; then of those whose
    corruptions were all evaluated at the same other severities, `in-c(severity=3)`, unless one of the first holds them.

    evaluated: corruptions and severities. definition: `(preset=cifar)`, empty for the default. of_frost: what sets that
    hold frost say besides, `texture=own`.
    """
    by_name: dict[str, set[int]] = {}
    for name, severity in evaluated:
        by_name.setdefault(name, set()).add(severity)

    def within(members: Mapping[str, Collection[int]], others: Mapping[str, Collection[int]]) -> bool:
        return all(set(members[name]) <= set(others.get(name, ())) for name in members)

    def text(name: str, some: str = "") -> str:
        inside = ",".join(filter(None, (some, definition[1:-1], of_frost if FROST in SETS[name] else "")))
        return f"{name}({inside})" if inside else name

    whole = [name for name, members in SETS.items() if within(members, by_name)]
    names = [text(name) for name in whole]
    for name, members in SETS.items():
        severities = {tuple(sorted(by_name.get(member, ()))) for member in members}
        some = severities.pop()
        here = dict.fromkeys(members, some)
        if some and not severities and not any(within(here, SETS[other]) for other in whole) and name not in whole:
            names.append(text(name, f"severity={'+'.join(map(str, some))}"))
    return names


def span(severities: Iterable[int]) -> str:
    """Return `3`, `1–3`, or `1,3`."""
    ordered = sorted(severities)
    whole = len(ordered) == ordered[-1] - ordered[0] + 1 and len(ordered) > 1
    return f"{ordered[0]}–{ordered[-1]}" if whole else ",".join(map(str, ordered))


_ITEM = re.compile(r"\s*(-?)\s*([A-Za-z][\w-]*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True)
class _Asked:
    """An item of a user's list. without: it is taken away. severities, texture: empty where none are named."""

    without: bool
    name: str
    severities: tuple[int, ...]
    texture: str


def expand(text: str | Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return corruptions and their severities, in the benchmark's order, from `in-c`, `fog,snow(severity=3)` or
    `in-c,-frost`.

    Raises:
        ProtocolError: an item is neither a set nor a corruption, a severity is not one of 1 to 5, or nothing is left.
    """
    chosen: dict[str, set[int]] = {}
    for item in _items(text):
        for member, severities in SETS.get(item.name, {item.name: _ALL}).items():
            mentioned = set(item.severities or severities)
            before = chosen.get(member, set())
            chosen[member] = before - mentioned if item.without else before | mentioned
    if not any(chosen.values()):
        raise ProtocolError(f"corruptions {text!r}: none is left; expected a name or a set, such as in-c")
    return {name: tuple(sorted(chosen[name])) for name in corruption_names() if chosen.get(name)}


def asked_texture(text: str | Iterable[str]) -> str:
    """Return the texture of frost that a list names, `frost(texture=own)` or `in-c(texture=own)`; empty for none.

    Raises:
        ProtocolError: as `expand`, or the list names both.
    """
    named = {item.texture for item in _items(text)} - {""}
    if len(named) > 1:
        raise ProtocolError(f"corruptions {text!r}: both textures of frost; expected one, and a run for each")
    return named.pop() if named else ""


def _items(text: str | Iterable[str]) -> Iterator[_Asked]:
    parts = re.split(r",(?![^(]*\))", text) if isinstance(text, str) else text
    for part in filter(None, map(str.strip, parts)):
        form = _ITEM.fullmatch(part)
        if not form:
            raise ProtocolError(f"corruption {part!r}: expected a name, a set, or fog(severity=1+3)")
        without, name, arguments = bool(form[1]), form[2].lower(), form[3]
        if name == "corruption" and arguments:  # the text of a condition
            name, _, arguments = (word.strip() for word in arguments.partition(","))
        if name not in SETS and name not in corruption_names():
            raise ProtocolError(unknown("corruption", name, (*SETS, *corruption_names())))
        yield _Asked(without, name, *_arguments(part, arguments, FROST in SETS.get(name, (name,))))


def _arguments(item: str, arguments: str | None, frost: bool) -> tuple[tuple[int, ...], str]:
    """Return the severities and the texture in an item's parentheses. frost: whether it holds frost."""
    severities, texture = tuple[int, ...](), ""
    for argument in filter(None, (arguments or "").split(",")):
        key, equals, value = (word.strip() for word in argument.partition("="))
        if key == "texture" and frost:
            if value not in TEXTURES:
                raise ProtocolError(f"{item}: " + unknown("texture", value, TEXTURES))
            texture = value
            continue
        if key != "severity" or not equals:
            raise ProtocolError(f"{item}: {argument!r} is not severity=...; expected such as fog(severity=1+3)")
        numbers = [word.strip() for word in value.split("+")]
        if not all(number in ("1", "2", "3", "4", "5") for number in numbers):
            raise ProtocolError(f"{item}: severity {value!r}; expected whole numbers from 1 to 5, such as 3 or 1+2+3")
        severities = tuple(map(int, numbers))
    return severities, texture
