"""The audit as its users run it: a tiny model of one's own, a folder of images, the command line."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import called
from small_audit import FACTORY, audit, command, files

import robustkit
from robustkit.errors import RunError
from robustkit.evaluations.attacks.evaluate import build_attack
from robustkit.protocol.card import digest_of_part, load_card
from robustkit.report import page
from robustkit.report.run import Run
from robustkit.results.comparison import compare_sides
from robustkit.results.pairing import checkpoint_pairs
from robustkit.runs.untrusted import PROVENANCE

pytestmark = pytest.mark.usefixtures("pageless")
WRITE_REPORT = page.write_report


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of the findings of a row of summary.json."""
    return [finding["text"] for finding in row["flags"]]


def test_records_hold_what_a_plain_loop_computes(place: Path, tmp_path: Path) -> None:
    run = audit(place, tmp_path / "run", attacks="fgsm", limit=12)
    scope: dict[str, Any] = {}
    exec(FACTORY, scope)
    net = scope["build"]()
    mean, std = (torch.tensor(net.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    name = run.manifest.checkpoints[0].name
    clean = run.table(name, "clean").to_pylist()
    attacked = run.table(name, "fgsm(eps=8/255)").to_pylist()
    assert [row["sample_id"] for row in clean] == sorted(row["sample_id"] for row in clean) and len(clean) == 12
    for before, after in zip(clean, attacked, strict=True):
        pixels = np.asarray(Image.open(place / "images" / before["sample_id"]))
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255).requires_grad_()
        label = torch.tensor(["abc".index(before["sample_id"][0])])
        loss = torch.nn.functional.cross_entropy(net(((x - mean) / std)[None]), label)
        (gradient,) = torch.autograd.grad(loss, x)
        adversarial = (x + 8 / 255 * gradient.sign()).clamp(0, 1).detach()
        logits = net(((adversarial - mean) / std)[None])
        assert before["label"] == label.item()
        assert before["nll"] == pytest.approx(loss.item(), abs=1e-5) and before["linf"] == 0
        assert after["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits, label).item(), abs=1e-4)
        assert after["prediction"] == logits.argmax().item() and after["correct"] == (logits.argmax() == label).item()
        assert after["linf"] == pytest.approx(8 / 255, abs=1e-6)
        assert after["l2"] == pytest.approx((adversarial - x).norm().item(), abs=1e-5)
        assert (after["forwards"], after["backwards"], after["steps"]) == (1, 1, 1)


class Count:
    """A progress that counts the units it hears of."""

    def __init__(self) -> None:
        self.units: list[tuple[str, int]] = []

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.units.append((condition, samples))

    def advance(self, samples: int) -> None: ...

    def stage(self, name: str, standing: int, share: float) -> None: ...


def test_the_same_command_computes_once_and_the_same_bytes(place: Path, tmp_path: Path) -> None:
    first, again, other = Count(), Count(), Count()
    audit(place, tmp_path / "a", progress=first)
    before = files(tmp_path / "a")
    said: list[str] = []
    audit(place, tmp_path / "a", progress=again, say=said.append)
    assert len(first.units) == 18 and again.units == [] and "16 units of work were already done" in " ".join(said)
    assert files(tmp_path / "a") == before
    audit(place, tmp_path / "b", progress=other)
    assert files(tmp_path / "b") == before and other.units == first.units


def test_batch_size_and_shards_change_nothing_but_rounding(place: Path, tmp_path: Path) -> None:
    runs = [
        audit(place, tmp_path / "a"),
        audit(place, tmp_path / "b", batch_size=5, shard_size=30),
        audit(place, tmp_path / "c", batch_size=1, workers=4),
    ]
    name = runs[0].manifest.checkpoints[0].name
    for condition in runs[0].manifest.conditions:
        first, *others = (run.table(name, condition).to_pandas() for run in runs)
        for other in others:
            assert (first["sample_id"] == other["sample_id"]).all()
            assert (first["prediction"] == other["prediction"]).all()
            for column in ("nll", "linf", "l2", "confidence"):
                assert np.allclose(first[column], other[column], atol=1e-3), (condition, column)


def test_a_run_grows_by_conditions_and_checkpoints_and_refuses_to_mix(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    audit(place, out, attacks="fgsm")
    count = Count()
    run = audit(place, out, attacks="pgd(steps=2)", progress=count)
    assert {condition for condition, _ in count.units} == {
        "evidence on pgd(eps=8/255,steps=2)",
        "pgd(eps=8/255,steps=2)",
    }
    assert list(run.manifest.conditions) == ["clean", "fgsm(eps=8/255)", "pgd(eps=8/255,steps=2)"]
    before = files(out)
    for change, named in (
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"protocol": "quest-paper", "eps": None}, "protocol of clean and 2 more is standard@2:"),
        ({"limit": 5}, "data digest is "),
        ({"dtype": "bfloat16"}, "dtype is float32 there and bfloat16 here"),
    ):
        with pytest.raises(RunError) as fault:
            audit(place, out, **({"attacks": "fgsm"} | change))
        assert named in str(fault.value) and "use another --out" in str(fault.value)
    shutil.copytree(place, tmp_path / "copy")
    weights = torch.load(tmp_path / "copy" / "net.pth", weights_only=True)
    torch.save({key: value + 0.01 for key, value in weights.items()}, tmp_path / "copy" / "net.pth")
    with pytest.raises(RunError, match="sha256 of net is"):
        audit(tmp_path / "copy", out, data_dir=place / "images", attacks="fgsm")
    assert files(out) == before


def test_another_card_counts_where_a_condition_uses_another_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """more: a card with one more attack. other: one whose PGD has another parameter."""
    standard = (resources.files("robustkit.protocol") / "cards" / "standard.toml").read_text("utf-8")
    cards = {"standard": standard, "more": f"{standard}\n[attacks.mine]\nsteps = 3\n"}
    cards["other"] = standard.replace('step_size = "0.15*eps"', 'step_size = "0.2*eps"')
    for name, text in cards.items():
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    monkeypatch.setattr("robustkit.evaluations.attacks.evaluate._wants_evidence", lambda *_: False)
    fog, pgd = "corruption(fog,severity=3)", "pgd(eps=8/255,steps=2)"

    def go(out: str, card: str, attacks: str = "fgsm,pgd(steps=2)", **more: Any) -> Run:
        shared = {"corruptions": "fog(severity=3)", "eps": "8/255", "browse": 0, "setup_check": False, "limit": 6}
        where = {"data_dir": "embedded:shapes", "out": tmp_path / out, "protocol": str(tmp_path / f"{card}.toml")}
        return robustkit.audit("zoo:shapes-vit-qnorm", attacks=attacks, **where, **shared | more)

    def doubts(first: Run, second: Run) -> list[str]:
        (pair,) = compare_sides(checkpoint_pairs([first, second])).pairs
        return [each.text for each in pair.findings if each.code != "compare/same-file"]

    first = go("first", "standard")
    shutil.copytree(tmp_path / "first", tmp_path / "grown")
    count, fresh = Count(), go("fresh", "more")
    grown = go("grown", "more", progress=count)
    tags = [run.manifest.protocol.tag for run in (first, grown, fresh)]
    assert not count.units and tags[0] != tags[1] == tags[2]
    assert files(tmp_path / "grown") == files(tmp_path / "fresh") and not doubts(first, fresh)

    other = go("other", "other")
    (line,) = doubts(first, other)
    assert re.fullmatch(re.escape(f"what {pgd} uses of the card differs: ") + "[0-9a-f]{8} and [0-9a-f]{8}", line)
    with pytest.raises(RunError, match=re.escape(f"protocol of {pgd} is standard@2:")):
        go("grown", "other", attacks="none")
    go("mild", "standard", attacks="fgsm")
    assert len(go("mild", "other").manifest.conditions) == 4  # PGD, which it had not, is that of the other card

    named = json.loads(next(first.shards("shapes-vit-qnorm", fog)).schema.metadata[PROVENANCE])
    assert named["card digest"] == digest_of_part(load_card("standard"), fog) and "protocol" not in named


def test_the_paper_protocol_says_what_its_eps_was_in_pixels(place: Path, tmp_path: Path) -> None:
    run = audit(place, tmp_path / "run", attacks="fgsm", protocol="quest-paper", eps=None, evidence="full")
    rows = {row["condition"]: row for row in run.results().to_dict("records") if row["metric"] == "linf_max"}
    row = rows["fgsm(eps=1/255)"]
    assert row["value"] == pytest.approx(0.5 / 255, rel=1e-3)  # the largest std of the three channels is 0.5
    assert texts_of(row) == ["eps 0.003922 is in normalised units: largest linf perturbation 0.5/255 in pixels"]
    assert row["protocol"].startswith("quest-paper@1:")
    attacked = run.table(run.manifest.checkpoints[0].name, "fgsm(eps=1/255)").to_pandas()
    size = 1 / 255 * np.sqrt(64 * (0.25**2 + 0.2**2 + 0.5**2))
    assert np.allclose(attacked["l2"], size, rtol=1e-3)  # nothing is clipped
    name = run.manifest.checkpoints[0].name
    own = audit(place, tmp_path / "own", attacks="").table(name, "clean").to_pandas()
    assert np.allclose(
        run.table(name, "clean").to_pandas()["nll"], own["nll"], atol=1e-5
    )  # clean is clean under any card


def test_low_precision_is_scored_in_float32(place: Path, tmp_path: Path) -> None:
    exact = audit(place, tmp_path / "a", attacks="fgsm")
    rough = audit(place, tmp_path / "b", attacks="fgsm", dtype="bfloat16")
    name = exact.manifest.checkpoints[0].name
    a, b = (run.table(name, "clean").to_pandas() for run in (exact, rough))
    assert 0 < np.abs(a["nll"] - b["nll"]).max() < 0.1
    from evaluating import evaluate

    from robustkit.data.layouts import Sample
    from robustkit.evaluations.attacks.evaluate import parse_condition
    from robustkit.evaluations.subject import Batch, Settings
    from robustkit.protocol.card import load_card
    from robustkit.tasks.labelled.subject import ClassifierSubject

    card = load_card("standard")
    classifier = robustkit.load(place / "net.pth", arch=f"{place / 'net.py'}:build")
    subject = ClassifierSubject(classifier, card, Settings(dtype=torch.bfloat16), None)
    condition = parse_condition("fgsm(eps=8/255)", card)
    pixels = torch.from_numpy(np.random.Generator(np.random.PCG64(2)).integers(0, 256, (9, 3, 8, 8), dtype=np.uint8))
    labels = torch.arange(9) % 3
    rows = evaluate(
        subject, Batch(pixels, [Sample(str(i), int(label)) for i, label in enumerate(labels)]), condition
    ).columns
    attack = build_attack(condition, card)
    assert attack is not None
    found = attack(subject.fast, pixels.float() / 255, labels)
    expected = torch.nn.functional.cross_entropy(classifier(found), labels, reduction="none")
    low = torch.nn.functional.cross_entropy(subject.fast(found), labels, reduction="none")
    assert rows["nll"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert (expected - low).abs().max() > 1e-4
    assert rough.manifest.deciding.dtype == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 10])
