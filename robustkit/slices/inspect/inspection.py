"""Inspect a checkpoint: what is in it, and which attention formula and preprocessing fit its weights."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...attention.fingerprint import Fit
from ...common.figure import Figure
from ...common.names import IN_MEMORY
from ...common.plugins import of_slice
from ...common.preprocessing import Preprocessing, describe_preprocessing, exact_numbers
from ...data.dataset import Dataset
from ...data.scenes import LabelledScenes, open_scenes
from ...display.format import count, figure_cell, number, scaled
from ...display.html import as_html
from ...display.progress import Bars
from ...display.table import Table
from ...display.text import finite_json
from ...errors import BadImageError, ModelError, ProtocolError
from ...models.classifier import load
from ...models.dense import Segmenter
from ...models.device import pick_device
from ...models.identity import Classifier
from ...models.segmenter import is_segmenter, load_segmenter
from ...models.setup_check import (
    ALIKE,
    BETTER,
    UNKNOWN,
    PartFit,
    Setup,
)
from ...pipeline.audit import Checkpoint, grouped, in_memory
from ...pipeline.inputs import labelled_data
from ...pipeline.manifest import describe
from ...pipeline.request import ClassificationRequest, SegmentationRequest
from .search import Fingerprint, SetupSearch, makes_no_difference, unranked_reason

if TYPE_CHECKING:
    import pandas as pd

_MIXED = (
    "n: images that a candidate was tried on; one that is settled earlier is dropped. NLL minus best's: of both on the "
    "same n images. "
)
_NOTE = (
    "Fits better: significantly, corrected for the number of candidates (Holm). Fits best: each of the others is "
    f"equivalent within {ALIKE} of NLL, or significantly worse in its own test, which needs no correction."
)


def setup_table(fits: Sequence[PartFit]) -> Table:
    rows, heads = list[tuple[str, ...]](), list[tuple[int, str]]()
    for fit in fits:
        heads.append((len(rows), fit.part))
        for row in fit.rows[: 1 if makes_no_difference(fit) else None]:
            digits = 3 if abs(row.nll) < 10 else 1
            gap = Figure(row.difference, row.n, row.ci_low, row.ci_high)
            apart = "" if row is fit.best else figure_cell(gap, 1, sign="+", digits=digits)
            numbers = scaled(row.top1), number(row.nll, digits), apart
            rows.append((row.name, count(row.n), *numbers, "in use" if row.name == fit.in_use else ""))
    headings = ("set-up", "n", "top-1 %", "NLL", "NLL minus best's [95 %]", "")
    note = _MIXED + _NOTE if len({row[1] for row in rows}) > 1 else _NOTE
    title = "clean NLL, one part of the set-up varied at a time"
    return Table(title, headings, tuple(rows), (), note, spare=("top-1 %",), heads=tuple(heads)).said_once("n")


_FLAGS = {"labels_csv": "labels"}
_ZERO, _ONE = (0.0,) * 3, (1.0,) * 3  # what a network that normalises by itself has
_WITHOUT_FORMULA = {"none": "no layers of attention", "other": "none of the formulas of robustkit list attentions"}


@dataclass
class _Setup:
    """The set-up that fits, as far as it is known. unsure: parts that nobody stated and no data confirmed."""

    formula: str
    preprocessing: Preprocessing
    unsure: list[str]

    @classmethod
    def of(cls, opened: Classifier) -> _Setup:
        identity = opened.identity
        return cls(identity.attention, identity.preprocessing, describe(identity, identity.preprocessing).assumed)

    def take_formula(self, fingerprint: Fingerprint) -> None:
        if fingerprint.verdict != "inconclusive":
            self.unsure = [part for part in self.unsure if part != "attention"]
        if fingerprint.verdict == "another-fits-better":
            self.formula = fingerprint.best

    def take_fits(self, fits: Sequence[PartFit]) -> None:
        for fit in fits:
            chosen = fit.best if fit.verdict == BETTER else fit.used
            self.preprocessing = Setup(self.preprocessing).with_part(fit.part, chosen.setup).preprocessing
            if fit.verdict != UNKNOWN:
                self.unsure = [part for part in self.unsure if part != fit.part]


@dataclass(frozen=True)
class Ranked:
    """A table; rows: the figures of its candidates, where it has any."""

    table: Table
    rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Stated:
    """A whole set-up. settings: as keywords of `robustkit.audit`. command: that states it, empty for what is in memory.
    unsure: its parts that nobody stated and no data confirmed."""

    settings: dict[str, Any]
    command: str
    unsure: tuple[str, ...]

    @property
    def heading(self) -> str:
        """The line above the command."""
        if self.unsure:
            return f"assumed, not confirmed: {', '.join(self.unsure)}; to state them, run:"
        return "to state this set-up, run:"


@dataclass(frozen=True)
class Inspected:
    """What `robustkit inspect` prints. facts: names and texts. tables and lines: of the images. stated: the set-up that
    fits; give `stated.settings` to `robustkit.audit`."""

    facts: tuple[tuple[str, str], ...]
    stated: Stated
    tables: tuple[Table, ...] = field(default=(), repr=False)
    lines: tuple[str, ...] = ()
    candidates: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each formula and set-up that was tried: its part, name, n, top1, nll, and the difference of
        NLL to the best with its 95 % interval. Empty without images."""
        import pandas as pd

        return pd.DataFrame(list(self.candidates), columns=_CANDIDATE)

    def to_json(self) -> str:
        """Return all of it as JSON."""
        plain = {"facts": self.facts, "candidates": self.candidates, "lines": self.lines}
        return finite_json(plain | asdict(self.stated))

    def _repr_html_(self) -> str:
        facts = Table("", ("", ""), self.facts)
        lines = self.lines + ((self.stated.heading, self.stated.command) if self.stated.command else ())
        return as_html([facts, *self.tables]) + "\n" + as_html((), lines)


