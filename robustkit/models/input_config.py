"""What the user, the file and the architecture say about a model's pixels, in this order of precedence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timm.data import resolve_data_config  # type: ignore[attr-defined, unused-ignore]
from torch import nn

from ..common.names import IN_MEMORY
from ..common.preprocessing import (
    ASSUMED,
    INTERPOLATIONS,
    LARGEST_SIDE,
    MOST_CHANNELS,
    UNPROVEN,
    Preprocessing,
    few_numbers,
)
from ..errors import ModelError, unknown
from .architecture import is_factory, probed_size, zeros_through
from .specs import reader_options

CROP_MODES = ("center", "center-floor", "squash", "border")
SMALL = 64
"""The side up to which images are by default shown whole: those of CIFAR, SVHN and Tiny ImageNet are not cropped."""
_LEAST_CROP = 0.1  # images are resized to their input size over this


@dataclass(frozen=True)
class InputOptions:
    """Options of `load` that outweigh what a file says; None where the user said nothing."""

    arch: str | None
    attention: str | None
    num_classes: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    interpolation: str | None = None
    crop_pct: float | None = None
    crop_mode: str | None = None
    img_size: int | tuple[int, int] | None = None
    classes: str | tuple[str, ...] | None = None
    prompts: str | tuple[str, ...] | None = None
    custom_ops: str | Path | None = None
    output: str | int | None = None
    text: str | None = None
    value_range: Sequence[float] | None = None


def refuse_output(spec: str | Path | nn.Module, options: InputOptions, features: bool = False) -> None:
    """Raise ModelError for an output that is chosen of a network that we build, and whose output is known."""
    if options.output is None:
        return
    chosen = (
        isinstance(spec, nn.Module) or str(spec).startswith(IN_MEMORY) or "output" in (reader_options(str(spec)) or ())
    )
    if features or not (chosen or is_factory(options.arch or "")):
        label = type(spec).__name__ if isinstance(spec, nn.Module) else spec
        where = "its features are" if features else "its only output is"
        raise ModelError(f"--logits {options.output} does not apply to {label}: {where} taken; leave it out")


def resolve_preprocessing(
    network: nn.Module,
    options: InputOptions,
    metadata: Mapping[str, Any],
    where: str,
    *,
    origins: Mapping[str, str] = MappingProxyType({}),
    config_of: str = "architecture",
) -> tuple[Preprocessing, dict[str, str], tuple[str, ...]]:
    """Return how images become pixels, who said each value (`common.preprocessing.SOURCES`), and notes for the user.
    Each value comes from the option, else metadata, else the architecture's config, else our default; notes say so.
    origins: the source of metadata that is not the file's own (`Checkpoint.metadata_source`). config_of: the config is
    `published` with these weights, `code` of the user's own, or `architecture`. Images of at most `SMALL` pixels are
    not cropped by default.
    """
    config = getattr(network, "pretrained_cfg", None) or getattr(network, "default_cfg", None)
    if config_of == "code" and isinstance(config, Mapping) and config.get("architecture"):
        config_of = "architecture"  # timm's own, which comes with any network that timm builds: the code states nothing
    notes, sources, defaults = list[str](), dict[str, str](), dict[str, Any]()
    if isinstance(config, Mapping) and config:  # timm's data config, with its defaults filled in
        defaults = dict(resolve_data_config(pretrained_cfg=config))  # type: ignore[no-untyped-call, unused-ignore]
    by_config = {name: value for name, value in defaults.items() if config.get(name)}  # type: ignore[union-attr]
    size, sources["input_size"] = _input_size(network, options, metadata, by_config, where, notes, config_of)
    if sources["input_size"] == "metadata" and origins.get("input_size") == "family":
        sources["input_size"] = "family"
    small = max(size) <= SMALL
    if small and max(by_config.get("input_size", size)) > SMALL:
        by_config.pop("crop_pct", None)  # it is of larger images
    channels = channels_of(network, size, len(options.mean) if isinstance(options.mean, Sequence) else 0)
    usual = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "interpolation": "bicubic", "crop_mode": "center", **defaults}
    if channels != 3:  # the config is of RGB
        usual |= {"mean": (0.0,), "std": (1.0,)}
        by_config = {name: value for name, value in by_config.items() if name not in ("mean", "std")}
    usual["crop_pct"] = 1.0 if small else 0.875

    def choose(name: str) -> Any:
        by_file = origins.get(name, "metadata")
        ranked = (("option", getattr(options, name)), (by_file, metadata.get(name)), (config_of, by_config.get(name)))
        sources[name], value = next((each for each in ranked if each[1] is not None), (ASSUMED, usual[name]))
        return value

    mean, std = (_of_channels(choose(name), name, where, channels) for name in ("mean", "std"))
    if assumed := [name for name in ("mean", "std") if sources[name] == ASSUMED]:
        taken, lacking = f"{few_numbers(mean)} and {few_numbers(std)}", " and ".join(assumed)
        flags = " and ".join(f"--{name}" for name in assumed)
        notes.append(
            f"NO NORMALISATION: {lacking} cannot be inferred from the checkpoint; using mean and std "
            f"{taken}; give {flags}"
        )
    elif assumed := [name for name in ("mean", "std") if sources[name] in UNPROVEN]:
        why = {"trainer": "the values of its training script"}.get(sources[assumed[0]], "the architecture's defaults")
        notes.append(
            f"mean and std cannot be inferred from the weights; using {why}, mean "
            f"{few_numbers(mean)} and std {few_numbers(std)}. Give --mean and --std if training used others, or "
            "check with `robustkit inspect --data-dir`"
        )
    interpolation, crop_mode, crop_pct = choose("interpolation"), choose("crop_mode"), choose("crop_pct")
    if interpolation not in INTERPOLATIONS:
        raise ModelError(unknown("interpolation", interpolation, INTERPOLATIONS))
    if crop_mode not in CROP_MODES:
        raise ModelError(unknown("crop mode", crop_mode, CROP_MODES))
    if not isinstance(crop_pct, int | float) or not _LEAST_CROP <= crop_pct <= 1:
        crop_text = repr(crop_pct)[:80]
        raise ModelError(f"{where}: crop_pct is {crop_text}; expected a number in [{_LEAST_CROP}, 1]; check --crop-pct")
    values = options.value_range or metadata.get("value_range")
    ends = None if values is None else _range_of(values, where)
    preprocessing = Preprocessing(size, mean, std, interpolation, float(crop_pct), crop_mode, ends)
    if channels != 3 or ends:
        span = f"{ends[0]:g} to {ends[1]:g}" if ends else "those of 8 or 16 bits"
        one = f": eps 1/255 is {(ends[1] - ends[0]) / 255:.4g}" if ends else ""
        notes.append(f"images have {channels} channels; values {span} are taken as [0, 1]{one}")
    return preprocessing, sources, tuple(notes)


def channels_of(network: nn.Module, size: tuple[int, int], stated: int = 0) -> int:
    """Return how many channels a network takes: as many as means are stated, else as its first convolution has, where
    it fails on three."""
    if graph := getattr(network, "graph_channels", 0):
        return int(graph)
    first = next((part for part in nn.Module.modules(network) if isinstance(part, nn.Conv2d)), None)
    if stated > 1 and (first is None or first.in_channels == stated):
        return stated
    if first is None or first.in_channels == 3 or first.in_channels > MOST_CHANNELS:
        return 3
    for channels in (3, first.in_channels):
        try:
            zeros_through(network, size, channels)
        except Exception:  # the wrong number may raise anything
            continue
        return channels
    return 3


def _of_channels(value: Any, name: str, where: str, channels: int) -> tuple[float, ...]:
    value = (value,) if isinstance(value, int | float) else value
    value = value * channels if isinstance(value, list | tuple) and len(value) == 1 else value
    numbers = isinstance(value, Sequence) and all(isinstance(v, int | float) for v in value)
    within = (lambda v: 0 <= v <= 1) if name == "mean" else (lambda v: 1e-30 < v < 1e30)
    if not numbers or len(value) != channels or not all(map(within, value)):
        kind = "in [0, 1]" if name == "mean" else "above 0"
        several = f"{'three' if channels == 3 else f'one for all or {channels}'} finite numbers"
        expected = several if channels > 1 else "one finite number"
        raise ModelError(f"{where}: {name} is {value!r:.80}; expected {expected} {kind}; check --{name}")
    return tuple(map(float, value))


def _input_size(
    network: nn.Module,
    options: InputOptions,
    metadata: Mapping[str, Any],
    by_config: Mapping[str, Any],
    where: str,
    notes: list[str],
    config_of: str,
) -> tuple[tuple[int, int], str]:
    if options.img_size is not None:
        return height_and_width(options.img_size, where), "option"
    built = getattr(getattr(network, "patch_embed", None), "img_size", None) or getattr(network, "fixed_size", None)
    if built is not None:  # the size that a ViT was built for, or a graph takes, outweighs the config of its name
        return height_and_width(built, where), "network"
    if "input_size" in metadata:
        return height_and_width(metadata["input_size"], where, LARGEST_SIDE), "metadata"
    if "input_size" in by_config:
        return height_and_width(by_config["input_size"][-2:], where), config_of
    size = probed_size(network)
    notes.append(f"image size {size[0]} x {size[1]} found by trial; --img-size overrides it")
    return size, "tried"


def height_and_width(value: object, where: object, most: float = math.inf) -> tuple[int, int]:
    """Return (height, width) of one or two numbers; `most` for what a file says. Raises ModelError."""
    pair = (value, value) if isinstance(value, int) else value
    if isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(v, int) and 0 < v <= most for v in pair):
        return pair[0], pair[1]
    bound = "" if most == math.inf else f" up to {most}"
    expected = f"one or two positive whole numbers{bound}"
    raise ModelError(f"{where}: image size is {repr(value)[:80]}; expected {expected}; check --img-size")


def _range_of(values: Any, where: str) -> tuple[float, float]:
    """Return the two ends of a range as floats. Raises ModelError where a checkpoint states something else."""
    try:
        low, high = (float(value) for value in values if not isinstance(value, str | bool))
        if len(values) == 2 and -math.inf < low < high < math.inf:
            return low, high
    except (TypeError, ValueError, OverflowError):
        pass
    text = repr(values)[:80]
    raise ModelError(f"{where}: value_range is {text}; expected two rising numbers, such as 0 and 10000")
