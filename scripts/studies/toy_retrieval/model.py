"""The one-layer, one-head Transformer of the toy task (QUEST, Algorithm A2), many of them as one batched program.

Only the output of the CLS token is read, so only its query, its row of attention and its MLP are computed; its query
is the same for all samples. All models see the same batch, so their tokens are not formed either. With shared tokens x,
a model's positions P and its matrix A to keys, the key of a token is k = r (x + P) A + s. Of it attention asks for
k · d, for a direction d that follows from the query, and, where a formula normalises keys, for

    |k|² = r² (x G x + 2 x G P + P G P) + 2 r (x + P) A s + |s|²,   G = A Aᵀ,

in which x G x is the product of one matrix of all x xᵀ with the G of all models. Where keys are those of normalised
tokens, x and P are centred and r is 1 / std(x + P), found in the same way; else r is 1.

M counts models, B samples of a batch, T tokens of a sample, CLS first. No operation reaches from one model to another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from robustkit.attention.formulas import QK_NORM_EPS, Formula

KEY, CLASSES = 10, 10
WIDTH = KEY + CLASSES
CENTRE, SPREAD = 10.0, 2.0  # of the answer's location, before it is made an integer
BIAS_VARIANCE = 0.1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """tokens: (S, N, 20) float32. labels, places: (S,), the class and the location of the answer. biased: (S,) bool."""

    tokens: Tensor
    labels: Tensor
    places: Tensor
    biased: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Realisation:
    """What is drawn once for a realisation of the data, and shared by all its samples.

    mixing: S, (10, 10), so that SSᵀ is the answer's covariance. bias: b, (10,).
    """

    number: int
    mixing: Floats
    bias: Floats

    @classmethod
    def draw(cls, number: int) -> Realisation:
        """Draw the realisation of that number, on which alone it depends."""
        generator = _generator(number, 0)
        mixing = generator.standard_normal((KEY, KEY))
        return cls(number, mixing, mixing @ generator.standard_normal(KEY))

    def samples(self, count: int, length: int, *, purpose: int, biased: float, uniform: bool = False) -> Samples:
        """Draw `count` sequences of `length` tokens.

        purpose: which draws; other numbers give other samples. biased: the share of samples with the bias vector.
        uniform: locations uniform over the sequence, instead of normal around 10.
        """
        generator = _generator(self.number, 1 + purpose)
        if uniform:
            places = generator.integers(0, length, count)
        else:
            places = np.trunc(generator.normal(CENTRE, SPREAD, count)).astype(np.int64).clip(0, length - 1)
        is_biased = generator.random(count) < biased
        free = generator.standard_normal((count, KEY)) @ self.mixing.T
        bound = self.bias + np.sqrt(BIAS_VARIANCE) * generator.standard_normal((count, KEY))
        classes = generator.integers(0, CLASSES, (count, length))
        tokens = np.concatenate([generator.standard_normal((count, length, KEY)), np.eye(CLASSES)[classes]], axis=-1)
        rows = np.arange(count)
        tokens[rows, places, :KEY] = np.where(is_biased[:, None], bound, free)
        return Samples(
            torch.from_numpy(tokens.astype(np.float32)),
            torch.from_numpy(classes[rows, places]),
            torch.from_numpy(places),
            torch.from_numpy(is_biased),
        )

    def order(self, count: int, epoch: int) -> Tensor:
        """Return the order (S,) of the training samples in this epoch."""
        return torch.from_numpy(_generator(self.number, 1_000 + epoch).permutation(count))


def _generator(number: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([0x70F, number, purpose])))


READINGS = ("literal", "pre-norm")
STARTS = ("torch", "mixed", "timm")
UNIT_KEYS = ("quest", "qknorm-hs", "qknorm-ds")
NORM_EPS = 1e-5  # nn.LayerNorm's own
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """What Algorithm A2 leaves open about the model.

    reading: 'literal' takes the algorithm line by line: queries, keys and values of the tokens as they are,
        y = LN1(x) + attention, y = x + LN2(y), y = x + MLP(y). 'pre-norm' takes "the standard implementations that are
        commonly used" at its word: x = x + attention(LN1(x)), x = x + MLP(LN2(x)).
    start: 'torch' draws matrices as nn.Linear does, CLS token and positions as nn.Embedding does, N(0, 1); 'mixed' has
        these two N(0, 0.02²), and 'timm' the matrices too, biases 0.
    bias: whether queries, keys and values have one. final_norm: a LayerNorm before the classifier.
    """

    length: int = 20
    reading: str = "pre-norm"
    start: str = "mixed"
    bias: bool = False
    final_norm: bool = False

    def sizes(self, formula: Formula) -> dict[str, tuple[int, ...]]:
        """Return the parameters of one model by name, in the order in which they are drawn."""
        square = (WIDTH, WIDTH)
        sizes: dict[str, tuple[int, ...]] = {"cls": (WIDTH,), "positions": (self.length + 1, WIDTH)}
        for name in ("q", "k", "v"):
            sizes[f"{name}.weight"] = square
            if self.bias:
                sizes[f"{name}.bias"] = (WIDTH,)
        for name in ("out", "fc1", "fc2"):
            sizes |= {f"{name}.weight": square, f"{name}.bias": (WIDTH,)}
        sizes |= {"head.weight": (CLASSES, WIDTH), "head.bias": (CLASSES,)}
        for name in ("norm1", "norm2", *(["norm"] if self.final_norm else [])):
            sizes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
        return sizes | {name: tuple(value.shape) for name, value in _added(formula).items()}


def _added(formula: Formula) -> dict[str, Tensor]:
    """Return the parameters that the formula adds to a model, as one model has them, at their initial values."""
    if formula.name == "qknorm-ln":
        ones, zeros = torch.ones(WIDTH), torch.zeros(WIDTH)
        return {"q_norm.weight": ones, "q_norm.bias": zeros, "k_norm.weight": ones, "k_norm.bias": zeros}
    return formula.initial(1, WIDTH)


def initial(shape: Shape, formula: Formula, seed: int) -> dict[str, Tensor]:
    """Draw one model's weights before training: a function of the seed, the same for every formula but its own."""
    generator = torch.Generator().manual_seed(seed)
    scales = _added(formula)
    weights = {}
    for name, size in shape.sizes(formula).items():
        if name in scales:
            weights[name] = scales[name].clone()
        elif name in ("cls", "positions"):
            drawn = torch.randn(size, generator=generator)
            weights[name] = drawn if shape.start == "torch" else 0.02 * drawn
        elif name.startswith("norm"):
            weights[name] = torch.ones(size) if name.endswith("weight") else torch.zeros(size)
        elif shape.start == "timm":
            drawn = torch.randn(size, generator=generator)
            weights[name] = 0.02 * drawn if name.endswith("weight") else torch.zeros(size)
        else:
            bound = 1 / math.sqrt(WIDTH)
            weights[name] = torch.empty(size).uniform_(-bound, bound, generator=generator)
    return weights


