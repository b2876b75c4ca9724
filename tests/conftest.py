"""Fixtures that several test modules share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_audit import furnish

if "PYTEST_XDIST_WORKER" in os.environ:  # one of several that share the cores, as do the commands that it starts
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: threads only wait for each other, the longer the busier the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a factory, its weights and images; see `small_audit`."""
    return furnish(tmp_path_factory.mktemp("place"))
