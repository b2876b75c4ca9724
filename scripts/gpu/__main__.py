"""Measure everything that is claimed of GPUs, most important first, each step in a process and a time of its own.

    python -m scripts.gpu [--minutes 6] [--out DIR] [--only truth,rates] [--wheels DIR]
    python -m scripts.gpu --rehearse                    # the same on a CPU, in tiny sizes
    python -m scripts.gpu --page DIR/results.jsonl      # its page, and which defaults follow
    python -m scripts.gpu --make-truth                  # the CPU's records that the device is compared with

Needs a checkout and what is installed: nothing is fetched. Each result is a line of JSON in DIR/results.jsonl, on disk
as soon as it is measured; DIR/STEP.log is what a step printed. A step that hangs is killed, one that fails costs only
itself. The exit status is 1 where a step did not end well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .steps import STEPS, Bench, Step, append, carry_out

ROOT = Path(__file__).parents[2]
LEAST = 5.0  # seconds, under which no step is begun


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    if options.page is not None:
        from .page import write_page

        write_page(options.page, options.into)
        return 0
    if options.make_truth:
        from .truth import make_truth

        make_truth()
        return 0
    if options.step:
        device = options.device or ("cpu" if options.rehearse else "cuda")
        carry_out(Bench(options.out, options.step, device, options.rehearse, time.monotonic() + options.seconds))
        return 0
    return run_steps(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="of all steps together")
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--only", default="", help=f"steps, by commas: {', '.join(STEPS)}")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels to install first, for packages that lack")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes; on the CPU without --device")
    parser.add_argument("--device", help="cuda, or cpu in a rehearsal")
    parser.add_argument("--page", type=Path, help="results.jsonl of an earlier run")
    parser.add_argument("--into", type=Path, help="the page whose section is written; else it is printed")
    parser.add_argument("--make-truth", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3600.0, help=argparse.SUPPRESS)
    return parser


def run_steps(options: argparse.Namespace) -> int:
    """Run each step as a process within what time is left; return 1 where one did not end well."""
    asked = [name for name in options.only.split(",") if name] or list(STEPS)
    if odd := [name for name in asked if name not in STEPS]:
        raise SystemExit(f"--only {odd[0]}: expected some of {', '.join(STEPS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    lines, ends, well = options.out / "results.jsonl", time.monotonic() + 60 * options.minutes, True
    if (before := lines).exists():  # of an earlier try, which is kept
        before.rename(options.out / f"results-{int(lines.stat().st_mtime)}.jsonl")
    append(lines, {"step": "run", "what": "begun", "rehearsal": options.rehearse, "minutes": options.minutes})
    append(lines, {"step": "install", "status": _install(options.wheels, options.out)})
    for name in asked:
        step = STEPS[name]
        left = ends - time.monotonic()
        if left < LEAST:
            append(lines, {"step": name, "status": "skipped", "why": f"{left:.0f} s were left"})
            well = False
            continue
        status = _run(name, step, min(step.seconds * (options.minutes / 6), left), options)
        append(lines, {"step": name, **status})
        well = well and status["status"] == "ok"
        print(f"{name}: {status['status']}, {status['seconds']} s {status['why']}".rstrip(), flush=True)
    return 0 if well else 1


def _run(name: str, step: Step, seconds: float, options: argparse.Namespace) -> dict[str, object]:
    """Run one step; return its status: ok, failed, or hung where it was killed at its limit."""
    words = [sys.executable, "-m", "scripts.gpu", "--step", name, "--out", str(options.out), "--seconds", f"{seconds}"]
    words += ["--rehearse"] * options.rehearse + (["--device", options.device] if options.device else [])
    log, began = options.out / f"{name}.log", time.monotonic()
    paths = [str((options.out / "site").resolve()), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as printed:
        process = subprocess.Popen(words, stdout=printed, stderr=printed, start_new_session=True, env=environment)
        try:
            status = "ok" if process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "hung"
        finally:  # what the step started, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    printed_lines = log.read_text("utf-8", "replace").strip().splitlines()
    why = "" if status == "ok" else f"killed after {seconds:.0f} s" if status == "hung" else (printed_lines or [""])[-1]
    return {"status": status, "seconds": round(time.monotonic() - began, 1), "why": why[:500]}


def _install(wheels: Path | None, out: Path) -> str:
    """Put wheels, and the metadata of the checkout, into DIR/site, first on the path of each step."""
    site = out / "site"
    site.mkdir(exist_ok=True)
    given = [str(path.resolve()) for path in sorted(wheels.glob("*.whl"))] if wheels else []
    pip = ["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
    described = ["setup.py", "-q", "egg_info", "--egg-base", str(site.resolve())]
    for words, where in ((pip + given, None), (described, ROOT)) if given else ((described, ROOT),):
        done = subprocess.run(
            [sys.executable, *words], cwd=where, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            return done.stderr[-500:]
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
