"""All attention formulas by name. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from ..common.plugins import Registry, instance_of

_HOME = "robustkit.attention.formulas"


class Lazy(Mapping[str, Any]):
    """Formulas by name, loaded when one is asked for. places: the name of each in `formulas`."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Any:
        return resolve_name(f"{_HOME}:{self._places[name]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


FORMULAS: Mapping[str, Any] = Lazy(
    {
        "standard": "STANDARD",
        "quest": "QUEST",
        "qnorm": "QNORM",
        "qknorm-hs": "QKNORM_HS",
        "qknorm-ds": "QKNORM_DS",
        "qknorm": "QKNORM",
        "qknorm-ln": "QKNORM_LN",
        "elliptical": "ELLIPTICAL",
        "elliptical-quest": "ELLIPTICAL_QUEST",
        "qk-l2": "QK_L2",
        "qk-layer-norm": "QK_LAYER_NORM",
        "qana": "QANA",
        "softcap": "SOFTCAP",
    }
)
"""By name; those that take options with their usual ones."""
EVERY_FORMULA: Registry[Any] = Registry("formulas", FORMULAS, instance_of(f"{_HOME}:Formula"))
"""Those, and the ones of plug-ins."""
