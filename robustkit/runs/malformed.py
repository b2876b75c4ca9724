"""Say in words which part of a value has the wrong type.

msgspec names neither the value nor the key of a table, nor the type in plain words; so what it refuses is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta


def fault_of(value: Any, kind: Any, where: str = "") -> str:
    """Return which part of a value has the wrong type, named as precisely as possible, and what was expected."""
    for more, part, its_kind in _parts(value, kind):
        if part is msgspec.NODEFAULT:
            return f"{(where + more).lstrip('.')} is missing; expected {_expected(its_kind)}"
        if not _is(part, its_kind):
            return fault_of(part, its_kind, where + more)
    return strange(where.lstrip("."), value, _expected(kind))


def _parts(value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the rest of the path of each named part, the part, and its type; NODEFAULT for one that is missing."""
    bare = _bare(kind)
    inner = get_args(bare)
    if isinstance(value, dict) and _is_part(bare):
        for field in msgspec.structs.fields(bare):
            if field.required or field.encode_name in value:
                yield f".{field.encode_name}", value.get(field.encode_name, msgspec.NODEFAULT), field.type
    elif isinstance(value, list) and get_origin(bare) is tuple and _is_part(inner[0]):
        yield from ((f"[{place}]", part, inner[0]) for place, part in enumerate(value))
    elif isinstance(value, dict) and get_origin(bare) is Mapping and _is_part(_bare(inner[1])):
        yield from ((f"[{key!r}]", part, inner[1]) for key, part in value.items())


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _expected(kind: Any) -> str:
    """Return a type in plain words."""
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.description for note in notes if isinstance(note, Meta) and note.description), "a table")


def strange(where: str, value: Any, expected: str) -> str:
    """Return in words what is wrong with a part of a value."""
    text = repr(value)
    short = f"{text[:80]}{'…' * (len(text) > 80)}"
    return f"{where} is {short}; expected {expected}"
