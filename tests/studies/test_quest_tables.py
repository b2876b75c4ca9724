"""Formulas over several trainings: the statistics by hand and by other libraries, and the page from made-up records."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import robustkit
from robustkit.common.differences import holm, of_means
from robustkit.display.format import p_value as p_text
from robustkit.errors import RobustkitError
from robustkit.models.specs import embedded_file
from robustkit.results.published import read_published
from scripts.pages.writing import means, span
from scripts.studies.quest_tables import evaluate
from scripts.studies.quest_tables import page as reproduce_quest
from scripts.studies.quest_tables import variants as quest_variants
from scripts.studies.quest_tables.differences import (
    as_published,
    compared,
    from_standard,
    published_table,
    standard_table,
)
from scripts.studies.quest_tables.evenness import Column, Evenness, evenness, evenness_of
from scripts.studies.quest_tables.figures import (
    AUTOATTACK,
    EVENNESS,
    FGSM,
    FIGURES,
    IN_C,
    MAPS,
    PGD,
    ROBUSTNESS,
    SPSA,
    TABLES,
    Figure,
)
from scripts.studies.quest_tables.short import in_short
from scripts.studies.quest_tables.trainings import (
    Trainings,
    chance_between,
    contrast,
    correlation_interval,
    crossed,
    level_if_wild,
    partial_rank_correlation,
    power,
    seeds_needed,
    smallest_correlation,
    smallest_gap,
    spread_of,
)
from scripts.zoo.card import endings
from scripts.zoo.logs import Log, finished

ROOT = Path(__file__).parents[2]
RECORDS, LOGS = ROOT / "scripts" / "studies" / "quest_tables", ROOT / "scripts" / "zoo" / "trainings"
CORRUPTED, STEPPED = "in-c(preset=cifar,texture=own)", "pgd(eps=2/255,steps=20)"
NAMED = {IN_C: CORRUPTED, PGD: STEPPED, FGSM: "fgsm(eps=2/255)"}
pytestmark = pytest.mark.slow
KEPT = {"cifar10": RECORDS / "cifar10.jsonl", "shapes": RECORDS / "shapes.jsonl.gz"}


def named(figure: Figure) -> str:
    """A condition as the lines here have it."""
    return NAMED.get(figure.condition, figure.condition)


def line(formula: str, seed: int, shift: float, rng: np.random.Generator) -> dict[str, Any]:
    """A training as `scripts.studies.quest_tables.evaluate` keeps it, `shift` better than others in every way."""
    figures: dict[str, dict[str, float]] = {}
    for figure in (*FIGURES, *EVENNESS):
        value = 0.5 + shift * (figure.better or 1) + 0.004 * rng.standard_normal()
        figures.setdefault(named(figure), {})[figure.metric] = float(value)
    right, images = {}, {"clean": 1000, NAMED[FGSM]: 500, STEPPED: 500}
    for condition, n in images.items():
        bits = rng.permutation(n) < round(figures[condition]["top1"] * n)
        right[condition] = base64.b64encode(np.packbits(bits).tobytes()).decode()
        figures[condition]["top1"] = float(bits.mean())
    facts = {"checkpoint": f"shapes-vit-{formula}-seed{seed}", "attention": formula, "seed": seed, "recipe": "by hand"}
    clean_on = {"500": 0.5 + 0.05 * seed}
    return {**facts, "data": "generated", "figures": figures, "right": right, "images": images, "clean_on": clean_on}


@pytest.fixture
def made_up() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    shifts = {"standard": 0.0, "quest": 0.03, "elliptical": -0.03, "elliptical-quest": 0.0}
    return [line(formula, seed, shift, rng) for formula, shift in shifts.items() for seed in range(5)]


def test_seeds_and_images_are_both_random() -> None:
    """Equal to the table of an analysis of variance by hand; without an effect of images it is the t-test by seed."""
    rng = np.random.default_rng(0)
    before, after = rng.random((5, 40)), rng.random((5, 40)) + 0.1 * rng.random(40) + 0.6 * rng.random((5, 1))
    found = crossed(before, after)
    d = after - before
    squares = {"seed": 0.0, "image": 0.0, "rest": 0.0}
    for s in range(5):
        squares["seed"] += 40 * (d[s].mean() - d.mean()) ** 2 / 4
        for i in range(40):
            squares["rest"] += (d[s, i] - d[s].mean() - d[:, i].mean() + d.mean()) ** 2 / (4 * 39)
    for i in range(40):
        squares["image"] += 5 * (d[:, i].mean() - d.mean()) ** 2 / 39
    spread = squares["seed"] + max(squares["image"] - squares["rest"], 0)
    freedom = 4 * spread**2 / squares["seed"] ** 2
    error = (spread / 200) ** 0.5
    assert found.value == pytest.approx(d.mean())
    assert found.ci_high - found.value == pytest.approx(stats.t.ppf(0.975, freedom) * error)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, freedom))
    even = np.repeat(d.mean(axis=1, keepdims=True), 40, axis=1)  # every image alike
    paired = stats.ttest_1samp(even.mean(axis=1), 0)
    assert crossed(np.zeros((5, 40)), even).p_value == pytest.approx(paired.pvalue)


def test_intervals_hold_the_truth_for_other_seeds_and_other_images() -> None:
    """Where trainings and images both vary, 95 % intervals cover about as often; those of one of the two do not."""
    rng, held, by_image = np.random.default_rng(2), 0, 0
    runs = 400
    for _ in range(runs):
        d = 0.05 * rng.standard_normal((5, 1)) + 0.5 * rng.standard_normal(200) + 0.3 * rng.standard_normal((5, 200))
        found = crossed(np.zeros_like(d), d)
        held += found.ci_low <= 0 <= found.ci_high
        reach = 1.96 * d.mean(axis=0).std(ddof=1) / 200**0.5
        by_image += abs(d.mean()) <= reach
    assert 0.92 <= held / runs <= 0.995 and by_image < held


def test_two_trainings_that_agree_by_chance_say_nothing_about_other_images() -> None:
    """Their interval is never narrower than that of images alone, and covers: without a floor 87 of 100 would."""
    rng, held, runs = np.random.default_rng(6), 0, 400
    for _ in range(runs):
        d = 0.02 * rng.standard_normal((2, 1)) + 0.1 * rng.standard_normal(500) + 0.3 * rng.standard_normal((2, 500))
        found = crossed(np.zeros_like(d), d)
        held += found.ci_low <= 0 <= found.ci_high
        assert found.ci_high - found.value >= 1.9 * d.mean(axis=0).std(ddof=1) / 500**0.5
    assert held / runs >= 0.95


def values_of(table: np.ndarray) -> dict[str, dict[int, float]]:
    """Figures (formulas, seeds) by formula and seed; those that are nan are missing."""
    cells = {f"formula {row}": enumerate(values) for row, values in enumerate(table)}
    return {name: {seed: float(v) for seed, v in found if np.isfinite(v)} for name, found in cells.items()}


def modelled(table: np.ndarray, formula: int = 1, against: int = 0) -> Any:
    names = f"formula {formula}", f"formula {against}"
    seeds = np.isfinite(table[[formula, against]]).all(axis=0)
    return contrast(values_of(table), *names, of_means(table[against, seeds], table[formula, seeds], binary=False))


def test_one_model_of_all_formulas_is_the_table_of_an_analysis_of_variance() -> None:
    """Blocks by hand where all is there; of two formulas, and of a pair that spreads more, it is the paired t-test."""
    rng = np.random.default_rng(11)
    table = rng.random((7, 1)) + 0.3 * rng.random((1, 5)) + 0.1 * rng.standard_normal((7, 5))
    table[1] += 0.5
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    error = (2 * (rest**2).sum() / 24 / 5) ** 0.5
    tame = next(f for f in range(1, 7) if (table[f] - table[0]).std(ddof=1) < error * 5**0.5)
    found = modelled(table, tame)
    value, reach = table[tame].mean() - table[0].mean(), stats.t.ppf(0.975, 24) * error
    assert found.difference.n == 5
    assert found.difference.value == pytest.approx(value) and found.spread == pytest.approx(error * 5**0.5)
    assert (found.difference.ci_low, found.difference.ci_high) == pytest.approx((value - reach, value + reach))
    assert found.difference.p_value == pytest.approx(2 * stats.t.sf(abs(value) / error, 24))
    wild = table.copy()
    wild[tame] += [0.9, -0.9, 0.5, -0.5, 0.0]
    found, paired = modelled(wild, tame), stats.ttest_rel(wild[tame], wild[0])
    assert found.spread == pytest.approx((wild[tame] - wild[0]).std(ddof=1))
    assert found.difference.p_value == pytest.approx(paired.pvalue)
    alike = table.copy()
    alike[tame] = alike[0] + 0.2  # by the same in every seed: the spread of all formulas counts
    assert 0 < modelled(alike, tame).difference.p_value < 1
    assert modelled(np.repeat(table[:, :1], 5, axis=1), tame) is None
    pair = modelled(table[:2])
    paired = stats.ttest_rel(table[1], table[0])
    assert pair.difference.p_value == pytest.approx(paired.pvalue)
    table[3 if tame == 2 else 2, 1:] = np.nan  # one seed of one formula: its effect is known from the others
    fewer = modelled(table, tame)
    reach = stats.t.ppf(0.975, 20) * fewer.spread / 5**0.5
    assert fewer.difference.ci_high - fewer.difference.value == pytest.approx(reach)
    assert fewer.difference.value == pytest.approx(table[tame].mean() - table[0].mean())


def test_formulas_that_do_not_differ_are_seldom_found_to() -> None:
    """At 5 % in about one of twenty, and not much more often where one formula's seeds spread three times as wide; at
    the strictest of Holm's steps about one in two hundred, where it should be one in fourteen hundred."""
    rng, runs = np.random.default_rng(12), 1500
    even, wild, strict = 0, 0, 0
    for _ in range(runs):
        table = rng.standard_normal((1, 5)) + rng.standard_normal((7, 5))
        even += modelled(table).difference.p_value < 0.05
        table[1] *= 3
        p_value = modelled(table).difference.p_value
        wild, strict = wild + (p_value < 0.05), strict + (p_value < 0.05 / 71)
    assert even / runs <= 0.06 and wild / runs <= 0.08 and strict <= 12


