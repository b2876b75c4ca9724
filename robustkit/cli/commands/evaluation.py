"""The commands that evaluate: audit, attack, demo, cam, segment. Heavy imports happen inside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from ...display.console import print_as_it_is
from ...pipeline.request import ClassificationRequest, SegmentationRequest
from ..completion import checkpoints as known_checkpoints
from ..options import (
    AT_LEAST_0,
    CONTEXT,
    Command,
    Place,
    checkpoints_argument,
    common,
    details_option,
    group,
    images_option,
    quiet_option,
    request_options,
    run_options,
    setting,
    skip_bad_option,
)
from ..terminal import audit_request, console, run_and_show, run_cam, run_to_the_end, segment_request

_OF_MAPS = (
    *("boxes", "masks", "faithfulness", "keep_misclassified", "model", "data", "limit", "ids", "protocol"),
    *("browse", "setup_check", "out", "batch_size", "shard_size", "workers", "device", "dtype", "compile", "seed"),
)
"""The options that `cam` has from an audit."""
_map_option = partial(setting, section="Maps")


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@run_options(ClassificationRequest)
def audit(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
    """Evaluate checkpoints clean and under attack; write records, summary and report.

    Corruptions and maps are added by --corruptions and --cams. CHECKPOINT is a file, zoo:NAME, timm:NAME, hf:DIR,
    hf-hub:ORG/NAME, local-dir:PATH, onnx:FILE or pt2:FILE; or predictions:FILE, a CSV or Parquet file of predictions
    that another system made, for which --data-dir is optional. Rerun the same command to resume an interrupted run.

    \b
    robustkit audit vit.safetensors --arch vit_tiny_patch16_224 --data-dir imagenet/val --limit 1000 --out runs/vit
    robustkit audit zoo:shapes-vit-quest --data-dir embedded:shapes --attacks "pgd(steps=50,restarts=3)" --eps 2/255
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks none --corruptions in-c
    robustkit audit vit.safetensors --data-dir imagenet/val --corrupted-dir imagenet-c --corruptions in-c
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks pgd --cams agcam --boxes boxes.csv --stability
    robustkit audit vit.safetensors --data-dir imagenet/val --attacks pgd --corruptions fog --watch-attention
    """
    run_to_the_end(audit_request(options), skip_bad, details, quiet)


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@run_options(ClassificationRequest, without=("Corruptions", "Maps", "evaluations"))
def attack(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
    """Evaluate clean and under attacks: the attack part of an audit, same options.

    \b
    robustkit attack vit.safetensors --data-dir imagenet/val --attacks fgsm,pgd,autoattack --eps 0.5/255,1/255
    """
    run_to_the_end(audit_request(options, ("attacks", "eps", "limit")), skip_bad, details, quiet)


@click.command(context_settings=CONTEXT)
@setting("--out", type=Place(writes=True), help="Run folder; default: robustkit-demo, with --full robustkit-demo-full.")
@request_options(ClassificationRequest, "device")
@setting("--full", is_flag=True, help="More samples, two radii, SPSA and all severities; takes minutes.")
@quiet_option
@common
def demo(out: Path | None, device: str, full: bool, quiet: bool) -> None:
    """Audit four embedded classifiers, one for each of four attentions, and two segmenters, on embedded images.

    \b
    robustkit demo
    robustkit demo --full --out runs/demo --device cpu
    """
    from ..terminal import DEMO, FULL_DEMO, FULL_SEGMENTERS, SEGMENTERS, epilogue

    out = out or Path(f"robustkit-demo{'-full' * full}")
    classifiers, segmenters = (FULL_DEMO, FULL_SEGMENTERS) if full else (DEMO, SEGMENTERS)
    screen = console()
    screen.print(
        "Four small ViTs (standard, QUEST, Elliptical, Elliptical-QUEST attention) on generated shapes: clean, FGSM, "
        f"PGD, {'SPSA, ' * full}AutoAttack, corruptions, AG-CAM.\n"
    )
    run = run_and_show(ClassificationRequest(**classifiers, out=out, device=device), quiet=quiet)
    screen.print(
        "\nTwo small Segmenters (standard, QUEST) on the same kind of images: clean, PGD, SegPGD, corruptions.\n"
    )
    scenes = run_and_show(SegmentationRequest(**segmenters, out=out / "segmentation", device=device), quiet=quiet)
    print_as_it_is(screen, epilogue(run.path, scenes.path))


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument(
    "arguments", nargs=-1, required=True, metavar="CHECKPOINT... [IMAGE]...", shell_complete=known_checkpoints
)
@images_option("Folder, zip, or embedded:shapes; without it, the IMAGEs are explained.", required=False)
@_map_option(
    *("--target", "targets"),
    multiple=True,
    help="Class to draw maps for: a name, a number, predicted, or (with --data-dir) label; may be repeated.",
)
@_map_option(
    *("--target-text", "texts"),
    multiple=True,
    help="Sentence to draw maps of a zero-shot model (CLIP, SigLIP) for; may be repeated.",
)
@_map_option("--cams", default="agcam,rollout,grad-cam", help="Methods (robustkit list cams); controls are added.")
@setting(
    "--attacks",
    section="Attacks",
    default="none",
    help="Also attack the images, and draw their maps next to the clean ones.",
)
@request_options(ClassificationRequest, "eps", "norm")
@_map_option("--gallery", type=AT_LEAST_0, default=12, help="Samples to draw; 0 for none.")
@_map_option(
    "--choose",
    help="Samples to draw: disagreement, worst, best, random or class:NAME; default: disagreement, or worst for one "
    "checkpoint.",
)
@_map_option("--show", multiple=True, help="Id of a sample to draw; may be repeated.")
@_map_option("--save-maps", is_flag=True, help="Save the drawn maps: cams/maps.npz, or <stem>-cam.npz for an IMAGE.")
@request_options(ClassificationRequest, *_OF_MAPS)
@group([details_option, quiet_option, skip_bad_option, common])
def cam(
    arguments: tuple[str, ...], data_dir: str | None, skip_bad: bool, details: bool, quiet: bool, **options: Any
) -> None:
    """Draw attribution maps of checkpoints, score them, and show them side by side.

    With --data-dir: a run with scores next to controls that do not look at the image, and a gallery in its folder.
    Without: the maps of your own pictures, as <stem>-cam.png, with the model options, --cams, --target, --out, --device
    and --save-maps.

    \b
    robustkit cam standard.pth quest.pth --data-dir imagenet/val --boxes boxes.csv --limit 500 --out runs/maps
    robustkit cam vit.safetensors photographs/zebra.jpg --target zebra --target tusker
    """
    run_cam(arguments, data_dir, skip_bad, details, quiet, options)


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@run_options(SegmentationRequest)
def segment(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
    """Evaluate segmenters clean, under attack and corrupted: mIoU of the data set, with a picture of examples.

    CHECKPOINT is a Segmenter's file, zoo:NAME, hf:DIR, hf-hub:ORG/NAME or local-dir:PATH, or any file with --arch
    FILE.py:FUNCTION, which returns a network of normalised images to logits of each pixel. The same command continues
    where an interrupted one stopped.

    \b
    robustkit segment zoo:shapes-segmenter-standard zoo:shapes-segmenter-quest --data-dir embedded:shapes --limit 100
    robustkit segment seg.pth --data-dir ADEChallengeData2016 --resize ade20k --corruptions segformer-16 --limit 500
    robustkit segment net.pth --arch net.py:make --data-dir images --masks labels --classes names.txt --ignore 255
    """
    run_to_the_end(segment_request(options), skip_bad, details, quiet)
