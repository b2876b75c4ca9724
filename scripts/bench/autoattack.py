"""AutoAttack compared with pyautoattack, or with its own search in float32: who is left standing, passes, time of each
stage.

Both get the same float32 images, labels, batch size and threads; they take turns by chunks of images, so that a change
of the machine's load meets both. Passes are counted rows: forwards, and backwards that reach the input.

    python -m scripts.bench.autoattack --images cifar10-test.zip --limit 100 --eps 1/255
    python -m scripts.bench.autoattack --checkpoint resnet4b.pth --arch tests/support/cifar_resnets.py:resnet4b \\
        --images cifar10-test.zip --limit 200 --eps 2/255
    python -m scripts.bench.autoattack --device cuda --dtype bfloat16 --compile --images cifar10-test.zip --eps 1/255
    python -m scripts.bench.autoattack --checkpoint vit.safetensors --arch vit_tiny_patch16_224 --dtype bfloat16 \\
        --against float32 --images imagenet-val/val --limit 50 --eps 0.25/255

Without --checkpoint the model is the CIFAR-10 ResNet-18 that pyautoattack carries. With --dtype bfloat16 our attack
searches in it and float32 confirms, of which the last line counts how often it did not; what ours is compared with
stays in float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import robustkit
from attacks import AutoAttack, StagedResult, ThreatModel
from attacks.model_access import Oracle
from robustkit.common.determinism import SampleRng
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels, to_unit_range
from robustkit.evaluations.attacks.peers import peer
from robustkit.evaluations.subject import low_precision
from robustkit.models.identity import Classifier
from robustkit.protocol.card import parse_number

STAGES = ("clean", "apgd-ce", "apgd-t", "fab-t", "square")


class Counting(nn.Module):
    """A classifier in some dtype that counts the rows it is asked about."""

    def __init__(self, classifier: nn.Module, dtype: torch.dtype, ours: bool) -> None:
        super().__init__()
        self.classifier, self.layout = low_precision(classifier, dtype), torch.contiguous_format
        if ours and not any("attn" in name for name, _ in classifier.named_modules()):
            self.layout = torch.channels_last  # as in an audit
            self.classifier = copy.deepcopy(self.classifier).to(memory_format=self.layout)
        self.dtype = dtype
        self.rows = 0

    def forward(self, images: Tensor) -> Tensor:
        self.rows += len(images)
        if self.dtype is torch.float32:
            logits: Tensor = self.classifier(images)
            return logits
        with torch.autocast(images.device.type, self.dtype):
            return self.classifier(images).float()


@contextmanager
def judgements() -> Iterator[list[int]]:
    """Count inside the wrong predictions that a judge is asked about, and how many of them it finds right."""
    counts, confirm = [0, 0], Oracle.confirm

    def counted(oracle: Oracle, points: Tensor, labels: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
        agreed, asked = confirm(oracle, points, labels, wrong)
        counts[0] += int(asked.sum())
        counts[1] += int((asked & ~agreed).sum())
        return agreed, asked

    with mock.patch.object(Oracle, "confirm", counted):
        yield counts


def load(options: argparse.Namespace) -> tuple[Classifier, Tensor, Tensor, list[str]]:
    """Return the classifier, its images and labels on the device, and their ids."""
    if options.checkpoint:
        classifier = robustkit.load(options.checkpoint, arch=options.arch, attention=options.attention)
    else:
        carried = resources.files("pyautoattack") / "examples"
        classifier = robustkit.load(
            str(carried / "model_test.pt"),
            arch=f"{carried / 'resnet.py'}:ResNet18",
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
            img_size=32,
            crop_pct=1.0,
        )
    identity = classifier.identity
    dataset = open_dataset(options.images, num_classes=identity.num_classes, class_names=identity.class_names)
    samples = dataset.select(limit=options.limit, ids=None, seed=0).samples
    pixels = torch.stack([to_pixels(dataset.image(sample), identity.preprocessing) for sample in samples])
    labels = torch.tensor([sample.label for sample in samples])
    classifier = classifier.to(options.device).eval().requires_grad_(False)
    return classifier, to_unit_range(pixels.to(options.device)), labels.to(options.device), [s.id for s in samples]


def total(results: list[tuple[StagedResult, int]]) -> dict[str, dict[str, float]]:
    """Return what the stages did over all chunks; by the attack's own account of who stands."""
    table = {name: {"standing": 0.0, "forwards": 0.0, "backwards": 0.0, "seconds": 0.0} for name in STAGES}
    for result, samples in results:
        standing, done = samples, dict.fromkeys(STAGES, False)
        for index, name in enumerate(result.stages):
            done[name] = True
            standing -= int((result.broken_by == index).sum())
            row = table[name]
            row["standing"] += standing
            row["forwards"] += int(result.stage_forwards[index].sum())
            row["backwards"] += int(result.stage_backwards[index].sum())
            row["seconds"] += result.seconds[index]
        for name in STAGES:
            table[name]["standing"] += 0 if done[name] else standing
    return table


