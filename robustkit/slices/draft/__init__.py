"""Draft a policy that a run passes, with margins: each rule next to the figure that it came from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence

from ...cli.check import Gate, put
from ...cli.terminal import console
from ...common.figure import Figure
from ...common.finding import Finding
from ...common.plugins import plugin_session
from ...display.console import print_as_it_is
from ...errors import ProtocolError
from ...evaluations.condition import check_condition, shares_of, takes_images
from ...evaluations.maps import is_control
from ...evaluations.presenting import chief_figures, unfinished_line
from ...gate.identity import heads_text, settings_of
from ...gate.output import plain_line
from ...gate.policy import always_meets, quote
from ...gate.verdicts import MISSING, MeasuredRun
from ...protocol.condition import CLEAN
from ...results.pairing import checkpoint_setup
from ...runs.description import shown_as
from ...runs.folder import RunFolder
from ...tasks import find_metric, metric_of
from ...tasks.labelled.parity import AGREEMENT, DIFFERS

HEAD = """\
# Drafted from {run} by robustkit check --init. Review every rule before relying on it.
#
# A bound is the end of the figure's 95 % interval, rounded outwards to two decimals. To require
# confidence, add `with 95 % confidence`: then the whole interval must meet the bound.
# docs/reference/policies.md has the grammar. undecided = "pass" lets an inconclusive rule pass.
{scope}
undecided = "fail"
"""
SHORT = """\
# These are the most important rules; robustkit check --init --all drafts one for every figure of each checkpoint.
"""
SEVERAL = """\
# A rule without `checkpoint` applies to every checkpoint; its bound is that of the weakest. A checkpoint that is
# clearly better than the weakest has its own rule.
"""
UNFINISHED = """\
#
# This run is {gap}
# Run that command, delete this file and draft it again: missing results have no rule here; rules about findings fail.
"""
TAIL = """
# To compare with a release, add a rule such as these and run robustkit check RUN --policy FILE --baseline RELEASED:
#
# [[rule]]
# require = "drop in {metric} under clean against baseline <= 0.01 with 95 % confidence"
#
# [[rule]]
# require = "drop against baseline <= 0.02"
"""


def write_draft(run: RunFolder, gate: Gate) -> None:
    """Write the policy of `robustkit check --init`, and print what to do with it. Raises ProtocolError, RunError."""
    place, others = gate.place, {"--baseline": gate.baseline, "--details": gate.details, "--lock": gate.lock}
    if gate.groups or gate.groups_from:
        raise ProtocolError(f"--init drafts for a run as it is; group it first: robustkit report {run.path} --groups …")
    if unused := [*gate.files, *(option for option, given in others.items() if given)]:
        raise ProtocolError(f"{', '.join(unused)}: --init writes a policy and checks nothing; leave out one of them")
    if place.exists():
        raise ProtocolError(f"{place} exists and is not overwritten; choose another file with --policy, or delete it")
    text = draft(run, gate.every)
    put(place, text.encode("utf-8"), "--policy")
    rules = text.count("\n[[rule]]")
    print_as_it_is(
        console(), f"{place}: {rules} rules; review them, then run: robustkit check {run.path} --policy {place}"
    )


@plugin_session()
def draft(run: RunFolder, every: bool = False) -> str:
    """Return a policy's text: the dozen rules that matter, or with `every` one on each figure of each checkpoint. A run
    passes it at once, unless it is unfinished. Raises NothingEvaluated, RunError."""
    subject = MeasuredRun(run)
    scope = "" if every else SHORT + SEVERAL * (len(subject.cells) > 1)
    if gap := unfinished_line(run):
        scope += UNFINISHED.format(gap=plain_line(gap))
    lines = [HEAD.format(run=plain_line(run.path.resolve().name), scope=scope)]
    data = subject.manifest.data
    lines += _rule("same card: attacks and their parameters", _is("protocol", subject.manifest.protocol.tag))
    lines += _rule(f"same images: {data.n} of {data.name}", _is("data digest", data.digest))
    lines += _rule("same seed, precision, engine", _is("settings", settings_of(subject.manifest)))
    lines += _of_each(subject) if every else _of_all(subject)
    lines.append(TAIL.format(metric=subject.task.headline))
    return "".join(lines)


def _of_each(subject: MeasuredRun) -> Iterator[str]:
    for name, cells in subject.cells.items():
        if not cells:
            continue
        yield f"\n# {plain_line(name)}\n"
        yield from _formula(subject, [name], name)
        yield from _inputs(subject, name, name)
        yield from _findings(subject, [name], name)
        for row in cells.values():
            yield from _of_row(subject, row, name)


def _of_all(subject: MeasuredRun) -> Iterator[str]:
    names = [name for name, cells in subject.cells.items() if cells]
    whole = len(names) == len(subject.checkpoints)  # a rule for all cannot judge one without results
    formulas: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        entry = subject.checkpoints[name]
        formulas.setdefault((entry.attention, entry.arch, heads_text(entry)), []).append(name)
    for some in formulas.values():
        if whole and len(formulas) == 1:
            yield from _formula(subject, some, "")
        else:
            for name in some:
                yield from _formula(subject, [name], name)
    alike = whole and len({tuple(shown_as(entry).values()) for entry in subject.checkpoints.values()}) == 1
    for checkpoint in [""] if alike else names:
        yield from _inputs(subject, checkpoint or names[0], checkpoint)
    for checkpoint, some in [("", names)] if whole else [(name, [name]) for name in names]:
        yield from _findings(subject, some, checkpoint)
    headline = CLEAN.text, subject.task.headline
    clean = {name: subject.cells[name][headline].n for name in names if headline in subject.cells[name]}
    for checkpoint, some in [("", names)] if clean.keys() == subject.checkpoints.keys() else [(n, [n]) for n in clean]:
        if some:
            yield from _rule("no samples lost", f"n under clean >= {min(clean[name] for name in some)}", checkpoint)
    for name in names:
        for (condition, metric), row in subject.cells[name].items():
            if metric == AGREEMENT.name and (condition == CLEAN.text or takes_images(condition)):
                yield from _bound(row, name, f"agreement with {plain_line(str(subject.manifest.parity))}")
    for condition, metric, why in chief_figures(subject.cells.values(), subject.task.headline):
        if _is_understood(condition):
            what = f"clean {metric_of(metric).word}" if condition == CLEAN.text else why
            yield from _chief(subject, condition, metric, what)


def _chief(subject: MeasuredRun, condition: str, metric: str, why: str) -> Iterator[str]:
    """Yield a rule for all checkpoints that the weakest meets, and one for each that is clearly better."""
    every = ((name, cells.get((condition, metric))) for name, cells in subject.cells.items())
    rows = {name: row for name, row in every if row is not None}
    sign = -1 if metric_of(metric).better < 0 else 1
    finite = [name for name, row in rows.items() if math.isfinite(row.value)]
    weakest = min(finite, key=lambda name: sign * rows[name].value)
    if len(finite) < len(subject.checkpoints):
        for name in finite:
            yield from _bound(rows[name], name, why)
        return
    several = f"{plain_line(weakest)}, " if len(finite) > 1 else ""
    yield from _bound(rows[weakest], "", f"{why}: {several}".removesuffix(": "))
    worst = _interval(rows[weakest])
    for name in finite:
        low, high = _interval(rows[name])
        if low > worst[1] if sign > 0 else high < worst[0]:
            yield from _bound(rows[name], name, why)


def _interval(row: Figure) -> tuple[float, float]:
    """Return the interval of a figure, a made-up one of 0.05 to each side where it has none."""
    if math.isfinite(row.low) and math.isfinite(row.high):
        return row.low, row.high
    return row.value - 0.05, row.value + 0.05


def _of_row(subject: MeasuredRun, row: Figure, name: str) -> Iterator[str]:
    condition, metric = row.condition, row.metric
    definition = find_metric(metric)
    if not _is_understood(condition) or definition is None or not definition.drafted:
        return
    shares = set(shares_of(condition))
    of_a_mean = any(shares < set(shares_of(text)) for text, _ in subject.cells[name])  # which has a rule
    if of_a_mean or is_control(condition):
        return
    if condition == CLEAN.text:
        yield from _rule("of all samples", f"n under clean >= {row.n}", name)
    yield from _bound(row, name)


def _bound(row: Figure, checkpoint: str, why: str = "") -> Iterator[str]:
    """Yield a rule that the figure's interval meets as a whole; a comment where there can be none."""
    condition, metric, value = row.condition, row.metric, row.value
    what = f"{metric} under {plain_line(condition)}"
    if not math.isfinite(value):
        yield f"\n# {what} is {value}: no rule\n"
        return
    falls = metric_of(metric).better < 0
    low, high = _interval(row)
    measured = math.isfinite(row.low) and math.isfinite(row.high)
    interval = f"[{low:.4g}, {high:.4g}], n {row.n}" if measured else f"n {row.n}; no interval, margin 0.05"
    comment = f"{value:.4g} {interval}" if measured else f"{value:.4g}, {interval}"
    if why:
        comment = f"{why}{'' if why.endswith(', ') else ': '}{comment}"
    bound = math.ceil(100 * high - 1e-9) / 100 if falls else math.floor(100 * low + 1e-9) / 100
    sign, metric_ends = "<=" if falls else ">=", metric_of(metric).ends
    if always_meets(sign, bound, metric_ends) or (bound <= 0 and not falls):
        yield f"\n# {what} is {plain_line(comment)}: no rule, since every run would meet it\n"
        return
    written = f"{100 * bound:.0f} %" if bound > 1 and metric_of(metric).scale == 100 else f"{bound:.2f}"
    flags = (
        f"; findings: {'; '.join(map(str, row.findings))}" if row.findings and not why else ""
    )  # else a rule names them
    yield from _rule(comment + flags, f"{metric} under {condition} {sign} {written}", checkpoint)


