"""Classify images: one record row per image."""
