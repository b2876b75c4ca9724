"""Parse a policy file (TOML) into rules and each rule's text into its statement, or report where it is wrong."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..common.files import TEXT, bytes_of, parse_toml, reason_of
from ..common.finding import Finding, catalogue
from ..common.names import plain
from ..common.plugins import plugin_session
from ..errors import ProtocolError, unknown
from ..evaluations.condition import check_condition, pattern_of
from ..evaluations.metrics import Metric
from ..protocol.card import parse_number
from ..protocol.condition import CLEAN, ConditionPattern
from ..tasks import find_metric, metric_of, metrics, metrics_of_pairs

OF_RUN = ("protocol", "data digest", "settings")  # what all checkpoints of a run share
SUBJECTS = ("attention", "arch", "preprocessing", "heads", "label map", *OF_RUN, "checkpoint sha256")


@dataclass(frozen=True)
class Value:
    """A figure, or for `n` the number of samples, is on one side of a bound; `sure`: its whole 95 % interval is. by:
    columns; then the figure of each of their slices is meant, see `results.slices`."""

    metric: str
    condition: ConditionPattern
    compare: str
    bound: float
    sure: bool = False
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """How much a figure may drop or rise against the baseline's, or a share of the samples of both. metric: empty for
    that of the task. condition: None for all of the baseline. excepted: parts of the lines on how the set-ups of both
    may differ."""

    falls: bool
    metric: str
    condition: ConditionPattern | None
    compare: str
    bound: float
    sure: bool = False
    excepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoFindings:
    """No doubts and no limits, except findings with one of these codes, or texts that contain one of these."""

    condition: ConditionPattern | None = None
    excepted: tuple[str, ...] = ()
    doubts_only: bool = False

    def excepts(self, finding: Finding) -> str:
        """Return what excepts a finding: a code, or a part of its text; empty where nothing does."""
        of_no_account = finding.severity == "note" or (self.doubts_only and finding.severity != "doubt")
        parts = (part for part in self.excepted if part == finding.code or part in finding.text)
        return finding.severity if of_no_account else next(parts, "")


@dataclass(frozen=True)
class Identity:
    """What run.json says about the subject."""

    subject: str
    expected: str


Statement = Value | Change | NoFindings | Identity
SLACK = 1e-12  # the tolerance within which a figure equals a bound: sums of floats in another order differ


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def always_meets(compare: str, bound: float, ends: tuple[float, float]) -> bool:
    """Whether every value between two ends, which may be infinite, is on the right side of a bound."""
    return meets_bound(compare, bound, ends[0] if compare.startswith(">") else ends[1])


def meets_bound(compare: str, bound: float, value: float) -> bool:
    gap = value - bound if compare.startswith(">") else bound - value
    return gap > SLACK if compare in (">", "<") else gap >= -SLACK


def _starts() -> tuple[str, ...]:
    return ("drop", "rise", *metrics_of_pairs(), "no findings", "no doubts", "worst slice of", "n", *SUBJECTS)


OF_EVERY_SETUP = (
    *("were assumed: not confirmed on", "was assumed: not confirmed on", "were assumed: not checked, "),
    *("was assumed: not checked, ", "was assumed and does not fit: ", " fits better than ", "(nll lower by "),
    *(" images); give --", "; give --attention ", " if that is right; robustkit inspect checkpoint --data-dir dir"),
    *("as good, as far as these images tell: ", "the order of classes was assumed: "),
)
"""What findings on set-ups have in common (`evaluations.setup_findings`): these would except each of them."""
FEWEST = 6  # Letters and digits of what is excepted: fewer are part of nearly every line
_SUGGESTED = 5  # metrics that a message names


def parse_statement(text: str, at: Callable[[int], str] = lambda offset: f"column {offset + 1}") -> Statement:
    """Return what a rule requires. at: names the place of a character. Raises ProtocolError."""
    try:
        return _Reader(text).statement()
    except _Misread as fault:
        raise ProtocolError(f"{at(fault.offset)}: {fault}") from None


class _Misread(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


_TOKEN = re.compile(
    r"\s*(?:(?P<code>[a-z]+/[a-z][a-z0-9-]+)|(?P<word>[A-Za-z][\w-]*)|(?P<compare>[<>=!]=?)|(?P<string>\"(?:\\.|[^\"\\])*\"|'[^']*')"
    r"|(?P<number>[+-]?[\d.][\d.eE/+-]*)|(?P<other>[%,]))",
    re.ASCII | re.DOTALL,
)


class _Reader:
    """A parser that reads a rule from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.end = text, 0, 0
        self.kind, self.token = "", ""
        self._next()

    def statement(self) -> Statement:
        statement = self._statement()
        if self.kind:
            unsure = isinstance(statement, Value | Change) and not statement.sure and statement.metric != "n"
            self._expected("the end of the rule" + " or 'with 95 % confidence'" * unsure)
        return statement

    def _statement(self) -> Statement:
        start = self.at
        if self._accept("no"):
            only = self.token == "doubts"
            if not any(self._accept(word) for word in ("findings", "flags", "doubts")):
                self._expected("findings or doubts after no")
            return NoFindings(self._under(), self._excepted("finding"), only)
        if self.token in ("drop", "rise"):
            return self._change()
        for name in metrics_of_pairs():
            if self._accept(*name.split()):
                return self._of_pairs(name)
        for subject in SUBJECTS:
            if self._accept(*subject.split()):
                if self.token != "==":
                    self._expected(f"== and a text in quotes after {subject}")
                self._next()
                return Identity(subject, self._string())
        if self._accept("worst", "slice", "of"):
            return self._slices(self._metric(), self._under() or pattern_of(CLEAN.text), worst=True)
        metric = self._metric(extra=("n",))
        condition = self._under()
        if condition is None:
            definition = find_metric(metric)
            if definition is None or not definition.under:
                self._expected(f"under CONDITION, such as {metric} under clean")
            condition = pattern_of(definition.under)
        if self.token == "by" and self.kind == "word":
            return self._slices(metric, condition)
        if metric == "n":
            compare, bound, sure = self._bound(None, (0.0, math.inf), sure=False)
            if bound != int(bound):
                raise _Misread(start, f"n is a whole number of samples; the bound is {bound:g}")
        else:
            definition = find_metric(metric)
            assert definition is not None
            compare, bound, sure = self._bound(definition, definition.ends)
        return Value(metric, condition, compare, bound, sure)

    def _slices(self, metric: str, condition: ConditionPattern, worst: bool = False) -> Value:
        """Return a rule about all slices by some columns, which come next. worst: about the worst of them, which is on
        the right side of a bound if all are."""
        start, definition = self.at, find_metric(metric)
        if not self._accept("by"):
            self._expected(f"by COLUMN, such as {metric} under {condition.text} by camera")
        if definition is None or not definition.paired:
            raise _Misread(start, f"{metric} is no mean over samples that slices have; expected one such as top1")
        by = list[str]()
        while not by or self.token == ",":
            if by:
                self._next()
            place, quoted = self.at, self.kind == "string"
            if not quoted and self.kind != "word":
                self._expected("a column such as camera, or its name in quotes")
            name = self.token
            by.append(self._string() if quoted else name)
            if not quoted:
                self._next()
            if by[-1] in by[:-1]:
                raise _Misread(place, f"column {by[-1]!r} is named twice; expected each once")
        better = ">" if definition.better > 0 else "<"
        if worst and self.token in (">=", "<=", ">", "<") and not self.token.startswith(better):
            end = "lowest" if better == ">" else "highest"
            self._expected(f"{better}= or {better}, as the worst {metric} is the {end}")
        at = self.at
        compare, bound, sure = self._bound(definition, definition.ends)
        if sure and not definition.binary:
            raise _Misread(at, f"slices have no intervals of {metric} that hold together; leave out the confidence")
        return Value(metric, condition, compare, bound, sure, tuple(by))

    def _excepted(self, what: str) -> tuple[str, ...]:
        """Return the texts after `except`, if it comes next. what: the kind of line that they are parts of."""
        excepted = list[str]()
        while self._accept("except") if not excepted else self.token == ",":
            if excepted:
                self._next()
            start = self.at
            if self.kind == "code":
                if self.token not in catalogue():
                    raise _Misread(start, unknown("finding", self.token, catalogue()))
                excepted.append(self.token)
                self._next()
                continue
            excepted.append(self._string(" or a code" * (what == "finding")))
            why = ""
            if sum(map(str.isalnum, excepted[-1])) < FEWEST:
                why = (
                    f"nearly every {what}, so the rule could never fail; expected a longer part of the intended "
                    f"{what}, of"
                    f" {FEWEST} letters or more"
                )
            elif what == "finding" and any(excepted[-1].strip().lower() in phrase for phrase in OF_EVERY_SETUP):
                why = (
                    "every finding about an assumed set-up, so the rule could never fail; expected a code, such as "
                    "setup/attention-assumed"
                )
            if why:
                raise _Misread(start, f"{excepted[-1]!r} is part of {why}")
        return tuple(excepted)

    def _change(self) -> Change:
        falls, metric, condition = self.token == "drop", "", None
        definition = find_metric("top1")
        self._next()
        if self._accept("in"):
            start, metric = self.at, self._metric()
            definition = find_metric(metric)
            if definition is None or not definition.paired:
                paired = ", ".join(name for name, entry in metrics().items() if entry.paired)
                raise _Misread(start, f"{metric} cannot be paired by sample between two runs; expected one of {paired}")
            if falls == (definition.better < 0):
                word, better = ("rise", "lower") if falls else ("drop", "higher")
                raise _Misread(start, f"{metric} is better {better}: expected {word} in {metric} against baseline")
        elif not falls:
            self._expected("in METRIC after rise")
        condition = self._under()
        if not self._accept("against", "baseline"):
            self._expected("against baseline")
        assert definition is not None
        bound = self._bound(definition, definition.difference_ends, "change of ")
        return Change(falls, metric, condition, *bound, self._excepted("difference"))

    def _of_pairs(self, name: str) -> Change:
        condition = self._under()
        if condition is None:
            self._expected(f"under CONDITION, such as {name} under clean against baseline")
        if not self._accept("against", "baseline"):
            self._expected("against baseline")
        share = metric_of(name)
        return Change(False, name, condition, *self._bound(share, share.ends), self._excepted("difference"))

    def _bound(
        self, metric: Metric | None, ends: tuple[float, float], of: str = "", sure: bool = True
    ) -> tuple[str, float, bool]:
        """Return comparison, bound, and whether confidence is asked for. metric: None for n. ends: what no figure
        exceeds."""
        if self.token not in (">=", "<=", ">", "<"):
            self._expected("one of >=, <=, >, <")
        compare, start = self.token, self.end
        self._next()
        at, written = self.at, self.token
        bound = self._number()
        signed = "%" in self.text[start : self.at if self.kind else len(self.text)]
        if metric is None and signed:
            raise _Misread(at, "n is a number of samples, not a share; leave out the per cent sign")
        percent = metric is not None and metric.scale == 100 and not signed
        remedy = f"; write {written} %, as pages print it" if percent and abs(bound) >= 1 else ""
        name = of + (metric.name if metric else "n")
        if always_meets(compare, bound, ends):
            end, side = (ends[0], "below") if compare.startswith(">") else (ends[1], "above")
            written_end = f"{100 * end:.4g} %" if metric and metric.scale == 100 else f"{end:.4g}"
            never = f"no {name} is {side} {written_end}"
            raise _Misread(
                at, f"this rule can never fail: {never}{remedy or '; give a bound that a run can fail to meet'}"
            )
        if percent and abs(bound) > 1:
            meant = f", or {100 * bound:g} % if that is meant" if ends[0] <= bound <= ends[1] else ""
            raise _Misread(at, f"{written} is {100 * bound:g} % of {name}{remedy}{meant}")
        return compare, bound, sure and self._confidence()

    def _confidence(self) -> bool:
        if not self._accept("with"):
            return False
        start = self.at
        if self._number() != 0.95:
            raise _Misread(start, "expected 95 %: a run's intervals are 95 % intervals")
        if not self._accept("confidence"):
            self._expected("confidence after with 95 %")
        return True

    def _number(self) -> float:
        if self.kind != "number":
            self._expected("a number such as 0.30, 30 % or 1/3")
        try:
            value = float(parse_number(self.token))
        except (ProtocolError, OverflowError):
            self._expected("a number such as 0.30, 30 % or 1/3")
        self._next()
        if self.token == "%":
            self._next()
            return value / 100
        return value

    def _string(self, more: str = "") -> str:
        if self.kind != "string":
            self._expected(f"a text in quotes{more}")
        inside = self.token[1:-1]
        if self.token[0] == '"':
            inside = re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
        if not inside.strip():
            self._expected("a text in quotes that is not empty")
        self._next()
        return inside

    def _metric(self, extra: tuple[str, ...] = ()) -> str:
        name = self.token
        if self.kind != "word":
            self._expected("a metric such as top1" + (f", or one of {', '.join(_starts())}" if extra else ""))
        if name not in extra and find_metric(name) is None:
            raise _Misread(self.at, _unknown_metric(name, (*extra, *(_starts() if extra else ()))))
        self._next()
        return name

    def _under(self) -> ConditionPattern | None:
        if not (self._accept("under") or self._accept("of")):
            return None
        if self.kind != "word":
            self._expected("a condition such as clean or pgd(eps=1/255)")
        start, text = self.at, self.token
        try:
            pattern = check_condition(text)
        except ProtocolError as fault:
            raise _Misread(start, str(fault)) from None
        self._next()
        return pattern

    def _accept(self, *words: str) -> bool:
        """Skip these words if they come next; return whether they did."""
        state = self.at, self.end, self.kind, self.token
        for word in words:
            if self.token != word or self.kind != "word":
                self.at, self.end, self.kind, self.token = state
                return False
            self._next()
        return True

    def _next(self) -> None:
        """Move to the next token; a word includes the parentheses behind it."""
        form = _TOKEN.match(self.text, self.end)
        if not form:
            rest = self.text[self.end :]
            self.at = self.end + len(rest) - len(rest.lstrip())
            if self.text[self.at : self.at + 1] in ('"', "'"):
                raise _Misread(self.at, "this quote is not closed; expected a matching closing quote")
            if self.at < len(self.text):
                raise _Misread(self.at, f"{self.text[self.at]!r} is not valid here; expected words, numbers, quotes")
            self.kind, self.token = "", ""
            return
        self.kind = str(form.lastgroup)
        self.at, self.end = form.start(self.kind), form.end()
        if self.kind == "word" and self.text[self.end : self.end + 1] == "(":
            self.end = self._closing()
        self.token = self.text[self.at : self.end]

    def _closing(self) -> int:
        depth = 0
        for place in range(self.end, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[place], 0)
            if depth == 0:
                return place + 1
        raise _Misread(self.end, "this parenthesis is not closed; expected a closing )")

    def _expected(self, what: str) -> NoReturn:
        raise _Misread(self.at, f"expected {what}, found {repr(self.token) if self.kind else 'the end'}")


