"""Every formula against its slow replica, the swap into timm's ViTs, and what capture sees."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from attack_oracles import slow_scores, slow_vit
from places import SHARED
from timm.layers import RmsNorm, RmsNormFp32
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from vits import small_vit

from robustkit.attention import FORMULAS, attention_kind, capture, get_attention, scores, set_attention
from robustkit.attention.formulas import find_formula
from robustkit.attention.layers import head_size
from robustkit.errors import ModelError

NAMES = tuple(FORMULAS)
WITH_OPTIONS = (
    "qk-l2(temperature=7.5)",
    "qk-l2(temperature=learned)",
    "qk-layer-norm(temperature=learned)",
    "qana(hidden=2,activation=tanh,gate=true)",
    "qana(hidden=3,activation=silu,rope=true)",
    "softcap(cap=1.5)",
    "quest(eps=2.5)",
    "qk-rms(on=keys,eps=0.1)",
    "qk-rms(scale=heads)",
    "qk-rms(scale=none)",
    "qknorm-ln(affine=scale)",
    "qknorm-ln(affine=none)",
    "elliptical(scale=mean,average=median)",
    "elliptical(scale=none,delta=0.5)",
    "elliptical-quest(scale=mean)",
    "elliptical-quest(average=median)",
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def random_parameters(name: str, heads: int, dim: int) -> dict[str, Tensor]:
    parameters = find_formula(name).initial(heads, dim)
    for which, norm in find_formula(name).norms.items():
        parameters |= {f"{which}.{part}": value for part, value in norm(dim).named_parameters()}
    if find_formula(name).network:
        parameters["network"] = torch.zeros(2, heads, 4, find_formula(name).network.rows(dim))
    return {key: torch.rand(value.shape) + 0.5 for key, value in parameters.items()}


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", NAMES + WITH_OPTIONS)
def test_scores_equal_the_replica(name: str, first: bool) -> None:
    torch.manual_seed(3)
    q, k, v, before = torch.randn(4, 2, 3, 4, 6).unbind(0)
    k[0, 0, 1] = 0  # a key and a query without direction
    q[0, 1, 2] = 0
    before[1, 2] = v[1, 2]  # a head whose values did not change
    parameters = random_parameters(name, 3, 6)
    previous = None if first else before
    expected = slow_scores(name, q, k, v, previous, parameters)
    found = scores(name, q.double(), k.double(), v.double(), None if first else before.double(), parameters=parameters)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert name.startswith(("qknorm-ln", "qana")) or found[0, 0, :, 1].abs().max() == 0


def test_metric_by_hand_and_without_gradient() -> None:
    v = torch.tensor([[[[1.0, 0.0], [3.0, 1.0]]]], requires_grad=True)
    q = torch.tensor([[[[1.0, 1.0], [2.0, 0.0]]]])
    k = torch.tensor([[[[0.0, 4.0], [3.0, 0.0]]]])
    # mean |change|: (1 + 3) / 2 = 2 and (0 + 1) / 2 = 0.5, so M = diag(1, 0.25)
    found = scores("elliptical-quest", q, k, v, torch.zeros_like(v))
    assert found.tolist() == [[[[0.25, 1.0], [0.0, 2.0]]]]
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_zero_rows_stay_finite_in_half_precision(dtype: torch.dtype) -> None:
    zero = torch.zeros(1, 1, 2, 4, dtype=dtype)
    for name in ("quest", "qnorm", "elliptical-quest", "qknorm-hs"):
        found = scores(name, zero, zero, zero, zero, parameters={"qk_scale": torch.ones(1)})
        assert found.dtype == dtype
        assert found.abs().max() == 0


# --- in timm's models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES + WITH_OPTIONS)
def test_vit_equals_the_replica_fused_and_captured(name: str, images: Tensor) -> None:
    model = small_vit(sharp=3, reg_tokens=2, class_token=True).double()
    model = set_attention(model, name)
    for key, parameter in model.named_parameters():
        if key.endswith(("scale", "temperature", "alpha")) or "_norm" in key or "query_network" in key:
            nn.init.uniform_(parameter, 0.5, 2.0)
    model.requires_grad_(False)
    images = images[:2].double()
    for layer in (block.attn for block in model.blocks):
        layer.fused_attn = True
    fused = model(images)
    with capture(model) as captured:
        logits = model(images)
        gradients = torch.autograd.grad(logits[:, 3].sum(), captured.attention)
    for parameter in model.parameters():  # so that the replica has a graph
        parameter.requires_grad_(True)
    expected, slow_s, slow_a = slow_vit(model, images, name)
    expected_gradients = torch.autograd.grad(expected[:, 3].sum(), slow_a)
    assert captured.names == [f"blocks.{i}.attn" for i in range(3)]
    for found, wanted in ((fused, expected), (logits, expected)):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    for found_list, wanted_list in (
        (captured.scores, slow_s),
        (captured.attention, slow_a),
        (gradients, expected_gradients),
    ):
        assert len(found_list) == 3
        for found, wanted in zip(found_list, wanted_list, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)
    if name not in ("standard", "softcap"):  # no logit comes near a cap of 50
        assert (fused - set_attention(model, "standard")(images)).abs().max() > 1e-4


def test_standard_is_timms_own_code_bit_for_bit(images: Tensor) -> None:
    model = small_vit()
    expected, weights = model(images), copy.deepcopy(model.state_dict())
    for name in ("qknorm", "qknorm-ln", "elliptical", "standard"):
        set_attention(model, name)
    assert all(type(block.attn) is Attention for block in model.blocks)
    assert torch.equal(model(images), expected)
    assert list(model.state_dict()) == list(weights)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in weights.items())


def test_timms_qk_norm_is_qknorm_ln_and_its_layer_norms_survive(images: Tensor) -> None:
    model = small_vit(qk_norm=True)
    for block in model.blocks:
        nn.init.normal_(block.attn.q_norm.weight)
    expected, keys = model(images), list(model.state_dict())
    assert get_attention(model) == "qknorm-ln"
    plain = set_attention(model, "standard")(images)
    torch.testing.assert_close(plain, slow_vit(model, images, "standard")[0], rtol=1e-4, atol=1e-5)
    assert get_attention(model) == "standard"
    assert list(model.state_dict()) == keys
    assert torch.equal(set_attention(model, "qknorm-ln")(images), expected)


class LargeRMSNorm(nn.Module):
    """RMSNorm as language models have it, in float32; offset: what Gemma adds to weights."""

    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.variance_epsilon, self.offset = nn.Parameter(torch.ones(size)), 1e-6, offset

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.float().pow(2).mean(-1, keepdim=True)
        return (self.offset + self.weight) * (x.float() / (mean_square + self.variance_epsilon).sqrt()).to(x.dtype)


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        (RmsNorm, "qk-rms"),
        (RmsNormFp32, "qk-rms"),
        (partial(RmsNorm, eps=1e-2, affine=False), "qk-rms(scale=none,eps=0.01)"),
        (nn.RMSNorm, "qk-rms(eps=1.1920928955078125e-07)"),  # torch's own, of float32
        (LargeRMSNorm, "qk-rms"),
        (partial(nn.LayerNorm, eps=1e-6, bias=False), "qknorm-ln(affine=scale)"),
        (partial(nn.LayerNorm, eps=1e-6, elementwise_affine=False), "qknorm-ln(affine=none)"),
    ],
)
@pytest.mark.parametrize("on", ["both", "keys"])
def test_norms_that_a_model_came_with_name_its_formula(
    norm: Callable[..., nn.Module], name: str, on: str, images: Tensor
) -> None:
    """Its own code is the oracle of the replica and of the formula put into a plain model with its tensors."""
    model = small_vit(sharp=3)
    for block in model.blocks:
        for which in ("q_norm", "k_norm")[on == "keys" :]:
            setattr(block.attn, which, norm(16))
            for parameter in getattr(block.attn, which).parameters():
                nn.init.normal_(parameter)
    if on == "keys" and name.startswith("qknorm-ln"):
        with pytest.raises(ModelError, match="normalised by Identity and LayerNorm, which is not one of the formulas"):
            get_attention(model)
        return
    if on == "keys":
        name = find_formula(f"{name.rstrip(')')}{',' if '(' in name else '('}on=keys)").name
    expected, weights = model(images), copy.deepcopy(model.state_dict())
    assert get_attention(model) == name
    assert all(type(block.attn) is Attention for block in set_attention(model, name).blocks)
    torch.testing.assert_close(slow_vit(model, images, name)[0], expected, rtol=1e-4, atol=1e-5)
    assert (set_attention(model, "standard")(images) - expected).abs().max() > 1e-3
    assert torch.equal(set_attention(model, name)(images), expected) and list(model.state_dict()) == list(weights)
    plain = set_attention(set_attention(small_vit(), "qknorm-ln"), name)
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain(images), expected)
    if "affine" not in name and "none" not in name:
        other = "qk-rms(eps=0.5)" if on == "both" else "qk-rms"
        with pytest.raises(ModelError, match="has other norms than the layer came with; expected qk-rms"):
            set_attention(model, other)


@pytest.mark.parametrize(
    "make", [lambda: LargeRMSNorm(16, offset=1), lambda: LargeRMSNorm(32), lambda: nn.BatchNorm1d(16)]
)
def test_norms_of_other_kinds_are_refused_by_name(make: Callable[[], nn.Module], images: Tensor) -> None:
    """Gemma's RMSNorm adds 1 to its weights, and others are over all heads: a class name would not show it."""
    model = small_vit()
    for block in model.blocks:
        block.attn.q_norm, block.attn.k_norm = make(), make()
    kind = type(model.blocks[0].attn.q_norm).__name__
    with pytest.raises(ModelError, match=f"queries and keys are normalised by {kind}, which is not one of"):
        get_attention(model)
    assert attention_kind(model) == "other"
    plain = set_attention(model, "standard")(images)  # which does without it
    torch.testing.assert_close(plain, small_vit()(images))


