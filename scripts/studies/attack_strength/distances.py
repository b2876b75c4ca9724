"""FMN and DDN compared with foolbox and adv-lib, in one run: medians of the distances found, and passes.

All get the same float32 images, labels and threads. Passes are counted rows of a sample: forwards. Ours take one
update less: its two passes are the forwards of the clean image and of the last point, which adv-lib does not make.

    python -m scripts.studies.attack_strength.distances --checkpoint zoo:shapes-vit-quest --images embedded:shapes \\
        --limit 50
    python -m scripts.studies.attack_strength.distances --checkpoint resnet2b.pth \\
        --arch tests/support/cifar_resnets.py:resnet2b --images cifar10-test.zip --limit 50 --norms linf,l2,l1,l0

foolbox (3.3) and adv-lib (0.2.8, which asks for a `visdom` that it does not use here) take part where they are
installed. --curve prints how many samples stand at each radius in linf, by FMN's distances and under AutoAttack.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attacks import DDN, FMN, AutoAttack, ThreatModel
from attacks.threat import distance
from robustkit.common.determinism import SampleRng
from robustkit.protocol.card import parse_number
from scripts.bench.race import passes

from . import parser_of, subject_of

_ORDERS = {"linf": math.inf, "l2": 2, "l1": 1, "l0": 0}


def contenders(norm: Any, steps: int) -> Iterator[tuple[str, Callable[[Any, Tensor, Tensor], Tensor]]]:
    """Yield the name of each attack, and what makes its adversarials from a model, images and labels."""
    threat = ThreatModel(norm, math.inf)
    yield "FMN", lambda model, images, labels: FMN(threat, steps=steps - 1)(model, images, labels)
    if norm == "l2":
        yield "DDN", lambda model, images, labels: DDN(threat, steps=steps - 1)(model, images, labels)
    if importlib.util.find_spec("foolbox"):
        import foolbox

        name = {"linf": "LInf", "l2": "L2", "l1": "L1", "l0": "L0"}[norm]
        kinds = {"foolbox FMN": getattr(foolbox.attacks, f"{name}FMNAttack")(steps=steps)}
        if norm == "l2":
            kinds["foolbox DDN"] = foolbox.attacks.DDNAttack(steps=steps, init_epsilon=1.0)
        for label, attack in kinds.items():
            yield (
                label,
                lambda model, images, labels, attack=attack: attack(  # type: ignore[misc]
                    foolbox.PyTorchModel(model, bounds=(0, 1)), images, labels, epsilons=None
                )[1],
            )
    if importlib.util.find_spec("adv_lib"):
        from adv_lib.attacks import ddn, fmn

        yield (
            "adv-lib FMN",
            lambda model, images, labels: fmn(model, images, labels, norm=float(_ORDERS[norm]), steps=steps),
        )
        if norm == "l2":
            yield "adv-lib DDN", lambda model, images, labels: ddn(model, images, labels, steps=steps, levels=None)


def main() -> None:
    parser = parser_of(__doc__, 50)
    parser.add_argument("--norms", default="linf,l2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--curve", help="radii at which to run AutoAttack, too: 0.5/255,1/255,2/255")
    options = parser.parse_args()
    bench = subject_of(options)
    model, images, labels = bench.model, bench.images, bench.labels
    with torch.inference_mode():
        right = model(images).argmax(dim=1) == labels
    print(f"{options.checkpoint}, {len(images)} images, {int(right.sum())} right, {options.steps} steps")
    for norm in options.norms.split(","):
        unit = 255 if norm == "linf" else 1
        for name, attack in contenders(norm, options.steps):
            began = time.perf_counter()
            (forwards, _), ends = passes(bench.networks, lambda run=attack: run(model, images, labels))  # type: ignore[misc]
            seconds = time.perf_counter() - began
            with torch.inference_mode():
                wrong = model(ends).argmax(dim=1) != labels
            sizes = distance(norm, ends, images).masked_fill(~wrong, math.inf).masked_fill(~right, 0.0)
            of_right = float(sizes[right].median()) * unit
            print(
                f"{norm:5} {name:12} median of right {of_right:9.4f}  all {float(sizes.median()) * unit:9.4f}  "
                f"found {int(wrong.sum())} of {len(images)}  forwards {forwards / len(images):6.1f}  {seconds:6.1f} s",
                flush=True,
            )
            if name == "FMN" and norm == "linf" and options.curve:
                for text in options.curve.split(","):
                    eps = float(parse_number(text))
                    rng = SampleRng.of(bench.ids, seed=0, condition="autoattack", device=options.device)
                    broken = AutoAttack(ThreatModel(norm, eps)).run(model, images, labels, rng=rng, batch_size=32)
                    standing = int((broken.broken_by < 0).sum())
                    print(f"      at {text}: FMN leaves {int((sizes > eps).sum())}, AutoAttack {standing}", flush=True)


if __name__ == "__main__":
    main()
