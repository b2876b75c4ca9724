"""What the words of a report mean: those of a task, of families of evaluations, and of statistics."""

from __future__ import annotations

from ..evaluations.kinds import vocabularies
from ..evaluations.supported import TERMS as OF_SUPPORT
from ..evaluations.term import Term
from ..protocol.card import Samples
from .task import Task


def _statistics(samples: Samples) -> tuple[Term, ...]:
    one, many = samples
    return (
        *OF_SUPPORT,
        Term(
            "95 %",
            f"In brackets stands the 95 % interval: from other {many} of the same kind, 95 of 100 such intervals hold "
            f"the true value. Of shares of {many} it is Wilson's; of other figures it comes from resampling the {many}."
            " Of a difference it agrees with the test.",
            ("95 % intervals", "Wilson's 95 % intervals"),
        ),
        Term("n", f"The number of {many} that a figure is of."),
        Term(
            "p",
            "The probability of a difference at least this large between two checkpoints that are equally good.",
            ("p-values", "p-value"),
        ),
        Term(
            "Holm",
            "Holm's correction: among many comparisons some are small by chance, so each p-value is raised until the "
            "probability of even one false alarm among all tests is at most 5 %.",
            ("p (Holm)", "Holm's"),
        ),
        Term(
            "McNemar's exact test",
            f"It looks at the {many} that only one of two checkpoints predicts right: of checkpoints that are equally "
            "good, each should be the right one on half of them.",
        ),
        Term("paired", f"Both checkpoints are compared on the same {many}, {one} by {one}.", (f"paired by {one}",)),
        Term(
            "cannot tell",
            f"The {many} are too few to say which checkpoint is better. It does not mean that they are equally good.",
            ("Cannot tell",),
        ),
        Term(
            "points",
            "Differences of percentages: from 60 % to 50 % are 10 points.",
        ),
        Term(
            "protocol card",
            "The file that fixes every parameter of the evaluation, with a version and a digest. Figures under "
            "different cards answer different questions.",
            ("Protocol card", "protocol"),
        ),
    )


def glossary(task: Task) -> tuple[Term, ...]:
    """Return the terms of a task's reports; of two with the same name the first: the task's, then families'."""
    every = (*task.terms, *(term for words in vocabularies() for term in words.terms), *_statistics(task.samples))
    return tuple({term.name: term for term in reversed(every)}.values())[::-1]
