"""All corruptions by name: those of the package `corruptions`, and the ones of plug-ins."""

from __future__ import annotations

import corruptions

from ...common.plugins import Registry, subclass_of
from .condition import SETS

EVERY_CORRUPTION: Registry[type[corruptions.Corruption]] = Registry(
    "corruptions", corruptions.CORRUPTIONS, subclass_of(corruptions.Corruption), (*SETS, "corruption")
)


def make(
    name: str, preset: str, variant: str, frost_dir: str | None, texture: str = "photographs"
) -> corruptions.Corruption:
    """Return the corruption of this name; see `corruptions.corruption`.

    Raises:
        ValueError: unknown preset, variant or texture, or the pair has no definition.
        PluginError: a plug-in cannot be used.
    """
    if name in corruptions.CORRUPTIONS:
        return corruptions.corruption(name, preset=preset, variant=variant, frost_dir=frost_dir, texture=texture)
    return EVERY_CORRUPTION[name](preset, variant)
