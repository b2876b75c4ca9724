"""A package of plug-ins, as docs/how-to/extending.md shows it: installed, audited with, resumed, compared and gated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from places import DELETED
from plugin_package import ROOT, install, write_package
from small_audit import audit, furnish

from robustkit.common import plugins
from robustkit.errors import ProtocolError
from robustkit.pipeline.request import ClassificationRequest
from robustkit.tasks import metrics

Words = tuple[str, ...]


class Done(NamedTuple):
    """What a command leaves."""

    status: int
    stdout: str
    stderr: str


Commands = Callable[..., list[Done]]
N = 3
STANDARD = (
    "zoo:shapes-vit-standard",
    "--data-dir",
    "embedded:shapes",
    "--limit",
    str(N),
    "--browse",
    "2",
    "--no-setup-check",
)
READ = ("--data-dir", "embedded:shapes", "--mean", "0.5", "--std", "0.5")
ASKED = (
    *("--attacks", "random-corner(eps=8/255,tries=2)", "--corruptions", "stripes", "--cams", "brightest"),
    *("--evaluations", "rotation(degrees=15),rotation(degrees=90)", "--attention", "cosine"),
)
CONDITIONS = [
    *("clean", "random-corner(eps=8/255,tries=2)"),
    *(f"corruption(stripes,severity={severity})" for severity in (1, 2, 3, 4, 5)),
    *("rotation(degrees=15)", "rotation(degrees=90)"),
    *("cam(brightest)", "cam(random)", "cam(centre)", "cam(full)"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, in `package`, installed into `site`."""
    folder = tmp_path_factory.mktemp("plugins")
    install(write_package(folder / "package"), folder / "site")
    return folder


