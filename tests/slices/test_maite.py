"""Models and data sets of MAITE, both ways: the numbers are those of RobustKit's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustkit
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.errors import DataError, ModelError
from robustkit.slices.maite import as_dataset, as_model, dataset_of, network_of

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
ZOO, SHAPES = "zoo:shapes-vit-quest", "embedded:shapes"
OPTIONS: dict[str, Any] = {"attacks": "pgd(steps=2)", "corruptions": "fog(severity=2)", "device": "cpu"}


def shapes(limit: int = 24) -> Dataset:
    return open_dataset(SHAPES).select(limit=limit)


def columns(run: robustkit.Run, condition: str) -> dict[str, list[Any]]:
    return run.table(run.manifest.names[0], condition).to_pydict()


class Plain:
    """A data set by the protocol's own example: whole datums, without accessors. The order is not that of the ids."""

    def __init__(self, images: Sequence[Any], targets: Any, ids: Sequence[Any], names: Sequence[str] = ()) -> None:
        self.images, self.targets, self.ids = images, targets, ids
        self.metadata = {"id": "plain", **({"index2label": dict(enumerate(names))} if names else {})}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.targets[index], {"id": self.ids[index]}


class Torch:
    """A model that keeps the graph, and returns logits; takes images of 0 … 255 where `scale` is 255."""

    def __init__(self, net: torch.nn.Module, scale: float = 1, probabilities: bool = False) -> None:
        self.metadata, self.net, self.scale, self.probabilities = {"id": "torch"}, net, scale, probabilities

    def __call__(self, batch: Sequence[Any], /) -> Sequence[Any]:
        logits = self.net(torch.stack([torch.as_tensor(each) for each in batch]) / self.scale)
        return list(logits.softmax(1) if self.probabilities else logits)


class Arrays(Torch):
    """One that works on arrays of NumPy, as the protocol allows: it has no gradients."""

    def __call__(self, batch: Sequence[Any], /) -> Sequence[Any]:
        with torch.no_grad():
            return [row.numpy() for row in super().__call__([np.asarray(each) for each in batch])]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> robustkit.Run:
    return robustkit.audit(ZOO, SHAPES, limit=24, out=tmp_path_factory.mktemp("maite") / "own", **OPTIONS)


def test_a_data_set_there_and_back_has_the_same_records(embedded: robustkit.Run, tmp_path: Path) -> None:
    there = as_dataset(shapes())
    back = dataset_of(there)
    assert back.samples == shapes().samples and back.class_names == shapes().class_names
    places = np.random.default_rng(0).permutation(len(there)).tolist()
    shuffled = Plain(*zip(*((there[i][0], there[i][1], there[i][2]["id"]) for i in places), strict=True))  # type: ignore[arg-type]
    for name, data in (("fieldwise", back), ("whole", dataset_of(shuffled))):
        run = robustkit.audit(ZOO, data, out=tmp_path / name, **OPTIONS)
        assert run.manifest.conditions == embedded.manifest.conditions
        for condition in run.manifest.conditions:
            assert columns(run, condition) == columns(embedded, condition)


@pytest.mark.parametrize("scale", [1, 255])
def test_a_model_there_and_back_has_the_same_records(embedded: robustkit.Run, scale: int, tmp_path: Path) -> None:
    net = network_of(Torch(robustkit.load(ZOO), scale), outputs="logits")
    given = {"pixels": True} if scale == 1 else {"mean": (0, 0, 0), "std": (1 / scale,) * 3}
    run = robustkit.audit({"theirs": net}, dataset_of(as_dataset(shapes())), out=tmp_path / "run", **given, **OPTIONS)
    for condition in embedded.manifest.conditions:
        found, expected = columns(run, condition), columns(embedded, condition)
        assert found["sample_id"] == expected["sample_id"] and found["prediction"] == expected["prediction"]
        assert np.allclose(found["nll"], expected["nll"], atol=2e-3 if scale > 1 else 1e-6)


def test_probabilities_are_taken_as_such(embedded: robustkit.Run, tmp_path: Path) -> None:
    """A softmax of probabilities would be another one: NLL shows it. Arrays have no gradients."""
    net = network_of(Arrays(robustkit.load(ZOO), probabilities=True), outputs="probabilities")
    data = dataset_of(as_dataset(shapes()))
    options: dict[str, Any] = {"pixels": True, "device": "cpu", "out": tmp_path}
    with pytest.raises(ModelError, match="needs gradients, which theirs lacks"):
        robustkit.audit({"theirs": net}, data, attacks="pgd(steps=2)", **options)
    run = robustkit.audit({"theirs": net}, data, attacks="square(queries=5)", **options)
    assert np.allclose(columns(run, "clean")["nll"], columns(embedded, "clean")["nll"], atol=1e-4)


