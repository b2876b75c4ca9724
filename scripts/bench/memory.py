"""How memory grows over many images of AG-CAM: the resident set, or what is allocated on a CUDA device.

python -m scripts.bench.memory CHECKPOINT --data-dir IMAGES [--arch NAME] [--batch-size 4] [--images 2000]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import cam
from robustkit.models.device import pick_device

from .race import subject


def main() -> None:
    """Print the least and the most memory after each batch, the first tenth left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--images", type=int, default=2000, help="how many, in batches of the same ones")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    found = subject(options.checkpoint, options.data_dir, options.batch_size, device, arch=options.arch)
    images, sizes = found.model.normalize(found.images), []
    with cam.AGCAM(found.model.network) as explain:
        for _ in range(-(-options.images // len(images))):
            explain(images)
            on_device = torch.cuda.memory_allocated() / 1e6 if device.type == "cuda" else None
            sizes.append(resident() if on_device is None else on_device)
    settled = sizes[len(sizes) // 10 :]
    print(f"memory over {options.images} images: {min(settled):.0f} to {max(settled):.0f} MB")


def resident() -> float:
    """Return the MB of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096 / 1e6


if __name__ == "__main__":
    main()
