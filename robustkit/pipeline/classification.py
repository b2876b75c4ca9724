"""Plan a run of classifiers: checkpoints, labelled images, attacks, corruptions, maps and attention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from ..attention.surrogates import can_be_seen
from ..common.plugins import of_slice
from ..common.preprocessing import describe_preprocessing
from ..data.dataset import Dataset
from ..errors import DataError, ModelError, ProtocolError
from ..evaluations.answers import ask_image
from ..evaluations.attacks.evaluate import attacked_labels, bearing_evidence, build_attack, parse_condition
from ..evaluations.condition import extended, is_attack, kind_of, pattern_of, shows
from ..evaluations.corruptions.tree import CorruptedTree, is_tree
from ..evaluations.maps import MapSpec, check_method, chosen_of, map_condition, parse_cams
from ..evaluations.maps.evaluate import check_explainable
from ..evaluations.maps.truth import Truth, open_truth
from ..models.architecture import is_factory
from ..models.classifier import load
from ..models.device import best_batch
from ..models.identity import Classifier, distinct_names, evaluated_under, has_gradients
from ..models.specs import reader_options
from ..protocol.card import Card
from ..protocol.condition import CLEAN, Condition, split_list
from ..report.refresh import refresh
from ..report.run import Run
from ..runs.manifest import CheckpointEntry, Manifest, digest_of
from ..runs.untrusted import OF_CHECKPOINT
from ..tasks.labelled.subject import ClassifierSubject, Images
from .inputs import labelled_data
from .manifest import describe
from .plan import EVIDENCE, Plan, PlannedCheckpoint, plan_corrupted, sample_metadata
from .request import ClassificationRequest, Preset


def _of_clean_images(
    request: ClassificationRequest, only_corrupted: bool
) -> tuple[tuple[MapSpec, ...], tuple[Condition, ...], list[MapSpec]]:
    """Return maps to score, controls included; conditions of other families, and the maps that these make."""
    maps = _maps(request, "grad-cam")
    evaluations = request.evaluation_conditions()
    if only_corrupted:
        here, usual = f"on {request.data_dir}, a tree of corrupted images", "expected the clean ones"
        if maps:
            raise ProtocolError(f"--cams {request.cams!r} {here}: {usual}")
        if evaluations:
            raise ProtocolError(f"--evaluations {evaluations[0].text} {here}: give clean ones")
    methods = [(str(dict(each.parameters).get("map", "")), each) for each in evaluations]
    for method, evaluation in methods:
        if method:
            check_method(method, evaluation.text)
    return maps, evaluations, [MapSpec(method, options=chosen_of(each)) for method, each in methods if method]


def _maps(request: ClassificationRequest, usual: str) -> tuple[MapSpec, ...]:
    """Return the maps that are asked for, controls included. usual: what `auto` means."""
    named = (usual if each == "auto" else each for each in split_list(request.cams or ()))
    return () if request.cams is None else parse_cams(named, request.faithfulness)


def _usual_map(classifiers: Sequence[Classifier]) -> str:
    """Return agcam where it works for all networks, as for ViTs; else grad-cam, which works for CNNs, too; else rise,
    which needs neither gradients nor layers."""
    for method in ("agcam", "grad-cam"):
        with suppress(ModelError):
            for classifier in classifiers:
                check_explainable(classifier, classifier.identity.name, [MapSpec(method)])
            return method
    return "rise"


def next_to(
    request: ClassificationRequest, conditions: Sequence[Condition], maps: Sequence[MapSpec]
) -> tuple[Condition, ...]:
    """Return the maps under every attack and corruption that are compared with those of the clean images."""
    if not request.stability:
        return ()
    if any(condition.released for condition in conditions):
        why = "it needs the clean image as well as the corrupted one"
        raise ProtocolError(f"--stability with released corruptions: {why}; leave out --corrupted-dir, or --stability")
    looking = [spec for spec in maps if not spec.is_control]
    others = [under for under in conditions if under != CLEAN and shows(under.text)]
    return tuple(map_condition(spec, under) for under in others for spec in looking)


def check_located(evaluations: Sequence[Condition], truth: Truth) -> None:
    """Raise ProtocolError for a condition that needs to know where objects are, where nobody says so."""
    unknown_place = next((condition for condition in evaluations if condition.needs_truth), None)
    if unknown_place is not None and not truth.is_known:
        raise ProtocolError(
            f"{unknown_place.text}: {truth.dataset.name} has no object locations; give --boxes or --masks"
        )


PREDICTIONS = "predictions:"
"""How a checkpoint begins that is a file of predictions."""
_PIXELS = ("input_size", "interpolation", "crop_pct", "crop_mode")
_IN_WORDS = {"crop_pct": "crop share", "std": "standard deviation"}


def handed_on(request: ClassificationRequest, attacked: Sequence[Condition]) -> frozenset[str]:
    """Return the texts of the attacks whose adversarial images are passed on or kept. ProtocolError for none."""
    if not (request.transfer or request.parity or request.keep_adversarials):
        return frozenset()
    texts = frozenset(condition.text for condition in attacked if condition.eps is not None)
    if not texts and (request.transfer or request.keep_adversarials):
        option = "--transfer" if request.transfer else "--keep-adversarials"
        raise ProtocolError(f"{option}: none of the attacks has a fixed radius; expected one that has, such as pgd")
    return texts


def _is_predictions(request: ClassificationRequest) -> bool:
    """Whether checkpoints are files of predictions. Raises ProtocolError where only some are."""
    ours = [str(spec) for spec in request.checkpoints if str(spec).startswith(PREDICTIONS)]
    if ours and len(ours) < len(request.checkpoints):
        raise ProtocolError(f"{ours[0]} with checkpoints that are evaluated here; audit them in separate runs")
    return bool(ours)


def plan_transfer(
    request: ClassificationRequest,
    attacked: Sequence[Condition],
    entries: Sequence[CheckpointEntry],
    unsuited: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[tuple[Condition, ...], dict[str, str]]:
    """Return a condition for each attack and checkpoint that images are found for; and that checkpoint's digest.
    unsuited: as of a plan. For parity, images are found for the first checkpoint alone."""
    if not (request.transfer or request.parity):
        return (), {}
    option = "--transfer" if request.transfer else "--parity"
    if len(entries) < 2:
        raise ProtocolError(f"{option} with {entries[0].name} alone: expected two checkpoints or more")
    ours = [attack for attack in attacked if is_attack(attack.name) and attack.engine == "robustkit"]
    ours = [attack for attack in ours if attack.eps is not None]
    if not ours and request.transfer:
        raise ProtocolError("--transfer: no attack of robustkit's own engine with a fixed radius; expected such as pgd")
    if ours:
        _check_pixels(option, request.card, entries)
    conditions, digests = list[Condition](), dict[str, str]()
    passed_from: Callable[[Condition, str], Condition] = of_slice("transfer_condition", option)
    for attack in ours:
        for entry in entries if request.transfer else entries[:1]:
            if attack.text in unsuited.get(entry.name, ()):
                continue
            plain = entry.to_plain()
            conditions.append(passed := passed_from(attack, entry.name))
            keys = (key for key in OF_CHECKPOINT if key != "code_sha256" or not entry.has_own_code)
            digests[passed.text] = digest_of({key: plain.get(key) for key in keys})
    return tuple(conditions), digests


def _check_pixels(option: str, card: Card, entries: Sequence[CheckpointEntry]) -> None:
    first, names = entries[0], _PIXELS if card.space == "pixels" else (*_PIXELS, "mean", "std")
    for other in entries[1:]:
        if len({len(entry.preprocessing.mean) for entry in (first, other)}) > 1:
            raise ProtocolError(f"{option}: {first.name} and {other.name} take other channels; audit them separately")
        for name in (*names, "value_range"):
            expected, actual = (getattr(entry.preprocessing, name) for entry in (first, other))
            if expected != actual:
                what = _IN_WORDS.get(name, name.replace("_", " "))
                why = f"{option}: {what} is {_shown(expected)} for {first.name} and {_shown(actual)} for {other.name}"
                raise ProtocolError(
                    f"{why}: adversarial images of one are not valid inputs of the other; audit them separately"
                )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ("x" if all(isinstance(each, int) for each in value) else " ").join(map(str, value))
    return str(value)


def plan(request: ClassificationRequest) -> Plan:
    """Return all that an audit of classifiers needs. Raises RobustkitError for anything that is wrong with it."""
    if _is_predictions(request):
        return cast("Plan", of_slice("plan_predictions", f"{PREDICTIONS}FILE")(request))
    if not request.data_dir:
        raise DataError("--data-dir is missing; give a folder, a zip, or embedded:shapes")
    card = request.card
    tree, only_corrupted = _tree(request)
    attacked = request.attack_conditions(_attacks(request, only_corrupted), request.engine)
    maps, evaluations, made = _of_clean_images(request, only_corrupted)
    place = tree if only_corrupted and tree else request.data_dir
    more_asked = (request.corruptions, request.evaluations) != (None, None)
    of_maps_alone = bool(maps) and tuple(attacked) == (CLEAN,) and not more_asked
    unlabelled = of_maps_alone and all(spec.target != "label" for spec in maps)
    opened, lines = _open(request, place, tree, unlabelled)
    classifiers = [classifier for classifier, _ in opened]
    attacked, notes = _attacks_that_apply(request, classifiers, attacked)
    lines += notes
    maps = _maps(request, _usual_map(classifiers)) if "auto" in split_list(request.cams or ()) else maps
    dataset = opened[0][1].dataset
    check_one_label(dataset, attacked, card)
    preps = [images.preprocessing for _, images in opened]
    attacked, corruptions, inputs, more = plan_corrupted(request, attacked, dataset, preps, request.constants, tree)
    _check_networks(request, classifiers, attacked, (*maps, *made))
    truth = open_truth(dataset, request.boxes, request.masks)
    check_located(evaluations, truth)
    dataset = replace(dataset, notes=(*dataset.notes, *truth.notes))  # the page says what was read, too
    showing = [condition for condition in evaluations if shows(condition.text)]
    visible = (*(() if only_corrupted else attacked), *corruptions, *showing)
    if any(sample.label < 0 for sample in dataset.samples):
        visible = ()  # without labels nothing is right or wrong, but predictions have maps
    scored = tuple(map(map_condition, maps))
    others = (condition for condition in evaluations if condition not in showing)
    entries = [describe(classifier.identity, images.preprocessing) for classifier, images in opened]
    explained = (*scored, *next_to(request, visible, maps))
    conditions = extended((*_watched(request, visible), *others, *explained), dataset)
    run = Run(request.folder(entries[0].name))
    unsuited = _unsuited(classifiers, conditions, request.card, run.read_manifest())
    passed, sources = plan_transfer(request, [each for each in attacked if each in visible], entries, unsuited)
    conditions = (*conditions, *passed)
    reused = frozenset(each.text for each in visible if each != CLEAN and shows(each.text) and request.watch_attention)
    located = dict.fromkeys((each.text for each in conditions if each.needs_truth), truth.digest or "none")
    bearing, extents = _evidence(request, conditions, dataset)
    return Plan(
        request=request,
        run=run,
        contenders=tuple(_contender(*each, request, truth, reused) for each in opened),
        conditions=conditions,
        dataset=dataset,
        digest=dataset.digest,
        finish=partial(refresh, run),
        inputs=replace(inputs, digests=inputs.digests | sources | located),
        lines=tuple(dict.fromkeys((*lines, *inputs_in_words(entries), *dataset.notes, *more))),
        keep_misclassified=request.keep_misclassified,
        pictures=_browsed(request, dataset),
        evidence=bearing,
        extents=extents,
        checks_setup=request.setup_check,
        handed=handed_on(request, attacked),
        unsuited=unsuited,
    )


def _evidence(
    request: ClassificationRequest, conditions: Sequence[Condition], dataset: Dataset
) -> tuple[tuple[str, ...], Mapping[Condition, Any]]:
    """Return the texts of the attacks whose results need evidence, and how far it goes; nothing where none is taken."""
    bearing = bearing_evidence(conditions, request.card)
    texts = tuple(condition.text for condition in bearing)
    if request.evidence == "none" or not bearing:
        return texts, {}
    classes = len(dataset.valid_labels or dataset.class_names)
    extents = of_slice("evidence", f"{EVIDENCE} {request.evidence}").extents
    samples, batch = len(dataset.samples), request.settings.batch_size
    return texts, extents(bearing, request.card, classes, samples, batch, request.evidence)


def _browsed(request: ClassificationRequest, dataset: Dataset) -> tuple[str, ...]:
    """Return the ids of the samples whose pictures are kept."""
    subset = dataset if request.shuffle else dataset.select(limit=request.browse or None, seed=request.seed)
    return tuple(sample.id for sample in subset.samples[: request.browse])


# Where images come from, and which checkpoints see them


def _tree(request: ClassificationRequest) -> tuple[CorruptedTree | None, bool]:
    """Return the tree of released corrupted images, and whether it is the data set: there are no clean images then."""
    if request.corrupted_dir is not None:
        return CorruptedTree.open(Path(request.corrupted_dir)), False
    if is_tree(request.data_dir):
        return CorruptedTree.open(Path(request.data_dir)), True
    return None, False


def _open(
    request: ClassificationRequest, place: str | Path | CorruptedTree, tree: CorruptedTree | None, unlabelled: bool
) -> tuple[list[tuple[Classifier, Images]], list[str]]:
    """Return each checkpoint with its images (all have the same samples), and lines for the user. unlabelled: samples
    need no labels. DataError where checkpoints number the classes differently.
    """
    opened, lines = list[tuple[Classifier, Images]](), list[str]()
    for spec in request.checkpoints:
        classifier = load(str(spec), **_model_options(request, str(spec)))
        under = evaluated_under(classifier, request.card.attention)
        identity = classifier.identity
        lines += (f"{identity.name}: {note}" for note in (*identity.notes, *filter(None, [under])))
        chosen = request.limit, request.ids, request.seed
        try:
            dataset = labelled_data(place, identity, request.data, *chosen, unlabelled=unlabelled)
            if request.shuffle:
                metadata = sample_metadata(request, dataset)
                dataset = dataset.shuffled(request.seed, metadata.group_names if metadata else None)
        except DataError as fault:
            raise fault if len(request.checkpoints) == 1 else DataError(f"{identity.name}: {fault}") from None
        if dataset.border and (request.boxes or request.masks):
            why = f"a border of {dataset.border} pixels is cut off images"
            raise DataError(f"{dataset.root}: {why}, where boxes and masks would lie elsewhere; leave these out")
        if tree is not None and not identity.preprocessing.is_rgb:
            raise DataError(f"{tree.root}: {identity.name} takes no RGB of 8 bits, as trees hold; leave the tree out")
        if max(request.show_channels or (0,)) > identity.preprocessing.channels:  # type: ignore[operator]
            has = f"{identity.name} takes {identity.preprocessing.channels} channels"
            raise ProtocolError(
                f"--show-channels {','.join(map(str, request.show_channels or ()))}: {has}; expected some of those"
            )
        preprocessing, line = request.card.preprocess(identity.preprocessing)
        lines += [f"{identity.name}: {line}"] if line else []
        opened.append((classifier, Images(dataset, preprocessing, tree)))
    distinct_names([classifier for classifier, _ in opened])
    first, shared = opened[0][0].identity.name, opened[0][1].dataset
    for other, images in opened[1:]:
        if images.dataset.samples != shared.samples or images.dataset.valid_labels != shared.valid_labels:
            what = f"{first} and {other.identity.name} number the classes of {shared.root} differently"
            raise DataError(f"{what}; audit them in separate runs")
    return opened, lines


_OF_WEIGHTS = ("arch", "attention", "num_classes", "use_ema", "allow_partial")


def _model_options(request: ClassificationRequest, spec: str) -> dict[str, Any]:
    """Return the options of a checkpoint: of a graph next to weights without what says how these are built, and of each
    without what only a reader of another one takes."""
    taken, others = reader_options(spec), [reader_options(str(each)) for each in request.checkpoints]
    idle = frozenset[str]().union(*filter(None, others)) - (taken or frozenset())
    if taken is not None and None in others:
        idle |= {*_OF_WEIGHTS}
    if taken is None and is_factory(str(request.model.get("arch") or "")):
        idle -= {"output"}
    return {name: value for name, value in request.model.items() if name not in idle}


def inputs_in_words(entries: Sequence[CheckpointEntry]) -> Iterator[str]:
    """Yield how images become the inputs of the checkpoints, and who says so; those that are alike share a line."""
    names: dict[str, list[str]] = {}
    for entry in entries:
        text = describe_preprocessing(entry.preprocessing.to_plain(), entry.origin, entry.arch)
        names.setdefault(text, []).append(entry.name)
    yield from (f"{', '.join(alike)}: input: {text}" for text, alike in names.items())


def _contender(
    classifier: Classifier, images: Images, request: ClassificationRequest, truth: Truth, reused: frozenset[str]
) -> PlannedCheckpoint:
    return PlannedCheckpoint(
        describe(classifier.identity, images.preprocessing),
        partial(ClassifierSubject, classifier, request.card, valid=images.dataset.valid_labels, reused=reused),
        replace(images, truth=truth),
        images.preprocessing,
        partial(best_batch, classifier, request.settings.device, request.settings.dtype),
        partial(ask_image, classifier),
    )


# What the models are shown


def _attacks(request: ClassificationRequest, only_corrupted: bool) -> str:
    """Return the list of attacks as one text; empty where there are no clean images to attack."""
    if only_corrupted and request.attacks is None:
        return ""
    text = request.attack_list
    if only_corrupted and text:
        why = f"{request.data_dir} contains only corrupted images, which are not attacked; leave out --attacks {text}"
        raise DataError(f"{why}, or give the clean images as --data-dir and this tree as --corrupted-dir")
    return text


def _without_gradients(classifiers: Sequence[Classifier]) -> list[str]:
    return [each.identity.name for each in classifiers if not has_gradients(each)]


def _attacks_that_apply(
    request: ClassificationRequest, classifiers: Sequence[Classifier], attacked: tuple[Condition, ...]
) -> tuple[tuple[Condition, ...], list[str]]:
    """Return the attacks, and a line where some checkpoint has no gradients: others stand in for the usual ones there.

    Raises ModelError for an attack that is asked for and needs gradients, unless its images are passed on from another
    checkpoint.
    """
    needing = [each for each in attacked if _needs_gradients(each, request.card)]
    names = _without_gradients(classifiers)
    if not (names and needing):
        return attacked, []
    lacks = f"which {', '.join(names)} {'lacks' if len(names) == 1 else 'lack'}"
    texts, without = ", ".join(each.text for each in needing), f"gradients, {lacks}"
    by_preset = isinstance(request.preset, Preset) and "attacks" in request.preset.options
    alone = len(names) == len(classifiers)
    others: tuple[Condition, ...] = ()
    if request.attacks is None or by_preset:
        others = request.attack_conditions(request.without_gradients, request.engine)
    elif alone or not (request.transfer or request.parity):
        raise ModelError(f"{texts}: needs {without}; expected {_OTHERS}")
    chosen = dict.fromkeys((*(each for each in attacked if not (alone and each in needing)), *others))
    attacks = ", ".join(each.text for each in chosen if each not in (CLEAN, *needing))
    instead = f"; attacking with {attacks} instead, which asks for logits alone" if others else "; left out there"
    need = "needs" if len(needing) == 1 else "need"
    return tuple(chosen), [f"{texts} {need} {without}{instead}"]


def _needs_gradients(condition: Condition, card: Card) -> bool:
    attack = build_attack(condition, card) if is_attack(condition.name) else None
    return attack is not None and bool(getattr(attack, "needs_gradients", True))


def _unsuited(
    classifiers: Sequence[Classifier], conditions: Sequence[Condition], card: Card, before: Manifest | None
) -> dict[str, tuple[str, ...]]:
    """Return, by the name of a checkpoint without gradients, what needs these: attacks, and what uses their images.
    before: of a run that this one continues, whose conditions count, too."""
    if not (names := _without_gradients(classifiers)):
        return {}
    needing = {each.text for each in conditions if _needs_gradients(each, card)}
    above = ((each.text, [under.text for under in (each.under, each.after) if under]) for each in conditions)
    needing |= {text for text, under in above if needing.intersection(under)}
    earlier = [text for text in (before.conditions if before else ()) if _text_needs_gradients(text, card)]
    texts = dict.fromkeys((*earlier, *(each.text for each in conditions if each.text in needing)))
    return dict.fromkeys(names, tuple(texts)) if texts else {}


def _text_needs_gradients(text: str, card: Card) -> bool:
    if is_attack(kind_of(text)):
        with suppress(ProtocolError):  # of another card
            return _needs_gradients(parse_condition(text, card), card)
        return False
    arguments = pattern_of(text).given
    return "from" not in arguments and "under" in arguments and _text_needs_gradients(arguments["under"], card)


_OTHERS = "attacks that ask for answers alone: square, spsa or hopskipjump"


def _watched(request: ClassificationRequest, inputs: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Return the conditions; where attention is watched, each is followed by that on its images."""
    if not request.watch_attention:
        return inputs
    watching: Callable[[Condition], Condition] = of_slice("attention_condition", "--watch-attention")
    if not inputs:
        return (watching(CLEAN),)
    conditions = list[Condition]()
    for under in inputs:
        conditions.append(under)
        if shows(under.text):
            conditions.append(watching(under))
    return tuple(conditions)


