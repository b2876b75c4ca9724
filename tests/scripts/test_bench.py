"""The table of peers: whether work is equal is counted and compared before any time is taken; no peer is needed."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_oracles import random_images, tiny_cnn
from torch import Tensor

from attacks import PGD, ThreatModel
from scripts.bench import __main__ as bench
from scripts.bench import corruptions, maps, race
from scripts.bench.race import Result, Row, Sides, equal_work, same

CPU = torch.device("cpu")
NET, IMAGES = tiny_cnn().requires_grad_(False), random_images(6)
LABELS = NET(IMAGES).argmax(dim=1)


def pgd(steps: int, images: Tensor = IMAGES, eps: float = 0.03) -> Callable[[], Tensor]:
    attack = PGD(ThreatModel("linf", eps), steps=steps, step_size=0.004, random_start=False)
    return lambda: attack(NET, images, LABELS[: len(images)])


def sides(ours: Callable[[], Any], theirs: Callable[[], Any], **more: Any) -> Sides:
    return Sides(ours, theirs, same("images", 1e-6), **{"images": (6, 6)} | more)


def test_a_pass_is_a_row_of_a_forward_or_of_a_backward_that_reaches_it() -> None:
    def work() -> str:
        with torch.no_grad():
            NET(IMAGES)
        points = IMAGES[:2].clone().requires_grad_()
        NET(points).sum().backward()
        NET(points)
        return "done"

    assert race.passes([NET], work) == ((10, 2), "done")
    assert not NET._forward_hooks


def test_half_of_the_work_is_not_equal_work() -> None:
    equal, words = equal_work(sides(pgd(20), pgd(20)), [NET])
    assert equal and words == "20 + 20 passes each; same images to 1e-6"
    equal, words = equal_work(sides(pgd(10), pgd(20)), [NET])  # half of the steps
    assert not equal and words.startswith("10 + 10 passes, theirs 20 + 20; images differ by ")
    equal, words = equal_work(sides(pgd(20, IMAGES[:3]), lambda: pgd(20)()[:3]), [NET])  # half of the images
    assert not equal and words == "10 + 10 passes, theirs 20 + 20; same images to 1e-6"
    equal, words = equal_work(sides(pgd(20, IMAGES[:3]), lambda: pgd(20)()[:3], images=(3, 6)), [NET])
    assert equal
    equal, words = equal_work(sides(pgd(20), pgd(20, eps=0.02)), [NET])  # as many passes, another result
    assert not equal and re.fullmatch(r"20 \+ 20 passes each; images differ by \de-2", words)
    drawn = lambda: (IMAGES, IMAGES + 1)  # noqa: E731
    assert not equal_work(sides(pgd(20), pgd(20), same_draws=drawn), [NET])[0]


def test_a_row_says_what_was_compared_before_its_times() -> None:
    calls: list[str] = []

    def logged(name: str, work: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (calls.append(name), work())[1]

    row = Row("PGD", "bare passes", lambda: sides(logged("o", pgd(2)), logged("t", pgd(4))))
    result = race.measure(row, [NET], 3, CPU)
    assert "".join(calls) == "ot" + "ot" + "to" + "ot" and len(result.ours) == len(result.theirs) == 3
    assert result.cells[:2] == ["PGD", "bare passes"] and result.cells[2].startswith("no: 2 + 2 passes, theirs 4 + 4; ")
    made = Result("what", "peer", True, "work", [0.002, 0.001, 0.004], [0.004, 0.004, 4])
    assert made.cells == ["what", "peer", "yes: work", "2", "4", "4.00 [2.00, 1000.00]"]


def test_a_peer_that_is_missing_or_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {name: replace(peer, module="not_there_at_all") for name, peer in bench.PEERS.items()}
    monkeypatch.setattr(bench, "PEERS", gone)
    monkeypatch.setattr(bench.reference, "find", lambda: None)
    net, rows = bench.chosen(bench.parse(["--images", "2"]), CPU)
    assert {row.peer for row in rows} == {*gone, "bare passes", "the authors' rule"}
    assert len({(row.what, row.peer) for row in rows}) == len(rows)
    away = [row for row in rows if row.peer in gone]
    found = list(bench.results(away, net, 5, CPU))
    assert all(result.work.startswith("not installed: `pip install ") and not result.ours for result in found)

    def fail() -> Sides:
        raise RuntimeError("broken\nby an update")

    good = Row("PGD", "bare passes", lambda: sides(pgd(1), pgd(1)))
    found += bench.results([replace(good, make=fail), good], networks=[NET], pairs=1, device=CPU)
    assert found[-2].work == "failed: RuntimeError: broken" and found[-1].equal
    lines = bench.table(found).splitlines()
    assert len(lines) == 2 + len(found) and {line.count("|") for line in lines} == {len(bench.HEADING) + 1}


def test_rows_are_chosen_by_a_word_of_theirs() -> None:
    rows = bench.chosen(bench.parse(["--images", "2", "--rows", "quantus", "pgd"]), CPU)[1]
    assert rows and all("PGD" in row.what or row.peer == "Quantus" for row in rows)


def test_the_15_corruptions_are_four_categories_pair_by_pair() -> None:
    peer = "imagecorruptions 1.1.2"
    parts = [Result(str(i), peer, i != 3, "", [i + 1.0, 10.0 * i + 1], [1.0, 2.0 * i]) for i in range(5)]
    total = corruptions.total(parts)
    assert total.ours == [10.0, 64.0] and total.theirs == [4.0, 12.0] and not total.equal
    lines = bench.table([Result("first", "peer", True, ""), *parts]).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["first", "0", "1", "2", "3", "all", "4"]
    assert len(bench.table(parts[:4]).splitlines()) == 2 + 4  # not all were chosen


def test_bytes_may_differ_by_one_level_here_and_there() -> None:
    ours, theirs = torch.zeros(2, 3, 100, 10, dtype=torch.uint8), torch.zeros(2, 3, 100, 10, dtype=torch.uint8)
    assert corruptions.agree(ours, theirs) == (True, "same bytes, given its draws")
    theirs[0, 0, 0, :6] = 1
    assert corruptions.agree(ours, theirs)[0]
    theirs[0, 0, 0, 6] = 1
    assert not corruptions.agree(ours, theirs)[0]
    theirs[0, 0, 0] = 0
    theirs[0, 0, 0, 0] = 255
    assert not corruptions.agree(ours, theirs)[0] and not corruptions.agree(theirs, ours)[0]


def test_the_work_of_an_attack_is_counted_on_the_network_of_a_loaded_checkpoint() -> None:
    networks, rows = bench.chosen(bench.parse(["--images", "3", "--rows", "bare"]), CPU)
    by_name = {row.what: row for row in rows}
    assert equal_work(by_name["PGD, 20 steps, linf 1/255"].make(), networks) == (
        True,
        "20 + 20 passes each; no images to compare",
    )
    assert equal_work(by_name["rollout"].make(), networks) == (True, "1 + 0 passes each; no maps to compare")


def test_maps_of_a_peer_that_are_not_finite_do_not_count_as_the_same() -> None:
    ours = torch.rand(20, 4, 4)
    theirs = ours.clone()
    theirs[:2] = torch.nan
    assert maps.agree_on_maps(ours, theirs) == (True, "same maps to 1e-3")
    theirs[2] = torch.nan
    assert maps.agree_on_maps(ours, theirs) == (False, "3 of 20 maps of theirs are not finite")
