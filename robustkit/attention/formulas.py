"""Attention formulas as pure functions of queries and keys: those of the papers, with the options of released code.

Every formula is reduced to `softmax(C Q' K'ᵀ) V`: it defines how Q' and K' come from Q and K, and whether the constant
C is 1/sqrt(d) or 1. So one fused kernel serves them all, and scores are one matrix product away. Two of
those with options do more to the logits: one caps them, one adds the output of each query's own network.

Shapes: q, k, v are (B, H, N, d): batch, heads, tokens, head size; keys may be (B, H, M, d). A bar is an l2-normalised
row. A query that is a network, qana's, is split into s, of d numbers, which scores as usual, and the weights of h
hidden units, U (h, d), V (h,), b (h,) and c:

    score(q, k) = s̃ᵀ k̃ / sqrt(d) + V σ(Ũ k̃ + b) + c

With rotary positions (RoPE), a tilde is a rotation by the token's position of keys, s, and each row of U by itself, so
that scores depend on relative positions only.

A name gives only the options that differ from the usual ones, so equal formulas have equal names.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..common.names import canonical
from ..errors import ModelError, unknown
from .registry import EVERY_FORMULA

Parameters = Mapping[str, Tensor]
QK_NORM_EPS = 1e-6  # of the norms that timm and ViT-5 put on queries and keys
UNIT_EPS = 1e-12  # below which the l2 norm of a row is not taken
DELTA = 5.0  # by which the public code of Elliptical Attention divides the change between blocks


def unit(x: Tensor, eps: float = UNIT_EPS) -> Tensor:
    """Return the rows of x over their l2 norm, or over eps where that is larger; a zero row stays zero.

    Args:
        x: (..., d) floating.
        eps: far below any row of a trained model; in float16, the smallest normal number.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return functional.normalize(x, dim=-1, eps=max(eps, torch.finfo(x.dtype).tiny)).to(x.dtype)


@torch.no_grad()
def elliptical_metric(
    v: Tensor, previous: Tensor, scale: str = "max", average: str = "mean", delta: float = DELTA
) -> Tensor:
    """Return the diagonal of M, (B, H, 1, d), without gradient.

    Each entry is the `average` over all tokens of the absolute difference of the values of two blocks. Where all
    entries are 0 there is no direction to prefer, and a scaled M is the identity.

    Args:
        v: (B, H, N, d) values of this block.
        previous: those of the block before it.
        scale: what the entries are divided by: the largest, their mean, or with `none` delta, the step that the other
            two cancel.
        average: mean or median (of an even number, the lower of the two in the middle).
        delta: see scale.

    Reference: Nielsen 2024, equation 12; QUEST, A.5.2.

    Example:
        >>> v = torch.tensor([[[[1.0, 2.0], [3.0, 2.0]]]])
        >>> elliptical_metric(v, torch.zeros_like(v))
        tensor([[[[1., 1.]]]])
    """
    if v.shape != previous.shape:
        raise ModelError(
            f"elliptical attention compares the values of neighbouring blocks, but their shapes are {tuple(v.shape)} "
            f"and {tuple(previous.shape)}; it needs blocks that keep the number of tokens, heads and channels"
        )
    changes = (v - previous).abs()
    entries = changes.median(dim=-2, keepdim=True).values if average == "median" else changes.mean(dim=-2, keepdim=True)
    if scale == "none":
        return entries / delta
    whole = entries.mean(dim=-1, keepdim=True) if scale == "mean" else entries.amax(dim=-1, keepdim=True)
    return torch.where(whole > 0, entries / torch.where(whole > 0, whole, 1.0), torch.ones_like(entries))


