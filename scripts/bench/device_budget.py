"""Where a large audit would spend its time on a device: counts, times rates that are given. An estimate.

    python -m scripts.bench.device_budget --forward 9000 [--launch 5] [--wait 25] [--decode 6] [--cores 16]

Launches and waits of attacks, corruptions and AG-CAM are counted on the stand-in for a CUDA device of the tests, at two
batch sizes, and extended along a line; those of the network are `--network` a pass. Passes come from the attacks' own
settings: for AutoAttack a share `--standing` of the samples stands to its end, and the others fall after `--falls`
passes. A backward is taken for two forwards. Kernels of corruptions and attacks count by their launches only, so what
is bound by memory takes longer than said here.

A unit takes the longer of its kernels and their launches, and its waits, and the host's work; decoding runs meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
import stand_in
import timm
import torch
from torch import Tensor, nn

import robustkit
from attacks import FGSM, PGD, Attack, AutoAttack, ThreatModel
from cam import AGCAM
from corruptions import CORRUPTIONS, corruption
from robustkit.attention import set_attention
from robustkit.common.determinism import SampleRng
from scripts.pages.writing import markdown

SIZES = (4, 8)
SIDE = 224
NETWORK = """
from torch import nn

def build(num_classes=10):
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
    net.default_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "input_size": (3, 32, 32)}
    return net
"""
HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


@dataclass(frozen=True)
class Cost:
    """What a unit of images costs a device: forwards and backwards of an image, launches and waits of the unit."""

    name: str
    conditions: int
    forwards: float
    backwards: float
    launches: float
    waits: float


class Tiny(nn.Module):
    """A network of next to nothing, on which class 0 always wins; it counts its passes, and what they launch."""

    def __init__(self, seen: stand_in.Counts) -> None:
        super().__init__()
        self.head = nn.Linear(3, 10)
        self.head.bias.data[0] += 1e3
        self.seen, self.passes, self.own = seen, 0, 0

    def forward(self, images: Tensor) -> Tensor:
        before = self.seen.launched
        logits: Tensor = self.head(images.mean((2, 3)))
        self.passes += 1
        self.own += self.seen.launched - before
        return logits


def at(size: int, points: dict[int, float]) -> float:
    """Extend a count from two batch sizes along a line."""
    (low, first), (high, second) = points.items()
    return first + (second - first) / (high - low) * (size - low)


def counted(size: int, work: Callable[[stand_in.Counts, int], int]) -> tuple[float, float, float]:
    """Return launches, waits and passes of some work on `size` images. work: returns its passes' own launches."""
    launches, waits, passes = {}, {}, {}
    for batch in SIZES:
        with stand_in.devices() as seen:
            done, own = work(seen, batch)
            launches[batch], waits[batch], passes[batch] = seen.launched - own, seen.stops, done
    return at(size, launches), at(size, waits), passes[SIZES[0]]


def attack_of(attack: Attack) -> Callable[[stand_in.Counts, int], Any]:
    def work(seen: stand_in.Counts, batch: int) -> tuple[int, int]:
        model, images = Tiny(seen).to("cuda"), torch.rand(batch, 3, 32, 32, device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        rng = SampleRng.of([str(i) for i in range(batch)], seed=0, condition="budget", device="cuda")
        seen.forget()
        model.passes = model.own = 0
        attack.run(model, images, labels, rng=rng, batch_size=batch)
        return model.passes, model.own

    return work


def corruption_of(name: str, severity: int) -> Callable[[stand_in.Counts, int], Any]:
    def work(seen: stand_in.Counts, batch: int) -> tuple[int, int]:
        images = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8).to("cuda")
        rng = SampleRng.of([str(i) for i in range(batch)], seed=0, condition=name, device="cuda")
        made = corruption(name)
        made(images, severity, rng)  # what depends on the size alone is made once
        seen.forget()
        made(images, severity, rng)
        return 1, 0

    return work


