"""Weights that are fetched: without a network, one line soon, and the cache where it has them."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from robustkit.errors import ModelError
from robustkit.models import load, online, published_weights

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
        monkeypatch.setattr(online, "ANSWER", 0.3)
        yield proxy


@pytest.mark.parametrize(("spec", "arch"), [(f"timm:{NAME}", NAME), ("hf-hub:timm/nothing", "NAME")])
def test_without_a_network_there_is_one_line_at_once(mute: str, spec: str, arch: str) -> None:
    began = time.monotonic()
    with pytest.raises(ModelError) as error:
        load(spec)
    assert time.monotonic() - began < 3
    line = str(error.value)
    assert "\n" not in line and "https://huggingface.co gives no answer" in line
    assert f"give a local file with --arch {arch}" in line and "HF_HUB_CACHE" in line


def test_looking_up_a_name_that_hangs_is_not_waited_for(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(online, "WAIT", 0.2)
    monkeypatch.setattr(online, "_asked", lambda address: over.wait(20))
    began = time.monotonic()
    with pytest.raises(ModelError, match="gives no answer"):
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
        assert online.answers(f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert not online.answers(f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert online.hub() == "" and published_weights.held_weights(NAME) is None
