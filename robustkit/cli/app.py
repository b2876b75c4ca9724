"""The command line: its commands, and how their errors are reported."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import warnings
from typing import Any

import click

from .. import __version__
from ..common.environment import OFFLINE, check_date
from ..common.plugins import built_in, loaded_plugins, plugin_session
from ..display.text import no_controls
from ..errors import ProtocolError, RobustkitError, RobustkitWarning
from ..pipeline.processes import is_own, line_prefix
from . import streams
from .commands import evaluation, runs
from .options import CONTEXT, Commands

_OWN: dict[str, dict[click.Command, str]] = {
    "Evaluate": {
        evaluation.audit: "audit classifiers: clean, attacks, corruptions, maps",
        evaluation.attack: "audit classifiers: clean and attacks only",
        evaluation.segment: "audit segmenters: clean, attacks, corruptions",
    },
    "Read results": {
        runs.report: "rebuild a run's tables and report from its records",
        runs.merge: "merge the parts of a run; write summary and report",
        runs.compare: "compare checkpoints, paired by sample",
    },
    "Release": {
        runs.check: "check a run against a policy, as a CI gate",
    },
}
_OF_SLICES = sorted((entry.load() for entry in built_in("commands").values()), key=lambda each: str(each.name))


def _with_slices(own: dict[click.Command, str]) -> dict[click.Command, str]:
    """Return the commands of a heading, each followed by those of slices that name it as their place, by name."""
    lines = dict[click.Command, str]()
    for command, line in own.items():
        following = {each: str(each.short_help) for each in _OF_SLICES if each.after == command.name}
        lines |= {command: line, **_with_slices(following)}
    return lines


_NAMES = [command.name for commands in (*_OWN.values(), _OF_SLICES) for command in commands]
_OWN["Tools"] = {each: str(each.short_help) for each in _OF_SLICES if each.after not in _NAMES}
COMMANDS = {heading: _with_slices(own) for heading, own in _OWN.items() if own}
"""Robustkit's commands, those of slices among them, under their headings, and what the help says about each."""


