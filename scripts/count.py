"""Count what the house costs: modules, lines, small modules with one importer, hooks, words.

`python -m scripts.count [ROOT]` prints a line for each; `--list` names what is behind the numbers.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

PACKAGES = ("robustkit", "attacks", "cam", "corruptions")
SLICES = "robustkit.slices"
SMALL = 120
PASSED = """
import sys, threading
from pathlib import Path
import robustkit
from robustkit.pipeline import {module} as module
root, seen = Path.cwd(), set()
def look(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        place = Path(frame.f_code.co_filename)
        if place.is_relative_to(root) and place.relative_to(root).parts[0] in {packages}:
            seen.add(str(place.relative_to(root)))
def watched(worker, checkpoint, work):
    clean, attacked = [], []
    for shard, texts in work:
        clean.append((shard, [text for text in texts if text == "clean"]))
        attacked.append((shard, [text for text in texts if text != "clean"]))
    whole(worker, checkpoint, clean)
    threading.setprofile(look); sys.setprofile(look)
    try:
        return whole(worker, checkpoint, attacked)
    finally:
        sys.setprofile(None); threading.setprofile(None)
owner, name = {owner}, "{name}"
whole = getattr(owner, name)
setattr(owner, name, watched)
robustkit.audit(["zoo:shapes-vit-standard"], data_dir="embedded:shapes", attacks=["pgd(steps=2)"], limit=4,
    out=sys.argv[1], device="cpu", setup_check=False)
print("\\n".join(sorted(seen)))
"""


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the four packages by module."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def imports_of(module: str, path: Path, known: Container[str]) -> Iterator[str]:
    """Yield the known modules that a module imports, wherever it does."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*above, *([node.module] if node.module else [])])
            inner = (f"{whole}.{name.name}" for name in node.names)
            yield from (place for name in inner if (place := name if name in known else whole) in known)


def lonely(root: Path) -> dict[str, str]:
    """Return modules under 120 lines that one module imports, which lies in the same folder, and that module."""
    known = modules(root)
    importers: dict[str, set[str]] = {}
    for module, path in known.items():
        for name in imports_of(module, path, known):
            importers.setdefault(name, set()).add(module)
    return {
        module: next(iter(who))
        for module, who in importers.items()
        if len(who) == 1
        and module.rpartition(".")[0] == next(iter(who)).rpartition(".")[0]
        and known[module].name != "__init__.py"
        and len(known[module].read_text("utf-8").splitlines()) < SMALL
    }


def sizes(root: Path) -> tuple[int, int]:
    """Return the lines of the core, and those of slices."""
    counted = {module: len(path.read_text("utf-8").splitlines()) for module, path in modules(root).items()}
    slices = sum(lines for module, lines in counted.items() if module.startswith(SLICES))
    return sum(counted.values()) - slices, slices


def since(root: Path, core: int) -> str:
    """Return by how many lines the core differs from `origin/main`, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", "-o", f"{folder}/it.tar", "origin/main", *PACKAGES]
        if subprocess.run(command, cwd=root, capture_output=True, check=False).returncode:
            return ""
        subprocess.run(["tar", "xf", "it.tar"], cwd=folder, check=True)
        return f" ({core - sizes(Path(folder))[0]:+d} in the core since origin/main)"


def trees(root: Path) -> dict[str, ast.Module]:
    """Return what the packages, the examples and the page for plug-ins hold, by module."""
    texts = {module: path.read_text("utf-8") for module, path in modules(root).items()}
    for path in (root / "examples").rglob("*.py"):
        texts[".".join(path.relative_to(root).with_suffix("").parts)] = path.read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", (root / EXTENDING).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    texts |= {f"{EXTENDING}, block {number}": block for number, block in enumerate(blocks)}
    return {module: ast.parse(text) for module, text in texts.items()}


def defined(node: ast.ClassDef) -> set[str]:
    """Return the methods and attributes that the body of a class defines."""
    assigned = (part for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign)))
    targets = (
        each for part in assigned for each in ([part.target] if isinstance(part, ast.AnnAssign) else part.targets)
    )
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names | {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def hooks(root: Path) -> dict[str, dict[str, list[str]]]:
    """Return the methods of the interfaces of families, by interface, and the fields of the vocabulary; for each, the
    classes in use that override it, themselves or by a base that several share. What gives the parts of a `Family` is
    none.
    """
    packages = {module for module, path in modules(root).items() if path.name == "__init__.py"}
    nodes: dict[tuple[str, str], ast.ClassDef] = {}
    bases, used = dict[tuple[str, str], list[tuple[str, str]]](), set[tuple[str, str]]()
    for module, tree in trees(root).items():
        own = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        sources = dict.fromkeys(own, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                above = module.split(".")[: -node.level + (module in packages) or None] if node.level else []
                sources |= {name.name: ".".join([*above, *filter(None, [node.module])]) for name in node.names}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own:
                used.add((module, node.func.id))
        for name, node in own.items():
            if "words" in defined(node):  # of a family, which takes its parts by their words
                used.add((module, name))
            nodes[module, name] = node
            bases[module, name] = [(sources.get(base, ""), base) for base in map(ast.unparse, node.bases)]
    room = "robustkit.evaluations"
    interfaces = [key for key in nodes if key[1] in INTERFACES and key[0].rpartition(".")[0] == room]

    def line(key: tuple[str, str]) -> list[tuple[str, str]]:
        return [key, *(above for base in bases.get(key, ()) for above in line(base))]

    def users(interface: tuple[str, str], method: str) -> list[str]:
        """Return the classes in use that have an interface and override a method of it."""
        lines = {key: line(key) for key in used}
        return sorted(
            f"{module.removeprefix('robustkit.')}.{name}"
            for (module, name), some in lines.items()
            if interface in some
            and any(method in defined(nodes[key]) for key in some if key in nodes and key not in interfaces)
        )

    found = {}
    for key in interfaces:
        methods = [part.name for part in nodes[key].body if isinstance(part, ast.FunctionDef)]
        if key[1] == "Vocabulary":
            methods += [ast.unparse(part.target) for part in nodes[key].body if isinstance(part, ast.AnnAssign)]
        found[key[1]] = {name: users(key, name) for name in methods if name not in PARTS}
    return {name: methods for name, methods in found.items() if methods}


EXTENDING = "docs/how-to/extending.md"
PARTS = ("evaluator", "aggregator", "presenter")
INTERFACES = ("Family", "Vocabulary", "Evaluator", "Aggregator", "Presenter")


def passed(root: Path, module: str, place: str) -> list[str]:
    """Return the modules whose functions run while units of PGD are read, computed, written and reported.

    place: of what computes units, in the module.
    """
    owner, _, name = f"module.{place}".rpartition(".")
    code = PASSED.format(packages=PACKAGES, module=module, owner=owner, name=name)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, str(Path(folder) / "run")]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.split()


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", action="store_true", help="Name what is behind the numbers.")
    parser.add_argument("--entry", default="units:Worker.compute", help="What computes a unit, module:function.")
    options = parser.parse_args()
    root = options.root.resolve()
    known = modules(root)
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in known.values())
    alone, interfaces = lonely(root), hooks(root)
    way = passed(root, *options.entry.split(":"))
    words = sum(len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md"))
    core, slices = sizes(root)
    of_slices = sum(module.startswith(SLICES) for module in known)
    print(f"modules {len(known)}: core {len(known) - of_slices}, slices {of_slices}")
    print(f"lines {lines}: core {core}, slices {slices}{since(root, core)}")
    print(f"one importer, same folder, under {SMALL} lines {len(alone)}")
    users = [len(overriding) for methods in interfaces.values() for overriding in methods.values()]
    print(f"hooks {len(users)} in {len(interfaces)} interfaces, fields of the vocabulary included")
    print(f"hooks with a single user {users.count(1)}, with none {users.count(0)}")
    print(f"modules that a batch of PGD passes {len(way)}\nwords in docs {words}")
    if options.list:
        print(*(f"{module} <- {one}" for module, one in sorted(alone.items())), *way, sep="\n")
        for interface, methods in interfaces.items():
            print(f"{interface}: {len(methods)}")
            print(*(f"  {name}, {len(some)}: {', '.join(some)}" for name, some in methods.items()), sep="\n")


if __name__ == "__main__":
    main()
