"""Findings: their catalogue, and that each code is raised and documented; `conftest` sees that tests raise each."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from robustkit.common.finding import Entry, Finding, catalogue, entry_of
from robustkit.errors import ProtocolError
from robustkit.slices.evidence.gradient_masking import _CHECKS
from scripts.pages import findings as findings_page

ROOT = Path(__file__).parents[2]
CHECKS = {f"masking/{name.replace(' ', '-')}" for name, *_ in _CHECKS if name != "precision"}  # which only says so
PARTS = {f"setup/{part}-assumed" for part in ("attention", "normalisation", "crop", "interpolation", "text")}


SOURCES = "".join(path.read_text("utf-8") for path in (ROOT / "robustkit").rglob("*.py"))
NAMED = set(re.findall(r"[a-z]+/[a-z0-9-]+", SOURCES))


def test_each_code_is_raised_in_the_catalogue_and_on_its_page() -> None:
    every = catalogue().keys()
    assert every <= NAMED | CHECKS | PARTS, "raised nowhere"
    assert every >= CHECKS | PARTS
    assert findings_page.page() == findings_page.PAGE.read_text("utf-8"), "run python -m scripts.pages.findings"
    rooms = {code.partition("/")[0] for code in every}
    strange = [code for code in NAMED - every if code.partition("/")[0] in rooms]
    assert not [code for code in strange if f'Finding.of("{code}"' in SOURCES], "not in the catalogue"


@pytest.mark.parametrize("code", catalogue())
def test_an_entry_has_whole_sentences(code: str) -> None:
    entry = catalogue()[code]
    for text in (entry.title, entry.why, entry.remedy, entry.ignore):
        assert text[0].isupper() and text == text.strip()
    assert all(text.endswith((".", ")")) for text in (entry.why, entry.remedy, entry.ignore))
    assert not entry.title.endswith(".") and len(entry.title) <= 60
    fields = [field for _, field, _, _ in string.Formatter().parse(entry.sentence) if field is not None]
    assert all(field.isidentifier() for field in fields) and not entry.sentence.endswith(".")


def test_a_finding_is_written_and_read_again() -> None:
    finding = Finding.of("data/unreadable", count=2, n=9, samples="images")
    assert (finding.severity, finding.counts, finding.room, finding.is_listed) == ("limit", True, "data", True)
    assert str(finding) == "2 of 9 images could not be read; excluded [data/unreadable]"
    assert Finding.parse(str(finding)) == finding
    assert Finding.parse("a note [in brackets]") is None and Finding.parse("a note [of/nothing]") is None
    assert Finding.parse("a note") is None
    foreign = Finding("mine/odd", "odd", "note")
    assert foreign.is_listed and foreign.entry is None and not foreign.counts
    assert not Finding.of("maps/best-control", control="full").is_listed


def test_an_unknown_code_is_one_line_with_the_nearest() -> None:
    assert isinstance(entry_of("evidence/thin"), Entry)
    with pytest.raises(ProtocolError) as fault:
        entry_of("evidence/tin")
    said = "unknown finding 'evidence/tin'; did you mean 'evidence/thin'? robustkit explain lists them"
    assert str(fault.value) == said
