"""What a run rests on is edited between two commands into one folder: the second is refused, or its figures are new."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from texts import PAGE, library_model
from torch import Tensor, nn
from torch.utils.data import Dataset

import robustkit
from robustkit.errors import RobustkitError, RunError
from robustkit.runs.manifest import ROUNDING, AnswersEntry

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
COUNT, CLASSES, SIDE = 24, 4, 8
Figures = dict[str, float]


def pixels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)


def figures(run: robustkit.Run) -> Figures:
    rows = run.results()
    return {f"{row.condition} {row.metric}": row.value for row in rows.itertuples() if row.metric in ("top1", "nll")}


def check_edit(evaluate: Callable[[str], Figures], edit: Callable[[], object], matters: bool = True) -> None:
    """Evaluate, edit, and evaluate again into the same folder: refused, or the figures of a new folder."""
    before = evaluate("run")
    edit()
    fresh = evaluate("fresh")
    assert (fresh != before) is matters, "the edit does not do what the test says"
    try:
        again = evaluate("run")
    except RobustkitError as fault:
        assert matters and "contains another run" in str(fault) and "\n" not in str(fault)
    else:
        assert again == fresh


# In memory


class Net(nn.Module):
    """A linear classifier with a persistent and a plain buffer, and parts that a cell of a notebook may edit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Linear(3 * SIDE * SIDE, CLASSES)
        self.register_buffer("shift", torch.zeros(CLASSES))
        self.register_buffer("gain", torch.ones(CLASSES), persistent=False)
        self.power = 1.0
        self.inner: Callable[[Tensor], Tensor] = bent

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(images).pow(self.power).flatten(1))
        return logits * self.gain + self.shift


@dataclass
class Held(Dataset[Any]):
    """Images and labels that are indexed."""

    images: Tensor
    labels: list[int]
    transform: Callable[[Tensor], Tensor] = torch.clone
    classes: tuple[str, ...] = ("ant", "bee", "cat", "dog")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self.transform(self.images[place]), self.labels[place]


BENT = [1.0]


@torch.library.custom_op("robustkit_edits::bent", mutates_args=())
def bent(x: Tensor) -> Tensor:
    return x.pow(BENT[0]) + 0


class Cell:
    """A notebook: a network and a data set that cells edit."""

    def __init__(self) -> None:
        self.net = Net()
        images = torch.from_numpy(pixels()).permute(0, 3, 1, 2).contiguous()
        with torch.no_grad():
            self.net.head.bias -= self.net(images / 255).mean(0)
            labels = self.net(images / 255).argmax(1).tolist()
        self.data = Held(images, labels)


def scale_weights(cell: Cell) -> None:
    cell.net.head.weight.data.mul_(-1)


def change_buffer(cell: Cell) -> None:
    cell.net.shift[0] = 9.0  # type: ignore[index]


def change_plain_buffer(cell: Cell) -> None:
    cell.net.gain[0] = -1.0  # type: ignore[index]


