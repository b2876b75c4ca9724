"""Each way that a model or data come in, by each thing that it may state: what an audit makes of it.

    PYTHONPATH=tests/support python -m doors    # prints the table

A cell is `same` (each sample has the label, the prediction and the loss of the plain reference), `finding` (a flag says
what was assumed), `refused` (one line), or empty where the door cannot state that.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import raised
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.datasets import ImageFolder

import robustkit
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.errors import RobustkitError
from robustkit.slices.maite import as_dataset, dataset_of

ZOO, COUNT, SIDE = "zoo:shapes-vit-quest", 12, 64
COLUMNS = ("labels", "order", "n", "class names", "normalisation", "size", "formula", "text")
HALF = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
Pairs = Sequence[tuple[int, int]]  # images by their numbers, with labels
Cell = Callable[["Place"], str]


@dataclass
class Place:
    """A folder with images, in class folders, and a trusted classifier. Numbers of images are places in `pixels`."""

    root: Path
    runs: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> Any:
        return robustkit.load(ZOO)

    @cached_property
    def pixels(self) -> Tensor:
        shapes = open_dataset("embedded:shapes").select(limit=COUNT)
        self.labels = [sample.label for sample in shapes.samples]
        return torch.stack([torch.from_numpy(np.array(shapes.image(s))).permute(2, 0, 1) for s in shapes.samples])

    @property
    def whole(self) -> list[tuple[int, int]]:
        assert len(self.pixels) == COUNT
        return list(enumerate(self.labels))

    def path(self, name: str) -> Path:
        return self.root / name

    def folder(self, name: str, pairs: Pairs, images: Tensor | None = None, names: Sequence[str] = ()) -> Path:
        """Write images in folders named after their labels."""
        images, names, place = (
            self.pixels if images is None else images,
            names or self.model.identity.class_names,
            self.path(name),
        )
        for number, label in pairs:
            (place / names[label]).mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(images[number].permute(1, 2, 0).numpy())
            picture.save(place / names[label] / f"{number:02d}.png")
        return place

    @property
    def large(self) -> Tensor:
        """The images with borders, 80 pixels on each side."""
        return nn.functional.pad(self.pixels, (8,) * 4, value=90)

    def larger(self, checkpoint: Any) -> tuple[Any, Any, Any]:
        """Return the expected rows of the images with borders, a checkpoint, and these images in folders."""
        return self.reference(self.whole, self.large), checkpoint, self.folder("large", self.whole, self.large)

    def reference(self, pairs: Pairs, images: Tensor | None = None, model: Any = None) -> list[tuple[int, int, float]]:
        model, images = model or self.model, self.pixels if images is None else images
        p: Preprocessing = model.identity.preprocessing
        rows = []
        for number, label in pairs:
            shown = to_pixels(Image.fromarray(images[number].permute(1, 2, 0).numpy()), p)
            with torch.no_grad():
                logits = model(shown[None] / 255)[0]
            rows.append((label, int(logits.argmax()), float(-logits.log_softmax(0)[label])))
        return sorted(rows)

    def audit(self, checkpoint: Any = ZOO, data: Any = None, **options: Any) -> Any:
        self.runs += 1
        data = self.folder("val", self.whole) if data is None else data
        given = {"attacks": "none", "setup_check": False, "device": "cpu", "progress": False, "say": lambda line: None}
        return robustkit.audit(checkpoint, data, out=self.path(f"run{self.runs}"), **given, **options)

    def outcome(self, expected: Any, checkpoint: Any = ZOO, data: Any = None, **options: Any) -> str:
        """Return `same` for the expected rows, else what differs; `finding` or `refused` with what they say."""
        try:
            run = self.audit(checkpoint, data, **options)
        except RobustkitError as fault:
            return f"refused: {fault}"
        rows = run.table(run.manifest.names[0], "clean").to_pylist()
        found = sorted((row["label"], row["prediction"], row["nll"]) for row in rows)
        findings = sorted({each.text for each in raised(run.results())} - {NOT_CHECKED})
        alike = expected is None or (
            len(found) == len(expected)
            and all(
                one[:2] == other[:2] and abs(one[2] - other[2]) < 2e-3
                for one, other in zip(found, expected, strict=True)
            )
        )
        if not alike:
            return f"OTHER FIGURES: {found[:2]} for {expected[:2]}"
        return f"finding: {findings[0]}" if findings else "same"


NOT_CHECKED = "the set-up was not checked: --no-setup-check was given"


def shifted(place: Place) -> list[tuple[int, int]]:
    """Return the images with other labels for two of them."""
    (first, one), (second, other), *rest = place.whole
    return [(first, other), (second, one), *rest]


# Data


class Held(Dataset[Any]):
    """Images and labels that are indexed, next to attributes that say something else."""

    def __init__(self, images: Tensor, pairs: Pairs, classes: Sequence[str] = ()) -> None:
        self.images, self.pairs = images, list(pairs)
        self.targets = [0] * len(self.pairs)
        if classes:
            self.classes = list(classes)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        number, label = self.pairs[place]
        return self.images[number], label


def table(
    place: Place, name: str, pairs: Pairs, images: Tensor | None = None, names: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return a folder of images without classes, and the option that names a table of their labels."""
    folder = place.folder(f"{name}-all", [(number, 0) for number, _ in pairs], images, ["images"])
    with place.path(f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("filename", "label"), *((f"images/{n:02d}.png", names[k] if names else k) for n, k in pairs)]
        )
    return folder, {"labels_csv": place.path(f"{name}.csv")}


