"""Fewer classes than a model has outputs: a label map pools the outputs of each class of a data set.

    pool = "best"                        # or "mean" or "sum" of the outputs' probabilities
    border = 2                           # pixels cut off each side of an image; default: 0
    other_folders = "leave out"          # of the data; default: "refuse"
    conflict = '-([a-z]+)\\d*\\.\\w+$'   # finds the second cue's class in a file name; default: none

    [classes]
    dog = ["n02085782", "n02085936"]     # wnids, names of the model's classes, or places of its outputs

Other outputs do not compete. The pooled outputs are a model's of their own, which attacks and maps are about.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..common.files import parse_toml, written_text
from ..common.preprocessing import LOGITS
from ..data.class_names import SYNSET_FILES, WNID, descriptions, first_names, places_by_name, synsets
from ..errors import DataError, ModelError, unknown
from .identity import Classifier

SHIPPED = Path(__file__).with_name("label_maps")
POOLS = ("best", "mean", "sum")
LEAVE_OUT, REFUSE = "leave out", "refuse"
_WIDEST = 64
_KEYS = ("pool", "border", "other_folders", "conflict", "classes")


@dataclass(frozen=True)
class LabelMap:
    """What a file says. sha256: of the file. classes: the outputs of each, by wnid, name or place."""

    name: str
    sha256: str
    classes: Mapping[str, tuple[str | int, ...]]
    pool: str = "best"
    border: int = 0
    other_folders: str = REFUSE
    conflict: str | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """What run.json says about it."""
        named = {key: getattr(self, key) for key in ("name", "sha256", "pool", "border", "other_folders")}
        return named | ({"conflict": self.conflict} if self.conflict else {})

    def places(self, num_classes: int, class_names: tuple[str, ...] | None) -> list[list[int]]:
        """Return the outputs of each class. Raises ModelError, with their names, for those that the model lacks, and
        for an output of two classes."""
        where = f"label map {self.name}"
        texts = tuple(dict.fromkeys(each for some in self.classes.values() for each in some if isinstance(each, str)))
        places = _places_of(texts, where, num_classes, class_names)
        taken, pooled = dict[int, str](), list[list[int]]()
        for name, outputs in self.classes.items():
            pooled.append([places[each] if isinstance(each, str) else each for each in outputs])
            for place in pooled[-1]:
                if not 0 <= place < num_classes:
                    raise ModelError(f"{where}: {name} has output {place}; the model's are 0 to {num_classes - 1}")
                if (other := taken.setdefault(place, name)) != name or pooled[-1].count(place) > 1:
                    twice = f"twice in {name}" if other == name else f"in {other} and in {name}"
                    raise ModelError(f"{where}: output {place} is {twice}; expected each output once")
        return pooled


def _places_of(
    texts: tuple[str, ...], where: str, num_classes: int, class_names: tuple[str, ...] | None
) -> dict[str, int]:
    """Return the output that each wnid or name means."""
    names = class_names or ()
    places = {name: place for place, name in enumerate(names)}
    wnids = bool(texts) and all(map(WNID.fullmatch, texts))
    if not texts or places.keys() >= set(texts):
        return places
    if wnids:
        if num_classes not in SYNSET_FILES:
            sizes = ", ".join(map(str, SYNSET_FILES))
            raise ModelError(f"{where}: wnids, but the model has {num_classes} outputs in no known order ({sizes})")
        if names and not set(names) <= {*synsets(num_classes), *descriptions(synsets(num_classes))}:
            raise ModelError(f"{where}: wnids, but the checkpoint names other classes ({first_names(names, 3)})")
        places = {wnid: place for place, wnid in enumerate(synsets(num_classes))}
        if lacking := [text for text in texts if text not in places]:
            raise ModelError(f"{where}: {len(lacking)} wnids that the model lacks: {first_names(lacking)}")
        return places
    names = names or (descriptions(synsets()) if num_classes == 1000 else ())
    if not names:
        raise ModelError(f"{where}: names of classes, but the checkpoint names none; give places of outputs, 0 to ...")
    try:
        return dict(zip(texts, places_by_name(texts, names, where), strict=True))
    except DataError as fault:
        raise ModelError(str(fault)) from None


def read_label_map(spec: str | Path) -> LabelMap:
    """Read a TOML file, or one that ships by its name. Raises DataError for a file that is no label map."""
    shipped = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    path = SHIPPED / f"{spec}.toml" if str(spec) in shipped else Path(spec)
    if path.suffix != ".toml" and not path.exists():
        raise DataError(f"{unknown('label map', str(spec), shipped)}, or a TOML file")
    text = written_text(path, f"label map {path}", DataError)
    table = parse_toml(text, f"label map {path}", DataError)
    if strange := [key for key in table if key not in _KEYS]:
        raise DataError(f"{path}: " + unknown("key", strange[0], _KEYS))
    checked = {
        "pool": table.get("pool", "best") in POOLS,
        "border": type(table.get("border", 0)) is int and 0 <= table.get("border", 0) <= _WIDEST,
        "other_folders": table.get("other_folders", REFUSE) in (REFUSE, LEAVE_OUT),
        "conflict": "conflict" not in table or _is_pattern(table["conflict"]),
    }
    expected = {
        "pool": " or ".join(POOLS),
        "border": f"0 to {_WIDEST} pixels",
        "other_folders": f"{REFUSE} or {LEAVE_OUT}",
        "conflict": "a regular expression with one group",
    }
    if misfit := next((key for key, fits in checked.items() if not fits), None):
        raise DataError(f"{path}: {misfit} is {table[misfit]!r}; expected {expected[misfit]}")
    classes = table.get("classes")
    if not isinstance(classes, dict) or len(classes) < 2:
        raise DataError(f"{path}: expected a table [classes] of two classes or more")
    for name, outputs in classes.items():
        if not isinstance(outputs, list) or not all(type(each) in (int, str) for each in outputs):
            raise DataError(f"{path}: {name} is {str(outputs)[:60]!r}; expected a list of wnids, names or places")
        if not outputs:
            raise DataError(f"{path}: {name} has no outputs; expected one or more, or leave it out")
    values = {key: table[key] for key in _KEYS[:-1] if key in table}
    tuples = {name: tuple(outputs) for name, outputs in classes.items()}
    return LabelMap(path.stem, hashlib.sha256(text.encode()).hexdigest(), tuples, **values)


def _is_pattern(text: object) -> bool:
    try:
        return isinstance(text, str) and len(text) < 200 and re.compile(text).groups == 1
    except re.error:
        return False


class PooledClasses(nn.Module):
    """A network with one output for each class, (B, C), of a network with K.

    best: the largest logit of a class's outputs. sum, mean: the logarithm of the sum, or mean, of their probabilities,
    up to a constant of the image.

    Args:
        network: images to logits (B, K).
        places: the outputs of each class.
        pool: one of `POOLS`.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> PooledClasses(network, [[0, 2], [1]], "best")(torch.ones(1, 2)).shape
        torch.Size([1, 2])
    """

    index: Tensor
    is_output: Tensor

    def __init__(self, network: nn.Module, places: list[list[int]], pool: str) -> None:
        super().__init__()
        self.network, self.pool = network, pool
        most = max(map(len, places))
        padded = [some + some[-1:] * (most - len(some)) for some in places]
        self.register_buffer("index", torch.tensor(padded), persistent=False)
        lengths = torch.tensor([len(some) for some in places])[:, None]
        self.register_buffer("is_output", torch.arange(most) < lengths, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)[:, self.index]
        if self.pool == "best":
            return logits.amax(dim=2)
        pooled = logits.masked_fill(~self.is_output, -torch.inf).logsumexp(dim=2)
        return pooled if self.pool == "sum" else pooled - self.is_output.sum(dim=1).log()


def with_label_map(classifier: Classifier, spec: str | Path) -> Classifier:
    """Return the classifier with the classes of a label map. Raises DataError for the file, ModelError where it does
    not fit."""
    label_map, identity = read_label_map(spec), classifier.identity
    places = label_map.places(identity.num_classes, identity.class_names)
    outputs = sum(map(len, places))
    how = {"best": "the best of their outputs", "mean": "the mean of their probabilities"}
    note = f"label map {label_map.name}: {len(places)} classes of {outputs} of the {identity.num_classes} outputs"
    note += f", by {how.get(label_map.pool, 'the sum of their probabilities')}"
    classifier.network = PooledClasses(classifier.network, places, label_map.pool).to(classifier.mean.device).eval()
    classifier.identity = replace(
        identity,
        num_classes=len(places),
        class_names=tuple(label_map.classes),
        outputs=LOGITS,
        notes=(*identity.notes, note),
        label_map=label_map.entry,
    )
    return classifier
