"""Smallest changes as results: medians and curves by hand, Wilcoxon's test, audits, comparisons, rules, flags."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from small_audit import audit, furnish

from robustkit.cli.app import cli
from robustkit.common.differences import of_ranks
from robustkit.report.run import Run
from robustkit.slices.distances.results import distance_numbers, median_interval

WEAK = "fmn(steps=1,alpha=0.0001)"
pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")


def test_figures_by_hand() -> None:
    distances = np.array([0.0, 0.5 / 255, 1 / 255, 1.5 / 255, 3 / 255, math.inf])
    found = {each.metric: (each.value, each.n) for each in distance_numbers(distances, "linf")}
    assert found["median_distance"] == (1 / 255, 6)
    assert found["distance_area"][0] == pytest.approx((0.5 + 1 + 1.5 + 3 + 16) / 16 / 6)
    standing = {"0.25": 5, "0.5": 4, "1": 3, "2": 2, "3": 1, "4": 1, "16": 1}
    assert {k: round(6 * found[f"accuracy_at({k}/255)"][0]) for k in standing} == standing
    lost = {each.metric: each.value for each in distance_numbers(np.full(4, math.inf), "l2")}
    assert math.isnan(lost["median_distance"]) and lost["accuracy_at(3)"] == lost["distance_area"] == 1


@pytest.mark.parametrize(
    ("n", "place"), [(5, None), (6, 1), (9, 2), (20, 6), (100, 40)]
)  # of tables of order statistics
def test_the_medians_interval_is_of_order_statistics(n: int, place: int | None) -> None:
    """Places as tables of order statistics have them."""
    low, high = median_interval(np.arange(1.0, n + 1)[::-1])
    assert math.isnan(low) if place is None else (low, high) == (place, n + 1 - place)


def test_ranks_are_scipys_and_the_interval_is_of_walsh_averages() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.Generator(np.random.PCG64(1))
    for n, shift in ((8, 0.0), (40, 0.4), (61, 0.1)):
        before, after = draw.normal(size=n), draw.normal(shift, 1, n)
        before[:3], after[:3] = after[:3], before[:3]
        before[-1] = after[-1]  # left out of the test
        found = of_ranks(before, after)
        known = stats.wilcoxon(after, before, zero_method="wilcox", correction=False, method="asymptotic")
        assert found.p_value == pytest.approx(known.pvalue, rel=1e-6)
        gaps = after - before
        walsh = np.sort(((gaps[:, None] + gaps[None]) / 2)[np.triu_indices(n)])
        assert found.value == pytest.approx(np.median(walsh), abs=0.005)
        assert (found.ci_low <= 0 <= found.ci_high) == (found.p_value >= 0.05)
        assert found.ci_low < found.value < found.ci_high
        swapped = of_ranks(after, before)
        assert swapped.value == pytest.approx(-found.value) and swapped.p_value == pytest.approx(found.p_value)
    endless = of_ranks(
        np.array([1.0, math.inf, 1, 1, 1, 1, 1, 1]), np.array([2.0, math.inf, 2.2, 2.1, 3, 2.5, 2, math.inf])
    )
    assert endless.p_value < 0.05 and 1 <= endless.value < 1.6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run]]:
    place = furnish(tmp_path_factory.mktemp("place"))
    attacks = f"pgd(steps=20),fmn(steps=40),{WEAK},ddn(steps=40)"
    yield place, audit(place, place / "run", attacks=attacks, eps="8/255,16/255")


def test_an_audit_has_a_distance_for_each_sample(made: tuple[Path, Run]) -> None:
    place, run = made
    conditions = list(run.manifest.conditions)
    assert [text for text in conditions if text.startswith(("fmn", "ddn"))] == [
        *("fmn(steps=40)", WEAK, "ddn(norm=l2,steps=40)")
    ]  # once each, whatever the radii
    table = run.table("net", "fmn(steps=40)").to_pandas()
    clean = run.table("net", "clean").to_pandas()
    assert (table["distance"][~clean["correct"]] == 0).all() and (table["distance"][clean["correct"]] > 0).all()
    assert table["distance"].to_numpy() == pytest.approx(table["linf"].to_numpy(), abs=1e-6)
    euclid = run.table("net", "ddn(norm=l2,steps=40)").to_pandas()
    assert euclid["distance"].to_numpy() == pytest.approx(euclid["l2"].to_numpy(), abs=1e-5)
    assert not table["correct"].any() and table["forwards"].max() == 42 and table["backwards"].max() == 40
    rows = {(row["condition"], row["metric"]): row for row in run.results().to_dict("records")}
    fmn = [rows["fmn(steps=40)", f"accuracy_at({k}/255)"]["value"] for k in ("0.25", "1", "4", "8", "16")]
    assert fmn == sorted(fmn, reverse=True) and fmn[0] > fmn[-1]
    for eps in (8, 16):
        assert fmn[3 + (eps == 16)] <= rows[f"pgd(eps={eps}/255,steps=20)", "top1"]["value"] + 1 / 30
    assert ("fmn(steps=40)", "top1") not in rows
    page = (place / "run" / "report.html").read_text()
    assert "Minimal adversarial perturbations" in page and "FMN-40 linf" in page
    again = audit(place, place / "small", attacks="fmn(steps=40)", batch_size=7, shard_size=16)
    records = again.table("net", "fmn(steps=40)").to_pandas()
    assert records["distance"].to_numpy() == pytest.approx(table["distance"].to_numpy(), abs=1e-5)


def test_classes_alone_give_a_distance_for_each_sample(made: tuple[Path, Run]) -> None:
    place, _ = made
    run = audit(place, place / "classes", attacks="hopskipjump(queries=400),hopskipjump(queries=30,norm=l2)")
    assert [*run.manifest.conditions][1:] == ["hopskipjump(queries=400)", "hopskipjump(norm=l2,queries=30)"]
    far, short = (run.table("net", text).to_pandas() for text in [*run.manifest.conditions][1:])
    near = made[1].table("net", "fmn(steps=40)").to_pandas()
    right = run.table("net", "clean").to_pandas()["correct"]
    assert (far["distance"][right] >= 0.9 * near["distance"][right]).all() and (far["distance"][~right] == 0).all()
    assert 0 < far["distance"][right].median() < 12 * near["distance"][right].median()
    assert far["forwards"].max() == 401 and short["forwards"].max() <= 31 and not far["backwards"].any()
    assert "HopSkipJump-400 linf" in (place / "classes" / "report.html").read_text()
    policy = place / "classes.toml"
    policy.write_text("[[rule]]\nrequire = 'accuracy_at(0.25/255) under hopskipjump(queries=400) >= 0.05'\n")
    assert CliRunner().invoke(cli, ["check", str(place / "classes"), "--policy", str(policy)]).exit_code == 0


def test_too_few_steps_are_flagged_on_both_sides(made: tuple[Path, Run]) -> None:
    _, run = made
    found = {row.condition: {each.code: each.text for each in row.findings} for row in run.summary()}
    weak = found[WEAK]["attack/too-weak"]
    assert weak.startswith("too weak: pgd(eps=") and "use more steps" in weak
    assert "no adversarial example was found for" in found[WEAK]["attack/none-found"]
    assert "attack/too-weak" not in found["fmn(steps=40)"]


def test_each_attack_is_measured_by_the_best_of_all(made: tuple[Path, Run]) -> None:
    place, run = made
    rows = {(row["condition"], row["metric"]): row for row in run.results().to_dict("records")}
    best, weak = (rows[text, "optimality"]["value"] for text in ("fmn(steps=40)", WEAK))
    assert 0.98 < best <= 1 and weak < 0.5 and ("ddn(norm=l2,steps=40)", "optimality") not in rows
    for eps in (8, 16):
        found = rows[f"pgd(eps={eps}/255,steps=20)", "found_of_broken"]
        clean, attacked = (rows[text, "top1"]["value"] for text in ("clean", f"pgd(eps={eps}/255,steps=20)"))
        assert found["value"] * found["n"] == pytest.approx(30 * (clean - attacked)) and 0.9 < found["value"] <= 1
    page = (place / "run" / "report.html").read_text()
    assert "images that each attack breaks" in page and 'id="term-breakable"' in page
    assert ">optimality</a> among all attacks of this norm" in page
    shown = CliRunner().invoke(cli, ["report", str(place / "run"), "--details"], catch_exceptions=False).output
    assert "breakable images that" in shown and "optimality among all attacks of this norm, %" in shown


def test_an_attack_that_leaves_standing_what_is_near_is_flagged(tmp_path: Path) -> None:
    place = furnish(tmp_path)
    weak = "pgd(steps=1,step_size=0.01*eps,random_start=false)"
    run = audit(place, tmp_path / "weak", attacks=f"{weak},fmn(steps=40)", eps="16/255")
    (findings,) = {row.findings for row in run.summary() if row.metric == "nll" and "pgd" in row.condition}
    (found,) = (each.text for each in findings if each.code == "attack/left-standing")
    assert "samples correct for which fmn(steps=40) found an adversarial example in the same ball" in found


def test_checkpoints_are_compared_and_rules_know_distances(made: tuple[Path, Run], tmp_path: Path) -> None:
    place, _ = made
    run = str(place / "run")
    for rule, status in {
        "accuracy_at(0.25/255) under fmn(steps=40) >= 0.05": 0,
        "accuracy_at(8/255) under fmn(steps=40) >= 0.9": 1,
        "median_distance under ddn(norm=l2,steps=40) >= 100": 1,
        "optimality under fmn(steps=40) >= 0.9": 0,
        "found_of_broken under pgd(eps=8/255,steps=20) >= 0.9": 0,
    }.items():
        policy = tmp_path / "policy.toml"
        policy.write_text(f'[[rule]]\nrequire = "{rule}"\n')
        done = CliRunner().invoke(cli, ["check", run, "--policy", str(policy)])
        assert done.exit_code == status, done.output + str(done.exception)
    shown = CliRunner().invoke(cli, ["compare", run, run], catch_exceptions=False).output
    assert "ln distance" in shown and "Wilcoxon" in shown


def test_what_an_attack_does_not_know_is_refused(tmp_path: Path) -> None:
    place = furnish(tmp_path)
    for words, said in {
        "fmn(eps=1/255)": "eps",
        "ddn(norm=linf)": "unknown norm 'linf'; did you mean l2|unknown norm 'linf'; known: l2",
        "pgd(norm=l1)": "unknown norm 'l1'",
        "fmn(steps=0)": "steps is 0; expected 1 or more",
    }.items():
        with pytest.raises(Exception, match=said):
            audit(place, tmp_path / "run", attacks=words)
    records = audit(place, tmp_path / "l1", attacks="fmn(steps=3,norm=l1),fmn(steps=3,norm=l0)", eps=None)
    file = next((tmp_path / "l1").rglob("*l0*/*.parquet"))
    counts = pq.read_table(file)["distance"].to_numpy()
    assert np.array_equal(counts[~np.isnan(counts)] % 1, np.zeros((~np.isnan(counts)).sum())) and records.manifest
