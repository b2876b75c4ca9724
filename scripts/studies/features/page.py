"""Write README.md from runs: what heads make of features, next to the classifier and to scikit-learn.

    python -m scripts.studies.features.page split FOLDER OUT
    python -m scripts.studies.features.page page RUN=AUDIT ... [--markdown PAGE] [--note TEXT]

`split` divides class folders with few images: of each class with two or more, the first goes to OUT/train and the
others to OUT/test. `page` takes runs of `robustkit features`, each with a run of `robustkit audit` of the same
checkpoints on the same images; it computes the features of the images again, and asks scikit-learn about them (`pip
install scikit-learn`).
"""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import robustkit
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.protocol.condition import CLEAN
from robustkit.report.run import Run
from robustkit.runs.folder import folder_name
from robustkit.runs.manifest import CheckpointEntry
from robustkit.slices.features.heads import HeadChoice
from robustkit.slices.features.task import heads_in_words
from robustkit.tasks.labelled.subject import Images
from scripts.pages.writing import markdown, write_page

START = """# What features know

Made by `python -m scripts.studies.features.page` from runs of the commands below; do not edit.

The checkpoints are taken without their heads. Nearest training images, logistic regressions on few and on all training
images, and retrieval say what is in their features ([how to](../../../docs/how-to/features.md)): clean, corrupted, and
where PGD has moved the features without looking at a label. In brackets 95 % intervals.
"""
_HEADS = (("knn", "kNN %"), ("probe", "linear probe %"), ("retrieval", "mAP %"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cut = commands.add_parser("split")
    cut.add_argument("folder", type=Path)
    cut.add_argument("out", type=Path)
    page = commands.add_parser("page")
    page.add_argument("runs", nargs="+", metavar="RUN=AUDIT")
    page.add_argument("--markdown", type=Path, default=Path("scripts/studies/features/README.md"))
    page.add_argument("--note", action="append", default=[], help="a paragraph of what was found, before the tables")
    given = parser.parse_args()
    if given.command == "split":
        split(given.folder, given.out)
        return
    parts = [START.rstrip(), *given.note]
    for pair in given.runs:
        features, audit = map(Run, pair.split("="))
        parts += section(features, audit)
    write_page(given.markdown, "\n\n".join(parts) + "\n")


def split(folder: Path, out: Path) -> None:
    """Copy the first image of each class with several to out/train, and the others to out/test."""
    for images in (sorted(each.iterdir()) for each in sorted(folder.iterdir()) if each.is_dir()):
        for place, image in enumerate(images if len(images) > 1 else []):
            to = out / ("test" if place else "train") / image.parent.name
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(image, to)


def section(run: Run, audit: Run) -> Iterator[str]:
    """Yield the parts of the page about one run. audit: of the same classifiers on the same images."""
    manifest = run.manifest
    cells = {(row.checkpoint, row.condition, row.metric): row for row in run.summary()}
    whole = [
        entry for entry in manifest.checkpoints if (clean := cells.get((entry.name, "clean", "knn"))) and clean.is_whole
    ]
    yield f"## {manifest.data.name}, {manifest.data.n} images"
    yield f"{heads_in_words(manifest.checkpoints[0])}."
    own = {row.checkpoint: row for row in audit.summary() if (row.condition, row.metric) == ("clean", "top1")}
    yield markdown(list(accuracies(run, whole, cells, own)))
    yield markdown(list(swept(whole, cells)))
    yield "The same from scikit-learn on the same features, clean: predictions that differ, and the largest difference."
    yield markdown(list(checked(run, whole)))
    yield "```\n" + "\n".join(command(each) for each in (run, audit)) + "\n```"


def accuracies(run: Run, entries: list[CheckpointEntry], cells: Any, own: Any) -> Iterator[tuple[str, ...]]:
    """Yield the headings, and a row for each checkpoint under each condition."""
    yield "checkpoint", "condition", "n", "its own head, top-1 %", *(label for _, label in _HEADS), "features moved"
    for entry in entries:
        for text in run.manifest.conditions:
            if not ((mine := cells.get((entry.name, text, "knn"))) and mine.is_whole):
                continue
            moved = cells.get((entry.name, text, "moved"))
            shown = (cell(cells[entry.name, text, metric]) for metric, _ in _HEADS)
            head = cell(own.get(entry.name)) if text == "clean" else "–"
            far = "0" if moved is None else f"{moved['value']:.3f}"
            yield entry.name, f"`{text}`", str(cells[entry.name, text, "knn"]["n"]), head, *shown, far


def swept(entries: list[CheckpointEntry], cells: Any) -> Iterator[tuple[str, ...]]:
    """Yield the headings, and a row for each checkpoint: kNN at each k, few-shot accuracy with its spread; clean."""
    said = asked(entries[0])
    yield "checkpoint", *(f"kNN %, k {k}" for k in said.neighbours), *(f"{shots}-shot %" for shots in said.shots)
    for entry in entries:
        near = (cells[entry.name, "clean", f"knn({k})"]["value"] for k in said.neighbours)
        few = (
            f"{100 * cells[entry.name, 'clean', f'few_shot({shots})']['value']:.1f} ± "
            f"{100 * cells[entry.name, 'clean', f'few_shot_spread({shots})']['value']:.1f}"
            for shots in said.shots
        )
        yield entry.name, *(f"{100 * value:.1f}" for value in near), *few


def checked(run: Run, entries: list[CheckpointEntry]) -> Iterator[tuple[str, ...]]:
    """Yield the headings, and a row for each checkpoint: how records differ from scikit-learn on the same features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.neighbors import KNeighborsClassifier

    yield "checkpoint", "kNN, every k", "linear probe", "average precision"
    for entry in entries:
        said = asked(entry)
        kept = safetensors.torch.load_file(run.path / "features" / folder_name(entry.name) / "heads.safetensors")
        train, places = kept["features"].numpy(), kept["classes"][kept["places"]].numpy()
        table = run.table(entry.name, "clean")
        read = {name: table[name].to_numpy() for name in table.column_names if name != "error"}
        test = embedded(run, entry, [str(name) for name in read["sample_id"]])
        near, far = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (train, test))

        def weights(distance: Any, temperature: float = said.temperature) -> Any:
            return np.exp(-(distance**2) / 2 / temperature)

        others = 0
        for k in said.neighbours:
            known = KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(near, places).predict(far)
            others += int((known != read[f"knn {k}"]).sum())
        mean = train.astype(np.float64).mean(axis=0)
        scale = np.sqrt(((train - mean) ** 2).mean())
        fitted = LogisticRegression(C=1 / (float(kept["strength"]) * len(train)), tol=1e-8, max_iter=10_000)
        probe = fitted.fit((train - mean) / scale, places).predict((test - mean) / scale)
        rows = zip(read["label"], far @ near.T, strict=True)
        precision = np.array([average_precision_score(places == label, row) for label, row in rows])
        count = len(test)
        yield (
            entry.name,
            f"{others} of {count * len(said.neighbours)}",
            f"{int((probe != read['probe']).sum())} of {count}",
            f"{np.abs(precision - read['precision']).max():.1e}",
        )


def embedded(run: Run, entry: CheckpointEntry, ids: list[str]) -> Any:
    """Return the features (n, D) of the images of a run with these ids."""
    arguments = run.manifest.arguments
    model = robustkit.load(entry.spec, **arguments["model"], features=True)
    dataset = open_dataset(arguments["data_dir"], **arguments["data"]).select(ids=ids)
    by_id = {sample.id: sample for sample in dataset.samples}
    shown = entry.preprocessing.to_plain()
    made = {key: tuple(value) if isinstance(value, list) else value for key, value in shown.items()}
    read = Images(dataset, Preprocessing(**made)).reader(CLEAN)
    with torch.inference_mode():
        pixels = (read(by_id[name])[None].float() / 255 for name in ids)
        return torch.cat([model(each) for each in pixels]).numpy()


def asked(entry: CheckpointEntry) -> HeadChoice:
    """Return how the heads of a checkpoint were made."""
    assert isinstance(entry.heads, dict)
    return HeadChoice(**entry.heads | {name: tuple(entry.heads[name]) for name in ("neighbours", "shots")})


def command(run: Run) -> str:
    """Return the command of a run without the places of this machine."""
    words = shlex.split(run.manifest.command)
    for place, word in enumerate(words[:-1]):
        if word in ("--train", "--data-dir"):
            path = Path(words[place + 1])
            words[place + 1] = path.name if path.suffix else "/".join(path.parts[-2:])
    if "--out" in words:
        del words[words.index("--out") : words.index("--out") + 2]
    names = [Path(word).name if word.startswith("/") else word for word in words]
    return shlex.join(names)


def cell(row: Any) -> str:
    """Return `61.9 [58.7, 65.0]`; a dash where there is no figure."""
    if row is None or not row.is_finite:
        return "–"
    ends = f" [{100 * row.low:.1f}, {100 * row.high:.1f}]" if row.has_interval else ""
    return f"{100 * row.value:.1f}{ends}"


if __name__ == "__main__":
    main()
