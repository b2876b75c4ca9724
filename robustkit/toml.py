"""Reading TOML, with one line for a file that is not."""

from __future__ import annotations

import sys
from typing import Any

from .errors import RobustkitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str, where: str, error: type[RobustkitError]) -> dict[str, Any]:
    """The table that `text` holds; `where` names the file in the message.

    Raises:
        error: the text is not TOML; the message has line and column.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{where}: tables nested too deeply; expected a few levels") from None
    except tomllib.TOMLDecodeError as fault:
        raise error(f"{where}: not valid TOML: {fault}") from None
    except ValueError as fault:  # whole numbers of thousands of digits
        raise error(f"{where}: not valid TOML: {str(fault).partition(';')[0]}; expected shorter numbers") from None
