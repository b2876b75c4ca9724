"""Write the files of a checkpoint's release from its results: section and metadata of a model card, JSON, badge."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from PIL import ImageFont

from ...common.figure import Figure
from ...common.files import check_plain, parse_toml, reason_of, write_whole
from ...display.format import counted
from ...display.table import as_markdown
from ...display.text import Made, code, escape_markdown, fenced
from ...errors import NothingEvaluated, RunError, unknown
from ...evaluations.aggregate import Results
from ...evaluations.attacks import starts_from
from ...evaluations.condition import estimated, is_attack, kind_of, name_of
from ...evaluations.corruptions import in_short
from ...evaluations.maps import is_control
from ...evaluations.presenting import left_out_lines, unfinished_line
from ...evaluations.setup_findings import setup_text
from ...protocol.card import samples_of
from ...protocol.condition import CLEAN
from ...results.pairing import heads_setup
from ...results.survey import doubts_of, survey
from ...runs.description import shown_as, why_not_repeated
from ...runs.folder import RunFolder
from ...runs.manifest import ELSEWHERE, CheckpointEntry, Manifest
from ...tasks import find_metric, metrics
from ...tasks.task import task_named, task_of

MADE_BY = "robustkit card"  # the mark of each file of a card, so that only files with it are ever overwritten
LABEL, VALUE, INK = "#3b3f46", "#2b5c8a", "#ffffff"
"""The backgrounds of both halves, whatever the value: a figure is shown, not judged."""
SIZE, HEIGHT, PADDING = 11, 20, 7
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def headline(manifest: Manifest, rows: Sequence[Figure], gap: str = "") -> tuple[str, str, str]:
    """Return label, value and description for the strongest attack on clean images (measured, or estimated where it was
    not carried out), or for these alone. rows: of one checkpoint, as in summary.json. gap: what its run lacks."""
    claims, task = manifest.claims, task_of(manifest)
    finite = [row for row in rows if row.is_finite]
    measured = [row for row in finite if row.metric in (task.headline, f"{task.headline}_worst")]  # of several runs
    attacked = [row for row in measured if row.condition in claims]
    attacked = [row for row in attacked if starts_from(row.condition) == CLEAN.text]
    attacked += [row for row in finite if _estimated(row) not in {"", *(whole.condition for whole in measured)}]
    on_clean = (row for row in measured if row.condition == CLEAN.text)
    chosen = min(reversed(attacked), key=lambda row: row.value) if attacked else next(on_clean, None)
    if chosen is None:
        return "robustkit", "–", f"no figure of clean or attacked {task.samples.many} was measured"
    name = name_of(chosen.condition, "badge", manifest)
    label = f"{name} {task.badge_word(is_clean=not attacked)}".strip()
    worst = "worst-case " if chosen.metric.endswith("_worst") else ""
    what = f"{'estimated ' if _estimated(chosen) else worst}{task.headline_metric.word}"
    value = task.headline_metric.as_text(chosen.value)
    bounds = ""
    if chosen.has_interval:
        low, high = (task.headline_metric.as_text(end) for end in (chosen.low, chosen.high))
        bounds = f", 95 % interval {low.removesuffix(' %')} to {high}"
    flags = "".join(f"; {line}" for line in [*filter(None, [gap]), *map(str, chosen.findings)])
    where = f"under {chosen.condition}" if attacked else f"on clean {task.samples.many}"
    description = f"{what} {where}: {value}{bounds}, n = {counted(chosen)}, protocol {chosen.protocol}{flags}"
    return label, value + (" (unfinished)" if gap else " (flagged)" if flags else ""), description


def _estimated(row: Figure) -> str:
    """Return the text of the attack whose figure a row estimates; empty where it was measured."""
    return estimated(row.condition, row.metric)


def badge(label: str, value: str, description: str) -> str:
    """Return the SVG's text. description: the tooltip."""
    label, value, description = (_ILLEGAL.sub("\ufffd", text) for text in (label, value, description))
    lengths = (float(ImageFont.load_default(SIZE).getlength(text)) for text in (label, value))
    left, right = (math.ceil(1.1 * length) for length in lengths)  # the faces named below are wider than Pillow's
    middle, width = left + 2 * PADDING, left + right + 4 * PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}" '
        f'role="img" aria-label={quoteattr(f"{label}: {value}")}>',
        f"<!-- {MADE_BY} --><title>{escape(description)}</title>",
        f'<clipPath id="r"><rect width="{width}" height="{HEIGHT}" rx="3"/></clipPath>',
        f'<g clip-path="url(#r)"><rect width="{middle}" height="{HEIGHT}" fill="{LABEL}"/>',
        f'<rect x="{middle}" width="{width - middle}" height="{HEIGHT}" fill="{VALUE}"/></g>',
        f'<g fill="{INK}" font-family="DejaVu Sans,Verdana,sans-serif" font-size="{SIZE}">',
        _text(PADDING, left, label),
        _text(middle + PADDING, right, value),
        "</g></svg>\n",
    ]
    return "".join(parts)


