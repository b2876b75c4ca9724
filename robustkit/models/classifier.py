"""From a model's spec to a classifier that takes pixels in [0, 1] and knows what it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from ..attention.formulas import find_formula
from ..common.determinism import seeded
from ..common.names import IN_MEMORY, held_object
from ..common.plugins import built_in
from ..common.preprocessing import LARGEST_SIDE, LOGITS
from ..errors import CheckpointError, ModelError
from .architecture import build_filled, code_digest, create, is_factory, resample_positions
from .checkpoint import Checkpoint, digest_of_tensors, load_into, read, select_network
from .claims import Allowance, check_arguments, check_classes, guess, rename_layer_scale
from .identity import (
    Classifier,
    ModelIdentity,
    as_features,
    attention_notes,
    display_name,
    give_attention,
    identity_of,
    warn_of_assumptions,
    without_head,
)
from .in_memory import classifier_of
from .input_config import InputOptions, height_and_width, refuse_output, resolve_preprocessing
from .label_map import with_label_map
from .outputs import with_logits
from .specs import EVERY_READER, find, reader_options, reader_specs, takes_formula
from .state_dict import VIT
from .zero_shot import ZERO_SHOT, ZeroShot, kept_rows, prompts_of, refuse_text, with_prompts, word_tower


@takes_formula
def load(
    spec: str | Path | nn.Module,
    *,
    arch: str | None = None,
    attention: str | None = None,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    interpolation: str | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    img_size: int | tuple[int, int] | None = None,
    use_ema: bool = False,
    allow_partial: bool = False,
    pixels: bool = False,
    pretrained: bool = True,
    features: bool = False,
    classes: str | Path | Sequence[str] | None = None,
    prompts: str | Path | Sequence[str] | None = None,
    custom_ops: str | Path | None = None,
    output: str | int | None = None,
    text: str | None = None,
    label_map: str | Path | None = None,
    value_range: Sequence[float] | None = None,
) -> Classifier:
    """Load a classifier from FILE, `zoo:NAME`, `timm:NAME`, `hf:DIR`, `hf-hub:ORG/NAME`, `local-dir:PATH`,
    `onnx:FILE` or `pt2:FILE`.

    The user's options outweigh the file, and the file outweighs guesses; every such choice is in `identity.notes`. An
    attention or normalisation that nobody states is a RobustkitWarning.

    Args:
        spec: as above, or a network in memory, whose normalisation `mean` and `std`, its own config or `pixels` state.
        arch: a timm name, or the user's own `package.module:function` or `file.py:function` that returns a network; one
            with an argument `state_dict` gets the weights and loads them itself, as for a quantised network. Left out,
            it comes from the file's metadata, or is guessed from the tensors of a ViT or DeiT.
        attention: a formula of `robustkit.attention.FORMULAS`; left out, from metadata, else what the architecture has.
        num_classes: outputs of the head; left out, from the file.
        mean: of the channels in [0, 1]; left out, from metadata, else from the architecture's config. The same holds
            for the next four.
        std: of the channels in [0, 1].
        interpolation: of the resize.
        crop_pct: image size over resized size; images of at most 64 pixels are not cropped where neither is about
            images of that size.
        crop_mode: as in timm.
        img_size: builds the network for that size and resamples position embeddings where they differ.
        use_ema: see `robustkit.models.checkpoint`.
        allow_partial: see `robustkit.models.checkpoint`.
        pixels: the network takes pixels in [0, 1] and normalises by itself: mean 0 and std 1.
        pretrained: for `timm:`, False gives random weights.
        features: take the head off, or expect none: what it returns are features (B, D) (`robustkit.models.identity`).
        classes: what the head of a zero-shot model (CLIP, SigLIP) is made of: class names, a file of them, `imagenet`,
            `imagenet-openai` or `cifar10` (`robustkit.models.zero_shot`).
        prompts: its templates, a file of them, `simple` or `clip-80`.
        custom_ops: a library with operators of an ONNX file beyond onnxruntime's own: native code of the user's, which
            runs, as `arch` does.
        output: which of a network's outputs the logits are, by its key, attribute or place (`logits`, 1, `0.main`),
            where an `arch` of the user's own, a graph, or a network in memory returns several. Probabilities, whose
            rows sum to 1, are taken by their logarithms; one output is a logit of the second of two classes
            (`models.outputs`).
        text: form of the prompts: `written`, or `canonical`, in lower case without punctuation.
        label_map: pool the outputs into fewer classes: a TOML file, `objectnet`, `cue-conflict` or `laion-c`
            (`robustkit.models.label_map`).
        value_range: what 0 and 1 stand for in the files of images; left out, the range of their 8 or 16 bits. With it,
            or where the network takes another number of channels than three, files are read as they are
            (`robustkit.data.channels`), and mean and std are of these channels.

    Returns:
        A frozen network of pixels in [0, 1], and what is known about it as `identity`.

    Raises:
        ModelError: one line with the remedy; a CheckpointError where the file is at fault.
        DataError: a label map that is none.

    Example:
        >>> model = robustkit.load("zoo:shapes-vit-quest")
        >>> model.identity.arch, model.identity.attention
        ('vit_tiny_patch16_224', 'quest')
    """
    if pixels:
        if mean is not None or std is not None:
            raise ModelError("pixels means that the network normalises its own input; leave out mean and std")
        mean, std = (0.0,), (1.0,)
    words = [str(w) if isinstance(w, str | Path) else None if w is None else tuple(w) for w in (classes, prompts)]
    rest = words[0], words[1], custom_ops, output, text, value_range
    options = InputOptions(arch, attention, num_classes, mean, std, interpolation, crop_pct, crop_mode, img_size, *rest)
    refuse_output(spec, options, features)
    if custom_ops is not None and (
        isinstance(spec, nn.Module) or "custom_ops" not in (reader_options(str(spec)) or ())
    ):
        label = type(spec).__name__ if isinstance(spec, nn.Module) else spec
        expected = " or ".join(reader_specs("custom_ops")) or "a graph, which this installation reads none of"
        raise ModelError(f"--custom-ops {custom_ops} does not apply to {label}: expected {expected}; leave it out")
    if features and label_map is not None:
        raise ModelError(f"label map {label_map}: features have no classes; leave it out")
    classifier = _loaded(spec, options, use_ema, allow_partial, pretrained, features)
    return classifier if label_map is None else with_label_map(classifier, label_map)


def _loaded(
    spec: str | Path | nn.Module,
    options: InputOptions,
    use_ema: bool,
    allow_partial: bool,
    pretrained: bool,
    features: bool,
) -> Classifier:
    if not isinstance(spec, nn.Module) and not str(spec).startswith((IN_MEMORY, "timm:")):
        classifier = _from_source(str(spec), options, use_ema, allow_partial, features)
        warn_of_assumptions(classifier.identity)
        return classifier
    refuse_text(options, str(spec) if not isinstance(spec, nn.Module) else type(spec).__name__)
    if isinstance(spec, nn.Module):
        return classifier_of(spec, type(spec).__name__, options)
    spec = str(spec)
    if spec.startswith(IN_MEMORY):
        held = held_object(spec)
        return classifier_of(held.network, held.name, options, held.size)
    if options.attention is not None:
        find_formula(options.attention)
    classifier = _from_timm(spec, options, pretrained)
    if features:
        return as_features(classifier)
    _check_head(classifier.identity.num_classes, spec)
    return classifier


def _from_source(spec: str, options: InputOptions, use_ema: bool, allow_partial: bool, features: bool) -> Classifier:
    """Load a file, or a folder in the layout of a library."""
    if options.attention is not None:
        find_formula(options.attention)
    source = find(spec)
    if (use_ema or allow_partial) and (source.transformers or source.reader):
        option = "--use-ema" if use_ema else "--allow-partial"
        raise ModelError(f"{option} does not apply to {spec}, whose weights must all fit; leave it out")
    if source.transformers:
        from . import hugging_face

        return (hugging_face.load_features if features else hugging_face.load_classifier)(source, spec, options)
    if source.reader:
        made: Classifier = EVERY_READER[source.reader].load(source, spec, options, features)
        return made
    checkpoint = read(source.path, use_ema=use_ema)
    checkpoint = replace(checkpoint, metadata={**source.metadata, **checkpoint.metadata})
    if checkpoint.metadata.get("task") == ZERO_SHOT:
        made = _from_towers(source.name, spec, checkpoint, options, features)
        return as_features(made) if features else made
    refuse_text(options, spec)
    return _from_file(source.name, spec, checkpoint, options, allow_partial, features)


def _from_towers(name: str, spec: str, checkpoint: Checkpoint, options: InputOptions, headless: bool) -> Classifier:
    """Load an image tower with a head made by the text tower next to it (`zero_shot`)."""
    metadata, where = checkpoint.metadata, str(checkpoint.path)
    usual, scale = metadata.get("class_names"), metadata.get("logit_scale")
    prompts = prompts_of(options, spec, usual if isinstance(usual, list) else (), headless)
    if not isinstance(scale, int | float) or not 0 < scale < 1e4:
        raise CheckpointError(f"{where}: metadata logit_scale is {scale!r}; expected a number above 0")
    towers = {
        tower: {
            key.removeprefix(f"{tower}."): t for key, t in checkpoint.tensors.items() if key.startswith(f"{tower}.")
        }
        for tower in ("image", "text")
    }
    text = word_tower(metadata.get("text_tower"), towers["text"], where)
    rows = (
        None if prompts is None else kept_rows((checkpoint.sha256, prompts.digest), lambda: prompts.rows(text.encode))
    )
    image_metadata = {key: value for key, value in metadata.items() if key not in ("task", "class_names", "text_tower")}
    image = replace(checkpoint, tensors=towers["image"], metadata=image_metadata)
    tower = _from_file(name, spec, image, replace(options, num_classes=None), False, False)
    if (width := tower.identity.num_classes) != text.head.out_features:
        what = f"the image tower makes {width} features and the text tower {text.head.out_features}"
        raise CheckpointError(f"{where}: {what}; expected as many")
    count = 0 if prompts is None else len(prompts.classes)
    identity = replace(tower.identity, num_classes=count, metadata={**image_metadata, "task": ZERO_SHOT})
    return with_prompts(Classifier(ZeroShot(tower.network, rows, float(scale)), identity), prompts)


def _from_timm(spec: str, options: InputOptions, pretrained: bool) -> Classifier:
    name = spec.removeprefix("timm:")
    if options.arch not in (None, name):
        raise ModelError(f"--arch {options.arch} does not apply to {spec}; leave out one of the two")
    kwargs = {} if options.num_classes is None else {"num_classes": options.num_classes}
    with seeded(torch.device("cpu"), 0):
        network = create(name, kwargs=kwargs, img_size=options.img_size, pretrained=pretrained)
    notes = () if pretrained else (f"{name} has random weights",)
    published = (getattr(network, "pretrained_cfg", None) or {}).get("num_classes")
    if pretrained and published is not None and options.num_classes not in (None, published):
        why = f"{spec} has {published} classes, not {options.num_classes}: the head would be random"
        raise ModelError(f"{why}; leave --num-classes out, or give a checkpoint that was trained on them")
    by_timm = "published" if pretrained else "architecture"
    kind, source = give_attention(network, options.attention, {}, {}, spec, plain="published")
    preprocessing, sources, more = resolve_preprocessing(network, options, {}, spec, config_of=by_timm)
    identity = ModelIdentity(
        name=display_name(name),
        spec=spec,
        path=None,
        sha256=digest_of_tensors(network.state_dict()),
        arch=name,
        attention=kind,
        attention_source=source,
        num_classes=int(network.num_classes),  # type: ignore[arg-type]
        preprocessing=preprocessing,
        preprocessing_source=sources,
        weights="pretrained" if pretrained else "random",
        notes=notes + more,
    )
    return Classifier(network, identity)


def _from_file(
    name: str, spec: str, checkpoint: Checkpoint, options: InputOptions, allow_partial: bool, features: bool
) -> Classifier:
    metadata = checkpoint.metadata
    if metadata.get("task") == "segmentation":
        raise CheckpointError(f"{spec} is a segmenter; evaluate it with robustkit segment, or load_segmenter")
    if (task := metadata.get("task")) in built_in("tasks"):
        raise CheckpointError(f"{spec} is a checkpoint of task {task}; evaluate it with robustkit {task}")
    arch, kwargs, notes = _architecture(checkpoint, options, features)
    size = options.img_size
    if size is None and "img_size" not in kwargs and "input_size" in metadata:
        size = height_and_width(metadata["input_size"], checkpoint.path, LARGEST_SIDE)
    if options.num_classes is not None or "num_classes" in metadata:
        claimed = metadata.get("num_classes") if options.num_classes is None else options.num_classes
        kwargs = {**kwargs, "num_classes": check_classes(claimed, checkpoint.path)}
    if not is_factory(arch) and (channels := _channels_in(checkpoint, arch)) != 3:
        kwargs = {"in_chans": channels, **kwargs}
    with seeded(torch.device("cpu"), 0):  # what --allow-partial leaves at random is the same at every load
        with nullcontext() if is_factory(arch) else Allowance(checkpoint.tensors, checkpoint.path):
            network, filled = build_filled(arch, checkpoint.tensors, kwargs=kwargs, img_size=size)
        checkpoint = checkpoint if filled else select_network(checkpoint, network.state_dict())
        metadata, (tensors, more) = checkpoint.metadata, rename_layer_scale(checkpoint.tensors)
        notes = more + notes
        kind, source = give_attention(network, options.attention, metadata, tensors, spec, **checkpoint.hints)
    notes += attention_notes(kind, source, options.attention, metadata)
    if options.img_size is not None and not filled:
        has_size = "input_size" in metadata
        trained = height_and_width(metadata["input_size"], checkpoint.path, LARGEST_SIDE) if has_size else None
        tensors, more = resample_positions(tensors, network, trained)
        notes += more
    if features and not is_factory(arch):
        tensors = without_head(network, tensors)
    adapted = replace(checkpoint, tensors=tensors)
    partial = () if filled else load_into(network, adapted, allow_partial=allow_partial)
    notes += (f"{arch} put the weights in itself",) if filled else partial
    where, origins, code = str(checkpoint.path), checkpoint.metadata_source, is_factory(arch)
    preprocessing, sources, more = resolve_preprocessing(
        network, options, metadata, where, origins=origins, config_of="code" if code else "architecture"
    )
    notes += more
    timm_classes = None if code else getattr(network, "num_classes", None)
    if not features and timm_classes is not None:
        _check_head(timm_classes, spec)
    classes, outputs = timm_classes or 0, LOGITS
    if not features and not classes:
        zeros = torch.zeros(1, preprocessing.channels, *preprocessing.input_size)
        network, classes, outputs, more = with_logits(network, zeros, options.output, kwargs.get("num_classes"))
        notes += more
    if not features and options.num_classes not in (None, classes):
        raise ModelError(f"{arch} gives {classes} classes, not {options.num_classes}; check --num-classes")
    names = metadata.get("class_names")
    identity = identity_of(
        *(checkpoint, name, spec, arch, (kind, source), partial),
        num_classes=int(classes),
        preprocessing=preprocessing,
        preprocessing_source=sources,
        code_sha256=code_digest(arch) if code else None,
        class_names=tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None,
        notes=checkpoint.notes + notes,
        outputs=outputs,
    )
    return as_features(Classifier(network, identity)) if features else Classifier(network, identity)


def _channels_in(checkpoint: Checkpoint, arch: str) -> int:
    """Return how many channels the first layer in a file takes, by timm's name of it; 3 where it has none."""
    first = timm.models.get_pretrained_cfg_value(arch, "first_conv") if timm.is_model(arch) else None
    names = (f"{first}.weight",) if isinstance(first, str) else ()
    shapes = [tensor.shape for name, tensor in checkpoint.tensors.items() if name.endswith(names)]
    return int(shapes[0][1]) if len(shapes) == 1 and len(shapes[0]) == 4 else 3


