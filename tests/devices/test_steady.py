"""Settings and generators of torch: held still while a model is asked, left as they were found."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_audit
import torch
from processes import CONDITIONS, torchrun_on_stand_in
from small_audit import pages
from stand_in import devices, why_not
from torch import Tensor, nn

import robustkit
from robustkit.common.determinism import lacks_order, ordered, seeded
from robustkit.errors import ModelError
from robustkit.evaluations.subject import ScoringModel
from robustkit.models.device import device_name, has_float64, out_of_memory, pick_device

needs_stand_in = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a stand-in")

USERS = (
    "",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
)
LOOK = """
import os, sys, torch
from robustkit.common.determinism import _newer, float32
def state():
    seen = [precision for _, precision in _newer()]
    for ask in (torch.get_float32_matmul_precision, lambda: torch.backends.cudnn.allow_tf32):
        try:
            seen.append(ask())
        except RuntimeError:
            seen.append("mixed")
    return seen
def look(user):
    exec(user)
    before = state()
    with float32():
        inside = state()
    assert state() == before, (user, before, state())
    assert not {"tf32", "bf16", "high", "medium", True} & set(inside), (user, inside)
for user in sys.argv[1:]:  # each in a process of its own, since settings of both kinds cannot be undone
    if not (child := os.fork()):
        try:
            look(user)
        except BaseException as fault:
            print(fault, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("override", [False, True], ids=["usual", "override"])
def test_float32_is_float32_and_the_users_choice_comes_back(override: bool) -> None:
    env = os.environ | ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"} if override else {})
    users = [user for user in USERS if "fp32_precision" not in user or hasattr(torch.backends, "fp32_precision")]
    done = subprocess.run([sys.executable, "-c", LOOK, *users], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_stand_in
def test_only_one_devices_generator_is_seeded_and_all_come_back() -> None:
    with devices(2):
        torch.manual_seed(1)
        before = [torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in (0, 1))]
        with seeded(torch.device("cuda", 1), 7):
            first = [torch.rand(3), torch.rand(3, device="cuda:1").cpu()]
            assert torch.equal(torch.cuda.get_rng_state(0), before[1])
        for state, now in zip(before, [torch.get_rng_state(), *map(torch.cuda.get_rng_state, (0, 1))], strict=True):
            assert torch.equal(state, now)
        torch.rand(5, device="cuda:1")
        with seeded(torch.device("cuda", 1), 7):
            assert torch.equal(torch.rand(3), first[0]) and torch.equal(torch.rand(3, device="cuda:1").cpu(), first[1])


@needs_stand_in
def test_an_audit_leaves_settings_and_generators_as_it_found_them(place: Path, tmp_path: Path) -> None:
    def state() -> list[Any]:
        settings = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
        generators = [torch.get_rng_state().tolist(), *(torch.cuda.get_rng_state(i).tolist() for i in (0, 1))]
        return [*settings, torch.get_float32_matmul_precision(), *generators]

    with devices(2):
        torch.manual_seed(5)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        try:
            before = state()
            robustkit.audit(
                [place / "net.pth"],
                data_dir=place / "images",
                model={"arch": f"{place / 'net.py'}:build", "num_classes": 3},
                limit=2,
                attacks="pgd(steps=1)",
                batch_size="auto",
                out=tmp_path / "run",
            )
            assert state() == before
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.benchmark = False


class Summed(nn.Module):
    """Its cumulative sum has no deterministic algorithm on CUDA."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 10)
        self.default_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "input_size": (3, 32, 32)}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)).cumsum(1))


@needs_stand_in
def test_a_record_names_what_has_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summed.py").write_text(
        "import sys\nfrom test_steady_network import Summed\n\ndef build(**kwargs):\n    return Summed()\n"
    )
    monkeypatch.setitem(sys.modules, "test_steady_network", sys.modules[__name__])
    torch.save(Summed().state_dict(), tmp_path / "net.pth")
    options = {"data_dir": "embedded:shapes", "limit": 4, "batch_size": 2, "attacks": "fgsm"}
    options |= {"model": {"arch": f"{tmp_path / 'summed.py'}:build"}}
    with devices():
        robustkit.audit([tmp_path / "net.pth"], out=tmp_path / "cuda", **options)
        maps = options | {"cams": "gradient", "stability": True, "limit": 2}
        robustkit.audit([tmp_path / "net.pth"], out=tmp_path / "maps", **maps)
    robustkit.audit([tmp_path / "net.pth"], out=tmp_path / "cpu", device="cpu", **options)
    flags = [json.loads(path.read_text()).get("failed") for path in (tmp_path / "cuda" / "evidence").rglob("*.json")]
    assert flags == [None]  # evidence goes without order, too
    for record in sorted((tmp_path / "cuda" / "records").rglob("*.parquet")):
        assert json.loads(pq.read_schema(record).metadata[b"deterministic"]) == ["cumsum_cuda"]
        other = tmp_path / "cpu" / record.relative_to(tmp_path / "cuda")
        assert b"deterministic" not in pq.read_schema(other).metadata
        assert pq.read_table(record).equals(pq.read_table(other))


@needs_stand_in
def test_order_is_asked_for_and_warnings_of_others_pass() -> None:
    with devices():
        values = torch.rand(3, device="cuda")
        with ordered(values.device), pytest.raises(RuntimeError) as caught:
            values.cumsum(0)
        assert lacks_order(caught.value) == "cumsum_cuda"
        with pytest.warns(UserWarning, match="of another"), ordered(values.device, strict=False) as names:
            assert torch.are_deterministic_algorithms_enabled() and torch.is_warn_always_enabled()
            values.cumsum(0)
            warnings.warn("of another", UserWarning, stacklevel=1)
        assert names == {"cumsum_cuda"} and not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_warn_always_enabled()  # torch says some of these once a process otherwise
    for kind in ("Flash Attention", "Memory Efficient attention"):
        said = f"{kind} defaults to a non-deterministic algorithm. To explicitly enable determinism call"
        assert lacks_order(said) == kind.removeprefix("Memory ")
    blas = "Deterministic behavior was enabled, but this operation is not deterministic because it uses CuBLAS and you"
    assert lacks_order(blas) == "CuBLAS" and not lacks_order("CUDA error")


@needs_stand_in
def test_each_warning_of_others_passes_once_also_where_the_work_fails() -> None:
    said = list[str]()
    with devices(), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *more, **named: said.append(str(message))
        for _ in range(3):
            with pytest.raises(ValueError, match="broken"), ordered(torch.device("cuda"), strict=False):
                for _ in range(50):
                    warnings.warn("hello from the network", UserWarning, stacklevel=1)
                raise ValueError("broken")
    assert said == ["hello from the network"]


@needs_stand_in
def test_what_a_network_seeds_comes_back_on_every_device() -> None:
    with devices(2):
        before = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, (0, 1))]
        for device in ("cuda:1", "cpu"):
            with pytest.raises(ValueError, match="late"), seeded(torch.device(device), 7):
                torch.manual_seed(3)
                raise ValueError("late")
            now = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, (0, 1))]
            assert all(torch.equal(first, second) for first, second in zip(before, now, strict=True)), device


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def become(local: int, of: int) -> None:
        monkeypatch.setenv("LOCAL_RANK", str(local))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(of))

    return become


@needs_stand_in
@pytest.mark.slow
@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_torchrun_gives_each_process_its_own_device(place: Path, tmp_path: Path, device: str) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = torchrun_on_stand_in(place, tmp_path / "run", device, "--limit", "10")
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env=env)
    if device == "cuda:1":
        assert done.returncode != 0 and not (tmp_path / "run").exists()
        line = "device 'cuda:1' is one device for 2 processes; use --device cuda, then each takes its own"
        reports = re.findall(rf"error: (\[process 1\] )?{line}\n", done.stderr)
        assert reports in (
            [""],
            ["[process 1] "],
            ["", "[process 1] "],
            ["[process 1] ", ""],
        )  # torchrun ends the later
        return
    assert done.returncode == 0, done.stderr
    reports = re.findall(r"process \d+ computed on .*?\]", done.stderr)  # a line of one may begin behind the other's
    assert sorted(reports) == ["process 0 computed on [0]", "process 1 computed on [1]"]
    small_audit.audit(place, tmp_path / "alone", attacks=CONDITIONS[1], shard_size=4, limit=10)
    assert pages(tmp_path / "run") == pages(tmp_path / "alone")


@needs_stand_in
def test_each_process_takes_its_own_device(rank: Any) -> None:
    with devices(2):
        assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 0)
        assert pick_device("cuda:1") == torch.device("cuda", 1)
        for local in range(4):
            rank(local, 4)
            assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", local % 2)
            assert pick_device("cpu") == torch.device("cpu")
            with pytest.raises(
                ModelError, match=r"'cuda:1' is one device for 4 processes; use --device cuda, then each"
            ):
                pick_device("cuda:1")
        rank(0, 1)
        with pytest.raises(ModelError, match=r"'cuda:2' cannot be used .*invalid device ordinal.*use --device auto"):
            pick_device("cuda:2")
        assert device_name(torch.device("cuda", 1)) == "Stand-in"


def test_devices_that_are_not_there_are_refused_in_one_line() -> None:
    for name in ("mps", "xpu", "xla:0", "hpu", *(() if torch.cuda.is_available() else ("cuda", "cuda:3"))):
        with pytest.raises(ModelError, match=f"device '{name}' cannot be used .*; use --device auto$"):
            pick_device(name)
    for name in ("gpu", "meta", "cuda:", "cuda:x", "", "CPU"):
        with pytest.raises(ModelError, match=f"unknown device '{name}'"):
            pick_device(name)
    assert has_float64(torch.device("cpu"))


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GiB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=lambda fault: str(fault)[:24],
)
def test_a_lack_of_memory_is_known_by_its_name(fault: Exception) -> None:
    assert out_of_memory(fault)
    assert not out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))


def test_where_memory_is_short_spsa_asks_for_fewer_rows(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = ScoringModel.forward

    def short(lens: ScoringModel, images: Tensor) -> Tensor:
        rows.append(len(images))
        if len(images) > 3:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
        return forward(lens, images)

    small_audit.audit(place, tmp_path / "whole", attacks="spsa(steps=2,directions=4)", batch_size=2)
    monkeypatch.setattr(ScoringModel, "forward", short)
    small_audit.audit(place, tmp_path / "run", attacks="spsa(steps=2,directions=4)", batch_size=8)
    assert max(rows[-40:]) == 2 and pages(tmp_path / "run") == pages(tmp_path / "whole") != {}
