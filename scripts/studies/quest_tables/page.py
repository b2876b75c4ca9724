"""The tables of the QUEST paper on the zoo, over several trainings: what differs, and which published differences show.

    python -m scripts.studies.quest_tables.page [--records DIR --logs DIR] [--markdown PAGE]
        [--references robustkit/results/references]

Made from what `evaluate.py` kept of each training, FAMILY.jsonl or FAMILY.jsonl.gz, and from the logs of the zoo: no
model and no image is needed. --references writes the means over seeds of each family there, as figures for `robustkit
compare --reference zoo`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from scripts.pages.writing import listed, markdown, shortcut, span, write_page
from scripts.zoo.logs import Log, finished, read_logs

from . import variants as quest_variants
from .differences import (
    ORDERS,
    UNRESOLVED,
    Tested,
    as_published,
    compared,
    from_standard,
    published_table,
    standard_table,
    untested,
)
from .evaluate import part_of, read_lines
from .evenness import FEWEST, OF_EACH, Evenness, evenness, evenness_of, lacking, several_of_each
from .figures import EVENNESS, MAPS, TABLES, Figure, file_of, reference
from .short import in_short
from .trainings import LEVEL, Trainings, level_if_wild

RECORDS, LOGS = Path("scripts/studies/quest_tables"), Path("scripts/zoo/trainings")
HISTORY = {
    "shapes": "Seed 0 of standard, quest, elliptical and elliptical-quest was trained twice: the weights of the first "
    "time had not been kept for SPSA and AutoAttack, and another machine rounds otherwise, so all figures of it are of "
    "the second time. With the first ones, and SPSA and AutoAttack of two seeds, 27 of 75 differences from standard "
    "were beyond chance, and of the 40 published ones 3 were shown and 8 the opposite."
}
"""What happened to the trainings of a family."""


def levels(trainings: Trainings, figures: Sequence[Figure]) -> str:
    """Return means and standard deviations over seeds, and the published figures; '' without a figure."""
    if not figures:
        return ""
    heading = ["attention", "seeds"]
    for figure in figures:
        heading += [figure.title, *(["published"] if figure.published else [])]
    rows = [tuple(heading)]
    for formula in trainings.formulas():
        counts = {len(trainings.values(formula, f.condition, f.metric)) for f in figures} - {0} or {0}
        cells = [formula, span(counts)]
        for figure in figures:
            cells += [figure.level(trainings, formula), *([figure.of_paper(formula)] if figure.published else [])]
        rows.append(tuple(cells))
    return markdown(rows)


def had(trainings: Trainings, figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures that a training has."""
    return [f for f in figures if any(trainings.values(name, f.condition, f.metric) for name in trainings.formulas())]


def tables(trainings: Trainings) -> Iterator[str]:
    """Yield a section for each table of the paper."""
    for table in TABLES:
        found = had(trainings, table.figures)
        yield f"### {table.title}"
        if not found:
            condition = table.figures[0].condition
            mapped = condition == MAPS and any(part_of(MAPS).name in line["parts"] for line in trainings.lines)
            yield "The images have no boxes to score maps by." if mapped else "These trainings are not evaluated on it."
            continue
        yield "\n\n".join(
            filter(None, [table.reported(trainings), levels(trainings, found), _images(trainings, found)])
        )


def _images(trainings: Trainings, figures: Sequence[Figure]) -> str:
    """Return on how many images of the test set figures are, and how many of these are right when clean."""
    names: dict[str, list[str]] = {}
    for figure in figures:
        count = part_of(figure.condition).limit
        clean = [line["clean_on"][str(count)] for line in trainings.lines if str(count) in line.get("clean_on", {})]
        right = f" (clean top-1 on these: {100 * np.mean(clean):.1f} %)" if clean else ""
        names.setdefault(f"{count} images{right}" if count else "all test images", []).append(figure.name)
    if len(names) == 1:
        return f"On {next(iter(names))}."
    return f"{'; '.join(f'{listed(own)}: {images}' for images, own in names.items())}."


@dataclass(frozen=True)
class Family:
    """Trainings that differ in formula and seed alone, how they differ from standard attention and as published, and
    how even their attention is.
    """

    path: Path
    name: str
    trainings: Trainings
    tested: Sequence[Tested]
    even: Evenness | None

    @classmethod
    def read(cls, path: Path) -> Family:
        """Return those of FAMILY.jsonl, or FAMILY.jsonl.gz."""
        trainings = Trainings(tuple(read_lines(path)))
        return cls(path, path.name.partition(".")[0], trainings, compared(trainings), evenness_of(trainings))


