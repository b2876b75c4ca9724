"""Watched attention: figures by hand and against slow replicas, records, changes, findings, the report, refusals."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import small_audit
import torch
from click.testing import CliRunner
from figures import noted, said_of
from msgspec.structs import replace
from pyarrow.parquet import ParquetFile
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import robustkit
from robustkit.cli.app import cli
from robustkit.common.finding import Finding
from robustkit.embedded import __file__ as embedded_file
from robustkit.errors import DamagedRecord, ModelError, ProtocolError, RunError
from robustkit.evaluations.attacks import TOP1
from robustkit.evaluations.clean.evaluate import CleanEvaluator as Clean
from robustkit.evaluations.condition import check_condition, matches, pattern_of
from robustkit.evaluations.corruptions.evaluate import CorruptionsEvaluator as Corruptions
from robustkit.evaluations.family import Evaluator, family_of
from robustkit.evaluations.layers import Layer, decode_layers, encode_layers
from robustkit.evaluations.subject import Batch, EvaluatedModel, Shown
from robustkit.protocol.condition import Condition
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.results.pairing import Side, paired_difference
from robustkit.runs import untrusted as foreign
from robustkit.slices.watching import COLUMN_NAMES, LISTS, under_of
from robustkit.slices.watching import evaluate as attention_watch
from robustkit.slices.watching.evaluate import watch
from robustkit.slices.watching.ledger import LISTS as OF_LEDGER
from robustkit.slices.watching.results import (
    COLLAPSE,
    EXPLOSION,
    LINES,
    Heads,
    HeadSums,
    Sampled,
    attention_figures,
    attention_rows,
    attention_tables,
    heads_of,
    layer_table,
)
from robustkit.tasks.labelled.subject import ClassifierSubject

pytestmark = pytest.mark.usefixtures("one_thread", "whole_figures", "unexamined")
NAME = "shapes-vit-quest"
PGD, FOG = "pgd(eps=4/255,steps=2)", "corruption(fog,severity=3)"
UNDER = ("clean", PGD, FOG)
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=2)",
    "eps": "4/255",
    "corruptions": "fog(severity=3)",
    "watch_attention": True,
    "limit": 12,
    "batch_size": 4,
    "shard_size": 8,
    "browse": 0,
    "setup_check": False,
    "device": "cpu",
}


@pytest.fixture
def pageless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages take longer than all else here."""
    monkeypatch.setattr("robustkit.report.page.write_report", lambda *_: None)


