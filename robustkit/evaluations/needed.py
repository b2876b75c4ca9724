"""Check for the plug-ins without which a run's records cannot be read."""

from __future__ import annotations

from ..common.plugins import GROUPS, declared
from ..errors import PluginError
from ..runs.manifest import Manifest

_READING = ("families", "corruptions", "explainers", "tasks")  # groups needed to read the texts of conditions


def check_plugins(manifest: Manifest) -> None:
    """Raise PluginError where a plug-in that is needed to read the records of a run is missing."""
    for entry in manifest.used_plugins:
        if entry.group in _READING and all(plugin.name != entry.name for plugin in declared(entry.group)):
            origin = f"{entry.distribution} {entry.version}".rstrip()
            raise PluginError(
                f"the run needs plug-in {entry.name} ({GROUPS[entry.group]}, {origin}), which is not here: install it, "
                "or give its file with --plugin"
            )
