"""Read zero-shot checkpoints in open_clip's layout, which are folders."""

from typing import Any

from ...models.specs import OPEN_CLIP, CheckpointReader


def _load(*asked: Any) -> Any:
    from .folder import load_open_clip

    return load_open_clip(*asked)


READER = CheckpointReader(_load, files=(OPEN_CLIP, "open_clip_model.safetensors"))
