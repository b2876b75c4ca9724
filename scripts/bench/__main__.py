"""Peers next to ours in one table: attacks, corruptions, maps and their metrics.

    python -m scripts.bench [--rows WORD ...] [--pairs 5] [--json FILE]
    python -m scripts.bench --checkpoint vit.safetensors --arch vit_tiny_patch16_224 --data-dir IMAGES --eps 0.25/255

Each row first counts the passes of both sides and compares their results; that is its column `equal work`. Then both
take turns. A ratio is theirs over ours: median, least and largest over the pairs. Peers come with
`pip install -e ".[reference]"`; a row of one that is missing says so. The exit status is 1 where a row failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import cv2
import torch

from robustkit.common.files import write_whole
from robustkit.models.device import pick_device
from robustkit.protocol.card import parse_number
from scripts.goldens import reference
from scripts.pages.writing import markdown

from . import attacks, corruptions, maps
from .race import Result, Row, measure, subject

HEADING = ["what", "peer", "equal work", "ours, ms per image", "theirs, ms per image", "theirs/ours"]


@dataclass(frozen=True)
class Peer:
    """A library to compare with: its module, its distribution, and what installs it."""

    module: str
    distribution: str
    install: str = 'pip install -e ".[reference]"'

    @property
    def is_there(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def version(self) -> str:
        try:
            return version(self.distribution)
        except PackageNotFoundError:  # a folder on the path
            return ""


PEERS = {
    "torchattacks": Peer("torchattacks", "torchattacks"),
    "foolbox": Peer("foolbox", "foolbox"),
    "pyautoattack": Peer("pyautoattack", "pyautoattack"),
    "imagecorruptions": Peer("imagecorruptions", "imagecorruptions"),
    "pytorch-grad-cam": Peer("pytorch_grad_cam", "grad-cam"),
    "captum": Peer("captum", "captum"),
    "Quantus": Peer("quantus", "quantus"),
    "TorchRay": Peer("torchray", "torchray"),
    "legrad-torch": Peer(
        "legrad", "legrad_torch", "pip install --no-deps legrad_torch; pip install einops ftfy open_clip_torch"
    ),
}
"""All others are in this repository."""


def missing(row: Row) -> Result | None:
    """Return a row that says how to install its peer, if it is not there."""
    known = PEERS.get(row.peer)
    if known is None or known.is_there or (row.peer == "imagecorruptions" and reference.find() is not None):
        return None
    return Result(row.what, row.peer, False, f"not installed: `{known.install}`")


def results(
    rows: Sequence[Row], networks: Sequence[torch.nn.Module], pairs: int, device: torch.device
) -> Iterator[Result]:
    """Yield each row as it is measured; one whose peer is missing or fails says so."""
    for row in rows:
        known = PEERS.get(row.peer)
        named = f"{row.peer} {known.version}".strip() if known else row.peer
        if (found := missing(row)) is None:
            try:
                found = measure(row, networks, pairs, device)
            except Exception as fault:  # of a peer on today's libraries
                found = Result(row.what, row.peer, False, f"failed: {type(fault).__name__}: {fault}".split("\n")[0])
        print(f"{row.what}, {named}: {found.cells[-1] or found.work}", file=sys.stderr, flush=True)
        yield Result(**{**asdict(found), "peer": named})


def header(options: argparse.Namespace, device: torch.device) -> str:
    """Return machine, versions, date, threads and load in a sentence."""
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "numpy"))
    return (
        f"{time.strftime('%Y-%m-%d')}; {machine}, load {os.getloadavg()[0]:.1f}; threads: {options.threads}; "
        f"Python {platform.python_version()}, {versions}; {options.checkpoint} on {options.images} images of "
        f"{options.data_dir}; {options.pairs} pairs."
    )


def chosen(options: argparse.Namespace, device: torch.device) -> tuple[list[torch.nn.Module], list[Row]]:
    """Return the networks whose passes count, and the rows asked for."""
    given = {name: getattr(options, name) for name in ("arch", "attention", "mean", "std")}
    found = subject(options.checkpoint, options.data_dir, options.images, device, **given)
    eps, large = (float(parse_number(text)) for text in (options.eps, options.large_eps))
    every = [
        *attacks.rows(found, eps, large, options.survivors, getattr(torch, options.dtype)),
        *corruptions.rows(device),
        *maps.rows(found, options.layer),
        *maps.metrics(found),
    ]
    words = [word.lower() for word in options.rows]
    kept = [row for row in every if not words or any(word in f"{row.what} {row.peer}".lower() for word in words)]
    return found.networks, kept


def table(found: Sequence[Result]) -> str:
    """Return the table in Markdown, with the 15 corruptions after their four categories."""
    rows = list(found)
    parts = [result for result in rows if result.peer.startswith("imagecorruptions") and result.ours]
    if len(parts) == len(corruptions.SHARED):
        rows.insert(rows.index(parts[-1]), corruptions.total(parts))
    return markdown([HEADING, *(result.cells for result in rows)])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="WORD", help="those whose name or peer has one of these"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", default="zoo:shapes-vit-standard")
    parser.add_argument("--arch")
    parser.add_argument("--attention")
    parser.add_argument("--mean", type=float, nargs=3)
    parser.add_argument("--std", type=float, nargs=3)
    parser.add_argument("--layer", help="whose features Grad-CAM takes, such as layer3 of a ResNet; a ViT's is known")
    parser.add_argument("--data-dir", default="embedded:shapes")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--survivors", type=int, default=2, help="images of the AutoAttack at --eps, run to its end")
    parser.add_argument("--eps", default="1/255", help="of attacks, where images should stand")
    parser.add_argument("--large-eps", default="8/255", help="of an AutoAttack to which images fall")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of our AutoAttack's search"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the rows here, with the seconds of each pair")
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, and print the table."""
    options = parse()
    warnings.filterwarnings("ignore")  # the peers' own
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    device = pick_device(options.device)
    head = header(options, device)
    networks, rows = chosen(options, device)
    found = list(results(rows, networks, options.pairs, device))
    print(f"{head}\n\n{table(found)}")
    if options.json:
        write_whole(options.json, json.dumps({"head": head, "rows": [asdict(one) for one in found]}).encode())
    return int(any(result.work.startswith("failed") for result in found))


if __name__ == "__main__":
    sys.exit(main())
