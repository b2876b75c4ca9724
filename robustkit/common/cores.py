"""How many threads a process may keep busy."""

from __future__ import annotations

import os

from .environment import count_in


def usual_workers() -> int:
    """Return how many threads decode images where nobody says: one for each core that this process may use.

    The processes that torchrun started on this machine share its cores.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // max(1, count_in("LOCAL_WORLD_SIZE", 1)))
