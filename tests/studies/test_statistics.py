"""Few samples supported by many, on records: errors and widths of made-up outcomes, and the table of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import robustkit
from robustkit.evaluations.estimation import supported_mean
from scripts.studies.statistics import support

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_what_goes_together_saves_samples_and_what_does_not_costs_none() -> None:
    rng = np.random.default_rng(0)
    cheap = (rng.random(1000) < 0.6).astype(float)
    close = np.where(rng.random(1000) < 0.02, 1 - cheap, cheap)
    apart = (rng.random(1000) < 0.6).astype(float)
    (near,), (far,) = (list(support.draws(expensive, cheap, [100], 400)) for expensive in (close, apart))
    assert near.errors[1] < 0.35 * near.errors[0] and near.width < 0.65 and min(near.held) > 0.93
    assert 0.95 < far.errors[1] / far.errors[0] < 1.06 and 0.95 < far.width < 1.06 and far.weight < 0.1
    sampled = np.sqrt(close.var() / 100 * (900 / 999))
    assert near.errors[0] == pytest.approx(sampled, rel=0.12)  # of a mean of 100 of 1000 without replacement


def test_the_table_is_of_the_samples_that_both_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = robustkit.audit(
        "zoo:shapes-vit-quest", data_dir="embedded:shapes", attacks="fgsm", eps="8/255", limit=40, out=tmp_path / "run"
    )
    given = [str(run.path), "fgsm(eps=8/255)", "--by", str(run.path), "clean", "--draws", "20"]
    assert support.main([*given, "--drawn", "30"]) == 0
    sides = [support.column(run, run.manifest.names[0], name, "correct") for name in ("fgsm(eps=8/255)", "clean")]
    expensive, cheap = (np.array([side[sample] for sample in sorted(sides[0])]) for side in sides)
    order = np.random.default_rng(0).permutation(40)
    (found,) = support.draws(expensive, cheap, [30], 1)
    by_hand, weight = supported_mean(expensive[order[:30]], cheap[order[:30]], cheap[order[30:]], binary=True)
    assert found.errors[1] == pytest.approx(abs(by_hand.value - expensive.mean())) and found.weight == weight
    out = capsys.readouterr().out
    assert f"40 samples, mean {expensive.mean():.3f} by {cheap.mean():.3f}" in out and "| 30 " in out
    assert support.main([*given, "--drawn", "40"]) == 2
    assert "40 samples have both figures; expected more than --drawn 40" in capsys.readouterr().err
