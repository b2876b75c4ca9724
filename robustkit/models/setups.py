"""Ways to set a model up that people mix up: attention formula, normalisation, crop, resize, channels, labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..common.preprocessing import IMAGENET, INCEPTION, Preprocessing, few_numbers
from ..data.class_names import class_names

AS_GIVEN = "as given"
PARTS = ("attention", "normalisation", "crop", "interpolation", "channels", "labels")
_CIFAR = (0.4914, 0.4822, 0.4465)
NORMALISATIONS = {
    "ImageNet": IMAGENET,
    "0.5 / 0.5": INCEPTION,
    "none, 0 to 1": ((0.0,) * 3, (1.0,) * 3),
    "none, 0 to 255": ((0.0,) * 3, (1 / 255,) * 3),
    "ImageNet, 0 to 255": (IMAGENET[0], (1 / 255,) * 3),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": (_CIFAR, (0.2470, 0.2435, 0.2616)),
    "CIFAR-10, std 0.2": (_CIFAR, (0.2023, 0.1994, 0.2010)),
    "127 / 128 of 255": ((127 / 255,) * 3, (128 / 255,) * 3),
}
"""Means and stds of [0, 1] by name; the last are those of EfficientNet-Lite, `to 255` those of Caffe."""
CROPS = (0.875, 0.9, 0.95, 1.0)
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest")
_SAME = 5e-4  # means and stds that differ by less are the same, written with fewer digits


@dataclass(frozen=True)
class Setup:
    """What a model computes, what it is shown, and how labels are numbered.

    attention: the name of its formula; empty where it takes none. bgr: whether it is shown channels in reverse order,
    each normalised as the colour that it is. labels: the name of a numbering, see `numberings`.
    """

    preprocessing: Preprocessing
    bgr: bool = False
    labels: str = AS_GIVEN
    attention: str = ""

    def with_part(self, part: str, other: Setup) -> Setup:
        """Return it with one part of another."""
        p, theirs = self.preprocessing, other.preprocessing
        if part in ("attention", "channels", "labels"):
            name = "bgr" if part == "channels" else part
            return replace(self, **{name: getattr(other, name)})
        if part == "normalisation":
            return replace(self, preprocessing=replace(p, mean=theirs.mean, std=theirs.std))
        name = "crop_pct" if part == "crop" else part
        return replace(self, preprocessing=replace(p, **{name: getattr(theirs, name)}))

    def name(self, part: str) -> str:
        """Return one part of it in words."""
        p = self.preprocessing
        if part == "normalisation":
            known = (name for name, values in NORMALISATIONS.items() if _is_same(p, values))
            return next(known, f"mean {few_numbers(p.mean)}, std {few_numbers(p.std)}")
        if part == "channels":
            return "BGR" if self.bgr else "RGB"
        names = {"crop": f"{p.crop_pct:g}", "interpolation": p.interpolation, "labels": self.labels}
        return {**names, "attention": self.attention}[part]

    def option(self, part: str) -> str:
        """Return how a command asks for one part of it, or what is to be done where none can."""
        p = self.preprocessing
        if part == "normalisation":
            words = (
                "--{} '{}'".format(name, " ".join(f"{v:.6g}" for v in _few(getattr(p, name))))
                for name in ("mean", "std")
            )
            return f"give {' '.join(words)}"
        if part == "channels":
            return "swap the channels in a --arch FILE.py:FUNCTION of your own"
        if part == "labels":
            return "number the labels so in a --labels FILE.csv"
        if part == "attention":
            return f"give --attention {self.attention}"
        return f"give --crop-pct {p.crop_pct:g}" if part == "crop" else f"give --interpolation {p.interpolation}"


def _few(values: Sequence[float]) -> Sequence[float]:
    return values if len(set(values)) > 1 else values[:1]


def _is_same(p: Preprocessing, values: tuple[Sequence[float], Sequence[float]]) -> bool:
    pairs = zip((*p.mean, *p.std), (*values[0], *values[1]), strict=True)
    return all(abs(a - b) < _SAME * max(1.0, b) and abs(a - b) < 0.1 * max(a, b, _SAME) for a, b in pairs)


def alternatives(
    part: str, setup: Setup, numbered: Mapping[str, Sequence[int]], formulas: Sequence[str] = ()
) -> dict[str, Setup]:
    """Return a setup, first, and those that differ from it in one part, by the names of that part.

    formulas: of attention, that the model's tensors allow.
    """
    others = _others(part, setup, numbered, formulas)
    return {setup.name(part): setup} | {other.name(part): other for other in others}


def _others(part: str, setup: Setup, numbered: Mapping[str, Sequence[int]], formulas: Sequence[str]) -> Iterator[Setup]:
    p = setup.preprocessing
    if part == "attention":
        yield from (replace(setup, attention=name) for name in formulas if name != setup.attention)
    elif part == "normalisation":
        for values in NORMALISATIONS.values():
            if not _is_same(p, values):
                yield replace(setup, preprocessing=replace(p, mean=values[0], std=values[1]))
    elif part == "crop":
        yield from (replace(setup, preprocessing=replace(p, crop_pct=c)) for c in CROPS if c != p.crop_pct)
    elif part == "interpolation":
        others = (name for name in INTERPOLATIONS if name != p.interpolation)
        yield from (replace(setup, preprocessing=replace(p, interpolation=name)) for name in others)
    elif part == "channels":
        yield replace(setup, bgr=not setup.bgr)
    else:
        yield from (replace(setup, labels=name) for name in numbered if name != setup.labels)


def numberings(names: Sequence[str], outputs: int) -> dict[str, list[int]]:
    """Return numberings of labels: by name, from a label of the data to an output of the model.

    names: of the data's classes, in the order of their labels. outputs: how many the model has.
    """
    count = min(len(names), outputs)
    as_given = list(range(count))
    found = {
        AS_GIVEN: as_given,
        "label + 1": [(label + 1) % outputs for label in as_given],
        "label - 1": [(label - 1) % outputs for label in as_given],
    }
    readable, plain = class_names(tuple(names[:count]), count), list(names[:count])
    orders = {
        "names in alphabetical order": [name.casefold() for name in readable],
        "names, capitals first": plain,
    }
    ranked = {name: _places(keys) for name, keys in orders.items()}
    if all(name.isascii() and name.isdecimal() and len(name) < 10 for name in plain):
        ranked["names in the order of their numbers"] = _places([int(name) for name in plain])
    for name, places in ranked.items():
        if places not in found.values():
            found[name] = places
    return found


def _places(keys: Sequence[str] | Sequence[int]) -> list[int]:
    places = [0] * len(keys)
    for place, label in enumerate(sorted(range(len(keys)), key=lambda label: keys[label])):
        places[label] = place
    return places
