"""Rules and baselines that no run could fail: each is refused with its line, or undecided with a reason."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from figures import said_of
from gate_runs import PGD, make, right, verdict
from places import DELETED

from robustkit.errors import ProtocolError
from robustkit.evaluations.corruptions import MOST_CE
from robustkit.evaluations.corruptions.results import ALEXNET
from robustkit.gate.policy import Change, Value, parse_policy, parse_statement
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED
from robustkit.report.run import Run
from robustkit.tasks import metrics

IDLE = [
    # A share and a number above 1, which pages print in per cent.
    ("mean_error of in-c <= 40", "write 40 %, as pages print it"),
    ("mean_error <= 1.5", "write 1.5 %"),
    ("top1 under clean <= 40", "write 40 %"),
    ("top1 under clean >= 70", "70 is 7000 % of top1; write 70 %"),
    ("top5 under clean > 90.5", "write 90.5 %"),
    ("ece under clean <= 5", "write 5 %"),
    ("ece under clean < 3e1", "write 3e1 %"),
    ("mce <= 60", "write 60 %"),
    ("mce <= 1.2", "1.2 is 120 % of mce; write 1.2 %, as pages print it, or 120 % if that is meant"),
    ("relative_mce <= 80", "write 80 %"),
    ("retention under clean >= 90", "write 90 %"),
    ("miou under clean <= 45 with 95 % confidence", "write 45 %"),
    ("iou(sky) under clean <= 50", "write 50 %"),
    ("knn(5) under clean <= 80", "write 80 %"),
    ("accuracy_at(4/255) under fmn <= 20", "write 20 %"),
    ("drop in top1 under clean against baseline <= 2", "write 2 %"),
    ("drop against baseline <= 1", "write 1 %"),
    ("drop in top1 under clean against baseline <= 5 with 95 % confidence", "write 5 %"),
    ("rise in mean_error of in-c against baseline < 3", "write 3 %"),
    ("n under clean >= 100 %", "n is a number of samples, not a share"),
    # The end of the scale, whatever the scale.
    ("top1 under clean >= 0", "no top1 is below 0 %"),
    ("top1 under clean >= 0 % with 95 % confidence", "no top1 is below 0 %"),
    ("top1 under clean > -1 %", "no top1 is below 0 %"),
    ("top1 under clean <= 100 %", "no top1 is above 100 %"),
    ("top1 under clean < 101 %", "no top1 is above 100 %"),
    ("mean_error of in-c <= 3/3", "no mean_error is above 100 %"),
    ("mce <= 180 %", "no mce is above 177.1 %"),
    ("cam_iou_over_control under cam(agcam) >= -100 %", "no cam_iou_over_control is below -100 %"),
    ("nll under clean >= 0", "no nll is below 0"),
    ("perplexity under clean >= 1", "no perplexity is below 1"),
    ("linf_max under pgd >= 0", "no linf_max is below 0"),
    ("rank_correlation under stability(agcam,under=pgd) >= -1", "no rank_correlation is below -1"),
    ("insertion_auc under cam(agcam) <= 40 %", ""),  # which can fail: the row of the control of this test
    ("n under clean >= 0", "no n is below 0"),
    ("n under clean > -1", "no n is below 0"),
    ("drop in top1 under clean against baseline <= 100 %", "no change of top1 is above 100 %"),
    ("drop against baseline >= -1", "no change of top1 is below -100 %"),
    # What is part of every finding, or of every difference.
    ("no findings except 'z'", "'z' is part of nearly every finding"),
    ("no findings except 'assumed'", "'assumed' is part of every finding about an assumed set-up"),
    ("no findings except ' images'", "' images' is part of every finding about an assumed set-up"),
    ("no findings except 'incomplete', ': '", "': ' is part of nearly every finding"),
    ("no findings under clean except ' the '", "' the ' is part of nearly every finding"),
    ("drop against baseline <= 2 % except 'e'", "'e' is part of nearly every difference"),
]


OF_SLICES = {"knn": "features", "perplexity": "text"}
IDLE = [pair for pair in IDLE if OF_SLICES.get(re.split(r"\W", pair[0])[0]) not in DELETED]


@pytest.mark.parametrize(("rule", "why"), IDLE, ids=[rule for rule, _ in IDLE])
def test_a_rule_that_no_run_can_fail_is_refused_with_its_line(rule: str, why: str) -> None:
    text = f"undecided = 'pass'\n[[rule]]\nrequire = '''{rule}'''\n"
    if not why:
        assert parse_policy(text, "p.toml").rules
        return
    with pytest.raises(ProtocolError) as fault:
        parse_policy(text, "p.toml")
    assert str(fault.value).startswith("p.toml: line 3, column ") and why in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_bound_is_refused_exactly_where_every_value_meets_it() -> None:
    """For every metric whose values have an end, on both sides of it."""
    bounded = 0
    for name, metric in metrics().items():
        unit = " %" if metric.scale == 100 else ""
        for sign, end, step in ((">=", metric.ends[0], 1e-3), ("<=", metric.ends[1], -1e-3)):
            if not math.isfinite(end):
                continue
            bounded += 1
            rules = [f"{name} under clean {sign} {metric.scale * place:.9f}{unit}" for place in (end, end - step)]
            inside = parse_statement(f"{name} under clean {sign} {metric.scale * (end + step):.9f}{unit}")
            assert isinstance(inside, Value) and inside.bound == pytest.approx(end + step)
            for rule in rules[:1] if math.isclose(end, MOST_CE) else rules:
                with pytest.raises(ProtocolError, match="this rule can never fail"):
                    parse_statement(rule if not math.isclose(end, MOST_CE) else f"{name} under clean {sign} 178 %")
    assert bounded > 80
    assert 1 / min(ALEXNET.values()) == MOST_CE
    signed = parse_statement("drop in top1 under clean against baseline <= 2 % except 'crop pct', 'attention'")
    assert isinstance(signed, Change) and (signed.bound, signed.excepted) == (0.02, ("crop pct", "attention"))


def changed(entry: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    head, *rest = path
    return {**entry, head: changed(entry.get(head) or {}, *rest, to=to) if rest else to}


FOUND = {"vit": {"clean": right(60, 100), PGD: right(30, 100)}}
OF_CHECKPOINT = [
    (("attention",), "standard", "attention quest instead of standard"),
    (("arch",), "vit-6-heads", "arch vit instead of vit-6-heads"),
    (("preprocessing", "mean"), [0.485, 0.456, 0.406], "mean 0.5 0.5 0.5 instead of 0.485 0.456 0.406"),
    (("preprocessing", "std"), [0.2] * 3, "std 0.5 0.5 0.5 instead of 0.2 0.2 0.2"),
    (("preprocessing", "crop_pct"), 1.0, "crop pct 0.875 instead of 1.0"),
    (("preprocessing", "interpolation"), "bilinear", "interpolation bicubic instead of bilinear"),
    (("preprocessing", "input_size"), [384, 384], "input size 224×224 instead of 384×384"),
    (("heads",), {"training set": "b7"}, "heads' training set none instead of b7"),
    (("windows",), {"stride": 9}, "window stride none instead of 9"),
    (("code_sha256",), "ab" * 32, "code none instead of abababababab"),
]
OF_RUN: list[tuple[dict[str, Any], str]] = [
    ({"deciding": {"seed": 3}}, "seed is 3 in the baseline"),
    ({"deciding": {"data digest": "d2"}}, "data digest is d2"),
    ({"deciding": {"dtype": "bfloat16"}}, "dtype differs: bfloat16 and float32"),
    ({"arguments": {"engine": "torchattacks"}}, "engine differs: torchattacks and robustkit"),
    ({"keep_misclassified": True}, "use of maps of wrong predictions differs: scored and left out"),
    ({"corrupted": {"digests": {"clean": "x", PGD: "x"}}}, "reads different files here than in the baseline"),
]


def other(path: Path, **changes: Any) -> Run:
    """A baseline that is better and of another file, so that a drop could be seen."""
    entry = {"name": "vit", "spec": "vit.pth", "sha256": "released", "arch": "vit", "attention": "quest"}
    entry |= {"preprocessing": {"input_size": [224, 224], "std": [0.5] * 3}, "weights": "bare"}
    better = {"vit": {"clean": right(70, 100), PGD: right(40, 100)}}
    return make(path, better, **{"checkpoints": [changes.pop("entry", lambda plain: plain)(entry)]} | changes)


@pytest.mark.parametrize("rule", ["drop against baseline <= 20 %", "drop in top1 under clean against baseline <= 20 %"])
def test_a_baseline_of_another_set_up_decides_nothing(tmp_path: Path, run: Run, rule: str) -> None:
    assert verdict(run, rule, other(tmp_path / "alike")).state == PASS
    reported, some = list[tuple[Run, str, bool]](), slice(None, 2 if " under " in rule else None)
    for place, (path, value, line) in enumerate(OF_CHECKPOINT[some]):
        baseline = other(tmp_path / f"c{place}", entry=lambda entry, at=path, to=value: changed(entry, *at, to=to))
        reported.append((baseline, line, True))
    reported += [
        (other(tmp_path / f"r{place}", **more), line, False) for place, (more, line) in enumerate(OF_RUN[some])
    ]
    for baseline, line, acceptable in reported:
        found = verdict(run, rule, baseline)
        assert (found.state, found.short_of_samples) == (UNDECIDED, False) and line in found.reason, line
        accepted = verdict(run, f'{rule} except "{line}"', baseline)
        assert accepted.state == (PASS if acceptable or "differs" in line else UNDECIDED)
        if accepted.state == PASS:
            assert accepted.figure is not None and any(line in text for text in said_of(accepted.figure))


def test_a_card_with_other_parameters_under_the_same_name_is_another(tmp_path: Path, run: Run) -> None:
    card = {"tag": "standard@1:0", "name": "standard", "task": "classification", "space": "pixels"}
    baseline = other(tmp_path / "b", protocol={**card, "parameters": {"pgd": {"steps": 1}}})
    found = verdict(run, f"drop in top1 under {PGD} against baseline <= 20 %", baseline)
    assert found.state == UNDECIDED and f"protocol of {PGD} is standard@1:0 (part " in found.reason
    assert verdict(run, "drop in top1 under clean against baseline <= 20 %", baseline).state == PASS


def test_a_run_is_no_baseline_of_itself_or_of_its_copy(tmp_path: Path, run: Run) -> None:
    copy = make(tmp_path / "copy", {"vit": {"clean": right(60, 100), PGD: right(30, 100)}})
    for baseline in (run, copy):
        for rule in ("drop against baseline <= 2 %", "drop in top1 under clean against baseline <= 2 %"):
            found = verdict(run if baseline is run else copy, rule, baseline)
            assert (found.state, found.short_of_samples) == (UNDECIDED, False)
            assert "the baseline is this same checkpoint" in found.reason


def test_a_baseline_from_which_no_run_could_fall_far_enough_decides_nothing(tmp_path: Path, run: Run) -> None:
    weak = other(tmp_path / "weak")
    weakest = make(
        tmp_path / "weakest",
        {"vit": {"clean": right(70, 100), PGD: right(2, 100)}},
        checkpoints=[weak.manifest.checkpoints[0].to_plain()],
    )
    found = verdict(run, f"drop in top1 under {PGD} against baseline <= 2 %", weakest)
    assert (found.state, found.short_of_samples) == (UNDECIDED, False)
    assert "top1 is 2.0 % in the baseline, so that no run could miss the bound" in found.reason
    assert (
        verdict(run, f"drop in top1 under {PGD} against baseline < 2 %", weakest).state == PASS
    )  # from 2 to 0 it fails
    assert verdict(run, "drop against baseline <= 20 %", weakest).state == PASS  # clean can fail
    assert verdict(run, "drop against baseline <= 2 %", weakest).state == FAIL
    assert verdict(run, "drop against baseline <= 80 %", weakest).state == UNDECIDED
