"""What networks return: probabilities and numbers from 0 to 1 in place of logits, and several outputs."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import robustkit
from robustkit.common.finding import Finding
from robustkit.common.preprocessing import LOGITS, PROBABILITIES, UNIT
from robustkit.errors import ModelError
from robustkit.models import architecture
from robustkit.models.outputs import LEAST, logarithms, with_logits
from robustkit.models.segmenter import load_segmenter

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
Form = Callable[[Tensor], Any]
Heads = namedtuple("Heads", "side main")
FACTORY = """
from torch import nn
class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.head, self.form = nn.Linear(48, 6), form
    def forward(self, images):
        return self.form(self.head(images.flatten(1)))
def soft(): return Net(lambda z: z.softmax(1))
def pair(): return Net(lambda z: (z[:, :3], z))
"""


class Net(nn.Module):
    """Six classes of images 4 x 4, returned in some form."""

    def __init__(self, form: Form, scale: float = 3.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.form = nn.Linear(48, 6), form
        with torch.no_grad():
            self.head.weight *= scale

    def forward(self, images: Tensor) -> Any:
        return self.form(self.head(images.flatten(1)))


def images(count: int = 12, side: int = 4) -> Tensor:
    torch.manual_seed(1)
    return torch.randint(256, (count, 3, side, side)) / 255


def as_classifier(form: Form, **more: Any) -> robustkit.Classifier:
    return robustkit.load(Net(form), pixels=True, img_size=4, **more)


def saved(network: nn.Module, folder: Path, door: str) -> tuple[str, dict[str, Any]]:
    """Return a network as a file of some kind, and the options by which it is loaded."""
    if door == "arch":
        torch.save(network.state_dict(), folder / "net.pth")
        (folder / "nets.py").write_text(FACTORY)
        return str(folder / "net.pth"), {"arch": f"{folder / 'nets.py'}:soft"}
    pytest.importorskip("robustkit.slices.graphs")
    if door == "pt2":
        program = torch.export.export(
            network.eval(), (torch.rand(2, 3, 4, 4),), dynamic_shapes=({0: torch.export.Dim("b")},)
        )
        torch.export.save(program, folder / "net.pt2")
        return f"pt2:{folder / 'net.pt2'}", {}
    pytest.importorskip("onnx", reason="onnx is not installed: pip install .[onnx]")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install .[onnx]")
    torch.onnx.export(network.eval(), (torch.rand(1, 3, 4, 4),), folder / "net.onnx", dynamo=True, verbose=False)
    return f"onnx:{folder / 'net.onnx'}", {}


# Probabilities


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", ["memory", "arch", "pt2", "onnx"])
def test_probabilities_count_as_their_logarithms_at_each_door(door: str, tmp_path: Path) -> None:
    network, shown = Net(lambda z: z.softmax(1)), images()
    if door == "memory":
        found = as_classifier(lambda z: z.softmax(1))
    else:
        spec, options = saved(network, tmp_path, door)
        found = robustkit.load(spec, pixels=True, img_size=4, **options)
    assert found.identity.num_classes == 6 and found.identity.outputs == PROBABILITIES
    with torch.no_grad():
        torch.testing.assert_close(found(shown), network.head(shown.flatten(1)).log_softmax(1), rtol=0, atol=1e-5)


FORMS: dict[str, tuple[Form, str]] = {
    "of a sigmoid and its rest": (lambda z: torch.stack([z[:, 0].sigmoid(), 1 - z[:, 0].sigmoid()], 1), PROBABILITIES),
    "divided by their sum": (lambda z: z.relu().add(1e-3) / z.relu().add(1e-3).sum(1, keepdim=True), PROBABILITIES),
    "in half precision": (lambda z: z.softmax(1).half(), PROBABILITIES),
    "hard": (lambda z: functional.one_hot(z.argmax(1), 6).float(), PROBABILITIES),
    "of a sigmoid": (lambda z: z.sigmoid(), UNIT),
    "rounded": (lambda z: (z.softmax(1) * 10).round() / 10, UNIT),
    "logits": (lambda z: z, LOGITS),
    "log-softmax": (lambda z: z.log_softmax(1), LOGITS),
    "logits from 0 to 1 for zeros": (lambda z: (z - z.mean()).abs() * z.std(), LOGITS),
    "the same for all": (lambda z: 0 * z + 0.25, LOGITS),
    "just above 1": (lambda z: z.sigmoid() * 1.01, LOGITS),
    "just below 0": (lambda z: z.sigmoid() - z.sigmoid().amin() - 1e-5, LOGITS),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_a_network_returns_is_judged_by_drawn_images(name: str) -> None:
    form, kind = FORMS[name]
    _, count, found, notes = with_logits(Net(form, scale=30), torch.zeros(1, 3, 4, 4))
    assert found == kind and (found == LOGITS) == (not notes) and count in (2, 6)


def test_a_clean_audit_of_a_softmax_is_that_of_its_logits(tmp_path: Path) -> None:
    """All figures but the names, under an attack, too, of which each step has the gradient of the logits."""
    shown, labels = images(40), torch.arange(40) % 6
    both = {"plain": Net(lambda z: z), "soft": Net(lambda z: z.softmax(1))}
    options: dict[str, Any] = {"pixels": True, "attacks": "pgd(steps=3)", "out": tmp_path / "run", "device": "cpu"}
    run = robustkit.audit(both, (shown, labels), setup_check=False, **options)
    rows = {name: {(r.condition, r.metric): r.value for r in run.summary() if r.checkpoint == name} for name in both}
    assert rows["soft"] == pytest.approx(rows["plain"], abs=1e-5) and ("clean", "ece") in rows["soft"]
    assert run.manifest.checkpoint("soft").outputs == PROBABILITIES
    odd = {"model/zero-probability", "model/unit-outputs"}
    assert not odd & {each.code for row in run.summary() for each in row.findings}


def test_a_probability_of_0_is_the_least_number_and_flagged(tmp_path: Path) -> None:
    p = torch.tensor([[0.0, 1e-45, 1e-40, 2e-38, 0.5]], requires_grad=True)
    found = logarithms(p)
    assert found[0].tolist() == pytest.approx([*[math.log(LEAST)] * 2, *map(math.log, (1e-40, 2e-38, 0.5))], rel=1e-5)
    (found.sum() + 0 * found[0, 0]).backward()
    assert p.grad is not None and p.grad.isfinite().all() and p.grad[0, :3].tolist() == [0, 0, 0]
    hard, labels = Net(lambda z: (1000 * z).softmax(1)), torch.arange(12) % 6
    run = robustkit.audit(hard, (images(), labels), pixels=True, attacks="none", out=tmp_path, setup_check=False)
    missed = sum(not right for right in run.table("Net", "clean")["correct"].to_pylist())
    words = f"{missed} of 12 samples have a label of probability 0, which counts as 2^-149 (NLL 103.3)"
    assert 0 < missed < 12 and Finding("model/zero-probability", words) in run.summary()[0].findings


def test_rows_that_do_not_sum_to_1_after_all_are_refused() -> None:
    """Only drawn images gave probabilities; gradients of them are not checked again, answers are."""
    found = as_classifier(lambda z: z.softmax(1) * (1 + (z.mean() > 50)))
    with (
        torch.no_grad(),
        pytest.raises(ModelError, match="Net returned probabilities for drawn images, and now numbers"),
    ):
        found(torch.full((1, 3, 4, 4), 1.0) * 1e4 * found.network.network.head.weight.sum(0).view(1, 3, 4, 4).sign())


@pytest.mark.parametrize(("factor", "flagged"), [(1.0, True), (4.0, False)])
def test_outputs_of_a_sigmoid_are_flagged_where_the_data_agree(factor: float, flagged: bool, tmp_path: Path) -> None:
    """The second network stays below 1 for what is drawn, and not for bright images, which are no sigmoid's."""

    class Bounded(Net):
        def forward(self, images: Tensor) -> Tensor:
            bright = (images.flatten(1).mean(1) > 0.9).float()[:, None]
            return super().forward(images).sigmoid() * (1 + (factor - 1) * bright)  # type: ignore[no-any-return]

    shown = torch.cat([images(6), torch.full((6, 3, 4, 4), 250 / 255)])
    network = Bounded(lambda z: z)
    run = robustkit.audit(
        network, (shown, torch.arange(12) % 6), pixels=True, attacks="none", out=tmp_path, setup_check=False
    )
    assert run.manifest.checkpoints[0].outputs == UNIT
    found = [each.text for each in run.summary()[0].findings if each.code == "model/unit-outputs"]
    assert len(found) == flagged and all("as after a sigmoid; they were assumed to be logits" in text for text in found)


