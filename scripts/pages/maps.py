"""What maps are worth: AG-CAM and its baselines next to controls, on real images and on the zoo.

    python -m scripts.pages.maps CHECKPOINT --images VAL --boxes CSV [--photographs DIR --masks DIR] --out runs/maps
        [--cams agcam,legrad,chefer,layer-cam] [--markdown docs/results/maps.md]

Scores the maps of a real ViT where boxes are known, by the published protocol and with the aspect kept; on photographs
with masks, unlabelled; and those of the zoo's four on the generated set. Each is a run folder under --out; the same
command continues where it was stopped, and on finished runs only prints. With --markdown a plot of
the leads over controls and two galleries of the generated set are drawn next to the page.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import robustkit
from robustkit.cli.gallery import make_gallery
from robustkit.cli.gallery_choice import Choice
from robustkit.cli.progress import ConsoleProgress
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.maps.tables import is_of_maps, map_tables
from robustkit.evaluations.presenting import flag_lines
from robustkit.pipeline.request import ClassificationRequest
from robustkit.results.summary import Run

from .maps_text import behind, in_short, leads, plot, side_by_side, source, winners
from .writing import deliver, markdown

SHAPES = tuple(f"zoo:shapes-vit-{name}" for name in ("standard", "quest", "elliptical", "elliptical-quest"))
METHODS = "agcam,agcam-full,rollout,grad-cam"


INTRODUCTION = (
    "A score of a map means little alone. Next to each stand three maps that do not look at the image: random "
    "values, a Gaussian in the centre, and everything; for pixel accuracy also nothing, which marks no pixel. "
    "Below a score is the lead over the best of them, paired by image, with its 95 % interval: whichever is best "
    "in a resample counts there, and the one that is named is best over all images. Scores at a threshold reward "
    "maps that mark much, so that a Gaussian, or everything, may win them; pointing, energy inside, PxAP and "
    "MaxBoxAccV2 need no threshold, and ABPC asks the model itself. A lead counts as ahead or behind where its "
    "interval stays clear of 0 by 5 % of its width, about the error of the interval's ends; one that just misses 0 is "
    "called level.",
    "`agcam` is AG-CAM as its authors' code computes it: no gradient passes from an attention layer to its input, so "
    "that it reaches the blocks before through skip connections and MLPs alone. `agcam-full` lets it pass through the "
    "attention of later blocks, too; what is called AG-CAM here is the former, so that its figures can be compared "
    "with published ones.",
    "PxAP (Choe et al. 2020) is of pixel masks, at 200 levels; where only boxes are known, their union stands for "
    "the mask, so that its figures there are not those of the literature. MaxBoxAccV2 is the best of 100 "
    "thresholds, averaged over IoU 0.3, 0.5 and 0.7; a maximum has no interval. Insertion and deletion are areas "
    "under the probability of the class while the highest pixels come or go; `head redrawn` is the rank "
    "correlation with maps of the model with a random head, which should be low. A random map points below "
    "chance (which is the score of `full`), because enlarging it moves its maximum to the border.",
)


@dataclass(frozen=True)
class Part:
    """One audit, and what the page says about it."""

    folder: str
    title: str
    checkpoints: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)


def parts(options: argparse.Namespace) -> Iterator[Part]:
    """Yield the audits that the options ask for."""
    real = (options.checkpoint,)
    boxes = {"data_dir": options.images, "boxes": options.boxes, "limit": options.limit, "cams": options.cams}
    yield Part("boxes", "Real images with boxes, the published protocol", real, boxes | {"protocol": "agcam-paper"})
    kept = boxes | {"cams": METHODS, "faithfulness": "none"}
    yield Part("boxes-aspect", "The same with the aspect kept", real, kept)
    if options.photographs:
        masks = {"data_dir": options.photographs, "masks": options.masks, "cams": options.cams, "limit": options.limit}
        yield Part("masks", "Photographs with masks", real, masks | {"data": {"layout": "unlabelled"}})
    shapes = {"data_dir": "embedded:shapes", "cams": "agcam,agcam-full", "limit": 200, "faithfulness": "all"}
    yield Part("zoo", "The zoo on generated shapes", SHAPES, shapes)


def evaluate(part: Part, options: argparse.Namespace) -> Run:
    """Run the audit of a part, or what is left of it."""
    console = Console(stderr=True)
    console.print(f"{part.folder}:", style="bold")
    model = {"arch": options.arch} if options.arch and part.folder != "zoo" else {}
    with ConsoleProgress(console) as progress:
        return robustkit.audit(
            part.checkpoints,
            attacks="none",
            model=model,
            out=options.out / part.folder,
            device=options.device,
            progress=progress,
            **part.options,
        )


def page(runs: Sequence[tuple[Part, Run]], command: str, galleries: Sequence[tuple[str, str]]) -> str:
    """Return the whole page as Markdown. galleries: (file next to the page, what it shows)."""
    texts = [
        "# What maps are worth",
        f"Made by `{command}`; do not edit.",
        *INTRODUCTION,
        "## In short",
        "On which scores maps are ahead, beyond chance, of every control, and which maps:",
        "\n".join(line for part, run in runs if part.folder != "zoo" for line in winners(part.title, run)),
        in_short([(part.title, run) for part, run in runs]),
        "The same counts, with names, stand below each part. At the threshold of 0.5, marking much wins, whether "
        "or not it is there: read those columns with the one for ABPC. They are many, and each is judged by "
        "itself.",
    ]
    for part, run in runs:
        texts += [f"## {part.title}", source(run)]
        if part.folder == "zoo":
            texts += [
                "Side by side; over several trainings they are in [quest-tables.md](quest-tables.md):",
                side_by_side(run),
            ]
        for table in map_tables(run.summary()):
            texts.append(f"{table.checkpoint}, {table.title.removeprefix('maps, ')}:")
            texts.append(markdown([table.headings, *table.rows]))
        flags = flag_lines(Results.of(run, run.summary()), is_of_maps)
        texts += [*(f"⚑ {line}" for line in flags), "**Next to the controls**", "\n".join(behind(run))]
    texts.append("## In pictures")
    for path, caption in galleries:
        texts.append(f"![{caption}]({path})\n\n{caption}.")
    return "\n\n".join(texts) + "\n"


def draw(run: Run, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield two galleries of the zoo's run, as (path from the page, caption)."""
    first = SHAPES[:1]
    for name, models, cams, how, caption in (
        ("disagreement", SHAPES, "agcam", "disagreement", "AG-CAM maps of the four checkpoints differ most in IoU"),
        (
            "controls",
            first,
            "agcam,centre",
            "worst",
            "the first checkpoint's AG-CAM has the lowest IoU, next to a Gaussian that does not look at the image and "
            "wins; predictions marked as wrong are in no table",
        ),
    ):
        request = ClassificationRequest(checkpoints=models, data_dir="embedded:shapes", device="cpu")
        sheet, _ = make_gallery(run, request, Choice.of(models, cams, "all", how=how, count=4))
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sheet, folder / f"shapes-{name}.png")
        yield f"{folder.name}/shapes-{name}.png", f"Generated shapes on which {caption}"


