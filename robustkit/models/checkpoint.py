"""A checkpoint file as tensors, metadata and digest, read without running anything that is in it.

`torch.load(weights_only=True)` does the reading; `argparse.Namespace` is the one type allowed beyond its own. When it
refuses, the pickle is walked opcode by opcode (which runs nothing) to name the objects that it wanted to call.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import pickle
import pickletools
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..common.files import check_plain, first_line, json_in, reason_of
from ..data.class_names import printable
from ..errors import CheckpointError
from .claims import claims_of
from .specs import digest_of_shards, is_index, places_of, refuse_part, shards_of
from .state_dict import Held, NetworkPart, Shapes, adapters, held_in, part_for, usual_part

REMEDY = "if you trust it, load it yourself and save only the tensors: torch.save(model.state_dict(), FILE)"
_PLAIN = re.compile(  # the objects that the weights of every torch file refer to
    r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.(\w+Storage|Size|device|[a-z]+\d+\w*)"
    r"|torch\.storage\.\w+|argparse\.Namespace|_codecs\.encode|(builtins|__builtin__)\.set"
)
_PROGRAMS = ("models/model.json", "serialized_exported_program.json")  # in a .pt2, as torch 2.8 and before have it
_LARGEST_PICKLE = 64 << 20
_OPCODES = 1 << 20  # opcodes of a pickle that are walked; more would not help to name what it calls
_RUNS = ("posix.", "nt.", "os.", "subprocess.", "sys.", "shutil.", "socket.", "importlib.", "runpy.", "pty.")


def load_pickle(path: Path) -> Any:
    """Load tensors in plain containers from a file of torch.save. CheckpointError for others (named) and damage."""
    _refuse_bomb(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # warnings about old storage types; the user could do nothing about them
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors here; each becomes one line
        raise CheckpointError(_reason(path, error)) from error


def _refuse_bomb(path: Path) -> None:
    members = _members(path)
    size, claimed = path.stat().st_size, sum(member.file_size for member in members)
    program = max((member.file_size for member in members if member.filename.endswith(".pkl")), default=0)
    if claimed > 4 * size + (1 << 30) or program > _LARGEST_PICKLE:
        why = f"a zip of {size >> 10} kB that inflates to {claimed >> 20} MB, {program >> 20} MB of it instructions"
        raise CheckpointError(f"{path}: {why}; refused, since it would exhaust the memory; {REMEDY}")


def _members(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except Exception:  # zipfile raises many kinds of errors for a damaged directory
        return []


def _reason(path: Path, error: Exception) -> str:
    if names := [member.filename for member in _members(path)]:
        if any(name.endswith("constants.pkl") for name in names):
            return f"{path}: a TorchScript archive, which contains code as well as weights; save its state_dict"
        if any(name.endswith(_PROGRAMS) for name in names):
            return f"{path}: a program of torch.export, not weights; robustkit audit takes it as pt2:{path}"
        if not any(name.endswith("data.pkl") for name in names):
            return f"{path}: a zip archive without torch weights in it; give a file that torch.save wrote"
    if refused := foreign_globals(path):
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        return (
            f"{path}: refused, a pickle that would call {', '.join(refused[:3])}{more} when loaded "
            f"(only tensors, plain containers and argparse.Namespace are read); {REMEDY}"
        )
    if isinstance(error, pickle.UnpicklingError) and "Unsupported" in str(error):
        return f"{path}: refused, a pickle with instructions that weights do not need; {REMEDY}"
    message = first_line(error, 120).rstrip(" .:")
    return f"{path}: damaged or cut short ({message}); expected a file written by torch.save; fetch it again"


def foreign_globals(path: Path) -> list[str]:
    """Return the names, the most dangerous first, of what a file's pickles refer to besides tensors. Runs nothing."""
    names = dict.fromkeys(name for stream in _pickles(path) for name in _globals(stream))
    foreign = [name for name in names if not _PLAIN.fullmatch(name)]
    return sorted(foreign, key=lambda name: not name.startswith((*_RUNS, "builtins.", "__builtin__.")))


def _pickles(path: Path) -> list[io.BytesIO]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".pkl")]
                return [io.BytesIO(archive.open(name).read(_LARGEST_PICKLE)) for name in names[:8]]
    except Exception:  # zipfile and zlib raise many kinds of errors for a damaged member
        return []
    with path.open("rb") as file:
        return [io.BytesIO(file.read(_LARGEST_PICKLE))]  # several pickles one after another, then raw storage


