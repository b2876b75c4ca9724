"""Read what a training script left next to the weights, and what names say: claims about a model's set-up.

A claim is never proof. Each has a source, which run.json keeps: `metadata` where the file states the value, `trainer`
where the arguments are those of a known script and the script fixes the value, `name` where only a name says so.

The scripts, read in their public code: DeiT and what is built on it (QUEST, Elliptical), MAE, BEiT, ConvNeXt, DINO and
iBOT, the references of torchvision, and timm's train.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..attention.registry import FORMULAS
from ..common.preprocessing import IMAGENET, INCEPTION

_HOLDERS = ("args", "config", "hparams", "hyper_parameters", "opt", "cfg", "arguments")
_NAMES = {  # argument of a training script -> name in our metadata
    **dict.fromkeys(("arch", "model", "model_name"), "arch"),
    **dict.fromkeys(("num_classes", "nb_classes", "num_labels"), "num_classes"),
    **dict.fromkeys(("img_size", "image_size", "input_size", "val_crop_size"), "input_size"),
    **dict.fromkeys(("attention", "attn_type", "attention_type", "attn"), "attention"),
    **dict.fromkeys(("mean", "image_mean", "img_mean"), "mean"),
    **dict.fromkeys(("std", "image_std", "img_std"), "std"),
    **dict.fromkeys(("crop_pct", "eval_crop_ratio"), "crop_pct"),
    **{name: name for name in ("interpolation", "crop_mode")},
}
_INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos")
_OF_DINO = ("out_dim", "teacher_temp", "global_crops_scale", "local_crops_number", "n_last_blocks")
_NEGATED = re.compile(r"(?i)(^|_)(no|not|non|without|disable[sd]?|skip|ablat\w*|distill?\w*|from|vs|compare\w*)(_|$)")
_WORDS = {"mahala": "elliptical", "mahalanobis": "elliptical"}
_NAMED = {name: name for name, formula in FORMULAS.items() if not formula.initial(1, 1) and "-" not in name} | _WORDS


@dataclass
class Claims:
    """What a file says about its model. metadata: JSON types, by the names of our own checkpoints. sources: of each
    entry, `metadata`, `trainer` or `name`. notes: lines for the user.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def claim(self, name: str, value: Any, source: str = "metadata") -> None:
        """Keep a value, unless there is one."""
        if name not in self.metadata:
            self.metadata[name], self.sources[name] = value, source


def claims_of(content: Mapping[str, Any]) -> Claims:
    """Return what a training script saved next to the weights. content: what torch.load returned; no value of it runs.

    A value stands in the file's top level or in the arguments next to the weights; the first found counts.
    """
    claims = Claims()
    holders = [content, *(held for name in _HOLDERS if (held := _arguments(content.get(name))) is not None)]
    for holder in holders:
        for theirs, ours in _NAMES.items():
            if (value := _plain(holder.get(theirs))) is not None:
                claims.claim(ours, value)
    _check_attention(claims, holders)
    _check_size(claims)
    _check_pixels(claims)
    size = claims.metadata.get("input_size")
    if size and max(size) <= 32 and any("eval_crop_ratio" in holder for holder in holders):
        claims.metadata["crop_pct"] = 1.0  # DeiT's script shows such images whole
    for holder in holders:
        for script, values in _fixed_by(holder, size):
            for name, value in values.items():
                claims.claim(name, value, "trainer")
            taken = ", ".join(name for name in values if claims.sources[name] == "trainer")
            if taken:
                claims.notes.append(f"{taken} as {script} fixes them: the file holds its arguments")
    return claims


