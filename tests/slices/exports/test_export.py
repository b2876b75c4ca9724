"""Results for others: every figure as in the run, in the form that they specify, and back again; files of strangers."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from manifests import whole
from released_runs import HOSTILE, PGD, records, write_run

from robustkit.cli.app import cli
from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import mean_of, proportion, wilson
from robustkit.errors import NothingEvaluated, ProtocolError, RobustkitError, RunError
from robustkit.report.run import Run
from robustkit.results.compared import compare
from robustkit.results.published import Origin, joined, read_published
from robustkit.results.survey import survey, write_summary
from robustkit.results.tables import among_tables, found_among, sides_of
from robustkit.slices.exports import _FORMATS
from robustkit.slices.exports.card import write_cards
from robustkit.slices.exports.every_eval_ever import _interval as interval_of
from robustkit.slices.exports.every_eval_ever import _is_shown as is_shown
from robustkit.slices.exports.every_eval_ever import _metric as written_metric
from robustkit.slices.exports.every_eval_ever import before_submission
from robustkit.slices.exports.formats import FORMATS
from robustkit.slices.exports.formats import export_run as export
from robustkit.tasks import metric_of, metrics

EEE, RESULTS = "every-eval-ever", "evaluation_results"
SURE = {f"corruption(fog,severity={severity})": records(10 - severity) for severity in range(1, 6)}
FIRST = {"clean": records(8), PGD: records(3, linf=2 / 255), **SURE}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two checkpoints, of which the second lacks all but clean images; the PGD of the first exceeds its eps."""
    return Run(write_run(tmp_path / "run", {"vit": FIRST, "other": {"clean": records(1)}}))


def log_of(run: Run, out: Path, checkpoint: str = "vit", **options: Any) -> tuple[Path, dict[str, Any]]:
    (path,) = export(run, EEE, out=out, checkpoint=checkpoint, **options)
    return path, json.loads(path.read_text("utf-8"))


def lacking(log: Any) -> str:
    """What schema 0.3.0 requires and a file lacks, as far as this one goes: the first such thing, or nothing."""
    texts: list[tuple[Any, str]] = [(log, "schema_version evaluation_id retrieved_timestamp")]
    texts += [(log["source_metadata"], "source_type source_organization_name evaluator_relationship")]
    texts += [(log["model_info"], "name id"), (log["eval_library"], "name version")]
    texts += [(log["model_info"]["additional_details"], "deployment_type model_availability")]
    for result in log["evaluation_results"]:
        texts += [(result, "evaluation_name"), (result["source_data"], "dataset_name source_type")]
        config, score = result["metric_config"], result["score_details"]
        if type(config.get("lower_is_better")) is not bool or config.get("score_type") != "continuous":
            return "lower_is_better"
        low, high = (float(config.get(name, "nan")) for name in ("min_score", "max_score"))
        if type(score.get("score")) is not float or not low <= score["score"] <= high:
            return "score"
        texts += [(score["details"], " ".join(score["details"]))]
    for held, names in texts:
        if wrong := next((name for name in names.split() if not isinstance(held.get(name), str)), ""):
            return wrong
    return ""


def test_every_figure_goes_along_with_what_it_depends_on(run: Run, tmp_path: Path) -> None:
    path, log = log_of(run, tmp_path / "out")
    rows = [row for row in survey(run) if row.checkpoint == "vit"]
    assert lacking(log) == "" and len(rows) == len(log["evaluation_results"])
    parts = path.relative_to(tmp_path / "out").parts
    assert parts[:-1] == ("data", "val", "unknown", "vit") and log["model_info"]["id"] == "unknown/vit"
    for row, result in zip(rows, log["evaluation_results"], strict=True):
        score, config = result["score_details"], result["metric_config"]
        named = (result["evaluation_name"], config["additional_details"]["robustkit_metric"])
        assert named == row.key and score["score"] == row.value
        spread, details = score["uncertainty"], score["details"]
        assert spread["num_samples"] == row.n
        ends = spread.get("confidence_interval", {"lower": math.nan, "upper": math.nan, "method": ""})
        assert [ends["lower"], ends["upper"]] == pytest.approx([row.low, row.high], nan_ok=True)
        assert ends["method"] == row.interval
        assert tuple(json.loads(details.get("flags", "[]"))) == tuple(map(str, row.findings))
        assert details["protocol"] == "standard@1:96fe6f4a" and details["data_digest"] == "d1" * 32
        assert details["checkpoint_sha256"] == "0" * 64 and details["seed"] == "7"
        known = {"protocol", "protocol_digest", "data_digest", "checkpoint_sha256", "seed"}
        assert details.keys() - {"flags"} == known  # what a condition's text says, and not what the card says otherwise
    by = {result["evaluation_result_id"]: result for result in log["evaluation_results"]}
    assert len(by) == len(rows)
    assert "exceeds eps" in by[f"{PGD}#top1"]["score_details"]["details"]["flags"]
    top1, nll = by["clean#top1"], by["clean#nll"]
    interval = top1["score_details"]["uncertainty"]["confidence_interval"]
    assert interval == dict(zip(("lower", "upper"), wilson(8, 10), strict=True)) | {
        "confidence_level": 0.95,
        "method": "Wilson score",
    }
    assert [top1["metric_config"][name] for name in ("metric_id", "metric_unit", "min_score", "max_score")] == [
        *("accuracy", "proportion", 0.0, 1.0)
    ]
    assert [nll["metric_config"][name] for name in ("metric_id", "metric_unit", "min_score", "max_score")] == [
        *("robustkit.nll", "nats", 0, "Infinity")
    ]
    assert nll["metric_config"]["lower_is_better"] and not top1["metric_config"]["lower_is_better"]
    assert re.fullmatch(r"val/unknown/vit/1767225600-[0-9a-f]{16}", log["evaluation_id"])
    assert log["evaluation_timestamp"] == "2026-01-01T00:00:00+00:00" and log["retrieved_timestamp"] == "1767225600"
    text = path.read_text("utf-8")
    assert "/home/me" not in text and "secret" not in text and "NaN" not in text
    again, _ = log_of(run, tmp_path / "again")
    assert again.relative_to(tmp_path / "again").parts == parts and again.read_bytes() == path.read_bytes()
    _, named = log_of(run, tmp_path / "named", model_id="acme/vit-b")
    assert named["model_info"]["id"] == "acme/vit-b" and (tmp_path / "named/data/val/acme/vit-b").is_dir()


