"""Models and data sets for MAITE, the protocols by which test and evaluation tools exchange them, and from it.

`as_model` and `as_dataset` give what RobustKit loads to tools that speak MAITE; `network_of` and `dataset_of` give what
those tools hold to `robustkit.audit`. The protocols of `maite.protocols.image_classification` ask for attributes, not
for a base class, so this module works without the package. They leave open which numbers an image and a prediction
have: each function says what it gives and takes, and refuses anything else.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ...data.dataset import Dataset
from ...data.images import to_pixels, to_unit_range
from ...data.in_memory import MemorySource, open_held
from ...data.layouts import Sample
from ...data.sources import DataSource
from ...errors import DataError, ModelError
from ...models.identity import Classifier
from ...models.outputs import SUM, logarithms

_ROUNDED = 0.1  # by which probabilities that were rounded to few digits may miss 1
_OUTPUTS = ("logits", "probabilities")


class MaiteModel:
    """A classifier as `image_classification.Model`: images (3, H, W) in a sequence to probabilities (K,), float32.

    metadata: `id`, the checkpoint's name, and `index2label` where its classes have names.
    """

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, names = classifier, classifier.identity.class_names
        self.metadata: dict[str, Any] = {"id": classifier.identity.name}
        self.metadata |= {"index2label": dict(enumerate(names))} if names else {}

    def __call__(self, input_batch: Sequence[Any], /) -> list[NDArray[np.float32]]:
        if not len(input_batch):
            return []
        pixels = torch.stack([self._pixels(image, f"image {place}") for place, image in enumerate(input_batch)])
        with torch.inference_mode():
            probabilities = self.classifier(pixels.to(self.classifier.mean.device)).float().softmax(1)
        return list(probabilities.cpu().numpy())

    def _pixels(self, image: Any, name: str) -> Tensor:
        tensor, preprocessing = _image(image, name), self.classifier.identity.preprocessing
        if not tensor.numel():
            raise ModelError(f"{name} has shape {tuple(tensor.shape)}; expected (3, H, W) with pixels")
        if tensor.dtype == torch.uint8:
            picture = Image.fromarray(tensor.permute(1, 2, 0).contiguous().numpy())
            return to_unit_range(to_pixels(picture, preprocessing, name))
        low, high = (float(value) for value in tensor.aminmax())
        if not (tensor.is_floating_point() and 0 <= low <= high <= 1):  # also where there is a NaN
            what = f"{name} is {tensor.dtype} from {low:.4g} to {high:.4g}"
            raise ModelError(f"{what}; expected uint8, or floats in [0, 1]: the model normalises by itself")
        if tuple(tensor.shape[1:]) != preprocessing.input_size:
            actual, size = (" x ".join(map(str, each)) for each in (tensor.shape[1:], preprocessing.input_size))
            raise ModelError(f"{name} is {actual} in floats; expected {size}: give uint8, which is resized and cropped")
        return tensor.float()


def as_model(classifier: Classifier) -> MaiteModel:
    """Return a classifier as a MAITE model, on the device where it is.

    It takes arrays (3, H, W), RGB. uint8 is a picture of any size, resized and cropped as the audit does with a file.
    Floats in [0, 1] are the model's input, of exactly its size; nothing is resized. It normalises both by itself, and
    returns probabilities.

    Raises ModelError for anything but a classifier with classes; the model does for images that are neither.
    """
    if not isinstance(classifier, Classifier):
        raise ModelError(f"the model is {type(classifier).__name__}; expected a Classifier: robustkit.load(…)")
    if not classifier.identity.num_classes:
        raise ModelError(f"{classifier.identity.name} returns features; expected a classifier with classes")
    return MaiteModel(classifier)


class MaiteDataset:
    """A data set as `image_classification.FieldwiseDataset`: (image, target, metadata) by position, read on request.

    An image is (3, H, W) uint8, RGB, upright, in the size of its file; a target (K,) float32, one-hot. The metadata of
    a datum has the `id` of the sample. metadata: `id`, the data set's name, and `index2label`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.metadata: dict[str, Any] = {"id": dataset.name, "index2label": dict(enumerate(dataset.class_names))}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int, /) -> tuple[NDArray[np.uint8], NDArray[np.float32], dict[str, Any]]:
        return self.get_input(index), self.get_target(index), self.get_metadata(index)

    def get_input(self, index: int, /) -> NDArray[np.uint8]:
        pixels = np.asarray(self.dataset.image(self.dataset.samples[index]))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def get_target(self, index: int, /) -> NDArray[np.float32]:
        target = np.zeros(len(self.dataset.class_names), np.float32)
        target[self.dataset.samples[index].label] = 1
        return target

    def get_metadata(self, index: int, /) -> dict[str, Any]:
        return {"id": self.dataset.samples[index].id}


