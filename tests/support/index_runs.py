"""A folder of runs as people have them: two of one checkpoint, one unfinished, damaged ones, hostile ones, links."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gate_runs import PGD, make, spread
from page_runs import HOSTILE

from robustkit.report.run import Run
from robustkit.results.survey import write_summary
from robustkit.runs.manifest import digest_of
from robustkit.runs.untrusted import digest_of_run


def audited(path: Path, name: str, hits: tuple[int, int], day: int, of: int = 50, **changes: Any) -> Run:
    """A run of one checkpoint, so many of whose samples are right, clean and under PGD. changes: in its run.json."""
    changes = {"started": f"2026-01-{day:02d}T08:00:00+00:00"} | changes
    run = make(path, {name: {"clean": spread(hits[0], of), PGD: spread(hits[1], of)}}, **changes)
    write_summary(run)
    return run


def furnished(folder: Path) -> Path:
    """Write the runs into a folder, and one next to it that a link leads to."""
    for place, hits in enumerate(((45, 30), (40, 20))):
        run = audited(folder / "vit" / "ab"[place], "vit", hits, day=3 + place)
        (run.path / "report.html").write_text("<!doctype html><title>report</title>", "utf-8")
    half = audited(folder / "half", "other", (25, 10), day=6)
    shutil.rmtree(half.shard_path("other", PGD, 0).parent)
    early = audited(folder / "early", "other", (25, 10), day=5)
    (early.path / "summary.json").unlink()
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text('{"seed": 0', "utf-8")
    altered = audited(folder / "altered", "third", (5, 1), day=2)
    text = altered.manifest_path.read_text("utf-8").replace('"standard@1:0"', '"standard@9:9"')
    altered.manifest_path.write_text(text, "utf-8")
    for place, hostile in enumerate(HOSTILE[:4]):
        audited(folder / "hostile" / str(place), hostile, (40, 9), day=1)
    forged(audited(folder / "forged", "forged", (40, 9), day=1), [{"checkpoint": ["<b>"], "condition": 7}])
    outside = audited(folder.parent / "outside", "outside", (50, 50), day=9)
    (folder / "linked").symlink_to(outside.path)
    (folder / "half-linked").mkdir()
    (folder / "half-linked" / "run.json").symlink_to(outside.manifest_path)
    (folder / ".hidden").mkdir()
    shutil.copytree(folder / "vit" / "a", folder / ".hidden" / "a")
    return folder


def forged(run: Run, rows: object) -> None:
    """Write a summary of anything, with the digest that an audit would give it."""
    plain = {"results": rows, "run": digest_of_run(run.manifest)}
    (run.path / "summary.json").write_text(json.dumps(plain | {"digest": digest_of(plain)}), "utf-8")