def _unknown_metric(name: str, instead: Iterable[str]) -> str:
    """Return a message with the metrics nearest to an unknown one: by what people call them, else by spelling."""
    asked, every = plain(name), metrics()
    called = {key: set(map(plain, _names(metric))) for key, metric in every.items()}
    same = [key for key, words in called.items() if asked in words]
    words = {word: key for key, own in reversed(called.items()) for word in own} | {plain(key): key for key in instead}
    close = [words[word] for word in difflib.get_close_matches(asked, words, n=2 * _SUGGESTED)]
    first, *more = [*dict.fromkeys((*same, *close))][:_SUGGESTED] or [""]
    others = f" others: {', '.join(more)}" if more else ""
    guess = f"; did you mean {first!r}?{others}" if first else ""
    return f"unknown metric {name!r}{guess or '; expected one such as top1'} (a run's metrics are in its summary.csv)"


def _names(metric: Metric) -> Iterator[str]:
    yield from (metric.name, metric.word, metric.noun, *(metric.hub or ()), *metric.also)


@dataclass(frozen=True)
class Rule:
    """A rule. checkpoint: a name or a pattern such as `vit-*`. method: of methods instead, whose figure is the mean
    over trainings. severity: `error`, or `warning`, which fails no gate."""

    require: str
    statement: Statement
    name: str = ""
    checkpoint: str = "*"
    severity: str = "error"
    method: str = ""
    place: str = ""
    line: int = 0


