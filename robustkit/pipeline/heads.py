"""Fit the heads of a checkpoint to its features of the training images once, and keep both in the run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..common.files import bytes_of
from ..common.lock import in_turn
from ..errors import DataError
from ..evaluations.subject import Settings
from ..models.checkpoint import digest_of
from ..results.run import Run
from ..runs.files import folder_name
from ..runs.links import refuse_link
from ..runs.manifest import CheckpointEntry
from ..tasks.features.heads import Asked, Heads
from ..tasks.features.supply import Pixels
from .shards import decoded

FILE, _KEY = "heads.safetensors", "robustkit"
_LOG = logging.getLogger("robustkit.progress")
_AT_ONCE = 1024
"""Training images that are held decoded."""
_LARGEST = 64 << 30  # bytes


def kept_heads(
    run: Run,
    entry: CheckpointEntry,
    supply: Pixels,
    asked: Asked,
    settings: Settings,
    features: Callable[[Tensor], Tensor],
) -> Heads:
    """Return the heads of a checkpoint: those in the run folder where they are what this run made, else new ones.

    Of several processes one makes them, and the others wait. supply: of the training images. features: (B, D) of pixels
    (B, 3, H, W).

    Raises:
        DataError: a training image cannot be read. ModelError: features are not finite.
    """
    path = run.path / "features" / folder_name(entry.name) / FILE
    of = _of(run, entry)
    refuse_link(path, run.path)
    with in_turn(path.parent):
        try:
            kept = _read(bytes_of(path, _LARGEST), of, asked)
        except OSError:
            kept, why = None, ""
        else:
            why = "" if kept else f"{path} is not what was written for this run; it is made again"
        if kept is not None:
            return kept
        if why:
            _LOG.info(why)
        _LOG.info(f"{entry.name}: features of {asked.images} training images")
        found = _all(supply, settings, features)
        samples = supply.dataset.samples
        labels, ids = [sample.label for sample in samples], [sample.id for sample in samples]
        heads = Heads.fitted(asked, found, labels, ids, settings.seed)
        _LOG.info(f"{entry.name}: heads fitted; strength of the probe {heads.strength:g}")
        tensors = {name: tensor.cpu().contiguous() for name, tensor in heads.tensors().items()}
        said = json.dumps({"of": of, "digest": digest_of(tensors)})  # of several keys the order would be any
        run.write(path, safetensors.torch.save(tensors, {_KEY: said}))
        return heads


def _of(run: Run, entry: CheckpointEntry) -> str:
    """Return what heads are of: the checkpoint as run.json has it, and the seed."""
    return json.dumps({"checkpoint": entry.to_plain(), "seed": run.manifest.deciding.seed}, sort_keys=True)


def _read(data: bytes, of: str, asked: Asked) -> Heads | None:
    """Return the heads that a file holds; None where it is another's, or was altered."""
    try:
        tensors = safetensors.torch.load(data)
        size = int.from_bytes(data[:8], "little")
        said = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("of") != of or said.get("digest") != digest_of(tensors):
        return None
    return Heads.of(asked, tensors)


def _all(supply: Pixels, settings: Settings, features: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the features (N, D) of all training images, in their order. Raises DataError for one without."""
    found, samples = [], supply.dataset.samples
    for start in range(0, len(samples), _AT_ONCE):
        some = samples[start : start + _AT_ONCE]
        read = decoded(supply.read, some, settings.workers, settings.device)
        if len(read) < len(some):
            lost = next(sample.id for sample in some if sample.id not in {each.id for each, _ in read})
            raise DataError(f"{supply.dataset.root}: training image {lost} cannot be read; repair or remove it")
        pixels = [each for _, each in read]
        batches = (pixels[place : place + settings.batch_size] for place in range(0, len(pixels), settings.batch_size))
        found += [features(torch.stack(batch)) for batch in batches]
    return torch.cat(found)
