"""Run the commands of a run: pass their options to the pipeline, and print what it found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common.figure import Figure
from ..common.plugins import of_slice
from ..display.console import print_as_it_is, print_line, print_tables
from ..errors import DataError, RobustkitError, RunError
from ..pipeline.request import ClassificationRequest, Request, SegmentationRequest, preset_of
from . import streams
from .options import (
    GROUPS,
    Command,
    checkpoints_argument,
    loading,
    refuse_idle_parts,
    request_of,
    run_options,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..evaluations.parts import RunPart
    from ..report.run import Run
    from ..runs.folder import RunFolder


def console(stderr: bool = False) -> Any:
    """Return the console that lines go to: as wide as the terminal, as COLUMNS says, or 160 columns without either."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        """A console that drops control characters, which names from untrusted files may hold."""

        def render(self, renderable: Any, options: Any = None) -> Any:
            for part in super().render(renderable, options):
                text = "".join(character for character in part.text if character.isprintable() or character == "\n")
                yield part if part.control else Segment(text, part.style)

        def on_broken_pipe(self) -> None:
            self.quiet = True
            streams.ignore_broken_pipe()

    stream = sys.stderr if stderr else sys.stdout
    return Plain(stderr=stderr, width=None if (stream.isatty() or os.environ.get("COLUMNS", "").isdigit()) else 160)


def audit_request(
    options: dict[str, Any], parts: Sequence[str] = ("attacks", "eps", "limit", "corruptions", "cams")
) -> ClassificationRequest:
    """Return the request of a command for classifiers. options: as click has them. parts: of a preset that count."""
    if (name := options.get("preset")) is not None:
        options["preset"] = preset_of("classification", name).only(parts)
    _refuse_idle(options, {} if name is None else options["preset"].options)
    return request_of(ClassificationRequest, options)


def segment_request(options: dict[str, Any]) -> SegmentationRequest:
    name = options.get("preset")
    filled = {} if name is None else preset_of("segmentation", name).options
    _refuse_idle(options, filled)
    return request_of(SegmentationRequest, options)


def _refuse_idle(options: Mapping[str, Any], filled: Mapping[str, Any]) -> None:
    """Raise ProtocolError for options that would do nothing. filled: what a preset says."""
    refuse_idle_parts({**filled, **{name: value for name, value in options.items() if value is not None}})


def run_to_the_end(request: Request, skip_bad: bool, details: bool = False, quiet: bool = False) -> Run:
    """Carry out a request and show the run. Raises DataError at the end, if images were left out, unless accepted."""
    from ..pipeline.processes import is_follower

    run = run_and_show(request, details, quiet)
    refuse_bad(run, skip_bad or is_follower() or request.share is not None)
    return run


def evaluation(
    kind: type[Request],
    request: Callable[[dict[str, Any]], Request] | None = None,
    *,
    shared: bool = True,
    without: Iterable[str] = (),
    **settings: Any,
) -> Callable[[Callable[[], None]], click.Command]:
    """Return a decorator that makes a command of a function, of which it takes the name and the words of --help.

    The command carries out a request of this kind. request: makes it of the options. shared, without: of `run_options`.
    """

    def command_of(words: Callable[[], None]) -> click.Command:
        def run(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
            work = request(options) if request else request_of(kind, options)
            run_to_the_end(work, skip_bad, details, quiet)

        run.__doc__ = words.__doc__
        options = checkpoints_argument(run_options(kind, shared=shared, without=without)(run))
        return click.command(words.__name__, cls=Command, **settings)(options)

    return command_of


def refuse_bad(run: RunFolder, accepted: bool) -> None:
    bad = () if accepted else run.manifest.bad_images
    if bad:
        raise DataError(
            f"{len(bad)} of {run.manifest.data.n} {run.manifest.protocol.samples.many} could not be read and were left "
            f"out, the first: {bad[0].error}; fix them, or accept this with --skip-bad"
        )


def run_and_show(request: Request, details: bool = False, quiet: bool = False) -> Run:
    """Carry out a request with its progress on standard error; then show its results. details: with every table."""
    with loading():
        from ..display.progress import ConsoleProgress
        from ..pipeline.processes import is_follower, line_prefix
        from ..pipeline.scheduler import run as carry_out

    side = console(stderr=True)

    def say(line: str) -> None:
        print_as_it_is(side, line_prefix() + line)

    if is_follower():
        return carry_out(request, say=say)
    with ConsoleProgress(side, quiet) as progress:
        run = carry_out(request, progress, say)
    if request.share:
        print_as_it_is(console(), after_part(request.share, run))
        return run
    show(run, run.summary(), details)
    return run


def after_part(part: RunPart, run: RunFolder) -> str:
    """Return what is to be done when a part has computed what it could: a second phase waits for the first of all."""
    from ..evaluations.parts import missing_by_part

    if waiting := len(missing_by_part(run, part.count).get(part.number, ())):
        units = "unit of it waits" if waiting == 1 else "units of it wait"
        progress = f"part {part} has done its share of the first phase, {waiting} {units}"
        return f"{progress}; when all parts have: run it again"
    return f"part {part} is done; when all are: robustkit merge {run.path}"


def compare_runs(
    runs: Sequence[Path],
    *,
    json_file: Path | None = None,
    console: Console,
    methods: Sequence[str] = (),
    plan: float | None = None,
    **options: Any,
) -> None:
    """Print paired differences of checkpoints of runs, as `compare` finds them, or of methods; write them to a file if
    asked. plan: points, whose plan is printed, too."""
    from ..results.compared import compare
    from ..results.methods import compare_named, name_methods

    if methods or (name_methods(runs) and not any(options[name] for name in ("checkpoints", "against", "reference"))):
        compared: Any = compare_named(runs, methods, **options)
        print_line(console, compared.sentence)
        tables = compared.tables
    else:
        compared = compare(*runs, **options)
        tables = compared.brief_tables
        for sentence in compared.sentences:
            print_line(console, sentence)
    print_tables(console, tables, "the --json file")
    for line in compared.unpaired:
        print_line(console, f"⚑ {line}")
    if plan is not None:
        groups = {name: options.get(name) for name in GROUPS}
        tables = of_slice("plan", "--plan")(runs, methods, difference=plan, **groups).tables
        print_tables(console, tables, "the notebook")
    if json_file is None:
        return
    text = json.dumps(compared.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    try:
        json_file.write_text(text + "\n", encoding="utf-8")
    except OSError as fault:
        remedy = "choose a file in a folder that exists with --json"
        raise RunError(f"cannot write {json_file}: {fault.strerror or fault}; {remedy}") from None
    print_as_it_is(console, f"json: {json_file}")


def show(run: RunFolder, results: Sequence[Figure], details: bool = False, by: Sequence[str] = ()) -> None:
    """Print what a run found: sentences, the short table (details: every table), slices by some columns, flags, and
    where the rest is."""
    from ..evaluations.aggregate import Results
    from ..evaluations.presenting import finding_lines, left_out_lines, note_lines
    from ..evaluations.setup_findings import setups_of
    from ..results.summary_text import summary_sentences
    from ..results.tables import by_tables, report_tables, short_tables, weak_tables
    from ..tasks.task import task_of

    screen, every, task = console(), Results.of(run, results), task_of(run.manifest)
    for sentence in summary_sentences(every):
        print_line(screen, sentence)
    compared = report_tables(run, every) if details and task.shows_compared else []
    whole = [*task.terminal(every), *(table.said_once("n") for table in compared)] if details else short_tables(every)
    weak = weak_tables(every) if details else []
    print_tables(screen, [*whole, *weak, *(table for some in by_tables(run, by) for table in some)], "summary.csv")
    for who, text in setups_of(run):
        print_line(screen, f"set-up of {who}: {text}")
    lines = (*finding_lines(every), *left_out_lines(run))
    for line in lines:
        print_line(screen, f"⚑ {line}")
    if lines:
        print_as_it_is(screen, "robustkit explain CODE says what a finding means; its code is in brackets")
    for line in note_lines(every):
        print_line(screen, f"note: {line}")
    if not details:
        print_as_it_is(screen, f"all tables: robustkit report {run.path} --details")
    print_as_it_is(screen, f"report: {run.path / 'report.html'}")


def say_unfinished(runs: Iterable[RunFolder]) -> None:
    """Print which runs lack records, with the command that completes each."""
    from ..evaluations.presenting import unfinished_line

    for run in runs:
        if gap := unfinished_line(run):
            print_as_it_is(console(), f"⚑ {run.path}: {gap}")


@contextmanager
def usable(*runs: Path) -> Iterator[None]:
    """Report in one line anything else that is wrong with the contents of run folders."""
    try:
        yield
    except (RobustkitError, click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception as fault:
        reason = (str(fault).splitlines() or [""])[0][:200]
        raise RunError(
            f"{', '.join(map(str, runs))}: cannot be used ({type(fault).__name__}: {reason}); it holds something that "
            "no audit writes, or this is a defect of RobustKit, which --debug shows; make the run again"
        ) from fault
