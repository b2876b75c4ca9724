"""`.ci/run` runs the slow tests of what a change touches: each slow test has a room, each room its tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from scripts import slow_tests
from scripts.slow_tests import TABLE

SLOW = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.slow" in path.read_text("utf-8") and path.name != Path(__file__).name
)


def test_the_table_knows_each_slow_test_and_nothing_that_is_gone() -> None:
    assert len(SLOW) > 20
    by_room = {f"tests/{test}" for tests in TABLE.values() if tests for test in tests.split()}
    for test in SLOW:
        assert slow_tests.slow_tests([test]) == [test]
        assert any(f"{test}/".startswith(f"{room}/") for room in by_room), test
    for name in TABLE.keys() - {"scripts/studies"}:
        assert (ROOT / name).exists(), name
    for name in by_room - {"tests/studies"}:
        assert any(f"{test}/".startswith(f"{name}/") for test in SLOW) or (ROOT / name).is_dir(), name


def test_a_change_runs_the_slow_tests_of_its_rooms_alone() -> None:
    assert slow_tests.slow_tests(["CHANGELOG.md", "robustkit/errors.py", "tests/cli/test_gone.py"]) == []
    assert slow_tests.slow_tests(["docs/how-to/gate.md", "README.md"]) == ["tests/cli/test_pages.py"]
    assert slow_tests.slow_tests(["attacks/pgd.py", "tests/attacks/test_sets.py", "attacks_of_mine.py"]) == [
        "tests/attacks",
        "tests/evaluations",
        "tests/test_real.py",
    ]
    assert slow_tests.slow_tests(["robustkit/cli/app.py", "docs/index.md"]) == ["tests/cli", "tests/report"]
    assert slow_tests.slow_tests(["pyproject.toml", "cam/map.py"]) == ["tests"]
    helped = slow_tests.slow_tests(["tests/support/cheating_nets.py"])
    assert helped == ["tests/delivery/test_slow_tests.py", "tests/evaluations/test_cheats_under_pgd.py"]


def test_where_git_cannot_tell_none_runs_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOW_TESTS_BASE", "no-such-commit")
    slow_tests.main()
    said = capsys.readouterr()
    assert said.out == "\n" and "git cannot tell what changed since no-such-commit" in said.err
