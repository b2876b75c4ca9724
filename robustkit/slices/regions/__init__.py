"""Drown a region of each image in noise: the object, the background, or what a map shows."""
