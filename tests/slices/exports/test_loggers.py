"""Results in other people's trackers: names, values and parameters, and no duplicates."""

import hashlib
import importlib.util
import json
import re
import sys
import time
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from figures import figure, noted
from manifests import whole
from msgspec.structs import replace

from robustkit.common.figure import Figure
from robustkit.errors import ProtocolError, RunError
from robustkit.report.run import Run
from robustkit.slices.exports.formats import LOGGERS, Logger, entry_name, legal_names, log_run, parse_loggers

PGD = "pgd(eps=1/255,steps=20)"


class Recording:
    """Notes what it gets; refuses scalars if asked to."""

    spec = "recording"

    def __init__(self, refuses: bool = False) -> None:
        self.reported: list[Any] = []
        self.refuses = refuses

    def start(self, name: str, folder: Path) -> None:
        self.reported.append(("start", name, folder))

    def scalars(self, values: Mapping[tuple[str, str, str], float]) -> None:
        if self.refuses:
            raise ValueError("server says no\nand more")
        self.reported.append(dict(values))

    def params(self, values: Mapping[str, str]) -> None:
        self.reported.append(dict(values))

    def flags(self, text: str) -> None:
        self.reported.append(text)

    def file(self, path: Path) -> None:
        self.reported.append(("file", path))

    def finish(self) -> None:
        self.reported.append("finish")


def row(condition: str, metric: str, *figures: float | None, flags: tuple[str, ...] = ()) -> Figure:
    known = dict(zip(("value", "ci_low", "ci_high"), figures, strict=True))
    return figure({"checkpoint": "vit", "n": 8} | known).of(condition, metric, noted(*flags))


ROWS = [
    row("clean", "top1", 0.75, 0.7, 0.8),
    row("clean", "nll", None, None, None),
    row(
        PGD,
        "linf_max",
        0.25,
        None,
        float("nan"),
        flags=("exceeds eps [attack/exceeds-eps]", "incomplete: 8 of 10 samples [run/incomplete]"),
    ),
]


