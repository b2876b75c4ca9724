"""Perturbation maps: the image is shown through masks, and no gradient is taken."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .explainer import Explainer, Fill, Rng, TorchRng, at_least, chosen, colour, parts, rows_of
from .gradcam import OfFeatures


class RISE(Explainer):
    """RISE (Petsiuk et al., BMVC 2018): the mean of random masks, weighed by the class's probability behind each.

    A mask is a grid of cells that are 1 with the probability `share`, else 0, enlarged bilinearly to a cell more than
    the image and cut at a random place. It is drawn by `rng` for each image, so a function of the sample.

    masks: how many; published are 4000 and 8000. cells: of a side of the grid. share: of cells that show the image.
    fill: what hidden places become, a number or one for each channel, in the unit of the images; published is the mean
    that the model normalises with. batch_size: rows of a pass, where the images themselves are not more; by
    default 16 on a CPU, else 64.

    Any model of two classes or more, else ValueError; `masks` forwards for each image, and one for logits; further
    targets cost nothing. No backward.
    """

    name = "rise"
    draws_numbers = True

    def __init__(
        self,
        model: nn.Module,
        masks: int = 1000,
        cells: int = 7,
        share: float = 0.5,
        fill: Fill = 0.0,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(model)
        at_least(1, masks=masks, batch_size=batch_size)
        at_least(2, cells=cells)
        if not 0 < share < 1:
            raise ValueError(f"share is {share}; expected the share of cells that show the image, between 0 and 1")
        self.masks, self.cells, self.share = masks, cells, share
        self.fill, self.batch_size = fill, batch_size

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes = self._answered(images, wanted)
        with torch.no_grad():
            draws = self.draws(images, rng)
            back, total = colour(self.fill, images), torch.zeros(0)
            for part in parts(self.masks, len(images), rows_of(self.batch_size, images)):
                masks = self.drawn(draws[:, part], (images.shape[2], images.shape[3]))
                shown = torch.lerp(back, images[:, None], masks[:, :, None].to(images.dtype))
                answers = self._logits(shown.flatten(0, 1)).float().softmax(dim=1).view(*masks.shape[:2], -1)
                if answers.shape[2] == 1:
                    raise ValueError("the model has one class, whose probability is always 1; expected two or more")
                weights = answers.gather(2, chosen(answers[:, 0], classes)[:, None].expand(-1, masks.shape[1], -1))
                term = torch.einsum("bmt,bmhw->bthw", weights, masks)
                total = term if part.start == 0 else total + term
        return logits, classes, total

    def draws(self, images: Tensor, rng: Rng | None = None) -> Tensor:
        """Return the random numbers of all masks of each image: (B, masks, cells * cells + 2) in [0, 1)."""
        rng = rng or TorchRng(len(images), images.device)
        return rng.uniform((self.masks, self.cells**2 + 2), "cam/rise").to(images.device).float()

    def drawn(self, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the masks (B, M, H, W) float32 in [0, 1] of some of the random numbers (B, M, cells * cells + 2)."""
        grids = (draws[..., :-2] < self.share).float().view(*draws.shape[:-1], self.cells, self.cells)
        rows, columns = (self._enlarging(draws[..., axis - 2], side) for axis, side in enumerate(size))
        return torch.einsum("bmyi,bmij,bmxj->bmyx", rows, grids, columns)

    def _enlarging(self, draws: Tensor, side: int) -> Tensor:
        """Return what enlarges a grid along an axis and cuts it at a random pixel: (..., side, cells)."""
        cell = -(-side // self.cells)  # pixels of a cell
        pixel = (draws * cell).floor()[..., None] + torch.arange(side, device=draws.device)
        place = (pixel + 0.5) * self.cells / ((self.cells + 1) * cell) - 0.5
        last = self.cells - 1
        place = last - (last - place.abs()).abs()  # mirrored at both ends
        return (1 - (place[..., None] - torch.arange(self.cells, device=draws.device)).abs()).relu()


class ScoreCAM(OfFeatures):
    """Score-CAM (Wang et al., CVPR workshops 2020): features weighed by the class's logit behind each as a mask.

    Each channel, enlarged to the image and brought to [0, 1], is a mask of the image; a softmax over channels of the
    class's logits gives the weights, and the map is relu(sum over channels of weight * feature). A channel that is the
    same everywhere hides the whole image; all such share one forward.

    fill: what hidden places become, a number or one for each channel, in the unit of the images. batch_size: rows of a
    pass; by default 16 on a CPU, else 64. model, layer and errors: `OfFeatures`.

    A forward, and one for each channel of each image; further targets cost nothing. No backward.
    """

    name = "score-cam"

    def __init__(
        self, model: nn.Module, layer: nn.Module | str | None = None, fill: Fill = 0.0, batch_size: int | None = None
    ) -> None:
        super().__init__(model, layer)
        at_least(1, batch_size=batch_size)
        self.fill, self.batch_size = fill, batch_size

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            logits, seen = self._seen(images, graph=False)
            features = self._spread(seen.leaf, seen.layer, len(images))
            classes = chosen(logits, wanted)
            tell = features.amax(dim=(2, 3)) > features.amin(dim=(2, 3))
            back = colour(self.fill, images)
            scores = features.new_zeros(*features.shape[:2], classes.shape[1])
            if not bool(tell.all()):
                plain = self._logits(back.expand_as(images[:1])).float()
                scores[:] = plain.expand(len(images), -1).gather(1, classes)[:, None]
            for rows in torch.split(tell.nonzero(), rows_of(self.batch_size, images)):
                image, channel = rows.unbind(1)
                masks = functional.interpolate(features[image, channel][:, None], images.shape[2:], mode="bilinear")
                low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
                masks = masks.sub_(low).div_(high - low).to(images.dtype)
                answers = self._logits(torch.lerp(back, images[image], masks)).float()
                scores[image, channel] = answers.gather(1, classes[image])
            maps = torch.einsum("bct,bchw->bthw", scores.softmax(dim=1), features).relu()
        return logits, classes, maps
