"""The logit ledger: shares against a slow replica, sums for every formula, and swaps against another implementation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from formula_vits import NAMES, drawn, small_vit
from torch import Tensor, nn

from robustkit.attention import Watcher, capture, set_attention, watching
from robustkit.attention.formulas import find_formula
from robustkit.attention.hooks import Scoring
from robustkit.errors import ModelError
from robustkit.slices.watching.ledger.evaluate import FACTORS, STREAMS, SWAPS, Projected, ledger, logit_shares


def rows(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 2, 3, 5, 4, generator=draw, dtype=torch.float64)
    return q, k


@pytest.mark.parametrize("name", ["standard", "quest", "qnorm"])
def test_shares_are_means_over_the_orders_in_which_three_things_change(name: str) -> None:
    before, after = rows(0), rows(1)
    scoring = Scoring(find_formula(name), None, None, {}, None, 1.0)
    change, parts = logit_shares(Projected(*before, scoring), Projected(*after, scoring))

    def logit(state: dict[str, int], place: tuple[int, ...]) -> float:
        q, k = ((before, after)[state["angle"]][i][place[:2]] for i in (0, 1))
        query, key = q[place[2]], k[place[3]]
        lengths = [(before, after)[state[f]][i][place[:2]][place[2 + i]].norm() for i, f in enumerate(FACTORS[:2])]
        cosine = query @ key / (query.norm() * key.norm())
        factors = {"standard": lengths[0] * lengths[1] / 2, "quest": lengths[0], "qnorm": lengths[1]}
        return float(factors[name] * cosine)

    for place in [(0, 0, 0, 0), (1, 2, 4, 3), (0, 1, 2, 0)]:
        expected = dict.fromkeys(FACTORS, 0.0)
        for order in permutations(FACTORS):
            state = dict.fromkeys(FACTORS, 0)
            for factor in order:
                last = logit(state, place)
                state[factor] = 1
                expected[factor] += (logit(state, place) - last) / 6
        assert parts[(slice(None), *place)].tolist() == pytest.approx([*expected.values()], abs=1e-12)
        assert float(change[place]) == pytest.approx(sum(expected.values()), abs=1e-12)
    assert (parts[1] == 0).all() == (name == "quest") and (parts[0] == 0).all() == (name == "qnorm")


class Kept(Watcher):
    """Keeps the logits of each layer, as they are softmaxed."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        self.logits.append(logits)
        return attention


def images(seed: int) -> Tensor:
    return torch.rand(3, 3, 16, 24, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_under_every_formula_shares_sum_to_what_the_model_s_own_logits_change_by(name: str) -> None:
    model = drawn(set_attention(small_vit(), name)).double()
    clean, shown = images(0).double(), (images(0) + 0.05 * images(1)).double()
    books = ledger(model, clean, shown)
    kept = Kept()
    with torch.inference_mode(), watching(model, kept):
        outputs = model(torch.cat([clean, shown]))
    torch.testing.assert_close(torch.cat([books.clean, books.other]), outputs)
    assert [layer.name for layer in books.layers] == ["blocks.0.attn", "blocks.1.attn"]
    for layer, logits in zip(books.layers, kept.logits, strict=True):
        change = logits[3:] - logits[:3]
        change -= change.mean(dim=-1, keepdim=True)
        torch.testing.assert_close(layer.change.double(), change.square().mean(dim=(2, 3)), rtol=1e-5, atol=0)
        torch.testing.assert_close(layer.parts.sum(dim=-1), layer.change, rtol=1e-5, atol=0)
        blind = {"qknorm", "qknorm-hs", "qknorm-ds"}
        assert bool((layer.parts[..., 1] == 0).all()) == (name in {"quest", "elliptical-quest", *blind})
        assert bool((layer.parts[..., 0] == 0).all()) == (name in {"qnorm", *blind})


class Rescaled(nn.Module):
    """The projection of a ViT's layer, after which queries, keys or both get given norms, or given directions."""

    def __init__(self, plain: nn.Module, swap: str) -> None:
        super().__init__()
        self.plain, self.swap, self.clean = plain, swap, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        made = self.plain(x).unflatten(-1, (3, 2, -1)).clone()  # (B, N, 3, heads, d)
        if not len(self.clean):
            self.clean = made.clone()
            return made.flatten(2)
        for place, which in enumerate(("query_norms", "key_norms")):
            mine, theirs = made[:, :, place], self.clean[:, :, place]
            if self.swap == "angles":
                made[:, :, place] = theirs / theirs.norm(dim=-1, keepdim=True) * mine.norm(dim=-1, keepdim=True)
            elif self.swap in (which, "norms"):
                made[:, :, place] = mine / mine.norm(dim=-1, keepdim=True) * theirs.norm(dim=-1, keepdim=True)
        return made.flatten(2)


@pytest.mark.parametrize("swap", SWAPS)
def test_swaps_are_what_timm_s_own_layers_compute_with_other_projections(swap: str) -> None:
    model: Any = drawn(small_vit()).double()
    clean, shown = images(0).double(), images(1).double()
    swapped = ledger(model, clean, shown).swapped[swap]
    for block in model.blocks:
        block.attn.qkv = Rescaled(block.attn.qkv, swap)
    with torch.inference_mode():
        model(clean)
        replica = model(shown)
    torch.testing.assert_close(swapped, replica, rtol=1e-9, atol=1e-9)
    assert (swapped - model.eval()(shown)).abs().max() < 1e-6  # the layers still hold what is clean


def test_layers_that_normalise_by_themselves_keep_books_in_their_own_type() -> None:
    model = drawn(small_vit(qk_norm=True))
    books = ledger(model, images(0), images(1))
    assert all(layer.change.min() > 0 for layer in books.layers)
    for layer in books.layers:
        torch.testing.assert_close(layer.parts.sum(dim=-1), layer.change, rtol=1e-5, atol=0)


def test_what_a_formula_does_not_see_changes_nothing_and_windows_are_refused() -> None:
    model = drawn(set_attention(small_vit(), "quest"))
    books = ledger(model, images(0), images(1))
    assert torch.equal(books.swapped["key_norms"], books.other)
    assert not torch.allclose(books.swapped["query_norms"], books.other)
    alike = ledger(model, images(0), images(0))
    assert all((layer.change == 0).all() and (layer.parts == 0).all() for layer in alike.layers)
    with torch.inference_mode():
        before = model(images(0))
    with capture(model) as captured:
        ledger(model, images(0), images(1))  # takes over, and gives back
        model(images(0))
        assert len(captured.scores) == 2
    with torch.inference_mode():
        assert torch.equal(model(images(0)), before)
    calls: list[int] = []

    def forward(x: Tensor) -> Tensor:
        calls.append(len(x))
        return model(x)  # type: ignore[no-any-return]

    ledger(model, images(0), images(1), forward)
    assert calls == [3 * STREAMS]
    import timm

    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(1, 1), num_heads=(1, 1))
    with pytest.raises(ModelError, match="whole image"):
        ledger(swin.eval(), torch.rand(1, 3, 56, 56), torch.rand(1, 3, 56, 56))
