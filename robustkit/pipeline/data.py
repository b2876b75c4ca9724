"""Open labelled images as a command asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.dataset import Dataset, open_dataset
from ..errors import DataError, NothingEvaluated
from ..evaluations.corruptions.tree import CorruptedTree
from ..models.identity import ModelIdentity


def labelled_data(
    data_dir: str | Path | CorruptedTree,
    identity: ModelIdentity,
    options: Mapping[str, Any],
    limit: int | None,
    ids: str | Path | None,
    seed: int,
    unlabelled: bool = False,
) -> Dataset:
    """Return the samples to evaluate a model on, with labels in its order of classes; unlabelled: or without any.

    Raises:
        DataError: the data set is unusable, has no labels, or its labels do not fit the model.
        NothingEvaluated: no sample is left.
    """
    if not str(data_dir):
        raise DataError("--data-dir is empty; give a folder, a zip, or embedded:shapes")
    classes = {"num_classes": identity.num_classes, "class_names": identity.class_names}
    if isinstance(data_dir, CorruptedTree):
        dataset = data_dir.dataset(**{**classes, **options})
    else:
        dataset = open_dataset(data_dir, **{**classes, **options})
    dataset = dataset.select(limit=limit, ids=None if ids is None else Path(ids), seed=seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{dataset.root}: no sample is left to evaluate; loosen --limit or --ids")
    if not unlabelled and any(sample.label < 0 for sample in dataset.samples):
        raise DataError(f"{dataset.root}: its images have no labels; give class folders or --labels FILE.csv")
    return dataset
