"""Parity: how often an artefact predicts what the model does that it was made from, and what is left out for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compared_runs import FOG, Rows, run_of
from figures import said_of
from gate_runs import drafted
from PIL import Image
from scipy.stats import binomtest
from small_audit import UNCHECKED, files, pages

import robustkit
from robustkit.common.figure import Figure
from robustkit.common.intervals import wilson
from robustkit.display.format import p_equals
from robustkit.errors import ModelError, ProtocolError, RunError
from robustkit.evaluations.aggregate import RecordReader
from robustkit.evaluations.condition import name_of
from robustkit.evaluations.presenting import missing_units
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED, judge
from robustkit.report.refresh import merge
from robustkit.report.run import Run
from robustkit.results.survey import survey
from robustkit.results.tables import short_tables
from robustkit.tasks.labelled.parity import AGREEMENT, DIFFERS, agreement_results, parity_sentences, parity_tables

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
FACTORY = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(768, 3, bias=False)
        self.register_buffer("exported", torch.zeros(1))
        self.default_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 16, 16), "crop_pct": 1.0}

    @property
    def differentiable(self):
        return not self.exported

    def forward(self, x):
        logits = self.head(x.flatten(1))
        return logits.detach() if self.exported else logits

def build(num_classes=3):
    return Linear()
"""
FGSM, SQUARE, CONTRAST = "fgsm(eps=8/255)", "square(eps=8/255,queries=20)", "corruption(contrast,severity=3)"
PASSED = f"transfer({FGSM},from=float)"


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linear models: `float`; `same`, its weights without gradients; `rough`, other weights without gradients."""
    root = tmp_path_factory.mktemp("nets")
    (root / "net.py").write_text(FACTORY)
    torch.manual_seed(1)
    weight, noise = 0.1 * torch.randn(3, 768), 0.06 * torch.randn(3, 768)
    for name, head, exported in (("float", weight, 0.0), ("same", weight, 1.0), ("rough", weight + noise, 1.0)):
        torch.save({"head.weight": head, "exported": torch.full((1,), exported)}, root / f"{name}.pth")
    for place, image in enumerate(np.random.Generator(np.random.PCG64(0)).integers(0, 256, (60, 16, 16, 3), np.uint8)):
        label = int((weight @ _flat(image)).argmax())
        (root / "images" / "xyz"[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / "images" / "xyz"[label] / f"{place:02d}.png")
    return root


def _flat(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()).flatten().float() / 255


def audit(nets: Path, out: Path, names: Sequence[str] = ("float", "same", "rough"), **options: Any) -> Run:
    given = {"attacks": f"{FGSM},{SQUARE}", "corruptions": "contrast(severity=3)", "parity": True, "shard_size": 16}
    model = {"arch": f"{nets / 'net.py'}:build", "num_classes": 3}
    given |= {"model": model, "browse": 0, "setup_check": False, "device": "cpu", "out": out} | options
    return robustkit.audit([nets / f"{name}.pth" for name in names], data_dir=nets / "images", **given)


@pytest.fixture(scope="module")
def run(nets: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audit(nets, tmp_path_factory.mktemp("parity") / "run")


def agreement(run: Run) -> dict[tuple[str, str], Figure]:
    return {(row.checkpoint, row.condition): row for row in run.summary() if row.metric == "parity"}


def test_agreement_is_the_share_of_equal_predictions(run: Run, nets: Path) -> None:
    """On clean images it is counted with the weights alone; elsewhere with the records, sample by sample."""
    rows = agreement(run)
    weights = {name: torch.load(nets / f"{name}.pth")["head.weight"] for name in ("float", "rough")}
    images = [_flat(Image.open(path)) for path in sorted((nets / "images").rglob("*.png"))]
    said = {name: (torch.stack(images) @ weight.T).argmax(1) for name, weight in weights.items()}
    equal = int((said["float"] == said["rough"]).sum())
    assert 0 < equal < 60 and rows["rough", "clean"].value == equal / 60
    assert (rows["rough", "clean"].low, rows["rough", "clean"].high) == pytest.approx(wilson(equal, 60))
    shared = {"clean", CONTRAST, SQUARE, PASSED, f"transfer({SQUARE},from=float)"}
    assert set(rows) == {(name, text) for name in ("same", "rough") for text in shared}
    assert all(row.value == 1 for (name, text), row in rows.items() if name == "same")  # the seed is the same, too
    for (name, text), row in rows.items():
        first, second = (run.table(each, text).to_pandas().set_index("sample_id") for each in ("float", name))
        assert row.value == (first["prediction"] == second["prediction"].reindex(first.index)).mean()


def test_what_differs_beyond_chance_is_flagged(run: Run) -> None:
    """McNemar's exact p-values, by scipy, with Holm's correction worked out here."""
    rows, raw = agreement(run), dict[str, float]()
    for name, text in rows:
        if name == "rough":
            first, second = (
                run.table(each, text).to_pandas().set_index("sample_id")["correct"] for each in ("float", name)
            )
            gained, lost = (int((one & ~other).sum()) for one, other in ((second, first), (first, second)))
            raw[text] = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    order, expected, largest = sorted(raw, key=lambda text: raw[text]), dict[str, float](), 0.0
    for rank, text in enumerate(order):
        largest = expected[text] = max(largest, min(1.0, raw[text] * (len(raw) - rank)))
    flagged = {
        text for (name, text), row in rows.items() if any("differs from that of float" in f for f in said_of(row))
    }
    assert flagged == {text for text, p in expected.items() if p < 0.05} and 0 < len(flagged) < len(raw)
    (flag,) = (flag for flag in said_of(rows["rough", "clean"]) if flag != UNCHECKED)
    assert flag.endswith(f"against 100.0 % ({p_equals(expected['clean'])}, corrected for 5 conditions)")


@pytest.mark.slow
def test_an_artefact_without_gradients_is_spared_what_needs_them(run: Run, nets: Path, tmp_path: Path) -> None:
    """Nothing of it is missing, whether computed at once, again, in parts, or by a command that names it later."""
    assert FGSM in run.manifest.conditions_of("float") and FGSM not in run.manifest.conditions_of("same")
    assert (
        missing_units(run) == (0, 4 * (6 + 5 + 5)) and not (run.path / "records" / "same" / "fgsm(eps=8_255)").exists()
    )
    assert f"transfer({FGSM},from=same)" not in run.manifest.conditions
    before, lines = files(run.path), list[str]()
    audit(nets, run.path, say=lines.append)
    assert files(run.path) == before and "64 units of work were already done and were not recomputed" in lines
    for number in (1, 2):
        audit(nets, tmp_path / f"part{number}", part=f"{number}/2")
    merged = merge([tmp_path / "part1", tmp_path / "part2"], tmp_path / "whole")
    assert pages(merged.path) == pages(run.path) and merged.summary() == run.summary()
    one = audit(nets, tmp_path / "later", ["float", "same"])
    assert agreement(audit(nets, one.path)).keys() == agreement(run).keys() and missing_units(one) == (0, 64)
    audit(nets, one.path, ["float"], parity=False)
    assert len(agreement(one)) == 10 and missing_units(one) == (0, 64)
    apart = audit(nets, tmp_path / "apart", ["float"], attacks=FGSM, parity=False)
    audit(nets, apart.path, ["same"], attacks=SQUARE, parity=False)
    assert FGSM not in apart.manifest.conditions_of("same") and missing_units(apart, "same") == (0, 12)
    with pytest.raises(RunError, match="the first checkpoint of --parity is float there and same here"):
        audit(nets, one.path, ["same", "float"])


def test_gate_page_and_terminal(run: Run) -> None:
    rules = ["parity under clean >= 99 %", "top1 under fgsm >= 10 %", f"transfer_accuracy under {PASSED} >= 0.1 %"]
    policy = parse_policy("\n".join(f"[[rule]]\nrequire = '{rule}'\ncheckpoint = 's*'" for rule in rules), "policy")
    agreed, attacked, passed = judge(policy, run).verdicts
    assert (agreed.state, attacked.state, passed.state) == (PASS, UNDECIDED, PASS)
    assert attacked.why.startswith("fgsm needs gradients, which same lacks; use an attack without them, such as square")
    same, rough = judge(parse_policy(f"[[rule]]\nrequire = '{rules[0]}'", "policy"), run).verdicts  # not of float
    assert (same.checkpoint, same.state, rough.checkpoint, rough.state) == ("same", PASS, "rough", FAIL)
    policy_text = drafted(run)
    assert 'parity under clean >= 0.93"\ncheckpoint = "same"' in policy_text.replace("'", '"')
    assert "settled first, since no rule here accepts it: accuracy differs from that of float" in policy_text
    page = (run.path / "report.html").read_text()
    assert "<b>FGSM" not in page and "float only" not in page  # a figure of one checkpoint alone is no comparison
    assert "rough and float: how often both predict the same class" in page and 'id="parity"' in page
    same, rougher = (table for table in short_tables(survey(run)) if table.checkpoint in ("same", "rough"))
    assert same.rows[0][:3] == ("clean", "100.0 [94.0, 100.0]", "100.0") and not any(row[-1] for row in same.rows)
    assert rougher.rows[0][-1] == "⚑"


def test_bad_requests(nets: Path, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="--parity with float alone: expected two checkpoints or more"):
        audit(nets, tmp_path / "one", ["float"])
    with pytest.raises(
        ModelError, match=r"fgsm\(eps=8/255\): needs gradients, which same lacks; expected attacks that"
    ):
        audit(nets, tmp_path / "two", ["float", "same"], parity=False)


# What tables and sentences say about agreement, on records made by hand


def made(place: Path, agreed: dict[str, dict[str, float]], none: int = 0, parity: Any = "plain") -> Run:
    """A run of `plain` and others that predict what it predicts on the first samples of 20, by condition and name; in
    `none` samples from the end both have logits that are not finite, which is no prediction.
    """
    records: dict[tuple[str, str], Rows] = {}
    for condition, shares in agreed.items():
        for name, share in {"plain": 1.0, **shares}.items():
            rows = [
                {"sample_id": f"{place:03}", "label": place % 3, "nll": 0.5, "top5": True, "confidence": 0.5}
                | {"prediction": (place + (place >= round(20 * share))) % 3, "linf": 0.0, "l2": 0.0, "error": None}
                for place in range(20)
            ]
            for row in rows[20 - none :]:
                row["prediction"] = -1
            records[name, condition] = [{**row, "correct": row["prediction"] == row["label"]} for row in rows]
    return run_of(place, records, lambda manifest: manifest.update({"parity": parity} if parity else {}))


def test_what_is_no_prediction_agrees_with_nothing(tmp_path: Path) -> None:
    for none, share in ((4, 16 / 20), (0, 1)):
        rows = survey(made(tmp_path / str(none), {"clean": {"other": 1.0}}, none))
        (row,) = (row for row in rows if row.metric == "parity")
        assert (row.value, row.n) == (share, 20) and DIFFERS not in [finding.code for finding in row.findings]


def test_what_only_watches_images_has_no_agreement_of_its_own(tmp_path: Path) -> None:
    """Records of watched attention hold predictions, too: those of the condition that they watch."""
    texts = ["clean", FGSM, f"transfer({FGSM},from=plain)", "attention(clean)", f"attention({FGSM})"]
    run = made(tmp_path / "run", {text: {"other": 0.75} for text in texts})
    rows = agreement_results(RecordReader(run, run.manifest, "other", {}), texts)
    assert [row.condition for row in rows] == texts[:3] and {row.value for row in rows} == {0.75}


def test_a_flag_says_both_accuracies_and_how_many_conditions_it_is_corrected_for(tmp_path: Path) -> None:
    run = made(tmp_path / "a", {"clean": {"plain": 0.75, "other": 0.25}, FOG[0]: {"other": 0.75}})
    flags = {
        row.condition: [finding.text for finding in row.findings if finding.code == DIFFERS]
        for row in survey(run)
        if row.metric == "parity"
    }
    sentence = "accuracy differs from that of plain: 25.0 % against 75.0 % (p = 0.004, corrected for 2 conditions)"
    assert flags == {"clean": [sentence], FOG[0]: []}  # p of five against none is 0.0625
    (row,) = (row for row in survey(made(tmp_path / "b", {"clean": {"other": 0.5}})) if row.metric == "parity")
    assert "corrected for 1 condition)" in " ".join(said_of(row))


def test_only_predictions_of_samples_that_both_have_are_compared(tmp_path: Path) -> None:
    """Nothing is said about a condition that one of them lacks, without common samples, without predictions, or whose
    predictions are a means to other figures."""
    said: Rows = [{"sample_id": f"{place}", "error": None, "prediction": 0, "correct": True} for place in range(8)]
    silent = [{"sample_id": row["sample_id"], "error": None} for row in said]
    lost = [{**row, "error": "damaged", "prediction": None, "correct": None} for row in said]
    records = {("plain", "clean"): said[:6] + lost[6:], ("other", "clean"): lost[:2] + said[2:]}
    records |= {("plain", FOG[0]): said[:4] + lost[4:], ("other", FOG[0]): lost[:4] + said[4:], ("other", FOG[1]): said}
    for name in ("plain", "other"):
        records |= {(name, "attention(clean)"): silent, (name, "counterfactual(change=colour)"): said}
    run = run_of(tmp_path / "run", records, lambda manifest: manifest.update(parity="plain"))
    (found,) = agreement_results(RecordReader(run, run.manifest, "other", {}), run.manifest.conditions)
    assert (found.condition, found.value, found.n, found.findings) == ("clean", 1.0, 4, ())


def test_of_many_corruptions_those_of_the_lowest_agreement_are_shown(tmp_path: Path) -> None:
    singles = [*FOG, *(text.replace("fog", "contrast") for text in FOG)]
    shares = [0.95, 0.5, 0.9, 0.4, 0.85, 0.3, 0.8, 0.2, 0.75, 0.1]
    passed = f"transfer({FGSM},from=plain)"  # no corruption
    for count, shown in ((8, singles[:8]), (10, [text for text in singles if text not in (singles[0], singles[2])])):
        agreed = {text: {"other": share} for text, share in zip(singles[:count], shares, strict=False)}
        results = survey(made(tmp_path / str(count), {"clean": {"other": 1.0}, **agreed, passed: {"other": 0.05}}))
        (table,) = parity_tables(results)
        called = [name_of(text, "table", results.manifest) for text in ("clean", *shown, passed)]
        assert [row[0] for row in table.rows] == called
        rest = "The 8 corruptions of 10 with the lowest agreement; the mean of all is 57.5 %."
        assert table.note.endswith(rest if count == 10 else "by Holm for all conditions).")
    assert table.rows[0][1:] == ("100.0 [83.9, 100.0]", "100.0", "100.0", "") and table.rows[1][-1] == "⚑"


def test_a_sentence_says_what_is_worst_where_it_is_worse(tmp_path: Path) -> None:
    run = made(tmp_path / "a", {FOG[0]: {"other": 0.95, "third": 0.25}, "clean": {"other": 0.9, "third": 0.8}})
    said = dict(parity_sentences(survey(run)))
    assert list(said) == ["third", "other"]  # the lowest agreement first
    assert said["other"] == (
        "other agrees with plain on 90.0 % of 20 images; accuracy shows no significant difference in 2 conditions."
    )
    worst = name_of(FOG[0], "sentence", run.manifest)
    assert said["third"] == (
        f"third agrees with plain on 80.0 % of 20 images, on 25.0 % at worst ({worst}); accuracy differs significantly "
        "under 1 of 2 conditions."
    )
    alone = made(tmp_path / "b", {FOG[0]: {"other": 0.9}})  # without clean images the first condition is named
    ((_, sentence),) = parity_sentences(survey(alone))
    start = "other agrees with plain on 90.0 % of 20 images; "
    assert sentence == start + "accuracy shows no significant difference in 1 condition."
    plain = survey(made(tmp_path / "c", {"clean": {"other": 0.9}}, parity=None))
    assert not list(parity_sentences(plain)) and not parity_tables(plain)


def test_agreement_is_drafted_as_a_rule_and_compared_by_a_test_of_shares() -> None:
    assert (AGREEMENT.drafted, AGREEMENT.binary, AGREEMENT.scale, AGREEMENT.better) == (True, True, 100, 1)
