"""Write the gallery of `robustkit cam`: maps of a run's samples, made again as they were scored."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...common.files import write_whole
from ...common.preprocessing import Preprocessing
from ...data.class_names import class_name
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...errors import RunError
from ...evaluations.maps.condition import MapSpec
from ...evaluations.maps.gallery import Gallery, GalleryRow, write_sheet
from ...evaluations.maps.gallery_page import write_page
from ...evaluations.maps.truth import Truth, open_truth
from ...evaluations.subject import Settings, Subject
from ...models.classifier import load
from ...models.device import pick_device
from ...models.identity import Classifier
from ...pipeline.request import ClassificationRequest
from ...protocol.condition import CLEAN
from ...runs.folder import RunFolder
from ...tasks.classification.subject import ClassifierSubject
from .choice import COLUMNS, Choice, Records, chosen, data_of, label
from .drawing import Heat, Painter, Row


def make_gallery(
    run: RunFolder, request: ClassificationRequest, choice: Choice, raw: bool = False
) -> tuple[Path, Path]:
    """Draw samples of a run with maps of the request's checkpoints, as cams/gallery.png and .html in its folder.

    request: the one that the run was made with. raw: also keep the maps as cams/maps.npz.

    Raises:
        RunError: the run holds no maps of a checkpoint, has another protocol, or no sample is left.
        DataError, ProtocolError: as `Choice.samples`.
    """
    manifest, card = run.manifest, request.card
    if card.tag != manifest.protocol.tag:
        raise RunError(f"{run.path} was made with protocol {manifest.protocol.tag}, not {card.tag}; give that")
    classifiers = _as_recorded(run, [load(spec, **request.model) for spec in request.checkpoints])
    names = [classifier.identity.name for classifier in classifiers]
    records: Records = _records(run, choice.shown, names)
    seed, asked = manifest.seed, {name: manifest.arguments[name] for name in ("limit", "ids")}
    dataset = data_of(replace(request, seed=seed, **asked), classifiers[0].identity)
    samples, words = chosen(choice, run, dataset, records, seed)
    settings = Settings(seed, batch_size=1, device=pick_device(request.device))
    subjects = [ClassifierSubject(classifier, card, settings, dataset.valid_labels) for classifier in classifiers]
    first, attacks = choice.shown[0], request.attack_conditions(request.attack_list, request.engine)
    under = [attack for attack in attacks if attack != CLEAN and first.beside(attack.text).text in manifest.conditions]
    moved = [spec.beside(attack.text) for attack in under for spec in choice.shown if not spec.is_control]
    painter = Painter(choice.shown, choice.classes(dataset, classifiers[0].identity), under, {})
    truth = open_truth(dataset, request.boxes, request.masks)
    rows = tuple(_rows(painter, subjects, dataset, truth, samples, {**records, **_records(run, moved, names)}))
    compared = ", ".join(names) if len(names) < 3 else f"{len(names)} checkpoints"
    title = f"{', '.join(map(label, choice.shown))}: {compared}"
    gallery = Gallery(title, rows, (f"{dataset.name}; {words}; protocol {card.tag}",))
    folder = run.path / "cams"
    write_sheet(gallery, folder / "gallery.png")
    write_page(gallery, folder / "gallery.html")
    if raw:
        write_maps(painter.kept, folder / "maps.npz")
    return folder / "gallery.png", folder / "gallery.html"


def _records(run: RunFolder, maps: Sequence[MapSpec], names: Sequence[str]) -> dict[tuple[str, str], dict[str, Row]]:
    return {
        (name, spec.text): {row["sample_id"]: row for row in run.table(name, spec.text, COLUMNS).to_pylist()}
        for spec in maps
        for name in names
    }


def write_maps(maps: Mapping[str, Heat], path: Path) -> None:
    """Write maps by name as one .npz file. Raises RunError where it cannot be written."""
    buffer, arrays = io.BytesIO(), dict[str, Any](maps)
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())


def _as_recorded(run: RunFolder, classifiers: Sequence[Classifier]) -> list[Classifier]:
    """Return the classifiers with the names and preprocessing that they have in the run.

    Raises:
        RunError: the run lacks one of them.
    """
    taken: set[str] = set()
    entries = run.manifest.checkpoints
    for classifier in classifiers:
        ours = classifier.identity
        key = ours.sha256, ours.attention, ours.arch
        matching = [entry for entry in entries if (entry.sha256, entry.attention, entry.arch) == key]
        if not matching:
            there = ", ".join(run.manifest.names)
            raise RunError(f"{run.path}: no records of {ours.spec}, only of {there}; run robustkit cam with it")
        # The same file may be there twice, under two names.
        entry = min(matching, key=lambda entry: (entry.name in taken, entry.name != ours.name, entry.spec != ours.spec))
        taken.add(entry.name)
        preprocessing = Preprocessing(**msgspec.structs.asdict(entry.preprocessing))
        classifier.identity = replace(ours, name=entry.name, preprocessing=preprocessing)
    return list(classifiers)


def _rows(
    painter: Painter,
    subjects: Sequence[Subject],
    dataset: Dataset,
    truth: Truth,
    samples: Sequence[Sample],
    records: Records,
) -> Iterator[GalleryRow]:
    for sample in samples:
        picture = dataset.image(sample)
        labels = sample.valid if sample.valid and dataset.objects(sample) is not None else (sample.label,)
        named = " and ".join(class_name(dataset.class_names, one) for one in labels if one >= 0)
        for subject in subjects:
            preprocessing = subject.classifier.identity.preprocessing
            pixels, located = to_pixels(picture, preprocessing, sample.id), truth.locate(sample, preprocessing)
            scores = {unit: rows[sample.id] for unit, rows in records.items() if sample.id in rows}
            yield from painter.rows(subject, pixels, sample, named or "no label", located, scores)
