"""`robustkit.segment`: evaluate segmenters on labelled scenes under a list of conditions, into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ..data.scenes import IGNORE
from ..results.run import Run
from ..runs.progress import Progress
from .presets import Preset
from .request import SegmentationRequest
from .run import run


def segment(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    data_dir: str | Path,
    masks: str | Path | None = None,
    classes: str | Path | None = None,
    ignore: Sequence[int] = IGNORE,
    layout: str | None = None,
    attacks: str | Iterable[str] | None = None,
    corruptions: str | Iterable[str] | None = None,
    evaluations: str | Iterable[str] | None = None,
    variant: str = "bethgelab",
    frost_dir: str | Path | None = None,
    out: str | Path | None = None,
    protocol: str = "segmentation",
    eps: str | float | None = None,
    norm: str | None = None,
    preset: str | Preset | None = None,
    limit: int | None = None,
    ids: str | Path | None = None,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    shard_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    compile: bool = False,
    part: str | None = None,
    ray: str | None = None,
    examples: int = 4,
    setup_check: bool = True,
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Evaluate segmenters clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped.

    Args:
        checkpoints: one or several specs as `load_segmenter` takes them.
        data_dir, masks, classes, ignore, layout: the images and the labels of their pixels; see `open_scenes`.
        attacks: names or canonical conditions, `fgsm,pgd,segpgd(steps=10)`; `none` for none; PGD if left out.
        corruptions: sets or names, `segformer-16`, `fog(severity=3)`. They act on the whole image, before windows.
        evaluations: conditions of families that plug-ins bring, `rotation(degrees=30)`.
        variant: whose code; published segmentation results were corrupted with bethgelab's.
        out: the run folder; by default `runs/` and the first checkpoint's name.
        preset: `quick`, `standard` or `full`: fills attacks, corruptions and limit where they are left out.
        eps, norm, limit, ids, seed, workers, device, dtype, compile, part, ray, frost_dir: as in `audit`.
        batch_size: images in a batch, 4 on a CPU and 16 on CUDA if left out or `auto`; only images of the same size
        share a batch. Where memory is short, it is halved on the way. examples: scenes to draw in the report. model:
        further arguments for `load_segmenter`. setup_check, progress, say: as in `audit`.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """
    request = SegmentationRequest(
        checkpoints=[checkpoints] if isinstance(checkpoints, str | Path) else checkpoints,
        data_dir=data_dir,
        masks=masks,
        classes=classes,
        ignore=ignore,
        layout=layout,
        attacks=attacks,
        corruptions=corruptions,
        evaluations=evaluations,
        variant=variant,
        frost_dir=frost_dir,
        out=out,
        protocol=protocol,
        eps=eps,
        norm=norm,
        preset=preset,
        limit=limit,
        ids=ids,
        seed=seed,
        batch_size=batch_size,
        shard_size=shard_size,
        workers=workers,
        device=device,
        dtype=dtype,
        compile=compile,
        part=part,
        ray=ray,
        examples=examples,
        setup_check=setup_check,
        model=model or {},
    )
    return run(request, progress, say)
