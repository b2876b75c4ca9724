"""Audits that end when the rules of a policy are decided: what they compute, say and leave behind."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from page_runs import page_of
from PIL import Image
from small_audit import UNCHECKED, files, furnish, pages

import robustkit
from robustkit.cli import app as cli
from robustkit.common.figure import INCOMPLETE
from robustkit.common.finding import Finding
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.errors import RunError
from robustkit.report.run import Run
from scripts.studies.statistics.until_decided import ends

CLEAN_RULE = "top1 under clean >= 0.6"
FGSM = "fgsm(eps=1/255)"
N = 240


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, its twin of other weights, and 240 images, of which the network gets 80 % right."""
    place = furnish(tmp_path_factory.mktemp("many"))
    shutil.rmtree(place / "images")
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)
    network = robustkit.load(str(place / "net.pth"), arch=f"{place / 'net.py'}:build", num_classes=3)
    with torch.no_grad():
        said = network(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255).argmax(1).tolist()
    for index, (image, label) in enumerate(zip(pixels, said, strict=True)):
        folder = place / "images" / "abc"[(label + (index % 5 == 0)) % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index:03d}.png")
    weights = torch.load(place / "net.pth", weights_only=True)
    generator = torch.Generator().manual_seed(1)
    torch.save({k: v + 0.02 * torch.randn(v.shape, generator=generator) for k, v in weights.items()}, place / "new.pth")
    return place


def words(many: Path, out: Path, rules: Sequence[str], *more: str, net: str = "net.pth") -> list[str]:
    """Return the words of a check of these rules."""
    policy = out.parent / f"{out.name}.toml"
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text("".join(f'[[rule]]\nrequire = "{rule}"\n' for rule in rules))
    return [
        *("check", str(many / net), "--policy", str(policy), "--until-decided", "--data-dir", str(many / "images")),
        *("--arch", f"{many / 'net.py'}:build", "--num-classes", "3", "--out", str(out), "--device", "cpu"),
        *("--no-setup-check", "--quiet", "--shard-size", "16", *more),
    ]


def call(monkeypatch: pytest.MonkeyPatch, line: Sequence[str]) -> int:
    """Return the exit status of a command."""
    monkeypatch.setattr("sys.argv", ["robustkit", *line])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def shards(run: Path, condition: str) -> int:
    return len(list((run / "records").glob(f"*/{condition}*/*.parquet")))


def in_order(many: Path) -> Dataset:
    return open_dataset(many / "images", num_classes=3).shuffled(0)


def right(run: Path, condition: str, dataset: Dataset) -> np.ndarray:
    """Whether the samples that a run has are right, in the order in which they came."""
    table = Run(run).table(Run(run).manifest.names[0], condition, ["sample_id", "correct"])
    found = dict(zip(table["sample_id"].to_pylist(), table["correct"].to_pylist(), strict=True))
    return np.array([float(found[sample.id]) for sample in dataset.samples if sample.id in found])


