"""Write README.md: region noise, two objects and changed images, on the zoo and a real ViT.

    python -m scripts.studies.what_models_need.page CHECKPOINT --arch NAME --images VAL --boxes CSV --out runs/needs
        [--markdown PAGE]

Drowns regions of generated shapes under the zoo's four formulas and of real images with boxes under CHECKPOINT, asks
for each of two objects in generated images and in pairs of real photographs, and changes one thing of generated shapes.
Each is a run folder under --out; the same command continues where it was stopped. With --markdown pictures of the
generated images are drawn next to the page; real photographs are not passed on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import robustkit
from robustkit.display.progress import ConsoleProgress
from robustkit.display.table import Table
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.condition import words_of
from robustkit.report.run import Run
from robustkit.results.comparison import compare_with_first
from robustkit.slices.counterfactuals import FLIPPED
from robustkit.slices.counterfactuals.results import CounterfactualsPresenter
from robustkit.slices.regions.results import RegionsPresenter
from robustkit.slices.two_objects.results import TwoObjectsPresenter
from robustkit.tasks import metric_of
from scripts.pages.writing import deliver, markdown

from .pictures import pictures

SHAPES = tuple(f"zoo:shapes-vit-{name}" for name in ("standard", "quest", "elliptical", "elliptical-quest"))
DROWNED = [f"region-noise({region})" for region in ("object", "background", "map-top", "map-bottom")]
START = (
    "QUEST's authors show a photograph of macaws (their Figure 1): drown those that standard attention looks at, and "
    "it errs, while QUEST, which looks at all of them, does not. Their Figure A8 asks for each of two objects in "
    "turn. Here both are measured, and so is what the paper says about spurious patterns, on images whose colour is "
    "one.",
    "Intervals are of 95 %; differences between checkpoints are paired by image, and their p-values are Holm's over "
    "all pairs of a run with its first checkpoint. Nothing here says that one formula is better than another in "
    "general: these are four small models from one training each.",
)
REGION_TEXT = (
    "Noise replaces a region of each image (severity 5). *Kept*: of the images that are predicted right as they are, "
    "the share that still is. *Random*: with the same region moved to a random place, around the borders; area, shape "
    "and noise are the same. The outline of an object stays visible as that of the noise. Half of AG-CAM's map is "
    "drowned at a time, the highest or the lowest."
)
BOXES_TEXT = "The objects are boxes; those that fill the image have no other place and are not counted."
OBJECT_TEXT = (
    "A map is asked for the class of each of two objects. *Share of the asked*: of what it has in both objects, the "
    "part in the one that was asked for, averaged over both classes; a map that does not depend on the class has "
    "exactly 50 %. Leads are in points of the map's whole sum. Photographs stand side by side, cut to half of the "
    "square each, and a half counts as the object."
)
CHANGED_TEXT = (
    "Shapes whose colour is their class's own (as 18 of 20 are in training) get the colour of another class, the "
    "outline of that class in the old colour, or another photograph behind them, and nothing else changes. The outline "
    "decides the label, so a model that goes by it flips with the shape alone; one that takes the shortcut flips with "
    "the colour."
)


@dataclass(frozen=True)
class Part:
    """One audit, and what the page says about it. compared: the metrics whose differences are shown."""

    folder: str
    title: str
    text: str
    checkpoints: Sequence[str]
    compared: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)


def parts(options: argparse.Namespace) -> Iterator[Part]:
    """Yield the audits that the options ask for."""
    real, model = (options.checkpoint,), {"model": {"arch": options.arch}}
    maps = {"cams": "agcam", "faithfulness": "none"}
    kept = ("region_kept", "region_over_random")
    shapes = {"data_dir": "embedded:shapes", "evaluations": DROWNED, "limit": 500, "browse": 24}
    yield Part("shapes", "Region noise on generated shapes", REGION_TEXT, SHAPES, kept, shapes)
    images = {"data_dir": options.images, "boxes": options.boxes, "evaluations": DROWNED, "browse": 24, **model}
    yield Part("vit", "Region noise on real images", BOXES_TEXT, real, (), images)
    pairs = {"data_dir": "embedded:shapes-pairs", "limit": 180, "browse": 24, **maps}
    yield Part("pairs", "Two objects in generated images", OBJECT_TEXT, SHAPES, ("asked_share", "both_found"), pairs)
    photos = {"data_dir": f"pairs:{options.images}", "limit": 48, "browse": 12, **maps, **model}
    yield Part("photos", "Two photographs side by side", "", real, (), photos)
    changed = {"data_dir": "embedded:shapes-counterfactual", "limit": 150, "browse": 24, **maps}
    compared = ("flipped", "followed", "mass_change")
    yield Part("changed", "One thing changed", CHANGED_TEXT, SHAPES, compared, changed)


def evaluate(part: Part, options: argparse.Namespace) -> Run:
    """Run the audit of a part, or what is left of it."""
    console = Console(stderr=True)
    console.print(f"{part.folder}:", style="bold")
    with ConsoleProgress(console) as progress:
        return robustkit.audit(
            part.checkpoints,
            attacks="none",
            out=options.out / part.folder,
            device=options.device,
            setup_check=False,
            progress=progress,
            **part.options,
        )


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables of what this page is about."""
    results = Results.of(run, run.summary())
    for presenter in (RegionsPresenter(), TwoObjectsPresenter(), CounterfactualsPresenter()):
        yield from presenter.tables(results)


