"""The commands without a run: inspect, list, completion. Heavy imports happen inside them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click
from msgspec.structs import asdict

from ...common.options import read_labels
from ...display.console import print_as_it_is, print_line, print_tables
from ...errors import ProtocolError, unknown
from ...pipeline.request import ClassificationRequest, LabelOptions, SegmentationRequest
from ..completion import checkpoints as known_checkpoints
from ..completion import codes, completion_script, kinds
from ..options import (
    AT_LEAST_1,
    CONTEXT,
    Command,
    common,
    images_option,
    loading,
    option_names,
    refuse_idle,
    request_options,
    setting,
    take_entries,
)
from ..terminal import console

_run_option, _model_option = partial(setting, section="Run"), partial(setting, section="Model")
_SAMPLES = ("data", "limit", "ids")
_SCENES = ("masks", "ignore", "reduce_zero_label")  # of a segmenter's images; --classes is also of a zero-shot model


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("checkpoint", shell_complete=known_checkpoints)
@images_option("Labelled images on which to detect the attention formula and the preprocessing.", required=False)
@setting(
    "--stability",
    section="Maps",
    is_flag=True,
    help="With --data-dir: show logits, norms and entropy of the attention, layer by layer.",
)
@_run_option("--batch-size", type=AT_LEAST_1, default=16, help="Batch size.")
@request_options(ClassificationRequest, "device")
@_run_option("--seed", type=int, default=0, help="Seed of --limit.")
@request_options(SegmentationRequest, *_SCENES)
@request_options(ClassificationRequest, "model", *_SAMPLES)
@common
def inspect(checkpoint: str, data_dir: str | None, **options: Any) -> None:
    """Show what is in a checkpoint, whether it is safe, and with --data-dir which formula and preprocessing fit.

    \b
    robustkit inspect model.pth
    robustkit inspect model.safetensors --data-dir imagenet/val --limit 200 --stability
    robustkit inspect segmenter.pth --data-dir images --masks labels --classes names.txt --limit 50
    """
    with loading():
        from ...display.progress import Bars
        from ...pipeline.inspection import Ranked, Stated, look_into

    if data_dir is None:
        refuse_idle(
            (*option_names(LabelOptions), *_SCENES, "limit", "ids"),
            "only for images, and --data-dir is missing; give a folder of them, or leave it out",
        )
    model, data = (take_entries(ClassificationRequest, name, options) for name in ("model", "data"))
    scenes = {name: options.pop(name) for name in _SCENES}
    scenes["ignore"] = read_labels(scenes["ignore"])
    screen, side = console(), console(stderr=True)
    options |= {"check": _refuse_other, "bars": lambda: Bars(side, "passes")}
    for item in look_into(checkpoint, data_dir, model=model, data=data, scenes=scenes, **options):
        if isinstance(item, Ranked):
            print_tables(screen, [item.table])
        elif isinstance(item, Stated):
            screen.print(item.heading, markup=False, highlight=False)
            print_as_it_is(screen, item.command)
        elif isinstance(item, tuple):
            print_line(screen, f"{item[0]:>14}  {item[1]}", indent=16)
        else:
            print_line(screen, item)


def _refuse_other(segments: bool) -> None:
    """Raise ProtocolError for options of the other kind's images."""
    if segments:
        refuse_idle(option_names(LabelOptions), "only for a classifier's images, and this is a segmenter; leave it out")
    else:
        refuse_idle(_SCENES, "only for a segmenter's images, and this is a classifier; leave it out")


@click.command("list", context_settings=CONTEXT)
@click.argument("kind", required=False, default="", metavar="[KIND]", shell_complete=kinds)
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@common
def list_(kind: str, as_json: bool) -> None:
    """List models, attacks, corruptions, cams, attentions, protocols, datasets, presets or plugins.

    \b
    robustkit list
    robustkit list attacks
    robustkit list models --json
    """
    from ..listing import LISTINGS, listing, table_of

    if kind and kind not in LISTINGS:
        raise ProtocolError(unknown("kind", kind, LISTINGS))
    entries = listing(kind)
    if as_json:
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False, default=str))
    elif entries:
        print_tables(console(), [table_of(LISTINGS.get(kind, "robustkit list KIND"), entries)], "--json")
    else:
        click.echo("no installed package provides plug-ins; docs/how-to/extending.md says how to write one")


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