def pictures(runs: Sequence[tuple[Part, Run]], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield all pictures, as (path from the page, caption)."""
    real = [(part, run) for part, run in runs if part.folder != "zoo"]
    plot([(part.title, leads(run, run.manifest.names[0])) for part, run in real], folder / "leads.svg")
    yield (
        f"{folder.name}/leads.svg",
        "Lead of each method over the best of the controls on real images and photographs, by score; blue where it is "
        "ahead beyond chance, orange where a control is. The images may not be passed on: `robustkit cam CHECKPOINT "
        "--data-dir IMAGES --masks MASKS --cams agcam,centre --choose worst` draws those on which AG-CAM fares "
        "worst compared with the Gaussian",
    )
    yield from draw(runs[-1][1], folder)


def main(arguments: list[str] | None = None) -> int:
    """Audit, then print. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a ViT of ImageNet's classes")
    parser.add_argument("--arch", help="its timm name, where it cannot be guessed")
    parser.add_argument("--images", required=True, help="ImageNet's validation images")
    parser.add_argument("--boxes", required=True, help="their boxes: a CSV, or a folder of XML files")
    parser.add_argument("--photographs", help="a folder of images without labels")
    parser.add_argument("--masks", help="their masks")
    parser.add_argument("--cams", default=METHODS, help="methods scored on the real ViT")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    if (options.photographs is None) != (options.masks is None):
        parser.error("expected --photographs and --masks together")

    def make() -> str:
        runs = [(part, evaluate(part, options)) for part in parts(options)]
        galleries = list(pictures(runs, options.markdown.with_suffix(""))) if options.markdown else []
        return page(runs, " ".join(["python -m scripts.pages.maps", *given]), galleries)

    return deliver("scripts.pages.maps", make, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
