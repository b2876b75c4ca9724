"""What maps are worth: AG-CAM and its baselines beside controls, on real images and on the zoo.

    python scripts/maps_page.py CHECKPOINT --images VAL --boxes CSV [--photographs DIR --masks DIR] --out runs/maps
        [--markdown docs/maps.md]

Scores the maps of a real ViT where boxes are known, by the published protocol and with the aspect kept; on photographs
with masks, unlabelled; and those of the zoo's four on the generated set. Each is a run folder under --out; the same
command goes on where it was stopped, and on finished runs only prints. With --markdown two galleries of the generated
set are drawn beside the page.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pages import markdown
from rich.console import Console

import robustkit
from robustkit.cam_command import make_gallery
from robustkit.errors import RobustkitError
from robustkit.gallery_choice import Choice
from robustkit.map_metrics import parts_of
from robustkit.map_report import FREE_HEADINGS, ONE_SIDED, SCORE_HEADINGS, map_tables
from robustkit.progress import ConsoleProgress
from robustkit.records import Run

SHAPES = tuple(f"zoo:shapes-vit-{name}" for name in ("standard", "quest", "elliptical", "elliptical-quest"))
METHODS = "agcam,rollout,grad-cam"


@dataclass(frozen=True)
class Part:
    """One audit, and what the page says of it."""

    folder: str
    title: str
    checkpoints: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)


def parts(options: argparse.Namespace) -> Iterator[Part]:
    """The audits that the options ask for."""
    real = (options.checkpoint,)
    boxes = {"data_dir": options.images, "boxes": options.boxes, "limit": options.limit, "cams": METHODS}
    yield Part("boxes", "Real images with boxes, the published protocol", real, boxes | {"protocol": "agcam-paper"})
    yield Part("boxes-aspect", "The same with the aspect kept", real, boxes | {"faithfulness": "none"})
    if options.photographs:
        masks = {"data_dir": options.photographs, "masks": options.masks, "cams": METHODS, "limit": options.limit}
        yield Part("masks", "Photographs with masks", real, masks | {"data": {"layout": "unlabelled"}})
    shapes = {"data_dir": "embedded:shapes", "cams": "agcam", "limit": 200, "faithfulness": "all"}
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


def behind(run: Run) -> Iterator[str]:
    """Where a map that looks at the image is no better than one that does not, in a line for each method."""
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    headings = SCORE_HEADINGS | FREE_HEADINGS
    for row in run.summary():
        parts_found = parts_of(row["condition"])
        metric = row["metric"].removesuffix("_over_control")
        if parts_found is None or metric == row["metric"] or metric in ONE_SIDED or row["ci_low"] is None:
            continue
        explained, mode = parts_found
        ahead, after = found.setdefault((row["checkpoint"], explained.method), ([], []))
        name = f"{headings[metric].removesuffix(' ↓')}{f' ({mode})' if mode else ''}"
        if row["ci_low"] > 0:
            ahead.append(name)
        elif row["ci_high"] < 0:
            after.append(f"{name}, by {-row['value']:.3f} ({row['flags'][0].partition(': ')[2]})")
    for (checkpoint, method), (ahead, after) in found.items():
        first, last = ", ".join(ahead) or "nothing", "; ".join(after) or "nothing"
        yield f"- {checkpoint}, {method}: ahead of every control in {first}; behind the best one in {last}."


def page(found: Sequence[tuple[Part, Run]], command: str, galleries: Sequence[tuple[str, str]]) -> str:
    """The whole page as Markdown. galleries: (file beside the page, what it shows)."""
    texts = [
        "# What maps are worth",
        f"Made by `{command}`; do not edit.",
        "A score of a map means little alone. Beside each stand three maps that do not look at the image: random "
        "values, a Gaussian in the centre, and everything. Below a score is the lead over the best of them, paired by "
        "image, with its 95 % interval. Scores at a threshold reward maps that mark much, so that a Gaussian, or "
        "everything, may win them; pointing, PxAP and MaxBoxAccV2 need no threshold, and ABPC asks the model itself.",
    ]
    for part, run in found:
        protocol = run.manifest["protocol"]
        data = run.manifest["data"]
        said = f"{data['n']} images of {data['name']}, card `{protocol['tag']}`: {protocol['summary']}."
        texts += [f"## {part.title}", said]
        flags: dict[str, None] = {}
        for table in map_tables(run.summary()):
            texts.append(f"{table.checkpoint}, {table.title.removeprefix('maps, ')}:")
            texts.append(markdown([table.headings, *table.rows]))
            flags |= dict.fromkeys(f"⚑ {table.checkpoint}, {flag}" for flag in table.flags)
        texts += [*flags, "**Beside the controls**", "\n".join(behind(run))]
    for path, caption in galleries:
        texts.append(f"![{caption}]({path})\n\n{caption}.")
    return "\n\n".join(texts) + "\n"


def draw(run: Run, folder: Path) -> Iterator[tuple[str, str]]:
    """Two galleries of the zoo's run, as (path from the page, caption)."""
    for how, caption in (
        ("disagreement", "Generated shapes on which the four checkpoints' AG-CAM maps differ most in IoU"),
        ("worst", "Generated shapes on which the four checkpoints' AG-CAM maps have the lowest mean IoU"),
    ):
        sheet, _ = make_gallery(
            run,
            SHAPES,
            Choice.of(SHAPES, "agcam", "all", how=how, count=4),
            data_dir="embedded:shapes",
            data={},
            model={},
            device="cpu",
        )
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sheet, folder / f"shapes-{how}.png")
        yield f"{folder.name}/shapes-{how}.png", caption


def main(arguments: list[str] | None = None) -> int:
    """Audit, then print. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a ViT of ImageNet's classes")
    parser.add_argument("--arch", help="its timm name, where it cannot be guessed")
    parser.add_argument("--images", required=True, help="ImageNet's validation images")
    parser.add_argument("--boxes", required=True, help="their boxes: a CSV, or a folder of XML files")
    parser.add_argument("--photographs", help="a folder of images without labels")
    parser.add_argument("--masks", help="their masks")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    if (options.photographs is None) != (options.masks is None):
        parser.error("expected --photographs and --masks together")
    try:
        found = [(part, evaluate(part, options)) for part in parts(options)]
        galleries = list(draw(found[-1][1], options.markdown.with_suffix(""))) if options.markdown else []
        written = page(found, " ".join(["python scripts/maps_page.py", *given]), galleries)
    except RobustkitError as error:
        print(f"maps_page: {error}", file=sys.stderr)
        return error.exit_code
    print(written)
    if options.markdown:
        options.markdown.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