@dataclass(frozen=True)
class Policy:
    """The rules of a file. undecided: `fail` or `pass`, for rules with too few samples. mid_p: whether changes of right
    and wrong have the interval of mid-p. digest: the file's SHA-256 (hex)."""

    path: str
    rules: tuple[Rule, ...]
    undecided: str = "fail"
    mid_p: bool = False
    digest: str = ""


def read_policy(path: Path) -> Policy:
    """Return the rules of a TOML file. Raises ProtocolError, with line and column, where it is not understood."""
    try:
        content = bytes_of(path, TEXT)
    except OSError as fault:
        remedy = f"write one from a run with robustkit check RUN --init --policy {path}"
        raise ProtocolError(f"policy {path}: {reason_of(fault)}; {remedy}") from None
    policy = parse_policy(content.decode("utf-8-sig", errors="replace"), str(path))
    return replace(policy, digest=hashlib.sha256(content).hexdigest())


@plugin_session()
def parse_policy(text: str, where: str) -> Policy:
    """Return the rules of a text; `where` names the file in messages. Raises ProtocolError as `read_policy` does."""
    text = text.replace("\r\n", "\n")
    try:
        table = parse_toml(text, where, ProtocolError)
    except ProtocolError as fault:
        line, column = _position(text, len(text))
        ended = f"(at line {line}, column {column}, the end of the document)"
        raise ProtocolError(str(fault).replace("(at end of document)", ended)) from None
    except RecursionError:
        raise ProtocolError(f"{where}: tables nested too deeply; expected [[rule]] tables with require") from None
    for key in table:
        if key not in (fields := ("rule", "undecided", "mid_p")):
            raise ProtocolError(f"{where}{_line_of(text, key)}: " + unknown("field", key, fields))
    if (undecided := table.get("undecided", "fail")) not in ("fail", "pass"):
        place = _line_of(text, "undecided")
        raise ProtocolError(f"{where}{place}: undecided {undecided!r}; expected fail or pass")
    if not isinstance(mid_p := table.get("mid_p", False), bool):
        raise ProtocolError(f"{where}{_line_of(text, 'mid_p')}: mid_p {mid_p!r}; expected true or false")
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        raise ProtocolError(f"{where}: no rules, so nothing would be checked; expected [[rule]] with require = '…'")
    for count, rule in enumerate(rules, start=1):
        if "require" not in rule:
            raise ProtocolError(f"{where}: rule {count} has no require; expected one such as 'top1 under clean >= 0.7'")
    read = tuple(_rule(rule, *spot, where) for rule, spot in zip(rules, _spots(text), strict=True))
    return Policy(where, read, undecided, mid_p)


