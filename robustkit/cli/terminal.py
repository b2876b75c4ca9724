"""What the commands of a run do between the words and the pipeline, and what they print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ..errors import DataError, ProtocolError, RobustkitError, RunError
from . import streams
from .idle import refuse_for_pictures, refuse_idle_parts
from .options import DATA_KEYS, model_arguments, segmenter_arguments


def console(stderr: bool = False) -> Any:
    """Where lines go; as wide as the terminal, or 160 columns where there is none."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        """Names may come from files of someone else, and steer no terminal."""

        def render(self, renderable: Any, options: Any = None) -> Any:
            for part in super().render(renderable, options):
                text = "".join(character for character in part.text if character.isprintable() or character == "\n")
                yield part if part.control else Segment(text, part.style)

        def on_broken_pipe(self) -> None:
            self.quiet = True
            streams.broken()

    return Plain(stderr=stderr, width=None if sys.stdout.isatty() else 160)


def run_audit(checkpoints: tuple[str, ...], data_dir: str, options: dict[str, Any]) -> Any:
    """Audit classifiers and show it; DataError at the end where images could not be read."""
    from ..pipeline.audit import audit

    refuse_idle_parts(options)
    model = model_arguments(options)
    data = {key: options.pop(key) for key in DATA_KEYS}
    skip_bad = options.pop("skip_bad")
    run = run_and_show(audit, checkpoints, data_dir=data_dir, model=model, data=data, **options)
    refuse_bad(run, skip_bad)
    return run


def refuse_bad(run: Any, skip_bad: bool) -> None:
    """Raises DataError where images were left out, unless that is accepted."""
    from ..pipeline.processes import follows

    bad = [] if follows() else run.manifest["bad_images"]
    if bad and not skip_bad:
        raise DataError(
            f"{len(bad)} of {run.manifest['data']['n']} images could not be read and were left out, "
            f"the first: {bad[0]['error']}; mend them, or accept this with --skip-bad"
        )


def run_cam(arguments: tuple[str, ...], data_dir: str | None, options: dict[str, Any]) -> None:
    """Make maps of a data set, with their gallery, or of pictures."""
    from ..report.page import write_report
    from .cam.choice import Choice
    from .cam.command import make_gallery
    from .cam.pictures import explain_pictures, is_picture

    own = {key: options.pop(key) for key in ("targets", "gallery", "choose", "show", "save_maps")}
    pictures = [argument for argument in arguments if is_picture(argument)]
    checkpoints = tuple(argument for argument in arguments if not is_picture(argument))
    if bool(pictures) == (data_dir is not None):
        raise ProtocolError(
            "give either pictures of your own, or --data-dir with a data set"
            if pictures
            else "give pictures of your own beside the checkpoint, or --data-dir with a data set"
        )
    kept = dict(options)
    model, data = model_arguments(kept), {key: kept[key] for key in DATA_KEYS}
    if pictures:
        refuse_for_pictures()
        paths = explain_pictures(
            pictures,
            checkpoints,
            own["targets"],
            kept["cams"],
            model=model,
            device=kept["device"],
            out=kept["out"],
            raw=own["save_maps"],
        )
        for path in paths:
            console().print(str(path), markup=False, highlight=False, soft_wrap=True)
        return
    if own["targets"]:
        raise ProtocolError("--target is for pictures of your own; for a data set: --cams 'agcam(target=label)'")
    opened: dict[str, Any] = {"data_dir": str(data_dir), "data": data, "model": model}
    choice = None
    if own["gallery"] or own["show"]:
        choice = Choice.of(
            checkpoints,
            kept["cams"],
            kept["faithfulness"],
            how=own["choose"],
            count=own["gallery"],
            ids=own["show"],
        )
        located = bool(kept["boxes"] or kept["masks"])
        choice.check(
            checkpoints[0], limit=kept["limit"], only=kept["ids"], seed=kept["seed"], located=located, **opened
        )
    run = run_audit(checkpoints, str(data_dir), options | {"attacks": "none"})
    if choice is not None:
        same = {key: kept[key] for key in ("boxes", "masks", "protocol", "device")}
        for path in make_gallery(run, checkpoints, choice, raw=own["save_maps"], **opened, **same):
            console().print(f"gallery: {path}", markup=False, highlight=False, soft_wrap=True)
        write_report(run, run.summary())  # with the gallery


def run_segment(checkpoints: tuple[str, ...], data_dir: str, options: dict[str, Any]) -> None:
    """Audit segmenters and show it; DataError at the end where images or masks could not be used."""
    from ..pipeline.segment import segment

    refuse_idle_parts({"cams": "", **options})
    model = segmenter_arguments(options)
    skip_bad = options.pop("skip_bad")
    run = run_and_show(segment, checkpoints, data_dir=data_dir, model=model, **options)
    refuse_bad(run, skip_bad)


def run_and_show(pipeline: Any, *arguments: Any, **options: Any) -> Any:
    """Run a pipeline with its progress and lines on standard error; then show what it found."""
    from ..pipeline.processes import follows, speaker
    from .progress import ConsoleProgress

    side = console(stderr=True)

    def say(line: str) -> None:
        side.print(speaker() + line, markup=False, highlight=False, soft_wrap=True)

    if follows():
        return pipeline(*arguments, say=say, **options)
    with ConsoleProgress(side) as progress:
        run = pipeline(*arguments, progress=progress, say=say, **options)
    show(run, run.summary())
    return run


def show(run: Any, results: Any) -> None:
    """Print the tables and flags of a run."""
    from rich.table import Table

    from ..display.console import terminal_tables
    from ..evaluations.results import Results
    from ..report.refresh import flag_lines
    from ..results.tables import report_tables
    from ..tasks.task import task_of

    screen = console()
    task = task_of(run.manifest)
    parts = [*task.terminal(Results.of(run, results))]
    parts += [*terminal_tables(report_tables(run, results))] if task.shows_compared else []
    for part in parts:
        screen.print(part, soft_wrap=not isinstance(part, Table) or part.title is None)
    for line in flag_lines(run, results):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    screen.print(f"report: {run.path / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def usable(*runs: Path) -> Iterator[None]:
    """Whatever else goes wrong with the contents of run folders is one line, too."""
    try:
        yield
    except (RobustkitError, click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception as fault:
        reason = (str(fault).splitlines() or [""])[0][:200]
        raise RunError(
            f"{', '.join(map(str, runs))}: cannot be used ({type(fault).__name__}: {reason}); it holds something that "
            "no audit writes, or this is a defect of RobustKit, which --debug shows; make the run anew"
        ) from fault
