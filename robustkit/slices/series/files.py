"""Labelled multivariate time series from the .ts files of the UEA archive.

A file has comments (`#`), headers (`@key value`), and after `@data` a line for each case: its channels separated by
colons, the values of each by commas, the class last. `?` stands for a missing value (Bagnall et al. 2018,
arXiv:1811.00075; the format is that of the archive's own site, timeseriesclassification.com).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...common.files import bytes_of, reason_of
from ...data.class_names import first_names, order_assumed
from ...data.dataset import Dataset, Sample
from ...data.sources import DataSource
from ...errors import BadImageError, DataError, unknown

Values = NDArray[np.float32]
LARGEST_FILE = 1 << 30
"""Bytes of a .ts file; the largest of the archive that classifiers are usually compared on has half of it."""
_LARGEST = float(np.finfo(np.float32).max)
_HEADERS = (
    *("problemname", "timestamps", "missing", "univariate", "dimension", "dimensions", "equallength"),
    *("serieslength", "classlabel", "targetlabel"),
)
_SWITCHES = ("timestamps", "missing", "univariate", "equallength", "classlabel", "targetlabel")


@dataclass(frozen=True)
class SeriesSource(DataSource):
    """Series of a file by the ids of their samples, (C, T) float32 each; NaN where a value is missing."""

    values: Mapping[str, Values] = field(repr=False)

    def read(self, sample_id: str) -> bytes:
        """Return the shape and the values of a series, of which the digest of the data set is made."""
        series = self.values[sample_id]
        return f"{series.shape}\n".encode() + np.ascontiguousarray(series, dtype="<f4").tobytes()

    def series(self, sample: Sample) -> Values:
        """Return (C, T), gaps filled linearly, ends by the nearest. BadImageError for a channel without values."""
        series = self.values[sample.id]
        if not np.isnan(series).any():
            return series
        filled, steps = series.copy(), np.arange(series.shape[1])
        for place, channel in enumerate(filled):
            finite = np.isfinite(channel)
            if not finite.any():
                raise BadImageError(f"{sample.id}: channel {place + 1} has no value; all {len(finite)} are missing")
            channel[~finite] = np.interp(steps[~finite], steps[finite], channel[finite])
        return filled


def open_series(path: str | Path, class_names: Sequence[str] | None = None, num_classes: int | None = None) -> Dataset:
    """Open a .ts file; ids are its name and the place. class_names, num_classes: a model's. Raises DataError."""
    path = Path(path)
    text = _text(path)
    names, dimensions, start = _headers(text, path)
    labels = tuple(class_names) if class_names else names
    if strange := [name for name in names if name not in labels]:
        raise DataError(
            f"{path}: the model does not know its classes {', '.join(strange[:5])}; it knows {', '.join(labels[:5])}…; "
            "give a checkpoint that was trained on this data set, or --classes with its names"
        )
    if num_classes is not None and len(labels) != num_classes:
        raise DataError(
            f"{path}: it has {len(labels)} classes, and the model {num_classes}; give a checkpoint of this data set"
        )
    values, samples, missing = dict[str, Values](), list[Sample](), 0
    for number, line in enumerate(text[start:], start + 1):
        if not line.strip() or line.startswith("#"):
            continue
        series, label = _case(line, f"{path}: line {number}", dimensions)
        dimensions = len(series)
        if label not in names:
            raise DataError(f"{path}: line {number}: " + unknown("class", label, names, remedy="check @classLabel"))
        sample = Sample(f"{path.stem}/{len(samples):05d}", labels.index(label))
        samples.append(sample)
        values[sample.id] = series
        missing += int(np.isnan(series).sum())
    if not samples:
        raise DataError(f"{path}: no case after @data; fetch the file again")
    lengths = sorted(series.shape[1] for series in values.values())
    span = str(lengths[0]) if lengths[0] == lengths[-1] else f"{lengths[0]} to {lengths[-1]}"
    notes = [f"layout ts: {len(samples)} series of {dimensions} channels and {span} steps, {len(names)} classes"]
    notes += [f"{missing} values are missing; each is interpolated linearly over time"] if missing else []
    if not class_names and list(names) != sorted(names):
        notes.append(
            order_assumed(
                f"that of @classLabel ({first_names(names, 3)}) is used, but that of the sorted names "
                f"({first_names(sorted(names), 3)}) is also possible, and the checkpoint does not name its classes; "
                "give --classes FILE with the names in the order of the model's outputs"
            )
        )
    source = SeriesSource(values)
    return Dataset(path.stem, str(path), "ts", labels, tuple(samples), None, tuple(notes), source)


