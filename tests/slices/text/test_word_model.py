"""The language model of words: a slow replica, causality under every formula, its file, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from texts import save_word_model
from torch import Tensor, nn
from torch.nn import functional

import robustkit
from robustkit.attention import FORMULAS, capture, get_attention, scores, set_attention
from robustkit.errors import CheckpointError, ModelError, RobustkitError
from robustkit.slices.text.documents import Words
from robustkit.slices.text.language_model import ModelShape, WordModel, load_language_model, load_word_model

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = Words(["<unk>", "the", "dog", "barks", "."])
SIZES = ModelShape(width=12, depth=2, heads=3, context=9, hidden=10)
CAUSAL = [name for name, formula in FORMULAS.items() if not formula.elliptical]


def made(attention: str = "standard", sizes: ModelShape = SIZES) -> WordModel:
    """Return a model all of whose weights are drawn, the formula's own, too."""
    torch.manual_seed(0)
    model = WordModel(len(WORDS), sizes, attention)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def numbers(seed: int = 0, tokens: int = 9) -> Tensor:
    return torch.randint(len(WORDS), (2, tokens), generator=torch.Generator().manual_seed(seed))


def slow_forward(model: WordModel, ids: list[int]) -> Tensor:
    """One token, one head and one key at a time; QUEST's logits are the query's with the key over its norm."""
    w = dict(model.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean()
        return centred / (centred.square().mean() + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    stream = [w["words.weight"][number] + w["positions"][place] for place, number in enumerate(ids)]
    for block in range(SIZES.depth):
        at, normed = f"blocks.{block}.attn", [norm(x, f"blocks.{block}.norm1") for x in stream]
        mixed = []
        for i, x in enumerate(normed):
            heads = []
            for head in range(SIZES.heads):
                rows = slice(4 * head, 4 * head + 4)
                query = linear(x, f"{at}.wq")[rows]
                keys = [linear(y, f"{at}.wk")[rows] for y in normed[: i + 1]]
                logits = torch.stack([query @ key / key.norm() for key in keys])
                values = torch.stack([linear(y, f"{at}.wv")[rows] for y in normed[: i + 1]])
                heads.append(logits.softmax(0) @ values)
            mixed.append(linear(torch.cat(heads), f"{at}.proj"))
        stream = [x + more for x, more in zip(stream, mixed, strict=True)]
        for i, x in enumerate(stream):
            hidden = linear(norm(x, f"blocks.{block}.norm2"), f"blocks.{block}.mlp.fc1")
            gelu = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
            stream[i] = x + linear(gelu, f"blocks.{block}.mlp.fc2")
    return torch.stack([w["words.weight"] @ norm(x, "norm") for x in stream])


def test_the_forward_is_what_a_loop_over_tokens_heads_and_keys_says() -> None:
    model, ids = made("quest"), numbers()
    expected = torch.stack([slow_forward(model, row.tolist()) for row in ids])
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "captured"])
@pytest.mark.parametrize("attention", [*CAUSAL, "qana(gate=true,rope=true)", "qk-l2(temperature=learned)"])
def test_no_formula_lets_a_word_be_seen_before_its_place(attention: str, watched: bool) -> None:
    model, ids = made(attention), numbers()
    for place in range(9):
        other = ids.clone()
        other[:, place] = (other[:, place] + 1) % len(WORDS)
        if watched:
            with capture(model) as captured:
                before, after = model(ids), model(other)
            assert torch.isneginf(captured.scores[1][..., torch.ones(9, 9).triu(1).bool()]).all()
        else:
            before, after = model(ids), model(other)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-12)
        changed = (after - before)[:, place:].abs().amax((0, 2))
        assert (changed > 1e-6).all()  # and all that comes after knows of it


@pytest.mark.parametrize("attention", CAUSAL)
def test_a_beginning_alone_is_the_beginning_of_the_whole(attention: str) -> None:
    model = made(attention)
    torch.testing.assert_close(model(numbers()[:, :4]), model(numbers())[:, :4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", [name for name, formula in FORMULAS.items() if formula.elliptical])
def test_formulas_that_look_at_all_tokens_are_refused(attention: str) -> None:
    with pytest.raises(
        ModelError, match=f"{attention} attention .* would leak future tokens to a language model; expected"
    ):
        WordModel(len(WORDS), SIZES, attention)
    model = set_attention(made(), attention)
    with pytest.raises(ModelError, match=f"{attention} attention with is_causal: .* would leak them; leave"):
        model(numbers())


@pytest.mark.parametrize("attention", ["standard", "quest"])
@pytest.mark.parametrize("key", [2, 8])
def test_keys_may_be_of_another_size_than_values(attention: str, key: int) -> None:
    model = made(attention, ModelShape(width=12, depth=1, heads=3, context=9, hidden=10, key=key))
    layer, x = model.blocks[0].attn, torch.randn(2, 5, 12).double()
    q, k = layer.queries_and_keys(x)
    assert q.shape == k.shape == (2, 3, 5, key)
    v = layer.wv(x).view(2, 5, 3, 4).transpose(1, 2)
    mixed = scores(attention, q, k).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1) @ v
    expected = layer.proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, is_causal=True), expected, rtol=0, atol=1e-12)
    with pytest.raises(ModelError, match=f"queries of {key} numbers and values of 4; expected the same size"):
        set_attention(model, "elliptical")


