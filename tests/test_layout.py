"""The rooms of the house: who may import whom, and when; what stays private; how long modules and functions may be."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest
from places import DELETED, ROOT

from scripts.count import sizes

PACKAGES = ("robustkit", "attacks", "corruptions", "cam")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
MODULES = [path for name, path in FILES.items() if name.split(".")[0] == "robustkit"]
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}

MOST_LINES, MOST_IN_A_FUNCTION, MOST_EXCEPTIONS = 600, 60, 5
_LONG: dict[str, str] = {}
"""Modules and functions (`module:function`) that may be longer, and why. A few; to be read before one is added."""

MOST_IN_CORE, MOST_IN_SLICES = 53_050, 25_350
"""Lines of all modules. A commit that raises one says why."""

FEWEST_LINES = 120
_LONELY = {
    "robustkit.slices.text.results": "the results of its families: read by its name",
    "robustkit.slices.text.tokenizer_process": "is run, and imports nothing of robustkit",
}
"""Modules under 120 lines that one module of their folder imports, and why they stand alone. The table only shrinks."""

LATE_PACKAGES = {
    "attacks": "loads torch",
    "corruptions": "loads torch and OpenCV",
    "cv2": "start-up time; the doctor says so where it is broken",
    "fcntl": "not on Windows",
    "huggingface_hub": "optional",
    "jinja2": "start-up time",
    "matplotlib": "start-up time",
    "msvcrt": "on Windows only",
    "pandas": "start-up time",
    "pyarrow": "start-up time",
    "ray": "optional",
    "rich": "start-up time",
    "safetensors": "loads torch or NumPy",
    "timm": "start-up time; half of it is not needed to read images",
    "torch": "start-up time",
    "resource": "not on Windows",
    "tifffile": "start-up time; only TIFF of other channels than RGB needs it",
    "tokenizers": "optional",
    "transformers": "optional",
    "yaml": "start-up time",
}
"""Packages that a function may import, and why."""
LATE_MODULES = {
    ("robustkit.cli.app", "robustkit.*"): "only where a command fails",
    ("robustkit.cli.commands.*", "robustkit.*"): "a command loads what it runs",
    ("robustkit.cli.completion", "robustkit.*"): "a shell waits for completion",
    ("robustkit.cli.options", "robustkit.common.*"): "only with --config or --plugin",
    ("robustkit.cli.terminal", "robustkit.*"): "a command loads what it runs",
    ("robustkit.data.dataset", "robustkit.data.channels"): "loads torch, which a list of samples does not need",
    ("robustkit.evaluations.family", "robustkit.*"): "loads torch or rich",
    **{
        (f"robustkit.slices.{name}", "robustkit.*"): "a command loads what it runs"
        for name in ("exports", "index", "inspect", "listing", "paper", "predictions", "until_decided")
    },
    **{
        (f"robustkit.slices.{name}", "robustkit.*"): "a reader is asked without torch"
        for name in ("graphs", "open_clip")
    },
    ("robustkit.slices.*.command", "robustkit.*"): "a command loads what it runs",
    ("robustkit.slices.listing", "*"): "a list loads what it lists",
    ("robustkit.slices.attestation", "robustkit.models.*"): "loads torch, which only a comparison needs",
    ("robustkit.slices.attestation", "robustkit.pipeline.plan"): "loads torch, which only a lock needs",
    ("robustkit.slices.doctor", "robustkit.models.device"): "loads torch, whose lack is a finding",
    ("robustkit.models.classifier", "robustkit.models.hugging_face"): "an optional library, and built on classifiers",
    ("robustkit.models.segmenter", "robustkit.models.hugging_face"): "an optional library, and built on segmenters",
    ("robustkit.pipeline.request", "robustkit.*"): "--help reads its options, without torch",
    ("robustkit.report", "robustkit.report.refresh"): "a room that is a verb, too",
    ("robustkit.report.refresh", "robustkit.report.page"): "loads torch and jinja2",
    ("robustkit.report.run", "robustkit.report.*"): "loads torch and jinja2",
    ("robustkit.report.run", "robustkit"): "a function of a slice, which may be deleted",
    ("robustkit.tasks.segmentation", "robustkit.*"): "a task is met early, and summarises or draws late",
}
"""Who may import what of robustkit in a function, and why."""


def test_imports_go_down_only() -> None:
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout + done.stderr


SLICES = sorted(path.parent.name for path in (ROOT / "robustkit" / "slices").glob("*/entry_points.txt"))


def test_a_slice_is_found_by_its_entry_points_and_imported_by_nobody() -> None:
    """Deleting its folder deletes all of it. Its plan and its commands alone use the rooms above tasks."""
    of_slices = {
        name: [slice for slice in SLICES if f"{name}.".startswith(f"robustkit.slices.{slice}.")] for name in FILES
    }
    taken = [
        f"{name} imports {other}"
        for name, tree in TREES.items()
        for other in set(imports_of(name, ast.walk(tree))) & FILES.keys()
        if of_slices[other] not in ([], of_slices[name])
    ]
    assert not taken


def test_what_a_slice_names_is_not_hidden_by_a_module_of_its_own() -> None:
    """`slices.paper:table` would be the module `slices.paper.table`, as soon as that is imported."""
    texts = [path.read_text("utf-8") for path in (ROOT / "robustkit" / "slices").glob("*/entry_points.txt")]
    named = re.findall(r"= (robustkit\.[\w.]+):(\w+)", "\n".join(texts))
    assert named and not [f"{module}:{name}" for module, name in named if f"{module}.{name}" in FILES]


def test_no_private_name_leaves_its_module() -> None:
    taken = [
        f"{path.relative_to(ROOT)}: {name.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name.startswith("_") and not name.name.startswith("__")
    ]
    assert not taken


def test_the_picture_of_the_floors_is_of_these_imports() -> None:
    done = subprocess.run([sys.executable, "-m", "scripts.pages.floors", "--check"], cwd=ROOT)
    assert done.returncode == 0, "run python -m scripts.pages.floors"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_a_module_is_read_in_one_sitting_and_a_function_at_a_glance() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in FILES.items()}
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > MOST_IN_A_FUNCTION:
                long[f"{name}:{node.name}"] = lines_of(node)
    excepted = _LONG.keys()
    assert not (new := {name: lines for name, lines in long.items() if name not in excepted}), f"too long: {new}"
    assert not (old := sorted(excepted - long.keys())), f"no longer too long, take them out of the table: {old}"
    assert len(_LONG) <= MOST_EXCEPTIONS and all(_LONG.values())


def test_core_and_slices_stay_under_their_roof() -> None:
    core, slices = sizes(ROOT)
    remedy = "fold or delete elsewhere, make it a slice, or raise the roof and say why in the commit"
    assert core <= MOST_IN_CORE and slices <= MOST_IN_SLICES, remedy
    assert core > MOST_IN_CORE - 1000 and slices > MOST_IN_SLICES - 1000, "lower the roof"


def test_a_small_module_with_one_reader_is_a_part_of_it() -> None:
    importers: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        for taken in set(imports_of(name, ast.walk(tree))) & FILES.keys():
            importers.setdefault(taken, set()).add(name)
    lonely = {
        name
        for name, (who, *others) in ((name, sorted(who)) for name, who in importers.items())
        if not others and who.rpartition(".")[0] == name.rpartition(".")[0] and FILES[name].name != "__init__.py"
        if len(FILES[name].read_text("utf-8").splitlines()) < FEWEST_LINES
    }
    assert not (new := sorted(lonely - _LONELY.keys())), f"fold each into the one that imports it: {new}"
    assert not (old := sorted((_LONELY.keys() & FILES.keys()) - lonely)), f"take them out of the table: {old}"


def imports_of(module: str, nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the modules that import statements name, in full."""
    package = module.split(".") if FILES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{whole}.{name.name}" for name in node.names]
            yield from dict.fromkeys(name if name in FILES else whole for name in inner)


