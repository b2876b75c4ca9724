"""Read the samples of shards ahead of the model; their inputs go to the device once, for all conditions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import Tensor

from ..common.uploads import stacked, upload
from ..data.dataset import Sample
from ..errors import BadImageError
from ..evaluations.supply import Reader

T = TypeVar("T")
_LARGE = 1 << 30  # bytes


class Shard:
    """The samples of a shard, each with its input or the reason why it has none.

    decoding: samples with the futures of their inputs, or of the reasons. device: where inputs are wanted.
    """

    def __init__(self, decoding: Sequence[tuple[Sample, Future[Tensor | str]]], device: torch.device) -> None:
        self._decoding = decoding
        self._device = device
        self._read: dict[int, tuple[Sample, Tensor | str, tuple[int, ...]]] = {}
        self._alike: dict[tuple[int, ...], tuple[list[int], Tensor]] = {}

    def __len__(self) -> int:
        return len(self._decoding)

    def places(self, ids: Container[str] | None = None) -> Sequence[int]:
        """Return the places of these samples; of all where none are named."""
        every = range(len(self))
        return every if ids is None else [place for place in every if self._decoding[place][0].id in ids]

    def read(self, place: int) -> tuple[Sample, Tensor | str, tuple[int, ...]]:
        """Return a sample, its input on the host or the reason why it has none, and the shape of the input."""
        if place not in self._read:
            sample, future = self._decoding[place]
            read = future.result()
            self._read[place] = sample, read, () if isinstance(read, str) else tuple(read.shape)
        return self._read[place]

    def inputs(self, places: Sequence[int]) -> Tensor:
        """Return the inputs of samples of one shape, (n, ...), on the device; the caller may write to them.

        On an accelerator those of the whole shard are uploaded together when the first is asked for, and stay, unless
        they are large.
        """
        shape = self.read(places[0])[2]
        if shape not in self._alike:
            alike = dict(self._of_shape(shape))
            each = alike[places[0]]
            if self._device.type == "cpu" or len(alike) * each.numel() * each.element_size() > _LARGE:
                return stacked([alike[place] for place in places], self._device)
            self._alike[shape] = list(alike), stacked(list(alike.values()), self._device)
        known, inputs = self._alike[shape]
        start = known.index(places[0])
        if known[start : start + len(places)] == list(places):
            return inputs[start : start + len(places)].clone()
        return inputs[upload(torch.tensor([known.index(place) for place in places]), self._device)]

    def _of_shape(self, shape: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
        """Yield the places of the inputs of a shape, with the inputs."""
        for place in range(len(self)):
            _, read, own = self.read(place)
            if own == shape and isinstance(read, Tensor):
                yield place, read


def decoded(read: Reader, samples: Sequence[Sample], workers: int, device: torch.device) -> list[tuple[Sample, Tensor]]:
    """Return samples with their inputs, decoded in threads; without those that cannot be read."""
    for _, shard in Decoder(workers, device).shards([("", read, samples)]):
        each = (shard.read(place) for place in range(len(shard)))
        return [(sample, pixels) for sample, pixels, _ in each if isinstance(pixels, Tensor)]
    return []


class Decoder:
    """A reader of the inputs of the next shards, in threads.

    device: where inputs are wanted. On an accelerator the next shard is decoded while one is computed, so that it need
    not wait; two shards are held. On a CPU, which both would share, a shard is decoded first: threads that decode while
    others multiply make all of them wait for each other.
    """

    def __init__(self, workers: int, device: torch.device) -> None:
        self.device = device
        self.pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="robustkit-decode")

    @staticmethod
    def _input(read: Reader, sample: Sample) -> Tensor | str:
        try:
            return read(sample)
        except BadImageError as fault:
            return str(fault)

    def shards(self, shards: Iterable[tuple[T, Reader, Sequence[Sample]]]) -> Iterator[tuple[T, Shard]]:
        """Yield each shard by its key."""
        ahead: tuple[T, Shard] | None = None
        try:
            for key, read, samples in shards:
                submitted = [(sample, self.pool.submit(self._input, read, sample)) for sample in samples]
                shard = Shard(submitted, self.device)
                if self.device.type == "cpu":
                    wait([future for _, future in submitted])
                    yield key, shard
                    continue
                if ahead is not None:
                    yield ahead
                ahead = key, shard
            if ahead is not None:
                yield ahead
        finally:
            self.pool.shutdown(cancel_futures=True)
