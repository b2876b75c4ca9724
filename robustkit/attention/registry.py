"""All attention formulas by name. Loads no torch."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from ..common.plugins import Registry, instance_of

_HOME = "robustkit.attention.formulas"


class LazyFormulas(UserDict[str, Any]):
    """Formulas by name, each loaded when it is asked for; made of their names in `formulas`."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(f"{_HOME}:{self.data[name]}")


_NAMES = (
    *("standard", "quest", "qnorm", "qknorm-hs", "qknorm-ds", "qknorm", "qknorm-ln", "elliptical", "elliptical-quest"),
    *("qk-rms", "qk-l2", "qk-layer-norm", "qana", "softcap"),
)
FORMULAS: Mapping[str, Any] = LazyFormulas({name: name.upper().replace("-", "_") for name in _NAMES})
"""By name; those that take options with their usual ones."""
EVERY_FORMULA: Registry[Any] = Registry("formulas", FORMULAS, instance_of(f"{_HOME}:Formula"))
"""Those, and the ones of plug-ins."""
