"""Two Segmenters on street scenes, clean, corrupted and attacked."""
