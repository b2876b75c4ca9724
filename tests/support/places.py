"""Where things are that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SHARED = ROOT.parent / "shared"  # real data and weights, next to the checkout; often not there
DELETED = sorted(
    folder.name
    for folder in (TESTS / "slices").glob("[a-z]*")
    if folder.is_dir() and not (ROOT / "robustkit" / "slices" / folder.name).exists()
)
"""The slices that a copy of the tree is without."""
