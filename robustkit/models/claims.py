"""What a file says about its network: within bounds, the architecture that its shapes tell, and what a script left.

A few bytes of metadata could ask for more than any memory holds. Only what shapes really show is used; what they cannot
show (number of heads, activation, normalisation of pixels) is taken from the family's convention, with a note. No other
family is guessed.

What a training script left next to the weights, and what names say, is a claim about the set-up, and never proof. Each
has a source, which run.json keeps: `metadata` where the file states the value, `trainer` where the arguments are those
of a known script and the script fixes the value, `name` where only a name says so. The scripts, read in their public
code: DeiT and what is built on it (QUEST, Elliptical), MAE, BEiT, ConvNeXt, DINO and iBOT, the references of
torchvision, and timm's train.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import timm
from torch import Tensor, device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..attention.registry import FORMULAS
from ..common.preprocessing import IMAGENET, INCEPTION, MOST_CHANNELS, is_real
from ..errors import CheckpointError, ModelError

MOST_CLASSES = 1_000_000
_NUMBER, _TEXT, _LIST = 65_536, 64, 64  # the largest number, the longest text and list of an argument
_TIMES, _ROOM = 4, 64_000_000  # numbers that may be allocated: this multiple of the file's, and at least this many
_TENSORS, _SOME = 20, 5000  # tensors, likewise; many are temporary
_WORDS = """
    img_size img_scale crop_scale multi_conv patch_size in_chans num_classes embed_dim embed_dims depth depths dims
    num_heads mlp_ratio mlp_ratios hidden_size hidden_sizes layers channels widths width width_list depth_list
    num_blocks heads base_dim base_dims base_width stem_width cardinality groups group_size growth_rate block_config
    num_init_features kernel_size kernels window_size window_sizes patch_sizes stages stride sr_ratios reduction
    output_stride expand_ratio global_pool class_token reg_tokens num_reg_tokens pos_embed no_embed_class fc_norm
    use_fc_norm pre_norm final_norm pool_include_prefix qkv_bias qkv_fused qk_norm proj_bias attn_type attn_layer
    mlp_layer norm_layer norm_layers act_layer aa_layer conv_layer embed_norm_layer scale_attn_norm scale_mlp_norm
    scale_attn_inner scale_mlp swiglu_mlp swiglu_align_to stem_type replace_stem_pool block_reduce_first
    down_kernel_size avg_down downsample_norm distilled dynamic_img_size dynamic_img_pad strict_img_size use_grn
    use_abs_pos_emb use_rel_pos_bias use_shared_rel_pos_bias use_rot_pos_emb use_pre_transformer_norm
    use_post_transformer_norm use_post_norm use_mlp_head attn_pool_num_heads attn_pool_mlp_ratio rope_type
    rope_temperature rope_mixed_mode rope_rotate_half rope_grid_offset rope_grid_indexing ref_feat_shape head_init_scale
    patch_norm ape conv_mlp conv_bias ls_init_value init_values layer_scale_init_values res_scale_init_values norm_eps
    eps momentum drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate drop_block_rate
    weight_init fix_init zero_init_last dropout drop_path
"""
_BUILT = frozenset(_WORDS.split())
"""Arguments of timm's architectures that say what is built. None of them fetches or runs anything."""


def check_arguments(
    kwargs: object, where: Path | str, *, any_name: bool = False, name: str = "arch_kwargs"
) -> dict[str, Any]:
    """Return arguments by name; CheckpointError or ModelError for what none can be. any_name: of a user's function."""
    if not isinstance(kwargs, dict):
        raise CheckpointError(f"{where}: metadata {name} is {kwargs!r}; expected a JSON object")
    for key, value in kwargs.items():
        if key not in _BUILT and not any_name:
            remedy = "expected only the shape of the network; build it yourself and give --arch FILE.py:FUNCTION"
            raise ModelError(f"{where}: {name} holds {str(key)[:80]}; {remedy}")
        if not _is_shape(value):
            text = repr(value)[:80]
            raise ModelError(f"{where}: {name} has {key} = {text}; expected a text, or numbers up to {_NUMBER}")
    return kwargs


def check_classes(claimed: object, where: Path | str) -> int:
    if not isinstance(claimed, int) or not 0 <= claimed <= MOST_CLASSES:
        text, most = repr(claimed)[:80], MOST_CLASSES
        raise CheckpointError(f"{where}: metadata num_classes is {text}; expected a whole number of at most {most}")
    return claimed


