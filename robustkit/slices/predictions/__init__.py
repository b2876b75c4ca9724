"""Predictions of other systems: files of labels or probabilities become records."""
