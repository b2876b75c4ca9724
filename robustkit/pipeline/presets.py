"""Presets: common amounts of work, each a list of options that stand for it. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ProtocolError, unknown
from ..runs.description import without_option

_FEW = "gaussian_noise(severity=3),defocus_blur(severity=3),fog(severity=3),jpeg_compression(severity=3)"
OPTIONS: dict[str, dict[str, dict[str, str | int]]] = {
    "classification": {
        "quick": {"attacks": "fgsm,pgd", "corruptions": _FEW, "limit": 100},
        "standard": {"attacks": "fgsm,pgd", "corruptions": "in-c", "cams": "grad-cam", "limit": 1000},
        "full": {"attacks": "fgsm,pgd,autoattack", "corruptions": "in-c,in-c-extra", "cams": "grad-cam"},
    },
    "segmentation": {
        "quick": {"attacks": "pgd", "corruptions": _FEW, "limit": 50},
        "standard": {"attacks": "pgd,segpgd", "corruptions": "segformer-16", "limit": 500},
        "full": {"attacks": "pgd,segpgd", "corruptions": "in-c,in-c-extra"},
    },
}
"""Options by preset, by task. The radius is the protocol card's; without a limit all samples are evaluated. Grad-CAM
works for CNNs and ViTs alike.
"""
NAMES = tuple(OPTIONS["classification"])
_CONSTANTS = ("auto", "imagenet", "cifar")


@dataclass(frozen=True)
class Preset:
    """An amount of work by its name, and the options that stand for it."""

    name: str
    options: Mapping[str, str | int]

    def only(self, names: Iterable[str]) -> Preset:
        """Return the part of it that these options say."""
        return Preset(self.name, {name: self.options[name] for name in names if name in self.options})

    def words(self) -> Iterator[str]:
        """Yield the words of a command that say the same."""
        for name, value in self.options.items():
            yield from (f"--{name.replace('_', '-')}", str(value))


def preset_of(task: str, name: str) -> Preset:
    """Return a preset by its name. Raises ProtocolError for an unknown one."""
    presets = OPTIONS.get(task, {})
    if name in presets:
        return Preset(name, presets[name])
    if name in _CONSTANTS:
        raise ProtocolError(
            f"preset {name!r}: the constants of corruptions are chosen by --constants {name}; a preset is an amount of "
            f"work: {', '.join(presets) or 'none for this task'}"
        )
    raise ProtocolError(unknown("preset", name, presets))


def spelled_out(words: Sequence[str], preset: Preset) -> list[str]:
    """Return the words of a command with the options that a preset stands for in place of its name."""
    rest = without_option(words, "--preset")
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *preset.words(), *rest[end:]]