def test_power_is_what_simulated_trainings_find() -> None:
    rng = np.random.default_rng(3)
    found = stats.ttest_1samp(0.8 + rng.standard_normal((20_000, 5)), 0, axis=1).pvalue < 0.05
    assert power(0.8, 1.0, 5) == pytest.approx(found.mean(), abs=0.01)
    needed = seeds_needed(0.8, 1.0)
    assert needed is not None and power(0.8, 1.0, needed) >= 0.8 > power(0.8, 1.0, needed - 1)
    assert power(smallest_gap(1.0, 5), 1.0, 5) == pytest.approx(0.8) and seeds_needed(0.01, 1.0) is None
    strict = 0.05 / 66  # Holm's first step; as statsmodels' TTestPower has it
    assert smallest_gap(1.0, 5, strict) == pytest.approx(5.1226049, rel=1e-4)
    assert (seeds_needed(1.0, 1.0), seeds_needed(1.0, 1.0, strict)) == (10, 24)
    found = stats.ttest_1samp(smallest_gap(1.0, 2) + rng.standard_normal((50_000, 2)), 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01) and smallest_gap(1.0, 2, strict) > 500
    for gap in (0.1, 0.5, 0.8, 1.0, 5.0):  # where SciPy's non-central t is nan for some of these
        rising = [power(gap, 1.0, n, strict) for n in (2, 3, 5, 10, 20, 50, 62, 100, 125, 131, 250, 1000)]
        assert rising == sorted(rising) and all(0 <= share <= 1 for share in rising)


@pytest.mark.parametrize(("formulas", "seeds", "tests"), [(7, 5, 1), (7, 5, 82), (4, 3, 1), (4, 3, 29)])
def test_the_smallest_gap_is_found_four_times_out_of_five_by_the_test_that_decides(
    formulas: int, seeds: int, tests: int
) -> None:
    """That of the model of all formulas alone would find gaps that are a fifth to four fifths as large."""
    rng, found, runs = np.random.default_rng(13), 0, 1500
    gap = smallest_gap(2**0.5, seeds, 0.05 / tests)
    for _ in range(runs):
        table = rng.standard_normal((formulas, seeds))
        table[1] += gap
        found += modelled(table).difference.p_value < 0.05 / tests
    assert 0.77 <= found / runs <= 0.85