def _rule(table: Mapping[str, Any], line: int, place: Callable[[int, int], str], where: str) -> Rule:
    fields, severities = ("require", "name", "checkpoint", "method", "severity"), ("error", "warning")
    here = f"rule at line {line}"
    for key, value in table.items():
        if key not in fields:
            raise ProtocolError(f"{where}: {here}: " + unknown("field", key, fields))
        if not isinstance(value, str) or not value.strip():
            raise ProtocolError(f"{where}: {here}: {key} is {value!r}; expected a text in quotes")
        if key == "severity" and value not in severities:
            raise ProtocolError(f"{where}: {here}: " + unknown(key, value, severities))
    text = table["require"]
    statement = parse_statement(text, lambda offset: f"{where}: {place(offset, len(text))}")
    by_slice = isinstance(statement, Value) and statement.by
    of_pairs = isinstance(statement, Change) and statement.metric in metrics_of_pairs()
    if "method" in table and ("checkpoint" in table or by_slice or of_pairs):
        what = "slices are of checkpoints" if by_slice else "it has a checkpoint, too"
        what = "predictions that change are of checkpoints" if of_pairs else what
        raise ProtocolError(f"{where}: {here}: method {table['method']!r}: {what}; leave one out")
    options = {key: value for key, value in table.items() if key != "require"}
    name = " ".join(options.pop("name", text).split())
    return Rule(" ".join(text.split()), statement, name, place=place(0, len(text)), line=line, **options)


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


