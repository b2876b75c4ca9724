"""Format verdicts for terminals, CI servers and programs: lines, JUnit XML, GitHub annotations, Markdown, JSON."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree as Tree

from ..common.figure import Figure
from ..display.format import Cell, counted, number, significant
from ..display.table import Table
from ..display.text import no_commands
from ..protocol.condition import samples_named
from ..runs.description import why_not_repeated
from ..tasks import find_metric
from .policy import Change, Identity, NoFindings, Statement, Value
from .verdicts import FAIL, PASS, UNDECIDED, Outcome, Verdict

_IDENTITY = {
    "protocol": "audit with the protocol card that the rule names (--protocol), or draft the policy again",
    "data digest": "audit the same samples (--data-dir, --limit, --ids, --seed), or draft the policy again",
    "settings": "use the settings of the rule (--seed, --dtype, --engine); if the change is intended, change the rule",
    "heads": "use the settings of the rule (--train, --train-limit, --threshold); if you meant others, change the rule",
    "label map": "pool the outputs by the map of the rule (--label-map); if another one is intended, change the rule",
    "attention": "audit the intended checkpoint; if the change of formula is intended, change the rule",
    "arch": "audit the intended checkpoint; if the change of architecture is intended, change the rule",
    "preprocessing": "use the preprocessing of the rule (--mean, --std, --crop-pct, --crop-mode, --interpolation, "
    "--img-size; of segmenters --window, --stride, --short-side, --resize); if the change is intended, change the rule",
    "checkpoint sha256": "audit the intended file, or put its digest into the rule",
}
_FLAGS = "check each flag in the report; list those that you accept after except"


def _many(verdict: Verdict, n: int) -> str:
    return f"on={n}, with as many in the data" if samples_named(verdict.condition) else f"--limit {n}"


def advice(verdict: Verdict, below: bool = False) -> str:
    """Return in one sentence what to do; empty where it passes, or the reason says it. below: commands stand below
    it."""
    statement, figure = verdict.rule.statement, verdict.figure
    if verdict.state == PASS:
        return ""
    if isinstance(statement, Identity):
        return _IDENTITY[statement.subject] if verdict.state == FAIL else ""
    if verdict.completes:
        then = "; then check the remaining findings" if isinstance(statement, NoFindings) else ""
        command = "with the command below" if below else f"to compute the missing results: {verdict.completes}"
        if why_not := why_not_repeated(verdict.completes):
            command = f"to compute the missing results; its command is hidden because {why_not}"
        return f"run the audit again {command}{then}"
    if below and verdict.command:
        why_not = why_not_repeated(verdict.command)
        return f"its command is hidden because {why_not}" if why_not else "evaluate it with the command below"
    if isinstance(statement, NoFindings):
        return _FLAGS if verdict.state == FAIL else ""
    if figure is None or not verdict.whole:
        return ""
    if verdict.of is not None and verdict.state != FAIL:
        return "give more samples (--at-most, --data-dir), or a bound further from the value"
    if verdict.state != FAIL:
        more = f"audit that many samples ({_many(verdict, verdict.needed or 0)}), or relax the bound"
        return "" if verdict.needed is None else more
    if isinstance(statement, Value) and statement.metric == "n":
        return f"audit that many samples ({_many(verdict, math.ceil(statement.bound))})"
    compare = "see what changed with robustkit compare RELEASED RUN"
    if isinstance(statement, Value) and statement.by:
        compare = f"see all slices with robustkit report RUN --by {shlex.quote(','.join(statement.by))}"
    if figure.low <= statement.bound <= figure.high:
        return f"the interval contains the bound, so the miss is not significant: audit more samples, or {compare}"
    return compare


_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
_CONTROL = re.compile("[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_MARKDOWN = re.compile(r"([\\`*_\[\]~|!#])")
_WIDEST = 300


def plain_line(text: str) -> str:
    """Return a text on one line, without characters that control a terminal or change the direction of writing."""
    return _CONTROL.sub(" ", text).strip()


def figure_text(figure: Figure, statement: Value | Change | None = None) -> Cell:
    """Return `86.7 % [75.8, 93.1]`, with enough digits to distinguish the value from the bound of a rule."""
    scale, unit = _scale(statement)
    bound = figure.value if statement is None else statement.bound
    ends = [scale * end for end in (figure.low, figure.value, figure.high)]
    digits, write, most = (1, number, 14) if unit else (4, significant, 17)
    apart = (places for places in range(digits, most) if write(ends[1], places) != write(scale * bound, places))
    text = write(ends[1], digits if figure.value == bound else next(apart, most)) + unit
    if figure.has_interval:
        text += f" [{write(ends[0], digits)}, {write(ends[2], digits)}]"
    return Cell(text, figure.value, figure)


def _scale(statement: Statement | None) -> tuple[float, str]:
    """Return the factor and the unit in which a rule's figure is shown: shares in per cent, their changes in points."""
    if not isinstance(statement, Value | Change):
        return 1.0, ""
    metric = find_metric(statement.metric or "top1")  # what policies take where a rule about a change names none
    if metric and metric.scale == 100:
        return 100.0, " points" if isinstance(statement, Change) and not metric.of_pairs else " %"
    return 1.0, ""


