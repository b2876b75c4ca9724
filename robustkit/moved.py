"""Old names of modules that plug-ins import, until the release after 0.1: an import warns and names the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "attacks.autoattack": "attacks.apgd",
    "attacks.fab": "attacks.minimal",
    "attacks.patch": "attacks.pgd",
    "attacks.rng": "attacks.threat",
    "attacks.spsa": "attacks.queries",
    "attacks.square": "attacks.queries",
    "cam.agcam": "cam.attention",
    "cam.controls": "cam.agnostic",
    "cam.gradients": "cam.agnostic",
    "cam.perturbation": "cam",
    "cam.rollout": "cam.attention",
    "robustkit.attention.multihead": "robustkit.attention.layers",
    **{
        f"robustkit.{old}": f"robustkit.tasks.{new}"
        for old, new in {
            "cli.commands.features": "features.command",
            "cli.commands.series": "series.command",
            "cli.commands.text": "text.command",
            "data.documents": "text.documents",
            "data.series": "series.files",
            "evaluations.disturbances.condition": "series.condition",
            "evaluations.disturbances.evaluate": "series.evaluate",
            "evaluations.perturbations.condition": "text.condition",
            "evaluations.perturbations.evaluate": "text.evaluate",
            "models.language_model": "text.language_model",
            "models.series": "series.model",
            "models.tokenizers": "text.tokenizers",
            "pipeline.features": "features.plan",
            "pipeline.series": "series.plan",
            "pipeline.text": "text.plan",
            "tasks.classification.measures": "classification.task",
            "tasks.classification.subject": "labelled.subject",
            "tasks.features.measures": "features.task",
            "tasks.features.subject": "features.plan",
            "tasks.labelled.measures": "labelled.metrics",
            "tasks.segmentation.measures": "segmentation.task",
            "tasks.series.measures": "series.task",
            "tasks.series.subject": "series.plan",
            "tasks.text.measures": "text.task",
        }.items()
    },
    "robustkit.attention.optim.quack": "robustkit.attention.optim.stabilisers",
    "robustkit.cli.gallery": "robustkit.pipeline.gallery",
    "robustkit.cli.inspection": "robustkit.pipeline.inspection",
    "robustkit.cli.progress": "robustkit.display.progress",
    "robustkit.common.randomness": "robustkit.common.determinism",
    "robustkit.data.picture_files": "robustkit.data.images",
    "robustkit.display.section": "robustkit.display.table",
    "robustkit.evaluations.cells": "robustkit.evaluations.metrics",
    "robustkit.evaluations.kinds": "robustkit.evaluations.condition",
    "robustkit.evaluations.metric": "robustkit.evaluations.metrics",
    "robustkit.evaluations.recorded": "robustkit.evaluations.records",
    "robustkit.evaluations.rows": "robustkit.evaluations.aggregate",
    "robustkit.evaluations.sentence": "robustkit.evaluations.condition",
    "robustkit.evaluations.shown": "robustkit.evaluations.subject",
    "robustkit.evaluations.term": "robustkit.evaluations.metrics",
    "robustkit.evaluations.under": "robustkit.evaluations.family",
    "robustkit.evaluations.vocabulary": "robustkit.evaluations.condition",
    "robustkit.pipeline.run": "robustkit.pipeline.scheduler",
    "robustkit.results.run": "robustkit.report.run",
    "robustkit.results.summary": "robustkit.report.run",
    "robustkit.runs.binding": "robustkit.runs.untrusted",
}
RENAMED = {("robustkit.evaluations.cells", "Result"): "SummaryRow"}


class MovedModules(MetaPathFinder, Loader):
    """Finds a module by its old name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec for an old name; None for any other."""
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Let every name of the new module be found in the old one."""
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(
            f"{old} is now {new}; the old name will be removed next release", DeprecationWarning, stacklevel=2
        )
        module.__dict__["__getattr__"] = lambda name: getattr(import_module(new), RENAMED.get((old, name)) or name)


def keep_old_names(module: str, **names: str) -> None:
    """Let names of a module that became others, old to new, be imported from it; mypy knows the new ones alone."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(f"{module}.{name} is now {new}; the old name will be removed next release", DeprecationWarning, 2)
        return getattr(sys.modules[module], new)

    sys.modules[module].__dict__["__getattr__"] = find
