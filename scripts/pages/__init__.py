"""Pages of docs/ from runs, from the command line's help, and from cheating models."""
