"""Time series: accuracies over trainings next to the published ones, and what noise, gaps, warps and PGD leave.

    python -m scripts.studies.series.page --work DIR --data DIR --out runs/series
    python -m scripts.studies.series.page

The first audits what `train.py` left in --work by `robustkit series` on DATA/X_TEST.ts, a run folder for each data set
under --out, and keeps logs and accuracies next to the page; the same command continues where it was
stopped, and takes trainings that came later. Without --data only the logs are kept. Both write README.md
from what is kept.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustkit.common.differences import Difference, holm, of_means
from robustkit.common.files import write_whole
from robustkit.display.svg import Plot
from robustkit.errors import RobustkitError
from robustkit.pipeline.scheduler import run
from robustkit.results.published import read_published
from robustkit.slices.series import SeriesRequest
from scripts.pages.writing import markdown, write_page

from .train import FORMULAS, WATCHED

GRID: Mapping[str, tuple[str, Sequence[str]]] = {
    "jitter": ("sigma", ("0.25", "0.5", "1", "2")),
    "drop-steps": ("share", ("0.1", "0.2", "0.4", "0.6")),
    "drop-channels": ("share", ("0.25", "0.5")),
    "warp": ("sigma", ("0.25", "0.5", "1")),
    "rescale": ("sigma", ("0.25", "0.5", "1")),
}
ATTACK, RADII = "pgd", ("0.1", "0.3")
LIMIT = {"Handwriting": 200}
"""Series that are attacked and disturbed, where all would take hours on one core; the clean figures are of all."""

Log = dict[str, Any]
Kept = dict[tuple[str, str, str], dict[int, float]]
"""Accuracies by data set, condition, formula and seed."""


def audited(work: Path, data: Path, out: Path, logs: Sequence[Log]) -> Iterator[list[str]]:
    """Audit all models of each data set; yield data set, formula, seed, condition and accuracy."""
    asked = [f"{kind}({name}={value})" for kind, (name, values) in GRID.items() for value in values]
    for problem in dict.fromkeys(log["data"] for log in logs):
        mine = [log for log in logs if log["data"] == problem]
        names = {_name(log): log for log in mine}
        done = run(
            SeriesRequest(
                checkpoints=[work / f"{name}.safetensors" for name in names],
                data_dir=data / f"{problem}_TEST.ts",
                attacks=ATTACK,
                eps=",".join(RADII),
                disturbances=asked,
                limit=LIMIT.get(problem),
                out=out / problem,
            ),
            say=print,
        )
        for row in done.summary():
            if row.metric == "top1":
                log = names[row.checkpoint]
                yield [problem, log["attention"], str(log["seed"]), row.condition, f"{row.value:.6f}"]


def _name(log: Log) -> str:
    return f"{log['data'].lower()}-{log['attention']}-{log['seed']}"


def gather(work: Path, data: Path | None, out: Path, folder: Path) -> None:
    """Write the logs and accuracies of all finished trainings next to the page. Raises RobustkitError without any."""
    logs = [json.loads(path.read_text("utf-8")) for path in sorted(work.glob("*.json"))]
    if not logs:
        raise RobustkitError(
            f"{work}: no finished training; start with python -m scripts.studies.series.train --out {work}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if data is not None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["data", "attention", "seed", "condition", "accuracy"])
        writer.writerows(audited(work, data, out, logs))
        write_whole(folder / "accuracies.csv", table.getvalue().encode())
    lines = (json.dumps(log, separators=(",", ":")) for log in logs)
    write_whole(folder / "trainings.jsonl", ("\n".join(lines) + "\n").encode())


def kept(folder: Path) -> tuple[list[Log], Kept]:
    """Return what `gather` wrote."""
    logs = [json.loads(line) for line in (folder / "trainings.jsonl").read_text("utf-8").splitlines()]
    values: Kept = defaultdict(dict)
    if not (folder / "accuracies.csv").exists():
        return logs, values
    with (folder / "accuracies.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values[row["data"], row["condition"], row["attention"]][int(row["seed"])] = float(row["accuracy"])
    return logs, values


PAGE = Path("scripts/studies/series/README.md")
_COLOURS = {"standard": "black", "qnorm": "#d55e00", "qknorm": "#e69f00", "quest": "#0072b2"}
_LEVEL = 0.05

# Comparisons


def against_standard(values: Mapping[str, Mapping[int, float]]) -> dict[str, Difference]:
    """Return how each formula differs from standard attention, paired by seed. values: by formula and seed."""
    found = {}
    for formula in FORMULAS[1:]:
        seeds = sorted(values.get("standard", {}).keys() & values.get(formula, {}).keys())
        if len(seeds) > 1:
            sides = (np.array([values[side][seed] for seed in seeds]) for side in ("standard", formula))
            found[formula] = of_means(*sides, binary=False)
    return found


def _published(problem: str, formula: str) -> str:
    """Return the accuracy in %, of one training, of QUEST's Tables 7 and A8."""
    figure = read_published(f"quest-{problem.lower()}").figure(formula, "clean", "top1")
    return "–" if figure is None else f"{100 * figure:.2f}"


