"""Each corruption against the reference's own pixels, given the reference's own draws; and its independence of batches.

`python -m scripts.goldens.equality` prints the whole table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from corruption_goldens import GOLDENS, OWN, RELEASED, channels_first, real_frost
from legacy_draws import legacy_draws, write_frost_photographs

from corruptions.constants import PRESETS
from corruptions.registry import CORRUPTIONS, corruption
from robustkit.common.determinism import SampleRng
from scripts.goldens import reference

WITHIN_ONE_LEVEL: dict[str, set[str]] = {
    "corruptions": {"contrast", "gaussian_blur", "motion_blur", "glass_blur"},
    "hendrycks_imagenet_c_224": {"defocus_blur"},
    "bethgelab_imagecorruptions_1.1.2_224": {"motion_blur", "defocus_blur"},
    "hendrycks_cifar10_c_32": set(),
}
"""What is not equal byte for byte: everything else is. Of glass_blur and defocus_blur, with NumPy 1.26 only."""
DIFFERING_AT_MOST = 1e-3  # of the values of photographs, where any may
TIES_DIFFERING_AT_MOST = 0.5  # of the third input's, whose every value is a tie; see scripts/goldens/make.py
needs_shared = pytest.mark.skipif(not RELEASED.is_dir(), reason="needs the goldens of ../shared")
SEVERITIES = range(1, 6)
BENCHMARKS = list(CORRUPTIONS)[:19]  # for the others see test_bar.py and test_laion.py
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def frost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small photographs in place of frost's."""
    folder = tmp_path_factory.mktemp("frost")
    write_frost_photographs(folder)
    return folder


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize(
    "key", [OWN.stem, *(pytest.param(key, marks=[pytest.mark.shared, needs_shared]) for key in list(GOLDENS)[1:])]
)
def test_the_references_draws_give_the_references_pixels(key: str, name: str, frost: Path) -> None:
    photographs = frost if key == OWN.stem else real_frost()
    if name == "frost" and photographs is None:
        pytest.skip("needs frost's photographs: pip install --no-deps imagecorruptions")
    for severity in SEVERITIES:
        for part, gap in enumerate(GOLDENS[key].differences(name, severity, photographs)):
            said = f"severity {severity}, part {part}: largest {gap.max()}, mean {gap.mean():.2g}"
            assert gap.max() <= (name in WITHIN_ONE_LEVEL[key]), said
            assert gap.mean() <= (TIES_DIFFERING_AT_MOST if part == 2 else DIFFERING_AT_MOST), said


@pytest.mark.parametrize("key", [OWN.stem, *(pytest.param(key, marks=needs_shared) for key in list(GOLDENS)[1:])])
def test_impulse_noise_hits_as_many_values_as_its_constant_says(key: str) -> None:
    """Its draws are read off the golden, which pixels alone cannot contradict; their number can."""
    golden = GOLDENS[key]
    made = corruption("impulse_noise", preset=golden.preset, variant=golden.variant)
    for severity in SEVERITIES:
        share = made.constants(severity)
        drawn = [
            legacy_draws(made, images, severity, noisy[severity - 1])["uniform"].flatten()
            for _, images, noisy in golden.parts(made.name)
        ]
        uniform = torch.cat(drawn)
        error = (share / len(uniform)) ** 0.5
        assert float((uniform < share).double().mean()) == pytest.approx(share, abs=4 * error)
        assert float((uniform < share / 2).double().mean()) == pytest.approx(share / 2, abs=4 * error)


def test_the_golden_is_what_the_reference_gives(frost: Path) -> None:
    """Within one level, since other versions of NumPy and OpenCV round elsewhere."""
    if reference.find() is None:
        pytest.skip("needs imagecorruptions 1.1.2, installed or named by ROBUSTKIT_IMAGECORRUPTIONS")
    module = reference.load(frost_dir=frost)
    for name in BENCHMARKS:
        for index, images, golden in GOLDENS[OWN.stem].parts(name):
            for severity in SEVERITIES:
                np.random.seed(1000 * severity + index)
                made = reference.reference(module, name, images[0], severity)
                gap = np.abs(made.astype(int) - golden[severity - 1, 0])
                limit = TIES_DIFFERING_AT_MOST if index == 2 else DIFFERING_AT_MOST
                assert gap.max() <= 1 and gap.mean() <= limit, (name, severity)


def five_images() -> torch.Tensor:
    """(5, 3, 27, 37): photographs, one of them dark and one flat."""
    with np.load(OWN) as arrays:
        picture, other = arrays["input_0"][4:31, 1:38], arrays["input_1"][:27].repeat(2, axis=1)[:, :37]
    crops = [picture, other, picture // 9, np.full_like(picture, 128), np.ascontiguousarray(other[::-1])]
    return channels_first(np.stack(crops))


def sample_rng(samples: range, condition: str, device: str = "cpu") -> SampleRng:
    return SampleRng.of([f"sample {i}" for i in samples], seed=3, condition=condition, device=device)


@pytest.mark.parametrize(
    ("name", "preset"),
    [(name, preset) for preset, names in PRESETS.items() for name in names],
)
def test_a_sample_is_corrupted_the_same_in_every_batch(name: str, preset: str, tmp_path: Path) -> None:
    write_frost_photographs(tmp_path, side=66 if preset == "imagenet" else 260)
    images = five_images()
    made = corruption(name, preset=preset, frost_dir=str(tmp_path), tiles_dir=str(tmp_path))
    for severity in SEVERITIES:
        whole = made(images, severity, sample_rng(range(5), f"{name} {severity}"))
        assert whole.dtype == torch.uint8 and whole.shape == images.shape and not torch.equal(whole, images)
        for batch in (1, 2):
            for start in range(0, 5, batch):
                members = range(start, min(start + batch, 5))
                part = made(images[members.start : members.stop], severity, sample_rng(members, f"{name} {severity}"))
                assert torch.equal(part, whole[members.start : members.stop]), (severity, batch, start)
        spread = made(
            images.contiguous(memory_format=torch.channels_last), severity, sample_rng(range(5), f"{name} {severity}")
        )
        assert torch.equal(spread, whole)  # a decoder's tensors lie like this
        floating = made(images.float() / 255, severity, sample_rng(range(5), f"{name} {severity}"))
        assert floating.dtype == torch.float32 and torch.equal((floating * 255).round().to(torch.uint8), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_another_device_gives_the_same_pixels_up_to_rounding(name: str, frost: Path, cuda: torch.device) -> None:
    """Normal numbers differ by rounding; where one lies on spatter's or snow's threshold, a few pixels differ more."""
    images = five_images()
    preset = "imagenet" if name in PRESETS["imagenet"] else "cifar"
    made = corruption(name, preset=preset, frost_dir=str(frost), tiles_dir=str(frost))
    for severity in SEVERITIES:
        here = made(images, severity, sample_rng(range(5), name))
        there = made(images.to(cuda), severity, sample_rng(range(5), name, "cuda"))
        assert there.is_cuda
        gap = (there.cpu().int() - here.int()).abs()
        assert float((gap > 1).float().mean()) < 1e-3 and float(gap.float().mean()) < 0.02, severity