def _text(x: int, length: int, text: str) -> str:
    """Return text that keeps the measured width, whatever font is available."""
    return f'<text x="{x}" y="14" textLength="{length}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


def write_cards(
    run: Path, *, checkpoint: str | None = None, out: Path | None = None, crosswalk: bool = False
) -> list[Path]:
    """Write card.md, metadata.yml, results.json and badge.svg of one checkpoint; return their paths. out: `card` in the
    run if left out. crosswalk: whether the card says for which clauses of standards its figures are evidence. Raises
    NothingEvaluated without results, RunError for an unclear checkpoint or a foreign file."""
    source = RunFolder.existing(run)
    folder = folder_of(source, "card", out)
    described = checkpoint_entry(source, checkpoint)
    rows = results_of(source, described.name)
    document = facts(source, described, rows)
    files = {
        "card.md": card_markdown(source, described.to_plain(), rows, crosswalk),
        "metadata.yml": model_index(document),
        "results.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        "badge.svg": badge(*headline(source.manifest, rows, document.get("unfinished", ""))),
    }
    return write_files(folder, files)


def folder_of(run: RunFolder, name: str, out: Path | None) -> Path:
    """Return the folder to write to: `out`, else one of this name in the run. Raises RunError where that is a link."""
    folder = run.path / name if out is None else out
    if out is None and folder.is_symlink():  # in an untrusted run folder it may point anywhere
        raise RunError(f"{folder} is a link to {folder.resolve()}; choose that folder, or another, with --out")
    return folder


def write_files(folder: Path, files: Mapping[str, str], mark: str = MADE_BY) -> list[Path]:
    """Write texts by their paths in a folder; return the paths. mark: what each begins with, within 2000 bytes. Raises
    RunError, before anything is written, where one exists without the mark."""
    for name in files:
        _refuse_foreign(folder / name, mark)
    for name, text in files.items():
        write_whole(folder / name, text.encode("utf-8", "replace"))
    return [folder / name for name in files]


def results_of(run: RunFolder, checkpoint: str | None = None) -> Results:
    """Return the results of a run, or of one checkpoint, as in summary.json. Raises NothingEvaluated for none."""
    rows = survey(run if checkpoint is None else _OfOne(run.path, checkpoint))
    if not len(rows):
        where = run.path if checkpoint is None else f"{run.path}: {checkpoint}"
        raise NothingEvaluated(f"{where} has no results; run the audit again to make them")
    return rows


class _OfOne(RunFolder):
    """A run that looks as if it had one checkpoint."""

    def __init__(self, path: Path, checkpoint: str) -> None:
        super().__init__(path)
        self.checkpoint = checkpoint

    def units(self) -> Iterator[tuple[str, str]]:
        return (unit for unit in super().units() if unit[0] == self.checkpoint)


def checkpoint_entry(run: RunFolder, checkpoint: str | None) -> CheckpointEntry:
    """Return the checkpoint of this name, or the only one. Raises RunError where it is unclear or unknown."""
    by_name = {described.name: described for described in run.manifest.checkpoints}
    if checkpoint is None and len(by_name) == 1:
        return next(iter(by_name.values()))
    if checkpoint is None:
        raise RunError(f"{run.path} has {len(by_name)} checkpoints; choose one with --checkpoint: {', '.join(by_name)}")
    if checkpoint not in by_name:
        raise RunError(unknown("checkpoint", checkpoint, by_name))
    return by_name[checkpoint]


def _refuse_foreign(path: Path, mark: str) -> None:
    try:
        if not path.exists():
            return
        check_plain(path)
        with path.open("rb") as file:
            if mark.encode() in file.read(2000):
                return
    except OSError as fault:
        raise RunError(f"{path}: cannot be read ({reason_of(fault)}); choose another folder with --out") from None
    raise RunError(f"{path} exists and was not written by robustkit; choose another folder with --out")