def _globals(stream: io.BytesIO) -> list[str]:
    names: list[str] = []
    end, left = len(stream.getbuffer()), _OPCODES
    while stream.tell() < end and left > 0:
        strings: list[str] = []  # every string pushed so far: STACK_GLOBAL takes the last two
        memo: dict[int, str] = {}
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                left -= 1
                if left <= 0:
                    break
                if opcode.name in ("GLOBAL", "INST"):
                    names.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                    names.append(".".join(strings[-2:]))
                elif opcode.name == "MEMOIZE":
                    memo[len(memo)] = strings[-1] if strings else ""
                elif opcode.name in ("BINPUT", "LONG_BINPUT", "PUT"):
                    memo[int(argument or 0)] = strings[-1] if strings else ""
                elif opcode.name in ("BINGET", "LONG_BINGET", "GET"):
                    strings.append(memo.get(int(argument or 0), ""))
                elif isinstance(argument, str) and "UNICODE" in opcode.name:
                    strings.append(argument)
        except Exception:  # not a pickle from here on: raw storage, or the end of a cut file
            break
    return names


JSON_KEYS = (
    *("arch_kwargs", "num_classes", "class_names", "mean", "std", "input_size", "crop_pct"),
    *("decoder_kwargs", "stride", "short_side", "vocabulary", "text_tower", "logit_scale"),
)

_FLOATS = (
    "give the weights as floats; a function of --arch FILE.py:FUNCTION with an argument state_dict may quantise them"
)
_HEADER = 16 << 20  # bytes of a safetensors header; ten thousand tensors take one million
_ROOM = 1 << 30  # bytes that weights may take beyond what their file holds


@dataclass(frozen=True)
class Checkpoint:
    """The weights of one file. tensors: by name, without wrappers and prefixes, floats of at least 32 bits. metadata:
    what the file says about itself, by the names of our own checkpoints, in JSON types; a claim, and never run.
    metadata_source: of its entries, `metadata` where left out: `trainer` (see `claims`), or `weights` for a
    normalisation next to the network. weights: which part was taken: 'bare', 'state_dict', 'model', 'model_ema', ...
    notes: lines for the user. held: all tensors of the file, until `select_network`; None from then on.
    """

    path: Path
    sha256: str
    tensors: dict[str, Tensor] = field(repr=False)
    metadata: dict[str, Any]
    weights: str
    notes: tuple[str, ...]
    metadata_source: dict[str, str] = field(default_factory=dict)
    held: Held | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Hints at what is not recorded: what the file calls its model, and the file's own name."""
        claimed = self.metadata.get("arch")
        return (*([claimed] if isinstance(claimed, str) else []), self.path.name)

    @property
    def hints(self) -> dict[str, Any]:
        return {"names": self.names, "origin": self.metadata_source.get("attention", "metadata")}


def read(path: str | Path, *, use_ema: bool = False, prefixes: bool = True) -> Checkpoint:
    """Read a .safetensors file or one written by torch.save; the content decides, not the suffix. Its tensors are those
    that the names of its mappings point to; `select_network` finds those of a network.

    use_ema: take the averaged weights (`model_ema`, `swa_model`, ...) instead of the plain ones next to them.
    prefixes: False for all tensors of a file under the names that it has.
    Raises CheckpointError for anything but a sound set of weights.
    """
    path = Path(path)
    kind = _kind(path)
    if kind in ("safetensors", "index"):
        tensors, metadata = _read_safetensors(path) if kind == "safetensors" else _read_shards(path)
        held, sources = Held(tensors, use_ema=use_ema), dict[str, str]()
    else:
        content = load_pickle(path)
        if not isinstance(content, Mapping):
            raise CheckpointError(f"{path}: holds a {type(content).__name__}; expected a state_dict (names to tensors)")
        claims = claims_of(content)
        held = replace(held_in(path, content, use_ema), notes=tuple(claims.notes))
        metadata, sources = claims.metadata, claims.sources
        if not held.tensors:
            inside = ", ".join(map(str, list(content)[:8])) or "nothing"
            expected = "weights at the top or under a name such as state_dict, model or model_ema"
            raise CheckpointError(f"{path}: no weights found in it (it holds {inside}); expected {expected}")
    refuse_odd(path, held.tensors)
    part = usual_part(path, held) if prefixes else NetworkPart(held.tensors, "bare", (), {}, ())
    digest = sha256(path) if kind != "index" else digest_of_shards((f.name, sha256(f)) for f in shards_of(path))
    checkpoint = Checkpoint(path, digest, part.tensors, metadata, part.weights, part.notes + held.notes, sources)
    return _sound(replace(checkpoint, held=held if prefixes else None))


