"""Label maps: pooled outputs by hand, attacks out of a set, folders of the real names, files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import called
from torch import nn

import attacks
import robustkit
from robustkit.data.class_names import synsets
from robustkit.data.dataset import open_dataset
from robustkit.errors import DataError, ModelError, RobustkitError
from robustkit.models.label_map import PooledClasses, read_label_map

OPTIONS: dict[str, Any] = {"setup_check": False, "evidence": "none", "browse": 0}


class Given(nn.Module):
    """A network whose logits are these."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(images), -1)


def test_the_class_of_the_best_output_and_the_best_class_differ() -> None:
    """Output 3 is the best, of class b; the outputs of a have more probability together, and on average less."""
    images = torch.zeros(1, 3, 4, 4)
    logits, places = [[2.0, 2.0, 9.0, 2.5, 0.0]], [[0, 1], [3, 4]]  # output 2 does not compete
    p = torch.tensor(logits)[0].softmax(dim=0).double()
    pooled = {pool: PooledClasses(Given(logits), places, pool)(images)[0] for pool in ("best", "mean", "sum")}
    assert pooled["best"].tolist() == [2.0, 2.5]
    sums = torch.stack([p[0] + p[1], p[3] + p[4]])
    assert torch.allclose(pooled["sum"].double().softmax(dim=0), sums / sums.sum(), atol=1e-6)
    assert pooled["sum"].argmax() == 0 and pooled["best"].argmax() == 1
    of_three = PooledClasses(Given([[2.0, 2.0, 2.1, -9.0, -9.0]]), [[0, 1], [2, 3, 4]], "mean")(images)[0]
    assert of_three.argmax() == 0  # 2.1 is the best output, one of three of its class
    means = torch.tensor([2.0, 2.0, 2.1, -9.0, -9.0]).double().exp()
    expected = torch.stack([means[:2].mean(), means[2:].mean()]).log()
    assert torch.allclose(of_three.double(), expected, atol=1e-6)


