"""The package of plug-ins that docs/how-to/extending.md shows, written to a folder, and installed by path."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^```(?:python|toml)\n# ((?:robustkit_example/)?\w+\.(?:py|toml))\n(.*?)^```", re.MULTILINE | re.DOTALL
)


def write_package(folder: Path) -> Path:
    """Write the blocks of the page that begin with a file's name; return the folder of the package."""
    blocks = _BLOCK.findall((ROOT / "docs" / "how-to" / "extending.md").read_text(encoding="utf-8"))
    assert len(blocks) == 8, [name for name, _ in blocks]
    (folder / "robustkit_example").mkdir(parents=True)
    (folder / "robustkit_example" / "__init__.py").write_text("", encoding="utf-8")
    for name, text in blocks:
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def install(package: Path, into: Path) -> None:
    """Install a package from its folder into another one, without the network."""
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *words, "--target", str(into), str(package)]
    subprocess.run(command, check=True, capture_output=True)


def metadata(into: Path, name: str, version: str, entries: str) -> None:
    """Write what an installed distribution says about itself, without building one. entries: of entry_points.txt."""
    folder = into / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(entries, encoding="utf-8")
