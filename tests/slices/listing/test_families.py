"""Formulas, maps and the ledger in every family: slow replicas of the layers, the libraries' own numbers, refusals."""

from __future__ import annotations

from typing import Any

import family_oracles as slow
import pytest
import torch
from cam_models import close
from cam_oracles import upsampled_slowly
from timm.layers import AttentionRope, apply_rot_embed_cat  # type: ignore[attr-defined, unused-ignore]
from timm.models.eva import EvaAttention
from torch import Tensor, nn

import cam
from robustkit.attention import capture, get_attention, set_attention
from robustkit.errors import ModelError
from robustkit.slices.listing.families import SIZE, drawn, supported, tiny_networks
from robustkit.slices.watching.ledger.evaluate import ledger

# What a family's head reads: the class token, the mean of the patches, or an attention pool; or why there is no map.
READS = {
    "timm ViT": "class",
    "timm ViT with registers": "patches",
    "timm DeiT": "class",
    "timm DeiT-3": "class",
    "timm BEiT": "patches",
    "timm SigLIP": "pool",
    "timm ViT with a class token and a pool": "pool",
    "timm EVA-02": "patches",
    "timm EVA-02, qkv in one": "patches",
    "timm DINOv3": "patches",
    "timm PE": "pool",
    "timm ViT-RoPE": "class",
    "timm ViT-RoPE, mixed": "class",
    "timm Sapiens 2": "class",
    "timm CaiT": "refused: the class token of Cait asks the patches in blocks of its own",
    "timm XCiT": "refused: with patch_embed and blocks, or of transformers; Xcit is none",
    "transformers ViT": "class",
    "transformers DeiT": "class",
    "transformers BEiT": "patches",
    "transformers DINOv2": "class",
    "transformers DINOv2 with registers": "class",
    "transformers DINOv3": "class",
    "transformers CLIP": "patches",
    "transformers CLIP, its class token": "class",
    "transformers SigLIP": "patches",
    "transformers SigLIP, its probe": "pool",
    "transformers I-JEPA": "patches",
    "transformers ViT-MSN": "class",
    "transformers MAE": "refused: shuffles its patches, so its tokens have no place in the image",
    "transformers Data2Vec": "refused: of timm's kind, with patch_embed and blocks, or of transformers; Logits is none",
}
OTHERWISE = {  # families without formulas
    "timm XCiT": r"of class XCA \(between channels, so no token attends to another\)",
    "transformers Data2Vec": "of class Data2VecVisionAttention, Data2VecVisionSdpaSelfAttention",
}
FORMULAS = ("standard", "quest", "elliptical-quest", "qknorm-hs")
METHODS = {name: cam.method(name) for name in ("agcam", "agcam-full", "rollout", "chefer", "legrad")}
SHUFFLES = "transformers MAE"  # by drawn numbers, which two passes do not share
pytestmark = pytest.mark.usefixtures("one_thread")


def made(family: str) -> Any:
    torch.manual_seed(0)
    return drawn(tiny_networks()[family]()).double()


def images(count: int = 1) -> Tensor:
    return torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def swapped(model: Any, formula: str) -> Any:
    model = set_attention(model, formula)
    for name, parameter in model.named_parameters():
        if name.endswith("qk_scale"):  # not at its initial value
            parameter.data = parameter.data * torch.linspace(0.6, 1.7, parameter.numel()).view_as(parameter)
    return model


def test_the_table_has_every_family() -> None:
    assert list(READS) == list(tiny_networks())


@pytest.mark.parametrize("family", [family for family in READS if family not in OTHERWISE])
def test_formulas_and_books_are_those_of_the_layers_own_queries_and_keys(family: str) -> None:
    model, pixels = made(family), images()
    kinds, expected, tensors = [type(part) for part in model.modules()], None, list(model.state_dict())
    for formula in FORMULAS:
        own = swapped(model, formula)  # and set back in the end
        assert get_attention(own) == formula
        torch.manual_seed(1)
        fused = own(pixels)
        tape = slow.Tape(formula)
        torch.manual_seed(1)
        replica = slow.replica(own, tape)(pixels)
        torch.manual_seed(1)
        with capture(own) as captured:
            logits = own(pixels)
        for found in (fused, logits):
            torch.testing.assert_close(found, replica, rtol=1e-6, atol=1e-7)
        for found, wanted in ((captured.scores, tape.scores), (captured.attention, tape.attention)):
            assert len(found) == len(wanted) >= 2
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        expected = fused if expected is None else expected
        assert formula == "standard" or (fused - expected).abs().max() > 1e-5
        books = ledger(own, pixels, pixels + 0.05)
        assert [layer.name for layer in books.layers] == captured.names
        for layer in books.layers:
            torch.testing.assert_close(layer.parts.sum(dim=-1), layer.change, rtol=1e-4, atol=1e-9)
        set_attention(own, "standard")
        assert [type(part) for part in own.modules()] == kinds and list(own.state_dict()) == tensors
        torch.manual_seed(1)
        assert torch.equal(own(pixels), expected)


@pytest.mark.parametrize("family", OTHERWISE)
def test_other_attention_is_refused(family: str) -> None:
    model = made(family)
    for call in (lambda: set_attention(model, "quest"), lambda: ledger(model, images(), images())):
        with pytest.raises(ModelError, match=OTHERWISE[family]) as caught:
            call()
        assert "\n" not in str(caught.value)