def test_what_a_wild_formula_does_to_p_values() -> None:
    """As often as trainings one by one, and the rarer a p-value, the more; not where two formulas are all there are."""
    rng, found, runs = np.random.default_rng(14), 0, 2000
    for _ in range(runs):
        table = rng.standard_normal((6, 2))
        table[1] *= 3
        found += modelled(table).difference.p_value < 0.05
    assert level_if_wild(2, 6) == pytest.approx(found / runs, abs=0.015)
    assert level_if_wild(3, 2) == pytest.approx(0.05, abs=0.002)
    assert level_if_wild(5, 7) < 0.06 and 6 < level_if_wild(5, 7, 0.05 / 71) * 71 / 0.05 < 10


def test_a_correlation_with_accuracy_held_fixed() -> None:
    """It is that of the residuals of ranks; what goes through accuracy alone disappears."""
    rng = np.random.default_rng(4)
    held = rng.standard_normal(60)
    x, y = held + 0.5 * rng.standard_normal(60), held + 0.5 * rng.standard_normal(60)
    ranks = [stats.rankdata(values) for values in (x, y, held)]
    left = [values - np.polyval(np.polyfit(ranks[2], values, 1), ranks[2]) for values in ranks[:2]]
    assert partial_rank_correlation(x, y, held) == pytest.approx(np.corrcoef(*left)[0, 1])
    assert stats.spearmanr(x, y)[0] > 0.6 and abs(partial_rank_correlation(x, y, held)) < 0.35
    low, high = correlation_interval(x, y, held, np.repeat("one", 60), draws=300)
    assert low < partial_rank_correlation(x, y, held) < high and low < 0 < high


def test_intervals_within_formulas_know_that_means_are_of_few() -> None:
    """Of unrelated values about one in twenty leaves 0 out, and not one in five; of related ones most do."""
    rng, formulas = np.random.default_rng(3), np.repeat(list("abcdefg"), 3)
    off, related = 0, 0
    for _ in range(120):
        x, y, held = (np.repeat(rng.standard_normal(7), 3) * 2 + rng.standard_normal(21) for _ in range(3))
        low, high = correlation_interval(x, y, held, formulas, draws=200)
        off += not low <= 0 <= high
        related += correlation_interval(x, x + 0.3 * rng.standard_normal(21), held, formulas, draws=200)[0] > 0
    assert off <= 12 and related >= 100
    residuals = [v - np.repeat(v.reshape(7, 3).mean(1), 3) for v in (x, y, held)]
    assert partial_rank_correlation(x, y, held, formulas) == pytest.approx(partial_rank_correlation(*residuals))


def test_chance_between_formulas_is_that_of_their_order() -> None:
    """It is the share of all orders, counted one by one; a test that takes trainings of one formula for independent
    would find unrelated figures in a third of the cases, and one that moves the means themselves those that both follow
    what is held fixed."""
    rng, formulas = np.random.default_rng(7), np.repeat(list("abcd"), 3)
    x, y, held = rng.random(12), rng.random(12), rng.random(12)
    means, of_held = x.reshape(4, 3).mean(axis=1), held.reshape(4, 3).mean(axis=1)
    line = stats.linregress(of_held, means)
    fitted = dict(zip("abcd", line.intercept + line.slope * of_held, strict=True))
    rest = dict(zip("abcd", means - line.intercept - line.slope * of_held, strict=True))
    seen, as_far, orders = abs(partial_rank_correlation(x, y, held)), 0, list(itertools.permutations("abcd"))
    for order in orders:
        moved = x - np.repeat(means, 3)
        for name, other in zip("abcd", order, strict=True):
            moved[formulas == name] += fitted[name] + rest[other]
        as_far += abs(partial_rank_correlation(moved, y, held)) >= seen - 1e-9
    assert chance_between(x, y, held, formulas) == pytest.approx(as_far / len(orders))
    formulas, apart, both = np.repeat(list("abcdefg"), 5), 0, 0
    for _ in range(60):
        x, y, held = (np.repeat(rng.standard_normal(7), 5) * 4 + rng.standard_normal(35) for _ in range(3))
        apart += chance_between(x, y, held, formulas) < 0.05
        both += chance_between(x + 4 * held, y + 4 * held, held, formulas) < 0.05
    assert apart <= 7 and both <= 10  # the means themselves: 15
    assert chance_between(x, x + 0.1 * rng.standard_normal(35), held, formulas) < 0.001
    nine = np.repeat(list("abcdefghi"), 2)
    assert chance_between(np.arange(18.0), np.arange(18.0) ** 2, rng.random(18), nine) < 0.001  # not all 362880 orders


def test_a_correlation_that_can_be_found_is_found() -> None:
    """Within formulas, by intervals for one of fifteen correlations: about seven times out of ten."""
    least = smallest_correlation(35, 7, 0.05 / 15)
    assert least == pytest.approx(0.652, abs=0.001)
    rng, formulas, found = np.random.default_rng(9), np.repeat(list("abcdefg"), 5), 0
    normal = 2 * np.sin(np.pi * least / 6)  # Pearson's correlation whose ranks have it
    for _ in range(60):
        x, held = rng.standard_normal(35), rng.standard_normal(35)
        y = normal * x + (1 - normal**2) ** 0.5 * rng.standard_normal(35)
        found += correlation_interval(x, y, held, formulas, draws=3000, level=0.05 / 15)[0] > 0
    assert 0.55 <= found / 60 <= 0.85


def test_a_training_that_is_not_over_is_no_result() -> None:
    row = {"probe": {"largest_logit": [1.0]}, "test_accuracy_ema": 0.9}
    whole, half = Log("whole", "shapes-vit", "quest", "", 0, (row,) * 12), (row,) * 3
    logs = [whole, Log("gone", "shapes-vit", "quest", "", 1, (*half, {"diverged": True}))]
    assert finished(logs) == logs and finished([Log("", "shapes-vit", "quest", "epochs-4", 0, half), *logs])
    with pytest.raises(RobustkitError, match=r"half: 3 epochs, and others of its kind have 12; train"):
        finished([*logs, Log("half", "shapes-vit", "standard", "", 0, half)])


def test_other_trainings_of_the_same_formula_and_seed_are_in_no_table_of_variants() -> None:
    row = {"probe": {"largest_logit": [1.0]}, "test_accuracy_ema": 0.9}

    def made(variant: str, accuracy: float) -> Log:
        return Log("", "shapes-vit", "standard", variant, 0, (row | {"test_accuracy_ema": accuracy},))

    logs = [made("", 0.9), made("bfloat16", 0.5), made("quack-tau-1", 0.4), made("fraction-0.1", 0.7)]
    logs += [made("epochs-4", 0.8), made("epochs-4-rate-0.003", 0.6), made("bfloat16-epochs-4", 0.3)]
    written = "\n".join(quest_variants.variants(logs))
    assert "| 10%             | 70.0 (1)" in written and "| 100%            | 90.0 (1)" in written
    assert "| 0.001 | 80.0 (1)" in written and "| 0.003 | 60.0 (1)" in written
    assert not re.search(r"[345]0\.0 \(", written)


