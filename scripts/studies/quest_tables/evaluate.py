"""Evaluate trained models of the zoo, and keep what pages need of each in one line.

    python -m scripts.studies.quest_tables.evaluate CHECKPOINT… --work runs/trainings
        --out scripts/studies/quest_tables/shapes.jsonl.gz

Each checkpoint goes through `robustkit.audit` in parts, which differ in how many images their cost allows; a part is
one run for all that lack it in --out, so that images are corrupted once. The same command continues where it was
stopped, and takes models that were trained later, and parts that were left out (--parts; `autoattack` takes the most
time by far). Attacks are at --eps: formulas differ most where about half of the images are still right. A line
holds the figures of summary.json that the pages use, clean accuracy on the images of each part that has fewer, and for
some conditions which images were right, as bits, and how many those are: differences over trainings need both.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

import robustkit
from robustkit.attention import capture
from robustkit.common.files import write_whole
from robustkit.data.images import to_pixels, to_unit_range
from robustkit.errors import RobustkitError
from robustkit.evaluations.records import CheckpointRecords
from robustkit.models.identity import Classifier
from robustkit.pipeline.inputs import labelled_data
from robustkit.report.run import Run

Line = dict[str, Any]
EPS = "2/255"

KEPT = (
    "top1",
    "nll",
    "mean_error",
    "median_distance",
    "distance_area",
    "cam_pixel_accuracy",
    "cam_iou",
    "cam_dice",
    "largest_logit",
    "query_norm",
    "key_norm",
    "attention_entropy",
    "entropy_share",
    "strongest_key",
    "softmax_slope",
)


@dataclass(frozen=True)
class Part:
    """One audit. options: of `robustkit.audit`. bits: the kinds of conditions of which is kept who was right.
    at_eps: whether its attacks take a radius.
    """

    name: str
    limit: int | None
    options: dict[str, Any] = field(default_factory=dict)
    bits: tuple[str, ...] = ()
    at_eps: bool = False


PARTS = (
    Part("clean", None, {"attacks": "none"}, ("clean",)),
    Part("attacked", 500, {"attacks": "fgsm,pgd"}, ("fgsm", "pgd"), at_eps=True),
    Part("spsa", 100, {"attacks": "spsa(steps=10,directions=32)"}, ("spsa",), at_eps=True),
    Part("autoattack", 50, {"attacks": "autoattack"}, ("autoattack",), at_eps=True),
    Part("corrupted", 200, {"attacks": "none", "corruptions": "in-c"}),
    Part("distances", 100, {"attacks": "fmn(norm=linf)"}),
    Part("attention", 200, {"attacks": "none", "cams": "agcam", "faithfulness": "none", "watch_attention": True}),
)


_PART_OF = {"fgsm": "attacked", "pgd": "attacked", "in-c": "corrupted", "fmn": "distances", "cam": "attention"}


def part_of(condition: str) -> Part:
    """Return the part that a condition is evaluated in."""
    kind = condition.partition("(")[0]
    return next(part for part in PARTS if part.name == _PART_OF.get(kind, kind))


def name_in(line: Mapping[str, Any], condition: str) -> str:
    """Return a line's name of a condition: itself, or the only one of its kind (`pgd`); '' where it has neither."""
    if condition in line["figures"]:
        return condition
    found = [name for name in line["figures"] if name.startswith(f"{condition}(")]
    return found[0] if len(found) == 1 else ""


def rows_of(run: Run, checkpoint: str, before: set[str]) -> dict[str, dict[str, float]]:
    """Return the figures that are kept, by condition and name. before: conditions that an earlier part had."""
    figures: dict[str, dict[str, float]] = {}
    for row in run.summary():
        control = row.condition.startswith("cam(") and not row.condition.startswith("cam(agcam")
        known = row.metric in KEPT or row.metric.startswith("accuracy_at(")
        if row.metric == "nll" and row.condition.startswith("corruption("):
            continue
        if row.checkpoint == checkpoint and row.condition not in before and known and not control:
            figures.setdefault(row.condition, {})[row.metric] = round(row.value, 6)
    return figures


def bits_of(run: Run, checkpoint: str, condition: str) -> tuple[str, int]:
    """Return which samples were right, in the order of their ids, eight a byte, in base 64; and how many they are."""
    right = CheckpointRecords(run, checkpoint).samples(condition, ["correct"]).columns["correct"]
    return base64.b64encode(np.packbits(right.astype(bool)).tobytes()).decode(), len(right)


@torch.no_grad()
def key_norm_spread(model: Classifier, data_dir: str, limit: int) -> float:
    """Return the standard deviation of key norms over tokens, as a share of their mean: over heads, layers, images."""
    data = labelled_data(data_dir, model.identity, {}, limit=limit, ids=None, seed=0)
    pixels = torch.stack([to_pixels(data.image(sample), model.identity.preprocessing) for sample in data.samples])
    shares = []
    with capture(model.network) as captured:
        for part in pixels.split(50):
            model(to_unit_range(part))
            shares += [norms.std(dim=-1) / norms.mean(dim=-1) for norms in captured.key_norms]
            captured.clear()
    return float(torch.cat(shares).mean())


