"""What a run costs after its models are done, against the number of its samples: records, summary, report.

    python -m scripts.bench.scale [--samples 2000,5000,10000,20000,50000] [--plot docs/results/performance/scale.svg]

Writes runs of 100 conditions with made-up figures (clean, 19 attacks, the 75 of in-c, five maps with all their columns;
three images in ten thousand unreadable), then makes summary and report from each as an audit does. Each part runs in a
process of its own, whose memory is measured. `--checkpoints 2` adds what comparing them costs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from robustkit.report import page
from robustkit.report import refresh as report
from robustkit.results import comparison
from robustkit.results.summary import Run
from robustkit.results.tables import tables

from .made_up_run import write

PARTS = ("write", "summary", "report")
WORDS = {"write": "records written", "summary": "summary", "report": "report page", "compare": "comparison"}


class Clock:
    """Seconds of what runs inside: on the wall, and of the processor."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self.since = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self.since[0]
        self.cpu += time.process_time() - self.since[1]

    def seconds(self, part: str) -> dict[str, float]:
        """Return the seconds by the name of the part."""
        return {part: self.wall, f"{part} CPU": self.cpu}


def written(run: Run, n: int, checkpoints: int) -> dict[str, float]:
    """Write a whole run; the seconds are of records alone, without those of making figures up."""
    clock = Clock()
    write(run, n, checkpoints, clock)
    return clock.seconds("write")


def refreshed(run: Run) -> dict[str, float]:
    """Make summary and report; the seconds of each."""
    whole, last = Clock(), Clock()
    write_report = page.write_report

    def timed(*arguments: Any, **options: Any) -> None:
        with last:
            write_report(*arguments, **options)

    with mock.patch.object(page, "write_report", timed), whole:
        report.refresh(run)
    whole.wall, whole.cpu = whole.wall - last.wall, whole.cpu - last.cpu
    return whole.seconds("summary") | last.seconds("report")


def compared(run: Run) -> dict[str, float]:
    """Compare its checkpoints with its first."""
    clock = Clock()
    with clock:
        tables(comparison.compare(comparison.pairs([run])))
    return clock.seconds("compare")


def one_part(part: str, folder: Path, n: int, checkpoints: int) -> dict[str, float]:
    """Run one part in this process; return its seconds, and MB at the peak and before it began."""
    run = Run(folder)
    before = peak()
    seconds = written(run, n, checkpoints) if part == "write" else (refreshed if part == "refresh" else compared)(run)
    return seconds | {f"{part} MB": peak(), f"{part} MB before": before}


def peak() -> float:
    """Return the largest resident set of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measured(n: int, checkpoints: int, folder: Path, repeat: int) -> dict[str, float]:
    """Run all parts at one size, each in a process of its own; of repeated ones the lowest time and the highest peak
    count.
    """
    figures = {"samples": float(n)}
    for part in ("write", *["refresh"] * repeat, *(["compare"] if checkpoints > 1 else [])):
        command = [sys.executable, "-m", "scripts.bench.scale", "--part", part, "--samples", str(n)]
        command += ["--checkpoints", str(checkpoints), "--out", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            figures[name] = (max if "MB" in name else min)(value, figures.get(name, value))
    return figures


def line(places: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Fit a line by least squares; return slope, value at 0, and R²."""
    x, y = np.asarray(places), np.asarray(values)
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    return float(slope), float(start), 1 - float(((y - slope * x - start) ** 2).sum()) / spread if spread else 1.0


def plot(sizes: Sequence[Mapping[str, float]], path: Path, title: str) -> None:
    """Plot seconds of the processor against samples, with the fitted lines."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    places = [size["samples"] for size in sizes]
    for part, colour, marker in zip(PARTS, ("#3b6ea5", "#e08214", "#7b3294"), "os^", strict=True):
        values = [size[f"{part} CPU"] for size in sizes]
        slope, start, r2 = line(places, values)
        label = f"{WORDS[part]}: {start:.1f} s + {1000 * slope:.2f} s per 1000 samples, R² {r2:.4f}"
        axes.plot(places, values, marker, color=colour, label=label)
        ends = np.array([0, max(places)])
        axes.plot(ends, slope * ends + start, "-", color=colour, linewidth=1)
    axes.set_xlim(0, 1.03 * max(places))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples, of 100 conditions each")
    axes.set_ylabel("seconds of one processor")
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasSVG(figure)
    figure.savefig(path, format="svg", metadata={"Date": None})


def lines(sizes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield the figures as a Markdown table, seconds on the wall and (of the processor), and the fitted lines."""
    parts = (*PARTS, *(["compare"] if "compare" in sizes[0] else []))
    yield f"| samples | {' | '.join(f'{WORDS[part]}, s' for part in parts)} | peak of summary and report, MB |"
    yield "|---:|" + "---:|" * (len(parts) + 1)
    for size in sizes:
        cells = [f"{size['samples']:,.0f}", *(f"{size[part]:.1f} ({size[f'{part} CPU']:.1f})" for part in parts)]
        yield f"| {' | '.join(cells)} | {size['refresh MB']:.0f} |"
    for part in PARTS if len(sizes) > 2 else ():
        slope, start, r2 = line([size["samples"] for size in sizes], [size[f"{part} CPU"] for size in sizes])
        yield f"{WORDS[part]}: {start:.2f} s + {1000 * slope:.3f} s per 1000 samples, R² {r2:.5f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="2000,5000,10000,20000,50000")
    parser.add_argument("--checkpoints", type=int, default=1)
    parser.add_argument(
        "--repeat", type=int, default=1, help="how often summary and report are made; the lowest counts"
    )
    parser.add_argument("--out", type=Path, help="where to keep the runs; a temporary folder if left out")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--part", choices=("write", "refresh", "compare"), help="only this, in this process")
    options = parser.parse_args()
    sizes = [int(size) for size in options.samples.split(",")]
    if options.part:
        print(json.dumps(one_part(options.part, options.out, sizes[0], options.checkpoints)))
        return 0
    measurements = []
    with tempfile.TemporaryDirectory() as scratch:
        for n in sizes:
            folder = (options.out or Path(scratch)) / f"{n}x{options.checkpoints}"
            measurements.append(measured(n, options.checkpoints, folder, options.repeat))
            print(json.dumps(measurements[-1]), file=sys.stderr)
    print("\n".join(lines(measurements)))
    if options.plot:
        plot(measurements, options.plot, "What is left to do apart from the models: 100 conditions, one checkpoint")
        print(options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
