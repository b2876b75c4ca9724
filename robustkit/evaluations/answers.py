"""What a checkpoint answers to a few samples: kept in run.json, and asked again where a run goes on.

Weights and the digest of a file do not say what a network computes: an activation, a hook, a helper of another module,
a custom operator decide, too. Its answers, and their gradients where it has some, do.
"""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from ..common.determinism import float32, hash_values, seeded
from ..data.dataset import Sample
from ..data.images import unit_pixels
from ..errors import BadImageError, RobustkitError
from ..models.identity import Classifier
from ..runs.manifest import AnswersEntry
from .subject import Reader, in_fast_layout

_VALUES = 16  # of each answer

Question = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From an input, as it is read, to the tensor that the network takes, and the network's answer."""


def ask_image(classifier: Classifier, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return pixels (1, 3, H, W) of (3, h, w) uint8, at most as large as the network's usual input, and the answer."""
    height, width = classifier.identity.preprocessing.input_size
    pixels = unit_pixels(raw[None, :, :height, :width].to(classifier.mean.device)).requires_grad_()
    return pixels, in_fast_layout(classifier)(pixels)


def take_answers(question: Question, read: Reader, samples: Sequence[Sample]) -> AnswersEntry | None:
    """Return what a checkpoint answers to the first, the middle and the last sample by id. None where none of them can
    be read, or the network fails, which the first unit of work then says. Raises what reading raises.
    """
    ordered = sorted(samples, key=lambda sample: sample.id)
    inputs = dict[str, Tensor]()
    for place in sorted({0, len(ordered) // 2, len(ordered) - 1}):
        try:
            inputs[ordered[place].id] = read(ordered[place])
        except BadImageError:
            continue
    try:
        first, second = ([_answered(question, *item) for item in inputs.items()] for _ in range(2))
    except RobustkitError:
        raise
    except Exception:  # the user's own code may raise anything
        return None
    if not inputs:
        return None
    where = f"torch {torch.__version__}, {torch.get_num_threads()} threads of {_processor()}"
    answers, again = (
        AnswersEntry(on=where, samples=tuple(inputs), digest=_digest(parts), values=_encoded(parts))
        for parts in (first, second)
    )
    if answers.digest == again.digest:
        return answers
    rounded = replace(answers, digest=None)
    return replace(rounded, values="") if rounded.gap(again) else rounded


def _answered(question: Question, sample_id: str, raw: Tensor) -> list[Tensor]:
    """Return the answer to an input, and its gradient where it has one. What a network draws, it draws the same."""
    with seeded(torch.device("cpu"), hash_values("answers", sample_id) >> 1), float32(), torch.enable_grad():
        taken, answer = question(raw)
        parts: list[Tensor | None] = [answer]
        if answer.requires_grad and taken.requires_grad:
            weights = torch.linspace(-1, 1, answer.numel(), device=answer.device).view(answer.shape)
            with suppress(RuntimeError, NotImplementedError):  # an operator without a backward
                parts += torch.autograd.grad((answer.float() * weights).sum(), taken, allow_unused=True)
    return [part.detach().float().cpu().flatten() for part in parts if part is not None]


def _digest(answered: Sequence[Sequence[Tensor]]) -> str:
    return hashlib.sha256(b"".join(part.numpy().tobytes() for parts in answered for part in parts)).hexdigest()


def _encoded(answered: Sequence[Sequence[Tensor]]) -> str:
    """Return some values of each answer, evenly spaced, as base64 of little-endian float32."""
    answers = [answer[torch.linspace(0, len(answer) - 1, min(_VALUES, len(answer))).long()] for answer, *_ in answered]
    return base64.b64encode(torch.cat(answers).numpy().astype("<f4").tobytes()).decode()


@cache
def _processor() -> str:
    """Return the model of the processor, whose kernels round in their own way."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
