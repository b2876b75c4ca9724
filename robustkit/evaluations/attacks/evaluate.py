"""Attacks by name, built from a condition's text, what they cost, and a batch under attack, into columns of a record.

`clean`, `fgsm(eps=1/255)`, `pgd(eps=1/255,steps=20)`, `autoattack(eps=1/255,version=standard)`. The text always names
eps (and the norm unless linf) and the attack's budget, and otherwise only what differs from the protocol card, so it
means the same thing wherever the card's tag stands next to it. `engine=` names another library that ran the attack,
`under=fog,severity=3` the corruption whose images are attacked. Conditions of other families are read by theirs.

What reads and runs models is loaded when a batch is evaluated; texts are read without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

import attacks
from attacks.pgd import LOOK_FROM, STEP_SHARES
from attacks.queue import LINEAR_TARGETS
from attacks.registry import FEATURE_ATTACKS

from ...common.determinism import SampleRng
from ...common.names import norm_name
from ...common.plugins import Plugin, of_slice
from ...errors import ProtocolError, unknown
from ...protocol.card import Card, format_number, parse_number
from ...protocol.condition import (
    CLEAN,
    ON,
    Condition,
    Value,
    format_value,
    parse_value,
    split_arguments,
    split_condition,
    split_list,
)
from ..condition import Cost, Vocabulary, is_attack, kind_named
from ..family import Evaluator, attacked_inputs
from ..subject import Batch, EvaluatedModel, Evaluation, Shown, show_attacked
from . import ENGINES, EVERY_ATTACK, EVERY_DENSE_ATTACK, VOCABULARY, on_corrupted, parted

_BUDGET = {
    "square": "queries",
    "hopskipjump": "queries",
    "autoattack": "version",
}  # what the text always names, as eps; else the steps
EMBEDDING = "embedding"  # the loss of a PGD that moves an image's embedding, whatever its label
_PARTS = ("only", ON)
_OF_CARD = {"labels", "bounds", "cut_images", "step_size_l2"}  # of a card's table, but no parameters


class Options(TypedDict):
    """What counts where the text of a condition does not say it."""

    eps: Fraction | None
    norm: str | None
    engine: str | None


def attacks_of(card: Card) -> Mapping[str, type[Any]]:
    if card.task == "features":
        return FEATURE_ATTACKS
    return EVERY_DENSE_ATTACK if card.task == "segmentation" else EVERY_ATTACK


def parse_condition(
    text: str, card: Card, *, eps: Fraction | None = None, norm: str | None = None, engine: str | None = None
) -> Condition:
    """Return the condition that `text` names under a card; the options count where the text has none.

    Raises ProtocolError for an unknown attack or parameter, or a value of the wrong kind.
    """
    name, arguments = split_condition(text)
    name, norm = kind_named(name), None if norm is None else norm_name(norm)
    if name == "clean":
        if arguments:
            raise ProtocolError(f"condition {text!r}: clean takes no parameters")
        return CLEAN
    if name not in attacks_of(card):
        raise ProtocolError(unknown("attack", name, attacks_of(card)))
    default = defaults_of(name, card)
    texts, under = parted(text, split_arguments(name, arguments, default), default)
    values = {key: _value(name, key, value, default) for key, value in texts.items()}
    values |= {"norm": norm_name(values["norm"])} if "norm" in values else {}
    norms = _norms(name, card)
    norm = norm if norm in norms or len(norms) > 1 else None  # of an attack in one norm
    default = defaults_of(name, card, str(values.get("norm", norm or default["norm"])))
    options = {"eps": eps, "norm": norm, "engine": engine}
    resolved = default | {k: value for k, value in options.items() if value is not None and k in default} | values
    _check_threat(name, resolved, card)
    always = {"eps", "size", "degrees", "shift", _BUDGET.get(name, "steps"), *(["loss"] if name == "patch" else [])}
    stated = {k: v for k, v in resolved.items() if k in always or (v != default[k] and k != "norm")}
    if resolved["norm"] not in ("linf", "patch"):
        stated["norm"] = resolved["norm"]

    def naming(keys: Iterable[str]) -> Condition:
        inside = ",".join(f"{key}={format_value(stated[key])}" for key in keys)
        condition = Condition(name, f"{name}({inside})", tuple(resolved.items()))
        if under is None:
            return condition
        if condition.eps is None:
            raise ProtocolError(f"{text!r}: under applies to attacks of a fixed radius; leave it out of {name}")
        return on_corrupted(condition, under)

    named = [key for key in default if key in stated]
    condition = naming(named)
    whole = [key for key in named if key not in _PARTS]
    if whole != named:  # some samples, and some stages, draw what they do in the whole attack
        condition = replace(condition, draws=naming(whole).text)
    attack = build_attack(condition, card)  # a value that the attack refuses is refused here, before any work
    return replace(condition, whole_shard=any(getattr(attack, name, False) for name in ("queues", "minimal")))


def parse_conditions(
    text: str,
    card: Card,
    *,
    eps: tuple[Fraction, ...] = (),
    norm: str | None = None,
    engine: str | None = None,
    several: Callable[[str, Card, Options], Iterable[Condition]] | None = None,
) -> tuple[Condition, ...]:
    """Return the conditions of a comma-separated list, `clean` first, each once; several eps give one of each.

    several: reads an item that stands for more than one condition; nothing of another item.
    """
    conditions = {CLEAN: None}
    for item in split_list(text):
        for radius in eps or (None,):
            options: Options = {"eps": radius, "norm": norm, "engine": engine}
            parts = [*several(item, card, options)] if several else []
            conditions |= dict.fromkeys(parts or [parse_condition(item, card, **options)])
    return tuple(conditions)


def defaults_of(name: str, card: Card, norm: str | None = None) -> dict[str, Value]:
    """Return all parameters of an attack in the order of its class, with the card's values for a norm (None: its)."""
    attack, norms = attacks_of(card)[name], _norms(name, card)
    in_radius, minimal = bool(getattr(attack, "radius", True)), bool(getattr(attack, "minimal", False))
    usual = card.norm if card.norm in norms else norms[0]
    defaults: dict[str, Value] = {"norm": usual} if minimal or not in_radius else {"eps": card.eps, "norm": usual}
    if "patch" in norms:
        defaults |= {"size": attacks.ThreatModel.size, "where": attacks.ThreatModel.where}
    stated = card.attacks.get(name, {})
    norm = norm or str(stated.get("norm", usual))
    share = 0.15 if card.task == "segmentation" else STEP_SHARES.get(norm, 0.15)
    parameters = [field for field in fields(attack) if field.init and field.name not in ("threat", "chunk")]
    defaults |= {field.name: cast("Value", field.default) for field in parameters}
    if in_radius and "step_size" in defaults:
        defaults["step_size"] = f"{share}*eps"
    for key in (key for key in stated if key not in _OF_CARD):
        defaults[key] = _value(name, key, str(stated[key]), defaults)
    if norm == "l2" and "step_size_l2" in stated:
        defaults["step_size"] = _value(name, "step_size", str(stated["step_size_l2"]), defaults)
    return defaults | {"engine": "robustkit", ON: 0}


