"""AutoAttack through the audit: records by stage, timings apart, evidence, flags, engines, the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_audit import FACTORY, audit, command, files

import attacks
import robustkit
from robustkit.errors import ProtocolError, RunError
from robustkit.evaluations.aggregate import readable_rows
from robustkit.evaluations.attacks.evaluate import attacked_labels, build_attack, parse_condition
from robustkit.evaluations.attacks.results import stages_of
from robustkit.evaluations.condition import pattern_of
from robustkit.evaluations.family import AnyFamily
from robustkit.evaluations.subject import Batch, EvaluatedModel, Evaluation
from robustkit.pipeline.units import evaluate
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import Condition
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.results.pairing import missing_command

SMALL = "autoattack(steps=5,targets=2,queries=20)"
TEXT = "autoattack(eps=4/255,version=standard,steps=5,targets=2,queries=20)"


def everything(run: Path) -> dict[str, bytes]:
    return files(run) | {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("evidence/*/*.json")}


@pytest.fixture(scope="module")
def finished(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audit(place, tmp_path_factory.mktemp("runs") / "run", attacks=SMALL, eps="4/255")


def test_records_tell_what_broke_each_sample_and_what_it_cost(finished: Run) -> None:
    name = finished.manifest.checkpoints[0].name
    clean = {row["sample_id"]: row["correct"] for row in finished.table(name, "clean").to_pylist()}
    rows = finished.table(name, TEXT).to_pylist()
    names = ["clean", "apgd-ce", "apgd-t", "fab-t", "square"]
    assert len(rows) == 30 and {row["broken_by"] for row in rows} <= {None, *names}
    assert len({row["broken_by"] for row in rows}) >= 3  # some stand, some were wrong, some were broken
    for row in rows:
        assert (row["broken_by"] == "clean") == (not clean[row["sample_id"]])
        assert row["correct"] == (row["broken_by"] is None) == (row["broken_at"] is None)
        assert row["forwards"] == sum(row[f"forwards {stage}"] for stage in names)
        assert row["backwards"] == sum(row[f"backwards {stage}"] for stage in names)
        assert row["forwards clean"] == 1 and row["linf"] <= 4 / 255 + 1e-6
        if row["broken_by"] == "clean":
            assert row["forwards"] == 1 and row["linf"] == 0
        if row["broken_by"] is None:  # every run of every stage, to its end; then the image itself
            assert [row[f"forwards {stage}"] for stage in names] == [1, 6, 12, 12, 21] and row["linf"] == 0
            assert [row[f"backwards {stage}"] for stage in names] == [0, 5, 10, 10, 0]


def test_stages_and_accuracy_come_from_the_records(finished: Run) -> None:
    name = finished.manifest.checkpoints[0].name
    rows = finished.table(name, TEXT).to_pylist()
    table, seconds = stages_of(finished.table(name, TEXT)), finished.stage_seconds(name, TEXT)
    standing = 30
    for stage in table:
        standing -= sum(row["broken_by"] == stage.name for row in rows)
        assert stage.standing == standing and seconds[stage.name] > 0
        assert stage.forwards == sum(row[f"forwards {stage.name}"] for row in rows)
    results = {row["metric"]: row for row in finished.results().to_dict("records") if row["condition"] == TEXT}
    assert results["top1"]["value"] == standing / 30 == results["top1_after_square"]["value"]
    assert results["top1_after_clean"]["value"] == sum(row["broken_by"] != "clean" for row in rows) / 30
    assert not results.keys() & {"nll", "ece", "top5"}  # samples left at their first wrong prediction
    shutil.rmtree(finished.path / "timings")
    assert finished.stage_seconds(name, TEXT) == {}
    refresh(finished)
    page = (finished.path / "report.html").read_text()
    assert "AutoAttack by stage" in page and "apgd-t" in page and "Can these numbers be trusted?" in page


def test_same_bytes_for_fresh_runs_and_after_an_interruption(place: Path, finished: Run, tmp_path: Path) -> None:
    again = audit(place, tmp_path / "again", attacks=SMALL, eps="4/255")
    assert everything(again.path) == everything(finished.path)
    for gone in (*again.path.rglob("evidence"), *again.path.rglob("00001.parquet")):
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert everything(audit(place, again.path, attacks=SMALL, eps="4/255").path) == everything(finished.path)


def test_batch_size_changes_no_flag(
    place: Path, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = finished.manifest.checkpoints[0].name
    sizes: list[tuple[str, int]] = []

    def watched(family: AnyFamily, subject: EvaluatedModel, batch: Batch, condition: Condition) -> Evaluation:
        sizes.append((condition.name, len(batch)))
        return evaluate(family, subject, batch, condition)

    monkeypatch.setattr("robustkit.pipeline.units.evaluate", watched)
    other = audit(place, tmp_path / "other", attacks=SMALL, eps="4/255", batch_size=3)
    # AutoAttack fills its batches from the whole shard.
    assert max(size for what, size in sizes if what == "clean") == 3
    assert [size for what, size in sizes if what == "autoattack"] == [8, 8, 8, 6]
    correct = [run.table(name, TEXT)["correct"].to_pylist() for run in (finished, other)]
    assert correct[0] == correct[1]


def test_few_classes_are_said_aloud_and_an_ordinary_model_is_not_accused(place: Path, tmp_path: Path) -> None:
    run = audit(
        place, tmp_path / "run", attacks="autoattack(steps=3,queries=5)", eps="4/255", limit=12, evidence="full"
    )
    flags = {flag["text"] for row in run.results().to_dict("records") for flag in row["flags"]}
    assert flags == {
        "3 classes: 2 targets instead of 9",
        "3 classes: DLR needs more classes, so the difference of logits is used as loss",
    }


def test_a_model_that_gives_probabilities_is_attacked_as_its_logits(place: Path, tmp_path: Path) -> None:
    (tmp_path / "soft.py").write_text(
        FACTORY.replace("nn.Linear(4 * 8 * 8, 3))", "nn.Linear(4 * 8 * 8, 3), nn.Softmax(dim=1))")
    )
    model = {"arch": f"{tmp_path / 'soft.py'}:build", "num_classes": 3}
    asked = {"attacks": SMALL, "eps": "4/255", "limit": 12, "evidence": "full"}
    soft, plain = audit(place, tmp_path / "soft", model=model, **asked), audit(place, tmp_path / "plain", **asked)
    (entry,) = soft.manifest.checkpoints
    assert any("outputs are probabilities" in note for note in entry.notes)
    for text in soft.manifest.conditions:
        ours, theirs = (run.table("net", text).to_pydict() for run in (soft, plain))
        assert ours["correct"] == theirs["correct"]
        if text == "clean":
            assert ours["nll"] == pytest.approx(theirs["nll"], abs=1e-4)
    figures = json.loads(soft.evidence_path(entry.name, soft.manifest.conditions[1]).read_text())
    assert len(figures["sample_ids"]) == 12
    assert not any("softmax" in flag["text"] for flags in soft.results()["flags"] for flag in flags)


def test_eps_0_and_a_few_images_are_sensible(place: Path, tmp_path: Path) -> None:
    run = audit(place, tmp_path / "run", attacks=SMALL, eps="0", limit=3)
    rows = {row["condition"]: row for row in run.results().to_dict("records") if row["metric"] == "top1"}
    clean, attacked = rows.values()
    assert clean["value"] == attacked["value"] and attacked["n"] == 3
    assert not list(run.path.rglob("evidence/*/*"))


def test_the_paper_card_gives_labels_and_cuts_the_normalised_tensor() -> None:
    card = load_card("quest-paper")
    condition = parse_condition("autoattack", card)
    attack = build_attack(condition, card)
    assert (
        attacked_labels(condition, card) == "true"
        and attacked_labels(parse_condition("pgd", card), card) == "predicted"
    )
    assert isinstance(attack, attacks.AutoAttack) and not attack.early_stop and not condition.early_stop
    assert attack.threat == attacks.ThreatModel("linf", 1 / 255, (0.0, 1.0), cut_images=True)
    assert condition.text == "autoattack(eps=1/255,version=standard)"


def test_texts_of_conditions_name_the_budget_and_the_engine() -> None:
    card = load_card("standard")

    def text(source: str, **options: Any) -> str:
        found = parse_condition(source, card, **options)
        assert parse_condition(found.text, card) == found
        return found.text

    assert text("autoattack") == "autoattack(eps=1/255,version=standard)"
    assert text("autoattack(version=rand,norm=l2,eps=0.5)") == "autoattack(eps=0.5,norm=l2,version=rand)"
    assert text("apgd(loss=dlr)") == "apgd(eps=1/255,steps=100,loss=dlr)"
    assert text("square(queries=10)") == "square(eps=1/255,queries=10)"
    with pytest.raises(ProtocolError, match="version is 'best'; expected one of: standard, plus, rand"):
        text("autoattack(version=best)")
    with pytest.raises(ProtocolError, match="unknown engine 'cleverhans'; known: pyautoattack"):
        text("pgd", engine="cleverhans")


def test_the_original_through_the_same_records(place: Path, finished: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    name = finished.manifest.checkpoints[0].name
    run = audit(place, finished.path, attacks=SMALL, eps="4/255", engine="pyautoattack")
    (condition,) = (text for text in run.manifest.conditions if "engine=pyautoattack" in text)
    assert condition == TEXT.replace(")", ",engine=pyautoattack)")
    ours, theirs = (run.table(name, text).to_pylist() for text in (TEXT, condition))
    assert [stage.name for stage in stages_of(run.table(name, condition))] == [
        stage.name for stage in stages_of(run.table(name, TEXT))
    ]
    assert sum(row["correct"] for row in ours) <= sum(row["correct"] for row in theirs) + 1
    assert all(row["linf"] <= 4 / 255 + 1e-6 for row in theirs)


def test_bfloat16_counts_what_float32_confirms(place: Path, tmp_path: Path) -> None:
    run = audit(place, tmp_path / "run", attacks=SMALL, eps="4/255", dtype="bfloat16")
    name = run.manifest.checkpoints[0].name
    rows = run.table(name, TEXT).to_pylist()
    for row in rows:  # the search and float32 agree: nothing that it took for broken is right, nor the reverse
        assert (row["broken_by"] is not None) == (not row["correct"])
        assert row["broken_at"] is None or not row["correct"]
    assert 0 < sum(row["correct"] for row in rows) < 30
    assert sum(row["forwards"] for row in rows if row["broken_by"] == "clean") > sum(
        row["broken_by"] == "clean" for row in rows
    )  # the judge was asked about them as well


def test_dtype_auto_searches_in_bfloat16_and_records_float32(
    place: Path, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device is fast in it; elsewhere the run is that of float32. Clean figures are float32's in both."""
    options = {"attacks": SMALL, "eps": "4/255", "dtype": "auto"}
    for fast in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr("robustkit.models.device.is_fast_in_bfloat16", lambda device, fast=fast: fast)
            run = audit(place, tmp_path / str(fast), **options)
        name, same = run.manifest.checkpoints[0].name, run.manifest.deciding == finished.manifest.deciding
        assert run.manifest.deciding.dtype == "float32" + ", attacks search in bfloat16" * fast and same is not fast
        assert run.table(name, "clean").equals(finished.table(name, "clean"))
        rows, theirs = run.table(name, TEXT).to_pylist(), finished.table(name, TEXT).to_pylist()
        assert [row["broken_by"] is None for row in rows] == [row["correct"] for row in rows]
        asked = [sum(row["forwards"] for row in each if row["broken_by"] == "clean") for each in (rows, theirs)]
        assert (asked[0] > asked[1]) is fast  # the judge was asked
        ends = [[row["nll"] for row in each if row["broken_by"] not in (None, "clean")] for each in (rows, theirs)]
        assert (ends[0] != ends[1]) is fast  # the search took other ways
        assert sum(row["correct"] for row in rows) == sum(row["correct"] for row in theirs)
    with pytest.raises(RunError, match="dtype is float32, attacks search in bfloat16 there and float32 here"):
        audit(place, tmp_path / "True", **options | {"dtype": "float32"})
    assert "--dtype auto" in missing_command(Run(tmp_path / "True").manifest, name, pattern_of("fgsm"), tmp_path)


