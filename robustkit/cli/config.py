"""Read options from a TOML file (--config), and refuse what an untrusted one must not do."""

from __future__ import annotations

from pathlib import Path

import click

from ..common.files import TEXT, reason, text_of
from ..errors import ProtocolError, unknown
from .option_types import Place

_CONFIG = "robustkit.config"


def use_config(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make the entries of a TOML file the defaults of the options: top level, then the command's own table."""
    if path is None:
        return
    from ..common.files import parse_toml

    try:
        text = text_of(Path(path), TEXT, errors="replace")
    except OSError as fault:
        raise ProtocolError(f"--config {path}: {reason(fault)}; give a TOML file of options") from None
    table = parse_toml(text, path, ProtocolError)
    of_command = table.pop(str(context.info_name), {})
    if not isinstance(of_command, dict):
        raise ProtocolError(f"--config {path}: {context.info_name} is {of_command!r}; expected a table of its options")
    entries = {k: v for k, v in table.items() if not isinstance(v, dict)} | of_command
    parameters = {parameter.name: parameter for parameter in context.command.params}
    for name in ("config", "trust_config", "debug"):
        parameters.pop(name, None)
    commands = (
        context.parent.command.commands if context.parent and isinstance(context.parent.command, click.Group) else {}
    )
    for name in (name for name, value in table.items() if isinstance(value, dict) and name not in commands):
        raise ProtocolError(f"--config {path}: " + unknown("table", name, commands))
    for key in entries:
        if key.replace("-", "_") not in parameters:
            options = (str(name).replace("_", "-") for name in parameters)
            raise ProtocolError(f"--config {path}: " + unknown("option", key, options))
    named = {key.replace("-", "_"): value for key, value in entries.items()}
    context.default_map = {
        name: ",".join(map(str, value)) if isinstance(value, list) and not parameters[name].multiple else value
        for name, value in named.items()
    }
    context.meta[_CONFIG] = path


def check_trust(context: click.Context, parameter: click.Parameter, trusted: bool) -> None:
    """Refuse what an untrusted --config could do besides choosing options: run code, write elsewhere, send results
    away.

    Not eager, so that it comes after --config, wherever the two stand.
    """
    path = context.meta.get(_CONFIG)
    if path is None or trusted:
        return
    here = Path.cwd().resolve()
    for key, value in (context.default_map or {}).items():
        values = [str(part) for part in value] if isinstance(value, list) else [str(value)]
        parameter_type = next(part.type for part in context.command.params if part.name == key)
        written = isinstance(parameter_type, Place) and parameter_type.writes
        written = written and (key != "policy" or bool(context.params.get("init")))  # which is read, else
        if written and any(not (here / part).resolve().is_relative_to(here) for part in values):
            what = "writes outside the folder where you are"
        elif key == "plugin" or (key == "arch" and any(":" in part for part in values)):
            what = "names code to run"
        elif key == "ray" and ":" in values[0]:
            what = "names a cluster, which may run code here"
        elif key == "logs":
            what = "sends results away"
        else:
            continue
        name = max(next(part.opts for part in context.command.params if part.name == key), key=len)
        given = context.get_parameter_source(key)
        if given not in (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT):
            raise ProtocolError(
                f"--config {path} {what} ({key} = {', '.join(values)[:80]!r}); give {name} yourself, or --trust-config "
                "where you know who wrote the file"
            )


def load_plugins(context: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> None:
    """Execute files of plug-ins. Not eager: files that a --config names run only after --trust-config was checked."""
    from ..common.plugins import load_plugin

    for file in files:
        load_plugin(file)
