"""What maps are worth: AG-CAM and its baselines beside controls, on real images and on the zoo.

    python scripts/maps_page.py CHECKPOINT --images VAL --boxes CSV [--photographs DIR --masks DIR] --out runs/maps
        [--markdown docs/maps.md]

Scores the maps of a real ViT where boxes are known, by the published protocol and with the aspect kept; on photographs
with masks, unlabelled; and those of the zoo's four on the generated set. Each is a run folder under --out; the same
command goes on where it was stopped, and on finished runs only prints. With --markdown a plot of
the leads over controls and two galleries of the generated set are drawn beside the page.
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


def leads(run: Run, checkpoint: str) -> dict[str, dict[str, tuple[float, float | None, float | None, str]]]:
    """By score, as the tables name it, and by method: the lead over the best control, its interval, and which it is."""
    found: dict[str, dict[str, tuple[float, float | None, float | None, str]]] = {}
    headings = SCORE_HEADINGS | FREE_HEADINGS
    for row in run.summary():
        parts_found, metric = parts_of(row["condition"]), row["metric"].removesuffix("_over_control")
        if row["checkpoint"] != checkpoint or parts_found is None or metric == row["metric"] or metric in ONE_SIDED:
            continue
        explained, mode = parts_found
        name = f"{headings[metric].removesuffix(' ↓')}{f', {mode}' if mode else ''}"
        lead = (row["value"], row["ci_low"], row["ci_high"], row["flags"][0].partition(": ")[2])
        found.setdefault(name, {})[explained.method] = lead
    return found


def behind(run: Run) -> Iterator[str]:
    """Where a map that looks at the image is no better than one that does not, in a line for each method."""
    for checkpoint in (known["name"] for known in run.manifest["checkpoints"]):
        found: dict[str, tuple[list[str], list[str]]] = {}
        for score, methods in leads(run, checkpoint).items():
            for method, (value, low, high, control) in methods.items():
                ahead, after = found.setdefault(method, ([], []))
                if low is not None and low > 0:
                    ahead.append(score)
                elif high is not None and high < 0:
                    after.append(f"{score}, by {-value:.3f} ({control})")
        for method, (ahead, after) in found.items():
            first, last = "; ".join(ahead) or "nothing", "; ".join(after) or "nothing"
            yield f"- {checkpoint}, {method}: ahead of every control in {first}. Behind the best one in {last}."


def plot(panels: Sequence[tuple[str, Run, str]], path: Path) -> None:
    """The leads of each method over the best control, a panel for each (title, run, checkpoint), as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "robustkit", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(style):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(3.6 * len(panels) + 1, 5), sharey=True, layout="constrained"
        )
        for axis, (title, run, checkpoint) in zip(axes, panels, strict=True):
            scores = leads(run, checkpoint)
            for place, score in enumerate(scores):
                for index, (method, (value, low, high, _)) in enumerate(scores[score].items()):
                    y = place + 0.22 * (index - 1)
                    colour, marker = (("#0072B2", "o"), ("#E69F00", "s"), ("#666666", "^"))[index]
                    label = method if place == 0 else None
                    filled = colour if low is not None else "white"
                    axis.plot(value, y, marker, color=colour, markerfacecolor=filled, markersize=5, label=label)
                    if low is not None and high is not None:
                        axis.plot([low, high], [y, y], color=colour, linewidth=1.5)
            axis.axvline(0, color="#222222", linewidth=0.8)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("behind the best control  |  ahead of it")
            axis.grid(axis="x", color="#dddddd")
            axis.set_yticks(range(len(scores)), list(scores))
        axes[0].invert_yaxis()
        axes[0].legend(loc="lower left", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def page(found: Sequence[tuple[Part, Run]], command: str, galleries: Sequence[tuple[str, str]]) -> str:
    """The whole page as Markdown. galleries: (file beside the page, what it shows)."""
    texts = [
        "# What maps are worth",
        f"Made by `{command}`; do not edit.",
        "A score of a map means little alone. Beside each stand three maps that do not look at the image: random "
        "values, a Gaussian in the centre, and everything. Below a score is the lead over the best of them, paired by "
        "image, with its 95 % interval. Scores at a threshold reward maps that mark much, so that a Gaussian, or "
        "everything, may win them; pointing, PxAP and MaxBoxAccV2 need no threshold, and ABPC asks the model itself.",
        "PxAP (Choe et al. 2020) is of pixel masks, at 200 levels; where only boxes are known, their union stands for "
        "the mask, so that its figures there are not those of the literature. MaxBoxAccV2 is the best of 100 "
        "thresholds, meaned over IoU 0.3, 0.5 and 0.7; a maximum has no interval. Maps of wrong predictions are left "
        "out.",
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
    texts.append("## In pictures")
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


def pictures(found: Sequence[tuple[Part, Run]], folder: Path) -> Iterator[tuple[str, str]]:
    """All of them, as (path from the page, caption)."""
    real = [(part, run) for part, run in found if part.folder != "zoo"]
    panels = [(part.title, run, run.manifest["checkpoints"][0]["name"]) for part, run in real]
    # Where maps have no ABPC, a panel lacks its line; all others have the same scores in the same order.
    panels = [panel for panel in panels if "ABPC" in leads(panel[1], panel[2])]
    plot(panels, folder / "leads.svg")
    yield (
        f"{folder.name}/leads.svg",
        "Lead of each method over the best of the controls, with 95 % intervals (hollow: none); left of the line a "
        "control wins",
    )
    yield from draw(found[-1][1], folder)


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
        galleries = list(pictures(found, options.markdown.with_suffix(""))) if options.markdown else []
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