def audit(out: Path, model: str | Path = f"zoo:{NAME}", **options: Any) -> Run:
    return robustkit.audit([model], out=out, **OPTIONS | options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audit(tmp_path_factory.mktemp("watched") / "run", browse=3)


def scaled(source: str, target: Path, factor: float, layers: tuple[int, ...] = (0, 1, 2, 3)) -> Path:
    """A shipped checkpoint whose queries and keys are multiplied in some layers."""
    with safe_open(Path(embedded_file).with_name(f"{source}.safetensors"), "pt") as file:
        tensors, metadata = {name: file.get_tensor(name).float() for name in file.keys()}, file.metadata()  # noqa: SIM118
    for layer in layers:
        for part in ("weight", "bias"):
            tensor = tensors[f"blocks.{layer}.attn.qkv.{part}"]
            tensor[: 2 * len(tensor) // 3] *= factor
    save_file(tensors, target, metadata=metadata)
    return target


# --- records and results ---------------------------------------------------------------------------------------------


def test_a_row_a_sample_and_its_layers_in_the_metadata(run: Run) -> None:
    shown = [text for under in UNDER for text in (under, f"attention({under})", f"ledger({under})")]
    assert list(run.manifest.conditions) == [text for text in shown if text != "ledger(clean)"]
    for under in UNDER:
        plain = {row["sample_id"]: row for row in run.table(NAME, under).to_pylist()}
        table = run.table(NAME, f"attention({under})")
        assert json.loads(table.schema.metadata[b"attention"]) == [[f"blocks.{i}.attn", 3, 65] for i in range(4)]
        assert table.num_rows == 12
        for row in table.to_pylist():
            assert row["prediction"] == plain[row["sample_id"]]["prediction"]  # the same images
            assert row["nll"] == pytest.approx(plain[row["sample_id"]]["nll"], abs=1e-5)
            assert all(len(row[name]) == 12 for name in LISTS)
            assert row["largest_logit"] == max(row["largest_logits"])
            assert row["key_norm"] == pytest.approx(np.mean(row["key_norms"]))
            assert row["entropy_share"] == pytest.approx(np.mean(row["attention_entropies"]) / math.log(65))
    model = robustkit.load(f"zoo:{NAME}")
    dataset = robustkit.data.open_dataset("embedded:shapes")
    row = run.table(NAME, "attention(clean)").to_pylist()[5]
    sample = next(one for one in dataset.samples if one.id == row["sample_id"])
    pixels = robustkit.data.images.to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
    _, seen = watch(model.network, model.normalize(pixels))
    for name in LISTS:
        assert row[name] == pytest.approx(seen.values[name][0].tolist(), rel=1e-4)


def test_results_are_means_and_changes_paired_by_sample(run: Run) -> None:
    results = {(row.condition, row.metric): row for row in run.summary()}
    before, after = (
        {row["sample_id"]: row for row in run.table(NAME, f"attention({under})").to_pylist()} for under in UNDER[::2]
    )
    for metric in COLUMN_NAMES:
        found = results[f"attention({FOG})", metric]
        assert found.value == pytest.approx(np.mean([row[metric] for row in after.values()]))
        assert found.n == 12 and found.low < found.value < found.high
        change = results[f"attention({FOG})", f"{metric}_change"]
        differences = [after[name][metric] - before[name][metric] for name in before]
        assert change.value == pytest.approx(np.mean(differences), abs=1e-7)
        assert change.low < change.value < change.high
        assert ("attention(clean)", f"{metric}_change") not in results
        assert said_of(found) == [small_audit.UNCHECKED]
    assert ("attention(clean)", "top1") not in results


@pytest.mark.usefixtures("pageless")
def test_resumed_in_parts_it_makes_the_same_bytes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def shown(show: Callable[..., Shown]) -> Callable[..., Shown]:
        def counted(self: Evaluator, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: Any) -> Shown:
            made.append(condition.text)
            return show(self, subject, batch, condition, rng)

        return counted

    for family in (Corruptions, Clean):
        monkeypatch.setattr(family, "show", shown(family.show))
    run_attack = ClassifierSubject.attack

    def attacked(self: ClassifierSubject, condition: Condition, *arguments: Any) -> Any:
        made.append(condition.text)
        return run_attack(self, condition, *arguments)

    monkeypatch.setattr(ClassifierSubject, "attack", attacked)
    again = audit(tmp_path / "again", browse=3)
    assert (made.count(PGD), made.count(FOG)) == (3, 3)  # three batches; the images serve both conditions
    assert small_audit.files(again.path) == small_audit.files(run.path)
    for path in [*again.path.rglob("records/*/attention*/*.parquet")]:
        path.unlink()
    made.clear()
    audit(tmp_path / "again", browse=3)
    assert (made.count(PGD), made.count(FOG)) == (3, 3)  # made again, and equal
    assert small_audit.files(again.path) == small_audit.files(run.path)
    later = audit(tmp_path / "later", browse=3, watch_attention=False)
    audit(tmp_path / "later", browse=3)  # asked for afterwards
    records = {name: data for name, data in small_audit.files(run.path).items() if name.endswith(".parquet")}
    assert records.items() <= small_audit.files(later.path).items()


@pytest.mark.usefixtures("pageless")
def test_another_batch_size_gives_the_same(run: Run, tmp_path: Path) -> None:
    other = audit(tmp_path, batch_size=12)
    for under in UNDER:
        one, two = (r.table(NAME, f"attention({under})").to_pandas() for r in (run, other))
        for name in COLUMN_NAMES:
            np.testing.assert_allclose(one[name], two[name], rtol=2e-3)
        np.testing.assert_allclose(np.stack(one["key_norms"]), np.stack(two["key_norms"]), rtol=2e-3)


@pytest.mark.usefixtures("pageless")
def test_released_corruptions_are_watched_as_they_are(run: Run, tmp_path: Path) -> None:
    names = robustkit.data.open_dataset("embedded:shapes").class_names
    for folder, count in (("clean", 2), *((f"tree/fog/{severity}", 2) for severity in "12345")):
        for place, name in enumerate(names):
            for index in range(count):
                target = tmp_path / folder / name / f"{index}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                level = 40 * int(folder[-1]) if folder[-1].isdigit() else 0
                pixels = np.full((64, 64, 3), (place * 20 + level) % 256, np.uint8)
                target.write_bytes(robustkit.data.images.encode_png(pixels))
    more = {"corrupted_dir": tmp_path / "tree", "corruptions": "fog(severity=3)", "attacks": "none", "limit": None}
    found = audit(tmp_path / "run", data_dir=tmp_path / "clean", **more)
    text = next(text for text in found.manifest.conditions if text.startswith("attention(corruption"))
    assert "source=released" in text
    network = robustkit.load(f"zoo:{NAME}")
    level = torch.full((1, 3, 64, 64), 120 / 255)  # the first class at severity 3
    _, seen = watch(network.network, network.normalize(level))
    row = found.table(NAME, text).to_pylist()[0]
    assert row["query_norms"] == pytest.approx(seen.values["query_norms"][0].tolist(), rel=1e-4)


# --- findings --------------------------------------------------------------------------------------------------------


def heads(figures: dict[str, list[list[float]]], layers: tuple[Layer, ...]) -> Heads:
    sums = HeadSums(Path("x"))
    even = {name: np.ones((len(next(iter(figures.values()))), sum(layer.heads for layer in layers))) for name in LISTS}
    sums.add(layers, even | {name: np.array(values) for name, values in figures.items()})
    found = sums.heads()
    assert found is not None
    return found


TWO = (Layer("first", 2, 50), Layer("second", 1, 1))


def test_findings_name_the_head_that_gives_most_cause() -> None:
    edge = COLLAPSE * math.log(50)
    assert heads({"largest_logits": [[EXPLOSION, 1, -3], [5, 2, 1]]}, TWO).findings == []
    assert (
        heads({"attention_entropies": [[1.001 * edge, 3, 0], [1.001 * edge, 2, 0]]}, TWO).findings == []
    )  # one key: 0
    (large,) = heads({"largest_logits": [[5, 1, 130], [170, 2, 101]]}, TWO).findings
    assert large.code == "attention/logit-explosion" and large.text == (
        "logit explosion: |logit| 170 in first head 0 and 1 more head, above 100, "
        "where bfloat16 has steps of 0.5 and more"
    )
    (low,) = heads({"attention_entropies": [[1, 0.5 * edge, 0], [1, 0.9 * edge, 0]]}, TWO).findings
    assert low.code == "attention/entropy-collapse"
    assert low.text == "entropy collapse: 0.7 % of log N in first head 1, below 1 %: each query attends to one key"
    lost = heads({"key_norms": [[1, 2, math.nan], [1, 4, 5], [1, 9, math.inf]]}, TWO)
    said = "attention is not finite in 2 of 3 samples, first in second head 0"
    assert [*lost.findings] == [Finding("attention/not-finite", said)]
    assert lost.values["key_norms"].tolist() == [1, 5, 5] and lost.broken.tolist() == [0, 0, 2]


def test_steps_of_bfloat16_are_what_the_finding_says() -> None:
    large = torch.tensor([EXPLOSION, EXPLOSION + 0.5, EXPLOSION + 0.2])
    assert large.to(torch.bfloat16).tolist() == [100.0, 100.5, 100.0]


@pytest.mark.parametrize(("name", "collapsed"), [("shapes-vit-standard", True), ("shapes-vit-quest", False)])
def test_a_broken_model_is_flagged_and_its_healthy_self_is_not(tmp_path: Path, name: str, collapsed: bool) -> None:
    broken = scaled(name, tmp_path / "broken.safetensors", 30)
    options = {"attacks": "none", "corruptions": None, "limit": 8}
    found = audit(tmp_path / "run", broken, **options)
    rows = [row for row in found.summary() if row.condition == "attention(clean)"]
    said = {each.code: each.text for row in rows for each in row.findings}
    large, low = (said.get(f"attention/{name}", "") for name in ("logit-explosion", "entropy-collapse"))
    assert re.match(r"logit explosion: \|logit\| \d+ in blocks\.\d\.attn head \d and 11 more", large)
    assert bool(re.match(r"entropy collapse: .* in blocks\.\d\.attn head \d", low)) == bool(low) == collapsed
    page = (found.path / "report.html").read_text("utf-8")
    assert "logit explosion" in page.partition("</header>")[0]
    own = audit(tmp_path / "own", f"zoo:{name}", **options).summary()
    assert {text for row in own for text in said_of(row)} == {small_audit.UNCHECKED}


@pytest.mark.usefixtures("pageless")
def test_what_is_not_finite_stays_in_records_and_is_said(tmp_path: Path) -> None:
    diverged = scaled("shapes-vit-standard", tmp_path / "diverged.safetensors", 1e25, layers=(2,))
    found = audit(tmp_path / "run", diverged, attacks="none", corruptions=None)
    rows = found.table("diverged", "attention(clean)").to_pylist()
    assert all(math.isfinite(value) for row in rows for value in row["largest_logits"][:6])
    assert not any(math.isfinite(value) for row in rows for value in row["largest_logits"][6:])
    assert all(math.isinf(value) for value in rows[0]["query_norms"][6:9]) and math.isnan(rows[0]["query_norms"][9])
    (entropy,) = (row for row in found.summary() if row.metric == "attention_entropy")
    assert math.isnan(entropy.value) and entropy.n == 12 and not entropy.interval
    assert "attention is not finite in 12 of 12 samples, first in blocks.2.attn head 0" in said_of(entropy)
    (table,) = attention_tables(found.summary(), found.manifest)
    assert table.rows == (("clean", *["nan"] * 6),)
    kept = heads_of(found, "diverged", "attention(clean)")
    assert kept is not None
    assert [row[3] for row in layer_table(kept, "t").rows[2:]] == ["nan", "nan"]


# --- pairing ---------------------------------------------------------------------------------------------------------


def sampled(ids: str, values: list[float]) -> Sampled:
    return Sampled(pa.array(list(ids), pa.string()), np.array(values)[:, None] + np.zeros(len(COLUMN_NAMES)))


def test_changes_are_of_samples_that_both_have() -> None:
    clean, after = sampled("cab", [3.0, 1.0, 2.0]), sampled("bdc", [12.0, 99.0, 23.0])
    rows = {row.metric: row for row in attention_rows("attention(x)", after, clean, None, noted("f"))}
    assert (rows["key_norm_change"].value, rows["key_norm_change"].n) == (15.0, 2)  # b: 10, c: 20
    norm = rows["key_norm"]
    assert norm.value == pytest.approx(134 / 3) and not norm.has_interval and norm.findings == noted("f")
    assert len(rows) == 2 * len(COLUMN_NAMES)
    assert not list(attention_rows("attention(x)", sampled("", []), clean, None, []))


@pytest.mark.usefixtures("pageless")
def test_two_checkpoints_are_paired_by_sample(run: Run, tmp_path: Path) -> None:
    other = audit(tmp_path, "zoo:shapes-vit-standard", attacks="none", corruptions=None)
    pair = Side(run, NAME), Side(other, "shapes-vit-standard")
    found = paired_difference(*pair, "attention(clean)", "largest_logit")
    values = [
        {row["sample_id"]: row["largest_logit"] for row in side.table("attention(clean)", None).to_pylist()}  # type: ignore[arg-type]
        for side in pair
    ]
    assert found.value == pytest.approx(np.mean([values[1][name] - values[0][name] for name in values[0]]))
    with pytest.raises(RunError, match=r"figure of pairs under attention\(clean\).*'top1'"):
        paired_difference(*pair, "attention(clean)", "top1")


# --- conditions of rules ---------------------------------------------------------------------------------------------


def test_rules_name_the_condition() -> None:
    assert under_of(f"attention({FOG})") == FOG and under_of("cam(agcam)") is None
    assert matches(pattern_of(f"attention({PGD})"), f"attention({PGD})")
    assert matches(pattern_of("attention(pgd(eps=4/255))"), f"attention({PGD})")
    assert not matches(pattern_of("attention(pgd(eps=2/255))"), f"attention({PGD})")
    assert not matches(pattern_of("attention(clean)"), f"attention({PGD})") and not matches(
        pattern_of("clean"), "attention(clean)"
    )
    assert check_condition("attention( pgd(eps=1/255) )").text == "attention(pgd(eps=1/255))"
    for text in ("attention", "attention()", "attention(cam(agcam))", "attention(attention(clean))", "attention(in-c)"):
        with pytest.raises(ProtocolError, match=r"expected such as attention\(clean\)"):
            check_condition(text)
    with pytest.raises(ProtocolError, match="unknown condition 'pgdd'"):
        check_condition("attention(pgdd)")


# --- the report ------------------------------------------------------------------------------------------------------


def section(page: str) -> str:
    found = re.search('<section aria-labelledby="attention">.*?</section>', page, re.DOTALL)
    return found[0] if found else ""


def test_the_report_has_curves_changes_and_layers(run: Run) -> None:
    part = section((run.path / "report.html").read_text("utf-8"))
    assert part.count("<svg") == 1 and part.count('role="img"') == 1
    said = re.search(r'aria-label="([^"]*clean: largest logit[^"]*)"', part)
    kept = heads_of(run, NAME, "attention(clean)")
    assert said and kept is not None
    place = int(kept.values["largest_logits"].argmax())
    assert f"clean: largest logit {kept.values['largest_logits'][place]:.1f} in {kept.name(place)}" in said[1]
    plain = re.sub(r"<wbr>|</?a\b[^>]*>", "", part)
    assert re.search(r'<th scope="row" class="plain">fog, severity 3</th><td class="num">[+−]', plain)
    assert part.count('<th scope="row" class="plain">blocks.') == 4
    assert "attention(" not in re.sub(r"(?s)<section aria-labelledby=\"reproduce\">.*", "", part)


@pytest.mark.parametrize(
    ("layers", "fine"),
    [
        ([Layer("a" * 200, 1, 1)], True),
        ([Layer("a" * 201, 1, 1)], False),
        ([Layer("a", 0, 1)], False),
        ([Layer("a", 1, 0)], False),
        ([Layer("a", 1, (1 << 31) - 1)], True),
        ([Layer("a", 1, 1 << 31)], False),
        ([Layer("a", 1 << 16, 1)], True),
        ([Layer("a", 1 << 16, 1), Layer("b", 1, 1)], False),
        ([Layer("a", 1, 1)] * 4096, True),
        ([Layer("a", 1, 1)] * 4097, False),
        ([], False),
    ],
)
def test_layers_of_a_record_are_bounded(layers: list[Layer], fine: bool, tmp_path: Path) -> None:
    if fine:
        assert decode_layers({b"attention": encode_layers(layers)}, tmp_path) == tuple(layers)
        return
    with pytest.raises(DamagedRecord, match="does not record its layers; delete it and run again"):
        decode_layers({b"attention": encode_layers(layers)}, tmp_path)


def test_the_terminal_names_conditions_as_it_does_elsewhere(run: Run) -> None:
    watched = [f"attention({text})" for text in UNDER]
    keys = [(text, "largest_logit") for text in watched]
    rows = [*family_of("attention").presenter.brief(keys, run.manifest, TOP1)]
    assert all(row.places == ("short",) for row in rows)  # it says how a model computes, not how well
    assert list(dict.fromkeys(row.label.partition(": ")[0] for row in rows)) == [
        "clean",
        "PGD, 4/255, 2 steps",
        "fog, severity 3",
    ]


def test_other_parts_of_the_report_know_nothing_of_it(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(run.path, out)
    before = (out / "report.html").read_text("utf-8")
    manifest = run.manifest  # the same except for what was watched
    plain = tuple(text for text in manifest.conditions if under_of(text) is None)
    Run(out).write_manifest(replace(manifest, conditions=plain))
    refresh(Run(out))
    after = (out / "report.html").read_text("utf-8")
    assert section(before) and not section(after)
    without = before.replace(section(before), "").replace('<li><a href="#attention">Attention stability</a></li>', "")
    pattern = r"(?s)<section aria-labelledby=\"(reproduce|glossary)\">.*?</section>"
    squeezed = (re.sub(r"\s+", " ", re.sub(pattern, "", page)).replace("copy", "run") for page in (without, after))
    assert next(squeezed) == next(squeezed)


def test_names_from_outside_are_escaped(run: Run, tmp_path: Path) -> None:
    out = Run(tmp_path / "copy")
    shutil.copytree(run.path, out.path)
    odd = (Layer("<script>alert(1)</script>", 3, 65), *(Layer(f"b{i}", 3, 65) for i in range(3)))
    for path in out.path.rglob("records/*/attention*/*.parquet"):
        table = ParquetFile(path).read()
        out.write_shard(path, table.replace_schema_metadata(table.schema.metadata | {b"attention": encode_layers(odd)}))
    refresh(out)
    part = section((out.path / "report.html").read_text("utf-8"))
    assert "&lt;script&gt;alert(<wbr>1)" in part and "<script" not in part


def test_many_conditions_are_drawn_by_how_much_they_change() -> None:
    layers = (Layer("a", 1, 50),)
    shown = {"clean": 2.0} | {f"fgsm(eps={k}/255,steps=1)": 2.0 + 0.1 * k for k in range(1, 9)}
    every = {text: heads({"attention_entropies": [[value]] * 2}, layers) for text, value in shown.items()}
    (figure,) = attention_figures({"one": every})
    drawn = re.findall(r"<text[^>]*>(clean|fgsm[^<]*)</text>", figure.svg)
    assert drawn == ["clean", *(f"fgsm(eps={k}/255,steps=1)" for k in range(4, 9))] and len(drawn) == LINES
    assert "Under the other 3 conditions the entropy changes less" in figure.caption and "Dotted" not in figure.caption
    assert list(attention_figures({})) == []


def test_a_range_of_decades_is_drawn_in_powers_with_the_bound() -> None:
    layers = (Layer("a", 2, 50),)
    wide = heads({"largest_logits": [[3, 20000]], "attention_entropies": [[math.nan, 0.001]]}, layers)
    figures = list(attention_figures({name: {"clean": wide} for name in ("a", "b", "c")}))
    assert len(figures) == 2 and "Dotted" in figures[0].caption
    assert ">10000</text>" in figures[0].svg and "mathdefault" not in figures[0].svg


# --- refusals and damage ---------------------------------------------------------------------------------------------


def test_a_model_without_attention_is_refused_in_one_line(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"net: --watch-attention has nothing to record: it has no attention;"):
        small_audit.audit(place, tmp_path / "run", watch_attention=True)
    assert not (tmp_path / "run").exists()
    odd = (
        nn.Sequential(nn.MultiheadAttention(4, 2))
        if False
        else nn.Sequential(type("MyAttention", (nn.Linear,), {})(2, 2))
    )
    with pytest.raises(ModelError, match="its attention is of an unsupported kind"):
        attention_watch.check_watchable(odd, "odd", "--stability")


def reported(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    return result.output if result.exception is None else f"{result.output}{result.exception}"


def test_inspect_shows_the_layers_and_says_what_is_missing(place: Path) -> None:
    shown = reported(
        "inspect", f"zoo:{NAME}", "--data-dir", "embedded:shapes", "--limit", "6", "--stability", "--device", "cpu"
    )
    assert "attention on 6 images, layer by layer" in shown
    assert re.search(r"blocks\.3\.attn +3 +65 +\d+\.\d, \d+\.\d \(\d\)", shown)
    assert "--data-dir is missing" in reported("inspect", f"zoo:{NAME}", "--stability")
    scenes = reported("inspect", "zoo:shapes-segmenter-quest", "--data-dir", "embedded:shapes", "--stability")
    assert "--stability applies to classifiers, and this is a segmenter" in scenes
    net = (str(place / "net.pth"), "--arch", f"{place / 'net.py'}:build", "--num-classes", "3")
    bare = reported("inspect", *net, "--data-dir", str(place / "images"), "--stability")
    assert "--stability has nothing to record: it has no attention" in bare
    assert bare.rstrip().endswith("leave --stability out, or audit it separately")
    bare = reported("inspect", *net, "--data-dir", str(place / "images"))
    assert "attention  no layers of attention\n" in bare  # all that can be said about the file is said
    assert re.search(r"attention formulas are not ranked: Sequential does not support attention formulas: ", bare)
    assert "labels: inconclusive, as given (in use) cannot" in bare  # the set-up is looked at all the same
    assert "--attention" not in bare


def test_watched_lists_are_bounded_where_records_are_read() -> None:
    assert tuple(name for name in foreign._REAL_LISTS if not name.startswith(("class_", "logits"))) == (
        *LISTS,
        *OF_LEDGER,
    )


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ({"lists": [[1.0] * 11] * 8}, "a record without a figure for each head"),
        ({"lists": [[1.0] * 12] * 7 + [None]}, "a record without a figure for each head"),
        ({"kind": pa.list_(pa.string()), "lists": [["x"] * 12] * 8}, "column 'key_norms' of list<element: string>"),
        ({"meta": b"[["}, "does not record its layers"),
        ({"meta": b'["abc"]'}, "does not record its layers"),
        ({"meta": b'[["a", 12, -4]]'}, "does not record its layers"),
        ({"meta": b'[["a", 4000000, 4]]'}, "does not record its layers"),
        ({"meta": b'[["a\\u001b", 12, 4]]'}, "does not record its layers"),
        ({"meta": None}, "does not record its layers"),
        ({"meta": b'[["a", 12, 4]]'}, "records with different layers than the rest"),
        ({"drop": True}, "a record without key_norms"),
    ],
)
@pytest.mark.usefixtures("pageless")
def test_a_damaged_record_is_one_line(run: Run, tmp_path: Path, harm: dict[str, Any], message: str) -> None:
    out = Run(tmp_path / "copy")
    shutil.copytree(run.path, out.path)
    table = next(out.shards(NAME, "attention(clean)"))
    place = table.schema.get_field_index("key_norms")
    if "lists" in harm:
        table = table.set_column(place, "key_norms", pa.array(harm["lists"], harm.get("kind", pa.list_(pa.float32()))))
    if "drop" in harm:
        table = table.drop_columns(["key_norms"])
    if "meta" in harm:
        known = {key: value for key, value in table.schema.metadata.items() if key != b"attention"}
        more = {b"attention": harm["meta"]} if harm["meta"] is not None else {}
        table = table.replace_schema_metadata(known | more)
    # The last shard, so that the others are of other layers.
    out.write_shard(out.shard_path(NAME, "attention(clean)", 0), table)
    with pytest.raises(DamagedRecord, match=re.escape(message)) as caught:
        refresh(out)
    assert "\n" not in str(caught.value)
