"""Write README.md from runs: patches on tokens, gradients that attention hides, the ledger.

    python -m scripts.studies.attention_attacks.page RUN... [--markdown PAGE] [--note TEXT]

Each run is of `robustkit audit`; of each the page has what it holds: conditions `patch(...)`, evidence on an attack,
conditions `ledger(...)`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from robustkit.common.differences import Difference, of_means
from robustkit.common.intervals import Floats, wilson
from robustkit.evaluations.condition import words_of
from robustkit.report.run import Run
from robustkit.results.pairing import Side, paired_difference
from robustkit.slices.evidence.gradient_masking import checks_of
from robustkit.slices.watching.ledger import BACK, SHARES
from scripts.pages.writing import markdown, write_page

START = """# Attacks that know attention

Made by `python -m scripts.studies.attention_attacks.page` from runs of the commands below; do not edit. Intervals are
of 95 %; differences are paired by image.
"""
PATCHES = """## Patches on tokens

One square of each image, the upper left one, takes any values. *CE* raises the cross-entropy; *Lkq* also draws the
queries of all tokens to the keys of the patch before softmax, and *Lkq\\** the query of the class token (Lovisotto et
al. 2022, arXiv:2203.13639). *Against CE*: right under this attack minus right under CE, in points; below 0 the loss
before softmax helps the attack.
"""
HIDDEN = """## Does attention hide gradients?

Of 32 images, those predicted right are attacked by PGD, and what stands is attacked again by gradients that are led
around attention (attention fixed, values fixed, softmax softened where its logits spread by more than 6, the margins of
the logits added to the loss). A flag stands where these break more than as many restarts do, beyond chance (5 %).
"""
LEDGER = """## The logit ledger: what changes attention, and what brings predictions back

Shares of the change of the attention scores, and a test of cause: of the n images whose prediction changed, how many
predictions come back when norms, or directions, of the clean image are put in the place of the others in every layer.
*Against the first*: back with both norms, minus that of the first checkpoint, on the images whose prediction both lost.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--markdown", type=Path, default=Path("scripts/studies/attention_attacks/README.md"))
    parser.add_argument("--note", action="append", default=[], help="a paragraph of what was found, before the tables")
    given = parser.parse_args()
    runs = [Run(path) for path in given.runs]
    parts = [START.rstrip(), *given.note]
    for text, table in ((LEDGER, ledger), (PATCHES, patches), (HIDDEN, hidden)):
        tables = [made for run in runs for made in table(run)]
        parts += [text.rstrip(), *tables] if tables else []
    parts += ["## Commands", *(f"```\n{without_folders(run.manifest.command)}\n```" for run in runs)]
    write_page(given.markdown, "\n\n".join(parts) + "\n")


def without_folders(command: str) -> str:
    """Return a command with the last names of absolute paths, which are of one machine."""
    return shlex.join(Path(word).name if word.startswith("/") else word for word in shlex.split(command))


def patches(run: Run) -> Iterator[str]:
    """Yield a table of the conditions with patches."""
    texts = [text for text in run.manifest.conditions if text.startswith("patch(")]
    if not texts:
        return
    rows = [("checkpoint", "attack", "right, %", "against CE, points")]
    for name in run.manifest.names:
        right = {text: outcomes(run, name, text) for text in ("clean", *texts)}
        for text, values in right.items():
            against = "" if text in ("clean", texts[0]) else points(of_means(right[texts[0]], values, True))
            rows.append((name, words_of(text).label(text), share(values), against))
    yield f"n = {run.manifest.data.n}\n\n" + markdown(rows)


def hidden(run: Run) -> Iterator[str]:
    """Yield a table of what stands before gradients led around attention."""
    rows = [("checkpoint", "evidence on", "what was measured", "flag")]
    for name in run.manifest.names:
        for text in run.manifest.evidence:
            figures = run.evidence(name, text) or {}
            found = next(one for one in checks_of(figures) if one.name == "attention")
            rows.append((name, f"`{text}`", found.figure, "attention hides gradients" if found.finding else "none"))
    if len(rows) > 1:
        yield markdown(rows)


def ledger(run: Run) -> Iterator[str]:
    """Yield a table for each condition whose books were kept."""
    texts = [text for text in run.manifest.conditions if text.startswith("ledger(")]
    results = {(row.checkpoint, row.condition, row.metric): row for row in run.summary()}
    heading = ("checkpoint", "n", "by query norms", "by key norms", "by directions", *(metric.word for metric in BACK))
    first, *_ = names = run.manifest.names
    for text in texts:
        rows = [(*heading, "against the first, points")]
        for name in names:
            found = [results[name, text, metric.name] for metric in SHARES]
            back = [results.get((name, text, metric.name)) for metric in BACK]
            n = str(back[0].n) if back[0] else "0"
            cells = ["–" if row is None else interval(row.value, row.low, row.high) for row in back]
            pair = (
                ""
                if name == first
                else points(paired_difference(Side(run, first), Side(run, name), text, BACK[2].name))
            )
            rows.append((name, n, *(f"{100 * row.value:.1f}" for row in found), *cells, pair))
        yield f"Under {words_of(text).label(text)}, of {run.manifest.data.n} images, in %:\n\n" + markdown(rows)


def outcomes(run: Run, name: str, text: str) -> Floats:
    """Return whether each sample is right, in the order of ids."""
    table = run.table(name, text, ("sample_id", "correct")).sort_by("sample_id")
    values: Floats = np.array(table["correct"].to_pylist(), dtype=np.float64)
    return values


def share(values: Floats) -> str:
    return interval(float(values.mean()), *wilson(int(values.sum()), len(values)))


def interval(value: float, low: float | None, high: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]")


def points(found: Difference) -> str:
    return f"{100 * found.value:+.1f} [{100 * found.ci_low:+.1f}, {100 * found.ci_high:+.1f}], n = {found.n}"


if __name__ == "__main__":
    main()
