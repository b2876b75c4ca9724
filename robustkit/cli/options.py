"""The options that commands share: their types, groups in --help, and --config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

import click

from ..common.files import TEXT, reason, text_of
from ..common.options import Option as RequestOption
from ..common.options import options_of
from ..common.plugins import declared
from ..errors import ProtocolError, unknown
from .commands import EVERY_COMMAND
from .completion import COMPLETERS
from .completion import checkpoints as completed_checkpoints


def _empty(param: click.Parameter | None) -> str:
    return f"it is empty; expected: {getattr(param, 'help', None) or 'a value'}"


class Whole(click.IntRange):
    name = "integer"


AT_LEAST_0, AT_LEAST_1 = Whole(min=0), Whole(min=1)


class Text(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is not empty: an empty one usually comes from an unset shell variable."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return str(value) if str(value).strip() else self.fail(_empty(param), param, ctx)


class Place(click.Path):
    """A path that is not empty, nor of blanks alone: Path("") is the current folder. writes: whether a command writes
    there, which an untrusted --config must not choose.
    """

    def __init__(self, *, writes: bool = False, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)
        self.writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if str(value).strip() else self.fail(_empty(param), param, ctx)


class BatchSize(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of samples, or `auto`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if value == "auto" else AT_LEAST_1.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}; expected a number of 1 or more, or auto.", param, ctx)


SECTIONS = {
    "": "Options",
    "Data": "Data",
    "Model": "Model and preprocessing",
    "Attacks": "Attacks",
    "Corruptions": "Corruptions",
    "Maps": "Maps and attention",
    "Run": "Run",
    "Output": "Output",
    "General": "General",
}
"""The heading of each section of options, in their order."""
SHORT = 12
"""The most options that are listed without headings."""


class Option(click.Option):
    """An option that knows under which heading it is listed."""

    def __init__(self, *names: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose --help lists its options under headings, if they are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        every = [(getattr(param, "section", "General"), param.get_help_record(ctx)) for param in self.get_params(ctx)]
        listed = [(section, record) for section, record in every if record is not None]
        many = len(listed) > SHORT
        for name, heading in SECTIONS.items() if many else [("", "Options")]:
            if records := [record for section, record in listed if section == name or not many]:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=28)


class Commands(click.Group):
    """A group whose --help lists its commands under headings, each with a line that is never cut.

    It has the commands of plug-ins, too, which are loaded when they are run.
    """

    def __init__(self, sections: Mapping[str, Mapping[click.Command, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        EVERY_COMMAND.own = self.commands
        for commands in sections.values():
            for command, line in commands.items():
                command.short_help = line
                self.add_command(command)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or None. Raises PluginError for one of a plug-in that cannot be used."""
        return EVERY_COMMAND.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {
            heading: [(str(command.name), line) for command, line in commands.items()]
            for heading, commands in self.sections.items()
        }
        if plugins := [(plugin.name, f"of {plugin.origin}") for plugin in declared("commands")]:
            listed["Plug-ins"] = plugins
        widest = max(len(name) for lines in listed.values() for name, _ in lines)
        for heading, lines in listed.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{widest}}", line) for name, line in lines])


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
    others = ("config", "trust_config", "debug")
    parameters = {parameter.name: parameter for parameter in context.command.params if parameter.name not in others}
    commands = EVERY_COMMAND if context.parent else ()
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


F = TypeVar("F", bound=Callable[..., Any])
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


def option(*names: str, section: str = "", **settings: Any) -> Callable[[F], F]:
    """Return a click option that can also come from ROBUSTKIT_<NAME>. section: its heading in --help, of `SECTIONS`."""
    long = next(name for name in names if name.startswith("--")).lstrip("-")
    if "type" not in settings and not settings.get("is_flag"):
        settings["type"] = Text()
    settings.setdefault("shell_complete", COMPLETERS.get(f"--{long}"))
    settings |= {"cls": Option, "section": section}
    return click.option(*names, envvar=f"ROBUSTKIT_{long.upper().replace('-', '_')}", show_envvar=False, **settings)


