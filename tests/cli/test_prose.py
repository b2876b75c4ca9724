"""Words that the project does not use are in no page, help, message, docstring or comment."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from scripts.pages.strings import PLACES, REFUSED, REFUSED_TO_USERS, faults, refused_in


@pytest.mark.parametrize("place", PLACES)
def test_the_words_are_plain(place: str) -> None:
    found = [*faults(place)]
    assert not found, "\n".join(found)


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
    assert refused_in(text, suffix) == words
    assert refused_in("cannot tell", ".md") == [] and refused_in("cannot\ntell", ".md", "pages") == ["cannot tell"]


def test_the_list_is_that_of_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- words -->\n(.*?)<!-- /words -->", text, re.DOTALL)
    assert table is not None
    missing = [word for word in (*REFUSED, *REFUSED_TO_USERS) if word not in table[1]]
    assert not missing


def test_the_architecture_is_read_in_one_sitting() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert len(page.split()) <= 2500
    text = re.sub(r"(?ms)^```.*?^```|^\|.*?$|^#.*?$|<!--.*?-->", "\n", page)
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d\. )", text):
        for sentence in re.split(r"(?<=[.:;?])\s", " ".join(paragraph.split())):
            assert len(sentence.split()) <= 30, sentence
