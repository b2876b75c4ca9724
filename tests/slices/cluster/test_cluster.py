"""A run on a Ray cluster: its tasks in any process, a lost worker, a node that comes later; the same bytes."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_audit
from processes import called, everything

import robustkit.slices.cluster as cluster
from robustkit.errors import ProtocolError, RunError
from robustkit.evaluations.setup import CHECK
from robustkit.pipeline.pending import announce, pending_work
from robustkit.pipeline.plan import Plan
from robustkit.pipeline.processes import Ranks
from robustkit.pipeline.progress import Silent
from robustkit.pipeline.request import ClassificationRequest
from robustkit.runs.description import why_not_repeated
from robustkit.runs.progress import Progress

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")

GUEST = """
    class Guest(nn.Module):
        calls = 0

        def forward(self, images):
            here, Guest.calls = Path(__file__).parent, Guest.calls + 1
            if Guest.calls == 1 and "RAY_RAYLET_PID" in os.environ:  # a worker of Ray
                with (here / "nodes").open("a") as file:
                    file.write(os.environ["RAY_RAYLET_PID"] + "\\n")
            if Guest.calls > 20 and (here / "dies").exists():
                (here / "dies").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if Guest.calls > 20 and (here / "raises").exists():
                raise RuntimeError("spoiled")
            until = time.monotonic() + 120
            while Guest.calls > 40 and (here / "late").exists() and time.monotonic() < until:
                if len(set((here / "nodes").read_text().split())) > 1:
                    break
                time.sleep(0.1)
            return images

    net.append(Guest())
"""
"""A layer that, where a file says so, kills its process in the middle of a unit, raises, or waits for a second node."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = small_audit.furnish(tmp_path_factory.mktemp("mortal"))
    code = small_audit.FACTORY.replace("    net.default_cfg", f"{GUEST}    net.default_cfg")
    (place / "net.py").write_text(f"import os, signal, time\nfrom pathlib import Path\n{code}")
    return place


@pytest.fixture(scope="module")
def alone(mortal: Path, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return small_audit.audit(mortal, tmp_path_factory.mktemp("alone") / "run", shard_size=2).path


def test_tasks_in_a_process_of_their_own_make_the_bytes_of_one(
    mortal: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it without Ray: what it would send to workers is carried out here, last task first."""
    monkeypatch.chdir(tmp_path)
    done: list[cluster.ClusterTask] = []
    lines: list[str] = []

    def compute(plan: Plan, ranks: Ranks, progress: Progress, say: Any) -> Any:
        every = pending_work(plan, 2)
        reporter = announce(plan, Ranks(), progress, say, every)
        order = cluster._Order(plan.request, plan.run.manifest.to_plain(), str(mortal), (), 1, "cpu")
        by_text = {condition.text: condition for condition in plan.conditions}
        for tasks in cluster._rounds(plan, every):
            for task in tasks[::-1]:
                said, heard = cluster.carry_out_task(order, task)
                done.append(task)
                lines.extend(said)
                for name, samples, seconds in heard:
                    reporter.elsewhere(task.checkpoint, name, by_text.get(name), samples, seconds)
        return reporter

    monkeypatch.setattr("robustkit.pipeline.scheduler.compute", compute)
    run = small_audit.audit(mortal, tmp_path / "run", shard_size=2)
    assert everything(run.path) == everything(alone)
    assert sorted({task.kind for task in done}) == ["before attacks", "evidence", "set-up", "units"]
    again = [task for task in done if task.kind == "evidence"]
    assert len(done) == 17 + len(again) and done[-len(again) :] == again
    assert len([line for line in lines if "channels" in line]) == 1  # what the check of the set-up has to say
    assert Path.cwd() == mortal  # where the command was started
    cluster._states.clear()


def test_what_a_task_took_is_told_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ears = cluster._Ears()
    for name, samples, seconds in ((CHECK, 16, 2.0), ("clean", 8, 3.0)):
        ears.start("net", name, samples)
        now[0] += seconds
    assert ears.taken() == [(CHECK, 16, 2.0), ("clean", 8, 3.0)] and ears.taken() == []


@pytest.mark.parametrize(
    ("visible", "lent", "device"), [("", 2, "cuda:2"), ("4,7", "7", "cuda:1"), ("GPU-a,GPU-b", "GPU-b", "cuda:1")]
)
def test_a_task_computes_on_the_device_that_it_was_lent(
    visible: str, lent: object, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_gpu_ids=lambda: [lent]))  # type: ignore[arg-type]
    assert cluster._lent("cuda") == device and cluster._lent("cpu") == "cpu"


def test_what_is_no_address_is_refused_and_a_foreign_one_is_not_repeated(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"--ray net\.pth: expected nothing, auto, HOST:PORT or ray://HOST:PORT"):
        ClassificationRequest(checkpoints=["a"], data_dir="b", ray="net.pth")
    for address in ("local", "auto", "10.0.0.1:6379", "ray://head:10001"):
        assert ClassificationRequest(checkpoints=["a"], data_dir="b", ray=address).ray == address
    assert "would run custom code (--ray)" in why_not_repeated("robustkit audit a.pth --ray evil:6379")
    assert not why_not_repeated("robustkit audit a.pth --ray")
    (tmp_path / "c.toml").write_text('ray = "evil:6379"\n')
    words = [*small_audit.command(place, tmp_path / "run")[3:], "--config", str(tmp_path / "c.toml")]
    status, _, errors = called(words)
    assert status == 2 and "names a cluster, which may run code on this machine" in errors


def test_without_ray_one_line_says_what_to_install(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r'Ray is not installed; pip install "\.\[ray\]" in a clone'):
        small_audit.audit(place, tmp_path / "run", ray="local")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_killed_worker_and_a_node_that_comes_later_lose_nothing(mortal: Path, alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    out = tmp_path / "run"

    class Adds(Silent):
        def advance(self, samples: int) -> None:  # a first result is there
            if len(nodes.list_all_nodes()) == 1:
                nodes.add_node(num_cpus=1)

    for name in ("dies", "late"):
        (mortal / name).touch()
    try:
        small_audit.audit(mortal, out, shard_size=2, ray=nodes.address, progress=Adds())
        assert not (mortal / "dies").exists()  # one was killed
        assert len({*(mortal / "nodes").read_text().split()}) == 2  # raylets: both nodes computed
        assert everything(out) == everything(alone)
        assert not ray.is_initialized()
    finally:
        (mortal / "late").unlink()
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_its_own_and_what_a_worker_raises(mortal: Path, alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "run"
    attacks = "--attacks", "fgsm,pgd(steps=3),spsa(steps=2,directions=4)", "--eps", "8/255", "--shard-size", "2"
    words = small_audit.command(mortal, out, *attacks, "--ray")[3:]
    (mortal / "raises").touch()
    status, _, errors = called(words)
    (mortal / "raises").unlink()
    assert status == 2 and re.search(r"error: net fails under .* on 2 images: RuntimeError: spoiled", errors), errors
    status, printed, errors = called(words)
    assert status == 0 and "report: " in printed, errors
    assert everything(out) == everything(alone)
