"""Attacks by name: of classifiers, and of models that predict a class for each pixel."""

from __future__ import annotations

from .apgd import APGD
from .attack import Attack
from .autoattack import AutoAttack
from .dense import DenseFGSM, DensePGD
from .fab import FAB
from .fgsm import FGSM
from .pgd import PGD
from .spsa import SPSA
from .square import Square

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "spsa": SPSA,
    "apgd": APGD,
    "fab": FAB,
    "square": Square,
    "autoattack": AutoAttack,
}
DENSE_ATTACKS: dict[str, type[DensePGD]] = {
    "fgsm": DenseFGSM,
    "pgd": DensePGD,
    "segpgd": DensePGD,
}
"""Attacks on models that predict a class for each pixel, under a card for segmentation."""