def test_the_page_finds_what_is_there(made_up: list[dict[str, Any]], tmp_path: Path) -> None:
    """And writes the means as a reference, which `compare` reads."""
    records, written = tmp_path / "zoo", tmp_path / "quest-tables.md"
    probe = {"probe": {"largest_logit": [1.0]}, "test_accuracy_ema": 0.9}
    for each in made_up:
        (records / each["checkpoint"]).mkdir(parents=True)
        (records / each["checkpoint"] / "log.jsonl").write_text((json.dumps(probe) + "\n") * 2)
    (records / "shapes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in made_up))
    one = made_up[0] | {"seed": 0, "recipe": "alone", "parts": ["clean", "corrupted", "attention"]}
    one["figures"] = {
        condition: values for condition, values in one["figures"].items() if condition not in (MAPS, CORRUPTED)
    }
    (records / "cifar10.jsonl").write_text(json.dumps(one) + "\n")
    reported = [
        "--records",
        str(records),
        "--logs",
        str(records),
        "--markdown",
        str(written),
        "--references",
        str(tmp_path),
    ]
    assert reproduce_quest.main(reported) == 0
    text = written.read_text()
    rows = [" ".join(row.split()) for row in text.splitlines() if row.startswith("| quest ")]
    assert any(" | standard | PGD-20 top-1, % | +1.6 | +3." in row and "| **shown** " in row for row in rows)
    assert any(row.startswith("| quest | 5 | 5") and " | 73.36 | " in row for row in rows)
    assert "None of 20 trainings diverged." in text and "1 training: alone." in text
    assert "| **the opposite** " in text and "Too few trainings: how far another seed" in text
    assert text.index("## Trainings on shapes") < text.index("## Trainings on cifar10")
    assert text.startswith("# The QUEST paper's tables, over several trainings") and "over seeds" in text
    assert "On shapes, 892 of 1000 test images wear the colour of their class" in text  # counted from their draws
    assert (
        "ours at 2/255 in pixels. The smallest" in text
        and "FGSM top-1, FGSM NLL, PGD-20 top-1 and PGD-20 NLL: 500 images (clean top-1 on these: 60.0 %)" in text
        and "median distance: 100 images." in text
    )
    (records / "shapes.jsonl").write_text(json.dumps(made_up[0]) + "\n")
    assert reproduce_quest.main(reported[:6]) == 0
    alone = written.read_text()
    assert alone.startswith("# The QUEST paper's tables, one training of each formula so far")
    assert "± standard deviation" not in alone
    assert alone.count("The images have no boxes to score maps by.") == 1  # of cifar10
    assert "20 trainings, of formulas with 3 or more, clean top-1 held fixed" in text and "| during training " in text
    drawn = (tmp_path / "shapes-evenness.svg").read_text()
    assert "PGD-20 top-1, %" in drawn and re.search(r"<!-- 5[0-9](\.\d)? -->", drawn)  # ticks in per cent, as it says
    assert read_published(str(tmp_path / "zoo-cifar10.toml")).data == "CIFAR-10 test"
    means = read_published(str(tmp_path / "zoo.toml")).figures
    expected = np.mean([each["figures"][STEPPED]["top1"] for each in made_up if each["attention"] == "quest"])
    assert means["quest"][STEPPED]["top1"] == pytest.approx(expected, abs=1e-6)
    trainings = Trainings(tuple(made_up))
    found = trainings.difference("quest", "standard", "clean", "top1")
    assert (
        found is not None
        and found.n == 5
        and spread_of(found)
        == pytest.approx(
            np.std(
                [
                    trainings.values("quest", "clean", "top1")[s] - trainings.values("standard", "clean", "top1")[s]
                    for s in range(5)
                ],
                ddof=1,
            )
        )
    )
    both = trainings.crossed("quest", "standard", "clean")
    mean = np.mean(list(trainings.values("quest", "clean", "top1").values()))
    assert both is not None and both.second == pytest.approx(mean)


def test_what_is_kept_of_a_training_is_what_its_run_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bits are those of the records, in the order of ids; a line that is there is not computed again."""
    parts = (
        evaluate.Part("clean", 12, {"attacks": "fgsm"}, ("clean", "fgsm"), at_eps=True),
        evaluate.Part("attention", 8, {"attacks": "none", "cams": "agcam(faithfulness=none)", "watch_attention": True}),
    )
    monkeypatch.setattr(evaluate, "PARTS", parts)
    checkpoint = str(embedded_file("shapes-vit-quest"))
    given = [checkpoint, "--eps", "8/255", "--work", str(tmp_path / "runs"), "--out", str(tmp_path / "kept.jsonl")]
    assert evaluate.main([*given, "--parts", "clean"]) == 0
    assert evaluate.main(given) == 0
    (kept,) = evaluate.read_lines(tmp_path / "kept.jsonl")
    assert kept["recipe"].endswith("bfloat16 autocast")  # not the script's name, which has changed since
    assert (kept["attention"], kept["seed"]) == ("quest", 0) and kept["figures"]["attention(clean)"][
        "key_norm_spread"
    ] > 0
    run = robustkit.Run(next((tmp_path / "runs").glob("*/clean")))
    for condition in ("clean", "fgsm(eps=8/255)"):
        table = run.table("shapes-vit-quest", condition, ["sample_id", "correct"]).sort_by("sample_id")
        right = Trainings((kept,)).right("quest", condition)[0]
        assert right.tolist() == table["correct"].to_pylist()
        assert kept["figures"][condition]["top1"] == pytest.approx(right.mean(), abs=1e-6)
    assert Trainings((kept,)).right("quest", "fgsm(eps=8/255)")[0].mean() < 1
    assert kept["images"] == {"clean": 12, "fgsm(eps=8/255)": 12}
    wrong = kept | {"images": kept["images"] | {"clean": 8}}  # as if of another number of images
    wrong["figures"] = kept["figures"] | {"clean": {"top1": 0.1}}
    with pytest.raises(RobustkitError, match=r"are right, and not 0\.1"):
        Trainings((wrong,)).right("quest", "clean")
    capsys.readouterr()
    assert evaluate.main(given) == 0 and "1 trainings; 0 parts are new" in capsys.readouterr().out
    (tmp_path / "kept.jsonl").write_text(json.dumps(kept | {"sha256": "0" * 64}) + "\n")
    assert evaluate.main(given) == 2 and "the line of shapes-vit-quest-seed0 is of another" in capsys.readouterr().err


def test_lines_may_be_compressed_and_a_broken_file_is_named(tmp_path: Path) -> None:
    kept = tmp_path / "shapes.jsonl.gz"
    kept.write_bytes(gzip.compress(b'{"seed":0}\n{"seed":1}\n', mtime=0))
    assert evaluate.read_lines(kept) == [{"seed": 0}, {"seed": 1}]
    for broken in (kept.read_bytes()[:-9], b"plain text\n", kept.read_bytes()[:12] + b"\xff" * 30):
        kept.write_bytes(broken)
        with pytest.raises(RobustkitError, match=r"shapes\.jsonl\.gz: cannot be read .*; expected lines of JSON"):
            evaluate.read_lines(kept)


def test_parts_in_any_order_and_by_two_processes_leave_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clean figures are those of the part that takes all images, and lines of others that came meanwhile stay."""
    options = {"attacks": "fgsm", "eps": "8/255"}
    parts = (evaluate.Part("clean", 12, {"attacks": "none"}), evaluate.Part("attacked", 8, options, ("fgsm",)))
    monkeypatch.setattr(evaluate, "PARTS", parts)
    out, whole = tmp_path / "kept.jsonl.gz", evaluate.evaluate

    def meanwhile(part: evaluate.Part, checkpoints: Any, *given: Any) -> None:
        """While the first part is computed, another process does the second."""
        monkeypatch.setattr(evaluate, "evaluate", whole)
        assert evaluate.main([*reported, "--parts", "clean"]) == 0
        with gzip.open(out, "at") as file:
            file.write(json.dumps({"checkpoint": "of another", "parts": []}) + "\n")
        whole(part, checkpoints, *given)

    monkeypatch.setattr(evaluate, "evaluate", meanwhile)
    reported = [str(embedded_file("shapes-vit-quest")), "--work", str(tmp_path / "runs"), "--out", str(out)]
    assert evaluate.main([*reported, "--parts", "attacked"]) == 0
    other, kept = evaluate.read_lines(out)
    assert other["checkpoint"] == "of another" and kept["parts"] == ["clean", "attacked"]
    assert kept["images"] == {"fgsm(eps=8/255)": 8} and set(kept["figures"]) == {"clean", "fgsm(eps=8/255)"}
    of_part = robustkit.Run(next((tmp_path / "runs").glob("*/attacked")))
    right = of_part.table("shapes-vit-quest", "clean", ["correct"])["correct"].to_pylist()
    assert len(right) == 8 and kept["clean_on"]["8"] == pytest.approx(np.mean(right))
    run = robustkit.Run(next((tmp_path / "runs").glob("*/clean")))
    correct = run.table("shapes-vit-quest", "clean", ["correct"])["correct"].to_pylist()
    assert len(correct) == 12 and kept["figures"]["clean"]["top1"] == pytest.approx(np.mean(correct), abs=1e-6)


def test_trainings_at_two_radii_are_refused(made_up: list[dict[str, Any]]) -> None:
    made_up[3]["figures"]["pgd(eps=1/255,steps=20)"] = made_up[3]["figures"].pop(STEPPED)
    reported = r"seed4 has pgd\(eps=2/255,steps=20\) and shapes-vit-standard-seed3 pgd\(eps=1/255,steps=20\); a file"
    with pytest.raises(RobustkitError, match=reported):
        Trainings(tuple(made_up[2:])).values("standard", PGD, "top1")


def test_two_trainings_of_one_formula_and_seed_are_refused(made_up: list[dict[str, Any]]) -> None:
    with pytest.raises(RobustkitError, match="2 trainings of quest, seed 0; a file holds those of one recipe"):
        Trainings((*made_up, next(each for each in made_up if each["attention"] == "quest")))


def test_evenness_within_formulas_is_not_that_between_them(tmp_path: Path) -> None:
    """Formulas with more even attention are more robust here, and of one formula the less even trainings are."""
    rng = np.random.default_rng(5)
    names = ("standard", "quest", "qnorm", "qknorm-hs", "qknorm-ds", "elliptical", "elliptical-quest")
    place = {name: rank for rank, name in enumerate(names)}
    made = [line(name, seed, 0.0, rng) for name in names for seed in range(5)]
    for each in made:
        even = place[each["attention"]] + 0.1 * rng.standard_normal()
        for figure in EVENNESS:
            each["figures"][figure.condition][figure.metric] = even
        for figure in ROBUSTNESS:
            robust = 2 * place[each["attention"]] - even
            each["figures"][named(figure)][figure.metric] = figure.better * robust
        each["figures"]["clean"]["top1"], each["right"] = rng.random(), {}
    trainings = Trainings(tuple(made))
    even = evenness_of(trainings)
    assert even is not None
    written = "\n".join(evenness(even, trainings, [], tmp_path / "even.svg"))
    every = "robust by IN-C mean error, PGD-20 top-1 and median distance"
    assert f"Over all trainings, those with more even attention are more {every}." in written
    assert "With clean NLL held fixed instead: Over all trainings, those with more" in written
    assert f"Within formulas, those with more even attention are less {every}." in written
    assert f"Those with more of *largest logit* are less {every}." in written.partition("Within formulas, those")[2]
    tested = compared(trainings)
    short = in_short("shapes", trainings, tested, even)
    assert f"those with more of it are more {every}. Among those of one formula" in short
    assert f"those with more of it are less {every}. They speak against the claim." in short
    turned = replace(even, robust=tuple(replace(c, values=-c.values) for c in even.robust))
    assert "They speak for the claim, and do not prove a cause." in in_short("", trainings, tested, turned)
    three = evenness_of(Trainings(tuple(each for each in made if each["seed"] < 3)))
    assert even.least and three and three.of_one_formula and three.least is None
    assert "seven times out of ten" in written and "there are in effect 7 values, one of each formula" in written
    assert "seven times out of ten" not in " ".join(evenness(three, trainings, [], tmp_path / "plot.svg"))
    single = evenness_of(Trainings(tuple(each for each in made if each["attention"] != "quest" or each["seed"] < 2)))
    assert single and len(single.held) == 30 and "quest" not in single.formulas  # two are too few to look within


def test_of_unrelated_figures_a_verdict_says_neither() -> None:
    """Its intervals hold for all correlations together: at 95 % each, one of fifteen would often leave 0 out."""
    rng, formulas, wrong = np.random.default_rng(8), np.repeat(list("abcdefg"), 5), 0
    for _ in range(5):
        columns = tuple(Column(f"even {i}", rng.standard_normal(35)) for i in range(5))
        robust = tuple(Column(f"robust {i}", rng.standard_normal(35)) for i in range(3))
        even = Evenness(columns, robust, rng.standard_normal(35), formulas)
        wrong += any(leaning.text for leaning in even.of_one_formula.values())
    assert wrong <= 1


def test_in_short_says_what_the_tables_show(made_up: list[dict[str, Any]]) -> None:
    """Which formula is better or worse by what, which published differences show, and what QUEST does."""
    trainings = Trainings(tuple(made_up))
    every = compared(trainings)
    tested = from_standard(every)
    short = in_short("shapes", trainings, every, None)
    beyond = [each for each in tested if each.p < 0.05]
    assert short.startswith("**In short**, of 20 trainings on shapes, 5 of each formula:")
    assert f"- {len(beyond)} of {len(tested)} differences from standard attention are beyond chance" in short
    assert f"correction for all {len(every)} differences of these trainings that are tested. Without the" in short
    alone = sum(each.p_alone < 0.05 for each in tested)
    assert f"own seeds alone, corrected, {alone}. Asked for other" in short
    asked = [each for each in tested if each.images_too]
    assert {each.figure.name for each in asked} == {"clean top-1", "FGSM top-1", "PGD-20 top-1"}
    kept = sum(each.p_images < 0.05 for each in asked)
    assert f"which can be done for {len(asked)} of them, {kept} are; the others say nothing of other images." in short
    unknown = [each for each in as_published(every) if each.order == "cannot tell"]
    out = [not e.found.ci_low <= (e.published or 0) <= e.found.ci_high for e in unknown]
    assert sum(out) > 0 and f"{len(out)} cannot tell. Of the last, {sum(out)} have a 95 % interval (not corr" in short
    (quest,) = re.findall("    - quest: better by (.*)\\.", short)
    pgd = next(each for each in beyond if (each.formula, each.figure.condition) == ("quest", PGD))
    assert f"PGD-20 top-1 ({100 * pgd.found.value:+.1f} points)" in quest and "worse" not in quest
    assert re.search(r"median distance \(\+[78]\.\d\d of 1/255\)", quest)
    assert "    - elliptical: worse by" in short and "    - elliptical-quest: none, which" in short
    shown = [each for each in as_published(every) if each.order == "shown"]
    assert f"too: {len(shown)} shown (quest against standard by " in short
    assert re.search(
        r"quest minus standard: IN-C mean error -[23]\.\d \[\S+ \S+ points \(more robust, p \(Holm\) ", short
    )
    assert "So its models are more robust by IN-C mean error, PGD-20 top-1 and median distance, beyond chance." in short
    assert "So far as these go, it is as the paper has it (IN-C mean error, FGSM top-1," in short
    attacked = [f for f in FIGURES if f.published and f.condition not in ("clean", MAPS)]
    mixed = "By the paper's figures they are more robust in FGSM top-1, FGSM NLL, PGD-20 NLL"
    cases = ((ROBUSTNESS, mixed), (attacked, "does not hold for these: by IN-C mean error, FGSM top-1"))
    for shifted, said in (*cases, (EVENNESS[:1], "It is less even than that of standard")):
        for each in (each for each in made_up if each["attention"] == "quest"):
            for figure in shifted:
                each["figures"][named(figure)][figure.metric] -= 0.2 * (figure.better or 1)
            each["right"] = {}
        trainings = Trainings(tuple(made_up))
        short = in_short("shapes", trainings, compared(trainings), None)
        assert said in short and "So its models are less robust by" in short


def test_where_nothing_differs_in_short_says_so(made_up: list[dict[str, Any]]) -> None:
    rng = np.random.default_rng(10)
    alike = [line(each["attention"], each["seed"], 0.0, rng) for each in made_up]
    for each in alike:
        each["figures"][CORRUPTED]["mean_error"] = 0.01 * each["seed"] + 0.001 * len(each["attention"])
    trainings = Trainings(tuple(alike))
    every = compared(trainings)
    short = in_short("shapes", trainings, every, None)
    assert "- 0 of 39 differences" in short and "None is beyond chance" in short and "better by" not in short
    assert re.search(r"they would have to differ by .* points in PGD-20 top-1", short)
    two = Trainings(tuple(e for e in alike if e["seed"] < 2 and e["attention"] in ("standard", "quest")))
    short = in_short("shapes", two, compared(two), None)
    assert "have to differ by" in short and "points in PGD-20 top-1" not in short  # more than 100
    assert in_short("shapes", Trainings(tuple(made_up[:1])), [], None) == ""
    written = standard_table(from_standard(every))  # seeds that all differ alike have no spread, hence no power
    assert "nan" not in written and re.search(r"\| –  +\| –  +\|", written)


def test_tables_tell_all_tests_by_one_family(made_up: list[dict[str, Any]]) -> None:
    """A difference has the same p in both; what the paper's seeds do not resolve is not looked for."""
    trainings = Trainings(tuple(made_up))
    every = compared(trainings)
    published = as_published(every)
    assert all(each.tests == len(every) for each in every)
    assert [(e.formula, e.against) for e in published][-1] == ("elliptical-quest", "elliptical")
    left = {(e.formula, e.against, e.figure.title) for e in every if e.published is not None and not e.is_resolved}
    assert ("elliptical-quest", "standard", "clean top-1, %") in left
    assert not any(e.figure.title == "FGSM NLL" and e.against == "elliptical" for e in every)  # 0.005, as seeds change
    pgd = next(e for e in every if (e.formula, e.figure.condition, e.figure.metric) == ("quest", PGD, "top1"))
    assert pgd.model and pgd.images_too and pgd.images_too.n == pgd.alone.n == 5
    other = next(e for e in published if e.order == "cannot tell" and e.model)
    found = seeds_needed(other.published or 0.0, other.model.spread, 0.05 / len(every)) if other.model else None
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in published_table(published).splitlines()]
    assert [row[7] for row in rows if row[:3] == ["quest", "standard", "PGD-20 top-1, %"]] == ["–"]  # it shows
    assert [row[7] for row in rows if row[:3] == [other.formula, other.against, other.figure.title]] == [str(found)]
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in standard_table(from_standard(every)).splitlines()
    ]
    (row,) = (row for row in rows if row[:2] == ["quest", "PGD-20 top-1, %"])
    assert row[2] == "5" and row[7] == pgd.figure.signed(pgd.images_too) and row[8] == p_text(pgd.p_images)
    assert row[10] == pgd.least(len(every)) != row[9] and row[11] == ""  # beyond chance: no more seeds are needed
    asked = [e.images_too.p_value for e in every if e.images_too]
    assert pgd.p_images == holm(asked)[asked.index(pgd.images_too.p_value)] > pgd.images_too.p_value
    (row,) = (row for row in rows if row[:2] == [other.formula, other.figure.title])
    assert other.against == "standard" and row[11] == other.seeds(other.found.value) != "–"
    full = replace(pgd, alone=replace(pgd.alone, first=0.94))
    assert full.seeds(0.05).isdigit() and full.seeds(0.07) == full.seeds(-0.95) == full.seeds(0.0) == "–"
    assert replace(pgd, model=replace(pgd.model, spread=0.5)).least(70) == "–"
    nll = next(e for e in every if (e.formula, e.figure.condition, e.figure.metric) == ("quest", PGD, "nll"))
    assert nll.model and nll.alone.first == pytest.approx(0.5, abs=0.01)
    of_sd = nll.gap(70) / nll.model.spread  # so many standard deviations could be found: more than the level is none
    sides = [replace(nll, model=replace(nll.model, spread=level / of_sd)).least(70) for level in (0.45, 0.55)]
    assert sides == ["0.450", "–"]