@pytest.mark.parametrize(
    "broken",
    [
        lambda log: log.pop("evaluation_id"),
        lambda log: log["source_metadata"].pop("evaluator_relationship"),
        lambda log: log["model_info"]["additional_details"].pop("model_availability"),
        lambda log: log["evaluation_results"][1]["source_data"].pop("source_type"),
        lambda log: log["evaluation_results"][1]["metric_config"].pop("lower_is_better"),
        lambda log: log["evaluation_results"][1]["metric_config"].pop("max_score"),
        lambda log: log["evaluation_results"][1]["score_details"].update(score=1.5),
        lambda log: log["evaluation_results"][1]["score_details"]["details"].update(seed=7),
    ],
)
def test_the_check_above_sees_what_is_broken(run: Run, tmp_path: Path, broken: Callable[[Any], Any]) -> None:
    _, log = log_of(run, tmp_path / "out")
    broken(log)
    assert lacking(log)


def test_the_schema_of_every_eval_ever_accepts_the_files(run: Run, tmp_path: Path) -> None:
    jsonschema, found = pytest.importorskip("jsonschema"), importlib.util.find_spec("every_eval_ever")
    if found is None or found.origin is None:
        pytest.skip("every_eval_ever, which has the schema, is not installed")
    schema = json.loads((Path(found.origin).parent / "schemas" / "eval.schema.json").read_text("utf-8"))
    assert schema["version"] == "0.3.0"
    names = [name for name in HOSTILE if name.strip()]
    hostile = Run(write_run(tmp_path / "hostile", {name: {"clean": records(8)} for name in names}))
    paths = [*export(run, EEE, out=tmp_path / "a"), *export(hostile, EEE, out=tmp_path / "b")]
    assert len(paths) == 2 + len(names)
    for path in paths:
        jsonschema.validate(json.loads(path.read_text("utf-8")), schema)


def test_what_a_run_lacks_is_said(run: Run, tmp_path: Path) -> None:
    _, log = log_of(run, tmp_path / "out", "other")
    gap = "unfinished: 6 of 7 units are missing"
    assert log["source_metadata"]["additional_details"]["unfinished"] == gap
    assert all(gap in json.loads(each["score_details"]["details"]["flags"]) for each in log["evaluation_results"])
    done = CliRunner().invoke(cli, ["export", str(run.path), "--format", "csv"])
    assert done.exit_code == 0 and "unfinished: 6 of 14 units are missing" in done.output


def test_names_and_units_of_metrics(run: Run, tmp_path: Path) -> None:
    """A name has no unit, since the values are no percentages, and a distance has that of the card's space."""
    named = {name: metric_of(name).word for name in ("iou(cat)", "knn(5)", "top1_after_fab-t", "region_over_random")}
    assert [*named.values()] == [
        "IoU of a class (cat)",
        "kNN at k (5)",
        "top-1 after a stage (fab-t)",
        "kept over random",
    ]
    exported = {metric.hub[1] if metric.hub else metric.word for metric in metrics().values()}
    assert not [name for name in exported if "%" in name or name != name.strip(" ,") or "points" in name]
    for space, unit in (("pixels", "pixels in [0, 1]"), ("sigma", "standard deviations")):
        protocol = {"tag": "own@1:96fe6f4a", "name": "own", "digest": "96fe", "space": space}
        (path,) = export(Run(write_run(tmp_path / space, {"vit": FIRST}, protocol=protocol)), EEE)
        configs = {
            each["evaluation_result_id"]: each["metric_config"] for each in json.loads(path.read_text())[RESULTS]
        }
        assert configs[f"{PGD}#linf_max"]["metric_unit"] == unit
        assert configs["clean#top1"]["metric_unit"] == "proportion"
        assert read_published(str(path)).figures["quest"][PGD]["linf_max"] == 2 / 255
        path.write_text(path.read_text().replace(f'"{unit}"', '"of 255"'))
        assert "linf_max" not in read_published(str(path)).figures["quest"][PGD]


def test_an_interval_says_how_it_was_computed_and_is_left_out_where_there_is_none() -> None:
    for figure in (proportion(8, 10), mean_of(np.linspace(0, 1, 12)), Figure(1.0, 9, 0.5, 2.0, "Student's t")):
        ends = {"lower": figure.low, "upper": figure.high, "confidence_level": 0.95, "method": figure.interval}
        assert interval_of(figure) == {"confidence_interval": ends} and figure.interval
    for low, high in ((math.nan, 0.9), (0.1, math.nan), (math.inf, math.inf)):
        assert interval_of(Figure(0.8, 10, low, high, "bootstrap")) == {}


def test_a_figure_that_is_neither_better_nor_worse_says_so() -> None:
    for name, direction in (("top1", False), ("nll", True), ("head_correlation", None)):
        written = written_metric(metric_of(name), "pixels")
        assert written["lower_is_better"] == bool(direction)
        assert (written["additional_details"].get("direction") == "neither is better") == (direction is None)


