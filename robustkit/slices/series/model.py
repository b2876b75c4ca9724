"""From a model's spec to a classifier of time series that knows what it is.

Table 7 and A.5.6: three layers of dimension 128 on one token for each time step, and a class token whose output alone
is classified. What the paper leaves to the Time Series Library that it takes is as there: a convolution over three
steps and sinusoidal positions in front, 8 heads, 256 hidden units with GELU, normalisation after each sum, dropout 0.1.
Two things differ: the convolution pads with zeros and not in a circle, so that a series gets the same logits alone as
in a batch that was filled up to the longest one; and attention weights are not dropped, so that fused kernels compute
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.apply import set_attention
from ...attention.formulas import find_formula
from ...common.determinism import seeded
from ...common.files import first_line
from ...common.preprocessing import Preprocessing, few_numbers
from ...errors import CheckpointError, ModelError
from ...models.architecture import build, code_digest, is_factory
from ...models.checkpoint import load_into, read, select_network
from ...models.claims import Allowance, check_arguments, check_classes
from ...models.identity import Classifier, attention_notes, give_attention, identity_of
from ...models.outputs import with_logits
from ...models.specs import find, takes_formula

ARCH = "series-transformer"  # the name that checkpoints have for it


class Block(nn.Module):
    """Attention, then a network for each token; each is added and normalised."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_attention, self.norm_hidden = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        mixed, _ = self.attention(tokens, tokens, tokens, key_padding_mask=padding, need_weights=False)
        tokens = self.norm_attention(tokens + self.dropout(mixed))
        hidden = self.dropout(functional.gelu(self.up(tokens)))
        return cast("Tensor", self.norm_hidden(tokens + self.dropout(self.down(hidden))))


