"""What all explainers share: the model held still, targets checked, maps brought to [0, 1], seeded draws.

`robustkit.common.determinism.SampleRng` satisfies `Rng`; without one, `TorchRng` uses torch's global generator.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class Rng(Protocol):
    """Random numbers (B, *shape) floating for a batch of B images; each `purpose` names a draw of its own.

    Example:
        >>> source: Rng = TorchRng(batch=2)
        >>> source.normal((3, 64, 64), purpose="noise").shape
        torch.Size([2, 3, 64, 64])
    """

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers in [0, 1)."""

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers of mean 0 and variance 1."""


class TorchRng:
    """`Rng` over torch's global generator: seeded by `torch.manual_seed`, different at every call.

    Args:
        batch: number of images B.
        device: where the numbers are made.

    Example:
        >>> RandomMap()(images, rng=TorchRng(batch=2)).shape
        torch.Size([2, 64, 64])
    """

    def __init__(self, batch: int, device: torch.device | str = "cpu") -> None:
        self.batch, self.device = batch, torch.device(device)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.rand(self.batch, *shape, device=self.device)

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.randn(self.batch, *shape, device=self.device)


@dataclass(frozen=True)
class SegmentTarget:
    """The logit of a class, summed over the pixels of a region, of a model that returns (B, K, H, W).

    Args:
        target: the class, for all images or (B,) integers. None: of each image the one that most pixels of its region
            are predicted as.
        regions: (B, H, W) bool, or (H, W) for all images, of the size of the logits. None: where the class is the
            predicted one.
        ignored: classes that are never chosen where `target` is None.

    A model that shows its network windows of an image is explained at all of them at once, if it, or a part of it, has
    `join_windows(parts, height, width)`, which adds maps of theirs (W, T, h, w) up to one (1, T, height, width): each
    window's logits hold a share of the gradient.

    Raises:
        TypeError, ValueError: when it is used, for classes or regions that do not fit the logits.

    Example:
        >>> AGCAM(segmenter)(images, SegmentTarget()).shape  # of the class that most pixels are predicted as
        torch.Size([2, 64, 64])
    """

    target: int | Tensor | None = None
    regions: Tensor | None = None
    ignored: Sequence[int] = ()

    def resolve(self, logits: Tensor, place: int, images: int) -> tuple[int, Tensor]:
        """Return the class and the region (H, W) of one image of a batch.

        logits: (K, H, W). place: of the image among `images`. The region is empty where the class is predicted nowhere.
        """
        classes, size = len(logits), tuple(logits.shape[1:])
        predicted = logits.argmax(dim=0)
        region = self._region(size, place, images)
        region = None if region is None else region.to(logits.device)
        if self.target is None:
            pixels = predicted if region is None else predicted[region]
            counts = torch.bincount(pixels.flatten(), minlength=classes)
            counts[[number for number in self.ignored if 0 <= number < classes]] = -1
            target = int(counts.argmax())
        else:
            target = self._class(place, images)
            if not 0 <= target < classes:
                raise ValueError(f"target {target}; the model has {classes} classes, 0 … {classes - 1}")
        return target, predicted == target if region is None else region

    def _class(self, place: int, images: int) -> int:
        if not isinstance(self.target, Tensor):
            return operator.index(self.target)  # type: ignore[arg-type]  # None is not asked here
        if self.target.is_floating_point() or self.target.dtype == torch.bool:
            raise TypeError(f"target is {self.target.dtype}; expected int64, the numbers of classes")
        if tuple(self.target.shape) != (images,):
            raise ValueError(f"target has the shape {tuple(self.target.shape)}; expected ({images},), a class each")
        return int(self.target[place])

    def _region(self, size: tuple[int, ...], place: int, images: int) -> Tensor | None:
        if self.regions is None:
            return None
        if self.regions.dtype != torch.bool:
            raise TypeError(f"regions are {self.regions.dtype}; expected bool, True where a pixel counts")
        if tuple(self.regions.shape) not in ((images, *size), size):
            expected = f"expected {(images, *size)} or {size}, as the logits"
            raise ValueError(f"regions have the shape {tuple(self.regions.shape)}; {expected}")
        return self.regions if self.regions.ndim == 2 else self.regions[place]


def component(region: Tensor, row: int, column: int) -> Tensor:
    """Return the part of a region (H, W) bool that hangs together, corners included, and holds a pixel.

    It is empty where the pixel is not in the region. ValueError for a pixel outside of the image.

    Example:
        >>> component(torch.tensor([[True, False, True]]), 0, 2)
        tensor([[False, False,  True]])
    """
    height, width = region.shape
    if not (0 <= row < height and 0 <= column < width):
        where = f"row {row}, column {column}"
        raise ValueError(f"the pixel in {where} is outside of the image; expected up to {height - 1} and {width - 1}")
    import cv2
    import numpy as np

    labels = cv2.connectedComponents(region.cpu().numpy().astype(np.uint8), connectivity=8)[1]
    return torch.from_numpy((labels == labels[row, column]) & (labels > 0)).to(region.device)


Target = int | Tensor | SegmentTarget | None
Self = TypeVar("Self", bound="Explainer")
FLAT = 16 * torch.finfo(torch.float32).eps  # a relative spread within which a map is constant up to rounding


@dataclass(frozen=True)
class Explanation:
    """Maps of B images, and what the same forward gave; for T targets per image, all but the logits are (B, T, ...).

    Example:
        >>> explanation = AGCAM(model).explain(images, target=3)
        >>> explanation.maps.shape, explanation.logits.shape, explanation.target.tolist()
        (torch.Size([2, 64, 64]), torch.Size([2, 10]), [3, 3])
    """

    maps: Tensor
    """(B, H, W) float32 in [0, 1], or all 0 where degenerate.

    Both ends are reached, except by `CentredGaussian` and `FullImage`, which follow their definitions.
    """
    logits: Tensor
    """(B, K) detached, as the model gave them; of a `SegmentTarget`, summed over the region."""
    target: Tensor
    """(B,) int64, the classes explained."""
    degenerate: Tensor
    """(B,) bool, whether the raw map was constant (up to rounding) or not finite, and so says nothing."""


class Explainer(ABC):
    """Maps of what a model looks at. Use it as a context; outside one, each call enters and leaves it by itself.

    Calling it returns the maps alone, `explain` an `Explanation`. Both work whatever the caller's grad mode is.

    Args:
        model: images (B, 3, H, W) to logits (B, K), or (B, K, H, W) for a `SegmentTarget`. Inside, it is in evaluation
            mode and its parameters take no gradient; on leaving, also by an exception, it is restored. Contexts of the
            same model may be nested.

    Raises:
        TypeError: a model that is not a torch.nn.Module.

    Example:
        >>> with AGCAM(model) as explain:
        ...     maps = explain(images)
        >>> maps.shape
        torch.Size([2, 64, 64])
    """

    name: ClassVar[str]
    draws_numbers: ClassVar[bool] = False
    _maps_alone = False  # whether nobody asks for logits

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"the model is {type(model).__name__}; expected a torch.nn.Module from images to logits")
        self.model = model._modules.get("_orig_mod") or model  # what torch.compile wrapped
        self._inside: ExitStack | None = None
        self._region: Tensor | None = None

    def __enter__(self: Self) -> Self:
        if self._inside is not None:
            raise RuntimeError(f"this {type(self).__name__} is already entered; make another one for a nested context")
        with ExitStack() as stack:
            for context in (held(self.model), *self._contexts()):
                stack.enter_context(context)
            self._inside = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        stack, self._inside = self._inside, None
        if stack is not None:
            stack.close()

    def check(self, images: Tensor) -> None:  # noqa: B027 - most need no pass to tell
        """Raise ValueError where one pass, of images (B, 3, H, W), tells that the model cannot be explained so."""

    def __call__(
        self, images: Tensor | None = None, target: Target = None, *, rng: Rng | None = None, **others: object
    ) -> Tensor:
        """Return the maps (B, H, W) alone: where targets are given, no forward is made for the logits."""
        refuse(f"{type(self).__name__}, when it is called,", others, ("images", "target", "rng"))
        if images is None:
            raise TypeError(f"{type(self).__name__} was called without images; expected a torch tensor (B, 3, H, W)")
        self._maps_alone = True
        try:
            return self.explain(images, target, rng=rng).maps
        finally:
            self._maps_alone = False

    def explain(self, images: Tensor, target: Target = None, *, rng: Rng | None = None) -> Explanation:
        """Return maps, logits, targets, and which are degenerate. For B = 0 the logits are (0, 0), without a pass.

        Args:
            images: (B, 3, H, W) floating, as the model takes them; they are cast to the dtype of its parameters.
            target: the class to explain: None for the predicted one, a number for all images, (B,) integers, or (B, T)
                for T maps of each image from one forward; or a `SegmentTarget`.
            rng: where explainers whose `draws_numbers` is true take them from: `RandomMap`, `RISE` and `SmoothGrad`.

        Returns:
            Maps (B, H, W), or (B, T, H, W), float32 in [0, 1], and the rest of an `Explanation`.

        Raises:
            TypeError: images or targets of another kind.
            ValueError: another shape, a class that the model does not have, or a model that cannot be explained so.
        """
        check_images(images)
        if self._inside is None:
            with self:
                return self.explain(images, target, rng=rng)
        if isinstance(target, SegmentTarget):
            return self._of_regions(images, target, rng)
        with torch.inference_mode(False), torch.enable_grad():
            targets = wanted_targets(target, images)
            if len(images):
                logits, targets, grids = self._raw(self._as_fed(images), targets, rng)
            else:
                logits = images.new_zeros(0, 0)
                targets = images.new_zeros(0, 1, dtype=torch.int64) if targets is None else targets
                grids = images.new_zeros(*targets.shape, *images.shape[2:])
            if self._region is not None and len(grids) != len(images):
                grids = self._joined(grids, images)
            maps, degenerate = self._finish(grids, (images.shape[2], images.shape[3]))
        if not (isinstance(target, Tensor) and target.ndim == 2):
            maps, targets, degenerate = maps[:, 0], targets[:, 0], degenerate[:, 0]
        return Explanation(maps, logits.detach(), targets, degenerate)

    def _of_regions(self, images: Tensor, target: SegmentTarget, rng: Rng | None) -> Explanation:
        """Explain image by image, each with its own region."""
        explanations = []
        for place, image in enumerate(images[:, None]):
            with torch.no_grad():
                answer = _of_pixels(self.model(self._as_fed(image)), 1)
            number, region = target.resolve(answer[0], place, len(images))
            self._look_at(region.to(answer.dtype))
            try:
                if region.any():
                    explanations.append(self.explain(image, number, rng=None if rng is None else _OfOne(rng, place)))
                else:  # there is nothing to explain
                    nowhere, logits = image.new_zeros(1, *image.shape[2:]).float(), answer.new_zeros(1, answer.shape[1])
                    of_class, flat = torch.tensor([number], device=image.device), torch.ones(1, dtype=torch.bool)
                    explanations.append(Explanation(nowhere, logits, of_class, flat.to(image.device)))
            finally:
                self._look_at(None)
        parts = zip(*(vars(each).values() for each in explanations), strict=True)
        return Explanation(*map(torch.cat, parts)) if explanations else self.explain(images)

    def _joined(self, grids: Tensor, images: Tensor) -> Tensor:
        """Return the maps (1, T, H, W) of an image whose network saw W windows of it, from theirs (W, T, h, w)."""
        for part in nn.Module.modules(self.model):
            join: Callable[..., Tensor] | None = getattr(part, "join_windows", None)
            with suppress(RuntimeError, ValueError):  # as many do not make up the image
                if join is not None and len(joined := join(grids.float(), images.shape[2], images.shape[3])) == 1:
                    return joined
        raise ValueError(
            f"{self.name} met {len(grids)} windows of an image, which do not make it up; expected a model that has "
            "join_windows, and all windows in one pass; use gradient, integrated-gradients, smooth-grad or rise"
        )

    def _look_at(self, region: Tensor | None) -> None:
        """Sum logits over a region (H, W) from now on; None: the model gives logits of the whole image."""
        self._region = region

    def _contexts(self) -> Iterable[AbstractContextManager[None]]:
        """Return what changes the model, which is held still, while the explainer is entered."""
        return ()

    @abstractmethod
    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, K), the classes explained (B, T), and for each a map of any scale and size (B, T, h, w)."""

    def _finish(self, grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return upright(grids, size)

    def _as_fed(self, images: Tensor) -> Tensor:
        """Return the images as the model takes them, without a graph."""
        dtypes = (p.dtype for p in nn.Module.parameters(self.model) if p.is_floating_point())
        return images.detach().to(next(dtypes, images.dtype))

    def _answered(self, images: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) without a graph, (B, 0) if nobody needs them, and the classes (B, T)."""
        if self._maps_alone and targets is not None:
            return images.new_zeros(len(images), 0), targets
        with torch.no_grad():
            logits = self._logits(images)
        return logits, chosen(logits, targets)

    def _probabilities(self, images: Tensor) -> Tensor:
        """Return the probabilities (B, K) float32; of a region their mean over its pixels."""
        if self._region is None:
            return self._logits(images).float().softmax(dim=1)
        of_pixels = _of_pixels(self.model(images), len(images)).float().softmax(dim=1)
        return (of_pixels * self._region.float()).sum(dim=(2, 3)) / self._region.sum()

    def _logits(self, images: Tensor, copies: int = 1) -> Tensor:
        """Return the logits, `copies` rows for each image where a hook adds rows. ValueError for anything else."""
        logits = self.model(images)
        if self._region is not None:
            logits = (_of_pixels(logits, len(images) * copies) * self._region).sum(dim=(2, 3))
        if not (isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(images) * copies):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            of = f"{len(images)} images" if copies == 1 else f"{len(images)} images of {copies} rows each"
            raise ValueError(f"the model returned {got} for {of}; expected logits (images, classes)")
        return logits


def _of_pixels(logits: object, rows: int) -> Tensor:
    if not (isinstance(logits, Tensor) and logits.ndim == 4 and len(logits) == rows):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model returned {got} for {rows} images; expected logits of each pixel, a tensor (images, classes, H, "
            "W): wrap a model that returns several"
        )
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class _OfOne:
    """The random numbers of one image of a batch."""

    def __init__(self, rng: Rng, place: int) -> None:
        self.rng, self.rows = rng, slice(place, place + 1)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return self.rng.uniform(shape, purpose)[self.rows]

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return self.rng.normal(shape, purpose)[self.rows]


def same_draws(explain: Explainer, rng: Rng | None) -> None:
    """Raise ValueError where two maps of the same image would differ by what the explainer draws."""
    if rng is None and explain.draws_numbers:
        raise ValueError(
            f"{explain.name} is random, so its maps differ even if nothing else does; pass the rng that made the "
            "maps, whose draws are reproducible"
            " (robustkit.common.determinism.SampleRng)"
        )


@contextmanager
def held(model: nn.Module) -> Iterator[None]:
    """Hold a model still: evaluation mode, frozen parameters, no gradient checkpointing, compiled code as written."""
    modes = [(part, part.training) for part in nn.Module.modules(model)]  # a network may have a list `modules`
    learning = [parameter for parameter in nn.Module.parameters(model) if parameter.requires_grad]
    forgetful = [part for part, _ in modes if getattr(part, "grad_checkpointing", False) is True]
    with ExitStack() as stack:
        if any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part, _ in modes):
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code calls no hooks
        try:
            model.eval()
            for parameter in learning:
                parameter.requires_grad_(False)
            for part in forgetful:
                setattr(part, "grad_checkpointing", False)  # noqa: B010  (a module's attributes are untyped)
            yield
        finally:
            for part in forgetful:
                setattr(part, "grad_checkpointing", True)  # noqa: B010
            for parameter in learning:
                parameter.requires_grad_(True)
            for part, training in modes:
                part.training = training


_THEIRS = {
    "reshape_transform": "leave it out: the tokens of ViTs are arranged on their grid automatically",
    "use_cuda": "leave it out: it computes on the device of the model",
    "input_tensor": "give the images first: explain(images)",
    "targets": "give target=, a class for all images or (B,) of them: explain(images, target=281)",
    "class_idx": "give target=, a class for all images or (B,) of them: explain(images, target=281)",
    "aug_smooth": "SmoothGrad averages over noisy copies",
    "eigen_smooth": "smoothing is not supported",
}
"""Parameters of pytorch-grad-cam and torch-cam, and what stands for them here."""


def refuse(name: str, others: Mapping[str, object], parameters: Iterable[str]) -> None:
    """Raise TypeError for a parameter that an explainer does not have, with what stands for it."""
    for key in others:
        raise TypeError(f"{name} takes no {key}; {_THEIRS.get(key) or 'expected ' + ', '.join(parameters)}")


def check_images(images: Tensor) -> None:
    """Raise TypeError or ValueError for anything but floating (B, C, H, W)."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images are {type(images).__name__}; expected a torch tensor (B, 3, H, W)")
    if not images.is_floating_point():
        raise TypeError(f"images are {images.dtype}; expected floating, as the model takes them")
    if images.ndim != 4:
        raise ValueError(f"images have the shape {tuple(images.shape)}; expected (B, 3, H, W)")


