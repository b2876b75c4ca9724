"""Times FGSM, PGD and SPSA against the floor and, where they are installed, torchattacks and foolbox.

The floor is what no attack can avoid: the same model's bare forwards and backwards to the input (SPSA: bare forwards
in the best of several batch sizes), in the same process, with parameters that take no gradient. Contenders take turns
in every round; the table holds the median over rounds of each one's time and of its ratio to that round's floor.

    python -m scripts.bench.attacks --device cpu --batch-size 16 --rounds 7
    python -m scripts.bench.attacks --device cuda --dtype bfloat16 --compile --batch-size 256 --json bench.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

from attacks import FGSM, PGD, SPSA, ThreatModel

EPS = 1 / 255
Contenders = dict[str, Callable[[], object]]


class Pixels(nn.Module):
    """Pixels in [0, 1] to float32 logits of a timm model that computes in `dtype`."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net.to(dtype)
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(((images - 0.5) / 0.5).to(self.dtype))
        return logits.float()


def build(name: str, options: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the model, images in the layout that suits it, and labels that it predicts right."""
    torch.manual_seed(0)
    file = options.checkpoint if name.startswith("vit") else None
    net = timm.create_model(name, pretrained=False, checkpoint_path=str(file) if file else "")
    layout = torch.contiguous_format if name.startswith("vit") else torch.channels_last
    model = Pixels(net, options.dtype).to(options.device, memory_format=layout).requires_grad_(False).eval()
    images = torch.rand(options.batch_size, 3, 224, 224).to(options.device, memory_format=layout)
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    return (torch.compile(model) if options.compile else model), images, labels


def gradient_floor(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    for _ in range(steps):
        points = images.detach().requires_grad_()
        torch.autograd.grad(nn.functional.cross_entropy(model(points), labels, reduction="sum"), points)


def forward_floor(model: nn.Module, rows: Tensor, times: int) -> None:
    with torch.inference_mode():
        for _ in range(times):
            model(rows)


def gradient_contenders(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> Contenders:
    """Return FGSM for steps = 1, PGD from a random start for more."""
    threat = ThreatModel("linf", EPS)
    ours = FGSM(threat) if steps == 1 else PGD(threat, steps=steps)
    contenders: Contenders = {
        "floor": lambda: gradient_floor(model, images, labels, steps),
        "attacks": lambda: ours(model, images, labels),
    }
    if importlib.util.find_spec("torchattacks"):
        import torchattacks

        peer = torchattacks.FGSM(model, EPS) if steps == 1 else torchattacks.PGD(model, EPS, 0.15 * EPS, steps)
        contenders["torchattacks"] = lambda: peer(images, labels)
    if importlib.util.find_spec("foolbox"):
        import foolbox

        attack = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        if steps > 1:
            attack = foolbox.attacks.LinfPGD(rel_stepsize=0.15, steps=steps)
        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
        contenders["foolbox"] = lambda: attack(wrapped, images, labels, epsilons=EPS)
    return contenders


def spsa_contenders(model: nn.Module, images: Tensor, labels: Tensor, options: argparse.Namespace) -> Contenders:
    """Return a few of SPSA's steps on a few images: 256 rows for each step and image."""
    images, labels, steps = images[: options.spsa_images], labels[: options.spsa_images], options.spsa_steps
    total = 256 * steps * len(images)
    ours = SPSA(ThreatModel("linf", EPS), steps=steps, chunk=options.chunk)
    contenders: Contenders = {}
    for rows in options.floor_batches:
        batch = images[:1].repeat_interleave(rows, dim=0)
        contenders[f"floor, batches of {rows}"] = partial(forward_floor, model, batch, total // rows)
    contenders["attacks"] = lambda: ours(model, images, labels)
    if importlib.util.find_spec("torchattacks"):
        import torchattacks

        peer = torchattacks.SPSA(model, EPS, nb_iter=steps, nb_sample=128, max_batch_size=64)
        contenders["torchattacks"] = lambda: peer(images, labels)
    return contenders


def race(contenders: Contenders, rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def rows_of(model: str, attack: str, seconds: dict[str, list[float]]) -> list[dict[str, object]]:
    """Return a row for each contender, with its ratio to the fastest floor of the same round."""
    floor = [min(turn) for turn in zip(*(v for k, v in seconds.items() if k.startswith("floor")), strict=True)]
    return [
        {
            "model": model,
            "attack": attack,
            "contender": name,
            "seconds": round(statistics.median(times), 4),
            "ratio": round(statistics.median(t / f for t, f in zip(times, floor, strict=True)), 3),
        }
        for name, times in seconds.items()
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compile", action="store_true", help="torch.compile the models (peers get the same ones)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: where others load the machine")
    parser.add_argument("--models", default="vit_tiny_patch16_224,resnet18", help="timm names, comma-separated")
    parser.add_argument("--attacks", default="fgsm,pgd,spsa", help="of fgsm, pgd, spsa")
    parser.add_argument("--steps", type=int, default=20, help="PGD's")
    parser.add_argument("--spsa-images", type=int, default=2)
    parser.add_argument("--spsa-steps", type=int, default=2)
    parser.add_argument("--chunk", type=int, help="SPSA's rows in a forward")
    parser.add_argument("--floor-batches", type=int, nargs="+", default=[16, 32, 64, 128], help="for SPSA's floor")
    parser.add_argument("--checkpoint", type=Path, help="weights of the ViT (random ones otherwise)")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args(arguments)
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.dtype = getattr(torch, options.dtype)
    return options


def main() -> None:
    options = parse()
    warnings.filterwarnings("ignore")  # the peers' own
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    on_gpu = options.device == "cuda"
    machine = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{machine}; torch {torch.__version__}; {options.clock} time")
    print(f"{options.dtype}; compile {options.compile}; batches of {options.batch_size}; {options.rounds} rounds")
    for peer in ("torchattacks", "foolbox"):
        if not importlib.util.find_spec(peer):
            print(f"{peer} is not installed: skipped")
    rows: list[dict[str, object]] = []
    for name in options.models.split(","):
        model, images, labels = build(name, options)
        for attack in options.attacks.split(","):
            if attack == "spsa":
                contenders = spsa_contenders(model, images, labels, options)
            else:
                contenders = gradient_contenders(model, images, labels, 1 if attack == "fgsm" else options.steps)
            for row in rows_of(name, attack, race(contenders, options.rounds, clock)):
                rows.append(row)
                print("{model:24} {attack:5} {contender:22} {seconds:9.4f} s {ratio:7.3f} x".format(**row), flush=True)
    if options.json:
        settings = {k: str(v) for k, v in vars(options).items()}
        options.json.write_text(json.dumps({"machine": machine, "torch": torch.__version__, **settings, "rows": rows}))


if __name__ == "__main__":
    main()
