"""Adversarial images passed from one checkpoint to others: exact on linear models, masks, resuming, files."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gate_runs
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from manifests import whole
from PIL import Image
from processes import in_two
from sealing import put, seal
from small_audit import UNCHECKED, pages
from torch import nn

import robustkit
from robustkit.common.finding import Finding
from robustkit.common.intervals import wilson
from robustkit.common.preprocessing import Preprocessing
from robustkit.display.format import p_equals
from robustkit.errors import DamagedRecord, ProtocolError, RobustkitError
from robustkit.evaluations.aggregate import RecordReader
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.condition import check_condition, matches, pattern_of
from robustkit.gate.policy import parse_statement
from robustkit.pipeline.classification import plan_transfer
from robustkit.pipeline.request import ClassificationRequest
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.results.survey import survey
from robustkit.runs.kept_images import (
    ADVERSARIALS,
    DIGEST,
    digest_of_differences,
    read_adversarials,
    write_adversarials,
)
from robustkit.runs.manifest import PreprocessingEntry
from robustkit.slices.transfer import Passed, passed_of, transfer_condition
from robustkit.slices.transfer.results import TransferSummary, matrices

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
FACTORY = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.head = nn.Flatten(), nn.Linear(3 * 8 * 8, 3)
        self.register_buffer("hides", torch.zeros(1))  # the weights say whether gradients are masked
        self.default_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 8, 8), "crop_pct": 1.0}

    def forward(self, x):
        logits = self.head(self.flat(x))
        return logits.detach() + 0 * logits if self.hides > 0 else logits  # right, and flat for who follows it

def build(num_classes=3):
    return Linear()
"""
FGSM, PGD = "fgsm(eps=8/255)", "pgd(eps=8/255,steps=4)"
EPS = 8 / 255


def furnish(root: Path) -> Path:
    """Write linear models a and b, a again as `hidden`, and 40 images with the label that all of them predict."""
    (root / "net.py").write_text(FACTORY)
    torch.manual_seed(1)
    weight = 0.3 * torch.randn(3, 192)
    for name, noise in (("a", 0.0), ("b", 0.25)):
        state = {"head.weight": weight + noise * torch.randn(3, 192), "head.bias": torch.zeros(3)}
        torch.save(state | {"hides": torch.zeros(1)}, root / f"{name}.pth")
    torch.save(torch.load(root / "a.pth") | {"hides": torch.ones(1)}, root / "hidden.pth")
    states = [torch.load(root / f"{name}.pth") for name in "ab"]
    draw, kept = np.random.Generator(np.random.PCG64(0)), 0
    while kept < 40:
        image = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        flat = torch.from_numpy(image.transpose(2, 0, 1).copy()).flatten() / 255
        one, other = (int((flat @ state["head.weight"].T).argmax()) for state in states)
        if one == other:
            (root / "images" / "xyz"[one]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / "images" / "xyz"[one] / f"{kept:02d}.png")
            kept += 1
    return root


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnish(tmp_path_factory.mktemp("nets"))


def audit(place: Path, out: Path, names: Sequence[str] = "ab", **options: Any) -> Run:
    given = {"attacks": f"{FGSM},{PGD}", "transfer": True, "shard_size": 16, "browse": 0, "setup_check": False}
    model = {"arch": f"{place / 'net.py'}:build", "num_classes": 3}
    specs = [place / f"{name}.pth" for name in names]
    data_dir = place / "images"
    return robustkit.audit(specs, data_dir=data_dir, out=out, device="cpu", model=model, **(given | options))


def on(attack: str, source: str) -> str:
    return f"transfer({attack},from={source})"


def rows_of(run: Run) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(r["checkpoint"], r["condition"], r["metric"]): r for r in run.results().to_dict("records")}


