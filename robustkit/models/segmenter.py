"""From a model's spec to a segmenter that takes pixels in [0, 1] of any size and knows what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..attention.formulas import find_formula
from ..common.determinism import seeded
from ..common.names import IN_MEMORY, held_object
from ..common.preprocessing import LARGEST_SIDE, PROBABILITIES, Preprocessing
from ..data.class_names import printable
from ..errors import CheckpointError, ModelError
from .architecture import build, code_digest, is_factory, resample_positions
from .checkpoint import Checkpoint, load_into, read, select_network
from .claims import Allowance, check_arguments, guess
from .dense import (
    PUBLIC_EPS,
    Dense,
    Segmenter,
    WindowOptions,
    Windows,
    asked_windows,
    build_segmenter,
    count_classes,
    resolve_windows,
    sides,
)
from .identity import attention_notes, give_attention, identity_of, warn_of_assumptions
from .in_memory import described
from .input_config import InputOptions, height_and_width, refuse_output, resolve_preprocessing
from .outputs import kind_of_outputs, notes_on_outputs, with_one_output, with_two_classes
from .specs import find, takes_formula
from .state_dict import VIT

_PROBE = 128  # side of the image that is shown to count the classes of a network


def is_segmenter(spec: str | Path) -> bool:
    """Whether a file's tensors are those of a Segmenter. Raises CheckpointError for what is not a set of weights."""
    spec = str(spec)
    if spec.startswith("timm:"):
        return False
    source = find(spec)
    if source.reader and source.path.is_dir():
        return False
    if source.transformers:
        from .hugging_face import segments

        return segments(source)
    return _as_segmenter(read(source.path)) is not None


def _as_segmenter(checkpoint: Checkpoint) -> Checkpoint | None:
    """Return a checkpoint with a Segmenter's tensors alone; None where it has none."""
    held = checkpoint.tensors if checkpoint.held is None else checkpoint.held.tensors
    if not any(f".{part}." in f".{name}" for part in ("encoder.patch_embed", "decoder") for name in held):
        return None
    selection = select_network(checkpoint, {f"encoder.{name}": None for name in VIT})
    parts = [any(name.startswith(part) for name in selection.tensors) for part in ("encoder.patch_embed.", "decoder.")]
    return selection if all(parts) else None


