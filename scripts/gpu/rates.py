"""How fast the device is: attacks, corruptions, maps, the host's share, and what happens where memory is short.

A rate of a network, a corruption or a map is images over the median of three calls, after one that warms up; an attack
is called once. The share of the bare rate is what the forwards and backwards of an attack would take alone, by rates
measured just before, over what it took.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import robustkit
from attacks import APGD, FAB, PGD, Attack, Square, ThreatModel, TorchRng
from cam import AGCAM, LeGrad
from corruptions import CORRUPTIONS, PRESETS, corrupt
from robustkit.common.determinism import stack_on
from robustkit.data.dataset import open_dataset
from robustkit.evaluations.subject import low_precision
from robustkit.models.device import CompiledNetwork

from .steps import Bench

CALLS = 3
EAGER, COMPILED = ("float32", "bfloat16", "tf32"), ("bfloat16, compiled", "float32, compiled")


class Counted(nn.Module):
    """A network whose rows forwards and backwards are counted; computes in a dtype, compiled where that is asked."""

    def __init__(self, network: nn.Module, mode: str) -> None:
        super().__init__()
        dtype = torch.bfloat16 if "bfloat16" in mode else torch.float32
        self.network, self.dtype = low_precision(network, dtype), dtype
        self.compiled = CompiledNetwork(self.network) if "compiled" in mode else None
        self.forwards = self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        low = self.dtype is not torch.float32
        with torch.autocast(images.device.type, self.dtype) if low else contextlib.nullcontext():
            logits: Tensor = (self.compiled or self.network)((images - 0.5) / 0.25)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits.float()

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@contextlib.contextmanager
def precision(mode: str) -> Iterator[None]:
    """Compute float32 as such, or as TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return the median time of a call, after one that warms up; the device has finished when a call ends."""
    return statistics.median([once(work, device) for _ in range(CALLS + 1)][1:])


def once(work: Callable[[], Any], device: str) -> float:
    began = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False).eval().requires_grad_(False)


def eager(bench: Bench) -> None:
    """Record the rates of bare networks at several batch sizes, and of attacks at the first."""
    _record_networks(bench, EAGER)


def compiled(bench: Bench) -> None:
    """Record the same of compiled networks at one batch size; float32 as it is goes first, to compare with."""
    _record_networks(bench, ("float32",) if bench.small else ("float32", *COMPILED), only_pgd=True)


def _record_networks(bench: Bench, modes: Sequence[str], only_pgd: bool = False) -> None:
    """What there is no time for is named."""
    names = ("test_vit", "test_resnet") if bench.small else ("vit_base_patch16_224", "resnet50", "vit_tiny_patch16_224")
    verdicts: dict[str, Tensor] = {}
    for name in names:
        network = _network(name).to(bench.device)
        for mode in modes:
            described = {"network": name, "mode": mode}
            if bench.left < 6:
                bench.record(what="left out", **described)
                continue
            try:
                _measure(bench, network, described, verdicts, only_pgd)
            except torch.OutOfMemoryError:
                bench.record(what="no memory", **described)
                torch.cuda.empty_cache()


def _measure(
    bench: Bench, network: nn.Module, described: dict[str, Any], verdicts: dict[str, Tensor], only_pgd: bool
) -> None:
    """Record one network in one mode. verdicts: which images stand in float32, by network; filled by that mode."""
    mode, sizes = described["mode"], (2, 4) if bench.small else (128, 32, 512)
    side = int(network.default_cfg["input_size"][-1])
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(max(sizes), 3, side, side, generator=generator).to(bench.device)
    with precision(mode):
        model = Counted(network, mode).to(bench.device)
        compiling = once(lambda: bare_pass(model, images[: sizes[0]]), bench.device) if "compiled" in mode else None
        bares = dict[int, tuple[float, float]]()
        for size in sizes[:1] if only_pgd else sizes:
            forward, both = bares[size] = bare(model, images[:size], bench.device)
            bench.record(
                what="bare",
                **described,
                batch=size,
                forwards_a_second=size / forward,
                passes_a_second=size / both,
                failure=model.compiled.failure if model.compiled else "",
                seconds_to_compile=compiling,
            )
        size, found = sizes[0], images
        with torch.no_grad():
            labels = model(images[:size]).argmax(1)
        for stage, attack in _stages(bench.small, every=not only_pgd and mode != "tf32").items():
            if bench.left < 4:
                bench.record(what="left out", stage=stage, **described)
                continue
            model.forwards = model.backwards = 0
            rng, results = TorchRng(torch.Generator().manual_seed(3)), list[Tensor]()
            took = once(lambda: results.append(attack(model, images[:size], labels, rng=rng)), bench.device)  # noqa: B023
            found = results[0] if stage == "PGD-20" else found
            forward, both = bares[size]
            passes = model.forwards / size * forward + model.backwards / size * (both - forward)
            rates = {"images_a_second": size / took, "share_of_bare": passes / took}
            bench.record(what="attack", stage=stage, **described, batch=size, **rates)
    if found is images:
        return
    with precision("float32"), torch.no_grad():
        stands = Counted(network, "float32")(found).argmax(1) == labels
    before = verdicts.setdefault(described["network"], stands)
    more, fewer = (int((one & ~other).sum()) for one, other in ((stands, before), (before, stands)))
    bench.record(what="verdicts", **described, stand=int(stands.sum()), more_than_float32=more, fewer=fewer)


def _stages(small: bool, every: bool) -> dict[str, Attack]:
    """Return PGD-20, and the stages of AutoAttack, with a tenth of their steps, none of which stops early."""
    threat, few = ThreatModel("linf", 1 / 255), 2 if small else 10
    stages: dict[str, Attack] = {"PGD-20": PGD(threat, steps=2 if small else 20)}
    if every:
        stages["APGD-CE"] = APGD(threat, steps=few, early_stop=False)
        stages["APGD-T"] = APGD(threat, steps=few, loss="dlr-targeted", targets=1, early_stop=False)
        stages["FAB-T"] = FAB(threat, steps=few // 2, targets=1, early_stop=False)
        stages["Square"] = Square(threat, queries=5 * few, early_stop=False)
    return stages


def bare(model: nn.Module, images: Tensor, device: str) -> tuple[float, float]:
    """Return the seconds of a forward, and of a forward with the gradient of the images."""

    def forward() -> None:
        with torch.inference_mode():
            model(images)

    return seconds(forward, device), seconds(lambda: bare_pass(model, images), device)


def bare_pass(model: nn.Module, images: Tensor) -> None:
    points = images.clone().requires_grad_()
    torch.autograd.grad(model(points).float().sum(), points)


def corruptions_and_maps(bench: Bench) -> None:
    """Record images a second of each corruption at severity 3, those of CIFAR alone at its size, and of two maps."""
    count, large = (2, 32) if bench.small else (128, 224)
    name = "test_vit" if bench.small else "vit_base_patch16_224"
    network = _network(name).to(bench.device)
    size = int(network.default_cfg["input_size"][-1])
    pixels = torch.rand(2 if bench.small else 64, 3, size, size, device=bench.device)
    for kind, method in (("AG-CAM", AGCAM), ("LeGrad", LeGrad)):
        with method(network) as explain:
            took = seconds(lambda: explain(pixels), bench.device)
        bench.record(what="map", kind=kind, network=name, images_a_second=len(pixels) / took)
    for kind in CORRUPTIONS:
        if bench.left < 3:
            bench.record(what="left out", kind=kind)
            continue
        preset, side = ("imagenet", large) if kind in PRESETS["imagenet"] else ("cifar", 32)
        images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, device=bench.device)
        try:
            took = seconds(lambda: corrupt(images, kind, 3, preset=preset, texture="own"), bench.device)  # noqa: B023
        except Exception as fault:  # one kind costs only itself
            bench.record(what="corruption", kind=kind, failure=f"{type(fault).__name__}: {fault}"[:300])
            continue
        bench.record(what="corruption", kind=kind, pixels=side, images_a_second=count / took)


def host(bench: Bench) -> None:
    """Record how many photographs a second are decoded and uploaded, and what a clean audit makes of it: images over
    seconds that a longer one has more than a shorter, so that imports and the page do not count."""
    count = 24 if bench.small else 1536
    folder = bench.folder / "photographs"
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (94, 125, 3), dtype=np.uint8)
    photograph = Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)
    held = io.BytesIO()
    photograph.save(held, "JPEG", quality=90)
    for place in range(count):
        path = folder / f"{place % 10}" / f"{place:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held.getvalue() + place.to_bytes(4, "little"))  # no two files are equal
    _record_decoding(bench, folder, count)
    network = _network("test_vit" if bench.small else "vit_tiny_patch16_224")
    options = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "attacks": "none", "setup_check": False, "progress": False}
    took = []
    for place, some in enumerate((count // 6, count // 6, count)):  # the first one warms up
        out, began = bench.folder / f"run-{place}", time.perf_counter()
        robustkit.audit({"net": network}, folder, out=out, limit=some, device=bench.device, say=print, **options)
        took.append(time.perf_counter() - began)
    if (more := took[2] - took[1]) > 0:  # a rehearsal's are within the noise
        rate = (count - count // 6) / more
        bench.record(what="audit", images_a_second=rate, images=count, seconds=round(took[2], 2))


def _record_decoding(bench: Bench, folder: Path, count: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from robustkit.common.environment import usual_workers
    from robustkit.common.preprocessing import Preprocessing
    from robustkit.data.images import to_pixels

    dataset, shown = open_dataset(folder), Preprocessing((224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9, "center")
    some = dataset.samples[: min(count, 512)]
    for workers in dict.fromkeys((1, 4, usual_workers())):
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(dataset.image, some[: 2 * workers]))
            began = time.perf_counter()
            pixels = list(pool.map(lambda sample: to_pixels(dataset.image(sample), shown, sample.id), some))
            took = time.perf_counter() - began
        bench.record(what="decode", workers=workers, images_a_second=len(some) / took)
    took = seconds(lambda: stack_on(pixels, torch.device(bench.device)), bench.device)
    bench.record(what="upload", images_a_second=len(some) / took)


class Heavy(nn.Module):
    """A network that needs a gibibyte an image on a device; in a rehearsal it says so from three images on."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        self.head, self.small = nn.Linear(3 * 32 * 32, 10), small

    def forward(self, images: Tensor) -> Tensor:
        if self.small and len(images) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        room = 1 if self.small else 1 << 28
        held = torch.zeros(len(images), room, device=images.device)
        logits: Tensor = self.head(images.flatten(1)) + held[:, :1]
        return logits


def memory(bench: Bench) -> None:
    """Record whether an audit continues if a batch does not fit, with the results of small batches."""
    count = 16 if bench.small else 256
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels, network, lines = torch.arange(count) % 10, Heavy(bench.small), list[str]()
    options = {"pixels": True, "attacks": "none", "setup_check": False, "progress": False, "device": bench.device}
    kept = []
    for size in (count, 2):
        out = bench.folder / f"{size}"
        run = robustkit.audit({"net": network}, (images, labels), out=out, batch_size=size, say=lines.append, **options)
        kept.append(run.table("net", "clean").to_pydict())
    halved = [line for line in lines if "out of memory" in line]
    same = kept[0]["prediction"] == kept[1]["prediction"]
    bench.record(what="halved", lines=halved, same_predictions=same, samples=len(kept[0]["prediction"]))
    if not (halved and same and len(kept[0]["prediction"]) == count):
        raise SystemExit(f"{len(halved)} lines on memory, predictions {'agree' if same else 'differ'}")
