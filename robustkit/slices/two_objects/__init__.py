"""Ask for each of two objects in an image: how much of a map lies in the one that was asked for.

A condition is `two-object(map=agcam)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...evaluations.condition import Named, Place
from ...evaluations.family import LazyFamily
from ...evaluations.maps import Chosen, MapWords, methods_of, option_texts, split_options, with_options
from ...evaluations.metrics import Metric, mean_share, of_samples
from ...protocol.condition import Condition, ConditionPattern, Value

SHARE = replace(mean_share("asked_share", "share of the asked object %"), short="share of the asked %")
ASKED = replace(mean_share("asked_mass", "mass in the asked object %"), short="mass in the asked %")
OTHER = Metric("other_mass", "mass in the other object %", 100, -1, least=0, most=1, short="in the other %")
FOUND = replace(of_samples("both_found", "both classes found %"), short="both found %")
LEADS = {
    f"{name}_mass": Metric(f"asked_over_{name}", f"lead over {control}, points", 100, least=-1, most=1, short=short)
    for name, control, short in (
        ("other", "the map of the other class", "over the other class's map"),
        ("centre", "a centred Gaussian", "over centre"),
        ("random", "a random map", "over random"),
    )
}
"""By the column of the control's mass in the asked object: of the other class's map it is the mass in the other."""


KIND = "two-object"


class TwoObjectWords(MapWords):
    name = "two objects"
    claims = MapWords.claims._replace(under="of {}")
    parameters: ClassVar[Mapping[str, Value]] = {"map": "agcam"}
    metrics = (SHARE, ASKED, OTHER, *LEADS.values(), FOUND)

    def parse(self, text: str) -> Condition:
        plain, options = split_options(text, "agcam")
        condition = super().parse(plain)
        named = with_options(condition.text, options)
        return replace(condition, text=named, payload=options, draws=KIND, needs_truth=True)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        method = text.removeprefix(f"{KIND}(map=").removesuffix(")")
        before = {"table": "two objects, maps by ", "sentence": "two objects, in maps by "}
        return before.get(place, "") + method

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name in (SHARE.name, ASKED.name))

    def extend(self, conditions: Sequence[Condition], data: Any) -> Sequence[Condition]:
        """Add the maps of both objects of each image, by each method that is asked for."""
        if data.objects(data.samples[0]) is None:
            return conditions
        return (*conditions, *(two_object_condition(*each) for each in methods_of(conditions)))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--cams", self.map_of(pattern))


VOCABULARY = TwoObjectWords()
FAMILY = LazyFamily(VOCABULARY)


def two_object_condition(method: str, options: Chosen = ()) -> Condition:
    return VOCABULARY.parse(f"{KIND}({','.join([f'map={method}', *option_texts(options)])})")
