"""Logistic regression on features: of all training images, and of few of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ...common.randomness import hashed
from ...errors import ModelError

STRENGTHS = tuple(10.0**-power for power in range(-1, 5))
"""What cross-validation chooses from, strongest first."""
FOLDS = 3
MOST = 10_000
"""The most images that cross-validation takes: how strong is best per image hardly depends on more."""
_STEPS, _GRADIENT, _CHANGE = 2000, 1e-7, 1e-12


def fit(features: Tensor, places: Tensor, classes: int, strength: float, start: Tensor | None = None) -> Tensor:
    """Return weights (D + 1, C) that minimise the mean cross-entropy + strength / 2 times their squared length, without
    the last row, which is added. It is scikit-learn's LogisticRegression(C=1 / (strength * N)).

    features: (N, D) float64. places: (N,) classes, 0 to C - 1. start: weights to begin with.
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
    """Return the logits (B, C) of features (B, D)."""
    return torch.addmm(weights[-1], features, weights[:-1])


def best_strength(features: Tensor, places: Tensor, ids: Sequence[str], classes: int, seed: int) -> float:
    """Return the strength under which classes of images left out are predicted best, by cross-validation in three
    folds; of equally good ones the strongest.

    ids: of the N images: which fold an image is in depends on seed and id, and is even within each class. At most
    10 000 images are taken.

    Raises:
        ModelError: no class has two images, so that none is ever predicted by those that are left.
    """
    order = shuffled(places, ids, f"{seed}/folds")[:MOST]
    chosen = torch.tensor(order, device=features.device)
    features, places = features[chosen], places[chosen]
    fold = folds(places)
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
            found = logits(features[fold == out], weights).argmax(dim=1)
            right[which] += int((found == places[fold == out]).sum())
    return STRENGTHS[right.index(max(right))]


def folds(places: Tensor) -> Tensor:
    """Return the fold (N,) that an image is in: images of a class take turns, each class from another fold on.
    places: (N,) classes.
    """
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
        by_class.setdefault(place, []).append((hashed(purpose, name), image))
    turns = ((turn, place, image) for place, some in by_class.items() for turn, (_, image) in enumerate(sorted(some)))
    return [image for _, _, image in sorted(turns)]


def draws(
    places: Tensor, ids: Sequence[str], shots: Sequence[int], count: int, seed: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield for each of `count` draws and numbers of shots: both, and the images drawn, as many of each class. A draw
    of few images is part of the same draw of more.
    """
    classes = len(set(places.tolist()))
    for draw in range(count):
        order = torch.tensor(shuffled(places, ids, f"{seed}/few-shot/{draw}"), device=places.device)
        yield from ((many, draw, order[: many * classes]) for many in shots)
