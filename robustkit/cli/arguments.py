"""Turn values of options into arguments."""

from __future__ import annotations

from typing import Any

from ..errors import ProtocolError

MODEL_KEYS = (
    *("arch", "attention", "num_classes", "mean", "std", "interpolation", "crop_pct", "crop_mode", "img_size"),
    *("use_ema", "allow_partial"),
)
SEGMENTER_KEYS = (
    *("arch", "attention", "num_classes", "mean", "std", "window", "stride", "short_side", "resize"),
    *("use_ema", "allow_partial"),
)
DATA_KEYS = ("layout", "labels_csv", "real_labels")
SCENE_KEYS = ("masks", "classes", "ignore")


def _triple(text: str | None, name: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise ProtocolError(f"--{name} {text!r}: expected one or three numbers, such as '0.485 0.456 0.406'")
    return values * 3 if len(values) == 1 else values


def _pair(text: str | None, name: str) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(
        side.isascii() and side.strip().isdecimal() and int(side) > 0 for side in sides
    ):
        raise ProtocolError(f"--{name} {text!r}: expected pixels, such as 512 or 512x1024 (height x width)")
    return int(sides[0]), int(sides[-1])


def labels_of(text: object) -> tuple[int, ...]:
    """Return the labels of --ignore."""
    parts = text if isinstance(text, (list, tuple)) else str(text).split(",")
    labels = [str(part).strip() for part in parts if str(part).strip()]
    if not all(label.isdecimal() and label.isascii() for label in labels):
        raise ProtocolError(f"--ignore {text!r}: expected labels such as 255, or 0,255")
    return tuple(map(int, labels))


def segmenter_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Take the model options of a segmenter out of `options`, as `load_segmenter` takes them, and parse --ignore."""
    chosen = {key: options.pop(key) for key in SEGMENTER_KEYS}
    chosen |= {name: _triple(chosen[name], name) for name in ("mean", "std")}
    chosen |= {name: _pair(chosen[name], name) for name in ("window", "stride")}
    options["ignore"] = labels_of(options["ignore"])
    return {key: value for key, value in chosen.items() if value is not None}


def model_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Take the model options out of `options`, as arguments of `robustkit.models.load`."""
    chosen = {key: options.pop(key) for key in MODEL_KEYS}
    chosen["mean"], chosen["std"] = _triple(chosen["mean"], "mean"), _triple(chosen["std"], "std")
    return {key: value for key, value in chosen.items() if value is not None}
