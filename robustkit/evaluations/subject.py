"""A checkpoint under a card: turns a batch of pixels and a condition into the columns of a record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks import Attack, AttackResult, DensePGD, StagedResult
from attacks.attack import Tell
from attacks.labels import answered, members

from ..common.randomness import SampleRng
from ..data.dataset import Sample
from ..data.images import unit
from ..evaluations.attacks.build import attacked_labels, build_attack
from ..evaluations.corruptions.condition import corrupted_of
from ..evaluations.maps.condition import explained_of
from ..models.batch_size import free
from ..models.classifier import Classifier
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..runs.pictures import Picture, picture
from ..tasks.classification.columns import CLASSIFICATION
from .attacks.peers import PeerAttack
from .attention.evaluate import watch
from .attention.layer import Layer
from .maps.condition import Explained
from .maps.evaluate import explain, stability
from .maps.truth import Located


@dataclass(frozen=True)
class Settings:
    """How to compute. But for the seed, nothing here changes what is computed beyond float rounding."""

    seed: int = 0
    batch_size: int = 64
    workers: int = 2
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    compile: bool = False
    frost_dir: str | None = None


class Lens(nn.Module):
    """A classifier as an attack under some card sees it: tensors of the card's space in, float32 logits out.

    network: the bare network; pixels are normalised before it. dtype: of the pass. valid: the classes that compete.
    """

    def __init__(self, classifier: Classifier, card: Card, dtype: torch.dtype, valid: Sequence[int] | None) -> None:
        super().__init__()
        self.classifier = classifier
        self.network: Callable[[Tensor], Tensor] = low_precision(classifier.network, dtype)
        self.from_pixels = card.space == "pixels"
        self.dtype = dtype
        self.valid = None if valid is None else torch.tensor(valid)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        if self.from_pixels:
            images = self.classifier.normalize(images)
        if self.dtype is torch.float32:
            logits = self.network(images).float()
        else:
            with torch.autocast(images.device.type, self.dtype):
                logits = self.network(images).float()
        return logits if self.valid is None else logits[:, self.valid.to(logits.device)]


def low_precision(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy for autocast to `dtype` whose large weights are cast already; for float32 the network itself.

    Autocast casts weights that take no gradient anew in each pass, which costs more than a small batch. The results are
    the same to the bit.
    """
    if dtype is torch.float32:
        return network
    copied = copy.deepcopy(network)
    for part in nn.Module.modules(copied):
        if type(part) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):  # what subclasses do with theirs is not known
            part.to(dtype)
    return copied


@dataclass(frozen=True)
class Evaluation:
    """Rows of a batch, a list for each column; seconds of the attack's stages, and what it did otherwise than asked.

    pictures: of the samples of which some were wanted, by id. layers: of the attention that was watched.
    """

    columns: dict[str, list[Any]]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pictures: dict[str, Picture] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()


