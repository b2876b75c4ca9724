"""Evaluate classifiers and segmenters: `robustkit.audit` and `segment`, and what the functions of slices share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..common.names import IN_MEMORY, hold
from ..common.options import Option, options_of
from ..data.in_memory import open_held, open_held_scenes
from ..display.progress import progress_shown
from ..errors import DataError, ModelError, ProtocolError, unknown
from ..evaluations.attacks import EVERY_ATTACK, EVERY_DENSE_ATTACK
from ..models.classifier import load
from ..models.identity import display_name
from ..models.in_memory import HeldNetwork, as_it_was
from ..models.segmenter import load_segmenter
from ..protocol.condition import format_value
from ..report.run import Run
from ..runs.progress import Progress
from .request import ClassificationRequest, Request, SegmentationRequest
from .scheduler import run

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from .keywords import AuditOptions, SegmentOptions

F = TypeVar("F", bound=Callable[..., Run])
Checkpoint: TypeAlias = "str | Path | nn.Module"
Checkpoints: TypeAlias = "Checkpoint | Sequence[Checkpoint] | Mapping[str, Checkpoint | Sequence[Checkpoint]]"
Say = Callable[[str], None] | None


def _options(kind: type[Request]) -> list[Option]:
    return [each for each in options_of(kind) if each.name not in ("checkpoints", "data_dir")]


def takes_options_of(kind: type[Request]) -> Callable[[F], F]:
    """Show the options of a request in the signature and the docstring of the function that carries it out."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        first, data, progress, say, _ = signature.parameters.values()
        fields = _options(kind)
        empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
        usual = [None if each.group else empty if each.default is MISSING else each.default for each in fields]
        pairs = zip(fields, usual, strict=True)
        parameters = (inspect.Parameter(o.name, keyword, default=default, annotation=o.keyword) for o, default in pairs)
        every = [first, data, *parameters, progress, say]
        lines = (f"    {each.name}{'=False' * (each.default is True)}: {each.help}" for each in fields if each.help)
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
        vars(function).update(__signature__=signature.replace(parameters=every), request=kind)
        return function

    return decorate


@takes_options_of(ClassificationRequest)
def audit(
    checkpoints: Checkpoints,
    data_dir: Any = "",
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[AuditOptions],
) -> Run:
    """Evaluate checkpoints on a data set, clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped; on a finished one it
    computes nothing.

    Args:
        checkpoints: a model spec, or several: a file, `zoo:NAME`, `timm:NAME`, `hf:DIR`, `hf-hub:ORG/NAME`,
            `local-dir:PATH`; or a network: a `Classifier` or any nn.Module, whose normalisation `model` states as mean
            and std, or as pixels=True if it normalises its own input. Several in a list, or a dict of names; a dict of
            lists has the trainings of methods. `FILE@quest` names an attention formula. Or `predictions:FILE` for
            predictions that another system made, which needs no data_dir.
        data_dir: a folder, a zip, `embedded:shapes` (or `-pairs`, `-counterfactual`), `pairs:FOLDER` for two images
            side by side; images in memory (`robustkit.data.in_memory.open_held`); or a tree of released corrupted
            images, such as ImageNet-C, which is then evaluated without clean images and without attacks.
        progress: True for bars, False for none, None for bars in a notebook; or what listens to units and samples.
        say: takes a line for the user.

    Keyword Args:
        attacks: names or conditions, comma-separated or a list; so are corruptions and cams.
        corruptions: images are corrupted after resize and crop, as the benchmark's were.
        corrupted_dir: its files are those of data_dir.
        constants: see `corruptions.Corruption`. `auto`: by the size of the images.
        variant: see `corruptions.Corruption`.
        boxes: where the objects are; the CSV or the XML files are ILSVRC's.
        masks: likewise.
        eps: in the units of the card (pixels of [0, 1] for `standard`).
        preset: fills attacks, corruptions, cams and limit where they are left out (`robustkit list presets`).
        shuffle: what an unfinished run has is then a random part.
        batch_size: 16 on a CPU, and on an accelerator 128 (up to 1024 for images below 224 x 224), if left out; `auto`
            measures which suits the models best, once, when a run begins. Where memory is short, it is halved on the
            way.
        shard_size: 128 (up to 1024 on an accelerator, by its memory) or the batch size if larger.
        browse: fixed when a run begins.
        dtype: how attacks and the clean pass compute.
        compile: likewise.
        setup_check: whether at most 64 clean images are first tried under other normalisations and channel orders, so
            that a better one is flagged.
        evidence: whether it is looked, once the attacks have ended, if gradients misled them: `quick` on so many
            samples, and by so many checks, that it takes at most a quarter of the attacks' passes; `full` on 32.
        part: `robustkit.merge` makes the summary when all parts are there.
        ray: `HOST:PORT` or `auto`; `local` starts a cluster.
        data: further arguments for `robustkit.data.open_dataset`. Each may also stand alone, such as labels_csv.
        model: further arguments for `robustkit.load`. Each may also stand alone, such as mean, std or pixels.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.

    Example:
        >>> run = robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", attacks="none", limit=8, out="runs/clean")
        >>> run.results().query("metric == 'top1'")[["condition", "n"]].values.tolist()
        [['clean', 8]]
    """
    return carried_out(ClassificationRequest, checkpoints, data_dir, options, progress, say)


