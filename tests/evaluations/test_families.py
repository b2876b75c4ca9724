"""The seam of families: which family a condition is of, and what one gets that only says its tables."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from manifests import whole
from msgspec.structs import replace
from page_runs import make_run
from places import DELETED
from rich.console import Console

from attacks.registry import ATTACKS, DENSE_ATTACKS, WITHOUT_RADIUS
from robustkit.common.plugins import built_in
from robustkit.display.console import print_tables
from robustkit.display.table import Table
from robustkit.evaluations import family as seam
from robustkit.evaluations.condition import (
    ATTACK_NAMES,
    EVERY_FAMILY,
    FIRST,
    FOLDERS,
    SHORT,
    Place,
    Vocabulary,
    kind_of,
    name_of,
    vocabulary_of,
)
from robustkit.evaluations.corruptions import SETS
from robustkit.evaluations.family import Aggregator, Evaluator, Family, Presenter, families, families_of, family_of
from robustkit.evaluations.metrics import Metric
from robustkit.report.page import SECTIONS, sections_of
from robustkit.report.refresh import refresh
from robustkit.tasks.task import task_of
from scripts.count import hooks


def test_words_of_all_families_load_no_torch() -> None:
    code = "import sys, robustkit.evaluations.condition as c; c.vocabularies(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_kind_has_its_family_and_its_words() -> None:
    assert {kind for kind, folder in FOLDERS.items() if folder == "corruptions"} == {"corruption", *SETS}
    minimal = {name for name, attack in ATTACKS.items() if attack.minimal}
    assert minimal == {"fmn", "ddn", "hopskipjump"}
    without = {name for name, attack in ATTACKS.items() if not attack.radius}
    assert without == {"patch", "spatial"}
    assert {*WITHOUT_RADIUS} == minimal | without
    assert {family_of(name).name for name in {*ATTACKS, *DENSE_ATTACKS} - minimal - without} == {"attacks"}
    assert {*ATTACK_NAMES} == {*ATTACKS, *DENSE_ATTACKS} - minimal - without
    assert [one.name for one in families()] == [
        "clean",
        "corruptions",
        "maps",
        *dict.fromkeys(entry.load().name for entry in built_in("families").values()),
        "attacks",
    ]
    tables = {kind for kind in (*EVERY_FAMILY.entries, "pgd") if vocabulary_of(kind).in_results}
    measured = {"attention", "counterfactual", "ledger", "region-noise", "transfer", "two-object", "two-phase"}
    measured |= {"cam-of", "stability-of", "class-noise"}
    measured |= minimal
    assert tables == {"clean", "pgd", *(built_in("families").keys() - measured)}
    assert kind_of("cam(agcam,mode=box)") == "cam"
    of_maps = {kind for kind in EVERY_FAMILY.entries if vocabulary_of(kind).claims.area == "on attribution maps"}
    assert of_maps - {"cam", "stability"} == {"counterfactual", "region-noise", "two-object"} & EVERY_FAMILY.keys()


PARTS = (Evaluator, Aggregator, Presenter)
PRESENTERS = {"corruptions": "tables", "maps": "tables", "attention": "figures"}


def test_each_part_that_a_family_has_is_the_one_in_use() -> None:
    """A part under another name, or in another module, would be replaced by the defaults."""
    parts = {family: (family.evaluator, family.aggregator, family.presenter) for family in families()}
    used = {kind for some in parts.values() for part in some for kind in type(part).__mro__}
    for family, some in parts.items():
        place, package = Path(inspect.getfile(type(family.words))), type(family.words).__module__
        folder, package = place.parent, package if place.stem == "__init__" else package.rpartition(".")[0]
        names = (f"{package}.{path.stem}".removesuffix(".__init__") for path in folder.glob("*.py"))
        modules = [import_module(name) for name in names]
        written = {
            kind
            for module in modules
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, PARTS)
            if kind.__module__ == module.__name__
        }
        assert written and not (unused := written - used), (family.name, unused)
        assert {type(part) for part in some if type(part).__module__.startswith(package)} <= written, family.name
        assert all(part.words is family.words and part.name == family.name for part in some)
        for part, of, place in zip(
            some, PARTS, ("evaluate", "results", PRESENTERS.get(family.name, "results")), strict=True
        ):
            there = {kind for kind in written if issubclass(kind, of) and kind.__module__ == f"{package}.{place}"}
            assert not there or type(part) in there, (
                family.name,
                place,
            )  # as a base of another family it counts as used


def test_a_first_page_shows_the_paired_metrics_that_have_a_label() -> None:
    metrics = Metric("kept", "kept %", paired=True), Metric("far", "far"), Metric("bare", paired=True)
    family, headline = Family(), Metric("top1", "top-1 %")
    family.words = type("Words", (Vocabulary,), {"metrics": metrics})()
    keys = [("turn(90)", name) for name in ("top1", "kept", "far", "bare")]
    rows = [*family.brief(keys, whole({"checkpoints": [{"name": "a"}]}), headline)]
    assert [row.metric.name for row in rows if row.places == FIRST] == ["top1", "kept"]
    assert [row.metric.name for row in rows if row.places == SHORT] == ["kept", "far", "bare"]
    fog, manifest = "corruption(fog,severity=3)", whole({"checkpoints": [{"name": "a"}]})
    noisy = [("noise", "mean_error"), ("noise", "top1"), (fog, "top1"), ("noise", "mce")]
    first = [row for row in family_of("noise").presenter.brief(noisy, manifest, headline) if row.places == FIRST]
    assert [(row.condition, row.metric.name) for row in first[-1:]] == [("noise", "mce")]
    assert [row.metric.name for row in first if row.condition == "noise"] == ["mean_error", "mce"]


class Turned(Family):
    """A family that says its tables, and nothing else."""

    name = "turned"

    def tables(self, results: Any) -> list[Table]:
        return [Table("turned by a quarter", ("condition", "n"), (("turn(90)", "4"),), ("a, turn(90): upside <down>",))]


def test_a_family_with_tables_alone_stands_on_the_page_and_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", shown=False)
    rows = refresh(run)
    names = [section.name for section in sections_of(run, rows)]
    used = families_of(run.manifest)
    assert [family.name for family in used] == ["clean", "corruptions", "maps", "attacks"]  # attention is not watched
    for module in ("tasks.labelled", "evaluations.presenting"):
        monkeypatch.setattr(f"robustkit.{module}.families_of", lambda manifest, rows=(): [*used, Turned()])
    assert names == [name for name in SECTIONS if name in names]
    assert [section.name for section in sections_of(run, rows)] == [*names, "turned"]
    refresh(run)
    page = (run.path / "report.html").read_text("utf-8")
    assert "turned by a quarter" in page and "upside &lt;down&gt;" in page and "upside <down>" not in page
    console = Console(width=160, record=True, file=io.StringIO())
    print_tables(console, task_of(run.manifest).terminal(rows))
    said = console.export_text()
    assert "turned by a quarter" in said and "turn(90)" in said and "⚑ a, turn(90): upside <down>" in said
    assert seam.family_of("turn").name == "attacks"  # what no family has taken


def test_each_interface_has_few_hooks_and_each_hook_several_families() -> None:
    found = hooks(Path(__file__).parents[2])
    assert found.keys() == {"Vocabulary", "Evaluator", "Aggregator", "Presenter"}
    assert sum(len(methods) for methods in found.values()) <= 32
    few = [name for methods in found.values() for name, users in methods.items() if len(users) < 2]
    assert DELETED or not few, f"make each a field, or a function that is called where it is wanted: {few}"


@pytest.mark.parametrize(
    ("inside", "called"),
    [
        ("", "AutoAttack, 2/255"),
        (",norm=l2", "AutoAttack, l2 2/255"),
        (",steps=10", "modified AutoAttack, 2/255, 10 steps"),
        (",steps=10,targets=3,queries=100,only=apgd-ce", "APGD-CE, 2/255, 10 steps"),
        (",only=apgd-ce", "APGD-CE, 2/255, 100 steps"),
        (",only=fab-t", "FAB-T, 2/255, 100 steps, 9 targets"),
        (",queries=7,only=square", "Square, 2/255, 7 queries"),
        (",only=apgd-t+square", "modified AutoAttack, 2/255, APGD-T and Square"),
    ],
)
def test_only_the_standard_attack_is_called_autoattack(tmp_path: Path, inside: str, called: str) -> None:
    manifest = make_run(tmp_path / "run", shown=False).manifest
    assert name_of(f"autoattack(eps=2/255,version=standard{inside})", "table", manifest) == called
    if not inside:  # a card of one's own with fewer steps
        card = manifest.protocol.parameters | {"autoattack": {"steps": 20, "targets": 9, "queries": 5000}}
        other = replace(manifest, protocol=replace(manifest.protocol, parameters=card))
        name = name_of("autoattack(eps=2/255,version=standard)", "table", other)
        assert name == "modified AutoAttack, 2/255, 20 steps"
        assert name_of("autoattack(eps=2/255,only=apgd-ce)", "table", other) == "APGD-CE, 2/255, 20 steps"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("clean", ["clean", "on clean images", "clean", "clean"]),
        ("corruption(fog,severity=3)", ["fog, severity 3", "under fog, severity 3", *["fog, severity 3"] * 2]),
        ("cam(agcam,mode=box)", ["AG-CAM, boxes", "in its maps (AG-CAM, boxes)", *["cam(agcam,mode=box)"] * 2]),
        ("two-object(map=rise)", ["two objects, maps by rise", "of two objects, in maps by rise", "rise", "rise"]),
    ],
)
def test_a_condition_has_one_name_in_each_place(tmp_path: Path, text: str, names: list[str]) -> None:
    manifest = make_run(tmp_path / "run", shown=False).manifest
    places: tuple[Place, ...] = ("table", "sentence", "axis", "badge")
    assert [name_of(text, place, manifest) for place in places] == names
