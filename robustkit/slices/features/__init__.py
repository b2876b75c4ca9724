"""Ask what features know: nearest neighbours, a linear probe, few images, retrieval; one record row per image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...cli.terminal import evaluation
from ...common.options import option, option_group
from ...pipeline.request import LabelOptions, Request


@dataclass(frozen=True, kw_only=True)
class FeatureRequest(Request):
    """The request of `features`. train: the training images, as `data_dir`."""

    task = "features"
    usual_attacks = "pgd"
    usual_batch: ClassVar = {"cpu": 32, "accelerator": 256}
    least_shard = 128
    argument_names = (
        *("checkpoints", "data_dir", "train", "train_limit", "neighbours", "shots", "probe", "attacks", "corruptions"),
        *("frost_dir", "tiles_dir", "eps", "norm", "limit", "ids", "data", "model"),
    )
    lacks = ("preset", "setup_check")

    attacks: str | Iterable[str] | None = option(
        "Attacks", "pgd or conditions such as pgd(loss=l2,restarts=3); none; default: pgd."
    )
    corruptions: str | Iterable[str] | None = option("Corruptions", "Sets or names: in-c, fog,snow(severity=1+3).")
    protocol: str = "features"
    train: str | Path = option(
        "Data", "Training images, as for --data-dir; no image may be in both.", MISSING, type=Path
    )
    train_limit: int | None = option("Data", "At most N training images: class-balanced, determined by the seed.")
    neighbours: str | Sequence[int] | None = option("Run", "k of kNN, such as 5,20; default: the card's, 5 to 200.")
    shots: str | Sequence[int] | None = option("Run", "Images per class of few-shot heads; default: the card's, 1,2,5.")
    probe: str | float | None = option("Run", "Strength of a linear probe's l2, or cv for cross-validation (default).")
    data: Mapping[str, Any] = option_group(LabelOptions)
    constants: str = option(
        "Corruptions",
        "Constants of the corruptions: auto, imagenet, or cifar for 32x32 images (preset=cifar in conditions).",
        "auto",
    )


@evaluation(FeatureRequest, after="segment", short_help="audit backbones without a head: k-NN, probe, few-shot")
def features() -> None:
    """Evaluate a backbone's features: k-NN, few-shot, linear probe, retrieval; clean, corrupted and attacked.

    CHECKPOINT is as for audit; a classifier is taken without its head, and one may have none: timm's with
    num_classes=0, DINOv2 and others of transformers by hf:DIR. Heads are fitted on --train and evaluated on --data-dir.
    The attack moves features away from those of the clean image, without labels. The same command continues where an
    interrupted one stopped.

    \b
    robustkit features hf:dinov2-small --train imagenet/train --data-dir imagenet/val --limit 5000 --out runs/dinov2
    robustkit features zoo:cifar10-vit-standard zoo:cifar10-vit-quest --train train.zip --data-dir test.zip
    robustkit features vit.safetensors --train train --data-dir val --neighbours 5,20 --probe 0.001 --attacks none
    """