@pytest.mark.parametrize("pool", ["best", "mean", "sum"])
def test_an_attack_leads_out_of_the_whole_set(pool: str) -> None:
    """Three outputs, two of them class 0's: from a radius on that bisection finds along the signs of the gradients."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False))
    network[1].weight.data = torch.tensor([[3.0, 0.0], [2.4, 0.5], [0.0, 2.0]])
    image, label = torch.tensor([0.4, 0.45]).view(1, 1, 1, 2), torch.tensor([0])
    pooled = PooledClasses(network, [[0, 1], [2]], pool)

    def falls_at(eps: float, model: nn.Module = pooled) -> bool:
        return bool(model(image + eps * torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2)).argmax() != 0)

    low, high = 0.0, 0.5
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if falls_at(middle) else (middle, high)
    assert 0.05 < high < 0.35
    for eps, falls in ((0.99 * high, False), (1.01 * high, True)):
        attack = attacks.PGD(attacks.ThreatModel(norm="linf", eps=eps), steps=40, step_size=eps / 8)
        assert bool(pooled(attack(pooled, image, label)).argmax() == 1) == falls, eps
    assert falls_at(0.99 * high, network)  # output 1 overtakes output 0 before, which is no change of the class


@pytest.mark.parametrize(
    ("name", "classes", "outputs", "pool"),
    [("objectnet", 113, 125, "best"), ("cue-conflict", 16, 207, "mean"), ("laion-c", 16, 285, "mean")],
)
def test_what_ships(name: str, classes: int, outputs: int, pool: str) -> None:
    label_map = read_label_map(name)
    places = label_map.places(1000, None)
    assert (len(places), sum(map(len, places)), label_map.pool) == (classes, outputs, pool)
    assert len({place for some in places for place in some}) == outputs
    assert (label_map.border, label_map.other_folders) == ((2, "leave out") if name == "objectnet" else (0, "refuse"))


def test_some_outputs_of_what_ships() -> None:
    """`human_categories.py` of model-vs-human, `objectnet_to_imagenet_1k.json` of ObjectNet."""
    cues = dict(
        zip(read_label_map("cue-conflict").classes, read_label_map("cue-conflict").places(1000, None), strict=True)
    )
    assert cues["cat"] == [281, 282, 283, 284, 285, 286] and cues["knife"] == [499]
    assert cues["truck"] == [555, 569, 656, 675, 717, 734, 864, 867] and cues["chair"] == [423, 559, 765, 857]
    objects = read_label_map("objectnet")
    by_name = dict(zip(objects.classes, objects.places(1000, None), strict=True))
    assert by_name["alarm_clock"] == [409, 530] and by_name["banana"] == [954]
    assert [synsets()[place] for place in by_name["backpack"]] == ["n02769748"]


def images_of(root: Path, *names: str, side: int = 32, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(root / name)
    return root


def toy_map(path: Path, text: str = "") -> str:
    path.write_text(
        text or 'pool = "best"\n[classes]\ncurved = ["circle", "ring", 4]\nangular = ["square", "triangle"]\n'
    )
    return str(path)


def test_an_audit_with_a_map_of_names(tmp_path: Path) -> None:
    """The figures are those of the predictions of a run without one, pooled by hand."""
    root = images_of(tmp_path / "data", *(f"{kind}/{n}.png" for kind in ("curved", "angular") for n in range(6)))
    label_map = tmp_path / "map.toml"
    names = robustkit.load("zoo:shapes-vit-standard").identity.class_names
    assert names is not None
    label_map.write_text(f'[classes]\ncurved = ["{names[0]}", 4, 5]\nangular = ["{names[1]}", 2]\n')
    options = {"attacks": "pgd(eps=8/255,steps=5)", "out": tmp_path / "run", **OPTIONS}
    run = robustkit.audit("zoo:shapes-vit-standard", data_dir=root, label_map=str(label_map), **options)
    entry = run.manifest.checkpoints[0]
    assert entry.num_classes == 2 and entry.class_names == ("curved", "angular")
    assert entry.label_map["name"] == "map" and len(entry.label_map["sha256"]) == 64
    table = run.table(entry.name, "clean", ["sample_id", "label", "prediction", "nll"]).to_pydict()
    model = robustkit.load("zoo:shapes-vit-standard")
    dataset = open_dataset(root, layout="folders")
    for name, label, prediction, nll in zip(*table.values(), strict=True):
        pixels = robustkit.data.images.to_pixels(
            dataset.image(next(each for each in dataset.samples if each.id == name)), entry_preprocessing(model)
        )
        logits = model(pixels[None] / 255)[0]
        best = torch.stack([logits[[0, 4, 5]].max(), logits[[1, 2]].max()])
        assert label == (0 if name.startswith("curved") else 1) and prediction == int(best.argmax())
        assert nll == pytest.approx(-float(best.log_softmax(dim=0)[label]), abs=1e-4)
    with pytest.raises(RobustkitError, match="label_map of shapes-vit-standard"):  # another map is another model
        label_map.write_text(f'[classes]\ncurved = ["{names[0]}", 4]\nangular = ["{names[1]}", 2]\n')
        robustkit.audit("zoo:shapes-vit-standard", data_dir=root, label_map=str(label_map), **options)


def test_a_drafted_rule_names_the_map(tmp_path: Path) -> None:
    root = images_of(tmp_path / "data", *(f"{kind}/{n}.png" for kind in ("curved", "angular") for n in range(6)))
    policy = tmp_path / "policy.toml"
    for name, pool in (("one", "best"), ("two", "mean")):
        (tmp_path / name).mkdir()
        label_map = toy_map(
            tmp_path / name / "map.toml",
            f'pool = "{pool}"\n[classes]\ncurved = [0, 1]\nangular = [2, 3]\n',
        )
        options = {"label_map": label_map, "attacks": "none", "out": tmp_path / "run" / name, **OPTIONS}
        robustkit.audit("zoo:shapes-vit-standard", data_dir=root, **options)
    assert called(["check", str(tmp_path / "run" / "one"), "--init", "--policy", str(policy)])[0] == 0
    (rule,) = (line for line in policy.read_text().splitlines() if "label map ==" in line)
    policy.write_text(f"[[rule]]\n{rule}\n")
    assert called(["check", str(tmp_path / "run" / "one"), "--policy", str(policy)])[0] == 0
    status, out, _ = called(["check", str(tmp_path / "run" / "two"), "--policy", str(policy)])
    assert (
        status == 1 and 'label map is "map ' in out and "pool the outputs by the map of the rule (--label-map)" in out
    )


def entry_preprocessing(model: robustkit.Classifier) -> Any:
    return model.identity.preprocessing


def test_folders_that_the_map_does_not_name_are_left_out_only_if_it_says_so(tmp_path: Path) -> None:
    root = images_of(tmp_path / "data", "curved/a.png", "angular/b.png", "odd/c.png", "odd/d.png")
    classes = "[classes]\ncurved = [0, 1]\nangular = [2]\n"
    options = {"data_dir": root, "attacks": "none", **OPTIONS}
    label_map = toy_map(tmp_path / "map.toml", classes)
    with pytest.raises(DataError, match="class folders that the model does not name: odd"):
        robustkit.audit("zoo:shapes-vit-standard", label_map=label_map, out=tmp_path / "no", **options)
    label_map = toy_map(tmp_path / "other.toml", f'other_folders = "leave out"\n{classes}')
    run = robustkit.audit("zoo:shapes-vit-standard", label_map=label_map, out=tmp_path / "run", **options)
    assert run.manifest.data.n == 2
    note = "left out 2 images of 1 folders that the label map does not name: odd"
    assert note in run.manifest.data.notes


def test_a_border_is_cut_off(tmp_path: Path) -> None:
    """A red border of two pixels changes nothing; and what is cut is part of the data's digest."""
    clean = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    red = np.full((24, 28, 3), (255, 0, 0), np.uint8)
    red[2:-2, 2:-2] = clean
    for folder, pixels in (("curved", clean), ("angular", red)):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels).save(tmp_path / folder / "a.png")
    cut, whole = (open_dataset(tmp_path, layout="folders", border=border) for border in (2, 0))
    by_id = {sample.id: sample for sample in cut.samples}
    assert np.array_equal(np.asarray(cut.image(by_id["angular/a.png"])), clean)
    assert np.asarray(cut.image(by_id["curved/a.png"])).shape == (16, 20, 3)
    assert cut.digest() != whole.digest() == open_dataset(tmp_path, layout="folders").digest()
    for side, readable in ((4, False), (5, True)):
        images_of(tmp_path, "curved/a.png", side=side)
        if readable:
            assert cut.image(by_id["curved/a.png"]).size == (1, 1)
        else:
            with pytest.raises(RobustkitError, match="nothing is left of 4x4 without its border"):
                cut.image(by_id["curved/a.png"])
    with pytest.raises(DataError, match="a border of 2 pixels is cut off the images of files"):
        open_dataset("embedded:shapes", border=2)


