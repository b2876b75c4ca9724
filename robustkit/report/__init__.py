"""Turn results into pages and files for people: report.html, tables, doubts, samples."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A room that is a verb, too: `robustkit.report(run)` is `refresh.report`."""

    def __call__(self, run: Any, **options: Any) -> Any:
        from .refresh import report

        return report(run, **options)


sys.modules[__name__].__class__ = _Room
