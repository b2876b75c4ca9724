"""A segmentation run as a page of Markdown.

python -m scripts.studies.camvid.page RUN --title TITLE --markdown PAGE [--note TEXT]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from robustkit.display.table import Table
from robustkit.errors import RobustkitError
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.presenting import finding_lines
from robustkit.report.run import Run
from robustkit.results.tables import report_tables
from robustkit.runs.manifest import Manifest
from robustkit.tasks.segmentation import TASK
from robustkit.tasks.segmentation.pictures import FILE
from robustkit.tasks.segmentation.results import scene_tables
from robustkit.tasks.task import ConditionTable
from scripts.pages.writing import markdown, write_page


def checkpoint_lines(manifest: Manifest) -> Iterator[str]:
    """Yield a line about each checkpoint."""
    for known in manifest.checkpoints:
        said = known.metadata
        facts = [f"{known.attention} attention", f"sha256 {str(known.sha256)[:12]}…"]
        windows = known.windows
        if windows is not None:
            size, stride = ("x".join(map(str, windows[key])) for key in ("size", "stride"))
            resized = f", short side {windows['short_side']}" if windows["short_side"] else ""
            resized += f", resized as the data pipeline of {windows['resize']} does" if "resize" in windows else ""
            facts.append(f"windows of {size} every {stride}{resized}")
        facts += [f"{key} {said[key]}" for key in ("encoder", "recipe", "seed") if key in said]
        yield f"- {known.name}: {'; '.join(facts)}"


def page(run: Run, title: str, notes: Sequence[str], picture: str | None) -> str:
    """Return the whole page. picture: its path from the page, if there is one."""
    manifest, results = run.manifest, run.summary()
    protocol, data = manifest.protocol, manifest.data
    texts = [
        f"# {title}",
        "Made by `scripts/studies/camvid/page.py` from the run of the command below; do not edit.",
        f"```\n{manifest.command}\n```",
        f"{data.n} images of {data.name} ({data.digest[:12]}…), {data.classes} classes; card "
        f"`{protocol.tag}`: {protocol.summary}; seed {manifest.seed}, {manifest.deciding.dtype}.",
        *notes,
        "\n".join(checkpoint_lines(manifest)),
    ]
    whole = ConditionTable.of(TASK, results, manifest).text_table()
    tables: list[Table] = [whole, *scene_tables(results), *report_tables(run, results)]
    for table in tables:
        texts += [f"## {table.title}", markdown([table.headings, *table.rows])]
        texts += [f"- ⚑ {flag}" for flag in getattr(table, "flags", ())]
    if lines := finding_lines(Results.of(run, results)):
        texts.append("\n".join(f"- ⚑ {line}" for line in lines))
    if picture is not None:
        texts.append(f"![Scenes with their truth and what each checkpoint makes of them]({picture})")
    return "\n\n".join(texts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("--note", action="append", default=[], help="a paragraph; may be repeated")
    parser.add_argument("--picture", action="store_true", help="copy the examples next to the page")
    parser.add_argument("--markdown", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        run = Run.existing(options.run)
        picture = None
        if options.picture and (run.path / FILE).is_file():
            picture = f"{options.markdown.stem}/examples.png"
            target = options.markdown.parent / picture
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.path / FILE, target)
        write_page(options.markdown, page(run, options.title, options.note, picture))
    except RobustkitError as error:
        print(f"scripts.studies.camvid.page: {error}", file=sys.stderr)
        return error.exit_code
    print(options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
