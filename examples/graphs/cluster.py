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


def as_graph(tensor: Tensor) -> Data:
    """Return the graph of a tensor. x: what each node says, one-hot, (n, 7)."""
    n = int((tensor[:, 0] != ABSENT).sum())
    said = nn.functional.one_hot(tensor[:n, 0].long(), COMMUNITIES + 1).float()
    return Data(x=said, edge_index=tensor[:n, 1 : 1 + n].nonzero().T)


class CommunityFinder(nn.Module):
    """Graphs (B, NODES, NODES + 1) to the logits of each node's communities, (B, NODES, 6); 0 beyond its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs = GraphTransformer(
            COMMUNITIES + 1, COMMUNITIES, width=32, blocks=3, heads=4, messages="sum", pooled=False
        )

    def forward(self, tensors: Tensor) -> Tensor:
        present = tensors[:, :, 0] != ABSENT
        logits = torch.zeros(*present.shape, COMMUNITIES, device=tensors.device)
        logits[present] = self.graphs(Batch.from_data_list([as_graph(each) for each in tensors]))
        return logits
