"""The options that commands share: their types, groups in --help, and --config.

Their values become arguments; options that would do nothing together with the others are refused.
"""

from __future__ import annotations

import gc
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import click

from ..common.files import TEXT, reason_of, text_of
from ..common.names import NORMS, canonical, nothing
from ..common.options import Option as RequestOption
from ..common.options import options_of
from ..common.plugins import declared
from ..errors import ProtocolError, unknown
from ..pipeline.request import ClassifierOptions
from .commands import EVERY_COMMAND
from .completion import COMPLETERS
from .completion import checkpoints as completed_checkpoints


def _empty(param: click.Parameter | None) -> str:
    return f"it is empty; expected: {getattr(param, 'help', None) or 'a value'}"


class Whole(click.IntRange):
    name = "integer"


AT_LEAST_0, AT_LEAST_1 = Whole(min=0), Whole(min=1)


class TextType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A text that is not empty: an empty one usually comes from an unset shell variable."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return str(value) if str(value).strip() else self.fail(_empty(param), param, ctx)


class Place(click.Path):
    """A path that is not empty or blank: Path("") is the current folder. writes: what an untrusted --config may not
    choose."""

    def __init__(self, *, writes: bool = False, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)
        self.writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if str(value).strip() else self.fail(_empty(param), param, ctx)


class ChoiceType(click.Choice):  # type: ignore[type-arg,unused-ignore]
    """One of some names, whatever its case and separators; norms also by what else they are called."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(canonical(str(value), self.choices, NORMS), param, ctx)


class BatchSize(click.ParamType):  # type: ignore[type-arg,unused-ignore]
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
SHORT = 12  # the most options that are listed without headings


class CommandOption(click.Option):
    """section: its heading in --help. listed: its value is a list of names, so given twice it would lose the first."""

    def __init__(self, *names: Any, section: str = "", listed: bool = False, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section, self.listed = section, listed


class HelpFormatter(click.HelpFormatter):
    """Wraps help between words, never at a hyphen inside one, such as an option or a name that somebody copies."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(first, text.replace("-", _HYPHEN)) for first, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


_HYPHEN = "\u2011"  # which no line is broken at


class Context(click.Context):
    formatter_class = HelpFormatter


class SliceCommand(click.Command):
    """A command that a slice may bring. after: the command that it follows in `robustkit --help`; without one, or where
    that one's slice was deleted, it stands first under Tools."""

    def __init__(self, *names: Any, after: str = "", **settings: Any) -> None:
        super().__init__(*names, **({"context_settings": CONTEXT} | settings))
        self.after = after


