"""One folder per family of evaluations (attacks, corruptions, maps, attention), and what the families share."""
