"""The command that evaluates features. Heavy imports happen inside it."""

from __future__ import annotations

from typing import Any

import click

from ...cli.options import CONTEXT, Command, checkpoints_argument, request_of, run_options
from ...cli.terminal import run_to_the_end
from . import FeatureRequest


@click.command(
    cls=Command,
    context_settings=CONTEXT,
    after="segment",
    short_help="audit backbones without a head: k-NN, probe, few-shot",
)
@checkpoints_argument
@run_options(FeatureRequest)
def features(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
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
    run_to_the_end(request_of(FeatureRequest, options), skip_bad, details, quiet)
