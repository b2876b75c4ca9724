"""With full evidence, an audit by PGD flags each model that fools PGD, except one that knows the examiner by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cheating_models import CHEATS, UNFLAGGED
from cheating_nets import COUNT, FOOLED, audit, audited_by_pgd, write

from robustkit.errors import ModelError

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]  # `examine` alone: test_cheating_models.py
HARMLESS = {"stack apgd", "softmax"}  # a cheat on other attacks, and probabilities, of which the audit takes logarithms
Audited = dict[str, tuple[int, set[str]]]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return audited_by_pgd(tmp_path_factory.mktemp("cheats"))


def test_the_honest_network_has_no_finding_and_most_cheats_fool_pgd(audited: Audited) -> None:
    honest, found = audited["honest"]
    assert honest < COUNT - FOOLED and not found
    fooled = {name for name, (standing, _) in audited.items() if standing >= honest + FOOLED}
    assert len(fooled) >= 20 and fooled >= UNFLAGGED.keys()


@pytest.mark.parametrize("name", [name for name in CHEATS if name not in ("detached", *UNFLAGGED)])
def test_each_cheat_is_flagged_under_pgd_alone(name: str, audited: Audited) -> None:
    standing, found = audited[name]
    assert bool(found) != (name in HARMLESS)
    assert name not in HARMLESS or standing == audited["honest"][0]


def test_where_no_gradient_leads_back_the_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="needs gradients, which detached lacks; expected attacks that ask for answers alone"
    ):
        audit([write(tmp_path)["detached"]], tmp_path, "refused")
