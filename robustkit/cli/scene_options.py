"""The options of segmenters and of the scenes that they see."""

from __future__ import annotations

from .option_types import AT_LEAST_0, AT_LEAST_1, Place
from .options import evaluation_option, frost_option, group, ids_option, network_options, option, radius_options

mask_options = group(
    [
        option(
            "--masks",
            type=Place(),
            help="Folder of label maps, for segmenters, named like the images.",
        ),
        option("--classes", type=Place(), help="File of class names, one a line, in label order."),
        option("--ignore", type=str, default="255", help="Labels that do not count, separated by commas."),
    ],
    "Data",
)
scene_options = group(
    [
        mask_options,
        option("--layout", section="Data", help="ade20k, folders or embedded; detected by default."),
        option("--limit", section="Data", type=AT_LEAST_1, help="At most N images, a function of the seed."),
        ids_option,
        option(
            "--attacks",
            section="Attacks",
            help="fgsm, pgd, segpgd, cospgd, sea or conditions such as segpgd(steps=10); none; default: pgd.",
        ),
        radius_options,
        option("--corruptions", help="Sets or names: segformer-16, fan-19, fog(severity=3), of the whole image."),
        option("--variant", default="bethgelab", help="Code: bethgelab (published segmentation's) or hendrycks."),
        frost_option,
        evaluation_option,
        option(
            "--examples",
            section="Output",
            type=AT_LEAST_0,
            default=4,
            help="Scenes to draw in the report; 0 for none.",
        ),
    ],
    "Corruptions",
)
segmenter_options = network_options(
    "timm name of a Segmenter's encoder, or code to run: module:function, file.py:function.",
    "Number of classes of the output.",
    option("--window", help="Side, or HEIGHTxWIDTH, of the windows that the network sees."),
    option("--stride", help="Step from one window to the next, likewise."),
    option("--short-side", type=AT_LEAST_1, help="Resize images to this short side before windows are cut."),
    option("--resize", help="ade20k: resize images as the public data pipeline for ADE20K does."),
)
