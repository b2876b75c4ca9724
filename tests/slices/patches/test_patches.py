"""Patches in a run: texts, records, results, and that a sample's patch is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from figures import said_of
from small_audit import UNCHECKED

import robustkit
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.condition import check_condition, pattern_of, words_of
from robustkit.protocol.card import load_card

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
CE, KQ = "patch(size=8,where=random,steps=6,loss=ce)", "patch(size=8,where=worst-of-2,steps=6,loss=kq)"
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "attacks": f"{CE},{KQ}",
    "limit": 16,
    "browse": 0,
    "device": "cpu",
    "setup_check": False,
}


@pytest.mark.slow
def test_records_say_where_each_patch_is_and_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    runs = [
        robustkit.audit("zoo:shapes-vit-quest", out=tmp_path / str(size), batch_size=size, shard_size=size, **OPTIONS)
        for size in (16, 5)
    ]
    assert list(runs[0].manifest.conditions) == ["clean", CE, KQ] and not runs[0].manifest.evidence
    for text in (CE, KQ):
        rows, others = (
            {row["sample_id"]: row for row in run.table("shapes-vit-quest", text).to_pylist()} for run in runs
        )
        assert rows.keys() == others.keys() and len(rows) == 16
        for name, row in rows.items():
            assert [row[key] for key in ("patch_top", "patch_left", "correct")] == [
                others[name][key] for key in ("patch_top", "patch_left", "correct")
            ]
            assert row["patch_top"] % 8 == row["patch_left"] % 8 == 0 and row["patch_share"] == 1 / 64
            assert row["l2"] <= (8 * 8 * 3) ** 0.5 and row["linf"] <= 1
            assert (row["broken_by"] == "patch") != row["correct"]
        assert len({(row["patch_top"], row["patch_left"]) for row in rows.values()}) > 5
        accuracy = sum(row["correct"] for row in rows.values()) / 16
        found = next(row for row in runs[0].summary() if (row.condition, row.metric) == (text, "top1"))
        assert found.value == accuracy < 0.9 and said_of(found) == [UNCHECKED]
    clean = {row["sample_id"]: row for row in runs[0].table("shapes-vit-quest", "clean").to_pylist()}
    untouched = [row for row in runs[0].table("shapes-vit-quest", CE).to_pylist() if row["l2"] == 0]
    assert all(not clean[row["sample_id"]]["correct"] for row in untouched)


def test_texts_and_words() -> None:
    card = load_card("standard")
    assert parse_condition("patch", card).text == "patch(size=16,steps=100,loss=ce)"
    assert parse_condition("patch(size=16,loss=kq)", card).text == "patch(size=16,steps=100,loss=kq)"
    assert pattern_of(KQ).text == KQ
    check_condition(KQ)
    assert words_of(KQ).label(KQ) == "patch of 8 pixels, worst-of-2 (CE + Lkq)"
    with pytest.raises(ProtocolError, match="within the bounds, and no bounds are given"):
        parse_condition("patch", load_card("quest-paper"))
    for wrong in ("patch(eps=1/255)", "patch(size=0)", "patch(loss=banana)", "patch(norm=linf)", "patch(where=middle)"):
        with pytest.raises(ProtocolError):
            parse_condition(wrong, card)
