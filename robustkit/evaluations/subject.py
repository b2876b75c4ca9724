"""A checkpoint under a card: its inputs in batches, how it is asked, and what a condition shows it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor, nn

from attacks import AttackResult
from attacks.attack import Tell

from ..attention.surrogates import can_be_seen, key_loss, surrogates
from ..common.determinism import SampleRng, float32, lacks_order, ordered, seeded, to_device
from ..data.channels import looked_at
from ..data.dataset import Dataset, Sample
from ..data.images import to_unit_range, unit_pixels
from ..models.device import CompiledNetwork, free_memory
from ..models.identity import Classifier, embed
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..runs.folder import RunFolder
from ..runs.kept_images import Picture

Reader = Callable[[Sample], Tensor]  # to an input; samples of one shape share a batch. Raises BadImageError


class SampleSource(Protocol):
    """The samples of a run, with their inputs and truths on request."""

    @property
    def dataset(self) -> Dataset:
        """The samples, in the order of their shards."""

    def reader(self, condition: Condition) -> Reader: ...

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return the truth of a sample in the frame of its input, None if unknown. Raises BadImageError."""


class ScoringModel(nn.Module):
    """A classifier as an attack under some card sees it: tensors of the card's space in, float32 logits out.

    dtype: of the pass. valid: the classes that compete, (K,) on the device.
    """

    def __init__(self, classifier: Classifier, card: Card, dtype: torch.dtype, valid: Tensor | None) -> None:
        super().__init__()
        self.classifier, self.from_pixels, self.dtype, self.valid = classifier, card.space == "pixels", dtype, valid
        self.network: nn.Module = low_precision(classifier.network, dtype)
        self.compiled: CompiledNetwork | None = None
        self.eval()

    @property
    def surrogates(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The same answers with other gradients through attention, by name; empty where attention is not understood."""
        return surrogates(self.network, self._logits_of_network) if can_be_seen(self.network) else {}

    def key_loss(self, images: Tensor, boxes: Tensor, of_class: bool) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and how far queries are drawn to the keys of boxes (B, 3). Raises ModelError."""
        return key_loss(self.network, self._logits_of_network, images, boxes, of_class)

    def forward(self, images: Tensor) -> Tensor:
        return self._competing(self.compiled or self.network, images)

    def _logits_of_network(self, images: Tensor) -> Tensor:
        """Return the same (B, K), never compiled, so that hooks see the layers."""
        return self._competing(self.network, images)

    def _competing(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        logits = self._asked(network, images)
        return logits if self.valid is None else logits[:, self.valid]

    def embed(self, images: Tensor) -> Tensor:
        """Return what the head takes, (B, D). Raises ModelError where the network does not say what that is."""
        return self._asked(partial(embed, self.network), images)

    def _asked(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        images = self.classifier.normalize(images) if self.from_pixels else images
        low = self.dtype is not torch.float32
        with torch.autocast(images.device.type, self.dtype) if low else nullcontext():
            return network(images).float()


def low_precision(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy for autocast whose large weights are cast once, not in each pass; the same results to the bit.
    On a CPU timm's fused attention is off: its backward takes 1.5 times as long in bfloat16."""
    if dtype is torch.float32:
        return network
    copied = copy.deepcopy(network)
    for part in nn.Module.modules(copied):
        if type(part) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):  # subclasses may use their weights in other ways
            part.to(dtype)
        if getattr(part, "fused_attn", False) is True and next(part.parameters()).device.type == "cpu":
            setattr(part, "fused_attn", False)  # noqa: B010 - not in the type of a module
    return copied


T = TypeVar("T")


SEARCH = "attacks search in "


@dataclass(frozen=True)
class Settings:
    """How to compute. Except for the seed, nothing here changes results beyond float rounding; the batch size also
    decides which run of an attack that stops early breaks a sample. search: the dtype in which attacks search, where it
    is not `dtype`; what they find counts once float32 confirms it.
    """

    seed: int = 0
    batch_size: int = 64
    workers: int = 2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    compile: bool = False
    pictures: Mapping[str, str | None] = field(default_factory=dict)
    """Folders that corruptions take parts of pictures from: `frost_dir`, `tiles_dir`."""
    search: torch.dtype | None = None
    show: tuple[int, ...] = ()
    """Channels of pictures, from 1; none for the usual ones."""

    @property
    def searches_in(self) -> torch.dtype:
        """The dtype in which attacks search."""
        return self.dtype if self.search is None else self.search

    @property
    def named_dtype(self) -> str:
        """What run.json calls it: `bfloat16`, or `float32, attacks search in bfloat16`."""
        whole, search = (str(each).removeprefix("torch.") for each in (self.dtype, self.searches_in))
        return whole if whole == search else f"{whole}, {SEARCH}{search}"


@dataclass(frozen=True)
class Batch:
    """Inputs of one shape, (B, ...) as the supply reads them, of some samples, with the truth of each.

    keep: ids of the samples whose pictures are wanted. tell: called with an attack's stages. added: (B, ...) what an
    attack on another checkpoint added to the inputs, in the card's space; None under other conditions.
    """

    inputs: Tensor
    samples: Sequence[Sample]
    truths: Sequence[Any] = ()
    keep: Container[str] = ()
    tell: Tell | None = None
    added: Tensor | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def parts(self, size: int) -> Iterator[tuple[slice, Batch]]:
        """Split into batches of at most `size`, each with its place."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            samples, added = self.samples[part], None if self.added is None else self.added[part]
            yield part, replace(self, inputs=self.inputs[part], samples=samples, truths=self.truths[part], added=added)


@dataclass(frozen=True)
class Shown:
    """The images of a batch of B samples as a condition shows them to the network.

    inputs: (B, ...) in the card's space. images: the same to be looked at, as pixels in [0, 1] or uint8; made when they
    are asked for. change: (B, ...) the difference from the clean inputs in the units of eps; None where it is not
    known. result: of an attack.
    """

    inputs: Tensor
    images: Callable[[], Tensor]
    change: Tensor | None
    result: AttackResult | None = None


@dataclass(frozen=True)
class Evaluation:
    """Columns for one batch, the seconds that each stage of an attack took, and how it deviated from its settings.

    pictures: of the samples whose pictures are wanted, by id. metadata: for the records. change: (B, ...) what an
    attack added to the inputs, in the card's space.
    """

    columns: dict[str, list[Any]]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pictures: dict[str, Picture] = field(default_factory=dict)
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    change: Tensor | None = None


class EvaluatedModel:
    """One checkpoint on its device under one card. Each task's subclass says how it is attacked and scored.

    schema: of its records. reused: texts of conditions whose images the next condition also takes; they are kept until
    then. by_run: columns that an attack which makes several runs has of each, `predicted js`. unordered: by a
    condition's text, the operations for which the device has no deterministic algorithm. asked_alone: whether a sample
    was shown alone, to be compared with its answer in a batch. run: the folder that its records are written to, None
    where they are not. chosen: by a condition's text, which samples its family took from the records of another.
    """

    schema: pa.Schema
    by_run: tuple[str, ...] = ()

    def __init__(
        self,
        classifier: Classifier,
        card: Card,
        settings: Settings,
        valid: Sequence[int] | None,
        reused: Container[str] = (),
    ) -> None:
        self.classifier = self._placed(classifier).to(settings.device)
        self.card, self.settings, self.valid, self.reused = card, settings, valid, reused
        self.unordered: dict[str, set[str]] = {}
        self.run: RunFolder | None = None
        self.chosen: dict[str, Any] = {}
        self.asked_alone, self._strict = False, True
        self._positions = {label: index for index, label in enumerate(valid or ())}
        self._memory: tuple[str, dict[tuple[str, ...], Tensor]] = ("", {})
        self._answered: dict[Hashable, Any] = {}
        competing = None if valid is None else torch.tensor(valid, device=settings.device)
        self.exact = ScoringModel(self.classifier, card, torch.float32, competing)
        whole = settings.dtype == torch.float32
        self.fast = self.exact if whole else ScoringModel(self.classifier, card, settings.dtype, competing)
        searches_in = settings.searches_in
        same = searches_in == settings.dtype
        self.search = self.fast if same else ScoringModel(self.classifier, card, searches_in, competing)
        if settings.compile:
            self.search.compiled = CompiledNetwork(self.search.network)
        autocast = card.score_autocast and settings.device.type == "cuda"
        self.scorer = ScoringModel(self.classifier, card, torch.float16, competing) if autocast else self.exact

    def _placed(self, classifier: Classifier) -> Classifier:
        """Return the classifier laid out in memory as its inputs are."""
        return classifier

    def steadily(self, what: str, rng: SampleRng, compute: Callable[[], T]) -> T:
        """Return what `compute` gives: float32 is float32, in a fixed order, and a model that draws by itself draws the
        same when it is asked again.

        Where the device has no deterministic algorithm for an operation, it is computed again without, and
        `unordered[what]` has the names of such operations. what: the text of a condition, or the like.
        """
        names = self.unordered.get(what)
        if names is None and self._strict:
            try:
                with self._steady(rng, strict=True):
                    return compute()
            except RuntimeError as fault:
                if not lacks_order(fault):
                    raise
                names = {lacks_order(fault)}
        with self._steady(rng, strict=False) as more:
            result = compute()
        if unordered := (names or set()) | more:
            self.unordered[what] = unordered
        return result

    @contextmanager
    def _steady(self, rng: SampleRng, strict: bool) -> Iterator[set[str]]:
        """Hold all still; what is computed inside of something that is not strict is not, either."""
        device, before = self.settings.device, self._strict
        self._strict = strict
        try:
            with seeded(device, rng.seed), float32(), ordered(device, strict) as names:
                yield names
        finally:
            self._strict = before

    def forget(self) -> None:
        """Drop the inputs and answers kept for the current shard."""
        self._memory, self._answered = ("", {}), {}

    def halve(self) -> bool:
        """Go on with batches of half the size, where memory is short; False where they hold one image already."""
        size = self.settings.batch_size
        if size == 1:
            return False
        self.settings = replace(self.settings, batch_size=size // 2)
        self.forget()
        free_memory(self.settings.device)
        return True

    def rng(self, samples: Sequence[Sample], condition: Condition) -> SampleRng:
        """Return the random draws of each sample under a condition."""
        ids, text = [sample.id for sample in samples], condition.draws or condition.text
        return SampleRng.of(ids, seed=self.settings.seed, condition=text, device=self.settings.device)

    def labels(self, samples: Sequence[Sample]) -> Tensor:
        """Return the label of each sample, (B,), as an index of the logits that compete."""
        return to_device(torch.tensor([self._position(sample.label) for sample in samples]), self.settings.device)

    def accepted(self, samples: Sequence[Sample]) -> Tensor:
        """Return the labels that count as right as indices of the competing logits, on the host: (B,), or (B, L)."""
        sets = [list(dict.fromkeys(map(self._position, sample.valid or (sample.label,)))) for sample in samples]
        width = max(map(len, sets), default=1)
        filled = torch.tensor([labels + labels[:1] * (width - len(labels)) for labels in sets])
        return filled.flatten() if width == 1 else filled

    def classes(self, positions: Tensor) -> list[int]:
        """Return classes by their indices among the logits that compete."""
        return positions.tolist() if self.valid is None else [self.valid[position] for position in positions.tolist()]

    def correct(self, positions: Tensor, samples: Sequence[Sample]) -> list[bool | None]:
        """Whether predictions, as indices among the logits that compete, are right; None without a label."""
        return [
            None if sample.label < 0 else predicted in (sample.valid or (sample.label,))
            for predicted, sample in zip(self.classes(positions), samples, strict=True)
        ]

    def answers(self, view: Tensor, batch: Batch) -> dict[str, list[Any]]:
        """Return the columns of the model's answers to (B, ...) inputs, those of a batch as a condition shows them."""
        return self.score((self.scorer if self.card.score_autocast else self.fast)(view), batch)

    def _position(self, label: int) -> int:
        return label if self.valid is None else self._positions[label]

    def keep(self, condition: Condition, samples: Sequence[Sample], inputs: Tensor) -> None:
        """Keep the inputs of a condition whose images are reused."""
        if condition.text in self.reused:
            self._of(condition)[tuple(sample.id for sample in samples)] = inputs

    def recall(self, condition: Condition, samples: Sequence[Sample], make: Callable[[], Tensor]) -> Tensor:
        """Return the inputs of a condition, made where they are not kept; they are kept for the next one that asks."""
        inputs, key = self._of(condition), tuple(sample.id for sample in samples)
        if key not in inputs:
            inputs[key] = make()
        return inputs[key]

    def answered(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the answers that a key names, made where they are not kept; all conditions of a shard share them."""
        if key not in self._answered:
            self._answered[key] = make()
        answers: T = self._answered[key]
        return answers

    def _of(self, condition: Condition) -> dict[tuple[str, ...], Tensor]:
        """Return what is kept for a condition, and drop what was kept for others."""
        if self._memory[0] != condition.text:
            self._memory = condition.text, {}
        return self._memory[1]

    def distance(self, change: Tensor | None, count: int) -> dict[str, list[Any]]:
        """Return the columns of the size of a change, (B, ...) in the units of eps; null where it is not known."""
        if change is None:
            return {"linf": [None] * count, "l2": [None] * count}
        flat = change.flatten(1)
        linf, l2 = torch.stack([flat.abs().amax(dim=1), flat.norm(dim=1)]).tolist()
        return {"linf": linf, "l2": l2}

    # What each task implements

    def inputs(self, raw: Tensor) -> Tensor:
        """Return (B, ...) inputs, given as the supply reads them, on the device and in the card's space."""
        raise NotImplementedError

    def unread(self, sample: Sample) -> dict[str, Any]:
        """Return the row of a sample whose image cannot be read, without the reason."""
        raise NotImplementedError

    def needs_truth(self, condition: Condition) -> bool:
        return condition.needs_truth

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        """Run the attack that a condition names on inputs in the card's space."""
        raise NotImplementedError

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        """Return the columns of the model's answers on a batch."""
        raise NotImplementedError

    def asked_again(self, inputs: Tensor, batch: Batch) -> dict[str, list[Any]]:
        """Return columns of further answers to (B, ...) inputs, where outputs are random; none where they are not."""
        return {}

    def change(self, raw: Tensor, view: Tensor, inputs: Tensor) -> Tensor:
        """Return how far (B, ...) inputs that are shown, and given as `inputs`, are from `raw`, in the units of eps."""
        raise NotImplementedError

    def pictures(self, batch: Batch, **parts: Tensor) -> dict[str, Picture]:
        """Return pictures of the samples to keep, by id; none where inputs cannot be looked at."""
        return {}

    def show_pixels(self, batch: Batch, pixels: Tensor, are_changed: bool = True) -> Shown:
        """Return (B, 3, H, W) uint8 pixels as the network sees them. are_changed: whether they are the batch's."""
        inputs = self.inputs(pixels)
        return Shown(inputs, lambda: pixels, self.change(batch.inputs, pixels, inputs) if are_changed else None)

    def score_shown(self, batch: Batch, condition: Condition, view: Shown) -> Evaluation:
        """Return how the model does on the images that a condition shows."""
        self.keep(condition, batch.samples, view.inputs)
        with torch.inference_mode():
            rows = self.answers(view.inputs, batch) | self.asked_again(view.inputs, batch)
        pictures = self.pictures(batch, image=view.images()) if batch.keep else {}
        return Evaluation(rows | self.distance(view.change, len(batch)), pictures=pictures)


SIDE = 224  # the longest side of a kept image; larger ones are shrunk
MAP_SIDE = 64


def _is_cnn(classifier: Classifier) -> bool:
    """Whether the network has no attention; channels-last memory is fastest then."""
    return classifier.identity.attention == "none"


def in_fast_layout(classifier: Classifier) -> Classifier:
    """Return a classifier of images in the memory format that is fastest for it, which also decides how it rounds."""
    return classifier.to(memory_format=torch.channels_last) if _is_cnn(classifier) else classifier


class ImageSubject(EvaluatedModel):
    """A checkpoint of images, whose inputs are (B, 3, H, W) uint8 pixels. eps and distances are in pixel units."""

    def _placed(self, classifier: Classifier) -> Classifier:
        return in_fast_layout(classifier)

    def inputs(self, raw: Tensor) -> Tensor:
        clean = unit_pixels(raw.to(self.settings.device))
        if _is_cnn(self.classifier):
            clean = clean.contiguous(memory_format=torch.channels_last)
        return clean if self.card.space == "pixels" else self.classifier.normalize(clean)

    def change(self, raw: Tensor, view: Tensor, inputs: Tensor) -> Tensor:
        difference = view.float() - raw.to(view.device).float()
        return difference if raw.is_floating_point() else to_unit_range(difference)

    def pictures(self, batch: Batch, **parts: Tensor) -> dict[str, Picture]:
        """Return kept pictures by id. parts: as `encode_picture` takes them, batched."""
        for name in ("image", "delta"):
            if name in parts:
                parts[name] = looked_at(parts[name], self.settings.show)
        return {
            sample.id: encode_picture(**{name: values[index] for name, values in parts.items()})
            for index, sample in enumerate(batch.samples)
            if sample.id in batch.keep
        }


def encode_picture(image: Tensor | None = None, delta: Tensor | None = None, heat: Tensor | None = None) -> Picture:
    """Return pictures of (3, H, W) uint8 or [0, 1], of a change in pixels, and of a map (H, W) in [0, 1]."""
    return Picture(
        None if image is None else _webp(as_levels(image), quality=80),
        None if delta is None else _webp(as_levels(delta / (2 * float(delta.abs().max()) or 1) + 0.5), quality=60),
        None if heat is None else _small_map(as_levels(heat)),
    )


def as_levels(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return values as (H, W, 3) or (H, W) uint8; of other channels than three the first ones, or grey."""
    values = looked_at(values.detach().cpu(), ()) if values.ndim == 3 else values.detach().cpu()
    values = values.nan_to_num().clamp(0, 1).mul(255).round().byte() if values.is_floating_point() else values
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = values.numpy()
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def _webp(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], quality: int) -> bytes:
    """Encode as WebP; a small image keeps every pixel, with little effort: more saves 7 % for seven times the time."""
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    small = max(image.size) <= MAP_SIDE
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    effort = {"lossless": True, "quality": 20, "method": 1} if small else {"quality": quality}
    image.save(buffer, "WEBP", **effort)
    return buffer.getvalue()


def _small_map(levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    image, buffer = Image.fromarray(levels), io.BytesIO()
    image.thumbnail((MAP_SIDE, MAP_SIDE), Image.Resampling.BILINEAR)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def show_attacked(subject: EvaluatedModel, inputs: Tensor, result: AttackResult) -> Shown:
    """Return what an attack made of inputs (B, ...) in the card's space, with its change in the units of records."""
    points, classifier, as_it_is = result.adversarials, subject.classifier, subject.card.space != "normalised"
    with torch.inference_mode():
        change = (points - inputs).float() * (1 if as_it_is else classifier.std)
    return Shown(points, lambda: points if as_it_is else points * classifier.std + classifier.mean, change, result)


show_pixels, score_shown = EvaluatedModel.show_pixels, EvaluatedModel.score_shown  # as plug-ins call them
