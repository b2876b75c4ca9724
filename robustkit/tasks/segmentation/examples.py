"""Draw scenes of a run: image, truth, and each checkpoint's prediction, clean, corrupted and attacked."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...data.dataset import Sample
from ...data.scenes import LabelledScenes
from ...errors import BadImageError
from ...evaluations.family import family_of
from ...evaluations.kinds import words_of
from ...evaluations.subject import Batch, Settings
from ...models.dense import Segmenter
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition
from ...runs.folder import RunFolder
from .counts import class_counts
from .sheet import FILE, Examples, Pixels, Tile, draw
from .subject import SegmenterSubject


def draw_examples(
    run: RunFolder,
    models: Sequence[Segmenter],
    scenes: LabelledScenes,
    conditions: Sequence[Condition],
    card: Card,
    settings: Settings,
    count: int = 4,
) -> Path | None:
    """Write the sheet of a run; None where no scene can be read.

    The conditions shown are clean, the first attack, and the corruption with the lowest mIoU in the run.
    """
    shown = _shown(run, conditions)
    subjects = [SegmenterSubject(model, card, settings, scenes.unjudged) for model in models]
    rows = []
    for sample in _spread(_readable(run, scenes), count):
        try:
            rows.append(tuple(_tiles(subjects, scenes, sample, shown)))
        except BadImageError:
            continue
    if not rows:
        return None
    names = [model.identity.name for model in models]
    headings = (("image", ""), ("truth", ""), *((_words(c), name) for name in names for c in shown))
    line = f"{scenes.dataset.name}; protocol {card.tag}"
    sheet = Examples(", ".join(names), line, headings, tuple(rows), scenes.class_names)
    buffer = io.BytesIO()
    draw(sheet).save(buffer, "PNG")
    run.write(run.path / FILE, buffer.getvalue())
    return run.path / FILE


def _shown(run: RunFolder, conditions: Sequence[Condition]) -> list[Condition]:
    scores: dict[str, list[float]] = {}
    for row in run.summary():
        if row["metric"] == "miou" and row["value"] is not None:
            scores.setdefault(row["condition"], []).append(row["value"])
    grouped = [condition for condition in conditions if condition.group and condition.text in scores]
    worst = sorted(grouped, key=lambda condition: sum(scores[condition.text]))[:1]
    alone = [condition for condition in conditions if not condition.group and condition != CLEAN][:1]
    return [CLEAN, *worst, *alone]


def _words(condition: Condition) -> str:
    """Return a condition in a few words, as the heading of a column."""
    label = words_of(condition.text).label(condition.text)
    return label.replace("_", " ") if condition.group else label


def _readable(run: RunFolder, scenes: LabelledScenes) -> list[Sample]:
    """Return the samples of the run that could be read under every condition and have a pixel that counts."""
    kept = {sample.id: sample for sample in scenes.dataset.samples}
    for unit in run.units():
        table = run.table(*unit, ["sample_id", "pixels"]).to_pydict()
        for name, pixels in zip(table["sample_id"], table["pixels"], strict=True):
            if not pixels:
                kept.pop(name, None)
    return list(kept.values())


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    return [samples[index * len(samples) // count] for index in range(min(count, len(samples)))]


def _tiles(
    subjects: Sequence[SegmenterSubject], scenes: LabelledScenes, sample: Sample, conditions: Sequence[Condition]
) -> Iterator[Tile]:
    image: Pixels = np.array(scenes.dataset.image(sample))
    truth = scenes.labels(sample, (image.shape[0], image.shape[1]))
    yield Tile(image, None, (sample.id,))
    yield Tile(image, truth)
    pixels, labels = torch.from_numpy(image).permute(2, 0, 1)[None], torch.from_numpy(truth).long()[None]
    for subject in subjects:
        target = labels.to(subject.settings.device)
        for condition in conditions:
            rng, batch = subject.rng([sample], condition), Batch(pixels, [sample], [truth])
            show = partial(family_of(condition.name).show, subject, batch, condition, rng)
            inputs = subject.steadily(condition.text, rng, show).inputs
            predictions = subject.steadily(condition.text, rng, partial(subject.predicted, inputs))
            right, predicted, labelled = (
                part[0] for part in class_counts(predictions, target, len(scenes.class_names))
            )
            union = predicted + labelled - right
            ious = (right[union > 0] / union[union > 0]).tolist()
            said = f"mIoU {sum(ious) / len(ious):.2f}" if ious else "no pixel counts"
            made = (inputs[0] * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            yield Tile(made, predictions[0].short().cpu().numpy(), (said,))
