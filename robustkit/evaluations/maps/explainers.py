"""All explainers by name: those of the package `cam`, and the ones of plug-ins."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

import cam
from cam.agnostic import Control

from ...common.randomness import SampleRng
from ..subject import Subject
from .methods import EVERY_EXPLAINER, Chosen, as_numbers


def explainer_of(subject: Subject, method: str, options: Chosen = ()) -> cam.Explainer:
    """Return the explainer of a subject's network, with the options asked for. What stands for a hidden pixel, and how
    many rows go at once, is the subject's, where the method takes it.
    """
    kind = EVERY_EXPLAINER[method]
    shared = {"fill": nothing_of(subject), "batch_size": subject.settings.batch_size}
    taken = {key: value for key, value in shared.items() if key in inspect.signature(kind).parameters}
    return kind(subject.exact, **taken, **as_numbers(method, options))


def control_map(method: str, inputs: Tensor, rng: SampleRng) -> cam.Explanation:
    """Return the maps of a control, which asks no model."""
    control = EVERY_EXPLAINER[method]
    assert issubclass(control, Control)
    return control().explain(inputs, rng=rng)


def nothing_of(subject: Subject) -> Tensor:
    """Return what a removed pixel becomes, (3,): the mean that the model normalises with."""
    return torch.zeros(3) if subject.card.space != "pixels" else subject.classifier.mean.flatten()
