"""What the page of maps says about runs: where they come from, the leads over the controls, and a plot of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from robustkit.evaluations.maps.condition import parts_of
from robustkit.evaluations.maps.tables import FREE_HEADINGS, ONE_SIDED, SCORE_HEADINGS
from robustkit.results.summary import Run

from .writing import markdown

COLOURS = {"ahead": "#9ecae1", "level": "#ffffff", "behind": "#fdbe85", "open": "#eeeeee"}
MARGIN = 0.05  # of an interval's width: about the error of its ends, which are percentiles of 1000 resamples


class Lead(NamedTuple):
    """Over the best control of each resample; control: the best over all images."""

    value: float
    low: float | None
    high: float | None
    control: str

    @property
    def verdict(self) -> str:
        """`ahead`, `behind`, `level`, or `open` where there is no interval."""
        if self.low is None or self.high is None:
            return "open"
        margin = MARGIN * (self.high - self.low)
        return "ahead" if self.low > margin else "behind" if self.high < -margin else "level"


def leads(run: Run, checkpoint: str) -> dict[str, dict[str, Lead]]:
    """Return the leads by score, as the tables name it, and by method."""
    by_score: dict[str, dict[str, Lead]] = {}
    headings = SCORE_HEADINGS | FREE_HEADINGS
    for row in run.summary():
        parts_found, metric = parts_of(row["condition"]), row["metric"].removesuffix("_over_control")
        if row["checkpoint"] != checkpoint or parts_found is None or metric == row["metric"] or metric in ONE_SIDED:
            continue
        explained, mode = parts_found
        name = f"{headings[metric].removesuffix(' ↓')}{f' ({mode})' if mode else ''}"
        control = row["flags"][0].partition(": ")[2]
        by_score.setdefault(name, {})[explained.method] = Lead(row["value"], row["ci_low"], row["ci_high"], control)
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
        parts_found = parts_of(row["condition"])
        if parts_found is None or parts_found[0].method != "agcam" or row["metric"] not in scores:
            continue
        interval = "" if row["ci_low"] is None else f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        name = headings[row["metric"]] + (f" ({parts_found[1]})" if parts_found[1] else "")
        cells.setdefault((row["metric"], name), {})[row["checkpoint"]] = f"{row['value']:.3f}{interval}"
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
