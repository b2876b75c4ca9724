"""Patches: a small square of each image takes any values."""
