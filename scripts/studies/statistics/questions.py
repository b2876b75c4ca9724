"""Draw the pictures of three questions: are images independent, methods or files, and how many images.

    python -m scripts.studies.statistics.questions --camvid RUN

RUN: CamVid's 133 test frames, segmented; what it says is kept next to this file, so that pictures can be drawn again
without it. Coverage: the drives are cut at random frames into two parts of half the frames each; intervals of the two
are right where the difference lies within both together, sqrt(a² + b²) of their half widths.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from robustkit.common.groups import Groups
from robustkit.common.intervals import Floats, bootstrap
from robustkit.results.methods import crossed_error
from robustkit.runs.folder import RunFolder
from robustkit.slices.paper.plan import mcnemar_power
from robustkit.tasks.segmentation.counts import COLUMNS, Counts
from scripts.studies.quest_tables.trainings import Trainings

HERE, PICTURES = Path(__file__).parent, Path(__file__).parents[3] / "docs" / "pictures"
KEPT = HERE / "camvid.json"
TEN = 10
PATTERN, CUTS = r"^(.*\d)\d\d(?:\.\w+)?$", 1000
INK, FAINT, FIRST, SECOND = "#18202b", "#8a93a0", "#2563a8", "#c2571a"


def camvid(run: RunFolder) -> dict[str, Any]:
    """Return accuracies of frames in their order, and mIoU with intervals for independent and for grouped frames."""
    (name,) = run.manifest.names
    unjudged = run.manifest.data.unjudged or ()
    judged = [place for place in range(len(run.manifest.data.class_names)) if place not in unjudged]
    counts = Counts.of(run.table(name, "clean", COLUMNS), ()).of_classes(judged)
    ids = counts.ids.to_pylist()
    kinds: dict[str, Groups | None] = {f"{len(ids)} images": None}
    stretches = [match[1] for each in ids if (match := re.search(PATTERN, each))]
    tens = [f"{each.split('_')[0]} {place // TEN}" for place, each in enumerate(ids)]
    for names in (stretches, tens):
        groups = Groups.of(names)
        assert groups is not None and len(names) == len(ids)
        kinds[f"{groups.count} groups"] = groups
    every = np.ones(len(ids), bool)
    return {
        "frames": dict(zip(ids, counts.accuracies.round(4).tolist(), strict=True)),
        "miou": float(counts.values[0]),
        "ends": {kind: list(_ends(counts, every, used)) for kind, used in kinds.items()},
        "held": {kind: _held(counts, ids, used) for kind, used in kinds.items()},
    }


def _ends(counts: Counts, chosen: Floats | Any, groups: Groups | None) -> tuple[float, float]:
    some = counts.of_samples(counts.ids.filter(chosen.tolist()))
    used = groups.only(chosen) if groups is not None else None
    return bootstrap(lambda drawn: some.figures(drawn)[:, 0], len(some.ids), [float(some.values[0])], used)[0]


def _held(counts: Counts, ids: list[str], groups: Groups | None) -> float:
    """Return how often the intervals of two halves of the drives allow for their difference."""
    stream, held = np.random.default_rng(0), 0
    drives = np.array([each.split("_")[0] for each in ids])
    for _ in range(CUTS // 5):
        chosen = np.zeros(len(ids), bool)
        for drive in np.unique(drives):
            places = np.flatnonzero(drives == drive)
            start = stream.integers(len(places))
            chosen[np.roll(places, -start)[: len(places) // 2]] = True
        halves = []
        for part in (chosen, ~chosen):
            low, high = _ends(counts, part, groups)
            value = float(counts.of_samples(counts.ids.filter(part.tolist())).values[0])
            halves.append((value, (high - low) / 2))
        held += abs(halves[0][0] - halves[1][0]) <= math.hypot(halves[0][1], halves[1][1])
    return held / (CUTS // 5)


def draw_independent(found: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6), width_ratios=(3, 1.4), layout="constrained")
    frames = list(found["frames"].items())
    for drive, colour in (("0001TP", FIRST), ("Seq05VD", SECOND)):
        places = [place for place, (name, _) in enumerate(frames) if name.startswith(drive)]
        left.plot(places, [100 * frames[place][1] for place in places], color=colour, linewidth=1.2)
        left.annotate(drive, (places[len(places) // 2], 67.5), color=colour, ha="center")
    left.set(xlabel="frame", ylabel="pixels right, %", ylim=(66, 94), title="neighbours are alike")
    for place, (label, ends) in enumerate(reversed(found["ends"].items())):
        low, high = (100 * end for end in ends)
        right.plot([low, high], [place, place], color=INK, linewidth=2)
        right.plot([100 * found["miou"]], [place], "o", color=INK)
        right.annotate(f"{label}: {low:.1f} to {high:.1f}", (low, place + 0.15), color=INK)
    right.set(xlabel="mIoU, %", ylim=(-0.4, 2.6), yticks=[], title="95 % interval", xlim=(52.5, 63))
    _save(figure, "independent.svg")


def draw_methods() -> None:
    import matplotlib.pyplot as plt

    with gzip.open(HERE.parent / "quest_tables" / "shapes.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    names = ["standard", "quest", "elliptical", "elliptical-quest"]
    for place, name in enumerate(names):
        columns = right_of(lines, name, "clean")
        error, freedom = crossed_error([columns])
        reach = float(t.ppf(0.975, freedom)) * error
        low, high = columns.mean() - reach, columns.mean() + reach
        axes.plot([100 * low, 100 * high], [place, place], color=INK, linewidth=2)
        axes.plot(100 * columns.mean(axis=0), [place] * columns.shape[1], "|", color=SECOND, markersize=12)
        axes.plot([100 * columns.mean()], [place], "o", color=INK)
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="top-1, %, 1000 test images of shapes; |: a training")
    axes.invert_yaxis()
    _save(figure, "methods.svg")


def right_of(lines: list[dict[str, Any]], attention: str, condition: str) -> Floats:
    """Return which images each training of a formula predicts right, (n, T)."""
    found = Trainings([line for line in lines if line["attention"] == attention])
    columns = [found.right(attention, condition)[seed] for seed in sorted(found.right(attention, condition))]
    return np.stack(columns, axis=1).astype(np.float64)


def draw_power() -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    sizes = np.unique(np.geomspace(50, 20000, 80).astype(int))
    for gap, colour in ((0.01, FIRST), (0.02, INK), (0.05, SECOND)):
        axes.plot(sizes, [100 * mcnemar_power(int(n), 0.1, gap) for n in sizes], color=colour)
        place = next(n for n in sizes if mcnemar_power(int(n), 0.1, gap) > 0.55)
        axes.annotate(f"{100 * gap:.0f} points ", (place, 55), color=colour, ha="right")
    axes.axhline(80, color=FAINT, linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="images; 10 % of them are right for one of the two only", ylabel="found, %")
    _save(figure, "power.svg")


def _save(figure: Any, name: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / name, metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--camvid", type=Path, help="Run folder of CamVid's test frames.")
    options = parser.parse_args()
    if options.camvid is not None:
        KEPT.write_text(json.dumps(camvid(RunFolder.existing(options.camvid)), indent=1) + "\n", "utf-8")
    found = json.loads(KEPT.read_text("utf-8"))
    print({name: found[name] for name in ("miou", "ends", "held")})
    draw_independent(found)
    draw_methods()
    draw_power()


if __name__ == "__main__":
    main()