def test_rules_end_an_audit_as_soon_as_the_samples_say(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, report = tmp_path / "run", tmp_path / "verdicts.json"
    rules = [CLEAN_RULE, f"top1 under {FGSM} >= 0.75", "attention == 'none'", "top1 under clean < 0.6"]
    assert call(monkeypatch, words(many, out, rules, "--json", str(report), "--junit", str(tmp_path / "j.xml"))) == 1
    found = json.loads(report.read_text())["verdicts"]
    dataset = in_order(many)
    for verdict in (found[0], found[1], found[3]):
        values = right(out, verdict["condition"], dataset)
        said, taken = ends(values, verdict["bound"], 0.05 / 3)
        assert verdict["verdict"] == {(1, True): "pass", (-1, False): "pass", (0, True): "inconclusive"}.get(
            (said, ">" in verdict["require"]), "fail"
        )
        assert (verdict["n"], verdict["of"]) == (taken, N)
        assert verdict["value"] == pytest.approx(values[:taken].mean()) and verdict["ci_low"] is None
        word = "decided after" if said else "not decided by"
        assert verdict["reason"] == f"{word} {taken} of {N} samples"
    assert [verdict["verdict"] for verdict in found] == ["pass", found[1]["verdict"], "pass", "fail"]
    assert found[2]["of"] is None
    last = max(found[0]["n"], found[3]["n"])
    assert shards(out, "clean") == -(-last // 16) < N // 16  # no more than was needed
    assert shards(out, "fgsm") == -(-found[1]["n"] // 16)
    printed = capsys.readouterr()
    assert f"decided after {found[0]['n']} of {N} samples" in printed.out
    assert f"net: {CLEAN_RULE}: pass after {found[0]['n']} of {N} samples" in printed.err
    assert f"decided after {found[0]['n']} of {N} samples" in (tmp_path / "j.xml").read_text()


def test_what_no_undecided_rule_needs_is_not_computed(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(monkeypatch, words(many, tmp_path / "run", [f"top1 under {FGSM} >= 0.1"])) == 0
    assert shards(tmp_path / "run", "clean") == 0 and shards(tmp_path / "run", "fgsm") == 1


def test_the_run_is_an_ordinary_one_and_its_own_command_completes_it(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, policy = tmp_path / "run", tmp_path / "run.toml"
    call(monkeypatch, words(many, out, [CLEAN_RULE, f"top1 under {FGSM} >= 0.1"], "--junit", str(tmp_path / "j.xml")))
    run, dataset = Run(out), in_order(many)
    found = {finding for row in run.summary() for finding in row.findings}
    assert INCOMPLETE in {finding.code for finding in found} and Finding.of("run/stopped-early") in found
    assert Finding.of("run/stopped-early").text.startswith("this run stopped as soon as its rules were decided")
    page = page_of(run)
    box = page.text()
    assert (
        "This run stops as soon as all rules of its policy are decided." in box and "This run is unfinished" not in box
    )
    taken = f"{16 * shards(out, 'clean')} under clean; {16 * shards(out, 'fgsm')} under FGSM, 1/255."
    assert f"It has records of a part of its {N} images: {taken}" in " ".join(box.split())
    assert "An audit of all of them is made by a command that is not repeated here: " in box  # it runs a file of code
    assert call(monkeypatch, ["check", str(out), "--policy", str(policy)]) == 1  # with ordinary intervals: cannot tell
    said = capsys.readouterr()
    assert "stops when its rules are decided: " in said.out and "0 pass, 0 fail, 2 inconclusive" in said.err
    command = shlex.split(run.manifest.command)
    assert command[:2] == ["robustkit", "audit"] and "--shuffle" in command
    assert not {"--policy", "--until-decided", "--junit", str(policy)} & set(command)
    assert call(monkeypatch, command[1:]) == 0
    options = {"attacks": FGSM, "shuffle": True, "setup_check": False, "shard_size": 16, "device": "cpu"}
    model = {"arch": f"{many / 'net.py'}:build", "num_classes": 3}
    whole = robustkit.audit(many / "net.pth", data_dir=many / "images", out=tmp_path / "w", model=model, **options)
    assert files(out) == files(whole.path)
    left = {finding.code for row in Run(out).summary() for finding in row.findings}
    assert left == {"setup/unchecked", "evidence/thin"}
    assert Run(out).manifest.is_sequential and not whole.manifest.is_sequential
    assert call(monkeypatch, ["check", str(out), "--policy", str(policy)]) == 0
    assert [sample.id for sample in dataset.samples] != sorted(sample.id for sample in dataset.samples)
    assert whole.manifest.data.digest == open_dataset(many / "images", num_classes=3).digest()  # runs can be paired
    with pytest.raises(RunError, match="--shuffle is True there and False here"):
        robustkit.audit(
            many / "net.pth", data_dir=many / "images", out=out, model=model, **(options | {"shuffle": False})
        )


@pytest.mark.slow
def test_a_killed_audit_goes_on_to_the_same_verdicts_and_bytes(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = ["top1 under clean >= 0.79", f"top1 under {FGSM} >= 0.1"]  # the first is not decided by all samples
    saved = [tmp_path / "a.json", tmp_path / "b.json"]
    lines = [words(many, tmp_path / path.stem, rules, "--json", str(path)) for path in saved]
    assert call(monkeypatch, lines[0]) == 1
    begun = [sys.executable, "-m", "robustkit", *lines[1]]
    process = subprocess.Popen(begun, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while shards(tmp_path / "b", "clean") < 4:
        assert process.poll() is None, "finished before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 4 <= shards(tmp_path / "b", "clean") < N // 16
    assert call(monkeypatch, lines[1]) == 1
    assert files(tmp_path / "a") == files(tmp_path / "b")
    first, second = (json.loads(path.read_text())["verdicts"] for path in saved)
    assert first == second and first[0]["verdict"] == "inconclusive" and first[0]["n"] == N


def test_a_drop_is_paired_with_a_baseline_of_any_order(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"arch": f"{many / 'net.py'}:build", "num_classes": 3}
    made = {"data_dir": many / "images", "model": model, "attacks": "none", "device": "cpu", "setup_check": False}
    released = robustkit.audit(many / "net.pth", out=tmp_path / "old", **made)
    for bound, status in ((0.5, 0), (-0.5, 1)):
        out, report = tmp_path / f"new{bound}", tmp_path / "verdicts.json"
        rule = f"drop in top1 under clean against baseline <= {bound}"
        line = words(many, out, [rule], "--json", str(report), "--baseline", str(released.path), net="new.pth")
        assert call(monkeypatch, line) == status, capsys.readouterr()
        (found,) = json.loads(report.read_text())["verdicts"]
        ids = [sample.id for sample in in_order(many).samples]
        table = released.table("net", "clean", ["sample_id", "correct"])
        before = dict(zip(table["sample_id"].to_pylist(), table["correct"].to_pylist(), strict=True))
        after = right(out, "clean", in_order(many))
        drops = np.array([float(before[name]) for name in ids[: len(after)]]) - after
        said, taken = ends((drops + 1) / 2, (bound + 1) / 2, 0.05)
        assert said == (-1 if status == 0 else 1) and (found["n"], found["of"]) == (taken, N)
        assert found["value"] == pytest.approx(drops[:taken].mean()) and shards(out, "clean") == -(-taken // 16) < 15
        assert [each["text"] for each in found["findings"]] == [UNCHECKED]
    other = robustkit.audit(many / "net.pth", out=tmp_path / "half", dtype="bfloat16", **made)
    line = words(many, tmp_path / "apart", [rule], "--json", str(report), "--baseline", str(other.path), net="new.pth")
    assert call(monkeypatch, line) == 2 and not report.exists()
    assert (
        "a different set-up: dtype differs: bfloat16 and float32; audit both in the same way" in capsys.readouterr().err
    )
    rule += " except 'dtype differs'"
    line = words(many, tmp_path / "apart", [rule], "--json", str(report), "--baseline", str(other.path), net="new.pth")
    assert call(monkeypatch, line) == 1
    (found,) = json.loads(report.read_text())["verdicts"]
    accepted = "set-up: dtype differs: bfloat16 and float32, which the rule accepts"
    assert [each["text"] for each in found["findings"]] == [UNCHECKED, accepted]
    rule = "drop in top1 under clean against baseline <= 0.999"
    line = words(many, tmp_path / "far", [rule], "--json", str(report), "--baseline", str(released.path), net="new.pth")
    assert call(monkeypatch, line) == 2 and "so that no run could miss the bound" in capsys.readouterr().err


def test_samples_run_out(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(many, tmp_path / "run", ["top1 under clean >= 0.79"], "--at-most", "50")
    line.remove("--quiet")
    assert call(monkeypatch, line) == 1
    printed = capsys.readouterr()
    assert "1 condition, 50 samples: 4 units of work" in printed.err
    said = " ".join(printed.out.split())
    assert f"not decided by 50 of {N} samples" in said and "give more samples (--at-most, --data-dir)" in said
    assert shards(tmp_path / "run", "clean") == 4
    policy = tmp_path / "run.toml"
    text = policy.read_text()
    policy.write_text('undecided = "pass"\n' + text)
    line[line.index("--policy") + 1] = str(policy)
    assert call(monkeypatch, line) == 0
    assert "1 inconclusive" in capsys.readouterr().out


REFUSED = {
    "mce <= 0.5": "mce is not a mean over samples, as top1 is",
    "ece under clean <= 0.1": "ece is not a mean over samples",
    "nll under clean <= 1": "nll of a sample is not limited to [0, 1]",
    "n under clean >= 100": "the number of samples follows from the other rules",
    "no findings": "findings are about complete results",
    "drop against baseline <= 0.1": "it covers every condition of the baseline; name one: drop in top1 under",
    "drop in top1 under clean against baseline <= 0.1": "there is no baseline; give its run folder with --baseline",
    "top1 under clean >= 120 %": "the bound is 1.2; expected one between 0 and 1, exclusive",
    "top1 under spsa(on=10) >= 0.5": "uses only some of the samples",
    "top1 under corruption(noise) >= 0.5": "noise",
    "cam_iou under cam(agcam) >= 0.5": "needs --cams, which --until-decided does not support",
}


@pytest.mark.parametrize("rule", REFUSED)
def test_rules_that_samples_cannot_decide_are_refused_first(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    assert call(monkeypatch, words(many, tmp_path / "run", [CLEAN_RULE, rule])) == 2
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert REFUSED[rule] in line and "line 4, column" in line
    assert not (tmp_path / "run").exists()


def test_options_that_do_not_fit_are_refused(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = words(many, tmp_path / "run", [CLEAN_RULE])

    def said(line: Sequence[str]) -> str:
        assert call(monkeypatch, line) == 2
        text = capsys.readouterr().err
        (error,) = [each for each in text.splitlines() if each.startswith("error: ")]
        return error

    without = base.index("--until-decided")
    assert "--data-dir, --arch" in (line := said(base[:without] + base[without + 1 :]))
    assert "only with --until-decided" in line
    assert "0 is not in the range" in said([*base, "--at-most", "0"])
    assert "No such option" in said([*base, "--part", "1/2"])
    assert "--init: not with --until-decided" in said([*base, "--init"])
    data = base.index("--data-dir")
    assert "without --data-dir" in said(base[:data] + base[data + 2 :])
    rules = base.index("--policy")
    assert "policy policy.toml: No such file" in said(base[:rules] + base[rules + 2 :])
    assert "is also the file of --policy" in said([*base, "--junit", base[rules + 1]])
    assert "2 runs; expected one" in said(["check", "a", "b", "--policy", base[rules + 1]])
    assert "no rule depends on samples" in said(words(many, tmp_path / "none", ["attention == 'none'"]))
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "run it without torchrun" in said(base)
    monkeypatch.delenv("WORLD_SIZE")
    model = {"arch": f"{many / 'net.py'}:build", "num_classes": 3}
    made = {"data_dir": many / "images", "model": model, "device": "cpu", "attacks": "none"}
    robustkit.audit(many / "net.pth", out=tmp_path / "run", **made)
    assert "contains another run: " in (line := said(base)) and "--shuffle is False there and True here" in line


def test_options_are_refused_before_torch_is_loaded() -> None:
    code = "import sys, robustkit.slices.until_decided; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_records_of_the_first_shards_are_those_of_an_audit(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(monkeypatch, words(many, tmp_path / "a", [CLEAN_RULE], "--batch-size", "5"))
    model = {"arch": f"{many / 'net.py'}:build", "num_classes": 3}
    whole = robustkit.audit(
        many / "net.pth", data_dir=many / "images", out=tmp_path / "b", model=model, device="cpu", attacks="none",
        shuffle=True, shard_size=16, setup_check=False, batch_size=5
    )  # fmt: skip
    some, every = pages(tmp_path / "a"), pages(whole.path)
    records = {name: digest for name, digest in some.items() if name.startswith("records")}
    assert 0 < len(records) < N // 16 and records.items() <= every.items()


def group_of(name: str) -> str:
    return name.rpartition("/")[2][:2]


def test_whole_groups_come_one_after_another(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, report = tmp_path / "run", tmp_path / "verdicts.json"
    more = ("--groups-from", r"/(\d\d)", "--json", str(report), "--at-most", "200")
    assert call(monkeypatch, words(many, out, [CLEAN_RULE], *more)) == 0
    (found,) = json.loads(report.read_text())["verdicts"]
    dataset = open_dataset(many / "images", num_classes=3)
    dataset = dataset.shuffled(0, [group_of(sample.id) for sample in dataset.samples])
    names = [group_of(sample.id) for sample in dataset.samples]
    starts = [names.index(name) for name in dict.fromkeys(names)]
    assert all(names[start:][:10] == names[start : start + 1] * 10 for start in starts)  # one group after another
    outcomes = right(out, "clean", dataset)
    groups = [outcomes[start:][:10] for start in starts][: found["n"] // 10]
    assert found["verdict"] == "pass" and found["n"] == sum(map(len, groups)) <= len(outcomes) < 200
    said, taken = ends(np.array([0.6 + (each - 0.6).sum() / 10 for each in groups]), 0.6, 0.05)
    assert (said, taken) == (1, len(groups)) and found["value"] == pytest.approx(np.concatenate(groups).mean())
    assert {row.groups for row in Run(out).summary() if row.metric == "top1"} == {-(-len(outcomes) // 10)}