def test_how_a_metric_is_called() -> None:
    for name, called, kind, parameters in (
        ("top1", "top-1 accuracy", "accuracy", None),
        ("nll", "NLL", "nll", None),
        ("parity", "parity", "parity", None),  # which has no words
        ("iou(cat)", "IoU of a class (cat)", "iou", {"of": "cat"}),
        ("top1_after_fab-t", "top-1 after a stage (fab-t)", "top1_after_fab-t", None),
    ):
        written = written_metric(metric_of(name), "pixels")
        assert written["metric_name"] == called and written["metric_kind"] == kind
        assert written.get("metric_parameters") == parameters


def test_only_files_of_unknown_organisations_are_named_before_a_submission() -> None:
    paths = [Path(f"data/val/{name}") for name in ("unknown/vit/1.json", "unknown/vit/1.csv", "acme/vit/2.json")]
    assert "(1 of 3 files)" in before_submission(paths) and not before_submission(paths[1:])


def test_each_run_and_each_model_has_a_path_of_its_own(tmp_path: Path) -> None:
    """Two that began in the same second, and names that are alike in their first characters, which paths keep."""
    fgsm, out = "fgsm(eps=1/255)", tmp_path / "out"
    for condition in (PGD, fgsm):
        export(Run(write_run(tmp_path / condition[:4], {"vit": {condition: records(3)}})), EEE, out=out)
    held = [json.loads(path.read_text("utf-8")) for path in out.rglob("*.json")]
    assert {each["evaluation_results"][0]["evaluation_name"] for each in held} == {PGD, fgsm}
    data = {"name": "d" * 300, "root": "x", "layout": "folders", "n": 10, "classes": 2, "digest": "d1" * 32}
    names = ["n" * 300, "n" * 299 + "m", "n b", "n_b"]
    long = Run(write_run(tmp_path / "long", {name: {"clean": records(8)} for name in names}, data=data))
    paths = [path.relative_to(out) for path in export(long, EEE, out=out)]
    assert len({path.parts[3] for path in paths}) == 4 and max(len(str(path)) for path in paths) < 160
    model = "acme/" + "vit_" * 20  # the validator of the datastore looks for it
    (path,) = export(long, EEE, out=out, checkpoint="n b", model_id=model)
    assert path.relative_to(out).parts[2:4] == ("acme", "vit_" * 20)


def test_what_the_datastore_would_refuse_is_said(run: Run, tmp_path: Path) -> None:
    words = ["export", str(run.path), "--format", EEE, "--out", str(tmp_path), "--checkpoint", "vit"]
    said = "refuses models of unknown organisations (1 of 1 files); give --model-id ORG/NAME before you submit them"
    assert said in CliRunner().invoke(cli, words).output
    assert "--model-id" not in CliRunner().invoke(cli, [*words, "--model-id", "acme/vit"]).output


