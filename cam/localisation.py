"""Whether a map lies on the object: scores against a mask or boxes; how few pixels it marks; how similar two maps are.

Maps are (B, H, W), or one (H, W), floating in [0, 1]. The truth is a bool mask of the same shape, or the boxes of each
image (for one map: its boxes), whose union counts. An image whose truth is empty, such as one whose boxes were cropped
away, has nothing to localise: its scores are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .boxes import Boxes, box_iou, boxes_of, mask_of, rectangles_of

Truth = Tensor | Sequence[Boxes]

MODES = ("mask", "box")
BINS = 1000
THRESHOLDS = tuple(step / 100 for step in range(100))
IOUS = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Localisation:
    """Scores of B images, each (B,) float64 in [0, 1]; all NaN where the truth is empty.

    pixel_accuracy: share of the pixels on which prediction and truth agree.
    iou, dice: of the foreground. What papers on AG-CAM call mIoU is the mean of `iou` over images.
    precision: share of the predicted pixels inside the truth; 0 where nothing is predicted.
    recall: share of the truth that is predicted.
    """

    pixel_accuracy: Tensor
    iou: Tensor
    dice: Tensor
    precision: Tensor
    recall: Tensor


def as_maps(maps: Tensor) -> Tensor:
    """Return `maps` as (B, H, W); TypeError or ValueError unless floating, in [0, 1], and (H, W) or (B, H, W)."""
    if not isinstance(maps, Tensor) or not maps.is_floating_point():
        what = maps.dtype if isinstance(maps, Tensor) else type(maps).__name__
        raise TypeError(f"maps are {what}; expected a floating torch tensor (B, H, W) in [0, 1]")
    if maps.ndim not in (2, 3) or 0 in maps.shape[-2:]:
        raise ValueError(f"maps have the shape {tuple(maps.shape)}; expected (B, H, W) or (H, W)")
    if maps.numel():
        low, high = maps.aminmax()
        if not (low >= 0 and high <= 1):  # also where there is a NaN
            raise ValueError(
                f"maps lie in [{float(low):.4g}, {float(high):.4g}]; expected [0, 1], min-max normalise them"
            )
    return maps if maps.ndim == 3 else maps[None]


def as_masks(truth: Truth, maps: Tensor) -> Tensor:
    """Return `truth` as a bool mask (B, H, W) for `maps` (B, H, W), on their device."""
    if isinstance(truth, Tensor) and truth.dtype == torch.bool:
        masks = truth if truth.ndim == 3 else truth[None]
    elif isinstance(truth, Tensor):
        raise TypeError(
            f"truth is a tensor of {truth.dtype}; expected a bool mask, or a list with the boxes of each map"
        )
    else:
        drawn = [mask_of(boxes, *maps.shape[1:]) for boxes in truth]
        masks = torch.stack(drawn) if drawn else maps[:0].bool()
    if masks.shape != maps.shape:
        raise ValueError(f"truth has the shape {tuple(masks.shape)}, the maps {tuple(maps.shape)}; expected the same")
    return masks.to(maps.device)


def score(maps: Tensor, truth: Truth, threshold: float = 0.5, mode: str = "mask") -> Localisation:
    """Score maps as published for AG-CAM (Leem and Seo, AAAI 2024), image by image; one map is a batch of one.

    threshold: pixels of at least this value are foreground.
    mode: `mask` compares the foreground with the truth; `box` the union of the boxes around its outer contours.

    Read them next to those of controls: at a fixed threshold, a map of all ones has an IoU above many methods.
    """
    maps = as_maps(maps)
    truth = as_masks(truth, maps)
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected {' or '.join(MODES)}")
    predicted = maps.double() >= threshold
    if mode == "box":
        unions = [mask_of(boxes_of(mask), *mask.shape) for mask in predicted]
        predicted = torch.stack(unions).to(maps.device) if unions else predicted
    hits, chosen, sizes = (x.sum(dim=(1, 2)).double() for x in (predicted & truth, predicted, truth))
    agreed = (predicted == truth).double().mean(dim=(1, 2))
    iou, dice = hits / (chosen + sizes - hits), 2 * hits / (chosen + sizes)
    scores = (agreed, iou, dice, hits / chosen.clamp(min=1), hits / sizes)
    return Localisation(*(_where_asked(values, truth) for values in scores))


def pointing_game(maps: Tensor, truth: Truth) -> Tensor:
    """Whether the maximum lies on the truth (Zhang et al. 2018, arXiv:1608.00507, without their margin): (B,) float64.

    Of several equal maxima the first counts, row by row; a constant map, which points nowhere, scores the truth's share
    of the image.
    """
    maps = as_maps(maps)
    truth = as_masks(truth, maps)
    if not len(maps):
        return torch.zeros(0, dtype=torch.float64)
    flat, inside = maps.flatten(1), truth.flatten(1).double()
    first = inside.gather(1, flat.argmax(dim=1, keepdim=True))[:, 0]
    return _where_asked(first.where(flat.amax(dim=1) > flat.amin(dim=1), inside.mean(dim=1)), truth)


def energy_inside(maps: Tensor, truth: Truth) -> Tensor:
    """Return the share of the sum inside the truth (Wang et al. 2020, arXiv:1910.01279): (B,) float64, 0 for no sum."""
    maps = as_maps(maps)
    truth = as_masks(truth, maps)
    inside, whole = (maps.double() * truth).sum(dim=(1, 2)), maps.double().sum(dim=(1, 2))
    return _where_asked(inside / whole.where(whole > 0, 1.0), truth)


FREE_OF_THRESHOLDS = {"pointing_game": pointing_game, "energy_inside": energy_inside}
"""By name, the scores of maps (B, H, W) against the truth that need no threshold: (B,)."""


def _where_asked(values: Tensor, truth: Tensor) -> Tensor:
    return values.where(truth.any(dim=2).any(dim=1), torch.nan)


# --- without a threshold: Choe et al., CVPR 2020 (arXiv:2001.07437) --------------------------------------------------


def pixel_counts(maps: Tensor, truth: Truth, bins: int = BINS) -> Tensor:
    """Return how many pixels of each image reach each level: (B, 2, bins + 1) int64, first outside the truth, then
    inside.

    Level k holds the values from k / bins up to, not including, (k + 1) / bins; the last one holds 1. Counts of images
    add up, so PxAP of any selection or resample of images is `pxap(counts.sum(dim=0))`, without the maps.
    """
    maps = as_maps(maps)
    truth = as_masks(truth, maps)
    edges = torch.arange(1, bins + 1, dtype=torch.float64, device=maps.device) / bins
    levels = torch.bucketize(maps.double(), edges, right=True)
    rows = torch.arange(len(maps), device=maps.device)[:, None, None] * 2 + truth
    counts = torch.bincount((rows * (bins + 1) + levels).flatten(), minlength=len(maps) * 2 * (bins + 1))
    return counts.view(-1, 2, bins + 1)


def pxap(counts: Tensor) -> Tensor:
    """Compute PxAP: area under the precision-recall curve of all pixels, thresholds k / bins; float64, in [0, 1].

    counts: sums of `pixel_counts`, (..., 2, bins + 1); the result has the leading shape. The area is the sum of
    precision times the gain in recall, from the highest threshold down. NaN where no pixel belongs to the truth.
    """
    reached = counts.double().flip(-1).cumsum(dim=-1)
    wrong, right = reached[..., 0, :], reached[..., 1, :]
    gained = right.diff(dim=-1, prepend=torch.zeros_like(right[..., :1]))
    return (right / (right + wrong).clamp(min=1) * gained).sum(dim=-1) / right[..., -1]


def box_hits(
    maps: Tensor, boxes: Sequence[Boxes], thresholds: Sequence[float] = THRESHOLDS, ious: Sequence[float] = IOUS
) -> Tensor:
    """Return which thresholds give which images a box that fits: (B, thresholds, ious) bool, on the CPU.

    boxes: the true boxes of each image (for one map: of it); an image without boxes is never hit, and is best left out.
    A hit: some box around a connected part of the pixels of at least the threshold, and some true box, have an IoU of
    at least the one asked for. Parts touch at corners too; one in a hole of another counts, a hole does not.
    """
    maps = as_maps(maps).cpu().double()
    if len(boxes) != len(maps):
        raise ValueError(
            f"boxes of {len(boxes)} images for {len(maps)} maps; expected a list with the boxes of each map"
        )
    least = torch.tensor(ious, dtype=torch.float64)
    hits = torch.zeros(len(maps), len(thresholds), len(ious), dtype=torch.bool)
    for row, (heat, truth) in enumerate(zip(maps, boxes, strict=True)):
        if len(truth):
            hits[row] = _best_ious(heat.numpy(), truth, thresholds)[:, None] >= least
    return hits


def _best_ious(heat: NDArray[np.float64], truth: Boxes, thresholds: Sequence[float]) -> Tensor:
    """Return the best IoU of a box at each threshold with a true one: (thresholds,) float64; 0 without a box."""
    masks = heat >= np.asarray(thresholds)[:, None, None]
    # Each mask contains those of higher thresholds: two with as many pixels are the same.
    _, firsts, places = np.unique(masks.sum(axis=(1, 2)), return_index=True, return_inverse=True)
    rectangles = [rectangles_of(mask, nested=True) for mask in masks[firsts].view(np.uint8)]
    rows = torch.arange(len(rectangles)).repeat_interleave(torch.tensor([len(some) for some in rectangles]))
    boxes = torch.tensor([box for some in rectangles for box in some], dtype=torch.int64).view(-1, 4)
    fits = box_iou(boxes, truth).amax(dim=1)
    best = torch.zeros(len(rectangles), dtype=torch.float64).scatter_reduce_(0, rows, fits, "amax")
    return best[torch.from_numpy(places)]


def max_box_acc(hits: Tensor) -> Tensor:
    """Compute MaxBoxAccV2 of `box_hits` (N, thresholds, ious): the best threshold's share of hits, averaged over the
    IoUs.

    The threshold is chosen for all images together and for each IoU by itself (Choe et al. 2020, arXiv:2007.04178).
    NaN without images.
    """
    return hits.double().mean(dim=0).amax(dim=0).mean() if len(hits) else torch.tensor(torch.nan, dtype=torch.float64)


def entropy(maps: Tensor) -> Tensor:
    """Return the entropy of each map (B, H, W) in [0, 1], its values being shares of their sum: (B,) float64 in nats.
    From 0, one pixel, to log(H * W), all alike (complexity of Bhatt et al., IJCAI 2020). NaN where a map is all 0.
    """
    values = as_maps(maps).double().flatten(1)
    return torch.special.entr(values / values.sum(dim=1, keepdim=True)).sum(dim=1)  # type: ignore[no-any-return]


def histogram_entropy(maps: Tensor, bins: int = 100) -> Tensor:
    """Return the entropy of the histogram of each map's values, of equal bins from its lowest to its highest: (B,)
    float64 in nats. It asks how many different values there are, not where; NaN where a map is constant.
    """
    values = as_maps(maps).double().flatten(1)
    low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    places = ((values - low) / (high - low) * bins).nan_to_num().long().clamp(max=bins - 1)
    counts = values.new_zeros(len(values), bins).scatter_add_(1, places, torch.ones_like(values))
    return torch.where((high > low)[:, 0], torch.special.entr(counts / values.shape[1]).sum(dim=1), torch.nan)


def gini(maps: Tensor) -> Tensor:
    """Return the Gini index of each map (B, H, W) in [0, 1]: (B,) float64.

    0 where all pixels are alike, 1 - 1 / (H * W) where one has all (sparseness of Chalasani et al., ICML 2020). NaN
    where a map is all 0.
    """
    values = as_maps(maps).double().flatten(1).sort(dim=1).values
    n = values.shape[1]
    places = torch.arange(1, n + 1, device=values.device, dtype=torch.float64)
    return ((2 * places - n - 1) * values).sum(dim=1).div(n * values.sum(dim=1))


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's rank correlation over the pixels of each pair of maps: (B,) float64 in [-1, 1].

    a, b: (B, H, W), or one (H, W), floating in [0, 1]. Equal values share the mean of their ranks. NaN where either
    map is constant: its ranks say nothing.
    """
    ranks_a, ranks_b = (_centred_ranks(maps.flatten(1)) for maps in _pair(a, b))
    spread = ((ranks_a**2).sum(dim=1) * (ranks_b**2).sum(dim=1)).sqrt()
    return (ranks_a * ranks_b).sum(dim=1) / spread


def iou_at(a: Tensor, b: Tensor, threshold: float = 0.5) -> Tensor:
    """Return the IoU of the pixels of at least `threshold` in each pair of maps: (B,) float64; NaN where neither has
    one.

    a, b: as for `rank_correlation`.
    """
    above_a, above_b = (maps.double() >= threshold for maps in _pair(a, b))
    return (above_a & above_b).sum(dim=(1, 2)).double() / (above_a | above_b).sum(dim=(1, 2))


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = as_maps(a), as_maps(b)
    if a.shape != b.shape:
        raise ValueError(f"maps of {tuple(a.shape)} and {tuple(b.shape)}; expected the same shape")
    return a, b


def _centred_ranks(values: Tensor) -> Tensor:
    """Return the ranks of (B, N) along each row less their mean, float64: equals share the mean of their places."""
    values = values.contiguous()
    ordered = values.sort(dim=1).values
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to - values.shape[1]).double() / 2
