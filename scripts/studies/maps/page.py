"""What maps are worth: AG-CAM and its baselines next to controls, on real images and on the zoo.

    python -m scripts.studies.maps.page CHECKPOINT --images VAL --boxes CSV [--photographs DIR --masks DIR]
        --out runs/maps [--cams agcam,legrad,chefer,layer-cam] [--markdown PAGE]

Scores the maps of a real ViT where boxes are known, by the published protocol and with the aspect kept; on photographs
with masks, unlabelled; and those of the zoo's four on the generated set. Each is a run folder under --out; the same
command continues where it was stopped, and on finished runs only prints. With --markdown a plot of
the leads over controls and two galleries of the generated set are drawn next to the page.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

import robustkit
from robustkit.display.progress import ConsoleProgress
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.maps import FREE_HEADINGS, SCORE_HEADINGS, parts_of
from robustkit.evaluations.maps.tables import ONE_SIDED, is_of_maps, map_tables
from robustkit.evaluations.presenting import finding_lines, note_lines
from robustkit.pipeline.request import ClassificationRequest
from robustkit.report.run import Run
from robustkit.slices.gallery.drawing import Choice, make_gallery
from scripts.pages.writing import deliver, markdown

COLOURS = {"ahead": "#9ecae1", "level": "#ffffff", "behind": "#fdbe85", "open": "#eeeeee"}
MARGIN = 0.05  # of an interval's width: about the error of its ends, which are percentiles of 1000 resamples


class Lead(NamedTuple):
    """Over the best control of each resample; control: the best over all images."""

    value: float
    low: float
    high: float
    control: str

    @property
    def verdict(self) -> str:
        """`ahead`, `behind`, `level`, or `open` where there is no interval."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return "open"
        margin = MARGIN * (self.high - self.low)
        return "ahead" if self.low > margin else "behind" if self.high < -margin else "level"


def leads(run: Run, checkpoint: str) -> dict[str, dict[str, Lead]]:
    """Return the leads by score, as the tables name it, and by method."""
    by_score: dict[str, dict[str, Lead]] = {}
    headings = SCORE_HEADINGS | FREE_HEADINGS
    for row in run.summary():
        parts_found, metric = parts_of(row.condition), row.metric.removesuffix("_over_control")
        if row.checkpoint != checkpoint or parts_found is None or metric == row.metric or metric in ONE_SIDED:
            continue
        explained, mode = parts_found
        name = f"{headings[metric].removesuffix(' ↓')}{f' ({mode})' if mode else ''}"
        control = next(each.text for each in row.findings if each.code == "maps/best-control").partition(": ")[2]
        by_score.setdefault(name, {})[explained.method] = Lead(row.value, row.low, row.high, control)
    return by_score


def names(run: Run) -> list[str]:
    """Return the names of its checkpoints."""
    return run.manifest.names


def source(run: Run) -> str:
    """Return which images, which checkpoints, seen how: all that a figure of the run depends on."""
    manifest = run.manifest
    data, protocol, first = manifest.data, manifest.protocol, manifest.checkpoints[0].preprocessing
    size = "x".join(map(str, first.input_size))
    squashed, share = first.crop_mode == "squash", f"{first.crop_pct:g}"
    seen = "squashed to" if squashed else f"resized and centre-cropped (crop {share}) to"
    counted = "unlabelled: the maps of all count" if data.layout == "unlabelled" else "wrong predictions left out"
    models = "; ".join(
        f"{known.name}, {known.attention} attention, sha256 {str(known.sha256)[:12]}…" for known in manifest.checkpoints
    )
    return (
        f"{data.n} images of `{data.root}` (digest {data.digest[:12]}…), {first.interpolation}, {seen} "
        f"{size}, the predicted class, {counted}. Card `{protocol.tag}`, seed {manifest.seed}, "
        f"{manifest.deciding.dtype}. {models}."
    )


def behind(run: Run) -> Iterator[str]:
    """Yield where a map that looks at the image is better than one that does not, where worse, and where neither is
    shown.
    """
    for checkpoint in names(run):
        by_method: dict[str, dict[str, list[str]]] = {}
        for score, methods in leads(run, checkpoint).items():
            for method, lead in methods.items():
                texts = {"ahead": score, "behind": f"{score}, by {-lead.value:.3f} ({lead.control})"}
                text = texts.get(lead.verdict, f"{score} {round(lead.value, 3) + 0.0:+.3f} ({lead.control})")
                by_method.setdefault(method, {}).setdefault(lead.verdict, []).append(text)
        for method, said in by_method.items():
            parts = [
                f"ahead of every control in {'; '.join(said.get('ahead', ['nothing']))}",
                f"behind the best one in {'; '.join(said.get('behind', ['nothing']))}",
            ]
            parts += [f"not distinguished from it in {'; '.join(said['level'])}"] if "level" in said else []
            parts += [f"without an interval {'; '.join(said['open'])}"] if "open" in said else []
            yield f"- {checkpoint}, {method}: {'. '.join(part[0].upper() + part[1:] for part in parts)}."


def winners(title: str, run: Run) -> Iterator[str]:
    """Yield, for each checkpoint, on which scores a map is ahead of every control, and which; and where none is."""
    for checkpoint in names(run):
        found = {
            score: [method for method, lead in methods.items() if lead.verdict == "ahead"]
            for score, methods in leads(run, checkpoint).items()
            if any(lead.verdict != "open" for lead in methods.values())
        }
        won = [f"{score}: {', '.join(methods)}" for score, methods in found.items() if methods]
        none = [score for score, methods in found.items() if not methods]
        lost = f"; none on {', '.join(none)}" if none else ""
        yield f"- {title}, {checkpoint}: {'; '.join(won or ['nothing'])}{lost}."


