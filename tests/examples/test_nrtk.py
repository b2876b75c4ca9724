"""The example of NRTK: its perturbers as corruptions, whatever the batch and wherever an audit was interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from places import ROOT
from small_audit import files

import robustkit
from robustkit.common.determinism import SampleRng
from robustkit.errors import PluginError, ProtocolError

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
ZOO, SHAPES = "zoo:shapes-vit-quest", "embedded:shapes"
PLUGIN = ROOT / "examples" / "nrtk" / "perturbers.py"
NOISE, ENHANCE = (f"nrtk.impls.perturb_image.photometric.{name}" for name in ("noise", "enhance"))
IDS = ["a", "b", "c", "d", "e"]
PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, 24, 20), dtype=np.uint8))


class GaussianNoisePerturber:
    """A stand-in with the arguments of NRTK's: a generator that goes on from image to image."""

    def __init__(self, *, seed: int | None = None, var: float = 0.05) -> None:
        self.rng, self.var = np.random.default_rng(seed), var

    def __call__(self, *, image: Any, boxes: Any = None) -> tuple[Any, Any]:
        noisy = image / 255 + self.rng.normal(0, self.var**0.5, image.shape)
        return np.rint(np.clip(noisy, 0, 1) * 255).astype(np.uint8), boxes


class BrightnessPerturber:
    """One that returns floats, as it may not."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, *, image: Any, boxes: Any = None) -> tuple[Any, Any]:
        return image * self.factor, boxes


@pytest.fixture
def session() -> Iterator[None]:
    with robustkit.plugin_session():
        yield


@pytest.fixture
def stand_ins(session: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The corruptions of the example over stand-ins, whether NRTK is installed or not."""
    for place, kind in ((NOISE, GaussianNoisePerturber), (ENHANCE, BrightnessPerturber)):
        module = ModuleType(place)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, place, module)
    return {each.name: each.value for each in robustkit.load_plugin(PLUGIN)}


@pytest.fixture
def real(session: None) -> dict[str, Any]:
    """The corruptions of the example, of NRTK itself."""
    pytest.importorskip("nrtk", reason="pip install 'nrtk[headless,pillow,skimage]'")
    return {each.name: each.value for each in robustkit.load_plugin(PLUGIN)}


def corrupted(kind: Any, places: list[int], severity: int = 3) -> torch.Tensor:
    rng = SampleRng.of([IDS[place] for place in places], seed=0, condition="c", device="cpu")
    made: torch.Tensor = kind()(PIXELS[places], severity, rng)
    return made


def does_not_depend_on_the_batch(kind: Any) -> None:
    whole = corrupted(kind, [0, 1, 2, 3, 4])
    for places in ([3], [4, 0], [2, 1, 3]):
        assert torch.equal(corrupted(kind, places), whole[places])
    assert whole.shape == PIXELS.shape and whole.dtype == torch.uint8 and not torch.equal(whole, PIXELS)


def resumes(corruption: str, place: Path) -> None:
    """An audit that was interrupted after its first shards ends with the bytes of one that ran through."""

    class Stopping:
        """A listener that interrupts the audit as its third shard begins."""

        shards = 0

        def start(self, checkpoint: str, condition: str, samples: int) -> None:
            self.shards += condition == "clean"
            if self.shards == 3:
                raise KeyboardInterrupt

        def advance(self, samples: int) -> None: ...
        def stage(self, name: str, standing: int, share: float) -> None: ...

    def audit(out: str, progress: Any = False) -> robustkit.Run:
        options: dict[str, Any] = {"attacks": "none", "limit": 16, "shard_size": 4, "batch_size": 4, "device": "cpu"}
        asked = f"{corruption}(severity=2+5)"
        return robustkit.audit(ZOO, SHAPES, corruptions=asked, out=place / out, progress=progress, **options)

    through = audit("through")
    with pytest.raises(KeyboardInterrupt):
        audit("stopped", Stopping())
    written, every = (len([*(place / name).rglob("*.parquet")]) for name in ("stopped", "through"))
    assert 3 <= written < every
    assert files(audit("stopped").path) == files(through.path)
    shown = [through.table("shapes-vit-quest", text)["nll"].to_pylist() for text in through.manifest.conditions]
    assert len({tuple(losses) for losses in shown}) == 3  # clean and two severities