def test_transfer_is_what_linear_algebra_says(nets: Path, tmp_path: Path) -> None:
    """FGSM of a linear model is x + eps * sign(W'(p - y)): the other model's answer there is known."""
    run = audit(nets, tmp_path / "run", batch_size=7)
    clean = run.table("a", "clean").to_pandas()
    images = [np.asarray(Image.open(nets / "images" / name)).transpose(2, 0, 1) for name in clean["sample_id"]]
    x = torch.from_numpy(np.stack(images)).flatten(1).float() / 255
    y = torch.tensor(clean["label"].tolist())
    weights = {name: torch.load(nets / f"{name}.pth")["head.weight"] for name in "ab"}
    rows = rows_of(run)
    for source in "ab":
        p = (x @ weights[source].T).softmax(dim=1)
        reached = (x + EPS * ((p - nn.functional.one_hot(y, 3)) @ weights[source]).sign()).clamp(0, 1)
        kept = x + (reached - x).half().float()
        kept = torch.maximum(torch.minimum(kept, x + EPS), x - EPS).clamp(0, 1)
        for scored in "ab":
            logits = kept @ weights[scored].T
            table = run.table(scored, on(FGSM, source)).to_pandas()
            assert table["prediction"].tolist() == logits.argmax(dim=1).tolist()
            nll = nn.functional.cross_entropy(logits, y, reduction="none").numpy()
            assert table["nll"].to_numpy() == pytest.approx(nll, abs=2e-5)
            assert 0.99 * EPS < table["linf"].max() <= EPS + 1e-7
            hits = int((logits.argmax(dim=1) == y).sum())
            row = rows[scored, on(FGSM, source), "transfer_accuracy"]
            assert (row["value"], row["n"]) == (hits / 40, 40)
            assert (row["ci_low"], row["ci_high"]) == pytest.approx(wilson(hits, 40))
    own, theirs = (rows["a", on(FGSM, source), "transfer_accuracy"]["value"] for source in "ab")
    assert own < theirs < 1 and rows["a", on(FGSM, "a"), "verdicts_kept"]["value"] == 1
    assert ("a", on(FGSM, "b"), "verdicts_kept") not in rows
    assert {each["text"] for row in rows.values() for each in row["flags"]} <= {UNCHECKED}
    states = {name: pq.read_schema(run.path / "records" / name / _folder(run, name, on(PGD, "a"))) for name in "ab"}
    reported = pq.read_schema(run.path / "records" / "a" / _folder(run, "a", PGD)).metadata[b"adversarials"]
    assert len(reported) == 64 and {state.metadata[b"adversarials"] for state in states.values()} == {reported}
    assert not (run.path / "adversarials").exists()  # nobody asked to keep them
    page = (run.path / "report.html").read_text()
    assert "Transfer between checkpoints" in page and "Transfer of PGD, 8/255, 4 steps: accuracy in %, n = 40" in page
    assert [matrix.grid().shaded for matrix in matrices(survey(run))] == [("a", "b")] * 2
    others = audit(nets, tmp_path / "others", batch_size=40, shard_size=40)
    for name, text in (("a", on(PGD, "b")), ("b", on(PGD, "a")), ("b", on(FGSM, "b"))):
        here, there = (one.table(name, text).to_pandas() for one in (run, others))
        assert here["nll"].to_numpy() == pytest.approx(there["nll"].to_numpy(), abs=2e-5)


def _folder(run: Run, checkpoint: str, condition: str) -> str:
    path = run.shard_path(checkpoint, condition, 0)
    return f"{path.parent.name}/{path.name}"


def test_masked_gradients_are_flagged_and_the_twin_is_not(nets: Path, tmp_path: Path) -> None:
    """The same weights with and without gradients, in a run that holds both."""
    run = audit(nets, tmp_path / "run", names=["a", "hidden"], attacks=PGD)
    rows = rows_of(run)
    own = rows["hidden", PGD, "top1"]["value"], rows["a", PGD, "top1"]["value"]
    passed = rows["hidden", on(PGD, "a"), "transfer_accuracy"]["value"]
    assert own[0] == 1 and passed == own[1] < 0.8  # the same weights answer the same
    masked, plain = (
        [each["text"] for each in rows[name, PGD, "top1"]["flags"] if each["code"] == "masking/transfer"]
        for name in ("hidden", "a")
    )
    (found,) = masked
    assert f"its own attack leaves {100 * own[0]:.1f} %, the images found for a leave {100 * passed:.1f} %" in found
    more = round(40 * (own[0] - passed))
    assert f"of 40 samples right before, {more} fall to those alone and 0 to its own alone" in found
    assert f"({p_equals(0.5**more)}): gradients of this model may be masked" in found
    assert found.startswith("transfer: ") and not plain
    page = (run.path / "report.html").read_text()
    assert page.count("gradients of this model may be masked") >= 2  # with the results, and with the matrix


