"""Reference engines: what a peer does through RobustKit is what it does by itself, and every pass of it is counted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from torch import Tensor, nn

from attacks import StagedResult, ThreatModel
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks import ENGINES
from robustkit.slices import engines as peers
from robustkit.slices.engines import PeerAttack, peer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]  # the peers' own
LINF, L2 = ThreatModel("linf", 0.05), ThreatModel("l2", 0.5)
PEERS = ENGINES[1:]


def made(engine: str, name: str, threat: ThreatModel = LINF, **parameters: Any) -> PeerAttack:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    return peer(engine, name, threat, parameters)


class Masked(nn.Module):
    """Ten classes; the gradient is there for bright images only, so each stage of AutoAttack has something to break."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_cnn(10)

    def forward(self, x: Tensor) -> Tensor:
        bright = x.mean(dim=(1, 2, 3), keepdim=True) > 0.51
        logits: Tensor = self.inner(torch.where(bright, x, (x * 16).round() / 16))
        return logits


class Watched(nn.Module):
    """Counts rows by itself: of forwards as they come, of backwards in a Function that passes gradients through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.forwards = self.backwards = self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        watched = self

        class Pass(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                watched.backwards += len(gradient)
                return gradient

        self.forwards += len(x)
        self.largest = max(self.largest, len(x))
        logits: Tensor = self.inner(Pass.apply(x))
        return logits


def seed_of(draws: Draws) -> int:
    return int(draws.uniform((1,), "engine/seed")[0].item() * 2**24)


@pytest.mark.slow
def test_autoattack_is_the_peers_own() -> None:
    attack = made("pyautoattack", "autoattack", queries=500, targets=3)
    import pyautoattack

    model, images, draws = Masked(), random_images(10), Draws(range(10))
    labels = model(images).argmax(dim=1)
    labels[0] = (labels[0] + 1) % 10
    ours = attack.run(model, images, labels, rng=draws)
    theirs = pyautoattack.AutoAttack(model, eps=LINF.eps, seed=seed_of(draws), version="standard")
    theirs.square.n_queries = 500
    theirs.apgd_targeted.n_target_classes = theirs.fab.n_target_classes = 3
    points, predicted = theirs.run_standard_evaluation(images, labels)
    assert isinstance(ours, StagedResult)
    assert ours.adversarials.equal(points)
    assert (ours.broken_by >= 0).equal(predicted != labels)
    assert ours.stages == ("clean", "apgd-ce", "apgd-t", "fab-t", "square")
    assert {-1, 0, 1, 2, 4} == set(ours.broken_by.tolist())


@pytest.mark.parametrize("engine", PEERS)
@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_settings_are_the_originals(engine: str, version: str) -> None:
    attack = made(engine, "autoattack", version=version)
    original = pytest.importorskip("pyautoattack").AutoAttack(nn.Identity(), eps=LINF.eps, seed=7, version=version)
    assert [stage.name for stage in attack.stages] == original.attacks_to_run
    members = {"apgd-t": original.apgd_targeted, "square": original.square, "fab": original.fab, "fab-t": original.fab}
    names = ["norm", "eps", "seed", "n_restarts", "eot_iter", "thr_decr", "n_queries", "p_init", "rescale_schedule"]
    names += ["alpha_max", "eta", "beta", "n_iter", "loss"]
    for stage in attack.stages:
        theirs = members.get(stage.name, original.apgd)
        if stage.name == "fab-t":
            theirs.n_restarts = 1  # its run does these
        if stage.name in ("apgd-ce", "apgd-dlr"):
            theirs.loss = stage.name[5:]
        built = peers.make_perturb(engine, stage, nn.Linear(1, 1), LINF, 7, 1000)
        mine = dict(vars(getattr(built, "__self__", built)))
        if engine == "torchattacks":
            mine |= {
                "n_iter": mine.get("steps"),
                "loss": mine.get("loss", "dlr-targeted"),
                "targeted": mine.get("multi_targeted"),
            }
        expected = {name: value for name, value in vars(theirs).items() if name in names}
        assert {name: mine[name] for name in expected} == expected
        if stage.name.endswith("-t"):
            assert mine["n_target_classes"] == theirs.n_target_classes == 9
        if stage.attack == "fab":
            assert mine["targeted"] == (stage.name == "fab-t")


CASES = [
    ("pyautoattack", "apgd", LINF, {"loss": "dlr-targeted", "steps": 8, "restarts": 2}),
    ("pyautoattack", "apgd", L2, {"loss": "dlr", "steps": 8, "eot": 3}),
    ("pyautoattack", "fab", L2, {"targets": 0, "steps": 5, "restarts": 2}),
    ("pyautoattack", "square", LINF, {"queries": 30, "loss": "ce"}),
    pytest.param(
        *("pyautoattack", "autoattack", L2, {"version": "plus", "steps": 5, "queries": 20}), marks=pytest.mark.slow
    ),
    ("torchattacks", "fgsm", LINF, {}),
    ("torchattacks", "pgd", LINF, {"steps": 5}),
    ("torchattacks", "apgd", L2, {"steps": 8, "eot": 3}),
    ("torchattacks", "fab", LINF, {"steps": 5}),
    ("torchattacks", "autoattack", LINF, {"steps": 5, "queries": 20}),
]


@pytest.mark.parametrize(("engine", "name", "threat", "parameters"), CASES)
def test_contract(engine: str, name: str, threat: ThreatModel, parameters: dict[str, Any]) -> None:
    """Passes, chunks, telling, randomness, and a model left alone."""
    attack = made(engine, name, threat, **parameters)
    assert attack.queues and attack.threat is threat
    model, images = Watched(tiny_cnn()).train(), random_images(5)
    model.inner[0].weight.requires_grad_(False)
    heard: list[tuple[str, int, float]] = []
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        found = attack.run(
            model, images, rng=Draws(range(5)), batch_size=2, tell=lambda *reported: heard.append(reported)
        )
        again = attack.run(tiny_cnn(), images, rng=Draws(range(5)), batch_size=2)
        other = attack.run(tiny_cnn(), images, rng=Draws(range(5, 10)), batch_size=2)
    assert torch.get_rng_state().equal(before)
    assert found.adversarials.equal(again.adversarials) and found.forwards.equal(again.forwards)
    assert name not in ("pgd", "square") or not found.adversarials.equal(other.adversarials)
    assert (int(found.forwards.sum()), int(found.backwards.sum())) == (model.forwards, model.backwards)
    assert model.largest == 2 and model.forwards > 0
    if isinstance(found, StagedResult):
        assert found.stage_forwards.sum(dim=0).equal(found.forwards) and len(found.seconds) == len(found.stages)
        assert found.stage_backwards.sum(dim=0).equal(found.backwards) and found.stage_forwards[0].eq(1).all()
        left = [int(((found.broken_by < 0) | (found.broken_by >= p)).sum()) for p in range(1, len(found.stages))]
        assert [int((row > 0).sum()) for row in found.stage_forwards[1:]] == left
        assert len(found.notes) == sum(stage.endswith("-t") for stage in found.stages)
    assert heard[-1][2] == 1.0 and heard[-1][1] <= heard[0][1] <= 5
    assert found.broken_at.eq(-1).all() and found.steps.eq({"fgsm": 1, "pgd": 5}.get(name, 0)).all()
    assert all(part.training for part in model.modules()) and all(p.grad is None for p in model.parameters())
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["inner.0.weight"]
    assert threat.distance(found.adversarials, images).max() <= threat.eps + 1e-6
    labelled = attack.run(tiny_cnn(), images, tiny_cnn()(images).argmax(dim=1), rng=Draws(range(5)), batch_size=2)
    assert labelled.adversarials.equal(found.adversarials)


@pytest.mark.parametrize(("threat", "random_start"), [(LINF, True), (L2, False)])
def test_pgd_is_the_peers_own(threat: ThreatModel, random_start: bool) -> None:
    attack = made("torchattacks", "pgd", threat, steps=6, random_start=random_start)
    import torchattacks

    model, images, draws = tiny_cnn(), random_images(6), Draws(range(6))
    labels = torch.arange(6) % 5
    kind = torchattacks.PGD if threat is LINF else torchattacks.PGDL2
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(draws))
        share = 0.15 if threat is LINF else 0.35
        theirs = kind(model, threat.eps, share * threat.eps, 6, random_start=random_start)(images, labels)
    assert attack.run(model, images, labels, rng=draws).adversarials.equal(theirs)
    assert not theirs.equal(images)


def test_gradients_can_be_viewed() -> None:
    """A model that works in another layout gives gradients in it, and torchattacks calls view on them."""
    attack, images, plain = made("torchattacks", "pgd", L2, random_start=False), random_images(3), tiny_cnn()
    found = attack.run(lambda x: plain(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)), images)
    assert torch.allclose(found.adversarials, attack.run(plain, images).adversarials, atol=1e-4)


@pytest.mark.parametrize("engine", PEERS)
def test_two_classes(engine: str) -> None:
    images = random_images(4)
    found = made(engine, "autoattack", steps=5, queries=20).run(tiny_cnn(2), images, rng=Draws(range(4)))
    assert isinstance(found, StagedResult)
    assert found.stage_forwards[2].eq(0).all() and found.seconds[2] == 0
    assert found.stage_forwards[1].gt(0).all() and found.stage_forwards[3].sum() > 0
    assert found.notes == (
        "2 classes: apgd-t left out, its loss needs 4",
        "2 classes: fab-t has 1 targets instead of 9",
    )
    with pytest.raises(ValueError, match="the dlr loss needs at least 3 classes, the model has 2; use 'ce'"):
        made(engine, "apgd", loss="dlr").run(tiny_cnn(2), images)


def test_what_counts_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a point outside eps, and not one that the judge finds right."""
    attack = made("pyautoattack", "autoattack", steps=5, queries=2)
    from pyautoattack import fab_pt

    images, model = random_images(4), tiny_cnn()
    labels = model(images).argmax(dim=1)
    small = peer("pyautoattack", "autoattack", ThreatModel("linf", 1e-4), {"steps": 2, "queries": 2})
    monkeypatch.setattr(fab_pt.FABAttack_PT, "perturb", lambda self, x, y: 1 - x)
    assert (model(1 - images).argmax(dim=1) != labels).any()
    assert small.run(model, images, labels).adversarials.equal(images)

    wrong = (labels + 1) % 5
    believed = attack.run(model, images, wrong)
    doubted = attack.run(model, images, wrong, judge=lambda x: nn.functional.one_hot(wrong[: len(x)], 5).float())
    assert isinstance(believed, StagedResult) and isinstance(doubted, StagedResult)
    assert believed.broken_by.eq(0).all() and believed.stage_forwards[1:].eq(0).all()
    assert doubted.broken_by.eq(-1).all() and doubted.stage_forwards[0].eq(2).all()
    assert doubted.adversarials.equal(images)
    strong = peer("pyautoattack", "autoattack", ThreatModel("linf", 0.3), {"version": "rand", "steps": 2})
    always = strong.run(model, images, labels, judge=lambda x: nn.functional.one_hot(labels[: len(x)], 5).float())
    assert strong.run(model, images, labels).broken_by.eq(1).all()  # type: ignore[union-attr]
    assert always.adversarials.equal(images)