def select_network(checkpoint: Checkpoint, expected: Shapes | Mapping[str, Tensor]) -> Checkpoint:
    """Return the tensors of one network, under its names, with the mean and std that tensors next to it hold. expected:
    its state_dict, or names with shapes, None where not known. It is looked for in all mappings, under every prefix,
    without the words of torch's wrappers; where the file has too little of it, the file is returned as it is.
    CheckpointError where two sets of weights fit equally, for an adapter, and for unsound tensors.
    """
    held, path = checkpoint.held, checkpoint.path
    if held is None:
        return checkpoint
    shapes = {name: each.shape if isinstance(each, Tensor) else each for name, each in expected.items()}
    if (added := adapters(held.tensors)) and not adapters(shapes):
        remedy = "merge it first: model.merge_and_unload() in PEFT, then torch.save(model.state_dict(), FILE)"
        raise CheckpointError(f"{path}: an adapter (it holds {added[0][:80]}), not the weights of a network; {remedy}")
    part = part_for(path, held, shapes)
    if part is None:
        return replace(checkpoint, held=None)
    notes = part.notes + held.notes + ((f"ignored: {_groups(part.aside)}",) if part.aside else ())
    metadata = {**checkpoint.metadata, **part.statistics}
    if part.statistics and any(name in checkpoint.metadata for name in part.statistics):
        notes += ("these take precedence over the mean and std that the file names",)
    sources = {**checkpoint.metadata_source, **dict.fromkeys(part.statistics, "weights")}
    return _sound(Checkpoint(path, checkpoint.sha256, part.tensors, metadata, part.weights, notes, sources))


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def digest_of_tensors(tensors: Mapping[str, Any]) -> str:
    """Return the hex digest of weights that came without a file: names, types, shapes and bytes, sorted by name. What a
    state_dict of a quantised network has instead of a tensor counts by its parts.
    """
    digest = hashlib.sha256()
    for name, part in (part for key in sorted(tensors) for part in _parts(key, tensors[key])):
        if isinstance(part, Tensor):
            tensor = part.detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"{name} {part!r}\n".encode())
    return digest.hexdigest()


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, tuple | list):  # packed: weight and bias
        inner = enumerate(value)
    elif hasattr(value, "__tensor_flatten__"):
        inner = ((each, getattr(value, each)) for each in value.__tensor_flatten__()[0])
    else:
        yield name, value.dequantize() if isinstance(value, Tensor) and value.is_quantized else value
    for key, each in inner:
        yield from _parts(f"{name}.{key}", each)


