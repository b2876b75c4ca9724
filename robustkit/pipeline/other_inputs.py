"""`robustkit.series` and `robustkit.text`: evaluate classifiers of time series, and language models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ..results.run import Run
from ..runs.progress import Progress
from .request import Request
from .run import run
from .series import SeriesRequest
from .text import TextRequest


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
