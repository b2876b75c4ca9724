"""Segment images: record rows hold counts by class, which every figure is computed from."""
