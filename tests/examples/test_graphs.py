"""The example of graphs: its data by definition, formulas in GPSConv, and what robustkit makes of its runs."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from formula_vits import drawn
from places import ROOT
from safetensors.torch import save_file
from torch import Tensor

import robustkit
from robustkit.attention import capture, set_attention
from robustkit.attention.registry import FORMULAS
from robustkit.errors import ModelError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it scripts functions as it is imported
    geometric = pytest.importorskip("torch_geometric", reason="pip install torch_geometric")

pytestmark = pytest.mark.usefixtures("one_thread")
PLACE = ROOT / "examples" / "graphs"
MODULES = ("network", "cluster", "superpixels", "train", "evaluate")


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """Its modules, by name."""
    sys.path.insert(0, str(PLACE))
    try:
        yield {name: __import__(name) for name in MODULES}
    finally:
        sys.path.remove(str(PLACE))
        for name in MODULES:
            sys.modules.pop(name, None)


def image() -> Tensor:
    """Smooth pixels (3, 32, 32) in [0, 1] at 8 bits."""
    coarse = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear")[0]
    return smooth.mul(255).round() / 255


def test_superpixels(example: dict[str, ModuleType]) -> None:
    pixels = image().requires_grad_()
    made, places = example["superpixels"].graph(pixels), example["superpixels"].segments(pixels)
    count = places.flatten().bincount()
    assert 50 < len(count) <= 150 and count.min() > 0 and count.sum() == 1024
    for node in range(len(count)):
        rows, columns = (places == node).nonzero(as_tuple=True)
        expected = [
            *pixels.detach()[:, rows, columns].mean(dim=1),
            columns.double().mean() / 31,
            rows.double().mean() / 31,
        ]
        assert made.x[node].tolist() == pytest.approx([float(value) for value in expected], abs=1e-5)
    near: dict[int, set[int]] = {}
    for start, end in made.edge_index.T.tolist():
        near.setdefault(end, set()).add(start)
    for node, others in near.items():
        apart = (made.x[:, 3:] - made.x[node, 3:]).norm(dim=1)
        apart[node] = torch.inf
        assert node not in others and len(others) == 8
        assert apart[list(others)].max() <= apart[[n for n in range(len(count)) if n not in others]].min() + 1e-6
    made.x[:, 0].sum().backward()
    torch.testing.assert_close(pixels.grad[0], 1 / count[places].float())  # type: ignore[index]
    assert pixels.grad[1:].abs().max() == 0  # type: ignore[index]
    plain = example["superpixels"].graph(torch.full((3, 32, 32), 0.5))
    assert (
        plain.x[:, :3].allclose(torch.tensor(0.5))
        and example["superpixels"].build().eval()(torch.zeros(2, 3, 32, 32))[0].isfinite().all()
    )


def test_cluster_is_what_its_definition_says(example: dict[str, ModuleType]) -> None:
    cluster = example["cluster"]
    inside, between, sizes = [0, 0], [0, 0], set()
    for place in range(150):
        graph, truth = cluster.generate(7, place)
        n = int((truth >= 0).sum())
        said, adjacency, community = graph[:n, 0], graph[:n, 1 : 1 + n].bool(), truth[:n]
        assert torch.equal(adjacency, adjacency.T) and not adjacency.diagonal().any()
        assert (graph[n:, 0] == cluster.ABSENT).all() and graph[n:, 1:].sum() == graph[:, 1 + n :].sum() == 0
        assert sorted(said[said > 0].tolist()) == [1, 2, 3, 4, 5, 6]
        assert (community[said > 0] == said[said > 0] - 1).all()
        same = community[:, None] == community
        pairs = torch.ones(n, n).triu(1).bool()
        for counts, kind in ((inside, same & pairs), (between, ~same & pairs)):
            counts[0] += int(adjacency[kind].sum())
            counts[1] += int(kind.sum())
        sizes |= set(community.bincount().tolist())
        assert not (community.diff() >= 0).all()  # shuffled
    assert inside[0] / inside[1] == pytest.approx(0.55, abs=0.005)
    assert between[0] / between[1] == pytest.approx(0.25, abs=0.005)
    assert (min(sizes), max(sizes)) == (5, 34)
    assert torch.equal(cluster.generate(7, 3)[0], cluster.generate(7, 3)[0])


def finder(example: dict[str, ModuleType], formula: str) -> Any:
    torch.manual_seed(0)
    network = set_attention(example["cluster"].CommunityFinder(), formula).eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


@pytest.mark.parametrize("formula", FORMULAS)
def test_padding_and_order_change_nothing(example: dict[str, ModuleType], formula: str) -> None:
    """GPSConv pads graphs to one batch, and hides what it padded; names of nodes mean nothing."""
    graphs = torch.stack([example["cluster"].generate(1, place)[0] for place in range(3)])
    network = finder(example, formula)
    alone = torch.cat([network(graph[None]) for graph in graphs])
    if FORMULAS[formula].elliptical:
        with pytest.raises(ModelError, match="all tokens, padded ones too; expected a batch of one length"):
            network(graphs)
    else:
        torch.testing.assert_close(network(graphs), alone, rtol=1e-3, atol=1e-4)
        with capture(network):
            torch.testing.assert_close(network(graphs), alone, rtol=1e-3, atol=1e-4)
    n = int((graphs[0, :, 0] != 255).sum())
    order = torch.cat((torch.randperm(n, generator=torch.Generator().manual_seed(1)), torch.arange(n, len(graphs[0]))))
    renamed = torch.cat((graphs[:1, order, :1], graphs[:1, order, 1:][:, :, order]), dim=2)
    torch.testing.assert_close(network(renamed)[0], alone[0, order], rtol=1e-3, atol=1e-4)
    assert (alone[0, :n] - alone[0, :n].mean(dim=0)).abs().max() > 1e-3


def test_other_names_of_communities_are_as_true(example: dict[str, ModuleType]) -> None:
    made = []
    for place in range(3):
        tensor, truth = example["cluster"].generate(1, place)
        each = example["cluster"].as_graph(tensor)
        each.y = truth[truth >= 0]
        made.append(each)
    batch = geometric.data.Batch.from_data_list(made)
    before = batch.y.clone()
    example["train"].renamed(batch, torch.Generator().manual_seed(5))
    said = batch.x.argmax(dim=1)
    assert (batch.y[said > 0] == said[said > 0] - 1).all() and (said > 0).sum() == 18
    for graph in range(3):
        pairs = set(zip(before[batch.batch == graph].tolist(), batch.y[batch.batch == graph].tolist(), strict=True))
        assert len(pairs) == 6 and len({after for _, after in pairs}) == 6
    assert not torch.equal(before, batch.y)


@pytest.fixture(scope="module")
def runs(example: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the task of two untrained networks on a few graphs, made in a process of its own."""
    folder = tmp_path_factory.mktemp("graphs")
    for seed, attention in enumerate(("standard", "quest")):
        network = drawn(set_attention(example["cluster"].CommunityFinder(), attention), seed)
        save_file(network.state_dict(), folder / f"cluster-{attention}-0.safetensors", {"attention": attention})
    (folder / "make.py").write_text(MAKE.format(plugin=str(PLACE / "communities.py")), encoding="utf-8")
    (folder / "policy.toml").write_text('[[rule]]\nrequire = "right under drop-edges(share=0.5) >= 0.001"\n')
    return folder