def spread(values: Sequence[float]) -> str:
    """Return `98.2 ± 0.3`: the mean in % and the standard deviation over seeds."""
    if not values:
        return "–"
    sd = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{sd}"


def _clean(logs: Sequence[Log], problem: str, best: bool) -> dict[str, dict[int, float]]:
    """Return accuracies after the last epoch, or the best that was seen on the test file, by formula and seed."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for log in logs:
        if log["data"] == problem:
            found[log["attention"]][log["seed"]] = (max(log["right"]) if best else log["right"][-1]) / log["n"]
    return found


def clean_tables(logs: Sequence[Log]) -> Iterator[str]:
    """Yield a table for each data set: ours after the last epoch, the best on the test file, and the paper's."""
    problems = list(dict.fromkeys(log["data"] for log in logs))
    tests = {
        (problem, formula): test
        for problem in problems
        for formula, test in against_standard(_clean(logs, problem, best=False)).items()
    }
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    for problem in problems:
        last, best = (_clean(logs, problem, best) for best in (False, True))
        rows = [
            [
                "attention",
                "seeds",
                "last epoch, %",
                "against standard",
                "p (Holm)",
                "best on the test file, %",
                "QUEST paper, %",
            ]
        ]
        for formula in FORMULAS:
            test = tests.get((problem, formula))
            rows.append(
                [
                    formula,
                    str(len(last[formula])),
                    spread(list(last[formula].values())),
                    "" if test is None else _signed(test),
                    "" if test is None else f"{corrected[problem, formula]:.2f}",
                    spread(list(best[formula].values())),
                    _published(problem, formula),
                ]
            )
        differ = [f for (p, f), value in corrected.items() if p == problem and value < _LEVEL]
        what = (
            f"{', '.join(differ)} and standard differ beyond chance"
            if differ
            else "no formula differs from standard beyond chance"
        )
        n = next(log["n"] for log in logs if log["data"] == problem)
        yield f"**{problem}** ({n} test series): {what}.\n\n{markdown(rows)}"


def _signed(test: Difference) -> str:
    """Return `+1.2 [−0.4, +2.8]`, in points."""
    parts = [f"{100 * value:+.1f}".replace("-", "−") for value in (test.value, test.ci_low, test.ci_high)]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]" if np.isfinite(test.ci_low) else parts[0]


def robust_tables(values: Kept) -> Iterator[str]:
    """Yield a table for each data set: the mean accuracy under every condition, and what differs from standard."""
    for problem in dict.fromkeys(key[0] for key in values):
        texts = list(dict.fromkeys(text for name, text, _ in values if name == problem))
        by_text = {text: {f: values.get((problem, text, f), {}) for f in FORMULAS} for text in texts}
        tests = {(text, f): test for text in texts for f, test in against_standard(by_text[text]).items()}
        corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
        rows = [["condition", *FORMULAS]]
        for text in texts:
            cells = []
            for formula in FORMULAS:
                mark = ""
                if corrected.get((text, formula), 1.0) < _LEVEL:
                    mark = " ↑" if tests[text, formula].value > 0 else " ↓"
                cells.append(spread(list(by_text[text][formula].values())) + mark)
            rows.append([f"`{text}`", *cells])
        count = sum(value < _LEVEL for value in corrected.values())
        few = f" of {LIMIT[problem]} test series" if problem in LIMIT else ""
        yield (
            f"**{problem}**{few}: {count} of {len(corrected)} comparisons with standard attention "
            f"{'is' if count == 1 else 'are'} beyond chance after Holm's correction over all of them (↑ more right "
            f"than standard, ↓ fewer).\n\n{markdown(rows)}"
        )


