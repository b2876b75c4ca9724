"""Inputs that are not images go through runner and records: here sequences of tokens, of two lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from manifests import whole
from torch import Tensor, nn

from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import Dataset
from robustkit.data.layouts import Sample
from robustkit.errors import BadImageError
from robustkit.evaluations.subject import Batch, EvaluatedModel, Settings
from robustkit.models.identity import Classifier, ModelIdentity
from robustkit.pipeline.plan import PlannedCheckpoint
from robustkit.pipeline.units import Worker
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.runs.folder import RunFolder
from robustkit.runs.manifest import digests_of_shards
from robustkit.runs.untrusted import Unit

CLASSES = 3


class Counts(nn.Module):
    """Logits of how often the first three tokens of the vocabulary occur."""

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.stack([(tokens == word).sum(dim=1).float() for word in range(CLASSES)], dim=1)


class TokenSubject(EvaluatedModel):
    """Token sequences, (B, L) int64, as they are."""

    schema = pa.schema(
        {"sample_id": pa.string(), "label": pa.int32(), "prediction": pa.int32(), "error": pa.string()}
        | {"linf": pa.float64(), "l2": pa.float64()}
    )

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id, "label": sample.label}

    def inputs(self, raw: Tensor) -> Tensor:
        return raw.to(self.settings.device)

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return (shown != raw).float()

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        names, labels = [sample.id for sample in batch.samples], [sample.label for sample in batch.samples]
        return {"sample_id": names, "label": labels, "prediction": logits.argmax(dim=1).tolist()}


@dataclass(frozen=True)
class Sentences:
    """Where token sequences come from; the fourth cannot be read."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Any:
        def read(sample: Sample) -> Tensor:
            if sample.id == "3":
                raise BadImageError("3: no sentence")
            place = int(sample.id)
            return torch.full((4 + place % 2,), place % CLASSES)

        return read

    def locate(self, sample: Sample, inputs: Tensor) -> None:
        return None


class Unwatched:
    """A listener that ignores everything."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def begin(self, checkpoint: str, condition: Condition, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...
    def written(self, checkpoint: str, condition: Condition) -> None: ...


def test_sequences_of_tokens_become_records(tmp_path: Path) -> None:
    samples = tuple(Sample(str(place), place % CLASSES) for place in range(7))
    dataset = Dataset("sentences", "nowhere", "lines", tuple("abc"), samples)
    identity = ModelIdentity(
        "counts", "counts", None, None, "counts", "none", "n/a", CLASSES, Preprocessing(), weights="random"
    )
    shards = digests_of_shards([sample.id for sample in samples], 4)
    run = RunFolder(tmp_path)
    data = {"n": 7, "shards": shards}
    run.write_manifest(
        whole({"checkpoints": [{"name": "counts"}], "conditions": ["clean"], "data": data, "shard_size": 4})
    )
    manifest = run.manifest
    card = load_card("quest-paper")  # whose space is the network's own
    settings = Settings(batch_size=3)
    subject = TokenSubject(Classifier(Counts(), identity), card, settings, None)
    contender = PlannedCheckpoint(manifest.checkpoint("counts"), lambda settings: subject, Sentences(dataset))
    request = SimpleNamespace(settings=settings)
    plan = SimpleNamespace(run=run, request=request, conditions=[CLEAN], contenders=[contender], handed=())
    Worker(plan, Unwatched(), str).compute("counts", [(0, ["clean"]), (1, ["clean"])])
    assert run.damaged("counts", ["clean"]) == [] and Unit.of(manifest, "counts", "clean").shards == tuple(shards)
    rows = run.table("counts", "clean").to_pylist()
    assert [row["prediction"] for row in rows] == [0, 1, 2, None, 1, 2, 0]
    assert [row["error"] for row in rows] == [None] * 3 + ["3: no sentence"] + [None] * 3
    assert [row["linf"] for row in rows] == [0, 0, 0, None, 0, 0, 0]
    assert run.lacking("counts", "clean") == 0
    path = run.shard_path("counts", "clean", 1)
    assert pq.read_schema(path).metadata[b"batch_size"] == b"3"  # of a network whose batches were halved before