MAKE = """
import sys
import robustkit
from robustkit.cli.app import main
from robustkit.pipeline.scheduler import run
from robustkit.tasks.task import task_named

robustkit.load_plugin({plugin!r})
request = task_named("communities").request
for batch in (2, 6):
    run(request(checkpoints=["cluster-standard-0.safetensors", "cluster-quest-0.safetensors"], limit=6, workers=1,
                evaluations="drop-edges(share=0.5)", out=f"run{{batch}}", batch_size=batch))
for words in ("report run2 --details", "compare run2", "check run2 --policy policy.toml"):
    try:
        sys.argv = ["robustkit", *words.split(), "--plugin", {plugin!r}]
        main()
    except SystemExit as left:
        assert left.code == 0, (words, left.code)
"""


@pytest.mark.slow
def test_a_run_of_the_task(runs: Path) -> None:
    line = [sys.executable, "-W", "ignore", "make.py"]
    shown = subprocess.run(line, cwd=runs, check=True, capture_output=True, text=True).stdout
    for said in ("nodes right %", "drop-edges(share=0.5)", "difference [95 %]", "pass: 2 of 2"):
        assert said in shown
    summaries = [json.loads((runs / f"run{batch}" / "summary.json").read_text())["results"] for batch in (2, 6)]
    for one, other in zip(*summaries, strict=True):  # draws do not depend on the batch
        assert (one["condition"], one["metric"], one["n"]) == (other["condition"], other["metric"], 6)
        assert one["value"] == pytest.approx(other["value"], rel=1e-4)
    by = {(row["checkpoint"], row["condition"], row["metric"]): row["value"] for row in summaries[0]}
    assert len(by) == 8 and all(0 < by[key] < 1 for key in by if key[2] == "right")
    assert by["cluster-quest-0", "clean", "nll"] != by["cluster-quest-0", "drop-edges(share=0.5)", "nll"]
    plugins = json.loads((runs / "run2" / "run.json").read_text())["plugins"]
    expected = {("tasks", "communities"), ("families", "drop-edges")}
    assert {(entry["group"], entry["name"]) for entry in plugins} == expected
    assert "The share of a graph&#39;s nodes in the right community" in (runs / "run2" / "report.html").read_text()


