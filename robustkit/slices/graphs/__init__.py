"""Read classifiers that were exported to a graph, ONNX's or torch.export's: they are run as they are."""

from typing import Any

from ...models.specs import CheckpointReader


def _load_onnx(*asked: Any) -> Any:
    from .onnx_file import load_onnx

    return load_onnx(*asked)


def _load_program(*asked: Any) -> Any:
    from .program import load_program

    return load_program(*asked)


ONNX = CheckpointReader(_load_onnx, options=frozenset({"output", "custom_ops"}))
PT2 = CheckpointReader(_load_program, options=frozenset({"output"}))
