"""Inspect a checkpoint: what is in it, and which attention formula and preprocessing fit its weights."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..attention.apply import get_attention, set_attention
from ..attention.fingerprint import Fingerprint, rank_formulas
from ..common.held import PREFIX
from ..common.preprocessing import Preprocessing, describe_preprocessing, exact_numbers
from ..data.dataset import Dataset, Sample
from ..data.images import to_pixels, to_unit_range
from ..data.scenes import LabelledScenes, open_scenes, read_whole
from ..display.notebook import as_html, as_json
from ..display.table import TextTable
from ..errors import BadImageError, ModelError, ProtocolError
from ..evaluations.attention.evaluate import check_watchable, watch
from ..evaluations.attention.results import Heads, HeadSums, layer_table
from ..evaluations.setup_flags import other_order
from ..models.classifier import load
from ..models.dense import Segmenter
from ..models.device import pick_device
from ..models.identity import Classifier
from ..models.segmenter import is_segmenter, load_segmenter
from ..models.setup_check import (
    ALIKE,
    BETTER,
    UNKNOWN,
    Bench,
    PartFit,
    Screen,
    Setup,
    fit_setup,
    label_numberings,
    spread_first,
)
from .audit import Checkpoint, grouped, in_memory
from .inputs import labelled_data
from .manifest import describe
from .request import ClassificationRequest, SegmentationRequest

if TYPE_CHECKING:
    import pandas as pd

MOST = 512  # Images that are looked at, class-balanced: enough to tell what matters, and few enough to be held

_MIXED = (
    "n: images that a candidate was tried on; one that is clearly behind is dropped early. NLL minus best's: of both "
    "on "
    "the same n images. "
)
_NOTE = (
    "Fits better: significantly, corrected for the number of candidates (Holm). Fits best: each of the others is "
    f"equivalent within {ALIKE} of NLL, or significantly worse in its own test, which needs no correction."
)


class _Images:
    """The readable images of a data set, as pixels under any preprocessing; those under the model's own are held."""

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing, batch_size: int) -> None:
        self.own, self.samples = _bare(preprocessing), list[Sample]()
        self._held: list[Tensor] = []
        for sample in spread_first(dataset.samples, Screen().samples):
            try:
                self._held.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
                self.samples.append(sample)
            except BadImageError:
                continue
        self.picture = lru_cache(batch_size)(lambda place: dataset.image(self.samples[place]))

    def read(self, place: int, preprocessing: Preprocessing) -> Tensor:
        if _bare(preprocessing) == self.own:
            return self._held[place]
        return to_pixels(self.picture(place), preprocessing, self.samples[place].id)


def _bare(preprocessing: Preprocessing) -> Preprocessing:
    return replace(preprocessing, mean=(), std=())


