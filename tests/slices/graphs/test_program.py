"""Programs of torch.export: logits and gradients of the float model, and files that torch's own loader would obey."""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from cifar_resnets import resnet20
from torch import Tensor, nn
from torch._export.serde import serialize

import robustkit
from robustkit.errors import CheckpointError, ModelError, RobustkitError
from robustkit.pipeline.audit import audit
from robustkit.slices.graphs.program import (
    _DTYPES,
    _FLOAT32,
    _FORMATS,
    _STRIDED,
    ProgramNetwork,
    _argument,
    _callable,
    _dropping,
    _input,
    _Step,
    _step,
    _Value,
)

pytestmark = pytest.mark.usefixtures("one_thread")
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
Members = dict[str, bytes]
PROGRAM = "models/model.json"
WEIGHTS, CONSTANTS = (f"data/{kind}/model_{kind}_config.json" for kind in ("weights", "constants"))


def program(network: nn.Module, side: int, rows: object = "rows") -> torch.export.ExportedProgram:
    """Export a network. rows: how many images, a number or a name for any."""
    count = rows if isinstance(rows, int) else 3
    dimension = torch.export.Dim(rows, max=1 << 20) if isinstance(rows, str) else rows
    shapes = None if isinstance(rows, int) else ({0: dimension},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = torch.rand(count, 3, side, side)
        return torch.export.export(network, (images,), dynamic_shapes=shapes, strict=False)


def saved(made: torch.export.ExportedProgram, path: Path, **extra: str) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(made, path, extra_files=extra)
    return path


def by_torch(path: Path) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(path).module()


class Small(nn.Module):
    """What torch keeps in three places: parameters, buffers that are not saved, and constants; and a size computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.head, self.added = nn.Linear(4 * 36, 5), torch.rand(5)
        self.register_buffer("scales", torch.rand(2, 5)[:, 1:], persistent=False)  # a view, whose strides are odd

    def forward(self, images: Tensor) -> Tensor:
        seen = self.layers(images)
        low, high = self.head(seen.view(images.shape[0], seen.shape[1] * 36)).split([1, 4], dim=1)
        ranks = torch.arange(4, device=images.device, dtype=torch.float32)
        return torch.cat([low, high * self.scales.amax(0) + ranks], 1) + self.added


@pytest.fixture(scope="module")
def small() -> nn.Module:
    return Small().eval()


@pytest.fixture(scope="module")
def members(small: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The members of a sound archive, by the names below its folder."""
    with zipfile.ZipFile(saved(program(small, 8), tmp_path_factory.mktemp("sound") / "m.pt2")) as archive:
        found = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    if PROGRAM not in found:
        pytest.skip("this torch writes the layout before torch 2.9")
    return found


def written(members: Members, path: Path, root: str = "m/", **more: Any) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", **more) as archive:
        warnings.simplefilter("ignore")
        for name, content in members.items():
            archive.writestr(root + name, content)
    return path


@pytest.mark.parametrize(("kind", "side"), [("vit", 64), ("cnn", 32), ("small", 8)])
def test_logits_and_gradients_are_those_before_the_export(kind: str, side: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    vit = robustkit.load("zoo:shapes-vit-standard").network if kind == "vit" else None
    network = (vit or (resnet20() if kind == "cnn" else Small())).eval()
    path = saved(program(network, side), tmp_path / "m.pt2")
    found, theirs = robustkit.load(f"pt2:{path}", **HALF), by_torch(path)
    for rows in (1, 5):
        images = torch.rand(rows, 3, side, side)
        seen, plain = (images.clone().requires_grad_() for _ in range(2))
        logits, expected = found(seen), network((plain - 0.5) / 0.5)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        assert torch.equal(logits, theirs((images - 0.5) / 0.5))
        for each, given in ((logits, seen), (expected, plain)):
            (each * torch.arange(each.shape[1])).sum().backward()
            assert given.grad is not None and given.grad.abs().max() > 0
        torch.testing.assert_close(seen.grad, plain.grad, rtol=0, atol=1e-5)
    identity = found.identity
    kind_of_attention = "other" if kind == "vit" else "none"
    assert (identity.arch, identity.attention, identity.weights) == ("torch.export", kind_of_attention, "exported")
    assert identity.num_classes == expected.shape[1] and identity.preprocessing.input_size == (side, side)
    assert identity.sha256 == robustkit.load(f"pt2:{path}", **HALF).identity.sha256
    for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert torch.equal(again(images), logits)


def test_the_number_of_images_that_a_program_fixes_or_bounds_is_kept(small: nn.Module, tmp_path: Path) -> None:
    images = torch.rand(7, 3, 8, 8)
    for rows, bounds in ((3, (3, 3)), (torch.export.Dim("rows", min=2, max=4), (2, 4))):
        found = robustkit.load(f"pt2:{saved(program(small, 8, rows), tmp_path / 'm.pt2')}", **HALF)
        assert found.network.rows == bounds
        torch.testing.assert_close(found(images), small((images - 0.5) / 0.5), rtol=0, atol=1e-5)


class Halves(nn.Module):
    """Asks for the number of its images, and computes with it."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        count = images.shape[0]
        rows = images.flatten(1).repeat(2, 1)
        sums = torch.stack([rows[:count].sum(1), rows[count : 2 * count, :9].sum(1)], 1) / (2 * count - count)
        return rows[: count * 2 - count], sums


def test_numbers_are_computed_of_the_number_of_images(tmp_path: Path) -> None:
    path = saved(program(Halves(), 8), tmp_path / "m.pt2")
    found = robustkit.load(f"pt2:{path}", output="1", **HALF)
    assert "of 2 outputs of the program, 1 is taken as its logits" in " ".join(found.identity.notes)
    for rows in (1, 5):
        images = torch.rand(rows, 3, 8, 8)
        torch.testing.assert_close(found(images), Halves()((images - 0.5) / 0.5)[1])
    with pytest.raises(RobustkitError, match="output"):
        robustkit.load(f"pt2:{path}", **HALF)


@pytest.mark.parametrize("old", [False, True])
def test_both_layouts_are_read_with_what_they_say_about_their_input(
    small: nn.Module, tmp_path: Path, old: bool
) -> None:
    said = {
        "mean": "[0.1, 0.2, 0.3]",
        "std": "[0.4, 0.5, 0.6]",
        "class_names": '["a", "b", "c", "d", "e"]',
        "arch": "x",
    }
    path, made = tmp_path / "m.pt2", program(small, 8)
    if old:  # as torch 2.6 to 2.8 wrote it
        parts = serialize.serialize(made)
        content = {"exported_program.json": parts.exported_program, "state_dict.pt": parts.state_dict}
        content |= {"constants.pt": parts.constants, "example_inputs.pt": b"not read"}
        files = {f"serialized_{name}": part for name, part in content.items()}
        written(files | {f"extra_files/{name}": text.encode() for name, text in said.items()}, path, "")
    else:
        saved(made, path, **said)
    found, images = robustkit.load(f"pt2:{path}"), torch.rand(4, 3, 8, 8)
    assert found.identity.preprocessing.mean == (0.1, 0.2, 0.3) and found.identity.class_names == tuple("abcde")
    assert found.identity.preprocessing_source["std"] == "metadata"
    torch.testing.assert_close(found(images), small(found.normalize(images)), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mobilenetv3_small_050", "nfnet_l0", "xcit_nano_12_p16_224", "swin_tiny_patch4_window7_224"]
)
def test_networks_of_timm_are_computed_to_the_bit(name: str, tmp_path: Path) -> None:
    network = timm.create_model(name).eval()
    side = network.default_cfg["input_size"][-1]
    path = saved(program(network, side), tmp_path / "m.pt2")
    found, images = robustkit.load(f"pt2:{path}", **HALF), torch.rand(3, 3, side, side)
    with torch.no_grad():
        assert torch.equal(found(images), by_torch(path)((images - 0.5) / 0.5))


# --- files of strangers ----------------------------------------------------------------------------------------------


class Calls:
    """An object that, when it is unpickled, evaluates a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return eval, (self.text,)


def edited(members: Members, name: str, change: Callable[[Any], object]) -> Members:
    content = json.loads(members[name])
    change(content)
    return {**members, name: json.dumps(content).encode()}


def in_torch(content: object) -> bytes:
    kept = io.BytesIO()
    torch.save(content, kept)
    return kept.getvalue()


def in_input(text: str) -> Callable[[Any], object]:
    return lambda content: content["graph_module"]["graph"]["tensor_values"]["images"]["sizes"][0].update(
        as_expr={"expr_str": text, "hint": {"as_int": 3}}
    )


def inside(text: str) -> Callable[[Any], object]:
    """Put an expression where no input is: in the shape of what an operator returns."""

    def change(content: Any) -> None:
        values = content["graph_module"]["graph"]["tensor_values"]
        values["conv2d"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}

    return change


def calling(target: str, **arguments: Any) -> Callable[[Any], object]:
    """Put a call at the head of a program."""

    def change(content: Any) -> None:
        graph = content["graph_module"]["graph"]
        inputs = [{"name": name, "arg": argument, "kind": 1} for name, argument in arguments.items()]
        made = {"target": target, "inputs": inputs, "outputs": [{"as_tensor": {"name": "made"}}], "metadata": {}}
        graph["nodes"].insert(0, made | {"name": "made"})
        graph["tensor_values"]["made"] = graph["tensor_values"]["images"]

    return change


def pickled_weight(members: Members, code: str) -> Members:
    def change(content: Any) -> None:
        content["config"]["layers.0.weight"] |= {"use_pickle": True, "path_name": "weight_999"}

    return edited(members, WEIGHTS, change) | {"data/weights/weight_999": in_torch(Calls(code))}


def opaque(members: Members, code: str) -> Members:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    changed = edited(members, CONSTANTS, lambda content: content["config"].update(more=entry))
    return changed | {"data/constants/opaque_obj_0": pickle.dumps(Calls(code))}


def old_layout(members: Members, code: str) -> Members:
    kept = {"serialized_exported_program.json": members[PROGRAM], "version": b"8.2"}
    empty = {f"serialized_{name}.pt": in_torch({}) for name in ("constants", "example_inputs")}
    return kept | empty | {"serialized_state_dict.pt": in_torch({"layers.0.weight": Calls(code)})}


def writes(members: Members, code: str) -> Members:
    where = {"as_string": code.split("'")[3]}
    given = {"filename": where, "shared": {"as_bool": True}, "size": {"as_int": 16}}
    return edited(members, PROGRAM, calling("torch.ops.aten.from_file.default", **given))


OBEYED: dict[str, tuple[Callable[[Members, str], Members], str]] = {
    "weight": (pickled_weight, r"'layers\.0\.weight' is a pickled object, not a plain tensor; refused, since reading"),
    "object": (opaque, "'more' is a pickled object, not a plain tensor; refused"),
    "weights before torch 2.9": (
        old_layout,
        r"a pickle that holds more than tensors \(.{50,60}\); refused, since reading it",
    ),
    "shape of the input": (
        lambda members, code: edited(members, PROGRAM, in_input(code)),
        r"a side of its input is \"__import__\('pathlib'\).*; expected a number or a dimension of its own",
    ),
    "operator": (writes, r"operators that are not of a plain network in torch .* \(aten\.from_file\.default\); export"),
    "sample inputs": (lambda members, code: {**members, "data/sample_inputs/model.pt": in_torch(Calls(code))}, ""),
    "guards": (lambda members, code: edited(members, PROGRAM, lambda c: c.update(guards_code=[code])), ""),
    "shape": (lambda members, code: edited(members, PROGRAM, inside(code)), ""),
}
"""Changes of a file that torch's own loader obeys, with what is said about them here; empty: that part is not read."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBEYED)
def test_what_torch_would_obey_is_refused_or_not_read(
    name: str, members: Members, small: nn.Module, tmp_path: Path, no_logging_errors: None
) -> None:
    change, message = OBEYED[name]
    mark, images = tmp_path / "mark", torch.rand(3, 3, 8, 8)
    code = f"__import__('pathlib').Path('{mark}').touch()"
    path = written(change(members, code), tmp_path / "m.pt2", "" if name.startswith("weights before") else "m/")
    with suppress(Exception):  # whether it goes well or not, it has run
        torch.export.load(path).module()(images)
    assert mark.exists() or name == "object"  # which torch 2.11 and before do not know
    mark.unlink(missing_ok=True)
    if message:
        with pytest.raises(CheckpointError, match=message) as caught:
            robustkit.load(f"pt2:{path}", **HALF)
        assert "\n" not in str(caught.value)
    else:
        found = robustkit.load(f"pt2:{path}", **HALF)
        torch.testing.assert_close(found(images), small((images - 0.5) / 0.5), rtol=0, atol=1e-5)
    assert not mark.exists()


@pytest.fixture
def no_logging_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("logging.raiseExceptions", False)  # torch's own loader logs with a wrong format
    yield


def of_size(sides: list[int]) -> Callable[[Any], object]:
    def change(content: Any) -> None:
        meta = content["config"]["head.weight"]["tensor_meta"]
        meta["sizes"], meta["strides"] = ([{"as_int": side} for side in each] for each in (sides, [0, 0]))

    return change


def training(content: Any) -> None:
    (node,) = (node for node in content["graph_module"]["graph"]["nodes"] if "dropout" in node["target"])
    (argument,) = (each for each in node["inputs"] if each["name"] == "train")
    argument["arg"] = {"as_bool": True}


def node_of(content: Any, name: str) -> Any:
    return next(node for node in content["graph_module"]["graph"]["nodes"] if name in node["target"])


def images_of(content: Any) -> Any:
    return content["graph_module"]["graph"]["tensor_values"]["images"]


def strangers(count: int) -> Callable[[Any], object]:
    return lambda content: [calling(f"torch.ops.os.x{place}")(content) for place in range(count)]


TINY: dict[str, Any] = {
    "input": {"as_tensor": {"name": "images"}},
    "output_size": {"as_ints": [5, 5]},
    "align_corners": {"as_bool": False},
    "scales_h": {"as_float": 1e-12},  # torch 2.14 crashes
}
DAMAGED: dict[str, tuple[Callable[[Members], Members], str]] = {
    "outside": (lambda m: m | {"../../evil": b""}, r"member 'm/\.\./\.\./evil' points outside of it; refused"),
    "target": (
        lambda m: edited(m, PROGRAM, calling("torch.os.system", command={"as_string": "true"})),
        r"operators that are not .* \(torch\.os\.system\)",
    ),
    "operator of python": (
        lambda m: edited(m, PROGRAM, calling("_operator.methodcaller", name={"as_string": "x"})),
        r"\(_operator\.methodcaller\)",
    ),
    "factor": (
        lambda m: edited(m, PROGRAM, calling("torch.ops.aten._upsample_bilinear2d_aa.default", **TINY)),
        "an image resized by a factor outside of 1/1000 to 1000",
    ),
    "graph": (
        lambda m: edited(m, PROGRAM, calling("torch.ops.aten.relu.default", self={"as_graph": {}})),
        "an argument of kind 'as_graph'; expected tensors and numbers",
    ),
    "weights that repeat": (
        lambda m: edited(m, WEIGHTS, of_size([1 << 20, 1 << 14])),
        "numbers claim to be 65536 MB of weights; refused",
    ),
    "weights that are short": (lambda m: m | {"data/weights/weight_0": b"\0" * 16}, "not a whole program of torch.exp"),
    "argument": (
        lambda m: edited(m, PROGRAM, lambda c: node_of(c, "conv2d")["inputs"][0].update(name="images")),
        "torch.ops.aten.conv2d.default has no argument images",
    ),
    "schema": (
        lambda m: edited(m, PROGRAM, lambda c: c["schema_version"].update(major=7)),
        "a program of schema 7; expected 8; export it again with torch 2.6 or newer",
    ),
    "training": (lambda m: edited(m, PROGRAM, training), r"aten\.dropout\.default in training mode; call model\.eval"),
    "in place": (
        lambda m: edited(m, PROGRAM, calling("torch.ops.aten.relu_.default", self={"as_tensor": {"name": "c_added"}})),
        r"its program changes its own weights .*model\.eval\(\)",
    ),
    "in place of its images": (
        lambda m: edited(m, PROGRAM, calling("torch.ops.aten.relu_.default", self={"as_tensor": {"name": "images"}})),
        r"its program changes its own weights or its input as it runs; call model\.eval\(\)",
    ),
    "unknown name": (
        lambda m: edited(
            m, PROGRAM, lambda c: node_of(c, "conv2d")["inputs"][0]["arg"]["as_tensor"].update(name="x" * 81)),
        r"not a whole program of torch\.export \(ValueError: x{80}\); expected a file of torch\.export\.save",
    ),
    "cut": (lambda m: {k: v for k, v in m.items() if k != "data/weights/weight_0"}, "no member 'm/data/weights/weig"),
    "compiled": (lambda m: {"data/aotinductor/m/m.so": b""}, r"a compiled program \(AOTInductor\), which is native"),
    "two": (lambda m: m | {"models/n.json": m[PROGRAM]}, "2 programs; expected one, of torch.export.save"),
    "inputs": (
        lambda m: edited(m, PROGRAM, lambda c: c["graph_module"]["signature"]["input_specs"].append(
            {"user_input": {"arg": {"as_tensor": {"name": "more"}}}})),
        r"2 inputs; expected one, images \(B, 3, H, W\); export it so",
    ),
    "input of another kind": (
        lambda m: edited(m, PROGRAM, lambda c: c["graph_module"]["signature"]["input_specs"].append(
            {"user_input": {"arg": {"as_int": 3}}})),
        "its input user_input is not a tensor; expected images; export it so",
    ),
    "outputs": (
        lambda m: edited(m, PROGRAM, lambda c: c["graph_module"]["signature"]["output_specs"].clear()),
        r"0 outputs; expected logits \(B, K\); export it again",
    ),
    "type of its input": (lambda m: edited(m, PROGRAM, lambda c: images_of(c).update(dtype=8)), "input is not float32"),
    "nine sides": (
        lambda m: edited(m, PROGRAM, lambda c: images_of(c)["sizes"].extend([{"as_int": 8}] * 5)),
        r"its input is s\d+ x 3( x 8){6}; expected images of 1 to 16 channels",
    ),
    "channels": (
        lambda m: edited(m, PROGRAM, lambda c: images_of(c)["sizes"].__setitem__(1, {"as_int": 17})),
        r"its input is s\d+ x 17 x 8 x 8; expected images of 1 to 16 channels",
    ),
    "no height": (
        lambda m: edited(m, PROGRAM, lambda c: images_of(c)["sizes"].__setitem__(2, {"as_int": 0})),
        r"its input is s\d+ x 3 x 0 x 8; expected images of 1 to 16 channels",
    ),
    "byte order": (lambda m: m | {"byteorder": b"big"}, "written on a machine of another byte order; export it on one"),
    "three operators": (lambda m: edited(m, PROGRAM, strangers(3)), r"\(os\.x2, os\.x1, os\.x0\); export"),
    "four operators": (lambda m: edited(m, PROGRAM, strangers(4)), r"\(os\.x3, os\.x2, os\.x1 and 1 more\)"),
    "five operators": (lambda m: edited(m, PROGRAM, strangers(5)), r"\(os\.x4, os\.x3, os\.x2 and 2 more\)"),
    "name of an operator": (lambda m: edited(m, PROGRAM, calling(f"torch.ops.{'x' * 61}")), r"\(x{60}\)"),
    "name of an object": (
        lambda m: edited(m, CONSTANTS, lambda c: c["config"].update({"x" * 81: {
            "path_name": "weight_0", "is_param": False, "use_pickle": True, "tensor_meta": None}})),
        "'x{80}' is a pickled object",
    ),
    "name of a member": (lambda m: m | {"../" + "x" * 76: b""}, r"member 'm/\.\./x{75}' points outside"),
    "name of a lost member": (
        lambda m: edited(m, WEIGHTS, lambda c: c["config"]["layers.0.weight"].update(path_name="weight_" + "1" * 59)),
        "no member 'm/data/weights/weight_1{58}' in it",
    ),
    "name of a schema": (
        lambda m: edited(m, PROGRAM, lambda c: c["schema_version"].update(major="9" * 20)),
        "a program of schema '9{19}; expected 8",
    ),
    "name of a kind": (
        lambda m: edited(m, PROGRAM, calling("torch.ops.aten.relu.default", self={"as_" + "x" * 38: {}})),
        "an argument of kind 'as_x{37}'; expected tensors and numbers",
    ),
    "name of a side": (lambda m: edited(m, PROGRAM, in_input("x" * 41)), "a side of its input is 'x{40}'; expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_fits_nothing_is_refused_in_a_line(name: str, members: Members, tmp_path: Path) -> None:
    change, message = DAMAGED[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        robustkit.load(f"pt2:{written(change(members), tmp_path / 'm.pt2')}", **HALF)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scale", "fine"), [(1e-3, True), (9.9e-4, False), (1e3, True), (1001.0, False), (0.0, False), (-1.0, False)]
)
def test_the_factor_of_a_resize_is_bounded_on_both_sides(scale: float, fine: bool) -> None:
    argument = {"self": TINY["input"], "output_size": TINY["output_size"], "align_corners": TINY["align_corners"]}
    target = "torch.ops.aten._upsample_bilinear2d_aa.default"
    for more in ({"scales_h": {"as_float": scale}}, {"scales_h": {"as_float": 1.0}, "scales_w": {"as_float": scale}}):
        inputs = [{"name": name, "arg": value} for name, value in (argument | more).items()]
        node = {"target": target, "inputs": inputs, "outputs": [{"as_tensor": {"name": "made"}}]}
        if fine:
            assert _step(Path("m.pt2"), node).outputs == "made"
        else:
            with pytest.raises(ValueError, match="resized by a factor outside of 1/1000 to 1000"):
                _step(Path("m.pt2"), node)
    scales = {"scale_factors": {"as_floats": [1.0, scale]}, "input": TINY["input"], "output_size": {"as_none": ()}}
    inputs = [{"name": name, "arg": value} for name, value in (scales | {"align_corners": {"as_bool": False}}).items()]
    node = {"target": "torch.ops.aten.upsample_bilinear2d.vec", "inputs": inputs, "outputs": [{"as_none": ()}]}
    with nullcontext() if fine else pytest.raises(ValueError, match="resized by a factor"):
        _step(Path("m.pt2"), node)


def test_sides_of_one_symbol_are_equal_and_each_within_its_bounds() -> None:
    network = ProgramNetwork([], {}, ["s0", 3, "s1", "s1"], {"s0": (2, 4), "s1": (5, None)}, ("x", "x"))
    for rows, height, width, fine in (
        *((2, 8, 8, True), (4, 5, 5, True), (2, 8, 9, False), (2, 9, 8, False)),
        *((1, 8, 8, False), (5, 8, 8, False), (2, 4, 4, False), (2, 900, 900, True)),
    ):
        images = torch.zeros(rows, 3, height, width)
        if fine:
            assert network.logits(images) is images
        else:
            with pytest.raises(ModelError, match=f"takes images of s0 x 3 x s1 x s1, not of {rows} x 3 x {height}"):
                network.logits(images)


@pytest.mark.parametrize(
    ("ranges", "bounds"),
    [
        ({}, (1, None)),
        ({"s0": {"min_val": None, "max_val": None}}, (1, None)),
        ({"s0": {"min_val": 0, "max_val": 4}}, (1, 4)),
        ({"s0": {"min_val": 2, "max_val": 4}}, (2, 4)),
    ],
)
def test_a_side_is_bounded_by_1_where_a_program_says_less(ranges: dict[str, Any], bounds: Any) -> None:
    sizes = [{"as_expr": {"expr_str": "s0"}}, *({"as_int": side} for side in (3, 8, 8))]
    entry = {"dtype": _FLOAT32, "sizes": sizes}
    assert _input(Path("m.pt2"), entry, ranges) == (["s0", 3, 8, 8], {"s0": bounds})


@pytest.mark.parametrize(("height", "width", "size"), [(8, 9, (8, 9)), ("s1", 9, None), (8, "s1", None)])
def test_a_size_is_fixed_where_both_sides_are(height: Any, width: Any, size: Any) -> None:
    network = ProgramNetwork([], {}, ["s0", 3, height, width], {"s0": (2, 4), "s1": (5, None)}, ("x", "x"))
    assert network.fixed_size == size and network.rows == (2, 4)


@pytest.mark.parametrize(
    ("steps", "end", "fault"),
    [
        ([("images", "a"), ("a", "b")], "b", ""),
        ([("images", "a"), ("b", "a")], "a", "a, b not known, or made twice"),
        ([("images", "a"), ("a", "a")], "a", "a not known, or made twice"),
        ([("images", "images")], "images", "images not known, or made twice"),
        ([("images", ["a", "a"])], "a", " not known, or made twice"),
        ([("later", "a"), ("images", "later")], "a", "later not known, or made twice"),
        ([("images", "a")], "b", "nothing makes its output 'b'"),
    ],
)
def test_each_name_is_made_once_and_before_it_is_needed(steps: list[Any], end: str, fault: str) -> None:
    made = [_Step("torch.ops.aten.relu.default", (), {"self": _Value(needed)}, name) for needed, name in steps]
    if fault:
        with pytest.raises(ValueError, match=re.escape(fault)):
            _dropping(made, {"images"}, end)
    else:
        assert [step.dropped for step in _dropping(made, {"images"}, end)] == [("images",), ("a",)]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ({"as_sym_int": {"as_name": "s"}}, _Value("s")),
        ({"as_optional_tensor": {"as_none": True}}, None),
        ({"as_floats": [1, 2]}, [1.0, 2.0]),
        ({"as_tensors": [{"name": "t"}]}, [_Value("t")]),
        ({"as_sym_ints": [{"as_int": 1}, {"as_name": "s"}]}, [1, _Value("s")]),
        ({"as_optional_tensors": [{"as_none": True}, {"as_tensor": {"name": "t"}}]}, [None, _Value("t")]),
        ({"as_scalar_type": 13}, torch.bfloat16),
        ({"as_layout": 7}, torch.strided),
        ({"as_device": {"type": "cuda"}}, _Value(None)),
    ],
)
def test_arguments_are_numbers_types_names_and_lists_of_these(argument: dict[str, Any], value: object) -> None:
    assert _argument(Path("m.pt2"), argument) == value


@pytest.mark.parametrize(("names", "made"), [([], None), (["a"], "a"), (["a", "b"], ["a", "b"])])
def test_a_call_makes_nothing_a_name_or_several(names: list[str], made: object) -> None:
    node = {"target": "torch.ops.aten.relu.default", "inputs": []}
    assert _step(Path("m.pt2"), node | {"outputs": [{"as_tensor": {"name": name}} for name in names]}).outputs == made


def test_what_a_trace_expects_is_not_computed(members: Members, small: nn.Module, tmp_path: Path) -> None:
    expecting = calling("torch.ops.aten._assert_tensor_metadata.default", a=TINY["input"], dtype={"as_scalar_type": 8})
    path = written(edited(members, PROGRAM, expecting), tmp_path / "m.pt2")
    images = torch.rand(3, 3, 8, 8)
    expected = small((images - 0.5) / 0.5)
    torch.testing.assert_close(robustkit.load(f"pt2:{path}", **HALF)(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", [0, -1])
def test_the_text_of_a_program_is_bounded(
    members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr("robustkit.slices.graphs.program._LARGEST", len(members[PROGRAM]) + more)
    path = written(members, tmp_path / "m.pt2")
    with (
        nullcontext() if not more else pytest.raises(CheckpointError, match=r"'m/models/.*' has 0 MB of text; expected")
    ):
        robustkit.load(f"pt2:{path}", **HALF)


def test_numbers_of_types_are_those_of_torch() -> None:
    for ours, count, theirs in (
        (_DTYPES, 10, serialize._TORCH_TO_SERIALIZE_DTYPE),
        (_FORMATS, 4, serialize._TORCH_TO_SERIALIZE_MEMORY_FORMAT),
        ({_STRIDED: torch.strided}, 1, serialize._TORCH_TO_SERIALIZE_LAYOUT),
        ({_FLOAT32: torch.float32}, 1, serialize._TORCH_TO_SERIALIZE_DTYPE),
    ):
        assert len(ours) == count and ours == {int(theirs[kind]): kind for kind in ours.values()}  # type: ignore[attr-defined, index]


def test_sizes_are_of_64_bits() -> None:
    add = _callable("_operator.add")
    assert add(1 << 62, (1 << 62) - 1) == (1 << 63) - 1
    for sign in (1, -1):
        with pytest.raises(OverflowError, match=r"a size of -?9e"):
            add(sign << 62, sign << 62)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("m/x", 8, 1, "'m/x' is encrypted"),
        ("/x", 8, 0, "'/x' points outside"),
        ("a\\x", 8, 0, r"'a\\\\x' points outside"),
        ("m/x", 41, 0xA0, "'m/x' points outside"),  # a link
        ("m/models/model.json", 8, 0, "'m/models/model.json' occurs twice"),
    ],
)
def test_members_that_torch_never_writes_are_refused(
    members: Members, tmp_path: Path, name: str, place: int, value: int, message: str
) -> None:
    """place: of a byte in the directory's entry."""
    path = written(members, tmp_path / "m.pt2")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("m/x", b"")
        archive.infolist()[-1].filename = name
    content = bytearray(path.read_bytes())
    content[content.rindex(name.encode()) - 46 + place] |= value
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"member {message}.*; refused: export it again"):
        robustkit.load(f"pt2:{path}", **HALF)


def test_two_programs_are_refused_whatever_else_there_is(members: Members, tmp_path: Path) -> None:
    more = {"models/n.json": members[PROGRAM], "serialized_exported_program.json": members[PROGRAM]}
    with pytest.raises(CheckpointError, match="2 programs; expected one"):
        robustkit.load(f"pt2:{written(members | more, tmp_path / 'm.pt2', '')}", **HALF)


def test_a_zip_that_inflates_or_claims_more_than_it_holds_is_refused(members: Members, tmp_path: Path) -> None:
    path = written(members, tmp_path / "m.pt2", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match=r"member 'm/data/.*' is compressed, which torch never does; refused"):
        robustkit.load(f"pt2:{path}", **HALF)
    content = bytearray(written(members, path).read_bytes())
    entry = content.rindex(b"m/data/weights/weight_0") - 46  # of the directory at the end
    content[entry + 20 : entry + 28] = (4000 << 20).to_bytes(4, "little") * 2
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="claims 4000 MB, more than the file has; refused"):
        robustkit.load(f"pt2:{path}", **HALF)