@pytest.mark.parametrize("attention", ["standard", "qknorm-ds", "qknorm-ln", "qana(hidden=2)"])
def test_what_is_loaded_is_what_was_saved(attention: str, tmp_path: Path) -> None:
    model, path = made(attention).float(), tmp_path / "model.safetensors"
    save_word_model(path, model, WORDS, seed="3")
    found = load_word_model(path)
    assert found.words.words == WORDS.words and found.name == "model" and found.checkpoint.metadata["seed"] == "3"
    assert found.network.sizes == SIZES and get_attention(found.network) == attention
    assert not found.network.training and not any(p.requires_grad for p in found.network.parameters())
    with torch.no_grad():
        assert torch.equal(found.network(numbers()), model(numbers()))


def rewritten(path: Path, out: Path, tensors: dict[str, Tensor] | None = None, **metadata: str | None) -> Path:
    with safe_open(path, "pt") as file:
        said = {**file.metadata(), **metadata}
    kept = {name: text for name, text in said.items() if text is not None}
    save_file(load_file(path) if tensors is None else tensors, out, kept)
    return out


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (
            {"vocabulary": json.dumps(["<unk>", "cat"])},
            CheckpointError,
            "2 words, and weights for 5; expected as many",
        ),
        (
            {"vocabulary": json.dumps(["the", *WORDS.words[1:]])},
            CheckpointError,
            "first word .* is 'the'; expected <unk>",
        ),
        (
            {"vocabulary": json.dumps(["<unk>", "a", "b", "c", "a"])},
            CheckpointError,
            "'a' twice; expected each word once",
        ),
        ({"vocabulary": json.dumps(["<unk>", "a", "b", "c", 4])}, CheckpointError, "vocabulary with 4; expected words"),
        ({"vocabulary": "the dog"}, CheckpointError, "metadata 'vocabulary' is 'the dog'; expected JSON"),
        ({"vocabulary": None}, CheckpointError, "no vocabulary in its metadata; expected a JSON list of words"),
        ({"arch": "vit"}, CheckpointError, "weights of vit; expected a model of words"),
        (
            {"arch_kwargs": "{}"},
            CheckpointError,
            "arch_kwargs is {}; expected width, depth, heads, context, hidden, key",
        ),
        ({"arch_kwargs": '{"width": 12, "depth": 2, "heads": 3, "context": 9, "hidden": true}'}, None, "hidden"),
        (
            {"arch_kwargs": '{"width": 60000, "depth": 60000, "heads": 3, "context": 9, "hidden": 9}'},
            None,
            "exhaust the mem",
        ),
        (
            {"arch_kwargs": '{"width": 12, "depth": 2, "heads": 5, "context": 9, "hidden": 10}'},
            ModelError,
            "5 heads for",
        ),
        ({"arch_kwargs": '{"width": 12, "depth": 3, "heads": 3, "context": 9, "hidden": 10}'}, None, "does not fit"),
        ({"attention": "elliptical"}, ModelError, "would leak future tokens to a language model"),
        ({"attention": "qknorm-ds"}, CheckpointError, "trained with another attention formula"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused_in_one_line(
    metadata: dict[str, Any], error: type[RobustkitError] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_word_model(path, made().float(), WORDS)
    with pytest.raises(error or RobustkitError, match=message) as caught:
        load_word_model(rewritten(path, tmp_path / "odd.safetensors", **metadata))
    assert "\n" not in str(caught.value)


def test_too_many_tokens_and_impossible_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="10 tokens at once; expected at most the model's context of 9"):
        made()(numbers(tokens=10))
    with pytest.raises(ModelError, match="depth 0 of a word model: expected a whole number above 0"):
        ModelShape(width=12, depth=0, heads=3, context=9, hidden=10)
    with pytest.raises(ModelError, match="5 heads for 12 channels; expected a number that divides them"):
        WordModel(5, ModelShape(width=12, depth=1, heads=5, context=9, hidden=10))


def test_it_learns_a_language_of_one_rule() -> None:
    model = made("qnorm").float().train()
    ids = (torch.arange(9) + torch.arange(5)[:, None]) % 5
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimiser.step()
    assert loss < 0.05
    assert torch.equal(model(ids).argmax(-1), (ids + 1) % 5)


def test_formulas_take_the_place_of_each_other_and_leave_the_weights() -> None:
    model, ids = made("standard"), numbers()
    expected, names = model(ids), set(model.state_dict())
    for one, other in itertools.pairwise([*CAUSAL, "standard"]):
        assert torch.isfinite(set_attention(model, other)(ids)).all(), (one, other)
    assert set(model.state_dict()) == names
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "option", "attention", "source"),
    [
        ("words.safetensors", None, "standard", "default"),
        ("words-quest.safetensors", None, "quest", "name"),
        ("words.safetensors", "quest", "quest", "option"),
    ],
)
def test_a_formula_that_the_file_does_not_name_is_assumed_or_given(
    tmp_path: Path, name: str, option: str | None, attention: str, source: str
) -> None:
    shipped = Path(robustkit.__file__).parent / "embedded" / "brown-lm-quest.safetensors"
    identity = load_language_model(rewritten(shipped, tmp_path / name, attention=None), attention=option).identity
    assert (identity.attention, identity.attention_source) == (attention, source)
    assert any("; assuming " in note for note in identity.notes) == (source != "option")
