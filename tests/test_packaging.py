"""The packages stand apart as promised, and a wheel built from the repository works elsewhere."""

import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

PACKAGES = ("attacks", "cam", "corruptions", "robustkit")
SLICES = [path.parent.name for path in (ROOT / "robustkit" / "slices").glob("*/entry_points.txt")]


@pytest.mark.parametrize("leaf", PACKAGES[:3])
def test_a_leaf_imports_nothing_of_the_house(leaf: str) -> None:
    others = set(PACKAGES) - {leaf}
    code = f"import sys, {leaf}; bad = {others!r} & sys.modules.keys(); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_is_instant() -> None:
    code = "import sys, robustkit; assert not {'torch', 'numpy', 'click'} & sys.modules.keys(), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_a_module_of_the_current_folder_is_not_imported(folder: str, tmp_path: Path, monkeypatch: Any) -> None:
    usual = list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("robustkit.cli.app.main", lambda: None)
    monkeypatch.setattr(sys, "path", [str(tmp_path / folder), *usual])
    runpy.run_module("robustkit", run_name="__main__")
    assert sys.path == ([] if folder == "." else [str(tmp_path / folder)]) + usual


def test_no_hint_names_a_distribution_that_nobody_owns() -> None:
    """PyPI has no robustkit-audit: what is missing is installed from the clone."""
    for path in (*ROOT.glob("robustkit/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"):
        said = re.search(r"robustkit(-audit)?\[|pip install '?robustkit", " ".join(path.read_text("utf-8").split()))
        assert said is None, (path, said)


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (ROOT / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(code, scope)
    change = (scope["adversarials"] - scope["images"]).abs()
    assert 0 < change.max() <= 1 / 255 + 1e-6
    assert {"clean", "pgd(eps=1/255,steps=20)"} == set(scope["run"].results().condition)
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source distribution, unpacked, and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("built")
    copy, out, unpacked = folder / "source", folder / "dist", folder / "unpacked"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    make = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"

    def build(kind: str, where: Path) -> Path:
        command = [sys.executable, "-W", "ignore", "-c", make, kind, str(out)]
        done = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
        return out / done.stdout.split()[-1]

    with tarfile.open(build("sdist", copy)) as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (top,) = unpacked.iterdir()
    return top, build("wheel", top)


def test_the_source_distribution_makes_the_wheel(built: tuple[Path, Path]) -> None:
    """With docs, scripts and tests in it; and the metadata that an index shows."""
    (top, path), files = built, tracked()
    held = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert set(files) - {".gitignore"} <= held, sorted(set(files) - held)
    with zipfile.ZipFile(path) as wheel:
        assert {name for name in files if name.split("/")[0] in PACKAGES} <= {*wheel.namelist()}
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        said = wheel.read(metadata).decode()
    assert "\nAuthor: RobustKit developers\n" in said and "\nKeywords: " in said
    assert all(f"Programming Language :: Python :: 3.{minor}\n" in said for minor in range(10, 14))


CONDA = {"torch": "pytorch", "opencv-python-headless": "py-opencv", "matplotlib": "matplotlib-base"}
"""Names of conda-forge that differ from PyPI's."""


def test_the_conda_recipe_says_what_setup_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", given.update)
    runpy.run_path(str(ROOT / "setup.py"))
    recipe = yaml.safe_load((ROOT / "recipe.yaml").read_text("utf-8").replace("${{ python_min }}", "3.10"))
    pairs = (re.fullmatch(r"([\w-]+)(>=[\d.]+)(;.*)?", each) for each in given["install_requires"])
    wanted = [f"{CONDA.get(pair[1], pair[1])} {pair[2]}" for pair in pairs if pair]
    assert len(wanted) == len(given["install_requires"]) and recipe["context"]["python_min"] == "3.10"
    assert recipe["requirements"]["run"] == [f"python {given['python_requires']}", *wanted]
    (tool,) = re.findall(r'^requires = \["(setuptools)(>=\d+)"\]$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert recipe["requirements"]["host"] == ["python 3.10.*", "pip", " ".join(tool)]
    assert recipe["build"]["python"]["entry_points"] == given["entry_points"]["console_scripts"]
    assert recipe["tests"][0]["python"]["imports"] == list(PACKAGES)
    assert recipe["package"]["name"] == given["name"] and recipe["context"]["version"] == given["version"]
    about = {"summary": given["description"], "license": given["license"], "license_file": given["license_files"][0]}
    assert recipe["about"] == about


def tracked() -> list[str]:
    """What belongs to the source."""
    listing = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if files.returncode:
        pytest.skip("not a git checkout: there is no list of what belongs to the source")
    return [name for name in files.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.slow
def test_a_wheel_installed_elsewhere_works(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, files = built[1], tracked()
    assert wheel.match("robustkit_audit-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, next(top for top in tops if top.endswith(".dist-info"))}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    sources = {name for name in files if name.split("/")[0] in PACKAGES and Path(name).name != "entry_points.txt"}
    assert sources <= names, f"left out of the wheel: {sorted(sources - names)}"
    code = (
        "import robustkit, sys; assert robustkit.__file__.startswith(sys.argv[1]), robustkit.__file__\n"
        "run = robustkit.audit(['zoo:shapes-vit-quest'], data_dir='embedded:shapes', attacks='fgsm', limit=2, "
        "out=sys.argv[1] + '/run')\n"
        "assert {'clean', 'fgsm(eps=1/255)'} == set(run.results().condition)\n"
    )
    site = str(tmp_path / "site")
    subprocess.run(
        [sys.executable, "-c", code, site],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": site, "HOME": site, "OMP_NUM_THREADS": "1"},
    )
