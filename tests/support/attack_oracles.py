"""Slow replicas: formulas written down as the papers have them, one sample at a time, to test the fast ones against."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

# --- attacks ---------------------------------------------------------------------------------------------------------


class Draws:
    """Random numbers that depend on (sample id, purpose, row) only: the least that satisfies `attacks.Rng`."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def _generator(self, *key: object) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.stack([torch.rand(*shape, generator=self._generator(i, purpose)) for i in self.ids])

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.stack([torch.randn(*shape, generator=self._generator(i, purpose)) for i in self.ids])

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        def row(sample: int, number: int) -> Tensor:
            return torch.randint(0, 2, tuple(shape[1:]), generator=self._generator(sample, purpose, number)) * 2.0 - 1.0

        rows = range(first, first + shape[0])
        return torch.stack([torch.stack([row(i, number) for number in rows]) for i in self.ids])

    def take(self, index: Tensor) -> Draws:
        return Draws([self.ids[i] for i in index.tolist()])


def tiny_cnn(classes: int = 5) -> nn.Module:
    """A small convolutional network with batch normalisation and dropout, for (B, 3, 8, 8), always the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.GELU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(12 * 16, classes),
        )
    return net.eval()


def random_images(count: int, seed: int = 1) -> Tensor:
    """(count, 3, 8, 8) in [0, 1], with some pixels at the very ends."""
    images = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (images * 1.2 - 0.1).clamp(0, 1)


def into_ball(change: Tensor, norm: str, eps: float) -> Tensor:
    """One sample's change, moved to the nearest point of the ball around 0."""
    if norm == "linf":
        return torch.maximum(torch.minimum(change, torch.tensor(eps)), torch.tensor(-eps))
    length = float((change * change).sum()) ** 0.5
    return change if length <= eps else change * (eps / length)


def pgd_slowly(
    model: nn.Module, image: Tensor, label: int, change: Tensor, norm: str, eps: float, step: float, steps: int
) -> Tensor:
    """Madry et al. (2018) for one image from the perturbation `change`, as it is written in the paper."""
    change = (image + into_ball(change, norm, eps)).clamp(0, 1) - image
    for _ in range(steps):
        change = change.clone().requires_grad_()
        loss = -torch.log_softmax(model((image + change)[None])[0], dim=0)[label]
        (gradient,) = torch.autograd.grad(loss, change)
        direction = gradient.sign() if norm == "linf" else gradient / (gradient * gradient).sum().sqrt()
        change = into_ball(change.detach() + step * direction, norm, eps)
        change = (image + change).clamp(0, 1) - image
    return image + change


def spsa_slowly(
    model: nn.Module,
    image: Tensor,
    label: int,
    change: Tensor,
    signs: Sequence[Tensor],
    eps: float,
    lr: float,
    delta: float,
    doubled: bool,
) -> Tensor:
    """Uesato et al. (2018) for one image: one direction after the other, then torch's own Adam on the perturbation.

    signs: for each step, (directions, *image.shape). doubled: ask around twice the image, as CleverHans does by error.
    """

    def objective(point: Tensor) -> float:
        logits = model(point[None])[0].tolist()
        return max(value for index, value in enumerate(logits) if index != label) - logits[label]

    change = nn.Parameter((image + into_ball(change, "linf", eps)).clamp(0, 1) - image)
    optimiser = torch.optim.Adam([change], lr=lr, maximize=True)
    for directions in signs:
        centre = 2 * image if doubled else image + change.detach()
        slopes = [(objective(centre + delta * v) - objective(centre - delta * v)) / (2 * delta) for v in directions]
        change.grad = sum((slope * v for slope, v in zip(slopes, directions, strict=True)), torch.zeros_like(image))
        change.grad /= len(directions)
        optimiser.step()
        change.data = (image + into_ball(change.data, "linf", eps)).clamp(0, 1) - image
    return (image + change).detach()


