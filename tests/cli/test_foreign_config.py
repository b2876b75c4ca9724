"""A `--config` of someone else: it runs no code and writes nowhere else unless it is trusted."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_audit
from click.testing import CliRunner

from robustkit.cli.app import cli

pytestmark = pytest.mark.usefixtures("one_thread")


def said_of(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    monkeypatch.chdir(place)
    fault = CliRunner().invoke(cli, words, standalone_mode=False, env=environment).exception
    return "" if fault is None else str(fault)


def test_a_config_runs_no_code_and_writes_nowhere_else_unless_it_is_trusted(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n{small_audit.FACTORY}")
    words = ["inspect", str(place / "net.pth"), "--config", "c.toml"]
    config = tmp_path / "c.toml"
    config.write_text("arch = 'evil.py:build'\n")
    expected = (
        "--config c.toml names code to run (arch = 'evil.py:build'); give --arch yourself, or --trust-config if you "
        "trust the file"
    )
    assert said_of(words, tmp_path, monkeypatch) == expected
    config.write_text("[inspect]\narch = 'evil:build'\n")
    assert "names code to run (arch = 'evil:build')" in said_of(words, tmp_path, monkeypatch)
    config.write_text("arch = 'evil.py:build'\ntrust_config = true\n")
    assert "unknown option 'trust_config'" in said_of(words, tmp_path, monkeypatch)
    assert not (tmp_path / "ran").exists()
    config.write_text("arch = 'evil.py:build'\n")
    for trusted in (["--trust-config", *words[2:]], [*words[2:], "--trust-config"]):
        assert said_of([*words[:2], *trusted], tmp_path, monkeypatch) == "" and (tmp_path / "ran").exists()
        (tmp_path / "ran").rmdir()
    own = f"{place / 'net.py'}:build"  # what the person says outweighs the file, which then names no code
    assert said_of([*words, "--arch", own], tmp_path, monkeypatch) == ""
    assert said_of(words, tmp_path, monkeypatch, ROBUSTKIT_ARCH=own) == ""
    config.write_text("arch = 'resnet18'\n")
    assert "does not fit" in said_of(words, tmp_path, monkeypatch)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        (
            "out = '/etc/x'",
            ["audit", "x", "--data-dir", "y"],
            "writes outside the folder where you are (out = '/etc/x')",
        ),
        ("out = '../x'", ["demo"], "writes outside the folder where you are (out = '../x'); give --out yourself"),
        ("out = 'link/x'", ["demo"], "writes outside the folder where you are (out = 'link/x')"),
        ("policy = '../x.toml'", ["check", "run"], "is not a run folder"),
        ("policy = '../x.toml'", ["check", "run", "--init"], "writes outside the folder where you are (policy = '../x"),
        (
            "junit = '/x.xml'",
            ["check", "run"],
            "writes outside the folder where you are (junit = '/x.xml'); give --junit",
        ),
        ("attestation = '../x'", ["check", "run"], "writes outside the folder where you are (attestation = '../x')"),
        ("json-file = '~/x'", ["check", "run"], "is not a run folder"),
        ("write = '/x'", ["corrupt"], "writes outside the folder where you are (write = '/x'); give --write yourself"),
        ("log = ['mlflow:http://x']", ["report", "run"], "unknown option 'log'"),
        (
            "logs = ['mlflow:http://x']",
            ["report", "run"],
            "sends results to a server (logs = 'mlflow:http://x'); give --log",
        ),
        (
            "to = 'x'",
            ["export", "run", "--format", "mlflow"],
            "sends results to a server (to = 'x'); give --to yourself",
        ),
        ("format = 'wandb'", ["export", "run"], "sends results to a server (format = 'wandb'); give --format yourself"),
    ],
)
def test_a_config_chooses_no_place_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str], message: str
) -> None:
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "c.toml").write_text(line + "\n")
    assert message in said_of([*words, "--config", "c.toml"], tmp_path, monkeypatch)
