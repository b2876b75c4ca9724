"""What is asked of features: nearest neighbours, logistic regression, and how these heads are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from ...common.determinism import hash_values
from ...errors import ModelError
from ...models.device import has_float64
from .task import few_shot

_AT_ONCE = 1 << 22  # similarities that are held at once, at most, or those of one query


def votes(similarity: Tensor, places: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """Return the class (b,) with most votes of the k nearest, exp(cosine / temperature) each (DINO, Caron et al. 2021),
    from (b, N), most similar first.
    """
    weights = ((similarity[:, :k] - 1) / temperature).exp()
    return weights.new_zeros(len(weights), classes).scatter_add_(1, places[:, :k], weights).argmax(dim=1)


def average_precision(similarity: Tensor, relevant: Tensor) -> Tensor:
    """Return (b,): over relevant entries (b, N), the mean share of relevant ones at least as similar; or nan."""
    count = similarity.shape[1]
    ranks = torch.arange(count, device=similarity.device)
    last = torch.ones_like(relevant)  # of entries that are equally similar
    last[:, :-1] = similarity[:, 1:] != similarity[:, :-1]
    ends = torch.where(last, ranks, count).flip(1).cummin(dim=1).values.flip(1)
    precision = relevant.cumsum(dim=1).gather(1, ends).to(similarity) / (ends + 1)
    return (precision * relevant).sum(dim=1) / relevant.sum(dim=1)


def nearest_answers(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor,
    places: Tensor,
    neighbours: Sequence[int],
    temperature: float,
    classes: int,
) -> tuple[dict[int, Tensor], Tensor]:
    """Return by k the classes (B,) that neighbours vote for, and the average precision (B,) of the classes `labels`.
    queries: (B, D). gallery: (N, D), of length 1, of the classes `places`; of equally similar ones the first is nearer.
    """
    voted: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    precisions, unit, size = [], functional.normalize(queries, dim=1), max(1, _AT_ONCE // len(gallery))
    for start in range(0, len(unit), size):
        block = slice(start, start + size)
        similarity, order = (unit[block] @ gallery.T).sort(dim=1, descending=True, stable=True)
        near = places[order]
        for k, answers in voted.items():
            answers.append(votes(similarity, near, k, temperature, classes))
        precisions.append(average_precision(similarity, near == labels[block, None]))
    return {k: torch.cat(answers) for k, answers in voted.items()}, torch.cat(precisions)


STRENGTHS = tuple(10.0**-power for power in range(-1, 5))  # what cross-validation chooses from, strongest first
FOLDS = 3
MOST = 10_000  # the most images that cross-validation takes: how strong is best per image hardly depends on more
_STEPS, _GRADIENT, _CHANGE = 2000, 1e-7, 1e-12


def fit(features: Tensor, places: Tensor, classes: int, strength: float, start: Tensor | None = None) -> Tensor:
    """Return weights (D + 1, C), bias last, minimising mean cross-entropy + strength / 2 · their square without bias,
    as scikit-learn's LogisticRegression(C=1 / (strength * N)). features: (N, D) float64. start: weights to begin with.
    """
    weights = features.new_zeros(features.shape[1] + 1, classes) if start is None else start.clone()
    weights.requires_grad_()
    search = torch.optim.LBFGS(
        [weights],
        max_iter=_STEPS,
        tolerance_grad=_GRADIENT,
        tolerance_change=_CHANGE,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        search.zero_grad()
        error = functional.cross_entropy(logits(features, weights), places)
        value = error + strength / 2 * weights[:-1].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.inference_mode(False), torch.enable_grad():
        search.step(loss)  # type: ignore[arg-type, no-untyped-call, unused-ignore]
    return weights.detach()


def logits(features: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], features, weights[:-1])


def best_strength(features: Tensor, places: Tensor, ids: Sequence[str], classes: int, seed: int) -> float:
    """Return the best strength by cross-validation in three folds, of equals the strongest, on at most 10 000 images.
    Folds follow seed and ids, evenly within classes. Raises ModelError where no class has two images.
    """
    order = shuffled(places, ids, f"{seed}/folds")[:MOST]
    chosen = torch.tensor(order, device=features.device)
    features, places = features[chosen], places[chosen]
    fold = fold_of(places)
    if int(places.bincount().max()) < 2:
        raise ModelError(
            f"--probe cv: no class has two of the {len(order)} training images; expected some, since classes of images "
            "left out are predicted; give more images, or a strength such as --probe 0.01"
        )
    right = [0] * len(STRENGTHS)
    for out in sorted(set(fold.tolist())):
        weights: Tensor | None = None
        for which, strength in enumerate(STRENGTHS):
            weights = fit(features[fold != out], places[fold != out], classes, strength, weights)
            predicted = logits(features[fold == out], weights).argmax(dim=1)
            right[which] += int((predicted == places[fold == out]).sum())
    return STRENGTHS[right.index(max(right))]


def fold_of(places: Tensor) -> Tensor:
    """Return the fold (N,) of each image: those of a class take turns, each class from another fold on."""
    seen = Counter[int]()
    turns = []
    for place in places.tolist():
        turns.append((seen[place] + place) % FOLDS)
        seen[place] += 1
    return torch.tensor(turns, device=places.device)


def shuffled(places: Tensor, ids: Sequence[str], purpose: str) -> list[int]:
    """Return the images in an order in which classes take turns, and which depends on purpose and ids alone."""
    by_class: dict[int, list[tuple[int, int]]] = {}
    for image, (place, name) in enumerate(zip(places.tolist(), ids, strict=True)):
        by_class.setdefault(place, []).append((hash_values(purpose, name), image))
    turns = ((turn, place, image) for place, some in by_class.items() for turn, (_, image) in enumerate(sorted(some)))
    return [image for _, _, image in sorted(turns)]


def few_shot_draws(
    places: Tensor, ids: Sequence[str], shots: Sequence[int], count: int, seed: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield shots, draw, and the images drawn, as many of each class; few are part of the same draw of more."""
    classes = len(set(places.tolist()))
    for draw in range(count):
        order = torch.tensor(shuffled(places, ids, f"{seed}/few-shot/{draw}"), device=places.device)
        yield from ((many, draw, order[: many * classes]) for many in shots)


