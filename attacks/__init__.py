"""Adversarial attacks on classifiers: torch only, usable alone."""
