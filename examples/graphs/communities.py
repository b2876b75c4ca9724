"""CLUSTER as a task of a plug-in. evaluate.py runs it; `robustkit report`, `compare` and `check` read its runs with
`--plugin communities.py`.

It brings the task `communities`, a graph a sample, and the family `drop-edges`, in which each edge of a graph is
missing with a probability, drawn by seed, graph and condition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from cluster import COMMUNITIES, CommunityFinder, generate
from torch import Tensor
from torch.nn import functional

from robustkit.common.figure import Figure
from robustkit.common.intervals import mean_of
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import Dataset
from robustkit.data.layouts import Sample
from robustkit.display.format import count, figure_cell, loss_cell, share
from robustkit.display.table import CardPart, Section, Table, of_tables
from robustkit.evaluations.aggregate import Parts, RecordReader, column_of, readable_rows
from robustkit.evaluations.condition import Vocabulary, words_of
from robustkit.evaluations.family import Family
from robustkit.evaluations.metrics import Metric, Term, mean_share
from robustkit.evaluations.records import CheckpointRecords, Pairings
from robustkit.evaluations.subject import Batch, EvaluatedModel, Shown
from robustkit.models.checkpoint import load_into, read
from robustkit.models.identity import Classifier, ModelIdentity, distinct_names, give_attention
from robustkit.pipeline.manifest import describe
from robustkit.pipeline.plan import Plan, PlannedCheckpoint
from robustkit.pipeline.request import Request
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.tasks.task import Task

HERE = Path(__file__).resolve().parent
TEST_SEED = 0
HEADINGS = ("checkpoint", "attention", "condition", "graphs", "nodes right % [95 %]", "NLL")


class DropEdgesWords(Vocabulary):
    """Conditions such as `drop-edges(share=0.1)`."""

    parameters: ClassVar = {"share": 0.1}
    in_results = True


class DropEdges(Family):
    """Graphs that lack some of their edges."""

    name, words = "dropped edges", DropEdgesWords()

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: Any) -> Shown:
        """An edge between nodes i < j is missing where the number of the sample's pair (i, j) is below the share."""
        adjacency = batch.inputs[:, :, 1:]
        drawn = rng.uniform(adjacency.shape[1:], "edges").triu(1)
        kept = drawn + drawn.mT >= float(dict(condition.parameters)["share"])
        graphs = torch.cat((batch.inputs[:, :, :1], adjacency * kept), dim=2)
        return Shown(subject.inputs(graphs), lambda: graphs, None)


class CommunitySubject(EvaluatedModel):
    """One network that finds communities; a record for each graph."""

    schema = pa.schema(
        {"sample_id": pa.string(), "nodes": pa.int32(), "right": pa.float64(), "nll": pa.float64()}
        | {"linf": pa.float64(), "l2": pa.float64(), "error": pa.string()}
    )

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    def needs_truth(self, condition: Condition) -> bool:
        return True

    def inputs(self, raw: Tensor) -> Tensor:
        return raw.to(self.settings.device)

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return (shown != raw).float()

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        logits, truth = logits.float().cpu(), torch.stack(list(batch.truths))
        there = truth >= 0
        nodes = there.sum(dim=1)
        right = (logits.argmax(dim=2) == truth).sum(dim=1) / nodes
        losses = functional.cross_entropy(logits.mT, truth, ignore_index=-1, reduction="none").sum(dim=1) / nodes
        columns = {"nodes": nodes.tolist(), "right": right.tolist(), "nll": losses.tolist()}
        return {"sample_id": [sample.id for sample in batch.samples], **columns}


