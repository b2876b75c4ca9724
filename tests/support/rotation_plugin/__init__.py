"""A family of evaluations as another distribution adds it: images turned by some degrees."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path) -> None:
    """Write into a folder of the module path what installing the distribution would."""
    own = folder / "rotation_plugin-1.dist-info"
    own.mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: rotation-plugin\nVersion: 1\n")
    (own / "entry_points.txt").write_text("[robustkit.families]\nrotation = rotation_plugin.family:FAMILY\n")
