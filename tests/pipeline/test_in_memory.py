"""Audits of networks and images in memory: the same records as of files, and networks given back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import robustkit
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.data.in_memory import open_held
from robustkit.data.scenes import open_scenes
from robustkit.errors import DataError, ModelError, ProtocolError
from robustkit.models.in_memory import classifier_of
from robustkit.models.input_config import InputOptions

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
ZOO, SHAPES = "zoo:shapes-vit-quest", "embedded:shapes"
OPTIONS: dict[str, Any] = {"attacks": "fgsm,pgd(steps=2)", "corruptions": "fog(severity=2)", "device": "cpu"}


class Net(nn.Module):
    """Four logits, in one of the shapes in which networks return them."""

    def __init__(self, wrap: Any = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head, self.wrap = nn.Linear(8, 4), wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.head(self.layers(images)))


def images(count: int = 12) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(256, (count, 3, 32, 32)) / 255, torch.arange(count) % 4


def columns(run: robustkit.Run, condition: str, without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    return run.table(run.manifest.names[0], condition).drop_columns([*without]).to_pydict()


def test_a_network_has_the_records_of_its_file(tmp_path: Path) -> None:
    of_file = robustkit.audit(ZOO, SHAPES, limit=12, out=tmp_path / "file", **OPTIONS)
    loaded = robustkit.load(ZOO)
    p = loaded.identity.preprocessing
    said = {"mean": p.mean, "std": p.std, "img_size": p.input_size, "crop_pct": p.crop_pct}
    net = loaded.network.train().requires_grad_(True)
    in_memory = robustkit.audit({"mine": net}, SHAPES, limit=12, out=tmp_path / "net", **said, **OPTIONS)
    dataset = open_dataset(SHAPES).select(limit=12)
    pixels = torch.stack([to_pixels(dataset.image(sample), p) for sample in dataset.samples])
    labels = [sample.label for sample in dataset.samples]
    for data in ((pixels, labels), DataLoader(TensorDataset(pixels / 255, torch.tensor(labels)), 5, shuffle=True)):
        shown = robustkit.audit(net, data, out=tmp_path / type(data).__name__, mean=p.mean, std=p.std, attacks="none")
        assert columns(shown, "clean", ("sample_id",)) == columns(of_file, "clean", ("sample_id",))
    for condition in of_file.manifest.conditions:
        assert columns(in_memory, condition) == columns(of_file, condition)
    assert net.training and all(weight.requires_grad for weight in net.parameters())
    (entry,) = in_memory.manifest.checkpoints
    assert (entry.name, entry.spec, entry.path) == ("mine", "memory:mine", None)
    assert "cannot be reproduced from files alone" in entry.notes[0]


@pytest.mark.parametrize(
    "wrap", [lambda y: {"logits": y}, lambda y: (y, None), lambda y: type("Output", (), {"logits": y})()]
)
def test_logits_are_found_in_what_a_network_returns(wrap: Any, tmp_path: Path) -> None:
    plain, wrapped = (
        robustkit.audit(net, images(), pixels=True, attacks="fgsm", out=tmp_path / name, device="cpu")
        for name, net in (("plain", Net()), ("wrapped", Net(wrap)))
    )
    assert [columns(wrapped, text) for text in wrapped.manifest.conditions] == [
        columns(plain, text) for text in plain.manifest.conditions
    ]


def test_it_goes_on_with_the_same_weights_and_code_alone(tmp_path: Path) -> None:
    given: dict[str, Any] = {"pixels": True, "attacks": "none", "out": tmp_path / "run", "device": "cpu"}
    first = robustkit.audit(Net(), images(), **given)
    record = first.shard_path("Net", "clean", 0)
    before = record.stat().st_mtime_ns
    assert robustkit.audit(Net(), images(), **given).summary() == first.summary()
    assert record.stat().st_mtime_ns == before
    other = Net()
    nn.init.zeros_(other.head.weight)
    with pytest.raises(robustkit.errors.RunError, match="contains another run"):
        robustkit.audit(other, images(), **given)


class Photographs(Dataset[Any]):
    """Pictures of Pillow in dicts, as data sets of the Hub give them."""

    targets = (0, 1, 2)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> dict[str, Any]:
        if place > 2:
            raise IndexError(place)
        return {"image": Image.new("L", (40 + place, 50), 80 * place), "label": place}


def test_pictures_are_resized_as_those_of_files(tmp_path: Path) -> None:
    given: dict[str, Any] = {"pixels": True, "attacks": "none", "device": "cpu", "img_size": 32, "num_classes": 4}
    for place in range(3):
        (tmp_path / "data" / str(place)).mkdir(parents=True)
        Photographs()[place]["image"].save(tmp_path / "data" / str(place) / "a.png")
    held = robustkit.audit(Net(), Photographs(), out=tmp_path / "held", **given)
    filed = robustkit.audit(Net(), open_dataset(tmp_path / "data"), out=tmp_path / "filed", **given)
    assert columns(held, "clean", ("sample_id",)) == columns(filed, "clean", ("sample_id",))


def test_a_segmenter_and_its_masks(tmp_path: Path) -> None:
    model, scenes = robustkit.load_segmenter("zoo:shapes-segmenter-quest"), open_scenes(SHAPES).select(6)
    samples = scenes.dataset.samples
    pixels = torch.stack([torch.from_numpy(np.array(scenes.dataset.image(s))).permute(2, 0, 1) for s in samples])
    masks = [torch.from_numpy(scenes.labels(sample, (64, 64)).astype(int)) for sample in samples]
    given: dict[str, Any] = {"attacks": "pgd(steps=2,random_start=false)", "device": "cpu"}
    p, windows = model.identity.preprocessing, model.network.windows
    network = model.network.network.train()
    filed = robustkit.segment("zoo:shapes-segmenter-quest", SHAPES, limit=6, out=tmp_path / "file", **given)
    options = {"mean": p.mean, "std": p.std, **({"window": windows.size, "stride": windows.stride} if windows else {})}
    for name, returned in (("plain", network), ("dict", Wrapped(network))):
        held = robustkit.segment({"a": returned}, (pixels, masks), out=tmp_path / name, **options, **given)
        for condition in filed.manifest.conditions:
            without = ("sample_id", "shifted")  # masks of files and these are of two conventions
            assert columns(held, condition, without) == columns(filed, condition, without)
    assert network.training


class Wrapped(nn.Module):
    """As torchvision's segmenters return their logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return {"out": self.network(images)}


