"""Bounds within which a file's claims about its network are believed, checked before anything is built: a few hundred
bytes of metadata could ask for more than any memory holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
    kwargs: Mapping[str, Any], where: Path | str, *, any_name: bool = False, name: str = "arch_kwargs"
) -> None:
    """Raise ModelError for an argument that is unknown, too large, or not a plain value.

    any_name: they go to the user's own function, whose arguments may have any name.
    """
    for key, value in kwargs.items():
        if key not in _BUILT and not any_name:
            remedy = "expected only the shape of the network; build it yourself and give --arch FILE.py:FUNCTION"
            raise ModelError(f"{where}: {name} holds {str(key)[:80]}; {remedy}")
        if not _is_shape(value):
            raise ModelError(
                f"{where}: {name} has {key} = {repr(value)[:80]}; expected a text, or numbers up to {_NUMBER}"
            )


def check_classes(claimed: object, where: Path | str) -> int:
    """Return the number of classes that a file or a user claims. Raises CheckpointError where it cannot be one."""
    if not isinstance(claimed, int) or not 0 <= claimed <= MOST_CLASSES:
        raise CheckpointError(
            f"{where}: metadata num_classes is {repr(claimed)[:80]}; expected a whole number of at most {MOST_CLASSES}"
        )
    return claimed


def _is_shape(value: object, depth: int = 2) -> bool:
    """Whether it is a plain value, a list of them, or such lists in a list, as CrossViT has for its branches."""
    if not isinstance(value, list):
        return _is_plain(value)
    return depth > 0 and len(value) <= _LIST and all(_is_shape(each, depth - 1) for each in value)


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _TEXT
    return value is None or (isinstance(value, int | float) and abs(value) <= _NUMBER)  # false for NaN


class Allowance(TorchDispatchMode):
    """While it is entered, the network that is built may be a few times as large as what the file holds.

    tensors: of the file. where: its path. Raises CheckpointError before a tensor is made that would be too much, or as
    soon as what was made from others, by stacking or adding them, is.
    """

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
        self._count(sum(part.numel() for part in _new_tensors(made, args)))
        return made

    def _count(self, numbers: int) -> None:
        self.numbers -= numbers
        if self.numbers < 0 or self.tensors < 0:
            raise CheckpointError(
                f"{self.where}: what it says about its network asks for many times the {self.held} numbers that it "
                "holds; refused, for it would fill the memory; check the file, or give --arch"
            )


def _new_tensors(made: Any, given: Any) -> Iterator[Tensor]:
    """Yield the tensors in what an operation made that are not parts of what it was given."""
    held = {part.untyped_storage().data_ptr() for part in tree_leaves(given) if isinstance(part, Tensor)}
    for part in tree_leaves(made):
        if isinstance(part, Tensor) and part.untyped_storage().data_ptr() not in held:
            yield part
