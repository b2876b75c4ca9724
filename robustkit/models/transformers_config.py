"""What the JSON files of a transformers checkpoint say, checked before the library sees any of it.

Nothing that they name is executed or fetched: code of a repository's own, kernels, backbones from elsewhere and
quantisers are refused, and numbers are bounded, since a list of a billion layers fills the memory before a tensor is
made.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.files import json_of, reason_of
from ..common.preprocessing import LARGEST_SIDE, is_real
from ..data.class_names import printable
from ..errors import CheckpointError, ModelError

CONFIG, PROCESSORS = "config.json", ("preprocessor_config.json", "processor_config.json")
MOST = 16 << 20  # bytes of a config.json, which may name 22 000 classes
_LARGEST = 1_000_000  # of any whole number in it
_DEEPEST = 20
_DROPPED = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation")
"""What may name code to fetch; attention is chosen by us."""
_REFUSED = {
    "auto_map": "it names custom code, and code from a checkpoint is never executed",
    "quantization_config": "its weights are quantised; expected plain float weights",
    "custom_pipelines": "it names custom code, and code from a checkpoint is never executed",
}
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_UNLIKE = {
    "do_pad": "padded images",
    "rescale_offset": "pixels shifted to [-1, 1]",
    "do_flip_channel_order": "channels in the order BGR",
    "keep_aspect_ratio": "a size that depends on the image",
}
_SWITCHES = (
    *("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_pad"),
    *("do_flip_channel_order", "include_top"),
)


@dataclass(frozen=True)
class Folder:
    """A folder in the library's layout. config, processor: their JSON, the latter None where there is none."""

    path: Path
    config: dict[str, Any] = field(repr=False)
    processor: dict[str, Any] | None = field(repr=False)

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in (CONFIG, *PROCESSORS):
            if (self.path / name).is_file():
                digest.update((self.path / name).read_bytes())
        return digest.hexdigest()

    @property
    def class_names(self) -> list[str] | None:
        """The classes in order; None where they are missing or are only LABEL_0 and so on."""
        labels = self.config.get("id2label")
        if not isinstance(labels, Mapping):
            return None
        numbered = {str(key): value for key, value in labels.items()}
        names = [numbered.get(str(place)) for place in range(len(numbered))]
        if not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{self.path / CONFIG}: id2label does not name the classes 0 … {len(names) - 1}")
        return None if all(name == f"LABEL_{place}" for place, name in enumerate(names)) else [str(n) for n in names]


def is_theirs(config: object) -> bool:
    return isinstance(config, Mapping) and isinstance(config.get("model_type"), str) and "architecture" not in config


def read_folder(path: Path) -> Folder:
    config = _checked(path / CONFIG)
    if not is_theirs(config):
        raise CheckpointError(f"{path / CONFIG}: names no model_type; expected a config.json of transformers")
    processors = [_checked(path / name) for name in PROCESSORS if (path / name).is_file()]
    processor = processors[0] if processors else None
    if processor is not None and isinstance(processor.get("image_processor"), dict):  # of a processor of several kinds
        processor = processor["image_processor"]
    return Folder(path, config, processor)


def _checked(file: Path) -> dict[str, Any]:
    try:
        content = json_of(file, MOST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not JSON ({reason_of(error)}); expected a file of transformers") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}; expected a JSON object")
    for where, key, value in _entries(content, "", 0, file):
        if key in _REFUSED and value:
            raise CheckpointError(f"{file}: {where}: {_REFUSED[key]}")
        if key in ("backbone", "backbone_checkpoint") and isinstance(value, str):
            why = "it is built from another model, which nothing here fetches"
            raise CheckpointError(f"{file}: {where} = {value[:80]!r}: {why}; expected a backbone_config")
        if key == "use_pretrained_backbone" and value:
            raise CheckpointError(f"{file}: {where}: it would fetch other weights; expected those of this checkpoint")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{file}: {where} is {value}; expected a finite number")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
            raise CheckpointError(f"{file}: {where} = {str(value)[:40]}; expected at most {_LARGEST}")
    return _without(content)  # type: ignore[no-any-return]


