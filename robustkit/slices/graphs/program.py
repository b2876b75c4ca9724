"""Classifiers that torch.export saved (.pt2), computed operator by operator, with gradients.

`torch.export.load` must not read a file of strangers: it evaluates the expressions of shapes (sympy) and of guards,
unpickles sample inputs, objects and odd tensors, and calls any operator of aten, one of which writes files. Logits need
none of that. A program is JSON, a list of calls: here each must be of `OPERATORS`, and gets tensors and numbers. The
weights are raw bytes or, before torch 2.9, a pickle of tensors alone. The rest of a file is not read.
"""

from __future__ import annotations

import io
import operator
import re
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...common.files import check_plain, first_line, json_in, reason_of
from ...common.preprocessing import MOST_CHANNELS
from ...errors import CheckpointError, ModelError
from ...models.checkpoint import checkpoint_metadata, refuse_odd, sha256
from ...models.identity import Classifier
from ...models.input_config import InputOptions
from ...models.outputs import chosen_output
from ...models.specs import ModelFile
from .exported import ExportedNetwork, exported_classifier, refuse_options

_NAMED = """
_adaptive_avg_pool2d _assert_scalar _log_softmax _safe_softmax _softmax _to_copy _unsafe_index _unsafe_view
_upsample_bicubic2d_aa _upsample_bilinear2d_aa _weight_norm abs adaptive_avg_pool1d adaptive_avg_pool2d
adaptive_max_pool2d add addcdiv addcmul addmm alias all alpha_dropout amax amin any arange argmax argmin as_strided
avg_pool1d avg_pool2d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to cat ceil
celu channel_shuffle chunk clamp clamp_max clamp_min clip clone col2im concat constant_pad_nd contiguous conv1d
conv2d conv3d conv_transpose2d convolution copy cos cosine_similarity cumsum detach diagonal div divide dropout
einsum elu embedding eq erf exp expand expand_as expm1 feature_dropout fill flatten flip floor floor_divide fmod
frobenius_norm full full_like gather ge gelu glu grid_sampler grid_sampler_2d group_norm gt hardshrink hardsigmoid
hardswish hardtanh im2col index index_add index_put index_select instance_norm isfinite isinf isnan layer_norm le
leaky_relu lerp lift_fresh lift_fresh_copy linalg_norm linalg_vector_norm linear linspace log log1p log2 log_sigmoid
log_softmax logical_and logical_not logical_or logical_xor logsumexp lt masked_fill matmul max max_pool2d
max_pool2d_with_indices maximum mean meshgrid min minimum mish mm movedim mul multiply narrow native_channel_shuffle
native_dropout native_group_norm native_layer_norm ne neg new_full new_ones new_zeros norm one_hot ones ones_like
outer pad permute pixel_shuffle pixel_unshuffle pow prelu prod reciprocal reflection_pad2d relu relu6 remainder
repeat repeat_interleave replication_pad2d reshape reshape_as rms_norm roll round rsqrt rsub scalar_tensor
scaled_dot_product_attention scatter scatter_add select select_scatter selu sigmoid sign silu sin slice
slice_scatter softmax softplus softshrink sort split split_with_sizes sqrt square squeeze stack std std_mean sub
subtract sum swapaxes sym_numel sym_size t tan tanh threshold tile to topk transpose tril triu true_divide type_as
unbind unflatten unfold unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_nearest2d var var_mean view
view_as where zero zeros zeros_like
"""
OPERATORS = frozenset(_NAMED.split())
"""Operators of aten that a program may call, in any overload, and in place: those of networks that check
what they are given, without randomness, files and pointers. Not the parts that `run_decompositions` leaves of a batch
normalisation: they do not check sizes."""
_NUMBERS: dict[str, Callable[..., Any]] = {
    f"_operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "neg", "eq", "ne", "lt", "le", "gt", "ge")
} | {"torch.sym_max": max, "torch.sym_min": min, "torch.sym_float": float, "torch.sym_not": operator.not_}
_SKIPPED = ("_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")  # what a trace expects
_ATTENTION = re.compile(r"_?(safe_)?softmax|_?scaled_dot_product_\w*attention\w*")
_TRAINING = ("train", "training", "dropout_p")  # arguments; where they are not false, a network is not in evaluation
_TARGET = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
_SIDE = re.compile(r"\d{1,9}|(Symbol\(')?(?P<symbol>s\d{1,9})('(, \w+=(True|False))*\))?")  # as a name, never read
_MAJOR = 8  # of the schema, from torch 2.5 on
_LARGEST = 64 << 20  # bytes of a text
_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}
_FLOAT32, _STRIDED = 7, 7