class Tagged(nn.Module):
    """A model that knows which sample each row is: it reads the tags of `tagged` images, and logs every pass.

    forwards: the samples of each forward, in order. backwards: those of each backward that have a gradient.
    The tagged pixels have no part in the logits, so that no gradient moves them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards: list[list[int]] = []
        self.backwards: list[list[int]] = []
        self.graphs = 0  # forwards that kept what a backward needs

    def forward(self, images: Tensor) -> Tensor:
        tens, ones = (images.detach()[:, 0, 0, place].mul(10).sub(0.5).round().int() for place in (0, 1))
        samples = (10 * tens + ones).tolist()
        self.forwards.append(samples)
        seen = torch.ones_like(images)
        seen[:, 0, 0, :2] = 0
        logits = self.model(images * seen)
        if logits.requires_grad:
            self.graphs += 1

            def note(gradient: Tensor) -> None:
                used = gradient.flatten(1).abs().sum(dim=1) > 0
                self.backwards.append([sample for sample, yes in zip(samples, used.tolist(), strict=True) if yes])

            logits.register_hook(note)
        return logits

    def count(self, samples: int, backwards: bool = False) -> list[int]:
        """Passes of each sample."""
        passes = [sample for batch in (self.backwards if backwards else self.forwards) for sample in batch]
        return [passes.count(sample) for sample in range(samples)]


def tagged(images: Tensor) -> Tensor:
    """The images with their positions (up to 99) in two pixels, to be read after changes of less than 0.05."""
    images, places = images.clone(), torch.arange(len(images))
    images[:, 0, 0, 0] = (places // 10) / 10 + 0.05
    images[:, 0, 0, 1] = (places % 10) / 10 + 0.05
    return images


def slow_loss(name: str, logits: Tensor, label: int, target: int) -> Tensor:
    """The losses of Croce and Hein (2020) for one sample's logits (K,)."""
    top = logits.sort(descending=True).values
    others = torch.cat([logits[:label], logits[label + 1 :]])
    if name == "ce":
        return logits.exp().sum().log() - logits[label]
    if name == "dlr":
        return -(logits[label] - others.max()) / (top[0] - top[2])
    assert name == "dlr-targeted"
    return -(logits[label] - logits[target]) / (top[0] - (top[2] + top[3]) / 2)


def apgd_slowly(
    model: nn.Module,
    image: Tensor,
    label: int,
    target: int,
    start: Tensor,
    norm: str,
    eps: float,
    steps: int,
    checkpoints: Sequence[int],
    loss: str,
) -> tuple[list[Tensor], list[float], list[bool]]:
    """Croce and Hein (2020), algorithm 1, for one image: all steps + 1 points, their losses, and which are wrong.

    Two things as the published code has them: a share of rises of exactly 0.75 halves the step size too, and a run
    that was halved at the last checkpoint (as all are before the first) is not halved for a maximum that stayed.
    """
    radius = eps if norm == "linf" else eps * (1 - 1e-6)  # as `Ball` keeps rounded sums inside

    def project(point: Tensor) -> Tensor:
        return (image + into_ball(point - image, norm, radius)).clamp(0, 1)

    def ask(point: Tensor) -> tuple[float, Tensor, bool]:
        point = point.clone().requires_grad_()
        logits = model(point[None])[0]
        value = slow_loss(loss, logits, label, target)
        (slope,) = torch.autograd.grad(value, point)
        length = float((slope * slope).sum()) ** 0.5
        direction = slope.sign() if norm == "linf" else slope / (length or 1.0)
        return float(value.detach()), direction, int(logits.argmax()) != label

    value, direction, wrong = ask(start)
    points, values, wrongs = [start], [value], [wrong]
    here, before, best, best_direction = start, start, start, direction
    size, last_checkpoint, checked_max, halved = 2 * eps, 0, value, True
    for k in range(1, steps + 1):
        momentum = 1.0 if k == 1 else 0.75
        ahead = project(here + size * direction)
        before, here = here, project(here + momentum * (ahead - here) + (1 - momentum) * (here - before))
        value, direction, wrong = ask(here)
        if value > max(values):
            best, best_direction = here, direction
        points.append(here)
        values.append(value)
        wrongs.append(wrong)
        if k in checkpoints:
            rises = sum(values[i + 1] > values[i] for i in range(last_checkpoint, k))
            stayed = not halved and checked_max == max(values)
            halved = rises <= 0.75 * (k - last_checkpoint) or stayed
            if halved:
                size /= 2
                here, direction = best, best_direction
            last_checkpoint, checked_max = k, max(values)
    return points, values, wrongs


