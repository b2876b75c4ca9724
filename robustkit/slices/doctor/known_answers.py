"""Known answers: what this machine computes, compared with slow replicas and with stored pixels and predictions.

They share no code with what they check.

A check returns a line that says what was right, or raises `UnexpectedAnswer` with what was found and what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

import attacks
from attacks import PGD, ThreatModel
from cam import AGCAM, AGCAMFull

from ...attention.apply import set_attention
from ...attention.registry import FORMULAS
from ...common.determinism import SampleRng, float32
from ...data import shapes
from ...data.images import to_unit_range
from ...models.classifier import load
from ...models.device import has_float64
from ...models.specs import embedded, embedded_file
from . import UnexpectedAnswer, on_all_devices

Floats = npt.NDArray[np.float64]
Nudge = tuple[int, int, int, float]
"""Block, head, key and amount: what is added to the class token's row of an attention after softmax."""
HEADS, DEPTH, GRID, PATCH = 2, 3, (2, 3), 8


def _unit(row: Floats) -> Floats:
    return np.asarray(row / math.sqrt(sum(value * value for value in row)))


def _norm(row: Floats, weight: Floats, bias: Floats, eps: float = 1e-6) -> Floats:
    spread = math.sqrt(sum((value - row.mean()) ** 2 for value in row) / len(row) + eps)
    return np.asarray((row - row.mean()) / spread * weight + bias)


def _rms(row: Floats, weight: Floats) -> Floats:
    return np.asarray(row / math.sqrt(sum(value * value for value in row) / len(row) + 1e-6) * weight)


