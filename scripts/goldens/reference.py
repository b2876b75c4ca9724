"""The reference package imagecorruptions (bethgelab, 1.1.2), made to run on today's libraries for comparisons.

Its one module is read where it lies, patched in memory and executed; nothing of it is copied, and the package itself
is never imported, because its `__init__` fails on current setuptools. It is looked for in the folder given, in the
environment variable ROBUSTKIT_IMAGECORRUPTIONS, and among the installed packages.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
from PIL import Image

VARIABLE = "ROBUSTKIT_IMAGECORRUPTIONS"
PATCHES = {
    "np.float_)": "np.float64)",  # gone in NumPy 2
    "from scipy.ndimage.interpolation import": "from scipy.ndimage import",  # gone in SciPy 2
    "from pkg_resources import resource_filename": "",  # gone in setuptools 82; `load` puts its own there
    "multichannel=True": "channel_axis=-1",  # renamed in scikit-image 0.19
    "mode='s&p',": "mode='s&p', rng=np.random.randint(2**31),",  # scikit-image's own generator is seeded by the clock
}


def find(folder: str | Path | None = None) -> Path | None:
    """Return the folder with corruptions.py and frost/, or None; without importing the package."""
    given = folder or os.environ.get(VARIABLE)
    if given:
        return Path(given) if (Path(given) / "corruptions.py").is_file() else None
    spec = importlib.util.find_spec("imagecorruptions")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def load(folder: str | Path | None = None, frost_dir: str | Path | None = None) -> ModuleType:
    """Load a module with the reference's 19 functions `f(picture, severity)`; see `reference`.

    frost_dir: photographs for frost other than the package's.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: a patch does not fit: another version.
    """
    place = find(folder)
    if place is None:
        raise FileNotFoundError(
            f"imagecorruptions is not there; pip install --no-deps imagecorruptions==1.1.2, or name its folder in "
            f"{VARIABLE}"
        )
    source = (place / "corruptions.py").read_text()
    for old, new in PATCHES.items():
        if old not in source:
            raise ValueError(f"{place}: no {old!r} in corruptions.py; expected imagecorruptions 1.1.2")
        source = source.replace(old, new)
    module = ModuleType("imagecorruptions_reference")
    photographs = Path(frost_dir or place / "frost")
    module.__dict__["resource_filename"] = lambda _, name: str(photographs / Path(name).name)
    exec(compile(source, str(place / "corruptions.py"), "exec"), module.__dict__)
    return module


def reference(module: ModuleType, name: str, image: npt.NDArray[np.uint8], severity: int) -> npt.NDArray[np.uint8]:
    """Corrupt one (H, W, 3) image by the reference; floats become bytes by truncation, as the benchmark's did."""
    return np.asarray(getattr(module, name)(Image.fromarray(image), severity)).astype(np.uint8)
