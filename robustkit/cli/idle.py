"""Refuse options that would do nothing together with the others, instead of ignoring them silently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ..errors import ProtocolError
from .arguments import MODEL_KEYS

PICTURE_KEYS = (*MODEL_KEYS, "arguments", "targets", "cams", "device", "out", "save_maps", "quiet", "config", "debug")
"""The options that `robustkit cam` takes for a user's own pictures."""
GATE_VALUES = ("policy", "baseline", "junit", "json_file", "attestation", "predicate")
GATE_ALONE = ("verify_attestation", "allow_warned", "init", "every")
GATE = (*GATE_VALUES, *GATE_ALONE, "details")
"""The options of `robustkit check` that are about verdicts: those with a value, and those that audit nothing."""
_GENERAL = ("runs", "until_decided", "config", "trust_config", "debug", "plugin")
_MAP_KEYS = ("stability", "faithfulness", "keep_misclassified")
_TRUTH_KEYS = ("boxes", "masks")
_ATTACK_KEYS = ("eps", "norm", "engine")
_CORRUPTION_KEYS = ("constants", "variant", "frost_dir")


def _typed(wanted: Callable[[str], bool]) -> list[str]:
    """Return the wanted options that are on the command line (not from the environment or a file), as written."""
    context = click.get_current_context(silent=True)  # none in a call from Python
    typed = click.core.ParameterSource.COMMANDLINE
    return [
        max(parameter.opts, key=len)
        for parameter in (context.command.params if context else ())
        if wanted(name := str(parameter.name)) and context and context.get_parameter_source(name) is typed
    ]


def refuse_for_pictures() -> None:
    """Raise ProtocolError for an option of the command line that does nothing for a user's own pictures."""
    if given := _typed(lambda name: name not in PICTURE_KEYS):
        raise ProtocolError(
            f"{', '.join(given)}: only for a data set, and pictures of your own are given; leave out, or give "
            "--data-dir in place of the pictures"
        )


def refuse_idle(names: Sequence[str], why: str) -> None:
    """Raise ProtocolError, with `why`, where one of these is on the command line, since it would do nothing."""
    if given := _typed(lambda name: name in names):
        raise ProtocolError(f"{', '.join(given)}: {why}")


def refuse_idle_parts(options: Mapping[str, Any]) -> None:
    """Raise ProtocolError for options on how to attack, corrupt or explain, where that is not done."""
    if options.get("attacks") == "none":
        refuse_idle(_ATTACK_KEYS, "only for attacks, and --attacks is none; name some, or leave it out")
    if options.get("corruptions") is None and options.get("corrupted_dir") is None:
        refuse_idle(_CORRUPTION_KEYS, "only for corruptions, and there are none; give --corruptions, or leave it out")
    if options.get("cams") is None:
        idle = _MAP_KEYS if options.get("region_noise") else (*_MAP_KEYS, *_TRUTH_KEYS)
        refuse_idle(idle, "only for maps, and there are none; give --cams, or leave it out")


def refuse_audit(runs: int) -> None:
    """Raise ProtocolError where options, or several arguments, mean something with --until-decided only."""
    every = [str(parameter.name) for parameter in click.get_current_context().command.params]
    others = [name for name in every if name not in (*GATE, *_GENERAL)]
    refuse_idle(others, "only with --until-decided; give that, or leave it out: a run says how it was computed")
    if runs != 1:
        raise ProtocolError(f"{runs} runs; expected one, or checkpoints with --until-decided")
