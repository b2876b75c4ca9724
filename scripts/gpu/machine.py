"""What is there: versions, device, memory, packages that lack; and what doctor says about it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path

from .steps import Bench

NEEDED = ("torch", "timm", "numpy", "pillow", "scipy", "pyarrow", "pandas", "opencv-python-headless", "scikit-image")


def describe(bench: Bench) -> None:
    """Record versions, requirements that are missing, and what the device says about itself."""
    bench.record(what="versions", python=platform.python_version(), **{name: _version(name) for name in NEEDED})
    bench.record(what="missing", packages=missing())
    bench.record(what="host", cpus=os.cpu_count(), disk_gib=round(shutil.disk_usage(bench.out).free / 2**30, 1))
    import torch

    if bench.device == "cpu":
        bench.record(what="device", name="cpu", threads=torch.get_num_threads())
        return
    seen = torch.cuda.get_device_properties(0)
    bench.record(
        what="device",
        name=torch.cuda.get_device_name(0),
        memory_gib=round(seen.total_memory / 2**30, 1),
        capability=".".join(map(str, torch.cuda.get_device_capability(0))),
        cuda=torch.version.cuda,
    )
    (torch.ones(2, device="cuda") + 1).sum().item()
    bench.record(what="first sum", ok=True)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def missing() -> list[str]:
    """Return the distributions that setup.py requires and that are not installed."""
    text = (Path(__file__).parents[2] / "setup.py").read_text("utf-8")
    required = re.search(r"install_requires=\[(.*?)\n    \]", text, re.DOTALL)
    assert required is not None
    names = re.findall(r'"([A-Za-z0-9_.-]+)[>=<]', required[1])
    return [name for name in names if name != "tomli" and not _version(name)]


def examine(bench: Bench) -> None:
    """Record each check of doctor; raise where one fails."""
    from robustkit.slices.doctor.command import examine_machine as checks

    found = checks()
    for check in found:
        bench.record(what="check", name=check.name, state=check.state, text=check.text)
    if failed := [check.name for check in found if not check.fine]:
        raise SystemExit(f"failed: {', '.join(failed)}")
