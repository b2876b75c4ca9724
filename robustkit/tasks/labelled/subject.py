"""A model of one class a sample under a card: how it is attacked and how its logits are scored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from attacks import AttackResult, DenseAttack, FeaturePGD
from attacks.model_access import is_answer, label_mask, likeliest

from ...common.determinism import SampleRng, seeded, stack_on, to_device
from ...common.preprocessing import Preprocessing
from ...data.class_names import named_places
from ...data.dataset import Dataset, Sample
from ...evaluations.attacks.evaluate import attacked_labels, build_attack
from ...evaluations.corruptions.tree import CorruptedTree
from ...evaluations.maps.truth import Truth
from ...evaluations.subject import Batch, EvaluatedModel, ImageSubject, Reader
from ...protocol.condition import Condition

PASSES = 20
"""How often each final image is shown to a model with random outputs, besides once."""
_LONGEST = 200  # characters of a name in which a second cue is looked for
COPIES, _APART = 32, 1e-3
"""Images of noise that are shown twice to see whether outputs are random, and what rounding does not explain."""
CLASSIFICATION = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("label", "prediction"), pa.int32()),
        **dict.fromkeys(("correct", "top5", "tied"), pa.bool_()),
        **dict.fromkeys(("nll", "confidence", "linf", "l2"), pa.float32()),
        "broken_by": pa.string(),
        **dict.fromkeys(("broken_at", "steps", "forwards", "backwards", "cycle_at"), pa.int32()),
        "error": pa.string(),
    }
)
"""One row per image, for classifiers.

prediction: of equal logits the first class, as argmax takes it, also in the five that `top5` looks at; -1 where the
    logits are not all finite, which is wrong and has no NLL (NaN). tied: whether several classes share the largest.
nll: -log of the probability of the label; where several labels count as right, of the sum of their probabilities.
linf, l2: size of the perturbation that was measured, in pixel units; null for released corrupted files.
broken_by: the attack, where the prediction is wrong after it (also where it was wrong before); for an attack in stages
    the stage, `clean` among them.
broken_at: updates (Square: queries) that the attack, or the run of the stage, had made when it saw that; null if it did
    not check. steps, forwards, backwards: what the attack spent on the sample. cycle_at: updates of PGD after which the
    sample was seen to go in a circle; null otherwise. Where outputs are random, passes and passes_right: how many more
    passes the image had, with draws of their own, and how many were right. cue: where the label map finds a second
    cue's class in names, that class; -1 in others. An attack in stages adds two columns per stage, `forwards apgd-t`
    and so on. A map adds `robustkit.evaluations.maps.evaluate.COLUMNS`. error: why an image could not be read; all but
    id and label are null then.
