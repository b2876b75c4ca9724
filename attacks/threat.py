"""What an attacker may change (a norm, a radius, the range of valid pixels), the nearest such change, and random draws.

An attack never draws from a global state by itself: it asks an `Rng` for the numbers of each sample of the batch, and
names their purpose. A caller that wants reproducible attacks passes one whose numbers depend on the sample alone (as
`robustkit.common.determinism.SampleRng` does); without one, `TorchRng` uses torch's global generator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

Norm = Literal["linf", "l2", "l1", "l0", "patch"]
_ORDERS: dict[str, float] = {"linf": math.inf, "l2": 2, "l1": 1, "l0": 0}

_SMALL = 4.0  # float32 values up to here are rounded by at most 2.4e-7


_NORMS = {"inf": "linf", "infinity": "linf", "2": "l2", "1": "l1", "0": "l0", "patch": "patch"}


def canonical_norm(norm: Any) -> Any:
    """Return a norm as it is called here: "linf" for `Linf`, `inf`, `L_inf` or `math.inf`, "l2" for `L2` or 2, and so
    on. Return anything else as it is.
    """
    text = f"{norm:g}" if isinstance(norm, int | float) else str(norm).lower().replace("∞", "inf")
    return _NORMS.get("".join(filter(str.isalnum, text)).removeprefix("l"), norm)


class Rng(Protocol):
    """Random numbers (B, *shape) float32 for a batch of B samples; each `purpose` names a draw of its own.

    Example:
        >>> source: Rng = TorchRng(batch=2)
        >>> source.normal((3, 8, 8), purpose="start").shape
        torch.Size([2, 3, 8, 8])
    """

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers in [0, 1)."""

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers of mean 0 and variance 1."""

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        """Return -1 and 1: rows first, first + 1, ... of an endless draw along shape[0].

        So `signs((8, 3), p)` equals `cat([signs((4, 3), p), signs((4, 3), p, first=4)], dim=1)` if the numbers are a
        function of the sample: a chunked loop draws the same as an unchunked one.
        """

    def take(self, index: Tensor) -> Rng:
        """Return the source for the samples `index` (int64) of this batch."""


class TorchRng:
    """`Rng` over torch's global generator: seeded by `torch.manual_seed`, different at every call.

    Args:
        batch: number of samples B.
        device: where the numbers are made.

    Example:
        >>> source = TorchRng(batch=2)
        >>> torch.equal(source.uniform((3,), "start"), source.uniform((3,), "start"))
        False
    """

    def __init__(self, batch: int, device: torch.device | str = "cpu") -> None:
        self.batch, self.device = batch, torch.device(device)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.rand(self.batch, *shape, device=self.device)

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.randn(self.batch, *shape, device=self.device)

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        # Eight signs from each random byte: SPSA draws so many that a number for each would cost time.
        count = math.prod(shape)
        draws = torch.randint(0, 256, (self.batch, -(-count // 8)), dtype=torch.uint8, device=self.device)
        byte, bit = torch.arange(256, device=self.device), torch.arange(8, device=self.device)
        of_bytes = ((byte[:, None] >> bit) & 1).float().mul_(2).sub_(1)  # (256, 8): their bits, 0 as -1
        signs = nn.functional.embedding(draws.int(), of_bytes)
        return signs.reshape(self.batch, -1)[:, :count].reshape(self.batch, *shape)

    def take(self, index: Tensor) -> TorchRng:
        return TorchRng(len(index), self.device)


T = TypeVar("T", bound="Rows")


@dataclass(frozen=True)
class Rows:
    """Something with one row per sample; subclass it with a field for each tensor (rows first) or `Rows`."""

    def take(self: T, index: Tensor) -> T:
        """Return the same for the rows `index` (int64) only."""

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value[index]  # unlike index_select, this keeps channels_last
            return value.take(index) if isinstance(value, Rows) else value

        return replace(self, **{f.name: pick(getattr(self, f.name)) for f in fields(self)})

    def join(self: T, more: T) -> T:
        """Return these rows followed by those of `more`."""

        def both(first: Any, second: Any) -> Any:
            if isinstance(first, Tensor):
                return torch.cat([first, second])
            return first.join(second) if hasattr(first, "join") else first

        return replace(self, **{f.name: both(getattr(self, f.name), getattr(more, f.name)) for f in fields(self)})


def at_least(least: float, attack: object, *names: str) -> None:
    """Raise ValueError for a parameter of the attack below `least`."""
    for name in names:
        if (value := getattr(attack, name)) < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")


def above_0(attack: object, *names: str, share: bool = False) -> None:
    """Raise ValueError for a parameter of the attack that is not above 0, finite, and, as a share, at most 1."""
    for name in names:
        if not (0 < (value := getattr(attack, name)) < math.inf and (value <= 1 or not share)):
            expected = "share above 0, at most 1" if share else "finite number above 0"
            raise ValueError(f"{name} is {value}; expected a {expected}")


def one_of(choices: Iterable[str], attack: object, name: str) -> None:
    """Raise ValueError for a parameter of the attack that is not one of those known."""
    if (value := getattr(attack, name)) not in (choices := tuple(choices)):
        raise ValueError(f"{name} is {value!r}; expected one of: {', '.join(choices)}")


_CACHED = 1 << 16
"""Values in a tensor of which a few fit into the cache of a CPU's core."""


