"""The tests of a slice lie in a folder of its name, and go with it."""

from places import ROOT

collect_ignore = [
    str(folder.name)
    for folder in (ROOT / "tests" / "tasks").iterdir()
    if folder.is_dir() and not (ROOT / "robustkit" / "tasks" / folder.name).is_dir()
]