def fit_on(model: Classifier, dataset: Dataset, batch_size: int, seed: int) -> tuple[list[PartFit], list[str]]:
    """Return what fits a classifier on labelled images, part by part, and lines on it. `model` is on its device."""
    dataset = dataset.select(limit=MOST, seed=seed)
    images = _Images(dataset, model.identity.preprocessing, batch_size)
    if not images.samples:
        return [], ["set-up: inconclusive, no image could be read"]
    labels = torch.tensor([sample.label for sample in images.samples])
    numbered = label_numberings(dataset.class_names, model.identity.num_classes)
    guessing = math.log(model.identity.num_classes)

    def score(logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        theirs = torch.tensor(numbered[order])[labels[list(places)]]
        nll = torch.nn.functional.cross_entropy(logits, theirs, reduction="none").double()
        return torch.stack([nll, (logits.argmax(dim=1) == theirs).double()], dim=1)

    bench = Bench(model.network, images.read, len(labels), score, batch_size, model.mean.device)
    fits = fit_setup(bench, Setup(model.identity.preprocessing), numbered, guessing)
    lines = [fit.text for fit in fits]
    if not any(fit.best.nll < guessing for fit in fits):
        lines = [
            f"set-up: inconclusive, no candidate is better than chance (NLL {fits[0].best.nll:.2f}, chance "
            f"{guessing:.2f}); check the labels and the weights"
        ]
    if fits[-1].verdict != BETTER:
        predictions = bench.logits(fits[-1].used.setup).argmax(dim=1)  # under what the other parts have found
        lines += [line for line in [other_order(labels.numpy(), predictions.numpy())] if line]
    return fits, lines


def setup_table(fits: Sequence[PartFit]) -> TextTable:
    rows, heads = list[tuple[str, ...]](), list[tuple[int, str]]()
    for fit in fits:
        heads.append((len(rows), fit.part))
        for row in fit.rows[: 1 if fit.makes_no_difference else None]:
            digits = _digits(row.nll)
            apart = f"+{_short(row.difference)} [{row.ci_low:+.{digits}f}, {row.ci_high:+.{digits}f}]"
            numbers = f"{100 * row.top1:.1f}", _short(row.nll), "" if row is fit.best else apart
            rows.append((row.name, str(row.n), *numbers, "in use" if row.name == fit.in_use else ""))
    headings = ("set-up", "n", "top-1 %", "NLL", "NLL minus best's [95 %]", "")
    note = _MIXED + _NOTE if len({row[1] for row in rows}) > 1 else _NOTE
    title = "clean NLL, one part of the set-up varied at a time"
    return TextTable(title, headings, tuple(rows), (), note, spare=("top-1 %",), heads=tuple(heads)).said_once("n")


def _short(value: float) -> str:
    return f"{value:.{_digits(value)}f}"


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1


_FLAGS = {"labels_csv": "labels"}
_ZERO, _ONE = (0.0,) * 3, (1.0,) * 3  # what a network that normalises by itself has
_WITHOUT_FORMULA = {"none": "no layers of attention", "other": "none of the formulas of robustkit list attentions"}


@dataclass
class _Found:
    """The set-up that fits, as far as it is known. unsure: parts that nobody stated and no data confirmed."""

    formula: str
    preprocessing: Preprocessing
    unsure: list[str]

    @classmethod
    def of(cls, opened: Classifier) -> _Found:
        identity = opened.identity
        return cls(identity.attention, identity.preprocessing, describe(identity, identity.preprocessing).assumed)

    @contextmanager
    def under_formula(self, opened: Classifier) -> Iterator[None]:
        own = opened.identity.attention
        if self.formula != own:
            set_attention(opened.network, self.formula)
        yield
        if self.formula != own:
            set_attention(opened.network, own)

    def take_fits(self, fits: Sequence[PartFit]) -> None:
        for fit in fits:
            chosen = fit.best if fit.verdict == BETTER else fit.used
            self.preprocessing = Setup(self.preprocessing).with_part(fit.part, chosen.setup).preprocessing
            if fit.verdict != UNKNOWN:
                self.unsure = [part for part in self.unsure if part != fit.part]


@dataclass(frozen=True)
class Ranked:
    """A table; rows: the figures of its candidates, where it has any."""

    table: TextTable
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
        doubt = f" (not confirmed: {', '.join(self.unsure)})" if self.unsure else ""
        return f"this command states the complete set-up{doubt}:"


@dataclass(frozen=True)
class Inspected:
    """What `robustkit inspect` prints. facts: names and texts. tables and lines: of the images. stated: the set-up that
    fits; give `stated.settings` to `robustkit.audit`."""

    facts: tuple[tuple[str, str], ...]
    stated: Stated
    tables: tuple[TextTable, ...] = field(default=(), repr=False)
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
        return as_json(plain | asdict(self.stated))

    def _repr_html_(self) -> str:
        facts = TextTable("", ("", ""), self.facts)
        said = self.lines + ((self.stated.heading, self.stated.command) if self.stated.command else ())
        return as_html([facts, *self.tables]) + "\n" + as_html((), said)


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
    **options: Any,
) -> Inspected:
    """Say what is in a checkpoint; with images, rank attention formulas and set-ups by clean NLL.

    Args:
        checkpoint: a model spec or a network, as `robustkit.audit` takes it. data_dir: labelled images, likewise.
        stability: also show what the heads of each layer do. masks, ignore: of a segmenter's images.
        options: of `robustkit.load` and `robustkit.data.open_dataset`, such as mean, std, pixels or labels_csv;
            classes are those of a zero-shot model, or the names of a segmenter's labels.

    Raises:
        RobustkitError: anything that is wrong with the checkpoint or the images.
        TypeError: an option that neither has.
    """
    groups = grouped(ClassificationRequest, options, ("model", "data"))
    model, data = (groups.get(name, {}) for name in ("model", "data"))
    if batch_size < 1:
        raise ProtocolError(f"batch_size={batch_size}: expected 1 or more")
    own: dict[str, Any] = {"masks": masks, "ignore": ignore}
    scenes = {name: value for name, value in own.items() if value is not None}
    chosen: dict[str, Any] = {"limit": limit, "ids": ids, "seed": seed, "batch_size": batch_size, "device": device}
    facts, lines, tables, rows = list[tuple[str, str]](), list[str](), list[TextTable](), list[dict[str, Any]]()
    stated, images = Stated({}, "", ()), "" if data_dir is None else data_dir
    given = [*checkpoint.values()] if isinstance(checkpoint, Mapping) else [checkpoint]
    paths = [] if isinstance(images, str | Path) else [each for each in given if isinstance(each, str | Path)]
    segments = any(isinstance(each, Segmenter) for each in given) or any(map(is_segmenter, paths))

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
) -> Iterator[tuple[str, str] | str | Ranked | Stated]:
    """Yield what `inspect` returns, as it is found: facts as pairs, lines, tables, at last the set-up. data, scenes:
    options of images for classifiers, of masks for segmenters. segments: whether it is a segmenter in memory. check:
    raises for options that do not fit the kind."""
    if stability and data_dir is None:
        raise ProtocolError(
            "--stability measures attention on images, and --data-dir is missing; give a folder of them"
        )
    where, bad = pick_device(device), list[str]()
    kept = ("arch", "attention", "num_classes", "mean", "std", "use_ema", "allow_partial")  # that a segmenter also has
    of_segmenter = {key: value for key, value in model.items() if key in kept}
    segments = segments or (not checkpoint.startswith(PREFIX) and is_segmenter(checkpoint))
    opened = load_segmenter(checkpoint, **of_segmenter) if segments else load(checkpoint, **model)
    yield from _facts(opened)
    found = _Found.of(opened)
    if data_dir is None:
        yield _stated(checkpoint, "DIR", {}, model, opened, found)
        return
    check(segments)
    unranked = _unranked(opened)
    if segments and unranked:
        raise ModelError(f"--data-dir ranks attention formulas, and {unranked}; leave it out")
    if stability:
        _check_stable(opened)
    images: Iterable[tuple[Tensor, Tensor]]
    if segments:
        scenes |= {"classes": model.get("classes"), "num_classes": opened.identity.num_classes}
        labelled = open_scenes(data_dir, **scenes).select(limit, ids, seed)
        notes, images = labelled.notes, _scenes(labelled, bad)
    else:
        dataset = labelled_data(data_dir, opened.identity, data, limit=limit, ids=ids, seed=seed)
        notes, images = dataset.notes, _batches(dataset, opened.identity.preprocessing, batch_size, bad)
        if dataset.valid_labels is not None:
            notes += (f"all {opened.identity.num_classes} classes compete here, unlike in an audit of this data",)
    yield from notes
    if unranked:
        yield f"attention formulas are not ranked: {unranked}"
    else:
        pairs = ((to_unit_range(pixels.to(where)), labels.to(where)) for pixels, labels in images)
        source = "assumed" if opened.identity.attention_source == "default" else "declared"
        fingerprint = rank_formulas(opened.to(where), pairs, source=source)
        if bad:
            yield f"{len(bad)} images could not be read, the first: {bad[0]}"
        rows = (_candidate("attention", row, fingerprint.n, fingerprint.best) for row in fingerprint.rows)
        yield Ranked(fingerprint_table(fingerprint, fingerprint.n, segments), tuple(rows))
        yield fingerprint.text
        if fingerprint.verdict != "inconclusive":
            found.unsure = [part for part in found.unsure if part != "attention"]
        if fingerprint.verdict == "another-fits-better":
            found.formula = fingerprint.best
    if segments:
        yield "set-up: preprocessing candidates are compared for classifiers only"
    else:
        with found.under_formula(opened):
            fits, lines = fit_on(opened.to(where), dataset, batch_size, seed)
        if fits:
            tried = (_candidate(fit.part, row, row.n, fit.best.name) for fit in fits for row in fit.rows)
            yield Ranked(setup_table(fits), tuple(tried))
        yield from lines
        found.take_fits(fits)
    if stability:
        heads = _heads(opened.to(where), _batches(dataset, opened.identity.preprocessing, batch_size, []))
        yield Ranked(layer_table(heads, f"attention on {heads.n} images, layer by layer"))
    yield _stated(checkpoint, data_dir, scenes if segments else data, model, opened, found)


