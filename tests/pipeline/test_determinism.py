"""The same command makes the same bytes: whatever the number of processes and wherever it was resumed, in each dtype.

Another batch size draws the same numbers, and gives the same results up to float rounding.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_audit
from processes import everything, in_two

from robustkit.report.run import Run

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
OPTIONS: dict[str, Any] = {
    "attacks": "fgsm,pgd(steps=3),spsa(steps=2,directions=4),autoattack(steps=3,targets=1,queries=20)",
    "cams": "grad-cam",
    "limit": 14,
    "shard_size": 8,
    "batch_size": 5,
}
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run in one go, of each dtype."""
    root = tmp_path_factory.mktemp("whole")
    return {dtype: small_audit.audit(place, root / dtype, dtype=dtype, **OPTIONS) for dtype in DTYPES}


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        ("float32", 0.3),
        ("bfloat16", 0.7),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("float32", 0.0), ("float32", 0.7), ("bfloat16", 0.0), ("bfloat16", 0.3))
        ),
    ],
)
def test_resumed_anywhere_it_makes_the_same_bytes(
    place: Path, tmp_path: Path, whole: dict[str, Run], dtype: str, share: float
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole[dtype].path, out)
    records = sorted(out.rglob("records/**/*.parquet"))
    dropped = np.random.Generator(np.random.PCG64(7)).permutation(len(records))[int(share * len(records)) :]
    for index in dropped:
        records[index].unlink()
    shutil.rmtree(out / "evidence", ignore_errors=True)
    assert dropped.size and everything(out) != everything(whole[dtype].path)
    small_audit.audit(place, out, dtype=dtype, **OPTIONS)
    assert everything(out) == everything(whole[dtype].path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_processes_that_resume_make_the_same_bytes(
    place: Path, tmp_path: Path, whole: dict[str, Run], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "run"
    shutil.copytree(whole[dtype].path, out)
    for path in sorted(out.rglob("records/**/*.parquet"))[::2]:
        path.unlink()
    more = ("--limit", "14", "--shard-size", "4", "--eps", "8/255", "--dtype", dtype, "--batch-size", "5")
    words = small_audit.command(place, out, *more, "--attacks", OPTIONS["attacks"], "--cams", "grad-cam")[3:]
    done = subprocess.run(in_two(words), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert everything(out) == everything(whole[dtype].path)


@pytest.mark.parametrize("size", [1, 14])
def test_another_batch_size_draws_the_same(place: Path, tmp_path: Path, whole: dict[str, Run], size: int) -> None:
    run = small_audit.audit(place, tmp_path / "run", **OPTIONS | {"batch_size": size})
    for unit in run.units():
        ours, theirs = run.table(*unit).to_pandas(), whole["float32"].table(*unit).to_pandas()
        assert ours["prediction"].equals(theirs["prediction"]), unit
        for column in ("nll", "confidence", "linf", "l2"):
            np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-4, atol=1e-5, err_msg=f"{unit} {column}")


def test_dtypes_are_not_mixed_and_differ(whole: dict[str, Run]) -> None:
    clean = [run.table("net", "clean")["nll"].to_numpy() for run in whole.values()]
    assert np.abs(clean[0] - clean[1]).max() > 0
