"""Read predictions that another system made: a CSV or Parquet file with a row for each sample under a condition.

Columns: `sample_id`, `label`, `prediction` or probabilities (`prob_0` to `prob_{K-1}`, or lists in `probabilities`),
and where the file has several, `condition` and `checkpoint`. Other columns are ignored.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..common.files import bytes_of, first_line, reason_of
from ..errors import DataError
from ..protocol.condition import CLEAN
from ..runs.untrusted import with_texts

PREFIX = "predictions:"
LARGEST, ROWS, VALUES = 1 << 30, 1 << 23, 1 << 28
"""Limits for one file: bytes, also of all its columns before compression; rows; probabilities."""
_TEXT, _GROUPS, _COLUMNS = 4096, 1024, 1 << 17  # characters of a text; pairs of checkpoint and condition; columns
_SUM = 1e-3  # by how much probabilities may miss one
_TEXTS, _WHOLE, _LISTS = ("checkpoint", "condition", "sample_id"), ("label", "prediction"), "probabilities"
_NUMBERED = re.compile(r"prob_(0|[1-9]\d{0,6})")
_EXPECTED = "expected a CSV or Parquet file with sample_id, label, and prediction or prob_0, prob_1, …"

Ints = NDArray[np.int64]
Reals = NDArray[np.float32]


@dataclass(frozen=True)
class Answers:
    """What a checkpoint predicted under a condition. where: the file. ids: (n,), each once. labels, predicted: (n,).
    probabilities: (n, K). Of the last two, one may be None.
    """

    where: Path
    ids: tuple[str, ...]
    labels: Ints
    predicted: Ints | None
    probabilities: Reals | None

    @property
    def classes(self) -> int | None:
        """The number of probabilities; None without them."""
        return None if self.probabilities is None else self.probabilities.shape[1]

    def take(self, rows: Ints) -> Answers:
        return Answers(
            self.where,
            tuple(self.ids[row] for row in rows),
            self.labels[rows],
            None if self.predicted is None else self.predicted[rows],
            None if self.probabilities is None else self.probabilities[rows],
        )

    def digest(self) -> bytes:
        """Return the SHA-256 of the rows, whatever their order in the file."""
        total = hashlib.sha256()
        for row in sorted(range(len(self.ids)), key=self.ids.__getitem__):
            said = None if self.predicted is None else int(self.predicted[row])
            total.update(f"{self.ids[row]}\0{self.labels[row]}\0{said}\0".encode("utf-8", "surrogatepass"))
            total.update(b"" if self.probabilities is None else self.probabilities[row].astype("<f4").tobytes())
        return total.digest()


def read_answers(path: Path) -> dict[tuple[str, str], Answers]:
    """Return what a file has, by checkpoint (by default the file's stem) and text of the condition (by default
    `clean`). Raises DataError, one line, for a file that is too large, has no rows, or a row that makes no sense.
    """
    table = _table(path)
    texts: dict[str, list[str]] = {name: table[name].to_pylist() for name in _TEXTS if name in table.column_names}
    if long := next((text for some in texts.values() for text in some if len(text) > _TEXT), None):
        raise DataError(f"{path}: a text of {len(long)} characters, {long[:40]!r}…; expected at most {_TEXT}")
    ids = texts["sample_id"]
    of = [(texts.get("checkpoint") or [path.stem] * len(ids)), (texts.get("condition") or [CLEAN.text] * len(ids))]
    groups: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(*of, strict=True)):
        groups.setdefault(key, []).append(row)
        if len(groups) > _GROUPS:
            raise DataError(f"{path}: more than {_GROUPS} checkpoints and conditions; give several files")
    whole = {name: table[name].to_numpy().astype(np.int64) for name in _WHOLE if name in table.column_names}
    every = Answers(path, tuple(ids), whole["label"], whole.get("prediction"), _probabilities(table, path))
    _check(every)
    found = {key: every if len(groups) == 1 else every.take(np.array(rows)) for key, rows in groups.items()}
    for (checkpoint, condition), answers in found.items():
        name, times = Counter(answers.ids).most_common(1)[0]
        if times > 1:
            raise DataError(f"{path}: {name} is named {times} times for {checkpoint} under {condition}; expected once")
    return found


def _table(path: Path) -> pa.Table:
    """Return the columns that count: texts, whole numbers, and probabilities in float32; no cell is empty."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise DataError(f"{path}: not a .csv or .parquet file; {_EXPECTED}")
    try:
        data = bytes_of(path, LARGEST)
        table = _of_csv(data) if kind == ".csv" else _of_parquet(data)
    except (OSError, ValueError, pa.ArrowException, MemoryError, csv.Error) as fault:
        said = reason_of(fault) if isinstance(fault, OSError) else first_line(fault)
        raise DataError(f"{path}: cannot be read as predictions ({said}); {_EXPECTED}") from None
    if not len(table):
        raise DataError(f"{path}: no rows; expected one for each sample")
    for name in (*_TEXTS, *_WHOLE, _LISTS):
        if name in table.column_names and table[name].null_count:
            row = table[name].is_null().to_pylist().index(True) + 1
            raise DataError(f"{path}: row {row} has no {name}; expected one in every row")
    return table


