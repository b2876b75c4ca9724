"""Inspect checkpoints: what is in a file, and which set-up fits its weights."""
