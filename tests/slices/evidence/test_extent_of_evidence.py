"""Quick evidence takes at most a quarter of the attacks' passes, finds what cheats, and says what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from cheating_models import CHEATS, UNFLAGGED, Known
from small_audit import audit

from attacks import FGSM, PGD, ThreatModel
from robustkit.common.finding import Finding
from robustkit.evaluations.attacks.evaluate import bearing_evidence, parse_conditions
from robustkit.evaluations.attacks.ranking import Sign
from robustkit.protocol.card import load_card
from robustkit.runs.folder import RunFolder
from robustkit.slices.evidence.examining import examine
from robustkit.slices.evidence.gradient_masking import checks_of
from robustkit.slices.evidence.taking import Extent, extents

pytestmark = pytest.mark.usefixtures("one_thread")
EPS = 8 / 255
COSTLY = ("afterwards", "known images", "under attack", "path")


def extent(attacks: str, samples: int, how: str = "quick") -> Extent:
    card = load_card("standard")
    bearing = bearing_evidence(parse_conditions(attacks, card, eps=(EPS,)), card)
    (found,) = extents(bearing, card, 10, samples, 16, how).values()
    return found


def test_extents_follow_from_the_request() -> None:
    """FGSM costs 3 passes a sample, PGD-20 41, with scoring."""
    assert extent("fgsm", 3).samples == 0 and extent("fgsm", 3).passes == 2
    few = extent("fgsm", 20)
    assert (few.samples, few.passes, len(few.left_out)) == (2, 15, 16) and "slope" in few.left_out
    assert extent("fgsm", 200).passes == 150 and extent("fgsm", 200).left_out[-5:] == (*COSTLY, "full batch")
    both = extent("fgsm,pgd", 200)
    assert (both.passes, both.left_out) == (44 * 200 // 4, ()) and both.samples == 16
    assert extent("fgsm,pgd", 1000).samples == 32 and extent("fgsm,pgd", 1000).stated == {}
    assert extent("fgsm", 20, "full") == Extent(20, (), 20, None, 16) and extent("fgsm", 20, "full").stated == {}


def test_all_checks_are_made_on_as_many_samples_as_the_passes_allow() -> None:
    condition = parse_conditions("pgd", load_card("standard"), eps=(EPS,))[1]
    assert Extent(1).cost(condition) == Extent(2).cost(condition)  # of each sample
    for samples, batch in ((4, 0), (17, 0), (17, 64)):
        cost, without = Extent(samples, batch=batch).cost(condition), Extent(samples).cost(condition)
        passes, alone = (round(samples * (each.forwards + each.backwards)) for each in (cost, without))
        assert passes == alone + 2 * batch
        for more, reached in ((0, samples), (-1, samples - 1)):
            assert Extent(0, passes=passes + more).of(condition, 0, batch).samples == reached


@pytest.mark.slow
@pytest.mark.parametrize(("attacks", "samples"), [("pgd", 200), ("fgsm", 1000)])
def test_cheats_are_flagged_at_200_samples_of_pgd_and_1000_of_fgsm(attacks: str, samples: int) -> None:
    """One reads the stack for APGD, FAB and Square, and is honest to these; of one, eight samples say enough."""
    images, net, given = (random_images(16) * 255).round() / 255, tiny_cnn(), extent(attacks, samples)
    k = Known(net, images, net(images).argmax(dim=1).detach(), EPS)
    threat = ThreatModel("linf", EPS)
    unseen, attack = set(), (PGD if attacks == "pgd" else FGSM)(threat)
    for name, make in CHEATS.items():
        torch.manual_seed(0)
        rows = slice(given.samples)
        rng, model = Draws(range(len(images[rows]))), make(k)
        options: dict[str, Any] = {"attack": attack, "brief": True, "left_out": given.left_out, "attack_batch": 32}
        figures = examine(model, images[rows], k.labels[rows], threat, rng=rng, batch_size=16, **options)
        unseen |= set() if any(check.finding for check in checks_of(figures)) else {name}
    assert unseen == {"stack apgd", *UNFLAGGED, *(["table kernel"] if given.samples < 8 else [])}


def found(figures: dict[str, Any]) -> list[Finding]:
    return [check.finding for check in checks_of(figures) if check.finding]


def test_what_evidence_rests_on_is_said() -> None:
    figures = {"low": 0.0, "high": 1.0, "sum_error": 0.0, "samples": 4}
    thin, *others = found(figures | {"quick": {"passes": 9, "left_out": ["slope"]}})
    what = "the checks for gradient masking used only 4 samples and skipped slope"
    assert str(thin) == f"{what}: run --evidence full [evidence/thin]"
    (bad,) = (each for each in others if each.code != "masking/unmeasured")
    assert bad.code == "masking/probabilities"
    assert bad.text.startswith("probabilities: ") and bad.text.endswith(" (evidence on 4 samples)")
    rests = checks_of(figures | {"quick": {"passes": 9, "left_out": []}})[0]
    assert rests == Sign("evidence", "evidence on 4 samples")
    (none,) = found({"samples": 0, "quick": {"passes": 2, "left_out": ["slope"]}})
    assert none.code == "evidence/thin"
    assert none.text.startswith("no evidence, since a quarter of the attacks' passes")
    assert len(checks_of({"samples": 0, "quick": {"passes": 2, "left_out": ["slope"]}})) == 2


def test_evidence_comes_last_and_may_be_declined_and_made_up_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    text = "fgsm(eps=8/255)"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("robustkit.slices.evidence.taking.gather_evidence", stop)
        audit(place, tmp_path / "run", attacks="fgsm", evidence="full")
    run = RunFolder(tmp_path / "run")
    assert len(run.record_paths("net", text)) == 4 and (run.evidence("net", text) or {})["awaited"] is True
    declined = audit(place, tmp_path / "run", attacks="fgsm", evidence="none")
    (findings,) = {row.findings for row in declined.summary() if row.condition == text}
    words = "no evidence was collected for this attack: --evidence none was given"
    assert Finding("evidence/declined", words, "limit") in findings
    quick = audit(place, tmp_path / "run", attacks="fgsm").evidence("net", text)
    full = audit(place, tmp_path / "run", attacks="fgsm", evidence="full").evidence("net", text)
    assert quick and full and (quick["samples"], full["samples"]) == (3, 30) and "quick" not in full
    assert full["full_batch_size"] == 16 and full["full_batch"] < 1e-4  # as many as a batch of the run
    kept = audit(place, tmp_path / "run", attacks="fgsm").evidence("net", text)
    assert kept == full and full["rise_before"] == pytest.approx(full["rise_after"], rel=1e-4)
