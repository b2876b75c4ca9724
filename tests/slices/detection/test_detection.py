"""`robustkit detection` from files to figures: conditions, means, two detectors, a gate, and what is refused."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bounded import at_most
from coco_sets import HEIGHT, WIDTH, Entry, coco_set, code_of, write_json
from processes import called
from small_audit import files

import robustkit
from robustkit.common.intervals import NO_INTERVAL, Z, basic_ends, resampled_figures
from robustkit.errors import ProtocolError, RobustkitError, RunError
from robustkit.evaluations.condition import shares_of
from robustkit.evaluations.corruptions import QUICK, TEST
from robustkit.results.pairing import Side, paired_difference
from robustkit.slices.detection import DetectionRequest
from robustkit.slices.detection import files as coco_files
from robustkit.slices.detection import plan as planning
from robustkit.slices.detection.plan import plan
from robustkit.slices.detection.scores import Detections
from robustkit.slices.detection.task import Scored, mean_rows, why_no_mpc

IMAGES = 30


def without(results: list[Entry], share: float) -> list[Entry]:
    """Return results without those of a share of the images; a larger share takes more of them away."""
    images = sorted({each["image_id"] for each in results})
    lost = dict(zip(images, np.random.default_rng(0).permutation(len(images)) / len(images), strict=True))
    return [each for each in results if lost[each["image_id"]] >= share]


def furnish(root: Path, corruptions: tuple[str, ...], severities: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Path:
    """Write annotations, and results of two detectors that miss more and more images; `b` misses most."""
    truth, results = coco_set(2, images=IMAGES, most=12)
    write_json(root / "truth.json", truth)
    for name, lost in (("a", 0.0), ("b", 0.4)):
        write_json(root / name / "clean.json", without(results, lost))
        for place, corruption in enumerate(corruptions):
            for severity in severities:
                share = lost + 0.03 * severity + 0.01 * place
                write_json(root / name / corruption / f"{severity}.json", without(results, share))
    return root


def figures(run: Any, checkpoint: str = "a") -> dict[tuple[str, str], Any]:
    return {(row.condition, row.metric): row for row in run.summary() if row.checkpoint == checkpoint}


def score(place: Path, out: Path, *names: str, **options: Any) -> Any:
    detectors = [f"predictions:{place / name}" for name in names or ("a", "b")]
    asked = {"corrupted_by": "bethgelab"} | options
    return robustkit.detection(detectors, place / "truth.json", out=out, **asked)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = furnish(tmp_path_factory.mktemp("detection"), TEST, (2,))
    return score(place, place / "runs" / "run")


EVERY = "in-c(severity=2,variant=bethgelab)"


def text(name: str, severity: int) -> str:
    return f"corruption({name},severity={severity},variant=bethgelab)"


def test_mpc_is_a_mean_over_severities_and_then_corruptions() -> None:
    draw, ids = np.random.default_rng(0), pa.array(list("abcdefghijklmn"))
    texts = ["clean", *(text(name, severity) for name in TEST for severity in range(1, 6))]
    every = {
        text: Scored(ids, draw.random(9), draw.random((50, 4)), [NO_INTERVAL] * 6, [(9, None)] * 2, None, ())
        for text in texts
    }
    means = {row.key: row for row in mean_rows(every, ["cat", "dog"])}
    single = np.array([every[text].values for text in texts[1:]]).reshape(15, 5, 9)
    mpc, clean = single.mean(axis=1).mean(axis=0)[0], every["clean"].values[0]
    of_all, fog = "in-c(variant=bethgelab)", "corruption(fog,variant=bethgelab)"
    assert means[of_all, "mpc"].value == means[of_all, "map"].value == pytest.approx(mpc, abs=1e-15)
    assert means[of_all, "rpc"].value == means[of_all, "retention"].value == pytest.approx(mpc / clean)
    assert means[fog, "map"].value == pytest.approx(single[TEST.index("fog")].mean(axis=0)[0], abs=1e-15)
    assert means[fog, "retention"].value == pytest.approx(means[fog, "map"].value / clean)
    assert (
        means[of_all, "ap(dog)"].value == pytest.approx(single.mean(axis=(0, 1))[8]) and (fog, "ap(dog)") not in means
    )
    assert ("noise(variant=bethgelab)", "map") in means and ("noise(variant=bethgelab)", "mpc") not in means
    resampled = [every[text].resampled[:, 0] for text in texts]
    ends = basic_ends(np.mean(resampled[1:], axis=0) / resampled[0], mpc / clean, None, 14, math.inf)
    assert (means[of_all, "rpc"].low, means[of_all, "rpc"].high) == pytest.approx(ends)
    fewer = {**every, texts[1]: replace(every[texts[1]], ids=ids[:-1])}
    complete = {text for text, _ in means if texts[1] not in shares_of(text)}
    assert {row.condition for row in mean_rows(fewer, ())} == complete and "noise(variant=bethgelab)" not in complete
    kinds, level = QUICK["in-c-quick"].kinds, QUICK["in-c-quick"].severity
    quick = [*mean_rows({each: every[each] for each in (text(kind, level) for kind in kinds)}, ())]
    of_set = [row for row in quick if row.condition == "in-c-quick(variant=bethgelab)"]
    assert of_set and all("quick-elsewhere" in row.findings[-1].code for row in of_set)
    assert not any(row.findings for row in means.values())
    alone = {key for key in means if key[1] not in ("rpc", "retention")}
    assert {row.key for row in mean_rows({text: every[text] for text in texts[1:]}, ["cat", "dog"])} == alone


def test_other_annotations_are_not_compared(tmp_path: Path) -> None:
    truth, results = coco_set(2, images=12, most=5)
    for name, area in (("one", 30.0), ("two", 31.0)):
        truth["annotations"][0]["area"] = area
        write_json(tmp_path / name / "truth.json", truth)
        write_json(tmp_path / name / "a.json", results)
        score(tmp_path / name, tmp_path / "runs" / name, "a.json")
    status, _, errors = called(["compare", *(str(tmp_path / "runs" / name) for name in ("one", "two"))])
    assert status == 2 and "the annotations of 00.png differ, or boxes are compared with masks" in errors


def test_categories_of_few_images_are_said(tmp_path: Path) -> None:
    truth: Entry = {"categories": [{"id": k, "name": f"c{k}"} for k in (1, 2)], "images": [], "annotations": []}
    for number in range(1, 12):
        truth["images"].append({"id": number})
        for k in (1, 2)[: 1 + (number < 10)]:  # the second category is in nine images
            box = {"bbox": [k, k, 9, 9], "area": 81, "iscrowd": 0}
            each = {"id": len(truth["annotations"]) + 1, "image_id": number, "category_id": k, **box}
            truth["annotations"].append(each)
    results = [{**each, "score": 0.5} for each in truth["annotations"]]
    write_json(tmp_path / "truth.json", truth)
    write_json(tmp_path / "a.json", results)
    rows = figures(score(tmp_path, tmp_path / "run", "a.json"))
    assert "1 of 2 categories are in fewer than 10 images" in [each.text for each in rows["clean", "map"].findings]
    assert rows["clean", "ap(c1)"].has_interval and not rows["clean", "ap(c2)"].has_interval
    assert (rows["clean", "ap(c1)"].n, rows["clean", "ap(c2)"].n, rows["clean", "map"].n) == (11, 9, 11)


@pytest.mark.parametrize(("groups", "has_interval"), [(9, False), (10, True)])
def test_a_category_of_few_groups_has_no_interval_alone_or_in_pairs(
    groups: int, has_interval: bool, tmp_path: Path
) -> None:
    """Twelve images of nine or ten scenes have the category, of 30 images of 20 scenes or more."""
    truth: Entry = {"categories": [{"id": k, "name": f"c{k}"} for k in (1, 2)], "images": [], "annotations": []}
    for number in range(30):
        scene = min(number, groups - 1) if number < 12 else number
        truth["images"].append({"id": number + 1, "file_name": f"{scene:02d}_{number}.png"})
        for k in (1, 2)[: 1 + (number < 12)]:
            box = {"bbox": [k, k, 9, 9], "area": 81, "iscrowd": 0, "image_id": number + 1, "category_id": k}
            truth["annotations"].append({"id": len(truth["annotations"]) + 1, **box})
    write_json(tmp_path / "truth.json", truth)
    for name, lost in (("a", 5), ("b", 3)):
        few = [each for each in truth["annotations"] if each["image_id"] % lost]
        write_json(tmp_path / f"{name}.json", [{**each, "score": 0.5} for each in few])
    run = score(tmp_path, tmp_path / "run", "a.json", "b.json", groups_from="^(.*)_")
    row = figures(run)["clean", "ap(c2)"]
    pair = paired_difference(Side(run, "a"), Side(run, "b"), "clean", "ap(c2)")
    assert (row.n, row.groups, pair.n, pair.groups) == (12, groups, 12, groups)
    assert row.has_interval is has_interval and math.isfinite(pair.ci_low) is has_interval
    of_all = paired_difference(Side(run, "a"), Side(run, "b"), "clean", "map")
    assert (of_all.n, of_all.groups) == (30, 18 + groups) and math.isfinite(of_all.ci_low)


def test_a_run_has_figures_with_intervals(run: Any) -> None:
    rows = figures(run)
    single = [rows[text(name, 2), "map"].value for name in TEST]
    assert rows[EVERY, "mpc"].value == pytest.approx(np.mean(single), abs=1e-15)
    assert rows[EVERY, "mpc"].value < rows["clean", "map"].value and rows["clean", "map"].n == IMAGES
    for row in (rows["clean", "map"], rows["clean", "ap(c0)"], rows[EVERY, "mpc"], rows[EVERY, "rpc"]):
        assert row.low <= row.value <= row.high and row.interval == "bootstrap"
    assert not rows["clean", "map_small"].has_interval and ("clean", "ap(c3)") not in rows
    assert {each.code for row in rows.values() for each in row.findings} == {"setup/elsewhere"}


def test_detectors_are_compared_by_image(run: Any) -> None:
    first, second = Side(run, "a"), Side(run, "b")
    for condition, metric in (("clean", "map"), ("clean", "map50"), (EVERY, "rpc")):
        before, after = (figures(run, name)[condition, metric].value for name in ("a", "b"))
        difference = paired_difference(first, second, condition, metric)
        assert (difference.first, difference.second) == (before, after) and difference.n == IMAGES
        assert difference.value == after - before and difference.ci_low < difference.value < difference.ci_high
    worse = paired_difference(first, second, "clean", "map")
    assert worse.value < 0 and worse.p_value < 0.05 and worse.ci_high < 0
    mpc, mean = (paired_difference(first, second, EVERY, name) for name in ("mpc", "map"))
    assert mpc == mean
    same = paired_difference(first, Side(run, "a"), "clean", "map")
    assert (same.value, same.ci_low, same.ci_high) == (0, 0, 0)
    for condition in ("clean", EVERY):
        for name in ("c0", "c1"):
            before, after = (figures(run, each)[condition, f"ap({name})"] for each in ("a", "b"))
            difference = paired_difference(first, second, condition, f"ap({name})")
            assert (difference.first, difference.second, difference.n) == (before.value, after.value, before.n)
            assert difference.ci_low < difference.value < difference.ci_high
    names = run.manifest.data.class_names
    every = [Detections.of(run.table(name, "clean"), len(names), name) for name in ("a", "b")]
    drawn = [resampled_figures(each.figures, IMAGES, None)[:, 4 + names.index("c1")] for each in every]
    of_one = paired_difference(first, second, "clean", "ap(c1)")
    assert of_one.ci_high - of_one.value == pytest.approx(Z * (drawn[1] - drawn[0]).std(ddof=1), rel=1e-12)
    with pytest.raises(RunError, match=r"unknown figure of pairs under clean 'ap\(c9\)'.*ap\(c3\).*map, map50"):
        paired_difference(first, second, "clean", "ap(c9)")


def test_a_gate_takes_mpc(run: Any, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    worst = figures(run, "b")[EVERY, "mpc"].value
    for bound, status in ((worst - 1e-6, 0), (worst + 1e-6, 1)):
        policy.write_text(f'[[rule]]\nrequire = "mpc under in-c(severity=2) >= {bound}"\n')
        assert called(["check", str(run.path), "--policy", str(policy)])[0] == status


def test_commands_take_a_run(tmp_path: Path) -> None:
    run = score(furnish(tmp_path / "files", ("fog", "snow", "frost", "brightness"), (1,)), tmp_path / "run")
    policy = tmp_path / "policy.toml"
    baseline = score(tmp_path / "files", tmp_path / "baseline", "b")
    words = ["check", str(run.path), "--policy", str(policy), "--baseline", str(baseline.path), "--details"]
    for metric in ("map", "ap(c0)"):
        policy.write_text(f'[[rule]]\nrequire = "drop in {metric} under clean against baseline <= 90 %"\n')
        assert "−" in called(words)[1]
    status, text, _ = called(["compare", str(run.path)])
    assert status == 0 and "weather, severity 1" in text and "retention %" in text
    head, text = (
        called(words)[1] for words in (["report", str(baseline.path)], ["report", str(run.path), "--details"])
    )
    assert "\nb, computed elsewhere\n" in head and "attention" not in head
    assert "mAP in % by corruption and severity, corrupted elsewhere (variant=bethgelab)" in text
    assert "Over in-c, mAP is mPC and retention is rPC" in text and "average precision in % by category" in text
    page = (run.path / "report.html").read_text()
    assert 'id="term-mean-average-precision"' in page and 'id="term-mpc"' in page and "Clean images: mAP" in page
    export = ["export", str(run.path), "--format", "model-index", "--checkpoint", "a", "--out", str(tmp_path / "hub")]
    assert called(export)[0] == 0
    assert called(["card", str(run.path), "--checkpoint", "a", "--out", str(tmp_path / "card")])[0] == 0
    cards = [path.read_text() for path in (tmp_path / "card").rglob("*.md")]
    assert "| c0 |" in cards[0]


def test_a_resume_and_other_shards_give_the_same(tmp_path: Path) -> None:
    place = furnish(tmp_path / "files", ("fog",), (3,))
    whole = files(score(place, tmp_path / "run").path)
    for path in [*sorted((tmp_path / "run" / "records").rglob("*.parquet"))[::2], tmp_path / "run" / "summary.json"]:
        path.unlink()
    assert files(score(place, tmp_path / "run").path) == whole
    small = score(place, tmp_path / "small", shard_size=7)
    assert len([*small.path.rglob("*.parquet")]) == 4 * 5
    assert [row.to_plain() for row in small.summary()] == json.loads(whole["summary.json"])["results"]
    write_json(place / "a" / "fog" / "3.json", [])
    with pytest.raises(RunError, match="contains another run"):
        score(place, tmp_path / "run")


def test_groups_are_resampled_as_a_whole(tmp_path: Path) -> None:
    """Of images that are there twice, as groups, intervals are those of the images alone."""
    truth, results = coco_set(4, images=15, most=12)
    twice: Entry = {"categories": truth["categories"], "images": [], "annotations": []}
    for copy in (0, 1):
        number = {image["id"]: 2 * image["id"] + copy for image in truth["images"]}
        for image in truth["images"]:
            twice["images"].append(image | {"id": number[image["id"]], "file_name": f"{image['id']:04}_{copy}"})
        for each in truth["annotations"]:
            more = {"id": len(twice["annotations"]) + 1, "image_id": number[each["image_id"]]}
            twice["annotations"].append(each | more)
        write_json(tmp_path / f"{copy}.json", [each | {"image_id": number[each["image_id"]]} for each in results])
    every = [each for copy in (0, 1) for each in json.loads((tmp_path / f"{copy}.json").read_text())]
    for place, (gold, boxes) in {"one": (truth, results), "two": (twice, every)}.items():
        for each in boxes:
            each["score"] = (each["score"] + each["image_id"] // (1 + (place == "two"))) / 2000  # no ties of images
        write_json(tmp_path / place / "truth.json", gold)
        write_json(tmp_path / place / "a.json", boxes)
    alone = figures(score(tmp_path / "one", tmp_path / "runs" / "one", "a.json"))["clean", "ar100"]
    pairs = figures(score(tmp_path / "two", tmp_path / "runs" / "two", "a.json", groups_from="^(.*)_"))[
        "clean", "ar100"
    ]
    assert (alone.groups, pairs.groups, pairs.n) == (0, 15, 30)
    assert (pairs.value, pairs.low, pairs.high) == pytest.approx((alone.value, alone.low, alone.high), abs=1e-12)


def test_what_a_mean_lacks_is_said(tmp_path: Path) -> None:
    place = furnish(tmp_path / "files", ("fog", "snow"), (1, 3))
    rows = figures(score(place, tmp_path / "run", "a"))
    assert not {"mpc", "rpc", "retention"} & {metric for _, metric in rows}
    (note,) = [each for each in rows["clean", "map"].findings if each.code == "detection/no-mpc"]
    assert note.text.startswith("no mPC and no rPC: gaussian_noise, shot_noise, impulse_noise and 10 more of the 15")
    texts = [f"corruption({name},severity={severity})" for name in TEST for severity in (1, 2)]
    assert why_no_mpc(texts) == why_no_mpc(["clean"]) == ""
    assert why_no_mpc(texts[1:]) == "gaussian_noise has severity 2 and shot_noise 1–2; expected the same of all 15"
    mixed = [texts[0].replace(")", ",variant=bethgelab)"), texts[1].replace(")", ",variant=bethgelab)"), *texts[2:]]
    assert why_no_mpc(mixed) == "the corruptions have several definitions"


def codes(place: Path, out: Path, change: Callable[[list[Entry]], Any]) -> set[str]:
    truth, results = coco_set(2, images=21, most=10)
    write_json(place / "truth.json", truth)
    write_json(place / "a.json", change(results))
    return {each.code for row in score(place, out, "a.json").summary() for each in row.findings} - {"setup/elsewhere"}


def test_findings_on_what_results_look_like(tmp_path: Path) -> None:
    def reaching(count: int) -> Callable[[list[Entry]], Any]:
        def change(results: list[Entry]) -> list[Entry]:
            inside = [each | {"bbox": [0, 0, WIDTH + 1, HEIGHT + 1]} for each in results]  # a pixel is no reach
            return [each | {"bbox": [5, 5, WIDTH, HEIGHT]} for each in inside[:count]] + inside[count:]

        return change

    truth, results = coco_set(2, images=21, most=10)
    fifth = len(results) // 5
    assert len(results) % 5 == 0
    assert "detection/outside" not in codes(tmp_path, tmp_path / "1", reaching(fifth))
    assert "detection/outside" in codes(tmp_path, tmp_path / "2", reaching(fifth + 1))
    for count, raised in ((47, False), (48, True)):  # a fifth of all, and more
        repeated = codes(tmp_path, tmp_path / f"4{count}", lambda some, count=count: some[:188] + some[:count])
        assert ("detection/twice" in repeated) == raised
    moved = codes(tmp_path, tmp_path / "5", lambda some: some + [each | {"score": each["score"] / 2} for each in some])
    assert "detection/twice" not in moved  # other scores
    having = sorted({each["image_id"] for each in truth["annotations"]})
    assert len(having) % 2 == 0
    for count, raised in ((len(having) // 2, True), (len(having) // 2 + 1, False)):
        few = [{**results[0], "image_id": image} for image in having[:count]]
        its_codes = codes(tmp_path, tmp_path / f"3{count}", lambda _, few=few: few)
        assert ("detection/without-detections" in its_codes) == raised
    ids = tmp_path / "ids.txt"
    names = {image["id"]: image["file_name"] for image in truth["images"]}
    ids.write_text("\n".join(names[image] for image in having[: len(having) // 2]))
    write_json(tmp_path / "a.json", [{**results[0], "image_id": image} for image in having[: len(having) // 2]])
    some = score(tmp_path, tmp_path / "some", "a.json", ids=ids)  # those that were evaluated
    assert figures(some)["clean", "map"].n == len(having) // 2
    assert "detection/without-detections" not in {each.code for row in some.summary() for each in row.findings}


def test_a_category_in_nine_images_is_rare_and_in_ten_is_not() -> None:
    owners, kinds = np.r_[np.arange(10), np.arange(9)], np.r_[np.zeros(10, int), np.ones(9, int)]
    nothing, ids = np.zeros(0, int), pa.array([f"{place:02d}" for place in range(12)])
    empty = Detections(ids, 3, nothing, nothing, np.zeros(0), np.zeros((4, 0), int), owners, kinds, np.full(19, 15))
    (rare,) = Scored.of(empty).flags
    assert rare.text == "1 of 2 categories are in fewer than 10 images"  # the third is in none


# What is refused


def refused(place: Path, *names: str, **options: Any) -> str:
    asked = {"corrupted_by": "bethgelab", **options}
    specs = [f"predictions:{place / name}" for name in names or ("a",)]
    with pytest.raises(RobustkitError) as caught:
        plan(DetectionRequest(checkpoints=specs, data_dir=place / "truth.json", out=place / "run", **asked))
    assert not (place / "run").exists()
    return str(caught.value).replace(str(place), "HERE")


def test_files_of_conditions(tmp_path: Path) -> None:
    place = furnish(tmp_path, ("fog",), (3,))
    made = plan(
        DetectionRequest(
            checkpoints=[f"predictions:{place / 'a'}"], data_dir=place / "truth.json", corrupted_by="hendrycks"
        )
    )
    assert [condition.text for condition in made.conditions] == ["clean", "corruption(fog,severity=3)"]
    truth = json.loads((place / "truth.json").read_text())
    truth["annotations"][-1]["id"] = 0
    (tmp_path / "zero").mkdir()
    write_json(tmp_path / "zero" / "truth.json", truth)
    of_zero = plan(
        DetectionRequest(
            checkpoints=[f"predictions:{place / 'a'}/clean.json"], data_dir=tmp_path / "zero" / "truth.json"
        )
    )
    assert [any("has the id 0" in line for line in each.lines) for each in (made, of_zero)] == [False, True]
    assert "HERE/a/fog/3.json: what corrupted its images is not known; give --corrupted-by" in refused(
        place, corrupted_by=None
    )
    for name, message in {
        "fog/6.json": "HERE/a/fog/6.json: of no condition; expected such as HERE/a/fog/3.json",
        "deep/fog/3.json": "HERE/a/deep/fog/3.json: of no condition",
        "mist/3.json": "HERE/a/mist/3.json: unknown corruption 'mist'",
        "rest.json": "HERE/a/rest.json: rest is no corruption; expected clean or a corruption at a severity",
        "corruption(fog).json": "expected a severity from 1 to 5",
        "pgd(eps=1).json": "pgd",
        "corruption(Fog, severity=3, variant=bethgelab).json": f"are both of {text('fog', 3)}",
    }.items():
        stray = write_json(place / "a" / name, [])
        assert message in refused(place), name
        stray.unlink()
    write_json(place / "a" / ".hidden.json", "anything")
    write_json(place / "b" / "snow" / "1.json", [])
    assert "a and b: one has no corruption(snow,severity=1,variant=bethgelab); expected" in refused(place, "a", "b")
    shutil.copytree(place / "a", place / "again" / "a")
    assert "a second checkpoint a; rename" in refused(place, "a", "again/a")
    (place / "none").mkdir()
    assert "HERE/none: 0 .json files; expected 1 to 1024" in refused(place, "none")
    assert "HERE/gone: cannot be read as COCO results (No such file" in refused(place, "gone")
    with pytest.raises(ProtocolError, match=r"^a\.pth: only detections are scored; give predictions:FILE or"):
        plan(DetectionRequest(checkpoints=["a.pth"], data_dir=place / "truth.json"))


def changed(at: str, **values: Any) -> Callable[[Entry, list[Entry]], None]:
    """Return what changes the first entry of a part of the annotations, or the first result."""

    def change(truth: Entry, results: list[Entry]) -> None:
        entry = results[0] if at == "results" else truth[at][0]
        entry.update({name: value for name, value in values.items() if value is not None})
        for name, value in values.items():
            if value is None:
                del entry[name]

    return change


def twice(at: str) -> Callable[[Entry, list[Entry]], None]:
    return lambda truth, results: truth[at].append(
        {**truth[at][0], **({"name": "other"} if at == "categories" else {})}
    )


BAD: dict[str, tuple[Callable[[Entry, list[Entry]], Any], str]] = {
    "image": (
        changed("results", image_id=5),
        "a.json: entry 0: image_id 5; expected one of the 12 in HERE/truth.json, such",
    ),
    "category": (changed("results", category_id=2), "entry 0: category_id 2; expected one of the 4 in"),
    "true image": (changed("annotations", image_id=5), "truth.json: entry 0: image_id 5"),
    "true category": (changed("annotations", category_id=2), "truth.json: entry 0: category_id 2"),
    "text": (changed("results", image_id="1000"), "cannot be read as COCO results (Expected `int`, got `str`"),
    "score": (changed("results", score=None), "missing required field `score`"),
    "no score": (changed("results", score=math.nan), "JSON is malformed"),
    "infinite": (changed("results", score=math.inf), "JSON is malformed"),
    "three": (changed("results", bbox=[1, 2, 3]), "of length 4"),
    "narrow": (
        changed("results", bbox=[1, 2, -3, 4]),
        "entry 0: bbox [1.0, 2.0, -3.0, 4.0]; expected x, y, width, height",
    ),
    "far": (changed("results", bbox=[1e6 + 1, 2, 3, 4]), "up to 1e+06"),
    "no box": (changed("results", bbox=None), "missing required field `bbox`"),
    "crowd": (changed("annotations", iscrowd=None), "missing required field `iscrowd`"),
    "many": (changed("annotations", iscrowd=2), "Expected `int` <= 1"),
    "area": (changed("annotations", area=-1), "Expected `float` >= 0"),
    "images twice": (twice("images"), "truth.json: image id 1000 is there 2 times; expected once"),
    "annotations twice": (twice("annotations"), "annotation id 1 is there 2 times"),
    "categories twice": (twice("categories"), "category id 1 is there 2 times"),
    "blank name": (changed("categories", name=" "), "category 1 has a blank name; expected one that can be read"),
    "names twice": (changed("categories", name="c1"), "name of a category 'c1' is there 2 times"),
    "no images": (lambda truth, results: truth["images"].clear(), "Expected `array` of length >= 1"),
    "crowds": (
        lambda truth, results: [each.update(iscrowd=1) for each in truth["annotations"]],
        "HERE/truth.json: no object that is no crowd; expected some to detect",
    ),
    "no objects": (lambda truth, results: truth["annotations"].clear(), "no object that is no crowd"),
    "no list": (lambda truth, results: truth.update(annotations={}), "Expected `array`, got `object`"),
    "shares": (
        lambda truth, results: [each.update(bbox=[0.1, 0.2, 0.3, 0.4]) for each in results],
        "every box ends by 0.6; expected pixels, not shares of a side",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_makes_no_sense_is_one_line(tmp_path: Path, kind: str) -> None:
    change, message = BAD[kind]
    truth, results = coco_set(1, most=3)
    change(truth, results)
    write_json(tmp_path / "truth.json", truth)
    write_json(tmp_path / "a.json", results)
    error = refused(tmp_path, "a.json")
    assert message in error and "\n" not in error


def test_limits_are_kept_to_the_last_value(tmp_path: Path) -> None:
    truth, results = coco_set(1, most=3)
    results[0]["bbox"] = [1e6, 0, 0, 1e6]
    truth["annotations"][0].update(area=0, iscrowd=1)
    write_json(tmp_path / "truth.json", truth)
    write_json(tmp_path / "a.json", results)
    plan(DetectionRequest(checkpoints=[f"predictions:{tmp_path / 'a.json'}"], data_dir=tmp_path / "truth.json"))


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = furnish(tmp_path, ("fog",), (1, 2, 3))
    largest = max(path.stat().st_size for path in place.rglob("*.json"))
    request = DetectionRequest(
        checkpoints=[f"predictions:{place / 'a'}"], data_dir=place / "truth.json", corrupted_by="hendrycks"
    )
    monkeypatch.setattr(coco_files, "LARGEST", largest)
    monkeypatch.setattr(planning, "FILES", 4)
    assert len(plan(request).conditions) == 4
    monkeypatch.setattr(planning, "FILES", 3)
    assert "4 .json files; expected 1 to 3" in refused(place)
    monkeypatch.setattr(planning, "FILES", 4)
    monkeypatch.setattr(coco_files, "LARGEST", largest - 1)
    assert "more than the allowed" in refused(place)
    monkeypatch.setattr(coco_files, "LARGEST", largest)
    objects = json.loads((place / "truth.json").read_text())["annotations"]
    most = max(Counter((each["image_id"], each["category_id"]) for each in objects).values())
    monkeypatch.setattr(coco_files, "TOGETHER", most)
    assert plan(request).dataset
    monkeypatch.setattr(coco_files, "TOGETHER", most - 1)
    assert f"{most} objects of a category in an image; expected at most {most - 1}" in refused(place)


MASK = np.zeros((HEIGHT, WIDTH), np.uint8)
MASK[10:20, 10:20] = 1
CODE = code_of(MASK)
COUNTS = CODE["counts"]
POLYGON = [[1, 1, 9, 1, 9, 9]]


@pytest.mark.parametrize(
    ("of", "segmentation", "message"),
    [
        ("results", {"size": [WIDTH, HEIGHT], "counts": COUNTS}, "size [80, 60]; expected that of its image, [60, 80]"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": COUNTS[:-1]}, "counts of 1160 pixels; expected those of 4800"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": [4801, -1]}, "Expected `int` >= 0"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": []}, "counts of 0 pixels"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": ""}, "counts that are no compressed run lengths"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": "~"}, "counts that are no compressed run lengths"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": "Pé"}, "counts that are no compressed run lengths"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": "o"}, "counts that are no compressed run lengths"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": "PPPPPPP0"}, "counts with a number of 8 letters"),
        ("results", {"size": [HEIGHT, WIDTH], "counts": "@"}, "counts of -16 pixels"),
        ("results", POLYGON, "Expected `object`, got `array`"),
        ("results", None, "Object missing required field `segmentation`"),
        ("truth", [], "polygons that are not lists of three or more x and y"),
        ("truth", [[1, 1, 9, 1]], "polygons that are not lists"),
        ("truth", [[1, 1, 9, 1, 9, 9, 1]], "polygons that are not lists"),
        ("truth", [[1, 1, 9, 1, 9, 2**17 + 1]], "a corner at 131073; expected pixels of the image"),
        ("truth", [[0, 0, 1e5, 1e5] * 9], "an outline of"),
        ("sides", POLYGON, "its image has no height and width, which masks need"),
    ],
)
def test_a_mask_that_makes_no_sense_is_one_line(tmp_path: Path, of: str, segmentation: Any, message: str) -> None:
    truth: Entry = {"images": [{"id": 1, "width": WIDTH, "height": HEIGHT}], "categories": [{"id": 1, "name": "c"}]}
    both = {"image_id": 1, "category_id": 1}
    truth["annotations"] = [{**both, "id": 1, "area": 9, "iscrowd": 0, "segmentation": POLYGON}]
    results = [{**both, "score": 1, "segmentation": CODE}]
    entry = results[0] if of == "results" else truth["annotations"][0]
    entry["segmentation"] = segmentation
    if segmentation is None:
        del entry["segmentation"]
    if of == "sides":
        del truth["images"][0]["height"]
    write_json(tmp_path / "truth.json", truth)
    write_json(tmp_path / "a.json", results)
    error = refused(tmp_path, "a.json", iou_type="segm")
    assert message in error and "\n" not in error


def broken(draw: random.Random, text: str) -> str:
    """Return a text that was truncated, changed in some place, nested deep, or has a number that is huge or a text."""
    place = draw.randrange(len(text))
    numbers = [at for at, sign in enumerate(text) if sign in ":," and text[at + 1 : at + 3].strip()[:1].isdigit()]
    at = draw.choice(numbers)
    end = next(k for k in range(at + 2, len(text)) if text[k] in ",]}")
    return draw.choice(
        [
            text[:place],
            text[:place] + draw.choice("{}[],:x\x00\ud800") + text[place + 1 :],
            text[:place] + "[" * 100_000 + text[place:],
            *(
                text[: at + 1] + value + text[end:]
                for value in ("1e999", "9" * 400, '"7"', "null", "[1]", "-1e300", "NaN")
            ),
            text.replace(f'"{draw.choice(["id", "image_id", "category_id", "bbox", "score", "area"])}"', '"else"', 1),
        ]
    )


def test_two_hundred_broken_files_are_one_line_each(tmp_path: Path) -> None:
    """In little memory. A few of them are still what they should be, such as one with another area."""
    draw, sound = random.Random(0), 0
    truth, results = (json.dumps(each) for each in coco_set(1, most=6))
    spec = [f"predictions:{tmp_path / 'a.json'}"]
    with at_most(200 << 20):
        for place in range(200):
            for name, plain in (("truth.json", truth), ("a.json", results)):
                text = broken(draw, plain) if (place % 2 == 0) == (name == "a.json") else plain
                (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
            try:
                plan(DetectionRequest(checkpoints=spec, data_dir=tmp_path / "truth.json"))
                sound += 1
            except RobustkitError as fault:
                assert "\n" not in str(fault) and str(tmp_path) in str(fault) and len(str(fault)) < 500
    assert sound < 20


def test_the_command_line_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    truth, results = coco_set(1, most=3)
    write_json(tmp_path / "truth.json", truth)
    (tmp_path / "a.json").write_text(json.dumps(results)[:-9])
    words = ["detection", f"predictions:{tmp_path / 'a.json'}", "--annotations", str(tmp_path / "truth.json")]
    status, _, errors = called([*words, "--out", str(tmp_path / "run")])
    assert status == 2 and errors.startswith(f"error: {tmp_path / 'a.json'}: cannot be read as COCO results (")
    assert errors.count("\n") == 1 and not (tmp_path / "run").exists()
    card = tmp_path / "card.toml"
    card.write_text('name = "mine"\nversion = 1\ntask = "detection"\n[scoring]\niou = "0.5"\n')
    status, _, errors = called([*words, "--protocol", str(card)])
    assert status == 2 and "protocol mine: its scoring is not COCO's; expected that of detection" in errors