def test_setting_a_formula_again_keeps_trained_scales() -> None:
    model = set_attention(small_vit(), "qknorm-hs")
    assert torch.equal(model.blocks[1].attn.qk_scale, torch.full((2,), 4.0))  # sqrt(d) for d = 16
    nn.init.normal_(model.blocks[1].attn.qk_scale)
    trained = model.blocks[1].attn.qk_scale.clone()
    assert torch.equal(set_attention(model, "qknorm-hs").blocks[1].attn.qk_scale, trained)
    assert "blocks.1.attn.qk_scale" in model.state_dict()
    other = set_attention(small_vit(), "qknorm-hs")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.blocks[1].attn.qk_scale, trained)
    frozen = set_attention(small_vit().requires_grad_(False), "qknorm")
    assert not frozen.blocks[0].attn.q_scale.requires_grad


@pytest.mark.parametrize("name", ["qknorm-ds", "elliptical-quest"])
def test_training_has_dropout_and_gradients(name: str, images: Tensor) -> None:
    model = set_attention(small_vit(attn_drop_rate=0.5), name)
    assert torch.equal(model(images), model(images))
    model.train()
    torch.manual_seed(0)
    first, second = model(images), model(images)
    assert not torch.equal(first, second)
    with capture(model) as captured:
        dropped = model(images)
        assert not torch.equal(dropped, model(images))
    torch.testing.assert_close(captured.attention[0].sum(-1), torch.ones(3, 2, 7))  # kept before dropout
    first.sum().backward()
    without = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_masks_and_causal_attention(images: Tensor) -> None:
    model = set_attention(small_vit(), "quest")
    layer, tokens = model.blocks[0].attn, torch.randn(2, 5, 32)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    causal = layer(tokens, is_causal=True)
    torch.testing.assert_close(layer(tokens, attn_mask=mask), causal)
    assert not torch.allclose(layer(tokens), causal)
    with capture(model):
        torch.testing.assert_close(layer(tokens, is_causal=True), causal)
        torch.testing.assert_close(layer(tokens, attn_mask=mask), causal)
        torch.testing.assert_close(layer(tokens, attn_mask=torch.zeros(5, 5).masked_fill(~mask, -1e9)), causal)


