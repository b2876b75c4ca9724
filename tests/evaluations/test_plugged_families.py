"""Families of plug-ins: what they may not do to a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from manifests import whole
from msgspec import UNSET
from msgspec.structs import replace

from robustkit.common import plugins
from robustkit.common.figure import Figure
from robustkit.common.plugins import Plugin
from robustkit.errors import PluginError
from robustkit.evaluations.condition import EVERY_FAMILY, FOLDERS, OWN_KINDS, Vocabulary, vocabulary_of
from robustkit.evaluations.family import Family, families, families_of, family_of
from robustkit.evaluations.metrics import mean_share
from robustkit.evaluations.records import check_plugins
from robustkit.pipeline.request import ClassificationRequest
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.results.pairing import Side, comparison_findings
from robustkit.runs.manifest import PluginEntry
from robustkit.runs.merging import plugin_differences
from robustkit.runs.untrusted import binding_fault
from robustkit.tasks.labelled.metrics import checked_figures

READ = pa.table({"kept": [True]})


class Words(Vocabulary):
    """Conditions of the family under test."""

    metrics = (mean_share("kept"),)
    made: Condition | None = None

    def parse(self, text: str) -> Condition:
        return self.made or super().parse(text)


class Turns(Family):
    """A family that gives the number that a test asks for."""

    name = "turns"

    def __init__(self, metric: str = "kept", made: Condition | None = None) -> None:
        self.metric, self.words = metric, Words()  # type: ignore[misc]
        self.words.made = made  # type: ignore[attr-defined]

    def extras(self, reading: Any, condition: str, read: pa.Table) -> Any:
        return [Figure(1.0, len(read), 1.0, 1.0, metric=self.metric) if self.metric else ("kept", 1.0)], []


def figures_of(family: Turns) -> list[Figure]:
    return list(checked_figures(family, "turn", family.extras(None, "turn", READ)[0]))


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    """No plug-in of one test is known to another."""
    with plugins.plugin_session():
        yield


def know(files: dict[Path, list[Plugin]]) -> None:
    """Let the session have these files, none of which is loaded."""
    held = plugins._session.get()
    held.files, held.loaded = files, {}


def plug(value: object, source: str = "aa") -> PluginEntry:
    """Make a value known as the family `turn`; return what a run says about it."""
    plugin = Plugin("families", "turn", f"{source}.py", value=value, digest=source)
    know({Path(f"{source}.py"): [plugin]})
    return PluginEntry(**plugin.identity, conditions=("turn",))


def test_it_is_loaded_when_a_condition_is_of_it_and_not_before() -> None:
    entry = plug(family := Turns())
    run = whole({"conditions": ["clean"], "checkpoints": [{"name": "a"}]})
    assert family not in families() and family not in families_of(run) and not EVERY_FAMILY.loaded
    of_turns = replace(run, conditions=("clean", "turn"), plugins=(entry,))
    assert families_of(of_turns)[-1] is family


def test_a_family_of_robustkit_s_own_may_be_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Turns()
    monkeypatch.setitem(sys.modules, "robustkit.evaluations.turns", cast("ModuleType", SimpleNamespace(TURNS=family)))
    monkeypatch.setitem(FOLDERS, "turn", "turns:TURNS")
    assert family_of("turn") is family and vocabulary_of("turn") is family.words
    monkeypatch.setattr("robustkit.evaluations.condition.OWN_KINDS", (*OWN_KINDS, "turn"))
    know({Path("aa.py"): [Plugin("families", "other", "aa.py", value=Turns(), digest="aa")]})
    with pytest.raises(PluginError, match="'turns', as one of robustkit's own"):
        EVERY_FAMILY["other"]


def test_a_fault_in_a_family_s_module_is_not_taken_for_an_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(entry: EntryPoint) -> None:
        raise KeyError("in its module")

    monkeypatch.setattr(EntryPoint, "load", fails)
    monkeypatch.setitem(vars(EVERY_FAMILY)["entries"], "turn", EntryPoint("turn", "turns:TURNS", "robustkit.families"))
    with pytest.raises(KeyError, match="in its module"):
        family_of("turn")


@pytest.mark.parametrize("metric", ["top1", "never-declared"])
def test_its_numbers_are_its_own(metric: str) -> None:
    plug(family := Turns())
    assert [figure.metric for figure in figures_of(family)] == ["kept"]
    with pytest.raises(
        PluginError, match=f"the family of turn gives {metric!r}; expected a Figure of one of the metrics"
    ):
        figures_of(Turns(metric))
    with pytest.raises(PluginError, match=r"the family of turn gives \('kept', 1.0\); expected a Figure of one"):
        figures_of(Turns(""))


def test_it_makes_conditions_of_its_own_kind() -> None:
    plug(Turns())
    request = ClassificationRequest(checkpoints=["x"], data_dir="x", evaluations="turn")
    assert [condition.text for condition in request.evaluation_conditions()] == ["turn"]
    plug(Turns(made=CLEAN))
    with pytest.raises(PluginError, match="--evaluations turn: its plug-in makes Condition"):
        request.evaluation_conditions()


@pytest.mark.parametrize("value", [Turns, *(type("Own", (Turns,), {"name": n})() for n in ("clean", "distances")), 3])
def test_what_is_no_family_of_its_own_is_refused(value: object) -> None:
    plug(value)
    with pytest.raises(PluginError, match=r"expected an instance of|as one of robustkit's own; rename it"):
        EVERY_FAMILY["turn"]


def test_a_run_is_read_with_the_code_that_made_it() -> None:
    entry = plug(Turns())
    run = whole({"conditions": ["clean", "turn"], "checkpoints": [{"name": "a"}]})
    made = replace(run, plugins=(entry,))
    check_plugins(made)
    with pytest.raises(PluginError, match=r"turn of the run is not of plug-in turn .*, which has taken its name"):
        check_plugins(run)
    plug(Turns(), source="bb")
    with pytest.raises(PluginError, match=r"was made with plug-in turn .* of source aa…, here it is of source bb"):
        check_plugins(made)
    know({})
    with pytest.raises(PluginError, match=r"needs plug-in turn .* which is not installed: install it"):
        check_plugins(made)


def test_records_of_a_plug_in_are_not_gone_on_with_by_robustkit_itself() -> None:
    entry = plug(Turns())
    made = replace(whole({"conditions": ["turn"], "checkpoints": [{"name": "a"}]}), plugins=(entry,))
    (line,) = plugin_differences(made, replace(made, plugins=UNSET))
    assert line == "turn is of plug-in turn of aa.py (source aa…) there and of robustkit itself here"
    assert not list(plugin_differences(made, made))
    assert "plugins" in binding_fault({"condition": "turn", "plugins": [entry.identity]}, {"condition": "turn"})


def test_runs_of_two_versions_of_a_plug_in_are_compared_with_a_doubt() -> None:
    run = whole({"conditions": ["turn"], "checkpoints": [{"name": "a", "sha256": None}]})
    sides = []
    for source in ("aa", "bb"):
        made = replace(run, plugins=(plug(Turns(), source),))
        sides.append(cast("Side", SimpleNamespace(manifest=made, described=made.checkpoints[0])))
    texts = [each.text for each in comparison_findings(*sides, ["turn"])]
    assert texts == ["source of plug-in turn differs: aa… and bb…"]
    assert list(comparison_findings(sides[0], sides[0], ["turn"])) == []
