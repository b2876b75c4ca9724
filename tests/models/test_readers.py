"""Readers of checkpoints: which one a spec or a folder is of, what it takes, and what stays without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import robustkit
from robustkit.common.plugins import load_plugin, plugin_session
from robustkit.errors import CheckpointError, ModelError
from robustkit.models.specs import EVERY_READER, find, reader_options, reader_specs
from robustkit.pipeline.manifest import describe, used_plugins

PLUGIN = """
from dataclasses import replace
from torch import nn
from robustkit.models.in_memory import classifier_of
from robustkit.models.specs import CheckpointReader

def load(source, spec, options, features):
    made = classifier_of(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), source.name, options)
    made.identity = replace(made.identity, spec=spec, path=source.path, notes=(f"features: {features}",))
    return made

PLUGINS = {"readers": {
    "box": CheckpointReader(load, options=frozenset({"custom_ops"})),
    "crate": CheckpointReader(load, files=("crate.json", "crate.bin")),
    "hf": CheckpointReader(load),
}}
"""
PIXELS = {"pixels": True, "img_size": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of a reader that a file has, which is known while the test runs."""
    (tmp_path / "plugin.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "crate").mkdir()
    (tmp_path / "crate" / "crate.json").write_text("{}")
    with plugin_session():
        load_plugin(tmp_path / "plugin.py")
        yield tmp_path / "crate"


@pytest.mark.parametrize("form", ["box:some/net.x", "local-dir:{}", "hf:{}"])
@pytest.mark.parametrize("features", [False, True])
def test_a_spec_or_a_folder_finds_its_reader(folder: Path, form: str, features: bool) -> None:
    spec = form.format(folder)
    made = robustkit.load(spec, features=features, **PIXELS)
    assert isinstance(made.network, nn.Sequential) and made.identity.num_classes == 5
    assert made.identity.notes == (f"features: {features}",)
    (entry,) = used_plugins([], [describe(made.identity, made.identity.preprocessing)], "classification")
    assert (entry.group, entry.name) == ("readers", "box" if form.startswith("box") else "crate")
    assert entry.checkpoints == (made.identity.name,)


def test_a_folder_with_a_config_is_not_a_readers(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no weights next to config\.json"):
        find(f"hf:{folder}")


def test_a_reader_takes_what_it_says(folder: Path) -> None:
    assert reader_options("box:x") == {"custom_ops"} and reader_options("box") is None
    assert reader_options("crate:x") is None and reader_options("zoo:x") is None and "hf" not in EVERY_READER
    assert reader_specs("custom_ops")[-1:] == ["box:FILE"] == reader_specs()[-1:]
    assert robustkit.load("box:x", custom_ops="ops.so", **PIXELS).identity.num_classes == 5
    with pytest.raises(ModelError, match="--logits 1 does not apply to box:x: its only output is taken"):
        robustkit.load("box:x", output=1, **PIXELS)
    with pytest.raises(ModelError, match=r"--custom-ops ops\.so does not apply to crate:x: expected .*box:FILE; leave"):
        robustkit.load("crate:x", custom_ops="ops.so")
    for option in ("use_ema", "allow_partial"):
        with pytest.raises(ModelError, match="does not apply to box:x, whose weights must all fit"):
            robustkit.load("box:x", **{option: True}, **PIXELS)


def test_what_no_reader_reads_is_refused_with_all_that_are(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"unknown kind .*'crate'; .* local-dir:PATH.* or box:FILE"):
        find("crate:x")


def test_without_readers_the_rest_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(EVERY_READER, "entries", {})
    with pytest.raises(CheckpointError, match=r"kind of checkpoint 'onnx'.*, hf-hub:ORG/NAME or local-dir:PATH$"):
        find("onnx:net.onnx")
    with pytest.raises(ModelError, match="expected a graph, which this installation reads none of; leave it out"):
        robustkit.load("zoo:shapes-vit-quest", custom_ops="ops.so")
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no config\.json in it; expected the layout of timm or transformers"):
        find(f"hf:{tmp_path}")
    assert robustkit.load("zoo:shapes-vit-quest").identity.num_classes == 10
