"""Answer from nearest neighbours: weighted votes, and how well images of the same class are retrieved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

_AT_ONCE = 1 << 22
"""Similarities that are held at once, at most, or those of one query."""


def ranked(queries: Tensor, gallery: Tensor, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the gallery as some of the queries see it, most similar first: cosines (b, N), and classes (b, N).

    queries: (B, D), a block of them at a time, so that memory is bounded. gallery: (N, D) of length 1. places: (N,)
    its classes. Of equal cosines the first in the gallery is first.
    """
    unit, size = functional.normalize(queries, dim=1), max(1, _AT_ONCE // len(gallery))
    for start in range(0, len(unit), size):
        block = unit[start : start + size]
        similarity, order = (block @ gallery.T).sort(dim=1, descending=True, stable=True)
        yield similarity, places[order]


def votes(similarity: Tensor, places: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """Return the class (b,) with the most votes of the k nearest, each of weight exp(cosine / temperature): DINO's
    protocol (Caron et al. 2021). similarity, places: (b, N), most similar first.
    """
    weights = ((similarity[:, :k] - 1) / temperature).exp()
    return weights.new_zeros(len(weights), classes).scatter_add_(1, places[:, :k], weights).argmax(dim=1)


def average_precision(similarity: Tensor, relevant: Tensor) -> Tensor:
    """Return the average precision (b,) of rankings in which some entries are relevant: the mean, over these, of the
    share of relevant ones among all that are at least as similar; nan where none is.

    similarity: (b, N), most similar first. relevant: (b, N) bool.
    """
    count = similarity.shape[1]
    ranks = torch.arange(count, device=similarity.device)
    last = torch.ones_like(relevant)  # of entries that are equally similar
    last[:, :-1] = similarity[:, 1:] != similarity[:, :-1]
    ends = torch.where(last, ranks, count).flip(1).cummin(dim=1).values.flip(1)
    precision = relevant.cumsum(dim=1).gather(1, ends).to(similarity) / (ends + 1)
    return (precision * relevant).sum(dim=1) / relevant.sum(dim=1)


def answers(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor,
    places: Tensor,
    neighbours: Sequence[int],
    temperature: float,
    classes: int,
) -> tuple[dict[int, Tensor], Tensor]:
    """Return by k the classes (B,) that the k nearest of a gallery vote for, and the average precision (B,) with which
    the gallery's images of a query's class, `labels` (B,), are retrieved; otherwise as `ranked`.
    """
    voted: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    precisions, start = [], 0
    for similarity, near in ranked(queries, gallery, places):
        for k, found in voted.items():
            found.append(votes(similarity, near, k, temperature, classes))
        own = labels[start : start + len(near), None]
        precisions.append(average_precision(similarity, near == own))
        start += len(near)
    return {k: torch.cat(found) for k, found in voted.items()}, torch.cat(precisions)
