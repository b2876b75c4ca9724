"""The command that evaluates features. Heavy imports happen inside it."""

from __future__ import annotations

from typing import Any

import click

from ..arguments import DATA_KEYS, model_arguments
from ..options import (
    AT_LEAST_1,
    CONTEXT,
    Command,
    Place,
    checkpoints_argument,
    common,
    data_options,
    definition_options,
    evaluation_option,
    group,
    images_option,
    model_options,
    option,
    protocol_option,
    radius_options,
    run_options,
    sharing_options,
)
from ..terminal import run_to_the_end

_head_options = group(
    [
        option("--train", required=True, type=Place(), help="Training images, as --data-dir; no image may be in both."),
        option("--train-limit", type=AT_LEAST_1, help="At most N training images: class-balanced, of the seed."),
        option("--neighbours", section="Run", help="k of kNN, such as 5,20; default: the card's, 5 to 200."),
        option("--shots", section="Run", help="Images of each class for few-shot heads; default: the card's, 1,2,5."),
        option(
            "--probe", section="Run", help="Strength of the linear probe's l2, or cv for cross-validation (default)."
        ),
    ],
    "Data",
)
_show_options = group(
    [
        option("--attacks", help="pgd or conditions such as pgd(loss=l2,restarts=3); none; default: pgd."),
        radius_options,
        option("--corruptions", section="Corruptions", help="Sets or names: in-c, fog,snow(severity=1+3)."),
        definition_options,
        evaluation_option,
    ],
    "Attacks",
)


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@images_option()
@group(
    [
        _head_options,
        model_options,
        data_options,
        _show_options,
        protocol_option("features"),
        run_options,
        sharing_options,
        common,
    ]
)
def features(
    checkpoints: tuple[str, ...], data_dir: str, skip_bad: bool, details: bool, quiet: bool, **options: Any
) -> None:
    """Evaluate features: nearest neighbours, few images, a linear probe, retrieval; clean, corrupted and attacked.

    CHECKPOINT is as for audit; a classifier is taken without its head, and one may have none: timm's with
    num_classes=0, DINOv2 and others of transformers by hf:DIR. Heads learn from --train and are asked about --data-dir.
    The attack moves features away from those of the clean image, without labels. The same command continues where an
    interrupted one stopped.

    \b
    robustkit features hf:dinov2-small --train imagenet/train --data-dir imagenet/val --limit 5000 --out runs/dinov2
    robustkit features zoo:cifar10-vit-standard zoo:cifar10-vit-quest --train train.zip --data-dir test.zip
    robustkit features vit.safetensors --train train --data-dir val --neighbours 5,20 --probe 0.001 --attacks none
    """
    from ...pipeline.features import FeatureRequest

    model = model_arguments(options)
    data = {key: options.pop(key) for key in DATA_KEYS}
    request = FeatureRequest(checkpoints=checkpoints, data_dir=data_dir, model=model, data=data, **options)
    run_to_the_end(request, skip_bad, details, quiet)
