"""Draw maps: the gallery of a run's samples, and a user's own pictures.

Which samples and maps a gallery draws is checked before an audit, and chosen by its records after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...common.determinism import SampleRng
from ...common.files import bytes_of, reason_of
from ...data.class_names import class_name, class_names, target_of
from ...data.dataset import Dataset, Sample
from ...data.images import read_image, to_pixels
from ...data.in_memory import image_pixels, open_held
from ...data.sources import MAX_FILE_BYTES, is_image_name
from ...display.progress import progress_shown
from ...errors import DataError, ModelError, ProtocolError, RunError, unknown
from ...evaluations.maps import MapSpec, parse_cams, parse_named
from ...evaluations.maps.evaluate import check_explainable
from ...evaluations.maps.truth import open_truth
from ...evaluations.subject import EvaluatedModel, Settings
from ...models.classifier import load
from ...models.device import pick_device
from ...models.identity import Classifier, ModelIdentity, distinct_names
from ...models.segmenter import load_segmenter
from ...pipeline.audit import Checkpoints, grouped, in_memory
from ...pipeline.classification import inputs_in_words
from ...pipeline.inputs import labelled_data
from ...pipeline.manifest import describe, preprocessing_of
from ...pipeline.request import ClassificationRequest
from ...pipeline.scheduler import run as carry_out
from ...protocol.card import load_card
from ...protocol.condition import CLEAN
from ...report.page import write_report
from ...runs.folder import RunFolder
from ...runs.progress import Progress
from ...tasks.labelled.subject import ClassifierSubject
from .painter import LABEL, Heat, Painter, Result, Target, brief
from .segments import are_segmenters, explain_segments
from .sheet import Gallery, GalleryRow, choose, with_names

CHOICES = ("disagreement", "worst", "best", "random")
_SCORED = CHOICES[:3]
COLUMNS = ("sample_id", "error", "correct", "mask_iou", "box_iou", "abpc", "rank_correlation")
Records = Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]
"""The row of each sample by checkpoint and condition, with COLUMNS as far as the run has them."""


@dataclass(frozen=True)
class Choice:
    """The maps and samples that a gallery draws. maps: those of the first one have the scores that choose samples. how:
    one of CHOICES, or `class:NAME`. ids: exactly these samples instead. targets: classes that each map is drawn for;
    without any, the one that it is scored for, or those of both objects. texts: sentences that they are drawn for,
    too."""

    maps: tuple[MapSpec, ...]
    how: str
    count: int = 12
    ids: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[str],
        cams: str | Iterable[str],
        faithfulness: str = "abpc",
        *,
        how: str | None = None,
        count: int = 12,
        ids: Sequence[str] = (),
        targets: Sequence[str] = (),
        texts: Sequence[str] = (),
    ) -> Choice:
        """Return the choice that a user asks for; how: by default disagreement, or for a single checkpoint its worst
        maps. Raises ProtocolError where it is not understood, or means nothing here."""
        maps: dict[str, MapSpec] = {}
        for spec in sorted(parse_named(cams, faithfulness), key=lambda spec: spec.is_control):
            maps.setdefault(brief(replace(spec, target="predicted") if targets else spec), spec)
        if all(spec.is_control for spec in maps.values()):
            remedy = "add a method such as agcam, or leave the gallery out with --gallery 0"
            raise ProtocolError(f"--cams {cams}: controls only, which ignore the image; {remedy}")
        if how is None:
            how = "disagreement" if len(checkpoints) > 1 else "worst"
        if how not in CHOICES and not how.startswith("class:"):
            raise ProtocolError(unknown("choice", how, CHOICES, remedy="or class:NAME (--choose)"))
        if how == "disagreement" and len(checkpoints) < 2 and not ids:
            remedy = "give another one, or --choose worst"
            raise ProtocolError(f"--choose disagreement: a single checkpoint cannot disagree with another; {remedy}")
        return cls(tuple(maps.values()), how, count, tuple(ids), *map(tuple, map(dict.fromkeys, (targets, texts))))

    def classes(self, dataset: Dataset, identity: ModelIdentity) -> list[Target]:
        """Return the classes that are asked for. Raises ModelError or DataError where one is unknown or does not
        compete."""
        names = class_names(identity.class_names or dataset.class_names, identity.num_classes)
        targets = [_asked_class(text, names) for text in self.targets]
        for target in targets:
            if target == LABEL and any(sample.label < 0 for sample in dataset.samples):
                raise DataError(f"--target label: {dataset.name} has no labels; name a class, or give predicted")
            if target.index is not None and dataset.valid_labels and target.index not in dataset.valid_labels:
                among = f"not among the {len(dataset.valid_labels)} classes of {dataset.name}, which alone compete"
                raise DataError(f"--target {target.heading}: {among}; name one of those")
        return targets

    def samples(self, dataset: Dataset) -> list[Sample]:
        """Return the samples named by id or class; for any other choice all. Raises DataError where there are none,
        ProtocolError where there is no such class."""
        if self.ids:
            return list(dict.fromkeys(_sample(dataset, name) for name in self.ids))
        if not self.how.startswith("class:"):
            return list(dataset.samples)
        if all(sample.label < 0 for sample in dataset.samples):
            raise DataError(f"--choose {self.how}: {dataset.name} has no labels; choose {', '.join(CHOICES)}")
        try:
            target = target_of(self.how[6:], class_names(dataset.class_names, len(dataset.class_names)))
        except ModelError as fault:
            raise ProtocolError(f"--choose {self.how}: {fault}") from None
        members = [sample for sample in dataset.samples if sample.label == target]
        if not members:
            why = f"none of the {len(dataset)} samples belongs to that class"
            raise DataError(f"--choose {self.how}: {why}; relax --limit or --ids")
        return members

    def check(self, request: ClassificationRequest) -> None:
        """Raise RobustkitError where the data set lacks what is chosen, or where it or the model cannot be read."""
        located = request.boxes is not None or request.masks is not None
        if self.texts:
            of_sentences(self.texts, request)
        unscored = self.how in _SCORED and not self.ids and not located and self.maps[0].faithfulness == "none"
        if not (self.ids or self.targets or unscored or self.how.startswith("class:")):
            return
        identity = load(request.checkpoints[0], **request.model).identity
        dataset = data_of(request, identity)
        self.classes(dataset, identity)
        if unscored and dataset.mask(dataset.samples[0]) is None:
            raise ProtocolError(
                f"--choose {self.how}: no map is scored, because objects are unknown and --faithfulness is none; give "
                "--boxes or --masks, or --choose random"
            )
        samples = self.samples(dataset)  # also where it only refuses a class
        for sample in samples if self.ids else ():
            try:
                dataset.pixels(sample, identity.preprocessing)
            except DataError as fault:
                raise DataError(f"--show {sample.id}: {fault}; show another sample") from None


def data_of(request: ClassificationRequest, identity: ModelIdentity) -> Dataset:
    chosen = request.limit, request.ids, request.seed
    return labelled_data(request.data_dir, identity, request.data, *chosen, unlabelled=True)


def _sample(dataset: Dataset, name: str) -> Sample:
    try:
        return dataset.select(ids=[name]).samples[0]
    except DataError:
        why = f"the name does not identify exactly one of the {len(dataset)} samples of {dataset.name}"
        raise DataError(f"--show {name}: {why}; an id looks like {dataset.samples[0].id!r}") from None


def select(choice: Choice, run: RunFolder, dataset: Dataset, records: Records, seed: int) -> tuple[list[Sample], str]:
    """Return the chosen samples that could be read, and in words how they were chosen."""
    among = choice.samples(dataset)
    for sample in among if choice.ids else ():
        for rows in records.values():
            if (row := rows.get(sample.id)) is None or row["error"] is not None:
                why = "it is not in the run" if row is None else row["error"]
                raise RunError(f"{run.path}: no map of {sample.id} ({why}); show another sample")
    if choice.ids:
        return among, "chosen by id"
    sound = [{name for name, row in rows.items() if row["error"] is None} for rows in records.values()]
    read = {sample.id: sample for sample in among if all(sample.id in names for names in sound)}
    draws = SampleRng.of(list(read), seed=seed, condition="gallery", device=torch.device("cpu")).uniform((), "order")
    order = [list(read)[index] for index in draws.argsort().tolist()] if read else []
    if choice.how in _SCORED:
        column, score = _score(choice, run, records)
        tables = [rows for (_, text), rows in records.items() if text == choice.maps[0].text]
        values = {name: [rows[name].get(column) for rows in tables] for name in order}
        scores = {name: [math.nan if value is None else value for value in some] for name, some in values.items()}
        order = choose(scores, choice.how, choice.count, order)
        of_all = ", mean of the checkpoints" if len(tables) > 1 else ""
        words = f"{'lowest' if choice.how == 'worst' else 'highest'} {score}{of_all}"
        words = f"where the checkpoints differ most in {score}" if choice.how == "disagreement" else words
    else:
        words = "chosen at random" if choice.how == "random" else f"of class {choice.how[6:]}, chosen at random"
    if not order:
        raise RunError(f"{run.path}: no sample fits --choose {choice.how}; choose another way")
    return [read[name] for name in order[: choice.count]], words


def _score(choice: Choice, run: RunFolder, records: Records) -> tuple[str, str]:
    """Return the column to choose by, and its name: of IoU and ABPC the first that all checkpoints have."""
    first = choice.maps[0]
    tables = [rows.values() for (_, text), rows in records.items() if text == first.text]
    for column, name in (("mask_iou", f"IoU at {first.threshold:g}"), ("abpc", "ABPC")):
        if all(any(row.get(column) is not None for row in rows) for rows in tables):
            return column, f"{name} of {brief(first)}"
    remedy = "give --boxes, --masks or --faithfulness abpc, or --choose random"
    raise RunError(f"{run.path}: no scores of {brief(first)} to choose by; {remedy}")


def make_gallery(run: RunFolder, request: ClassificationRequest, choice: Choice) -> Gallery:
    """Return samples of a run with maps. request: the one that it was made with. Raises RunError where the run has no
    such maps, or another protocol."""
    manifest, card = run.manifest, request.card
    if card.tag != manifest.protocol.tag:
        raise RunError(f"{run.path} was made with protocol {manifest.protocol.tag}, not {card.tag}; give that")
    classifiers = _as_recorded(run, [load(spec, **request.model) for spec in request.checkpoints])
    names = [classifier.identity.name for classifier in classifiers]
    records: Records = _records(run, choice.maps, names)
    seed, asked = manifest.seed, {name: manifest.arguments[name] for name in ("limit", "ids")}
    dataset = data_of(replace(request, seed=seed, **asked), classifiers[0].identity)
    samples, words = select(choice, run, dataset, records, seed)
    settings = Settings(seed, batch_size=1, device=pick_device(request.device), show=request.settings.show)
    subjects = [ClassifierSubject(classifier, card, settings, dataset.valid_labels) for classifier in classifiers]
    first, attacks = choice.maps[0], request.attack_conditions(request.attack_list, request.engine)
    attacked = (attack for attack in attacks if attack != CLEAN)
    under = [attack for attack in attacked if first.compared_under(attack.text).text in manifest.conditions]
    moved = [spec.compared_under(attack.text) for attack in under for spec in choice.maps if not spec.is_control]
    classes, texts = choice.classes(dataset, classifiers[0].identity), _of_texts(choice.texts, request, names, settings)
    painter = Painter(choice.maps, classes, under, {}, texts)
    truth = open_truth(dataset, request.boxes, request.masks)
    records, rows = {**records, **_records(run, moved, names)}, list[GalleryRow]()
    for sample in samples:
        labels = sample.valid if sample.valid and dataset.objects(sample) is not None else (sample.label,)
        named = " and ".join(class_name(dataset.class_names, one) for one in labels if one >= 0) or "no label"
        scores = {unit: known[sample.id] for unit, known in records.items() if sample.id in known}
        for subject in subjects:
            preprocessing = subject.classifier.identity.preprocessing
            pixels, located = dataset.pixels(sample, preprocessing), truth.locate(sample, preprocessing)
            rows += painter.rows(subject, pixels, sample, named, located, scores)
    compared = ", ".join(names) if len(names) < 3 else f"{len(names)} checkpoints"
    title = f"{', '.join(with_names(brief(each)) for each in choice.maps)}: {compared}"
    line = f"{dataset.name}; {words}; protocol {card.tag}"
    return Gallery(title, tuple(rows), (line,), painter.heats, run, _setup(classifiers, choice.maps))


def _of_texts(
    texts: Sequence[str], request: ClassificationRequest, names: Sequence[str], settings: Settings
) -> dict[str, EvaluatedModel]:
    """Return, by checkpoint, the model whose head is these sentences; none without any. Raises ModelError for a head
    that is not made of text."""
    subjects: dict[str, EvaluatedModel] = {}
    for name, head in zip(names, of_sentences(texts, request), strict=bool(texts)):
        head.identity = replace(head.identity, name=name)
        subjects[name] = ClassifierSubject(head, request.card, settings, None)
    return subjects


def of_sentences(texts: Sequence[str], request: ClassificationRequest) -> list[Classifier]:
    """Return the checkpoints of a request with these sentences as heads; none without any. Raises ModelError for a head
    that is not made of text."""
    model = {**request.model, "classes": texts, "prompts": "{}"}
    try:
        return [load(spec, **model) for spec in request.checkpoints] if texts else []
    except ModelError as fault:
        raise ModelError(f"--target-text {texts[0]}: {fault}") from None


def write_gallery(run: RunFolder, gallery: Gallery, raw: bool = False) -> tuple[Path, Path]:
    """Write cams/gallery.png and .html in a run's folder, and show it on the run's page. raw: also cams/maps.npz."""
    contact_sheet = replace(gallery, look=replace(gallery.look, size=None))
    sheet, page = (contact_sheet.save(run.path / "cams" / f"gallery.{kind}") for kind in ("png", "html"))
    if raw:
        gallery.save(run.path / "cams" / "maps.npz")
    write_report(run, run.summary())
    return sheet, page


def _records(run: RunFolder, maps: Sequence[MapSpec], names: Sequence[str]) -> dict[tuple[str, str], dict[str, Result]]:
    return {
        (name, spec.text): {row["sample_id"]: row for row in run.table(name, spec.text, COLUMNS).to_pylist()}
        for spec in maps
        for name in names
    }


def _as_recorded(run: RunFolder, classifiers: Sequence[Classifier]) -> list[Classifier]:
    """Return the classifiers named and preprocessed as in the run. Raises RunError where the run lacks one of them."""
    taken: set[str] = set()
    entries = run.manifest.checkpoints
    for classifier in classifiers:
        ours = classifier.identity
        key = ours.sha256, ours.attention, ours.arch
        matching = [entry for entry in entries if (entry.sha256, entry.attention, entry.arch) == key]
        if not matching:
            names = ", ".join(run.manifest.names)
            raise RunError(f"{run.path}: no records of {ours.spec}, only of {names}; run robustkit cam with it")
        # The same file may be there twice, under two names.
        entry = min(matching, key=lambda entry: (entry.name in taken, entry.name != ours.name, entry.spec != ours.spec))
        taken.add(entry.name)
        classifier.identity = replace(ours, name=entry.name, preprocessing=preprocessing_of(entry))
    return list(classifiers)


def is_picture(argument: str) -> bool:
    return is_image_name(argument) and ":" not in argument


def read_picture_files(pictures: Sequence[str]) -> Iterator[tuple[str, Image.Image]]:
    """Yield picture files with their names. Raises DataError for one that cannot be read."""
    yield from ((picture, read_image(_bytes(picture), picture)) for picture in pictures)


def explain_pictures(
    pictures: Iterable[tuple[str, Image.Image]],
    checkpoints: Sequence[str | Path],
    targets: Sequence[str],
    methods: str | Iterable[str],
    *,
    model: Mapping[str, Any],
    device: str = "auto",
    texts: Sequence[str] = (),
    over: str = "predicted",
    say: Callable[[str], None] | None = None,
) -> Gallery:
    """Return maps of named pictures for the named classes, or the predicted one, and for sentences. over: in which
    region, of segmenters. say: hears what an audit says about the checkpoints. Raises ModelError for a class that the
    model lacks."""
    specs, named = _plain(methods), list(pictures)
    if are_segmenters(checkpoints):
        if texts:
            raise ProtocolError(f"--target-text {texts[0]}: segmenters have no text; name a class with --target")
        return explain_segments(named, checkpoints, targets, specs, over, model=model, device=device, say=say)
    if over != "predicted":
        raise ProtocolError(f"--over {over}: classifiers have one class for a whole picture; leave it out")
    settings, card = Settings(device=pick_device(device)), load_card("standard")
    opened = distinct_names([load(spec, **model) for spec in checkpoints])
    if say is not None:
        for line in _of_checkpoints([each.identity for each in opened]):
            say(line)
    subjects = [ClassifierSubject(classifier, card, settings, None) for classifier in opened]
    wished: list[Sequence[Target]] = []
    for subject in subjects:
        identity = subject.classifier.identity
        check_explainable(subject.classifier, identity.name, specs)
        if not identity.preprocessing.is_rgb:
            raise ProtocolError(f"{identity.name} takes no RGB of 8 bits, as which pictures are read; give --data-dir")
        names = class_names(identity.class_names, identity.num_classes)
        wished.append([_asked_class(text, names) for text in dict.fromkeys(targets or ["predicted"] * (not texts))])
        if LABEL in wished[-1]:
            raise ProtocolError("--target label: a single image has no label; name a class, or give predicted")
    rows: list[GalleryRow] = []
    heats: dict[str, Heat] = {}
    request = ClassificationRequest(checkpoints=checkpoints, data_dir="", model=model)
    checkpoint_names = [subject.classifier.identity.name for subject in subjects]
    of_texts = _of_texts(texts, request, checkpoint_names, settings)
    for picture, image in named:
        for subject, classes in zip(subjects, wished, strict=True):
            pixels = to_pixels(image, subject.classifier.identity.preprocessing, picture)
            painter = Painter(specs, classes, (), heats, of_texts)
            rows += painter.rows(subject, pixels, Sample(picture, -1), Path(picture).stem, None, {})
    return Gallery(", ".join(checkpoint_names), tuple(rows), (), heats, setup=_setup(opened, specs))


def _setup(classifiers: Sequence[Classifier], specs: Sequence[MapSpec]) -> tuple[str, ...]:
    """Return what made the maps, for the metadata of pictures: files, formulas, normalisation, methods."""
    lines = []
    for identity in (classifier.identity for classifier in classifiers):
        name, preprocessing = Path(str(identity.spec)).name or identity.name, identity.preprocessing
        mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
        digest = (identity.sha256 or "none")[:12]
        lines.append(f"{name} (SHA-256 {digest}), attention {identity.attention}, mean {mean}, std {std}")
    return (*lines, f"maps: {', '.join(map(brief, specs))}")


def _asked_class(text: str, names: Sequence[str]) -> Target:
    try:
        return Target.of(text, names)
    except ModelError as fault:
        hint = "; for a sentence and a zero-shot model give --target-text" if " " in text.strip() else ""
        raise ModelError(f"{fault}{hint}") from None


def pictures_in(arguments: Sequence[str]) -> list[str]:
    """Return the pictures among the arguments of a command, and those in folders that hold no model, by name."""
    pictures = list[str]()
    for argument in arguments:
        if is_picture(argument):
            pictures.append(argument)
        elif holds_pictures(argument):
            pictures += sorted(str(path) for path in Path(argument).iterdir() if is_picture(str(path)))
    return pictures


def holds_pictures(argument: str) -> bool:
    """Whether it is a folder of pictures, and not one of a model."""
    folder = Path(argument)
    if ":" in argument or not folder.is_dir() or (folder / "config.json").exists():
        return False
    return any(is_picture(str(path)) for path in folder.iterdir())


def _of_checkpoints(identities: Sequence[ModelIdentity]) -> Iterator[str]:
    """Yield what is known and assumed of checkpoints, as an audit says it."""
    yield from (f"{identity.name}: {note}" for identity in identities for note in identity.notes)
    yield from inputs_in_words([describe(identity, identity.preprocessing) for identity in identities])


CAMS = "agcam,rollout,grad-cam"


def cam(
    checkpoints: Checkpoints,
    images: Any,
    *,
    cams: str | Sequence[str] | None = None,
    targets: str | int | Sequence[str | int] = (),
    gallery: int = 12,
    choose: str | None = None,
    show: str | Sequence[str] = (),
    target_text: str | Sequence[str] = (),
    over: str = "predicted",
    progress: Progress | bool | None = None,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Gallery:
    """Make maps of what checkpoints look at: of pictures of your own, or of a data set, scored next to controls.

    Args:
        checkpoints: as `robustkit.audit` takes them.
        images: pictures: a tensor (3, H, W) or (B, 3, H, W) in [0, 1], an array (H, W, 3), a picture of Pillow's, a
            file's name, or a list of these. Anything else is a data set, as `robustkit.audit` takes it; its maps are
            scored in a run, which the gallery names as `run` and shows on its page.
        cams: methods; if left out AG-CAM, rollout and Grad-CAM, of networks without attention Grad-CAM.
        targets: classes to draw maps for, by name or number, or predicted; of a data set also label.
        gallery: of a data set, how many samples to draw.
        choose: of a data set, which: disagreement, worst, best, random or class:NAME.
        show: of a data set, the ids of samples to draw.
        target_text: sentences that a zero-shot model (CLIP, SigLIP) gets maps for, besides.
        over: where a segmenter's class is explained, of pictures: predicted, component=ROW+COLUMN, pixel=ROW+COLUMN or
            box=TOP+LEFT+BOTTOM+RIGHT.
        progress: as of `robustkit.audit`.
        say: as of `robustkit.audit`.
        **options: as of `robustkit.audit`, such as boxes, masks, faithfulness, mean or out; of pictures only those of
            the model, and device.

    Returns:
        Images under their maps; a notebook shows them.

    Raises:
        RobustkitError: anything that is wrong with the arguments.

    Example:
        >>> gallery = robustkit.cam("zoo:shapes-vit-quest", torch.rand(3, 64, 64), cams="agcam")
        >>> {name: map.shape for name, map in gallery.maps.items()}
        {'shapes-vit-quest/agcam/predicted/00000': (64, 64)}
    """
    pictures, data = _pictures_in(images)
    keywords = grouped(ClassificationRequest, options)
    model, ids = keywords.get("model") or {}, _texts(show)
    if gallery < 1:
        raise ProtocolError(f"gallery={gallery}: expected 1 or more; robustkit.audit(..., cams=...) scores maps alone")
    with in_memory(ClassificationRequest, checkpoints, data, model) as (specs, place):
        cams = _usual(specs, model) if cams is None else cams
        if pictures is not None:
            drawn = {"gallery": gallery != 12, "choose": choose, "show": show}
            if odd := {*keywords} - {"model", "device"} | {name for name, value in drawn.items() if value}:
                raise TypeError(f"cam() got {', '.join(sorted(odd))}, which is of a data set; these are pictures")
            keywords = {"model": model, **keywords, "texts": _texts(target_text), "over": over, "say": say}
            return explain_pictures(pictures, specs, _texts(targets), cams, **keywords)
        request = ClassificationRequest(checkpoints=specs, data_dir=place, cams=cams, **{"attacks": "none", **keywords})
        names, scores = tuple(map(str, specs)), request.faithfulness
        drawn_for = {"targets": _texts(targets), "texts": _texts(target_text)}
        choice = Choice.of(names, cams, scores, how=choose, count=gallery, ids=ids, **drawn_for)
        choice.check(request)
        with progress_shown(progress) as listener:
            run = carry_out(request, listener, say)
        write_gallery(run, result := make_gallery(run, request, choice))
        return result


def _texts(values: str | int | Sequence[str | int]) -> tuple[str, ...]:
    return (str(values),) if isinstance(values, str | int) else tuple(map(str, values))


def _usual(specs: Sequence[str | Path], model: Mapping[str, Any]) -> str:
    """Return the maps that are drawn where none are named: those of CAMS that all of the networks have."""
    opening = load_segmenter if are_segmenters(specs) else load
    attentions = {opening(spec, **model).identity.attention for spec in specs}
    return "grad-cam" if attentions & {"none", "other"} else CAMS


def _pictures_in(images: Any) -> tuple[Iterable[tuple[str, Image.Image]] | None, Any]:
    """Return pictures with their names, None for a data set; and what `in_memory` takes as data."""
    several = [*images] if isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4 else [images]
    files = [str(each) if isinstance(each, str | Path) else None for each in several]
    pictures = (
        isinstance(each, Tensor | np.ndarray | Image.Image) if file is None else is_picture(file)
        for each, file in zip(several, files, strict=True)
    )
    labelled = isinstance(images, tuple) and isinstance(several[0], Tensor | np.ndarray | list)
    if not several or labelled or not all(pictures):
        return None, images
    if None not in files:
        return read_picture_files(list(map(str, several))), ""
    pairs = zip(several, files, strict=True)
    opened = [each if file is None else dict(read_picture_files([file]))[file] for each, file in pairs]
    if len({isinstance(each, Image.Image) for each in opened}) > 1:  # each is a picture of its own
        opened = [Image.fromarray(image_pixels(each, f"image {place}")) for place, each in enumerate(opened)]
    held = open_held((opened, [0] * len(opened)))
    return [(sample.id, held.image(sample)) for sample in held.samples], held


def _plain(methods: str | Iterable[str]) -> list[MapSpec]:
    """Return the methods without controls. Raises ProtocolError for what needs a label or a score."""
    specs = [spec for spec in parse_cams(methods) if not spec.is_control]
    for spec in specs:
        if spec != MapSpec(spec.method, options=spec.options):
            remedy = f"give methods alone, such as {spec.method}, and the class with --target"
            raise ProtocolError(f"--cams {methods}: a single image has neither label nor score; {remedy}")
    if not specs:
        why = "controls only, which ignore the image"
        raise ProtocolError(f"--cams {methods}: {why}; give a method such as agcam")
    return specs


def _bytes(picture: str) -> bytes:
    try:
        return bytes_of(Path(picture), MAX_FILE_BYTES)
    except OSError as fault:
        raise DataError(f"{picture}: cannot be read ({reason_of(fault)}); check its name") from None
