"""In short: what trainings of a family say about the QUEST paper's claims."""

from __future__ import annotations

from collections.abc import Sequence

from robustkit.display.format import p_value as p_text
from scripts.pages.writing import listed, span

from .differences import ORDERS, UNKNOWN, Tested, as_published, from_standard, untested
from .evenness import OF_EACH, TOO_FEW, Evenness
from .figures import EVENNESS, FIGURES, MAPS, ROBUSTNESS, Figure
from .trainings import LEVEL, Trainings

OTHERS = ("clean", MAPS)
"""Conditions whose figures are not of robustness."""


def in_short(name: str, trainings: Trainings, tested: Sequence[Tested], even: Evenness | None) -> str:
    """Return a list in Markdown: what differs from standard attention, which published differences show, and whether
    more even attention makes a model more robust. '' where nothing can be compared.
    """
    if not tested:
        return ""
    counts = _counts(trainings, FIGURES[0])
    ours = from_standard(tested)
    if not ours:
        return ""
    points = [_differences(ours), *_published(as_published(tested)), *_quest(trainings, ours, even), *_evenness(even)]
    colour = ", whose class colour alone nearly tells (below)" if name == "shapes" else ""
    many = f"{span(counts)} of each formula{_fewer(trainings)}"
    head = f"**In short**, of {len(trainings.lines)} trainings on {name}, {many}:"
    last = f"These are small models of small images{colour}; larger ones, as the paper's, may differ."
    single = f"{alone} " if (alone := untested(trainings)) else ""
    return "\n\n".join([head, "\n".join(f"- {point}" for point in points), single + last])


def _fewer(trainings: Trainings) -> str:
    """Return ` (SPSA top-1: 3; AutoAttack top-1: 0 to 3)` of the figures that fewer trainings have; '' without any."""
    usual, by_count = _counts(trainings, FIGURES[0]), dict[str, list[str]]()
    for figure in FIGURES:
        counts = _counts(trainings, figure)
        if any(counts) and counts != usual:
            by_count.setdefault(span(counts), []).append(figure.name)
    return f" ({'; '.join(f'{listed(names)}: {count}' for count, names in by_count.items())})" if by_count else ""


def _counts(trainings: Trainings, figure: Figure) -> list[int]:
    """Return how many trainings of each formula have a figure."""
    return [len(trainings.values(formula, figure.condition, figure.metric)) for formula in trainings.formulas()]


def _differences(tested: Sequence[Tested]) -> str:
    """Return what is beyond chance, by formula."""
    beyond = [each for each in tested if each.is_beyond_chance]
    alone = sum(each.p_alone < LEVEL for each in tested)
    plain = sum(each.found.p_value < LEVEL for each in tested)
    lines = [
        f"{len(beyond)} of {len(tested)} differences from standard attention {_are(len(beyond))} beyond chance, for "
        f"other trainings on these images: p < {LEVEL} in one model of all formulas, after Holm's correction for all "
        f"{tested[0].tests} differences of these trainings that are tested. Without the correction {plain} would be, "
        f"where chance alone makes about {LEVEL * len(tested):.0f}; by Student's t on each pair's own seeds alone, "
        f"corrected, {alone}.{_images(tested)}"
    ]
    found = list(dict.fromkeys(each.formula for each in beyond))
    for formula in found:
        sides = [
            f"{word} by {listed([_said(each) for each in own])}"
            for word, better in (("better", True), ("worse", False))
            if (own := [each for each in beyond if each.formula == formula and each.is_better == better])
        ]
        lines.append(f"    - {formula}: {'; '.join(sides)}.")
    silent = [name for name in dict.fromkeys(each.formula for each in tested) if name not in found]
    if found and silent:
        lines.append(f"    - {listed(silent)}: none, which does not mean that there is none.")
    return "\n".join(lines)


