"""`robustkit corrupt`: contact sheets, corrupted trees, and the drift of a released tree."""
