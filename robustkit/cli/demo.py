"""Run `robustkit demo`: audit the embedded checkpoints of shapes on embedded images, classifiers and segmenters.

It takes what shows in about a minute: each kind of evaluation, at one radius and one severity. `--full` takes more
samples, a smaller radius, SPSA and all severities. AutoAttack has a small budget. Corruptions are those that need no
further files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_AUTOATTACK = "autoattack(eps=4/255,steps=10,targets=3,queries=100)"
_CHOSEN = "noise(severity=3),blur(severity=3),digital(severity=3)"
DEMO: dict[str, Any] = {
    "checkpoints": [
        *("zoo:shapes-vit-standard", "zoo:shapes-vit-quest"),
        *("zoo:shapes-vit-elliptical", "zoo:shapes-vit-elliptical-quest"),
    ],
    "data_dir": "embedded:shapes",
    "attacks": f"fgsm(eps=4/255),pgd(eps=4/255),{_AUTOATTACK}",
    "corruptions": _CHOSEN,
    "cams": "agcam",
    "limit": 32,
    "browse": 24,
}
SEGMENTERS: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-standard", "zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd,segpgd",
    "corruptions": _CHOSEN,
    "variant": "hendrycks",
    "limit": 20,
}
FULL_DEMO: dict[str, Any] = DEMO | {
    "attacks": f"fgsm,pgd,spsa(steps=3,directions=8),fgsm(eps=4/255),pgd(eps=4/255),{_AUTOATTACK}",
    "corruptions": "noise,blur,digital",
    "limit": 60,
}
FULL_SEGMENTERS: dict[str, Any] = SEGMENTERS | {"corruptions": "noise,blur,digital", "limit": 40}


def epilogue(classifiers: Path, segmenters: Path) -> str:
    """Return what the demo prints last: what is in its folders, and what to do next."""
    return f"""
{classifiers} and {segmenters} hold report.html to read, summary.csv to
compute with, and records/ of every sample. More of these results:
  robustkit report {classifiers} --details
    every table: losses, calibration, each corruption, stages of AutoAttack
  robustkit compare {classifiers}
    the four on the same images: differences, intervals, tests
  robustkit check {classifiers} --init
    a policy for CI
Your own checkpoint:
  robustkit inspect CHECKPOINT --data-dir IMAGES
    what is in it, and which attention formula fits
  robustkit audit CHECKPOINT --data-dir IMAGES --limit 200 --out runs/first"""
