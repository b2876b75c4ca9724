"""The picture of the floors in ARCHITECTURE.md, from the imports that the code has.

    python -m scripts.pages.floors [--check]

Rooms stand on the floors that the contract in pyproject.toml gives them; next to each room stands what it imports.
Slices stand on top, whichever there are.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LEAVES = ("attacks", "corruptions", "cam")
START, END = "<!-- floors: made by scripts/pages/floors.py -->\n", "<!-- /floors -->\n"


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the top floor first, as the contract has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "rooms")
    return [[room.strip() for room in layer.split("|")] for layer in layers]


def rooms_of_imports(path: Path) -> Iterator[str]:
    """Yield the room, or the leaf, of each import of a module of `robustkit`."""
    place = path.relative_to(ROOT).with_suffix("").parts
    package = place if path.name == "__init__.py" else place[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names if name.name.split(".")[0] in LEAVES)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".") if node.module else []
            whole = [*package[: len(package) - node.level + 1], *module] if node.level else module
            if whole[0] in LEAVES:
                yield whole[0]
            elif whole[0] == "robustkit":
                yield from [whole[1]] if len(whole) > 1 else [name.name for name in node.names]


def picture() -> str:
    """Return the floors as text, a line per room: what it imports of other rooms and of the leaves."""
    (_, *rooms) = floors()  # slices may be missing
    every = [room for floor in rooms for room in floor]
    width = max(map(len, every))
    lines = ["slices: a folder each, on top; no room imports them"]
    lines.append("─" * (width + 2))
    for floor in rooms:
        for room in floor:
            place = ROOT / "robustkit" / room
            files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
            used = {name for path in files for name in rooms_of_imports(path)} - {room, "errors"}
            named = [name for name in (*every, *LEAVES) if name in used]
            lines.append(f"{room:{width}}  {'→ ' + ', '.join(named) if named else ''}".rstrip())
        lines.append("─" * (width + 2))
    return "\n".join([*lines, f"{', '.join(LEAVES)}: leaves, which import nothing of robustkit"]) + "\n"


def main() -> int:
    """Write the picture into ARCHITECTURE.md, or say whether it is there. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where the picture is another")
    check = parser.parse_args().check
    page = ROOT / "ARCHITECTURE.md"
    text = page.read_text("utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    new = f"{before}{START}```\n{picture()}```\n{END}{after}"
    if check:
        return int(new != text)
    page.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