def late_imports() -> Iterator[tuple[str, str]]:
    """Yield (module, what it imports inside a function) of robustkit."""
    for module in (name for name in FILES if name.split(".")[0] == "robustkit"):
        for function in ast.walk(TREES[module]):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((module, name) for name in imports_of(module, ast.walk(function)))


def test_imports_inside_functions_have_a_reason() -> None:
    pairs = LATE_MODULES.keys()
    used, without = set[object](), list[str]()
    for module, name in late_imports():
        top = name.split(".")[0]
        rows = [row for row in pairs if fnmatchcase(module, row[0]) and fnmatchcase(name, row[1])]
        used |= {*rows, *({top} & LATE_PACKAGES.keys())}
        if not rows and top not in LATE_PACKAGES:
            without.append(f"{module} imports {name}")
    assert not without, f"at the top, or with a reason in LATE_MODULES: {without}"
    dead = (pairs | LATE_PACKAGES.keys()) - used
    assert DELETED or not dead, f"no longer imported in a function: {dead}"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of a circle of imports, the first one at its end, too; an empty list where there is none."""
    done = set[str]()
    for start in graph:
        way, rest = [start], [iter(sorted(graph[start]))]
        while way:
            following = next(rest[-1], None)
            if following is None:
                done.add(way.pop())
                rest.pop()
            elif following in way:
                return [*way[way.index(following) :], following]
            elif following not in done:
                way.append(following)
                rest.append(iter(sorted(graph[following])))
    return []


def test_imports_go_in_no_circle() -> None:
    graph = {name: set(imports_of(name, ast.walk(tree))) & FILES.keys() for name, tree in TREES.items()}
    assert not (found := circle(graph)), f"a circle of imports: {' → '.join(found)}"


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]
