"""Find the command that evaluates a condition that a run lacks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..evaluations.kinds import vocabulary_of
from ..evaluations.pattern import pattern_of
from ..protocol.card import card_names
from ..protocol.pattern import ConditionPattern
from ..runs.manifest import Manifest
from ..tasks.task import task_of

_OPTIONS = (
    *("limit", "ids", "shuffle", "boxes", "masks", "classes", "frost_dir", "seed", "dtype", "compile"),
    *("layout", "labels_csv", "real_labels", "ignore", "arch", "attention", "num_classes", "use_ema", "allow_partial"),
    *("mean", "std", "interpolation", "crop_pct", "crop_mode", "img_size", "window", "stride", "short_side", "resize"),
)


def missing_command(manifest: Manifest, name: str, wanted: ConditionPattern, out: Path) -> str:
    """Return the command that evaluates a condition of a checkpoint into the same run, whose folder is `out`."""
    asked, task = manifest.arguments, task_of(manifest)
    words = ["robustkit", task.command, manifest.checkpoint(name).spec]
    words += [
        "--data-dir",
        str(asked.get("data_dir", manifest.data.root)),
        *vocabulary_of(wanted.name).command(wanted, pattern_of),
    ]
    card = manifest.protocol.name
    own_card = ["--protocol", card if card in card_names() else f"{card}.toml"]
    words += [] if card == task.card else own_card
    kept = ("limit", "ids", "shuffle", "boxes", "masks", "classes", "frost_dir")
    given: dict[str, Any] = {key: asked.get(key) for key in kept}
    given |= {**(asked.get("model") or {}), **(asked.get("data") or {}), "seed": manifest.seed or None}
    deciding = manifest.deciding
    given |= {"dtype": deciding.dtype if deciding.dtype != "float32" else None, "compile": deciding.compile or None}
    for key, value in given.items():
        if key not in _OPTIONS:  # run.json may be someone else's
            continue
        if value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{key.removesuffix('_csv').replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join([*words, "--out", str(out)])