def _entries(value: Any, where: str, depth: int, file: Path) -> Iterator[tuple[str, str, Any]]:
    if depth > _DEEPEST:
        raise CheckpointError(f"{file}: nested more than {_DEEPEST} deep; expected a file of transformers")
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        path = f"{where}.{key}" if where else str(key)
        yield printable(path[:120]), str(key), inner
        yield from _entries(inner, path, depth + 1, file)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner) for key, inner in value.items() if key not in _DROPPED}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def processor_normalisation(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return mean and std of a processor, with its class's defaults. CheckpointError for what these do not express."""
    for name in _SWITCHES:
        if not isinstance(config.get(name), bool | None):
            raise CheckpointError(f"{where}: {name} is {repr(config[name])[:80]}; expected true or false")
    rescaled = config.get("do_rescale") is not False
    for key, what in _UNLIKE.items():
        if config.get(key) and (key != "rescale_offset" or rescaled):
            raise CheckpointError(f"{where}: {key} asks for {what}, which is not supported")
    factor = config.get("rescale_factor", 1 / 255)
    if not rescaled:
        expected = "expected true, with rescale_factor 1/255: pixels in [0, 1]"
        raise CheckpointError(f"{where}: do_rescale is false; {expected}")
    if not is_real(factor) or not math.isclose(factor, 1 / 255, rel_tol=1e-6):
        text = f"the text {factor[:80]!r}" if isinstance(factor, str) else repr(factor)[:80]
        raise CheckpointError(f"{where}: rescale_factor is {text}; expected 1/255 = {1 / 255}, for pixels in [0, 1]")
    if config.get("do_normalize") is False:
        mean, std = [0.0] * 3, [1.0] * 3
    else:
        mean, std = (_three(config.get(name), name, where) for name in ("image_mean", "image_std"))
    if config.get("include_top"):  # EfficientNet's divides by std once more, whether it normalised or not
        std = [a * b for a, b in zip(std, _three(config.get("image_std"), "image_std", where), strict=True)]
    return {"mean": mean, "std": std}


def _three(value: Any, name: str, where: Path) -> list[float]:
    numbers = [value] * 3 if is_real(value) else value
    if numbers is None:
        return [0.0] * 3 if name == "image_mean" else [1.0] * 3
    if not isinstance(numbers, list | tuple) or len(numbers) != 3 or not all(map(is_real, numbers)):
        raise CheckpointError(f"{where}: {name} is {repr(value)[:80]}; expected three numbers")
    mean = name == "image_mean"
    if not all(0 <= number <= 1 and (mean or number > 1e-30) for number in numbers):
        larger = max(numbers) > 1 if mean else min(numbers) > 1
        scale = ", as rescale_factor makes pixels: divide it by 255" if larger else ""
        span = "[0, 1]" if mean else "(0, 1]"
        raise CheckpointError(f"{where}: {name} is {repr(value)[:80]}; expected three numbers in {span}{scale}")
    return [float(number) for number in numbers]


def resizing(config: Mapping[str, Any], kind: str, where: Path) -> dict[str, Any]:
    """Return a processor's size, interpolation and crop; empty for images as they come. CheckpointError for others."""
    cut = _pair(config.get("crop_size"), where) if config.get("do_center_crop") else None
    if config.get("do_resize") is False:
        if cut is not None:
            raise CheckpointError(f"{where}: do_center_crop without do_resize is not supported")
        return {}
    resample = config.get("resample", 2)
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in _RESAMPLING:
        methods = ", ".join(f"{number} ({name})" for number, name in _RESAMPLING.items())
        raise CheckpointError(f"{where}: resample is {repr(resample)[:80]}; expected one of {methods}")
    if (most := config.get("max_num_patches")) is not None:  # of SigLIP 2: as many patches as fit, in the image's shape
        step = config.get("patch_size")
        if not (isinstance(most, int) and isinstance(step, int) and 1 <= most <= LARGEST_SIDE and 1 <= step <= 256):
            raise CheckpointError(f"{where}: max_num_patches {most!r}, patch_size {step!r}; expected whole numbers")
        side = math.isqrt(most) * step
        return {
            "interpolation": _RESAMPLING[resample],
            "input_size": [side, side],
            "crop_pct": 1.0,
            "crop_mode": "squash",
        }
    size, share = config.get("size"), config.get("crop_pct")
    if share is not None and not (is_real(share) and 0.1 <= share <= 1):
        raise CheckpointError(f"{where}: crop_pct is {repr(share)[:80]}; expected a number in [0.1, 1]")
    if isinstance(size, Mapping) and size.get("longest_edge") is not None:
        raise CheckpointError(f"{where}: size {dict(size)} has a longest_edge, which is not supported")
    short = _side(size, "shortest_edge", where)
    whole = _pair(size, where)
    if isinstance(size, int) and config.get("default_to_square") is False:
        short, whole = size, None
    if kind.startswith("ConvNext") and short is not None and share is not None and cut is None:
        if short < 384:  # resized and cut below 384 pixels, squashed from there on
            short, cut = int(short / share), (short, short)
        else:
            whole, short = (short, short), None
    elif kind.startswith("PoolFormer") and share is not None and (edge := short or _square(whole)):
        short, whole = int(edge / share), None
    elif kind.startswith("Levit") and short is not None:
        short = int(256 / 224 * short)
    settings: dict[str, Any] = {"interpolation": _RESAMPLING[resample]}
    if whole is not None and cut is None:
        return settings | {"input_size": list(whole), "crop_pct": 1.0, "crop_mode": "squash"}
    if cut is not None and cut[0] == cut[1]:
        if short is not None:
            settings["crop_mode"] = "center-floor"
        elif edge := _square(whole):
            short, settings["crop_mode"] = edge, "squash"
        if short is not None:
            return settings | {"input_size": list(cut), "crop_pct": _share(cut[0], short, where)}
    text = f"size {size}" if cut is None else f"size {size} with crop_size {config.get('crop_size')}"
    if cut is None and short is not None:  # images of any aspect
        crop = "is true without a crop_size" if config.get("do_center_crop") else "is false"
        text = f"do_center_crop {crop}, and {text}"
    usual = "a square crop after shortest_edge, or height and width alone"
    raise CheckpointError(f"{where}: {text}: not supported; expected {usual}")


def _side(size: Any, name: str, where: Path) -> int | None:
    value = size.get(name) if isinstance(size, Mapping) else size if name == "" else None
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_SIDE:
        of = f"{name} of size" if name else "size"
        raise CheckpointError(f"{where}: {of} is {repr(value)[:80]}; expected 1 to {LARGEST_SIDE} pixels")
    return value


def _pair(size: Any, where: Path) -> tuple[int, int] | None:
    if not isinstance(size, Mapping | None):
        side = _side(size, "", where)
        return None if side is None else (side, side)
    height, width = _side(size, "height", where), _side(size, "width", where)
    return None if height is None or width is None else (height, width)


def _square(size: tuple[int, int] | None) -> int | None:
    return size[0] if size is not None and size[0] == size[1] else None


def _share(crop: int, size: int, where: Path) -> float:
    if crop > size:
        raise CheckpointError(f"{where}: crop_size {crop} is larger than size {size}; expected a crop inside the image")
    share = crop / size
    return share if math.floor(crop / share) == size else crop / (size + 0.5)


@contextlib.contextmanager
def quiet(what: str) -> Iterator[None]:
    """Let the library say nothing, and turn whatever it raises into one line."""
    from transformers.utils import logging as their_logging

    theirs: Any = their_logging
    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (CheckpointError, ModelError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what a config says may break the library anywhere; a panic of Rust is no Exception
        lines = " ".join(filter(None, map(str.strip, str(error).splitlines()[:3])))
        text = f"{type(error).__name__}: {printable(lines)[:200]}".rstrip(": ")
        raise CheckpointError(f"{what}: refused by transformers ({text}); check the files of the checkpoint") from error
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
