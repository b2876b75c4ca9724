"""AutoAttack in two phases: equal to the whole where all are drawn, a part of it where few are, and its refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch
from figures import said_of
from gate_runs import drafted, verdict
from msgspec.structs import replace
from small_audit import UNCHECKED

import robustkit
from attacks import AutoAttack, ThreatModel
from robustkit.cli.terminal import after_part
from robustkit.common.figure import Figure
from robustkit.common.intervals import wilson
from robustkit.errors import ProtocolError, RunError
from robustkit.evaluations.aggregate import RecordReader, Results
from robustkit.evaluations.attacks.evaluate import parse_conditions
from robustkit.evaluations.condition import check_condition, matches, name_of, pattern_of, words_of
from robustkit.evaluations.parts import RunPart
from robustkit.evaluations.presenting import card_parts_of
from robustkit.gate.policy import parse_statement
from robustkit.gate.verdicts import UNDECIDED
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.slices.two_phase import ESTIMATE, RIGHT, phases_of
from robustkit.slices.two_phase.evaluate import TwoPhaseEvaluator, choose, in_two_phases
from robustkit.slices.two_phase.results import TwoPhasePresenter, TwoPhaseSummary, two_phase_share
from scripts.studies.attack_strength import two_phase as bench

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
BUDGET = "steps=2,targets=2,queries=20"
WHOLE = f"autoattack(eps=3/255,version=standard,{BUDGET})"
FIRST = f"autoattack(eps=3/255,version=standard,{BUDGET},only=apgd-ce)"


def two_phase(m: int) -> str:
    return f"two-phase({WHOLE},first=apgd-ce,m={m})"


def audit(out: Path, attacks: str, **options: Any) -> Run:
    given = {"limit": 18, "eps": "3/255", "shard_size": 6, "browse": 0, "setup_check": False, "device": "cpu"}
    return robustkit.audit(
        "zoo:shapes-vit-quest", data_dir="embedded:shapes", out=out, attacks=attacks, **(given | options)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    asked = ",".join(f"autoattack(second={m},{BUDGET})" for m in (1000, 4, 3))
    return audit(tmp_path_factory.mktemp("two") / "run", f"{asked},autoattack({BUDGET})", batch_size=5)


def columns(run: Run, condition: str) -> dict[str, list[Any]]:
    read: dict[str, list[Any]] = run.table("shapes-vit-quest", condition).to_pydict()
    return read


def test_where_all_are_drawn_it_is_the_whole_attack(run: Run) -> None:
    """Sample by sample: what breaks it, and when. So stages draw the same alone as in the whole."""
    whole, parts = columns(run, WHOLE), columns(run, two_phase(1000))
    for name in ("sample_id", "correct", "broken_by"):
        assert whole[name] == parts[name]
    assert {"apgd-ce", None} < {*whole["broken_by"]}  # the second phase breaks some, too
    rows = {(row["condition"], row["metric"]): row for row in run.results().to_dict("records")}
    estimate, full = rows[two_phase(1000), "estimated_top1"], rows[WHOLE, "top1"]
    for name in ("value", "n", "ci_low", "ci_high"):
        assert estimate[name] == full[name]


def test_few_drawn_are_a_random_part_whose_rest_is_not_known(run: Run) -> None:
    whole, first = columns(run, WHOLE), columns(run, FIRST)
    drawn: dict[int, set[str]] = {}
    for m in (4, 3):
        part = columns(run, two_phase(m))
        for sample, right, taken, broken, stood in zip(
            part["sample_id"], part["correct"], part["drawn"], whole["correct"], first["correct"], strict=True
        ):
            assert right == (broken if taken else False if not stood else None), sample
        drawn[m] = {sample for sample, taken in zip(part["sample_id"], part["drawn"], strict=True) if taken}
        assert len(drawn[m]) == m
        spent = [n for n, taken in zip(part["forwards"], part["drawn"], strict=True) if not taken]
        assert spent == [None] * len(spent)
        kept = sum(bool(right) for right in part["correct"])
        share, (low, high) = two_phase_share(18, sum(first["correct"]), m, kept)
        rows = {row["metric"]: row for row in run.results().to_dict("records") if row["condition"] == two_phase(m)}
        found = rows["estimated_top1"]
        assert (found["value"], found["ci_low"], found["ci_high"]) == pytest.approx((share, low, high))
        assert (rows["kept_in_second"]["n"], rows["kept_in_second"]["value"]) == (m, pytest.approx(kept / m))
        assert [each["text"] for each in found["flags"]] == [UNCHECKED]
    assert drawn[3] < drawn[4]


def test_the_bench_makes_two_phases_from_the_whole_as_they_are_run(run: Run) -> None:
    figures = {row.condition: row for row in run.summary() if row.metric == "estimated_top1"}
    for m in (4, 3):
        line, row = bench.from_whole(run, m), figures[two_phase(m)]
        assert (line.value, line.low, line.high, line.n) == (row.value, row.low, row.high, row.n)
        ways = (columns(run, FIRST), columns(run, two_phase(m)))
        for name, found in (("forwards", line.forwards), ("backwards", line.backwards)):
            assert found == sum(value for each in ways for value in each[name] if value is not None)


class Made:
    """What a run's folder tells the bench: 40 samples clean, and two stages under attack."""

    def __init__(self, share: float, half: float, rows: int) -> None:
        self.share, self.half, self.rows = share, half, rows
        self.manifest = SimpleNamespace(data=SimpleNamespace(n=40))

    def units(self) -> list[tuple[str, str]]:
        return [("net", "clean"), ("net", "first"), ("net", "second")]

    def table(self, checkpoint: str, condition: str, columns: list[str]) -> pa.Table:
        assert condition != "clean"
        return pa.table({"forwards": [self.rows, 1, None], "backwards": [2, None, 0]}).select(columns)

    def summary(self) -> list[Figure]:
        ends = self.share - self.half, self.share + self.half
        every = [("clean", "top1", 0.9), ("first", "top1", 0.8), ("second", "top1", self.share)]
        every.append(("second", "estimated_top1", self.share))
        return [Figure(value, 9, *ends).of(text, name) for text, name, value in every]


