"""Carry out a request for a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

from ..display.neutral import no_controls
from ..errors import RobustkitWarning
from ..evaluations.flags import flag_lines
from ..evaluations.results import Results
from ..results.run import Run
from ..runs.progress import Progress
from .plan import plan_of
from .request import Request
from .schedule import carry_out

_LOG = logging.getLogger("robustkit")


class Silent:
    """A progress listener that ignores everything."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...


def run(request: Request, progress: Progress | None = None, say: Callable[[str], None] | None = None) -> Run:
    """Carry out a request, and return the run.

    progress: listens to units and samples as they are done. say: takes a line for the user; without one, each flag of
    the results is a RobustkitWarning. The logger `robustkit` gets
    the same lines at INFO, and below it `robustkit.plan` what all will cost and `robustkit.progress` what is finished.

    Raises:
        RobustkitError: anything that is wrong with the request, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """

    def heard(line: str) -> None:
        _LOG.info(no_controls(line))
        if say is not None:
            say(line)

    with request.noted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobustkitWarning)  # of assumptions; the set-up check says more about them
            planned = plan_of(request)
        carry_out(planned, progress or Silent(), heard)
    if say is None and request.share is None and (planned.run.path / "summary.json").is_file():
        for line in flag_lines(Results.of(planned.run, planned.run.summary())):
            warnings.warn(line, RobustkitWarning, stacklevel=3)
    return planned.run