def _value(name: str, key: str, text: str, defaults: dict[str, Value]) -> Value:
    if key == "step_size" and key in defaults:
        factor, times, _ = text.partition("*eps")
        expected = f"a number, such as {key}={format_value(defaults[key])}"
        value = parse_number(factor if times else text, f"{name}: {key}", expected)
        return format_number(value) + times if times else float(value)
    return parse_value(name, key, text, defaults)


def _norms(name: str, card: Card) -> tuple[str, ...]:
    return tuple(getattr(attacks_of(card)[name], "norms", ("linf", "l2")))


def _check_threat(name: str, resolved: dict[str, Any], card: Card) -> None:
    eps, norm = resolved.get("eps", 0), resolved["norm"]
    if norm not in (norms := _norms(name, card)):
        raise ProtocolError(unknown("norm", norm, norms))
    if resolved["engine"] not in ENGINES:
        raise ProtocolError(unknown("engine", resolved["engine"], ENGINES))
    if card.task in ("segmentation", "features", "multilabel") and resolved["engine"] != "robustkit":
        raise ProtocolError(f"engine {resolved['engine']}: only attacks classifiers of one class; leave it out")
    if resolved[ON] < 0:
        raise ProtocolError(f"on {resolved[ON]}: expected how many samples, such as on=100; 0 takes all")
    if eps < 0:
        raise ProtocolError(f"eps {format_number(eps)}: expected a radius of 0 or more")
    if norm == "linf" and card.space == "pixels" and eps > 1:
        far, reason = format_number(eps), "eps is in units of pixels in [0, 1], where 1 allows any change"
        raise ProtocolError(f"eps {far}: {reason}; did you mean {far}/255?")


