"""Write docs/reference/findings.md from the catalogue: a heading for each code.

python -m scripts.pages.findings            write the page
python -m scripts.pages.findings --check    status 1 where the page is another one
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from robustkit.common.finding import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "findings.md"
HEAD = """# Findings

Made by `python -m scripts.pages.findings` from the catalogue; `robustkit explain CODE` prints the same.

A finding says what makes a figure mean less, or what is worth knowing about it. Its code stays the same when its
sentence is improved, so policies name it: `no findings except setup/attention-assumed`. A *doubt* is a finding without
which the figure must not be read. A *limit* says that the run is incomplete or thin. A *note* is worth knowing. Page,
terminal and notebook list doubts first, then limits, then notes; summary.json has code, severity and sentence of each.
"""
SEVERITIES = {"doubt": "Doubt", "limit": "Limit", "note": "Note"}


def page() -> str:
    parts = [HEAD]
    for code, entry in catalogue().items():
        sentence = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", entry.sentence.replace("*", r"\*"))
        parts.append(
            f"## {code}\n\n**{SEVERITIES[entry.severity]}: {entry.title}.** {entry.why}\n\n"
            f"- It says: {sentence}\n- What to do: {entry.remedy}\n- When to ignore it: {entry.ignore}\n"
        )
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text("utf-8") != text)
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
