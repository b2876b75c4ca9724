"""What a training keeps in its folder: a state to go on from, and a log; each is written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from robustkit.common.files import write_whole
from robustkit.errors import RunError

Row = Mapping[str, Any]


def save_state(folder: Path, identity: Mapping[str, str], rows: Sequence[Row], **parts: Any) -> None:
    """Write state.pt and log.jsonl. identity: what another training has otherwise. parts: state dicts and numbers."""
    content = io.BytesIO()
    torch.save({"identity": dict(identity), "rows": json.dumps(rows), **parts}, content)
    write_whole(folder / "state.pt", content.getvalue())
    write_log(folder, rows)


def write_log(folder: Path, rows: Sequence[Row]) -> None:
    """Write log.jsonl, a line for each row."""
    write_whole(folder / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode(), durable=False)


def saved_state(folder: Path, identity: Mapping[str, str], device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """Return the state in the folder, its rows read; None where there is none.

    Raises:
        RunError: it is of a training with another identity; of a JSON object the entry that differs is named.
    """
    path = folder / "state.pt"
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    for what, wanted in identity.items():
        if (saved := state["identity"].get(what)) != wanted:
            what, saved, wanted = _difference(what, saved, wanted)
            raise RunError(
                f"{folder}: holds a run with {what} {saved}, not {wanted}; give another --work, or delete it"
            )
    return {**state, "rows": json.loads(state["rows"])}


def _difference(what: str, saved: str | None, wanted: str) -> tuple[str, Any, Any]:
    """Return what differs, and both values: of JSON objects the first entry that does."""
    if saved is None or not (saved.startswith("{") and wanted.startswith("{")):
        return what, saved, wanted
    before, now = json.loads(saved), json.loads(wanted)
    key = next(key for key in {**now, **before} if now.get(key) != before.get(key))
    return key, before.get(key), now.get(key)
