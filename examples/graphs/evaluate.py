"""Evaluate what train.py wrote, and write the tables of README.md: `python evaluate.py --images TEST.zip`.

It makes two runs, RUNS/superpixels and RUNS/communities, each of all seeds and formulas, which `robustkit report`,
`compare` and `check` read. `--tables` only writes the tables again, from figures.csv.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scipy.stats import ttest_rel

import robustkit
from robustkit.pipeline.scheduler import run
from robustkit.tasks.task import task_named

HERE = Path(__file__).resolve().parent
FIGURES, README = HERE / "figures.csv", HERE / "README.md"
CORRUPTIONS = "gaussian_noise(severity=3),defocus_blur(severity=3),fog(severity=3),jpeg_compression(severity=3)"
DROPPED = "drop-edges(share=0.1),drop-edges(share=0.3),drop-edges(share=0.5)"
IMAGES, GRAPHS = 300, 200
FORMULAS = ("standard", "quest")


class Figure(NamedTuple):
    """The share that one checkpoint has right under one condition."""

    task: str
    condition: str
    attention: str
    seed: int
    right: float


def evaluated(folder: Path, images: Path) -> Iterator[Figure]:
    """Audit all checkpoints of a folder, and yield their figures."""
    robustkit.load_plugin(HERE / "communities.py")  # before anything imports the modules next to it
    request = task_named("communities").request
    runs = {
        "top1": robustkit.audit(
            sorted(folder.glob("superpixels-*.safetensors")),
            data_dir=images,
            attacks="none",
            corruptions=CORRUPTIONS,
            model={"arch": f"{HERE / 'superpixels.py'}:build", "img_size": 32},
            out=folder / "superpixels",
            limit=IMAGES,
            browse=20,
            setup_check=False,
            workers=1,
            say=print,
        ),
        "right": run(
            request(
                checkpoints=sorted(folder.glob("cluster-*.safetensors")),
                evaluations=DROPPED,
                out=folder / "communities",
                limit=GRAPHS,
                workers=1,
            ),
            say=print,
        ),
    }
    for metric, done in runs.items():
        for row in done.results().to_dict("records"):
            if row["metric"] == metric:
                task, attention, seed = row["checkpoint"].rsplit("-", 2)
                yield Figure(task, row["condition"], attention, int(seed), round(row["value"], 6))


def tables(figures: list[Figure]) -> str:
    """Return a table for each task: mean and sd over seeds, and differences paired by seed."""
    parts = []
    for task in dict.fromkeys(figure.task for figure in figures):
        lines = [
            "| condition | standard | QUEST | difference, points | p |",
            "|---|---|---|---|---|",
        ]
        for condition in dict.fromkeys(figure.condition for figure in figures if figure.task == task):
            by = {
                name: [
                    f.right for f in sorted(figures) if (f.task, f.condition, f.attention) == (task, condition, name)
                ]
                for name in FORMULAS
            }
            apart = [quest - standard for standard, quest in zip(*by.values(), strict=True)]
            cells = [_spread(values) for values in by.values()]
            p = ttest_rel(by["quest"], by["standard"]).pvalue
            lines.append(f"| {condition} | {cells[0]} | {cells[1]} | {_spread(apart, '+')} | {p:.2f} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _spread(values: list[float], sign: str = "") -> str:
    """Return `41.3 ± 0.8`: mean and standard deviation in percent."""
    return f"{100 * statistics.mean(values):{sign}.1f} ± {100 * statistics.stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/graphs"), help="what train.py was given as --out")
    parser.add_argument("--images", type=Path, help="CIFAR-10's test images, a folder or zip of classes")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    if not asked.tables:
        if asked.images is None:
            parser.error("superpixels are of images; expected --images, a folder or zip of classes, or --tables")
        with FIGURES.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows((Figure._fields, *evaluated(asked.runs, asked.images)))
    with FIGURES.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made = [Figure(**{**row, "seed": int(row["seed"]), "right": float(row["right"])}) for row in rows]
    text = README.read_text("utf-8")
    pattern = r"(<!-- figures: made by evaluate.py -->\n).*?(<!-- /figures -->)"
    README.write_text(re.sub(pattern, rf"\1\n{tables(made)}\n\n\2", text, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
