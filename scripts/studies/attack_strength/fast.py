"""AutoAttack's fast version next to the standard one, and to pyautoattack: verdicts, passes, CPU time, intervals.

All sides get the same images and labels. Fast is what the command line makes of it: APGD on all images, FAB-T and
Square on a random tenth of what stands. Its interval comes from 100 draws of that tenth, for which FAB-T and Square
attack all that stands, once.

    python -m scripts.studies.attack_strength.fast --checkpoint resnet4b.pth \\
        --arch tests/support/cifar_resnets.py:resnet4b --images cifar10-test.zip --limit 200 --eps 2/255 --pairs 5
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch
from torch import Tensor

from attacks import Attack, AutoAttack, StagedResult, ThreatModel
from robustkit.common.determinism import SampleRng, draw_samples
from robustkit.protocol.card import parse_number
from robustkit.slices.engines import peer
from robustkit.slices.two_phase.results import two_phase_share

from . import parser_of, subject_of

DRAWS = 100
FIRST, REST, TENTH = "apgd-pma+apgd-t", "fab-t+square", 10


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, 200)
    parser.add_argument("--eps", default="2/255")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--peer", action="store_true", help="run pyautoattack, too")
    return parser.parse_args()


def main() -> None:
    options = parse()
    bench, eps = subject_of(options), float(parse_number(options.eps))
    standard = AutoAttack(ThreatModel("linf", eps))
    fast = replace(standard, version="fast")

    def run(attack: Attack, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which of the rows stand, and how many passes each took."""
        rng = SampleRng.of([bench.ids[row] for row in rows.tolist()], seed=0, condition="bench", device=rows.device)
        result = attack.run(bench.model, bench.images[rows], bench.labels[rows], rng=rng, batch_size=options.batch)
        assert isinstance(result, StagedResult)
        return result.broken_by < 0, result.forwards + result.backwards

    everyone = torch.arange(len(bench.ids))

    def tenth(stands: Tensor, seed: int) -> Tensor:
        standing = [str(row) for row in everyone[stands].tolist()]
        count = -(-len(standing) // TENTH)
        drawn = draw_samples(standing, count, seed=seed, purpose="second phase")
        return torch.tensor(sorted(map(int, drawn)), dtype=torch.int64)

    def in_two_phases() -> tuple[Tensor, Tensor]:
        stands, passes = run(replace(fast, only=FIRST), everyone)
        drawn = tenth(stands, 0)
        left, more = run(replace(fast, only=REST), drawn)
        stands[drawn], passes[drawn] = left, passes[drawn] + more
        return stands, passes

    sides = {"fast": in_two_phases, "standard": lambda: run(standard, everyone)}
    results, ratios = {}, []
    for pair in range(options.pairs):
        seconds = {}
        for name in (("fast", "standard"), ("standard", "fast"))[pair % 2]:
            began = time.process_time()
            results[name] = sides[name]()
            seconds[name] = time.process_time() - began
        ratios.append(seconds["fast"] / seconds["standard"])
        print(f"pair {pair + 1}: {seconds['fast']:.0f} s for {seconds['standard']:.0f} s of CPU time", flush=True)
    (quick, few), (whole, many) = results["fast"], results["standard"]
    n, standing = len(everyone), int(whole.sum())
    print(
        f"standing of {n}: fast {int(quick.sum())}, standard {standing}; other verdicts: {int((quick != whole).sum())}"
    )
    print(f"passes: {int(few.sum())} for {int(many.sum())}, 1/{int(many.sum()) / int(few.sum()):.1f}")
    print(f"CPU time: {sorted(ratios)[len(ratios) // 2]:.2f} of the standard's, median of {len(ratios)}")

    stands, _ = run(replace(fast, only=FIRST), everyone)
    left, _ = run(replace(fast, only=REST), everyone[stands])
    survives = torch.zeros_like(stands)
    survives[everyone[stands][left]] = True
    covered, widths = 0, []
    for seed in range(DRAWS):
        drawn = tenth(stands, seed)
        _, (low, high) = two_phase_share(n, int(stands.sum()), len(drawn), int(survives[drawn].sum()))
        covered += low <= standing / n <= high
        widths.append(high - low)
    print(f"{int((stands & ~survives).sum())} of {int(stands.sum())} fall to {REST} after {FIRST}")
    width = 100 * sum(widths) / DRAWS
    print(f"interval: holds the standard's figure in {covered} of {DRAWS} draws, {width:.1f} points wide on average")
    if options.peer:
        began = time.process_time()
        theirs, _ = run(peer("pyautoattack", "autoattack", standard.threat, {}), everyone)
        others = [int((theirs != ours).sum()) for ours in (whole, quick)]
        print(f"pyautoattack leaves {int(theirs.sum())} standing, in {time.process_time() - began:.0f} s of CPU time")
        print(f"other verdicts than its: {others[0]} of standard, {others[1]} of fast")


if __name__ == "__main__":
    main()