def test_killed_at_random_moments_the_same_command_finishes_it(place: Path, tmp_path: Path, kills: int) -> None:
    extra = ("--attacks", "fgsm,pgd,spsa(steps=4,directions=16)", "--batch-size", "1", "--shard-size", "1")
    limit = 5 * kills
    reference = audit(
        place, tmp_path / "reference", attacks=extra[1], eps=None, batch_size=1, shard_size=1, limit=limit
    )
    line = command(place, tmp_path / "run", *extra, "--limit", str(limit))
    dice = random.Random(0)
    records = tmp_path / "run" / "records"
    for _ in range(kills):
        before = len(list(records.rglob("*.parquet")))
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(list(records.rglob("*.parquet"))) <= before + dice.randrange(3):  # in the middle of its work
            assert process.poll() is None, "finished before it could be killed"
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run_cli(line).returncode == 0
    assert files(tmp_path / "run") == files(reference.path)
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_what_a_run_rests_on_cannot_change_under_it(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "p")
    out = tmp_path / "run"
    audit(tmp_path / "p", out, attacks="")
    factory = tmp_path / "p" / "net.py"
    factory.write_text(FACTORY.replace("nn.GELU()", "nn.ReLU()"))  # same tensors, another network
    with pytest.raises(
        RunError, match=r"net answers the same samples differently .*: its code was edited; use another"
    ):
        audit(tmp_path / "p", out, attacks="fgsm")
    (out / "run.json").unlink()
    with pytest.raises(RunError, match=r"contains records but no run\.json"):
        audit(tmp_path / "p", out, attacks="", seed=5)