def _plain(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return q, k


def _unit_keys(q: Tensor, k: Tensor, p: Parameters, eps: float = UNIT_EPS) -> tuple[Tensor, Tensor]:
    return q, unit(k, eps)


def _unit_queries(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return unit(q), k


def _by_head(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return unit(q) * p["qk_scale"].to(q.dtype).view(-1, 1, 1), unit(k)


def _by_channel(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    scales = (p[name].to(q.dtype) for name in ("q_scale", "k_scale"))  # (d,) for all heads, or (H, d)
    of_query, of_key = (scale if scale.ndim == 1 else scale[:, None, :] for scale in scales)
    return unit(q) * of_query, unit(k) * of_key


def _layer_norm(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    def norm(x: Tensor, which: str) -> Tensor:
        weight, bias = (
            p[name].to(x.dtype) if (name := f"{which}.{part}") in p else None for part in ("weight", "bias")
        )
        return functional.layer_norm(x, x.shape[-1:], weight, bias, QK_NORM_EPS)

    return norm(q, "q_norm"), norm(k, "k_norm")


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """Return the rows of x over the root of their mean square plus eps, times weight (d,): RMSNorm (Zhang 2019)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return normed if weight is None else normed * weight.to(x.dtype)


@dataclass(frozen=True)
class Initial:
    """Parameters at the start: `names`, each of shape (heads, dim) as far as these are asked for, and dim**power; 0
    without a power.
    """

    names: tuple[str, ...] = ()
    by_head: bool = False
    by_channel: bool = False
    power: float | None = None

    def __call__(self, heads: int, dim: int) -> dict[str, Tensor]:
        shape = (heads,) * self.by_head + (dim,) * self.by_channel
        return {name: torch.full(shape, 0.0 if self.power is None else dim**self.power) for name in self.names}


@dataclass(frozen=True)
class Formula:
    """One way to turn queries and keys into attention logits.

    name: with the options that differ from the usual ones, as `formulas.find_formula` reads it.
    scaled: whether the constant is 1/sqrt(d) (otherwise 1).
    elliptical: whether queries are multiplied by M; the first block has no M and uses the formula without it. metric:
        from the values of a block and of the one before to M.
    transform: (q, k, parameters) -> (q', k').
    initial: (heads, head size) -> parameters at the start of training. With them the forms with learned scales begin
        as sqrt(d) times the cosine, which is standard attention on rows of unit mean square.
    norms: the modules that hold the weights of its norms, by name, each made of a head size.
    cap: where given, logits become cap · tanh(logits / cap). network: where given, adds to the logits.
    mixes_tokens: whether Q' or K' of one token is seen to depend on other tokens.

    Example:
        >>> FORMULAS["quest"].scaled, FORMULAS["standard"].scaled
        (False, True)
    """

    name: str
    logits: str
    source: str
    scaled: bool
    transform: Callable[[Tensor, Tensor, Parameters], tuple[Tensor, Tensor]]
    elliptical: bool = False
    initial: Callable[[int, int], dict[str, Tensor]] = Initial()
    cap: float | None = None
    network: Network | None = None
    metric: Callable[[Tensor, Tensor], Tensor] = elliptical_metric
    norms: Mapping[str, Callable[[int], nn.Module]] = field(default_factory=dict)
    mixes_tokens: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixes_tokens", _mixes_tokens(self))

    @property
    def sees_all(self) -> str:
        """What it makes of all tokens at once, in words; empty where Q' and K' of a token are of that token alone."""
        return "compares the values" if self.elliptical else "mixes queries or keys" if self.mixes_tokens else ""

    def reduce(
        self, q: Tensor, k: Tensor, *, metric: Tensor | None = None, parameters: Parameters | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return q' and K', so that the logits are Q' K'ᵀ, over sqrt(d) where `scaled`."""
        q, k = self.transform(q, k, parameters or {})
        return (q if metric is None else q * metric.to(q.dtype)), k

    def constant(self, dim: int) -> float:
        """Return c in the logits C Q' K'ᵀ for head size `dim`."""
        return float(dim**-0.5) if self.scaled else 1.0

    def bend(self, logits: Tensor) -> Tensor:
        """Return the logits C Q' K'ᵀ after the formula's cap; without one, as they are."""
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def _mixes_tokens(formula: Formula) -> bool:
    """Whether a change of one token changes Q' or K' of another, by drawn numbers; one that cannot be asked does."""
    rows = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    try:
        parameters = formula.initial(2, 8)
        before = torch.stack(formula.transform(rows[:1], rows[1:], parameters))
        for token in range(4):
            changed = rows.clone()
            changed[:, :, token] += 1
            after = torch.stack(formula.transform(changed[:1], changed[1:], parameters))
            others = torch.arange(4) != token
            if not torch.allclose(after[..., others, :], before[..., others, :], rtol=1e-4, atol=1e-5):
                return True
    except Exception:  # the transform of a plug-in may raise anything
        return True
    return False


STANDARD = Formula("standard", "Q Kᵀ / sqrt(d)", "Vaswani 2017", True, _plain)
QNORM = Formula("qnorm", "Q̄ Kᵀ", "QUEST, Table 1", False, _unit_queries)
_HEADS = Initial(("qk_scale",), by_head=True, power=0.5)
_SHARED = Initial(("q_scale", "k_scale"), by_channel=True, power=0.25)
_OWN = Initial(("q_scale", "k_scale"), by_head=True, by_channel=True, power=0.25)
QKNORM_HS = Formula("qknorm-hs", "C_h Q̄ K̄ᵀ", "Liu 2022", False, _by_head, initial=_HEADS)
_LOGITS = "(C_q ⊙ Q̄)(C_k ⊙ K̄)ᵀ"
QKNORM_DS = Formula(
    "qknorm-ds", f"{_LOGITS}, shared by the heads", "Dehghani 2023", False, _by_channel, initial=_SHARED
)
QKNORM = Formula("qknorm", f"{_LOGITS}, own for each head", "QUEST, Table 1", False, _by_channel, initial=_OWN)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Network:
    """The network that a query is."""

    hidden: int  # its width h
    activation: str  # σ, a name of ACTIVATIONS
    gate: bool  # whether a learned α, 0 at first, multiplies what the network adds
    rope: bool  # whether keys, s and the rows of U are rotated by their tokens' positions
    start: str = "drawn"  # or `zero`, as the document has it; see `linear`

    def rows(self, dim: int) -> int:
        """Return how many numbers a query of head size `dim` has in addition to s: h·d of U, h of V, h of b, and c."""
        return self.hidden * dim + 2 * self.hidden + 1

    def linear(self, width: int, heads: int, dim: int) -> nn.Linear:
        """Return the layer from tokens of `width` channels to the networks of all heads' queries, initialised.

        The rows of V, b and c are zero, so nothing is added at first; with a gate, its α is zero and V is drawn, too.
        The document has all rows zero, which no gradient ever reaches (`start=zero`, with a warning).
        """
        made = nn.Linear(width, heads * self.rows(dim))
        nn.init.zeros_(made.bias)
        if self.start == "zero":
            warnings.warn(
                "qana(start=zero): no gradient reaches networks whose weights are all zero, so they do not learn; "
                "leave start out to train them",
                stacklevel=2,
            )
            nn.init.zeros_(made.weight)
            return made
        _, v, b, c = self.split(made.weight.data.view(heads, -1, width).movedim(1, -1))
        nn.init.trunc_normal_(made.weight, std=0.02)
        for rows in (b, c) if self.gate else (v, b, c):
            rows.zero_()
        return made

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split (…, rows) in the document's order into U (…, h, d), V (…, h), b (…, h) and c (…, 1)."""
        h = self.hidden
        dim = (weights.shape[-1] - 2 * h - 1) // h
        u, v, b, c = torch.split(weights, [h * dim, h, h, 1], dim=-1)
        return u.reshape(*u.shape[:-1], h, dim), v, b, c

    def logits(self, weights: Tensor, k: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return what the network adds to the scores, (B, H, N, M), from weights (B, H, N, rows) and rotated keys.

        One hidden unit is computed at a time, and again in the backward pass, so that no more than a few tensors of
        (B, H, N, M) are ever held.
        """
        u, v, b, c = self.split(weights.to(k.dtype))
        if self.rope:
            u = rotate_halves(u.movedim(-2, -3)).movedim(-3, -2)
        activation = ACTIVATIONS[self.activation]

        def unit(row: Tensor, v: Tensor, b: Tensor, k: Tensor) -> Tensor:
            return v * activation(row @ k.transpose(-2, -1) + b)

        total = c.expand(*c.shape[:-1], k.shape[-2])
        for index in range(self.hidden):
            parts = (u[..., index, :], v[..., index, None], b[..., index, None], k)
            if torch.is_grad_enabled():
                total = total + checkpoint(unit, *parts, use_reentrant=False, preserve_rng_state=False)
            else:
                total = total + unit(*parts)
        return total if alpha is None else alpha.to(total.dtype) * total


def rotate_halves(x: Tensor) -> Tensor:
    """Apply RoPE (Su et al. 2021) to (…, N, d): channels (j, j + d/2) of token i are turned by i · 10000^(-2j/d)."""
    tokens, dim = x.shape[-2:]
    check_rotary(dim)
    kind = torch.promote_types(x.dtype, torch.float32)
    rates = ROTARY_BASE ** (-torch.arange(0, dim, 2, device=x.device, dtype=kind) / dim)
    angles = torch.arange(tokens, device=x.device, dtype=kind)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def check_rotary(dim: int) -> None:
    """Raise ModelError where channels cannot be paired."""
    if dim % 2:
        raise ModelError(f"RoPE turns pairs of channels, and the head size is {dim}; expected an even number")


L2_EPS = 1e-12  # added to the squared norm of a row in qk-l2
PLAIN_LAYER_NORM_EPS = 1e-5  # added to the variance of a row in qk-layer-norm; timm's LayerNorms have another one
Value = bool | int | float | str


@dataclass(frozen=True)
class FormulaOption:
    """One option of a formula. read: text to value; ValueError for an invalid one. expected: in words."""

    usual: Value
    read: Callable[[str], Value]
    expected: str


@dataclass(frozen=True)
class Bare:
    """Rows brought to one size by `norm` alone, times a temperature: fixed, learned, or sqrt(d)."""

    norm: Callable[[Tensor], Tensor]
    temperature: float | None = None

    def __call__(self, q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
        usual = float(q.shape[-1] ** 0.5) if self.temperature is None else self.temperature
        return self.norm(q) * (p["temperature"].to(q.dtype) if "temperature" in p else usual), self.norm(k)


def _bare_l2(x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # the eps is nothing in half precision
    return (wide / (wide.square().sum(dim=-1, keepdim=True) + L2_EPS).sqrt()).to(x.dtype)


def _bare_layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=PLAIN_LAYER_NORM_EPS)


def _rotated(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return rotate_halves(q), rotate_halves(k)


def _normed(norm: Callable[[Tensor], Tensor], sign: str, source: str, text: str, values: Values) -> Formula:
    fixed = value if isinstance(value := values["temperature"], float) else None
    factor = f"{fixed:g}" if fixed is not None else "T" if value == "learned" else "sqrt(d)"
    initial = Initial(("temperature",) if value == "learned" else (), power=0.5)
    return Formula(text, f"{factor} {sign}(Q) {sign}(K)ᵀ", source, False, Bare(norm, fixed), initial=initial)


def _qana(text: str, values: Values) -> Formula:
    hidden, activation, start = int(values["hidden"]), str(values["activation"]), str(values["start"])
    network = Network(hidden, activation, bool(values["gate"]), bool(values["rope"]), start)
    return Formula(
        text,
        "s̃ K̃ᵀ / sqrt(d) + V σ(Ũ K̃ᵀ + b) + c",
        "Vermillion 2025",
        True,
        _rotated if network.rope else _plain,
        initial=Initial(("alpha",) if network.gate else ()),
        network=network,
    )


def _softcap(text: str, values: Values) -> Formula:
    cap = float(values["cap"])
    return Formula(text, f"{cap:g} tanh(Q Kᵀ / (sqrt(d) · {cap:g}))", "Bello 2016; Gemma 2", True, _plain, cap=cap)


def _positive(text: str, kind: type[int | float] = float, *words: str) -> Value:
    """Read a number above 0, or one of the words; ValueError for another text."""
    if text in words:
        return text
    if not 0 < (value := kind(text)) < math.inf:
        raise ValueError(text)
    return value


def _quest(text: str, values: Values) -> Formula:
    return Formula(text, "Q K̄ᵀ", "QUEST, Alg. A1", False, partial(_unit_keys, eps=float(values["eps"])))


def _elliptical(text: str, values: Values, *, quest: bool) -> Formula:
    scale, average, delta = str(values["scale"]), str(values["average"]), float(values["delta"])
    if scale != "none" and delta != DELTA:
        remedy = "leave delta out, or give scale=none"
        raise ModelError(f"attention {text}: delta {delta:g} has no effect, since scale={scale} cancels it; {remedy}")
    metric = partial(elliptical_metric, scale=scale, average=average, delta=delta)
    if quest:
        return Formula(text, "(Q M) K̄ᵀ", "QUEST, A.5.2", False, _unit_keys, elliptical=True, metric=metric)
    return Formula(text, "Q M Kᵀ / sqrt(d)", "Nielsen 2024", True, _plain, elliptical=True, metric=metric)


def _qknorm_ln(text: str, values: Values) -> Formula:
    affine = str(values["affine"])
    make_norm = partial(nn.LayerNorm, eps=QK_NORM_EPS, bias=affine == "both")
    norms = dict.fromkeys(("q_norm", "k_norm") if affine != "none" else (), make_norm)
    source = "Dehghani 2023; timm's qk_norm"
    return Formula(text, "LN(Q) LN(K)ᵀ / sqrt(d)", source, True, _layer_norm, norms=norms)


@dataclass(frozen=True)
class RootMeanSquare:
    """Keys, and queries if `both`, over their root mean square; queries times their head's scale, if there is one."""

    eps: float
    both: bool

    def __call__(self, q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
        q = rms(q, self.eps, p.get("q_norm.weight")) if self.both else q
        q = q * p["head_scale"].to(q.dtype).view(-1, 1, 1) if "head_scale" in p else q
        return q, rms(k, self.eps, p.get("k_norm.weight"))


def _qk_rms(text: str, values: Values) -> Formula:
    eps, both, scale = float(values["eps"]), values["on"] == "both", str(values["scale"])
    normed = ("q_norm", "k_norm") if both else ("k_norm",)
    norms = dict.fromkeys(normed if scale == "channels" else (), partial(nn.RMSNorm, eps=eps))
    initial = Initial(("head_scale",), by_head=True, power=0.0) if scale == "heads" else Initial()
    logits = f"{'C_h ' if scale == 'heads' else ''}{'RMS(Q)' if both else 'Q'} RMS(K)ᵀ / sqrt(d)"
    transform = RootMeanSquare(eps, both)
    return Formula(text, logits, "ViT-5; timm's RmsNorm", True, transform, initial=initial, norms=norms)


Values = Mapping[str, Value]


def _one_of(usual: str, *others: str) -> FormulaOption:
    words = {word: word for word in (usual, *others)}
    return FormulaOption(usual, words.__getitem__, " or ".join(words))


_SWITCH = FormulaOption(False, {"true": True, "false": False}.__getitem__, "true or false")
_TEMPERATURE = FormulaOption(
    "sqrt(d)", lambda text: _positive(text, float, "learned", "sqrt(d)"), "a number above 0, learned or sqrt(d)"
)
_ACTIVATION = FormulaOption("gelu", lambda text: {name: name for name in ACTIVATIONS}[text], ", ".join(ACTIVATIONS))
_METRIC = {
    "scale": _one_of("max", "mean", "none"),
    "average": _one_of("mean", "median"),
    "delta": FormulaOption(DELTA, _positive, "a number above 0"),
}
FAMILIES: dict[str, tuple[dict[str, FormulaOption], Callable[[str, Values], Formula]]] = {
    "quest": ({"eps": FormulaOption(UNIT_EPS, _positive, "a number above 0")}, _quest),
    "elliptical": (_METRIC, partial(_elliptical, quest=False)),
    "elliptical-quest": (_METRIC, partial(_elliptical, quest=True)),
    "qknorm-ln": ({"affine": _one_of("both", "scale", "none")}, _qknorm_ln),
    "qk-rms": (
        {
            "on": _one_of("both", "keys"),
            "scale": _one_of("channels", "heads", "none"),
            "eps": FormulaOption(QK_NORM_EPS, _positive, "a number above 0"),
        },
        _qk_rms,
    ),
    "qk-l2": ({"temperature": _TEMPERATURE}, partial(_normed, _bare_l2, "l2", "QK-Norm; Henry 2020")),
    "qk-layer-norm": ({"temperature": _TEMPERATURE}, partial(_normed, _bare_layer_norm, "LN", "QK-Norm")),
    "qana": (
        {
            "hidden": FormulaOption(4, partial(_positive, kind=int), "a whole number, 1 or more"),
            "activation": _ACTIVATION,
            "gate": _SWITCH,
            "rope": _SWITCH,
            "start": _one_of("drawn", "zero"),
        },
        _qana,
    ),
    "softcap": ({"cap": FormulaOption(50.0, _positive, "a number above 0")}, _softcap),
}


def make(family: str, arguments: str) -> Formula:
    """Return the formula of a family from the text between the brackets. ModelError for an unknown option."""
    options, build = FAMILIES[family]
    values: dict[str, Value] = {key: option.usual for key, option in options.items()}
    keys: set[str] = set()
    for item in filter(None, map(str.strip, arguments.split(","))):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in options:
            raise ModelError(unknown(f"option of attention {family}", key, options))
        if key in keys:
            raise ModelError(f"attention {family}: {key} is given twice; expected it once")
        keys.add(key)
        try:
            values[key] = options[key].read(text)
        except (ValueError, KeyError):
            what = repr(text) if equals else "without a value"
            raise ModelError(f"attention {family}: {key} {what}; expected {options[key].expected}") from None
    unusual_options = [
        f"{key}={value_text(values[key])}" for key, option in options.items() if values[key] != option.usual
    ]
    return build(f"{family}({','.join(unusual_options)})" if unusual_options else family, values)


def value_text(value: Value) -> str:
    """Return a value as names have it."""
    if isinstance(value, bool):
        return str(value).lower()
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short


QUEST, ELLIPTICAL, ELLIPTICAL_QUEST, QKNORM_LN, QK_RMS, QK_L2, QK_LAYER_NORM, QANA, SOFTCAP = (
    make(name, "") for name in FAMILIES
)
_FORM = re.compile(r"\s*([\w-]+)\s*\((.*)\)\s*", re.DOTALL)


def find_formula(name: str) -> Formula:
    """Return the formula of that name, with options in brackets: `quest`, `qana(hidden=8,gate=true)`.

    Raises:
        ModelError: there is none, with the nearest name; or an option that is not understood.

    Example:
        >>> find_formula("quest").elliptical, find_formula("elliptical").elliptical
        (False, True)
    """
    form = _FORM.fullmatch(name)
    family = canonical(form[1] if form else name.strip(), EVERY_FORMULA)
    if family not in EVERY_FORMULA:
        raise ModelError(unknown("attention", family, EVERY_FORMULA))
    if form is None:
        formula: Formula = EVERY_FORMULA[family]
        return formula
    if family not in FAMILIES:
        raise ModelError(f"attention {name!r}: {family} takes no options; expected {family} alone")
    return make(family, form[2])


def scores(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    previous_v: Tensor | None = None,
    *,
    parameters: Parameters | None = None,
) -> Tensor:
    """Return attention logits before softmax, (B, H, N, N).

    Args:
        name: a formula.
        q: (B, H, N, d) queries.
        k: (B, H, N, d) keys.
        v: the values of this block, for the elliptical formulas.
        previous_v: the values of the block before, likewise; without them the block counts as the first one.
        parameters: qk_scale (H,) or (H, 1, 1) for qknorm-hs, head_scale likewise for qk-rms(scale=heads); q_scale,
            k_scale (d,) for -ds, (H, d) for qknorm; q_norm.weight, k_norm.weight (d,) for -ln and qk-rms, and
            q_norm.bias, k_norm.bias (d,) for -ln, where left out 1 and 0; temperature () for learned ones; for qana,
            network (B, H, N, `Network.rows`) and alpha () where it has a gate.

    Example:
        >>> q, k = torch.rand(1, 2, 5, 4), torch.rand(1, 2, 5, 4)
        >>> torch.allclose(scores("standard", q, k), q @ k.mT / 2)
        True
    """
    formula = find_formula(name)
    metric = None
    if formula.elliptical and previous_v is not None:
        if v is None:
            raise ModelError(f"{name} attention needs the values of this block (v) as well as previous_v")
        metric = formula.metric(v, previous_v)
    parameters = parameters or {}
    q, k = formula.reduce(q, k, metric=metric, parameters=parameters)
    logits = formula.bend((q * formula.constant(q.shape[-1])) @ k.transpose(-2, -1))
    if formula.network is None:
        return logits
    if "network" not in parameters:
        raise ModelError(f"{name} attention needs parameters['network'], the weights of each query's network")
    return logits + formula.network.logits(parameters["network"], k, parameters.get("alpha"))
