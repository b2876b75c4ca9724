"""Exported graphs: logits of onnxruntime and of the float model, what a file may claim, audits without gradients."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustkit
from robustkit.errors import CheckpointError, ModelError, RobustkitError
from robustkit.models.checkpoint import sha256
from robustkit.pipeline.audit import audit
from robustkit.runs.description import why_not_repeated
from robustkit.slices.graphs import onnx_file

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install .[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install .[onnx]")

pytestmark = pytest.mark.usefixtures("one_thread")
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def export(network: nn.Module, path: Path, side: int, rows: int | None = None, **more: Any) -> Path:
    shapes = None if rows else ({0: torch.export.Dim("rows")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images = torch.rand(rows or 3, 3, side, side)
        options = {"dynamo": True, "verbose": False, "external_data": False, "dynamic_shapes": shapes, **more}
        torch.onnx.export(network.eval(), (images,), path, **options)
    return path


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


def logits_alone(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])


@pytest.mark.parametrize("external", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_vit_answers_as_it_does_before_it_is_exported(tmp_path: Path, external: bool) -> None:
    before, images = robustkit.load("zoo:shapes-vit-standard"), torch.rand(5, 3, 64, 64)
    path = export(before.network, tmp_path / "vit.onnx", 64, external_data=external)
    after = robustkit.load(f"onnx:{path}", **HALF)
    assert list(tmp_path.glob("*.data")) == [tmp_path / "vit.onnx.data"] * external
    torch.testing.assert_close(after(images), before(images), rtol=0, atol=1e-4)
    torch.testing.assert_close(after(images), logits_alone(path, (images - 0.5) / 0.5), rtol=0, atol=1e-5)
    identity = after.identity
    assert (identity.arch, identity.attention, identity.attention_source) == ("onnx", "other", "n/a")
    assert identity.num_classes == 10 and identity.preprocessing.input_size == (64, 64)
    assert (
        identity.preprocessing_source["input_size"] == "network" and identity.preprocessing_source["mean"] == "option"
    )
    assert not after(images.requires_grad_()).requires_grad
    for again in (pickle.loads(pickle.dumps(after)), copy.deepcopy(after)):
        assert torch.equal(again(images), after(images))
    if external:  # the digest is of all weights
        data = tmp_path / "vit.onnx.data"
        data.write_bytes(data.read_bytes()[:-4] + b"\0\0\0\1")
        assert robustkit.load(f"onnx:{path}", **HALF).identity.sha256 != identity.sha256


def test_a_graph_of_a_fixed_number_of_images_is_filled(tmp_path: Path) -> None:
    network, images = cnn(), torch.rand(7, 3, 16, 16)
    network(images)
    path = export(network.eval(), tmp_path / "cnn.onnx", 16, rows=3)
    found = robustkit.load(f"onnx:{path}", **HALF)
    with torch.no_grad():
        torch.testing.assert_close(found(images), network((images - 0.5) / 0.5), rtol=0, atol=1e-4)
    assert found.identity.attention == "none" and found.network.rows == (3, 3)


def test_what_a_file_says_about_its_input_counts_and_what_nobody_says_is_flagged(tmp_path: Path) -> None:
    network = cnn()
    network(torch.rand(1, 3, 16, 16))
    path = export(network, tmp_path / "cnn.onnx", 16)
    with pytest.warns(robustkit.errors.RobustkitWarning, match="mean=.* assumed"):
        silent = robustkit.load(f"onnx:{path}").identity
    assert silent.preprocessing_source["mean"] == "default" and any("NO NORMALISATION" in n for n in silent.notes)
    model = onnx.load(path)
    said = {"mean": "[0.1, 0.2, 0.3]", "std": "[0.4, 0.5, 0.6]", "class_names": '["a", "b", "c", "d"]', "arch": "x"}
    onnx.helper.set_model_props(model, said)
    onnx.save(model, path)
    identity = robustkit.load(f"onnx:{path}").identity
    assert identity.preprocessing.mean == (0.1, 0.2, 0.3) and identity.preprocessing_source["std"] == "metadata"
    assert identity.class_names == ("a", "b", "c", "d") and identity.arch == "onnx"


def graph(**changes: Any) -> Any:
    """Return a small graph of images to logits, with some parts changed."""
    helper, kind = onnx.helper, onnx.TensorProto
    weight = onnx.numpy_helper.from_array(np.ones((12, 4), np.float32), "w")
    parts = {
        "nodes": [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])],
        "inputs": [helper.make_tensor_value_info("x", kind.FLOAT, ["b", 3, 2, 2])],
        "outputs": [helper.make_tensor_value_info("y", kind.FLOAT, ["b", 4])],
        "weights": [weight],
        "opsets": [helper.make_opsetid("", 17)],
    } | changes
    made = helper.make_graph(parts["nodes"], "g", parts["inputs"], parts["outputs"], parts["weights"])
    return helper.make_model(made, opset_imports=parts["opsets"], ir_version=9)


def outside(location: str, sides: tuple[int, ...] = (12, 4)) -> Any:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=sides)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return graph(weights=[tensor])


def information(name: str, shape: list[Any], kind: str = "FLOAT") -> Any:
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)


def of_size(*sides: int) -> Any:
    return graph(weights=[onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=sides)])


def custom() -> Any:
    nodes = [onnx.helper.make_node("Run", ["x"], ["y"], domain="com.example")]
    return graph(nodes=nodes, opsets=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.example", 1)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: outside("/etc/passwd"), "weights in '/etc/passwd', outside of its folder; refused"),
        (lambda: outside("../w.bin"), r"weights in '\.\./w\.bin', outside of its folder"),
        (lambda: outside("link/../w.bin"), r"weights in 'link/\.\./w\.bin', outside of its folder"),
        (lambda: outside("link/w.bin"), "weights in 'link/w.bin', outside of its folder"),
        (lambda: outside("gone.bin"), r"its weights 'gone\.bin' cannot be read \(No such file"),
        (lambda: of_size(1 << 20, 1 << 10), "0 MB of files claim to be 4096 MB of weights; refused"),
        (lambda: of_size(-1, 4), "tensor 'w' has a negative side"),
        (
            custom,
            r"operators that are not onnxruntime's own \(com.example:Run\), which need code; export .*--custom-ops",
        ),
        (lambda: graph(opsets=[onnx.helper.make_opsetid("", 99)]), "onnxruntime .* does not load it .*opset"),
        (lambda: graph(inputs=[information("x", ["b", 3, 2, 2], "UINT8")]), "its input is uint8; expected float32"),
        (
            lambda: graph(inputs=[information("x", ["b", 17, 2, 2])]),
            r"its input is \? x 17 x 2 x 2; expected images of 1 to 16",
        ),
        (lambda: graph(outputs=[]), "no output; expected logits"),
        (
            lambda: graph(outputs=[information("y", ["b", 4], "DOUBLE")]),
            "its output is double; expected float32 logits",
        ),
    ],
)
def test_a_file_that_claims_too_much_or_fits_nothing_is_refused(
    tmp_path: Path, make: Callable[[], Any], message: str
) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(192))
    (folder / "link").symlink_to(tmp_path)
    path = folder / "m.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises(CheckpointError, match=message) as caught:
        robustkit.load(f"onnx:{path}", **HALF)
    assert "\n" not in str(caught.value)


def test_other_files_and_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(graph().SerializeToString())
    spec = f"onnx:{path}"
    assert robustkit.load(spec, **HALF)(torch.rand(2, 3, 2, 2)).shape == (2, 4)
    for given, message in (
        ({"arch": "resnet18"}, "--arch resnet18 does not apply"),
        ({"use_ema": True}, "--use-ema does not apply"),
        ({"allow_partial": True}, "--allow-partial does not apply"),
        ({"num_classes": 4}, "--num-classes 4 does not apply"),
        ({"img_size": 8}, "images of 8 x 8, but its graph takes 2 x 2 only; leave --img-size out"),
        ({"features": True}, "an exported graph has no head to take off"),
    ):
        with pytest.raises(ModelError, match=message):
            robustkit.load(spec, **HALF, **given)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"an ONNX graph, not weights; robustkit audit takes it as onnx:"):
        robustkit.load(path)
    path.write_bytes(b"no graph at all")
    with pytest.raises(CheckpointError, match="not an ONNX file"):
        robustkit.load(spec)


def test_a_library_of_operators_runs_only_where_it_is_named(tmp_path: Path) -> None:
    helper, domain = onnx.helper, "ai.onnx.contrib"
    parts = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("NegPos", ["f"], ["n", "p"], domain=domain)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    made = graph(nodes=[*parts, helper.make_node("MatMul", ["p", "w"], ["y"])], opsets=opsets)
    path, images = tmp_path / "m.onnx", torch.rand(3, 3, 2, 2)
    path.write_bytes(made.SerializeToString())
    with pytest.raises(CheckpointError, match=r"\(ai\.onnx\.contrib:NegPos\), which need code"):
        robustkit.load(f"onnx:{path}", **HALF)
    with pytest.raises(
        ModelError, match=r"--custom-ops .*m\.onnx: cannot be loaded \(.*\); expected a library built for"
    ):
        robustkit.load(f"onnx:{path}", custom_ops=path, **HALF)
    with pytest.raises(ModelError, match=r"--custom-ops .* does not apply to zoo:shapes-cnn: expected onnx:FILE"):
        robustkit.load("zoo:shapes-cnn", custom_ops=path)
    command = f"robustkit audit onnx:m.onnx --custom-ops {path} --data-dir val"
    assert "it would run custom code (--custom-ops)" in why_not_repeated(command)
    library = pytest.importorskip("onnxruntime_extensions", reason="onnxruntime_extensions is not installed")
    place = Path(library.get_library_path())
    found = robustkit.load(f"onnx:{path}", custom_ops=place, **HALF)
    sums = ((images - 0.5) / 0.5).clamp(min=0).flatten(1).sum(1, keepdim=True).expand(3, 4)
    torch.testing.assert_close(found(images), sums)
    assert found.identity.code_sha256 == sha256(place)
    assert torch.equal(pickle.loads(pickle.dumps(found))(images), found(images))


@pytest.mark.slow
def test_an_audit_asks_for_answers_alone(tmp_path: Path) -> None:
    path = export(robustkit.load("zoo:shapes-vit-standard").network, tmp_path / "vit.onnx", 64)
    asked = {"data_dir": "embedded:shapes", "limit": 6, "setup_check": False, "model": HALF, "device": "cpu"}
    for given, message in (
        ({"attacks": "square,pgd"}, r"pgd\(eps=1/255,steps=20\): needs gradients, which vit lacks; expected attacks"),
        ({"attacks": "none", "cams": "grad-cam"}, "grad-cam needs gradients, which it does not have; use rise"),
    ):
        with pytest.raises(RobustkitError, match=message):
            audit([f"onnx:{path}"], out=tmp_path / "refused", **asked, **given)
    attacks = "square(queries=20),spsa(steps=1,directions=2),hopskipjump(queries=40)"
    run = audit([f"onnx:{path}"], attacks=attacks, cams="rise(masks=4),random", out=tmp_path / "run", **asked)
    for text in [*run.manifest.conditions][1:4]:
        spent = run.table("vit", text)
        assert min(spent["forwards"].to_pylist()) >= 1 and not any(spent["backwards"].to_pylist())
    few = asked | {"limit": 1, "eps": "128/255", "evidence": "none"}  # so large that a few queries are enough
    usual = audit([f"onnx:{path}"], out=tmp_path / "usual", **few)
    assert [*usual.manifest.conditions] == ["clean", "square(eps=128/255,queries=5000)"]


def looping(steps: str, numbers: str = "", functions: str = "") -> Any:
    """Return a graph of images to four times their sum, by some steps from `f` to `g`; `zero` and `n` are constants."""
    weights = f"float[12,4] w = {{{', '.join(['1'] * 48)}}}, float zero = {{0}}"
    opsets = 'opset_import: ["" : 17, "own" : 1]'
    return onnx.parser.parse_model(
        f"<ir_version: 9, {opsets}> g (float[b,3,2,2] x) => (float[b,4] y) <{weights}{numbers}> "
        f"{{ f = Flatten(x) {steps} y = MatMul(g, w) }} {functions}"
    )


def loop(rounds: str, inside: str = "u = Add(v, zero)", level: int = 0, kind: str = "Loop") -> str:
    body = f"b{level} (int64 i{level}, bool c{level}, float[b,12] v) => (bool d{level}, float[b,12] u)"
    inside = inside.replace("v", f"v{level}").replace("u = ", f"u{level} = ")
    body = body.replace(" v)", f" v{level})").replace(" u)", f" u{level})")
    return f"{kind} ({rounds}, , f) <body = {body} {{ d{level} = Identity(c{level}) {inside} }}>"


ROUNDS = ", int64 n = {%d}"
OWN = '<domain: "own", opset_import: ["" : 17, "own" : 1]> %s (a) => (e) { %s }'
DOUBLED = [OWN % ("f0", "e = Identity(a)")]
DOUBLED += [OWN % (f"f{k}", f"h = own.f{k - 1}(a) e = own.f{k - 1}(h)") for k in range(1, 21)]
TWICE = loop("n", f"u = {loop('n', level=1)}")


@pytest.mark.parametrize(
    ("steps", "numbers", "functions", "message"),
    [
        (
            f"g = {loop('n')}",
            ROUNDS % 2**60,
            "",
            r"its loops it runs 3.5e\+18 operators .*; expected 1,048,576 at most",
        ),
        (f"g = {loop('n')}", ROUNDS % 350_000, "", "with its loops it runs 1.1e\\+06 operators for an image"),
        (f"h = {loop('m')} g = {loop('n')}", f", int64 m = {{{-(2**61)}}}{ROUNDS % 2**60}", "", "it runs 3.5e"),
        (f"g = {TWICE}", ROUNDS % 1000, "", "with its loops it runs 3.0e\\+06 operators"),
        (f"s = Size(f) g = {loop('s')}", "", "", "the number of rounds of its Loop '' is no constant of the file"),
        (f"k = Constant <value_int: int = 1152921504606846976> () g = {loop('k')}", "", "", "its loops it runs 3"),
        ("g = own.loops(f)", "", OWN % ("loops", f"s = Size(a) f = Identity(a) e = {loop('s')}"), "is no constant"),
        ("g = own.f20(f)", "", " ".join(DOUBLED), r"with its loops it runs 3.1e\+06 operators"),
    ],
)
def test_a_graph_that_may_never_end_is_refused(
    tmp_path: Path, steps: str, numbers: str, functions: str, message: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(looping(steps, numbers, functions).SerializeToString())
    with pytest.raises(CheckpointError, match=message) as caught:
        robustkit.load(f"onnx:{path}", **HALF)
    assert "\n" not in str(caught.value) and "export it" in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "numbers", "functions"),
    [
        (f"g = {loop('n')}", ROUNDS % 5, ""),
        (f"g = {loop('n')}", ROUNDS % -1, ""),
        (f"g = {TWICE}", ROUNDS % 20, ""),
        (f"k = Constant <value_int: int = 3> () g = {loop('k')}", "", ""),
        ("g = own.f9(f)", "", " ".join(DOUBLED[:10])),
    ],
)
def test_a_graph_whose_loops_end_is_evaluated(tmp_path: Path, steps: str, numbers: str, functions: str) -> None:
    path, images = tmp_path / "m.onnx", torch.rand(2, 3, 2, 2)
    path.write_bytes(looping(steps, numbers, functions).SerializeToString())
    found = robustkit.load(f"onnx:{path}", pixels=True)
    torch.testing.assert_close(found(images), images.sum((1, 2, 3))[:, None].expand(2, 4))


def test_operators_are_counted_in_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two around a loop of five rounds, which runs two operators a round and is one itself."""
    path = tmp_path / "m.onnx"
    path.write_bytes(looping(f"g = {loop('n')}", ROUNDS % 5).SerializeToString())
    monkeypatch.setattr(onnx_file, "_RUNS", 17)
    assert robustkit.load(f"onnx:{path}", **HALF).identity.num_classes == 4
    monkeypatch.setattr(onnx_file, "_RUNS", 16)
    with pytest.raises(CheckpointError, match=r"runs 1.7e\+01 operators for an image; expected 16 at most"):
        robustkit.load(f"onnx:{path}", **HALF)
