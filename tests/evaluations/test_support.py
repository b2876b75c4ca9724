"""Conditions on a part of the samples: which they are, what is recorded, and what supports their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate_runs import make, right, verdict
from small_audit import audit, furnish

import robustkit
from robustkit.common.determinism import draw_samples
from robustkit.common.figure import Figure
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks import supporting
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.estimation import supported_mean
from robustkit.evaluations.maps import parse_cams
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import samples_named
from robustkit.report.run import Run
from robustkit.results.survey import survey

SPSA = "spsa(eps=8/255,steps=2,directions=4{})"
WHOLE, SOME, FEWER = SPSA.format(""), SPSA.format(",on=12"), SPSA.format(",on=5")
PGD = "pgd(eps=8/255,steps=3)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnish(tmp_path_factory.mktemp("support"))


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    return audit(place, place / "run", attacks=f"pgd(steps=3),{WHOLE},{SOME},{FEWER}")


def rows_of(run: Run, condition: str) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in run.table("net", condition).to_pylist()}


def figures(run: Run, condition: str) -> dict[str, Figure]:
    return {row.metric: row for row in run.summary() if row.condition == condition}


def test_a_part_is_drawn_by_seed_and_id_alone() -> None:
    ids = [f"{place:03d}" for place in range(200)]
    some = draw_samples(ids, 50, seed=0, purpose="part")
    assert len(some) == 50 and draw_samples(reversed(ids), 20, seed=0, purpose="part") < some
    assert some != draw_samples(ids, 50, seed=1, purpose="part") and draw_samples(
        ids, 500, seed=0, purpose="part"
    ) == set(ids)
    assert {text: samples_named(text) for text in (WHOLE, SOME, "attention(pgd(eps=1,on=7))", "cam(agcam,on=3)")} == {
        WHOLE: 0,
        SOME: 12,
        "attention(pgd(eps=1,on=7))": 7,
        "cam(agcam,on=3)": 3,
    }
    assert samples_named("transfer(pgd(eps=1),from=a(on=5))") == 0


def test_records_of_a_part_are_those_of_the_whole(run: Run) -> None:
    whole, some, fewer = (rows_of(run, text) for text in (WHOLE, SOME, FEWER))
    assert (len(whole), len(some), len(fewer)) == (30, 12, 5) and fewer.keys() < some.keys() < whole.keys()
    for part in (some, fewer):  # samples of the drawn ones, not only of the first shard
        for name, row in part.items():
            numbers = [key for key, value in row.items() if isinstance(value, float)]
            assert [row[key] for key in numbers] == pytest.approx([whole[name][key] for key in numbers], rel=1e-5)
            assert {key: row[key] for key in row if key not in numbers} == {
                key: value for key, value in whole[name].items() if key not in numbers
            }
    shown = figures(run, SOME)
    hits = sum(row["correct"] for row in some.values())
    assert (shown["top1"].value, shown["top1"].n, shown["top1"].findings) == (hits / 12, 12, ())
    assert not run.manifest.bad_images and all(figure.is_whole for figure in run.summary())
    found = [{name for name, row in rows_of(run, text).items() if row["correct"]} for text in ("clean", PGD, WHOLE)]
    broken = found[0] - (found[1] & found[2])  # of all samples, not of the 5 that all attacks share
    assert figures(run, WHOLE)["found_of_broken"].n == len(broken) and "found_of_broken" not in shown


def test_neither_batches_nor_shards_change_the_part(run: Run, place: Path) -> None:
    other = audit(place, place / "other", attacks=SOME, batch_size=4, shard_size=7, setup_check=False)
    assert {name: row["prediction"] for name, row in rows_of(other, SOME).items()} == {
        name: row["prediction"] for name, row in rows_of(run, SOME).items()
    }
    path = next(path for path in run.record_paths("net", SOME))
    kept = path.read_bytes()
    path.unlink()
    again = audit(place, run.path, attacks=f"pgd(steps=3),{WHOLE},{SOME},{FEWER}")
    assert path.read_bytes() == kept and len(rows_of(again, SOME)) == 12


def test_a_figure_of_a_part_is_supported_by_what_ran_on_all(tmp_path: Path) -> None:
    generator, n = np.random.Generator(np.random.PCG64(0)), 200
    expensive = generator.random(n) < 0.4
    cheap = expensive & (generator.random(n) < 0.9)
    attack, part, pgd = "spsa(eps=1/255,steps=20", "spsa(eps=1/255,steps=20,on=60)", "pgd(eps=1/255,steps=20)"
    claim = {"norm": "linf", "eps": 1 / 255, "early_stop": False}
    found = {
        "clean": right(150, n),
        "fgsm(eps=1/255)": right(90, n),
        pgd: cheap,
        "pgd(eps=2/255,steps=20)": right(9, n),
    }
    run = make(
        tmp_path / "run", {"vit": {**found, part: expensive}}, claims=dict.fromkeys((*list(found)[1:], part), claim)
    )
    taken = draw_samples([f"{place:03d}.png" for place in range(n)], 60, seed=0, purpose="part")
    first = np.array([f"{place:03d}.png" in taken for place in range(n)])
    _keep_part(run, part, first)
    expected, weight = supported_mean(expensive[first] * 1.0, cheap[first] * 1.0, cheap[~first] * 1.0, binary=True)
    rows = {row.metric: row for row in survey(Run(run.path)) if row.condition == part}
    row = rows["supported_top1"]
    assert (row.value, row.low, row.high, row.n) == (expected.value, expected.low, expected.high, 60)
    assert rows[f"support_weight(top1 by {pgd})"].value == weight > 0.5
    plain = rows["top1"]
    assert plain.value == expensive[first].mean() and row.high - row.low < plain.high - plain.low
    # The gate takes it by its name alone; a rule that does not say `on` means all samples.
    bound = (plain.value + 2 * row.value) / 3
    named = verdict(run, f"supported_top1 under {part} >= {min(bound, row.value)}")
    assert named.state == "pass" and named.figure is not None and named.figure.value == expected.value
    assert verdict(run, f"top1 under {part} >= 0.01").figure.value == plain.value  # type: ignore[union-attr]
    assert verdict(run, f"top1 under {attack}) >= 0.01").state == "inconclusive"
    assert verdict(run, f"supported_top1 under {pgd} >= 0.01").state == "inconclusive"


def _keep_part(run: Run, condition: str, taken: Any) -> None:
    """Write the records of a condition again, with the samples that were not drawn marked as such."""
    import pyarrow as pa
    from sealing import seal

    table = pa.table(run.table("vit", condition)).replace_schema_metadata()
    size, table = run.manifest.shard_size, table.append_column("taken", pa.array(taken))
    for shard in range(run.shard_count):
        run.write_shard(run.shard_path("vit", condition, shard), table.slice(shard * size, size))
    seal(run)


def test_what_supports_is_chosen_by_a_rule_that_sees_no_figure() -> None:
    attacks = ["fgsm(eps=1/255)", "pgd(eps=1/255,steps=20)", "pgd(eps=1/255,steps=50,on=90)", "pgd(eps=2/255,steps=20)"]
    attacks += ["pgd(eps=1/255,steps=20,norm=l2)", "pgd(eps=1/255,steps=20,under=fog,severity=3)"]
    others = ["clean", "corruption(fog,severity=3)", "fmn(steps=100)", *attacks]
    expected = {
        "spsa(eps=1/255,steps=9,on=5)": attacks[1],
        "spsa(eps=2/255,steps=9,on=5)": attacks[3],
        "spsa(eps=1/255,steps=9,norm=l2,on=5)": attacks[4],
        "spsa(eps=4/255,steps=9,on=5)": "clean",
        "spsa(eps=1/255,steps=9,on=5,under=fog,severity=3)": attacks[5],
        "spsa(eps=2/255,steps=9,on=5,under=fog,severity=3)": "corruption(fog,severity=3)",
    }
    assert {text: supporting(text, others) for text in expected} == expected


def test_terminal_and_page_show_it_next_to_the_plain_figure(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from robustkit.cli.terminal import show

    monkeypatch.setenv("COLUMNS", "200")
    show(run, run.summary(), details=True)
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.lstrip().startswith("net") and f"{SOME}, top1" in line)
    plain, better = (figures(run, SOME)[metric].value for metric in ("top1", "supported_top1"))
    assert f"{100 * plain:.1f} [" in line and f"{100 * better:.1f}" in line and WHOLE in line and " 18" in line
    page = (run.path / "report.html").read_text("utf-8")
    assert "Figures of few samples, with support" in page and 'href="#term-supported"' in page


@pytest.mark.slow
def test_maps_of_a_part_are_supported_by_confidence(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 80, "attacks": "none", "setup_check": False}
    run = robustkit.audit("zoo:shapes-vit-quest", out=tmp_path / "run", cams="agcam(on=40)", device="cpu", **arguments)
    name, text = run.manifest.names[0], "cam(agcam,on=40)"
    assert {row.n for row in run.summary() if row.condition == "clean"} == {80}
    table, clean = run.table(name, text), run.table(name, "clean")
    assert len(table) == 40
    kept = [row for row in table.to_pylist() if row["correct"]]
    sure = {row["sample_id"]: row["confidence"] for row in clean.to_pylist() if row["correct"]}
    cheap = np.array([sure.pop(row["sample_id"]) for row in kept])
    expected, weight = supported_mean(np.array([row["abpc"] for row in kept]), cheap, np.array([*sure.values()]))
    rows = {row.metric: row for row in run.summary() if row.condition == text}
    found = rows["supported_abpc"]
    assert found.value == pytest.approx(expected.value) and found.n == len(kept) == rows["abpc"].n
    assert rows["support_weight(abpc by clean)"].value == pytest.approx(weight)
    assert "40 samples drawn" in (run.path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("text", ["spsa(on=-1)", "spsa(on=1/2)", "spsa(on=few)"])
def test_no_part_is_less_than_nothing(text: str) -> None:
    with pytest.raises(ProtocolError, match="on"):
        parse_condition(text, load_card("standard"))
    with pytest.raises(ProtocolError, match="on"):
        parse_cams(text.replace("spsa", "agcam"))
