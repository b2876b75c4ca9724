"""The words of rotations: `rotation(degrees=30)`."""

from __future__ import annotations

from robustkit.evaluations.condition import Named, Place, View, Vocabulary
from robustkit.evaluations.metrics import mean_share


class RotationWords(Vocabulary):
    """Images turned by some degrees."""

    in_results = True
    parameters = {"degrees": 30}  # noqa: RUF012
    metrics = (mean_share("agreement", "agreement %", drafted=True, hub=("agreement", "agreement with clean")),)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        return f"turned by {degrees_of(text)}°"

    def view(self, text: str) -> View:
        return View("rotation", degrees_of(text), "degrees")


def degrees_of(text: str) -> str:
    return text.partition("=")[2].removesuffix(")")


VOCABULARY = RotationWords()
