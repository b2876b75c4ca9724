"""Class names and index lists: CIFAR-10's, and those that timm ships for the ImageNet family."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import DataError

WNID = re.compile(r"n\d{8}")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SYNONYMS = {
    "plane": "airplane",
    "aeroplane": "airplane",
    "aircraft": "airplane",
    "car": "automobile",
    "auto": "automobile",
    "motorcar": "automobile",
    "boat": "ship",
    "vessel": "ship",
    "lorry": "truck",
}
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
    """Return the wnids in the output order of a model with that many classes; ImageNet-1k where the number tells
    nothing.
    """
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
        raise DataError(f"the installed timm has no class list {name}; install timm>=1.0.15") from None


@lru_cache(maxsize=8)
def descriptions(wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readable names of wnids: 'tench, Tinca tinca'."""
    lemmas = dict(line.split("\t", 1) for line in timm_list("imagenet_synset_to_lemma.txt"))
    return tuple(lemmas.get(wnid, wnid) for wnid in wnids)


def few(names: Sequence[str], count: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
