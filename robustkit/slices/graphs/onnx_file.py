"""Classifiers exported to ONNX, run by onnxruntime: what ships, without its gradients.

Before a session is made, the graph alone is read and bounded: its size, its weights next to it, its operators, its
input and its output. onnxruntime runs operators of its own, and no code that is in a file; `custom_ops` names a library
of the user's that has others.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...common.environment import import_extra
from ...common.files import bytes_of, check_plain, first_line, reason_of
from ...common.preprocessing import MOST_CHANNELS
from ...errors import CheckpointError, ModelError
from ...models.checkpoint import checkpoint_metadata, sha256
from ...models.identity import Classifier
from ...models.input_config import InputOptions
from ...models.outputs import chosen_output
from ...models.specs import ModelFile
from .exported import ExportedNetwork, exported_classifier, refuse_options

_LARGEST = 2 << 30  # bytes of a file: protocol buffers hold no more
_ROOM = 1 << 26  # bytes that weights may take beyond four times what the files hold
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_ATTENTION = re.compile(r"\w*Attention|(QLinear)?Softmax|FusedMatMul")
_LOOPS = ("Loop", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
_RUNS = 1 << 20  # operators that one pass may run
_DEEPEST = 64  # graphs and functions inside of each other
_IMAGES = "images (B, 3, H, W)"
_NOTE = "an exported model without gradients: attacks and maps that need them do not apply"


def load_onnx(source: ModelFile, spec: str, options: InputOptions, features: bool) -> Classifier:
    """Return the classifier of an ONNX file. Raises ModelError or CheckpointError, one line with the remedy."""
    refuse_options(spec, options, features)
    libraries = [import_extra(name, "onnx", spec) for name in ("onnx", "onnxruntime")]
    custom = None if options.custom_ops is None else Path(options.custom_ops)
    file = _File.read(source.path, libraries[0], options.output, any_operator=custom is not None)
    network = OnnxNetwork(source.path, file.size, file.rows, libraries[1], custom, file.output)
    notes = (_NOTE, *file.notes)
    more: dict[str, Any] = {"arch": "onnx", "sha256": file.digest(), "attends": file.attends, "notes": notes}
    more["code_sha256"] = None if custom is None else sha256(custom)
    return exported_classifier(network, source, spec, options, file.metadata, **more)


class OnnxNetwork(ExportedNetwork):
    """A graph of ONNX, run by onnxruntime on the CPU, without gradients. custom: a library of operators, or None.
    output: the name of what is taken of its outputs; None: there is but one."""

    def __init__(
        self,
        path: Path,
        fixed_size: tuple[int, int] | None,
        rows: tuple[int, int | None],
        runtime: ModuleType,
        custom: Path | None = None,
        output: str | None = None,
    ) -> None:
        super().__init__(fixed_size, rows)
        self.path, self.custom, self.output = path, custom, output
        self._session = _session(path, runtime, custom)
        channels = self._session.get_inputs()[0].shape[1]
        self.graph_channels = channels if isinstance(channels, int) else 3

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = _session(self.path, import_extra("onnxruntime", "onnx", str(self.path)), self.custom)

    def logits(self, images: Tensor) -> Tensor:
        (entry,) = self._session.get_inputs()
        try:
            (logits,) = self._session.run(
                self.output and [self.output], {entry.name: images.detach().to("cpu", torch.float32).numpy()}
            )
        except Exception as fault:  # onnxruntime's own kinds are no subclasses of a usual one
            raise RuntimeError(f"onnxruntime failed: {first_line(fault)}") from fault
        return torch.from_numpy(logits).to(images.device)


def _session(path: Path, runtime: ModuleType, custom: Path | None) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    if custom is not None:
        try:
            check_plain(custom)
            options.register_custom_ops_library(str(custom.resolve()))
        except Exception as fault:  # of the file, of the library's own code, and onnxruntime's kinds
            why = f"cannot be loaded ({first_line(fault)})"
            raise ModelError(f"--custom-ops {custom}: {why}; expected a library built for onnxruntime") from fault
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as fault:  # onnxruntime's own kinds, and those of damaged files
        why = f"onnxruntime {runtime.__version__} does not load it ({first_line(fault)})"
        raise CheckpointError(f"{path}: {why}; export it again, with an opset that this version has") from fault


@dataclass(frozen=True)
class _File:
    """An ONNX file that was checked. outside: files of weights next to it. size, rows: see `ExportedNetwork`. output:
    the name of its logits. attends: whether it has a softmax that is not its output, or an operator of attention.
    """

    path: Path
    outside: tuple[Path, ...]
    metadata: dict[str, Any]
    size: tuple[int, int] | None
    rows: tuple[int, int | None]
    output: str
    attends: bool
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, onnx: ModuleType, choice: str | int | None = None, any_operator: bool = False) -> _File:
        """Read and check a graph. choice: of its outputs. any_operator: a library of the user's may have it. Raises
        CheckpointError, or ModelError for a choice that it does not have, or needs."""
        try:
            content = bytes_of(path, _LARGEST)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({reason_of(error)}); expected an ONNX file") from error
        try:
            model = onnx.load_model_from_string(content)
        except Exception as error:  # protocol buffers have kinds of their own
            why = f"not an ONNX file ({first_line(error, 80)})"
            raise CheckpointError(f"{path}: {why}; expected one that torch.onnx.export wrote") from error
        if not model.graph.node:
            raise CheckpointError(f"{path}: not an ONNX file (it has no graph); expected one of torch.onnx.export")
        nodes = [node for graph in _graphs(model) for node in graph.node]
        if not any_operator:
            _check_operators(path, model, nodes)
        _check_rounds(path, model, onnx)
        outside = _check_weights(path, model, nodes, len(content), onnx)
        size, rows = _check_input(path, model.graph, onnx)
        output, notes = _output(path, model.graph, choice, onnx)
        inner = (node for node in nodes if output not in node.output)
        metadata = checkpoint_metadata(path, {entry.key: entry.value for entry in model.metadata_props})
        attends = any(_ATTENTION.fullmatch(node.op_type) for node in inner)
        return cls(path, outside, metadata, size, rows, output, attends, notes)

    def digest(self) -> str:
        """Return the hex digest of the file and, by name, of what it keeps next to it."""
        digest = hashlib.sha256()
        for part in (self.path, *self.outside):
            digest.update(b"" if part == self.path else f"\n{part.name}\n".encode())
            with part.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        return digest.hexdigest()


def _graphs(model: Any) -> Iterator[Any]:
    """Yield the graph, the functions of a model, and the graphs inside of them, of loops and branches."""
    waiting = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for attribute in (each for node in graph.node for each in node.attribute):
            waiting += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _check_operators(path: Path, model: Any, nodes: list[Any]) -> None:
    functions = {(function.domain, function.name) for function in model.functions}
    strange = [n for n in nodes if n.domain not in _DOMAINS and (n.domain, n.op_type) not in functions]
    if strange:
        named = sorted({f"{node.domain}:{node.op_type}"[:60] for node in strange})
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        what = f"operators that are not onnxruntime's own ({', '.join(named[:3])}{more})"
        remedy = "export it with standard operators, or give a library that you trust as --custom-ops"
        raise CheckpointError(f"{path}: {what}, which need code; {remedy}")


def _check_rounds(path: Path, model: Any, onnx: ModuleType) -> None:
    """Raise CheckpointError for loops whose rounds the file does not bound, and for more operators in all than a pass
    may run: those of a loop count in each of its rounds, those of a function wherever it is called.
    """
    functions = {(function.domain, function.name): function for function in model.functions}
    counted: dict[tuple[str, str], int] = {}

    def runs(graph: Any, outer: dict[str, int], depth: int) -> int:
        if depth > _DEEPEST:
            raise CheckpointError(f"{path}: graphs or functions more than {_DEEPEST} deep; export it again")
        numbers = {**outer, **_numbers(graph, onnx)}
        return sum(runs_of(node, numbers, depth + 1) for node in graph.node)

    def runs_of(node: Any, numbers: dict[str, int], depth: int) -> int:
        inside = [each for part in node.attribute for each in (*([part.g] if part.HasField("g") else []), *part.graphs)]
        once = 1 + sum(runs(graph, numbers, depth) for graph in inside)
        if (called := (node.domain, node.op_type)) in functions:
            if called not in counted:
                counted[called] = runs(functions[called], {}, depth)
            once += counted[called]
        elif node.op_type in _LOOPS:
            rounds = numbers.get(node.input[0]) if node.op_type == "Loop" and node.input else None
            if rounds is None:
                what = f"the number of rounds of its {node.op_type} {node.name[:40]!r} is no constant of the file"
                raise CheckpointError(f"{path}: {what}, so it may never end; export it with the loop unrolled")
            once *= max(1, rounds)
        return once

    if (total := runs(model.graph, {}, 0)) > _RUNS:
        what = f"with its loops it runs {total:.1e} operators for an image"
        raise CheckpointError(f"{path}: {what}; expected {_RUNS:,} at most; export it with shorter loops")


def _numbers(graph: Any, onnx: ModuleType) -> dict[str, int]:
    """Return the whole numbers that a graph holds as constants, by name."""
    tensors = [(tensor.name, tensor) for tensor in getattr(graph, "initializer", ())]
    numbers = dict[str, int]()
    for node in graph.node:
        for each in node.attribute if node.op_type == "Constant" and len(node.output) == 1 else ():
            if each.name == "value":
                tensors.append((node.output[0], each.t))
            elif each.name == "value_int":
                numbers[node.output[0]] = each.i
    for name, tensor in tensors:
        inside = tensor.data_location != onnx.TensorProto.EXTERNAL
        if inside and tensor.data_type == onnx.TensorProto.INT64 and [*tensor.dims] in ([], [1]):
            values = [*tensor.int64_data] or [int.from_bytes(tensor.raw_data[:8], "little", signed=True)]
            numbers[name] = values[0]
    return numbers


def _check_weights(path: Path, model: Any, nodes: list[Any], held: int, onnx: ModuleType) -> tuple[Path, ...]:
    """Return the files next to a graph that it takes weights from. Raises CheckpointError for odd places and sizes."""
    graphs = [graph for graph in _graphs(model) if hasattr(graph, "initializer")]  # functions have none
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    sparse = [each for graph in graphs for each in graph.sparse_initializer]
    for attribute in (each for node in nodes for each in node.attribute):
        tensors += [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
        sparse += [*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else [])]
    tensors += [part for each in sparse for part in (each.values, each.indices)]
    claimed, outside = 0, dict[str, Path]()
    for tensor in tensors:
        if any(side < 0 for side in tensor.dims):
            raise CheckpointError(f"{path}: tensor {tensor.name[:80]!r} has a negative side; the file is damaged")
        try:
            each = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        except (KeyError, TypeError, ValueError):
            each = 1  # of text, or below a byte
        claimed += math.prod(tensor.dims) * each
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            location = entries.get("location", "")
            outside[location] = outside.get(location) or _next_to(path, location)
    held += sum(file.stat().st_size for file in outside.values())
    if claimed > 4 * held + _ROOM:
        why = f"{held >> 20} MB of files claim to be {claimed >> 20} MB of weights"
        raise CheckpointError(f"{path}: {why}; refused, since it would exhaust the memory; export it again")
    return tuple(outside[name] for name in sorted(outside))


def _next_to(path: Path, location: str) -> Path:
    """Return a file of weights in the folder of a graph, or below. CheckpointError for any other place."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    odd = not location or posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts)
    file, folder = path.parent / location, path.parent.resolve()
    if odd or not file.resolve().is_relative_to(folder):
        what = f"weights in {location[:80]!r}, outside of its folder"
        raise CheckpointError(f"{path}: {what}; refused: expected a file next to it; export it again")
    try:
        check_plain(file)
    except OSError as error:
        why = f"its weights {location[:80]!r} cannot be read ({reason_of(error)})"
        raise CheckpointError(f"{path}: {why}; put that file next to it") from error
    return file