def test_other_files_and_options_that_do_not_apply_are_refused(small: nn.Module, tmp_path: Path) -> None:
    path = saved(program(small, 8), tmp_path / "m.pt2")
    for given, message in (
        ({"arch": "resnet18"}, "--arch resnet18 does not apply"),
        ({"img_size": 16}, "images of 16 x 16, but its graph takes 8 x 8 only; leave --img-size out"),
        ({"features": True}, "an exported graph has no head to take off"),
    ):
        with pytest.raises(ModelError, match=message):
            robustkit.load(f"pt2:{path}", **HALF, **given)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"a program of torch\.export, not weights; robustkit audit takes it as"):
        robustkit.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(CheckpointError, match=r"not a program of torch\.export \(File is not a zip file\)"):
        robustkit.load(f"pt2:{path}")
    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file"):
        robustkit.load(f"pt2:{tmp_path / 'gone.pt2'}")


def test_a_program_follows_its_images_to_a_device(small: nn.Module, tmp_path: Path, cuda: torch.device) -> None:
    found = robustkit.load(f"pt2:{saved(program(small, 8), tmp_path / 'm.pt2')}", **HALF)
    images = torch.rand(4, 3, 8, 8)
    before, there = found(images), found.to(cuda)(images.to(cuda))
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), before, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.to("cpu")(images), before, rtol=0, atol=0)