def as_dataset(dataset: Dataset) -> MaiteDataset:
    """Return what `robustkit.data.open_dataset` opens as a MAITE data set.

    Raises DataError for samples without a label, or with several right ones (ReaL), and where only some outputs compete
    (ImageNet-A and -R): a one-hot target cannot say so, and MAITE's metrics would give other numbers.
    """
    if dataset.valid_labels is not None:
        raise DataError(f"{dataset.name}: only some outputs compete, which MAITE cannot say; expected all of them")
    count = len(dataset.class_names)
    if odd := next((each for each in dataset.samples if not 0 <= each.label < count or each.valid is not None), None):
        what = f"label {odd.label}" if odd.valid is None else f"{len(odd.valid)} right labels"
        raise DataError(f"{dataset.name}: {odd.id} has {what}; expected one of 0 to {count - 1} for a one-hot target")
    return MaiteDataset(dataset)


class MaiteNetwork(nn.Module):
    """A MAITE model as a network: images (B, 3, H, W) to logits (B, K). See `network_of`."""

    def __init__(self, model: Any, outputs: str) -> None:
        super().__init__()
        self._held, self.outputs = (model,), outputs  # in a tuple, or its layers would be moved to another device

    def forward(self, images: Tensor) -> Tensor:
        batch = images.to("cpu", torch.float32)
        try:
            rows = self._rows(batch)
        except RuntimeError as fault:
            if "requires grad" not in str(fault):
                raise
            rows = self._rows(batch.detach())  # it asks for arrays, which have no gradients
        self._check(rows)
        rows = logarithms(rows) if self.outputs == "probabilities" else rows.float()
        return rows.to(images.device)

    def _check(self, rows: Tensor) -> None:
        """Raise ModelError where rows of outputs are not what was said."""
        low, high, sums = float(rows.min()), float(rows.max()), rows.float().sum(1)
        off, shares = float((sums - 1).abs().max()), low >= 0 and high <= 1 + SUM
        rounded = torch.allclose(rows.float(), rows.float().round(decimals=3), rtol=0, atol=1e-6)
        if self.outputs == "logits" and shares and off <= (_ROUNDED if rounded else SUM):
            raise ModelError("the MAITE model returned probabilities; expected logits, or give outputs='probabilities'")
        if self.outputs == "probabilities" and not shares:
            outputs = f"{low:.4g} to {high:.4g}"
            raise ModelError(f"the MAITE model returned {outputs}; expected probabilities, or give outputs='logits'")
        if self.outputs == "probabilities" and not off <= max(SUM, torch.finfo(rows.dtype).eps):
            outputs = f"rows that sum to {float(sums.min()):.4g} to {float(sums.max()):.4g}"
            raise ModelError(f"the MAITE model returned {outputs}; expected 1: return them unrounded, or return logits")

    def _rows(self, batch: Tensor) -> Tensor:
        outputs = self._held[0](list(batch))
        try:
            rows = [each.cpu() if isinstance(each, Tensor) else torch.tensor(np.asarray(each)) for each in outputs]
        except (TypeError, ValueError):
            what = f"the MAITE model returned {type(outputs).__name__}, which is not"
            raise ModelError(f"{what} one row of numbers for each image; expected a sequence of arrays") from None
        shapes = {tuple(row.shape) for row in rows}
        if len(rows) != len(batch) or len(shapes) != 1 or rows[0].ndim != 1:
            forms = ", ".join(map(str, sorted(shapes))) or "nothing"
            expected = f"expected {len(batch)} of one shape (classes,)"
            raise ModelError(f"the MAITE model returned {len(rows)} predictions of shape {forms}; {expected}")
        stacked = torch.stack(rows)
        return stacked if stacked.is_floating_point() else stacked.float()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the tensors and the code of the model, by which a run recognises it."""
        saved = {**_weights(self._held[0]), "code": torch.tensor(list(_code(type(self._held[0]))), dtype=torch.uint8)}
        destination.update({f"{prefix}{name}": tensor for name, tensor in saved.items()})


def network_of(model: Any, *, outputs: str) -> nn.Module:
    """Return a MAITE model as a network that `robustkit.audit` takes: with pixels=True, or with the mean and std that
    bring pixels in [0, 1] to what the model expects: std 1/255 for one that expects 0 to 255.

    The model gets float32 tensors (3, H, W) on the CPU, and brings them to its own device. One that returns tensors
    with a graph has gradients; any other is attacked by what asks for answers alone, as ONNX is. A run recognises the
    model by the code of its class, and by modules, tensors and arrays among its attributes, not by weights elsewhere.

    outputs: `logits`, or `probabilities`, of which the logarithm is taken. NLL and calibration depend on it.

    Raises ModelError for other outputs, for what cannot be called, and for a network in training mode; the network does
    where the outputs are not what was said.
    """
    if outputs not in _OUTPUTS:
        raise ModelError(f"outputs {outputs!r}: expected {' or '.join(_OUTPUTS)}")
    if not callable(model):
        raise ModelError(f"the model is {type(model).__name__}; expected a MAITE model, which is called with images")
    if any(each.training for each in _attributes(model).values() if isinstance(each, nn.Module)):
        raise ModelError(f"{type(model).__name__} has a network in training mode; call eval() on it first")
    return MaiteNetwork(model, outputs)


def _attributes(model: Any) -> dict[str, Any]:
    return {"": model} if isinstance(model, nn.Module) else getattr(model, "__dict__", {})


def _weights(model: Any) -> dict[str, Tensor]:
    weights = dict[str, Tensor]()
    for name, each in _attributes(model).items():
        if isinstance(each, nn.Module):
            weights |= {f"{name}.{key}": part for key, part in each.state_dict().items() if isinstance(part, Tensor)}
        elif isinstance(each, Tensor):
            weights[name] = each
        elif isinstance(each, np.ndarray) and each.dtype.kind in "biuf":
            weights[name] = torch.tensor(each)
    return weights


def _code(kind: type) -> bytes:
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt, or compiled
        called = getattr(kind.__call__, "__code__", None)
        text = repr((called.co_code, called.co_consts, called.co_names)) if called else kind.__qualname__
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True)
class _NamedSource(DataSource):
    """Images in memory by the ids that a MAITE data set gives. places: ids to those of `held`. classes: names that go
    with the labels, where they are known."""

    held: MemorySource
    places: Mapping[str, str]
    classes: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        return self.held.size

    def read(self, sample_id: str) -> bytes:
        return self.held.read(self.places[sample_id])


class _Labelled:
    """Images and labels of a MAITE data set, as `open_held` takes them. targets: labels, without reading an image."""

    def __init__(self, dataset: Any, targets: Sequence[int]) -> None:
        self.held, self.targets = dataset, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return _image(_field(self.held, "get_input", 0)(index), f"image {index}"), self.targets[index]


def dataset_of(dataset: Any, *, classes: Sequence[str] | None = None) -> Dataset:
    """Return a MAITE data set as `robustkit.audit` takes it for data_dir; ids are those of the metadata of each datum.

    An image is (3, H, W), RGB, uint8 or floating in [0, 1], which is rounded to 8 bits. A network in memory is shown it
    as it is; a checkpoint of a file resizes and crops it. A label is the largest entry of the target.
    classes: names of the model's outputs, in order. Labels are then found by their names in `index2label`; otherwise
    label i is output i.

    Raises DataError where ids repeat, a target has no single largest entry, a name is unknown, or an image is not such.
    """
    count, metadata = len(dataset), getattr(dataset, "metadata", None) or {}
    target, about = _field(dataset, "get_target", 1), _field(dataset, "get_metadata", 2)
    labels = [_label(target(place), f"target {place}") for place in range(count)]
    names = _names(metadata.get("index2label") or {})
    if classes is not None:
        labels = [_place(label, names, classes) for label in labels]
    held = open_held(_Labelled(dataset, labels))
    ids = [_id((about(place) or {}).get("id"), place) for place in range(count)]
    (repeated, times), *_ = Counter(ids).most_common(1)
    if times > 1:
        raise DataError(f"the id {repeated!r} stands for {times} images; expected another one for each")
    samples = sorted(map(Sample, ids, labels), key=lambda sample: sample.id)
    places = {one: sample.id for one, sample in zip(ids, held.samples, strict=True)}
    is_named = len(names) > max(labels) and set(names) == set(range(len(names)))
    class_names = classes or (tuple(names[place] for place in range(len(names))) if is_named else held.class_names)
    assert isinstance(held.source, MemorySource)
    return replace(
        held,
        name=str(metadata.get("id") or held.name),
        class_names=tuple(class_names),
        samples=tuple(samples),
        source=_NamedSource(held.source, places, tuple(class_names) if classes or is_named else ()),
    )


def _names(index: Any) -> dict[int, str]:
    try:
        return {int(number): str(name) for number, name in index.items()}
    except (AttributeError, TypeError, ValueError):
        text = f"{str(index)[:60]!r}"
        raise DataError(f"index2label is {text}; expected a mapping of class numbers to names") from None


def _field(dataset: Any, accessor: str, part: int) -> Callable[[int], Any]:
    """Return what gives one part of a datum: the accessor of a fieldwise data set, else the whole datum is read."""
    return getattr(dataset, accessor, None) or (lambda place: dataset[place][part])


def _image(image: Any, name: str) -> Tensor:
    tensor = image.detach().cpu() if isinstance(image, Tensor) else torch.tensor(np.asarray(image))
    if tensor.ndim != 3 or len(tensor) != 3:
        raise DataError(f"{name} has shape {tuple(tensor.shape)}; expected (3, H, W), RGB with channels first")
    return tensor


def _label(target: Any, name: str) -> int:
    row = np.asarray(target.detach().cpu() if isinstance(target, Tensor) else target)
    if row.ndim != 1 or not len(row) or np.isnan(row).any() or (row == row.max()).sum() != 1:
        form = f"shape {row.shape}" if row.ndim != 1 else f"no single largest entry among {len(row)}"
        raise DataError(f"{name} has {form}; expected one number for each class, one-hot or probabilities")
    return int(row.argmax())


def _place(label: int, names: Mapping[int, str], classes: Sequence[str]) -> int:
    name = names.get(label)
    if name is None or name not in classes:
        raise DataError(f"label {label} is {name!r}, which is none of the classes; check index2label and classes")
    return list(classes).index(name)


def _id(value: Any, place: int) -> str:
    """Return an id as text; a number has five digits or more, so that ids sort as numbers."""
    if isinstance(value, bool) or not isinstance(value, Integral | str) or value == "":
        raise DataError(f"the metadata of datum {place} has the id {value!r}; expected a text or a whole number")
    return value if isinstance(value, str) else f"{int(value):05d}"
