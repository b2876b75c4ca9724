"""Turn values of options into arguments, and refuse options that would do nothing together with the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ..common.options import options_of
from ..errors import ProtocolError
from ..pipeline.request import ClassifierOptions

R = TypeVar("R")


def names_of(group: type) -> tuple[str, ...]:
    """Return the names of the options of a group."""
    return tuple(each.name for each in options_of(group))


def request_of(kind: type[R], options: Mapping[str, Any]) -> R:
    """Return the request of a command. options: as click has them, of fields alone."""
    given = dict(options)
    for each in options_of(kind):
        if each.group is not None:
            given[each.name] = taken(kind, each.name, given)
        elif each.default is True:
            given[each.name] = not given.pop(f"no_{each.name}")
        elif each.read is not None:
            given[each.name] = each.read(given[each.name], each.name)
    return kind(**given)


def taken(kind: type, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the entries of a request's mapping out of `options`. Of a model those that were not given are left out."""
    group = next(each.group for each in options_of(kind) if each.name == name)
    assert group is not None
    entries = {each.name: options.pop(each.name) for each in options_of(group)}
    entries |= {each.name: each.read(entries[each.name], each.name) for each in options_of(group) if each.read}
    return {key: value for key, value in entries.items() if value is not None or name != "model"}


PICTURE_KEYS = (
    *names_of(ClassifierOptions),
    *("arguments", "targets", "cams", "device", "out", "save_maps", "quiet", "config", "debug"),
)
"""The options that `robustkit cam` takes for a user's own pictures."""
GATE_VALUES = ("policy", "baseline", "junit", "json_file", "attestation", "predicate")
GATE_ALONE = ("verify_attestation", "allow_warned", "init", "every")
GATE = (*GATE_VALUES, *GATE_ALONE, "details")
"""The options of `robustkit check` that are about verdicts: those with a value, and those that audit nothing."""
_GENERAL = ("runs", "until_decided", "config", "trust_config", "debug", "plugin")


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
        refuse_idle(("eps", "norm", "engine"), "only for attacks, and --attacks is none; name some, or leave it out")
    if options.get("corruptions") is None and options.get("corrupted_dir") is None:
        names = ("constants", "variant", "frost_dir")
        refuse_idle(names, "only for corruptions, and there are none; give --corruptions, or leave it out")
    if options.get("cams") is None:
        truth = () if options.get("region_noise") else ("boxes", "masks")
        names = ("stability", "faithfulness", "keep_misclassified", *truth)
        refuse_idle(names, "only for maps, and there are none; give --cams, or leave it out")


def refuse_audit(runs: int) -> None:
    """Raise ProtocolError where options, or several arguments, mean something with --until-decided only."""
    every = [str(parameter.name) for parameter in click.get_current_context().command.params]
    others = [name for name in every if name not in (*GATE, *_GENERAL)]
    refuse_idle(others, "only with --until-decided; give that, or leave it out: a run says how it was computed")
    if runs != 1:
        raise ProtocolError(f"{runs} runs; expected one, or checkpoints with --until-decided")
