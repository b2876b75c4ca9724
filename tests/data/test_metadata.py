"""Tables of metadata: read as labels are, kept in the run's folder, replaced, merged, and refused in one line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_audit
from gate_runs import make
from sliced import table

import robustkit
from robustkit.common.files import CELL, COLUMNS
from robustkit.data.metadata import read_metadata
from robustkit.errors import DamagedRecord, DataError, RunError
from robustkit.report.refresh import keep_metadata
from robustkit.report.run import Run
from robustkit.runs.metadata import SampleMetadata, metadata_of_run, write_metadata
from robustkit.runs.untrusted import parquet_bytes

IDS = ["a/1.png", "a/2.png", "b/3.png"]


def read(folder: Path, text: str, whole: bool = True) -> dict[str, list[str]]:
    path = folder / "m.csv"
    path.write_text(text, encoding="utf-8")
    return read_metadata(path, IDS, "val", whole)


def test_rows_name_samples_as_rows_of_labels_do(tmp_path: Path) -> None:
    rows = "b/3.png;night; 7\n./a/1.png;;8\n2;nan;9\n"
    expected = {"light": ["", "", "night"], "Size": ["8", "9", "7"]}
    assert read(tmp_path, f"FileName;light;Size\n{rows}") == expected
    assert read(tmp_path, f"\ufeffsample_id;light;Size\n\n{rows}") == expected
    named = read(
        tmp_path, "name,path,x\nred,a/1.png,1\nblue,a/2.png,2\nred,b/3.png,3\n"
    )  # the first that names samples
    assert named == {"name": ["red", "blue", "red"], "x": ["1", "2", "3"]}
    with_id = read(tmp_path, "name,sample_id\nred,a/1.png\nblue,a/2.png\nred,b/3.png\n")
    assert with_id == {"name": ["red", "blue", "red"]}


def test_rows_of_other_samples_are_ignored_where_a_part_is_evaluated(tmp_path: Path) -> None:
    text = "sample_id,x\na/1.png,1\na/2.png,2\nc/9.png,9\nb/3.png,3\n"
    assert read(tmp_path, text, whole=False) == {"x": ["1", "2", "3"]}
    with pytest.raises(DataError, match=r"m.csv line 4: 'c/9.png' names no image under val"):
        read(tmp_path, text)


ROWS = "a/1.png,1\na/2.png,2\nb/3.png,3\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m.csv: no column names the samples; expected one of sample_id, filename, "),
        (f"sample,x\n{ROWS}", "m.csv: no column names the samples"),
        ("sample_id\na/1.png\n", "m.csv: 1 columns; expected one that names samples, and 1 to 63 more"),
        (f"sample_id,x,X\n{ROWS}", "m.csv: column 'X' appears twice; rename one of the two"),
        (f"sample_id,Class\n{ROWS}", "m.csv: column 'Class' is one that every run has; rename or delete it"),
        (f"sample_id,difficulty\n{ROWS}", "m.csv: column 'difficulty' is one that every run has"),
        (f"sample_id,\n{ROWS}", "m.csv: column 2 has no name; expected a name of at most 256 letters, no comma"),
        (f'sample_id,"x,y"\n{ROWS}', "m.csv: column 2 is called 'x,y'; expected a name"),
        ("sample_id,x\na/1.png\n", "m.csv line 2: 1 cells; expected 2, as in the header"),
        (f"sample_id,x\n{ROWS}a/1.png,4\n", "m.csv line 5: 'a/1.png' is named twice; expected one row"),
        (f"sample_id,x\n{ROWS[:20]}", "m.csv: 'b/3.png' has no row (1 of 3 samples have none); expected one for each"),
        (f"sample_id,x\n{ROWS}/etc/passwd,4\n", "m.csv line 5: '/etc/passwd' points outside the data set"),
        (f"sample_id,x\na/1.png,{'y' * 257}\n", f"m.csv line 2: a cell of 257 characters, {'y' * 40!r}…; expected"),
        ("sample_id," + ",".join(f"c{n}" for n in range(COLUMNS)) + "\n", "m.csv: 65 columns; expected one that names"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.csv: not a readable CSV of metadata \(.*\); check --metadata"):
        read_metadata(tmp_path / "none.csv", IDS, "val", True)


# In the run's folder


@pytest.fixture
def kept(tmp_path: Path) -> Run:
    run = make(tmp_path / "run", {"vit": {"clean": [1, 0, 1, 1]}}, arguments={"data_dir": "val"})
    keep_metadata(run, table(tmp_path / "m.csv", {"camera": ["a", "b", "a", ""]}))
    return run


def cells(run: Run) -> dict[str, list[Any]]:
    found = metadata_of_run(run)
    assert found is not None
    return {name: found[name].to_pylist() for name in found.column_names}


def test_another_table_takes_the_place_of_the_first(kept: Run, tmp_path: Path) -> None:
    ids = [f"{place:03d}.png" for place in range(4)]
    assert cells(kept) == {"sample_id": ids, "camera": ["a", "b", "a", ""]}
    keep_metadata(kept, table(tmp_path / "other.csv", {"lens": ["x"] * 4}))
    assert cells(kept) == {"sample_id": ids, "lens": ["x"] * 4}
    before = (kept.path / "metadata.parquet").read_bytes()
    with pytest.raises(DataError, match=r"4 samples have none"):
        keep_metadata(kept, table(tmp_path / "short.csv", {"lens": ["x"] * 3}))
    assert (kept.path / "metadata.parquet").read_bytes() == before
    (kept.path / "metadata.parquet").unlink()
    assert metadata_of_run(kept) is None and kept.slices(by="class")["n"].tolist() == [4]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))


def resealed(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        rows = pq.ParquetFile(path).read()
        path.write_bytes(parquet_bytes(change(rows).replace_schema_metadata(rows.schema.metadata)))

    return alter


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (flipped, "modified or damaged"),
        (lambda path: path.write_bytes(b"PAR1"), "metadata that cannot be used"),
        (resealed(lambda rows: rows.slice(1)), "3 rows, 0 MB; expected 4 rows"),
        (resealed(lambda rows: rows.set_column(1, "n", [range(4)])), "expected sample_id and columns of texts"),
        (resealed(lambda rows: rows.set_column(1, "n", [["y" * (CELL + 1)] * 4])), "a text of more than 256"),
        (resealed(lambda rows: rows.set_column(0, "sample_id", [list("wxyz")])), "a sample has no metadata"),
    ],
)
def test_an_altered_file_is_refused_with_a_remedy(kept: Run, alter: Callable[[Path], None], said: str) -> None:
    alter(kept.path / "metadata.parquet")
    with pytest.raises(DamagedRecord, match=rf"{re.escape(said)}.*robustkit report RUN --metadata FILE.csv"):
        kept.slices(by="camera")


def test_the_file_of_another_run_is_refused(kept: Run, tmp_path: Path) -> None:
    other = make(tmp_path / "other", {"vit": {"clean": [1, 0, 1, 1]}}, deciding={"seed": 1})
    shutil.copyfile(kept.path / "metadata.parquet", other.path / "metadata.parquet")
    with pytest.raises(DamagedRecord, match="a run with other samples, other shards or another card"):
        other.slices(by="camera")


def test_an_unfinished_run_has_no_metadata_yet(kept: Run, tmp_path: Path) -> None:
    next(kept.path.glob("records/vit/clean/*.parquet")).unlink()
    (kept.path / "metadata.parquet").unlink()
    with pytest.raises(RunError, match="no record names all samples yet; complete the run"):
        keep_metadata(kept, tmp_path / "m.csv")


# Of an audit


def sheet_of(place: Path, path: Path) -> Path:
    images = sorted(each.relative_to(place / "images").as_posix() for each in place.glob("images/*/*.png"))
    return table(path, {"camera": [f"c{n % 3}" for n in range(len(images))]}, images)


@pytest.mark.usefixtures("pageless", "unexamined")
def test_audits_and_parts_keep_it(tmp_path: Path) -> None:
    place = small_audit.furnish(tmp_path)
    sheet = sheet_of(place, tmp_path / "m.csv")
    some = {"attacks": "fgsm", "setup_check": False, "shard_size": 8}
    whole = small_audit.audit(place, tmp_path / "whole", metadata=sheet, **some)
    data = (whole.path / "metadata.parquet").read_bytes()
    assert whole.slices(by="camera", condition="clean")["n"].tolist() == [10, 10, 10]
    small_audit.audit(place, tmp_path / "whole", **some | {"attacks": "fgsm,pgd(steps=1)"})
    assert (whole.path / "metadata.parquet").read_bytes() == data  # more conditions, and no table
    parts = [
        small_audit.audit(place, tmp_path / f"part{n}", metadata=sheet if n == 1 else None, part=f"{n}/2", **some)
        for n in (1, 2)
    ]
    merged = robustkit.merge([part.path for part in parts], tmp_path / "merged")
    assert (merged.path / "metadata.parquet").read_bytes() == data
    few = small_audit.audit(place, tmp_path / "few", metadata=sheet, limit=6, **some)
    assert few.slices(by="camera", condition="clean")["n"].sum() == 6
    with pytest.raises(DataError, match="named twice"):
        small_audit.audit(place, tmp_path / "bad", metadata=_doubled(sheet, tmp_path / "twice.csv"), **some)
    assert not (tmp_path / "bad" / "records").exists()


def _doubled(sheet: Path, path: Path) -> Path:
    lines = sheet.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1], ""]))
    return path


def test_predictions_keep_it(tmp_path: Path) -> None:
    rows = "".join(f"s{n},{n % 2},{n % 3 % 2}\n" for n in range(12))
    (tmp_path / "theirs.csv").write_text(f"sample_id,label,prediction\n{rows}")
    sheet = table(tmp_path / "m.csv", {"camera": ["x", "y"] * 6}, [f"s{n}" for n in range(12)])
    file = f"predictions:{tmp_path / 'theirs.csv'}"
    run = robustkit.audit([file], out=tmp_path / "run", metadata=sheet, model={"num_classes": 2})
    found = run.slices(by="camera")
    assert found["slice"].tolist() == ["camera = x", "camera = y"] and found["n"].tolist() == [6, 6]
    right = [n % 2 == n % 3 % 2 for n in range(12)]
    assert found["value"].tolist() == [sum(right[::2]) / 6, sum(right[1::2]) / 6]


def test_two_parts_with_other_tables_are_merged_with_the_first(kept: Run, tmp_path: Path) -> None:
    other = Run(shutil.copytree(kept.path, tmp_path / "copy"))
    write_metadata(other, SampleMetadata([f"{n:03d}.png" for n in range(4)], {"camera": ["z"] * 4}))
    merged = robustkit.merge([kept.path, other.path], tmp_path / "merged")
    assert cells(merged)["camera"] == ["a", "b", "a", ""]
    flipped(other.path / "metadata.parquet")
    with pytest.raises(DamagedRecord, match="modified or damaged"):
        robustkit.merge([kept.path, other.path], tmp_path / "again")