def load_program(source: ModelFile, spec: str, options: InputOptions, features: bool) -> Classifier:
    """Return the classifier of a .pt2 file. Raises ModelError or CheckpointError, one line with the remedy."""
    refuse_options(spec, options, features)
    path = source.path
    try:
        network, texts, notes = _read(path, options.output)
    except (CheckpointError, ModelError):
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reason_of(error)}); expected a .pt2 file") from error
    except Exception as error:  # what a damaged or invented program lacks is of many kinds
        why = f"not a whole program of torch.export ({type(error).__name__}: {first_line(error, 80)})"
        raise CheckpointError(f"{path}: {why}; expected a file of torch.export.save; export it again") from error
    extra: dict[str, Any] = {"arch": "torch.export", "sha256": sha256(path), "attends": network.attends, "notes": notes}
    classifier = exported_classifier(network, source, spec, options, checkpoint_metadata(path, texts), **extra)
    network.check_pure(classifier.identity.preprocessing.input_size, path)
    return classifier


@dataclass(frozen=True)
class _Value:
    """What a step made, by its name; None: the device of the images."""

    name: str | None


@dataclass(frozen=True)
class _Step:
    """One call. outputs: names, None for what nobody uses; lists for lists. dropped: names that no later step needs."""

    target: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    outputs: Any
    dropped: tuple[str, ...] = ()


class ProgramNetwork(ExportedNetwork):
    """A program of torch.export. sides: of its input, whole numbers or names of symbols. bounds: of symbols.

    Its weights are no parameters, so they stay in the types and strides that the calls were recorded with.
    """

    def __init__(
        self,
        steps: Sequence[_Step],
        weights: Mapping[str, Tensor],
        sides: Sequence[int | str],
        bounds: Mapping[str, tuple[int, int | None]],
        ends: tuple[str, str],
    ) -> None:
        rows, channels, height, width = sides
        fixed = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        super().__init__(fixed, (rows, rows) if isinstance(rows, int) else bounds[rows])
        self.graph_channels = int(channels)
        self.steps, self.sides, self.bounds = tuple(steps), tuple(sides), dict(bounds)
        self.entry, self.exit = ends
        self._weights, self._device = dict(weights), torch.device("cpu")

    @property
    def attends(self) -> bool:
        inner = (step.target for step in self.steps if step.outputs != self.exit)
        return any(_ATTENTION.fullmatch(target.split(".")[-2]) for target in inner)

    def logits(self, images: Tensor) -> Tensor:
        self._check_sides(images)
        if self._device != images.device:
            self._device = images.device
            self._weights = {name: tensor.to(self._device) for name, tensor in self._weights.items()}
        values: dict[str | None, Any] = {None: self._device, self.entry: images}
        values.update(self._weights)
        for step in self.steps:
            arguments, named = _filled(step.arguments, values), _filled(step.named, values)
            _keep(step.outputs, _callable(step.target)(*arguments, **named), values)
            for name in step.dropped:
                del values[name]
        return values[self.exit]  # type: ignore[no-any-return]

    def _check_sides(self, images: Tensor) -> None:
        seen = dict[str, int]()
        for side, length in zip(self.sides, images.shape, strict=True):
            least, most = self.bounds[side] if isinstance(side, str) else (side, side)
            if length < least or (most is not None and length > most) or seen.setdefault(str(side), length) != length:
                actual, expected = (" x ".join(map(str, sides)) for sides in (images.shape, self.sides))
                raise ModelError(f"the program takes images of {expected}, not of {actual}; give --img-size")

    def check_pure(self, size: tuple[int, int], path: Path) -> None:
        """Raise CheckpointError where a pass on zeros, (height, width), changes weights or images in place."""
        images = torch.zeros(self.rows[0], self.graph_channels, *size)
        watched = [*self._weights.values(), images]
        before = [tensor._version for tensor in watched]
        with torch.no_grad():
            self.logits(images)
        if before != [tensor._version for tensor in watched]:
            remedy = "call model.eval() before torch.export.export"
            raise CheckpointError(f"{path}: its program changes its own weights or its input as it runs; {remedy}")