def _kind(path: Path) -> str:
    refuse_part(path)
    if path.is_dir():
        instead = f"for timm's layout of config.json and weights: local-dir:{path}"
        raise CheckpointError(f"{path}: a folder; expected a file ({instead})")
    if not path.exists():
        parent = path.parent
        near = difflib.get_close_matches(path.name, [p.name for p in parent.iterdir()], n=3) if parent.is_dir() else []
        guess = f"; did you mean {' or '.join(near)}?" if near else "; check the path"
        raise CheckpointError(f"{path}: no such file{guess}")
    try:
        check_plain(path)
        with path.open("rb") as file:
            head = file.read(64)
            size = file.seek(0, 2)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reason_of(error)}); expected a file of weights") from error
    if not size:
        raise CheckpointError(f"{path}: empty (0 bytes); fetch it again")
    if is_index(path):
        return "index"
    if head[8:9] == b"{" or path.suffix == ".safetensors":
        return "safetensors"
    if head[:2] == b"PK" or head[:1] == b"\x80" or foreign_globals(path):  # the last: pickles of protocol 0 and 1
        return "pickle"
    if path.suffix == ".onnx":
        raise CheckpointError(f"{path}: an ONNX graph, not weights; robustkit audit takes it as onnx:{path}")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull`")
    if b"\0" not in head and head.lstrip()[:1] in (b"<", b"{", b"["):
        raise CheckpointError(f"{path}: a web page or JSON text, not weights; fetch the file itself")
    expected = ".safetensors, or a file by torch.save (.pth, .pt, .bin, .ckpt, .tar)"
    raise CheckpointError(f"{path}: not a checkpoint (it begins with {head[:16]!r}); expected {expected}")


def _read_shards(index: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors that an index places, and what the first file says. CheckpointError where one is missing."""
    places, tensors, metadata = places_of(index), dict[str, Tensor](), dict[str, Any]()
    for file in shards_of(index):
        if not file.is_file():
            raise CheckpointError(f"{index}: {file.name} is not next to it; fetch all files that it names")
        part, header = _read_safetensors(file)
        tensors |= {key: value for key, value in part.items() if places.get(key) == file.name}
        metadata = metadata or header
    if missing := [key for key in places if key not in tensors]:
        first = printable(str(missing[0]))[:80]
        raise CheckpointError(f"{index}: {len(missing)} tensors are not in the files that it names ({first}, …)")
    return tensors, metadata


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with path.open("rb") as start:
            if (length := int.from_bytes(start.read(8), "little")) > _HEADER:
                raise ValueError(f"header too large, {length} bytes; at most {_HEADER} are read")
            head = start.read(length)
        with safe_open(path, framework="pt", device="cpu") as file:
            header = dict(sorted((file.metadata() or {}).items()))  # it has another order in each process
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        json_in(head)  # it refuses a header that names a tensor twice
    except BaseException as error:  # a panic of the library's Rust is no Exception
        damage = (SafetensorError, OSError, ValueError, TypeError, RuntimeError, MemoryError)
        if not isinstance(error, damage) and type(error).__module__ != "pyo3_runtime":
            raise
        why = first_line(error, 200)
        raise CheckpointError(f"{path}: not a whole safetensors file ({why}); fetch it again") from error
    return tensors, checkpoint_metadata(path, {name: text for name, text in header.items() if name != "format"})


def checkpoint_metadata(path: Path, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata that a file keeps as texts, with those of `JSON_KEYS` read. CheckpointError for others."""
    metadata: dict[str, Any] = dict(texts)
    for name in JSON_KEYS:
        if name in metadata:
            try:
                metadata[name] = json.loads(metadata[name], parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                entry = f"metadata {name!r} is {metadata[name][:80]!r}"
                raise CheckpointError(f"{path}: {entry}; expected JSON; write the file again") from error
    return metadata


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _sound(checkpoint: Checkpoint) -> Checkpoint:
    path, tensors, notes = checkpoint.path, checkpoint.tensors, list(checkpoint.notes)
    if not tensors:
        raise CheckpointError(f"{path}: no tensors in it; expected the weights of a model")
    if empty := [name for name, tensor in tensors.items() if tensor.is_meta]:
        what = f"{len(empty)} tensors on the meta device ({_groups(empty)}), without numbers"
        raise CheckpointError(f"{path}: {what}; save the model after loading its weights")
    odd = [n for n, t in tensors.items() if t.is_quantized or t.is_complex() or t.layout != torch.strided]
    if odd:
        raise CheckpointError(f"{path}: quantised, sparse or complex weights ({_groups(odd)}); {_FLOATS}")
    short = {name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.itemsize < 4}
    for dtype, count in sorted(Counter(str(tensors[name].dtype).removeprefix("torch.") for name in short).items()):
        notes.append(f"{count} of {len(tensors)} tensors are stored as {dtype}; computed in float32")
    try:
        tensors = {name: tensor.float() if name in short else tensor for name, tensor in tensors.items()}
    except (NotImplementedError, RuntimeError) as error:
        kinds = ", ".join(sorted({str(tensors[name].dtype).removeprefix("torch.") for name in short}))
        what = f"weights that torch cannot turn into float32 ({kinds})"
        raise CheckpointError(f"{path}: {what}; save it as float32") from error
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if bad := [name for name, tensor in floats.items() if not tensor.float().isfinite().all()]:  # as it is computed
        why = f"NaN or infinite values in {len(bad)} of {len(tensors)} tensors ({_groups(bad)})"
        raise CheckpointError(f"{path}: {why}; the training diverged or the file is damaged; take another checkpoint")
    return replace(checkpoint, tensors=tensors, notes=tuple(notes))


def refuse_odd(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for tensors of a library's own kind, and for those that repeat the few numbers of their
    storage until they are computed with."""
    if odd := [name for name, tensor in tensors.items() if type(tensor) not in (Tensor, nn.Parameter)]:
        kind = type(tensors[odd[0]]).__name__
        raise CheckpointError(f"{path}: tensors of kind {kind} ({_groups(odd)}), not plain ones; {_FLOATS}")
    dense = [t for t in tensors.values() if t.layout == torch.strided and not t.is_meta]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}
    claimed, stored = sum(t.numel() * max(t.itemsize, 4) for t in dense), sum(held.values())
    if claimed > 4 * stored + _ROOM:
        why = f"{stored >> 20} MB of numbers claim to be {claimed >> 20} MB of weights"
        raise CheckpointError(f"{path}: {why}; refused, since it would exhaust the memory; take another checkpoint")


def load_into(model: nn.Module, checkpoint: Checkpoint, *, allow_partial: bool = False) -> tuple[str, ...]:
    """Copy the weights into `model`; every name and shape must agree. Returns notes for the user.

    allow_partial: load what fits and report what did not; the rest of the model keeps its values.
    Raises CheckpointError with missing, unexpected and wrongly shaped names, grouped over block numbers and counted.
    """
    expected = model.state_dict()
    checkpoint = select_network(checkpoint, expected)
    tensors = checkpoint.tensors
    optional = ("num_batches_tracked",)  # a counter that old files do not have
    missing = [name for name in expected if name not in tensors and not name.endswith(optional)]
    unexpected = [name for name in tensors if name not in expected]
    wrong = [name for name in tensors if name in expected and tensors[name].shape != expected[name].shape]
    fits = {name: tensor for name, tensor in tensors.items() if name in expected and name not in wrong}
    shapes = {name: f"{list(tensors[name].shape)} for {list(expected[name].shape)}" for name in wrong}
    kinds = {"missing": missing, "unexpected": unexpected, "of wrong shape": wrong}
    faults = [f"{len(names)} {what}: {_groups(names, shapes)}" for what, names in kinds.items() if names]
    if faults and (not allow_partial or not fits):
        usual = "give the right --arch, or --allow-partial to load what fits" if fits else _NOTHING
        remedy = _remedy(kinds, tensors, expected) or usual
        problem = f"{len(fits)} of {len(expected)} tensors fit; {'; '.join(faults)}"
        raise CheckpointError(f"{checkpoint.path}: does not fit {type(model).__name__} ({problem}); {remedy}")
    if whole := [n for n, t in fits.items() if expected[n].is_floating_point() and not t.is_floating_point()]:
        raise CheckpointError(
            f"{checkpoint.path}: whole numbers where {type(model).__name__} has weights ({_groups(whole)}); {_FLOATS}"
        )
    model.load_state_dict(fits, strict=False)
    return (f"partially loaded, {len(fits)} of {len(expected)} tensors; {'; '.join(faults)}",) if faults else ()


_NOTHING = "no tensor fits; check --arch"
_HEAD = re.compile(r"(.*\.)?(head|head_dist|fc|classifier|linear)\.(weight|bias)")
_SCALE = re.compile(r".*\.((qk|q|k|head)_scale|temperature|alpha|([qk]_norm|query_network)\.(weight|bias))")


def _remedy(kinds: Mapping[str, list[str]], tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    missing, unexpected, wrong = kinds.values()
    last = next(reversed([*expected]), "").rpartition(".")[0]  # the layer that gives the classes, whatever its name
    same = [name for name in wrong if tensors[name].ndim and tensors[name].shape[1:] == expected[name].shape[1:]]
    heads = [name for name in same if _HEAD.fullmatch(name) or name.rpartition(".")[0] == last]
    positions = [name for name in wrong if name.endswith("pos_embed")]
    names = (*missing, *unexpected)
    if all(map(_SCALE.fullmatch, (*names, *wrong))):  # there is at least one fault
        return "the weights were trained with another attention formula; check --attention"
    if not wrong and not unexpected and all(map(_HEAD.fullmatch, missing)):
        return "its classifier is missing; use robustkit features, or give an --arch that fits"
    if names or len(heads) + len(positions) < len(wrong):
        return ""
    remedies = []
    if heads:
        classes = tensors[heads[0]].shape[0]
        remedies.append(f"the file has {classes} classes: --num-classes {classes}")
    if positions:
        other = "its position embeddings are of another image size"
        remedies.append(f"{other}: --img-size N builds the network for N and resamples them")
    return "; ".join(remedies)


def _starred(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _groups(names: Sequence[str], shapes: Mapping[str, str] | None = None) -> str:
    """Return 'blocks.*.attn.qkv.weight (12), head.bias': the first five kinds of names, block numbers starred."""
    counts = Counter(map(_starred, names))
    shape = {_starred(name): text for name, text in reversed(list((shapes or {}).items()))}
    texts = [f"{kind} ({n})" if n > 1 else kind for kind, n in counts.items()]
    texts = [f"{text} {shape[kind]}" if kind in shape else text for text, kind in zip(texts, counts, strict=True)]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more kinds" if len(texts) > 5 else "")