class Picky(Net):
    """A network that takes pixels alone."""

    def forward(self, images: Tensor) -> Any:
        if images.min() < 0 or images.max() > 1:
            raise ValueError("no pixels")
        return super().forward(images)


def test_a_network_may_refuse_what_no_image_is_and_nothing_else() -> None:
    *_, kind, _ = with_logits(Picky(lambda z: z.softmax(1)), torch.zeros(1, 3, 4, 4))
    assert kind == PROBABILITIES

    class Fussy(Net):
        def forward(self, images: Tensor) -> Any:
            if images.any():
                raise ValueError("no zeros")
            return super().forward(images).softmax(1)

    with pytest.raises(ModelError, match=r"Fussy fails on drawn inputs .ValueError: no zeros.; expected a net"):
        with_logits(Fussy(lambda z: z), torch.zeros(1, 3, 4, 4))


def test_one_output_that_is_always_1_is_a_sigmoid_of_the_second_class() -> None:
    found = as_classifier(lambda z: 0 * z[:, :1] + 1)
    with torch.no_grad():
        assert found(images(2)).softmax(1).tolist() == [[LEAST, 1]] * 2


@pytest.mark.parametrize("name", ["a logit", "its sigmoid"])
def test_one_output_is_the_logit_of_the_second_class(name: str) -> None:
    found = as_classifier(lambda z: z[:, :1] if name == "a logit" else z[:, :1].sigmoid())
    with torch.no_grad():
        logit = Net(lambda z: z[:, 0])(images())
        torch.testing.assert_close(found(images()).softmax(1)[:, 1], logit.sigmoid())
    assert found.identity.num_classes == 2
    assert found.identity.notes[-1].startswith(f"one output, {name}: two classes, the second where")