def wanted_targets(target: int | Tensor | None, images: Tensor) -> Tensor | None:
    """Return the classes asked for, (B, T) int64 on the images' device, fit for a graph; None for the predicted."""
    if target is None:
        return None
    B = len(images)
    if not isinstance(target, Tensor):
        return torch.full((B, 1), operator.index(target), dtype=torch.int64, device=images.device)
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"target is {target.dtype}; expected int64, the numbers of classes")
    if target.ndim not in (1, 2) or len(target) != B or 0 in target.shape[1:]:
        raise ValueError(f"target has the shape {tuple(target.shape)}; expected ({B},) or ({B}, T) for {B} images")
    target = target.clone() if target.is_inference() else target
    return target.to(images.device, torch.int64).reshape(B, -1 if B else (target.shape[1:] or (1,))[0])


def chosen(logits: Tensor, targets: Tensor | None) -> Tensor:
    """Return the classes (B, T): those asked for, or the predicted ones. ValueError where the model lacks one."""
    if targets is None:
        return logits.detach().argmax(dim=1, keepdim=True)
    outside = (targets < 0) | (targets >= logits.shape[1])
    if outside.any():
        count = logits.shape[1]
        raise ValueError(f"target {int(targets[outside][0])}; the model has {count} classes, 0 … {count - 1}")
    return targets


