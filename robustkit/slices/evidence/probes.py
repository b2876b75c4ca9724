"""Probe on a few samples whether a model answers the same however it is asked; one that detects attacks fails.

Each returns plain columns of figures, a row for each sample; `examining` gathers them, `gradient_masking` judges them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from attacks import LOSSES, PGD, Attack, Rng, ThreatModel, TorchRng, margin
from attacks.model_access import Model, Oracle, input_gradient, with_all_classes
from attacks.spatial import move

from ...common.differences import sign_test
from .gradient_masking import AROUND, HIDES

GREY = 1 / 255
TINY = 0.05 * GREY  # off the 8-bit grid, and far too little to see: an attack of this size moves logits by a per cent
SEGMENTS, HALVINGS = 8, 10  # halvings of each leg of a path: a jump stays, any other change shrinks to a thousandth
_WORST = 1e6  # stands for a difference that is not finite, so that JSON can hold it
_SHORT = {"steps": 2, "targets": 1, "queries": 2, "restarts": 1}
_HALVES = (torch.float16, torch.bfloat16)
_OFFSET = 0.1  # of eps, at most, by which the probes' PGD begins away from each value of the image
_REACH = 16  # median distances below the median logit: lower ones count as so low
_WATCHED = 8  # gradients of the short attack that are compared with what the outputs do
# Of eps for each value, at least of a grey level: the first that rounding leaves readable.
_SIDES = 0.003, 0.015, 0.08
_SIDEWAYS = 2  # random directions
# How images are moved to others that show the same: degrees, share of a side, share of a side at each edge, and times.
_ROTATED, _SHIFTED, _EDGE, _DARKER = 10, 0.08, 0.05, 0.9
_CLEAR = 64  # times the rounding of the logits: it then costs a slope in a random direction a few per cent

Columns = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class _Offset(PGD):
    """PGD that begins a little away from the image, off the grid of 8 bits and never on its way along it.

    Not from points all over the ball: half the range away, they break a model with useless gradients, too.
    """

    offset: float = 0.0

    def _start(self, ascent: Any, rng: Rng, restart: int) -> Any:
        start = ascent.ball.random_start(rng.take(ascent.rows), "evidence/offset")
        return dataclasses.replace(ascent, points=torch.lerp(ascent.points, start, self.offset))


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.halves = dict[torch.dtype, None]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        dtypes = (value.dtype for value in tree_leaves(result) if isinstance(value, Tensor))
        self.halves |= {dtype: None for dtype in dtypes if dtype in _HALVES}
        return result


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALVES else value
    return torch.float32 if isinstance(value, torch.dtype) and value in _HALVES else value


def _widely(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    args, kwargs = tree_map(_wide, (args, kwargs or {}))
    return func(*args, **kwargs)


class _WideOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes in float32 what would be computed in half precision, also what autocast casts."""

    __torch_dispatch__ = _widely


class _WideFunctions(TorchFunctionMode):
    """The same for whole functions, which compare the dtypes of their arguments before an operation is computed."""

    __torch_function__ = _widely