def inspect(
    checkpoint: Checkpoint | Mapping[str, Checkpoint],
    data_dir: Any = None,
    *,
    limit: int | None = None,
    ids: Path | None = None,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "auto",
    stability: bool = False,
    masks: str | None = None,
    ignore: tuple[int, ...] | None = None,
    reduce_zero_label: bool | None = None,
    **options: Any,
) -> Inspected:
    """Say what is in a checkpoint; with images, rank attention formulas and set-ups by clean NLL.

    Args:
        checkpoint: a model spec or a network, as `robustkit.audit` takes it.
        data_dir: labelled images, likewise; None: the file alone is looked at.
        stability: also show what the heads of each layer do.
        masks: of a segmenter's images, as are ignore and reduce_zero_label.
        **options: of `robustkit.load` and `open_dataset`, such as mean; classes name a zero-shot model's or labels.

    Returns:
        Facts, tables, and the settings that state the set-up.

    Raises:
        RobustkitError: anything that is wrong with the checkpoint or the images.
        TypeError: an option that neither has.

    Example:
        >>> robustkit.inspect("zoo:shapes-vit-quest").stated.settings["attention"]
        'quest'
    """
    groups = grouped(ClassificationRequest, options, ("model", "data"))
    model, data = (groups.get(name, {}) for name in ("model", "data"))
    if batch_size < 1:
        raise ProtocolError(f"batch_size={batch_size}: expected 1 or more")
    scene_options: dict[str, Any] = {"masks": masks, "ignore": ignore, "reduce_zero_label": reduce_zero_label}
    scenes = {name: value for name, value in scene_options.items() if value is not None}
    chosen: dict[str, Any] = {"limit": limit, "ids": ids, "seed": seed, "batch_size": batch_size, "device": device}
    facts, lines, tables, rows = list[tuple[str, str]](), list[str](), list[Table](), list[dict[str, Any]]()
    stated, images = Stated({}, "", ()), "" if data_dir is None else data_dir
    checkpoints = [*checkpoint.values()] if isinstance(checkpoint, Mapping) else [checkpoint]
    paths = [] if isinstance(images, str | Path) else [each for each in checkpoints if isinstance(each, str | Path)]
    segments = any(isinstance(each, Segmenter) for each in checkpoints) or any(map(is_segmenter, paths))

    def check(segments: bool) -> None:
        odd, whose = (data, "classifier") if segments else (scenes, "segmenter")
        if odd:
            what = "segmenter" if segments else "classifier"
            raise ProtocolError(f"{', '.join(odd)}: only for a {whose}'s images, and this is a {what}; leave it out")

    kind = SegmentationRequest if segments else ClassificationRequest
    with in_memory(kind, checkpoint, images, model) as (specs, at):
        if len(specs) != 1:
            raise ProtocolError(f"{len(specs)} checkpoints; expected one: call inspect for each")
        chosen |= {"model": model, "data": data, "scenes": scenes, "stability": stability, "check": check}
        for item in look_into(str(specs[0]), None if data_dir is None else str(at), segments=segments, **chosen):
            if isinstance(item, Ranked):
                tables.append(item.table)
                rows += item.rows
            elif isinstance(item, Stated):
                stated = item
            elif isinstance(item, tuple):
                facts.append(item)
            else:
                lines.append(item)
    return Inspected(tuple(facts), stated, tuple(tables), tuple(lines), tuple(rows))