def in_short(runs: Sequence[tuple[str, Run]]) -> str:
    """Return a table of how often each map is ahead of the controls, level with them and behind, by kind of score."""
    rows = [("", "map", "at a threshold", "without one", "MaxBoxAccV2", "ABPC")]
    for title, run in runs:
        for checkpoint in names(run):
            scores = leads(run, checkpoint)
            for method in next(iter(scores.values())):
                leads_of = {score: methods[method] for score, methods in scores.items() if method in methods}
                fixed = [lead.verdict for score, lead in leads_of.items() if "(" in score]
                free = [leads_of[score].verdict for score in ("pointing", "energy inside", "PxAP") if score in leads_of]
                counted = (
                    f"{some.count('ahead')} ahead, {some.count('level')} level, {some.count('behind')} behind"
                    for some in (fixed, free)
                )
                box, asked = leads_of.get("MaxBoxAccV2"), leads_of.get("ABPC")
                last = "–" if asked is None else f"{asked.verdict} ({asked.value:+.3f})"
                who = f"{checkpoint}, {method}"
                rows.append((title, who, *counted, "–" if box is None else f"{box.value:+.3f}", last))
    return markdown(rows)


def side_by_side(run: Run) -> str:
    """Return AG-CAM of every checkpoint, with a column for each."""
    scores = ("cam_iou", "cam_dice", "pointing_game", "pxap", "max_box_acc", "abpc")
    headings = SCORE_HEADINGS | FREE_HEADINGS
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in run.summary():
        parts_found = parts_of(row.condition)
        if parts_found is None or parts_found[0].method != "agcam" or row.metric not in scores:
            continue
        interval = "" if not row.has_interval else f" [{row.low:.3f}, {row.high:.3f}]"
        name = headings[row.metric] + (f" ({parts_found[1]})" if parts_found[1] else "")
        cells.setdefault((row.metric, name), {})[row.checkpoint] = f"{row.value:.3f}{interval}"
    order = sorted(cells, key=lambda key: scores.index(key[0]))
    return markdown([("AG-CAM", *names(run)), *((key[1], *(cells[key][name] for name in names(run))) for key in order)])


def plot(panels: Sequence[tuple[str, Mapping[str, Mapping[str, Lead]]]], path: Path) -> None:
    """Draw a panel for each (title, leads by score and method), as SVG: a cell a lead, in its verdict's colour."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    style = {"svg.hashsalt": "robustkit", "svg.fonttype": "none", "font.size": 8}
    methods = list(dict.fromkeys(method for _, found in panels for some in found.values() for method in some))
    heights = [len(found) for _, found in panels]
    with matplotlib.rc_context(style):
        size = (2 + 0.5 * len(methods), 1.8 + 0.3 * sum(heights) + 0.3 * len(panels))
        figure, axes = plt.subplots(
            len(panels), 1, figsize=size, sharex=True, squeeze=False, layout="constrained", height_ratios=heights
        )
        for axis, (title, found) in zip(axes[:, 0], panels, strict=True):
            for y, leads_of in enumerate(found.values()):
                for method, lead in leads_of.items():
                    x, colour = methods.index(method), COLOURS[lead.verdict]
                    axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="#cccccc"))
                    axis.text(x, y, f"{lead.value:+.2f}", ha="center", va="center", fontsize=7)
            axis.set(xlim=(-0.5, len(methods) - 0.5), ylim=(len(found) - 0.5, -0.5))
            axis.set_title(title, fontsize=9)
            axis.set_xticks(range(len(methods)), methods, rotation=90)
            axis.set_yticks(range(len(found)), list(found))
            axis.tick_params(length=0)
        words = {
            "ahead": "ahead of every control",
            "level": "level",
            "behind": "behind the best",
            "open": "no interval",
        }
        figure.legend(
            handles=[Patch(facecolor=COLOURS[name], edgecolor="#cccccc", label=text) for name, text in words.items()],
            loc="outside lower center",
            ncols=len(words),
            frameon=False,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


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
                "Side by side; over several trainings they are in [quest-tables](../quest_tables/README.md):",
                side_by_side(run),
            ]
        for table in map_tables(run.summary()):
            texts.append(f"{table.checkpoint}, {table.title.removeprefix('maps, ')}:")
            texts.append(markdown([table.headings, *table.rows]))
        found = Results.of(run, run.summary())
        texts += [f"⚑ {line}" for line in finding_lines(found, is_of_maps)]
        texts += [f"Note: {line}" for line in note_lines(found, is_of_maps)]
        texts += ["**Next to the controls**", "\n".join(behind(run))]
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
        folder.mkdir(parents=True, exist_ok=True)
        drawn = make_gallery(run, request, Choice.of(models, cams, "all", how=how, count=4))
        drawn.save(folder / f"shapes-{name}.png")
        yield f"shapes-{name}.png", f"Generated shapes on which {caption}"


def pictures(runs: Sequence[tuple[Part, Run]], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield all pictures, as (path from the page, caption)."""
    real = [(part, run) for part, run in runs if part.folder != "zoo"]
    plot([(part.title, leads(run, run.manifest.names[0])) for part, run in real], folder / "leads.svg")
    yield (
        "leads.svg",
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
        galleries = list(pictures(runs, options.markdown.parent)) if options.markdown else []
        return page(runs, " ".join(["python -m scripts.studies.maps.page", *given]), galleries)

    return deliver("scripts.studies.maps.page", make, options.markdown)


if __name__ == "__main__":
    sys.exit(main())
