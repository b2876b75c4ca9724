"""What `docs/results/stabilisers.md` says next to its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..pages.writing import markdown
from .train import FAMILY, PRESET

STUCK = math.log(FAMILY.classes) / 2
"""Half of the loss of guessing, in nats."""
NAMES = (
    ("stabiliser", "what it does", "source"),
    (
        "`quack(tau=1,norm=frobenius)`",
        "the learning rates of a head's queries and keys follow the norm of the other",
        "QuacK, Algorithms 1 and 2",
    ),
    ("`fixed-rates(factor=0.1)`", "they are smaller by a fixed factor", "the ablation of the same paper"),
    (
        "`qk-clip(threshold=100)`",
        "after a step, queries and keys of heads with larger logits shrink",
        "Kimi K2 (MuonClip)",
    ),
    ("`sigma-reparam`", "weights of linear layers are γ times a matrix of spectral norm 1", "Zhai 2023"),
    ("`--attention 'softcap(cap=50)'`", "logits are bent to cap · tanh(logits / cap), at inference too", "Gemma 2"),
    ("`--attention quest`, `qknorm-ln`, …", "keys, or both, are normalised, at inference too", "QUEST; Dehghani 2023"),
)
PYTHON = """\
```python
import timm
import torch
from robustkit.quack import QuacK

model = timm.create_model("vit_tiny_patch16_224")
optimiser = QuacK(torch.optim.AdamW(model.parameters(), lr=3e-3), model, tau=0.5, norm="frobenius")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=1000)
```"""


def guide() -> Iterator[str]:
    """Yield what there is and how to use it, as paragraphs."""
    yield (
        "Attention logits can run away in training at high rates: large keys amplify every step of the queries, and "
        "the other way round, until attention is all but one-hot and no longer learns. Against it there are"
    )
    yield markdown(NAMES)
    yield (
        "`python -m scripts.zoo.train --attention standard --stabiliser 'quack(tau=0.5)' --preset shapes --work DIR` "
        "trains with one; a "
        "checkpoint says by which it was stabilised, and loads as any other. In Python, QuacK, fixed rates and QK clip "
        "are optimisers around an optimiser, with schedulers, `GradScaler`, `state_dict()` and `load_state_dict()`:"
    )
    yield PYTHON
    yield (
        "QuacK knows the attention of timm's ViTs (in fused qkv weights, the change of each head's rows is scaled "
        "after the optimiser's step) and of CrossViT, `nn.MultiheadAttention`, and "
        "`robustkit.attention.layers.LatentAttention`, to which Algorithm 2 applies. The scaled step is the step at "
        "the scaled rate where steps are multiples of the rate, as those of nearly all optimisers of torch are; "
        "`robustkit.attention.optim.projections` says for which they are not."
    )


def setting() -> str:
    """Return what was trained, and what the words of the tables mean."""
    tokens = (FAMILY.side // FAMILY.patch) ** 2 + 1
    return (
        f"A ViT of width {FAMILY.width}, depth {FAMILY.depth} and {FAMILY.heads} heads on {PRESET.train_images} "
        f"generated shapes of {FAMILY.side} pixels, {PRESET.epochs} epochs at batch {PRESET.batch}: AdamW at a "
        f"constant rate after a warm-up of {PRESET.warm_up:.0%} of the steps, no clipping of gradients, no label "
        "smoothing, mixup or drop path, bfloat16 autocast. Runs differ in rate, method and seed alone. A run is "
        f"*stuck* where the mean loss of its last epoch is above {STUCK:.2f}, half of what guessing gives, or is no "
        "number; one that is not may still have learned less than others. The largest logit is that of any layer, and "
        "the entropy that of the layer where it is lowest, over held-out images at the end; even attention has "
        f"{math.log(tokens):.2f} nats. Of several seeds: the median, and from the lowest to the highest."
    )