def test_an_image_has_a_perturber_of_its_own(stand_ins: dict[str, Any]) -> None:
    does_not_depend_on_the_batch(stand_ins["nrtk_gaussian_noise"])


def test_an_interrupted_audit_goes_on(stand_ins: dict[str, Any], tmp_path: Path) -> None:
    assert stand_ins
    resumes("nrtk_gaussian_noise", tmp_path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nrtk_haze(severity=0)", "severity '0'; expected whole numbers from 1 to 5"),
        ("nrtk_haze(severity=6)", "severity '6'; expected whole numbers from 1 to 5"),
        ("nrtk_hase", "did you mean 'nrtk_haze'"),
    ],
)
def test_conditions_that_are_refused(stand_ins: dict[str, Any], asked: str, said: str, tmp_path: Path) -> None:
    assert stand_ins
    with pytest.raises(ProtocolError, match=said):
        robustkit.audit(ZOO, SHAPES, attacks="none", corruptions=asked, limit=2, out=tmp_path / "run")


def test_what_a_perturber_may_not_do_and_one_that_is_missing(
    stand_ins: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=r"nrtk_dark: the perturber gives float64 of \(24, 20, 3\); expected uint8"):
        corrupted(stand_ins["nrtk_dark"], [0])
    with pytest.raises(ValueError, match="severity 0: expected a whole number from 1 to 5"):
        corrupted(stand_ins["nrtk_gaussian_noise"], [0], 0)
    monkeypatch.setattr(stand_ins["nrtk_haze"], "place", "nrtk_is_not_here:Haze")
    with pytest.raises(PluginError, match="nrtk_haze needs nrtk_is_not_here:Haze, which cannot be imported"):
        robustkit.audit(ZOO, SHAPES, attacks="none", corruptions="nrtk_haze", limit=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_page_has_the_values_of_the_file(stand_ins: dict[str, Any]) -> None:
    page = (PLUGIN.parent / "README.md").read_text("utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if "| `" in line]
    shown = {name: (kind, [float(value) for value in values]) for name, kind, _, *values in rows}
    assert shown == {name: (kind.place.partition(":")[2], [*kind.values]) for name, kind in stand_ins.items()}


NAMES = ("nrtk_gaussian_noise", "nrtk_salt_and_pepper", "nrtk_dark", "nrtk_haze", "nrtk_translation")


@pytest.mark.parametrize("name", NAMES)
def test_perturbers_of_nrtk(real: dict[str, Any], name: str) -> None:
    assert tuple(real) == NAMES
    does_not_depend_on_the_batch(real[name])
    made = [corrupted(real[name], [0, 1, 2, 3, 4], severity).float() for severity in (1, 2, 3, 4, 5)]
    changes = [float((each - PIXELS).abs().mean()) for each in made]
    assert changes == sorted(changes) and changes[0] > 0


def test_pixels_are_those_of_nrtk(real: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from nrtk.impls.perturb_image.environment import HazePerturber
    from nrtk.impls.perturb_image.photometric.noise import GaussianNoisePerturber as Noise

    images = PIXELS.permute(0, 2, 3, 1).numpy()
    hazy = corrupted(real["nrtk_haze"], [0, 1, 2, 3, 4]).permute(0, 2, 3, 1).numpy()
    for image, made in zip(images, hazy, strict=True):
        assert np.array_equal(made, HazePerturber(factor=1.0)(image=image)[0])
    seeds = list[int]()
    kind = real["nrtk_gaussian_noise"]
    own = kind.perturb
    monkeypatch.setattr(
        kind, "perturb", lambda self, image, value, seed: seeds.append(seed) or own(self, image, value, seed)
    )
    noisy = corrupted(kind, [0, 1, 2, 3, 4]).permute(0, 2, 3, 1).numpy()
    assert len(set(seeds)) == 5 and all(0 < seed < 2**48 for seed in seeds) and max(seeds) > 2**40
    for image, made, seed in zip(images, noisy, seeds, strict=True):
        assert np.array_equal(made, Noise(seed=seed, var=0.02)(image=image)[0])


def test_an_interrupted_audit_with_nrtk_goes_on(real: dict[str, Any], tmp_path: Path) -> None:
    assert real
    resumes("nrtk_salt_and_pepper", tmp_path)
