"""What the model answers about images whatever their maps: asked once for a shard, and shared by all maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from cam.faithfulness import Ends, blurred
from cam.sensitivity import Squares, hide_squares

from ...common.randomness import SampleRng
from ...data.dataset import Sample
from ...protocol.condition import Condition
from ..explainers import nothing_of
from ..subject import Subject

T = TypeVar("T")


def clean_answers(subject: Subject, samples: Sequence[Sample], inputs: Tensor) -> Tensor:
    """Return the logits (B, K) of inputs as they are."""
    return _answers(subject, samples, "clean", lambda rng: _logits(subject, inputs))


def shared_by_maps(subject: Subject, samples: Sequence[Sample], inputs: Tensor, canvas: bool) -> dict[str, Any]:
    """Return what tests of maps on the model have in common: what a removed pixel becomes, what curves begin and end
    with, and how many rows go at once. canvas: whether there are curves that begin with a blurred image.
    """
    fill, shape = nothing_of(subject), inputs.shape[1:]
    nothing = fill.to(inputs).view(1, -1, 1, 1).expand(1, *shape)
    whole = clean_answers(subject, samples, inputs)
    empty = _answers(subject, [], f"empty {tuple(shape)}", lambda rng: _logits(subject, nothing))
    blank = _answers(subject, samples, "blurred", lambda rng: _logits(subject, blurred(inputs))) if canvas else None
    return {
        "fill": fill,
        "ends": Ends(whole, empty.expand_as(whole), blank),
        "batch_size": subject.settings.batch_size,
    }


def hidden_squares(subject: Subject, samples: Sequence[Sample], inputs: Tensor) -> Squares:
    """Return squares that are hidden for infidelity, and the answers; the same places for all maps."""
    fill, size = nothing_of(subject), subject.settings.batch_size

    def ask(rng: SampleRng) -> Squares:
        return hide_squares(subject.exact, inputs, fill=fill, rng=rng, batch_size=size)

    return _answers(subject, samples, "squares", ask)


def _logits(subject: Subject, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = subject.exact(images)
    return logits


def _answers(subject: Subject, samples: Sequence[Sample], shown: str, ask: Callable[[SampleRng], T]) -> T:
    """Return what `ask` gives for images, named by their samples and what they are `shown` as."""
    condition = Condition("answers", f"answers({shown})")  # so that they do not depend on which map asks first
    rng = subject.rng(samples, condition)
    key = condition.text, *(sample.id for sample in samples)
    return subject.answered(key, lambda: subject.steadily(condition.text, rng, lambda: ask(rng)))
