"""Evaluate a model under attack: conditions, reference engines, stages, evidence about its gradients.

The words of attacks: `pgd(eps=1/255,steps=20)`. Loads no torch.

Of an attack on corrupted images, `pgd(eps=1/255,steps=20,under=fog,severity=3)`, the ball lies around the corrupted
image. Its text ends with the words of `corruption(fog,severity=3)`, whose draws the image has, so that the corruption
alone and the attack on it are a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, cast

from attacks.registry import ATTACKS, DENSE_ATTACKS, WITHOUT_RADIUS, Lazy

from ...common.plugins import Registry, subclass_of
from ...display.format import amount
from ...errors import ProtocolError, unknown
from ...protocol.card import Card, card_names, load_card
from ...protocol.condition import CLEAN, ON, Condition, ConditionPattern, Value, samples_named
from ..condition import (
    ATTACK_NAMES,
    EVERY_FAMILY,
    UNDER_ATTACK,
    Named,
    Place,
    PublishedNames,
    Vocabulary,
    is_attack,
    kind_of,
    name_of,
    pattern_of,
    vocabulary_of,
    with_usual,
    words_of,
)
from ..metrics import WEIGHT, Metric, metric_named, of_samples, plain_name, supported_name

if TYPE_CHECKING:
    import attacks

_TAKEN = (*EVERY_FAMILY.entries, *ATTACK_NAMES)
ABSENT = {*WITHOUT_RADIUS} - EVERY_FAMILY.entries.keys()
"""Attacks whose family is a slice that was deleted: nothing could tell what they found."""
EVERY_ATTACK: Registry[type[attacks.Attack]] = Registry(
    "attacks", cast("Lazy", ATTACKS).without(ABSENT), subclass_of("attacks.attack:Attack"), _TAKEN, same_name=False
)
EVERY_DENSE_ATTACK: Registry[type[attacks.DenseAttack]] = Registry(
    "attacks", DENSE_ATTACKS, subclass_of("attacks.dense:DenseAttack"), _TAKEN, same_name=False
)
"""Of models that predict a class for each pixel."""
ENGINES: tuple[str, ...] = ("robustkit", "pyautoattack", "torchattacks")
BROKEN = Metric("found_of_broken", "found of all broken %", 100, binary=True)
TOP1 = of_samples("top1", "top-1 %")


UNDER, _KIND = "under", "corruption"
_OF_IT = ("severity", "preset", "variant", "texture", "source")  # parameters of the corruption, which are no attack's


def parted(text: str, values: Mapping[str, str], names: Container[str]) -> tuple[dict[str, str], Condition | None]:
    """Return the attack's own parameters, whose names are `names`, and the corruption that the others name, if any.

    Raises ProtocolError where there is no such corruption or severity, or its images cannot be attacked.
    """
    of_it = [f"{key}={values[key]}" for key in _OF_IT if key in values and key not in names]
    if UNDER not in values:
        if of_it:
            raise ProtocolError(f"condition {text!r}: {of_it[0]} is of a corruption; name it, such as under=fog")
        return dict(values), None
    if "(" in values[UNDER]:
        raise ProtocolError(f"condition {text!r}: expected {UNDER} without brackets, such as under=fog,severity=3")
    corruption = f"{_KIND}({','.join([values[UNDER], *of_it])})"
    try:
        under = vocabulary_of(_KIND).parse(corruption)
    except ProtocolError as fault:
        raise ProtocolError(f"condition {text!r}: {fault}") from None
    if under.released:
        raise ProtocolError(f"condition {text!r}: attacked images are corrupted here; leave out source=released")
    return {key: value for key, value in values.items() if key in names or key not in (UNDER, *_OF_IT)}, under


def on_corrupted(attack: Condition, under: Condition) -> Condition:
    """Return the attack on the images of a corruption, in place of those that it attacks so far."""
    attacking = attack.text.partition(f",{UNDER}=")[0].removesuffix(")")
    return replace(attack, text=f"{attacking},{UNDER}={under.text.removeprefix(f'{_KIND}(')}", under=under)


def starts_from(text: str) -> str:
    """Return the text of the condition whose images an attack changes; `clean` for other conditions, too."""
    _, named, inside = text.partition(f",{UNDER}=")
    return f"{_KIND}({inside}" if named and is_attack(kind_of(text)) else CLEAN.text


def attack_parts(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of an attack and its own parameters, as its text names them."""
    name, _, inside = text.partition(f",{UNDER}=")[0].partition("(")
    return name, dict(item.split("=", 1) for item in inside.rstrip(")").split(",") if "=" in item)


