"""Streams that are closed or lack letters, and too little memory to begin with."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")
KIT = f"{sys.executable} -m robustkit"


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    words = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


def test_a_reader_that_leaves_and_streams_that_are_closed() -> None:
    for line in ("list models | true", "list models | head -1", "--help | true"):
        status, out, error = shell(f"{KIT} {line}")
        assert (status, error) == (141, "") or (status == 0 and "head" in line and len(out.splitlines()) == 1), line
    assert shell(f"{KIT} list attacks >&-") == (0, "", "")
    assert shell(f"{KIT} list nothing 2>&-") == (2, "", "")
    assert shell(f"{KIT} list nothing >&-")[2].startswith("error: unknown kind 'nothing'")
    if Path("/dev/full").exists():
        status, _, error = shell(f"{KIT} list attacks > /dev/full")
        assert status == 2 and error == "error: OSError: [Errno 28] No space left on device; see --debug\n"


def test_letters_that_the_terminal_lacks() -> None:
    status, out, error = shell(f"{KIT} list datasets", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (status, error) == (0, "") and out.isascii() and "\\u2026" in out  # an ellipsis
    status, _, error = shell(f"{KIT} list 'ü…'", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert status == 2 and error.startswith("error: unknown kind '") and len(error.splitlines()) == 1


def test_too_little_memory_to_begin_with_is_one_line() -> None:
    status, out, error = shell(f"ulimit -v 600000; {KIT} inspect zoo:shapes-vit-quest")
    assert (status, out) == (2, "") and len(error.splitlines()) == 1
    assert error.startswith("error: too little memory (") and "raise the limit (ulimit -v)" in error
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # here it was not lowered
