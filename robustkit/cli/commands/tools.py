"""The commands without a run: explain, completion. Heavy imports happen inside them."""

from __future__ import annotations

import json

import click
from msgspec.structs import asdict

from ...display.console import print_line, print_tables
from ..completion import codes, completion_script
from ..options import CONTEXT, common, setting
from ..terminal import console


@click.command(context_settings=CONTEXT)
@click.argument("code", required=False, default="", metavar="[CODE]", shell_complete=codes)
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@common
def explain(code: str, as_json: bool) -> None:
    """Explain a finding by its code: why it matters, what to do, and when to ignore it. Without a code, list them all.

    \b
    robustkit explain
    robustkit explain evidence/thin
    robustkit explain masking --json
    """
    from ...common.finding import catalogue, entry_of
    from ...display.table import Table

    every = catalogue()
    if chosen := {name: entry for name, entry in every.items() if code in ("", name.partition("/")[0])}:
        rows = tuple((name, entry.severity, entry.title) for name, entry in chosen.items())
        table = Table("robustkit explain CODE", ("code", "severity", "what was found"), rows)
    else:
        chosen, table = {code: entry_of(code)}, None
    if as_json:
        click.echo(json.dumps({name: asdict(entry) for name, entry in chosen.items()}, indent=2, ensure_ascii=False))
    elif table is not None:
        print_tables(console(), [table], "--json")
    else:
        entry = chosen[code]
        for line in (
            f"{code}: {entry.title} ({entry.severity})",
            entry.why,
            entry.remedy,
            f"Ignore it: {entry.ignore}",
        ):
            print_line(console(), line)


@click.command(context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@common
def completion(shell: str) -> None:
    """Print the script that enables shell completion of robustkit's commands, options and names.

    \b
    robustkit completion bash >> ~/.bashrc
    robustkit completion zsh >> ~/.zshrc
    robustkit completion fish > ~/.config/fish/completions/robustkit.fish
    """
    click.echo(completion_script(click.get_current_context().find_root().command, shell))