def test_checkpoints_of_one_name_in_any_case_stay_apart(place: Path, tmp_path: Path) -> None:
    weights = torch.load(place / "net.pth", weights_only=True)
    for index, name in enumerate(("a/NET", "a/net-2", "b/net")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save({key: value * (1 + index) for key, value in weights.items()}, tmp_path / f"{name}.pth")
    paths = [tmp_path / f"{name}.pth" for name in ("a/NET", "b/net", "a/net-2")]
    model = {"arch": f"{place / 'net.py'}:build"}
    run = robustkit.audit(paths, data_dir=place / "images", attacks="", out=tmp_path / "run", model=model, device="cpu")
    assert [c.name for c in run.manifest.checkpoints] == ["a", "b", "net-2"]
    assert [c.path for c in run.manifest.checkpoints] == [str(path) for path in paths]
    alone = [
        robustkit.audit([p], data_dir=place / "images", attacks="", out=tmp_path / f"{i}", model=model, device="cpu")
        for i, p in enumerate(paths)
    ]
    single = [r.results().query("metric == 'nll'")["value"].item() for r in alone]
    assert run.results().query("metric == 'nll'")["value"].tolist() == pytest.approx(single)
    assert len(set(single)) == 3


def test_unfinished_conditions_are_flagged_and_other_files_left_alone(place: Path, tmp_path: Path) -> None:
    run = audit(place, tmp_path / "run", attacks="fgsm", evidence="full")
    own = run.path / "notes" / ".draft.tmp"
    own.parent.mkdir()
    own.write_text("mine")
    left = run.shard_path("net", "clean", 0).parent / ".00000.parquet.abc.tmp"
    left.write_text("half")
    run.shard_path("net", "fgsm(eps=8/255)", 0).unlink()
    audit(place, run.path, attacks="")
    assert own.exists() and not left.exists()
    flags = {row["condition"]: texts_of(row) for row in run.results().to_dict("records")}
    assert flags["clean"] == []
    assert flags["fgsm(eps=8/255)"] == ["incomplete: 22 of 30 samples; rerun the same command to continue"]


def test_partly_loaded_weights_repeat_and_are_flagged(place: Path, tmp_path: Path) -> None:
    weights = torch.load(place / "net.pth", weights_only=True)
    torch.save({key: value for key, value in weights.items() if not key.startswith("3.")}, tmp_path / "half.pth")
    model = {"arch": f"{place / 'free.py'}:build", "allow_partial": True}
    (place / "free.py").write_text(FACTORY.replace("    torch.manual_seed(0)\n", ""))
    runs = []
    for out in "ab":
        torch.rand(1)  # the state of torch's generator must not matter
        runs.append(
            robustkit.audit(
                [tmp_path / "half.pth"],
                data_dir=place / "images",
                attacks="",
                out=tmp_path / out,
                model=model,
                device="cpu",
            )
        )
    assert files(runs[0].path) == files(runs[1].path)
    assert texts_of(runs[0].results().iloc[0]) == ["weights were loaded only partially; the rest is random"]


@pytest.mark.parametrize("name", ["vit", "elliptical-quest", "resnet18"])
def test_weights_cast_beforehand_change_no_bit(name: str) -> None:
    import timm

    from robustkit.evaluations.subject import low_precision

    torch.manual_seed(0)
    if name == "resnet18":
        net = timm.create_model("resnet18", num_classes=7).eval()
    else:
        net = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=7).eval()
        for block in net.blocks:
            block.attn.fused_attn = False  # as in the copy
        if name != "vit":
            robustkit.attention.set_attention(net, name)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    images = torch.rand(3, 3, 32, 32, requires_grad=True)
    outputs, gradients = [], []
    for network in (net.requires_grad_(False), low_precision(net, torch.bfloat16)):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(network(images).float())
        gradients.append(torch.autograd.grad(outputs[-1].square().sum(), images)[0])
    assert torch.equal(*outputs) and torch.equal(*gradients) and gradients[0].abs().max() > 0
    assert not torch.equal(outputs[0], net(images))  # it is bfloat16
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert low_precision(net, torch.float32) is net


