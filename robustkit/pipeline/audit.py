"""Evaluate classifiers, segmenters, models of time series and language models: `robustkit.audit` and its siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ..data.scenes import IGNORE
from ..results.summary import Run
from ..runs.progress import Progress
from .presets import Preset
from .request import ClassificationRequest, Request, SegmentationRequest
from .scheduler import run
from .series import SeriesRequest
from .text import TextRequest


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


def series(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    data: str | Path,
    attacks: str | Iterable[str] | None = None,
    disturbances: str | Iterable[str] | None = None,
    evaluations: str | Iterable[str] | None = None,
    out: str | Path | None = None,
    protocol: str = "series",
    eps: str | float | None = None,
    norm: str | None = None,
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
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Evaluate classifiers of time series clean, under attack and disturbed, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped.

    Args:
        checkpoints: one or several: a file, or `zoo:NAME`; any file with `model={"arch": "net.py:make"}`.
        data: a `.ts` file of labelled series, such as X_TEST.ts of the UEA archive.
        attacks: names or conditions, `fgsm,pgd(steps=30)`; `none` for none; FGSM and PGD if left out.
        disturbances: `all`, or conditions: `jitter(sigma=0.5),drop-steps(share=0.2)`.
        eps: radii, in standard deviations of each channel in the training data.
        model: further arguments for the loader: arch, attention, num_classes, mean, std, use_ema, allow_partial.
        evaluations, out, protocol, norm, limit, ids, seed, batch_size, shard_size, workers, device, dtype, compile,
        part, ray, progress, say: as in `audit`.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no series could be evaluated.
    """
    return _carried_out(SeriesRequest, **locals())


def text(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    data: str | Path,
    perturbations: str | Sequence[str] | None = None,
    evaluations: str | Iterable[str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    windows: str | None = None,
    split: str = "test",
    documents: str | None = None,
    out: str | Path | None = None,
    protocol: str = "text",
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
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Evaluate causal language models clean and on changed words, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped.

    Args:
        checkpoints: one or several: `hf:DIR` or `hf-hub:ORG/NAME` with its tokenizer, `zoo:NAME`, or the file of a
            model of words.
        data: a text file, a folder of .txt files, or Brown's .tgz.
        perturbations: conditions, `word-swap(rate=5),typo,case`; `none` for none; AAA at the published rates if left
            out.
        window, stride: tokens that are read at once, and from one window to the next; left out, as the card says.
        windows: `strided`, as in the guide of transformers, or `full`; left out, as the card says.
        split: of Brown: train, validation or test. documents: how a file is split: headings, blank-lines or file.
        model: further arguments for the loader: attention.
        evaluations, out, protocol, limit, ids, seed, batch_size, shard_size, workers, device, dtype, compile, part,
        ray, progress, say: as in `audit`.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no document could be evaluated.
    """
    return _carried_out(TextRequest, **locals())


def _carried_out(
    kind: type[Request],
    *,
    checkpoints: str | Path | Sequence[str | Path],
    data: str | Path,
    model: dict[str, Any] | None,
    progress: Progress | None,
    say: Callable[[str], None] | None,
    **options: Any,
) -> Run:
    """Carry out the request of that kind whose fields are the arguments of `series` or `text`."""
    several = [checkpoints] if isinstance(checkpoints, str | Path) else checkpoints
    return run(kind(checkpoints=several, data_dir=data, model=model or {}, **options), progress, say)