def _check_input(path: Path, graph: Any, onnx: ModuleType) -> tuple[tuple[int, int] | None, tuple[int, int | None]]:
    """Return (height, width) and the numbers of images that a graph takes, as `ExportedNetwork` has them."""
    weights = {tensor.name for tensor in graph.initializer}
    entries = [entry for entry in graph.input if entry.name not in weights]
    if len(entries) != 1:
        named = ", ".join(entry.name[:40] for entry in entries[:4])
        raise CheckpointError(f"{path}: {len(entries)} inputs ({named}); expected one, {_IMAGES}; export it so")
    _check_type(path, "input", entries[0], _IMAGES, onnx)
    sides = [_side(each) for each in entries[0].type.tensor_type.shape.dim]
    empty = any(side is not None and side < 1 for side in sides)
    if len(sides) != 4 or empty or (sides[1] or 1) > MOST_CHANNELS:
        shape = " x ".join("?" if side is None else str(side) for side in sides)
        raise CheckpointError(f"{path}: its input is {shape}; expected images of 1 to 16 channels, B x C x H x W")
    rows, _, height, width = sides
    return (None if height is None or width is None else (height, width)), (rows or 1, rows)


def _output(path: Path, graph: Any, choice: str | int | None, onnx: ModuleType) -> tuple[str, tuple[str, ...]]:
    """Return the name of the output that are the logits, and notes where there are others."""
    if not graph.output:
        raise CheckpointError(f"{path}: no output; expected logits (B, K); export it again")
    by_name = {entry.name: entry for entry in graph.output}
    name = graph.output[0].name
    if choice is not None or len(by_name) > 1:
        sides = {name: [_side(each) for each in entry.type.tensor_type.shape.dim] for name, entry in by_name.items()}
        shapes = {name: (None, *of_one[1:]) if of_one else () for name, of_one in sides.items()}
        name = chosen_output(str(path), shapes, choice)
    _check_type(path, "output", by_name[name], "logits (B, K)", onnx)
    return name, (f"of {len(by_name)} outputs of the graph, {name} is taken as its logits",) * (len(by_name) > 1)


def _check_type(path: Path, what: str, entry: Any, expected: str, onnx: ModuleType) -> None:
    if (kind := entry.type.tensor_type.elem_type) != onnx.TensorProto.FLOAT:
        name = onnx.TensorProto.DataType.Name(kind).lower()
        remedy = "export it so, with other types inside"
        raise CheckpointError(f"{path}: its {what} is {name}; expected float32 {expected}; {remedy}")


def _side(dimension: Any) -> int | None:
    return int(dimension.dim_value) if dimension.HasField("dim_value") else None