"""


class LabelledSubject(EvaluatedModel):
    """One model on its device under one card, whose inputs the task's own subject knows; rows of `CLASSIFICATION`."""

    schema = CLASSIFICATION
    _is_random: bool | None = None

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id, "label": sample.label}

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack, labels = build_attack(condition, self.card), None
        if attacked_labels(condition, self.card) == "true":
            labels = to_device(self.accepted(batch.samples), inputs.device)
        assert attack is not None and not isinstance(attack, DenseAttack)  # those are of segmenters
        if isinstance(attack, FeaturePGD):  # loss=embedding, which needs no labels
            return attack.run(self.search.embed, inputs, rng=rng, tell=batch.tell)
        return attack.run(
            self.search,
            inputs,
            labels,
            rng=rng,
            judge=None if self.exact is self.search else self.exact,
            batch_size=self.settings.batch_size,
            tell=batch.tell,
        )

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        samples = batch.samples
        logits = logits.float().cpu()
        log_probability = logits.log_softmax(dim=1)
        if any(sample.label < 0 for sample in samples):
            return self._unlabelled(logits, samples)
        finite = is_answer(logits).tolist()
        ranked = likeliest(logits, 5)
        if self.valid is not None:
            ranked = torch.tensor(self.valid)[ranked]
        # For one label this is its own log-probability, to the bit.
        theirs = label_mask(self.accepted(samples), logits)
        log_likelihood = log_probability.masked_fill(~theirs, -torch.inf).logsumexp(dim=1)
        accepted = [sample.valid or (sample.label,) for sample in samples]
        best = ranked.tolist()
        return {
            "sample_id": [sample.id for sample in samples],
            "label": [sample.label for sample in samples],
            "prediction": [row[0] if ok else -1 for row, ok in zip(best, finite, strict=True)],
            "correct": [ok and row[0] in valid for row, ok, valid in zip(best, finite, accepted, strict=True)],
            "top5": [ok and not set(row).isdisjoint(v) for row, ok, v in zip(best, finite, accepted, strict=True)],
            "nll": [-value if ok else float("nan") for value, ok in zip(log_likelihood.tolist(), finite, strict=True)],
            "confidence": log_probability.amax(dim=1).exp().tolist(),
            "tied": _are_tied(logits).tolist(),
            **self._cues(samples),
        }

    def _cues(self, samples: Sequence[Sample]) -> dict[str, list[int]]:
        identity = self.classifier.identity
        if not isinstance(identity.label_map, Mapping) or "conflict" not in identity.label_map:
            return {}
        matches = (re.search(identity.label_map["conflict"], sample.id[-_LONGEST:]) for sample in samples)
        cues = [match[1] or "" if match else "" for match in matches]
        places = {cue: named_places((cue,), identity.class_names or ()).get(cue, -1) for cue in {*cues}}
        return {"cue": [places[cue] for cue in cues]}

    def asked_again(self, inputs: Tensor, batch: Batch) -> dict[str, list[Any]]:
        """Return how many of `PASSES` further passes, with draws of their own, were right, where outputs are random."""
        if self.run is None:
            return {}  # it is asked for pictures, not for figures
        if self._is_random is None:
            self._is_random = self._answers_differ(inputs)
        if not self._is_random or any(sample.label < 0 for sample in batch.samples):
            return {}
        right = torch.zeros(len(batch), dtype=torch.int64)
        with torch.inference_mode():
            for _ in range(PASSES):
                parts = torch.split(inputs, self.settings.batch_size)
                logits = torch.cat([self.scorer(part) for part in parts])
                right += torch.tensor(self.score(logits, batch)["correct"])
        return {"passes": [PASSES] * len(batch), "passes_right": right.tolist()}

    def _answers_differ(self, like: Tensor) -> bool:
        """Whether two passes of the same `COPIES` images of noise give different logits. That takes no draws from those
        of the batch, and is the same in each process."""
        noise = torch.rand((COPIES, *like.shape[1:]), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode(), seeded(self.settings.device, 0):
            copies = stack_on([*noise.to(like.dtype)], like.device)
            parts = torch.split(copies, self.settings.batch_size)
            once, twice = (torch.cat([self.scorer(part) for part in parts]).float() for _ in range(2))
        difference = (once - twice).abs()
        return bool((difference > _APART * once.abs().clamp(min=1)).any())

    def _unlabelled(self, logits: Tensor, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        """Return rows of samples without labels: what is predicted, not whether it is right."""
        best = logits.argmax(dim=1)  # of logits: their probabilities may round to equal ones
        if self.valid is not None:
            best = torch.tensor(self.valid)[best]
        best = best.masked_fill(~is_answer(logits), -1)
        unknown = {name: [None] * len(samples) for name in ("correct", "top5", "nll")}
        return {
            "sample_id": [sample.id for sample in samples],
            "label": [sample.label for sample in samples],
            "prediction": best.tolist(),
            **unknown,
            "confidence": logits.softmax(dim=1).amax(dim=1).tolist(),
            "tied": _are_tied(logits).tolist(),
        }


def _are_tied(logits: Tensor) -> Tensor:
    """Whether several classes share the largest logit of each sample: (B,)."""
    return ((logits == logits.amax(dim=1, keepdim=True)).sum(dim=1) > 1) & is_answer(logits)


@dataclass(frozen=True)
class Images:
    """The source of pixels, (3, H, W) uint8: the data set, or under a released corruption a tree. truth: of objects."""

    dataset: Dataset
    preprocessing: Preprocessing
    tree: CorruptedTree | None = None
    truth: Truth | None = None

    def reader(self, condition: Condition) -> Reader:
        if condition.released:
            assert self.tree is not None
            return self.tree.reader(condition.under or condition, self.preprocessing)
        return lambda sample: self.dataset.pixels(sample, self.preprocessing)

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        return None if self.truth is None else self.truth.locate(sample, self.preprocessing)


class ClassifierSubject(LabelledSubject, ImageSubject):
    """One classifier of images on its device under one card."""
