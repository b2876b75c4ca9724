"""The tables of the QUEST paper on the zoo: every attack under both cards, corruptions, AG-CAM, paired differences.

    python -m scripts.pages.reproduce_quest --data-dir CIFAR10-TEST --out runs/quest
        [--markdown docs/results/quest-tables.md]

Audits the checkpoints in parts, each a run folder under --out with as many samples as its cost allows; the same command
continues where it was stopped, and on finished runs only prints. The published figures are of ViT-Ti on ImageNet, so
levels cannot agree; what can is which formula is ahead of which, and for each published difference it is said whether
our models show it, show the opposite, or cannot tell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import robustkit
from robustkit.cli.progress import ConsoleProgress
from robustkit.errors import RobustkitError
from robustkit.results.run import Run

from .quest import baseline, published_figures
from .quest_page import page

FORMULAS = ("standard", "quest", "elliptical", "elliptical-quest")
ZOO, SHAPES = (tuple(f"zoo:{family}-vit-{name}" for name in FORMULAS) for family in ("cifar10", "shapes"))


@dataclass(frozen=True)
class Part:
    """One audit. option: which --option says how many samples. located: on the generated set, whose objects are known,
    with the checkpoints that were trained on it."""

    card: str
    name: str
    option: str
    attacks: str
    corruptions: bool = False
    maps: bool = False
    located: bool = False

    @property
    def folder(self) -> str:
        return f"{self.card}-{self.name}"


PARTS = tuple(
    part
    for card in ("standard", "quest-paper")
    for part in (
        *([Part(card, "clean", "clean_limit", "none")] if card == "standard" else []),
        Part(card, "steps", "limit", "fgsm,pgd"),
        *([Part(card, "corruptions", "limit", "none", corruptions=True)] if card == "standard" else []),
        Part(card, "spsa", "spsa_limit", "spsa"),
        Part(card, "autoattack", "autoattack_limit", "autoattack"),
        *([Part(card, "maps", "maps_limit", "pgd", maps=True)] if card == "standard" else []),
        *([Part(card, "localisation", "maps_limit", "none", maps=True, located=True)] if card == "standard" else []),
    )
)


def evaluate(part: Part, checkpoints: Sequence[str], options: argparse.Namespace) -> Run:
    """Run the audit of a part, or what is left of it."""
    console = Console(stderr=True)
    console.print(f"{part.folder}:", style="bold")
    with ConsoleProgress(console) as progress:
        return robustkit.audit(
            checkpoints,
            data_dir="embedded:shapes" if part.located else options.data_dir,
            attacks=part.attacks,
            corruptions=options.corruptions if part.corruptions else None,
            frost_dir=options.frost_dir,
            cams="agcam" if part.maps else None,
            stability=part.maps and not part.located,
            protocol=part.card,
            limit=getattr(options, part.option),
            out=options.out / part.folder,
            device=options.device,
            dtype=options.dtype,
            compile=options.compile,
            batch_size=options.batch_size,
            progress=progress,
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkpoints", nargs="*", default=list(ZOO), help="standard attention first; the zoo's by default"
    )
    parser.add_argument("--data-dir", required=True, help="CIFAR-10's test images")
    parser.add_argument("--out", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--clean-limit", type=int, help="samples for the clean accuracy, all by default")
    parser.add_argument("--limit", type=int, default=1000, help="samples for FGSM, PGD and corruptions")
    parser.add_argument("--spsa-limit", type=int, default=100)
    parser.add_argument("--autoattack-limit", type=int, default=200)
    parser.add_argument("--maps-limit", type=int, default=200, help="samples for AG-CAM")
    parser.add_argument("--corruptions", default="in-c")
    parser.add_argument("--frost-dir", help="frost's photographs")
    parser.add_argument("--parts", default=",".join(part.folder for part in PARTS), help="which parts, by name")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch-size", type=int)
    options = parser.parse_args(arguments)
    names = {part.folder for part in PARTS}
    if odd := set(options.parts.split(",")) - names:
        parser.error(f"unknown part {', '.join(sorted(odd))}; known: {', '.join(sorted(names))}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Audit, then print. Return the exit status."""
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    runs = []
    try:
        first = robustkit.load(options.checkpoints[0]).identity
        baseline(first.name, first.attention)
        for part in PARTS:
            if part.folder in options.parts.split(","):
                asked = SHAPES if part.located else options.checkpoints
                runs.append(evaluate(part, asked, options))
        written = page(runs, published_figures(), " ".join(["python -m scripts.pages.reproduce_quest", *given]))
    except RobustkitError as error:
        print(f"scripts.pages.reproduce_quest: {error}", file=sys.stderr)
        return error.exit_code
    print(written)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
