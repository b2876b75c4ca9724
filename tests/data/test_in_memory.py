"""What a program hands over from memory: the samples that are yielded, their labels, ids and names, and exact masks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomGrayscale, RandomHorizontalFlip, ToTensor

from robustkit.common.names import hold
from robustkit.data.dataset import open_dataset
from robustkit.data.images import read_image
from robustkit.data.in_memory import image_pixels, open_held, open_held_scenes
from robustkit.data.metadata import read_metadata, rows_in_memory
from robustkit.data.scenes import open_scenes
from robustkit.errors import BadImageError, DataError

COUNT = 12
IMAGES = torch.arange(COUNT * 3 * 4 * 4).view(COUNT, 3, 4, 4).remainder(251).to(torch.uint8)
LABELS = torch.arange(COUNT) % 4
DATA = TensorDataset(IMAGES, LABELS)
Rows = list[tuple[str, int, bytes]]


def rows(data: Any) -> Rows:
    """Return id, label and pixels of each sample, as an audit reads them."""
    held = open_held(data)
    return [(sample.id, sample.label, np.asarray(held.image(sample)).tobytes()) for sample in held.samples]


def expected(places: Sequence[int], label: Callable[[int], int] = lambda place: place % 4) -> Rows:
    return [
        (f"{place:05d}", label(place), IMAGES[place].permute(1, 2, 0).contiguous().numpy().tobytes())
        for place in places
    ]


class Backwards:
    """A sampler that yields the odd positions, the last first."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, 0, -2))

    def __len__(self) -> int:
        return COUNT // 2


LOADERS: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "whole": (lambda: DataLoader(DATA, 5), list(range(COUNT))),
    "shuffled": (lambda: DataLoader(DATA, 5, shuffle=True), list(range(COUNT))),
    "a part at random": (lambda: DataLoader(DATA, 3, sampler=SubsetRandomSampler([9, 2, 4])), [2, 4, 9]),
    "a sampler of one's own": (lambda: DataLoader(DATA, 4, sampler=Backwards()), [1, 3, 5, 7, 9, 11]),
    "the rest dropped": (lambda: DataLoader(DATA, 5, drop_last=True), list(range(10))),
    "batches": (lambda: DataLoader(DATA, batch_sampler=[[3, 1], [8]]), [1, 3, 8]),
    "batches of a sampler": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(range(7)), 3, drop_last=True)),
        list(range(6)),
    ),
    "without batches": (lambda: DataLoader(DATA, batch_size=None, sampler=[5, 0]), [0, 5]),
    "a subset": (lambda: DataLoader(Subset(DATA, [7, 6]), 2), []),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_samples_are_those_that_a_loader_yields(name: str) -> None:
    make, places = LOADERS[name]
    if name == "a subset":  # whose positions are its own
        assert rows(make()) == [(f"{k:05d}", *row[1:]) for k, row in enumerate(expected([7, 6]))]
        return
    assert rows(make()) == expected(places)
    assert sorted(label for batch in make() for label in batch[1].reshape(-1).tolist()) == sorted(
        LABELS[places].tolist()
    )


def test_an_order_that_is_drawn_anew_is_stated() -> None:
    order = "draws another order each time; samples are in the order of the data set"
    assert f"RandomSampler {order}" in open_held(DataLoader(DATA, 5, shuffle=True)).notes
    inside = BatchSampler(RandomSampler(DATA), 5, drop_last=False)
    assert f"RandomSampler {order}" in open_held(DataLoader(DATA, batch_sampler=inside)).notes
    assert open_held(DataLoader(DATA, 4, sampler=Backwards())).notes[1:] == ("the loader yields 6 of 12 samples",)
    assert open_held(DataLoader(DATA, 5)).notes == ("12 images in memory, not in a file",)


PAIR = Subset(DATA, [0, 1])  # of so few samples, draws are often alike


@pytest.mark.parametrize(
    ("data", "draws"),
    [
        (DATA, WeightedRandomSampler([1.0] * COUNT, 6)),
        (DATA, RandomSampler(DATA, num_samples=5)),
        (PAIR, WeightedRandomSampler([1.0, 1.0], 1)),
        (PAIR, WeightedRandomSampler([1.0, 1.0], 1, replacement=False)),
        (PAIR, RandomSampler(PAIR, replacement=True)),
        (PAIR, RandomSampler(PAIR, num_samples=3)),
    ],
)
def test_a_sampler_that_draws_other_samples_is_refused(data: Any, draws: Any) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        with pytest.raises(DataError, match=f"{type(draws).__name__} draws other samples each time; give a Subset"):
            open_held(DataLoader(data, 3, sampler=draws))