def _of_csv(data: bytes) -> pa.Table:
    head = data[: max(data.find(b"\n", 0, LARGEST >> 4), 0) or LARGEST >> 4].decode("utf-8-sig")
    names = next(csv.reader([head.strip("\r\n")]), [])
    kinds = _kinds(names)
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), strings_can_be_null=False)
    read = pyarrow.csv.ReadOptions(use_threads=False)  # errors name the row
    table = pyarrow.csv.read_csv(pa.BufferReader(data), read_options=read, convert_options=convert)
    if len(table) > ROWS or len(table) * len(kinds) > VALUES:
        raise ValueError(f"{len(table)} rows of {len(kinds)} columns, more than are read; divide it by condition")
    return table


def _of_parquet(data: bytes) -> pa.Table:
    source = pq.ParquetFile(pa.BufferReader(data))
    metadata, schema = source.metadata, source.schema_arrow
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    parts = [group.column(place) for group in groups for place in range(group.num_columns)]
    size, most = sum(group.total_byte_size for group in groups), max((part.num_values for part in parts), default=0)
    if metadata.num_rows > ROWS or size > LARGEST or most > VALUES or metadata.num_rows * len(schema) > VALUES:
        raise ValueError(f"{metadata.num_rows} rows, {size >> 20} MB, more than are read; divide it by condition")
    kinds = _kinds(schema.names)
    for name, kind in kinds.items():  # no cast from text to number, or back, except for ids
        here = schema.field(name).type
        fine = _is_text(here) or (name == "sample_id" and pa.types.is_integer(here))
        if pa.types.is_integer(kind):
            fine = pa.types.is_integer(here)
        elif not pa.types.is_string(kind):
            inner = getattr(here, "value_type", here) if name == _LISTS else here
            fine = pa.types.is_floating(inner)
        if not fine:
            raise ValueError(f"column {name} is of {here}; expected {'text' if kind == pa.string() else kind}")
    texts = [name for name in _TEXTS if name in kinds and _is_text(schema.field(name).type)]
    source = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=texts)
    table, wrong = with_texts(source.read(columns=list(kinds), use_threads=False), LARGEST >> 2)
    if wrong:
        raise ValueError(wrong)
    return table.cast(pa.schema(kinds)) if _LISTS not in kinds else _cast_without_lists(table, kinds)


def _is_text(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))


def _cast_without_lists(table: pa.Table, kinds: dict[str, pa.DataType]) -> pa.Table:
    for place, name in enumerate(table.column_names):
        if name != _LISTS:
            table = table.set_column(place, name, table[name].cast(kinds[name]))
    return table