def test_only_valid_classes_compete_and_any_valid_label_counts(place: Path) -> None:
    from evaluating import evaluate

    from robustkit.data.layouts import Sample
    from robustkit.evaluations.attacks.evaluate import parse_condition
    from robustkit.evaluations.subject import Batch, Settings
    from robustkit.protocol.card import load_card
    from robustkit.protocol.condition import CLEAN
    from robustkit.tasks.labelled.subject import ClassifierSubject

    classifier = robustkit.load(place / "net.pth", arch=f"{place / 'net.py'}:build")
    card = load_card("standard")
    pixels = torch.from_numpy(np.random.Generator(np.random.PCG64(1)).integers(0, 256, (12, 3, 8, 8), dtype=np.uint8))
    logits = classifier(pixels.float() / 255)
    subset = ClassifierSubject(classifier, card, Settings(), (0, 2))
    samples = [Sample(str(i), (0, 2)[i % 2]) for i in range(12)]
    for condition in (CLEAN, parse_condition("pgd(steps=2)", card)):
        rows = evaluate(subset, Batch(pixels, samples), condition).columns
        assert set(rows["prediction"]) <= {0, 2}
        if condition is CLEAN:
            two = logits[:, [0, 2]]
            assert rows["prediction"] == [(0, 2)[i] for i in two.argmax(1).tolist()]
            own = two.log_softmax(1)[torch.arange(12), torch.arange(12) % 2]
            assert rows["nll"] == pytest.approx((-own).tolist(), abs=1e-5)
    several = [Sample(str(i), 0, (0, 1)) for i in range(12)]
    rows = evaluate(ClassifierSubject(classifier, card, Settings(), None), Batch(pixels, several), CLEAN).columns
    assert rows["correct"] == [best in (0, 1) for best in logits.argmax(1).tolist()]
    assert 0 < sum(rows["correct"]) < 12 or len(set(logits.argmax(1).tolist())) == 1


