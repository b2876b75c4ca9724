"""A condition that a run lacks into the command that evaluates it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..evaluations.corruptions.sets import SETS
from ..protocol.card import card_names
from .pattern import Wanted


def missing_command(manifest: Mapping[str, Any], name: str, wanted: Wanted, out: Path) -> str:
    """The command that evaluates a condition of a checkpoint into the same run, whose folder is `out`."""
    own = next(known for known in manifest["checkpoints"] if known["name"] == name)
    of_scenes = manifest["protocol"].get("task") == "segmentation"
    asked = manifest.get("arguments", {})
    words = ["robustkit", "segment" if of_scenes else "audit", str(own.get("spec", name))]
    words += ["--data-dir", str(asked.get("data_dir", manifest["data"].get("root", "DIR"))), *_asking(wanted)]
    card = manifest["protocol"]["name"]
    own_card = ["--protocol", card if card in card_names() else f"{card}.toml"]
    words += [] if card == ("segmentation" if of_scenes else "standard") else own_card
    given: dict[str, Any] = {key: asked.get(key) for key in ("limit", "ids", "boxes", "masks", "classes", "frost_dir")}
    given |= {**(asked.get("model") or {}), **(asked.get("data") or {}), "seed": manifest["seed"] or None}
    deciding = manifest["deciding"]
    given |= {"dtype": deciding["dtype"] if deciding.get("dtype", "float32") != "float32" else None}
    given |= {"compile": deciding.get("compile") or None}
    for key, value in given.items():
        if value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{key.removesuffix('_csv').replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join([*words, "--out", str(out)])


def _asking(wanted: Wanted) -> Iterator[str]:
    given = dict(wanted.parameters)
    if wanted.name == "attention":
        under = Wanted.of(given.get("under", "clean"))
        yield from _asking(under)
        yield "--watch-attention"
    elif wanted.name in ("cam", "stability"):
        kept = ",".join(f"{key}={value}" for key, value in given.items() if key not in ("mode", "under"))
        under = Wanted.of(given.get("under", "clean"))
        yield from ("--attacks", "none") if under.name in ("clean", "corruption") else ("--attacks", under.text)
        yield from ("--corruptions", _corruption(under)) if under.name == "corruption" else ()
        yield from ("--cams", f"{wanted.what}({kept})" if kept else wanted.what)
        yield from ("--stability",) if wanted.name == "stability" else ()
    elif wanted.name == "clean":
        yield from ("--attacks", "none")
    elif wanted.name == "corruption" or wanted.name in SETS:
        yield from ("--attacks", "none", "--corruptions", _corruption(wanted))
        yield from (word for key in ("preset", "variant") if key in given for word in (f"--{key}", given[key]))
    else:
        yield from ("--attacks", wanted.text)


def _corruption(wanted: Wanted) -> str:
    severity = dict(wanted.parameters).get("severity")
    name = wanted.what or wanted.name
    return f"{name}(severity={severity})" if severity else name
