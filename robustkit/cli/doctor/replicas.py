"""A small ViT and its AG-CAM in float64 loops: slow, written after the papers' definitions.

They share no code with what they check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Nudge = tuple[int, int, int, float]
"""Block, head, key and amount: what is added to the class token's row of an attention after softmax."""
HEADS, DEPTH, GRID, PATCH = 2, 3, (2, 3), 8


def _unit(row: Floats) -> Floats:
    unit: Floats = row / math.sqrt(sum(value * value for value in row))
    return unit


def _norm(row: Floats, weight: Floats, bias: Floats, eps: float = 1e-6) -> Floats:
    """Apply LayerNorm to one row."""
    spread = math.sqrt(sum((value - row.mean()) ** 2 for value in row) / len(row) + eps)
    normed: Floats = (row - row.mean()) / spread * weight + bias
    return normed


def _metric(values: Floats, before: Floats | None) -> Floats:
    """Return the diagonal of M for one head, of values (tokens, d) of this block and the one before; 1 in the first
    block.
    """
    if before is None:
        return np.ones(values.shape[1])
    change = [sum(abs(values[n, j] - before[n, j]) for n in range(len(values))) for j in range(values.shape[1])]
    metric: Floats = np.array(change) / max(change)
    return metric


def slow_score(name: str, q: Floats, k: Floats, metric: Floats, head: int, p: Mapping[str, Floats]) -> float:
    """Return the logit of one query and one key (d,) under a formula; p: the layer's own parameters."""
    ones, zeros = np.ones(len(q)), np.zeros(len(q))
    rules: dict[str, Callable[[], tuple[Floats, Floats]]] = {
        "standard": lambda: (q / math.sqrt(len(q)), k),
        "quest": lambda: (q, _unit(k)),
        "qnorm": lambda: (_unit(q), k),
        "qknorm-hs": lambda: (p["qk_scale"][head] * _unit(q), _unit(k)),
        "qknorm-ds": lambda: (p["q_scale"] * _unit(q), p["k_scale"] * _unit(k)),
        "qknorm": lambda: (p["q_scale"][head] * _unit(q), p["k_scale"][head] * _unit(k)),
        "qknorm-ln": lambda: (
            _norm(q, p["q_norm.weight"], p["q_norm.bias"]) / math.sqrt(len(q)),
            _norm(k, p["k_norm.weight"], p["k_norm.bias"]),
        ),
        "elliptical": lambda: (q * metric / math.sqrt(len(q)), k),
        "elliptical-quest": lambda: (q * metric, _unit(k)),
        "qk-l2": lambda: (math.sqrt(len(q)) * _unit(q), _unit(k)),
        "qk-layer-norm": lambda: (math.sqrt(len(q)) * _norm(q, ones, zeros, 1e-5), _norm(k, ones, zeros, 1e-5)),
    }
    left, right = rules.get(name, rules["standard"])()
    score = float(sum(a * b for a, b in zip(left, right, strict=True)))
    return 50 * math.tanh(score / 50) if name == "softcap" else score