class Command(SliceCommand):
    """A command whose --help lists its options under headings, if they are many."""

    context_class = Context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a list of names that is given twice, of which click would take the last."""
        words = args[: args.index("--")] if "--" in args else args
        for flag in (flag for each in self.params if getattr(each, "listed", False) for flag in each.opts):
            pairs = [(word, after) for word, after in pairwise([*words, ""]) if word.partition("=")[0] == flag]
            lists = [after if word == flag else word.partition("=")[2] for word, after in pairs]
            if len(lists) > 1:
                meant = f"{flag} {shlex.quote(','.join(lists))}"
                raise ProtocolError(f"{flag} is given {len(lists)} times; give one list, {meant}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        every = [(getattr(param, "section", "General"), param.get_help_record(ctx)) for param in self.get_params(ctx)]
        listed = [(section, record) for section, record in every if record is not None]
        many = len(listed) > SHORT
        for name, heading in SECTIONS.items() if many else [("", "Options")]:
            if records := [record for section, record in listed if section == name or not many]:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=28)


class Commands(click.Group):
    """A group whose --help lists its commands under headings, and those of plug-ins, which load when they are run."""

    context_class = Context

    def __init__(self, sections: Mapping[str, Mapping[click.Command, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        EVERY_COMMAND.entries = self.commands
        for commands in sections.values():
            for command, line in commands.items():
                command.short_help = line
                self.add_command(command)
        self.help = "\n".join(filter(self._exists, (self.help or "").splitlines()))

    def _exists(self, line: str) -> bool:
        """Whether a line of the help is no example of a command whose slice was deleted."""
        example = re.match(r"\s*robustkit (\w+)", line)
        return example is None or example[1] in self.commands

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
        raise ProtocolError(f"--config {path}: {reason_of(fault)}; give a TOML file of options") from None
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
    """Refuse what an untrusted --config could do besides choosing options. Not eager: it comes after --config."""
    path = context.meta.get(_CONFIG)
    if path is None or trusted:
        return
    here, parameters = Path.cwd().resolve(), {part.name: part for part in context.command.params}
    for key, value in (context.default_map or {}).items():
        values, kind = list(map(str, value)) if isinstance(value, list) else [str(value)], parameters[key].type
        written = isinstance(kind, Place) and kind.writes
        written = written and (key != "policy" or bool(context.params.get("init")))  # which is read, else
        if written and any(not (here / part).resolve().is_relative_to(here) for part in values):
            what = "writes outside the folder where you are"
        elif key == "plugin" or (key == "arch" and any(":" in part for part in values)):
            what = "names code to run"
        elif key == "ray" and ":" in values[0]:
            what = "names a cluster, which may run code on this machine"
        elif key in ("logs", "to") or (key == "format" and values[0] in ("mlflow", "wandb")):
            what = "sends results to a server"
        else:
            continue
        source, origin = click.core.ParameterSource, context.get_parameter_source(key)
        if origin not in (source.COMMANDLINE, source.ENVIRONMENT):
            remedy = f"give {max(parameters[key].opts, key=len)} yourself"
            problem = f"--config {path} {what} ({key} = {', '.join(values)[:80]!r}); {remedy}"
            raise ProtocolError(f"{problem}, or --trust-config if you trust the file")


def load_plugins(context: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> None:
    """Execute files of plug-ins. Not eager: files that a --config names run only after --trust-config was checked."""
    from ..common.plugins import load_plugin

    for file in files:
        load_plugin(file)


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


def setting(*names: str, section: str = "", **settings: Any) -> Callable[[F], F]:
    """Return a click option that can also come from ROBUSTKIT_<NAME>. section: its heading in --help, of `SECTIONS`."""
    long = next(name for name in names if name.startswith("--")).lstrip("-")
    if "type" not in settings and not settings.get("is_flag"):
        settings["type"] = TextType()
    settings.setdefault("shell_complete", COMPLETERS.get(f"--{long}"))
    settings |= {"cls": CommandOption, "section": section}
    return click.option(*names, envvar=f"ROBUSTKIT_{long.upper().replace('-', '_')}", show_envvar=False, **settings)


def group(options: list[Callable[[Any], Any]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(options):
            function = decorator(function)
        return function

    return decorate


checkpoints_argument = click.argument(
    "checkpoints", nargs=-1, metavar="CHECKPOINT...", shell_complete=completed_checkpoints
)
quiet_option = setting("--quiet", section="Run", is_flag=True, help="Do not print progress.")


def images_option(what: str = "Folder, zip, or embedded:shapes.", required: bool = True) -> Callable[[F], F]:
    """Return the option that names the images. what: its help."""
    return setting("--data-dir", section="Data", required=required, help=what)


_TRUST = "Allow --config to name code to run, write outside this folder, or send results to a server."
_PLUGIN = "Python file with plug-ins to execute; may be repeated (robustkit list plugins)."
_of_context = partial(click.option, expose_value=False)
common = group(
    [
        _of_context("--config", is_eager=True, callback=use_config, help="TOML file of options."),
        _of_context("--trust-config", is_flag=True, callback=check_trust, help=_TRUST),
        _of_context("--debug", is_flag=True, help="Show the traceback of an error."),
        _of_context("--plugin", "plugin", type=Place(), multiple=True, callback=load_plugins, help=_PLUGIN),
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
    """Return the option of a field. One that is on by default is offered as --no-NAME."""
    settings: dict[str, Any] = {"help": each.help, "listed": "Iterable" in each.annotation, **each.settings}
    if each.annotation == "bool":
        return setting(each.flag, section=each.heading, is_flag=True, **settings)
    kind = each.type or each.annotation
    if isinstance(kind, tuple):
        settings["type"] = ChoiceType(kind)
    elif kind in (int, str) or kind in _TYPES:
        settings["type"] = _TYPES.get(kind, kind)
    if each.default is MISSING:
        settings["required"] = True
    elif each.default not in (None, ""):
        settings["default"] = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
    return setting(each.flag, each.name, section=each.heading, **settings)


GROUPS = ("groups", "groups_from")
"""The fields of a request that say which samples belong together."""
details_option = setting("--details", section="Output", is_flag=True, help="Print all tables, not only the short one.")
skip_bad_option = setting(
    "--skip-bad", section="Run", is_flag=True, help="Exit 0 even if some images or masks are unreadable."
)
SHARED = ("part", "ray")  # the fields by which several machines share a run


def run_options(kind: type, *, shared: bool = True, without: Iterable[str] = ()) -> Callable[[F], F]:
    """Return all options of the command that carries out a request. shared: several machines may share the run."""
    first = [details_option, quiet_option, skip_bad_option]
    parts = [request_options(kind, *SHARED)] if shared else []
    return group([request_options(kind, without=(*without, *SHARED)), *first, *parts, common])


# Options as arguments


def option_names(group: type) -> tuple[str, ...]:
    return tuple(each.name for each in options_of(group))


@contextmanager
def loading() -> Iterator[None]:
    """Import libraries inside. What they make is never garbage, so it is neither searched for any meanwhile nor later:
    the search would take a quarter of the time of loading torch and timm."""
    searched, before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if searched:
            gc.enable()


def request_of(kind: type[R], options: Mapping[str, Any]) -> R:
    """Return the request of a command. options: as click has them, of fields alone."""
    values = dict(options)
    for each in options_of(kind):
        if each.group is not None:
            values[each.name] = take_entries(kind, each.name, values)
        elif each.default is True:
            values[each.name] = not values.pop(f"no_{each.name}")
        elif each.read is not None and each.name in values:
            values[each.name] = each.read(values[each.name], each.name)
    with loading():
        return kind(**values)


def take_entries(kind: type, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the entries of a request's mapping out of `options`. Of a model those that were not given are left out."""
    group = next(each.group for each in options_of(kind) if each.name == name)
    assert group is not None
    entries = {each.name: options.pop(each.name) for each in options_of(group)}
    entries |= {each.name: each.read(entries[each.name], each.name) for each in options_of(group) if each.read}
    return {key: value for key, value in entries.items() if value is not None or name != "model"}