def _is_understood(condition: str) -> bool:
    """Whether a rule can name a condition: not one of a card or a version of its own."""
    try:
        check_condition(condition)
    except ProtocolError:
        return False
    return True


def _formula(subject: MeasuredRun, names: Sequence[str], checkpoint: str) -> Iterator[str]:
    """Yield rules on what checkpoints are built of, and in a comment the digests that would pin the very weights."""
    entry = subject.checkpoints[names[0]]
    yield from _rule("same formula", _is("attention", entry.attention), checkpoint)
    yield from _rule("same architecture", _is("arch", entry.arch), checkpoint)
    if heads := heads_text(entry):
        yield from _rule("same heads, by the same training images or threshold", _is("heads", heads), checkpoint)
    if (label_map := checkpoint_setup(entry)["label map"]) != "none":
        yield from _rule("same label map", _is("label map", label_map), checkpoint)
    for name in names:
        digest = str(subject.checkpoints[name].sha256)
        whose = f" of {plain_line(name)}" if len(names) > 1 else ""
        yield f"# to pin the weights{whose}: {_is('checkpoint sha256', digest)}\n"


def _inputs(subject: MeasuredRun, name: str, checkpoint: str) -> Iterator[str]:
    """Yield a rule on how images become pixels, which moves every figure. name: a checkpoint that was shown them so."""
    statement = _is("preprocessing", ", ".join(shown_as(subject.checkpoints[name]).values()))
    yield from _rule("same preprocessing", statement, checkpoint)