def attacked_labels(condition: Condition, card: Card) -> str:
    return str(card.attacks.get(condition.name, {}).get("labels", card.labels))


def build_attack(condition: Condition, card: Card) -> attacks.Attack | attacks.DenseAttack | None:
    """Build the attack with these parameters under the card's bounds; None for all other conditions."""
    if not is_attack(condition.name) and condition.name not in EVERY_ATTACK:
        return None
    parameters: dict[str, Any] = {key: value for key, value in condition.parameters if key != ON}
    eps, norm, engine = float(parameters.pop("eps", math.inf)), parameters.pop("norm"), parameters.pop("engine")
    options = card.attacks.get(condition.name, {})
    bounds = tuple(options["bounds"]) if "bounds" in options else card.bounds
    if isinstance(parameters.get("step_size"), str):
        parameters["step_size"] = float(parse_number(parameters["step_size"].removesuffix("*eps"))) * eps
    try:
        place = {name: parameters.pop(name) for name in ("size", "where") if name in parameters and norm == "patch"}
        threat = attacks.ThreatModel(norm, eps, bounds, options.get("cut_images", False), **place)
        if engine != "robustkit":
            made: attacks.Attack = of_slice("peer", f"engine {engine}")(str(engine), condition.name, threat, parameters)
            return made
        if parameters.get("loss") == EMBEDDING and card.task == "classification" and condition.name == "pgd":
            if parameters.pop("early_stop") or not parameters.pop("random_start"):
                raise ValueError("loss=embedding begins at a random point and takes all steps; leave the others out")
            return attacks.FeaturePGD(threat, **{**parameters, "loss": "cosine"})
        attack: attacks.Attack | attacks.DenseAttack = attacks_of(card)[condition.name](threat, **parameters)
        return attack
    except (TypeError, ValueError) as fault:
        raise ProtocolError(f"condition {condition.text}: {fault}") from None


