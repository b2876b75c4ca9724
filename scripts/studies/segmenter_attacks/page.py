"""Write README.md from runs: by how much SegPGD alone overestimates robustness.

    python -m scripts.studies.segmenter_attacks.page RUN... [--markdown PAGE] [--note TEXT]

Each run is of `robustkit segment` with `--attacks "segpgd,segpgd(steps=120),cospgd(steps=120),sea(steps=30)"`: 120
updates an image for each attack but the first, which is SegPGD as it is by default.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from robustkit.common.figure import FEWEST
from robustkit.display.format import size_text
from robustkit.errors import RunError
from robustkit.evaluations.records import common_ids
from robustkit.report.run import Run
from robustkit.tasks.segmentation.counts import COLUMNS, Counts
from robustkit.tasks.segmentation.results import counts_of_runs, of_runs, scene_difference, worst_case
from scripts.pages.writing import markdown, write_page

HEADINGS = ("attack", "mIoU % [95 %]", "below the first, points [95 %]", "pixel acc. %", "images lower")
START = """# How strong attacks on segmenters are

Made by `python -m scripts.studies.segmenter_attacks.page` from runs of the commands below; do not edit.

How much mIoU does SegPGD with its usual 20 steps leave that stronger attacks do not? Compared are SegPGD and CosPGD
with 120 steps, and SEA with 30 in each of its four runs: each of these three makes 120 updates of an image. *Worst for
all* is `miou_worst`: of each image the run of SEA that lowers the mIoU of all images most (Croce, Singh and Hein 2024,
arXiv:2306.12941). *Below the first* is the mIoU under the first attack, SegPGD with 20 steps, minus this one. *Images
lower* counts those of which fewer pixels are right than under the first. Intervals are of resampled images, for
differences of the same ones in both; less than {few} images have none.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--markdown", type=Path, default=Path("scripts/studies/segmenter_attacks/README.md"))
    parser.add_argument("--note", action="append", default=[], help="a paragraph of what was found, before the tables")
    given = parser.parse_args()
    parts = [START.format(few=FEWEST).rstrip(), *given.note]
    for run in map(Run, given.runs):
        parts.append(f"```\n{run.manifest.command}\n```")
        for checkpoint in run.manifest.names:
            parts += sections(run, checkpoint)
    write_page(given.markdown, "\n\n".join(parts) + "\n")


def sections(run: Run, checkpoint: str) -> Iterator[str]:
    """Yield a heading and a table for each radius at which all attacks have records of some image."""
    claims = run.manifest.claims
    for eps in dict.fromkeys(claim.eps for claim in claims.values()):
        texts = [text for text in ("clean", *claims) if text == "clean" or claims[text].eps == eps]
        read = {text: counts for text in texts if (counts := counts_of(run, checkpoint, text)) is not None}
        if len(read) < len(texts):
            continue
        ids = common_ids([counts[0].ids for counts in read.values()])
        same = {text: [each.of_samples(ids) for each in counts] for text, counts in read.items()}
        yield f"## {checkpoint} at {size_text(eps, 'linf')}, {len(ids)} images"
        yield markdown([HEADINGS, *rows(same)])


def rows(read: dict[str, list[Counts]]) -> Iterator[tuple[str, ...]]:
    first = next(text for text in read if text.startswith("segpgd"))
    base = read[first][0]
    for text, (counts, *runs) in read.items():
        lower = "" if text in ("clean", first) else f"{int((right(counts) < right(base)).sum())} of {len(base.ids)}"
        accuracy = f"{100 * counts.values[1]:.1f}"
        gap = "" if text in ("clean", first) else below(base, counts)
        yield f"`{text}`", shown(counts), gap, accuracy, lower
        if runs:
            worst = worst_case(counts, runs)
            yield f"`{text}`, worst for all", shown(worst), below(base, worst), f"{100 * worst.values[1]:.1f}", ""


def counts_of(run: Run, checkpoint: str, text: str) -> list[Counts] | None:
    """Return the counts under a condition and those of each run of it; None where there are no records."""
    data = run.manifest.data
    try:
        table = run.table(checkpoint, text, lambda name: name in COLUMNS or of_runs(name))
    except RunError:
        return None
    judged = [place for place in range(len(data.class_names)) if place not in (data.unjudged or ())]
    return [each.of_classes(judged) for each in (Counts.of(table, ()), *counts_of_runs(table))]


def right(counts: Counts) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the share of each image's pixels (n,) that are right."""
    shares: np.ndarray[tuple[int], np.dtype[np.float64]] = counts.intersections.sum(axis=1) / counts.labelled.sum(
        axis=1
    )
    return shares


def shown(counts: Counts) -> str:
    low, high = counts.intervals[0] if len(counts.ids) >= FEWEST else (math.nan, math.nan)
    interval = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * counts.values[0]:.1f}{interval}"


def below(base: Counts, counts: Counts) -> str:
    found = scene_difference([(1.0, counts)], [(1.0, base)])
    interval = "" if math.isnan(found.ci_low) else f" [{100 * found.ci_low:.1f}, {100 * found.ci_high:.1f}]"
    return f"{100 * found.value:.1f}{interval}"


if __name__ == "__main__":
    main()
