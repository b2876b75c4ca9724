"""Statements of in-toto: what they say, that others can read them, and what is compared with them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
from gate_runs import PGD, make, right
from places import ROOT
from safetensors.torch import save_file

import robustkit
from robustkit.cli import app as cli
from robustkit.gate.policy import parse_policy, read_policy
from robustkit.gate.verdicts import judge
from robustkit.report.run import Run
from robustkit.slices.attestation import FileDigests, as_statement, file_digests

RULES = {
    "passes": "top1 under clean >= 0.5",
    "inconclusive": "top1 under clean >= 0.59 with 95 % confidence",
    "warns": "top1 under clean >= 0.9",
    "fails": f"top1 under {PGD} >= 0.9",
}


def policy_of(path: Path, *names: str, **more: str) -> Path:
    lines = [f"[[rule]]\nname = '{name}'\nrequire = '{RULES[name]}'" for name in names]
    lines = [text + "\nseverity = 'warning'" * ("'warns'" in text) for text in lines]
    path.write_text("\n".join([*lines, *(f"{key} = '{value}'" for key, value in more.items())]), encoding="utf-8")
    return path


def audited(path: Path, weights: Path, /, **entry: Any) -> Run:
    """A run of one checkpoint, whose file is `weights`."""
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    described = {"name": "vit", "spec": str(weights), "path": str(weights), "sha256": digest} | entry
    figures = {"clean": right(60, 100), PGD: right(30, 100)}
    return make(path, {"vit": figures}, checkpoints=[described], protocol={"digest": "c" * 64})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "vit.safetensors"
    path.write_bytes(bytes(range(256)) * 9)
    return path


def stated(run: Run, policy: Path, predicate: str = "test-result", baseline: Run | None = None) -> dict[str, Any]:
    outcome = judge(read_policy(policy), run, baseline)
    found: dict[str, Any] = json.loads(
        as_statement(outcome, run.manifest, None if baseline is None else baseline.manifest, predicate)
    )
    return found


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["robustkit", "check", *map(str, words)])
    with pytest.raises(SystemExit) as status:
        cli.main()
    return int(str(status.value.code))


def test_a_statement_names_files_rules_and_what_they_depend_on(tmp_path: Path, weights: Path) -> None:
    run = audited(tmp_path / "run", weights, attention="quest", weights="model_ema", code_sha256="e" * 64)
    policy = policy_of(tmp_path / "policy.toml", "fails", "passes", "inconclusive", "warns", "passes")
    assert stated(run, policy) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {
                "name": "vit",
                "digest": {"sha256": hashlib.sha256(weights.read_bytes()).hexdigest()},
                "annotations": {"arch": "vit", "attention": "quest", "weights": "model_ema"},
            }
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "FAILED",
            "configuration": [
                {"name": "policy policy.toml", "digest": {"sha256": hashlib.sha256(policy.read_bytes()).hexdigest()}},
                {"name": "card standard@1:0", "digest": {"sha256": "c" * 64}},
                {"name": "data few, 100 samples", "digest": {"sha256": "d1"}},
                {"name": "code or config of vit", "digest": {"sha256": "e" * 64}},
            ],
            "passedTests": ["passes", "passes (2)"],
            "warnedTests": ["inconclusive", "warns"],
            "failedTests": ["fails"],
        },
    }
    ended = {("passes",): "PASSED", ("passes", "warns"): "WARNED", ("passes", "inconclusive"): "WARNED"}
    for names, result in ended.items():
        assert stated(run, policy_of(policy, *names))["predicate"]["result"] == result
    before = make(tmp_path / "before", {"vit": {"clean": right(60, 100)}})
    assert stated(run, policy, baseline=before)["predicate"]["configuration"][-1] == {
        "name": "baseline vit",
        "digest": {"robustkitTensors": f"{0:064d}"},
    }


def test_only_checkpoints_that_rules_are_about_are_subjects(tmp_path: Path, weights: Path) -> None:
    found = {name: {"clean": right(hits, 100)} for name, hits in (("good", 90), ("bad", 10), ("other", 50))}
    entries = [{"name": name, "path": f"{name}.pt", "sha256": f"{k:064d}"} for k, name in enumerate(found)]
    run = make(tmp_path / "run", found, checkpoints=entries)
    rules = "".join(
        f"[[rule]]\nrequire = 'top1 under clean >= 0.8'\ncheckpoint = '{name}'\n" for name in ("good", "bad")
    )
    policy = tmp_path / "policy.toml"
    policy.write_text(rules + "[[rule]]\nrequire = 'protocol == \"standard@1:0\"'\n", encoding="utf-8")
    statement = stated(run, policy, "robustness")
    assert [subject["name"] for subject in statement["subject"]] == ["good", "bad"]
    assert {figure["checkpoint"] for figure in statement["predicate"]["figures"]} == {"good", "bad"}
    tests = stated(run, policy)["predicate"]
    assert tests["passedTests"] == ["good: top1 under clean >= 0.8", 'protocol == "standard@1:0"']
    assert tests["failedTests"] == ["bad: top1 under clean >= 0.8"]
    about_the_run = parse_policy("[[rule]]\nrequire = 'protocol == \"standard@1:0\"'", "p.toml")
    with pytest.raises(Exception, match=r"p\.toml: no rule concerns a checkpoint"):
        as_statement(judge(about_the_run, run), run.manifest, None, "test-result")
    unfiled = audited(tmp_path / "timm", weights, path=None, spec="timm:vit")
    with pytest.raises(Exception, match=r"vit \(timm:vit\) came from no file whose SHA-256"):
        stated(unfiled, policy_of(policy, "passes"))


def test_the_published_schema_reads_it(tmp_path: Path, weights: Path) -> None:
    pytest.importorskip("in_toto_attestation")
    from google.protobuf import json_format
    from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    run = audited(tmp_path / "run", weights)
    policy = policy_of(tmp_path / "policy.toml", "fails", "inconclusive", "passes")
    for predicate in ("test-result", "robustness"):
        text = as_statement(judge(read_policy(policy), run), run.manifest, None, predicate)
        parsed = json_format.Parse(text, statement_pb2.Statement())
        Statement.copy_from_pb(parsed).validate()
        assert json_format.MessageToDict(parsed) == json.loads(text)  # nothing is unknown to it
    tests = json.dumps(stated(run, policy)["predicate"])
    result = json_format.Parse(tests, test_result_pb2.TestResult())
    assert (result.result, list(result.failed_tests), len(result.configuration)) == ("FAILED", ["fails"], 3)


def test_figures_follow_their_schema(tmp_path: Path, weights: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "reference" / "robustness-v0.1.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    run = audited(tmp_path / "run", weights)
    statement = stated(run, policy_of(tmp_path / "policy.toml", "passes"), "robustness")
    jsonschema.validate(statement["predicate"], schema)
    assert statement["predicateType"] == schema["$id"]
    shown = {(row["condition"], row["metric"]): row for row in statement["predicate"]["figures"]}
    row = shown["clean", "top1"]
    assert (row["value"], row["n"], row["interval"]["level"]) == (0.6, 100, 0.95)
    assert [round(row["interval"][end], 4) for end in ("low", "high")] == [0.502, 0.6906]
    broken = {**statement["predicate"], "figures": [{**row, "ci": 1}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_a_flipped_byte_is_found(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    run, file = audited(tmp_path / "run", weights), tmp_path / "a.json"
    policy = policy_of(tmp_path / "policy.toml", "passes")
    words = (run.path, "--attestation", file)
    assert call(monkeypatch, *words) == 0
    first = file.read_bytes()
    assert call(monkeypatch, *words) == 0 and file.read_bytes() == first
    capsys.readouterr()
    assert call(monkeypatch, weights, "--verify-attestation", file) == 0
    assert capsys.readouterr().out == f"{weights} is vit of {file}: PASSED\n"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)
    assert call(monkeypatch, weights, "--verify-attestation", file) == 1
    reported = capsys.readouterr()
    assert reported.out == "" and reported.err.count("\n") == 1 and "vit.safetensors is not what" in reported.err
    content[1000] ^= 1
    weights.write_bytes(content)
    policy_of(policy, "fails")
    assert call(monkeypatch, *words, "--predicate", "robustness") == 1
    assert call(monkeypatch, weights, "--verify-attestation", file) == 1
    assert "whose result is FAILED" in capsys.readouterr().err
    policy_of(policy, "passes", "warns")
    assert call(monkeypatch, *words) == 0
    capsys.readouterr()
    assert call(monkeypatch, weights, "--verify-attestation", file) == 1
    assert "whose result is WARNED: some rule was inconclusive" in capsys.readouterr().err
    assert call(monkeypatch, weights, "--verify-attestation", file, "--allow-warned") == 0
    assert capsys.readouterr().out == f"{weights} is vit of {file}: WARNED\n"
    assert call(monkeypatch, run.path, "--allow-warned") == 2
    policy_of(policy, "fails")
    assert call(monkeypatch, *words, "--predicate", "robustness") == 1
    assert call(monkeypatch, run.path, "--predicate", "robustness") == 2
    assert call(monkeypatch, weights, "--verify-attestation", file, "--json", "x.json") == 2
    assert "--json: --verify-attestation checks no run" in capsys.readouterr().err
    assert call(monkeypatch, "timm:vit", "--verify-attestation", file) == 2
    assert call(monkeypatch, "none.pt", "--verify-attestation", file) == 2
    assert "none.pt: cannot be read (No such file" in capsys.readouterr().err


def test_a_check_without_a_verdict_leaves_no_older_statement(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, policy = audited(tmp_path / "run", weights), policy_of(tmp_path / "policy.toml", "passes")
    Path("about.toml").write_text("[[rule]]\nrequire = 'protocol == \"standard@1:0\"'\n", encoding="utf-8")
    files = ("--json=a.json", "--attestation=a.intoto.json")
    for words in (
        ["none"],
        [run.path, "--bogus"],
        [run.path, "--policy", "none.toml"],
        [run.path, "--policy", "about.toml"],  # which writes the other file, and has nothing to attest
    ):
        assert call(monkeypatch, run.path, *files) == 0 and Path("a.intoto.json").exists()
        assert call(monkeypatch, *words, *files) == 2, words
        assert not Path("a.intoto.json").exists() and not Path("a.json").exists(), words
    capsys.readouterr()
    assert call(monkeypatch, run.path, "--attestation", policy) == 2 and policy.exists()
    assert f"--attestation {policy}: is also the file of --policy; give another one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"_type": "https://in-toto.io/Statement/v0.1"}, "has no _type"),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "has the predicateType 'https://slsa.dev"),
        ({"subject": []}, "without digests"),
        ({"subject": [{"name": "vit", "digest": "sha256"}]}, "without digests"),
        ({"predicate": {"result": "FINE\u001b[31m"}}, "has the result 'FINE [31m'"),
        ({"payloadType": "application/vnd.in-toto+json", "_type": None}, "unsigned"),
    ],
)
def test_what_is_no_statement_of_ours_is_refused(
    tmp_path: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    said: str,
) -> None:
    run, file = audited(tmp_path / "run", weights), tmp_path / "a.json"
    statement = stated(run, policy_of(tmp_path / "policy.toml", "passes")) | change
    file.write_text(json.dumps(statement), encoding="utf-8")
    assert call(monkeypatch, weights, "--verify-attestation", file) == 2
    assert said in capsys.readouterr().err
    file.write_text("{" * 10, encoding="utf-8")
    assert call(monkeypatch, weights, "--verify-attestation", file) == 2


def test_digests_of_shards_are_those_of_their_audit(tmp_path: Path) -> None:
    weights = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=16, patch_size=8).state_dict()
    files = {name: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, name in enumerate(weights)}
    for file in dict.fromkeys(files.values()):
        save_file({name: weights[name].contiguous() for name in weights if files[name] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    digest = robustkit.load(index, mean=[0.5] * 3, std=[0.5] * 3).identity.sha256
    assert file_digests(str(index)) == file_digests(str(tmp_path)) == FileDigests(str(digest), sharded=True)


def test_digests_of_folders_are_those_of_their_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        **dict.fromkeys(("hidden_size", "intermediate_size", "image_size"), 16),
        num_hidden_layers=1,
        num_attention_heads=2,
        patch_size=8,
    )
    model = transformers.ViTForImageClassification(config)
    for size, sharded in (("1GB", False), ("4KB", True)):
        folder = tmp_path / size
        model.save_pretrained(folder, max_shard_size=size)
        identity, found = (
            robustkit.load(f"hf:{folder}", mean=[0.5] * 3, std=[0.5] * 3).identity,
            file_digests(f"hf:{folder}"),
        )
        assert (found.weights, found.config, found.sharded) == (identity.sha256, identity.code_sha256, sharded)
        entry = {"path": str(identity.path), "sha256": identity.sha256, "code_sha256": identity.code_sha256}
        run = make(tmp_path / f"run {size}", {"vit": {"clean": right(6, 10)}}, checkpoints=[{"name": "vit"} | entry])
        file = tmp_path / f"{size}.json"
        file.write_text(json.dumps(stated(run, policy_of(tmp_path / "policy.toml", "passes"))), encoding="utf-8")
        assert call(monkeypatch, f"hf:{folder}", "--verify-attestation", file) == 0
        said = (folder / "config.json").read_text("utf-8")
        (folder / "config.json").write_text(said.replace('"gelu"', '"relu"'), encoding="utf-8")
        assert call(monkeypatch, f"hf:{folder}", "--verify-attestation", file) == 1
        assert "its config.json or processor is not" in capsys.readouterr().err
        (folder / "config.json").write_text(said, encoding="utf-8")
        part = sorted(folder.glob("*.safetensors"))[-1]
        part.write_bytes(part.read_bytes()[:-1] + b"\x7f")
        assert call(monkeypatch, f"hf:{folder}", "--verify-attestation", file) == 1
        assert "is not what" in capsys.readouterr().err


def test_a_verdict_on_a_method_is_about_its_trainings(tmp_path: Path) -> None:
    entries = [
        {"name": name, "spec": f"{name}.pth", "path": f"{name}.pth", "sha256": str(place) * 64, "method": method}
        for place, (name, method) in enumerate({"q0": "quest", "q1": "quest", "s0": "standard"}.items())
    ]
    figures = {entry["name"]: {"clean": right(60, 100)} for entry in entries}
    run = make(tmp_path / "run", figures, checkpoints=entries, protocol={"digest": "c" * 64})
    text = "[[rule]]\nrequire = 'top1 under clean >= 0.5'\nmethod = 'quest'\n"
    statement = json.loads(as_statement(judge(parse_policy(text, "p.toml"), run), run.manifest, None, "test-result"))
    assert [subject["name"] for subject in statement["subject"]] == ["q0", "q1"]
