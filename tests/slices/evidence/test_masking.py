"""Every way to mislead a gradient raises its own findings on a model that works; an ordinary model raises none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from cheating_models import off_grid, per_row
from torch import Tensor

import robustkit
from attacks import ThreatModel
from robustkit.data import shapes
from robustkit.evaluations.attacks.ranking import Sign
from robustkit.slices.evidence.examining import examine
from robustkit.slices.evidence.gradient_masking import checks_of

pytestmark = pytest.mark.usefixtures("one_thread")
EPS = 8 / 255
Net = Callable[[Tensor], Tensor]
FIRST = ("random outputs", "probabilities", "gradient path", "zero gradients", "cross-entropy underflow")
SLOPES = ("slope", "slope afar", "slope aside")
OLD = (*FIRST, "gradients not finite", *SLOPES, "precision", "loss by steps", "accuracy by radius")
ASKED = (
    "finite answers",
    "graph",
    "batches",
    "full batch",
    "called again",
    "caller",
    "under attack",
    "continuity",
    "path",
)
CHECKS = (*OLD, *ASKED, "survives saving", "known images", "afterwards", "attention", "black box beats white box")
OF_RIGHT = {*SLOPES, "loss by steps", "accuracy by radius", "path", "survives saving", "known images"}
UNASKED = {
    "afterwards",
    "attention",
    "full batch",
    "under attack",
    "black box beats white box",
}  # no attack is given here
FLAT = {"zero gradients", "loss by steps", "accuracy by radius"}  # an attack that stands still


@pytest.fixture(scope="module")
def net() -> Net:
    return robustkit.load("zoo:shapes-vit-standard")


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    samples = [shapes.render("test", index) for index in range(4)]
    pixels = torch.from_numpy(np.stack([sample.pixels for sample in samples])).permute(0, 3, 1, 2) / 255
    return pixels, torch.tensor([sample.label for sample in samples])


def look(
    net: Net, batch: tuple[Tensor, Tensor], norm: Any = "linf", eps: float = EPS, size: int = 16
) -> dict[str, Any]:
    rng = Draws(range(len(batch[0])))
    figures = examine(net, *batch, ThreatModel(norm, eps), rng=rng, batch_size=size)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    return figures


def said(check: Sign) -> str:
    return check.finding.text if check.finding else ""


def doubted(figures: Mapping[str, Any]) -> set[str]:
    """Return the names of the checks with a finding, which says what was measured and what to do instead."""
    found = set()
    assert tuple(check.name for check in checks_of(figures)) == CHECKS
    for check in filter(said, checks_of(figures)):
        is_measured = not check.figure.startswith("not measured")
        assert check.finding and check.finding.code == code_of(check.name if is_measured else "unmeasured")
        assert re.fullmatch(rf"{re.escape(f'{check.name}: {check.figure}')}{': .+' * is_measured}; .+", said(check))
        found |= {check.name} if is_measured else set()
    return found


def code_of(name: str) -> str:
    return f"masking/{name.replace(' ', '-')}"


def unmeasured(figures: Mapping[str, Any]) -> set[str]:
    return {check.name for check in checks_of(figures) if check.figure.startswith("not measured")}


def straight_through(levels: int) -> Net:
    return lambda x: x + (torch.round(x * levels) / levels - x).detach()


def nan_backward(x: Tensor) -> Tensor:
    return x + 0 * torch.sqrt(x - x)  # forward x + 0; the slope of the root at 0 is infinite


@pytest.mark.parametrize(
    ("name", "norm", "eps"),
    [
        ("zoo:shapes-vit-standard", "linf", 1 / 255),
        ("zoo:shapes-vit-standard", "l2", 0.5),
        ("zoo:shapes-vit-quest", "linf", EPS),
    ],
)
def test_an_ordinary_model_raises_no_finding(name: str, norm: str, eps: float, batch: tuple[Tensor, Tensor]) -> None:
    figures = look(robustkit.load(name), batch, norm, eps)
    assert doubted(figures) == set()
    assert unmeasured(figures) == UNASKED | ({"survives saving"} if norm == "l2" else set())
    assert figures["slope"] == pytest.approx(1, abs=0.01) and figures["slope_error"] < 0.01
    assert figures["accuracy"][0] == 1 and figures["accuracy"][-1] == 0
    assert figures["accuracy"] == sorted(figures["accuracy"], reverse=True)
    assert figures["loss"] == sorted(figures["loss"]) and figures["loss_steps"] == [0, 1, 5, 20]
    assert figures["radii"][1] == pytest.approx(eps, rel=1e-5)
    assert figures["radii"][-1] == pytest.approx(0.5 if norm == "linf" else 0.25 * (3 * 64 * 64) ** 0.5, rel=1e-5)
    assert 20 < figures["backwards"] < figures["forwards"] < 140


@pytest.mark.parametrize(
    ("name", "expected", "absent"),
    [
        ("dropout", {"random outputs"}, {*SLOPES}),
        ("softmax", {"probabilities"}, set()),
        ("detached", {"gradient path"}, {*CHECKS[3:9], *OF_RIGHT}),
        ("stairs", {*FLAT, "slope aside"}, {"slope", "slope afar"}),
        ("huge logits", {"cross-entropy underflow"}, set()),
        ("NaN backwards", {"gradients not finite", "loss by steps", "accuracy by radius"}, {*SLOPES}),
        ("straight-through 8", {"slope", "slope aside", "path"}, set()),
    ],
)
def test_each_kind_of_masking_raises_its_own_findings(
    name: str, expected: set[str], absent: set[str], net: Net, batch: tuple[Tensor, Tensor]
) -> None:
    masked: dict[str, Net] = {
        "dropout": lambda x: torch.nn.functional.dropout(net(x), 0.1),
        "softmax": lambda x: net(x).softmax(dim=1),
        "detached": lambda x: net(x.detach()),
        "stairs": lambda x: net(torch.floor(x * 255 + 0.5) / 255),
        "huge logits": lambda x: 1e4 * net(x),
        "NaN backwards": lambda x: net(nan_backward(x)),
        "straight-through 8": lambda x: net(straight_through(8)(x)),
    }
    torch.manual_seed(0)  # for the dropout
    figures = look(masked[name], batch)
    assert doubted(figures) == expected
    assert unmeasured(figures) == absent | UNASKED


@pytest.mark.parametrize("levels", [16, 32, 64])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 1 / 255), ("linf", EPS), ("l2", 0.5)])
def test_made_up_gradients_of_fine_rounding_are_found(levels: int, norm: str, eps: float) -> None:
    model, images, quantise = tiny_cnn(), random_images(16), straight_through(levels)
    rounded = look(lambda x: model(quantise(x)), (images, model(quantise(images)).argmax(dim=1)), norm, eps)
    assert doubted(rounded) == {"slope", "slope aside"}


@pytest.mark.parametrize(("norm", "eps"), [("linf", 1 / 255), ("linf", EPS), ("l2", 0.5)])
def test_the_same_network_without_rounding_raises_no_finding(norm: str, eps: float) -> None:
    model, images = tiny_cnn(), random_images(16)
    plain = look(model, (images, model(images).argmax(dim=1)), norm, eps)
    assert doubted(plain) == set() and plain["slope_error"] < 0.01


def test_figures_count_what_they_say(batch: tuple[Tensor, Tensor]) -> None:
    """A linear model of two pixels, whose figures are known: margin 2 (a - b) for label 1, slope exactly 1."""
    images = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.5, 0.25]])
    labels = torch.tensor([0, 1, 1])  # the last is wrong
    weights = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    figures = look(lambda x: x @ weights, (images, labels), eps=0.1)
    assert (figures["samples"], figures["right"], figures["slope_samples"]) == (3, 2, 2)
    assert figures["slope"] == pytest.approx(1, abs=1e-3)
    # Each step of 0.015 moves both pixels: 4 * 0.015 a step, until 0.1 is reached.
    # It begins within a tenth of that from the image.
    assert figures["loss"] == pytest.approx([-1.0, -0.94, -0.7, -0.6], abs=0.041)
    assert [figures["loss"][place] for place in (0, 3)] == pytest.approx([-1, -0.6], abs=1e-5)
    assert figures["radii"] == pytest.approx([0, *(0.1 * 5 ** (power / 5) for power in range(6))], rel=1e-5)
    assert figures["accuracy"] == [1, 1, 1, 1, 0, 0, 0]  # both fall where eps passes 0.25: 0.263 is the first
    assert (figures["zero_margin"], figures["bad_margin"], figures["random_difference"]) == (0, 0, 0)
    # One forward of one image to see its dtypes, 3 + 2 of all, 18 of two points asked in nine ways, 2 of jumps; for the
    # right ones 4 of slopes along gradients, 5 + 6 + 6 of those in random directions at three points, 2 + 6 + 21 of
    # losses, 3 * 11 of radii that hold, and 5 + 1 of the one that does not: four steps of eps / 4, a forward that sees
    # it, and the end; 1 + 18 + 20 of paths, 2 saved.
    assert figures["forwards"] == pytest.approx(1 / 3 + 25 + (4 + 17 + 29 + 33 + 6 + 39 + 2) * 2 / 3, rel=1e-5)
    assert figures["backwards"] == pytest.approx(2 + (4 + 26 + 30 + 4) * 2 / 3)
    assert doubted(figures) == set()


def test_one_bad_pixel_and_one_odd_pass_count() -> None:
    images, labels, weights = torch.tensor([[0.75, 0.25]]), torch.tensor([0]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    half_bad = look(lambda x: x @ weights + 0 * torch.sqrt(x[:, :1] - x[:, :1]), (images, labels))
    assert (half_bad["bad_margin"], half_bad["zero_margin"]) == (1, 0)
    calls: list[int] = []

    def fickle(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x @ weights * (-1 if len(calls) == 3 else 1)

    figures = look(fickle, (images, labels))
    assert (figures["random_predictions"], figures["random_difference"]) == (1, 2)


def test_nothing_right_leaves_the_first_checks(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch[0][:4], (net(batch[0][:4]).argmax(dim=1) + 1) % 10
    figures = look(net, (images, labels))
    assert figures["right"] == 0 and figures["zero_ce"] == 0
    assert (figures["slope"], figures["loss"], figures["accuracy"]) == (None, None, None)
    assert unmeasured(figures) == OF_RIGHT | UNASKED and doubted(figures) == set()


def test_what_could_not_be_measured_is_a_finding_with_its_reason(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    def reasons(changes: Mapping[str, Any]) -> dict[str, str]:
        found = checks_of(figures | changes)
        assert not any(said(check).startswith("black box") for check in found)  # whose stages were not given
        return {check.name: said(check) for check in found if "not measured" in said(check)}

    figures = look(net, batch)
    assert reasons({}) == {}
    found = reasons({"loss": [-3.76, None, -1.0, 2.0]})
    assert found.keys() == {"slope afar", "loss by steps", "known images"}
    assert found["loss by steps"].startswith("loss by steps: not measured: loss is not finite; run Square or SPSA")
    assert reasons({"slope_samples": 0, "slope": None, "slope_error": None}).keys() == {"slope"}
    nothing = reasons({"right": 0, "slope": None, "slope_error": None, "loss": None, "accuracy": None})
    assert nothing.keys() == {"slope", "slope afar", "loss by steps", "accuracy by radius", "known images"}
    assert all(f"none of {figures['samples']} samples is classified correctly" in text for text in nothing.values())
    assert "there is no loss" in said(checks_of({name: figures[name] for name in figures if name != "loss"})[7])
    gone = look(lambda x: net(x.detach()), batch)  # the one reason is said once
    assert doubted(gone) == {"gradient path"} and not any("not measured" in said(one) for one in checks_of(gone))
    (failed, *others) = checks_of({"failed": "RuntimeError: out of memory"})
    assert failed.finding and not any(check.finding for check in others)


def test_batches_do_not_matter_and_the_model_is_left_as_it_was(batch: tuple[Tensor, Tensor]) -> None:
    model, images = tiny_cnn().train(), random_images(6)
    labels = tiny_cnn()(images).argmax(dim=1)
    labels[:2] = (labels[:2] + 1) % 5  # a first batch without a right sample
    whole, halves = (look(model, (images, labels), size=size) for size in (6, 2))
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert whole["right"] == halves["right"] == 4
    for name, value in whole.items():
        if name not in ("norm", "slope_error"):
            same = value is None or isinstance(value, dict | str)
            assert halves[name] == (value if same else pytest.approx(value, rel=1e-2, abs=1e-5)), name
    assert look(model, (images[3:4], labels[3:4]))["right"] == 1


def test_black_box_needs_more_than_one_sample_and_more_than_chance() -> None:
    def verdict(after: int, n: int | None = None, before: int = 60) -> tuple[str, bool]:
        stages = {"clean": 90, "apgd-ce": 70, "apgd-t": 60, "fab-t": before, "square": after}
        last = checks_of({}, stages, n)[-1]
        return last.figure, bool(last.finding)

    figure, bad = verdict(58, 100)
    assert bad and figure == "Square broke 2 of 60 samples that gradient attacks left correct, of 100 in total"
    assert not verdict(59, 100)[1] and not verdict(60)[1]
    assert not verdict(58, 1000)[1] and verdict(57, 1000)[1]
    assert checks_of({}, {"clean": 9, "square": 1})[-1].figure == "not measured"
    assert checks_of({}, {"clean": 9, "apgd-ce": 1})[-1].figure == "not measured"


@pytest.mark.parametrize(
    ("samples", "lost", "hidden", "bad"),
    [
        (16, 0, 0, False),
        (16, 4, 0, False),  # a quarter
        (16, 5, 0, True),
        (20, 0, 3, False),  # 15 in a hundred
        (20, 0, 4, True),
        (20, 5, 3, False),
        (3, 1, 1, False),  # one may be chance
        (3, 2, 0, True),
        (3, 0, 2, True),
    ],
)
def test_verdicts_that_saving_changes_are_a_finding_where_they_are_no_chance(
    samples: int, lost: int, hidden: int, bad: bool
) -> None:
    figures = {"saved_samples": samples, "saved_same": samples - lost - hidden, "saved_lost": lost, "hidden": hidden}
    assert doubted(figures) == ({"survives saving"} if bad else set())
    (check,) = (check for check in checks_of(figures) if check.name == "survives saving")
    assert check.figure == (
        f"{samples - lost - hidden} of {samples} verdicts survive saving in 8 bits, {lost} are correct again"
        + f", {hidden} are wrong only when saved" * bool(hidden)
    )
    assert not bad or (check.finding and check.finding.severity == "doubt")


@pytest.mark.parametrize(
    ("off", "on", "saved"),
    [
        (1.0, 1.0, (16, 0, 0)),
        (1.0, 0.1, (0, 16, 0)),  # an image as it is stored is hardly changed
        (0.1, 1.0, (0, 0, 16)),  # any other is
    ],
)
def test_a_model_that_sees_who_is_no_stored_image_does_not_survive_saving(
    off: float, on: float, saved: tuple[int, int, int]
) -> None:
    """A linear model of which all samples fall at a change by one grey level, and that sees only a share of it."""

    def model(x: Tensor) -> Tensor:
        change = (255 * x - 128).flatten(1).mean(dim=1)
        change = change * per_row(off_grid(x), torch.full_like(change, off), torch.full_like(change, on))
        return torch.stack([1 - change, change - 1], dim=1)

    images, labels = torch.full((16, 1, 8, 8), 128 / 255), torch.zeros(16, dtype=torch.int64)
    figures = look(model, (images, labels), eps=4.5 / 255)
    assert figures["saved_samples"] == 16
    assert (figures["saved_same"], figures["saved_lost"], figures["hidden"]) == saved
    assert ("survives saving" in doubted(figures)) == (saved[0] == 0)


def test_old_records_and_judging_without_torch() -> None:
    assert unmeasured({}) == set(CHECKS) and doubted({}) == set()
    figures = {"loss_steps": [0, 1], "loss": [-1.0, None], "low": 0.0, "high": 1.0, "sum_error": 0.0}
    assert doubted(figures) == {"probabilities"} and "loss by steps" in unmeasured(figures)
    assert doubted(figures | {"sum_error": 0.5}) == {"probabilities"} and doubted(figures | {"high": 1.1}) == set()
    still = {"random_difference": 1e-6, "random_predictions": 0, "samples": 32}
    assert doubted(still) == set() and doubted(still | {"random_difference": 0.01}) == {"random outputs"}
    averaged = checks_of(still | {"random_difference": 0.01}, averaged=True)[0]
    assert not averaged.finding and averaged.figure.endswith("this attack averages passes")
    sweep = {"radii": [0.0, 0.5], "norm": "linf"}  # one survivor may be chance, two of nine are not
    assert doubted(sweep | {"accuracy": [1.0, 1 / 9], "right": 9}) == set()
    assert doubted(sweep | {"accuracy": [1.0, 2 / 9], "right": 9}) == {"accuracy by radius"}
    crowd = {"full_batch": 0.21, "full_batch_size": 64}  # of earlier releases there is none, which is no flag
    assert doubted(crowd) == {"full batch"} and doubted(crowd | {"full_batch": 0.19}) == set()
    failed = checks_of({"failed": "RuntimeError: out of memory"})[0].finding
    assert failed and str(failed) == "evidence could not be collected: RuntimeError: out of memory [evidence/failed]"
    # A loss that falls back from its best is not a rise, even if it ends above the start.
    swings = {"loss_steps": [0, 1, 5, 20], "loss": [-2.0, -1.0, 1.0, 0.0]}
    assert doubted(swings) == {"loss by steps"} and doubted(swings | {"loss": [-2.0, -1.0, 1.0, 0.9]}) == set()
    module = "robustkit.slices.evidence.gradient_masking"
    code = f"import sys; from {module} import checks_of; checks_of({{}}); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_model_that_is_far_surer_of_its_images_than_of_moved_ones_knows_them() -> None:
    figures = {"rise": 1.0, "rise_shifted": 3.9, "loss": [-2.0, 0.0], "right": 8}  # of an earlier release

    def knows(**more: object) -> bool:
        return doubted(figures | more) == {"known images"}

    assert not knows() and knows(rise_shifted=4.1)
    del figures["rise_shifted"]
    assert not knows(rise_moved=3.9) and knows(rise_moved=4.1)
    assert not knows(rise=0.0, rise_moved=0.079) and knows(rise=0.0, rise_moved=0.081)
    # A network of fine detail is as easy to attack when only blurred, and no easier when only shifted.
    assert not knows(rise_moved=4.1, rise_blurred=1.1, rise_shifted=3.9)
    assert knows(rise_moved=4.1, rise_blurred=1.0, rise_shifted=3.9)
    assert knows(rise_moved=4.1, rise_blurred=4.0, rise_shifted=4.1)
    tied = {"loss": [0.0, 0.0], "sure": [0.0, 0.0, 0.0], "kept": [1.0, 1.0, 1.0]}
    assert not knows(rise=0.0, rise_moved=0.0, **tied)
    figures |= {"rise_moved": 1.0, "kept": [1.0, 0.5, 0.75], "sure": [2.0, 0.61, 0.1], "forgotten": 2}
    assert not knows() and knows(sure=[2.0, 0.59, 2.0]) and knows(sure=[0.59, 2.0, 2.0]) and knows(forgotten=3)
    assert not knows(forgotten=3, right=12) and knows(forgotten=4, right=12)
    assert not knows(sure=[0.1, 0.1, 0.1], forgotten=7, right=7)
    (check,) = (each for each in checks_of(figures) if each.name == "known images")
    assert check.figure == (
        "five steps of PGD raise the margin by 1, at the same images moved by 1; of the correct samples 100 % rotated, "
        "50 % cropped, 75 % flipped stay correct, with margins of 2, 0.61, 0.1 after 2; 2 are of one other class, "
        "rotated or cropped"
    )


@pytest.mark.parametrize(("size", "moves"), [((8, 9), True), ((7, 40), False), ((40, 7), False)])
def test_images_of_few_pixels_are_not_moved(size: tuple[int, int], moves: bool) -> None:
    images = torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(0))
    figures = look(lambda x: x.flatten(1)[:, :3], (images, images.flatten(1)[:, :3].argmax(dim=1)))
    why = figures["unasked"].get("known images", "")
    assert (figures["rise_moved"] is not None) == moves and ("cannot be moved" in why) != moves


def test_a_full_batch_is_as_large_as_memory_allows(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    def small(x: Tensor) -> Tensor:
        if len(x) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return net(x)

    images, labels = batch[0], net(batch[0]).argmax(dim=1)
    for most, size in ((100, 64), (64, 64), (63, 32), (7, 8)):
        rng = Draws(range(len(images)))
        options: Any = {"rng": rng, "batch_size": 4, "attack_batch": 64, "brief": True}
        figures = examine(small, images, labels, ThreatModel("linf", EPS), **options)
        (check,) = (each for each in checks_of(figures) if each.name == "full batch")
        assert figures["full_batch_size"] == size and not check.finding
        assert check.figure.startswith(f"gradients in a batch of {size} " if most > 7 else "not measured: a batch of 8")
    options["attack_batch"] = 8

    def odd(x: Tensor) -> Tensor:
        if len(x) > 4:
            raise RuntimeError("four at most")
        return net(x)

    figures = examine(odd, images, labels, ThreatModel("linf", EPS), **options)
    assert figures["unmeasured"] == {"full batch": "RuntimeError: four at most"}
    random = examine(lambda x: net(x + 0.01 * torch.rand_like(x)), images, labels, ThreatModel("linf", EPS), **options)
    assert random["unasked"]["full batch"] == "outputs are random"


@pytest.mark.parametrize(("count", "eps", "size"), [(0, EPS, 1), (1, 0.0, 1), (1, EPS, 0)])
def test_arguments_are_checked(count: int, eps: float, size: int) -> None:
    batch = random_images(count), torch.zeros(count, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected more than 0"):
        look(tiny_cnn(), batch, eps=eps, size=size)
