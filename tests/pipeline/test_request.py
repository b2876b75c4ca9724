"""What a run is asked for: the same from Python and from the command line, and refused in one place."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pandas as pd
import pytest
import torch
from processes import called
from small_audit import audit, command, furnish

import attacks
import robustkit
from robustkit.cli.app import cli
from robustkit.cli.options import request_of as request_of_command
from robustkit.common.options import option, options_of
from robustkit.common.plugins import built_in
from robustkit.data.scenes import IGNORE
from robustkit.errors import ProtocolError
from robustkit.evaluations.corruptions import expand
from robustkit.pipeline import audit as audit_module
from robustkit.pipeline.audit import grouped, in_memory
from robustkit.pipeline.plan import plan_of
from robustkit.pipeline.progress import preset_cost
from robustkit.pipeline.request import (
    ClassificationRequest,
    Request,
    SegmentationRequest,
    preset_of,
    spelled_out,
)
from robustkit.protocol.card import presets_of
from scripts.pages import keywords

CALLS: list[tuple[Any, type[Request]]] = [
    (robustkit.audit, ClassificationRequest),
    (robustkit.segment, SegmentationRequest),
    *((function, function.request) for function in (getattr(robustkit, name) for name in built_in("tasks"))),
]


def data_of(request_of: type[Request]) -> str:
    """The keyword that names the data."""
    (flag,) = (each.flag for each in options_of(request_of) if each.name == "data_dir")
    return flag.removeprefix("--").replace("-", "_")


OF_ALL = {"checkpoints", "data_dir", "data", "progress", "say"}


@pytest.mark.parametrize(("function", "request_of"), CALLS)
def test_a_call_shows_and_hands_on_every_field_of_its_request(function: Any, request_of: type[Request]) -> None:
    """Each keyword reaches the field of its name; a mapping that is None is empty; the defaults are the fields'."""
    parameters = inspect.signature(function).parameters
    held = {field.name: field for field in fields(request_of)}
    lacks = set(request_of.lacks)
    data = data_of(request_of)
    mappings = {name for name in ("model", "data") if name in held}
    assert parameters.keys() == (held.keys() - lacks - {"data_dir"}) | {data, "progress", "say"}
    assert set(request_of.argument_names) <= held.keys() - lacks
    for name in held.keys() - lacks - OF_ALL - mappings:
        default = held[name].default
        assert parameters[name].default == (inspect.Parameter.empty if default is MISSING else default), name
    names = held.keys() - lacks - OF_ALL - mappings
    for model, given in (({"attention": "quest"}, {name: object() for name in names}), (None, dict.fromkeys(names))):
        with mock.patch.object(Request, "__post_init__"), mock.patch.object(audit_module, "run") as run:
            function("net.safetensors", **{data: "there"}, **(given if "model" in lacks else {"model": model, **given}))
        (request, *rest), _ = run.call_args
        assert type(request) is request_of and rest == [None, None]
        whole = {"checkpoints": ["net.safetensors"], "data_dir": "there", **given}
        whole |= {} if "model" in lacks else {"model": model or {}}
        assert {name: getattr(request, name) for name in whole} == whole


@pytest.mark.parametrize(("function", "request_of"), CALLS)
def test_a_keyword_that_a_request_lacks_is_refused(function: Any, request_of: type[Request]) -> None:
    data = data_of(request_of)
    for name in ("batchsize", *request_of.lacks):
        with pytest.raises(TypeError, match=f"unknown keyword '{name}'") as caught:
            function("net.pth", **{data: "there", name: None})
        near = name == "batchsize" and "batch_size" not in request_of.lacks
        assert not near or "did you mean 'batch_size'?" in str(caught.value)


@pytest.mark.parametrize(("function", "request_of"), CALLS)
def test_a_command_without_options_asks_for_what_a_call_without_keywords_does(
    function: Any, request_of: type[Request]
) -> None:
    command = cli.commands[function.__name__]
    data = "--" + data_of(request_of).replace("_", "-")
    more = {
        each.name: Path("learn")
        for each in options_of(request_of)
        if each.default is MISSING and each.name not in OF_ALL and not each.group
    }
    words = ["net.pth", data, "there", *(word for name, value in more.items() for word in (f"--{name}", str(value)))]
    options = command.make_context(function.__name__, words).params
    for name in ("skip_bad", "details", "quiet"):
        assert options.pop(name) is False
    asked = request_of_command(request_of, options)
    plain = request_of(checkpoints=("net.pth",), data_dir="there", **more)
    assert asked.model.items() <= {"use_ema": False, "allow_partial": False, "pixels": False}.items()
    assert not any(getattr(asked, "data", {}).values())
    read = [field.name for field in fields(request_of) if field.name not in ("model", "data")]
    assert {name: getattr(asked, name) for name in read} == {name: getattr(plain, name) for name in read}


