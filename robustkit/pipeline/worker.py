"""Compute what is asked for of a plan, in one process, with one checkpoint at a time on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ..evaluations.attacks.evidence import confirm_evidence, gather_evidence
from ..evaluations.attacks.gradient_masking import AFTERWARDS, findings
from ..evaluations.setup import CHECK, check_setup
from ..evaluations.setup_flags import setup_flags, setup_notes
from ..evaluations.subject import Subject
from ..models.device import device_name
from ..protocol.condition import CLEAN
from ..runs.binding import provenance_of
from ..runs.pictures import PicturePlan
from ..runs.progress import Watch
from .manifest import preprocessing_of, versions
from .outstanding import Piece
from .plan import Contender, Plan
from .runner import run_units
from .shards import decoded


class Worker:
    """What computes in this process. The network that was asked for last stays on the device.

    watch: listens to units and samples. say: takes a line for the user.
    """

    def __init__(self, plan: Plan, watch: Watch, say: Callable[[str], None]) -> None:
        self.plan, self.run, self.watch, self.say = plan, plan.run, watch, say
        manifest = plan.run.manifest
        self.settings = replace(plan.request.settings, batch_size=manifest.batch_size)
        self._by_text = {condition.text: condition for condition in plan.conditions}
        self._wanted = PicturePlan.of(manifest.pictures, plan.conditions)
        self._contenders = {contender.name: contender for contender in plan.contenders}
        device = device_name(self.settings.device)
        self._here = {"batch_size": self.settings.batch_size, "device": device, "versions": versions()}
        self._placed: tuple[str, Subject] | None = None

    def check_setup(self, name: str) -> None:
        """Look whether another normalisation or channel order fits a checkpoint better, and report it."""
        contender, subject = self._on_device(name)
        entry, supply = contender.entry, contender.supply
        preprocessing = contender.preprocessing or preprocessing_of(entry)
        read = partial(decoded, supply.reader(CLEAN), workers=self.settings.workers, device=self.settings.device)
        if why := check_setup(self.run, subject, supply, preprocessing, read, self.watch):
            self.say(f"{name}: {CHECK} left out: {why}")
        evidence = self.run.evidence(name, CLEAN.text)
        for flag in setup_flags(self.run.manifest, name, evidence):
            self.say(f"⚑ {name}: {flag}")
        for note in setup_notes(evidence):
            self.say(f"{name}: {note}")

    def take_evidence(self, name: str, text: str) -> None:
        """Measure whether an attack's result can be trusted, and report what speaks against it."""
        contender, subject = self._on_device(name)
        assert contender.preprocessing is not None
        condition = self._by_text[text]
        gather_evidence(self.run, subject, contender.supply.dataset, contender.preprocessing, condition, self.watch)
        for finding in findings(self.run.evidence(name, text) or {}):
            if finding.flag and finding.check != AFTERWARDS:
                self.say(f"⚑ {name}, {text}: {finding.flag}")

    def confirm_evidence(self, name: str, text: str) -> None:
        """Look after an attack whether the model is still as it was before, and report where it is not."""
        contender, subject = self._on_device(name)
        assert contender.preprocessing is not None
        confirm_evidence(self.run, subject, contender.supply.dataset, contender.preprocessing, self._by_text[text])
        for finding in findings(self.run.evidence(name, text) or {}):
            if finding.flag and finding.check == AFTERWARDS:
                self.say(f"⚑ {name}, {text}: {finding.flag}")

    def compute(self, name: str, work: Iterable[tuple[int, Sequence[str]]]) -> None:
        """Write the records of shards, each under the conditions whose texts come with it.

        Raises:
            ModelError: the network fails on some batch; what was done before it is kept.
            RunError: a record cannot be written.
        """
        pieces = (Piece(shard, tuple(self._by_text[text] for text in texts)) for shard, texts in work)
        for first in pieces:  # nothing is placed where there is nothing to do
            contender, subject = self._on_device(name)
            run_units(
                self.run,
                subject,
                contender.supply,
                chain([first], pieces),
                self.run.manifest.shard_size,
                partial(self._provenance, contender),
                self.watch,
                self._wanted,
                self.say,
                self.plan.handed,
            )

    def rest(self) -> None:
        """Free the device."""
        if self._placed is not None:
            self._placed[1].classifier.to("cpu")
            self._placed = None

    def _on_device(self, name: str) -> tuple[Contender, Subject]:
        contender = self._contenders[name]
        if self._placed is None or self._placed[0] != name:
            self.rest()
            self._placed = name, contender.subject(self.settings)
        return contender, self._placed[1]

    def _provenance(self, contender: Contender, condition: str) -> dict[str, Any]:
        """Return where the rows of a checkpoint under a condition come from, for the metadata of their files."""
        return {**provenance_of(self.run.manifest, contender.entry, condition), **self._here}