def test_without_pyautoattack_the_remedy_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyautoattack" else found(name))
    with pytest.raises(ProtocolError, match=r"pip install"):
        audit(place, tmp_path / "run", attacks="autoattack", engine="pyautoattack")
    assert not (tmp_path / "run").exists() and command(place, tmp_path) and torch.is_grad_enabled()


def test_lack_of_evidence_is_a_flag_and_is_made_up_for(
    place: Path, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory\nwith details")

    with monkeypatch.context() as patch:
        patch.setattr("robustkit.slices.evidence.taking.examine", fails)
        said: list[str] = []
        run = audit(place, tmp_path / "run", attacks=SMALL, eps="4/255", say=said.append)
    text = "evidence could not be collected: RuntimeError: out of memory"
    flags = run.results().query(f"condition == '{TEXT}'")["flags"]
    assert (
        len(flags) > 5
        and all(any(text in flag["text"] for flag in found) for found in flags)
        and any(text in line for line in said)
    )
    assert (run.path / "report.html").is_file()
    mended, expected = everything(audit(place, run.path, attacks=SMALL, eps="4/255").path), everything(finished.path)
    assert {name: expected.get(name) for name in mended if "summary" not in name}.items() <= mended.items()


NOISY = FACTORY.replace(
    "def build",
    "class Noise(nn.Module):\n    def forward(self, x):\n        return x + 0.2 * torch.randn_like(x)\n\n\ndef build",
).replace("nn.Conv2d(3, 4, 3, padding=1)", "Noise(), nn.Conv2d(3, 4, 3, padding=1)")


@pytest.mark.parametrize("version", ["standard", "rand"])
def test_a_random_model_is_flagged_and_what_the_average_says_stands(place: Path, tmp_path: Path, version: str) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    weights = torch.load(place / "net.pth")
    torch.save({f"{int(k[0]) + 1}{k[1:]}": v for k, v in weights.items()}, tmp_path / "net.pth")
    model = {"arch": f"{tmp_path / 'noisy.py'}:build", "num_classes": 3}
    runs = [
        robustkit.audit(
            [tmp_path / "net.pth"],
            data_dir=place / "images",
            out=tmp_path / name,
            device="cpu",
            model=model,
            attacks=f"autoattack(version={version},steps=3,targets=2,queries=5)",
            eps="2/255",
        )
        for name in ("a", "b")
    ]
    assert everything(runs[0].path) == everything(runs[1].path)  # also where the model draws by itself
    (condition,) = runs[0].manifest.conditions[1:]
    flags = runs[0].results().query(f"condition == '{condition}'")["flags"].iloc[0]
    assert any(flag["code"] == "masking/random-outputs" and "version=rand" in flag["text"] for flag in flags) == (
        version == "standard"
    )
    rows = runs[0].table("net", condition).to_pylist()
    assert {row["correct"] for row in rows} == {True, False}
    assert all((row["broken_by"] is None) == row["correct"] for row in rows)
    assert all(row["broken_at"] is None for row in rows if row["correct"])
    if version == "rand":  # a single pass more overrules nothing
        assert all(row["broken_at"] is not None for row in rows if not row["correct"])


@pytest.mark.parametrize("random", [True, False])
def test_what_the_attack_broke_is_broken_and_one_pass_cannot_overrule_an_average(random: bool) -> None:
    from robustkit.evaluations.attacks.evaluate import _stage

    names = ("clean", "apgd-ce", "apgd-dlr") if random else ("clean", "apgd-ce", "apgd-t", "fab-t", "square")
    none, passes = torch.zeros(5, dtype=torch.int64), torch.arange(5 * len(names)).reshape(-1, 5)
    result = attacks.StagedResult(
        torch.zeros(5, 1), none, none, none, none, stages=names, broken_by=torch.tensor([1, 2, -1, -1, -1]),
        stage_forwards=passes, stage_backwards=passes + 100, seconds=(0.5,) * len(names),
    )  # fmt: skip
    # By one more pass, which gave the last sample no number.
    rows: dict[str, list[Any]] = {"correct": [True, False, True, False, False], "prediction": [0, 1, 0, 1, -1]}
    assert _stage(rows, result) == dict.fromkeys(names, 0.5)
    assert rows["correct"] == [False, False, True, random, False]
    assert rows["broken_by"] == ["apgd-ce", names[2], None, None if random else "clean", "clean"]
    assert rows["forwards apgd-ce"] == [5, 6, 7, 8, 9] and rows[f"backwards {names[-1]}"] == (passes[-1] + 100).tolist()


def test_members_alone_say_that_there_are_fewer_targets(place: Path, tmp_path: Path) -> None:
    run = audit(
        place, tmp_path / "run", attacks="fab(steps=2),apgd(steps=2,loss=margin-targeted)", eps="4/255", limit=6
    )
    for condition in run.manifest.conditions[1:]:
        (shard,) = run.shards(run.manifest.names[0], condition)
        assert json.loads(shard.schema.metadata[b"notes"]) == ["3 classes: 2 targets instead of 9"]


def test_a_shard_without_a_readable_image_does_no_harm(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "images", tmp_path / "images")
    for image in sorted((tmp_path / "images" / "a").iterdir())[:8]:
        image.write_bytes(b"not an image")
    run = audit(place, tmp_path / "run", data_dir=tmp_path / "images", attacks=SMALL, eps="4/255")
    name = run.manifest.checkpoints[0].name
    assert stages_of(readable_rows(run.table(name, TEXT)))[0].standing <= 22
    assert run.results().query(f"condition == '{TEXT}' and metric == 'top1'")["n"].tolist() == [22]
    assert len(run.manifest.bad_images) == 8