# Runs each command of a list after the other, since a process takes long to begin, without figures, which take as long.
# None leaves a plug-in behind.
COMMANDS = """
import contextlib, io, json, sys
from robustkit.cli.app import main
from robustkit.display import svg
svg.painted = lambda *_: b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
done = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, errors = ["robustkit", *words], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as left:
            done.append([left.code, out.getvalue(), errors.getvalue()])
    from robustkit.common.plugins import loaded_plugins, plugin_files
    from robustkit.tasks import metrics
    assert not loaded_plugins() and not plugin_files() and "kept" not in metrics()
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def robustkit(place: Path) -> Commands:
    """Commands in one new process, where the package is installed or not; what each of them prints."""

    def commands(*asked: Words, installed: bool = True, status: int = 0) -> list[Done]:
        paths = [str(ROOT), *([str(place / "site")] if installed else [])]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ROBUSTKIT_")}
        environment = kept | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        line = [sys.executable, "-c", COMMANDS, json.dumps(asked)]
        process = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout + process.stderr
        done = [Done(*one) for one in json.loads(process.stdout)]
        assert [one.status for one in done] == [status] * len(asked), done
        return done

    return commands


@pytest.fixture(scope="module")
def outputs(place: Path, robustkit: Commands) -> dict[str, str]:
    """What commands print: an audit that takes part in five plug-ins, what reads it, and another of a sixth."""
    (place / "policy.toml").write_text('[[rule]]\nrequire = "kept under rotation(degrees=15) >= 0.01"\n')
    other = ("--attacks", "none", "--evaluations", "rotation(degrees=15)", "--out", "other")
    np.savez(place / "colours.npz", weight=np.eye(10, 3, dtype=np.float32), bias=np.zeros(10, np.float32))
    few = ("--limit", str(N), "--no-setup-check", "--attacks", "none", "--img-size", "64")
    asked: dict[str, Words] = {
        "audit": ("audit", *STANDARD, *ASKED, "--out", "run"),
        "list": ("list", "plugins"),
        "report": ("report", "run", "--details"),
        "check": ("check", "run", "--policy", "policy.toml"),
        "other": ("audit", *STANDARD, *other),
        "compare": ("compare", "run", "other"),
        "read": ("audit", "npz:colours.npz", *READ, *few, "--out", "read"),
        "help": ("--help",),
        "statistics": ("statistics", "--data-dir", "embedded:shapes"),
    }
    return {name: done.stdout for name, done in zip(asked, robustkit(*asked.values()), strict=True)}


@pytest.fixture(scope="module")
def run(place: Path, outputs: dict[str, str]) -> Path:
    """That audit."""
    return place / "run"


def manifest_of(run: Path) -> dict[str, object]:
    manifest: dict[str, object] = json.loads((run / "run.json").read_text("utf-8"))
    return manifest


def test_all_seven_are_listed_and_run(run: Path, outputs: dict[str, str]) -> None:
    assert outputs["help"].endswith("Plug-ins:\n  statistics   of robustkit-example 0.1\n")
    assert outputs["statistics"].splitlines()[0] == "arrow: 100"
    listed = " ".join(outputs["list"].split())
    for said in (
        "random-corner attack of robustkit-example 0.1 source",
        "The best of several random corners of the ball: no gradient at all",
        "stripes corruption of",
        "brightest explainer of",
        "cosine attention formula of robustkit-example 0.1",
        "npz reader of checkpoints of robustkit-example 0.1",
        "rotation family of evaluations of",
        "statistics command of robustkit-example 0.1 source",
        "Print how many images of each class a data set has",
    ):
        assert said in listed
    assert manifest_of(run)["conditions"] == CONDITIONS
    rows = {(row["condition"], row["metric"]): row for row in json.loads((run / "summary.json").read_text())["results"]}
    for condition in CONDITIONS[:9]:
        assert rows[condition, "top1"]["n"] == N
    kept = rows["rotation(degrees=15)", "kept"]
    assert kept["n"] == N and kept["value"] * N == pytest.approx(round(kept["value"] * N)) and kept["ci_low"] > 0
    assert ("corruption(stripes)", "mean_error") in rows and ("cam(brightest)", "abpc") in rows


def test_the_run_says_which_code_made_it(run: Path) -> None:
    import pyarrow.parquet as pq

    plugins = {entry["name"]: entry for entry in manifest_of(run)["plugins"]}  # type: ignore[attr-defined]
    assert plugins.keys() == {"random-corner", "stripes", "rotation", "brightest", "cosine"}
    assert {(entry["distribution"], entry["version"]) for entry in plugins.values()} == {("robustkit-example", "0.1")}
    assert plugins["random-corner"]["conditions"] == ["random-corner(eps=8/255,tries=2)"]
    assert plugins["cosine"]["checkpoints"] == ["shapes-vit-standard"] and plugins["cosine"]["conditions"] == []

    (entry,) = manifest_of(run.with_name("read"))["plugins"]  # type: ignore[misc, attr-defined]
    assert (entry["group"], entry["name"], entry["checkpoints"]) == ("readers", "npz", ["colours"])

    def said(condition: str) -> list[str]:
        (path,) = (run / "records").glob(f"*/{condition}/*.parquet")
        provenance = json.loads(pq.read_metadata(path).metadata[b"robustkit"])
        return [plugin["name"] for plugin in provenance["plugins"]]

    assert said("clean") == ["cosine"]
    assert said("rotation(degrees=90)") == ["rotation", "cosine"]
    assert said("cam(random)") == ["cosine"] and said("cam(brightest)") == ["brightest", "cosine"]


@pytest.mark.slow
def test_it_goes_on_and_refuses_other_code(run: Path, place: Path, robustkit: Commands) -> None:
    (record,) = (run / "records").glob("*/rotation(degrees=90)/*.parquet")
    before = record.read_bytes()
    record.unlink()
    again = ("audit", *STANDARD, *ASKED, "--out", "run")
    robustkit(again)
    assert record.read_bytes() == before
    code = place / "site" / "robustkit_example" / "rotation.py"
    text = code.read_text("utf-8")
    try:
        code.write_text(text + "\n# another version\n", encoding="utf-8")
        ((_, _, refused),) = robustkit(again, status=2)
    finally:
        code.write_text(text, encoding="utf-8")
    assert "contains another run: plug-in" in refused and "robustkit-example 0.1 (source" in refused
    assert refused.count("\n") == 1


def test_its_metric_is_on_the_page_in_the_terminal_compared_and_gated(run: Path, outputs: dict[str, str]) -> None:
    shown = outputs["report"].partition("\nRotations\n")[2]
    assert shown.split()[:4] == ["predictions", "checkpoint", "condition", "kept"] and "rotation(degrees=15)" in shown
    page = (run / "report.html").read_text("utf-8")
    assert "Predictions that a rotation keeps" in page and 'id="rotations"' in page
    assert page.count("of robustkit-example 0.1, SHA-256 of its code") == 5
    assert "pass" in outputs["check"]
    compared = outputs["compare"]
    assert "rotation(degrees=15)" in compared and "predictions kept" in " ".join(compared.split())


def test_an_audit_in_python_leaves_no_plug_in_loaded(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place / "site")
    plugins._installed.cache_clear()
    before = [*metrics()]
    made = audit(furnish(tmp_path), tmp_path / "run", attacks="none", evaluations="rotation(degrees=15)", browse=0)
    assert "kept" in {row.metric for row in made.summary()}
    assert [*metrics()] == before and not plugins.loaded_plugins()
    plugins._installed.cache_clear()


def test_without_the_package_the_run_is_refused_in_one_line(run: Path, robustkit: Commands) -> None:
    for _, _, refused in robustkit(("report", "run"), ("compare", "run", "run"), installed=False, status=2):
        assert "needs plug-in stripes (corruption, robustkit-example 0.1)" in refused, refused
        assert "install it, or give its file with --plugin" in refused and refused.count("\n") == 1


@pytest.mark.slow
def test_a_file_does_for_a_quick_try(place: Path, robustkit: Commands) -> None:
    text = (place / "package" / "robustkit_example" / "attack.py").read_text("utf-8")
    (place / "mine.py").write_text(text + '\n\nPLUGINS = {"attacks": {"corner": RandomCorner}}\n', encoding="utf-8")
    asked = ("audit", *STANDARD, "--attacks", "corner(tries=1)", "--out", "quick", "--plugin", "mine.py")
    robustkit(asked, installed=False)
    (entry,) = manifest_of(place / "quick")["plugins"]  # type: ignore[misc, attr-defined]
    assert (entry["distribution"], entry["version"]) == ("mine.py", "")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("rotation(degrees=15)", "a plug-in's is installed, or given by --plugin FILE"),
        ("atention(clean)", "did you mean 'attention'?"),
        ("counterfactual(change=colour)", "it is evaluated by --data-dir embedded:shapes-counterfactual"),
        pytest.param(
            *("jitter(sigma=0.1)", "it is evaluated by --disturbances jitter(sigma=0.1), where a command has it"),
            marks=pytest.mark.skipif("series" in DELETED, reason="without the slice"),
        ),
        ("(", "expected a name or name(key=value,...)"),
    ],
)
def test_evaluations_that_cannot_be_are_refused(asked: str, said: str) -> None:
    with pytest.raises(ProtocolError) as fault:
        ClassificationRequest(checkpoints=["x"], data_dir="x", evaluations=asked)
    assert said in str(fault.value)


def test_evaluations_are_of_every_family() -> None:
    asked = "pgd(steps=3),corruption(fog,severity=3),cam(agcam),stability(agcam,under=fgsm),region-noise(region=object)"
    request = ClassificationRequest(checkpoints=["x"], data_dir="x", evaluations=f"clean,{asked}", cams="rollout")
    fields = {name: getattr(request, name) for name in ("attacks", "corruptions", "cams", "stability", "evaluations")}
    assert fields == {
        "attacks": ("pgd(steps=3)", "fgsm"),
        "corruptions": ("fog(severity=3)",),
        "cams": ("rollout", "agcam"),
        "stability": True,
        "evaluations": ("region-noise(region=object)",),
    }
    assert [each.text for each in request.evaluation_conditions()] == ["region-noise(region=object,severity=5)"]
    nothing = ClassificationRequest(checkpoints=["x"], data_dir="x", evaluations="clean", attacks="none")
    assert nothing.attack_list == ""


TASK = '''
from dataclasses import dataclass
from pathlib import Path

import robustkit
from robustkit.pipeline.classification import plan as plan_classification
from robustkit.pipeline.request import ClassificationRequest
from robustkit.pipeline.scheduler import run
from robustkit.tasks.classification import Classification


class Colours(Classification):
    """Classification under a name of its own."""

    name = "colours"

    def plan(self, request):
        return plan_classification(request)


@dataclass(frozen=True, kw_only=True)
class ColoursRequest(ClassificationRequest):
    task = "colours"


PLUGINS = {"tasks": {"colours": Colours()}}

if __name__ == "__main__":
    robustkit.load_plugin(__file__)
    run(ColoursRequest(checkpoints=["zoo:shapes-vit-quest"], data_dir="embedded:shapes", protocol="colours.toml",
                       attacks="none", limit=4, out="colours"))
'''


@pytest.mark.slow
def test_a_task_of_a_plug_in_is_planned_run_and_read(place: Path, robustkit: Commands) -> None:
    (place / "colours.py").write_text(TASK, encoding="utf-8")
    card = (ROOT / "robustkit" / "protocol" / "cards" / "standard.toml").read_text("utf-8")
    assert 'name = "standard"\n' in card
    card = card.replace('name = "standard"\n', 'name = "colours"\ntask = "colours"\n')
    (place / "colours.toml").write_text(card, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "colours.py"], cwd=place, env=environment, check=True)
    (entry,) = manifest_of(place / "colours")["plugins"]  # type: ignore[misc, attr-defined]
    assert (entry["group"], entry["name"], entry["checkpoints"]) == ("tasks", "colours", ["shapes-vit-quest"])
    ((_, shown, _),) = robustkit(("report", "colours", "--plugin", "colours.py"))
    assert "shapes-vit-quest" in shown
    asked = ("audit", *STANDARD, "--protocol", "colours.toml", "--plugin", "colours.py", "--out", "x")
    ((_, _, refused),) = robustkit(asked, status=2)
    assert "protocol colours is for colours; colours.py says how" in refused