class SeriesTransformer(nn.Module):
    """Standardised series (B, C, T) to logits (B, K). forward's lengths: (B,) steps before zeros that fill up."""

    def __init__(
        self,
        channels: int,
        num_classes: int,
        dim: int = 128,
        depth: int = 3,
        heads: int = 8,
        hidden: int = 256,
        dropout: float = 0.1,
        attention: str = "standard",
    ) -> None:
        super().__init__()
        self.num_classes, self.channels = num_classes, channels
        self.embed = nn.Conv1d(channels, dim, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.embed.weight, nonlinearity="leaky_relu")
        self.class_token = nn.Parameter(torch.randn(dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, num_classes)
        set_attention(self, attention)

    def forward(self, series: Tensor, lengths: Tensor | None = None) -> Tensor:
        steps = series.shape[2]
        padding = None
        if lengths is not None and int(lengths.min()) < steps:
            hidden = torch.arange(steps, device=series.device) >= lengths[:, None]
            series = series.masked_fill(hidden[:, None], 0)
            padding = functional.pad(hidden, (1, 0))  # the class token is never hidden
        tokens = self.embed(series).transpose(1, 2)
        tokens = tokens + positions(steps, tokens.shape[2], tokens.device)
        tokens = torch.cat((self.class_token.expand(len(tokens), 1, -1), tokens), dim=1)
        tokens = self.dropout(tokens)
        for block in self.blocks:
            tokens = block(tokens, padding)
        return cast("Tensor", self.head(self.dropout(functional.gelu(self.norm(tokens[:, 0])))))


def positions(steps: int, dim: int, device: torch.device) -> Tensor:
    """Return sines and cosines of each step in turn, (steps, dim) (Vaswani et al. 2017, 3.5)."""
    rates = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(10000.0) / dim))
    angles = torch.arange(steps, device=device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


PROBED = 32  # the steps of the series that a network is first asked about


class SeriesClassifier(Classifier):
    """Series as they were measured, (B, C, T), to logits (B, K); standardised by channel before the network."""

    of_channels: ClassVar[tuple[int, ...]] = (1, -1, 1)


@takes_formula
def load_series(
    spec: str | Path,
    *,
    arch: str | None = None,
    attention: str | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    use_ema: bool = False,
    allow_partial: bool = False,
    output: str | int | None = None,
) -> SeriesClassifier:
    """Load FILE or `zoo:NAME`. arch: `series-transformer`, or code that returns a network, given `channels` and
    `num_classes` where it takes them. mean, std: of channels in training. output: as `robustkit.load` takes it. What is
    left out comes from metadata. Raises ModelError or CheckpointError, one line.
    """
    spec = str(spec)
    if attention is not None:
        find_formula(attention)
    source = find(spec)
    if source.transformers:
        raise ModelError(f"{spec}: a checkpoint of transformers; expected a file of a model of time series")
    checkpoint = read(source.path, use_ema=use_ema)
    metadata = checkpoint.metadata
    if (task := metadata.get("task", "series")) != "series":
        raise CheckpointError(f"{spec} is a model for {str(task)[:40]}; expected one of time series")
    mean, std, sources = _statistics({"mean": mean, "std": std}, metadata, spec)
    arch, kwargs = _architecture(arch, metadata, spec)
    classes = num_classes if num_classes is not None else metadata.get("num_classes")
    kwargs = {**kwargs, "channels": len(mean)}
    if classes is not None:
        kwargs["num_classes"] = check_classes(classes, checkpoint.path)
    with seeded(torch.device("cpu"), 0):  # what --allow-partial leaves at random is the same at every load
        with nullcontext() if is_factory(arch) else Allowance(checkpoint.tensors, checkpoint.path):
            network = build(arch, kwargs=kwargs, img_size=None) if is_factory(arch) else _model(kwargs, checkpoint.path)
        checkpoint = select_network(checkpoint, network.state_dict())
        by_tensors = [name for name, said_by in checkpoint.metadata_source.items() if said_by == "weights"]
        held = [tuple(checkpoint.metadata.get(name) or ()) for name in by_tensors]
        if held and held != [mean, std] and "option" not in sources.values():
            raise CheckpointError(
                f"{spec}: its metadata name mean {few_numbers(mean)} and std {few_numbers(std)}, its tensors "
                f"{' and '.join(map(few_numbers, held))}; give --mean and --std"
            )
        tensors = checkpoint.tensors
        kind, said_by = give_attention(network, attention, metadata, tensors, spec, **checkpoint.hints)
    partial = load_into(network, checkpoint, allow_partial=allow_partial)
    zeros = torch.zeros(1, len(mean), PROBED)
    network, count, outputs, more = with_logits(network, zeros, output, kwargs.get("num_classes"))
    if classes not in (None, count):
        raise ModelError(f"{arch} gives {count} classes, not {classes}; check --num-classes")
    names = metadata.get("class_names")
    identity = identity_of(
        *(checkpoint, source.name, spec, arch, (kind, said_by), partial),
        num_classes=count,
        preprocessing=Preprocessing.standardised(mean, std),
        preprocessing_source=sources,
        code_sha256=code_digest(arch) if is_factory(arch) else None,
        class_names=tuple(map(str, names)) if isinstance(names, list) and len(names) == count else None,
        notes=(*checkpoint.notes, *attention_notes(kind, said_by, attention, metadata), *partial, *more),
        metadata=metadata,
        outputs=outputs,
    )
    return SeriesClassifier(network, identity)


def _architecture(asked: str | None, metadata: Mapping[str, Any], spec: str) -> tuple[str, dict[str, Any]]:
    """Return the architecture and its arguments. A file never names code."""
    claimed, kwargs = metadata.get("arch"), metadata.get("arch_kwargs", {})
    arch = asked or (ARCH if claimed == ARCH else "")
    if not arch or (arch != ARCH and not is_factory(arch)):
        claim = f"--arch {asked}" if asked else f"the file says {str(claimed)[:80]!r}"
        raise ModelError(f"{spec}: no architecture of series ({claim}); expected {ARCH}, or --arch FILE.py:FUNCTION")
    if not isinstance(kwargs, dict):
        raise CheckpointError(f"{spec}: metadata arch_kwargs is {kwargs!r}; expected a JSON object")
    kwargs = kwargs if claimed in (None, arch) or claimed == ARCH == arch else {}
    check_arguments(kwargs, spec, any_name=True)  # ours or the user's, and both only build
    return arch, kwargs


def _model(kwargs: Mapping[str, Any], where: Path) -> SeriesTransformer:
    try:
        return SeriesTransformer(**kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as fault:
        raise CheckpointError(
            f"{where}: {ARCH} cannot be built with {dict(kwargs)} ({first_line(fault)}); check arch_kwargs"
        ) from None


def _statistics(
    asked: Mapping[str, Sequence[float] | None], metadata: Mapping[str, Any], spec: str
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, str]]:
    values, sources = {}, {}
    for name, option in asked.items():
        numbers = metadata.get(name) if option is None else list(option)
        if numbers is None:
            raise ModelError(
                f"{spec}: nothing says the {name} of each channel in its training data; give --{name} with a number "
                "for each"
            )
        if not (isinstance(numbers, list) and numbers and all(isinstance(value, int | float) for value in numbers)):
            raise CheckpointError(f"{spec}: {name} is {repr(numbers)[:80]}; expected a number for each channel")
        values[name], sources[name] = tuple(map(float, numbers)), "metadata" if option is None else "option"
    mean, std = values["mean"], values["std"]
    if not all(map(math.isfinite, mean)) or not all(1e-30 < value < 1e30 for value in std):
        raise ModelError(
            f"{spec}: means from {min(mean):g} to {max(mean):g}, standard deviations from {min(std):g} to "
            f"{max(std):g}; expected finite numbers, the deviations above 1e-30; check --mean and --std"
        )
    if len(mean) != len(std):
        raise ModelError(
            f"{spec}: {len(mean)} means and {len(std)} standard deviations, the smallest {min(std):g}; expected one "
            "above 0 for each channel"
        )
    return mean, std, sources
