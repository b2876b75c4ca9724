"""Write the images that a checkpoint of a run is shown under a condition, so that another system can predict on them.

000000.png, …           the pixels after resize and crop, before normalisation
samples.csv             sample id, label, file and its SHA-256, in the order of the run
export.json             run, condition and checkpoint, and the SHA-256 of samples.csv

Clean and corrupted images are 8-bit, as the checkpoint is shown them. Adversarial ones are not, so they are rounded.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...common.determinism import SampleRng
from ...common.environment import usual_workers
from ...common.files import write_whole
from ...common.plugins import plugin_session
from ...data.dataset import Dataset, Sample
from ...data.images import encode_png, unit_pixels
from ...errors import DataError, NothingEvaluated, ProtocolError, RunError, unknown
from ...evaluations.attacks import starts_from
from ...evaluations.condition import check_condition, is_attack, is_exactly, kind_of, shows
from ...evaluations.corruptions import Corrupted, Pictures, corrupted_of
from ...evaluations.corruptions.evaluate import corrupt
from ...evaluations.corruptions.plan import texture_digest
from ...evaluations.subject import as_levels
from ...pipeline.inputs import evaluation_condition, labelled_data
from ...pipeline.manifest import preprocessing_of
from ...pipeline.request import ClassificationRequest
from ...pipeline.units import decoded
from ...protocol.condition import CLEAN
from ...runs.folder import RunFolder
from ...runs.kept_images import ADVERSARIALS, read_adversarials
from ...runs.manifest import CheckpointEntry, Manifest
from ...runs.metadata import sample_ids
from ...runs.untrusted import digest_of_run

_SHOWN = ("input_size", "interpolation", "crop_pct", "crop_mode")
_BATCH = 64


@dataclass(frozen=True)
class Exported:
    """What was written. n: images. unreadable: ids of samples without one. rounding: the largest change by rounding to
    8 bits, in grey levels of 0 … 255; 0 where pixels are exact.
    """

    condition: str
    checkpoint: str
    n: int
    unreadable: tuple[str, ...]
    rounding: float


@plugin_session()
def export_data(
    run: RunFolder, condition: str, out: Path, checkpoint: str | None = None, data_dir: str | None = None
) -> Exported:
    """Write the images of a condition to a new or empty folder, which appears whole or not at all. checkpoint: needed
    where images differ by checkpoint. data_dir: where the images of the run are now, if not where they were.

    Raises:
        ProtocolError: no such condition or checkpoint, or it shows no images. DataError: the images are not the run's.
        RunError: the run keeps no adversarial images, or the folder is not empty.
    """
    manifest = run.manifest
    if manifest.protocol.task != ClassificationRequest.task:
        raise ProtocolError(f"{run.path} is a run of {manifest.protocol.task}; expected one of robustkit audit")
    text = _condition(manifest, condition)
    entry = _checkpoint(manifest, text, checkpoint)
    if out.exists() and (not out.is_dir() or next(out.iterdir(), None)):
        raise RunError(f"{out} is not empty; choose a new or empty folder with --out")
    dataset = _dataset(run, entry, data_dir)
    temporary = out.parent / f".{out.name}.{secrets.token_hex(8)}.tmp"
    try:
        done = _write(run, text, entry, dataset, temporary)
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    except OSError as fault:
        raise RunError(f"cannot write {out}: {fault.strerror or fault}; choose a folder with --out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return done


def _condition(manifest: Manifest, text: str) -> str:
    """Return the condition of the run that a text means. ProtocolError where it has none, or none that shows images."""
    pattern = check_condition(text)
    fitting = next((each for each in manifest.conditions if is_exactly(pattern, each)), None)
    if fitting is None:
        raise ProtocolError(unknown("condition of the run", text, filter(shows, manifest.conditions)))
    if is_attack(kind_of(fitting)) or fitting == CLEAN.text:
        return fitting
    part = _corrupted(fitting) if shows(fitting) else None
    if part is None:
        raise ProtocolError(f"{fitting}: its images are not kept; expected clean, a corruption or an attack of the run")
    if part.released:
        raise ProtocolError(f"{fitting}: its images are the files of the released tree; give these to the other system")
    return fitting


def _corrupted(text: str) -> Corrupted | None:
    """Return the corruption of a condition's text; None for clean."""
    return None if text == CLEAN.text else corrupted_of(evaluation_condition(text))


def _checkpoint(manifest: Manifest, text: str, name: str | None) -> CheckpointEntry:
    """Return the checkpoint whose images are written. ProtocolError where one has to be named, or is not evaluated."""
    if name is not None:
        chosen = manifest.checkpoint(name)
    else:
        chosen, *others = manifest.checkpoints
        here = [[getattr(each.preprocessing, key) for key in _SHOWN] for each in manifest.checkpoints]
        alike = all(each == here[0] for each in here)
        if others and (is_attack(kind_of(text)) or not alike):
            why = f"{text} shows each checkpoint other images"
            raise ProtocolError(f"{why}; give --checkpoint, one of {', '.join(manifest.names)}")
    if chosen.is_elsewhere:
        raise ProtocolError(f"{chosen.name}: {chosen.weights}, so its resize and crop are unknown; choose another")
    return chosen


