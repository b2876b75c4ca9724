"""The words of maps: `cam(agcam,mode=box)` and `stability(agcam,under=pgd(eps=1/255))`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.condition import CLEAN, ON, ConditionPattern
from ..kinds import vocabulary_of
from ..map_methods import METHODS
from ..metric import Metric, named
from ..supported import WEIGHT, plain_name, supported
from ..vocabulary import View, Vocabulary
from .condition import MODES, MapSpec, parse_explained, parts_of
from .measures import CONTROLLED, FAITHFUL, METRICS, TERMS

BEST = "best control: "
"""The beginning of the flag of a lead over controls; it raises no doubt."""
_OVER = "_over_control"
_CHIEF = ("cam_iou", "pointing_game", "abpc")  # the first of these that a run has
_KINDS = ("", "-mask", "-faithfulness", "-stability")
_SCORES = {"mask_iou": "IoU", "box_iou": "box IoU", "abpc": "ABPC"}


class MapWords(Vocabulary):
    """Scores of maps, and how they change under another condition."""

    defaults: ClassVar[Mapping[str, str]] = {"threshold": "0.5", "target": "predicted", "faithfulness": "abpc"}
    telling = (ON,)
    metrics = (*METRICS, *map(supported, FAITHFUL), WEIGHT)
    terms = TERMS

    def metric(self, name: str) -> Metric | None:
        """Return its metric of this name, including leads over controls."""
        lead = name.removesuffix(_OVER)
        if lead == name:
            return super().metric(name)
        score = named(CONTROLLED, lead)
        if score is None:
            return None
        low, high = score.difference_ends
        return replace(
            score,
            name=name,
            label=f"lead in {score.label}",
            paired=False,
            share=False,
            drafted=False,
            least=low,
            most=high,
            also=(),
        )

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the lead of the first method over the best control."""
        leads = ((text, lead) for score in _CHIEF for text, lead in values if lead == score + _OVER)
        if first := next(leads, None):
            yield (*first, "lead of the maps over the best control, which does not look at the image")

    def is_remark(self, flag: str) -> bool:
        return flag.startswith(BEST)

    def is_control(self, text: str) -> bool:
        parts = parts_of(text)
        return parts is not None and parts[0].is_control

    def shares(self, text: str) -> dict[str, float]:
        parts = parts_of(text)
        return {text if parts is None else parts[0].text: 1.0}

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [
            *self.shares(text),
            *([CLEAN.text] if plain_name(metric) else []),
            *(condition for condition in conditions if _OVER in metric and condition.startswith("cam(")),
        ]

    def view(self, text: str) -> View:
        explained = parse_explained(text)
        assert explained is not None
        scores = {} if explained.under else _SCORES
        return View(text, over=explained.under or "clean", scores=scores, drawn=not explained.is_control)

    def published_names(self) -> Sequence[str]:
        return [f"{method}{kind}" for method in METHODS for kind in _KINDS]

    def published_name(self, text: str) -> str:
        """Return the published name, such as `agcam-mask`; empty for controls."""
        parts = parts_of(text)
        if parts is None:
            return super().published_name(text)
        explained, mode = parts
        kind = "stability" if explained.under else {"box": "", "mask": "mask", "": "faithfulness"}[mode]
        return "" if explained.is_control else "-".join(filter(None, (explained.method, kind)))

    def published_as(self, text: str) -> str:
        parts, paper = parts_of(text), MapSpec("agcam")
        same = parts is not None and (parts[0].threshold, parts[0].target) == (paper.threshold, paper.target)
        return self.published_name(text) if same else ""

    def is_fixed(self, name: str) -> bool:
        method = next((name.removesuffix(kind) for kind in _KINDS[1:] if name.endswith(kind)), name)
        return method in METHODS or parts_of(name) is not None

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        given = pattern.given
        if given.get("mode", "mask") not in MODES:
            raise ProtocolError(f"{text}: " + unknown("mode", given["mode"], MODES))
        kept = [pair for pair in pattern.pairs if not pair.startswith("mode=")]
        parse_explained(f"{pattern.name}({','.join([pattern.what, *kept])})")
        if "under" in given:
            other(given["under"])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "clean"))
        kept = ",".join(pair for pair in pattern.pairs if not pair.startswith(("mode=", "under=")))
        yield from vocabulary_of(under.name).command(under, other)
        yield from ("--cams", f"{pattern.what}({kept})" if kept else pattern.what)
        yield from ("--stability",) if pattern.name == "stability" else ()


VOCABULARY = MapWords()
