"""Words that the project does not use are in no page, help, message, docstring or comment."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

# The list with reasons is in CONTRIBUTING.md, and the two are the same.
SAID = {
    "beside": "next to, with, compared with, in addition to",
    "anew": "again",
    "meaned": "averaged",
    "errs on": "is wrong about",
    "cannot be told": "is undecided, are not distinguishable",
    "says of": "says about",
    "say of": "say about",
    "said of": "said about",
    "could not be had": "could not be measured",
    "held against": "compared with, checked against",
    "thereof": "of it",
    "therein": "in it",
    "whereof": "of which",
    "any more": "no longer",
    "what is no": "what is not a",
    "no usable": "not usable",
    "told apart": "distinguished",
    "for want of": "since … is missing",
    "but for": "except for, without",
    "who said so": "source",
    "mend it": "fix it",
    "left aside": "ignored, not used",
    "no single one": "not exactly one",
    "for it would": "since it would",
}
BANNED = re.compile(
    r"(?<![\w{.])(" + "|".join(word.replace(" ", r"\s+") for word in SAID) + r")(?![\w}])", re.IGNORECASE
)

LEFT = re.compile(r"protocol/cards/|cli/test_prose\.py")  # a word there changes the digest of a card; this file
QUOTED = re.compile(r"(?m)^> .*$|`[^`\n]*`|<!-- words -->.*?<!-- /words -->", re.DOTALL)
"""What pages quote, and the list itself."""


def files() -> Iterator[Path]:
    yield from (ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"))
    yield from (ROOT / name for name in ("action.yml", "Dockerfile", "setup.py", "mkdocs.yml"))
    for folder, kind in (
        ("docs", "*.md"),
        ("docs", "*.ipynb"),
        ("docs", "*.yml"),
        ("examples", "*.md"),
        ("scripts", "*.md"),
        (".github", "*.yml"),
        (".ci", "run"),
    ):
        yield from (ROOT / folder).rglob(kind)
    for package in ("robustkit", "attacks", "cam", "corruptions", "scripts", "tests", "examples"):
        yield from (path for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".j2", ".toml", ".js"))


def place_of(name: str) -> str:
    top, _, rest = name.partition("/")
    return top if rest and top not in ("docs", ".github", ".ci") else "pages"


def prose(text: str, suffix: str) -> str:
    """What a person reads of a file: of code the comments and strings."""
    if suffix == ".md":
        return QUOTED.sub(lambda found: "\n" * found[0].count("\n"), text)
    if suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return "\n".join(token.string for token in tokens if token.type in kinds)


def found_in(text: str, suffix: str) -> list[str]:
    return [" ".join(word.lower().split()) for word in BANNED.findall(prose(text, suffix))]


@pytest.mark.parametrize(
    "place", ["pages", "attacks", "cam", "corruptions", "robustkit", "scripts", "tests", "examples"]
)
def test_the_words_are_plain(place: str) -> None:
    faults = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if LEFT.search(name) or place_of(name) != place:
            continue
        faults += [
            f"{name}: {word!r}; say: {SAID[word]}" for word in found_in(path.read_text(encoding="utf-8"), path.suffix)
        ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        ("drawn anew, Beside it", ".md", ["anew", "beside"]),
        ("> quoted anew\n`beside`", ".md", []),
        ("beside = 1  # beside\n", ".py", ["beside"]),
        ("besides, renewed", ".md", []),
        ("what it says\nof itself", ".md", ["says of"]),
        ("nobody reads it any more; what is not, what is now", ".md", ["any more"]),
    ],
)
def test_what_is_found(text: str, suffix: str, words: list[str]) -> None:
    assert found_in(text, suffix) == words


def test_the_list_is_that_of_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- words -->\n(.*?)<!-- /words -->", text, re.DOTALL)
    assert table is not None
    missing = [word for word in SAID if word not in table[1]]
    assert not missing


def test_the_architecture_is_read_in_one_sitting() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert len(page.split()) <= 2500
    text = re.sub(r"(?ms)^```.*?^```|^\|.*?$|^#.*?$|<!--.*?-->", "\n", page)
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d\. )", text):
        for sentence in re.split(r"(?<=[.:;?])\s", " ".join(paragraph.split())):
            assert len(sentence.split()) <= 30, sentence