def facts(path: Path) -> Line:
    """Return what a line begins with: what the checkpoint says about itself."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    return {
        "checkpoint": named(path),
        "attention": metadata["attention"],
        "seed": int(metadata["seed"]),
        "recipe": metadata["recipe"].partition("; scripts/")[0],  # without the script's name, which has changed
        "data": metadata["data_digest"],
        "parts": [],
        "figures": {},
        "right": {},
        "images": {},
        "clean_on": {},
    }


def named(path: Path) -> str:
    """Return the name of a training, whose seed the file of seed 0 does not say."""
    return path.stem if "-seed" in path.stem else f"{path.stem}-seed0"


def evaluate(part: Part, checkpoints: Mapping[Path, Line], data_dir: str, work: Path, eps: str = EPS) -> None:
    """Audit all of them in a part, and put what is kept into their lines."""
    run = robustkit.audit(
        list(checkpoints),
        data_dir=data_dir,
        limit=part.limit,
        out=work / part.name,
        setup_check=False,
        browse=0,
        say=lambda text: print(text, file=sys.stderr),
        **part.options,
        **({"eps": eps} if part.at_eps else {}),
    )
    others = {"clean"} - {part.name}  # clean figures of fewer images are not those that pages mean
    for path, line in checkpoints.items():
        name = path.stem
        line["sha256"] = run.manifest.checkpoint(name).sha256
        line["figures"] |= rows_of(run, name, {*line["figures"], *others})
        if part.limit:
            line.setdefault("clean_on", {})[str(part.limit)] = rows_of(run, name, set())["clean"]["top1"]
        for condition in (name_in(line, kind) for kind in part.bits):
            line["right"][condition], line["images"][condition] = bits_of(run, name, condition)
        if part.options.get("watch_attention"):
            spread = key_norm_spread(robustkit.load(path), data_dir, part.limit or 200)
            line["figures"]["attention(clean)"]["key_norm_spread"] = round(spread, 6)
        line["parts"].append(part.name)


def check_same(checkpoints: Sequence[Path], lines: Mapping[str, Line]) -> None:
    """Raise RobustkitError where a line is of another file than the checkpoint of its name."""
    for path in checkpoints:
        line = lines.get(named(path))
        if line and line["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
            raise RobustkitError(
                f"{path}: the line of {named(path)} is of another file; delete the line, or rename one"
            )


def read_lines(path: Path) -> list[Line]:
    """Return the lines that are kept; none where there is no file yet. Raises RobustkitError for one that is none."""
    try:
        data = path.read_bytes() if path.exists() else b""
        texts = (gzip.decompress(data) if data and path.suffix == ".gz" else data).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as fault:
        raise RobustkitError(f"{path}: cannot be read ({fault}); expected lines of JSON, compressed by gzip") from None
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as fault:
            raise RobustkitError(
                f"{path}, line {number}: {fault}; delete it, and evaluate that training again"
            ) from None
    return lines


def add(part: Part, checkpoints: Sequence[Path], data_dir: str, work: Path, out: Path, eps: str = EPS) -> int:
    """Evaluate the checkpoints whose lines lack a part, and write all lines. Return how many those are."""
    lines = _by_checkpoint(out)
    check_same(checkpoints, lines)
    found = {path: lines.get(named(path)) or facts(path) for path in checkpoints}
    wanted = {path: line for path, line in found.items() if part.name not in line["parts"]}
    if wanted:
        evaluate(part, wanted, data_dir, work / "+".join(path.stem for path in wanted)[:80], eps)
        lines = _by_checkpoint(out)  # another process may have written parts meanwhile
        for line in wanted.values():
            lines[line["checkpoint"]] = _joined(line, lines.get(line["checkpoint"], {}))
        text = "".join(json.dumps(lines[key], separators=(",", ":")) + "\n" for key in sorted(lines))
        write_whole(out, gzip.compress(text.encode(), mtime=0) if out.suffix == ".gz" else text.encode())
    return len(wanted)


def _joined(line: Line, other: Mapping[str, Any]) -> Line:
    """Return a line with what another of the same training has in addition."""
    both = {key: {**other.get(key, {}), **line.get(key, {})} for key in ("figures", "right", "images", "clean_on")}
    return {**line, **both, "parts": list(dict.fromkeys([*other.get("parts", []), *line["parts"]]))}


def _by_checkpoint(path: Path) -> dict[str, Line]:
    return {line["checkpoint"]: line for line in read_lines(path)}


def main(arguments: list[str] | None = None) -> int:
    """Evaluate what has no line yet, and write them all. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="what scripts/zoo/train.py wrote")
    parser.add_argument("--data-dir", default="embedded:shapes")
    parser.add_argument("--eps", default=EPS, help="of attacks: one for all trainings of a file")
    parser.add_argument("--work", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--out", type=Path, required=True, help="the lines; compressed where it ends in .gz")
    parser.add_argument("--parts", default=",".join(part.name for part in PARTS), help="some of them, with commas")
    options = parser.parse_args(arguments)
    parts = {part.name: part for part in PARTS}
    asked = options.parts.split(",")
    if odd := set(asked) - set(parts):
        parser.error(f"unknown part {', '.join(sorted(odd))}; known: {', '.join(parts)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    try:
        for name in asked:
            done += add(parts[name], options.checkpoints, options.data_dir, options.work, options.out, options.eps)
    except RobustkitError as error:
        print(f"scripts.studies.quest_tables.evaluate: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {len(read_lines(options.out))} trainings; {done} parts are new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
