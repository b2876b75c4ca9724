"""Plan attacks in two phases: `autoattack(second=200)` becomes its first stages, and the rest on 200 that stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..common.environment import check_date, usual_workers
from ..common.plugins import declared
from ..data.scenes import IGNORE
from ..errors import PluginError, ProtocolError, unknown
from ..evaluations.attacks.build import Options, build_attack, parse_condition, parse_conditions
from ..evaluations.attacks.condition import EVERY_ATTACK, EVERY_DENSE_ATTACK
from ..evaluations.attacks.two_phase.condition import two_phase_condition
from ..evaluations.records import Part
from ..evaluations.registry import is_attack, kind_of, pattern_of, plugged, vocabulary_of
from ..evaluations.subject import Settings
from ..models.device import DTYPES, pick_device, unknown_dtype
from ..models.identity import display_name
from ..protocol.card import Card, load_card, number
from ..protocol.condition import Condition, split_condition
from ..runs.files import RunFiles
from ..tasks.registry import EVERY_TASK
from ..tasks.task import task_named
from .presets import Preset, preset_of
from .processes import follows

_OWN = re.compile(r"\s*(first|second)\s*=([^,]*)")
_USUAL = "apgd-ce"


def in_two_phases(item: str, card: Card, options: Options) -> Iterator[Condition]:
    """Yield the conditions of an attack that asks for a second phase; nothing for another.

    Raises:
        ProtocolError: the attack has no stages, or none of them are left for one of the phases.
    """
    name, arguments = split_condition(item)
    parts = (arguments or "").split(",")
    stated = [(match[1], match[2].strip()) for part in parts if (match := _OWN.fullmatch(part))]
    own = dict(stated)
    if not own:
        return
    others = [part for part in parts if part.strip() and not _OWN.fullmatch(part)]
    if name != "autoattack":
        raise ProtocolError(f"condition {item!r}: first and second are of autoattack; leave them out of {name}")
    if len(own) < len(stated):
        raise ProtocolError(f"condition {item!r}: first or second is given twice; leave one of them out")
    m = own.get("second", "")
    if not m.isdecimal() or not int(m):
        raise ProtocolError(
            f"condition {item!r}: second is {m or 'missing'}; expected how many samples, such as second=200"
        )

    def parsed(*more: str) -> Condition:
        return parse_condition(f"{name}({','.join([*others, *more])})", card, **options)

    whole = parsed()
    if whole.engine != "robustkit":
        raise ProtocolError(f"condition {item!r}: engine {whole.engine} runs all stages at once; leave it out")
    if dict(whole.parameters).get("only"):
        raise ProtocolError(f"condition {item!r}: only leaves out stages, which the second phase runs; leave it out")
    if whole.on:
        raise ProtocolError(
            f"condition {item!r}: on draws from all samples, second from those that stand; leave one out"
        )
    every = getattr(build_attack(whole, card), "stage_names", ())
    first = own.get("first", _USUAL)
    chosen = [stage for stage in every if stage in first.split("+")]
    rest = [stage for stage in every if stage not in chosen]
    if "+".join(chosen) != first or not (chosen and rest) or list(every[: len(chosen)]) != chosen:
        examples = "first=" + " or first=".join("+".join(every[:count]) for count in range(1, len(every)))
        raise ProtocolError(
            f"condition {item!r}: first is {first}; expected the stages that it begins with: {examples}"
        )
    begin, end = (parsed(f"only={'+'.join(stages)}") for stages in (chosen, rest))
    yield begin
    yield two_phase_condition(begin, end, whole, first, int(m))


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a run, whatever its task. `audit` documents each field.

    task: as in cards. usual_attacks: used where none are named. usual_batch: the batch size by kind of device, where
    none is given. least_shard: samples in a unit of work, unless given or a batch is larger. kept: the fields that
    run.json keeps, so that the same samples can be found again. preset: fills what is not given; what it filled stays.
    part: `3/64`, to compute a share of the units without meeting who computes the others. ray: a cluster to compute on,
    `local` for one of its own.

    Raises:
        ProtocolError: a size is below 1, or a dtype is not supported.
    """

    task: ClassVar[str]
    usual_attacks: ClassVar[str]
    usual_batch: ClassVar[Mapping[str, int]]
    least_shard: ClassVar[int]
    kept: ClassVar[tuple[str, ...]]

    checkpoints: Sequence[str | Path]
    data_dir: str | Path
    attacks: str | Iterable[str] | None = None
    corruptions: str | Iterable[str] | None = None
    evaluations: str | Iterable[str] | None = None
    variant: str = "hendrycks"
    frost_dir: str | Path | None = None
    out: str | Path | None = None
    protocol: str = "standard"
    eps: str | float | None = None
    norm: str | None = None
    preset: str | Preset | None = None
    limit: int | None = None
    ids: str | Path | None = None
    seed: int = 0
    batch_size: int | Literal["auto"] | None = None
    shard_size: int | None = None
    workers: int | None = None
    device: str = "auto"
    dtype: str = "float32"
    compile: bool = False
    part: str | None = None
    ray: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.noted():
            self._settle()

    def _settle(self) -> None:
        check_date()
        if self.preset is not None:
            preset = preset_of(self.task, self.preset) if isinstance(self.preset, str) else self.preset
            free = [name for name in preset.options if getattr(self, name) is None]
            preset = preset.only(name for name in free if name != "limit" or self.ids is None)
            object.__setattr__(self, "preset", preset)
            for name, filled in preset.options.items():
                object.__setattr__(self, name, filled)
        _ = self.share
        if self.ray is not None and not re.fullmatch(r"local|auto|(ray://)?[^\s/]+:\d+", self.ray):
            raise ProtocolError(f"--ray {self.ray}: expected nothing, auto, HOST:PORT or ray://HOST:PORT")
        sizes = self.batch_size, self.shard_size, self.limit
        if any(isinstance(size, int) and size < 1 for size in sizes):
            raise ProtocolError("batch size {}, shard size {}, limit {}: expected 1 or more".format(*sizes))
        if self.dtype not in DTYPES:
            raise ProtocolError(unknown_dtype(self.dtype))
        if self.out is not None and not str(self.out).strip():
            raise ProtocolError("out is empty; expected a run folder, or leave it out for runs/<checkpoint>")
        for name in ("attacks", "corruptions", "cams", "region_noise", "evaluations"):  # read more than once
            if not isinstance(value := getattr(self, name, None), str | None):
                object.__setattr__(self, name, tuple(value))

    @cached_property
    def card(self) -> Card:
        """The protocol card. Raises ProtocolError where it is for another task."""
        card = load_card(self.protocol)
        if card.task != self.task:
            plugin = EVERY_TASK.plugin(card.task)
            remedy = f"{plugin.origin} says how" if plugin else f"use robustkit {task_named(card.task).command}"
            raise ProtocolError(f"protocol {card.name} is for {card.task}; {remedy}")
        return card

    @cached_property
    def settings(self) -> Settings:
        """How to compute, with the usual batch size where none is given. Raises ModelError for an unusable device."""
        where = pick_device(self.device)
        usual = self.usual_batch["cpu"]
        if where.type != "cpu":
            usual = self.usual_batch.get("accelerator", usual)
        batch = self.batch_size if isinstance(self.batch_size, int) else usual
        workers = usual_workers() if self.workers is None else self.workers
        return Settings(self.seed, batch, workers, where, DTYPES[self.dtype], self.compile, self.frost)

    @cached_property
    def share(self) -> Part | None:
        """The part of the units that is asked for; None for all of them. Raises ProtocolError where it means none."""
        return None if self.part is None else Part.of(self.part)

    @property
    def frost(self) -> str | None:
        """The folder of frost's photographs, if one is given."""
        return None if self.frost_dir is None else str(self.frost_dir)

    @property
    def attack_list(self) -> str:
        """The attacks as one text: the usual ones where none are named, nothing for `none`."""
        given = self.usual_attacks if self.attacks is None else self.attacks
        text = given if isinstance(given, str) else ",".join(given)
        if "none" in (names := [name.strip() for name in text.split(",")]) and len(names) > 1:
            raise ProtocolError(f"--attacks {text}: none is for no attack at all; leave it, or the others, out")
        return "" if names == ["none"] else text

    def attack_conditions(self, attacks: str, engine: str | None = None) -> tuple[Condition, ...]:
        """Return clean and the attacks of a list, at each radius. Raises ProtocolError for what is not understood."""
        radii = tuple(number(part, "eps") for part in str(self.eps).split(",")) if self.eps is not None else ()
        return parse_conditions(attacks, self.card, eps=radii, norm=self.norm, engine=engine, several=in_two_phases)

    def evaluation_conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of plug-ins' families. Raises ProtocolError for what is not understood."""
        asked = self.evaluations or ()
        parts = re.split(r",(?![^(]*\))", asked) if isinstance(asked, str) else asked
        return tuple(dict.fromkeys(_of_plugin(part) for part in parts if part.strip()))

    def folder(self, name: str) -> Path:
        """Return the run folder. name: of the first checkpoint."""
        return Path(self.out) if self.out is not None else Path("runs") / name

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Leave a mark in the run folder, where it holds a run already and this fails: that run is not what was asked
        for.
        """
        try:
            yield
        except Exception as fault:
            if not follows() and (folder := self._known_folder) is not None:
                RunFiles(folder).note_refusal(f"{type(fault).__name__}: {fault}")
            raise

    @property
    def _known_folder(self) -> Path | None:
        """The run folder, if it is named or follows from a name that a checkpoint has without being read."""
        first = next(iter(self.checkpoints), None)
        if self.out is not None:
            return Path(self.out) if str(self.out).strip() else None
        return None if first is None else self.folder(display_name(Path(str(first).rpartition(":")[2]).stem))

    def arguments(self) -> dict[str, Any]:
        """Return the part of the request that run.json keeps."""
        evaluations = {} if self.evaluations is None else {"evaluations": self.evaluations}
        return {name: getattr(self, name) for name in self.kept} | evaluations


def _of_plugin(text: str) -> Condition:
    kind, _ = split_condition(text)
    if plugged(kind) is None:
        if is_attack(kind) and kind not in (*EVERY_ATTACK, *EVERY_DENSE_ATTACK):
            names = [plugin.name for plugin in declared("families")]
            if not names:
                raise ProtocolError(f"--evaluations {text}: no plug-in brings it; install one, or give --plugin FILE")
            raise ProtocolError(unknown("evaluation", kind, names))
        words = shlex.join(vocabulary_of(kind).command(pattern_of(text), pattern_of))
        raise ProtocolError(f"--evaluations {text}: it takes families of plug-ins; ask for this one by {words}")
    condition: object = vocabulary_of(kind).parse(text)
    if not isinstance(condition, Condition) or (condition.name, kind_of(condition.text)) != (kind, kind):
        raise PluginError(
            f"--evaluations {text}: its plug-in makes {condition!r} of it; expected a condition {kind}(...)"
        )
    return condition


@dataclass(frozen=True, kw_only=True)
class ClassificationRequest(Request):
    """The request of `audit`."""

    task = "classification"
    usual_attacks = "fgsm,pgd"
    usual_batch: ClassVar = {"cpu": 16, "accelerator": 128}  # a ViT on a CPU is fastest while a batch fits its cache
    least_shard = 128
    kept = (
        *("checkpoints", "data_dir", "attacks", "corruptions", "corrupted_dir", "frost_dir", "cams", "region_noise"),
        *("boxes", "masks", "eps", "norm", "engine", "limit", "ids", "shuffle", "data", "model"),
        *("transfer", "keep_adversarials", "setup_check"),
    )

    corrupted_dir: str | Path | None = None
    constants: str = "auto"
    cams: str | Iterable[str] | None = None
    region_noise: str | Sequence[str] | None = None
    faithfulness: str = "abpc"
    stability: bool = False
    watch_attention: bool = False
    transfer: bool = False
    keep_adversarials: bool = False
    keep_misclassified: bool = False
    boxes: str | Path | None = None
    masks: str | Path | None = None
    engine: str | None = None
    shuffle: bool = False
    browse: int = 100
    setup_check: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SegmentationRequest(Request):
    """The request of `segment`."""

    task = "segmentation"
    usual_attacks = "pgd"
    usual_batch: ClassVar = {"cpu": 4, "accelerator": 16}
    least_shard = 32  # images are held decoded at their full size
    kept = (
        *("checkpoints", "data_dir", "masks", "classes", "ignore", "layout", "attacks", "corruptions", "variant"),
        *("frost_dir", "eps", "norm", "limit", "ids", "model", "setup_check"),
    )

    variant: str = "bethgelab"
    protocol: str = "segmentation"
    masks: str | Path | None = None
    classes: str | Path | None = None
    ignore: Sequence[int] = IGNORE
    layout: str | None = None
    examples: int = 4
    setup_check: bool = True

    def arguments(self) -> dict[str, Any]:
        attacks = self.attacks if self.attacks is None or isinstance(self.attacks, str) else ",".join(self.attacks)
        return super().arguments() | {"attacks": attacks}
