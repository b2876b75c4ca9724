"""The Dockerfile: what its image is like, and its RUN lines in a fresh folder and environment."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT
from workflow_steps import instructions

LINES = instructions(ROOT / "Dockerfile")


def context(folder: Path) -> None:
    """Copy what .dockerignore lets through, by its last rule that fits."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for top in ROOT.iterdir():
        kept = True
        for rule in rules:
            if fnmatch.fnmatch(top.name, rule.removeprefix("!")):
                kept = rule.startswith("!")
        if kept and top.is_dir():
            shutil.copytree(top, folder / top.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif kept:
            shutil.copy(top, folder / top.name)


def test_the_image_runs_robustkit_as_nobody_special() -> None:
    last = dict(LINES)
    assert json.loads(last["ENTRYPOINT"]) == ["robustkit"] and last["USER"] == "robustkit"
    assert dict(rest.split("=", 1) for word, rest in LINES if word == "ARG")["TORCH_INDEX"].endswith("/whl/cpu")
    runs = [rest for word, rest in LINES if word == "RUN"]
    assert all("--no-cache-dir" in run for run in runs if " install " in run)
    words = [word for word, _ in LINES]
    assert words.count("FROM") == 2 and "ADD" not in words
    # The source stays in the first stage; torch's layer comes before it.
    assert words.index("COPY") > next(
        place for place, line in enumerate(LINES) if "TORCH_INDEX" in line[1] and line[0] == "RUN"
    )


def test_the_context_is_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    context(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("attacks", "cam", "corruptions", "robustkit", "setup.py", "pyproject.toml", "README.md", "LICENSE")
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_run_lines_in_a_fresh_folder(tmp_path: Path) -> None:
    """Every RUN line by a shell, with /opt and /source in a folder of the test. No user is added to this machine."""
    python, added = shutil.which("python3"), tmp_path / "added"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "useradd").write_text(f'#!/bin/sh\necho "$@" > {added}\n')
    (tmp_path / "bin" / "python").symlink_to(str(python))
    (tmp_path / "bin" / "useradd").chmod(0o755)
    for name in ("source", "opt", "work"):
        (tmp_path / name).mkdir()
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment |= {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_"))}
    environment["TORCH_INDEX"] = "https://pypi.org/simple"  # the index that a test's machine can be trusted to reach
    place = Path("/")
    for word, rest in LINES:
        if word == "WORKDIR":
            place = Path(rest)
        elif (word, rest) == ("COPY", ". ."):
            context(tmp_path / place.relative_to("/"))
        elif word == "RUN":
            script = rest.replace("/opt/robustkit", f"{tmp_path}/opt/robustkit")
            subprocess.run(
                ["sh", "-ec", script], cwd=tmp_path / place.relative_to("/"), env=environment, check=True, timeout=1500
            )
    assert added.read_text().split()[-1] == "robustkit"
    shutil.rmtree(tmp_path / "source")  # the second stage lacks it
    command = [f"{tmp_path}/opt/robustkit/bin/robustkit", "audit", "zoo:shapes-vit-quest", "--data-dir"]
    words = [
        "embedded:shapes",
        "--limit",
        "10",
        "--attacks",
        "fgsm",
        "--corruptions",
        "frost(severity=1)",
        "--out",
        "run",
    ]
    done = subprocess.run([*command, *words], cwd=tmp_path / "work", env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "frost(texture=own)" in done.stdout + done.stderr, done.stderr
