"""Whether attention hides gradients: what stands under PGD, and falls once gradients are led another way through it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attacks import PGD, Rng
from attacks.model_access import Model

from .gradient_masking import AROUND, HIDES, chance_of
from .probes import Asker, Columns

_STEPS, _SHARE = 10, 0.25  # updates of each run, and their length over eps
_RESTARTS = 5


def hidden_by_attention(
    asker: Asker, surrogates: Mapping[str, Model], images: Tensor, labels: Tensor, rng: Rng
) -> Columns:
    """Return for right samples (B, ...) whether each of `AROUND` holds, (B,).

    A sample stands under plain PGD; under PGD by the gradients of each surrogate, too, from the same start; falls to
    these and not to as many more restarts of plain PGD; or the other way round. Restarts are made only where surrogates
    break so many that it could be more than chance.
    """
    whole = torch.ones(len(labels), dtype=torch.bool, device=labels.device)

    def after(model: Model, standing: Tensor, restarts: int = 1) -> Tensor:
        """Return which of the samples that are `standing` still do, by the model's own answers."""
        rows, left = standing.nonzero().flatten(), standing.clone()
        for part in torch.split(rows, asker.batch_size) if len(rows) else ():
            attack = PGD(asker.threat, _STEPS, _SHARE * asker.threat.eps, restarts=restarts, early_stop=True, loss="ce")
            result = attack.run(model, images[part], labels[part], rng=rng.take(part))
            asker.backwards += int(result.backwards.sum())
            left[part] = asker.logits(result.adversarials).argmax(dim=1) == labels[part]
        return left

    plain = around = after(asker.logits, whole)
    for surrogate in surrogates.values():
        around = after(asker.counted(surrogate), around)
    none = torch.zeros_like(whole)
    figures = [plain, around, none, none]
    if chance_of(int((plain & ~around).sum()), 0) < HIDES:
        again = after(asker.logits, plain, _RESTARTS)
        figures[2:] = again & ~around, around & ~again
    return dict(zip(AROUND, figures, strict=True))