@takes_formula
def load_segmenter(
    spec: str | Path | nn.Module,
    *,
    arch: str | None = None,
    attention: str | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    window: int | tuple[int, int] | None = None,
    stride: int | tuple[int, int] | None = None,
    short_side: int | None = None,
    resize: str | None = None,
    use_ema: bool = False,
    allow_partial: bool = False,
    pixels: bool = False,
    output: str | int | None = None,
) -> Segmenter:
    """Load a segmenter from FILE, `zoo:NAME`, `hf:DIR`, `hf-hub:ORG/NAME` or `local-dir:PATH`.

    A segmenter of transformers (SegFormer, DPT, UperNet) is a folder that says all itself. A Segmenter (Strudel et al.
    2021) is recognised by its tensors, ours by its metadata too.

    Args:
        spec: as above, or a network, as `robustkit.load` takes it.
        arch: for a Segmenter the timm name of its encoder; else the user's own `package.module:function` or
            `file.py:function` that returns a network of normalised images (B, 3, H, W) to logits, such as
            `torchvision.models.segmentation:fcn_resnet50`.
        attention: a formula; left out, from metadata, else what the architecture has.
        num_classes: as of `robustkit.load`.
        mean: as of `robustkit.load`.
        std: as of `robustkit.load`.
        window: side, or (height, width), of the windows that the network sees; a Segmenter's is the size that it was
            trained at, other networks see the whole image if it is left out.
        stride: from one window to the next.
        short_side: images are resized to it before windows are cut; if left out, it is what the file says, or they keep
            their size. Images smaller than a window are enlarged to it.
        resize: `ade20k` to resize images before that, as the public code's data pipeline does for ADE20K.
        use_ema: as of `robustkit.load`.
        allow_partial: as of `robustkit.load`.
        pixels: as of `robustkit.load`.
        output: as of `robustkit.load`.

    Returns:
        A frozen network of pixels in [0, 1] of any size.

    Raises:
        ModelError: one line with the remedy; a CheckpointError where the file is at fault.

    Example:
        >>> segmenter = robustkit.load_segmenter("zoo:shapes-segmenter-quest")
        >>> segmenter(torch.rand(1, 3, 80, 96)).shape
        torch.Size([1, 11, 80, 96])
    """
    if pixels:
        if mean is not None or std is not None:
            raise ModelError("pixels means that the network normalises its own input; leave out mean and std")
        mean, std = (0.0,) * 3, (1.0,) * 3
    options = InputOptions(arch, attention, num_classes, mean, std, output=output)
    refuse_output(spec, options)
    tiling = WindowOptions(window, stride, short_side, resize)
    if isinstance(spec, nn.Module):
        return _in_memory(spec, type(spec).__name__, options, tiling)
    spec = str(spec)
    if spec.startswith(IN_MEMORY):
        return _in_memory(held_object(spec).network, held_object(spec).name, options, tiling)
    if attention is not None:
        find_formula(attention)
    if spec.startswith("timm:"):
        raise ModelError(f"{spec}: timm provides classifiers only; give the file of a segmenter")
    source = find(spec)
    if source.transformers:
        from . import hugging_face

        made = hugging_face.transformers_segmenter(source, spec, options, tiling)
    else:
        checkpoint = read(source.path, use_ema=use_ema)
        segmenter = None if is_factory(arch or "") else _as_segmenter(checkpoint)
        if segmenter is None and arch is None:
            first = ", ".join(list(checkpoint.tensors)[:3])
            raise CheckpointError(
                f"{checkpoint.path}: not a Segmenter (its tensors begin {first}); expected encoder.* and decoder.*, or "
                "give --arch FILE.py:FUNCTION; a classifier is for robustkit audit"
            )
        file = segmenter or checkpoint
        file = replace(file, metadata={**source.metadata, **file.metadata})
        made = (_segmenter if segmenter else _factory)(file, source.name, spec, options, tiling, allow_partial)
    warn_of_assumptions(made.identity)
    return made


def _in_memory(network: nn.Module, name: str, options: InputOptions, tiling: WindowOptions) -> Segmenter:
    if isinstance(network, Segmenter):
        return network
    windows, notes = asked_windows(tiling)
    size = windows.size if windows else (_PROBE, _PROBE)
    identity = described(network, name, replace(options, img_size=size))
    dense, outputs, more = _dense(network, windows, size, options)
    identity = replace(
        identity,
        num_classes=count_classes(dense, size),
        outputs=outputs,
        preprocessing=replace(identity.preprocessing, crop_mode="none", crop_pct=1.0, interpolation="bilinear"),
        preprocessing_source={key: identity.preprocessing_source[key] for key in ("mean", "std")},
        notes=(*identity.notes, *notes, *more),
    )
    return Segmenter(dense, identity)


def _dense(
    network: nn.Module, windows: Windows | None, size: tuple[int, int], options: InputOptions
) -> tuple[Dense, str, tuple[str, ...]]:
    """Return a network of the user's own as one of images of any size, what it returns, and notes."""
    zeros = torch.zeros(1, 3, *size)
    network, first, notes = with_one_output(network, zeros, options.output, options.num_classes, ndim=4)
    kind = kind_of_outputs(network, first, zeros)
    network, kind, more = (
        with_two_classes(network, kind) if first.shape[1] == 1 else (network, kind, notes_on_outputs(kind))
    )
    dense = Dense(network, windows)
    dense.of_probabilities = kind == PROBABILITIES
    return dense, kind, (*notes, *more)


