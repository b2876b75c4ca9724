"""Each public function and class has an example in its docstring, which runs after the block of its page."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from page_blocks import blocks_of
from places import ROOT

PAGES = {
    **{package: f"docs/reference/python/{package}.md" for package in ("attacks", "cam", "corruptions", "robustkit")},
    "robustkit.attention": "docs/reference/python/robustkit.md",
}
ROOMS = {"robustkit.report": "robustkit.report.refresh:report"}
"""A module that can be called has the example of what it calls."""


def public_names() -> Iterator[str]:
    for package in PAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if (inspect.isclass(thing) or callable(thing)) and not isinstance(thing, dict):
                yield f"{package}.{name}"


NAMES = [*public_names()]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """By package the folder in which its examples run, and the names that they begin with; made when first needed."""
    return {}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("one_thread")
def test_the_example_of_a_docstring_runs(
    name: str,
    begun: dict[str, tuple[Path, dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, _, last = name.rpartition(".")
    module = importlib.import_module(package)
    if package not in begun:
        begun[package] = tmp_path_factory.mktemp(package), {each: getattr(module, each) for each in module.__all__}
        monkeypatch.chdir(begun[package][0])
        torch.manual_seed(0)
        blocks = (block.text for block in blocks_of(ROOT / PAGES[package]))
        exec(next(text for text in blocks if re.search(rf"(?m)^(from|import) {package}\b", text)), begun[package][1])
    place, names = begun[package]
    monkeypatch.chdir(place)
    text = inspect.getdoc(resolve_name(ROOMS.get(name, f"{package}:{last}"))) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(names), name, None, None)
    assert example.examples, f"{name} has no example"
    torch.manual_seed(0)
    output: list[str] = []
    doctest.DocTestRunner().run(example, out=output.append)
    assert not output, "".join(output)
