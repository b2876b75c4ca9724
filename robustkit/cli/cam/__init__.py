"""`robustkit cam`: scores of maps and a gallery, for a data set or for your own pictures."""
