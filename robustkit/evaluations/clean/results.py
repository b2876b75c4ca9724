"""Clean images in results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..family import Presenter
from .condition import VOCABULARY

if TYPE_CHECKING:
    from ...runs.manifest import Manifest


class CleanPresenter(Presenter):
    """Results of clean for people."""

    words = VOCABULARY

    def where(self, text: str, manifest: Manifest) -> str:
        return f"on clean {manifest.protocol.samples.many}"


PRESENTER = CleanPresenter()
