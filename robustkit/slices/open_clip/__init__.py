"""Read zero-shot checkpoints in open_clip's layout, which are folders."""

from typing import Any

from ...models.specs import OPEN_CLIP, Reader


def _load(*asked: Any) -> Any:
    from .folder import load_open_clip

    return load_open_clip(*asked)


READER = Reader(_load, files=(OPEN_CLIP, "open_clip_model.safetensors"))