# Refusals


def _check_networks(
    request: ClassificationRequest,
    classifiers: Sequence[Classifier],
    attacked: Sequence[Condition],
    maps: Sequence[MapSpec],
) -> None:
    """Raise ModelError for a network that cannot be explained, or whose attention cannot be watched or attacked."""
    for classifier in classifiers:
        name = classifier.identity.name
        check_explainable(classifier, name, maps)
        if request.watch_attention:
            of_slice("check_watchable", "--watch-attention")(classifier.network, name, "--watch-attention")
        for condition in attacked:
            arguments = dict(condition.parameters)
            inside = arguments.get("version") == "attention" or str(arguments.get("loss")).startswith("kq")
            if inside and not can_be_seen(classifier.network):
                instead = "loss ce" if "loss" in arguments else "another version, such as standard"
                why = "needs a supported attention layer, and the model has none"
                raise ModelError(f"{name}: {condition.text} {why}; expected {instead}")


def check_one_label(dataset: Dataset, conditions: Sequence[Condition], card: Card) -> None:
    """Raise DataError for an attack that knows one label of a sample where several count as right."""
    if not any(len(set(sample.valid or ())) > 1 for sample in dataset.samples):
        return
    for condition in conditions:
        predicted = attacked_labels(condition, card) == "predicted"
        if condition.early_stop and predicted:
            why = f"{condition.text} stops at the first changed prediction"
            several = "several labels count as correct here (ReaL)"
            raise DataError(f"{why}, but {several}; set early_stop=false, or leave out --real-labels")
        if condition.engine != "robustkit" and not predicted:
            why = f"{condition.engine} moves away from a single label, but several count as correct here (ReaL)"
            raise DataError(f"{condition.text}: {why}; use --engine robustkit, or leave out --real-labels")