def look_into(
    checkpoint: str,
    data_dir: str | None,
    *,
    model: dict[str, Any],
    data: dict[str, Any],
    scenes: dict[str, Any],
    limit: int | None,
    ids: Path | None,
    seed: int,
    batch_size: int,
    device: str,
    stability: bool = False,
    segments: bool = False,
    check: Callable[[bool], None] = lambda segments: None,
    bars: Callable[[], AbstractContextManager[Bars | None]] = nullcontext,
) -> Iterator[tuple[str, str] | str | Ranked | Stated]:
    """Yield what `inspect` returns, as it is found: facts as pairs, lines, tables, at last the set-up. data, scenes:
    options of images for classifiers, of masks for segmenters. segments: whether it is a segmenter in memory. check:
    raises for options that do not fit the kind. bars: makes what shows how far a search is."""
    if stability and data_dir is None:
        raise ProtocolError("--stability measures attention on images, and --data-dir is missing; give a folder")
    where = pick_device(device)
    names = ("arch", "attention", "num_classes", "mean", "std", "use_ema", "allow_partial")  # that a segmenter also has
    of_segmenter = {key: value for key, value in model.items() if key in names}
    segments = segments or (not checkpoint.startswith(IN_MEMORY) and is_segmenter(checkpoint))
    opened = load_segmenter(checkpoint, **of_segmenter) if segments else load(checkpoint, **model)
    yield from _facts(opened)
    setup = _Setup.of(opened)
    if data_dir is None:
        yield _stated(checkpoint, "DIR", {}, model, opened, setup)
        return
    check(segments)
    unranked = unranked_reason(opened)
    if segments and unranked:
        raise ModelError(f"--data-dir ranks attention formulas, and {unranked}; leave it out")
    if stability:
        _check_stable(opened)
    images: Dataset | LabelledScenes
    if segments:
        scenes |= {"classes": model.get("classes"), "num_classes": opened.identity.num_classes}
        images = open_scenes(data_dir, **scenes).select(limit, ids, seed)
        yield from images.notes
    else:
        images = labelled_data(data_dir, opened.identity, data, limit=limit, ids=ids, seed=seed)
        yield from images.notes
        if images.valid_labels is not None:
            yield f"all {opened.identity.num_classes} classes compete here, unlike in an audit of this data"
    yield from _searched(SetupSearch(opened.to(where), images, batch_size, seed), unranked, setup, bars)
    if stability and isinstance(images, Dataset):
        batches = _batches(images, opened.identity.preprocessing, batch_size)
        yield Ranked(of_slice("watch_layers", "--stability")(opened, batches))
    yield _stated(checkpoint, data_dir, scenes if segments else data, model, opened, setup)


def _searched(
    search: SetupSearch, unranked: str, setup: _Setup, bars: Callable[[], AbstractContextManager[Bars | None]]
) -> Iterator[str | Ranked]:
    """Yield tables and lines on which formula and which set-up fit, and tell `setup`. unranked: why no formula is."""
    segments = isinstance(search.model, Segmenter)
    if unranked:
        yield f"attention formulas are not ranked: {unranked}"
    else:
        with bars() as bars_shown:
            search.show(bars_shown)
            fingerprint = search.rank()
        if bad := search.images.bad:
            yield f"{len(bad)} images could not be read, the first: {bad[0]}"
        rows = (_candidate("attention", row, fingerprint.best) for row in fingerprint.rows)
        yield Ranked(fingerprint_table(fingerprint, segments), tuple(rows))
        yield fingerprint.text
        setup.take_formula(fingerprint)
    if segments:
        yield "set-up: preprocessing candidates are compared for classifiers only"
        return
    with bars() as bars_shown:
        search.show(bars_shown)
        fits, lines = search.fit("" if unranked else setup.formula)
    if fits:
        tried = (_candidate(fit.part, row, fit.best.name) for fit in fits for row in fit.rows)
        yield Ranked(setup_table(fits), tuple(tried))
    yield from lines
    setup.take_fits(fits)


def _check_stable(opened: Classifier) -> None:
    if isinstance(opened, Segmenter):
        why = "--stability applies to classifiers, and this is a segmenter; leave it out"
        raise ModelError(f"{opened.identity.name}: {why}")
    of_slice("check_watchable", "--stability")(opened.network, opened.identity.name, "--stability")


_CANDIDATE = ["part", "name", "n", "top1", "nll", "difference", "ci_low", "ci_high", "best"]


