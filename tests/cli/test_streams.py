"""Streams that are closed or lack letters, and too little memory to begin with."""

from __future__ import annotations

import io
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gate_runs import make, right
from places import ROOT
from processes import called

from robustkit.cli import streams
from robustkit.display.text import no_commands

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
    assert shell(f"{KIT} list models >&-") == (0, "", "")
    assert shell(f"{KIT} list nothing 2>&-") == (2, "", "")
    assert shell(f"{KIT} list nothing >&-")[2].startswith("error: unknown kind 'nothing'")
    if Path("/dev/full").exists():
        status, _, error = shell(f"{KIT} list models > /dev/full")
        assert status == 2 and error == "error: OSError: [Errno 28] No space left on device; see --debug\n"


def test_letters_that_the_terminal_lacks() -> None:
    status, out, error = shell(f"{KIT} list datasets", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (status, error) == (0, "") and out.isascii() and "\\u2026" in out  # an ellipsis
    status, _, error = shell(f"{KIT} list 'ü…'", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert status == 2 and error.startswith("error: unknown kind '") and len(error.splitlines()) == 1


def test_too_little_memory_to_begin_with_is_one_line() -> None:
    status, out, error = shell(f"ulimit -v 600000; {KIT} inspect zoo:shapes-vit-quest")
    assert (status, out) == (2, "") and len(error.splitlines()) == 1
    assert error.startswith("error: not enough memory (") and "raise the limit (ulimit -v)" in error
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY  # here it was not lowered


def test_torchvision_of_another_build_is_one_line(tmp_path: Path) -> None:
    """As where torch is the build for CPUs, and torchvision PyPI's."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    status, out, error = shell(f"{KIT} inspect zoo:shapes-vit-quest", PYTHONPATH=f"{tmp_path}:{ROOT}")
    said = "RuntimeError: operator torchvision::nms does not exist"
    assert (status, out) == (2, "")
    assert error == f"error: {said}; install torch and torchvision again, both from the same index\n"


@pytest.mark.parametrize("version", ["3.9.0", "3.10", "4.0+git", "3.8.1", ""])
def test_as_a_command_ends_garbage_is_collected_where_triton_would_report_leaks(version: str) -> None:
    script = f"""
import gc, os, sys
from robustkit.cli import main
class Cycle:
    def __init__(self): self.own = self
    def __del__(self): os.write(1, b"collected")
sys.modules["triton"] = Cycle
Cycle.__version__ = {version!r}
sys.argv = ["robustkit", "--version"]
Cycle()
gc.freeze()
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("collected") == (version not in ("3.8.1", ""))


def obeyed(text: str) -> list[str]:
    """The lines that GitHub's runner takes for a command: `::` where one begins, `##[` anywhere, then a `]`."""
    lines = re.split(r"\r\n|\r|\n", text)
    return [line for line in lines if line.strip().startswith("::") or re.search(r"##\[[^\]]*\]", line)]


HOSTILE = (
    *("##[error]boo", "a ##[group]b", "::error::boo", " \t::error::boo", "\u3000::error::x", "a\r::stop-commands::x"),
    *("a\n\n  ::add-mask::x", "###[warning]", "##[##[error]", ":::error::", "x: y ::z ##[debug"),
)


def test_no_text_is_a_command_of_a_workflow_however_it_is_cut() -> None:
    for text in (*HOSTILE, "\n".join(HOSTILE)):
        assert (len(text) < 40 and (text.endswith("debug") or obeyed(text))) or "\n" in text
        for one in range(len(text)):
            for two in range(one, min(one + 4, len(text))):
                file = io.StringIO()
                stream = streams.Inert(file)
                stream.writelines([text[:one], "", text[one:two], text[two:]])
                said = file.getvalue()
                assert not obeyed(said), (text, one, two)
                assert said.replace(" ", "") == text.replace(" ", "")
    for text in ("a: b\nc::d # [x] ## x", "robustkit.errors::x", "https://x"):
        assert no_commands(text) == text


def test_what_is_printed_in_a_workflow_is_obeyed_by_nobody(tmp_path: Path) -> None:
    """Of names in a run, of arguments, and in one piece or in an encoding that is written past the stream."""
    make(tmp_path / "run", {"##[error]boo": {"clean": right(5, 10)}, "::error::boo": {"clean": right(6, 10)}})
    (tmp_path / "p.toml").write_text("[[rule]]\nrequire = 'top1 under clean >= 0.9'\nname = '##[group]a'\n")
    check = ["check", f"{tmp_path}/run", "--policy", f"{tmp_path}/p.toml", "--details"]
    in_ascii = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for words in (check, ["compare", f"{tmp_path}/run"], ["list", "##[error]x"], ["list", "::error::x"]):
        said = [called(words, GITHUB_ACTIONS="true")]
        if words is check or "##[error]x" in words:
            said.append(shell(f"{KIT} {shlex.join(words)}", GITHUB_ACTIONS="true", **in_ascii))
        for _, out, error in said:
            ours = [text for text in out.splitlines() if text.startswith("::error file=")]
            assert len(ours) == 2 * (words is check) and all("## [group]a" in text for text in ours)
            assert obeyed(out) == ours and not obeyed(error), words
            assert "boo" in out or "[error]x" in error or "error::x" in error
    assert obeyed(called(check)[1])  # elsewhere nothing is changed


def test_a_date_that_is_none_is_one_line() -> None:
    """Libraries read it when they are loaded."""
    for value in ("x", "", "1.5", "-1", "1" * 13, "²"):
        asked = called(["list", "models"], SOURCE_DATE_EPOCH=value)
        status, out, error = asked if value != "x" else shell(f"{KIT} list models", SOURCE_DATE_EPOCH=value)
        assert (status, out) == (2, "") and error.startswith(f"error: SOURCE_DATE_EPOCH is {value!r}; expected whole")
        assert error.count("\n") == 1
