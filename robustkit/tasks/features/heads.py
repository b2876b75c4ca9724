"""What is asked of features: how the heads are made, and the heads of one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import ModelError
from ...models.device import has_float64
from .logistic import best_strength, draws, fit, logits
from .neighbours import answers

CROSS_VALIDATION = "cv"


@dataclass(frozen=True)
class Asked:
    """How the heads are made. Part of what a checkpoint is, in run.json.

    training: the digest of the training images; images, classes: how many there are. neighbours: the k of weighted
    votes; k: the one that stands for all. temperature: of votes. shots, draws: images of each class that few-shot heads
    learn from, and how often they are drawn. few_shot, probe: strengths of regularisation, or `cv` for the one that
    cross-validation chooses.
    """

    training: str
    images: int
    classes: int
    neighbours: tuple[int, ...]
    k: int
    temperature: float
    shots: tuple[int, ...]
    draws: int
    few_shot: float
    probe: float | str

    def to_dict(self) -> dict[str, Any]:
        """Return the same in JSON types."""
        return asdict(self) | {"neighbours": list(self.neighbours), "shots": list(self.shots)}

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Asked:
        """Return what `to_dict` gave. KeyError, TypeError or ValueError where it did not."""
        given = {field.name: said[field.name] for field in fields(cls)}
        return cls(**{**given, **{name: tuple(map(int, given[name])) for name in ("neighbours", "shots")}})


def few_shot(shots: int, draw: int) -> str:
    """Return the name of a few-shot head, and of its column in records."""
    return f"few_shot {shots} {draw}"


@dataclass(frozen=True)
class Heads:
    """The heads of one checkpoint, fitted to its features of the training images.

    asked: how they were made. features: (N, D) of the training images. places: (N,) their classes, as places in
    `classes`, (C,) labels. weights: (D + 1, C) of each linear head, by name, on features that are centred and scaled.
    strength: of the probe's regularisation.
    """

    asked: Asked
    features: Tensor
    places: Tensor
    classes: Tensor
    weights: Mapping[str, Tensor]
    strength: float

    @classmethod
    def fitted(cls, asked: Asked, features: Tensor, labels: Sequence[int], ids: Sequence[str], seed: int) -> Heads:
        """Return the heads for features (N, D) of training images. Raises ModelError where some are not finite."""
        odd = int((~features.isfinite().all(dim=1)).sum())
        if odd:
            raise ModelError(
                f"{odd} of {len(features)} training images have features that are not finite; expected finite ones: "
                "check the weights, --mean and --std"
            )
        where = features.device if has_float64(features.device) else torch.device("cpu")
        known = sorted(set(labels))
        classes = torch.tensor(known, device=where)
        places = torch.searchsorted(classes, torch.tensor(labels, device=where))
        made = cls(asked, features, places, classes, {}, 0.0)
        scaled, count = made._scaled(features.to(where, torch.float64)), len(classes)
        strength = asked.probe
        if strength == CROSS_VALIDATION:
            strength = best_strength(scaled, places, ids, count, seed)
        weights = {"probe": fit(scaled, places, count, float(strength))}
        for shots, draw, chosen in draws(places, ids, asked.shots, asked.draws, seed):
            weights[few_shot(shots, draw)] = fit(scaled[chosen], places[chosen], count, asked.few_shot)
        kept = {name: each.float() for name, each in weights.items()}
        return cls(asked, features, places, classes, kept, float(strength))

    def to(self, device: torch.device) -> Heads:
        """Return the same on a device."""
        weights = {name: each.to(device) for name, each in self.weights.items()}
        features, places, classes = (each.to(device) for each in (self.features, self.places, self.classes))
        return Heads(self.asked, features, places, classes, weights, self.strength)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that it holds besides `asked`, by name."""
        held = {"features": self.features, "places": self.places, "classes": self.classes}
        strength = torch.tensor([self.strength], dtype=torch.float64)
        return {**held, **self.weights, "strength": strength}

    @classmethod
    def of(cls, asked: Asked, tensors: Mapping[str, Tensor]) -> Heads:
        """Return what `tensors` gave."""
        rest = dict(tensors)
        features, places, classes = (rest.pop(name) for name in ("features", "places", "classes"))
        strength = float(rest.pop("strength"))
        return cls(asked, features, places, classes, rest, strength)

    def predict(self, features: Tensor, labels: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the labels (B,) that each head predicts for features (B, D), by name, and the average precision (B,)
        with which training images of their classes, `labels`, are retrieved. Features that are not finite have the
        prediction -1 and the precision 0.
        """
        asked, finite = self.asked, features.isfinite().all(dim=1)
        known = features.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        own = torch.searchsorted(self.classes, torch.tensor(labels, device=features.device))
        voted, precision = answers(
            known, own, self._gallery, self.places, asked.neighbours, asked.temperature, len(self.classes)
        )
        places = {f"knn {k}": found for k, found in voted.items()} | {"knn": voted[asked.k]}
        scaled = self._scaled(known)
        names = "probe", *(few_shot(shots, draw) for shots in asked.shots for draw in range(asked.draws))
        places |= {name: logits(scaled, self.weights[name]).argmax(dim=1) for name in names}
        predicted = {name: self.classes[found].masked_fill(~finite, -1) for name, found in places.items()}
        return predicted, precision.masked_fill(~finite, 0.0)

    @cached_property
    def _gallery(self) -> Tensor:
        return functional.normalize(self.features, dim=1)

    @cached_property
    def _centre(self) -> tuple[Tensor, float]:
        """The mean (D,) of the training images' features, and the root of their mean square around it; float64."""
        features = self.features.cpu().double()
        mean = features.mean(dim=0)
        return mean, max(float((features - mean).square().mean().sqrt()), 1e-30)

    def _scaled(self, features: Tensor) -> Tensor:
        """Return features (B, D) from which the mean of the training images' is taken, over one number for all, so that
        theirs have the mean square 1. So a strength means the same for all checkpoints.
        """
        mean, scale = self._centre
        return (features - mean.to(features)) / scale