def test_all_that_is_drawn_without_replacement_is_a_whole() -> None:
    for draws in (WeightedRandomSampler([1.0, 3.0], 2, replacement=False), RandomSampler(PAIR, num_samples=4)):
        held = open_held(DataLoader(PAIR, 2, sampler=draws))
        assert {sample.id.partition("#")[0] for sample in held.samples} == {"00000", "00001"}
    assert rows(DataLoader(DATA, sampler=SubsetRandomSampler([3]))) == expected([3])
    one = Subset(DATA, [3])
    assert len(rows(DataLoader(one, sampler=RandomSampler(one, replacement=True, num_samples=2)))) == 2


def a_cycle() -> Iterator[int]:
    while True:
        yield from range(COUNT)


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (["a"], r"yields \['a'\]; expected positions from 0 to 11"),
        ([-1], r"yields \[-1\]; expected positions"),
        ([COUNT], r"yields \[12\]; expected positions"),
        (a_cycle, "does not end after 1201 of 12 samples; expected one pass"),
        (lambda: iter([1 // 0]), "raises ZeroDivisionError: "),
    ],
)
def test_a_sampler_that_is_none(sampler: Any, words: str) -> None:
    if callable(sampler):
        sampler = type("Sampler", (), {"__iter__": lambda _, make=sampler: make(), "__len__": lambda _: COUNT})()
    with pytest.raises(DataError, match=f"the sampler of the loader {words}"):
        open_held(DataLoader(DATA, sampler=sampler))


def test_each_position_and_each_draw_of_a_sampler_is_looked_at() -> None:
    with pytest.raises(DataError, match=r"yields \[0, 12\]; expected positions from 0 to 11"):
        open_held(DataLoader(DATA, batch_sampler=[[0, COUNT]]))
    draws = iter([[0, 1], [1, 0], [0, 2]])
    later = type("Later", (), {"__iter__": lambda _: iter(next(draws)), "__len__": lambda _: 2})()
    with pytest.raises(DataError, match="Later draws other samples each time"):
        open_held(DataLoader(DATA, sampler=later))


def test_a_sample_that_is_yielded_twice_counts_twice() -> None:
    held = open_held(DataLoader(DATA, 2, sampler=[4, 2, 4]))
    assert [sample.id for sample in held.samples] == ["00002", "00004", "00004#2"]
    assert "list yields 1 of 2 samples more than once; each time counts" in held.notes
    assert "the loader yields 3 of 12 samples" in held.notes


def test_ids_are_as_wide_as_the_last_position() -> None:
    for count, ids in ((100_000, ["00000", "99999"]), (100_001, ["000000", "100000"])):
        data = Subset(DATA, [0] * count)
        assert [sample.id for sample in open_held(DataLoader(data, sampler=[0, count - 1])).samples] == ids


def test_a_collate_function_is_part_of_the_data() -> None:
    def darker(batch: list[Any]) -> tuple[Tensor, Tensor]:
        images, labels = default_collate(batch)
        return images // 2 + len(batch), (labels + 1) % 4  # depends on the batch

    found = rows(DataLoader(DATA, 5, collate_fn=darker))
    for place, (name, label, pixels) in enumerate(found):
        size = 5 if place < 10 else 2
        image = (IMAGES[place] // 2 + size).permute(1, 2, 0).contiguous().numpy()
        assert (name, label, pixels) == (f"{place:05d}", (place + 1) % 4, image.tobytes())
    alone = DataLoader(DATA, batch_size=None, collate_fn=lambda item: (item[0], (item[1] + 1) % 4))
    assert rows(alone) == expected(range(COUNT), lambda place: (place + 1) % 4)
    shuffled = DataLoader(DATA, 5, shuffle=True, collate_fn=darker)  # in the same batches each time
    assert rows(shuffled) == rows(shuffled) == found
    for collate, count in ((lambda batch: default_collate([*batch, *batch]), 10), (lambda batch: [], 0)):
        with pytest.raises(DataError, match=f"collate_fn makes {count} samples of 5; expected as many"):
            open_held(DataLoader(DATA, 5, collate_fn=collate))


def test_a_batch_may_be_a_list_of_samples() -> None:
    pictures = [(Image.new("RGB", (4, 4), (place,) * 3), place % 2) for place in range(5)]
    tensors = [(torch.full((3, 4, 4), place, dtype=torch.uint8), place % 2) for place in range(5)]
    assert [row[1:] for row in rows(DataLoader(tensors, 2, collate_fn=list))] == [row[1:] for row in rows(pictures)]  # type: ignore[arg-type]
    for collate in (
        list,
        lambda batch: tuple(zip(*batch, strict=True)),
        lambda batch: [{"img": x, "target": y} for x, y in batch],
        lambda batch: [(x, y, "more") for x, y in batch],
    ):
        held = open_held(DataLoader(pictures, 2, collate_fn=collate))  # type: ignore[arg-type]
        assert [(np.asarray(held.image(each)).max(), each.label) for each in held.samples] == [
            (place, place % 2) for place in range(5)
        ]
    mixed: Any = [tensors[0], (torch.zeros(4, 4), 1)]  # images and labels, of which the first image alone has channels
    with pytest.raises(DataError, match=r"image 00001 has shape \(4, 4\)"):
        open_held(DataLoader(mixed, 2, collate_fn=lambda batch: tuple(zip(*batch, strict=True))))


class OfBatches(Dataset[Any]):
    """A data set whose batches are others than its items."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> Any:
        return IMAGES[place], 0

    def __getitems__(self, places: list[int]) -> Any:
        return [(IMAGES[place], place % 3) for place in places]


class Brighter(DataLoader[Any]):
    """A loader that changes batches on their way."""

    def __iter__(self) -> Any:
        for images, labels in super().__iter__():
            yield images + 1, (labels + 1) % 4


def test_what_a_loader_does_with_its_batches_counts() -> None:
    for data in (OfBatches(), Subset(OfBatches(), range(COUNT))):
        assert rows(DataLoader(data, 5)) == expected(range(COUNT), lambda place: place % 3)
    assert rows(Brighter(DATA, 5)) == [
        (name, (label + 1) % 4, bytes(value + 1 for value in pixels)) for name, label, pixels in expected(range(COUNT))
    ]
    held = open_held(Brighter(DATA, 5, shuffle=True))
    assert "the data come in another order each time; ids are of the order that was read first" in held.notes


class Stream(IterableDataset[Any]):
    def __init__(self, change: Callable[[Tensor], Tensor] = lambda image: image) -> None:
        self.change = change

    def __iter__(self) -> Iterator[Any]:
        return ((self.change(image), label) for image, label in DATA)


def test_a_stream_has_positions() -> None:
    for data in (Stream(), DataLoader(Stream(), 5), DataLoader(Stream(), batch_size=None), iter(list(DATA))):
        assert rows(data) == expected(range(COUNT))
    once = "the data can be read only once, so that random augmentation would not be noticed"
    assert [once in open_held(data).notes for data in (Stream(), iter(list(DATA)))] == [False, True]


@pytest.mark.parametrize(
    "form", [lambda data: data, lambda data: DataLoader(data, 4), lambda data: DataLoader(data, None)]
)
def test_a_stream_that_changes_is_refused(form: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    with pytest.raises(DataError, match="the stream yields other samples the second time; remove random augmentation"):
        open_held(form(Stream(lambda image: image ^ torch.randint(2, (1,), dtype=torch.uint8))))
    with pytest.raises(DataError, match="the stream of data raises KeyError: 'lost'"):
        open_held(form(Stream(lambda image: {}["lost"])))
    with pytest.raises(DataError, match=r"the stream of data raises KeyError: 'x{199}$"):
        open_held(form(Stream(lambda image: {}["x" * 200])))
    with pytest.raises(DataError, match="is a tensor without values here"):
        open_held(form(Stream(lambda image: image.to("meta"))))


class Fine(Dataset[Any]):
    """A data set with attributes that others read instead of its items."""

    targets = labels = LABELS.tolist()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> Any:
        return IMAGES[place], self.targets[place]


class Coarse(Fine):
    def __getitem__(self, place: int) -> Any:
        image, label = super().__getitem__(place)
        return image, label // 2


class Reversed(Fine):
    def __getitem__(self, place: int) -> Any:
        return super().__getitem__(COUNT - 1 - place)


class InDict(Coarse):
    def __getitem__(self, place: int) -> Any:
        image, label = super().__getitem__(place)
        return {"pixel_values": image, "label": np.int64(label)}


@pytest.mark.parametrize("data", [Fine(), Coarse(), Reversed(), InDict(), DataLoader(Coarse(), 5)])
def test_labels_are_those_of_indexing(data: Any) -> None:
    source = data.dataset if isinstance(data, DataLoader) else data
    items = [source[place] for place in range(COUNT)]
    labels = [int(item["label"] if isinstance(item, dict) else item[1]) for item in items]
    assert [sample.label for sample in open_held(data).samples] == labels


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("x" * 41, "data is the text 'x{40}'; expected"),
        ([(IMAGES[0], "x" * 61)], "a label is 'x{60}'; expected an integer"),
        (DataLoader(DATA, sampler=["x" * 59]), r"yields \['x{58}; expected positions"),
    ],
)
def test_what_is_none_is_named_as_far_as_a_line_goes(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_held(data)


def test_what_was_opened_is_kept_and_shown_in_a_line() -> None:
    held = open_held(DATA)
    assert open_held(held) is held
    assert repr(held.source) == "MemorySource(size=(4, 4), classes=(), claimed=())"


@pytest.mark.parametrize("label", [1, True, 1.0, np.int64(1), np.array([1]), torch.tensor([1]), torch.tensor(1.0)])
def test_a_label_may_be_any_whole_number(label: Any) -> None:
    assert [sample.label for sample in open_held([(IMAGES[0], label)]).samples] == [1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("bee", "ant", "cat"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (4, 4), (40 * number, len(name), ord(name[0]))).save(tmp_path / name / f"{number}.png")
    return tmp_path


class Upside(ImageFolder):
    def __getitem__(self, place: int) -> Any:
        return super().__getitem__(len(self) - 1 - place)


def test_ids_are_paths_where_the_data_set_reads_them(folder: Path) -> None:
    data = ImageFolder(folder)
    assert [sample.id for sample in open_held(data).samples] == [
        f"{name}/{number}.png" for name in ("ant", "bee", "cat") for number in range(2)
    ]
    assert rows(data) == [
        (sample.id, sample.label, np.asarray(filed.image(sample)).tobytes())
        for filed in [open_dataset(folder)]
        for sample in filed.samples
    ]
    part = Subset(data, [5, 0])
    for each in (part, DataLoader(Subset(ImageFolder(folder, ToTensor()), [5, 0]), 2)):
        assert [(sample.id, sample.label) for sample in open_held(each).samples] == [("ant/0.png", 0), ("cat/1.png", 2)]
    assert [sample.id for sample in open_held(Upside(folder)).samples][:2] == ["00000", "00001"]  # it reads others


class Halved(Subset[Any]):
    def __getitem__(self, place: Any) -> Any:
        image, label = super().__getitem__(place)
        return image, label // 2

    __getitems__ = None  # type: ignore[assignment]


def moved(data: ImageFolder) -> ImageFolder:
    """Return a folder whose labels were edited: the names of folders go with them."""
    data.samples = [(path, (label + 1) % 3) for path, label in data.samples]
    return data


def shifted_batch(batch: list[Any]) -> Any:
    return torch.stack([image for image, _ in batch]), [(label + 1) % 3 for _, label in batch]


def test_names_of_classes_are_those_of_the_labels_that_come(folder: Path) -> None:
    data, names = ImageFolder(folder, ToTensor()), ("cat", "ant", "bee")

    def labels(each: Any) -> list[tuple[str, int]]:
        dataset = opened(each, num_classes=3, class_names=names)
        assumed = any("in another order than the checkpoint's" in note for note in dataset.notes)
        return [*((sample.id, sample.label) for sample in dataset.samples), ("assumed", assumed)]

    assert labels(Halved(data, [0, 2, 4])) == [("00000", 0), ("00001", 0), ("00002", 1), ("assumed", 1)]
    files = [f"{name}/{number}.png" for name in ("ant", "bee", "cat") for number in range(2)]
    by_name = [*zip(files, (1, 1, 2, 2, 0, 0), strict=True), ("assumed", 0)]
    assert labels(DataLoader(data, 4, collate_fn=shifted_batch)) == [*by_name[:-1], ("assumed", 1)]
    assert labels(moved(ImageFolder(folder, ToTensor()))) == by_name
    several = ImageFolder(folder, ToTensor())
    several.classes = [("ant", "emmet"), ("bee",), ("cat", "puss")]  # type: ignore[list-item]  # as those of ImageNet
    assert labels(several) == by_name
    assert labels(DataLoader(several, 4, collate_fn=shifted_batch)) == [*by_name[:-1], ("assumed", 1)]
    part = Halved(data, [0, 2, 4])
    part.classes = ["low", "high"]  # type: ignore[attr-defined]  # its own, not those of what it wraps
    assert labels(part)[-1] == ("assumed", 0)
    for odd in ("ab", ["low", 2]):
        part.classes = odd  # type: ignore[attr-defined]
        assert open_held(part).source.claimed == ()  # type: ignore[attr-defined]
    (folder / "cow").mkdir()  # a class without a sample
    assert opened(ImageFolder(folder, allow_empty=True)).class_names == ("ant", "bee", "cat", "cow")


def test_folders_that_are_no_classes_name_nothing(folder: Path) -> None:
    for number in (lambda place: place, lambda place: place // 4):  # two labels in a folder, two folders of a label
        data = ImageFolder(folder)
        data.samples = [(path, number(place)) for place, (path, _) in enumerate(data.samples)]
        count = number(5) + 1
        assert opened(data).class_names == tuple(map(str, range(count)))
    data = ImageFolder(folder)
    data.samples, data.classes = [(path, 2 * label) for path, label in data.samples], []  # labels with gaps
    assert opened(data).class_names == tuple("01234")
    data = ImageFolder(folder)
    data.root = folder / "ant"  # most files lie outside
    assert [sample.id for sample in open_held(data).samples] == [f"{place:05d}" for place in range(6)]


def test_ids_are_positions_where_a_path_comes_twice(folder: Path) -> None:
    data = ImageFolder(folder)
    data.samples = [*data.samples, data.samples[0]]
    assert [(sample.id, sample.label) for sample in open_held(data).samples][-2:] == [("00005", 2), ("00006", 0)]
    part = Subset(ImageFolder(folder), [0, -6])
    assert [sample.id for sample in open_held(part).samples] == ["00000", "00001"]


def opened(data: Any, **model: Any) -> Any:
    with hold({"x": open_held(data)}):
        return open_dataset("memory:x", **model)


def test_names_of_classes_lead_to_the_outputs(folder: Path) -> None:
    data, names = ImageFolder(folder), ("cat", "ant", "bee")
    plain = opened(data, num_classes=3)
    assert [sample.label for sample in plain.samples] == [0, 0, 1, 1, 2, 2] and plain.class_names == (
        "ant",
        "bee",
        "cat",
    )
    named = opened(data, num_classes=3, class_names=names)
    assert [sample.label for sample in named.samples] == [1, 1, 2, 2, 0, 0] and named.class_names == names
    with pytest.raises(DataError, match="is the name of a class of the checkpoint"):
        opened(data, num_classes=3, class_names=("cow", "hen", "pig"))
    shifted = opened(
        ImageFolder(folder, target_transform=lambda label: (label + 1) % 3), num_classes=3, class_names=names
    )
    assert [sample.label for sample in shifted.samples] == [1, 1, 2, 2, 0, 0]  # as yielded: names are no longer its own
    assert any("in another order than the checkpoint's" in note for note in shifted.notes)
    same = opened(ImageFolder(folder, target_transform=int), num_classes=3, class_names=("ant", "bee", "cat"))
    assert not any("another order" in note for note in same.notes)


def test_wnids_are_outputs_of_imagenet(tmp_path: Path) -> None:
    for wnid in ("n01443537", "n01440764"):
        (tmp_path / wnid).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / wnid / "a.png")
    assert [sample.label for sample in opened(ImageFolder(tmp_path), num_classes=1000).samples] == [0, 1]
    (tmp_path / "n01440764").rename(tmp_path / "n15075141")
    assert [sample.label for sample in opened(ImageFolder(tmp_path), num_classes=1000).samples] == [1, 999]
    assert [sample.label for sample in opened(ImageFolder(tmp_path), num_classes=2).samples] == [0, 1]


class Augmented(Fine):
    """Images of which a few change, and only at a later reading."""

    def __init__(self, change: Callable[[Tensor], Tensor], from_reading: int = 0) -> None:
        self.change, self.left = change, from_reading * COUNT

    def __getitem__(self, place: int) -> Any:
        self.left -= 1
        image, label = super().__getitem__(place)
        return (image if self.left >= 0 else self.change(image)), label


@pytest.mark.parametrize("change", [RandomHorizontalFlip(0.5), RandomGrayscale(0.3), lambda image: image ^ 1])
def test_each_sample_is_read_a_second_time(change: Callable[[Tensor], Tensor]) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        with pytest.raises(DataError, match="returns another image the second time; remove random augmentation"):
            open_held(Augmented(change, 1)).digest()
    assert open_held(Augmented(lambda image: image)).digest() == open_held(Fine()).digest()


class Changing(Fine):
    """Labels or masks of which some change at a later reading."""

    def __init__(self, label: Callable[[int], Any]) -> None:
        self.label, self.left = label, COUNT

    def __getitem__(self, place: int) -> Any:
        self.left -= 1
        return IMAGES[place], self.label(place if self.left >= 0 else place + (place == 7))


def test_labels_are_compared_too() -> None:
    with pytest.raises(DataError, match="image 00007: the data set returns another label the second time"):
        open_held(Changing(int)).digest()
    scenes = open_held_scenes(Changing(lambda place: torch.full((4, 4), place)))
    assert scenes.held is not None
    for sample in scenes.dataset.samples[:7]:
        assert scenes.held(sample).max() == int(sample.id)
    with pytest.raises(DataError, match="image 00007: the data set returns another label the second time"):
        scenes.held(scenes.dataset.samples[7])


def test_a_collate_function_that_draws_is_noticed_in_few_batches() -> None:
    def noisy(batch: list[Any]) -> Any:
        images, labels = default_collate(batch)
        return images ^ torch.randint(2, images.shape, dtype=torch.uint8), labels

    with pytest.raises(DataError, match="image 00000: the data set returns another image the second time"):
        open_held(DataLoader(DATA, COUNT, collate_fn=noisy)).digest()


def test_each_sample_is_read_once_at_first() -> None:
    reads = list[int]()

    class Counted(Fine):
        def __getitem__(self, place: int) -> Any:
            reads.append(place)
            return super().__getitem__(place)

    for data in (
        Counted(),
        DataLoader(Counted(), 5),
        DataLoader(Counted(), 5, collate_fn=lambda x: default_collate(x)),
    ):
        reads.clear()
        open_held(data)
        assert reads == list(range(COUNT))
    shuffled = open_held(DataLoader(Counted(), 2, shuffle=True, collate_fn=lambda x: default_collate(x)))
    reads.clear()
    for sample in shuffled.samples:
        shuffled.image(sample)
    assert len(reads) == COUNT  # no batch is made twice
    single = shuffled.source.single  # type: ignore[attr-defined]
    for places, count in (((0, 2, 4, 6, 0), 4), ((8, 0), 2)):  # batches that are made: four are kept
        reads.clear()
        for place in places:
            single(place)
        assert len(reads) == 2 * count


def saved(image: Image.Image, kind: str, **more: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def test_pictures_are_those_of_files() -> None:
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.open(io.BytesIO(saved(Image.fromarray((levels >> 8).astype(np.uint8)[:4]), "JPEG", exif=exif)))
    for picture, kind in (
        (Image.fromarray(levels), "PNG"),
        (Image.fromarray((levels / 64000).astype(np.float32)), "TIFF"),
        (Image.fromarray((levels >> 8).astype(np.uint8)).convert("P"), "PNG"),
        (Image.fromarray(np.stack([levels >> 8] * 4, axis=-1).astype(np.uint8)), "PNG"),
    ):
        assert np.array_equal(image_pixels(picture, "it"), np.asarray(read_image(saved(picture, kind), "it")))
    assert image_pixels(turned, "it").shape == (8, 4, 3)
    filed = read_image(saved(turned, "JPEG", quality=100, exif=exif), "it")
    assert np.abs(np.asarray(filed).astype(int) - image_pixels(turned, "it")).max() < 4


def test_rounding_is_stated_wherever_it_happens() -> None:
    even, odd = IMAGES[0].float() / 255, (IMAGES[0].float() + 0.01) / 255.01
    rounded = "images are rounded to 8 bits"
    for second, stated in ((even, False), (odd, True), (odd.permute(1, 2, 0).numpy(), True), (IMAGES[1], False)):
        assert (rounded in open_held([(even, 0), (second, 1)]).notes) is stated


def test_tensors_have_one_size_and_pictures_any() -> None:
    image, other = IMAGES[0], torch.zeros(3, 4, 5, dtype=torch.uint8)
    with pytest.raises(DataError, match="images are of several sizes or kinds; expected tensors of one size, or"):
        open_held([(image, 0), (other, 1)])
    with pytest.raises(DataError, match="images are of several sizes or kinds"):
        open_held([(image, 0), (Image.new("RGB", (4, 4)), 1)])
    pictures = open_held([(Image.new("RGB", (4, 4)), 0), (Image.new("RGB", (4, 5)), 1)])
    assert pictures.source.size is None and open_held([(image, 0)]).source.size == (4, 4)  # type: ignore[attr-defined]
    assert len(open_held_scenes([(image, image[0]), (other, other[0])])) == 2  # segmenters take any


def test_the_ends_of_the_range() -> None:
    image = torch.zeros(3, 4, 4)
    image[0, 0, 0] = 1.0
    assert image_pixels(image, "it").max() == 255 and image_pixels(-image + 1, "it").min() == 0
    for odd in (image * 1.001, image * -0.001, image.bool(), image.int()):
        with pytest.raises(DataError, match=r"it is \w+ from .*; expected floats in \[0, 1\]: leave out Normalize"):
            image_pixels(odd, "it")
    with pytest.raises(DataError, match="data is dict; expected"):
        open_held({0: (image, 0)})


def test_a_picture_that_is_cut_off_keeps_its_label() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    whole = saved(Image.fromarray(noise), "JPEG")

    class Cut(Fine):
        def __init__(self, share: Callable[[], float]) -> None:
            self.share = share

        def __getitem__(self, place: int) -> Any:
            length = int(len(whole) * (self.share() if place == 3 else 1))
            return Image.open(io.BytesIO(whole[:length])), place % 4

    held = open_held(Cut(lambda: 0.5))
    assert [sample.label for sample in held.samples] == LABELS.tolist() and held.class_names == ("0", "1", "2", "3")
    with pytest.raises(BadImageError, match="image 00003"):
        held.image(held.samples[3])
    with pytest.raises(DataError, match="the mask of image 00000 raises OSError: "):
        open_held_scenes([(noise, Image.open(io.BytesIO(saved(Image.fromarray(noise[..., 0]), "JPEG")[:500])))])
    shares = iter([0.5, 1.0])
    with pytest.raises(DataError, match="image 00003: the data set returns another image the second time"):
        open_held(Cut(lambda: next(shares))).digest()


def test_channels_stand_first_in_tensors_and_last_in_arrays_where_both_may_be() -> None:
    image = IMAGES[0, :, :, :3]  # (3, 4, 3)
    assert np.array_equal(image_pixels(image, "it"), image.permute(1, 2, 0))
    assert np.array_equal(image_pixels(image.numpy(), "it"), image)
    assert np.array_equal(image_pixels(IMAGES[0].numpy(), "it"), IMAGES[0].permute(1, 2, 0))


def test_tensors_of_half_precision_round_as_others() -> None:
    image = IMAGES[0].float() / 255
    assert np.array_equal(
        image_pixels(image.bfloat16(), "it"), np.rint(image.bfloat16().float().numpy() * 255).transpose(1, 2, 0)
    )
    for odd, words in (
        (image.permute(1, 2, 0), r"a tensor \(4, 4, 3\); expected \(3, H, W\): permute its channels"),
        (image.permute(1, 2, 0).repeat(5, 1, 6).numpy(), r"shape \(20, 4, 18\); expected \(C, H, W\), \(H, W, C\) or"),
        (image.to("meta"), r"without values here \(meta"),
        (image.to_sparse(), "without values here"),
        (image[0], r"shape \(4, 4\); expected"),
        (image[None], r"shape \(1, 3, 4, 4\) \(a batch\?"),
        (IMAGES[0][:, :0], r"is uint8 of shape \(0, 4, 3\)"),
        (image[:, :0], r"of shape \(0, 4, 3\); expected floats"),
        (image.to(torch.complex64), "is complex64 of shape"),
    ):
        with pytest.raises(DataError, match=words):
            image_pixels(odd, "it")


MASK = torch.tensor([[0, 1, 2], [2, 1, 0], [255, 1, 2]])


def labels_of(*masks: Any) -> list[Any]:
    """Return the masks of a data set as an audit reads them."""
    scenes = open_held_scenes([(np.zeros((2, 2, 3), np.uint8), mask) for mask in masks])
    assert scenes.held is not None
    return [scenes.held(sample).tolist() for sample in scenes.dataset.samples]


FORMS: dict[str, Any] = {
    "as it is": MASK,
    "one channel": MASK[None],
    "a channel last": MASK[..., None].numpy(),
    "uint8": MASK.to(torch.uint8).numpy(),
    "floats": MASK.float(),
    "over 255": MASK.to(torch.uint8).float() / 255,
    "a picture": Image.fromarray(MASK.numpy().astype(np.uint8)),
    "a palette": Image.fromarray(MASK.numpy().astype(np.uint8)).convert("L"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_mask_in_each_form(name: str) -> None:
    assert labels_of(FORMS[name]) == [MASK.tolist()]


def test_the_smallest_masks_and_the_largest_class() -> None:
    assert labels_of(np.zeros((0, 2), np.uint8)) == [[]]  # refused later, as of another size than its image
    assert labels_of(torch.tensor([[(1 << 31) - 1, -(1 << 31)]])) == [[[(1 << 31) - 1, -(1 << 31)]]]


def test_one_hot_masks() -> None:
    labels = torch.tensor([[0, 0, 1], [2, 1, 0]] * 3)
    hot = torch.nn.functional.one_hot(labels, 3)
    assert labels_of(hot, hot.permute(2, 0, 1).bool()) == [labels.tolist()] * 2


def test_masks_of_one_set_are_read_in_one_way() -> None:
    """A mask of nothing but 0 and 1.0 is 0 and 255 where others are fractions of 255."""
    void, other = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]]) / 255
    assert labels_of(void, other) == [[[0, 255]], [[0, 2]]]
    assert labels_of(other, void.bfloat16()) == [[[0, 2]], [[0, 255]]]
    assert labels_of(void, void) == [[[0, 1]]] * 2
    assert labels_of(other, torch.tensor([[0, 1]])) == [[[0, 2]], [[0, 1]]]  # integers are labels
    scenes = open_held_scenes([(np.zeros((1, 2, 3), np.uint8), mask) for mask in (torch.tensor([[0.0, 3.0]]), other)])
    assert scenes.held is not None
    with pytest.raises(DataError, match="contains 3, which is no class, and other masks have fractions of 255"):
        scenes.held(scenes.dataset.samples[0])


def test_a_mask_is_turned_as_its_image() -> None:
    exif, levels = Image.Exif(), np.arange(6, dtype=np.uint8).reshape(2, 3)
    exif[0x0112] = 6

    def stored(turned: bool) -> Image.Image:
        more = {"exif": exif} if turned else {}
        return Image.open(io.BytesIO(saved(Image.fromarray(levels), "PNG", **more)))

    scenes = open_held_scenes([(stored(True), stored(True)), (stored(False), stored(False))])
    assert scenes.held is not None
    assert [scenes.held(sample).tolist() for sample in scenes.dataset.samples] == [
        np.rot90(levels, -1).tolist(),
        levels.tolist(),
    ]
    assert scenes.notes[1:] == ("1 of 2 images are turned upright, as their EXIF data say",)
    for image, mask in ((stored(True), stored(False)), (stored(False), stored(True)), (stored(True), levels)):
        with pytest.raises(DataError, match="EXIF data rotate the image or its mask alone, so it is unclear"):
            open_held_scenes([(image, mask)])


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            torch.nn.functional.interpolate(MASK[None, None].float(), (5, 5), mode="bilinear")[0, 0],
            "which is no class; resize",
        ),
        (MASK / 254, r"contains 0\.003937, which is no class"),
        (MASK / 255 * 1.01, r"contains 0\.003961, which is no class"),
        (MASK / 255 - 1 / 255, r"contains -0\.003922, which is no class"),
        (MASK / 255 + 1 / 255, r"contains 1\.004, which is no class"),
        (MASK + 0.5, r"contains 0\.5, which is no class"),
        (torch.tensor([[-(1 << 31) - 1, 0]]), "contains -2147483649 to 0; expected the classes of pixels"),
        (torch.tensor([[1 << 31, 0]]), "contains 0 to 2147483648; expected the classes of pixels"),
        (MASK.float() + float("nan"), "nan, which is no class"),
        (torch.stack([torch.eye(3).roll(k, 0) for k in range(3)]), "is one-hot along both ends"),
        (torch.rand(2, 3, 3), r"shape \(2, 3, 3\), and is not one-hot"),
        (MASK[0], r"shape \(3,\); expected \(H, W\)"),
        (np.array([["a"]]), "is of <U1; expected whole numbers"),
        (Image.new("RGB", (3, 3)), "a picture of mode RGB; expected one number per pixel"),
        (MASK.double() * 1e10, "contains 0.0 to 2550000000000.0"),
        (MASK.to("meta"), r"the mask of image 00000 is a tensor without values here \(meta"),
        (MASK.to_sparse(), "is a tensor without values here"),
    ],
)
def test_a_mask_that_is_not_exact_is_refused(mask: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        labels_of(mask)


@pytest.mark.parametrize(
    ("masks", "labels", "said"),
    [
        ([[[0, 255], [255, 0]], [[0, 0], [0, 0]]], [[[0, 1], [1, 0]], [[0, 0], [0, 0]]], True),
        ([[[0, 255], [1, 0]], [[0, 0], [0, 0]]], [[[0, -1], [1, 0]], [[0, 0], [0, 0]]], False),
        ([[[0, 1], [1, 0]], [[0, 0], [0, 0]]], [[[0, 1], [1, 0]], [[0, 0], [0, 0]]], False),
    ],
)
def test_the_object_of_two_classes_may_be_255(masks: Any, labels: Any, said: bool, tmp_path: Path) -> None:
    images = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for place, mask in enumerate(masks):
        Image.new("RGB", (2, 2)).save(tmp_path / "images" / f"{place}.png")
        Image.fromarray(np.array(mask, np.uint8)).save(tmp_path / "masks" / f"{place}.png")
    with hold({"x": open_held_scenes((images, torch.tensor(masks)))}):
        held = open_scenes("memory:x", num_classes=2)
        filed = open_scenes(tmp_path / "images", masks=tmp_path / "masks", num_classes=2)
        for scenes in (held, filed):
            assert [scenes.labels(sample, (2, 2)).tolist() for sample in scenes.dataset.samples] == labels
            assert {sample.label for sample in scenes.dataset.samples} == {-1}
            assert any("255 is class 1" in note for note in scenes.notes) is said
            assert (255 in scenes.ignored) is not said
        three = open_scenes("memory:x", num_classes=3)
        assert not any("255 is class 1" in note for note in three.notes)


def test_metadata_in_memory() -> None:
    ids = ["00000", "00001", "00002"]

    def read(table: Any) -> dict[str, list[str]]:
        return read_metadata(Path("metadata"), ids, "it", True, rows_in_memory(table, ids))

    cameras = {"camera": ["a", None, "c"], "speed": [1, 2.5, float("nan")]}
    texts = {"camera": ["a", "", "c"], "speed": ["1", "2.5", ""]}
    assert read(cameras) == texts
    frame = pd.DataFrame({"camera": list("abc"), "sample_id": ids[::-1]})
    assert read(frame) == {"camera": ["c", "b", "a"]}
    assert read(pd.DataFrame({"camera": list("abc")}, index=ids[::-1])) == {"camera": ["c", "b", "a"]}
    assert read(pd.DataFrame({"camera": list("abc")}, index=[7, 8, 9])) == {"camera": ["a", "b", "c"]}
    for table, words in (
        ({"camera": ["a"]}, "metadata has 1 rows without ids for 3 samples; add a column sample_id"),
        ({"camera": ["a"], "speed": [1, 2]}, "columns of 1 and 2 rows; expected a path, a DataFrame or a dict"),
        ([1, 2], "metadata is list; expected a path"),
    ):
        with pytest.raises(DataError, match=words):
            read(table)
