"""A run whose figures are known."""

from __future__ import annotations

import pytest
from gate_runs import PGD, make, spread

from robustkit.report.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """60 of 100 right clean, 30 under PGD, 9 under FGSM of two radii; losses 0, 1, 0, 1, …"""
    found = {"clean": spread(60, 100), PGD: spread(30, 100), "fgsm(eps=1/255)": spread(9, 100)}
    found["fgsm(eps=2/255)"] = spread(9, 100)
    return make(tmp_path_factory.mktemp("gate") / "run", {"vit": found}, {"clean": [0, 1] * 50})
