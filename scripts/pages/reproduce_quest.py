"""The tables of the QUEST paper on the zoo, over several trainings: what differs, and which published differences show.

    python -m scripts.pages.reproduce_quest [--records docs/results/zoo] [--markdown docs/results/quest-tables.md]
        [--reference robustkit/results/references/zoo.toml]

Made from what `scripts/zoo/evaluate.py` kept of each training, FAMILY.jsonl, and from the logs next to it: no model and
no image is needed. --reference writes the means over seeds as figures for `robustkit compare --reference zoo`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from robustkit.common.differences import Difference, holm
from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from scripts.zoo.evaluate import PARTS, images_of, read_lines
from scripts.zoo.logs import read_logs
from scripts.zoo.trainings import LEVEL, Trainings, seeds_needed, smallest_gap, spread_of

from .quest_evenness import evenness
from .quest_figures import EVENNESS, FIGURES, TABLES, Figure
from .quest_reference import reference
from .quest_variants import variants
from .writing import markdown, shortcut

AGAINST = (
    ("quest", "standard"),
    ("qnorm", "standard"),
    ("qknorm-hs", "standard"),
    ("qknorm-ds", "standard"),
    ("elliptical", "standard"),
    ("elliptical-quest", "standard"),
    ("elliptical-quest", "elliptical"),
)
UNRESOLVED = {"top1": 0.002, "nll": 0.005}
"""Published gaps below these are what another seed changes in the paper; there is no order to look for."""
SIZES = {condition: part.limit or 1000 for part in PARTS for condition in part.bits}


def levels(trainings: Trainings, figures: Sequence[Figure]) -> str:
    """Return means and standard deviations over seeds, and the published figures; '' where no training has one."""
    had = [f for f in figures if any(trainings.values(name, f.condition, f.metric) for name in trainings.formulas())]
    if not had:
        return ""
    heading = ["attention", "seeds"]
    for figure in had:
        heading += [figure.title, *(["published"] if figure.published else [])]
    rows = [tuple(heading)]
    for formula in trainings.formulas():
        cells = [formula, str(len(trainings.values(formula, "clean", "top1")))]
        for figure in had:
            cells += [figure.level(trainings, formula), *([figure.of_paper(formula)] if figure.published else [])]
        rows.append(tuple(cells))
    return markdown(rows)


def tables(trainings: Trainings) -> Iterator[str]:
    """Yield a section for each table of the paper."""
    for table in TABLES:
        yield f"### {table.title}"
        written = levels(trainings, table.figures)
        yield "\n\n".join(filter(None, [table.note, written or "Not evaluated: this takes a GPU."]))
        if written:
            yield _images(table.figures)


def _images(figures: Sequence[Figure]) -> str:
    """Return on how many images of the test set figures are."""
    counts = {figure.title: images_of(figure.condition) for figure in figures}
    said = {title: f"{count} images" if count else "all test images" for title, count in counts.items()}
    if len({*said.values()}) == 1:
        return f"On {next(iter(said.values()))}."
    return f"{'; '.join(f'{title}: {images}' for title, images in said.items())}."


def differences(trainings: Trainings) -> Iterator[tuple[str, Figure, Difference, Difference | None]]:
    """Yield formula, figure, how it differs from standard by seed, and with images as a random effect, too."""
    for formula in trainings.formulas():
        for figure in FIGURES:
            found = trainings.difference(formula, "standard", figure.condition, figure.metric)
            if formula == "standard" or found is None:
                continue
            both = None
            if figure.metric == "top1" and figure.condition in SIZES:
                both = trainings.crossed(formula, "standard", figure.condition, SIZES[figure.condition])
            yield formula, figure, found, both


def against_standard(trainings: Trainings) -> str:
    """Return all differences from standard attention, what they may be by chance, and what could have been seen."""
    every = list(differences(trainings))
    adjusted = holm([found.p_value for _, _, found, _ in every])
    heading = ("attention", "figure", "minus standard [95 %]", "p", "p (Holm)", "images random, too", "80 % power at")
    rows: list[Sequence[str]] = [heading]
    for (formula, figure, found, both), p in zip(every, adjusted, strict=True):
        mixed = "" if both is None else figure.signed(both)
        least = figure.scale * smallest_gap(spread_of(found), found.n)
        cells = (figure.signed(found), f"{found.p_value:.3f}", f"{p:.3f}", mixed, f"{least:.{figure.digits}f}")
        rows.append((formula, figure.title, *cells))
    beyond = sum(p < LEVEL for p in adjusted)
    return f"{beyond} of {len(every)} differences are beyond chance after Holm's correction.\n\n{markdown(rows)}"


def published_order(trainings: Trainings) -> str:
    """Return for each published difference whether it shows, and how many seeds it would take."""
    gaps = []
    for formula, against in AGAINST:
        for figure in FIGURES:
            sides = figure.papers([against, formula])
            found = trainings.difference(formula, against, figure.condition, figure.metric)
            if sides is None or found is None:
                continue
            gap = sides[1] - sides[0]
            if abs(gap) > UNRESOLVED.get(figure.metric, 0):
                gaps.append((formula, against, figure, gap, found))
    adjusted = holm([found.p_value for *_, found in gaps])
    seeds, here = "seeds: as published", "as here"
    heading = ("attention", "against", "figure", "published", "here [95 %]", "p (Holm)", "order", seeds, here)
    rows: list[Sequence[str]] = [heading]
    words = []
    for (formula, against, figure, gap, found), p in zip(gaps, adjusted, strict=True):
        word = "cannot tell" if not p < LEVEL else "shown" if found.value * gap > 0 else "the opposite"
        words.append(word)
        sd = spread_of(found)
        needed = [_seeds(seeds_needed(size, sd)) for size in (gap, found.value)]
        said = f"{figure.scale * gap:+.{figure.digits}f}"
        rows.append((formula, against, figure.title, said, figure.signed(found), f"{p:.3f}", word, *needed))
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("shown", "the opposite", "cannot tell"))
    return f"Of {len(words)} published differences: {counts}.\n\n{markdown(rows)}"


def _seeds(count: int | None) -> str:
    return "over 1000" if count is None else str(count)


def of_family(name: str, trainings: Trainings) -> Iterator[str]:
    """Yield the sections of a family of trainings."""
    recipes = dict.fromkeys(str(line["recipe"]) for line in trainings.lines)
    counts = {formula: len(trainings.values(formula, "clean", "top1")) for formula in trainings.formulas()}
    most = max(counts.values())
    few = [f"{formula} {count}" for formula, count in counts.items() if count < most]
    yield f"## Trainings on {name}"
    yield (
        f"{len(trainings.lines)} trainings: {'; '.join(recipes)}. [What is kept of each](zoo/{name}.jsonl)."
        + (f" Seeds: {most}, but {', '.join(few)}." if few else f" Seeds: {most}.")
    )
    yield from tables(trainings)
    if levels(trainings, EVENNESS):
        yield "### How even attention is"
        yield "On clean images, mean over layers and heads."
        yield levels(trainings, EVENNESS)
    if most < 2:
        yield "One training of each: how far another seed would move a figure is not known, so nothing is compared."
        return
    yield "### Against standard attention"
    yield (
        "Student's t on the differences by seed. *Images random, too*: intervals for other trainings and other images "
        "(seeds and images as crossed random effects, degrees of freedom of Hillis 2007). *80 % power at*: the "
        "smallest difference that so many seeds find four times out of five."
    )
    yield against_standard(trainings)
    yield "### Do the published differences show?"
    yield (
        "The paper's are of ViT-Ti on ImageNet. An order is shown, or the opposite, where p is below 0.05 after Holm's "
        "correction. *Seeds*: how many would find the published difference, and the one seen here, with a power of "
        "80 %."
    )
    yield published_order(trainings)


def page(records: Path, pictures: Path, command: str) -> str:
    """Return the page, and draw its plots into the folder of pictures."""
    families = {path.stem: Trainings(tuple(read_lines(path))) for path in sorted(records.glob("*.jsonl"))}
    families = {name: found for name, found in families.items() if found.lines}
    if not families:
        raise RobustkitError(f"{records}: no trainings are kept there; run python -m scripts.zoo.evaluate")
    seeds = [len(found.values(name, "clean", "top1")) for found in families.values() for name in found.formulas()]
    several = max(seeds) > 1
    paired = (
        "Seeds share their first weights and the order of images across formulas, so differences are paired by seed. "
        "Mean ± standard deviation over seeds. "
    )
    parts = [
        f"# The QUEST paper's tables, {'over several trainings' if several else 'one training of each formula so far'}",
        f"Made by `{command}`; do not edit.",
        f"Small ViTs of the zoo, by one recipe for all formulas. {paired if several else ''}Columns headed *published* "
        "are of larger models on ImageNet (Govindarajan et al., QUEST, arXiv 2604.00199): their levels are not a goal "
        "here; what can agree is which formula is ahead of which.",
        shortcut(),
    ]
    for name in sorted(families, key=lambda name: -len(families[name].lines)):
        parts += of_family(name, families[name])
    logs = read_logs(records)
    for name, found in families.items():
        parts += evenness(found, [log for log in logs if log.family == f"{name}-vit"], pictures)
    parts += variants(logs)
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, and the reference if it is asked for. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path("docs/results/zoo"), help="FAMILY.jsonl, and logs")
    parser.add_argument("--markdown", type=Path, default=Path("docs/results/quest-tables.md"))
    parser.add_argument("--reference", type=Path, help="write the means of shapes as figures for compare there")
    options = parser.parse_args(arguments)
    try:
        written = page(options.records, options.markdown.with_suffix(""), "python -m scripts.pages.reproduce_quest")
    except RobustkitError as error:
        print(f"scripts.pages.reproduce_quest: {error}", file=sys.stderr)
        return error.exit_code
    write_whole(options.markdown, written.encode())
    if options.reference:
        shapes = Trainings(tuple(read_lines(options.records / "shapes.jsonl")))
        write_whole(options.reference, reference(shapes).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
