"""Tokenizers of others: what one does to a text is bounded, and its faults are one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from robustkit.cli import app
from robustkit.errors import CheckpointError
from robustkit.slices.text import tokenizers
from robustkit.slices.text.tokenizers import FolderTokenizer

pytest.importorskip("tokenizers")

WORDS = {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}}
SPACED = {"type": "WhitespaceSplit"}


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def of(folder: Path, **steps: Any) -> FolderTokenizer:
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "pre_tokenizer": SPACED, **WORDS, **steps}))
    return FolderTokenizer(folder)


LONGER = replaced({"Regex": "."}, "a b a b a b ")
BOMBS: dict[str, tuple[dict[str, Any], str, str]] = {
    "nested Replaces": ({"normalizer": {"type": "Sequence", "normalizers": [LONGER] * 12}}, "a b", "MiB of memory"),
    "a Replace of what is empty": (
        {"normalizer": {"type": "Sequence", "normalizers": [replaced({"Regex": "x*"}, "a " * 4000)] * 4}},
        "a b",
        "MiB of memory",
    ),
    "a long beginning": (
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Prepend", "prepend": "a" * 99_999}, LONGER, LONGER, LONGER],
            }
        },
        "a b",
        "MiB of memory",
    ),
    "a pattern that repeats in itself": ({"pre_tokenizer": split(r"(a+)+(b+)+$")}, "a" * 40, "PanicException|Onig"),
    "the same in a normaliser": (
        {"normalizer": replaced({"Regex": "(a|a)*[01]{2}"}, "")},
        "a" * 40 + "0",
        "PanicException|Onig",
    ),
    "a slow pattern": ({"pre_tokenizer": split("a*a*[01]{2}")}, "a" * 3000 + "0", "no answer within 1 s"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_one_line_and_the_next_text_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    steps, text, why = BOMBS[case]
    monkeypatch.setattr(tokenizers, "MEMORY", 1 << 29)
    monkeypatch.setattr(tokenizers, "_PATIENCE", 1.0 if "within" in why else 60.0)
    tokenizer = of(tmp_path, **steps)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: it cannot encode a text of \d+ .*({why})") as fault:
        tokenizer.encode(text)
    assert "\n" not in str(fault.value)
    assert capfd.readouterr().err == ""  # nor does Rust print its own
    if "normalizer" not in steps:
        assert tokenizer.encode("b")[0] == [1]


def test_a_tokenizer_in_a_process_encodes_as_the_library_does(tmp_path: Path) -> None:
    import tokenizers as library

    tokenizer = of(tmp_path, normalizer={"type": "Lowercase"}, pre_tokenizer=split("[ab]"))
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("abc\U0001f600b", "", "A b\n\x00"):
        found = theirs.encode(text, add_special_tokens=False)
        for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
            assert each.encode(text) == (found.ids, [end for _, end in found.offsets])
    assert (tokenizer.size, tokenizer.begin) == (3, None)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'])
def test_what_is_no_tokenizer_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"no tokenizer that can be read .*; put it there with") as fault:
        FolderTokenizer(tmp_path)
    assert "\n" not in str(fault.value)


def test_a_panic_anywhere_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class PanicException(BaseException):
        pass

    def panics(**_: object) -> None:
        raise PanicException("index\nout of bounds")

    monkeypatch.setattr(app.cli, "main", panics)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "error: PanicException: index out of bounds; a library crashed; --debug shows where\n"