def test_shape_bias_is_counted_where_cues_conflict(tmp_path: Path) -> None:
    """Of predictions by hand: shape, texture, neither, no conflict, and a name without a texture."""
    names = ("cat/cat1-Dog1.png", "cat/cat2-dog2.png", "cat/cat3-cat1.png", "dog/dog1-cat1.png", "dog/dog2-car7.png")
    root = images_of(tmp_path / "data", *names, "car/plain.png", "car/car1-dog3.png")
    label_map = toy_map(
        tmp_path / "map.toml",
        "conflict = '-([A-Za-z]+)\\d*\\.\\w+$'\n[classes]\ncat = [0, 1]\ndog = [2, 3]\ncar = [4, 5]\n",
    )
    run = robustkit.audit(
        "zoo:shapes-vit-standard", data_dir=root, label_map=label_map, attacks="none", out=tmp_path / "run", **OPTIONS
    )
    table = run.table(run.manifest.checkpoints[0].name, "clean", ["sample_id", "prediction", "cue"]).to_pydict()
    classes, shapes, textures = ["cat", "dog", "car"], 0, 0
    for name, prediction, cue in zip(*table.values(), strict=True):
        shape, _, file = name.partition("/")
        texture = Path(file).stem.partition("-")[2].rstrip("0123456789").lower() if "-" in file else ""
        assert cue == (classes.index(texture) if texture else -1)  # found once: a pattern of run.json is never run
        if texture and texture != shape:
            shapes += classes[prediction] == shape
            textures += classes[prediction] == texture
    rows = [row for row in run.summary() if row.metric == "shape_bias"]
    assert shapes + textures > 0 and len(rows) == 1
    assert (rows[0].value, rows[0].n) == (shapes / (shapes + textures), shapes + textures)
    assert 0 <= rows[0].low <= rows[0].value <= rows[0].high <= 1
    (finding,) = (each for each in rows[0].findings if each.code == "labels/no-cue")
    assert finding.text.startswith("1 of 7 names state no class of a second cue")  # plain.png


GOOD = "[classes]\na = [0, 1]\nb = [2]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[classes]\na = [0, 1]\nb = [1]\n", "output 1 is in a and in b; expected each output once"),
        ("[classes]\na = [0, 0]\nb = [1]\n", "output 0 is twice in a"),
        ("[classes]\na = []\nb = [1]\n", "a has no outputs"),
        ("[classes]\na = [10]\nb = [1]\n", "a has output 10; the model's are 0 to 9"),
        ("[classes]\na = [-1]\nb = [1]\n", "a has output -1"),
        ("[classes]\na = [true]\nb = [1]\n", "expected a list of wnids, names or places"),
        ("[classes]\na = 3\nb = [1]\n", "a is '3'; expected a list"),
        ("[classes]\na = [1]\n", "a table [classes] of two classes or more"),
        ('[classes]\na = ["circel"]\nb = [1]\n', "circel"),
        ('[classes]\na = ["n01440764"]\nb = [1]\n', "wnids, but the model has 10 outputs in no known order"),
        (f'pool = "worst"\n{GOOD}', "pool is 'worst'; expected best or mean or sum"),
        (f"border = 65\n{GOOD}", "border is 65; expected 0 to 64 pixels"),
        (f"border = true\n{GOOD}", "border is True"),
        (f'other_folders = "drop"\n{GOOD}', "other_folders is 'drop'; expected refuse or leave out"),
        (f"conflict = '['\n{GOOD}", "conflict is '['; expected a regular expression with one group"),
        (f"conflict = 'a'\n{GOOD}", "conflict is 'a'; expected a regular expression with one group"),
        (f"pol = 1\n{GOOD}", "did you mean 'pool'?"),
        ("[classes\n", "not valid TOML"),
    ],
)
def test_a_wrong_map_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, ModelError)) as fault:
        robustkit.load("zoo:shapes-vit-standard", label_map=toy_map(tmp_path / "map.toml", text))
    assert words in str(fault.value) and "\n" not in str(fault.value) and "map" in str(fault.value)
    robustkit.load("zoo:shapes-vit-standard", label_map=toy_map(tmp_path / "map.toml", f"border = 64\n{GOOD}"))


