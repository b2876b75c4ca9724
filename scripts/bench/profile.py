"""Where the time of a whole audit goes, as a table and a stacked bar.

    python -m scripts.bench.profile [ARGUMENTS OF robustkit audit] [--plot docs/results/performance/profile.svg]
    python -m scripts.bench.profile [ARGUMENTS OF robustkit audit] --pairs 5 [--root OTHER_CHECKOUT]

Runs the command in a temporary folder, with clocks around its parts, from the first import to the last line that is
printed. Each moment belongs to the innermost part that is running; `model` is the network's forward and every backward.
Without arguments it is a small audit: two ViTs that ship with the package, 60 images, eight conditions.

--pairs: so many audits, each in a fresh process, and their medians. --root: another checkout, whose audits alternate
with these. Parts are in seconds of the processor for the main thread, since a machine may have other work; `end` is
the end of the process. A first audit of each, which keeps compiled modules, does not count.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parents[2]
SMALL = (
    *("zoo:shapes-vit-standard", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "60"),
    *("--attacks", "fgsm,pgd", "--corruptions", "fog(severity=3)", "--cams", "agcam", "--device", "cpu"),
)
PARTS = {
    "model": "forward and backward",
    "attack": "attacks apart from the model",
    "corruption": "corruptions",
    "maps": "maps and their scores apart from the model",
    "decode": "reading and decoding",
    "digest": "digest of the data",
    "metrics": "predictions into rows",
    "records": "waiting for records to be written",
    "summary": "summary, page and what is printed",
    "start": "loading and the rest",
    "imports": "imports",
    "setup": "set-up check apart from the model",
    "evidence": "evidence on attacks apart from the model",
}
WAITS = ("imports", "start", "digest", "setup", "evidence", "summary", "end")
"""What a user waits for besides the units."""


class Clock:
    """Seconds of each part under each kind of condition; every moment is of the innermost part of the main thread.
    now: the time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.now, self.stack, self.kind, self.since = now, ["start"], "", 0.0 if now is time.thread_time else now()
        self.thread = threading.get_ident()

    def turn(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = self.now()
        self.seconds[self.kind, self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str, kind: str | None = None) -> Iterator[None]:
        self.turn()
        before = self.kind
        self.stack.append(name)
        self.kind = before if kind is None else kind
        try:
            yield
        finally:
            self.turn()
            self.stack.pop()
            self.kind = before

    def around(self, function: Callable[..., Any], name: str, kind: str | None = None) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self.thread:
                return function(*arguments, **options)
            with self.part(name, kind):
                return function(*arguments, **options)

        return timed

    def units(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what computes a unit: its condition names the kind."""

        @functools.wraps(function)
        def timed(worker: Any, name: Any, shard: Any, places: Any, condition: Any, *more: Any) -> Any:
            part = {"clean": "metrics", "corruption": "metrics", "cam": "maps"}.get(condition.name, "attack")
            with self.part(part, condition.name):
                return function(worker, name, shard, places, condition, *more)

        return timed


def profiled(arguments: Sequence[str], out: Path, clock: Clock) -> str:
    """Run an audit in this process, which has imported nothing yet, under a clock; return a title."""
    with ExitStack() as held:
        for loader in (SourceFileLoader, ExtensionFileLoader):
            create, execute = clock.around(loader.create_module, "imports"), clock.around(loader.exec_module, "imports")

            def loaded(self: Any, module: Any, execute: Callable[..., Any] = execute) -> None:
                execute(self, module)
                if module.__name__ == "robustkit.pipeline.classification":  # the last one with a part to be clocked
                    for where, name, timed in _patches(clock):
                        held.enter_context(mock.patch.object(where, name, timed))

            held.enter_context(mock.patch.object(loader, "create_module", create))
            held.enter_context(mock.patch.object(loader, "exec_module", loaded))
        from robustkit.cli.app import main

        held.enter_context(mock.patch.object(sys, "argv", ["robustkit", "audit", *arguments, "--out", str(out)]))
        held.enter_context(redirect_stdout(sys.stderr))
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    clock.turn()
    import torch

    from robustkit.runs.folder import RunFolder

    manifest = RunFolder(out).manifest
    title = f"{manifest.data.n} images, {manifest.device}, {torch.get_num_threads()} threads, "
    return f"{title}{platform.machine()}, torch {torch.__version__}"


def _patches(clock: Clock) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return where a clock goes, the name there, and what takes its place."""
    import torch

    from robustkit.cli import terminal
    from robustkit.data.dataset import Dataset
    from robustkit.evaluations.corruptions.evaluate import CorruptionsEvaluator as Corruptions
    from robustkit.pipeline import classification, units
    from robustkit.tasks.labelled.subject import ClassifierSubject

    load, entered = classification.load, list[Any]()

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

    places: list[tuple[Any, str, str, str | None]] = [
        (torch.autograd, "grad", "model", None),
        (Corruptions, "show", "corruption", None),
        (ClassifierSubject, "score", "metrics", None),
        (units, "wait", "decode", None),
        (units.Writer, "submit", "records", None),
        (units.Writer, "__exit__", "records", None),
        (Dataset, "digest", "digest", None),
        (classification, "refresh", "summary", "summary"),
        (terminal, "show", "summary", "summary"),
        (units.Worker, "check_setup", "setup", "set-up"),
        (units.Worker, "take_evidence", "evidence", "evidence"),
    ]
    timed = [(where, name, clock.around(getattr(where, name), part, kind)) for where, name, part, kind in places]
    own = (units.Worker, "_unit", clock.units(units.Worker._unit))
    return [*timed, own, (classification, "load", timed_load)]


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
        "#01665e",
        "#8c510a",
        "#c7eae5",
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


def tell(seconds: Mapping[tuple[str, str], float], title: str, path: Path | None) -> None:
    """Print the shares of all and of each kind of condition; plot them where there is a path."""
    whole, kinds = defaultdict[str, float](float), defaultdict[str, float](float)
    for (kind, part), spent in seconds.items():
        whole[part] += spent
        kinds[kind] += spent
    total = sum(whole.values())
    shares = {f"all, {total:.0f} s": {part: spent / total for part, spent in whole.items()}}
    for kind, sum_of_kind in kinds.items():
        of_kind = {part: spent / sum_of_kind for (k, part), spent in seconds.items() if k == kind}
        shares[f"{kind or 'around the units'}, {sum_of_kind:.0f} s"] = of_kind
    print(title)
    for name, by_part in shares.items():
        parts = sorted(by_part.items(), key=lambda item: -item[1])
        print(f"{name}: " + ", ".join(f"{PARTS[part]} {share:.1%}" for part, share in parts if share >= 0.0005))
    if path:
        plot(shares, path, title)
        print(path)


def alternated(roots: Sequence[Path], pairs: int, arguments: Sequence[str]) -> None:
    """Print the parts of audits in fresh processes, those of several checkouts in turn, and the medians of each."""
    every: dict[Path, list[dict[str, float]]] = {root: [] for root in roots}
    print("seconds" + "".join(f"{name:>10}" for name in _COLUMNS), flush=True)
    for number in range(pairs + 1):
        for root in roots:
            row = _fresh(root, arguments)
            if number:
                every[root].append(row)
                print(f"{number:>7}{_line(row)}  {root}", flush=True)
    for root, rows in every.items():
        median = {name: statistics.median(row[name] for row in rows) for name in _COLUMNS}
        print(f" median{_line(median)}  {root}")


_COLUMNS = ("wall", "cpu", *WAITS, "waits", "waits %", "model", "model %", "other")


def _line(row: Mapping[str, float]) -> str:
    return "".join(f"{row[name]:>10.2f}" for name in _COLUMNS)


def _fresh(root: Path, arguments: Sequence[str]) -> dict[str, float]:
    """Run an audit of a checkout in a fresh process; return its columns."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "seconds.json"
        command = [sys.executable, __file__, "--root", str(root), "--tell", str(told), *arguments]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{root}: {done.stderr}")
        until, spent = json.loads(told.read_text())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    parts = {name: spent.get(name, 0.0) for name in PARTS} | {"end": cpu - until}
    total, waits = sum(parts.values()), sum(parts[name] for name in WAITS)
    row = parts | {"wall": wall, "cpu": cpu, "waits": waits, "other": total - waits - parts["model"]}
    return row | {"waits %": 100 * waits / total, "model %": 100 * parts["model"] / total}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--tell", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    arguments = rest or list(SMALL)
    if options.pairs:
        alternated([*([options.root.resolve()] if options.root else []), HERE], options.pairs, arguments)
        return 0
    sys.path[0] = str(options.root or HERE)  # not the folder of this file, whose name is one of Python's own modules
    clock = Clock(time.thread_time if options.tell else time.perf_counter)
    with tempfile.TemporaryDirectory() as folder:
        title = profiled(arguments, Path(folder) / "run", clock)
    if options.tell:
        spent = defaultdict[str, float](float)
        for (_, part), seconds in clock.seconds.items():
            spent[part] += seconds
        options.tell.write_text(json.dumps([time.process_time(), spent]))
    else:
        tell(clock.seconds, title, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
