"""`robustkit multilabel` on linear networks: records, smallest changes, losses, resume, page, gate, wrong requests."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import stand_in
import torch
from processes import called
from several_labels import COUNT, NAMES, command, furnish, logits, pixels, truths, weights, write_table
from small_audit import files, pages

import attacks
import robustkit
from robustkit.errors import ProtocolError, RunError
from robustkit.evaluations.records import CheckpointRecords
from robustkit.report.run import Run
from robustkit.runs.folder import RunFolder
from robustkit.slices.multilabel.plan import TurnedLabels
from robustkit.slices.multilabel.task import OF_ONE_LABEL, TASK

ATTACKS = "fgsm,pgd,pgd(loss=margin),fmn(steps=300),square(queries=20),spsa(steps=3,directions=8)"
ALL = f"{ATTACKS},apgd(steps=6),apgd(steps=6,loss=margin,early_stop=true)"
FOG = "corruption(fog,severity=2)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("labels")
    furnish(root)
    (root / "meta.csv").write_text(
        "file,camera\n" + "".join(f"{k:02d}.png,{'old' if k % 2 else 'new'}\n" for k in range(COUNT))
    )
    return root


@pytest.fixture(scope="module")
def done(place: Path) -> Path:
    words = command(place, place / "run", "--eps", "2/255", "--attacks", ALL, net=("net.pth", "other.pth"))
    words += ["--corruptions", "fog(severity=1+2+3+4+5)", "--metadata", str(place / "meta.csv"), "--shard-size", "16"]
    status, _, errors = called(words)
    assert status == 0, errors
    return place / "run"


@pytest.mark.skipif(bool(stand_in.why_not()), reason=stand_in.why_not() or "there is a stand-in")
def test_a_gpu_computes_the_same_records(place: Path, tmp_path: Path) -> None:
    made = {}
    for device in ("cpu", "cuda"):
        words = command(place, tmp_path / device, "--eps", "2/255", "--attacks", ALL, "--batch-size", "16")
        words[words.index("--device") + 1] = device
        with stand_in.devices() as seen:
            status, _, errors = called(words)
        assert status == 0 and (seen.launched > 1000) == (device == "cuda"), errors
        made[device] = pages(tmp_path / device)
    assert made["cpu"] == made["cuda"]


def rows(run: Path, condition: str, name: str = "net") -> dict[str, Any]:
    table = RunFolder(run).table(name, condition).sort_by("sample_id")
    return {column: np.array(table[column].to_pylist()) for column in table.column_names}


def figures(run: Path, name: str = "net") -> dict[tuple[str, str], Any]:
    return {row.key: row for row in RunFolder(run).summary() if row.checkpoint == name}


def smallest(unknown: Any = None, cut: float = 0.0) -> Any:
    """Return (COUNT,): the smallest linf change that turns a label of each image, 0 where one is wrong."""
    beyond, slopes = logits() - cut, weights()[0].abs().sum(dim=1).double().numpy()
    away = np.where((beyond > 0) == (truths() == 1), np.abs(beyond) / slopes, 0.0)
    return np.where(unknown, np.inf, away).min(axis=1) if unknown is not None else away.min(axis=1)


# Records, and attacks on a linear model


def test_records_hold_truths_answers_and_losses(done: Path) -> None:
    read, expected = rows(done, "clean"), logits()
    np.testing.assert_allclose(read["logits"], expected, rtol=0, atol=1e-4)
    assert (read["labelled"] == truths()).all() and (read["predicted"] == (expected > 0)).all()
    assert (read["correct"] == ((expected > 0) == (truths() == 1)).all(axis=1)).all() and 5 < read["correct"].sum() < 35
    losses = np.logaddexp(0, np.where(truths() == 1, -expected, expected)).sum(axis=1)
    np.testing.assert_allclose(read["bce"], losses, rtol=1e-4)
    figure = figures(done)["clean", "bce"]
    assert figure.value == pytest.approx(losses.mean(), rel=1e-4) and figure.n == COUNT


def test_figures_come_from_records(done: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is of the extra test")
    for condition in ("clean", "pgd(eps=2/255,steps=20)", FOG):
        read, ours = rows(done, condition), figures(done)
        scores = read["logits"].astype(np.float64)
        precisions = metrics.average_precision_score(read["labelled"], scores, average=None)
        assert ours[condition, "map"].value == pytest.approx(precisions.mean(), abs=1e-12)
        for name, precision in zip(NAMES, precisions, strict=True):
            assert ours[condition, f"ap({name})"].value == pytest.approx(precision, abs=1e-12)
        f1 = metrics.f1_score(read["labelled"], read["predicted"], average="micro")
        assert ours[condition, "micro_f1"].value == pytest.approx(f1, abs=1e-12)
        assert ours[condition, "exact_match"].value == read["correct"].mean()
    fog = [ours[FOG.replace("2", str(severity)), "map"].value for severity in range(1, 6)]
    assert ours["corruption(fog)", "map"].value == pytest.approx(np.mean(fog), abs=1e-12)


def test_fmn_reaches_the_nearest_label(done: Path) -> None:
    """Of a linear model the smallest linf change that turns a label is |logit| over the sum of |weights|."""
    np.testing.assert_allclose(rows(done, "fmn(steps=300)")["distance"], smallest(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("loss", ["margin", "bce"])
def test_pgd_turns_a_label_where_a_larger_change_is_allowed_and_nowhere_else(loss: str) -> None:
    """Each image has a radius just above its smallest change or just below it, and one label that is nearest by far."""
    rows_, biases = weights()
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4)).double()
    net[1].weight.data, net[1].bias.data = rows_.double(), biases.double()
    images = torch.from_numpy(pixels()).double().permute(0, 3, 1, 2) / 255
    asked = TurnedLabels(net, torch.tensor(logits() > 0).long(), 0.0)
    away, runner_up = (torch.tensor(logits()).abs() / rows_.double().abs().sum(dim=1)).sort(dim=1).values[:, :2].T
    clear = [place for place in range(COUNT) if runner_up[place] > 1.5 * away[place]]  # else it may follow the other
    assert len(clear) > 20
    for share, broken in ((1.001, True), (0.999, False)):
        for place in clear:
            radius = float(share * away[place])
            one = TurnedLabels(net, asked.truths[place : place + 1], 0.0)
            attack = attacks.PGD(eps=radius, steps=40, step_size=radius / 10, loss=loss)
            point = attack(one, images[place : place + 1], torch.zeros(1, dtype=torch.int64))
            turned = bool(((net(point) > 0) != (one.truths == 1)).any())
            assert turned == broken if loss == "margin" else turned <= broken


def test_losses_are_those_of_labels() -> None:
    """By hand: the margin of the worst known label, and the sum of the known labels' binary losses."""
    answers, held = torch.tensor([[2.0, -1.0, 0.5], [3.0, 1.0, -2.0]]), torch.tensor([[1, 0, -1], [0, 1, 0]])
    asked = TurnedLabels(torch.nn.Identity(), held, 0.25)
    turned, labels = asked(answers[[1, 0]], torch.tensor([1, 0])), torch.zeros(2, dtype=torch.int64)
    assert turned.tolist() == [[0.0, 2.75, -0.75, -2.25], [0.0, -1.75, -1.25, -math.inf]]
    assert attacks.LOSSES["margin"](turned, labels).tolist() == [2.75, -1.25]
    sums = [sum(math.log1p(math.exp(gap)) for gap in gaps) for gaps in ((2.75, -0.75, -2.25), (-1.75, -1.25))]
    assert attacks.LOSSES["bce"](turned, labels).tolist() == pytest.approx(sums)