def attack_cost(condition: Condition, card: Card, classes: int) -> Cost:
    """Return the passes of a sample that an attack makes, without scoring; those of ours for another library's."""
    ours = {**dict(condition.parameters), "engine": "robustkit"}
    attack = build_attack(replace(condition, parameters=tuple(ours.items())), card)
    if attack is None or attack.threat.eps == 0:
        return Cost(0)
    predicted, classes = int(attacked_labels(condition, card) == "predicted"), max(classes, 2)
    if isinstance(attack, attacks.FGSM):
        return Cost(1, 1)
    if isinstance(attack, attacks.SEA):
        return Cost(predicted + 4 * (attack.steps + 1), 4 * attack.steps)
    if isinstance(attack, attacks.DensePGD):
        return Cost(attack.steps + predicted * attack.random_start, attack.steps)
    if isinstance(attack, attacks.PGD):
        scored, steps = attack.restarts * (attack.restarts > 1), attack.steps * attack.restarts
        circles = attack.steps > LOOK_FROM and not attack.early_stop  # those that go in one leave, by another pass
        steps += circles * attack.restarts
        leaves = attack.early_stop or circles
        return Cost(predicted * attack.random_start + steps + scored, steps, at_most=leaves)
    if isinstance(attack, attacks.FeaturePGD):
        return Cost(1 + attack.restarts * (attack.steps + 1), attack.restarts * attack.steps)
    if isinstance(attack, attacks.SPSA):
        return Cost(predicted + 2 * attack.directions * attack.steps)
    if isinstance(attack, attacks.AutoAttack):
        stages = [_stage_cost(stage, classes) for stage in attack.stages(classes)]
        if attack.version == "attention":
            stages += [_stage_cost(attacks.APGD(attack.threat, attack.steps), classes)] * 4
        return sum(stages, Cost(1, at_most=True))
    if isinstance(attack, attacks.APGD | attacks.FAB | attacks.Square):
        return Cost(1) + _stage_cost(attack, classes)
    steps = int(getattr(attack, "steps", 1))  # of a plug-in
    return Cost(steps, steps)


def _stage_cost(attack: attacks.Attack, classes: int) -> Cost:
    """Return what a queued attack costs besides the clean forward. A sample that fell has no further runs."""
    leaves = bool(getattr(attack, "early_stop", False))
    if isinstance(attack, attacks.APGD):
        targeted = attack.loss.endswith("targeted")
        runs = attack.restarts * (min(attack.targets, classes - 1) if targeted else 1) * attack.eot
        order = Cost(1, min(LINEAR_TARGETS, classes - 1)) if targeted and attack.order == "malt" else Cost(0)
        return order + Cost(runs * (attack.steps + 1), runs * attack.steps, at_most=leaves or runs > attack.eot)
    if isinstance(attack, attacks.FAB):
        runs = attack.restarts * (min(attack.targets, classes - 1) if attack.targets else 1)
        each = 1 if attack.targets else classes
        forwards = runs * (attack.steps + 1) * (2 if attack.relinearise else 1)
        return Cost(forwards, runs * attack.steps * each, at_most=leaves or attack.relinearise or runs > 1)
    assert isinstance(attack, attacks.Square)
    return Cost(attack.restarts * (attack.queries + 1), at_most=leaves)


def score_images(subject: EvaluatedModel, batch: Batch, inputs: Tensor) -> dict[str, list[Any]]:
    """Return the columns of the model's answers, in full precision, to (B, ...) inputs in the card's space."""
    with torch.inference_mode():
        parts = torch.split(inputs, subject.settings.batch_size)
        return subject.score(torch.cat([subject.scorer(part) for part in parts]), batch)


def evaluate_shown(subject: EvaluatedModel, batch: Batch, condition: Condition, view: Shown) -> Evaluation:
    """Return how the model does on what an attack shows, in full precision, and what the attack spent."""
    result, change = view.result, view.change
    assert result is not None and change is not None
    subject.keep(condition, batch.samples, view.inputs)
    rows = score_images(subject, batch, view.inputs) | subject.asked_again(view.inputs, batch)
    if isinstance(result, attacks.EnsembleResult):
        for run, ends in zip(result.runs, result.ends, strict=True):
            of_run = score_images(subject, batch, ends)
            rows |= {f"{name} {run}": of_run[name] for name in subject.by_run}
    rows |= subject.distance(change, len(batch))
    counts = torch.stack([result.broken_at, result.steps, result.forwards, result.backwards])
    broken_at, rows["steps"], rows["forwards"], rows["backwards"] = counts.tolist()
    if "correct" in rows:
        rows["broken_by"] = [None if correct else condition.name for correct in rows["correct"]]
        rows["broken_at"] = [at if at >= 0 else None for at in broken_at]
    if result.cycle_at is not None:
        rows["cycle_at"] = [at if at >= 0 else None for at in result.cycle_at.tolist()]
    seconds = _stage(rows, result) if isinstance(result, attacks.StagedResult) else {}
    pictures = subject.pictures(batch, image=view.images(), delta=change) if batch.keep else {}
    added = change if subject.card.space != "normalised" else change / subject.classifier.std
    return Evaluation(rows, seconds, result.notes, pictures, change=added)


