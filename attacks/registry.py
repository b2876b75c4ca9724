"""Attacks by name: of classifiers, of models that predict a class for each pixel, and of features."""

from __future__ import annotations

from .apgd import APGD
from .attack import Attack
from .autoattack import AutoAttack
from .dense import SEA, CosPGD, DenseAttack, DenseFGSM, DensePGD
from .fab import FAB
from .minimal import DDN, FMN
from .patch import Patch
from .pgd import FGSM, PGD, FeaturePGD
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
    "fmn": FMN,
    "ddn": DDN,
    "patch": Patch,
}
DENSE_ATTACKS: dict[str, type[DenseAttack]] = {
    "fgsm": DenseFGSM,
    "pgd": DensePGD,
    "segpgd": DensePGD,
    "cospgd": CosPGD,
    "sea": SEA,
}
"""Attacks on models that predict a class for each pixel, under a card for segmentation."""
FEATURE_ATTACKS: dict[str, type[Attack]] = {"pgd": FeaturePGD}
"""Attacks on models that return features, under a card for them."""
