"""Training the zoo: the schedule's numbers, batches that are functions of the step, and runs that survive a kill."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from places import ROOT

import robustkit
from robustkit.attention import get_attention, scores
from robustkit.data.dataset import open_dataset
from robustkit.errors import DataError, RobustkitError
from scripts.zoo import curves, data, logs, recipe, run, train

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
pytestmark = pytest.mark.usefixtures("one_thread", "whole_figures")


@pytest.fixture(scope="module")
def zoo() -> Any:
    """The scripts' modules."""
    return SimpleNamespace(script=train, curves=curves, logs=logs, data=data, recipe=recipe, run=run, tiny=tiny(recipe))


def tiny(recipe: Any) -> Any:
    """Two epochs of four steps."""
    return replace(recipe.PRESETS["smoke"], epochs=2, batch=20, train_images=None, test_images=None, mix_prob=0.5)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Zips of 83 training and 40 test images whose brightness tells their class."""
    folder = tmp_path_factory.mktemp("cifar")
    made = []
    for name, count in (("train", 83), ("test", 40)):
        random = np.random.default_rng(count)
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as file:
            for index in range(count):
                pixels = random.integers(20 * (index % 10), 20 * (index % 10) + 60, (32, 32, 3)).astype(np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                file.writestr(f"{CLASSES[index % 10]}/{index:05d}.png", buffer.getvalue())
        made.append(folder / f"{name}.zip")
    return made[0], made[1]


@pytest.fixture
def command(zoo: Any, archives: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], list[str]]:
    """The tiny preset in the place of `smoke`, and a command line for a work folder and a formula."""
    monkeypatch.setitem(zoo.recipe.PRESETS, "smoke", zoo.tiny)
    return lambda work, attention: arguments(archives, work, attention)


def arguments(archives: tuple[Path, Path], work: Path, attention: str) -> list[str]:
    train, test = map(str, archives)
    return ["--preset", "smoke", "--attention", attention, "--train", train, "--test", test, "--work", str(work)]


@pytest.fixture
def trained(
    zoo: Any,
    command: Callable[[Path, str], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Train under the tiny preset with some fields changed; the exit status and what the command wrote to stderr."""

    def trained(attention: str, *options: str, **fields: Any) -> tuple[int, str]:
        monkeypatch.setitem(zoo.recipe.PRESETS, "smoke", replace(zoo.tiny, **fields))
        return zoo.script.main([*command(tmp_path, attention), *options]), capsys.readouterr().err

    return trained


# the recipe


def test_rate_rises_in_even_steps_and_falls_as_a_cosine(zoo: Any) -> None:
    preset = replace(zoo.tiny, rate=1.0, warm_up=0.2, floor=0.2)
    rates = [zoo.recipe.rate_at(preset, step, 11) for step in range(11)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[6] == pytest.approx(0.6)  # half-way between 1 and 0.2
    assert rates[4] == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert rates[10] == pytest.approx(0.2)
    assert zoo.recipe.PRESETS["cpu"].floor == zoo.recipe.PRESETS["gpu"].floor == 1e-5


def test_the_average_forgets_the_first_weights_and_then_spans_its_horizon(zoo: Any) -> None:
    preset = replace(zoo.tiny, ema_horizon=0.02)
    assert [zoo.recipe.decay_at(preset, step, 5000) for step in (0, 8, 4999)] == pytest.approx(
        [0.1, 0.5, math.exp(-1 / 100)]
    )


@pytest.mark.parametrize("attention", ["standard", "qknorm-hs", "qknorm-ds", "qknorm", "qknorm-ln"])
def test_only_matrices_decay(zoo: Any, attention: str) -> None:
    model = zoo.recipe.CIFAR10.empty(attention)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, free = zoo.recipe.parameter_groups(model, 0.05)
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    matrices = {f"blocks.{block}.{layer}.weight" for block in range(3) for layer in layers}
    assert {names[id(p)] for p in decayed["params"]} == {*matrices, "patch_embed.proj.weight", "head.weight"}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.05, 0.0)
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_presets_differ_in_what_a_checkpoint_says_and_stay_small(zoo: Any) -> None:
    assert len({preset.text() for preset in zoo.recipe.PRESETS.values()}) == 5
    slower = replace(zoo.tiny, rate=5e-4)
    assert slower.identity() != zoo.tiny.identity()
    assert replace(zoo.tiny, save_every=9.0).identity() == zoo.tiny.identity()
    assert 2 * sum(p.numel() for p in zoo.recipe.CIFAR10.empty("qknorm").parameters()) < 3e6


