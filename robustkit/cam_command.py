"""What `robustkit cam` does: maps of a data set scored and shown, or of a person's own pictures."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import cam

from .classes import WNID, descriptions, synsets
from .data import Dataset, Sample
from .errors import DataError, ModelError, ProtocolError, RunError
from .explaining import Explained, parse_cams, parse_explained
from .gallery import Gallery, Row, Tile, pick, write_page, write_sheet
from .images import read_image, to_pixels
from .maps import check_explainable
from .models import Classifier, load
from .pipeline import labelled_data, pick_device
from .randomness import SampleRng
from .records import Run
from .sources import SUFFIXES
from .truth import Truth, open_truth

CHOICES = ("disagreement", "worst", "best", "random")
DEFAULT = "agcam,rollout,grad-cam"


def is_picture(argument: str) -> bool:
    """Whether an argument names an image file rather than a checkpoint."""
    return argument.lower().endswith(SUFFIXES) and ":" not in argument


# a gallery of a run


def make_gallery(
    run: Run,
    checkpoints: Sequence[str],
    *,
    data_dir: str,
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    boxes: Path | None,
    masks: Path | None,
    count: int,
    how: str,
    ids: Sequence[str] = (),
    device: str = "auto",
    raw: bool = False,
) -> tuple[Path, Path]:
    """Draw `count` samples of a run with maps, as cams/gallery.png and .html in its folder.

    how: one of CHOICES, by the score of the first method; or `class:NAME`. ids: exactly these samples.
    raw: keep the maps as cams/maps.npz, too.

    Raises:
        ProtocolError: an unknown choice. RunError: the run holds no maps, or no sample is left.
    """
    manifest = run.manifest
    shown = [
        one for one in map(parse_explained, manifest["conditions"]) if one and not one.under and not one.is_control
    ]
    if not shown:
        raise RunError(f"{run.path}: no maps in it; run robustkit cam or audit --cams first")
    names = [known["name"] for known in manifest["checkpoints"]]
    classifiers = [load(spec, **model).to(pick_device(device)) for spec in checkpoints]
    for classifier, known in zip(classifiers, manifest["checkpoints"], strict=True):
        size = replace(classifier.identity.preprocessing, **_preprocessing(known["preprocessing"]))
        classifier.identity = replace(classifier.identity, name=known["name"], preprocessing=size)
    arguments = manifest["arguments"]
    dataset = labelled_data(
        data_dir, classifiers[0].identity, data, arguments["limit"], arguments["ids"], manifest["seed"], unlabelled=True
    )
    chosen = list(ids) or _chosen(run, names, shown[0], dataset, how, count, manifest["seed"])
    samples = dataset.select(ids=chosen).samples
    by_id = {sample.id: sample for sample in samples}
    order = [by_id[name] for name in chosen if name in by_id] or list(samples)
    truth = open_truth(dataset, boxes, masks)
    kept: dict[str, Any] = {}
    rows = tuple(_rows(run, classifiers, dataset, truth, order, shown, kept))
    lines = (f"{dataset.name}; {_said(how, shown[0], ids)}; protocol {manifest['protocol']['tag']}",)
    compared = ", ".join(names) if len(names) < 3 else f"{len(names)} checkpoints"
    gallery = Gallery(f"{', '.join(one.method for one in shown)}: {compared}", rows, lines)
    folder = run.path / "cams"
    write_sheet(gallery, folder / "gallery.png")
    write_page(gallery, folder / "gallery.html")
    if raw:
        import io

        import numpy as np

        from .records import write_whole

        buffer = io.BytesIO()
        np.savez_compressed(buffer, **kept)
        write_whole(folder / "maps.npz", buffer.getvalue())
    return folder / "gallery.png", folder / "gallery.html"


def _preprocessing(known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in known.items()}


def _said(how: str, explained: Explained, ids: Sequence[str]) -> str:
    if ids:
        return "samples chosen by id"
    words = {
        "disagreement": f"where the checkpoints' {explained.method} scores differ most",
        "worst": f"lowest {explained.method} scores",
        "best": f"highest {explained.method} scores",
        "random": "chosen at random",
    }
    return words.get(how, how.replace(":", " "))


def _chosen(
    run: Run, names: Sequence[str], explained: Explained, dataset: Dataset, how: str, count: int, seed: int
) -> list[str]:
    ids = [sample.id for sample in dataset.samples]
    draws = SampleRng.of(ids, seed=seed, condition="gallery", device=torch.device("cpu")).uniform((), "order")
    order = [ids[index] for index in draws.argsort().tolist()]
    kind, _, wanted = how.partition(":")
    if kind == "class":
        target = target_of(wanted, class_names(dataset.class_names, len(dataset.class_names)))
        members = {sample.id for sample in dataset.samples if sample.label == target}
        return _some([name for name in order if name in members][:count], run, how)
    if how not in CHOICES:
        raise ProtocolError(f"--choose {how!r}: expected {', '.join(CHOICES)} or class:NAME")
    scores: dict[str, list[float]] = {}
    for name in names:
        table = run.table(name, explained.text)
        column = next(
            (c for c in ("mask_iou", "abpc") if c in table.column_names and table[c].null_count < len(table)), ""
        )
        values = table[column].to_pylist() if column else [math.nan] * len(table)
        for sample, value in zip(table["sample_id"].to_pylist(), values, strict=True):
            scores.setdefault(sample, []).append(math.nan if value is None else value)
    return _some(pick(scores, how, count, order), run, how)


def _some(chosen: list[str], run: Run, how: str) -> list[str]:
    if not chosen:
        raise RunError(f"{run.path}: no sample fits --choose {how}")
    return chosen


def _rows(
    run: Run,
    classifiers: Sequence[Classifier],
    dataset: Dataset,
    truth: Truth,
    samples: Sequence[Sample],
    shown: Sequence[Explained],
    kept: dict[str, Any],
) -> Iterator[Row]:
    scores = {
        (classifier.identity.name, one.text): {
            row["sample_id"]: row for row in run.table(classifier.identity.name, one.text).to_pylist()
        }
        for classifier in classifiers
        for one in shown
    }
    for sample in samples:
        first = classifiers[0].identity.preprocessing
        image = to_pixels(dataset.image(sample), first)
        located = truth.locate(sample, first)
        tiles = []
        for one in shown:
            for classifier in classifiers:
                own = to_pixels(dataset.image(sample), classifier.identity.preprocessing)
                row = scores[classifier.identity.name, one.text].get(sample.id, {})
                target = None if one.target == "predicted" else sample.label
                tile, heat = _tile(classifier, own, one.method, target, row)
                tiles.append(tile)
                kept[f"{classifier.identity.name}/{one.method}/{sample.id}"] = heat
        label = class_name(dataset.class_names, sample.label) if sample.label >= 0 else ""
        yield Row(
            sample.id,
            label or "no label",
            image.permute(1, 2, 0).numpy(),
            tuple(tiles),
            None if located is None else located.mask.numpy(),
        )


def _tile(
    classifier: Classifier, pixels: Tensor, method: str, target: int | None, row: Mapping[str, Any]
) -> tuple[Tile, Any]:
    device = classifier.mean.device
    with cam.method(method)(classifier) as explain:
        found = explain.explain(pixels[None].to(device).float() / 255, target)
    heat = found.maps[0].cpu().numpy()
    probability = found.logits.softmax(dim=1)[0, found.target[0]].item()
    identity = classifier.identity
    named = class_name(identity.class_names or (), int(found.target[0]), identity.num_classes)
    scored = ({"IoU": row.get("mask_iou"), "box IoU": row.get("box_iou")}, {"ABPC": row.get("abpc")})
    figures = ["   ".join(f"{k} {v:.2f}" for k, v in some.items() if v is not None) for some in scored]
    wrong = " (wrong)" if target is None and row.get("correct") is False else ""
    lines = tuple(filter(None, (f"{named} {probability:.0%}{wrong}", *figures)))
    return Tile(f"{method}, {identity.name}", heat, lines), heat


# class names


def class_names(known: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Readable names in the order of the outputs; numbers where nothing is known."""
    if known and not all(WNID.fullmatch(name) for name in known):
        return tuple(known)
    if known:
        return descriptions(tuple(known))
    if count == 1000:
        return descriptions(synsets(1000))
    return tuple(map(str, range(count)))


