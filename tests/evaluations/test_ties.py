"""Of equal logits the first class is the prediction, in all that looks at predictions, and many ties are flagged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import attacks
import robustkit
from attacks.model_access import is_missed, likeliest
from cam.explainer import chosen
from robustkit.data.layouts import Sample
from robustkit.evaluations.setup_findings import ties
from robustkit.evaluations.subject import Batch, Settings
from robustkit.protocol.card import load_card
from robustkit.tasks.labelled.subject import ClassifierSubject

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")


class Coarse(nn.Module):
    """Logits of few values, so that most images tie; 40 classes of images 4 x 4."""

    def __init__(self, steps: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head, self.steps = nn.Linear(48, 40), steps

    def forward(self, images: Tensor) -> Tensor:
        return (self.head(images.flatten(1)) * self.steps).round() / self.steps


def images(count: int = 60) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(256, (count, 3, 4, 4)) / 255


def ranks(logits: Tensor) -> list[list[int]]:
    """Return the classes of each sample, behind those with a larger logit and equal ones before them."""
    return [sorted(range(len(row)), key=lambda k: (-row[k], k)) for row in logits.tolist()]


@pytest.mark.parametrize("classes", [2, 5, 40, 3000])
def test_the_likeliest_are_those_of_a_slow_sort(classes: int) -> None:
    logits = torch.randint(4, (30, classes), generator=torch.Generator().manual_seed(0)).float()
    logits[0, -1], logits[1] = -0.0, 0.0
    for count in (1, 5, classes):
        assert likeliest(logits, count).tolist() == [row[:count] for row in ranks(logits)]
    assert likeliest(logits, 1)[:, 0].tolist() == logits.argmax(dim=1).tolist() == chosen(logits, None)[:, 0].tolist()
    assert logits.double().T.contiguous().T.argmax(dim=1).tolist() == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("door", ["memory", "predictions"])
def test_predictions_and_the_five_likeliest_are_those_of_a_slow_sort(door: str, tmp_path: Path) -> None:
    shown, network = images(), Coarse()
    with torch.no_grad():
        logits = network(shown)
    labels, ordered = torch.arange(60) * 7 % 40, ranks(logits)
    if door == "memory":
        data: Any = (shown, labels)
        run = robustkit.audit(network, data, pixels=True, attacks="none", out=tmp_path / "run", setup_check=False)
    else:
        columns = {f"prob_{k}": logits.softmax(1)[:, k].numpy() for k in range(40)}
        table = pa.table({"sample_id": [f"{i:05}" for i in range(60)], "label": labels.numpy(), **columns})
        pa.parquet.write_table(table, tmp_path / "p.parquet")
        run = robustkit.audit(f"predictions:{tmp_path / 'p.parquet'}", out=tmp_path / "run")
    read = run.table(run.manifest.names[0], "clean").to_pydict()
    assert read["prediction"] == [row[0] for row in ordered] and len({*read["prediction"]}) > 4
    assert read["top5"] == [label in row[:5] for label, row in zip(labels.tolist(), ordered, strict=True)]
    tied = [int((row == row.max()).sum()) > 1 for row in logits]
    assert read["tied"] == tied and 15 < sum(tied) <= 60
    words = (
        f"{sum(tied)} of 60 samples ({sum(tied) / 60:.1%}) have several largest logits; the first of these classes is"
    )
    (found,) = (each for each in run.summary()[0].findings if each.code == "model/tied-outputs")
    assert found.text.startswith(words)


def test_classes_that_compete_and_samples_without_labels_have_the_same_rule(tmp_path: Path) -> None:
    """Probabilities of the second row round to equal ones; -inf leaves a class out, and no number ties."""
    z = torch.zeros(5, 6)
    z[0, [1, 4]], z[1, 3], z[2, [2, 5]], z[3] = 2.0, 1e-9, torch.inf, torch.nan
    z[4] = torch.tensor([-torch.inf, -torch.inf, 1, 2, 2, -torch.inf])
    classifier = robustkit.load(Coarse(), pixels=True, img_size=4)
    for valid, expected in ((None, [1, 3, -1, -1, 3]), ((1, 3, 4), [1, 3, -1, -1, 3])):
        subject = ClassifierSubject(classifier, load_card("standard"), Settings(), valid)
        logits = z if valid is None else torch.cat([z[:2], torch.full((2, 6), torch.nan), z[4:]])
        logits = logits if valid is None else logits[:, list(valid)]
        for label in (3, -1):
            samples = [Sample(f"{i}", label) for i in range(5)]
            columns = subject.score(logits, Batch(torch.zeros(5), samples))
            assert columns["prediction"] == expected
            assert columns["tied"] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("n", "tied", "flagged"),
    [(300, 3, True), (300, 2, False), (301, 3, False), (100, 1, False), (100, 2, True), (2, 2, True)],
)
def test_ties_are_flagged_from_one_in_a_hundred_and_two_on(n: int, tied: int, flagged: bool) -> None:
    found = ties(pa.table({"tied": [True] * tied + [False] * (n - tied)}))
    assert [each.code for each in found] == ["model/tied-outputs"] * flagged
    assert all(f"{tied} of {n} samples ({tied / n:.1%})" in each.text for each in found)
    assert ties(pa.table({"tied": pa.nulls(5, pa.bool_())})) == ties(pa.table({"label": [1]})) == []


@pytest.mark.parametrize("attack", ["fgsm", "pgd(steps=2)", "square(queries=4)", "spsa(steps=1)"])
def test_an_attack_has_won_where_an_earlier_class_ties(attack: str, tmp_path: Path) -> None:
    """The network ties its two classes everywhere: images of the first stand, those of the second fall at once."""

    class Alike(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            value = images.mean(dim=(1, 2, 3))
            return torch.stack([value, value, value - 9], dim=1)

    labels = torch.arange(12) % 2
    run = robustkit.audit(
        Alike(),
        (images(12), labels),
        pixels=True,
        attacks=attack,
        out=tmp_path / "run",
        setup_check=False,
        device="cpu",
    )
    for condition in run.manifest.conditions:
        assert run.table("Alike", condition)["correct"].to_pylist() == [label == 0 for label in labels.tolist()]
    logits = torch.tensor([[1.0, 1.0]] * 2)
    assert is_missed(logits, torch.tensor([0, 1])).tolist() == [False, True]
    assert attacks.margin(logits, torch.tensor([0, 1])).tolist() == [0, 0]


def test_targets_are_in_the_order_of_argmax() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]])
    seen: list[Tensor] = []

    class Known(attacks.APGD):
        def _begin(self, front: Any, rows: Tensor, *more: Any) -> Any:
            seen.append(front.targets(4))
            return super()._begin(front, rows, *more)

    threat = attacks.ThreatModel(norm="linf", eps=0.1)
    base = torch.zeros(1, 3, 2, 2) + 0.5
    Known(threat, steps=1, loss="dlr-targeted", targets=3)(
        lambda x: logits.expand(len(x), 5) + 0 * x.sum(), base, torch.tensor([1])
    )
    assert seen[0].tolist() == [[3, 0, 2, 4]]


def test_parity_and_flips_of_a_network_with_itself_find_no_difference(tmp_path: Path) -> None:
    """Also where one has its classes' logits from another operation."""

    class Doubled(Coarse):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    networks = {"one": Coarse(), "two": Doubled()}
    options: dict[str, Any] = {"pixels": True, "parity": True, "setup_check": False, "attacks": "none"}
    run = robustkit.audit(networks, (images(), torch.arange(60) % 40), out=tmp_path / "run", **options)
    values = {row.metric: row.value for row in run.summary() if row.checkpoint == "two"}
    assert values["parity"] == 1 and values["top1"] < 1


@pytest.mark.parametrize("last", [False, True])
def test_pixels_have_the_same_rule(last: bool, tmp_path: Path) -> None:
    """Also in a tensor whose classes lie next to each other in memory."""

    class Scene(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Conv2d(3, 7, 1)

        def forward(self, images: Tensor) -> Tensor:
            logits = (self.layer(images) * 4).round()
            return logits.contiguous(memory_format=torch.channels_last) if last else logits

    torch.manual_seed(2)
    network, shown = Scene(), torch.randint(256, (3, 3, 16, 16)) / 255
    with torch.no_grad():
        logits = network(shown)
    first = torch.from_numpy(np.argmax(logits.contiguous().numpy(), axis=1))
    assert int(((logits == logits.amax(1, keepdim=True)).sum(1) > 1).sum()) > 50
    run = robustkit.segment(
        network, (shown, first), pixels=True, attacks="none", out=tmp_path / "run", setup_check=False
    )
    (value,) = (row.value for row in run.summary() if (row.condition, row.metric) == ("clean", "pixel_accuracy"))
    assert value == 1