def in_each_form(path: Path, out: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The only checkpoint of a run in the forms of files: of Every Eval Ever all, of the Hub args and notes of PGD."""
    run = Run(write_run(path, {"vit": {"clean": records(8), PGD: records(3)}}, **changes))
    _, log = log_of(run, out)
    (index,) = export(run, "model-index", out=out)
    (hub,) = export(run, "hf-eval-results", out=out, dataset_id="a/b")
    metrics = yaml.safe_load(index.read_text("utf-8"))["model-index"][0]["results"][0]["metrics"]
    (args,) = (each["args"] for each in metrics if each["name"].startswith(f"top-1 accuracy under {PGD}"))
    return log, args, yaml.safe_load(hub.read_text("utf-8"))[1]["notes"]


def test_what_a_card_says_against_its_figures_goes_along(tmp_path: Path) -> None:
    """Its caveats, and that eps is in no pixels."""
    protocol = {"tag": "own@1:96fe6f4a", "name": "own", "digest": "96fe", "space": "sigma", "caveats": ["of no usé"]}
    versions = {"torché": "2"}
    log, args, notes = in_each_form(tmp_path / "run", tmp_path / "out", protocol=protocol, versions=versions)
    details = log["eval_library"]["additional_details"]
    assert details["caveats"] == '["of no usé"]' and args["caveats"] == ["of no usé"]
    assert details["versions"] == '{"torché": "2"}' and details["space"] == args["space"] == "sigma"
    assert "; eps in standard deviations of a channel; " in notes and "; caveat: of no usé" in notes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attention": "standard", "attention_source": "option"}, "attention standard (by the user)"),
        ({"attention": "quest", "attention_source": "option"}, ""),
        ({"preprocessing_source": {"std": "option", "input_size": "network"}}, "std 0.5 (by the user)"),
    ],
)
def test_a_model_that_an_option_changed_is_not_the_published_one(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    entry = {"name": "vit", "spec": "zoo:shapes-vit-quest", "attention": "quest", **change}
    entry |= {"metadata": {"attention": "quest", "std": [0.25, 0.25, 0.25]}}
    log, args, notes = in_each_form(tmp_path / "run", tmp_path / "out", checkpoints=[entry])
    info, setup = log["model_info"], args["setup"]
    assert info["id"] == ("unknown/vit" if said else "robustkit/shapes-vit-quest")
    assert info["additional_details"]["model_availability"] == ("unknown" if said else "open_weights")
    assert said in setup and info["additional_details"]["setup"] == setup and f"; set-up: {setup}; " in notes


def test_what_heads_learned_from_goes_along(tmp_path: Path) -> None:
    heads = {"training": "f5" * 32, "images": 60, "neighbours": [5, 7], "k": 5}
    log, args, notes = in_each_form(tmp_path / "run", tmp_path / "out", checkpoints=[{"name": "vit", "heads": heads}])
    assert all(json.loads(each["score_details"]["details"]["heads"]) == heads for each in log["evaluation_results"])
    said = f"; heads: training {'f5' * 32}, images 60, neighbours 5 7, k 5"
    assert args["setup"].endswith(said) and said in notes


def test_predictions_of_another_system_are_no_file_of_weights(tmp_path: Path) -> None:
    entry = {"name": "vit", "spec": "predictions:theirs.csv", "sha256": "ab" * 32, "weights": "computed elsewhere"}
    data = {"name": "theirs", "root": "", "layout": "predictions", "n": 10, "classes": 2, "digest": "d1" * 32}
    log, args, notes = in_each_form(tmp_path / "run", tmp_path / "out", checkpoints=[entry], data=data)
    text = json.dumps(log)
    assert "sha256" not in text and "float32" not in text and "theirs" not in text
    assert not log["eval_library"]["additional_details"].keys() & {"dtype", "device", "compile"}
    assert log["model_info"]["additional_details"]["predictions_digest"] == "ab" * 32
    assert all(
        each["score_details"]["details"]["predictions_digest"] == "ab" * 32 for each in log["evaluation_results"]
    )
    assert {each["source_data"]["dataset_name"] for each in log["evaluation_results"]} == {"unknown"}
    assert args["predictions_digest"] == "ab" * 32 and "checkpoint_sha256" not in args
    assert f"; data unknown, digest {'d1' * 32}; predictions digest {'ab' * 32}; " in notes and "sha256" not in notes
    card = write_cards(tmp_path / "run")[0].read_text("utf-8")
    assert f"\n- Predictions digest `{'ab' * 32}`\n" in card and "sha256" not in card and "float32" not in card


def test_what_is_not_finite_is_named_and_not_written(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", {"vit": {"clean": records(8, nll=math.nan)}}))
    path, log = log_of(run, tmp_path / "out")
    assert log["source_metadata"]["additional_details"]["left_out"] == '["clean nll"]'
    assert "nll" not in {each["metric_config"]["metric_kind"] for each in log["evaluation_results"]}
    json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("spec", "model", "available"),
    [
        ("/home/me/vit.pth", "unknown/vit", "unknown"),
        ("hf-hub:acme/net", "acme/net", "unknown"),
        ("hf-hub:../home/me", "unknown/vit", "unknown"),
        ("timm:resnet18.a1_in1k", "timm/resnet18.a1_in1k", "open_weights"),
        ("zoo:shapes-vit-quest", "robustkit/shapes-vit-quest", "open_weights"),
    ],
)
def test_a_model_is_named_without_a_path_of_the_machine(tmp_path: Path, spec: str, model: str, available: str) -> None:
    entry = {"name": "vit", "spec": spec, "path": "/home/me/vit.pth", "arch": "/home/me/net.py:resnet20"}
    command = "robustkit audit /home/me/vit.pth --data-dir /home/me/val"
    rows = {"vit": {"clean": records(8)}, "other": {PGD: records(3)}}  # so the run is unfinished
    changes = {"checkpoints": [entry, entry | {"name": "other"}], "command": command}
    path, log = log_of(Run(write_run(tmp_path / "run", rows, **changes)), tmp_path / "out")
    details = log["model_info"]["additional_details"]
    assert (log["model_info"]["id"], details["model_availability"], details["arch"]) == (
        model,
        available,
        "net.py:resnet20",
    )
    text = path.read_text("utf-8")
    assert "/home/me" not in text and "units are missing" in text


@pytest.mark.parametrize("name", ["../x", "/etc/x", "</script>", "=cmd()", "CON", "data", "..", "a\x00b\n", "żółw"])
def test_a_hostile_name_leads_nowhere(tmp_path: Path, name: str) -> None:
    data = {"name": name, "root": "/home/me", "layout": "folders", "n": 10, "classes": 2, "digest": "d1" * 32}
    run = Run(write_run(tmp_path / "run", {name: {"clean": records(8)}}, data=data))
    out = tmp_path / "out"
    for form, options in {EEE: {}, "csv": {}, "model-index": {}, "hf-eval-results": {"dataset_id": "a/b"}}.items():
        (path,) = export(run, form, out=out, **options)  # type: ignore[arg-type]
        assert path.resolve().is_relative_to(out.resolve()) and path.is_file()
        text = path.read_text("utf-8")
        if form == "csv":
            (first, *_) = csv.DictReader(text.splitlines())
            assert not first["checkpoint"].startswith("=")
        elif form == EEE:
            assert json.loads(text)["model_info"]["name"] == name and len(path.relative_to(out).parts) == 5
            assert path.relative_to(out).parts[1].isascii() and path.relative_to(out).parts[1] not in ("CON", "data")
        else:
            assert name in str(yaml.safe_load(text)) or repr(name)[1:-1] in str(yaml.safe_load(text))


def test_what_goes_out_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every figure is equal, to the last bit and as printed, and has its place next to itself."""
    shards = {"vit": FIRST | {"corruption(fog,severity=1)": records(7, nll=math.inf)}, "other": {"clean": records(1)}}
    run = Run(write_run(tmp_path / "run", shards))
    write_summary(run)
    path, _ = log_of(run, tmp_path / "out")
    read = read_published(str(path))
    (side,) = sides_of([run], ["vit"])
    found = found_among(side, read)
    rows = [row for row in side.results if row.is_finite]
    assert len(found) == len(rows) > 20 and read.unmatched == ()
    assert all(each.levels == {"quest": each.row.value} for each in found)
    (table,) = among_tables([side], read)
    figure, published = table.headings.index("here [95 %]"), table.headings.index("quest")
    assert all(cells[figure].split(" [")[0] == cells[published] for cells in table.rows)
    flags = dict.fromkeys(str(each) for row in rows for each in row.findings)
    assert len(flags) > 1 and [line.partition(" (")[0] for line in table.flags] == [
        f"published with a flag: {flag}".partition(" (")[0] for flag in flags
    ]
    said = [each for each in compare(run, reference=str(path)).to_dict()["among"] if each["checkpoint"] == "vit"]
    assert [each["published"]["quest"] - each["value"] for each in said] == [0.0] * len(rows)


def other_log(*results: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A file of someone else."""
    return {
        "schema_version": "0.3.0",
        "evaluation_id": "e",
        "retrieved_timestamp": "0",
        "source_metadata": {
            "source_type": "documentation",
            "source_organization_name": "board",
            "evaluator_relationship": "third_party",
        },
        "model_info": {"name": "Net", "id": "acme/net", "additional_details": {}},
        "eval_library": {"name": "harness", "version": "1"},
        "evaluation_results": list(results),
        **changes,
    }


def result_of(name: str, score: Any, **config: Any) -> dict[str, Any]:
    return {
        "evaluation_name": name,
        "source_data": {"dataset_name": "val", "source_type": "other"},
        "metric_config": {"lower_is_better": False, "metric_id": "accuracy", "max_score": 1.0} | config,
        "score_details": {"score": score},
    }


def test_of_the_files_of_others_what_is_certain_is_taken(run: Run, tmp_path: Path) -> None:
    write_summary(run)
    path = tmp_path / "others.json"
    loss = {"metric_id": "nll", "lower_is_better": True, "max_score": "Infinity"}
    known = [
        result_of("clean", 0.7),
        result_of(PGD, 25, metric_unit="percent", max_score=100),
        result_of("corruption(fog)", 0.25, metric_id="", metric_name="mean_error", lower_is_better=True),
        result_of("clean", 0.5, **loss),
    ]
    unknown = [
        result_of("mmlu", 0.5),
        result_of("pgd", 0.5),
        result_of("clean", 0.5, metric_id="", metric_name="elo"),
        result_of("clean", 0.3, metric_id="top5_accuracy", lower_is_better=True),
        result_of("clean", 30, metric_id="top5_accuracy", max_score=None),
        result_of("clean", 3, metric_id="top5_accuracy", metric_unit="proportion"),
        result_of("fgsm(eps=2/255)", 0.9, metric_unit="percent", max_score=1),
        result_of("fgsm(eps=4/255)", 0.9, metric_unit="proportion", max_score=100),
        result_of(PGD, 0.5, **loss, metric_unit="bits"),
        result_of("fgsm(eps=1/255)", 0.5),
        result_of("fgsm(eps=1/255)", 0.6),
        result_of("fgsm(eps=1/255)", 0.5),
    ]
    path.write_text(json.dumps(other_log(*known, *unknown)))
    read = read_published(str(path))
    fog = {"corruption(fog)": {"mean_error": 0.25}}
    assert read.figures == {"acme/net": {"clean": {"top1": 0.7, "nll": 0.5}, PGD: {"top1": 0.25}, **fog}}
    assert read.unmatched == (
        f"{path}: 12 of 16 figures are left out, since the condition, the metric, its unit or its direction is unclear "
        "or none of robustkit's, or values differ: mmlu accuracy; pgd accuracy; clean elo; clean top5_accuracy; "
        "fgsm(eps=2/255) accuracy and 3 more",
    )
    own = {"name": "robustkit", "version": "0", "additional_details": {"protocol": "standard@2:1a14b135"}}
    path.write_text(json.dumps(other_log(result_of("pgd(eps=1/255)", 0.5), eval_library=own)))
    assert [*read_published(str(path)).resolved().figures["acme/net"]] == ["pgd(eps=1/255)"]  # no steps of the card's
    path.write_text(json.dumps(other_log(*known, *unknown)))
    json_file = tmp_path / "out.json"
    words = ["compare", str(run.path), "--reference", str(path), "--json", str(json_file)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "published under an unknown protocol, here standard" in done.output
    assert read.unmatched[0] in json.loads(json_file.read_text("utf-8"))["unpaired"]


LOSS = {"lower_is_better": True, "max_score": "Infinity"}
PIXELS = "pixels in [0, 1]"
CODE = " [compare/published]"
LONG = f"iou({'c' * 495})"  # the longest name that a metric may have


@pytest.mark.parametrize(
    ("condition", "config", "taken"),
    [
        ("clean", {"additional_details": {"robustkit_metric": "top5"}}, {"top1": 0.5}),  # another library's details
        ("clean", LOSS | {"metric_id": "robustkit.later", "metric_name": "nll"}, {"nll": 0.5}),
        ("clean", {"metric_id": "linf_max", "metric_unit": PIXELS, "lower_is_better": True}, {"linf_max": 0.5}),
        ("clean", {"metric_id": "linf_max"}, {}),  # of an unknown unit
        ("clean", {"metric_id": "head_correlation", "max_score": 2}, {"head_correlation": 0.5}),  # of no unit
        ("clean", {"max_score": 100}, {"top1": 0.005}),
        ("clean", {"metric_unit": "percent", "max_score": 1}, {}),
        ("clean", {"metric_unit": "percent", "max_score": 2}, {"top1": 0.005}),
        ("clean", {"metric_id": f"robustkit.{LONG}"}, {LONG: 0.5}),
        ("clean", {"metric_id": f"robustkit.{LONG.replace('c', 'cc', 1)}"}, {}),
        (f"corruption({' ' * 485}fog)", {}, {"top1": 0.5}),
        (f"corruption({' ' * 486}fog)", {}, {}),
        ("pgd(speed=3)", {}, {}),
    ],
)
def test_a_figure_is_taken_where_condition_metric_and_unit_are_certain(
    tmp_path: Path, condition: str, config: dict[str, Any], taken: dict[str, float]
) -> None:
    path = tmp_path / "others.json"
    path.write_text(json.dumps(other_log(result_of(condition, 0.5, **config), model_info={"name": "Net"})))
    assert read_published(str(path)).figures == {"Net": {condition: taken} if taken else {}}


def test_a_figure_at_either_end_of_its_metric_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "others.json"
    scores = {"clean": 0.0, "pgd(eps=1/255)": 1.0, "pgd(eps=2/255)": -1e-9, "pgd(eps=3/255)": 1 + 1e-9}
    path.write_text(json.dumps(other_log(*map(result_of, scores, scores.values()))))
    taken = {text: {"top1": score} for text, score in [*scores.items()][:2]}
    assert read_published(str(path)).figures == {"acme/net": taken}


def test_texts_of_a_file_are_cut_at_their_limits(tmp_path: Path) -> None:
    path, flags = tmp_path / "others.json", json.dumps([f"flag {place}" for place in range(21)])
    result = result_of("clean", 0.5)
    result["score_details"]["details"] = {"flags": flags}
    own = {"name": "robustkit", "version": "1"}
    path.write_text(json.dumps(other_log(result, model_info={"name": "N" * 201}, eval_library=own)))
    read = read_published(str(path))
    assert [*read.figures] == ["N" * 200] and len(read.origins["clean"]["top1"].flags) == 20
    assert joined("abcde") == "a; b; c; d; e" and joined("abcdef") == "a; b; c; d; e and 1 more"


def test_another_spelling_of_a_condition_is_the_same_one(run: Run, tmp_path: Path) -> None:
    """Matched with the run's text; what no condition of the run matches is named, in a comparison of several, too."""
    write_summary(run)
    path = tmp_path / "others.json"
    spelled = ["PGD(steps=20, eps=1/255)", "pgd(norm=linf,eps=0.00392156862745098,steps=20)"]
    far = ["pgd(steps=20,\teps=2/255)", "pgd(eps=1/255,steps=20,norm=l2)"]
    fog = result_of("Corruption( fog )", 0.25, metric_id="mean_error", lower_is_better=True)
    path.write_text(json.dumps(other_log(fog, *(result_of(text, 0.25) for text in (*spelled, *far)))))
    found = compare(run, reference=str(path))
    flagged = result_of(spelled[0], 0.25)
    flagged["score_details"]["details"] = {"flags": '["gradients are masked"]'}
    path.write_text(json.dumps(other_log(flagged, eval_library={"name": "robustkit", "version": "1"})))
    (table,) = (table for table in compare(run, reference=str(path)).placed if table.checkpoint == "vit")
    assert table.flags == (
        f"published under an unknown protocol, here standard{CODE}",
        f"published with a flag: gradients are masked{CODE}",
    )
    placed = {each["condition"]: each["published"] for each in found.to_dict()["among"] if each["checkpoint"] == "vit"}
    assert placed == {text: {"acme/net": 0.25} for text in (PGD, "corruption(fog)")}
    assert found.unpaired[0] == f"others.json: no condition of the run matches pgd(steps=20, eps=2/255); {far[1]}"
    path.write_text(json.dumps(other_log(*(result_of(spelled[place], 0.25 + place / 2) for place in (0, 1)))))
    read = read_published(str(path))
    assert read.figures == {"acme/net": {}} and ": 2 of 2 figures are left out" in read.unmatched[0]  # of two values
    path.write_text(json.dumps(other_log(result_of(far[0], 0.25))))
    lines = compare(run, reference=str(path)).unpaired
    assert (
        lines[0].endswith("matches pgd(steps=20, eps=2/255)")
        and lines[-1] == "others.json: it has no figure of these checkpoints"
    )
    path.write_text(json.dumps(other_log()))
    assert read_published(str(path)).unmatched == (f"{path}: it has no figures",)
    alone = Run(write_run(tmp_path / "alone", {"vit": FIRST}))
    with pytest.raises(RunError, match=r"has no figure that others.json has; .*: it has no figures; audit a condition"):
        compare(alone, reference=str(path))


def test_a_figure_with_a_parameter_keeps_it(tmp_path: Path) -> None:
    """Under its own id, also in a file of another library, and in the name that tables show."""
    path, metric = tmp_path / "others.json", "accuracy_at(0.25/255)"
    path.write_text(json.dumps(other_log(result_of("fmn(steps=50)", 0.5, metric_id=f"robustkit.{metric}"))))
    assert read_published(str(path)).figures == {"acme/net": {"fmn(steps=50)": {metric: 0.5}}}
    assert metric_of(metric).label == "accuracy at a radius, % (0.25/255)"
    assert metric_of(metric).word == "accuracy at a radius (0.25/255)"


def test_a_file_is_replaced_after_the_run_was_extended_and_by_no_other_run(tmp_path: Path) -> None:
    """Also where two runs began in the same second."""
    shards = {"clean": FIRST["clean"]}
    first, other = (Run(write_run(tmp_path / name, {"vit": shards})) for name in ("first", "other"))
    before, _ = log_of(first, tmp_path / "out")
    extended = Run(write_run(tmp_path / "first", {"vit": FIRST}))
    after, log = log_of(extended, tmp_path / "out")
    assert before == after and len(log["evaluation_results"]) > 10
    assert log_of(other, tmp_path / "out")[0] != after and len([*(tmp_path / "out").rglob("*.json")]) == 2


def test_how_others_differ_is_flagged(run: Run, tmp_path: Path) -> None:
    """Other data, by its digest or else its name, another number of samples, and what their figures are flagged for."""
    data = {"name": "val", "root": "x", "layout": "folders", "n": 20, "classes": 2, "digest": "d2" * 32}
    here = Run(write_run(tmp_path / "here", {"vit": {"clean": records(9, 20), PGD: records(5, 20)}}, data=data))
    path, log = log_of(run, tmp_path / "out", "other")
    (flags,) = (table.flags for table in compare(here, reference=str(path)).placed)
    assert tuple(flag.removesuffix(CODE) for flag in flags) == (
        "published on val, digest d1d1d1d1, here val, digest d2d2d2d2",
        "published for n = 10, here n = 20",
        "published with a flag: unfinished: 6 of 7 units are missing",
        *(f"published with a flag: {flag}" for flag in survey(run).cells["other"]["clean", "top1"].findings),
    )
    path, log = log_of(run, tmp_path / "out", "vit")
    (flags,) = (table.flags for table in compare(here, reference=str(path)).placed)
    beyond = "exceeds eps: largest linf perturbation 2/255 in pixels, claimed 1/255 [attack/exceeds-eps]"
    assert f"published with a flag: {beyond} ({PGD}){CODE}" in flags
    path.write_text(json.dumps(log | {"eval_library": {"name": "harness", "version": "1"}}).replace('"val"', '"train"'))
    (flags,) = (table.flags for table in compare(here, reference=str(path)).placed)
    assert tuple(flag.removesuffix(CODE) for flag in flags) == (
        "published under an unknown protocol, here standard",
        "published on train, here val",
        "published for n = 10, here n = 20",
    )


def test_what_is_no_doubt_about_an_imported_figure() -> None:
    """Counts of the same samples depend on the model, and a remark says what was counted."""
    data = whole({"checkpoints": [{"name": "net"}], "data": {"n": 10, "digest": "d1", "name": "val"}}).data
    remark = str(Finding.of("maps/misclassified-excluded", count=7, n=10))
    maps = Origin("val", data.digest, 3, (remark, "gradients are masked"))
    assert [*maps.doubts("cam(agcam,mode=mask)", data, 4)] == ["published with a flag: gradients are masked"]
    assert [*Origin("val", "", 3, ()).doubts("clean", data, 4)] == ["published for n = 3, here n = 4"]
    assert not [*Origin("val", "", 4, ()).doubts("clean", data, 4)]
    assert not [*Origin("another name", data.digest, 4, ()).doubts("clean", data, 4)]


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read ("),
        (NESTED, "cannot be read (nested too deeply)"),
        ('{"a": 1, "a": 2}', "cannot be read ('a' is named more than once in one object"),
        ("[]", "not a JSON object; expected a file of Every Eval Ever, schema 0.3.0"),
        (other_log(schema_version="9.9.9"), 'schema_version is "9.9.9"; expected a file'),
        (other_log(schema_version="9" * 99), f'schema_version is "{"9" * 79}; expected a file'),
        (other_log(schema_version=None), "schema_version is null; expected a file"),
        (other_log(evaluation_results=None), "evaluation_results is None; expected a list of tables"),
        (other_log(1), "evaluation_results[0] is 1; expected a table"),
        (other_log(model_info={}), "model_info.name is missing; expected a text"),
        (
            other_log(result_of("clean", math.nan)),
            "evaluation_results[0].score_details.score is nan; expected a number",
        ),
        (other_log(result_of("clean", math.inf)), "score is inf; expected a number"),
        (other_log(result_of("clean", True)), "score is True; expected a number"),
        (other_log(result_of("clean", 10**400)), "expected a number"),
        (other_log(result_of(["clean"], 0.5)), "evaluation_results[0].evaluation_name is ['clean']; expected a text"),  # type: ignore[arg-type]
        (" " * ((16 << 20) + 1), "cannot be read (16 MB, more than the allowed 16 MB)"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "file",
)
def test_a_file_of_a_stranger_is_refused_in_one_line(tmp_path: Path, text: Any, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(RunError) as fault:
        read_published(str(path))
    said = str(fault.value)
    assert said.startswith(f"{path}: ") and message in said and "\n" not in said and len(said) < 600


def test_the_hub_reads_its_results(run: Run, tmp_path: Path) -> None:
    (path,) = export(run, "hf-eval-results", checkpoint="vit", dataset_id="acme/bench", out=tmp_path / "out")
    assert path == tmp_path / "out" / ".eval_results" / "robustkit.yaml"
    plain = yaml.safe_load(path.read_text("utf-8"))
    assert [(each["dataset"]["task_id"], each["value"]) for each in plain] == [
        ("clean", 0.8),
        ("pgd-eps-1-255-steps-20", 0.3),
    ]
    assert plain[0]["notes"].startswith(
        "top-1 accuracy on clean images (standard@1:96fe6f4a, n = 10); 95 % interval 0.490162 to 0.943318; protocol "
        f"digest 96fe; data val, digest {'d1' * 32}; checkpoint sha256 {'0' * 64}; set-up: attention quest"
    )
    assert plain[0]["notes"].endswith("; labels by layout folders; self-reported with RobustKit 0.1.0")
    assert "0.603222; eps in pixels in [0, 1]; protocol digest 96fe" in plain[1]["notes"]
    assert "; flag: exceeds eps: largest linf perturbation 2/255 in pixels" in plain[1]["notes"]
    asked = {"checkpoint": "vit", "dataset_id": "acme/bench", "out": tmp_path / "asked"}
    (path,) = export(run, "hf-eval-results", task_ids=["main", f"{PGD}=robust"], **asked)  # type: ignore[arg-type]
    some = yaml.safe_load(path.read_text("utf-8"))
    assert [each["dataset"] for each in some] == [{"id": "acme/bench", "task_id": name} for name in ("main", "robust")]
    hub = pytest.importorskip("huggingface_hub._eval_results")
    entries = hub.parse_eval_result_entries(plain)
    assert hub.eval_result_entries_to_yaml(entries) == plain
    for tasks, message in (
        (["fog=x"], r"--task-id: unknown condition 'fog'"),
        (["clean="], "clean has the task id ''"),
        (["clean=a", "b"], "^--task-id is clean=a, b; expected one task for each condition$"),
        (["x", f"{PGD}=x"], "has the task id 'x'; expected one for each condition"),
    ):
        with pytest.raises(RunError, match=message):
            export(run, "hf-eval-results", task_ids=tasks, **asked)  # type: ignore[arg-type]


def test_what_card_and_summary_write_is_the_same(run: Run, tmp_path: Path) -> None:
    card = write_cards(run.path, checkpoint="vit")[1].read_bytes()
    (index,) = export(run, "model-index", checkpoint="vit")
    assert index == run.path / "export" / "metadata.yml" and index.read_bytes() == card
    write_summary(run)
    (table,) = export(run, "csv")
    assert table.read_bytes() == (run.path / "summary.csv").read_bytes()
    (one,) = export(run, "csv", checkpoint="other", out=tmp_path / "one")
    lines = table.read_text("utf-8").splitlines()
    assert one.read_text("utf-8").splitlines() == [lines[0], *(line for line in lines if line.startswith("other,"))]
    assert run.export("csv", str(tmp_path / "one"), checkpoint="vit") == [one]  # its own, so overwritten


def test_a_tracker_gets_what_report_logs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    monkeypatch.setattr("robustkit.slices.exports.formats.parse_loggers", lambda specs: tuple(specs))
    monkeypatch.setattr("robustkit.slices.exports.formats.log_run", lambda *given: logged.append(given))
    words = ["export", str(run.path), "--format", "mlflow", "--to", "sqlite:///x.db"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "logged: mlflow" in done.output
    export(run, "wandb", checkpoint="other")
    assert [given[2] for given in logged] == [("mlflow:sqlite:///x.db",), ("wandb",)]
    rows = survey(run)
    assert list(logged[0][1]) == list(rows)
    assert list(logged[1][1]) == [row for row in rows if row.checkpoint == "other"]
    assert _FORMATS == FORMATS


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("evry-eval-ever", {}, r"^unknown format 'evry-eval-ever'; did you mean 'every-eval-ever'\?"),
        (EEE, {"checkpoint": "vitt"}, r"^unknown checkpoint 'vitt'; did you mean 'vit'"),
        (EEE, {"model_id": "acme/x"}, "has 2 checkpoints; choose one with --checkpoint"),
        (EEE, {"checkpoint": "vit", "model_id": "../x"}, r"^--model-id is '\.\./x'; expected ORG/NAME, as on the Hub$"),
        (EEE, {"checkpoint": "vit", "model_id": "x" * 201}, f"^--model-id is '{'x' * 200}'; expected ORG/NAME"),
        (EEE, {"to": "x"}, "^--to: every-eval-ever has no use for it; leave it out$"),
        ("csv", {"task_ids": ["x"]}, "^--task-id: csv has no use for it"),
        ("mlflow", {"out": Path("x")}, "^--out: mlflow has no use for it"),
        ("model-index", {}, "has 2 checkpoints; choose one with --checkpoint: vit, other$"),
        ("hf-eval-results", {}, "^hf-eval-results needs the benchmark's data set on the Hub; give --dataset-id ORG/NA"),
        ("hf-eval-results", {"checkpoint": "vit", "dataset_id": "x"}, "^--dataset-id is 'x'; expected ORG/NAME"),
    ],
)
def test_what_cannot_be_exported(run: Run, form: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        export(run, form, **options)
    assert not (run.path / "export").exists()


def test_a_figure_that_its_metric_cannot_have_is_not_shown() -> None:
    rows = [Figure(value, 1, metric="top1") for value in (-1e-9, 0.0, 1.0, 1 + 1e-9, math.nan)]
    assert [is_shown(row) for row in rows] == [False, True, True, False, False]


def test_a_run_without_a_figure_to_write(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "robustkit.slices.exports.every_eval_ever._is_shown", lambda row: row.value == 0.1
    )  # clean, of the second
    assert len(export(run, EEE)) == 1
    with pytest.raises(NothingEvaluated, match="no figure of vit is finite"):
        export(run, EEE, checkpoint="vit")
    monkeypatch.setattr("robustkit.slices.exports.every_eval_ever._is_shown", lambda row: False)
    with pytest.raises(NothingEvaluated, match="run has no results; run the audit again to make them"):
        export(run, EEE)
    monkeypatch.setattr("robustkit.slices.exports.formats.hub_metrics", lambda document: [])
    with pytest.raises(NothingEvaluated, match="vit has no top-1, which the Hub's"):
        export(run, "hf-eval-results", checkpoint="vit", dataset_id="a/b")


def test_what_stands_in_the_way(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, name in (("csv", "results.csv"), ("model-index", "metadata.yml")):
        (tmp_path / name).write_text("mine")
        with pytest.raises(RunError, match=rf"{name} exists and was not written by robustkit; choose another folder"):
            export(run, form, out=tmp_path, checkpoint="vit")
        assert (tmp_path / name).read_text() == "mine"
    (run.path / "export").symlink_to(tmp_path)
    with pytest.raises(RunError, match="is a link to"):
        export(run, "csv")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProtocolError, match=r"^logging to mlflow: mlflow is not installed; pip install mlflow$"):
        export(run, "mlflow")
    empty = Run(write_run(tmp_path / "empty", {"vit": {}}))
    for form in (EEE, "csv", "model-index"):
        with pytest.raises(NothingEvaluated, match="has no results; run the audit again"):
            export(empty, form)
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "none"), "--format", "csv"])
    assert isinstance(done.exception, RobustkitError) and "is not a run folder" in str(done.exception)
    odd = Run(write_run(tmp_path / "odd", {"vit": {"clean": records(8)}}, started="yesterday" * 9))
    with pytest.raises(RunError, match=f"started is '{('yesterday' * 9)[:80]}'; expected a time such as 2026-01-01T"):
        export(odd, EEE)