def blocks_of(model: Any) -> list[str]:
    """The paths of a model's blocks."""
    rows = ("blocks", "layers", "layer")
    paths = [path for path, _ in model.named_modules() if path.split(".")[-1].isdigit()]
    return [path for path in paths if path.split(".")[-2] in rows and path.count(".") < 5 and "text" not in path]


@pytest.mark.parametrize("family", [family for family, reads in READS.items() if not reads.startswith("refused")])
def test_maps_are_of_what_the_head_reads(family: str) -> None:
    model, pixels, target, reads = swapped(made(family), "quest"), images(), 1, READS[family]
    expected: dict[str, Tensor] = {}
    for method, cut in (("agcam", True), ("agcam-full", False)):
        tape = slow.Tape("quest", cut)
        logit = slow.replica(model, tape)(pixels)[0, target]
        expected[method] = slow.agcam(tape, logit, reads)
    expected["rollout"], expected["chefer"] = slow.rollout(tape, reads), slow.chefer(tape, logit, reads)
    expected["legrad"] = slow.legrad(model, blocks_of(model), pixels[0], target, "quest")
    for method, kind in METHODS.items():
        values = expected[method]
        found, spread = kind(model)(pixels, target)[0], values.max() - values.min()
        assert spread > 0.01 * values.max(), method
        close(found, upsampled_slowly(values.tolist(), (3, 3), SIZE), float(1e-6 * values.max() / spread))
    if reads != "pool":
        assert (expected["agcam"] - expected["agcam-full"]).abs().max() > 1e-3 * expected["agcam"].max()


@pytest.mark.parametrize("family", [family for family, reads in READS.items() if reads.startswith("refused")])
def test_families_without_maps_say_why(family: str) -> None:
    model = made(family)
    for kind in METHODS.values():
        with pytest.raises(ValueError, match=READS[family].removeprefix("refused: ")) as caught:
            kind(model)(images())
        assert "\n" not in str(caught.value)


def test_supported_tries_them_all() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rows = supported(METHODS)
    assert torch.equal(torch.get_rng_state(), before)
    assert [row.family for row in rows] == list(READS)
    for row in rows:
        refused = READS[row.family].startswith("refused")
        assert row.maps == (() if refused else tuple(METHODS))
        assert row.formulas == (row.family not in OTHERWISE)
        assert (row.reason == "") == (not refused and row.formulas)


def test_the_table_of_the_docs_is_what_is_tried() -> None:
    from scripts.pages.families import PAGE, page

    assert page() == PAGE.read_text("utf-8")


class Row(nn.Module):
    """Two layers in a row, which are given the same rotation."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.half = options.get("rotate_half", False)
        made = (kind(32, 4, norm_layer=nn.LayerNorm, num_prefix_tokens=1, **options) for _ in range(2))
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": layer}) for layer in made)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.linspace(-2, 2, 4 * 4, dtype=x.dtype).view(4, 4)
        angles = angles.repeat(1, 2) if self.half else angles.repeat_interleave(2, dim=1)
        for block in self.blocks:
            x = x + block["attn"](x, rope=torch.cat([angles.sin(), angles.cos()], dim=-1))  # type: ignore[index]
        return x


@pytest.mark.parametrize("formula", [*FORMULAS, "qknorm-ln"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: Row(EvaAttention, qk_norm=True, rotate_half=True, gated=True),
        lambda: Row(EvaAttention, qkv_fused=False, scale_norm=True),
        lambda: Row(EvaAttention, qkv_bias_separate=True, scale_norm=False),
        lambda: Row(AttentionRope, qkv_fused=False, num_kv_heads=2, gated=True, scale_norm=True),
        lambda: Row(AttentionRope, qk_norm=True, rotate_half=True),
    ],
)
def test_rotary_layers_of_every_make(layer: Any, formula: str) -> None:
    torch.manual_seed(0)
    model: Any = drawn(layer()).double()
    tokens, own = torch.randn(2, 5, 32, dtype=torch.float64), model.blocks[0]["attn"].q_norm
    assert get_attention(model) == "standard"
    plain = model(tokens)
    if formula == "qknorm-ln" and isinstance(own, nn.LayerNorm):
        with pytest.raises(ModelError, match="has norms of its own, which it applies before it rotates"):
            set_attention(model, formula)
        return
    swapped(model, formula)
    tape = slow.Tape(formula)
    expected = slow.replica(model, tape)(tokens)
    torch.testing.assert_close(model(tokens), expected)
    with capture(model) as captured:
        torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(captured.scores, tape.scores)
    assert formula == "standard" or (expected - plain).abs().max() > 1e-3
    assert torch.equal(set_attention(model, "standard")(tokens), plain)
    assert isinstance(model.blocks[0]["attn"].q_norm, type(own))


def test_a_rotation_by_hand() -> None:
    x = torch.tensor([[[[9.0, 9.0], [3.0, 4.0]]]])
    quarter = torch.tensor([[1.0, 1.0, 0.0, 0.0]])  # sine, cosine: by 90 degrees
    assert slow.turned(x, quarter, 1, half=False).tolist() == [[[[9.0, 9.0], [-4.0, 3.0]]]]
    torch.testing.assert_close(apply_rot_embed_cat(x[:, :, 1:], quarter), torch.tensor([[[[-4.0, 3.0]]]]))