def square_slowly(point: Tensor, image: Tensor, side: int, draws: Sequence[float], norm: str, eps: float) -> Tensor:
    """One proposal of the Square attack (Andriushchenko et al. 2020, algorithms 2 and 3), pixel by pixel.

    draws: as `attacks.Square` uses them: rows and columns of the windows, for l2 which way the bump lies, then signs.
    """
    channels, height, width = point.shape
    top, left = int(draws[0] * (height - side + 1)), int(draws[1] * (width - side + 1))
    window = [(i, j) for i in range(side) for j in range(side)]
    new = point.clone()
    if norm == "linf":
        for c in range(channels):
            for i, j in window:
                moved = float(image[c, top + i, left + j]) + (eps if draws[2 + c] >= 0.5 else -eps)
                new[c, top + i, left + j] = min(max(moved, 0.0), 1.0)
        return new
    other = int(draws[2] * (height - side + 1)), int(draws[3] * (width - side + 1))
    change = new - image
    left_over = max(eps**2 - float((change * change).sum()), 0.0)
    bump = slow_bump(side)
    result = change.clone()
    for c in range(channels):
        both = {(top + i, left + j) for i, j in window} | {(other[0] + i, other[1] + j) for i, j in window}
        budget = sum(float(change[c, y, x]) ** 2 for y, x in both) + left_over / channels
        old = sum(float(change[c, top + i, left + j]) ** 2 for i, j in window) ** 0.5
        values = {}
        for i, j in window:
            height_here = bump[i][j] if draws[4] < 0.5 else bump[j][i]
            sign = 1.0 if draws[5 + c] >= 0.5 else -1.0
            values[i, j] = sign * height_here + (float(change[c, top + i, left + j]) / old if old else 0.0)
        length = sum(value**2 for value in values.values()) ** 0.5
        for i, j in window:
            result[c, other[0] + i, other[1] + j] = 0.0
        for i, j in window:
            result[c, top + i, left + j] = values[i, j] / (length or 1.0) * budget**0.5
    length = float((result * result).sum()) ** 0.5
    return (image + result * (eps / (length or 1.0))).clamp(0, 1)


