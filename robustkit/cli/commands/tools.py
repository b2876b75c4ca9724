"""The command without a run that is no slice: completion."""

from __future__ import annotations

import click

from ..completion import completion_script
from ..options import CONTEXT, common


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