def test_figures_that_are_no_numbers_and_lines_of_other_trainings_are_not_averaged(
    made_up: list[dict[str, Any]], tmp_path: Path
) -> None:
    made_up[0]["figures"][STEPPED]["nll"] = math.nan
    del made_up[6]["figures"]["clean"], made_up[6]["right"]["clean"]
    trainings = Trainings(tuple(made_up))
    assert sorted(trainings.values("standard", PGD, "nll")) == [1, 2, 3, 4] and evenness_of(trainings) is None
    assert all(math.isfinite(each.found.value) for each in compared(trainings))
    with pytest.raises(RobustkitError, match="quest-seed2: its recipe is not that of the others"):
        Trainings((*made_up[:7], made_up[7] | {"recipe": "fraction 10 %"}))
    (tmp_path / "shapes.jsonl").write_text(json.dumps(made_up[0]) + "\n\n")
    with pytest.raises(RobustkitError, match=r"shapes\.jsonl, line 2: .*; delete it, and evaluate"):
        evaluate.read_lines(tmp_path / "shapes.jsonl")


def test_the_card_says_how_trainings_ended() -> None:
    """Means of those that did not diverge, which are named, and the smallest and the largest layer."""
    probe = {"largest_logit": [3.0, 7.0], "query_norm": [1.0, 2.0], "key_norm": [5.0, 4.0], "entropy": [0.5, 0.3]}
    row = {"probe": probe, "loss": 1.0, "train_accuracy_ema": 0.9, "test_accuracy_ema": 0.8}
    other = row | {"loss": 1.2, "test_accuracy_ema": 0.9}
    logs = [Log("", "", "quest", "", seed, (last,)) for seed, last in enumerate((row, other, {"diverged": True}))]
    said = endings({"quest": logs})
    assert said.startswith("3 trainings, quest, seed 2 diverged.")
    cells = [cell.strip() for cell in said.splitlines()[-1].strip("|").split("|")]
    means = ["85.00 ± 7.07", "1.100 ± 0.141", "90.0 ± 0.0", "7 ± 0"]
    assert cells == ["quest", "3", *means, "1.0 ± 0.0 to 2.0 ± 0.0", "4.0 ± 0.0 to 5.0 ± 0.0", "0.3 ± 0.0 to 0.5 ± 0.0"]