def test_names_of_maps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'objectnet'"):
        read_label_map("objectnett")
    with pytest.raises(DataError, match=r"none.toml: cannot be read"):
        read_label_map(tmp_path / "none.toml")
    with pytest.raises(ModelError, match="features have no classes"):
        robustkit.load("zoo:shapes-vit-standard", features=True, label_map="objectnet")
    lacking = read_label_map(toy_map(tmp_path / "m.toml", '[classes]\na = ["n01440764"]\nb = ["n99999999"]\n'))
    with pytest.raises(ModelError, match="1 wnids that the model lacks: n99999999"):
        lacking.places(1000, None)
    by_name = read_label_map(toy_map(tmp_path / "n.toml", '[classes]\na = ["goldfish"]\nb = ["tench"]\n'))
    assert by_name.places(1000, None) == [[1], [0]]
    assert json.dumps(lacking.entry)  # as run.json holds it


class Coded(nn.Module):
    """A network of 1000 outputs, the largest of which is the one that the first pixel's red and green name."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        codes = (images[:, :2, 0, 0] * 255).round().long()
        likeliest = (codes[:, 0] * 4 + codes[:, 1]).clamp(max=999)
        return 5 * nn.functional.one_hot(likeliest, 1000).float() + images.mean(dim=(1, 2, 3))[:, None] * 0.01


def coded(root: Path, name: str, output: int) -> None:
    """Save an image for which `Coded` answers an output. A border of two pixels is red."""
    pixels = np.full((36, 36, 3), (255, 0, 0), np.uint8)
    pixels[2:-2, 2:-2] = (output // 4, output % 4, 60)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / name)


@pytest.mark.parametrize(
    ("label_map", "images", "accuracy"),
    [
        # Output 409 is of alarm_clock, 954 of banana, 0 (tench) of no class, so that any class may be the best.
        (
            "objectnet",
            {"alarm_clock/a.png": 409, "alarm_clock/b.png": 530, "banana/a.png": 954, "chair/a.png": 954},
            0.75,
        ),
        ("cue-conflict", {"cat/cat1-dog1.png": 281, "knife/knife1-car2.png": 817, "dog/dog1-cat1.png": 152}, 2 / 3),
        ("laion-c", {"car_truck/a.png": 817, "fruit/a.png": 954, "dog/a.png": 281}, 2 / 3),
    ],
)
def test_folders_of_the_real_names(label_map: str, images: dict[str, int], accuracy: float, tmp_path: Path) -> None:
    for name, output in images.items():
        coded(tmp_path / "data", name, output)
    if label_map == "objectnet":
        coded(tmp_path / "data", "air_freshener/a.png", 0)  # one of the 200 classes that ImageNet has not
    cut = 0 if label_map == "objectnet" else 2
    if cut:  # only ObjectNet has a border
        for path in (tmp_path / "data").rglob("*.png"):
            Image.open(path).crop((2, 2, 34, 34)).save(path)
    run = robustkit.audit(
        Coded(),
        data_dir=tmp_path / "data",
        label_map=label_map,
        attacks="none",
        out=tmp_path / "run",
        **OPTIONS,
        pixels=True,
        img_size=32,
    )
    (top1,) = (row for row in run.summary() if row.metric == "top1")
    assert (top1.value, top1.n) == (pytest.approx(accuracy), len(images))
    shape_bias = [row for row in run.summary() if row.metric == "shape_bias"]
    # cat1-dog1 is a decision for the shape, knife1-car2 for the texture, dog1-cat1 for the shape
    assert [(row.value, row.n) for row in shape_bias] == ([(pytest.approx(2 / 3), 3)] if "cue" in label_map else [])
