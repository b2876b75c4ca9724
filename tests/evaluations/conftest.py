"""The run that the tests of maps share."""

from __future__ import annotations

import pytest
from explained import FGSM, MODEL

import robustkit
from robustkit.results.run import Run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One checkpoint, 24 images, AG-CAM with all scores and its stability."""
    return robustkit.audit(
        [MODEL],
        data_dir="embedded:shapes",
        attacks=f"{FGSM},fgsm(eps=0)",
        cams="agcam",
        faithfulness="all",
        stability=True,
        limit=24,
        batch_size=9,
        out=tmp_path_factory.mktemp("maps") / "run",
        device="cpu",
    )
