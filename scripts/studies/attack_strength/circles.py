"""What PGD saves by leaving the circles in which steps of one length end: same points, fewer passes, less time.

Both sides get the same images, labels, random starts and batches; one of them looks for circles. Their points are
compared bit by bit, and their CPU time in pairs, the order of which changes.

    python -m scripts.studies.attack_strength.circles --checkpoint resnet4b.pth \\
        --arch tests/support/cifar_resnets.py:resnet4b --images cifar10-test.zip --limit 200 --eps 2/255 --steps 400
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

import torch
from torch import Tensor

from attacks import PGD, AttackResult, ThreatModel, pgd
from robustkit.common.determinism import SampleRng
from robustkit.protocol.card import parse_number

from . import parser_of, subject_of

NEVER = 10**9


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, 200)
    parser.add_argument("--norm", choices=("linf", "l2"), default="linf")
    parser.add_argument("--eps", default="2/255")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = parse()
    bench = subject_of(options)
    attack = PGD(ThreatModel(options.norm, float(parse_number(options.eps))), options.steps)

    def run(looks: bool) -> tuple[list[AttackResult], float]:
        began, results = time.process_time(), []
        with mock.patch.object(pgd, "FIRST_ANCHOR", pgd.FIRST_ANCHOR if looks else NEVER):
            for start in range(0, len(bench.ids), options.batch):
                part = slice(start, start + options.batch)
                rng = SampleRng.of(bench.ids[part], seed=0, condition="bench", device=bench.images.device)
                results.append(attack.run(bench.model, bench.images[part], bench.labels[part], rng=rng))
        return results, time.process_time() - began

    ratios = []
    for pair in range(options.pairs):
        sides = {looks: run(looks) for looks in ((True, False), (False, True))[pair % 2]}
        ratios.append(sides[True][1] / sides[False][1])
        print(f"pair {pair + 1}: {sides[True][1]:.0f} s for {sides[False][1]:.0f} s of CPU time", flush=True)

    def column(looks: bool, name: str) -> Tensor:
        return torch.cat([getattr(result, name) for result in sides[looks][0]])

    points, forwards, cycle_at = (column(True, name) for name in ("adversarials", "forwards", "cycle_at"))
    whole = column(False, "forwards").float()
    same = pgd.same_bits(points, column(False, "adversarials"))
    with torch.inference_mode():
        logits = torch.cat([bench.model(part) for part in torch.split(points, options.batch)])
    stands = logits.argmax(dim=1) == bench.labels
    print(f"{int(same.sum())} of {len(same)} points are the same bit by bit")
    for name, rows in (("standing", stands), ("broken", ~stands)):
        circled = rows & (cycle_at >= 0)
        when = cycle_at[circled].float().quantile(torch.tensor([0.5, 1.0])).tolist() if circled.any() else []
        print(
            f"{name}: {int(circled.sum())} of {int(rows.sum())} ended in a circle, seen at step {when} (median, last); "
            f"{forwards[rows].float().mean():.0f} passes forward for {whole[rows].mean():.0f}"
        )
    print(f"CPU time: {sorted(ratios)[len(ratios) // 2]:.2f} of the whole, median of {len(ratios)}")


if __name__ == "__main__":
    main()