@dataclass(frozen=True)
class Tokens:
    """A batch as all models see it. rows: (T, B, 20), CLS as 0. squares: (T * B, 400), each row's products."""

    rows: Tensor
    squares: Tensor

    @classmethod
    def of(cls, tokens: Tensor, reading: str) -> Tokens:
        """Prepare tokens (B, N, 20), centred for pre-norm."""
        rows = functional.pad(tokens.transpose(0, 1), (0, 0, 0, 0, 1, 0))
        if reading == "pre-norm":
            rows = rows - rows.mean(dim=-1, keepdim=True)
        return cls(rows, (rows[..., :, None] * rows[..., None, :]).view(-1, WIDTH * WIDTH))


def _affine(x: Tensor, p: Weights, name: str) -> Tensor:
    """Apply a linear layer of each model to x (M, B, 20)."""
    matrix = p[f"{name}.weight"].transpose(1, 2)
    return torch.baddbmm(p[f"{name}.bias"][:, None], x, matrix) if f"{name}.bias" in p else x @ matrix


def _norm(x: Tensor, p: Weights, name: str) -> Tensor:
    """Apply a LayerNorm of each model to x (M, B, 20)."""
    y = functional.layer_norm(x, (WIDTH,), eps=NORM_EPS)
    return torch.addcmul(p[f"{name}.bias"][:, None], y, p[f"{name}.weight"][:, None])


def _shared(rows: Tensor, columns: Tensor) -> Tensor:
    """Return (T, B, M): rows (T, B, 20) times a vector of each model and place, columns (M, T, 20)."""
    return rows @ columns.permute(1, 2, 0)


class Keys:
    """The keys of a batch under M models, of which only lengths and products are ever computed.

    tokens: the batch. places: (M, T, 20), CLS token and positions. centred: whether a LayerNorm stands before.
    """

    def __init__(self, shape: Shape, p: Weights, tokens: Tokens, places: Tensor) -> None:
        self.tokens, self.places = tokens, places
        self.matrix = p["k.weight"].transpose(1, 2)  # (M, 20, 20)
        self.shift = p["k.bias"][:, None] if shape.bias else None  # (M, 1, 20)
        self.scale: Tensor | None = None  # (T, B, M)
        if shape.reading == "pre-norm":
            of_norm = p["norm1.bias"][:, None] @ self.matrix
            self.shift = of_norm if self.shift is None else of_norm + self.shift
            self.matrix = p["norm1.weight"][..., None] * self.matrix
            self.places = places - places.mean(dim=-1, keepdim=True)
            square = tokens.rows.square().sum(-1)[..., None] + self.places.square().sum(-1).T[:, None]
            square = torch.add(square, _shared(tokens.rows, self.places), alpha=2)
            self.scale = (square / WIDTH + NORM_EPS).rsqrt()

    def centre(self) -> None:
        """Take from each key the mean of its entries."""
        self.matrix = self.matrix - self.matrix.mean(dim=-1, keepdim=True)
        if self.shift is not None:
            self.shift = self.shift - self.shift.mean(dim=-1, keepdim=True)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale is None else x * self.scale

    def along(self, direction: Tensor) -> Tensor:
        """Return (T, B, M): keys times the direction of each model, (M, 20, 1)."""
        seen = self.matrix @ direction  # (M, 20, 1)
        products = self._scaled(self.tokens.rows @ seen[..., 0].T + (self.places @ seen)[..., 0].T[:, None])
        return products if self.shift is None else products + (self.shift @ direction)[:, 0, 0]

    def square(self) -> Tensor:
        """Return (T, B, M): |k|²."""
        gram = self.matrix @ self.matrix.transpose(1, 2)
        seen = self.places @ gram
        squares = (self.tokens.squares @ gram.flatten(1).T).view(*self.tokens.rows.shape[:2], -1)
        squares = torch.add(squares, _shared(self.tokens.rows, seen), alpha=2) + (seen * self.places).sum(-1).T[:, None]
        squares = self._scaled(self._scaled(squares))
        if self.shift is None:
            return squares
        shift = self.shift.transpose(1, 2)
        without, self.shift = self.shift, None
        squares = torch.add(squares, self.along(shift), alpha=2) + shift.square().sum(1)[:, 0]
        self.shift = without
        return squares


