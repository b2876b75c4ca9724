"""Which preprocessing and numbering of labels fit a classifier, as `robustkit inspect` shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset
from ..data.images import to_pixels
from ..display.console import print_line, print_tables
from ..display.table import TextTable
from ..errors import BadImageError
from ..evaluations.setup_flags import other_order
from ..models.identity import Classifier
from ..models.setup_check import ALIKE, BETTER, Bench, PartFit, Screen, SetupFit, fit_setup, spread_first
from ..models.setups import Setup, numberings

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

MOST = 512
"""Images that are looked at, class-balanced: enough to tell what matters, and few enough to be held."""

_MIXED = (
    "n: images that a candidate was tried on; where it is clearly behind, the rest are spared. NLL minus best's: of "
    "both on the same n images. "
)
_NOTE = (
    "Fits better: beyond chance, corrected for the number of candidates (Holm). Fits best: each of the others does the "
    f"same within {ALIKE} of NLL, or is worse beyond chance by itself, which needs no correction."
)


class _Images:
    """The readable images of a data set, as pixels under any preprocessing; those under the model's own are held."""

    def __init__(self, dataset: Dataset, preprocessing: Preprocessing, batch_size: int) -> None:
        self.dataset, self.own, self.samples = dataset, _bare(preprocessing), []
        self._held: list[Tensor] = []
        for sample in spread_first(dataset.samples, Screen().samples):
            try:
                self._held.append(to_pixels(dataset.image(sample), preprocessing, sample.id))
                self.samples.append(sample)
            except BadImageError:
                continue
        self.picture = lru_cache(batch_size)(self._picture)

    def _picture(self, place: int) -> Image.Image:
        return self.dataset.image(self.samples[place])

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
        return [], ["set-up: cannot tell, no image could be read"]
    labels = torch.tensor([sample.label for sample in images.samples])
    numbered = numberings(dataset.class_names, model.identity.num_classes)
    guessing = math.log(model.identity.num_classes)

    def score(logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        theirs = _renumbered(labels[list(places)], numbered[order])
        nll = torch.nn.functional.cross_entropy(logits, theirs, reduction="none").double()
        return torch.stack([nll, (logits.argmax(dim=1) == theirs).double()], dim=1)

    bench = Bench(model.network, images.read, len(labels), score, batch_size, model.mean.device)
    fits = fit_setup(bench, Setup(model.identity.preprocessing), numbered, guessing)
    lines = [fit.text for fit in fits]
    if not any(fit.best.nll < guessing for fit in fits):
        lines = [
            f"set-up: cannot tell, under none is the model better than guessing (NLL {fits[0].best.nll:.2f}, guessing "
            f"{guessing:.2f}); check the labels and the weights"
        ]
    if fits[-1].verdict != BETTER:
        predictions = bench.logits(fits[-1].used.setup).argmax(dim=1)  # under what the other parts have found
        lines += [line for line in [other_order(labels.numpy(), predictions.numpy())] if line]
    return fits, lines


def _renumbered(labels: Tensor, order: Sequence[int]) -> Tensor:
    return torch.tensor(order)[labels]


def show_setup(model: Classifier, dataset: Dataset, batch_size: int, seed: int, console: Console) -> list[PartFit]:
    """Print the ranking of each part of the set-up, and what it says. Return what fits, part by part."""
    fits, lines = fit_on(model, dataset, batch_size, seed)
    if fits:
        print_tables(console, [setup_table(fits)])
    for line in lines:
        print_line(console, line)
    return fits


def setup_table(fits: Sequence[PartFit]) -> TextTable:
    """Return the rankings as a table, a heading per part."""
    rows, heads = list[tuple[str, ...]](), list[tuple[int, str]]()
    for fit in fits:
        heads.append((len(rows), fit.part))
        for row in fit.rows[: 1 if fit.makes_no_difference else None]:
            numbers = f"{100 * row.top1:.1f}", _short(row.nll), "" if row is fit.best else _interval(row)
            rows.append((row.name, str(row.n), *numbers, "in use" if row.name == fit.in_use else ""))
    headings = ("set-up", "n", "top-1 %", "NLL", "NLL minus best's [95 %]", "")
    note = _MIXED + _NOTE if len({row[1] for row in rows}) > 1 else _NOTE
    title = "clean NLL, one part of the set-up varied at a time"
    table = TextTable(title, headings, tuple(rows), (), note, spare=("top-1 %",), heads=tuple(heads))
    return table.said_once("n")


def _interval(row: SetupFit) -> str:
    return f"+{_short(row.difference)} [{row.ci_low:+.{_digits(row.nll)}f}, {row.ci_high:+.{_digits(row.nll)}f}]"


def _short(value: float) -> str:
    return f"{value:.{_digits(value)}f}"


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1