def of_family(family: Family, logs: Sequence[Log], pictures: Path) -> Iterator[str]:
    """Yield the sections of a family of trainings."""
    name, trainings = family.name, family.trainings
    recipes = dict.fromkeys(str(line["recipe"]) for line in trainings.lines)
    counts = {formula: len(trainings.values(formula, "clean", "top1")) for formula in trainings.formulas()}
    most = max(counts.values())
    few = [f"{formula} {count}" for formula, count in counts.items() if count < most]
    all_logs = [log for log in logs if log.family == f"{name}-vit" and not log.variant]
    kept = {(line["attention"], line["seed"]) for line in trainings.lines}
    own = [log for log in all_logs if (log.attention, log.seed) in kept or log.diverged]
    gone = sum(log.diverged for log in own)
    fate = f" {gone or 'None'} of {len(own)} trainings diverged." if own else ""
    if rest := [f"{log.attention} (seed {log.seed})" for log in all_logs if log not in own]:
        fate += f" Trained, but not evaluated: {listed(rest)}."
    many = "s" if len(trainings.lines) > 1 else ""
    yield f"## Trainings on {name}"
    yield (
        f"{len(trainings.lines)} training{many}: {'; '.join(recipes)}. [What is kept of each]({family.path.name})."
        + (f" Seeds: {most}, but {', '.join(few)}." if few else f" Seeds: {most}.")
        + (f" {single}" if (single := untested(trainings)) else "")
        + fate
    )
    yield HISTORY.get(name, "")
    yield from tables(trainings)
    if even := had(trainings, EVENNESS):
        yield "### How even attention is"
        yield "On clean images, mean over layers and heads."
        yield levels(trainings, even)
    if from_standard(family.tested):
        yield from _compared(family)
    else:
        yield "Too few trainings: how far another seed would move a figure is not known, so nothing is compared."
    if family.even:
        yield from evenness(family.even, trainings, own, pictures / f"{name}-evenness.svg")
    elif (count := len((several := several_of_each(trainings)).lines)) < FEWEST:
        yield (
            f"No correlations of attention and robustness: {count} trainings of formulas with {OF_EACH} or more are "
            f"too few, fewer than {FEWEST}."
        )
    else:
        missing = listed(lacking(several))
        yield f"No correlations of attention and robustness: not all trainings have {missing}, or all have the same."


def _compared(family: Family) -> Iterator[str]:
    tested, published = from_standard(family.tested), as_published(family.tested)
    tests = tested[0].tests
    yield "### Against standard attention"
    yield (
        "Seeds share their first weights and the order of images across formulas. Differences are those of one model "
        "of all formulas and seeds (figure = formula + seed + rest), whose rest is taken to spread alike in all; where "
        "the two formulas' own seeds spread more than that, it is their own t-test. Whether all spread alike is more "
        "than so few seeds can tell: where one of the two spreads three times as wide as all others, "
        f"{_if_wild(family)}. p is for other trainings on these images. *n*: seeds that both have; the model also "
        "takes those that one of them lacks. *Pair alone*: Student's t on the two formulas' own differences by seed, "
        "which supposes nothing of other formulas and so mostly finds less. *Images, too*: intervals of the pair alone "
        "for other trainings and other images (seeds and images as crossed random effects, "
        "degrees of freedom of Hillis 2007: where images add much they are more than a few seeds alone have, so that "
        "such an interval may be the narrower one); of the figures of which is kept who was right, with Holm's "
        "correction for all of these. *80 % power at*: the smallest difference that so many seeds find four times out "
        f"of five, where it is the only one that is tested, and *as one of {tests}*, at the strictest of Holm's steps "
        "(a dash: more than 100 points, or than the whole level of standard). Much smaller ones are found up to about "
        "every second time: where the two formulas' own seeds happen to spread less than the model has it, its many "
        "degrees of freedom decide, else the pair's few. *Seeds*, where a difference is not "
        "beyond chance: how many would find one of its size at that step. Bold: beyond chance."
    )
    beyond = sum(each.is_beyond_chance for each in tested)
    yield f"{beyond} of {len(tested)} differences are beyond chance after Holm's correction for all {tests}."
    yield standard_table(tested)
    if not published:
        return
    counts = ", ".join(f"{sum(each.order == word for each in published)} {word}" for word in ORDERS)
    yield "### Do the published differences show?"
    yield (
        "The paper's are of ViT-Ti on ImageNet (AG-CAM: ViT-B). An order is shown, or the opposite, where p is below "
        f"0.05 after Holm's correction for all {tests} differences of this family. *Seeds*, where these cannot tell: "
        "how many would show the published difference, and the one seen here, with a power of 80 % at the strictest of "
        "Holm's steps; orders of magnitude, since the spread is an estimate and the paper's corruptions and radii are "
        "others (a dash: none, as where the level here leaves no room for it). Left out are differences that are as "
        "small as what another seed changes on clean images there: up to "
        f"{100 * UNRESOLVED['top1']:.1f} points of top-1 and {UNRESOLVED['nll']} of NLL."
    )
    yield f"Of {len(published)} published differences: {counts}."
    yield published_table(published)


