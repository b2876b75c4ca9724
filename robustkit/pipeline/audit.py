"""`robustkit.audit`: evaluate classifiers on labelled images under a list of conditions, into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ..results.run import Run
from ..runs.progress import Progress
from .presets import Preset
from .request import ClassificationRequest
from .run import run


def audit(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    data_dir: str | Path,
    attacks: str | Iterable[str] | None = None,
    corruptions: str | Iterable[str] | None = None,
    evaluations: str | Iterable[str] | None = None,
    corrupted_dir: str | Path | None = None,
    constants: str = "auto",
    variant: str = "hendrycks",
    frost_dir: str | Path | None = None,
    cams: str | Iterable[str] | None = None,
    region_noise: str | Sequence[str] | None = None,
    faithfulness: str = "abpc",
    stability: bool = False,
    watch_attention: bool = False,
    transfer: bool = False,
    keep_adversarials: bool = False,
    keep_misclassified: bool = False,
    boxes: str | Path | None = None,
    masks: str | Path | None = None,
    out: str | Path | None = None,
    protocol: str = "standard",
    eps: str | float | None = None,
    norm: str | None = None,
    engine: str | None = None,
    preset: str | Preset | None = None,
    limit: int | None = None,
    ids: str | Path | None = None,
    shuffle: bool = False,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    shard_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    compile: bool = False,
    part: str | None = None,
    ray: str | None = None,
    browse: int = 100,
    setup_check: bool = True,
    data: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Evaluate checkpoints on a data set, clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped; on a finished one it
    computes nothing.

    Args:
        checkpoints: a model spec, or several: a file, `zoo:NAME`, `timm:NAME`, `hf:DIR`, `hf-hub:ORG/NAME`,
            `local-dir:PATH`.
        data_dir: a folder, a zip, `embedded:shapes` (or `-pairs`, `-counterfactual`), `pairs:FOLDER` for two images
            side by side; or a tree of released corrupted images, such as ImageNet-C, which is then evaluated without
            clean images and without attacks.
        attacks: names or canonical conditions, comma-separated or a list: `fgsm,pgd(steps=30,restarts=3)`; `none` for
            none; FGSM and PGD if left out.
        corruptions: sets or names, likewise: `in-c`, `fog,snow(severity=3)`. Images are corrupted after resize and
            crop, as the benchmark's were.
        evaluations: conditions of families that plug-ins bring, `rotation(degrees=30)`.
        corrupted_dir: a tree of released corrupted images to read instead; its files are those of data_dir.
        constants, variant: whose constants and code; see `corruptions.Corruption`. `auto`: by the size of the images.
        frost_dir: frost's photographs, where imagecorruptions is not installed.
        cams: methods whose maps are scored, `agcam,grad-cam(threshold=0.3)`; the controls come by themselves.
        region_noise: regions of clean images that noise drowns, `object,map-top(map=rollout,share=0.3)`, each next to
            the same region at a random place; object and background need boxes or masks.
        faithfulness: `none`, `abpc`, or `all`: also insertion, deletion, ROAD, and how maps change with a redrawn head.
        stability: compare maps under every attack and corruption with those of the clean images.
        watch_attention: record what each head of each layer does, clean and under every attack and corruption.
        transfer: score each checkpoint on the adversarial images that were found for each of the others.
        keep_adversarials: keep adversarial images in the run, as differences in half precision.
        keep_misclassified: score the maps of wrong predictions too.
        boxes, masks: where the objects are; a CSV or a folder of ILSVRC XML files, or a folder of mask images.
        out: the run folder; by default `runs/` and the first checkpoint's name.
        protocol: the name or path of a card.
        eps: radius in the units of the card (pixels of [0, 1] for `standard`), several separated by commas.
        engine: `pyautoattack` or `torchattacks` to run the attacks by that library instead, for cross-checking.
        preset: `quick`, `standard` or `full`: fills attacks, corruptions, cams and limit where they are left out
        (`robustkit list presets`).
        limit, ids: a class-balanced random subset of the samples, or exactly those listed in a file. shuffle: whether
        they come in a random order, a function of the seed, so that what an unfinished run has is a random part.
        batch_size: 16 on a CPU and 128 on an accelerator, if left out; `auto` measures which suits the models best,
        once, when a run begins. Where memory is short, it is halved on the way. shard_size: samples in a unit of work,
        128 (512 on an accelerator for attacks that make their own batches) or the batch size if larger. workers:
        threads that decode images, one for each core if left out. browse: the number of samples whose images are kept
        for the report; fixed when a run begins. dtype, compile: how attacks and the clean pass compute; attacks are
        always scored in float32. setup_check: whether at most 64 clean images are first tried under other
        normalisations and channel orders, so that a better one is flagged. part: `3/64` computes a share of the units
        and makes no summary; `robustkit.merge` does when all parts are there. ray: a Ray cluster to compute on,
        `HOST:PORT` or `auto`; `local` starts one. data: further arguments for `robustkit.data.open_dataset`. model: for
        `robustkit.models.load`. progress: listens to units and samples as they are done. say: takes a line for the
        user.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """
    request = ClassificationRequest(
        checkpoints=[checkpoints] if isinstance(checkpoints, str | Path) else checkpoints,
        data_dir=data_dir,
        attacks=attacks,
        corruptions=corruptions,
        evaluations=evaluations,
        corrupted_dir=corrupted_dir,
        constants=constants,
        variant=variant,
        frost_dir=frost_dir,
        cams=cams,
        region_noise=region_noise,
        faithfulness=faithfulness,
        stability=stability,
        watch_attention=watch_attention,
        transfer=transfer,
        keep_adversarials=keep_adversarials,
        keep_misclassified=keep_misclassified,
        boxes=boxes,
        masks=masks,
        out=out,
        protocol=protocol,
        eps=eps,
        norm=norm,
        engine=engine,
        preset=preset,
        limit=limit,
        ids=ids,
        shuffle=shuffle,
        seed=seed,
        batch_size=batch_size,
        shard_size=shard_size,
        workers=workers,
        device=device,
        dtype=dtype,
        compile=compile,
        part=part,
        ray=ray,
        browse=browse,
        setup_check=setup_check,
        data=data or {},
        model=model or {},
    )
    return run(request, progress, say)
