"""Weights that are fetched: without a network, one line soon, and the cache where it has them."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from robustkit.cli.app import cli
from robustkit.common.environment import OFFLINE
from robustkit.errors import ModelError, RunError
from robustkit.models import architecture, load, specs
from robustkit.slices.exports.formats import MLflow

NAME = "test_vit.r160_in1k"


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A proxy that takes connections and never answers, as what lies behind some firewalls, and an empty cache."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(specs, "ANSWER", 0.3)
        yield proxy


@pytest.mark.parametrize(("spec", "arch"), [(f"timm:{NAME}", NAME), ("hf-hub:timm/nothing", "NAME")])
def test_without_a_network_there_is_one_line_at_once(mute: str, spec: str, arch: str) -> None:
    began = time.monotonic()
    with pytest.raises(ModelError) as error:
        load(spec)
    assert time.monotonic() - began < 3
    line = str(error.value)
    assert "\n" not in line and "https://huggingface.co does not respond" in line
    assert f"give a local file with --arch {arch}" in line and "HF_HUB_CACHE" in line


def test_looking_up_a_name_that_hangs_is_not_waited_for(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(specs, "WAIT", 0.2)
    monkeypatch.setattr(specs, "_asked", lambda address: over.wait(20))
    began = time.monotonic()
    with pytest.raises(ModelError, match="does not respond"):
        load(f"timm:{NAME}")
    assert time.monotonic() - began < 3
    over.set()


def test_what_the_cache_holds_is_used(mute: str, tmp_path: Path) -> None:
    net = timm.create_model(NAME)
    commit = "a" * 40
    place = tmp_path / "hub" / f"models--timm--{NAME}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots" / commit).mkdir(parents=True)
    save_file(net.state_dict(), place / "snapshots" / commit / "model.safetensors")
    ours = load(f"timm:{NAME}")
    torch.testing.assert_close(dict(ours.network.state_dict()), dict(net.state_dict()), rtol=0, atol=0)
    assert ours.identity.weights == "pretrained" and ours.identity.preprocessing.input_size == (160, 160)


def test_any_answer_is_one_and_being_offline_on_purpose_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert specs.is_reachable(f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert not specs.is_reachable(f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert specs.hub_address() == "" and architecture.held_weights(NAME) is None
    monkeypatch.setattr(architecture, "is_reachable", lambda address: pytest.fail(address))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: "nowhere")
    with pytest.raises(ModelError, match=r"https://github.com/\S+ is not asked offline; give a local file"):
        architecture.held_weights("gcvit_xxtiny.in1k")  # whose weights are not on the Hub


def test_offline_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "WANDB_MODE",
        "MLFLOW_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        OFFLINE,
    ):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for words, address in (([], huggingface_hub.constants.ENDPOINT), (["--offline"], "")):
        assert CliRunner().invoke(cli, [*words, "list", "presets"]).exit_code == 0
        assert specs.hub_address() == address
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
    assert (os.environ["WANDB_MODE"], os.environ["MLFLOW_DISABLE_TELEMETRY"]) == ("offline", "true")
    for address in ("http://tracker", "HTTPS://tracker", "postgresql://u:p@host/db", "databricks"):
        with pytest.raises(RunError, match=f"{address} is a server, and --offline asks none"):
            MLflow(f"mlflow:{address}", address).start("run", tmp_path)
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail("asked", pytrace=False))
    for address in ("sqlite:///x.db", "file:///x", "x/mlruns", ""):
        with pytest.raises(pytest.fail.Exception, match="asked"):
            MLflow(f"mlflow:{address}", address).start("run", tmp_path)


class Hub(BaseHTTPRequestHandler):
    """A Hub with one repository, me/tiny, whose files lie in `folder`; `asked` are the paths that were asked for."""

    folder: Path
    asked: list[str]
    commit = "c" * 40

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/me/tiny"):
            files = [(file.name, file.stat().st_size) for file in self.folder.iterdir()]
            tree = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in files]
            facts = {"id": "me/tiny", "sha": self.commit, "siblings": [{"rfilename": name} for name, _ in files]}
            self.send(json.dumps(tree if "/tree/" in path else facts).encode(), body)
        elif path.startswith("/me/tiny/resolve/") and (file := self.folder / path.rpartition("/")[2]).is_file():
            self.send(file.read_bytes(), body)
        else:
            self.send(b"", body, 404 if path != "/" else 200)

    def send(self, content: bytes, body: bool, status: int = 200) -> None:
        self.send_response(status)
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": self.commit}
        if status == 404:
            headers["X-Error-Code"] = "RepoNotFound"
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


LOADS = """
import sys, torch, robustkit
from robustkit.errors import RobustkitError
for spec in sys.argv[2:]:
    try:
        model = robustkit.load(spec)
    except RobustkitError as error:
        print("error:", error)
    else:
        print(model.identity.name, model.identity.sha256)
        print(model(torch.full((1, 3, 32, 32), 0.25)).tolist() == torch.load(sys.argv[1]).tolist())
"""


@pytest.mark.slow
def test_the_hub_is_asked_for_what_is_read_and_for_nothing_else(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    small = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 32}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=32, patch_size=8))
    folder = tmp_path / "tiny"
    model.eval().save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    for unwanted in ("modeling_tiny.py", "training_args.bin", "optimizer.pt", "README.md"):
        (folder / unwanted).write_text("not to be read")
    ours = load(f"hf:{folder}")
    torch.save(ours(torch.full((1, 3, 32, 32), 0.25)), tmp_path / "logits.pt")
    handler = type("Tiny", (Hub,), {"folder": folder, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        no_proxy = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
        environment = os.environ | no_proxy | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")}
        specs = ("hf-hub:me/tiny", "hf-hub:me/tiny@main", "hf-hub:me/absent")
        command = [sys.executable, "-c", LOADS, str(tmp_path / "logits.pt"), *specs]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        server.shutdown()
    lines = done.stdout.splitlines()
    assert lines[:4] == [f"tiny {ours.identity.sha256}", "True"] * 2, done.stderr[-2000:]
    assert lines[4].startswith("error: hf-hub:me/absent could not be fetched (") and len(lines) == 5
    fetched = {path.rpartition("/")[2] for path in handler.asked if "/resolve/" in path}
    assert fetched == {"config.json", "preprocessor_config.json", "model.safetensors"}
