"""Say in words how a checkpoint's images became the pixels that it was shown."""

from __future__ import annotations

from ..common.preprocessing import exact_numbers, texts_of
from .manifest import CheckpointEntry


def shown_as(entry: CheckpointEntry) -> dict[str, str]:
    """Return what decides the pixels, by its field: `224x224 pixels`, `bicubic`, `crop 0.9`, `center`, `mean 0.5`, …

    Of a segmenter, whose images are not cropped, its windows stand first; of a language model there is nothing else.
    Numbers are exact.
    """
    texts = texts_of(entry.preprocessing.to_plain(), exact_numbers)
    if not isinstance(entry.windows, dict | None):
        return texts
    if entry.windows and "tokens" in entry.windows:
        return {"windows": _of_tokens(entry.windows)}
    return {**_windows(entry.windows), **{name: texts[name] for name in ("mean", "std")}}


def _of_tokens(windows: dict[str, object]) -> str:
    size, stride = windows.get("tokens"), windows.get("stride")
    if windows.get("kind") == "strided":
        return f"windows of {size} tokens every {stride}; a token counts in the first window that holds it"
    counts = "the last place of each counts" if stride == 1 else f"the last {stride} places of each count"
    return f"windows of {size} tokens; {counts} and all of the first"


def _windows(windows: dict[str, object] | None) -> dict[str, str]:
    if not windows:
        return {"windows": "whole images at their own size"}
    size, stride = (_sides(windows.get(name)) for name in ("size", "stride"))
    resized = {key: f"{key.replace('_', ' ')} {windows[key]}" for key in ("short_side", "resize") if windows.get(key)}
    return {"windows": f"windows {size} every {stride}", **resized}


def _sides(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