def attention_logits(formula: Formula, q: Tensor, keys: Keys, p: Weights) -> Tensor:
    """Return (T, B, M): a model's one query (M, 1, 20) against its keys, before softmax.

    Models stand where the formulas have heads, which have parameters of their own. What a formula does to a query, and
    by which factors it stretches keys, is asked of it with the axes for keys.
    """
    scales = {name: p[name].reshape(-1) if name == "qk_scale" else p[name].flatten(1) for name in _added(formula)}
    scales = {} if formula.name == "qknorm-ln" else scales
    axes = torch.eye(WIDTH, dtype=q.dtype).expand(1, len(q), WIDTH, WIDTH)
    query, stretched = (x[0] for x in formula.reduce(q[None], axes, parameters=scales))
    if formula.name == "qknorm-ln":
        query = query * p["q_norm.weight"][:, None] + p["q_norm.bias"][:, None]
        stretched = torch.diag_embed(p["k_norm.weight"])
        keys.centre()
    direction = stretched.transpose(1, 2) @ query.transpose(1, 2) * formula.constant(WIDTH)
    logits = keys.along(direction)
    if formula.name in UNIT_KEYS:
        return logits * keys.square().clamp_min(1e-12).rsqrt()
    if formula.name == "qknorm-ln":  # its bias adds the same to all tokens of a sample, which softmax does not see
        return logits * (keys.square() / WIDTH + QK_NORM_EPS).rsqrt()
    return logits


def class_logits(shape: Shape, formula: Formula, p: Weights, tokens: Tensor) -> Tensor:
    """Return the logits (M, B, 10) of the classes. p: parameters of M models. tokens: (B, N, 20), the same for all
    models.
    """
    places = _places(p)
    keys, first = Keys(shape, p, Tokens.of(tokens, shape.reading), places), places[:, :1]  # CLS is as in all samples
    literal = shape.reading == "literal"
    query = _affine(first if literal else _norm(first, p, "norm1"), p, "q")
    attention = attention_logits(formula, query, keys, p).softmax(dim=0)
    looked = _weighted(keys, attention if keys.scale is None else attention * keys.scale)
    if not literal:
        looked = torch.addcmul(p["norm1.bias"][:, None], looked, p["norm1.weight"][:, None])
    update = _affine(_affine(looked, p, "v"), p, "out")  # values are linear, so they may come after the mean
    if literal:
        y = first + _norm(_norm(first, p, "norm1") + update, p, "norm2")
        y = first + _perceptron(y, p)
    else:
        y = first + update
        y = y + _perceptron(_norm(y, p, "norm2"), p)
    return _affine(_norm(y, p, "norm") if shape.final_norm else y, p, "head")


def key_norms(shape: Shape, p: Weights, tokens: Tensor) -> Tensor:
    """Return (T, B, M): l2 norms of the keys as projected, before a formula normalises them. tokens: (B, N, 20)."""
    return Keys(shape, p, Tokens.of(tokens, shape.reading), _places(p)).square().clamp_min(0).sqrt()


def _places(p: Weights) -> Tensor:
    """Return what is added to the tokens, (M, T, 20): the CLS token with its position first."""
    return torch.cat([(p["positions"][:, 0] + p["cls"])[:, None], p["positions"][:, 1:]], dim=1)


def _weighted(keys: Keys, weights: Tensor) -> Tensor:
    """Return (M, B, 20): the sum over tokens of what attention sees, with weights (T, B, M)."""
    shared = weights.permute(1, 2, 0) @ keys.tokens.rows.transpose(0, 1)  # (B, M, 20)
    return torch.baddbmm(shared.transpose(0, 1), weights.permute(2, 1, 0), keys.places)


def _perceptron(x: Tensor, p: Weights) -> Tensor:
    return _affine(functional.gelu(_affine(x, p, "fc1")), p, "fc2")
