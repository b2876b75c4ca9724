"""The golden corruptions of the tests, and how far ours are from the reference."""
