"""Read classifiers that were exported to a graph, ONNX's or torch.export's: they are run as they are."""

from typing import Any

from ...models.specs import Reader


def _load_onnx(*asked: Any) -> Any:
    from .onnx_file import load_onnx

    return load_onnx(*asked)


def _load_program(*asked: Any) -> Any:
    from .program import load_program

    return load_program(*asked)


ONNX = Reader(_load_onnx, options=frozenset({"output", "custom_ops"}))
PT2 = Reader(_load_program, options=frozenset({"output"}))
