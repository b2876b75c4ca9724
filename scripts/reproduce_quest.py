"""The tables of the QUEST paper on the zoo: every attack under both cards, corruptions, AG-CAM, paired differences.

    python scripts/reproduce_quest.py --data-dir CIFAR10-TEST --out runs/quest [--markdown docs/quest-tables.md]

Audits the checkpoints in parts, each a run folder under --out with as many samples as its cost allows; the same command
goes on where it was stopped, and on finished runs only prints. The published figures stand beside ours: they are of
ViT-Ti on ImageNet, so levels cannot agree; what can is which formula is ahead of standard attention, and for each
comparison it is said whether our models show the published order, the opposite, or cannot tell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

import robustkit
from robustkit.compare import Difference, paired_difference
from robustkit.corruption_sets import SETS
from robustkit.errors import RobustkitError
from robustkit.map_metrics import parts_of
from robustkit.progress import ConsoleProgress
from robustkit.protocol import load_card
from robustkit.records import Run
from robustkit.toml import parse_toml

FORMULAS = ("standard", "quest", "elliptical", "elliptical-quest")
ZOO, SHAPES = (tuple(f"zoo:{family}-vit-{name}" for name in FORMULAS) for family in ("cifar10", "shapes"))
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One audit. option: which --option says how many samples. located: on the generated set, whose objects are known,
    with the checkpoints that were trained on it."""

    card: str
    name: str
    option: str
    attacks: str
    corruptions: bool = False
    maps: bool = False
    located: bool = False

    @property
    def folder(self) -> str:
        return f"{self.card}-{self.name}"


PARTS = tuple(
    part
    for card in ("standard", "quest-paper")
    for part in (
        Part(card, "steps", "limit", "fgsm,pgd"),
        *([Part(card, "corruptions", "limit", "none", corruptions=True)] if card == "standard" else []),
        Part(card, "spsa", "spsa_limit", "spsa"),
        Part(card, "autoattack", "autoattack_limit", "autoattack"),
        *([Part(card, "maps", "maps_limit", "pgd", maps=True)] if card == "standard" else []),
        *([Part(card, "localisation", "maps_limit", "none", maps=True, located=True)] if card == "standard" else []),
    )
)


def evaluate(part: Part, options: argparse.Namespace) -> Run:
    """Run the audit of a part, or what is left of it."""
    console = Console(stderr=True)
    console.print(f"{part.folder}:", style="bold")
    with ConsoleProgress(console) as progress:
        return robustkit.audit(
            SHAPES if part.located else options.checkpoints,
            data_dir="embedded:shapes" if part.located else options.data_dir,
            attacks=part.attacks,
            corruptions=options.corruptions if part.corruptions else None,
            frost_dir=options.frost_dir,
            cams="agcam" if part.maps else None,
            stability=part.maps and not part.located,
            protocol=part.card,
            limit=getattr(options, part.option),
            out=options.out / part.folder,
            device=options.device,
            dtype=options.dtype,
            compile=options.compile,
            batch_size=options.batch_size,
            progress=progress,
        )


def published_figures() -> dict[str, Any]:
    """The paper's tables: by attention, then condition, then metric."""
    text = (resources.files("robustkit") / "published" / "quest.toml").read_text("utf-8")
    return parse_toml(text, "quest.toml", RobustkitError)


# tables

LEVELS = ("top1", "top5", "nll")
LOCALISED = ("cam_pixel_accuracy", "cam_iou", "cam_dice")
MAPS = {
    "agcam": LOCALISED,
    "agcam-mask": LOCALISED,
    "agcam-faithfulness": ("abpc",),
    "agcam-stability": ("rank_correlation", "map_iou"),
}
OVER_CONTROL = (*LOCALISED, "abpc")
UNITS = {
    "top1": ("top-1 %", 100, 1),
    "top5": ("top-5 %", 100, 1),
    "nll": ("NLL", 1, 3),
    "mean_error": ("mean error %", 100, 1),
    "mce": ("mCE", 100, 1),
    "cam_pixel_accuracy": ("pixel accuracy %", 100, 1),
    "cam_iou": ("IoU %", 100, 1),
    "cam_dice": ("DICE", 1, 3),
    "abpc": ("ABPC", 1, 3),
    "rank_correlation": ("rank correlation", 1, 3),
    "map_iou": ("IoU at 0.5", 1, 3),
}
"""Heading, factor and digits of each figure."""
TITLES = {
    "agcam": (
        "AG-CAM",
        " Box mode at threshold 0.5, as published: the boxes around what a map marks, against the object's. Images "
        "predicted right.",
    ),
    "agcam-mask": ("AG-CAM, mask mode", " What a map marks against the object's own pixels."),
    "agcam-faithfulness": (
        "AG-CAM, faithfulness",
        " ABPC, the area between the curves of removing the least and the most relevant pixels first: how much of a "
        "prediction hangs on what its map marks. Images predicted right.",
    ),
    "agcam-stability": (
        "AG-CAM, stability",
        " The map of the attacked image beside that of the clean one, of the same class: 1 is the same map.",
    ),
}


