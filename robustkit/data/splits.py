"""Where class folders begin in a tree: beneath single folders, and in one split of several."""

from __future__ import annotations

from ..errors import DataError
from .class_lists import WNID

_SPLITS = ("val", "validation", "valid", "test", "testing", "train", "training")


def class_root(images: tuple[str, ...], split: str | None, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the prefix under which class folders begin: single top folders are entered, and one split is chosen."""
    prefix = ""
    notes: tuple[str, ...] = ()
    while True:
        parts = [image[len(prefix) :].split("/") for image in images if image.startswith(prefix)]
        tops = {part[0] for part in parts if len(part) > 1}
        flat = any(len(part) == 1 for part in parts)
        if split is not None and split in tops:
            prefix, split = f"{prefix}{split}/", None
        elif not flat and len(tops) > 1 and tops <= set(_SPLITS) and split is None:
            chosen = next(name for name in _SPLITS if name in tops)
            notes = (f"took {chosen!r} of the splits {', '.join(sorted(tops))}",)
            prefix = f"{prefix}{chosen}/"
        elif not flat and len(tops) == 1 and all(len(part) > 2 for part in parts) and not WNID.fullmatch(min(tops)):
            prefix = f"{prefix}{min(tops)}/"
        elif split is not None:
            raise DataError(f"{where}: no split {split!r}; it holds {', '.join(sorted(tops)[:5]) or 'no folders'}")
        else:
            return prefix, notes
