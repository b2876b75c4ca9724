"""The ranking of attention formulas on tensors of inputs, for any model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustkit.attention.fingerprint import Formulas
from robustkit.common.preprocessing import Preprocessing
from robustkit.models.setup_check import Bench, Setup
from robustkit.slices.inspect.search import Fingerprint, losses_of, rank_formulas


def ranked(model: nn.Module, inputs: Tensor, labels: Tensor, source: str = "declared") -> Fingerprint:
    """Rank the formulas on inputs (n, 3, H, W), as the network takes them, and labels (n,), in this order."""
    formulas, classes = Formulas(model), 1
    if len(inputs):
        with torch.no_grad():
            classes = model(inputs[:1]).shape[1]
    setup = Setup(Preprocessing((1, 1), (0.0,) * 3, (1.0,) * 3), attention=formulas.current)

    def read(place: int, preprocessing: Preprocessing) -> Tensor:
        return inputs[place].float()

    def score(logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        return losses_of(logits, labels[list(places)])

    device = torch.device("cpu")
    bench = Bench(model, read, len(inputs), score, 20, device, formulas=formulas, numbered=False)
    return rank_formulas(bench, setup, math.log(classes), source)