def class_name(known: Sequence[str], index: int, count: int = 0) -> str:
    """The first word of a class's name."""
    names = class_names(known, count or len(known))
    return names[index].split(",")[0] if index < len(names) else str(index)


def target_of(text: str, names: Sequence[str]) -> int:
    """The class that a person names, by number, whole name or one of its synonyms.

    Raises:
        ModelError: there is none or several of it; the line has the nearest names.
    """
    if text.strip().lstrip("-").isdigit():
        number = int(text)
        if not 0 <= number < len(names):
            raise ModelError(f"target {number}: the model has {len(names)} classes, 0 to {len(names) - 1}")
        return number
    wanted = text.strip().casefold()
    synonyms = {index: [part.strip().casefold() for part in name.split(",")] for index, name in enumerate(names)}
    exact = [index for index, parts in synonyms.items() if wanted in parts or wanted == names[index].casefold()]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise ModelError(f"target {text!r} names classes {', '.join(map(str, exact))}; give the number")
    every = {part: names[index].split(",")[0] for index, parts in synonyms.items() for part in parts}
    near = difflib.get_close_matches(wanted, every, n=3, cutoff=0.5)
    guess = f"; did you mean {', '.join(dict.fromkeys(every[one] for one in near))}?" if near else ""
    raise ModelError(f"no class {text!r} among the model's {len(names)}{guess}")


# own pictures


def explain_pictures(
    pictures: Sequence[str],
    checkpoints: Sequence[str],
    targets: Sequence[str],
    methods: str,
    model: Mapping[str, Any],
    device: str,
    out: Path | None,
    console: Console,
) -> Path:
    """Maps of a person's pictures for the named classes, or the predicted one, as a PNG beside them."""
    if not checkpoints:
        raise ProtocolError("robustkit cam IMAGE needs a checkpoint beside the image: robustkit cam cat.jpg model.pth")
    wanted = [one for one in parse_cams(methods) if not one.is_control]
    rows = []
    classifiers = [load(spec, **model).to(pick_device(device)) for spec in checkpoints]
    for classifier in classifiers:
        check_explainable(classifier, classifier.identity.name, wanted)
    for picture in pictures:
        try:
            content = Path(picture).read_bytes()
        except OSError as fault:
            raise DataError(f"{picture}: cannot be read ({fault.strerror})") from None
        decoded = read_image(content, picture)
        tiles = []
        for classifier in classifiers:
            identity = classifier.identity
            names = class_names(identity.class_names, identity.num_classes)
            pixels = to_pixels(decoded, identity.preprocessing)
            wished: list[int | None] = [target_of(text, names) for text in targets]
            for target in wished or [None]:
                tiles += [_tile(classifier, pixels, one.method, target, {})[0] for one in wanted]
        first = to_pixels(decoded, classifiers[0].identity.preprocessing)
        rows.append(Row(picture, Path(picture).stem, first.permute(1, 2, 0).numpy(), tuple(tiles)))
    path = out or Path(f"{Path(pictures[0]).stem}-cam.png")
    gallery = Gallery(", ".join(classifier.identity.name for classifier in classifiers), tuple(rows))
    write_sheet(gallery, path)
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    return path
