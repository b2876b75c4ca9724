"""run.json as a typed value: read once, seen by all, refused in one line where it is not as an audit writes it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from figures import said_of
from manifests import whole, write_plain
from msgspec.structs import replace
from small_audit import audit, furnish

from robustkit import merge
from robustkit.common.finding import Finding
from robustkit.errors import RunError
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.pipeline.manifest import versions
from robustkit.report.run import Run
from robustkit.runs import folder as module
from robustkit.runs.folder import RunFolder
from robustkit.runs.manifest import Manifest

PARTIAL: dict[str, Any] = {"checkpoints": [{"name": "net"}], "conditions": ["clean"], "data": {"n": 3}}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.write_manifest(whole(PARTIAL))
    return made


def test_a_manifest_is_checked_once_and_again_when_another_process_wrote_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    check = module.manifest_of
    monkeypatch.setattr(module, "manifest_of", lambda data, path: checked.append(path) or check(data, path))
    reader, writer = RunFolder(run.path), RunFolder(run.path)
    assert reader.manifest is reader.manifest and len(checked) == 1
    assert reader.lacking("net", "clean") == 3 and list(reader.units()) == [] and len(checked) == 1
    writer.write_manifest(replace(writer.manifest, batch_size=7))
    assert reader.manifest.batch_size == writer.manifest.batch_size == 7


def test_a_folder_without_a_manifest_is_not_remembered_as_such(tmp_path: Path) -> None:
    reader, writer = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert reader.read_manifest() is None
    with pytest.raises(RunError, match=r"is not a run folder \(no run.json\); make one with robustkit audit --out"):
        _ = reader.manifest
    writer.write_manifest(whole(PARTIAL))
    assert reader.manifest == whole(PARTIAL)


def test_what_is_written_is_what_is_read_and_what_was_there(run: RunFolder) -> None:
    before = run.manifest_path.read_bytes()
    run.write_manifest(run.manifest)
    assert run.manifest_path.read_bytes() == before
    absent = ("plugins", "parts", "sequential", "unsuited", "parity")
    assert list(json.loads(before)) == [*(n for n in Manifest.__struct_encode_fields__ if n not in absent), "digest"]
    assert "windows" not in json.loads(before)["checkpoints"][0] and "unjudged" not in json.loads(before)["data"]
    whole_number = whole(PARTIAL | {"claims": {"fgsm": {"eps": 1}}})  # a number stays what it was
    run.write_manifest(whole_number)
    assert '"eps": 1,' in run.manifest_path.read_text()


def test_no_reader_can_change_what_others_read(run: RunFolder) -> None:
    with pytest.raises(AttributeError):
        run.manifest.seed = 3  # type: ignore[misc]
    assert isinstance(run.manifest.conditions, tuple) and isinstance(run.manifest.checkpoints, tuple)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.pop("data"), "data is missing; expected a table"),
        (lambda plain: plain["checkpoints"][0].pop("name"), "checkpoints[0].name is missing; expected a text"),
        (lambda plain: plain["deciding"].pop("data digest"), "deciding.data digest is missing; expected a text"),
        (lambda plain: plain.update(shard_size=0), "shard_size is 0; expected a whole number from 1 on"),
        (
            lambda plain: plain["claims"].update({"x(y=1)": {"norm": "l2", "eps": float("nan"), "early_stop": False}}),
            "claims['x(y=1)'].eps is nan; expected a number",
        ),
        (
            lambda plain: plain["checkpoints"][0]["preprocessing"].update(std=[2**70]),
            "checkpoints[0].preprocessing.std is [1180591620717411303424]; expected a list of numbers",
        ),
        (lambda plain: plain.update(checkpoints=[5]), "checkpoints[0] is 5; expected a table"),
    ],
)
def test_a_part_that_no_audit_writes_is_named(run: RunFolder, change: Any, message: str) -> None:
    plain = run.manifest.to_plain()
    change(plain)
    write_plain(run, plain)
    with pytest.raises(RunError) as caught:
        _ = run.manifest
    assert str(caught.value) == f"{run.manifest_path}: {message}; restore it, or make the run again"


@pytest.mark.parametrize("number", [None, 0, 1, 3, "2", True, 2.0, [1]])
def test_a_run_of_another_format_is_neither_read_nor_continued_nor_merged(run: RunFolder, number: Any) -> None:
    plain = run.manifest.to_plain() | {"format": number, "robustkit": "9.0"}
    other = RunFolder(run.path.parent / "other")
    write_plain(other, {key: value for key, value in plain.items() if number is not None or key != "format"})
    for attempt in (other.read_manifest, lambda: merge([run.path, other.path], run.path.parent / "both")):
        with pytest.raises(
            RunError, match=r"and this version of RobustKit reads and continues format 2 alone; use the"
        ) as fault:
            attempt()
        assert "use the version that made it (9.0)" in str(fault.value) and "\n" not in str(fault.value)


SEVERAL = "run/several-versions"


def codes_of(run: Run) -> set[str]:
    return {finding.code for row in run.summary() for finding in row.findings}


@pytest.mark.usefixtures("one_thread")
def test_records_name_versions_and_figures_of_several_are_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed with another torch, and merged with parts of another robustkit; a kind of build is no version."""
    root, out = furnish(tmp_path), tmp_path / "run"
    said = list[str]()
    go = partial(audit, root, eps="8/255", setup_check=False, say=said.append)
    kept = versions()
    assert {"robustkit", "torch", "timm"} <= kept.keys()
    first = go(out, attacks="none")
    metadata = str(next(first.shards("net", "clean")).schema.metadata[b"robustkit"])
    assert all(f'"{name}": "{kept[name]}"' in metadata for name in ("robustkit", "torch", "timm"))
    assert first.manifest.versions == kept and SEVERAL not in codes_of(first)

    def under(**changed: str) -> None:
        for where in ("manifest", "units"):
            monkeypatch.setattr(f"robustkit.pipeline.{where}.versions", lambda: kept | changed)

    under(torch=f"{kept['torch'].partition('+')[0]}+elsewhere")
    assert SEVERAL not in codes_of(go(out, attacks="fgsm"))
    under(torch="1.0.0")
    rows = go(out, attacks="fgsm,pgd(steps=2)").summary()
    flag = f"records of this run come from several versions: torch 1.0.0 and {kept['torch'].partition('+')[0]}"
    assert rows and all(flag in said_of(row) for row in rows)
    assert (
        f"torch was {kept['torch'].partition('+')[0]} before and is 1.0.0 now: figures that combine both are flagged"
        in said
    )
    assert judge(parse_policy("[[rule]]\nrequire = 'no findings under clean'", "p"), first).verdicts[0].state == "FAIL"

    parts = []
    for number in (1, 2):
        under(robustkit=f"{number}.0")
        parts.append(go(tmp_path / f"part{number}", attacks="fgsm", part=f"{number}/2").path)
    merged = merge(parts, tmp_path / "merged").summary()
    several = Finding.of(SEVERAL, versions="robustkit 1.0 and 2.0")
    assert several.text.endswith("come from several versions: robustkit 1.0 and 2.0")
    assert merged and all(several in row.findings for row in merged)
