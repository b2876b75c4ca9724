"""Evaluate a language model on documents with changed words."""
