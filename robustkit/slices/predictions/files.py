"""Read predictions that another system made: a CSV or Parquet file with a row for each sample under a condition.

Columns: `sample_id`, `label`, `prediction` or probabilities (`prob_0` to `prob_{K-1}`, or lists in `probabilities`) or
logits (`logit_0` to `logit_{K-1}`, or lists in `logits`), and where the file has several, `condition` and `checkpoint`.
Logits count where there are no probabilities. Other columns are named as not read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...common.files import bytes_of, first_line, reason_of
from ...errors import DataError
from ...protocol.condition import CLEAN
from ...runs.untrusted import with_texts

LARGEST, ROWS, VALUES = 1 << 30, 1 << 23, 1 << 28
"""Limits for one file: bytes, also of all its columns before compression; rows; probabilities."""
_TEXT, _GROUPS, _COLUMNS = 4096, 1024, 1 << 17  # characters of a text; pairs of checkpoint and condition; columns
_SUM = 1e-3  # by how much probabilities may miss one
_TEXTS, _WHOLE = ("checkpoint", "condition", "sample_id"), ("label", "prediction")
_SCORES = {"prob": "probabilities", "logit": "logits"}  # how columns begin, and the column of lists; the first counts
_EXPECTED = "expected a CSV or Parquet file with sample_id, label, and prediction or prob_0, prob_1, …"

Ints = NDArray[np.int64]
Reals = NDArray[np.float32]


@dataclass(frozen=True)
class Answers:
    """What a checkpoint predicted under a condition. where: the file. ids: (n,), each once. labels, predicted: (n,).
    scores: (n, K) probabilities, or logits. Of predictions and scores, one may be None. idle: the columns not read.
    """

    where: Path
    ids: tuple[str, ...]
    labels: Ints
    predicted: Ints | None
    scores: Reals | None
    are_logits: bool = False
    idle: tuple[str, ...] = ()

    @property
    def classes(self) -> int | None:
        """The number of scores of a sample; None without them."""
        return None if self.scores is None else self.scores.shape[1]

    def take(self, rows: Ints) -> Answers:
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            labels=self.labels[rows],
            predicted=None if self.predicted is None else self.predicted[rows],
            scores=None if self.scores is None else self.scores[rows],
        )

    def digest(self) -> bytes:
        """Return the SHA-256 of the rows, whatever their order in the file."""
        total = hashlib.sha256()
        for row in sorted(range(len(self.ids)), key=self.ids.__getitem__):
            answer = None if self.predicted is None else int(self.predicted[row])
            total.update(f"{self.ids[row]}\0{self.labels[row]}\0{answer}\0".encode("utf-8", "surrogatepass"))
            total.update(b"" if self.scores is None else self.scores[row].astype("<f4").tobytes())
        return total.digest()


def read_answers(path: Path) -> dict[tuple[str, str], Answers]:
    """Return what a file has, by checkpoint (by default the file's stem) and text of the condition (by default
    `clean`). Raises DataError, one line, for a file that is too large, has no rows, or a row that makes no sense.
    """
    table, idle = _table(path)
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
    scores, are_logits = _scores(table, path)
    every = Answers(path, tuple(ids), whole["label"], whole.get("prediction"), scores, are_logits, idle)
    _check(every)
    by_key = {key: every if len(groups) == 1 else every.take(np.array(rows)) for key, rows in groups.items()}
    for (checkpoint, condition), answers in by_key.items():
        name, times = Counter(answers.ids).most_common(1)[0]
        if times > 1:
            raise DataError(f"{path}: {name} is named {times} times for {checkpoint} under {condition}; expected once")
    return by_key


def _table(path: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the columns that count: texts, whole numbers, and scores in float32; no cell is empty; and the names of
    the other columns."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise DataError(f"{path}: not a .csv or .parquet file; {_EXPECTED}")
    try:
        data = bytes_of(path, LARGEST)
        table, names = _of_csv(data) if kind == ".csv" else _of_parquet(data)
    except (OSError, ValueError, pa.ArrowException, MemoryError, csv.Error) as fault:
        message = reason_of(fault) if isinstance(fault, OSError) else first_line(fault)
        raise DataError(f"{path}: cannot be read as predictions ({message}); {_EXPECTED}") from None
    if not len(table):
        raise DataError(f"{path}: no rows; expected one for each sample")
    for name in (*_TEXTS, *_WHOLE, *_SCORES.values()):
        if name in table.column_names and table[name].null_count:
            row = table[name].is_null().to_pylist().index(True) + 1
            raise DataError(f"{path}: row {row} has no {name}; expected one in every row")
    return table, tuple(name for name in names if name not in table.column_names)


def _of_csv(data: bytes) -> tuple[pa.Table, Sequence[str]]:
    head = io.BytesIO(data).readline(LARGEST >> 4).decode("utf-8-sig")
    names = next(csv.reader([head.strip("\r\n")]), [])
    kinds = _kinds(names)
    convert = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), strings_can_be_null=False)
    read = pyarrow.csv.ReadOptions(use_threads=False)  # errors name the row
    table = pyarrow.csv.read_csv(pa.BufferReader(data), read_options=read, convert_options=convert)
    if len(table) > ROWS or len(table) * len(kinds) > VALUES:
        raise ValueError(f"{len(table)} rows of {len(kinds)} columns, more than are read; divide it by condition")
    return table, names


def _of_parquet(data: bytes) -> tuple[pa.Table, Sequence[str]]:
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
            inner = getattr(here, "value_type", here) if pa.types.is_list(kind) else here
            fine = pa.types.is_floating(inner)
        if not fine:
            raise ValueError(f"column {name} is of {here}; expected {'text' if kind == pa.string() else kind}")
    texts = [name for name in _TEXTS if name in kinds and _is_text(schema.field(name).type)]
    source = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=texts)
    table, wrong = with_texts(source.read(columns=list(kinds), use_threads=False), LARGEST >> 2)
    if wrong:
        raise ValueError(wrong)
    for place, (name, kind) in enumerate((name, kinds[name]) for name in table.column_names):
        table = table if pa.types.is_list(kind) else table.set_column(place, name, table[name].cast(kind))
    return table, schema.names


def _is_text(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))


def _kinds(names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of each column that counts. Raises ValueError where one is missing, or there twice."""
    if len(names) > _COLUMNS:
        raise ValueError(f"{len(names)} columns, more than {_COLUMNS}")
    if twice := next((name for name, times in Counter(names).items() if times > 1), None):
        raise ValueError(f"column {twice!r} appears twice")
    if missing := [name for name in ("sample_id", "label") if name not in names]:
        raise ValueError(f"no column {missing[0]}")
    kinds = dict.fromkeys((name for name in _TEXTS if name in names), pa.string())
    kinds |= dict.fromkeys((name for name in _WHOLE if name in names), pa.int64())
    for start, lists in _SCORES.items():
        if some := _numbered(start, names):
            if lists in names:
                raise ValueError(f"columns {start}_0 and {lists}: one of the two says it")
            return kinds | dict.fromkeys(some, pa.float32())
        if lists in names:
            return kinds | {lists: pa.list_(pa.float32())}
    if "prediction" not in kinds:
        raise ValueError("no column says what was predicted")
    return kinds


