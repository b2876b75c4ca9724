"""Settle which pictures of ice frost takes: the benchmark's photographs, or textures that come with the package."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec

from corruptions import find_photographs, own_textures

from ...common.files import bytes_of
from ...data.images import read_image
from ...errors import DataError, ProtocolError


def choose_texture(asked: str, frost_dir: str | None) -> tuple[str, str]:
    """Return the texture, and a line for the user (empty: nothing to say).

    asked: by `frost(texture=...)`, empty where not named; then own textures are taken only if there is neither a folder
    nor an installed imagecorruptions, whose damaged or missing files stay an error.

    Raises:
        ProtocolError: own textures, and a folder of photographs.
    """
    if asked == "own" and frost_dir is not None:
        raise ProtocolError(f"frost(texture=own) and --frost-dir {frost_dir}: expected one of the two; leave one out")
    if asked or frost_dir is not None or find_spec("imagecorruptions") is not None:
        return asked or "photographs", ""
    return "own", (
        "frost(texture=own): the benchmark's photographs are not here, so textures of our own are used; for "
        "published figures: pip install --no-deps imagecorruptions, or --frost-dir"
    )


def texture_digest(texture: str, frost_dir: str | None) -> str:
    """Return the SHA-256 of the six pictures of ice.

    Raises:
        DataError: they are missing, or are not images.
    """
    total = hashlib.sha256()
    try:
        for path in own_textures() if texture == "own" else find_photographs(frost_dir):
            content = bytes_of(path, 1 << 26)
            read_image(content, f"frost photograph {path}")
            total.update(hashlib.sha256(content).digest())
    except OSError as fault:
        raise DataError(str(fault)) from None
    return total.hexdigest()
