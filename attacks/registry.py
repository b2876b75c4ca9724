"""Attacks by name: of classifiers, of models that predict a class for each pixel, and of features. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .attack import Attack
    from .dense import DenseAttack

T = TypeVar("T")


class Lazy(Mapping[str, T]):
    """Classes by name, each imported when it is asked for. places: by name, such as `attacks.pgd:PGD`."""

    def __init__(self, **places: str) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        kind: T = resolve_name(self._places[name])
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
    patch="attacks.pgd:Patch",
)
DENSE_ATTACKS: Mapping[str, type[DenseAttack]] = Lazy(
    fgsm="attacks.dense:DenseFGSM",
    pgd="attacks.dense:DensePGD",
    segpgd="attacks.dense:DensePGD",
    cospgd="attacks.dense:CosPGD",
    sea="attacks.dense:SEA",
)
"""Attacks on models that predict a class for each pixel, under a card for segmentation."""
FEATURE_ATTACKS: Mapping[str, type[Attack]] = Lazy(pgd="attacks.pgd:FeaturePGD")
"""Attacks on models that return features, under a card for them."""