def attack_norm(text: str) -> str:
    return attack_parts(text)[1].get("norm", "linf")


def distance_norm(text: str) -> str:
    """Return the norm of the `distance` in a condition's records; empty where they have none."""
    return attack_norm(text) if metric_named(words_of(text).metrics, "median_distance") else ""


def _parse(text: str, card: Card) -> Condition:
    """Return the condition that a text names under a card; this loads torch."""
    condition: Condition = resolve_name(f"{__package__}.evaluate:parse_condition")(text, card)
    return condition


_NAMES = {
    "autoattack": "AutoAttack",
    "square": "Square",
    "hopskipjump": "HopSkipJump",
    "segpgd": "SegPGD",
    "cospgd": "CosPGD",
    "sea": "SEA",
}
_STAGES = {
    "apgd-ce": ("APGD-CE", ("steps",)),
    "apgd-dlr": ("APGD-DLR", ("steps",)),
    "apgd-pma": ("APGD-PMA", ("steps",)),
    "apgd-t": ("APGD-T", ("steps", "targets")),
    "fab-t": ("FAB-T", ("steps", "targets")),
    "square": ("Square", ("queries",)),
}
"""Stages of AutoAttack by their names in texts: what people call them, and which parameters they have."""
_STANDARD = {"steps": 100, "targets": 9, "queries": 5000}
"""Parameters of the AutoAttack that goes by this name (Croce and Hein 2020)."""


def attack_name(name: str) -> str:
    """Return how people write it: `PGD`, `AutoAttack`."""
    return _NAMES.get(name, name.upper())


def stages_of(only: str) -> str:
    """Return what people call stages of AutoAttack: `FAB-T and Square`."""
    *first, last = (_STAGES[stage][0] if stage in _STAGES else stage for stage in only.split("+"))
    return f"{', '.join(first)} and {last}" if first else last


def called_attack(name: str, pairs: dict[str, str], manifest: Named) -> str:
    """Return the name of an attack, AutoAttack's only of the standard one: else `APGD-CE`, a stage alone, whose
    parameters the pairs then have, or `modified AutoAttack`, followed by what differs."""
    if name != "autoattack":
        return attack_name(name)
    of_card = manifest.protocol.parameters.get(name, {})
    usual = {key: str(of_card.get(key, value)) for key, value in _STANDARD.items()}
    if (stage := pairs.get("only", "")) in _STAGES:
        del pairs["only"]
        title, keys = _STAGES[stage]
        pairs |= {key: pairs.get(key, usual[key]) for key in keys}
        for key in usual.keys() - {*keys}:
            pairs.pop(key, None)
        return title
    changed = {key: value for key, value in usual.items() if value != str(_STANDARD[key])}
    pairs |= {key: pairs.get(key, value) for key, value in changed.items()}
    return "modified AutoAttack" if pairs.keys() & {*_STANDARD, "only"} else attack_name(name)


def beneath(text: str, manifest: Named) -> str:
    """Return ` on fog, severity 3` for an attack on corrupted images; nothing on clean ones."""
    start = starts_from(text)
    return "" if start == CLEAN.text else f" on {name_of(start, 'table', manifest)}"


def text_under(name: str, card: Card) -> str:
    return _parse(name, card).text


