"""Images as graphs of superpixels, as in CIFAR-10 of Dwivedi et al. (2020): a classifier that `robustkit audit` takes.

An image becomes at most 150 superpixels (SLIC). A node has the mean colour and the centre of its superpixel, and edges
from its 8 nearest nodes by centre. Which pixel belongs to which superpixel is held fixed when gradients are taken, so
an attack sees what its pixels do to the colours and not what they do to the borders.
"""

from __future__ import annotations

import numpy as np
import torch
from network import GraphTransformer
from skimage.segmentation import slic
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

SUPERPIXELS, COMPACTNESS, NEIGHBOURS = 150, 10.0, 8


def segments(pixels: Tensor) -> Tensor:
    """Return the superpixel of each pixel, (H, W) int64 from 0, of an image (3, H, W) in [0, 1] rounded to 8 bits."""
    image = pixels.detach().mul(255).round().byte().permute(1, 2, 0).numpy()
    found = slic(image, n_segments=SUPERPIXELS, compactness=COMPACTNESS, start_label=0)
    return torch.from_numpy(np.unique(found, return_inverse=True)[1].reshape(found.shape))


def graph(pixels: Tensor) -> Data:
    """Return the graph of an image (3, H, W) in [0, 1]. x: colour and centre, (nodes, 5), both in [0, 1]."""
    places = segments(pixels).flatten()
    height, width = pixels.shape[1:]
    rows, columns = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    each = torch.cat((pixels, torch.stack((columns, rows)))).flatten(1).T  # (pixels, 5)
    count = torch.bincount(places)
    x = torch.zeros(len(count), 5).index_add(0, places, each) / count[:, None]
    return Data(x=x, edge_index=nearest(x[:, 3:].detach()))


def nearest(centres: Tensor) -> Tensor:
    """Return the edges, (2, E), to each node from its nearest ones by centre, (nodes, 2); ties by their order."""
    nodes = len(centres)
    apart = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    near = apart.argsort(dim=1, stable=True)[:, : min(NEIGHBOURS, nodes - 1)]
    return torch.stack((near.flatten(), torch.arange(nodes).repeat_interleave(near.shape[1])))


class SuperpixelClassifier(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] to logits (B, K), through a graph of each image."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.graphs = GraphTransformer(5, num_classes, width=32, blocks=2, heads=4, messages="mean", pooled=True)

    def forward(self, pixels: Tensor) -> Tensor:
        made = [graph(image) for image in pixels.cpu()]
        return self.graphs(Batch.from_data_list(made).to(pixels.device))  # type: ignore[no-any-return]


def build(num_classes: int = 10) -> SuperpixelClassifier:
    """Return the network with random weights: `--arch superpixels.py:build`."""
    return SuperpixelClassifier(num_classes)
