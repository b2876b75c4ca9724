"""The commands that evaluate: audit, attack, segment. Heavy imports happen inside them."""

from __future__ import annotations

from functools import partial

from ...pipeline.request import ClassificationRequest, SegmentationRequest
from ..terminal import audit_request, evaluation, segment_request


@evaluation(ClassificationRequest, audit_request)
def audit() -> None:
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


@evaluation(
    ClassificationRequest,
    partial(audit_request, parts=("attacks", "eps", "limit")),
    without=("Corruptions", "Maps", "evaluations"),
)
def attack() -> None:
    """Evaluate clean and under attacks: the attack part of an audit, same options.

    \b
    robustkit attack vit.safetensors --data-dir imagenet/val --attacks fgsm,pgd,autoattack --eps 0.5/255,1/255
    """


@evaluation(SegmentationRequest, segment_request)
def segment() -> None:
    """Evaluate segmenters clean, under attack and corrupted: mIoU of the data set, with a picture of examples.

    CHECKPOINT is a Segmenter's file, zoo:NAME, hf:DIR, hf-hub:ORG/NAME or local-dir:PATH, or any file with --arch
    FILE.py:FUNCTION, which returns a network of normalised images to logits of each pixel. The same command continues
    where an interrupted one stopped.

    \b
    robustkit segment zoo:shapes-segmenter-standard zoo:shapes-segmenter-quest --data-dir embedded:shapes --limit 100
    robustkit segment seg.pth --data-dir ADEChallengeData2016 --resize ade20k --corruptions segformer-16 --limit 500
    robustkit segment net.pth --arch net.py:make --data-dir images --masks labels --classes names.txt --ignore 255
    """
