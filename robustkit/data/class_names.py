"""Class names and index lists: those that ship, and the output of a model that a name means."""

from __future__ import annotations

import difflib
import importlib.util
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..common.finding import Finding
from ..errors import DataError, ModelError

WNID = re.compile(r"n\d{8}")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SYNONYMS = dict.fromkeys(("plane", "aeroplane", "aircraft"), "airplane")
SYNONYMS |= dict.fromkeys(("car", "auto", "motorcar"), "automobile")
SYNONYMS |= {"boat": "ship", "vessel": "ship", "lorry": "truck"}
"""Other words for classes of these lists, in the singular."""
SYNSET_FILES = {
    1000: "imagenet_synsets.txt",
    11221: "imagenet21k_miil_synsets.txt",
    11821: "imagenet12k_synsets.txt",
    21841: "imagenet22k_synsets.txt",
    21842: "imagenet22k_ms_synsets.txt",
    21843: "imagenet21k_goog_synsets.txt",
}


def synsets(num_classes: int | None = None) -> tuple[str, ...]:
    """Return the wnids in the output order of a model with that many classes; by default those of ImageNet-1k."""
    return timm_list(SYNSET_FILES.get(num_classes or 1000, SYNSET_FILES[1000]))


@lru_cache(maxsize=16)
def timm_list(name: str) -> tuple[str, ...]:
    """Read the lines of a list that timm ships, without importing timm (which would import torch)."""
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("timm is not installed; its class lists are needed")
    path = Path(spec.submodule_search_locations[0], "data", "_info", name)
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except OSError:
        raise DataError(f"the installed timm has no class list {name}; install timm>=1.0.31") from None


