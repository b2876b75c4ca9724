"""Put trained classifiers of time series into the package, in half precision.

    python -m scripts.studies.series.ship DIR/japanesevowels-{standard,qknorm,quest}-0.safetensors --test X_TEST.ts
        --out robustkit/embedded

A file is shipped only if it classifies as many test series right in half precision as before. Its name in the zoo is
that of the data set and the formula, `series-japanesevowels-quest`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file

from robustkit.common.files import write_whole
from robustkit.data.dataset import Dataset
from robustkit.errors import CheckpointError, RobustkitError
from robustkit.slices.series.files import open_series
from robustkit.slices.series.model import SeriesTransformer, load_series
from scripts.zoo.train import enter, serialise

from .train import EPOCHS, cases_of, right


def ship(path: Path, test: Dataset, out: Path) -> Path:
    """Write a model in half precision, and its entry in checkpoints.json; return its path.

    Raises:
        CheckpointError: another number of test series is right than before.
    """
    with safe_open(path, framework="pt") as file:
        said = file.metadata()
    target = out / f"series-{path.stem.rpartition('-')[0]}.safetensors"
    tensors = {name: value.half() for name, value in load_file(path).items()}
    more = {"test_data": f"{len(test)} series of {test.name}", "epochs": str(EPOCHS)}
    content = serialise(tensors, {**more, **said})
    counts = []
    for weights in (path.read_bytes(), content):
        write_whole(target, weights)
        model = load_series(target)
        network, inputs = model.network, model.identity.preprocessing
        assert isinstance(network, SeriesTransformer)
        counts.append(right(network, cases_of(test, inputs.mean, inputs.std)))
    if counts[0] != counts[1]:
        target.unlink()
        raise CheckpointError(f"{path}: {counts[0]} series right, {counts[1]} in half precision; take another seed")
    enter(target, {"task": "series", "attention": said["attention"], "accuracy": round(counts[1] / len(test), 4)})
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Ship each file. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        for path in options.models:
            names = load_series(path).identity.class_names
            print(ship(path, open_series(options.test, names), options.out))
    except RobustkitError as fault:
        print(f"scripts.studies.series.ship: {fault}", file=sys.stderr)
        return fault.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
