"""Is this machine fit to be trusted with numbers? Versions, device, and a few known answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One check: its name, whether all is well, and what was found (with the remedy where it is not)."""

    name: str
    fine: bool
    text: str


def examine() -> list[Finding]:
    """All checks; one that breaks is a finding, not a crash."""
    findings = []
    for check in (_distribution, _versions, _device, _frost, _draws, _fgsm):
        try:
            findings.append(check())
        except Exception as fault:
            findings.append(Finding(check.__name__.strip("_"), False, f"{type(fault).__name__}: {fault}"))
    return findings


def _distribution() -> Finding:
    """PyPI's `robustkit` is another project; installed beside ours, the two overwrite each other's files."""
    here = Path(__file__).parent
    try:
        other = metadata.distribution("robustkit")
    except metadata.PackageNotFoundError:
        return Finding("distribution", True, f"robustkit-audit {metadata.version('robustkit-audit')} at {here}")
    remedy = "pip uninstall robustkit robustkit-audit, then install this one again from its source"
    return Finding("distribution", False, f"PyPI's other project robustkit {other.version} is installed too: {remedy}")


def _versions() -> Finding:
    import cv2

    names = ("torch", "torchvision", "timm", "safetensors", "numpy", "pillow", "pyarrow", "pandas")
    found = [f"{name} {metadata.version(name)}" for name in names]
    return Finding("versions", True, ", ".join([*found, f"opencv {cv2.__version__}"]))


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("device", True, f"CPU, {torch.get_num_threads()} threads; no CUDA device")
    total = torch.cuda.get_device_properties(0).total_memory
    return Finding("device", True, f"{torch.cuda.get_device_name(0)}, {total / 2**30:.0f} GiB")


def _frost() -> Finding:
    """Not a fault: only frost needs its photographs."""
    from corruptions import find_photographs

    try:
        return Finding("frost", True, f"its photographs are in {find_photographs()[0].parent}")
    except FileNotFoundError as fault:
        return Finding("frost", True, str(fault))


def _draws() -> Finding:
    """Three numbers of a known stream, on every device that is there."""
    import torch

    from .randomness import SampleRng

    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        got = SampleRng.of(["sample"], seed=0, condition="clean", device=device).uniform((3,), "doctor")[0].tolist()
        if got != DRAWS:
            return Finding("draws", False, f"{device} gives {got} and not {DRAWS}; runs from here cannot be compared")
    return Finding("draws", True, f"stateless random numbers are right on {', '.join(devices)}")


def _fgsm() -> Finding:
    """A linear model's FGSM step by hand: x + eps sign(w_wrong - w_true), clipped to [0, 1]."""
    import torch

    from attacks import FGSM, ThreatModel

    weight = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]])
    model: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.flatten(1) @ weight.T  # noqa: E731
    images = torch.tensor([[[[0.5]], [[0.5]], [[0.01]]]])
    found = FGSM(ThreatModel(eps=0.1))(model, images, torch.tensor([0])).flatten().tolist()
    fine = all(abs(a - b) < 1e-6 for a, b in zip(found, (0.4, 0.6, 0.0), strict=True))
    return Finding("fgsm", fine, "the step on a linear model is right" if fine else f"{found} and not [0.4, 0.6, 0.0]")


DRAWS = [0.5364676713943481, 0.8541311025619507, 0.9820759892463684]
"""The first three uniform draws of sample 'sample', seed 0, condition 'clean', purpose 'doctor'."""