def _if_wild(family: Family) -> str:
    """Return what p-values are worth where one formula's seeds spread more than others do, for each number of seeds."""
    formulas, strictest = sum(count > 1 for count in family.trainings.counts().values()), LEVEL / family.tested[0].tests
    reported = []
    for seeds in sorted({each.alone.n for each in family.tested}, reverse=True):
        times = level_if_wild(seeds, formulas, strictest) / strictest
        reported.append(
            f"with {seeds} seeds a p of {LEVEL} is worth {level_if_wild(seeds, formulas):.2f}, and one at the "
            f"strictest of Holm's steps is up to {times:.0f} times too small"
        )
    return f"{'; '.join(reported)} (simulated)"


def families_of(records: Path) -> list[Family]:
    """Return them, the one of most trainings first. Raises RobustkitError where there are none."""
    families = [Family.read(path) for path in sorted([*records.glob("*.jsonl"), *records.glob("*.jsonl.gz")])]
    families = sorted((f for f in families if f.trainings.lines), key=lambda f: -len(f.trainings.lines))
    if not families:
        raise RobustkitError(
            f"{records}: no trainings are kept there; run python -m scripts.studies.quest_tables.evaluate"
        )
    return families


def page(families: Sequence[Family], logs: Sequence[Log], pictures: Path, command: str) -> str:
    """Return the page, and draw its plots into the folder of pictures."""
    several = any(family.tested for family in families)
    spread = "Mean ± standard deviation over seeds. " if several else ""
    parts = [
        f"# The QUEST paper's tables, {'over several trainings' if several else 'one training of each formula so far'}",
        f"Made by `{command}`; do not edit.",
        *(in_short(f.name, f.trainings, f.tested, f.even) for f in families),
        quest_variants.in_short(logs),
        f"Small ViTs of the zoo, by one recipe for all formulas of a family. {spread}Columns headed *published* "
        "are of larger models on ImageNet (Govindarajan et al., QUEST, arXiv 2604.00199): their levels are not a goal "
        "here; what can agree is which formula is ahead of which. They come from two tables of the paper, whose "
        "standard models are not the same; published differences are within one.",
        shortcut(".."),
    ]
    for family in families:
        parts += of_family(family, logs, pictures)
    parts += quest_variants.variants(logs)
    return "\n\n".join(filter(None, parts)) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, and the reference if it is asked for. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS, help="FAMILY.jsonl or FAMILY.jsonl.gz")
    parser.add_argument("--logs", type=Path, default=LOGS, help="of the same trainings")
    parser.add_argument("--markdown", type=Path, default=RECORDS / "README.md")
    parser.add_argument("--references", type=Path, help="a folder: write means over seeds as figures for compare there")
    options = parser.parse_args(arguments)
    if (options.records == RECORDS) != (options.logs == LOGS):
        parser.error("expected --records and --logs together: they are of the same trainings")
    try:
        families = families_of(options.records)
        logs = finished(read_logs(options.logs))
        written = page(families, logs, options.markdown.parent, "python -m scripts.studies.quest_tables.page")
    except RobustkitError as error:
        print(f"scripts.studies.quest_tables.page: {error}", file=sys.stderr)
        return error.exit_code
    write_page(options.markdown, written)
    for family in families if options.references else ():
        path = options.references / file_of(family.name)
        write_whole(path, reference(family.name, family.trainings).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
