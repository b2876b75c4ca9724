"""Attacks by name: of classifiers, of models that predict a class for each pixel, and of features. Loads no torch."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Container, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attack import Attack
    from .dense import DenseAttack


class Lazy(UserDict[str, Any]):
    """Classes by name, each imported when it is asked for; made of places, such as `attacks.pgd:PGD`."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(self.data[name])

    def without(self, names: Container[str]) -> Lazy:
        """Return the others, still to be imported."""
        return Lazy({name: place for name, place in self.data.items() if name not in names})


ATTACKS: Mapping[str, type[Attack]] = Lazy(
    fgsm="attacks.pgd:FGSM",
    pgd="attacks.pgd:PGD",
    spsa="attacks.queries:SPSA",
    apgd="attacks.apgd:APGD",
    fab="attacks.minimal:FAB",
    square="attacks.queries:Square",
    autoattack="attacks.apgd:AutoAttack",
    fmn="attacks.minimal:FMN",
    ddn="attacks.minimal:DDN",
    hopskipjump="attacks.queries:HopSkipJump",
    patch="attacks.pgd:Patch",
    spatial="attacks.spatial:Spatial",
)
WITHOUT_RADIUS = ("fmn", "ddn", "hopskipjump", "patch", "spatial")
"""Those that look for the smallest change, or change a part freely, or move the image, not all of it within a ball."""
DENSE_ATTACKS: Mapping[str, type[DenseAttack]] = Lazy(
    fgsm="attacks.dense:DenseFGSM",
    pgd="attacks.dense:DensePGD",
    segpgd="attacks.dense:DensePGD",
    cospgd="attacks.dense:CosPGD",
    sea="attacks.dense:SEA",
    spatial="attacks.spatial:DenseSpatial",
)
"""Attacks on models that predict a class for each pixel, under a card for segmentation."""
FEATURE_ATTACKS: Mapping[str, type[Attack]] = Lazy(pgd="attacks.pgd:FeaturePGD")
"""Attacks on models that return features, under a card for them."""
