"""Collect every text that a person reads of this project, and find refused words in it.

    python -m scripts.pages.strings            # refused words: file, word, and what to say instead; status 1 if any
    python -m scripts.pages.strings --list     # all texts that users see: help, messages, templates, pages
    python -m scripts.pages.strings --words    # their words by frequency, to find those that need a second look

The list with reasons is in CONTRIBUTING.md, and the two are the same.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFUSED = {
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
"""Nowhere: neither in code nor in studies and tests."""
REFUSED_TO_USERS = {
    "cannot tell": "inconclusive",
    "beyond chance": "significant, significantly",
    "travel with": "ship with",
    "travels with": "ships with",
    "what was asked": "evaluation, request",
    "less is better": "lower is better",
    "more is better": "higher is better",
}
"""In what users see besides."""
USERS = ("pages", "attacks", "cam", "corruptions", "robustkit")
PLACES = (*USERS, "scripts", "tests", "examples")
_LEFT = re.compile(r"protocol/cards/|cli/test_prose\.py|pages/strings\.py")  # a word there changes a card's digest
_QUOTED = re.compile(r"(?m)^> .*$|`[^`\n]*`|<!-- words -->.*?<!-- /words -->", re.DOTALL)
"""What pages quote, and the list itself."""


def files(place: str) -> Iterator[Path]:
    """Yield the files of a place: a package, or `pages`, which are README, docs and files for CI."""
    if place != "pages":
        yield from (path for path in (ROOT / place).rglob("*") if path.suffix in (".py", ".j2", ".toml", ".js", ".md"))
        return
    named = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
    yield from (ROOT / name for name in (*named, "action.yml", "Dockerfile", "setup.py", "mkdocs.yml", ".ci/run"))
    for folder, kind in (("docs", "*.md"), ("docs", "*.ipynb"), ("docs", "*.yml"), (".github", "*.yml")):
        yield from (ROOT / folder).rglob(kind)


def prose(text: str, suffix: str) -> str:
    """Return what a person reads of a file: of code the comments and strings."""
    if suffix == ".md":
        return _QUOTED.sub(lambda found: "\n" * found[0].count("\n"), text)
    if suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    return "\n".join(token.string for token in tokens if token.type in kinds)


def refused_in(text: str, suffix: str, place: str = "tests") -> list[str]:
    """Return the refused words of a text, in lower case."""
    words = REFUSED | (REFUSED_TO_USERS if place in USERS else {})
    some = "|".join(word.replace(" ", r"\s+") for word in words)
    found = re.findall(rf"(?<![\w{{.])({some})(?![\w}}])", prose(text, suffix), re.IGNORECASE)
    return [" ".join(word.lower().split()) for word in found]


def faults(place: str) -> Iterator[str]:
    """Yield each refused word of a place, with its file and what to say instead."""
    for path in files(place):
        name = path.relative_to(ROOT).as_posix()
        if not _LEFT.search(name) and not (place == "robustkit" and name.endswith(".md")):
            for word in refused_in(path.read_text(encoding="utf-8"), path.suffix, place):
                yield f"{name}: {word!r}; say: {(REFUSED | REFUSED_TO_USERS)[word]}"


def main(arguments: list[str] | None = None) -> int:
    """Print faults, texts or words. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--words", action="store_true")
    options = parser.parse_args(arguments)
    if not (options.list or options.words):
        found = [fault for place in PLACES for fault in faults(place)]
        print("\n".join(found))
        return bool(found)
    texts = [prose(path.read_text(encoding="utf-8"), path.suffix) for place in USERS for path in files(place)]
    if options.list:
        print("\n".join(texts))
    else:
        counted = Counter(word for text in texts for word in re.findall(r"[a-z][a-z'-]+", text.lower()))
        print("\n".join(f"{count:6} {word}" for word, count in counted.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
