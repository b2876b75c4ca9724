"""Corruptions in the audit: embedded checkpoint and images, corrupted here or read from a tree."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from figures import said_of
from legacy_draws import write_frost_photographs
from PIL import Image
from processes import called
from small_audit import audit as small_audit
from small_audit import command, files

import corruptions
import robustkit
from robustkit.common.determinism import SampleRng
from robustkit.data.dataset import open_dataset
from robustkit.errors import DataError, ProtocolError, RunError
from robustkit.evaluations.corruptions.plan import plan_corruptions
from robustkit.report.run import Run

MODEL = "zoo:shapes-vit-quest"
pytestmark = pytest.mark.usefixtures("one_thread")


def audit(out: Path, **options: Any) -> Run:
    arguments = {"data_dir": "embedded:shapes", "attacks": "none", "limit": 12, "device": "cpu"} | options
    return robustkit.audit([MODEL], out=out, **arguments)


def pixels(run: Run) -> torch.Tensor:
    """The embedded images of a run, (n, 3, 64, 64) uint8, in the order of its records."""
    data = open_dataset("embedded:shapes")
    ids = run.table("shapes-vit-quest", run.manifest.conditions[0])["sample_id"].to_pylist()
    by_id = {sample.id: sample for sample in data.samples}
    return torch.stack([torch.from_numpy(np.array(data.image(by_id[i]))).permute(2, 0, 1) for i in ids])


def write_tree(root: Path, run: Run, names: dict[str, tuple[int, ...]], classes: tuple[str, ...]) -> None:
    """The images of a run as PNGs, corrupted with the draws of the audit."""
    table = run.table("shapes-vit-quest", "clean").to_pylist()
    images, ids = pixels(run), [row["sample_id"] for row in table]
    for name, severities in names.items():
        for severity in severities:
            text = f"corruption({name},severity={severity})"
            rng = SampleRng.of(ids, seed=0, condition=text, device="cpu")
            for row, image in zip(table, corruptions.corrupt(images, name, severity, rng=rng), strict=True):
                path = root / name / str(severity) / classes[row["label"]] / f"{row['sample_id'].replace('/', '-')}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)


def test_records_hold_what_a_plain_loop_computes(tmp_path: Path) -> None:
    run = audit(tmp_path / "run", corruptions="fog(severity=3),shot_noise(severity=5)", batch_size=5)
    assert list(run.manifest.conditions) == [
        *("clean", "corruption(shot_noise,severity=5)", "corruption(fog,severity=3)")  # the benchmark's order
    ]
    model, clean = robustkit.load(MODEL), pixels(run)
    for text, name, severity in ((t, *t[11:-1].split(",severity=")) for t in run.manifest.conditions[1:]):
        rows = run.table("shapes-vit-quest", text).to_pylist()
        rng = SampleRng.of([row["sample_id"] for row in rows], seed=0, condition=text, device="cpu")
        corrupted = corruptions.corrupt(clean, name, int(severity), rng=rng)
        with torch.inference_mode():
            logits = model(corrupted / 255)
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor([r["label"] for r in rows]), reduction="none")
        assert [row["nll"] for row in rows] == pytest.approx(losses.tolist(), abs=1e-4)
        assert [row["prediction"] for row in rows] == logits.argmax(1).tolist()
        largest = (corrupted.int() - clean.int()).abs().flatten(1).amax(1) / 255
        assert [row["linf"] for row in rows] == pytest.approx(largest.tolist()) and largest.min() > 0.05
    assert not any("mce" in row["metric"] for row in run.results().to_dict("records"))


def test_the_summary_can_be_computed_from_its_own_csv(tmp_path: Path) -> None:
    run = audit(tmp_path / "run", corruptions="noise,fog", limit=20)
    with (run.path / "summary.csv").open() as file:
        rows = {(row["condition"], row["metric"]): row for row in csv.DictReader(file)}
    errors = {
        name: [1 - float(rows[f"corruption({name},severity={s})", "top1"]["value"]) for s in (1, 2, 3, 4, 5)]
        for name in ("gaussian_noise", "shot_noise", "impulse_noise", "fog")
    }
    assert float(rows["corruption(fog)", "mean_error"]["value"]) == pytest.approx(np.mean(errors.pop("fog")))
    assert float(rows["noise", "mean_error"]["value"]) == pytest.approx(np.mean(list(errors.values())))
    assert rows["noise", "mean_error"]["flags"] == ""  # at 64x64, but no published figure is of these classes
    assert "no mCE" not in (run.path / "report.html").read_text("utf-8")  # in-c was not asked for
    assert "shot_noise" in (run.path / "report.html").read_text("utf-8")


def test_neither_batches_nor_a_resume_change_what_is_shown(tmp_path: Path) -> None:
    asked = "glass_blur(severity=2),motion_blur(severity=3),spatter(severity=1),elastic_transform(severity=1)"
    whole = audit(tmp_path / "a", corruptions=asked, shard_size=5)
    audit(tmp_path / "b", corruptions="spatter(severity=1)", shard_size=5)
    next((tmp_path / "b" / "records").rglob("*spatter*/00001.parquet")).unlink()  # as if killed before it
    audit(tmp_path / "b", corruptions=asked, shard_size=5)
    one, other = files(tmp_path / "a"), files(tmp_path / "b")
    assert {name for name in one if one[name] != other[name]} <= {
        "summary.json",
        "summary.csv",
    }  # rows in another order
    small = audit(tmp_path / "c", corruptions=asked, batch_size=1)
    for text in whole.manifest.conditions:
        left, right = (run.table("shapes-vit-quest", text).to_pandas() for run in (whole, small))
        assert (left["linf"] == right["linf"]).all() and (left["l2"] == right["l2"]).all(), text
        assert np.allclose(left["nll"], right["nll"], atol=1e-4)


def test_a_tree_is_read_as_it_is_and_equals_corrupting_here(tmp_path: Path) -> None:
    here = audit(tmp_path / "here", corruptions="fog(severity=1+2),contrast(severity=2)")
    classes = open_dataset("embedded:shapes").class_names
    write_tree(tmp_path / "tree" / "weather", here, {"fog": (1, 2)}, classes)
    write_tree(tmp_path / "tree", here, {"contrast": (2,)}, classes)
    said: list[str] = []
    run = audit(tmp_path / "run", data_dir=tmp_path / "tree", attacks=None, limit=None, say=said.append)
    assert list(run.manifest.conditions) == [
        *("corruption(fog,severity=1,source=released)", "corruption(fog,severity=2,source=released)"),
        "corruption(contrast,severity=2,source=released)",
    ]
    for text in run.manifest.conditions:
        ours = here.table("shapes-vit-quest", text.replace(",source=released", "")).to_pylist()
        theirs = run.table("shapes-vit-quest", text).to_pylist()
        assert sorted(row["nll"] for row in theirs) == pytest.approx(sorted(row["nll"] for row in ours), abs=1e-5)
        assert all(row["linf"] is None for row in theirs)
    assert "3 conditions from the released files" in " ".join(said)
    with pytest.raises(DataError, match="which are not attacked; leave out --attacks fgsm"):
        audit(tmp_path / "other", data_dir=tmp_path / "tree", attacks="fgsm")
    next((tmp_path / "tree" / "contrast").rglob("*.png")).write_bytes(b"changed")
    with pytest.raises(RunError, match=r"what corruption\(contrast,severity=2,source=released\) takes"):
        audit(tmp_path / "run", data_dir=tmp_path / "tree", attacks=None, limit=None)


def write_clean(root: Path, run: Run) -> dict[str, Any]:
    """The clean images of a run as files whose ids are those of `write_tree` with the class `x`; audit's arguments."""
    rows, names = run.table("shapes-vit-quest", "clean").to_pylist(), open_dataset("embedded:shapes").class_names
    (root / "x").mkdir(parents=True)
    lines = ["file,label"]
    for row, image in zip(rows, pixels(run), strict=True):
        name = f"x/{row['sample_id'].replace('/', '-')}.png"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / name)
        lines.append(f"{name},{names[row['label']]}")
    (root / "labels.csv").write_text("\n".join(lines))
    return {"data_dir": root, "data": {"labels_csv": root / "labels.csv"}, "limit": None}


