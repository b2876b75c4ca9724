"""Draft a policy that a run passes, with margins: each rule beside the figure that it came from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ProtocolError
from ..evaluations.kinds import shares_of, words_of
from ..evaluations.pattern import check_condition
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..tasks.measures import find_metric
from .measured import MeasuredRun
from .output import plain

_MOST = 12  # flags that a draft names

HEAD = """\
# What {run} meets, drafted from it by robustkit check --init. Read every rule before relying on it.
#
# A bound is the end of the figure's 95 % interval, rounded away from it to two decimals. To ask for more than the
# point, add `with 95 % confidence`: then the whole interval must lie on the good side.
# docs/how-to/gate.md has the grammar. undecided = "pass" lets a rule pass where samples are too few to tell.

undecided = "fail"
"""
TAIL = """
# Against a release, robustkit check RUN --policy FILE --baseline RELEASED:
#
# [[rule]]
# require = "drop in {metric} under clean against baseline <= 0.01 with 95 % confidence"
#
# [[rule]]
# require = "drop against baseline <= 0.02"
"""


def draft(run: RunFolder) -> str:
    """Return the text of a policy.

    Raises:
        NothingEvaluated: the run has no results. RunError: its records cannot be read.
    """
    subject = MeasuredRun(run)
    lines = [HEAD.format(run=plain(run.path.resolve().name))]
    data = subject.manifest.data
    lines += _rule("the card with all parameters", f"protocol == {_quoted(subject.manifest.protocol.tag)}")
    comment = plain(f"{data.n} samples of {data.name}")
    lines += _rule(comment, f"data digest == {_quoted(data.digest)}")
    for name, cells in subject.cells.items():
        if not cells:
            continue
        lines.append(f"\n# {plain(name)}\n")
        checkpoint = subject.checkpoints[name]
        lines += _rule("as the file says", f"attention == {_quoted(checkpoint.attention)}", name)
        lines += (f"\n# of these very weights: checkpoint sha256 == {_quoted(str(checkpoint.sha256))}\n",)
        lines += _flags(subject, name)
        for row in cells.values():
            lines += _of_row(subject, row, name)
    lines.append(TAIL.format(metric=subject.task.headline))
    return "".join(lines)


def _of_row(subject: MeasuredRun, row: Mapping[str, Any], name: str) -> Iterator[str]:
    condition, metric = row["condition"], row["metric"]
    try:
        check_condition(condition)
    except ProtocolError:  # of a card or a version of its own
        return
    definition = find_metric(metric)
    if definition is None or not definition.drafted or words_of(condition).is_control(condition):
        return
    if _is_part_of_a_mean(subject, name, condition):
        return  # that has a rule
    if condition == CLEAN.text:
        yield from _rule("of all samples", f"n under clean >= {row['n']}", name)
    value, low, high = (row[key] for key in ("value", "ci_low", "ci_high"))
    if not math.isfinite(value):
        yield f"\n# {metric} under {plain(condition)} is {value}: no rule\n"
        return
    falls = definition.better < 0
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high, comment = value - 0.05, value + 0.05, f"{value:.4g}, n {row['n']}; no interval, 0.05 of margin"
    else:
        comment = f"{value:.4g} [{low:.4g}, {high:.4g}], n {row['n']}"
    bound = math.ceil(100 * high - 1e-9) / 100 if falls else math.floor(100 * low + 1e-9) / 100
    if bound <= 0 and not falls:
        yield f"\n# {metric} under {plain(condition)} is {plain(comment)}: no bound above 0\n"
        return
    flags = f"; flags: {'; '.join(row['flags'])}" if row["flags"] else ""
    yield from _rule(comment + flags, f"{metric} under {condition} {'<=' if falls else '>='} {bound:.2f}", name)


def _is_part_of_a_mean(subject: MeasuredRun, name: str, condition: str) -> bool:
    shares = set(shares_of(condition))
    return any(shares < set(shares_of(text)) for text, _ in subject.cells[name])


def _flags(subject: MeasuredRun, name: str) -> Iterator[str]:
    flags = [(text, flag) for (text, _), row in subject.cells[name].items() for flag in row["flags"]]
    done = {condition for checkpoint, condition in subject.run.units() if checkpoint == name}
    lacking = any(condition not in done for condition in subject.manifest.conditions)
    left_out = subject.manifest.corrupted.left_out
    essences = dict.fromkeys(_essence(flag) for _, flag in flags)
    essences |= dict.fromkeys(["incomplete: no records"] if lacking else [])
    essences |= dict.fromkeys(["left out: "] if left_out else [])
    if not essences:
        yield from _rule("there are none", "no flags", name)
    elif len(essences) > _MOST:
        yield f"\n# no rule about flags: there are {len(essences)} kinds; see the report\n"
    else:
        yield from _rule(
            "these flags were raised, and are allowed here: look at each in the report, and delete what must not be",
            f"no flags except {', '.join(map(_quoted, essences))}",
            name,
        )


def _essence(flag: str) -> str:
    """Return the longest part of a flag without numbers, which differ from run to run."""
    return max(re.split(r"\d[\d.,/x%]*", flag), key=len).strip(" ;,:") or flag


def _rule(comment: str, require: str, checkpoint: str = "") -> Iterator[str]:
    yield f"\n[[rule]]  # {plain(comment)}\n"
    yield f"require = {_toml(require)}\n"
    if checkpoint:
        yield f"checkpoint = {_toml(checkpoint)}\n"


def _quoted(text: str) -> str:
    """Return a text as rules quote it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _toml(text: str) -> str:
    """Return a TOML string, without escapes where possible. A name that no file can hold becomes a pattern."""
    text = re.sub("[\ud800-\udfff]", "?", text)
    if "'" not in text and text.isprintable() and '"' in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
