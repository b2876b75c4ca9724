"""`robustkit doctor`: hold this machine against known answers."""
