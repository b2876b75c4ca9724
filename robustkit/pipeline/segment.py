"""The audit of segmenters: checkpoints, labelled scenes and a list of conditions into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..data.scenes import IGNORE
from ..errors import NothingEvaluated, ProtocolError
from ..evaluations.attacks.condition import parse_conditions
from ..evaluations.corruptions.plan import plan_corruptions
from ..evaluations.subject import Settings
from ..models.classifier import distinct_names
from ..models.dense import Segmenter
from ..models.device import DTYPES, pick_device, unknown_dtype
from ..models.segmenter import load_segmenter
from ..protocol.card import load_card, number
from ..report.refresh import refresh
from ..results.run import Run
from ..runs.manifest import CheckpointEntry
from ..runs.progress import Progress
from ..tasks.segmentation.examples import draw_examples
from ..tasks.segmentation.images import SceneImages, scenes_for
from ..tasks.segmentation.sheet import FILE
from ..tasks.segmentation.subject import SegmenterSubject
from .audit import Silent, listed, pack
from .manifest import describe, prepare
from .schedule import Job, carry_out

DEFAULT_ATTACKS = "pgd"
BATCH_SIZES = {"cpu": 4, "cuda": 16}
SHARD = 32  # images in a unit of work, which are held decoded at their full size


def segment(
    checkpoints: Sequence[str | Path],
    *,
    data_dir: str | Path,
    masks: str | Path | None = None,
    classes: str | Path | None = None,
    ignore: Sequence[int] = IGNORE,
    layout: str | None = None,
    attacks: str | Iterable[str] | None = None,
    corruptions: str | Iterable[str] | None = None,
    variant: str = "bethgelab",
    frost_dir: str | Path | None = None,
    out: str | Path | None = None,
    protocol: str = "segmentation",
    eps: str | float | None = None,
    norm: str | None = None,
    limit: int | None = None,
    ids: str | Path | None = None,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    shard_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
    dtype: str = "float32",
    compile: bool = False,
    examples: int = 4,
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Evaluate segmenters clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished goes on where that one stopped.

    Args:
        checkpoints: specs as `load_segmenter` takes them.
        data_dir, masks, classes, ignore, layout: the images and the labels of their pixels; see `open_scenes`.
        attacks: names or canonical conditions, `fgsm,pgd,segpgd(steps=10)`; `none` for none; PGD if left out.
        corruptions: sets or names, `segformer-16`, `fog(severity=3)`. They act on the whole image, before windows.
        variant: whose code; bethgelab's is the one that published segmentation results were corrupted with.
        out: the run folder; by default `runs/` and the first checkpoint's name.
        eps, norm, limit, ids, seed, workers, device, dtype, compile, frost_dir: as `audit` has them.
        batch_size: images in a batch, 4 on a CPU and 16 on CUDA if left out or `auto`; only images of one size share a
            batch. Where memory is short, it is halved on the way.
        examples: scenes to draw in the report.
        model: further arguments of `load_segmenter`.
        progress: told of units and samples as they are done. say: takes a line for the user.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """
    if any(isinstance(size, int) and size < 1 for size in (batch_size, shard_size, limit)):
        raise ProtocolError(f"batch size {batch_size}, shard size {shard_size}, limit {limit}: expected 1 or more")
    if dtype not in DTYPES:
        raise ProtocolError(unknown_dtype(dtype))
    card = load_card(protocol)
    if card.task != "segmentation":
        raise ProtocolError(f"protocol {card.name} is for {card.task}; robustkit segment takes segmentation")
    asked = listed(attacks, DEFAULT_ATTACKS)
    radii = tuple(number(part, "eps") for part in str(eps).split(",")) if eps is not None else ()
    conditions = parse_conditions(asked, card, eps=radii, norm=norm)
    where = pick_device(device)
    batch = batch_size if isinstance(batch_size, int) else BATCH_SIZES.get(where.type, BATCH_SIZES["cpu"])
    frost = None if frost_dir is None else str(frost_dir)
    settings = Settings(seed, batch, workers, where, DTYPES[dtype], compile, frost)
    models = [load_segmenter(spec, **(model or {})) for spec in checkpoints]
    distinct_names(models)
    scenes = scenes_for([one.identity for one in models], data_dir, masks, classes, ignore, layout)
    scenes = scenes.select(limit, None if ids is None else Path(ids), seed)
    if not len(scenes):
        raise NothingEvaluated(f"{data_dir}: no sample is left to evaluate; loosen --limit or --ids")
    plan = plan_corruptions(corruptions, scenes.dataset, [], preset="imagenet", variant=variant, frost_dir=frost)
    conditions = (*conditions, *plan.conditions)
    run = Run(out if out is not None else Path("runs") / models[0].identity.name)
    arguments = {
        "checkpoints": list(checkpoints),
        "data_dir": data_dir,
        "masks": masks,
        "classes": classes,
        "ignore": list(ignore),
        "layout": layout,
        "attacks": attacks if isinstance(attacks, str) or attacks is None else ",".join(attacks),
        "corruptions": corruptions if isinstance(corruptions, str) or corruptions is None else list(corruptions),
        "variant": variant,
        "frost_dir": frost_dir,
        "eps": eps,
        "norm": norm,
        "limit": limit,
        "ids": ids,
        "model": model or {},
    }
    lines = [f"{one.identity.name}: {note}" for one in models for note in one.identity.notes]
    lines += [*scenes.notes, *plan.lines]
    described = [_describe(one) for one in models]
    dataset = replace(scenes.dataset, class_names=scenes.class_names)
    facts = {"class_names": tuple(scenes.class_names), "unjudged": tuple(scenes.unjudged)}
    begin = partial(
        prepare,
        run,
        described,
        dataset,
        card,
        conditions,
        settings,
        shard_size or max(SHARD, batch),
        arguments,
        plan.inputs,
        scenes.digest,
        facts,
    )

    def tasks() -> list[Job]:
        manifest = run.manifest
        return [
            Job(
                one.identity.name,
                partial(SegmenterSubject, one, card, settings, scenes.unjudged),
                SceneImages(scenes),
                partial(pack, manifest, known, settings),
            )
            for one, known in zip(models, described, strict=True)
        ]

    def finish() -> None:
        (run.path / FILE).unlink(missing_ok=True)  # of other checkpoints, or not wanted any more
        rows = refresh(run)
        if all(row["value"] is None for row in rows if row["metric"] == "miou"):
            raise NothingEvaluated(f"{data_dir}: no pixel of any image counts; check --masks and --ignore")
        if examples:
            draw_examples(run, models, scenes, conditions, card, settings, examples)
            refresh(run)

    carry_out(run, lambda: [*lines, *begin()], tasks, conditions, card, finish, progress or Silent(), say)
    return run


def _describe(model: Segmenter) -> CheckpointEntry:
    return describe(model.identity, model.identity.preprocessing, windows=model.windows)