@lru_cache(maxsize=8)
def descriptions(wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readable names of wnids: 'tench, Tinca tinca'."""
    lemmas = dict(line.split("\t", 1) for line in timm_list("imagenet_synset_to_lemma.txt"))
    return tuple(lemmas.get(wnid, wnid) for wnid in wnids)


def first_names(names: Sequence[str], count: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def printable(name: str) -> str:
    """Return the name without characters that steer a terminal or turn the direction of text."""
    return "".join(character for character in name if character.isprintable())


def order_assumed(what: str) -> str:
    """Return a note that is a finding on every figure: the names of the data may mean other outputs, too."""
    return str(Finding.of("labels/order-assumed", what=what))


_LISTS: dict[int, Mapping[str, tuple[str, ...]]] = {10: {"CIFAR-10": CIFAR10, "STL-10": STL10}}
_MOSTLY = 0.5  # from this share on, names are taken to be of a list


def class_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return readable names in the order of the outputs, or numbers where no names are given."""
    if names and not all(WNID.fullmatch(name) for name in names):
        return tuple(names)
    if names:
        return descriptions(tuple(names))
    return descriptions(synsets(1000)) if count == 1000 else tuple(map(str, range(count)))


def class_name(labels: Sequence[str], index: int, count: int = 0) -> str:
    names = class_names(labels, count or len(labels))
    return names[index].split(",")[0] if index < len(names) else str(index)


def target_of(text: str, names: Sequence[str]) -> int:
    """Return the class that a person means, by number, name or synonym. ModelError, with near names, else."""
    if re.fullmatch(r"-?[0-9]{1,9}", text.strip()):
        number = int(text)
        if not 0 <= number < len(names):
            raise ModelError(f"target {number}: the model has {len(names)} classes, 0 to {len(names) - 1}")
        return number
    target = text.strip().casefold()
    synonyms = {index: [part.strip().casefold() for part in name.split(",")] for index, name in enumerate(names)}
    exact = [index for index, parts in synonyms.items() if target in parts or target == names[index].casefold()]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise ModelError(f"target {text!r} names classes {', '.join(map(str, exact))}; give the number")
    every = {part: names[index].split(",")[0] for index, parts in synonyms.items() for part in parts}
    near = list(dict.fromkeys(every[match] for match in difflib.get_close_matches(target, every, n=3, cutoff=0.5)))
    guess = f"did you mean {', '.join(near)}?" if near else f"expected a name or a number from 0 to {len(names) - 1}"
    raise ModelError(f"no class {text!r} among the model's {len(names)}; {guess}")


# Which output each name of a data set means


@dataclass(frozen=True)
class Numbered:
    """Which output each name means. notes: some are findings. is_sure: the checkpoint says so."""

    classes: tuple[str, ...]
    places: dict[str, int]
    notes: tuple[str, ...] = ()
    is_sure: bool = False


@dataclass(frozen=True)
class Naming:
    """The names of classes in a data set, each once, and what is known of the model (num_classes, class_names). what:
    what a name is called. order: `text` or `natural`, where the user says it. where, at: places for errors, of all and
    of one name.
    """

    names: tuple[str, ...]
    where: str
    what: str = "class folder"
    order: str | None = None
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    at: Callable[[str], str] | None = None

    def place(self, name: str) -> str:
        return self.at(name) if self.at else self.where

    @property
    def of_folders(self) -> bool:
        return self.what == "class folder"

    @property
    def remedy(self) -> str:
        return "give a CSV of indices (--labels)" if self.of_folders else "give labels as indices"


def number_classes(naming: Naming) -> Numbered:
    """Return which output of the model each name means. The first of these that applies decides:

    1. The checkpoint's own names of its classes: the very name, else one that differs in case, else in separators,
       plural, or by a synonym. All names must be among them.
    2. wnids: the list of ImageNet's classes of the model's size, where the checkpoint does not name other classes.
    3. A well-known list of as many classes as the model has, of which all names are: CIFAR-10, STL-10, ImageNet-1k.
    4. The sorted names, which must be as many as the model's classes. torchvision sorts as text, timm by numbers and
       without case: where that differs, `order` decides.

    Raises DataError where none applies, or where two readings are possible. Where rules 3 and 4 give different outputs,
    the list is taken, and a flag says so.
    """
    names = naming.class_names or ()
    places = _places(naming, names)
    if strange := [name for name in naming.names if places and name not in places]:
        which = f"{naming.what}s that the model does not name: {first_names(strange)}"
        raise DataError(f"{naming.place(strange[0])}: {which}")
    if places:
        return Numbered(names, places, is_sure=True)
    of_imagenet = all(map(WNID.fullmatch, naming.names)) and naming.num_classes in (None, *SYNSET_FILES)
    begin = names[0].rstrip("0123456789") if names else ""  # names such as LABEL_0 and LABEL_1 say nothing
    numbers = all(n.startswith(begin) and n[len(begin) :].lstrip("0") == str(i or "") for i, n in enumerate(names))
    if names and not (of_imagenet or numbers):
        classes = first_names(names, 3)
        why = f"no {naming.what} ({first_names(naming.names, 3)}) is the name of a class of the checkpoint"
        why += f" ({classes})"
        raise DataError(f"{naming.place(naming.names[0])}: {why}; use these names, or {naming.remedy}")
    if naming.order is None:
        if of_imagenet:
            return number_wnids(naming)
        if listed := _of_a_list(naming):
            return listed
    return _sorted(naming)


def imagenet_wnids(where: str, num_classes: int | None, class_names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wnids of a model's outputs; by default ImageNet-1k's. DataError for a model with other classes."""
    if num_classes not in (None, *SYNSET_FILES):
        sizes = ", ".join(map(str, SYNSET_FILES))
        why = f"labels of ImageNet, but the model has {num_classes} outputs, whose order is unknown (known: {sizes})"
        raise DataError(f"{where}: {why}; give a CSV of indices (--labels)")
    wnids = synsets(num_classes)
    if class_names and len(class_names) == len(wnids):
        if all(map(WNID.fullmatch, class_names)):
            return tuple(class_names)
        named = zip(class_names, descriptions(wnids), strict=True)
        alike = sum(not _forms(ours).isdisjoint(_forms(theirs)) for ours, theirs in named)
        if alike < _MOSTLY * len(wnids):
            why = f"labels of ImageNet, but the checkpoint names other classes ({first_names(class_names, 3)})"
            raise DataError(f"{where}: {why}; give a CSV of indices (--labels)")
    return wnids


def number_wnids(naming: Naming) -> Numbered:
    wnids = imagenet_wnids(naming.where, naming.num_classes, naming.class_names)
    outputs = {wnid: place for place, wnid in enumerate(wnids)}
    if strange := [name for name in naming.names if name not in outputs]:
        what = f"{len(strange)} {naming.what.removeprefix('class ')}s"
        place = naming.place(strange[0])
        raise DataError(f"{place}: {what} are not wnids of the model's {len(wnids)} classes: {first_names(strange)}")
    return Numbered(descriptions(wnids), {name: outputs[name] for name in naming.names}, is_sure=True)


def _known_lists(naming: Naming) -> Mapping[str, tuple[str, ...]]:
    if naming.num_classes == 1000:
        return {"ImageNet-1k": descriptions(synsets())}
    return _LISTS.get(naming.num_classes or 0, {})


def _of_a_list(naming: Naming) -> Numbered | None:
    """Return the outputs by a well-known list; None where no list has all of the names."""
    lists = _known_lists(naming)
    by_list = {called: _places(naming, classes, strict=False) for called, classes in lists.items()}
    every = {called: places for called, places in by_list.items() if len(places) == len(naming.names)}
    if not every:
        return None
    exact = [called for called in every if set(naming.names) <= set(lists[called])]
    called, *others = exact or every
    places = every[called]
    readings = [f"{other}'s" for other in others if every[other] != places]
    if len(naming.names) == naming.num_classes and sorted(naming.names) != sorted(naming.names, key=places.__getitem__):
        readings.append("that of the sorted names")
    notes = (f"classes are those of {called}, in its order",)
    if readings:
        notes = (
            order_assumed(
                f"that of {called} is used, but {' or '.join(readings)} is also possible, and the checkpoint does not "
                f"name its classes; {_deciding(naming)}"
            ),
        )
    return Numbered(lists[called], places, notes)


def _sorted(naming: Naming) -> Numbered:
    names, count = naming.names, naming.num_classes
    by_text = sorted(names)
    by_number = sorted(names, key=lambda n: [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", n.lower())])
    if count is not None and len(names) != count:
        guess = "the labels would be ambiguous: {} or the data set's root" if naming.of_folders else "{}"
        problem = f"{len(names)} {naming.what}s ({first_names(by_text, 3)})"
        remedy = guess.format(naming.remedy)
        raise DataError(f"{naming.where}: {problem}, but the model has {count} classes; {remedy}")
    ordered, notes = by_number if naming.order == "natural" else by_text, list[str]()
    for called, classes in _known_lists(naming).items() if naming.order is None else ():
        places = _places(naming, classes, strict=False)  # where most names are of a list, which has another order
        moved = any(place != by_text.index(name) for name, place in places.items())
        if moved and len(places) > _MOSTLY * len(classes):
            strange = [name for name in by_text if name not in places]
            notes.append(
                order_assumed(
                    f"that of the sorted names is used; {len(places)} of {len(names)} are classes of {called}, which "
                    f"has a different order and lacks {first_names(strange, 3)}; {_deciding(naming)}"
                )
            )
    if by_text != by_number and naming.order is None:
        two = f"{naming.what}s, whose sorted order ({first_names(by_text, 3)}) differs from their case-insensitive "
        two += f"numeric order ({first_names(by_number, 3)}): torchvision uses the former, timm the latter"
        if count is not None:
            raise DataError(f"{naming.where}: {two}; {_deciding(naming)}")
        notes.append(f"{two}; sorted here")
    return Numbered(tuple(ordered), {name: place for place, name in enumerate(ordered)}, tuple(notes))


def _deciding(naming: Naming) -> str:
    sorting = "choose one with --layout folders (sorted as text) or --layout folders-timm, or "
    return sorting * naming.of_folders + naming.remedy


def _places(naming: Naming, classes: Sequence[str], strict: bool = True) -> dict[str, int]:
    """Return the class of each name among `classes`. DataError for choices and doubles, if `strict`."""
    what, where = naming.what, naming.where
    levels: list[tuple[Callable[[str], set[str]], dict[str, list[int]]]] = []
    for forms in (lambda name: {name}, lambda name: {name.casefold()}, _forms):
        by_form: dict[str, list[int]] = {}
        for place, name in enumerate(classes):
            for form in forms(name):
                by_form.setdefault(form, []).append(place)
        levels.append((forms, by_form))
    places: dict[str, int] = {}
    for name in naming.names:
        matches = (sorted({place for form in forms(name) for place in known.get(form, ())}) for forms, known in levels)
        alike = next(filter(None, matches), [])
        twin = next((other for other, place in places.items() if [place] == alike), None)
        if not strict and (len(alike) > 1 or twin is not None):
            continue
        if len(alike) > 1:
            same = len({classes[place] for place in alike}) < len(alike)
            meant = first_names([f"{classes[place]} ({place})" if same else classes[place] for place in alike])
            raise DataError(f"{naming.place(name)}: {what} {name!r} may be {meant} of the model; {naming.remedy}")
        if twin is not None and naming.of_folders:
            raise DataError(f"{where}: class folders {twin!r} and {name!r} are one class of the model; merge them")
        if alike:
            places[name] = alike[0]
    return places


def named_places(names: Sequence[str], class_names: Sequence[str]) -> dict[str, int]:
    """Return the class of each name that surely is one, as `places_by_name` finds it; other names have none."""
    return _places(Naming(tuple(names), "", "class"), class_names, strict=False)


def places_by_name(names: Sequence[str], class_names: Sequence[str], where: str) -> list[int]:
    """Return which output of a model each name means, apart from case, separators, plural and synonyms. Raises
    DataError where some name is none of the model's classes, or may be several."""
    places = _places(Naming(tuple(names), where, "class"), class_names)
    if strange := [name for name in names if name not in places]:
        theirs = f"the model's classes are {first_names(class_names, 3)}"
        raise DataError(f"{where} shows {first_names(strange, 3)}, but {theirs}")
    return [places[name] for name in names]


def _forms(name: str) -> set[str]:
    """Return a name, and each between its commas, without case, separators, plural and synonym."""
    return {_canonical(part) for part in (name, *name.split(","))}


def _canonical(name: str) -> str:
    words = re.sub(r"[\s_\-.]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()
    singular = words.removesuffix("s")
    return SYNONYMS.get(words, SYNONYMS.get(singular, singular))