def slow_network(weights: Floats, k: Floats) -> float:
    """Return the score that a query's own network of four hidden units gives a key (d,) under qana."""
    u, v, b, c = np.split(weights, [4 * len(k), 4 * len(k) + 4, 4 * len(k) + 8])
    inner = [sum(u[unit * len(k) + j] * k[j] for j in range(len(k))) + b[unit] for unit in range(4)]
    return float(sum(v[unit] * _gelu(inner[unit]) for unit in range(4)) + c[0])


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def slow_vit(
    w: Mapping[str, Floats],
    image: Floats,
    formula: str,
    nudge: Nudge | None = None,
    mixtures: dict[int, Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Return the logits of one image (3, H, W), and the class token's scores before softmax, (blocks, heads, tokens).

    mixtures: the output of attention, (tokens, width), by block. It replaces what a block would compute from its input,
    except in the block of the nudge; missing ones are computed and stored.
    """
    corners = [(row * PATCH, column * PATCH) for row in range(GRID[0]) for column in range(GRID[1])]
    patches = [image[:, y : y + PATCH, x : x + PATCH] for y, x in corners]
    kernel, shift = w["patch_embed.proj.weight"], w["patch_embed.proj.bias"]
    tokens = [w["cls_token"][0, 0], *((kernel * patch).sum(axis=(1, 2, 3)) + shift for patch in patches)]
    x, seen, before = np.array(tokens) + w["pos_embed"][0], [], None
    for block in range(DEPTH):
        p = {name.removeprefix(f"blocks.{block}."): value for name, value in w.items()}
        attn = {name.removeprefix("attn."): value for name, value in p.items() if name.startswith("attn.")}
        normed = np.array([_norm(row, p["norm1.weight"], p["norm1.bias"]) for row in x])
        mixed = normed @ attn["qkv.weight"].T + attn["qkv.bias"]
        q, k, v = mixed.reshape(len(x), 3, HEADS, -1).transpose(1, 2, 0, 3)
        heads = []
        for head in range(HEADS):
            metric = _metric(v[head], None if before is None else before[head])
            logits = np.array([[slow_score(formula, a, b, metric, head, attn) for b in k[head]] for a in q[head]])
            if formula == "qana":
                rows = normed @ attn["query_network.weight"].T + attn["query_network.bias"]
                rows = rows.reshape(len(x), HEADS, -1)[:, head]
                logits += np.array([[slow_network(row, b) for b in k[head]] for row in rows])
            seen.append(logits[0])
            attention = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            if nudge and nudge[:2] == (block, head):
                attention[0, nudge[2]] += nudge[3]
            heads.append(attention @ v[head])
        before = v
        given = np.concatenate(heads, axis=1)
        if mixtures is not None and not (nudge and nudge[0] == block):
            given = mixtures.setdefault(block, given)
        x = x + given @ attn["proj.weight"].T + attn["proj.bias"]
        normed = np.array([_norm(row, p["norm2.weight"], p["norm2.bias"]) for row in x])
        hidden = normed @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
        hidden = np.array([[_gelu(h) for h in row] for row in hidden])
        x = x + hidden @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]
    last = _norm(x[0], w["norm.weight"], w["norm.bias"])
    return w["head.weight"] @ last + w["head.bias"], np.array(seen).reshape(DEPTH, HEADS, -1)


def slow_agcam(w: Mapping[str, Floats], image: Floats, target: int, full: bool = False, step: float = 1e-5) -> Floats:
    """Return the sum over blocks and heads of relu(gradient) * sigmoid(score) on the patches, upsampled, brought to [0,
    1].

    full: later attention sees what a nudge has changed. Otherwise it stays as it was, as published.
    """
    mixtures: dict[int, Floats] | None = None if full else {}
    _, scores = slow_vit(w, image, "standard", mixtures=mixtures)
    total = np.zeros(scores.shape[2])
    for block, head, key in np.ndindex(*scores.shape):
        nudged = (slow_vit(w, image, "standard", (block, head, key, way), mixtures) for way in (step, -step))
        ends = [logits[target] for logits, _ in nudged]
        total[key] += max(0.0, (ends[0] - ends[1]) / (2 * step)) / (1 + math.exp(-scores[block, head, key]))
    grid = total[1:].reshape(GRID)
    drawn: Floats = np.array([[_between(grid, y, x) for x in range(GRID[1] * PATCH)] for y in range(GRID[0] * PATCH)])
    drawn -= drawn.min()
    drawn /= drawn.max()
    return drawn


def _between(grid: Floats, y: int, x: int) -> float:
    """Return the bilinear value of a pixel; centres of pixels and patches lie on one plane, edges are repeated."""
    value = 0.0
    row, column = ((at + 0.5) / PATCH - 0.5 for at in (y, x))
    for r in (math.floor(row), math.floor(row) + 1):
        for c in (math.floor(column), math.floor(column) + 1):
            weight = (1 - abs(row - r)) * (1 - abs(column - c))
            value += weight * grid[min(max(r, 0), GRID[0] - 1), min(max(c, 0), GRID[1] - 1)]
    return value