def _is_shape(value: object, depth: int = 2) -> bool:
    if isinstance(value, list):
        return depth > 0 and len(value) <= _LIST and all(_is_shape(each, depth - 1) for each in value)
    if isinstance(value, str):
        return len(value) <= _TEXT
    return value is None or (isinstance(value, int | float) and abs(value) <= _NUMBER)  # false for NaN


class Allowance(TorchDispatchMode):
    """While entered, a network may be a few times as large as the file's tensors; CheckpointError before more."""

    def __init__(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.held, self.where = sum(tensor.numel() for tensor in tensors.values()), where
        self.numbers = _TIMES * self.held + _ROOM
        self.tensors = _TENSORS * len(tensors) + _SOME

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(argument.name == "device" for argument in func._schema.arguments):
            self._count(func(*args, **{**kwargs, "device": device("meta")}).numel())
            self.tensors -= 1
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        held = {part.untyped_storage().data_ptr() for part in tree_leaves(args) if isinstance(part, Tensor)}
        parts = (part for part in tree_leaves(made) if isinstance(part, Tensor))
        self._count(sum(part.numel() for part in parts if part.untyped_storage().data_ptr() not in held))
        return made

    def _count(self, numbers: int) -> None:
        self.numbers -= numbers
        if self.numbers < 0 or self.tensors < 0:
            raise CheckpointError(
                f"{self.where}: its metadata describe a network many times larger than the {self.held} numbers it "
                "holds;"
                " refused, since it would exhaust the memory; check the file, or give --arch"
            )


SIZES = {192: ("tiny", 3), 384: ("small", 6), 768: ("base", 12), 1024: ("large", 16), 1280: ("huge", 16)}
_TOP = r"(cls|dist|reg)_token|pos_embed|patch_embed\.proj\.(weight|bias)|(norm|fc_norm|head|head_dist)\.(weight|bias)"
_BLOCK = (
    r"blocks\.(\d{1,4})\.(norm[12]\.(weight|bias)|attn\.(qkv|proj|q_norm|k_norm)\.(weight|bias)|ls[12]\.gamma"
    r"|attn\.(qk_scale|q_scale|k_scale)|mlp\.fc[12]\.(weight|bias))"
)
_FAMILY = re.compile(f"{_TOP}|{_BLOCK}")
REMEDY = "give --arch NAME (a timm name, or your own FILE.py:FUNCTION)"


def rename_layer_scale(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return tensors with the LayerScale names of DeiT-3's files (`gamma_1`) as timm has them (`ls1.gamma`); notes."""
    new = {re.sub(r"^(blocks\.\d+)\.gamma_([12])$", r"\1.ls\2.gamma", name): tensor for name, tensor in tensors.items()}
    changed = sum(name not in tensors for name in new)
    note = f"{changed} LayerScale tensors mapped from gamma_1, gamma_2 to ls1.gamma, ls2.gamma"
    return new, (note,) if changed else ()


class Guess(NamedTuple):
    """arch: the timm name. arguments: what `timm.create_model` needs to match the tensors exactly."""

    arch: str
    arguments: dict[str, Any]
    notes: tuple[str, ...]


def guess(tensors: Mapping[str, Tensor], *, names: Sequence[str] = (), headless: bool = False) -> Guess:
    """Return what a ViT/DeiT state_dict is of. CheckpointError for other networks and, unless `headless`, without a
    classifier. names: of the model and its file; one that mentions DeiT decides between timm's configs of ViT and DeiT.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    _check_family(shapes, headless)
    dim, channels, patch, patch_width = shapes["patch_embed.proj.weight"]
    if channels > MOST_CHANNELS or patch != patch_width:
        raise _refusal(f"patches of {channels} channels and {patch} x {patch_width} pixels")
    if dim not in SIZES:
        raise _refusal(f"width {dim}, which is not one of the family's ({', '.join(map(str, SIZES))})")
    size, heads = SIZES[dim]
    convention = f"{heads} heads by the family's convention (the shapes do not determine the number)"
    if "blocks.0.attn.q_norm.weight" in shapes and "blocks.0.attn.q_norm.bias" not in shapes:
        raise _refusal("queries and keys under another norm than LayerNorm")
    by_norm = (shapes.get(f"blocks.0.attn.{name}") for name in ("q_norm.weight", "q_scale"))
    by_head = shapes.get("blocks.0.attn.qk_scale")
    if count := next((dim // shape[-1] for shape in by_norm if shape), by_head[0] if by_head else None):
        heads, convention = count, f"{count} heads by the size of the query norm or scale"
    depth = 1 + max(int(match[1]) for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name)))
    if depth > len(shapes):
        raise _refusal(f"a block {depth - 1} in {len(shapes)} tensors")
    hidden = shapes["blocks.0.mlp.fc1.weight"][0]
    if shapes["blocks.0.mlp.fc2.weight"] != (dim, hidden):
        raise _refusal("a gated MLP")
    registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    tokens, distilled = "cls_token" in shapes, "dist_token" in shapes
    grid, no_embed_class = _grid(shapes["pos_embed"][1], tokens + distilled + registers)
    after, before = "fc_norm.weight" in shapes, "norm.weight" in shapes
    if after == before:
        raise _refusal("both norm and fc_norm" if after else "no final norm")
    kwargs: dict[str, Any] = {
        "img_size": grid * patch,
        "patch_size": patch,
        "embed_dim": dim,
        "depth": depth,
        "num_heads": heads,
        "mlp_ratio": hidden / dim,
        "num_classes": shapes["head.weight"][0] if "head.weight" in shapes else 0,
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "qk_norm": "blocks.0.attn.q_norm.weight" in shapes,
        "init_values": 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        "class_token": tokens,
        "reg_tokens": registers,
        "no_embed_class": no_embed_class,
        "global_pool": "avg" if after or not tokens else "token",
        "fc_norm": after,
    }
    deit3 = "blocks.0.ls1.gamma" in shapes and no_embed_class and not registers
    named = next((name for name in names if "deit" in name.lower()), "")
    arch = _name(size, patch, distilled or bool(named), distilled, deit3=deit3)
    seen = [text for text, there in (("distilled", distilled), (f"{registers} register tokens", registers)) if there]
    classes = f"{kwargs['num_classes']} classes" if kwargs["num_classes"] else "no classifier"
    summary = f"{depth} blocks, patch {patch}, {grid * patch} pixels, {classes}"
    notes = [f"architecture inferred from the tensors: {arch}, {', '.join([summary, *seen])}; {convention}"]
    if named and not distilled and not deit3:
        notes.append(f"treated as a DeiT because of the name {named!r}")
    return Guess(arch, kwargs, tuple(notes))


def _refusal(why: str) -> CheckpointError:
    return CheckpointError(f"the architecture cannot be inferred: the tensors show {why}; {REMEDY}")


def _check_family(shapes: Mapping[str, tuple[int, ...]], headless: bool) -> None:
    core = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight")
    if not all(name in shapes for name in core) or len(shapes["patch_embed.proj.weight"]) != 4:
        parts = ("decode_head.", "decoder.", "segmentation_head.", "auxiliary_head.")
        if any(f".{part}" in f".{name}" for name in shapes for part in parts):
            raise _refusal("a decoder; segmenters are for robustkit segment")
        first = ", ".join(list(shapes)[:3])
        raise _refusal(f"not a ViT or DeiT of timm (tensor names begin {first})")
    if any(name.startswith("norm_pre.") for name in shapes):
        raise _refusal("a norm before the blocks, as in CLIP, whose activation function is not in the shapes")
    if strange := [name for name in shapes if not _FAMILY.fullmatch(name)]:
        raise _refusal(f"{len(strange)} names that a plain ViT or DeiT does not have ({', '.join(strange[:3])})")
    if "head.weight" not in shapes and not headless:
        raise _refusal("no classifier (head.weight); of features alone robustkit features tells more")
    if "pos_embed" not in shapes:
        raise _refusal("no position embeddings")


def _grid(length: int, prefix: int) -> tuple[int, bool]:
    """Return (patches per side, whether the prefix tokens are left out) of position embeddings of that length."""
    for patches, no_embed_class in ((length - prefix, False), (length, True)):
        if patches > 0 and isqrt(patches) ** 2 == patches:
            return isqrt(patches), no_embed_class and prefix > 0
    raise _refusal(f"{length} position embeddings, which is not a square grid with or without {prefix} prefix tokens")


def _name(size: str, patch: int, deit: bool, distilled: bool, *, deit3: bool) -> str:
    """Return the timm name whose defaults (mean, std, crop) suit best. Sizes and patches themselves go into kwargs."""
    family = "deit3" if deit3 else "deit" if deit else "vit"
    middle = "distilled_" if distilled else ""
    names = [f"{family}_{size}_{middle}patch{p}_224" for p in (patch, 16, 14)]
    names += ["deit_base_distilled_patch16_224"] if distilled else []
    names.append(f"{family}_base_patch16_224" if deit or deit3 else f"vit_{size}_patch16_224")
    return next(name for name in (*names, "vit_base_patch16_224") if timm.is_model(name))


_HOLDERS = ("args", "config", "hparams", "hyper_parameters", "opt", "cfg", "arguments")
_NAMES = {  # argument of a training script -> name in our metadata
    **dict.fromkeys(("arch", "model", "model_name"), "arch"),
    **dict.fromkeys(("num_classes", "nb_classes", "num_labels"), "num_classes"),
    **dict.fromkeys(("img_size", "image_size", "input_size", "val_crop_size"), "input_size"),
    **dict.fromkeys(("attention", "attn_type", "attention_type", "attn"), "attention"),
    **dict.fromkeys(("mean", "image_mean", "img_mean"), "mean"),
    **dict.fromkeys(("std", "image_std", "img_std"), "std"),
    **dict.fromkeys(("crop_pct", "eval_crop_ratio"), "crop_pct"),
    **{name: name for name in ("interpolation", "crop_mode")},
}
_INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos")
_OF_DINO = ("out_dim", "teacher_temp", "global_crops_scale", "local_crops_number", "n_last_blocks")
_NEGATED = re.compile(r"(?i)(^|_)(no|not|non|without|disable[sd]?|skip|ablat\w*|distill?\w*|from|vs|compare\w*)(_|$)")
_SYNONYMS = {"mahala": "elliptical", "mahalanobis": "elliptical"}
_NAMED = {name: name for name, formula in FORMULAS.items() if not formula.initial(1, 1) and "-" not in name} | _SYNONYMS


@dataclass
class Claims:
    """What a file says about its model, by our names; sources: `metadata`, `trainer` or `name`, of each."""

    metadata: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def claim(self, name: str, value: Any, source: str = "metadata") -> None:
        if name not in self.metadata:
            self.metadata[name], self.sources[name] = value, source


def claims_of(content: Mapping[str, Any]) -> Claims:
    """Return what a script saved next to the weights, from torch.load's mapping: at the top, or in its arguments."""
    claims = Claims()
    held = (content.get(name) for name in _HOLDERS)
    arguments = (vars(each) if isinstance(each, argparse.Namespace) else each for each in held)
    holders = [content, *(each for each in arguments if isinstance(each, Mapping))]
    for holder in holders:
        for theirs, ours in _NAMES.items():
            if (value := _plain(holder.get(theirs))) is not None:
                claims.claim(ours, value)
    _check_attention(claims, holders)
    _check_size(claims)
    _check_pixels(claims)
    size = claims.metadata.get("input_size")
    if size and max(size) <= 32 and any("eval_crop_ratio" in holder for holder in holders):
        claims.metadata["crop_pct"] = 1.0  # DeiT's script shows such images whole
    for holder in holders:
        for script, values in _fixed_by(holder, size):
            for name, value in values.items():
                claims.claim(name, value, "trainer")
            taken = ", ".join(name for name in values if claims.sources[name] == "trainer")
            if taken:
                claims.notes.append(f"{taken} as {script} fixes them: the file holds its arguments")
    return claims


def formula_in(name: str) -> str | None:
    """Return the attention formula that a name of a model or file mentions; None for none, or several."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    words |= {word.lower() for word in re.split(r"[^A-Za-z0-9]+", name)}
    formulas = {_NAMED[word] for word in words if word in _NAMED}
    if formulas == {"elliptical", "quest"} or "ellipticalquest" in words:
        return "elliptical-quest"
    return formulas.pop() if len(formulas) == 1 else None


def _plain(value: object) -> Any:
    if isinstance(value, list | tuple):
        values = [_plain(item) for item in value]
        return values if 0 < len(values) < 10 and None not in values else None
    if isinstance(value, str):
        return value or None
    return value if isinstance(value, int | float) and not abs(value) >= 1 << 63 else None


def _check_attention(claims: Claims, holders: list[Mapping[str, Any]]) -> None:
    """Keep a formula that is known; a flag such as `quest=True` or `use_quest=True` names one, too."""
    text = claims.metadata.get("attention")
    if text is not None and text not in ("none", "other"):
        formula = next((name for name in FORMULAS if str(text).strip().lower() == name), None)
        if formula is None and str(text).partition("(")[0] not in FORMULAS:
            del claims.metadata["attention"], claims.sources["attention"]
            claims.notes.append(f"the file says attention {str(text)[:40]!r}, which is not one of robustkit's formulas")
        elif formula is not None:
            claims.metadata["attention"] = formula
    for holder in holders[1:]:
        flags = [str(name) for name, value in holder.items() if value is True and not _NEGATED.search(str(name))]
        formulas = {formula for flag in flags if (formula := formula_in(flag)) not in (None, "standard")}
        if formulas == {"elliptical", "quest"}:
            formulas = {"elliptical-quest"}
        if len(formulas) == 1:
            claims.claim("attention", formulas.pop(), "name")  # of an argument, which may mean something else


def _check_size(claims: Claims) -> None:
    size = claims.metadata.get("input_size")
    sides = size[-2:] if isinstance(size, list) else [size]
    if all(type(side) is int for side in sides):
        claims.metadata["input_size"] = sides if len(sides) == 2 else sides * 2
    else:  # others say nothing that can be used
        claims.metadata.pop("input_size", None)
        claims.sources.pop("input_size", None)


def _check_pixels(claims: Claims) -> None:
    for name in ("mean", "std"):
        if name in claims.metadata:
            values = claims.metadata[name] = _three(claims.metadata[name])
            if not (isinstance(values, list) and len(values) == 3 and all(map(is_real, values))):
                _drop(claims, name, "expected three numbers")
    both = [claims.metadata.get(name, []) for name in ("mean", "std")]
    if all(both) and max(both[0]) > 1:  # of pixels in 0 to 255
        for name in ("mean", "std"):
            claims.metadata[name] = [value / 255 for value in claims.metadata[name]]
        claims.notes.append("the file's mean and std are of pixels from 0 to 255; divided by 255")
    interpolation = claims.metadata.get("interpolation")
    if interpolation is not None and str(interpolation).lower() not in _INTERPOLATIONS:
        _drop(claims, "interpolation", f"expected one of {', '.join(_INTERPOLATIONS)}")


def _three(value: Any) -> Any:
    """Return three numbers where a text or a single number stands for them; anything else as it is."""
    if isinstance(value, str):
        try:
            value = [float(part) for part in value.replace(",", " ").strip("[]() ").split()]
        except ValueError:
            return value
    values = [value] if is_real(value) else value
    return values * 3 if isinstance(values, list) and len(values) == 1 else values


def _drop(claims: Claims, name: str, expected: str) -> None:
    value = claims.metadata.pop(name)
    del claims.sources[name]
    claims.notes.append(f"the file says {name} {repr(value)[:40]}, which is ignored; {expected}")


def _fixed_by(arguments: Mapping[str, Any], size: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    side = max(size) if isinstance(size, list) else 224
    # What MAE, BEiT and ConvNeXt do: a crop of 224 from 256, and no crop of larger images.
    usual = {"crop_pct": 224 / 256 if side <= 224 else 1.0, "interpolation": "bicubic"}
    if isinstance(default := arguments.get("imagenet_default_mean_and_std"), bool):
        mean, std = IMAGENET if default else INCEPTION
        yield "BEiT's or ConvNeXt's script", {"mean": list(mean), "std": list(std), **usual}
        return
    statistics = {"mean": list(IMAGENET[0]), "std": list(IMAGENET[1])}
    if _is_number(arguments.get("eval_crop_ratio")):
        yield "DeiT's script", {**statistics, "interpolation": "bicubic"}
    elif _is_number(arguments.get("val_crop_size")) and _is_number(arguments.get("val_resize_size")):
        crop = min(1.0, arguments["val_crop_size"] / arguments["val_resize_size"])
        yield "torchvision's script", {**statistics, "crop_pct": crop, "interpolation": "bilinear"}
    elif "nb_classes" in arguments and "input_size" in arguments and "mean" not in arguments:  # timm's has a mean
        yield "DeiT's or MAE's script", {**statistics, **(usual if side > 32 else {})}
    elif isinstance(arguments.get("arch"), str) and any(name in arguments for name in _OF_DINO):
        yield "DINO's or iBOT's script", {**statistics, "crop_pct": 224 / 256, "interpolation": "bicubic"}


def _is_number(value: object) -> bool:
    return is_real(value) and value > 0  # type: ignore[operator]