def _check_stable(opened: Classifier) -> None:
    if isinstance(opened, Segmenter):
        why = "--stability applies to classifiers, and this is a segmenter; leave it out"
        raise ModelError(f"{opened.identity.name}: {why}")
    check_watchable(opened.network, opened.identity.name, "--stability")


_CANDIDATE = ["part", "name", "n", "top1", "nll", "difference", "ci_low", "ci_high", "best"]


def _candidate(part: str, row: Any, n: int, best: str) -> dict[str, Any]:
    figures = (row.top1, row.nll, row.difference, row.ci_low, row.ci_high)
    return dict(zip(_CANDIDATE, (part, row.name, n, *figures, row.name == best), strict=True))


def _stated(
    checkpoint: str,
    data_dir: str,
    options: Mapping[str, Any],
    model: Mapping[str, Any],
    opened: Classifier,
    found: _Found,
) -> Stated:
    """Return the set-up that fits, and a complete command. options: of the data, as they were given."""
    segments = isinstance(opened, Segmenter)
    stated: dict[str, Any] = {name: value for name, value in model.items() if name not in ("attention", "mean", "std")}
    if found.formula not in _WITHOUT_FORMULA:
        stated["attention"] = found.formula
    p = found.preprocessing
    settings: dict[str, Any] = {**stated, "mean": p.mean, "std": p.std}
    if settings.pop("pixels", None) and tuple(p.mean) == _ZERO and tuple(p.std) == _ONE:
        settings |= {"pixels": True, "mean": None, "std": None}
    stated |= {name: exact_numbers(getattr(p, name)) for name in ("mean", "std")}
    stated |= {} if segments else {"crop_pct": f"{p.crop_pct:.6g}", "interpolation": p.interpolation}
    settings |= {} if segments else {"crop_pct": p.crop_pct, "interpolation": p.interpolation}
    settings = {name: value for name, value in settings.items() if value not in (None, False, ())}
    if checkpoint.startswith(PREFIX) or data_dir.startswith(PREFIX):
        return Stated(settings, "", tuple(found.unsure))
    words = ["robustkit", "segment" if segments else "audit", checkpoint, "--data-dir", data_dir]
    for name, value in {**options, **stated}.items():
        if value in (None, False, ()):
            continue
        joint = "," if name == "ignore" else "x"
        text = joint.join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{_FLAGS.get(name, name.replace('_', '-'))}", *([] if value is True else [text])]
    return Stated(settings, shlex.join(words), tuple(found.unsure))


