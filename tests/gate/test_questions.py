"""Which rules samples can decide, how the error is shared, and with which baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gate_runs import PGD, make, right
from msgspec.structs import replace

from robustkit.errors import ProtocolError, RunError
from robustkit.gate.policy import Policy, parse_policy
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.slices.until_decided.sequential import Trial, baseline_of, options_asked, trial_of
from robustkit.tasks.task import task_named

FOG = [Condition("corruption", f"corruption(fog,severity={level})") for level in range(1, 6)]
STOPS = Condition("autoattack", "autoattack(eps=1/255,version=standard)", (("early_stop", True),))
CONDITIONS = (CLEAN, Condition("pgd", PGD), Condition("pgd", "pgd(eps=2/255,steps=20)"), STOPS, *FOG)


def policy_of(*rules: str) -> Policy:
    return parse_policy("".join(f'[[rule]]\nrequire = "{rule}"\n' for rule in rules), "p.toml")


def trial(rules: Sequence[str], names: Sequence[str] = ("vit",)) -> Trial:
    return trial_of(policy_of(*rules), names, CONDITIONS, task_named("classification"), None)


def test_the_error_is_shared_by_rules_and_checkpoints() -> None:
    found = trial(["top1 under clean >= 0.5", "attention == 'x'", "top5 of pgd(eps=1/255) > 0.5"], ("a", "b"))
    asked = [(each.checkpoint, each.condition, each.metric) for each in found.questions]
    assert asked == [("a", "clean", "top1"), ("b", "clean", "top1"), ("a", PGD, "top5"), ("b", PGD, "top5")]
    assert {each.test.error for each in found.questions} == {0.05 / 4}


def test_a_mean_over_corruptions_needs_all_of_them() -> None:
    (asked,) = trial(["mean_error under corruption(fog) <= 0.5"]).questions
    assert asked.condition == "corruption(fog)" and asked.needs == tuple(each.text for each in FOG)
    with pytest.raises(ProtocolError, match=r"top1 under corruption\(fog\) is not a mean over samples; use mean_error"):
        trial(["top1 under corruption(fog) >= 0.5"])


@pytest.mark.parametrize(
    ("rule", "why"),
    {
        "top1 under pgd >= 0.5": r"pgd may be pgd\(eps=1/255,steps=20\) or pgd\(eps=2/255,steps=20\); write one",
        "top1 under fgsm >= 0.5": "fgsm is no condition of this audit",
        "top1_after_apgd-ce under pgd(eps=1/255) >= 0.5": "is not a mean over samples",
    }.items(),
)
def test_a_rule_means_one_condition(rule: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=f"p.toml: line 2, column 12: .* cannot be decided sequentially: .*{why}"):
        trial([rule])
        options_asked(policy_of(rule))


def test_after_an_early_stop_only_top1_can_be_decided() -> None:
    """As in a whole run, which has no other figure there."""
    assert trial(["top1 under autoattack >= 0.5"]).questions[0].condition == STOPS.text
    with pytest.raises(ProtocolError, match="at their first wrong prediction, so top5 has no meaning there; use"):
        trial(["top5 under autoattack >= 0.5"])


def test_a_rule_on_no_checkpoint_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"no checkpoint is called vit; there are a, b"):
        trial_of(
            parse_policy("[[rule]]\nrequire = 'top1 under clean >= 0.5'\ncheckpoint = 'vit'", "p.toml"),
            *(["a", "b"], CONDITIONS, task_named("classification"), None),
        )


def test_rules_say_what_is_audited() -> None:
    rules = ["top1 under clean >= 0.5", "top1 under pgd(eps=1/255,steps=5) >= 0.2", "top5 under fgsm > 0.1"]
    assert options_asked(policy_of(*rules)) == {"--attacks": "pgd(eps=1/255,steps=5),fgsm"}
    assert options_asked(policy_of(rules[0])) == {"--attacks": "none"}
    noisy = ["mean_error under corruption(fog,preset=cifar) <= 0.5", "mean_error of in-c(preset=cifar) <= 0.4"]
    asked = {"--corruptions": "fog,in-c", "--attacks": "none", "--constants": "cifar"}
    assert options_asked(policy_of(*noisy)) == asked
    with pytest.raises(ProtocolError, match="it takes --constants imagenet, and another rule cifar; choose one"):
        options_asked(policy_of(noisy[0], "mean_error under corruption(snow,preset=imagenet) <= 0.5"))


def test_a_baseline_that_cannot_be_paired_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path / "one", {"vit": {"clean": right(8, 10)}})
    planned = make(tmp_path / "planned", {"vit": {"clean": right(8, 10)}, "other": {"clean": right(8, 10)}}).manifest
    figures = baseline_of(run, planned)
    assert list(figures("other", "clean", "top1", ()).values()) == [1.0] * 8 + [0.0] * 2
    with pytest.raises(RunError, match="the baseline is this same checkpoint"):
        figures("vit", "clean", "top1", ())
    entries = tuple(replace(entry, attention="standard") for entry in planned.checkpoints)
    formula = baseline_of(run, replace(planned, checkpoints=entries))
    with pytest.raises(
        RunError, match="a different set-up: attention standard instead of quest; audit both in the same way"
    ):
        formula("other", "clean", "top1", ())
    assert formula("other", "clean", "top1", ["attention"])
    others = (
        r"d2… here: images, labels or their selection \(--limit, --ids, --seed\) differ; "
        r"audit both in the same way$"
    )
    for key, value, shown in (
        ("data digest", "d2", others),
        ("seed", 7, 7),
    ):
        deciding = replace(planned.deciding, **{key.replace(" ", "_"): value})
        with pytest.raises(RunError, match=f"the runs cannot be paired: {key} is .* in the baseline and {shown}"):
            baseline_of(run, replace(planned, deciding=deciding))("other", "clean", "top1", ())
    card = replace(planned.protocol, labels="predicted")
    with pytest.raises(
        RunError, match=r"the runs cannot be paired: protocol of clean is .* \(part \w{8}\) in the base"
    ):
        baseline_of(run, replace(planned, protocol=card))("other", "clean", "top1", ())
    with pytest.raises(RunError, match="the baseline has no pgd"):
        figures("other", PGD, "top1", ())
    with pytest.raises(RunError, match="clean reads different files there"):
        elsewhere = replace(planned.corrupted, digests={"clean": "elsewhere"})
        baseline_of(run, replace(planned, corrupted=elsewhere))("other", "clean", "top1", ())
    two = make(tmp_path / "two", {"a": {"clean": right(8, 10)}, "b": {"clean": right(8, 10)}})
    with pytest.raises(RunError, match="the baseline has no vit; it has a, b"):
        baseline_of(two, planned)("vit", "clean", "top1", ())
    next((tmp_path / "one").rglob("*.parquet")).unlink()
    with pytest.raises(RunError, match=r"the baseline is incomplete: 0 of 10 samples under clean"):
        baseline_of(run, planned)("other", "clean", "top1", ())