def test_a_network_that_fails_in_mid_run_is_one_line(place: Path, tmp_path: Path) -> None:
    code = FACTORY.replace("nn.Flatten()", "Odd()").replace(
        "def build",
        "class Odd(nn.Flatten):\n    def forward(self, x):\n        if len(x) == 5:\n            "
        "raise RuntimeError('no batches of five')\n        return super().forward(x)\n\ndef build",
    )
    (place / "odd.py").write_text(code)
    done = run_cli(command(place, tmp_path / "run", "--arch", f"{place / 'odd.py'}:build", "--batch-size", "5"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: net fails under clean on 5 images: RuntimeError: no batches of five; --debug")


def run_cli(line: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m robustkit WORD...` in this process."""
    return subprocess.CompletedProcess(line, *called(line[3:], **environment))


def test_a_broken_image_is_counted_named_and_decides_the_exit_status(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "place")
    broken = tmp_path / "place" / "images" / "a" / "00.png"
    broken.write_bytes(broken.read_bytes()[:60])
    line = command(tmp_path / "place", tmp_path / "run", "--attacks", "fgsm", "--evidence", "full")
    done = run_cli(line)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: 1 of 30 images could not be read and were left out, the first:"
    )
    assert "a/00.png" in done.stderr.splitlines()[-1] and "--skip-bad" in done.stderr
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [bad["sample_id"] for bad in manifest["bad_images"]] == ["a/00.png"]
    results = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]
    assert {row["n"] for row in results} == {29}
    assert all(texts_of(row) == ["1 of 30 images could not be read; excluded"] for row in results)
    assert run_cli([*line, "--skip-bad"]).returncode == 0


def test_nothing_but_broken_images_is_exit_3(place: Path, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.jpg").write_text("text")
    line = command(place, tmp_path / "run", "--data-dir", str(tmp_path / "images"), "--attacks", "fgsm")
    done = run_cli(line)
    assert done.returncode == 3 and "none of the 3 images was evaluated" in done.stderr.splitlines()[-1]


def test_options_come_from_environment_and_file_and_the_command_line_wins(place: Path, tmp_path: Path) -> None:
    config = tmp_path / "audit.toml"
    config.write_text('attacks = "fgsm"\nlimit = 9\n[audit]\neps = "2/255"\n')
    line = command(place, tmp_path / "run", "--config", str(config), "--limit", "6")
    assert run_cli(line, ROBUSTKIT_SEED="5").returncode == 0
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["seed"], manifest["data"]["n"]) == (5, 6)
    assert manifest["conditions"] == ["clean", "fgsm(eps=2/255)"]
    assert manifest["command"].startswith("robustkit ") and manifest["command"].endswith("--limit 6")
    config.write_text("limits = 9\n")
    done = run_cli(line)
    assert done.returncode == 2 and "unknown option 'limits'; did you mean 'limit'?" in done.stderr
    config.write_text("[audti]\nlimit = 9\n")
    done = run_cli(line)
    assert done.returncode == 2 and "unknown table 'audti'; did you mean 'audit'?" in done.stderr


def table(place: Path) -> list[tuple[list[str], int, str]]:
    return [
        (["--eps", "banana"], 2, "eps 'banana': expected a number such as 1/255"),
        (["--attacks", "nope"], 2, "unknown attack 'nope'"),
        (["--attacks", "pgd(steps=-1)"], 2, "steps is -1; expected 1 or more"),
        (["--arch", "vit_tinny_patch16_224"], 2, "vit_tiny_patch16_224"),
        (["--arch", f"{place / 'net.py'}:bild"], 2, "no function 'bild'"),
        (["--data-dir", str(place / "nowhere")], 2, "no such folder or zip file; check --data-dir"),
        (["--data-dir", ""], 2, "it is empty; expected: Folder, zip, or embedded:shapes."),
        (["--ids", str(place / "nowhere")], 2, "give a text file with one id per line"),
        (["--ids", str(place / "net.py")], 2, "an id looks like 'a/00.png'"),
        (["--protocol", "standart"], 2, "did you mean 'standard'?"),
        (["--device", "cdua"], 2, "unknown device 'cdua'; did you mean 'cuda'?"),
        (["--dtype", "float12"], 2, "unknown dtype 'float12'"),
        (["--limit", "0"], 2, "'--limit': 0 is not in the range"),
        (["--dtype", "float16"], 2, "unknown dtype 'float16'"),
        (["--eps", "1e400"], 2, "eps '1e400': expected a number"),
        (["--std", "inf"], 2, "expected three finite numbers above 0"),
        (["--workers", "0"], 2, "'--workers': 0 is not in the range"),
        (["--limit", "many"], 2, "'many' is not a valid integer"),
        (["--mean", "a b"], 2, "expected one number for all channels, or one for each"),
        (["--attack", "pgd"], 2, "--attacks"),
        (["--num-classes", "7"], 2, "gives 3 classes, not 7; check --num-classes"),
    ]


def test_every_mistake_is_one_line_and_leaves_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from robustkit.cli import app as cli

    for index, (extra, status, message) in enumerate(table(place)):
        out = tmp_path / f"run{index}"
        monkeypatch.setattr("sys.argv", ["robustkit", *command(place, out, *extra)[3:]])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        lines = capsys.readouterr().err.strip().splitlines()
        assert exit.value.code == status, (extra, lines)
        assert lines[-1].startswith("error: ") and message in lines[-1], (extra, lines)
        assert len(lines) == 1, (extra, lines)
        assert not out.exists(), extra


def test_an_out_that_cannot_be_written_is_one_line(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run_cli(command(place, tmp_path / "file" / "run", "--attacks", "fgsm"))
    assert done.returncode == 2
    assert "choose a folder with --out" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    if Path("/proc").is_dir():
        done = run_cli(command(place, Path("/proc/run"), "--attacks", "fgsm"))
        assert done.returncode == 2 and "cannot write" in done.stderr.splitlines()[-1]


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, click.testing, robustkit.cli.app as c\n"
        "runner = click.testing.CliRunner()\n"
        "for name in [[], *([n] for n in c.cli.commands)]:\n"
        "    result = runner.invoke(c.cli, [*name, '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
        "    assert name in ([], ['demo'], ['doctor']) or 'robustkit ' + name[0] in result.output\n"
        "assert not {'torch', 'timm', 'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("whole_figures")
def test_report_and_lists_need_no_model(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "write_report", WRITE_REPORT)
    run = audit(place, tmp_path / "run", attacks="fgsm")
    text = (run.path / "report.html").read_bytes()
    before = files(run.path)
    for name in ("summary.json", "summary.csv", "report.html"):
        (run.path / name).unlink()
    done = run_cli([sys.executable, "-m", "robustkit", "report", str(run.path)])
    assert done.returncode == 0 and "FGSM, 8/255" in done.stdout
    assert files(run.path) == before and (run.path / "report.html").read_bytes() == text
    for kind in ("attacks", "protocols", "datasets", "attentions", "models"):
        done = run_cli([sys.executable, "-m", "robustkit", "list", kind])
        assert done.returncode == 0 and len(done.stdout.splitlines()) >= 2, done.stderr


IN_TRAINING = (
    FACTORY.replace("nn.Sequential(", "Always(nn.BatchNorm2d(3, affine=False, track_running_stats=False), ")
    + """
class Always(nn.Sequential):
    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x, {share}))
"""
)


@pytest.mark.parametrize(("size", "share", "flagged"), [(16, 0.0, True), (1, 0.0, True), (16, 0.3, False)])
def test_a_prediction_that_depends_on_its_batch_is_a_flag_where_no_attack_runs(
    size: int, share: float, flagged: bool, place: Path, tmp_path: Path
) -> None:
    """Batch normalisation by the batch itself; where dropout changes as much, nothing is said."""
    (tmp_path / "net.py").write_text(IN_TRAINING.replace("{share}", str(share)))
    scope: dict[str, Any] = {}
    exec((tmp_path / "net.py").read_text(), scope)
    torch.save(scope["build"]().state_dict(), tmp_path / "net.pth")
    model = {"arch": f"{tmp_path / 'net.py'}:build", "num_classes": 3}
    options = {"model": model, "attacks": "none", "setup_check": False, "device": "cpu", "batch_size": size}
    for net, odd in ((tmp_path, flagged), (place, False)):
        own = options | {"model": model | {"arch": f"{net / 'net.py'}:build"}}
        run = robustkit.audit([net / "net.pth"], data_dir=place / "images", out=tmp_path / f"run-{net.name}", **own)
        (row,) = (row for row in run.summary() if row.metric == "top1")
        said = [finding.text for finding in row.findings if finding.code == "model/depends-on-batch"]
        assert bool(said) is odd and all(text.startswith("the same sample gives outputs up to ") for text in said)