def each_target(logits: Tensor, classes: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """Yield, for each of the (B, T) classes, the sum over the batch of its logits, and whether another one follows."""
    for t in range(count := classes.shape[1]):
        yield logits.gather(1, classes[:, t : t + 1]).sum(), t + 1 < count


def gradients(logits: Tensor, classes: Tensor, leaf: Tensor, otherwise: str) -> Iterator[Tensor]:
    """Yield, for each of the (B, T) classes, the gradient of its logits for `leaf`; ValueError without one."""
    for total, more in each_target(logits, classes):
        gradient = total.requires_grad and torch.autograd.grad(total, leaf, retain_graph=more, allow_unused=True)[0]
        if not isinstance(gradient, Tensor):
            raise ValueError(otherwise)
        yield gradient


def upright(grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Upsample raw maps (B, T, h, w) bilinearly to `size`, normalise by min and max; return which are flat, too."""
    maps = grids.detach().float()
    if maps.shape[2:] != size and len(maps):
        maps = functional.interpolate(maps, size, mode="bilinear", align_corners=False)
    low, high = maps.amin(dim=(-2, -1)), maps.amax(dim=(-2, -1))
    spread, largest = high - low, torch.maximum(low.abs(), high.abs())
    degenerate = ~(spread > FLAT * largest)  # so that NaN and infinity are in it, too
    maps = (maps - low[..., None, None]) / spread[..., None, None]
    return maps.masked_fill(degenerate[..., None, None], 0.0), degenerate


Fill = float | Sequence[float] | Tensor  # what hidden places become: a number, or one for each channel


def at_least(least: float, **values: float | None) -> None:
    """Raise ValueError for a value below `least`; None is left alone."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} is {value}; expected {least} or more")


def rows_of(batch_size: int | None, images: Tensor, on_cpu: int = 16) -> int:
    """Return how many rows go at once: `batch_size`; without one `on_cpu` on a CPU, whose caches hold few, else 64."""
    return batch_size or (on_cpu if images.device.type == "cpu" else 64)


def split_by_batch(count: int, images: int, batch_size: int) -> Iterator[slice]:
    """Yield slices of `count` turns, each of all `images`, of at most `batch_size` rows, or one turn."""
    turns = max(1, batch_size // images)
    for start in range(0, count, turns):
        yield slice(start, min(start + turns, count))


def fill_values(fill: Fill, images: Tensor) -> Tensor:
    """Return `fill` as (1, 1 or C, 1, 1), of the images' dtype. ValueError for another number of values."""
    values = torch.as_tensor(fill, dtype=images.dtype, device=images.device).flatten()
    if len(values) not in (1, images.shape[1]):
        raise ValueError(f"fill has {len(values)} values; expected one, or one for each of {images.shape[1]} channels")
    return values.view(1, -1, 1, 1)
