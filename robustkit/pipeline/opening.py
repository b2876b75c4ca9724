"""Begin to compute: say what is to be done, and make sure that all processes see the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..display.neutral import no_controls
from ..errors import RunError
from ..evaluations.family import family_of
from ..runs.folder import RunFolder
from ..runs.progress import Progress
from .announcement import jobs_of, work_lines
from .estimate import Estimate
from .outstanding import Lacking, lots, units_of
from .plan import Plan
from .processes import Ranks
from .reporting import PLAN, Reporter

_SEEN = 60.0  # seconds


def announced(
    plan: Plan,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
    every: Sequence[Lacking],
    at_most: int | None = None,
) -> Reporter:
    """Say what was found, what is there, and what is to be done; return what tells how far it is.

    every: what each of `lots` lacks. at_most: the first samples, where no others are asked for.
    """
    device = plan.request.settings.device
    if ranks.leads:
        for line in (line for _, _, _, lines, _ in every for line in lines):
            say(line)
        texts = {text for lacking, *_ in every for _, some in lacking for text in some}
        conditions = [condition.under or condition for condition in plan.conditions if condition.text in texts]
        for line in dict.fromkeys(family_of(each.name).elsewhere(each, device) for each in conditions):
            if line:
                say(line)
        if done := sum(there for _, _, there, *_ in every):
            say(f"{done} units of work were there already and were not computed again")
    samples = len(plan.dataset.samples[:at_most])
    return _reporter(plan, ranks, progress, every, samples)


def _reporter(plan: Plan, ranks: Ranks, progress: Progress, every: Sequence[Lacking], samples: int) -> Reporter:
    """Say what is to be done, and return what tells how far it is. every: what each of `lots` lacks."""
    size, device = plan.run.manifest.shard_size, plan.request.settings.device
    card, classes = plan.request.card, len(plan.dataset.valid_labels or plan.dataset.class_names)
    jobs = []
    for (contender, _), (lacking, doubted, *_, unchecked) in zip(lots(plan), every, strict=True):
        counts = dict.fromkeys((condition.text for condition in plan.conditions), 0)
        for shard, texts in lacking:
            for text in texts:
                counts[text] += min(size, samples - shard * size)
        wanted = [(condition, counts[condition.text]) for condition in plan.conditions]
        jobs += jobs_of(contender.name, wanted, doubted, card, classes, samples, unchecked is None)
    own = {
        contender.name: {
            text: [shard for shard in shards if shard * size < samples]
            for text, shards in units_of(plan, contender.name, plan.conditions).items()
        }
        for contender in plan.contenders
    }
    if ranks.leads:
        units = sum(len(shards) for of_one in own.values() for shards in of_one.values())
        there = sum(done for _, _, done, *_ in every)
        evidence = sum(len(texts) for _, texts, *_ in every)
        whys = [why for *_, why in every]
        lines = work_lines(
            plan.conditions,
            len(own),
            samples,
            units,
            there,
            evidence,
            card,
            classes,
            whys.count(None),
            filter(None, whys),
        )
        for line in lines:
            PLAN.info(no_controls(line))
    estimate = Estimate(jobs, ranks.size)
    return Reporter(plan.run, plan.conditions, samples, own, estimate, ranks, progress, device.type)


def await_same(run: RunFolder, manifest: dict[str, Any]) -> None:
    """Wait until this process sees the run.json that the first one wrote; a network file system may take a while.

    Raises:
        RunError: it does not come.
    """
    began = time.monotonic()
    while (seen := run.read_manifest()) is None or seen.to_plain() != manifest:
        if time.monotonic() - began > _SEEN:
            raise RunError(
                f"{run.manifest_path} is not what the first process wrote; give an --out that all processes see"
            )
        time.sleep(0.1)
