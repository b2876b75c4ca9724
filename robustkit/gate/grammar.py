"""Parse a rule's text into its statement, or report the column of what is not understood."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import ProtocolError
from ..evaluations.metric import Metric
from ..evaluations.pattern import check_condition, pattern_of
from ..protocol.card import number
from ..protocol.pattern import ConditionPattern
from ..tasks.measures import find_metric, metrics
from .statements import (
    SUBJECTS,
    Change,
    Identity,
    NoFlags,
    Statement,
    Value,
    always_meets,
)

_STARTS = ("drop", "rise", "no flags", "n", *SUBJECTS)
OF_EVERY_SETUP = (
    *("were assumed: not confirmed on", "was assumed: not confirmed on", "were assumed: not checked, "),
    *("was assumed: not checked, ", "was assumed and does not fit: ", " fits better than ", " nats ["),
    *(" images; give --", "; give --attention ", " if that is right; robustkit inspect checkpoint --data-dir dir"),
    *("as good, as far as these images tell: ", "the order of classes was assumed: "),
)
"""What flags of a set-up have in common (`evaluations.setup_flags`): as exceptions these would excuse each of them."""
FEWEST = 6
"""Letters and digits of what is excepted: fewer are part of nearly every line."""
_SUGGESTED = 5  # metrics that a message names


def parse_statement(text: str, at: Callable[[int], str] = lambda offset: f"column {offset + 1}") -> Statement:
    """Return what a rule requires.

    at: the place of a character of the text, for messages.

    Raises:
        ProtocolError: it is not understood.
    """
    try:
        return _Reader(text).statement()
    except _Misread as fault:
        raise ProtocolError(f"{at(fault.offset)}: {fault}") from None


class _Misread(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z][\w-]*)|(?P<compare>[<>=!]=?)|(?P<string>\"(?:\\.|[^\"\\])*\"|'[^']*')"
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
            self._expected("the end of the rule" + ("" if self._ends_sure(statement) else " or 'with 95 % confidence'"))
        return statement

    def _statement(self) -> Statement:
        start = self.at
        if self._accept("no"):
            return self._flags()
        if self.token in ("drop", "rise"):
            return self._change()
        for subject in SUBJECTS:
            if self._accept(*subject.split()):
                if self.token != "==":
                    self._expected(f"== and a text in quotes after {subject}")
                self._next()
                return Identity(subject, self._string())
        metric = self._metric(extra=("n",))
        condition = self._under()
        if condition is None:
            definition = find_metric(metric)
            if definition is None or not definition.under:
                raise _Misread(self.at, f"expected under CONDITION, such as {metric} under clean, {self._found}")
            condition = pattern_of(definition.under)
        if metric == "n":
            compare, bound, sure = self._bound(None, (0.0, math.inf), sure=False)
            if bound != int(bound):
                raise _Misread(start, f"n is a whole number of samples; the bound is {bound:g}")
        else:
            definition = find_metric(metric)
            assert definition is not None
            compare, bound, sure = self._bound(definition, definition.ends)
        return Value(metric, condition, compare, bound, sure)

    def _flags(self) -> NoFlags:
        if not self._accept("flags"):
            self._expected("flags after no")
        return NoFlags(self._under(), self._excepted("flag"))

    def _excepted(self, what: str) -> tuple[str, ...]:
        """Return the texts after `except`, if it comes next. what: the kind of line that they are parts of."""
        excepted = list[str]()
        while self._accept("except") if not excepted else self.token == ",":
            if excepted:
                self._next()
            start = self.at
            excepted.append(self._string())
            if sum(map(str.isalnum, excepted[-1])) < FEWEST:
                raise _Misread(
                    start,
                    f"{excepted[-1]!r} is part of nearly every {what}, so that the rule could not fail; expected a "
                    f"longer part of the {what} that is meant, of {FEWEST} letters or more",
                )
            if what == "flag" and any(excepted[-1].strip().lower() in phrase for phrase in OF_EVERY_SETUP):
                raise _Misread(
                    start,
                    f"{excepted[-1]!r} is part of every flag of a set-up that was guessed, so that the rule could not "
                    "fail; expected the part, such as 'attention (standard) was assumed'",
                )
        return tuple(excepted)

    def _change(self) -> Change:
        falls, metric, condition = self.token == "drop", "", None
        definition = find_metric("top1")
        self._next()
        if self._accept("in"):
            start, metric = self.at, self._metric()
            definition = find_metric(metric)
            if definition is None or not definition.paired:
                paired = [name for name, entry in metrics().items() if entry.paired]
                raise _Misread(
                    start, f"{metric} of two runs cannot be paired by sample; expected one of {_list(tuple(paired))}"
                )
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

    def _bound(
        self, metric: Metric | None, ends: tuple[float, float], of: str = "", sure: bool = True
    ) -> tuple[str, float, bool]:
        """Return a comparison, its bound, and whether confidence is asked for.

        metric: None for n. ends: what no figure is below or above. of: what the figure is, if not the metric itself.
        """
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
            end = ends[0] if compare.startswith(">") else ends[1]
            never = f"no {name} is {'below' if compare.startswith('>') else 'above'} {_as(metric, end)}"
            raise _Misread(at, f"no run can fail this rule: {never}{remedy or '; give a bound that a run can miss'}")
        if percent and abs(bound) > 1:
            meant = f", or {100 * bound:g} % if that is meant" if ends[0] <= bound <= ends[1] else ""
            raise _Misread(at, f"{written} is {100 * bound:g} % of {name}{remedy}{meant}")
        return compare, bound, sure and self._confidence()

    def _confidence(self) -> bool:
        if not self._accept("with"):
            return False
        start = self.at
        if self._number() != 0.95:
            raise _Misread(start, "expected 95 %: the intervals of a run are of 95 %")
        if not self._accept("confidence"):
            self._expected("confidence after with 95 %")
        return True

    def _number(self) -> float:
        if self.kind != "number":
            self._expected("a number such as 0.30, 30 % or 1/3")
        try:
            value = float(number(self.token))
        except (ProtocolError, OverflowError):
            self._expected("a number such as 0.30, 30 % or 1/3")
        self._next()
        if self.token == "%":
            self._next()
            return value / 100
        return value

    def _string(self) -> str:
        if self.kind != "string":
            self._expected("a text in quotes")
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
            self._expected(f"a metric such as top1, or one of {_list(_STARTS)}" if extra else "a metric such as top1")
        if name not in extra and find_metric(name) is None:
            raise _Misread(self.at, _unknown_metric(name, (*extra, *(_STARTS if extra else ()))))
        self._next()
        return name

    def _under(self) -> ConditionPattern | None:
        if not (self._accept("under") or self._accept("of")):
            return None
        if self.kind != "word":
            self._expected("a condition such as clean or pgd(eps=1/255)")
        start, text = self.at, self.token
        try:
            wanted = check_condition(text)
        except ProtocolError as fault:
            raise _Misread(start, str(fault)) from None
        self._next()
        return wanted

    def _accept(self, *words: str) -> bool:
        """Skip these words if they come next; return whether they did."""
        kept = self.at, self.end, self.kind, self.token
        for word in words:
            if self.token != word or self.kind != "word":
                self.at, self.end, self.kind, self.token = kept
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
                raise _Misread(self.at, "this quote is not closed; expected the same quote after it")
            if self.at < len(self.text):
                raise _Misread(self.at, f"{self.text[self.at]!r} has no meaning here; expected words, numbers, quotes")
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
        raise _Misread(self.end, "this parenthesis is not closed; expected ) after it")

    @property
    def _found(self) -> str:
        return f"found {self.token!r}" if self.kind else "found the end"

    def _expected(self, what: str) -> Any:
        raise _Misread(self.at, f"expected {what}, {self._found}")

    @staticmethod
    def _ends_sure(statement: Statement) -> bool:
        return not isinstance(statement, Value | Change) or statement.sure or getattr(statement, "metric", "") == "n"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _as(metric: Metric | None, value: float) -> str:
    """Return a value as rules write it."""
    return f"{100 * value:.4g} %" if metric and metric.scale == 100 else f"{value:.4g}"


def _unknown_metric(name: str, others: Iterable[str]) -> str:
    """Return a message with the metrics nearest to an unknown one: by what people call them, else by spelling.

    others: what may stand in place of a metric.
    """
    asked, every = _plain(name), metrics()
    called = {key: {_plain(word) for word in _names(metric)} for key, metric in every.items()}
    same = [key for key, words in called.items() if asked in words]
    words = {word: key for key, own in reversed(called.items()) for word in own} | {_plain(key): key for key in others}
    close = [words[word] for word in difflib.get_close_matches(asked, words, n=2 * _SUGGESTED)]
    first, *more = [*dict.fromkeys((*same, *close))][:_SUGGESTED] or [""]
    guess = f"; did you mean {first!r}?{f' others: {_list(tuple(more))}' if more else ''}" if first else ""
    return f"unknown metric {name!r}{guess or '; expected one such as top1'} (a run's metrics are in its summary.csv)"


def _names(metric: Metric) -> Iterator[str]:
    """Yield what people may call a metric."""
    yield from (metric.name, metric.word, metric.noun, *(metric.hub or ()), *metric.also)


def _plain(text: str) -> str:
    """Return a name without case and signs, in which spellings of one name differ."""
    return "".join(filter(str.isalnum, text.lower()))