X, Y = images()
ODD: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (Net(), (X, Y), {}, ModelError, "the normalisation of its images is unknown; give mean= and std=, or pixels=True"),
    (Net(), (X * 2 - 1, Y), {"pixels": True}, DataError, r"from -1 to .*; expected floats in \[0, 1\]: leave out Norm"),
    (Net(), (X, Y[:3]), {"pixels": True}, DataError, "12 images and 3 labels; expected equal numbers"),
    (Net(), (X[:, :1], Y), {"pixels": True}, DataError, "has 1 channels, and the model takes 3"),
    (Net(), (X, Y + 2), {"pixels": True}, DataError, "labels go up to 5, the model has classes 0 to 3"),
    (Net(), (X[:0], Y[:0]), {"pixels": True}, DataError, "the data set has no images; expected one or more"),
    (Net(), 3, {"pixels": True}, DataError, r"data is int; expected \(images, labels\), a Dataset or a DataLoader"),
    (Net(), [1, 2], {"pixels": True}, DataError, r"an item of the data set is int; expected \(images, labels\)"),
    (Net(), (X, Y), {"pixels": True, "arch": "resnet18"}, ModelError, "arch and attention apply to files"),
    (Net(), (X, Y), {"pixels": True, "mean": (0, 0, 0)}, ModelError, "leave out mean and std"),
    (Net(), (X, torch.rand(12) * 9), {"pixels": True}, DataError, r"a label is '\d\.\d+'; expected an integer"),
    (Net(), (X, torch.eye(12)), {"pixels": True}, DataError, r"a label is '\[1\.0, 0\.0, .*; expected an integer"),
    ([], (X, Y), {"pixels": True}, ProtocolError, "no checkpoint; expected one or more"),
    ([None], (X, Y), {"pixels": True}, ModelError, "a checkpoint is NoneType; expected a text, a path or an nn.Module"),
    (Net(), (X, Y), {"pixels": True, "progress": "yes"}, TypeError, "progress='yes': expected True, False, None or a"),
    (Net(), (X, Y), {"pixles": True}, TypeError, "did you mean 'pixels'?"),
    (Net(lambda y: y[0, 0]), (X, Y), {"pixels": True}, ModelError, r"returned shape \(\); expected logits of shape"),
    (nn.Linear(3, 4), (X, Y), {"pixels": True}, ModelError, "Linear fails on images of 32 x 32"),
    (Net().double(), (X, Y), {"pixels": True}, ModelError, "its weights are torch.float64, images are float32: give n"),
    (Net(), [(X, Y)], {"pixels": True}, DataError, r"shape \(12, 3, 32, 32\) \(a batch\? give its images one by one"),
    (Net(), (X, Y.to("meta")), {"pixels": True}, DataError, "a label is 'a tensor without values'; expected"),
    (Net(), (X, Y - 1), {"pixels": True}, DataError, "image 00000: label -1; expected the index of a class, from 0 on"),
    (
        Net(),
        [(X[0], 0), (X[0], 1 << 20), (X[0], 1)],
        {"pixels": True},
        DataError,
        "labels go up to 1048576; expected indices of at most 1048",
    ),
    (
        Net(),
        [(X[0], (1 << 20) - 1)],
        {"pixels": True},
        DataError,
        "labels go up to 1048575, the model has classes 0 to",
    ),
    (Net(), (X, Y), {"pixels": True, "labels_csv": "x.csv"}, DataError, "has its own labels; leave out labels_csv"),
    (Net(), (X, Y), {"pixels": True, "layout": "folders"}, DataError, "has its own labels; leave out layout"),
    (Net(), (X, Y), {"pixels": True, "limit": "3"}, ProtocolError, "limit is '3'; expected a whole number"),
    (Net(), (X, Y), {"pixels": True, "seed": 0.5}, ProtocolError, "seed is 0.5; expected a whole number"),
    (Net(), (X, Y), {"pixels": True, "ids": [1]}, ProtocolError, "ids is list; expected a path"),
    (
        Net(),
        "a" * 5000,
        {"pixels": True},
        ProtocolError,
        "data_dir is a text of 5000 characters, 'aaaa.*a'; expected the p",
    ),
    (Net(), "a\0", {"pixels": True}, ProtocolError, "data_dir is a text of 2 characters"),
    ("zoo:" + "a" * 5000, (X, Y), {}, ProtocolError, "checkpoints is a text of 5004 characters, 'zoo:aaa"),
]