@dataclass(frozen=True)
class Graphs:
    """The test graphs of CLUSTER, made when they are read."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Any:
        return lambda sample: generate(TEST_SEED, int(sample.id))[0]

    def locate(self, sample: Sample, inputs: Tensor) -> Tensor:
        return generate(TEST_SEED, int(sample.id))[1]

    def digest(self) -> str:
        total = hashlib.sha256()
        for sample in self.dataset.samples:
            for part in generate(TEST_SEED, int(sample.id)):
                total.update(part.numpy().tobytes())
        return total.hexdigest()


@dataclass(frozen=True, kw_only=True)
class CommunityRequest(Request):
    """limit: how many graphs; 200 where it is not given."""

    task = "communities"
    usual_attacks = "none"
    usual_batch: ClassVar = {"cpu": 32}
    least_shard = 64
    argument_names = ("checkpoints", "limit")

    data_dir: str | Path = "generated"
    protocol: str = str(HERE / "communities.toml")


class Communities(Task):
    """Which community each node of a graph is in. request: what its plan takes."""

    request = CommunityRequest

    name, headline = "communities", "right"
    metrics = (
        mean_share("right", "nodes right %", drafted=True),
        Metric("nll", "NLL", better=-1, paired=True),
    )
    terms = (Term("nodes right", "The share of a graph's nodes in the right community, as a mean over graphs."),)
    compared = Pairings(shown=("right", "nll"), ended=("right",), groups=(), sets=())
    paired: ClassVar = {"right": "right", "nll": "nll"}
    shows_compared = True
    command, card, hub = "report", "communities", "graph-ml"

    def plan(self, request: CommunityRequest) -> Plan:
        """Raises RobustkitError for a checkpoint that does not fit."""
        samples = tuple(Sample(f"{place:05d}", 0) for place in range(request.limit or 200))
        names = tuple(f"community {place + 1}" for place in range(COMMUNITIES))
        graphs = Graphs(Dataset("CLUSTER", "generated", "graphs", names, samples))
        found = [load_finder(str(path)) for path in request.checkpoints]
        distinct_names(found)
        where = Run(request.folder(found[0].identity.name))
        return Plan(
            request=request,
            run=where,
            contenders=tuple(_contender(each, request, graphs) for each in found),
            conditions=(CLEAN, *request.evaluation_conditions()),
            dataset=graphs.dataset,
            digest=graphs.digest,
            finish=partial(refresh, where),
        )

    # Records into results

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        rows: list[Figure] = []
        for condition in conditions:
            table, notes = reading.joined(reading.shards(condition, ["sample_id", "right", "nll", "error"]))
            read_rows, found = readable_rows(table), [*reading.findings(condition, table), *notes]
            for name in ("right", "nll") if len(read_rows) else ():
                rows.append(mean_of(column_of(read_rows, name)).of(condition, name, found))
        return reading.figures(rows), [], []

    def ids(self, side: CheckpointRecords, condition: str) -> pa.Array:
        return side.samples(condition, ["right"]).ids

    def other_truth(self, first: CheckpointRecords, second: CheckpointRecords, condition: str) -> tuple[int, str]:
        sides = [side.samples(condition, ["nodes"]) for side in (first, second)]
        odd = np.flatnonzero(sides[0].columns["nodes"] != sides[1].columns["nodes"])[:1]  # of one generator, in order
        return len(sides[0].ids), "".join(f"graph {sides[0].ids[place]} has other nodes" for place in odd)

    # Results for people

    def terminal(self, results: Any) -> Iterable[Table]:
        rows = list(_table_rows(results))
        heads = [f"{row[0]}, {row[1]} attention" for row in rows]
        yield Table(results.manifest.protocol.tag, HEADINGS, tuple(rows)).said_once("graphs").under_heads(heads, 2)

    def sections(self, results: Any, looks: Any) -> Iterable[Section]:
        table = Table("Nodes in their communities", HEADINGS, tuple(_table_rows(results)))
        yield of_tables("communities", "Communities", (table,))

    def clean_clause(self, row: Figure) -> str:
        return f"{share(row)} of nodes right in {row.n} whole graphs"

    def card_parts(self, checkpoint: str, results: Any) -> Iterable[CardPart]:
        yield CardPart("Communities", "In brackets 95 % intervals.", [Table("", HEADINGS, tuple(_table_rows(results)))])


def _table_rows(results: Any) -> Iterator[tuple[str, ...]]:
    attention = {entry.name: entry.attention for entry in results.manifest.checkpoints}
    for checkpoint, cells in results.cells.items():
        for text in dict.fromkeys(text for text, _ in cells if words_of(text).in_results):
            row = cells[text, "right"]
            figures = count(row.n), figure_cell(row), loss_cell(cells.get((text, "nll")))
            yield checkpoint, attention[checkpoint], text, *figures


def load_finder(spec: str) -> Classifier:
    """Return the network of a file that train.py wrote. Raises CheckpointError, ModelError."""
    checkpoint, network = read(Path(spec)), CommunityFinder()
    attention, source = give_attention(network, None, checkpoint.metadata, checkpoint.tensors, spec)
    load_into(network, checkpoint)
    said = ModelIdentity(
        name=checkpoint.path.stem,
        spec=spec,
        path=checkpoint.path,
        sha256=checkpoint.sha256,
        arch="examples/graphs",
        attention=attention,
        attention_source=source,
        num_classes=COMMUNITIES,
        preprocessing=Preprocessing(),  # of pictures, as every checkpoint has one in run.json; nothing here asks for it
        weights=checkpoint.weights,
    )
    return Classifier(network, said)


def _contender(finder: Classifier, request: CommunityRequest, graphs: Graphs) -> PlannedCheckpoint:
    entry = describe(finder.identity, finder.identity.preprocessing)
    return PlannedCheckpoint(entry, lambda settings: CommunitySubject(finder, request.card, settings, None), graphs)


PLUGINS = {"tasks": {"communities": Communities()}, "families": {"drop-edges": DropEdges()}}