# Several outputs


@dataclass
class Output:
    """An object with attributes, as transformers has them."""

    hidden: Tensor
    scores: Tensor


SEVERAL: dict[str, tuple[Form, dict[str, Any]]] = {
    "the only one": (lambda z: (z[:, :, None], z), {}),
    "logits": (lambda z: {"features": z[:, :5], "logits": z}, {}),
    "an attribute": (lambda z: type("Answer", (), {"logits": z, "other": z[:, :2]})(), {}),
    "place": (lambda z: (z[:, :5], z), {"output": 1}),
    "place as text": (lambda z: [z[:, :5], z], {"output": "1"}),
    "key": (lambda z: {"features": z[:, :5], "main": z}, {"output": "main"}),
    "name": (lambda z: Heads(-z, z), {"output": "main"}),
    "place of a name": (lambda z: Heads(-z, z), {"output": 1}),
    "field": (lambda z: Output(-z, z), {"output": "scores"}),
    "inside": (lambda z: (-z, {"a": [z.flip(1), z]}), {"output": "1.a.1"}),
    "classes": (lambda z: (z[:, :5], z), {"num_classes": 6}),
    "not of images": (lambda z: (z[:1].expand(4, 6), z, z.sum()), {}),
    "probabilities": (lambda z: (z, z.softmax(1)), {"output": 1}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_the_logits_are_the_output_that_is_named_or_the_only_one(name: str) -> None:
    form, options = SEVERAL[name]
    found, shown = as_classifier(form, **options), images()
    with torch.no_grad():
        expected = Net(lambda z: z)(shown)
        torch.testing.assert_close(found(shown).log_softmax(1), expected.log_softmax(1))
    assert found.identity.num_classes == 6
    noted = any(note.startswith("of what the network returns, ") for note in found.identity.notes)
    assert noted == (name != "an attribute")  # of which there is but one


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        (
            lambda z: (z[:, :5], z),
            {},
            r"several outputs .*: 0 \(1, 5\), 1 \(1, 6\); name them: --logits 0, or output=0 in",
        ),
        (lambda z: {"a": -z, "b": z}, {}, r"a \(1, 6\), b \(1, 6\); name them: --logits a, or output='a' in Python"),
        (lambda z: (z[:, :5], z), {"num_classes": 7}, "several outputs"),
        (lambda z: (-z, z), {"num_classes": 6}, "several outputs"),
        (lambda z: (z[:, :5], z), {"output": 2}, r"output 2 is none of its outputs; it returns 0 \(1, 5\), 1 \(1, 6\)"),
        (lambda z: (z.sum(), z), {"output": 0}, "output 0 has not 2 dimensions, the first of images; it returns"),
        (lambda z: (z[..., None], z.sum()), {}, r"returns 0 \(1, 6, 1\), 1 \(\); expected logits, of 2 dimensions"),
        (lambda z: z, {"output": 0}, "returns a single tensor, and output 0 was asked for; leave --logits out"),
        (lambda z: z, {"num_classes": 5}, "gives 6 classes, not 5; check num_classes"),
        (lambda z: ["no tensor"], {}, "returned list without a tensor; expected logits of shape"),
        (lambda z: None, {}, "returned NoneType without a tensor"),
        (lambda z: {str(n): z for n in range(10)}, {}, r"7 \(1, 6\) and 2 more; name them"),
    ],
)
def test_outputs_that_leave_a_choice_are_listed(form: Form, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as fault:
        as_classifier(form, **options)
    assert "\n" not in str(fault.value)


def test_the_option_is_for_code_graphs_and_memory(tmp_path: Path) -> None:
    torch.save(Net(lambda z: z).state_dict(), tmp_path / "net.pth")
    (tmp_path / "nets.py").write_text(FACTORY)
    options: dict[str, Any] = {"arch": f"{tmp_path}/nets.py:pair", "pixels": True, "img_size": 4}
    assert robustkit.load(tmp_path / "net.pth", output=1, **options).identity.num_classes == 6
    assert robustkit.load(tmp_path / "net.pth", output="0", **options).identity.num_classes == 3
    for spec, more in (("zoo:shapes-cnn", {}), ("timm:resnet10t", {"pretrained": False})):
        with pytest.raises(ModelError, match=f"--logits 1 does not apply to {spec}: its only output"):
            robustkit.load(spec, output=1, **more)
    with pytest.raises(ModelError, match="its features are taken; leave it out"):
        robustkit.load(tmp_path / "net.pth", output=1, features=True, **options)
    run = robustkit.audit(
        Net(lambda z: (z[:, :5], z)),
        (images(), torch.arange(12) % 6),
        pixels=True,
        output=1,
        attacks="none",
        out=tmp_path / "run",
    )
    assert run.manifest.checkpoints[0].num_classes == 6 and run.manifest.arguments["model"]["output"] == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("door", "choices"), [("pt2", ["1", 1]), ("onnx", [1])])
