"""Print the arguments with which pytest runs the slow tests of what a change touches; nothing if it touches none.

    pytest -m slow $(python -m scripts.slow_tests)

The change is what git finds between SLOW_TESTS_BASE, or HEAD~1, and the files as they are. Where git cannot tell, all
slow tests run: a shallow clone must not pass for a change without any.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVERYTHING = ("tests",)
TABLE: dict[str, tuple[str, ...]] = {
    "attacks": ("tests/attacks", "tests/evaluations", "tests/test_real.py"),
    "cam": ("tests/cam", "tests/evaluations", "tests/test_real.py"),
    "corruptions": ("tests/corruptions", "tests/evaluations", "tests/test_real.py"),
    "robustkit/attention": ("tests/attention", "tests/evaluations", "tests/models"),
    "robustkit/cli": ("tests/cli", "tests/report"),
    "robustkit/common": ("tests/common", "tests/results", "tests/pipeline"),
    "robustkit/data": ("tests/data", "tests/test_real_setups.py"),
    "robustkit/display": ("tests/report",),
    "robustkit/evaluations": ("tests/evaluations", "tests/pipeline", "tests/devices"),
    "robustkit/embedded": ("tests/test_packaging.py",),
    "robustkit/models": (
        "tests/models",
        "tests/devices",
        "tests/evaluations",
        "tests/test_real_setups.py",
        "tests/test_real.py",
    ),
    "robustkit/pipeline": (
        "tests/tasks",
        "tests/pipeline",
        "tests/devices",
        "tests/evaluations",
        "tests/cli/test_pages.py",
    ),
    "robustkit/protocol": ("tests/cli/test_pages.py", "tests/test_fuzz.py"),
    "robustkit/report": ("tests/report",),
    "robustkit/results": ("tests/results", "tests/report", "tests/cli/test_pages.py"),
    "robustkit/runs": ("tests/runs", "tests/pipeline"),
    "robustkit/gate": ("tests/gate", "tests/delivery/test_action.py", "tests/cli/test_pages.py"),
    "robustkit/tasks": ("tests/tasks", "tests/evaluations", "tests/cli/test_pages.py"),
    "scripts": ("tests/scripts",),
    "scripts/studies": ("tests/studies",),
    **dict.fromkeys(("docs", "README.md", "CONTRIBUTING.md"), ("tests/cli/test_pages.py",)),
    **dict.fromkeys(("Dockerfile", ".dockerignore", "action.yml"), ("tests/delivery",)),
    "MANIFEST.in": ("tests/test_packaging.py",),
    **dict.fromkeys(("setup.py", "pyproject.toml", "tests/conftest.py", "tests/support"), EVERYTHING),
}
"""The slow tests of a room, or of a file. A test file that changed runs its own."""


def slow_tests(changed: Iterable[str]) -> list[str]:
    """Return the files and folders of tests for changed paths, each once; those that do not exist are left out."""
    found = set[str]()
    for path in changed:
        found |= {test for room, tests in TABLE.items() if f"{path}/".startswith(f"{room}/") for test in tests}
        found |= {path} if Path(path).match("tests/**/test_*.py") or Path(path).match("tests/test_*.py") else set()
    kept = {test for test in found if (ROOT / test).exists()}
    return sorted(test for test in kept if not any(f"{test}/".startswith(f"{other}/") for other in kept - {test}))


def main() -> None:
    base = os.environ.get("SLOW_TESTS_BASE", "HEAD~1")
    words = ["git", "-C", str(ROOT), "diff", "--name-only", "--relative", base]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"git cannot tell what changed since {base}: all slow tests are run", file=sys.stderr)
    print(*slow_tests(done.stdout.splitlines()) if not done.returncode else EVERYTHING)


if __name__ == "__main__":
    main()