def _candidate(part: str, row: Fit, best: str) -> dict[str, Any]:
    figures = (row.n, row.top1, row.nll, row.difference, row.ci_low, row.ci_high)
    return dict(zip(_CANDIDATE, (part, row.name, *figures, row.name == best), strict=True))


def _stated(
    checkpoint: str,
    data_dir: str,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    opened: Classifier,
    setup: _Setup,
) -> Stated:
    """Return the set-up that fits, and a complete command. options: of the data, as they were given."""
    segments = isinstance(opened, Segmenter)
    stated: dict[str, Any] = {name: value for name, value in model.items() if name not in ("attention", "mean", "std")}
    if setup.formula not in _WITHOUT_FORMULA:
        stated["attention"] = setup.formula
    p = setup.preprocessing
    settings: dict[str, Any] = {**stated, "mean": p.mean, "std": p.std}
    if settings.pop("pixels", None) and tuple(p.mean) == _ZERO and tuple(p.std) == _ONE:
        settings |= {"pixels": True, "mean": None, "std": None}
    stated |= {name: exact_numbers(getattr(p, name)) for name in ("mean", "std")}
    stated |= {} if segments else {"crop_pct": f"{p.crop_pct:.6g}", "interpolation": p.interpolation}
    settings |= {} if segments else {"crop_pct": p.crop_pct, "interpolation": p.interpolation}
    settings = {name: value for name, value in settings.items() if value not in (None, False, ())}
    if checkpoint.startswith(IN_MEMORY) or data_dir.startswith(IN_MEMORY):
        return Stated(settings, "", tuple(setup.unsure))
    words = ["robustkit", "segment" if segments else "audit", checkpoint, "--data-dir", data_dir]
    for name, value in {**options, **stated}.items():
        if value in (None, False, ()):
            continue
        joint = "," if name == "ignore" else "x"
        text = joint.join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{_FLAGS.get(name, name.replace('_', '-'))}", *([] if value is True else [text])]
    return Stated(settings, shlex.join(words), tuple(setup.unsure))


def _batches(dataset: Dataset, preprocessing: Preprocessing, batch_size: int) -> Iterator[Tensor]:
    """Yield pixels (B, 3, H, W) of the images that can be read."""
    for start in range(0, len(dataset.samples), batch_size):
        pixels = []
        for sample in dataset.samples[start : start + batch_size]:
            with suppress(BadImageError):
                pixels.append(dataset.pixels(sample, preprocessing))
        if pixels:
            yield torch.stack(pixels)


def _facts(classifier: Classifier) -> Iterator[tuple[str, str]]:
    identity = classifier.identity
    preprocessing = identity.preprocessing
    count = sum(parameter.numel() for parameter in classifier.parameters())
    yield "checkpoint", identity.spec
    yield "SHA-256", str(identity.sha256)
    if identity.code_sha256:
        yield "config or code", f"SHA-256 {identity.code_sha256}"
    read = "" if identity.spec.startswith(IN_MEMORY) else "; read without running code"
    yield "weights", f"{identity.weights}, {count / 1e6:.2f} M parameters{read}"
    yield "architecture", f"{identity.arch}, {identity.num_classes} classes"
    source = f"{identity.attention} (from {identity.attention_source})"
    yield "attention", _WITHOUT_FORMULA.get(identity.attention, source)
    if isinstance(classifier, Segmenter):
        yield "windows", ", ".join(f"{key} {value}" for key, value in (classifier.windows or {}).items())
    text = describe_preprocessing(asdict(preprocessing), identity.preprocessing_source, identity.arch)
    yield from (("input", part) for part in text.split("; "))
    yield from ((key, str(value)) for key, value in identity.metadata.items())
    yield from (("note", note) for note in identity.notes)


def fingerprint_table(fingerprint: Fingerprint, pixels: bool = False) -> Table:
    """Return the ranking as a table. pixels: whether the figures are means over the pixels of an image."""
    right = "pixel acc. %" if pixels else "top-1 %"
    rows = []
    named = (("best", fingerprint.best), (fingerprint.source, fingerprint.declared))
    for row in fingerprint.rows:
        marks = ", ".join(word for word, name in named if row.name == name)
        gap = Figure(row.difference, row.n, row.ci_low, row.ci_high)
        beyond = "" if row.name == fingerprint.best else figure_cell(gap, 1, sign="+")
        rows.append((row.name, count(row.n), scaled(row.top1), number(row.nll), beyond, marks))
    title, note = "clean NLL under each formula, same weights", _MIXED if len({row[1] for row in rows}) > 1 else ""
    headings = ("formula", "n", right, "NLL", "NLL minus best's [95 %]", "")
    return Table(title, headings, tuple(rows), (), note).said_once("n")
