"""Whether attention hides gradients: counts by hand on a masked model, saturated and ordinary ViTs, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import small_audit
import torch
from torch import Tensor

import robustkit
from attacks import ThreatModel
from attacks.model_access import frozen
from robustkit.attention.surrogates import surrogates
from robustkit.common.determinism import SampleRng
from robustkit.common.differences import sign_test
from robustkit.common.finding import Finding
from robustkit.data import open_dataset
from robustkit.data.images import to_pixels
from robustkit.errors import ModelError
from robustkit.evaluations.attacks.ranking import Sign, raised_by
from robustkit.slices.evidence.gradient_masking import AROUND, HIDES, checks_of
from robustkit.slices.evidence.probes import Asker, hidden_by_attention

pytestmark = pytest.mark.usefixtures("one_thread")


def rng(count: int) -> SampleRng:
    return SampleRng.of([f"s{i}" for i in range(count)], seed=0, condition="attention", device="cpu")


def of_attention(figures: Mapping[str, Any]) -> Sign:
    return next(check for check in checks_of(figures) if check.name == "attention")


def linear(x: Tensor) -> Tensor:
    score = (x - 0.5).flatten(1).sum(dim=1)
    return torch.stack([score, -score], dim=1)


def backwards(x: Tensor) -> Tensor:
    """The same answers, and a gradient that leads the other way."""
    logits = linear(x)
    return 2 * logits.detach() - logits


def test_counts_are_exact_on_a_model_whose_gradient_leads_the_other_way() -> None:
    x = torch.full((12, 1, 16, 16), 0.5) + torch.linspace(0.01, 0.09, 12).reshape(-1, 1, 1, 1)
    labels, threat = torch.zeros(12, dtype=torch.int64), ThreatModel("linf", 0.05)
    within = x[:, 0, 0, 0] - 0.5 < 0.05  # a step of eps changes the score's sign
    asker = Asker(backwards, torch.float32, None, threat, 5)
    found = hidden_by_attention(asker, {"around": linear}, x, labels, rng(12))
    assert set(found) == set(AROUND)
    assert found["stand_plain"].all() and torch.equal(found["stand_surrogates"], ~within)
    assert torch.equal(found["only_surrogates"], within) and not found["only_restarts"].any()
    figures = {name: int(column.sum()) for name, column in found.items()} | {"right": 12}
    finding = of_attention(figures).finding
    assert finding and finding.code == "masking/attention"
    assert finding.text.endswith(": attention hides gradients; run autoattack(version=attention)")
    honest = Asker(linear, torch.float32, None, threat, 5)
    found = hidden_by_attention(honest, {"around": linear}, x, labels, rng(12))
    assert torch.equal(found["stand_plain"], ~within) and torch.equal(found["stand_surrogates"], ~within)
    assert honest.backwards <= 20 * 12  # no restarts where surrogates break nothing more


def test_chances_are_those_of_a_coin() -> None:
    assert sign_test(0, 0) == 1 and sign_test(5, 0) < HIDES <= sign_test(4, 0)
    assert (sign_test(5, 0), sign_test(7, 1)) == pytest.approx((1 / 32, 9 / 256))
    alike = {"stand_plain": 5, "stand_surrogates": 5, "only_surrogates": 0, "only_restarts": 0, "right": 9}
    check = of_attention(alike)
    assert not check.finding
    assert check.figure.startswith("5 of 9 correct samples stay correct under PGD, 5 under gradients that")
    for stand, said in ((0, False), (4, True), (5, False)):  # of four, even all broken could be chance
        check = of_attention(alike | {"stand_plain": stand, "stand_surrogates": stand})
        assert check.figure.endswith(": too few remain to decide") == said and not check.finding
    before = of_attention({"right": 9})  # of an earlier release
    assert not before.finding and before.figure == "not measured"


@pytest.mark.parametrize(("scale", "hides"), [(1.0, False), (1e6, True)])
def test_hard_attention_is_flagged_and_an_ordinary_vit_is_not(scale: float, hides: bool) -> None:
    model, dataset = robustkit.load("zoo:shapes-vit-quest"), open_dataset("embedded:shapes")
    with torch.no_grad():
        for block in model.network.blocks:  # type: ignore[union-attr]
            qkv = block.attn.qkv
            qkv.weight[: len(qkv.weight) // 3] *= scale
            qkv.bias[: len(qkv.bias) // 3] *= scale
    samples = dataset.samples[:18]
    pixels = torch.stack([to_pixels(dataset.image(sample), model.identity.preprocessing) for sample in samples]) / 255
    labels = torch.tensor([sample.label for sample in samples])

    def forward(x: Tensor) -> Tensor:
        return model.network(model.normalize(x))  # type: ignore[no-any-return]

    with frozen(model.network):
        right = forward(pixels).argmax(dim=1) == labels
        asker = Asker(forward, torch.float32, None, ThreatModel("linf", 2 / 255), 18)
        found = hidden_by_attention(
            asker, surrogates(model.network, forward), pixels[right], labels[right], rng(int(right.sum()))
        )
    figures = {name: int(column.sum()) for name, column in found.items()} | {"right": int(right.sum())}
    check = of_attention(figures)
    assert bool(check.finding) == hides, check.figure


def test_a_network_without_attention_is_refused_before_any_work(place: Path, tmp_path: Path) -> None:
    said = r"net: autoattack\(eps=1/255,version=attention\) needs a supported .* none; expected another version"
    with pytest.raises(ModelError, match=said):
        small_audit.audit(place, tmp_path / "run", eps="1/255", attacks="autoattack(version=attention)")
    with pytest.raises(
        ModelError, match=r"patch\(size=4,steps=100,loss=kq\) needs a supported attention .* expected loss ce"
    ):
        small_audit.audit(place, tmp_path / "run", attacks="patch(size=4,loss=kq)")
    assert not (tmp_path / "run").exists()


def test_checks_that_were_not_measured_for_one_reason_are_one_finding() -> None:
    why = "not measured: none of 3 samples is predicted right"
    unmeasured, differ = "masking/unmeasured", ("masking/graph", "masking/caller")
    found = [
        Sign(name, why, Finding(unmeasured, f"{name}: {why}; run Square", "limit")) for name in ("slope", "slope afar")
    ]
    found.append(Sign("path", "fine"))
    found += [Sign(code[8:], "differs", Finding(code, f"{code[8:]}: differs")) for code in differ]
    assert raised_by(found) == [
        Finding(unmeasured, f"slope, slope afar: {why}; run Square", "limit"),
        Finding("masking/graph", "graph: differs"),
        Finding("masking/caller", "caller: differs"),
    ]
