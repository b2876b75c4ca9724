"""QANA's hypothesis: whether keys may be smaller where queries are networks."""
