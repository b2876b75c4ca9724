"""`robustkit doctor`: check this machine against known answers."""
