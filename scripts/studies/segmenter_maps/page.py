"""Runs of `robustkit segment --cams` as a page of Markdown: the maps of each class next to controls.

python -m scripts.studies.segmenter_maps.page RUN... --markdown PAGE
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.presenting import finding_lines, of_family
from robustkit.report.run import Run
from robustkit.slices.gallery.class_maps import VOCABULARY
from robustkit.slices.gallery.class_maps.results import ClassMapsPresenter
from scripts.pages.writing import deliver, markdown
from scripts.studies.camvid.page import checkpoint_lines


def parts_of(run: Run) -> Iterator[str]:
    """Yield the parts of the page about a run."""
    manifest, results = run.manifest, Results.of(run, run.summary())
    protocol, data = manifest.protocol, manifest.data
    yield f"## {data.n} images of {data.name}"
    yield f"```\n{re.sub(r'(?<= )/[^ ]*/', '', manifest.command)}\n```"
    yield f"{data.classes} classes; card `{protocol.tag}`; seed {manifest.seed}, {manifest.deciding.dtype}."
    yield "\n".join(checkpoint_lines(manifest))
    tables = [*ClassMapsPresenter().tables(results)]
    for table in tables:
        yield f"### {table.title}"
        yield markdown([table.headings, *table.rows])
    if lines := finding_lines(results, of_family(VOCABULARY.name)):
        yield "\n".join(f"- ⚑ {line}" for line in lines)


def page(runs: Sequence[Run]) -> str:
    """Return the whole page."""
    texts = [
        "# What Segmenters Look At",
        "Made by `scripts/studies/segmenter_maps/page.py` from the runs of the commands below; do not edit.",
        ClassMapsPresenter.note,
        "CamVid's frames and weights are not shipped. Frames of a drive resemble each other, so their intervals are "
        "too narrow.",
    ]
    return "\n\n".join([*texts, *(part for run in runs for part in parts_of(run))]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print and write the page. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    return deliver(
        "scripts.studies.segmenter_maps.page", lambda: page(list(map(Run.existing, options.runs))), options.markdown
    )


if __name__ == "__main__":
    sys.exit(main())