def _in_unit(value: float, statement: Value | Change) -> Cell:
    scale, unit = _scale(statement)
    return significant(scale * value).followed_by(unit)


def sentence(verdict: Verdict) -> str:
    """Return a verdict on one line: rule, figure, bound, by how much it is missed, reason, flags."""
    statement, figure = verdict.rule.statement, verdict.figure
    parts = [_rule(verdict)]
    if figure is not None and isinstance(statement, Value | Change):
        figures = f"n is {figure.n}" if _counts(statement) else f"{figure_text(figure, statement)}, n {figure.n}"
        bound = "" if verdict.state == PASS else f", bound {statement.compare} {_in_unit(statement.bound, statement)}"
        missed = _missed(verdict)
        parts[0] += f": {figures}{_where(verdict)}{bound}" + (f", missed by {missed}" if missed else "")
    elif verdict.reason:
        parts[0] += f": {verdict.why}"
    if figure is not None:
        parts += [verdict.why, *_flags(verdict)]
    return plain_line("; ".join(filter(None, parts)))


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return verdicts as a table for a terminal; under each row why, and what to do, once for those in a row that share
    it."""
    rows, below = list[tuple[str, ...]](), list[tuple[int, str]]()
    remedies = [*(advice(verdict, below=True) for verdict in verdicts), ""]
    for place, verdict in enumerate(verdicts):
        statement, figure, value, n = verdict.rule.statement, verdict.figure, "", ""
        if figure is not None and isinstance(statement, Value | Change):
            value, n = figure_text(figure, statement), "" if _counts(statement) else counted(figure)
        warns = " (warning)" if verdict.rule.severity == "warning" and verdict.state != PASS else ""
        rule = f"{_rule(verdict)}{_where(verdict) if figure else ''}{warns}"
        rows.append((verdict.state, verdict.checkpoint, rule, value, n, _missed(verdict)))
        by_rule = isinstance(statement, Identity | NoFindings) and verdict.state == PASS  # by the rule
        below += [(place, text) for text in ("" if by_rule else verdict.reason, *_flags(verdict)) if text]
        if remedies[place] and remedies[place] != remedies[place + 1]:
            below.append((place, f"→ {remedies[place]}"))
    headings = ("verdict", "checkpoint", "rule", "value [95 %]", "n", "missed by")
    return Table("", headings, tuple(rows), spare=("n", "missed by"), below=tuple(below))


def _rule(verdict: Verdict) -> str:
    rule = verdict.rule
    return rule.require if rule.name == rule.require else f"{rule.name} ({rule.require})"


def _where(verdict: Verdict) -> str:
    """Return the condition in full, where the rule of a figure has it otherwise."""
    where = f" under {verdict.condition}" if isinstance(verdict.rule.statement, Value) else ""
    return "" if where in verdict.rule.require else where


def _counts(statement: Statement) -> bool:
    return isinstance(statement, Value) and statement.metric == "n"


def _missed(verdict: Verdict) -> str:
    statement, figure = verdict.rule.statement, verdict.figure
    if verdict.state != FAIL or figure is None or not isinstance(statement, Value | Change):
        return ""
    gap = abs(figure.value - statement.bound)
    if not (math.isfinite(gap) and gap):
        return ""
    if _counts(statement):
        return number(gap, 0)
    scale, unit = _scale(statement)
    text = number(scale * gap, 1) if unit and scale * gap >= 0.05 else significant(scale * gap)
    return Cell(f"{text} points" if unit else text, gap)


def _flags(verdict: Verdict) -> list[str]:
    return [f"{each.severity}: {each}" for each in verdict.figure.findings] if verdict.figure is not None else []


def by_urgency(outcome: Outcome) -> tuple[list[Verdict], list[Verdict]]:
    """Return what does not pass, worst first (what stops the gate, failed before undecided), and what passes."""
    order = (FAIL, UNDECIDED, PASS)
    open_ = [verdict for verdict in outcome.verdicts if verdict.state != PASS]
    open_.sort(key=lambda verdict: (not outcome.stops(verdict), order.index(verdict.state)))
    return open_, [verdict for verdict in outcome.verdicts if verdict.state == PASS]


def count_verdicts(outcome: Outcome) -> str:
    """Return `5 pass, 1 fail, 1 inconclusive, of 7`."""
    by_state = Counter(verdict.state for verdict in outcome.verdicts)
    words = [(PASS, "pass"), (FAIL, "fail"), (UNDECIDED, "inconclusive")]
    return ", ".join(f"{by_state[state]} {word}" for state, word in words) + f", of {len(outcome.verdicts)} verdicts"


def junit(outcome: Outcome, run: str) -> bytes:
    """Return a JUnit XML file: a test case per verdict, classname the checkpoint, name the rule. What stops the gate is
    a failure; a warning, or what is undecided and let pass, is skipped."""
    stopping = [verdict for verdict in outcome.verdicts if outcome.stops(verdict)]
    skipped = [v for v in outcome.verdicts if v.state != PASS and not outcome.stops(v)]
    totals = {"tests": str(len(outcome.verdicts)), "failures": str(len(stopping)), "errors": "0"}
    totals |= {"skipped": str(len(skipped)), "time": "0"}
    root = Tree.Element("testsuites", totals)
    suite = Tree.SubElement(root, "testsuite", {"name": _legal(run), **totals})
    for verdict, name in zip(outcome.verdicts, rule_names(outcome.verdicts), strict=True):
        attributes = {"classname": _legal(verdict.checkpoint or run), "name": _legal(name), "time": "0"}
        case, text = Tree.SubElement(suite, "testcase", attributes), sentence(verdict)
        if verdict.state == PASS:
            Tree.SubElement(case, "system-out").text = _legal(text)
        elif outcome.stops(verdict):
            fields = {"message": _legal(text), "type": "fail" if verdict.state == FAIL else "inconclusive"}
            lines = filter(None, (verdict.checkpoint, text, advice(verdict)))
            Tree.SubElement(case, "failure", fields).text = _legal("\n".join(lines))
        else:
            Tree.SubElement(case, "skipped", {"message": _legal(f"{verdict.state}: {text}")})
    Tree.indent(root)
    return bytes(Tree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def rule_names(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the rules' names; the second of a name for one checkpoint is `NAME (2)`."""
    seen: Counter[tuple[str, str]] = Counter()
    names = list[str]()
    for verdict in verdicts:
        key = (verdict.checkpoint, verdict.rule.name)
        seen[key] += 1
        names.append(key[1] if seen[key] == 1 else f"{key[1]} ({seen[key]})")
    return names


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