def facts(run: RunFolder, described: CheckpointEntry, rows: Results) -> dict[str, Any]:
    """Return what results.json holds: all results of a checkpoint, and all that they depend on, except folders."""
    manifest = run.manifest
    held, gap = manifest.to_plain(), unfinished_line(run, described.name)
    data = {key: value for key, value in held["data"].items() if key != "root"}
    if manifest.data.layout == "predictions":  # their file has given it its name
        data["name"] = "unknown"
    return {
        "made_by": f"{MADE_BY} {metadata.version('robustkit-audit')}",
        **{key: held[key] for key in ("robustkit", "command", "started")},
        "checkpoint": {key: value for key, value in described.to_plain().items() if key not in ("path", "metadata")},
        "setup": setup_of(run, described),
        "protocol": held["protocol"],
        "data": data,
        "corrupted": {"digests": held["corrupted"]["digests"]},
        "unreadable_images": len(manifest.bad_images),
        **({"plugins": [plugin.identity for plugin in manifest.used_plugins]} if manifest.used_plugins else {}),
        **{key: held[key] for key in ("seed", "deciding", "device", "batch_size", "versions")},
        "results": [row.to_plain() for row in rows],
        **({"unfinished": gap} if gap else {}),
    }


def setup_of(run: RunFolder, described: CheckpointEntry) -> str:
    """Return the set-up of a checkpoint in a line, and how heads of features were made, if it has any."""
    text = setup_text(run.manifest, described.name, run.evidence(described.name, CLEAN.text))
    heads = ", ".join(f"{name} {value}" for name, value in heads_setup(described).items())
    return f"{text}; heads: {heads}" if heads else text


def model_index(document: Mapping[str, Any]) -> str:
    """Return the `model-index` of a model card's front matter, as the Hugging Face Hub specifies it, as YAML.
    document: as from `facts`."""
    data = document["data"]
    result = {
        "task": {"type": task_named(document["protocol"]["task"]).hub},
        "dataset": {
            "type": re.sub(r"[^a-z0-9._-]+", "-", str(data["name"]).lower()).strip("-.") or "custom",
            "name": data["name"],
            "args": {"n": data["n"], "digest": data["digest"]},
        },
        "metrics": list(hub_metrics(document)),
    }
    index = {"model-index": [{"name": document["checkpoint"]["name"], "results": [result]}]}
    return f"# {MADE_BY}: goes between the --- lines at the top of a model card's README.md\n{yaml_text(index)}"


def yaml_text(value: Any) -> str:
    """Return YAML whose texts readers of YAML 1.1 and 1.2 take for the same texts."""
    import yaml

    def quoted(dumper: Any, text: str) -> Any:
        """Quote what either could take for a number, a truth value or syntax."""
        style = None if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]+", text) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(str, quoted)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=2**31)
    return text