def _metric(values: Floats, before: Floats | None) -> Floats:
    """Return the diagonal of M for one head, of values (tokens, d) of this block and the one before; 1 in the first."""
    if before is None:
        return np.ones(values.shape[1])
    change = [sum(abs(values[n, j] - before[n, j]) for n in range(len(values))) for j in range(values.shape[1])]
    return np.asarray(np.array(change) / max(change))


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
        "qk-rms": lambda: (_rms(q, p["q_norm.weight"]) / math.sqrt(len(q)), _rms(k, p["k_norm.weight"])),
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
    mixtures: by block the output of attention, (tokens, width), which is kept except in the block of the nudge; missing
    ones are computed and stored."""
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
        mixture = np.concatenate(heads, axis=1)
        if mixtures is not None and not (nudge and nudge[0] == block):
            mixture = mixtures.setdefault(block, mixture)
        x = x + mixture @ attn["proj.weight"].T + attn["proj.bias"]
        normed = np.array([_norm(row, p["norm2.weight"], p["norm2.bias"]) for row in x])
        hidden = normed @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
        hidden = np.array([[_gelu(h) for h in row] for row in hidden])
        x = x + hidden @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]
    last = _norm(x[0], w["norm.weight"], w["norm.bias"])
    return w["head.weight"] @ last + w["head.bias"], np.array(seen).reshape(DEPTH, HEADS, -1)


def slow_agcam(w: Mapping[str, Floats], image: Floats, target: int, full: bool) -> Floats:
    """Return relu(gradient) * sigmoid(score) on the patches, summed over blocks and heads, upsampled, brought to [0,
    1]. full: later attention sees what a nudge has changed; otherwise it stays, as published."""
    step, mixtures = 1e-5, None if full else dict[int, Floats]()
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


@on_all_devices
def no_radius(device: torch.device) -> str:
    """Check that with eps 0 every attack returns the images and so their logits, bit for bit."""
    model, images, labels = _shown(3, device=device)
    clean = model(images)
    for kind in (getattr(attacks, name) for name in ATTACKS):
        points = kind(attacks.ThreatModel(eps=0.0))(model, images, labels)
        if not (torch.equal(points, images) and torch.equal(model(points), clean)):
            raise UnexpectedAnswer(f"{kind.__name__} changes images by {(points - images).abs().max():.3g} at eps 0")
    return "with eps 0 every attack returns the clean images and logits, bit for bit"


@on_all_devices
def monotone(device: torch.device) -> str:
    """Check that PGD breaks at least as many of the same images with a larger radius, and many at 4/255."""
    model, images, labels = _shown(16, device=device)
    rng = SampleRng.of([str(i) for i in range(16)], seed=0, condition="doctor", device=device)
    right = []
    for eps in (0.0, 1 / 255, 4 / 255):
        attack = PGD(ThreatModel(eps=eps), steps=10, step_size=0.25 * eps or None)
        right.append(int((model(attack(model, images, labels, rng=rng)).argmax(dim=1) == labels).sum()))
    counts = f"{right[0]}, {right[1]} and {right[2]} of 16 right at eps 0, 1/255 and 4/255"
    if not (right[0] >= right[1] >= right[2] and right[0] - right[2] >= 4):
        raise UnexpectedAnswer(f"{counts}; expected a fall")
    return counts


def _shown(
    count: int, name: str = "shapes-vit-standard", device: torch.device | str = "cpu"
) -> tuple[Any, Tensor, Tensor]:
    pixels = np.stack([shapes.render("test", index).pixels for index in range(count)])
    labels = torch.tensor([shapes.class_of(index) for index in range(count)])
    images = to_unit_range(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    return load(f"zoo:{name}").to(device), images.to(device), labels.to(device)


@on_all_devices
def shipped_checkpoints(device: torch.device) -> str:
    """Check that the shipped files are intact, and that one of them predicts as when shipped, on every device."""
    names = embedded(None)
    for name in names:
        embedded_file(name)  # raises CheckpointError for another digest
    model, images, _ = _shown(3, "shapes-vit-quest", device)
    with torch.no_grad(), float32():
        logits, predicted = model(images).max(dim=1)
    if predicted.tolist() != PREDICTIONS or not np.allclose(logits.tolist(), LOGITS, atol=0.02):
        rounded = [round(value, 3) for value in logits.tolist()]
        raise UnexpectedAnswer(f"{predicted.tolist()} with {rounded} and not {PREDICTIONS} with {LOGITS}")
    return f"{len(names)} files are as shipped; predictions are correct"


@on_all_devices
def corrupted(device: torch.device) -> str:
    """Check 12 pixels and the mean of a fixed image under each corruption at severity 3, frost in our own textures."""
    for name, (mean, expected) in CORRUPTED.items():
        pixel_mean, pixels = corrupted_pixels(name, device if has_float64(device) else "cpu")
        off = [abs(a - b) > 1 for a, b in zip(pixels, expected, strict=True)]
        if sum(off) > 1 or abs(pixel_mean - mean) > 0.25:  # where rounding ties: one level, rarely more
            raise UnexpectedAnswer(f"{name} gives pixels {pixels}, mean {pixel_mean}; expected {expected}, mean {mean}")
    return f"{len(CORRUPTED)} corruptions give the pixels that they gave when this was written"


def corrupted_pixels(name: str, device: torch.device | str = "cpu") -> tuple[float, list[int]]:
    """Return the mean, and 12 pixels, of a pattern of 32 x 48 under a corruption at severity 3."""
    from corruptions import PRESETS, corruption

    channel, row, column = torch.meshgrid(*map(torch.arange, (3, 32, 48)), indexing="ij")
    image = ((5 * column + 3 * row + 50 * channel + 40 * ((row // 8 + column // 8) % 2)) % 256).to(torch.uint8)[None]
    rng = SampleRng.of(["sample"], seed=0, condition=name, device=device)
    preset = "imagenet" if name in PRESETS["imagenet"] else "cifar"
    result = corruption(name, preset=preset, texture="own")(image.to(device), 3, rng)[0].cpu()
    pixels = [int(result[i % 3, (5 * i + 3) % 32, (11 * i + 7) % 48]) for i in range(12)]
    return round(float(result.double().mean()), 2), pixels


@on_all_devices
def formulas(device: torch.device) -> str:
    """Check the logits of a small ViT under each of the attention formulas, against loops."""
    for name in FORMULAS:
        model, image = small_vit(name)
        expected, _ = slow_vit(_arrays(model), image[0].numpy(), name)
        dtype = torch.float64 if has_float64(device) else torch.float32
        with torch.no_grad(), float32():
            logits = model.to(device, dtype)(image.to(device, dtype))[0].cpu().numpy()
        rounding = 1e-8 if dtype is torch.float64 else 1e-4
        if not np.allclose(logits, expected, rtol=rounding, atol=rounding):
            raise UnexpectedAnswer(f"{name}: logits {logits.round(6).tolist()} instead of {expected.round(6).tolist()}")
    return f"{len(FORMULAS)} attention formulas are right"


@on_all_devices
def agcam(device: torch.device) -> str:
    """Check AG-CAM's maps of a small ViT against their definitions, with gradients from differences."""
    model, image = small_vit("standard")
    arrays, gaps = _arrays(model), {}
    dtype = torch.float64 if has_float64(device) else torch.float32
    model.to(device, dtype)
    for method in (AGCAM, AGCAMFull):
        with method(model) as explain, float32():
            actual = explain(image.to(device, dtype), 1)[0].cpu().numpy()
        expected = slow_agcam(arrays, image[0].numpy(), 1, full=method is AGCAMFull)
        gap = gaps[method.name] = float(np.abs(actual - expected).max())
        if not gap < 1e-4:
            raise UnexpectedAnswer(f"the map of {method.name} differs from its definition by up to {gap:.3g} of [0, 1]")
    return f"the maps of {' and '.join(gaps)} match their definitions within {max(gaps.values()):.0e}"


