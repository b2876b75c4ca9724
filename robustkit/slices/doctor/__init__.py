"""Test an installation on this machine: its versions, names, device and files, and known answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class UnexpectedAnswer(Exception):  # noqa: N818 - an answer rather than a fault
    """Something differs from what it must be; the message says what was found."""


def on_all_devices(check: Callable[[torch.device], str]) -> Callable[[], str]:
    """Return a check of all devices of this machine, from that of one; its line names several."""

    @wraps(check)
    def checked() -> str:
        from ...models.device import devices

        present = devices()
        for device in present:
            try:
                line = check(device)
            except UnexpectedAnswer as fault:
                raise UnexpectedAnswer(f"on {device}: {fault}") from None
        return line if len(present) == 1 else f"{line}, on {' and '.join(map(str, present))}"

    return checked
