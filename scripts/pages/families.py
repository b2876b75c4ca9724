"""The table of docs/how-to/audit-dinov3.md: what works for which family of vision transformers, tried on each.

python -m scripts.pages.families [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from robustkit.slices.listing import listing

from .writing import markdown

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit-dinov3.md"
START, END = "<!-- families: made by scripts/pages/families.py -->\n", "<!-- /families -->\n"


def table() -> str:
    rows = [(row["name"], row["formulas"], row["maps"]) for row in listing("families")]
    return markdown([("family", "formulas", "maps"), *rows])


def page() -> str:
    """Return the page with the table as it is now."""
    before, _, rest = PAGE.read_text("utf-8").partition(START)
    return f"{before}{START}{table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    options = parser.parse_args(arguments)
    if (text := page()) == PAGE.read_text("utf-8"):
        return 0
    if not options.check:
        PAGE.write_text(text, "utf-8")
        return 0
    print(f"{PAGE.name} is out of date; run python -m scripts.pages.families", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
