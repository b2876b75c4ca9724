"""Score the detections of other systems: COCO results against COCO annotations, one record row per image.

This module has the command and its options. It loads no torch.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar

from ...cli.terminal import evaluation
from ...common.options import option
from ...pipeline.request import Request


@dataclass(frozen=True, kw_only=True)
class DetectionRequest(Request):
    """The request of `detection`. data_dir: the annotations."""

    task = "detection"
    usual_attacks = ""
    usual_batch: ClassVar = {"cpu": 1}
    least_shard = 1 << 13
    argument_names = ("checkpoints", "data_dir", "iou_type", "corrupted_by", "ids")
    lacks = (
        *("model", "method", "preset", "attacks", "eps", "norm", "corruptions", "variant", "frost_dir", "tiles_dir"),
        *("evaluations", "limit", "setup_check", "batch_size", "workers", "device", "dtype", "compile", "part", "ray"),
    )

    data_dir: str | Path = option(
        "Data", "COCO annotations of the images, as instances_val2017.json.", MISSING, flag="--annotations"
    )
    iou_type: str = option("Data", "What is matched: boxes (bbox) or masks (segm).", "bbox", type=("bbox", "segm"))
    corrupted_by: str | None = option(
        "Corruptions",
        "What corrupted the images of NAME/SEVERITY.json: bethgelab (the package imagecorruptions) or hendrycks.",
        type=("bethgelab", "hendrycks"),
    )
    protocol: str = "detection"
    device: str = "cpu"


@evaluation(
    DetectionRequest,
    after="segment",
    short_help="score detections of another system: mAP, mPC, rPC",
    shared=False,
)
def detection() -> None:
    """Score the boxes or masks that a detector returned, clean and under corruption, as COCO does.

    CHECKPOINT is predictions:FILE, COCO results on clean images, or predictions:FOLDER, with a file for each condition:
    clean.json and fog/3.json, or the text of the condition as the name, such as corruption(fog,severity=3).json.

    \b
    robustkit detection predictions:retinanet.json --annotations instances_val2017.json
    robustkit detection predictions:yolo predictions:detr --annotations instances_val2017.json --corrupted-by bethgelab
    robustkit detection predictions:maskrcnn.json --annotations instances_val2017.json --iou-type segm
    """
