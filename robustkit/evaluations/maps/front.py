"""What a first page says about maps: which rows, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..map_methods import shown
from .condition import BOXES_GIVEN, parts_of
from .figures import SCORES
from .sentence import METHODS

if TYPE_CHECKING:
    from ...runs.manifest import Manifest

_SHOWN = [key for key in SCORES if key[0] not in ("insertion_auc", "deletion_auc")]


def front(keys: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield condition and metric of the scores of each map of clean images, without controls."""
    for text, metric in keys:
        parts = parts_of(text)
        if parts is not None and not parts[0].under and not parts[0].is_control and (metric, parts[1]) in _SHOWN:
            yield text, metric


def only_boxes(manifest: Manifest) -> bool:
    """Whether the objects of a run are known by boxes alone: what is called a mask then is their union."""
    given = manifest.arguments.get("boxes") is not None
    return given or any(note.startswith(BOXES_GIVEN) for note in manifest.data.notes)


def called(text: str, of_other: Callable[[str], str], only_boxes: bool = False) -> str:
    """Return `AG-CAM`, `AG-CAM, boxes`, or `AG-CAM, clean against PGD, 4/255`. of_other: what a condition is called.
    only_boxes: whether there are no masks.
    """
    parts = parts_of(text)
    if parts is None:
        return text
    explained, mode = parts
    words = [METHODS.get(explained.method, explained.method)]
    words += [text.replace("=", " ") for text in shown(explained.options)]
    words += [{"box": "boxes", "mask": "pixels against boxes" if only_boxes else "masks"}[mode]] if mode else []
    words += [f"threshold {explained.threshold:g}"] if explained.threshold != 0.5 else []
    words += ["of the label's class"] if explained.target == "label" else []
    words += [f"clean against {of_other(explained.under)}"] if explained.under else []
    return ", ".join(words)
