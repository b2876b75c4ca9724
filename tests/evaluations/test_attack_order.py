"""An attack that leaves standing what a weaker one broke, significantly, is a finding; an ordinary one is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from manifests import whole
from scipy.stats import binomtest
from small_audit import FACTORY, audit

from robustkit.common.differences import sign_test
from robustkit.common.finding import Finding
from robustkit.evaluations.attacks.ranking import Outcomes, checks_of_order, contradicted, out_of_order

TURNING = (
    FACTORY.replace("nn.Sequential(", "Turning(")
    + """
class Turning(nn.Sequential):
    def forward(self, x):
        logits = super().forward(x)
        std, mean = (torch.tensor(each)[:, None, None] for each in ([0.25, 0.2, 0.5], [0.5, 0.4, 0.3]))
        levels = 255 * (x * std + mean)
        off = ((levels - levels.round()).abs() > 1e-2).flatten(1).any(dim=1)[:, None]
        return torch.where(off, 2 * logits.detach() - logits, logits)
"""
)
EPS = {"norm": "linf", "eps": 8 / 255, "early_stop": False}
FGSM, PGD, AUTO = "fgsm(eps=8/255)", "pgd(eps=8/255,steps=20)", "autoattack(eps=8/255,version=standard)"


def right(pattern: str, backwards: bool = False) -> Outcomes:
    rows = [(f"s{place}", letter == "1") for place, letter in enumerate(pattern)]
    ids, correct = zip(*(reversed(rows) if backwards else rows), strict=True)
    return Outcomes.of(pa.table({"sample_id": ids, "correct": correct}))


def one_of(findings: Sequence[Finding]) -> str:
    """Return the text of the only finding, if any."""
    assert [each.code for each in findings] in ([], ["masking/attacks-in-order"])
    return "".join(each.text for each in findings)


def odd(condition: str, labels: str = "true", claims: dict[str, Any] | None = None, **patterns: str) -> str:
    texts = {"clean": "clean", "fgsm": FGSM, "pgd": PGD, "auto": AUTO, "other": condition}
    rights = {texts[name]: right(pattern, backwards=name == "fgsm") for name, pattern in patterns.items()}
    reported = dict.fromkeys((FGSM, PGD, AUTO, condition), EPS) | (claims or {})
    manifest = whole({"claims": reported, "protocol": {"labels": labels}, "checkpoints": [{"name": "net"}]})
    return one_of(out_of_order(manifest, condition, rights))


@pytest.mark.parametrize(("more", "fewer"), [(0, 0), (5, 0), (30, 12), (12, 30), (700, 600), (30000, 29000)])
def test_chances_are_those_of_the_exact_test(more: int, fewer: int) -> None:
    exact = binomtest(more, more + fewer, alternative="greater").pvalue if more + fewer else 1.0
    assert sign_test(more, fewer) == pytest.approx(exact, rel=1e-9)


def test_pgd_above_fgsm_beyond_chance_is_a_finding() -> None:
    found = odd(PGD, clean="1" * 40, fgsm="0" * 20 + "1" * 20, pgd="1" * 20 + "1" * 20)
    assert "20 of 40 samples correct that fgsm(eps=8/255) broke, and 0 the other way round" in found
    finding = Finding("masking/attacks-in-order", found)
    (check,) = checks_of_order([finding, finding, Finding("run/incomplete", "incomplete: 3 of 4", "limit")])
    assert check.finding == finding and check.figure.startswith("it left 20 of 40")
    assert found.endswith("; run autoattack, Square with more queries, or an adaptive attack (BPDA, transfer)")
    assert odd(PGD, fgsm="0" * 9 + "1" * 31, pgd="1" * 40) == ""  # one in 512
    assert odd(PGD, fgsm="0" * 20 + "1" * 20, pgd="1" * 20 + "0" * 20) == ""  # as often the other way round
    assert odd(PGD, fgsm="0" * 20 + "1" * 3000, pgd="1" * 3020) == ""  # less than a hundredth
    assert odd(FGSM, fgsm="1" * 40, pgd="0" * 40) == "" and odd(AUTO, auto="1" * 40, pgd="0" * 40) != ""


@pytest.mark.parametrize(
    ("clean", "attacked", "is_odd"),
    [
        ("0" * 1 + "1" * 9, "1" * 10, True),  # it broke nothing
        ("0" * 2 + "1" * 8, "1" * 2 + "0" + "1" * 7, False),  # 2 and 1: chance
        ("0" * 4 + "1" * 6, "1" * 4 + "0" + "1" * 5, True),
        ("0" * 4 + "1" * 6, "0" * 4 + "1" * 6, False),
        ("0" * 4 + "1" * 6, "1" * 4 + "0" * 6, False),
    ],
)
def test_an_accuracy_above_clean_needs_few_samples_to_be_odd(clean: str, attacked: str, is_odd: bool) -> None:
    for text in (FGSM, PGD, AUTO, "square(eps=8/255,queries=9)", "spsa(eps=8/255)"):
        assert bool(odd(text, clean=clean, other=attacked)) is is_odd


def test_a_result_that_its_own_evidence_contradicts_is_a_finding() -> None:
    def said(condition: str, answers: str, fell: list[int], steps: int = 5, **claims: Any) -> str:
        figures = {"sample_ids": [f"s{place}" for place in range(len(fell))], "fell": fell, "loss_steps": [0, 1, steps]}
        reported = {condition: EPS | claims}
        manifest = whole({"claims": reported, "protocol": {"labels": "true"}, "checkpoints": [{"name": "net"}]})
        return one_of(contradicted(manifest, condition, right(answers), figures))

    found = said(PGD, "1" * 40, [1] * 6 + [0] * 4 + [-1] * 2)
    assert "it left 6 of 10 samples correct that PGD with 5 steps broke as evidence, and 0 the other" in found
    assert checks_of_order([Finding("masking/attacks-in-order", found)])[0].name == "attacks in order"
    assert said(PGD, "1" * 40, [1] * 5 + [0] * 5) == ""  # one in 32
    assert said(PGD, "0" * 40, [1] * 12) == said(PGD, "1" * 6 + "0" * 6, [1] * 6 + [0] * 6) == ""
    for weaker in (FGSM, "pgd(eps=8/255,steps=3)", "pgd(eps=8/255,steps=20,step_size=0.0001)", "square(eps=8/255)"):
        assert said(weaker, "1" * 40, [1] * 12) == ""
    assert said(AUTO, "1" * 40, [1] * 12, 20) and not said(PGD, "1" * 40, [1] * 12, eps=0.0)
    manifest = whole({"claims": {PGD: EPS}, "checkpoints": [{"name": "net"}]})
    for strange in (
        None,
        {},
        {"sample_ids": "s0", "fell": [1]},
        {"sample_ids": ["s0"], "fell": [1, 1], "loss_steps": [0, 5]},
    ):
        assert contradicted(manifest, PGD, right("1"), strange) == []  # of someone else


LATE = (
    FACTORY.replace("nn.Sequential(", "Late(")
    + """