class Subject:
    """One checkpoint on its device under one card: turns a batch and a condition into rows of `schema`.

    reused: texts of conditions whose images the condition after them takes, too; they are kept until then.
    """

    schema = CLASSIFICATION

    def __init__(
        self,
        classifier: Classifier,
        card: Card,
        settings: Settings,
        valid: Sequence[int] | None,
        reused: Container[str] = (),
    ) -> None:
        self.classifier = classifier.to(settings.device)
        self.card = card
        self.settings = settings
        self.valid = valid
        self.reused = reused
        self._positions = {label: index for index, label in enumerate(valid or ())}
        self._kept: tuple[str, dict[tuple[str, ...], Tensor]] = ("", {})
        self.is_cnn = classifier.identity.attention == "none"
        if self.is_cnn:
            self.classifier.to(memory_format=torch.channels_last)
        self.exact = Lens(self.classifier, card, torch.float32, valid)
        self.fast = (
            Lens(self.classifier, card, settings.dtype, valid) if settings.dtype != torch.float32 else self.exact
        )
        if settings.compile:
            self.fast.network = torch.compile(classifier.network)
        autocast = card.score_autocast and settings.device.type == "cuda"
        self.scorer = Lens(self.classifier, card, torch.float16, valid) if autocast else self.exact

    @staticmethod
    def unread(sample: Sample) -> dict[str, Any]:
        """What the row of a sample holds whose image cannot be read, beside the reason."""
        return {"sample_id": sample.id, "label": sample.label}

    @staticmethod
    def judges(condition: Condition) -> bool:
        """Whether the condition's rows need to know where the object of a sample is."""
        return explained_of(condition) is not None and condition.under is None

    def evaluate(
        self,
        pixels: Tensor,
        samples: Sequence[Sample],
        condition: Condition,
        tell: Tell | None = None,
        located: Sequence[Located | None] = (),
        keep: Container[str] = (),
    ) -> Evaluation:
        """Rows for (B, 3, H, W) uint8 pixels, a list for each column. located: the objects, for the scores of maps.
        keep: ids of the samples of which pictures are wanted.

        Attacks run in the settings' dtype; what they return is scored in float32 (or as the card says), so that a
        break found in low precision counts only when float32 confirms it.
        """
        rng = self.rng(samples, condition)
        with self.steady(rng):
            if explained_of(condition) is not None:
                return self._explain(pixels, samples, condition, rng, located, keep)
            if condition.name == "attention":
                return self._watch(pixels, samples, condition)
            return self._evaluate(pixels, samples, condition, rng, tell, keep)

    @contextmanager
    def steady(self, rng: SampleRng) -> Iterator[None]:
        """float32 is float32, not TF32; and a model that draws by itself draws the same when it is asked again."""
        devices = [torch.cuda.current_device()] if self.settings.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            torch.manual_seed(int(rng.keys[0]))
            yield

    def _evaluate(
        self,
        pixels: Tensor,
        samples: Sequence[Sample],
        condition: Condition,
        rng: SampleRng,
        tell: Tell | None,
        keep: Container[str],
    ) -> Evaluation:
        attack = build_attack(condition, self.card)
        if attack is None:
            shown = self.corrupt(pixels, condition, rng)
            seen = self.inputs(shown)
            self._keep(condition, samples, seen)
            with torch.inference_mode():
                logits = (self.scorer if self.card.score_autocast else self.fast)(seen)
            delta = unit(shown.float() - pixels.to(shown.device).float())
            unknown = {"linf": [None] * len(samples), "l2": [None] * len(samples)}
            rows = self._rows(logits, samples) | (unknown if condition.released else self._distance(delta))
            return Evaluation(rows, pictures=_pictures(samples, keep, image=shown))
        inputs = self.inputs(pixels)
        result = self._attack(attack, inputs, samples, condition, rng, tell)
        self._keep(condition, samples, result.adversarials)
        with torch.inference_mode():
            batches = torch.split(result.adversarials, self.settings.batch_size)
            logits = torch.cat([self.scorer(batch) for batch in batches])
            delta = (result.adversarials - inputs).float()
            if self.card.space != "pixels":
                delta = delta * self.classifier.std
        rows = self._rows(logits, samples) | self._distance(delta)
        rows |= {
            "broken_by": [None if correct else condition.name for correct in rows["correct"]],
            "broken_at": [at if at >= 0 else None for at in result.broken_at.tolist()],
            "steps": result.steps.tolist(),
            "forwards": result.forwards.tolist(),
            "backwards": result.backwards.tolist(),
        }
        seconds = _stage(rows, result) if isinstance(result, StagedResult) else {}
        seen = result.adversarials
        if self.card.space != "pixels":
            seen = seen * self.classifier.std + self.classifier.mean
        return Evaluation(rows, seconds, result.notes, _pictures(samples, keep, image=seen, delta=delta))

    def _attack(
        self,
        attack: Attack | DensePGD | PeerAttack,
        inputs: Tensor,
        samples: Sequence[Sample],
        condition: Condition,
        rng: SampleRng,
        tell: Tell | None = None,
    ) -> AttackResult | StagedResult:
        assert not isinstance(attack, DensePGD)  # those are a SceneSubject's
        return attack.run(
            self.fast,
            inputs,
            self.accepted(samples) if attacked_labels(condition, self.card) == "true" else None,
            rng=rng,
            judge=None if self.exact is self.fast else self.exact,
            batch_size=self.settings.batch_size,
            tell=tell,
        )

    def _explain(
        self,
        pixels: Tensor,
        samples: Sequence[Sample],
        condition: Condition,
        rng: SampleRng,
        located: Sequence[Located | None],
        keep: Container[str],
    ) -> Evaluation:
        """Rows of a map: those of its image, and its own columns."""
        wanted, under = explained_of(condition), condition.under
        assert wanted is not None
        labelled = all(sample.label >= 0 for sample in samples)
        labels = self.labels(samples) if labelled else None
        inputs = self.inputs(pixels)
        if under is None:
            logits, columns, maps = explain(self, inputs, labels, wanted, rng, located)
            rows = self._rows(logits, samples) | self._distance(torch.zeros(len(samples), 1))
            return Evaluation(rows | columns, pictures=_pictures(samples, keep, heat=maps))
        shown = self._shown(pixels, inputs, samples, under)
        found: dict[str, list[Any]] = {}
        pictures: dict[str, Picture] = {}
        for start in range(0, len(samples), self.settings.batch_size):  # the attack may have had the whole shard
            part = slice(start, start + self.settings.batch_size)
            own = None if labels is None else labels[part]
            logits, columns, maps = stability(self, inputs[part], shown[part], samples[part], own, wanted, rng)
            pictures |= _pictures(samples[part], keep, heat=maps)
            unknown = {"linf": [None] * len(logits), "l2": [None] * len(logits)}
            for name, values in (self._rows(logits, samples[part]) | unknown | columns).items():
                found.setdefault(name, []).extend(values)
        return Evaluation(found, pictures=pictures)

    def _watch(self, pixels: Tensor, samples: Sequence[Sample], condition: Condition) -> Evaluation:
        """Rows of the images that another condition shows, and what the attention did on them, in float32."""
        assert condition.under is not None
        shown = self._shown(pixels, self.inputs(pixels), samples, condition.under)
        found: dict[str, list[Any]] = {}
        layers: tuple[Layer, ...] = ()
        for start in range(0, len(samples), self.settings.batch_size):  # the attack may have had the whole shard
            part = slice(start, start + self.settings.batch_size)
            logits, seen = watch(self.classifier.network, shown[part], self.exact)
            layers = seen.layers
            unknown = {"linf": [None] * len(logits), "l2": [None] * len(logits)}
            for name, values in (self._rows(logits, samples[part]) | unknown | seen.columns()).items():
                found.setdefault(name, []).extend(values)
        return Evaluation(found, layers=layers)

    def _keep(self, condition: Condition, samples: Sequence[Sample], shown: Tensor) -> None:
        """Of a condition whose images are reused, what `_shown` would make anew."""
        if condition.text in self.reused:
            if self._kept[0] != condition.text:
                self._kept = condition.text, {}
            self._kept[1][tuple(sample.id for sample in samples)] = shown

    def _shown(self, pixels: Tensor, inputs: Tensor, samples: Sequence[Sample], under: Condition) -> Tensor:
        """What `under` makes of the images, kept for what else is asked of the same; (B, 3, H, W) as `inputs`."""
        key = tuple(sample.id for sample in samples)
        if self._kept[0] != under.text:
            self._kept = under.text, {}
        if key not in self._kept[1]:
            draws, attack = self.rng(samples, under), build_attack(under, self.card)
            with self.steady(draws):  # as the condition alone is evaluated, so that these are its images
                self._kept[1][key] = (
                    self.inputs(self.corrupt(pixels, under, draws))
                    if attack is None
                    else self._attack(attack, inputs, samples, under, draws).adversarials
                )
        return self._kept[1][key]

    def forget(self) -> None:
        """Let go of what was kept of a shard."""
        self._kept = "", {}

    def halve(self) -> bool:
        """Go on with batches of half the size, where memory is short; False where they hold one image already."""
        size = self.settings.batch_size
        if size == 1:
            return False
        self.settings = replace(self.settings, batch_size=size // 2)
        self.forget()
        free()
        return True

    def corrupt(self, pixels: Tensor, condition: Condition, rng: SampleRng) -> Tensor:
        """(B, 3, H, W) uint8 pixels as the condition shows them, on the device."""
        pixels, corrupted = pixels.to(self.settings.device), corrupted_of(condition)
        if corrupted is None or corrupted.released:
            return pixels
        made = corrupted.make(self.settings.frost_dir)
        return made.apply(pixels, made.draw(pixels.shape[1:], corrupted.severity, rng))

    def inputs(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 pixels as the attack sees them: on the device, in the space of the card."""
        clean = unit(pixels.to(self.settings.device))
        if self.is_cnn:
            clean = clean.contiguous(memory_format=torch.channels_last)
        return clean if self.card.space == "pixels" else self.classifier.normalize(clean)

    def labels(self, samples: Sequence[Sample]) -> Tensor:
        """(B,) the label of each sample, as an index of the logits that compete."""
        position = self._position
        return torch.tensor([position(sample.label) for sample in samples], device=self.settings.device)

    def accepted(self, samples: Sequence[Sample]) -> Tensor:
        """The labels that count as right, as indices of the logits that compete: (B,), or (B, L) where a sample has
        several. Smaller sets repeat one of theirs.
        """
        sets = [list(dict.fromkeys(map(self._position, sample.valid or (sample.label,)))) for sample in samples]
        width = max(map(len, sets), default=1)
        filled = torch.tensor([own + own[:1] * (width - len(own)) for own in sets], device=self.settings.device)
        return filled.flatten() if width == 1 else filled

    def rng(self, samples: Sequence[Sample], condition: Condition) -> SampleRng:
        ids = [sample.id for sample in samples]
        # A map's draws are the method's own, whatever else is asked of it.
        explained = explained_of(condition)
        text = condition.text if explained is None else Explained(explained.method).text
        return SampleRng.of(ids, seed=self.settings.seed, condition=text, device=self.settings.device)

    def classes(self, positions: Tensor) -> list[int]:
        """Classes by their indices among the logits that compete."""
        return positions.tolist() if self.valid is None else [self.valid[position] for position in positions.tolist()]

    def correct(self, positions: Tensor, samples: Sequence[Sample]) -> list[bool | None]:
        """Whether predictions, as indices among the logits that compete, are right; None without a label."""
        return [
            None if sample.label < 0 else predicted in (sample.valid or (sample.label,))
            for predicted, sample in zip(self.classes(positions), samples, strict=True)
        ]

    def _position(self, label: int) -> int:
        """A class as an index of the logits that compete."""
        return label if self.valid is None else self._positions[label]

    def _rows(self, logits: Tensor, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        logits = logits.float().cpu()
        log_probability = logits.log_softmax(dim=1)
        if any(sample.label < 0 for sample in samples):
            return self._unlabelled(logits, samples)
        finite = answered(logits).tolist()
        ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices
        if self.valid is not None:
            ranked = torch.tensor(self.valid)[ranked]
        # Of one label its own log-probability, to the bit.
        theirs = members(self.accepted(samples).cpu(), logits)
        own = log_probability.masked_fill(~theirs, -torch.inf).logsumexp(dim=1)
        accepted = [sample.valid or (sample.label,) for sample in samples]
        best = ranked.tolist()
        return {
            "sample_id": [sample.id for sample in samples],
            "label": [sample.label for sample in samples],
            "prediction": [row[0] if ok else -1 for row, ok in zip(best, finite, strict=True)],
            "correct": [ok and row[0] in valid for row, ok, valid in zip(best, finite, accepted, strict=True)],
            "top5": [ok and not set(row).isdisjoint(v) for row, ok, v in zip(best, finite, accepted, strict=True)],
            "nll": [-value if ok else float("nan") for value, ok in zip(own.tolist(), finite, strict=True)],
            "confidence": log_probability.amax(dim=1).exp().tolist(),
        }

    def _unlabelled(self, logits: Tensor, samples: Sequence[Sample]) -> dict[str, list[Any]]:
        """Rows of images without labels: what is said of them, and nothing of whether it is right."""
        sure, best = logits.softmax(dim=1).max(dim=1)
        if self.valid is not None:
            best = torch.tensor(self.valid)[best]
        best = best.masked_fill(~answered(logits), -1)
        unknown = {name: [None] * len(samples) for name in ("correct", "top5", "nll")}
        return {
            "sample_id": [sample.id for sample in samples],
            "label": [sample.label for sample in samples],
            "prediction": best.tolist(),
            **unknown,
            "confidence": sure.tolist(),
        }

    @staticmethod
    def _distance(delta: Tensor) -> dict[str, list[Any]]:
        flat = delta.flatten(1)
        return {"linf": flat.abs().amax(dim=1).tolist(), "l2": flat.norm(dim=1).tolist()}


def _pictures(samples: Sequence[Sample], keep: Container[str], **parts: Tensor) -> dict[str, Picture]:
    """parts: as `pictures.picture` takes them, a batch of each."""
    return {
        sample.id: picture(**{name: batch[index] for name, batch in parts.items()})
        for index, sample in enumerate(samples)
        if sample.id in keep
    }


def _stage(rows: dict[str, list[Any]], result: StagedResult) -> dict[str, float]:
    """Completes the rows by what the stages of an attack did; returns the seconds of each.

    The attack says what it broke: it asked in float32, and for a random model it averaged passes, which one more pass
    cannot overrule unless it gives no number. A sample that it left standing, and that is wrong all the same, was wrong
    from the start.
    """
    random = result.stages[1:] == ("apgd-ce", "apgd-dlr")
    broken_by = result.broken_by.tolist()
    held = [right or (random and said >= 0) for right, said in zip(rows["correct"], rows["prediction"], strict=True)]
    rows["correct"] = [by < 0 and holds for by, holds in zip(broken_by, held, strict=True)]
    names = [result.stages[max(by, 0)] for by in broken_by]
    rows["broken_by"] = [None if right else name for right, name in zip(rows["correct"], names, strict=True)]
    for what, counts in (("forwards", result.stage_forwards), ("backwards", result.stage_backwards)):
        rows |= {f"{what} {stage}": row for stage, row in zip(result.stages, counts.tolist(), strict=True)}
    return dict(zip(result.stages, result.seconds, strict=True))
