"""List what can be asked for, by name: models, attacks, corruptions, presets and more; explain findings; set up
completion.

An entry for each name, with the same keys for all of a kind. What is needed is imported when the command runs.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from msgspec.structs import asdict

from ...cli.commands import EVERY_COMMAND
from ...cli.completion import codes, completion_script
from ...cli.options import SliceCommand, common, setting
from ...cli.terminal import console
from ...display.console import print_line, print_tables
from ...errors import ProtocolError, unknown

if TYPE_CHECKING:
    from ...display.table import Table

LISTINGS = {
    "models": "embedded checkpoints, for CHECKPOINT",
    "families": "vision transformers: which of them formulas and maps support, tried on tiny networks",
    "attacks": "for --attacks, with their parameters under the usual protocol",
    "corruptions": "sets and single ones, for --corruptions",
    "cams": "methods that make maps, for --cams",
    "attentions": "formulas, for --attention",
    "protocols": "cards, for --protocol",
    "datasets": "embedded images, for --data-dir; and what --layout can read",
    "presets": "amounts of work, for --preset",
    "plugins": "what other packages bring",
}
"""What can be listed, and what it is for."""

Entry = Mapping[str, Any]  # a name and what belongs to it: texts, lists of names, or parameters with their values


def table_of(title: str, entries: Sequence[Entry]) -> Table:
    from ...display.format import Cell
    from ...display.table import Table

    headings = tuple(entries[0])

    def cell(value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Cell(str(value), value)
        named = [f"{key}={part}" for key, part in value.items()] if isinstance(value, Mapping) else value
        return ", ".join(map(str, named)) if isinstance(named, list | tuple) else str(named)

    rows = tuple(tuple(cell(entry[heading]) for heading in headings) for entry in entries)
    return Table(title, headings, rows, spare=("seed", "epochs", "licence", "file", "test data", "input"))


def listing(kind: str) -> list[Entry]:
    """Return the entries of one kind; of none, an empty one."""
    if not kind:
        return [{"kind": name, "what it is": text} for name, text in LISTINGS.items()]
    makers = (_models, _families, _attacks, _corruptions, _cams, _attentions, _protocols, _datasets, _presets, _plugins)
    return dict(zip(LISTINGS, makers, strict=True))[kind]()


_SCORES = {"miou": ("mIoU {:.1f} %", 100), "accuracy": ("top-1 {:.1f} %", 100), "perplexity": ("perplexity {:.1f}", 1)}
"""What a shipped checkpoint says about itself, how that is shown, and times what."""


def _models() -> list[Entry]:
    from safetensors import safe_open

    from ...errors import CheckpointError
    from ...models.specs import embedded, embedded_file

    rows: list[Entry] = []
    for name in embedded(None):
        try:
            path = embedded_file(name)
        except CheckpointError as fault:
            lacks = dict.fromkeys(("test data", "parameters", "input", "file", "epochs", "seed", "licence"), "–")
            rows.append(
                {"name": f"zoo:{name}", "attention": "–", "clean": str(fault).removeprefix(f"zoo:{name}: "), **lacks}
            )
            continue
        with safe_open(path, framework="numpy") as file:
            entries: dict[str, str] = file.metadata()
            parameters = sum(math.prod(file.get_slice(tensor).get_shape()) for tensor in file.offset_keys())
        scores = (text.format(times * float(entries[key])) for key, (text, times) in _SCORES.items() if key in entries)
        rows.append(
            {
                "name": f"zoo:{name}",
                "attention": entries["attention"],
                "clean": next(scores),
                "test data": entries["test_data"],
                "parameters": f"{parameters / 1e6:.2f} M",
                "input": _input(entries),
                "file": f"{path.stat().st_size / 1e6:.1f} MB",
                "epochs": entries["epochs"],
                "seed": entries["seed"],
                "licence": entries["license"],
            }
        )
    return rows


def _families() -> list[Entry]:
    from cam.registry import METHODS

    from .families import supported

    methods = {name: METHODS[name] for name in ("agcam", "agcam-full", "legrad", "chefer", "rollout", "grad-cam")}
    rows: list[Entry] = []
    for support in supported(methods):
        maps = "all" if len(support.maps) == len(methods) else ", ".join(support.maps) or "none"
        formulas = "yes" if support.formulas else "no"
        values = {"formulas": formulas, "maps": maps, "why not": support.reason}
        rows.append({"name": support.family, **values})
    return rows


def _input(metadata: dict[str, str]) -> str:
    """Return what goes into a checkpoint: `3x32x32`, `12 channels`, or what it says."""
    if "input" in metadata:
        return metadata["input"]
    if "input_size" in metadata:
        return "x".join(map(str, json.loads(metadata["input_size"])))
    return f"{len(json.loads(metadata['mean']))} channels"


def _attacks() -> list[Entry]:
    from attacks.registry import FEATURE_ATTACKS

    from ...evaluations.attacks import EVERY_ATTACK, EVERY_DENSE_ATTACK
    from ...evaluations.attacks.evaluate import parse_condition
    from ...protocol.card import card_names, load_card

    rows: list[Entry] = []
    tables: dict[str, tuple[str, Iterable[tuple[str, Any]]]] = {
        "audit": ("standard", EVERY_ATTACK.usable()),
        "segment": ("segmentation", EVERY_DENSE_ATTACK.usable()),
        "features": ("features", FEATURE_ATTACKS.items()),
    }
    names = card_names()
    for command, (card_name, kinds) in ((name, each) for name, each in tables.items() if each[0] in names):
        card = load_card(card_name)
        for name, kind in kinds:
            condition = parse_condition(name, card)
            parameters = {key: value for key, value in condition.parameters if key != "engine" or command == "audit"}
            summary = (kind.__doc__ or "").splitlines()[0]
            rows.append({"name": name, "for": command, "what it is": summary, "parameters": parameters})
    return rows


def _corruptions() -> list[Entry]:
    from ...evaluations.corruptions import EVERY_CORRUPTION, SETS, category_of, span

    sets = list[Entry]()
    for name, some in SETS.items():
        severities = " (noise) and ".join(sorted({span(s).replace("–", " to ") for s in some.values()}))
        sets.append({"name": name, "kind": f"set of {len(some)}", "what it is": [*some], "severities": severities})
    single: list[Entry] = [
        {"name": name, "kind": category_of(name), "what it is": _sentence(kind.__doc__ or ""), "severities": "1 to 5"}
        for name, kind in EVERY_CORRUPTION.usable()
    ]
    return [*sets, *single]


def _presets() -> list[Entry]:
    from ...pipeline.progress import preset_cost
    from ...pipeline.request import preset_of
    from ...protocol.card import TASKS, presets_of
    from ...tasks.task import task_named

    return [
        {
            "name": name,
            "command": task_named(task).command,
            "stands for": shlex.join(preset_of(task, name).words()),
            "passes for each image, forward + backward": str(preset_cost(task, name)),
        }
        for task in TASKS
        for name in presets_of(task)
    ]


def _sentence(text: str) -> str:
    return re.split(r"(?<!et al)\. ", " ".join(text.split()))[0].rstrip(".")


def _cams() -> list[Entry]:
    from cam.registry import CONTROLS

    from ...evaluations.maps import EVERY_EXPLAINER, OPTIONS, method_names
    from ...protocol.card import format_number

    every = dict(EVERY_EXPLAINER.usable())
    return [
        {
            "name": name,
            "kind": "control" if name in CONTROLS else "map",
            "what it is": _sentence(kind.__doc__ or ""),
            "parameters": {
                key: f"{format_number(option.usual)} ({option.what})" for key, option in OPTIONS.get(name, {}).items()
            },
        }
        for name in method_names()
        if (kind := every.get(name)) is not None
    ]


def _attentions() -> list[Entry]:
    from ...attention.formulas import FAMILIES, value_text
    from ...attention.registry import EVERY_FORMULA

    entries: list[Entry] = []
    for name, formula in EVERY_FORMULA.usable():
        options = FAMILIES[name][0] if name in FAMILIES else {}
        usual = {key: f"{value_text(option.usual)} ({option.expected})" for key, option in options.items()}
        entries.append({"name": name, "logits": formula.logits, "source": formula.source, "parameters": usual})
    return entries


def _protocols() -> list[Entry]:
    from ...protocol.card import card_names, load_card

    return [{"name": card.tag, "what it is": card.summary} for card in map(load_card, card_names())]


def _plugins() -> list[Entry]:
    from ...common.plugins import GROUPS, every_plugin
    from ...errors import PluginError
    from ...pipeline.manifest import registries

    rows, by_group = list[Entry](), {**registries(), "commands": EVERY_COMMAND}
    for plugin in every_plugin():
        try:
            value = by_group[plugin.group].load(plugin)
            documented = getattr(value, "logits", "") or getattr(value, "help", "")
            documented = documented or (value if isinstance(value, type) else type(value)).__doc__
            summary = f"source {plugin.source[:12]}…: {_sentence(documented or '')}"
        except PluginError as fault:
            summary = f"cannot be used: {fault}"
        brings = f"{GROUPS[plugin.group]} of {plugin.origin}"
        rows.append({"name": plugin.name, "what it brings": brings, "what it is": summary})
    return rows


def _datasets() -> list[Entry]:
    from ...data.dataset import EMBEDDED, LAYOUTS
    from ...data.scenes import LAYOUTS as SCENES

    rows: list[Entry] = [
        {"option": "--data-dir", "name": name, "for": each.commands, "what it is": each.what}
        for name, each in EMBEDDED.items()
    ]
    for command, layouts in (("audit", LAYOUTS), ("segment", SCENES)):
        rows += (
            {"option": "--layout", "name": name, "for": command, "what it is": text}
            for name, text in layouts.items()
            if name != "embedded"
        )
    return rows


def _complete_kind(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in LISTINGS if name.startswith(incomplete)]


@click.command(
    "list",
    cls=SliceCommand,
    short_help="list models, attacks, corruptions and more",
)
@click.argument("kind", required=False, default="", metavar="[KIND]", shell_complete=_complete_kind)
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@common
def list_(kind: str, as_json: bool) -> None:
    """List models, attacks, corruptions, cams, attentions, protocols, datasets, presets or plugins.

    \b
    robustkit list
    robustkit list attacks
    robustkit list models --json
    """
    if kind and kind not in LISTINGS:
        raise ProtocolError(unknown("kind", kind, LISTINGS))
    entries = listing(kind)
    if as_json:
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False, default=str))
    elif entries:
        print_tables(console(), [table_of(LISTINGS.get(kind, "robustkit list KIND"), entries)], "--json")
    else:
        click.echo("no installed package provides plug-ins; docs/how-to/extending.md says how to write one")


@click.command(
    cls=SliceCommand,
    after="list",
    short_help="explain a finding: why it matters, what to do",
)
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


@click.command(cls=SliceCommand, after="explain", short_help="set up shell completion")
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