def test_edges_are_dropped_in_both_directions(example: dict[str, ModuleType]) -> None:
    from robustkit.common.determinism import SampleRng
    from robustkit.evaluations.subject import Batch

    code = {name: module for name, module in sys.modules.items() if name == "communities"}
    assert not code
    communities = __import__("communities")
    try:
        graphs = torch.stack([example["cluster"].generate(1, place)[0] for place in range(4)])
        family, same = communities.DropEdges(), type("Same", (), {"inputs": staticmethod(lambda raw: raw)})
        rng = SampleRng.of([str(place) for place in range(4)], seed=0, condition="x", device="cpu")
        shown = {
            share: family.evaluator.show(
                same, Batch(graphs, ()), family.words.parse(f"drop-edges(share={share})"), rng
            ).inputs
            for share in (0.0, 0.3, 1.0)
        }
        assert torch.equal(shown[0.0], graphs) and shown[1.0][:, :, 1:].sum() == 0
        left = shown[0.3][:, :, 1:]
        assert torch.equal(left, left.mT) and (left <= graphs[:, :, 1:]).all()
        assert torch.equal(shown[0.3][:, :, 0], graphs[:, :, 0])
        assert left.sum().item() / graphs[:, :, 1:].sum().item() == pytest.approx(0.7, abs=0.02)
    finally:
        del sys.modules["communities"]


def test_an_audit_of_superpixels(example: dict[str, ModuleType], tmp_path: Path) -> None:
    network = drawn(set_attention(example["superpixels"].build(), "quest"))
    file = tmp_path / "superpixels-quest-0.safetensors"
    save_file(network.state_dict(), file, {"attention": "quest", "mean": "[0, 0, 0]", "std": "[1, 1, 1]"})
    run = robustkit.audit(
        [file],
        data_dir="embedded:shapes",
        attacks="fgsm",
        eps="4/255",
        corruptions="gaussian_noise(severity=5)",
        model={"arch": f"{PLACE / 'superpixels.py'}:build", "img_size": 32},
        out=tmp_path / "run",
        limit=6,
        batch_size=3,
        setup_check=False,
    )
    (entry,) = run.manifest.checkpoints
    assert entry.attention == "quest"
    rows = run.results().set_index(["condition", "metric"])["value"]
    assert rows["fgsm(eps=4/255)", "nll"] > rows["clean", "nll"]  # gradients reach the pixels
    assert rows["corruption(gaussian_noise,severity=5)", "nll"] != rows["clean", "nll"]


def test_the_tables_are_those_of_the_figures(example: dict[str, ModuleType]) -> None:
    evaluate = example["evaluate"]
    rights = {"standard": (0.5, 0.6, 0.7), "quest": (0.6, 0.7, 0.9)}
    made = [
        evaluate.Figure("communities", "clean", name, seed, right)
        for name, values in rights.items()
        for seed, right in enumerate(values)
    ]
    for figures in itertools.islice(itertools.permutations(made), 0, 720, 97):
        row = evaluate.tables(list(figures)).splitlines()[-1]
        assert row == "| clean | 60.0 ± 10.0 | 73.3 ± 15.3 | +13.3 ± 5.8 | 0.06 |"  # t = 4, two degrees of freedom
    with evaluate.FIGURES.open(newline="", encoding="utf-8") as file:
        rows = [{**row, "seed": int(row["seed"]), "right": float(row["right"])} for row in csv.DictReader(file)]
    assert len(rows) == 2 * 3 * (5 + 4)
    assert evaluate.tables([evaluate.Figure(**row) for row in rows]) in evaluate.README.read_text("utf-8")
