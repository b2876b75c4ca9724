"""What is in a checkpoint, and which attention formula fits its weights: `robustkit inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .errors import BadImageError
from .fingerprint import Fingerprint, rank_formulas
from .images import to_pixels
from .models import Classifier, load
from .pipeline import labelled_data, pick_device

if TYPE_CHECKING:
    from rich.console import Console


def inspect_checkpoint(
    checkpoint: str,
    data_dir: str | None,
    *,
    model: dict[str, Any],
    data: dict[str, Any],
    limit: int | None,
    ids: Path | None,
    seed: int,
    batch_size: int,
    device: str,
    console: Console,
) -> None:
    """Print what a checkpoint holds; with images, rank the attention formulas by clean NLL.

    Raises:
        RobustkitError: the checkpoint or the data cannot be used; the line says why.
    """
    where = pick_device(device)
    classifier = load(checkpoint, **model)
    for name, text in _facts(classifier):
        console.print(f"{name:>14}  {text}", markup=False, highlight=False, soft_wrap=True)
    if data_dir is None:
        return
    dataset = labelled_data(data_dir, classifier.identity, data, limit=limit, ids=ids, seed=seed)
    preprocessing = classifier.identity.preprocessing

    bad: list[str] = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        import torch

        for start in range(0, len(dataset.samples), batch_size):
            pixels, labels = [], []
            for sample in dataset.samples[start : start + batch_size]:
                try:
                    pixels.append(to_pixels(dataset.image(sample), preprocessing))
                    labels.append(sample.label)
                except BadImageError as fault:
                    bad.append(str(fault))
            if pixels:
                yield torch.stack(pixels).to(where).float().div(255), torch.tensor(labels, device=where)

    for note in dataset.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    fingerprint = rank_formulas(classifier.to(where), batches)
    if bad:
        console.print(f"{len(bad)} images could not be read, the first: {bad[0]}", markup=False, soft_wrap=True)
    if dataset.valid_labels is not None:
        console.print(f"all {classifier.identity.num_classes} classes compete here, unlike in an audit of this data")
    console.print(fingerprint_table(fingerprint, fingerprint.n))
    console.print(fingerprint.text, markup=False, highlight=False, soft_wrap=True)


def _facts(classifier: Classifier) -> Iterator[tuple[str, str]]:
    identity = classifier.identity
    own = identity.preprocessing
    count = sum(parameter.numel() for parameter in classifier.network.parameters())
    yield "checkpoint", identity.spec
    yield "SHA-256", str(identity.sha256)
    yield "weights", f"{identity.weights}, {count / 1e6:.2f} M parameters; read without running code"
    yield "architecture", f"{identity.arch}, {identity.num_classes} classes"
    yield "attention", f"{identity.attention} (from {identity.attention_source})"
    yield "pixels", f"{own.input_size[0]}x{own.input_size[1]}, {own.interpolation}, {own.crop_mode} crop {own.crop_pct}"
    yield "normalisation", f"mean {' '.join(f'{m:g}' for m in own.mean)}, std {' '.join(f'{s:g}' for s in own.std)}"
    for key, value in identity.metadata.items():
        yield key, str(value)
    for note in identity.notes:
        yield "note", note


def fingerprint_table(fingerprint: Fingerprint, n: int) -> Any:
    """The ranking as a rich table."""
    from rich.table import Table

    table = Table(title=f"clean NLL of {n} samples under each formula, same weights", title_justify="left")
    for heading in ("formula", "top-1 %", "NLL", "NLL minus best's [95 %]", ""):
        table.add_column(heading, justify="left" if heading in ("formula", "") else "right")
    for row in fingerprint.rows:
        marks = [
            word
            for word, is_it in (("best", fingerprint.best), ("declared", fingerprint.declared))
            if row.name == is_it
        ]
        interval = (
            "" if row.name == fingerprint.best else f"{row.difference:+.3f} [{row.ci_low:+.3f}, {row.ci_high:+.3f}]"
        )
        table.add_row(row.name, f"{100 * row.top1:.1f}", f"{row.nll:.3f}", interval, ", ".join(marks))
    return table
