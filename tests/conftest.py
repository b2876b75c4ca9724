"""Fixtures that several test modules share."""

import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
from places import DELETED, ROOT
from small_audit import furnish

from robustkit.common.finding import Finding, catalogue
from robustkit.display import svg

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several that share the cores, as do the commands that it starts
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # lines are as long as in a log, wherever the tests run

if not stand_in.why_not():
    stand_in.prepare()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a module that imports from a slice which was deleted, or tests a study that does."""
    if collection_path.parent.name in DELETED:
        return True
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text("utf-8")
    for study in re.findall(r"^from scripts\.studies\.(\w+)", text, re.MULTILINE):
        text += "".join(path.read_text("utf-8") for path in (ROOT / "scripts" / "studies" / study).glob("*.py"))
    slices = re.findall(r"^from robustkit\.slices\.(\w+)", text, re.MULTILINE)
    return True if any(not list((ROOT / "robustkit" / "slices").glob(f"{name}*")) for name in slices) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Append what ran, and what was skipped and why, to the file that SKIPPED_TESTS names; see `scripts.skipped`."""
    place = os.environ.get("SKIPPED_TESTS")
    if place and "PYTEST_XDIST_WORKER" not in os.environ:
        stats = terminalreporter.stats
        ran = [report.nodeid for kind in ("passed", "failed") for report in stats.get(kind, ())]
        skipped = {report.nodeid: report.longrepr[2].removeprefix("Skipped: ") for report in stats.get("skipped", ())}
        with Path(place).open("a", encoding="utf-8") as file:
            print(json.dumps({"ran": ran, "skipped": skipped}), file=file)


RAISED = set[str]()
"""The codes of the findings that tests raised."""
WHOLE_SUITE = 3000  # tests that only a pass of all of them has
_of = Finding.of.__func__  # type: ignore[attr-defined]
Finding.of = classmethod(lambda cls, code, **values: (RAISED.add(code), _of(cls, code, **values))[1])  # type: ignore


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    RAISED.update(getattr(node, "workeroutput", {}).get("raised", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a pass of the whole suite in which no test raised some finding of the catalogue."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["raised"] = sorted(RAISED)
        return
    passed = config.pluginmanager.get_plugin("terminalreporter").stats.get("passed", ())
    if len(passed) >= WHOLE_SUITE and (silent := sorted(catalogue().keys() - RAISED)):
        print(f"\nfindings that no test raised: {', '.join(silent)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """Have the collector skip what was imported, which stays: a second for each look at all of it."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def seen() -> Iterator[stand_in.Counts]:
    """What is done with one stand-in CUDA device, counted."""
    if reason := stand_in.why_not():
        pytest.skip(reason)
    with stand_in.devices() as counts:
        yield counts


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    """A CUDA device: a real one where there is one, else the stand-in."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    if reason := stand_in.why_not():
        pytest.skip(reason)
    with stand_in.devices():
        yield torch.device("cuda")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other, the longer the busier the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


WHOLE = svg.painted


@pytest.fixture(scope="session", autouse=True)
def empty_figures() -> Iterator[None]:
    """Of each kind the first figure is painted, the others are empty: they take most of the time of a small audit."""
    kinds: set[object] = set()

    def painted(height: float, paint: Callable[[Any], None], salt: str) -> bytes:
        kind = getattr(getattr(paint, "func", paint), "__code__", paint)
        if kind in kinds:
            return b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
        kinds.add(kind)
        return WHOLE(height, paint, salt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "painted", painted)
        yield


@pytest.fixture(scope="module")
def whole_figures() -> Iterator[None]:
    """Figures as users see them, for tests that look at one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "painted", WHOLE)
        yield


@pytest.fixture(scope="module")
def pageless() -> Iterator[None]:
    """Audits of this module write no report.html: most of a small audit's time, where no test reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def unexamined() -> Iterator[None]:
    """Audits of this module take no evidence on their attacks: ten times an attack's time, where no test reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.evaluations.attacks.evaluate._wants_evidence", lambda *_: False)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a factory, its weights and images; see `small_audit`."""
    return furnish(tmp_path_factory.mktemp("place"))
