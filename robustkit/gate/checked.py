"""Check a run against a policy: what `robustkit check` decides, and a notebook shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.metadata import Grouping
from ..display.html import as_html
from ..runs.folder import RunFolder
from . import output
from .policy import Policy, Rule, parse_statement, read_policy
from .verdicts import Outcome, Verdict, judge

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Checked:
    """The verdicts of a policy on a run. baseline: what rules about a drop compare with."""

    outcome: Outcome
    run: RunFolder
    baseline: RunFolder | None = None

    @property
    def passed(self) -> bool:
        """Whether no rule stops the gate."""
        return self.outcome.passed

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict of each rule for each checkpoint that it is about."""
        return self.outcome.verdicts

    def to_json(self) -> str:
        """Return what the file of `robustkit check --json` holds."""
        baseline = str(self.baseline.path) if self.baseline else None
        return output.to_json(self.outcome, str(self.run.path), baseline).decode()

    def to_frame(self) -> pd.DataFrame:
        """Return the verdicts of that file, a row for each."""
        import pandas as pd

        plain: dict[str, Any] = json.loads(self.to_json())
        return pd.DataFrame(plain["verdicts"])

    def __repr__(self) -> str:
        return f"Checked({str(self.run.path)!r}: {output.count_verdicts(self.outcome)})"

    def _repr_html_(self) -> str:
        urgent, passed = output.by_urgency(self.outcome)
        return as_html([output.verdict_table((*urgent, *passed))], [output.count_verdicts(self.outcome)])


def check(
    run: RunFolder | str | Path,
    policy: Policy | str | Path | Sequence[str],
    baseline: RunFolder | str | Path | None = None,
    groups: str | None = None,
    groups_from: str | None = None,
) -> Checked:
    r"""Check a run against a policy, from records only. It raises nothing where a rule fails: `passed` says so.

    Args:
        run: a run folder.
        policy: a TOML file of rules; or rules: one, such as `top1 under clean >= 60 %`, or a list.
        baseline: the run that rules about a drop compare with.
        groups: a column of the runs' metadata: samples of one value may resemble each other.
        groups_from: a regular expression that finds the group of a sample in its id.

    Returns:
        A verdict for each rule and checkpoint, and whether all pass.

    Raises:
        ProtocolError: a rule that is not understood.
        RunError: no run.
        NothingEvaluated: a run without results.

    Example:
        >>> checked = robustkit.check("runs/reference", "top1 under clean >= 60 %")
        >>> checked.passed, checked.to_frame().verdict.tolist()
        (True, ['pass'])
    """
    grouping = Grouping.of(groups, groups_from)
    opened = RunFolder.opened(run, grouping)
    before = None if baseline is None else RunFolder.opened(baseline, grouping)
    return Checked(judge(_policy_of(policy), opened, before), opened, before)


def _policy_of(policy: Policy | str | Path | Sequence[str]) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str | Path):
        is_file = isinstance(policy, Path) or " " not in policy or policy.endswith(".toml") or Path(policy).exists()
        if is_file:
            return read_policy(Path(policy))
        policy = [str(policy)]
    return Policy("policy", tuple(Rule(" ".join(rule.split()), parse_statement(rule), rule) for rule in policy))