def test_variants_are_told_by_formula_and_seed() -> None:
    def log(attention: str, variant: str, seed: int, accuracy: float | None, family: str = "shapes-vit") -> Log:
        probe = {"probe": {"largest_logit": [1.0]}, "test_accuracy_ema": accuracy}
        row = {"diverged": True} if accuracy is None else probe
        return Log("", family, attention, variant, seed, (row,))

    logs = [log("standard", "", seed, 0.9) for seed in range(3)] + [log("quest", "", seed, 0.92) for seed in range(3)]
    logs += [log("standard", "fraction-0.1", seed, 0.5 + 0.01 * seed) for seed in range(3)]
    logs += [log("quest", "fraction-0.1", seed, 0.6 + 0.02 * seed) for seed in range(3)]
    logs += [log("standard", "epochs-4-rate-0.03", 0, None), log("standard", "epochs-4-rate-0.03", 1, 0.3)]
    logs += [log("standard", "epochs-4-rate-0.03", 2, 0.11)]
    logs += [log("quest", "epochs-4-rate-0.03", 0, 0.7), log("standard", "epochs-4", 0, 0.8)]
    text = "\n".join(quest_variants.variants(logs))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    found = stats.ttest_rel([60, 62, 64], [50, 51, 52])
    low, high = found.confidence_interval()
    p_values = f"{found.pvalue:.3f} | {2 * found.pvalue:.3f}"  # of two tests the smaller p is doubled
    power = f"{smallest_gap(1.0, 3):.1f}"  # differences of 10, 11 and 12 points
    reported = f"| 10% | 51.0 ± 1.0 (3) | 62.0 ± 2.0 (3) | +11.0 [{low:+.1f}, {high:+.1f}] | {p_values} | {power} | |"
    assert reported in rows  # beyond chance: no more seeds are needed
    assert "| 100% | 90.0 ± 0.0 (3) | 92.0 ± 0.0 (3) | +2.0 | 0.250 | 0.250 | – | – |" in rows  # all seeds differ alike
    assert "| 0.03 | 30.0 (1), 1 of 3 diverged, 1 of 3 at chance | 70.0 (1) | – | – | – | – | – |" in rows
    assert "Trainings that failed: 2 of 4 with standard and 0 of 1 with quest." in text
    assert "| 0.001 | 80.0 (1) | – | – | – | – | – | – |" in rows and "CrossViT" not in text
    assert "Holm's correction for all 2 differences" in text
    short = quest_variants.in_short(logs)
    assert (
        "1 of 2 differences of quest from standard in clean top-1 are beyond chance; the largest of them is +" in short
    )
    assert (
        re.search(r" points \(training images 10%, p \(Holm\) 0\.0\d+\)\.$", short)
        and quest_variants.in_short(logs[:3]) == ""
    )
    wide = [("standard", 0, 0.3), ("standard", 1, 0.7), ("quest", 0, 0.8), ("quest", 1, 0.75)]  # +27.5, and by chance
    wide_logs = [log(name, "epochs-4-rate-0.01", seed, value) for name, seed, value in wide]
    assert (
        "1 of 3 differences" in (short := quest_variants.in_short(logs + wide_logs)) and "of them is +11.0 [" in short
    )
    few = [each for each in logs if each.variant != "fraction-0.1" or each.seed < 2]
    assert "0 of 2 differences" in (short := quest_variants.in_short(few)) and "the largest is +10.5 [" in short
    rows = [" ".join(line.split()) for line in "\n".join(quest_variants.variants(few)).splitlines()]
    needed = seeds_needed(10.5, 0.5**0.5, 0.05 / 2)  # differences of 10 and 11 points
    assert any(row.startswith("| 10% |") and row.endswith(f" | {needed} |") for row in rows)