def test_our_model_predicts_there_what_it_predicts_here(embedded: robustkit.Run) -> None:
    model, there = as_model(robustkit.load(ZOO)), as_dataset(shapes())
    predicted = [model([there[place][0]])[0] for place in range(len(there))]
    assert [int(row.argmax()) for row in predicted] == columns(embedded, "clean")["prediction"]
    right = [float(-np.log(row[int(there[place][1].argmax())])) for place, row in enumerate(predicted)]
    assert np.allclose(right, columns(embedded, "clean")["nll"], atol=1e-4)
    large = np.kron(there[0][0], np.ones((1, 3, 3), np.uint8))  # a picture of 192 x 192 is resized
    in_floats = model([torch.from_numpy(there[0][0]) / 255, large])
    assert np.allclose(in_floats[0], predicted[0], atol=1e-6) and np.allclose(in_floats[1], predicted[0], atol=0.1)
    assert model([]) == [] and model.metadata["index2label"][0] == "arrow"


def test_tools_of_maite_take_both() -> None:
    pytest.importorskip("maite", reason="pip install maite")
    from maite.protocols import image_classification as ic
    from maite.tasks import evaluate, predict

    class Accuracy:
        """A metric by the protocol, counted by hand."""

        metadata = {"id": "accuracy"}  # noqa: RUF012 - as the protocol has it

        def reset(self) -> None:
            self.right: list[bool] = []

        def update(self, predictions: Any, targets: Any, metadata: Any, /) -> None:
            self.right += [int(p.argmax()) == int(t.argmax()) for p, t in zip(predictions, targets, strict=True)]

        def compute(self) -> dict[str, float]:
            return {"accuracy": sum(self.right) / len(self.right)}

    model, dataset, metric = as_model(robustkit.load(ZOO)), as_dataset(shapes()), Accuracy()
    metric.reset()
    fieldwise = getattr(ic, "FieldwiseDataset", ic.Dataset)  # 0.9 has none
    for each, protocol in ((model, ic.Model), (dataset, ic.Dataset), (dataset, fieldwise)):
        assert isinstance(each, protocol)
    found, _, _ = evaluate(model=model, dataset=dataset, metric=metric, batch_size=5)
    own = robustkit.load(ZOO)
    with torch.inference_mode():
        pixels = torch.stack([torch.from_numpy(dataset[place][0]) for place in range(24)]) / 255
        expected = (own(pixels).argmax(1) == torch.tensor([s.label for s in shapes().samples])).float().mean()
    assert found["accuracy"] == pytest.approx(float(expected)) and found["accuracy"] > 0.5
    predictions, _ = predict(model=model, dataset=dataset, batch_size=7)
    assert sum(map(len, predictions)) == 24


def test_a_run_recognises_a_model_by_weights_and_class(tmp_path: Path) -> None:
    def net(kind: type[Torch] = Torch, change: float = 0) -> torch.nn.Module:
        loaded = robustkit.load(ZOO)
        next(loaded.parameters()).add_(change)
        return network_of(kind(loaded), outputs="logits")

    given: dict[str, Any] = {"pixels": True, "attacks": "none", "out": tmp_path / "run", "device": "cpu"}
    data = dataset_of(as_dataset(shapes(4)))
    first = robustkit.audit({"m": net()}, data, **given)
    assert robustkit.audit({"m": net()}, data, **given).summary() == first.summary()
    for other in (net(change=0.1), net(Arrays)):
        with pytest.raises(robustkit.errors.RunError, match="contains another run"):
            robustkit.audit({"m": other}, data, **given)


def test_labels_follow_names_where_classes_are_given() -> None:
    images, targets = np.zeros((2, 3, 16, 16), np.uint8), np.eye(3)[[0, 2]]
    plain = Plain(images, targets, [7, 12], ("cat", "dog", "owl"))
    found = dataset_of(plain, classes=("owl", "cat"))
    assert [(sample.id, sample.label) for sample in found.samples] == [("00007", 1), ("00012", 0)]
    assert found.class_names == ("owl", "cat") and dataset_of(plain).class_names == ("cat", "dog", "owl")
    with pytest.raises(DataError, match="label 2 is 'owl', which is none of the classes"):
        dataset_of(plain, classes=("cat", "dog"))


IMAGES = np.zeros((2, 3, 16, 16), np.float32)