def formula_in(name: str) -> str | None:
    """Return the attention formula that a name of a model or file mentions: `deit_tiny_patch16_224_quest` -> `quest`.
    None where it mentions none, or several that are no formula together.
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    words |= {word.lower() for word in re.split(r"[^A-Za-z0-9]+", name)}
    found = {_NAMED[word] for word in words if word in _NAMED}
    if found == {"elliptical", "quest"} or "ellipticalquest" in words:
        return "elliptical-quest"
    return found.pop() if len(found) == 1 else None


def _arguments(value: object) -> Mapping[str, Any] | None:
    value = vars(value) if isinstance(value, argparse.Namespace) else value
    return value if isinstance(value, Mapping) else None


def _plain(value: object) -> Any:
    """Return a text, a number that a message can show, or a short list of them; None for anything else."""
    if isinstance(value, list | tuple):
        values = [_plain(item) for item in value]
        return values if 0 < len(values) < 10 and None not in values else None
    if isinstance(value, str):
        return value or None
    return value if isinstance(value, int | float) and not abs(value) >= 1 << 63 else None


def _check_attention(claims: Claims, holders: list[Mapping[str, Any]]) -> None:
    """Keep a formula that is known; a flag such as `quest=True` or `use_quest=True` names one, too."""
    said = claims.metadata.get("attention")
    if said is not None and said not in ("none", "other"):
        formula = next((name for name in FORMULAS if str(said).strip().lower() == name), None)
        if formula is None and str(said).partition("(")[0] not in FORMULAS:
            del claims.metadata["attention"], claims.sources["attention"]
            claims.notes.append(f"the file says attention {str(said)[:40]!r}, which is none of robustkit's formulas")
        elif formula is not None:
            claims.metadata["attention"] = formula
    for holder in holders[1:]:
        flags = [str(name) for name, value in holder.items() if value is True and not _NEGATED.search(str(name))]
        found = {formula for flag in flags if (formula := formula_in(flag)) not in (None, "standard")}
        if found == {"elliptical", "quest"}:
            found = {"elliptical-quest"}
        if len(found) == 1:
            claims.claim("attention", found.pop(), "name")  # of an argument, which may mean something else


def _check_size(claims: Claims) -> None:
    """Keep an image size as [height, width]; timm's option has the channels first."""
    size = claims.metadata.get("input_size")
    sides = size[-2:] if isinstance(size, list) else [size]
    if all(type(side) is int for side in sides):
        claims.metadata["input_size"] = sides if len(sides) == 2 else sides * 2
    else:  # others say nothing that can be used
        claims.metadata.pop("input_size", None)
        claims.sources.pop("input_size", None)


def _check_pixels(claims: Claims) -> None:
    """Keep a mean and std of three channels, in units of pixels in [0, 1], and an interpolation that is known."""
    for name in ("mean", "std"):
        values = claims.metadata[name] = _three(claims.metadata[name]) if name in claims.metadata else None
        if values is None:
            del claims.metadata[name]
        if values is not None and not (isinstance(values, list) and len(values) == 3 and all(map(_is_real, values))):
            _drop(claims, name, "expected three numbers")
    both = [claims.metadata.get(name, []) for name in ("mean", "std")]
    if all(both) and max(both[0]) > 1:  # of pixels in 0 to 255
        for name in ("mean", "std"):
            claims.metadata[name] = [value / 255 for value in claims.metadata[name]]
        claims.notes.append("the file's mean and std are of pixels from 0 to 255; divided by 255")
    interpolation = claims.metadata.get("interpolation")
    if interpolation is not None and str(interpolation).lower() not in _INTERPOLATIONS:
        _drop(claims, "interpolation", f"expected one of {', '.join(_INTERPOLATIONS)}")


def _three(value: Any) -> Any:
    """Return three numbers where a text or a single number stands for them; anything else as it is."""
    if isinstance(value, str):
        try:
            value = [float(part) for part in value.replace(",", " ").strip("[]() ").split()]
        except ValueError:
            return value
    values = [value] if _is_real(value) else value
    return values * 3 if isinstance(values, list) and len(values) == 1 else values


def _drop(claims: Claims, name: str, expected: str) -> None:
    value = claims.metadata.pop(name)
    del claims.sources[name]
    claims.notes.append(f"the file says {name} {repr(value)[:40]}, which is left out; {expected}")


def _fixed_by(arguments: Mapping[str, Any], size: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a script whose arguments these are, with the values of the set-up that its code fixes."""
    side = max(size) if isinstance(size, list) else 224
    # What MAE, BEiT and ConvNeXt do: a crop of 224 from 256, and no crop of larger images.
    usual = {"crop_pct": 224 / 256 if side <= 224 else 1.0, "interpolation": "bicubic"}
    if isinstance(default := arguments.get("imagenet_default_mean_and_std"), bool):
        mean, std = IMAGENET if default else INCEPTION
        yield "BEiT's or ConvNeXt's script", {"mean": list(mean), "std": list(std), **usual}
        return
    statistics = {"mean": list(IMAGENET[0]), "std": list(IMAGENET[1])}
    if _is_number(arguments.get("eval_crop_ratio")):
        yield "DeiT's script", {**statistics, "interpolation": "bicubic"}
    elif _is_number(arguments.get("val_crop_size")) and _is_number(arguments.get("val_resize_size")):
        crop = min(1.0, arguments["val_crop_size"] / arguments["val_resize_size"])
        yield "torchvision's script", {**statistics, "crop_pct": crop, "interpolation": "bilinear"}
    elif "nb_classes" in arguments and "input_size" in arguments and "mean" not in arguments:  # timm's has a mean
        yield "DeiT's or MAE's script", {**statistics, **(usual if side > 32 else {})}
    elif isinstance(arguments.get("arch"), str) and any(name in arguments for name in _OF_DINO):
        yield "DINO's or iBOT's script", {**statistics, "crop_pct": 224 / 256, "interpolation": "bicubic"}


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_real(value) and value > 0  # type: ignore[operator]
