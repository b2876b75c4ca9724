"""How many images a device takes at once: the fastest batch size for a model, and how a lack of memory shows."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..common.determinism import seeded
from .identity import Classifier

_LARGEST = {"cpu": 64}  # that is tried, by device
_LARGEST_ELSEWHERE = 2048
_GAIN = 1.03  # a doubling that gains less is not worth its memory
# The last three are of CUDA's libraries: CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED.
_NO_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED")
_ENOUGH = 0.3  # least seconds of a measurement


def out_of_memory(fault: BaseException | None) -> bool:
    """Whether an error says that the device, or this machine, has no memory left."""
    if isinstance(fault, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(fault, RuntimeError) and any(said in str(fault) for said in _NO_MEMORY)


def best_batch(classifier: Classifier, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Return the batch size at which forward and backward are fastest per image, of those that fit; a power of two.

    It is measured on noise. A smaller batch size that is as fast is preferred to the largest that fits.
    """
    with seeded(device, 0):
        return _best(classifier.to(device), device, dtype)


def _best(classifier: Classifier, device: torch.device, dtype: torch.dtype) -> int:
    side = classifier.identity.preprocessing.input_size
    best, rate, size = 1, 0.0, 1
    try:
        while size <= _LARGEST.get(device.type, _LARGEST_ELSEWHERE):
            measured = _rate(classifier, torch.rand(size, 3, *side, device=device), dtype)
            if measured < _GAIN * rate and size > 8:
                break
            if measured > _GAIN * rate:
                best, rate = size, measured
            size *= 2
    except (RuntimeError, MemoryError) as fault:
        if not out_of_memory(fault):
            raise
    finally:
        free(device)
    return best


def free(device: torch.device) -> None:
    """Give cached memory back to the device."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def _rate(classifier: Classifier, images: Tensor, dtype: torch.dtype) -> float:
    """Return images per second through a forward and a backward to the pixels."""

    def both() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=dtype is not torch.float32):
            total = classifier(images.requires_grad_()).float().square().sum()
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