def test_attacks_stay_in_the_ball_and_lower_what_they_aim_at(done: Path) -> None:
    ours, clean = figures(done), rows(done, "clean")
    texts = {text for text, metric in ours if metric == "map" and text.partition("(")[0] in attacks.ATTACKS}
    assert len(texts) == 7
    for text in texts:
        read = rows(done, text)
        assert read["linf"].max() <= 2 / 255 + 1e-6 and (read["broken_by"] != None).sum() == (~read["correct"]).sum()  # noqa: E711
        assert (read["correct"] <= clean["correct"]).all() and ours[text, "exact_match"].value <= clean[
            "correct"
        ].mean()
    sums, worst = rows(done, "pgd(eps=2/255,steps=20)"), rows(done, "pgd(eps=2/255,steps=20,loss=margin)")
    assert sums["bce"].mean() > worst["bce"].mean() > clean["bce"].mean()
    assert worst["correct"].sum() <= sums["correct"].sum() < clean["correct"].sum()
    standing = smallest() > 2 / 255
    assert (worst["correct"] >= standing).all() and abs(int(worst["correct"].sum()) - int(standing.sum())) <= 2
    for text in texts:
        leaves = any(finding.code == "multilabel/left-early" for finding in ours[text, "map"].findings)
        assert leaves == attacks.ATTACKS[text.partition("(")[0]].queues == (text.partition("(")[0] in OF_ONE_LABEL), (
            text
        )


