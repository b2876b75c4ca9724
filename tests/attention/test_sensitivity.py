"""The slope of softmax, compared with eigenvalues, autograd and closed forms."""

from __future__ import annotations

import pytest
import torch

from robustkit.slices.watching.evaluate import softmax_slope


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-14), (torch.float32, 2e-7)])
def test_slopes_are_the_largest_eigenvalues(dtype: torch.dtype, atol: float) -> None:
    draw = torch.Generator().manual_seed(0)
    for scale in (0.0, 0.1, 1.0, 3.0, 10.0, 100.0):
        for keys in (2, 3, 7, 64):
            p = (torch.randn(50, keys, generator=draw, dtype=dtype) * scale).softmax(dim=-1)
            p[:10, :2] = p[:10, :1].clamp(min=1e-3)
            p = p / p.sum(dim=-1, keepdim=True)
            wide = p.double()
            jacobians = torch.diag_embed(wide) - wide[:, :, None] * wide[:, None, :]
            exact = torch.linalg.eigvalsh(jacobians)[:, -1]
            torch.testing.assert_close(softmax_slope(p).double(), exact, rtol=0, atol=atol)


def test_a_slope_is_what_autograd_finds_and_known_rows_have_known_ones() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.9], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(0), logits)
    assert float(softmax_slope(logits.softmax(0))) == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)))
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.75, 0.25, 0.0]])
    assert softmax_slope(rows).tolist() == pytest.approx([0.5, 0.0, 1 / 3, 0.375])
    assert softmax_slope(torch.ones(2, 3, 1)).tolist() == [[0.0] * 3] * 2
    assert softmax_slope(torch.tensor([[float("nan"), 1.0]])).isnan().all()
    assert softmax_slope(rows.to(torch.bfloat16)).dtype == torch.float32