def cached_rows(like: Tensor) -> int:
    """Return how many samples of `like` (B, ...) a chain of arithmetic takes at once: on a CPU what its cache holds."""
    return max(1, _CACHED // max(1, like[:1].numel())) if like.device.type == "cpu" else max(1, len(like))


def per_sample(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) values to (B, 1, ..., 1), to multiply the batch `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def distance(norm: Norm, adversarial: Tensor, clean: Tensor) -> Tensor:
    """Return the size (B,) of the change, float32 or wider, in the images' unit; of a patch its share of the pixels."""
    wide = torch.promote_types(clean.dtype, torch.float32)
    if norm == "patch":
        return (adversarial != clean).any(dim=1).flatten(1).to(wide).mean(dim=1)
    change = adversarial.to(wide) - clean.to(wide)
    if norm == "linf":  # a tenth of vector_norm's time on a CPU
        return change.abs_().amax(dim=tuple(range(1, change.ndim)))
    size: Tensor = torch.linalg.vector_norm(change.flatten(1), ord=_ORDERS[norm], dim=1)
    return size


@dataclass(frozen=True)
class ThreatModel:
    """A ball around each clean image, cut to the range of valid pixels.

    Args:
        norm: "linf" bounds the change of every single value, "l2" the Euclidean length of a sample's whole change, "l1"
            the sum of all changes, "l0" the number of values that change; "patch" lets one square take any values. Most
            attacks know the first two (`Attack.norms`). `Linf`, `inf`, `L2` and 2 are understood, too.
        eps: radius, in the unit of the images (pixels in [0, 1] unless `bounds` says otherwise). Infinite: any change,
            for attacks that look for the smallest.
        bounds: lowest and highest valid value; None for no bounds (only sensible if a published protocol attacks
            normalised tensors).
        cut_images: accept images outside the bounds too, and cut every point to the bounds, however far from the image
            that is: then eps bounds nothing. An error of published evaluations, kept to reproduce them and for nothing
            else.
        size: side of a patch in pixels.
        where: place of a patch: "corner", "random", or "worst-of-4" and other numbers of places.

    Raises:
        ValueError: a norm other than these, a size below 1, another place, a negative or NaN eps, an l-inf eps wider
            than the bounds, or bounds that are not two ascending numbers.

    Example:
        >>> threat = ThreatModel("l2", eps=0.5)
        >>> inside = threat.project(images + 1, images)
        >>> bool(threat.distance(inside, images).max() <= 0.5)
        True
    """

    norm: Norm = "linf"
    eps: float = 1 / 255
    bounds: tuple[float, float] | None = (0.0, 1.0)
    cut_images: bool = False
    size: int = 16
    where: str = "corner"

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", canonical_norm(self.norm))
        one_of(get_args(Norm), self, "norm")
        if self.size < 1:
            raise ValueError(f"size is {self.size}; expected 1 pixel or more")
        if not re.fullmatch(r"corner|random|worst-of-[1-9]\d{0,3}", self.where):
            raise ValueError(f"where is {self.where!r}; expected corner, random, or such as worst-of-4")
        if not self.eps >= 0:
            raise ValueError(f"eps is {self.eps}; expected a number, 0 or more")
        if self.bounds is None:
            return
        low, high = self.bounds
        if not low < high:
            raise ValueError(f"bounds are {self.bounds}; expected (lowest, highest) with lowest < highest")
        if self.norm == "linf" and high - low < self.eps < math.inf:
            raise ValueError(
                f"eps {self.eps:g} is wider than the bounds [{low:g}, {high:g}]: it is in the unit of the images, so "
                "8 grey levels are 8/255 for pixels in [0, 1]"
            )

    def ball(self, clean: Tensor) -> Ball:
        """Return the ball around `clean` (B, ...), float32 or float64; made once and projected on at every step."""
        if self.norm == "l2":
            return Ball(self, clean)
        low, high = clean - self.eps, clean + self.eps
        if self.bounds is None or max(abs(bound) for bound in self.bounds) > _SMALL:
            # clean ± eps of large values may round to well outside; one part in 2^23 of them leads back in.
            ulp = torch.finfo(clean.dtype).eps
            low.add_(low.abs().mul_(clean - low > self.eps), alpha=ulp)
            high.sub_(high.abs().mul_(high - clean > self.eps), alpha=ulp)
        if self.bounds is not None:
            low.clamp_(*self.bounds)
            high.clamp_(*self.bounds)
        return Ball(self, clean, low, high)

    def project(self, adversarial: Tensor, clean: Tensor) -> Tensor:
        """Return the points of the ball around `clean` nearest to `adversarial`, both (B, ...), in its dtype.
        For l-inf the nearest point exactly; for l2 the ball first and the bounds second, which is inside both.
        """
        wide = clean.to(torch.promote_types(clean.dtype, torch.float32))
        return round_towards(clean, self.ball(wide).project_(adversarial.to(wide.dtype, copy=True)))

    def distance(self, adversarial: Tensor, clean: Tensor) -> Tensor:
        """Return the size (B,) of the perturbation in this norm, measured in float32 or better."""
        return distance(self.norm, adversarial, clean)

    def random_start(self, clean: Tensor, rng: Rng, purpose: str) -> Tensor:
        """Return points drawn uniformly from the ball around `clean` (B, ...), then cut to the bounds."""
        wide = clean.to(torch.promote_types(clean.dtype, torch.float32))
        return round_towards(clean, self.ball(wide).random_start(rng, purpose))

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the direction of length 1 in this norm that raises the loss most; may overwrite `gradient`.
        A NaN component counts as 0, and a sample whose gradient is 0 does not move.
        """
        return gradient.sign_().nan_to_num_(nan=0.0) if self.norm == "linf" else scale_to_unit(gradient)


@dataclass(frozen=True)
class Ball(Rows):
    """A threat model around given clean images: `low` and `high` hold the box of an l-inf one."""

    threat: ThreatModel
    clean: Tensor
    low: Tensor | None = None
    high: Tensor | None = None

    def project_(self, points: Tensor) -> Tensor:
        """Move `points` in place to inside the ball and the bounds, and return them."""
        if self.low is not None:
            return torch.clamp(points, self.low, self.high, out=points)
        length = distance("l2", points, self.clean)
        # Slightly less than eps, so that the rounded sum stays inside as well.
        shrink = (self.threat.eps * (1 - 1e-6) / length).nan_to_num_(nan=1.0).clamp_(max=1.0)
        points.sub_(self.clean).mul_(per_sample(shrink, points)).add_(self.clean)
        return points if self.threat.bounds is None else points.clamp_(*self.threat.bounds)

    def random_start(self, rng: Rng, purpose: str) -> Tensor:
        """Return points drawn uniformly from the ball, then cut to the bounds; `rng` names the draws by `purpose`."""
        shape, start = self.clean.shape[1:], self.clean.clone()
        if self.threat.norm == "linf":
            start.add_(rng.uniform(shape, purpose).to(start).mul_(2).sub_(1), alpha=self.threat.eps)
        else:
            direction = scale_to_unit(rng.normal(shape, f"{purpose}/direction").to(start))
            radius = rng.uniform((1,), f"{purpose}/radius").to(start).flatten() ** (1 / max(1, shape.numel()))
            start.add_(direction.mul_(per_sample(radius, start)), alpha=self.threat.eps)
        return self.project_(start)


def scale_to_unit(gradient: Tensor) -> Tensor:
    """Scale `gradient` (B, ...) in place to l2 length 1 for each sample; NaN counts as 0, and 0 stays 0."""
    largest = torch.finfo(gradient.dtype).max
    gradient.nan_to_num_(nan=0.0, posinf=largest, neginf=-largest)
    # By the largest component first: squares of very small or very large ones would leave the range of float32.
    for order in (math.inf, 2):
        length = torch.linalg.vector_norm(gradient.flatten(1), ord=order, dim=1)
        gradient.div_(per_sample(length.masked_fill_(length == 0, 1.0), gradient))
    return gradient


def round_towards(clean: Tensor, points: Tensor) -> Tensor:
    """Return `points` in the dtype of `clean`, none further from it: a ball of 1/255 is narrow for bfloat16."""
    rounded = points.to(clean.dtype)
    if points.dtype == clean.dtype:
        return rounded
    anchor = clean.to(points.dtype)
    change = points - anchor
    further = (rounded.to(points.dtype) - anchor).abs() > change.abs()
    inward = (points - change.sign() * points.abs() * torch.finfo(clean.dtype).eps).to(clean.dtype)
    crossed = (inward.to(points.dtype) - anchor) * change <= 0
    return torch.where(further, torch.where(crossed, clean, inward), rounded)


def onto_ball(norm: Norm, change: Tensor, radius: Tensor) -> Tensor:
    """Return the nearest points to `change` (B, ...) in balls of `radius` (B,) around 0; l1: Duchi et al. 2008."""
    if norm == "linf":
        return torch.minimum(torch.maximum(change, -per_sample(radius, change)), per_sample(radius, change))
    flat = change.flatten(1)
    if norm == "l2":
        length = torch.linalg.vector_norm(flat, dim=1)
        return change * per_sample((radius / length).nan_to_num_(nan=1.0).clamp_(max=1.0), change)
    if norm == "l0":
        entries = radius.clamp(0, flat.shape[1]).long()
        ranks = flat.abs().argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(ranks < entries[:, None], flat, 0.0).reshape(change.shape)
    size, order = flat.abs(), flat.abs().sort(dim=1, descending=True).values
    counts = torch.arange(1, flat.shape[1] + 1, device=flat.device)
    excess = (order.cumsum(dim=1) - radius[:, None]) / counts  # what each of the first values is too large by
    last = ((order > excess) * counts).amax(dim=1, keepdim=True).clamp_(min=1)
    shrink = excess.gather(1, last - 1).clamp_(min=0).nan_to_num_(neginf=0.0)
    return (flat.sign() * (size - shrink).clamp_(min=0)).reshape(change.shape)


_ROUNDS = 60  # steps of Newton's method, which ends by itself after about five
_UNSEEN = 12  # steps on a device before the host looks whether it has ended, which makes it wait
_FAR = 1e18  # stand for bounds where there are none


def step_to_hyperplane(
    norm: Norm, points: Tensor, normals: Tensor, gaps: Tensor, bounds: tuple[float, float] | None
) -> Tensor:
    """Return the change d (n, ...) of least norm with `normals` · d = `gaps` (n,) and points + d inside the bounds.

    Where no point of the box reaches the plane, the corner nearest to it (Croce and Hein 2020, arXiv:1907.02044, 2.1).

    Every component moves against its gap, as far as the least common length λ asks (times its own |normal| for l2) and
    the bounds leave room. What is reached, T(λ) = Σ |normal| min(λ c, room), is concave and piecewise linear, so
    Newton's method from 0 climbs to the solution without passing it, in as many rounds as it meets pieces.
    """
    dims = tuple(range(1, points.ndim))
    sign = normals.sign().mul_(per_sample(gaps.sign(), normals))
    weight, want = normals.abs(), gaps.abs()
    low, high = bounds or (-_FAR, _FAR)
    # Masks of 0 and 1: on a CPU a product takes a tenth of the time of torch.where.
    work = sign.clamp(min=0)
    room = (high - points).mul_(work)
    room.add_((points - low).mul_(work.neg_().add_(1))).clamp_(min=0)
    gain = weight if norm == "linf" else weight * weight
    way = torch.zeros_like(weight)
    length, reached = torch.zeros_like(want), torch.zeros_like(want)
    unseen = 1 if points.device.type == "cpu" else _UNSEEN
    for step in range(1, _ROUNDS + 1):
        slope = torch.gt(room, way, out=work).mul_(gain).sum(dim=dims)
        more = (want - reached) / slope
        go = (slope > 0) & (more > length * torch.finfo(points.dtype).eps)
        if step % unseen == 0 and not go.any():
            break
        length = torch.where(go, length + more, length)
        each = per_sample(length, weight)
        torch.minimum(each if norm == "linf" else torch.mul(weight, each, out=work), room, out=way)
        reached = torch.mul(weight, way, out=work).sum(dim=dims)
    short = per_sample(((slope <= 0) & (reached < want)).to(way.dtype), way)  # out of reach: all the way
    return way.mul_(1 - short).add_(room.mul_(short)).mul_(sign)