CROSS_VALIDATION = "cv"


@dataclass(frozen=True)
class HeadChoice:
    """How the heads are made; part of a checkpoint in run.json. training: digest of its images. neighbours: k of votes;
    k: the one that stands for all. draws: of few-shot images. few_shot, probe: strengths, or `cv` for cross-validation.
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
        return asdict(self) | {"neighbours": list(self.neighbours), "shots": list(self.shots)}


@dataclass(frozen=True)
class HeadSet:
    """Heads fitted to training features (N, D) of classes[places], (C,) labels. weights: (D + 1, C) by linear head, for
    centred, scaled features. strength: the probe's.
    """

    asked: HeadChoice
    features: Tensor
    places: Tensor
    classes: Tensor
    weights: Mapping[str, Tensor]
    strength: float

    @classmethod
    def fitted(cls, asked: HeadChoice, features: Tensor, labels: Sequence[int], ids: Sequence[str], seed: int) -> Self:
        """Return the heads for features (N, D) of training images. Raises ModelError where some are not finite."""
        odd = int((~features.isfinite().all(dim=1)).sum())
        if odd:
            raise ModelError(
                f"{odd} of {len(features)} training images have non-finite features; check"
                " the weights, --mean "
                "and --std"
            )
        where = features.device if has_float64(features.device) else torch.device("cpu")
        distinct = sorted(set(labels))
        classes = torch.tensor(distinct, device=where)
        places = torch.searchsorted(classes, torch.tensor(labels, device=where))
        made = cls(asked, features, places, classes, {}, 0.0)
        scaled, count = made._scaled(features.to(where, torch.float64)), len(classes)
        strength = asked.probe
        if strength == CROSS_VALIDATION:
            strength = best_strength(scaled, places, ids, count, seed)
        weights = {"probe": fit(scaled, places, count, float(strength))}
        for shots, draw, chosen in few_shot_draws(places, ids, asked.shots, asked.draws, seed):
            weights[few_shot(shots, draw)] = fit(scaled[chosen], places[chosen], count, asked.few_shot)
        single = {name: each.float() for name, each in weights.items()}
        return cls(asked, features, places, classes, single, float(strength))

    def to(self, device: torch.device) -> HeadSet:
        weights = {name: each.to(device) for name, each in self.weights.items()}
        features, places, classes = (each.to(device) for each in (self.features, self.places, self.classes))
        return HeadSet(self.asked, features, places, classes, weights, self.strength)

    def tensors(self) -> dict[str, Tensor]:
        held = {"features": self.features, "places": self.places, "classes": self.classes}
        strength = torch.tensor([self.strength], dtype=torch.float64)
        return {**held, **self.weights, "strength": strength}

    @classmethod
    def of(cls, asked: HeadChoice, tensors: Mapping[str, Tensor]) -> HeadSet:
        rest = dict(tensors)
        features, places, classes = (rest.pop(name) for name in ("features", "places", "classes"))
        strength = float(rest.pop("strength"))
        return cls(asked, features, places, classes, rest, strength)

    def predict(self, features: Tensor, labels: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
        """Return by head the labels (B,) for features (B, D), and the precision (B,) of retrieving their classes,
        `labels`. Of features that are not finite: -1 and 0.
        """
        asked, finite = self.asked, features.isfinite().all(dim=1)
        numbers = features.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        targets = torch.searchsorted(self.classes, torch.tensor(labels, device=features.device))
        voted, precision = nearest_answers(
            numbers, targets, self._gallery, self.places, asked.neighbours, asked.temperature, len(self.classes)
        )
        places = {f"knn {k}": found for k, found in voted.items()} | {"knn": voted[asked.k]}
        scaled = self._scaled(numbers)
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
        """Return features (B, D) centred by the training images', and scaled so that theirs have the mean square 1."""
        mean, scale = self._centre
        return (features - mean.to(features)) / scale