def small_vit(formula: str) -> tuple[Any, Tensor]:
    """Build a ViT of 6 patches, 3 blocks and 2 heads in float64, every weight drawn, and an image (1, 3, 16, 24)."""
    size = (GRID[0] * PATCH, GRID[1] * PATCH)
    model: Any = VisionTransformer(
        img_size=size, patch_size=PATCH, embed_dim=8, depth=DEPTH, num_heads=HEADS, mlp_ratio=2, num_classes=3
    )
    set_attention(model.double().eval(), formula)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=stream, dtype=torch.float64))
    model.requires_grad_(False)
    return model, torch.rand(1, 3, *size, generator=stream, dtype=torch.float64)


def _arrays(model: Any) -> dict[str, Floats]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


ATTACKS = ("FGSM", "PGD", "SPSA", "APGD", "FAB", "Square", "AutoAttack")
PREDICTIONS, LOGITS = [0, 1, 9], [3.764, 3.495, 0.385]
"""Predictions of shapes-vit-quest for the first three test images, and the largest logit of each."""
CORRUPTED: dict[str, tuple[float, list[int]]] = {
    "gaussian_noise": (127.87, [67, 167, 32, 114, 140, 255, 171, 221, 108, 108, 218, 167]),
    "shot_noise": (123.3, [106, 127, 42, 42, 63, 255, 170, 170, 170, 63, 255, 191]),
    "impulse_noise": (127.8, [44, 204, 28, 38, 134, 254, 168, 248, 112, 138, 218, 122]),
    "defocus_blur": (127.94, [63, 184, 55, 117, 154, 140, 159, 128, 108, 118, 146, 102]),
    "glass_blur": (128.7, [48, 151, 40, 166, 143, 170, 161, 226, 110, 92, 203, 77]),
    "motion_blur": (125.04, [89, 190, 52, 21, 153, 47, 176, 141, 118, 120, 151, 111]),
    "zoom_blur": (130.29, [73, 201, 22, 204, 137, 222, 166, 235, 99, 122, 214, 82]),
    "snow": (197.92, [107, 255, 145, 106, 209, 255, 236, 255, 142, 215, 255, 227]),
    "frost": (222.5, [154, 255, 181, 166, 226, 255, 249, 255, 228, 225, 255, 233]),
    "fog": (121.93, [68, 130, 86, 112, 128, 155, 109, 131, 120, 136, 159, 173]),
    "brightness": (155.38, [67, 204, 30, 59, 185, 255, 196, 255, 188, 147, 255, 198]),
    "contrast": (127.79, [115, 143, 104, 114, 129, 149, 140, 152, 121, 134, 146, 123]),
    "elastic_transform": (122.61, [96, 174, 68, 38, 116, 97, 177, 37, 133, 89, 94, 83]),
    "pixelate": (128.59, [41, 210, 29, 40, 134, 251, 173, 220, 109, 146, 221, 87]),
    "jpeg_compression": (127.65, [41, 198, 29, 124, 136, 154, 168, 213, 83, 158, 185, 101]),
    "speckle_noise": (123.15, [42, 103, 23, 30, 176, 255, 177, 230, 113, 83, 201, 106]),
    "gaussian_blur": (127.59, [62, 185, 48, 119, 153, 135, 157, 141, 113, 119, 157, 103]),
    "spatter": (135.65, [44, 255, 59, 38, 200, 254, 168, 248, 112, 138, 218, 122]),
    "saturate": (103.29, [0, 154, 0, 0, 92, 254, 165, 248, 112, 37, 218, 122]),
    "caustic_refraction": (128.9, [91, 230, 18, 254, 142, 88, 157, 255, 131, 112, 214, 120]),
    "inverse_sparkles": (172.99, [134, 204, 28, 72, 225, 254, 168, 251, 185, 141, 218, 192]),
    "sparkles": (133.55, [46, 205, 35, 42, 135, 254, 174, 250, 115, 139, 218, 126]),
    "perlin_noise": (145.52, [77, 213, 70, 78, 151, 234, 163, 223, 134, 142, 204, 132]),
    "blue_noise_sample": (123.59, [44, 204, 28, 38, 134, 254, 168, 248, 112, 138, 218, 122]),
    "plasma_noise": (103.47, [0, 201, 76, 17, 157, 253, 151, 165, 60, 54, 129, 149]),
    "checkerboard_cutout": (126.94, [128, 204, 28, 128, 134, 254, 168, 128, 112, 128, 218, 122]),
    "cocentric_sine_waves": (127.57, [5, 156, 24, 74, 98, 227, 164, 255, 64, 108, 255, 83]),
    "single_frequency_greyscale": (127.87, [5, 204, 66, 50, 164, 255, 197, 255, 92, 176, 217, 83]),
    "brownish_noise": (137.99, [53, 222, 66, 52, 106, 255, 210, 255, 111, 180, 208, 141]),
    "pinch_and_twirl": (125.26, [92, 204, 26, 46, 134, 227, 171, 247, 112, 95, 220, 122]),
    "ripple": (124.19, [74, 207, 25, 198, 160, 216, 172, 192, 80, 137, 212, 99]),
    "circular_motion_blur": (121.56, [53, 201, 28, 44, 147, 191, 167, 213, 58, 128, 217, 114]),
    "lines": (126.81, [101, 180, 28, 38, 133, 228, 168, 248, 113, 129, 218, 128]),
    "transverse_chromatic_abberation": (132.96, [108, 197, 26, 236, 141, 117, 175, 241, 100, 143, 218, 81]),
    "mosaic": (128.0, [0, 171, 27, 101, 157, 202, 171, 177, 133, 141, 230, 160]),
    "glitched": (64.08, [108, 0, 38, 0, 124, 0, 152, 0, 178, 0, 223, 0]),
    "vertical_lines": (29.65, [0, 44, 0, 0, 0, 162, 211, 0, 0, 232, 0, 0]),
    "geometric_shapes": (122.9, [87, 113, 43, 209, 255, 127, 81, 80, 82, 185, 221, 57]),
    "stickers": (128.19, [176, 54, 243, 17, 103, 62, 226, 255, 112, 162, 150, 235]),
    "luminance_checkerboard": (127.17, [147, 80, 142, 0, 19, 145, 44, 255, 0, 23, 255, 5]),
}
"""Mean and 12 pixels under each corruption at severity 3, from `corrupted_pixels`."""
