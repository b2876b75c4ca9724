"""Where things are that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SHARED = ROOT.parent / "shared"  # real data and weights, beside the checkout; often not there