FLAGS = (
    f"vit: unfinished: 2 of 2 units are missing\nvit: {PGD}: exceeds eps [attack/exceeds-eps]\n"
    f"vit: {PGD}: incomplete: 8 of 10 samples [run/incomplete]"
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder as far as loggers read it."""
    run = Run(tmp_path / "my runs" / "vit")
    run.write_manifest(
        whole(
            {
                "started": "2026-01-01T00:00:00+00:00",
                "deciding": {"seed": 7, "protocol": "standard@1:96fe6f4a", "data digest": "d1", "dtype": "float32"},
                "checkpoints": [{"name": "vit", "sha256": "c1"}],
                "data": {"name": "val", "n": 10},
            }
            | {"conditions": ["clean", PGD], "protocol": {}, "bad_images": [], "claims": {}}
        )
    )
    (run.path / "report.html").write_text("<p>report</p>")
    return run


def test_what_is_logged(run: Run) -> None:
    logger = Recording()
    log_run(run, ROWS, [logger])
    assert logger.reported == [
        ("start", entry_name(run), run.path),
        {"seed": "7", "protocol": "standard@1:96fe6f4a", "data_digest": "d1", "dtype": "float32"}
        | {"compile": "False", "data": "val", "samples": "10", "sha256/vit": "c1"},
        {
            ("vit", "clean", "top1"): 0.75,
            ("vit", "clean", "top1_ci_low"): 0.7,
            ("vit", "clean", "top1_ci_high"): 0.8,
            ("vit", "clean", "top1_n"): 8.0,
            ("vit", PGD, "linf_max"): 0.25,
            ("vit", PGD, "linf_max_n"): 8.0,
        },
        FLAGS,
        ("file", run.path / "report.html"),
        "finish",
    ]


def test_a_library_that_refuses_is_one_line_and_is_finished(run: Run) -> None:
    logger = Recording(refuses=True)
    with pytest.raises(RunError) as caught:
        log_run(run, ROWS, [logger])
    assert (
        str(caught.value) == "logging to recording: server says no; fix that, or do not log; nothing in the run is lost"
    )
    assert logger.reported[-1] == "finish"


def test_an_entry_keeps_its_name_when_the_run_is_extended(run: Run) -> None:
    before, manifest = entry_name(run), run.manifest
    whole = json.dumps([manifest.deciding.to_plain(), "2026-01-01T00:00:00+00:00"], sort_keys=True)
    assert before == f"vit-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    more = (*manifest.checkpoints, replace(manifest.checkpoints[0], name="b"))
    run.write_manifest(replace(manifest, checkpoints=more, conditions=("a",)))
    assert entry_name(run) == before
    run.write_manifest(replace(manifest, started="2026-01-02T00:00:00+00:00"))
    assert entry_name(run) != before
    run.write_manifest(replace(manifest, deciding=replace(manifest.deciding, seed=8)))
    assert entry_name(run) != before


def test_names_are_made_legal_and_stay_apart() -> None:
    same = [("a b", PGD, "top1"), ("a/b", PGD, "top1"), ("é", "..", "ü"), ("x" * 300, "c", "d"), ("x" * 301, "c", "d")]
    found = legal_names(same, r"\w")
    assert found[0] == "a_b/pgd_eps_1_255_steps_20/top1"
    assert found[1].startswith("a_b/pgd_eps_1_255_steps_20/top1_") and len(found[1]) == len(found[0]) + 9
    assert found[2] == "_/_/_"
    assert [len(name) for name in found[3:]] == [250, 250] and len(set(found)) == 5
    assert legal_names([("vit", PGD, "top1")], r"\w.,()=+ -") == ["vit/pgd(eps=1_255,steps=20)/top1"]
    assert legal_names(same, r"\w") == found


def test_what_is_asked_for_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"tensorboard": "there", "mlflow": "there", "wandb": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=origin[name]))
    specs = ["tensorboard:logs", "mlflow:http://localhost:5000", "tensorboard", "tensorboard:logs"]
    found: tuple[Any, ...] = parse_loggers(specs)
    assert [(type(one).__name__, one.where) for one in found] == [
        ("TensorBoard", "logs"),
        ("MLflow", "http://localhost:5000"),
        ("TensorBoard", ""),
    ]
    with pytest.raises(ProtocolError, match=r"^unknown logger 'tensorbord'; did you mean 'tensorboard'\? known: mlf"):
        parse_loggers(["tensorbord:x"])
    with pytest.raises(ProtocolError, match=r"^logging to wandb:p: wandb is not installed; pip install wandb$"):
        parse_loggers(["wandb:p"])  # a folder of that name is not a library
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProtocolError, match=r"^logging to mlflow: mlflow is not installed; pip install mlflow$"):
        parse_loggers(["mlflow"])


def test_no_library_is_imported_before_it_is_used() -> None:
    import subprocess

    code = (
        "import sys, robustkit.slices.exports.formats as l; l.LOGGERS['wandb']('', ''); "
        f"bad = {set(LOGGERS)!r} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert not bad and 'torch' not in sys.modules, bad"], check=True)


def logged_twice(run: Run, spec: str, pause: float = 0.0) -> Logger:
    """After a first time with another figure. pause: seconds between the two."""
    (logger,) = parse_loggers([spec])
    log_run(run, [row("clean", "top1", 0.9, 0.8, 1.0), *ROWS[1:]], [logger])
    time.sleep(pause)
    (logger,) = parse_loggers([spec])
    log_run(run, ROWS, [logger])
    return logger


@pytest.mark.parametrize("own", [True, False])
def test_tensorboard(run: Run, tmp_path: Path, own: bool) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    place = run.path / "tensorboard" if own else tmp_path / "logs"
    foreign = place / entry_name(run) / "events.out.tfevents.1.training"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"")
    logged_twice(run, "tensorboard" if own else f"tensorboard:{place}")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert foreign.is_file() and len(list(foreign.parent.iterdir())) == 2
    (ours,) = foreign.parent.glob("*.robustkit")
    events = EventAccumulator(str(ours)).Reload()
    pgd = "vit/pgd(eps=1_255,steps=20)/linf_max"
    assert {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]} == {
        "vit/clean/top1": [(0, 0.75)],
        "vit/clean/top1_ci_low": [(0, pytest.approx(0.7))],
        "vit/clean/top1_ci_high": [(0, pytest.approx(0.8))],
        pgd: [(0, 0.25)],
        f"{pgd}_n": [(0, 8.0)],
        "vit/clean/top1_n": [(0, 8.0)],
    }
    (text,) = events.Tensors("flags/text_summary")
    assert b"    vit: unfinished: 2 of 2 units are missing\n" in text.tensor_proto.string_val[0]
    (text,) = events.Tensors("parameters/text_summary")
    assert b"    sha256/vit: c1" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow's, of SQLAlchemy 2.1
@pytest.mark.parametrize("own", [True, False])
def test_mlflow(run: Run, tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{run.path if own else tmp_path}/{'mlflow/' * own}mlflow.db"
    logged_twice(run, "mlflow" if own else f"mlflow:{uri}")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("robustkit")
    assert experiment is not None
    (entry,) = client.search_runs([experiment.experiment_id])
    assert (entry.info.run_name, entry.info.status) == (entry_name(run), "FINISHED")
    assert entry.data.metrics == {
        "vit/clean/top1": 0.75,
        "vit/clean/top1_ci_low": 0.7,
        "vit/clean/top1_ci_high": 0.8,
        "vit/pgd_eps_1_255_steps_20/linf_max": 0.25,
        **{f"vit/{name}_n": 8.0 for name in ("clean/top1", "pgd_eps_1_255_steps_20/linf_max")},
    }
    unchanged = client.get_metric_history(entry.info.run_id, "vit/pgd_eps_1_255_steps_20/linf_max")
    assert [point.value for point in unchanged] == [0.25]
    assert entry.data.params["protocol"] == "standard@1:96fe6f4a" and entry.data.params["sha256/vit"] == "c1"
    assert [artifact.path for artifact in client.list_artifacts(entry.info.run_id)] == ["flags.txt", "report.html"]


def test_wandb_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    logger: Any = logged_twice(run, "wandb:audits", pause=1.1)  # its folders are named by the second
    assert (logger._run.id, logger._run.project) == (entry_name(run), "audits")
    assert logger._run.config["protocol"] == "standard@1:96fe6f4a"
    *_, last = sorted((run.path / "wandb").glob(f"offline-run-*-{entry_name(run)}/run-{entry_name(run)}.wandb"))
    written = b"unfinished: 2 of 2 units are missing"
    for _ in range(300):  # another process writes the file, and may end later on a busy machine
        if written in (data := last.read_bytes()):
            break
        time.sleep(0.1)
    for key, value in (
        *(("vit/clean/top1", "0.75"), ("vit/clean/top1_ci_low", "0.7"), ("vit/clean/top1_ci_high", "0.8")),
        *(("vit/pgd_eps_1_255_steps_20/linf_max", "0.25"), ("vit/clean/top1_n", "8")),
    ):
        pattern = re.escape(key.encode()) + rb".{3}" + re.escape(value.encode()) + rb"[^0-9]"  # a tag and a length
        assert re.search(pattern, data, re.DOTALL), key
    assert b"report.html" in data and written in data
