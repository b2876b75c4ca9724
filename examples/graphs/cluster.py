"""CLUSTER by its definition (Dwivedi et al. 2020): which of six communities is each node of a random graph in?

A graph of the stochastic block model: six communities of 5 to 34 nodes each, edges with probability 0.55 inside a
community and 0.25 between two. One node of each community says which one it is; all others say nothing.

A graph is a tensor (NODES, NODES + 1) uint8: what each node says (0 nothing, 1 to 6 its community, ABSENT for places
beyond the graph's nodes), then its row of the adjacency matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from network import GraphTransformer
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

COMMUNITIES, SMALLEST, LARGEST, INSIDE, BETWEEN = 6, 5, 34, 0.55, 0.25
NODES, ABSENT = COMMUNITIES * LARGEST, 255
EIGENVECTORS = 8
"""Of each node's position: the entries of the graph's leading eigenvectors."""


def generate(seed: int, place: int) -> tuple[Tensor, Tensor]:
    """Return graph number `place` of a seed, and the community of each node, (NODES,) int64, -1 beyond its nodes."""
    rng = np.random.default_rng([seed, place])
    sizes = rng.integers(SMALLEST, LARGEST, size=COMMUNITIES, endpoint=True)
    community = rng.permutation(np.repeat(np.arange(COMMUNITIES), sizes))
    likely = np.where(community[:, None] == community, INSIDE, BETWEEN)
    upper = np.triu(rng.random(likely.shape) < likely, 1)
    graph = torch.zeros(NODES, NODES + 1, dtype=torch.uint8)
    graph[len(community) :, 0] = ABSENT
    for each in range(COMMUNITIES):
        graph[rng.choice(np.flatnonzero(community == each)), 0] = each + 1
    graph[: len(community), 1 : 1 + len(community)] = torch.from_numpy(upper | upper.T)
    truth = torch.full((NODES,), -1)
    truth[: len(community)] = torch.from_numpy(community)
    return graph, truth


def positions(adjacency: Tensor) -> Tensor:
    """Return each node's entries in the eigenvectors of the EIGENVECTORS largest eigenvalues of D^-½ A D^-½, (n,
    EIGENVECTORS), times sqrt(n); the first, which says only how many edges a node has, is among them.

    A vector's sign means nothing: the entry of largest size is made positive.
    """
    degrees = adjacency.sum(dim=1).clamp(min=1)
    _, vectors = torch.linalg.eigh(adjacency / (degrees[:, None] * degrees).sqrt())
    vectors = vectors[:, -EIGENVECTORS:].flip(1)
    signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    return (vectors * signs * len(adjacency) ** 0.5).float()


def as_graph(tensor: Tensor) -> Data:
    """Return the graph of a tensor. x: what each node says, one-hot, and its position, (n, 7 + EIGENVECTORS)."""
    n = int((tensor[:, 0] != ABSENT).sum())
    said = nn.functional.one_hot(tensor[:n, 0].long(), COMMUNITIES + 1).float()
    adjacency = tensor[:n, 1 : 1 + n].cpu()
    at = positions(adjacency.double()).to(tensor.device)
    return Data(x=torch.cat((said, at), dim=1), edge_index=adjacency.nonzero().T.to(tensor.device))


class CommunityFinder(nn.Module):
    """Graphs (B, NODES, NODES + 1) to the logits of each node's communities, (B, NODES, 6); 0 beyond its nodes."""

    def __init__(self) -> None:
        super().__init__()
        features = COMMUNITIES + 1 + EIGENVECTORS
        self.graphs = GraphTransformer(features, COMMUNITIES, width=32, blocks=4, heads=4, pooled=False)

    def forward(self, tensors: Tensor) -> Tensor:
        present = tensors[:, :, 0] != ABSENT
        logits = torch.zeros(*present.shape, COMMUNITIES, device=tensors.device)
        logits[present] = self.graphs(Batch.from_data_list([as_graph(each) for each in tensors]))
        return logits
