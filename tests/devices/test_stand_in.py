"""The stand-in CUDA device is one: it refuses what CUDA refuses, and counts what costs time there."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from stand_in import Counts, OnDevice, devices, why_not
from torch import Tensor, nn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a stand-in")]


def here(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a tensor made on the CPU": (lambda: here(3) + torch.rand(3), "two devices"),
    "labels on the CPU": (lambda: here(2, 3).gather(1, torch.zeros(2, 1, dtype=torch.long)), "two devices"),
    "a convolution's weights on the CPU": (lambda: nn.Conv2d(3, 4, 3)(here(1, 3, 8, 8)), "two devices"),
    "out= on the CPU": (lambda: torch.add(here(3), here(3), out=torch.empty(3)), "two devices"),
    "a generator of the CPU": (lambda: here(3).normal_(generator=torch.Generator()), "'cuda' device type"),
    "to NumPy": (lambda: here(3).numpy(), "to numpy"),
    "to NumPy, unseen": (lambda: np.asarray(here(3)), "to numpy"),
    "an index of the device into the CPU": (lambda: torch.rand(3)[torch.tensor([0], device="cuda")], "indices"),
    "values of the CPU put at an index": (lambda: here(3).index_put_((here(3) > 2,), torch.rand(2)), "two devices"),
    "another device": (lambda: here(3) + torch.rand(3, device="cuda:1"), "two devices"),
    "a device that is not there": (lambda: torch.rand(3, device="cuda:2"), "invalid device"),
    "a product of integers": (lambda: here(2, 2).long() @ here(2, 2).long(), "not implemented for torch.int64"),
    "bytes that are resized": (
        lambda: nn.functional.interpolate(here(1, 3, 4, 4).byte(), size=8, mode="bilinear"),
        "not implemented for torch.uint8",
    ),
    "attention over two devices": (
        lambda: nn.functional.scaled_dot_product_attention(here(1, 1, 2, 4), here(1, 1, 2, 4), torch.rand(1, 1, 2, 4)),
        "two devices",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name: str) -> None:
    fault, said = REFUSED[name]
    with devices(2), pytest.raises((RuntimeError, TypeError), match=said):
        fault()


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x.sum()),
    "a branch": lambda x: 1 if (x > 2).any() else 0,
    "tolist": lambda x: x.tolist(),
    "a copy to the host": lambda x: x.cpu(),
    "nonzero": lambda x: (x > 0.5).nonzero(),
    "a mask as an index": lambda x: x[x > 0.5],
    "equal": lambda x: torch.equal(x, x),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("name", WAITS)
def test_each_wait_is_counted_once_with_its_line(name: str, seen: Counts) -> None:
    values = here(8)
    assert seen.stops == 0
    WAITS[name](values)
    ((_, line),) = seen.waits
    assert seen.stops == 1 and line.startswith("tests/devices/test_stand_in.py:")


def test_launches_uploads_and_float64_are_counted(seen: Counts) -> None:
    weights = torch.rand(4, 4).to("cuda")
    scalar = torch.tensor(2.0, device="cuda")
    assert seen.launched == 2 and seen.uploaded == 2 and seen.moved == {"up": 68}
    seen.forget()
    _ = weights.T[1:].flatten()  # a copy, since it is not contiguous
    assert seen.launches == {"clone": 1} or seen.launched == 1
    seen.forget()
    _ = weights.view(16)[3:], weights.unsqueeze(0), torch.empty(3, device="cuda")
    assert seen.launched == seen.stops == seen.uploaded == 0
    _ = weights * scalar + 1
    assert seen.launched == 2 and not seen.doubles
    _ = weights.double()
    assert sum(seen.doubles.values()) == 1
    pinned = torch.rand(5).pin_memory()
    seen.forget()
    pinned.to("cuda", non_blocking=True)
    torch.rand(6).to("cuda")
    assert seen.uploaded == 2 and {shape for shape, _ in seen.staged} == {(6,)}


def test_it_computes_as_the_cpu_does_and_backward_has_its_own_thread(seen: Counts) -> None:
    threads: dict[str, int] = {}

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            threads[gradient.device.type] = threading.get_native_id()
            return gradient.clone()

    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    shown = torch.rand(2, 5, 8)

    def both(device: str) -> tuple[Tensor, Tensor]:
        points = shown.to(device).requires_grad_()
        made = block.to(device)(Watched.apply(points))
        return made, torch.autograd.grad(made.square().sum(), points)[0]

    expected, computed = both("cpu"), both("cuda")
    assert all(type(c) is OnDevice and torch.equal(e, c.cpu()) for e, c in zip(expected, computed, strict=True))
    assert threads["cpu"] == threading.get_native_id() != threads["cuda"]


def test_each_device_has_its_generator_and_they_are_seeded_together() -> None:
    with devices(2):
        torch.manual_seed(3)
        first = [torch.rand(4, device=f"cuda:{index}").tolist() for index in (0, 1)]
        host = torch.rand(4)
        torch.manual_seed(3)
        assert torch.equal(torch.rand(4), host)  # what a device draws takes nothing from the host
        state = torch.cuda.get_rng_state(1)
        again = [torch.rand(4, device=f"cuda:{index}").tolist() for index in (0, 1)]
        assert first == again
        torch.cuda.set_rng_state(state, 1)
        assert torch.rand(4, device="cuda:1").tolist() == first[1]


def test_afterwards_there_is_no_device() -> None:
    with devices(2):
        assert torch.cuda.device_count() == torch.accelerator.device_count() == 2
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert not torch.cuda.is_available() and not torch.accelerator.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.rand(3, device="cuda")