_TOML = re.compile(
    r"#[^\n]*|\"\"\"(?:\\.|[^\\])*?\"{3,5}|'''.*?'{3,5}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|[\w-]+|[^\s]", re.DOTALL
)


def _spots(text: str) -> Iterator[tuple[int, Callable[[int, int], str]]]:
    """Yield for each `require` of a TOML text its line, and a function that locates a character of its value."""
    before = ["", ""]
    for match in _TOML.finditer(text):
        token = match[0]
        if token.startswith("#"):
            continue
        if before[1] == "=" and before[0].strip("\"'") == "require":
            yield _position(text, match.start())[0], partial(_place, text, match.start(), _offsets(token))
        before = [before[1], token]


def _place(text: str, start: int, offsets: Sequence[int], offset: int, length: int) -> str:
    exact = len(offsets) == length + 1  # else an escape that is not counted here
    line, column = _position(text, start + (offsets[min(offset, length)] if exact else 0))
    return f"line {line}, column {column}"


def _offsets(token: str) -> list[int]:
    """Return the offset at which each character of a TOML string begins, and that of its end."""
    quotes = 3 if token[:3] in ('"""', "'''") else 1
    place, end, offsets = quotes, len(token) - quotes, []
    if quotes == 3 and token[place : place + 1] == "\n":
        place += 1
    while place < end:
        step = 1
        if token[0] == '"' and token[place] == "\\":
            folded = re.match(r"\\[ \t]*\n\s*", token[place:end])
            if folded:
                place += folded.end()
                continue
            step = {"u": 6, "U": 10, "x": 4}.get(token[place + 1], 2)
        offsets.append(place)
        place += step
    return [*offsets, end]


def _line_of(text: str, key: str) -> str:
    """Return `: line 3, column 1` of a key at the top of a TOML text; empty where it is not found."""
    match = re.search(rf"^[ \t\[\"']*{re.escape(key)}(?=[\s=.\]\"'])", text, re.MULTILINE)
    if not match:
        return ""
    line, column = _position(text, match.start() + len(match[0]) - len(key))
    return f": line {line}, column {column}"
