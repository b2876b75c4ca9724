"""Common corruptions for batches of images: torch and numpy only, usable alone."""