def test_what_cannot_be_compared_is_said(made_up: list[dict[str, Any]], tmp_path: Path) -> None:
    """Standard with one seed; four formulas, which have too few orders; a figure that is the same for all."""
    given = ["--records", str(tmp_path), "--logs", str(tmp_path), "--markdown", str(tmp_path / "page.md")]

    def page(lines: list[dict[str, Any]]) -> str:
        (tmp_path / "shapes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        assert reproduce_quest.main(given) == 0
        return (tmp_path / "page.md").read_text()

    alone = page([each for each in made_up if each["attention"] != "standard" or each["seed"] == 0])
    assert "Too few trainings" in alone and "**In short**" not in alone and "nan" not in alone
    four = page(made_up)
    assert "Over all trainings nothing can be told: so few formulas have too few orders." in four
    assert "only a very strong correlation shows" not in four  # none can
    for each in made_up:
        each["figures"][EVENNESS[1].condition][EVENNESS[1].metric] = 1.0
    assert "not all trainings have largest logit, or all have the same." in page(made_up)


def test_without_records_it_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce_quest.main(["--records", str(tmp_path), "--logs", str(tmp_path)]) == 2
    assert "run python -m scripts.studies.quest_tables.evaluate" in capsys.readouterr().err


@pytest.mark.parametrize("family", KEPT)
def test_the_page_is_of_the_records_that_are_kept(family: str) -> None:
    """All of its tables of differences, which need no draws."""
    kept = Trainings(tuple(evaluate.read_lines(KEPT[family])))
    page = (RECORDS / "README.md").read_text("utf-8")
    every = compared(kept)
    assert standard_table(from_standard(every)) in page and published_table(as_published(every)) in page
    for table in TABLES:
        found = reproduce_quest.had(kept, table.figures)
        assert reproduce_quest.levels(kept, found) in page


def test_counts_are_told_by_their_ends() -> None:
    assert [span(counts) for counts in ([3, 3], {5, 2, 3}, [])] == ["3", "2 to 5", ""]


def test_a_family_may_lack_seeds_and_figures(made_up: list[dict[str, Any]], tmp_path: Path) -> None:
    """Three seeds, of elliptical two; SPSA of two, AutoAttack of one formula, no maps; a log without a record."""
    kept = [each for each in made_up if each["seed"] < (2 if each["attention"] == "elliptical" else 3)]
    probe = {"probe": {"largest_logit": [1.0]}, "test_accuracy_ema": 0.9}
    for each in made_up:
        if each["seed"] < 3:
            folder = tmp_path / each["checkpoint"].replace("shapes", "cifar10")
            folder.mkdir()
            (folder / "log.jsonl").write_text(json.dumps(probe) + "\n")
        for condition in (MAPS, *([SPSA] if each["seed"] > 1 else [])):
            del each["figures"][condition]
        if each["attention"] != "standard":
            del each["figures"][AUTOATTACK]
    (tmp_path / "cifar10.jsonl").write_text("".join(json.dumps({"parts": [], **each}) + "\n" for each in kept))
    reported = [
        "--records",
        str(tmp_path),
        "--logs",
        str(tmp_path),
        "--markdown",
        str(tmp_path / "page.md"),
        "--references",
        str(tmp_path),
    ]
    assert reproduce_quest.main(reported) == 0
    text, trainings = (tmp_path / "page.md").read_text(), Trainings(tuple(kept))
    assert "of 11 trainings on cifar10, 2 to 3 of each formula (SPSA top-1: 2; AutoAttack top-1: 0 to 3):" in text
    assert "Seeds: 3, but elliptical 2. None of 11 trainings diverged." in text
    assert "Trained, but not evaluated: elliptical (seed 2)." in text
    left = "No correlations of attention and robustness: 9 trainings of formulas with 3 or more are too few"
    assert f"{left}, fewer than 12." in text
    assert "next point" not in text and "needs more trainings." in text
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    counts = {(row[0], row[1]): row[2] for row in rows if row[0] in ("quest", "elliptical") and len(row) == 12}
    assert counts["quest", "IN-C mean error, %"] == "3" and counts["elliptical", "IN-C mean error, %"] == "2"
    assert counts["quest", "SPSA top-1, %"] == "2"
    assert any(row[:2] == ["quest", "2"] and row[4] == "–" for row in rows)  # of Table 4
    said = read_published(str(tmp_path / "zoo-cifar10.toml"))
    assert CORRUPTED in said.figures["quest"] and IN_C not in said.figures["quest"]
    of_all = [means(list(trainings.values(name, "clean", "top1").values()))[1] ** 2 for name in trainings.formulas()]
    pooled = (np.average(of_all, weights=[2, 2, 2, 1])) ** 0.5  # as many as degrees of freedom
    assert said.spread("elliptical", "clean", "top1") == pytest.approx(pooled, abs=1e-6)
    assert said.spread("quest", "clean", "top1") == pytest.approx(pooled, abs=1e-6)
    one = [each for each in kept if each["attention"] != "elliptical" or each["seed"] < 1]
    short = in_short("cifar10", Trainings(tuple(one)), compared(Trainings(tuple(one))), None)
    assert "Shown and not compared, with one training each: elliptical. These are small" in short
    whole, without = ([e for e in one if e["attention"] != left] for left in ("", "elliptical"))
    first, second = (compared(Trainings(tuple(lines))) for lines in (whole, without))
    assert [e.p for e in first] == pytest.approx([e.p for e in second])  # one training has no part in any test
