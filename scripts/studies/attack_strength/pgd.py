"""What PGD leaves standing under step sizes, losses and restarts, next to stronger attacks on the same samples.

Every contender gets the same images, labels and random starts, and is scored in float32. The yardstick is what stands
after APGD on cross-entropy and targeted APGD on the DLR loss (100 steps, 9 targets), each on what the one before left.
The figures behind the `standard` card's step sizes come from it:

    python -m scripts.studies.attack_strength.pgd --checkpoint resnet4b.pth \\
        --arch tests/support/cifar_resnets.py:resnet4b --images cifar10-test.zip --limit 200 --norm l2 --eps 0.25,0.5
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from attacks import APGD, PGD, Attack, ThreatModel
from robustkit.common.determinism import SampleRng
from robustkit.models.identity import Classifier
from robustkit.protocol.card import parse_number

from . import parser_of, subject_of


def contenders(threat: ThreatModel, options: argparse.Namespace) -> Iterator[tuple[str, Attack]]:
    """Yield names and attacks; a name has steps, their length as a share of eps, loss and restarts."""
    for loss in options.losses.split(","):
        for budget in options.budgets.split(","):
            steps, _, restarts = budget.partition("x")
            for share in map(float, options.shares.split(",")):
                attack = PGD(threat, int(steps), share * threat.eps, restarts=int(restarts or 1), loss=loss)
                yield f"{budget} steps of {share:g} eps, {loss}", attack


def standing(classifier: Classifier, attack: Attack, images: Tensor, labels: Tensor, ids: list[str]) -> Tensor:
    """Whether each sample is right after the attack, (B,)."""
    rng = SampleRng.of(ids, seed=0, condition="bench", device=images.device)
    points = attack.run(classifier, images, labels, rng=rng, batch_size=64).adversarials
    with torch.inference_mode():
        logits = torch.cat([classifier(part) for part in torch.split(points, 64)])
    return (logits.argmax(dim=1) == labels) & logits.isfinite().all(dim=1)


def strong(classifier: Classifier, threat: ThreatModel, images: Tensor, labels: Tensor, ids: list[str]) -> Tensor:
    left = torch.ones_like(labels, dtype=torch.bool)
    for attack in (APGD(threat), APGD(threat, loss="dlr-targeted")):
        rows = left.nonzero().flatten()
        if len(rows):
            left[rows] = standing(classifier, attack, images[rows], labels[rows], [ids[row] for row in rows.tolist()])
    return left


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, 200)
    parser.add_argument("--norm", choices=("linf", "l2"), default="linf")
    parser.add_argument("--eps", default="8/255", help="radii, with commas between them")
    parser.add_argument("--shares", default="0.025,0.05,0.1,0.125,0.15,0.2,0.25,0.35", help="step sizes over eps")
    parser.add_argument("--budgets", default="20", help="steps, as in 20,40, or with restarts, as in 20x2")
    parser.add_argument("--losses", default="ce,margin,dlr")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    bench = subject_of(options)
    classifier, images, labels, ids = bench.model, bench.images, bench.labels, bench.ids
    rows = []
    for text in options.eps.split(","):
        threat, began = ThreatModel(options.norm, float(parse_number(text))), time.perf_counter()
        least = strong(classifier, threat, images, labels, ids)
        floor = 100 * float(least.float().mean())
        print(f"{options.checkpoint}, {options.norm} {text}, {len(ids)} images: APGD-CE and APGD-T leave {floor:.1f} %")
        for name, attack in contenders(threat, options):
            left = standing(classifier, attack, images, labels, ids)
            value = 100 * float(left.float().mean())
            rows.append({"eps": text, "attack": name, "standing": value, "strong": floor})
            print(f"  {name:36} {value:5.1f} %  {value - floor:+5.1f}", flush=True)
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items()}
        options.json.write_text(json.dumps({**settings, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
