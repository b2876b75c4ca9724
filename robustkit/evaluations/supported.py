"""What figures that others support are called, and what their words mean."""

from __future__ import annotations

from .metric import Metric
from .term import Term

PREFIX = "supported_"
WEIGHT = Metric("support_weight(", "λ", parametric=True)
TERMS = (
    Term(
        "supported",
        "The figure of a condition that was evaluated on a random part of the samples, corrected by how a cheaper "
        "condition, evaluated on all, does on the others (prediction-powered inference, Angelopoulos et al. 2023). It "
        "is right on average whatever the cheaper condition is, since the weight of each sample is chosen on others "
        "(cross-fitting, Zrnic and Candès 2024), and as precise as the two go together. Which condition supports is "
        "fixed by a rule, not by the result.",
    ),
    Term(
        "λ",
        "The weight of the supporting condition, from 0 (it says nothing) to 1, chosen for the least variance (PPI++, "
        "Angelopoulos, Duchi and Zrnic 2023).",
        ("lambda",),
    ),
)


def supported(metric: Metric) -> Metric:
    """Return what the supported figure of a metric is called."""
    label, percent = metric.label.removesuffix(" %"), " %" * metric.label.endswith(" %")
    return Metric(
        f"{PREFIX}{metric.name}", f"{label}, supported{percent}", metric.scale, metric.better, share=metric.share
    )


def plain_name(metric: str) -> str:
    """Return the name of the metric that a supported figure is of; empty for other metrics."""
    return metric.removeprefix(PREFIX) if metric.startswith(PREFIX) else ""


def weight_of(name: str) -> tuple[str, str]:
    """Return the metric that a weight is of, and the supporting condition; empty for other numbers."""
    metric, _, by = name.removeprefix(WEIGHT.name).removesuffix(")").partition(" by ")
    return (metric, by) if name.startswith(WEIGHT.name) else ("", "")
