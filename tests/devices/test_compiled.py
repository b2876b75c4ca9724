"""Networks by torch.compile: the same records, on CUDA as graphs of few sizes; as written where compiling fails."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import stand_in
import torch
from torch import Tensor, nn

import robustkit
from attacks import AutoAttack, ThreatModel
from robustkit.models.device import CompiledNetwork, graph_size

pytestmark = pytest.mark.usefixtures("pageless")


def recorded(sizes: list[int]) -> Callable[..., Callable[[Tensor], Tensor]]:
    """Return what torch.compile makes on CUDA, as far as its user sees it: a pass is a graph of one size, and graphs
    leave logits and gradients in the same memory."""
    memory: dict[str, Tensor] = {}

    def left(kind: str, values: Tensor) -> Tensor:
        whole = memory.setdefault(kind, values.new_zeros(4096, *values.shape[1:]))
        whole[: len(values)] = values
        return whole[: len(values)]

    def make(network: nn.Module, mode: str) -> Callable[[Tensor], Tensor]:
        assert mode == "reduce-overhead"

        class Pass(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, images: Tensor) -> Tensor:
                with torch.enable_grad():
                    ctx.images = images.detach().clone().requires_grad_()
                    ctx.logits = network(ctx.images)
                sizes.append(len(images))
                return left("logits", ctx.logits.detach())

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return left("gradient", torch.autograd.grad(ctx.logits, ctx.images, gradient)[0])

        return Pass.apply

    return make


@pytest.mark.skipif(bool(stand_in.why_not()), reason=stand_in.why_not() or "there is a stand-in")
def test_graphs_of_a_few_sizes_give_the_same_although_they_overwrite_their_results(
    monkeypatch: pytest.MonkeyPatch, seen: stand_in.Counts
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 10)).to("cuda")
    images = torch.rand(21, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to("cuda")
    labels = network(images).argmax(1)
    attack = AutoAttack(ThreatModel(eps=0.02), steps=6, targets=3, queries=25)
    rows: list[int] = []
    network.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    torch.manual_seed(2)
    plain = attack.run(network, images, labels, batch_size=13)
    asked = set(rows)
    sizes: list[int] = []
    monkeypatch.setattr(torch, "compile", recorded(sizes))
    compiled = CompiledNetwork(network)
    torch.manual_seed(2)
    by_graphs = attack.run(compiled, images, labels, batch_size=13)
    assert not compiled.failure
    assert 0 < int((plain.broken_at < 0).sum()) < 21
    assert torch.equal(by_graphs.broken_at, plain.broken_at) and torch.equal(by_graphs.forwards, plain.forwards)
    assert torch.allclose(by_graphs.adversarials, plain.adversarials, atol=1e-6)
    assert len(asked) > 8 and set(sizes) == {graph_size(n) for n in asked} and len(set(sizes)) < len(asked)

    kept = []
    for part in (images[:3], images[3:8]):
        points = part.clone().requires_grad_()
        logits = compiled(points)
        kept.append((part, logits, torch.autograd.grad(logits[:, 0].sum(), points)[0]))
    for part, logits, gradient in kept:
        points = part.clone().requires_grad_()
        expected = network(points)
        assert torch.allclose(logits, expected, atol=1e-6)
        assert torch.allclose(gradient, torch.autograd.grad(expected[:, 0].sum(), points)[0], atol=1e-6)


def test_sizes_of_graphs() -> None:
    every = [graph_size(n) for n in range(1, 1025)]
    assert all(n <= size <= max(n + 1, 1.25 * n) for n, size in enumerate(every, 1))
    assert [graph_size(n) for n in (1, 3, 7, 9, 65, 81, 128, 129)] == [1, 3, 7, 10, 80, 96, 128, 160]
    assert len(set(every)) == 36


REQUEST: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-vit-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=2)",
    "limit": 6,
    "batch_size": 4,
    "setup_check": False,
    "evidence": "none",
    "browse": 0,
    "device": "cpu",
}


def columns(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    tables = [pq.read_table(path) for path in sorted((folder / "records").rglob("*.parquet"))]
    notes = [note for table in tables for note in json.loads(table.schema.metadata[b"notes"])]
    return [table.to_pydict() for table in tables], notes


def blind(network: nn.Module, mode: str) -> Callable[[Tensor], Tensor]:
    """Compile to something that answers, and whose backward fails."""
    fail = partial(_fail, ValueError("no kernel for this backward\nsecond line"))

    def answer(images: Tensor) -> Tensor:
        logits: Tensor = network(images)
        if logits.requires_grad:
            logits.register_hook(fail)
        return logits

    return answer


def _fail(fault: Exception, *given: object, **more: object) -> Any:
    raise fault


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of dynamo, which looks at it
def test_an_audit_is_the_same_compiled_and_as_written_where_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robustkit.audit(**REQUEST, out=tmp_path / "plain")
    plain, notes = columns(tmp_path / "plain")
    assert notes == []
    compile_by = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network, mode: compile_by(network, backend="aot_eager"))
    robustkit.audit(**REQUEST, out=tmp_path / "compiled", compile=True)
    assert columns(tmp_path / "compiled")[1] == []
    for mine, theirs in zip(columns(tmp_path / "compiled")[0], plain, strict=True):
        assert mine["prediction"] == theirs["prediction"] and mine["nll"] == pytest.approx(theirs["nll"], abs=1e-4)
    fails = {
        "at once": (partial(_fail, RuntimeError("no C++ compiler")), "RuntimeError: no C++ compiler"),
        "backward": (blind, "ValueError: no kernel for this backward"),
    }
    for name, (fake, why) in fails.items():
        monkeypatch.setattr(torch, "compile", fake)
        robustkit.audit(**REQUEST, out=tmp_path / name, compile=True)
        found, notes = columns(tmp_path / name)
        assert found == plain
        assert set(notes) == {f"torch.compile failed, so the model ran as written ({why})"}