def change_forward(cell: Cell) -> None:
    class Edited(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(1 - images)

    Edited.__name__, Edited.__qualname__ = Net.__name__, Net.__qualname__
    cell.net.__class__ = Edited


def change_helper(cell: Cell) -> None:
    cell.net.inner = lambda x: 1 - x


def change_attribute(cell: Cell) -> None:
    cell.net.power = 5.0


def add_hook(cell: Cell) -> None:
    cell.net.head.register_forward_hook(lambda layer, inputs, output: -output)


def change_label(cell: Cell) -> None:
    cell.data.labels[3] = (cell.data.labels[3] + 1) % CLASSES


def change_pixel(cell: Cell) -> None:
    cell.data.images[5] = 255 - cell.data.images[5]


def change_order(cell: Cell) -> None:
    cell.data.labels.reverse()


def change_transform(cell: Cell) -> None:
    cell.data.transform = lambda image: image.flip(-1)


def change_type(cell: Cell) -> None:
    cell.net.to(torch.bfloat16).register_forward_pre_hook(lambda layer, inputs: inputs[0].bfloat16())
    cell.net.head.weight.data[0] *= -1


def change_operator(cell: Cell) -> None:
    BENT[0] = 6.0


IN_MEMORY = (
    *(scale_weights, change_buffer, change_plain_buffer, change_forward, change_helper, change_attribute, add_hook),
    *(change_label, change_pixel, change_order, change_transform, change_type, change_operator),
)


@pytest.mark.parametrize("edit", IN_MEMORY, ids=lambda edit: edit.__name__)
def test_no_old_numbers_after_an_edit_in_memory(edit: Callable[[Cell], None], tmp_path: Path) -> None:
    BENT[0] = 1.0
    cell = Cell()

    def evaluate(out: str) -> Figures:
        options: dict[str, Any] = {"attacks": "square(queries=2)", "eps": "2/255", "pixels": True, "device": "cpu"}
        return figures(robustkit.audit({"net": cell.net}, cell.data, out=tmp_path / out, **options))

    check_edit(evaluate, lambda: edit(cell))


def test_a_cell_that_is_run_again_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pixels": True, "device": "cpu", "out": tmp_path}
    first = robustkit.audit({"net": Cell().net}, Cell().data, attacks="none", **options)
    written = first.shard_path("net", "clean", 0).stat().st_mtime_ns
    again = robustkit.audit({"net": Cell().net}, Cell().data, attacks="square(queries=2)", eps="2/255", **options)
    assert again.shard_path("net", "clean", 0).stat().st_mtime_ns == written
    assert len(again.manifest.conditions) == 2
    answers = again.manifest.checkpoints[0].answers
    assert isinstance(answers, AnswersEntry) and answers.samples == ("00000", "00012", "00023")
    assert answers.digest is not None and len(base64.b64decode(answers.values)) == 4 * 3 * CLASSES


# By files

HELPER = """
import torch
POWER = 1.0

@torch.library.custom_op("{name}::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 1.0

def bend(x):
    return x ** POWER
"""
NETWORK = """
import torch
from torch import nn
from helper import bend, scaled

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 3)
        self.register_buffer("shift", torch.zeros(3))
    def forward(self, x):
        return self.head(scaled(bend(x)).flatten(1)) + self.shift

def build():
    return Net()
"""


class Folder:
    """Weights, code and images as files."""

    def __init__(self, root: Path) -> None:
        self.root, self.options = root, dict[str, Any]()
        (root / "helper.py").write_text(HELPER.format(name=f"robustkit_{root.parent.name.replace('-', '_')}"))
        (root / "net.py").write_text(NETWORK)
        torch.manual_seed(0)
        torch.save({"head.weight": torch.randn(3, 192), "head.bias": torch.zeros(3), "shift": torch.zeros(3)}, self.net)
        for index, image in enumerate(pixels()):
            (root / "val" / "abc"[index % 3]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / "val" / "abc"[index % 3] / f"{index:02d}.png")

    @property
    def net(self) -> Path:
        return self.root / "net.pth"

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))

    def reweigh(self, **tensors: Tensor) -> None:
        torch.save({**torch.load(self.net, weights_only=True), **tensors}, self.net)


def rename_classes(folder: Folder) -> None:
    (folder.root / "val" / "a").rename(folder.root / "val" / "z")


def recolour(folder: Folder) -> None:
    path = folder.root / "val" / "a" / "00.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)


FILES: dict[str, Callable[[Folder], object]] = {
    "weights": lambda folder: folder.reweigh(**{"head.weight": torch.ones(3, 192)}),
    "buffer": lambda folder: folder.reweigh(shift=torch.tensor([9.0, 0, 0])),
    "forward": lambda folder: folder.replace("net.py", "bend(x)", "bend(1 - x)"),
    "imported module": lambda folder: folder.replace("helper.py", "POWER = 1.0", "POWER = 5.0"),
    "custom operator": lambda folder: folder.replace("helper.py", "x * 1.0", "x * -1.0"),
    "label": lambda folder: (folder.root / "val" / "a" / "00.png").rename(folder.root / "val" / "b" / "00.png"),
    "pixel": recolour,
    "order and names of classes": rename_classes,
    "transform": lambda folder: folder.options.update(mean=[0.1, 0.2, 0.9]),
    "dtype": lambda folder: folder.options.update(dtype="bfloat16"),
}


def audited(folder: Folder, out: Path, **more: Any) -> robustkit.Run:
    """Audit in a fresh state of imports, as a new process does."""
    for name in [name for name in sys.modules if name == "helper" or name.startswith("robustkit_file_")]:
        del sys.modules[name]
    options = {"mean": [0.5] * 3, "std": [0.5] * 3, "img_size": SIDE, "dtype": "float32", **folder.options}
    where = {"data_dir": folder.root / "val", "out": out, "device": "cpu"}
    return robustkit.audit(
        folder.net, arch=f"{folder.root / 'net.py'}:build", num_classes=3, **where, **options, **more
    )


