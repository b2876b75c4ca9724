"""The reader of .ts files: values, ids and digests of sound ones, one line for the others."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from places import SHARED

from robustkit.errors import BadImageError, DataError
from robustkit.slices.series.files import SeriesSource, open_series

HEADER = "@problemName x\n@timeStamps false\n@dimensions 2\n@classLabel true up down\n@data\n"
FILE = """\
    # a comment
    @problemName byHand

    @TIMESTAMPS False
    @missing true
    @univariate FALSE
    @targetlabel False
    @dimensions 2
    @equalLength false
    @CLASSLABEL TRUE up down
    # another comment
    @data
    1,2.5,-3e1:0,0,0:up
    # and one between cases
    ?,1,?,3,?:5,?,?,8,NaN:down

    1:?:up
"""


def source_of(path: Path, **model: object) -> SeriesSource:
    source = open_series(path, **model).source  # type: ignore[arg-type]
    assert isinstance(source, SeriesSource)
    return source


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "byHand_TEST.ts").write_bytes(b"\xef\xbb\xbf" + dedent(FILE).encode())
    return tmp_path / "byHand_TEST.ts"


def test_a_file_by_hand(written: Path) -> None:
    dataset = open_series(written)
    source = source_of(written)
    assert [(sample.id, sample.label) for sample in dataset.samples] == [
        ("byHand_TEST/00000", 0),
        ("byHand_TEST/00001", 1),
        ("byHand_TEST/00002", 0),
    ]
    assert dataset.class_names == ("up", "down") and dataset.name == "byHand_TEST"
    assert dataset.notes[0] == "layout ts: 3 series of 2 channels and 1 to 5 steps, 2 classes"
    assert dataset.notes[1] == "7 values are missing; each is interpolated linearly over time"
    first, second = (source.series(sample) for sample in dataset.samples[:2])
    assert first.dtype == np.float32 and first.tolist() == [[1, 2.5, -30], [0, 0, 0]]
    assert second.tolist() == [[1, 1, 2, 3, 3], [5, 6, 7, 8, 8]]
    with pytest.raises(BadImageError, match="byHand_TEST/00002: channel 2 has no value; all 1 are missing"):
        source.series(dataset.samples[2])


def test_labels_are_those_of_the_model_and_the_digest_is_of_values(written: Path, tmp_path: Path) -> None:
    turned = open_series(written, ("down", "side", "up"), 3)
    assert [sample.label for sample in turned.samples] == [2, 0, 2] and turned.class_names == ("down", "side", "up")
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / written.name
    text = dedent(FILE)
    again.write_text(text.replace("2.5", "2.50").replace("# a comment\n", ""))
    assert open_series(again).digest() == open_series(written).digest()
    for change in (("2.5", "2.6"), ("-3e1:0,0,0:up", "-3e1:0,0,0:down"), ("?,1,?", "0,1,?"), ("1:?:up", "1,?:?,1:up")):
        assert change[0] in text
        again.write_text(text.replace(*change))
        assert open_series(again).digest() != open_series(written).digest()


def test_the_digest_knows_the_shape(tmp_path: Path) -> None:
    digests = set()
    for channels in ("1,2,3,4", "1,2:3,4", "1:2:3:4"):
        (tmp_path / "shape.ts").write_text(f"@classLabel true up\n@data\n{channels}:up")
        digests.add(open_series(tmp_path / "shape.ts").digest())
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HEADER + "1,2:3:up", "line 6 has channels of 1 and 2 steps; expected the same"),
        (HEADER + "1,2:up", "line 6 has 1 channels and a class; expected 2 channels"),
        (HEADER + "1,2:1,2:sideways", "line 6: unknown class 'sideways'; known: down, up; check @classLabel"),
        (HEADER + "1,x:1,2:up", "line 6 has the value 'x'; expected numbers of float32, and . for missing ones"),
        (HEADER + "1,1e39:1,2:up", "line 6 has the value '1e39'; expected numbers"),
        (HEADER + "1,inf:1,2:up", "line 6 has the value 'inf'; expected numbers"),
        (HEADER + "1,:1,2:up", "line 6 has the value ''; expected numbers"),
        (HEADER, "no case after @data; fetch the file again"),
        ("", "empty; fetch the file again"),
        (
            b"\x89PNG\r\n\x1a\n\xff\xfe",
            r"not a .ts file that can be read \(not text\); expected one of the UEA archive",
        ),
        (b"@data\0\0", r"not a .ts file that can be read \(not text\)"),
        ("1,2:1,2:up", "line 1 begins with '1,2:1,2:up'; expected a header such as @classLabel"),
        ("@problemName x\n@classLabel true a", "no @data; expected a .ts file of the UEA archive"),
        ("@data\n1,2:a", "no classes; expected a line such as @classLabel true 1 2 3 before @data"),
        ("@classLabels true a\n@data", "line 1: unknown header 'classlabels'; did you mean 'classlabel'"),
        ("@timeStamps true\n@data", "@timestamps true; expected series without, and one class a case"),
        ("@dimensions two\n@data", "@dimensions two; expected the number of channels"),
        ("@missing yes\n@classLabel true a\n@data", "line 1: @missing yes; expected true or false"),
        ("@classLabel a b\n@data", "line 1: @classlabel a b; expected true or false"),
        (HEADER + "1_0,2:1,2:up", "line 6 has the value '1_0'; expected numbers of float32"),
        (HEADER + "1,2:1,\u0662:up", "line 6 has the value '\u0662'; expected numbers of float32"),
        ("@classLabel true a a\n@data", "@classLabel names a class twice; expected each once"),
    ],
)
def test_what_is_no_sound_file_is_refused_in_one_line(content: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.ts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"odd\.ts: {said}") as refused:
        open_series(path)
    assert "\n" not in str(refused.value)


def test_a_model_of_other_classes_and_a_folder_are_refused(written: Path) -> None:
    with pytest.raises(DataError, match="the model does not know its classes down; it knows up, left…; give a checkpo"):
        open_series(written, ("up", "left"))
    with pytest.raises(DataError, match="it has 2 classes, and the model 5; give a checkpoint of this data set"):
        open_series(written, None, 5)
    with pytest.raises(DataError, match=r"not a .ts file that can be read \(Is a directory\)"):
        open_series(written.parent)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real data of ../shared")
def test_the_archives_own_files() -> None:
    """Sizes as the archive states them; values were once compared with aeon 1.6, which gives the same."""
    folder = SHARED / "data" / "series"
    found = {}
    for name in ("JapaneseVowels_TRAIN", "JapaneseVowels_TEST", "Handwriting_TRAIN"):
        dataset = open_series(folder / f"{name}.ts")
        found[name] = dataset.notes[:1]
        assert any("order" in note for note in dataset.notes) == (name == "Handwriting_TRAIN")  # 10.0 < 2.0 as text
    assert found == {
        "JapaneseVowels_TRAIN": ("layout ts: 270 series of 12 channels and 7 to 26 steps, 9 classes",),
        "JapaneseVowels_TEST": ("layout ts: 370 series of 12 channels and 7 to 29 steps, 9 classes",),
        "Handwriting_TRAIN": ("layout ts: 150 series of 3 channels and 152 steps, 26 classes",),
    }
