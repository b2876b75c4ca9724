"""Every error that RobustKit raises on purpose.

A message is one line that names the value, what was expected, and the remedy. The command line prints it and exits
with `exit_code`; a traceback appears only with `--debug`.

    RobustkitError
    ├── CheckpointError     the file is not a checkpoint that can be read safely, or does not fit the architecture
    ├── ModelError          no such model, architecture or attention formula
    ├── DataError           no such data set, label, sample or layout
    │   └── BadImageError   one image that cannot be read; a run skips and counts it
    ├── ProtocolError       a card, condition or parameter that is not understood
    ├── PluginError         a plug-in that cannot be imported or used
    ├── RunError            a run folder that cannot be written, read or mixed with this command
    │   └── DamagedRecord   one of its records is not what was written
    ├── GateFailed          a run was checked against a policy, and some rule fails or is undecided
    └── NothingEvaluated    the command was fine, but no sample was left to evaluate
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable


class RobustkitWarning(UserWarning):
    """What a user of the Python interface has to know: an assumption, or a flag that a run raised."""


def warn(text: str) -> None:
    """Raise a RobustkitWarning at the line of the caller outside of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("robustkit", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RobustkitWarning, stacklevel=level)


class RobustkitError(Exception):
    """Base of all errors below."""

    exit_code = 2


class CheckpointError(RobustkitError):
    """A checkpoint cannot be read safely or does not fit its architecture."""


class ModelError(RobustkitError):
    """A model, architecture or attention formula is unknown or unusable."""


class DataError(RobustkitError):
    """A data set, label file or sample is unusable."""


class BadImageError(DataError):
    """One image cannot be read."""


class ProtocolError(RobustkitError):
    """A protocol card, condition or parameter is not understood."""


class PluginError(RobustkitError):
    """A plug-in cannot be imported or used."""


class RunError(RobustkitError):
    """A run folder cannot be written, read, or mixed with this command."""


class GateFailed(RobustkitError):  # noqa: N818 - an outcome rather than a fault
    """A run does not meet its policy."""

    exit_code = 1


class DamagedRecord(RunError):  # noqa: N818 - what it is
    """A record is not what was written, or cannot be read."""


class NothingEvaluated(RobustkitError):  # noqa: N818 - an outcome rather than a fault
    """No sample was evaluated."""

    exit_code = 3


def unknown(kind: str, name: object, names: Iterable[str], *, remedy: str = "") -> str:
    """One line for an unknown name: `unknown attack 'pgdd'; did you mean 'pgd'? known: fgsm, pgd, spsa`."""
    choices = sorted(names)
    close = difflib.get_close_matches(str(name), choices, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    known = f"{guess} known: {', '.join(choices)}" if choices else "; there is none"
    return f"unknown {kind} {str(name)!r}{known}" + (f"; {remedy}" if remedy else "")
