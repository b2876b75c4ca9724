"""Prints how far `corruptions` is from the reference, given the reference's own random numbers: 19 x 5 for each golden.

    python -m scripts.goldens.equality [--frost-dir FOLDER] [GOLDEN ...]

A cell is the largest difference in grey levels, and in brackets the mean one where not all bytes are equal. Goldens:
the one of this repository (named `corruptions`) and, where ../shared is there, its three.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from corruption_goldens import GOLDENS, OWN, Golden, real_frost  # noqa: E402
from legacy_draws import write_frost_photographs  # noqa: E402

from corruptions.registry import CORRUPTIONS  # noqa: E402


def table(golden: Golden, frost_dir: Path | None) -> None:
    print(f"\n{golden.path.name}: preset {golden.preset}, variant {golden.variant}")
    print(f"{'':18}" + "".join(f"severity {severity:<7}" for severity in range(1, 6)))
    exact = 0
    for name in CORRUPTIONS:
        if name == "frost" and frost_dir is None:
            print(f"{name:18}needs the photographs: --frost-dir")
            continue
        gaps = [np.concatenate(golden.differences(name, severity, frost_dir)) for severity in range(1, 6)]
        cells = [f"{gap.max()}" + (f" ({gap.mean():.1e})" if gap.any() else "") for gap in gaps]
        exact += sum(not gap.any() for gap in gaps)
        print(f"{name:18}" + "".join(f"{cell:16}" for cell in cells).rstrip(), flush=True)
    print(f"equal byte for byte: {exact} of {5 * len(CORRUPTIONS)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("goldens", nargs="*", metavar="GOLDEN", help=f"of {', '.join(GOLDENS)}; default: all")
    parser.add_argument("--frost-dir", type=Path, help="frost's photographs, for the goldens of ../shared")
    options = parser.parse_args()
    if unknown := set(options.goldens) - set(GOLDENS):
        parser.error(f"golden {', '.join(sorted(unknown))}: expected of {', '.join(GOLDENS)}")
    with tempfile.TemporaryDirectory() as folder:
        write_frost_photographs(Path(folder))
        for key in options.goldens or GOLDENS:
            golden = GOLDENS[key]
            if golden.path.is_file():
                table(golden, Path(folder) if golden.path == OWN else options.frost_dir or real_frost())
            else:
                print(f"\n{golden.path.name}: not there")


if __name__ == "__main__":
    main()
