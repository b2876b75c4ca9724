"""What explainers that read a transformer's attention have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from .explainer import Explainer, held
from .watch import Transformer

_HARDLY = 0.01  # of the gradient: a token that has less of it is not what the logits are read from


def is_read(of_token: Tensor | float, of_all: Tensor | float) -> bool:
    """Whether the logits are read from a token, by how much of the gradient of all attention its rows have. Where there
    is no gradient at all, nothing is known against it.
    """
    return not bool(of_token < _HARDLY * of_all)  # numbers that are not finite show nothing either


class AttentionExplainer(Explainer):
    """An explainer that watches the attention of a transformer while it is entered. Its __init__ names the network."""

    _transformer: Transformer

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with held(self.model), self._transformer.watched():
            yield