def _findings(subject: MeasuredRun, names: Sequence[str], checkpoint: str) -> Iterator[str]:
    rows = (row for name in names for row in subject.cells[name].values())
    every = dict.fromkeys(finding for row in rows for finding in row.findings if finding.counts)
    for finding in filter(_is_open, every):
        yield f"\n# to be settled first, since no rule here accepts it: {plain_line(str(finding))}\n"
    accepted = dict.fromkeys(each.code for each in every if not (_is_open(each) or each.code in MISSING))
    accepted |= dict.fromkeys(each.code for each in subject.manifest.data.findings("data"))
    if subject.manifest.corrupted.left_out:
        accepted["run/left-out"] = None
    if not accepted:
        yield from _rule("no finding was raised", "no findings", checkpoint)
    else:
        why = "these findings were raised and are accepted here; delete the exceptions that you do not accept"
        yield from _rule(why, f"no findings except {', '.join(accepted)}", checkpoint)


def _is_open(finding: Finding) -> bool:
    return is_of_setup(finding) or finding.code == DIFFERS


def is_of_setup(finding: Finding) -> bool:
    """Whether the set-up or labels were guessed, not checked, or may be wrong: no draft allows that by itself."""
    return finding.room in ("setup", "labels") and finding.code not in ("setup/elsewhere", "setup/other-attention")


def _rule(comment: str, require: str, checkpoint: str = "") -> Iterator[str]:
    yield f"\n[[rule]]  # {plain_line(comment)}\n"
    yield f"require = {_toml(require)}\n"
    if checkpoint:
        yield f"checkpoint = {_toml(checkpoint)}\n"


def _is(subject: str, value: str) -> str:
    return f"{subject} == {quote(value)}"


def _toml(text: str) -> str:
    """Return a TOML string, without escapes where possible. A name that no file can hold becomes a pattern."""
    text = re.sub("[\ud800-\udfff]", "?", text)
    if text.isprintable() and '"' in text:
        if "'" not in text:
            return f"'{text}'"
        if "'''" not in text and text[-1] != "'":
            return f"'''{text}'''"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
