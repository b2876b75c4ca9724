"""Parse a rule's text into its statement, or report the column of what is not understood."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import ProtocolError, unknown
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
)

_STARTS = ("drop", "rise", "no flags", "n", *SUBJECTS)


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
        compare, bound, sure = self._bound(sure=metric != "n")
        if metric == "n" and bound != int(bound):
            raise _Misread(start, f"n is a whole number of samples; the bound is {bound:g}")
        return Value(metric, condition, compare, bound, sure)

    def _flags(self) -> NoFlags:
        if not self._accept("flags"):
            self._expected("flags after no")
        condition, excepted = self._under(), []
        if self._accept("except"):
            excepted.append(self._string())
            while self.token == ",":
                self._next()
                excepted.append(self._string())
        return NoFlags(condition, tuple(excepted))

    def _change(self) -> Change:
        falls, metric, condition = self.token == "drop", "", None
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
        return Change(falls, metric, condition, *self._bound())

    def _bound(self, sure: bool = True) -> tuple[str, float, bool]:
        if self.token not in (">=", "<=", ">", "<"):
            self._expected("one of >=, <=, >, <")
        compare = self.token
        self._next()
        bound = self._number()
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
            names = dict.fromkeys((*metrics(), *extra, *(_STARTS if extra else ())))
            raise _Misread(self.at, unknown("metric", name, names))
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
