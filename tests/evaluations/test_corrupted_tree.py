"""Trees of released corrupted images: what is recognised, whose labels, which file, and what is never read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustkit.common.preprocessing import Preprocessing
from robustkit.data.images import read_image
from robustkit.data.layouts import Sample
from robustkit.errors import BadImageError, DataError
from robustkit.evaluations.corruptions.tree import CorruptedTree, is_tree, needs_resize, tree_pixels

FISH, SHARK = "n01440764", "n01484850"  # 0 and 2 of the 1000


def picture(seed: int, size: tuple[int, int] = (20, 20)) -> Image.Image:
    """An RGB image of noise; size: (width, height)."""
    shape = (size[1], size[0], 3)
    return Image.fromarray(np.random.Generator(np.random.PCG64(seed)).integers(0, 256, shape, dtype=np.uint8))


def put(path: Path, seed: int = 0) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path)
    return path.read_bytes()


def test_both_depths_of_the_released_archives_are_read(tmp_path: Path) -> None:
    deep = put(tmp_path / "blur/defocus_blur/2" / FISH / "a.JPEG", 1)
    put(tmp_path / "blur/defocus_blur/5" / FISH / "a.JPEG", 2)
    flat = put(tmp_path / "saturate/3" / FISH / "a.JPEG", 3)
    put(tmp_path / "gaussian_noise/1" / FISH / "a.JPEG", 4)
    (tmp_path / "gaussian_noise/4").mkdir()  # empty
    put(tmp_path / "gaussian_noise/6" / FISH / "a.JPEG", 5)
    for stranger in ("fogg/1", "blur/box_blur/1", ".cache/1"):
        put(tmp_path / stranger / FISH / "a.JPEG")
    tree = CorruptedTree.open(tmp_path)
    assert list(tree.present.items()) == [("gaussian_noise", (1,)), ("defocus_blur", (2, 5)), ("saturate", (3,))]
    assert tree.notes == ("left out folders that are not corruptions of the benchmark: fogg, blur/box_blur",)
    assert tree.read(f"{FISH}/a.JPEG", "defocus_blur", 2) == deep
    assert tree.read(f"{FISH}/a.JPEG", "saturate", 3) == flat
    assert is_tree(tmp_path) and is_tree(str(tmp_path / "blur"))


def test_folders_of_imagenet_c_bar_are_named_by_constants_or_by_severities(tmp_path: Path) -> None:
    least = put(tmp_path / "caustic_refraction/2.35" / FISH / "a.JPEG", 1)
    put(tmp_path / "caustic_refraction/9.15" / FISH / "a.JPEG", 2)
    put(tmp_path / "caustic_refraction/3.25" / FISH / "a.JPEG", 3)  # of no severity
    third = put(tmp_path / "sparkles/3.00" / FISH / "a.JPEG", 4)
    put(tmp_path / "perlin_noise/4" / FISH / "a.JPEG", 5)  # as robustkit corrupt writes it
    put(tmp_path / "fog/2.50" / FISH / "a.JPEG", 6)  # only ImageNet-C-bar has such names
    tree = CorruptedTree.open(tmp_path)
    expected = [("caustic_refraction", (1, 5)), ("sparkles", (3,)), ("perlin_noise", (4,))]
    assert list(tree.present.items()) == expected
    assert tree.read(f"{FISH}/a.JPEG", "caustic_refraction", 1) == least
    assert tree.read(f"{FISH}/a.JPEG", "sparkles", 3) == third
    assert is_tree(tmp_path) and not is_tree(tmp_path / "fog")


def test_what_is_no_tree(tmp_path: Path) -> None:
    for name in ("fog/1.png", "snow/1.png", "val/fog/1/x.png"):  # a weather data set whose classes bear those names
        put(tmp_path / "weather" / name)
    (tmp_path / "empty/fog/3").mkdir(parents=True)
    for path in ("weather", "empty", "weather/fog/1.png", "nowhere", "embedded:shapes", "a\0b", ""):
        assert not is_tree(path and (tmp_path / path)), path
    with pytest.raises(DataError, match=r"empty: no corruption found; expected folders such as fog/3/<class>/<file>"):
        CorruptedTree.open(tmp_path / "empty")
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        CorruptedTree.open(tmp_path / "nowhere")


def test_labels_follow_the_rules_of_other_data_sets(tmp_path: Path) -> None:
    for place, wnid in enumerate((FISH, SHARK)):
        put(tmp_path / "tree/contrast/4" / wnid / f"{place}.JPEG", place)
        put(tmp_path / "tree/fog/1" / wnid / f"{place}.JPEG", place + 2)
    tree = CorruptedTree.open(tmp_path / "tree")
    opened = tree.dataset(num_classes=1000)
    assert [(sample.id, sample.label) for sample in opened.samples] == [(f"{FISH}/0.JPEG", 0), (f"{SHARK}/1.JPEG", 2)]
    assert (opened.name, opened.root, opened.layout) == ("tree", str(tmp_path / "tree"), "imagenet")
    assert opened.read(opened.samples[1]) == tree.read(f"{SHARK}/1.JPEG", "fog", 1)  # fog stands before contrast
    with pytest.raises(DataError, match="2 class folders"):
        tree.dataset(num_classes=10, layout="folders")


def test_another_suffix_will_do_where_it_is_the_only_one(tmp_path: Path) -> None:
    folder = tmp_path / "fog/1/cat"
    png, upper = put(folder / "a.png", 1), put(folder / "b.JPG", 2)
    exact = put(folder / "c.png", 3)
    for name in ("c.jpg", "d.png", "d.bmp", "._e.png"):
        put(folder / name, 4)
    tree = CorruptedTree.open(tmp_path)
    assert tree.read("cat/a.JPEG", "fog", 1) == png
    assert tree.read("cat/b.jpg", "fog", 1) == upper
    assert tree.read("cat/c.png", "fog", 1) == exact
    assert tree.read("cat/a", "fog", 1) == png  # ids of sets without files have no suffix
    for sample_id in ("cat/c.JPEG", "cat/d.jpg", "cat/e.png", "cat/A.png", "dog/a.png", "a.png"):
        with pytest.raises(BadImageError, match=rf"^fog/1/{sample_id}: no such file in "):
            tree.read(sample_id, "fog", 1)
    with pytest.raises(BadImageError, match=r"^fog/2/cat/a\.png: no such file"):
        tree.read("cat/a.png", "fog", 2)


def test_an_id_never_leads_out_of_the_tree(tmp_path: Path) -> None:
    put(tmp_path / "tree/fog/1/cat/a.png")
    put(tmp_path / "tree/fog/2/cat/b.png")
    secret = tmp_path / "secret.png"
    put(secret)
    tree = CorruptedTree.open(tmp_path / "tree")
    ways = ("../../../secret.png", "cat/../../2/cat/b.png", str(secret), "cat//a.png", "./cat/a.png", "cat/a.png\0", "")
    for sample_id in (*ways, "cat\\..\\..\\2\\cat\\b.png", "..", "/"):
        assert tree.path(sample_id, "fog", 1) is None, sample_id
        with pytest.raises(BadImageError):
            tree.read(sample_id, "fog", 1)


def test_the_fullest_folder_names_the_images(tmp_path: Path) -> None:
    put(tmp_path / "gaussian_noise/1" / FISH / "a.JPEG", 1)
    for name in ("a.JPEG", "b.JPEG", "c.JPEG"):
        put(tmp_path / "fog/2" / FISH / name, 2)
    for name in ("a.png", "d.png"):
        put(tmp_path / "snow/2" / FISH / name, 3)
    tree = CorruptedTree.open(tmp_path)
    data = tree.dataset(num_classes=1000)
    assert [sample.id for sample in data.samples] == [f"{FISH}/{name}.JPEG" for name in "abc"]
    assert tree.missing(data.samples, "gaussian_noise", 1) == [f"{FISH}/b.JPEG", f"{FISH}/c.JPEG"]
    assert "labels and ids are those of fog/2" in data.notes
    assert any(f"left out 1 images of other folders that are missing in fog/2: {FISH}/d" in n for n in data.notes)


def test_missing_files_are_named_and_each_folder_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(4):
        for severity in (1, 2):
            put(tmp_path / f"fog/{severity}/{'ab'[index % 2]}/{index}.png", index)
    samples = CorruptedTree.open(tmp_path).dataset().samples
    (tmp_path / "fog/2/b/3.png").unlink()
    shutil.rmtree(tmp_path / "fog/2/a")
    tree = CorruptedTree.open(tmp_path)
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))  # type: ignore[func-returns-value]
    for _ in range(2):
        assert tree.missing(samples, "fog", 1) == []
        assert tree.missing(samples, "fog", 2) == ["a/0.png", "a/2.png", "b/3.png"]
    assert tree.missing(samples, "snow", 1) == [sample.id for sample in samples]
    assert sorted(listed) == [str(tmp_path / f"fog/{s}/{c}") for s in (1, 2) for c in "ab"]


def test_a_released_image_of_the_models_size_is_taken_as_it_is() -> None:
    model = Preprocessing(input_size=(24, 20), interpolation="bilinear", crop_pct=0.5)
    fitting = picture(0, (20, 24))
    assert not needs_resize(fitting, model)
    pixels = tree_pixels(fitting, model)
    assert np.array_equal(pixels.numpy(), np.asarray(fitting).transpose(2, 0, 1)) and pixels.is_contiguous()
    other = picture(1, (48, 30))
    assert needs_resize(other, model) and needs_resize(picture(2, (24, 20)), model)
    squashed = np.asarray(other.resize((20, 24), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(tree_pixels(other, model).numpy(), squashed)  # crop_pct has no say


def arrays(root: Path, count: int = 6, names: tuple[str, ...] = ("fog", "gaussian_noise", "strange")) -> np.ndarray:
    """CIFAR-10-C's form: five severities of `count` images after each other; returns those of fog."""
    root.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    stacks = {name: draw.integers(0, 256, (5 * count, 32, 32, 3), dtype=np.uint8) for name in names}
    for name, stack in stacks.items():
        np.save(root / f"{name}.npy", stack)
    np.save(root / "labels.npy", np.tile(np.arange(count) % 10, 5))
    return stacks["fog"]


