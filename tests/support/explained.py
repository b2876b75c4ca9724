"""The checkpoint whose maps are tested, and results by metric."""

from __future__ import annotations

from robustkit.common.figure import Figure
from robustkit.report.run import Run

MODEL = "zoo:shapes-vit-standard"
NAME = "shapes-vit-standard"
FGSM = "fgsm(eps=4/255)"
AGCAM = "cam(agcam,faithfulness=all)"


def results(run: Run, condition: str) -> dict[str, Figure]:
    return {row.metric: row for row in run.summary() if row.condition == condition}
