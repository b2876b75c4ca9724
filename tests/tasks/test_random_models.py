"""Models with random outputs: how often they are right, on average and in all of several passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional

import robustkit
from robustkit.common.intervals import wilson
from robustkit.evaluations.aggregate import Results
from robustkit.report.run import Run
from robustkit.results.summary_text import summary_sentences
from robustkit.tasks.labelled.subject import PASSES

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
OPTIONS: dict[str, Any] = {"device": "cpu", "setup_check": False, "model": {"pixels": True}, "browse": 0}
AA = "autoattack(steps=2,queries=40)"


class Errs(nn.Module):
    """Knows the class by the first value, and says another one with probability p, whatever an attack does."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.weight = p, nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        truth = (images[:, 0, 0, 0] * 255 / 25).round().long().clamp(0, 9)
        answer = torch.where(torch.rand(len(images)) < self.p, (truth + 1) % 10, truth)
        return functional.one_hot(answer, 10).float() * 5 + (self.weight * images.flatten(1).sum(dim=1))[:, None]


class Smoothed(nn.Module):
    """Two classes, distinguished by a linear function of the image and of noise on it."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma
        self.weight = nn.Parameter(torch.randn(48, generator=torch.Generator().manual_seed(0)) / 10)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        gap = (flat - 0.5 + self.sigma * torch.randn_like(flat)) @ self.weight
        return torch.stack([-gap, gap], dim=1)


def ten_classes(n: int) -> torch.utils.data.TensorDataset:
    labels = torch.arange(n) % 10
    noise = torch.randint(0, 256, (n, 3, 6, 6), generator=torch.Generator().manual_seed(0))
    noise[:, 0, 0, 0] = labels * 25
    return torch.utils.data.TensorDataset(noise / 255, labels)


def figures(run: Run, metric: str) -> dict[str, Any]:
    return {row.condition.partition("(")[0]: row for row in run.summary() if row.metric == metric}


@pytest.mark.parametrize("p", [0.1, 0.03])
def test_a_model_that_errs_with_known_probability(p: float, tmp_path: Path) -> None:
    """Both figures are those of 1 - p and (1 - p) ** k, clean and under attacks; AutoAttack's luck is no figure."""
    run = robustkit.audit(Errs(p), data_dir=ten_classes(100), out=tmp_path / "run", attacks=f"fgsm,pgd,{AA}", **OPTIONS)
    average, in_all, top1 = (figures(run, name) for name in ("right_on_average", "right_in_all", "top1"))
    assert average.keys() == in_all.keys() == {"clean", "fgsm", "pgd"}
    for name in average:
        assert (
            abs(average[name].value - (1 - p)) < 3.5 * math.sqrt(p * (1 - p) / (100 * PASSES))
            and average[name].n == 100
        )
        low, high = wilson(round(in_all[name].value * 100), 100)
        assert low <= (1 - p) ** PASSES <= high and (in_all[name].low, in_all[name].high) == pytest.approx((low, high))
        rows = run.table("Errs", name if name == "clean" else average[name].condition).to_pylist()
        assert average[name].value == pytest.approx(sum(row["passes_right"] for row in rows) / 100 / PASSES)
        assert {row["passes"] for row in rows} == {PASSES} and len({row["passes_right"] for row in rows}) > 2
    assert top1["autoattack"].value < (1 - p) ** PASSES
    codes = {name: {each.code for each in row.findings} for name, row in top1.items()}
    assert all("model/random-outputs" in each for each in codes.values())
    assert {name for name, each in codes.items() if "model/lucky-pass" in each} == {"autoattack"}
    (said,) = (each for each in summary_sentences(Results.of(run, run.summary())) if "attack" in each)
    assert "AutoAttack" not in said and ("PGD" in said or "FGSM" in said)


