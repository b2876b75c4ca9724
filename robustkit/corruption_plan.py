"""What a person asked to be corrupted, into conditions: whose constants, and here or from released files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from corruptions.corruption import SMALLEST

from .condition import Condition
from .corrupted_tree import CorruptedTree
from .corrupting import PRESETS, VARIANTS, Corrupted, photographs_digest
from .corruption_sets import expand
from .data import Dataset, Sample
from .errors import BadImageError, DataError, ProtocolError, unknown
from .images import read_image
from .manifest import CorruptedInputs

CIFAR_SIZE = (32, 32)


@dataclass(frozen=True)
class Plan:
    """Conditions of the corruptions, what they take beside the data set, and lines for the user."""

    conditions: tuple[Condition, ...] = ()
    inputs: CorruptedInputs = field(default_factory=CorruptedInputs)
    lines: tuple[str, ...] = ()


def plan_corruptions(
    asked: str | Iterable[str] | None,
    dataset: Dataset,
    input_sizes: Sequence[tuple[int, int]],
    *,
    tree: CorruptedTree | None = None,
    preset: str = "auto",
    variant: str = "hendrycks",
    frost_dir: str | None = None,
) -> Plan:
    """The corruptions of a list (None: of a tree all that it holds, else nothing).

    input_sizes: of the models, (height, width). tree: released files to read in place of corrupting here.
    preset: `auto` takes CIFAR-10-C's constants where the images are 32x32, and so do the models see them.

    Raises:
        ProtocolError: an unknown corruption, set, preset or variant.
        DataError: frost's photographs are not there, or the tree holds nothing of what was asked.
    """
    if preset not in ("auto", *PRESETS):
        raise ProtocolError(unknown("preset", preset, ("auto", *PRESETS)))
    if variant not in VARIANTS:
        raise ProtocolError(unknown("variant", variant, VARIANTS))
    wanted = expand(asked) if asked is not None else tree.present if tree is not None else {}
    if not wanted:
        return Plan()
    if tree is not None:
        return _released(wanted, dataset, tree)
    for height, width in input_sizes:
        if min(height, width) < SMALLEST:
            raise DataError(
                f"the model takes {width}x{height} pixels; corruptions are defined from {SMALLEST}x{SMALLEST} on"
            )
    lines = []
    if preset == "auto":
        preset, line = choose_preset(native_size(dataset), input_sizes)
        lines.append(line)
    parts = [Corrupted(name, severity, preset, variant) for name, s in wanted.items() for severity in s]
    try:
        parts[0].make(frost_dir)
    except ValueError as fault:  # a preset and a variant that do not go together
        raise ProtocolError(str(fault)) from None
    digests = {}
    if "frost" in wanted:
        photographs = photographs_digest(frost_dir)
        digests = {part.text: photographs for part in parts if part.name == "frost"}
    conditions = tuple(map(Condition.of, parts))
    return Plan(conditions, CorruptedInputs(True, digests=digests), tuple(line for line in lines if line))


def choose_preset(native: tuple[int, int] | None, input_sizes: Sequence[tuple[int, int]]) -> tuple[str, str]:
    """Whose constants fit images of this size, and a line for the user (empty: nothing to say)."""
    if native != CIFAR_SIZE:
        return "imagenet", ""
    if all(size == CIFAR_SIZE for size in input_sizes):
        return "cifar", "corruptions: CIFAR-10-C's constants (preset cifar), since the images are 32x32"
    return "imagenet", (
        "corruptions: the images are 32x32, but are corrupted at the model's input size with ImageNet-C's constants: "
        "this is not CIFAR-10-C"
    )


def native_size(dataset: Dataset) -> tuple[int, int] | None:
    """(height, width) of the first of its images that can be read, before any resize."""
    for sample in dataset.samples[:20]:
        try:
            width, height = dataset.image(sample).size
        except BadImageError:
            continue
        return height, width
    return None


def _released(wanted: dict[str, tuple[int, ...]], dataset: Dataset, tree: CorruptedTree) -> Plan:
    parts, left_out = [], []
    for name, severities in wanted.items():
        for severity in severities:
            if severity not in tree.present.get(name, ()):
                left_out.append(f"{name}(severity={severity}): not in {tree.root}")
            elif missing := tree.missing(dataset.samples, name, severity):
                left_out.append(
                    f"{name}(severity={severity}): {len(missing)} of {len(dataset.samples)} files are missing, "
                    f"the first: {missing[0]}"
                )
            else:
                parts.append(Corrupted(name, severity, source="released"))
    if not parts:
        raise DataError(f"{tree.root}: nothing of what was asked can be read: {'; '.join(left_out[:3])}")
    digests = {part.text: _digest(dataset.samples, tree, part) for part in parts}
    inputs = CorruptedInputs(True, str(tree.root), _image_size(dataset.samples, tree, parts), digests, left_out)
    where = f"corruptions: {len(parts)} conditions from the released files of {tree.root}"
    return Plan(tuple(map(Condition.of, parts)), inputs, (where, *(f"left out {line}" for line in left_out)))


def _digest(samples: Sequence[Sample], tree: CorruptedTree, part: Corrupted) -> str:
    def content(sample: Sample) -> bytes:
        try:
            return hashlib.sha256(tree.read(sample.id, part.name, part.severity)).digest()
        except BadImageError:
            return b"unreadable"

    total = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(samples), 1024):
            for digest in pool.map(content, samples[start : start + 1024]):
                total.update(digest)
    return total.hexdigest()


def _image_size(samples: Sequence[Sample], tree: CorruptedTree, parts: Sequence[Corrupted]) -> tuple[int, ...]:
    for sample in samples[:20]:
        try:
            width, height = read_image(tree.read(sample.id, parts[0].name, parts[0].severity), sample.id).size
        except BadImageError:
            continue
        return height, width
    return ()