class Late(nn.Sequential):
    asked = 0

    def forward(self, x):
        Late.asked += len(x)
        logits = super().forward(x)
        return 2 * logits.detach() - logits if Late.asked > {after} else logits
"""
)


def test_a_model_that_waits_until_it_was_looked_at_is_flagged(place: Path, tmp_path: Path) -> None:
    """Its gradient turns round after so many images; how many are shown before the attack, a first run tells."""
    asked = []
    for after in (10**9, None):
        file = tmp_path / f"late_{len(asked)}.py"
        file.write_text(LATE.replace("{after}", str(asked[0] if after is None else after)))
        options = {
            "attacks": "pgd",
            "eps": "8/255",
            "evidence": "full",
            "model": {"arch": f"{file}:build", "num_classes": 3},
        }
        run = audit(place, tmp_path / file.stem, setup_check=False, **options)
        (row,) = (row for row in run.summary() if row.metric == "top1" and row.condition != "clean")
        figures = run.evidence(run.manifest.checkpoints[0].name, row.condition)
        assert figures is not None and "afterwards" not in figures["unmeasured"]
        asked.append(figures["passes_before"])  # and the attack has begun
        found = [each for each in row.findings if each.code in ("masking/afterwards", "masking/attacks-in-order")]
        assert bool(found) == (after is None), (row.findings, asked)
    assert found[0].text.startswith("afterwards: five steps of PGD raise the margin by -")


def test_any_attack_above_clean_is_a_finding_unless_labels_are_predicted() -> None:
    clean, attacked = "0" * 20 + "1" * 3000, "1" * 3020
    assert "20 of 3020 samples correct that were wrong before the attack" in odd(PGD, clean=clean, pgd=attacked)
    assert odd(FGSM, clean=clean, fgsm=attacked) and not odd("clean", clean=clean, pgd=attacked)
    assert odd(PGD, "predicted", clean=clean, pgd=attacked) == ""
    # With predicted labels only what was right counts.
    assert odd(PGD, "predicted", clean="0" * 40, fgsm="0" * 40, pgd="1" * 40) == ""
    assert odd(PGD, "predicted", clean="1" * 40, fgsm="0" * 40, pgd="1" * 40) != ""


@pytest.mark.parametrize(
    "text",
    [
        "pgd(eps=8/255,steps=5)",  # 0.75 of the radius
        "pgd(eps=8/255,steps=20,step_size=0.01*eps)",
        "pgd(eps=8/255,steps=20,step_size=0.0005)",
        "autoattack(eps=8/255,version=standard,steps=3)",
    ],
)
def test_an_attack_that_cannot_go_far_is_not_held_against_a_whole_step(text: str) -> None:
    assert odd(text, fgsm="0" * 40, other="1" * 40) == ""
    assert odd(text, clean="0" * 40, other="1" * 40) != ""


def test_only_the_same_radius_is_compared() -> None:
    assert odd(PGD, claims={FGSM: EPS | {"eps": 4 / 255}}, fgsm="0" * 40, pgd="1" * 40) == ""
    assert odd(PGD, claims={FGSM: EPS | {"norm": "l2"}}, fgsm="0" * 40, pgd="1" * 40) == ""
    assert odd(PGD, claims={PGD: EPS | {"eps": 0}}, clean="0" * 40, pgd="1" * 40) == ""
    assert odd(AUTO, pgd="0" * 40, auto="1" * 40, claims={}) != ""


def test_pgd_that_is_led_astray_is_flagged_everywhere(place: Path, tmp_path: Path) -> None:
    """A model whose gradient turns round off the 8-bit grid, where all of PGD's points are but none that FGSM asks."""
    (tmp_path / "turning.py").write_text(TURNING)
    model = {"arch": f"{tmp_path / 'turning.py'}:build", "num_classes": 3}
    run = audit(place, tmp_path / "run", attacks="fgsm,pgd", eps="16/255", model=model)
    by_condition = {row.condition: row for row in run.summary() if row.metric == "top1"}
    clean, fgsm, pgd = by_condition.values()
    assert fgsm.value < clean.value < pgd.value and not clean.findings and not fgsm.findings
    by_code = {each.code: each.text for each in pgd.findings}
    found = by_code["masking/attacks-in-order"]
    assert "correct that were wrong before the attack" in found and "correct that fgsm(eps=16/255) broke" in found
    assert by_code["masking/loss-by-steps"].startswith("loss by steps: ")  # of the evidence, which PGD has, too
    assert found in (run.path / "summary.json").read_text()
    page = (run.path / "report.html").read_text()
    assert page.count("attacks in order") >= 2 and "survive saving in 8 bits" in page and "only for AutoAttack" in page


def test_evidence_is_taken_once_for_a_radius(place: Path, tmp_path: Path) -> None:
    def bearing(asked: str, **options: Any) -> list[str]:
        run = audit(place, tmp_path / asked[:20], attacks=asked, limit=3, **options)
        name = run.manifest.checkpoints[0].name
        return [text for text in run.manifest.conditions if run.evidence(name, text)]

    assert bearing("pgd(steps=2),fgsm,apgd(steps=2)", eps="4/255,8/255") == [
        "apgd(eps=4/255,steps=2)",
        "apgd(eps=8/255,steps=2)",
    ]
    auto = "autoattack(steps=2,targets=1,queries=2)"
    assert bearing(f"fgsm,{auto},pgd(steps=2)") == [auto.replace("steps", "eps=8/255,version=standard,steps", 1)]
    assert bearing("spsa(steps=1,directions=2),fgsm(eps=0)") == ["spsa(eps=8/255,steps=1,directions=2)"]