@click.group(cls=Commands, sections=COMMANDS, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="robustkit")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option("--offline", is_flag=True, help="Ask no server: use cached weights, and write tracker logs to files.")
def cli(offline: bool) -> None:
    """Measure how a vision checkpoint holds up under adversarial attack and corruption, and which pixels it relies on.

    \b
    robustkit demo                                        run a short audit on embedded checkpoints and data
    robustkit audit model.safetensors --data-dir val      audit your own
    robustkit inspect model.safetensors                   show the file's contents, detect its attention formula
    robustkit compare runs/vit                            compare its checkpoints, paired by sample
    robustkit check runs/vit --policy policy.toml         check it against a policy, as a CI gate
    robustkit doctor                                      self-test this installation
    """
    check_date()
    if offline:
        os.environ |= dict.fromkeys((OFFLINE, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK"), "1")
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        if os.environ.get("WANDB_MODE") != "disabled":
            os.environ["WANDB_MODE"] = "offline"
        if constants := sys.modules.get("huggingface_hub.constants"):  # it has read the variable
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _one_line(text: str) -> str:
    """Return a text of a readable length without characters that control a terminal or a CI log."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in short)


_LONGEST = 4000
_MIXED = "operator torchvision::"  # "… does not exist", where torchvision and torch are of different builds
_NO_MEMORY = ("cannot allocate memory", "failed to map segment", "static tls block", "not enough memory")


def _of_machine(fault: Exception) -> str:
    """Return one line for an error that is not the user's: too little memory, an unreadable file or library."""
    message = next(iter(str(fault).splitlines()), "")[:300]
    if isinstance(fault, MemoryError) or any(text in message.lower() for text in _NO_MEMORY):
        remedy = "close other programs, or raise the limit (ulimit -v)"
        return f"not enough memory ({message or type(fault).__name__}); {remedy}"
    remedy = "install RobustKit again from its source" if isinstance(fault, ImportError) else "see --debug"
    if _MIXED in message:
        remedy = "install torch and torchvision again, both from the same index"
    return f"{type(fault).__name__}: {message}; {remedy}"


def _spare_the_last_search() -> None:
    """Keep Python from searching all that was loaded for garbage as it ends, which takes a second.

    Triton from 3.9 on (with CUDA's build of torch) would then print a page about objects that it finds leaked.
    """
    triton = getattr(sys.modules.get("triton"), "__version__", "")
    if [*map(int, re.findall(r"\d+", triton)[:2])] >= [3, 9]:
        gc.unfreeze()
    else:
        gc.freeze()


def main() -> None:
    """Run the console script. Exit status: 0 fine, 1 gate failed, 2 error, 3 nothing evaluated, 130 interrupted, 141
    SIGPIPE."""
    atexit.register(_spare_the_last_search)
    streams.prepare_streams()
    _show_warnings()
    debug = "--debug" in sys.argv or os.environ.get("ROBUSTKIT_DEBUG", "") not in ("", "0")
    status = 2  # of what is raised as it is
    try:
        status = _status(debug)
        sys.exit(streams.finish(status))
    except OSError as fault:  # when the end of standard output is written, as on a full disk
        streams.ignore_broken_pipe()
        click.echo(f"error: {_one_line(_of_machine(fault))}", err=True)
        sys.exit(2)
    finally:
        if status not in (0, 1) and _command(words := sys.argv[1:]) == "check":  # it came to no verdict
            from .check import withdraw_named

            withdraw_named(words)


def _show_warnings() -> None:
    """Print what a loader assumes, once, in commands that make no run; runs have lines of their own."""
    texts, before = set[str](), warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, RobustkitWarning):
            before(message, category, *where, **more)
        elif str(message) not in texts:
            texts.add(str(message))
            click.echo(f"⚑ {no_controls(str(message))}", err=True)

    warnings.simplefilter("always", RobustkitWarning)
    warnings.showwarning = show


def _command(words: list[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _refused(reason: str) -> None:
    """Leave a mark in the run folder that a refused command was to write into; others leave it where they fail."""
    from ..runs.description import making_commands
    from ..runs.folder import RunFolder

    words = sys.argv[1:]
    pairs = zip(words, [*words[1:], ""], strict=True)
    for word, following in pairs if _command(words) in making_commands() else ():
        if word == "--out" or word.startswith("--out="):
            RunFolder(word.partition("=")[2] or following).note_refusal(reason)


@plugin_session()
def _status(debug: bool) -> int:
    written = sys.stdout
    try:
        status = cli.main(prog_name="robustkit", standalone_mode=False)
    except SystemExit:
        if sys.stdout is written:
            raise
        sys.stdout = written  # click puts a mute stream there when a pipe breaks
        streams.ignore_broken_pipe()
        status = 0
    except click.ClickException as fault:
        if type(fault).__name__ == "NoArgsIsHelpError":  # click >= 8.2; its message is the help page
            click.echo(fault.format_message())
            return 2
        where = getattr(fault, "ctx", None)
        command = where.command_path if where else "robustkit"
        message = " ".join(fault.format_message().split())
        click.echo(f"error: {message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help.", err=True)
        _refused(message)
        status = 2
    except RobustkitError as fault:
        if isinstance(fault, ProtocolError):
            _refused(str(fault))
        if debug:
            raise
        if is_own(fault):
            click.echo(f"error: {line_prefix()}{_one_line(str(fault))}", err=True)
        status = fault.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; rerun the same command to resume", err=True)
        status = 130
    except BaseException as fault:
        of_machine = isinstance(fault, MemoryError | ImportError | OSError) or _MIXED in str(fault)
        of_robustkit = isinstance(fault, Exception) and not of_machine
        if debug or (of_robustkit and not loaded_plugins()):
            raise
        message, why = _one_line(f"{type(fault).__name__}: {fault}"), "a library crashed"
        if of_robustkit:
            why = f"the error may come from {', '.join(plugin.words for plugin in loaded_plugins())}"
        elif isinstance(fault, Exception):
            message, why = _one_line(_of_machine(fault)), ""
        # A panic of a library's Rust is no Exception; unhandled, its status would be 1.
        click.echo(f"error: {message}{why and f'; {why}; --debug shows where'}", err=True)
        status = 2
    return status if isinstance(status, int) else 0