def of_a_unit() -> tuple[float, float]:
    """Return launches and waits of a clean unit of an audit, except for the network: two units less one."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "net.py").write_text(NETWORK)
        torch.save(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).state_dict(), place / "net.pth")
        for shards in (1, 2):
            request: dict[str, Any] = {"limit": 8 * shards, "shard_size": 8, "attacks": "none", "browse": 0}
            request |= {"setup_check": False}  # it is made once, and looks at more samples where there are more
            model = {"arch": f"{place / 'net.py'}:build", "num_classes": 10}
            with stand_in.devices() as seen:
                out = place / str(shards)
                robustkit.audit([place / "net.pth"], data_dir="embedded:shapes", model=model, out=out, **request)
                found.append((seen.launched, seen.stops))
    return found[1][0] - found[0][0] - 1, found[1][1] - found[0][1]  # the network launches one product


def explaining(seen: stand_in.Counts, batch: int) -> tuple[int, int]:
    """Make AG-CAM maps of a small ViT; a forward and a backward of it are its own."""
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_classes=10)
    vit = set_attention(vit.eval(), "standard").requires_grad_(False).to("cuda")
    images = torch.rand(batch, 3, 32, 32).to("cuda")
    seen.forget()
    points = images.clone().requires_grad_()
    torch.autograd.grad(vit(points)[:, 0].sum(), points)
    own = seen.launched
    seen.forget()
    with AGCAM(vit) as explain:
        explain(images, 0)
    return 1, own


def costs(options: argparse.Namespace) -> list[Cost]:
    """Return the cost of a unit of `options.unit` images under each kind of condition."""
    unit, threat = options.unit, ThreatModel(eps=1 / 255)
    shown, waited = of_a_unit()
    found = [Cost("clean", 1, 1, 0, shown, waited)]
    for name, attack, passes in (("FGSM", FGSM(threat), 1), ("PGD-20", PGD(threat), 20)):
        launches, waits, _ = counted(unit, attack_of(attack))
        found.append(Cost(name, 1, passes + 1, passes, launches + shown, waits + waited))
    short = AutoAttack(threat, steps=4, targets=2, queries=12)
    launches, waits, passes = counted(unit, attack_of(short))
    stands = {"apgd-ce": 101, "apgd-t": 9 * 101, "fab-t": 9 * 101, "square": 5001}
    forwards = 1 + options.standing * sum(stands.values()) + (1 - options.standing) * options.falls
    backwards = options.standing * (100 + 900 + 900) + (1 - options.standing) * options.falls
    rounds = forwards * unit / min(unit, options.batch)  # passes of whole batches
    each_launch, each_wait = launches / passes, waits / passes
    found.append(Cost("AutoAttack", 1, forwards + 1, backwards, each_launch * rounds, each_wait * rounds))
    names = [name for name in CORRUPTIONS if name not in (*HELD_OUT, "frost")]
    pairs = [counted(unit, corruption_of(name, severity))[:2] for name in names for severity in (1, 3, 5)]
    launches, waits = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    found.append(Cost("in-c, a condition", 75, 1, 0, launches + shown, waits + waited))
    launches, waits, _ = counted(unit, explaining)
    found.append(Cost("AG-CAM", 1, 1, 1, launches, waits))
    return found


def seconds(cost: Cost, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a kind of condition, over all images and conditions, by what they go to."""
    units = cost.conditions * options.images / options.unit
    passes = cost.forwards + 2 * cost.backwards
    batches = options.unit / min(options.unit, options.batch)
    own = (cost.forwards + 2 * cost.backwards) * batches * options.network
    parts = {
        "model": units * options.unit * passes / options.forward,
        "launches": units * (cost.launches + own) * options.launch * 1e-6,
        "waits": units * cost.waits * options.wait * 1e-6,
        "host": units * options.host * 1e-3,
    }
    busy = max(parts["model"] + units * cost.launches * options.launch * 1e-6, parts["launches"])
    return parts | {"all": busy + parts["waits"] + parts["host"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forward", type=float, required=True, help="images a second of the network's bare forward")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--unit", type=int, default=512, help="images in a shard")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--network", type=int, default=180, help="launches of a forward; about 3 with --compile")
    parser.add_argument("--launch", type=float, default=5.0, help="microseconds")
    parser.add_argument("--wait", type=float, default=25.0, help="microseconds")
    parser.add_argument("--host", type=float, default=1.0, help="milliseconds of the host a unit; see host_work")
    parser.add_argument("--decode", type=float, default=6.0, help="milliseconds of a core to decode an image")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--standing", type=float, default=0.15, help="share of samples that AutoAttack does not break")
    parser.add_argument("--falls", type=float, default=8.0, help="passes after which the others fall")
    options = parser.parse_args()
    if reason := stand_in.why_not():
        sys.exit(reason)
    stand_in.prepare()
    rows, total = [], 0.0
    for cost in costs(options):
        parts = seconds(cost, options)
        total += parts["all"]
        passes = f"{cost.forwards:.0f} + {cost.backwards:.0f}"
        shares = [f"{parts[name]:.0f}" for name in ("model", "launches", "waits", "host", "all")]
        row = [cost.name, cost.conditions, passes, f"{cost.launches:.0f}", f"{cost.waits:.0f}", *shares]
        rows.append([*map(str, row), f"{parts['model'] / parts['all']:.2f}"])
    names = ["condition", "conditions", "forwards + backwards", "launches a unit", "waits a unit"]
    names += ["model, s", "launches, s", "waits, s", "host, s", "all, s", "of the bare model's rate"]
    print(markdown([names, *rows]))
    decoding = options.images * options.decode * 1e-3 / options.cores
    print(f"\nAll: {total / 3600:.1f} h; decoding meanwhile, once for all: {decoding:.0f} s of {options.cores} cores.")


if __name__ == "__main__":
    main()
