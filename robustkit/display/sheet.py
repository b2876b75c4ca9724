"""What sheets of pictures share: colours, fonts, tiles."""

from __future__ import annotations

from PIL import ImageFont

PAPER, INK, FAINT, RULE = (255, 255, 255), (24, 27, 33), (110, 116, 126), (216, 219, 224)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def fit_text(text: str, size: int, width: int) -> str:
    """Return the text, with its middle left out where it would be wider."""
    face = font(size)
    keep = len(text)
    short = text
    while face.getlength(short) > width and keep > 8:
        keep -= 1
        short = f"{text[: keep // 2]}...{text[len(text) - (keep - keep // 2) :]}"
    return short
