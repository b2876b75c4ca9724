"""Old names of modules, as plug-ins import them."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from places import DELETED

from robustkit.moved import MOVED


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("robustkit.evaluations.vocabulary", "robustkit.evaluations.condition", "Vocabulary"),
        ("robustkit.evaluations.cells", "robustkit.evaluations.metrics", "interval_cell"),
        ("robustkit.display.section", "robustkit.display.table", "of_tables"),
    ],
)
def test_an_old_name_warns_and_finds_what_has_moved(old: str, new: str, name: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = import_module(old)
    assert getattr(module, name) is getattr(import_module(new), name)
    with pytest.raises(AttributeError):
        module.nothing  # noqa: B018


def test_every_new_name_is_there() -> None:
    assert all(import_module(new) for new in MOVED.values() if not {*new.split(".")[2:3]} & {*DELETED})
    with pytest.raises(ModuleNotFoundError):
        import_module("robustkit.evaluations.nothing")