# --- values from block to block --------------------------------------------------------------------------------------


def test_elliptical_survives_exceptions_copies_and_partial_forwards(images: Tensor) -> None:
    model = set_attention(small_vit(sharp=3), "elliptical")
    expected = model(images)
    assert (expected - set_attention(copy.deepcopy(model), "standard")(images)).abs().max() > 1e-4

    def broken(*_: object) -> None:
        raise RuntimeError("stop")

    handle = model.blocks[2].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="stop"):
        model(images)
    handle.remove()
    copied = copy.deepcopy(model)  # a waiting tensor of the graph must not be in the way
    pickled = pickle.loads(pickle.dumps(model))
    for other in (model, copied, pickled):
        assert torch.equal(other(images), expected)
        assert other.blocks[0].attn.handover.waiting == {}  # the last block leaves nothing behind
        assert other.blocks[0].attn.handover is other.blocks[2].attn.handover
    set_attention(copied, "standard")
    assert torch.equal(model(images), expected)
    _, parts = model.forward_intermediates(images, indices=[0, 1], stop_early=True)
    assert len(parts) == 2
    assert torch.equal(model(images), expected)
    twice = nn.ModuleList([model, pickled])
    assert torch.equal(twice[1](images), expected)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(images), expected)


def test_elliptical_block_out_of_order_is_refused(images: Tensor) -> None:
    model = set_attention(small_vit(), "elliptical-quest")
    tokens = torch.randn(1, 7, 32)
    with pytest.raises(
        ModelError, match="block 2 needs the values of block 1 from the same forward; run the blocks in order"
    ):
        model.blocks[2](tokens)
    model.blocks[0](tokens)
    with pytest.raises(ModelError, match="block 2 needs the values of block 1"):
        model.blocks[2](tokens)
    model.blocks[0](tokens)
    with pytest.raises(ModelError, match=r"shapes are \(2, 2, 7, 16\) and \(1, 2, 7, 16\)"):
        model.blocks[1](torch.randn(2, 7, 32))


