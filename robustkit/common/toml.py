"""Read TOML, with a one-line error for a file that is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..errors import RobustkitError
from .files import TEXT, reason, text_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_DOTS = 1000  # per line; a key of n parts takes time and memory in the square of n


def written_text(path: Path, where: str, error: type[RobustkitError]) -> str:
    """Return the text of a TOML file; bytes that are not UTF-8 are replaced. Raises `error` unless it is a plain file
    of at most a megabyte.
    """
    try:
        return text_of(path, TEXT, errors="replace")
    except OSError as fault:
        raise error(f"{where}: cannot be read ({reason(fault)}); expected a TOML file") from None


def parse_toml(text: str, where: str, error: type[RobustkitError]) -> dict[str, Any]:
    """Return the table that `text` holds; `where` names the file in the message.

    Raises:
        error: the text is not TOML; the message has line and column.
    """
    if any(line.count(".") > _DOTS for line in text.splitlines()):
        raise error(f"{where}: a line with more than {_DOTS} dots; expected a few levels")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{where}: tables nested too deeply; expected a few levels") from None
    except tomllib.TOMLDecodeError as fault:
        raise error(f"{where}: not valid TOML: {fault}") from None
    except ValueError as fault:  # raised by whole numbers of thousands of digits
        raise error(f"{where}: not valid TOML: {str(fault).partition(';')[0]}; expected shorter numbers") from None
