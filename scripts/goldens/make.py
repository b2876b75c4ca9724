"""Writes tests/golden/corruptions.npz: what the reference makes of two small photographs, and its laws in figures.

    ROBUSTKIT_IMAGECORRUPTIONS=FOLDER python -m scripts.goldens.make [--out FILE]

The reference is imagecorruptions 1.1.2, patched as `reference.py` says. Photographs: crops of `astronaut`
(NASA, public domain) and `coffee` (Rachel Michetti, CC0), both files of scikit-image. Frost's photographs are replaced
by small ones made from a seed (`legacy_draws.write_frost_photographs`).

A third input has a flat channel and two linear ones, for all but the noises: there every value lies on a grey level, so
that truncation turns a last bit that is rounded otherwise into a level, which photographs hardly show.

In the file: `input_0` to `input_2` (H, W, 3); `<corruption>_<i>` (5, H, W, 3), made after
`np.random.seed(1000 * severity + i)`; `law_<corruption>` (severities, 2, 18), mean and standard error over 400 seeds of
the figures of `corruption_figures.py`; `versions`. Two runs give the same bytes.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
from PIL import Image

from .reference import load, reference

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from corruption_figures import RANDOM, SEEDS, figures, mean_and_error, probe  # noqa: E402
from legacy_draws import write_frost_photographs  # noqa: E402

from corruptions.constants import IMAGENET  # noqa: E402

CROPS = {  # name: rows and columns after a reduction of the picture by the factor
    "astronaut": (4, slice(4, 37), slice(34, 73)),
    "coffee": (6, slice(16, 50), slice(34, 66)),
}
PACKAGES = ("numpy", "scipy", "scikit-image", "opencv-python-headless", "pillow")


def crops() -> list[npt.NDArray[np.uint8]]:
    """Return the photographs, 33x39 and 34x32: averages of blocks of pixels."""
    spec = find_spec("skimage")
    assert spec and spec.submodule_search_locations
    pictures = []
    for name, (factor, rows, columns) in CROPS.items():
        path = Path(spec.submodule_search_locations[0]) / "data" / f"{name}.png"
        picture = Image.open(path, formats=("PNG",)).convert("RGB").reduce(factor)
        pictures.append(np.ascontiguousarray(np.asarray(picture)[rows, columns]))
    return pictures


def ties() -> npt.NDArray[np.uint8]:
    """Return (32, 36, 3): red flat, green rising by 6 per row, blue by 6 per column."""
    row, column = np.mgrid[:32, :36]
    return np.stack([np.full_like(row, 128), 32 + 6 * row, 20 + 6 * column], axis=-1).astype(np.uint8)


def goldens(module: ModuleType) -> dict[str, npt.NDArray[np.generic]]:
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for index, image in enumerate([*crops(), ties()]):
        arrays[f"input_{index}"] = image
        for name in IMAGENET:
            if index == 2 and name.endswith("_noise"):
                continue
            made = []
            for severity in range(1, 6):
                np.random.seed(1000 * severity + index)
                made.append(reference(module, name, image, severity))
            arrays[f"{name}_{index}"] = np.stack(made)
    return arrays


def laws(module: ModuleType) -> dict[str, npt.NDArray[np.generic]]:
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, severities in RANDOM.items():
        rows = []
        for severity in severities:
            made = []
            for seed in range(SEEDS):
                np.random.seed(seed)
                made.append(reference(module, name, probe(name), severity))
            rows.append(mean_and_error(figures(name, np.stack(made))))
        arrays[f"law_{name}"] = np.stack(rows)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden" / "corruptions.npz")
    parser.add_argument("--reference", help="the folder of imagecorruptions")
    options = parser.parse_args()
    warnings.simplefilter("error")  # spatter without a drop divides by 0: not a pixel to compare with
    with tempfile.TemporaryDirectory() as folder:
        write_frost_photographs(Path(folder))
        module = load(options.reference, frost_dir=folder)
        arrays = {**goldens(module), **laws(module)}
    versions = [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out, versions=np.array(", ".join(versions)), **arrays)
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB; {', '.join(versions)}")


if __name__ == "__main__":
    main()
