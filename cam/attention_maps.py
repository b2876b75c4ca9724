"""What explainers that read a transformer's attention have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .explainer import Explainer, held
from .watch import Transformer


class AttentionExplainer(Explainer):
    """An explainer that watches the attention of a transformer while it is entered. Its __init__ names the network."""

    _transformer: Transformer

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with held(self.model), self._transformer.watched():
            yield
