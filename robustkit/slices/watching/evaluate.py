"""Watch a classifier's attention head by head; a layer's maps are dropped before the next layer runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from ...attention.apply import attention_kind, attention_layers, capturable_layers, capture
from ...common.determinism import SampleRng
from ...data.images import unit_pixels
from ...display.table import Table
from ...errors import ModelError
from ...evaluations.condition import Cost
from ...evaluations.family import Evaluator, inputs_under
from ...evaluations.layers import Layer, encode_layers
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...models.identity import Classifier
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import COLUMN_NAMES, LISTS, VOCABULARY
from .results import HeadSums, layer_table

Columns = dict[str, list[Any]]
Looked = tuple[Tensor, Columns, tuple[Layer, ...]]  # logits of samples, their columns, the layers watched
ATTENTION: dict[str, pa.DataType] = {
    **dict.fromkeys(COLUMN_NAMES, pa.float32()),
    **dict.fromkeys(LISTS, pa.list_(pa.float32())),
}
"""Of all heads together, and of each head of each layer, one layer after the other. What is not finite stays."""


@dataclass(frozen=True)
class Seen:
    """layers: in the order in which they ran. values: by name of `LISTS`, (B, T) on the CPU, for the T heads of all."""

    layers: tuple[Layer, ...]
    values: dict[str, Tensor]

    def columns(self) -> dict[str, list[Any]]:
        """Return lists over all heads, and a figure per sample over all heads together."""
        seen = self.values
        keys = torch.tensor([layer.keys for layer in self.layers for _ in range(layer.heads)], dtype=torch.float32)
        shares = seen["attention_entropies"] / keys.log()
        shares = torch.where(keys > 1, shares, 1.0)  # over one key there is only one way to attend
        means = [*(seen[name] for name in LISTS[1:4]), shares, *(seen[name] for name in LISTS[4:])]
        figures = [seen["largest_logits"].amax(dim=1), *(values.mean(dim=1) for values in means)]
        whole = {name: values.tolist() for name, values in zip(COLUMN_NAMES, figures, strict=True)}
        return whole | {name: seen[name].tolist() for name in LISTS}


def check_watchable(network: nn.Module, name: str, option: str) -> None:
    """Raise ModelError where there is no attention to watch. option: the one that asked for it."""
    try:
        capturable_layers(network)
    except ModelError:
        reasons = {"none": "it has no attention", "other": "its attention is of an unsupported kind"}
        why = reasons.get(attention_kind(network), "it attends within windows")
        raise ModelError(
            f"{name}: {option} has nothing to record: {why}; expected a model whose attention formula is known "
            "(ViT, DeiT, BEiT, CrossViT of timm, "
            f"torch.nn.MultiheadAttention, ViTs of transformers); leave {option} out, or audit it separately"
        ) from None


@torch.inference_mode()
def watch(network: nn.Module, images: Tensor, forward: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Seen]:
    """Return the output (B, K), in the network's dtype, and what its attention did. forward: called in the network's
    place. Raises ModelError where the attention is of another kind, or no layer of it ran."""
    watched: list[tuple[Layer, dict[str, Tensor]]] = []
    with ExitStack() as held:
        captured = held.enter_context(capture(network))

        def after(name: str) -> Callable[..., None]:
            def reduce(*_: Any) -> None:
                parts = captured.scores, captured.attention, captured.query_norms, captured.key_norms
                for scores, attention, queries, keys in zip(*parts, strict=True):
                    watched.append(_measured(name, scores, attention, queries, keys))
                captured.clear()

            return reduce

        for name, layer in attention_layers(network):
            held.callback(layer.register_forward_hook(after(name)).remove)
        output = (forward or network)(images)
    if not watched:
        raise ModelError(f"{type(network).__name__}: none of its attention layers ran; expected one at least")
    layers = tuple(layer for layer, _ in watched)
    return output, Seen(layers, {name: _joined([part[name] for _, part in watched], len(images)) for name in LISTS})


def watch_layers(model: Classifier, batches: Iterable[Tensor]) -> Table:
    """Return a row for each layer: what its heads do on batches of pixels (B, 3, H, W), one batch at least."""
    sums = HeadSums(Path(model.identity.name))
    for pixels in batches:
        _, seen = watch(model.network, unit_pixels(pixels.to(model.mean.device)), model)
        sums.add(seen.layers, {name: values.double().numpy() for name, values in seen.values.items()})
    heads = sums.heads()
    assert heads is not None  # without an image there is no ranking either
    return layer_table(heads, f"attention on {heads.n} images, layer by layer")


def _measured(
    name: str, scores: Tensor, attention: Tensor, queries: Tensor, keys: Tensor
) -> tuple[Layer, dict[str, Tensor]]:
    """Return each figure, (B, H), of scores and attention (B, H, N, M), and norms (B, H, N) and (B, H, M)."""
    attention = attention.float()
    return Layer(name, attention.shape[1], attention.shape[3]), {
        "largest_logits": scores.float().abs().amax(dim=(2, 3)),
        "query_norms": queries.float().mean(dim=2),
        "key_norms": keys.float().mean(dim=2),
        "attention_entropies": torch.special.entr(attention).sum(dim=3).mean(dim=2),
        "strongest_keys": attention.amax(dim=3).mean(dim=2),
        "softmax_slopes": softmax_slope(attention).mean(dim=2),
    }


def _joined(parts: Sequence[Tensor], samples: int) -> Tensor:
    if (sizes := {len(part) for part in parts}) != {samples}:
        raise ModelError(f"attention of {max(sizes)} parts in a batch of {samples} samples; expected one for each")
    return torch.cat(list(parts), dim=1).cpu()


class UnderEvaluator(Evaluator):
    """A family that watches heads on the images that another condition shows."""

    def watched(self, subject: EvaluatedModel, batch: Batch, size: int, watch: Callable[[slice], Looked]) -> Evaluation:
        """Return the columns of a batch. watch: returns logits, columns and layers of at most `size` samples."""
        columns, layers = Columns(), tuple[Layer, ...]()
        for place, part in batch.parts(size):  # an attack may have had the whole shard
            logits, figures, layers = watch(place)
            for name, values in (subject.score(logits, part) | subject.distance(None, len(part)) | figures).items():
                columns.setdefault(name, []).extend(values)
        return Evaluation(columns, metadata={b"attention": encode_layers(layers)} if layers else {})


class AttentionEvaluator(UnderEvaluator):
    """What each head of each layer does on the images that another condition shows."""

    words, columns = VOCABULARY, ATTENTION

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        return Cost(1, extra=0.6)  # the images are those of the condition before

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        assert condition.under is not None
        inputs = inputs_under(subject, batch, condition.under)

        def of_part(place: slice) -> Looked:
            logits, seen = watch(subject.classifier.network, inputs[place], subject.exact)
            return logits, seen.columns(), seen.layers

        return self.watched(subject, batch, subject.settings.batch_size, of_part)


_ROUNDS = 5  # of Newton's method, which climbs to the root and never passes it


def softmax_slope(attention: Tensor) -> Tensor:
    """Return the spectral norm (...) of softmax's Jacobian, diag(p) - p pᵀ, at each row p (..., N), float32 or wider.

    From 0, where one key has all, to 1/2, where two share it; nan for rows that are not finite. It is the largest root
    of 1 = Σ p_i² / (p_i - λ) (Golub 1973), between the two largest p. Newton's method begins at the better of two
    Rayleigh quotients, of the largest key alone and against the second.
    """
    p = attention.float() if attention.dtype in (torch.float16, torch.bfloat16) else attention
    if p.shape[-1] == 1:
        return torch.where(p[..., 0].isfinite(), 0.0, torch.nan).to(p)
    top = p.topk(2, dim=-1)
    first, second = top.values.unbind(dim=-1)
    rest = p.scatter(-1, top.indices[..., :1], 0.0)
    least = torch.maximum(first * (1 - first), (first + second - (first - second) ** 2) / 2)
    # Two alike leave no room between them: the root is that value.
    alike = first - second <= 1e-6 * first
    root = torch.where(alike, first, torch.maximum(least, second * (1 + 1e-6)))  # rounded rows may sum to more than 1
    for _ in range(_ROUNDS):
        gap = (root[..., None] - rest).clamp_(min=torch.finfo(p.dtype).tiny)
        shares = rest / gap
        pull = 1 + (shares * rest).sum(dim=-1)
        slope = -pull - (first - root) * (shares * shares).sum(dim=-1)
        step = ((first - root) * pull - first * first) / slope
        root = torch.where(alike, first, (root - step.nan_to_num(nan=0.0)).clamp(max=first))
    return torch.where(p.isfinite().all(dim=-1), torch.maximum(root, torch.zeros_like(root)), torch.nan)