def test_arrays_of_numpy_are_read_as_they_are_distributed(tmp_path: Path) -> None:
    fog = arrays(tmp_path / "c", count=12)
    tree = CorruptedTree.open(tmp_path / "c")
    assert is_tree(tmp_path / "c") and tree.present == dict.fromkeys(("gaussian_noise", "fog"), (1, 2, 3, 4, 5))
    for name, place, severity in (("ship/00001.png", 1, 1), ("test/00011", 11, 5), ("00000", 0, 3)):
        image = np.array(read_image(tree.read(name, "fog", severity), name))
        assert np.array_equal(image, fog[12 * (severity - 1) + place])
    assert tree.missing([Sample("00012", 2), Sample("cat", 3), Sample("0011", 1)], "fog", 1) == ["00012", "cat"]
    with pytest.raises(BadImageError, match=r"fog/1/00012: no such image in"):
        tree.read("00012", "fog", 1)
    dataset = tree.dataset(num_classes=10)
    first = np.array(dataset.image(dataset.samples[3]))
    assert np.array_equal(first, np.load(tmp_path / "c" / "gaussian_noise.npy")[3])
    assert [sample.label for sample in dataset.samples] == [*range(10), 0, 1] and dataset.class_names[9] == "truck"
    turned = tree.dataset(num_classes=10, class_names=dataset.class_names[::-1])
    assert [sample.label for sample in turned.samples][:3] == [9, 8, 7]
    right = [Sample(f"{place:05d}", 9 - place % 10) for place in range(12)]  # another order of classes is fine
    assert tree.missing(right, "fog", 1) == []
    with pytest.raises(DataError, match=r"labels.npy has 0 for both 00000 and 00010, whose labels differ"):
        tree.missing([*right[:10], Sample("00010", 4)], "fog", 1)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("labels", np.zeros(29, np.int64), "expected 6 whole numbers from 0, once or for each severity"),
        ("labels", np.zeros(30), "expected 6 whole numbers"),
        ("labels", np.arange(30), "expected 6 whole numbers"),  # severities differ
        ("labels", np.full(6, -1), "expected 6 whole numbers from 0"),
        ("labels", np.full(6, 1 << 40), "expected 6 whole numbers from 0"),  # as many names would fill memory
        ("labels", np.array(3), "not an array of NumPy that can be read (a single value)"),
        ("gaussian_noise", np.array(3), "not an array of NumPy that can be read (a single value)"),
        ("fog", np.zeros((29, 32, 32, 3), np.uint8), "expected uint8 of (30, height, width, 3)"),
        ("fog", np.zeros((30, 32, 32, 3)), "float64 of the shape (30, 32, 32, 3); expected uint8"),
        ("fog", np.zeros((30, 32, 32), np.uint8), "uint8 of the shape (30, 32, 32); expected uint8 of"),
        ("fog", np.array([{}], dtype=object), "not an array of NumPy that can be read"),
    ],
)
def test_arrays_of_another_form_are_refused_and_no_pickle_is_read(
    name: str, array: np.ndarray, message: str, tmp_path: Path
) -> None:
    arrays(tmp_path / "c")
    np.save(tmp_path / "c" / f"{name}.npy", array, allow_pickle=True)
    with pytest.raises(DataError) as raised:
        CorruptedTree.open(tmp_path / "c")
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_files_that_are_no_arrays_are_refused_in_a_line(tmp_path: Path) -> None:
    arrays(tmp_path / "c")
    whole = (tmp_path / "c" / "fog.npy").read_bytes()
    np.savez(tmp_path / "packed.npz", whole)
    for content in (b"", whole[:100], whole[:-1], (tmp_path / "packed.npz").read_bytes(), b"\x80\x04N."):
        (tmp_path / "c" / "fog.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"fog.npy: not an array of NumPy that can be read"):
            CorruptedTree.open(tmp_path / "c")


def test_classes_that_a_model_lacks_are_said(tmp_path: Path) -> None:
    arrays(tmp_path / "c", count=12)
    tree = CorruptedTree.open(tmp_path / "c")
    assert tree.dataset(num_classes=10).class_names == tree.dataset().class_names
    with pytest.raises(DataError, match=r"labels.npy has 10 classes, but the model has 9"):
        tree.dataset(num_classes=9)


def test_labels_alone_are_no_tree(tmp_path: Path) -> None:
    arrays(tmp_path / "c", names=("fog", "strange"))
    (tmp_path / "c" / "fog.npy").unlink()
    assert not is_tree(tmp_path / "c")  # a folder of images may hold such a file
    with pytest.raises(DataError, match=r"labels.npy, but no corruption's array; expected files such as fog.npy"):
        CorruptedTree.open(tmp_path / "c")