def _filled(argument: Any, values: Mapping[str | None, Any]) -> Any:
    if isinstance(argument, _Value):
        return values[argument.name]
    if isinstance(argument, list | tuple):
        return [_filled(each, values) for each in argument]
    return {key: _filled(each, values) for key, each in argument.items()} if isinstance(argument, dict) else argument


def _keep(outputs: Any, result: Any, values: dict[str | None, Any]) -> None:
    if isinstance(outputs, list):
        for name, each in zip(outputs, result, strict=True):
            _keep(name, each, values)
    elif outputs is not None:
        values[outputs] = result


@lru_cache(maxsize=1024)
def _callable(target: str) -> Callable[..., Any]:
    """Return what a step calls. Raises KeyError for anything but arithmetic and `OPERATORS`, AttributeError where this
    torch does not have it."""
    if target in _NUMBERS:
        return _small(_NUMBERS[target])
    name, overload = _named(target)
    if name.removesuffix("_") not in OPERATORS:
        raise KeyError(target)
    function: Callable[..., Any] = getattr(getattr(torch.ops.aten, name), overload)
    return function


def _arguments(target: str) -> Sequence[Any]:
    return _callable(target)._schema.arguments  # type: ignore[attr-defined, no-any-return]


def _named(target: str) -> tuple[str, str]:
    match = _TARGET.fullmatch(target)
    return (match[1], match[2]) if match else ("", "")


def _small(compute: Callable[..., Any]) -> Callable[..., Any]:
    def computed(*numbers: Any) -> Any:
        result = compute(*numbers)
        if not abs(result) < 1 << 63:
            raise OverflowError(f"a size of {result:.0e}")
        return result

    return computed


# The archive


