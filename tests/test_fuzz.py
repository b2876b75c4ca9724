"""Readers and parsers under random input: only errors of ours come out, nothing hangs, nothing is written elsewhere.

A few hundred cases each here, always the same; the `slow` tests make at least 10 000 each. What was ever found stands
in tests/seeds, one case a line (JSON), and comes first.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import page_runs
import pyarrow as pa
import pytest
import torch
from places import TESTS
from safetensors.torch import save

from robustkit.data.layouts import read_table
from robustkit.errors import CheckpointError, DataError, ProtocolError, RobustkitError
from robustkit.evaluations.attacks.evaluate import parse_conditions
from robustkit.evaluations.corruptions import expand, parse_corrupted
from robustkit.evaluations.maps import parse_cams, parse_explained
from robustkit.gate.policy import parse_policy
from robustkit.models.checkpoint import read
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.results.survey import survey

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis, of the extra `test`")
from hypothesis import HealthCheck, configuration, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "hypothesis")  # not into the folder of the tests

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS = TESTS / "seeds"
FEW = settings(
    max_examples=200, derandomize=True, database=None, deadline=5000, suppress_health_check=list(HealthCheck)
)
MANY = settings(FEW, max_examples=10_000, derandomize=False)
Edit = tuple[int, int, bytes]


def seeds(name: str) -> list[Any]:
    return [json.loads(line) for line in (SEEDS / f"{name}.jsonl").read_text("utf-8").splitlines()]


# --- what is mutated -------------------------------------------------------------------------------------------------

edits = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 40), st.binary(max_size=12)), min_size=1, max_size=6)


def mutated(data: bytes, changes: list[Edit]) -> bytes:
    """Each change replaces some bytes from a place on; the last part may be cut off."""
    for place, count, other in changes:
        place %= len(data) + 1
        data = data[:place] + other + data[place + count :]
    return data


@lru_cache
def checkpoints() -> tuple[bytes, ...]:
    weights = {"head.weight": torch.arange(6.0).reshape(2, 3), "head.bias": torch.ones(2).half()}
    content = {"state_dict": weights, "args": {"model": "vit_tiny", "num_classes": 2}, "optimizer": {"lr": 0.1}}
    found = [save(weights, metadata={"num_classes": "2", "mean": "[0.5, 0.5, 0.5]"})]
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
        found.append(buffer.getvalue())
    return tuple(found)


def inner(data: bytes, changes: list[Edit]) -> bytes:
    """The pickle inside a zip is mutated, so that no checksum of the zip stands in the way."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(buffer, "w") as after:
        for member in before.infolist():
            content = before.read(member)
            after.writestr(member.filename, mutated(content, changes) if member.filename.endswith(".pkl") else content)
    return buffer.getvalue()


def a_checkpoint(folder: Path, which: int, changes: list[Edit]) -> None:
    data = checkpoints()[which % 3]
    path = folder / "a.bin"
    path.write_bytes(inner(data, changes) if which == 4 else mutated(data, changes))
    try:
        read(path)
    except CheckpointError as fault:
        one_line(fault)


def one_line(fault: RobustkitError) -> None:
    assert "\n" not in str(fault).replace("\\n", "")


# --- texts -----------------------------------------------------------------------------------------------------------

WORDS = (
    *(
        "clean",
        "pgd",
        "fgsm",
        "apgd",
        "autoattack",
        "segpgd",
        "eps",
        "steps",
        "norm",
        "step_size",
        "*eps",
        "early_stop",
    ),
    *("true", "linf", "l2", "version", "engine", "torchattacks", "restarts", "1/255", "0", "-1", "1e99", "1/0", "nan"),
    *("9" * 40, "cam", "stability", "agcam", "rollout", "under", "threshold", "target", "label", "faithfulness"),
    *("corruption", "fog", "frost", "in-c", "noise", "severity", "1+2+3", "preset", "cifar", "source", "released"),
    *("(", ")", ",", "=", " ", "-", "+", "\n", "\0", "\u0663", "'", '"', "mode", "box", "é"),
)
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=14).map("".join)
GOOD = (
    "pgd(eps=1/255,steps=20)",
    "clean,autoattack(eps=0.5/255,version=rand)",
    "apgd(eps=0.5,norm=l2,steps=10,restarts=2)",
    "stability(agcam,under=pgd(eps=1/255,steps=20))",
    "cam(rollout,threshold=0.3,target=label)",
    "corruption(fog,severity=3,preset=cifar)",
    "in-c,-frost,fog(severity=1+3)",
)


def edited(words: tuple[str, ...]) -> st.SearchStrategy[str]:
    def change(text: str, changes: list[tuple[int, int, str]]) -> str:
        for place, count, other in changes:
            place %= len(text) + 1
            text = text[:place] + other + text[place + count :]
        return text

    parts = st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.sampled_from(WORDS) | st.text(max_size=2))
    return st.builds(change, st.sampled_from(words), st.lists(parts, min_size=1, max_size=3))


conditions = texts | edited(GOOD)


@lru_cache
def cards() -> tuple[Any, ...]:
    return tuple(load_card(name) for name in ("standard", "quest-paper", "segmentation"))


def a_condition(folder: Path, text: str) -> None:
    readers: list[Callable[[str], Any]] = [partial(parse_conditions, card=card) for card in cards()]
    for parse in (*readers, parse_corrupted, parse_explained, parse_cams, expand):
        try:
            found = parse(text)
        except ProtocolError as fault:
            assert "\n" not in str(fault) or "\n" in text
            continue
        if parse in readers:  # what is understood is canonical: read again, it is itself
            again = parse(",".join(one.text for one in found))
            assert [one.text for one in again] == [one.text for one in found]


