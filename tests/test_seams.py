"""The two seams: what only a family, and only a task, may know."""

import ast
import re
from collections.abc import Iterator

from places import ROOT

from attacks.registry import ATTACKS, DENSE_ATTACKS
from robustkit.evaluations.condition import EVERY_FAMILY, FOLDERS
from robustkit.tasks import EVERY_TASK

SLICES = [path.parent for path in (ROOT / "robustkit" / "slices").glob("*/entry_points.txt")]
MODULES = [path for path in sorted((ROOT / "robustkit").rglob("*.py")) if not {*path.parents} & {*SLICES}]
"""Without slices, which have families of their own, and use others as a plug-in may."""
OF_A_FAMILY = {
    "cli/completion.py": "completes the same names",
    "pipeline/": "turns the options of families into their conditions",
    "results/comparison.py": "says which corruptions are not those of a paper, and which were compared by their mean",
    "results/pairing.py": "says that the evidence on an attack is missing",
    "results/published.py": "completes the attacks that a paper names from the card",
    "tasks/labelled/subject.py": "runs the attack that a condition names; decodes images, also corrupted ones",
    "tasks/labelled/metrics.py": "knows the columns of an attack's stages",
    "tasks/segmentation/": "runs attacks; draws their curves, and bars and means of corruptions, in one section",
}
"""Modules outside a family's folder that may import it, and why."""
NAMES_A_KIND = {
    "cli/options.py": "names an option",
    "common/plugins.py": "what one of a group is called",
    "data/shapes.py": "a square is a shape there",
    "evaluations/condition.py": "says which family a kind is of",
    "models/claims.py": "a part of timm's names of ViTs",
    "pipeline/request.py": "the attack that is run by default, and common lists of conditions",
    "runs/description.py": "what a command is called",
    "runs/merging.py": "what maps were scored with, of two commands",
    "testing.py": "the attack that the fixture runs by default",
}
"""Modules outside a family's folder that may have the name of a kind of condition as a text, and why."""
ASKS_THE_TASK = {
    "evaluations/attacks/": "which attacks a card can have",
    "models/": "what kind of model a checkpoint says that it is",
}
"""Modules outside a task's folder that may ask which task it is, and why."""
KINDS = {*EVERY_FAMILY.entries, *ATTACKS, *DENSE_ATTACKS} - {
    "attention",
    "clean",
}  # fields of run.json and of the protocol, too


def _outside(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    """The path and the nodes of each module that is in no room of one of these folders."""
    for path in MODULES:
        name = path.relative_to(ROOT / "robustkit").as_posix()
        if not any(re.match(rf"{folder}/\w+/", name) for folder in folders):
            yield from ((name, node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))


def _against(found: set[tuple[str, str]], allowed: dict[str, str]) -> None:
    """Fail where a name is not allowed, and where what is allowed is no longer used."""
    assert not [(name, what) for name, what in sorted(found) if not name.startswith(tuple(allowed))]
    assert not [start for start in allowed if not any(name.startswith(start) for name, _ in found)]


def test_only_a_family_knows_its_modules() -> None:
    places = {place.partition(":")[0] for place in FOLDERS.values()} | {"attacks"}
    taken = {
        (name, node.module)
        for name, node in _outside("evaluations")
        if isinstance(node, ast.ImportFrom) and node.module
        if re.search(rf"(^|\.)evaluations\.({'|'.join(places)})\b", node.module)
    }
    _against(taken, OF_A_FAMILY)


def test_only_a_family_knows_the_texts_of_its_conditions() -> None:
    named = {
        (name, node.value)
        for name, node in _outside("evaluations")
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value in KINDS or re.fullmatch(rf"({'|'.join({*KINDS, 'attention'})})\(\S*", node.value)
    }
    _against(named, NAMES_A_KIND)


def test_only_a_task_asks_which_task_a_run_is_of() -> None:
    asked = {
        (name, ast.unparse(node))
        for name, node in _outside("tasks")
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in EVERY_TASK.entries
    }
    _against(asked, ASKS_THE_TASK)
