"""Passes of pytest are joined: what ran in one of them was not skipped, and the rest is named with its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from scripts.skipped import main, never_run, table

FIRST = {
    "ran": ["tests/a.py::one", "tests/a.py::some[1]"],
    "skipped": {
        "tests/a.py::two": "could not import 'captum'",
        "tests/b.py": "pip install torch_geometric",
        "tests/c.py": "pip install torch_geometric",
        "tests/d.py::three": "captum is not installed",
        "tests/d.py::four": "captum is not installed",
        "tests/d.py::five": "no browser: none of chromium is on the PATH",
    },
}
SECOND = {"ran": ["tests/a.py::two", "tests/b.py::six"], "skipped": {"tests/a.py::one": "captum is not installed"}}


def test_what_ran_in_one_pass_is_not_skipped() -> None:
    assert never_run([]) == {} and never_run([FIRST]) == FIRST["skipped"]
    left = never_run([FIRST, SECOND])
    assert list(left) == ["tests/c.py", "tests/d.py::three", "tests/d.py::four", "tests/d.py::five"]
    assert left == never_run([SECOND, FIRST])
    assert table(left).splitlines() == [
        "skipped everywhere since a package is missing: 4",
        "     1  pip install torch_geometric: tests/c.py",
        "     2  captum is not installed: tests/d.py::three …",
        "     1  no browser: none of chromium is on the PATH: tests/d.py::five",
    ]
    assert table({}) == "skipped everywhere since a package is missing: none"


@pytest.mark.parametrize(
    ("why", "is_package"),
    [
        ("needs the real data next to the checkout", False),
        ("no /somewhere/shared/weights/vit.safetensors", False),
        ("this torch has no Muon", False),
        ("could not import 'ray': No module named 'ray'", True),
        ("pdflatex or booktabs is not installed", True),
        ("the stand-in device needs a C++ compiler (c++, g++ or clang++)", True),
    ],
)
def test_data_and_versions_are_no_packages(why: str, is_package: bool) -> None:
    assert bool(never_run([{"ran": [], "skipped": {"tests/a.py::one": why}}])) == is_package


@pytest.mark.slow
def test_passes_are_recorded_and_the_status_says_whether_one_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of this suite's own conftest, in two workers: a module and a test that are skipped, and one that runs."""
    tests, passes = tmp_path / "tests", tmp_path / "passes.jsonl"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (tests / "test_a.py").write_text("import pytest\npytest.importorskip('no_such_package')\ndef test_it(): ...\n")
    body = (
        "import pytest\ndef test_fine(): ...\n"
        "@pytest.mark.slow\n@pytest.mark.skipif({}, reason='x is not installed')\ndef test_b(): ...\n"
    )

    def run(lacks: bool, *words: str) -> None:
        (tests / "test_b.py").write_text(body.format(lacks))
        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
        environment = {**os.environ, "SKIPPED_TESTS": str(passes), "PYTHONPATH": paths}
        environment.pop("PYTEST_XDIST_WORKER", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *words]
        subprocess.run(command, cwd=tmp_path, check=True, env=environment, capture_output=True)

    run(True, "-m", "", "-n", "2", "tests")
    lines: list[dict[str, Any]] = [json.loads(line) for line in passes.read_text().splitlines()]
    assert len(lines) == 1 and lines[0]["ran"] == ["tests/test_b.py::test_fine"]
    assert set(lines[0]["skipped"]) == {"tests/test_a.py", "tests/test_b.py::test_b"}
    assert main([str(passes)]) == 1
    assert "     1  x is not installed: tests/test_b.py::test_b\n" in capsys.readouterr().out
    assert main([str(passes), "--again"]) == 0
    (tmp_path / "again.txt").write_text(again := capsys.readouterr().out)
    assert again == "tests/test_a.py\ntests/test_b.py::test_b\n"
    (tests / "test_a.py").write_text("def test_it(): ...\n")
    run(False, "-m", "", "@again.txt")  # as CI does: what is slow has been skipped by a pass of slow tests
    assert main([str(passes)]) == 0 and capsys.readouterr().out.endswith("is missing: none\n")


def test_the_last_pass_of_ci_is_over_what_was_skipped() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert lines[-1] == 'python -m scripts.skipped "$SKIPPED_TESTS"'  # its status is that of CI
    assert 'python -m scripts.skipped --again "$SKIPPED_TESTS" > "$again"' in lines
    assert any('pytest -q -m "" "@$again"' in line for line in lines)
    assert lines.index("set -euo pipefail") < next(n for n, line in enumerate(lines) if "export SKIPPED_TESTS=" in line)