RULES = (
    'top1 under clean >= 0.30 with 95 % confidence"',
    'drop in top1 under pgd(eps=1/255) against baseline <= 2 %"',
    "no findings under clean except 'fewer than', evidence/thin\"",
    "attention == 'quest'\"",
    'cam_iou_over_control under cam(agcam,mode=box) > 0"',
)
_HEAD = "undecided = 'pass'\n[[rule]]\nname = \"a\"\nseverity = 'warning'\n"
policies = edited(tuple(f'{_HEAD}require = "{rule}\n' for rule in RULES)) | st.text(max_size=60) | texts.map(
    lambda text: f"{_HEAD}require = '''{text}'''\n"
)  # fmt: skip


def a_policy(folder: Path, text: str) -> None:
    try:
        assert parse_policy(text, "p.toml").rules
    except ProtocolError as fault:
        assert str(fault).startswith("p.toml")


TABLES = ("filename,label\na/1.png,0\nb/2.png,1\n", "a/1.png;cat\n2;dog\n", "path\twnid\na/1.png\tn01440764\n")
tables = edited(TABLES) | st.text(max_size=80)


def a_table(folder: Path, text: str, classes: int) -> None:
    path = folder / "labels.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    images = ("a/1.png", "b/2.png", "c/same.png", "d/same.png")
    try:
        names, labels = read_table(path, images, where="data", num_classes=classes or None)
    except DataError:
        return
    assert set(labels) <= set(images) and all(0 <= place < len(names) for place in labels.values())


# --- records ---------------------------------------------------------------------------------------------------------

KEYS = ("checkpoints", "conditions", "claims", "protocol", "data", "deciding", "bad_images", "versions", "pictures")
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6) | st.just("../../x"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "eps", "n"]), inner, max_size=3)
    ),
    max_leaves=5,
)
changes_of_json = st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), odd), min_size=1, max_size=2)


def put(data: Any, way: list[int], value: Any) -> Any:
    """`data` with a value at a place that numbers lead to; what has no inside is replaced."""
    if not way or not isinstance(data, dict | list) or not data:
        return value
    keys = list(data) if isinstance(data, dict) else range(len(data))
    key = keys[way[0] % len(keys)]
    data[key] = put(data[key], way[1:], value)
    return data


@lru_cache
def whole(folder: Path) -> tuple[Run, bytes, bytes, bytes]:
    run = page_runs.make_run(folder / "run", ("one",), shown=False)
    for condition in run.manifest.conditions[2:]:  # two are enough
        for path in run.shard_path("one", condition, 0).parent.glob("*"):
            path.unlink()
    record = run.shard_path("one", "clean", 0)
    side = folder / "run" / "timings" / record.relative_to(folder / "run" / "records").with_suffix(".json")
    return run, run.manifest_path.read_bytes(), record.read_bytes(), side.read_bytes()


def a_run(folder: Path, changes: list[Edit], sidecar: bool, of_json: list[tuple[list[int], Any]]) -> None:
    """Bytes of a record, with and without its checksum; values of run.json."""
    run, manifest, data, side = whole(folder)
    record = run.shard_path("one", "clean", 0)
    timing = folder / "run" / "timings" / record.relative_to(run.path / "records").with_suffix(".json")
    record.write_bytes(mutated(data, changes) if changes else data)
    timing.write_bytes(side)
    if changes and not sidecar:
        timing.unlink()
    parts = json.loads(manifest)
    for way, value in of_json:
        parts = put(parts, way, value)
    run.manifest_path.write_text(json.dumps(parts))
    before = {path.name for path in folder.iterdir()}
    try:
        known = run.manifest
        pa.concat_tables([run.table("one", "clean")])
        if not of_json:  # what no rule of run.json's shape foresees is for the command to catch
            assert survey(run)
        assert known.checkpoints
    except RobustkitError as fault:
        one_line(fault)
    assert {path.name for path in folder.iterdir()} == before


# --- tests -----------------------------------------------------------------------------------------------------------

NO_EDITS: st.SearchStrategy[list[Edit]] = st.just([])
CASES: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "checkpoint": (a_checkpoint, (st.integers(0, 4), edits)),
    "condition": (a_condition, (conditions,)),
    "policy": (a_policy, (policies,)),
    "table": (a_table, (tables, st.sampled_from([0, 2, 10, 1000]))),
    "record": (a_run, (edits, st.booleans(), st.just([]))),
    "manifest": (a_run, (NO_EDITS, st.just(True), changes_of_json)),
}


def hunt(name: str, folder: Path, how: settings) -> int:
    """How many cases were tried; the first that fails is made small, and fails the test."""
    check, strategies = CASES[name]
    count = 0

    @how
    @given(st.tuples(*strategies))
    def attempt(case: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1
        check(folder, *case)

    attempt()
    return count


def decoded(value: Any) -> Any:
    """Bytes stand in a seed as {'b64': …}."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        return base64.b64decode(value["b64"])
    return [decoded(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in CASES for case in seeds(name)])
def test_what_was_found_before(tmp_path: Path, name: str, case: list[Any]) -> None:
    """Each case passes its check, which asserts."""
    CASES[name][0](tmp_path, *decoded(case))


@pytest.mark.parametrize("name", CASES)
def test_a_few_hundred(tmp_path: Path, name: str) -> None:
    here = set(Path.cwd().iterdir())
    assert hunt(name, tmp_path, FEW) >= 100
    assert set(Path.cwd().iterdir()) == here


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand(tmp_path: Path, name: str) -> None:
    assert hunt(name, tmp_path, MANY) >= 10_000
