"""The gallery of a run, small enough for a page."""

from __future__ import annotations

import base64
import io

from PIL import Image

from ...data.picture_files import open_picture
from ...errors import RunError
from ...runs.files import refuse_link
from ...runs.folder import RunFolder


def gallery_uri(run: RunFolder) -> str | None:
    """Return the contact sheet of maps, made small enough for a page, as a data URI; None if there is none."""
    path = run.path / "cams" / "gallery.png"
    refuse_link(path, run.path)
    if not path.is_file():
        return None
    buffer = io.BytesIO()
    try:
        with open_picture(path) as sheet:
            small = sheet.convert("RGB")
    except Exception as fault:  # anything may stand in place of a gallery
        raise RunError(f"{path}: not a gallery that can be read ({fault}); make it again with robustkit cam") from None
    small.thumbnail((1600, 16000), Image.Resampling.LANCZOS)
    small.save(buffer, "WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
