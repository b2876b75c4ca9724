"""One rule says which output a name of the data means; what may mean two is refused or flagged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from manifests import write_plain
from places import SHARED
from row_runs import make_run, row
from timm.data.readers.reader_image_folder import find_images_and_targets
from torchvision.datasets import ImageFolder

from robustkit.common.finding import Finding
from robustkit.data.class_names import CIFAR10, STL10, synsets, timm_list
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.images import encode_png
from robustkit.errors import DataError
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.results.survey import write_summary

PIXEL = encode_png(np.zeros((2, 2, 3), np.uint8))


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PIXEL)
    return root


def folders(root: Path, *names: str) -> Path:
    return tree(root, *(f"{name}/1.png" for name in names))


def by_name(dataset: Dataset) -> dict[str, int]:
    return {sample.id.partition("/")[0]: sample.label for sample in dataset.samples}


# torchvision's order and timm's


@pytest.mark.parametrize(
    "names",
    [
        [f"c{i}" for i in range(1, 13)],
        ["Arrow", "cross", "Disc", "ring"],
        ["1 cat", "2 dog", "10 bird"],
        ["v1.9", "v1.10"],
        ["0", "1", "2", "10"],
        ["Zebra", "ant"],
    ],
)
def test_folders_that_two_loaders_sort_otherwise_are_refused_until_one_is_named(
    tmp_path: Path, names: list[str]
) -> None:
    root = folders(tmp_path, *names)
    torchvision, timm = ImageFolder(root).class_to_idx, find_images_and_targets(str(root))[1]
    assert torchvision != timm
    with pytest.raises(
        DataError,
        match=r"sorted order .*: torchvision uses the former, timm the latter; choose one with",
    ):
        open_dataset(root, num_classes=len(names))
    for layout, expected in (("folders", torchvision), ("folders-timm", timm)):
        found = open_dataset(root, num_classes=len(names), layout=layout)
        assert by_name(found) == expected and found.layout == layout and not assumed(found)
    own = names[::-1]  # the checkpoint's own names decide, whatever the order
    for layout in (None, "folders", "folders-timm"):
        found = open_dataset(root, num_classes=len(names), class_names=own, layout=layout)
        assert by_name(found) == {name: own.index(name) for name in names}
    without = open_dataset(root)  # no model, whose outputs could be meant
    assert by_name(without) == torchvision and any("timm the latter; sorted here" in line for line in without.notes)


def assumed(dataset: Dataset) -> list[Finding]:
    """Return the findings on the order among the notes."""
    found = [finding for note in dataset.notes if (finding := Finding.parse(note))]
    assert all(each.text.startswith("the order of classes was assumed: ") for each in found)
    return [each for each in found if each.code == "labels/order-assumed"]


@pytest.mark.parametrize("names", [["a", "b"], ["c01", "c02", "c10"], ["dog", "dog-2"], ["n01440764", "n02099601"]])
def test_folders_that_both_sort_alike_need_no_word(tmp_path: Path, names: list[str]) -> None:
    root = folders(tmp_path, *names)
    expected = ImageFolder(root).class_to_idx
    assert expected == find_images_and_targets(str(root))[1]
    found = open_dataset(root, num_classes=len(names))
    assert by_name(found) == expected and not assumed(found)


# well-known lists in other words


OTHER_WORDS = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.parametrize(
    "words",
    [
        OTHER_WORDS,
        tuple(word.upper() for word in OTHER_WORDS),
        ("Aeroplanes", "Automobiles", "birds", "cats", "deer", "dogs", "frogs", "horses", "boats", "lorry"),
    ],
)
def test_cifars_classes_in_other_words_keep_cifars_order_and_a_finding(tmp_path: Path, words: tuple[str, ...]) -> None:
    root = folders(tmp_path / "set", *words)
    found = open_dataset(root, num_classes=10)
    assert by_name(found) == {word: place for place, word in enumerate(words)}
    assert found.class_names == CIFAR10 and "--layout folders" in assumed(found)[0].text
    assert by_name(open_dataset(root, num_classes=10, layout="folders")) == ImageFolder(root).class_to_idx
    named = open_dataset(root, num_classes=10, class_names=CIFAR10)
    assert by_name(named) == by_name(found) and not assumed(named)


def test_lists_that_are_nearly_or_doubly_met_are_flagged(tmp_path: Path) -> None:
    exact = folders(tmp_path / "exact", *CIFAR10)
    assert not assumed(open_dataset(exact, num_classes=10))
    stl = open_dataset(folders(tmp_path / "stl", *STL10), num_classes=10)
    assert by_name(stl) == {name: place for place, name in enumerate(STL10)} and not assumed(stl)
    nearly = ("flier", *OTHER_WORDS[1:])
    found = open_dataset(folders(tmp_path / "nearly", *nearly), num_classes=10)
    assert "9 of 10 are classes of CIFAR-10, which has a different order and lacks flier" in assumed(found)[0].text
    part = open_dataset(folders(tmp_path / "part", "bird", "truck"), num_classes=10)  # 2 and 9, or 1 and 9
    assert by_name(part) == {"bird": 2, "truck": 9} and "STL-10's is also possible" in assumed(part)[0].text
    words = ["goldfish", "tench", "great_white_shark"]  # of ImageNet-1k, whose order is none of letters
    some = open_dataset(folders(tmp_path / "words", *words), num_classes=1000)
    assert by_name(some) == {"tench": 0, "goldfish": 1, "great_white_shark": 2}


def test_a_finding_on_the_order_reaches_every_figure_and_the_gate(tmp_path: Path) -> None:
    finding = assumed(open_dataset(folders(tmp_path / "set", *OTHER_WORDS), num_classes=10))[0]
    run = make_run(tmp_path / "run", {"clean": [row(0, True), row(1, False)]})
    manifest = run.manifest.to_plain()
    manifest["data"]["notes"] = [str(finding)]
    write_plain(run, manifest)
    assert all(finding in found.findings for found in write_summary(run))
    assert not judge(parse_policy("[[rule]]\nrequire = 'no findings'\n", "p"), run).passed


# names of the checkpoint


def test_a_name_that_the_checkpoint_has_twice_is_refused(tmp_path: Path) -> None:
    names = ["crane", "dog", "crane"]
    root = folders(tmp_path / "set", "crane", "dog")
    with pytest.raises(DataError, match=r"'crane' may be crane \(0\), crane \(2\) of the model"):
        open_dataset(root, num_classes=3, class_names=names)
    assert by_name(open_dataset(folders(tmp_path / "one", "dog"), class_names=names)) == {"dog": 1}
    table = tmp_path / "t.csv"
    table.write_text("filename,label\ndog/1.png,dog\ncrane/1.png,crane\n")
    with pytest.raises(DataError, match=r"t\.csv line 3: class name 'crane' may be"):
        open_dataset(root, labels_csv=table, class_names=names)
    with pytest.raises(DataError, match=r"'Maillots' may be maillot, maillot, tank suit of the model"):
        open_dataset(folders(tmp_path / "more", "Maillots"), class_names=["maillot", "maillot, tank suit", "c"])


def test_words_of_the_checkpoint_may_be_written_otherwise(tmp_path: Path) -> None:
    names = ["tench, Tinca tinca", "great white shark, white shark", "automobile", "café"]
    root = folders(tmp_path, "tench", "White-Shark", "cars", "cafe\u0301")
    found = open_dataset(root, num_classes=4, class_names=names)
    assert by_name(found) == {"tench": 0, "White-Shark": 1, "cars": 2, "cafe\u0301": 3}
    numbers = [f"LABEL_{place}" for place in range(4)]  # which say nothing
    assert by_name(open_dataset(root, num_classes=4, class_names=numbers, layout="folders"))["tench"] == 3


# wnids, and the layouts of ImageNet


def test_wnids_are_for_models_of_imagenet_alone(tmp_path: Path) -> None:
    wnids = list(synsets()[10:16])
    root = folders(tmp_path / "set", *wnids)
    table = tmp_path / "t.csv"
    table.write_text("filename,wnid\n" + "".join(f"{wnid}/1.png,{wnid}\n" for wnid in wnids))
    for given in ({}, {"labels_csv": table}):
        assert list(by_name(open_dataset(root, num_classes=1000, **given)).values()) == [10, 11, 12, 13, 14, 15]
        assert list(by_name(open_dataset(root, num_classes=6, **given)).values()) == [0, 1, 2, 3, 4, 5]
        for count in (100, 1001):
            with pytest.raises(DataError, match=rf"6 class .* but the model has {count} classes"):
                open_dataset(root, num_classes=count, **given)
        with pytest.raises(DataError, match=r"the checkpoint names other classes \(c0, x1, x2"):
            open_dataset(root, num_classes=1000, class_names=["c0", *(f"x{i}" for i in range(1, 1000))], **given)
    for layout in ("imagenet", "imagenet-v2", "imagenet-real"):
        with pytest.raises(DataError, match="labels of ImageNet, but the model has 1001 outputs"):
            open_dataset(tree(tmp_path / layout, "0/ILSVRC2012_val_00000002.JPEG"), layout=layout, num_classes=1001)


def test_v2_and_real_give_the_outputs_of_a_wider_model(tmp_path: Path) -> None:
    wide = synsets(21843)
    v2 = open_dataset(tree(tmp_path / "v2", "7/a.png", "207/b.png"), layout="imagenet-v2", num_classes=21843)
    assert {name: wide[place] for name, place in by_name(v2).items()} == {"7": synsets()[7], "207": synsets()[207]}
    real = open_dataset(
        tree(tmp_path / "real", "ILSVRC2012_val_00000002.JPEG"), layout="imagenet-real", num_classes=21843
    )
    valid = real.samples[0].valid
    assert valid is not None
    assert [wide[place] for place in valid] == [synsets()[795], synsets()[970]][::-1]
    assert len(timm_list("imagenet21k_goog_synsets.txt")) == len(real.class_names)


# CSV


def table_of(root: Path, *labels: str, header: str = "filename,label") -> Path:
    table = root / "t.csv"
    table.write_text(header + "\n" + "".join(f"{i:02}.png,{label}\n" for i, label in enumerate(labels)), "utf-8")
    return table


SPELLINGS = ("{}.0", "+{}", "{}.", "{}e+00", "{}.000", "0{}", " {} ", "{}.0e0")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_numbers_are_numbers_however_they_are_written(tmp_path: Path, spelling: str) -> None:
    root = tree(tmp_path / "set", *(f"{i:02}.png" for i in range(12)))
    table = table_of(tmp_path, *(spelling.format(i) for i in range(12)))
    for count in (12, None):
        found = open_dataset(root, labels_csv=table, num_classes=count)
        assert [sample.label for sample in found.samples] == list(range(12))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("", r"line 3: the label is missing \(''\)"),
        ("nan", r"line 3: the label is missing \('nan'\)"),
        ("NA", "line 3: the label is missing"),
        ("-1", "line 3: label '-1' is negative"),
        ("-0.5", "line 3: label '-0.5' is negative"),
        ("2.5", "line 3: label '2.5'; expected a whole number"),
        ('"3,0"', "line 3: label '3,0'; expected a whole number"),
        ("1_0", "line 3: label '1_0'; expected a whole number"),
        ("0x1", "line 3: label '0x1'; expected a whole number"),
        ("٣", "line 3: label '٣'; expected a whole number"),
        ("inf", "line 3: label 'inf'; expected a whole number"),
        ("cat", "line 3: label 'cat' is a name, but t.csv line 2 has the number 1"),
        ("2", "line 3: label '2' is not one of the 2 classes"),
    ],
)
def test_a_label_that_is_no_index_is_refused_with_its_line(tmp_path: Path, label: str, message: str) -> None:
    root = tree(tmp_path / "set", "00.png", "01.png")
    with pytest.raises(DataError, match=message):
        open_dataset(root, labels_csv=table_of(tmp_path, "1", label), num_classes=2)


@pytest.mark.parametrize(
    ("header", "rows", "expected"),
    [
        ("filename,label,class_name", ("1,dog", "0,cat"), [1, 0]),
        ("filename,label,class_name", ("1,cat", "0,dog"), [1, 0]),  # names of no checkpoint only go along
        (
            "filename,label,class_name",
            ("1,cat", "0,cat"),
            "line 3: label '0' and class_name 'cat' contradict each other",
        ),
        ("filename,label,label", ("1,1", "0,1"), "line 3: label '0' and label '1' contradict each other"),
        ("filename,class,target", ("0,1", "1,0"), "line 2: class '0' and target '1' contradict each other"),
        ("filename,index,label", ("0,1", "1,1"), [1, 1]),  # the index of a row, as pandas writes it
        ("filename,label,wnid", ("1,n01443537", "0,n01440764"), [1, 0]),
        (
            "filename,label,wnid",
            ("2,n01443537", "1,n01440764"),
            "line 2: label '2' and wnid 'n01443537' contradict each other",
        ),
    ],
)
def test_columns_of_labels_must_agree(
    tmp_path: Path, header: str, rows: tuple[str, ...], expected: list[int] | str
) -> None:
    root, table = tree(tmp_path / "set", "00.png", "01.png"), table_of(tmp_path, *rows, header=header)
    count = 1000 if "wnid" in header else 2
    if isinstance(expected, list):
        found = open_dataset(root, labels_csv=table, num_classes=count)
        assert [sample.label for sample in found.samples] == expected
        return
    with pytest.raises(DataError, match=expected):
        open_dataset(root, labels_csv=table, num_classes=count)


def test_a_number_that_is_index_and_name_is_refused_unless_the_column_says_which(tmp_path: Path) -> None:
    root, names = tree(tmp_path / "set", "00.png"), [str(i) for i in sorted(map(str, range(12)))]
    with pytest.raises(DataError, match="label '10' is an index, and also the checkpoint's name of class 2"):
        open_dataset(root, labels_csv=table_of(tmp_path, "10"), class_names=names)
    for column, expected in (("class_index", 10), ("class_name", 2)):
        table = table_of(tmp_path, "10", header=f"filename,{column}")
        assert open_dataset(root, labels_csv=table, class_names=names).samples[0].label == expected


def test_names_of_a_csv_follow_the_rule_of_folders(tmp_path: Path) -> None:
    root = tree(tmp_path / "set", *(f"{i:02}.png" for i in range(12)))
    with pytest.raises(DataError, match=r"class names, whose sorted order .* give labels as indices"):
        open_dataset(root, labels_csv=table_of(tmp_path, *(f"c{i}" for i in range(12))), num_classes=12)
    ten = open_dataset(root, labels_csv=table_of(tmp_path, *OTHER_WORDS), num_classes=10)
    assert [sample.label for sample in ten.samples] == list(range(10))
    assert "give labels as indices" in assumed(ten)[0].text


# what is data


def test_what_systems_leave_is_no_data(tmp_path: Path) -> None:
    junk = ("@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information", "#recycle", "a/@eaDir/x", "a/.thumbs")
    root = tree(tmp_path, "a/1.png", "b/2.png", *(f"{name}/1.png" for name in junk))
    assert by_name(open_dataset(root, num_classes=2)) == {"a": 0, "b": 1}
    assert len(open_dataset(root, num_classes=2)) == 2


def test_images_of_another_suffix_are_read_or_counted(tmp_path: Path) -> None:
    root = tree(tmp_path, "a/1.jfif", "a/2", "b/3.JPE", "b/4.png", "b/5.bak", "b/6.PNG~", "a/7.heic")
    (root / "a" / "notes").write_text("P5 is a format")
    (root / "a" / "labels.txt").write_text("words")
    found = open_dataset(root, num_classes=2)
    assert {sample.id for sample in found.samples} == {"a/1.jfif", "a/2", "b/3.JPE", "b/4.png"}
    line = "left out 3 images of a kind or suffix other than .jpeg, .jpg, .png …: "
    assert [note for note in found.notes if note.startswith(line)], found.notes


def test_a_folder_of_names_that_cannot_be_printed_says_so(tmp_path: Path) -> None:
    root = tree(tmp_path, "a\u00a0b/1.png", "a/2\u00a0.png")
    with pytest.raises(DataError, match="no readable images in it; left out 2 images whose names are not print"):
        open_dataset(root)


@pytest.mark.shared
@pytest.mark.skipif(not (SHARED / "data" / "cifar10-test.zip").is_file(), reason="needs the real data")
def test_real_sets_raise_no_finding() -> None:
    for place, count in ((SHARED / "data" / "cifar10-test.zip", 10), (SHARED / "data" / "imagenet-val" / "val", 1000)):
        assert not assumed(open_dataset(place, num_classes=count))
