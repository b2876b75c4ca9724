"""Evaluate a model on the images as they are."""
