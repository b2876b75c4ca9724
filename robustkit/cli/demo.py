"""Run `robustkit demo`: audit the embedded checkpoints of shapes on embedded images, classifiers and segmenters.

SPSA and AutoAttack have small budgets. Corruptions are those that need no further files; frost's photographs are not
shipped.
"""

from __future__ import annotations

from typing import Any

DEMO: dict[str, Any] = {
    "checkpoints": [
        *("zoo:shapes-vit-standard", "zoo:shapes-vit-quest"),
        *("zoo:shapes-vit-elliptical", "zoo:shapes-vit-elliptical-quest"),
    ],
    "data_dir": "embedded:shapes",
    "attacks": (
        "fgsm,pgd,spsa(steps=3,directions=8),fgsm(eps=4/255),pgd(eps=4/255),"
        "autoattack(eps=4/255,steps=10,targets=3,queries=100)"
    ),
    "corruptions": "noise,blur,digital",
    "cams": "agcam",
    "limit": 60,
    "browse": 24,
    "setup_check": False,  # these say how they were trained
}
SEGMENTERS: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-standard", "zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd,segpgd",
    "corruptions": "noise,blur,digital",
    "variant": "hendrycks",
    "limit": 40,
}
