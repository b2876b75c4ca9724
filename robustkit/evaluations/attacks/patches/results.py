"""Patches in results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...family import Presenter
from .condition import VOCABULARY

if TYPE_CHECKING:
    from ....runs.manifest import Manifest


class PatchesPresenter(Presenter):
    """Results of patches for people."""

    words = VOCABULARY

    def where(self, text: str, manifest: Manifest) -> str:
        return f"under a {self.called(text, manifest)}"


PRESENTER = PatchesPresenter()
