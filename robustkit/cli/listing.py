"""List what `robustkit list KIND` shows: (name, one line) pairs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable

LISTINGS = ("models", "attacks", "corruptions", "cams", "attentions", "protocols", "datasets", "presets", "plugins")


def listing(kind: str) -> list[tuple[str, str]]:
    """Return the entries of one kind."""
    listings: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "models": _models,
        "attacks": _attacks,
        "corruptions": _corruptions,
        "cams": _cams,
        "attentions": _attentions,
        "protocols": _protocols,
        "datasets": _datasets,
        "presets": _presets,
        "plugins": _plugins,
    }
    return listings[kind]()


def _models() -> list[tuple[str, str]]:
    from safetensors import safe_open

    from ..errors import CheckpointError
    from ..models.specs import embedded, embedded_file

    rows = []
    for name in (*embedded(), *embedded("segmentation")):
        try:
            path = embedded_file(name)
        except CheckpointError as fault:
            rows.append((f"zoo:{name}", str(fault).removeprefix(f"zoo:{name}: ")))
            continue
        with safe_open(path, framework="numpy") as file:
            said: dict[str, str] = file.metadata()
            parameters = sum(math.prod(file.get_slice(tensor).get_shape()) for tensor in file.offset_keys())
        height, width = json.loads(said["input_size"])
        segments = "miou" in said
        score = f"segmenter, mIoU {float(said['miou']):.1%}" if segments else f"top-1 {float(said['accuracy']):.1%}"
        figures = (
            f"{said['attention']} attention",
            f"{score} ({said['test_data']})",
            f"{parameters / 1e6:.2f} M parameters at {height}x{width}",
            f"{path.stat().st_size / 1e6:.1f} MB",
            f"{said['epochs']} epochs",
            f"seed {said['seed']}",
            said["license"],
        )
        rows.append((f"zoo:{name}", ", ".join(figures)))
    return rows


def _attacks() -> list[tuple[str, str]]:
    from ..evaluations.attacks.condition import attacks_of, parse_condition
    from ..protocol.card import load_card

    rows = []
    for card, where in ((load_card("standard"), ""), (load_card("segmentation"), "robustkit segment: ")):
        for name, kind in attacks_of(card).usable():
            condition = parse_condition(name, card)
            parameters = ", ".join(
                f"{key}={value}" for key, value in condition.parameters if key != "engine" or not where
            )
            rows.append((condition.text, f"{where}{(kind.__doc__ or '').splitlines()[0]} Parameters: {parameters}"))
    return rows


def _corruptions() -> list[tuple[str, str]]:
    from ..evaluations.corruptions.registry import EVERY_CORRUPTION
    from ..evaluations.corruptions.sets import SETS, category_of

    sets = [
        (name, f"set of {len(members)}: {', '.join(members)}; severities {_range(members.values())}")
        for name, members in SETS.items()
    ]
    every = EVERY_CORRUPTION.usable()
    return [*sets, *((name, f"{category_of(name)}: {_sentence(kind.__doc__ or '')}") for name, kind in every)]


def _presets() -> list[tuple[str, str]]:
    from ..pipeline.presets import OPTIONS, preset_of
    from ..tasks.task import task_named

    return [
        (name, f"robustkit {task_named(task).command}: {shlex.join(preset_of(task, name).words())}")
        for task, presets in OPTIONS.items()
        for name in presets
    ]


def _sentence(text: str) -> str:
    """Return the first sentence, on one line."""
    return re.split(r"(?<!et al)\. ", " ".join(text.split()))[0].rstrip(".")


def _range(severities: Iterable[tuple[int, ...]]) -> str:
    longest = sorted({f"{s[0]} to {s[-1]}" for s in severities})
    return " (noise) and ".join(longest)


def _cams() -> list[tuple[str, str]]:
    from ..evaluations.maps.condition import CONTROLS, method_names
    from ..evaluations.maps.registry import EVERY_EXPLAINER

    every = dict(EVERY_EXPLAINER.usable())
    return [
        (name, ("control: " if name in CONTROLS else "") + _sentence(every[name].__doc__ or ""))
        for name in method_names()
        if name in every
    ]


def _attentions() -> list[tuple[str, str]]:
    from ..attention.formula_options import FAMILIES, shown
    from ..attention.registry import EVERY_FORMULA

    entries = []
    for name, formula in EVERY_FORMULA.usable():
        options = FAMILIES[name][0] if name in FAMILIES else {}
        said = "".join(f"; {key}={shown(option.usual)}: {option.expected}" for key, option in options.items())
        entries.append((name, f"{formula.logits} ({formula.source}){said}"))
    return entries


def _protocols() -> list[tuple[str, str]]:
    from ..protocol.card import card_names, load_card

    return [(card.tag, card.summary) for card in map(load_card, card_names())]


def _plugins() -> list[tuple[str, str]]:
    from ..common.plugins import GROUPS, every_plugin
    from ..errors import PluginError
    from ..pipeline.plugins import registries

    rows, by_group = [], registries()
    for plugin in every_plugin():
        try:
            value = by_group[plugin.group].load(plugin)
            said = f"source {plugin.source[:12]}…: {_sentence(_documented(value))}"
        except PluginError as fault:
            said = f"cannot be used: {fault}"
        rows.append((plugin.name, f"{GROUPS[plugin.group]} of {plugin.origin}, {said}"))
    return rows or [("none", "no installed package provides plug-ins; docs/how-to/extending.md says how to write one")]


def _documented(value: object) -> str:
    """Return a plug-in's description: its class's docstring, or for a formula its logits."""
    return str(getattr(value, "logits", "") or (value if isinstance(value, type) else type(value)).__doc__ or "")


def _datasets() -> list[tuple[str, str]]:
    from ..data.dataset import EMBEDDED, LAYOUTS
    from ..data.scenes import LAYOUTS as SCENES

    rows = [(name, f"the embedded set's {split} split, generated") for name, split in EMBEDDED.items()]
    rows += ((f"--layout {name}", text) for name, text in LAYOUTS.items() if name != "embedded")
    scenes = ((f"--layout {name}", f"robustkit segment: {text}") for name, text in SCENES.items() if name != "embedded")
    return [*rows, *scenes]