@pytest.mark.parametrize(("net", "data", "options", "kind", "said"), ODD)
def test_what_cannot_be_is_said_before_a_file_is_written(
    net: Any, data: Any, options: dict[str, Any], kind: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        robustkit.audit(net, data, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_images_that_change_are_refused(tmp_path: Path) -> None:
    class Augmented(Photographs):
        def __getitem__(self, place: int) -> dict[str, Any]:
            return {"image": torch.rand(3, 32, 32), "label": place}

    with pytest.raises(
        DataError, match="image 00000: the data set returns another image the second time; remove random"
    ):
        robustkit.audit(Net(), Augmented(), pixels=True, out=tmp_path / "run")


def test_labels_of_a_subset_are_in_its_own_order() -> None:
    """`targets` of the data set behind it are in another."""

    class Squares(Dataset[Any]):
        targets = (0, 1, 2)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            return torch.full((3, 16, 16), place / 3), place

    for data in (part := Subset(Squares(), [2, 0, 1]), DataLoader(part)):
        assert [sample.label for sample in open_held(data).samples] == [2, 0, 1]


def test_labels_are_those_that_a_transform_makes() -> None:
    from torchvision.datasets import FakeData

    class Squares(FakeData):
        targets = (0, 1, 2)

        def __getitem__(self, place: int) -> tuple[Any, Any]:
            image, label = Image.new("RGB", (16, 16)), self.targets[place]
            if self.transforms is not None:
                return self.transforms(image, label)
            return image, label

    for given in ({"target_transform": lambda label: 2 - label}, {"transform": lambda image: image}, {}):
        data = Squares(3, **given)
        assert [sample.label for sample in open_held(data).samples] == [data[i][1] for i in range(3)]


@pytest.mark.parametrize(
    ("task", "arguments", "options", "words"),
    [
        (
            robustkit.text,
            ("zoo:any", "It was the best of times\nit was"),
            {},
            "data is a text of 31 characters, 'It was",
        ),
        (robustkit.text, ("zoo:any", "word " * 2000), {}, "data is a text of 10000 characters"),
        (
            robustkit.text,
            ("zoo:any", ["a"]),
            {},
            "data is list; expected a path: only audit and segment take data in mem",
        ),
        (
            robustkit.series,
            ("zoo:any", np.zeros((2, 3))),
            {},
            "data is ndarray; expected a path: only audit and segment",
        ),
        (
            robustkit.features,
            (ZOO, (X, Y)),
            {"train": SHAPES},
            "data is tuple; expected a path: only audit and segment",
        ),
        (robustkit.features, (ZOO, SHAPES), {"train": (X, Y)}, "train is tuple; expected a path"),
    ],
)
def test_tasks_of_files_say_so(task: Any, arguments: Any, options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, ProtocolError), match=words):
        task(*arguments, out=tmp_path / "run", **options)


def test_a_network_that_takes_another_size_says_that_images_are_resized() -> None:
    network = Net()
    wanted = InputOptions(None, None, None, (0.0,) * 3, (1.0,) * 3, img_size=(48, 48))
    resized = "images of 32 x 32 are resized and cropped to 48 x 48"
    assert resized in classifier_of(network, "net", wanted, (32, 32)).identity.notes
    assert not any("resized" in note for note in classifier_of(network, "net", wanted, (48, 48)).identity.notes)


def test_numbers_and_devices_of_other_libraries(tmp_path: Path) -> None:
    more: dict[str, Any] = {"limit": np.int64(4), "seed": torch.tensor(3), "device": torch.device("cpu")}
    run = robustkit.audit(Net(), images(), pixels=True, attacks="none", out=tmp_path / "run", **more)
    assert (run.manifest.data.n, run.manifest.seed, run.manifest.device[:3]) == (4, 3, "cpu")


def test_what_is_ignored_in_masks_in_memory(tmp_path: Path) -> None:
    """-100 is what losses of torch ignore."""
    pixels, masks = images()[0], torch.arange(12 * 32 * 32).view(12, 32, 32) % 3
    given: dict[str, Any] = {"pixels": True, "attacks": "none", "device": "cpu"}
    (tmp_path / "classes.txt").write_text("sky\nsea\nsand\n", encoding="utf-8")
    network = nn.Conv2d(3, 3, 1)
    first, second = (
        robustkit.segment(network, (pixels, torch.where(masks == 2, label, masks)), ignore=ignored, out=out, **given)
        for label, ignored, out in (
            (255, 255, tmp_path / "usual"),
            (-100, [-100, 255], tmp_path / "torch"),
        )
    )
    assert columns(first, "clean", ("shifted",)) == columns(second, "clean", ("shifted",))
    named = robustkit.segment(
        network, (pixels, masks), classes=tmp_path / "classes.txt", out=tmp_path / "named", **given
    )
    assert named.manifest.data.class_names == ("sky", "sea", "sand")
    for options, words in (
        ({"masks": tmp_path}, "has its own masks; leave out masks"),
        ({"layout": "folders"}, "has its own masks; leave out layout"),
        ({"ignore": "-1.5"}, "--ignore '-1.5': expected labels such as 255"),
    ):
        with pytest.raises((DataError, ProtocolError), match=words):
            robustkit.segment(network, (pixels, masks), out=tmp_path / "none", **options, **given)
    (tmp_path / "classes.txt").write_text("sky\nsea\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"classes.txt: 2 classes \(sky, sea\), but the model has 3"):
        robustkit.segment(network, (pixels, masks), classes=tmp_path / "classes.txt", out=tmp_path / "none", **given)