def _kinds(names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of each column that counts. Raises ValueError where one is missing, or there twice."""
    if len(names) > _COLUMNS:
        raise ValueError(f"{len(names)} columns, more than {_COLUMNS}")
    if twice := next((name for name, times in Counter(names).items() if times > 1), None):
        raise ValueError(f"column {twice!r} appears twice")
    if missing := [name for name in ("sample_id", "label") if name not in names]:
        raise ValueError(f"no column {missing[0]}")
    numbers = {int(form[1]) for form in map(_NUMBERED.fullmatch, names) if form}
    if gap := next((number for number in range(len(numbers)) if number not in numbers), None):
        raise ValueError(f"no column prob_{gap}, but prob_{max(numbers)}")
    if numbers and 0 not in numbers:
        raise ValueError(f"no column prob_0, but prob_{max(numbers)}")
    if numbers and _LISTS in names:
        raise ValueError(f"columns prob_0 and {_LISTS}: one of the two says it")
    kinds = dict.fromkeys((name for name in _TEXTS if name in names), pa.string())
    kinds |= dict.fromkeys((name for name in _WHOLE if name in names), pa.int64())
    kinds |= {_LISTS: pa.list_(pa.float32())} if _LISTS in names else {}
    kinds |= {f"prob_{number}": pa.float32() for number in range(len(numbers))}
    if not {"prediction", "prob_0", _LISTS} & kinds.keys():
        raise ValueError("no column says what was predicted")
    return kinds


def _probabilities(table: pa.Table, path: Path) -> Reals | None:
    """Return (n, K) float32; an empty cell is nan. Raises DataError for lists of several lengths."""
    numbered = [name for name in table.column_names if _NUMBERED.fullmatch(name)]
    if numbered:
        stacked = np.empty((len(table), len(numbered)), np.float32)
        for place, name in enumerate(numbered):
            stacked[:, place] = table[name].to_numpy()
        return stacked
    if _LISTS not in table.column_names:
        return None
    lengths = pc.list_value_length(table[_LISTS]).to_numpy()
    if odd := np.flatnonzero((lengths != lengths[0]) | (lengths == 0)).tolist():
        why = f"row {odd[0] + 1} has {lengths[odd[0]]} probabilities, and row 1 {lengths[0]}"
        raise DataError(f"{path}: {why}; expected one for each class")
    values: Reals = pc.list_flatten(table[_LISTS]).to_numpy().astype(np.float32)
    return values.reshape(len(table), int(lengths[0]))


def _check(every: Answers) -> None:
    """Raise DataError for the first row whose label, prediction or probabilities make no sense."""
    p, said, k = every.probabilities, every.predicted, every.classes

    def refuse(wrong: Any, why: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            pieces = {"label": every.labels[row], "said": None if said is None else said[row]}
            if p is not None:
                pieces |= {"sum": float(p[row].sum(dtype=np.float64)), "worst": p[row][_odd(p[row])], "k": k}
                pieces |= {"best": int(p[row].argmax()), "last": p.shape[1] - 1}
            raise DataError(f"{every.where}: row {row + 1}, {every.ids[row]}: {why.format(**pieces)}")

    above = np.inf if k is None else k
    bound = "0 or more" if k is None else "0 to {last}, as there are {k} probabilities"
    refuse((every.labels < 0) | (every.labels >= above), f"label {{label}}; expected {bound}")
    if said is not None:
        refuse((said < 0) | (said >= above), f"prediction {{said}}; expected {bound}")
    if p is None:
        return
    fine = (np.isfinite(p) & (p >= 0)).all(axis=1)
    refuse(~fine, "a probability is {worst}; expected numbers from 0 to 1, after the softmax")
    off = np.abs(p.sum(axis=1, dtype=np.float64) - 1) > _SUM
    refuse(off, "probabilities sum to {sum:.6g}; expected 1, after the softmax over all classes")
    if said is not None:
        given = np.take_along_axis(p, said[:, None], axis=1)[:, 0]
        refuse(given < p.max(axis=1), "prediction {said}, but class {best} has the largest probability; correct one")


def _odd(row: Reals) -> int:
    """Return the place of the first probability that is none; 0 where all are."""
    return int((~(np.isfinite(row) & (row >= 0))).argmax())
