"""The doctor finds nothing wrong here, and finds what is."""

import pytest

from robustkit import doctor


def test_nothing_is_wrong_here_and_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {finding.name: finding for finding in doctor.examine()}
    assert {"distribution", "versions", "device", "frost", "draws", "fgsm"} == found.keys()
    wrong = [finding for finding in found.values() if not finding.fine and finding.name != "distribution"]
    assert wrong == []
    monkeypatch.setattr(doctor, "DRAWS", [0.5, *doctor.DRAWS[1:]])
    broken = {finding.name: finding for finding in doctor.examine()}
    assert not broken["draws"].fine and "runs from here cannot be compared" in broken["draws"].text


def test_frost_without_photographs_is_no_fault_but_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corruptions.frost.find_spec", lambda name: None)
    (frost,) = (finding for finding in doctor.examine() if finding.name == "frost")
    assert frost.fine and "pip install --no-deps imagecorruptions" in frost.text and "--frost-dir" in frost.text
