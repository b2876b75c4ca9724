"""Each public function and class has an example in its docstring, which runs after the first block of its page."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from page_blocks import blocks_of
from places import ROOT

PACKAGES = ("attacks", "cam", "corruptions")
WITHOUT: dict[str, str] = {}
"""Public names that have no example, and why."""


def public_names() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if (inspect.isclass(thing) or callable(thing)) and not isinstance(thing, dict):
                yield f"{package}.{name}"


NAMES = [*public_names()]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the first block of each package's page makes, by package; the folder is that of all examples."""
    return {}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])
def test_an_example_runs(
    name: str, begun: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, _, last = name.partition(".")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(package)
    torch.manual_seed(0)
    if package not in begun:
        begun[package] = {each: getattr(module, each) for each in module.__all__}
        block = next(block for block in blocks_of(ROOT / "docs" / "reference" / f"{package}.md"))
        exec(block.text, begun[package])
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(module, last)) or "", dict(begun[package]), name, None, None
    )
    assert example.examples, f"{name} has no example"
    torch.manual_seed(0)
    output: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.append)
    assert not output, "".join(output)
