"""The rooms of the house: who may import whom, and what stays private."""

import ast
import subprocess
import sys

import pytest
from places import ROOT

MODULES = sorted((ROOT / "robustkit").rglob("*.py"))


def test_imports_go_down_only() -> None:
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout + done.stderr


def test_no_private_name_leaves_its_module() -> None:
    taken = [
        f"{path.relative_to(ROOT)}: {name.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name.startswith("_") and not name.name.startswith("__")
    ]
    assert not taken


def test_the_picture_of_the_floors_is_of_these_imports() -> None:
    done = subprocess.run([sys.executable, "-m", "scripts.pages.floors", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run python -m scripts.pages.floors"