def _check_head(classes: int, spec: str) -> None:
    if not classes:
        remedy = "it returns features; evaluate them with robustkit features"
        raise ModelError(f"{spec} has no classifier (num_classes 0): {remedy}")


def _architecture(
    checkpoint: Checkpoint, options: InputOptions, headless: bool
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return (arch, arguments, notes) of the option, else metadata, else a guess; a file never names code."""
    claimed = checkpoint.metadata.get("arch")
    kwargs = checkpoint.metadata.get("arch_kwargs", {})
    if not isinstance(kwargs, dict):
        raise CheckpointError(f"{checkpoint.path}: metadata arch_kwargs is {kwargs!r}; expected a JSON object")
    if options.arch is not None:
        if claimed is None or _base(claimed) == _base(options.arch):
            check_arguments(kwargs, checkpoint.path, any_name=is_factory(options.arch))
            return options.arch, kwargs, ()
        gone = f", with {', '.join(map(str, kwargs))}, which are ignored" if kwargs else ""
        return options.arch, {}, (f"architecture {options.arch} from --arch; the file says {claimed}{gone}",)
    named = isinstance(claimed, str) and timm.is_model(claimed)
    by_script = named and "arch" in checkpoint.metadata_source  # which may have built another network
    if named and (not by_script or _alike(str(claimed), {}, checkpoint) == 1):
        check_arguments(kwargs, checkpoint.path)
        return str(claimed), kwargs, (f"architecture {claimed} from the file's metadata",)
    mostly = by_script and _alike(str(claimed), {}, checkpoint) >= 0.5
    why = "whose tensors have other shapes" if named else "which timm does not have"
    notes = () if claimed is None else (f"the file names its architecture {claimed!r}, {why}",)
    tensors, _ = rename_layer_scale(select_network(checkpoint, VIT).tensors)
    try:
        guessed = guess(tensors, names=checkpoint.names, headless=headless)
    except CheckpointError as error:
        if mostly:  # loading says what differs
            return str(claimed), kwargs, (f"architecture {claimed} from the file's metadata",)
        if not named and (timm_name := _timm_name_in(str(claimed or ""))):
            return timm_name, kwargs, (f"architecture {timm_name} taken from the name {claimed!r} in the file",)
        note = f"; {notes[0]}" if notes else ""
        raise CheckpointError(f"{checkpoint.path}: {error}{note}") from error
    kwargs, more = _of_stated_size(guessed.arguments, checkpoint)
    sizes = {name: kwargs[name] for name in ("depth", "patch_size", "img_size", "num_classes")}
    if mostly and _alike(str(claimed), sizes, checkpoint) == 1:  # the name says more than shapes do: heads, activation
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        return (
            str(claimed),
            sizes,
            (f"architecture {claimed} from the file's metadata, its sizes from the tensors: {listed}",),
        )
    return guessed.arch, kwargs, notes + guessed.notes + more


def _alike(arch: str, kwargs: dict[str, Any], checkpoint: Checkpoint) -> float:
    """Return the share of tensors that a network of timm and a file have in common, in their shapes, of the fewer; 1
    only where neither lacks one. The classifier may have any number of classes, and formulas of attention add tensors.
    """
    try:
        with torch.device("meta"):
            network = timm.create_model(arch, pretrained=False, **kwargs)
            expected = network.state_dict()
    except Exception:  # a network that cannot be built so, or not without values
        return 0.0 if kwargs else 1.0
    heads = tuple(f"{head}." for head in _heads(network))
    tensors, _ = rename_layer_scale(select_network(checkpoint, expected).tensors)
    shapes = {name: each.shape for name, each in expected.items() if not name.startswith(heads)}
    kinds = {re.sub(r"\d+", "*", name) for name in shapes}
    theirs = {name for name in tensors if name in shapes or re.sub(r"\d+", "*", name) in kinds}
    alike = len([name for name, shape in shapes.items() if name in tensors and tensors[name].shape == shape])
    share: float = alike / max(1, min(len(shapes), len(theirs)))
    return share if len(shapes) == len(theirs) == alike else min(share, 0.99)


def _heads(network: nn.Module) -> tuple[str, ...]:
    config: Any = getattr(network, "pretrained_cfg", None) or {}
    heads = config.get("classifier") or ()
    return (heads,) if isinstance(heads, str) else tuple(heads)


def _timm_name_in(name: str) -> str:
    """Return the longest beginning of a name that timm has: `resnet50_quest` -> `resnet50`; empty where none is."""
    parts = re.split(r"(?=[_.-])", name)
    begun = ("".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in begun if timm.is_model(start)), "")


def _base(arch: object) -> str:
    return str(arch) if is_factory(str(arch)) else str(arch).partition(".")[0]


def _of_stated_size(kwargs: dict[str, Any], checkpoint: Checkpoint) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a guess's arguments with the image size that the file states, where it has as many patches; and notes."""
    stated, side, patch = checkpoint.metadata.get("input_size"), kwargs["img_size"], kwargs["patch_size"]
    if not (isinstance(stated, list) and len(stated) == 2 and all(type(s) is int and s > 0 for s in stated)):
        return kwargs, ()
    if stated == [side, side]:
        return kwargs, ()
    if (stated[0] // patch) * (stated[1] // patch) == (side // patch) ** 2:
        size = height_and_width(stated, checkpoint.path, LARGEST_SIDE)
        return {**kwargs, "img_size": size}, (f"images of {size[0]} x {size[1]}, as recorded in the file",)
    conflict = f"the file says images of {stated[0]} x {stated[1]}, and has position embeddings of {side} x {side}"
    return kwargs, (f"{conflict}, which are taken; give --img-size for the other",)
