"""Measurements of time, memory and agreement, printed as tables and ratios."""