def test_labels_that_do_not_count_are_those_of_scenes() -> None:
    assert SegmentationRequest(checkpoints=["a"], data_dir="b").ignore == IGNORE


def test_keywords_are_what_the_script_makes_of_the_requests() -> None:
    for path, text in keywords.stubs().items():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        deleted = [line for line in lines if re.match(r"from \.tasks\.", line) and line not in text]
        assert not [line for line in deleted if line.split(".")[2] in keywords.SLICES]
        assert [line for line in lines if line not in deleted] == text.splitlines(keepends=True), (
            "run scripts.pages.keywords"
        )


def test_options_of_a_task_stand_before_the_common_ones_and_may_say_less() -> None:
    @dataclass(kw_only=True)
    class Common:
        own_before: ClassVar[str] = "seed"
        lacks: ClassVar[tuple[str, ...]] = ()
        place: str = option("Data", "Where.", MISSING)
        seed: int = option("Run", "Seed.", 0, type=int)
        device: str = option("Run", "Where it is computed.", "cpu")

    @dataclass(kw_only=True)
    class Own(Common):
        lacks = ("device",)
        shuffle: bool = option("Data", "In any order.", False, last=True)
        check: bool = option("Run", "Do not check.", True)
        place: str = option("Data", "A file.", MISSING, flag="--file")
        seed: int = 3

    listed = [(each.name, each.flag, each.help, each.default, each.type) for each in options_of(Own)]
    assert listed == [
        ("place", "--file", "A file.", MISSING, None),
        ("check", "--no-check", "Do not check.", True, None),
        ("seed", "--seed", "Seed.", 3, int),
        ("shuffle", "--shuffle", "In any order.", False, None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"shard_size": -1, "limit": 3}, "shard_size is -1; expected 1 or more"),
        ({"limit": 0}, "limit is 0; expected 1 or more"),
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


def test_attacks_may_be_those_of_the_package(tmp_path: Path) -> None:
    asked: list[Any] = [
        *(attacks.PGD(eps=1 / 255, steps=3), "fgsm"),
        attacks.AutoAttack(eps=2 / 255, only="apgd-ce", steps=2, early_stop=False),
        attacks.PGD(eps=0.5, norm="l2", loss="dlr"),
    ]
    values = grouped(ClassificationRequest, {"attacks": asked, "limit": 4})
    request = ClassificationRequest(checkpoints=["zoo:shapes-vit-quest"], data_dir="embedded:shapes", **values)
    assert [each.text for each in request.attack_conditions(request.attack_list, None)] == [
        "clean",
        "pgd(eps=1/255,steps=3)",
        "fgsm(eps=1/255)",
        "autoattack(eps=2/255,version=standard,steps=2,early_stop=false,only=apgd-ce)",
        "pgd(eps=0.5,norm=l2,steps=20,loss=dlr)",
    ]

    class Own(attacks.PGD):
        pass

    for attack in (Own(), attacks.PGD(eps=1 / 255, bounds=(-1, 1))):
        with pytest.raises(ProtocolError, match="give an attack of `attacks` with eps and norm alone as its threat"):
            grouped(ClassificationRequest, {"attacks": attack})


def test_an_iterable_is_read_once_for_the_run_and_for_what_it_keeps(tmp_path: Path) -> None:
    run = audit(furnish(tmp_path), tmp_path / "run", attacks=(name for name in ("fgsm", "pgd(steps=2)")), limit=3)
    assert [text.partition("(")[0] for text in run.manifest.conditions] == ["clean", "fgsm", "pgd"]
    assert json.loads(run.manifest_path.read_text())["arguments"]["attacks"] == ["fgsm", "pgd(steps=2)"]


PRESETS = [(kind, name) for kind in (ClassificationRequest, SegmentationRequest) for name in presets_of(kind.task)]


@pytest.mark.parametrize(("request_of", "name"), PRESETS)
def test_a_preset_is_the_options_that_it_stands_for(request_of: Any, name: str) -> None:
    options = presets_of(request_of.task)[name]
    by_name, spelled = (
        request_of(checkpoints=["a.pth"], data_dir="b", **given) for given in ({"preset": name}, options)
    )
    assert by_name.arguments() == spelled.arguments()
    assert by_name.attack_conditions(by_name.attack_list) == spelled.attack_conditions(spelled.attack_list)
    assert expand(by_name.corruptions)
    given = request_of(checkpoints=["a.pth"], data_dir="b", preset=name, attacks="none", limit=7)
    assert (given.attack_list, given.limit, given.corruptions) == ("", 7, options["corruptions"])
    assert request_of(checkpoints=["a.pth"], data_dir="b", preset=name, ids="ids.txt").limit is None


