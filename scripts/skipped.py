"""Say which tests ran in no pass of pytest since a package or a program is missing. Status 1 where there are any.

    SKIPPED_TESTS=passes.jsonl pytest                                              # with the extra `test`
    python -m scripts.skipped --again passes.jsonl > again.txt
    SKIPPED_TESTS=passes.jsonl pytest -m "" @again.txt                             # with more packages, slow ones too
    python -m scripts.skipped passes.jsonl

`tests/conftest.py` appends a line for each pass to the file that SKIPPED_TESTS names. `--again` prints these tests with
all their cases, one a line. Data and weights of `shared/`, other systems and other versions of torch are no packages.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NO_PACKAGE = re.compile(
    "shared|next to the checkout|real (data|weights)|Brown corpus"  # files that are not part of the project
    "|real CUDA device|this torch|torch reads|other systems|not a git checkout|cannot be measured|without the slice"
)


def never_run(passes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return why each test was skipped that ran in no pass; `ran`: ids of tests, `skipped`: reasons by id. A module
    that was skipped as a whole has its path as id.
    """
    ran, skipped = set[str](), dict[str, str]()
    for each in passes:
        ran |= {*each["ran"]}
        skipped |= each["skipped"]
    ran |= {test.partition("::")[0] for test in ran}
    return {test: why for test, why in skipped.items() if test not in ran and not NO_PACKAGE.search(why)}


def table(tests: Mapping[str, str]) -> str:
    """Return a line for each reason, with the number of its tests and the first one."""
    lines = [f"skipped everywhere since a package is missing: {len(tests) or 'none'}"]
    for why in dict.fromkeys(tests.values()):
        names = [test for test, each in tests.items() if each == why]
        lines.append(f"  {len(names):>4}  {why}: {names[0]}{' …' * (len(names) > 1)}")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passes", type=Path)
    parser.add_argument("--again", action="store_true", help="print these tests, to run them once more")
    asked = parser.parse_args(words)
    tests = never_run(map(json.loads, asked.passes.read_text("utf-8").splitlines()))
    print(*sorted({test.partition("[")[0] for test in tests}), sep="\n") if asked.again else print(table(tests))
    return int(bool(tests) and not asked.again)


if __name__ == "__main__":
    sys.exit(main())