def test_elliptical_in_threads_equals_one_after_another() -> None:
    model = set_attention(small_vit(sharp=3), "elliptical").requires_grad_(False)
    batches = [torch.rand(2, 3, 16, 24) for _ in range(4)]
    expected = [model(batch) for batch in batches]
    meet = threading.Barrier(4)

    def gather(*_: object) -> None:  # all threads stand between blocks 0 and 1 at once
        meet.wait(timeout=20)

    model.blocks[1].register_forward_pre_hook(gather)
    found: list[Tensor | None] = [None] * 4

    def work(index: int) -> None:
        found[index] = model(batches[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)


# --- capture ---------------------------------------------------------------------------------------------------------


def test_capture_leaves_everything_as_it_was(images: Tensor) -> None:
    model = small_vit().requires_grad_(False)
    before = [dict(block.attn.__dict__) for block in model.blocks]
    expected = model(images)
    with pytest.raises(RuntimeError, match="inside"), capture(model):
        raise RuntimeError("inside")
    with capture(model) as outer:
        with capture(model, rows=slice(0, 1)) as inner:
            model(images)
            with pytest.raises(ModelError, match="cannot be set while it is captured"):
                set_attention(model, "quest")
        assert outer.scores == []
        model(images)
    assert [s.shape for s in inner.scores] == [(3, 2, 1, 7)] * 3
    assert all(torch.equal(one, whole[:, :, :1]) for one, whole in zip(inner.scores, outer.scores, strict=True))
    assert inner.scores[0].untyped_storage().nbytes() == 3 * 2 * 7 * 4
    outer.clear()
    assert outer.attention == []
    assert [dict(block.attn.__dict__) for block in model.blocks] == before
    assert all(type(block.attn) is Attention for block in model.blocks)
    assert torch.equal(model(images), expected)
    with torch.no_grad(), capture(model) as captured:
        model(images)
    assert not captured.attention[0].requires_grad


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: timm.create_model("swinv2_tiny_window8_256", depths=(1, 1), embed_dim=24),
            "SwinTransformerV2 .* class WindowAttention",
        ),
        (
            lambda: timm.create_model("resnet10t"),
            "ResNet does not support attention formulas: it has no attention layer",
        ),
    ],
)
def test_other_attention_is_refused_by_name(make: Callable[[], nn.Module], words: str) -> None:
    model = make()
    for call in (
        lambda: set_attention(model, "quest"),
        lambda: get_attention(model),
        lambda: capture(model).__enter__(),
    ):
        with pytest.raises(ModelError, match=words):
            call()
    assert attention_kind(model) == ("none" if "no attention" in words else "other")


