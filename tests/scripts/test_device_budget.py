"""The estimate of an audit on a device: counts times rates."""

import argparse

import pytest

from scripts.bench.device_budget import Cost, at, seconds

RATES = argparse.Namespace(images=1280, unit=128, batch=128, network=100, forward=1000, launch=5.0, wait=25.0, host=3.0)


def test_a_count_is_extended_along_a_line() -> None:
    assert at(128, {4: 10, 8: 14}) == 134 and at(128, {4: 7, 8: 7}) == 7


def test_a_unit_takes_its_kernels_or_their_launches_whichever_is_longer_and_its_waits() -> None:
    parts = seconds(Cost("pgd", 2, 3, 1, launches=400, waits=4), RATES)
    units, passes = 20, 5
    assert parts["model"] == pytest.approx(units * 128 * passes / 1000)
    assert parts["launches"] == pytest.approx(units * (400 + passes * 100) * 5e-6)
    assert parts["waits"] == pytest.approx(units * 4 * 25e-6) and parts["host"] == pytest.approx(units * 3e-3)
    assert parts["all"] == pytest.approx(parts["model"] + units * 400 * 5e-6 + parts["waits"] + parts["host"])
    fast = argparse.Namespace(**vars(RATES) | {"forward": 1e9})
    parts = seconds(Cost("pgd", 2, 3, 1, launches=400, waits=4), fast)
    assert parts["all"] == pytest.approx(parts["launches"] + parts["waits"] + parts["host"])
    half = argparse.Namespace(**vars(RATES) | {"batch": 64})  # two batches a unit launch the network twice
    assert seconds(Cost("clean", 1, 1, 0, 0, 0), half)["launches"] == pytest.approx(10 * 2 * 100 * 5e-6)
