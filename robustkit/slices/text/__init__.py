"""Predict the next token of a text: one record row per document."""