def _unranked(model: Classifier) -> str:
    """Return why no attention formulas can be ranked; empty where they can."""
    try:
        get_attention(model.network)
    except ModelError as error:
        return str(error)
    return ""


def _heads(model: Classifier, batches: Iterable[tuple[Tensor, Tensor]]) -> Heads:
    sums = HeadSums(Path(model.identity.name))
    for pixels, _ in batches:
        _, seen = watch(model.network, to_unit_range(pixels.to(model.mean.device)), model)
        sums.add(seen.layers, {name: values.double().numpy() for name, values in seen.values.items()})
    heads = sums.heads()
    assert heads is not None  # without an image there is no ranking either
    return heads


def _batches(
    dataset: Dataset, preprocessing: Preprocessing, batch_size: int, bad: list[str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pixels (B, 3, H, W) and labels (B,); images that cannot be read go to `bad`."""
    for start in range(0, len(dataset.samples), batch_size):
        pixels, labels = [], []
        for sample in dataset.samples[start : start + batch_size]:
            try:
                pixels.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
                labels.append(sample.label)
            except BadImageError as fault:
                bad.append(str(fault))
        if pixels:
            yield torch.stack(pixels), torch.tensor(labels)


def _scenes(scenes: LabelledScenes, bad: list[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pixels (1, 3, H, W) and labels (1, H, W), one image at a time."""
    for sample in scenes.dataset.samples:
        try:
            pixels = read_whole(scenes.dataset, sample)
            labels = torch.from_numpy(scenes.labels(sample, (pixels.shape[1], pixels.shape[2]))).long()
        except BadImageError as fault:
            bad.append(str(fault))
            continue
        yield pixels[None], labels[None]


def _facts(classifier: Classifier) -> Iterator[tuple[str, str]]:
    identity = classifier.identity
    preprocessing = identity.preprocessing
    count = sum(parameter.numel() for parameter in classifier.parameters())
    yield "checkpoint", identity.spec
    yield "SHA-256", str(identity.sha256)
    if identity.code_sha256:
        yield "config or code", f"SHA-256 {identity.code_sha256}"
    read = "" if identity.spec.startswith(PREFIX) else "; read without running code"
    yield "weights", f"{identity.weights}, {count / 1e6:.2f} M parameters{read}"
    yield "architecture", f"{identity.arch}, {identity.num_classes} classes"
    source = f"{identity.attention} (from {identity.attention_source})"
    yield "attention", _WITHOUT_FORMULA.get(identity.attention, source)
    if isinstance(classifier, Segmenter):
        yield "windows", ", ".join(f"{key} {value}" for key, value in (classifier.windows or {}).items())
    said = describe_preprocessing(asdict(preprocessing), identity.preprocessing_source, identity.arch)
    yield from (("input", part) for part in said.split("; "))
    yield from ((key, str(value)) for key, value in identity.metadata.items())
    yield from (("note", note) for note in identity.notes)


def fingerprint_table(fingerprint: Fingerprint, n: int, pixels: bool = False) -> TextTable:
    """Return the ranking as a table. pixels: whether the figures are means over the pixels of an image."""
    right = "pixel acc. %" if pixels else "top-1 %"
    rows = []
    named = (("best", fingerprint.best), (fingerprint.source, fingerprint.declared))
    for row in fingerprint.rows:
        marks = ", ".join(word for word, name in named if row.name == name)
        interval = f"{row.difference:+.3f} [{row.ci_low:+.3f}, {row.ci_high:+.3f}]"
        beyond = "" if row.name == fingerprint.best else interval
        rows.append((row.name, f"{100 * row.top1:.1f}", f"{row.nll:.3f}", beyond, marks))
    title = f"clean NLL of {n} samples under each formula, same weights"
    return TextTable(title, ("formula", right, "NLL", "NLL minus best's [95 %]", ""), tuple(rows))
