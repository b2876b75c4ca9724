"""Turn values of options into arguments, and refuse options that would do nothing together with the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

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


PICTURE_KEYS = (*MODEL_KEYS, "arguments", "targets", "cams", "device", "out", "save_maps", "quiet", "config", "debug")
"""The options that `robustkit cam` takes for a user's own pictures."""
GATE_VALUES = ("policy", "baseline", "junit", "json_file", "attestation", "predicate")
GATE_ALONE = ("verify_attestation", "allow_warned", "init", "every")
GATE = (*GATE_VALUES, *GATE_ALONE, "details")
"""The options of `robustkit check` that are about verdicts: those with a value, and those that audit nothing."""
_GENERAL = ("runs", "until_decided", "config", "trust_config", "debug", "plugin")
_MAP_KEYS = ("stability", "faithfulness", "keep_misclassified")
_TRUTH_KEYS = ("boxes", "masks")
_ATTACK_KEYS = ("eps", "norm", "engine")
_CORRUPTION_KEYS = ("constants", "variant", "frost_dir")


def _typed(wanted: Callable[[str], bool]) -> list[str]:
    """Return the wanted options that are on the command line (not from the environment or a file), as written."""
    context = click.get_current_context(silent=True)  # none in a call from Python
    typed = click.core.ParameterSource.COMMANDLINE
    return [
        max(parameter.opts, key=len)
        for parameter in (context.command.params if context else ())
        if wanted(name := str(parameter.name)) and context and context.get_parameter_source(name) is typed
    ]


def refuse_for_pictures() -> None:
    """Raise ProtocolError for an option of the command line that does nothing for a user's own pictures."""
    if given := _typed(lambda name: name not in PICTURE_KEYS):
        raise ProtocolError(
            f"{', '.join(given)}: only for a data set, and pictures of your own are given; leave out, or give "
            "--data-dir in place of the pictures"
        )


def refuse_idle(names: Sequence[str], why: str) -> None:
    """Raise ProtocolError, with `why`, where one of these is on the command line, since it would do nothing."""
    if given := _typed(lambda name: name in names):
        raise ProtocolError(f"{', '.join(given)}: {why}")


def refuse_idle_parts(options: Mapping[str, Any]) -> None:
    """Raise ProtocolError for options on how to attack, corrupt or explain, where that is not done."""
    if options.get("attacks") == "none":
        refuse_idle(_ATTACK_KEYS, "only for attacks, and --attacks is none; name some, or leave it out")
    if options.get("corruptions") is None and options.get("corrupted_dir") is None:
        refuse_idle(_CORRUPTION_KEYS, "only for corruptions, and there are none; give --corruptions, or leave it out")
    if options.get("cams") is None:
        idle = _MAP_KEYS if options.get("region_noise") else (*_MAP_KEYS, *_TRUTH_KEYS)
        refuse_idle(idle, "only for maps, and there are none; give --cams, or leave it out")


def refuse_audit(runs: int) -> None:
    """Raise ProtocolError where options, or several arguments, mean something with --until-decided only."""
    every = [str(parameter.name) for parameter in click.get_current_context().command.params]
    others = [name for name in every if name not in (*GATE, *_GENERAL)]
    refuse_idle(others, "only with --until-decided; give that, or leave it out: a run says how it was computed")
    if runs != 1:
        raise ProtocolError(f"{runs} runs; expected one, or checkpoints with --until-decided")