def test_a_smoothed_linear_model_is_right_as_the_closed_form_says(tmp_path: Path) -> None:
    """Every attack ends at the same corner of the ball, where the probability is a normal distribution's."""
    model, eps, n = Smoothed(0.02), 8 / 255, 60
    images = 0.3 + 0.4 * torch.rand(4000, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    images = (images * 255).round() / 255
    with torch.no_grad():
        gaps = (images.flatten(1) - 0.5) @ model.weight
        spread, away = model.sigma * float(model.weight.norm()), eps * float(model.weight.abs().sum())
        near = ((gaps.abs() - away).abs() < 2 * spread).nonzero().flatten()[:n]
        images, gaps = images[near], gaps[near]
    labels = (gaps > 0).long()
    assert len(labels) == n
    attacks = ("fgsm", "pgd(steps=20)", "spsa(steps=10,directions=256)", "autoattack(version=rand,steps=5)")
    data = torch.utils.data.TensorDataset(images, labels)
    run = robustkit.audit(model, data_dir=data, out=tmp_path / "run", attacks=",".join(attacks), eps="8/255", **OPTIONS)
    average, in_all = figures(run, "right_on_average"), figures(run, "right_in_all")
    assert average.keys() == {"clean", "fgsm", "pgd", "spsa", "autoattack"}
    for name in average:
        right = norm.cdf((gaps.abs().numpy() - (0 if name == "clean" else away)) / spread)
        slack = 0.1 if name == "spsa" else 0.0  # estimated gradients have the wrong sign where the weight is small
        noise = math.sqrt(float((right * (1 - right)).sum()) / PASSES) / n
        if name == "autoattack":  # what stands in every average of 20 passes comes back as it was
            assert average[name].value >= right.mean() - 4 * noise - slack
            continue
        assert abs(average[name].value - right.mean()) < 4 * noise + slack, name
        every = right**PASSES
        assert abs(in_all[name].value - every.mean()) < 4 * math.sqrt(float((every * (1 - every)).sum())) / n + slack


class Flips(nn.Module):
    """Turns a random half of the images over, which leaves an even one as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(108, 10))

    def forward(self, images: Tensor) -> Tensor:
        turned = (torch.rand(len(images)) < 0.5)[:, None, None, None]
        return self.net(torch.where(turned, images.flip(-1), images))  # type: ignore[no-any-return]


def test_randomness_that_an_even_image_hides_is_seen_and_luck_is_no_figure_in_any_family(tmp_path: Path) -> None:
    torch.manual_seed(0)
    attacks = "apgd(steps=3,eot=2),spatial(angles=3,shifts=3),autoattack(version=fast,steps=2,queries=9,second=100%)"
    run = robustkit.audit(Flips(), data_dir=ten_classes(60), out=tmp_path / "run", attacks=attacks, **OPTIONS)
    rows = {(row.condition.partition("(")[0], row.metric): row for row in run.summary()}
    lucky = {name for (name, _), row in rows.items() if any(each.code == "model/lucky-pass" for each in row.findings)}
    assert lucky == {"apgd", "spatial", "autoattack", "two-phase"}
    assert {name for name, metric in rows if metric == "right_on_average"} == {"clean"}
    assert not any(metric.startswith("within") for _, metric in rows)
    assert not any("estimated" in each for each in summary_sentences(Results.of(run, run.summary())))


def test_another_model_has_no_such_columns_and_the_same_run_the_same_bytes(tmp_path: Path) -> None:
    data, still = ten_classes(20), Errs(0.0)
    run = robustkit.audit(still, data_dir=data, out=tmp_path / "still", attacks="fgsm", **OPTIONS)
    assert not {"passes", "passes_right"} & {*run.table("Errs", "clean").column_names}
    assert not any(each.code.startswith("model/") for row in run.summary() for each in row.findings)
    runs = [
        robustkit.audit(Errs(0.3), data_dir=data, out=tmp_path / name, attacks="fgsm,pgd", **OPTIONS) for name in "ab"
    ]
    for checkpoint, condition in runs[0].units():
        tables = [each.table(checkpoint, condition).to_pylist() for each in runs]
        assert str(tables[0]) == str(tables[1])


def test_a_model_that_never_changes_its_mind_is_said_to_be_nothing(tmp_path: Path) -> None:
    """Noise that turns no prediction: both figures are there, and no finding."""
    quiet = Smoothed(0.001)
    images = torch.where(quiet.weight.detach().reshape(3, 4, 4) > 0, 0.9, 0.1).expand(8, 3, 4, 4)
    data = torch.utils.data.TensorDataset(images.clone(), torch.ones(8, dtype=torch.int64))
    run = robustkit.audit(quiet, data_dir=data, out=tmp_path / "run", attacks="apgd(steps=2)", **OPTIONS)
    for name in ("right_on_average", "right_in_all"):
        assert {row.value for row in figures(run, name).values()} == {1.0} and len(figures(run, name)) == 2
    assert not any(each.code.startswith("model/") for row in run.summary() for each in row.findings)