def github_lines(outcome: Outcome) -> Iterator[str]:
    """Yield workflow commands that GitHub shows next to the policy's lines: the worst first, and as many as it shows of
    a step; the last of them says how many follow."""
    urgent: list[Verdict | str] = [*by_urgency(outcome)[0], *outcome.notes]
    annotated = urgent if len(urgent) <= _ANNOTATIONS else urgent[: _ANNOTATIONS - 1]
    for each in annotated:
        yield _annotation(outcome, each)
    if more := len(urgent) - len(annotated):
        yield _annotation(outcome, f"{more} more follow; the log and the job summary list them")


_ANNOTATIONS = 10  # what GitHub shows of a step; it drops the rest in silence


def _annotation(outcome: Outcome, verdict: Verdict | str) -> str:
    properties, level = {"file": outcome.policy.path}, "warning"
    if isinstance(verdict, Verdict):
        level = "error" if outcome.stops(verdict) else "warning"
        word = "fails" if verdict.state == FAIL else "is inconclusive"
        title = plain_line(f"{verdict.checkpoint or 'run'}: {verdict.rule.name} {word}")[:_WIDEST]
        properties |= {"line": str(verdict.rule.line), "title": title}
    legal = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    settings = ",".join(f"{key}={value}" for key, value in legal.items())
    return f"::{level} {settings}::{_data(sentence(verdict) if isinstance(verdict, Verdict) else plain_line(verdict))}"