def _text(path: Path) -> list[str]:
    try:
        content = bytes_of(path, LARGEST_FILE)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as fault:
        why = "not text" if isinstance(fault, UnicodeDecodeError) else reason_of(fault)
        raise DataError(f"{path}: not a .ts file that can be read ({why}); expected one of the UEA archive") from None
    if not text.strip():
        raise DataError(f"{path}: empty; fetch the file again")
    if "\0" in text:
        raise DataError(f"{path}: not a .ts file that can be read (not text); expected one of the UEA archive")
    return text.splitlines()


def _headers(lines: Sequence[str], path: Path) -> tuple[tuple[str, ...], int | None, int]:
    """Return the names of the classes, the number of channels if it is said, and how many lines the header has."""
    names, dimensions = tuple[str, ...](), None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, *words = line.split()
        if not key.startswith("@"):
            raise DataError(
                f"{path}: line {number} begins with {line[:20]!r}; expected a header such as @classLabel, and @data "
                "before the first case"
            )
        key = key[1:].lower()
        if key == "data":
            if not names:
                raise DataError(f"{path}: no classes; expected a line such as @classLabel true 1 2 3 before @data")
            return names, dimensions, number
        if key not in _HEADERS:
            raise DataError(f"{path}: line {number}: " + unknown("header", key, (*_HEADERS, "data")))
        if key in _SWITCHES and words and (switch := words[0].lower()) in ("true", "false"):
            words[0] = switch
        elif key in _SWITCHES:
            raise DataError(f"{path}: line {number}: @{key} {' '.join(words)[:40]}; expected true or false")
        if key in ("timestamps", "targetlabel") and words[:1] != ["false"]:
            raise DataError(f"{path}: @{key} {' '.join(words)[:40]}; expected series without, and one class a case")
        if key in ("dimension", "dimensions"):
            if not (len(words) == 1 and words[0].isdecimal() and int(words[0])):
                raise DataError(f"{path}: @{key} {' '.join(words)[:40]}; expected the number of channels")
            dimensions = int(words[0])
        if key == "classlabel" and words[:1] == ["true"]:
            names = tuple(words[1:])
            if len(set(names)) < len(names):
                raise DataError(f"{path}: @classLabel names a class twice; expected each once")
    raise DataError(f"{path}: no @data; expected a .ts file of the UEA archive")


def _case(line: str, where: str, dimensions: int | None) -> tuple[Values, str]:
    *channels, label = line.strip().split(":")
    if dimensions is not None and len(channels) != dimensions:
        raise DataError(f"{where} has {len(channels)} channels and a class; expected {dimensions} channels")
    rows = [_numbers(channel, where) for channel in channels]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise DataError(f"{where} has channels of {' and '.join(map(str, lengths)) or 'no'} steps; expected the same")
    return np.array(rows, dtype=np.float32), label.strip()


def _is_number(text: str) -> bool:
    """Whether it has none of what only Python reads as a number: `1_0`, digits of other scripts."""
    return text.isascii() and "_" not in text


def _numbers(channel: str, where: str) -> list[float]:
    numbers = list[float]()
    for text in channel.split(","):
        try:
            number = math.nan if text.strip() in ("?", "NaN") else float(text if _is_number(text) else "")
        except ValueError:
            number = math.inf
        if abs(number) > _LARGEST:
            raise DataError(f"{where} has the value {text[:20]!r}; expected numbers of float32, and ? for missing ones")
        numbers.append(number)
    return numbers
