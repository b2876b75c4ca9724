"""`robustkit cam`: scores of maps and a gallery, of a data set or of your own pictures."""