def zipped(place: Place, folder: Path) -> tuple[Any, dict[str, Any]]:
    with zipfile.ZipFile(archive := folder.with_suffix(".zip"), "w") as file:
        for path in sorted(folder.rglob("*.png"), reverse=True):
            file.write(path, path.relative_to(folder))
    return archive, {}


def tensors(place: Place, name: str, pairs: Pairs, images: Tensor | None = None) -> tuple[Any, dict[str, Any]]:
    images = place.pixels if images is None else images
    return (torch.stack([images[n] for n, _ in pairs]), torch.tensor([label for _, label in pairs])), {}


def loader(kind: str) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Return what makes a loader whose own part decides which samples come, and how."""

    def make(place: Place, name: str, pairs: Pairs, images: Tensor | None = None) -> tuple[Any, dict[str, Any]]:
        every = Held(place.pixels if images is None else images, [(number, 9 - number % 10) for number in range(COUNT)])
        chosen, labels = [number for number, _ in pairs], dict(pairs)
        every.pairs = [(number, labels.get(number, 0)) for number in range(COUNT)]
        if kind == "sampler":
            return DataLoader(every, 5, sampler=chosen), {}
        if kind == "batch sampler":
            return DataLoader(every, batch_sampler=[chosen[:3], chosen[3:]]), {}
        wrong = Held(every.images, [(number, 0) for number in range(COUNT)])

        def collate(batch: list[Any]) -> Any:
            seen, _ = default_collate(batch)
            numbers = [next(n for n in chosen if torch.equal(every.images[n], image)) for image in seen]
            return seen, torch.tensor([labels[n] for n in numbers])

        return DataLoader(wrong, 4, sampler=chosen, collate_fn=collate), {}

    return make


def maite(place: Place, name: str, pairs: Pairs, images: Tensor | None = None) -> tuple[Any, dict[str, Any]]:
    return dataset_of(as_dataset(open_dataset(place.folder(f"{name}-maite", pairs, images)))), {}


DATA: dict[str, Callable[..., tuple[Any, dict[str, Any]]]] = {
    "folder": lambda place, name, pairs, images=None: (place.folder(name, pairs, images), {}),
    "zip": lambda place, name, pairs, images=None: zipped(place, place.folder(f"{name}-z", pairs, images)),
    "CSV": table,
    "tensors": tensors,
    "Dataset": lambda place, name, pairs, images=None: (Held(place.pixels if images is None else images, pairs), {}),
    "loader, sampler": loader("sampler"),
    "loader, batch sampler": loader("batch sampler"),
    "loader, collate": loader("collate"),
    "MAITE": maite,
}


def data_cells(door: str) -> dict[str, Cell]:
    make = DATA[door]

    def cell(name: str, pairs_of: Callable[[Place], Pairs], large: bool = False) -> Cell:
        def filled(place: Place) -> str:
            pairs, images = pairs_of(place), place.large if large else None
            data, options = make(place, f"{door}-{name}".replace(" ", ""), pairs, images)
            return place.outcome(place.reference(pairs, images), data=data, **options)

        return filled

    cells = {
        "labels": cell("labels", shifted),
        "order": cell("order", lambda place: place.whole[::-1]),
        "n": cell("n", lambda place: place.whole[3:8]),
        "size": cell("size", lambda place: place.whole, large=True),
    }
    if door not in ("folder", "zip", "CSV", "MAITE"):
        cells["normalisation"] = lambda place: place.outcome(
            None, data=make(place, "n", place.whole, (place.pixels / 255 - 0.5) / 0.5)[0]
        )
    named = {"CSV": _named_table, "Dataset": _named_dataset, "MAITE": _named_maite}
    if door in ("folder", "zip"):  # named as the checkpoint's classes, which are sorted; here by other words
        words = lambda place: [name.upper() for name in place.model.identity.class_names]  # noqa: E731
        cells["class names"] = lambda place: place.outcome(
            place.reference(place.whole),
            data=_maybe_zipped(place, door, place.folder(f"{door}-names", place.whole, names=words(place))),
        )
    elif door in named:
        cells["class names"] = named[door]
    return cells


def _maybe_zipped(place: Place, door: str, folder: Path) -> Any:
    return zipped(place, folder)[0] if door == "zip" else folder


def _named_table(place: Place) -> str:
    data, options = table(place, "CSV-names", place.whole, names=place.model.identity.class_names)
    return place.outcome(place.reference(place.whole), data=data, **options)


def _named_dataset(place: Place) -> str:
    """Return the outcome for a data set whose names are in another order than the outputs."""
    names = place.model.identity.class_names[::-1]
    mapped = ImageFolder(place.folder("torchvision", place.whole))  # whose names lead to the outputs
    mapped.classes, mapped.samples = list(names), [(path, 9 - label) for path, label in mapped.samples]
    first = place.outcome(place.reference(place.whole), data=mapped)
    second = place.outcome(place.reference(place.whole), data=Held(place.pixels, place.whole, names))
    return second if first == "same" else first


def _named_maite(place: Place) -> str:
    protocol = as_dataset(open_dataset(place.folder("maite-names", place.whole)))
    return place.outcome(
        place.reference(place.whole), data=dataset_of(protocol, classes=place.model.identity.class_names)
    )


# Models


def exported(place: Place, kind: str, **more: Any) -> str:
    """Return the spec of the trusted network as a graph. more: entries of its metadata."""
    path = place.path(f"vit-{len(more)}.{kind}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        images, shapes = torch.rand(3, 3, SIDE, SIDE), ({0: torch.export.Dim("rows")},)
        if kind == "pt2":
            program = torch.export.export(place.model.network, (images,), dynamic_shapes=shapes, strict=False)
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in more.items()}
            torch.export.save(program, path, extra_files=texts)
        else:
            import onnx

            options = {"dynamo": True, "verbose": False, "external_data": False, "dynamic_shapes": shapes}
            torch.onnx.export(place.model.network, (images,), path, **options)
            graph = onnx.load(path)
            for key, value in more.items():
                entry = graph.metadata_props.add()
                entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
            onnx.save(graph, path)
    return f"{kind}:{path}"


def rotated(place: Place, labels: Sequence[str]) -> tuple[Any, Pairs]:
    """Return a data set in folders of these names, whose order is not that of the outputs."""
    return place.folder("rotated", place.whole, names=labels), place.whole


def graph_cells(kind: str) -> dict[str, Cell]:
    def named(place: Place) -> str:
        names = [f"z{9 - k}" for k in range(10)]  # output 0 is called z9
        data, pairs = rotated(place, names)
        return place.outcome(place.reference(pairs), exported(place, kind, class_names=names), data, **HALF)

    return {
        "class names": named,
        "normalisation": lambda place: place.outcome(None, exported(place, kind)),
        "size": lambda place: place.outcome(
            place.reference(place.whole, place.large),
            exported(place, kind),
            place.folder("big", place.whole, place.large),
            **HALF,
        ),
        "formula": lambda place: place.outcome(place.reference(place.whole), exported(place, kind), **HALF),
    }


def in_memory_cells() -> dict[str, Cell]:
    def network(place: Place) -> nn.Module:
        net: nn.Module = robustkit.load(ZOO).network
        net.pretrained_cfg = net.default_cfg = {}
        return net

    return {
        "normalisation": lambda place: place.outcome(None, {"net": network(place)}),
        "size": lambda place: place.outcome(
            place.reference(place.whole, place.large),
            {"net": network(place)},
            place.folder("big2", place.whole, place.large),
            **HALF,
            crop_pct=1.0,
        ),
        "formula": lambda place: place.outcome(place.reference(place.whole), {"net": network(place)}, **HALF),
    }


def file_cells() -> dict[str, Cell]:
    def bare(place: Place, **metadata: str) -> Path:
        path = place.path(f"bare-{'-'.join(metadata)}.safetensors")
        net = place.model.network
        save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path, metadata or None)
        return path

    built = {
        "arch": "vit_tiny_patch16_224",
        "arch_kwargs": json.dumps({"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}),
    }
    built["num_classes"] = "10"
    stated = {**built, "attention": "quest", "mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]"}

    def named(place: Place) -> str:
        names = [f"z{9 - k}" for k in range(10)]
        data, pairs = rotated(place, names)
        return place.outcome(place.reference(pairs), bare(place, **stated, class_names=json.dumps(names)), data)

    def without(*keys: str) -> dict[str, str]:
        return {key: value for key, value in stated.items() if key not in keys}

    return {
        "class names": named,
        "normalisation": lambda place: place.outcome(
            place.reference(place.whole), bare(place, **without("mean", "std"))
        ),
        "size": lambda place: place.outcome(
            place.reference(place.whole, place.large),
            bare(place, **stated),
            place.folder("big3", place.whole, place.large),
        ),
        "formula": lambda place: place.outcome(
            place.reference(place.whole, model=robustkit.load(bare(place, **without("attention")))),
            bare(place, **without("attention")),
        ),
    }


def prediction_cells() -> dict[str, Cell]:
    def written(place: Place, pairs: Pairs, name: str, labels: Callable[[int], int] = lambda label: label) -> str:
        run = place.kept.get("ours") or place.kept.setdefault("ours", place.audit())
        ids = {
            int(Path(row["sample_id"]).stem): row["sample_id"]
            for row in run.table(run.manifest.names[0], "clean").to_pylist()
        }
        with place.path(f"{name}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["sample_id", "label", *(f"prob_{k}" for k in range(10))])
            for number, label in pairs:
                with torch.no_grad():
                    row = place.model(place.pixels[number][None] / 255).softmax(dim=1)[0].tolist()
                lines.writerow([ids[number], labels(label), *row])
        return f"predictions:{place.path(f'{name}.csv')}"

    return {
        "labels": lambda place: place.outcome(
            None, written(place, place.whole, "labels", lambda label: (label + 1) % 10)
        ),
        "order": lambda place: place.outcome(place.reference(place.whole), written(place, place.whole[::-1], "order")),
        "n": lambda place: place.outcome(None, written(place, place.whole[:7], "n")),
    }


def clip_cells(kind: str) -> dict[str, Cell]:
    """Return the cells of a random CLIP; the reference is the library that wrote it."""
    from clips import CLASSES, reference, write

    def outcome(place: Place, images: Tensor | None = None, **options: Any) -> str:
        folder = place.path(kind)
        if not folder.exists():
            write(kind, folder)
        images = place.pixels if images is None else images
        names = options.get("classes", CLASSES)
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
        logits = [reference(kind, folder, picture, names, options.get("prompts")) for picture in pictures]
        order = [list(names).index(name) for name in CLASSES]  # output of each class
        right = [order.index(int(row.argmax())) for row in logits]
        pairs = [(number, (label + (number == 0)) % 3) for number, label in enumerate(right)]  # all but the first
        data = place.folder(f"{kind}-{place.runs}", pairs, images, CLASSES)
        expected = [
            (order[label], int(row.argmax()), float(-row.log_softmax(0)[order[label]]))
            for (_, label), row in zip(pairs, logits, strict=True)
        ]
        given = {"classes": CLASSES, "attention": "standard", **options}
        spec = f"hf:{folder}" if kind == "hf" else f"local-dir:{folder}"
        return place.outcome(
            sorted(expected), spec, data, **{key: value for key, value in given.items() if value is not None}
        )

    return {
        "class names": lambda place: outcome(place, classes=("dog", "old car", "cat")),
        "normalisation": lambda place: outcome(place),
        "size": lambda place: outcome(place, place.large),
        "text": lambda place: outcome(place, prompts=("this is a {}.",)),
    }


def cells() -> dict[str, dict[str, Cell]]:
    """Return the cells of each door, by what is stated."""
    doors = {door: data_cells(door) for door in DATA}
    doors |= {
        "file": file_cells(),
        "in memory": in_memory_cells(),
        "ONNX": graph_cells("onnx"),
        "pt2": graph_cells("pt2"),
    }
    return doors | {"hf": clip_cells("hf"), "open_clip": clip_cells("open_clip"), "predictions": prediction_cells()}


def main() -> None:
    root = Path(tempfile.mkdtemp())
    place = Place(root)
    print("| door |", " | ".join(COLUMNS), "|")
    for door, row in cells().items():
        found = []
        for column in COLUMNS:
            try:
                found.append(row[column](place)[:40] if column in row else "")
            except Exception as fault:  # shown where it stands
                found.append(f"CRASH {type(fault).__name__}: {fault}"[:60])
        print(f"| {door} |", " | ".join(found), "|", flush=True)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
