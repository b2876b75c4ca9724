"""Check for the plug-ins without which a run's records cannot be read."""

from __future__ import annotations

from ..common.plugins import GROUPS, declared
from ..errors import PluginError
from ..runs.manifest import Manifest
from .kinds import EVERY_FAMILY, kind_of

_READING = ("families", "corruptions", "explainers", "tasks")  # groups needed to read the texts of conditions


def check_plugins(manifest: Manifest) -> None:
    """Raise PluginError where a plug-in that reads the records of a run is missing, has other code, or took no part."""
    for entry in manifest.used_plugins:
        here = [plugin for plugin in declared(entry.group) if plugin.name == entry.name]
        if entry.group not in _READING:
            continue
        what = f"{entry.name} ({GROUPS[entry.group]}, {f'{entry.distribution} {entry.version}'.rstrip()})"
        if not here:
            raise PluginError(
                f"the run needs plug-in {what}, which is not here: install it, or give its file with --plugin"
            )
        if all(plugin.source != entry.source for plugin in here):
            raise PluginError(
                f"the run was made with plug-in {what} of source {entry.source[:12]}…, here it is of source "
                f"{here[0].source[:12]}…: install that one, or make the run again"
            )
    families = {entry.name for entry in manifest.used_plugins if entry.group == "families"}
    for text in manifest.conditions:
        plugin = EVERY_FAMILY.plugin(kind_of(text))
        if plugin is not None and plugin.name not in families:
            raise PluginError(f"{text} of the run is not of {plugin.words}, which has taken its name: leave that out")
