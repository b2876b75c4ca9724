"""Where the processor time of a short audit goes: imports, units of work, summary, page; and how often each is made.

    python -m scripts.bench.short_audit [--limit 60]

Two embedded ViTs, eight conditions, in one process; seconds are user and system time of this process, which other jobs
on the machine hardly change. Compare with the commit before by running both in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=60)
    options = parser.parse_args()
    spent: dict[str, float] = {}
    calls: dict[str, int] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - began
                calls[name] = calls.get(name, 0) + 1

        return around

    began = time.process_time()
    from robustkit.pipeline import scheduler
    from robustkit.pipeline.audit import audit
    from robustkit.report import page, refresh

    spent["imports"], calls["imports"] = time.process_time() - began, 1
    patches = [
        mock.patch.object(scheduler, "compute", timed("units of work", scheduler.compute)),
        mock.patch.object(refresh, "survey", timed("summary", refresh.survey)),
        mock.patch.object(page, "write_report", timed("page", page.write_report)),
    ]
    with tempfile.TemporaryDirectory() as folder, patches[0], patches[1], patches[2]:
        audit(
            ["zoo:shapes-vit-standard", "zoo:shapes-vit-quest"],
            data_dir="embedded:shapes",
            attacks="fgsm,pgd",
            eps="1/255,4/255",
            corruptions="gaussian_noise(severity=3),defocus_blur(severity=3),jpeg_compression(severity=3)",
            limit=options.limit,
            device="cpu",
            out=Path(folder) / "run",
        )
    total = time.process_time()
    for name, seconds in (spent | {"the rest": total - sum(spent.values())}).items():
        print(f"{name}: {seconds:.1f} s, {seconds / total:.0%}" + (f", {calls[name]} times" if name in calls else ""))
    print(f"all: {total:.1f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