@takes_options_of(SegmentationRequest)
def segment(
    checkpoints: Checkpoints,
    data_dir: Any,
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[SegmentOptions],
) -> Run:
    """Evaluate segmenters clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped. All else is as in `audit`.

    Args:
        checkpoints: one or several specs as `load_segmenter` takes them, or networks, as `audit` takes them.
        data_dir: the images; see `open_scenes`; or images and masks in memory
            (`robustkit.data.in_memory.open_held_scenes`).

    Keyword Args:
        masks: the labels of the pixels; see `open_scenes`, as for classes, ignore and layout.
        corruptions: act on the whole image, before windows.
        batch_size: images in a batch, 4 on a CPU and 16 on CUDA if left out or `auto`; only images of the same size
            share a batch. Where memory is short, it is halved on the way.
        model: further arguments for `load_segmenter`.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.

    Example:
        >>> run = robustkit.segment(
        ...     "zoo:shapes-segmenter-quest", "embedded:shapes", attacks="none", limit=2, out="runs/segment"
        ... )
        >>> "miou" in set(run.results().metric)
        True
    """
    return carried_out(SegmentationRequest, checkpoints, data_dir, options, progress, say)


def carried_out(
    kind: type[Request],
    checkpoints: Checkpoints,
    data_dir: Any,
    options: Mapping[str, Any],
    progress: Progress | bool | None,
    say: Say,
) -> Run:
    """Carry out a request. Raises TypeError for an option that it does not have."""
    values, tables = grouped(kind, options), dict[str, Any]()
    sizes: dict[str, int] = {}
    if isinstance(checkpoints, Mapping) and any(isinstance(each, list | tuple) for each in checkpoints.values()):
        several = {name: [*each] if isinstance(each, list | tuple) else [each] for name, each in checkpoints.items()}
        sizes = {name: len(each) for name, each in several.items()}
        specs_only = all(isinstance(one, str | Path) for each in several.values() for one in each)
        by_name = {f"{name}-{place}": one for name, each in several.items() for place, one in enumerate(each)}
        checkpoints = [*by_name.values()] if specs_only else by_name
    if hasattr(values.get("metadata"), "keys"):  # a DataFrame, or a dict of columns
        tables, values["metadata"] = {_TABLE: values["metadata"]}, f"{IN_MEMORY}{_TABLE}"
    with (
        hold(tables),
        in_memory(kind, checkpoints, data_dir, values.get("model") or {}) as (specs, place),
        progress_shown(progress) as listener,
    ):
        if sizes:
            rest = iter(specs)
            values["method"] = {name: [next(rest) for _ in range(size)] for name, size in sizes.items()}
        return run(kind(checkpoints=specs, data_dir=place, **values), listener, say)


_TABLE = "metadata of samples"  # no network has such a name


