"""What the user, the file and the architecture say about a model's pixels, in this order of precedence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timm.data import resolve_data_config  # type: ignore[attr-defined, unused-ignore]
from torch import nn

from ..common.preprocessing import Preprocessing
from ..errors import ModelError, unknown
from .architecture import probed_size
from .claims import LARGEST_SIDE

INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos")
CROP_MODES = ("center", "squash", "border")
_LEAST_CROP = 0.1  # images are resized to their input size over this


@dataclass(frozen=True)
class InputOptions:
    """Options of `load` that outweigh what a file says; None where the user said nothing."""

    arch: str | None
    attention: str | None
    num_classes: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    interpolation: str | None
    crop_pct: float | None
    crop_mode: str | None
    img_size: int | tuple[int, int] | None


def _timm_config(config: object) -> dict[str, Any]:
    """Return timm's data config with its defaults filled in; empty where there is none."""
    if not hasattr(config, "get"):
        return {}
    return dict(resolve_data_config(pretrained_cfg=config))  # type: ignore[no-untyped-call, unused-ignore]


def resolve_preprocessing(
    network: nn.Module, wanted: InputOptions, metadata: Mapping[str, Any], where: str
) -> tuple[Preprocessing, tuple[str, ...]]:
    """Take each value from the option, else metadata, else the architecture's config; a note names the values that none
    of them has.
    """
    config = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)
    defaults = _timm_config(config)
    notes: list[str] = []

    def choose(name: str, default: Any) -> Any:
        option, said = getattr(wanted, name), metadata.get(name)
        value = option if option is not None else said if said is not None else defaults.get(name, default)
        if name in ("mean", "std"):
            numbers = isinstance(value, Sequence) and all(isinstance(v, int | float) for v in value)
            within = (lambda v: 0 <= v <= 1) if name == "mean" else (lambda v: 1e-30 < v < 1e30)
            if not numbers or len(value) != 3 or not all(map(within, value)):
                kind = "in [0, 1]" if name == "mean" else "above 0"
                raise ModelError(
                    f"{where}: {name} is {repr(value)[:80]}; expected three finite numbers {kind}; check --{name}"
                )
            return tuple(map(float, value))
        return value

    if not defaults and wanted.mean is None and wanted.std is None and "mean" not in metadata:
        notes.append("NO NORMALISATION: nothing gives mean and std, 0 and 1 are taken; give --mean and --std")
    interpolation, crop_mode = choose("interpolation", "bicubic"), choose("crop_mode", "center")
    for name, value, choices in (
        ("interpolation", interpolation, INTERPOLATIONS),
        ("crop mode", crop_mode, CROP_MODES),
    ):
        if value not in choices:
            raise ModelError(unknown(name, value, choices))
    crop_pct = choose("crop_pct", 0.875)
    if not isinstance(crop_pct, int | float) or not _LEAST_CROP <= crop_pct <= 1:
        raise ModelError(
            f"{where}: crop_pct is {repr(crop_pct)[:80]}; expected a number in [{_LEAST_CROP}, 1]; check --crop-pct"
        )
    size = _input_size(network, wanted, metadata, defaults, where, notes)
    mean, std = choose("mean", (0.0, 0.0, 0.0)), choose("std", (1.0, 1.0, 1.0))
    return Preprocessing(size, mean, std, interpolation, float(crop_pct), crop_mode), tuple(notes)


def _input_size(
    network: nn.Module,
    wanted: InputOptions,
    metadata: Mapping[str, Any],
    defaults: Mapping[str, Any],
    where: str,
    notes: list[str],
) -> tuple[int, int]:
    if wanted.img_size is not None:
        return pair(wanted.img_size, where)
    built = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if built is not None:  # the size a ViT was built for outweighs the config of its name
        return pair(built, where)
    if "input_size" in metadata:
        return pair(metadata["input_size"], where, LARGEST_SIDE)
    if "input_size" in defaults:
        return pair(defaults["input_size"][-2:], where)
    size = probed_size(network)
    notes.append(f"image size {size[0]} x {size[1]} found by trying; --img-size says otherwise")
    return size


def pair(value: object, where: object, most: float = math.inf) -> tuple[int, int]:
    """Return (height, width) of one or two numbers; `most` for what a file says. Raises ModelError."""
    pair = (value, value) if isinstance(value, int) else value
    if isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(v, int) and 0 < v <= most for v in pair):
        return pair[0], pair[1]
    bound = "" if most == math.inf else f" up to {most}"
    raise ModelError(
        f"{where}: image size is {repr(value)[:80]}; expected one or two positive whole numbers{bound}; check "
        "--img-size"
    )