def _dataset(run: RunFolder, entry: CheckpointEntry, data_dir: str | None) -> Dataset:
    """Return the samples of a run in its order. DataError where they are not there, or have changed."""
    manifest, asked = run.manifest, run.manifest.arguments
    place = str(data_dir or asked.get("data_dir") or "")
    options, limit, ids = asked.get("data") or {}, asked.get("limit"), asked.get("ids")
    dataset = labelled_data(place, entry, options, limit, ids, manifest.seed)
    if dataset.digest() != manifest.data.digest:
        raise DataError(f"{place}: not the images and labels of the run; give the folder that has them with --data-dir")
    if not asked.get("shuffle"):
        return dataset
    if not {"--groups", "--groups-from"} & {*(asked.get("options") or {})}:
        return dataset.shuffled(manifest.seed)
    by_id = {sample.id: sample for sample in dataset.samples}
    return dataclasses.replace(dataset, samples=tuple(by_id[name] for name in sample_ids(run)))


def _write(run: RunFolder, text: str, entry: CheckpointEntry, dataset: Dataset, folder: Path) -> Exported:
    """Write images, then the table, then what says what they are."""
    sheet, unreadable, rounding, n = io.StringIO(), list[str](), 0.0, 0
    rows = csv.writer(sheet, lineterminator="\n")
    rows.writerow(("sample_id", "label", "file", "sha256"))
    for sample, image in _images(run, text, entry, dataset):
        if image is None:
            unreadable.append(sample.id)
            continue
        pixels, name = as_levels(image), f"{n:06d}.png"
        if image.is_floating_point():
            rounding = max(rounding, float((image * 255 - torch.from_numpy(pixels).permute(2, 0, 1)).abs().max()))
        data = encode_png(pixels)
        write_whole(folder / name, data, durable=False)
        rows.writerow((sample.id, sample.label, name, hashlib.sha256(data).hexdigest()))
        n += 1
    if not n:
        raise NothingEvaluated(f"{run.path}: no image of {text} could be read; check the images of the run")
    table = sheet.getvalue().encode("utf-8", "surrogatepass")
    write_whole(folder / "samples.csv", table)
    content = {
        "run": digest_of_run(run.manifest),
        "data digest": run.manifest.data.digest,
        "condition": text,
        "checkpoint": entry.name,
        "n": n,
        "unreadable": unreadable,
        "largest change by rounding, in grey levels": rounding,
        "sha256 of samples.csv": hashlib.sha256(table).hexdigest(),
    }
    write_whole(folder / "export.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return Exported(text, entry.name, n, tuple(unreadable), rounding)


def _images(
    run: RunFolder, text: str, entry: CheckpointEntry, dataset: Dataset
) -> Iterator[tuple[Sample, Tensor | None]]:
    """Yield each sample with what is shown, (3, H, W) uint8 or float in [0, 1]; None where it could not be read."""
    manifest, preprocessing = run.manifest, preprocessing_of(entry)
    if not preprocessing.is_rgb:
        raise RunError(f"{run.path}: {entry.name} takes no RGB of 8 bits, which PNG holds; export another run")
    size = manifest.shard_size
    attack = is_attack(kind_of(text))
    start = starts_from(text) if attack else text
    part = _corrupted(start)
    folders = {each: manifest.arguments.get(each) for each in ("frost_dir", "tiles_dir")}
    digest = manifest.corrupted.digests.get(text)
    if part and digest and digest != texture_digest(part.name, part.texture, folders):
        raise DataError(f"{text}: the pictures of {part.name} are not those of the run; restore them")

    def read(sample: Sample) -> Tensor:
        return dataset.pixels(sample, preprocessing)

    for number in range(-(-len(dataset) // size)):
        changes = _adversarials(run, entry.name, text, number) if attack else None
        every = dataset.samples[number * size : (number + 1) * size]
        samples = [sample for sample in every if changes is None or sample.id in changes]
        for first in range(0, len(samples), _BATCH):
            some = samples[first : first + _BATCH]
            batches = decoded(read, some, usual_workers(), torch.device("cpu"))
            images = {sample.id: pixels for sample, pixels in _started(batches, part, manifest.seed, folders)}
            for sample in some:
                pixels = images.get(sample.id)
                if changes is not None and pixels is not None:
                    change = changes[sample.id]
                    if manifest.protocol.space == "normalised":
                        change = change * torch.tensor(preprocessing.std).view(-1, 1, 1)
                    pixels = (unit_pixels(pixels) + change).clamp(0, 1)
                yield sample, pixels


def _started(
    read: Sequence[tuple[Sample, Tensor]], part: Corrupted | None, seed: int, pictures: Pictures
) -> Iterator[tuple[Sample, Tensor]]:
    """Yield samples with their pixels, corrupted as an audit corrupts them where a corruption is given."""
    if part is None or not read:
        yield from read
        return
    ids, pixels = [sample.id for sample, _ in read], torch.stack([pixels for _, pixels in read])
    rng = SampleRng.of(ids, seed=seed, condition=part.text, device="cpu")
    yield from zip((sample for sample, _ in read), corrupt(part, pixels, rng, pictures), strict=True)


def _adversarials(run: RunFolder, checkpoint: str, text: str, shard: int) -> dict[str, Tensor]:
    """Return what an attack added, by sample id. RunError where the run does not keep it."""
    if not run.shard_path(checkpoint, text, shard, ADVERSARIALS).is_file():
        why = f"{run.path} keeps no adversarial images of {checkpoint} under {text}"
        raise RunError(f"{why}; rerun its command with --keep-adversarials")
    differences, _ = read_adversarials(run, checkpoint, text, shard)
    return {name: torch.from_numpy(each.astype("float32")) for name, each in differences.items()}