def _data(text: str) -> str:
    return no_commands(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def markdown(outcome: Outcome, run: str) -> str:
    """Return a summary for $GITHUB_STEP_SUMMARY: a table of what does not pass, what passes folded below it."""
    head = "passes" if outcome.passed else "fails"
    lines = [f"### RobustKit: {_cell(run)} {head} {_cell(outcome.policy.path)}", "", f"{count_verdicts(outcome)}.", ""]
    marks = {PASS: "✅ pass", FAIL: "❌ fail", UNDECIDED: "❔ inconclusive"}
    urgent, passed = by_urgency(outcome)
    if urgent:
        lines += ["| verdict | checkpoint | finding | what to do |", "|---|---|---|---|"]
    for verdict in urgent:
        mark = marks[verdict.state] + (" (warning)" if verdict.rule.severity == "warning" else "")
        cells = (mark, verdict.checkpoint or "(run)", sentence(verdict), advice(verdict))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    if passed:
        lines += ["", f"<details><summary>{len(passed)} passed</summary>", "", "| checkpoint | finding |", "|---|---|"]
        lines += [f"| {_cell(verdict.checkpoint or '(run)')} | {_cell(sentence(verdict))} |" for verdict in passed]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n\n"


def _cell(text: str) -> str:
    return html.escape(_MARKDOWN.sub(r"\\\1", plain_line(text)), quote=False)


def to_json(outcome: Outcome, run: str, baseline: str | None) -> bytes:
    contents = {
        "run": run,
        "policy": outcome.policy.path,
        "baseline": baseline,
        "undecided": outcome.policy.undecided,
        "passed": outcome.passed,
        "notes": [*outcome.notes],
        "verdicts": [_as_dict(outcome, verdict) for verdict in outcome.verdicts],
    }
    text = json.dumps(contents, indent=1, ensure_ascii=False)
    return (text + "\n").encode("utf-8", errors="backslashreplace")  # a lone surrogate's escape is JSON's own


def _as_dict(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    rule, statement, figure = verdict.rule, verdict.rule.statement, verdict.figure
    asked = statement if isinstance(statement, Value | Change) else None
    return {
        "name": rule.name,
        "require": rule.require,
        "line": rule.line,
        "severity": rule.severity,
        "checkpoint": verdict.checkpoint or None,
        "verdict": verdict.state.lower(),
        "stops": outcome.stops(verdict),
        "condition": verdict.condition or None,
        "slice": verdict.slice or None,
        "metric": asked and (asked.metric or None),
        "value": figure and none_unless_finite(figure.value),
        "n": figure and figure.n,
        **({"groups": figure.groups} if figure and figure.groups else {}),
        "of": verdict.of,
        "ci_low": figure and none_unless_finite(figure.low),
        "ci_high": figure and none_unless_finite(figure.high),
        "bound": asked and asked.bound,
        "needed": verdict.needed,
        "reason": verdict.why,
        "advice": advice(verdict),
        "findings": [each.to_plain() for each in figure.findings] if figure else [],
    }


def none_unless_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
