"""Whether a model answers a sample alone as it answers it in a batch, and which images are the same."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...common.determinism import SampleRng
from ...common.finding import Finding
from ...protocol.condition import Condition
from ..family import Evaluator
from ..subject import Batch, EvaluatedModel, Evaluation, Shown
from . import AT_32, PIXELS, VOCABULARY

_FEW = 4  # samples that are asked alone
_APART, _ROUNDED = 0.002, 0.1  # change of a figure that rounding does not explain, in float32 and below it
_NOISE = 4.0  # times the change between two answers alike, which a random model may show


def depends_on_batch(
    subject: EvaluatedModel, batch: Batch, done: Evaluation, ask: Callable[[Batch], Evaluation]
) -> tuple[str, ...]:
    """Return a note where samples of a batch get other figures alone; a batch of one is compared with one that holds
    its inverted mirror image, too. done: what came out for the batch. ask: evaluates another one."""
    if batch.inputs.ndim < 3:  # of documents, whose windows make batches of their own
        return ()
    alone = [replace(part, keep=()) for _, part in batch.parts(1)][:_FEW]
    together: Mapping[str, Sequence[Any]] = done.columns
    if len(batch) == 1:
        inputs = batch.inputs
        other = inputs.flip(-1).bitwise_not() if inputs.dtype == torch.uint8 else -inputs.flip(-1)
        pair = Batch(torch.cat([inputs, other]), [*batch.samples] * 2, [*batch.truths] * 2)
        together = ask(pair).columns

    def largest(first: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Sequence[Any]]]) -> float:
        names = [name for name in rows[0] if name in first]
        return max((_apart(first[name][i], row[name][0]) for i, row in enumerate(rows) for name in names), default=0.0)

    once = [ask(part).columns for part in alone]
    exact = subject.settings.dtype == torch.float32 and not subject.card.score_autocast
    if (apart := largest(together, once)) <= (_APART if exact else _ROUNDED):
        return ()
    twice = [ask(part).columns for part in alone]
    noise = max(largest(first, [second]) for first, second in zip(once, twice, strict=True))
    if apart <= _NOISE * noise:
        return ()
    return (str(Finding.of("model/depends-on-batch", apart=apart)),)


def _apart(one: Any, other: Any) -> float:
    """Return the difference of two figures relative to the larger, or to 1; 0 for anything but figures."""
    if not (isinstance(one, float) and isinstance(other, float)) or math.isnan(one) or math.isnan(other):
        return 0.0
    return 0.0 if one == other else min(abs(one - other) / max(1.0, min(abs(one), abs(other))), 1e6)


_SIDE = 32


def image_digests(pixels: NDArray[np.uint8]) -> tuple[int, int]:
    """Return digests, 64 bits each, of an image (C, H, W), and of its means over 32 x 32 boxes, exact on any machine.
    A smaller side stays as it is."""
    height, width = pixels.shape[1:]
    rows, columns = (np.arange(min(side, _SIDE) + 1) * side // min(side, _SIDE) for side in (height, width))
    sums = cv2.integral(np.ascontiguousarray(pixels.transpose(1, 2, 0))).reshape(height + 1, width + 1, -1)
    corners = sums[rows][:, columns]  # modulo 2 ** 32, as the sum of a box is
    boxes = np.diff(np.diff(corners, axis=0), axis=1)
    means = boxes // (np.diff(rows)[:, None, None] * np.diff(columns)[None, :, None])
    return _digest(pixels), _digest(means.astype(np.uint8))


def _digest(levels: NDArray[np.uint8]) -> int:
    size = repr(levels.shape).encode()
    hashed = hashlib.blake2b(levels.tobytes(), digest_size=8, key=size).digest()
    return int.from_bytes(hashed, "little", signed=True)


class CleanEvaluator(Evaluator):
    words, keeps_places = VOCABULARY, True

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {PIXELS: pa.int64(), AT_32: pa.int64()}

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        return subject.show_pixels(batch, batch.inputs.to(subject.settings.device))

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Of images also tell which are the same; of the first batch of a checkpoint, whether a sample alone is
        answered the same."""
        done = super().evaluate(subject, batch, condition, rng)
        if batch.inputs.ndim == 4 and batch.inputs.dtype == torch.uint8:
            with ThreadPoolExecutor(subject.settings.workers) as threads:
                digests = [*threads.map(image_digests, batch.inputs.cpu().numpy())]
            for name, values in zip((PIXELS, AT_32), zip(*digests, strict=True), strict=True):
                done.columns[name] = [*values]
        if subject.asked_alone:
            return done
        subject.asked_alone = True
        ask = partial(super().evaluate, subject, condition=condition, rng=rng)
        return replace(done, notes=(*done.notes, *depends_on_batch(subject, batch, done, ask)))