@pytest.mark.slow
def test_an_audit_attacks_a_program_by_its_gradients(tmp_path: Path) -> None:
    before = robustkit.load("zoo:shapes-vit-standard")
    path = saved(program(before.network, 64), tmp_path / "m.pt2")
    asked = {"data_dir": "embedded:shapes", "limit": 8, "setup_check": False, "device": "cpu", "evidence": "none"}
    asked |= {"attacks": "pgd(eps=4/255,steps=3)", "cams": "gradient,auto"}
    run = audit([f"pt2:{path}"], out=tmp_path / "run", model=HALF, **asked)
    usual = audit(["zoo:shapes-vit-standard"], out=tmp_path / "usual", **asked | {"cams": None})
    there, here = (
        each.table(name, "pgd(eps=4/255,steps=3)") for each, name in ((usual, "shapes-vit-standard"), (run, "m"))
    )
    assert here["nll"].to_pylist() == pytest.approx(there["nll"].to_pylist(), abs=1e-4)
    assert max(here["backwards"].to_pylist()) >= 1 and "cam(rise)" in run.manifest.conditions
    with pytest.raises(RobustkitError, match=r"AG-CAM needs a vision transformer .* use grad-cam or gradient"):
        audit([f"pt2:{path}"], out=tmp_path / "refused", model=HALF, **asked | {"cams": "agcam"})
