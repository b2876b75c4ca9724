"""Stateless randomness: fixed vectors, independence of the batch, distribution."""

import math

import pytest
import torch

from robustkit.common.determinism import SampleRng, hash_values

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """Python-integer replica of the published generator's output function."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def words(seed: int, sample_id: str, condition: str, purpose: str, count: int) -> list[int]:
    state = splitmix64((hash_values(seed, condition, sample_id) ^ hash_values("purpose", purpose)) & MASK)
    return [splitmix64((state + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(count)]


def rng(ids: list[str], seed: int = 0, condition: str = "pgd(eps=1/255,steps=20)") -> SampleRng:
    return SampleRng.of(ids, seed=seed, condition=condition, device="cpu")


def test_splitmix64_published_vector() -> None:
    # First output of SplitMix64 seeded with 0: the golden-ratio increment, mixed.
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_draws_equal_the_integer_replica() -> None:
    expected = words(3, "b/2.png", "fgsm(eps=1/255)", "start", 6)
    source = SampleRng.of(["a", "b/2.png"], seed=3, condition="fgsm(eps=1/255)", device="cpu")
    halves = [(word >> shift & 0xFFFFFF) * 2.0**-24 for word in expected for shift in (40, 16)]
    assert source.uniform((3, 3), "start")[1].flatten().tolist() == halves[:9]
    bits = [2.0 * ((expected[i // 64] >> (i % 64)) & 1) - 1 for i in range(70)]
    assert source.signs((1, 70), "start")[1, 0].tolist() == bits
    radius = math.sqrt(-2 * math.log(((expected[0] >> 40) + 1) / 2**24))
    angle = 2 * math.pi * ((expected[0] >> 16) & 0xFFFFFF) / 2**24
    pair = [radius * math.cos(angle), radius * math.sin(angle)]
    assert source.normal((5,), "start")[1, :2].tolist() == pytest.approx(pair, abs=1e-5)


def test_a_draw_depends_on_the_sample_alone() -> None:
    together = rng(["a", "b", "c"]).uniform((3, 4), "start")
    assert torch.equal(together[2:], rng(["c"]).uniform((3, 4), "start"))
    assert torch.equal(together[[2, 0]], rng(["a", "b", "c"]).take(torch.tensor([2, 0])).uniform((3, 4), "start"))
    for other in (rng(["a"], seed=1), rng(["a"], condition="clean"), rng(["aa"])):
        assert not torch.equal(together[:1], other.uniform((3, 4), "start"))
    assert not torch.equal(together, rng(["a", "b", "c"]).uniform((3, 4), "restart"))


def test_chunks_of_signs_are_one_draw() -> None:
    source = rng(["a", "b"])
    whole = source.signs((6, 3, 50), "step 0")  # three words a row
    parts = [source.signs((2, 3, 50), "step 0", first=first) for first in (0, 2, 4)]
    assert torch.equal(whole, torch.cat(parts, dim=1))


def test_distributions() -> None:
    source = rng([str(i) for i in range(20)])
    uniform, normal, signs = (
        source.uniform((20_000,), "u").double(),
        source.normal((20_000,), "n").double(),
        source.signs((100, 200), "s").double(),
    )
    n = 400_000
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    assert abs(normal.mean()) < 5 / math.sqrt(n) and abs(normal.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((normal.abs() < 1).double().mean() - 0.682689) < 0.005
    assert set(signs.unique().tolist()) == {-1.0, 1.0} and abs(signs.mean()) < 5 / math.sqrt(n)
    assert abs((normal[:, ::2] * normal[:, 1::2]).mean()) < 5 / math.sqrt(n / 2)  # cosine and sine of one angle
    assert abs(((uniform[:, ::2] - 0.5) * (uniform[:, 1::2] - 0.5)).mean()) < 5 / 12 / math.sqrt(n / 2)  # one word's
    correlation = torch.corrcoef(torch.cat([uniform, normal, signs.flatten(1)]))
    off_diagonal = correlation - torch.eye(len(correlation))
    assert off_diagonal.abs().max() < 5 / math.sqrt(20_000)