def grouped(kind: type[Request], options: Mapping[str, Any], only: Sequence[str] = ()) -> dict[str, Any]:
    """Return keywords as fields of a request: entries of its groups, such as mean, inside them. only: its fields that
    may be given. Raises TypeError for any other."""
    fields = {each.name: each for each in _options(kind) if not only or each.name in only}
    entries = {entry.name: each.name for each in fields.values() if each.group for entry in options_of(each.group)}
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name in entries and name not in fields:
            values[entries[name]] = {**values.get(entries[name], {}), **(options.get(entries[name]) or {}), name: value}
        elif name not in fields:
            raise TypeError(unknown("keyword", name, {*fields, *entries}))
        elif value is not None or fields[name].group is None:
            if fields[name].group and not isinstance(value or {}, Mapping):
                images = ": images come without a name, audit(net, (images, labels))" if name == "data" else ""
                raise TypeError(f"{name}={type(value).__name__}: expected a dict of options{images}")
            values[name] = {**(value or {}), **values.get(name, {})} if fields[name].group else value
    attacks = values.get("attacks")
    several = attacks if isinstance(attacks, list | tuple) else [attacks]
    if any(hasattr(each, "threat") for each in several):
        values["attacks"] = [attack_text(each) if hasattr(each, "threat") else each for each in several]
    if isinstance(eps := values.get("eps"), list | tuple):
        values["eps"] = ",".join(map(str, eps))
    if (dtype := str(values.get("dtype"))).startswith("torch."):
        values["dtype"] = dtype.removeprefix("torch.")
    return values


def attack_text(attack: Any) -> str:
    """Return the text of an attack of the package `attacks`, all of its parameters included. Raises ProtocolError for
    one that a text cannot name."""
    kinds = (*EVERY_ATTACK.items(), *EVERY_DENSE_ATTACK.items())
    name = next((name for name, kind in kinds if kind is type(attack)), "")
    threat = attack.threat
    if not name or threat != type(threat)(threat.norm, threat.eps):
        remedy = "give an attack of `attacks` with eps and norm alone as its threat, or a text; register your own"
        raise ProtocolError(f"attacks={attack!r}: {remedy} (robustkit list plugins)")
    settings = {field.name: getattr(attack, field.name) for field in fields(attack) if field.name != "threat"}
    stated = {"eps": threat.eps, "norm": threat.norm} | {k: v for k, v in settings.items() if v not in (None, "")}
    return f"{name}({','.join(f'{key}={format_value(value)}' for key, value in stated.items())})"


@contextmanager
def in_memory(
    kind: type[Request], checkpoints: Checkpoints, data: Any, model: Mapping[str, Any]
) -> Iterator[tuple[list[str | Path], str | Path]]:
    """Give specs of checkpoints and data, which stand for objects in memory inside; networks are then as they were.
    model: how files in a dict are loaded.
    """
    names: list[str] = list(checkpoints) if isinstance(checkpoints, Mapping) else []
    several: list[Any] = [checkpoints]
    if isinstance(checkpoints, Mapping):
        several = list(checkpoints.values())
    elif isinstance(checkpoints, Sequence) and not isinstance(checkpoints, str):
        several = list(checkpoints)
    if not several:
        raise ProtocolError("no checkpoint; expected one or more")
    for each in several:
        if not isinstance(each, str | Path) and (isinstance(each, type) or not hasattr(each, "state_dict")):
            kind_of = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            hint = ": a state dict is loaded into its network first" if hasattr(each, "device") else ""
            raise ModelError(f"a checkpoint is {kind_of}; expected a text, a path or an nn.Module{hint}")
    if kind not in (ClassificationRequest, SegmentationRequest) and not isinstance(data, str | Path):
        raise DataError(f"data is {type(data).__name__}; expected a path: only audit and segment take data in memory")
    if isinstance(data, str | Path) and not names and all(isinstance(each, str | Path) for each in several):
        yield several, data
        return
    objects: dict[str, Any] = {}
    held = None
    if not isinstance(data, str | Path):
        held = (open_held_scenes if kind is SegmentationRequest else open_held)(data)
    size = getattr(getattr(held, "source", None), "size", None)
    specs: list[str | Path] = []
    for number, checkpoint in enumerate(several):
        if isinstance(checkpoint, str | Path) and not names:
            specs.append(checkpoint)
            continue
        loads = load_segmenter if kind is SegmentationRequest else load
        network = loads(checkpoint, **model) if isinstance(checkpoint, str | Path) else checkpoint
        name = display_name(names[number] if names else type(network).__name__)
        name = name if name not in objects else f"{name}-{number + 1}"
        objects[name] = HeldNetwork(network, name, size)
        specs.append(f"{IN_MEMORY}{name}")
    place = "data" if "data" not in objects else "images"
    objects |= {} if held is None else {place: held}
    networks = [each.network for each in objects.values() if isinstance(each, HeldNetwork)]
    with hold(objects), as_it_was(networks):
        yield specs, data if isinstance(data, str | Path) else f"{IN_MEMORY}{place}"