def _segmenter(
    checkpoint: Checkpoint, name: str, spec: str, options: InputOptions, tiling: WindowOptions, allow_partial: bool
) -> Segmenter:
    metadata, ours = checkpoint.metadata, checkpoint.metadata.get("task") == "segmentation"
    held, notes = checkpoint.tensors, tuple[str, ...]()
    tensors = {key: tensor for key, tensor in held.items() if not re.match(r"encoder\.head(_dist)?\.", key)}
    if left := len(held) - len(tensors):  # which the public encoders still carry, and a Segmenter does not use
        notes += (f"{left} tensors of the encoder's classifier ignored",)
    classes = _classes(checkpoint, tensors)
    if options.num_classes not in (None, classes):
        raise ModelError(f"{spec} gives {classes} classes, not {options.num_classes}; check --num-classes")
    arch, kwargs, trained, more = _encoder(checkpoint, tensors, options)
    notes += more
    size = trained if tiling.window is None else sides(tiling.window, "--window")
    linear = "decoder.head.weight" in tensors
    depth = len({match[1] for key in tensors if (match := re.match(r"decoder\.blocks\.(\d+)\.", key))})
    decoder_kwargs = metadata.get("decoder_kwargs", {})
    decoder_kwargs = check_arguments(decoder_kwargs, checkpoint.path, any_name=True, name="decoder_kwargs")
    if not linear and "heads" not in decoder_kwargs:
        notes += ("the decoder is assumed to have heads of size 64: the tensors do not determine their number",)
    with seeded(torch.device("cpu"), 0):  # what --allow-partial leaves at random is the same at every load
        with Allowance(tensors, checkpoint.path):
            eps, decoder = None if ours else PUBLIC_EPS, "linear" if linear else "mask_transformer"
            of_decoder = {} if linear else {**decoder_kwargs, "depth": depth}
            built: dict[str, Any] = {"arch_kwargs": kwargs, "decoder_kwargs": of_decoder, "norm_eps": eps}
            network = build_segmenter(arch, classes, window=size, decoder=decoder, **built)
        kind, source = give_attention(network, options.attention, metadata, tensors, spec, **checkpoint.hints)
    notes += attention_notes(kind, source, options.attention, metadata)
    encoder, more = resample_positions(_part(tensors, "encoder."), network.encoder, trained, sure=True)
    tensors |= {f"encoder.{key}": tensor for key, tensor in encoder.items()}
    notes += more
    partial = load_into(network, replace(checkpoint, tensors=tensors), allow_partial=allow_partial)
    where, origins = str(checkpoint.path), checkpoint.metadata_source
    preprocessing, sources, _ = resolve_preprocessing(network.encoder, options, metadata, where, origins=origins)
    windows, more = resolve_windows(size, tiling, metadata, ours, metadata.get("stride") if size == trained else None)
    rest = _rest_of(checkpoint, classes, preprocessing, sources) | {"notes": checkpoint.notes + notes + partial + more}
    identity = identity_of(checkpoint, name, spec, arch, (kind, source), partial, **rest)
    return Segmenter(Dense(network, windows), identity)


