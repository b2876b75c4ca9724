"""Evaluate a model on corrupted images: conditions, sets, released trees, mean errors and mCE."""