def hub_metrics(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a checkpoint that the Hub has a type for, as metrics of a `model-index`."""
    named = {name: metric.hub for name, metric in metrics().items() if metric.hub is not None}
    named |= {f"{name}_worst": (kind, f"worst-case {word}") for name, (kind, word) in named.items()}  # of several runs
    rows = [row for row in map(Figure.from_plain, document["results"]) if row.metric in named and row.is_finite]
    texts = in_short(row.condition for row in rows)  # of means, the widest
    called = samples_of(document["protocol"]["task"]).many
    for row in rows:
        if row.condition not in texts:
            continue
        kind, name = named[row.metric]
        ends = {"ci_low": round(row.low, 6), "ci_high": round(row.high, 6)} if row.has_interval else {}
        args = {
            "condition": row.condition,
            "protocol": row.protocol,
            "n": row.n,
            **ends,
            **({"space": document["protocol"]["space"]} if "eps=" in row.condition else {}),
            "data_digest": document["data"]["digest"][:12],
            **digest_named(document),
            "setup": document["setup"],
            "seed": document["seed"],
            "robustkit": document["robustkit"],
        }
        for key, lines in (("caveats", document["protocol"]["caveats"]), ("flags", caveats_of(document, row))):
            args |= {key: [*lines]} if lines else {}  # lists of its own, or YAML would point from one to the other
        under = f"on clean {called}" if row.condition == CLEAN.text else f"under {row.condition}"
        yield {
            "type": kind,
            "name": f"{name} {under} ({row.protocol}, n = {counted(row)})",
            "value": round(row.value, 6),
            "args": args,
            "verified": False,
        }


def digest_named(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digest of a checkpoint by what it is of: its file, or the predictions of another system."""
    elsewhere = document["checkpoint"]["weights"] == ELSEWHERE
    return {"predictions_digest" if elsewhere else "checkpoint_sha256": document["checkpoint"]["sha256"]}


def caveats_of(document: Mapping[str, Any], row: Figure) -> list[str]:
    """Return what a row of results must not be shown without: what its run lacks, and its findings."""
    return [*([document["unfinished"]] if "unfinished" in document else []), *map(str, row.findings)]


def card_markdown(run: RunFolder, described: Mapping[str, Any], rows: Results, crosswalk: bool = False) -> str:
    from jinja2 import Environment, StrictUndefined

    source = (resources.files(__package__) / "templates" / "card.md.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=False,  # `finalize` escapes for Markdown whatever no filter has made
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Made) else escape_markdown(value),
    )
    environment.filters |= {"code": code, "fenced": fenced, "table": as_markdown}
    manifest = run.manifest
    held, versions = manifest.to_plain(), {"robustkit": manifest.robustkit, **manifest.versions}
    versions |= {f"plug-in {plugin.name} of {plugin.distribution}": plugin.version for plugin in manifest.used_plugins}
    entry = manifest.checkpoint(described["name"])
    text = environment.from_string(source).render(
        {key: held[key] for key in ("seed", "device", "batch_size", "started", "robustkit")},
        command=manifest.command,
        why_not=why_not_repeated(manifest.command),
        flags=[
            *(escape_markdown(caveat) for caveat in manifest.protocol.caveats),
            *_flags(run, rows, described["name"]),
        ],
        checkpoint={"notes": [], "sha256": None, **described},
        preprocessing=", ".join(shown_as(entry).values()),
        setup=setup_of(run, entry),
        is_elsewhere=entry.is_elsewhere,
        data=held["data"],
        protocol=held["protocol"],
        deciding=held["deciding"],
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        sections=list(task_of(manifest).card_parts(described["name"], rows)),
        evidence=list(evidence_of(rows, task_of(manifest).samples.many == "images")) if crosswalk else [],
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _flags(run: RunFolder, rows: Results, checkpoint: str) -> Iterator[Made]:
    """Yield what the run lacks, and each flag once, with the conditions that have it."""
    if gap := unfinished_line(run, checkpoint):
        yield escape_markdown(gap)
    for flag, (first, *others) in doubts_of(rows).items():
        yield Made(f"{code(first)}{f' and {len(others)} more' if others else ''}: {escape_markdown(flag)}")
    yield from map(escape_markdown, left_out_lines(run, checkpoint))


@cache
def clauses() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of crosswalk.toml: figure, kinds of conditions, metrics, evidence, clauses, some of images."""
    text = (resources.files(__package__) / "crosswalk.toml").read_text("utf-8")
    return tuple(parse_toml(text, "crosswalk.toml", RunError)["row"])


def evidence_of(rows: Sequence[Figure], images: bool = True) -> Iterator[tuple[str, str, str]]:
    """Yield a figure, what it is evidence for, and the clauses, as far as the rows of a checkpoint have such figures.

    Of several conditions the figure is the worst one's; controls of maps do not count. A part without figures is left
    out. images: whether the model is one of images, which some clauses are about.
    """
    for part in clauses():
        values = []
        for name in part["metrics"]:
            metric = find_metric(name)
            worst_case = {row.condition for row in rows if row.metric == f"{name}_worst"}
            some = [row for row in rows if row.metric == name and _has(part["kinds"], row.condition)]
            some = [row for row in some if row.condition not in worst_case]
            if metric and (some := [row for row in some if row.is_finite]):
                worst = min(some, key=lambda row: metric.better * row.value)
                end = "lowest" if metric.better > 0 else "highest"
                among = f", the {end} of {len(some)} conditions" if len(some) > 1 else ""
                doubts = "".join(f"; flag: {flag}" for flag in doubts_of([worst]))
                under = f"{worst.condition}, n = {counted(worst)}{among}{doubts}"
                values.append(f"{metric.label or name} {metric.cell(worst)} ({under})")
        if values:
            named = [*part["clauses"], *(part.get("of_images", ()) if images else ())]
            yield f"{part['figure']}: {'; '.join(values)}", part["evidence"], "; ".join(named)


def _has(kinds: Sequence[str], condition: str) -> bool:
    kind = kind_of(condition)
    return (kind in kinds and not is_control(condition)) or ("attacks" in kinds and is_attack(kind))
