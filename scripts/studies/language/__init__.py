"""Small language models of the Brown corpus: those that are shipped, and experiments with their attention."""
