"""Arguments and results of torch's operations, which hold tensors in lists, tuples and dictionaries at most.

torch.utils._pytree knows more containers, and takes longer than most operations here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leaves_of(tree: Any) -> list[Any]:
    """Return what the containers hold, in order."""
    found: list[Any] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        found.append(tree)
        return
    for part in tree:
        _gather(part, found)


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same containers with each leaf changed."""
    if isinstance(tree, dict):
        return {name: mapped(change, part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [mapped(change, part) for part in tree]
    return tuple(mapped(change, part) for part in tree) if isinstance(tree, tuple) else change(tree)