def name_of(condition: str) -> str:
    """The condition as the published tables, SETS and MAPS know it; '' where no table is made of it."""
    parts = parts_of(condition)
    if parts is None:
        return condition.partition("(")[0].replace("corruption", "")
    explained, mode = parts
    kind = "stability" if explained.under else {"box": "", "mask": "mask", "": "faithfulness"}[mode]
    return "" if explained.is_control else "-".join(filter(None, (explained.method, kind)))


@dataclass(frozen=True)
class Line:
    """A checkpoint under one condition: ours, the difference from standard attention, and the published figures."""

    attention: str
    ours: dict[str, Row]
    differences: dict[str, Difference]
    published: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """All checkpoints under one condition. name: as the published tables know it."""

    card: str
    name: str
    condition: str
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]

    def verdicts(self) -> Iterator[tuple[str, str]]:
        """(attention, what became of the published order against standard attention), by the first metric."""
        metric = self.metrics[0]
        better = -1 if metric == "mean_error" else 1
        named = {"mean_error": "mce"}.get(metric, metric)
        base = self.lines[0].published.get(named)
        for line in self.lines[1:]:
            told = line.published.get(named)
            if told is None or base is None:
                continue
            published, difference = better * (told - base), line.differences[metric]
            here = better * difference.sign
            word = "cannot tell" if here == 0 else "shown" if here * published > 0 else "the opposite"
            yield line.attention, word


def comparisons(part: Part, run: Run, published: dict[str, Any]) -> Iterator[Comparison]:
    """Every condition of a run against standard attention, which is the run's first checkpoint."""
    rows = run.summary()
    known = run.manifest["checkpoints"]
    names = {row["condition"]: name_of(row["condition"]) for row in rows if row["metric"] in UNITS}
    order = list(MAPS)
    for condition, name in sorted(names.items(), key=lambda item: order.index(item[1]) if item[1] in order else -1):
        if not name or (name == "clean" and part.folder != "standard-steps"):
            continue
        if part.corruptions != (name in SETS) or part.maps != (name in MAPS):
            continue
        lines = []
        for checkpoint in known:
            own = {
                row["metric"]: row
                for row in rows
                if row["checkpoint"] == checkpoint["name"] and row["condition"] == condition
            }
            metrics = tuple(m for m in MAPS.get(name, ("mean_error",) if name in SETS else LEVELS) if m in own)
            differences = {
                metric: paired_difference(run, known[0]["name"], checkpoint["name"], condition, metric)
                for metric in metrics
            }
            figures = published.get(checkpoint["attention"], {}).get(name, {})
            lines.append(Line(checkpoint["attention"], own, differences, figures))
        yield Comparison(part.card, name, condition, metrics, tuple(lines))


def _table(comparison: Comparison) -> list[tuple[str, ...]]:
    """Heading and rows of texts."""
    heading = ["attention"]
    for metric in comparison.metrics:
        heading += [f"{UNITS[metric][0]} [95 %]", *(["minus standard"] if metric != "top5" else [])]
        if metric in OVER_CONTROL:
            heading.append("minus best control")
    beside = ("mce",) if comparison.metrics == ("mean_error",) else comparison.metrics
    beside = tuple(metric for metric in beside if any(metric in line.published for line in comparison.lines))
    heading += [f"ImageNet: {UNITS[metric][0]}" for metric in beside]
    rows = [tuple(heading)]
    for line in comparison.lines:
        cells = [line.attention]
        for metric in comparison.metrics:
            _, scale, digits = UNITS[metric]
            row = line.ours[metric]
            cells.append(_figure(row["value"], row["ci_low"], row["ci_high"], scale, digits))
            if metric != "top5":
                d = line.differences[metric]
                base = line is comparison.lines[0]
                cells.append("" if base else _figure(d.value, d.ci_low, d.ci_high, scale, digits, "+"))
            if metric in OVER_CONTROL:
                lead = line.ours[f"{metric}_over_control"]
                best = lead["flags"][0].partition(": ")[2]
                cells.append(f"{_figure(lead['value'], lead['ci_low'], lead['ci_high'], scale, digits, '+')} ({best})")
        for metric in beside:
            _, scale, digits = UNITS[metric]
            told = line.published.get(metric)
            cells.append("–" if told is None else f"{scale * told:.{digits + (metric != 'mce') * (scale == 100)}f}")
        rows.append(tuple(cells))
    return rows


