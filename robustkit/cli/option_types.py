"""Types of option values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def _empty(param: click.Parameter | None) -> str:
    return f"it is empty; expected: {getattr(param, 'help', None) or 'a value'}"


class Whole(click.IntRange):
    """A whole number."""

    name = "integer"


AT_LEAST_0, AT_LEAST_1 = Whole(min=0), Whole(min=1)


class Text(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is not empty: an empty one usually comes from an unset shell variable."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return str(value) if str(value).strip() else self.fail(_empty(param), param, ctx)


class Place(click.Path):
    """A path that is not empty, nor of blanks alone: Path("") is the current folder. writes: whether a command writes
    there, which an untrusted --config must not choose.
    """

    def __init__(self, *, writes: bool = False, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)
        self.writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if str(value).strip() else self.fail(_empty(param), param, ctx)


class BatchSize(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of samples, or `auto`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if value == "auto" else AT_LEAST_1.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}; expected a number of 1 or more, or auto.", param, ctx)