def test_thresholds_and_unknown_labels_decide_what_is_turned(place: Path, tmp_path: Path) -> None:
    unknown = np.zeros((COUNT, 4), bool)
    unknown[np.arange(COUNT), np.abs(logits() - math.log(3)).argmin(axis=1)] = True
    cells = np.where(unknown, "", truths().astype(str))
    write_table(tmp_path / "some.csv", cells.tolist())
    more = ("--threshold", "0.75", "--unknown", "--labels", str(tmp_path / "some.csv"), "--attacks", "fmn(steps=300)")
    words = command(place, tmp_path / "run", *more)
    words = [
        word
        for place_, word in enumerate(words)
        if "labels.csv" not in word and words[place_ + 1 : place_ + 2] != [str(place / "labels.csv")]
    ]
    assert called(words)[0] == 0
    read = rows(tmp_path / "run", "clean")
    assert (read["predicted"] == (logits() > math.log(3))).all() and (
        read["labelled"] == np.where(unknown, -1, truths())
    ).all()
    assert (read["correct"] == ((read["predicted"] == truths()) | unknown).all(axis=1)).all()
    assert (unknown & (read["predicted"] != truths()))[read["correct"]].any()  # a wrong one that does not count
    expected = smallest(unknown, math.log(3))
    np.testing.assert_allclose(rows(tmp_path / "run", "fmn(steps=300)")["distance"], expected, rtol=2e-3, atol=1e-9)
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["data"]["notes"]
    assert notes[-1] == "40 of 160 labels are unknown and do not count"


def test_a_logit_at_the_threshold_predicts_nothing(place: Path, tmp_path: Path) -> None:
    torch.save({"1.weight": torch.zeros(4, 768), "1.bias": torch.zeros(4)}, tmp_path / "net.pth")
    net = (str(tmp_path / "net.pth"),)
    assert called(command(place, tmp_path / "run", "--attacks", "pgd(steps=2)", net=net))[0] == 0
    for condition in ("clean", "pgd(eps=1/255,steps=2)"):
        read = rows(tmp_path / "run", condition)
        assert not read["predicted"].any() and (read["correct"] == ~truths().any(axis=1)).all() and read["correct"][0]
        ours = figures(tmp_path / "run")  # all images tie
        assert [ours[condition, f"ap({name})"].value for name in NAMES] == pytest.approx(truths().mean(axis=0))
        assert not any("precision" in metric for _, metric in ours) and ours[condition, "micro_f1"].value == 0


def test_a_logit_that_is_not_a_number_is_wrong(place: Path, tmp_path: Path) -> None:
    net = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(768, 4)

    def forward(self, images):
        logits = self.fc(images.flatten(1))
        bright = images.mean(dim=(1, 2, 3)) > 0.5
        return logits.masked_fill(bright[:, None] & torch.tensor([False, True, False, False]), float("nan"))

def make():
    return Net()
