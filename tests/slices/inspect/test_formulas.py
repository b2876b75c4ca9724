"""Which attention formula given weights fit."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from ranked import ranked
from scipy import stats
from torch import Tensor, nn
from vits import small_vit

from robustkit.attention import get_attention, set_attention
from robustkit.errors import NothingEvaluated
from robustkit.slices.inspect.search import judge_formulas
from robustkit.slices.listing.families import CLASSES, SIZE, drawn, tiny_networks

pytestmark = pytest.mark.usefixtures("one_thread")


def labelled(model: nn.Module, name: str, n: int) -> tuple[Tensor, Tensor]:
    pixels = torch.randn(n, 3, 16, 24, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        labels = set_attention(copy.deepcopy(model), name)(pixels).argmax(1)
    return pixels, labels


def test_fingerprint_finds_the_formula_that_made_the_labels() -> None:
    model = small_vit(sharp=40).requires_grad_(False)
    with torch.no_grad():
        model.head.weight.mul_(300)
    pixels, labels = labelled(model, "quest", 100)
    result = ranked(set_attention(model, "quest"), pixels, labels)
    assert (result.best, result.declared, result.verdict) == ("quest", "quest", "fits")
    assert result.n == 100 and {row.n for row in result.rows} <= {8, 16, 32, 64, 100}
    assert min(row.n for row in result.rows) < 64  # each ends once it is settled
    assert set(result.left_out) == {"qknorm", "qknorm-hs", "qknorm-ds", "qknorm-ln", "qk-rms", "qana"}
    assert "softcap" not in {row.name for row in result.rows}
    assert result.text.endswith("softcap is not ranked: below its cap, its logits equal those of standard")
    capped = ranked(set_attention(copy.deepcopy(model), "softcap"), pixels[:6], labels[:6])
    assert "softcap is not ranked" not in capped.text and "softcap" in {
        row.name.partition("(")[0] for row in capped.rows
    }
    assert result.rows[0].top1 == 1.0
    assert "quest attention fits best, as declared; the next is" in result.text
    for row in result.rows[1:]:  # the paired interval, by hand
        nll = []
        for name in ("quest", row.name):
            logits = set_attention(copy.deepcopy(model), name)(pixels[: row.n])
            nll.append(nn.functional.cross_entropy(logits, labels[: row.n], reduction="none").double())
        difference = nll[1] - nll[0]
        half = stats.t.ppf(0.975, row.n - 1) * float(difference.std()) / math.sqrt(row.n)
        assert row.difference == pytest.approx(float(difference.mean()), rel=1e-4)
        assert row.ci_low == pytest.approx(float(difference.mean()) - half, rel=1e-3)
        assert row.ci_high == pytest.approx(float(difference.mean()) + half, rel=1e-3)

    wrong = ranked(set_attention(model, "standard"), pixels, labels)
    assert (wrong.best, wrong.declared, wrong.verdict) == ("quest", "standard", "another-fits-better")
    assert "WARNING: quest attention fits these weights better than standard" in wrong.text
    assert get_attention(model) == "standard"
    few = ranked(model, pixels[:6], labels[:6])
    assert (few.verdict, few.n) == ("inconclusive", 6)
    assert "give more images" in few.text
    shuffled = ranked(model, pixels, (labels + 1) % 5)
    assert shuffled.verdict == "inconclusive"
    assert "better than chance" in shuffled.text
    with pytest.raises(NothingEvaluated, match="no image"):
        ranked(model, pixels[:0], labels[:0])


def test_variants_of_a_formula_are_ranked_where_it_leads() -> None:
    model = small_vit(sharp=40).requires_grad_(False)
    with torch.no_grad():
        model.head.weight.mul_(300)
    made_by = "elliptical(scale=mean,average=median)"
    result = ranked(set_attention(model, "elliptical"), *labelled(model, made_by, 100))
    assert (result.best, result.verdict) == (made_by, "another-fits-better") and result.rows[0].top1 == 1.0
    assert len(result.rows) == 10
    assert {row.name for row in result.rows} >= {"elliptical(scale=mean)", "elliptical(average=median)", "quest"}
    others = ranked(set_attention(model, "quest"), *labelled(model, "quest", 40)).rows
    assert all("(" not in row.name for row in others)


def test_options_that_images_do_not_show_leave_the_family_confirmed() -> None:
    right, swing = torch.ones(100).double(), 0.1 * torch.tensor([1.0, -1.0]).repeat(50).double()
    nll = {"elliptical": 0.2, "elliptical(average=median)": 0.201, "elliptical(scale=mean)": 0.5, "standard": 0.6}
    fits = {name: torch.stack((mean + swing * (name != "elliptical"), right), 1) for name, mean in nll.items()}
    for declared, other in (("elliptical", "elliptical(average=median)"), ("elliptical(average=median)", "elliptical")):
        result = judge_formulas(fits, declared, (), guessing=1.6)
        assert result.verdict == "fits" and f"{declared} attention fits best, as declared; the next of" in result.text
        assert "family is standard (NLL +0.400, 95 % interval +0.380 to +0.420)." in result.text
        assert f"its options are not confirmed; as good on these images: {other}." in result.text
    for declared in ("elliptical(scale=mean)", "standard"):
        result = judge_formulas(fits, declared, (), guessing=1.6)
        assert (
            result.verdict == "another-fits-better"
            and "as good on these images: elliptical(average=median)" in result.text
        )
    del fits["standard"]
    assert judge_formulas(fits, "elliptical", (), guessing=1.6).verdict == "inconclusive"  # nothing else was tried


@pytest.mark.parametrize(
    ("n", "lead", "noise", "declared", "verdict"),
    [
        (10, 0.5, 0.1, "standard", "fits"),
        (9, 0.5, 0.1, "standard", "inconclusive"),  # too few, however clear
        (100, 0.5, 4.0, "standard", "inconclusive"),  # the interval of the difference holds 0
        (100, 0.5, 0.1, "quest", "another-fits-better"),
        (100, 0.5, 4.0, "quest", "inconclusive"),
        (100, 9.0, 0.1, "standard", "fits"),
    ],
)
def test_verdict_needs_a_difference_beyond_chance(
    n: int, lead: float, noise: float, declared: str, verdict: str
) -> None:
    swing = noise * torch.tensor([1.0, -1.0]).repeat(n)[:n].double()
    right = torch.ones(n).double()
    fits = {"quest": torch.stack((lead + 0.2 + swing, right), 1), "standard": torch.stack((0.2 * right, right), 1)}
    result = judge_formulas(fits, declared, ("qknorm",), guessing=1.6)
    assert (result.verdict, result.best, result.n) == (verdict, "standard", n)
    assert judge_formulas(fits, declared, (), guessing=0.1).verdict == "inconclusive"
    words = {"fits": "as assumed", "another-fits-better": "which is assumed"}.get(verdict, "")
    assert words in judge_formulas(fits, declared, ("qknorm",), 1.6, source="assumed").text


def test_fingerprint_keeps_the_scales_of_the_declared_formula() -> None:
    model = set_attention(small_vit(sharp=4), "qknorm-hs").requires_grad_(False)
    for block in model.blocks:
        nn.init.constant_(block.attn.qk_scale, 9.0)
    pixels = torch.rand(20, 3, 16, 24)
    labels = model(pixels).argmax(1)
    result = ranked(model, pixels, labels)
    own = next(row for row in result.rows if row.name == "qknorm-hs")
    assert own.nll == pytest.approx(float(nn.functional.cross_entropy(model(pixels), labels)), rel=1e-6)
    at_start = set_attention(set_attention(copy.deepcopy(model), "standard"), "qknorm-hs")(pixels)
    assert own.nll != pytest.approx(float(nn.functional.cross_entropy(at_start, labels)), rel=1e-4)
    assert torch.equal(model.blocks[0].attn.qk_scale, torch.full((2,), 9.0))


@pytest.mark.parametrize(
    "family", ["timm ViT-RoPE", "timm PE", "timm CaiT", "transformers DINOv3", "transformers SigLIP"]
)
def test_the_fingerprint_finds_the_formula_of_the_labels(family: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = drawn(tiny_networks()[family]()).double().requires_grad_(False)
    pixels = torch.randn(120, 3, *SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    last = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == CLASSES][-1]
    for tensor in last.parameters():
        tensor *= 40
    labels = set_attention(model, "quest")(pixels).argmax(dim=1)
    result = ranked(set_attention(model.float(), "standard"), pixels.float(), labels)
    assert result.best == "quest" and get_attention(model) == "standard"