def _figure(value: float | None, low: float | None, high: float | None, scale: int, digits: int, sign: str = "") -> str:
    if value is None or value != value:
        return "not finite"
    text = f"{scale * value:{sign}.{digits}f}"
    if low is None or high is None:
        return text
    return f"{text} [{scale * low:{sign}.{digits}f}, {scale * high:{sign}.{digits}f}]"


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def page(found: Sequence[tuple[Part, Run]], published: dict[str, Any], command: str) -> str:
    """The whole page as Markdown."""
    every = [(part, run, comparison) for part, run in found for comparison in comparisons(part, run, published)]
    first = found[0][1].manifest
    parts = [
        "# The QUEST paper's tables on the zoo",
        f"Made by `{command}`; do not edit. Ours: {first['data']['name']} ({', '.join(_models(first))}). "
        f"Columns headed ImageNet are published figures of another data set and larger models ({published['source']}; "
        f"{published['summary']}): their levels are no goal here. *minus standard* is paired by sample, with a 95 % "
        "bootstrap interval; top-1 intervals are Wilson's.",
        "## Does the published order show?",
        _order([comparison for *_, comparison in every]),
    ]
    for card in dict.fromkeys(part.card for part, _ in found):
        loaded = load_card(card)
        parts.append(f"## Card `{loaded.tag}`\n\n{loaded.summary[0].upper()}{loaded.summary[1:]}.")
        for part, run, comparison in every:
            if part.card == card:
                parts += list(_section(run, comparison))
    return "\n\n".join(parts) + "\n"


def _models(manifest: dict[str, Any]) -> list[str]:
    return [f"{known['name']}, sha256 {known['sha256'][:12]}" for known in manifest["checkpoints"]]


def _section(run: Run, comparison: Comparison) -> Iterator[str]:
    counts = sorted({line.ours[comparison.metrics[0]]["n"] for line in comparison.lines})
    title, meaning = TITLES.get(comparison.name, (comparison.name, ""))
    n = " to ".join(map(str, counts[:1] + counts[1:][-1:]))
    data = run.manifest["data"]["name"]
    yield f"### {title}\n\n`{comparison.condition}`, {n} images of {data}.{meaning}"
    yield _markdown(_table(comparison))
    flags = dict.fromkeys(
        (line.attention, flag)
        for line in comparison.lines
        for metric in comparison.metrics
        for flag in line.ours[metric]["flags"]
    )
    shared = dict.fromkeys(flag for _, flag in flags)
    for flag in shared:
        of = [attention for attention, other in flags if other == flag]
        who = "all" if len(of) == len(comparison.lines) else ", ".join(of)
        yield f"⚑ {who}: {flag}"


def _order(every: Sequence[Comparison]) -> str:
    """One line for each card, and a table of verdicts."""
    rows: list[tuple[str, ...]] = [("card", "condition", "attention", "published order against standard")]
    lines = []
    for card in dict.fromkeys(comparison.card for comparison in every):
        found = [(c.name, *verdict) for c in every if c.card == card for verdict in c.verdicts()]
        counts = [sum(word == kind for *_, word in found) for kind in ("shown", "the opposite", "cannot tell")]
        lines.append(
            f"- `{card}`: of {len(found)} published differences from standard attention, {counts[0]} show here, "
            f"{counts[1]} are the opposite, and for {counts[2]} the interval contains 0."
        )
        rows += [(card, *cells) for cells in found]
    return "\n".join(lines) + "\n\n" + _markdown(rows)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkpoints", nargs="*", default=list(ZOO), help="standard attention first; the zoo's by default"
    )
    parser.add_argument("--data-dir", required=True, help="CIFAR-10's test images")
    parser.add_argument("--out", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--limit", type=int, default=1000, help="samples for FGSM, PGD and corruptions")
    parser.add_argument("--spsa-limit", type=int, default=100)
    parser.add_argument("--autoattack-limit", type=int, default=200)
    parser.add_argument("--maps-limit", type=int, default=200, help="samples for AG-CAM")
    parser.add_argument("--corruptions", default="in-c")
    parser.add_argument("--frost-dir", help="frost's photographs")
    parser.add_argument("--parts", default=",".join(part.folder for part in PARTS), help="which parts, by name")
    parser.add_argument("--markdown", type=Path, help="write the page there too")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch-size", type=int)
    options = parser.parse_args(arguments)
    names = {part.folder for part in PARTS}
    if odd := set(options.parts.split(",")) - names:
        parser.error(f"unknown part {', '.join(sorted(odd))}; known: {', '.join(sorted(names))}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Audit, then print. The exit status."""
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        found = [(part, evaluate(part, options)) for part in PARTS if part.folder in options.parts.split(",")]
        written = page(found, published_figures(), " ".join(["python scripts/reproduce_quest.py", *given]))
    except RobustkitError as error:
        print(f"reproduce_quest: {error}", file=sys.stderr)
        return error.exit_code
    print(written)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
