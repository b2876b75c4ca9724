"""Write README.md from runs: perplexities under word swap, by both protocols.

    python -m scripts.studies.text.page RUN... [--markdown PAGE] [--note TEXT]

Each run is of `robustkit text` with the usual rates of word swap. Runs of the same data with the same windows stand in
one table, a row for each checkpoint and card.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from robustkit.common.figure import Figure
from robustkit.evaluations.condition import words_of
from robustkit.report.run import Run
from robustkit.runs.description import shown_as
from scripts.pages.writing import markdown, write_page

START = """# Changed words

Made by `python -m scripts.studies.text.page` from runs of the commands below; do not edit.

How much worse do small language models predict a text in which words are swapped for AAA? Card `text` predicts the
original words from what is shown; card `elliptical-paper` predicts the swapped ones, too, as the published code does
([what that means](../../../docs/concepts/text.md)): its figures are shown for comparison, and say nothing about
robustness. The cards differ in nothing else here: `--windows`, `--window` and `--stride` are given. In brackets 95 %
intervals over documents.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--markdown", type=Path, default=Path("scripts/studies/text/README.md"))
    parser.add_argument("--note", action="append", default=[], help="a paragraph of what was found, before the tables")
    given = parser.parse_args()
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in map(Run, given.runs):
        shown = ", ".join(
            dict.fromkeys(text for entry in run.manifest.checkpoints for text in shown_as(entry).values())
        )
        groups.setdefault((run.manifest.data.name, shown), []).append(run)
    parts = [START.rstrip(), *given.note]
    for (data, shown), runs in groups.items():
        parts.append(f"## {data}, {runs[0].manifest.data.n} documents")
        parts.append(f"Perplexity of a token; {shown}.")
        parts.append(markdown(list(rows(runs))))
        parts.append("```\n" + "\n".join(map(command, runs)) + "\n```")
    write_page(given.markdown, "\n\n".join(parts) + "\n")


def command(run: Run) -> str:
    """Return the command of a run without the places of this machine."""
    words = shlex.split(run.manifest.command)
    words[words.index("--data") + 1] = Path(words[words.index("--data") + 1]).name
    if "--out" in words:
        del words[words.index("--out") : words.index("--out") + 2]
    return shlex.join(words)


def rows(runs: list[Run]) -> Iterator[tuple[str, ...]]:
    """Yield the headings, and a row for each checkpoint under each card, checkpoints together."""
    conditions = list(dict.fromkeys(text for run in runs for text in run.manifest.conditions))
    yield "attention", "card", *(words_of(text).label(text) for text in conditions)
    cells = {
        (run.manifest.protocol.name, row.checkpoint, row.condition): row
        for run in runs
        for row in run.summary()
        if row.metric == "perplexity"
    }
    entries = {entry.name: entry.attention for run in runs for entry in run.manifest.checkpoints}
    for name, attention in entries.items():
        for card in dict.fromkeys(run.manifest.protocol.name for run in runs):
            found = [cells.get((card, name, text)) for text in conditions]
            yield attention, f"`{card}`", *map(cell, found)


def cell(row: Figure | None) -> str:
    """Return `61.9 [58.7, 65.0]`; a dash where there is no figure."""
    if row is None or not row.is_finite:
        return "–"
    return f"{row.value:.1f} [{row.low:.1f}, {row.high:.1f}]"


if __name__ == "__main__":
    main()
