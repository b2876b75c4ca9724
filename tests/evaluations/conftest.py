"""The run that the tests of maps share."""

from __future__ import annotations

import pytest
from explained import FGSM, MODEL

import robustkit
from robustkit.evaluations.attacks import evaluate
from robustkit.report import page
from robustkit.report.run import Run

WRITE_REPORT = page.write_report


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One checkpoint, 12 images, AG-CAM with all scores and its stability."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "write_report", WRITE_REPORT)  # whichever module asks first, also one without pages
        patch.setattr(evaluate, "_wants_evidence", lambda *_: False)
        return robustkit.audit(
            [MODEL],
            data_dir="embedded:shapes",
            attacks=f"{FGSM},fgsm(eps=0)",
            cams="agcam",
            faithfulness="all",
            stability=True,
            limit=12,
            batch_size=5,
            out=tmp_path_factory.mktemp("maps") / "run",
            device="cpu",
        )
