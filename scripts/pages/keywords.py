"""Write the keywords of `robustkit.audit` and its siblings, for editors and mypy.

There is a keywords.pyi for the core and one for each slice; robustkit/__init__.pyi names the functions of slices.

python -m scripts.pages.keywords            write the stubs
python -m scripts.pages.keywords --check    status 1 where a stub is another one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from pkgutil import resolve_name

from robustkit.common.options import options_of
from robustkit.pipeline.request import ClassificationRequest, Request, SegmentationRequest

PACKAGE = Path(__file__).parents[2] / "robustkit"
SLICES = sorted(
    path.parent.name for path in PACKAGE.glob("slices/*/__init__.py") if "(Request):" in path.read_text("utf-8")
)
IMPORTS = {
    "collections.abc": ("Iterable", "Mapping", "Sequence"),
    "pathlib": ("Path",),
    "typing": ("Any", "Literal", "TypedDict"),
    "typing_extensions": ("Required",),
    ".request": ("Preset",),
}
_OF_SLICE = re.compile(r"^from \.slices\..*\n", re.MULTILINE)


def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    core = {"AuditOptions": ClassificationRequest, "SegmentOptions": SegmentationRequest}
    made = {PACKAGE / "pipeline" / "keywords.pyi": _stub("robustkit/pipeline/request.py", core)}
    for name in SLICES:
        request = resolve_name(f"robustkit.slices.{name}.plan:{name}").request
        text = _stub(f"robustkit/slices/{name}/__init__.py", {f"{name.capitalize()}Options": request})
        made[PACKAGE / "slices" / name / "keywords.pyi"] = text
    top = PACKAGE / "__init__.pyi"
    text = top.read_text("utf-8")
    of_tasks = [f"from .slices.{name}.plan import {name} as {name}\n" for name in SLICES]
    lines = sorted({*_OF_SLICE.findall(text), *of_tasks})
    made[top] = _OF_SLICE.sub("", text).replace("\n\n__version__", f"\n{''.join(lines)}\n__version__")
    return made


def _stub(made_from: str, classes: dict[str, type[Request]]) -> str:
    body = "".join(line for name, kind in classes.items() for line in _lines(name, kind))
    text = f"# Made by `python -m scripts.pages.keywords` from {made_from}.\n"
    for module, names in IMPORTS.items():
        if used := [name for name in names if re.search(rf"\b{name}\b", body)]:
            text += "\n" * (module in ("typing_extensions", ".request")) + f"from {module} import {', '.join(used)}\n"
    return text + body


def _lines(name: str, kind: type[Request]) -> Iterator[str]:
    yield f"\nclass {name}(TypedDict, total=False):\n"
    own = {each.name for each in options_of(kind)}
    for each in options_of(kind):
        if each.name in ("checkpoints", "data_dir"):
            continue
        annotation = each.keyword.replace("'", '"')
        if each.default is MISSING and not each.group:
            annotation = f"Required[{annotation}]"
        yield f"    {each.name}: {annotation}\n"
        entries = options_of(each.group) if each.group else []
        yield from (f"    {entry.name}: Any\n" for entry in entries if entry.name not in own)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if all(path.read_text(encoding="utf-8") == text for path, text in stubs().items()) else 1)
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