def test_patches_are_white_at_the_start(zoo: Any) -> None:
    pixels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model = zoo.recipe.build("quest", zoo.tiny, 0, pixels)
    embedded = model.patch_embed(zoo.recipe.CIFAR10.normalise(pixels)).flatten(0, 1)
    values = torch.linalg.eigvalsh(embedded.T @ embedded / len(embedded))
    assert values[-48:].tolist() == pytest.approx([1.0] * 48, abs=0.02)
    assert values[:-48].abs().max() < 1e-4


# data


def images(zoo: Any, archives: tuple[Path, Path], folder: Path) -> Any:
    return zoo.data.cached(str(archives[0]), "train", None, folder, zoo.recipe.CIFAR10)


def test_images_are_those_of_the_archive_and_decoded_once(
    zoo: Any, archives: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = images(zoo, archives, tmp_path)
    dataset = open_dataset(archives[0])
    assert first.digest == dataset.digest()
    assert first.class_names == CLASSES
    sample = dataset.samples[50]
    assert first.labels[50] == sample.label
    assert np.array_equal(first.pixels[50].permute(1, 2, 0).numpy(), np.asarray(dataset.image(sample)))
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(zoo.data, "open_dataset", lambda *_, **__: pytest.fail("decoded again"))
        assert torch.equal(images(zoo, archives, tmp_path).pixels, first.pixels)
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # one wrong bit
    assert torch.equal(images(zoo, archives, tmp_path).pixels, first.pixels)
    assert kept.read_bytes()[-1] == whole[-1]


def test_images_of_another_size_are_refused(zoo: Any, tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("RGB", (31, 32)).save(tmp_path / "set" / name / "0.png")
    with pytest.raises(DataError, match="an image of 31x32; expected the 32x32 of CIFAR-10"):
        zoo.data.cached(str(tmp_path / "set"), "train", None, tmp_path / "data", zoo.recipe.CIFAR10)


def test_an_epoch_has_each_image_at_most_once_in_an_order_of_its_own(zoo: Any) -> None:
    epochs = [
        torch.cat([zoo.data.chosen(zoo.tiny, 0, 83, step) for step in steps]) for steps in (range(4), range(4, 8))
    ]
    assert all(len(set(epoch.tolist())) == 80 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0][:20], zoo.data.chosen(zoo.tiny, 1, 83, 0))


def test_a_crop_is_a_window_of_the_padded_image_or_its_mirror_image(zoo: Any) -> None:
    pixels = torch.randint(1, 256, (200, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    made = zoo.data.augment(pixels, zoo.tiny, 0, 7)
    assert torch.equal(made, zoo.data.augment(pixels, zoo.tiny, 0, 7))
    assert not torch.equal(made, zoo.data.augment(pixels, zoo.tiny, 0, 8))
    found = set()
    for image, result in zip(pixels, made, strict=True):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = image
        windows = {
            (top, left, mirrored)
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            if torch.equal(result.flip(2) if mirrored else result, padded[:, top : top + 32, left : left + 32])
        }
        assert len(windows) == 1
        found |= windows
    assert {top for top, _, _ in found} == {left for _, left, _ in found} == set(range(9))
    assert 70 <= sum(mirrored for _, _, mirrored in found) * 200 / len(found) <= 130


def test_randaugment_is_a_function_of_the_step_with_and_without_workers(
    zoo: Any, archives: tuple[Path, Path], tmp_path: Path
) -> None:
    preset = replace(zoo.tiny, randaugment=zoo.recipe.PRESETS["gpu"].randaugment)
    source = images(zoo, archives, tmp_path)

    def feed(steps: range, workers: int) -> list[torch.Tensor]:
        made = zoo.data.batches(source, preset, 0, steps, torch.device("cpu"), workers)
        return [pixels for pixels, _ in made]

    whole = feed(range(4), 0)
    assert all(map(torch.equal, feed(range(2, 4), 1), whole[2:]))
    plain = source.pixels[zoo.data.chosen(preset, 0, 83, 2)]
    changed = (whole[2] != plain).flatten(1).any(1)
    assert changed.sum() >= 10  # each of two operations is left out half the time


# curves


def test_the_probe_measures_what_the_formulas_compute(zoo: Any) -> None:
    torch.manual_seed(0)
    for attention in ("standard", "quest"):
        model = zoo.recipe.CIFAR10.empty(attention).eval()
        inputs = torch.randn(4, 3, 32, 32)
        with torch.no_grad():
            tokens = model.norm_pre(model._pos_embed(model.patch_embed(inputs)))
            first = model.blocks[0]
            q, k, _ = first.attn.qkv(first.norm1(tokens)).reshape(4, 65, 3, 3, 64).permute(2, 0, 3, 1, 4)
        logits = scores(attention, q, k)
        weights = logits.double().softmax(-1)
        seen = zoo.curves.watch(model, inputs)
        assert all(len(values) == 3 for values in seen.values())
        assert seen["largest_logit"][0] == pytest.approx(logits.abs().max().item(), abs=1e-4)
        assert seen["query_norm"][0] == pytest.approx(q.square().sum(-1).sqrt().mean().item(), abs=1e-4)
        assert seen["key_norm"][0] == pytest.approx(k.square().sum(-1).sqrt().mean().item(), abs=1e-4)
        assert seen["entropy"][0] == pytest.approx(-(weights * weights.log()).sum(-1).mean().item(), abs=1e-4)


@pytest.mark.slow
def test_curves_are_drawn_of_all_runs_and_none_without_one(zoo: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(RobustkitError, match="no run with a whole epoch in it; train one first"):
        zoo.curves.plot(tmp_path, tmp_path)
    probe = {name: [1.0, 2.0] for name in ("largest_logit", "query_norm", "key_norm", "entropy")}
    figures = dict.fromkeys(("loss", "train_accuracy_ema", "test_accuracy_ema", "test_accuracy"), 0.5)
    rows = [{"epoch": epoch, **figures, "probe": probe} for epoch in (1, 2)]
    for name, more in (
        ("cifar10-vit-quest-seed0", []),
        ("cifar10-vit-quest-seed1", []),
        ("cifar10-vit-quest-rate-0.003-seed0", []),
        ("cifar10-vit-standard-seed0", [{"epoch": 3, "step": 77, "diverged": True}]),
        ("shapes-vit-quest-seed0", []),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    svg, other = zoo.curves.plot(tmp_path, tmp_path / "plots")
    assert (svg.name, other.name) == ("cifar10-vit-curves.svg", "shapes-vit-curves.svg")
    first = svg.read_bytes()
    texts = [comment.strip() for comment in re.findall(r"<!-- (.*?) -->", svg.read_text(), re.DOTALL)]
    assert texts.index("standard") < texts.index("quest, 2 seeds")  # as the formulas are listed
    assert {"diverged at step 77", "attention entropy, nats", "layer 2"} <= set(texts)
    assert not any("shapes" in text or ("seeds" in text and "2" not in text) for text in texts)
    zoo.curves.plot(tmp_path, tmp_path / "plots")
    assert svg.read_bytes() == first


def test_a_log_says_what_was_trained(zoo: Any, tmp_path: Path) -> None:
    names = {
        "shapes-vit-elliptical-quest-seed4": ("shapes-vit", "elliptical-quest", "", 4),
        "shapes-crossvit-quest-seed0": ("shapes-crossvit", "quest", "", 0),
        "shapes-vit-qknorm-hs-epochs-4-rate-0.0001-seed1": ("shapes-vit", "qknorm-hs", "epochs-4-rate-0.0001", 1),
        "shapes-vit-standard-quack-tau-1-seed0": ("shapes-vit", "standard", "quack-tau-1", 0),
    }
    probes = [{"probe": {"largest_logit": values}} for values in ([1.0, 9.0], [4.0, 5.0], [3.5, 7.5])]
    end = {"test_accuracy_ema": 0.75}
    for name in (*names, "something-else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(probe | end) + "\n" for probe in probes))
    found = {log.name: log for log in zoo.logs.read_logs(tmp_path)}
    assert {name: (log.family, log.attention, log.variant, log.seed) for name, log in found.items()} == names
    rate = found["shapes-vit-qknorm-hs-epochs-4-rate-0.0001-seed1"]
    assert (rate.option("rate"), rate.option("epochs"), rate.option("fraction")) == (1e-4, 4, None)
    assert (rate.accuracy, rate.largest_logit(), rate.logit_change()) == (0.75, 9.0, 4.0)
    assert set(zoo.logs.plain(list(found.values()))) == {"shapes-vit", "shapes-crossvit"}


# runs

KILLED = """
import os, signal, sys
from dataclasses import replace
sys.path.insert(0, {root!r})
import torch
from scripts.zoo import recipe, run, train
tiny = replace(
    recipe.PRESETS["smoke"], epochs=2, batch=20, train_images=None, test_images=None, mix_prob=0.5)
rate_at = run.rate_at
def deadly(preset, step, steps):
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return rate_at(preset, step, steps)
run.rate_at = deadly
for save_every, words in {runs!r}:  # a process each, forked after the imports
    child = os.fork()
    if not child:
        recipe.PRESETS["smoke"] = replace(tiny, save_every=save_every)
        os._exit(train.main(words))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.fixture(scope="module")
def killed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Work folders of two runs killed in their seventh step, one with a state of each step and one of each epoch."""
    works, runs = {}, []
    for attention, save_every in (("quest", 0.0), ("elliptical", 60.0)):
        works[attention] = tmp_path_factory.mktemp(attention)
        runs.append((save_every, arguments(archives, works[attention], attention)))
    code = KILLED.format(root=str(ROOT), runs=runs)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True, timeout=200)
    return works


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "state"), [("quest", 6), ("elliptical", 4)])
def test_a_killed_run_goes_on_to_the_same_bytes(
    zoo: Any,
    killed: dict[str, Path],
    command: Callable[[Path, str], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    attention: str,
    state: int,
) -> None:
    name = f"cifar10-vit-{attention}.safetensors"
    assert zoo.script.main(command(killed[attention], attention)) == 0
    assert f"goes on at step {state} of 8\n" in capsys.readouterr().out
    assert zoo.script.main(command(tmp_path, attention)) == 0
    assert "goes on" not in capsys.readouterr().out
    assert (killed[attention] / name).read_bytes() == (tmp_path / name).read_bytes()
    logs = [zoo.logs.read_logs(work)[0].rows for work in (killed[attention], tmp_path)]
    for log in logs:
        for row in log:
            del row["images_per_second"]  # the only thing that time is in
    assert logs[0] == logs[1]
    assert [row["epoch"] for row in logs[0]] == [1, 2]

    path = tmp_path / name
    classifier = robustkit.load(path)
    said = classifier.identity.metadata
    assert classifier.identity.attention == get_attention(classifier.network) == attention
    assert (classifier.identity.attention_source, classifier.identity.class_names) == ("metadata", CLASSES)
    keys = "preset recipe seed epochs ema data data_digest test_data test_digest accuracy license"
    assert set(keys.split()) <= set(said)
    assert said["recipe"] == zoo.tiny.text()
    source = zoo.data.cached(
        command(tmp_path, attention)[7], "test", None, tmp_path / "data", zoo.recipe.CIFAR10, CLASSES
    )
    right = classifier(source.pixels.float() / 255).argmax(1) == source.labels
    assert float(said["accuracy"]) == pytest.approx(right.double().mean().item(), abs=1e-4)
    listed = json.loads((tmp_path / "checkpoints.json").read_text())[path.stem]
    assert listed["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("quack(norm=spectral)", "quack(tau=1,norm=spectral)"),
        ("qk-clip(threshold=0.01)", "qk-clip(threshold=0.01)"),
        ("sigma-reparam", "sigma-reparam"),
        ("fixed-rates", "fixed-rates(factor=0.1)"),
    ],
)
def test_a_stabilised_run_goes_on_to_the_same_bytes_and_says_by_what(
    zoo: Any, command: Callable[[Path, str], list[str]], tmp_path: Path, given: str, text: str
) -> None:
    rate_at = zoo.run.rate_at
    broken, whole, plain = (
        [*command(tmp_path / kind, "standard"), "--epochs", "1", "--stabiliser", which]
        for kind, which in (("broken", given), ("whole", given), ("plain", "none"))
    )

    def interrupt(preset: Any, step: int, steps: int) -> float:
        if step == 2:
            raise KeyboardInterrupt
        return rate_at(preset, step, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo.run, "rate_at", interrupt)
        patch.setitem(zoo.recipe.PRESETS, "smoke", replace(zoo.tiny, save_every=0.0))
        with pytest.raises(KeyboardInterrupt):
            zoo.script.main(broken)
    assert [zoo.script.main(arguments) for arguments in (broken, whole, plain)] == [0, 0, 0]
    name = "cifar10-vit-standard-" + re.sub("[(=,]", "-", text).rstrip(")") + "-epochs-1"
    path = tmp_path / "whole" / f"{name}.safetensors"
    assert path.read_bytes() == (tmp_path / "broken" / f"{name}.safetensors").read_bytes()
    usual_path = tmp_path / "plain" / "cifar10-vit-standard-epochs-1.safetensors"
    found, other = (robustkit.load(file) for file in (path, usual_path))
    assert found.identity.metadata["stabiliser"] == text
    assert json.loads((tmp_path / "whole" / "checkpoints.json").read_text())[name]["stabiliser"] == text
    assert "stabiliser" not in other.identity.metadata
    stabilised, usual = (model.network.state_dict() for model in (found, other))
    assert list(stabilised) == list(usual)  # plain weights, whatever made them
    assert not torch.equal(*(tensors["blocks.0.attn.qkv.weight"] for tensors in (stabilised, usual)))


def test_stabilisers_that_cannot_be_are_refused_before_any_work(
    zoo: Any, command: Callable[[Path, str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, message in (
        ("quack(tau=0)", "quack: tau 0: expected a number above 0"),
        ("quack(tau=fast)", "quack: tau 'fast': expected a number"),
        ("quack(norm=nuclear)", "unknown norm of weights 'nuclear'; known: frobenius, spectral"),
        ("fixed-rates(rate=2)", "unknown parameter of fixed-rates 'rate'; known: factor"),
        ("sigma-reparam(gamma=1)", "sigma-reparam takes no parameters"),
        ("quak", "unknown stabiliser 'quak'; did you mean 'quack'?"),
        ("softcap", "capped logits are an attention: --attention 'softcap(cap=50)'"),
        ("quack(tau", "stabiliser 'quack(tau': expected a name or name(key=value,...)"),
    ):
        assert zoo.script.main([*command(tmp_path, "standard"), "--stabiliser", given]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_stabiliser_is_part_of_what_a_folder_holds(
    zoo: Any, command: Callable[[Path, str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*command(tmp_path, "standard"), "--epochs", "1"]
    assert zoo.script.main([*given, "--stabiliser", "quack"]) == 0
    other = tmp_path / "cifar10-vit-standard-quack-tau-1-norm-frobenius-epochs-1-seed0"
    other.rename(tmp_path / "cifar10-vit-standard-epochs-1-seed0")
    assert zoo.script.main(given) == 2
    assert "holds a run with stabiliser quack(tau=1,norm=frobenius), not none; give another" in capsys.readouterr().err


@pytest.mark.slow
def test_seeds_give_other_weights_and_other_files(
    zoo: Any, command: Callable[[Path, str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(zoo.recipe.PRESETS, "smoke", replace(zoo.tiny, epochs=1))
    for seed in ("0", "1"):
        assert zoo.script.main([*command(tmp_path, "quest"), "--seed", seed]) == 0
    made = [robustkit.load(path).network.head.weight for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(made) == 2
    assert not torch.equal(*made)


def test_the_shapes_preset_is_the_same_recipe_on_the_generated_set(
    zoo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = replace(zoo.recipe.PRESETS["shapes"], epochs=1, batch=20, train_images=40, test_images=20)
    monkeypatch.setitem(zoo.recipe.PRESETS, "shapes", preset)
    given = ["--preset", "shapes", "--attention", "elliptical", "--work", str(tmp_path)]
    assert zoo.script.main(given) == 0
    model = robustkit.load(tmp_path / "shapes-vit-elliptical.safetensors")
    said = model.identity.metadata
    assert (model.identity.attention, said["data"]) == ("elliptical", "embedded:shapes: 40 training images")
    assert said["data_digest"] == open_dataset("embedded:shapes-train").select(40).digest()
    assert model.network.patch_embed.grid_size == (8, 8)
    recipes = [zoo.recipe.PRESETS[name].text() for name in ("cpu", "shapes")]
    cpu, shapes = (re.sub(r"preset \w+: \d+ epochs, batch \d+", "", recipe) for recipe in recipes)
    assert cpu.replace("bfloat16 autocast", "float32") == shapes


def test_a_variant_has_a_name_of_its_own_and_a_part_of_each_class(
    zoo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CrossViT, too: loading gives back its two branches and their formula."""
    preset = replace(zoo.recipe.PRESETS["shapes-crossvit"], epochs=3, batch=10, train_images=60, test_images=20)
    monkeypatch.setitem(zoo.recipe.PRESETS, "shapes-crossvit", preset)
    variant = ["--epochs", "1", "--rate", "3e-3", "--fraction", "0.5"]
    given = ["--preset", "shapes-crossvit", "--attention", "quest", "--work", str(tmp_path)]
    assert zoo.script.main([*given, *variant]) == 0
    model = robustkit.load(tmp_path / "shapes-crossvit-quest-epochs-1-rate-0.003-fraction-0.5.safetensors")
    said = model.identity.metadata
    assert said["data"].endswith(": 30 training images") and "50% of the training images" in said["recipe"]
    assert (model.identity.attention, type(model.network).__name__) == ("quest", "CrossVit")
    assert [grid.num_patches for grid in model.network.patch_embed] == [64, 16]
    given_bfloat16 = zoo.script.parse([*given, "--bfloat16", "--rate", "3e-3"])
    assert zoo.script.named(zoo.script.task_of(given_bfloat16)) == "shapes-crossvit-quest-bfloat16-rate-0.003"
    assert zoo.recipe.PRESETS["cpu"].variant() == ""  # in bfloat16 by itself
    assert zoo.script.main([*given, "--fraction", "1.5"]) == 2
    assert "fraction 1.5 of the training images; expected more than 0 and at most 1" in capsys.readouterr().err


def test_a_fraction_is_of_each_class_and_larger_ones_hold_smaller(zoo: Any) -> None:
    labels = torch.arange(90) % 3
    labels[:30] = 0
    images = zoo.data.Images(torch.arange(90)[:, None], labels, "x", "d", ("a", "b", "c"))
    tenth, half, other = images.part(0.1, 1), images.part(0.5, 1), images.part(0.1, 2)
    assert tenth.labels.bincount().tolist() == [round(0.1 * n) for n in labels.bincount().tolist()]
    assert set(tenth.pixels.flatten().tolist()) < set(half.pixels.flatten().tolist())
    assert len({images.digest, tenth.digest, half.digest, other.digest}) == 4 and images.part(1, 1) is images


def test_a_folder_of_another_run_is_refused(zoo: Any, trained: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert trained("standard", epochs=1)[0] == 0
    before = (tmp_path / "cifar10-vit-standard-seed0" / "state.pt").read_bytes()
    status, error = trained("standard", epochs=1, rate=0.5)
    rate = f"holds a run with rate {zoo.tiny.rate}, not 0.5; give another --work"
    assert status == 2 and f"cifar10-vit-standard-seed0: {rate}" in error
    (tmp_path / "cifar10-vit-standard-seed0").rename(tmp_path / "cifar10-vit-quest-seed0")
    status, error = trained("quest", epochs=1)
    assert status == 2
    assert error.endswith("holds a run with attention standard, not quest; give another --work, or delete it\n")
    (tmp_path / "cifar10-vit-quest-seed0").rename(tmp_path / "cifar10-vit-standard-seed5")
    status, error = trained("standard", "--seed", "5", epochs=1)
    assert status == 2 and "holds a run with seed 0, not 5;" in error
    assert (tmp_path / "cifar10-vit-standard-seed5" / "state.pt").read_bytes() == before


def test_divergence_is_said_and_logged_and_leaves_no_checkpoint(
    zoo: Any, trained: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    status, error = trained("standard", rate=1e30)
    assert status == 1 and "the loss is nan by step 4 (epoch 1); training diverged; lower the rate of 1e+30" in error
    (log,) = zoo.logs.read_logs(tmp_path)
    assert log.diverged and list(log.rows) == [{"epoch": 1, "step": 4, "diverged": True}]
    assert not list(tmp_path.glob("*.safetensors"))
    assert not (tmp_path / "cifar10-vit-standard-seed0" / "state.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["standard", "elliptical-quest"])
def test_the_smoke_preset_is_killed_half_way_and_gives_the_same_weights(
    archives: tuple[Path, Path], tmp_path: Path, attention: str
) -> None:
    script = [sys.executable, "-m", "scripts.zoo.train"]
    works = [tmp_path / "killed", tmp_path / "whole"]
    state = works[0] / f"cifar10-vit-{attention}-seed0" / "state.pt"
    process = subprocess.Popen([*script, *arguments(archives, works[0], attention)], cwd=ROOT)
    while not state.exists() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    for work in works:
        subprocess.run([*script, *arguments(archives, work, attention)], check=True, cwd=ROOT)
    first, second = ((work / f"cifar10-vit-{attention}.safetensors").read_bytes() for work in works)
    assert first == second


def test_watched_training_images_are_of_all_classes(zoo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the classes of the generated set take turns, so that equal steps through it would meet one of them."""
    preset = replace(zoo.recipe.PRESETS["shapes"], epochs=1, batch=10, train_images=100, test_images=10, watched=10)
    monkeypatch.setitem(zoo.recipe.PRESETS, "shapes", preset)
    seen: list[list[int]] = []

    def noted(model: Any, family: Any, images: Any, *rest: Any) -> float:
        seen.append(images.labels.tolist())
        return 0.5

    monkeypatch.setattr(zoo.run, "accuracy", noted)
    assert zoo.script.main(["--preset", "shapes", "--attention", "quest", "--work", str(tmp_path)]) == 0
    assert len(seen) == 4 and all(sorted(labels) == list(range(10)) for labels in seen)