"""
    (tmp_path / "net.py").write_text(net)
    rows_, biases = weights()
    torch.save({"fc.weight": rows_, "fc.bias": biases}, tmp_path / "net.pth")
    words = command(place, tmp_path / "run", "--attacks", "pgd(steps=2)", net=(str(tmp_path / "net.pth"),))
    assert called(_with(words, ("--arch", f"{tmp_path / 'net.py'}:make")))[0] == 0
    read, bright = rows(tmp_path / "run", "clean"), pixels().mean(axis=(1, 2, 3)) > 127.5
    assert (np.isnan(read["logits"][:, 1]) == bright).all() and 10 < bright.sum() < 30
    assert (read["predicted"][bright, 1] == 1 - truths()[bright, 1]).all() and not read["correct"][bright].any()
    assert (read["predicted"][:, [0, 2, 3]] == (logits()[:, [0, 2, 3]] > 0)).all()
    figure = figures(tmp_path / "run")["clean", "bce"]
    texts = [finding.text for finding in figure.findings]
    assert not figure.is_finite and any(
        f"{bright.sum()} of {COUNT} samples have non-finite logits" in text for text in texts
    )


# Runs


def test_a_resume_gives_the_same_bytes_and_other_settings_are_refused(place: Path, tmp_path: Path) -> None:
    words = command(place, tmp_path / "run", "--attacks", "pgd(steps=2)", "--shard-size", "16")
    assert called(words)[0] == 0
    whole = files(tmp_path / "run")
    lost = [path.unlink() for path in sorted((tmp_path / "run" / "records").rglob("*.parquet"))[::2]]
    assert len(lost) == 3 and called(words)[0] == 0 and files(tmp_path / "run") == whole
    turned = write_table(tmp_path / "turned.csv", (1 - truths()).tolist())
    for more, message in ((("--threshold", "0.6"), "heads of net is"), (("--labels", str(turned)), "data digest is")):
        status, _, errors = called(_with(words, more))
        assert status == 2 and message in errors and errors.count("\n") == 1, errors


def _with(words: list[str], more: tuple[str, ...]) -> list[str]:
    """Return the words with an option in place of the one of its name, or added."""
    if more[0] not in words:
        return [*words, *more]
    at = words.index(more[0])
    return [*words[:at], *more, *words[at + 2 :]]


def test_batches_rows_and_columns_in_another_order_change_nothing(place: Path, tmp_path: Path) -> None:
    order = [2, 0, 3, 1]
    table = write_table(tmp_path / "other.csv", [[]])
    lines = [[f"{k:02d}.png", *truths()[k][order]] for k in reversed(range(COUNT))]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["file", *(NAMES[k].upper() for k in order)], *lines])
    lists = tmp_path / "lists.csv"
    named = ["; ".join(NAMES[k] for k in (3, 2, 1, 0) if row[k]) for row in truths()]
    lists.write_text("file,labels\n" + "".join(f"{k:02d},{text}\n" for k, text in enumerate(named)))
    usual = command(place, tmp_path / "usual", "--attacks", "pgd(steps=2),square(queries=9)", "--shard-size", "16")
    assert called(usual)[0] == 0
    for name, more in {
        "columns": ("--labels", str(table)),
        "lists": ("--labels", str(lists)),
        "batches": ("--batch-size", "5"),
    }.items():
        words = _with(_with(usual, more), ("--out", str(tmp_path / name)))
        assert called([*words, *(["--empty"] if name == "lists" else [])])[0] == 0
        if name != "batches":
            assert (tmp_path / name / "summary.csv").read_bytes() == (tmp_path / "usual" / "summary.csv").read_bytes()
        for condition in ("clean", "pgd(eps=1/255,steps=2)", "square(eps=1/255,queries=9)"):
            ours, theirs = rows(tmp_path / name, condition), rows(tmp_path / "usual", condition)
            assert (ours["predicted"] == theirs["predicted"]).all()
            np.testing.assert_allclose(ours["logits"], theirs["logits"], rtol=0, atol=1e-4 * (name == "batches"))


def test_bfloat16_breaks_only_what_float32_confirms(place: Path, tmp_path: Path) -> None:
    early = "apgd(steps=5,loss=margin,early_stop=true)"
    words = command(place, tmp_path / "run", "--attacks", f"{early},fmn(steps=60)", "--dtype", "bfloat16")
    assert called([*words, "--eps", "2/255"])[0] == 0
    read = rows(tmp_path / "run", "apgd(eps=2/255,steps=5,loss=margin,early_stop=true)")
    assert (~read["correct"][smallest() > 2.01 / 255]).sum() == 0 < (~read["correct"]).sum()
    nearest = rows(tmp_path / "run", "fmn(steps=60)")  # ends at a boundary, where the two disagree
    assert not nearest["correct"].any() and (nearest["distance"] >= smallest() * (1 - 1e-5)).all()


def test_python_gives_the_same_figures(place: Path, done: Path, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4))
    net[1].weight.data, net[1].bias.data = weights()
    run = robustkit.multilabel(
        {"net": net},
        place / "images",
        labels=place / "labels.csv",
        order="columns",
        attacks="none",
        out=tmp_path / "run",
        model={"mean": (0,) * 3, "std": (1,) * 3, "img_size": 16},
        device="cpu",
    )
    with pytest.raises(ProtocolError, match="unknown order 'column'; did you mean 'columns'"):
        robustkit.multilabel({"net": net}, place / "images", labels=place / "labels.csv", order="column")
    table = run.results().query("condition == 'clean'").set_index("metric").value
    assert table["map"] == pytest.approx(figures(done)["clean", "map"].value, abs=1e-12)


# What people see


def test_page_terminal_and_summary_show_labels(done: Path) -> None:
    page = (done / "report.html").read_text()
    for text in (
        "Clean and attacked: mAP % [95 %]",
        "Under corruption: mAP % [95 %]",
        "By label",
        "labels that changed",
    ):
        assert text in page
    assert "Slices" in page and "camera" in page
    status, out, _ = called(["report", str(done), "--details", "--by", "camera"])
    assert status == 0 and "net: by label, clean" in out and "other against net: labels that changed" in out
    of_red = out.partition("net: by label, clean")[2].partition("\nred ")[2].partition("\n")[0]
    for metric in ("ap(red)", "precision(red)", "recall(red)", "f1(red)"):
        assert f" {100 * figures(done)['clean', metric].value:.1f} [" in of_red, metric
    aps = {name: figures(done)["clean", f"ap({name})"] for name in NAMES}
    weakest = min(aps, key=lambda name: aps[name].value)
    assert next(iter(TASK.last_clauses(figures(done)))).rows == (aps[weakest],)
    assert min(row.value for (_, metric), row in figures(done).items() if metric.startswith("ap(")) < aps[weakest].value
    assert "net: slices by camera" in out and "exact match %" in out
    with (done / "summary.csv").open() as file:
        metrics = {row["metric"] for row in csv.DictReader(file) if row["condition"] == "clean"}
    assert {"map", "micro_f1", "macro_f1", "exact_match", "bce", "ap(red)", "precision(red)", "recall(blue)"} < metrics
    assert not any(row.findings for row in RunFolder(done).summary() if row.condition == "clean")


def test_slices_are_of_exact_match(done: Path) -> None:
    run = Run(done)
    table = run.slices(by="camera", condition="clean").query("checkpoint == 'net'").set_index("slice")
    right = rows(done, "clean")["correct"]
    assert table.value.to_dict() == {"camera = new": right[::2].mean(), "camera = old": right[1::2].mean()}
    assert {*table.metric} == {"exact_match"}


def test_checkpoints_are_compared_by_label(done: Path) -> None:
    first, second = (CheckpointRecords(RunFolder(done), name) for name in ("net", "other"))
    before, after = rows(done, "clean"), rows(done, "clean", "other")
    right = [each["predicted"] == each["labelled"] for each in (before, after)]
    for label, name in enumerate(NAMES):
        flipped = TASK.difference(first, second, "clean", f"negative flips({name})")
        assert flipped.value == (right[0][:, label] & ~right[1][:, label]).mean() and flipped.n == COUNT
    exact = [each.all(axis=1) for each in right]
    assert TASK.difference(first, second, "clean", "negative flips").value == (exact[0] & ~exact[1]).mean() > 0
    assert (
        TASK.difference(first, second, "clean", "churn").value
        == (before["predicted"] != after["predicted"]).any(axis=1).mean()
    )
    for condition in ("clean", "corruption(fog)"):
        for metric in ("map", "ap(red)", "exact_match") if condition == "clean" else ("map", "exact_match"):
            gap = TASK.difference(first, second, condition, metric)
            ours, theirs = (figures(done, name)[condition, metric].value for name in ("net", "other"))
            assert gap.value == pytest.approx(theirs - ours, abs=1e-12) and gap.ci_low < gap.value < gap.ci_high
    assert TASK.difference(first, first, "clean", "map").value == 0
    for wrong in ("negative flips(cat)", "iou(red)", "top1"):
        with pytest.raises(RunError, match="unknown figure of pairs under clean"):
            TASK.difference(first, second, "clean", wrong)


@pytest.mark.parametrize(("count", "has_interval"), [(9, False), (10, True)])
def test_a_label_of_few_images_has_no_interval_in_pairs(
    count: int, has_interval: bool, place: Path, tmp_path: Path
) -> None:
    rare = truths()
    rare[np.flatnonzero(rare[:, 0])[count:], 0] = 0
    table = write_table(tmp_path / "rare.csv", rare.tolist())
    words = command(place, tmp_path / "run", "--attacks", "none", net=("net.pth", "other.pth"))
    assert called(_with(words, ("--labels", str(table))))[0] == 0
    first, second = (CheckpointRecords(RunFolder(tmp_path / "run"), name) for name in ("net", "other"))
    for metric in ("ap(red)", "f1(red)"):
        pair = TASK.difference(first, second, "clean", metric)
        assert pair.n == count and math.isfinite(pair.ci_low) is has_interval, metric
    predicted = [rows(tmp_path / "run", "clean", name)["predicted"][:, 0] for name in ("net", "other")]
    assert TASK.difference(first, second, "clean", "precision(red)").n == (predicted[0] | predicted[1]).sum()


def test_runs_of_other_labels_are_not_compared(place: Path, done: Path, tmp_path: Path) -> None:
    changed = truths()
    changed[7, 2] = 1 - changed[7, 2]
    table = write_table(tmp_path / "other.csv", changed.tolist())
    words = _with(command(place, tmp_path / "run", "--attacks", "none", net=("other.pth",)), ("--labels", str(table)))
    assert called(words)[0] == 0
    status, _, errors = called(["compare", str(done), str(tmp_path / "run"), "--against", "net"])
    assert status == 2 and "the labels of 07.png differ" in errors, errors


def test_the_gate_decides_on_map_and_on_one_label(place: Path, done: Path, tmp_path: Path) -> None:
    value = figures(done)["clean", "f1(red)"].value
    policy, earlier = tmp_path / "policy.toml", tmp_path / "earlier"
    shutil.copy(place / "other.pth", tmp_path / "net.pth")
    assert called(command(place, earlier, "--attacks", "none", net=(str(tmp_path / "net.pth"),)))[0] == 0
    met = ("map under clean >= 0.3", f"f1(red) under clean >= {value - 0.001:.6f}", "exact_match under clean >= 0.1")
    changes = (
        "drop in map under clean against baseline <= 50 %",
        "drop in ap(red) under clean against baseline <= 60 %",
        "negative flips under clean against baseline <= 90 %",
    )
    missed = "map under pgd(eps=2/255,steps=20) >= 0.99", f"f1(red) under clean >= {value + 0.001:.6f}"
    for rules, status in (((*met, *changes), 0), (missed[:1], 1), (missed[1:], 1)):
        policy.write_text("".join(f"[[rule]]\nrequire = \"{rule}\"\ncheckpoint = 'net'\n" for rule in rules))
        got = called(["check", str(done), "--policy", str(policy), "--baseline", str(earlier)])
        assert got[0] == status, (rules, *got)


WRONG = [
    (("--threshold", "1"), "--threshold 1: expected a probability between 0 and 1"),
    (("--threshold", "half"), "--threshold 'half': expected a probability between 0 and 1"),
    (("--attacks", "pgd(loss=ce)"), "unknown loss of several labels 'ce'; did you mean 'bce'? known: bce, margin"),
    (("--attacks", "fab"), "unknown attack on several labels 'fab'"),
    (("--evaluations", "patch"), "unknown attack on several labels 'patch'"),
    (("--data-dir", ""), "--data-dir"),
    (
        ("--attacks", "pgd(engine=torchattacks,loss=ce)"),
        "engine torchattacks: only attacks classifiers of one",
    ),
    (("--protocol", "standard"), "protocol standard is for classification; use robustkit audit"),
    (("--labels", "no.csv"), "no.csv: not a readable CSV of labels"),
    (("--data-dir", "nowhere"), "nowhere: no such folder or zip file; check --data-dir"),
]


@pytest.mark.parametrize(("more", "message"), WRONG, ids=[" ".join(more) for more, _ in WRONG])
def test_a_wrong_request_is_one_line(more: tuple[str, ...], message: str, place: Path, tmp_path: Path) -> None:
    status, out, errors = called(_with(command(place, tmp_path / "run"), more))
    assert (status, out) == (2, "") and message in errors and errors.count("\n") == 1, errors
    assert not (tmp_path / "run").exists()


def test_what_models_say_about_their_outputs_counts(place: Path, tmp_path: Path) -> None:
    (tmp_path / "soft.py").write_text((place / "net.py").read_text().replace("4))", "4), nn.Sigmoid())"))
    words = command(place, tmp_path / "run", "--attacks", "none")
    status, _, errors = called(_with(words, ("--arch", f"{tmp_path / 'soft.py'}:make")))
    assert status == 2 and "expected a logit for each label, without a sigmoid or softmax at the end" in errors
    (tmp_path / "few.txt").write_text("red\ngreen\nblue\n")
    status, _, errors = called(_with(words, ("--names", str(tmp_path / "few.txt"))))
    assert status == 2 and "3 labels (red, green, blue), and the model has 4 outputs; expected as many" in errors
    card = tmp_path / "predicted.toml"
    shipped = Path(robustkit.__file__).parent / "slices" / "multilabel" / "cards" / "multilabel.toml"
    card.write_text(shipped.read_text().replace('labels = "true"', 'labels = "predicted"'))
    status, _, errors = called(_with(_with(words, ("--attacks", "fgsm")), ("--protocol", str(card))))
    assert status == 2 and "labels predicted; expected true, for several labels an image" in errors


def test_names_of_checkpoints_order_the_labels(place: Path, done: Path, tmp_path: Path) -> None:
    rows_, biases = weights()
    order = [3, 1, 0, 2]
    metadata = {"class_names": json.dumps([NAMES[k] for k in order])}
    tensors = {"1.weight": rows_[order].contiguous(), "1.bias": biases[order].contiguous()}
    safetensors.torch.save_file(tensors, tmp_path / "net.safetensors", metadata)
    metadata = {"class_names": json.dumps(NAMES)}
    safetensors.torch.save_file({"1.weight": rows_, "1.bias": biases}, tmp_path / "usual.safetensors", metadata)
    words = command(place, tmp_path / "run", "--attacks", "none", net=(str(tmp_path / "net.safetensors"),))
    at = words.index("--names")
    alone = [*words[:at], *words[at + 2 :]]
    assert called(alone)[0] == 0
    read = rows(tmp_path / "run", "clean")
    assert (read["labelled"] == truths()[:, order]).all()
    ours, usual = figures(tmp_path / "run"), figures(done)
    for metric in ("map", "ap(red)", "f1(bright)", "exact_match"):
        assert ours["clean", metric].value == pytest.approx(usual["clean", metric].value, abs=1e-12)
    for more, message in (
        (["--names", str(place / "names.txt")], "leave out --names"),
        (
            ["--order", "columns"],
            "column 'red' would be output 0, which the model calls its output 2; leave out --order",
        ),
        ([str(tmp_path / "usual.safetensors")], "net and usual number the labels of"),
    ):
        status, _, errors = called([*alone[:2], *more, *alone[2:]])
        assert status == 2 and message in errors and errors.count("\n") == 1, errors


def test_an_unreadable_image_and_one_without_labels_are_left_out(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "images", tmp_path / "images")
    (tmp_path / "images" / "03.png").write_bytes(b"no picture")
    shutil.copy(place / "images" / "05.png", tmp_path / "images" / "extra.png")
    words = _with(command(place, tmp_path / "run", "--attacks", "none"), ("--data-dir", str(tmp_path / "images")))
    status, _, errors = called([*words, "--skip-bad"])
    assert status == 0 and "left out 1 images that are not in labels.csv" in errors
    assert figures(tmp_path / "run")["clean", "map"].n == COUNT - 1
