"""Segment images: record rows hold counts by class, of which every figure is a sum."""
