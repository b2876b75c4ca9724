"""Audit classifiers of several labels an image, each there or not; one record row per image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...cli.terminal import evaluation
from ...common.options import option, option_group
from ...pipeline.request import ClassifierOptions, Request

ORDERS = ("names", "columns")
"""What says which output a label is: the names of the outputs, or the order of the table's columns."""


@dataclass(frozen=True, kw_only=True)
class MultilabelRequest(Request):
    """The request of `multilabel`. labels: a table of the labels of each image."""

    task = "multilabel"
    usual_attacks = "fgsm,pgd"
    usual_batch: ClassVar = {"cpu": 16, "accelerator": 128}
    least_shard = 128
    argument_names = (
        *("checkpoints", "data_dir", "labels", "names", "order", "threshold", "unknown", "empty", "attacks"),
        *("corruptions", "frost_dir", "tiles_dir", "eps", "norm", "limit", "ids", "model"),
    )
    lacks = ("preset", "setup_check")

    data_dir: str | Path = option("Data", "Folder or zip of images.", MISSING)
    model: Mapping[str, Any] = option_group(ClassifierOptions)
    labels: str | Path = option(
        "Data",
        "CSV of file names and, for each label, a column of 0 and 1; or one column labels: dog;cat.",
        MISSING,
        type=Path,
    )
    names: str | Path | None = option(
        "Data", "File of the labels, one per line, in the order of the outputs; default: the checkpoint's.", type=Path
    )
    order: str = option("Data", "columns: outputs are in the order of the table's columns.", "names", type=ORDERS)
    threshold: str | float = option("Data", "A label is predicted where its probability is above this.", "0.5")
    unknown: bool = option("Data", "Empty cells and -1 are unknown labels, which do not count.", False)
    empty: bool = option("Data", "An empty list of labels means that the image has none.", False)
    attacks: str | Iterable[str] | None = option(
        "Attacks", "fgsm, pgd, apgd, square, spsa, fmn or conditions such as pgd(loss=margin); none; default: fgsm,pgd."
    )
    corruptions: str | Iterable[str] | None = option("Corruptions", "Sets or names: in-c, fog,snow(severity=1+3).")
    limit: int | None = option("Data", "At most N images, determined by the seed.")
    protocol: str = "multilabel"
    constants: str = option(
        "Corruptions",
        "Constants of the corruptions: auto, imagenet, or cifar for 32x32 images (preset=cifar in conditions).",
        "auto",
    )


@evaluation(MultilabelRequest, after="segment", short_help="audit classifiers of several labels: mAP, F1, attacks")
def multilabel() -> None:
    """Evaluate classifiers of several labels an image: mAP and F1, clean, under attack and corrupted.

    CHECKPOINT is as for audit, with a logit for each label. --labels says which labels each image has. Attacks raise
    the sum of the binary losses (loss=bce), or turn the label that is nearest to the threshold (loss=margin). The same
    command continues where an interrupted one stopped.

    \b
    robustkit multilabel net.safetensors --data-dir images --labels labels.csv --out runs/labels
    robustkit multilabel net.pth --arch net.py:make --data-dir images --labels labels.csv --order columns
    robustkit multilabel hf:vit --data-dir images --labels labels.csv --attacks "pgd(loss=margin),fmn"
    """
