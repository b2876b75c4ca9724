"""Adversarial attacks on classifiers and segmentation models: torch only, usable alone.

An attack is a frozen dataclass of its parameters, and is called with a model, a batch of images and their labels:

    from attacks import PGD, ThreatModel

    adversarials = PGD(ThreatModel(norm="linf", eps=1 / 255), steps=20)(model, images, labels)

`run(...)` in place of the call also counts steps and passes of each sample. The model takes pixels in [0, 1]: the
normalisation belongs inside it, or eps means something else.

`DenseFGSM` and `DensePGD` attack models that predict a class for each pixel, and take masks in place of labels.
`FeaturePGD` attacks models that return features, and takes no labels.
"""

from .apgd import APGD
from .attack import Attack, AttackResult, EnsembleResult, StagedResult
from .autoattack import AutoAttack
from .dense import SEA, CosPGD, DenseAttack, DenseFGSM, DensePGD
from .fab import FAB
from .minimal import DDN, FMN
from .model_access import LOSSES, cross_entropy, dlr, dlr_targeted, margin
from .patch import Patch, PatchResult
from .pgd import FGSM, PGD, FeaturePGD
from .registry import ATTACKS, DENSE_ATTACKS, FEATURE_ATTACKS
from .rng import Rng, TorchRng
from .spsa import SPSA
from .square import Square
from .threat import ThreatModel

__all__ = [
    "APGD",
    "ATTACKS",
    "DDN",
    "DENSE_ATTACKS",
    "FAB",
    "FEATURE_ATTACKS",
    "FGSM",
    "FMN",
    "LOSSES",
    "PGD",
    "SEA",
    "SPSA",
    "Attack",
    "AttackResult",
    "AutoAttack",
    "CosPGD",
    "DenseAttack",
    "DenseFGSM",
    "DensePGD",
    "EnsembleResult",
    "FeaturePGD",
    "Patch",
    "PatchResult",
    "Rng",
    "Square",
    "StagedResult",
    "ThreatModel",
    "TorchRng",
    "cross_entropy",
    "dlr",
    "dlr_targeted",
    "margin",
]
