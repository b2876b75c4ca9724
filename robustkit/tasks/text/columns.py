"""The columns of records of language models."""

from __future__ import annotations

import pyarrow as pa

TEXTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("tokens", pa.int64()),
        ("words", pa.int64()),
        ("bytes", pa.int64()),
        ("nll", pa.float64()),
        ("right", pa.int64()),
        ("unknown", pa.int64()),
        ("changed", pa.int64()),
        ("error", pa.string()),
    ]
)
"""One row per document.

tokens: how many were predicted; words, bytes: of the text that they are, without the first token where nothing comes
before it. nll: minus the natural logarithm of the probability of all these tokens, their sum. right: how many were the
likeliest; unknown: how many stand for what the vocabulary lacks. changed: words that a condition changed. error: why a
document could not be read; all but the id is null then.
"""
SUMS = ("tokens", "words", "bytes", "nll", "right")
"""The columns that every figure is made of."""
