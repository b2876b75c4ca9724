"""Choose the device and the dtype that a model computes in, and how many images it takes at once; compile it."""

from __future__ import annotations

import platform
import re
import time
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..common.determinism import lacks_order, seeded
from ..common.environment import count_in
from ..errors import ModelError, unknown
from .identity import Classifier, has_gradients

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # float16 gradients vanish: a weak attack, unseen


def pick_device(name: str) -> torch.device:
    """Return a device by name; `auto` is torch's accelerator, else the CPU; each process of torchrun takes its own."""
    strange = ModelError(unknown("device", name, ("auto", "cpu", "cuda", "cuda:N", "mps", "xpu")))
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = accelerator or torch.device("cpu")
    elif re.fullmatch(r"[a-z]+(:\d+)?", name) and name.partition(":")[0] not in ("auto", "meta"):
        try:
            device = torch.device(name)
        except RuntimeError:
            raise strange from None
    else:
        raise strange
    if device.type != "cpu":
        device = _own(device, name)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, AttributeError) as fault:
        message = re.split(r"\. |\n", str(fault), maxsplit=1)[0][:160].rstrip(".")
        raise ModelError(f"device {name!r} cannot be used ({message}); use --device auto") from None
    return device


def _own(device: torch.device, name: str) -> torch.device:
    processes, rank = count_in("LOCAL_WORLD_SIZE", 1), count_in("LOCAL_RANK", 0)
    if device.index is not None and name != "auto":
        if processes > 1:
            what = f"device {name!r} is one device for {processes} processes"
            raise ModelError(f"{what}; use --device {device.type}, then each takes its own")
        return device
    try:
        count = torch.get_device_module(device).device_count()
    except (RuntimeError, ImportError, AttributeError):  # this build of torch lacks it, which the caller will find out
        return device
    return torch.device(device.type, rank % count) if count else device


@cache
def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for products of bfloat16 matrices: CUDA from 8.0 on, a CPU with AMX."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return device.type == "cpu" and amx is not None and bool(amx())


@cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; Apple's and some of Intel's do not."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).add(1)
    except (RuntimeError, TypeError):
        return False
    return True


def device_name(device: torch.device) -> str:
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    return f"{device.type} ({platform.machine()})"


def devices() -> list[torch.device]:
    accelerators = [torch.accelerator.current_accelerator()] if torch.accelerator.is_available() else []
    return [torch.device("cpu"), *(torch.device(device.type) for device in accelerators if device is not None)]


_GAIN = 1.03  # a doubling that gains less is not worth its memory
# The last three are of CUDA's libraries: CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED.
_NO_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED")
_ENOUGH = 0.3  # least seconds of a measurement


def out_of_memory(fault: BaseException | None) -> bool:
    """Whether an error says that the device, or this machine, has no memory left."""
    by_message = isinstance(fault, RuntimeError) and any(words in str(fault) for words in _NO_MEMORY)
    return by_message or isinstance(fault, (torch.OutOfMemoryError, MemoryError))


def best_batch(classifier: Classifier, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Return the power of two at which forward and backward are fastest per image, measured on noise."""
    p = classifier.identity.preprocessing
    side, largest = (p.channels, *p.input_size), 64 if device.type == "cpu" else 2048
    best, rate, size = 1, 0.0, 1
    with seeded(device, 0):
        classifier = classifier.to(device)
        try:
            while size <= largest:
                measured = _rate(classifier, torch.rand(size, *side, device=device), dtype)
                if measured < _GAIN * rate and size > 8:
                    break
                if measured > _GAIN * rate:
                    best, rate = size, measured
                size *= 2
        except (RuntimeError, MemoryError) as fault:
            if not out_of_memory(fault):
                raise
        finally:
            free_memory(device)
    return best


_SHARD = 8 << 30  # bytes of a device for each of the shards of a CPU that one of its own makes up


def shards_in_memory(device: torch.device) -> int:
    """Return how many times as many samples as on a CPU a unit of work has on an accelerator: a power of two up to 8,
    by the memory of the device; 4 where it does not say how much it has."""
    try:
        memory = int(torch.get_device_module(device).get_device_properties(device).total_memory)
    except (AttributeError, RuntimeError):
        return 4
    return 1 << min(3, max(1, memory // _SHARD).bit_length() - 1)


class CompiledNetwork:
    """A network by torch.compile; where that fails, the network itself answers, and `failure` says why.

    On CUDA a pass is a graph of kernels, which the host launches as one. A graph is of one batch size, so that rows are
    added up to a few sizes; and it leaves its results in memory that the next pass overwrites, so they are copied.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network, self.failure = network, ""
        self._compiled: Any = None

    def __call__(self, images: Tensor) -> Tensor:
        if not self.failure:
            try:
                if self._compiled is None:
                    self._compile(images)
                return self._passed(images)
            except Exception as fault:  # of a compiler, which may raise anything
                if out_of_memory(fault) or lacks_order(fault):
                    raise
                logits: Tensor = self._network(images)  # or the model's own error
                self.failure = f"{type(fault).__name__}: {(str(fault).strip().splitlines() or [''])[0]}"[:200]
                return logits
        return self._network(images)  # type: ignore[no-any-return]

    def _compile(self, images: Tensor) -> None:
        """Compile, and try it on images with their gradient: what fails in a backward alone would fail an attack."""
        mode = "reduce-overhead" if images.device.type == "cuda" else "default"
        self._compiled = torch.compile(self._network, mode=mode)
        with torch.inference_mode(False), torch.enable_grad():
            points = images.detach().clone().requires_grad_()
            if (total := self._passed(points).float().sum()).requires_grad:
                torch.autograd.grad(total, points, allow_unused=True)

    def _passed(self, images: Tensor) -> Tensor:
        if images.device.type != "cuda":
            return self._compiled(images)  # type: ignore[no-any-return]
        inputs = _OwnGradient.apply(images)
        if more := graph_size(len(images)) - len(images):
            inputs = torch.cat([inputs, images.detach()[:1].expand(more, *images.shape[1:])])
        logits: Tensor = self._compiled(inputs)
        return logits[: len(images)].clone()


class _OwnGradient(torch.autograd.Function):
    """The identity, whose gradient is a copy."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clone()


def graph_size(rows: int) -> int:
    """Return the least number from `rows` on that is 4, 5, 6 or 7 times a power of two, or below 4: at most a quarter
    more, and few sizes."""
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step


def free_memory(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def _rate(classifier: Classifier, images: Tensor, dtype: torch.dtype) -> float:
    whole = has_gradients(classifier)

    def both() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=dtype is not torch.float32):
            total = classifier(images.requires_grad_(whole)).float().square().sum()
        if whole:
            torch.autograd.grad(total, images)

    def now() -> float:
        if images.device.type != "cpu":
            torch.accelerator.synchronize(images.device)
        return time.perf_counter()

    both()
    count, began = 0, now()
    while (spent := now() - began) < _ENOUGH or count < 2:
        both()
        count += 1
    return count * len(images) / spent
