"""The toy retrieval task of QUEST (§2.2, A.3, A.4): train its grid of one-layer models, and show what became of them.

    python -m scripts.studies.toy_retrieval.train --preset quick --out DIR
    python -m scripts.studies.toy_retrieval.train --preset full --work DIR --out scripts/studies/toy_retrieval
    python -m scripts.studies.toy_retrieval.train --preset choices --work DIR --out scripts/studies/toy_retrieval
    python -m scripts.studies.toy_retrieval.train --from-results --out scripts/studies/toy_retrieval

`quick` is a slice of a few minutes, `full` the paper's grid of 4500 models, `choices` a slice under each of the things
that the paper leaves open. --out gets README.md, its figures, results.csv.gz and
curves.csv.
--work keeps what is trained, a file for each formula and realisation of the data; the same command continues where it
was stopped. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from robustkit.attention.formulas import find_formula
from robustkit.errors import ProtocolError, RobustkitError, RunError

from . import choices as toy_choices
from .model import READINGS, STARTS, Shape
from .page import write
from .results import gather, load, save
from .run import FORMULAS, SAME_AS, Grid, Plan, Setting, claim, run

FEW = ("standard", "qnorm", "quest", "qknorm-ds")
GRIDS = {"full": Grid(), "quick": Grid(FEW, rates=(0.001, 0.0025, 0.005), decays=(0.01,), data=2, seeds=3)}


def chosen(names: str) -> tuple[str, ...]:
    """Return the formulas of a list, in their own order; those that are the same as others become these."""
    wanted = [find_formula(name.strip()).name for name in names.split(",")]
    formulas = (*SAME_AS, *GRIDS["full"].formulas)
    if odd := [name for name in wanted if name not in formulas]:
        raise ProtocolError(f"--formulas {odd[0]}: the toy task has no such model; expected of {', '.join(formulas)}")
    return tuple(name for name in FORMULAS if name in {SAME_AS.get(formula, formula) for formula in wanted})


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for. Raises RobustkitError, one line."""
    shape = Shape(options.length, options.reading, options.start, options.bias, options.final_norm)
    for name in ("samples", "length", "epochs", "workers"):
        if getattr(options, name) < 1:
            raise ProtocolError(f"--{name} {getattr(options, name)}: expected 1 or more")
    setting = Setting(shape, samples=options.samples, epochs=options.epochs)
    grid = GRIDS[options.preset]
    return Plan(setting, replace(grid, formulas=chosen(options.formulas)) if options.formulas else grid)


def train(options: argparse.Namespace) -> None:
    """Train or go on, and write results.csv.gz and the rest."""
    folder, work = options.out, options.work or options.out / "units"
    if options.preset == "choices":
        for line in toy_choices.explore(work, options.workers):
            print(line, flush=True)
        toy_choices.save(work, folder / "choices.csv")
        return
    plan = plan_of(options)
    claim(folder / "setting.json", plan)
    print(f"{len(plan.grid)} models: {plan.setting.text()}", flush=True)
    for name in run(work, plan, options.workers):
        print(name, flush=True)
    save(gather(work, plan), folder)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=(*GRIDS, "choices"), default="quick")
    parser.add_argument("--out", type=Path, required=True, help="where README.md and the rest go")
    parser.add_argument("--work", type=Path, help="what is trained; units in --out if left out")
    parser.add_argument("--from-results", action="store_true", help="make the page again, and train nothing")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--formulas", metavar="LIST", help="others than the preset's")
    parser.add_argument("--reading", choices=READINGS, default=Shape.reading, help="of Algorithm A2")
    parser.add_argument("--start", choices=STARTS, default=Shape.start, help="of the weights")
    parser.add_argument("--samples", type=int, default=Setting.samples, help="in the training set")
    parser.add_argument("--length", type=int, default=Shape.length, help="tokens of a sample, without CLS")
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--bias", action="store_true", help="queries, keys and values have one")
    parser.add_argument("--final-norm", action="store_true", help="a LayerNorm before the classifier")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse the options, train, and write the page. The exit status."""
    options = parse(arguments)
    torch.set_num_threads(1)
    folder = options.out
    try:
        if not options.from_results:
            train(options)
        if options.preset == "choices" and not (folder / "results.csv.gz").exists():
            print(folder / "choices.csv")
            return 0
        results = load(folder)
        choices = folder / "choices.csv"
        command = f"python -m scripts.studies.toy_retrieval.train {arguments_of(results.plan, options.out)}"
        print(write(results, toy_choices.load(choices) if choices.exists() else [], options.out, command))
    except RobustkitError as error:
        print(f"scripts.studies.toy_retrieval.train: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(
            f"scripts.studies.toy_retrieval.train: {options.out}: {error.strerror}; expected a folder that can be "
            "written",
            file=sys.stderr,
        )
        return 2
    return 0


def arguments_of(plan: Plan, out: Path) -> str:
    """Return the options that make this plan: the preset whose grid it is, and what differs."""
    fits = (name for name, grid in GRIDS.items() if replace(grid, formulas=plan.grid.formulas) == plan.grid)
    plan_name = next(fits, None)
    if plan_name is None:
        raise RunError(f"{out}: its grid is of no preset; expected one of {', '.join(GRIDS)}; train again")
    setting, usual = plan.setting, Setting()
    more = [
        f"--{name} {value}"
        for name, value, default in (
            ("reading", setting.shape.reading, usual.shape.reading),
            ("start", setting.shape.start, usual.shape.start),
            ("samples", setting.samples, usual.samples),
            ("length", setting.shape.length, usual.shape.length),
            ("epochs", setting.epochs, usual.epochs),
        )
        if value != default
    ]
    more += ["--bias"] * setting.shape.bias + ["--final-norm"] * setting.shape.final_norm
    if plan.grid.formulas != GRIDS[plan_name].formulas:
        more.append(f"--formulas {','.join(plan.grid.formulas)}")
    return " ".join([f"--preset {plan_name} --out {out}", *more])


if __name__ == "__main__":
    sys.exit(main())