def test_what_a_tree_lacks_is_said_and_never_averaged_over(tmp_path: Path) -> None:
    here = audit(tmp_path / "here", corruptions="fog(severity=1)")
    write_tree(tmp_path / "tree", here, {"fog": (1, 2, 3, 4), "contrast": (1, 2, 3, 4, 5)}, ("x",) * 10)
    gone = next((tmp_path / "tree" / "contrast" / "4").rglob("*.png"))
    gone.unlink()
    said: list[str] = []
    clean = write_clean(tmp_path / "clean", here) | {"out": tmp_path / "run"}
    run = audit(**clean, corrupted_dir=tmp_path / "tree", corruptions="fog,contrast", say=said.append)
    lines = " ".join(said)
    assert "left out fog(severity=5): not in " in lines
    assert f"left out contrast(severity=4): 1 of 12 files are missing, the first: x/{gone.name}" in lines
    assert len(run.manifest.conditions) == 1 + 4 + 4
    found = {row["condition"] for row in run.results().to_dict("records")}
    assert not {"corruption(fog,source=released)", "corruption(contrast,source=released)"} & found
    run = audit(**clean, corruptions="fog(severity=1)")  # the run grows
    page = (run.path / "report.html").read_text("utf-8")
    assert "left out: fog(severity=5)" in page and "means that need it are not given" in page


