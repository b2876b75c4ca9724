"""ROAD: imputation against a dense system and others' sparse ones, curves against a loop, and what it tells."""

from __future__ import annotations

import contextlib
import importlib
import io
from functools import partial
from itertools import product
from typing import Any

import cam_score_oracles as slow
import numpy as np
import pytest
import torch
from attack_oracles import Draws
from cam_models import close, cnn
from cam_oracles import some_images, tiny_vit
from cam_score_oracles import smooth_maps
from torch import Tensor

from cam.faithfulness import imputed, road

pytestmark = pytest.mark.usefixtures("one_thread")


def outside(name: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip(name.partition(".")[0])
        return importlib.import_module(name)


def holes(height: int, width: int) -> Tensor:
    """Nothing, a block, all but a corner, the edges, and single pixels; (5, height, width)."""
    removed = torch.zeros(5, height, width, dtype=torch.bool)
    removed[1, 1 : height - 2, 2 : width - 3] = True
    removed[2] = True
    removed[2, 0, 0] = False
    removed[3] = True
    removed[3, 2:-2, 2:-2] = False
    removed[4] = torch.rand(height, width, generator=torch.Generator().manual_seed(1)) < 0.4
    return removed


@pytest.mark.parametrize("size", [(16, 16), (11, 19), (3, 8), (1, 9)])
def test_imputed_pixels_solve_the_dense_system(size: tuple[int, int]) -> None:
    if size == (1, 9):
        removed = torch.tensor([[[False, True, True, False, True, False, True, True, True]]])
    else:
        removed = holes(*size) if min(size) > 4 else torch.rand(4, *size, generator=torch.Generator()) < 0.6
    images = torch.rand(len(removed), 2, *size, generator=torch.Generator().manual_seed(0)).double()
    found = imputed(images, removed, tolerance=1e-12)
    assert torch.equal(found.movedim(1, -1)[~removed], images.movedim(1, -1)[~removed])
    for one, image, gone in zip(found, images, removed, strict=True):
        close(one, slow.imputed(image, gone), 1e-10)
    single = imputed(images.float(), removed)  # at the usual tolerance
    close(single.double(), found, 2e-3)
    assert single.dtype == torch.float32


def test_an_image_of_which_nothing_is_left_becomes_0_and_does_not_disturb_others() -> None:
    images, removed = torch.rand(3, 3, 12, 13).double(), torch.zeros(3, 12, 13, dtype=torch.bool)
    removed[0], removed[1, 2:10, 3:9] = True, True
    found = imputed(images, removed, tolerance=1e-12)
    close(imputed(images, removed)[1:2], imputed(images[1:2], removed[1:2]), 1e-12)  # it stops at its own step
    assert (found[0] == 0).all() and torch.equal(found[2], images[2])
    close(found[1], slow.imputed(images[1], removed[1]), 1e-10)


def test_few_steps_are_enough_for_any_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole as large as a photograph takes hardly more steps than a small one: what multigrid is for."""
    monkeypatch.setattr("cam.faithfulness._STEPS", 20)
    images = smooth_maps(3, 224, 224, seed=2)[:, None]
    removed = torch.ones(3, 224, 224, dtype=torch.bool)
    removed[0, :5], removed[1, 100:103, 50:60], removed[2, ::40, ::40] = False, False, False
    exact = imputed(images.double(), removed, tolerance=0)
    monkeypatch.undo()
    close(exact, imputed(images.double(), removed, tolerance=1e-12), 1e-4)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # theirs, of a tensor as an array
def test_imputation_is_that_of_the_authors_as_others_have_it() -> None:
    theirs = outside("pytorch_grad_cam.metrics.road")
    quantus = outside("quantus.functions.perturb_func")
    images, removed = some_images(3), smooth_maps(3, 16, 24, seed=4) > 0.4
    ours = imputed(images.double(), removed, tolerance=1e-10)
    for image, gone, one in zip(images.double(), removed, ours, strict=True):
        close(theirs.NoisyLinearImputer(noise=0)(image.float(), (~gone).float()).double(), one, 1e-6)
        places = np.flatnonzero(gone.numpy())
        other = quantus.noisy_linear_imputation(image.numpy().copy(), places, noise=0.0)
        close(torch.from_numpy(other).view_as(one).double(), one, 1e-6)


def test_the_curves_are_those_of_a_loop_for_any_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cam.faithfulness.imputed", partial(imputed, tolerance=1e-10))
    net, images, maps = tiny_vit().double(), some_images(3).double(), smooth_maps(3, 16, 24, seed=5)
    maps[0, :8] = 0.5  # equals keep their raster order at both ends
    draws, targets, shares = Draws(range(3)), torch.tensor([1, 3, 2]), (0.15, 0.5, 0.85)
    noise = draws.normal((3, 16, 24), "cam/road").double()
    places = list(product(range(16), range(24)))
    found = {size: road(net, images, maps, targets, shares=shares, rng=draws, batch_size=size) for size in (64, 4)}
    for i, highest_first in product(range(3), (True, False)):
        order = sorted(places, key=lambda place: (-1 if highest_first else 1) * float(maps[i][place]))
        for j, share in enumerate(shares):
            gone = torch.zeros(16, 24, dtype=torch.bool)
            for place in order[: int(share * 16 * 24)]:
                gone[place] = True
            shown = slow.imputed(images[i], gone) + 0.01 * noise[i] * gone
            expected = slow.probability(net, shown, int(targets[i]))
            for one in found.values():
                assert (one.morf if highest_first else one.lerf)[i, j].item() == pytest.approx(expected, abs=1e-6)
    close(found[4].road, (found[4].lerf - found[4].morf).mean(dim=1), 1e-7)
    assert (found[64].road.abs() > 5e-4).all()


def test_a_constant_map_has_none_and_the_right_order_has_more_than_its_reverse() -> None:
    net = cnn()
    images = torch.zeros(2, 3, 20, 20)
    images[:, :, 4:9, 5:11] = 1
    target = net(images).argmax(dim=1)
    object_first = images[:, 0] * 0.9 + smooth_maps(2, 20, 20) * 0.1
    passes: list[int] = []
    net.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    flat = road(net, images, torch.ones(2, 20, 20), target)
    assert flat.road.tolist() == [0.0, 0.0] and sum(passes) == 2 * 9  # one order from both ends
    ahead, reverse = (road(net, images, maps, target, noise=0) for maps in (object_first, 1 - object_first))
    close(ahead.road, -reverse.road, 1e-3)
    assert (ahead.road.abs() > 0.01).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n, x, m: road(n, x, m, 0, shares=()), r"^shares are \(\); expected shares of pixels to remove"),
        (lambda n, x, m: road(n, x, m, 0, shares=(0.5, 1)), r"^shares are \(0.5, 1\); .* between 0 and 1$"),
        (lambda n, x, m: road(n, x, m, 0, noise=-1), "^noise is -1; expected 0 or more$"),
        (lambda n, x, m: imputed(x, m[:, :3] > 0), r"^images have the shape \(3, 3, 16, 24\), removed \(3, 3, 24\); "),
    ],
)
def test_rejects(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny_vit(), some_images(3), torch.zeros(3, 16, 24))