def test_the_bench_compares_estimate_interval_and_passes_with_the_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [columns(run, text) for _, text in run.units() if text != "clean"]
    for place, name in enumerate(("forwards", "backwards")):
        counted = sum(value for each in every for value in each[name] if value is not None)
        assert bench.passes(run)[place] == counted > 0
    asked: list[tuple[str, Path]] = []

    def made(checkpoint: str, attacks: str, out: Path, **options: Any) -> Made:
        assert options["shard_size"] == 5
        asked.append((attacks, out))
        return Made(0.5, 0.1, 196) if attacks == "autoattack" else Made(0.45, 0.15, 46)

    monkeypatch.setattr(robustkit, "audit", made)
    words = ["net.pth", "--data-dir", "val", "--eps", "2/255", "--out", str(tmp_path)]
    assert bench.main([*words, "--second", "7,9", "--shard-size", "5"]) == 0
    ran = ["autoattack", "autoattack(second=7)", "autoattack(second=9)"]
    assert asked == list(zip(ran, (tmp_path / name for name in ("whole", "7", "9")), strict=True))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    # of both stages: 2 * (196 + 1) forwards and 2 * 2 backwards are 398 passes; 2 * 47 and 4 are 98
    assert [row for row in cells if row and row[0].startswith("`")] == [
        [f"`{ran[0]}`", "40", "50.0 [40.0, 60.0]", "1.00", "394", "4", "1/1.0"],
        *([f"`{text}`", "40", "45.0 [30.0, 60.0]", "1.50", "94", "4", "1/4.1"] for text in ran[1:]),
    ]
    monkeypatch.undo()
    assert bench.main([*words, "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("scripts.studies.attack_strength.two_phase: net.pth: ")


def test_a_lost_record_of_either_phase_is_made_again_with_the_same_bytes(run: Run, tmp_path: Path) -> None:
    asked = f"autoattack(second=3,{BUDGET})"
    first = audit(tmp_path / "again", asked, batch_size=5)
    paths = [first.shard_path("shapes-vit-quest", text, 1) for text in (FIRST, two_phase(3))]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    audit(tmp_path / "again", asked, batch_size=5)
    assert [path.read_bytes() for path in paths] == before
    assert columns(first, two_phase(3)) == columns(run, two_phase(3))  # whatever else is in the run
    said = " ".join(re.sub(r"<[^>]*>", "", (first.path / "report.html").read_text("utf-8")).split())
    # What was asked for is the whole attack: its first phase is no attack of its own.
    assert "two-phase(m=3), leaves an estimated" in said and "only attack" not in said


def test_parts_leave_the_second_phase_until_all_have_made_the_first(run: Run, tmp_path: Path) -> None:
    lines: list[str] = []
    asked = f"autoattack(second=3,{BUDGET})"
    options: dict[str, Any] = {"batch_size": 5, "say": lines.append}
    for number in (2, 1):
        part = audit(tmp_path / "parts", asked, part=f"{number}/2", **options)
        assert part.missing_units("shapes-vit-quest", two_phase(3)) == 3
    waits = f"shapes-vit-quest: {two_phase(3)} waits for the first phase of all parts; then rerun each part"
    assert sum(line.startswith(waits) for line in lines) == 2
    with pytest.raises(RunError, match=r"3 of 9 units are missing: part 1/2 lacks 2 \(shapes-vit-quest under two-ph"):
        robustkit.merge(part.path)
    said = "part 1/2 has done its share of the first phase, 2 units of it wait; when all parts have: run it again"
    assert after_part(RunPart(1, 2), part) == said
    for number in (1, 2):
        audit(tmp_path / "parts", asked, part=f"{number}/2", **options)
        done = f"part {number}/2 is done; when all are: robustkit merge {part.path}"
        assert after_part(RunPart(number, 2), part) == done
    assert columns(robustkit.merge(part.path), two_phase(3)) == columns(run, two_phase(3))
    part.shard_path("shapes-vit-quest", FIRST, 1).unlink()
    card = load_card("standard")
    (condition,) = (
        each for each in parse_conditions(asked, card, eps=(Fraction(3, 255),), several=in_two_phases) if each.after
    )
    with pytest.raises(RunError, match=r"1 of 3 shards of shapes-vit-quest under autoattack.* are missing, from which"):
        choose(part, "shapes-vit-quest", condition)


def test_parts_in_folders_of_their_own_go_on_in_the_merged_one(run: Run, tmp_path: Path) -> None:
    """In none of them is the first phase of all, so none of them can ever draw."""
    asked, numbers = f"autoattack(second=3,{BUDGET})", (1, 2)
    parts = [audit(tmp_path / f"{number}", asked, part=f"{number}/2", batch_size=5) for number in numbers]
    whole = tmp_path / "whole"
    with pytest.raises(RunError, match="3 of 9 units are missing"):
        robustkit.merge([part.path for part in parts], whole)
    merged = Run(whole)
    merged.write_manifest(replace(merged.manifest, command="robustkit attack net --out elsewhere --seed 0"))
    with pytest.raises(RunError, match=re.escape(f"robustkit attack net --seed 0 --out {whole} --part 1/2")):
        robustkit.merge(whole)
    for number in numbers:
        audit(whole, asked, part=f"{number}/2", batch_size=5)
    assert columns(robustkit.merge(whole), two_phase(3)) == columns(run, two_phase(3))


class Unfinished(RecordReader):
    """Records of a run in which nobody who is drawn has had the second phase."""

    def shards(self, condition: str, columns: Any) -> Iterator[pa.Table]:
        made = {"sample_id": ["a", "b"], "error": [None, None], "correct": [None, False], "drawn": [False, False]}
        yield pa.table(made).cast(
            pa.schema([("sample_id", "string"), ("error", "string"), ("correct", "bool"), ("drawn", "bool")])
        )


class Exceeding(RecordReader):
    """Records whose second phase changed pixels by half of their range; null of those that it did not take."""

    def shards(self, condition: str, columns: Any) -> Iterator[pa.Table]:
        for table in super().shards(condition, columns):
            place = table.column_names.index("linf")
            linf = [None if value is None else 0.5 for value in table["linf"].to_pylist()]
            second = condition == two_phase(4)
            yield table.set_column(place, "linf", pa.array(linf, pa.float32())) if second else table


def test_an_estimate_has_the_findings_of_both_phases(run: Run) -> None:
    smaller = replace(run.manifest.claims[FIRST], eps=0.001)
    manifest = replace(run.manifest, claims={FIRST: smaller})
    for kind, said, reported in (
        (RecordReader, manifest, ["exceeds eps: largest linf perturbation 3/255 in pixels, claimed 0.255/255"]),
        (Exceeding, run.manifest, ["exceeds eps: largest linf perturbation 127.5/255 in pixels, claimed 3/255"]),
        (RecordReader, run.manifest, []),
    ):
        figure = TwoPhaseSummary(kind(run, said, "shapes-vit-quest", {})).add(two_phase(4))[0]
        assert sorted(said_of(figure)) == sorted([UNCHECKED, *reported])


def test_there_is_no_estimate_before_a_sample_was_drawn(run: Run) -> None:
    assert TwoPhaseSummary(Unfinished(run, run.manifest, "shapes-vit-quest", {})).add(two_phase(4)) == []


class Broken(RecordReader):
    """Records of two samples that the first phase broke."""

    def shards(self, condition: str, columns: Any) -> Iterator[pa.Table]:
        for table in super().shards(condition, columns):
            fallen = {"correct": pa.array([False] * len(table)), "drawn": pa.array([False] * len(table))}
            for name in {*fallen} & {*table.column_names}:
                table = table.set_column(table.column_names.index(name), name, fallen[name])
            yield table


def test_where_nobody_stands_there_is_no_share_of_those_drawn(run: Run) -> None:
    (row,) = TwoPhaseSummary(Broken(run, run.manifest, "shapes-vit-quest", {})).add(two_phase(4))
    assert (row.metric, row.value, row.n, row.low, row.high) == ("estimated_top1", 0, 18, *wilson(0, 18))
    summary = [each for each in run.summary() if (each.condition, each.metric) != (two_phase(4), RIGHT.name)]
    cells = {
        line[1]: line[4:6] for (table,) in [TwoPhasePresenter().tables(Results.of(run, summary))] for line in table.rows
    }
    assert cells[phase_label(4)] == ("0", "–") and cells[phase_label(3)][0] == "3"


def phase_label(m: int) -> str:
    return f"modified AutoAttack, 3/255, 2 steps, 2 targets, 20 queries, two-phase(m={m})"


def test_a_policy_and_a_card_have_the_estimate(run: Run) -> None:
    text = drafted(run)
    assert f'"estimated_top1 under {two_phase(1000)} >= ' in text and "the whole attack, estimated" in text
    titles = [part.title for part in card_parts_of(run.manifest.names[0], Results.of(run, run.summary()))]
    assert titles.count("Two phases") == 1


def test_what_would_tell_is_a_larger_second_phase_and_no_number_of_samples(run: Run) -> None:
    """With m as it is, no --limit makes the interval narrower than those drawn leave it."""
    rows = {(row.condition, row.metric): row for row in run.summary()}
    for name in (ESTIMATE.name, RIGHT.name):
        low, value = rows[two_phase(3), name].low, rows[two_phase(3), name].value
        found = verdict(run, f"{name} under {two_phase(3)} >= {(low + value) / 2} with 95 % confidence")
        assert (found.state, found.needed) == (UNDECIDED, None) and "a larger second phase (second)" in found.reason


def test_pages_rules_and_commands_know_it(run: Run) -> None:
    page = re.sub(r"<[^>]*>", "", (run.path / "report.html").read_text("utf-8"))  # words lead to the glossary
    assert "Two-phase attacks" in page and "two-phase(m=4)" in page
    assert "APGD-CE, 3/255, 2 steps" in page and "only apgd-ce" not in page
    rest = name_of("autoattack(eps=3/255,version=standard,only=apgd-t+fab-t+square)", "table", run.manifest)
    assert rest == "modified AutoAttack, 3/255, APGD-T, FAB-T and Square"
    text = two_phase(4)
    assert phases_of(text) == (WHOLE, "apgd-ce", "4") and phases_of(WHOLE) is None
    check_condition(text)
    assert matches(pattern_of(text), text) and not matches(pattern_of(text), two_phase(3))
    assert text in repr(parse_statement(f"estimated_top1 under {text} >= 0.3"))
    words = " ".join(words_of(text).command(pattern_of(text), pattern_of))
    assert words == f"--attacks autoattack(eps=3/255,version=standard,{BUDGET},first=apgd-ce,second=4)"
    card = load_card("standard")
    asked = words.removeprefix("--attacks ")
    for spelled in (asked, asked.replace(",version", ",,version")):
        assert [each.text for each in parse_conditions(spelled, card, several=in_two_phases)] == ["clean", FIRST, text]


@pytest.mark.parametrize(
    "asked, said",
    [
        ("pgd(second=20)", "first and second are of autoattack"),
        ("autoattack(second=0)", "second is 0; expected how many samples"),
        ("autoattack(first=apgd-ce)", "second is missing"),
        ("autoattack(second=9,first=square)", "expected the stages that it begins with: first=apgd-ce or"),
        ("autoattack(second=9,first=)", "expected the stages that it begins with"),
        ("autoattack(second=9,second=8)", "first or second is given twice"),
        ("autoattack(second=9,only=apgd-ce)", "only leaves out stages that the second phase would run"),
        ("autoattack(second=9,first=apgd-ce+apgd-t+fab-t+square)", "expected the stages that it begins with"),
        ("autoattack(second=9,engine=pyautoattack)", "engine pyautoattack runs all stages at once"),
        ("autoattack(second=9,version=rand)", "only requires a deterministic model"),
        ("autoattack(second=101%)", "second is 101%; expected how many samples, or a share of those that stand"),
        ("autoattack(second=0%)", "second is 0%; expected how many samples"),
        ("autoattack(second=2.5%)", "second is 2.5%; expected how many samples"),
        (
            "autoattack(second=9,version=fast,first=apgd-ce)",
            "expected the stages that it begins with: first=apgd-pma or",
        ),
        ("autoattack(only=apgd)", "only names 'apgd'; expected some of apgd-ce+apgd-t+fab-t+square"),
    ],
)
def test_what_cannot_be_split_is_refused(asked: str, said: str) -> None:
    with pytest.raises(ProtocolError, match=said.replace("+", r"\+")):
        parse_conditions(asked, load_card("standard"), eps=(Fraction(1, 255),), several=in_two_phases)


def test_fast_is_in_two_phases_of_which_the_second_takes_a_tenth_of_those_that_stand() -> None:
    def read(asked: str) -> list[str]:
        return [each.text for each in parse_conditions(asked, card, several=in_two_phases)][1:]

    card, usual = load_card("standard"), "apgd-pma+apgd-t"
    whole = "autoattack(eps=1/255,version=fast)"
    begins = f"autoattack(eps=1/255,version=fast,only={usual})"
    assert read("autoattack(version=fast)") == [begins, f"two-phase({whole},first={usual},m=10%)"]
    assert read("autoattack(version=fast,second=020)") == [begins, f"two-phase({whole},first={usual},m=20)"]
    assert read("autoattack(version=fast,first=apgd-pma,second=100%)")[1] == f"two-phase({whole},first=apgd-pma,m=100%)"
    for alone in (begins, "autoattack(eps=1/255,version=fast,on=20)"):
        assert read(alone) == [alone], "stages that are named, or some samples, are as asked for"
    phases = phases_of(f"two-phase({whole},first={usual},m=10%)")
    assert phases is not None and [phases.count_of(n) for n in (0, 1, 10, 11, 30)] == [0, 1, 1, 2, 3]
    for wrong in (
        f"two-phase({whole},first={usual},m=0)",
        f"two-phase({whole},first={usual})",
        f"two-phase({whole},m=4)",
    ):
        assert phases_of(wrong) is None
    for text in (f"two-phase({whole},first={usual},m=10%)", f"two-phase({whole},first={usual},m=20)"):
        command = "".join(words_of(text).command(pattern_of(text), pattern_of)).removeprefix("--attacks")
        assert read(command) == [begins, text]
    tenth, all_of_them = (in_two_phases(f"autoattack(version=fast,second={m})", card, {}) for m in ("10%", "100%"))
    costs = [TwoPhaseEvaluator().cost([*each][1], card, 10) for each in (tenth, all_of_them)]
    assert costs[0].most == pytest.approx(costs[1].most / 10) and all(cost.at_most for cost in costs)


def test_fast_says_what_its_first_stages_missed(tmp_path: Path) -> None:
    fast = f"autoattack(version=fast,{BUDGET})"
    weak = "autoattack(version=fast,second=100%,first=apgd-pma,steps=1,queries=200)"
    run = audit(tmp_path / "run", f"{fast},{weak}", eps="6/255")
    tenth, rest = ([row for row in run.summary() if row.condition.endswith(m)] for m in ("m=10%)", "m=100%)"))
    first = next(row for row in run.summary() if "only=apgd-pma+apgd-t" in row.condition and row.metric == "top1")
    assert [row.n for row in tenth] == [18, -(-round(18 * first.value) // 10)]
    missed = round((1 - rest[1].value) * rest[1].n)
    sentence = f"broke {missed} of the {rest[1].n} samples that were drawn from those still correct after APGD-PMA"
    assert missed > 0 and [sentence in each for each in said_of(rest[0])].count(True) == 1
    assert tenth[1].value < 1 or not any("fast AutoAttack" in each for each in said_of(tenth[0]))


def test_only_runs_the_stages_that_it_names() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
    attack = AutoAttack(ThreatModel("linf", 0.001), steps=2, queries=5, only="fab-t+square")
    result = attack.run(model, torch.rand(3, 3, 4, 4), torch.zeros(3, dtype=torch.int64))
    assert result.stages == ("clean", "fab-t", "square")


def test_maps_that_draw_are_compared_under_images_of_a_whole_shard(tmp_path: Path) -> None:
    """The attack takes the shard at once, maps come in batches: each of these draws for its own samples."""
    given: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 6, "setup_check": False, "browse": 0}
    given |= {
        "faithfulness": "none",
        "attacks": f"autoattack(eps=3/255,{BUDGET},second=3)",
        "cams": "rise(masks=3)",
        "stability": True,
    }
    runs = [
        robustkit.audit("zoo:shapes-vit-standard", out=tmp_path / str(size), batch_size=size, **given)
        for size in (2, 6)
    ]
    under = next(text for text in runs[0].manifest.conditions if "rise" in text and "autoattack" in text)
    found, other = (run.table("shapes-vit-standard", under).to_pandas().set_index("sample_id") for run in runs)
    assert len(found) == 6 and found["prediction"].equals(other["prediction"].reindex(found.index))