@pytest.mark.parametrize(
    ("images", "targets", "ids", "said"),
    [
        (IMAGES, np.eye(2), ["a", "a"], "the id 'a' stands for 2 images"),
        (IMAGES, np.eye(2), ["a", None], "the metadata of datum 1 has the id None"),
        (IMAGES, np.array([0, 1]), ["a", "b"], r"target 0 has shape \(\)"),
        (IMAGES, np.full((2, 4), 0.25), ["a", "b"], "target 0 has no single largest entry among 4"),
        (IMAGES + 2, np.eye(2), ["a", "b"], r"expected floats in \[0, 1\]"),
        (IMAGES.transpose(0, 2, 3, 1), np.eye(2), ["a", "b"], r"image 0 has shape \(16, 16, 3\)"),
        (IMAGES[:, :1], np.eye(2), ["a", "b"], r"image 0 has shape \(1, 16, 16\)"),
    ],
)
def test_data_sets_that_are_refused(images: Any, targets: Any, ids: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        dataset_of(Plain(images, targets, ids))


def test_names_and_ids_of_other_kinds() -> None:
    plain = Plain(IMAGES, np.eye(2), [np.int64(3), 4])
    plain.metadata = None  # type: ignore[assignment]
    assert [sample.id for sample in dataset_of(plain).samples] == ["00003", "00004"]
    for given in (["cat", "dog"], {"zero": "cat"}):
        plain.metadata = {"id": "plain", "index2label": given}
        with pytest.raises(DataError, match="expected a mapping of class numbers to names"):
            dataset_of(plain)


def test_models_and_images_that_are_refused(tmp_path: Path) -> None:
    loaded = robustkit.load(ZOO)
    pictures = torch.rand(2, 3, 64, 64)
    for said, made in (("logits", True), ("probabilities", False)):
        with pytest.raises(ModelError, match=f"expected {said}, or give outputs="):
            network_of(Torch(loaded, probabilities=made), outputs=said)(pictures)
    shares = torch.tensor([[0.62, 0.35, 0.0], [0.4, 0.3, 0.33]])  # rounded, or of another function
    for said, text in (("probabilities", "sum to 0.97 to 1.03; expected 1: return them unrounded"), ("logits", "prob")):
        with pytest.raises(ModelError, match=text):
            network_of(lambda batch: shares, outputs=said)(pictures)
    scores = torch.tensor([[0.3123, 0.4219, 0.2111]])  # logits, as similarities of texts are
    assert torch.equal(network_of(lambda batch: scores, outputs="logits")(pictures[:1]), scores)
    half = torch.tensor([[0.9979, 0.0021], [0.6, 0.4]]).bfloat16()
    taken = network_of(lambda batch: half, outputs="probabilities")(pictures)
    assert float((half.float().sum(1) - 1).abs().max()) > 1.5e-3 and torch.equal(taken.exp().bfloat16(), half)
    for odd in (None, ["cat", "dog"], 3):
        with pytest.raises(ModelError, match="not one row of numbers for each image"):
            network_of(lambda batch, odd=odd: odd, outputs="logits")(pictures)
    with pytest.raises(ModelError, match="outputs 'softmax': expected logits or probabilities"):
        network_of(Torch(loaded), outputs="softmax")
    with pytest.raises(ModelError, match="training mode; call eval"):
        network_of(Torch(torch.nn.Dropout().train()), outputs="logits")
    with pytest.raises(ModelError, match=r"returned 1 predictions of shape \(1, 10\); expected 2"):
        network_of(lambda batch: torch.zeros(1, 1, 10), outputs="logits")(torch.rand(2, 3, 64, 64))
    model = as_model(loaded)
    for image, text in (
        (np.zeros((3, 32, 32), np.float32), "image 0 is 32 x 32 in floats; expected 64 x 64"),
        (np.full((3, 64, 64), 200.0), "expected uint8, or floats in"),
        (np.full((3, 64, 64), np.nan), "expected uint8, or floats in"),
        (np.zeros((3, 0, 0), np.uint8), r"shape \(3, 0, 0\); expected \(3, H, W\) with pixels"),
    ):
        with pytest.raises(ModelError, match=text):
            model([image])
    with pytest.raises(ModelError, match="the model is Linear; expected a Classifier"):
        as_model(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_what_a_one_hot_target_cannot_say_is_refused() -> None:
    from dataclasses import replace

    data = shapes(4)
    with pytest.raises(DataError, match="only some outputs compete"):
        as_dataset(replace(data, valid_labels=(0, 1)))
    for change, said in (({"label": -1}, "label -1"), ({"valid": (0, 1)}, "2 right labels")):
        with pytest.raises(DataError, match=said):
            as_dataset(replace(data, samples=(replace(data.samples[0], **change),)))  # type: ignore[arg-type]