@pytest.mark.parametrize(("request_of", "name"), PRESETS)
def test_the_help_says_what_a_preset_costs(request_of: Any, name: str) -> None:
    (said,) = (each.help for each in options_of(request_of) if each.name == "preset")
    assert re.search(rf"\b{name} {re.escape(str(preset_cost(request_of.task, name)))}\b", said)


@pytest.mark.parametrize("expected", ["agcam", "grad-cam"])
def test_auto_is_the_map_that_works_for_all_networks(expected: str) -> None:
    cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 10, 4, 4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    own = {"pixels": True, "img_size": 64, "num_classes": 10}
    network, model = ("zoo:shapes-vit-quest", {}) if expected == "agcam" else (cnn, own)
    asked: dict[str, Any] = {"attacks": "none", "cams": "auto,rise(masks=2)", "limit": 2, "model": model}
    with in_memory(ClassificationRequest, network, "embedded:shapes", model) as (specs, place):
        plan = plan_of(ClassificationRequest(checkpoints=specs, data_dir=place, **asked))
    assert [condition.text for condition in plan.conditions[1:3]] == [f"cam({expected})", "cam(rise,masks=2)"]


def test_a_command_says_a_preset_by_its_options() -> None:
    preset = preset_of("segmentation", "quick").only(["attacks", "limit"])
    words = ["segment", "a.pth", "--preset", "quick", "--out", "b", "--preset=quick"]
    assert spelled_out(words, preset) == ["segment", "a.pth", "--out", "b", "--attacks", "pgd", "--limit", "50"]


def test_a_preset_leaves_the_run_of_its_options(place: Path, tmp_path: Path) -> None:
    words = command(place, tmp_path, "--preset", "quick", "--limit", "3")[3:]
    _, _, errors = called(words)
    assert "corruptions need at least" in errors  # the small model's images are too small for them
    status, _, errors = called(["attack", *words[1:]])
    assert status == 0, errors
    reported = json.loads((tmp_path / "run.json").read_text())
    assert reported["command"].endswith(f"--out {tmp_path} --device cpu --limit 3 --attacks fgsm,pgd")
    assert reported["arguments"]["attacks"] == "fgsm,pgd" and reported["arguments"]["corruptions"] is None
    assert not {"preset", "quick"} & {*reported, *reported["arguments"], *reported["command"].split()}


def test_the_old_name_of_the_constants_is_told() -> None:
    for name in ("cifar", "imagenet", "auto"):
        with pytest.raises(
            ProtocolError, match=f"are chosen by --constants {name}; a preset is an amount of work: quick"
        ):
            ClassificationRequest(checkpoints=["a.pth"], data_dir="b", preset=name)


def test_a_request_says_what_a_command_would_have_to() -> None:
    """All that is not usual, as the command line has it; an object of Python's is marked: no command is made of it."""
    model = {"mean": (0.5, 0.25, 0.5), "std": [0.5], "use_ema": True, "allow_partial": False, "arch": None}
    asked: dict[str, Any] = {"eps": 2 / 255, "attacks": ["fgsm", "pgd(steps=2)"], "setup_check": False, "seed": 0}
    data = {"labels_csv": Path("a b.csv"), "layout": None}
    request = ClassificationRequest(
        checkpoints=["x"], data_dir="d", out="A", preset="quick", transfer=True, model=model, data=data, **asked
    )
    assert request.options() == {
        "--data-dir": "d",
        "--mean": "0.5 0.25 0.5",
        "--std": "0.5",
        "--use-ema": True,
        "--attacks": "fgsm,pgd(steps=2)",
        "--eps": str(2 / 255),
        "--corruptions": presets_of("classification")["quick"]["corruptions"],
        "--limit": "100",
        "--labels": "a b.csv",
        "--transfer": True,
        "--no-setup-check": True,
    }
    scenes = SegmentationRequest(checkpoints=["x"], data_dir="d", ignore=(0, 255), model={"window": (32, 64)})
    assert scenes.options() == {"--data-dir": "d", "--ignore": "0,255", "--window": "32x64"}
    table = pd.DataFrame({"camera": ["a"]})
    held = ClassificationRequest(checkpoints=["x"], data_dir="d", metadata=table)  # type: ignore[arg-type]
    assert held.options()["--metadata"] == "memory:DataFrame"


def test_python_takes_numbers_and_dtypes_of_its_own(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = grouped(ClassificationRequest, {"eps": [1 / 255, 2 / 255], "dtype": torch.bfloat16})
    request = ClassificationRequest(checkpoints=["zoo:shapes-vit-quest"], data_dir="embedded:shapes", **values)
    texts = [condition.text for condition in request.attack_conditions("fgsm")]
    assert texts == ["clean", "fgsm(eps=1/255)", "fgsm(eps=2/255)"] and request.dtype == "bfloat16"
    assert grouped(ClassificationRequest, {"eps": "1/255", "dtype": "auto"}) == {"eps": "1/255", "dtype": "auto"}