def test_a_run_goes_on_where_it_stopped(nets: Path, tmp_path: Path) -> None:
    """Whatever is lost, the same command makes the same files; nothing else is computed again."""
    run = audit(nets, tmp_path / "run")
    before = pages(run.path)
    lost = [run.shard_path("b", on(PGD, "a"), 1), run.shard_path("a", FGSM, 0), run.shard_path("a", on(FGSM, "a"), 0)]
    times = {path: path.stat().st_mtime_ns for path in run.path.rglob("records/**/*.parquet")}
    for path in lost:
        path.unlink()
    lines: list[str] = []
    assert pages(audit(nets, tmp_path / "run", say=lines.append).path) == before
    new = {path for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert new == {*lost, run.shard_path("a", PGD, 1)}  # found again, since it is passed on again
    assert not (run.path / "adversarials").exists()
    later = tmp_path / "later"
    audit(nets, later, transfer=False)
    assert not [path for path in later.rglob("records/*/*") if path.name.startswith("transfer")]
    assert pages(audit(nets, later).path) == before  # the attacks of a finished run are passed on as well


def test_adversarial_images_are_kept_on_request_and_checked(nets: Path, tmp_path: Path) -> None:
    run = audit(nets, tmp_path / "run", keep_adversarials=True)
    before = pages(run.path)
    files = sorted(run.path.rglob("adversarials/*/*/*.parquet"))
    assert len(files) == 2 * 2 * 3
    differences, digest = read_adversarials(run, "a", PGD, 1)
    assert digest == digest_of_differences(differences) and len(differences) == 16
    assert all(d.dtype == np.float16 and d.shape == (3, 8, 8) for d in differences.values())
    assert max(float(np.abs(d).max()) for d in differences.values()) <= EPS * (1 + 2**-11)
    path = run.shard_path("a", PGD, 1, ADVERSARIALS)
    other = run.shard_path("b", PGD, 1, ADVERSARIALS)
    mine = path.read_bytes()
    spoilt = mine[:200] + bytes([mine[200] ^ 1]) + mine[201:]
    for data in (other.read_bytes(), spoilt, b"nothing"):
        path.write_bytes(data)
        with pytest.raises(DamagedRecord) as raised:
            read_adversarials(run, "a", PGD, 1)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)
        lines: list[str] = []
        audit(nets, run.path, say=lines.append)  # kept, since they were asked for once
        assert [line for line in lines if str(path) in line and "recomputed where needed" in line]
        assert pages(run.path) == before
    stated = {name: values + np.float16(0.001) for name, values in differences.items()}
    write_adversarials(run, "a", PGD, 1, stated, dict(pq.read_metadata(path).metadata))
    with pytest.raises(DamagedRecord, match=r"not the adversarial images that the record at .* is about"):
        read_adversarials(run, "a", PGD, 1)
    audit(nets, run.path)
    assert pages(run.path) == before
    alone = audit(nets, tmp_path / "alone", names="a", transfer=False, keep_adversarials=True, attacks=FGSM)
    assert len(list(alone.path.rglob("adversarials/a/*/*.parquet"))) == 3


def test_a_difference_of_16_bits_is_drawn_back_into_the_ball(nets: Path, tmp_path: Path) -> None:
    """Half of 0.00785 rounds up: without the projection an image would leave its ball, and the bounds."""
    for attack in ("pgd(eps=2.003/255,steps=4)", "pgd(eps=0.7,norm=l2,steps=4)"):
        run = audit(nets, tmp_path / attack, attacks=attack)
        (text,) = run.manifest.claims
        claim = run.manifest.claims[text]
        for name, source in (("a", "b"), ("b", "a")):
            assert run.table(name, on(text, source)).to_pandas()[claim.norm].max() <= claim.eps * (1 + 1e-6)
        assert not [row["flags"] for row in run.results().to_dict("records") if "exceeds" in str(row["flags"])]


@pytest.mark.parametrize(
    ("theirs", "scored", "odd"),
    [
        ("ABC", "ABC", 0),
        ("ABC", "AXC", 1),
        ("ABC", "XBY", 2),
        ("ABC", "BCA", 3),  # each shard has its own images
        ("AXC", "AB", 1),  # of those that were scored
        ("A", "AXY", 0),  # the source has no record to compare with
        ("", "AX", 0),
        ("A C", "AXC", 0),  # nor one that says what it is about
        ("ABC", "  Y", 1),
    ],
)
def test_a_shard_scored_on_images_that_were_found_again_since_is_a_finding(
    theirs: str, scored: str, odd: int, tmp_path: Path
) -> None:
    """A letter for the images that each shard states; a blank where it states none."""
    attack, passed = gate_runs.PGD, on(gate_runs.PGD, "a")
    found = {name: {"clean": gate_runs.right(1, 2)} for name in "ab"}
    run = gate_runs.make(tmp_path / "run", found, conditions=["clean", attack, passed], data={"n": 6})
    rows = run.table("a", "clean")
    for name, text, images in (("a", attack, theirs), ("b", passed, scored)):
        for shard, image in enumerate(images):
            stated = {DIGEST: image.encode()} if image != " " else {}
            put(run, name, text, rows.replace_schema_metadata(stated), shard)
    seal(run)
    (row,) = TransferSummary(RecordReader(run, run.manifest, "b", {})).add(passed)
    known = len(scored.replace(" ", ""))
    said = f"{odd} of {known} shards were scored on other images than the records of a are about; delete these records"
    again = [each for each in row.findings if each.code == "attack/other-images"]
    assert again == [Finding("attack/other-images", f"{said} and run the same command again")] * bool(odd)
    assert (row.metric, row.value, row.n) == ("transfer_accuracy", 0.5, 2 * len(scored))