def group(options: list[Callable[[Any], Any]], section: str = "") -> Callable[[F], F]:
    """Return several options as one decorator, in the order in which --help lists them.

    section: the heading of those that have none of their own.
    """

    def decorate(function: F) -> F:
        there = len(getattr(function, "__click_params__", ()))
        for decorator in reversed(options):
            function = decorator(function)
        for param in getattr(function, "__click_params__", ())[there:]:
            if isinstance(param, Option):
                param.section = param.section or section
        return function

    return decorate


checkpoints_argument = click.argument(
    "checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", shell_complete=completed_checkpoints
)
quiet_option = option("--quiet", section="Run", is_flag=True, help="No progress on standard error.")


def images_option(what: str = "Folder, zip, or embedded:shapes.", required: bool = True) -> Callable[[F], F]:
    """Return the option that names the images. what: its help."""
    return option("--data-dir", section="Data", required=required, help=what)


common = group(
    [
        click.option("--config", is_eager=True, expose_value=False, callback=use_config, help="TOML file of options."),
        click.option(
            "--trust-config",
            is_flag=True,
            expose_value=False,
            callback=check_trust,
            help="Let --config name code to run, write outside this folder, send results away.",
        ),
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
        click.option(
            "--plugin",
            "plugin",
            type=Place(),
            multiple=True,
            expose_value=False,
            callback=load_plugins,
            help="Python file to execute, which brings plug-ins; may be repeated (robustkit list plugins).",
        ),
    ]
)


def constants_instead(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Refuse a preset where there is none: the option of this name chose the constants of corruptions once."""
    if value is not None:
        raise ProtocolError(f"--preset {value}: the constants of corruptions are chosen by --constants {value}")


_TYPES: dict[object, Any] = {
    "int": AT_LEAST_0,
    "int | None": AT_LEAST_1,
    "float | None": float,
    "int | Literal['auto'] | None": BatchSize(),
    Path: Place(),
    "output": Place(writes=True),
}
"""The types of options by the type that a request names, or the annotation."""


def request_options(kind: type, *names: str, without: Iterable[str] = ()) -> Callable[[F], F]:
    """Return the options of a request's fields: those of some names, else all without some names or headings."""
    by_name = {each.name: each for each in options_of(kind) if each.heading or each.group}
    chosen = [by_name[name] for name in names] if names else by_name.values()
    every = (inner for each in chosen for inner in (options_of(each.group) if each.group else [each]))
    return group([_option(each) for each in every if not {each.name, each.heading} & {*without}])


def _option(each: RequestOption) -> Callable[[F], F]:
    """Return the option of a field. One that is on unless told otherwise is offered as --no-NAME."""
    settings: dict[str, Any] = {"help": each.help, **each.settings}
    if each.annotation == "bool":
        return option(each.flag, section=each.heading, is_flag=True, **settings)
    wanted = each.type or each.annotation
    if isinstance(wanted, tuple):
        settings["type"] = click.Choice(wanted)
    elif wanted in (int, str) or wanted in _TYPES:
        settings["type"] = _TYPES.get(wanted, wanted)
    if each.default is MISSING:
        settings["required"] = True
    elif each.default is not None:
        settings["default"] = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
    return option(each.flag, each.name, section=each.heading, **settings)


details_option = option("--details", section="Output", is_flag=True, help="Print every table, not only the short one.")
skip_bad_option = option(
    "--skip-bad", section="Run", is_flag=True, help="Exit 0 although some images or masks could not be read."
)
SHARED = ("part", "ray")
"""The fields by which several machines share a run."""


def run_options(kind: type, *, shared: bool = True, without: Iterable[str] = ()) -> Callable[[F], F]:
    """Return all options of the command that carries out a request. shared: several machines may share the run."""
    own = [details_option, quiet_option, skip_bad_option]
    parts = [request_options(kind, *SHARED)] if shared else []
    return group([request_options(kind, without=(*without, *SHARED)), *own, *parts, common])
