"""Write robustkit/pipeline/keywords.pyi: the keywords of `robustkit.audit` and its siblings, for editors and mypy.

python -m scripts.pages.keywords            write the stub
python -m scripts.pages.keywords --check    status 1 where the stub is another one
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from robustkit.common.options import options_of
from robustkit.pipeline.request import (
    ClassificationRequest,
    FeatureRequest,
    Request,
    SegmentationRequest,
    SeriesRequest,
    TextRequest,
)

STUB = Path(__file__).parents[2] / "robustkit" / "pipeline" / "keywords.pyi"
CLASSES: dict[str, type[Request]] = {
    "AuditOptions": ClassificationRequest,
    "SegmentOptions": SegmentationRequest,
    "FeaturesOptions": FeatureRequest,
    "SeriesOptions": SeriesRequest,
    "TextOptions": TextRequest,
}
HEAD = """# Made by `python -m scripts.pages.keywords` from robustkit/pipeline/request.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from typing_extensions import Required

from .request import Preset
"""


def stub() -> str:
    """Return the whole stub."""
    return HEAD + "".join(line for name, kind in CLASSES.items() for line in _lines(name, kind))


def _lines(name: str, kind: type[Request]) -> Iterator[str]:
    yield f"\nclass {name}(TypedDict, total=False):\n"
    for each in options_of(kind):
        if each.name in ("checkpoints", "data_dir"):
            continue
        annotation = each.keyword.replace("'", '"')
        if each.default is MISSING and not each.group:
            annotation = f"Required[{annotation}]"
        yield f"    {each.name}: {annotation}\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if STUB.read_text(encoding="utf-8") == stub() else 1)
    STUB.write_text(stub(), encoding="utf-8")
