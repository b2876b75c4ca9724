"""Group what --help lists: options by what they are about, commands by what they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

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
    """A group whose --help lists its commands under headings, each with a line that is never cut."""

    def __init__(self, sections: Mapping[str, Mapping[click.Command, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        for commands in sections.values():
            for command, line in commands.items():
                command.short_help = line
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(len(str(command.name)) for commands in self.sections.values() for command in commands)
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{command.name!s:<{widest}}", line) for command, line in commands.items()])


def put_under(section: str, params: Iterable[click.Parameter]) -> None:
    """Put options under a heading, except for those that have one."""
    for param in params:
        if isinstance(param, Option):
            param.section = param.section or section
