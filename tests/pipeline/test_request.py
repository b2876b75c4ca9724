"""What a run is asked for: the same from Python and from the command line, and refused in one place."""

from __future__ import annotations

import inspect
import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from processes import called
from small_audit import audit, command, furnish

import robustkit
from robustkit.errors import ProtocolError
from robustkit.evaluations.corruptions.condition import expand
from robustkit.pipeline import audit as audit_module
from robustkit.pipeline.presets import OPTIONS, preset_of, spelled_out
from robustkit.pipeline.request import ClassificationRequest, Request, SegmentationRequest
from robustkit.pipeline.series import SeriesRequest
from robustkit.pipeline.text import TextRequest

OF_A_CALL = {"progress", "say"}
NO_OPTIONS = ({}, None)
"""What stands for no further options of a model or of data."""


@pytest.mark.parametrize(
    ("function", "request_of"), [(robustkit.audit, ClassificationRequest), (robustkit.segment, SegmentationRequest)]
)
def test_a_request_has_the_arguments_and_the_defaults_of_its_function(function: Any, request_of: type[Request]) -> None:
    given = {
        name: NO_OPTIONS if name in ("model", "data") else parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in OF_A_CALL
    }
    held = {
        field.name: NO_OPTIONS
        if field.default_factory is not MISSING
        else inspect.Parameter.empty
        if field.default is MISSING
        else field.default
        for field in fields(request_of)
    }
    assert held == given
    assert set(request_of.kept) <= held.keys()


@pytest.mark.parametrize(("function", "request_of"), [(robustkit.series, SeriesRequest), (robustkit.text, TextRequest)])
def test_calls_beyond_images_hand_every_argument_on(function: Any, request_of: type[Request]) -> None:
    """Each argument reaches the request's field of its name; the defaults are the request's."""
    defaults = {field.name: field.default for field in fields(request_of)}
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in OF_A_CALL or name in ("checkpoints", "data", "model"):
            continue
        assert parameter.default == defaults[name], name
        given[name] = object()
    with mock.patch.object(audit_module, request_of.__name__) as made, mock.patch.object(audit_module, "run"):
        function("net.safetensors", data="there", model={"attention": "quest"}, **given)
    assert made.call_args.kwargs == {
        "checkpoints": ["net.safetensors"],
        "data_dir": "there",
        "model": {"attention": "quest"},
        **given,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size 0, shard size None, limit None: expected 1 or more"),
        ({"shard_size": -1, "limit": 3}, "batch size None, shard size -1, limit 3: expected 1 or more"),
        ({"limit": 0}, "batch size None, shard size None, limit 0: expected 1 or more"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
@pytest.mark.parametrize("request_of", [ClassificationRequest, SegmentationRequest])
def test_sizes_and_dtypes_are_refused_alike(request_of: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        request_of(checkpoints=["net.pth"], data_dir="val", **options)
    assert str(caught.value).startswith(message)


def test_a_card_of_another_task_names_the_command() -> None:
    asked: dict[str, Any] = {"checkpoints": ["net.pth"], "data_dir": "val"}
    for made, message in (
        (ClassificationRequest(**asked, protocol="segmentation"), "is for segmentation; use robustkit segment"),
        (SegmentationRequest(**asked, protocol="standard"), "is for classification; use robustkit audit"),
    ):
        with pytest.raises(ProtocolError, match=message):
            _ = made.card


def test_an_iterable_is_read_once_for_the_run_and_for_what_it_keeps(tmp_path: Path) -> None:
    run = audit(furnish(tmp_path), tmp_path / "run", attacks=(name for name in ("fgsm", "pgd(steps=2)")), limit=3)
    assert [text.partition("(")[0] for text in run.manifest.conditions] == ["clean", "fgsm", "pgd"]
    assert json.loads(run.manifest_path.read_text())["arguments"]["attacks"] == ["fgsm", "pgd(steps=2)"]


@pytest.mark.parametrize("name", ["quick", "standard", "full"])
@pytest.mark.parametrize("request_of", [ClassificationRequest, SegmentationRequest])
def test_a_preset_is_the_options_that_it_stands_for(request_of: Any, name: str) -> None:
    options = OPTIONS[request_of.task][name]
    by_name, spelled = (
        request_of(checkpoints=["a.pth"], data_dir="b", **given) for given in ({"preset": name}, options)
    )
    assert by_name.arguments() == spelled.arguments()
    assert by_name.attack_conditions(by_name.attack_list) == spelled.attack_conditions(spelled.attack_list)
    assert expand(by_name.corruptions)
    given = request_of(checkpoints=["a.pth"], data_dir="b", preset=name, attacks="none", limit=7)
    assert (given.attack_list, given.limit, given.corruptions) == ("", 7, options["corruptions"])
    assert request_of(checkpoints=["a.pth"], data_dir="b", preset=name, ids="ids.txt").limit is None


def test_a_command_says_a_preset_by_its_options() -> None:
    preset = preset_of("segmentation", "quick").only(["attacks", "limit"])
    words = ["segment", "a.pth", "--preset", "quick", "--out", "b", "--preset=quick"]
    assert spelled_out(words, preset) == ["segment", "a.pth", "--out", "b", "--attacks", "pgd", "--limit", "50"]


def test_a_preset_leaves_the_run_of_its_options(place: Path, tmp_path: Path) -> None:
    words = command(place, tmp_path, "--preset", "quick", "--limit", "3")[3:]
    _, _, errors = called(words)
    assert "corruptions are defined from" in errors  # the small model's images are too small for them
    status, _, errors = called(["attack", *words[1:]])
    assert status == 0, errors
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["command"].endswith(f"--out {tmp_path} --device cpu --limit 3 --attacks fgsm,pgd")
    assert told["arguments"]["attacks"] == "fgsm,pgd" and told["arguments"]["corruptions"] is None
    assert not {"preset", "quick"} & {*told, *told["arguments"], *told["command"].split()}


def test_the_old_name_of_the_constants_is_told() -> None:
    for name in ("cifar", "imagenet", "auto"):
        with pytest.raises(
            ProtocolError, match=f"are chosen by --constants {name}; a preset is an amount of work: quick"
        ):
            ClassificationRequest(checkpoints=["a.pth"], data_dir="b", preset=name)
