"""Write docs/reference/commands/ from the command line's own help: a page for each command, and the list of them.

python -m scripts.pages.commands            write the pages
python -m scripts.pages.commands --check    status 1 where a page is another one, is missing, or is of no command
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from robustkit.cli.app import COMMANDS, cli
from robustkit.cli.options import SECTIONS
from robustkit.slices.listing import listing

from .writing import markdown, write_pages

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "commands"
HEAD = """# Commands

Made by `python -m scripts.pages.commands` from `robustkit --help` and the help of each command.

{commands}

## Options

An option can also come from the environment variable next to it, and from a TOML file (`--config FILE`): entries at
the top are for every command, those of a table `[audit]` for that one, named as the options. The command line counts
before the environment, and that before the file. Lists are separated by commas. eps is written as `1/255`, `0.5/255`
or `0.004`.

`--arch FILE.py:FUNCTION` executes that file: use only files that you trust. A file of options may be someone else's: it
may name code (`arch`) or a cluster (`ray`), write outside the folder where you are (`out` and the like) and send
results away (`logs`, `to`) only with `--trust-config`.

## Presets

`--preset quick|standard|full|quest` fills the options that are left out; an explicit one wins, and run.json
keeps the options. `auto` is agcam where it works for all checkpoints, as for ViTs, else grad-cam. `robustkit list
presets` has them all, with the forward and backward passes that an image takes (1000 classes, evidence apart; most
attacks leave an image once it has fallen):

{presets}

## Exit status

0 fine, 1 a rule of `robustkit check` failed, 2 an error (one line: what, expected, remedy; the traceback
with `--debug`), 3 nothing was evaluated, 130 interrupted, 141 nobody read
the output to its end.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    groups = (
        f"## {heading}\n\n"
        + "\n".join(f"- [robustkit {each.name}]({each.name}.md): {_first(each)}" for each in commands)
        for heading, commands in COMMANDS.items()
    )
    index = HEAD.replace("{presets}", _presets()).replace("{commands}", "\n\n".join(groups))
    return {"index.md": index} | {f"{name}.md": _page(name, command) for name, command in cli.commands.items()}


def _page(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, parent=click.Context(cli, info_name="robustkit"))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text, examples = _help(command)
    rows = [("Option", "Meaning", "Default", "Variable")]
    shown = (option for option in command.params if isinstance(option, click.Option) and not option.hidden)
    order = [*SECTIONS]
    rows += map(_row, sorted(shown, key=lambda option: order.index(getattr(option, "section", "General"))))
    parts = [f"# robustkit {name}\n", f"`{usage}`\n", f"{text}\n", f"```sh\n{examples}\n```\n", markdown(rows)]
    return "\n".join([*parts, "\n[Where options come from, presets, exit status](index.md#options)\n"])


def _first(command: click.Command) -> str:
    return _help(command)[0].partition("\n")[0]


def _presets() -> str:
    entries = listing("presets")
    lines = ((*map(str, each.values()),) for each in entries)
    return "\n".join(
        f"- {name}, robustkit {command}: `{options}`; {passes}" for name, command, options, passes in lines
    )


def _help(command: click.Command) -> tuple[str, str]:
    """Return a command's text, paragraphs joined, and its examples."""
    text, _, examples = (command.help or "").partition("\b")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    return "\n\n".join(paragraphs), "\n".join(line.strip() for line in examples.strip().splitlines())


def _row(option: click.Parameter) -> tuple[str, str, str, str]:
    assert isinstance(option, click.Option)
    names = " ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    kind = "" if option.is_flag else f" {_kind(option.type)}"
    said = (option.help or "").replace("|", "\\|") + " Required." * option.required
    default = option.to_info_dict()["default"]
    shown = isinstance(default, (str, int, float, Path)) and not isinstance(default, bool)
    return f"{names}{kind}", said, f"`{default}`" if shown else "", f"`{option.envvar}`" if option.envvar else ""


def _kind(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return " or ".join(map(str, kind.choices))
    numbers = {"integer": "number", "integer range": "number", "float": "number"}
    return numbers.get(kind.name, kind.name)


if __name__ == "__main__":
    sys.exit(write_pages(FOLDER, pages(), check="--check" in sys.argv))