def _numbered(start: str, names: Sequence[str]) -> list[str]:
    """Return the columns `start_0`, `start_1` and so on, in this order. Raises ValueError where one is missing."""
    form = re.compile(rf"{start}_(0|[1-9]\d{{0,6}})")
    numbers = {int(number[1]) for number in map(form.fullmatch, names) if number}
    if (gap := next((number for number in range(len(numbers)) if number not in numbers), None)) is not None:
        raise ValueError(f"no column {start}_{gap}, but {start}_{max(numbers)}")
    return [f"{start}_{number}" for number in range(len(numbers))]


def _scores(table: pa.Table, path: Path) -> tuple[Reals | None, bool]:
    """Return (n, K) float32, in which an empty cell is nan, and whether they are logits. Raises DataError for lists of
    several lengths."""
    for start, lists in _SCORES.items():
        if numbered := _numbered(start, table.column_names):
            stacked = np.empty((len(table), len(numbered)), np.float32)
            for place, name in enumerate(numbered):
                stacked[:, place] = table[name].to_numpy()
            return stacked, start == "logit"
        if lists in table.column_names:
            lengths = pc.list_value_length(table[lists]).to_numpy()
            if odd := np.flatnonzero((lengths != lengths[0]) | (lengths == 0)).tolist():
                why = f"row {odd[0] + 1} has {lengths[odd[0]]} {lists}, and row 1 {lengths[0]}"
                raise DataError(f"{path}: {why}; expected one for each class")
            values: Reals = pc.list_flatten(table[lists]).to_numpy().astype(np.float32)
            return values.reshape(len(table), int(lengths[0])), start == "logit"
    return None, False


def _check(every: Answers) -> None:
    """Raise DataError for the first row whose label, prediction, probabilities or logits make no sense."""
    p, predicted, k = every.scores, every.predicted, every.classes
    what, one = ("logits", "logit") if every.are_logits else ("probabilities", "probability")

    def refuse(wrong: Any, why: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            pieces = {"label": every.labels[row], "value": None if predicted is None else predicted[row]}
            if p is not None:
                fine = _are_fine(p[row], every.are_logits)
                pieces |= {"sum": float(p[row].sum(dtype=np.float64)), "worst": p[row][int((~fine).argmax())], "k": k}
                pieces |= {"best": int(p[row].argmax()), "last": p.shape[1] - 1}
            raise DataError(f"{every.where}: row {row + 1}, {every.ids[row]}: {why.format(**pieces)}")

    above = np.inf if k is None else k
    bound = "0 or more" if k is None else f"0 to {{last}}, as there are {{k}} {what}"
    refuse((every.labels < 0) | (every.labels >= above), f"label {{label}}; expected {bound}")
    if predicted is not None:
        refuse((predicted < 0) | (predicted >= above), f"prediction {{value}}; expected {bound}")
    if p is None:
        return
    expected = "finite numbers, before the softmax" if every.are_logits else "numbers from 0 to 1, after the softmax"
    refuse(~_are_fine(p, every.are_logits).all(axis=1), f"a {one} is {{worst}}; expected {expected}")
    off = np.abs(p.sum(axis=1, dtype=np.float64) - 1) > _SUM
    if not every.are_logits:
        refuse(off, "probabilities sum to {sum:.6g}; expected 1, after the softmax over all classes")
    elif not (off | (p < 0).any(axis=1)).any():
        raise DataError(f"{every.where}: logits of every row are 0 or more and sum to 1; name their columns prob_0, …")
    if predicted is not None:
        chosen = np.take_along_axis(p, predicted[:, None], axis=1)[:, 0]
        refuse(chosen < p.max(axis=1), f"prediction {{value}}, but class {{best}} has the largest {one}; correct one")


def _are_fine(scores: Reals, are_logits: bool) -> NDArray[np.bool_]:
    return np.isfinite(scores) if are_logits else np.isfinite(scores) & (scores >= 0)