class AttackWords(Vocabulary):
    name = "attacks"
    claims = UNDER_ATTACK
    parameters: ClassVar[Mapping[str, Value]] = {"norm": "linf", "engine": "robustkit"}
    telling = (UNDER, ON, "only")
    in_results = True
    metrics: ClassVar[tuple[Metric, ...]] = (BROKEN, supported_name(TOP1), WEIGHT)
    published = PublishedNames((*ATTACKS, *DENSE_ATTACKS))

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        if place == "axis" or manifest is None:
            return text
        claim, (name, pairs), space = manifest.claims.get(text), attack_parts(text), manifest.protocol.space
        title, version = called_attack(name, pairs, manifest), pairs.get("version", "standard")
        if place == "badge":  # `PGD-20 1/255`, as people write it; with the norm unless linf, the units unless pixels
            claim = manifest.claims[text]
            whole = title.endswith("AutoAttack")
            budget = next((pairs[key] for key in ("steps", "queries") if key in pairs and not whole), None)
            # A text names what differs from the card's attack, apart from its radius and budget.
            on = pairs.pop(ON, "")
            modified = pairs.keys() - {"eps", "norm", "version", *(["steps", "queries", *_STANDARD] if budget else [])}
            words = ["modified"] * bool(modified and not title.startswith("modified"))
            words += [title + (f"-{budget}" if budget else ""), version if version != "standard" else ""]
            words += ["" if claim.norm == "linf" else claim.norm, amount(claim.eps, claim.norm, space)]
            words += ["normalised"] if space == "normalised" else []
            return " ".join(filter(None, words)) + beneath(text, manifest) + (f", {on} samples" if on else "")
        # `PGD, 4/255, 20 steps`: the name, the radius with its norm unless linf, and what else the text says.
        eps, norm = pairs.pop("eps", ""), pairs.pop("norm", "linf")
        radius = eps if "/" in eps or claim is None else amount(claim.eps, norm, space)
        words = [f"{norm} {radius}" if norm != "linf" else radius]
        words += ["normalised units"] if space == "normalised" else []
        words += [stages_of(pairs.pop("only"))] if "only" in pairs else []
        for key, value in pairs.items():
            is_count = value.isdigit() and key.endswith("s")
            word = key.removesuffix("s") if value == "1" else key
            if (key, value) != ("version", "standard"):
                words.append(f"{value} {word}" if is_count else f"{key} {value}")
        rest = ", ".join(filter(None, (*words, beneath(text, manifest).strip())))
        return f"{title} ({rest})" if place == "sentence" else ", ".join(filter(None, (title, rest)))

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the strongest attack at each radius, clean and on each corruption; of equally strong ones the last."""
        radii: dict[str, list[str]] = {}
        for text in (text for text, name in values if name == metric):
            parameters = with_usual(pattern_of(text))
            start = starts_from(text)
            beneath = "" if start == CLEAN.text else f" on {words_of(start).label(start)}"
            beneath += f", {parameters[ON]} samples" if ON in parameters else ""
            radii.setdefault(f"{parameters['norm']} {parameters.get('eps', '')}".strip() + beneath, []).append(text)
        for radius, texts in radii.items():
            strongest = min(reversed(texts), key=lambda text: values[text, metric])
            which = f"lowest under {len(texts)} attacks" if len(texts) > 1 else "the attack"
            yield strongest, metric, f"{which} at {radius}"

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([supporting(text, conditions)] if plain_name(metric) else [])]

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError also where the attack makes sense under none of the cards that come with the package."""
        names = (*EVERY_ATTACK, *EVERY_DENSE_ATTACK)
        if pattern.name not in names:
            raise ProtocolError(unknown("condition", pattern.name, {*names, *EVERY_FAMILY}))
        faults = []
        for card in dict.fromkeys(("standard" if pattern.name in EVERY_ATTACK else "segmentation", *card_names())):
            try:
                _parse(pattern.text, load_card(card))
                return
            except ProtocolError as fault:
                faults.append(fault)
        raise faults[0]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = AttackWords()


def supporting(text: str, conditions: Iterable[str]) -> str:
    """Return what supports an attack on some samples: the last on all with its norm, radius and images, or those
    images.

    It looks at no figure: the shortest of several intervals would hold the truth less often than it says.
    """

    def kind(condition: str) -> tuple[str, str, str]:
        parameters = with_usual(pattern_of(condition))
        return parameters["norm"], parameters.get("eps", ""), starts_from(condition)

    whole = [other for other in conditions if words_of(other) is VOCABULARY and not samples_named(other)]
    return next((other for other in reversed(whole) if kind(other) == kind(text)), starts_from(text))