def differences(run: Run, metrics: Sequence[str]) -> str:
    """Return a table of the differences of each checkpoint to the first; empty where there is none."""
    first = run.manifest.names[0]
    rows = [("what is compared", *(f"{name} – {first}" for name in run.manifest.names[1:]))]
    found = {
        (row.condition, row.metric, pair.names[1]): row for pair in compare_with_first(run).pairs for row in pair.rows
    }
    for text, metric in dict.fromkeys((text, metric) for text, metric, _ in found if metric in metrics):
        cells = []
        for name in run.manifest.names[1:]:
            row = found[text, metric, name]
            low, high = (f"{100 * end:+.1f}" for end in (row.difference.ci_low, row.difference.ci_high))
            mark = " *" if row.p_value < 0.05 else ""
            cells.append(f"{100 * row.difference.value:+.1f} [{low}, {high}]{mark}")
        rows.append((f"{words_of(text).label(text)}: {metric_of(metric).word}", *cells))
    return markdown(rows) if len(rows) > 1 else ""


def flips(run: Run) -> str:
    """Return what predictions flip with, from the least to the most of the checkpoints; '' where nothing changed."""
    found: dict[str, list[float]] = {}
    for row in run.summary():
        if row.metric == FLIPPED.name:
            change = str(dict(words_of(row.condition).parse(row.condition).parameters)["change"])
            found.setdefault(change, []).append(100 * row.value)
    if not found:
        return ""
    said = {change: f"{min(shares):.0f} to {max(shares):.0f} %" for change, shares in found.items()}
    text = f"Predictions flip with the colour in {said['colour']} of images, and with the outline in {said['shape']}."
    shortcut = min(found["colour"]) > max(found["shape"])
    return text + (" All of these checkpoints take the shortcut." if shortcut else "")


def page(runs: Sequence[tuple[Part, Run]], command: str, drawn: Sequence[tuple[str, str]]) -> str:
    """Return the whole page as Markdown. drawn: (file next to the page, what it shows)."""
    texts = ["# What models need of an image", f"Made by `{command}`; do not edit.", *START]
    for part, run in runs:
        manifest = run.manifest
        source = f"{manifest.data.n} images of `{Path(part.options['data_dir']).name}`, card `{manifest.protocol.tag}`."
        texts += [f"## {part.title}", f"{part.text} {source}".strip()]
        texts += [flips(run)] if part.folder == "changed" else []
        for table in tables(run):
            texts += [f"{table.title}:", markdown([table.headings, *table.rows])]
        if part.compared and (between := differences(run, part.compared)):
            texts += ["Differences between checkpoints, in points (\\*: p < 0.05 after Holm):", between]
    texts.append("## In pictures")
    texts += [f"![{caption}]({path})\n\n{caption}." for path, caption in drawn]
    return "\n\n".join(texts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Audit, then print. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a ViT of ImageNet's classes")
    parser.add_argument("--arch", help="its timm name, where it cannot be guessed")
    parser.add_argument("--images", required=True, help="ImageNet's validation images")
    parser.add_argument("--boxes", required=True, help="their boxes: a CSV, or a folder of XML files")
    parser.add_argument("--out", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    names = [Path(word).name if word.startswith("/") else word for word in given]

    def make() -> str:
        runs = [(part, evaluate(part, options)) for part in parts(options)]
        by_folder = {part.folder: run for part, run in runs}
        drawn = list(pictures(by_folder, options.markdown.parent)) if options.markdown else []
        return page(runs, " ".join(["python -m scripts.studies.what_models_need.page", *names]), drawn)

    return deliver("scripts.studies.what_models_need.page", make, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
