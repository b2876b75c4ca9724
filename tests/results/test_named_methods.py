"""Methods that a run names: its first page, its rules, what an audit is asked for, and what is refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from gate_runs import PGD, make, verdict, verdicts
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from sealing import seal

import robustkit
from robustkit.cli.app import cli
from robustkit.common.differences import rare_share_bound
from robustkit.errors import ProtocolError
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED
from robustkit.models.specs import embedded_file, read_trainings, split_formula
from robustkit.report.front import front_of
from robustkit.report.page import write_report
from robustkit.report.run import Run
from robustkit.results import methods
from robustkit.results.methods import by_method, compare_methods
from robustkit.results.summary_text import summary_sentences
from robustkit.results.survey import looks_of, survey
from robustkit.results.tables import short_tables
from robustkit.runs.merging import join_manifests

N = 120
SKILL = {"standard-s0": 0.5, "standard-s1": 0.52, "quest-s0": 0.9, "quest-s1": 0.88, "quest-s2": 0.91}


def named(folder: Path, skill: dict[str, float] = SKILL, **of: str) -> Run:
    """A run of trainings that are right as often as that; of: by checkpoint the method, if not what its name says."""
    stream = np.random.default_rng(0)
    outcomes = {
        name: {text: list(stream.random(N) < level - loss) for text, loss in (("clean", 0.0), (PGD, 0.3))}
        for name, level in skill.items()
    }
    run = make(folder, outcomes)
    return with_methods(run, {name: of.get(name, name.split("-")[0]) for name in skill})


def with_methods(run: Run, methods: dict[str, str]) -> Run:
    manifest = run.manifest
    entries = tuple(replace(entry, method=methods[entry.name]) for entry in manifest.checkpoints)
    run.write_manifest(replace(manifest, checkpoints=entries))
    seal(run)
    return Run(run.path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return named(tmp_path_factory.mktemp("named") / "run")


def test_the_first_page_and_the_terminal_speak_of_methods(run: Run) -> None:
    results = survey(run)
    (whole, *_) = summary_sentences(results)
    assert whole.startswith(
        "standard is significantly worse than quest on clean images and under attack (n = 120, 2 to"
    )
    page = front_of(results, looks_of(run))
    assert [(each.name, each.attention) for each in page.columns] == [
        ("standard", "2 trainings"),
        ("quest", "3 trainings"),
    ]
    means = [
        np.mean([results.cells[name]["clean", "top1"].value for name in SKILL if method in name])
        for method in run.manifest.methods
    ]
    (clean, *_), _ = page.groups
    assert [cell.value for cell in clean.cells] == [f"{100 * mean:.1f}" for mean in means]
    assert [cell.mark for cell in clean.cells] == ["worst", "best"] and "means over trainings" in page.note
    assert page.figure is not None and page.figure.caption.endswith("; small marks: single trainings.")
    (table,) = short_tables(results)
    assert table.headings[1:] == ("standard", "quest") and table.title.endswith("means over 2 to 3 trainings each")
    write_report(run, results)
    text = (run.path / "report.html").read_text("utf-8")
    assert "<h1>standard, quest: 5 trainings</h1>" in text and "Methods compared" in text


def test_a_difference_has_one_p_value_on_the_page_and_in_compare(tmp_path: Path) -> None:
    run = named(tmp_path, {**SKILL, "other-s0": 0.7, "other-s1": 0.72})
    view = by_method(survey(run))
    tests = methods.tests_of(view)
    found = compare_methods(run)
    assert [row.p_value for row in found.rows] == [row.p_value for row in tests.comparison.rows]
    assert {(row.first.checkpoint, row.second.checkpoint) for row in tests.rows} == {
        ("standard", "quest"),
        ("standard", "other"),
        ("quest", "other"),
    }
    p_values = sorted(row.difference.p_value for row in tests.rows)
    assert min(row.p_value for row in tests.rows) == pytest.approx(p_values[0] * len(p_values))
    done = CliRunner().invoke(cli, ["compare", str(run.path)])
    assert done.exit_code == 0 and found.sentence in " ".join(done.output.split())
    files = CliRunner().invoke(cli, ["compare", str(run.path), "--against", "quest-s0"])
    assert "standard-s0 against quest-s0" in files.output


@pytest.mark.parametrize("of", [{"quest-s0": "standard", "quest-s1": "standard"}, dict.fromkeys(SKILL, "one")])
def test_one_training_next_to_several_and_one_method_are_shown_as_checkpoints(
    tmp_path: Path, of: dict[str, str]
) -> None:
    run = named(tmp_path, SKILL, **of)
    results = survey(run)
    assert by_method(results) is results and len(front_of(results, looks_of(run)).columns) == 5


def test_one_training_of_each_is_said_to_be_one_of_seeds(tmp_path: Path) -> None:
    run = named(tmp_path, {name: SKILL[name] for name in ("standard-s0", "quest-s0")})
    assert "One training of each method: a difference may be one of seeds." in summary_sentences(survey(run))


def test_rules_about_methods_are_about_means_over_trainings(run: Run, tmp_path: Path) -> None:
    figure = compare_methods(run).methods[1].figure(("clean", "top1"))
    assert figure is not None
    low, high = 100 * figure.low, 100 * figure.high
    states = {
        f"top1 under clean >= {low - 0.1} % with 95 % confidence": PASS,
        f"top1 under clean >= {low + 0.1} % with 95 % confidence": UNDECIDED,
        f"top1 under clean >= {high + 0.1} % with 95 % confidence": FAIL,
        "n under clean >= 120": PASS,
    }
    for rule, state in states.items():
        found = verdict(run, rule, more="method = 'quest'")
        assert (found.state, found.checkpoint, found.needed) == (state, "quest", None), rule
    worse = named(tmp_path / "worse", {name: level - 0.2 for name, level in SKILL.items()})
    drop = verdict(
        worse, "drop in top1 under clean against baseline <= 5 % with 95 % confidence", run, more="method = 'quest'"
    )
    assert drop.state == FAIL and drop.figure is not None and 0.1 < drop.figure.value < 0.3
    assert drop.figure.low < drop.figure.value - 0.02
    missing = verdict(run, "top1 under clean >= 50 %", more="method = 'qest'")
    assert (missing.state, missing.reason) == (UNDECIDED, "no such method in the run; it has standard, quest")
    nobody = verdict(run, "top1 under clean >= 50 %", more="checkpoint = 'nobody'")
    assert (missing.checkpoint, nobody.checkpoint) == ("qest", "nobody")
    plain = make(tmp_path / "plain", {"vit": {"clean": [1] * 8}})
    assert verdict(plain, "top1 under clean >= 50 %", more="method = 'quest'").reason.endswith(
        "none: audit with --method"
    )
    other = verdict(run, "drop in top1 under clean against baseline <= 5 %", plain, more="method = 'quest'")
    assert other.reason == "the baseline has no method of this name; it has none"


@pytest.mark.parametrize(
    ("rule", "more", "line"),
    [
        ("top1 under clean >= 50 %", "method = 'a'\ncheckpoint = 'b'", "it has a checkpoint, too; leave one out"),
        ("top1 under clean by camera >= 50 %", "method = 'a'", "slices are of checkpoints; leave one out"),
        ("churn under clean against baseline <= 5 %", "method = 'a'", "predictions that change are of checkpoints"),
    ],
)
def test_rules_about_methods_that_mean_nothing_are_refused(run: Run, rule: str, more: str, line: str) -> None:
    with pytest.raises(ProtocolError, match=line):
        verdict(run, rule, more=more)


def test_a_rule_about_findings_is_about_each_training(run: Run) -> None:
    for rule in ("no doubts", "attention == 'quest'"):
        found = verdicts(run, rule, more="method = 'quest'").verdicts
        assert [(each.checkpoint, each.state) for each in found] == [(f"quest-s{seed}", PASS) for seed in (0, 1, 2)]


def test_a_later_audit_may_name_methods_and_one_without_keeps_them(tmp_path: Path) -> None:
    plain = make(tmp_path / "plain", {"a": {"clean": [1] * 8}, "b": {"clean": [0] * 8}}).manifest
    methods = with_methods(
        make(tmp_path / "named", {"a": {"clean": [1] * 8}, "b": {"clean": [0] * 8}}), {"a": "x", "b": "y"}
    )
    assert join_manifests(plain, methods.manifest).methods == {"x": ["a"], "y": ["b"]}
    assert join_manifests(methods.manifest, plain).methods == {"x": ["a"], "y": ["b"]}


def test_specs_may_end_in_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a@quest").write_bytes(b"")
    (tmp_path / "b.pth").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for spec, parts in {
        "vit.pth@quest": ("vit.pth", "quest"),
        "vit.pth@Quest": ("vit.pth", "Quest"),
        "a@quest": ("a@quest", None),  # a file of that name
        "vit@home.pth": ("vit@home.pth", None),
        "b.pth@qest": ("b.pth", "qest"),  # which is then refused by name
        "hf-hub:org/name@quest": ("hf-hub:org/name@quest", None),  # a revision
        "hf-hub:org/name@main@quest": ("hf-hub:org/name@main", "quest"),
        "zoo:shapes-vit-quest": ("zoo:shapes-vit-quest", None),
        "zoo:shapes-vit-quest@qest": ("zoo:shapes-vit-quest", "qest"),
    }.items():
        assert split_formula(spec) == parts, spec


def test_a_formula_of_a_spec_outweighs_the_option(tmp_path: Path) -> None:
    (tmp_path / "vit.safetensors").write_bytes(embedded_file("shapes-vit-quest").read_bytes())
    spec = f"{tmp_path}/vit.safetensors@elliptical"
    found = robustkit.load(spec, attention="qnorm").identity
    assert (found.attention, found.attention_source, found.spec, found.name) == ("elliptical", "option", spec, "vit")


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(("quest-s0", "quest-s1", "standard-s0", "standard-s1")):
        kind = embedded_file(f"shapes-vit-{name.split('-')[0]}")
        weights = load_file(kind)
        first = next(iter(weights))
        weights[first] = weights[first] + 1e-3 * place
        folder = tmp_path / "trained" / name
        folder.mkdir(parents=True)
        save_file(weights, folder / "last.safetensors", metadata=_metadata(kind))
    return tmp_path


def _metadata(file: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return dict(opened.metadata())


BRIEF = ("--data-dir", "embedded:shapes", "--limit", "4", "--attacks", "none", "--no-setup-check", "--out", "run")
EXPECTED = {"quest": ["quest-s0", "quest-s1"], "standard": ["standard-s0", "standard-s1"]}


def test_an_audit_takes_the_files_of_methods(trained: Path) -> None:
    words = ["audit", "--method", "quest=trained/q*/*", "--method", "standard=trained/standard-s?/last.safetensors"]
    done = CliRunner().invoke(cli, [*words, *BRIEF])
    assert done.exit_code == 0, done.output
    manifest = Run(trained / "run").manifest
    assert manifest.methods == EXPECTED
    again = CliRunner().invoke(cli, [*map(str, _words(manifest.arguments["options"])), "--out", "run"])
    assert again.exit_code == 0 and "4 units of work were already done" in again.output


def _words(options: dict[str, Any]) -> list[str]:
    pairs = [
        (flag, each) for flag, value in options.items() for each in (value if isinstance(value, list) else [value])
    ]
    return ["audit", *(word for flag, value in pairs for word in ([flag] if value is True else [flag, value]))]


def test_an_audit_takes_a_table_of_checkpoints(trained: Path) -> None:
    lines = [
        "checkpoint,method,attention",
        *(f"trained/{name}/last.safetensors,{name.split('-')[0]}," for some in EXPECTED.values() for name in some),
    ]
    lines[1] += "elliptical-quest"
    (trained / "table.csv").write_text("\n".join(lines), "utf-8")
    done = CliRunner().invoke(cli, ["audit", "--method", "table.csv", *BRIEF])
    assert done.exit_code == 0, done.output
    manifest = Run(trained / "run").manifest
    assert manifest.methods == EXPECTED and manifest.checkpoint("quest-s0").attention == "elliptical-quest"


def test_python_takes_a_dict_of_lists_of_files_or_networks(trained: Path) -> None:
    files = {name: [f"trained/{each}/last.safetensors" for each in some] for name, some in EXPECTED.items()}
    options = {"limit": 4, "attacks": "none", "setup_check": False}
    with pytest.warns(robustkit.errors.RobustkitWarning):
        run = robustkit.audit(files, "embedded:shapes", out="files", **options)
    assert run.manifest.methods == EXPECTED
    networks = {name: [*map(robustkit.load, some)] for name, some in files.items()}
    with pytest.warns(robustkit.errors.RobustkitWarning):
        run = robustkit.audit(networks, "embedded:shapes", out="networks", **options)
    assert run.manifest.methods == {name: [f"{name}-0", f"{name}-1"] for name in EXPECTED}


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        (["quest"], "--method quest: expected NAME=CHECKPOINTS"),
        (["quest= ,"], "expected NAME=CHECKPOINTS"),
        (["=trained/*/*"], "expected NAME=CHECKPOINTS"),
        (["quest=nothing*"], r"nothing\* fits no file and no CHECKPOINT; check it"),
        (["quest=a.pth,a.pth"], "a.pth is given twice for quest, but is one training; leave one out"),
        (["quest=a.pth", "standard=a.pth"], "a.pth is of quest and of standard; expected one method"),
        (["quest=a.pth,b.pth", "standard=c.pth"], "standard has one training and quest 2: how much trainings"),
        ([], "no checkpoint; expected one or more, or --method"),
        ({"x=y": ["c.pth"]}, "method x=y with c.pth: expected a name without =, and files without a comma"),
        ({"": ["c.pth"]}, "method '': expected a name, and one checkpoint or more"),
        ({1: ["c.pth"]}, "method 1: expected a name"),
        ({"x": ["c.pth"], "y": []}, "method 'y': expected a name, and one checkpoint or more"),
        ({"x": ["c,d.pth"]}, "files without a comma"),
        (["absent.csv"], "absent.csv: no CSV that can be read"),
        (["odd.csv"], "odd.csv: its columns are checkpoint, seed; expected checkpoint and method"),
        (["empty.csv"], "empty.csv: its columns are missing"),
        (["hole.csv"], "hole.csv: a row has no checkpoint"),
    ],
)
def test_methods_that_mean_nothing_are_refused_in_a_line(trained: Path, methods: Any, line: str) -> None:
    (trained / "odd.csv").write_text("checkpoint,seed\na.pth,1\n")
    (trained / "empty.csv").write_text("")
    (trained / "hole.csv").write_text("checkpoint,method\n,quest\n")
    with pytest.raises(ProtocolError, match=line) as caught:
        read_trainings(methods, [])
    assert "\n" not in str(caught.value)


def test_patterns_name_checkpoints_as_well_as_files(trained: Path) -> None:
    found = read_trainings(["quest=zoo:*-quest,trained/q*/*,trained/quest-s1/*"], ["zoo:shapes-vit-quest"])
    files = [f"trained/quest-s{seed}/last.safetensors" for seed in (0, 1)]
    assert [*map(str, found.specs)] == ["zoo:shapes-vit-quest", *files]
    assert found.methods == dict.fromkeys(["zoo:shapes-vit-quest", *files], "quest")
    assert found.words() == [f"quest=zoo:shapes-vit-quest,{','.join(files)}"]


def test_the_same_weights_are_no_second_training(trained: Path) -> None:
    (trained / "trained/quest-s1/last.safetensors").write_bytes(
        (trained / "trained/quest-s0/last.safetensors").read_bytes()
    )
    done = CliRunner().invoke(cli, ["audit", "--method", "quest=trained/q*/*", *BRIEF])
    assert (
        str(done.exception)
        == "quest-s0 and quest-s1 of quest are the same file, which is no second training; leave one out"
    )
    assert not (trained / "run" / "run.json").exists()


def test_a_checkpoint_of_no_method_next_to_methods_is_refused(trained: Path) -> None:
    with pytest.raises(ProtocolError, match="zoo:b is of no method; name its method, too, or leave it out"):
        read_trainings(["quest=zoo:a"], ["zoo:a", "zoo:b"])
    (trained / "list.csv").write_text(
        "checkpoint,method,attention\na.pth,,quest\nhf-hub:o/n,,quest\nhf-hub:o/n@v,,quest\n"
    )
    found = read_trainings(["list.csv"], [])
    assert [*found.specs] == ["a.pth@quest", "hf-hub:o/n@main@quest", "hf-hub:o/n@v@quest"] and not found.methods


def test_brackets_and_commas_inside_formulas_are_read(trained: Path) -> None:
    folder = trained / "tr[1]"
    folder.mkdir()
    (folder / "a.pth").write_bytes(b"")
    found = read_trainings(["x=tr[1]/a.pth,b.pth@elliptical(delta=0.5,scale=mean)"], [])
    assert [*found.specs] == ["tr[1]/a.pth", "b.pth@elliptical(delta=0.5,scale=mean)"]


def test_one_network_in_two_methods_is_refused(trained: Path) -> None:
    words = ["--method", "a=trained/quest-s0/last.safetensors", "--method", "b=zoo:shapes-vit-quest"]
    shutil.copy(embedded_file("shapes-vit-quest"), trained / "trained/quest-s0/last.safetensors")
    done = CliRunner().invoke(cli, ["audit", *words, *BRIEF])
    assert str(done.exception).startswith("last of a and shapes-vit-quest of b are the same file, which is no second")


def test_where_all_samples_are_alike_intervals_are_as_wide_as_few_samples_allow(tmp_path: Path) -> None:
    names = ("x-s0", "x-s1", "y-s0", "y-s1")
    run = with_methods(make(tmp_path, {name: {"clean": [0] * 20} for name in names}), {name: name[0] for name in names})
    found = compare_methods(run)
    figure, (row, *_) = found.methods[0].figure(("clean", "top1")), found.rows
    reach, difference = rare_share_bound(20), row.difference
    assert figure is not None and (figure.value, figure.low, figure.high) == (0, 0, reach)
    assert (difference.value, difference.ci_low, difference.ci_high, difference.p_value) == (0, -reach, reach, 1)
    assert verdict(run, "top1 under clean <= 1 % with 95 % confidence", more="method = 'x'").state == UNDECIDED
    loss = found.methods[0].figure(("clean", "nll"))
    assert loss is not None and math.isnan(loss.low)


def test_runs_that_lack_records_of_a_training_can_be_read(tmp_path: Path) -> None:
    run = named(tmp_path)
    shutil.rmtree(next((run.path / "records").glob("*quest-s2*")))
    run = Run(run.path)
    results = survey(run)
    assert len(front_of(results, looks_of(run)).columns) == 2
    found = compare_methods(run)
    assert "standard-s0 and quest-s2 have no condition in common" in found.unpaired
    assert found.methods[1].figure(("clean", "top1")) is None
    partly = verdict(run, "top1 under clean >= 50 %", more="method = 'quest'")
    assert (partly.state, partly.figure) == (
        UNDECIDED,
        None,
    ) and "a training of quest has no such figure" in partly.reason
    write_report(run, results)


def test_runs_of_which_one_names_no_methods_are_compared_as_files(run: Run, tmp_path: Path) -> None:
    plain = make(tmp_path / "plain", {"quest-s0": {"clean": [1] * N, PGD: [0] * N}})
    done = CliRunner().invoke(cli, ["compare", str(run.path), str(plain.path)])
    assert done.exit_code == 0 and f"quest-s0 of {plain.path} against quest-s0 of" in " ".join(done.output.split())
    with pytest.raises(ProtocolError, match="not each checkpoint has a method"):
        compare_methods(run, plain)


def test_all_tests_are_counted_in_sentence_and_caption(tmp_path: Path) -> None:
    run = named(tmp_path, {f"{name}-s{seed}": 0.5 for name in "abc" for seed in (0, 1)})
    found = compare_methods(run)
    every = len(found.rows) + len(found.comparison.others)
    assert (len(found.rows), every) == (8, 10)
    assert found.sentence == "No significant difference between 3 methods in 10 tests over trainings and images."
    assert found.tables[0].note.endswith("p is from Student's t; Holm's p corrects for 10 tests.")
    assert found.tables[-1].title == "Trainings (a: a-s0, a-s1; b: b-s0, b-s1; c: c-s0, c-s1)"


def test_set_ups_that_differ_within_a_method_are_said(tmp_path: Path) -> None:
    run = named(tmp_path)
    entries = list(run.manifest.checkpoints)
    entries[3] = replace(entries[3], attention="elliptical")
    run.write_manifest(replace(run.manifest, checkpoints=tuple(entries)))
    lines = compare_methods(Run(seal(run).path)).unpaired
    assert "quest-s0 and quest-s1 are of one method: attention elliptical instead of quest" in lines


def test_mid_p_is_for_one_training_of_each(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="--mid-p: methods of several trainings have no McNemar's test"):
        compare_methods(run, mid_p=True)
    one = named(tmp_path, {"x-s0": 0.5, "y-s0": 0.6})
    (exact, mid) = (compare_methods(one, mid_p=each) for each in (False, True))
    assert mid.rows[0].difference.p_value < exact.rows[0].difference.p_value
    assert "McNemar's mid-p test" in mid.tables[0].note and "means over" not in mid.tables[0].note.lower()


def test_a_rule_about_all_conditions_is_one_of_methods_too(run: Run, tmp_path: Path) -> None:
    better = named(tmp_path, {name: level + 0.05 for name, level in SKILL.items()})
    found = verdict(better, "drop against baseline <= 30 %", run, more="method = 'quest'")
    assert found.state == PASS and "2 of 2 shared conditions pass" in found.reason


def test_a_run_with_one_training_next_to_several_has_a_table_of_checkpoints(tmp_path: Path) -> None:
    run = named(tmp_path, {name: SKILL[name] for name in ("standard-s0", "quest-s0", "quest-s1")})
    assert robustkit.table(run).names == ("standard-s0", "quest-s0", "quest-s1")
    done = CliRunner().invoke(cli, ["compare", str(run.path)])
    assert done.exit_code == 0 and "quest-s0 against standard-s0" in done.output