def _images(tested: Sequence[Tested]) -> str:
    """Return how many are beyond chance for other images, too, of those for which that can be asked."""
    asked = [each for each in tested if each.images_too]
    if not asked:
        return ""
    found = sum(each.p_images < LEVEL for each in asked)
    return (
        f" Asked for other images as well (seeds and images as random effects, each pair by itself), which can be done "
        f"for {len(asked)} of them, {found} {_are(found)}; the others say nothing of other images."
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _said(each: Tested) -> str:
    """Return `PGD-20 top-1 (-16.9 points)`."""
    value = f"{each.figure.scale * each.found.value:+.{each.figure.digits}f}"
    return f"{each.figure.name} ({value}{each.figure.unit})"


def _published(published: Sequence[Tested]) -> list[str]:
    """Return how many of the published differences show, and which; nothing where the paper has none of them."""
    if not published:
        return []
    parts = []
    for order in ORDERS:
        own = [each for each in published if each.order == order]
        pairs = dict.fromkeys((each.formula, each.against) for each in own)
        names = [
            f"{pair[0]} against {pair[1]} by {listed([e.figure.name for e in own if (e.formula, e.against) == pair])}"
            for pair in pairs
        ]
        parts.append(f"{len(own)} {order}" + (f" ({'; '.join(names)})" if names and order != UNKNOWN else ""))
    unknown = [each for each in published if each.order == UNKNOWN]
    out = sum(each.leaves_published_out for each in unknown)
    more = f" Of the last, {out} have a 95 % interval (not corrected) without the published difference." if out else ""
    return [f"Of {len(published)} differences that the paper has, too: {', '.join(parts)}.{more}"]


def _quest(trainings: Trainings, tested: Sequence[Tested], even: Evenness | None) -> list[str]:
    """Return whether attention of QUEST is more even than that of standard, and its models more robust."""
    share = EVENNESS[0]
    found = trainings.joint("quest", "standard", share.condition, share.metric)
    own = [each for each in tested if each.formula == "quest" and each.figure in ROBUSTNESS]
    if found is None or not own:
        return []
    premise = "more even" if found.difference.value > 0 else "less even"
    doubt = "" if found.difference.p_value < LEVEL else ", though not beyond chance,"
    figures = [
        f"{each.figure.name} {each.figure.signed(each.found)}{each.figure.unit} "
        f"({each.leaning} robust, p (Holm) {p_text(each.p)})"
        for each in own
    ]
    return [
        f"**Is QUEST's attention more even, and are its models more robust?** It is {premise}{doubt} than that of "
        f"standard ({share.name} {share.signed(found.difference)}, p {p_text(found.difference.p_value)}, not "
        f"corrected). Robustness, quest minus standard: {'; '.join(figures)}. {_follows(own)}{_claim(tested, even)}"
    ]


def _claim(tested: Sequence[Tested], even: Evenness | None) -> str:
    """Return what follows for the paper's claim that QUEST is more robust: by all its figures of corruptions and
    attacks together; '' while none is beyond chance.
    """
    own = [e for e in tested if e.formula == "quest" and e.published is not None and e.figure.condition not in OTHERS]
    more, less = ([e.figure.name for e in own if e.is_beyond_chance and e.is_better == side] for side in (True, False))
    left = "is the next point's question" if even else "needs more trainings"
    if more and less:
        return f" By the paper's figures they are more robust in {listed(more)}, and less in {listed(less)}."
    if more:
        return f" So far as these go, it is as the paper has it ({listed(more)}); why {left}."
    if less:
        return (
            f" The paper's claim, that QUEST's models are more robust, does not hold for these: by {listed(less)} they "
            f"are less. Whether even attention helps {left}."
        )
    return ""


def _follows(own: Sequence[Tested]) -> str:
    """Return what differences in robustness say about a formula."""
    beyond = [each for each in own if each.is_beyond_chance]
    if beyond:
        words = [
            f"{word} robust by {listed(names)}"
            for word, better in (("more", True), ("less", False))
            if (names := [each.figure.name for each in beyond if each.is_better == better])
        ]
        rest = len(own) - len(beyond)
        return f"So its models are {' and '.join(words)}, beyond chance{'; the rest is not' if rest else ''}."
    sides = {each.is_better for each in own}
    lean = "" if len(sides) > 1 else f", though all lean towards {'more' if True in sides else 'less'} robust"
    least = [
        f"{each.least(each.tests)}{each.figure.unit} in {each.figure.name}"
        for each in own
        if each.could_show(each.tests)
    ]
    needed = f" To show four times out of five, they would have to differ by {listed(least)}." if least else ""
    return f"None is beyond chance{lean}.{needed}"


def _evenness(even: Evenness | None) -> list[str]:
    """Return what trainings of one formula say, since those of several differ in more than evenness."""
    if even is None:
        return []
    share, unknown = even.columns[0].name, "neither more nor less robust, as far as these can tell"
    over_all = (
        f"clean accuracy held fixed, those with more of it are {even.over_all[share].text or unknown}"
        if even.over_all
        else f"nothing can be told: {TOO_FEW}"
    )
    parts = [
        f"**Does more even attention make a model more robust?** Over {len(even.held)} trainings, of formulas with "
        f"{OF_EACH} or more, {over_all}."
    ]
    within = even.of_one_formula[share]
    parts.append(
        "Among those of one formula, where it cannot be the formula's, those with more of it are "
        f"{within.text or unknown}."
    )
    if within.more and within.less:
        parts.append("They point both ways.")
    elif within.more:
        parts.append("They speak for the claim, and do not prove a cause.")
    elif within.less:
        parts.append("They speak against the claim.")
    elif even.least is not None:
        parts.append(f"A correlation within formulas of {even.least:.2f} would show about seven times out of ten.")
    return [" ".join(parts)]