def slow_bump(side: int) -> list[list[float]]:
    """Equation 2 of Andriushchenko et al. (2020): the upper half a hill of length 1, the lower half a hollow."""

    def hill(rows: int, columns: int) -> list[list[float]]:
        def value(i: int, j: int) -> float:
            away = max(abs(i - rows // 2), abs(j - columns // 2))
            return sum(1 / (k + 1) ** 2 for k in range(away, max(rows // 2, columns // 2) + 1))

        values = [[value(i, j) for j in range(columns)] for i in range(rows)]
        length = sum(x * x for row in values for x in row) ** 0.5
        return [[x / length for x in row] for row in values]

    whole = hill(side // 2, side) + [[-x for x in row] for row in hill(side - side // 2, side)]
    length = sum(x * x for row in whole for x in row) ** 0.5
    return [[x / length for x in row] for row in whole]


# --- attention formulas (QUEST: Table 1, Alg. A1, A.5.2; Nielsen 2024) ------------------------------------------------


def slow_metric(v: Tensor, previous_v: Tensor, options: Mapping[str, str]) -> list[float]:
    """The diagonal of M for one sample and head; v, previous_v: (N, d). As released: first over delta, then scaled."""
    (tokens, dim), delta = v.shape, float(options.get("delta", 5))
    v, previous_v = v.detach().double(), previous_v.detach().double()
    change = []
    for j in range(dim):
        steps = sorted(abs(float(v[n, j]) - float(previous_v[n, j])) / delta for n in range(tokens))
        change.append(steps[(tokens - 1) // 2] if options.get("average") == "median" else sum(steps) / tokens)
    whole = {"max": max(change), "mean": sum(change) / dim, "none": 1.0}[options.get("scale", "max")]
    return [c / whole if whole > 0 else 1.0 for c in change]


def bare_normed(family: str, row: Tensor) -> Tensor:
    """QK-Norm's two normalisations of a row, eps as in the document."""
    if family == "qk-l2":
        return row / ((row * row).sum() + 1e-12).sqrt()
    return (row - row.mean()) / (((row - row.mean()) ** 2).mean() + 1e-5).sqrt()


def turn(row: Tensor, position: int) -> Tensor:
    """RoPE of one row by complex numbers: channels (j, j + d/2) are the two parts of number j."""
    half = len(row) // 2
    angles = torch.tensor([position * 10_000 ** (-2 * j / len(row)) for j in range(half)], dtype=torch.float64)
    turned = torch.complex(row[:half], row[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angles)
    return torch.cat([turned.real, turned.imag])


def slow_network(weights: Tensor, i: int, j: int, key: Tensor, options: Mapping[str, str]) -> Tensor:
    """QANA's V σ(Ũ k̃ + b) + c of one query and one key, cut as in the document, §3.2."""
    dim, hidden = len(key), int(options.get("hidden", 4))
    sigma = getattr(torch.nn.functional, options.get("activation", "gelu"))
    u = weights[: hidden * dim].reshape(hidden, dim)
    v = weights[hidden * dim : hidden * dim + hidden]
    b, c = weights[-hidden - 1 : -1], weights[-1]
    if "rope" in options:
        u, key = torch.stack([turn(row, i) for row in u]), turn(key, j)
    return sum((v[n] * sigma(u[n] @ key + b[n]) for n in range(hidden)), torch.zeros((), dtype=torch.float64)) + c


def slow_scores(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    previous_v: Tensor | None,
    parameters: Mapping[str, Tensor],
) -> Tensor:
    """Attention logits (B, H, N, N) in float64, one sample, head, query and key at a time."""
    q, k = q.double(), k.double()
    samples, heads, tokens, dim = q.shape
    family, _, inside = name.rstrip(")").partition("(")
    options = dict(item.split("=") for item in inside.split(",") if item)
    cap = float(options.get("cap", 50))
    heat = float(options["temperature"]) if options.get("temperature", "learned") != "learned" else dim**0.5
    logits: list[Tensor] = []

    def unit_row(row: Tensor) -> Tensor:
        length = (row * row).sum().sqrt()
        return row / length.clamp(min=float(options.get("eps", 0))) if length > 0 else row

    def normed(row: Tensor, which: str) -> Tensor:
        mean = row.mean()
        row = (row - mean) / (((row - mean) ** 2).mean() + 1e-6).sqrt()
        weight, bias = parameters.get(f"{which}.weight"), parameters.get(f"{which}.bias")
        return row * (1.0 if weight is None else weight.double()) + (0.0 if bias is None else bias.double())

    def rms_row(row: Tensor, which: str) -> Tensor:
        eps, weight = float(options.get("eps", 1e-6)), parameters.get(f"{which}.weight")
        return row / ((row * row).sum() / dim + eps).sqrt() * (1.0 if weight is None else weight.double())

    for b in range(samples):
        for h in range(heads):
            metric = [1.0] * dim
            if name.startswith("elliptical") and previous_v is not None:
                metric = slow_metric(v[b, h], previous_v[b, h], options)
            m = torch.tensor(metric, dtype=torch.float64)
            queries, keys = q[b, h].unbind(), k[b, h].unbind()
            unit_queries, unit_keys = list(map(unit_row, queries)), list(map(unit_row, keys))
            for i in range(tokens):
                for j in range(tokens):
                    a, c, unit_a, unit_c = queries[i], keys[j], unit_queries[i], unit_keys[j]
                    if name == "standard":
                        s = (a * c).sum() / dim**0.5
                    elif family == "quest":
                        s = (a * unit_c).sum()
                    elif name == "qnorm":
                        s = (unit_a * c).sum()
                    elif name == "qknorm-hs":
                        s = parameters["qk_scale"][h].double() * (unit_a * unit_c).sum()
                    elif name == "qknorm-ds":
                        scale = parameters["q_scale"].double() * parameters["k_scale"].double()
                        s = (scale * unit_a * unit_c).sum()
                    elif name == "qknorm":
                        scale = parameters["q_scale"][h].double() * parameters["k_scale"][h].double()
                        s = (scale * unit_a * unit_c).sum()
                    elif family == "qknorm-ln":
                        s = (normed(a, "q_norm") * normed(c, "k_norm")).sum() / dim**0.5
                    elif family == "elliptical":
                        s = (a * m * c).sum() / dim**0.5
                    elif family == "elliptical-quest":
                        # S Q̄ M K̄ᵀ as the paper writes it
                        s = (a * a).sum().sqrt() * (unit_a * m * unit_c).sum()
                    elif family == "qk-rms":
                        left = a if options.get("on") == "keys" else rms_row(a, "q_norm")
                        head_scale = parameters["head_scale"][h].double() if options.get("scale") == "heads" else 1.0
                        s = head_scale * (left * rms_row(c, "k_norm")).sum() / dim**0.5
                    elif name.startswith("qk-"):
                        s = bare_normed(family, a) @ bare_normed(family, c) * parameters.get("temperature", heat)
                    elif family == "softcap":
                        s = cap * torch.tanh((a * c).sum() / dim**0.5 / cap)
                    elif family == "qana":
                        network = slow_network(parameters["network"][b, h, i].double(), i, j, c, options)
                        turned = (turn(a, i), turn(c, j)) if "rope" in options else (a, c)
                        s = (turned[0] * turned[1]).sum() / dim**0.5 + parameters.get("alpha", 1.0) * network
                    else:
                        raise KeyError(name)
                    logits.append(s.reshape(()))
    return torch.stack(logits).view(samples, heads, tokens, tokens)


def slow_vit(
    model: nn.Module, images: Tensor, name: str, cut: bool = False
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits, scores and attention of a timm ViT under a formula, block by block, from its weights alone.

    cut: no gradient passes from what attention reads to the blocks before.
    """
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    all_scores, all_attention = [], []
    previous_v = None
    for block in model.blocks:
        layer = block.attn
        samples, tokens, width = x.shape
        read = block.norm1(x).detach() if cut else block.norm1(x)
        packed = layer.qkv(read).reshape(samples, tokens, 3, layer.num_heads, -1)
        q, k, v = (packed[:, :, part].transpose(1, 2) for part in range(3))
        parameters = dict(layer.named_parameters())
        if name.startswith("qana"):
            rows = layer.query_network(read).reshape(samples, tokens, layer.num_heads, -1)
            parameters["network"] = rows.transpose(1, 2)
        s = slow_scores(name, q, k, v, previous_v, parameters).to(x.dtype)
        a = s.softmax(dim=-1)
        mixed = torch.stack([a[:, h] @ v[:, h] for h in range(layer.num_heads)], dim=2).reshape(samples, tokens, width)
        x = x + block.ls1(layer.proj(mixed))
        x = x + block.ls2(block.mlp(block.norm2(x)))
        all_scores.append(s)
        all_attention.append(a)
        previous_v = v.detach()
    return model.forward_head(model.norm(x)), all_scores, all_attention


def onto_ball_slowly(change: Tensor, norm: str, radius: float) -> Tensor:
    """The point of a ball around 0 nearest to one sample's change."""
    flat = change.flatten().tolist()
    if norm == "linf":
        kept = [max(-radius, min(radius, value)) for value in flat]
    elif norm == "l2":
        length = math.sqrt(sum(value * value for value in flat))
        kept = [value * min(1.0, radius / length) if length else value for value in flat]
    elif norm == "l0":
        first = sorted(range(len(flat)), key=lambda i: -abs(flat[i]))[: min(int(min(radius, 1e9)), len(flat))]
        kept = [value if i in first else 0.0 for i, value in enumerate(flat)]
    else:  # by halving: how much all values shrink
        low, high = 0.0, max(map(abs, flat))
        for _ in range(200):
            middle = (low + high) / 2
            small = sum(max(abs(value) - middle, 0.0) for value in flat) <= radius
            low, high = (low, middle) if small else (middle, high)
        inside = sum(map(abs, flat)) <= radius
        kept = flat if inside else [math.copysign(max(abs(value) - high, 0.0), value) for value in flat]
    return torch.tensor(kept, dtype=change.dtype).reshape(change.shape)


def minimal_slowly(
    name: str,
    model: nn.Module,
    image: Tensor,
    label: int,
    norm: str,
    steps: int,
    alpha: float = 1.0,
    gamma: float = 0.05,
) -> tuple[float, Tensor]:
    """FMN (Pintor et al. 2021, algorithm 1) or DDN (Rony et al. 2019, algorithm 1) for one image: distance, point."""
    order = {"linf": math.inf, "l2": 2.0, "l1": 1.0, "l0": 0.0}[norm]
    dual = {"linf": 1.0, "l2": 2.0, "l1": math.inf}.get(norm)
    best, found, change = math.inf, image, torch.zeros_like(image)
    radius = 1.0 if name == "ddn" or norm == "l0" else 0.0
    for step in range(steps + 1):
        point = (image + change).detach().requires_grad_()
        logits = model(point[None])[0]
        size = float(torch.linalg.vector_norm((point - image).detach().flatten(), ord=order))
        wrong = int(logits.argmax()) != label
        if wrong and size < best:
            best, found = size, point.detach()
        if step == steps:
            break
        others = torch.cat([logits[:label], logits[label + 1 :]])
        loss = others.max() - logits[label] if name == "fmn" else logits.logsumexp(0) - logits[label]
        gradient = torch.autograd.grad(loss, point)[0]
        wave = (1 + math.cos(math.pi * step / steps)) / 2
        pace = alpha * (0.01 + 0.99 * wave)
        ahead = (point - image).detach() + pace * gradient / gradient.norm().clamp_min(1e-30)
        if name == "ddn":
            radius *= 1 - gamma if wrong else 1 + gamma
            change = radius * ahead / ahead.norm()
        else:
            share = 0.001 + (gamma - 0.001) * wave
            if norm == "l0":
                less = min(radius - 1, math.floor(radius * (1 - share)), best)
                radius = max(less, 0) if wrong else max(radius + 1, math.floor(radius * (1 + share)))
            elif wrong:
                radius = min(radius * (1 - share), best)
            elif best < math.inf:
                radius *= 1 + share
            else:
                slope = float(torch.linalg.vector_norm(gradient.flatten(), ord=dual))
                radius = max(radius * (1 + share), size + (1 + share) * abs(float(loss.detach())) / slope)
            change = onto_ball_slowly(ahead, norm, radius)
        change = (image + change).clamp(0, 1) - image
    return best, found


def hopskipjump_slowly(
    model: nn.Module, image: Tensor, label: int, norm: str, queries: int, directions: int, rng: Draws
) -> tuple[float, Tensor, int]:
    """HopSkipJump (Chen et al. 2020, algorithm 2) for one image, one question at a time: distance, point, questions."""
    asked = 0

    def is_wrong(point: Tensor) -> bool:
        nonlocal asked
        if asked == queries:
            return False
        asked += 1
        return int(model(point[None])[0].argmax()) != label

    def size(point: Tensor) -> float:
        return float(torch.linalg.vector_norm((point - image).flatten(), ord=math.inf if norm == "linf" else 2))

    def back(point: Tensor) -> Tensor:
        low, high, far, whole = 0.0, 1.0, point, size(point)
        for _ in range(10):
            middle = (low + high) / 2
            change = far - image
            change = change.clamp(-middle * whole, middle * whole) if norm == "linf" else middle * change
            if is_wrong(image + change):
                point, high = image + change, middle
            else:
                low = middle
        return point

    channels, height, width = image.shape
    for number in range(queries):
        side = (0, 1, 2, 4, 8)[number % 5]
        rows, columns = min(side, height) or height, min(side, width) or width
        colours = rng.uniform((channels, rows, columns), f"hopskipjump/start/{number}")[0].to(image)
        across = torch.arange(width) * columns // width
        start = colours[:, torch.arange(height) * rows // height][:, :, across]
        if is_wrong(start):
            break
    else:
        return math.inf, image, asked
    point, best, found, turn = back(start), math.inf, image, 0
    while True:
        if size(point) < best:
            best, found = size(point), point
        turn += 1
        if queries - asked < 21:
            return best, found, asked
        count = min(int(directions * math.sqrt(turn)), queries - asked - 11)
        length, probes, votes = 0.1 * float((point - image).norm()) / math.sqrt(image.numel()), [], []
        for number in range(count):
            sign = rng.signs((1, *image.shape), f"hopskipjump/round/{turn}", number)[0, 0].to(image)
            probes.append((point + length * sign).clamp(0, 1) - point)
            votes.append(1.0 if is_wrong(point + probes[-1]) else -1.0)
        mean = sum(votes) / count
        mean = 0.0 if abs(mean) == 1 else mean
        normal = torch.stack([(vote - mean) * probe for vote, probe in zip(votes, probes, strict=True)]).sum(dim=0)
        normal[normal.abs() < length / (2 * count)] = 0  # votes for and against that are equal
        normal = normal.sign() if norm == "linf" else normal / normal.norm()
        step = size(point) / math.sqrt(turn)
        for halved in range(10):
            tried = (point + step / 2**halved * normal).clamp(0, 1)
            if is_wrong(tried):
                point = tried
                break
        point = back(point)