def curves(problem: str, values: Kept) -> Plot:
    """Draw accuracy against the strength of each disturbance and of PGD: a line for each formula, a dot a seed."""
    kinds = {**{kind: name for kind, (name, _) in GRID.items()}, ATTACK: "eps"}

    def paint(canvas: Any) -> None:
        for place, (axes, (kind, name)) in enumerate(
            zip(canvas.subplots(2, 3, sharey=True).flat, kinds.items(), strict=True)
        ):
            for formula in FORMULAS:
                points = {0.0: values.get((problem, "clean", formula), {})}
                for (where, text, of), seeds in values.items():
                    if (where, of) == (problem, formula) and text.startswith(f"{kind}({name}="):
                        points[float(text.split("=")[1].rstrip(")").split(",")[0])] = seeds
                places = sorted(points)
                means = [100 * statistics.fmean(points[at].values()) if points[at] else np.nan for at in places]
                axes.plot(places, means, color=_COLOURS[formula], label=formula, linewidth=1.3)
                for at in places:
                    ends = [100 * share for share in points[at].values()]
                    axes.plot([at] * len(ends), ends, ".", color=_COLOURS[formula], markersize=3, alpha=0.5)
            axes.set_title(kind)
            axes.set_xlabel({"share": "share", "eps": "ε in σ"}.get(name, "sigma"))
            axes.set_ylim(0, 104)
            if place % 3 == 0:
                axes.set_ylabel("accuracy, %")
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)

    said = f"Accuracy on {problem} against the strength of each disturbance and the radius of PGD, a line a formula"
    return Plot("series", problem, 340, paint, alt=said, caption=said)


def text(folder: Path) -> str:
    """Return the page, and draw its figures. folder: of what is kept, next to the page."""
    logs, values = kept(folder)
    problems = list(dict.fromkeys(key[0] for key in values))
    pictures = []
    for problem in problems:
        figure = curves(problem, values)
        write_whole(folder / f"{problem}.svg", figure.svg.encode())
        pictures.append(f"![{figure.alt}]({problem}.svg)")
    missing = [p for p in ("JapaneseVowels", "Handwriting") if p not in {log["data"] for log in logs}]
    few = sorted({f"{log['data']} {log['attention']}" for log in logs if _count(logs, log) < 5})
    parts = [
        "# Time series",
        "Made by `python -m scripts.studies.series.page` from the logs of `python -m scripts.studies.series.train` and "
        "the records of `robustkit series`; do not edit.",
        "The QUEST paper classifies multivariate time series of the UEA archive by a Transformer of three layers "
        "(Tables 7 and A8), with one training for each formula. Here are several, which differ in their seed alone: "
        "how far a figure moves from training to training says what a difference between formulas means. `qknorm` is "
        "the form of the paper's ablation, with scales of its own for each head.",
        "## Accuracy over trainings",
        "Each model is trained on the whole training file for 100 epochs and taken after the last one, so that no "
        "figure of ours was chosen on test data. The paper stops early by the setup of the Time Series Library, whose "
        "classification experiment measured that on the test file; the column *best on the test file* shows what such "
        f"a choice gives, among every {WATCHED}th epoch. It is not a figure of a model on new data. Mean ± standard "
        "deviation over seeds; differences are paired by seed, with Student's t and, in brackets, 95 % intervals; p is "
        "Holm's over all tests of this section. The trainings differ from the paper's in that no validation stops "
        "them, in the padding of the first convolution (zeros), and in that attention weights are not dropped.",
        *([f"Not trained: {', '.join(missing)}."] if missing else []),
        *([f"Fewer than five seeds so far: {', '.join(few)}; tests of so few say little."] if few else []),
        *clean_tables(logs),
        "## Disturbed and attacked",
        "All of these models through `robustkit series` under card `series`: noise, gaps, warps and radii are in units "
        "of each channel's standard deviation in the training data. PGD makes 20 steps in L∞. Random draws are the "
        "same for all models. Mean accuracy in % ± standard deviation over seeds.",
        *(pictures or ["No model has been audited so far."]),
        *robust_tables(values),
    ]
    return "\n\n".join(parts) + "\n"


def _count(logs: Sequence[Log], like: Log) -> int:
    return sum((log["data"], log["attention"]) == (like["data"], like["attention"]) for log in logs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit if asked to, and write the page. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, help="where scripts/studies/series/train.py left models and logs")
    parser.add_argument("--data", type=Path, help="folder of X_TEST.ts")
    parser.add_argument("--out", type=Path, default=Path("runs/series"), help="folder of the runs")
    parser.add_argument("--markdown", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    folder = options.markdown.parent
    try:
        if options.work is not None:
            gather(options.work, options.data, options.out, folder)
        write_page(options.markdown, text(folder))
    except (RobustkitError, OSError) as fault:
        print(f"scripts.studies.series.page: {fault}", file=sys.stderr)
        return getattr(fault, "exit_code", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