def _stage(rows: dict[str, list[Any]], result: attacks.StagedResult) -> dict[str, float]:
    """Add what the stages of an attack did to the rows; return the seconds of each.

    The attack asked in float32, or averaged passes of a random model, so one more pass overrules only with no number. A
    sample that it left standing, and that is wrong all the same, was wrong from the start.
    """
    random, broken_by = result.stages[1:] == ("apgd-ce", "apgd-dlr"), result.broken_by.tolist()
    held = [right or (random and top1 >= 0) for right, top1 in zip(rows["correct"], rows["prediction"], strict=True)]
    rows["correct"] = [by < 0 and holds for by, holds in zip(broken_by, held, strict=True)]
    names = [result.stages[max(by, 0)] for by in broken_by]
    rows["broken_by"] = [None if right else name for right, name in zip(rows["correct"], names, strict=True)]
    for what, counts in (("forwards", result.stage_forwards), ("backwards", result.stage_backwards)):
        rows |= {f"{what} {stage}": row for stage, row in zip(result.stages, counts.tolist(), strict=True)}
    return dict(zip(result.stages, result.seconds, strict=True))


class AttacksEvaluator(Evaluator):
    words: Vocabulary = VOCABULARY
    keeps_places = True

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        return (*filter(None, [EVERY_ATTACK.plugin(condition.name)]), *super().plugins(condition))

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        beneath = Cost(0) if condition.under is None else Cost(0, extra=0.2)
        scored = 1 + 4 * (condition.name == "sea")  # the worst point, and the end of each of its runs
        return attack_cost(condition, card, classes) + Cost(scored) + beneath

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        inputs = attacked_inputs(subject, batch, condition)
        return show_attacked(subject, inputs, subject.attack(condition, inputs, batch, rng))

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        return evaluate_shown(subject, batch, condition, self.show(subject, batch, condition, rng))


_STRENGTH = ("fgsm", "spsa", "square", "fab", "pgd", "apgd", "autoattack")


def bearing_evidence(conditions: Iterable[Condition], card: Card) -> dict[Condition, list[Condition]]:
    """Return the attacks with evidence, each AutoAttack, else the strongest per norm, eps and corruption, and the
    attacks that it is about. The figures are the model's, the same for all attacks of one radius.

    A plug-in's attack is the weakest; of equally strong ones the first counts.
    """
    candidates = [condition for condition in conditions if _wants_evidence(condition, card)]
    strength, best = {name: place for place, name in enumerate(_STRENGTH)}, dict[_Radius, Condition]()
    for condition in sorted(candidates, key=lambda each: strength.get(each.name, -1), reverse=True):
        best.setdefault(_radius(condition), condition)
    bearing: dict[Condition, list[Condition]] = {
        each: [] for each in candidates if each.name == "autoattack" or each in best.values()
    }
    for each in candidates:
        bearing[each if each in bearing else best[_radius(each)]].append(each)
    return bearing


def _wants_evidence(condition: Condition, card: Card) -> bool:
    """Whether evidence can speak of an attack's result: of our engine, with eps above 0, inside its own ball."""
    attack = build_attack(condition, card)
    if not isinstance(attack, attacks.Attack) or condition.engine != "robustkit":
        return False
    return attack.threat.eps > 0 and attack.radius and not attack.minimal and not attack.threat.cut_images


_Radius = tuple[str, float | None, Condition | None]


def _radius(condition: Condition) -> _Radius:
    return condition.norm, condition.eps, condition.under