def _factory(
    checkpoint: Checkpoint, name: str, spec: str, options: InputOptions, tiling: WindowOptions, allow_partial: bool
) -> Segmenter:
    arch = str(options.arch)
    if not is_factory(arch):
        raise ModelError(f"--arch {arch}: {spec} is not a Segmenter; expected your own FILE.py:FUNCTION")
    kwargs: dict[str, Any] = {"weights": None, "weights_backbone": None}  # torchvision would fetch these
    if options.num_classes is not None:
        kwargs["num_classes"] = options.num_classes
    with seeded(torch.device("cpu"), 0):
        network = build(arch, kwargs=kwargs, img_size=None)
    expected = network.state_dict()
    checkpoint = select_network(checkpoint, expected)
    metadata = checkpoint.metadata
    held, notes = checkpoint.tensors, tuple[str, ...]()
    tensors = {key: held[key] for key in held if key in expected or not key.startswith("aux_classifier.")}
    if left := len(held) - len(tensors):
        notes += (f"{left} tensors of the auxiliary classifier ignored",)
    kind, source = give_attention(network, options.attention, metadata, tensors, spec, **checkpoint.hints)
    notes += attention_notes(kind, source, options.attention, metadata)
    partial = load_into(network, replace(checkpoint, tensors=tensors), allow_partial=allow_partial)
    notes += partial
    windows, more = asked_windows(tiling)
    notes += more
    size = windows.size if windows else (_PROBE, _PROBE)
    dense, outputs, more = _dense(network, windows, size, options)
    classes = count_classes(dense, size)
    notes += more
    if options.num_classes not in (None, classes):
        raise ModelError(f"{arch} gives {classes} classes, not {options.num_classes}; check --num-classes")
    sized, where, origins = replace(options, img_size=size), str(checkpoint.path), checkpoint.metadata_source
    preprocessing, sources, more = resolve_preprocessing(
        network, sized, metadata, where, origins=origins, config_of="code"
    )
    rest = _rest_of(checkpoint, classes, preprocessing, sources) | {"notes": checkpoint.notes + notes + more}
    rest["outputs"] = outputs
    identity = identity_of(checkpoint, name, spec, arch, (kind, source), partial, code_sha256=code_digest(arch), **rest)
    return Segmenter(dense, identity)


def _rest_of(
    checkpoint: Checkpoint, classes: int, preprocessing: Preprocessing, sources: Mapping[str, str]
) -> dict[str, Any]:
    class_names = checkpoint.metadata.get("class_names")
    names = tuple(printable(str(name)) for name in class_names) if isinstance(class_names, list) else ()
    return {
        "num_classes": classes,
        "class_names": names if len(names) == classes else None,
        "preprocessing": replace(preprocessing, crop_mode="none", crop_pct=1.0, interpolation="bilinear"),
        "preprocessing_source": {name: sources[name] for name in ("mean", "std")},  # the rest is of windows
    }


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _classes(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> int:
    for key, dimension in (("decoder.cls_emb", 1), ("decoder.head.weight", 0)):
        if key in tensors and tensors[key].ndim > dimension:
            return int(tensors[key].shape[dimension])
    inside = ", ".join(key for key in tensors if key.startswith("decoder."))[:80] or "none"
    what = "its decoder is not a mask transformer (decoder.cls_emb) or linear (decoder.head.weight)"
    raise CheckpointError(f"{checkpoint.path}: {what}; decoder tensors: {inside}")


def _encoder(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], options: InputOptions
) -> tuple[str, dict[str, Any], tuple[int, int], tuple[str, ...]]:
    metadata = checkpoint.metadata
    claimed, kwargs, size = metadata.get("arch"), metadata.get("arch_kwargs", {}), metadata.get("input_size")
    if isinstance(claimed, str) and timm.is_model(claimed) and size is not None and options.arch in (None, claimed):
        kwargs, note = check_arguments(kwargs, checkpoint.path), f"encoder {claimed} from the file's metadata"
        return claimed, kwargs, height_and_width(size, checkpoint.path, LARGEST_SIDE), (note,)
    encoder = _part(tensors, "encoder.")
    try:
        guessed = guess({**encoder, "head.weight": torch.empty(1, 1)}, names=checkpoint.names)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: encoder: {error}") from error
    kwargs = {key: value for key, value in guessed.arguments.items() if key not in ("num_classes", "img_size")}
    notes = tuple(note.replace(", 1 classes", "").replace("architecture", "encoder") for note in guessed.notes)
    side = guessed.arguments["img_size"]
    return options.arch or guessed.arch, kwargs, (side, side), notes