@dataclass(frozen=True)
class _Archive:
    """A zip whose members are stored as they are, so that none inflates; they are read by name and never extracted."""

    path: Path
    file: zipfile.ZipFile
    members: dict[str, zipfile.ZipInfo] = field(repr=False)

    @classmethod
    def open(cls, path: Path, content: bytes | None = None) -> _Archive:
        """Open a file, or the content of a member. Raises CheckpointError for no zip, and for one that inflates."""
        try:
            check_plain(path)
            file = zipfile.ZipFile(path if content is None else io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            what = f"not a program of torch.export ({first_line(error)})"
            raise CheckpointError(f"{path}: {what}; expected a .pt2 file of torch.export.save") from error
        members, held = dict[str, zipfile.ZipInfo](), path.stat().st_size if content is None else len(content)
        for info in file.infolist():
            name = info.filename
            odd = (
                name.startswith("/")
                or "\\" in name
                or ".." in name.split("/")
                or stat.S_ISLNK(info.external_attr >> 16)
            )
            held -= info.file_size
            for wrong, why in (
                (odd, "points outside of it"),
                (name in members, "occurs twice"),
                (info.flag_bits & 1, "is encrypted"),
                (info.compress_type != zipfile.ZIP_STORED, "is compressed, which torch never does"),
                (held < 0 or info.file_size < 0, f"claims {info.file_size >> 20} MB, more than the file has"),
            ):
                if wrong:
                    raise CheckpointError(f"{path}: member {name[:80]!r} {why}; refused: export it again")
            members[name] = info
        return cls(path, file, members)

    def read(self, name: str) -> bytes:
        """Return a member. CheckpointError where it is missing."""
        if name not in self.members:
            raise CheckpointError(f"{self.path}: no member {name[:80]!r} in it; it is cut short; export it again")
        return self.file.read(self.members[name])

    def json(self, name: str) -> Any:
        if self.members[name].file_size > _LARGEST:
            why = f"member {name[:80]!r} has {self.members[name].file_size >> 20} MB of text"
            raise CheckpointError(f"{self.path}: {why}; expected {_LARGEST >> 20} MB at most")
        return json_in(self.read(name))

    def program(self) -> tuple[str, str, bool]:
        """Return the member that is the program, the folder of all, and whether torch 2.8 or before wrote it."""
        matches = [re.fullmatch(r"([^/]+/)?models/([^/]+)\.json", name) for name in self.members]
        programs = [each for each in matches if each]
        if len(programs) == 1:
            return programs[0][0], programs[0][1] or "", False
        if not programs and "serialized_exported_program.json" in self.members:
            return "serialized_exported_program.json", "", True
        compiled = any("/aotinductor/" in name for name in self.members)
        what = "a compiled program (AOTInductor), which is native code" if compiled else "no program of torch.export"
        what = f"{len(programs)} programs" if programs else what
        raise CheckpointError(f"{self.path}: {what}; expected one, of torch.export.save")


def _read(path: Path, choice: str | int | None) -> tuple[ProgramNetwork, dict[str, str], tuple[str, ...]]:
    archive = _Archive.open(path)
    program, root, old = archive.program()
    name = program.removeprefix(f"{root}models/").removesuffix(".json")
    if archive.members.get(f"{root}byteorder") and archive.read(f"{root}byteorder").decode() != sys.byteorder:
        raise CheckpointError(f"{path}: written on a machine of another byte order; export it on one like this")
    content = archive.json(program)
    major = content["schema_version"]["major"]
    if major != _MAJOR:
        remedy = "export it again with torch 2.6 or newer"
        raise CheckpointError(f"{path}: a program of schema {major!r:.20}; expected {_MAJOR}; {remedy}")
    kinds = ("state_dict", "constants") if old else ("weights", "constants")
    tensors = [_tensors(archive, root, kind, name, old) for kind in kinds]
    prefix = "extra_files/" if old else f"{root}extra/"
    extra = [each for each in archive.members if each.startswith(prefix)]
    texts = {each.removeprefix(prefix): archive.read(each)[:_LARGEST].decode() for each in extra}
    network, notes = _network(path, content, tensors, choice)
    return network, texts, notes


def _tensors(archive: _Archive, root: str, kind: str, name: str, old: bool) -> dict[str, Tensor]:
    """Return weights or constants by their names. CheckpointError for pickles of anything but tensors."""
    listed = f"{root}data/{kind}/{name}_{kind}_config.json"
    pickled = f"serialized_{kind}.pt" if old else f"{root}data/{kind}/{name}.pt"
    if listed not in archive.members:
        tensors = _pickled(archive.path, archive.read(pickled))
    else:
        stored, tensors = dict[str, bytearray](), dict[str, Tensor]()
        for each, entry in archive.json(listed)["config"].items():
            place, meta = entry["path_name"], entry["tensor_meta"]
            if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", place):
                what = f"{each[:80]!r} is a pickled object, not a plain tensor"
                raise CheckpointError(f"{archive.path}: {what}; refused, since reading it may run code")
            if place not in stored:
                stored[place] = bytearray(archive.read(f"{root}data/{kind}/{place}"))
            tensors[each] = _tensor(meta, stored[place])
    refuse_odd(archive.path, tensors)
    return {each: tensor.detach() for each, tensor in tensors.items()}


def _pickled(path: Path, content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file of torch.save inside of an archive, as `weights_only` reads them."""
    _Archive.open(path, content)  # it is a zip itself, and bounded as the outer one
    try:
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds of errors here; each becomes one line
        what = f"its weights are a pickle that holds more than tensors ({first_line(error, 60).rstrip(' .')})"
        remedy = "refused, since reading it may run code; export it again with torch 2.9 or newer"
        raise CheckpointError(f"{path}: {what}; {remedy}") from error


def _tensor(meta: Mapping[str, Any], content: bytearray) -> Tensor:
    sizes, strides = ([each["as_int"] for each in meta[key]] for key in ("sizes", "strides"))
    dtype = _DTYPES[meta["dtype"]]
    flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.as_strided(sizes, strides, meta["storage_offset"]["as_int"])  # torch checks that they fit


# The program


def _network(
    path: Path,
    content: Mapping[str, Any],
    tensors: Sequence[Mapping[str, Tensor]],
    choice: str | int | None,
) -> tuple[ProgramNetwork, tuple[str, ...]]:
    """Return a program, and notes where it has several outputs. tensors: weights, and constants. choice: of
    the outputs, by place."""
    weights, constants = tensors
    graph, signature = content["graph_module"]["graph"], content["graph_module"]["signature"]
    held, entries = dict[str, Tensor](), list[str]()
    for each in signature["input_specs"]:
        ((kind, entry),) = each.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            name = entry[f"{kind}_name"]
            held[entry["arg"]["name"]] = weights[name] if name in weights else constants[name]
        elif kind == "user_input" and "as_tensor" in entry["arg"]:
            entries.append(entry["arg"]["as_tensor"]["name"])
        elif kind != "constant_input":
            raise CheckpointError(f"{path}: its input {kind} is not a tensor; expected images; export it so")
    if len(entries) != 1:
        raise CheckpointError(f"{path}: {len(entries)} inputs; expected one, images (B, 3, H, W); export it so")
    ends = [entry["arg"]["as_tensor"]["name"] for each in signature["output_specs"] for entry in each.values()]
    if not ends:
        raise CheckpointError(f"{path}: 0 outputs; expected logits (B, K); export it again")
    place, notes = 0, tuple[str, ...]()
    if choice is not None or len(ends) > 1:
        sides_of = [[each.get("as_int") for each in graph["tensor_values"][name]["sizes"][1:]] for name in ends]
        shapes = {str(number): (None, *some) for number, some in enumerate(sides_of)}
        place = int(chosen_output(str(path), shapes, choice))
        notes = (f"of {len(ends)} outputs of the program, {place} is taken as its logits",) * (len(ends) > 1)
    sides, bounds = _input(path, graph["tensor_values"][entries[0]], content["range_constraints"])
    _check_targets(path, graph["nodes"])
    nodes = [node for node in graph["nodes"] if _named(node["target"])[0] not in _SKIPPED]
    steps = _dropping([_step(path, node) for node in nodes], {*held, entries[0]}, ends[place])
    return ProgramNetwork(steps, held, sides, bounds, (entries[0], ends[place])), notes


def _input(
    path: Path, meta: Mapping[str, Any], ranges: Mapping[str, Any]
) -> tuple[list[int | str], dict[str, tuple[int, int | None]]]:
    """Return the four sides of the input and the bounds of their symbols."""
    if meta["dtype"] != _FLOAT32:
        remedy = "export it so, with other types inside"
        raise CheckpointError(f"{path}: its input is not float32; expected float32 images (B, 3, H, W); {remedy}")
    sides = list[int | str]()
    for each in meta["sizes"]:
        text = str(each["as_int"] if "as_int" in each else each["as_expr"]["expr_str"])
        if not (match := _SIDE.fullmatch(text)):
            what = f"a side of its input is {text[:40]!r}; expected a number or a dimension of its own"
            raise CheckpointError(f"{path}: {what}; export it with torch.export.Dim('batch') for the first one alone")
        sides.append(match["symbol"] or int(text))
    empty = any(isinstance(side, int) and side < 1 for side in sides)
    if len(sides) != 4 or empty or sides[1] not in range(1, MOST_CHANNELS + 1):
        shape = " x ".join(map(str, sides[:8]))
        raise CheckpointError(f"{path}: its input is {shape}; expected images of 1 to 16 channels, B x C x H x W")
    bounds = dict[str, tuple[int, int | None]]()
    for side in (side for side in sides if isinstance(side, str)):
        limits = ranges.get(side) or {}
        least, most = (limits.get(key) for key in ("min_val", "max_val"))
        bounds[side] = max(1, int(least or 1)), None if most is None else int(most)
    return sides, bounds


def _check_targets(path: Path, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raise CheckpointError for calls of anything but `OPERATORS`, and for those of a network that is still trained."""
    strange = list[str]()
    for target in dict.fromkeys(node["target"] for node in nodes):
        if _named(target)[0] not in _SKIPPED:
            try:
                _callable(target)
            except (KeyError, AttributeError):
                strange.append(re.sub(r"[^\w.:]", "?", target.removeprefix("torch.ops."))[:60])
    if strange:
        more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
        what = (
            f"operators that are not of a plain network in torch {torch.__version__} ({', '.join(strange[:3])}{more})"
        )
        remedy = "export it without run_decompositions, or with torch.onnx.export and give onnx:FILE"
        raise CheckpointError(f"{path}: {what}; {remedy}")
    for node in nodes:
        arguments = {each["name"]: each["arg"] for each in node["inputs"]}
        if "running_mean" in arguments and "as_none" in arguments["running_mean"]:
            continue  # a normalisation without statistics of training has but one mode
        for name in _TRAINING:
            if any(arguments.get(name, {}).values()):
                what = f"{node['target'].removeprefix('torch.ops.')} in training mode"
                raise CheckpointError(f"{path}: {what}; call model.eval() before torch.export.export")


def _step(path: Path, node: Mapping[str, Any]) -> _Step:
    arguments = [(each["name"], _argument(path, each["arg"])) for each in node["inputs"]]
    scales = [scale for _, value in arguments for scale in (value if isinstance(value, list) else [value])]
    if "upsample" in node["target"] and any(isinstance(s, float) and not 1e-3 <= s <= 1e3 for s in scales):
        raise ValueError("an image resized by a factor outside of 1/1000 to 1000")  # torch takes any, and crashes
    target, outputs = node["target"], [_output(each) for each in node["outputs"]]
    made = outputs[0] if len(outputs) == 1 else outputs or None
    if target in _NUMBERS:
        return _Step(target, tuple(value for _, value in arguments), {}, made)
    if odd := {name for name, _ in arguments} - {each.name for each in _arguments(target)}:
        raise ValueError(f"{target} has no argument {', '.join(sorted(odd))}")
    return _Step(target, (), dict(arguments), made)


def _argument(path: Path, argument: Mapping[str, Any]) -> Any:
    """Return a number, a type, a name, or a list of these. CheckpointError for graphs, objects and operators."""
    ((kind, value),) = argument.items()
    plain: dict[str, Callable[[Any], Any]] = {
        "as_none": lambda _: None,
        "as_tensor": lambda found: _Value(found["name"]),
        "as_name": _Value,
        "as_int": int,
        "as_float": float,
        "as_bool": bool,
        "as_string": str,
        "as_scalar_type": _DTYPES.__getitem__,
        "as_memory_format": _FORMATS.__getitem__,
        "as_layout": {_STRIDED: torch.strided}.__getitem__,
        "as_device": lambda _: _Value(None),
    }
    if kind in plain:
        return plain[kind](value)
    if kind in ("as_sym_int", "as_sym_float", "as_sym_bool", "as_optional_tensor"):
        return _argument(path, value)
    if kind in ("as_ints", "as_floats", "as_bools"):
        return [plain[kind.removesuffix("s")](each) for each in value]
    if kind == "as_tensors":
        return [_Value(each["name"]) for each in value]
    if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools", "as_optional_tensors"):
        return [_argument(path, each) for each in value]
    what = f"an argument of kind {kind[:40]!r}"
    raise CheckpointError(f"{path}: {what}; expected tensors and numbers; export it with torch.onnx.export")


def _output(output: Mapping[str, Any]) -> Any:
    ((kind, value),) = output.items()
    if kind in ("as_none", "as_tensors"):
        return [each["name"] for each in value] if kind == "as_tensors" else None
    return value["name" if kind == "as_tensor" else "as_name"]


def _needs(part: Any) -> Iterator[str]:
    if isinstance(part, _Value):
        yield from [] if part.name is None else [part.name]
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _needs(each)


def _made(outputs: Any) -> list[str]:
    if isinstance(outputs, list):
        return [name for each in outputs for name in _made(each)]
    return [] if outputs is None else [outputs]


def _dropping(steps: Sequence[_Step], defined: set[str], end: str) -> list[_Step]:
    """Return the steps, each with the names that no later one needs. Raises ValueError where a name is not known when
    it is needed, or is made twice."""
    names = [({*_needs([*step.arguments, *step.named.values()])}, _made(step.outputs)) for step in steps]
    for needed, made in names:
        if not needed <= defined or defined & {*made} or len({*made}) < len(made):
            raise ValueError(f"{', '.join(sorted((needed - defined) | (defined & {*made})))} not known, or made twice")
        defined |= {*made}
    if end not in defined:
        raise ValueError(f"nothing makes its output {end!r}")
    later, shortened = {end}, list[_Step]()
    for step, (needed, made) in zip(reversed(steps), reversed(names), strict=True):
        last = {*needed, *made} - later
        later |= last
        shortened.append(replace(step, dropped=tuple(sorted(last))))
    return shortened[::-1]
