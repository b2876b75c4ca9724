"""Say what to do about a verdict that does not pass."""

from __future__ import annotations

import math

from ..protocol.condition import part_of
from ..runs.repeating import repeat_of
from .statements import Change, Identity, NoFlags, Value
from .verdicts import FAIL, PASS, Verdict

_IDENTITY = {
    "protocol": "audit under the card that the rule names (--protocol), or draft the policy again",
    "data digest": "audit the same samples (--data-dir, --limit, --ids, --seed), or draft the policy again",
    "settings": "audit as the rule says (--seed, --dtype, --engine); if it was changed on purpose, change the rule",
    "heads": "fit the heads to the same training images (--train, --train-limit); if others are meant, change the rule",
    "attention": "audit the checkpoint that is meant; if the formula was changed on purpose, change the rule",
    "arch": "audit the checkpoint that is meant; if the architecture was changed on purpose, change the rule",
    "preprocessing": "show images as the rule says (--mean, --std, --crop-pct, --crop-mode, --interpolation, "
    "--img-size; of segmenters --window, --stride, --short-side, --resize); if it was changed on purpose, change it",
    "checkpoint sha256": "audit the file that is meant, or put its digest into the rule",
}
_FLAGS = "look at each flag in the report; name those that you accept after except"


def shortfall(verdict: Verdict) -> float:
    """Return by how much a figure misses its bound; nan where it does not."""
    statement, figure = verdict.rule.statement, verdict.figure
    if verdict.state != FAIL or figure is None or not isinstance(statement, Value | Change):
        return math.nan
    gap = abs(figure.value - statement.bound)
    return gap if math.isfinite(gap) and gap else math.nan


def _many(verdict: Verdict, n: int) -> str:
    """Return how n samples are asked for, also of a condition that takes some of all."""
    return f"on={n}, with as many in the data" if part_of(verdict.condition) else f"--limit {n}"


def advice(verdict: Verdict, below: bool = False) -> str:
    """Return in one sentence what to do; empty where it passes, or where the reason says it.

    below: commands stand below the sentence, and are not repeated in it.
    """
    statement, figure = verdict.rule.statement, verdict.figure
    if verdict.state == PASS:
        return ""
    if isinstance(statement, Identity):
        return _IDENTITY[statement.subject] if verdict.state == FAIL else ""
    if verdict.completes:
        then = "; then look at the flags that are left" if isinstance(statement, NoFlags) else ""
        repeat = repeat_of(verdict.completes)
        command = "with the command below" if below else f"which makes what is missing: {repeat.command}"
        if repeat.why_not:
            command = f"which makes what is missing; its command is not shown, since {repeat.why_not}"
        return f"run the audit again, {command}{then}"
    if below and verdict.command:
        why_not = repeat_of(verdict.command).why_not
        return f"its command is not shown, since {why_not}" if why_not else "evaluate it with the command below"
    if isinstance(statement, NoFlags):
        return _FLAGS if verdict.state == FAIL else ""
    if figure is None or not verdict.whole:
        return ""
    if verdict.of is not None and verdict.state != FAIL:
        return "give more samples (--at-most, --data-dir), or ask for a bound that is further from the value"
    if verdict.state != FAIL:
        return "" if verdict.needed is None else f"audit that many ({_many(verdict, verdict.needed)}), or ask for less"
    if isinstance(statement, Value) and statement.metric == "n":
        return f"audit that many samples ({_many(verdict, math.ceil(statement.bound))})"
    compare = "see what changed with robustkit compare RELEASED RUN"
    if figure.low <= statement.bound <= figure.high:
        return f"the interval holds the bound, so chance may explain it: audit more samples, or {compare}"
    return compare