def test_a_graph_of_several_outputs_has_one_by_name_or_place(door: str, choices: list[Any], tmp_path: Path) -> None:
    network, shown = Net(lambda z: (z[:, :5].relu(), z.softmax(1))), images()
    spec, _ = saved(network, tmp_path, door)
    with pytest.raises(ModelError, match=r"net.\w+ returns several outputs that may be its logits"):
        robustkit.load(spec, pixels=True)
    if door == "onnx":
        import onnx

        choices = [*choices, onnx.load(tmp_path / "net.onnx").graph.output[1].name]
    for choice in choices:
        found = robustkit.load(spec, pixels=True, output=choice)
        with torch.no_grad():
            torch.testing.assert_close(found(shown).exp(), network(shown)[1], rtol=0, atol=1e-5)
        assert found.identity.outputs == PROBABILITIES and "is taken as its logits" in found.identity.notes[-2]


# Segmenters


@pytest.mark.parametrize("window", [None, 8])
def test_probabilities_of_pixels_are_averaged_before_their_logarithms(window: int | None) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, 1, 1)
    soft, plain = (
        load_segmenter(nn.Sequential(layer, *last), pixels=True, window=window) for last in ([nn.Softmax(1)], [])
    )
    shown = images(2, 16)
    with torch.no_grad():
        found, expected = soft(shown), plain(shown)
    assert (soft.identity.outputs, plain.identity.outputs) == (PROBABILITIES, LOGITS)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(2, 16, 16))
    if window is None:
        torch.testing.assert_close(found, expected.log_softmax(1))


def test_a_segmenter_of_several_heads_needs_a_choice() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 1)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return -self.layer(images), self.layer(images)

    network, shown = Two(), images(1, 16)
    with pytest.raises(ModelError, match=r"0 \(1, 4, 128, 128\), 1 \(1, 4, 128, 128\); name them: --logits 0"):
        load_segmenter(network, pixels=True)
    with torch.no_grad():
        torch.testing.assert_close(load_segmenter(network, pixels=True, output=1)(shown), network.layer(shown))


# A pass that takes long


@pytest.mark.parametrize(("patience", "words"), [(0.01, 1), (60, 0)])
def test_a_long_pass_says_so(
    patience: float, words: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import time

    monkeypatch.setattr(architecture, "_PATIENCE", patience)
    architecture.asked(Net(lambda z: time.sleep(0.2)), torch.zeros(1, 3, 4, 4))
    said = capsys.readouterr().err
    assert said.count("Net has computed a single input for") == words == said.count("Ctrl-C ends it, or else: kill ")
