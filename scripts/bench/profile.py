"""Where the time of a whole audit goes, as a table and a stacked bar.

    python -m scripts.bench.profile CHECKPOINT --data-dir IMAGES [--limit 64]
        [--plot docs/results/performance/profile.svg]

Runs an audit (clean, FGSM, PGD, AutoAttack, corruptions, AG-CAM) in a temporary folder, with clocks around its parts.
Each moment belongs to the innermost part that is running; `model` is the network's forward and every backward.
"""

from __future__ import annotations

import argparse
import functools
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import robustkit
from robustkit.data.dataset import Dataset
from robustkit.errors import RobustkitError
from robustkit.evaluations.corruptions.evaluate import CorruptionsEvaluator as Corruptions
from robustkit.pipeline import classification as pipeline
from robustkit.pipeline import units
from robustkit.pipeline.units import Writer
from robustkit.report.run import Run
from robustkit.tasks.labelled.subject import ClassifierSubject

PARTS = {
    "model": "forward and backward",
    "attack": "attacks apart from the model",
    "corruption": "corruptions",
    "maps": "maps and their scores apart from the model",
    "decode": "reading and decoding",
    "digest": "digest of the data",
    "metrics": "predictions into rows",
    "records": "waiting for records to be written",
    "summary": "summary and report",
    "start": "loading and the rest",
}


class Clock:
    """Seconds of each part under each kind of condition; every moment is of the innermost part."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.stack, self.kind, self.since = ["start"], "", time.perf_counter()

    def _turn(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[self.kind, self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self.stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self.stack.pop()

    def around(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*arguments, **options)

        return timed

    def units(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what computes a unit: its condition names the kind."""

        @functools.wraps(function)
        def timed(worker: Any, name: Any, shard: Any, places: Any, condition: Any, *more: Any) -> Any:
            self._turn()
            before, self.kind = self.kind, condition.name
            part = {"clean": "metrics", "corruption": "metrics", "cam": "maps"}.get(condition.name, "attack")
            try:
                with self.part(part):
                    return function(worker, name, shard, places, condition, *more)
            finally:
                self._turn()
                self.kind = before

        return timed


def profiled(clock: Clock, checkpoint: str, options: argparse.Namespace, out: Path) -> Run:
    """Run the audit, with clocks in it."""
    load = pipeline.load

    def timed_load(*arguments: Any, **more: Any) -> Any:
        classifier = load(*arguments, **more)
        classifier.network.register_forward_pre_hook(enter)
        classifier.network.register_forward_hook(leave)
        return classifier

    def enter(*_: Any) -> None:
        entered.append(clock.part("model"))
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    entered: list[Any] = []
    patches = [
        (pipeline, "load", timed_load),
        (torch.autograd, "grad", clock.around(torch.autograd.grad, "model")),
        (Corruptions, "show", clock.around(Corruptions.show, "corruption")),
        (ClassifierSubject, "score", clock.around(ClassifierSubject.score, "metrics")),
        (units, "wait", clock.around(units.wait, "decode")),
        (units.Worker, "_unit", clock.units(units.Worker._unit)),
        (Writer, "submit", clock.around(Writer.submit, "records")),
        (Writer, "__exit__", clock.around(Writer.__exit__, "records")),
        (Dataset, "digest", clock.around(Dataset.digest, "digest")),
        (pipeline, "refresh", clock.around(pipeline.refresh, "summary")),
        (units, "gather_evidence", clock.around(units.gather_evidence, "attack")),
    ]
    with ExitStack() as held:
        for where, name, timed in patches:
            held.enter_context(mock.patch.object(where, name, timed))
        return robustkit.audit(
            [checkpoint],
            data_dir=options.data_dir,
            attacks=options.attacks,
            corruptions=options.corruptions,
            cams="agcam",
            limit=options.limit,
            batch_size=options.batch_size,
            device=options.device,
            dtype=options.dtype,
            out=out,
            say=lambda line: print(line, file=sys.stderr),
        )


def plot(shares: dict[str, dict[str, float]], path: Path, title: str) -> None:
    """Plot a bar for each kind of condition and one for all, in per cent of its time."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 * len(shares) + 1.6), layout="constrained")
    axes = figure.subplots()
    names = list(shares)
    left = [0.0] * len(names)
    colours = [
        "#3b6ea5",
        "#e08214",
        "#7b3294",
        "#008837",
        "#bababa",
        "#878787",
        "#b35806",
        "#d6604d",
        "#80cdc1",
        "#dfc27d",
    ]
    for colour, part in zip(colours, PARTS, strict=True):
        widths = [100 * shares[name].get(part, 0.0) for name in names]
        if max(widths) < 0.05:
            continue
        axes.barh(names, widths, left=left, color=colour, label=PARTS[part])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time")
    axes.set_title(title, fontsize=10)
    axes.legend(ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--attacks", default="fgsm,pgd,autoattack")
    parser.add_argument("--corruptions", default="in-c,-frost")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    clock = Clock()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = profiled(clock, options.checkpoint, options, Path(folder) / "run")
            device, dtype = run.manifest.device, options.dtype
    except RobustkitError as fault:
        print(f"scripts.bench.profile: {fault}", file=sys.stderr)
        return fault.exit_code
    clock._turn()
    kinds = dict.fromkeys(kind for kind, _ in clock.seconds)
    sums = {kind: sum(s for (k, _), s in clock.seconds.items() if k == kind) for kind in kinds}
    whole: dict[str, float] = defaultdict(float)
    for (_, part), seconds in clock.seconds.items():
        whole[part] += seconds
    total = sum(whole.values())
    shares = {f"all, {total:.0f} s": {part: seconds / total for part, seconds in whole.items()}}
    for kind in kinds:
        part_shares = {part: seconds / sums[kind] for (k, part), seconds in clock.seconds.items() if k == kind}
        shares[f"{kind or 'around the units'}, {sums[kind]:.0f} s"] = part_shares
    title = (
        f"{options.limit} images, {device}, {torch.get_num_threads()} threads, {dtype}, {platform.machine()}, "
        f"torch {torch.__version__}"
    )
    print(title)
    for name, part_shares in shares.items():
        parts = sorted(part_shares.items(), key=lambda item: -item[1])
        print(f"{name}: " + ", ".join(f"{PARTS[part]} {share:.1%}" for part, share in parts if share >= 0.0005))
    if options.plot:
        plot(shares, options.plot, title)
        print(options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