def test_unknown_formula_names_the_nearest() -> None:
    with pytest.raises(ModelError, match="unknown attention 'qest'; did you mean 'quest'"):
        set_attention(small_vit(), "qest")


@pytest.mark.slow
@pytest.mark.shared
def test_real_vit_tiny_on_forty_images() -> None:
    weights = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    if not weights.exists():
        pytest.skip(f"no real weights at {weights}")
    from PIL import Image
    from safetensors.torch import load_file
    from torchvision import transforms

    folder = SHARED / "data" / "imagenet-val"
    lines = (folder / "synsets.txt").read_text().splitlines()
    index = {line.split()[0]: i for i, line in enumerate(lines) if line}
    resize = transforms.Resize(248, interpolation=transforms.InterpolationMode.BICUBIC)
    normalize = transforms.Normalize((0.5,) * 3, (0.5,) * 3)
    change = transforms.Compose([resize, transforms.CenterCrop(224), transforms.ToTensor(), normalize])
    files = sorted((folder / "val").glob("*/*.JPEG"), key=lambda path: path.name)[:40]
    pixels = torch.stack([change(Image.open(path).convert("RGB")) for path in files])
    labels = torch.tensor([index[path.parent.name] for path in files])
    model = timm.create_model("vit_tiny_patch16_224").eval().requires_grad_(False)
    model.load_state_dict(load_file(weights))
    for name in ("standard", "qnorm", "quest", "elliptical", "elliptical-quest"):
        logits = set_attention(model, name)(pixels)
        torch.testing.assert_close(logits[:3], plain_logits(model, pixels[:3], name), rtol=1e-3, atol=2e-3)
        right = int((logits.argmax(1) == labels).sum())
        nll = float(nn.functional.cross_entropy(logits, labels))
        assert (right, nll) == (REAL[name][0], pytest.approx(REAL[name][1], abs=1e-3)), name


REAL = {  # right of 40 and mean NLL, measured once with `plain_logits` in float64
    "standard": (32, 0.7407),
    "qnorm": (28, 0.9841),
    "quest": (26, 0.9685),
    "elliptical": (19, 2.4927),
    "elliptical-quest": (11, 4.2507),
}


def plain_logits(model: nn.Module, images: Tensor, name: str) -> Tensor:
    """The formulas once more, written out on whole matrices of a head, sample by sample."""
    rows = []
    for image in images:
        x = model._pos_embed(model.patch_embed(image[None]))
        before = None
        for block in model.blocks:
            y = block.norm1(x)[0]
            q, k, v = block.attn.qkv(y).reshape(len(y), 3, 3, 64).permute(1, 2, 0, 3)
            mixed = []
            for h in range(3):
                m = torch.ones(64)
                if before is not None and "elliptical" in name:
                    m = (v[h] - before[h]).abs().mean(0)
                    m = m / m.max()
                keys = k[h] / k[h].norm(dim=1, keepdim=True) if "quest" in name else k[h]
                queries = q[h] / q[h].norm(dim=1, keepdim=True) if name == "qnorm" else q[h]
                s = (queries * m) @ keys.T / (8 if name in ("standard", "elliptical") else 1)
                mixed.append(s.softmax(1) @ v[h])
            before = v
            x = x + block.attn.proj(torch.cat(mixed, 1))[None]
            x = x + block.mlp(block.norm2(x))
        rows.append(model.head(model.norm(x)[:, 0]))
    return torch.cat(rows)


def test_a_layer_of_other_projections_is_refused_in_one_line() -> None:
    layer = torch.nn.Identity()
    layer.num_heads = 2  # type: ignore[assignment]
    with pytest.raises(ModelError, match="no projection of queries; expected one called wq or q or q_proj"):
        head_size(layer)
