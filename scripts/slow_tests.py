"""Print the arguments with which pytest runs the slow tests of what a change touches; nothing if it touches none.

    pytest -m slow $(python -m scripts.slow_tests)

The change is what git finds between SLOW_TESTS_BASE, or HEAD~1, and the files as they are. Where git cannot tell, as in
a shallow clone, none runs, and a line says so: all of them take longer than the rest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = {
    "attacks": "attacks evaluations test_real.py",
    "cam": "cam evaluations test_real.py",
    "corruptions": "corruptions evaluations test_real.py",
    "robustkit/attention": "attention evaluations models scripts",
    "robustkit/cli": "cli report",
    "robustkit/common": "common results pipeline",
    "robustkit/data": "data test_real_setups.py",
    "robustkit/display": "report",
    "robustkit/evaluations": "evaluations models pipeline devices",
    "robustkit/embedded": "test_packaging.py scripts/test_zoo.py",
    "robustkit/models": "models devices evaluations doors test_real_setups.py test_real.py",
    "robustkit/pipeline": "tasks pipeline devices evaluations cli/test_pages.py",
    "robustkit/protocol": "cli/test_pages.py test_fuzz.py",
    "robustkit/report": "report",
    "robustkit/results": "results report cli/test_pages.py",
    "robustkit/runs": "runs pipeline",
    "robustkit/slices": "slices test_slices.py",
    "robustkit/slices/inspect": "test_real_setups.py",
    "robustkit/gate": "gate delivery/test_action.py cli/test_pages.py",
    "robustkit/tasks": "tasks evaluations cli/test_pages.py test_slices.py",
    "examples": "examples",
    "scripts": "scripts delivery",
    "scripts/studies": "studies",
    "MANIFEST.in": "test_packaging.py",
    **dict.fromkeys(("docs", "README.md", "CONTRIBUTING.md"), "cli/test_pages.py"),
    "docs/notebooks": "scripts/test_tutorials.py",
    **dict.fromkeys(("Dockerfile", ".dockerignore", "action.yml"), "delivery"),
    **dict.fromkeys(("setup.py", "pyproject.toml", "tests/conftest.py"), ""),
}
"""Below tests/, those of a room or a file; "": all. A test file that changed runs its own, a helper those naming it."""


def slow_tests(changed: Iterable[str]) -> list[str]:
    """Return the files and folders of tests for changed paths, each once; those that do not exist are left out."""
    found = set[str]()
    for path in changed:
        rooms = [room for room in TABLE if f"{path}/".startswith(f"{room}/")]
        found |= {f"tests/{test}".rstrip("/") for room in rooms for test in TABLE[room].split(" ")}
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            found.add(path)
        elif path.startswith("tests/support/"):
            name = re.compile(rf"\b{Path(path).parts[2].removesuffix('.py')}\b")
            files = (ROOT / "tests").rglob("test_*.py")
            found |= {str(file.relative_to(ROOT)) for file in files if name.search(file.read_text("utf-8"))}
    kept = {test for test in found if (ROOT / test).exists()}
    return sorted(test for test in kept if not any(f"{test}/".startswith(f"{other}/") for other in kept - {test}))


def main() -> None:
    base = os.environ.get("SLOW_TESTS_BASE", "HEAD~1")
    words = ["git", "-C", str(ROOT), "diff", "--name-only", "--relative", base]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"git cannot tell what changed since {base}: no slow test is run (pytest -m slow)", file=sys.stderr)
    print(*slow_tests(done.stdout.splitlines()))


if __name__ == "__main__":
    main()