@pytest.mark.parametrize("edit", FILES.values(), ids=FILES)
def test_no_old_numbers_after_an_edit_of_files(edit: Callable[[Folder], object], tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    folder = Folder(tmp_path / "place")
    check_edit(lambda out: figures(audited(folder, tmp_path / out, attacks="none")), lambda: edit(folder))


def test_an_edited_comment_goes_on(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    folder, lines = Folder(tmp_path / "place"), list[str]()
    first = audited(folder, tmp_path / "run", attacks="none")
    written = first.shard_path("net", "clean", 0).stat().st_mtime_ns
    folder.replace("net.py", "def build", "# what the audit calls\ndef build")
    more = audited(folder, tmp_path / "run", attacks="square(queries=2)", eps="2/255", say=lines.append)
    assert "net: its code was edited, but its answers to a few samples are the same" in lines
    assert more.shard_path("net", "clean", 0).stat().st_mtime_ns == written
    assert not more.lacking("net", "clean") and not more.lacking("net", more.manifest.conditions[1])
    assert not [line for line in lines if "; recomputed" in line]


def test_an_edited_tokenizer_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = library_model(tmp_path / "lm")
    (tmp_path / "text.txt").write_text(PAGE, encoding="utf-8")

    def evaluate(out: str) -> Figures:
        run = robustkit.text(f"hf:{folder}", data=tmp_path / "text.txt", perturbations="none", out=tmp_path / out)
        return {row.metric: row.value for row in run.results().itertuples()}

    def merge_less() -> None:
        path = folder / "tokenizer.json"
        table = json.loads(path.read_text())
        table["model"]["merges"] = table["model"]["merges"][:4]
        path.write_text(json.dumps(table))

    check_edit(evaluate, merge_less)


# How answers are compared


def entry(values: list[float], on: str = "here", digest: str | None = "") -> AnswersEntry:
    array = np.array(values, "<f4")
    digest = hashlib.sha256(array.tobytes()).hexdigest() if digest == "" else digest
    return AnswersEntry(on=on, samples=("a",), digest=digest, values=base64.b64encode(array.tobytes()).decode())


def test_rounding_of_another_machine_is_no_other_answer() -> None:
    near, far = [1.0, -4 * (1 + 0.9 * ROUNDING)], [1.0, -4 * (1 + 1.1 * ROUNDING)]
    first = entry([1.0, -4.0])
    assert first.gap(entry(near, "there")) == "" and first.gap(entry([1.0, -4.0], "there")) == ""
    assert first.gap(entry(far, "there")) == "by up to 0.0044, where the largest is 4"
    assert first.gap(entry(near)) == "by up to 0.0036, where the largest is 4"  # of one machine, each bit counts
    assert first.gap(entry([1.0, -4.0], digest="of another gradient")) == "in bits or gradients alone"
    assert entry(near, digest=None).gap(first) == ""  # sums in any order
    assert "largest" in first.gap(entry([1.0])) and "largest" in first.gap(entry([1.0, float("nan")]))
    broken = msgspec.structs.replace(first, values="!", digest=None)
    assert first.gap(broken) and broken.gap(first)
    drawn = msgspec.structs.replace(first, values="", digest=None)
    assert drawn.gap(drawn) == "" and drawn.gap(first) == first.gap(drawn) != ""
    assert first.gap(msgspec.structs.replace(entry(far), samples=("b",))) == ""  # nobody can tell
    assert entry([float("nan")]).gap(entry([float("nan")])) == ""


class Drawing(nn.Module):
    """Logits that differ from call to call, drawn by a generator that nobody seeds, or by torch's own."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.head, self.own = nn.Linear(192, 4), own
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, images: Tensor) -> Tensor:
        drawn = torch.rand(images.shape, generator=self.generator if self.own else None)
        logits: Tensor = self.head((images + drawn).flatten(1))
        return logits


def test_a_network_that_draws_goes_on(tmp_path: Path) -> None:
    for own in (True, False):
        nets = [Drawing(own) for _ in range(2)]
        nets[1].load_state_dict(nets[0].state_dict())
        options: dict[str, Any] = {"attacks": "none", "pixels": True, "device": "cpu", "out": tmp_path / str(own)}
        runs = [robustkit.audit({"net": net}, Cell().data, **options) for net in nets]
        (first, second) = (run.manifest.checkpoints[0].answers for run in runs)
        assert isinstance(first, AnswersEntry) and first == second and bool(first.values) is not own
        if not own:
            nets[1].head.weight.data += 1e-6
        nets[1].own = False
        with pytest.raises(RunError, match="only one of them gives the same answer twice" if own else "sha256 of net"):
            robustkit.audit({"net": nets[1]}, Cell().data, **options)
