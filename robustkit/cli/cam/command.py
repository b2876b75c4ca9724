"""Draw the gallery of `robustkit cam`: maps of a run's samples, recomputed as they were scored, side by side."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cam import Explanation

from ...common.files import write_whole
from ...common.preprocessing import Preprocessing
from ...data.class_names import class_name
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...errors import RunError
from ...evaluations.maps.condition import MapSpec, map_condition
from ...evaluations.maps.evaluate import explainer_of
from ...evaluations.maps.gallery import Gallery, GalleryRow, Tile, write_page, write_sheet
from ...evaluations.maps.truth import Truth, open_truth
from ...evaluations.subject import Settings, Subject
from ...models.classifier import load
from ...models.device import pick_device
from ...models.identity import Classifier
from ...pipeline.request import ClassificationRequest
from ...runs.folder import RunFolder
from ...tasks.classification.subject import ClassifierSubject
from .choice import COLUMNS, Choice, Records, chosen, data_of, label

Heat = NDArray[np.float32]


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
    records: Records = {
        (name, spec.text): {row["sample_id"]: row for row in run.table(name, spec.text, COLUMNS).to_pylist()}
        for spec in choice.shown
        for name in names
    }
    seed, asked = manifest.seed, {name: manifest.arguments[name] for name in ("limit", "ids")}
    dataset = data_of(replace(request, seed=seed, **asked), classifiers[0].identity)
    samples, words = chosen(choice, run, dataset, records, seed)
    settings = Settings(seed, batch_size=1, device=pick_device(request.device))
    subjects = [ClassifierSubject(classifier, card, settings, dataset.valid_labels) for classifier in classifiers]
    kept: dict[str, Heat] = {}
    truth = open_truth(dataset, request.boxes, request.masks)
    rows = tuple(_rows(subjects, dataset, truth, samples, choice.shown, records, kept))
    compared = ", ".join(names) if len(names) < 3 else f"{len(names)} checkpoints"
    title = f"{', '.join(map(label, choice.shown))}: {compared}"
    gallery = Gallery(title, rows, (f"{dataset.name}; {words}; protocol {card.tag}",))
    folder = run.path / "cams"
    write_sheet(gallery, folder / "gallery.png")
    write_page(gallery, folder / "gallery.html")
    if raw:
        write_maps(kept, folder / "maps.npz")
    return folder / "gallery.png", folder / "gallery.html"


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
    subjects: Sequence[Subject],
    dataset: Dataset,
    truth: Truth,
    samples: Sequence[Sample],
    shown: Sequence[MapSpec],
    records: Records,
    kept: dict[str, Heat],
) -> Iterator[GalleryRow]:
    for sample in samples:
        picture = dataset.image(sample)
        tiles = []
        for spec in shown:
            for subject in subjects:
                identity = subject.classifier.identity
                target = subject.labels([sample]) if spec.target == "label" else None
                row = records[identity.name, spec.text][sample.id]
                pixels = to_pixels(picture, identity.preprocessing, sample.id)
                tile = explained_tile(subject, pixels, sample, spec, target, row)
                located = truth.locate(sample, identity.preprocessing)
                tiles.append(replace(tile, truth=None if located is None else located.mask.numpy()))
                kept[f"{identity.name}/{label(spec)}/{sample.id}"] = tile.map
        named = class_name(dataset.class_names, sample.label) if sample.label >= 0 else "no label"
        yield GalleryRow(sample.id, named, tiles[0].image, tuple(tiles), tiles[0].truth)


def explained_tile(
    subject: Subject,
    pixels: Tensor,
    sample: Sample,
    spec: MapSpec,
    target: int | Tensor | None,
    row: Mapping[str, Any],
) -> Tile:
    """Return the map of (3, H, W) uint8 pixels as an audit makes it, with what the sample's record says.

    target: index of the class among the logits that compete; None for the predicted class.
    """
    rng = subject.rng([sample], map_condition(spec))

    def explain() -> Explanation:
        with explainer_of(subject, spec) as explainer:
            return explainer.explain(subject.inputs(pixels[None]), target, rng=rng)

    explanation = subject.steadily(label(spec), rng, explain)
    place, identity = int(explanation.target[0]), subject.classifier.identity
    named = class_name(identity.class_names or (), subject.classes(explanation.target)[0], identity.num_classes)
    wrong = " (wrong)" if target is None and row.get("correct") is False else ""
    scored = ({"IoU": row.get("mask_iou"), "box IoU": row.get("box_iou")}, {"ABPC": row.get("abpc")})
    figures = ["   ".join(f"{key} {value:.2f}" for key, value in some.items() if value is not None) for some in scored]
    said = f"{named} {explanation.logits.softmax(dim=1)[0, place].item():.0%}{wrong}"
    image = pixels.permute(1, 2, 0).numpy()
    return Tile(
        f"{label(spec)}, {identity.name}", image, explanation.maps[0].cpu().numpy(), (said, *filter(None, figures))
    )