def test_a_mean_over_two_trees_says_so(tmp_path: Path) -> None:
    here = audit(tmp_path / "here", corruptions="fog(severity=1)", limit=3)
    clean = write_clean(tmp_path / "clean", here) | {"out": tmp_path / "run"}
    for name, severities in (("one", (1, 2)), ("two", (3, 4, 5))):
        write_tree(tmp_path / name, here, {"contrast": severities}, ("x",) * 10)
    for path in (tmp_path / "one" / "contrast" / "2").rglob("*.png"):
        Image.open(path).resize((72, 80)).save(path)
    with pytest.raises(ProtocolError, match="released files are used unchanged; leave both out"):
        audit(**clean, corrupted_dir=tmp_path / "one", variant="bethgelab")
    for name, asked in (("one", "contrast(severity=1+2)"), ("two", "contrast(severity=3+4+5)")):
        run = audit(**clean, corrupted_dir=tmp_path / name, corruptions=asked)
    (row,) = (row for row in run.summary() if row.metric == "mean_error")
    assert row.condition == "corruption(contrast,source=released)"
    assert said_of(row) == [
        "released files of 72x80 were resized to 64x64",
        f"released files of several trees: {tmp_path / 'one'}, {tmp_path / 'two'}",
    ]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"corruptions": "fogg"}, ProtocolError, "unknown corruption 'fogg'; did you mean 'fog'?"),
        ({"corruptions": "fog(severity=6)"}, ProtocolError, "expected whole numbers from 1 to 5"),
        ({"corruptions": "fog", "constants": "imagnet"}, ProtocolError, "did you mean 'imagenet'?"),
        ({"corruptions": "fog", "variant": "hendryks"}, ProtocolError, "did you mean 'hendrycks'?"),
        (
            {"corruptions": "fog", "constants": "cifar", "variant": "bethgelab"},
            ProtocolError,
            "no constants for preset",
        ),
        ({"corruptions": "frost", "frost_dir": "nowhere"}, DataError, "nowhere"),
        ({"corruptions": "fog", "corrupted_dir": "nowhere"}, DataError, "nowhere: no such folder"),
        ({"corruptions": "fog", "data_dir": "embedded:nothing"}, DataError, "embedded:nothing"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(
    options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as fault:
        audit(tmp_path / "run", **options)
    assert said in str(fault.value) and "\n" not in str(fault.value)
    assert not (tmp_path / "run").exists()


def test_other_photographs_of_frost_are_not_mixed_in(tmp_path: Path) -> None:
    for name, side in (("one", 100), ("two", 110)):
        (tmp_path / name).mkdir()
        write_frost_photographs(tmp_path / name, side=side)
    audit(tmp_path / "run", corruptions="frost(severity=1)", frost_dir=tmp_path / "one", limit=2)
    with pytest.raises(RunError, match=r"what corruption\(frost,severity=1\) takes is "):
        audit(tmp_path / "run", corruptions="frost(severity=1)", frost_dir=tmp_path / "two", limit=2)


def test_images_too_small_are_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="takes 8x8 pixels; corruptions need at least 16x16"):
        small_audit(place, tmp_path / "run", corruptions="fog")


def test_the_command_line_takes_the_options(place: Path, tmp_path: Path) -> None:
    status, _, errors = called(command(place, tmp_path / "run", "--attacks", "none", "--corruptions", "fog")[3:])
    assert status == 2 and errors.strip().splitlines()[-1].startswith("error: the model takes 8x8")


def test_the_size_of_the_images_decides_whose_constants(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    small = open_dataset(tmp_path, layout="unlabelled")
    plan = plan_corruptions("fog(severity=1)", small, [(32, 32)])
    assert [condition.text for condition in plan.conditions] == ["corruption(fog,severity=1,preset=cifar)"]
    assert "CIFAR-10-C's constants (--constants cifar, in conditions preset=cifar)" in plan.lines[0]
    plan = plan_corruptions("fog(severity=1)", small, [(32, 32), (224, 224)])
    assert plan.conditions[0].text == "corruption(fog,severity=1)" and "this is not CIFAR-10-C" in plan.lines[0]
    plan = plan_corruptions("fog(severity=1)", small, [(32, 32)], constants="imagenet", variant="bethgelab")
    assert plan.conditions[0].text == "corruption(fog,severity=1,variant=bethgelab)" and plan.lines == ()
    assert plan_corruptions("fog", open_dataset("embedded:shapes"), [(64, 64)]).lines == ()
    assert plan_corruptions(None, small, [(32, 32)]).conditions == ()
