"""Build a network from the name of an architecture: one of timm's, or a function of the user's own."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import timm
import torch
from timm.layers import resample_abs_pos_embed  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn

from ..common.files import first_line
from ..common.plugins import importing_from, run_file
from ..errors import CheckpointError, ModelError, RobustkitError
from .specs import REMEDY, WEIGHT_FILES, hub_address, is_reachable


def held_weights(arch: str) -> dict[str, Any] | None:
    """Return timm's `pretrained_cfg_overlay`: None where weights may be fetched, else the cached file. Or raise."""
    config = timm.get_pretrained_cfg(arch)  # type: ignore[attr-defined, unused-ignore]
    source = getattr(config, "hf_hub_id", None) or ""
    address = hub_address() if source else getattr(config, "url", None) or ""
    fetched = Path(torch.hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]
    if not address or (not source and fetched.is_file()) or (hub_address() and is_reachable(address)):
        return None
    if source:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = source.partition("@")
        named = getattr(config, "hf_hub_filename", None)
        for name in (named,) if named else WEIGHT_FILES:
            file = try_to_load_from_cache(repository, name, revision=revision or None)
            if isinstance(file, str):
                return {"file": file}
    why = "does not respond" if hub_address() else "is not asked offline"
    raise ModelError(f"weights of {arch!r} could not be fetched: {address} {why}; {REMEDY.format(arch=arch)}")


PROBED = (32, 64, 96, 128, 224, 256, 384)
_METHODS = (  # methods that torch and this package call on every part of a network
    *("train", "eval", "children", "named_children", "named_modules", "named_parameters", "named_buffers"),
    *("state_dict", "load_state_dict", "_apply", "forward", "register_forward_hook", "register_forward_pre_hook"),
)
_OF_MOST = ("num_classes", "weights", "weights_backbone")  # what a function of any arguments is given
_LOADS = ("pretrained", "checkpoint_path", "cache_dir")  # arguments that a file must not choose


def is_factory(arch: str) -> bool:
    """Whether `arch` names the user's own function, `package.module:function` or `file.py:function`."""
    return ":" in arch


def build(arch: str, *, kwargs: Mapping[str, Any], img_size: int | tuple[int, int] | None) -> nn.Module:
    """Build the network with random weights; a factory takes those kwargs that it names. Raises ModelError."""
    return build_filled(arch, None, kwargs=kwargs, img_size=img_size)[0]


def build_filled(
    arch: str,
    tensors: Mapping[str, Tensor] | None,
    *,
    kwargs: Mapping[str, Any],
    img_size: int | tuple[int, int] | None,
) -> tuple[nn.Module, bool]:
    """Build as `build` does; return also whether the weights are in it. A factory with an argument `state_dict` gets
    `tensors` and loads them itself, since a network whose weights are quantised or folded has other names for them.
    """
    if not is_factory(arch):
        return create(arch, kwargs=kwargs, img_size=img_size), False
    arguments = {**kwargs, **({} if img_size is None else {"img_size": img_size})}
    arguments |= {} if tensors is None else {"state_dict": dict(tensors)}
    network, taken = _call(arch, arguments)
    return network, "state_dict" in taken


def code_digest(arch: str) -> str | None:
    """Return the SHA-256 of a factory's source file with the modules next to it that it imported; None without one."""
    place = arch.rpartition(":")[0]
    path: str | None = place
    if (digest := _DIGESTS.get(Path(place).resolve())) is not None:
        return digest
    if not place.endswith(".py"):
        spec = importlib.util.find_spec(place)
        path = spec.origin if spec else None
    try:
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except OSError:
        return None


def create(
    arch: str, *, kwargs: Mapping[str, Any], img_size: int | tuple[int, int] | None, pretrained: bool = False
) -> nn.Module:
    """Build a timm network; with `pretrained` its published weights, which may be fetched."""
    if not timm.is_model(arch):
        near = difflib.get_close_matches(arch.split(".")[0], timm.list_models(), n=3, cutoff=0.5)
        guess = f"did you mean {', '.join(near)}? " if near else ""
        raise ModelError(f"unknown architecture {arch!r}; {guess}expected a timm name or your own FILE.py:FUNCTION")
    if refused := [name for name in kwargs if name.startswith(_LOADS)]:
        raise ModelError(f"arch_kwargs holds {', '.join(refused)}; expected only the shape of the network")
    sized = {**kwargs, "img_size": img_size} if img_size is not None else dict(kwargs)
    held = held_weights(arch) if pretrained else None
    weights: dict[str, Any] = {"pretrained": pretrained, "pretrained_cfg_overlay": held}
    try:
        try:
            network = timm.create_model(arch, **weights, **sized)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            network = timm.create_model(arch, **weights, **kwargs)  # a CNN takes any size
    except RobustkitError:
        raise
    except Exception as error:  # a constructor or a download may raise anything
        why = first_line(error)
        if pretrained:
            raise ModelError(f"weights of {arch!r} could not be fetched ({why}); {REMEDY.format(arch=arch)}") from error
        raise ModelError(f"{arch!r} cannot be built with {sized} ({why}); check --img-size and arch_kwargs") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"{arch!r} is a {type(network).__name__}; expected a network")
    return network


_DIGESTS: dict[Path, str] = {}  # of the files that were run last


def _module(place: str, arch: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, folder := str(Path.cwd()))
        try:
            return importlib.import_module(place)
        finally:
            sys.path.remove(folder)
    path = Path(place).resolve()
    if not path.is_file():
        raise ModelError(f"architecture {arch!r}: no file {place}; expected FILE.py:FUNCTION")
    name = f"robustkit_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    module, _DIGESTS[path] = run_file(path, path.read_bytes(), name)
    return module