@pytest.mark.slow
def test_two_processes_make_the_same_files(nets: Path, tmp_path: Path) -> None:
    words = [
        *("audit", str(nets / "a.pth"), str(nets / "b.pth"), "--arch", f"{nets / 'net.py'}:build"),
        *("--data-dir", str(nets / "images"), "--num-classes", "3", "--device", "cpu", "--shard-size", "4"),
        *(
            "--attacks",
            f"{FGSM},{PGD}",
            "--transfer",
            "--no-setup-check",
            "--browse",
            "0",
            "--out",
            str(tmp_path / "two"),
        ),
    ]
    done = subprocess.run(in_two(words), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert pages(tmp_path / "two") == pages(audit(nets, tmp_path / "one", shard_size=4).path)


def test_texts_lead_there_and_back() -> None:
    card = load_card("standard")
    for inner in (FGSM, "pgd(eps=1/255,steps=20,under=fog,severity=3)"):
        attack = parse_condition(inner, card)
        for name in ("vit", "a,b", "x),from=(y", "ümlaut net"):
            condition = transfer_condition(attack, name)
            assert passed_of(condition.text) == Passed(attack.text, name) and condition.under == attack
            assert matches(pattern_of(condition.text), condition.text)
            assert not matches(pattern_of(transfer_condition(attack, "other").text), condition.text)
            assert not matches(pattern_of(f"transfer({attack.text})"), condition.text)
    assert passed_of("pgd(eps=1/255,steps=20)") is None
    rule = parse_statement("transfer_accuracy under transfer(pgd(eps=1/255,steps=20),from=vit) >= 0.3")
    assert "transfer(pgd(eps=1/255,steps=20),from=vit)" in repr(rule)
    for odd in ("transfer(clean,from=a)", "transfer(pgd(eps=1/255))", "transfer(mist(eps=1/255),from=a)"):
        with pytest.raises(ProtocolError):
            check_condition(odd)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"names": "a"}, "--transfer with a alone: expected two checkpoints or more"),
        ({"attacks": "none"}, "--transfer: no attack of robustkit's own engine with a fixed radius"),
        ({"attacks": "fmn(steps=2)"}, "--transfer: no attack of robustkit's own engine with a fixed radius"),
        ({"attacks": "none", "transfer": False, "keep_adversarials": True}, "--keep-adversarials: none of the attacks"),
    ],
)
def test_refusals_are_a_line(nets: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RobustkitError) as raised:
        audit(nets, tmp_path / "run", **options)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "space", "said"),
    [
        ({"crop_pct": 0.9}, "pixels", "crop share is 0.875 for a and 0.9 for b"),
        ({"input_size": (9, 8)}, "pixels", "input size is 8x8 for a and 9x8 for b"),
        ({"mean": (0.5, 0.4, 0.3)}, "normalised", "mean is 0.5 0.5 0.5 for a and 0.5 0.4 0.3 for b"),
        ({"mean": (0.5, 0.4, 0.3)}, "pixels", ""),  # it lies inside the models
    ],
)
def test_checkpoints_of_other_pixels_are_refused(changed: dict[str, Any], space: str, said: str) -> None:
    preprocessing = PreprocessingEntry(**asdict(Preprocessing(input_size=(8, 8))))
    (entry,) = whole({"checkpoints": [{"name": "a"}]}).checkpoints
    first = msgspec.structs.replace(entry, preprocessing=preprocessing)
    second = msgspec.structs.replace(first, name="b", preprocessing=msgspec.structs.replace(preprocessing, **changed))
    card = replace(load_card("standard"), space=space)
    request = ClassificationRequest(checkpoints=["a", "b"], data_dir="x", transfer=True)
    request.__dict__["card"] = card
    attack = parse_condition(FGSM, card)
    if said:
        with pytest.raises(
            ProtocolError, match=f"--transfer: {said}: adversarial images of one are not valid inputs of the other"
        ):
            plan_transfer(request, [attack], [first, second])
    else:
        conditions, digests = plan_transfer(request, [attack], [first, second])
        assert [each.text for each in conditions] == [on(FGSM, "a"), on(FGSM, "b")] == [*digests]