@pytest.mark.parametrize("engine", PEERS)
def test_other_layouts_and_dtypes(engine: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What comes back has the layout and type of the images; a plain function has no parameters to look at."""
    model: Any = tiny_cnn().to(memory_format=torch.channels_last).bfloat16()
    images = random_images(3).bfloat16().to(memory_format=torch.channels_last)
    found = made(engine, "apgd", L2, steps=5).run(lambda x: model(x), images)
    assert found.adversarials.dtype == torch.bfloat16
    assert found.adversarials.is_contiguous(memory_format=torch.channels_last)
    near = made(engine, "apgd", ThreatModel("linf", 0.15), steps=5).run(lambda x: model(x), images).adversarials
    assert not near.equal(images) and (near.float() - images.float()).abs().max() <= 0.15 + 1e-6
    kept = torch.eye(3)  # a model may own what it returns
    made(engine, "square", queries=2).run(lambda x: kept[: len(x)], images, torch.arange(3))
    assert kept.equal(torch.eye(3))
    none = made(engine, "autoattack", ThreatModel("linf", 0.0)).run(lambda x: 1 / 0, images)
    assert none.adversarials.equal(images) and none.forwards.eq(0).all()
    assert capfd.readouterr().out == ""


OURS = "or use --engine robustkit"
REFUSED = [
    ("torchattack", "pgd", LINF, {}, "unknown engine 'torchattack'; did you mean 'torchattacks'? known: "
     "pyautoattack, robustkit, torchattacks"),
    ("robustkit", "pgd", LINF, {}, "engine robustkit is not a peer; expected one of: pyautoattack, torchattacks"),
    ("pyautoattack", "pgd", LINF, {}, "engine pyautoattack has no pgd that means the same; expected one of: "
     f"autoattack, apgd, fab, square; {OURS}"),
    ("torchattacks", "spsa", LINF, {}, "engine torchattacks has no spsa that means the same; expected one of: "
     f"fgsm, pgd, apgd, fab, square, autoattack; {OURS}"),
    ("torchattacks", "pgd", LINF, {"restarts": 4}, f"engine torchattacks, pgd: restarts is 4; expected 1; {OURS}"),
    ("torchattacks", "pgd", LINF, {"early_stop": True},
     f"engine torchattacks, pgd: early_stop is true; expected false; {OURS}"),
    ("torchattacks", "fgsm", LINF, {"loss": "dlr"}, f"engine torchattacks, fgsm: loss is dlr; expected ce; {OURS}"),
    ("pyautoattack", "square", LINF, {"loss": "dlr"},
     f"engine pyautoattack, square: loss is dlr; expected margin or ce; {OURS}"),
    ("pyautoattack", "apgd", LINF, {"loss": "margin"},
     f"engine pyautoattack, apgd: loss is margin; expected ce or dlr or dlr-targeted; {OURS}"),
    ("pyautoattack", "autoattack", LINF, {"version": "fast"},
     f"engine pyautoattack, autoattack: version is fast; expected standard or plus or rand; {OURS}"),
    ("pyautoattack", "square", LINF, {"query": 3}, "unknown parameter of square 'query'; did you mean 'queries'? "
     "known: early_stop, loss, p_init, queries, rescale_schedule, restarts"),
    ("pyautoattack", "fab", ThreatModel("l2", 1.0, None), {},
     "engine pyautoattack attacks images in [0, 1] and cuts to that; the bounds are None; use --engine robustkit"),
    ("torchattacks", "fgsm", L2, {}, "engine torchattacks, fgsm under l2: it steps along the gradient's sign; "
     "use norm=linf or --engine robustkit"),
    ("torchattacks", "pgd", L2, {}, "engine torchattacks, pgd under l2: it draws a random start's radius evenly, "
     "not the point; use random_start=false or --engine robustkit"),
    ("torchattacks", "autoattack", L2, {}, "engine torchattacks, apgd-t of autoattack under l2: it steps every sample "
     "of a batch by the first one's step size; use --engine pyautoattack"),
    ("torchattacks", "square", L2, {}, "engine torchattacks, square under l2: each channel of a window gets the "
     "budget of all; use --engine pyautoattack"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "name", "threat", "parameters", "message"), REFUSED)
def test_refused(
    engine: str,
    name: str,
    threat: ThreatModel,
    parameters: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # so it is refused for its own sake first
    with pytest.raises(ProtocolError) as refusal:
        peer(engine, name, threat, parameters)
    assert str(refusal.value) == message


@pytest.mark.parametrize("engine", PEERS)
def test_not_installed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProtocolError) as refusal:
        peer(engine, "square", LINF, {})
    assert str(refusal.value) == (
        f'engine {engine} is not installed; pip install ".[reference]" in the source folder, or pip install {engine}'
    )


def test_importing_loads_no_peer() -> None:
    script = "import sys, robustkit.slices.engines; print({'pyautoattack', 'torchattacks'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"