class Asker:
    """A frozen model that is asked in many ways; counts passes and answers that are not finite. half: its low dtype."""

    def __init__(
        self, model: Model, dtype: torch.dtype, labels: Tensor | None, threat: ThreatModel, batch_size: int
    ) -> None:
        self.model, self.threat, self.batch_size = model, threat, batch_size
        self.oracle = Oracle(model, dtype, labels)
        self.forwards = self.backwards = self.infinite = 0
        self.half: torch.dtype | None = None

    def look(self, points: Tensor) -> None:
        with _Seen() as watch, torch.no_grad():
            self.logits(points)
        self.half = next(iter(watch.halves), None)

    @contextmanager
    def widened(self) -> Iterator[None]:
        """Compute in float32 what the model computes in half precision, whose rounding hides slopes."""
        if self.half is None:
            yield
        else:
            with _WideOperations(), _WideFunctions():  # type: ignore[no-untyped-call]
                yield

    def logits(self, points: Tensor) -> Tensor:
        return self.count(self.oracle(points))

    def count(self, logits: Tensor) -> Tensor:
        self.forwards += len(logits)
        self.infinite += int((~logits.isfinite().all(dim=1)).sum())
        return logits

    def pgd(self, images: Tensor, labels: Tensor, rng: Rng, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the end (B, ...) of PGD on the margin, its logits (B, K), and whether (B,) any point was wrong."""
        offset = _OFFSET * min(1.0, self.threat.eps / options["threat"].eps)
        attack = _Offset(loss="margin", offset=offset, **options)
        result = attack.run(self.logits, images, labels, rng=rng)
        self.backwards += int(result.backwards.sum())
        return result.adversarials, self.logits(result.adversarials).detach(), result.broken_at >= 0

    def cut(self, points: Tensor) -> Tensor:
        return points.clamp(*(self.threat.bounds or (-math.inf, math.inf)))

    def as_image(self, points: Tensor) -> Tensor:
        """Return points as an image would hold them: in the bounds, and, where these are of pixels, in 8 bits."""
        cut = self.cut(points)
        return (cut / GREY).round() * GREY if self.threat.bounds == (0.0, 1.0) else cut

    def plain(self, points: Tensor, size: int | None = None) -> Tensor:
        """Return (B, K) logits without a graph, `size` points at a time."""
        with torch.inference_mode():
            logits = torch.cat([self.logits(part) for part in torch.split(points, size or self.batch_size)])
        return logits.clone()

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Return the same as `plain`, from another thread, whose stack holds no attack and none of these modules."""
        quietly = torch.inference_mode()(self.model)
        with ThreadPoolExecutor(1) as thread:

            def ask(points: Tensor) -> Tensor:
                asked = [thread.submit(quietly, part) for part in torch.split(points.detach(), self.batch_size)]
                logits = torch.cat([each.result() for each in asked])
                wide = with_all_classes(logits.to(torch.promote_types(logits.dtype, torch.float32)))
                return self.count(wide.clone())

            yield ask


def answer_difference(logits: Tensor, like: Tensor) -> Tensor:
    """Return the length (B,) of the difference of two answers, relative to `like` without its mean."""
    numbers = like.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # A class far below, such as one that is switched off, must not make all differences look small.
    middle = numbers.median(dim=1, keepdim=True).values
    reach = _REACH * (numbers - middle).abs().median(dim=1, keepdim=True).values
    numbers = torch.where(reach > 0, torch.maximum(numbers, middle - reach), numbers)
    scale = (numbers - numbers.mean(dim=1, keepdim=True)).norm(dim=1)
    scale = scale.clamp_min(1e-2 * numbers.norm(dim=1)).clamp_min(1e-30)  # rounding, where logits are all alike
    same = (logits == like) | (logits.isnan() & like.isnan())  # two infinities, too
    apart: Tensor = (logits - like).masked_fill(same, 0.0).norm(dim=1) / scale
    return apart.nan_to_num(nan=_WORST).clamp_max(_WORST)


def with_a_graph(asker: Asker, points: Tensor, first: Tensor) -> Tensor:
    """Return the largest difference (B,) from `first`, without gradients, with them off, on, and to the points."""

    def ask(leaf: bool) -> Tensor:
        parts = torch.split(points, asker.batch_size)
        return torch.cat([asker.logits(part.clone().requires_grad_(leaf)).detach() for part in parts])

    with torch.no_grad():
        answers = [ask(leaf=False)]
    answers += [ask(leaf=False), ask(leaf=True)]
    return torch.stack([answer_difference(answer, first) for answer in answers]).amax(dim=0)


def in_other_batches(asker: Asker, points: Tensor, first: Tensor) -> Tensor:
    """Return the largest `answer_difference` (B,) from `first`: one by one, and in another order and size of batch."""
    order = torch.arange(len(points), device=points.device).flip(0)
    order = torch.cat([order[::2], order[1::2]])
    shuffled = asker.plain(points[order], max(1, asker.batch_size * 2 // 3))
    back = torch.empty_like(shuffled).index_copy_(0, order, shuffled)
    return torch.stack([answer_difference(answer, first) for answer in (asker.plain(points, 1), back)]).amax(dim=0)


def under_attack(
    asker: Asker, attack: Attack, images: Tensor, labels: Tensor, rng: Rng, noise: float
) -> tuple[Tensor, Tensor]:
    """Return the largest difference (1,) of a short attack's answers from those elsewhere; its `slope_error` (n,)."""
    worst, calls = images.new_zeros(1), list[dict[str, Tensor]]()
    fields = {field.name for field in dataclasses.fields(attack) if field.init}
    budget = {name: min(most, getattr(attack, name)) for name, most in _SHORT.items() if name in fields}
    with asker.elsewhere() as ask:

        def asked(points: Tensor) -> Tensor:
            nonlocal worst
            leaf = points.view_as(points)
            logits = asker.logits(leaf)
            worst = torch.maximum(worst, answer_difference(logits.detach(), ask(points.clone())).amax())
            if logits.requires_grad and leaf.requires_grad:
                calls.append(call := {"points": points.detach().clone(), "logits": logits.detach()})
                for name, tensor in (("weights", logits), ("gradient", leaf)):  # what a backward pass brings to both
                    tensor.register_hook(lambda gradient, name=name: call.update({name: gradient.clone()}))  # type: ignore[no-untyped-call]
            return logits

        result = dataclasses.replace(attack, **budget).run(asked, images, labels, rng=rng, batch_size=asker.batch_size)
    asker.backwards += int(result.backwards.sum())
    whole = [call for call in calls if {"weights", "gradient"} <= call.keys()]
    errors = [images.new_zeros(0)]
    for call in whole[:: -(-len(whole) // _WATCHED)] if whole and asker.half is None else ():
        points, pair = call["points"], (call["weights"], call["gradient"])
        errors += slope_error(asker, points, call["logits"], [pair], TorchRng(len(points), points.device), noise)
    return worst, torch.cat(errors)


def slope_error(
    asker: Asker, points: Tensor, logits: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], rng: Rng, noise: float = 0.0
) -> list[Tensor]:
    """Return how far slopes in random directions are from the gradients', relative to the slopes: (B,) for each pair;
    NaN where rounding or `noise`, relative to the logits, drowns them. A gradient that was cut, averaged or turned may
    be right along itself. pairs: the gradient of some loss in the logits (B, K) at the points (B, ...), and in the
    points.
    """
    eps = asker.threat.eps if asker.threat.norm == "linf" else asker.threat.eps / math.sqrt(points[0].numel())
    unit = max(eps, GREY) if asker.threat.bounds == (0.0, 1.0) else eps
    signs = rng.signs((_SIDEWAYS, *points.shape[1:]), "evidence/aside").to(points).unbind(1)
    size = logits.detach().abs().double()
    floor = _CLEAR * (torch.finfo(torch.float32).eps * size + noise * size.amax(dim=1, keepdim=True))
    errors = [torch.full((len(points),), math.nan, device=points.device) for _ in pairs]
    for share in _SIDES:
        moved, changes = list[Tensor](), list[Tensor]()
        for sign in signs:
            ends = [asker.cut(points + way * share * unit * sign) for way in (1, -1)]
            change = torch.stack([asker.plain(end) for end in ends]).double()
            changes.append(change[0] - change[1])
            moved.append((ends[0].double() - ends[1].double()).flatten(1))  # what rounding made of the step
        for place, (weights, gradient) in enumerate(pairs):
            real = torch.stack([(weights.double() * each).sum(dim=1) for each in changes])
            foretold = torch.stack([(gradient.double().flatten(1) * each).sum(dim=1) for each in moved])
            clear = torch.maximum(real.abs(), foretold.abs()).amax(dim=0) >= (floor * weights).norm(dim=1)
            clear &= (weights != 0).any(dim=1)
            apart = ((real - foretold).norm(dim=0) / real.norm(dim=0).clamp_min(1e-30)).clamp_max(_WORST)
            new = errors[place].isnan() & clear & apart.isfinite()
            errors[place] = torch.where(new, apart.to(errors[place]), errors[place])
        if not any(bool(each.isnan().any()) for each in errors):
            break
    return errors


def answer_jumps(asker: Asker, images: Tensor, logits: Tensor, rng: Rng) -> Tensor:
    """Return how far (B,) the answer jumps for a change that nobody sees, in the better of two opposite directions."""
    signs = rng.signs((1, *images.shape[1:]), "evidence/tiny")[:, 0].to(images)
    ends = [asker.plain(asker.cut(images + way * TINY * signs)) for way in (1, -1)]
    return torch.stack([answer_difference(end, logits) for end in ends]).amin(dim=0)


def largest_jump(asker: Asker, images: Tensor, ends: Tensor, others: Tensor) -> Tensor:
    """Return the largest jump (B,) on the way from the images through `ends`, as far again, and on to `others`.

    It halves the part of a leg whose answers lie furthest apart: a continuous change vanishes.
    """
    beyond = asker.cut(2 * ends - images)
    starts, stops = torch.cat([images, beyond]), torch.cat([beyond, others])
    scale = asker.plain(images).repeat(2, 1)
    shares = torch.linspace(0, 1, SEGMENTS + 1)
    answers = torch.stack([asker.plain(torch.lerp(starts, stops, float(share))) for share in shares])
    apart = torch.stack([_length(b, a, scale) for a, b in pairwise(answers)])
    rows, at = torch.arange(len(starts), device=images.device), apart.argmax(dim=0)
    lower, upper = answers[at, rows], answers[at + 1, rows]
    left = at.to(images) / SEGMENTS
    for width in (0.5**halved / SEGMENTS for halved in range(1, HALVINGS + 1)):
        where = (left + width).reshape(-1, *[1] * (images.ndim - 1))
        middle = asker.plain(starts + where * (stops - starts))
        above = _length(upper, middle, scale) > _length(middle, lower, scale)
        left = torch.where(above, left + width, left)
        lower, upper = torch.where(above[:, None], middle, lower), torch.where(above[:, None], upper, middle)
    return _length(upper, lower, scale).reshape(2, -1).amax(dim=0)


def _length(logits: Tensor, other: Tensor, scale: Tensor) -> Tensor:
    """As `answer_difference`, relative to the size of a third answer."""
    return answer_difference(scale + logits.nan_to_num() - other.nan_to_num(), scale)


def round_to_8_bits(points: Tensor, images: Tensor, threat: ThreatModel) -> Tensor:
    """Return `points` (B, ...) as an 8-bit file holds them: the nearest; for l-inf inside the ball around `images`."""
    levels = (points / GREY).round()
    if threat.norm == "linf":
        low, high = ((images + sign * threat.eps) / GREY for sign in (-1, 1))
        low, high = (low - 1e-3).ceil(), (high + 1e-3).floor()
        # If an image is not of 8 bits itself, the ball may hold no 8-bit image.
        levels = torch.where(low <= high, levels.clamp(low, high), levels)
    return levels.clamp(0, 255) / 255


def why_not_saved(threat: ThreatModel, values: int) -> str:
    """Return why an attack of this size cannot be kept in 8 bits, "" if it can. values: per image."""
    if threat.bounds != (0.0, 1.0):
        return "the attack's space is not pixels of [0, 1]"
    if threat.norm == "linf":
        return "" if threat.eps > GREY * (1 - 1e-3) else "no other 8-bit image is within an eps below one grey level"
    # Rounding changes each value by a level over the root of twelve, the attack by eps in all.
    rounding = GREY * math.sqrt(values / 12)
    why = f"rounding to 8 bits changes an image by {rounding:.2g}, eps is less than 4 times that"
    return "" if 4 * rounding <= threat.eps else why


def when_moved(asker: Asker, images: Tensor, labels: Tensor, rng: Rng, steps: int, most: float) -> Columns:
    """Return figures of right images (B, C, H, W) that nobody has stored, as they were moved here.

    kept: (B, 3) whether they are right when rotated, cropped, and flipped, each by itself. sure: (B, 3) the margins of
    these predictions. forgotten: (B,) whether the first two are wrong, and of one class. rise_moved: (B,) what short
    PGD adds to the margin of images that were rotated, shifted, cropped, flipped and darkened.

    Rotating and cropping blur. So a sample is forgotten only if it is right when blurred as much in its place, or of
    that class when shifted without blur. And where the median of rise_moved is above `most`, there are the same of
    images that were blurred in their place, rise_blurred, and shifted and flipped without blur, rise_shifted.
    """
    draws = rng.uniform((4,), "evidence/moved").to(images.device, torch.float64)
    ways = torch.where(draws < 0.5, draws - 1, draws)  # from -1 to -1/2, or from 1/2 to 1
    moves = ways[:, :3] * draws.new_tensor([_ROTATED, _SHIFTED, _SHIFTED])
    alone = moves * moves.new_tensor([1, 0, 0])
    rotated = move(images, alone, "reflect")
    answers = [asker.plain(asker.as_image(each)) for each in (rotated, _cropped(images), images.flip(-1))]
    predictions = torch.stack([each.argmax(dim=1) for each in answers], dim=1)
    figures = {"kept": predictions == labels[:, None]}
    figures["sure"] = torch.stack([-margin(each, each.argmax(dim=1)) for each in answers], dim=1)

    def rise(points: Tensor) -> Tensor:
        points = asker.as_image(points)
        classes = (before := asker.plain(points)).argmax(dim=1)
        after = asker.pgd(points, classes, rng, threat=asker.threat, steps=steps)[1]
        return margin(after, classes) - margin(before, classes)

    figures["rise_moved"] = rise(_DARKER * _cropped(move(images, moves, "reflect")).flip(-1))
    figures["forgotten"] = ~figures["kept"][:, 0] & (predictions[:, 0] == predictions[:, 1])
    blurred, shifted = move(rotated, -alone, "reflect"), _shifted(images, ways[:, 1:3])
    if figures["forgotten"].any():
        in_place, elsewhere = (asker.plain(asker.as_image(each)).argmax(dim=1) for each in (blurred, shifted))
        figures["forgotten"] &= (in_place == labels) | (elsewhere == predictions[:, 0])
    if figures["rise_moved"].median() > most:
        figures["rise_blurred"], figures["rise_shifted"] = rise(blurred), rise(shifted.flip(-1))
    return figures


def _shifted(images: Tensor, ways: Tensor) -> Tensor:
    """Return images (B, C, H, W) shifted by whole pixels down and to the right, up to a sixteenth of the width."""
    side, (height, width) = max(1, images.shape[-1] // 16), images.shape[-2:]
    wide = torch.nn.functional.pad(images, (side, side, side, side), mode="reflect")
    corners = (side - (side * ways.abs()).ceil().long() * ways.sign().long()).tolist()
    places = zip(wide, corners, strict=True)
    return torch.stack([each[:, y : y + height, x : x + width] for each, (y, x) in places])


def _cropped(images: Tensor) -> Tensor:
    """Return the middle of images (B, C, H, W), nine tenths of each side, in the size of the whole."""
    height, width = images.shape[-2:]
    top, left = max(1, round(_EDGE * height)), max(1, round(_EDGE * width))
    inner = images[..., top : height - top, left : width - left]
    return torch.nn.functional.interpolate(inner, (height, width), mode="bilinear", antialias=True)


def in_full_batch(
    asker: Asker, images: Tensor, labels: Tensor, rows: Tensor, rng: Rng, size: int, losses: Sequence[str]
) -> Tensor:
    """Return how far gradients of some `rows` (R,) of the images, in a batch of `size` > R, differ from those in a
    batch of R, relative to these: (R,), the worst of the losses.

    All are taken at random points of the ball, where attacks go; the batch is filled with all images.
    """

    def gradient(points: Tensor, labels: Tensor, loss: str) -> Tensor:
        points = points.clone().requires_grad_()
        asker.backwards += len(points)
        return input_gradient(LOSSES[loss](asker.logits(points), labels), points).flatten(1)

    turns = [
        asker.threat.random_start(images, rng, f"evidence/batch/{turn}") for turn in range(-(-size // len(images)))
    ]
    order = torch.arange(size, device=images.device) % len(images)
    full, places = torch.cat(turns)[:size], torch.arange(len(rows), device=images.device) * size // len(rows)
    full[places], order[places] = turns[0][rows], rows  # spread over the batch
    worst = images.new_zeros(len(rows))
    with asker.widened():
        for loss in losses:
            few, many = gradient(full[places], labels[rows], loss), gradient(full, labels[order], loss)[places]
            apart = (many - few).norm(dim=1) / few.norm(dim=1).clamp_min(1e-30)
            apart = torch.where(many.eq(few).all(dim=1), 0.0, apart).nan_to_num(nan=_WORST).clamp_max(_WORST)
            worst = torch.maximum(worst, apart)
    return worst


_EXTREMES = ("random_difference", "low", "high", "sum_error", "noise", "graph", "batch", "thread", "again", "attacked")
_APART = ("random_difference", "noise", "graph", "batch", "thread", "again", "attacked", "jump", "path")
_ROUNDING = 1e-5
_GRADIENTS = ("zero_margin", "zero_ce", "bad_margin", "bad_ce", "slope_samples")
_CONTROLS = ("rise_blurred", "rise_shifted")
_SAVED = ("saved_samples", "saved_same", "saved_lost", "hidden")
_COUNTS = ("right", "random_predictions", *_GRADIENTS, "forgotten", *_SAVED, *AROUND)
_MEDIANS = ("slope", "slope_error", "slope_far", "full_batch", "jump", "path", "rise", "rise_moved", *_CONTROLS)
_MEANS = ("loss", "accuracy", "kept", "sure")


def reduce_columns(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: _reduce(name, columns.get(name)) for name in (*_EXTREMES, *_COUNTS, *_MEDIANS, *_MEANS)}


def round_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures in six significant digits, differences of answers in two, 0 where as small as rounding."""
    apart = {name: figures[name] for name in _APART if figures.get(name) is not None}
    coarse = {name: 0.0 if value < _ROUNDING else float(f"{value:.2g}") for name, value in apart.items()}
    return {name: _rounded(coarse.get(name, value)) for name, value in figures.items()}


def _reduce(name: str, column: Tensor | None) -> Any:
    if column is not None and name in _COUNTS:
        return int(column.sum())
    if column is None or not len(column):
        return None
    if name in _MEANS:
        return column.double().mean(dim=0).tolist()
    return float(column.median() if name in _MEDIANS else column.min() if name == "low" else column.max())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


_STEPS, _SHARE, _RESTARTS = 10, 0.25, 5  # updates of each run, their length over eps, and runs


def hidden_by_attention(
    asker: Asker, surrogates: Mapping[str, Model], images: Tensor, labels: Tensor, rng: Rng
) -> Columns:
    """Return for right samples (B, ...) whether each of `AROUND` holds, (B,): it stands under plain PGD; under that of
    the surrogates' gradients, too; falls to these and not to as many restarts; or the other way round. Restarts are
    made only where surrogates break so many that it could be more than chance.
    """
    whole = torch.ones(len(labels), dtype=torch.bool, device=labels.device)

    def after(model: Model, standing: Tensor, restarts: int = 1) -> Tensor:
        """Return which of the samples that are `standing` still do, by the model's own answers."""
        rows, left = standing.nonzero().flatten(), standing.clone()
        for part in torch.split(rows, asker.batch_size) if len(rows) else ():
            attack = PGD(asker.threat, _STEPS, _SHARE * asker.threat.eps, restarts=restarts, early_stop=True, loss="ce")
            inputs = images[part], labels[part]
            result = attack.run(lambda points: asker.count(model(points)), *inputs, rng=rng.take(part))
            asker.backwards += int(result.backwards.sum())
            left[part] = asker.logits(result.adversarials).argmax(dim=1) == labels[part]
        return left

    plain = around = after(asker.oracle, whole)
    for surrogate in surrogates.values():
        around = after(surrogate, around)
    none = torch.zeros_like(whole)
    figures = [plain, around, none, none]
    if sign_test(int((plain & ~around).sum()), 0) < HIDES:
        again = after(asker.oracle, plain, _RESTARTS)
        figures[2:] = again & ~around, around & ~again
    return dict(zip(AROUND, figures, strict=True))
