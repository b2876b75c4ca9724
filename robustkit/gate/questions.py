"""Which rules of a policy can be decided while samples come, and what has to be computed for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..common.betting import SequentialTest
from ..errors import ProtocolError, RunError
from ..evaluations.kinds import by_words, vocabulary_of, words_of
from ..evaluations.pattern import fits, is_exactly, pattern_of
from ..protocol.condition import Condition
from ..results.paired import Side, lacking, same_identity
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..tasks.measures import find_metric
from ..tasks.task import Task, task_of
from .measured import CannotTell, apart
from .policy import Policy, Rule
from .sequential import Question, Trial, bounded
from .statements import Change, Identity, NoFlags, Statement, Value
from .verdicts import SAME, matching, out_of_reach

ERROR = 0.05
"""The most that the probability may be of a wrong verdict, of all rules together."""

_APART = "\n"  # between conditions, whose texts hold commas

Figures = Callable[[str, str, str, Sequence[str]], Mapping[str, float]]
"""The figure of each sample, by its id: of a checkpoint, a condition and a metric, with the differences that a rule
accepts.
"""


_OPTIONS = ("--attacks", "--corruptions", "--evaluations")
_DEFINITIONS = ("--constants", "--variant")


def options_asked(policy: Policy) -> dict[str, str]:
    """Return the options of an audit that evaluates what the rules of a policy are about, each with its value.

    Raises:
        ProtocolError: a rule cannot be decided while samples come, or none needs samples.
    """
    asked = dict.fromkeys(_OPTIONS, "")
    wanted = False
    for rule in policy.rules:
        if why := _why_not(rule.statement):
            raise _refused(policy, rule, why)
        pattern = None if isinstance(rule.statement, Identity) else bounded(rule).condition
        if pattern is None:
            continue
        wanted = True
        words = [*vocabulary_of(pattern.name).command(pattern, pattern_of)]
        given = dict(zip(words[::2], words[1::2], strict=False))
        if strange := [word for word in words if word.startswith("--") and word not in (*_OPTIONS, *_DEFINITIONS)]:
            why = f"{pattern.text} needs {strange[0]}, which --until-decided does not know"
            raise _refused(policy, rule, f"{why}; leave it out, or audit and check without --until-decided")
        for option, value in given.items():
            before = asked.get(option, "")
            if option in _DEFINITIONS and before not in ("", value):
                raise _refused(policy, rule, f"it takes {option} {value}, and another rule {before}; choose one")
            parts = {} if option in _DEFINITIONS else dict.fromkeys(filter(None, before.split(_APART)))
            asked[option] = _APART.join({**parts, value: None} if value != "none" else parts)
    if not wanted:
        raise ProtocolError(
            f"{policy.path}: no rule needs samples, so nothing is to be decided; expected one such as "
            "'top1 under clean >= 0.7'"
        )
    asked["--attacks"] = asked["--attacks"] or "none"
    return {option: value.replace(_APART, ",") for option, value in asked.items() if value}


def _why_not(statement: Statement) -> str:
    """Return why a rule cannot be decided while samples come, and what to do; empty where it can be."""
    whole = "leave it out, or audit and check without --until-decided"
    if isinstance(statement, Identity):
        return ""
    if isinstance(statement, NoFlags):
        return f"flags are of whole results; {whole}"
    if isinstance(statement, Change) and statement.condition is None:
        return "it is about every condition of the baseline; name one: drop in top1 under CONDITION against baseline"
    if statement.metric == "n":
        return f"how many samples are evaluated follows from the other rules; {whole}"
    metric = find_metric(statement.metric) if statement.metric else None
    if metric is not None and not metric.paired:
        return f"{statement.metric} is no mean over samples, as top1 is; {whole}"
    if metric is not None and not (metric.binary or metric.share):
        return f"{statement.metric} of a sample is not between 0 and 1, as top1 is; {whole}"
    low = 0 if isinstance(statement, Value) else -1
    if not low < statement.bound < 1:
        return f"the bound is {statement.bound:g}; expected one between {low} and 1, both left out"
    return ""


def trial_of(
    policy: Policy, names: Sequence[str], conditions: Sequence[Condition], task: Task, baseline: Figures | None
) -> Trial:
    """Return what samples are to decide. The error is shared among the rules, once for each checkpoint.

    names, conditions: of the run.

    Raises:
        ProtocolError: a rule fits no checkpoint, several conditions, or a condition that needs all samples.
    """
    found = list[tuple[Rule, str, str, tuple[str, ...], str]]()
    for rule in policy.rules:
        chosen = matching(rule.checkpoint, names)
        if not chosen:
            raise _refused(policy, rule, f"no checkpoint is called {rule.checkpoint}; there are {', '.join(names)}")
        if isinstance(rule.statement, Value | Change):
            metric = rule.statement.metric or task.headline
            figure = metric, *_figure(policy, rule, metric, conditions, task)
            found += ((rule, *figure, name) for name in chosen)
        if isinstance(rule.statement, Change) and baseline is None:
            raise _refused(policy, rule, "there is no baseline; give its run folder with --baseline")
    error, questions = ERROR / len(found), list[Question]()
    for rule, metric, text, needs, name in found:
        bound, before = bounded(rule).bound, None
        if isinstance(rule.statement, Change) and baseline is not None:
            bound, before = (bound + 1) / 2, baseline(name, text, metric, rule.statement.excepted)
            mean = sum(before.values()) / max(len(before), 1)
            if why := out_of_reach(rule.statement, mean, metric):
                raise _refused(policy, rule, why)
        questions.append(Question(rule, name, text, metric, needs, before, SequentialTest(bound, error)))
    return Trial(policy, tuple(questions))


def _figure(
    policy: Policy, rule: Rule, metric: str, conditions: Sequence[Condition], task: Task
) -> tuple[str, tuple[str, ...]]:
    """Return the condition that a rule means, in full, and the conditions whose records its figure needs."""
    by_text, wanted = {condition.text: condition for condition in conditions}, bounded(rule).condition
    assert wanted is not None
    means = [mean for words, texts in by_words(by_text) for mean in words.means(texts)]
    fitting = [text for text in dict.fromkeys((*by_text, *means)) if fits(wanted, text)]
    exact = [text for text in fitting if is_exactly(wanted, text)] or fitting
    if len(exact) != 1:
        several = f"{wanted.text} may be {' or '.join(exact)}; write one of them in full"
        raise _refused(policy, rule, several if exact else f"{wanted.text} is no condition of this audit")
    text, words = exact[0], words_of(exact[0])
    own = [number.name for number in words.metrics if number.paired]
    early = text in by_text and by_text[text].early_stop
    if early and metric in task.paired and metric not in task.compared.ended:
        why = f"samples leave {text} at their first wrong prediction, so {metric} has no meaning there"
        raise _refused(policy, rule, f"{why}; ask for {', '.join(task.compared.ended)}")
    if metric not in [*own, *(task.paired if text in by_text else ())]:
        raise _refused(
            policy, rule, f"{metric} under {text} is no mean over samples; ask for {', '.join(own) or 'top1'}"
        )
    needs = words.needs(text, metric, [*by_text])
    for need in needs:
        if need not in by_text or by_text[need].waits or by_text[need].on:
            raise _refused(policy, rule, f"{need} takes a choice of all samples; ask for one that takes each of them")
    return text, tuple(needs)


def baseline_of(run: RunFolder, planned: Manifest) -> Figures:
    """Return the figures of a baseline. planned: the run that is compared with it.

    What is returned raises RunError where the two cannot be paired, are of one checkpoint, or records are missing.
    """
    manifest, takes = run.manifest, planned.corrupted.digests

    def figures(name: str, condition: str, metric: str, excepted: Sequence[str] = ()) -> Mapping[str, float]:
        other = name if name in manifest.names else manifest.names[0]
        if other != name and len(manifest.names) > 1:
            raise RunError(
                f"{run.path}: the baseline has no {name}; it has {', '.join(manifest.names)}; name the rule's "
                "checkpoint as one of them, or give a baseline of one checkpoint"
            )
        side, subject = Side(run, other), planned.checkpoint(name)
        try:
            apart((manifest, side.described), (planned, subject), excepted)
        except CannotTell as why:
            raise RunError(f"{run.path}: {why}") from None
        if same_identity(side.described, subject):
            raise RunError(f"{run.path}: {SAME}")
        for text in words_of(condition).needs(condition, metric, manifest.conditions):
            if text not in manifest.conditions:
                raise RunError(f"{run.path}: the baseline has no {text}; audit it under that, too")
            if manifest.corrupted.digests.get(text) != takes.get(text):
                raise RunError(f"{run.path}: the runs cannot be paired: {text} reads other files there")
        if gone := lacking(side, condition, metric):
            raise RunError(f"{run.path}: the baseline is {gone}")
        ids, values = task_of(manifest).per_sample(side, condition, metric)
        return dict(zip(ids.to_pylist(), values.tolist(), strict=True))

    return figures


def _refused(policy: Policy, rule: Rule, why: str) -> ProtocolError:
    return ProtocolError(f"{policy.path}: {rule.place}: {rule.require!r} cannot be decided while samples come: {why}")
