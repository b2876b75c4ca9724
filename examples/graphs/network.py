"""A graph transformer of torch_geometric's GPSConv, whose attention takes any of robustkit's formulas."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool


class GraphTransformer(nn.Module):
    """GPS (Rampášek 2022): each block adds messages from neighbours and attention between all nodes of a graph.

    features: of a node. messages: how a node's are joined, by `mean` or `sum`. pooled: one answer for a graph, from the
    mean of its nodes, or else one for each node.
    `robustkit.attention.set_attention` gives it another formula: GPSConv holds torch's MultiheadAttention.
    """

    def __init__(
        self, features: int, classes: int, *, width: int, blocks: int, heads: int, messages: str, pooled: bool
    ) -> None:
        super().__init__()
        self.pooled = pooled
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList(GPSConv(width, _messages(width, messages), heads=heads) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, graphs: Batch) -> Tensor:
        """Return logits, (graphs, classes) where they are pooled, else (nodes, classes)."""
        x = self.embed(graphs.x)
        for block in self.blocks:
            x = block(x, graphs.edge_index, graphs.batch)
        return self.head(global_mean_pool(x, graphs.batch) if self.pooled else x)  # type: ignore[no-any-return]


def _messages(width: int, joined: str) -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)), aggr=joined)
