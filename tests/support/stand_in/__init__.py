"""A stand-in for CUDA devices, for machines that have none.

    from stand_in import devices

    with devices(2) as seen:
        x = torch.rand(3, device="cuda:1")
        (x + 1).sum().item()
    assert seen.launched == 3 and seen.stops == 1

Tensors on it say `cuda:0` and compute on the CPU. What CUDA refuses is refused: operands on two devices, `.numpy()`,
generators of the CPU, products of integers. What costs time on CUDA is counted: see `Counts`. Backward runs in a thread
of the device, as on CUDA. Each device has a generator of its own.

It says nothing about numerics, which are the CPU's, nor about memory. torch.compile, streams, events and processes that
share tensors are not covered.
"""

from .build import why_not as why_not
from .counts import Counts as Counts
from .device import OnDevice as OnDevice
from .device import devices as devices
from .device import prepare as prepare