def _call(arch: str, kwargs: Mapping[str, Any]) -> tuple[nn.Module, set[str]]:
    """Return the network of the user's function, and the names of the arguments that it took."""
    (place, _, name), where = arch.rpartition(":"), f"architecture {arch!r}"
    try:
        module = _module(place, arch)
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        raise ModelError(f"{where}: {place} cannot be imported ({error_text(error)}); check the file") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(name, callables, n=3, cutoff=0.4) or callables[:5]
        raise ModelError(f"{where}: no function {name!r} in {place}; it has {', '.join(near) or 'none'}")
    try:
        accepted = inspect.signature(factory).parameters
        taken = {*accepted, *(_OF_MOST if any(p.kind is p.VAR_KEYWORD for p in accepted.values()) else ())} & {*kwargs}
        with importing_from(Path(place).resolve().parent) if place.endswith(".py") else nullcontext():
            network = factory(**{key: value for key, value in kwargs.items() if key in taken})
    except Exception as error:  # the user's own code
        raise ModelError(f"{where}: {name}() raised {error_text(error)}; run it by itself to see more") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"{where}: {name}() returned a {type(network).__name__}; expected a torch nn.Module")
    _check_methods(network, arch)
    return network, taken


def _check_methods(network: nn.Module, arch: str) -> None:
    """Raise ModelError for lists under the names of `_METHODS`, which break torch itself; other names are harmless."""
    waiting, seen = [network], {id(network)}
    while waiting:
        part = waiting.pop()
        hidden = [name for name in _METHODS if not callable(getattr(part, name, callable))]
        if hidden:
            raise ModelError(
                f"architecture {arch!r}: {type(part).__name__} keeps a {type(getattr(part, hidden[0])).__name__} as "
                f"its attribute {hidden[0]!r}, which hides the method of torch's nn.Module; give it another name"
            )
        inside = [child for child in part._modules.values() if child is not None and id(child) not in seen]
        waiting += inside
        seen |= set(map(id, inside))


def error_text(error: Exception) -> str:
    kind, text = type(error).__name__, first_line(error)
    return kind if text == kind else f"{kind}: {text}"


def probed_size(network: nn.Module) -> tuple[int, int]:
    """Return the only one of a few usual sizes that a network takes. ModelError where none or several work."""
    fits = []
    for side in PROBED:
        try:
            zeros_through(network, (side, side))
        except Exception:  # the wrong size may raise anything
            continue
        fits.append(side)
    if len(fits) == 1:
        return fits[0], fits[0]
    takes = "images of any size" if fits else f"none of the sizes {', '.join(map(str, PROBED))}"
    why = f"{type(network).__name__} takes {takes}, and the training size is unknown"
    raise ModelError(f"{why}; give --img-size N (32 for CIFAR, 224 for most ImageNet models)")


def zeros_through(network: nn.Module, size: tuple[int, int], channels: int = 3) -> Any:
    return asked(network, torch.zeros(1, channels, *size))


def asked(network: nn.Module, inputs: Tensor) -> Any:
    """Return what a network in evaluation mode returns. A pass that takes a minute says so, and what ends it."""
    name, patience = type(network).__name__, threading.Timer(_PATIENCE, lambda: _say_that_it_computes(name))
    patience.daemon = True
    patience.start()
    try:
        with torch.no_grad():
            return network.eval()(inputs)
    finally:
        patience.cancel()


_PATIENCE = 60.0  # seconds


def _say_that_it_computes(name: str) -> None:
    what = f"{name} has computed a single input for {_PATIENCE:.0f} seconds"
    print(f"{what}; Ctrl-C ends it, or else: kill {os.getpid()}", file=sys.stderr, flush=True)


def resample_positions(
    tensors: dict[str, Tensor], network: nn.Module, trained: tuple[int, int] | None = None, sure: bool = False
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Resample `pos_embed` (bicubic, as timm does) to another grid of patches; return the tensors and notes. trained:
    (height, width) of the images of training, where known; else the grid is taken to be the network's own if it has as
    many patches, or square. sure: `trained` must be right; where it contradicts the tensor, nothing is resampled, so
    that loading fails.
    """
    expected, stored = getattr(network, "pos_embed", None), tensors.get("pos_embed")
    embed: Any = getattr(network, "patch_embed", None)
    grid = getattr(embed, "grid_size", None)
    if not isinstance(expected, Tensor) or stored is None or stored.ndim != 3 or grid is None:
        return tensors, ()
    prefix = 0 if getattr(network, "no_embed_class", False) else int(getattr(network, "num_prefix_tokens", 1))
    count, new = stored.shape[1] - prefix, (int(grid[0]), int(grid[1]))
    old = None  # the grid of an image of that size, where the file has as many patches
    if trained is not None:
        rows, columns = (side // int(step) for side, step in zip(trained, embed.patch_size, strict=True))
        old = (rows, columns) if rows * columns == count else None
    if old is None and sure:
        return tensors, ()
    if old == new or (old is None and expected.shape == stored.shape):
        note = f"position embeddings assumed to be for {new[0]} x {new[1]} patches; the file does not record it"
        return tensors, (note,) if trained is None and new[0] != new[1] else ()
    side = round(max(count, 0) ** 0.5)
    if old is None and side * side != count:
        raise CheckpointError(f"pos_embed of shape {list(stored.shape)} is not a square grid; it cannot be resampled")
    old = old or (side, side)
    made = resample_abs_pos_embed(stored, new_size=list(new), old_size=list(old), num_prefix_tokens=prefix)
    note = f"position embeddings resampled from {old[0]} x {old[1]} to {new[0]} x {new[1]} patches"
    return {**tensors, "pos_embed": made}, (note,)