PICTURE_KEYS = (
    *option_names(ClassifierOptions),
    *(
        "arguments",
        "targets",
        "over",
        "texts",
        "cams",
        "device",
        "out",
        "save_maps",
        "quiet",
        "colormap",
        "alpha",
        "kind",
        "size",
        "config",
        "debug",
    ),
)
"""The options that `robustkit cam` takes for a user's own pictures."""
GATE_VALUES = ("policy", "baseline", "junit", "json_file", "attestation", "predicate", "lock")
GATE_ALONE = ("verify_attestation", "allow_warned", "init", "every")
GATE = (*GATE_VALUES, *GATE_ALONE, *GROUPS, "details")
"""The options of `robustkit check` that are about verdicts: those with a value, and those that audit nothing."""
_GENERAL = ("runs", "until_decided", "config", "trust_config", "debug", "plugin")


def _typed(matches: Callable[[str], bool]) -> list[str]:
    """Return the wanted options that are on the command line (not from the environment or a file), as written."""
    context = click.get_current_context(silent=True)  # none in a call from Python
    typed = click.core.ParameterSource.COMMANDLINE
    return [
        max(parameter.opts, key=len)
        for parameter in (context.command.params if context else ())
        if matches(name := str(parameter.name)) and context and context.get_parameter_source(name) is typed
    ]


def refuse_for_pictures() -> None:
    """Raise ProtocolError for an option of the command line that does nothing for a user's own pictures."""
    if typed := _typed(lambda name: name not in PICTURE_KEYS):
        remedy = "leave out, or give --data-dir instead of the images"
        raise ProtocolError(f"{', '.join(typed)}: only for a data set, but single images are given; {remedy}")


def refuse_idle(names: Sequence[str], why: str) -> None:
    """Raise ProtocolError, with `why`, where one of these is on the command line, since it would do nothing."""
    if typed := _typed(lambda name: name in names):
        raise ProtocolError(f"{', '.join(typed)}: {why}")


def refuse_idle_parts(options: Mapping[str, Any]) -> None:
    """Raise ProtocolError for options on how to attack, corrupt or explain, where that is not done."""
    lists = {name: options.get(name) for name in ("attacks", "corruptions", "cams", "evaluations")}
    values = {name: None if nothing(value, name) else value for name, value in lists.items()}
    if lists["attacks"] is not None and values["attacks"] is None:
        refuse_idle(("eps", "norm", "engine"), "needs attacks, but --attacks is none; name some, or leave it out")
    if values["corruptions"] is None and options.get("corrupted_dir") is None:
        names = ("constants", "variant", "frost_dir", "tiles_dir")
        refuse_idle(names, "needs corruptions; give --corruptions, or leave it out")
    if values["cams"] is None:
        truth = ("boxes", "masks") if "boxes" in options and not values["evaluations"] else ()
        names = ("stability", "faithfulness", "keep_misclassified", *truth)
        refuse_idle(names, "needs maps; give --cams, or leave it out")


def refuse_audit(runs: int) -> None:
    """Raise ProtocolError where options, or several arguments, mean something with --until-decided only."""
    every = [str(parameter.name) for parameter in click.get_current_context().command.params]
    others = [name for name in every if name not in (*GATE, *_GENERAL)]
    refuse_idle(others, "only with --until-decided; give that, or leave it out: a run records how it was computed")
    if runs != 1:
        raise ProtocolError(f"{runs} runs; expected one, or checkpoints with --until-decided")
