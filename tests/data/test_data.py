"""Data sets: labels proved by names, samples chosen by hash, and one clear line for whatever is not a data set."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from figures import said_of
from manifests import write_plain
from PIL import Image
from places import SHARED
from row_runs import make_run, row

from robustkit.common.finding import Finding
from robustkit.data.class_names import timm_list
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.images import encode_png, font
from robustkit.data.layouts import LAYOUTS, RULES, Sample
from robustkit.errors import BadImageError, DataError
from robustkit.evaluations.presenting import raised_once
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.results.pairing import Side, flagged_results
from robustkit.results.survey import write_summary

DATA = SHARED / "data"
needs_shared = pytest.mark.skipif(not DATA.is_dir(), reason="needs the real data next to the checkout")


def png(value: int = 0) -> bytes:
    return encode_png(np.full((2, 2, 3), value % 256, np.uint8))


def tree(root: Path, *names: str) -> Path:
    """Files under `root`, each another picture; a name that ends in / is a folder."""
    for value, name in enumerate(names):
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(value))
    return root


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for value, name in enumerate(names):
            archive.writestr(name, png(value))
    return path


def labels(dataset: Dataset) -> dict[str, int]:
    return {sample.id: sample.label for sample in dataset.samples}


# --- layouts -------------------------------------------------------------------------------------------------------


def test_partial_wnid_folders_map_to_their_imagenet_index(tmp_path: Path) -> None:
    root = tree(tmp_path, "n15075141/b.JPEG", "n01440764/a.JPEG", "n02099601/c.jpg")
    dataset = open_dataset(root)
    assert dataset.layout == "imagenet"
    assert labels(dataset) == {"n01440764/a.JPEG": 0, "n02099601/c.jpg": 207, "n15075141/b.JPEG": 999}
    assert dataset.class_names[207] == "golden retriever"
    assert "3 of 1000 classes have images" in dataset.notes
    assert labels(open_dataset(root, num_classes=21843)) != labels(dataset)
    assert list(labels(open_dataset(root, num_classes=3)).values()) == [0, 1, 2]  # a model of just these classes


def test_unknown_wnids_are_named(tmp_path: Path) -> None:
    root = tree(tmp_path, "n01440764/a.png", "n99999999/b.png")
    with pytest.raises(DataError, match=r"1 folders are not wnids of the model's 1000 classes: n99999999"):
        open_dataset(root, num_classes=1000)


@pytest.mark.parametrize(("layout", "first"), [("imagenet-a", 6), ("imagenet-r", 1)])
def test_imagenet_a_and_r_let_only_their_200_logits_compete(tmp_path: Path, layout: str, first: int) -> None:
    wnid = {"imagenet-a": "n01498041", "imagenet-r": "n01443537"}[layout]  # stingray 6, goldfish 1
    dataset = open_dataset(tree(tmp_path / "set", f"{wnid}/a.png"), layout=layout, num_classes=1000)
    assert dataset.samples[0].label == first
    assert dataset.valid_labels is not None
    assert len(dataset.valid_labels) == 200
    assert first in dataset.valid_labels
    assert len(dataset.class_names) == 1000
    with pytest.raises(DataError, match=r"not among the 200 classes of ImageNet-.: n01440764"):
        open_dataset(tree(tmp_path / "other", "n01440764/a.png"), layout=layout)


@pytest.mark.parametrize("letter", ["a", "r"])
def test_where_all_logits_compete_for_the_classes_of_imagenet_a_or_r_every_figure_says_so(
    tmp_path: Path, letter: str
) -> None:
    images = [f"{wnid}/{wnid}.png" for wnid in timm_list(f"imagenet_{letter}_synsets.txt")]
    root = tree(tmp_path / "set", *images)
    dataset = open_dataset(root, num_classes=1000)
    reported = f"these are the 200 classes of ImageNet-{letter.upper()}, and all "
    text = f"{reported}1000 classes compete; in published figures only the 200 do: --layout imagenet-{letter}"
    finding = Finding("labels/all-classes-compete", text)
    assert str(finding) in dataset.notes and dataset.valid_labels is None
    if letter == "r":  # wider models know not all of the others; that layout is not for them
        notes = open_dataset(root, num_classes=21843).notes
        without = f"{reported}21843 classes compete; in published figures only the 200 do"
        assert f"{without} [{finding.code}]" in notes
    named = open_dataset(root, layout=f"imagenet-{letter}", num_classes=1000)
    assert not any("all 1000" in note for note in named.notes) and "only these 200 logits compete" in named.notes
    fog = {f"corruption(fog,severity={severity})": [row(0, True), row(1, False)] for severity in range(1, 6)}
    run = make_run(tmp_path / "run", {"clean": [row(0, True), row(1, False)], **fog})
    assert not [text for found in write_summary(run) for text in said_of(found) if "compete" in text]
    manifest = run.manifest.to_plain()
    manifest["data"]["notes"] = list(dataset.notes)
    write_plain(run, manifest)
    rows = write_summary(run)
    assert {found.metric for found in rows} >= {"top1", "nll", "mean_error"}
    assert all(finding in found.findings for found in rows)
    side = Side(run, "vit <b>&")
    found = raised_once(flagged_results(side, side, {("clean", "top1")}), {"vit <b>&": "vit <b>&"})
    assert [each.line for each in found] == [f"vit <b>&, clean: {finding}"]
    policy = parse_policy("[[rule]]\nrequire = 'no findings'\n", "p")
    assert not judge(policy, run).passed


def test_numbered_folders_are_labels_for_1000_classes_and_refused_where_that_is_unclear(tmp_path: Path) -> None:
    root = tree(tmp_path, *(f"{i}/{i}.png" for i in (0, 1, 2, 10)))
    assert labels(open_dataset(root, num_classes=1000)) == {"0/0.png": 0, "1/1.png": 1, "2/2.png": 2, "10/10.png": 10}
    with pytest.raises(
        DataError,
        match=r"sorted order \(0, 1, 10 and 1 more\) differs from their case-insensitive "
        r"numeric order",
    ):
        open_dataset(root, num_classes=4)
    with pytest.raises(DataError, match=r"imagenet-v2 expects folders '0' … '999', found 1000"):
        open_dataset(tree(tmp_path / "more", "1000/a.png"), layout="imagenet-v2")


def test_real_labels_leave_out_images_without_any(tmp_path: Path) -> None:
    names = [f"n01440764/ILSVRC2012_val_{i:08d}.JPEG" for i in (1, 2, 3)]
    root = tree(tmp_path / "val", *names)
    table = tmp_path / "real.json"
    table.write_text(json.dumps([[5, 0], [], [7]]))
    dataset = open_dataset(root, real_labels=table)
    assert dataset.samples == (Sample(names[0], 0, (5, 0)), Sample(names[2], 0, (7,)))
    assert "ReaL: 2 images with valid labels; 1 without any left out" in dataset.notes
    packaged = open_dataset(root, layout="imagenet-real")
    assert packaged.samples == (Sample(names[1], 0, (970, 795)), Sample(names[2], 0, (230, 231)))  # the first has none
    tree(root, "n01440764/other.JPEG")
    with pytest.raises(DataError, match=r"'n01440764/other.JPEG' is not ILSVRC2012_val_00000001 … 00000003"):
        open_dataset(root, real_labels=table)


def test_class_folders_follow_the_models_own_names(tmp_path: Path) -> None:
    root = tree(tmp_path, "Dog/a.png", "bird/b.png")
    names = ("ant", "bird", "cat", "dog")
    assert labels(open_dataset(root, num_classes=4, class_names=names)) == {"Dog/a.png": 3, "bird/b.png": 1}
    with pytest.raises(DataError, match="class folders that the model does not name: Dog"):
        open_dataset(root, class_names=names[:3])
    with pytest.raises(
        DataError,
        match=r"2 class folders \(Dog, bird\), but the model has 4 classes; the labels "
        r"would",
    ):
        open_dataset(root, num_classes=4)
    with pytest.raises(DataError, match=r"is the name of a class of the checkpoint \(x, y\)"):
        open_dataset(root, class_names=("x", "y"))


def test_folders_that_differ_in_case_alone_keep_their_own_labels(tmp_path: Path) -> None:
    """Such as the letters of EMNIST."""
    root = tree(tmp_path / "letters", "A/1.png", "a/1.png", "b/1.png")
    assert labels(open_dataset(root, class_names=("A", "a", "B"))) == {"A/1.png": 0, "a/1.png": 1, "b/1.png": 2}
    with pytest.raises(DataError, match=r"class folder 'STRASSE' may be straße, strasse of the model"):
        open_dataset(tree(tmp_path / "any", "STRASSE/1.png"), class_names=("straße", "strasse"))
    with pytest.raises(DataError, match="class folders 'A' and 'a' are one class of the model; merge them"):
        open_dataset(root, class_names=("A", "b", "c"))


def test_a_zip_says_which_images_it_leaves_out_as_a_folder_does(tmp_path: Path) -> None:
    names = ("cat/a.png", "cat/b\u00a01.png", "dog/a.png")
    root = tree(tmp_path / "set", *names)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name in names:
            archive.write(root / name, name)
    for place in (root, tmp_path / "set.zip"):
        dataset = open_dataset(place)
        assert len(dataset.samples) == 2
        left_out = "left out 1 images whose names are not printable; rename them"
        assert str(Finding("data/unprintable-names", left_out)) in dataset.notes


def test_some_cifar_folders_keep_cifars_labels(tmp_path: Path) -> None:
    root = tree(tmp_path, "truck/a.png", "cat/b.png")
    assert labels(open_dataset(root, num_classes=10)) == {"cat/b.png": 3, "truck/a.png": 9}
    with pytest.raises(DataError, match="2 class folders"):
        open_dataset(root, num_classes=1000)


def test_junk_is_ignored_empty_classes_count_and_strays_are_said(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "a/1.JPG", "a/._1.JPG", "a/.hidden.png", "a/deep/2.Tiff", "b/", "c/3.webp", "c/notes.txt",
        "__MACOSX/c/3.webp", ".git/x.png", "preview.png",
    )  # fmt: skip
    dataset = open_dataset(root, num_classes=3)
    assert labels(dataset) == {"a/1.JPG": 0, "a/deep/2.Tiff": 0, "c/3.webp": 2}
    assert {"1 class folders hold no image", "left out 1 images outside the class folders"} <= set(dataset.notes)


def test_links_that_loop_end_and_linked_folders_are_read(tmp_path: Path) -> None:
    elsewhere = tree(tmp_path / "elsewhere", "1.png")
    root = tree(tmp_path / "set", "a/2.png")
    (root / "b").symlink_to(elsewhere)
    (root / "a" / "again").symlink_to(root)
    assert {"a/2.png", "b/1.png"} <= set(labels(open_dataset(root, layout="unlabelled")))


def test_a_split_is_chosen_and_single_top_folders_are_stepped_into(tmp_path: Path) -> None:
    root = tree(tmp_path, "top/train/a/1.png", "top/train/b/2.png", "top/val/a/3.png", "top/val/b/4.png")
    dataset = open_dataset(root)
    assert labels(dataset) == {"a/3.png": 0, "b/4.png": 1}
    assert dataset.read(dataset.samples[1]) == png(3)
    assert "took 'val' of the splits train, val" in dataset.notes
    assert list(labels(open_dataset(root, split="train"))) == ["a/1.png", "b/2.png"]
    with pytest.raises(DataError, match=r"no split 'test'; it holds"):
        open_dataset(root, split="test")


# --- CSV -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        "filename,label\nx/a.png,1\nb.png,0\n",
        "label;image\n1;x/a.png\n0;x/b.png\n",
        "a\t01\nb\t00\n",
        "path,class_name\nx/a.png,dog\nx/b.png,cat\n",
        "\ufefffile,wnid\r\na.png,n01443537\r\nb.png,n01440764\r\n",
    ],
    ids=["header", "semicolons", "bare-stems", "names", "wnids"],
)
def test_label_tables(tmp_path: Path, table: str) -> None:
    root = tree(tmp_path / "set", "x/a.png", "x/b.png", "x/c.png")
    (tmp_path / "t.csv").write_text(table, "utf-8")
    dataset = open_dataset(root, labels_csv=tmp_path / "t.csv")
    assert labels(dataset) == {"x/a.png": 1, "x/b.png": 0}
    assert "left out 1 images that are not in the CSV" in dataset.notes


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a.png,0\nz.png,1\n", r"t\.csv line 2: 'z\.png' names no image under"),
        ("../../etc/passwd,0\n", r"t\.csv line 1: '\.\./\.\./etc/passwd' points outside the data set"),
        ("/etc/passwd,0\n", r"points outside"),
        ("C:\\a.png,0\n", r"points outside"),
        ("same.png,0\n", r"'same\.png' names 2 images under"),
        ("a.png,0\nx/a.png,0\n", r"line 2: 'x/a\.png' is named twice"),
        ("a.png,7\n", r"label '7' is not one of the 5 classes"),
        ("a.png,n01440764\nsame.png,\n", r"'same\.png' names 2"),
        ("a.png,cat\nb.png,dog\n", r"2 class names \(cat, dog\), but the model has 5 classes"),
        ("", r"t\.csv: empty"),
        ("when,who,what\n1,2,3\n", r"columns when, who, what; expected one of filename"),
        ("file,label\na.png\n", r"line 2: 1 columns; expected a file name and a label"),
    ],
)
def test_bad_label_tables(tmp_path: Path, table: str, message: str) -> None:
    root = tree(tmp_path / "set", "x/a.png", "x/b.png", "x/same.png", "y/same.png")
    (tmp_path / "t.csv").write_text(table, "utf-8")
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(root, labels_csv=tmp_path / "t.csv", num_classes=5)
    assert "\n" not in str(caught.value)


# --- zips and CIFAR ------------------------------------------------------------------------------------------------


def test_a_zip_reads_as_its_folder_does(tmp_path: Path) -> None:
    names = ("top/cat/0.png", "top/dog/1.png", "top/dog/ü.png")
    folder = open_dataset(tree(tmp_path / "set", *names))
    archive = open_dataset(zipped(tmp_path / "set.zip", *names, "__MACOSX/top/dog/._1.png", "top/.DS_Store"))
    assert archive.samples == folder.samples
    assert archive.digest() == folder.digest()
    assert archive.image(archive.samples[0]).size == (2, 2)


@pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/evil.png", "C:/evil.png", "a\\..\\..\\evil.png"])
def test_a_zip_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="points outside the archive; the zip is refused"):
        open_dataset(zipped(tmp_path / "x.zip", "a/good.png", name))


def test_damaged_zips(tmp_path: Path) -> None:
    data = bytearray(zipped(tmp_path / "x.zip", "a/1.png", "b/2.png").read_bytes())
    data[60] ^= 255  # inside the first member's content
    (tmp_path / "damaged.zip").write_bytes(data)
    dataset = open_dataset(tmp_path / "damaged.zip")
    with pytest.raises(BadImageError, match=r"a/1\.png: cannot be read from the zip: Bad CRC"):
        dataset.read(dataset.samples[0])
    assert dataset.read(dataset.samples[1]) == png(1)

    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(DataError, match=r"text\.zip: not a readable zip file"):
        open_dataset(tmp_path / "text.zip")
    with pytest.raises(DataError, match="contains zip files, not images; unpack the outer zip first"):
        open_dataset(zipped(tmp_path / "outer.zip", "inner.zip"))
    locked = bytearray((tmp_path / "x.zip").read_bytes())
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(locked)
    with pytest.raises(DataError, match="is encrypted; decrypt the zip first"):
        open_dataset(tmp_path / "locked.zip")


def cifar(folder: Path, **content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    batch = {b"data": pixels, b"labels": [3, 0, 9], **{key.encode(): value for key, value in content.items()}}
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    return folder


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar_batches(tmp_path: Path, inner: str) -> None:
    cifar(tmp_path / inner)
    dataset = open_dataset(tmp_path, num_classes=10)
    assert labels(dataset) == {"test/00000": 3, "test/00001": 0, "test/00002": 9}
    expected = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    assert np.array_equal(np.asarray(dataset.image(dataset.samples[2])), expected[2].transpose(1, 2, 0))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_batch_file_runs_nothing(tmp_path: Path) -> None:
    cifar(tmp_path, labels=Evil(tmp_path / "ran"))
    with pytest.raises(DataError, match=r"test_batch: the pickle imports (posix|nt)\.mkdir; only plain CIFAR-10"):
        open_dataset(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": [1, 2]}, "data and labels differ in length"),
        ({"labels": [1, 2, 10]}, "a label is outside 0 … 9"),
        ({"data": None}, "not a CIFAR-10 batch file"),
    ],
)
def test_broken_batches(tmp_path: Path, content: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(cifar(tmp_path, **content))
    (tmp_path / "test_batch").write_bytes(b"r\xff\xff\xff\x7f.")  # a memo index of two thousand million
    with pytest.raises(DataError, match="not a readable pickle"):
        open_dataset(tmp_path)


# --- choosing samples ----------------------------------------------------------------------------------------------


@pytest.fixture
def uneven(tmp_path: Path) -> Dataset:
    """Classes of 1, 5 and 20 images."""
    return open_dataset(
        tree(tmp_path, *(f"{c}/{i}{c}.png" for c, n in (("a", 1), ("b", 5), ("c", 20)) for i in range(n)))
    )


def test_limit_is_balanced_nested_seeded_and_sorted(uneven: Dataset) -> None:
    parts = {n: uneven.select(limit=n, seed=1) for n in range(1, 27)}
    assert Counter(s.label for s in parts[9].samples) == {0: 1, 1: 4, 2: 4}
    assert Counter(s.label for s in parts[2].samples).most_common(1)[0][1] == 1
    for n, part in parts.items():
        assert len(part) == n
        assert list(part.samples) == sorted(part.samples, key=lambda s: s.id)
        assert n == 1 or set(parts[n - 1].samples) < set(part.samples)
    assert uneven.select(limit=9, seed=2).samples != parts[9].samples
    assert uneven.select(limit=1000).samples == uneven.samples


def test_limit_does_not_depend_on_order_or_on_other_classes(uneven: Dataset) -> None:
    backwards = replace(uneven, samples=uneven.samples[::-1])
    assert backwards.select(limit=9).samples == uneven.select(limit=9).samples
    fewer = replace(uneven, samples=tuple(s for s in uneven.samples if s.label != 1))
    kept = {s for s in uneven.select(limit=9).samples if s.label != 1}
    assert kept <= set(fewer.select(limit=9).samples)


def test_ids_by_full_id_name_or_stem(uneven: Dataset, tmp_path: Path) -> None:
    table = tmp_path / "ids.txt"
    table.write_text("c/3c.png\r\n\n4b\n0a.png\n4b\n")
    assert [s.id for s in uneven.select(ids=table).samples] == ["a/0a.png", "b/4b.png", "c/3c.png"]
    assert [s.id for s in uneven.select(ids=["0a", "1c"], limit=5).samples] == ["a/0a.png", "c/1c.png"]


def test_bad_choices(uneven: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"ids that do not identify exactly one sample of \S+: x0, x1, x2, x3, x4 and "
        r"2 more; an id",
    ):
        uneven.select(ids=[f"x{i}" for i in range(7)])
    doubled = replace(uneven, samples=(Sample("a/1.png", 0), Sample("b/1.png", 1)))
    with pytest.raises(DataError, match=r"1\.png \(2 samples\)"):
        doubled.select(ids=["1.png"])
    with pytest.raises(DataError, match="limit 0: expected 1 or more"):
        uneven.select(limit=0)
    with pytest.raises(DataError, match="not a readable list of ids"):
        uneven.select(ids=tmp_path / "none.txt")
    with pytest.raises(DataError, match="the list of ids is empty"):
        uneven.select(ids=[])


def test_the_digest_tells_content_label_id_and_selection(uneven: Dataset) -> None:
    before = uneven.digest()
    assert before == uneven.digest()
    changed = {before, uneven.select(limit=5).digest(), replace(uneven, valid_labels=(0, 1)).digest()}
    first = uneven.samples[0]
    for sample in (replace(first, label=2), replace(first, valid=(0,)), replace(first, id="b/0b.png")):
        changed.add(replace(uneven, samples=(sample, *uneven.samples[1:])).digest())
    Path(uneven.root, first.id).write_bytes(png(99))
    changed.add(uneven.digest())
    Path(uneven.root, first.id).unlink()
    changed.add(uneven.digest())
    assert len(changed) == 8


def test_other_processes_can_read(tmp_path: Path) -> None:
    dataset = open_dataset(zipped(tmp_path / "x.zip", *(f"a/{i}.png" for i in range(20))))
    expected = [dataset.read(sample) for sample in dataset.samples]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(dataset.read, dataset.samples)) == expected


# --- what is not a data set ------------------------------------------------------------------------------------------


def test_what_is_no_data_set_is_told_in_one_line(tmp_path: Path) -> None:
    flat = tree(tmp_path / "flat", "a.png", "b.png")
    good = tree(tmp_path / "good", "a/1.png", "b/2.png")
    (tmp_path / "empty").mkdir()
    for spec, options, message in (
        (tmp_path / "none", {}, r"none: no such folder or zip file"),
        (tmp_path / "empty", {}, r"empty: no images in it; expected a folder or zip of \.jpeg"),
        (flat, {}, r"flat: images but no class folders; give a CSV of labels \(--labels\), or --layout unlabelled"),
        (good, {"layout": "imagnet"}, r"unknown layout 'imagnet'; did you mean 'imagenet'\?"),
        (good, {"layout": "imagenet"}, r"2 folders are not wnids of the model's 1000 classes: a, b"),
        (good, {"layout": "csv"}, r"layout csv needs a CSV of labels"),
        (good, {"layout": "cifar10"}, r"no test_batch file"),
        ("embedded:shape", {}, r"unknown data set 'embedded:shape'; did you mean 'embedded:shapes'\?"),
        ("embedded:shapes", {"num_classes": 1000}, r"has 10 classes, but the model has 1000"),
        ("embedded:shapes", {"class_names": ("cat", "dog")}, r"but the model's classes are cat, dog"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_dataset(spec, **options)
        assert "\n" not in str(caught.value)


def test_a_file_that_vanishes_is_a_bad_image(tmp_path: Path) -> None:
    dataset = open_dataset(tree(tmp_path, "a/1.png"))
    (tmp_path / "a" / "1.png").unlink()
    with pytest.raises(BadImageError, match=r"a/1\.png: cannot be read: No such file"):
        dataset.image(dataset.samples[0])


def test_every_layout_is_described() -> None:
    assert set(RULES) | {"cifar10", "embedded"} == set(LAYOUTS)


def test_opening_and_reading_loads_no_torch() -> None:
    code = (
        "import sys; from robustkit.data import open_dataset; d = open_dataset('embedded:shapes');"
        "d.image(d.samples[0]); sys.exit('torch' in sys.modules or 'skimage' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- real data -----------------------------------------------------------------------------------------------------


@pytest.mark.shared
@needs_shared
def test_real_imagenet_folders_and_synsets_agree() -> None:
    dataset = open_dataset(DATA / "imagenet-val", num_classes=1000)
    synsets = [line.split()[0] for line in (DATA / "imagenet-val" / "synsets.txt").read_text().splitlines()]
    assert len(dataset) == 500
    assert all(synsets[sample.label] == sample.id.partition("/")[0] for sample in dataset.samples)
    assert len(dataset.select(limit=100).samples) == 100


@pytest.mark.shared
@needs_shared
def test_real_cifar_zip_and_its_first_thousand_ids() -> None:
    dataset = open_dataset(DATA / "cifar10-test.zip", num_classes=10)
    assert Counter(sample.label for sample in dataset.samples) == dict.fromkeys(range(10), 1000)
    chosen = dataset.select(ids=[f"{i:05d}" for i in range(1000)])
    assert len(chosen) == 1000
    assert Image.open(io.BytesIO(chosen.read(chosen.samples[0]))).size == (32, 32)
    assert chosen.samples[0].id.startswith("airplane/")


def test_letters_on_pictures_have_the_signs_that_tables_use() -> None:
    lacking = bytes(font(16).getmask("\ue123"))
    assert not [sign for sign in "−×ε≤≥↓∞–…" if bytes(font(16).getmask(sign)) == lacking]