def show(ours: Mapping[str, Mapping[str, float]], theirs: Mapping[str, Mapping[str, float]]) -> None:
    print(f"{'':9} {'standing':>13} {'forwards':>19} {'backwards':>19} {'seconds':>17} {'ratio':>7}")
    for name in STAGES:
        a, b = ours[name], theirs[name]
        cells = [f"{a[key]:.0f} / {b[key]:.0f}" for key in ("standing", "forwards", "backwards")]
        times = f"{a['seconds']:.1f} / {b['seconds']:.1f}"
        ratio = b["seconds"] / max(a["seconds"], 1e-9)
        print(f"{name:9} {cells[0]:>13} {cells[1]:>19} {cells[2]:>19} {times:>17} {ratio:6.2f}x")
    seconds = [sum(row["seconds"] for row in table.values()) for table in (ours, theirs)]
    print(f"{'all':9} {'':>13} {'':>19} {'':>19} {seconds[0]:8.1f} / {seconds[1]:.1f} {seconds[1] / seconds[0]:6.2f}x")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoint", help="else pyautoattack's ResNet-18")
    parser.add_argument("--arch")
    parser.add_argument("--attention")
    parser.add_argument("--images", required=True, help="a data set as robustkit audit takes it")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--eps", default="1/255")
    parser.add_argument("--norm", choices=("linf", "l2"), default="linf")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of our search")
    parser.add_argument("--against", choices=("pyautoattack", "float32"), default="pyautoattack", help="float32: ours")
    parser.add_argument("--peer-dtype", choices=("float32", "bfloat16"), default="float32", help="of pyautoattack")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model for both")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=2, help="turns that the two take")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    classifier, images, labels, ids = load(options)
    threat = ThreatModel(options.norm, float(parse_number(options.eps)))
    dtype, peer_dtype = getattr(torch, options.dtype), getattr(torch, options.peer_dtype)
    attack = AutoAttack(threat)
    other = attack if options.against == "float32" else peer("pyautoattack", "autoattack", threat, {})
    results: dict[str, list[Any]] = {"ours": [], "theirs": []}
    wrong: dict[str, list[Tensor]] = {"ours": [], "theirs": []}
    judged = [0, 0]
    began = time.perf_counter()
    for chunk in torch.arange(len(images)).chunk(options.chunks):
        here = [ids[i] for i in chunk.tolist()]
        rng = SampleRng.of(here, seed=0, condition="autoattack", device=options.device)
        for who, runner, kind in (("ours", attack, dtype), ("theirs", other, peer_dtype)):
            judge = classifier if who == "ours" and kind is not torch.float32 else None
            counting = Counting(classifier, kind, who == "ours")
            shown = images[chunk]
            if who == "ours":
                shown = shown.contiguous(memory_format=counting.layout)
            if options.compile:
                counting.classifier = torch.compile(counting.classifier)
            with judgements() as counts:
                result = runner.run(counting, shown, labels[chunk], rng=rng, judge=judge, batch_size=options.batch_size)
            judged = [before + new for before, new in zip(judged, counts, strict=True)]
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            results[who].append((result, len(chunk)))
            with torch.inference_mode():
                parts = torch.split(result.adversarials, options.batch_size)
                wrong[who].append(torch.cat([classifier(part) for part in parts]).argmax(dim=1) != labels[chunk])
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(
        f"{platform.machine()}, {machine}; torch {torch.__version__}; ours {options.dtype}, theirs {options.peer_dtype}"
    )
    print(f"{options.norm} eps {options.eps}, {len(images)} images; ours / theirs, ratio = theirs over ours")
    ours, theirs = total(results["ours"]), total(results["theirs"])
    show(ours, theirs)
    stand = {who: int((~torch.cat(flags)).sum()) for who, flags in wrong.items()}
    differ = int((torch.cat(wrong["ours"]) != torch.cat(wrong["theirs"])).sum())
    print(
        f"standing in float32: {stand['ours']} / {stand['theirs']}, {differ} samples differ; "
        f"{time.perf_counter() - began:.0f} s in all"
    )
    if judged[0]:
        print(f"float32 was asked about {judged[0]} wrong predictions and found {judged[1]} of them right")
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items()}
        options.json.write_text(
            json.dumps({**settings, "ours": ours, "theirs": theirs, "standing": stand, "judged": judged})
        )


if __name__ == "__main__":
    main()
