"""Class activation maps for vision models: torch only, usable alone."""
