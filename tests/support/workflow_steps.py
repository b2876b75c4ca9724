"""Run the shell steps of a GitHub action as a runner does, and the instructions of a Dockerfile without a daemon."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from places import ROOT

EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@dataclass
class Runner:
    """A job's folder, its files of GITHUB_*, and what it knows. done: exit status by the name of the step."""

    folder: Path
    inputs: Mapping[str, str]
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    done: dict[str, int] = field(default_factory=dict)
    said: str = ""
    system: str = "Linux"

    def run(self, only: tuple[str, ...]) -> Runner:
        """Run the steps of action.yml with these names, up to the first that fails."""
        action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
        given = {name: str(spec.get("default", "")) for name, spec in action["inputs"].items()} | dict(self.inputs)
        (self.folder / "work").mkdir(parents=True, exist_ok=True)
        for step in action["runs"]["steps"]:
            if step.get("name") in only:
                self.done[step["name"]] = self._shell(step, given)
                if self.done[step["name"]]:
                    break
        return self

    def _shell(self, step: dict[str, Any], given: Mapping[str, str]) -> int:
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {"github.action_path": str(ROOT), "runner.temp": str(self.folder), "runner.os": self.system}
        known |= {"github.event.pull_request.number": "7", "github.repository": "o/r"}
        files = {name: self.folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
        for path in files.values():
            path.write_text("")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("ROBUSTKIT", "PYTHON"))}
        environment |= {name: str(path) for name, path in files.items()} | {"GITHUB_ACTIONS": "true"}
        environment |= {"RUNNER_TEMP": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment |= {key: EXPRESSION.sub(lambda form: known[form[1]], value) for key, value in step["env"].items()}
        script = self.folder / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        assert step["shell"] == "bash"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            command, cwd=self.folder / "work", env=environment, capture_output=True, text=True, check=False
        )
        self.said += done.stdout + done.stderr
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text("utf-8")
        self.outputs |= dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text("utf-8").splitlines())
        return done.returncode


def installed(folder: Path) -> None:
    """Put this interpreter's robustkit where the step Install puts one."""
    command = folder / "robustkit" / "bin" / "robustkit"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {sys.executable} -m robustkit "$@"\n')
    command.chmod(0o755)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile and their arguments."""
    text = re.sub(r"(?m)^\s*#.*\n", "", path.read_text("utf-8")).replace("\\\n", " ")
    lines = (line.strip().partition(" ") for line in text.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, _, rest in lines]
