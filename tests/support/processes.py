"""Commands in this process, an audit by two processes, and all that it leaves."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import small_audit

CONDITIONS = ["--attacks", "fgsm,pgd(steps=3),autoattack(steps=3,targets=1,queries=20)", "--eps", "8/255"]

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def called(words: list[str], **environment: str) -> tuple[int, str, str]:
    """Run `robustkit WORD...` in this process, without the imports of a new one; return status, output and errors."""
    from robustkit.cli.app import main

    status, out, errors = 0, io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["robustkit", *words]),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as left:
            status = int(left.code or 0)
    return status, out.getvalue(), errors.getvalue()


def torchrun(place: Path, out: Path, *extra: str) -> list[str]:
    words = small_audit.command(place, out, "--shard-size", "4", *CONDITIONS, *extra)
    assert words[1:3] == ["-m", "robustkit"]
    return [*LAUNCHER, *words[1:]]


def in_two(words: list[str]) -> list[str]:
    """Return the command that runs `robustkit WORD...` in two processes that find each other as under torchrun."""
    return [sys.executable, str(Path(__file__).with_name("two_processes.py")), *words]


def torchrun_on_stand_in(place: Path, out: Path, device: str, *extra: str) -> list[str]:
    """Return the same on two stand-in CUDA devices, in a process each."""
    words = [*small_audit.command(place, out, "--shard-size", "4", *CONDITIONS)[3:], "--device", device, *extra]
    return [*LAUNCHER, str(Path(__file__).with_name("on_stand_in.py")), *words]


def everything(run: Path) -> dict[str, bytes]:
    kept = {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "evidence").rglob("*.json"))}
    return small_audit.files(run) | kept
