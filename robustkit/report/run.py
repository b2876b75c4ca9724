"""A run and its results, for a program or a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.figure import COLUMNS
from ..common.plugins import of_slice
from ..display.html import as_html
from ..display.svg import plot, style
from ..display.text import finite_json
from ..errors import RobustkitWarning, RunError, unknown
from ..evaluations.aggregate import Results
from ..evaluations.condition import group_of, name_of
from ..evaluations.presenting import finding_lines, left_out_lines, note_lines
from ..results.comparison import asked_results
from ..results.methods import by_method
from ..results.summary_text import summary_sentences
from ..results.survey import looks_of, survey
from ..results.tables import columns_asked, frame_rows, short_tables
from ..runs.folder import RunFolder
from ..tasks.task import task_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .samples import Examples


class Run(RunFolder):
    """A run folder and its results, which come from the records alone: no model is needed.

    Example:
        >>> run = robustkit.Run.existing("runs/reference")
        >>> run.results().condition.unique().tolist()
        ['clean', 'fgsm(eps=1/255)']
        >>> run.tabulate().headings
        ('clean', 'FGSM')
    """

    asked: tuple[str, ...] = ()
    """The conditions of the call that returned this run; the folder may have more. None where it was opened."""

    def __repr__(self) -> str:
        """Return the folder, and what was evaluated on which data."""
        manifest = self.manifest
        labels = dict.fromkeys(name_of(group_of(text), "table", manifest) for text in manifest.conditions)
        count = f"{len(manifest.names)} checkpoint{'s' * (len(manifest.names) > 1)}"
        data = f"{manifest.data.n} {manifest.protocol.samples.many} of {manifest.data.name}"
        return f"Run({str(self.path)!r}): {count} on {data}: {'; '.join(labels)}"

    def __dir__(self) -> list[str]:
        """Return what a user needs; the folder's files are read by the rest."""
        return [name for name in vars(Run) if not name.startswith("_")] + ["path", "manifest", "summary", "table"]

    def results(self) -> pd.DataFrame:
        """Return the rows of summary.json with the columns of `COLUMNS`, computed from the records."""
        import pandas as pd

        return pd.DataFrame([figure.to_plain() for figure in survey(self)], columns=list(COLUMNS))

    def tabulate(self, **options: Any) -> Any:
        """Return `robustkit.table` of this run, a `PaperTable`: what it shows, in LaTeX by `to_latex`.

        Raises:
            AttributeError: the slice that makes such tables was deleted.
        """
        import robustkit

        return robustkit.table(self, **options)

    @property
    def bibtex(self) -> str:
        """BibTeX of the papers behind what the run used, and of this package."""
        from .page import bibtex

        return bibtex(self.manifest, survey(self))

    def plot(self, *sections: str, size: float | None = None, font: str = "sans-serif") -> Figure:
        """Return figures of the page as one of matplotlib: accuracy by condition, against eps, and by corruption.

        Args:
            *sections: of the page, such as `attacks`, `corruptions`, `maps` or `calibration`: then all of their
                figures.
            size: the width in mm, for a paper: with letters of 7 points, and without titles.
            font: `sans-serif` or `serif`.

        Raises:
            RunError: the run has no such figure.
        """
        from .front import front_figure
        from .page import in_order

        if odd := [name for name in sections if not isinstance(name, str)]:
            raise TypeError(f"plot({odd[0]!r}): expected names, as plot('attacks', 'corruptions')")
        results = survey(self, for_page=True)
        every = in_order(task_of(results.manifest).sections(results, looks_of(self)))
        drawn = {section.name: section.figures for section in every if section.figures}
        for name in sections:
            if name not in drawn:
                raise RunError(f"{self.path} has no such figures: {unknown('section', name, drawn)}")
        asked = [figure for name in sections or drawn for figure in drawn[name] if sections or figure.chief]
        view = by_method(results)
        looks = {name: style(place) for place, name in enumerate(view.names)}
        if not sections and (first := front_figure(asked_results(view), view, looks)) is not None:
            asked = [first, *asked]
        if not asked:
            raise RunError(f"{self.path}: nothing to plot; evaluate attacks or corruptions, or name one of {[*drawn]}")
        return plot(asked, size, font)

    def examples(self, condition: str = "", wrong: bool | None = None, limit: int = 12) -> Examples:
        """Return kept pictures with what was predicted, sample by sample, maps over images; a notebook shows them.

        Args:
            condition: `clean`, `pgd` for all of its radii, `fog`, `noise`, or one as in the records; if left out, of
                each family one.
            wrong: only samples that some checkpoint gets wrong (True) or right (False) under it.
            limit: samples, 1 or more.

        Raises:
            RunError: the run kept no such pictures. `browse` of an audit says how many samples it keeps some of.
        """
        if not (isinstance(condition, str) and isinstance(limit, int) and limit > 0):
            raise TypeError(f"examples({condition!r}, limit={limit!r}): expected a text, and a limit of 1 or more")
        from .samples import examples_of

        return examples_of(self, condition, wrong, limit)

    def slices(self, by: str | Sequence[str] = (), metric: str = "", condition: str = "") -> pd.DataFrame:
        """Return a row for each slice by some columns, or without `by` for each slice that is significantly worse than
        all other samples.

        Args:
            by: columns of the metadata (`metadata` of an audit or a report), `class` or `difficulty`: a name, several
                separated by commas, or a list.
            metric: `top1`, `top5` or `nll`; left out, the one by which a sample is right or wrong.
            condition: such as `clean` or `pgd`; all of the table of results if left out.

        Raises:
            RunError: an unknown column, or a figure that is no mean over samples.
        """
        import pandas as pd

        rows = [*frame_rows(Results(self, []), columns_asked(by) if by else (), metric, condition)]
        if not rows and not by:
            warnings.warn(f"{self.path}: no slice is significantly worse than all others", RobustkitWarning, 2)
        return pd.DataFrame(rows)

    def export(self, format: str, out: str | Path | None = None, **options: Any) -> list[Path]:
        """Write the results in a form that others read; return the paths of files.

        Args:
            format: `every-eval-ever`, `hf-eval-results`, `model-index`, `csv`, or a tracker: `tensorboard`, `mlflow`,
                `wandb`.
            out: a folder; `export` in the run if left out.
            **options: `checkpoint`, `dataset_id`, `task_ids` and `to`, as those of `robustkit export`.

        Raises:
            RunError: an unknown format or checkpoint, an option that it has no use for, or a file of someone else.
            ProtocolError: a tracker that is not installed.
            NothingEvaluated: no figure.
            PluginError: this installation is without the slice that does it.
        """
        write: Callable[..., list[Path]] = of_slice("export", f"export({format!r})")
        return write(self, format, out=None if out is None else Path(out), **options)

    to_frame = results

    def to_json(self) -> str:
        """Return the rows of `results` as JSON."""
        return finite_json([figure.to_plain() for figure in survey(self)])

    def _repr_html_(self) -> str:
        """Return what the command prints of a run: sentences, the short table, flags."""
        results = survey(self)
        flags = [f"⚑ {line}" for line in (*finding_lines(results), *left_out_lines(self))]
        flags += [f"note: {line}" for line in note_lines(results)]
        return f"{as_html(short_tables(results), summary_sentences(results))}\n{as_html((), flags)}"
