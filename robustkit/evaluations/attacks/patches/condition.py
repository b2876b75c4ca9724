"""The words of patches: `patch(size=16,steps=100,loss=kq)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from ....protocol.condition import ConditionPattern, Value
from ...family import Presenter
from ...interface import Vocabulary
from ...metrics import Term
from ..condition import parts

if TYPE_CHECKING:
    from ....runs.manifest import Manifest

_LOSSES = {"ce": "CE", "kq": "CE + Lkq", "kq-cls": "CE + Lkq*"}


class PatchWords(Vocabulary):
    """Attacks that a size bounds, so that their texts name no radius."""

    name = "patches"
    presenter_in = "condition"
    parameters: ClassVar[Mapping[str, Value]] = {
        "norm": "patch",
        "size": 16,
        "where": "corner",
        "steps": 100,
        "step_size": 0.1,
        "loss": "ce",
        "early_stop": True,
        "engine": "robustkit",
    }
    defaults: ClassVar[Mapping[str, str]] = {"where": "corner", "loss": "ce", "engine": "robustkit"}
    in_results = True
    terms = (
        Term(
            "patch",
            "A square of so many pixels in each image takes any values, and the rest stays. CE: its values raise the "
            "cross-entropy. Lkq: they also draw the queries of all tokens to the keys of the patch, before softmax; "
            "Lkq*: the query of the class token.",
        ),
    )

    def label(self, text: str) -> str:
        _, given = parts(text)
        where = given.get("where", "corner")
        place = "" if where == "corner" else f", {where}"
        return f"patch of {given.get('size', '16')} pixels{place} ({_LOSSES.get(given.get('loss', 'ce'), '?')})"

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = PatchWords()


class PatchesPresenter(Presenter):
    """Results of patches for people."""

    words = VOCABULARY

    def where(self, text: str, manifest: Manifest) -> str:
        return f"under a {self.called(text, manifest)}"


PRESENTER = PatchesPresenter()
